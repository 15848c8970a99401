/* shard.h - token shards: files of token ids with the bounds of their documents, described in
 * docs/formats.md.
 *
 *   Offset  bytes  field (all little-endian).
 *   `0`     8      magic "rafterT1".
 *   `8`     4      bytes per token: 2 or 4.
 *   `12`    4      vocabulary size: every id is smaller.
 *   `16`    8      number of tokens.
 *   `24`    8      number of documents; 0: one stream without bounds.
 *   `32` 4 1 if the file has a loss mask; 0 if every token counts.
 *   `36`    28     zero.
 *   `64`    ...    tokens, u16 or u32.
 *   `next`  ...    document starts, u64[documents + 1], aligned to 8. The last entry is the number
 *                  of tokens. The highest bit of an entry is a flag: the document that ends there
 *                  is an example, which is never split.
 *   `next`  ...    loss mask: bit t % 8 of byte t / 8 is 1 if the loss counts token t. */
#ifndef RF_SHARD_H
#define RF_SHARD_H

#include "base/file.h"
#include "text/tokenizer.h"

typedef struct rf_shard {
  int file; /* File descriptor. */
  char path[1024];
  int token_bytes;    /* Bytes of a token: 2 or 4, or 1 for a plain text file. */
  int64_t first_byte; /* Offset of token 0. */
  int64_t vocab, tokens, documents;
  int64_t starts_byte; /* Offset of the document table. */
  int64_t mask_byte;   /* Offset of the loss mask; 0: no mask. */
  rf_file_stamp stamp; /* Size and time of the file when it was opened. */
} rf_shard;

/* Opens a shard and compares its header with the file's size. RAFTER_FAILED names the field. */
rf_status rf_shard_open(const char *path, rf_shard *shard, rf_error *error);
/* Opens a text file as a shard that is one stream of bytes. */
rf_status rf_shard_open_text(const char *path, rf_shard *shard, rf_error *error);
void rf_shard_close(rf_shard *shard);
/* Reads ids [first, first + count) without allocation. RAFTER_FAILED: short read, id >= `vocab`. */
rf_status rf_shard_read(const rf_shard *shard, int64_t first, int64_t count, int64_t vocab, int32_t *ids,
                        rf_error *error);
/* Reads the start of a document or, if `document` equals `documents`, the end of the tokens.
 * *example (may be NULL) is true if the document before this start is never split. */
rf_status rf_shard_document(const rf_shard *shard, int64_t document, int64_t *start, bool *example,
                            rf_error *error);
/* Sets mask[i] (i < count) to 1 if the loss counts token first + i, else 0. Allocates nothing. */
rf_status rf_shard_mask(const rf_shard *shard, int64_t first, int64_t count, uint8_t *mask, rf_error *error);
/* Reads the shard and checks every id. *digest (may be NULL): hash of tokens, bounds, masks. */
rf_status rf_shard_scan(const rf_shard *shard, int64_t vocab, uint64_t *digest, rf_error *error);

/* Writes a shard to a temporary file, document by document. rf_shard_finish renames it to
 * `path`. */
typedef struct rf_shard_writer rf_shard_writer;
rf_status rf_shard_create(const char *path, int64_t vocab, rf_shard_writer **writer, rf_error *error);
/* rf_shard_append adds a document; rf_shard_append_stream adds tokens without documents. */
rf_status rf_shard_append(rf_shard_writer *writer, const int32_t *ids, int64_t count, rf_error *error);
rf_status rf_shard_append_stream(rf_shard_writer *writer, const int32_t *ids, int64_t count, rf_error *error);
/* Appends a document that is never split. mask (count) is 1 for tokens that the loss counts. */
rf_status rf_shard_append_example(rf_shard_writer *writer, const int32_t *ids, const uint8_t *mask,
                                  int64_t count, rf_error *error);
/* Completes the shard and frees the writer, even after a failure. */
rf_status rf_shard_finish(rf_shard_writer *writer, rf_error *error);
void rf_shard_discard(rf_shard_writer *writer);

#endif
