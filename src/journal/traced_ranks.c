/* traced_ranks.c - see traced_ranks.h. */
#include "journal/traced_ranks.h"

#include "base/json.h"
#include "graph/mesh/place.h"
#include "report/bubble.h"
#include "report/trace_ranks.h"

#include <stdlib.h>
#include <string.h>

/* A message from a rank to rank 0 about the trace of this rank. */
typedef struct word {
  double ahead, error;  /* lead and error of the rank's clock, in seconds */
  int64_t header_bytes; /* 0: it has no trace */
  int64_t stage;        /* of a pipeline; -1: no pipeline */
  rf_bubble bubble;
} word;

static word word_of(const rf_link *link, const rf_clock *clock, const rf_trace *trace) {
  const rf_mesh *mesh = trace->plans ? &trace->plan[0]->graph->mesh : NULL;
  word w = {.ahead = 1e-9 * clock->end.ahead, .error = 1e-9 * rf_clock_error(clock), .stage = -1};
  if (!mesh || rf_mesh_extent(mesh, RF_AXIS_PIPELINE) < 2) return w;
  int32_t place[RF_AXES];
  rf_place_of(mesh, link->rank, place);
  w.stage = place[RF_AXIS_PIPELINE];
  w.bubble = rf_trace_bubble(trace);
  return w;
}

/* `origin` is the earliest origin of all ranks, so that no span is before it. `steps` is 0 if no
 * rank has recorded a step. */
typedef struct common {
  int64_t origin, steps;
} common;

static rf_status agree(rf_link *link, common own, common *all, rf_error *error) {
  *all = own;
  if (link->rank > 0) RF_TRY(rf_link_send(link, 0, all, sizeof *all, error));
  for (int rank = 1; rank < link->ranks && link->rank == 0; rank++) {
    common other;
    RF_TRY(rf_link_receive(link, rank, &other, sizeof other, error));
    if (other.origin < all->origin) all->origin = other.origin;
    if (other.steps > all->steps) all->steps = other.steps;
  }
  return rf_link_share(link, all, sizeof *all, error);
}

/* ---- the other ranks ------------------------------------------------------------------------- */

static rf_status send_piece(void *self, const void *data, size_t bytes, rf_error *error) {
  return rf_link_send(self, 0, data, (int64_t)bytes, error);
}

static rf_status send(rf_link *link, word w, const rf_trace_file *file, rf_error *error) {
  char *text = rf_json_text(file->header, 0);
  if (!text) return RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while sending a trace");
  w.header_bytes = (int64_t)strlen(text);
  rf_status status = rf_link_send(link, 0, &w, sizeof w, error);
  if (status == RAFTER_OK) status = rf_link_send(link, 0, text, w.header_bytes, error);
  if (status == RAFTER_OK) status = rf_trace_pieces(file, send_piece, link, error);
  free(text);
  return status;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

typedef struct source {
  rf_link *link;
  int rank;
  const char *at; /* next columns of rank 0's trace */
  json_t *header, *keys;
} source;

static rf_status next_own(void *self, void *to, size_t bytes, rf_error *error) {
  source *s = self;
  (void)error;
  memcpy(to, s->at, bytes);
  s->at += bytes;
  return RAFTER_OK;
}

static rf_status next_of_rank(void *self, void *to, size_t bytes, rf_error *error) {
  const source *s = self;
  return rf_link_receive(s->link, s->rank, to, (int64_t)bytes, error);
}

static json_t *keys_of(const rf_link *link, int rank, const word *w) {
  json_t *keys = json_pack("{ss sf sf}", "host", rf_link_host(link, rank), "clock_ahead_seconds", w->ahead,
                           "clock_error_seconds", w->error);
  const rf_bubble *b = &w->bubble;
  if (keys && w->stage >= 0) json_object_set_new(keys, "stage", json_integer((json_int_t)w->stage));
  if (keys && w->stage >= 0 && b->steps)
    json_object_set_new(keys, "bubble",
                        json_pack("{si sf sf sf sf sf sf}", "steps", b->steps, "seconds", b->seconds,
                                  "busy_seconds", b->busy, "idle_seconds", b->idle, "fill_seconds", b->fill,
                                  "drain_seconds", b->drain, "transfers", b->transfers));
  return keys;
}

/* Ranks of one pipeline stage have the same ops, so the trace keeps one list per stage. */
static void drop_same_ops(json_t *header, const json_t *first, bool same_stage) {
  if (same_stage && json_equal(json_object_get(header, "digests"), json_object_get(first, "digests")) &&
      json_equal(json_object_get(header, "plans"), json_object_get(first, "plans")))
    json_object_del(header, "ops");
}

static rf_status receive_header(source *s, const json_t *first, int64_t stage, rf_error *error) {
  enum { MOST = 1 << 28 };
  word w = {0};
  RF_TRY(rf_link_receive(s->link, s->rank, &w, sizeof w, error));
  if (w.header_bytes <= 0 || w.header_bytes > MOST)
    return RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "rank %d (%s) has no trace that fits", s->rank,
                   rf_link_host(s->link, s->rank));
  char *text = malloc((size_t)w.header_bytes);
  if (!text) return RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while joining traces");
  rf_status status = rf_link_receive(s->link, s->rank, text, w.header_bytes, error);
  if (status == RAFTER_OK)
    status = rf_json_parse(text, (size_t)w.header_bytes, "the trace of a rank", &s->header, error);
  free(text);
  if (status == RAFTER_OK) drop_same_ops(s->header, first, w.stage == stage);
  if (status == RAFTER_OK) s->keys = keys_of(s->link, s->rank, &w);
  return status;
}

static rf_status receive(rf_link *link, word w, const rf_trace_file *file, const char *folder,
                         json_t **header, int *in_json, rf_error *error) {
  rf_status status = RAFTER_OK;
  size_t ranks = (size_t)link->ranks;
  source *s = calloc(ranks, sizeof *s);
  rf_trace_part *part = calloc(ranks, sizeof *part);
  if (!s || !part) {
    status = RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while joining traces");
    goto done;
  }
  for (size_t r = 0; r < ranks; r++) {
    s[r] = (source){.link = link, .rank = (int)r, .at = file->columns};
    if (r > 0) RF_GO(receive_header(&s[r], file->header, w.stage, error));
    else s[r].keys = keys_of(link, 0, &w);
    part[r] = (rf_trace_part){r ? s[r].header : file->header, s[r].keys, r ? next_of_rank : next_own, &s[r]};
  }
  status = rf_trace_join(part, (int)ranks, folder, header, in_json, error);
done:
  for (size_t r = 0; s && r < ranks; r++) {
    json_decref(s[r].header);
    json_decref(s[r].keys);
  }
  free(s);
  free(part);
  return status;
}

rf_status rf_traced_join(rf_trace *trace, json_t *about, const char *folder, json_t **header, int *in_json,
                         rf_error *error) {
  rf_link *link = rf_link_of_process();
  rf_clock clock;
  rf_trace_file file;
  common all;
  *header = NULL;
  RF_TRY(rf_clock_finish(&clock, error));
  word w = word_of(link, &clock, trace);
  RF_TRY(agree(link, (common){rf_clock_of_first(&clock, trace->origin), trace->steps}, &all, error));
  if (!all.steps) return RAFTER_OK;
  rf_clock_align(&clock, all.origin, trace);
  RF_TRY(rf_trace_file_of(trace, about, &file, error));
  rf_status status =
      link->rank > 0 ? send(link, w, &file, error) : receive(link, w, &file, folder, header, in_json, error);
  rf_trace_file_free(&file);
  return status;
}
