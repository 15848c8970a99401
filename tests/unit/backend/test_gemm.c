/* test_gemm.c - tests matrix products. Their definition is exact, so every element of every shape
 * is compared bit by bit with the naive chain of fmaf, or with the sum of support/tile_sum.h for
 * bf16 on tiles. All instruction sets of this CPU and several thread counts are tested. */
#include "backend/cpu/gemm.h"
#include "backend/cpu/simd.h"
#include "support/files.h"
#include "support/tile_sum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

static uint32_t random_state = 1;
static float draw(void) { /* Small magnitudes and some zeros, so that sums round often and never overflow. */
  random_state = random_state * 1664525u + 1013904223u;
  return (float)((int32_t)random_state >> 8) * 0x1p-22f;
}
/* NULL if the compiler has no tiles. Tests that use tiles are skipped on CPUs without them. */
#if defined(__x86_64__)
static const rf_gemm_isa *const TILES = &RF_GEMM_AMX;
#else
static const rf_gemm_isa *const TILES = NULL;
#endif
enum { ISAS = 4 };
static int isas(const rf_gemm_isa *list[ISAS]) {
  int count = 0;
  list[count++] = &RF_GEMM_BASE;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list[count++] = &RF_GEMM_AVX2;
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    list[count++] = &RF_GEMM_AVX512;
  if (rf_isa_detect() >= RF_ISA_AMX) list[count++] = TILES;
#endif
  return count;
}

/* Numbers of threads. With sanitizers this test takes minutes, and one number shows wrong
 * accesses. */
#ifdef __SANITIZE_ADDRESS__
enum { FEWEST_THREADS = 2, MOST_THREADS = 2 };
#else
enum { FEWEST_THREADS = 1, MOST_THREADS = 3 };
#endif

/* Computes the product with the kernel for its number of rows. */
static void run_product(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *work) {
  if (g->m > 0 && g->n > 0) rf_gemm_choose(isa, g, g->m)->path(isa, g, threads, work);
}

enum { GUARD = 64 };
static void *guarded(size_t bytes) { /* A write past the end changes bytes that are checked. */
  size_t size = (bytes + 63) / 64 * 64 + GUARD;
  char *p = aligned_alloc(64, size);
  assert_non_null(p);
  memset(p, 0xcd, size);
  return p;
}
static void release(void *p, size_t bytes) {
  const unsigned char *end = (const unsigned char *)p;
  for (size_t i = bytes; i < (bytes + 63) / 64 * 64 + GUARD; i++) assert_int_equal(end[i], 0xcd);
  free(p);
}
static void *matrix(int64_t count, rf_dtype dtype) {
  size_t bytes = (size_t)count * (dtype == RF_BF16 ? 2 : 4);
  /* Exactly as large as needed, so that a sanitizer sees reads past the end. */
  void *p = malloc(bytes ? bytes : 1);
  assert_non_null(p);
  for (int64_t i = 0; i < count; i++) {
    if (dtype == RF_BF16) ((rf_bf16 *)p)[i] = rf_f32_to_bf16(draw());
    else ((float *)p)[i] = draw();
  }
  return p;
}
static float at(const void *p, rf_dtype dtype, int64_t i) {
  return dtype == RF_BF16 ? rf_bf16_to_f32(((const rf_bf16 *)p)[i]) : ((const float *)p)[i];
}

/* The value that this instruction set must give for element (i,j), starting from `acc`. */
static float expected(const rf_gemm_isa *isa, const rf_gemm *g, int64_t i, int64_t j, float acc) {
  if (!isa->tiles || (g->a_dtype == RF_F32 && g->b_dtype == RF_F32)) {
    for (int64_t p = 0; p < g->k; p++)
      acc = fmaf(at(g->a, g->a_dtype, i * g->a_row + p * g->a_step),
                 at(g->b, g->b_dtype, p * g->b_step + j * g->b_col), acc);
    return acc;
  }
  static float a[4200], b[4200];
  assert_true(g->k <= 4200);
  for (int64_t p = 0; p < g->k; p++) {
    a[p] = at(g->a, g->a_dtype, i * g->a_row + p * g->a_step);
    b[p] = at(g->b, g->b_dtype, p * g->b_step + j * g->b_col);
  }
  return tile_sum(a, b, g->k, g->a_dtype == RF_F32 ? 2 : 1, g->b_dtype == RF_F32 ? 2 : 1, acc, TILE_TRUE);
}

