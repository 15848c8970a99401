/* overlap.c - simulates a step on a chip. At the same time, the chip computes, exchanges data with
 * other chips, and copies from its host. The core runs the ops that compute, in graph order. A
 * transfer is issued after all ops that precede it in the graph. So the memory layout stays valid.
 * A transfer starts when its inputs are complete and its links are free. If an op only starts a
 * transfer, the core continues. The op exchange_wait waits for the end of the transfer. A transfer
 * uses the links of its group, the data-centre network or the host link. Groups on different axes
 * of a torus use different links. No op writes to bytes that a transfer still uses. A section ends
 * when all its ops have ended. The time of a step is the core's work plus the core's waits. */
#include "plan/parts.h"

#include <stdlib.h>
#include <string.h>

/* Resources of a chip. LINKS + i is bit i of rf_group.resources. */
enum { CORE, LINKS, LINK_COUNT = 12, HOST_OUT = LINKS + LINK_COUNT, HOST_IN, LANES };

/* The kind of collective that an op performs, or -1. The kind of a receive is -1, because the send
 * has the time of the transfer. */
static int kind_of(const rf_op *op) {
  static const int kinds[RF_EXCHANGES] = {[RF_EXCHANGE_NONE] = -1,
                                          [RF_EXCHANGE_ALL_GATHER] = RF_ALL_GATHER,
                                          [RF_EXCHANGE_REDUCE_SCATTER] = RF_REDUCE_SCATTER,
                                          [RF_EXCHANGE_ALL_REDUCE] = RF_ALL_REDUCE,
                                          [RF_EXCHANGE_ALL_TO_ALL] = RF_ALL_TO_ALL,
                                          [RF_EXCHANGE_PERMUTE] = RF_PERMUTE,
                                          [RF_EXCHANGE_SEND] = RF_PERMUTE,
                                          [RF_EXCHANGE_RECV] = -1,
                                          [RF_EXCHANGE_TO_HOST] = -1,
                                          [RF_EXCHANGE_FROM_HOST] = -1,
                                          [RF_EXCHANGE_WAIT] = -1};
  return kinds[op->def->exchange];
}
static bool to_host(const rf_op *op) { return op->def->exchange == RF_EXCHANGE_TO_HOST; }
static bool from_host(const rf_op *op) { return op->def->exchange == RF_EXCHANGE_FROM_HOST; }

/* True if an op exchanges data with only some of the chips along its tensor axis. */
static bool is_part(const rf_graph *graph, const rf_op *op) {
  return op->attr.axes == RF_AXIS_BIT(RF_AXIS_TENSOR) &&
         op->attr.group < rf_mesh_size(&graph->mesh, op->attr.axes);
}
static rf_status group_of(const rf_machine *m, const rf_graph *graph, const rf_op *op, rf_group *group,
                          rf_error *error) {
  rf_mesh mesh = graph->mesh;
  if (is_part(graph, op)) {
    mesh.of[RF_AXIS_SEQUENCE] =
        (int32_t)(rf_mesh_size(&mesh, RF_AXIS_BIT(RF_AXIS_SEQUENCE) | op->attr.axes) / op->attr.group);
    mesh.of[RF_AXIS_TENSOR] = op->attr.group;
  }
  return rf_machine_group(m, &mesh, op->attr.axes, group, error);
}

rf_status rf_plan_check_transfers(const rf_graph *graph, const rf_machine *m, rf_error *error) {
  bool known[256] = {false};
  rf_group group;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    if ((to_host(op) || from_host(op)) && m->pcie_bps <= 0)
      return RF_FAIL(error, RAFTER_INVALID, "choose a machine with pcie_bps in data/machines.json",
                     "the bandwidth between %s and its host is unknown", m->name);
    if (kind_of(op) < 0 || known[op->attr.axes]) continue;
    RF_TRY(group_of(m, graph, op, &group, error));
    known[op->attr.axes] = !is_part(graph, op);
  }
  return RAFTER_OK;
}

