/* file.c - reads and writes one machine as JSON. The reader checks every field. The writer makes a
 * temporary file, and renames it when it is complete. */
#include "machine/parts.h"
#include "machine/tuned.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 4 << 20 };
const char RF_MACHINE_HINT[] =
    "data/README.md describes the format; `rafter calibrate` writes such a file for this machine";

/* ---- fields ---------------------------------------------------------------------------------- */

rf_status rf_machine_text(const json_t *object, const char *key, bool required, char *out, size_t capacity,
                          const char *where, rf_error *error) {
  const char *value;
  if (!required && !json_object_get(object, key)) return RAFTER_OK;
  RF_TRY(rf_json_string(object, key, where, &value, error));
  size_t length = strlen(value);
  if (length >= capacity || (required && length == 0))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                   "%s: %s has a bad length (expected %d to %zu bytes, got %zu)", where, key, required,
                   capacity - 1, length);
  for (const char *c = value; *c; c++) /* names are printed */
    if ((unsigned char)*c < ' ' || *c == 127)
      return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                     "%s: %s holds a control character (byte %d, expected text of one line)", where, key,
                     (int)(c - value));
  memcpy(out, value, length + 1);
  return RAFTER_OK;
}

rf_status rf_machine_number(const json_t *object, const char *key, double least, double most, double *value,
                            const char *where, rf_error *error) {
  return rf_json_float_or(object, key, where, least, most, *value, value, error);
}

static rf_status dtype_key(const char *key, const char *where, rf_dtype *dtype, rf_error *error) {
  if (rf_dtype_parse(key, dtype, NULL) == RAFTER_OK) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                 "%s: '%.40s' is not a dtype (expected f32, bf16, f16, f64, i8, ...)", where, key);
}

/* A number format that has no rf_dtype (tf32, f4), and the address for its FLOP/s. */
typedef struct rate_place {
  const char *key;
  double *at;
} rate_place;

/* Reads {"f32": FLOP/s, ...}. Stores the rates of dtypes in `of`. Stores the rates of other formats
 * in `more`, which is a list that ends with a NULL key. */
static rf_status parse_rates(const json_t *object, const char *name, bool required, double of[RF_DTYPES],
                             const rate_place *more, const char *where, rf_error *error) {
  json_t *rates = json_object_get(object, name), *value;
  const char *key;
  if (!rates && !required) return RAFTER_OK;
  if (!json_is_object(rates) || (required && !json_object_size(rates)))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: %s is %s (expected {\"f32\": FLOP/s, ...})",
                   where, name,
                   !rates                  ? "missing"
                   : json_is_object(rates) ? "empty"
                                           : "not an object");
  json_object_foreach (rates, key, value) {
    double *place = NULL;
    rf_dtype dtype;
    for (const rate_place *m = more; m->key && !place; m++)
      if (!strcmp(key, m->key)) place = m->at;
    if (!place) {
      RF_TRY(dtype_key(key, where, &dtype, error));
      place = &of[dtype];
    }
    RF_TRY(rf_json_float(rates, key, where, 1e6, 1e20, place, error));
  }
  return RAFTER_OK;
}

bool rf_curve_multiplies(const char *op) {
  /* Curves that do not have the name of an op: packed products, long contexts, the head's rows, and
   * sampling. */
  static const char *const parts[] = {"matmul_", "attention_", "head_rows", "sample"};
  const rf_op_def *def = rf_op_find(op);
  if (def) return def->timing != RF_TIMING_BYTES;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (!strncmp(op, parts[i], strlen(parts[i]))) return true;
  return false;
}

static rf_status parse_curve(const json_t *object, const char *where, rf_curve *curve, rf_error *error) {
  char dtype[16] = "";
  if (!json_is_object(object))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: a curve is not an object", where);
  RF_TRY(rf_machine_text(object, "op", true, curve->op, sizeof curve->op, where, error));
  curve->multiplies = rf_curve_multiplies(curve->op);
  RF_TRY(rf_machine_text(object, "dtype", true, dtype, sizeof dtype, where, error));
  RF_TRY(rf_machine_text(object, "kernel", false, curve->kernel, sizeof curve->kernel, where, error));
  RF_TRY(dtype_key(dtype, where, &curve->dtype, error));
  const json_t *points = json_object_get(object, "points");
  size_t count = json_array_size(points);
  if (!json_is_array(points) || count < 1 || count > RF_CURVE_POINTS)
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                   "%s: points of curve %s is not a list of 1 to %d points (got %zu)", where, curve->op,
                   RF_CURVE_POINTS, count);
  for (size_t i = 0; i < count; i++) {
    const json_t *point = json_array_get(points, i);
    RF_TRY(rf_json_float(point, "work", where, 1, 1e24, &curve->work[i], error));
    RF_TRY(rf_json_float(point, "seconds", where, 1e-12, 1e9, &curve->seconds[i], error));
    curve->size[i] = curve->work[i];
    RF_TRY(rf_machine_number(point, "size", 1e-3, 1e24, &curve->size[i], where, error));
    if (i && curve->size[i] <= curve->size[i - 1])
      return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                     "%s: points of curve %s do not ascend (expected more than %g, got %g)", where, curve->op,
                     curve->size[i - 1], curve->size[i]);
  }
  curve->count = (int)count;
  return RAFTER_OK;
}