typedef struct shape {
  int64_t m, k, n;
} shape;

static bool only_tiles;
static void check(shape s, rf_dtype a_dtype, rf_dtype b_dtype, bool a_transposed, bool b_transposed,
                  bool accumulate) {
  void *a = matrix(s.m * s.k, a_dtype), *b = matrix(s.k * s.n, b_dtype), *before = matrix(s.m * s.n, RF_F32);
  float *want = malloc((size_t)(s.m * s.n) * 4 + 4), *sum = malloc((size_t)s.n * 4);
  rf_gemm g = {.m = s.m,
               .n = s.n,
               .k = s.k,
               .a = a,
               .a_row = a_transposed ? 1 : s.k,
               .a_step = a_transposed ? s.m : 1,
               .a_dtype = a_dtype,
               .b = b,
               .b_step = b_transposed ? 1 : s.n,
               .b_col = b_transposed ? s.k : 1,
               .b_dtype = b_dtype,
               .dtype = RF_F32,
               .ld = s.n,
               .accumulate = accumulate};
  const rf_gemm_isa *list[ISAS];
  int count = isas(list);
  for (int isa = 0; isa < count; isa++) {
    bool tiles = list[isa]->tiles && (a_dtype == RF_BF16 || b_dtype == RF_BF16);
    /* (f32 with tiles runs the same code as without) */
    if (only_tiles ? !tiles : list[isa]->tiles && !tiles) continue;
    for (int64_t e = 0; (isa == 0 || tiles) && e < s.m * s.n; e++)
      want[e] = expected(list[isa], &g, e / s.n, e % s.n, accumulate ? ((float *)before)[e] : 0.0f);
    for (int threads = FEWEST_THREADS; threads <= MOST_THREADS; threads++) {
      /* fmaf may be a library call on the base instruction set, which is slow. */
      if (list[isa] == &RF_GEMM_BASE && s.m * s.n * s.k > 400000 && threads != 2) continue;
      size_t u_bytes = (size_t)(s.m * s.n) * 4, work_bytes = rf_gemm_workspace(list[isa], &g, threads);
      g.u = guarded(u_bytes);
      g.read_later = threads == 2;
      void *work = guarded(work_bytes);
      if (accumulate) memcpy(g.u, before, u_bytes);
      run_product(list[isa], &g, threads, work);
      if (memcmp(g.u, want, u_bytes) != 0) {
        int64_t e = 0;
        while (((float *)g.u)[e] == want[e]) e++;
        fail_msg("%s m=%d k=%d n=%d threads=%d a=%d%s b=%d%s accumulate=%d: element (%d,%d) is %.9g, "
                 "expected %.9g",
                 list[isa]->name, (int)s.m, (int)s.k, (int)s.n, threads, a_dtype, a_transposed ? "T" : "",
                 b_dtype, b_transposed ? "T" : "", accumulate, (int)(e / s.n), (int)(e % s.n),
                 (double)((float *)g.u)[e], (double)want[e]);
      }
      release(work, work_bytes);
      release(g.u, u_bytes);
    }
  }
  free(sum);
  free(want);
  free(before);
  free(b);
  free(a);
}

