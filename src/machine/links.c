/* links.c - places a group of chips on the network, and predicts the time of a collective. Most
 * formulas are from "How to Scale Your Model", chapters on sharding and GPUs. docs/planning.md
 * derives the other formulas. */
#include "machine/parts.h"

#include <math.h>
#include <string.h>

/* ---- a mesh on a torus ----------------------------------------------------------------------- */

/* The part of a mesh axis on one torus axis. The part has `extent` chips that are `stride` links
 * apart. */
typedef struct piece {
  int extent, stride;
} piece;

typedef struct layout {
  int physical[RF_TORUS_AXES], axes;
  piece piece[RF_AXES][RF_TORUS_AXES];
} layout;

/* Bytes/s that one chip has in one ring. A closed ring uses both directions. A ring with a stride
 * shares each link with stride - 1 other rings. */
static double ring_bps(const rf_ring *ring, double oneway) {
  return (ring->wraps ? 2 : 1) * oneway / ring->stride;
}

/* A search that splits the extent of one mesh axis into factors along the torus axes. The search
 * first minimises the number of partly used torus axes, because only a complete axis closes to a
 * ring. Among equal results, the search maximises the bandwidth. If the bandwidth is also equal,
 * the search prefers later axes. */
typedef struct search {
  const rf_machine *machine;
  const layout *layout;
  /* left: number of chips of each torus axis that inner mesh axes leave free. stride: number of
   * links between these chips. */
  int left[RF_TORUS_AXES], stride[RF_TORUS_AXES];
  int now[RF_TORUS_AXES], best[RF_TORUS_AXES];
  int best_broken;
  double best_bps;
} search;

static void try_factors(search *s, int axis, int extent, int broken, double bps) {
  if (axis < 0) {
    if (extent != 1 || broken > s->best_broken || (broken == s->best_broken && bps <= s->best_bps)) return;
    s->best_broken = broken;
    s->best_bps = bps;
    memcpy(s->best, s->now, sizeof s->best);
    return;
  }
  for (int f = s->left[axis]; f >= 1; f--) {
    if (s->left[axis] % f || extent % f) continue;
    rf_ring ring = {f, s->stride[axis], f == s->layout->physical[axis] && rf_machine_wraps(s->machine, f)};
    s->now[axis] = f;
    try_factors(s, axis - 1, extent / f, broken + (f > 1 && f < s->left[axis]),
                bps + (f > 1 ? ring_bps(&ring, 1) : 0));
  }
}

/* Places the axes of the mesh on the torus. The innermost axis is the first. `of` has the extents
 * of the mesh axes. The extents have no slices and no factor 2 for the devices of a chip. */
static void lay_out(const rf_machine *machine, const int32_t *of, int count, layout *out) {
  search s = {.machine = machine, .layout = out};
  out->axes = machine->shape_rank;
  for (int j = 0; j < out->axes; j++) {
    out->physical[j] = s.left[j] = machine->shape[j];
    s.stride[j] = 1;
  }
  for (int i = count - 1; i >= 0; i--) {
    s.best_broken = RF_TORUS_AXES + 1;
    s.best_bps = -1;
    try_factors(&s, out->axes - 1, of[i], 0, 0);
    for (int j = 0; j < out->axes; j++) {
      out->piece[i][j] = (piece){s.best[j], s.stride[j]};
      s.left[j] /= s.best[j];
      s.stride[j] *= s.best[j];
    }
  }
}

/* Takes the parts of the mesh axes in `mask` that are on the torus axis `axis`, and joins them
 * into one ring. On average, neighbours in this ring are span/extent links apart. */
