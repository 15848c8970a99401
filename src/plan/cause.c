/* cause.c - see cause.h. */
#include "plan/cause.h"

#include "base/text.h"
#include "graph/kv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const BOUND[] = {[RF_BOUND_COMPUTE] = "arithmetic",
                                    [RF_BOUND_MEMORY] = "memory bandwidth",
                                    [RF_BOUND_LATENCY] = "launches",
                                    [RF_BOUND_NETWORK] = "the network"};

/* Smaller changes would be printed as "1 times", which explains nothing. */
static const double NOTICED = 0.005;

/* Seconds per step of all ops with this definition. *work gets the sum of their work. */
static double seconds_of(const rf_plan *plan, const rf_op_def *def, double *work) {
  double seconds = 0;
  *work = 0;
  for (int i = 0; i < plan->graph->op_count; i++) {
    if (plan->graph->op[i].def != def) continue;
    seconds += plan->op[i].seconds * plan->op[i].calls;
    *work += rf_cost_work(plan->op[i].work) * plan->op[i].calls;
  }
  return seconds;
}

static int find_op(const rf_plan *plan, const char *name, int near) {
  if (near < plan->graph->op_count && !strcmp(plan->graph->op[near].name, name)) return near;
  for (int i = 0; i < plan->graph->op_count; i++)
    if (!strcmp(plan->graph->op[i].name, name)) return i;
  return -1;
}

/* Looks at ops with this definition, if both plans have such ops. Finds the op whose time in
 * `after` most exceeds the expected time. False: there is none. */
static bool namesakes(const rf_plan *before, const rf_plan *after, const rf_op_def *def, double growth,
                      int *b, int *a) {
  double most = 0;
  *a = *b = -1;
  for (int i = 0; i < after->graph->op_count; i++) {
    int old = after->graph->op[i].def == def ? find_op(before, after->graph->op[i].name, i) : -1;
    if (old < 0) continue;
    double excess =
        after->op[i].seconds * after->op[i].calls - growth * before->op[old].seconds * before->op[old].calls;
    if (*a < 0 || excess > most) {
      *a = i;
      *b = old;
      most = excess;
    }
  }
  return *b >= 0;
}

static int64_t rows_of(const rf_plan *plan, int op) {
  const rf_op *o = &plan->graph->op[op];
  for (int i = 0; i < o->input_count; i++)
    if (o->input[i] >= 0 && plan->graph->tensor[o->input[i]].rank > 0)
      return plan->graph->tensor[o->input[i]].shape[0];
  return plan->graph->rows;
}

/* Finds the operand that needs the most columns of padding to fill whole tiles of the matrix unit.
 * Returns the number of columns of padding. The number is 0 if no padding is needed, or if the
 * matrix unit has no tiles. *extent gets the operand's width. */
static int64_t padding_of(const rf_plan *plan, int op, int64_t *extent) {
  const rf_op *o = &plan->graph->op[op];
  int64_t tile = plan->machine.tile[1], most = 0;
  for (int i = 0; tile > 1 && i < 2; i++) {
    const rf_tensor *t = o->input[i] >= 0 ? &plan->graph->tensor[o->input[i]] : NULL;
    if (!t || t->rank != 2) return 0;
    int64_t padding = (tile - t->shape[1] % tile) % tile;
    if (padding > most) {
      most = padding;
      *extent = t->shape[1];
    }
  }
  return most;
}

static int64_t pages_of(const rf_plan *plan) {
  rf_kv kv = rf_kv_of(&plan->graph->model, &plan->options.build);
  return kv.of[RF_KV_GLOBAL].most + kv.of[RF_KV_LOCAL].most;
}

static bool find_page(const rf_plan *before, const rf_plan *after, rf_cause *cause) {
  /* pages that grow with the tokens do not explain a cliff */
  const double tokens = (double)after->options.build.seq / (double)before->options.build.seq;
  if ((double)pages_of(after) <= (double)pages_of(before) * tokens) return false;
  cause->kind = "page";
  snprintf(cause->text, sizeof cause->text, "a sequence takes %lld page%s of the cache instead of %lld",
           (long long)pages_of(after), rf_plural(pages_of(after)), (long long)pages_of(before));
  return true;
}

