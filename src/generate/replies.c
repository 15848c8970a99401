/* replies.c - see replies.h. */
#include "generate/replies.h"

#include "generate/batch.h"
#include "generate/shares.h"
#include "run/record.h"

#include <stdlib.h>

rf_status rf_replies_submit(rf_generator *g, const rf_request *request, const rf_tokenizer *tokenizer,
                            const rf_stop *stop, rf_replies *a, rf_error *error) {
  rf_request own = *request;
  own.owner = a;
  a->samples = a->left = request->samples > 0 ? request->samples : 1;
  a->reply = calloc((size_t)a->samples, sizeof *a->reply);
  if (!a->reply) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while queueing a request");
  for (int s = 0; s < a->samples; s++) {
    RF_TRY(rf_reply_start(&a->reply[s], tokenizer, stop, request->top, error));
    if (request->specials && tokenizer)
      rf_decoder_start(&a->reply[s].decoder, tokenizer, RF_DECODE_CONTINUES | RF_DECODE_SPECIALS);
  }
  if (!g->shares) return rf_generator_submit(g, &own, &a->request, error);
  RF_TRY(rf_shares_add(g->shares, a, error));
  a->request = -1;
  if (!rf_shares_has_any(g->shares, a)) return rf_generator_check(g, &own, error);
  RF_TRY(rf_generator_submit(g, &own, &a->request, error));
  for (int s = 0; s < a->samples; s++)
    if (!rf_shares_has(g->shares, a, s)) rf_generator_cancel(g, a->request, s);
  return RAFTER_OK;
}

void rf_replies_begin(rf_generator *g, int64_t requests) {
  if (g->shares) rf_shares_begin(g->shares, requests);
}

uint32_t rf_replies_said(const rf_generator *g) {
  return g->shares ? rf_copies_said(rf_shares_copies(g->shares)) : 0;
}

bool rf_replies_busy(const rf_generator *g) {
  return g->shares ? rf_shares_busy(g->shares) : rf_generator_busy(g);
}

rf_status rf_replies_agree(rf_generator *g, uint32_t *flags, rf_error *error) {
  return g->shares ? rf_copies_say(rf_shares_copies(g->shares), flags, error)
                   : rf_run_agree(g->run, flags, error);
}

void rf_replies_free(rf_replies *a) {
  for (int s = 0; a->reply && s < a->samples; s++) rf_reply_free(&a->reply[s]);
  free(a->reply);
  *a = (rf_replies){0};
}

static rf_status take(rf_generator *g, const rf_reply_loop *loop, const rf_event *e, rf_error *error) {
  rf_replies *a = e->owner;
  rf_reply *r = &a->reply[e->sample];
  rf_event own = *e;
  rf_error why = {0};
  if (rf_reply_take(r, e, &why) != RAFTER_OK) {
    r->finish = RF_FINISH_ERROR;
    own.error = &why;
    if (!loop->survives) {
      if (error) *error = why;
      return why.status;
    }
  }
  if (r->finish != RF_FINISH_NONE && e->finish == RF_FINISH_NONE)
    rf_generator_cancel(g, e->request, e->sample);
  if (r->finish != RF_FINISH_NONE && g->shares) RF_TRY(rf_shares_give(g->shares, a, e->sample, error));
  return loop->taken ? loop->taken(loop->self, a, &own, error) : RAFTER_OK;
}

rf_status rf_replies_step(rf_generator *g, const rf_reply_loop *loop, rf_error *error) {
  rf_status status = RAFTER_OK;
  const rf_event *event;
  int count;
  RF_TRY(rf_generator_step(g, &event, &count, error));
  int64_t began = rf_phase_begin();
  for (int i = 0; i < count && status == RAFTER_OK; i++) {
    rf_replies *a = event[i].owner;
    if (g->shares && !rf_shares_has(g->shares, a, event[i].sample)) continue; /* it was cancelled */
    /* If a stop string has ended an answer, the event of its cancellation still follows. */
    bool reported = a->reply[event[i].sample].finish != RF_FINISH_NONE;
    if (!reported) status = take(g, loop, &event[i], error);
    a->left -= event[i].finish != RF_FINISH_NONE;
    if (status == RAFTER_OK && !a->left && loop->ended) status = loop->ended(loop->self, a, error);
  }
  rf_phase_end(RF_PHASE_WRITE, began);
  return status;
}

rf_status rf_replies_run(rf_generator *g, const rf_reply_loop *loop, bool *stopped, rf_error *error) {
  *stopped = false;
  if (g->shares) return rf_shares_run(g, loop, stopped, error);
  while (rf_generator_busy(g) && !*stopped) {
    int64_t before = rf_generator_counts(g).tokens;
    rf_status status = rf_replies_step(g, loop, error);
    /* A pass that a signal has ended has no results. `stepped` also checks for the signal. */
    if (status != RAFTER_OK && (status != RAFTER_INTERRUPTED || !loop->stepped)) return status;
    int tokens = (int)(rf_generator_counts(g).tokens - before);
    *stopped = loop->stepped && !loop->stepped(loop->self, tokens);
  }
  return RAFTER_OK;
}
