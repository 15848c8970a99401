/* attention_bench.c - measures the speed of attention, forward and backward, as a fraction of the
 * f32 multiply-add ceiling of the same run.
 *   attention_bench [threads] [repeats] [avx512|avx2|base] [row]
 * FLOPs count the pairs that the causal mask leaves: 2 T (T + 1) H N forward (two products), 5 T (T
 * + 1) H N backward (five products). Each timing is divided by the mean of two bursts of the
 * ceiling, one before and one after it. The program prints the median, minimum and maximum
 * fraction. The last rows measure decoding: one query per slot over a long cache. Their ceiling is
 * a plain read of these caches, with the same number of threads. Row -1, the default, is all rows,
 * and -2 only those of one query over long caches. */
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

/* One query per slot over a cache. `act` is the dtype of q, k, v and of the outputs. */
typedef struct decode_shape {
  rf_dtype act, cache;
  int slots, context, heads, kv_heads, dim;
} decode_shape;

/* The buffers of the layers of a model. Layers take turns, so that each call reads its cache from
 * memory, as in a real step. */
typedef struct layers {
  int count;
  size_t cache_bytes, scale_bytes; /* of one layer */
  char *cache, *scale;
} layers;

static layers layers_of(const decode_shape *s, int64_t tokens) {
  enum { ALL_BYTES = 256 << 20 }; /* of all layers: several times the L3 */
  layers l = {.cache_bytes = (size_t)(2 * tokens * s->kv_heads * s->dim * rf_dtype_bytes(s->cache)),
              .scale_bytes = (size_t)(2 * tokens * s->kv_heads) * sizeof(float)};
  l.count = (int)((ALL_BYTES + l.cache_bytes - 1) / l.cache_bytes);
  size_t cache = l.cache_bytes * (size_t)l.count, scale = l.scale_bytes * (size_t)l.count;
  l.cache = pages(cache);
  l.scale = pages(scale);
  memset(l.cache, 0x3c, cache); /* values that are neither 0 nor subnormal in any dtype */
  memset(l.scale, 0x3c, scale);
  return l;
}

static double decode_seconds(const rf_kernel *kernel, rf_call *call, const layers *l) {
  double start = rf_now_seconds();
  for (int i = 0; i < l->count; i++) {
    call->in[1] = call->out[1] = l->cache + l->cache_bytes * (size_t)i;
    call->in[5] = call->out[2] = l->scale + l->scale_bytes * (size_t)i;
    kernel->run(call);
  }
  return (rf_now_seconds() - start) / l->count;
}

/* Prints the bytes of keys and values that are read per second, next to a plain read of the same
 * caches, and the multiply-adds per second, next to their ceiling. */
static void time_decode(const decode_shape *s, const rf_kernel *kernel, rf_call *call, const layers *l,
                        int repeats) {
  double fraction[MAX_REPEATS], rate[MAX_REPEATS], read[MAX_REPEATS], of_fma[MAX_REPEATS],
      flops = 4.0 * s->slots * s->context * s->heads * s->dim;
  size_t all = l->cache_bytes * (size_t)l->count;
  decode_seconds(kernel, call, l);
  for (int i = 0; i < repeats; i++) {
    double before = rf_peak_read_bps(l->cache, all, call->threads, 1);
    double seconds = decode_seconds(kernel, call, l);
    read[i] = (before + rf_peak_read_bps(l->cache, all, call->threads, 1)) / 2;
    rate[i] = (double)l->cache_bytes / seconds;
    fraction[i] = rate[i] / read[i];
    of_fma[i] = flops / seconds / rf_peak_flops(RF_F32, isa, call->threads, BURST_SECONDS);
  }
  double *sorted[] = {fraction, rate, read, of_fma};
  for (int i = 0; i < 4; i++) qsort(sorted[i], (size_t)repeats, sizeof(double), by_value);
  char name[96];
  int middle = repeats / 2;
  snprintf(name, sizeof name, "decode %s %d row%s at %d heads %d/%d of %d", rf_dtype_name(s->cache), s->slots,
           s->slots > 1 ? "s" : "", s->context, s->heads, s->kv_heads, s->dim);
  printf("%-48s %5.1f %% [%5.1f..%5.1f] of read     %6.1f of %6.1f GB/s  %5.1f %% of f32 FMA  %s\n", name,
         100 * fraction[middle], 100 * fraction[0], 100 * fraction[repeats - 1], rate[middle] * 1e-9,
         read[middle] * 1e-9, 100 * of_fma[middle], kernel->name);
  fflush(stdout);
}

