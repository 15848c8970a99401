/* sse.h - reads a stream of server-sent events (text/event-stream of the HTML standard). The bytes
 * may arrive in pieces of any size. The reader uses only the data of events. */
#ifndef RF_TRAFFIC_SSE_H
#define RF_TRAFFIC_SSE_H

#include "base/base.h"

/* Maximum bytes of a line, and of the data of an event. */
enum { RF_SSE_MOST = 1 << 20 };

typedef struct rf_sse_text {
  char *at; /* start of the text; NULL: nothing is allocated yet */
  size_t bytes, capacity;
} rf_sse_text;

/* The caller sets `event` and `self`, and leaves all other fields zero. */
typedef struct rf_sse {
  /* Called for each event with its data. A NUL follows the data, which `bytes` does not count. */
  rf_status (*event)(void *self, const char *data, size_t bytes, rf_error *error);
  void *self;
  rf_sse_text line, data;
  bool has_data, after_cr, begun;
} rf_sse;

/* Reads the next bytes of a stream. Returns RAFTER_FAILED if a line or an event is too long,
 * otherwise the status of `event`. After a failure, the stream cannot continue. */
rf_status rf_sse_feed(rf_sse *sse, const char *at, size_t bytes, rf_error *error);
/* Ends the stream. Also reports a last event without a blank line, because some servers omit this
 * line. */
rf_status rf_sse_end(rf_sse *sse, rf_error *error);
/* Makes the reader ready for another stream, and keeps its memory. */
void rf_sse_reset(rf_sse *sse);
void rf_sse_free(rf_sse *sse);

#endif
