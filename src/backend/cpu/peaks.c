/* peaks.c - measures arithmetic speed with any ISA, and memory speed with the widest vectors. */
#include "backend/cpu/peaks.h"
#include "backend/cpu/peaks_loops.h"

#include <omp.h>
#include <stdlib.h>

/* For each dtype, the ISAs are in ascending order. The last entry that a CPU supports is its
 * fastest entry. */
typedef struct arithmetic {
  rf_dtype dtype;
  rf_isa isa;
  rf_peak_unit unit;
  const rf_peak_arithmetic *loop;
} arithmetic;
static const arithmetic ARITHMETIC[] = {
    {RF_F32, RF_ISA_BASE, RF_PEAK_VECTORS, &RF_PEAK_FMA_BASE},
#if defined(__x86_64__)
    {RF_F32, RF_ISA_AVX2, RF_PEAK_VECTORS, &RF_PEAK_FMA_AVX2},
    {RF_F32, RF_ISA_AVX512, RF_PEAK_VECTORS, &RF_PEAK_FMA_AVX512},
    {RF_BF16, RF_ISA_AVX512BF16, RF_PEAK_VECTORS, &RF_PEAK_DOT_BF16},
    {RF_BF16, RF_ISA_AMX, RF_PEAK_TILES, &RF_PEAK_TILES_BF16},
    {RF_I8, RF_ISA_AVX512BF16, RF_PEAK_VECTORS, &RF_PEAK_DOT_I8},
    {RF_I8, RF_ISA_AMX, RF_PEAK_TILES, &RF_PEAK_TILES_I8},
#endif
};

static const arithmetic *arithmetic_of(rf_dtype dtype, rf_isa isa) {
  const arithmetic *best = NULL;
  for (size_t i = 0; i < sizeof ARITHMETIC / sizeof *ARITHMETIC; i++)
    if (ARITHMETIC[i].dtype == dtype && ARITHMETIC[i].isa <= isa) best = &ARITHMETIC[i];
  return best;
}

rf_peak_unit rf_peak_unit_of(rf_dtype dtype, rf_isa isa) {
  const arithmetic *a = arithmetic_of(dtype, isa);
  return a ? a->unit : RF_PEAK_NONE;
}

static const rf_peak_memory *memory_loops(void) {
#if defined(__x86_64__)
  rf_isa isa = rf_isa_detect();
  return isa >= RF_ISA_AVX512 ? &RF_PEAK_MEMORY_AVX512
         : isa >= RF_ISA_AVX2 ? &RF_PEAK_MEMORY_AVX2
                              : &RF_PEAK_MEMORY_BASE;
#else
  return &RF_PEAK_MEMORY_BASE;
#endif
}

/* Each thread divides its rounds by its own time, so a late start does not lower the rate. */
double rf_peak_flops(rf_dtype dtype, rf_isa isa, int threads, double seconds) {
  enum { ROUNDS = 20000 };
  const arithmetic *a = arithmetic_of(dtype, isa);
  if (!a) return 0;
  const rf_peak_arithmetic *loop = a->loop;
  double rate = 0;
#pragma omp parallel num_threads(threads) reduction(+ : rate)
  {
    loop->run(ROUNDS); /* this round powers up the wide vector units */
#pragma omp barrier
    double start = rf_now_seconds(), now = start, rounds = 0;
    while (now - start < seconds) {
      loop->run(ROUNDS);
      rounds += ROUNDS;
      now = rf_now_seconds();
    }
    rate = rounds * loop->flops_per_round / (now - start);
  }
  return rate;
}

typedef enum pass_kind { PASS_READ, PASS_READ_4, PASS_COPY, PASS_NT_COPY } pass_kind;

/* Bytes/s of one pass, from the start of the first thread to the end of the last thread. */
static double pass(pass_kind kind, float *buffer, size_t count, int threads) {
  const rf_peak_memory *loops = memory_loops();
  bool reads = kind == PASS_READ || kind == PASS_READ_4;
  size_t part = (reads ? count : count / 2) / (size_t)threads / 1024 * 1024, half = count / 2 / 16 * 16;
  double start = 0, end = 0;
  float kept = 0;
#pragma omp parallel num_threads(threads) reduction(+ : kept)
  {
    size_t first = part * (size_t)omp_get_thread_num();
#pragma omp barrier
#pragma omp master
    start = rf_now_seconds();
    if (reads) kept += loops->read(buffer + first, part, kind == PASS_READ_4 ? 4 : 1);
    else if (kind == PASS_COPY) loops->copy(buffer + half + first, buffer + first, part);
    else loops->nt_copy(buffer + half + first, buffer + first, part);
#pragma omp barrier
#pragma omp master
    end = rf_now_seconds();
  }
  volatile float used = kept;
  (void)used;
  return (double)part * (double)threads * sizeof(float) * (reads ? 1 : 2) / (end - start);
}

static double best(pass_kind kind, void *buffer, size_t bytes, int threads, int loops) {
  double rate = 0;
  for (int i = 0; i < loops; i++) {
    double r = pass(kind, buffer, bytes / sizeof(float), threads);
    if (r > rate) rate = r;
  }
  return rate;
}

double rf_peak_read_bps(const void *buffer, size_t bytes, int threads, int loops) {
  double one = best(PASS_READ, (void *)(uintptr_t)buffer, bytes, threads, loops);
  /* on some CPUs, a thread reads faster from several streams */
  double four = best(PASS_READ_4, (void *)(uintptr_t)buffer, bytes, threads, loops);
  return one > four ? one : four;
}
double rf_peak_copy_bps(void *buffer, size_t bytes, int threads, int loops) {
  return best(PASS_COPY, buffer, bytes, threads, loops);
}
double rf_peak_nt_copy_bps(void *buffer, size_t bytes, int threads, int loops) {
  return best(PASS_NT_COPY, buffer, bytes, threads, loops);
}

double rf_peak_launch_seconds(int threads) {
  enum { TIMES = 21, CALLS = 256 };
  double seconds[TIMES];
  for (int i = 0; i < TIMES; i++) {
    double start = rf_now_seconds();
    for (int k = 0; k < CALLS; k++) {
#pragma omp parallel num_threads(threads)
      __asm__ volatile("" ::: "memory");
    }
    seconds[i] = (rf_now_seconds() - start) / CALLS;
  }
  qsort(seconds, TIMES, sizeof *seconds, rf_compare_doubles);
  return seconds[TIMES / 2];
}
