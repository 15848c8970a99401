/* test_losses.c - compares policy_loss and pair_loss with PyTorch (tests/data/losses/make.py): loss
 * rows, gradients and margins of each loss. Faults are planted in the inputs and in the settings,
 * and the same comparison must notice them. */
#include "base/json.h"
#include "backend/reference/reference.h"
#include "support/op_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Relative to the largest element. The inputs are f32 numbers, and the kernel computes in f64. */
static const double BOUND = 1e-6;

static json_t *golden;

enum { NLL, LABELS, SEGMENTS, OLD, ADVANTAGES, WEIGHTS, REFERENCE, INPUTS };
static const char *const KEYS[INPUTS] = {"nll",        "labels",  "segments", "old",
                                         "advantages", "weights", "reference"};

typedef struct loss_case {
  const json_t *json;
  op_harness *h;
  int64_t rows;
  int in[INPUTS], op;
  bool pairs;
} loss_case;

static double number(const json_t *of, const char *key) {
  return json_number_value(json_object_get(of, key));
}

static rf_attr attr_of(const json_t *json, bool pairs) {
  const json_t *s = json_object_get(json, "settings");
  if (pairs)
    return (rf_attr){.pairs = {.kind = (rf_pairs_kind)number(s, "kind"),
                               .beta = (float)number(s, "beta"),
                               .gamma = (float)number(s, "gamma"),
                               .smoothing = (float)number(s, "smoothing")}};
  return (rf_attr){.policy = {.level = (rf_policy_level)number(s, "level"),
                              .clip = (rf_policy_clip)number(s, "clip"),
                              .clip_low = (float)number(s, "clip_low"),
                              .clip_high = (float)number(s, "clip_high"),
                              .beta = (float)number(s, "beta")}};
}

static int ids_of(op_harness *h, const json_t *json, const char *key) {
  const json_t *list = json_object_get(json, key);
  int32_t ids[256];
  size_t count = json_array_size(list);
  assert_in_range(count, 1, 256);
  for (size_t i = 0; i < count; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
  return op_ids(h, key, (int64_t)count, ids);
}

static loss_case open_case(size_t index) {
  loss_case c = {.json = json_array_get(json_object_get(golden, "ops"), index)};
  c.rows = (int64_t)json_array_size(json_object_get(c.json, "nll"));
  c.pairs = json_object_get(json_object_get(c.json, "settings"), "kind") != NULL;
  op_harness *h = c.h = op_harness_new(RF_F32, c.rows);
  h->run.loss_scale = 1;
  rf_attr attr = attr_of(c.json, c.pairs);
  bool reference = c.pairs ? attr.pairs.kind != RF_PAIRS_SIMPO : attr.policy.beta != 0;
  for (int i = 0; i < INPUTS; i++) {
    bool wanted = i == REFERENCE ? reference : !(c.pairs && (i == OLD || i == ADVANTAGES));
    c.in[i] = !wanted ? RF_NONE
              : i == LABELS || i == SEGMENTS
                  ? ids_of(h, c.json, KEYS[i])
                  : op_tensor(h, KEYS[i], RF_CLASS_IO, RF_F32, (op_fill){0, 0}, OP_SHAPE(c.rows));
  }
  const int *in = c.in;
  c.op = c.pairs ? op_apply(h, "pair_loss", OP_IDS(in[0], in[1], in[2], in[WEIGHTS], in[REFERENCE]),
                            OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED), &attr)
                 : op_apply(h, "policy_loss", 7, in, OP_IDS(RF_WANTED, RF_WANTED), &attr);
  op_fill_all(h, 1);
  for (int i = 0; i < INPUTS; i++) {
    const json_t *list = json_object_get(c.json, KEYS[i]);
    if (c.in[i] == RF_NONE || i == LABELS || i == SEGMENTS) continue;
    for (int64_t r = 0; r < c.rows; r++)
      op_set(h, c.in[i], r, json_number_value(json_array_get(list, (size_t)r)));
  }
  return c;
}

/* The largest error of an output, relative to its largest element. NaN counts as infinite. */
static double error_of(const loss_case *c, int slot, const char *key) {
  const json_t *want = json_object_get(c->json, key);
  assert_int_equal(json_array_size(want), c->rows);
  double worst = 0, largest = 0;
  for (int64_t r = 0; r < c->rows; r++) {
    double value = json_number_value(json_array_get(want, (size_t)r)),
           error = fabs(op_get(c->h, op_output(c->h, c->op, slot), r) - value);
    worst = isfinite(error) ? fmax(worst, error) : INFINITY;
    largest = fmax(largest, fabs(value));
  }
  assert_true(largest > 0);
  return worst / largest;
}

