/* reply_pack.c - see reply_pack.h. The bytes begin with a head. The arrays of rf_reply follow, in
 * the order of its fields. */
#include "generate/reply_pack.h"

#include <stdlib.h>
#include <string.h>

typedef struct head {
  rf_packed_of of;
  int32_t finish, top;
  int64_t tokens, bytes;
} head;

static int64_t size_of(const head *h) {
  int64_t each = (int64_t)(sizeof(int32_t) + sizeof(float)) * (1 + h->top);
  return (int64_t)sizeof *h + h->tokens * each + h->bytes;
}

/* Copies an array, and returns the address after its copy. */
static unsigned char *put(unsigned char *to, const void *from, int64_t bytes) {
  if (bytes) memcpy(to, from, (size_t)bytes);
  return to + bytes;
}

rf_status rf_reply_pack(const rf_reply *r, rf_packed_of of, unsigned char **data, int64_t *bytes,
                        rf_error *error) {
  head h;
  memset(&h, 0, sizeof h); /* all bytes are sent, so the padding is cleared too */
  h.of.request = of.request;
  h.of.sample = of.sample;
  h.finish = (int32_t)r->finish;
  h.top = r->top;
  h.tokens = r->tokens.count;
  h.bytes = (int64_t)r->bytes;
  *bytes = size_of(&h);
  unsigned char *at = *data = malloc((size_t)*bytes);
  if (!at) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while sending an answer");
  const int64_t n = h.tokens, tops = n * h.top;
  at = put(at, &h, sizeof h);
  at = put(at, r->tokens.at, n * (int64_t)sizeof *r->tokens.at);
  at = put(at, r->logprobs, n * (int64_t)sizeof *r->logprobs);
  at = put(at, r->top_ids, tops * (int64_t)sizeof *r->top_ids);
  at = put(at, r->top_logprobs, tops * (int64_t)sizeof *r->top_logprobs);
  put(at, r->text, h.bytes);
  return RAFTER_OK;
}

static rf_status read_head(const unsigned char *data, int64_t bytes, head *h, rf_error *error) {
  const int64_t most = bytes;
  bool right = bytes >= (int64_t)sizeof *h;
  if (right) memcpy(h, data, sizeof *h);
  right = right && h->tokens >= 0 && h->tokens <= most && h->top >= 0 && h->top <= RF_TOP_LOGPROBS &&
          h->bytes >= 0 && h->bytes <= most && h->finish >= RF_FINISH_NONE &&
          h->finish <= RF_FINISH_CANCELLED && size_of(h) == bytes;
  return right ? RAFTER_OK
               : RF_FAIL(error, RAFTER_FAILED, "run the same rafter on every machine",
                         "another rank sent an answer that is malformed");
}

rf_status rf_reply_packed_of(const unsigned char *data, int64_t bytes, rf_packed_of *of, rf_error *error) {
  head h = {0};
  RF_TRY(read_head(data, bytes, &h, error));
  *of = h.of;
  return RAFTER_OK;
}

/* Returns a copy of the array at *from, or NULL if out of memory. Moves *from to the end of the
 * array. */
static void *take(const unsigned char **from, int64_t bytes) {
  void *copy = malloc((size_t)bytes + 1);
  if (copy && bytes) memcpy(copy, *from, (size_t)bytes);
  *from += bytes;
  return copy;
}

rf_status rf_reply_unpack(rf_reply *r, const unsigned char *data, int64_t bytes, rf_error *error) {
  head h = {0};
  RF_TRY(read_head(data, bytes, &h, error));
  const unsigned char *at = data + sizeof h;
  const int64_t n = h.tokens, tops = n * h.top;
  if (h.top != r->top)
    return RF_FAIL(error, RAFTER_FAILED, "run the same rafter on every machine",
                   "another rank sent an answer with other alternatives (expected %d, got %d)", r->top,
                   h.top);
  rf_ids_free(&r->tokens);
  for (int64_t i = 0; i < n; i++) {
    int32_t id;
    memcpy(&id, at + i * (int64_t)sizeof id, sizeof id);
    RF_TRY(rf_ids_add(&r->tokens, id, error));
  }
  at += n * (int64_t)sizeof(int32_t);
  free(r->logprobs);
  free(r->top_ids);
  free(r->top_logprobs);
  free(r->text);
  r->logprobs = take(&at, n * (int64_t)sizeof *r->logprobs);
  r->top_ids = take(&at, tops * (int64_t)sizeof *r->top_ids);
  r->top_logprobs = take(&at, tops * (int64_t)sizeof *r->top_logprobs);
  r->text = take(&at, h.bytes);
  if (!r->logprobs || !r->top_ids || !r->top_logprobs || !r->text)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while receiving an answer");
  r->text[h.bytes] = 0;
  r->bytes = (size_t)h.bytes;
  r->room = n;
  r->text_room = r->bytes + 1;
  r->finish = (rf_finish)h.finish;
  return RAFTER_OK;
}
