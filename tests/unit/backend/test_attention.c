/* test_attention.c - tests attention, its gradient, and attention over a cache. Values are compared
 * with a naive softmax in f64. Bits are compared with all other ways to compute the same result:
 * instruction sets, threads, other segments, one row or many, batch or cache. */
#include "backend/cpu/attention.h"
#include "support/files.h"
#include "support/compare.h"
#include "support/tile_sum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

enum { MAX_SEGMENTS = 12 };

typedef struct problem {
  rf_dtype dtype, softmax;
  int heads, kv_heads, dim, window;
  int lengths[MAX_SEGMENTS]; /* ends with 0 */
} problem;

/* ---- a graph of one op, and its memory ------------------------------------------------------- */

typedef struct setup {
  problem p;
  int64_t n, ld;
  rf_tensor tensor[8];
  rf_graph graph;
  rf_op op;
  void *qkv, *ctx, *dctx, *dqkv;
  float *lse;
  int32_t *segments;
} setup;

static size_t size_of(rf_dtype dtype) { return dtype == RF_BF16 ? 2 : 4; }
static double load(const void *data, rf_dtype dtype, int64_t i) {
  return dtype == RF_BF16 ? (double)rf_bf16_to_f32(((const rf_bf16 *)data)[i])
                          : (double)((const float *)data)[i];
}
static void put(void *data, rf_dtype dtype, int64_t i, double x) {
  if (dtype == RF_BF16) ((rf_bf16 *)data)[i] = rf_f32_to_bf16((float)x);
  else ((float *)data)[i] = (float)x;
}
/* Allocates memory in which every byte is 0xff, so every value is NaN. */
static void *fresh(int64_t count, rf_dtype dtype) {
  size_t bytes = ((size_t)count * size_of(dtype) + 63) / 64 * 64;
  void *p = aligned_alloc(64, bytes);
  assert_non_null(p);
  memset(p, 0xff, bytes);
  return p;
}
static void fill(void *data, rf_dtype dtype, int64_t count, double scale, uint64_t seed) {
  for (int64_t i = 0; i < count; i++) {
    uint32_t w[4];
    float z[2];
    rf_philox(seed, (uint64_t)i, 0, w);
    rf_normal_pair(w[0], w[1], z);
    put(data, dtype, i, scale * (double)z[0]);
  }
}

static void set_up(setup *s, problem p) {
  *s = (setup){.p = p, .ld = (int64_t)(p.heads + 2 * p.kv_heads) * p.dim};
  for (int i = 0; i < MAX_SEGMENTS && p.lengths[i]; i++) s->n += p.lengths[i];
  s->qkv = fresh(s->n * s->ld, p.dtype);
  s->dqkv = fresh(s->n * s->ld, p.dtype);
  s->ctx = fresh(s->n * p.heads * p.dim, p.dtype);
  s->dctx = fresh(s->n * p.heads * p.dim, p.dtype);
  s->lse = fresh(s->n * p.heads, RF_F32);
  s->segments = fresh(s->n + 1, RF_F32);
  int64_t at = 0;
  for (int64_t i = 0, segment = 0; i <= s->n; i++) {
    s->segments[i] = (int32_t)at;
    if (at < s->n) at += p.lengths[segment++];
  }
  fill(s->qkv, p.dtype, s->n * s->ld, 1.3, 1);
  fill(s->dctx, p.dtype, s->n * p.heads * p.dim, 1.0, 2);
  s->op = (rf_op){.name = "attention",
                  .attr.attention = {.heads = p.heads,
                                     .kv_heads = p.kv_heads,
                                     .head_dim = p.dim,
                                     .window = p.window,
                                     .scale = (float)(1.0 / sqrt(p.dim)),
                                     .softmax = p.softmax}};
  s->graph = (rf_graph){.tensor = s->tensor, .tensor_count = 8, .op = &s->op, .op_count = 1, .rows = s->n};
  s->tensor[0] = (rf_tensor){.name = "qkv", .dtype = p.dtype, .rank = 2, .shape = {s->n, s->ld}};
  s->tensor[1] =
      (rf_tensor){.name = "ctx", .dtype = p.dtype, .rank = 2, .shape = {s->n, (int64_t)p.heads * p.dim}};
  s->tensor[2] = (rf_tensor){.name = "lse", .dtype = RF_F32, .rank = 2, .shape = {p.heads, s->n}};
  s->tensor[3] =
      (rf_tensor){.name = "dctx", .dtype = p.dtype, .rank = 2, .shape = {s->n, (int64_t)p.heads * p.dim}};
  s->tensor[4] = (rf_tensor){.name = "segments", .dtype = RF_I32, .rank = 1, .shape = {s->n + 1}};
  s->tensor[5] = (rf_tensor){.name = "dqkv", .dtype = p.dtype, .rank = 2, .shape = {s->n, s->ld}};
}
static void tear_down(setup *s) {
  free(s->qkv);
  free(s->dqkv);
  free(s->ctx);
  free(s->dctx);
  free(s->lse);
  free(s->segments);
}

/* The row of the highest level up to `isa`. */
static const rf_kernel *kernel_of(const char *op, rf_isa isa) {
  const rf_kernel *best = NULL;
  for (const rf_kernel *k = RF_CPU_ATTENTION; k->op; k++)
    if (strcmp(k->op, op) == 0 && k->level <= (int)isa && (!best || k->level > best->level)) best = k;
  if (!best) fail_msg("no row for %s at %s", op, rf_isa_name(isa));
  return best;
}
static rf_isa strongest(void) { return rf_isa_detect() > RF_ISA_AVX512 ? RF_ISA_AVX512 : rf_isa_detect(); }

