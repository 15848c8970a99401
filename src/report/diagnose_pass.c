/* diagnose_pass.c - sums the time of one forward pass or step by kind of op, phase, bound and
 * layer. This file also finds the largest losses and the rate. */
#include "report/diagnose.h"
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { LAYERS = 4096 };
/* If even the fastest calls take HELD times their prediction, these calls were delayed too. */
static const double HELD = 1.5;

/* One op, with predicted sums over its calls in a step. An op that ran also has measured sums. */
typedef struct op_cost {
  const char *name, *kind, *phase, *bound, *kernel;
  int id;
  rf_sum sum;
} op_cost;

typedef struct costs {
  op_cost *at;
  size_t count;
} costs;

/* Returns -1 if the op belongs to no layer. */
static int layer_of(const json_t *op) {
  const json_t *layer = json_object_get(op, "layer");
  json_int_t number = json_is_integer(layer) ? json_integer_value(layer) : -1;
  return number >= 0 && number < LAYERS ? (int)number : -1;
}

static op_cost read_op(const json_t *planned, const json_t *measured, double per) {
  const json_t *from = measured ? measured : planned;
  const char *bound = rf_json_text_at(planned, "bound");
  double calls = measured ? rf_json_number_at(measured, "calls") / per : rf_json_number_at(planned, "calls");
  double predicted = calls * rf_json_number_at(from, measured ? "predicted_seconds" : "seconds");
  op_cost op = {.name = rf_json_text_at(planned, "name"),
                .kind = rf_json_text_at(planned, "kind"),
                .phase = rf_json_text_at(planned, "phase"),
                .bound = strcmp(bound, "latency") ? bound : "launch",
                .kernel = rf_json_text_at(planned, "kernel"),
                .id = (int)rf_json_number_at(planned, "id")};
  op.sum = (rf_sum){.layer = layer_of(planned),
                    .calls = calls,
                    .predicted = predicted,
                    .limit = calls * rf_json_number_at(from, "limit_seconds"),
                    .seconds = measured ? calls * rf_json_number_at(measured, "seconds") : predicted,
                    .fastest = measured ? calls * rf_json_number_at(measured, "least_seconds") : predicted,
                    .flops = calls * rf_json_number_at(planned, "hardware_flops"),
                    .bytes = calls * rf_json_number_at(planned, "bytes")};
  return op;
}

static costs read_ops(const json_t *plan, const json_t *measured, double per) {
  const json_t *ops = json_object_get(plan, "ops"), *op;
  const json_t *list = measured ? json_object_get(measured, "ops") : ops;
  costs read = {.at = calloc(json_array_size(list) + 1, sizeof *read.at)};
  size_t i;
  json_array_foreach (list, i, op)
    if (read.at) {
      const json_t *planned = measured ? json_array_get(ops, (size_t)rf_json_number_at(op, "id")) : op;
      read.at[read.count++] = read_op(planned, measured ? op : NULL, per);
    }
  return read;
}

/* ---- sums ------------------------------------------------------------------------------------ */

const rf_sum *rf_sum_named(const rf_sums *sums, const char *name) {
  for (int i = 0; i < sums->count; i++)
    if (!strcmp(sums->at[i].name, name)) return &sums->at[i];
  return NULL;
}

static rf_sum *sum_of(rf_sums *sums, const char *name) {
  const rf_sum *found = rf_sum_named(sums, name);
  if (found) return &sums->at[found - sums->at];
  if (sums->count == RF_SUMS) return &sums->at[RF_SUMS - 1];
  sums->at[sums->count] = (rf_sum){.name = name};
  return &sums->at[sums->count++];
}

static void set_planned(rf_sums *sums, const char *name, double seconds) {
  *sum_of(sums, name) = (rf_sum){.name = name, .seconds = seconds, .predicted = seconds};
}

static void add(rf_sum *to, const rf_sum *one) {
  to->calls += one->calls;
  to->predicted += one->predicted;
  to->limit += one->limit;
  to->seconds += one->seconds;
  to->fastest += one->fastest;
  to->flops += one->flops;
  to->bytes += one->bytes;
}

static int slower_first(const void *a, const void *b) {
  double x = ((const rf_sum *)a)->seconds, y = ((const rf_sum *)b)->seconds;
  return (x < y) - (x > y);
}
static void sort(rf_sums *sums) { qsort(sums->at, (size_t)sums->count, sizeof *sums->at, slower_first); }

static int largest_loss_first(const void *a, const void *b) {
  const rf_sum *p = &((const op_cost *)a)->sum, *q = &((const op_cost *)b)->sum;
  double x = p->seconds - p->limit, y = q->seconds - q->limit;
  return (x < y) - (x > y);
}

