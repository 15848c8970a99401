/* elementwise_bench.c - measures the memory-bound kernels next to the memory bandwidth of the same
 * moment.
 *   elementwise_bench [threads] [isa] [op]
 * Every tensor is much larger than the caches. Rates count each operand once (the bytes of the op
 * table). Ordinary stores into a tensor that was not read first also move its old lines. These
 * bytes are not counted, as in the plain copy. A ceiling is the median of LOOPS bursts between runs
 * of the kernel. The program prints the best burst next to the median. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/peaks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 16384, WIDTH = 1024, PARAMS = 48 << 20, LOOPS = 21 };

typedef struct bench_case {
  const char *op;
  rf_dtype dtype;
  int inputs, outputs;
} bench_case;
static const bench_case CASES[] = {
    {"adamw", RF_F32, 5, 4},          {"adamw", RF_BF16, 5, 4},       {"norm_sq", RF_F32, 1, 1},
    {"layernorm", RF_F32, 3, 2},      {"layernorm", RF_BF16, 3, 2},   {"layernorm_bwd", RF_F32, 5, 3},
    {"layernorm_bwd", RF_BF16, 5, 3}, {"rmsnorm", RF_F32, 2, 2},      {"rmsnorm_bwd", RF_F32, 5, 2},
    {"gelu", RF_F32, 1, 1},           {"gelu", RF_BF16, 1, 1},        {"gelu_bwd", RF_F32, 2, 1},
    {"gelu_bwd", RF_BF16, 2, 1},      {"swiglu", RF_F32, 1, 1},       {"swiglu_bwd", RF_F32, 2, 1},
    {"swiglu_bwd", RF_BF16, 2, 1},    {"add", RF_F32, 2, 1},          {"add", RF_BF16, 2, 1},
    {"add_dropout", RF_F32, 2, 1},    {"add_dropout", RF_BF16, 2, 1}, {"dropout", RF_F32, 1, 1},
    {"rope", RF_F32, 2, 1},           {"rope", RF_BF16, 2, 1},        {"embed", RF_F32, 4, 1},
    {"embed_bwd", RF_F32, 3, 2},
};

typedef struct shape {
  rf_dtype dtype;
  int rank;
  int64_t dim[2];
} shape;

/* Shapes of the tensors in a case's slots; rank 0 means that a slot is empty. They are listed here
 * if the op's own shape rule cannot make them. */
static int slots(const bench_case *c, shape in[RF_MAX_INPUTS], shape out[RF_MAX_OUTPUTS]) {
  shape rows = {c->dtype, 2, {ROWS, WIDTH}}, wide = {c->dtype, 2, {ROWS, 2 * WIDTH}},
        vector = {c->dtype, 1, {WIDTH}}, sums = {RF_F32, 1, {WIDTH}};
  shape ids = {RF_I32, 1, {ROWS}}, params = {RF_F32, 1, {PARAMS}}, none = {0};
  bool is_backward = strstr(c->op, "norm_bwd") != NULL, layer = strncmp(c->op, "layer", 5) == 0;
  shape stats = {RF_F32, 2, {ROWS, layer ? 2 : 1}}, table = {c->dtype, 2, {32768, WIDTH}},
        places = {c->dtype, 2, {1024, WIDTH}};
  for (int i = 0; i < c->inputs; i++) in[i] = rows;
  for (int i = 0; i < c->outputs; i++) out[i] = rows;
  if (strcmp(c->op, "adamw") == 0) {
    for (int i = 0; i < 4; i++) in[i] = params;
    for (int i = 0; i < 3; i++) out[i] = params;
    in[4] = none;
    out[3] = c->dtype == RF_BF16 ? (shape){RF_BF16, 1, {PARAMS}} : none;
  } else if (strcmp(c->op, "norm_sq") == 0) {
    in[0] = params;
    out[0] = (shape){RF_F64, 1, {1}};
  } else if (strcmp(c->op, "embed") == 0) {
    in[0] = in[1] = ids;
    in[2] = table;
    in[3] = places;
  } else if (strcmp(c->op, "embed_bwd") == 0) {
    in[0] = in[1] = ids;
    out[0] = table;
    out[1] = places;
  } else if (strcmp(c->op, "rope") == 0) {
    in[1] = ids;
  } else if (strstr(c->op, "norm")) {
    in[1] = vector;
    in[2] = is_backward ? stats : vector;
    if (is_backward) out[1] = out[2] = sums;
    else out[1] = stats;
  } else if (strstr(c->op, "swiglu")) {
    in[0] = wide;
    if (c->inputs == 2) out[0] = wide;
  }
  return 0;
}

