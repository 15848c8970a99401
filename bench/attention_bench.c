/* attention_bench.c - measures the speed of attention, forward and backward, as a fraction of the
 * f32 multiply-add ceiling of the same run.
 *   attention_bench [threads] [repeats] [avx512|avx2|base] [row]
 * FLOPs count the pairs that the causal mask leaves: 2 T (T + 1) H N forward (two products), 5 T (T
 * + 1) H N backward (five products). Each timing is divided by the mean of two bursts of the
 * ceiling, one before and one after it. The program prints the median, minimum and maximum
 * fraction. The last rows measure decoding: one query per slot over a long cache. Their ceiling is
 * a plain read of that cache. */
#include "backend/cpu/attention.h"
#include "backend/cpu/peaks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPEATS = 101 };
static const double BURST_SECONDS = 0.01;

typedef struct shape {
  rf_dtype dtype;
  int batch, seq, heads, kv_heads, dim, window;
} shape;

static rf_isa isa;

static const rf_kernel *kernel_of(const char *op) {
  for (const rf_kernel *k = RF_CPU_ATTENTION; k->op; k++) {
    if (strcmp(k->op, op) == 0 && k->level <= (int)isa) return k;
  }
  return NULL;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void *pages(size_t bytes) {
  void *p = NULL;
  rf_error error;
  if (rf_pages_map(bytes, &p, NULL, &error) != RAFTER_OK) {
    fprintf(stderr, "%s\n", error.message);
    exit(1);
  }
  return p;
}

static void fill(void *to, rf_dtype dtype, int64_t count, uint64_t seed) {
  for (int64_t i = 0; i < count; i += 4) {
    uint32_t w[4];
    rf_philox(seed, (uint64_t)i, 0, w);
    for (int64_t j = i; j < i + 4 && j < count; j++) {
      float x = 2.0f * rf_uniform(w[j - i]) - 1.0f;
      if (dtype == RF_BF16) ((rf_bf16 *)to)[j] = rf_f32_to_bf16(x);
      else ((float *)to)[j] = x;
    }
  }
}

/* Times calls between bursts of the ceiling, about 10 ms at a time. */
static void measure(const char *what, const shape *s, const rf_kernel *kernel, rf_call *call, double flops,
                    int repeats) {
  double fraction[MAX_REPEATS], rate[MAX_REPEATS], ceiling[MAX_REPEATS];
  size_t bytes = kernel->workspace_bytes(call->graph, call->op, (rf_tiling){.threads = call->threads});
  call->workspace = pages(bytes);
  kernel->run(call);
  int inner = 1;
  double start = rf_now_seconds();
  kernel->run(call);
  double once = rf_now_seconds() - start;
  while (once * inner < 0.01) inner++;
  for (int i = 0; i < repeats; i++) {
    double before = rf_peak_flops(RF_F32, rf_isa_detect(), call->threads, BURST_SECONDS);
    start = rf_now_seconds();
    for (int j = 0; j < inner; j++) kernel->run(call);
    double seconds = (rf_now_seconds() - start) / inner,
           after = rf_peak_flops(RF_F32, rf_isa_detect(), call->threads, BURST_SECONDS);
    ceiling[i] = (before + after) / 2;
    rate[i] = flops / seconds;
    fraction[i] = rate[i] / ceiling[i];
  }
  qsort(fraction, (size_t)repeats, sizeof *fraction, by_value);
  qsort(rate, (size_t)repeats, sizeof *rate, by_value);
  qsort(ceiling, (size_t)repeats, sizeof *ceiling, by_value);
  char name[96];
  snprintf(name, sizeof name, "%s %s B%d T%d heads %d/%d of %d%s", what, rf_dtype_name(s->dtype), s->batch,
           s->seq, s->heads, s->kv_heads, s->dim, s->window ? " windowed" : "");
  printf("%-48s %5.1f %% [%5.1f..%5.1f] of f32 FMA  %6.1f of %6.1f GFLOP/s  workspace %6.1f MiB  %s\n", name,
         100 * fraction[repeats / 2], 100 * fraction[0], 100 * fraction[repeats - 1],
         rate[repeats / 2] * 1e-9, ceiling[repeats / 2] * 1e-9, (double)bytes / 1048576, kernel->name);
  fflush(stdout);
  rf_pages_unmap(call->workspace, bytes);
}

static void bench(const shape *s, int threads, int repeats) {
  int64_t n = (int64_t)s->batch * s->seq, ld = (int64_t)(s->heads + 2 * s->kv_heads) * s->dim,
          out = (int64_t)s->heads * s->dim;
  size_t unit = (size_t)rf_dtype_bytes(s->dtype);
  rf_tensor tensor[6] = {{.name = "qkv", .dtype = s->dtype, .rank = 2, .shape = {n, ld}}};
  void *qkv = pages((size_t)(n * ld) * unit), *ctx = pages((size_t)(n * out) * unit),
       *dctx = pages((size_t)(n * out) * unit);
  void *dqkv = pages((size_t)(n * ld) * unit);
  float *lse = pages((size_t)(n * s->heads) * 4);
  int32_t *segments = pages((size_t)(n + 1) * 4);
  for (int64_t i = 0; i <= n; i++) segments[i] = (int32_t)(i * s->seq < n ? i * s->seq : n);
  fill(qkv, s->dtype, n * ld, 1);
  fill(dctx, s->dtype, n * out, 2);
  rf_op op = {.attr.attention = {.heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .head_dim = s->dim,
                                 .window = s->window,
                                 .scale = 1.0f / sqrtf((float)s->dim)}};
  rf_graph graph = {.tensor = tensor, .tensor_count = 6, .op = &op, .op_count = 1, .rows = n, .seq = s->seq};
  /* (query, key) pairs of a head */
  double w = s->window > 0 && s->window < s->seq ? s->window : s->seq,
         scores = w * (w + 1) / 2 + (s->seq - w) * w;
  double flops = 4.0 * scores * s->dim * s->heads * s->batch;
  op.input_count = 2;
  rf_call call = {.graph = &graph, .op = &op, .in = {qkv, segments}, .out = {ctx, lse}, .threads = threads};
  measure("forward", s, kernel_of("attention"), &call, flops, repeats);
  op.input_count = 5;
  call = (rf_call){
      .graph = &graph, .op = &op, .in = {qkv, ctx, lse, dctx, segments}, .out = {dqkv}, .threads = threads};
  measure("backward", s, kernel_of("attention_bwd"), &call, 2.5 * flops, repeats);
  rf_pages_unmap(qkv, (size_t)(n * ld) * unit);
  rf_pages_unmap(dqkv, (size_t)(n * ld) * unit);
  rf_pages_unmap(ctx, (size_t)(n * out) * unit);
  rf_pages_unmap(dctx, (size_t)(n * out) * unit);
  rf_pages_unmap(lse, (size_t)(n * s->heads) * 4);
  rf_pages_unmap(segments, (size_t)(n + 1) * 4);
}

/* Measures one query per slot over `context` cached tokens: bytes of keys and values per second,
 * next to a plain read of the same cache. */
static void bench_decode(rf_dtype dtype, int slots, int context, int heads, int kv_heads, int dim,
                         int threads, int repeats) {
  int64_t ld = (int64_t)(heads + 2 * kv_heads) * dim;
  enum { PAGE = 256 };
  int columns = (context + PAGE - 1) / PAGE;
  size_t unit = (size_t)rf_dtype_bytes(dtype),
         cache_bytes = (size_t)(slots * columns) * 2 * PAGE * (size_t)(kv_heads * dim) * unit;
  void *qkv = pages((size_t)(slots * ld) * unit), *ctx = pages((size_t)slots * (size_t)(heads * dim) * unit),
       *cache = pages(cache_bytes);
  int32_t slot[64], position[64], *table = pages((size_t)(slots * columns) * sizeof *table);
  for (int i = 0; i < slots * columns; i++) table[i] = i;
  for (int i = 0; i < slots; i++) {
    slot[i] = i;
    position[i] = context - 1;
  }
  fill(qkv, dtype, slots * ld, 1);
  memset(cache, 0, cache_bytes);
  rf_tensor tensor[5] = {
      {.dtype = dtype, .rank = 2, .shape = {slots, ld}},
      {.dtype = dtype, .rank = 4, .shape = {slots * columns, 2, PAGE, (int64_t)kv_heads * dim}},
      {.dtype = RF_I32, .rank = 2, .shape = {slots, columns}}};
  rf_op op = {.attr.attention = {.heads = heads,
                                 .kv_heads = kv_heads,
                                 .head_dim = dim,
                                 .scale = 1.0f / sqrtf((float)dim)},
              .input_count = 6,
              .input = {0, 1, 2, 3, 4, RF_NONE},
              .output_count = 3,
              .output = {0, 1, RF_NONE}};
  rf_graph graph = {.tensor = tensor, .tensor_count = 5, .op = &op, .op_count = 1, .rows = slots};
  rf_run_inputs run = {.rows = slots};
  rf_call call = {.graph = &graph,
                  .op = &op,
                  .in = {qkv, cache, table, slot, position},
                  .out = {ctx, cache},
                  .threads = threads,
                  .run = &run};
  const rf_kernel *kernel = kernel_of("attention_kv");
  size_t bytes = kernel->workspace_bytes(&graph, &op, (rf_tiling){.threads = threads});
  call.workspace = pages(bytes);
  double fraction[MAX_REPEATS], rate[MAX_REPEATS];
  kernel->run(&call);
  for (int i = 0; i < repeats; i++) {
    double before = rf_peak_read_bps(cache, cache_bytes, threads, 1), start = rf_now_seconds();
    kernel->run(&call);
    rate[i] = (double)cache_bytes / (rf_now_seconds() - start);
    fraction[i] = rate[i] / ((before + rf_peak_read_bps(cache, cache_bytes, threads, 1)) / 2);
  }
  qsort(fraction, (size_t)repeats, sizeof *fraction, by_value);
  qsort(rate, (size_t)repeats, sizeof *rate, by_value);
  char name[96];
  snprintf(name, sizeof name, "decode %s %d rows at %d heads %d/%d of %d", rf_dtype_name(dtype), slots,
           context, heads, kv_heads, dim);
  printf("%-48s %5.1f %% [%5.1f..%5.1f] of read     %6.1f GB/s  workspace %6.1f MiB  %s\n", name,
         100 * fraction[repeats / 2], 100 * fraction[0], 100 * fraction[repeats - 1],
         rate[repeats / 2] * 1e-9, (double)bytes / 1048576, kernel->name);
  rf_pages_unmap(qkv, (size_t)(slots * ld) * unit);
  rf_pages_unmap(ctx, (size_t)slots * (size_t)(heads * dim) * unit);
  rf_pages_unmap(cache, cache_bytes);
  rf_pages_unmap(call.workspace, bytes);
  rf_pages_unmap(table, (size_t)(slots * columns) * sizeof *table);
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 2, repeats = argc > 2 ? atoi(argv[2]) : 11;
  isa = rf_isa_detect();
  for (rf_isa i = RF_ISA_BASE; argc > 3 && i < isa; i++) {
    if (strcmp(argv[3], rf_isa_name(i)) == 0) isa = i;
  }
  if (threads < 1 || repeats < 1 || repeats > MAX_REPEATS) return 2;
  static const shape shapes[] = {
      {RF_F32, 1, 1024, 12, 12, 64, 0},   {RF_F32, 1, 4096, 8, 8, 128, 0},   {RF_F32, 4, 256, 12, 12, 64, 0},
      {RF_F32, 4, 512, 12, 12, 64, 0},    {RF_BF16, 1, 1024, 12, 12, 64, 0}, {RF_F32, 1, 2048, 8, 1, 256, 0},
      {RF_F32, 1, 4096, 8, 2, 128, 1024},
  };
  int count = (int)(sizeof shapes / sizeof *shapes), only = argc > 4 ? atoi(argv[4]) : -1;
  for (int i = 0; i < count; i++) {
    if (only < 0 || i == only) bench(&shapes[i], threads, repeats);
  }
  if (only < 0 || only == count) bench_decode(RF_F32, 8, 4096, 8, 8, 128, threads, repeats);
  if (only < 0 || only == count + 1) bench_decode(RF_BF16, 16, 4096, 32, 8, 128, threads, repeats);
  return 0;
}