static rf_ring join_pieces(const rf_machine *machine, const layout *at, int count, uint32_t mask, int axis) {
  rf_ring ring = {1, 1, false};
  int span = 1;
  for (int i = count - 1; i >= 0; i--) {
    piece p = at->piece[i][axis];
    if (!(mask >> i & 1) || p.extent == 1) continue;
    ring.extent *= p.extent;
    span = p.stride * p.extent;
  }
  ring.stride = ring.extent > 1 ? span / ring.extent : 1;
  ring.wraps = ring.extent > 1 && span == at->physical[axis] && rf_machine_wraps(machine, span);
  return ring;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static rf_status start_group(const rf_machine *machine, rf_group *group, rf_error *error) {
  const rf_topology *t = &machine->topology;
  *group = (rf_group){.chips = 1,
                      .inside = 1,
                      .nodes = 1,
                      .slices = 1,
                      .oneway_bps = t->oneway_bps,
                      .hop_seconds = t->hop_seconds,
                      .node_hop_seconds = t->node_hop_seconds,
                      .fraction = t->fraction > 0 ? t->fraction : 1,
                      .dcn_bps = machine->dcn_bps,
                      .dcn_hop_seconds = machine->dcn_hop_seconds};
  if (t->form != RF_NETWORK_NONE && t->oneway_bps > 0) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "choose a machine with a topology in data/machines.json",
                 "%s has no network between chips", machine->name);
}

static void add_ring(rf_group *group, int axis, rf_ring ring) {
  if (ring.extent < 2) return;
  group->ring[group->rings++] = ring;
  group->chips *= ring.extent;
  group->resources |= 1u << axis;
}

static rf_status add_nodes(const rf_machine *machine, int inside, int nodes, double share, rf_group *group,
                           rf_error *error) {
  group->inside = inside;
  group->nodes = nodes;
  group->chips *= inside * nodes;
  group->node_bps = machine->topology.node_bps * share;
  if (inside > 1) group->resources |= RF_RESOURCE_SWITCH;
  if (nodes > 1) group->resources |= RF_RESOURCE_NODE;
  if (nodes < 2 || group->node_bps > 0) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "stay within one node",
                 "%s has no figure for the network between nodes (expected one node, got %d)", machine->name,
                 nodes);
}

rf_status rf_machine_axes(const rf_machine *machine, const int *extent, int count, int wrap, rf_group *group,
                          rf_error *error) {
  const rf_topology *t = &machine->topology;
  RF_TRY(start_group(machine, group, error));
  int most = t->form == RF_NETWORK_TORUS ? RF_TORUS_AXES : 2;
  if (count < 1 || count > most)
    return RF_FAIL(error, RAFTER_INVALID, "write extents, for example 4,4",
                   "a group on %s has 1 to %d axes (got %d)", machine->name, most, count);
  for (int i = 0; i < count; i++)
    if (extent[i] < 1 || extent[i] > RF_NETWORK_AXES_MAX)
      return RF_FAIL(error, RAFTER_INVALID, "write extents, for example 4,4",
                     "an axis is out of range (expected 1 to %d chips, got %d)", RF_NETWORK_AXES_MAX,
                     extent[i]);
  if (t->form == RF_NETWORK_SWITCH) {
    int inside = extent[0], nodes = count > 1 ? extent[1] : 1;
    if (inside > t->domain && count == 1 && inside % t->domain == 0) {
      nodes = inside / t->domain;
      inside = t->domain;
    }
    if (inside > t->domain && count == 1)
      return RF_FAIL(error, RAFTER_INVALID, "write nodes, then the chips per node: 4,8",
                     "a node of %s joins at most %d chips (got %d)", machine->name, t->domain, inside);
    return add_nodes(machine, inside, nodes, (double)inside / t->domain, group, error);
  }
  for (int i = 0; i < count; i++)
    add_ring(
        group, i,
        (rf_ring){extent[i], 1, wrap < 0 ? rf_machine_wraps(machine, extent[i]) : wrap > 0 && extent[i] > 1});
  return RAFTER_OK;
}

/* Computes the number of the group's chips in a node, and its number of nodes. The group has the
 * mesh axes in `mask`. Inner mesh axes use neighbouring chips. */
static rf_status group_of_switch(const rf_machine *m, const int32_t *of, int count, uint32_t mask,
                                 rf_group *group, rf_error *error) {
  int node = m->shape_rank ? m->shape[0] : 1, inside = 1, total = 1;
  int64_t stride = 1;
  for (int i = count - 1; i >= 0; i--) {
    if (mask >> i & 1) {
      total *= of[i];
      if (stride < node) inside *= of[i] < node / stride ? of[i] : (int)(node / stride);
    }
    stride *= of[i];
  }
  /* The other chips of a node use the network too. So if a group has a part of a node's chips, it
   * gets the same part of the node's bandwidth. */
  return add_nodes(m, inside, rf_ceil_div(total, inside), (double)inside / m->topology.domain, group, error);
}

