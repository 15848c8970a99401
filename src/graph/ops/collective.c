/* collective.c - collectives between chips, transfers between pipeline stages, and copies between a
 * chip and its host. The `group` chips of a group differ only in their coordinates along `axes`.
 * The order of these chips is the order of mesh.h. In a group of one chip a collective is a
 * copy. */
#include "graph/mesh/shard.h"

static rf_status group_check(const rf_op *op, rf_error *error) {
  const rf_attr *attr = &op->attr;
  if (attr->group >= 1 && (attr->group > 1) == (attr->axes != 0)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, NULL, "bad group (%s %s: expected at least one chip, got %d)",
                 op->def->name, op->name, attr->group);
}

static rf_status dims_check(const rf_op *op, const rf_tensor *x, rf_error *error) {
  const rf_attr_collective *attr = &op->attr.collective;
  if (attr->dim >= 0 && attr->dim < x->rank && attr->to >= 0 && attr->to < x->rank) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, NULL,
                 "bad dimensions (%s %s: expected dimensions of a %d-dimensional tensor, got %d, %d)",
                 op->def->name, op->name, x->rank, attr->dim, attr->to);
}

/* In the output's shape, all_gather multiplies dimension `dim` of the input by the number of chips.
 * reduce_scatter and take_run divide `dim`. all_to_all multiplies `dim` and divides `to`. */
static rf_status exchange_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  const rf_exchange_kind kind = op->def->exchange;
  bool gathers = kind == RF_EXCHANGE_ALL_GATHER || kind == RF_EXCHANGE_ALL_TO_ALL;
  bool splits =
      kind == RF_EXCHANGE_REDUCE_SCATTER || kind == RF_EXCHANGE_ALL_TO_ALL || op->def == &RF_OP_TAKE_RUN;
  int id = op->input[0];
  if (id < 0 || id >= graph->tensor_count)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "missing input (%s %s: expected x, got none)", op->def->name,
                   op->name);
  const rf_tensor x = graph->tensor[id]; /* a copy, because a new tensor may move the array */
  const rf_attr_collective *attr = &op->attr.collective;
  int64_t dims[RF_MAX_RANK], group = op->attr.group;
  RF_TRY(group_check(op, error));
  if (gathers || splits) RF_TRY(dims_check(op, &x, error));
  for (int i = 0; i < x.rank; i++) dims[i] = x.shape[i];
  if (gathers) {
    int64_t most = dims[attr->dim] * group, whole = attr->whole > 0 ? attr->whole : most;
    if (whole > most || whole <= most - group)
      return RF_FAIL(
          error, RAFTER_INVALID, NULL,
          "the parts do not add up to the full extent (%s %s: expected %lld parts of %lld, got %lld)",
          op->def->name, op->name, (long long)group, (long long)rf_ceil_div(whole, group),
          (long long)dims[attr->dim]);
    dims[attr->dim] = whole;
  }
  if (splits) {
    int split = gathers ? attr->to : attr->dim;
    dims[split] = rf_ceil_div(dims[split], group);
  }
  return rf_shape_output(graph, op, 0, x.class == RF_CLASS_WEIGHT ? RF_CLASS_COLLECTIVE : x.class, x.dtype,
                         x.rank, dims, error);
}

/* `sent_bytes` is the array's size over all chips of the group, as in the usual formulas for
 * collectives. */
static rf_work sends(const rf_graph *graph, const rf_op *op, double bytes) {
  rf_work work = rf_work_bytes(graph, op);
  work.sent_bytes = op->attr.group > 1 ? bytes : 0;
  return work;
}
static rf_work gather_work(const rf_graph *graph, const rf_op *op) {
  return sends(graph, op, (double)rf_tensor_bytes(&graph->tensor[op->output[0]]));
}
static rf_work reduce_work(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *x = &graph->tensor[op->input[0]];
  double columns = (double)x->shape[x->rank - 1];
  return sends(graph, op,
               (columns - (double)op->attr.collective.own_columns) / columns * (double)rf_tensor_bytes(x));
}
static rf_work transpose_work(const rf_graph *graph, const rf_op *op) {
  double fill = op->attr.fill > 0 ? (double)op->attr.fill : 1;
  return sends(graph, op, fill * (double)rf_tensor_bytes(&graph->tensor[op->input[0]]) * op->attr.group);
}
static rf_work offload_work(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *x = &graph->tensor[op->input[0]];
  int64_t rows = op->attr.offload.rows;
  double bytes = rows > 0 ? (double)rows * rf_cache_position_bytes(x) : (double)rf_tensor_bytes(x);
  return (rf_work){.bytes_read = bytes, .bytes_written = bytes, .sent_bytes = bytes};
}

