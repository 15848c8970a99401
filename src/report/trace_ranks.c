/* trace_ranks.c - see trace_ranks.h. */
#include "report/trace_ranks.h"
#include "base/json.h"
#include "report/trace_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

rf_status rf_trace_pieces(const rf_trace_file *file, rf_trace_visit visit, void *self, rf_error *error) {
  const char *at = file->columns;
  for (int c = 0; c < RF_TRACE_COLUMNS; c++)
    for (size_t left = (size_t)file->count, n; left; left -= n) {
      n = smaller(left, RF_TRACE_PIECE);
      RF_TRY(visit(self, at, n * RF_TRACE_COLUMN[c].bytes, error));
      at += n * RF_TRACE_COLUMN[c].bytes;
    }
  return RAFTER_OK;
}

/* ---- the joined header ----------------------------------------------------------------------- */

enum { PLANS = sizeof(((rf_trace *)0)->plan) / sizeof(void *) };

/* The place of the lanes and plans of a part in the joined trace. */
typedef struct seat {
  int64_t count;
  size_t first_lane, lanes, plans;
  uint8_t plan[PLANS];
} seat;

typedef struct joined {
  json_t *header, *lanes, *ranks, *plans, *digests, *ops;
  json_int_t count, dropped, stage; /* stage: the pipeline stage of rank 0; 0 without a pipeline */
  seat *seat;
} joined;

static rf_status no_memory(rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "trace fewer steps",
                 "out of memory while joining the traces of ranks");
}

static bool same_text(const json_t *a, const json_t *b) {
  const char *x = json_string_value(a), *y = json_string_value(b);
  return x && y && !strcmp(x, y);
}

/* Sets the number of a plan in the joined trace. Ranks of one pipeline stage have the same plan.
 * The plans of all stages have the same name and digest. Plans of other stages than rank 0's get
 * another name and digest, because plan.json does not have these plans. */
static rf_status take_plan(joined *j, const rf_trace_part *part, size_t p, uint8_t *number, rf_error *error) {
  const json_t *header = part->header;
  json_t *name = json_incref(json_array_get(json_object_get(header, "plans"), p)),
         *digest = json_incref(json_array_get(json_object_get(header, "digests"), p));
  json_int_t stage = json_integer_value(json_object_get(part->rank, "stage"));
  if (stage != j->stage) {
    json_t *plain[] = {name, digest};
    name = json_sprintf("%s of stage %d", json_string_value(name), (int)stage);
    digest = json_sprintf("%s.%d", json_string_value(digest), (int)stage);
    json_decref(plain[0]);
    json_decref(plain[1]);
  }
  size_t count = json_array_size(j->plans), i = 0;
  while (i < count &&
         !(same_text(name, json_array_get(j->plans, i)) && same_text(digest, json_array_get(j->digests, i))))
    i++;
  *number = (uint8_t)i;
  if (i == count && count < UINT8_MAX) {
    json_array_append(j->plans, name);
    json_array_append(j->digests, digest);
    json_array_append(j->ops, json_array_get(json_object_get(header, "ops"), p));
  }
  json_decref(name);
  json_decref(digest);
  if (i == UINT8_MAX)
    return RF_FAIL(error, RAFTER_FAILED, "trace a run with fewer stages",
                   "the ranks have too many different plans for one trace (expected at most %d)", UINT8_MAX);
  return RAFTER_OK;
}

/* Each lane has its rank as a key, so that readers need not count lanes. */
static void take_lanes(joined *j, const json_t *lanes, size_t rank) {
  json_t *lane, *own;
  size_t i;
  json_array_foreach ((json_t *)lanes, i, lane) {
    own = json_copy(lane);
    json_object_set_new(own, "rank", json_integer((json_int_t)rank));
    json_array_append_new(j->lanes, own);
  }
}

static rf_status take_header(joined *j, const rf_trace_part *part, size_t rank, rf_error *error) {
  const json_t *header = part->header, *lanes = json_object_get(header, "lanes");
  seat *own = &j->seat[rank];
  *own = (seat){.count = json_integer_value(json_object_get(header, "count")),
                .first_lane = json_array_size(j->lanes),
                .lanes = json_array_size(lanes),
                .plans = json_array_size(json_object_get(header, "plans"))};
  if (own->plans > PLANS || own->count < 0 || own->first_lane + own->lanes > UINT16_MAX)
    return RF_FAIL(error, RAFTER_FAILED, "trace a run with fewer ranks or threads",
                   "the trace of rank %zu does not fit (%zu plans, %zu lanes)", rank, own->plans, own->lanes);
  for (size_t p = 0; p < own->plans; p++) RF_TRY(take_plan(j, part, p, &own->plan[p], error));
  take_lanes(j, lanes, rank);
  json_t *entry = json_pack("{sI sO sI sI sI sO sO}", "rank", (json_int_t)rank, "threads",
                            json_object_get(header, "threads"), "first_lane", (json_int_t)own->first_lane,
                            "lanes", (json_int_t)own->lanes, "count", (json_int_t)own->count, "dropped",
                            json_object_get(header, "dropped"), "steps", json_object_get(header, "steps"));
  if (!entry) return no_memory(error);
  json_object_update(entry, (json_t *)part->rank);
  json_array_append_new(j->ranks, entry);
  j->count += own->count;
  j->dropped += json_integer_value(json_object_get(header, "dropped"));
  return RAFTER_OK;
}

