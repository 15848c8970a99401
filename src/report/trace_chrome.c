/* trace_chrome.c - writes a trace as Chrome trace events (Perfetto opens these files), and as CSV.
 * Format: "Trace Event Format", Google, 2016. */
#define _GNU_SOURCE
#include "report/trace_file.h"
#include "base/file.h"
#include "base/json.h"
#include "report/trace_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A buffered text writer. */
typedef struct pen {
  rf_out_file *out;
  size_t used;
  rf_status status;
  rf_error *error;
  char text[1 << 16];
} pen;

static void flush(pen *p) {
  if (p->status == RAFTER_OK && p->used) p->status = rf_out_write(p->out, p->text, p->used, p->error);
  p->used = 0;
}
static void put(pen *p, const char *text) {
  for (size_t bytes = strlen(text); bytes;) {
    size_t room = sizeof p->text - p->used, part = bytes < room ? bytes : room;
    memcpy(p->text + p->used, text, part);
    p->used += part;
    text += part;
    bytes -= part;
    if (p->used == sizeof p->text) flush(p);
  }
}
__attribute__((format(printf, 2, 3))) static void putf(pen *p, const char *format, ...) {
  char line[512];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  put(p, line);
}

static rf_status pen_open(const char *path, pen **out, rf_error *error) {
  pen *p = calloc(1, sizeof *p);
  if (!p) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing %s", path);
  p->error = error;
  rf_status status = rf_out_open(path, 0, &p->out, error);
  if (status == RAFTER_OK) *out = p;
  else free(p);
  return status;
}
static rf_status pen_close(pen *p) {
  flush(p);
  rf_status status = p->status;
  if (status == RAFTER_OK) status = rf_out_commit(p->out, p->error);
  else rf_out_discard(p->out);
  free(p);
  return status;
}

/* ---- ops ------------------------------------------------------------------------------------- */

typedef struct op_text {
  char *name, *args; /* `name` is a JSON string, and `args` has the fields, as in "op":3,"kernel":"..." */
  double seconds, limit_seconds, flops, bytes;
} op_text;
typedef struct ops {
  op_text **of; /* ops by plan */
  size_t plans, *count;
  int *rank; /* rank of each lane */
} ops;

static void ops_free(ops *o) {
  for (size_t p = 0; o->of && p < o->plans; p++) {
    for (size_t i = 0; o->of[p] && i < o->count[p]; i++) {
      free(o->of[p][i].name);
      free(o->of[p][i].args);
    }
    free(o->of[p]);
  }
  free(o->of);
  free(o->count);
  free(o->rank);
}

static rf_status op_text_of(const json_t *op, op_text *text, rf_error *error) {
  static const char *const taken[] = {"op", "kernel", "shape", "dtype", "flops", "bytes", "bound"};
  json_t *args = json_pack("{sO}", "id", json_object_get(op, "id"));
  for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
    json_object_set(args, taken[i], json_object_get(op, taken[i]));
  text->seconds = json_number_value(json_object_get(op, "seconds"));
  text->limit_seconds = json_number_value(json_object_get(op, "limit_seconds"));
  text->flops = json_number_value(json_object_get(op, "flops"));
  text->bytes = json_number_value(json_object_get(op, "bytes"));
  json_t *name = json_string(json_string_value(json_object_get(op, "name")));
  text->args = json_dumps(args, JSON_COMPACT);
  text->name = json_dumps(name, JSON_ENCODE_ANY);
  json_decref(args);
  json_decref(name);
  return text->args && text->name
             ? RAFTER_OK
             : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a trace");
}

static rf_status ops_of(const rf_trace_file *file, ops *o, rf_error *error) {
  const json_t *plans = json_object_get(file->header, "ops");
  o->plans = json_array_size(plans);
  o->of = calloc(o->plans + 1, sizeof *o->of);
  o->count = calloc(o->plans + 1, sizeof *o->count);
  o->rank = rf_trace_lane_ranks(file);
  if (!o->of || !o->count || !o->rank)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a trace");
  for (size_t p = 0; p < o->plans; p++) {
    const json_t *list = json_array_get(plans, p);
    o->of[p] = calloc(json_array_size(list) + 1, sizeof **o->of);
    if (!o->of[p]) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a trace");
    o->count[p] = json_array_size(list);
    for (size_t i = 0; i < o->count[p]; i++) RF_TRY(op_text_of(json_array_get(list, i), &o->of[p][i], error));
  }
  return RAFTER_OK;
}

