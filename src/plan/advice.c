/* advice.c - see advice.h. */
#include "plan/advice.h"

#include "base/text.h"
#include "plan/loss.h"
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
  bool made; /* false if this change cannot be planned */
  int64_t bytes;
  double seconds;
} variant;

/* The changes to price. Each thread takes the next change that no other thread has taken. The first
 * `same` changes alter only recomputation. These changes use the plan's graph, and wait until this
 * graph exists. Every other change builds its own graph. */
struct rf_advice_ahead {
  const rf_model *model;
  variant list[RF_MAX_ADVICE];
  const rf_graph *base; /* graph for the first `same` changes; NULL: each change builds its own graph */
  /* if true, trial.c estimates the first `same` changes, and no plans are made for them */
  bool weighed;
  int count, same;
  atomic_int next_same, next_other;
  pthread_t thread; /* prices the changes after the first `same` changes while the plan is made */
};

static variant *add(rf_advice_ahead *a, const rf_plan_options *from) {
  variant *v = &a->list[a->count++];
  v->options = *from;
  return v;
}

static void list_variants(rf_advice_ahead *a, const rf_plan_options *from) {
  const rf_build_options *b = &from->build;
  for (int remat = RF_REMAT_NONE; remat < RF_REMAT_AUTO; remat++) {
    if (from->remat == (rf_remat)remat || from->remat == RF_REMAT_AUTO) continue;
    variant *v = add(a, from);
    v->options.remat = (rf_remat)remat;
    snprintf(v->change, sizeof v->change, "remat=%s", rf_remat_name((rf_remat)remat));
  }
  a->same = a->count;
  for (int up = 0; up < 2; up++) {
    if (up ? b->accumulate % 2 != 0 : b->microbatch % (2 * rf_loss_sequences(b)) != 0) continue;
    variant *v = add(a, from);
    v->options.build.microbatch = up ? b->microbatch * 2 : b->microbatch / 2;
    v->options.build.accumulate = up ? b->accumulate / 2 : b->accumulate * 2;
    snprintf(v->change, sizeof v->change, "microbatch=%lld accumulate=%d",
             (long long)v->options.build.microbatch, v->options.build.accumulate);
  }
  if (b->dtype == RF_F32) {
    variant *v = add(a, from);
    v->options.build.dtype = RF_BF16;
    strcpy(v->change, "dtype=bf16");
  }
}

static void make(const rf_advice_ahead *a, variant *v, const rf_graph *base) {
  rf_plan *plan = NULL;
  v->made = rf_plan_make_to(RF_PLAN_PRICES, a->model, &v->options, base, &plan, NULL) == RAFTER_OK;
  if (v->made) {
    v->bytes = plan->arena_bytes;
    v->seconds = plan->step_seconds;
  }
  rf_plan_free(plan);
}

static void make_others(rf_advice_ahead *a) {
  for (int i; (i = a->same + atomic_fetch_add(&a->next_other, 1)) < a->count;) make(a, &a->list[i], NULL);
}

static void make_same(rf_advice_ahead *a) {
  rf_pool *pool = rf_pool_new();
  /* the first `same` changes differ only in remat, so they share one trial */
  rf_trial *trial = a->weighed ? rf_trial_open(a->base, &a->list->options, pool) : NULL;
  for (int i; (i = atomic_fetch_add(&a->next_same, 1)) < a->same;) {
    variant *v = &a->list[i];
    if (!trial) make(a, v, a->base);
    else {
      v->bytes = rf_trial_policy(trial, v->options.remat, rf_plan_room(&v->options));
      v->seconds = rf_trial_seconds(trial);
      v->made = true;
    }
  }
  rf_pool_free(pool);
}

static void *make_plans(void *self) {
  make_same(self);
  make_others(self);
  return NULL;
}

static void *make_ahead(void *self) {
  make_others(self);
  return NULL;
}

static void make_all(rf_advice_ahead *a, int helpers) {
  pthread_t helper[RF_MAX_ADVICE];
  int begun = 0;
  while (begun < helpers && begun + 1 < a->count && !pthread_create(&helper[begun], NULL, make_plans, a))
    begun++;
  make_plans(a);
  while (begun > 0) pthread_join(helper[--begun], NULL);
}

