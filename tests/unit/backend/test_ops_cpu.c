/* test_ops_cpu.c - compares every CPU kernel with the reference, for every op, dtype, thread count
 * and instruction set of this machine. Instruction sets and thread counts must agree to the bit.
 * Matrix products, sums and dropout must also agree with the reference to the bit. */
#include "backend/reference/reference.h"
#include "support/compare.h"
#include "support/op_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* Numbers of threads. With sanitizers this test takes minutes, and one number shows wrong
 * accesses. */
#ifdef __SANITIZE_ADDRESS__
static const int THREADS[] = {3, 0};
#else
static const int THREADS[] = {1, 2, 3, 0};
#endif
static const rf_dtype DTYPES[] = {RF_F32, RF_BF16};

/* Failures are counted, and one is printed per case, so that one run shows all failing cases. */
static int failures;
static char where[256];

static void say(const char *what, const char *text) {
  failures++;
  fprintf(stderr, "  %s: %s: %s\n", where, what, text);
}

static void locate(const char *op, const char *name, const op_size *size, rf_dtype dtype, rf_isa isa,
                   const char *kernel, int threads) {
  snprintf(where, sizeof where,
           "%s [%s] %s (rows %lld, width %lld, columns %lld, heads %d/%d x %d) %s %s threads %d", op, name,
           rf_dtype_name(dtype), (long long)size->rows, (long long)size->width, (long long)size->columns,
           size->heads, size->kv_heads, size->head_dim, rf_isa_name(isa), kernel, threads);
}

static compare_bound tolerance_of(const rf_op *op, const rf_tensor *output) {
  double norm = op_tolerance(op, output);
  return (compare_bound){norm, 4 * norm};
}

/* A copy of the op's outputs; drop frees it. */
typedef struct outputs {
  void *data[RF_MAX_OUTPUTS];
} outputs;

static outputs take(const op_harness *h, const rf_op *op) {
  outputs taken = {{0}};
  for (int i = 0; i < op->output_count; i++)
    if (op->output[i] >= 0) taken.data[i] = op_copy(h, op->output[i]);
  return taken;
}
static void drop(outputs *taken) {
  for (int i = 0; i < RF_MAX_OUTPUTS; i++) free(taken->data[i]);
}

/* Whether the outputs in the harness equal `want`: to the bit, or within the op's tolerance. */
static bool same(const op_harness *h, const rf_op *op, const outputs *want, bool exact, const char *what) {
  for (int i = 0; i < op->output_count; i++) {
    if (op->output[i] < 0) continue;
    const rf_tensor *tensor = &h->graph->tensor[op->output[i]];
    compare_report report;
    int64_t count = op_count(h, op->output[i]);
    bool ok = exact ? compare_equal(tensor->dtype, op_data(h, op->output[i]), want->data[i], count, &report)
                    : compare_close(tensor->dtype, op_data(h, op->output[i]), want->data[i], count,
                                    tolerance_of(op, tensor), &report);
    if (ok) continue;
    char text[400];
    snprintf(text, sizeof text, "%s: %s", op->def->outputs[i], report.text);
    say(what, text);
    return false;
  }
  return true;
}

/* Whether this kernel has its own definition (tiles, gemm.h). Its results are then near the
 * reference's, and its bits are compared only with those of other such kernels. */
static bool is_of_tiles(const rf_kernel *kernel) { return kernel->level == RF_ISA_AMX; }

/* Runs the subject once. Returns false if a guard byte changed. */
static bool pass(op_harness *h, const rf_kernel *kernel, int threads, const rf_inplace *inplace) {
  char text[256];
  op_reset(h, h->subject);
  if (op_try(h, h->subject, kernel, threads, inplace, text)) return true;
  say("memory", text);
  return false;
}

