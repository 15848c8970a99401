/* sse.h - reads a stream of server-sent events (text/event-stream of the HTML standard). The bytes
 * may arrive in pieces of any size. Only the data of events is used. */
#ifndef RF_TRAFFIC_SSE_H
#define RF_TRAFFIC_SSE_H

#include "base/base.h"

/* Maximum bytes of a line, and of the data of an event. */
enum { RF_SSE_MOST = 1 << 20 };

typedef struct rf_sse_text {
  char *at; /* NULL: nothing was allocated yet */
  size_t bytes, capacity;
} rf_sse_text;

/* Set `event` and `self`, and leave the other fields zero. */
typedef struct rf_sse {
  /* Called for each event with its data, which ends with a NUL that `bytes` does not count. */
  rf_status (*event)(void *self, const char *data, size_t bytes, rf_error *error);
  void *self;
  rf_sse_text line, data;
  bool has_data, after_cr, begun;
} rf_sse;

/* RAFTER_FAILED: a line or an event is too long. Otherwise the status of `event`. After a failure,
 * the stream cannot continue. */
rf_status rf_sse_feed(rf_sse *sse, const char *at, size_t bytes, rf_error *error);
/* The stream has ended. Reports an event without the blank line after it, which some servers omit. */
rf_status rf_sse_end(rf_sse *sse, rf_error *error);
/* Makes the reader ready for another stream. Keeps its memory. */
void rf_sse_reset(rf_sse *sse);
void rf_sse_free(rf_sse *sse);

#endif