/* All block sizes give the same bits, with exactly the workspace that they declare. */
static void blocks_change_no_bits(void **state) {
  (void)state;
  static const rf_blocks blocks[] = {
      {16, 1 << 12, 64},     {17, 5000, 65},         {100, 1 << 14, 96},          {320, 1500 << 10, 4096},
      {256, 1 << 20, 1024},  {768, 512 << 10, 8192}, {1 << 16, 1 << 12, 1 << 24}, {1 << 16, 1 << 30, 1 << 24},
      {16, 1 << 30, 1 << 24}};
  static const shape shapes[] = {{17, 300, 65}, {100, 513, 257}, {150, 700, 130}};
  const rf_gemm_isa *list[ISAS];
  int count = isas(list);
  unsigned turn = 0, different = 0;
  for (size_t i = 0; i < 3 * sizeof shapes / sizeof *shapes; i++) { /* NN, NT, TN */
    const shape s = shapes[i / 3];
    bool a_transposed = i % 3 == 2, b_transposed = i % 3 == 1;
    for (int half = 0; half < 2; half++) {
      rf_dtype dtype = half ? RF_BF16 : RF_F32;
      void *a = matrix(s.m * s.k, dtype), *b = matrix(s.k * s.n, dtype), *before = matrix(s.m * s.n, RF_F32);
      float *want = malloc((size_t)(s.m * s.n) * 4), *sum = malloc((size_t)s.n * 4),
            *want_sum = malloc((size_t)s.n * 4);
      rf_gemm g = {.m = s.m,
                   .n = s.n,
                   .k = s.k,
                   .a = a,
                   .a_row = a_transposed ? 1 : s.k,
                   .a_step = a_transposed ? s.m : 1,
                   .a_dtype = dtype,
                   .b = b,
                   .b_step = b_transposed ? 1 : s.n,
                   .b_col = b_transposed ? s.k : 1,
                   .b_dtype = dtype,
                   .dtype = RF_F32,
                   .ld = s.n};
      for (int isa = 0; isa < count; isa++) {
        /* f32 runs the same code there; the base kernels use the same blocks, slowly. */
        if (list[isa]->tiles || list[isa] == &RF_GEMM_BASE) continue;
        for (size_t c = 0; c <= sizeof blocks / sizeof *blocks; c++) { /* c == 0 is the default. */
          size_t u_bytes = (size_t)(s.m * s.n) * 4;
          int threads = c ? 1 + (int)(turn++ % 3) : 2;
          g.accumulate = (i + (size_t)half) % 2;
          g.sums_columns = a_transposed;
          g.column_sum = a_transposed ? sum : NULL;
          g.blocks = c ? blocks[c - 1] : (rf_blocks){0};
          size_t usual = 0, work_bytes = rf_gemm_workspace(list[isa], &g, threads);
          rf_gemm own = g;
          own.blocks = (rf_blocks){0};
          usual = rf_gemm_workspace(list[isa], &own, threads);
          different += work_bytes != usual;
          g.u = guarded(u_bytes);
          void *work = guarded(work_bytes);
          memcpy(g.u, before, u_bytes);
          run_product(list[isa], &g, threads, work);
          if (!c) {
            memcpy(want, g.u, u_bytes);
            memcpy(want_sum, sum, (size_t)s.n * 4);
          }
          if (memcmp(want, g.u, u_bytes) != 0)
            fail_msg("%s m=%d k=%d n=%d form %d threads=%d: other bits with blocks %d/%d/%d", list[isa]->name,
                     (int)s.m, (int)s.k, (int)s.n, (int)(i % 3), threads, (int)g.blocks.kc,
                     (int)g.blocks.a_bytes, (int)g.blocks.nc);
          if (a_transposed) assert_memory_equal(want_sum, sum, (size_t)s.n * 4);
          release(work, work_bytes);
          release(g.u, u_bytes);
        }
      }
      free(a);
      free(b);
      free(before);
      free(want);
      free(sum);
      free(want_sum);
    }
  }
  assert_true(different > 50 || count < 2); /* The blocks did differ. */
}