static bool has_tiles(const problem *p) { return p->dtype == RF_BF16 && rf_isa_detect() == RF_ISA_AMX; }

/* Calls the kernel with a workspace of exactly the requested size, full of NaNs, between guard
 * bytes. */
static void call_kernel(const rf_kernel *kernel, rf_call *call) {
  assert_true(!kernel->accepts || kernel->accepts(call->graph, call->op));
  size_t bytes = kernel->workspace_bytes(call->graph, call->op, (rf_tiling){.threads = call->threads}),
         whole = (bytes + 63) / 64 * 64 + 128;
  unsigned char *memory = aligned_alloc(64, whole);
  assert_non_null(memory);
  memset(memory, 0xff, whole);
  memset(memory, 0xa5, 64);
  memset(memory + 64 + bytes, 0xa5, whole - 64 - bytes);
  call->workspace = memory + 64;
  kernel->run(call);
  for (size_t i = 0; i < 64; i++) assert_int_equal(memory[i], 0xa5);
  for (size_t i = 64 + bytes; i < whole; i++) assert_int_equal(memory[i], 0xa5);
  free(memory);
}

static void forward(setup *s, rf_isa isa, int threads) {
  s->op.input_count = 2;
  s->op.output_count = 2;
  memcpy(s->op.input, (int[]){0, 4}, sizeof(int[2]));
  memcpy(s->op.output, (int[]){1, 2}, sizeof(int[2]));
  rf_call call = {.graph = &s->graph,
                  .op = &s->op,
                  .in = {s->qkv, s->segments},
                  .out = {s->ctx, s->lse},
                  .threads = threads};
  call_kernel(kernel_of("attention", isa), &call);
}
static void backward(setup *s, rf_isa isa, int threads) {
  s->op.input_count = 5;
  s->op.output_count = 1;
  memcpy(s->op.input, (int[]){0, 1, 2, 3, 4}, sizeof(int[5]));
  memcpy(s->op.output, (int[]){5}, sizeof(int[1]));
  rf_call call = {.graph = &s->graph,
                  .op = &s->op,
                  .in = {s->qkv, s->ctx, s->lse, s->dctx, s->segments},
                  .out = {s->dqkv},
                  .threads = threads};
  call_kernel(kernel_of("attention_bwd", isa), &call);
}

/* ---- expected values by a naive softmax ------------------------------------------------------ */

typedef struct truth {
  double *ctx, *lse, *dqkv;
} truth;

static double score(const setup *s, const double *q, const double *k) {
  double sum = 0;
  for (int d = 0; d < s->p.dim; d++) sum += q[d] * k[d];
  sum *= (double)s->op.attr.attention.scale;
  return s->p.softmax == RF_BF16 ? (double)rf_bf16_to_f32(rf_f32_to_bf16((float)sum)) : sum;
}

/* Softmax and its gradient, written as in a textbook. */
static truth naive(const setup *s) {
  const problem *p = &s->p;
  int64_t n = s->n, ld = s->ld, dim = p->dim;
  double *x = malloc(sizeof(double) * (size_t)(n * ld)), *prob = malloc(sizeof(double) * (size_t)n),
         *dprob = malloc(sizeof(double) * (size_t)n);
  truth t = {calloc((size_t)(n * p->heads * dim), 8), calloc((size_t)(n * p->heads), 8),
             calloc((size_t)(n * ld), 8)};
  for (int64_t i = 0; i < n * ld; i++) x[i] = load(s->qkv, p->dtype, i);
  for (int64_t origin = 0, segment = 0; origin < n; origin += p->lengths[segment++]) {
    for (int h = 0; h < p->heads; h++) {
      int64_t kh = (int64_t)(p->heads + h / (p->heads / p->kv_heads)) * dim,
              vh = kh + (int64_t)p->kv_heads * dim;
      for (int64_t i = origin; i < origin + p->lengths[segment]; i++) {
        int64_t low = p->window > 0 && i - p->window + 1 > origin ? i - p->window + 1 : origin;
        const double *q = x + i * ld + h * dim;
        double top = -INFINITY, sum = 0, mean = 0, *ctx = t.ctx + (i * p->heads + h) * dim;
        for (int64_t j = low; j <= i; j++) top = fmax(top, prob[j] = score(s, q, x + j * ld + kh));
        for (int64_t j = low; j <= i; j++) sum += prob[j] = exp(prob[j] - top);
        t.lse[h * n + i] = top + log(sum);
        for (int64_t j = low; j <= i; j++) {
          prob[j] /= sum;
          dprob[j] = 0;
          for (int64_t d = 0; d < dim; d++) {
            double g = load(s->dctx, p->dtype, (i * p->heads + h) * dim + d);
            ctx[d] += prob[j] * x[j * ld + vh + d];
            dprob[j] += g * x[j * ld + vh + d];
            t.dqkv[j * ld + vh + d] += prob[j] * g;
          }
          mean += prob[j] * dprob[j];
        }
        for (int64_t j = low; j <= i; j++) {
          double ds = prob[j] * (dprob[j] - mean) * (double)s->op.attr.attention.scale;
          for (int64_t d = 0; d < dim; d++) {
            t.dqkv[i * ld + h * dim + d] += ds * x[j * ld + kh + d];
            t.dqkv[j * ld + kh + d] += ds * q[d];
          }
        }
      }
    }
  }
  free(x);
  free(prob);
  free(dprob);
  return t;
}
static void truth_free(truth *t) {
  free(t->ctx);
  free(t->lse);
  free(t->dqkv);
}