/* Fields for the definition of an exchange op that has one input x and one output y. */
#define MOVES(FAMILY) \
  .kind = RF_KIND_EXCHANGE, .inputs = {"x (..)"}, .outputs = {"y (..)"}, .fields = RF_FIELDS_##FAMILY, \
  .shape = exchange_shape

const rf_op_def RF_OP_ALL_GATHER = {
    .name = "all_gather",
    MOVES(COLLECTIVE),
    .formula = "y = the x of all chips of the group, concatenated along dimension `dim` in the order of the "
               "mesh, without the padding of the last one",
    .work = gather_work,
    .tolerance = {1e-9f, 1e-9f},
    .exchange = RF_EXCHANGE_ALL_GATHER,
};

const rf_op_def RF_OP_REDUCE_SCATTER = {
    .name = "reduce_scatter",
    MOVES(COLLECTIVE),
    .formula = "y = this chip's range along dimension `dim` of the sum of the group's x in chip order, in "
               "f32; an accumulating y is added to",
    .work = reduce_work,
    .tolerance = {1e-6f, 1e-2f},
    .exchange = RF_EXCHANGE_REDUCE_SCATTER,
};

const rf_op_def RF_OP_ALL_REDUCE = {
    .name = "all_reduce",
    MOVES(COLLECTIVE),
    .formula =
        "y = the sum of the group's x in chip order, in f32; log_sum: log(sum over the group of exp(x)); an "
        "accumulating y is added to; a group smaller than its axes consists of neighbouring chips; the sum "
        "covers columns from `own_columns` on, and y = x in the columns before",
    .work = reduce_work,
    RF_INPLACE({0, 0}),
    .tolerance = {1e-6f, 1e-2f},
    .exchange = RF_EXCHANGE_ALL_REDUCE,
};

const rf_op_def RF_OP_ALL_TO_ALL = {
    .name = "all_to_all",
    MOVES(COLLECTIVE),
    .formula = "chip i of the group gets range i along dimension `to` of every chip's x, concatenated along "
               "dimension `dim`",
    .work = transpose_work,
    .tolerance = {1e-9f, 1e-9f},
    .exchange = RF_EXCHANGE_ALL_TO_ALL,
};

const rf_op_def RF_OP_PERMUTE = {
    .name = "permute",
    MOVES(COLLECTIVE),
    .formula = "y = the x of the previous chip in the ring of the group; back: the x of the next chip",
    .work = reduce_work,
    .tolerance = {1e-9f, 1e-9f},
    .exchange = RF_EXCHANGE_PERMUTE,
};

/* ---- exchanges in two halves ----------------------------------------------------------------- */

#define STARTS(NAME, WHAT, WORK, KIND) \
  .name = NAME, MOVES(COLLECTIVE), \
  .formula = "begins the exchange y = " WHAT "(x); until the op exchange_wait of y, x must not change, and " \
             "no op may use y", \
  .work = WORK, .tolerance = {1e-6f, 1e-2f}, .exchange = KIND, .starts = true

const rf_op_def RF_OP_ALL_GATHER_START = {
    STARTS("all_gather_start", "all_gather", gather_work, RF_EXCHANGE_ALL_GATHER),
};
const rf_op_def RF_OP_REDUCE_SCATTER_START = {
    STARTS("reduce_scatter_start", "reduce_scatter", reduce_work, RF_EXCHANGE_REDUCE_SCATTER),
};
const rf_op_def RF_OP_ALL_REDUCE_START = {
    STARTS("all_reduce_start", "all_reduce", reduce_work, RF_EXCHANGE_ALL_REDUCE),
};

static rf_status wait_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  for (int i = 0; i < 2; i++) {
    int id = i ? op->output[0] : op->input[0];
    if (id < 0 || id >= graph->tensor_count)
      return RF_FAIL(error, RAFTER_INVALID, NULL,
                     "missing tensor (exchange_wait %s: expected %s of the exchange, got none)", op->name,
                     i ? "the output" : "the input");
  }
  return group_check(op, error);
}

