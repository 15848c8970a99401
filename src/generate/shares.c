/* shares.c - see shares.h. */
#include "generate/shares.h"

#include "generate/batch.h"
#include "generate/reply_pack.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(rf_generate_counts) <= sizeof(rf_copies_totals), "the counts are sent as totals");

struct rf_shares {
  rf_generator *g;
  rf_copies *copies;
  rf_replies **list; /* (count): requests of the round, in the order of submission */
  int64_t count, room;
  /* true: the copies divide the answers of each request; false: the copies divide the requests */
  bool by_answer;
  bool open;  /* true: the round has not ended */
  bool first; /* this is rank 0 */
  const rf_reply_loop *loop;
};

rf_status rf_shares_open(rf_generator *g, rf_error *error) {
  rf_copies *copies = NULL;
  RF_TRY(rf_copies_open(g->run, &g->decode->graph->mesh, &copies, error));
  if (!copies) return RAFTER_OK;
  rf_shares *s = g->shares = calloc(1, sizeof *s);
  if (!s) {
    rf_copies_close(copies);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  }
  s->g = g;
  s->copies = copies;
  s->first = rf_run_host(g->run) == 0;
  rf_shares_begin(s, 0);
  return RAFTER_OK;
}

void rf_shares_close(rf_shares *s) {
  if (!s) return;
  rf_copies_close(s->copies);
  free(s->list);
  free(s);
}

rf_copies *rf_shares_copies(const rf_shares *s) { return s->copies; }
bool rf_shares_busy(const rf_shares *s) { return s->open; }

void rf_shares_begin(rf_shares *s, int64_t requests) {
  s->count = 0;
  s->by_answer = requests < rf_copies_count(s->copies);
  s->open = true;
  rf_copies_begin(s->copies);
}

rf_status rf_shares_add(rf_shares *s, rf_replies *a, rf_error *error) {
  if (s->count == s->room) {
    int64_t room = s->room ? 2 * s->room : 64;
    rf_replies **grown = realloc(s->list, (size_t)room * sizeof *grown);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while queueing a request");
    s->list = grown;
    s->room = room;
  }
  a->number = s->count;
  s->list[s->count++] = a;
  return RAFTER_OK;
}

bool rf_shares_has(const rf_shares *s, const rf_replies *a, int sample) {
  int64_t number = a->number + (s->by_answer ? sample : 0);
  return number % rf_copies_count(s->copies) == rf_copies_mine(s->copies);
}

bool rf_shares_has_any(const rf_shares *s, const rf_replies *a) {
  bool any = false;
  for (int i = 0; i < a->samples && !any; i++) any = rf_shares_has(s, a, i);
  return any;
}

void rf_shares_add_counts(const rf_shares *s, rf_generate_counts *counts) {
  rf_copies_totals others = rf_copies_others(s->copies);
  rf_generate_counts more;
  memcpy(&more, &others, sizeof more);
  int64_t *const sum[] = {&counts->passes,        &counts->rows,     &counts->parts,    &counts->most_parts,
                          &counts->prompt_tokens, &counts->reused,   &counts->answers,  &counts->tokens,
                          &counts->drafted,       &counts->accepted, &counts->verified, &counts->compared};
  const int64_t add[] = {more.passes,        more.rows,     more.parts,    more.most_parts,
                         more.prompt_tokens, more.reused,   more.answers,  more.tokens,
                         more.drafted,       more.accepted, more.verified, more.compared};
  for (size_t i = 0; i < sizeof add / sizeof *add; i++) *sum[i] += add[i];
}

/* ---- answers to and from other ranks -------------------------------------------------------- */

rf_status rf_shares_give(rf_shares *s, const rf_replies *a, int sample, rf_error *error) {
  unsigned char *data;
  int64_t bytes;
  if (!rf_copies_reports(s->copies)) return RAFTER_OK;
  RF_TRY(rf_reply_pack(&a->reply[sample], (rf_packed_of){a->number, sample}, &data, &bytes, error));
  rf_status status = rf_copies_add(s->copies, data, bytes, error);
  free(data);
  return status;
}

/* Unpacks an answer of another copy, and calls loop->taken. */
static rf_status take(void *self, const unsigned char *data, int64_t bytes, rf_error *error) {
  rf_shares *s = self;
  rf_packed_of of;
  RF_TRY(rf_reply_packed_of(data, bytes, &of, error));
  bool known =
      of.request >= 0 && of.request < s->count && of.sample >= 0 && of.sample < s->list[of.request]->samples;
  if (!known || rf_shares_has(s, s->list[of.request], of.sample) ||
      s->list[of.request]->reply[of.sample].finish != RF_FINISH_NONE)
    return RF_FAIL(error, RAFTER_FAILED, "run the same rafter on every machine",
                   "another rank sent an answer that this one does not expect (request %lld, sample %d)",
                   (long long)of.request, of.sample);
  rf_replies *a = s->list[of.request];
  rf_reply *r = &a->reply[of.sample];
  RF_TRY(rf_reply_unpack(r, data, bytes, error));
  const rf_event event = {.request = -1,
                          .sample = of.sample,
                          .owner = a,
                          .index = r->tokens.count - 1,
                          .token = -1,
                          .finish = r->finish};
  a->left--;
  if (s->loop->taken) RF_TRY(s->loop->taken(s->loop->self, a, &event, error));
  return a->left || !s->loop->ended ? RAFTER_OK : s->loop->ended(s->loop->self, a, error);
}