/* `stored` is the dtype of the output; both sides are compared as f32. */
static bool close_to(const void *got, rf_dtype stored, const double *want, int64_t count, compare_bound bound,
                     compare_report *report) {
  float *a = malloc(sizeof(float) * (size_t)count), *b = malloc(sizeof(float) * (size_t)count);
  for (int64_t i = 0; i < count; i++) {
    a[i] = (float)load(got, stored, i);
    b[i] = (float)want[i];
  }
  bool close = compare_close(RF_F32, a, b, count, bound, report);
  free(a);
  free(b);
  return close;
}
static void expect_close(const char *what, const problem *p, rf_isa isa, const void *got, rf_dtype stored,
                         const double *want, int64_t count, compare_bound bound) {
  compare_report report;
  if (!close_to(got, stored, want, count, bound, &report)) {
    fail_msg("%s, %s, %s softmax, heads %d/%d of %d, window %d, first segment %d, %s: %s", what,
             rf_dtype_name(p->dtype), rf_dtype_name(p->softmax), p->heads, p->kv_heads, p->dim, p->window,
             p->lengths[0], rf_isa_name(isa), report.text);
  }
}

/* Rounded scores can differ by a bf16 step between f32 and f64 if they are on different sides of a
 * rounding boundary (|s| < 16: 2^-4 at most, 2^-6 typically). The softmax then jumps. This is rare,
 * but f32 arithmetic does not bound it. */
static compare_bound bound_of(const problem *p, rf_dtype stored, int64_t longest) {
  compare_bound b = compare_bound_of(stored, RF_F32, longest + p->dim);
  b.norm *= 4; /* Scores of size s bring s rounding errors into the exponent; |s| < 8 with this data. */
  b.max *= 8;
  if (p->softmax == RF_BF16) {
    b.norm += 2e-3;
    b.max += 4e-2;
  }
  return b;
}

static const problem PROBLEMS[] = {
    {RF_F32, RF_F32, 2, 2, 64, 0, {300}},
    {RF_F32, RF_F32, 2, 1, 128, 0, {97, 1, 30, 259}},
    {RF_F32, RF_F32, 4, 2, 16, 40, {1, 13, 200, 11, 12, 300}},
    {RF_F32, RF_F32, 3, 1, 10, 7, {33, 50, 1, 1, 2}},
    {RF_F32, RF_F32, 5, 5, 24, 0, {100, 3}},
    {RF_F32, RF_F32, 1, 1, 80, 300, {530}},
    {RF_F32, RF_F32, 6, 2, 48, 1, {40, 14}},
    {RF_F32, RF_BF16, 2, 2, 64, 0, {280}},
    {RF_BF16, RF_F32, 2, 2, 64, 0, {300, 20}},
    {RF_BF16, RF_BF16, 4, 1, 64, 100, {270, 65}},
    {RF_BF16, RF_F32, 4, 2, 10, 0, {31, 64, 1}},
    {RF_BF16, RF_F32, 8, 1, 256, 0, {50}},
    {RF_BF16, RF_F32, 2, 1, 128, 0, {290, 33}},
    {RF_BF16, RF_F32, 4, 2, 80, 37, {300, 17, 1, 96}},
    {RF_BF16, RF_F32, 2, 2, 24, 1, {40}},
};
enum { PROBLEM_COUNT = sizeof PROBLEMS / sizeof *PROBLEMS };