static char *arena, *next;
static const size_t arena_bytes = (size_t)2 << 30;
static void *take(int64_t bytes) {
  char *at = next;
  next += (bytes + 4095) / 4096 * 4096 + 4096;
  if (next > arena + arena_bytes) abort();
  return at;
}

static int compare_rates(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

typedef struct rates {
  double at[LOOPS];
} rates;
static double median(rates *r) {
  qsort(r->at, LOOPS, sizeof r->at[0], compare_rates);
  return r->at[LOOPS / 2];
}
static double best(const rates *r) { /* Called after median, so `rates` are sorted. */
  return r->at[LOOPS - 1];
}

/* Attributes with which an op does its usual work. */
static rf_attr attributes_of(const rf_op_def *def) {
  if (def->fields == RF_FIELDS_NORM) return (rf_attr){.norm.eps = 1e-5f};
  if (def->fields == RF_FIELDS_HEAD_NORM)
    return (rf_attr){.head_norm = {.heads = 10, .kv_heads = 3, .head_dim = 64, .eps = 1e-5f}};
  if (def->fields == RF_FIELDS_ROPE)
    return (rf_attr){
        .rope = {.heads = 10, .kv_heads = 3, .head_dim = 64, .rotation = {.theta = 1e4f, .dim = 64}}};
  if (def->fields == RF_FIELDS_DROPOUT) return (rf_attr){.dropout.rate = 0.1f};
  if (def->fields == RF_FIELDS_ADAMW)
    return (rf_attr){.adamw = {.eps = 1e-5f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f}};
  return (rf_attr){0};
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : omp_get_num_procs();
  rf_isa isa = rf_isa_detect();
  for (int i = 0; argc > 2 && i < RF_ISAS; i++)
    if (strcmp(argv[2], rf_isa_name((rf_isa)i)) == 0) isa = (rf_isa)i;
  const rf_kernel *table = isa >= RF_ISA_AVX512 ? RF_CPU_ELEMENTWISE_AVX512
                           : isa == RF_ISA_AVX2 ? RF_CPU_ELEMENTWISE_AVX2
                                                : RF_CPU_ELEMENTWISE_BASE;
  rf_error error;
  void *base;
  if (rf_pages_map(arena_bytes, &base, NULL, &error) != RAFTER_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  arena = base;
  memset(arena, 0, arena_bytes); /* Makes every page present before a burst reads it. */
  printf("%d threads, %s, %d x %d elements, %d parameters; GB/s, median [best] of %d; copies count bytes "
         "read and written\n",
         threads, rf_isa_name(isa), ROWS, WIDTH, PARAMS, LOOPS);
  printf("%-22s %-5s %9s %14s %14s %14s %14s %9s %9s\n", "kernel", "dtype", "ms", "kernel", "copy", "nt copy",
         "read", "of copy", "of nt");

  for (size_t n = 0; n < sizeof CASES / sizeof CASES[0]; n++) {
    const bench_case *c = &CASES[n];
    if (argc > 3 && strcmp(argv[3], c->op) != 0) continue;
    rf_model model = {.name = "bench"};
    rf_graph *graph = rf_graph_new(&model);
    graph->rows = ROWS;
    rf_op op = {.def = rf_op_find(c->op), .input_count = c->inputs, .output_count = c->outputs};
    op.attr = attributes_of(op.def);
    rf_run_inputs run = {.seed = 1, .step = 10, .loss_scale = 1, .lr = 1e-4f, .rows = ROWS};
    rf_call call = {.graph = graph, .op = &op, .threads = threads, .run = &run};
    shape in[RF_MAX_INPUTS] = {0}, out[RF_MAX_OUTPUTS] = {0};
    slots(c, in, out);
    next = arena;
    for (int i = 0; i < c->inputs; i++) {
      op.input[i] =
          in[i].rank ? rf_graph_tensor(graph, "in", RF_CLASS_ACTIVATION, in[i].dtype, in[i].rank, in[i].dim)
                     : RF_NONE;
      if (!in[i].rank) continue;
      void *data = take(rf_tensor_bytes(&graph->tensor[op.input[i]]));
      for (int64_t k = 0; in[i].dtype == RF_I32 && k < in[i].dim[0]; k++)
        ((int32_t *)data)[k] = (int32_t)(i == 0 ? k * 7919 % 32768 : k % 1024);
      for (int64_t k = 0; in[i].dtype == RF_BF16 && k < rf_tensor_count(&graph->tensor[op.input[i]]);
           k++) /* Random halves of f32 values would be subnormal. */
        ((rf_bf16 *)data)[k] = rf_f32_to_bf16(1e-3f * (float)(k % 997) - 0.4f);
      for (int64_t k = 0; in[i].dtype == RF_F32 && k < rf_tensor_count(&graph->tensor[op.input[i]]); k++)
        ((float *)data)[k] = 1e-3f * (float)(k % 997) - 0.4f;
      call.in[i] = data;
    }
    for (int i = 0; i < c->outputs; i++) {
      bool in_place = strcmp(c->op, "adamw") == 0 && i < 3;
      op.output[i] = in_place      ? op.input[i + 1]
                     : out[i].rank ? rf_graph_tensor(graph, "out", RF_CLASS_ACTIVATION, out[i].dtype,
                                                     out[i].rank, out[i].dim)
                                   : RF_NONE;
      if (op.output[i] >= 0)
        call.out[i] = in_place ? (void *)(uintptr_t)call.in[i + 1]
                               : take(rf_tensor_bytes(&graph->tensor[op.output[i]]));
    }
    if (strcmp(c->op, "adamw") == 0) /* Second moments are never negative. */
      for (int64_t k = 0; k < PARAMS; k++) ((float *)call.out[2])[k] = 1e-4f;
    const rf_kernel *kernel = table;
    while (strcmp(kernel->op, c->op) != 0 || (kernel->accepts && !kernel->accepts(graph, &op))) kernel++;
    size_t workspace = rf_kernel_workspace(kernel, graph, &op, (rf_tiling){.threads = threads});
    if (workspace) call.workspace = take((int64_t)workspace);
    rf_work work = op.def->work(graph, &op);

    /* Ceilings run over the end of the arena. The op reads operands there and may overwrite one
     * with values of another. */
    size_t burst_bytes = (size_t)512 << 20;
    char *burst = arena + arena_bytes - burst_bytes;
    rates copy, nt, read, kernel_rate;
    kernel->run(&call);
    for (int i = 0; i < LOOPS; i++) {
      copy.at[i] = rf_peak_copy_bps(burst, burst_bytes, threads, 1);
      double start = rf_now_seconds();
      kernel->run(&call);
      kernel_rate.at[i] = (work.bytes_read + work.bytes_written) / (rf_now_seconds() - start);
      nt.at[i] = rf_peak_nt_copy_bps(burst, burst_bytes, threads, 1);
      read.at[i] = rf_peak_read_bps(burst, burst_bytes, threads, 1);
    }
    double rate = median(&kernel_rate), of_copy = rate / median(&copy), of_nt = rate / median(&nt);
    (void)median(&read);
    printf("%-22s %-5s %9.3f %6.1f [%5.1f] %6.1f [%5.1f] %6.1f [%5.1f] %6.1f [%5.1f] %8.2fx %8.2fx\n",
           kernel->name, rf_dtype_name(c->dtype), (work.bytes_read + work.bytes_written) / rate * 1e3,
           rate * 1e-9, best(&kernel_rate) * 1e-9, copy.at[LOOPS / 2] * 1e-9, best(&copy) * 1e-9,
           nt.at[LOOPS / 2] * 1e-9, best(&nt) * 1e-9, read.at[LOOPS / 2] * 1e-9, best(&read) * 1e-9, of_copy,
           of_nt);
    rf_graph_free(graph);
  }
  rf_pages_unmap(base, arena_bytes);
  return 0;
}
