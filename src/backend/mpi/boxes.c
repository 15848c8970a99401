/* boxes.c - see boxes.h: one function for each kind of collective. */
#include "backend/mpi/boxes.h"

#include <string.h>

static void strides_of(const rf_tensor *t, int64_t stride[RF_MAX_RANK]) {
  int64_t step = 1;
  for (int d = t->rank - 1; d >= 0; d--) {
    stride[d] = step;
    step *= t->shape[d];
  }
}

/* A box with the extents of the sender's input, at the start of both tensors. */
static rf_box whole_box(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *x = &graph->tensor[op->input[0]], *y = &graph->tensor[op->output[0]];
  rf_box b = {.from_at = 0};
  for (int d = 0; d < RF_MAX_RANK; d++) b.extent[d] = 1;
  for (int d = 0; d < x->rank; d++) b.extent[d] = x->shape[d];
  strides_of(x, b.from_stride);
  strides_of(y, b.to_stride);
  return b;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t positive(int64_t a) { return a > 0 ? a : 0; }

static void add(rf_boxes *boxes, rf_box b) {
  int64_t elements = 1;
  for (int d = 0; d < RF_MAX_RANK; d++) elements *= b.extent[d];
  if (elements <= 0) return;
  boxes->elements += elements;
  boxes->box[boxes->count++] = b;
}

/* The input becomes part `from` of the output. The padding of the last part is left out. */
static void gather(rf_boxes *boxes, const rf_graph *graph, const rf_op *op, int64_t from) {
  rf_box b = whole_box(graph, op);
  int dim = op->attr.collective.dim;
  int64_t whole = graph->tensor[op->output[0]].shape[dim], group = op->attr.group, stride = b.to_stride[dim];
  if (op->attr.collective.form == RF_FORM_STRIDED) {
    b.extent[dim] = smaller(b.extent[dim], positive(rf_ceil_div(whole - from, group)));
    b.to_at = from * stride;
    b.to_stride[dim] = group * stride;
  } else {
    b.to_at = from * b.extent[dim] * stride;
    b.extent[dim] = smaller(b.extent[dim], positive(whole - from * b.extent[dim]));
  }
  add(boxes, b);
}

/* The output is part `to` of the input. The padding of the output does not come from the input. */
static void scatter(rf_boxes *boxes, const rf_graph *graph, const rf_op *op, int64_t to) {
  rf_box b = whole_box(graph, op);
  int dim = op->attr.collective.dim;
  int64_t whole = b.extent[dim], group = op->attr.group, part = rf_ceil_div(whole, group),
          stride = b.from_stride[dim];
  if (op->attr.collective.form == RF_FORM_STRIDED) {
    b.extent[dim] = smaller(part, positive(rf_ceil_div(whole - to, group)));
    b.from_at = to * stride;
    b.from_stride[dim] = group * stride;
  } else {
    b.from_at = to * part * stride;
    b.extent[dim] = smaller(part, positive(whole - to * part));
  }
  add(boxes, b);
}

/* Range `to` of dimension `to_dim` becomes part `from` along dimension `dim`. */
static void exchange(rf_boxes *boxes, const rf_graph *graph, const rf_op *op, int64_t from, int64_t to) {
  rf_box b = whole_box(graph, op);
  int dim = op->attr.collective.dim, to_dim = op->attr.collective.to;
  int64_t run = b.extent[to_dim] / op->attr.group;
  b.from_at = to * run * b.from_stride[to_dim];
  b.extent[to_dim] = run;
  b.to_at = from * b.extent[dim] * b.to_stride[dim];
  add(boxes, b);
}

/* Each row has query, key and value heads. If the collective splits dimension 1, a chip sends its
 * own heads of the rows that the receiver gets. If the collective splits dimension 0, a chip sends
 * the heads that the receiver gets, of its own rows. */
static void exchange_heads(rf_boxes *boxes, const rf_graph *graph, const rf_op *op, int64_t from,
                           int64_t to) {
  const rf_attr_collective *attr = &op->attr.collective;
  const rf_box whole = whole_box(graph, op);
  int64_t group = op->attr.group, rows = whole.extent[0] / (attr->dim == 1 ? group : 1), all = 0;
  for (int part = 0; part < 3; part++) {
    int64_t heads = part == 0 ? attr->heads : attr->kv_heads, few = heads / group, hd = attr->head_dim;
    rf_box b = whole;
    b.extent[0] = rows;
    b.extent[1] = few * hd;
    if (attr->dim == 1) {
      b.from_at = to * rows * b.from_stride[0] + all / group * hd;
      b.to_at = (all + from * few) * hd;
    } else {
      b.from_at = (all + to * few) * hd;
      b.to_at = from * rows * b.to_stride[0] + all / group * hd;
    }
    add(boxes, b);
    all += heads;
  }
}

static void reduce(rf_boxes *boxes, const rf_graph *graph, const rf_op *op) {
  rf_box b = whole_box(graph, op);
  int last = graph->tensor[op->input[0]].rank - 1;
  b.from_at = b.to_at = op->attr.collective.own_columns;
  b.extent[last] = positive(b.extent[last] - op->attr.collective.own_columns);
  add(boxes, b);
}

/* Merges dimensions that are contiguous both in the input and in the output, to get long runs. The
 * merged dimensions become the last ones. */
static void merge(rf_box *b) {
  rf_box m = {.from_at = b->from_at, .to_at = b->to_at};
  int at = RF_MAX_RANK - 1;
  for (int d = 0; d < RF_MAX_RANK; d++) m.extent[d] = m.from_stride[d] = m.to_stride[d] = 1;
  for (int d = RF_MAX_RANK - 1; d >= 0; d--) {
    if (b->extent[d] == 1) continue;
    bool follows = b->from_stride[d] == m.from_stride[at] * m.extent[at] &&
                   b->to_stride[d] == m.to_stride[at] * m.extent[at];
    if (!follows) {
      if (m.extent[at] > 1) at--;
      m.from_stride[at] = b->from_stride[d];
      m.to_stride[at] = b->to_stride[d];
    }
    m.extent[at] *= b->extent[d];
  }
  *b = m;
}

rf_boxes rf_boxes_of(const rf_graph *graph, const rf_op *op, int64_t from, int64_t to) {
  const rf_attr_collective *attr = &op->attr.collective;
  rf_boxes boxes = {.count = 0};
  int64_t group = op->attr.group;
  switch (op->def->exchange) {
  case RF_EXCHANGE_ALL_GATHER: gather(&boxes, graph, op, from); break;
  case RF_EXCHANGE_REDUCE_SCATTER: scatter(&boxes, graph, op, to); break;
  case RF_EXCHANGE_ALL_REDUCE: reduce(&boxes, graph, op); break;
  case RF_EXCHANGE_ALL_TO_ALL:
    if (attr->form == RF_FORM_HEADS) exchange_heads(&boxes, graph, op, from, to);
    else exchange(&boxes, graph, op, from, to);
    break;
  case RF_EXCHANGE_PERMUTE:
    if (from == (to + (attr->back ? 1 : group - 1)) % group) add(&boxes, whole_box(graph, op));
    break;
  default: break;
  }
  for (int i = 0; i < boxes.count; i++) merge(&boxes.box[i]);
  return boxes;
}

bool rf_boxes_direct(const rf_boxes *boxes, bool output, int64_t *at) {
  *at = boxes->count ? output ? boxes->box[0].to_at : boxes->box[0].from_at : 0;
  if (boxes->count != 1) return boxes->count == 0;
  const rf_box *b = &boxes->box[0];
  const int64_t *stride = output ? b->to_stride : b->from_stride;
  int64_t step = 1;
  for (int d = RF_MAX_RANK - 1; d >= 0; d--) {
    if (b->extent[d] > 1 && stride[d] != step) return false;
    step *= b->extent[d];
  }
  return true;
}

/* Visits elements [first, first + count) of one box, row by row. */
static void visit_box(const rf_box *b, bool output, int64_t first, int64_t count, int64_t done,
                      rf_boxes_visit visit, void *self) {
  const int64_t *stride = output ? b->to_stride : b->from_stride, row = b->extent[RF_MAX_RANK - 1],
                step = stride[RF_MAX_RANK - 1];
  while (count > 0) {
    int64_t column = first % row, left = first / row, at = output ? b->to_at : b->from_at;
    int64_t n = step != 1 ? 1 : smaller(row - column, count);
    for (int d = RF_MAX_RANK - 2; d >= 0; d--) {
      at += left % b->extent[d] * stride[d];
      left /= b->extent[d];
    }
    visit(self, at + column * step, done, n);
    first += n;
    done += n;
    count -= n;
  }
}

void rf_boxes_runs(const rf_boxes *boxes, bool output, int64_t first, int64_t count, rf_boxes_visit visit,
                   void *self) {
  int64_t begin = 0, end = first + count;
  for (int i = 0; i < boxes->count; i++) {
    const rf_box *b = &boxes->box[i];
    int64_t elements = 1;
    for (int d = 0; d < RF_MAX_RANK; d++) elements *= b->extent[d];
    int64_t low = first > begin ? first : begin, high = smaller(end, begin + elements);
    if (low < high) visit_box(b, output, low - begin, high - low, low - first, visit, self);
    begin += elements;
  }
}
