/* pass.c - predicted seconds of passes that are smaller than the plan assumes: forward passes of a
 * generate plan with fewer rows or shorter contexts, and training steps over shorter sequences. */
#include "plan/parts.h"

#include <stdlib.h>
#include <string.h>

/* Number of pairs of row and key in attention, for the last `rows` rows of a sequence with
 * `context` rows. A row attends to itself and to earlier rows, together at most `window` rows. */
static double sum_of_keys(double rows, double context, double window) {
  double first = context - rows + 1;
  if (window <= 0 || context <= window) return rows * (first + context) / 2;
  if (first > window) return rows * window;
  return (window - first + 1) * (first + window) / 2 + (context - window) * window;
}

/* Work of attention over a cache. The keys of a sequence are read once for all its rows
 * together. */
static rf_work cached_work(const rf_graph *graph, const rf_op *op, const rf_extent *part, int parts) {
  rf_cached cached = rf_cached_of(graph, op);
  double window = op->attr.attention.window, rows = 0;
  rf_work work = {.bytes_read = (double)rf_tensor_bytes(&graph->tensor[op->input[0]]) + cached.fixed_bytes,
                  .bytes_written = (double)rf_tensor_bytes(&graph->tensor[op->output[0]])};
  for (int i = 0; i < parts; i++) {
    double here = (double)part[i].rows, context = (double)part[i].context,
           reach = window > 0 ? window + here - 1 : context;
    work.bytes_read += (context < reach ? context : reach) * cached.position_bytes;
    work.flops += cached.flops_row * here + cached.flops_key * sum_of_keys(here, context, window);
    rows += here;
  }
  work.bytes_read += 8 * rows;
  work.bytes_written += rows * cached.position_bytes;
  work.flops_full = work.flops;
  return work;
}

/* True if an op copies an offloaded cache to or from the host. */
static bool moves_cache(const rf_graph *graph, const rf_op *op) {
  return (op->def->exchange == RF_EXCHANGE_TO_HOST || op->def->exchange == RF_EXCHANGE_FROM_HOST) &&
         graph->tensor[op->input[0]].class == RF_CLASS_KV;
}

static rf_work moved_work(const rf_graph *graph, const rf_op *op, const rf_extent *part, int parts) {
  double window = op->attr.offload.window, positions = 0;
  for (int i = 0; i < parts; i++) {
    double here = (double)part[i].rows, context = (double)part[i].context,
           reach = window > 0 ? window + here - 1 : context;
    positions += op->attr.offload.rows > 0 ? here : context < reach ? context : reach;
  }
  /* the positions of the cache are sharded along the mesh's axis context */
  double chips = (double)rf_mesh_extent(&graph->mesh, RF_AXIS_CONTEXT);
  double bytes = positions * rf_cache_position_bytes(&graph->tensor[op->input[0]]) / chips;
  return (rf_work){.bytes_read = bytes, .bytes_written = bytes, .sent_bytes = bytes};
}

static bool depends_on_context(const rf_graph *graph, const rf_op *op) {
  return rf_op_is_cached(op) || moves_cache(graph, op);
}

/* Work of an op for `rows` rows. The work does not depend on contexts. The memory of experts always
 * has the same number of rows, so fewer rows fill less of this memory. */
static rf_work plain_work(const rf_graph *graph, const rf_op *op, int64_t rows) {
  rf_op here = *op;
  double all = (double)(graph->rows * rf_mesh_size(&graph->mesh, RF_AXES_OF_PASS));
  if (op->attr.fill > 0 && (double)rows < all)
    here.attr.fill = (float)((double)op->attr.fill * (double)rows / all);
  return op->def->work(graph, &here);
}

static int64_t sum_of_rows(const rf_extent *part, int parts) {
  int64_t rows = 0;
  for (int i = 0; i < parts; i++) rows += part[i].rows;
  return rows;
}

static rf_work work_of(const rf_graph *graph, const rf_op *op, const rf_extent *part, int parts) {
  return rf_op_is_cached(op)      ? cached_work(graph, op, part, parts)
         : moves_cache(graph, op) ? moved_work(graph, op, part, parts)
                                  : plain_work(graph, op, sum_of_rows(part, parts));
}

rf_work rf_plan_pass_work(const rf_plan *plan, int op, const rf_extent *part, int parts) {
  return work_of(plan->graph, &plan->graph->op[op], part, parts);
}

