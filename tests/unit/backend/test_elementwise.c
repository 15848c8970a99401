/* test_elementwise.c - covers what test_ops_cpu.c, which compares every op with the reference, does
 * not: sizes that cross the kernels' blocks and the threads' parts, sums over microbatches, many
 * steps of AdamW against doubles, and the propagation of NaN. */
#include "backend/cpu/cpu.h"
#include "support/compare.h"
#include "machine/machine.h"
#include "support/op_harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const rf_kernel *kernel_of(const rf_kernel *table, const char *op) {
  while (table->op && strcmp(table->op, op) != 0) table++;
  assert_non_null(table->op);
  return table;
}
/* The tables that this machine can run, lowest instruction set first. */
static int tables(const rf_kernel *out[3]) {
  int count = 0;
  out[count++] = RF_CPU_ELEMENTWISE_BASE;
#if defined(__x86_64__)
  if (rf_isa_detect() >= RF_ISA_AVX2) out[count++] = RF_CPU_ELEMENTWISE_AVX2;
  if (rf_isa_detect() >= RF_ISA_AVX512) out[count++] = RF_CPU_ELEMENTWISE_AVX512;
#endif
  return count;
}
static const op_fill NORMAL = {1.0, 0.0};
static int rows_of(op_harness *h, const char *name, int64_t rows, int64_t width) {
  return op_tensor(h, name, RF_CLASS_ACTIVATION, h->dtype, NORMAL, OP_SHAPE(rows, width));
}

/* Runs the subject with every table and with 1, 2, 3 and 5 threads. All outputs must have the same
 * bits. */
static void all_agree(op_harness *h) {
  const rf_op *op = &h->graph->op[h->subject];
  const rf_kernel *of[3];
  void *first[RF_MAX_OUTPUTS] = {0};
  static const int threads[] = {1, 2, 3, 5};
  int count = tables(of);
  for (int t = 0; t < count; t++)
    for (int k = 0; k < 4; k++) {
      op_reset(h, h->subject);
      op_run(h, h->subject, kernel_of(of[t], op->def->name), threads[k], NULL);
      for (int i = 0; i < op->output_count; i++) {
        if (op->output[i] < 0) continue;
        if (!first[i]) first[i] = op_copy(h, op->output[i]);
        compare_report report;
        if (!compare_equal(h->graph->tensor[op->output[i]].dtype, op_data(h, op->output[i]), first[i],
                           op_count(h, op->output[i]), &report))
          fail_msg("%s, %d threads: %s", kernel_of(of[t], op->def->name)->name, threads[k], report.text);
      }
    }
  for (int i = 0; i < RF_MAX_OUTPUTS; i++) free(first[i]);
}

/* Several row blocks, a width that is not a multiple of sixteen, and unequal parts per thread. The
 * gradients of gain and bias must equal the plain chain over the rows, and dx must be near the
 * formula in doubles. */
