/* copies.c - see copies.h. Rank 0 has a desk for each other copy, and the first rank of each other
 * copy has a desk for rank 0. The copy sends reports to rank 0. A report has a head and, if there
 * are results, a body. Rank 0 sends words. Reports and words are sent every second, also without
 * news. If one end receives nothing for a long time, it takes the other end as lost. */
#include "run/copies.h"

#include "backend/mpi/link.h"
#include "graph/mesh/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double EVERY = 1; /* seconds between two reports, and between two words */

typedef struct report {
  int64_t bytes; /* of the body */
  uint32_t flags;
  bool done, complete;
  rf_copies_totals totals;
  rf_error error; /* error.status is RAFTER_OK, unless the copy has failed */
} report;

typedef struct word {
  uint32_t flags;
  bool last;
} word;

typedef struct desk {
  int rank; /* at the other end */
  rf_link_letter in, out, body;
  report report, coming; /* coming: true while rank 0 is receiving a report */
  word word;
  bool has_report; /* in rank 0: true while the body of the report is on its way */
  bool ended;      /* true if the last report was received, or has been sent */
  bool closed;     /* true if the last word was sent, or has been received */
  unsigned char *data;
  double sent;         /* time of the last word or report */
  uint32_t sent_flags; /* flags in it */
} desk;

struct rf_copies {
  rf_link *link;
  int count, mine, ranks, member; /* member: the number of this rank in its copy */
  int *rank;                      /* the ranks of this copy */
  desk *desk;                     /* (desks) */
  int desks;
  uint32_t said, heard;
  unsigned char *results; /* of the next report */
  int64_t bytes, room;
};

/* ---- members --------------------------------------------------------------------------------- */

static int copy_of(const rf_mesh *mesh, int chip) {
  int32_t place[RF_AXES];
  rf_place_of(mesh, chip, place);
  return (int)rf_mesh_rank(mesh, rf_mesh_apart(mesh), place);
}

/* Lists the ranks of this copy, and opens the desks. Rank = chip. */
static void find_members(rf_copies *c, const rf_mesh *mesh, int chips) {
  int seen = 1; /* number of copies whose first rank was found */
  c->mine = copy_of(mesh, c->link->rank);
  for (int rank = 0; rank < chips; rank++) {
    int copy = copy_of(mesh, rank);
    if (rank == c->link->rank) c->member = c->ranks;
    if (copy == c->mine) c->rank[c->ranks++] = rank;
    if (copy == seen && c->link->rank == 0) c->desk[c->desks++].rank = rank;
    seen += copy == seen;
  }
  if (c->mine > 0 && c->member == 0) c->desks = 1; /* desk[0].rank is 0 */
}

rf_status rf_copies_open(const rf_run *run, const rf_mesh *mesh, rf_copies **out, rf_error *error) {
  int chips = (int)rf_mesh_chips(mesh), count = (int)rf_mesh_size(mesh, rf_mesh_apart(mesh));
  *out = NULL;
  if (count == 1 || !rf_run_gathers(run)) return RAFTER_OK;
  rf_copies *c = calloc(1, sizeof *c);
  if (c) {
    c->link = rf_link_of_process();
    c->count = count;
    c->rank = calloc((size_t)chips, sizeof *c->rank);
    c->desk = calloc((size_t)count, sizeof *c->desk);
  }
  if (!c || !c->rank || !c->desk) {
    rf_copies_close(c);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening copies of the model");
  }
  find_members(c, mesh, chips);
  *out = c;
  return RAFTER_OK;
}

void rf_copies_close(rf_copies *c) {
  if (!c) return;
  for (int d = 0; d < c->desks; d++)
    if (!c->desk[d].body.open) free(c->desk[d].data); /* the library may still use this memory */
  free(c->results);
  free(c->desk);
  free(c->rank);
  free(c);
}

