/* model.c - reads run folders, plans and sweeps into the report model. All input is checked. */
#include "report/model.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "report/bench_rows.h"
#include "report/metrics.h"
#include "report/report.h"
#include "report/samples.h"
#include "report/trace_file.h"
#include "report/trace_pack.h"

enum { RUN_LIMIT = 1 << 20, OPS_MAX = 1 << 22 };
static const size_t PLAN_MAX = (size_t)512 << 20;
static const double MAX = 0x1p62;

json_t *rf_report_model(void) {
  return rf_must(json_pack("{ss s[] s[] s[]}", "rafter", RF_VERSION, "runs", "sweeps", "benches"));
}

/* ---- checks ---------------------------------------------------------------------------------- */

static rf_status object_at(const json_t *object, const char *key, const char *where, const json_t **value,
                           rf_error *error) {
  *value = json_object_get(object, key);
  if (json_is_object(*value)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "give the output of `rafter plan --json`, or the folder of a run",
                 "%s has no object \"%s\" (expected a plan of this program)", where, key);
}

static rf_status list_at(const json_t *object, const char *key, const char *where, const json_t **value,
                         rf_error *error) {
  *value = json_object_get(object, key);
  if (json_is_array(*value)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, NULL, "%s has no list \"%s\"", where, key);
}

static rf_status check_number(const json_t *object, const char *key, const char *where, rf_error *error) {
  double value;
  return rf_json_float(object, key, where, 0, 1e300, &value, error);
}
static rf_status check_text(const json_t *object, const char *key, const char *where, rf_error *error) {
  const char *text;
  return rf_json_string(object, key, where, &text, error);
}

/* A field that older files may not have, and its type. */
typedef struct field {
  const char *key;
  bool number;
} field;
static rf_status check_fields(const json_t *object, const field *fields, int count, const char *where,
                              rf_error *error) {
  for (int i = 0; i < count; i++) {
    const json_t *value = json_object_get(object, fields[i].key);
    if (!value || json_is_null(value)) continue;
    if (fields[i].number) RF_TRY(check_number(object, fields[i].key, where, error));
    else RF_TRY(check_text(object, fields[i].key, where, error));
  }
  return RAFTER_OK;
}
static rf_status check_rows(const json_t *object, const char *key, const field *fields, int count,
                            const char *where, rf_error *error) {
  const json_t *list = json_object_get(object, key), *row;
  size_t i;
  if (!list) return RAFTER_OK;
  RF_TRY(list_at(object, key, where, &list, error));
  json_array_foreach ((json_t *)list, i, row) {
    char at[160];
    snprintf(at, sizeof at, "%.100s, %.20s %zu", where, key, i);
    if (!json_is_object(row)) return RF_FAIL(error, RAFTER_FAILED, NULL, "%s is not an object", at);
    RF_TRY(check_fields(row, fields, count, at, error));
  }
  return RAFTER_OK;
}

static rf_status check_tensors(const json_t *plan, int64_t arena, const char *where, int64_t *most_id,
                               rf_error *error) {
  const json_t *list = json_object_get(plan, "tensors"), *tensor, *shape;
  size_t i;
  if (!list) return RAFTER_OK;
  RF_TRY(list_at(plan, "tensors", where, &list, error));
  json_array_foreach ((json_t *)list, i, tensor) {
    char at[160];
    int64_t id, bytes, offset, first, last;
    snprintf(at, sizeof at, "%.100s, tensor %zu", where, i);
    RF_TRY(rf_json_int(tensor, "id", at, 0, INT_MAX, &id, error));
    RF_TRY(check_text(tensor, "name", at, error));
    RF_TRY(check_text(tensor, "class", at, error));
    RF_TRY(check_text(tensor, "dtype", at, error));
    /* a tensor in "host" memory is not in the arena */
    const json_t *memory = json_object_get(tensor, "memory");
    int64_t room = json_is_string(memory) && !strcmp(json_string_value(memory), "host") ? INT64_MAX : arena;
    RF_TRY(rf_json_int(tensor, "bytes", at, 0, room, &bytes, error));
    RF_TRY(rf_json_int(tensor, "offset", at, 0, room - bytes, &offset, error));
    RF_TRY(rf_json_int(tensor, "first", at, -1, INT_MAX, &first, error));
    RF_TRY(rf_json_int(tensor, "last", at, first, INT_MAX, &last, error));
    RF_TRY(list_at(tensor, "shape", at, &shape, error));
    if (id > *most_id) *most_id = id;
  }
  return RAFTER_OK;
}