static void layernorm_bwd_of(rf_dtype dtype) {
  enum { ROWS = 1003, WIDTH = 203 };
  op_harness *h = op_harness_new(dtype, ROWS);
  int x = rows_of(h, "x", ROWS, WIDTH), dy = rows_of(h, "dy", ROWS, WIDTH),
      dres = rows_of(h, "dres", ROWS, WIDTH);
  int gain = op_tensor(h, "gain", RF_CLASS_WEIGHT, dtype, (op_fill){0.1, 1.0}, OP_SHAPE(WIDTH));
  int bias = op_tensor(h, "bias", RF_CLASS_WEIGHT, dtype, NORMAL, OP_SHAPE(WIDTH));
  rf_attr attr = {.norm = {.eps = 1e-5f}};
  int forward = op_apply(h, "layernorm", OP_IDS(x, gain, bias), OP_IDS(RF_WANTED, RF_WANTED), &attr);
  int stats = op_output(h, forward, 1),
      dgain = op_tensor(h, "dgain", RF_CLASS_GRADIENT, RF_F32, NORMAL, OP_SHAPE(WIDTH));
  int dbias = op_tensor(h, "dbias", RF_CLASS_GRADIENT, RF_F32, NORMAL, OP_SHAPE(WIDTH));
  attr.accumulate[1] = attr.accumulate[2] = RF_ACCUMULATE_ADD;
  op_apply(h, "layernorm_bwd", OP_IDS(x, gain, stats, dy, dres), OP_IDS(RF_WANTED, dgain, dbias), &attr);
  op_fill_all(h, 3);
  op_run(h, forward, kernel_of(RF_CPU_ELEMENTWISE_BASE, "layernorm"), 2, NULL);
  all_agree(h);
  op_reset(h, h->subject);
  float *start_gain = op_copy(h, dgain), *start_bias = op_copy(h, dbias);
  op_run(h, h->subject, kernel_of(RF_CPU_ELEMENTWISE_BASE, "layernorm_bwd"), 3, NULL);
  const float *statistics = op_data(h, stats);
  int dx = op_output(h, h->subject, 0);
  double error = 0, norm = 0;
  for (int r = 0; r < ROWS; r++) {
    double mean = 0, square = 0, sum = 0, dot = 0;
    for (int c = 0; c < WIDTH; c++) mean += op_get(h, x, r * WIDTH + c) / WIDTH;
    for (int c = 0; c < WIDTH; c++) square += pow(op_get(h, x, r * WIDTH + c) - mean, 2) / WIDTH;
    double rstd = 1 / sqrt(square + 1e-5);
    for (int c = 0; c < WIDTH; c++) {
      double g = op_get(h, dy, r * WIDTH + c) * op_get(h, gain, c);
      sum += g / WIDTH;
      dot += g * (op_get(h, x, r * WIDTH + c) - mean) * rstd / WIDTH;
    }
    for (int c = 0; c < WIDTH; c++) {
      double unit = (op_get(h, x, r * WIDTH + c) - mean) * rstd,
             g = op_get(h, dy, r * WIDTH + c) * op_get(h, gain, c);
      double truth = rstd * (g - sum - unit * dot) + op_get(h, dres, r * WIDTH + c);
      error += pow(op_get(h, dx, r * WIDTH + c) - truth, 2);
      norm += truth * truth;
      float d = (float)op_get(h, dy, r * WIDTH + c);
      float u = ((float)op_get(h, x, r * WIDTH + c) - statistics[2 * r]) * statistics[2 * r + 1];
      start_gain[c] += d * u;
      start_bias[c] += d;
    }
  }
  assert_true(sqrt(error / norm) < (dtype == RF_BF16 ? 2 * 0x1p-8 : 64 * 0x1p-24));
  assert_memory_equal(op_data(h, dgain), start_gain, WIDTH * sizeof(float));
  assert_memory_equal(op_data(h, dbias), start_bias, WIDTH * sizeof(float));
  free(start_gain);
  free(start_bias);
  op_harness_free(h);
}
static void test_layernorm_bwd_sums_rows_in_order(void **state) {
  (void)state;
  layernorm_bwd_of(RF_F32);
  layernorm_bwd_of(RF_BF16);
}

/* dx overwrites dy: the channel sums of a block are read before its rows are overwritten. */
static void test_norm_bwd_in_place_of_dy(void **state) {
  (void)state;
  enum { ROWS = 700, WIDTH = 96 };
  op_harness *h = op_harness_new(RF_F32, ROWS);
  int x = rows_of(h, "x", ROWS, WIDTH), dy = rows_of(h, "dy", ROWS, WIDTH);
  int gain = op_tensor(h, "gain", RF_CLASS_WEIGHT, RF_F32, (op_fill){0.1, 1.0}, OP_SHAPE(WIDTH));
  rf_attr attr = {.norm = {.eps = 1e-5f}};
  int forward = op_apply(h, "rmsnorm", OP_IDS(x, gain), OP_IDS(RF_WANTED, RF_WANTED), &attr);
  op_apply(h, "rmsnorm_bwd", OP_IDS(x, gain, op_output(h, forward, 1), dy, RF_NONE),
           OP_IDS(RF_WANTED, RF_WANTED), &attr);
  op_fill_all(h, 4);
  const rf_kernel *backward = kernel_of(RF_CPU_ELEMENTWISE_BASE, "rmsnorm_bwd");
  op_run(h, forward, kernel_of(RF_CPU_ELEMENTWISE_BASE, "rmsnorm"), 1, NULL);
  op_run(h, h->subject, backward, 1, NULL);
  void *dx = op_copy(h, op_output(h, h->subject, 0)), *dgain = op_copy(h, op_output(h, h->subject, 1));
  for (int threads = 1; threads <= 3; threads++) {
    op_reset(h, h->subject);
    op_run(h, h->subject, backward, threads, &(rf_inplace){0, 3});
    assert_memory_equal(op_data(h, op_output(h, h->subject, 0)), dx, ROWS * WIDTH * sizeof(float));
    assert_memory_equal(op_data(h, op_output(h, h->subject, 1)), dgain, WIDTH * sizeof(float));
  }
  free(dx);
  free(dgain);
  op_harness_free(h);
}

