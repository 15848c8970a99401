/* experts.c - a mixture-of-experts layer: routing, moving rows to their experts, the experts'
 * linear layers, and the weighted sum of the results. On one chip, n rows with k experts for each
 * row become R = n k rows, sorted by expert. The ops compute all of these rows, without padding,
 * also if the experts get unequal numbers of rows. */
#include "graph/mesh/shard.h"

#include <math.h>

static int64_t sorted_rows(const rf_op *op, int64_t rows) { return rows * op->attr.experts.used; }
/* If the experts are on several chips, each expert reserves `room` rows for each source chip. So R
 * = E room. An expert drops rows beyond `room`. */
static int64_t placed_rows(const rf_op *op, int64_t rows) {
  return op->attr.experts.room > 0 ? op->attr.experts.experts * op->attr.experts.room : sorted_rows(op, rows);
}
/* Number of runs of rows: one per expert and source chip. */
static int64_t run_count(const rf_op *op) {
  return op->attr.experts.experts * (int64_t)(op->attr.group > 1 ? op->attr.group : 1);
}

static rf_status check_experts(const rf_op *op, rf_error *error) {
  int experts = op->attr.experts.experts, used = op->attr.experts.used;
  if (experts >= 1 && used >= 1 && used <= run_count(op) && used <= RF_EXPERTS_USED_MAX) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, NULL,
                 "bad number of experts (%s: expected 1 to %d of them used, got %d of %d)", op->name,
                 RF_EXPERTS_USED_MAX, used, experts);
}

/* ---- the router's choice --------------------------------------------------------------------- */

/* The number of experts must be a multiple of the number of groups. The chosen groups of a row need
 * at least k experts together. If a group is ranked by its best two experts, it needs at least two
 * experts. */
static rf_status check_router(const rf_op *op, rf_error *error) {
  const rf_router *r = &op->attr.experts.router;
  int experts = op->attr.experts.experts;
  if (r->groups == 0 ||
      (r->groups > 0 && experts % r->groups == 0 && r->groups_used >= 1 && r->groups_used <= r->groups &&
       experts / r->groups * r->groups_used >= op->attr.experts.used &&
       (!r->sigmoid || experts / r->groups >= 2)))
    return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, NULL,
                 "bad groups of experts (%s: %d experts cannot form %d groups with %d of them used)",
                 op->name, experts, r->groups, r->groups_used);
}

static rf_status route_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0);
  RF_TRY(check_experts(op, error));
  RF_TRY(check_router(op, error));
  RF_IN(0, RF_ANY_FLOAT, rows, (int64_t)op->attr.experts.experts);
  RF_IN(1, RF_ANY_FLOAT, (int64_t)op->attr.experts.experts);
  RF_OUT(0, RF_CLASS_ACTIVATION, rf_wide_dtype(rf_input_dtype(graph, op, 0)), rows,
         (int64_t)op->attr.experts.used);
  RF_OUT(1, RF_CLASS_ACTIVATION, RF_I32, sorted_rows(op, rows));
  RF_OUT(2, RF_CLASS_ACTIVATION, RF_I32, sorted_rows(op, rows));
  RF_OUT(3, RF_CLASS_ACTIVATION, RF_I32, (int64_t)op->attr.experts.experts + 1);
  return RAFTER_OK;
}

static rf_status route_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), experts = op->attr.experts.experts,
          used = op->attr.experts.used;
  rf_dtype dtype = rf_input_dtype(graph, op, 0), wide = rf_wide_dtype(dtype);
  RF_TRY(check_experts(op, error));
  RF_IN(0, RF_ANY_FLOAT, rows, experts);
  RF_IN(1, wide, rows, used);
  RF_IN(2, RF_I32, sorted_rows(op, rows));
  RF_IN(3, wide, rows, used);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, experts);
  return RAFTER_OK;
}

/* Chips along the axis `tensor` shard the width of each expert. The chips route the same rows, and
 * then sum their results. Therefore the axis `tensor` never shards the rows. */
static rf_axes rows_of_group(const rf_spec *rows) {
  return rows->split[0] & (rf_axes)~RF_AXIS_BIT(RF_AXIS_TENSOR);
}

/* If the experts are on several chips, sets the number of rows that an expert reserves for each
 * source chip. */
