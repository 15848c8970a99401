/* cpu.h - kernel tables of the CPU backend, and helpers that split a kernel's rows over threads. */
#ifndef RF_CPU_H
#define RF_CPU_H

#include "backend/kernel.h"
#include "backend/lanes.h"
#include "machine/isa.h"

#include <omp.h>

/* An entry whose op is NULL ends each table. Kernels of stronger ISAs come first, in each table and
 * in the list of tables in cpu.c. */
extern const rf_kernel RF_CPU_MATMUL[], RF_CPU_EXPERTS[], RF_CPU_LORA[], RF_CPU_LORA_SLOTS[], RF_CPU_HEAD[],
    RF_CPU_ATTENTION[];
extern const rf_kernel RF_CPU_ELEMENTWISE_AVX512[], RF_CPU_ELEMENTWISE_AVX2[], RF_CPU_ELEMENTWISE_BASE[];

int64_t rf_l2_bytes(void); /* size of the L2 cache of one core in bytes; 0 if unknown */

/* The kernels of this folder take f32 and bf16 activations; only the reference kernels take f64. */
static inline bool rf_is_activation(rf_dtype dtype) { return dtype == RF_F32 || dtype == RF_BF16; }
static inline const void *rf_element(const void *p, rf_dtype dtype, int64_t i) {
  return (const char *)p + i * rf_dtype_bytes(dtype);
}

/* Bytes of `floats` floats, rounded up to whole cache lines. */
static inline size_t rf_whole_lines(int64_t floats) {
  return (size_t)((floats + 15) & ~(int64_t)15) * sizeof(float);
}
static inline size_t rf_larger(size_t a, size_t b) { return a > b ? a : b; }

#define RF_KERNEL(of, title, lowest, takes, bytes, function) \
  RF_OUTER_KERNEL(of, title, lowest, takes, bytes, function, NULL)
/* The table entry of a kernel whose op has inner products. The function `products` chooses the
 * kernels of these products. */
#define RF_OUTER_KERNEL(of, title, lowest, takes, bytes, function, products) \
  { \
    .op = of, .name = title, .level = lowest, .accepts = takes, .workspace_bytes = bytes, .inner = products, \
    .run = function \
  }

/* RF_BIND(matmul, avx2, RF_GEMM_AVX2) defines matmul_avx2_run(call) and matmul_avx2_workspace(...).
 * Both call matmul_run and matmul_workspace with RF_GEMM_AVX2. */
#define RF_BIND(op, isa, table) \
  RF_BIND_WORKSPACE(op, isa, table) \
  static void op##_##isa##_run(const rf_call *call) { op##_run(&table, call); }
#define RF_BIND_WORKSPACE(op, isa, table) \
  static size_t op##_##isa##_workspace(const rf_graph *graph, const rf_op *node, rf_tiling by) { \
    return op##_workspace(&table, graph, node, by.threads); \
  }
/* The table entry of the functions that RF_BIND defined. The including file defines `accepts` and
 * OP_inner. */
#define RF_BOUND_ROW(op, isa, name, level) \
  RF_OUTER_KERNEL(#op, name, level, accepts, op##_##isa##_workspace, op##_##isa##_run, op##_inner)

static inline int64_t rf_rows_used(const rf_call *call, int slot) {
  return rf_rows_of_pass(call->graph, rf_in(call, slot)->shape[0], call->run->rows);
}

/* True if this run adds its result to the present values of output `slot`. */
static inline bool rf_accumulates(const rf_call *call, int slot) {
  rf_accumulate how = call->op->attr.accumulate[slot];
  return how == RF_ACCUMULATE_ADD || (how == RF_ACCUMULATE_MICRO && call->run->micro > 0);
}

/* Divides `count` items into `of` ranges. Each range starts at a multiple of `grain`. Sets [*begin,
 * *end) to range `id`. */
static inline void rf_share(int64_t count, int64_t grain, int id, int of, int64_t *begin, int64_t *end) {
  int64_t grains = (count + grain - 1) / grain;
  *begin = grains * id / of * grain;
  *end = grains * (id + 1) / of * grain;
  if (*begin > count) *begin = count;
  if (*end > count) *end = count;
}

typedef void (*rf_range_fn)(const rf_call *call, int64_t begin, int64_t end);

/* Divides [0, count) into one range for each thread. Each range starts at a multiple of `grain`.
 * Each thread calls `range` for its range. `item_bytes` is the memory that one item touches. If the
 * work would end before a second thread wakes up, one thread does all work. */
static inline void rf_split(const rf_call *call, int64_t count, int64_t grain, int64_t item_bytes,
                            rf_range_fn range) {
  enum { BYTES_WORTH_A_THREAD = 64 * 1024 };
  int64_t useful = 1 + count * item_bytes / BYTES_WORTH_A_THREAD, grains = (count + grain - 1) / grain;
  if (useful > grains) useful = grains;
  int threads = useful < call->threads ? (int)useful : call->threads;
  if (threads <= 1) {
    range(call, 0, count);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    RF_STAMP_BUSY;
    int64_t begin, end;
    rf_share(count, grain, omp_get_thread_num(), omp_get_num_threads(), &begin, &end);
    if (begin < end) range(call, begin, end);
  }
}

#endif
