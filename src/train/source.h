/* source.h - one source of training rows: the place of its tokens, and the tokens of each row.
 *
 * A row has T tokens. A stream is a text file, or a shard without documents. A stream is split
 * every T tokens. If the last part of a stream is shorter, it is dropped. Documents (JSONL rows, or
 * a shard with documents) are packed by best fit. So a row has several pieces of documents. A piece
 * has at most T tokens and is a segment. So no token attends to another document. No token is
 * repeated. A plain text of more than T tokens becomes several pieces. An example becomes one
 * piece. Examples are conversations, prompts with their completion, and tokens with a mask. The
 * tokens of an example after the first T are dropped and counted. */
#ifndef RF_SOURCE_H
#define RF_SOURCE_H

#include "model/model.h"
#include "train/example.h"
#include "train/shard.h"

/* Consecutive tokens of a document. If `next` is 1, the document continues after the piece. So the
 * last token of the piece has a label. */
typedef struct rf_piece {
  int64_t start;
  int32_t tokens;
  uint32_t valid : 31, next : 1; /* valid: number of labels that the loss counts */
} rf_piece;

typedef struct rf_rows {
  int64_t count;
  /* (count + 1): row r has the pieces first[r] to first[r + 1] - 1. NULL for a stream. */
  int64_t *first;
  rf_piece *piece;
  int64_t stream_start; /* Stream: row r begins at token stream_start + r * T. */
  double efficiency;    /* number of used tokens / (rows * T) */
} rf_rows;

/* Training inputs of n tokens. */
typedef struct rf_token_batch {
  /* arrays of n numbers; a label of -1 means that the token has no label */
  int32_t *tokens, *labels, *positions;
  int32_t *segments; /* (n + 1): starts of segments. */
  int64_t segment_count;
} rf_token_batch;

typedef struct rf_source {
  char spec[1100];
  double weight;
  bool random;
  uint64_t random_seed, digest; /* digest: hash of all tokens, document bounds and masks */
  rf_shard shard;
  int64_t scan_vocab;      /* vocabulary size for which the scan that made the digest checked all ids */
  int64_t seq;             /* T: number of tokens in a row */
  int64_t tokenizer_vocab; /* number of ids of the tokenizer that read the text; 0: no tokenizer */
  int64_t tokens, documents;
  int64_t cut,    /* number of examples with more than T tokens */
      cut_tokens; /* number of tokens that were dropped from examples with more than T tokens */
  /* Number of examples in which the loss counts no token. Examples that are skipped are in no
   * row. */
  int64_t skipped;
  rf_rows train, held_out; /* held_out: the rows for validation. */
} rf_source;

typedef struct rf_source_options {
  const rf_model *model;
  /* folder with the tokenizer of the model; NULL or "": the byte tokenizer */
  const char *model_folder;
  int64_t seq;
  bool pack;           /* if false, each row has one document, and the rest of the row is unused */
  double val_fraction; /* fraction of rows or documents, from the end, that are held out for validation */
  rf_loss_on loss_on;  /* choice of tokens, for conversations and for prompts with completions */
  /* names of the fields of .jsonl rows (see rf_example_open); NULL: the default names */
  const char *fields;
  const char *template; /* chat template: a file, or "none"; NULL or "": the template of the model */
  /* folder for the shards that are made from .jsonl files and texts */
  const char *work_folder;
} rf_source_options;

/* Opens the tokenizer for texts. If the model has no tokenizer, and `needed` is false, *tokenizer
 * becomes NULL. */
rf_status rf_source_tokenizer(const rf_source_options *options, bool needed, rf_tokenizer **tokenizer,
                              rf_error *error);
/* Returns the number of rows or documents, among `count`, that are held out for validation. If
 * `fraction` is above 0, at least one is held out, but never all. */
int64_t rf_held_out(int64_t count, double fraction);
bool rf_source_is_random(const char *spec);   /* true: no file, but random tokens */
bool rf_sources_are_random(const char *list); /* true: every source of a list with commas is random */
/* RAFTER_FAILED: the file `spec` does not exist or cannot be read. */
rf_status rf_source_exists(const char *spec, rf_error *error);
/* Checks, without reading the data, that rf_source_open may succeed: a text has a tokenizer, and a
 * file is not empty. Adds to *converted the number of bytes of a file that rf_source_open would
 * tokenize. */
rf_status rf_source_check(const char *spec, const rf_source_options *options, int64_t *converted,
                          rf_error *error);
/* Opens `spec`: random:seed=0, a text file, a .jsonl file (rows as in example.h) or a .shard file.
 * Checks every token against the vocabulary. RAFTER_FAILED: the source is empty or too short for
 * one row, or has a bad row. The error names the file and the line. */
rf_status rf_source_open(const char *spec, double weight, const rf_source_options *options, rf_source *source,
                         rf_error *error);
/* Writes each row of a .jsonl file as a document of a shard, with a loss mask if the row has one.
 * The complete shard is renamed to `shard_path`. */
rf_status rf_source_write_shard(const char *path, const rf_example_options *options, const char *shard_path,
                                rf_error *error);
void rf_source_close(rf_source *source);
/* RAFTER_FAILED: the file does not have the tokens that it had when it was opened. If another
 * program wrote to the file, this function reads all tokens again and compares the digest.
 * Otherwise the function makes only one system call. */
rf_status rf_source_unchanged(rf_source *source, rf_error *error);
/* Number of labels in a row that the loss counts. It is T for a stream. The number is less than T
 * if documents end in the row, or if a mask excludes tokens. */
int64_t rf_source_valid(const rf_source *source, const rf_rows *rows, int64_t row);
/* Number of used tokens of a row. */
int64_t rf_source_tokens(const rf_source *source, const rf_rows *rows, int64_t row);
/* Number of pairs (query, key) of attention, in one segment, and in all segments of a row. Query i
 * sees min(i + 1, window) keys. If `window` is 0, query i sees all i + 1 keys. */
double rf_segment_pairs(int64_t tokens, int window);
double rf_source_pairs(const rf_source *source, const rf_rows *rows, int64_t row, int window);
/* Fills one row, which begins at token `at` of a batch, and appends the starts of its segments. */
rf_status rf_source_fill(const rf_source *source, const rf_rows *rows, int64_t row, int64_t at,
                         rf_token_batch *batch, rf_error *error);
/* Marks the tokens [at, end) of a batch as unused. If at = end, no token is unused. The unused
 * tokens become one segment of tokens 0 without labels. */
void rf_source_fill_unused(rf_token_batch *batch, int64_t at, int64_t end);

#endif
