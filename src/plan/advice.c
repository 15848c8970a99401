#include "plan/advice.h"

#include "plan/parts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct variant {
  char change[48];
  rf_plan_options options;
  bool same_graph; /* before recomputation */
} variant;

static int variants_of(const rf_plan *plan, variant *list) {
  const rf_plan_options *from = &plan->options;
  int count = 0;
  for (int remat = RF_REMAT_NONE; remat < RF_REMAT_AUTO; remat++) {
    if (from->remat == (rf_remat)remat || from->remat == RF_REMAT_AUTO) continue;
    variant *v = &list[count++];
    v->options = *from, v->options.remat = (rf_remat)remat, v->same_graph = true;
    snprintf(v->change, sizeof v->change, "remat=%s", rf_remat_name((rf_remat)remat));
  }
  for (int up = 0; up < 2; up++) {
    variant *v = &list[count];
    v->options = *from, v->same_graph = false;
    rf_build_options *b = &v->options.build;
    if (up ? b->accumulate % 2 != 0 : b->microbatch % 2 != 0) continue;
    b->microbatch = up ? b->microbatch * 2 : b->microbatch / 2, b->accumulate = up ? b->accumulate / 2 : b->accumulate * 2;
    snprintf(v->change, sizeof v->change, "microbatch=%lld accumulate=%d", (long long)b->microbatch, b->accumulate);
    count++;
  }
  if (from->build.dtype == RF_F32) {
    variant *v = &list[count++];
    v->options = *from, v->options.build.dtype = RF_BF16, v->same_graph = false;
    strcpy(v->change, "dtype=bf16");
  }
  return count;
}

/* Plans know nothing of each other, so that each core may make the next one. */
typedef struct bench {
  const rf_model *model;
  const variant *list;
  const rf_graph *base; /* of those that only recompute otherwise; NULL: each builds its own */
  bool weighed;         /* those are weighed and not made */
  struct {
    bool made; /* else there is no such plan */
    int64_t bytes;
    double seconds;
  } came[RF_MAX_ADVICE];
  int count;
  atomic_int next;
} bench;

static void weigh(rf_trial *trial, const rf_graph *base, rf_remat remat, bool *drop, int64_t *bytes, double *seconds) {
  double again;
  rf_remat_policy(base, remat, drop);
  rf_trial_weigh(trial, drop, bytes, &again);
  *bytes = rf_trial_layout(trial), *seconds = rf_trial_seconds(trial);
}

static void *make_plans(void *self) {
  bench *b = self;
  rf_pool *pool = rf_pool_new();
  rf_trial *trial = b->weighed ? rf_trial_open(b->base, &b->list->options, pool) : NULL; /* it differs in what is recomputed only */
  bool *drop = trial ? rf_pool_alloc(pool, (size_t)b->base->tensor_count + 1) : NULL;
  for (int i; (i = atomic_fetch_add(&b->next, 1)) < b->count;) {
    const variant *v = &b->list[i];
    rf_plan *plan = NULL;
    if (trial && v->same_graph) {
      weigh(trial, b->base, v->options.remat, drop, &b->came[i].bytes, &b->came[i].seconds);
      b->came[i].made = true;
      continue;
    }
    b->came[i].made = rf_plan_make_to(RF_PLAN_PRICES, b->model, &v->options, v->same_graph ? b->base : NULL, &plan, NULL) == RAFTER_OK;
    if (b->came[i].made) b->came[i].bytes = plan->arena_bytes, b->came[i].seconds = plan->step_seconds;
    rf_plan_free(plan);
  }
  rf_pool_free(pool);
  return NULL;
}

static void make_all(bench *b) {
  pthread_t helper[RF_MAX_ADVICE];
  int helpers = 0, cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
  while (helpers + 1 < b->count && helpers + 1 < cores && !pthread_create(&helper[helpers], NULL, make_plans, b)) helpers++;
  make_plans(b);
  while (helpers > 0) pthread_join(helper[--helpers], NULL);
}

int rf_plan_advise(const rf_plan *plan, rf_advice advice[RF_MAX_ADVICE]) {
  variant list[RF_MAX_ADVICE];
  int kept = 0, count = plan->options.build.job == RF_JOB_TRAIN ? variants_of(plan, list) : 0;
  rf_graph own, *built = NULL;
  bench all = {.model = &plan->graph->model, .list = list, .count = count};
  if (count) all.base = rf_plan_graph_before(plan, &own, &built);
  const rf_plan_options *o = &plan->options;
  all.weighed =
      all.base && list->same_graph && rf_mesh_chips(&o->build.mesh) == 1 && o->program.program == RF_PROGRAM_RAFTER && rf_trial_can(all.base, o);
  make_all(&all);
  for (int i = 0; i < count; i++) {
    if (!all.came[i].made) continue;
    double saved = (double)(plan->arena_bytes - all.came[i].bytes), slower = all.came[i].seconds / plan->step_seconds - 1;
    if (saved > 0 || slower < 0) {
      rf_advice *row = &advice[kept++];
      memcpy(row->change, list[i].change, sizeof row->change);
      row->peak_bytes = all.came[i].bytes, row->seconds = all.came[i].seconds;
      snprintf(row->why, sizeof row->why, "%.1f %% %s memory, %.1f %% %s", 100 * (saved >= 0 ? saved : -saved) / (double)plan->arena_bytes,
               saved >= 0 ? "less" : "more", 100 * (slower >= 0 ? slower : -slower), slower >= 0 ? "slower" : "faster");
    }
  }
  rf_graph_free(built);
  return kept;
}