static int64_t longest_of(const problem *p) {
  int64_t longest = 0;
  for (int i = 0; i < MAX_SEGMENTS && p->lengths[i]; i++)
    longest = p->lengths[i] > longest ? p->lengths[i] : longest;
  return longest;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void expect_gradients(const setup *s, const truth *want, rf_isa isa, compare_bound bound) {
  const problem *p = &s->p;
  for (int part = 0; part < 3; part++) { /* q, k and v separately, because their scales differ */
    int64_t first = part == 0 ? 0 : (int64_t)(p->heads + (part - 1) * p->kv_heads) * p->dim;
    int64_t width = (int64_t)(part == 0 ? p->heads : p->kv_heads) * p->dim;
    double *some = malloc(sizeof(double) * (size_t)(s->n * width));
    void *got = fresh(s->n * width, p->dtype);
    for (int64_t r = 0; r < s->n; r++) {
      for (int64_t d = 0; d < width; d++) {
        some[r * width + d] = want->dqkv[r * s->ld + first + d];
        put(got, p->dtype, r * width + d, load(s->dqkv, p->dtype, r * s->ld + first + d));
      }
    }
    /* A softmax over one key is constant, so q and k get only rounding errors. */
    bool zero = p->window == 1 && part < 2;
    if (!zero)
      expect_close(part == 0   ? "dq"
                   : part == 1 ? "dk"
                               : "dv",
                   p, isa, got, p->dtype, some, s->n * width, bound);
    free(some);
    free(got);
  }
}

static void test_values(void **state) {
  (void)state;
  for (int i = 0; i < PROBLEM_COUNT; i++) {
    setup s;
    set_up(&s, PROBLEMS[i]);
    truth want = naive(&s);
    for (rf_isa isa = RF_ISA_BASE; isa <= strongest(); isa++) {
      const problem *p = &s.p;
      compare_bound bound = bound_of(p, p->dtype, longest_of(p));
      forward(&s, isa, 1);
      expect_close("ctx", p, isa, s.ctx, p->dtype, want.ctx, s.n * p->heads * p->dim, bound);
      expect_close("lse", p, isa, s.lse, RF_F32, want.lse, s.n * p->heads,
                   bound_of(p, RF_F32, longest_of(p)));
      backward(&s, isa, 1);
      bound.norm *= 4; /* D is computed from the rounded ctx, and p (e - D) cancels. */
      bound.max *= 4;
      expect_gradients(&s, &want, isa, bound);
      if (isa < strongest() || !has_tiles(p)) continue;
      bound.norm += 1.0 / 256; /* p and t are rounded to bf16, each with an error of at most 2^-9. */
      bound.max += 4.0 / 256;
      backward(&s, RF_ISA_AMX, 1);
      expect_gradients(&s, &want, RF_ISA_AMX, bound);
    }
    truth_free(&want);
    tear_down(&s);
  }
}

/* Plants faults that the check above must notice: a window one key too wide, a causal bound one key
 * too far, another scale, K and V heads exchanged. */
static void test_values_see_faults(void **state) {
  (void)state;
  for (int fault = 0; fault < 4; fault++) {
    setup s;
    set_up(&s, (problem){RF_F32, RF_F32, 4, 2, 32, 20, {150}});
    forward(&s, strongest(), 1);
    setup wrong = s;
    if (fault == 0) wrong.p.window++;
    if (fault == 1) {
      wrong.p.lengths[0] = 75;
      wrong.p.lengths[1] = 75;
    }
    if (fault == 2) wrong.op.attr.attention.scale *= 1.001f;
    /* heads of the second group read the keys of the first group */
    if (fault == 3) {
      wrong.p.kv_heads = 1;
      wrong.p.heads = 4;
    }
    truth want = naive(&wrong);
    assert_false(
        close_to(s.ctx, RF_F32, want.ctx, s.n * s.p.heads * s.p.dim, bound_of(&s.p, RF_F32, 150), NULL));
    truth_free(&want);
    tear_down(&s);
  }
}

static void expect_same(const char *what, const void *a, const void *b, size_t bytes) {
  if (memcmp(a, b, bytes) != 0) fail_msg("%s: other bits", what);
}

/* Every instruction set (strips of 12, 6 and 4 rows) and thread count (whole units per thread, or
 * the queries of one unit) gives the same bits. */
static void test_bits_do_not_depend_on_isa_or_threads(void **state) {
  (void)state;
  for (int i = 0; i < PROBLEM_COUNT; i++) {
    setup a, b;
    set_up(&a, PROBLEMS[i]);
    set_up(&b, PROBLEMS[i]);
    forward(&a, RF_ISA_BASE, 1);
    backward(&a, RF_ISA_BASE, 1);
    static const struct {
      rf_isa isa;
      int threads;
    } ways[] = {{RF_ISA_BASE, 3}, {RF_ISA_AVX2, 1}, {RF_ISA_AVX2, 2}, {RF_ISA_AVX512, 1}, {RF_ISA_AVX512, 5}};
    for (int way = 0; way < 5 && ways[way].isa <= strongest(); way++) {
      memset(b.ctx, 0xff, (size_t)(b.n * b.p.heads * b.p.dim) * size_of(b.p.dtype));
      memset(b.dqkv, 0xff, (size_t)(b.n * b.ld) * size_of(b.p.dtype));
      forward(&b, ways[way].isa, ways[way].threads);
      backward(&b, ways[way].isa, ways[way].threads);
      expect_same("ctx", a.ctx, b.ctx, (size_t)(a.n * a.p.heads * a.p.dim) * size_of(a.p.dtype));
      expect_same("lse", a.lse, b.lse, (size_t)(a.n * a.p.heads) * 4);
      expect_same("dqkv", a.dqkv, b.dqkv, (size_t)(a.n * a.ld) * size_of(a.p.dtype));
    }
    if (has_tiles(&a.p)) backward(&a, RF_ISA_AMX, 1);
    for (int threads = 2; threads < 6 && has_tiles(&a.p); threads++) {
      memset(b.dqkv, 0xff, (size_t)(b.n * b.ld) * size_of(b.p.dtype));
      backward(&b, RF_ISA_AMX, threads);
      expect_same("dqkv with tiles", a.dqkv, b.dqkv, (size_t)(a.n * a.ld) * size_of(a.p.dtype));
    }
    tear_down(&a);
    tear_down(&b);
  }
}

/* A segment alone gives the bits that it has in a batch of segments, forward and backward. */
static void expect_segments_alone(const problem *of, rf_isa isa) {
  setup all;
  set_up(&all, *of);
  forward(&all, strongest(), 2);
  backward(&all, isa, 2);
  size_t unit = size_of(all.p.dtype), row = (size_t)all.ld * unit,
         out = (size_t)(all.p.heads * all.p.dim) * unit;
  for (int64_t origin = 0, segment = 0; origin < all.n; origin += all.p.lengths[segment++]) {
    problem p = all.p;
    int64_t length = p.lengths[segment];
    memset(p.lengths, 0, sizeof p.lengths);
    p.lengths[0] = (int)length;
    setup one;
    set_up(&one, p);
    memcpy(one.qkv, (char *)all.qkv + (size_t)origin * row, (size_t)length * row);
    memcpy(one.dctx, (char *)all.dctx + (size_t)origin * out, (size_t)length * out);
    forward(&one, strongest(), 1);
    backward(&one, isa, 1);
    expect_same("ctx", one.ctx, (char *)all.ctx + (size_t)origin * out, (size_t)length * out);
    expect_same("dqkv", one.dqkv, (char *)all.dqkv + (size_t)origin * row, (size_t)length * row);
    tear_down(&one);
  }
  tear_down(&all);
}
static void test_bits_do_not_depend_on_other_segments(void **state) {
  (void)state;
  for (int i = 0; i < PROBLEM_COUNT; i++) {
    expect_segments_alone(&PROBLEMS[i], strongest());
    if (has_tiles(&PROBLEMS[i])) expect_segments_alone(&PROBLEMS[i], RF_ISA_AMX);
  }
}

/* ---- over a cache ---------------------------------------------------------------------------- */

/* One forward pass of `rows` rows. Row r is token `token[r]` of the first segment of s, in
 * `slot[r]`. */
typedef struct cached {
  rf_tensor tensor[5];
  rf_graph graph;
  rf_op op;
  void *cache;
  int32_t *table; /* pages in random order */
  int64_t slots, page, columns;
} cached;

/* Makes a cache full of NaN for `slots` sequences of at most `context` tokens. */
static void cache_open(cached *c, const problem *p, int64_t slots, int64_t context, int64_t page) {
  *c = (cached){.slots = slots, .page = page, .columns = (context + page - 1) / page};
  int64_t pages = slots * c->columns;
  c->cache = fresh(pages * 2 * page * p->kv_heads * p->dim, p->dtype);
  c->table = malloc((size_t)pages * sizeof *c->table);
  for (int64_t i = 0; i < pages; i++) c->table[i] = (int32_t)((i * 7 + 3) % pages);
  for (int64_t i = 0; pages % 7 == 0 && i < pages; i++) c->table[i] = (int32_t)(pages - 1 - i);
}
static void cache_close(cached *c) {
  free(c->cache);
  free(c->table);
}

static void pass_cache(const setup *s, cached *c, int64_t rows, const int32_t *token, const int32_t *slot,
                       rf_isa isa, int threads, void *ctx) {
  const problem *p = &s->p;
  size_t unit = size_of(p->dtype), out = (size_t)(p->heads * p->dim) * unit;
  int64_t bound = rows + 3; /* more rows than are in use */
  void *qkv = fresh(bound * s->ld, p->dtype), *got = fresh(bound * p->heads * p->dim, p->dtype);
  int32_t slots[64], positions[64];
  for (int64_t r = 0; r < bound; r++) {
    slots[r] = r < rows ? slot[r] : 1 << 30;
    positions[r] = r < rows ? token[r] : 1 << 30;
    if (r < rows)
      memcpy((char *)qkv + (size_t)(r * s->ld) * unit, (char *)s->qkv + (size_t)(token[r] * s->ld) * unit,
             (size_t)s->ld * unit);
  }
  c->tensor[0] = (rf_tensor){.name = "qkv", .dtype = p->dtype, .rank = 2, .shape = {bound, s->ld}};
  c->tensor[1] = (rf_tensor){.name = "cache",
                             .dtype = p->dtype,
                             .rank = 4,
                             .shape = {c->slots * c->columns, 2, c->page, (int64_t)p->kv_heads * p->dim}};
  c->tensor[2] = (rf_tensor){.name = "slots", .dtype = RF_I32, .rank = 1, .shape = {bound}};
  c->tensor[3] =
      (rf_tensor){.name = "ctx", .dtype = p->dtype, .rank = 2, .shape = {bound, (int64_t)p->heads * p->dim}};
  c->tensor[4] = (rf_tensor){.name = "table", .dtype = RF_I32, .rank = 2, .shape = {c->slots, c->columns}};
  c->op = (rf_op){.name = "attention_kv",
                  .attr = s->op.attr,
                  .input_count = 6,
                  .input = {0, 1, 4, 2, 2, RF_NONE},
                  .output_count = 3,
                  .output = {3, 1, RF_NONE}};
  c->graph = (rf_graph){.tensor = c->tensor, .tensor_count = 5, .op = &c->op, .op_count = 1, .rows = bound};
  rf_run_inputs run = {.rows = rows};
  rf_call call = {.graph = &c->graph,
                  .op = &c->op,
                  .in = {qkv, c->cache, c->table, slots, positions},
                  .out = {got, c->cache},
                  .threads = threads,
                  .run = &run};
  call_kernel(kernel_of("attention_kv", isa), &call);
  memcpy(ctx, got, (size_t)rows * out);
  free(qkv);
  free(got);
}

/* A sequence that is computed in chunks, or in single rows among rows of other slots and unused
 * rows, has the bits of the whole batch. The cache holds NaN after a row's position, so a read
 * there would show. */
static void test_cache_gives_the_bits_of_the_batch(void **state) {
  (void)state;
  static const int chunk[] = {1, 1, 17, 40, 2, 12, 1, 1, 33, 5, 60, 1, 24, 1, 1};
  for (int i = 0; i < PROBLEM_COUNT; i++) {
    problem p = PROBLEMS[i];
    memset(p.lengths, 0, sizeof p.lengths);
    p.lengths[0] = 290;
    setup s;
    set_up(&s, p);
    forward(&s, strongest(), 2);
    size_t out = (size_t)(p.heads * p.dim) * size_of(p.dtype);
    for (rf_isa isa = RF_ISA_AVX2; isa <= strongest(); isa++) {
      cached c;
      cache_open(&c, &p, 3, 300, isa == strongest() ? 32 << (i % 4) : 512);
      int32_t token[64], slot[64];
      void *ctx = fresh(64 * p.heads * p.dim, p.dtype);
      for (int64_t at = 0, turn = 0; at < s.n; turn++) {
        int64_t rows = 0, count = chunk[turn % 15] < s.n - at ? chunk[turn % 15] : s.n - at;
        for (; rows < count; rows++) {
          token[rows] = (int32_t)(at + rows);
          slot[rows] = 2;
        }
        int64_t follow = at == 0 ? 0 : at - 1; /* slot 0 also recomputes the token one row earlier, alone */
        token[rows] = 0;
        slot[rows++] = -1;
        if (turn > 0 && chunk[(turn - 1) % 15] == 1) {
          token[rows] = (int32_t)follow;
          slot[rows++] = 0;
        }
        pass_cache(&s, &c, rows, token, slot, isa, turn % 4 == 3 ? 4 : 1, ctx);
        for (int64_t r = 0; r < rows; r++) {
          char zeros[8192] = {0};
          if (slot[r] < 0) expect_same("skipped row", (char *)ctx + (size_t)r * out, zeros, out);
          if (slot[r] == 2)
            expect_same("ctx from the cache", (char *)ctx + (size_t)r * out,
                        (char *)s.ctx + (size_t)token[r] * out, out);
        }
        at += count;
      }
      free(ctx);
      cache_close(&c);
    }
    tear_down(&s);
  }
}

/* Decoding one row at a time, from the first to the last, covers the 1-row tile at every position
 * of two blocks. */
static void test_decode_gives_the_bits_of_the_batch(void **state) {
  (void)state;
  static const problem problems[] = {
      {RF_F32, RF_F32, 2, 2, 64, 0, {270}},    {RF_BF16, RF_F32, 8, 1, 32, 0, {270}},
      {RF_BF16, RF_BF16, 4, 2, 24, 50, {270}}, {RF_F32, RF_F32, 70, 70, 8, 0, {40}},
      {RF_F32, RF_F32, 90, 2, 16, 0, {40}},
  };
  for (int i = 0; i < 5; i++) {
    setup s;
    set_up(&s, problems[i]);
    forward(&s, strongest(), 2);
    cached c;
    cache_open(&c, &s.p, 2, 270, i < 2 ? 256 : 32);
    size_t out = (size_t)(s.p.heads * s.p.dim) * size_of(s.p.dtype);
    void *ctx = fresh(64 * s.p.heads * s.p.dim, s.p.dtype);
    for (int32_t t = 0; t < s.n; t++) {
      pass_cache(&s, &c, 2, (int32_t[]){t, t}, (int32_t[]){1, 0}, strongest(), t % 8 == 7 ? 3 : 1, ctx);
      expect_same("slot 1", ctx, (char *)s.ctx + (size_t)t * out, out);
      expect_same("slot 0", (char *)ctx + out, (char *)s.ctx + (size_t)t * out, out);
    }
    free(ctx);
    cache_close(&c);
    tear_down(&s);
  }
}

/* One row over a long cache, which all threads may share. The cache has one layer of random values
 * up to the row's position, and NaN after it. */
typedef struct long_cache {
  rf_dtype dtype; /* of the cache; q, k, v and the outputs are f32 */
  int heads, kv_heads, dim, window, position;
} long_cache;

static void long_row(const long_cache *p, void *cache, float *scale, rf_isa isa, int threads, float *ctx) {
  enum { PAGE = 256 };
  int64_t columns = p->position / PAGE + 1, ld = (int64_t)(p->heads + 2 * p->kv_heads) * p->dim;
  float *qkv = fresh(ld, RF_F32);
  fill(qkv, RF_F32, ld, 1.3, 7);
  int32_t *table = malloc((size_t)columns * sizeof *table);
  for (int64_t i = 0; i < columns; i++) table[i] = (int32_t)(columns - 1 - i);
  rf_tensor tensor[6] = {
      {.dtype = RF_F32, .rank = 2, .shape = {1, ld}},
      {.dtype = p->dtype, .rank = 4, .shape = {columns, 2, PAGE, (int64_t)p->kv_heads * p->dim}},
      {.dtype = RF_I32, .rank = 2, .shape = {1, columns}},
      {.dtype = RF_I32, .rank = 1, .shape = {1}},
      {.dtype = RF_F32, .rank = 4, .shape = {columns, 2, PAGE, p->kv_heads}},
      {.dtype = RF_F32, .rank = 2, .shape = {1, (int64_t)p->heads * p->dim}}};
  rf_op op = {.name = "attention_kv",
              .attr.attention = {.heads = p->heads,
                                 .kv_heads = p->kv_heads,
                                 .head_dim = p->dim,
                                 .window = p->window,
                                 .scale = (float)(1.0 / sqrt(p->dim))},
              .input_count = 6,
              .input = {0, 1, 2, 3, 3, 4},
              .output_count = 3,
              .output = {5, 1, 4}};
  rf_graph graph = {.tensor = tensor, .tensor_count = 6, .op = &op, .op_count = 1, .rows = 1};
  rf_run_inputs run = {.rows = 1};
  int32_t slot = 0, position = p->position;
  rf_call call = {.graph = &graph,
                  .op = &op,
                  .in = {qkv, cache, table, &slot, &position, scale},
                  .out = {ctx, cache, scale},
                  .threads = threads,
                  .run = &run};
  call_kernel(kernel_of("attention_kv", isa), &call);
  free(table);
  free(qkv);
}

/* Fills the rows of positions up to the last one; the kernel writes the row at `position`. */
static void fill_long_cache(const long_cache *p, char *cache, float *scale) {
  enum { PAGE = 256 };
  int64_t columns = p->position / PAGE + 1, width = (int64_t)p->kv_heads * p->dim;
  for (int64_t at = 0; at < p->position; at++) {
    for (int which = 0; which < 2; which++) {
      int64_t row = ((columns - 1 - at / PAGE) * 2 + which) * PAGE + at % PAGE;
      uint64_t seed = (uint64_t)(2 * at + which);
      for (int64_t i = 0; p->dtype == RF_I8 && i < width; i++)
        cache[row * width + i] = (char)((i * 37 + at * 11 + which * 5) % 255 - 127);
      if (p->dtype == RF_I8) fill(scale + row * p->kv_heads, RF_F32, p->kv_heads, 0.01, seed);
      else fill(cache + (size_t)(row * width) * size_of(p->dtype), p->dtype, width, 1.3, seed);
    }
  }
}

/* Threads that share a row give the bits of one thread, on every ISA: with KV heads that threads
 * do not divide evenly, heads whose columns two threads share, windows, and several chunks. */
static void test_threads_share_a_row(void **state) {
  (void)state;
  static const long_cache caches[] = {
      {RF_F32, 4, 1, 256, 0, 1100},  {RF_BF16, 4, 1, 256, 512, 1733}, {RF_I8, 4, 1, 256, 0, 700},
      {RF_F32, 9, 3, 64, 0, 3000},   {RF_BF16, 9, 3, 64, 1000, 2559}, {RF_I8, 9, 3, 64, 0, 2816},
      {RF_BF16, 32, 4, 64, 0, 1500}, {RF_F32, 14, 2, 48, 0, 2000},    {RF_I8, 10, 5, 80, 300, 900},
      {RF_F32, 7, 1, 32, 0, 4100},
  };
  static const int threads[] = {2, 3, 5, 8};
  for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) {
    const long_cache *p = &caches[i];
    int64_t rows = (p->position / 256 + 1) * 512, width = (int64_t)p->kv_heads * p->dim,
            out = (int64_t)p->heads * p->dim;
    void *cache = fresh(rows * width, p->dtype == RF_I8 ? RF_BF16 : p->dtype);
    float *scale = fresh(rows * p->kv_heads, RF_F32), *want = fresh(out, RF_F32), *got = fresh(out, RF_F32);
    fill_long_cache(p, cache, scale);
    long_row(p, cache, scale, strongest(), 1, want);
    for (int64_t d = 0; d < out; d++) assert_true(isfinite(want[d]));
    for (rf_isa isa = RF_ISA_BASE; isa <= strongest(); isa++) {
      for (int t = 0; t < 4; t++) {
        memset(got, 0xff, (size_t)out * sizeof *got);
        long_row(p, cache, scale, isa, threads[t], got);
        expect_same("a shared row", got, want, (size_t)out * sizeof *got);
      }
    }
    free(cache);
    free(scale);
    free(want);
    free(got);
  }
}

