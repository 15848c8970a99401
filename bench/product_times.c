/* product_times.c - times bf16 products for bench/peers/products.py, which asks for one at a time.
 *   product_times THREADS
 * Each line of the standard input is one product:
 *   M N K A_TRANSPOSED B_TRANSPOSED PACKED A_F32 C_F32 SECONDS
 * C (M,N) = A (M,K) B (K,N). A and B are row-major, or column-major if transposed. PACKED: B is
 * stored in panels (formats/panels.h). A_F32 and C_F32: this operand is f32 instead of bf16. The
 * program repeats the product for SECONDS, and prints the median seconds of one call. A product
 * keeps its memory until another one is asked for. */
#define _GNU_SOURCE
#include "backend/cpu/gemm.h"

#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALLS_MAX = 4096 };

typedef struct product {
  long m, n, k;
  int a_transposed, b_transposed, packed, a_f32, c_f32;
  double seconds;
} product;

static int threads;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
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
  for (int64_t i = 0; i < count; i++) {
    float x = (float)((uint32_t)(i * 2654435761u) >> 20) * 0x1p-12f - 0.5f;
    if (dtype == RF_BF16) ((rf_bf16 *)p)[i] = rf_f32_to_bf16(x);
    else ((float *)p)[i] = x;
  }
}

static double median_call(const rf_gemm *g, double seconds, void *work) {
  static double took[CALLS_MAX];
  const rf_gemm_kernel *kernel = rf_gemm_choose(&RF_GEMM_AMX, g, g->m);
  int calls = 0;
  for (double start = now(), before = start; calls < CALLS_MAX && (calls < 3 || before - start < seconds);) {
    kernel->path(kernel->isa, g, threads, work);
    double after = now();
    took[calls++] = after - before;
    before = after;
  }
  qsort(took, (size_t)calls, sizeof *took, by_value);
  return took[calls / 2];
}

/* A product and its memory: A, B, C and workspace. */
enum { MEMORIES = 4 };
typedef struct ready {
  product of;
  rf_gemm g;
  rf_panels panels;
  void *memory[MEMORIES];
  size_t bytes[MEMORIES];
} ready;

static void prepare(const product *p, ready *r) {
  for (int i = 0; i < MEMORIES; i++)
    if (r->memory[i]) rf_pages_unmap(r->memory[i], r->bytes[i]);
  r->of = *p;
  const rf_dtype a_dtype = p->a_f32 ? RF_F32 : RF_BF16, c_dtype = p->c_f32 ? RF_F32 : RF_BF16;
  /* rows of f32 logits are aligned, so that they are written past the caches */
  const int64_t ld = p->c_f32 ? rf_ceil_div(p->n, 16) * 16 : p->n;
  r->panels =
      (rf_panels){.inner = p->k, .parts = 1, .part = {{rf_quant_type_of(RF_Q_BF16), p->packed ? p->n : 0}}};
  r->g = (rf_gemm){.m = p->m,
                   .n = p->n,
                   .k = p->k,
                   .a_row = p->a_transposed ? 1 : p->k,
                   .a_step = p->a_transposed ? p->m : 1,
                   .a_dtype = a_dtype,
                   .b_step = p->b_transposed ? 1 : p->n,
                   .b_col = p->b_transposed ? p->k : 1,
                   .b_dtype = RF_BF16,
                   .panels = p->packed ? &r->panels : NULL,
                   .dtype = c_dtype,
                   .ld = ld,
                   .read_later = p->c_f32};
  r->bytes[0] = (size_t)(p->m * p->k) * (size_t)rf_dtype_bytes(a_dtype);
  r->bytes[1] = p->packed ? (size_t)rf_panels_bytes(&r->panels) : (size_t)(p->k * p->n) * 2;
  r->bytes[2] = (size_t)(p->m * ld) * (size_t)rf_dtype_bytes(c_dtype);
  r->bytes[3] = rf_gemm_workspace(&RF_GEMM_AMX, &r->g, threads) + 64;
  for (int i = 0; i < MEMORIES; i++) r->memory[i] = pages(r->bytes[i]);
  fill(r->memory[0], p->m * p->k, a_dtype);
  fill(r->memory[1], (int64_t)(r->bytes[1] / 2), RF_BF16);
  r->g.a = r->memory[0];
  r->g.b = r->memory[1];
  r->g.u = r->memory[2];
}

int main(int argc, char **argv) {
  threads = argc > 1 ? atoi(argv[1]) : 0;
  if (threads < 1) {
    fprintf(stderr, "usage: product_times THREADS < PRODUCTS\n");
    return 2;
  }
  if (rf_isa_detect() < RF_ISA_AMX) {
    fprintf(stderr, "product_times: this CPU has no AMX tiles\n");
    return 1;
  }
#pragma omp parallel num_threads(threads)
  {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(omp_get_thread_num(), &set);
    sched_setaffinity(0, sizeof set, &set);
  }
  ready at = {0};
  char line[256];
  while (fgets(line, sizeof line, stdin)) {
    product p = {0};
    if (sscanf(line, "%ld %ld %ld %d %d %d %d %d %lf", &p.m, &p.n, &p.k, &p.a_transposed, &p.b_transposed,
               &p.packed, &p.a_f32, &p.c_f32, &p.seconds) != 9 ||
        p.m < 1 || p.n < 1 || p.k < 1) {
      fprintf(stderr, "product_times: cannot read '%s'\n", line);
      return 2;
    }
    double seconds = p.seconds;
    p.seconds = 0;
    if (memcmp(&p, &at.of, sizeof p) != 0) prepare(&p, &at);
    printf("%.9f\n", median_call(&at.g, seconds, at.memory[3]));
    fflush(stdout);
  }
  return 0;
}
