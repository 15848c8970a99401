/* cause.c - see cause.h. */
#include "plan/cause.h"

#include "graph/kv.h"

#include <stdio.h>
#include <string.h>

static const char *const BOUND[] = {
    [RF_BOUND_COMPUTE] = "arithmetic", [RF_BOUND_MEMORY] = "memory bandwidth", [RF_BOUND_LATENCY] = "launches", [RF_BOUND_NETWORK] = "the network"};

/* Seconds of a step in ops of this definition, and their work. */
static double seconds_of(const rf_plan *plan, const rf_op_def *def, double *work) {
  double seconds = 0;
  *work = 0;
  for (int i = 0; i < plan->graph->op_count; i++) {
    if (plan->graph->op[i].def != def) continue;
    seconds += plan->op[i].seconds * plan->op[i].calls, *work += rf_cost_work(plan->op[i].work) * plan->op[i].calls;
  }
  return seconds;
}

/* The op of `after` that costs most among those of one definition, and its namesake in `before`; false: there is none. */
static bool namesakes(const rf_plan *before, const rf_plan *after, const rf_op_def *def, int *b, int *a) {
  double most = -1;
  *a = *b = -1;
  for (int i = 0; i < after->graph->op_count; i++)
    if (after->graph->op[i].def == def && after->op[i].seconds * after->op[i].calls > most) *a = i, most = after->op[i].seconds * after->op[i].calls;
  for (int i = 0; *a >= 0 && i < before->graph->op_count; i++)
    if (before->graph->op[i].def == def && !strcmp(before->graph->op[i].name, after->graph->op[*a].name)) *b = i;
  return *b >= 0;
}

static int64_t rows_of(const rf_plan *plan, int op) {
  const rf_op *o = &plan->graph->op[op];
  for (int i = 0; i < o->input_count; i++)
    if (o->input[i] >= 0 && plan->graph->tensor[o->input[i]].rank > 0) return plan->graph->tensor[o->input[i]].shape[0];
  return plan->graph->rows;
}

static int64_t pages_of(const rf_plan *plan) {
  rf_kv kv = rf_kv_of(&plan->graph->model, &plan->options.build);
  return kv.of[RF_KV_GLOBAL].most + kv.of[RF_KV_LOCAL].most;
}

rf_cause rf_cause_of_time(const rf_plan *before, const rf_plan *after, double growth) {
  rf_cause cause = {.kind = "op"};
  const rf_op_def *worst = NULL;
  double most = 0, was = 0, is = 0, work = 0, old_work, new_work;
  int b, a;
  for (int i = 0; RF_OPS[i]; i++) {
    double old = seconds_of(before, RF_OPS[i], &old_work), new = seconds_of(after, RF_OPS[i], &new_work);
    if (new - old * growth > most) most = new - old *growth, worst = RF_OPS[i], was = old, is = new, work = old_work > 0 ? new_work / old_work : 0;
  }
  if (!worst) {
    snprintf(cause.text, sizeof cause.text, "no kind of op takes more than its share: all of them grow alike");
    return cause;
  }
  if (!namesakes(before, after, worst, &b, &a)) {
    snprintf(cause.text, sizeof cause.text, "%s: new in this plan, %.3g ms", worst->name, 1e3 * is);
    return cause;
  }
  const rf_plan_op *old = &before->op[b], *new = &after->op[a];
  if (strcmp(old->kernel->name, new->kernel->name)) {
    cause.kind = "kernel";
    snprintf(cause.text, sizeof cause.text, "%s goes from kernel %s to %s at %lld rows", worst->name, old->kernel->name, new->kernel->name,
             (long long)rows_of(after, a));
  } else if (before->options.build.job == RF_JOB_GENERATE && !strcmp(worst->name, "attention_kv") && pages_of(before) != pages_of(after)) {
    cause.kind = "page";
    snprintf(cause.text, sizeof cause.text, "a sequence holds %lld pages of the cache, %lld before", (long long)pages_of(after),
             (long long)pages_of(before));
  } else if (old->bound != new->bound) {
    cause.kind = "bound";
    snprintf(cause.text, sizeof cause.text, "%s turns from being limited by %s to %s at %lld rows (%.60s)", worst->name, BOUND[old->bound],
             BOUND[new->bound], (long long)rows_of(after, a), after->graph->op[a].name);
  } else if (before->machine.chips != after->machine.chips) {
    cause.kind = "topology";
    snprintf(cause.text, sizeof cause.text, "%d chips in place of %d: %s keeps %.0f %% of its time", after->machine.chips, before->machine.chips,
             worst->name, 100 * is / was);
  } else snprintf(cause.text, sizeof cause.text, "%s takes %.3g times as long for %.3g times the work", worst->name, is / was, work);
  return cause;
}

rf_cause rf_cause_of_memory(const rf_plan *before, const rf_plan *after, double growth) {
  rf_cause cause = {.kind = "class"};
  int worst = 0;
  double most = -1;
  for (int c = 0; c < RF_CLASSES; c++) {
    double excess = (double)after->by_class[c] - growth * (double)before->by_class[c];
    if (excess > most) most = excess, worst = c;
  }
  if (worst == RF_CLASS_KV && pages_of(before) != pages_of(after)) {
    cause.kind = "page";
    snprintf(cause.text, sizeof cause.text, "a sequence holds %lld pages of the cache, %lld before", (long long)pages_of(after),
             (long long)pages_of(before));
    return cause;
  }
  const char *old_peak = before->graph->op_count ? before->graph->op[before->peak_op].name : "",
             *new_peak = after->graph->op_count ? after->graph->op[after->peak_op].name : "";
  snprintf(cause.text, sizeof cause.text, "%s goes from %.3g to %.3g MiB%s%.80s", rf_class_name((rf_class)worst),
           (double)before->by_class[worst] / 0x1p20, (double)after->by_class[worst] / 0x1p20,
           strcmp(old_peak, new_peak) ? "; the peak moves to " : " at ", new_peak);
  return cause;
}