static void give_room(rf_sharding *s, int64_t whole_rows, rf_axes rows) {
  rf_axes axes = rf_mesh_live(s->mesh, RF_AXIS_BIT(RF_AXIS_EXPERT));
  if (!axes) return;
  double share =
      (double)(whole_rows / rf_mesh_size(s->mesh, rows)) * s->attr.experts.used / s->attr.experts.experts;
  share *= s->mesh->capacity > 0 ? (double)s->mesh->capacity : 1;
  s->attr.experts.room = (int64_t)ceil(share);
  if (s->attr.experts.room < 1) s->attr.experts.room = 1;
  s->attr.fill = (float)(share / (double)s->attr.experts.room);
}
static int64_t whole_dim(const rf_sharding *s, int slot) {
  return s->graph->tensor[s->op->input[slot]].shape[0];
}

static rf_status route_shard(rf_sharding *s) {
  give_room(s, whole_dim(s, 0), rows_of_group(&s->in[0]));
  rf_spec rows = rf_spec_of(rows_of_group(&s->in[0]), 0, RF_FORM_BLOCKS);
  s->in[0] = s->out[0] = s->out[1] = s->out[2] = rows;
  s->in[1] = s->out[3] = (rf_spec){.split = {0}};
  return RAFTER_OK;
}

static rf_status dispatch_shard(rf_sharding *s) {
  bool back = s->op->def == &RF_OP_DISPATCH_BWD;
  give_room(s, whole_dim(s, 1) / s->attr.experts.used, rows_of_group(&s->in[0]));
  rf_axes sums = s->in[0].partial;
  s->in[0] = s->in[1] = s->out[0] = rf_spec_of(rows_of_group(&s->in[0]), 0, RF_FORM_BLOCKS);
  if (back) s->in[0].partial = s->out[0].partial = sums;
  s->from_experts = back;
  s->to_experts = !back;
  return RAFTER_OK;
}

static rf_status combine_shard(rf_sharding *s) {
  bool back = s->op->def == &RF_OP_COMBINE_BWD;
  give_room(s, whole_dim(s, 1), rows_of_group(&s->in[0]));
  rf_axes sums = s->in[0].partial;
  rf_spec rows = rf_spec_of(rows_of_group(&s->in[0]), 0, RF_FORM_BLOCKS);
  for (int i = 0; i < 4; i++) s->in[i] = rows;
  s->out[0] = s->out[1] = rows;
  s->in[0].partial = sums;
  s->out[back ? 1 : 0].partial = sums;
  s->from_experts = true;
  s->to_experts = back;
  return RAFTER_OK;
}

/* Reduces the attributes to the experts of this chip. The rows of these experts come from every
 * chip of the group. */
static rf_axes own_experts(rf_sharding *s, const rf_spec *w) {
  give_room(s, whole_dim(s, 0) / s->attr.experts.used, rows_of_group(&s->in[0]));
  rf_axes axes = w->split[0] & RF_AXIS_BIT(RF_AXIS_EXPERT);
  s->attr.group = (int32_t)rf_mesh_size(s->mesh, axes);
  s->attr.experts.experts /= s->attr.group;
  return axes;
}

/* Shards the product of w and a matrix of shape (rows, K). The product sums over dimension number k
 * of w. The number of w's other dimension is n. */
static rf_status experts_product_shard(rf_sharding *s) {
  int k = s->op->def == &RF_OP_MATMUL_EXPERTS ? 0 : 1, n = 1 - k;
  rf_axes experts = own_experts(s, &s->in[1]);
  s->in[1].split[0] &= (rf_axes)~experts;
  rf_axes sum = s->in[0].split[1] & s->in[1].split[k], columns = s->in[1].split[n],
          rows = rows_of_group(&s->in[0]);
  rf_spec w = {.split = {0}};
  w.split[k] = sum;
  w.form[k] = s->in[1].form[k];
  w.split[n] = columns;
  w.form[n] = s->in[1].form[n];
  w.split[0] |= experts;
  s->in[0] = rf_spec_of(rows, sum, (rf_form)s->in[0].form[1]);
  s->in[1] = w;
  s->in[2] = (rf_spec){.split = {0}};
  s->out[0] = rf_spec_of(rows, columns, n == 1 ? (rf_form)w.form[1] : RF_FORM_BLOCKS);
  s->out[0].partial = sum;
  s->keeps_sums = true;
  return RAFTER_OK;
}

