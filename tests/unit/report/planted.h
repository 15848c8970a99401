/* planted.h - report models of runs with planted numbers, which the tests of summaries share. */
#ifndef TEST_REPORT_PLANTED_H
#define TEST_REPORT_PLANTED_H

#include "report/compare.h"
#include "report/model.h"
#include "report/summary.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* An op of a planted run: its plan and its measurement. */
typedef struct planted {
  const char *name, *kind, *phase, *bound;
  double calls, predicted, limit, measured, bytes;
  int layers; /* number of its layer plus 1; 0: no layer */
} planted;

static inline json_t *op_json(int id, const planted *p) {
  json_t *row = json_pack("{si ss ss ss sf sf sf sf ss sf ss ss s[] s[] sf}", "id", id, "name", p->name, "op",
                          p->kind, "kernel", "k", "flops", 0.0, "bytes", p->bytes, "seconds", p->predicted,
                          "calls", p->calls, "bound", p->bound, "limit_seconds", p->limit, "kind", p->kind,
                          "phase", p->phase, "inputs", "outputs", "hardware_flops", 0.0);
  if (p->layers) json_object_set_new(row, "layer", json_integer(p->layers - 1));
  return row;
}

/* An entry with `steps` steps of a training run that took `wall` seconds each. 0: the run has not
 * started. */
static inline json_t *entry_of(const char *id, const planted *op, int ops, double steps, double wall,
                               double peak) {
  json_t *planned = json_array(), *measured = json_array();
  for (int i = 0; i < ops; i++) {
    json_array_append_new(planned, op_json(i, &op[i]));
    json_array_append_new(measured, json_pack("{si ss sf sf sf sf sf}", "id", i, "name", op[i].name, "calls",
                                              op[i].calls * steps, "seconds", op[i].measured, "least_seconds",
                                              op[i].measured, "predicted_seconds", op[i].predicted,
                                              "limit_seconds", op[i].limit));
  }
  json_t *entry = json_pack(
      "{ss ss s{ss ss so s{sI sI s{} s[]} s{sf ss} s{sf} s{} s{ss ss}}}", "id", id, "name", id, "plan", "job",
      "train", "name", "train", "ops", planned, "memory", "peak_bytes", (json_int_t)peak, "capacity_bytes",
      (json_int_t)1 << 40, "by_class", "largest", "time", "seconds", 1.0, "bound", "compute", "rate",
      "tokens_per_second", 100.0, "settings", "machine", "name", "m", "source", "calibrated");
  if (steps > 0)
    json_object_set_new(entry, "measured",
                        json_pack("{s[{ss sf sf sf sf so}] sI}", "walks", "walk", "train", "count", steps,
                                  "seconds", wall * steps, "tokens", 200 * steps, "predicted_seconds", 1.0,
                                  "ops", measured, "arena_bytes", (json_int_t)peak));
  else json_decref(measured);
  assert_non_null(entry);
  return entry;
}

static inline double at(const json_t *json, const char *key) {
  return json_number_value(json_object_get(json, key));
}
static inline const char *text(const json_t *json, const char *key) {
  const char *t = json_string_value(json_object_get(json, key));
  return t ? t : "";
}
static inline const json_t *named(const json_t *list, const char *name) {
  const json_t *one;
  size_t i;
  json_array_foreach ((json_t *)list, i, one)
    if (!strcmp(text(one, "name"), name)) return one;
  fail_msg("no %s", name);
  return NULL;
}
static inline void near(double a, double b) {
  if (fabs(a - b) > 1e-12 * fabs(b) + 1e-300) fail_msg("%.17g is not %.17g", a, b);
}

/* One layer with a product forward and backward, a norm and the optimizer. */
static const planted OPS[] = {
    {"block.0/mm/fwd", "matmul", "forward", "compute", 2, 0.10, 0.08, 0.10, 1000, 1},
    {"block.0/mm/bwd", "matmul", "backward", "compute", 2, 0.20, 0.16, 0.25, 2000, 1},
    {"block.0/norm", "norm", "forward", "memory", 2, 0.05, 0.04, 0.05, 500, 1},
    {"w/adamw", "optimizer", "optimizer", "memory", 1, 0.10, 0.10, 0.10, 100, 0}};
enum { COUNT = sizeof OPS / sizeof *OPS };

static inline json_t *steps_of(double seconds, int count, double outlier) {
  json_t *rows = json_array();
  for (int i = 0; i < count; i++)
    json_array_append_new(rows,
                          json_pack("{si sf sf sI}", "step", i + 1, "seconds",
                                    i == count / 2 && outlier > 0 ? outlier : seconds * (1 + 0.01 * (i % 20)),
                                    "predicted_seconds", 1.0, "tokens", (json_int_t)(200 * (i + 1))));
  return rows;
}

#endif
