/* gemm_bench.c - times matrix products next to the ceilings of the machine at the same moment.
 *   gemm_bench [threads] [repeats] [filter] [cpu]
 * With `cpu`, time is the processor time of the process divided by the threads. With one thread,
 * this gives the speed of a kernel even if other programs use the machine. (With two threads,
 * waiting for each other counts.)
 * Every timed call is between two bursts on threads pinned in the same way. A burst is fused
 * multiply-adds in registers, tile products if the kernel uses tiles (half of them with an f32
 * operand), or plain reads for products with few rows. The fraction is the call's rate divided by
 * the mean of the two bursts. The program prints median [min..max]. */
#define _GNU_SOURCE
#include "backend/cpu/fast.h"
#include "backend/cpu/peaks.h"

#include <immintrin.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int threads = 2, repeats = 11;
static bool cpu_time;
static double now(void) {
  struct timespec t;
  clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return ((double)t.tv_sec + 1e-9 * (double)t.tv_nsec) / (cpu_time ? threads : 1);
}

static void run_product(const rf_gemm_isa *isa, const rf_gemm *g, int workers, void *work) {
  const rf_gemm_kernel *few = rf_fast_few_kernel(isa, g);
  if (few && g->m <= few->inner.max_rows) few->path(isa, g, workers, work);
  else rf_gemm_choose(isa, g, g->m)->path(isa, g, workers, work);
}

