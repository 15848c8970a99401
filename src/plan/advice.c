/* advice.c - see advice.h. */
#include "plan/advice.h"

#include "plan/parts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct variant {
  char change[48];
  rf_plan_options options;
  bool same_graph; /* the change affects only recomputation */
} variant;

/* Lists the changes to price. The first *same of them only change recomputation. */
static int variants_of(const rf_plan_options *from, variant *list, int *same) {
  int count = 0;
  for (int remat = RF_REMAT_NONE; remat < RF_REMAT_AUTO; remat++) {
    if (from->remat == (rf_remat)remat || from->remat == RF_REMAT_AUTO) continue;
    variant *v = &list[count++];
    v->options = *from;
    v->options.remat = (rf_remat)remat;
    v->same_graph = true;
    snprintf(v->change, sizeof v->change, "remat=%s", rf_remat_name((rf_remat)remat));
  }
  *same = count;
  for (int up = 0; up < 2; up++) {
    variant *v = &list[count];
    v->options = *from;
    v->same_graph = false;
    rf_build_options *b = &v->options.build;
    if (up ? b->accumulate % 2 != 0 : b->microbatch % 2 != 0) continue;
    b->microbatch = up ? b->microbatch * 2 : b->microbatch / 2;
    b->accumulate = up ? b->accumulate / 2 : b->accumulate * 2;
    snprintf(v->change, sizeof v->change, "microbatch=%lld accumulate=%d", (long long)b->microbatch,
             b->accumulate);
    count++;
  }
  if (from->build.dtype == RF_F32) {
    variant *v = &list[count++];
    v->options = *from;
    v->options.build.dtype = RF_BF16;
    v->same_graph = false;
    strcpy(v->change, "dtype=bf16");
  }
  return count;
}

/* The changes to price, shared by threads that each take the next one. Changes that only recompute
 * differently wait for the graph of the plan itself; the others build their own graph. */
typedef struct bench {
  const rf_model *model;
  variant list[RF_MAX_ADVICE];
  const rf_graph *base; /* graph for the first `same` changes; NULL: each builds its own */
  bool weighed;         /* the first `same` changes are estimated (trial.c), not planned */
  struct {
    bool made; /* false: this change cannot be planned */
    int64_t bytes;
    double seconds;
  } came[RF_MAX_ADVICE];
  int count, same; /* same: number of changes that use `base` */
  atomic_int next_same, next_other;
} bench;

struct rf_advice_ahead {
  bench all;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool ready, over; /* ready: `base` is set; over: the result is not wanted */
};

/* Arena size and step seconds with a remat policy. If the live bytes do not fit, *bytes is the live
 * bytes. */
static void weigh(rf_trial *trial, const rf_graph *base, int64_t room, rf_remat remat, bool *drop,
                  int64_t *bytes, double *seconds) {
  double again;
  rf_remat_policy(base, remat, drop);
  rf_trial_weigh(trial, drop, bytes, &again);
  if (*bytes <= room) *bytes = rf_trial_layout(trial);
  *seconds = rf_trial_seconds(trial);
}

static void make(bench *b, int i, const rf_graph *base) {
  rf_plan *plan = NULL;
  b->came[i].made =
      rf_plan_make_to(RF_PLAN_PRICES, b->model, &b->list[i].options, base, &plan, NULL) == RAFTER_OK;
  if (b->came[i].made) {
    b->came[i].bytes = plan->arena_bytes;
    b->came[i].seconds = plan->step_seconds;
  }
  rf_plan_free(plan);
}

static void make_others(bench *b) {
  for (int i; (i = b->same + atomic_fetch_add(&b->next_other, 1)) < b->count;) make(b, i, NULL);
}

static void make_same(bench *b) {
  rf_pool *pool = rf_pool_new();
  /* all options except remat are equal */
  rf_trial *trial = b->weighed ? rf_trial_open(b->base, &b->list->options, pool) : NULL;
  bool *drop = trial ? rf_pool_alloc(pool, (size_t)b->base->tensor_count + 1) : NULL;
  for (int i; (i = atomic_fetch_add(&b->next_same, 1)) < b->same;) {
    if (!trial) make(b, i, b->base);
    else {
      weigh(trial, b->base, rf_plan_room(&b->list->options), b->list[i].options.remat, drop,
            &b->came[i].bytes, &b->came[i].seconds);
      b->came[i].made = true;
    }
  }
  rf_pool_free(pool);
}

static void *make_plans(void *self) {
  make_same(self);
  make_others(self);
  return NULL;
}