static rf_status parse_scaling(const json_t *list, const char *where, rf_machine *machine, rf_error *error) {
  if (list && (!json_is_array(list) || json_array_size(list) > RF_SCALING_POINTS))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: scaling is not a list of at most %d points",
                   where, RF_SCALING_POINTS);
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *point = json_array_get(list, i);
    rf_scaling *at = &machine->scaling[machine->scaling_count++];
    double threads = 0;
    RF_TRY(rf_json_float(point, "threads", where, 1, 65536, &threads, error));
    RF_TRY(rf_json_float(point, "flops", where, 0, 1e20, &at->flops, error));
    RF_TRY(rf_json_float(point, "read_bps", where, 0, 1e18, &at->read_bps, error));
    at->threads = (int)threads;
  }
  return RAFTER_OK;
}

static void note_of(const json_t *object, rf_machine *machine) {
  const json_t *source = json_object_get(object, "source");
  const char *flops = json_string_value(json_object_get(source, "flops")),
             *memory = json_string_value(json_object_get(source, "memory_bps"));
  if (json_is_string(source))
    snprintf(machine->source_note, sizeof machine->source_note, "%s", json_string_value(source));
  else if (flops && memory)
    snprintf(machine->source_note, sizeof machine->source_note, "%s; %s", memory, flops);
}

static const char *const KINDS[] = {"", "cpu", "gpu", "tpu"};

const char *rf_machine_kind_name(rf_machine_kind kind) { return KINDS[kind]; }

static rf_status parse_kind(const json_t *object, const char *where, rf_machine_kind *kind, rf_error *error) {
  char text[16] = "";
  RF_TRY(rf_machine_text(object, "kind", true, text, sizeof text, where, error));
  for (int i = RF_MACHINE_CPU; i <= RF_MACHINE_TPU; i++)
    if (!strcmp(text, KINDS[i])) *kind = (rf_machine_kind)i;
  if (*kind != RF_MACHINE_NONE) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                 "%s: unknown kind (expected cpu, gpu or tpu, got '%s')", where, text);
}