static void test_odd_shapes(void **state) {
  (void)state;
  static const int64_t m[] = {1, 2, 7, 12, 13, 100}, k[] = {1, 3, 64, 513}, n[] = {1, 5, 31, 33, 257};
  unsigned turn = 0;
  for (size_t i = 0; i < sizeof m / sizeof *m; i++) {
    for (size_t p = 0; p < sizeof k / sizeof *k; p++) {
      for (size_t j = 0; j < sizeof n / sizeof *n; j++) {
        shape s = {m[i], k[p], n[j]};
        /* Every packing, with alternating dtypes and accumulation. */
        for (unsigned kind = 0; kind < 4; kind++, turn++) {
          check(s, turn % 3 == 1 ? RF_BF16 : RF_F32, turn % 5 < 2 ? RF_BF16 : RF_F32, kind & 1, kind & 2,
                turn % 7 < 3);
        }
      }
    }
  }
}
static void test_all_dtypes_and_packings(void **state) {
  (void)state;
  static const shape s[] = {{1, 130, 96},  {3, 77, 70},  {6, 40, 33},
                            {16, 100, 64}, {17, 33, 65}, {50, 70, 49}};
  for (size_t i = 0; i < sizeof s / sizeof *s; i++) {
    for (unsigned bits = 0; bits < 32; bits++) {
      check(s[i], bits & 1 ? RF_BF16 : RF_F32, bits & 2 ? RF_BF16 : RF_F32, bits & 4, bits & 8, bits & 16);
    }
  }
}
/* Several blocks of rows, columns and k. */
static void test_many_blocks(void **state) {
  (void)state;
  static const shape s[] = {{1500, 40, 40}, {20, 1600, 50},  {30, 9, 4200},
                            {800, 600, 34}, {9, 1030, 2100}, {18, 1030, 2100}};
  for (size_t i = 0; i < sizeof s / sizeof *s; i++) {
    for (unsigned bits = 0; bits < 4; bits++)
      check(s[i], RF_F32, bits & 1 ? RF_BF16 : RF_F32, bits & 1, bits & 2, bits == 2);
  }
  /* several blocks of tiles, which are larger */
  static const shape of_tiles[] = {{400, 2100, 34}, {20, 4200, 70}, {700, 400, 40}};
  only_tiles = true;
  for (size_t i = 0; i < sizeof of_tiles / sizeof *of_tiles && rf_isa_detect() >= RF_ISA_AMX; i++)
    for (unsigned bits = 0; bits < 3; bits++)
      check(of_tiles[i], bits == 1 ? RF_F32 : RF_BF16, bits == 2 ? RF_F32 : RF_BF16, bits & 1, bits & 2,
            bits == 0);
  only_tiles = false;
}

/* The bits of a row do not depend on the number of other rows. */
static void test_rows_are_independent(void **state) {
  (void)state;
  enum { K = 700, N = 90, M = 60 };
  void *a = matrix(M * K, RF_F32), *b = matrix(K * N, RF_BF16);
  const rf_gemm_isa *list[ISAS];
  int count = isas(list);
  float *all = malloc(sizeof(float) * M * N), *few = malloc(sizeof(float) * M * N);
  for (int isa = 0; isa < count; isa++) {
    for (int64_t m = M; m >= 1; m = m > 20 ? m - 17 : m - 1) {
      rf_gemm g = {.m = m,
                   .n = N,
                   .k = K,
                   .a = a,
                   .a_row = K,
                   .a_step = 1,
                   .a_dtype = RF_F32,
                   .b = b,
                   .b_step = N,
                   .b_col = 1,
                   .b_dtype = RF_BF16,
                   .u = m == M ? all : few,
                   .dtype = RF_F32,
                   .ld = N};
      void *work = aligned_alloc(64, (rf_gemm_workspace(list[isa], &g, 2) + 63) / 64 * 64);
      run_product(list[isa], &g, 2, work);
      free(work);
      if (m < M) assert_memory_equal(few, all, (size_t)m * N * sizeof(float));
    }
  }
  free(few);
  free(all);
  free(b);
  free(a);
}