static rf_status check_ids(const json_t *op, const char *key, const char *where, int64_t most_id,
                           rf_error *error) {
  const json_t *list, *id;
  size_t i;
  RF_TRY(list_at(op, key, where, &list, error));
  json_array_foreach ((json_t *)list, i, id)
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > most_id)
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "%s names a tensor that the plan lacks (%s %zu: expected 0 to %lld)", where, key, i,
                     (long long)most_id);
  return RAFTER_OK;
}

static rf_status check_ops(const json_t *plan, const char *where, int64_t most_id, rf_error *error) {
  static const char *const numbers[] = {"flops", "bytes",          "seconds",
                                        "calls", "hardware_flops", "limit_seconds"};
  static const char *const texts[] = {"name", "op", "kernel", "bound", "kind", "phase", "limit"};
  static const field later[] = {{"intensity", true},  {"flops_per_second", true}, {"bytes_per_second", true},
                                {"live_bytes", true}, {"top_bytes", true},        {"layer", true},
                                {"sublayer", false}};
  const json_t *list = json_object_get(plan, "ops"), *op;
  size_t i;
  if (!list) return RAFTER_OK;
  RF_TRY(list_at(plan, "ops", where, &list, error));
  json_array_foreach ((json_t *)list, i, op) {
    char at[160];
    int64_t id;
    snprintf(at, sizeof at, "%.100s, op %zu", where, i);
    RF_TRY(rf_json_int(op, "id", at, (int64_t)i, (int64_t)i, &id, error));
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
      RF_TRY(check_number(op, numbers[k], at, error));
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) RF_TRY(check_text(op, texts[k], at, error));
    RF_TRY(check_fields(op, later, sizeof later / sizeof *later, at, error));
    if (!json_object_get(plan, "tensors")) continue;
    RF_TRY(check_ids(op, "inputs", at, most_id, error));
    RF_TRY(check_ids(op, "outputs", at, most_id, error));
  }
  return RAFTER_OK;
}

/* Checks the fields of a plan that the page shows, except tensors and ops. */
static rf_status check_shown(const json_t *plan, const char *where, rf_error *error) {
  static const field memory[] = {{"persistent_bytes", true}, {"live_bytes", true}, {"host_bytes", true}},
                     largest[] = {{"name", false},      {"class", false}, {"dtype", false}, {"count", true},
                                  {"each_bytes", true}, {"bytes", true},  {"reason", false}},
                     advice[] = {{"change", false}, {"peak_bytes", true}, {"seconds", true}},
                     frontier[] = {{"dtype", false},     {"remat", false},     {"mesh", false},
                                   {"why", false},       {"microbatch", true}, {"accumulate", true},
                                   {"peak_bytes", true}, {"seconds", true}},
                     rates[] = {{"requests_per_second", true},
                                {"tokens_per_second", true},
                                {"slots_used", true},
                                {"waiting_most", true}},
                     parts[] = {{"p50", true}, {"p95", true}, {"p99", true}};
  static const field stage[] = {{"stage", true},      {"first_layer", true},  {"layers", true},
                                {"in_flight", true},  {"peak_bytes", true},   {"persistent_bytes", true},
                                {"held_bytes", true}, {"busy_seconds", true}, {"idle_seconds", true}};
  static const char *const times[] = {"ttft_seconds", "tpot_seconds", "latency_seconds"};
  const json_t *at = json_object_get(plan, "memory"), *row, *shape, *value;
  const char *key;
  size_t i;
  RF_TRY(check_fields(at, memory, 3, where, error));
  RF_TRY(check_rows(at, "largest", largest, 7, where, error));
  json_array_foreach (json_object_get(at, "largest"), i, row)
    RF_TRY(list_at(row, "shape", where, &shape, error));
  json_object_foreach (json_object_get(at, "by_class"), key, value)
    RF_TRY(check_number(json_object_get(at, "by_class"), key, where, error));
  RF_TRY(check_rows(plan, "advice", advice, 3, where, error));
  RF_TRY(check_rows(plan, "frontier", frontier, 8, where, error));
  RF_TRY(check_rows(json_object_get(plan, "pipeline"), "stage", stage, sizeof stage / sizeof *stage, where,
                    error));
  at = json_object_get(plan, "serving");
  RF_TRY(check_rows(at, "rates", rates, 4, where, error));
  json_array_foreach (json_object_get(at, "rates"), i, row)
    for (size_t k = 0; k < 3; k++) {
      RF_TRY(object_at(row, times[k], where, &shape, error));
      RF_TRY(check_fields(shape, parts, 3, where, error));
    }
  return RAFTER_OK;
}