/* ---- Chrome's events ------------------------------------------------------------------------- */

static const char *list_name(const rf_trace_file *file, const char *list, size_t i) {
  const json_t *entry = json_array_get(json_object_get(file->header, list), i);
  return json_string_value(json_is_object(entry) ? json_object_get(entry, "name") : entry);
}

/* Returns the position of a track, counted from the top. The tracks of steps, phases and
 * predictions are above the tracks of threads. */
static int order_of(const char *kind, size_t lane) {
  static const char *const above[] = {"steps", "phases", "predicted"};
  for (int i = 0; i < 3; i++)
    if (!strcmp(kind, above[i])) return i;
  return 10 + (int)lane;
}

/* The process of a rank. In Perfetto, the number of a process is the number of its rank plus 1. */
static void put_process(pen *p, const rf_trace_file *file, size_t rank, bool several) {
  const json_t *about = json_object_get(file->header, "about"),
               *one = json_array_get(json_object_get(file->header, "ranks"), rank);
  const char *command = json_string_value(json_object_get(about, "command"));
  json_t *name = several ? json_sprintf("rank %zu (%s)", rank, rf_json_text_at(one, "host"))
                         : json_sprintf("rafter %s", command ? command : "");
  char *text = json_dumps(name, JSON_ENCODE_ANY);
  putf(p, "%s{\"ph\":\"M\",\"pid\":%zu,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":",
       rank ? ",\n" : "", rank + 1);
  put(p, text ? text : "\"rafter\"");
  put(p, "}}");
  if (several)
    putf(p,
         ",\n{\"ph\":\"M\",\"pid\":%zu,\"tid\":0,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%"
         "zu}}",
         rank + 1, rank);
  free(text);
  json_decref(name);
}

static void put_lanes(pen *p, const rf_trace_file *file, const ops *o) {
  const json_t *lanes = json_object_get(file->header, "lanes");
  size_t ranks = json_array_size(json_object_get(file->header, "ranks"));
  for (size_t r = 0; r < (ranks ? ranks : 1); r++) put_process(p, file, r, ranks > 0);
  for (size_t l = 0; l < json_array_size(lanes); l++) {
    const json_t *lane = json_array_get(lanes, l);
    const char *kind = json_string_value(json_object_get(lane, "kind"));
    char *name = json_dumps(json_object_get(lane, "name"), JSON_ENCODE_ANY);
    int pid = o->rank[l] + 1;
    if (strcmp(kind, "counters")) {
      putf(p, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%zu,\"name\":\"thread_name\",\"args\":{\"name\":", pid,
           l + 1);
      put(p, name ? name : "\"lane\"");
      put(p, "}}");
      putf(p,
           ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%zu,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%"
           "d}}",
           pid, l + 1, order_of(kind, l));
    }
    free(name);
  }
}

/* Returns the end of a span in the drawing. Spans of a track may not overlap. So a predicted span
 * ends before the next predicted span begins. */
static int64_t end_on_track(const rf_trace_file *file, int64_t i) {
  bool reaches = file->kind[i] == RF_SPAN_PREDICTED && i + 1 < file->count &&
                 file->kind[i + 1] == RF_SPAN_PREDICTED && file->begin[i + 1] < file->end[i];
  return reaches ? file->begin[i + 1] : file->end[i];
}

/* Writes the fields of an event before "args". Times are in microseconds. */
static void put_head(pen *p, const rf_trace_file *file, const ops *o, int64_t i, const char *category) {
  putf(p, "\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\"",
       o->rank[file->lane[i]] + 1, file->lane[i] + 1, 1e-3 * (double)file->begin[i],
       1e-3 * (double)(end_on_track(file, i) - file->begin[i]), category);
}

/* Finds the predicted span of the next measured op. The predicted spans and the measured spans of a
 * rank are both in execution order. Returns -1 if the file has no such span. */
static int64_t prediction_of(const rf_trace_file *file, const ops *o, int64_t op, int64_t *next) {
  int rank = o->rank[file->lane[op]];
  while (*next < file->count && (file->kind[*next] != RF_SPAN_PREDICTED || o->rank[file->lane[*next]] < rank))
    ++*next;
  bool fits = *next < file->count && file->id[*next] == file->id[op] && file->plan[*next] == file->plan[op];
  return fits ? (*next)++ : -1;
}