static void bench_decode(const decode_shape *s, int threads, int repeats) {
  enum { PAGE = 256, MAX_SLOTS = 64 };
  int64_t ld = (int64_t)(s->heads + 2 * s->kv_heads) * s->dim, columns = (s->context + PAGE - 1) / PAGE,
          count = s->slots * columns;
  size_t unit = (size_t)rf_dtype_bytes(s->act), qkv_bytes = (size_t)(s->slots * ld) * unit,
         ctx_bytes = (size_t)s->slots * (size_t)(s->heads * s->dim) * unit;
  layers l = layers_of(s, count * PAGE);
  void *qkv = pages(qkv_bytes), *ctx = pages(ctx_bytes);
  int32_t slot[MAX_SLOTS], position[MAX_SLOTS], *table = pages((size_t)count * sizeof *table);
  for (int i = 0; i < count; i++) table[i] = i;
  for (int i = 0; i < s->slots; i++) {
    slot[i] = i;
    position[i] = s->context - 1;
  }
  fill(qkv, s->act, s->slots * ld, 1);
  rf_tensor tensor[6] = {
      {.dtype = s->act, .rank = 2, .shape = {s->slots, ld}},
      {.dtype = s->cache, .rank = 4, .shape = {count, 2, PAGE, (int64_t)s->kv_heads * s->dim}},
      {.dtype = RF_I32, .rank = 2, .shape = {s->slots, columns}},
      {.dtype = RF_I32, .rank = 1, .shape = {s->slots}},
      {.dtype = RF_I32, .rank = 1, .shape = {s->slots}},
      {.dtype = RF_F32, .rank = 4, .shape = {count, 2, PAGE, s->kv_heads}}};
  rf_op op = {.attr.attention = {.heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .head_dim = s->dim,
                                 .scale = 1.0f / sqrtf((float)s->dim)},
              .input_count = 6,
              .input = {0, 1, 2, 3, 4, 5},
              .output_count = 3,
              .output = {0, 1, 5}};
  rf_graph graph = {.tensor = tensor, .tensor_count = 6, .op = &op, .op_count = 1, .rows = s->slots};
  rf_run_inputs run = {.rows = s->slots};
  rf_call call = {.graph = &graph,
                  .op = &op,
                  .in = {qkv, NULL, table, slot, position, NULL},
                  .out = {ctx, NULL, NULL},
                  .threads = threads,
                  .run = &run};
  const rf_kernel *kernel = kernel_of("attention_kv");
  size_t bytes = kernel->workspace_bytes(&graph, &op, (rf_tiling){.threads = threads});
  call.workspace = pages(bytes);
  time_decode(s, kernel, &call, &l, repeats);
  rf_pages_unmap(qkv, qkv_bytes);
  rf_pages_unmap(ctx, ctx_bytes);
  rf_pages_unmap(l.cache, l.cache_bytes * (size_t)l.count);
  rf_pages_unmap(l.scale, l.scale_bytes * (size_t)l.count);
  rf_pages_unmap(call.workspace, bytes);
  rf_pages_unmap(table, (size_t)count * sizeof *table);
}

/* The heads of a 1.1B Llama, Gemma 3 270M and SmolLM2 135M over long caches, one query each. */
static void bench_long_caches(int threads, int repeats, int only) {
  static const int HEADS[][3] = {{32, 4, 64}, {4, 1, 256}, {9, 3, 64}}, CONTEXT[] = {4096, 16384};
  static const rf_dtype CACHE[] = {RF_F32, RF_BF16, RF_I8};
  int row = 0;
  for (int h = 0; h < 3; h++) {
    for (int d = 0; d < 3; d++) {
      for (int c = 0; c < 2; c++, row++) {
        decode_shape s = {RF_F32, CACHE[d], 1, CONTEXT[c], HEADS[h][0], HEADS[h][1], HEADS[h][2]};
        if (only < 0 || only == row) bench_decode(&s, threads, repeats);
      }
    }
  }
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
    if (only == -1 || i == only) bench(&shapes[i], threads, repeats);
  }
  static const decode_shape batches[] = {{RF_F32, RF_F32, 8, 4096, 8, 8, 128},
                                         {RF_BF16, RF_BF16, 16, 4096, 32, 8, 128}};
  for (int i = 0; i < 2; i++) {
    if (only == -1 || only == count + i) bench_decode(&batches[i], threads, repeats);
  }
  if (only < 0 || only >= count + 2) bench_long_caches(threads, repeats, only < 0 ? -1 : only - count - 2);
  return 0;
}