static rf_status experts_dw_shard(rf_sharding *s) {
  rf_axes experts = own_experts(s, &s->out[0]), rows = rows_of_group(&s->in[0]), x = s->in[0].split[1],
          dy = s->in[1].split[1];
  s->in[0].split[0] = s->in[1].split[0] = rows;
  s->in[0].partial = s->in[1].partial = 0;
  s->in[2] = (rf_spec){.split = {0}};
  s->out[0] = (rf_spec){.split = {x | experts, dy},
                        .partial = rows & (rf_axes)~experts,
                        .form = {x ? RF_FORM_EACH : RF_FORM_BLOCKS, s->in[1].form[1]}};
  return RAFTER_OK;
}

const rf_op_def RF_OP_ROUTE = {
    .name = "route",
    .kind = RF_KIND_EXPERTS,
    .formula =
        "experts[r k + j] = the expert with the j-th largest logits[r,:], the lower index first among "
        "equals; weights[r,j] = exp(logits[r,experts]) / sum_i exp(logits[r,experts[r k + i]]): the softmax "
        "over all experts, divided by the sum over the chosen ones; router.sigmoid: sigmoids replace the "
        "softmax; router.as_is: the weights are not divided; all weights are multiplied by router.scale; "
        "`choice` is added to the values that are compared; with router.groups only experts of the "
        "router.groups_used best groups compete; the best expert ranks a group, with sigmoids the sum of its "
        "best two; rows are sorted by expert, then by r: place[r k + j] = position of (r,j), starts[e] = "
        "first position of expert e, starts[E] = number of positions; with room > 0 expert e has the "
        "positions from e*room on (starts says so), and a row that finds no room has place -1; in f32",
    .inputs = {"logits (n,E)", "choice (E)?"},
    .outputs = {"weights (n,k)", "experts i32 (n*k)", "place i32 (n*k)", "starts i32 (E+1)"},
    .fields = RF_FIELDS_EXPERTS,
    .shape = route_shape,
    .work = rf_work_bytes,
    .gradient = {&RF_OP_ROUTE_BWD, {RF_X(0), RF_Y(0), RF_Y(1), RF_DY(0)}},
    .shard = route_shard,
    .tolerance = {2e-6f, 2e-6f},
};

const rf_op_def RF_OP_ROUTE_BWD = {
    .name = "route_bwd",
    .kind = RF_KIND_EXPERTS,
    .formula =
        "s = sum_j weights[r,j]*dweights[r,j]; dlogits[r,experts[r k + j]] = "
        "round(weights[r,j]*(dweights[r,j] - s/scale)), 0 for the other experts; as_is: "
        "weights[r,j]*dweights[r,j] for the chosen experts, minus s*softmax(logits)[r,e] for every expert; "
        "with sigmoids each value is multiplied by 1 - sigmoid(logits), and as_is subtracts nothing; in f32",
    .inputs = {"logits (n,E)", "weights (n,k)", "experts i32 (n*k)", "dweights (n,k)"},
    .outputs = {"dlogits (n,E)"},
    .fields = RF_FIELDS_EXPERTS,
    .shape = route_bwd_shape,
    .work = rf_work_bytes,
    .shard = rf_shard_pointwise,
    .tolerance = {1e-5f, 1e-2f},
};

/* ---- rows to their experts ------------------------------------------------------------------- */

static rf_status dispatch_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1);
  RF_TRY(check_experts(op, error));
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  RF_IN(1, RF_I32, sorted_rows(op, rows));
  RF_OUT(0, RF_CLASS_ACTIVATION, rf_input_dtype(graph, op, 0), placed_rows(op, rows), width);
  return RAFTER_OK;
}

static rf_status dispatch_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t sorted = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1),
          places = rf_input_dim(graph, op, 1, 0);
  RF_TRY(check_experts(op, error));
  RF_IN(0, RF_ANY_FLOAT,
        op->attr.experts.room > 0 ? op->attr.experts.experts * op->attr.experts.room : places, width);
  RF_IN(1, RF_I32, op->attr.experts.room > 0 ? places : sorted);
  RF_OUT(0, RF_CLASS_ACTIVATION, rf_input_dtype(graph, op, 0), places / op->attr.experts.used, width);
  return RAFTER_OK;
}