static int cores(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

rf_advice_ahead *rf_plan_advise_ahead(const rf_model *model, const rf_plan_options *options) {
  if (options->build.job != RF_JOB_TRAIN || cores() < 2 || rf_mesh_chips(&options->build.mesh) > 1)
    return NULL;
  rf_advice_ahead *ahead = calloc(1, sizeof *ahead);
  if (!ahead) return NULL;
  ahead->model = model;
  list_variants(ahead, options);
  if (!pthread_create(&ahead->thread, NULL, make_ahead, ahead)) return ahead;
  free(ahead);
  return NULL;
}

void rf_advice_forget(rf_advice_ahead *ahead) {
  if (!ahead) return;
  atomic_fetch_add(&ahead->next_other, RF_MAX_ADVICE);
  pthread_join(ahead->thread, NULL);
  free(ahead);
}

static bool write_row(const rf_plan *plan, const variant *v, bool same, rf_advice *row) {
  /* If the changed plan does not fit, v->bytes are live bytes. Then live bytes of both plans are
   * compared. */
  const int64_t now = v->bytes > rf_plan_room(&plan->options) ? plan->live_bytes : plan->arena_bytes;
  double saved = (double)(now - v->bytes), slower = v->seconds / plan->step_seconds - 1;
  char speed[32];
  if (!v->made || (saved <= 0 && slower >= 0)) return false;
  memcpy(row->change, v->change, sizeof row->change);
  row->peak_bytes = v->bytes;
  row->seconds = v->seconds;
  row->exact = same; /* recomputation gives equal bits */
  row->approximate = v->options.build.dtype != plan->options.build.dtype;
  snprintf(row->why, sizeof row->why, "%.1f %% %s memory, %s",
           100 * (saved >= 0 ? saved : -saved) / (double)now, saved >= 0 ? "less" : "more",
           rf_text_speed(plan->step_seconds, v->seconds, speed));
  return true;
}

int rf_plan_advise(const rf_plan *plan, rf_advice_ahead *ahead, rf_advice advice[RF_MAX_ADVICE]) {
  const rf_plan_options *o = &plan->options;
  int kept = 0;
  rf_graph *built = NULL;
  rf_advice_ahead here = {.model = &plan->graph->model}, *a = ahead ? ahead : &here;
  if (!ahead && o->build.job == RF_JOB_TRAIN) list_variants(a, o);
  if (a->count) a->base = rf_plan_graph_before(plan, &built);
  a->weighed = a->base && a->same && rf_mesh_chips(&o->build.mesh) == 1 &&
               o->program.program == RF_PROGRAM_RAFTER && rf_trial_can(a->base, o);
  /* Uses the machine of the options, because the plan's copy is scaled to the plan's threads and
   * isa. */
  for (int i = 0; i < a->same; i++) a->list[i].options.machine = o->machine;
  bool busy = ahead && a->same + atomic_load(&a->next_other) <= a->count;
  make_all(a, cores() - 1 - busy);
  if (ahead) pthread_join(ahead->thread, NULL);
  for (int i = 0; i < a->count; i++) kept += write_row(plan, &a->list[i], i < a->same, &advice[kept]);
  rf_graph_free(built);
  free(ahead);
  return kept;
}

/* ---- --compute ------------------------------------------------------------------------------- */

double rf_plan_other_compute(const rf_plan *plan, int64_t *peak_bytes) {
  rf_plan_options options = plan->options;
  bool changes = false;
  rf_plan *other = NULL;
  for (int i = 0; i < plan->graph->op_count; i++)
    changes |= rf_op_may_be_fast(plan->graph, &plan->graph->op[i]);
  options.build.fast = !options.build.fast;
  if (!changes || options.build.job == RF_JOB_TRAIN ||
      rf_plan_make_to(RF_PLAN_PRICES, &plan->graph->model, &options, NULL, &other, NULL) != RAFTER_OK)
    return 0;
  double seconds = other->step_seconds;
  if (peak_bytes) *peak_bytes = other->arena_bytes;
  rf_plan_free(other);
  return seconds;
}

int rf_plan_advise_compute(const rf_plan *decode, const rf_plan *prefill, rf_advice *advice) {
  int64_t bytes = 0, prompt_bytes = 0;
  double seconds = rf_plan_other_compute(decode, &bytes), prompt = 0;
  char speed[32], prompt_speed[32];
  if (seconds <= 0 || seconds == decode->step_seconds) return 0;
  if (prefill) prompt = rf_plan_other_compute(prefill, &prompt_bytes);
  *advice = (rf_advice){
      .peak_bytes = bytes > prompt_bytes ? bytes : prompt_bytes, .seconds = seconds, .approximate = true};
  snprintf(advice->change, sizeof advice->change, "compute=%s",
           decode->options.build.fast ? "exact" : "fast");
  rf_text_speed(decode->step_seconds, seconds, speed);
  if (prompt > 0)
    snprintf(advice->why, sizeof advice->why, "decoding: %s; prompts: %s", speed,
             rf_text_speed(prefill->step_seconds, prompt, prompt_speed));
  else snprintf(advice->why, sizeof advice->why, "%s", speed);
  return 1;
}

const char *rf_plan_compute_line(const rf_plan *decode, const rf_plan *prefill, char text[RF_COMPUTE_LINE]) {
  rf_advice advice;
  *text = 0;
  if (strcmp(decode->machine.source, "calibrated") || !rf_plan_advise_compute(decode, prefill, &advice))
    return text;
  snprintf(text, RF_COMPUTE_LINE, "; predicted with --compute %s: %s", strchr(advice.change, '=') + 1,
           advice.why);
  return text;
}
