/* embed.c - lookup of tokens and positions, and its backward op. */
#include "graph/mesh/shard.h"

static rf_status embed_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), vocab = rf_input_dim(graph, op, 2, 0),
          width = rf_input_dim(graph, op, 2, 1);
  rf_dtype table = rf_input_dtype(graph, op, 2),
           dtype = table == RF_PACKED || rf_dtype_is_narrow(table) ? op->attr.embed.dtype : table;
  RF_IN(0, RF_I32, rows);
  RF_IN(1, RF_I32, rows);
  RF_IN(2, RF_ANY_WEIGHT, vocab, width);
  RF_IN(3, dtype, rf_input_dim(graph, op, 3, 0), width);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, width);
  return RAFTER_OK;
}

/* A lookup reads one row of a table per token, not the whole table. */
static rf_work embed_work(const rf_graph *graph, const rf_op *op) {
  double rows = (double)rf_input_dim(graph, op, 0, 0);
  const rf_tensor *table = &graph->tensor[op->input[2]];
  double token = rows * (double)rf_tensor_bytes(table) / (double)table->shape[0];
  double moved = rows * (double)table->shape[1] * (double)rf_dtype_bytes(graph->tensor[op->output[0]].dtype);
  return (rf_work){.bytes_read = 8 * rows + token + (op->input[3] >= 0 ? moved : 0), .bytes_written = moved};
}

static rf_status embed_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                                rf_error *error) {
  if (grad_in[2] == RF_NONE && grad_in[3] == RF_NONE) return RAFTER_OK;
  rf_attr attr = {.embed = {.scale = op->attr.embed.scale}};
  int id = rf_graph_emit(graph, &RF_OP_EMBED_BWD, rf_backward_name(graph, op, ""), op->section,
                         RF_IDS(op->input[0], op->input[1], grad_out[0]), (rf_slots){grad_in + 2, 2}, &attr,
                         error);
  return id < 0 ? RAFTER_INVALID : RAFTER_OK;
}

static rf_status embed_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 2, 0), width = rf_input_dim(graph, op, 2, 1);
  rf_dtype wide = rf_wide_dtype(rf_input_dtype(graph, op, 2));
  RF_IN(0, RF_I32, rows);
  RF_IN(1, RF_I32, rows);
  RF_IN(2, RF_ANY_FLOAT, rows, width);
  for (int i = 0; i < 2; i++) {
    if (op->output[i] == RF_WANTED)
      return RF_FAIL(error, RAFTER_INVALID, NULL,
                     "no tensor for the table's gradient (embed_bwd %s: expected a tensor id, since no input "
                     "gives its rows)",
                     op->name);
    if (op->output[i] >= 0 && op->output[i] < graph->tensor_count)
      RF_OUT(i, RF_CLASS_GRADIENT, wide, graph->tensor[op->output[i]].shape[0], width);
  }
  return RAFTER_OK;
}

static rf_work embed_bwd_work(const rf_graph *graph, const rf_op *op) {
  double rows = (double)rf_input_dim(graph, op, 0, 0), width = (double)rf_input_dim(graph, op, 2, 1);
  rf_work work = {.bytes_read = 8 * rows + (double)rf_tensor_bytes(&graph->tensor[op->input[2]])};
  for (int i = 0; i < 2; i++) {
    if (op->output[i] < 0) continue;
    const rf_tensor *table = &graph->tensor[op->output[i]];
    double touched = rows * width * (double)rf_dtype_bytes(table->dtype);
    work.bytes_read += touched;
    work.bytes_written +=
        touched + (op->attr.accumulate[i] == RF_ACCUMULATE_ADD ? 0 : (double)rf_tensor_bytes(table));
  }
  return work;
}

/* If the table is sharded, each chip looks up the rows that it has. The results are then summed
 * over chips. Only the first chip adds the positions. */
static rf_status embed_shard(rf_sharding *s) {
  rf_axes rows = s->in[0].split[0], table = s->in[2].split[0];
  s->in[0] = s->in[1] = rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  s->in[2] = rf_spec_of(table, 0, RF_FORM_BLOCKS);
  s->in[3] = (rf_spec){.split = {0}};
  s->out[0] = rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  s->out[0].partial = s->attr.axes = table;
  return RAFTER_OK;
}

static rf_status embed_bwd_shard(rf_sharding *s) {
  rf_axes rows = s->in[0].split[0] & s->in[1].split[0], table = s->out[0].split[0];
  for (int i = 0; i < 3; i++) s->in[i] = rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  s->out[0] = rf_spec_of(table, 0, RF_FORM_BLOCKS);
  s->out[1] = (rf_spec){.split = {0}};
  s->out[0].partial = s->out[1].partial = rows;
  s->attr.axes = table;
  return RAFTER_OK;
}

const rf_op_def RF_OP_EMBED = {
    .name = "embed",
    .kind = RF_KIND_EMBED,
    .formula = "x[r,d] = round(wte[tokens[r],d]*scale + wpe[positions[r],d]), in f32; scale 0 means 1; "
               "without wpe nothing is added; if axes shard the table, a token of another chip gives 0 and "
               "only the first chip adds wpe",
    .inputs = {"tokens i32 (n)", "positions i32 (n)", "wte (V,D)", "wpe (T,D)?"},
    .outputs = {"x (n,D)"},
    .fields = RF_FIELDS_EMBED,
    .shape = embed_shape,
    .work = embed_work,
    .backward = embed_backward,
    .shard = embed_shard,
    .tolerance = {1e-6f, 1e-2f},
    .kept = RF_KEEPS(.fuses = false),
};

const rf_op_def RF_OP_EMBED_BWD = {
    .name = "embed_bwd",
    .kind = RF_KIND_EMBED,
    .formula = "dwte[v,d] = sum of dx[r,d]*scale over the rows r with tokens[r] = v, ascending (scale 0 "
               "means 1); dwpe[t,d] = sum of dx[r,d] over the rows r with positions[r] = t, ascending; f32 "
               "chains that start at 0 (write) or at the present value (add); table rows that no token uses "
               "become 0 (write) or keep their value (add)",
    .inputs = {"tokens i32 (n)", "positions i32 (n)", "dx (n,D)"},
    .outputs = {"dwte (V,D)", "dwpe (T,D)?"},
    .fields = RF_FIELDS_EMBED,
    .shape = embed_bwd_shape,
    .work = embed_bwd_work,
    .shard = embed_bwd_shard,
    .tolerance = {1e-6f, 1e-6f},
    .timed_like = {&RF_OP_EMBED},
};