/* An output that reuses the bytes of an input, if the op's row allows it, has the same bits. */
static bool inplace_is_same(op_harness *h, const rf_op *op, const rf_kernel *kernel, const outputs *want) {
  for (int i = 0; i < op->def->inplace_count; i++) {
    const rf_inplace *rule = &op->def->inplace[i];
    if (op->input[rule->input] < 0 || op->output[rule->output] < 0 ||
        op->input[rule->input] == op->output[rule->output])
      continue;
    if (!pass(h, kernel, 2, rule) || !same(h, op, want, true, "in place")) return false;
  }
  return true;
}

static void try_kernels(const op_case *of, const op_size *size, rf_dtype dtype) {
  op_harness *h = op_case_build(of, size, dtype);
  const rf_op *op = &h->graph->op[h->subject];
  op_run_range(h, 0, h->subject + 1, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
  outputs want = take(h, op), first = {{0}};
  const rf_kernel *last = NULL,
                  *reference = rf_kernel_choose(&RF_BACKEND_REFERENCE, RF_ISA_BASE, h->graph, op);
  bool ok = true, known = false;
  for (rf_isa isa = RF_ISA_BASE; ok && isa <= rf_isa_detect(); isa++) {
    if (!rf_isa_runs(isa)) continue;
    const rf_kernel *kernel = rf_kernel_choose(&RF_BACKEND_CPU, isa, h->graph, op);
    if (kernel == last || kernel == reference) continue;
    last = kernel;
    bool exact = (of->flags & OP_EXACT) && !is_of_tiles(kernel);
    if (is_of_tiles(kernel) && known) {
      drop(&first);
      first = (outputs){{0}};
      known = false;
    }
    for (const int *threads = THREADS; ok && *threads; threads++) {
      locate(of->op, of->name, size, dtype, isa, kernel->name, *threads);
      ok = pass(h, kernel, *threads, NULL) &&
           same(h, op, &want, exact, exact ? "bits of the reference" : "reference");
      if (!ok) break;
      if (!known) {
        first = take(h, op);
        known = true;
      } else ok = same(h, op, &first, true, "bits of the first kernel and thread count");
    }
    ok = ok && inplace_is_same(h, op, kernel, &first);
  }
  drop(&want);
  drop(&first);
  op_harness_free(h);
}

static void test_kernels_agree_with_the_reference(void **state) {
  (void)state;
  failures = 0;
  for (const op_case *of = OP_CASES; of->op; of++)
    for (const op_size *size = of->sizes; size->rows; size++)
      for (int d = 0; d < 2; d++) try_kernels(of, size, DTYPES[d]);
  if (failures) fail_msg("%d cases differ", failures);
}

static bool is_input(const rf_op *op, int tensor) {
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] == tensor) return true;
  return false;
}

/* A call on fewer rows than the graph's bound gives these rows the same bits. So prefill chunks and
 * batches of any size agree. */
static void test_fewer_rows_give_the_same_rows(void **state) {
  (void)state;
  static const char *const ops[] = {"embed",  "layernorm", "rmsnorm",     "rope",         "matmul", "gelu",
                                    "swiglu", "add",       "add_dropout", "attention_kv", "combine"};
  failures = 0;
  for (const op_case *of = OP_CASES; of->op; of++) {
    bool by_rows = false;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) by_rows |= strcmp(of->op, ops[i]) == 0;
    for (const op_size *size = of->sizes; by_rows && size->rows; size++)
      for (int d = 0; d < 2 && size->rows > 2; d++) {
        op_harness *h = op_case_build(of, size, DTYPES[d]);
        const rf_op *op = &h->graph->op[h->subject];
        for (rf_isa isa = RF_ISA_BASE; isa <= rf_isa_detect(); isa++) {
          if (!rf_isa_runs(isa)) continue;
          const rf_kernel *kernel = rf_kernel_choose(&RF_BACKEND_CPU, isa, h->graph, op);
          locate(of->op, of->name, size, DTYPES[d], isa, kernel->name, 2);
          h->run.rows = size->rows;
          if (!pass(h, kernel, 2, NULL)) break;
          outputs want = take(h, op);
          h->run.rows = size->rows / 2;
          bool ok = pass(h, kernel, 2, NULL);
          for (int i = 0; ok && i < op->output_count; i++) {
            if (op->output[i] < 0 || h->graph->tensor[op->output[i]].shape[0] != size->rows ||
                is_input(op, op->output[i]))
              continue;
            const rf_tensor *tensor = &h->graph->tensor[op->output[i]];
            compare_report report;
            int64_t count = rf_tensor_count(tensor) / size->rows * h->run.rows;
            ok = compare_equal(tensor->dtype, op_data(h, op->output[i]), want.data[i], count, &report);
            if (!ok) say("first rows", report.text);
          }
          drop(&want);
        }
        op_harness_free(h);
      }
  }
  if (failures) fail_msg("%d cases differ", failures);
}