/* Checks a plan of `rafter plan --json`. The fields that the report reads must have the right
 * types, tensors must be inside the arena, and ops must be in order and use existing tensors. */
static rf_status check_plan(const json_t *plan, const char *where, rf_error *error) {
  static const struct {
    const char *object, *key;
  } numbers[] = {{"memory", "peak_bytes"},      {"memory", "capacity_bytes"}, {"time", "seconds"},
                 {"rate", "tokens_per_second"}, {"work", "hardware_flops"},   {"work", "bytes"},
                 {"model", "parameters"}},
    texts[] = {{"model", "name"},     {"machine", "name"},   {"machine", "kind"},
               {"machine", "source"}, {"memory", "peak_op"}, {"time", "bound"}};
  const json_t *part;
  int64_t arena, most_id = -1;
  RF_TRY(check_text(plan, "job", where, error));
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    RF_TRY(object_at(plan, numbers[i].object, where, &part, error));
    RF_TRY(check_number(part, numbers[i].key, where, error));
  }
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    RF_TRY(object_at(plan, texts[i].object, where, &part, error));
    RF_TRY(check_text(part, texts[i].key, where, error));
  }
  RF_TRY(object_at(plan, "settings", where, &part, error));
  RF_TRY(object_at(json_object_get(plan, "memory"), "by_class", where, &part, error));
  RF_TRY(rf_json_int(json_object_get(plan, "memory"), "peak_bytes", where, 0, (int64_t)MAX, &arena, error));
  RF_TRY(check_shown(plan, where, error));
  /* If two plans share an arena, peak_bytes is the larger peak, which limits both plans. */
  RF_TRY(check_tensors(plan, arena, where, &most_id, error));
  return check_ops(plan, where, most_id, error);
}

/* Checks the table of ranks of a run on several ranks. */
static rf_status check_ranks(const json_t *ranks, const char *where, rf_error *error) {
  static const field rank[] = {{"host", false},
                               {"exchange_seconds", true},
                               {"slow_rank_seconds", true},
                               {"network_seconds", true},
                               {"between_seconds", true},
                               {"work_seconds", true},
                               {"planned_bytes", true},
                               {"allocated_bytes", true},
                               {"threads", true},
                               {"step_work_seconds", true},
                               {"stage_seconds", true}},
                     slowest[] = {{"rank", true}, {"excess_seconds", true}, {"noise_seconds", true}};
  const json_t *slow = json_object_get(ranks, "slowest");
  if (!ranks) return RAFTER_OK;
  RF_TRY(check_number(ranks, "seconds", where, error));
  RF_TRY(check_rows(ranks, "waits", rank, sizeof rank / sizeof *rank, where, error));
  return check_fields(slow, slowest, 3, where, error);
}

/* Checks report.json. The measured ops refer to the plan's ops by id, so every id must be in the
 * plan. */
