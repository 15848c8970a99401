/* test_ops_gradient.c - compares every backward rule of the op table, run in f64 by the reference
 * backend, with central differences of the forward op. */
#include "backend/reference/reference.h"
#include "support/compare.h"
#include "support/op_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const double TOLERANCE = 1e-6, STEP = 1e-5;

static void run(op_harness *h, int from, int to) {
  op_run_range(h, from, to, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
}

/* A case of one op with its backward ops. The differentiated function is <weights, output 0>, or
 * the mean loss of a loss op without weights (OP_WEIGHT). */
typedef struct gradient_case {
  op_harness *h;
  /* op: the forward op; the ops after it up to `end` are its backward ops */
  int op, end;
  /* tensor with the gradient of output 0; RF_NONE for a loss */
  int weights;
  int input[RF_MAX_INPUTS], grad[RF_MAX_INPUTS], count; /* inputs that have a gradient */
} gradient_case;

static bool is_float(rf_dtype dtype) { return dtype == RF_F64; }

static gradient_case prepare(const op_case *of, const op_size *size) {
  gradient_case g = {.h = op_harness_new(RF_F64, size->rows), .weights = RF_NONE};
  op_harness *h = g.h;
  of->build(h, of, size);
  g.op = h->subject;
  rf_op op = h->graph->op[g.op]; /* A copy, because the array may move while the backward ops are emitted. */
  int grad_out[RF_MAX_OUTPUTS], grad_in[RF_MAX_INPUTS];
  for (int i = 0; i < RF_MAX_OUTPUTS; i++) grad_out[i] = RF_NONE;
  for (int i = 0; i < RF_MAX_INPUTS; i++) grad_in[i] = RF_NONE;
  if (!op.def->loss || of->flags & OP_WEIGHT) {
    rf_tensor out = h->graph->tensor[op.output[0]];
    g.weights = grad_out[0] =
        op_tensor(h, "dout", RF_CLASS_ACTIVATION, RF_F64, (op_fill){1, 0}, out.rank, out.shape);
  }
  for (int i = 0; i < op.input_count; i++) {
    if (op.input[i] < 0 || !is_float(h->graph->tensor[op.input[i]].dtype)) continue;
    rf_tensor in = h->graph->tensor[op.input[i]];
    if (in.class == RF_CLASS_IO) continue; /* numbers of the caller have no gradient */
    /* Gradients of parameters are existing tensors; gradients of activations are made by the
     * rule. */
    grad_in[i] = in.class == RF_CLASS_WEIGHT || in.class == RF_CLASS_ADAPTER
                     ? op_tensor(h, "dparam", RF_CLASS_GRADIENT, RF_F64, (op_fill){1, 0}, in.rank, in.shape)
                     : RF_WANTED;
  }
  rf_error error = {0};
  if (rf_op_backward(h->graph, &op, grad_out, grad_in, &error) != RAFTER_OK)
    fail_msg("%s: %s", of->op, error.message);
  g.end = h->graph->op_count;
  for (int i = 0; i < op.input_count; i++) {
    if (grad_in[i] == RF_NONE) continue;
    if (grad_in[i] < 0)
      fail_msg("%s, %s: input %d was asked for a gradient and got none", of->op, of->name, i);
    g.input[g.count] = op.input[i];
    g.grad[g.count++] = grad_in[i];
  }
  op_fill_all(h, 11);
  return g;
}

static double functional(const gradient_case *g) {
  op_harness *h = g->h;
  op_reset(h, g->op);
  run(h, g->op, g->op + 1);
  int out = op_output(h, g->op, 0);
  double sum = 0;
  for (int64_t i = 0; i < op_count(h, out); i++)
    sum += op_get(h, out, i) * (g->weights < 0 ? (double)h->run.loss_scale : op_get(h, g->weights, i));
  return sum;
}

/* Central difference in one direction of one input; the direction has one value per element. */
static double difference(const gradient_case *g, int input, const double *direction) {
  int64_t count = op_count(g->h, input);
  double *kept = op_copy(g->h, input), value[2];
  for (int side = 0; side < 2; side++) {
    for (int64_t i = 0; i < count; i++)
      op_set(g->h, input, i, kept[i] + (side ? -STEP : STEP) * direction[i]);
    value[side] = functional(g);
  }
  for (int64_t i = 0; i < count; i++) op_set(g->h, input, i, kept[i]);
  free(kept);
  return (value[0] - value[1]) / (2 * STEP);
}

static double direction_element(int64_t trial, int64_t i) {
  uint32_t words[4];
  float normal[2];
  rf_philox(rf_key(3, (uint64_t)trial, 0), (uint64_t)i, 0, words);
  rf_normal_pair(words[0], words[1], normal);
  return (double)normal[0];
}

/* Checks every element, and two directions through all elements, within TOLERANCE of the gradient's
 * norm. Returns false with `text`. */
static bool agrees(const gradient_case *g, int k, const double *grad, char text[256]) {
  int64_t count = op_count(g->h, g->input[k]);
  double *direction = calloc((size_t)count, sizeof *direction), norm = 0;
  assert_non_null(direction);
  for (int64_t i = 0; i < count; i++) norm += grad[i] * grad[i];
  norm = sqrt(norm);
  bool ok = true;
  for (int64_t trial = -2; trial < count && ok; trial++) {
    double slope = 0, length = 0;
    for (int64_t i = 0; i < count; i++) {
      direction[i] = trial < 0 ? direction_element(trial, i) : i == trial;
      length += direction[i] * direction[i];
    }
    for (int64_t i = 0; i < count; i++) slope += grad[i] * (direction[i] /= sqrt(length));
    double numeric = difference(g, g->input[k], direction), error = fabs(numeric - slope);
    ok = isfinite(numeric) && isfinite(slope) && error <= TOLERANCE * fmax(norm, 1e-3);
    if (!ok)
      snprintf(text, 256, "input %s, %s %lld: backward says %.12g, differences %.12g, norm %.3g",
               g->h->graph->tensor[g->input[k]].name, trial < 0 ? "direction" : "element", (long long)trial,
               slope, numeric, norm);
  }
  free(direction);
  return ok;
}

/* A row names one backward op in `gradient`, or has a function that emits several. */
static bool has_backward(const rf_op_def *def) { return def->backward || def->gradient.def; }

static bool differentiable(const op_case *of) {
  /* A choice of experts has no gradient. */
  if (of->flags & OP_BIAS && strcmp(of->op, "route") == 0) return false;
  /* These ops are fused after differentiation. */
  if (of->flags & (OP_GELU | OP_RESIDUAL) && strcmp(of->op, "matmul") == 0) return false;
  /* The gradient treats this ratio as a constant. */
  if (of->flags & OP_WEIGHT && strcmp(of->op, "policy_loss") == 0) return false;
  /* This loss does not read nll, of which the op gives the gradient. */
  if (of->flags & OP_ADD && strcmp(of->op, "policy_loss") == 0) return false;
  return !(of->flags & OP_BF16_SOFTMAX) && has_backward(rf_op_find(of->op));
}

static void test_backward_rules_agree_with_differences(void **state) {
  (void)state;
  for (const op_case *of = OP_CASES; of->op; of++)
    for (int s = 0; differentiable(of) && s < OP_SMALL_SIZES; s++) {
      gradient_case g = prepare(of, &of->sizes[s]);
      run(g.h, g.op, g.end);
      for (int k = 0; k < g.count; k++) {
        char text[256];
        double *grad = op_copy(g.h, g.grad[k]);
        if (!agrees(&g, k, grad, text)) fail_msg("%s, %s, size %d: %s", of->op, of->name, s, text);
        free(grad);
      }
      op_harness_free(g.h);
    }
}

/* The check must fail for a gradient that is slightly wrong in one element. */
static void test_a_wrong_gradient_is_found(void **state) {
  (void)state;
  for (const op_case *of = OP_CASES; of->op; of++) {
    if (!differentiable(of)) continue;
    gradient_case g = prepare(of, &of->sizes[1]);
    run(g.h, g.op, g.end);
    for (int k = 0; k < g.count; k++) {
      char text[256];
      double *grad = op_copy(g.h, g.grad[k]), norm = 0;
      int64_t count = op_count(g.h, g.input[k]);
      for (int64_t i = 0; i < count; i++) norm += grad[i] * grad[i];
      grad[count - 1] += 1e-5 * fmax(sqrt(norm), 1e-3);
      if (agrees(&g, k, grad, text))
        fail_msg("%s, %s: a wrong gradient of %s passed", of->op, of->name,
                 g.h->graph->tensor[g.input[k]].name);
      free(grad);
    }
    op_harness_free(g.h);
  }
}

static void test_every_op_has_a_reference_kernel_and_a_case(void **state) {
  (void)state;
  for (int i = 0; RF_OPS[i]; i++) {
    int kernels = 0, cases = 0, gradients = 0;
    for (const rf_kernel *kernel = RF_REFERENCE_KERNELS; kernel->op; kernel++)
      if (strcmp(kernel->op, RF_OPS[i]->name) == 0 && !kernel->accepts && kernel->level == RF_ISA_BASE &&
          kernel->run)
        kernels++;
    for (const op_case *of = OP_CASES; of->op; of++)
      if (strcmp(of->op, RF_OPS[i]->name) == 0) {
        cases++;
        gradients += differentiable(of);
      }
    if (kernels != 1)
      fail_msg("op %s: expected one reference kernel that accepts everything, got %d", RF_OPS[i]->name,
               kernels);
    if (cases == 0) fail_msg("op %s has no case in tests/support/op_cases.c", RF_OPS[i]->name);
    if (has_backward(RF_OPS[i]) && gradients == 0)
      fail_msg("op %s has a backward rule and no case that differentiates it", RF_OPS[i]->name);
  }
  for (const rf_kernel *kernel = RF_REFERENCE_KERNELS; kernel->op; kernel++)
    if (!rf_op_find(kernel->op)) fail_msg("reference kernel %s is for no op of the table", kernel->name);
}

/* Fusion removes no rounding, so it may not change any bit. */
static void test_fused_ops_are_their_parts(void **state) {
  (void)state;
  static const rf_dtype dtypes[] = {RF_F64, RF_F32, RF_BF16};
  for (const op_fusion *of = OP_FUSIONS; of->name; of++)
    for (int d = 0; d < 3; d++)
      for (const op_size *size = of->sizes; size->rows; size++) {
        op_harness *h = op_harness_new(dtypes[d], size->rows);
        int equal[OP_MAX_EQUALS][2], equals = 0;
        of->build(h, of, size, equal, &equals);
        op_fill_all(h, 5);
        run(h, 0, h->graph->op_count);
        for (int i = 0; i < equals; i++) {
          compare_report report;
          int a = equal[i][0], b = equal[i][1];
          const rf_tensor *tensor = h->graph->tensor;
          if (!compare_equal(tensor[a].dtype, op_data(h, a), op_data(h, b), op_count(h, a), &report))
            fail_msg("%s, %s, rows %lld: %s is not %s: %s", of->name, rf_dtype_name(dtypes[d]),
                     (long long)size->rows, tensor[a].name, tensor[b].name, report.text);
        }
        op_harness_free(h);
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_op_has_a_reference_kernel_and_a_case),
      cmocka_unit_test(test_backward_rules_agree_with_differences),
      cmocka_unit_test(test_a_wrong_gradient_is_found),
      cmocka_unit_test(test_fused_ops_are_their_parts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