static rf_status join_headers(joined *j, const rf_trace_part *part, int parts, rf_error *error) {
  static const char *const lists[] = {"plans", "digests", "ops", "lanes", "ranks"};
  json_t **own[] = {&j->plans, &j->digests, &j->ops, &j->lanes, &j->ranks};
  j->seat = calloc((size_t)parts, sizeof *j->seat);
  j->header = json_copy((json_t *)part[0].header);
  if (!j->seat || !j->header) return no_memory(error);
  j->stage = json_integer_value(json_object_get(part[0].rank, "stage"));
  for (int i = 0; i < 5; i++) {
    *own[i] = json_array();
    if (json_object_set_new(j->header, lists[i], *own[i])) return no_memory(error);
  }
  for (int r = 0; r < parts; r++) RF_TRY(take_header(j, &part[r], (size_t)r, error));
  json_object_set_new(j->header, "count", json_integer(j->count));
  json_object_set_new(j->header, "dropped", json_integer(j->dropped));
  return RAFTER_OK;
}

/* ---- the columns ----------------------------------------------------------------------------- */

/* Moves the lanes and plans of a piece to their places in the joined trace. */
static rf_status place_piece(const seat *own, int column, void *data, size_t count, rf_error *error) {
  uint16_t *lane = data;
  uint8_t *plan = data;
  bool lanes = !strcmp(RF_TRACE_COLUMN[column].name, "lane"),
       plans = !strcmp(RF_TRACE_COLUMN[column].name, "plan");
  for (size_t i = 0; i < count && lanes; i++) {
    if (lane[i] >= own->lanes)
      return RF_FAIL(error, RAFTER_FAILED, "this is a bug; please report it",
                     "a span of a rank has lane %d (expected fewer than %zu)", lane[i], own->lanes);
    lane[i] = (uint16_t)(lane[i] + own->first_lane);
  }
  for (size_t i = 0; i < count && plans; i++) plan[i] = plan[i] < own->plans ? own->plan[plan[i]] : 0;
  return RAFTER_OK;
}

static rf_status write_columns(const joined *j, const rf_trace_part *part, int parts, rf_out_file *out,
                               rf_error *error) {
  rf_status status = RAFTER_OK;
  void *piece = malloc(RF_TRACE_PIECE * 8);
  if (!piece) return no_memory(error);
  for (int c = 0; c < RF_TRACE_COLUMNS; c++)
    for (int r = 0; r < parts; r++)
      for (size_t left = (size_t)j->seat[r].count, n; left; left -= n) {
        n = smaller(left, RF_TRACE_PIECE);
        size_t bytes = n * RF_TRACE_COLUMN[c].bytes;
        RF_GO(part[r].next(part[r].self, piece, bytes, error));
        RF_GO(place_piece(&j->seat[r], c, piece, n, error));
        RF_GO(rf_out_write(out, piece, bytes, error));
      }
done:
  free(piece);
  return status;
}

/* The file is mapped, so its pages need no allocated memory. */
static rf_status write_json(const joined *j, const char *path, const char *folder, int *in_json,
                            rf_error *error) {
  void *map = NULL;
  size_t bytes = 0;
  RF_TRY(rf_map_file(path, &map, &bytes, error));
  rf_trace_file file = {.header = j->header, .count = j->count};
  file.columns = (char *)map + bytes - (size_t)j->count * rf_trace_span_bytes();
  rf_trace_file_point(&file);
  rf_status status = rf_trace_file_json(&file, folder, in_json, error);
  rf_unmap_file(map, bytes);
  return status;
}