static double run_case(const loss_case *c) {
  op_reset(c->h, c->op);
  op_run_range(c->h, c->op, c->op + 1, &RF_BACKEND_CPU, rf_isa_detect(), 1);
  double worst = fmax(error_of(c, 0, "loss"), error_of(c, 1, "dnll"));
  return c->pairs ? fmax(worst, error_of(c, 2, "margins")) : worst;
}

static void test_losses_agree_with_pytorch(void **state) {
  (void)state;
  size_t count = json_array_size(json_object_get(golden, "ops"));
  assert_int_equal(count, 11);
  for (size_t i = 0; i < count; i++) {
    loss_case c = open_case(i);
    double error = run_case(&c);
    print_message("%-14s largest error %.1e\n", json_string_value(json_object_get(c.json, "name")), error);
    if (!(error <= BOUND)) fail_msg("largest error %g", error);
    op_harness_free(c.h);
  }
}

/* Each fault changes one case, and must change the results by far more than the bound. */
static void flip_advantages(loss_case *c) {
  for (int64_t r = 0; r < c->rows; r++)
    op_set(c->h, c->in[ADVANTAGES], r, -op_get(c->h, c->in[ADVANTAGES], r));
}
static void swap_answers(loss_case *c) { /* of pairs: the rejected answer is preferred */
  int32_t *segments = op_data(c->h, c->in[SEGMENTS]);
  memmove(segments, segments + 1, (size_t)c->rows * sizeof *segments);
}
static void sum_instead_of_mean(loss_case *c) {
  rf_attr *attr = &c->h->graph->op[c->op].attr;
  if (c->pairs) attr->pairs.kind = RF_PAIRS_DPO;
  else attr->policy.level = RF_POLICY_SEQUENCE_SUM;
}
/* All tokens get the same weight, as without the division by the length of the answer. */
static void same_weights(loss_case *c) {
  for (int64_t r = 0; r < c->rows; r++)
    if (op_get(c->h, c->in[WEIGHTS], r) != 0) op_set(c->h, c->in[WEIGHTS], r, 1.0 / 36);
}
/* Exchanges policy and reference in k3, and keeps the ratio. */
static void wrong_direction(loss_case *c) {
  for (int64_t r = 0; r < c->rows; r++) {
    double logp = -op_get(c->h, c->in[NLL], r), reference = op_get(c->h, c->in[REFERENCE], r);
    op_set(c->h, c->in[OLD], r, op_get(c->h, c->in[OLD], r) + reference - logp);
    op_set(c->h, c->in[NLL], r, -reference);
    op_set(c->h, c->in[REFERENCE], r, logp);
  }
}
static void without_clip(loss_case *c) { c->h->graph->op[c->op].attr.policy.clip = RF_POLICY_CLIP_NONE; }
static void without_margin(loss_case *c) { c->h->graph->op[c->op].attr.pairs.gamma = 0; }
static void without_smoothing(loss_case *c) { c->h->graph->op[c->op].attr.pairs.smoothing = 0; }

static void test_faults_are_found(void **state) {
  (void)state;
  static const struct {
    const char *loss, *fault;
    void (*plant)(loss_case *c);
  } faults[] = {{"grpo", "sign of the advantage", flip_advantages},
                {"rloo", "sign of the advantage", flip_advantages},
                {"cispo", "sign of the advantage", flip_advantages},
                {"dpo", "preferred answer", swap_answers},
                {"grpo", "no normalisation by length", same_weights},
                {"gspo", "no normalisation by length", sum_instead_of_mean},
                {"ipo", "no normalisation by length", sum_instead_of_mean},
                {"grpo", "direction of KL", wrong_direction},
                {"gspo", "direction of KL", wrong_direction},
                {"dapo", "no clip", without_clip},
                {"cispo", "ratio not as a constant", without_clip},
                {"simpo", "no margin", without_margin},
                {"dpo-smoothed", "no smoothing", without_smoothing}};
  for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
    size_t i = 0;
    while (
        strcmp(json_string_value(json_object_get(json_array_get(json_object_get(golden, "ops"), i), "name")),
               faults[f].loss))
      i++;
    loss_case c = open_case(i);
    faults[f].plant(&c);
    double error = run_case(&c);
    if (!(error > 1000 * BOUND)) fail_msg("%s, %s: error %g", faults[f].loss, faults[f].fault, error);
    op_harness_free(c.h);
  }
}

int main(void) {
  rf_error error = {0};
  if (rf_json_read(RF_TEST_DATA "/losses/losses.json", 1 << 22, &golden, &error) != RAFTER_OK) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_losses_agree_with_pytorch),
      cmocka_unit_test(test_faults_are_found),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  json_decref(golden);
  return failed;
}