/* The definition of attention.h in scalar C, without strips or tiles. Every sum follows its comment
 * there. The exponential and logarithm are those of the kernels, so only the order of additions is
 * tested. */
static float chain(const float *a, const float *b, int64_t count) {
  float sum = 0;
  for (int64_t i = 0; i < count; i++) sum = fmaf(a[i], b[i], sum);
  return sum;
}
static float exp2_of(float t) {
  static const float c[] = {0x1.416b52p-13f, 0x1.5f082ep-10f, 0x1.3b2dep-7f, 0x1.c6af7cp-5f,
                            0x1.ebfbdcp-3f,  0x1.62e43p-1f,   1.0f};
  if (t < -126.0f) return 0;
  float k = (t + 12582912.0f) - 12582912.0f, p = c[0];
  for (int i = 1; i < 7; i++) p = fmaf(p, t - k, c[i]);
  return ldexpf(p, (int)k);
}
static float tree(float lane[16]) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; i++) lane[i] += lane[i + width];
  }
  return lane[0];
}
static void test_order_is_the_one_written_down(void **state) {
  (void)state;
  enum { T = 600, H = 48 };
  setup s;
  set_up(&s, (problem){RF_F32, RF_F32, 1, 1, H, 0, {T}});
  forward(&s, strongest(), 2);
  backward(&s, strongest(), 2);
  const float *x = s.qkv, *ctx = s.ctx, *g = s.dctx;
  float scale = s.op.attr.attention.scale, c = scale * 0x1.715476p+0f;
  static float dk[T][H], dv[T][H], want[T][3 * H];
  for (int i = 0; i < T; i++) {
    const float *q = x + i * 3 * H;
    float m = -1e30f, l = 0, o[H] = {0}, p[256];
    for (int block = 0; block <= i; block += 256) {
      int end = i + 1 - block < 256 ? i + 1 - block : 256;
      float top = m, lane[16] = {0};
      for (int j = 0; j < end; j++) top = fmaxf(top, p[j] = chain(q, x + (block + j) * 3 * H + H, H));
      float f = exp2_of((m - top) * c);
      for (int j = 0; j < end; j++) lane[j % 16] += p[j] = exp2_of(fmaf(p[j], c, -(top * c)));
      l = fmaf(l, f, tree(lane));
      for (int d = 0; d < H; d++) {
        o[d] *= f;
        for (int j = 0; j < end; j++) o[d] = fmaf(p[j], x[(block + j) * 3 * H + 2 * H + d], o[d]);
      }
      m = top;
    }
    for (int d = 0; d < H; d++) o[d] = fmaf(o[d], 1 / l, 0);
    expect_same("ctx", o, ctx + i * H, sizeof o);
    float dq[H] = {0}, lane[16] = {0}, less = -(s.lse[i] * 0x1.715476p+0f);
    for (int d = 0; d < H; d++) lane[d % 16] = fmaf(g[i * H + d], ctx[i * H + d], lane[d % 16]);
    float minus_d = -tree(lane);
    for (int j = 0; j <= i; j++) {
      const float *k = x + j * 3 * H + H;
      float pij = exp2_of(fmaf(chain(q, k, H), c, less)), t = pij * (chain(g + i * H, k + H, H) + minus_d);
      for (int d = 0; d < H; d++) {
        dq[d] = fmaf(t, k[d], dq[d]);
        dk[j][d] = fmaf(t, q[d], dk[j][d]);
        dv[j][d] = fmaf(pij, g[i * H + d], dv[j][d]);
      }
    }
    for (int d = 0; d < H; d++) want[i][d] = dq[d] * scale;
  }
  for (int i = 0; i < T; i++) {
    for (int d = 0; d < H; d++) {
      want[i][H + d] = dk[i][d] * scale;
      want[i][2 * H + d] = dv[i][d];
    }
  }
  expect_same("dqkv", want, s.dqkv, sizeof want);
  tear_down(&s);
}