/* Number of rows of a tensor on one chip, in a forward pass of `rows` rows. After a gather, a chip
 * has all rows. Before the gather, a chip has a part of the rows. */
static int64_t rows_of(const rf_graph *graph, int64_t bound, int64_t rows) {
  int64_t chips = rf_mesh_size(&graph->mesh, RF_AXES_OF_PASS), all = graph->rows * chips;
  if (chips > 1 && bound == all) return rows < all ? rows : all;
  return rf_rows_of_pass(graph, bound, (rows + chips - 1) / chips);
}

/* Sets the number of rows of each tensor in a graph. The first dimension of an activation is its
 * rows. Page tables have one row per sequence. Logits, and the indices that select their rows, also
 * have one row per sequence. If the plan verifies drafts, all rows get logits. */
static void cut_rows(const rf_plan *plan, rf_graph *graph, int64_t rows, int64_t sequences) {
  int64_t wanted = plan->options.build.draft ? rows : sequences;
  int64_t slots = 0;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    if (!op->def->rows_slot) continue; /* only the head reads a selection of the rows */
    int picked = op->input[op->def->rows_slot];
    slots = graph->tensor[picked].shape[0];
    graph->tensor[picked].shape[0] = wanted < slots ? wanted : slots;
    for (int o = 0; o < op->output_count; o++)
      if (op->output[o] >= 0) graph->tensor[op->output[o]].shape[0] = graph->tensor[picked].shape[0];
  }
  for (int t = 0; t < graph->tensor_count; t++) {
    rf_tensor *tensor = &graph->tensor[t];
    bool moves = tensor->class == RF_CLASS_ACTIVATION || tensor->class == RF_CLASS_IO ||
                 tensor->class == RF_CLASS_COLLECTIVE;
    if (moves && !tensor->persistent && tensor->rank > 0)
      tensor->shape[0] = rows_of(graph, tensor->shape[0], rows);
  }
  for (int i = 0; i < graph->op_count; i++)
    if (rf_op_is_cached(&graph->op[i]))
      graph->tensor[rf_cached_of(graph, &graph->op[i]).table].shape[0] = sequences;
}

/* The seconds during which the chip is busy, and during which each direction of the host link is
 * busy. The chip and the two directions work at the same time. `total` has the work of the ops, and
 * the time on the chip by bound. */
typedef struct spans {
  double chip, in, out;
  rf_plan_totals total;
} spans;

static double longest(spans s) {
  return s.chip > s.in ? (s.chip > s.out ? s.chip : s.out) : s.in > s.out ? s.in : s.out;
}

/* Time and work of `calls` equal calls of an op on one chip. */
typedef struct priced {
  rf_work work; /* of one call */
  double seconds, calls;
  rf_bound bound;
} priced;

static void add(spans *s, const rf_op *op, priced p) {
  rf_plan_totals *t = &s->total;
  t->model_flops += p.work.flops * p.calls;
  t->hardware_flops += rf_cost_flops(p.work) * p.calls;
  t->flops_full_square += p.work.flops_full * p.calls;
  t->bytes += (p.work.bytes_read + p.work.bytes_written) * p.calls;
  t->sent_bytes += p.work.sent_bytes * p.calls;
  if (op->def->exchange == RF_EXCHANGE_FROM_HOST) s->in += p.seconds;
  else if (op->def->exchange == RF_EXCHANGE_TO_HOST) s->out += p.seconds;
  else {
    s->chip += p.seconds;
    t->time.by[p.bound] += p.seconds;
  }
}

/* Adds a forward pass on all chips to `sum`, and returns the seconds of the pass. */
static double finish_pass(const rf_plan *plan, const spans *s, rf_plan_totals *sum) {
  const double chips = (double)rf_mesh_chips(&plan->graph->mesh), seconds = longest(*s);
  if (!sum) return seconds;
  rf_plan_totals one = s->total;
  one.time.seconds = seconds;
  one.time.offload = s->in + s->out;
  one.time.offload_exposed = seconds - s->chip;
  one.time.by[RF_BOUND_NETWORK] += seconds - s->chip;
  one.model_flops *= chips;
  one.hardware_flops *= chips;
  one.flops_full_square *= chips;
  one.bytes *= chips;
  rf_plan_totals_add(sum, &one, 1);
  return seconds;
}