/* A fused epilogue gives the result of the separate operations on the rounded value. */
static void test_epilogues(void **state) {
  (void)state;
  static const shape shapes[] = {{5, 40, 50}, {40, 520, 45}, {1, 30, 64}, {70, 90, 96}};
  const rf_gemm_isa *list[ISAS];
  int count = isas(list);
  for (int c = 0; c < 4 * 2 * 4; c++) {
    shape s = shapes[c % 4];
    rf_dtype dtype = c / 4 % 2 ? RF_BF16 : RF_F32;
    rf_gemm_epilogue epilogue = (rf_gemm_epilogue)(c / 8);
    size_t bytes = (size_t)(s.m * s.n) * (dtype == RF_BF16 ? 2 : 4);
    void *a = matrix(s.m * s.k, dtype), *b = matrix(s.k * s.n, dtype), *bias = matrix(s.n, dtype),
         *side = matrix(s.m * s.n, dtype);
    rf_op op = {.attr = {.dropout = {.rate = 0.25f, .site = 11}}};
    rf_run_inputs run = {.seed = 7, .step = 3};
    rf_dropout drop = rf_dropout_of(&(rf_call){.op = &op, .run = &run});
    rf_gemm g = {.m = s.m,
                 .n = s.n,
                 .k = s.k,
                 .a = a,
                 .a_row = s.k,
                 .a_step = 1,
                 .a_dtype = dtype,
                 .b = b,
                 .b_step = s.n,
                 .b_col = 1,
                 .b_dtype = dtype,
                 .bias = epilogue == RF_GEMM_GELU_BWD ? NULL : bias,
                 .bias_dtype = dtype,
                 .epilogue = epilogue,
                 .side = side,
                 .dtype = dtype,
                 .ld = s.n,
                 .read_later = true,
                 .drop = drop,
                 .first_token = 1000};
    void *first_u = NULL, *first_out = NULL;
    for (int isa = 0; isa < count; isa++) {
      void *u = guarded(bytes), *out = guarded(bytes),
           *work = aligned_alloc(64, (rf_gemm_workspace(list[isa], &g, 2) + 63) / 64 * 64);
      g.u = u;
      g.out = out;
      run_product(list[isa], &g, 2, work);
      free(work);
      for (int64_t e = 0; e < s.m * s.n; e++) {
        int64_t i = e / s.n, j = e % s.n;
        float v = expected(list[isa], &g, i, j, 0.0f) + (g.bias ? at(bias, dtype, j) : 0.0f),
              x = dtype == RF_BF16 ? rf_bf16_to_f32(rf_f32_to_bf16(v)) : v, y = x, w = at(side, dtype, e);
        assert_true(at(u, dtype, e) == x);
        if (epilogue == RF_GEMM_PLAIN) continue;
        float wide[RF_LANES] = {0};
        if (epilogue == RF_GEMM_GELU) {
          rf_v16_store(wide, rf_v16_gelu_tanh(rf_v16_set1(x)));
          y = wide[0];
        } else if (epilogue == RF_GEMM_GELU_BWD) {
          rf_v16_store(wide, rf_v16_gelu_tanh_grad(rf_v16_set1(w)));
          y = x * wide[0];
        } else {
          uint32_t word[4];
          rf_philox(rf_key(7, 3, 11), (uint64_t)(1000 + i), (uint64_t)j / 4, word);
          y = w + (rf_uniform(word[j % 4]) >= 0.25f ? x * (1.0f / 0.75f) : 0.0f);
        }
        if (dtype == RF_BF16) y = rf_bf16_to_f32(rf_f32_to_bf16(y));
        if (at(out, dtype, e) != y) {
          fail_msg("%s epilogue %d dtype %d: element %d is %.9g, expected %.9g", list[isa]->name,
                   (int)epilogue, (int)dtype, (int)e, (double)at(out, dtype, e), (double)y);
        }
      }
      if (isa == 0) {
        first_u = u;
        first_out = out;
        continue;
      }
      bool tiles = list[isa]->tiles && dtype == RF_BF16;
      if (!tiles) assert_memory_equal(u, first_u, bytes);
      if (!tiles && epilogue != RF_GEMM_PLAIN) assert_memory_equal(out, first_out, bytes);
      release(u, bytes);
      release(out, bytes);
    }
    release(first_u, bytes);
    release(first_out, bytes);
    free(side);
    free(bias);
    free(b);
    free(a);
  }
}

/* Column sums of B, taken while B is packed, are plain additions in ascending k. */
static void test_column_sums(void **state) {
  (void)state;
  const rf_gemm_isa *list[ISAS];
  int count = isas(list);
  for (int c = 0; c < 18; c++) { /* The last two have nothing to sum. */
    int64_t m = c & 1 ? 900 : 10, k = c >= 16 ? 0 : c & 2 ? 1200 : 37, n = c & 4 ? 70 : 33;
    bool accumulate = c & 8;
    void *a = matrix(m * k, RF_F32), *b = matrix(k * n, c & 1 ? RF_BF16 : RF_F32);
    rf_dtype b_dtype = c & 1 ? RF_BF16 : RF_F32;
    float *u = malloc((size_t)(m * n) * 4), *sum = malloc((size_t)n * 4);
    for (int isa = count > 1 ? 1 : 0; isa < count; isa++) {
      for (int64_t j = 0; j < n; j++) sum[j] = (float)j * 0.3f;
      rf_gemm g = {.m = m,
                   .n = n,
                   .k = k,
                   .a = a,
                   .a_row = 1,
                   .a_step = m,
                   .a_dtype = RF_F32,
                   .b = b,
                   .b_step = n,
                   .b_col = 1,
                   .b_dtype = b_dtype,
                   .u = u,
                   .dtype = RF_F32,
                   .ld = n,
                   .sums_columns = true,
                   .column_sum = sum,
                   .column_sum_accumulate = accumulate};
      void *work = aligned_alloc(64, (rf_gemm_workspace(list[isa], &g, 3) + 63) / 64 * 64);
      run_product(list[isa], &g, 3, work);
      free(work);
      for (int64_t j = 0; j < n; j++) {
        float want = accumulate ? (float)j * 0.3f : 0.0f;
        for (int64_t p = 0; p < k; p++) want += at(b, b_dtype, p * n + j);
        assert_true(sum[j] == want);
      }
    }
    free(sum);
    free(u);
    free(b);
    free(a);
  }
}