static rf_status check_measured(const json_t *run, const json_t *report, const char *where, rf_error *error) {
  static const char *const numbers[] = {"calls", "seconds", "least_seconds", "predicted_seconds",
                                        "limit_seconds"};
  const json_t *passes = json_object_get(report, "walks"), *pass, *ops, *op;
  size_t w, i;
  RF_TRY(check_ranks(json_object_get(report, "ranks"), where, error));
  if (!passes) return RAFTER_OK; /* the file is from an older version of rafter */
  RF_TRY(list_at(report, "walks", where, &passes, error));
  json_array_foreach ((json_t *)passes, w, pass) {
    const char *name;
    int64_t count, timed;
    RF_TRY(rf_json_string(pass, "walk", where, &name, error));
    RF_TRY(rf_json_int(pass, "count", where, 0, INT64_MAX / 2, &count, error));
    if (json_object_get(pass, "timed"))
      RF_TRY(rf_json_int(pass, "timed", where, 1, INT64_MAX / 2, &timed, error));
    RF_TRY(check_number(pass, "seconds", where, error));
    RF_TRY(check_number(pass, "predicted_seconds", where, error));
    RF_TRY(list_at(pass, "ops", where, &ops, error));
    const json_t *plan = rf_report_plan_of(run, name), *planned = json_object_get(plan, "ops");
    json_array_foreach ((json_t *)ops, i, op) {
      char at[160];
      int64_t id;
      snprintf(at, sizeof at, "%.80s, walk %.30s, op %zu", where, name, i);
      RF_TRY(rf_json_int(op, "id", at, 0, planned ? (int64_t)json_array_size(planned) - 1 : OPS_MAX, &id,
                         error));
      for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        RF_TRY(check_number(op, numbers[k], at, error));
    }
  }
  return RAFTER_OK;
}

/* ---- entries --------------------------------------------------------------------------------- */

static bool there(const char *folder, const char *name, char path[4400]) {
  struct stat info;
  return snprintf(path, 4400, "%.4000s/%s", folder, name) < 4400 && !stat(path, &info);
}

static json_t *run_of(const json_t *model, const char *id) {
  json_t *run;
  size_t i;
  json_array_foreach (json_object_get(model, "runs"), i, run)
    if (!strcmp(json_string_value(json_object_get(run, "id")), id) ||
        !strcmp(json_string_value(json_object_get(run, "name")), id))
      return run;
  return NULL;
}

const json_t *rf_report_pass_of(const json_t *run, const char *pass) {
  const json_t *one;
  size_t i;
  json_array_foreach (json_object_get(json_object_get(run, "measured"), "walks"), i, one)
    if (!pass || !strcmp(json_string_value(json_object_get(one, "walk")), pass)) return one;
  return NULL;
}

const json_t *rf_report_plan_of(const json_t *run, const char *pass) {
  const json_t *plan = json_object_get(run, "plan"), *one;
  const char *own = json_string_value(json_object_get(plan, "name"));
  size_t i;
  if (!pass || !own || !strcmp(own, pass)) return plan;
  json_array_foreach (json_object_get(plan, "plans"), i, one) {
    const char *name = json_string_value(json_object_get(one, "name"));
    if (name && !strcmp(name, pass)) return one;
  }
  return NULL;
}

/* Makes a unique id from the name. If another entry already has the name, a number is added. */
static void name_entry(const json_t *model, const char *name, char id[320]) {
  snprintf(id, 320, "%.280s", name);
  for (int n = 2; run_of(model, id); n++) snprintf(id, 320, "%.280s (%d)", name, n);
}

static rf_status append(json_t *model, json_t *entry, const char *name, rf_error *error) {
  char id[320];
  name_entry(model, name, id);
  json_t *text = json_string(id), *title = json_string(name);
  if (!text || !title) {
    json_decref(text);
    json_decref(title);
    json_decref(entry);
    return RF_FAIL(error, RAFTER_FAILED, "rename the folder or file", "the name is not UTF-8 text");
  }
  json_object_set_new(entry, "id", text);
  json_object_set_new(entry, "name", title);
  json_array_append_new(json_object_get(model, "runs"), entry);
  return RAFTER_OK;
}

/* Returns the last part of a path, after resolving "." and a trailing slash. */
static void base_of(const char *path, char base[256]) {
  char *real = realpath(path, NULL);
  const char *from = real ? real : path, *slash = strrchr(from, '/');
  snprintf(base, 256, "%.255s", slash && slash[1] ? slash + 1 : from);
  free(real);
}

