/* matmul.c - the linear layer with epilogues, and the gradients of its input and its weight. Every
 * sum over k is one f32 chain of fused multiply-adds in ascending k (f64 for f64 operands). */
#include "graph/mesh/shard.h"

/* Extents of a product with input x (M,K) and output y (M,N). The weight is (K,N), or (N,K) if it
 * is stored as (out, in). */
typedef struct product {
  int64_t m, k, n, w[2];
  rf_dtype dtype;
} product;

static product product_of(const rf_graph *graph, const rf_op *op) {
  bool transpose = op->attr.matmul.transpose;
  int64_t columns = rf_input_dim(graph, op, 0, 1);
  product p = {.m = rf_input_dim(graph, op, 0, 0), .dtype = rf_input_dtype(graph, op, 0)};
  if (op->def == &RF_OP_MATMUL_DX) {
    p.n = columns;
    p.k = rf_input_dim(graph, op, 1, transpose ? 1 : 0);
  } else {
    p.k = columns;
    p.n = rf_input_dim(graph, op, 1, op->def == &RF_OP_MATMUL && transpose ? 0 : 1);
  }
  p.w[0] = transpose ? p.n : p.k;
  p.w[1] = transpose ? p.k : p.n;
  return p;
}

static rf_work product_work(const rf_graph *graph, const rf_op *op) {
  rf_work work = rf_work_bytes(graph, op);
  product p = product_of(graph, op);
  work.flops = work.flops_full = 2 * (double)p.m * (double)p.k * (double)p.n;
  return work;
}

static rf_status matmul_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  product p = product_of(graph, op);
  bool residual = op->attr.matmul.epilogue == RF_EPILOGUE_RESIDUAL;
  RF_IN(0, RF_ANY_FLOAT, p.m, p.k);
  RF_IN(1, RF_ANY_WEIGHT, p.w[0], p.w[1]);
  RF_IN(2, RF_ANY_FLOAT, p.n);
  RF_IN(3, p.dtype, p.m, p.n);
  if (residual != (op->input[3] >= 0))
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "residual and epilogue disagree (matmul %s: expected %s residual input)", op->name,
                   residual ? "a" : "no");
  bool plain = op->attr.matmul.epilogue == RF_EPILOGUE_NONE;
  if (plain ? op->output[0] == RF_NONE || op->output[1] != RF_NONE : op->output[1] == RF_NONE)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "wrong outputs for the epilogue (matmul %s: expected %s)",
                   op->name, plain ? "u only" : "out, and u when it is read");
  for (int i = 0; i < 2; i++) RF_OUT(i, RF_CLASS_ACTIVATION, p.dtype, p.m, p.n);
  return RAFTER_OK;
}

/* The op for dw comes before the op for dx. So no later op reads x, and dx can reuse the memory of
 * x. */
static rf_status matmul_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                                 rf_error *error) {
  if (op->attr.matmul.epilogue != RF_EPILOGUE_NONE)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "differentiate comes before fuse (matmul %s: expected no epilogue)", op->name);
  rf_attr attr = {.matmul = {.transpose = op->attr.matmul.transpose}};
  if (grad_in[1] != RF_NONE || grad_in[2] != RF_NONE) {
    rf_slots outputs = RF_IDS(grad_in[1] == RF_NONE ? RF_WANTED : grad_in[1], grad_in[2]);
    if (rf_graph_emit(graph, &RF_OP_MATMUL_DW, rf_backward_name(graph, op, "/weight"), op->section,
                      RF_IDS(op->input[0], grad_out[0]), outputs, &attr, error) < 0)
      return RAFTER_INVALID;
  }
  if (grad_in[0] == RF_NONE) return RAFTER_OK;
  int id = rf_graph_emit(graph, &RF_OP_MATMUL_DX, rf_backward_name(graph, op, ""), op->section,
                         RF_IDS(grad_out[0], op->input[1]), RF_IDS(RF_WANTED), &attr, error);
  if (id < 0) return RAFTER_INVALID;
  grad_in[0] = graph->op[id].output[0];
  return RAFTER_OK;
}

