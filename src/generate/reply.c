/* reply.c - see reply.h. */
#include "generate/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

rf_status rf_reply_start(rf_reply *r, const rf_tokenizer *tokenizer, const rf_stop *stop, int top,
                         rf_error *error) {
  *r = (rf_reply){.top = top, .tokenizer = tokenizer, .stop = stop, .text_room = 64};
  r->piece = malloc(tokenizer ? rf_decoder_room(tokenizer) + 1 : 16);
  r->text = malloc(r->text_room);
  if (!r->piece || !r->text) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  r->text[0] = 0;
  if (tokenizer) rf_decoder_start(&r->decoder, tokenizer, RF_DECODE_CONTINUES);
  rf_stop_start(stop, &r->state);
  return RAFTER_OK;
}

void rf_reply_free(rf_reply *r) {
  rf_ids_free(&r->tokens);
  free(r->logprobs);
  free(r->top_ids);
  free(r->top_logprobs);
  free(r->text);
  free(r->piece);
  *r = (rf_reply){0};
}

static rf_status grow(rf_reply *r, rf_error *error) {
  if (r->tokens.count < r->room) return RAFTER_OK;
  size_t room = r->room ? 2 * (size_t)r->room : 32;
  float *logprobs = realloc(r->logprobs, room * sizeof *logprobs);
  if (logprobs) r->logprobs = logprobs;
  int32_t *ids = realloc(r->top_ids, (room * (size_t)r->top + 1) * sizeof *ids);
  if (ids) r->top_ids = ids;
  float *tops = realloc(r->top_logprobs, (room * (size_t)r->top + 1) * sizeof *tops);
  if (tops) r->top_logprobs = tops;
  if (!logprobs || !ids || !tops) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  r->room = (int64_t)room;
  return RAFTER_OK;
}

/* Appends the released bytes to the reply's text. */
static rf_status release(rf_reply *r, const rf_stop_text *text, rf_error *error) {
  for (int i = 0; i < 2; i++) {
    rf_span span = text->released[i];
    if (!span.bytes) continue;
    if (r->bytes + span.bytes + 1 > r->text_room) {
      size_t room = 2 * (r->bytes + span.bytes + 1);
      char *grown = realloc(r->text, room);
      if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
      r->text = grown;
      r->text_room = room;
    }
    memcpy(r->text + r->bytes, span.at, span.bytes);
    r->bytes += span.bytes;
    r->text[r->bytes] = 0;
  }
  return RAFTER_OK;
}

static rf_status add_text(rf_reply *r, size_t bytes, rf_error *error) {
  rf_stop_text text;
  if (rf_stop_next(&r->state, r->piece, bytes, &text)) r->finish = RF_FINISH_STOP;
  return release(r, &text, error);
}

/* Ends the answer, and releases text that was held back for a possible stop string. Does nothing if
 * the answer has ended. */
static rf_status end(rf_reply *r, rf_finish finish, rf_error *error) {
  rf_stop_text text;
  if (r->finish != RF_FINISH_NONE) return RAFTER_OK;
  RF_TRY(add_text(r, r->tokenizer ? rf_decoder_end(&r->decoder, r->piece) : 0, error));
  if (r->finish != RF_FINISH_NONE) return RAFTER_OK;
  rf_stop_end(&r->state, &text);
  r->finish = finish;
  return release(r, &text, error);
}

rf_status rf_reply_take(rf_reply *r, const rf_event *e, rf_error *error) {
  if (e->finish == RF_FINISH_ERROR) {
    if (error) *error = *e->error;
    return e->error->status;
  }
  if (e->finish == RF_FINISH_CANCELLED) return end(r, RF_FINISH_CANCELLED, error);
  int64_t at = r->tokens.count;
  RF_TRY(grow(r, error));
  RF_TRY(rf_ids_add(&r->tokens, e->token, error));
  r->logprobs[at] = e->logprob;
  for (int i = 0; i < r->top; i++) {
    r->top_ids[at * r->top + i] = i < e->top ? e->top_ids[i] : -1;
    r->top_logprobs[at * r->top + i] = i < e->top ? e->top_logprobs[i] : 0;
  }
  if (e->finish != RF_FINISH_STOP) {
    size_t bytes = r->tokenizer ? rf_decoder_next(&r->decoder, e->token, r->piece)
                                : (size_t)sprintf(r->piece, "%s%d", at ? "," : "", e->token);
    RF_TRY(add_text(r, bytes, error));
  }
  return e->finish == RF_FINISH_NONE ? RAFTER_OK : end(r, e->finish, error);
}