rf_cause rf_cause_of_time(const rf_plan *before, const rf_plan *after, double growth) {
  rf_cause cause = {.kind = "op"};
  const rf_op_def *worst = NULL;
  double most = 0, was = 0, is = 0, work = 0, old_work, new_work;
  int64_t extent = 0, other = 0;
  int b, a;
  for (int i = 0; RF_OPS[i]; i++) {
    double old = seconds_of(before, RF_OPS[i], &old_work), new = seconds_of(after, RF_OPS[i], &new_work);
    if (new - old * growth > most) {
      most = new - old *growth;
      worst = RF_OPS[i];
      was = old;
      is = new;
      work = old_work > 0 ? new_work / old_work : 0;
    }
  }
  if (!worst) return cause;
  if (!namesakes(before, after, worst, growth, &b, &a)) {
    snprintf(cause.text, sizeof cause.text, "%s: new in this plan, %.3g ms", worst->name, 1e3 * is);
    return cause;
  }
  const rf_plan_op *old = &before->op[b], *new = &after->op[a];
  if (strcmp(old->kernel->name, new->kernel->name)) {
    cause.kind = "kernel";
    snprintf(cause.text, sizeof cause.text, "%s switches from kernel %s to %s at %lld rows", worst->name,
             old->kernel->name, new->kernel->name, (long long)rows_of(after, a));
  } else if (padding_of(after, a, &extent) > padding_of(before, b, &other)) {
    cause.kind = "tile";
    snprintf(cause.text, sizeof cause.text,
             "%s (%.60s): %lld columns do not fill whole tiles of %d: %lld columns of padding", worst->name,
             after->graph->op[a].name, (long long)extent, after->machine.tile[1],
             (long long)padding_of(after, a, &extent));
  } else if (before->options.build.job == RF_JOB_GENERATE && worst->curve_size == RF_CURVE_ROWS &&
             find_page(before, after, &cause)) {
    return cause;
  } else if (old->bound != new->bound) {
    cause.kind = "bound";
    snprintf(cause.text, sizeof cause.text, "the limit of %s changes from %s to %s at %lld rows (%.60s)",
             worst->name, BOUND[old->bound], BOUND[new->bound], (long long)rows_of(after, a),
             after->graph->op[a].name);
  } else if (before->machine.chips != after->machine.chips) {
    cause.kind = "topology";
    snprintf(cause.text, sizeof cause.text, "%d chip%s instead of %d: %s takes %.0f %% of its former time",
             after->machine.chips, rf_plural(after->machine.chips), before->machine.chips, worst->name,
             100 * is / was);
  } else if (fabs(is / was - 1) > NOTICED || fabs(work - 1) > NOTICED)
    snprintf(cause.text, sizeof cause.text, "%s takes %.3g times as long for %.3g times the work",
             worst->name, is / was, work);
  return cause;
}

rf_cause rf_cause_of_memory(const rf_plan *before, const rf_plan *after, double growth) {
  rf_cause cause = {.kind = "class"};
  int worst = 0;
  double most = -1;
  for (int c = 0; c < RF_CLASSES; c++) {
    double excess = (double)after->by_class[c] - growth * (double)before->by_class[c];
    if (excess > most) {
      most = excess;
      worst = c;
    }
  }
  if (worst == RF_CLASS_KV && find_page(before, after, &cause)) return cause;
  const char *old_peak = rf_plan_peak(before), *new_peak = rf_plan_peak(after);
  double unit = after->by_class[worst] >= (int64_t)1 << 30 ? 0x1p30 : 0x1p20;
  snprintf(cause.text, sizeof cause.text, "%s goes from %.2f to %.2f %s%s%.80s",
           rf_class_name((rf_class)worst), (double)before->by_class[worst] / unit,
           (double)after->by_class[worst] / unit, unit > 0x1p20 ? "GiB" : "MiB",
           strcmp(old_peak, new_peak) ? "; the peak moves to " : " at ", new_peak);
  return cause;
}