/* Checks that the mesh and the machine have the same number of chips and the same number of
 * slices. */
static rf_status check_mesh(const rf_machine *machine, const rf_mesh *mesh, rf_error *error) {
  int64_t chips = rf_mesh_chips(mesh), slices = rf_mesh_extent(mesh, RF_AXIS_SLICE),
          have = machine->slices > 1 ? machine->slices : 1;
  if (chips != machine->chips)
    return RF_FAIL(error, RAFTER_INVALID, "let the axes of --mesh multiply to the number of chips",
                   "the mesh and %s differ in size (expected %d %s, got %lld)", machine->name, machine->chips,
                   machine->by_device ? "devices" : "chips", (long long)chips);
  if (slices == have) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "write slice=N in --mesh and *N after the machine",
                 "mesh and machine differ in slices (expected slice=%lld, got %lld)", (long long)have,
                 (long long)slices);
}

rf_status rf_machine_group(const rf_machine *machine, const rf_mesh *mesh, rf_axes axes, rf_group *group,
                           rf_error *error) {
  int32_t of[RF_AXES];
  RF_TRY(check_mesh(machine, mesh, error));
  *group = (rf_group){.chips = 1, .inside = 1, .nodes = 1, .slices = 1, .fraction = 1};
  if (rf_mesh_size(mesh, axes) == 1) return RAFTER_OK;
  RF_TRY(start_group(machine, group, error));
  for (int i = 0; i < RF_AXES; i++) of[i] = (int32_t)rf_mesh_extent(mesh, (rf_axis)i);
  if (axes & RF_AXIS_BIT(RF_AXIS_SLICE) && of[RF_AXIS_SLICE] > 1) {
    group->slices = of[RF_AXIS_SLICE];
    group->chips *= group->slices;
    group->resources |= RF_RESOURCE_DCN;
  }
  of[RF_AXIS_SLICE] = 1;
  if (machine->by_device) {
    int axis = -1;
    for (int i = RF_AXES - 1; axis < 0 && i > RF_AXIS_SLICE; i--)
      if (mesh->pinned ? mesh->pinned >> i & 1 : of[i] % 2 == 0) axis = i;
    if (axis < 0 || of[axis] % 2)
      return RF_FAIL(error, RAFTER_INVALID, "make that axis of --mesh even",
                     "no mesh axis can use the link between the two devices of a chip of %s (%s is %d)",
                     machine->name, axis < 0 ? "none" : rf_axis_name((rf_axis)axis), axis < 0 ? 0 : of[axis]);
    of[axis] /= 2;
    if (axes >> axis & 1) {
      group->die = true;
      group->die_bps = machine->topology.die_bps;
      group->chips *= 2;
      group->resources |= RF_RESOURCE_DIE;
    }
  }
  if (machine->topology.form == RF_NETWORK_SWITCH)
    return group_of_switch(machine, of, RF_AXES, axes, group, error);
  layout at;
  memset(&at, 0, sizeof at);
  lay_out(machine, of, RF_AXES, &at);
  for (int j = 0; j < at.axes; j++) add_ring(group, j, join_pieces(machine, &at, RF_AXES, axes, j));
  return RAFTER_OK;
}

/* ---- seconds --------------------------------------------------------------------------------- */

/* Latency between the two chips of a group that are farthest apart. */
static double hop_latency(const rf_group *g) {
  double hops = 0;
  if (g->inside > 1 || g->nodes > 1) return g->hop_seconds + (g->nodes > 1 ? g->node_hop_seconds : 0);
  for (int i = 0; i < g->rings; i++)
    hops += g->ring[i].stride * (g->ring[i].wraps ? g->ring[i].extent / 2 : g->ring[i].extent - 1);
  return hops * g->hop_seconds;
}

/* Seconds of an all-gather of V bytes over rings that have X chips together. Every chip receives V
 * (X-1)/X bytes. Books omit the factor (X-1)/X if all of these rings close. */
