/* source.h - one source of training rows: where its tokens are, and which stretches of them make
 * each row.
 *
 * A row is T tokens. A stream (a text file, a shard without documents) is cut every T tokens;
 * its last, short stretch is left out. Documents (JSONL rows, a shard with documents) are
 * packed: pieces of up to T tokens, best fit by length, each piece a segment of its own, so that
 * no token sees another document and no row repeats a token. A text of more than T tokens gives
 * several pieces; an example (a conversation, a prompt with its completion, tokens with a mask)
 * gives one, and what it has beyond T is left out and counted. */
#ifndef RF_SOURCE_H
#define RF_SOURCE_H

#include "model/model.h"
#include "train/example.h"
#include "train/shard.h"

/* Consecutive tokens of one document. `next` says whether the token behind the last one
 * continues the document (it is that token's label). */
typedef struct rf_piece {
  int64_t start;
  int32_t tokens;
  uint32_t valid : 31, next : 1; /* valid: labels of it that count */
} rf_piece;

typedef struct rf_rows {
  int64_t count;
  int64_t *first; /* count + 1: pieces of row r are [first[r], first[r + 1]); NULL for a stream */
  rf_piece *piece;
  int64_t stream_start; /* of a stream: row r is the T tokens from stream_start + r T */
  double efficiency;    /* tokens in rows / (rows T) */
} rf_rows;

typedef struct rf_source {
  char spec[1100];
  double weight;
  bool random;
  uint64_t random_seed, digest; /* digest: of every token and bound */
  rf_shard shard;
  int64_t seq; /* T */
  int64_t tokens, documents;
  int64_t cut, cut_tokens; /* examples longer than a row, and how many tokens that left out */
  int64_t skipped;         /* examples without a token that the loss counts: they are in no row */
  rf_rows train, held_out; /* held_out: the validation split */
} rf_source;

typedef struct rf_source_options {
  const rf_model *model;
  const char *model_folder; /* where the model's own tokenizer may be; NULL or "": the byte tokenizer */
  int64_t seq;
  bool pack;           /* false: one document a row, the rest of the row unused */
  double val_fraction; /* of stream tokens or documents, from the end */
  rf_loss_on loss_on;  /* of conversations, and of prompts with completions */
  /* what .jsonl rows call their fields, as rf_example_open takes it; NULL: by their names */
  const char *fields;
  const char *template; /* chat template: a file, or "none"; NULL or "": the model's own */
  /* where a .jsonl file, or a text that is not read byte by byte, is turned into a shard */
  const char *work_folder;
} rf_source_options;

/* `spec`: random:seed=0 | a text file | a .jsonl file of the rows that example.h names | a
 * .shard file. Every token is checked against the vocabulary. RAFTER_FAILED: empty, too short
 * for one row, bad row (file, line). */
rf_status rf_source_open(const char *spec, double weight, const rf_source_options *options, rf_source *source,
                         rf_error *error);
/* Writes the rows of a .jsonl file as the documents of a shard, with the mask of those that have
 * one. The shard gets its name when it is whole. */
rf_status rf_source_write_shard(const char *path, const rf_example_options *options, const char *shard_path,
                                rf_error *error);
void rf_source_close(rf_source *source);
/* Labels that count in a row: T of a stream, fewer when documents end in it or a mask takes some
 * away. */
int64_t rf_source_valid(const rf_source *source, const rf_rows *rows, int64_t row);
/* Tokens of a row: T less what is unused. */
int64_t rf_source_tokens(const rf_source *source, const rf_rows *rows, int64_t row);
/* Keys that the queries of a row see, all together, each its own segment's and at most `window`
 * of them (0: all). */
double rf_source_pairs(const rf_source *source, const rf_rows *rows, int64_t row, int window);
/* Fills row `row`: tokens, labels (-1: none), positions, each T long, and appends the segment
 * starts (offset by `base`) to segments[*segment_count]. */
rf_status rf_source_fill(const rf_source *source, const rf_rows *rows, int64_t row, int64_t base,
                         int32_t *tokens, int32_t *labels, int32_t *positions, int32_t *segments,
                         int64_t *segment_count, rf_error *error);

#endif