static void test_fused_kernels_give_the_bits_of_their_parts(void **state) {
  (void)state;
  failures = 0;
  for (const op_fusion *of = OP_FUSIONS; of->name; of++)
    for (const op_size *size = of->sizes; size->rows; size++)
      for (int d = 0; d < 2; d++)
        for (rf_isa isa = RF_ISA_BASE; isa <= rf_isa_detect(); isa++) {
          if (!rf_isa_runs(isa)) continue;
          op_harness *h = op_harness_new(DTYPES[d], size->rows);
          int equal[OP_MAX_EQUALS][2], equals = 0;
          of->build(h, of, size, equal, &equals);
          op_fill_all(h, 6);
          op_run_range(h, 0, h->graph->op_count, &RF_BACKEND_CPU, isa, 2);
          locate("fusion", of->name, size, DTYPES[d], isa, "", 2);
          for (int i = 0; i < equals; i++) {
            const rf_tensor *a = &h->graph->tensor[equal[i][0]], *b = &h->graph->tensor[equal[i][1]];
            compare_report report;
            if (compare_equal(a->dtype, op_data(h, equal[i][0]), op_data(h, equal[i][1]), rf_tensor_count(a),
                              &report))
              continue;
            char text[400];
            snprintf(text, sizeof text, "%s and %s: %s", a->name, b->name, report.text);
            say("fused and unfused", text);
            break;
          }
          op_harness_free(h);
        }
  if (failures) fail_msg("%d cases differ", failures);
}

/* ---- the harness finds wrong kernels --------------------------------------------------------- */

static size_t small_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)graph;
  (void)op;
  (void)by;
  return 100;
}
static void good(const rf_call *call) { memset(call->workspace, 1, 100); }
static void past_workspace(const rf_call *call) { ((char *)call->workspace)[100] = 1; }
static void before_workspace(const rf_call *call) { ((char *)call->workspace)[-1] = 1; }
static void past_output(const rf_call *call) { ((char *)call->out[0])[rf_tensor_bytes(rf_out(call, 0))] = 1; }
static void before_output(const rf_call *call) { ((char *)call->out[0])[-3] = 1; }
static void changes_input(const rf_call *call) { ((char *)(uintptr_t)call->in[0])[0] ^= 1; }
static void past_input(const rf_call *call) {
  ((char *)(uintptr_t)call->in[1])[rf_tensor_bytes(rf_in(call, 1)) + 5] ^= 1;
}

static void test_writes_outside_are_caught(void **state) {
  (void)state;
  void (*const bad[])(const rf_call *) = {past_workspace, before_workspace, past_output,
                                          before_output,  changes_input,    past_input};
  const op_case *of = OP_CASES;
  while (strcmp(of->op, "add") != 0) of++;
  for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
    op_harness *h = op_case_build(of, &of->sizes[0], RF_BF16);
    rf_kernel kernel = {.op = "add",
                        .name = "planted",
                        .workspace_bytes = small_workspace,
                        .run = i == 0 ? good : bad[i - 1]};
    char text[256];
    bool passed = op_try(h, h->subject, &kernel, 1, NULL, text);
    if (passed != (i == 0))
      fail_msg("planted kernel %zu: expected %s", i, i == 0 ? "to pass" : "to be caught");
    op_harness_free(h);
  }
}