/* ---- tiles ----------------------------------------------------------------------------------- */

static bool same_float(float x, float y) { return (x != x && y != y) || memcmp(&x, &y, sizeof x) == 0; }
static uint32_t word(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
}
/* Kinds of numbers that a bf16 is drawn from. */
typedef enum numbers { ORDINARY, CANCELLING, SUBNORMAL, LARGE, ANY_BITS, NUMBERS } numbers;
static float number(numbers kind, int64_t i) {
  float sign = word() & 1 ? -1.0f : 1.0f;
  switch (kind) {
  case CANCELLING:
    return (i / 2 % 2 ? -1.0f : 1.0f) *
           (1.0f + 0x1p-6f * (float)(word() % 3)); /* The sum keeps only the rounding errors. */
  case SUBNORMAL: return sign * ldexpf(1.0f + (float)(word() % 128) / 128, -60 - (int)(word() % 75));
  case LARGE: return sign * ldexpf(1.0f, 50 + (int)(word() % 16));
  case ANY_BITS: return rf_bf16_to_f32((rf_bf16)word());
  default: return draw();
  }
}

/* The hardware agrees with tile_sum on all kinds of numbers, and every planted fault makes them
 * differ. */
static void test_tiles_are_their_definition(void **state) {
  (void)state;
  enum { M = 33, N = RF_PANEL_LANES + 3, K = 165 };
  static const int64_t few[] = {1, 2, 3, 16, 17, 33};
  if (rf_isa_detect() < RF_ISA_AMX) skip_for("no matrix tiles on this CPU");
  int differ[TILE_FAULTS] = {0};
  for (int kind = 0; kind < NUMBERS; kind++) {
    for (int pieces = 0; pieces < 3; pieces++) { /* pieces of no operand, of A, of B */
      rf_dtype a_dtype = pieces == 1 ? RF_F32 : RF_BF16, b_dtype = pieces == 2 ? RF_F32 : RF_BF16;
      void *a = matrix(M * K, a_dtype), *b = matrix(K * N, b_dtype);
      float u[M * N], row[K], column[K];
      for (int64_t i = 0; i < M * K; i++) {
        float x = number((numbers)kind, i % K);
        if (a_dtype == RF_BF16) ((rf_bf16 *)a)[i] = rf_f32_to_bf16(x);
        else
          ((float *)a)[i] =
              kind == LARGE || kind == ANY_BITS ? x : x * (1.0f + 0x1p-20f * (float)(word() % 4096));
      }
      for (int64_t i = 0; i < K * N; i++) {
        float x = number((numbers)kind, i / N);
        if (b_dtype == RF_BF16) ((rf_bf16 *)b)[i] = rf_f32_to_bf16(x);
        else
          ((float *)b)[i] =
              kind == LARGE || kind == ANY_BITS ? x : x * (1.0f + 0x1p-20f * (float)(word() % 4096));
      }
      rf_gemm g = {.m = M,
                   .n = N,
                   .k = K,
                   .a = a,
                   .a_row = K,
                   .a_step = 1,
                   .a_dtype = a_dtype,
                   .b = b,
                   .b_step = N,
                   .b_col = 1,
                   .b_dtype = b_dtype,
                   .u = u,
                   .dtype = RF_F32,
                   .ld = N};
      void *work = aligned_alloc(64, (rf_gemm_workspace(TILES, &g, 2) + 63) / 64 * 64);
      run_product(TILES, &g, 2, work);
      free(work);
      rf_panels panels = {.inner = K, .parts = 1, .part = {{rf_quant_type_of(RF_Q_BF16), N}}};
      char *packed = aligned_alloc(64, (size_t)(rf_panels_bytes(&panels) + 63) / 64 * 64);
      for (int64_t p = 0; b_dtype == RF_BF16 && p < rf_panels_count(&panels); p++) {
        rf_panel panel = rf_panels_at(&panels, p);
        static rf_bf16 output[RF_PANEL_LANES][K];
        const void *lane[RF_PANEL_LANES] = {NULL};
        for (int i = 0; i < panel.used; i++) {
          for (int k = 0; k < K; k++) output[i][k] = ((rf_bf16 *)b)[k * N + panel.first + i];
          lane[i] = output[i];
        }
        rf_panel_pack(&panel, K, lane, packed + panel.offset);
      }
      /* Fewer rows, from panels, give the same bits. */
      for (size_t f = 0; b_dtype == RF_BF16 && f < sizeof few / sizeof *few; f++) {
        float again[M * N];
        rf_gemm h = g;
        h.m = few[f];
        h.b = packed;
        h.panels = &panels;
        h.u = again;
        work = aligned_alloc(64, (rf_gemm_workspace(TILES, &h, 2) + 63) / 64 * 64);
        run_product(TILES, &h, 2, work);
        free(work);
        for (int64_t e = 0; e < few[f] * N; e++)
          if (!same_float(again[e], u[e]))
            fail_msg("numbers %d, %d rows of a panel: element (%d,%d) is %.9g, expected %.9g", kind,
                     (int)few[f], (int)(e / N), (int)(e % N), (double)again[e], (double)u[e]);
      }
      free(packed);
      for (int64_t e = 0; e < M * N; e++) {
        for (int p = 0; p < K; p++) {
          row[p] = at(a, a_dtype, e / N * K + p);
          column[p] = at(b, b_dtype, p * N + e % N);
        }
        for (int fault = 0; fault < TILE_FAULTS; fault++) {
          float want =
              tile_sum(row, column, K, pieces == 1 ? 2 : 1, pieces == 2 ? 2 : 1, 0.0f, (tile_fault)fault);
          bool same = same_float(u[e], want);
          differ[fault] += !same;
          if (fault == TILE_TRUE && !same)
            fail_msg("numbers %d pieces %d: element (%d,%d) is %.9g, expected %.9g", kind, pieces,
                     (int)(e / N), (int)(e % N), (double)u[e], (double)want);
        }
      }
      free(b);
      free(a);
    }
  }
  for (int fault = 1; fault < TILE_FAULTS; fault++)
    if (!differ[fault]) fail_msg("planted fault %d does not show", fault);
}

