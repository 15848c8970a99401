/* shard.h - token shards: files of token ids with the bounds of their documents, described in
 * docs/formats.md.
 *
 *   Offset  bytes  field (all little-endian).
 *   `0`     8      magic "rafterT1".
 *   `8`     4      bytes per token: 2 or 4.
 *   `12`    4      vocabulary size: every id is less than this number.
 *   `16`    8      number of tokens.
 *   `24`    8      number of documents. 0: the file is one stream without documents.
 *   `32`    4      1 if the file has a loss mask, and 0 if the loss counts every token.
 *   `36`    28     zero.
 *   `64`    ...    tokens, u16 or u32.
 *   `next`  ...    document starts, u64[documents + 1], aligned to 8. The last entry is the number
 *                  of tokens. The highest bit of an entry is a flag. If it is set, the document
 *                  that ends at the entry is an example, which is never split.
 *   `next`  ...    loss mask: bit t % 8 of byte t / 8 is 1 if the loss counts token t. */
#ifndef RF_SHARD_H
#define RF_SHARD_H

#include "base/file.h"
#include "text/tokenizer.h"

typedef struct rf_shard {
  int file; /* File descriptor. */
  char path[1024];
  int token_bytes;    /* number of bytes of a token: 2 or 4, or 1 for a plain text file */
  int64_t first_byte; /* Offset of token 0. */
  int64_t vocab, tokens, documents;
  int64_t starts_byte; /* offset of the document table in the file */
  int64_t mask_byte;   /* offset of the loss mask in the file; 0: the file has no mask */
  rf_file_stamp stamp; /* size and time of the file at the time when it was opened */
} rf_shard;

/* Opens a shard, and checks that its header agrees with the size of the file. RAFTER_FAILED names
 * the field. */
rf_status rf_shard_open(const char *path, rf_shard *shard, rf_error *error);
/* Opens a text file as if it were a shard with one stream of bytes. */
rf_status rf_shard_open_text(const char *path, rf_shard *shard, rf_error *error);
void rf_shard_close(rf_shard *shard);
/* Reads the ids [first, first + count). The function does not allocate. RAFTER_FAILED: short read,
 * id >= `vocab`. */
rf_status rf_shard_read(const rf_shard *shard, int64_t first, int64_t count, int64_t vocab, int32_t *ids,
                        rf_error *error);
/* Reads the start of a document. If `document` equals `documents`, reads the end of the tokens.
 * *example (which may be NULL) gets true if the document before this start is never split. */
rf_status rf_shard_document(const rf_shard *shard, int64_t document, int64_t *start, bool *example,
                            rf_error *error);
/* Sets mask[i] to 1 if the loss counts token first + i, and else to 0, for each i < count.
 * Allocates nothing. */
rf_status rf_shard_mask(const rf_shard *shard, int64_t first, int64_t count, uint8_t *mask, rf_error *error);
/* Reads the whole shard and checks every id. *digest (which may be NULL) gets a hash of tokens,
 * bounds and masks. */
rf_status rf_shard_scan(const rf_shard *shard, int64_t vocab, uint64_t *digest, rf_error *error);

/* Writes a shard to a temporary file, one document after another. rf_shard_finish renames the file
 * to `path`. */
typedef struct rf_shard_writer rf_shard_writer;
rf_status rf_shard_create(const char *path, int64_t vocab, rf_shard_writer **writer, rf_error *error);
/* rf_shard_append adds a document; rf_shard_append_stream adds tokens without documents. */
rf_status rf_shard_append(rf_shard_writer *writer, const int32_t *ids, int64_t count, rf_error *error);
rf_status rf_shard_append_stream(rf_shard_writer *writer, const int32_t *ids, int64_t count, rf_error *error);
/* Appends a document that is never split. The mask has `count` entries: 1 for each token that the
 * loss counts. */
rf_status rf_shard_append_example(rf_shard_writer *writer, const int32_t *ids, const uint8_t *mask,
                                  int64_t count, rf_error *error);
/* Completes the shard. Frees the writer, even after a failure. */
rf_status rf_shard_finish(rf_shard_writer *writer, rf_error *error);
void rf_shard_discard(rf_shard_writer *writer);

#endif