/* Fills pass->loss with the ops that exceed their limit by the most time. Sorts `ops`. */
static void find_losses(rf_diagnosed_pass *pass, costs ops) {
  qsort(ops.at, ops.count, sizeof *ops.at, largest_loss_first);
  for (size_t i = 0; i < ops.count && i < RF_LOSSES; i++) {
    const op_cost *op = &ops.at[i];
    pass->loss[pass->losses++] = (rf_loss){.id = op->id,
                                           .name = op->name,
                                           .kernel = op->kernel,
                                           .seconds = op->sum.seconds,
                                           .predicted = op->sum.predicted,
                                           .limit = op->sum.limit};
  }
}

static bool find_layers(rf_diagnosed_pass *pass, costs ops) {
  rf_sum *layer = calloc(LAYERS + 1, sizeof *layer), outside;
  if (!layer) return false;
  for (size_t i = 0; i < ops.count; i++) {
    rf_sum *at = &layer[1 + ops.at[i].sum.layer];
    at->layer = ops.at[i].sum.layer;
    add(at, &ops.at[i].sum);
  }
  outside = layer[0];
  for (int k = 1; k <= LAYERS; k++)
    if (layer[k].calls > 0 && layer[k].seconds + layer[k].bytes > 0) layer[pass->layers++] = layer[k];
  if (pass->layers && outside.calls > 0) layer[pass->layers++] = outside;
  pass->layer = layer;
  return true;
}

static void find_bound_kind(rf_diagnosed_pass *pass, costs ops) {
  rf_sums kinds = {0};
  if (!pass->bounds.count) return;
  for (size_t i = 0; i < ops.count; i++)
    if (!strcmp(ops.at[i].bound, pass->bounds.at[0].name))
      add(sum_of(&kinds, ops.at[i].kind), &ops.at[i].sum);
  sort(&kinds);
  if (kinds.count) pass->bound_kind = kinds.at[0];
}

/* ---- a plan's own time ----------------------------------------------------------------------- */

/* Takes the bounds from the plan's "time". In the plan's "time", a transfer counts only if ops do
 * not hide it. Returns false for plans of older versions, whose "time" has no parts. */
static bool bounds_of_time(rf_sums *bounds, const json_t *time) {
  static const struct {
    const char *key, *name;
  } parts[] = {{"compute_seconds", "compute"},
               {"memory_seconds", "memory"},
               {"network_seconds", "network"},
               {"latency_seconds", "launch"}};
  double bubble = rf_json_number_at(time, "bubble_seconds"), whole = rf_json_number_at(time, "seconds"),
         sum = 0;
  for (int i = 0; i < 4; i++) sum += rf_json_number_at(time, parts[i].key);
  if (fabs(sum - whole) > 1e-6 * whole) return false;
  for (int i = 0; i < bounds->count; i++) bounds->at[i].seconds = 0;
  for (int i = 0; i < 4; i++) {
    double seconds = rf_json_number_at(time, parts[i].key) - (i == 2 ? bubble : 0);
    if (!(seconds > 0)) continue;
    rf_sum *sum_here = sum_of(bounds, parts[i].name);
    sum_here->seconds = sum_here->predicted = seconds;
  }
  if (bubble > 0) set_planned(bounds, RF_BOUND_BUBBLE, bubble);
  return true;
}

/* With several chips, ops hide transfers, and pipeline stages wait for each other. So the plan's
 * total time replaces the sum over its ops. */
static void take_planned_time(rf_diagnosed_pass *pass, const json_t *time) {
  double bubble = rf_json_number_at(time, "bubble_seconds"),
         rest = rf_json_number_at(time, "seconds") - pass->predicted - bubble;
  rf_sums *all[] = {&pass->kinds, &pass->phases, &pass->bounds};
  pass->predicted = rf_json_number_at(time, "seconds");
  int count = bounds_of_time(&pass->bounds, time) ? 2 : 3;
  for (int k = 0; k < count; k++) {
    if (bubble > 0) set_planned(all[k], RF_BOUND_BUBBLE, bubble);
    if (fabs(rest) > 1e-6 * pass->predicted)
      set_planned(all[k], rest > 0 ? "waiting for transfers" : "hidden behind ops", rest);
  }
}

static rf_rate planned_rate(const json_t *plan, double limit) {
  const json_t *time = json_object_get(plan, "time");
  rf_rate rate = {.predicted = rf_json_number_at(json_object_get(plan, "rate"), "tokens_per_second")};
  rate.known = rate.predicted > 0;
  rate.limited = limit > 0 && !json_object_get(plan, "serving");
  if (rate.limited) rate.limit = rate.predicted * rf_json_number_at(time, "seconds") / limit;
  return rate;
}

static rf_rate measured_rate(const json_t *plan, double tokens, const rf_diagnosed_pass *pass) {
  const json_t *planned = json_object_get(plan, "rate");
  double step = rf_json_number_at(json_object_get(plan, "time"), "seconds"),
         whole = rf_json_number_at(planned, "tokens_per_second") * step,
         mfu = rf_json_number_at(planned, "mfu");
  rf_rate rate = {.known = tokens > 0, .measured = true};
  if (!rate.known) return rate;
  rate.tokens = tokens / pass->seconds;
  rate.predicted = pass->predicted > 0 ? tokens / pass->predicted : 0;
  rate.limit = pass->limit > 0 ? tokens / pass->limit : 0;
  rate.full = fabs(tokens - whole) < 1e-6 * whole;
  if (rate.full && mfu > 0) rate.mfu = mfu * step / pass->seconds;
  return rate;
}

