/* source.h - one source of training rows: where its tokens are, and which tokens form each row.
 *
 * A row has T tokens. A stream (a text file, a shard without documents) is split every T tokens,
 * and its last, shorter part is dropped. Documents (JSONL rows, a shard with documents) are packed
 * by best fit: each row holds several pieces of documents, of at most T tokens each. Each piece is
 * a segment, so no token attends to another document, and no token is repeated. A plain text longer
 * than T tokens becomes several pieces. An example (a conversation, a prompt with its completion,
 * tokens with a mask) is one piece; its tokens after the first T are dropped and counted. */
#ifndef RF_SOURCE_H
#define RF_SOURCE_H

#include "model/model.h"
#include "train/example.h"
#include "train/shard.h"

/* Consecutive tokens of a document. `next`: the document continues, so the last token has a
 * label. */
typedef struct rf_piece {
  int64_t start;
  int32_t tokens;
  uint32_t valid : 31, next : 1; /* valid: number of labels that the loss counts. */
} rf_piece;

typedef struct rf_rows {
  int64_t count;
  /* (count + 1): row r has the pieces [first[r], first[r + 1]); NULL for a stream. */
  int64_t *first;
  rf_piece *piece;
  int64_t stream_start; /* Stream: row r begins at token stream_start + r * T. */
  double efficiency;    /* Used tokens / (rows * T). */
} rf_rows;

/* Training inputs of n tokens. */
typedef struct rf_token_batch {
  int32_t *tokens, *labels, *positions; /* (n) each; label -1: none. */
  int32_t *segments;                    /* (n + 1): starts of segments. */
  int64_t segment_count;
} rf_token_batch;

typedef struct rf_source {
  char spec[1100];
  double weight;
  bool random;
  uint64_t random_seed, digest; /* digest: hash of all tokens, document bounds and masks. */
  rf_shard shard;
  int64_t seq; /* T, tokens per row. */
  int64_t tokens, documents;
  /* Examples longer than a row, and the number of tokens dropped from them. */
  int64_t cut, cut_tokens;
  /* Examples without any token that the loss counts; they are in no row. */
  int64_t skipped;
  rf_rows train, held_out; /* held_out: the validation split. */
} rf_source;

typedef struct rf_source_options {
  const rf_model *model;
  /* Folder with the model's own tokenizer; NULL or "": the byte tokenizer. */
  const char *model_folder;
  int64_t seq;
  bool pack;           /* false: one document per row; tokens after it are unused. */
  double val_fraction; /* Share of rows or documents, taken from the end, for validation. */
  rf_loss_on loss_on;  /* Applies to conversations, and to prompts with completions. */
  /* Field names of .jsonl rows, see rf_example_open; NULL: the default names. */
  const char *fields;
  const char *template; /* Chat template: a file, or "none"; NULL or "": the model's own. */
  /* Folder for shards made from .jsonl files and from tokenized texts. */
  const char *work_folder;
} rf_source_options;

/* Opens `spec`: random:seed=0 | a text file | a .jsonl file (rows as in example.h) | a .shard file.
 * Every token is checked against the vocabulary. RAFTER_FAILED: the source is empty, too short for
 * one row, or has a bad row (the error names file and line). */
rf_status rf_source_open(const char *spec, double weight, const rf_source_options *options, rf_source *source,
                         rf_error *error);
/* Writes each row of a .jsonl file as a document of a shard, with its loss mask if it has one. The
 * shard is renamed to `shard_path` when it is complete. */
rf_status rf_source_write_shard(const char *path, const rf_example_options *options, const char *shard_path,
                                rf_error *error);
void rf_source_close(rf_source *source);
/* Number of labels in a row that the loss counts: T for a stream; fewer if documents end in the row
 * or a mask excludes tokens. */
int64_t rf_source_valid(const rf_source *source, const rf_rows *rows, int64_t row);
/* Number of used tokens of a row: T minus the unused tokens. */
int64_t rf_source_tokens(const rf_source *source, const rf_rows *rows, int64_t row);
/* Number of attention pairs (query, key) in a segment, and in all segments of a row. Query i sees
 * min(i + 1, window) keys, or all i + 1 keys with window 0. */
double rf_segment_pairs(int64_t tokens, int window);
double rf_source_pairs(const rf_source *source, const rf_rows *rows, int64_t row, int window);
/* Fills one row at token `at` of a batch and appends the starts of its segments. */
rf_status rf_source_fill(const rf_source *source, const rf_rows *rows, int64_t row, int64_t at,
                         rf_token_batch *batch, rf_error *error);
/* Marks tokens [at, end) of a batch, if any, as unused: they become one segment of token 0 without
 * labels. */
void rf_source_fill_unused(rf_token_batch *batch, int64_t at, int64_t end);

#endif