int rf_copies_count(const rf_copies *c) { return c->count; }
int rf_copies_mine(const rf_copies *c) { return c->mine; }
int rf_copies_ranks(const rf_copies *c) { return c->ranks; }
bool rf_copies_reports(const rf_copies *c) { return c->mine > 0 && c->member == 0; }
uint32_t rf_copies_said(const rf_copies *c) { return c->said; }

/* Sends bytes of the first rank of this copy to the other ranks of the copy. */
static rf_status share(rf_copies *c, void *data, int64_t bytes, rf_error *error) {
  if (c->member > 0) return rf_link_receive(c->link, c->rank[0], data, bytes, error);
  for (int i = 1; i < c->ranks; i++) RF_TRY(rf_link_send(c->link, c->rank[i], data, bytes, error));
  return RAFTER_OK;
}

rf_status rf_copies_agree(rf_copies *c, uint32_t *flags, rf_error *error) {
  if (c->member > 0) RF_TRY(rf_link_send(c->link, c->rank[0], flags, sizeof *flags, error));
  for (int i = 1; i < c->ranks && c->member == 0; i++) {
    uint32_t more = 0;
    RF_TRY(rf_link_receive(c->link, c->rank[i], &more, sizeof more, error));
    *flags |= more;
  }
  return share(c, flags, sizeof *flags, error);
}

rf_status rf_copies_say(rf_copies *c, uint32_t *flags, rf_error *error) {
  *flags |= c->heard;
  RF_TRY(rf_copies_agree(c, flags, error));
  c->said |= *flags;
  return RAFTER_OK;
}

/* ---- a round --------------------------------------------------------------------------------- */

void rf_copies_begin(rf_copies *c) {
  c->said = c->heard = 0;
  c->bytes = 0;
  for (int d = 0; d < c->desks; d++) {
    desk *at = &c->desk[d];
    at->report = (report){.totals = at->report.totals};
    at->has_report = at->ended = at->closed = false;
    at->sent_flags = 0;
    at->sent = rf_now_seconds();
    at->in = (rf_link_letter){.rank = at->rank};
    at->out = (rf_link_letter){.rank = at->rank, .out = true};
  }
}

rf_status rf_copies_add(rf_copies *c, const void *data, int64_t bytes, rf_error *error) {
  int64_t wanted = c->bytes + (int64_t)sizeof bytes + bytes;
  if (wanted > c->room) {
    int64_t room = 2 * wanted;
    if (wanted > RF_LINK_BYTES)
      return RF_FAIL(error, RAFTER_FAILED, "lower --top-logprobs, or --batch",
                     "a copy of the model has too many results that wait for rank 0 (expected at most %d "
                     "bytes, got %lld)",
                     RF_LINK_BYTES, (long long)wanted);
    unsigned char *grown = realloc(c->results, (size_t)room);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory for the answers of a copy");
    c->results = grown;
    c->room = room;
  }
  memcpy(c->results + c->bytes, &bytes, sizeof bytes);
  memcpy(c->results + c->bytes + sizeof bytes, data, (size_t)bytes);
  c->bytes = wanted;
  return RAFTER_OK;
}

rf_copies_totals rf_copies_others(const rf_copies *c) {
  rf_copies_totals sum = {0};
  for (int d = 0; d < c->desks && c->link->rank == 0; d++)
    for (int i = 0; i < RF_COPIES_TOTALS; i++) sum.of[i] += c->desk[d].report.totals.of[i];
  return sum;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

static rf_status malformed(const desk *at, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "run the same rafter on every machine",
                 "rank %d sent a report that is malformed", at->rank);
}

/* Passes the results in the body of a report to the caller. */
static rf_status take_body(desk *at, rf_copies_take *take, void *self, rf_error *error) {
  int64_t done = 0, bytes, size = at->report.bytes;
  while (done < size) {
    if (size - done < (int64_t)sizeof bytes) bytes = -1;
    else memcpy(&bytes, at->data + done, sizeof bytes);
    done += (int64_t)sizeof bytes;
    if (bytes < 0 || bytes > size - done) return malformed(at, error);
    RF_TRY(take(self, at->data + done, bytes, error));
    done += bytes;
  }
  return RAFTER_OK;
}

