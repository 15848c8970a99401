/* lora.c - the contribution of LoRA adapters to a linear layer, and its backward op. Each part of
 * an adapter reads its own columns of h = x A, and adds to its own columns of u. */
#include "graph/mesh/shard.h"

typedef struct dims {
  int64_t rows, columns, /* M, N */
      ranks,             /* P r: number of parts * rank */
      joined;            /* S: columns of b */
  rf_dtype dtype, wide;
} dims;

bool rf_lora_parts_fit(const rf_lora_parts *parts, int64_t columns, int64_t joined) {
  int64_t end = 0, sum = 0;
  if (parts->count < 1 || parts->count > RF_LORA_PARTS || parts->rank < 1) return false;
  for (int i = 0; i < parts->count; i++) {
    if (parts->at[i] < end || parts->columns[i] < 1) return false;
    end = (int64_t)parts->at[i] + parts->columns[i];
    sum += parts->columns[i];
  }
  return end <= columns && sum == joined;
}

static rf_status parts_check(const rf_op *op, const dims *d, rf_error *error) {
  const rf_lora_parts *parts = &op->attr.lora.parts;
  if (rf_lora_parts_fit(parts, d->columns, d->joined) && (int64_t)parts->count * parts->rank == d->ranks)
    return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_INVALID, NULL,
      "parts do not fit (%s %s: expected ranges of %lld columns, %lld in all, got %d ranges of rank %d)",
      op->def->name, op->name, (long long)d->columns, (long long)d->joined, parts->count, parts->rank);
}

/* Checks the inputs of the forward op (u, h, b) and of the backward op (dy, h, b). */
static rf_status inputs(rf_graph *graph, rf_op *op, dims *d, rf_error *error) {
  *d = (dims){.rows = rf_input_dim(graph, op, 0, 0),
              .columns = rf_input_dim(graph, op, 0, 1),
              .ranks = rf_input_dim(graph, op, 1, 1),
              .joined = rf_input_dim(graph, op, 2, 1),
              .dtype = rf_input_dtype(graph, op, 0)};
  d->wide = rf_wide_dtype(d->dtype);
  RF_IN(0, RF_ANY_FLOAT, d->rows, d->columns);
  RF_IN(1, d->dtype, d->rows, d->ranks);
  RF_IN(2, d->wide, op->attr.lora.parts.rank, d->joined);
  return parts_check(op, d, error);
}

static rf_status lora_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  dims d;
  RF_TRY(inputs(graph, op, &d, error));
  RF_OUT(0, RF_CLASS_ACTIVATION, d.dtype, d.rows, d.columns);
  return RAFTER_OK;
}

static double product_flops(const rf_graph *graph, const rf_op *op) {
  return 2.0 * (double)rf_input_dim(graph, op, 0, 0) * (double)rf_tensor_count(&graph->tensor[op->input[2]]);
}

static rf_work lora_work(const rf_graph *graph, const rf_op *op) {
  rf_work work = rf_work_bytes(graph, op);
  work.flops = work.flops_full = product_flops(graph, op);
  return work;
}

static rf_work lora_bwd_work(const rf_graph *graph, const rf_op *op) {
  rf_work work = rf_work_bytes(graph, op);
  work.flops = work.flops_full = product_flops(graph, op) * ((op->output[0] >= 0) + (op->output[1] >= 0));
  return work;
}

/* The gradient of u is dy itself, so no op computes it. */
static rf_status lora_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                               rf_error *error) {
  if (grad_in[0] == RF_WANTED) grad_in[0] = grad_out[0];
  if (grad_in[1] == RF_NONE && grad_in[2] == RF_NONE) return RAFTER_OK;
  int id = rf_graph_emit(graph, &RF_OP_LORA_BWD, rf_backward_name(graph, op, ""), op->section,
                         RF_IDS(grad_out[0], op->input[1], op->input[2]), (rf_slots){grad_in + 1, 2},
                         &op->attr, error);
  if (id < 0) return RAFTER_INVALID;
  grad_in[1] = graph->op[id].output[0];
  return RAFTER_OK;
}