void rf_plan_price_transfers(rf_plan *plan) {
  const rf_graph *graph = plan->graph;
  const rf_machine *m = &plan->machine;
  rf_group group[256], part = {0};
  bool known[256] = {false};
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    rf_plan_op *p = &plan->op[i];
    int kind = kind_of(op);
    p->lanes = 0;
    p->wait = p->transfer = 0;
    if (op->def->exchange == RF_EXCHANGE_RECV && op->attr.accumulate[0] == RF_WRITE) {
      p->seconds = 0;
      p->work = (rf_work){0};
      p->bound = RF_BOUND_NETWORK;
    } /* a receive takes no time, because the send has the time of the transfer */
    if (to_host(op) || from_host(op)) {
      p->lanes = 1u << (to_host(op) ? HOST_OUT : HOST_IN);
      p->seconds = m->pcie_bps > 0 ? p->work.sent_bytes / m->pcie_bps : 0;
      p->bound = RF_BOUND_NETWORK;
    }
    if (kind < 0) continue;
    rf_axes axes = op->attr.axes;
    bool some = is_part(graph, op);
    rf_group *g = some ? &part : &group[axes];
    bool there = some ? part.chips == op->attr.group : known[axes];
    /* without a group, as in a graph for one chip, the group is one chip */
    if (!there && group_of(m, graph, op, g, NULL) != RAFTER_OK) *g = (rf_group){.chips = 1};
    if (!some) known[axes] = true;
    if (g->chips < 2) continue;
    p->lanes = (g->resources & ((1u << LINK_COUNT) - 1)) << LINKS;
    p->bound = RF_BOUND_NETWORK;
    rf_dtype dtype = graph->tensor[op->input[0]].dtype;
    p->seconds = rf_machine_exchange_seconds(m, g, (rf_collective)kind, dtype, p->work.sent_bytes, &p->wait);
    if (!op->def->starts) continue;
    double core = rf_machine_exchange_core(m, g, (rf_collective)kind, dtype, p->work.sent_bytes);
    p->transfer = p->seconds;
    p->seconds = core >= 0 && core < p->transfer ? core : p->transfer;
    p->bound = RF_BOUND_MEMORY;
  }
}

/* ---- one section ----------------------------------------------------------------------------- */

enum { IN_FLIGHT = 256 };
typedef struct timeline {
  const rf_plan *plan;
  double *made; /* for each tensor: time when the tensor is complete */
  double free[LANES], busy[LANES];
  struct {
    int op;
    double end;
  } flight[IN_FLIGHT]; /* transfers that may still run */
  int flights;
  bool without_host;
  double *waited; /* for each op: seconds of its wait for an exchange; NULL: the caller does not need them */
} timeline;

static bool meet(const rf_plan *plan, int a, int b) {
  if (a < 0 || b < 0 || a == b) return false;
  const rf_plan_tensor *x = &plan->tensor[a], *y = &plan->tensor[b];
  if (plan->graph->tensor[a].host != plan->graph->tensor[b].host) return false;
  return x->offset >= 0 && y->offset >= 0 && x->offset < y->offset + y->bytes &&
         y->offset < x->offset + x->bytes;
}

/* True if op `i` writes to bytes that transfer `j` reads or writes. */
static bool overwrites(const rf_plan *plan, int i, int j) {
  const rf_op *op = &plan->graph->op[i], *transfer = &plan->graph->op[j];
  for (int o = 0; o <= op->output_count; o++) {
    int written = o < op->output_count ? op->output[o] : plan->op[i].workspace;
    for (int k = 0; k < transfer->input_count; k++)
      if (meet(plan, written, transfer->input[k])) return true;
    for (int k = 0; k < transfer->output_count; k++)
      if (meet(plan, written, transfer->output[k])) return true;
  }
  return false;
}

/* Time when op `i` may write. The time is `now`, or the end of the last transfer that uses the op's
 * output bytes. Drops transfers that ended before `now`. If the list is full, waits for the oldest
 * transfer. */
static double wait_for_flights(timeline *t, int i, double now) {
  double until = now;
  int kept = 0;
  for (int f = 0; f < t->flights; f++) {
    if (t->flight[f].end <= now) continue;
    if ((f == 0 && t->flights == IN_FLIGHT) || overwrites(t->plan, i, t->flight[f].op))
      until = t->flight[f].end > until ? t->flight[f].end : until;
    t->flight[kept++] = t->flight[f];
  }
  t->flights = kept;
  if (kept == IN_FLIGHT) memmove(t->flight, t->flight + 1, (size_t)--t->flights * sizeof *t->flight);
  return until;
}