rf_status rf_trace_join(const rf_trace_part *part, int parts, const char *folder, json_t **header,
                        int *in_json, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_out_file *out = NULL, *whole;
  joined j = {.count = 0};
  char path[4200];
  snprintf(path, sizeof path, "%s/trace.bin", folder);
  RF_GO(join_headers(&j, part, parts, error));
  RF_GO(rf_trace_file_begin(j.header, j.count, path, &out, error));
  RF_GO(write_columns(&j, part, parts, out, error));
  whole = out;
  out = NULL;
  RF_GO(rf_out_commit(whole, error));
  RF_GO(write_json(&j, path, folder, in_json, error));
  if (header) *header = json_incref(j.header);
done:
  rf_out_discard(out);
  json_decref(j.header);
  free(j.seat);
  return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Checks the measured idle time of a pipeline stage, if the rank has one. */
static rf_status check_bubble(const json_t *rank, const char *path, rf_error *error) {
  static const char *const keys[] = {"seconds", "busy_seconds", "idle_seconds", "fill_seconds",
                                     "drain_seconds"};
  const json_t *bubble = json_object_get(rank, "bubble");
  int64_t stage;
  double value;
  RF_TRY(rf_json_int_or(rank, "stage", path, 0, INT32_MAX, 0, &stage, error));
  if (!bubble) return RAFTER_OK;
  for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
    RF_TRY(rf_json_float(bubble, keys[k], path, -1e9, 1e9, &value, error));
  return RAFTER_OK;
}

static rf_status check_rank(const json_t *header, const json_t *rank, size_t i, int64_t *lane,
                            const char *path, rf_error *error) {
  const json_t *steps = json_object_get(rank, "steps");
  int64_t number, first, lanes, threads;
  double value;
  const char *host;
  RF_TRY(rf_json_int(rank, "first_lane", path, 0, UINT16_MAX, &first, error));
  RF_TRY(rf_json_int(rank, "lanes", path, 0, UINT16_MAX, &lanes, error));
  RF_TRY(rf_json_int(rank, "threads", path, 1, UINT16_MAX, &threads, error));
  RF_TRY(rf_json_int(rank, "dropped", path, 0, INT64_MAX, &number, error));
  RF_TRY(rf_json_string_or(rank, "host", path, "", &host, error));
  RF_TRY(rf_json_float_or(rank, "clock_ahead_seconds", path, -1e12, 1e12, 0, &value, error));
  RF_TRY(rf_json_float_or(rank, "clock_error_seconds", path, 0, 1e9, 0, &value, error));
  RF_TRY(check_bubble(rank, path, error));
  RF_TRY(rf_json_int(rank, "rank", path, 0, INT32_MAX, &number, error));
  if (number != (int64_t)i || first != *lane || lanes != threads + RF_TRACE_LANES)
    return RF_FAIL(error, RAFTER_FAILED, RF_TRACE_HINT,
                   "ranks have wrong lanes (%s: expected lanes %lld to %lld for rank %zu)", path,
                   (long long)*lane, (long long)(*lane + threads + RF_TRACE_LANES - 1), i);
  *lane += lanes;
  if (!json_is_array(steps))
    return RF_FAIL(error, RAFTER_FAILED, RF_TRACE_HINT, "rank %zu has no list of steps (%s)", i, path);
  return rf_trace_check_steps(steps, json_array_size(json_object_get(header, "gaps")), path, error);
}

rf_status rf_trace_check_ranks(const json_t *header, const char *path, rf_error *error) {
  const json_t *ranks = json_object_get(header, "ranks"), *rank;
  int64_t lane = 0, all = (int64_t)json_array_size(json_object_get(header, "lanes"));
  size_t i;
  if (!ranks) return RAFTER_OK;
  if (!json_is_array(ranks) || !json_array_size(ranks))
    return RF_FAIL(error, RAFTER_FAILED, RF_TRACE_HINT, "ranks is not a list of ranks (%s)", path);
  json_array_foreach ((json_t *)ranks, i, rank) {
    if (!json_is_object(rank))
      return RF_FAIL(error, RAFTER_FAILED, RF_TRACE_HINT, "rank %zu is not an object (%s)", i, path);
    RF_TRY(check_rank(header, rank, i, &lane, path, error));
  }
  if (lane != all)
    return RF_FAIL(error, RAFTER_FAILED, RF_TRACE_HINT,
                   "ranks have wrong lanes (%s: expected %lld lanes, got %lld)", path, (long long)all,
                   (long long)lane);
  return RAFTER_OK;
}

int *rf_trace_lane_ranks(const rf_trace_file *file) {
  const json_t *lanes = json_object_get(file->header, "lanes"),
               *ranks = json_object_get(file->header, "ranks");
  size_t count = json_array_size(lanes), lane = 0;
  int *list = calloc(count + 1, sizeof *list);
  for (size_t r = 0; list && r < json_array_size(ranks); r++) {
    json_int_t own = json_integer_value(json_object_get(json_array_get(ranks, r), "lanes"));
    for (json_int_t i = 0; i < own && lane < count; i++) list[lane++] = (int)r;
  }
  return list;
}