/* The kernels of head_logits do not touch logits after the last row that is wanted, since zeros for
 * all idle slots would cost more than the head. The log-sum of idle rows is 0. */
static void test_idle_rows_have_no_logits(void **state) {
  (void)state;
  const op_case *of = OP_CASES;
  while (strcmp(of->op, "head_logits") != 0 || !(of->flags & OP_KEEP_U)) of++;
  for (int isa = RF_ISA_BASE; isa <= (int)rf_isa_detect(); isa++) {
    op_harness *h = op_case_build(of, &of->sizes[1], RF_F32);
    const rf_op *op = &h->graph->op[h->subject];
    int logits = op->output[0], lse = op->output[1];
    op_fill_all(h, 1);
    int32_t *rows = op_data(h, op->input[3]);
    int64_t count = h->graph->tensor[logits].shape[0], vocab = h->graph->tensor[logits].shape[1];
    assert_true(count >= 3);
    rows[0] = 0;
    for (int64_t i = 1; i < count; i++) rows[i] = -1;
    op_run(h, h->subject, rf_kernel_choose(&RF_BACKEND_CPU, isa, h->graph, op), 1, NULL);
    assert_true(op_get(h, lse, 0) != 0);
    for (int64_t i = 1; i < count; i++) assert_true(op_get(h, lse, i) == 0);
    for (int64_t v = 0; v < vocab; v++) assert_true(isfinite(op_get(h, logits, v)));
    /* outputs begin as NaN */
    for (int64_t v = vocab; v < count * vocab; v++) assert_true(isnan(op_get(h, logits, v)));
    op_harness_free(h);
  }
}

/* An i8 cache shows every value that is not finite. Heads of almost only zeros do not become large
 * numbers. The bits are those of the reference. */
static void test_narrow_caches_tell_what_is_not_finite(void **state) {
  (void)state;
  static const struct {
    float first, others; /* among the keys of a head */
    bool finite, zeros;
  } cases[] = {{NAN, 1, false, true},    {INFINITY, 1, false, true},   {-INFINITY, 1, false, true},
               {0, 0, true, true},       {1e-40f, 0, true, true},      {1e-37f, 1e-38f, true, true},
               {2e-36f, 0, true, false}, {1e38f, -3e38f, true, false}, {FLT_MAX, 1, true, false}};
  const op_case *of = OP_CASES;
  while (strcmp(of->op, "attention_kv") != 0 || !(of->flags & OP_NARROW) || !(of->flags & OP_PREFILL)) of++;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    op_harness *h = op_case_build(of, &of->sizes[0], RF_F32);
    const rf_op *op = &h->graph->op[h->subject];
    int qkv = op->input[0], cache = op->output[1], scale = op->output[2];
    op_fill_all(h, 1);
    int64_t key =
        /* the first key head of the first row */
        (int64_t)op->attr.attention.heads * op->attr.attention.head_dim;
    for (int d = 0; d < op->attr.attention.head_dim; d++)
      op_set(h, qkv, key + d, (double)(d ? cases[i].others : cases[i].first));
    const int32_t *table = op_data(h, op->input[2]);
    int32_t slot = (int32_t)op_get(h, op->input[3], 0), position = (int32_t)op_get(h, op->input[4], 0);
    int64_t page = h->graph->tensor[cache].shape[2], columns = h->graph->tensor[op->input[2]].shape[1];
    int64_t row = (int64_t)table[slot * columns + position / page] * 2 * page + position % page;
    outputs want = {{0}};
    for (int k = 0; k < 2; k++) {
      const rf_kernel *kernel =
          rf_kernel_choose(k ? &RF_BACKEND_CPU : &RF_BACKEND_REFERENCE, rf_isa_detect(), h->graph, op);
      op_run(h, h->subject, kernel, 1, NULL);
      float got = (float)op_get(h, scale, row * op->attr.attention.kv_heads);
      if (!isfinite(got) == cases[i].finite) fail_msg("case %zu, %s: scale %g", i, kernel->name, (double)got);
      const int8_t *q =
          (const int8_t *)op_data(h, cache) + row * op->attr.attention.kv_heads * op->attr.attention.head_dim;
      bool zeros = true;
      for (int d = 0; d < op->attr.attention.head_dim; d++) zeros &= q[d] == 0;
      if (zeros != cases[i].zeros) fail_msg("case %zu, %s: %d, scale %g", i, kernel->name, q[0], (double)got);
      if (!k) want = take(h, op);
      else
        assert_memory_equal(
            q, (const int8_t *)want.data[1] + row * op->attr.attention.kv_heads * op->attr.attention.head_dim,
            (size_t)op->attr.attention.head_dim);
    }
    drop(&want);
    op_harness_free(h);
  }
}