static rf_work no_work(const rf_graph *graph, const rf_op *op) {
  (void)graph;
  (void)op;
  return (rf_work){0};
}

const rf_op_def RF_OP_EXCHANGE_WAIT = {
    .name = "exchange_wait",
    .kind = RF_KIND_EXCHANGE,
    .formula = "waits until the exchange of x to y that an op with the suffix _start began is complete",
    .inputs = {"x (..)"},
    .outputs = {"y (..)"},
    .fields = RF_FIELDS_COLLECTIVE,
    .shape = wait_shape,
    .work = no_work,
    .tolerance = {1e-9f, 1e-9f},
    .exchange = RF_EXCHANGE_WAIT,
};

/* ---- stages and hosts ------------------------------------------------------------------------ */

static rf_status send_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  if (op->input[0] < 0 || op->input[0] >= graph->tensor_count)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "missing input (send %s: expected x, got none)", op->name);
  return group_check(op, error);
}

static rf_status recv_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  if (op->output[0] < 0 || op->output[0] >= graph->tensor_count)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "no output tensor (recv %s: expected a tensor id, since no input gives the shape)",
                   op->name);
  return group_check(op, error);
}

static rf_work send_work(const rf_graph *graph, const rf_op *op) {
  double bytes = (double)rf_tensor_bytes(&graph->tensor[op->input[0]]);
  return (rf_work){.bytes_read = bytes, .sent_bytes = op->attr.group > 1 ? bytes : 0};
}

/* The work of the send op is the transfer and the write into the receiver's memory. The work of the
 * recv op is only the extra read and write of an op that accumulates. */
static rf_work recv_work(const rf_graph *graph, const rf_op *op) {
  double bytes =
      op->attr.accumulate[0] == RF_WRITE ? 0 : (double)rf_tensor_bytes(&graph->tensor[op->output[0]]);
  return (rf_work){.bytes_read = bytes, .bytes_written = bytes};
}

const rf_op_def RF_OP_SEND = {
    .name = "send",
    .kind = RF_KIND_EXCHANGE,
    .formula = "sends x to the chip of stage `stage` with the same coordinates on all other axes; the recv "
               "op with the same `site` receives it",
    .inputs = {"x (..)"},
    .fields = RF_FIELDS_TRANSFER,
    .shape = send_shape,
    .work = send_work,
    .expand = rf_expand_transfer,
    .tolerance = {1e-9f, 1e-9f},
    .exchange = RF_EXCHANGE_SEND,
};

const rf_op_def RF_OP_RECV = {
    .name = "recv",
    .kind = RF_KIND_EXCHANGE,
    .formula = "y = the tensor that stage `stage` sends for the same microbatch; an accumulating y is added "
               "to; in a group of one chip: 0",
    .outputs = {"y (..)"},
    .fields = RF_FIELDS_TRANSFER,
    .shape = recv_shape,
    .work = recv_work,
    .expand = rf_expand_transfer,
    .tolerance = {1e-9f, 1e-9f},
    .exchange = RF_EXCHANGE_RECV,
};

const rf_op_def RF_OP_OFFLOAD_OUT = {
    .name = "offload_out",
    MOVES(OFFLOAD),
    .formula = "y = x, stored in the host's memory; for a cache with rows > 0 only `rows` rows are sent, "
               "since the rest is already there",
    .work = offload_work,
    .tolerance = {1e-9f, 1e-9f},
    .exchange = RF_EXCHANGE_TO_HOST,
};

const rf_op_def RF_OP_OFFLOAD_IN = {
    .name = "offload_in",
    MOVES(OFFLOAD),
    .formula = "y = x, fetched from the host's memory",
    .work = offload_work,
    .tolerance = {1e-9f, 1e-9f},
    .exchange = RF_EXCHANGE_FROM_HOST,
};

static rf_work local_work(const rf_graph *graph, const rf_op *op) {
  double bytes = (double)rf_tensor_bytes(&graph->tensor[op->output[0]]);
  return (rf_work){.bytes_read = bytes, .bytes_written = bytes};
}

const rf_op_def RF_OP_TAKE_RUN = {
    .name = "take_run",
    MOVES(COLLECTIVE),
    .formula =
        "y = this chip's range (form STRIDED: every n-th element of n chips) along dimension `dim` of x; "
        "every chip of the group has x, so nothing is sent",
    .work = local_work,
    .tolerance = {1e-9f, 1e-9f},
};
