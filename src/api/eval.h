/* eval.h - declarations that the tasks of `rafter eval` share. A row is a JSON object of a .jsonl
 * file. */
#ifndef RF_EVAL_H
#define RF_EVAL_H

#include "api/api.h"
#include "journal/journal.h"
#include "journal/traced.h"
#include "journal/executed.h"
#include "generate/prompts.h"
#include "generate/score.h"

typedef struct rf_evaluation {
  const rf_options *options; /* argument 0 is MODEL */
  const rafter_sink *sink;
  rf_settings settings;
  rf_prompt_reader reader;
  json_t *result; /* figures of the task, as the JSON object that --json prints */
  json_t *rows;   /* rows that rf_eval_put_row added, for --output */
  json_t *kept;   /* rows of an earlier run in the file --output, by row number (--continue) */
  /* Hash, in hexadecimal, of everything that may change a result. Each row has this hash. */
  char of[17];
  rf_record *record; /* --trace */
  rf_journal journal;
  char rate[256]; /* the last line of the output: tokens, time, tokens per second */
  bool stopped;   /* true after a signal; the task then ends and reports the evaluated rows */
} rf_evaluation;

/* Adds `row`, the result for row `index` of --data, to the rows of --output. Takes ownership. */
void rf_eval_put_row(rf_evaluation *e, int64_t index, json_t *row);
/* Returns the result that an earlier, stopped evaluation has for row `index` of --data, or NULL. */
const json_t *rf_eval_kept(const rf_evaluation *e, int64_t index);

/* A task reads --data, runs the model, prints its figures, and fills `result` and `rows`. */
typedef rf_status (*rf_eval_task)(rf_evaluation *e, rf_error *error);
rf_status rf_eval_perplexity(rf_evaluation *e, rf_error *error);
rf_status rf_eval_choices(rf_evaluation *e, rf_error *error);
rf_status rf_eval_gsm8k(rf_evaluation *e, rf_error *error);

/* Reads a .jsonl file as a list with at least one object. Stops after `limit` objects (0: no
 * limit). The caller owns the list. */
rf_status rf_eval_read_rows(const char *path, int64_t limit, json_t **rows, rf_error *error);
/* Opens a scorer for texts of at most `longest` tokens. rf_eval_score scores `count` texts and sets
 * *done to the number of scored texts. After a signal, *done is less than `count`. */
rf_status rf_eval_open_scorer(rf_evaluation *e, int64_t longest, rf_scorer **scorer, rf_error *error);
rf_status rf_eval_score(rf_evaluation *e, rf_scorer *scorer, rf_scored *text, int64_t count, int64_t *done,
                        rf_error *error);

/* Token ids of a text. Adds the beginning-of-text token, but not the end-of-text token. */
rf_status rf_eval_encode(rf_evaluation *e, const char *text, size_t bytes, int flags, rf_ids *ids,
                         rf_error *error);

/* Adds the fraction right/n and its 95 % confidence interval to the result, and prints them. For
 * the name "accuracy", the keys are "accuracy", "accuracy_low" and "accuracy_high". */
void rf_eval_put_share(rf_evaluation *e, const char *name, int64_t right, int64_t n);

#endif