static double rings_gather(const rf_group *g, double bytes, bool literature) {
  double bps = 0, members = 1;
  bool close = true;
  for (int i = 0; i < g->rings; i++) {
    bps += ring_bps(&g->ring[i], g->oneway_bps);
    members *= g->ring[i].extent;
    close &= g->ring[i].wraps;
  }
  return bps > 0 ? bytes / bps * (literature && close ? 1 : (members - 1) / members) : 0;
}

/* Seconds of an all-to-all of V bytes over rings. In each direction, V/4 bytes cross the middle of
 * an axis. The number of links that these bytes use is the number of chips of the other axes. */
static double rings_exchange(const rf_group *g, double bytes) {
  double members = 1, most = 0;
  for (int i = 0; i < g->rings; i++) members *= g->ring[i].extent;
  for (int i = 0; i < g->rings; i++)
    most = fmax(most, bytes * g->ring[i].extent / (4 * members * ring_bps(&g->ring[i], g->oneway_bps)));
  return most;
}

static double switch_gather(const rf_group *g, double bytes) {
  double inside = g->inside > 1 ? bytes * (g->inside - 1) / (g->inside * g->oneway_bps) : 0;
  double nodes = g->nodes > 1 ? bytes * (g->nodes - 1) / (g->nodes * g->node_bps) : 0;
  return fmax(inside, nodes);
}

static double switch_exchange(const rf_group *g, double bytes) {
  double n = (double)g->inside * g->nodes, m = g->nodes;
  double inside = g->inside > 1 ? bytes * (g->inside - 1) / (n * n * g->oneway_bps) : 0;
  return fmax(inside, m > 1 ? bytes * (m - 1) / (m * m * g->node_bps) : 0);
}

/* Seconds that every chip takes to send `bytes` to its neighbour. */
static double neighbour(const rf_group *g, double bytes) {
  double most = 0;
  for (int i = 0; i < g->rings; i++) most = fmax(most, bytes * g->ring[i].stride / g->oneway_bps);
  if (g->inside > 1) most = fmax(most, bytes / g->oneway_bps);
  if (g->nodes > 1) most = fmax(most, bytes / g->node_bps);
  if (g->die) most = fmax(most, bytes / g->die_bps);
  return g->slices > 1 ? fmax(most, bytes / g->dcn_bps) : most;
}

/* Seconds of an all-gather or an all-to-all. Transfers within a slice, between slices and between
 * devices run one after another. Between slices, each chip sends its own shard of its slice's data.
 * Each device of a chip sends half of the data to the other device. In an all-to-all, each device
 * sends a quarter. */
static double staged(const rf_group *g, double bytes, bool exchange, bool literature) {
  double within = bytes / (g->die ? 2 : 1), seconds = 0;
  double chips = (double)g->chips / g->slices, slices = g->slices;
  if (exchange) within = bytes / (slices * (g->die ? 2 : 1));
  if (g->rings) seconds += exchange ? rings_exchange(g, within) : rings_gather(g, within, literature);
  else seconds += exchange ? switch_exchange(g, within) : switch_gather(g, within);
  if (g->die) seconds += bytes / (exchange ? slices * 4 : 2) / g->die_bps;
  if (slices > 1)
    seconds +=
        bytes / chips / (exchange ? slices : 1) * (literature ? 1 : (slices - 1) / slices) / g->dcn_bps;
  return seconds;
}

double rf_collective_seconds(const rf_group *g, rf_collective kind, double whole_bytes, bool literature,
                             double *latency) {
  double times = kind == RF_ALL_REDUCE ? 2 : 1, wait, seconds;
  if (g->chips < 2) {
    if (latency) *latency = 0;
    return 0;
  }
  if (kind == RF_PERMUTE) {
    int stride = 0;
    for (int i = 0; i < g->rings; i++) stride = g->ring[i].stride > stride ? g->ring[i].stride : stride;
    wait = (g->rings ? stride * g->hop_seconds : hop_latency(g)) + (g->slices > 1 ? g->dcn_hop_seconds : 0);
    if (latency) *latency = wait;
    return neighbour(g, whole_bytes) + wait;
  }
  wait = times * (hop_latency(g) + (g->slices > 1 ? g->dcn_hop_seconds : 0));
  seconds = times * staged(g, whole_bytes, kind == RF_ALL_TO_ALL, literature);
  if (latency) *latency = wait;
  return fmax(seconds, wait);
}