/* Large and odd sizes of the ops that are split by elements or rows. */
static void test_threads_and_isas_agree_on_large_sizes(void **state) {
  (void)state;
  enum { ROWS = 307, WIDTH = 530 };
  static const char *const one_input[] = {"gelu", "dropout"}, *const two_inputs[] = {"gelu_bwd", "add",
                                                                                     "add_dropout"};
  for (int d = 0; d < 2; d++) {
    rf_attr attr = {.dropout = {.rate = 0.3f, .site = 99}};
    for (int k = 0; k < 5; k++) {
      op_harness *h = op_harness_new(d ? RF_BF16 : RF_F32, ROWS);
      int a = rows_of(h, "a", ROWS, WIDTH), b = rows_of(h, "b", ROWS, WIDTH);
      if (k < 2) op_apply(h, one_input[k], OP_IDS(a), OP_IDS(RF_WANTED), &attr);
      else op_apply(h, two_inputs[k - 2], OP_IDS(a, b), OP_IDS(RF_WANTED), &attr);
      op_fill_all(h, 5);
      all_agree(h);
      op_harness_free(h);
    }
    op_harness *h = op_harness_new(d ? RF_BF16 : RF_F32, ROWS);
    op_apply(h, "swiglu_bwd", OP_IDS(rows_of(h, "gate_up", ROWS, 2 * WIDTH), rows_of(h, "dh", ROWS, WIDTH)),
             OP_IDS(RF_WANTED), &attr);
    op_fill_all(h, 6);
    all_agree(h);
    op_harness_free(h);
  }
}

/* At position 4095, the pair with the base frequency is rotated by 4095 radians. The rotation keeps
 * every pair's length, and the inverse rotation restores it. */
static void test_rope_far_and_back(void **state) {
  (void)state;
  enum { ROWS = 130, HEADS = 3, KV = 1, HEAD = 36, WIDTH = (HEADS + 2 * KV) * HEAD };
  int32_t positions[ROWS];
  for (int r = 0; r < ROWS; r++) positions[r] = r * 31 + 65;
  op_harness *h = op_harness_new(RF_F32, ROWS);
  int x = rows_of(h, "qkv", ROWS, WIDTH), at = op_ids(h, "positions", ROWS, positions);
  rf_attr attr = {.rope = {HEADS, KV, HEAD, .rotation = {.theta = 1e4f, .dim = HEAD}}};
  int turn = op_apply(h, "rope", OP_IDS(x, at), OP_IDS(RF_WANTED), &attr);
  attr.rope.inverse = true;
  int back = op_apply(h, "rope", OP_IDS(op_output(h, turn, 0), at), OP_IDS(RF_WANTED), &attr);
  op_fill_all(h, 7);
  h->subject = turn;
  all_agree(h);
  h->subject = back;
  all_agree(h);
  int transposed = op_output(h, turn, 0), restored = op_output(h, back, 0);
  for (int64_t i = 0; i < ROWS * WIDTH; i++) {
    assert_true(fabs(op_get(h, restored, i) - op_get(h, x, i)) < 2e-6);
    /* Values are not rotated. */
    if (i % WIDTH >= (HEADS + KV) * HEAD) assert_true(op_get(h, transposed, i) == op_get(h, x, i));
    else if (i % HEAD < HEAD / 2) {
      double a = op_get(h, x, i), b = op_get(h, x, i + HEAD / 2),
             angle = positions[i / WIDTH] * pow(1e4, -2.0 * (double)(i % HEAD) / HEAD);
      assert_true(fabs(op_get(h, transposed, i) - (a * cos(angle) - b * sin(angle))) < 2e-6);
      assert_true(fabs(op_get(h, transposed, i + HEAD / 2) - (b * cos(angle) + a * sin(angle))) < 2e-6);
    }
  }
  op_harness_free(h);
}