static rf_status lora_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  dims d;
  RF_TRY(inputs(graph, op, &d, error));
  RF_OUT(0, RF_CLASS_ACTIVATION, d.dtype, d.rows, d.ranks);
  RF_OUT(1, RF_CLASS_GRADIENT, d.wide, op->attr.lora.parts.rank, d.joined);
  return RAFTER_OK;
}

static rf_status lora_shard(rf_sharding *s) {
  rf_axes sequence = s->in[0].split[1] & RF_AXIS_BIT(RF_AXIS_SEQUENCE),
          columns = s->in[0].split[1] & (rf_axes)~sequence,
          rows = (s->in[0].split[0] | sequence) & s->in[1].split[0];
  uint8_t form = s->in[0].form[1];
  s->in[0] = s->out[0] = rf_spec_of(rows, columns, (rf_form)form);
  s->in[1] = rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  s->in[2] = rf_spec_of(
      0, columns,
      rf_shard_joined_form(&s->op->attr.lora.parts, rf_input_dim(s->graph, s->op, 0, 1), (rf_form)form));
  return rf_shard_adapters(s, columns, (rf_form)form);
}

static rf_status lora_bwd_shard(rf_sharding *s) {
  RF_TRY(lora_shard(s));
  rf_axes columns = s->in[0].split[1], rows = s->in[0].split[0];
  s->out[0] = rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  s->out[0].partial = columns;
  s->out[1] = s->in[2];
  s->out[1].partial = rows;
  return RAFTER_OK;
}

const rf_op_def RF_OP_LORA = {
    .name = "lora",
    .kind = RF_KIND_MATMUL,
    .formula = "part p of rank r adds to columns at[p] + c, c < columns[p]; it reads columns p r + j of h "
               "and columns s[p] + c of b, where s[p] counts the columns of the parts before p: acc = "
               "fma(h[m,p r + j], scale*b[j,s[p] + c], acc) for j ascending from acc = 0, in f32; y = "
               "round(u + round(acc)); in all other columns y = u",
    .inputs = {"u (M,N)", "h (M,P r)", "b (r,S)"},
    .outputs = {"y (M,N)"},
    .fields = RF_FIELDS_LORA,
    .shape = lora_shape,
    .work = lora_work,
    RF_INPLACE({0, 0}),
    .backward = lora_backward,
    .shard = lora_shard,
    .tolerance = {2e-6f, 1e-2f},
    .timing = RF_TIMING_OTHER_PRODUCTS,
    .timed_like = {&RF_OP_MATMUL},
    /* The backward pass reads x A for the gradient of B. The gradient of u is dy. */
    .kept = RF_KEEPS(.across_loop = {RF_KEPT_PRODUCT(1, SECOND)}, .kept = {RF_KEPT_SAME(1, SECOND)},
                     .again = {RF_KEPT_SAME(1, SECOND)}),
};

const rf_op_def RF_OP_LORA_BWD = {
    .name = "lora_bwd",
    .kind = RF_KIND_MATMUL,
    .formula = "parts as in lora: dh[m,p r + j] = round(acc), acc = fma(dy[m,at[p] + c], scale*b[j,s[p] + "
               "c], acc) for c ascending from acc = 0; db[j,s[p] + c] = fma(scale*h[m,p r + j], dy[m,at[p] + "
               "c], db[j,s[p] + c]) for m ascending, from 0 (write) or from the present value (add); in f32",
    .inputs = {"dy (M,N)", "h (M,P r)", "b (r,S)"},
    .outputs = {"dh (M,P r)?", "db (r,S)?"},
    .fields = RF_FIELDS_LORA,
    .shape = lora_bwd_shape,
    .work = lora_bwd_work,
    .shard = lora_bwd_shard,
    .tolerance = {2e-6f, 1e-2f},
    .timing = RF_TIMING_OTHER_PRODUCTS,
    .timed_like = {&RF_OP_MATMUL_DX, &RF_OP_MATMUL},
};
