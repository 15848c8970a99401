/* calibrate_network.c - measures the collectives between the ranks of an MPI job, with the kernels
 * that steps run (backend/mpi). Groups of every size are measured within a node and
 * across nodes. */
#include "run/calibrate_parts.h"

#include "backend/mpi/link.h"
#include "graph/mesh/place.h"
#include "machine/exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES = 9, QUICK_SIZES = 5, COLUMNS = 64, MOST_CALLS = 100, BATCHES = 5 };
static const double FIRST_BYTES = 1 << 10,
                    LONGEST = 1.0; /* sizes above the first that takes LONGEST seconds are left out */

/* ---- ranks that act together ----------------------------------------------------------------- */

/* Every rank gets the largest value of all ranks. */
rf_status rf_calibrate_largest(rf_link *link, double *value, rf_error *error) {
  if (link->rank > 0) RF_TRY(rf_link_send(link, 0, value, sizeof *value, error));
  for (int rank = 1; rank < link->ranks && link->rank == 0; rank++) {
    double other;
    RF_TRY(rf_link_receive(link, rank, &other, sizeof other, error));
    *value = fmax(*value, other);
  }
  return rf_link_share(link, value, sizeof *value, error);
}

rf_status rf_calibrate_meet(const rf_calibrate_options *o, rf_error *error) {
  double stops = rf_flag_is_set(o->stop);
  if (!o->link) return RAFTER_OK;
  RF_TRY(rf_calibrate_largest(o->link, &stops, error));
  if (o->stopped) *o->stopped = stops > 0;
  return stops > 0 ? RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal; nothing was written")
                   : RAFTER_OK;
}

rf_status rf_calibrate_check_ranks(const rf_calibrate_options *o, rf_error *error) {
  const rf_link *link = o->link;
  int each = link->together, wrong = 0;
  while (wrong < link->ranks && !strcmp(rf_link_host(link, wrong), rf_link_host(link, wrong / each * each)))
    wrong++;
  double uneven = wrong < link->ranks || link->ranks % each;
  RF_TRY(rf_calibrate_largest(o->link, &uneven, error));
  if (uneven == 0) return RAFTER_OK;
  static const char *const HINT =
      "start as many ranks on each node, node by node (Open MPI: --map-by slot; MPICH: -ppn N)";
  if (wrong == link->ranks)
    return RF_FAIL(error, RAFTER_INVALID, HINT, "the nodes have different numbers of ranks (%s has %d of %d)",
                   rf_link_host(link, link->rank), each, link->ranks);
  return RF_FAIL(error, RAFTER_INVALID, HINT,
                 "the ranks are not numbered node by node (rank %d: expected on %s, got %s)", wrong,
                 rf_link_host(link, wrong / each * each), rf_link_host(link, wrong));
}

/* ---- the figures of a rank ------------------------------------------------------------------- */

/* For these figures, a large value means a slow op. All ranks have measured the same sizes. */
static double slowness(const rf_machine *m) {
  double sum = 0, points = 0;
  for (int i = 0; i < m->curve_count; i++)
    for (int k = 0; k < m->curve[i].count; k++, points++)
      sum += log(m->curve[i].seconds[k] / m->curve[i].work[k]);
  return points > 0 ? sum / points : 0;
}

/* A step waits for its slowest rank, so rank 0 takes the figures of that rank. */
static rf_status take_slowest(rf_link *link, rf_machine *m, rf_error *error) {
  rf_status status = RAFTER_OK;
  if (link->rank > 0) return rf_link_send(link, 0, m, sizeof *m, error);
  rf_machine *other = malloc(sizeof *other);
  if (!other) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while calibrating");
  for (int rank = 1; rank < link->ranks; rank++) {
    RF_GO(rf_link_receive(link, rank, other, sizeof *other, error));
    if (slowness(other) > slowness(m)) *m = *other;
  }
done:
  free(other);
  return status;
}

/* ---- one collective -------------------------------------------------------------------------- */

/* Groups of a mesh. A group has `inside` chips on each of `nodes` nodes. All groups exchange at the
 * same time. */
typedef struct groups {
  int inside, nodes;
  rf_mesh mesh;
} groups;
static const rf_axes GROUP = RF_AXIS_BIT(RF_AXIS_FSDP) | RF_AXIS_BIT(RF_AXIS_TENSOR);

static groups groups_of(const rf_link *link, int inside, int nodes) {
  int each = link->together;
  groups g = {.inside = inside, .nodes = nodes};
  g.mesh.of[RF_AXIS_DATA] = link->ranks / each / nodes;
  g.mesh.of[RF_AXIS_FSDP] = nodes;
  g.mesh.of[RF_AXIS_SEQUENCE] = each / inside;
  g.mesh.of[RF_AXIS_TENSOR] = inside;
  return g;
}

