/* head.c - the ops of the head: the cross-entropy loss, its backward op, one op for loss and
 * backward, sums of the loss, and the logits of chosen rows. The loss needs one pass over panels of
 * the vocabulary. Training never stores all logits: a kernel's workspace holds the logits of a
 * bounded chunk of rows. */
#include "graph/mesh/shard.h"

typedef struct head_dims {
  int64_t rows, width, vocab, picked, w[2]; /* picked: number of the rows that get logits */
  rf_dtype dtype, wide;
} head_dims;

/* Checks inputs 0 to 3 of every head op: x (n,D), w (D,V) or (V,D), bias (V)?, and labels (n) or
 * the rows that get logits. */
static rf_status head_inputs(rf_graph *graph, rf_op *op, head_dims *dims, rf_error *error) {
  bool transpose = op->attr.head.transpose;
  *dims = (head_dims){.rows = rf_input_dim(graph, op, 0, 0),
                      .width = rf_input_dim(graph, op, 0, 1),
                      .vocab = rf_input_dim(graph, op, 1, transpose ? 0 : 1),
                      .dtype = rf_input_dtype(graph, op, 0)};
  dims->wide = rf_wide_dtype(dims->dtype);
  dims->w[0] = transpose ? dims->vocab : dims->width;
  dims->w[1] = transpose ? dims->width : dims->vocab;
  RF_IN(0, RF_ANY_FLOAT, dims->rows, dims->width);
  RF_IN(1, RF_ANY_WEIGHT, dims->w[0], dims->w[1]);
  RF_IN(2, RF_ANY_FLOAT, dims->vocab);
  dims->picked = op->def == &RF_OP_HEAD_LOGITS ? rf_input_dim(graph, op, 3, 0) : dims->rows;
  RF_IN(3, RF_I32, dims->picked);
  return RAFTER_OK;
}

/* Checks an op that computes gradients. */
static rf_status gradient_inputs(rf_graph *graph, rf_op *op, head_dims *dims, rf_error *error) {
  RF_TRY(head_inputs(graph, op, dims, error));
  if (op->attr.head.gradient == RF_F32 || (op->attr.head.gradient == RF_BF16 && dims->dtype == RF_BF16))
    return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, NULL,
                 "wrong dtype of the gradient of logits (%s: expected f32, or bf16 with activations in bf16, "
                 "got %s with %s)",
                 op->name, rf_dtype_name(op->attr.head.gradient), rf_dtype_name(dims->dtype));
}

static double product_flops(const rf_graph *graph, const rf_op *op, int64_t rows) {
  return 2.0 * (double)rows * (double)rf_tensor_count(&graph->tensor[op->input[1]]);
}

static rf_work head_work(const rf_graph *graph, const rf_op *op, double products, double again) {
  rf_work work = rf_work_bytes(graph, op);
  double flops = product_flops(graph, op, rf_input_dim(graph, op, 0, 0));
  work.flops = work.flops_full = products * flops;
  work.flops_again = again * flops;
  return work;
}

static rf_status head_loss_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  head_dims d;
  RF_TRY(head_inputs(graph, op, &d, error));
  RF_OUT(0, RF_CLASS_ACTIVATION, d.wide, d.rows);
  RF_OUT(1, RF_CLASS_ACTIVATION, RF_I32, d.rows);
  RF_OUT(2, RF_CLASS_ACTIVATION, d.wide, d.rows);
  return RAFTER_OK;
}

static rf_work head_loss_work(const rf_graph *graph, const rf_op *op) { return head_work(graph, op, 1, 0); }

static rf_status head_loss_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  head_dims d;
  RF_TRY(gradient_inputs(graph, op, &d, error));
  RF_IN(4, d.wide, d.rows);
  RF_IN(5, d.wide, d.rows);
  RF_OUT(0, RF_CLASS_ACTIVATION, d.dtype, d.rows, d.width);
  RF_OUT(1, RF_CLASS_GRADIENT, d.wide, d.w[0], d.w[1]);
  RF_OUT(2, RF_CLASS_GRADIENT, d.wide, d.vocab);
  return RAFTER_OK;
}

static rf_work head_loss_bwd_work(const rf_graph *graph, const rf_op *op) {
  return head_work(graph, op, 1 + (op->output[1] >= 0), 1);
}