/* Twenty-four chains of 512 bits, or twelve of 256, hide the latency of two ports. Inline assembly
 * and named variables keep the compiler from folding chains or storing them in memory. EACH(X)
 * expands to X(0) X(1) X(2) ... X(11). */
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
static double fma_burst(double seconds) {
  double flops = 0.0, start = now();
#pragma omp parallel num_threads(threads) reduction(+ : flops)
  {
    long rounds = 0;
    do {
#if defined(__AVX512F__)
#define DECLARE(i) __m512 r##i = _mm512_setzero_ps(), s##i = r##i;
#define STEP(i) \
  __asm__ volatile("vfmadd231ps %2, %2, %0\n\tvfmadd231ps %2, %2, %1" : "+v"(r##i), "+v"(s##i) : "v"(x));
      __m512 x = _mm512_setzero_ps();
      enum { STEPS = 4000 };
#else
#define DECLARE(i) __m256 r##i = _mm256_setzero_ps();
#define STEP(i) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(r##i) : "v"(x));
      __m256 x = _mm256_setzero_ps();
      enum { STEPS = 16000 };
#endif
      EACH(DECLARE)
      for (int n = 0; n < STEPS; n++) {
        EACH(STEP)
      }
      rounds++;
    } while (now() - start < seconds);
    flops += (double)rounds * 4000.0 * 24.0 * 32.0;
  }
  return flops / (now() - start);
}

static float *read_buffer;
enum { READ_BYTES = 1 << 30 };
static double read_burst(void) { /* Reads another quarter of the buffer each time. */
  static int part;
  const float *from = read_buffer + (size_t)(part++ % 4) * (READ_BYTES / 16);
  int64_t count = READ_BYTES / 16;
  float total = 0.0f;
  double start = now();
#pragma omp parallel num_threads(threads) reduction(+ : total)
  {
    int64_t begin = count / threads * omp_get_thread_num(), end = begin + count / threads;
#if defined(__AVX512F__)
    __m512 s[8];
    for (int i = 0; i < 8; i++) s[i] = _mm512_setzero_ps();
    for (int64_t at = begin; at < end; at += 128) {
      for (int i = 0; i < 8; i++) s[i] = _mm512_add_ps(s[i], _mm512_load_ps(from + at + 16 * i));
    }
    for (int i = 0; i < 8; i++) total += _mm512_reduce_add_ps(s[i]);
#else
    for (int64_t at = begin; at < end; at++) total += from[at];
#endif
  }
  double seconds = now() - start;
  return total == 12345.0f ? 0.0 : (double)count * 4.0 / seconds;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static void print_row(const char *name, double *fraction, double *rate, const char *unit) {
  qsort(fraction, (size_t)repeats, sizeof *fraction, by_value);
  qsort(rate, (size_t)repeats, sizeof *rate, by_value);
  printf("%-58s %5.1f %% [%5.1f..%5.1f]  %7.1f %s\n", name, 100.0 * fraction[repeats / 2],
         100.0 * fraction[0], 100.0 * fraction[repeats - 1], rate[repeats / 2] * 1e-9, unit);
  fflush(stdout);
}

static void *pages(size_t bytes) {
  void *p;
  rf_error error;
  if (rf_pages_map(bytes, &p, NULL, &error) != RAFTER_OK) {
    fprintf(stderr, "%s\n", error.message);
    exit(1);
  }
  return p;
}
static void fill(void *p, int64_t count, rf_dtype dtype) {
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < count; i++) {
    float x = (float)((uint32_t)(i * 2654435761u) >> 20) * 0x1p-12f - 0.5f;
    if (dtype == RF_BF16) ((rf_bf16 *)p)[i] = rf_f32_to_bf16(x);
    else ((float *)p)[i] = x;
  }
}

typedef struct item {
  const char *name;
  int64_t m, k, n;
  rf_dtype a, b;
  bool a_transposed, b_transposed, accumulate;
  rf_gemm_epilogue epilogue;
} item;
static const item items[] = {
    {"2048^3 f32", 2048, 2048, 2048, RF_F32, RF_F32, 0, 0, 0, 0},
    {"2048^3 bf16 weights", 2048, 2048, 2048, RF_F32, RF_BF16, 0, 0, 0, 0},
    {"4096^3 f32", 4096, 4096, 4096, RF_F32, RF_F32, 0, 0, 0, 0},
    {"4096^3 bf16 weights", 4096, 4096, 4096, RF_F32, RF_BF16, 0, 0, 0, 0},
    {"512x2048x5632 f32", 512, 2048, 5632, RF_F32, RF_F32, 0, 0, 0, 0},
    {"512x2048x5632 bf16 weights", 512, 2048, 5632, RF_F32, RF_BF16, 0, 0, 0, 0},
    {"1024^3 f32", 1024, 1024, 1024, RF_F32, RF_F32, 0, 0, 0, 0},
    {"1024^3 bf16 weights", 1024, 1024, 1024, RF_F32, RF_BF16, 0, 0, 0, 0},
    {"1024x768x3072 f32 (up)", 1024, 768, 3072, RF_F32, RF_F32, 0, 0, 0, 0},
    {"1024x768x3072 f32 gelu", 1024, 768, 3072, RF_F32, RF_F32, 0, 0, 0, RF_GEMM_GELU},
    {"1024x3072x768 f32 residual+dropout", 1024, 3072, 768, RF_F32, RF_F32, 0, 0, 0, RF_GEMM_RESIDUAL},
    {"1024x768x768 f32", 1024, 768, 768, RF_F32, RF_F32, 0, 0, 0, 0},
    {"1024x3072x768 f32 (dx of up: B transposed)", 1024, 3072, 768, RF_F32, RF_F32, 0, 1, 0, 0},
    {"768x1024x3072 f32 (dw: A transposed, accumulate)", 768, 1024, 3072, RF_F32, RF_F32, 1, 0, 1, 0},
    {"1024x768x3072 bf16 all", 1024, 768, 3072, RF_BF16, RF_BF16, 0, 0, 0, RF_GEMM_GELU},
    {"768x1024x3072 bf16 (dw)", 768, 1024, 3072, RF_BF16, RF_BF16, 1, 0, 1, 0},
    {"320x768x50257 f32 (head chunk, tied)", 320, 768, 50257, RF_F32, RF_F32, 0, 1, 0, 0},
    {"320x50257x768 f32 (head dx)", 320, 50257, 768, RF_F32, RF_F32, 0, 0, 0, 0},
    {"50257x320x768 f32 (head dw)", 50257, 320, 768, RF_F32, RF_F32, 1, 0, 1, 0},
    {"64x768x3072 f32", 64, 768, 3072, RF_F32, RF_F32, 0, 0, 0, 0},
    {"32x2048x5632 bf16", 32, 2048, 5632, RF_F32, RF_BF16, 0, 0, 0, 0},
    {"4096^3 bf16 all", 4096, 4096, 4096, RF_BF16, RF_BF16, 0, 0, 0, 0},
    {"512x2048x5632 bf16 all", 512, 2048, 5632, RF_BF16, RF_BF16, 0, 0, 0, 0},
    {"1024x3072x768 bf16 residual+dropout", 1024, 3072, 768, RF_BF16, RF_BF16, 0, 0, 0, RF_GEMM_RESIDUAL},
    {"1024x3072x768 bf16 (dx of up: B transposed)", 1024, 3072, 768, RF_BF16, RF_BF16, 0, 1, 0, 0},
    {"512x768x50257 bf16 (head chunk, tied)", 512, 768, 50257, RF_BF16, RF_BF16, 0, 1, 0, 0},
    {"512x50257x768 f32 x bf16 (head dx)", 512, 50257, 768, RF_F32, RF_BF16, 0, 0, 0, 0},
    {"50257x512x768 f32 x bf16 (head dw)", 50257, 512, 768, RF_F32, RF_BF16, 1, 0, 1, 0},
};

/* The FLOP/s that this product cannot exceed. */
static double ceiling_burst(const rf_gemm_isa *isa, const item *w, double seconds) {
  if (!isa->tiles || (w->a != RF_BF16 && w->b != RF_BF16)) return fma_burst(seconds);
  return rf_peak_flops(RF_BF16, RF_ISA_AMX, threads, seconds) / (w->a == w->b ? 1 : 2);
}

static void bench_products(const rf_gemm_isa *isa, const char *filter) {
  double *fraction = calloc((size_t)repeats, sizeof(double)), *rate = calloc((size_t)repeats, sizeof(double));
  for (size_t t = 0; t < sizeof items / sizeof *items; t++) {
    const item *w = &items[t];
    char name[128];
    bool tiles = isa->tiles && (w->a == RF_BF16 || w->b == RF_BF16);
    snprintf(name, sizeof name, "%s %s", tiles ? isa->tiles->name : isa->name, w->name);
    if ((isa->tiles && !tiles) || (filter && !strstr(name, filter))) continue;
    rf_dtype dtype = w->accumulate ? RF_F32 : w->a;
    size_t c_bytes = (size_t)(w->m * w->n) * 4;
    void *a = pages((size_t)(w->m * w->k) * 4), *b = pages((size_t)(w->k * w->n) * 4), *u = pages(c_bytes),
         *out = pages(c_bytes), *side = pages(c_bytes);
    fill(a, w->m * w->k, w->a);
    fill(b, w->k * w->n, w->b);
    fill(side, w->m * w->n, dtype);
    rf_gemm g = {.m = w->m,
                 .n = w->n,
                 .k = w->k,
                 .a = a,
                 .a_row = w->a_transposed ? 1 : w->k,
                 .a_step = w->a_transposed ? w->m : 1,
                 .a_dtype = w->a,
                 .b = b,
                 .b_step = w->b_transposed ? 1 : w->n,
                 .b_col = w->b_transposed ? w->k : 1,
                 .b_dtype = w->b,
                 .epilogue = w->epilogue,
                 .u = w->epilogue == RF_GEMM_PLAIN ? u : NULL,
                 .out = out,
                 .side = side,
                 .dtype = dtype,
                 .ld = w->n,
                 .accumulate = w->accumulate,
                 .drop = rf_dropout_of(&(rf_call){.op = &(rf_op){.attr.dropout.rate = 0.1f},
                                                  .run = &(rf_run_inputs){.seed = 1}})};
    size_t work_bytes = rf_gemm_workspace(isa, &g, threads);
    void *work = pages(work_bytes + 64);
    double flops = 2.0 * (double)w->m * (double)w->n * (double)w->k, before = 0.0;
    for (int r = -2; r < repeats; r++) {
      double start = now();
      int calls = 0;
      do {
        run_product(isa, &g, threads, work);
        calls++;
      } while (r >= 0 && now() - start < 0.01);
      double seconds = (now() - start) / calls, after = ceiling_burst(isa, w, 0.02);
      if (r >= 0) {
        rate[r] = flops / seconds;
        fraction[r] = rate[r] / (0.5 * (before + after));
      }
      before = after;
    }
    print_row(name, fraction, rate, "GFLOP/s");
    rf_pages_unmap(work, work_bytes + 64);
    rf_pages_unmap(side, c_bytes);
    rf_pages_unmap(out, c_bytes);
    rf_pages_unmap(u, c_bytes);
    rf_pages_unmap(b, (size_t)(w->k * w->n) * 4);
    rf_pages_unmap(a, (size_t)(w->m * w->k) * 4);
  }
  free(rate);
  free(fraction);
}

/* Products with few rows, over a set of weights much larger than any cache. */
static void bench_streams(const rf_gemm_isa *isa, const char *filter) {
  static const int64_t rows[] = {1, 2, 4, 8, 16};
  enum { K = 2048, N = 5632 };
  double *fraction = calloc((size_t)repeats, sizeof(double)), *rate = calloc((size_t)repeats, sizeof(double));
  size_t set_bytes = (size_t)640 << 20;
  char *set = NULL;
  for (unsigned kind = 0; kind < 4; kind++) {
    for (size_t t = 0; t < sizeof rows / sizeof *rows; t++) {
      rf_dtype dtype = kind & 1 ? RF_BF16 : RF_F32;
      char name[128];
      snprintf(name, sizeof name, "%s stream M=%d %s %s", isa->name, (int)rows[t],
               dtype == RF_BF16 ? "bf16" : "f32", kind & 2 ? "(N,K)" : "(K,N)");
      if (filter && !strstr(name, filter)) continue;
      if (!set) {
        set = pages(set_bytes);
        memset(set, 0, set_bytes);
        read_buffer = pages(READ_BYTES);
        memset(read_buffer, 0, READ_BYTES);
      }
      size_t one = (size_t)K * N * (dtype == RF_BF16 ? 2 : 4);
      float *a = pages(16 * K * 4), *u = pages(16 * N * 4);
      rf_gemm g = {.m = rows[t],
                   .n = N,
                   .k = K,
                   .a = a,
                   .a_row = K,
                   .a_step = 1,
                   .b_step = kind & 2 ? 1 : N,
                   .b_col = kind & 2 ? K : 1,
                   .b_dtype = dtype,
                   .u = u,
                   .dtype = RF_F32,
                   .ld = N};
      size_t work_bytes = rf_gemm_workspace(isa, &g, threads);
      void *work = pages(work_bytes + 64);
      double before = 0.0;
      for (int r = -1; r < repeats; r++) {
        double start = now();
        size_t done = 0;
        for (; done + one <= set_bytes; done += one) {
          g.b = set + done;
          run_product(isa, &g, threads, work);
        }
        double seconds = now() - start, after = read_burst();
        if (r >= 0) {
          rate[r] = (double)done / seconds;
          fraction[r] = rate[r] / (0.5 * (before + after));
        }
        before = after;
      }
      print_row(name, fraction, rate, "GB/s");
      rf_pages_unmap(work, work_bytes + 64);
      rf_pages_unmap(u, 16 * N * 4);
      rf_pages_unmap(a, 16 * K * 4);
    }
  }
  free(rate);
  free(fraction);
}

/* Packed matrices (formats/panels.h): few rows over a set much larger than the caches, and many
 * rows once. Up to four rows (sixteen on tiles, which take bf16 rows) are compared with reading,
 * more rows with multiply-adds. */
static void bench_panels(const rf_gemm_isa *isa, const char *filter) {
  static const int types[] = {RF_Q_F32,  RF_Q_BF16, RF_Q_F16,  RF_Q_Q8_0, RF_Q_Q4_0, RF_Q_Q4_1,
                              RF_Q_Q5_0, RF_Q_Q5_1, RF_Q_Q4_K, RF_Q_Q5_K, RF_Q_Q6_K};
  static const int64_t rows[] = {1, 4, 16, 512};
  enum { K = 2048, N = 5632 };
  double *fraction = calloc((size_t)repeats, sizeof(double)), *rate = calloc((size_t)repeats, sizeof(double));
  size_t set_bytes = (size_t)640 << 20;
  char *set = NULL;
  for (size_t y = 0; y < sizeof types / sizeof *types; y++) {
    if (isa->tiles && types[y] != RF_Q_BF16) continue;
    rf_panels panels = {.inner = K, .parts = 1, .part = {{rf_quant_type_of(types[y]), N}}};
    const rf_quant_type *type = panels.part[0].type;
    size_t one = (size_t)rf_panels_bytes(&panels);
    bool filled = false;
    const bool coded = rf_panels_have_codes(&panels);
    for (size_t t = 0; t < (coded ? 2 : 1) * sizeof rows / sizeof *rows; t++) {
      const int64_t m = rows[t % 4];
      const bool fast = t >= 4; /* with activations in 8 bits */
      char name[128];
      snprintf(name, sizeof name, "%s packed M=%d %s%s", isa->tiles ? isa->tiles->name : isa->name, (int)m,
               type->name, fast ? " fast" : "");
      if (filter && !strstr(name, filter)) continue;
      if (!set) set = pages(set_bytes);
      if (!read_buffer) memset(read_buffer = pages(READ_BYTES), 0, READ_BYTES);
      if (!filled) { /* Every row of every panel has the same 2048 values. */
        float values[K];
        char *stored = pages(K * sizeof(float));
        const void *row[RF_PANEL_LANES];
        fill(values, K, RF_F32);
        type->quantize(values, K / type->values, stored);
        for (int i = 0; i < RF_PANEL_LANES; i++) row[i] = stored;
        for (int64_t p = 0; p < rf_panels_count(&panels); p++) {
          rf_panel panel = rf_panels_at(&panels, p);
          rf_panel_pack(&panel, K, row, set + panel.offset);
        }
        for (size_t done = one; done + one <= set_bytes; done += one) memcpy(set + done, set, one);
        rf_pages_unmap(stored, K * sizeof(float));
        filled = true;
      }
      float *a = pages(512 * K * 4), *u = pages((size_t)512 * N * 4);
      item like = {.a = isa->tiles ? RF_BF16 : RF_F32, .b = isa->tiles ? RF_BF16 : RF_F32};
      fill(a, m * K, like.a);
      rf_gemm g = {.m = m,
                   .fast = fast,
                   .n = N,
                   .k = K,
                   .a = a,
                   .a_row = K,
                   .a_step = 1,
                   .a_dtype = like.a,
                   .panels = &panels,
                   .u = u,
                   .dtype = RF_F32,
                   .ld = N};
      size_t work_bytes = rf_gemm_workspace(isa, &g, threads);
      void *work = pages(work_bytes + 64);
      double before = 0.0;
      bool reads = m <= (isa->tiles ? 16 : 4);
      for (int r = -1; r < repeats; r++) {
        double start = now();
        size_t done = 0;
        for (; done + one <= (m > 16 ? 4 * one : set_bytes); done += one) {
          g.b = set + done;
          run_product(isa, &g, threads, work);
        }
        double seconds = now() - start, after = reads ? read_burst() : ceiling_burst(isa, &like, 0.03);
        double done_work = reads ? (double)done : 2.0 * (double)m * K * N * (double)(done / one);
        if (r >= 0) {
          rate[r] = done_work / seconds;
          fraction[r] = rate[r] / (0.5 * (before + after));
        }
        before = after;
      }
      print_row(name, fraction, rate, reads ? "GB/s" : "GFLOP/s");
      rf_pages_unmap(work, work_bytes + 64);
      rf_pages_unmap(u, (size_t)512 * N * 4);
      rf_pages_unmap(a, 512 * K * 4);
    }
  }
  free(rate);
  free(fraction);
}

int main(int argc, char **argv) {
  if (argc > 1) threads = atoi(argv[1]);
  if (argc > 2) repeats = atoi(argv[2]);
  const char *filter = argc > 3 ? argv[3] : NULL;
  cpu_time = argc > 4;
  if (threads < 1 || repeats < 1) return 2;
#pragma omp parallel num_threads(threads)
  {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(omp_get_thread_num(), &set);
    sched_setaffinity(0, sizeof set, &set);
  }
  printf("%d threads, FMA ceiling %.1f GFLOP/s\n", threads, fma_burst(0.2) * 1e-9);
  if (rf_isa_detect() >= RF_ISA_AMX) {
    printf("tile ceiling %.1f GFLOP/s\n", rf_peak_flops(RF_BF16, RF_ISA_AMX, threads, 0.2) * 1e-9);
    bench_products(&RF_GEMM_AMX, filter);
    bench_panels(&RF_GEMM_AMX, filter);
  }
  const rf_gemm_isa *list[] = {&RF_GEMM_AVX512, &RF_GEMM_AVX2};
  for (int i = __builtin_cpu_supports("avx512bw") ? 0 : 1; i < 2; i++) {
    bench_products(list[i], filter);
    bench_streams(list[i], filter);
    bench_panels(list[i], filter);
  }
  return 0;
}