const rf_op_def RF_OP_DISPATCH = {
    .name = "dispatch",
    .kind = RF_KIND_EXPERTS,
    .formula = "rows[place[r k + j],d] = x[r,d]; with room > 0 places of -1 are skipped and rows that "
               "nothing fills are 0",
    .inputs = {"x (n,D)", "place i32 (n*k)"},
    .outputs = {"rows (n*k,D)"},
    .fields = RF_FIELDS_EXPERTS,
    .shape = dispatch_shape,
    .work = rf_work_bytes,
    .gradient = {&RF_OP_DISPATCH_BWD, {RF_DY(0), RF_X(1)}},
    .shard = dispatch_shard,
    .tolerance = {1e-9f, 1e-9f},
};

const rf_op_def RF_OP_DISPATCH_BWD = {
    .name = "dispatch_bwd",
    .kind = RF_KIND_EXPERTS,
    .formula = "dx[r,d] = round(sum_j drows[place[r k + j],d]), j ascending, an f32 chain from 0",
    .inputs = {"drows (n*k,D)", "place i32 (n*k)"},
    .outputs = {"dx (n,D)"},
    .fields = RF_FIELDS_EXPERTS,
    .shape = dispatch_bwd_shape,
    .work = rf_work_bytes,
    .shard = dispatch_shard,
    .tolerance = {1e-6f, 1e-2f},
};

/* ---- the experts' linear layers -------------------------------------------------------------- */

double rf_experts_met(double experts, double used, double rows) {
  return experts * (1 - pow(used < experts ? 1 - used / experts : 0, rows));
}

/* The model's FLOPs count all rows, including dropped rows. FLOPs do not count rows that are
 * reserved beyond even routing (--capacity). Only experts that get a row have their weights read
 * (rf_experts_met). Reserved rows that are expected to stay empty move no bytes. */
static rf_work product_work(const rf_graph *graph, const rf_op *op) {
  rf_work work = rf_work_bytes(graph, op);
  bool dx = op->def == &RF_OP_MATMUL_EXPERTS_DX;
  int64_t places = rf_input_dim(graph, op, 0, 0),
          inner =
              dx ? rf_input_dim(graph, op, 1, 0) / op->attr.experts.experts : rf_input_dim(graph, op, 0, 1),
          columns = dx ? rf_input_dim(graph, op, 0, 1) : rf_input_dim(graph, op, 1, 1);
  double group = op->attr.group > 1 ? op->attr.group : 1, experts = op->attr.experts.experts * group,
         used = op->attr.experts.used, fill = op->attr.fill > 0 ? (double)op->attr.fill : 1,
         rows = (double)places * fill,
         capacity = op->attr.experts.room > 0 && graph->mesh.capacity > 0 ? (double)graph->mesh.capacity : 1,
         met = rf_experts_met(experts, used, rows * group / (used * capacity));
  double done = 2.0 * rows * (double)inner * (double)columns;
  work.flops = work.flops_full = done / capacity;
  work.flops_again = done - work.flops;
  if (op->def->product != RF_PRODUCT_DW)
    work.bytes_read -= (1 - met / experts) * (double)rf_tensor_bytes(&graph->tensor[op->input[1]]);
  double all =
      (double)(places * (inner + columns)) * (double)rf_dtype_bytes(graph->tensor[op->input[0]].dtype);
  work.bytes_read -= (1 - fill) * all * (double)inner / (double)(inner + columns);
  work.bytes_written -= (1 - fill) * all * (double)columns / (double)(inner + columns);
  return work;
}

static rf_status matmul_experts_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), inner = rf_input_dim(graph, op, 0, 1),
          columns = rf_input_dim(graph, op, 1, 1);
  RF_TRY(check_experts(op, error));
  RF_IN(0, RF_ANY_FLOAT, rows, inner);
  RF_IN(1, RF_ANY_WEIGHT, op->attr.experts.experts * inner, columns);
  RF_IN(2, RF_I32, run_count(op) + 1);
  RF_OUT(0, RF_CLASS_ACTIVATION, rf_input_dtype(graph, op, 0), rows, columns);
  return RAFTER_OK;
}