static rf_status head_loss_grad_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  head_dims d;
  RF_TRY(gradient_inputs(graph, op, &d, error));
  RF_IN(4, d.wide, d.rows);
  RF_OUT(0, RF_CLASS_ACTIVATION, d.wide, d.rows);
  RF_OUT(1, RF_CLASS_ACTIVATION, RF_I32, d.rows);
  RF_OUT(2, RF_CLASS_ACTIVATION, d.dtype, d.rows, d.width);
  RF_OUT(3, RF_CLASS_GRADIENT, d.wide, d.w[0], d.w[1]);
  RF_OUT(4, RF_CLASS_GRADIENT, d.wide, d.vocab);
  return RAFTER_OK;
}

static rf_work head_loss_grad_work(const rf_graph *graph, const rf_op *op) {
  return head_work(graph, op, 2 + (op->output[3] >= 0), 0);
}

static rf_status loss_sum_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0);
  RF_IN(0, RF_ANY_FLOAT, rows);
  RF_IN(1, RF_I32, rows);
  RF_IN(2, RF_I32, rows);
  RF_OUT(0, RF_CLASS_IO, RF_F64, 4);
  return RAFTER_OK;
}

static rf_status head_logits_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  head_dims d;
  RF_TRY(head_inputs(graph, op, &d, error));
  RF_OUT(0, RF_CLASS_LOGITS, d.wide, d.picked, d.vocab);
  RF_OUT(1, RF_CLASS_LOGITS, d.wide, d.picked);
  return RAFTER_OK;
}

static rf_status head_score_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  head_dims d;
  int64_t top = op->attr.head.top;
  RF_TRY(head_inputs(graph, op, &d, error));
  if (top < 0 || top > RF_TOP_MAX || top > d.vocab ||
      ((op->output[1] != RF_NONE || op->output[2] != RF_NONE) && top == 0))
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "wrong number of likeliest tokens (%s: expected 1 to %lld, got %lld)", op->name,
                   (long long)(d.vocab < RF_TOP_MAX ? d.vocab : RF_TOP_MAX), (long long)top);
  RF_OUT(0, RF_CLASS_ACTIVATION, d.wide, d.rows);
  RF_OUT(1, RF_CLASS_ACTIVATION, RF_I32, d.rows, top);
  RF_OUT(2, RF_CLASS_ACTIVATION, d.wide, d.rows, top);
  return RAFTER_OK;
}

/* A chip that has only a part of the vocabulary computes four numbers for each row. */
static rf_status head_part_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  head_dims d;
  RF_TRY(head_inputs(graph, op, &d, error));
  RF_OUT(0, RF_CLASS_ACTIVATION, d.wide, d.rows, 4);
  return RAFTER_OK;
}

static rf_status head_merge_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), columns = rf_input_dim(graph, op, 0, 1);
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  RF_IN(0, dtype, rows, columns);
  RF_IN(1, RF_I32, rows);
  if (columns % 4 || rf_wide_dtype(dtype) != dtype)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "wrong number of columns (%s: expected four for every chip, in the wider dtype, got %lld)",
                   op->name, (long long)columns);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows);
  RF_OUT(1, RF_CLASS_ACTIVATION, RF_I32, rows);
  RF_OUT(2, RF_CLASS_ACTIVATION, dtype, rows);
  RF_OUT(3, RF_CLASS_ACTIVATION, dtype, rows);
  return RAFTER_OK;
}

/* Shards x, w, bias and labels over rows and vocabulary. The rows keep their full width. */
static rf_axes head_operands(rf_sharding *s) {
  int v = s->attr.head.transpose ? 0 : 1;
  rf_axes words = s->in[1].split[v], rows = s->in[0].split[0] & s->in[3].split[0] & (rf_axes)~words;
  s->in[0] = rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  s->in[1] = (rf_spec){.split = {0}};
  s->in[1].split[v] = words;
  s->in[2] = rf_spec_of(words, 0, RF_FORM_BLOCKS);
  s->in[3] = rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  s->attr.axes = words;
  s->attr.head.vocab = words ? s->graph->tensor[s->op->input[1]].shape[v] : 0;
  return words;
}

/* Rows are sharded, and every chip has the full vocabulary. If the vocabulary is sharded,
 * shard_parts.c replaces the op by head_part, a gather and head_merge. */
static rf_status head_rows_shard(rf_sharding *s) {
  head_operands(s);
  s->attr.axes = 0;
  s->attr.head.vocab = 0;
  s->in[1] = s->in[2] = (rf_spec){.split = {0}};
  for (int i = 0; i < s->op->output_count; i++) s->out[i] = rf_spec_of(s->in[0].split[0], 0, RF_FORM_BLOCKS);
  return RAFTER_OK;
}

static rf_status head_part_shard(rf_sharding *s) {
  head_operands(s);
  s->out[0] = rf_spec_of(s->in[0].split[0], 0, RF_FORM_BLOCKS);
  return RAFTER_OK;
}