typedef struct bench {
  const rf_calibrate_options *o;
  rf_model model;
  rf_calibrate_room room;
  void *in, *out;
} bench;

/* A graph with this collective of at most `bytes` bytes. *bytes gets the bytes of the graph. If
 * `halves` is true, one op begins the collective, and another op waits for it. */
static rf_status build(const bench *b, const groups *g, rf_collective kind, rf_dtype dtype, bool halves,
                       double *bytes, rf_graph **out, rf_error *error) {
  int64_t chips = (int64_t)g->inside * g->nodes, size = rf_dtype_bytes(dtype),
          columns = kind == RF_ALL_TO_ALL ? COLUMNS * chips : COLUMNS,
          parts = kind == RF_ALL_GATHER || kind == RF_ALL_TO_ALL ? chips : 1,
          even = kind == RF_REDUCE_SCATTER ? chips : 1,
          rows = (int64_t)(*bytes / (double)(parts * even * size * columns)) * even;
  if (rows < even) rows = even;
  int64_t x[] = {rows, columns};
  rf_graph *graph = rf_graph_new(&b->model);
  graph->mesh = g->mesh;
  graph->rows = rows;
  int inputs[] = {rf_graph_tensor(graph, "x", RF_CLASS_ACTIVATION, dtype, 2, x)};
  rf_attr attr = {.axes = GROUP, .group = (int)chips, .collective = {.dim = 0, .to = 1}};
  const rf_op_def *def = halves ? rf_calibrate_start_of(kind) : RF_COLLECTIVE_OPS[kind];
  int op = rf_graph_emit(graph, def, "exchange", RF_SECTION_MICRO, (rf_slots){inputs, 1}, RF_IDS(RF_WANTED),
                         &attr, error);
  int out_id = op < 0 ? RF_NONE : graph->op[op].output[0];
  if (op >= 0 && halves)
    op = rf_graph_emit(graph, &RF_OP_EXCHANGE_WAIT, "wait", RF_SECTION_MICRO, (rf_slots){inputs, 1},
                       RF_IDS(out_id), &attr, error);
  if (op < 0) {
    rf_graph_free(graph);
    return RAFTER_INVALID;
  }
  *bytes = (double)(parts * size * rows * columns);
  *out = graph;
  return RAFTER_OK;
}

/* The median time of a batch of calls. The calls of a batch follow each other without a pause. The
 * time of the second call on the slowest rank decides the number of calls. */
static rf_status time_calls(bench *b, const rf_graph *graph, double *seconds, rf_error *error) {
  const rf_kernel *kernel;
  rf_link *link = b->o->link;
  rf_call call;
  rf_run_inputs run = {.rows = graph->rows};
  double batch[BATCHES], wanted = b->o->quick ? 0.01 : 0.03;
  RF_TRY(rf_calibrate_kernel(b->o, graph, &b->room, "collectives", &kernel, &call, error));
  rf_place_of(&graph->mesh, link->rank, run.place);
  call.run = &run;
  call.link = link;
  call.in[0] = b->in;
  call.out[0] = b->out;
  int calls = 1, batches = b->o->quick ? 3 : BATCHES;
  for (int i = -2; i < batches;
       i++) { /* the first call opens connections, and the time of the second call decides `calls` */
    double start, took;
    RF_TRY(rf_calibrate_meet(b->o, error));
    start = rf_now_seconds();
    for (int k = 0; k < (i < 0 ? 1 : calls); k++) kernel->run(&call);
    took = (rf_now_seconds() - start) / (i < 0 ? 1 : calls);
    RF_TRY(rf_link_status(link, "calibrating", error));
    RF_TRY(rf_calibrate_largest(link, &took, error));
    batch[i < 0 ? 0 : i] = took;
    if (i < 0) calls = (int)fmax(1, fmin(MOST_CALLS, wanted / took));
    if (i < 0 && took > LONGEST / 4) batches = 2;
  }
  *seconds = rf_ceiling_of(batch, batches).median;
  return RAFTER_OK;
}

static rf_status measure_core(bench *b, const groups *g, rf_collective kind, rf_dtype dtype, double bytes,
                              double seconds, double *core, rf_error *error) {
  rf_graph *graph;
  RF_TRY(build(b, g, kind, dtype, true, &bytes, &graph, error));
  rf_status status = rf_calibrate_core(b->o, graph, &b->room, b->in, b->out, seconds, core, error);
  rf_graph_free(graph);
  return status;
}

