#include "plan/advice.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct variant {
  char change[48];
  rf_plan_options options;
} variant;

static int variants_of(const rf_plan *plan, variant *list) {
  const rf_plan_options *from = &plan->options;
  int count = 0;
  for (int remat = RF_REMAT_NONE; remat < RF_REMAT_AUTO; remat++) {
    if (from->remat == (rf_remat)remat || from->remat == RF_REMAT_AUTO) continue;
    variant *v = &list[count++];
    v->options = *from, v->options.remat = (rf_remat)remat;
    snprintf(v->change, sizeof v->change, "remat=%s", rf_remat_name((rf_remat)remat));
  }
  for (int up = 0; up < 2; up++) {
    variant *v = &list[count];
    v->options = *from;
    rf_build_options *b = &v->options.build;
    if (up ? b->accumulate % 2 != 0 : b->microbatch % 2 != 0) continue;
    b->microbatch = up ? b->microbatch * 2 : b->microbatch / 2, b->accumulate = up ? b->accumulate / 2 : b->accumulate * 2;
    snprintf(v->change, sizeof v->change, "microbatch=%lld accumulate=%d", (long long)b->microbatch, b->accumulate);
    count++;
  }
  if (from->build.dtype == RF_F32) {
    variant *v = &list[count++];
    v->options = *from, v->options.build.dtype = RF_BF16;
    strcpy(v->change, "dtype=bf16");
  }
  return count;
}

/* Plans know nothing of each other, so that each core may make the next one. */
typedef struct bench {
  const rf_model *model;
  const variant *list;
  rf_plan *made[RF_MAX_ADVICE]; /* NULL: there is no such plan */
  int count;
  atomic_int next;
} bench;

static void *make_plans(void *self) {
  bench *b = self;
  for (int i; (i = atomic_fetch_add(&b->next, 1)) < b->count;)
    if (rf_plan_make(b->model, &b->list[i].options, &b->made[i], NULL) != RAFTER_OK) b->made[i] = NULL;
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
  bench all = {.model = &plan->graph->model, .list = list, .count = count};
  make_all(&all);
  for (int i = 0; i < count; i++) {
    rf_plan *other = all.made[i];
    if (!other) continue;
    double saved = (double)(plan->arena_bytes - other->arena_bytes), slower = other->step_seconds / plan->step_seconds - 1;
    if (saved > 0 || slower < 0) {
      rf_advice *row = &advice[kept++];
      memcpy(row->change, list[i].change, sizeof row->change);
      row->peak_bytes = other->arena_bytes, row->seconds = other->step_seconds;
      snprintf(row->why, sizeof row->why, "%.1f %% %s memory, %.1f %% %s", 100 * (saved >= 0 ? saved : -saved) / (double)plan->arena_bytes,
               saved >= 0 ? "less" : "more", 100 * (slower >= 0 ? slower : -slower), slower >= 0 ? "slower" : "faster");
    }
    rf_plan_free(other);
  }
  return kept;
}