static rf_status matmul_dx_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  product p = product_of(graph, op);
  RF_IN(0, RF_ANY_FLOAT, p.m, p.n);
  RF_IN(1, RF_ANY_WEIGHT, p.w[0], p.w[1]);
  RF_IN(2, p.dtype, p.m, p.k);
  bool gelu = op->input[2] >= 0;
  if (gelu == (op->output[0] != RF_NONE) || gelu != (op->output[1] != RF_NONE))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "wrong outputs (matmul_dx %s: expected %s)", op->name,
                   gelu ? "du only" : "dx only");
  for (int i = 0; i < 2; i++) RF_OUT(i, RF_CLASS_ACTIVATION, p.dtype, p.m, p.k);
  return RAFTER_OK;
}

static rf_status matmul_dw_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  product p = product_of(graph, op);
  RF_IN(0, RF_ANY_FLOAT, p.m, p.k);
  RF_IN(1, p.dtype, p.m, p.n);
  RF_OUT(0, RF_CLASS_GRADIENT, rf_wide_dtype(p.dtype), p.w[0], p.w[1]);
  RF_OUT(1, RF_CLASS_GRADIENT, rf_wide_dtype(p.dtype), p.n);
  return RAFTER_OK;
}

/* Sharding of a (rows, k) times w. An axis that shards k in both operands makes the result a
 * partial sum over chips. If an axis shards k in one operand only, the pass gathers that operand.
 * If an axis shards both the rows and w's columns, the pass gathers the rows. If the axis
 * `sequence` shards the columns of x (heads), the axis is first moved to the rows. */
static void product_shard(rf_sharding *s, int k, int n) {
  rf_spec *a = &s->in[0], *w = &s->in[1];
  rf_axes sum = a->split[1] & w->split[k], columns = w->split[n],
          sequence = a->split[1] & (rf_axes)~sum & RF_AXIS_BIT(RF_AXIS_SEQUENCE),
          rows = (a->split[0] | sequence) & (rf_axes) ~(sum | columns);
  uint8_t form_k = a->form[1], form_n = w->form[n];
  *a = rf_spec_of(rows, sum, form_k);
  *w = (rf_spec){.split = {0}};
  w->split[k] = sum;
  w->form[k] = form_k;
  w->split[n] = columns;
  w->form[n] = form_n;
  for (int i = 0; i < 2; i++) {
    s->out[i] = rf_spec_of(rows, columns, form_n);
    s->out[i].partial = sum;
  }
}

static rf_status matmul_shard(rf_sharding *s) {
  int n = s->attr.matmul.transpose ? 0 : 1;
  product_shard(s, 1 - n, n);
  s->in[2] = rf_spec_of(s->in[1].split[n], 0, RF_FORM_BLOCKS);
  s->in[2].form[0] = s->in[1].form[n];
  s->in[3] = s->out[1];
  if (s->op->input[2] >= 0) s->attr.axes = s->out[0].partial; /* only the first chip of a sum adds the bias */
  return RAFTER_OK;
}

static rf_status matmul_dx_shard(rf_sharding *s) {
  int n = s->attr.matmul.transpose ? 0 : 1;
  product_shard(s, n, 1 - n);
  s->in[2] = s->out[1];
  return RAFTER_OK;
}

static rf_status matmul_dw_shard(rf_sharding *s) {
  int n = s->attr.matmul.transpose ? 0 : 1;
  rf_spec *x = &s->in[0], *dy = &s->in[1];
  rf_axes sequence = (x->split[1] | dy->split[1]) & RF_AXIS_BIT(RF_AXIS_SEQUENCE), rows;
  x->split[0] |= x->split[1] & sequence;
  dy->split[0] |= dy->split[1] & sequence;
  x->split[1] &= (rf_axes)~sequence;
  dy->split[1] &= (rf_axes)~sequence;
  rows = x->split[0] & dy->split[0] & (rf_axes) ~(x->split[1] | dy->split[1]);
  x->split[0] = dy->split[0] = rows;
  s->out[0] = (rf_spec){.partial = rows};
  s->out[1] = rf_spec_of(dy->split[1], 0, RF_FORM_BLOCKS);
  s->out[0].split[1 - n] = x->split[1];
  s->out[0].form[1 - n] = x->form[1];
  s->out[0].split[n] = dy->split[1];
  s->out[0].form[n] = dy->form[1];
  s->out[1].form[0] = dy->form[1];
  s->out[1].partial = rows;
  return RAFTER_OK;
}