/* Gets an op's predicted seconds and limit from the span `of`. If `of` is -1, the predicted seconds
 * and the limit come from the plan. */
static void price_of(const rf_trace_file *file, const op_text *op, int64_t of, double *seconds,
                     double *limit) {
  *seconds = of < 0 ? op->seconds : 1e-9 * (double)(file->end[of] - file->begin[of]);
  *limit = of < 0 ? op->limit_seconds : 1e-9 * file->value[of];
}

static void put_event(pen *p, const rf_trace_file *file, const ops *o, int64_t i, int64_t *next) {
  const char *kind = list_name(file, "kinds", file->kind[i]);
  double seconds = 1e-9 * (double)(file->end[i] - file->begin[i]);
  switch (file->kind[i]) {
  case RF_SPAN_OP:
  case RF_SPAN_BUSY:
  case RF_SPAN_WAIT:
  case RF_SPAN_PREDICTED: {
    const op_text *op = &o->of[file->plan[i]][file->id[i]];
    put(p, ",\n{\"name\":");
    if (file->kind[i] == RF_SPAN_WAIT) put(p, "\"barrier\"");
    else put(p, op->name);
    put(p, ",");
    put_head(p, file, o, i, kind);
    if (file->kind[i] == RF_SPAN_OP) {
      put(p, ",\"args\":");
      size_t length = strlen(op->args);
      for (size_t at = 0; at + 1 < length; at += 400)
        putf(p, "%.*s", (int)(length - 1 - at < 400 ? length - 1 - at : 400), op->args + at);
      double predicted, limit;
      price_of(file, op, prediction_of(file, o, i, next), &predicted, &limit);
      if (seconds > 0) putf(p, ",\"percent_of_limit\":%.2f", 100 * limit / seconds);
      putf(p, ",\"predicted_us\":%.3f,\"limit_us\":%.3f,\"microbatch\":%.0f}", 1e6 * predicted, 1e6 * limit,
           file->value[i]);
    } else if (file->kind[i] == RF_SPAN_PREDICTED)
      putf(p, ",\"args\":{\"id\":%d,\"predicted_us\":%.3f}", file->id[i], 1e6 * seconds);
    else if (file->kind[i] == RF_SPAN_WAIT) {
      put(p, ",\"args\":{\"in\":");
      put(p, op->name);
      put(p, "}");
    }
    put(p, "}");
    break;
  }
  case RF_SPAN_PHASE:
  case RF_SPAN_GAP:
    putf(p, ",\n{\"name\":\"%s\",",
         list_name(file, file->kind[i] == RF_SPAN_GAP ? "gaps" : "phases", (size_t)file->id[i]));
    put_head(p, file, o, i, kind);
    if (file->kind[i] == RF_SPAN_GAP && file->id[i] >= RF_GAP_SLOW_RANK)
      putf(p, ",\"args\":{\"rank\":%.0f}", file->value[i]);
    put(p, "}");
    break;
  case RF_SPAN_STEP:
    putf(p, ",\n{\"name\":\"step %.0f\",", file->value[i]);
    put_head(p, file, o, i, kind);
    put(p, "}");
    break;
  case RF_SPAN_COUNTER: {
    const json_t *counter = json_array_get(json_object_get(file->header, "counters"), (size_t)file->id[i]);
    const char *name = json_string_value(json_object_get(counter, "name")),
               *unit = json_string_value(json_object_get(counter, "unit"));
    putf(p, ",\n{\"ph\":\"C\",\"pid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"args\":{\"%s\":%.17g}}",
         o->rank[file->lane[i]] + 1, name ? name : "count", 1e-3 * (double)file->begin[i],
         unit ? unit : "count", file->value[i]);
    break;
  }
  default: /* Spans of lost time overlap other spans, so only trace.bin has them. */ break;
  }
}

rf_status rf_trace_file_chrome(const rf_trace_file *file, const char *path, rf_error *error) {
  return rf_trace_file_chrome_until(file, INT64_MAX, path, error);
}

