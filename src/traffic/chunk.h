/* chunk.h - one event of a streamed answer, in the shape of OpenAI's completions or chat API. */
#ifndef RF_TRAFFIC_CHUNK_H
#define RF_TRAFFIC_CHUNK_H

#include "base/base.h"

typedef struct rf_chunk {
  bool last;                           /* the event [DONE], which ends the stream */
  bool tokens;                         /* carries tokens of the answer, which may have no text yet */
  bool finish;                         /* says why the answer ended */
  bool refused;                        /* the server reports an error, and `message` has its text */
  char message[256];                   /* printable ASCII */
  int64_t input_tokens, output_tokens; /* numbers from "usage"; -1: the event has no usage */
} rf_chunk;

/* RAFTER_FAILED: the data has another shape. */
rf_status rf_chunk_parse(const char *data, size_t bytes, rf_chunk *chunk, rf_error *error);
/* Copies the message of an error's JSON body {"error": {"message": ...}}, otherwise the beginning of
 * the body. Only printable ASCII is copied, because the text is printed. */
void rf_chunk_error_text(const char *body, size_t bytes, char *text, size_t size);
/* Copies the printable ASCII characters of a text. */
void rf_chunk_printable(char *to, size_t size, const char *from, size_t bytes);

#endif