/* Seconds of the core that a collective takes to move its bytes through the chip's memory. */
static double core_share(const rf_plan *plan, const rf_plan_op *p) {
  const rf_machine *m = &plan->machine;
  double bytes = p->work.bytes_read + p->work.bytes_written;
  double share = m->copy_bps > 0 ? bytes / m->copy_bps : 0;
  return share < p->seconds ? share : p->seconds;
}

static void run_op(timeline *t, int i) {
  const rf_op *op = &t->plan->graph->op[i];
  const rf_plan_op *p = &t->plan->op[i];
  rf_collectives how = t->plan->options.collectives;
  bool host = p->lanes >> HOST_OUT & 3, starts = op->def->starts && p->lanes,
       waits = op->def->exchange == RF_EXCHANGE_WAIT;
  uint32_t lanes = p->lanes ? p->lanes : 1u << CORE;
  double start = wait_for_flights(t, i, t->free[CORE]),
         seconds = (host && t->without_host) || waits ? 0
                   : starts                           ? p->transfer
                                                      : p->seconds,
         before = t->free[CORE];
  if (how == RF_COLLECTIVES_NONE && p->lanes && !starts) lanes |= 1u << CORE; /* the core waits */
  for (int k = 0; k < op->input_count; k++)
    if (op->input[k] >= 0 && t->made[op->input[k]] > start) start = t->made[op->input[k]];
  for (int k = 0; k < op->output_count; k++)
    if (op->output[k] >= 0 && t->made[op->output[k]] > start) start = t->made[op->output[k]];
  for (int l = 0; l < LANES; l++)
    if (lanes >> l & 1 && t->free[l] > start) start = t->free[l];
  for (int l = 0; l < LANES; l++)
    if (lanes >> l & 1) {
      t->free[l] = start + seconds;
      t->busy[l] += seconds;
    }
  for (int k = 0; k < op->output_count; k++)
    if (op->output[k] >= 0) t->made[op->output[k]] = start + seconds;
  if (waits && t->waited) t->waited[i] = t->free[CORE] - before;
  if (!p->lanes) return;
  t->flight[t->flights].op = i;
  t->flight[t->flights++].end = start + seconds;
  if (starts || (how == RF_COLLECTIVES_CORE && !host)) {
    double share = starts ? p->seconds : core_share(t->plan, p);
    t->free[CORE] += share;
    t->busy[CORE] += share;
  }
}

static void start_section(timeline *t) {
  memset(t->made, 0, ((size_t)t->plan->graph->tensor_count + 1) * sizeof *t->made);
  memset(t->free, 0, sizeof t->free);
  memset(t->busy, 0, sizeof t->busy);
  t->flights = 0;
}

static double end_of(const timeline *t) {
  double end = 0;
  for (int l = 0; l < LANES; l++) end = t->free[l] > end ? t->free[l] : end;
  return end;
}

/* Simulates a section and returns its seconds. *most_lane: busy seconds of the busiest link. */
static double run_section(timeline *t, rf_section section, double *most_lane) {
  const rf_graph *graph = t->plan->graph;
  start_section(t);
  *most_lane = 0;
  for (int i = 0; i < graph->op_count; i++)
    if (graph->op[i].section == section) run_op(t, i);
  for (int l = 0; l < LANES; l++)
    if (l != CORE && t->busy[l] > *most_lane) *most_lane = t->busy[l];
  return end_of(t);
}

static double run_step(timeline *t, double *most_lane, double *micro) {
  double seconds = 0, lane;
  *most_lane = 0;
  for (int s = 0; s < RF_SECTIONS; s++) {
    double one = run_section(t, (rf_section)s, &lane),
           calls = s == RF_SECTION_MICRO ? t->plan->graph->accumulate : 1;
    if (s == RF_SECTION_MICRO) *micro = one;
    seconds += calls * one;
    *most_lane += calls * lane;
  }
  return seconds;
}