rf_status rf_trace_file_chrome_until(const rf_trace_file *file, int64_t until, const char *path,
                                     rf_error *error) {
  rf_status status = RAFTER_OK;
  pen *p = NULL;
  ops o = {0};
  RF_GO(ops_of(file, &o, error));
  RF_GO(pen_open(path, &p, error));
  put(p, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
  put_lanes(p, file, &o);
  for (int64_t i = 0, next = 0; i < file->count && p->status == RAFTER_OK; i++)
    if (file->begin[i] < until) put_event(p, file, &o, i, &next);
  json_t *other =
      json_pack("{sO sO sO sO}", "about", json_object_get(file->header, "about"), "steps",
                json_object_get(file->header, "steps"), "dropped", json_object_get(file->header, "dropped"),
                "clock", json_object_get(file->header, "clock"));
  char *text = other ? json_dumps(other, JSON_COMPACT) : NULL;
  put(p, "\n],\"otherData\":");
  put(p, text ? text : "{}");
  put(p, "}\n");
  free(text);
  json_decref(other);
  status = pen_close(p);
done:
  ops_free(&o);
  return status;
}

/* ---- CSV ------------------------------------------------------------------------------------- */

/* Writes a field in quotes and doubles inner quotes (RFC 4180). */
static void put_quoted(pen *p, const char *text) {
  put(p, "\"");
  for (; *text; text++) {
    char one[3] = {*text, *text == '"' ? '"' : 0, 0};
    put(p, one);
  }
  put(p, "\"");
}

static const char *span_name(const rf_trace_file *file, int64_t i, char step[32]) {
  static const char *const lists[RF_SPAN_KINDS] = {[RF_SPAN_PHASE] = "phases",
                                                   [RF_SPAN_COUNTER] = "counters",
                                                   [RF_SPAN_LOST] = "lost",
                                                   [RF_SPAN_GAP] = "gaps"};
  const char *name = NULL;
  if (lists[file->kind[i]]) name = list_name(file, lists[file->kind[i]], (size_t)file->id[i]);
  else if (file->kind[i] == RF_SPAN_STEP) {
    snprintf(step, 32, "step %.0f", file->value[i]);
    name = step;
  } else {
    const json_t *of = json_array_get(json_object_get(file->header, "ops"), file->plan[i]);
    name = json_string_value(json_object_get(json_array_get(of, (size_t)file->id[i]), "name"));
  }
  return name ? name : "";
}

static void put_lane(pen *p, const rf_trace_file *file, const ops *o, size_t lane) {
  char name[160];
  bool several = json_object_get(file->header, "ranks");
  snprintf(name, sizeof name, "rank %d %.100s", o->rank[lane], list_name(file, "lanes", lane));
  put_quoted(p, several ? name : list_name(file, "lanes", lane));
}

rf_status rf_trace_file_csv(const rf_trace_file *file, const char *path, rf_error *error) {
  rf_status status = RAFTER_OK;
  pen *p = NULL;
  ops o = {0};
  char step[32];
  RF_GO(ops_of(file, &o, error));
  RF_GO(pen_open(path, &p, error));
  put(p, "lane,kind,name,plan,id,begin_us,duration_us,value,predicted_us,limit_us,flops,bytes\r\n");
  for (int64_t i = 0, next = 0; i < file->count && p->status == RAFTER_OK; i++) {
    put_lane(p, file, &o, file->lane[i]);
    putf(p, ",%s,", list_name(file, "kinds", file->kind[i]));
    put_quoted(p, span_name(file, i, step));
    putf(p, ",%u,%d,%.3f,%.3f,%.17g", file->plan[i], file->id[i], 1e-3 * (double)file->begin[i],
         1e-3 * (double)(file->end[i] - file->begin[i]), file->value[i]);
    if (file->kind[i] <= RF_SPAN_WAIT || file->kind[i] == RF_SPAN_PREDICTED) {
      const op_text *op = &o.of[file->plan[i]][file->id[i]];
      int64_t of = file->kind[i] == RF_SPAN_OP          ? prediction_of(file, &o, i, &next)
                   : file->kind[i] == RF_SPAN_PREDICTED ? i
                                                        : -1;
      double predicted, limit;
      price_of(file, op, of, &predicted, &limit);
      putf(p, ",%.6g,%.6g,%.17g,%.17g\r\n", 1e6 * predicted, 1e6 * limit, op->flops, op->bytes);
    } else put(p, ",,,,\r\n");
  }
  status = pen_close(p);
done:
  ops_free(&o);
  return status;
}