static rf_status head_loss_bwd_shard(rf_sharding *s) {
  rf_axes words = head_operands(s), rows = s->in[0].split[0];
  int v = s->attr.head.transpose ? 0 : 1;
  s->in[4] = s->in[5] = rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  s->out[0] = rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  s->out[0].partial = words;
  s->out[1] = (rf_spec){.partial = rows};
  s->out[1].split[v] = words;
  s->out[2] = rf_spec_of(words, 0, RF_FORM_BLOCKS);
  s->out[2].partial = rows;
  return RAFTER_OK;
}

static rf_status loss_sum_shard(rf_sharding *s) {
  RF_TRY(rf_shard_rows(s));
  s->out[0] = (rf_spec){.partial = s->in[0].split[0]};
  s->end_sum = true;
  return RAFTER_OK;
}

/* Each chip has the logits of its own run of the vocabulary. The parts of lse are combined to
 * log(sum of exp). */
static rf_status head_logits_shard(rf_sharding *s) {
  rf_axes words = head_operands(s);
  s->in[3] = (rf_spec){.split = {0}};
  s->out[0] = rf_spec_of(0, words, RF_FORM_BLOCKS);
  s->out[1] = (rf_spec){.partial = words};
  s->log_sum = true;
  return RAFTER_OK;
}

static rf_work head_logits_work(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *x = &graph->tensor[op->input[0]];
  int64_t picked = rf_input_dim(graph, op, 3, 0);
  rf_work work = rf_work_bytes(graph, op);
  /* the op reads only the chosen rows of x */
  work.bytes_read += (double)(picked < x->shape[0] ? picked - x->shape[0] : 0) * (double)x->shape[1] *
                     (double)rf_dtype_bytes(x->dtype);
  work.flops = work.flops_full = product_flops(graph, op, picked);
  return work;
}

static unsigned logits_row_passes(const rf_op *op) {
  return (op->output[1] >= 0 ? RF_PASS_SUMS : 0) | (op->attr.head.softcap > 0 ? RF_PASS_SOFTCAP : 0);
}

static unsigned loss_row_passes(const rf_op *op) {
  return RF_PASS_SUMS | (op->attr.head.softcap > 0 ? RF_PASS_SOFTCAP : 0);
}

static unsigned loss_bwd_row_passes(const rf_op *op) {
  return RF_PASS_GRADIENT | (op->attr.head.softcap > 0 ? RF_PASS_SOFTCAP : 0);
}

static unsigned loss_grad_row_passes(const rf_op *op) { return loss_row_passes(op) | RF_PASS_GRADIENT; }

static unsigned score_row_passes(const rf_op *op) {
  bool likeliest = op->output[1] >= 0 || op->output[2] >= 0;
  return RF_PASS_SUMS | (op->attr.head.softcap > 0 ? RF_PASS_SOFTCAP : 0) |
         (likeliest ? RF_PASS_LIKELIEST : 0);
}

/* The op computes two products. If the op writes dw, it computes three products. One of these
 * products belongs to the forward pass. */
static double loss_grad_forward_share(const rf_op *op) { return 1.0 / (2 + (op->output[3] >= 0)); }

/* Both ops compute logits, dx, and possibly dw. The product for dx multiplies by the transposed
 * matrix. */
static double loss_bwd_turned_share(const rf_op *op) { return 1.0 / (2 + (op->output[1] >= 0)); }

#define RF_HEAD_INPUTS "x (n,D)", "w (D,V)", "bias (V)?"

const rf_op_def RF_OP_HEAD_LOSS = {
    .name = "head_loss",
    .kind = RF_KIND_HEAD,
    .formula = "z[r,v] = acc + bias[v] in f32, acc = fma(x[r,d], w[d,v], acc) for d ascending from acc = 0 "
               "(w[v,d] if transpose); with a softcap z = softcap*tanh(z/softcap); with a temperature z = "
               "z/temperature, rounded to f32; m = max_v z[r,v]; lse[r] = m + log(sum_v exp(z[r,v] - m)); "
               "nll[r] = lse[r] - z[r,labels[r]], 0 if labels[r] = -1; "
               "argmax[r] = the smallest v with z[r,v] = m; fast: x as in matmul",
    .inputs = {RF_HEAD_INPUTS, "labels i32 (n)"},
    .outputs = {"nll (n)", "argmax i32 (n)", "lse (n)"},
    .fields = RF_FIELDS_HEAD,
    .shape = head_loss_shape,
    .work = head_loss_work,
    .gradient = {&RF_OP_HEAD_LOSS_BWD, {RF_X(0), RF_X(1), RF_X(2), RF_X(3), RF_Y(2), RF_DY(0)}},
    .shard = head_rows_shard,
    .expand = rf_expand_head,
    .tolerance = {1e-5f, 1e-5f},
    .loss = true,
    .timing = RF_TIMING_OTHER_PRODUCTS,
    .timed_like = {&RF_OP_HEAD_LOSS_GRAD, &RF_OP_HEAD_LOGITS, &RF_OP_MATMUL},
    .packed = true,
    .in_chunks = true,
    .row_passes = loss_row_passes,
    /* XLA holds the logits in the dtype of activations and in f32, and also the gradient of the
     * logits */
    .kept = RF_KEEPS(.input = true, .for_matrix = true, .kept = {RF_KEPT_F32(1, LOGITS)},
                     .forward = {RF_KEPT_SAME(1, LOGITS)}, .backward = {RF_KEPT_SAME(1, LOGITS)}),
};