double rf_plan_seconds_of(const rf_plan *plan, const int *part, int which) {
  const rf_graph *graph = plan->graph;
  timeline t = {.plan = plan, .made = malloc(((size_t)graph->tensor_count + 1) * sizeof *t.made)};
  if (!t.made) return 0;
  start_section(&t);
  for (int i = 0; i < graph->op_count; i++) {
    rf_exchange_kind exchange = graph->op[i].def->exchange;
    bool beside = exchange == RF_EXCHANGE_RECV ||
                  (exchange == RF_EXCHANGE_SEND && graph->op[i].section == RF_SECTION_MICRO &&
                   plan->options.collectives != RF_COLLECTIVES_NONE);
    if (part[i] == which && !beside) run_op(&t, i);
  }
  free(t.made);
  return end_of(&t);
}

void rf_plan_price_waits(rf_plan *plan) {
  const rf_graph *graph = plan->graph;
  double lane;
  timeline t = {.plan = plan};
  int waits = 0;
  for (int i = 0; i < graph->op_count; i++) waits += graph->op[i].def->exchange == RF_EXCHANGE_WAIT;
  if (!waits) return;
  t.made = malloc(((size_t)graph->tensor_count + 1) * sizeof *t.made);
  t.waited = calloc((size_t)graph->op_count + 1, sizeof *t.waited);
  for (int s = 0; s < RF_SECTIONS && t.made && t.waited; s++) run_section(&t, (rf_section)s, &lane);
  for (int i = 0; i < graph->op_count && t.waited; i++) {
    if (graph->op[i].def->exchange != RF_EXCHANGE_WAIT) continue;
    plan->op[i].seconds = t.waited[i];
    plan->op[i].bound = RF_BOUND_NETWORK;
  }
  free(t.made);
  free(t.waited);
}

/* ---- the step -------------------------------------------------------------------------------- */

rf_step_time rf_plan_schedule(const rf_plan *plan) {
  const rf_graph *graph = plan->graph;
  rf_step_time time = {0};
  double core = 0, sent = 0, lane = 0, micro = 0, unused, host = 0;
  int64_t stages = rf_mesh_extent(&graph->mesh, RF_AXIS_PIPELINE);
  bool waits = stages > 1;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_plan_op *p = &plan->op[i];
    double seconds = p->seconds * p->calls;
    if (graph->op[i].def->exchange == RF_EXCHANGE_WAIT) continue;
    if (p->lanes && p->transfer > 0) { /* the core continues */
      time.by[p->bound] += seconds;
      core += seconds;
      seconds = p->transfer * p->calls;
    }
    if (p->lanes) {
      waits = true;
      sent += seconds;
      time.network_latency += p->wait * p->calls;
      host += p->lanes >> HOST_OUT ? seconds : 0;
    } else {
      time.by[p->bound] += seconds;
      core += seconds;
    }
  }
  time.seconds = core;
  timeline t = {.plan = plan};
  if (waits) t.made = malloc(((size_t)graph->tensor_count + 1) * sizeof *t.made);
  if (t.made) {
    time.seconds = run_step(&t, &lane, &micro);
    t.without_host = true;
    time.offload = host;
    double without = host > 0 ? run_step(&t, &unused, &unused) : time.seconds;
    time.offload_exposed = time.seconds > without ? time.seconds - without : 0;
    /* The first microbatch must pass all other stages before it reaches the last stage. So in 1F1B
     * and in GPipe, each stage idles for the time of stages - 1 microbatches. */
    time.bubble = (double)(stages - 1) * micro;
    time.seconds += time.bubble;
    time.by[RF_BOUND_NETWORK] = time.seconds > core ? time.seconds - core : 0;
    time.network_hidden = sent - (time.by[RF_BOUND_NETWORK] - time.bubble);
    if (time.network_hidden < 1e-12 * sent) time.network_hidden = 0; /* a rounding error */
    free(t.made);
  }
  time.bound = rf_largest_bound(&time);
  if (lane > core) time.bound = RF_BOUND_NETWORK; /* a link is busy for a longer time than the core */
  return time;
}