static void make_all(bench *b, int helpers) {
  pthread_t helper[RF_MAX_ADVICE];
  int begun = 0;
  while (begun < helpers && begun + 1 < b->count && !pthread_create(&helper[begun], NULL, make_plans, b))
    begun++;
  make_plans(b);
  while (begun > 0) pthread_join(helper[--begun], NULL);
}

static void *make_ahead(void *self) {
  rf_advice_ahead *ahead = self;
  make_others(&ahead->all);
  pthread_mutex_lock(&ahead->lock);
  while (!ahead->ready && !ahead->over) pthread_cond_wait(&ahead->changed, &ahead->lock);
  bool over = ahead->over;
  pthread_mutex_unlock(&ahead->lock);
  if (!over) make_same(&ahead->all);
  return NULL;
}

static void free_ahead(rf_advice_ahead *ahead) {
  if (!ahead) return;
  pthread_cond_destroy(&ahead->changed);
  pthread_mutex_destroy(&ahead->lock);
  free(ahead);
}

static int cores(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

rf_advice_ahead *rf_plan_advise_ahead(const rf_model *model, const rf_plan_options *options) {
  if (options->build.job != RF_JOB_TRAIN || cores() < 2 || rf_mesh_chips(&options->build.mesh) > 1)
    return NULL;
  rf_advice_ahead *ahead = calloc(1, sizeof *ahead);
  if (!ahead) return NULL;
  pthread_mutex_init(&ahead->lock, NULL);
  pthread_cond_init(&ahead->changed, NULL);
  ahead->all.model = model;
  ahead->all.count = variants_of(options, ahead->all.list, &ahead->all.same);
  if (!pthread_create(&ahead->thread, NULL, make_ahead, ahead)) return ahead;
  free_ahead(ahead);
  return NULL;
}

static void tell(rf_advice_ahead *ahead, bool *what) {
  pthread_mutex_lock(&ahead->lock);
  *what = true;
  pthread_cond_signal(&ahead->changed);
  pthread_mutex_unlock(&ahead->lock);
}

void rf_advice_forget(rf_advice_ahead *ahead) {
  if (!ahead) return;
  atomic_fetch_add(&ahead->all.next_other, RF_MAX_ADVICE);
  tell(ahead, &ahead->over);
  pthread_join(ahead->thread, NULL);
  free_ahead(ahead);
}

int rf_plan_advise(const rf_plan *plan, rf_advice_ahead *ahead, rf_advice advice[RF_MAX_ADVICE]) {
  const rf_plan_options *o = &plan->options;
  int kept = 0, helpers = cores() - 1;
  rf_graph *built = NULL;
  bench here = {.model = &plan->graph->model}, *all = ahead ? &ahead->all : &here;
  if (!ahead && o->build.job == RF_JOB_TRAIN) here.count = variants_of(o, here.list, &here.same);
  if (all->count) all->base = rf_plan_graph_before(plan, &built);
  all->weighed = all->base && all->same && rf_mesh_chips(&o->build.mesh) == 1 &&
                 o->program.program == RF_PROGRAM_RAFTER && rf_trial_can(all->base, o);
  /* the plan's own copy of the machine, scaled to its threads and instruction set */
  for (int i = 0; i < all->same; i++) all->list[i].options.machine = plan->options.machine;
  if (ahead) {
    tell(ahead, &ahead->ready);
    helpers--;
  }
  make_all(all, helpers);
  if (ahead) pthread_join(ahead->thread, NULL);
  for (int i = 0; i < all->count; i++) {
    if (!all->came[i].made) continue;
    /* compare live bytes with live bytes */
    const int64_t now = all->came[i].bytes > rf_plan_room(o) ? plan->live_bytes : plan->arena_bytes;
    double saved = (double)(now - all->came[i].bytes), slower = all->came[i].seconds / plan->step_seconds - 1;
    if (saved > 0 || slower < 0) {
      rf_advice *row = &advice[kept++];
      memcpy(row->change, all->list[i].change, sizeof row->change);
      row->peak_bytes = all->came[i].bytes;
      row->seconds = all->came[i].seconds;
      row->exact = all->list[i].same_graph; /* recomputation gives equal bits */
      row->approximate = all->list[i].options.build.dtype != o->build.dtype;
      snprintf(row->why, sizeof row->why, "%.1f %% %s memory, %.1f %% %s",
               100 * (saved >= 0 ? saved : -saved) / (double)now, saved >= 0 ? "less" : "more",
               100 * (slower >= 0 ? slower : -slower), slower >= 0 ? "slower" : "faster");
    }
  }
  rf_graph_free(built);
  free_ahead(ahead);
  return kept;
}