static rf_status measure_curve(bench *b, const groups *g, rf_collective kind, rf_dtype dtype,
                               rf_exchange_curve *c, rf_error *error) {
  int sizes = b->o->quick ? QUICK_SIZES : SIZES;
  double factor = b->o->quick ? 16 : 4, wanted = FIRST_BYTES, before = 0;
  *c = (rf_exchange_curve){.kind = kind, .dtype = dtype, .inside = g->inside, .nodes = g->nodes};
  for (int i = 0; i < sizes; i++, wanted *= factor) {
    rf_graph *graph;
    double bytes = wanted, seconds = 0;
    if (before * factor > LONGEST && c->count > 1) break;
    RF_TRY(build(b, g, kind, dtype, false, &bytes, &graph, error));
    bool known = c->count && bytes <= c->bytes[c->count - 1]; /* a group of many chips has few small sizes */
    rf_status status = known ? RAFTER_OK : time_calls(b, graph, &seconds, error);
    rf_graph_free(graph);
    RF_TRY(status);
    if (known) continue;
    c->bytes[c->count] = bytes;
    c->seconds[c->count] = before = seconds;
    if (rf_calibrate_start_of(kind))
      RF_TRY(measure_core(b, g, kind, dtype, bytes, seconds, &c->core_seconds[c->count], error));
    c->count++;
  }
  return RAFTER_OK;
}

/* ---- all collectives ------------------------------------------------------------------------- */

static rf_status measure_groups(bench *b, const groups *g, rf_machine *m, rf_error *error) {
  for (int kind = 0; kind < RF_COLLECTIVES; kind++) {
    bool sums = kind == RF_REDUCE_SCATTER || kind == RF_ALL_REDUCE;
    for (int d = 0; d < (sums ? 2 : 1) && m->exchange_count < RF_EXCHANGE_CURVES; d++)
      RF_TRY(measure_curve(b, g, (rf_collective)kind, d ? RF_BF16 : RF_F32, &m->exchange[m->exchange_count++],
                           error));
  }
  return RAFTER_OK;
}

/* Latency and bytes/s of one chip, from its messages to its neighbour. */
static void link_of(const rf_machine *m, int inside, int nodes, double *bps, double *latency) {
  for (int i = 0; i < m->exchange_count; i++) {
    const rf_exchange_curve *c = &m->exchange[i];
    if (c->kind != RF_PERMUTE || c->inside != inside || c->nodes != nodes) continue;
    *bps = c->bytes[c->count - 1] / c->seconds[c->count - 1];
    *latency = c->seconds[0];
  }
}

/* Sets the figures with which the formulas predict groups that have no curve. */
static void set_topology(rf_machine *m, const rf_link *link) {
  int each = link->together, nodes = link->ranks / each;
  rf_topology *t = &m->topology;
  double between = 0, latency = 0;
  *t = (rf_topology){.form = RF_NETWORK_SWITCH, .fraction = 1, .domain = each, .host_chips = each};
  link_of(m, 1, nodes, &between, &latency);
  t->oneway_bps = between;
  t->hop_seconds = latency;
  link_of(m, each, 1, &t->oneway_bps, &t->hop_seconds);
  t->node_bps = between * each;
  m->chips = link->ranks;
  m->shape_rank = nodes > 1 ? 2 : 1;
  m->shape[0] = each;
  m->shape[1] = nodes > 1 ? nodes : 0;
}

rf_status rf_calibrate_network(const rf_calibrate_options *o, rf_machine *m, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_link *link = o->link;
  size_t most = (size_t)FIRST_BYTES << 2 * (SIZES - 1), slack = 1 << 22;
  bench b = {.o = o};
  int each = link->together, nodes = link->ranks / each;
  RF_TRY(rf_calibrate_model(&b.model, error));
  RF_TRY(take_slowest(link, m, error));
  m->memory_bytes /= each;
  m->exchange_count = 0;
  b.in = aligned_alloc(64, most + slack);
  b.out = aligned_alloc(64, most + slack);
  if (!b.in || !b.out)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while measuring the network"));
  rf_calibrate_values(b.in, most + slack, 0.5f);
  memset(b.out, 0, most + slack);
  for (int n = 1; n <= nodes; n++)
    for (int i = 1; i <= each; i++) {
      if (nodes % n || each % i || i * n == 1) continue;
      if (o->say) o->say(o->self, "network", (double)(n * i) / (nodes * each));
      groups g = groups_of(link, i, n);
      RF_GO(measure_groups(&b, &g, m, error));
    }
  set_topology(m, link);
done:
  free(b.in);
  free(b.out);
  free(b.room.at);
  return status;
}