static rf_status name_rank(const rf_copies *c, const desk *at, rf_error *error) {
  const rf_error *why = &at->report.error;
  return RF_FAIL(error, why->status, *why->hint ? why->hint : NULL, "rank %d (%.100s): %.600s", at->rank,
                 rf_link_host(c->link, at->rank), why->message);
}

/* A head has come. If the report has a body, the body follows the head. */
static rf_status begin_body(rf_copies *c, desk *at, rf_error *error) {
  at->report = at->coming;
  if (at->report.bytes < 0 || at->report.bytes > RF_LINK_BYTES) return malformed(at, error);
  c->heard |= at->report.flags;
  if (at->report.error.status != RAFTER_OK) return name_rank(c, at, error);
  if (!at->report.bytes) return RAFTER_OK;
  free(at->data);
  at->data = malloc((size_t)at->report.bytes);
  if (!at->data) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory for the answers of a copy");
  at->has_report = true;
  at->body = (rf_link_letter){.rank = at->rank};
  return rf_link_begin_letter(c->link, &at->body, at->data, at->report.bytes, error);
}

/* Receives the reports that a copy has sent. */
static rf_status hear(rf_copies *c, desk *at, rf_copies_take *take, void *self, bool *news, rf_error *error) {
  for (bool done = true; done && !at->ended;) {
    if (!at->has_report && !at->in.open)
      RF_TRY(rf_link_begin_letter(c->link, &at->in, &at->coming, sizeof at->coming, error));
    RF_TRY(rf_link_arrived(c->link, at->has_report ? &at->body : &at->in, &done, error));
    if (!done) return RAFTER_OK;
    *news = true;
    if (at->has_report) {
      at->has_report = false;
      RF_TRY(take_body(at, take, self, error));
    } else RF_TRY(begin_body(c, at, error));
    at->ended = at->report.done && !at->has_report;
  }
  return RAFTER_OK;
}

/* Sends a word to a copy, if the word is due. */
static rf_status tell(rf_copies *c, desk *at, word now, rf_error *error) {
  bool done;
  if (at->out.open) {
    RF_TRY(rf_link_arrived(c->link, &at->out, &done, error));
    if (!done) return RAFTER_OK;
    at->closed = at->word.last;
  }
  if (at->closed || !(now.last || now.flags != at->sent_flags || rf_now_seconds() - at->sent > EVERY))
    return RAFTER_OK;
  at->word = now;
  at->sent_flags = now.flags;
  at->sent = rf_now_seconds();
  return rf_link_begin_letter(c->link, &at->out, &at->word, sizeof at->word, error);
}

static rf_status collect(rf_copies *c, const rf_copies_state *state, rf_copies_take *take, void *self,
                         bool *news, bool *over, rf_error *error) {
  bool ended = state->done, complete = state->complete;
  *over = true;
  for (int d = 0; d < c->desks; d++) {
    RF_TRY(hear(c, &c->desk[d], take, self, news, error));
    ended &= c->desk[d].ended;
    complete &= c->desk[d].report.complete;
  }
  word now = {.flags = ended && complete ? 0 : c->said | c->heard, .last = ended};
  for (int d = 0; d < c->desks; d++) {
    RF_TRY(tell(c, &c->desk[d], now, error));
    *over &= c->desk[d].closed;
  }
  if (*over) c->said = now.flags; /* status and flags that all ranks get at the end of a round */
  return RAFTER_OK;
}

/* ---- the first rank of another copy ---------------------------------------------------------- */

static rf_status listen(rf_copies *c, desk *at, bool *news, rf_error *error) {
  for (bool done = true; done && !at->closed;) {
    if (!at->in.open) RF_TRY(rf_link_begin_letter(c->link, &at->in, &at->word, sizeof at->word, error));
    RF_TRY(rf_link_arrived(c->link, &at->in, &done, error));
    if (!done) return RAFTER_OK;
    *news |= at->word.last || at->word.flags != c->heard;
    c->heard |= at->word.flags;
    at->closed = at->word.last;
  }
  return RAFTER_OK;
}

