/* shard.h - token shards: a file of token ids with its documents' bounds. docs/formats.md
 * describes it.
 *
 *   offset  bytes  field (all little-endian)
 *   0       8      magic "rafterT1"
 *   8       4      bytes of one token: 2 or 4
 *   12      4      vocabulary: every id is below it
 *   16      8      tokens
 *   24      8      documents; 0: one stream without bounds
 *   32      4      1: the file has a loss mask; 0: every token counts
 *   36      28     zero
 *   64      ...    tokens, u16 or u32
 *   ...     ...    document starts, u64[documents + 1], aligned to 8; the last equals `tokens`.
 *     The highest bit of an entry is no part of it:
 *                  it says that the document which ends there is an example and never split
 *   ...     ...    the loss mask, bit t % 8 of byte t / 8: whether the loss counts token t */
#ifndef RF_SHARD_H
#define RF_SHARD_H

#include "text/tokenizer.h"

typedef struct rf_shard {
  int file; /* descriptor */
  char path[1024];
  int token_bytes;    /* 1 (plain text read as bytes), 2 or 4 */
  int64_t first_byte; /* of token 0 */
  int64_t vocab, tokens, documents;
  int64_t starts_byte; /* of the document table */
  int64_t mask_byte;   /* of the loss mask; 0: there is none */
} rf_shard;

/* Opens a shard file; every size is checked against the file's. RAFTER_FAILED names file and
 * field. */
rf_status rf_shard_open(const char *path, rf_shard *shard, rf_error *error);
/* Opens a text file as a shard of one stream of bytes. */
rf_status rf_shard_open_text(const char *path, rf_shard *shard, rf_error *error);
void rf_shard_close(rf_shard *shard);
/* Reads ids [first, first + count). Allocates nothing. RAFTER_FAILED on a short read or an id at
 * or above `vocab` (file, position, got). */
rf_status rf_shard_read(const rf_shard *shard, int64_t first, int64_t count, int64_t vocab, int32_t *ids,
                        rf_error *error);
/* Start of document d (d == documents: the end). *example, which may be NULL: whether the
 * document before it is never split. */
rf_status rf_shard_document(const rf_shard *shard, int64_t document, int64_t *start, bool *example,
                            rf_error *error);
/* Whether the loss counts tokens [first, first + count): 1 or 0 each. Allocates nothing. */
rf_status rf_shard_mask(const rf_shard *shard, int64_t first, int64_t count, uint8_t *mask, rf_error *error);
/* Reads the whole shard once and checks every id. `digest`, which may be NULL, gets a number
 * that other tokens, bounds or masks would change. */
rf_status rf_shard_scan(const rf_shard *shard, int64_t vocab, uint64_t *digest, rf_error *error);

/* Writes a shard document by document: beside `path`, renamed by finish. */
typedef struct rf_shard_writer rf_shard_writer;
rf_status rf_shard_create(const char *path, int64_t vocab, rf_shard_writer **writer, rf_error *error);
/* one document */
rf_status rf_shard_append(rf_shard_writer *writer, const int32_t *ids, int64_t count, rf_error *error);
/* A document that is never split; mask (count): the loss counts the tokens that have 1. */
rf_status rf_shard_append_example(rf_shard_writer *writer, const int32_t *ids, const uint8_t *mask,
                                  int64_t count, rf_error *error);
rf_status rf_shard_append_stream(rf_shard_writer *writer, const int32_t *ids, int64_t count,
                                 /* tokens without bounds; not mixed with documents */
                                 rf_error *error);
rf_status rf_shard_finish(rf_shard_writer *writer, rf_error *error); /* frees the writer, also on failure */
void rf_shard_discard(rf_shard_writer *writer);

#endif
