/* exchange.c - measured times of collectives (`rafter calibrate --network`). The file reads and
 * writes the JSON field of these times, and predicts the seconds of a collective. */
#include "machine/exchange.h"
#include "machine/parts.h"

#include <math.h>
#include <string.h>

const rf_op_def *const RF_COLLECTIVE_OPS[RF_COLLECTIVES] = {[RF_ALL_GATHER] = &RF_OP_ALL_GATHER,
                                                            [RF_REDUCE_SCATTER] = &RF_OP_REDUCE_SCATTER,
                                                            [RF_ALL_REDUCE] = &RF_OP_ALL_REDUCE,
                                                            [RF_ALL_TO_ALL] = &RF_OP_ALL_TO_ALL,
                                                            [RF_PERMUTE] = &RF_OP_PERMUTE};

static const char *name_of(rf_collective kind) { return RF_COLLECTIVE_OPS[kind]->name; }

static rf_status parse_kind(const json_t *object, const char *where, rf_collective *kind, rf_error *error) {
  char text[24] = "";
  RF_TRY(rf_machine_text(object, "kind", true, text, sizeof text, where, error));
  for (int k = 0; k < RF_COLLECTIVES; k++)
    if (!strcmp(text, name_of((rf_collective)k))) return *kind = (rf_collective)k, RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                 "%s: unknown collective (expected the name of an op, such as %s, got '%s')", where,
                 name_of(RF_ALL_GATHER), text);
}

static rf_status parse_one(const json_t *object, const char *where, rf_exchange_curve *c, rf_error *error) {
  char dtype[16] = "f32";
  double inside = 1, nodes = 1;
  if (!json_is_object(object))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: an entry of collectives is not an object",
                   where);
  RF_TRY(parse_kind(object, where, &c->kind, error));
  RF_TRY(rf_machine_text(object, "dtype", false, dtype, sizeof dtype, where, error));
  if (rf_dtype_parse(dtype, &c->dtype, NULL) != RAFTER_OK || (c->dtype != RF_F32 && c->dtype != RF_BF16))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: '%s' is not a dtype (expected f32 or bf16)",
                   where, dtype);
  RF_TRY(rf_json_float(object, "inside", where, 1, RF_NETWORK_AXES_MAX, &inside, error));
  RF_TRY(rf_json_float(object, "nodes", where, 1, RF_NETWORK_AXES_MAX, &nodes, error));
  c->inside = (int)inside;
  c->nodes = (int)nodes;
  const json_t *points = json_object_get(object, "points");
  size_t count = json_array_size(points);
  if (!json_is_array(points) || count < 1 || count > RF_EXCHANGE_POINTS)
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                   "%s: points of collective %s is not a list of 1 to %d points (got %zu)", where,
                   name_of(c->kind), RF_EXCHANGE_POINTS, count);
  for (size_t i = 0; i < count; i++) {
    const json_t *point = json_array_get(points, i);
    RF_TRY(rf_json_float(point, "bytes", where, 1, 1e18, &c->bytes[i], error));
    RF_TRY(rf_json_float(point, "seconds", where, 1e-12, 1e9, &c->seconds[i], error));
    if (json_object_get(point, "core_seconds"))
      RF_TRY(rf_json_float(point, "core_seconds", where, 1e-12, 1e9, &c->core_seconds[i], error));
    if (i && c->bytes[i] <= c->bytes[i - 1])
      return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                     "%s: points of collective %s do not ascend (expected more than %g bytes, got %g)", where,
                     name_of(c->kind), c->bytes[i - 1], c->bytes[i]);
  }
  c->count = (int)count;
  return RAFTER_OK;
}

rf_status rf_machine_parse_exchanges(const json_t *object, const char *where, rf_machine *m,
                                     rf_error *error) {
  const json_t *list = json_object_get(object, "collectives");
  if (list && (!json_is_array(list) || json_array_size(list) > RF_EXCHANGE_CURVES))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                   "%s: collectives is not a list of at most %d curves", where, RF_EXCHANGE_CURVES);
  for (size_t i = 0; i < json_array_size(list); i++)
    RF_TRY(parse_one(json_array_get(list, i), where, &m->exchange[m->exchange_count++], error));
  return RAFTER_OK;
}

void rf_machine_exchanges_json(const rf_machine *m, json_t *object) {
  json_t *list = json_array();
  for (int i = 0; i < m->exchange_count; i++) {
    const rf_exchange_curve *c = &m->exchange[i];
    json_t *points = json_array();
    for (int k = 0; k < c->count; k++) {
      json_t *point = json_pack("{sf sf}", "bytes", c->bytes[k], "seconds", c->seconds[k]);
      if (c->core_seconds[k] > 0) json_object_set_new(point, "core_seconds", json_real(c->core_seconds[k]));
      json_array_append_new(points, point);
    }
    json_array_append_new(list, json_pack("{ss ss si si so}", "kind", name_of(c->kind), "dtype",
                                          rf_dtype_name(c->dtype), "inside", c->inside, "nodes", c->nodes,
                                          "points", points));
  }
  if (json_array_size(list)) json_object_set(object, "collectives", list);
  json_decref(list);
}

static const rf_exchange_curve *find(const rf_machine *m, const rf_group *g, rf_collective kind,
                                     rf_dtype dtype) {
  const rf_exchange_curve *found = NULL;
  for (int i = 0; i < m->exchange_count; i++) {
    const rf_exchange_curve *c = &m->exchange[i];
    if (c->kind != kind || c->inside != g->inside || c->nodes != g->nodes) continue;
    if (!found || c->dtype == dtype) found = c;
  }
  return found;
}

/* Between two points, the seconds are linear in the bytes. So a collective has a latency and a
 * rate. Beyond the last two points, the rate between these points stays the same. */
static double at(const rf_exchange_curve *c, const double *seconds, double bytes) {
  int last = c->count - 1, i = 0;
  if (bytes <= c->bytes[0]) return seconds[0];
  if (last == 0) return seconds[0] * bytes / c->bytes[0];
  while (i < last - 1 && bytes > c->bytes[i + 1]) i++;
  double slope = (seconds[i + 1] - seconds[i]) / (c->bytes[i + 1] - c->bytes[i]);
  return seconds[i] + (bytes - c->bytes[i]) * fmax(slope, 0);
}

double rf_machine_exchange_seconds(const rf_machine *m, const rf_group *g, rf_collective kind, rf_dtype dtype,
                                   double whole_bytes, double *latency) {
  const rf_exchange_curve *curve = g->chips > 1 ? find(m, g, kind, dtype) : NULL;
  if (curve) {
    double seconds = at(curve, curve->seconds, whole_bytes);
    *latency = fmin(curve->seconds[0], seconds);
    return seconds;
  }
  double seconds = rf_collective_seconds(g, kind, whole_bytes, false, latency);
  return *latency + (seconds - *latency) / (g->fraction > 0 ? g->fraction : 1);
}

double rf_machine_exchange_core(const rf_machine *m, const rf_group *g, rf_collective kind, rf_dtype dtype,
                                double whole_bytes) {
  const rf_exchange_curve *curve = g->chips > 1 ? find(m, g, kind, dtype) : NULL;
  for (int i = 0; curve && i < curve->count; i++)
    if (!(curve->core_seconds[i] > 0)) curve = NULL;
  return curve ? at(curve, curve->core_seconds, whole_bytes) : -1;
}