/* Prices one op. The time of a transfer is proportional to its bytes, except for latency. A
 * transfer between chips overlaps with nothing, because the next product needs its result. */
static priced price_op(const rf_plan *plan, const rf_graph *graph, int i, rf_work work) {
  const rf_plan_op *p = &plan->op[i];
  priced to = {.work = work, .calls = p->calls, .bound = RF_BOUND_NETWORK};
  double part = p->work.sent_bytes > 0 ? work.sent_bytes / p->work.sent_bytes : 1;
  to.seconds = p->lanes
                   ? (p->wait + (p->seconds - p->wait) * part) * p->calls
                   : rf_cost_op(&plan->machine, graph, &graph->op[i], p->kernel, work, &to.bound) * p->calls;
  return to;
}

/* Copies the graph. The tensors of the copy have only the rows that these sequences have. The
 * caller frees graph->tensor. If memory runs out, graph->tensor is NULL. */
static rf_graph cut_graph(const rf_plan *plan, const rf_extent *part, int parts) {
  rf_graph graph = *plan->graph;
  size_t bytes = (size_t)graph.tensor_count * sizeof *graph.tensor;
  graph.tensor = malloc(bytes ? bytes : 1);
  if (!graph.tensor) return graph;
  memcpy(graph.tensor, plan->graph->tensor, bytes);
  cut_rows(plan, &graph, sum_of_rows(part, parts), parts);
  return graph;
}

double rf_plan_pass_seconds(const rf_plan *plan, const rf_extent *part, int parts) {
  rf_graph graph = cut_graph(plan, part, parts);
  spans sum = {0};
  if (!graph.tensor) return plan->step_seconds;
  for (int i = 0; i < graph.op_count; i++) {
    const rf_op *op = &graph.op[i];
    add(&sum, op, price_op(plan, &graph, i, work_of(&graph, op, part, parts)));
  }
  free(graph.tensor);
  return longest(sum);
}

rf_status rf_plan_pass_ops(const rf_plan *plan, const rf_extent *part, int parts, double times,
                           double *seconds, double *limit, rf_error *error) {
  rf_graph graph = cut_graph(plan, part, parts);
  if (!graph.tensor) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while pricing a forward pass");
  for (int i = 0; i < graph.op_count; i++) {
    const rf_op *op = &graph.op[i];
    const rf_plan_op *p = &plan->op[i];
    rf_work work = work_of(&graph, op, part, parts);
    double least = p->lanes ? rf_plan_limit(plan, i, NULL)
                            : rf_cost_limit(&plan->machine, &graph, op, p->kernel, work, NULL);
    seconds[i] += times * price_op(plan, &graph, i, work).seconds;
    limit[i] += times * p->calls * least;
  }
  free(graph.tensor);
  return RAFTER_OK;
}

double rf_plan_sequences_seconds(const rf_plan *plan, const int64_t *tokens, int64_t count,
                                 int64_t microbatches) {
  const rf_graph *graph = plan->graph;
  const double rows = (double)(plan->options.build.microbatch * microbatches), seq = (double)graph->seq;
  double seconds = 0;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    double own = plan->op[i].seconds;
    if (op->section == RF_SECTION_MICRO) own *= (double)microbatches;
    if (op->def->timing == RF_TIMING_ATTENTION || op->def->timing == RF_TIMING_ATTENTION_BACKWARD) {
      double window = op->attr.attention.window, real = 0;
      for (int64_t k = 0; k < count; k++) real += sum_of_keys((double)tokens[k], (double)tokens[k], window);
      own *= rows > 0 ? real / (rows * sum_of_keys(seq, seq, window)) : 1;
    }
    seconds += own;
  }
  return seconds;
}

/* ---- many forward passes of one plan --------------------------------------------------------- */

/* Prices of forward passes of one plan. Only the times of attention over the cache and of cache
 * copies depend on contexts. The times of the other ops are stored, for each number of rows and
 * sequences. Ops with the same cost are priced once. */
enum { KEPT = 1 << 14 };
struct rf_pass_prices {
  const rf_plan *plan;
  rf_graph graph; /* a copy whose tensors have the rows of the current forward pass */
  int *alike, *count, kinds;
  struct kept {
    int64_t rows;
    int parts;
    spans spans;
  } kept[KEPT];
};