/* A gradient that is not wanted needs no workspace: with adapters, the head's weights have no
 * gradient. */
static void test_heads_take_room_for_what_they_compute(void **state) {
  (void)state;
  static const char *const ops[] = {"head_loss_bwd", "head_loss_grad"};
  const op_size size = {.rows = 512, .width = 64, .columns = 32768};
  for (int i = 0; i < 2; i++) {
    const op_case *of = OP_CASES;
    while (strcmp(of->op, ops[i]) != 0) of++;
    op_harness *h = op_case_build(of, &size, RF_F32);
    rf_op *op = &h->graph->op[h->subject];
    const rf_kernel *kernel = rf_kernel_choose(&RF_BACKEND_CPU, rf_isa_detect(), h->graph, op);
    int slot = i ? 2 : 0;
    size_t room[3];
    for (int drop_more = 0; drop_more < 3; drop_more++) { /* all gradients; without dw; also without dx */
      if (drop_more) op->output[slot + 2 - drop_more] = RF_NONE;
      room[drop_more] = kernel->workspace_bytes(h->graph, op, (rf_tiling){.threads = 2});
    }
    if (room[0] < room[1] || room[1] < room[2] || room[0] == room[1])
      fail_msg("%s: %zu, %zu without dw, %zu without dx", ops[i], room[0], room[1], room[2]);
    op_harness_free(h);
  }
}

/* x is the identity, so dw has the values of dz. `dz` is dw without rounding. */
static void rounded_is_rounded(const op_harness *h, const rf_op *op, const float *dz, bool tiles) {
  const int64_t rows = op_count(h, op->input[3]), vocab = op_count(h, op->input[2]);
  const float *dw = op_data(h, op->output[1]), *dbias = op_data(h, op->output[2]);
  const rf_bf16 *dx = op_data(h, op->output[0]);
  const bool transpose = op->attr.head.transpose;
  int changed = 0;
  for (int64_t v = 0; v < vocab; v++) {
    float sum = 0;
    for (int64_t r = 0; r < rows; r++) {
      int64_t at = transpose ? v * rows + r : r * vocab + v;
      float want = rf_bf16_to_f32(rf_f32_to_bf16(dz[at]));
      changed += want != dz[at];
      sum += want;
      if (dw[at] != want) fail_msg("%s: dw of token %d in row %d", where, (int)v, (int)r);
    }
    if (dbias[v] != sum) fail_msg("%s: dbias of token %d", where, (int)v);
  }
  assert_true(changed > rows * vocab / 2);
  for (int64_t i = 0; i < rows * rows && !tiles; i++) {
    float sum = 0;
    for (int64_t v = 0; v < vocab; v++) {
      int64_t at = transpose ? v * rows : v, step = transpose ? 1 : vocab;
      sum = fmaf(dw[at + i / rows * step], (float)op_get(h, op->input[1], at + i % rows * step), sum);
    }
    if (dx[i] != rf_f32_to_bf16(sum)) fail_msg("%s: dx of element %d", where, (int)i);
  }
}