/* Twenty steps on seeded gradients against doubles, with and without bf16 weights. No thread count
 * divides the size. */
static void adamw_of(bool weights, const rf_kernel *table) {
  enum { COUNT = 20011, STEPS = 20 };
  op_harness *h = op_harness_new(weights ? RF_BF16 : RF_F32, 1);
  int grad = op_tensor(h, "grad", RF_CLASS_GRADIENT, RF_F32, (op_fill){0.01, 0.0}, OP_SHAPE(COUNT));
  int master = op_tensor(h, "master", RF_CLASS_MASTER, RF_F32, (op_fill){0.02, 0.0}, OP_SHAPE(COUNT));
  int m = op_tensor(h, "m", RF_CLASS_MOMENT, RF_F32, (op_fill){0, 0}, OP_SHAPE(COUNT));
  int v = op_tensor(h, "v", RF_CLASS_MOMENT, RF_F32, (op_fill){0, 0}, OP_SHAPE(COUNT));
  int clip = op_tensor(h, "clip", RF_CLASS_IO, RF_F32, (op_fill){0, 0.5}, OP_SHAPE(2));
  rf_attr attr = {.adamw = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f}};
  op_apply(h, "adamw", OP_IDS(grad, master, m, v, clip), OP_IDS(master, m, v, weights ? RF_WANTED : RF_NONE),
           &attr);
  op_fill_all(h, 8);
  double *w = malloc(COUNT * sizeof *w), *m64 = calloc(COUNT, sizeof *w), *v64 = calloc(COUNT, sizeof *w);
  for (int i = 0; i < COUNT; i++) w[i] = op_get(h, master, i);
  double beta1 = (double)0.9f, beta2 = (double)0.95f;
  for (int step = 1; step <= STEPS; step++) {
    h->run.step = step;
    for (int i = 0; i < COUNT; i++) {
      uint32_t words[4];
      float normal[2];
      rf_philox((uint64_t)step, (uint64_t)i, 0, words);
      rf_normal_pair(words[0], words[1], normal);
      op_set(h, grad, i, 0.01 * (double)normal[0]);
      double g = op_get(h, grad, i) * 0.5;
      m64[i] = beta1 * m64[i] + (1 - beta1) * g;
      v64[i] = beta2 * v64[i] + (1 - beta2) * g * g;
      double mhat = m64[i] / (1 - pow(beta1, step)), vhat = v64[i] / (1 - pow(beta2, step));
      w[i] -= (double)h->run.lr * (mhat / (sqrt(vhat) + (double)1e-8f) + (double)0.1f * w[i]);
    }
    op_run(h, h->subject, kernel_of(table, "adamw"), 1 + step % 3, NULL);
  }
  double error = 0, norm = 0;
  for (int i = 0; i < COUNT; i++) {
    error += pow(op_get(h, master, i) - w[i], 2);
    norm += w[i] * w[i];
    if (weights)
      assert_int_equal(((rf_bf16 *)op_data(h, op_output(h, h->subject, 3)))[i],
                       rf_f32_to_bf16(((float *)op_data(h, master))[i]));
  }
  assert_true(sqrt(error / norm) < 1e-6);
  free(w);
  free(m64);
  free(v64);
  op_harness_free(h);
}
static void test_adamw_follows_doubles(void **state) {
  (void)state;
  const rf_kernel *of[3];
  int count = tables(of);
  for (int t = 0; t < count; t++) {
    adamw_of(false, of[t]);
    adamw_of(true, of[t]);
  }
}
/* Prefetching does not change the bits. */
static void test_adamw_prefetch_gives_the_same_bits(void **state) {
  (void)state;
  enum { COUNT = 70001 };
  op_harness *h = op_harness_new(RF_BF16, 1);
  int t[4];
  for (int i = 0; i < 4; i++)
    t[i] = op_tensor(h, "t", RF_CLASS_MOMENT, RF_F32, (op_fill){0.01, 0.1}, OP_SHAPE(COUNT));
  rf_attr attr = {.adamw = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f}};
  op_apply(h, "adamw", OP_IDS(t[0], t[1], t[2], t[3], RF_NONE), OP_IDS(t[1], t[2], t[3], RF_WANTED), &attr);
  op_fill_all(h, 9);
  const rf_kernel *of[3];
  void *first = NULL;
  int count = tables(of);
  for (int k = 0; k < count; k++)
    for (const rf_kernel *kernel = of[k]; kernel->op; kernel++) {
      if (strcmp(kernel->op, "adamw") != 0) continue;
      op_reset(h, h->subject);
      op_run(h, h->subject, kernel, 2, NULL);
      if (!first) first = op_copy(h, t[1]);
      assert_memory_equal(op_data(h, t[1]), first, COUNT * sizeof(float));
    }
  free(first);
  op_harness_free(h);
}