const rf_op_def RF_OP_MATMUL = {
    .name = "matmul",
    .kind = RF_KIND_MATMUL,
    .formula = "acc[m,n] starts at 0; acc = fma(x[m,k], w[k,n], acc) for k ascending, in f32 (w[n,k] if "
               "transpose); u = round(acc + bias[n]); epilogue gelu: out = round(gelu(u)); epilogue "
               "residual: out = round(residual + drop(u)), with drop as in add_dropout; fast: x is replaced "
               "by s*a in blocks of 32 values of k, where s = max|x|/127 and a = x/s rounded to an integer, "
               "ties to even, and acc adds the sums of the blocks in f32",
    .inputs = {"x (M,K)", "w (K,N)", "bias (N)?", "residual (M,N)?"},
    .outputs = {"u (M,N)?", "out (M,N)?"},
    .fields = RF_FIELDS_MATMUL,
    .shape = matmul_shape,
    .work = product_work,
    RF_INPLACE({1, 3}),
    .backward = matmul_backward,
    .shard = matmul_shard,
    .tolerance = {2e-6f, 1e-2f},
    .random = true,
    .timing = RF_TIMING_PRODUCT,
    .narrow_curve = "matmul_narrow",
    .product = RF_PRODUCT_FORWARD,
    .packed = true,
    .kept = RF_KEEPS(.input_across_loop = true, .input = true, .for_matrix = true),
};

const rf_op_def RF_OP_MATMUL_DX = {
    .name = "matmul_dx",
    .kind = RF_KIND_MATMUL,
    .formula = "acc[m,k] starts at 0; acc = fma(dy[m,n], w[k,n], acc) for n ascending, in f32 (w[n,k] if "
               "transpose); without u: dx = round(acc); with u: du = round(round(acc) * gelu'(u)), with "
               "gelu' as in gelu_bwd",
    .inputs = {"dy (M,N)", "w (K,N)", "u (M,K)?"},
    .outputs = {"dx (M,K)?", "du (M,K)?"},
    .fields = RF_FIELDS_MATMUL,
    .shape = matmul_dx_shape,
    .work = product_work,
    RF_INPLACE({1, 2}),
    .shard = matmul_dx_shard,
    .tolerance = {2e-6f, 1e-2f},
    .timing = RF_TIMING_PRODUCT,
    .timed_like = {&RF_OP_MATMUL},
    .narrow_curve = "matmul_dx_narrow",
    .product = RF_PRODUCT_DX,
    .packed = true,
};

const rf_op_def RF_OP_MATMUL_DW = {
    .name = "matmul_dw",
    .kind = RF_KIND_MATMUL,
    .formula =
        "dw[k,n] = fma(x[m,k], dy[m,n], dw[k,n]) for m ascending, in f32 (dw[n,k] if transpose); dbias[n] = "
        "dbias[n] + dy[m,n] for m ascending; both chains start at 0 (write) or at the present value (add)",
    .inputs = {"x (M,K)", "dy (M,N)"},
    .outputs = {"dw (K,N)", "dbias (N)?"},
    .fields = RF_FIELDS_MATMUL,
    .shape = matmul_dw_shape,
    .work = product_work,
    .shard = matmul_dw_shard,
    .tolerance = {2e-6f, 2e-6f},
    .timing = RF_TIMING_PRODUCT,
    .timed_like = {&RF_OP_MATMUL_DX, &RF_OP_MATMUL},
    .narrow_curve = "matmul_dw_narrow",
    .product = RF_PRODUCT_DW,
};