/* Rounding is the last operation on a gradient of logits, and every sum has rounded values. */
static void test_rounded_gradients_are_those_of_f32(void **state) {
  (void)state;
  static const op_size SIZE = {.rows = 70, .width = 70, .columns = 133};
  int seen = 0;
  for (const op_case *of = OP_CASES; of->op; of++) {
    if (strcmp(of->op, "head_loss_bwd") || (of->flags & ~(unsigned)OP_TRANSPOSE) != (OP_NARROW | OP_BIAS))
      continue;
    op_harness *h = op_case_build(of, &SIZE, RF_BF16);
    rf_op *op = &h->graph->op[h->subject];
    assert_int_equal(op->attr.head.gradient, RF_BF16);
    for (int64_t i = 0; i < SIZE.rows * SIZE.width; i++)
      op_set(h, op->input[0], i, i % (SIZE.width + 1) ? 0 : 1);
    op_run_range(h, 0, h->subject, &RF_BACKEND_CPU, RF_ISA_BASE, 2);
    op->attr.head.gradient = RF_F32;
    op_run_range(h, h->subject, h->subject + 1, &RF_BACKEND_CPU, RF_ISA_BASE, 2);
    float *dz = op_copy(h, op->output[1]);
    op->attr.head.gradient = RF_BF16;
    for (rf_isa isa = RF_ISA_BASE; isa <= rf_isa_detect(); isa++) {
      if (!rf_isa_runs(isa)) continue;
      const rf_kernel *kernel = rf_kernel_choose(&RF_BACKEND_CPU, isa, h->graph, op);
      locate(of->op, of->name, &SIZE, RF_BF16, isa, kernel->name, 2);
      assert_true(pass(h, kernel, 2, NULL));
      rounded_is_rounded(h, op, dz, is_of_tiles(kernel));
    }
    free(dz);
    op_harness_free(h);
    seen++;
  }
  assert_int_equal(seen, 2);
}