/* Fails if a file in the folder has the digest of another run's plan. */
static rf_status check_digest(const json_t *digest, const json_t *plan, const char *where, rf_error *error) {
  const char *given = json_string_value(digest),
             *planned = json_string_value(json_object_get(plan, "digest"));
  if (!given || !planned || !strcmp(given, planned)) return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_FAILED,
      "all files of a folder must belong to one run: restore the run's own file, or remove this one",
      "%s belongs to plan %.40s, not to %.40s (expected the plan in plan.json)", where, given, planned);
}

static rf_status check_trace_plans(const json_t *entry, const json_t *header, const char *where,
                                   rf_error *error) {
  const json_t *names = json_object_get(header, "plans"), *digests = json_object_get(header, "digests"),
               *name;
  size_t i;
  json_array_foreach ((json_t *)names, i, name) {
    const json_t *plan = json_is_string(name) ? rf_report_plan_of(entry, json_string_value(name)) : NULL;
    const char *own = json_string_value(json_object_get(plan, "name"));
    if (own && !strcmp(own, json_string_value(name)))
      RF_TRY(check_digest(json_array_get(digests, i), plan, where, error));
  }
  return RAFTER_OK;
}

/* Reads and checks trace.bin. Adds the trace in the packed form that the page reads. */
static rf_status add_trace(json_t *entry, const char *path, rf_error *error) {
  rf_trace_file file;
  json_t *trace = NULL;
  RF_TRY(rf_trace_file_read(path, &file, error));
  rf_status status = check_trace_plans(entry, file.header, path, error);
  if (status == RAFTER_OK)
    status = rf_report_pack_trace(file.header, file.columns, file.column_bytes, &trace, error);
  rf_trace_file_free(&file);
  if (status == RAFTER_OK) json_object_set_new(entry, "trace", trace);
  return status;
}

static rf_status add_run(json_t *model, const char *folder, rf_error *error) {
  rf_status status = RAFTER_OK;
  char path[4400], base[256];
  json_t *entry = json_object(), *part = NULL, *pass;
  const json_t *options;
  size_t i;
  snprintf(path, sizeof path, "%.4000s/run.json", folder);
  RF_GO(rf_json_read(path, RUN_LIMIT, &part, error));
  json_object_set_new(entry, "run", part);
  RF_GO(check_text(part, "command", path, error));
  RF_GO(object_at(part, "options", path, &options, error));
  snprintf(path, sizeof path, "%.4000s/plan.json", folder);
  RF_GO(rf_json_read(path, PLAN_MAX, &part, error));
  json_object_set_new(entry, "plan", part);
  RF_GO(check_plan(part, path, error));
  if (json_object_get(part, "plans")) {
    RF_GO(list_at(part, "plans", path, &options, error));
    json_array_foreach ((json_t *)options, i, pass) {
      RF_GO(check_text(pass, "name", path, error));
      RF_GO(check_plan(pass, path, error));
    }
  }
  if (there(folder, "metrics.jsonl", path)) RF_GO(rf_report_read_metrics(path, entry, error));
  if (there(folder, "samples.jsonl", path)) {
    RF_GO(rf_report_read_samples(path, &part, error));
    json_object_set_new(entry, "samples", part);
  }
  if (there(folder, "report.json", path)) {
    RF_GO(rf_json_read(path, PLAN_MAX, &part, error));
    json_object_set_new(entry, "measured", part);
    RF_GO(check_digest(json_object_get(part, "digest"), json_object_get(entry, "plan"), path, error));
    RF_GO(check_measured(entry, part, path, error));
  }
  if (there(folder, "trace.bin", path)) RF_GO(add_trace(entry, path, error));
  base_of(folder, base);
  json_object_set_new(entry, "folder", json_string(folder));
  return append(model, entry, base, error);
done:
  json_decref(entry);
  return status;
}