/* The sum of squares has the same bits for any number of threads and is near the sum in long
 * doubles. A NaN in any place reaches the norm. */
static void test_norm_is_one_number(void **state) {
  (void)state;
  enum { COUNT = 300007 };
  op_harness *h = op_harness_new(RF_F32, 1);
  int grad = op_tensor(h, "grad", RF_CLASS_GRADIENT, RF_F32, (op_fill){1e-3, 0}, OP_SHAPE(COUNT));
  int sums = op_tensor(h, "sums", RF_CLASS_ACTIVATION, RF_F64, (op_fill){0, 7.0}, OP_SHAPE(3));
  rf_attr attr = {.sums = {.element = 1}};
  op_apply(h, "norm_sq", OP_IDS(grad), OP_IDS(sums), &attr);
  op_fill_all(h, 10);
  all_agree(h);
  long double truth = 0;
  for (int i = 0; i < COUNT; i++) truth += (long double)op_get(h, grad, i) * (long double)op_get(h, grad, i);
  assert_true(fabsl((long double)op_get(h, sums, 1) / truth - 1) < 1e-13L);
  assert_true(op_get(h, sums, 0) == 7.0 && op_get(h, sums, 2) == 7.0);
  op_set(h, grad, COUNT - 1, NAN);
  op_run(h, h->subject, kernel_of(RF_CPU_ELEMENTWISE_BASE, "norm_sq"), 2, NULL);
  assert_true(isnan(op_get(h, sums, 1)));
  op_harness_free(h);
}

/* An update that also computes the norm leaves a chunk unchanged if its gradient is not finite. So
 * a search for the cause finds only this gradient. */
static void test_update_leaves_what_is_not_finite(void **state) {
  (void)state;
  enum { CHUNK = 4096, COUNT = 3 * CHUNK + 5, BAD = CHUNK + 17 };
  op_harness *h = op_harness_new(RF_BF16, 1);
  int t[4], sums = op_tensor(h, "sums", RF_CLASS_ACTIVATION, RF_F64, (op_fill){0, 7.0}, OP_SHAPE(2));
  for (int i = 0; i < 4; i++)
    t[i] = op_tensor(h, "t", RF_CLASS_MOMENT, RF_F32, (op_fill){0.01, 0.1}, OP_SHAPE(COUNT));
  rf_attr attr = {.adamw = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .element = 1}};
  op_apply(h, "adamw", OP_IDS(t[0], t[1], t[2], t[3], RF_NONE), OP_IDS(t[1], t[2], t[3], RF_WANTED, sums),
           &attr);
  op_fill_all(h, 11);
  op_set(h, t[0], BAD, INFINITY);
  const rf_kernel *of[3];
  int count = tables(of);
  for (int k = 0; k < count; k++) {
    op_reset(h, h->subject);
    float *before = op_copy(h, t[1]);
    op_run(h, h->subject, kernel_of(of[k], "adamw"), 2, NULL);
    const float *after = op_data(h, t[1]);
    for (int i = 0; i < COUNT; i++)
      assert_true(i / CHUNK == 1 ? after[i] == before[i] : isfinite(after[i]) && after[i] != before[i]);
    assert_true(isinf(op_get(h, sums, 1)) && op_get(h, sums, 0) == 7.0);
    free(before);
  }
  op_harness_free(h);
}

