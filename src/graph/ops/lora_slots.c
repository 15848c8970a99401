/* lora_slots.c - the contribution of LoRA adapters to a linear layer. Each row chooses its adapter.
 * The adapters are in slots of equal size. */
#include "graph/ops/ops.h"

static rf_status lora_slots_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  const rf_lora_parts *parts = &op->attr.lora.parts;
  int64_t rows = rf_input_dim(graph, op, 0, 0), columns = rf_input_dim(graph, op, 0, 1),
          inner = rf_input_dim(graph, op, 1, 1), slots = rf_input_dim(graph, op, 2, 0),
          joined = rf_input_dim(graph, op, 3, 2);
  rf_dtype dtype = rf_input_dtype(graph, op, 0), wide = rf_wide_dtype(dtype);
  RF_IN(0, RF_ANY_FLOAT, rows, columns);
  RF_IN(1, dtype, rows, inner);
  RF_IN(2, wide, slots, inner, (int64_t)parts->count * parts->rank);
  RF_IN(3, wide, slots, parts->rank, joined);
  RF_IN(4, RF_I32, slots, parts->count);
  RF_IN(5, RF_I32, rows);
  if (!rf_lora_parts_fit(parts, columns, joined) || parts->rank > RF_LORA_MAX_RANK)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "parts do not fit (%s %s: expected ranges of %lld columns, %lld in all, got %d ranges)",
                   op->def->name, op->name, (long long)columns, (long long)joined, parts->count);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, columns);
  return RAFTER_OK;
}

/* The work assumes that every row has an adapter of the full rank. The work reads the bytes of all
 * slots. */
static rf_work lora_slots_work(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *a = &graph->tensor[op->input[2]], *b = &graph->tensor[op->input[3]];
  double slot = (double)(rf_tensor_count(a) + rf_tensor_count(b)) / (double)a->shape[0];
  rf_work work = rf_work_bytes(graph, op);
  work.flops = work.flops_full = 2.0 * (double)rf_input_dim(graph, op, 0, 0) * slot;
  return work;
}

const rf_op_def RF_OP_LORA_SLOTS = {
    .name = "lora_slots",
    .kind = RF_KIND_MATMUL,
    .formula = "row m uses slot l = slot[m]; y = u in rows with l = -1. In other rows, part p has rank q = "
               "ranks[l,p], and h[p r + j] = round(acc), acc = fma(x[m,k], a[l,k,p r + j], acc) for k "
               "ascending from acc = 0. Part p adds to columns at[p] + c, c < columns[p], and reads "
               "columns s[p] + c of b[l], where s[p] counts the columns of the parts before p: acc = "
               "fma(h[p r + j], b[l,j,s[p] + c], acc) for j < q ascending from acc = 0; y = round(u + "
               "round(acc)); in f32. In all other columns, and for q = 0, y = u",
    .inputs = {"u (M,N)", "x (M,K)", "a (L,K,P r)", "b (L,r,S)", "ranks i32 (L,P)", "slot i32 (M)"},
    .outputs = {"y (M,N)"},
    .fields = RF_FIELDS_LORA,
    .shape = lora_slots_shape,
    .work = lora_slots_work,
    RF_INPLACE({0, 0}),
    .tolerance = {2e-6f, 1e-2f},
    .timing = RF_TIMING_OTHER_PRODUCTS,
    .timed_like = {&RF_OP_MATMUL},
};
