/* roofline_network.c - collectives and sharded arrays. The formulas are in machine/links.c. */
#include "study/roofline_parts.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rf_collective collective_of(const char *op) {
  static const char *const names[RF_COLLECTIVES] = {"allgather", "reducescatter", "allreduce", "alltoall",
                                                    "permute"};
  for (int i = 0; i < RF_COLLECTIVES; i++)
    if (!strcmp(names[i], op)) return (rf_collective)i;
  return RF_ALL_GATHER;
}

/* whole: the array whose size is `bytes` (rf_collective_seconds). shard: the role of a chip's shard
 * of it, or NULL. */
static const struct {
  const char *whole, *shard;
} OF_GROUP[RF_COLLECTIVES] = {
    [RF_ALL_GATHER] = {"bytes are those of the gathered array", "each chip begins with a shard of"},
    [RF_REDUCE_SCATTER] = {"bytes are those of one chip's input", "each chip ends with a shard of"},
    [RF_ALL_REDUCE] = {"bytes are those of one chip's input, and of its result", NULL},
    [RF_ALL_TO_ALL] = {"bytes are those of the array on all chips", "each chip holds a shard of"},
    [RF_PERMUTE] = {"bytes are those of one chip's message", NULL}};

rf_status rf_roofline_collective(rf_question *q, rf_error *error) {
  rf_collective kind = collective_of(q->answer->op);
  rf_group group;
  double bytes, sharded = rf_value(q, "sharded"), latency, latency_exact;
  RF_TRY(rf_asked_bytes(q, &bytes, error));
  RF_TRY(rf_asked_group(q, &group, error));
  bytes /= sharded; /* axes outside the group also shard the array */
  double seconds = rf_collective_seconds(&group, kind, bytes, true, &latency),
         exact = rf_collective_seconds(&group, kind, bytes, false, &latency_exact);
  double large = 1e18, per_byte = rf_collective_seconds(&group, kind, large, true, NULL) / large,
         chips = group.chips;
  double gather = rf_collective_seconds(&group, RF_ALL_GATHER, large, true, NULL) / large;
  bool waits = seconds <= latency && latency > 0;
  rf_fact_head(q, 0, bytes, seconds,
               chips < 2 ? "nothing"
               : waits   ? "latency"
                         : "network",
               latency > 0 && per_byte > 0 ? latency / per_byte : NAN);
  if (OF_GROUP[kind].shard) rf_add_bytes(q, "shard_bytes", OF_GROUP[kind].shard, bytes / chips);
  rf_add_seconds(q, "seconds_exact", "time without the shard that a chip already has", exact);
  rf_add_seconds(q, "throughput_seconds", "time by bandwidth", bytes * per_byte);
  rf_add_seconds(q, "latency_seconds", "time of hops", latency);
  rf_add_number(q, "hops", "hops",
                group.rings > 0 && group.hop_seconds > 0 ? latency / group.hop_seconds : NAN);
  rf_add_number(q, "group_chips", "chips", chips);
  rf_add_bytes(q, "critical_bytes", "size below which latency dominates",
               latency > 0 && per_byte > 0 ? latency / per_byte : NAN);
  rf_add_bytes(q, "critical_shard_bytes", "a chip's shard of that size",
               group.hop_seconds > 0 && group.nodes < 2 ? group.oneway_bps * group.hop_seconds : NAN);
  rf_fact_add(q, "bytes_per_second", "bandwidth", RF_UNIT_BPS, 1 / per_byte);
  /* In an all-gather on a ring that sends in one direction, every link carries all shards except
   * one. In an all-to-all, a block travels half of the ring on average. */
  double around = bytes * (1 - 1 / chips) * (kind == RF_ALL_TO_ALL ? 0.5 : kind == RF_ALL_REDUCE ? 2 : 1);
  if (kind != RF_PERMUTE) {
    rf_add_bytes(q, "link_bytes_unidirectional", "bytes on each link, in one direction", around);
    rf_add_number(q, "allgather_ratio", "time relative to an all-gather", per_byte / gather);
    rf_add_number(q, "allgather_ratio_unidirectional", NULL, around / (bytes * (1 - 1 / chips)));
  }
  rf_fact_note(q, "%s", OF_GROUP[kind].whole);
  for (int i = 0; i < group.rings; i++)
    rf_fact_note(q, "axis of %d: %s", group.ring[i].extent,
                 group.ring[i].wraps ? "a ring, both directions" : "no ring: only one direction counts");
  return RAFTER_OK;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

enum { MESH_AXES_MAX = 26, RANK_MAX = 8 };
typedef struct named_mesh {
  int of[MESH_AXES_MAX]; /* number of chips of each axis, indexed by the axis's letter; 0: no such axis */
  double chips;
} named_mesh;

static rf_status parse_mesh(const char *text, named_mesh *mesh, rf_error *error) {
  mesh->chips = 1;
  for (const char *at = text; at && *at;) {
    int letter = toupper((unsigned char)*at) - 'A';
    char *end = NULL;
    long size = at[0] && at[1] == '=' ? strtol(at + 2, &end, 10) : 0;
    if (letter < 0 || letter >= MESH_AXES_MAX || !end || size < 1 || size > RF_NETWORK_AXES_MAX ||
        (*end && *end != ',') || mesh->of[letter])
      return RF_FAIL(error, RAFTER_INVALID, "write --mesh X=4,Y=8",
                     "--mesh has no axis at '%.30s' (expected LETTER=CHIPS, each once)", at);
    mesh->of[letter] = (int)size;
    mesh->chips *= (double)size;
    at = *end ? end + 1 : end;
  }
  return RAFTER_OK;
}

/* Parses --spec, which has the letters of the axes that shard each dimension ("XY,-" or "XY,"). */
static rf_status parse_spec(const char *spec, const named_mesh *mesh, int rank, double split[RANK_MAX],
                            rf_error *error) {
  bool seen[MESH_AXES_MAX] = {false};
  int dim = 0;
  for (const char *c = spec; c && *c; c++) {
    if (*c == ',' && ++dim < rank) continue;
    int letter = toupper((unsigned char)*c) - 'A';
    if (*c == '-') continue;
    if (dim >= rank || letter < 0 || letter >= MESH_AXES_MAX)
      return RF_FAIL(error, RAFTER_INVALID, "write --spec XY,- for two dimensions",
                     "--spec does not fit the shape (expected %d parts of letters, got '%.30s')", rank, spec);
    if (!mesh->of[letter] || seen[letter])
      return RF_FAIL(error, RAFTER_INVALID, "name each axis of --mesh once", "--spec %s axis %c",
                     seen[letter] ? "uses twice the" : "names the unknown", *c);
    seen[letter] = true;
    split[dim] *= mesh->of[letter];
  }
  return RAFTER_OK;
}

rf_status rf_roofline_array(rf_question *q, rf_error *error) {
  named_mesh mesh = {.chips = 1};
  int rank;
  double bytes, split[RANK_MAX] = {1, 1, 1, 1, 1, 1, 1, 1}, ways = 1, local = 1, count = rf_value(q, "count");
  const int64_t *shape = rf_options_list(q->o, "shape", &rank);
  if (rank < 1 || rank > RANK_MAX)
    return RF_FAIL(error, RAFTER_INVALID, "write --shape 2048,8192",
                   "array needs --shape (expected 1 to %d dimensions, got %d)", RANK_MAX, rank);
  RF_TRY(rf_asked_bytes(q, &bytes, error));
  RF_TRY(parse_mesh(rf_word(q, "mesh"), &mesh, error));
  RF_TRY(parse_spec(rf_word(q, "spec"), &mesh, rank, split, error));
  for (int i = 0; i < rank; i++) {
    if (shape[i] % (int64_t)split[i])
      return RF_FAIL(error, RAFTER_INVALID, "choose axes whose chips divide the dimension",
                     "dimension %d does not divide over its axes (expected a multiple of %g, got %lld)", i,
                     split[i], (long long)shape[i]);
    ways *= split[i];
    local *= (double)shape[i] / split[i];
  }
  local *= q->dtype.bytes * count;
  double room = q->machine.memory_bytes - q->machine.reserve_bytes;
  rf_fact_head(q, 0, bytes, NAN, "memory", NAN);
  rf_add_bytes(q, "bytes_per_chip", "on each chip", local);
  rf_add_number(q, "chips", "chips of the mesh", mesh.chips);
  rf_add_number(q, "copies", "number of copies", mesh.chips / ways);
  rf_add_bytes(q, "bytes_all_chips", "bytes on all chips", local * mesh.chips);
  if (rf_asked(q, "hbm")) rf_fact_note(q, "compared with --hbm");
  rf_fact_add(q, "fits", "a chip's memory holds its shard", RF_UNIT_TRUTH, local <= room);
  rf_fact_add(q, "gathered_fits", "a chip's memory holds the full array", RF_UNIT_TRUTH, bytes <= room);
  rf_add_number(q, "arrays_that_fit", "arrays that fit a chip", floor(room / (local / count)));
  return RAFTER_OK;
}