static rf_status matmul_experts_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                                         rf_error *error) {
  rf_attr attr = op->attr;
  attr.experts.fast = false; /* gradients are not rounded */
  if (grad_in[1] != RF_NONE) {
    int id =
        rf_graph_emit(graph, &RF_OP_MATMUL_EXPERTS_DW, rf_backward_name(graph, op, "/weight"), op->section,
                      RF_IDS(op->input[0], grad_out[0], op->input[2]), RF_IDS(grad_in[1]), &attr, error);
    if (id < 0) return RAFTER_INVALID;
    grad_in[1] = graph->op[id].output[0];
  }
  if (grad_in[0] == RF_NONE) return RAFTER_OK;
  grad_in[0] = rf_graph_make(graph, &RF_OP_MATMUL_EXPERTS_DX, rf_backward_name(graph, op, ""), op->section,
                             RF_IDS(grad_out[0], op->input[1], op->input[2]), &attr, error);
  return grad_in[0] == RF_NONE ? RAFTER_INVALID : RAFTER_OK;
}

static rf_status matmul_experts_dx_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), columns = rf_input_dim(graph, op, 0, 1);
  RF_TRY(check_experts(op, error));
  int64_t inner = rf_input_dim(graph, op, 1, 0) / op->attr.experts.experts;
  RF_IN(0, RF_ANY_FLOAT, rows, columns);
  RF_IN(1, RF_ANY_WEIGHT, op->attr.experts.experts * inner, columns);
  RF_IN(2, RF_I32, run_count(op) + 1);
  RF_OUT(0, RF_CLASS_ACTIVATION, rf_input_dtype(graph, op, 0), rows, inner);
  return RAFTER_OK;
}

static rf_status matmul_experts_dw_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), inner = rf_input_dim(graph, op, 0, 1),
          columns = rf_input_dim(graph, op, 1, 1);
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  RF_TRY(check_experts(op, error));
  RF_IN(0, RF_ANY_FLOAT, rows, inner);
  RF_IN(1, dtype, rows, columns);
  RF_IN(2, RF_I32, run_count(op) + 1);
  RF_OUT(0, RF_CLASS_GRADIENT, rf_wide_dtype(dtype), op->attr.experts.experts * inner, columns);
  return RAFTER_OK;
}

const rf_op_def RF_OP_MATMUL_EXPERTS = {
    .name = "matmul_experts",
    .kind = RF_KIND_MATMUL,
    .formula = "for each expert e and each position p in starts[e] .. starts[e+1]-1 (in a group of chips, "
               "also in every E-th run of rows from e on): acc = fma(x[p,i], w[e K + i,n], acc) for i "
               "ascending from acc = 0, in f32; u[p,n] = round(acc); fast: x as in matmul",
    .inputs = {"x (R,K)", "w (E*K,N)", "starts i32 (E+1)"},
    .outputs = {"u (R,N)"},
    .fields = RF_FIELDS_EXPERTS,
    .shape = matmul_experts_shape,
    .work = product_work,
    .backward = matmul_experts_backward,
    .shard = experts_product_shard,
    .tolerance = {2e-6f, 1e-2f},
    .timing = RF_TIMING_GROUPED,
    .timed_like = {&RF_OP_MATMUL},
    .product = RF_PRODUCT_FORWARD,
    .packed = true,
    .kept = RF_KEEPS(.input_across_loop = true, .input = true, .for_matrix = true),
};

const rf_op_def RF_OP_MATMUL_EXPERTS_DX = {
    .name = "matmul_experts_dx",
    .kind = RF_KIND_MATMUL,
    .formula = "for each expert e and each position p in starts[e] .. starts[e+1]-1: acc = fma(dy[p,n], w[e "
               "K + i,n], acc) for n ascending from acc = 0, in f32; dx[p,i] = round(acc)",
    .inputs = {"dy (R,N)", "w (E*K,N)", "starts i32 (E+1)"},
    .outputs = {"dx (R,K)"},
    .fields = RF_FIELDS_EXPERTS,
    .shape = matmul_experts_dx_shape,
    .work = product_work,
    .shard = experts_product_shard,
    .tolerance = {2e-6f, 1e-2f},
    .timing = RF_TIMING_GROUPED,
    .timed_like = {&RF_OP_MATMUL_DX, &RF_OP_MATMUL},
    .product = RF_PRODUCT_DX,
};