/* Each microbatch after the first adds. The first one zeroes the rows that were not looked up. */
static void test_embedding_gradient_accumulates(void **state) {
  (void)state;
  enum { ROWS = 300, WIDTH = 40, VOCAB = 60 };
  int32_t tokens[ROWS], positions[ROWS];
  for (int r = 0; r < ROWS; r++) {
    tokens[r] = (r * r + 3) % (VOCAB - 5);
    positions[r] = r % 16;
  }
  op_harness *h = op_harness_new(RF_F32, ROWS);
  int a = op_ids(h, "tokens", ROWS, tokens), b = op_ids(h, "positions", ROWS, positions),
      dx = rows_of(h, "dx", ROWS, WIDTH);
  int dwte = op_tensor(h, "dwte", RF_CLASS_GRADIENT, RF_F32, NORMAL, OP_SHAPE(VOCAB, WIDTH));
  int dwpe = op_tensor(h, "dwpe", RF_CLASS_GRADIENT, RF_F32, NORMAL, OP_SHAPE(16, WIDTH));
  rf_attr attr = {.accumulate = {RF_ACCUMULATE_MICRO, RF_ACCUMULATE_ADD}};
  op_apply(h, "embed_bwd", OP_IDS(a, b, dx), OP_IDS(dwte, dwpe), &attr);
  op_fill_all(h, 11);
  all_agree(h);
  op_reset(h, h->subject);
  float *wte = calloc(VOCAB * WIDTH, sizeof *wte), *wpe = op_copy(h, dwpe);
  const float *gradient = op_data(h, dx);
  for (int micro = 0; micro < 3; micro++) {
    h->run.micro = micro;
    op_run(h, h->subject, kernel_of(RF_CPU_ELEMENTWISE_BASE, "embed_bwd"), 2, NULL);
    for (int r = 0; r < ROWS; r++)
      for (int c = 0; c < WIDTH; c++) {
        wte[tokens[r] * WIDTH + c] += gradient[r * WIDTH + c];
        wpe[positions[r] * WIDTH + c] += gradient[r * WIDTH + c];
      }
    assert_memory_equal(op_data(h, dwte), wte, VOCAB * WIDTH * sizeof(float));
    assert_memory_equal(op_data(h, dwpe), wpe, 16 * WIDTH * sizeof(float));
  }
  free(wte);
  free(wpe);
  op_harness_free(h);
}