const rf_op_def RF_OP_HEAD_PART = {
    .name = "head_part",
    .kind = RF_KIND_HEAD,
    .formula = "over the tokens v of this chip (axes shard a vocabulary of `vocab` tokens; none: all): m = "
               "max_v z[r,v], with z as in head_loss; part[r] = {m, sum_v exp(z[r,v] - m), z[r,labels[r]] or "
               "0 if another chip has the label, the smallest v with z[r,v] = m, counted over all chips}",
    .inputs = {RF_HEAD_INPUTS, "labels i32 (n)"},
    .outputs = {"part (n,4)"},
    .fields = RF_FIELDS_HEAD,
    .shape = head_part_shape,
    .work = head_loss_work,
    .shard = head_part_shard,
    .tolerance = {1e-5f, 1e-5f},
    .timing = RF_TIMING_OTHER_PRODUCTS,
    .timed_like = {&RF_OP_HEAD_LOSS, &RF_OP_HEAD_LOSS_GRAD, &RF_OP_HEAD_LOGITS, &RF_OP_MATMUL},
};

const rf_op_def RF_OP_HEAD_MERGE = {
    .name = "head_merge",
    .kind = RF_KIND_HEAD,
    .formula = "over the parts of all chips, ascending: m = max of the parts' m; lse[r] = m + log(sum of "
               "(part's sum * exp(part's m - m))); nll[r] = lse[r] - sum of the parts' z of the label, 0 if "
               "labels[r] = -1; argmax[r] = that of the first part with m; logprob[r] = -nll[r]",
    .inputs = {"parts (n,4c)", "labels i32 (n)"},
    .outputs = {"nll (n)?", "argmax i32 (n)?", "lse (n)?", "logprob (n)?"},
    .shape = head_merge_shape,
    .work = rf_work_bytes,
    .shard = rf_shard_rows,
    .tolerance = {1e-5f, 1e-5f},
};

const rf_op_def RF_OP_HEAD_LOSS_BWD = {
    .name = "head_loss_bwd",
    .kind = RF_KIND_HEAD,
    .formula =
        "dz[r,v] = (exp(z[r,v] - lse[r]) - [v == labels[r]]) * dnll[r] (without dnll: loss_scale), 0 "
        "for rows with labels[r] = -1, with z as in head_loss, in f32 (with a temperature divided by it, "
        "with a softcap times 1 - (z*temperature/softcap)^2); gradient=bf16: dz is rounded to bf16, and all "
        "sums are those of the rounded dz; dx[r,d] = "
        "round(sum_v fma(dz[r,v], w[d,v]) for v ascending); dw[d,v] = fma(x[r,d], dz[r,v], dw[d,v]) "
        "for r ascending (dw[v,d] if transpose); dbias[v] = dbias[v] + dz[r,v] for r ascending; dw "
        "and dbias start at 0 (write) or at the present value (add); fast: z with x as in matmul, no other "
        "product",
    .inputs = {RF_HEAD_INPUTS, "labels i32 (n)", "lse (n)", "dnll (n)?"},
    .outputs = {"dx (n,D)", "dw (D,V)?", "dbias (V)?"},
    .fields = RF_FIELDS_HEAD,
    .shape = head_loss_bwd_shape,
    .work = head_loss_bwd_work,
    .shard = head_loss_bwd_shard,
    /* AMX computes dw from two bf16 parts of dz: the upper bits of dz, and the rest with an error
     * of 2^-16 of dz */
    .tolerance = {0x1p-16f, 1e-2f},
    .timing = RF_TIMING_OTHER_PRODUCTS,
    .timed_like = {&RF_OP_HEAD_LOSS_GRAD, &RF_OP_HEAD_LOSS, &RF_OP_MATMUL},
    .packed = true,
    .in_chunks = true,
    .row_passes = loss_bwd_row_passes,
    .turned_share = loss_bwd_turned_share,
};