const rf_op_def RF_OP_MATMUL_EXPERTS_DW = {
    .name = "matmul_experts_dw",
    .kind = RF_KIND_MATMUL,
    .formula = "dw[e K + i,n] = fma(x[p,i], dy[p,n], dw[e K + i,n]) for p = starts[e] .. starts[e+1]-1 "
               "ascending, in f32; chains start at 0 (write) or at the present value (add)",
    .inputs = {"x (R,K)", "dy (R,N)", "starts i32 (E+1)"},
    .outputs = {"dw (E*K,N)"},
    .fields = RF_FIELDS_EXPERTS,
    .shape = matmul_experts_dw_shape,
    .work = product_work,
    .shard = experts_dw_shard,
    .tolerance = {2e-6f, 2e-6f},
    .timing = RF_TIMING_GROUPED,
    .timed_like = {&RF_OP_MATMUL_DW, &RF_OP_MATMUL_DX, &RF_OP_MATMUL},
    .product = RF_PRODUCT_DW,
};

/* ---- the sum of the experts' results --------------------------------------------------------- */

static rf_status combine_inputs(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 1, 0);
  RF_TRY(check_experts(op, error));
  RF_IN(0, RF_ANY_FLOAT, placed_rows(op, rows), rf_input_dim(graph, op, 0, 1));
  RF_IN(1, rf_wide_dtype(rf_input_dtype(graph, op, 0)), rows, (int64_t)op->attr.experts.used);
  RF_IN(2, RF_I32, sorted_rows(op, rows));
  return RAFTER_OK;
}

static rf_status combine_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  RF_TRY(combine_inputs(graph, op, error));
  RF_OUT(0, RF_CLASS_ACTIVATION, rf_input_dtype(graph, op, 0), rf_input_dim(graph, op, 1, 0),
         rf_input_dim(graph, op, 0, 1));
  return RAFTER_OK;
}

static rf_status combine_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t sorted = rf_input_dim(graph, op, 0, 0), rows = rf_input_dim(graph, op, 1, 0),
          width = rf_input_dim(graph, op, 0, 1), used = op->attr.experts.used;
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  RF_TRY(combine_inputs(graph, op, error));
  RF_IN(3, dtype, rows, width);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, sorted, width);
  RF_OUT(1, RF_CLASS_ACTIVATION, rf_wide_dtype(dtype), rows, used);
  return RAFTER_OK;
}

const rf_op_def RF_OP_COMBINE = {
    .name = "combine",
    .kind = RF_KIND_EXPERTS,
    .formula = "acc = fma(weights[r,j], h[place[r k + j],d], acc) for j ascending from acc = 0, in f32; "
               "y[r,d] = round(acc)",
    .inputs = {"h (n*k,D)", "weights (n,k)", "place i32 (n*k)"},
    .outputs = {"y (n,D)"},
    .fields = RF_FIELDS_EXPERTS,
    .shape = combine_shape,
    .work = rf_work_bytes,
    .gradient = {&RF_OP_COMBINE_BWD, {RF_X(0), RF_X(1), RF_X(2), RF_DY(0)}},
    .shard = combine_shard,
    .tolerance = {1e-6f, 1e-2f},
};

const rf_op_def RF_OP_COMBINE_BWD = {
    .name = "combine_bwd",
    .kind = RF_KIND_EXPERTS,
    .formula = "p = place[r k + j]; dh[p,d] = round(weights[r,j]*dy[r,d]); dweights[r,j] = sum_d "
               "h[p,d]*dy[r,d]; in f32",
    .inputs = {"h (n*k,D)", "weights (n,k)", "place i32 (n*k)", "dy (n,D)"},
    .outputs = {"dh (n*k,D)?", "dweights (n,k)?"},
    .fields = RF_FIELDS_EXPERTS,
    .shape = combine_bwd_shape,
    .work = rf_work_bytes,
    .shard = combine_shard,
    .tolerance = {1e-5f, 1e-2f},
};
