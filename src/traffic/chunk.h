/* chunk.h - one event of a streamed answer, in the shape of OpenAI's completions or chat API. */
#ifndef RF_TRAFFIC_CHUNK_H
#define RF_TRAFFIC_CHUNK_H

#include "base/base.h"

typedef struct rf_chunk {
  bool last;         /* true: the event is [DONE], which ends the stream */
  bool tokens;       /* true: the event carries tokens of the answer; their text may be empty */
  bool finish;       /* true: the event says why the answer ended */
  bool refused;      /* true: the server reports an error, with the text `message` */
  char message[256]; /* printable ASCII */
  int64_t input_tokens, output_tokens; /* numbers of tokens from "usage"; -1: the event has no "usage" */
} rf_chunk;

/* Returns RAFTER_FAILED if the data is not such an event. */
rf_status rf_chunk_parse(const char *data, size_t bytes, rf_chunk *chunk, rf_error *error);
/* Copies the message from a JSON body {"error": {"message": ...}}, or the beginning of any other
 * body. Copies only printable ASCII, because the text is printed. */
void rf_chunk_error_text(const char *body, size_t bytes, char *text, size_t size);
/* Copies the printable ASCII characters of a text. */
void rf_chunk_printable(char *to, size_t size, const char *from, size_t bytes);

#endif