/* Sends a report, if it is due and rank 0 has received the report before it. */
static rf_status send_report(rf_copies *c, desk *at, const rf_copies_state *state, rf_error *error) {
  bool done = true;
  if (at->out.open) RF_TRY(rf_link_arrived(c->link, &at->out, &done, error));
  if (done && at->body.open) RF_TRY(rf_link_arrived(c->link, &at->body, &done, error));
  if (!done || at->ended) return RAFTER_OK;
  if (!c->bytes && !state->done && c->said == at->sent_flags && rf_now_seconds() - at->sent < EVERY)
    return RAFTER_OK;
  at->report = (report){.bytes = c->bytes,
                        .flags = c->said,
                        .done = state->done,
                        .complete = state->complete,
                        .totals = state->totals};
  at->ended = state->done;
  at->sent_flags = c->said;
  at->sent = rf_now_seconds();
  RF_TRY(rf_link_begin_letter(c->link, &at->out, &at->report, sizeof at->report, error));
  if (!c->bytes) return RAFTER_OK;
  free(at->data); /* results that are in the previous report */
  at->data = c->results;
  c->results = NULL;
  c->bytes = c->room = 0;
  at->body = (rf_link_letter){.rank = at->rank, .out = true};
  return rf_link_begin_letter(c->link, &at->body, at->data, at->report.bytes, error);
}

void rf_copies_fail(rf_copies *c, rf_status status, const rf_error *error) {
  desk *at = c->desk;
  bool done = false;
  double until = rf_now_seconds() + EVERY;
  if (!rf_copies_reports(c) || c->link->failed) return;
  while ((at->out.open || at->body.open) && rf_now_seconds() < until) {
    if (at->out.open && rf_link_arrived(c->link, &at->out, &done, NULL) != RAFTER_OK) return;
    if (at->body.open && rf_link_arrived(c->link, &at->body, &done, NULL) != RAFTER_OK) return;
  }
  if (at->out.open || at->body.open || at->ended) return;
  at->report = (report){.flags = c->said, .done = true};
  if (error) at->report.error = *error;
  at->report.error.status = status;
  at->ended = true;
  if (rf_link_begin_letter(c->link, &at->out, &at->report, sizeof at->report, NULL) != RAFTER_OK) return;
  while (at->out.open && rf_now_seconds() < until + EVERY)
    if (rf_link_arrived(c->link, &at->out, &done, NULL) != RAFTER_OK) return;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static rf_status progress(rf_copies *c, const rf_copies_state *state, rf_copies_take *take, void *self,
                          bool *news, bool *over, rf_error *error) {
  if (c->link->rank == 0) return collect(c, state, take, self, news, over, error);
  RF_TRY(listen(c, c->desk, news, error));
  RF_TRY(send_report(c, c->desk, state, error));
  *over = c->desk->closed && c->desk->ended && !c->desk->out.open && !c->desk->body.open;
  if (*over) c->said = c->desk->word.flags;
  return RAFTER_OK;
}

rf_status rf_copies_exchange(rf_copies *c, const rf_copies_state *state, rf_copies_take *take, void *self,
                             bool *over, uint32_t *flags, rf_error *error) {
  struct {
    bool over;
    uint32_t flags;
  } end = {0};
  double until = rf_now_seconds() + EVERY;
  for (bool news = false; c->member == 0;) {
    RF_TRY(progress(c, state, take, self, &news, &end.over, error));
    if (news || end.over || !state->done || rf_now_seconds() > until) break;
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  }
  end.flags = c->said;
  /* while a copy works, all its ranks know that the round is not over */
  if (state->done && c->ranks > 1) RF_TRY(share(c, &end, sizeof end, error));
  if (end.over) c->said = end.flags;
  *over = end.over;
  *flags = end.flags;
  return RAFTER_OK;
}