rf_status rf_machine_parse(const json_t *object, const char *where, rf_machine *out, rf_error *error) {
  if (!json_is_object(object))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: not a JSON object", where);
  rf_machine *machine = calloc(1, sizeof *machine);
  if (!machine) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading %s", where);
  rf_status status = RAFTER_OK;
  double chips = 1, threads = 0, calibration = 0;
  machine->efficiency_compute = machine->efficiency_memory = 1;
  snprintf(machine->source, sizeof machine->source, "file");
  RF_GO(rf_machine_text(object, "name", true, machine->name, sizeof machine->name, where, error));
  RF_GO(parse_kind(object, where, &machine->kind, error));
  RF_GO(rf_machine_text(object, "isa", false, machine->isa, sizeof machine->isa, where, error));
  RF_GO(rf_machine_number(object, "chips", 1, 1e6, &chips, where, error));
  RF_GO(rf_machine_number(object, "threads", 0, 65536, &threads, where, error));
  RF_GO(rf_machine_number(object, "calibration", 0, 1e6, &calibration, where, error));
  machine->calibration = (int)calibration;
  RF_GO(rf_machine_number(object, "others_part", 0, 1, &machine->others_part, where, error));
  machine->chips = (int)chips;
  machine->threads = (int)threads;
  const rate_place formats[] = {{"tf32", &machine->flops_tf32}, {"f4", &machine->flops_f4}, {NULL, NULL}};
  RF_GO(parse_rates(object, "flops", true, machine->flops, formats, where, error));
  RF_GO(parse_rates(object, "flops_vectors", false, machine->flops_vectors, &formats[2], where, error));
  RF_GO(rf_json_float(object, "memory_bytes", where, 1 << 20, 1e16, &machine->memory_bytes, error));
  RF_GO(rf_machine_number(object, "reserve_bytes", 0, machine->memory_bytes, &machine->reserve_bytes, where,
                          error));
  const bool one_bandwidth = json_object_get(object, "memory_bps") != NULL;
  RF_GO(rf_json_float(object, one_bandwidth ? "memory_bps" : "read_bps", where, 1e6, 1e18, &machine->read_bps,
                      error));
  RF_GO(rf_json_float(object, one_bandwidth ? "memory_bps" : "copy_bps", where, 1e6, 1e18, &machine->copy_bps,
                      error));
  RF_GO(rf_machine_number(object, "launch_seconds", 0, 10, &machine->launch_seconds, where, error));
  RF_GO(rf_machine_number(object, "watts", 0, 1e5, &machine->watts, where, error));
  RF_GO(rf_machine_number(object, "efficiency_experts", 0, 1, &machine->efficiency_experts, where, error));
  RF_GO(rf_machine_number(object, "efficiency_eight_bits", 0, 1, &machine->efficiency_eight_bits, where,
                          error));
  RF_GO(rf_machine_number(object, "usd_per_chip_hour", 0, 1e6, &machine->usd_per_chip_hour, where, error));
  RF_GO(rf_machine_number(object, "efficiency_compute", 0.01, 1, &machine->efficiency_compute, where, error));
  RF_GO(rf_machine_number(object, "efficiency_memory", 0.01, 1, &machine->efficiency_memory, where, error));
  RF_GO(rf_machine_parse_network(object, where, machine, error));
  RF_GO(rf_machine_parse_exchanges(object, where, machine, error));
  RF_GO(parse_scaling(json_object_get(object, "scaling"), where, machine, error));
  note_of(object, machine);
  const json_t *origin = json_object_get(object, "origin"), *curves = json_object_get(object, "curves");
  if (json_is_string(origin) && !strcmp(json_string_value(origin), "calibrated"))
    snprintf(machine->source, sizeof machine->source, "calibrated");
  if (curves && (!json_is_array(curves) || json_array_size(curves) > RF_MAX_CURVES)) {
    status = RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: curves is not a list of at most %d curves",
                     where, RF_MAX_CURVES);
    goto done;
  }
  for (size_t i = 0; i < json_array_size(curves); i++)
    RF_GO(parse_curve(json_array_get(curves, i), where, &machine->curve[machine->curve_count++], error));
  RF_GO(rf_tuned_parse(json_object_get(object, "tuned"), where, &machine->tuned, error));
  *out = *machine;
done:
  free(machine);
  return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

rf_status rf_machine_read(const char *path, rf_machine *machine, rf_error *error) {
  json_t *root;
  RF_TRY(rf_json_read(path, MAX_FILE_BYTES, &root, error));
  rf_status status = RAFTER_OK;
  const json_t *format = json_object_get(root, "format");
  if (format && (!json_is_string(format) || strcmp(json_string_value(format), RF_MACHINE_FORMAT)))
    status = RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                     "%s has another format (expected \"%s\", got \"%.40s\")", path, RF_MACHINE_FORMAT,
                     json_is_string(format) ? json_string_value(format) : "another JSON type");
  else status = rf_machine_parse(root, path, machine, error);
  json_decref(root);
  return status;
}

bool rf_machine_old_calibration(const rf_machine *m, char text[200]) {
  text[0] = 0;
  if (strcmp(m->source, "calibrated") != 0 || m->calibration == RF_CALIBRATION) return false;
  snprintf(text, 200,
           "the calibration of %.63s was made by %s version of rafter, which measured other figures; run "
           "`rafter calibrate` again",
           m->name, m->calibration < RF_CALIBRATION ? "an earlier" : "a later");
  return true;
}