/* f32 values that are exact in bf16 give the bits of the bf16 product. So the dtype of a weight
 * does not matter if its values are the same. */
static void test_pieces_of_bf16_are_bf16(void **state) {
  (void)state;
  enum { M = 40, N = 70, K = 100 };
  if (rf_isa_detect() < RF_ISA_AMX) skip_for("no matrix tiles on this CPU");
  rf_bf16 *a = matrix(M * K, RF_BF16), *b = matrix(K * N, RF_BF16);
  float wide[M * K], u[2][M * N];
  for (int i = 0; i < M * K; i++) wide[i] = rf_bf16_to_f32(a[i]);
  for (int d = 0; d < 2; d++) {
    rf_gemm g = {.m = M,
                 .n = N,
                 .k = K,
                 .a = d ? (void *)wide : (void *)a,
                 .a_row = K,
                 .a_step = 1,
                 .a_dtype = d ? RF_F32 : RF_BF16,
                 .b = b,
                 .b_step = N,
                 .b_col = 1,
                 .b_dtype = RF_BF16,
                 .u = u[d],
                 .dtype = RF_F32,
                 .ld = N};
    void *work = aligned_alloc(64, (rf_gemm_workspace(TILES, &g, 1) + 63) / 64 * 64);
    run_product(TILES, &g, 1, work);
    free(work);
  }
  assert_memory_equal(u[0], u[1], sizeof u[0]);
  free(b);
  free(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_change_no_bits),
      cmocka_unit_test(test_odd_shapes),
      cmocka_unit_test(test_all_dtypes_and_packings),
      cmocka_unit_test(test_many_blocks),
      cmocka_unit_test(test_rows_are_independent),
      cmocka_unit_test(test_epilogues),
      cmocka_unit_test(test_column_sums),
      cmocka_unit_test(test_tiles_are_their_definition),
      cmocka_unit_test(test_pieces_of_bf16_are_bf16),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