/* Packs the answers to all requests. The number of bytes of an answer precedes the answer. */
static rf_status pack_all(const rf_shares *s, unsigned char **all, int64_t *size, rf_error *error) {
  unsigned char *data = NULL;
  *all = NULL;
  *size = 0;
  for (int64_t i = 0; i < s->count; i++)
    for (int k = 0; k < s->list[i]->samples; k++) {
      int64_t bytes;
      RF_TRY(rf_reply_pack(&s->list[i]->reply[k], (rf_packed_of){i, k}, &data, &bytes, error));
      unsigned char *grown = realloc(*all, (size_t)*size + sizeof bytes + (size_t)bytes);
      if (grown) {
        *all = grown;
        memcpy(grown + *size, &bytes, sizeof bytes);
        memcpy(grown + *size + sizeof bytes, data, (size_t)bytes);
        *size += (int64_t)sizeof bytes + bytes;
      }
      free(data);
      if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while sending answers");
    }
  return RAFTER_OK;
}

static rf_status take_missing(rf_shares *s, const unsigned char *all, int64_t size, rf_error *error) {
  for (int64_t at = 0, bytes; at < size; at += bytes) {
    rf_packed_of of;
    int64_t left = size - at - (int64_t)sizeof bytes;
    if (left >= 0) memcpy(&bytes, all + at, sizeof bytes);
    if (left < 0 || bytes < 0 || bytes > left)
      return RF_FAIL(error, RAFTER_FAILED, "run the same rafter on every machine",
                     "rank 0 sent answers that are malformed");
    at += (int64_t)sizeof bytes;
    RF_TRY(rf_reply_packed_of(all + at, bytes, &of, error));
    bool own = of.request >= 0 && of.request < s->count && of.sample >= 0 &&
               of.sample < s->list[of.request]->samples && rf_shares_has(s, s->list[of.request], of.sample);
    if (!own) RF_TRY(take(s, all + at, bytes, error));
  }
  return RAFTER_OK;
}

/* Gives the other ranks the answers that rank 0 has. */
static rf_status spread(rf_shares *s, rf_error *error) {
  unsigned char *all = NULL;
  int64_t size = 0;
  rf_status status = RAFTER_OK;
  if (s->first) RF_GO(pack_all(s, &all, &size, error));
  RF_GO(rf_run_share(s->g->run, &size, sizeof size, error));
  if (!s->first && !(all = malloc((size_t)size + 1)))
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while receiving answers"));
  RF_GO(rf_run_share(s->g->run, all, size, error));
  if (!s->first) status = take_missing(s, all, size, error);
done:
  free(all);
  return status;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static rf_copies_state state_of(const rf_generator *g, bool done) {
  rf_copies_state state = {.done = done, .complete = !rf_generator_busy(g)};
  memcpy(&state.totals, &g->batch->counts, sizeof g->batch->counts);
  return state;
}

static rf_status run(rf_generator *g, const rf_reply_loop *loop, bool *stopped, bool *left, rf_error *error) {
  rf_shares *s = g->shares;
  while (s->open) {
    const int64_t before = rf_generator_counts(g).tokens;
    bool works = rf_generator_busy(g) && !*stopped, over;
    uint32_t flags;
    rf_status status = works ? rf_replies_step(g, loop, error) : RAFTER_OK;
    /* a pass that a signal has ended has no results; `stepped` also checks for the signal */
    if (status != RAFTER_OK && status != RAFTER_INTERRUPTED) return status;
    const rf_copies_state state = state_of(g, !works);
    RF_TRY(rf_copies_exchange(s->copies, &state, take, s, &over, &flags, error));
    if (over) {
      s->open = false;
      *stopped = flags != 0;
    } else if (!*stopped) {
      *stopped = !loop->stepped(loop->self, (int)(rf_generator_counts(g).tokens - before));
      *left = *stopped && !rf_copies_said(s->copies);
      if (*left) return RAFTER_OK; /* the caller has failed, and will end the process */
    }
  }
  return RAFTER_OK;
}

rf_status rf_shares_run(rf_generator *g, const rf_reply_loop *loop, bool *stopped, rf_error *error) {
  rf_shares *s = g->shares;
  rf_error why = {0};
  bool left = false;
  s->loop = loop;
  rf_status status = run(g, loop, stopped, &left, &why);
  if (status != RAFTER_OK) {
    rf_copies_fail(s->copies, status, &why);
    if (error) *error = why;
    return status;
  }
  return loop->everywhere && !*stopped && !left ? spread(s, error) : RAFTER_OK;
}
