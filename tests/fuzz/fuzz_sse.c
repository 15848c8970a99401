/* Reads any bytes as the stream of an answer. Either an error says why, or each event becomes a
 * chunk with sensible counts. The split of the bytes into pieces never changes the events. The
 * first byte chooses the size of the pieces. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "traffic/chunk.h"
#include "traffic/metrics.h"
#include "traffic/sse.h"

/* A hash of all events, and how many there were. */
typedef struct events {
  uint64_t hash;
  int64_t count;
} events;

static rf_status take(void *self, const char *data, size_t bytes, rf_error *error) {
  events *e = self;
  rf_chunk chunk;
  if (data[bytes] || bytes > RF_SSE_MOST) abort();
  for (size_t i = 0; i < bytes; i++) e->hash = (e->hash ^ (unsigned char)data[i]) * 0x100000001b3u;
  e->hash = (e->hash ^ 0x100) * 0x100000001b3u;
  e->count++;
  if (rf_chunk_parse(data, bytes, &chunk, error) != RAFTER_OK) return RAFTER_OK;
  if (chunk.input_tokens < -1 || chunk.output_tokens < -1) abort();
  for (const char *c = chunk.message; *c; c++)
    if (*c < ' ' || *c > '~') abort();
  return RAFTER_OK;
}

static events read_stream(const char *text, size_t bytes, size_t step) {
  events e = {.hash = 0xcbf29ce484222325u};
  rf_sse sse = {.event = take, .self = &e};
  rf_error error;
  rf_status status = RAFTER_OK;
  for (size_t at = 0; at < bytes && status == RAFTER_OK; at += step)
    status = rf_sse_feed(&sse, text + at, bytes - at < step ? bytes - at : step, &error);
  if (status == RAFTER_OK) status = rf_sse_end(&sse, &error);
  if (status != RAFTER_OK) abort(); /* no line of this stream is too long */
  rf_sse_free(&sse);
  return e;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  if (bytes < 1 || bytes > 65536) return 0;
  const char *text = (const char *)data + 1;
  const events whole = read_stream(text, bytes - 1, bytes),
               parts = read_stream(text, bytes - 1, data[0] % 16 + 1);
  if (whole.hash != parts.hash || whole.count != parts.count) abort();
  char message[64], *page = strndup(text, bytes - 1);
  double running, waiting;
  rf_chunk_error_text(text, bytes - 1, message, sizeof message);
  if (page && rf_traffic_read_metrics(page, &running, &waiting) && !(running >= 0 && waiting >= 0)) abort();
  free(page);
  return 0;
}