/* Checks a sweep, whose rows are plans or errors. */
static rf_status check_sweep(const json_t *sweep, const char *where, rf_error *error) {
  static const field cliffs[] = {{"at", false}, {"what", false}, {"cause", false}, {"size", true}},
                     none[] = {{"error", false}};
  const json_t *row;
  size_t i;
  RF_TRY(check_text(sweep, "sweep", where, error));
  RF_TRY(check_rows(sweep, "rows", none, 1, where, error));
  RF_TRY(check_rows(sweep, "cliffs", cliffs, 4, where, error));
  json_array_foreach (json_object_get(sweep, "rows"), i, row) {
    char at[160];
    snprintf(at, sizeof at, "%.100s, row %zu", where, i);
    if (!json_object_get(row, "error")) RF_TRY(check_plan(row, at, error));
  }
  return RAFTER_OK;
}

static rf_status add_file(json_t *model, const char *path, rf_error *error) {
  json_t *json = NULL;
  char base[256];
  base_of(path, base);
  static const char *const OF_RUNS[] = {"run.json",      "report.json", "metrics.jsonl",
                                        "samples.jsonl", "trace.bin",   "trace.json"};
  const char *slash = strrchr(path, '/');
  int before = slash ? (int)(slash - path) : 1;
  char run[4400];
  snprintf(run, sizeof run, "%.*s/run.json", before < 4000 ? before : 4000, slash ? path : ".");
  for (size_t i = 0; i < sizeof OF_RUNS / sizeof *OF_RUNS; i++)
    if (!strcmp(base, OF_RUNS[i]) && !access(run, F_OK))
      return RF_FAIL(error, RAFTER_FAILED, "give the folder", "%s belongs to the run in %.*s", path, before,
                     slash ? path : ".");
  if (rf_report_is_bench(path)) return rf_report_add_bench(model, path, base, error);
  RF_TRY(rf_json_read(path, PLAN_MAX, &json, error));
  rf_status status = RAFTER_OK;
  if (json_is_array(json_object_get(json, "rows")) && json_object_get(json, "sweep")) {
    status = check_sweep(json, path, error);
    if (status != RAFTER_OK) {
      json_decref(json);
      return status;
    }
    json_object_set_new(json, "name", json_string(base));
    return json_array_append_new(json_object_get(model, "sweeps"), json)
               ? RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory")
               : RAFTER_OK;
  }
  status =
      json_is_array(json_object_get(json, "compare"))
          ? RF_FAIL(error, RAFTER_FAILED,
                    "give its two plans, each as `rafter plan --json --tensors --ops` prints it",
                    "%s compares two plans (expected the folder of a run, a plan, a sweep or a bench)", path)
          : check_plan(json, path, error);
  if (status == RAFTER_OK) return append(model, rf_must(json_pack("{so}", "plan", json)), base, error);
  json_decref(json);
  return status;
}

rf_status rf_report_add(json_t *model, const char *root, const char *given, rf_error *error) {
  char named[4400], run[4400];
  struct stat info;
  const char *path = given, *slash = strchr(given, '/');
  if (stat(path, &info) && root && (!slash || !slash[1]) && there(root, given, named)) path = named;
  if (stat(path, &info))
    return RF_FAIL(error, RAFTER_FAILED, "`rafter runs list` lists the runs",
                   "%s is neither a run nor a file (%s)", given, strerror(errno));
  if (!S_ISDIR(info.st_mode)) return add_file(model, path, error);
  if (there(path, "run.json", run)) return add_run(model, path, error);
  /* a checkpoint */
  if (there(path, "../run.json", run)) {
    snprintf(run, sizeof run, "%.4000s/..", path);
    return add_run(model, run, error);
  }
  return RF_FAIL(error, RAFTER_FAILED, "give the folder of a run, or the output of `rafter plan --json`",
                 "%s is not a run (expected run.json in it)", given);
}

rf_status rf_report_add_plan(json_t *model, const char *name, const char *of, json_t *plan, rf_error *error) {
  rf_status status = check_plan(plan, name, error);
  if (status != RAFTER_OK) {
    json_decref(plan);
    return status;
  }
  return append(model, rf_must(json_pack("{so ss?}", "plan", plan, "of", of)), name, error);
}