static bool same_cost(const rf_plan *plan, int a, int b) {
  const rf_op *x = &plan->graph->op[a], *y = &plan->graph->op[b];
  int cache = rf_op_is_cached(x) ? 1 : 0;
  const rf_tensor *s = &plan->graph->tensor[x->input[cache]], *t = &plan->graph->tensor[y->input[cache]];
  return rf_attr_same(x, y) && s->rank == t->rank && s->dtype == t->dtype && s->shape[3] == t->shape[3] &&
         plan->op[a].kernel == plan->op[b].kernel && plan->op[a].calls == plan->op[b].calls;
}

void rf_pass_prices_close(rf_pass_prices *prices) {
  if (!prices) return;
  free(prices->graph.tensor);
  free(prices->alike);
  free(prices->count);
  free(prices);
}

rf_pass_prices *rf_pass_prices_open(const rf_plan *plan) {
  rf_pass_prices *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  w->plan = plan;
  w->graph = *plan->graph;
  w->graph.tensor = malloc(((size_t)plan->graph->tensor_count + 1) * sizeof *w->graph.tensor);
  w->alike = calloc((size_t)plan->graph->op_count + 1, sizeof *w->alike);
  w->count = calloc((size_t)plan->graph->op_count + 1, sizeof *w->count);
  if (!w->graph.tensor || !w->alike || !w->count) {
    rf_pass_prices_close(w);
    return NULL;
  }
  memcpy(w->graph.tensor, plan->graph->tensor, (size_t)plan->graph->tensor_count * sizeof *w->graph.tensor);
  for (int i = 0; i < plan->graph->op_count; i++) {
    int k = 0;
    if (!depends_on_context(plan->graph, &plan->graph->op[i])) continue;
    while (k < w->kinds && !same_cost(plan, w->alike[k], i)) k++;
    if (k == w->kinds) w->alike[w->kinds++] = i;
    w->count[k] += plan->op[i].calls;
  }
  return w;
}

static spans all_but_attention(rf_pass_prices *w, int64_t rows, int parts) {
  struct kept *kept = &w->kept[(size_t)(rows * 31 + parts) % KEPT];
  if (kept->rows == rows && kept->parts == parts) return kept->spans;
  const rf_plan *plan = w->plan;
  memcpy(w->graph.tensor, plan->graph->tensor, (size_t)plan->graph->tensor_count * sizeof *w->graph.tensor);
  cut_rows(plan, &w->graph, rows, parts);
  *kept = (struct kept){.rows = rows, .parts = parts};
  for (int i = 0; i < w->graph.op_count; i++) {
    const rf_op *op = &w->graph.op[i];
    if (!depends_on_context(plan->graph, op))
      add(&kept->spans, op, price_op(plan, &w->graph, i, plain_work(&w->graph, op, rows)));
  }
  return kept->spans;
}

double rf_pass_price(rf_pass_prices *w, const rf_extent *part, int parts, rf_plan_totals *total) {
  const rf_plan *plan = w->plan;
  int64_t rows = sum_of_rows(part, parts);
  spans sum = all_but_attention(w, rows, parts);
  for (int k = 0; k < w->kinds; k++) {
    const rf_op *op = &w->graph.op[w->alike[k]];
    const int own[] = {op->input[0], op->output[0]};
    if (moves_cache(plan->graph, op)) {
      priced one = price_op(plan, &w->graph, w->alike[k], moved_work(&w->graph, op, part, parts));
      one.seconds = one.seconds / one.calls * w->count[k];
      one.calls = w->count[k];
      add(&sum, op, one);
      continue;
    }
    for (int t = 0; t < 2; t++)
      w->graph.tensor[own[t]].shape[0] = rows_of(plan->graph, plan->graph->tensor[own[t]].shape[0], rows);
    w->graph.tensor[rf_cached_of(&w->graph, op).table].shape[0] = parts;
    priced one = {.work = cached_work(&w->graph, op, part, parts), .calls = w->count[k]};
    one.seconds =
        rf_cost_op(&plan->machine, &w->graph, op, plan->op[w->alike[k]].kernel, one.work, &one.bound) *
        w->count[k];
    add(&sum, op, one);
  }
  return finish_pass(plan, &sum, total);
}