/* Unwritten outputs and a kernel of another op must fail the comparison. */
static void test_wrong_kernels_are_caught(void **state) {
  (void)state;
  const op_case *of = OP_CASES;
  while (strcmp(of->op, "add_dropout") != 0) of++;
  op_harness *h = op_case_build(of, &of->sizes[1], RF_F32);
  const rf_op *op = &h->graph->op[h->subject];
  op_run_range(h, 0, h->subject + 1, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
  outputs want = take(h, op);
  int64_t count = op_count(h, op->output[0]);
  compare_bound bound = tolerance_of(op, &h->graph->tensor[op->output[0]]);
  op_reset(h, h->subject);
  assert_false(compare_close(RF_F32, op_data(h, op->output[0]), want.data[0], count, bound, NULL));
  h->run.step++; /* another dropout mask */
  op_run_range(h, 0, h->subject + 1, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
  assert_false(compare_close(RF_F32, op_data(h, op->output[0]), want.data[0], count, bound, NULL));
  drop(&want);
  op_harness_free(h);
}

/* The null backend makes the same plans as the CPU: the same kernel for every op, so the same
 * workspaces. One flag distinguishes it. */
static void test_null_chooses_what_cpu_chooses(void **state) {
  (void)state;
  assert_null(RF_BACKEND_NULL.device);
  assert_true(RF_BACKEND_CPU.device && RF_BACKEND_REFERENCE.device);
  assert_ptr_equal(rf_backend_find("null"), &RF_BACKEND_NULL);
  assert_ptr_equal(rf_backend_find("auto"), &RF_BACKEND_CPU);
  for (const op_case *of = OP_CASES; of->op; of++)
    for (int d = 0; d < 2; d++)
      for (rf_isa isa = RF_ISA_BASE; isa < RF_ISAS; isa++) {
        op_harness *h = op_case_build(of, &of->sizes[1], DTYPES[d]);
        const rf_op *op = &h->graph->op[h->subject];
        assert_ptr_equal(rf_kernel_choose(&RF_BACKEND_NULL, isa, h->graph, op),
                         rf_kernel_choose(&RF_BACKEND_CPU, isa, h->graph, op));
        op_harness_free(h);
      }
}

/* Latent attention and its routers still use the reference kernels, and so do the losses of
 * sequences, which read a few numbers for each token. Only programs of XLA have the op `sample`.
 * Ops and forms of ops that only programs of several chips have run only in tests. */
static bool is_the_references(const op_case *of) {
  if (of->flags & OP_GROUP) return true;
  bool router = !strncmp(of->op, "route", 5) && strcmp(of->name, "plain"),
       tail = !strcmp(of->op, "rope") && !strcmp(of->name, "tail");
  static const char *const without[] = {"take_run", "all_",        "reduce_scatter", "permute",
                                        "offload_", "send",        "recv",           "norm_total",
                                        "sample",   "policy_loss", "pair_loss",      "exchange_wait"};
  bool none = false;
  for (size_t i = 0; i < sizeof without / sizeof *without; i++)
    none |= !strncmp(of->op, without[i], strlen(without[i]));
  return strstr(of->op, "latent") || router || tail || none;
}

/* Every other op of a training step has a kernel of the CPU's own, and none uses the plain loops of
 * the reference. */
static void test_cpu_has_its_own_kernels(void **state) {
  (void)state;
  failures = 0;
  for (const op_case *of = OP_CASES; of->op; of++)
    for (int d = 0; d < 2; d++) {
      op_harness *h = op_case_build(of, &of->sizes[1], DTYPES[d]);
      const rf_op *op = &h->graph->op[h->subject];
      locate(of->op, of->name, &of->sizes[1], DTYPES[d], RF_ISA_BASE, "", 1);
      bool falls = rf_kernel_choose(&RF_BACKEND_CPU, RF_ISA_BASE, h->graph, op) ==
                   rf_kernel_choose(&RF_BACKEND_REFERENCE, RF_ISA_BASE, h->graph, op);
      if (falls && !is_the_references(of))
        say("falls back", "expected a kernel of the CPU backend, got the reference's");
      op_harness_free(h);
    }
  if (failures) fail_msg("%d cases fall back", failures);
}

int main(int argc, char **argv) {
  /* There are more threads than cores here, so waiting threads must sleep; spinning makes this test
   * ten times longer on a busy machine. OpenMP reads the variable before main, so the program
   * starts itself again. If that fails, the test is only slow. */
  if (argc > 0 && !getenv("OMP_WAIT_POLICY") && setenv("OMP_WAIT_POLICY", "passive", 1) == 0)
    execv("/proc/self/exe", argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_writes_outside_are_caught),
      cmocka_unit_test(test_wrong_kernels_are_caught),
      cmocka_unit_test(test_null_chooses_what_cpu_chooses),
      cmocka_unit_test(test_cpu_has_its_own_kernels),
      cmocka_unit_test(test_kernels_agree_with_the_reference),
      cmocka_unit_test(test_fewer_rows_give_the_same_rows),
      cmocka_unit_test(test_idle_rows_have_no_logits),
      cmocka_unit_test(test_narrow_caches_tell_what_is_not_finite),
      cmocka_unit_test(test_heads_take_room_for_what_they_compute),
      cmocka_unit_test(test_rounded_gradients_are_those_of_f32),
      cmocka_unit_test(test_fused_kernels_give_the_bits_of_their_parts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