const rf_op_def RF_OP_HEAD_LOSS_GRAD = {
    .name = "head_loss_grad",
    .kind = RF_KIND_HEAD,
    .formula = "head_loss and head_loss_bwd in one pass over chunks of rows: the same nll, argmax, dx, dw "
               "and dbias; z is computed once",
    .inputs = {RF_HEAD_INPUTS, "labels i32 (n)", "dnll (n)?"},
    .outputs = {"nll (n)", "argmax i32 (n)", "dx (n,D)", "dw (D,V)?", "dbias (V)?"},
    .fields = RF_FIELDS_HEAD,
    .shape = head_loss_grad_shape,
    .work = head_loss_grad_work,
    .tolerance = {1e-5f, 1e-2f},
    .timing = RF_TIMING_OTHER_PRODUCTS,
    .timed_like = {&RF_OP_HEAD_LOSS_BWD, &RF_OP_HEAD_LOSS, &RF_OP_MATMUL},
    .packed = true,
    .in_chunks = true,
    .row_passes = loss_grad_row_passes,
    .turned_share = loss_grad_forward_share,
    .forward_share = loss_grad_forward_share,
};

const rf_op_def RF_OP_LOSS_SUM = {
    .name = "loss_sum",
    .kind = RF_KIND_HEAD,
    .formula = "over the rows r with labels[r] >= 0, ascending, in f64: metrics[0] += nll[r]; metrics[1] += "
               "1; metrics[2] += [argmax[r] == labels[r]]; metrics[3] = 0; sums start at 0 (write) or at the "
               "present value (add)",
    .inputs = {"nll (n)", "argmax i32 (n)", "labels i32 (n)"},
    .outputs = {"metrics f64 (4)"},
    .shape = loss_sum_shape,
    .work = rf_work_bytes,
    .shard = loss_sum_shard,
    .tolerance = {1e-12f, 1e-12f},
    .probe = RF_PROBE_FIRST,
};

const rf_op_def RF_OP_HEAD_LOGITS = {
    .name = "head_logits",
    .kind = RF_KIND_HEAD,
    .formula =
        "logits[i,v] = acc + bias[v] in f32, acc = fma(x[rows[i],d], w[d,v], acc) for d ascending "
        "from acc = 0 (w[v,d] if transpose), softcap and temperature as in head_loss; lse[i] as in "
        "head_loss; "
        "logits[i] = 0 and lse[i] = 0 if rows[i] = -1, but a kernel may leave logits as they are after "
        "the last row that is not -1; fast: x as in matmul",
    .inputs = {RF_HEAD_INPUTS, "rows i32 (R)"},
    .outputs = {"logits (R,V)", "lse (R)?"},
    .fields = RF_FIELDS_HEAD,
    .shape = head_logits_shape,
    .work = head_logits_work,
    .shard = head_logits_shard,
    .tolerance = {2e-6f, 2e-6f},
    .skips_rows = true,
    .timing = RF_TIMING_OTHER_PRODUCTS,
    .timed_like = {&RF_OP_HEAD_LOSS, &RF_OP_MATMUL},
    .packed = true,
    .rows_slot = 3,
    .row_passes = logits_row_passes,
};

const rf_op_def RF_OP_HEAD_SCORE = {
    .name = "head_score",
    .kind = RF_KIND_HEAD,
    .formula = "z and lse as in head_loss; logprob[r] = z[r,labels[r]] - lse[r], 0 if labels[r] = -1; "
               "top_ids[r] = the tokens v of the K largest z[r,v], descending, the lower v first among "
               "equals; top_logprobs[r] = their z[r,v] - lse[r]",
    .inputs = {RF_HEAD_INPUTS, "labels i32 (n)"},
    .outputs = {"logprob (n)", "top_ids i32 (n,K)?", "top_logprobs (n,K)?"},
    .fields = RF_FIELDS_HEAD,
    .shape = head_score_shape,
    .work = head_loss_work,
    .shard = head_rows_shard,
    .expand = rf_expand_head,
    .tolerance = {1e-5f, 1e-5f},
    .timing = RF_TIMING_OTHER_PRODUCTS,
    .timed_like = {&RF_OP_HEAD_LOSS, &RF_OP_HEAD_LOSS_GRAD, &RF_OP_HEAD_LOGITS, &RF_OP_MATMUL},
    .packed = true,
    .in_chunks = true,
    .row_passes = score_row_passes,
};