/* The definition with tiles: all five products as gemm.h defines them, with p and t rounded in
 * between. Two query heads share their keys. */
static float rounded(float x) { return rf_bf16_to_f32(rf_f32_to_bf16(tile_flushed(x, TILE_TRUE))); }
static void test_order_with_tiles_is_the_one_written_down(void **state) {
  (void)state;
  enum { T = 270, H = 40, N = 2, LD = (N + 2) * H };
  setup s;
  set_up(&s, (problem){RF_BF16, RF_F32, N, 1, H, 0, {T}});
  if (!has_tiles(&s.p)) {
    tear_down(&s);
    skip_for("no matrix tiles on this CPU");
  }
  static float x[T][LD], g[T][N * H], ctx[T][N * H], p[T][T], t[T][T], dk[T][H], dv[T][H], column[2][T],
      want[T][LD], got[T][LD];
  forward(&s, RF_ISA_AVX512, 2);
  backward(&s, RF_ISA_AMX, 2);
  memset(dk, 0, sizeof dk);
  memset(dv, 0, sizeof dv);
  for (int i = 0; i < T; i++) {
    for (int d = 0; d < LD; d++) {
      x[i][d] = (float)load(s.qkv, RF_BF16, i * LD + d);
      got[i][d] = (float)load(s.dqkv, RF_BF16, i * LD + d);
    }
    for (int d = 0; d < N * H; d++) {
      g[i][d] = (float)load(s.dctx, RF_BF16, i * N * H + d);
      ctx[i][d] = (float)load(s.ctx, RF_BF16, i * N * H + d);
    }
  }
  float scale = s.op.attr.attention.scale, c = scale * 0x1.715476p+0f;
  for (int h = 0; h < N; h++) {
    for (int i = 0; i < T; i++) {
      float lane[16] = {0}, less = -(s.lse[h * T + i] * 0x1.715476p+0f);
      for (int d = 0; d < H; d++) lane[d % 16] = fmaf(g[i][h * H + d], ctx[i][h * H + d], lane[d % 16]);
      float minus_d = -tree(lane);
      for (int j = 0; j < T; j++) {
        float a = tile_sum(x[j] + N * H, x[i] + h * H, H, 1, 1, 0, TILE_TRUE),
              e = tile_sum(x[j] + (N + 1) * H, g[i] + h * H, H, 1, 1, 0, TILE_TRUE);
        float pij = j > i ? 0 : exp2_of(fmaf(a, c, less));
        p[j][i] = rounded(pij);
        t[j][i] = rounded(pij * (e + minus_d));
      }
    }
    for (int d = 0; d < H; d++) {
      for (int i = 0; i < T; i++) {
        column[0][i] = x[i][h * H + d];
        column[1][i] = g[i][h * H + d];
      }
      for (int j = 0; j < T; j++) {
        dk[j][d] = tile_sum(t[j], column[0], T, 1, 1, dk[j][d], TILE_TRUE);
        dv[j][d] = tile_sum(p[j], column[1], T, 1, 1, dv[j][d], TILE_TRUE);
      }
      for (int j = 0; j < T; j++) column[0][j] = x[j][N * H + d];
      for (int i = 0; i < T; i++) {
        for (int j = 0; j < T; j++) column[1][j] = t[j][i];
        want[i][h * H + d] = scale * tile_sum(column[0], column[1], T, 1, 1, 0, TILE_TRUE);
      }
    }
  }
  for (int j = 0; j < T; j++)
    for (int d = 0; d < H; d++) {
      want[j][N * H + d] = scale * dk[j][d];
      want[j][(N + 1) * H + d] = dv[j][d];
    }
  for (int i = 0; i < T; i++)
    for (int d = 0; d < LD; d++) want[i][d] = rf_bf16_to_f32(rf_f32_to_bf16(want[i][d]));
  expect_same("dqkv", want, got, sizeof want);
  tear_down(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_values_see_faults),
      cmocka_unit_test(test_bits_do_not_depend_on_isa_or_threads),
      cmocka_unit_test(test_bits_do_not_depend_on_other_segments),
      cmocka_unit_test(test_cache_gives_the_bits_of_the_batch),
      cmocka_unit_test(test_decode_gives_the_bits_of_the_batch),
      cmocka_unit_test(test_threads_share_a_row),
      cmocka_unit_test(test_order_is_the_one_written_down),
      cmocka_unit_test(test_order_with_tiles_is_the_one_written_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