static rf_alone alone_of(const rf_diagnosed_pass *pass) {
  bool same_rows = pass->trains || pass->rate.full;
  if (!pass->alike || !(pass->count > 0) || !(pass->fastest > 0)) return RF_ALONE_UNKNOWN;
  if (!same_rows) return pass->seconds > RF_FAR * pass->predicted ? RF_ALONE_MIXED : RF_ALONE_UNKNOWN;
  return pass->fastest > HELD * pass->predicted ? RF_ALONE_HELD : RF_ALONE_KNOWN;
}

/* ---- a forward pass or step ------------------------------------------------------------------ */

static void sum_ops(rf_diagnosed_pass *pass, costs ops) {
  rf_sum all = {0};
  for (size_t i = 0; i < ops.count; i++) {
    add(sum_of(&pass->kinds, ops.at[i].kind), &ops.at[i].sum);
    add(sum_of(&pass->phases, ops.at[i].phase), &ops.at[i].sum);
    add(sum_of(&pass->bounds, ops.at[i].bound), &ops.at[i].sum);
  }
  for (int k = 0; k < pass->kinds.count; k++) add(&all, &pass->kinds.at[k]);
  pass->inside = all.seconds;
  pass->predicted = all.predicted;
  pass->limit = all.limit;
  pass->fastest = all.fastest;
  pass->flops = all.flops;
  pass->bytes = all.bytes;
}

static const char *name_of(const json_t *plan, const json_t *measured) {
  const char *name = rf_json_text_at(plan, "name");
  return measured ? rf_json_text_at(measured, "walk") : *name ? name : rf_json_text_at(plan, "job");
}

const char *rf_diagnosed_beaten(const rf_diagnosed_pass *pass, const rf_sum *sum) {
  if (!(pass->count > 0) || !(sum->seconds > 0) || sum->limit < 1.005 * sum->seconds) return NULL;
  return pass->guessed ? "too low" : sum->flops > 0 ? NULL : "in cache";
}

/* For a compiled program, only the time of the whole pass is measured. */
static void take_whole_pass(rf_diagnosed_pass *pass, const json_t *measured, double per) {
  rf_sum whole = {.seconds = pass->seconds,
                  .predicted = rf_json_number_at(measured, "predicted_seconds") / per,
                  .limit = rf_json_number_at(measured, "limit_seconds") / per,
                  .fastest = pass->seconds};
  pass->inside = pass->fastest = pass->seconds;
  pass->predicted = whole.predicted;
  pass->limit = whole.limit;
  add(sum_of(&pass->bounds, "compiled program"), &whole);
  add(sum_of(&pass->kinds, "compiled program"), &whole);
}

bool rf_diagnose_pass(const json_t *plan, const json_t *measured, rf_diagnosed_pass *pass) {
  double per = measured ? rf_json_number_at(measured, "count") : 1;
  const json_t *time = json_object_get(plan, "time");
  if (per < 1) per = 1;
  costs ops = read_ops(plan, measured, measured ? rf_report_timed(measured) : 1);
  if (!ops.at) return false;
  *pass = (rf_diagnosed_pass){.name = name_of(plan, measured), .count = measured ? per : 0};
  pass->trains = !strcmp(pass->name, "train");
  pass->guessed = !strcmp(rf_json_text_at(json_object_get(plan, "machine"), "source"), "detected");
  pass->alike = strcmp(pass->name, "prefill") != 0;
  sum_ops(pass, ops);
  if (!measured && rf_json_number_at(time, "seconds") > 0) take_planned_time(pass, time);
  if (!measured) pass->seconds = pass->inside = pass->predicted;
  else {
    double wall = rf_json_number_at(measured, "seconds");
    pass->seconds = wall > 0 ? wall / per : pass->inside;
    pass->compiled = wall > 0 && json_array_size(json_object_get(measured, "ops")) == 0;
    if (pass->compiled) take_whole_pass(pass, measured, per);
    else if (pass->seconds > pass->inside) pass->gaps = pass->seconds - pass->inside;
  }
  if (pass->gaps > 0) sum_of(&pass->bounds, "between ops")->seconds += pass->gaps;
  sort(&pass->bounds);
  sort(&pass->phases);
  sort(&pass->kinds);
  find_bound_kind(pass, ops);
  bool done = find_layers(pass, ops);
  pass->rate = measured ? measured_rate(plan, rf_json_number_at(measured, "tokens") / per, pass)
                        : planned_rate(plan, pass->limit);
  pass->alone = alone_of(pass);
  if (measured) find_losses(pass, ops);
  free(ops.at);
  return done;
}