bool rf_machine_busy_calibration(const rf_machine *m, char text[200]) {
  static const double BUSY = 0.1; /* daemons of an idle machine take less */
  text[0] = 0;
  if (strcmp(m->source, "calibrated") != 0 || !(m->others_part > BUSY)) return false;
  snprintf(text, 200,
           "other programs used %.0f %% of the cores while %.63s was calibrated, so its figures are too low; "
           "calibrate it again, alone",
           100 * m->others_part, m->name);
  return true;
}

static json_t *curve_json(const rf_curve *curve) {
  json_t *points = json_array();
  for (int i = 0; i < curve->count; i++) {
    json_t *point = json_pack("{s:f, s:f}", "work", curve->work[i], "seconds", curve->seconds[i]);
    if (curve->size[i] > 0 && curve->size[i] != curve->work[i])
      json_object_set_new(point, "size", json_real(curve->size[i]));
    json_array_append_new(points, point);
  }
  return json_pack("{s:s, s:s, s:s, s:o}", "op", curve->op, "dtype", rf_dtype_name(curve->dtype), "kernel",
                   curve->kernel, "points", points);
}

static json_t *rates_json(const double of[RF_DTYPES]) {
  json_t *rates = json_object();
  for (int d = 0; d < RF_DTYPES; d++)
    if (of[d] > 0) json_object_set_new(rates, rf_dtype_name((rf_dtype)d), json_real(of[d]));
  return rates;
}

rf_status rf_machine_write(const rf_machine *machine, const char *path, rf_error *error) {
  json_t *flops = rates_json(machine->flops), *vectors = rates_json(machine->flops_vectors),
         *curves = json_array(), *scaling = json_array();
  for (int i = 0; i < machine->scaling_count; i++)
    json_array_append_new(scaling,
                          json_pack("{s:i, s:f, s:f}", "threads", machine->scaling[i].threads, "flops",
                                    machine->scaling[i].flops, "read_bps", machine->scaling[i].read_bps));
  if (machine->flops_tf32 > 0) json_object_set_new(flops, "tf32", json_real(machine->flops_tf32));
  if (machine->flops_f4 > 0) json_object_set_new(flops, "f4", json_real(machine->flops_f4));
  for (int i = 0; i < machine->curve_count; i++)
    json_array_append_new(curves, curve_json(&machine->curve[i]));
  json_t *root = json_pack(
      "{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}",
      "format", RF_MACHINE_FORMAT, "name", machine->name, "kind", rf_machine_kind_name(machine->kind),
      "origin", machine->source, "source", machine->source_note, "isa", machine->isa, "chips", machine->chips,
      "threads", machine->threads, "flops", flops, "memory_bytes", machine->memory_bytes, "reserve_bytes",
      machine->reserve_bytes, "read_bps", machine->read_bps, "copy_bps", machine->copy_bps, "launch_seconds",
      machine->launch_seconds, "usd_per_chip_hour", machine->usd_per_chip_hour, "efficiency_compute",
      machine->efficiency_compute, "efficiency_memory", machine->efficiency_memory, "scaling", scaling,
      "curves", curves);
  if (root && json_object_size(vectors)) json_object_set(root, "flops_vectors", vectors);
  json_decref(vectors);
  if (root && machine->calibration > 0)
    json_object_set_new(root, "calibration", json_integer(machine->calibration));
  if (root && machine->others_part > 0)
    json_object_set_new(root, "others_part", json_real(machine->others_part));
  if (root && machine->watts > 0) json_object_set_new(root, "watts", json_real(machine->watts));
  if (root && machine->efficiency_experts > 0)
    json_object_set_new(root, "efficiency_experts", json_real(machine->efficiency_experts));
  if (root && machine->efficiency_eight_bits > 0)
    json_object_set_new(root, "efficiency_eight_bits", json_real(machine->efficiency_eight_bits));
  if (root) rf_machine_network_json(machine, root);
  if (root) rf_machine_exchanges_json(machine, root);
  if (root && machine->tuned.cpu[0]) json_object_set_new(root, "tuned", rf_tuned_json(&machine->tuned));
  rf_status status = root ? rf_json_write(path, root, 1, error)
                          : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing %s", path);
  json_decref(root);
  return status;
}