/* A NaN comes out of every op whose formula it enters. */
static void test_nan_comes_through(void **state) {
  (void)state;
  enum { ROWS = 2, WIDTH = 48 };
  const rf_kernel *of[3];
  int count = tables(of);
  for (int d = 0; d < 2; d++)
    for (int t = 0; t < count; t++) {
      op_harness *h = op_harness_new(d ? RF_BF16 : RF_F32, ROWS);
      int x = rows_of(h, "x", ROWS, WIDTH),
          gain = op_tensor(h, "gain", RF_CLASS_WEIGHT, h->dtype, NORMAL, OP_SHAPE(WIDTH));
      rf_attr attr = {.norm = {.eps = 1e-5f}}, drop = {.dropout = {.rate = 0.1f}};
      int gelu = op_apply(h, "gelu", OP_IDS(x), OP_IDS(RF_WANTED), NULL);
      int norm = op_apply(h, "rmsnorm", OP_IDS(x, gain), OP_IDS(RF_WANTED, RF_WANTED), &attr);
      int add = op_apply(h, "add_dropout", OP_IDS(x, x), OP_IDS(RF_WANTED), &drop);
      int gated = op_apply(h, "swiglu", OP_IDS(x), OP_IDS(RF_WANTED), NULL);
      op_fill_all(h, 12);
      op_set(h, x, 5, NAN);
      const int ops[] = {gelu, norm, add, gated};
      for (int k = 0; k < 4; k++) {
        op_run(h, ops[k], kernel_of(of[t], h->graph->op[ops[k]].def->name), 1, NULL);
        assert_true(isnan(op_get(h, op_output(h, ops[k], 0), 5)));
        assert_false(isnan(op_get(h, op_output(h, ops[k], 0), k == 3 ? WIDTH / 2 + 5 : WIDTH + 5)));
      }
      op_harness_free(h);
    }
}

/* Instruction sets are ordered, their names map back to them, and a lower one never gets a kernel
 * of a higher one. */
static void test_choice_respects_the_isa(void **state) {
  (void)state;
  assert_string_equal(rf_isa_name(RF_ISA_AVX512BF16), "avx512bf16");
  assert_string_equal(rf_isa_name(RF_ISA_AMX), "amx");
  static rf_machine machine; /* Plans for a machine without measurements name the same instruction set. */
  assert_int_equal(rf_machine_detect(&machine, NULL), RAFTER_OK);
  assert_string_equal(machine.isa, rf_isa_name(rf_isa_detect()));
  assert_true(rf_backend_find("cpu") == &RF_BACKEND_CPU && rf_backend_find("auto") == &RF_BACKEND_CPU &&
              rf_backend_find("gpu") == NULL);
  op_harness *h = op_harness_new(RF_F32, 4);
  op_apply(h, "gelu", OP_IDS(rows_of(h, "x", 4, 16)), OP_IDS(RF_WANTED), NULL);
  const rf_op *op = &h->graph->op[h->subject];
#if defined(__x86_64__)
  static const char *const expected[] = {"gelu_base",   "gelu_avx2",   "gelu_avx2",
                                         "gelu_avx512", "gelu_avx512", "gelu_avx512"};
#else
  static const char *const expected[] = {"gelu_base", "gelu_base", "gelu_base",
                                         "gelu_base", "gelu_base", "gelu_base"};
#endif
  for (int isa = 0; isa < RF_ISAS; isa++)
    assert_string_equal(rf_kernel_choose(&RF_BACKEND_CPU, (rf_isa)isa, h->graph, op)->name, expected[isa]);
  assert_string_equal(rf_kernel_choose(&RF_BACKEND_REFERENCE, RF_ISA_AVX512, h->graph, op)->name,
                      "reference_gelu");
  op_harness_free(h);
  h = op_harness_new(RF_F64, 4); /* no CPU kernel takes f64 */
  op_apply(h, "gelu", OP_IDS(rows_of(h, "x", 4, 16)), OP_IDS(RF_WANTED), NULL);
  assert_string_equal(
      rf_kernel_choose(&RF_BACKEND_CPU, RF_ISA_AVX512, h->graph, &h->graph->op[h->subject])->name,
      "reference_gelu");
  op_harness_free(h);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_layernorm_bwd_sums_rows_in_order),
      cmocka_unit_test(test_norm_bwd_in_place_of_dy),
      cmocka_unit_test(test_threads_and_isas_agree_on_large_sizes),
      cmocka_unit_test(test_rope_far_and_back),
      cmocka_unit_test(test_adamw_follows_doubles),
      cmocka_unit_test(test_adamw_prefetch_gives_the_same_bits),
      cmocka_unit_test(test_norm_is_one_number),
      cmocka_unit_test(test_update_leaves_what_is_not_finite),
      cmocka_unit_test(test_embedding_gradient_accumulates),
      cmocka_unit_test(test_nan_comes_through),
      cmocka_unit_test(test_choice_respects_the_isa),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
