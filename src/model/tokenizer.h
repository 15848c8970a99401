/* tokenizer.h - text to token ids and back. Built in: the byte-level tokenizer, whose ids 0..255 are the bytes themselves and whose
 * id 256 ends a document where the vocabulary has room for it. */
#ifndef RF_TOKENIZER_H
#define RF_TOKENIZER_H

#include "model/model.h"

typedef struct rf_tokenizer {
  const char *name;       /* "byte" */
  int64_t vocab;          /* ids are below this */
  int32_t bos_id, eos_id; /* -1: none */
} rf_tokenizer;

/* The tokenizer of a model that brings none of its own. RAFTER_INVALID when the vocabulary has not 256 rows. */
rf_status rf_tokenizer_byte(const rf_model *model, rf_tokenizer *tokenizer, rf_error *error);
/* Ids of `bytes` bytes of text. Writes at most `capacity` ids, returns how many there are. */
int64_t rf_tokenizer_encode(const rf_tokenizer *tokenizer, const char *text, int64_t bytes, int32_t *ids, int64_t capacity);
/* Bytes of one id (not terminated; special ids give none). Returns their number, at most 16. */
int rf_tokenizer_piece(const rf_tokenizer *tokenizer, int32_t id, char piece[16]);

#endif
