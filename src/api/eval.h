/* eval.h - shared by the tasks of `rafter eval`. */
#ifndef RF_EVAL_H
#define RF_EVAL_H

#include "api/api.h"
#include "journal/journal.h"
#include "journal/traced.h"
#include "journal/walked.h"
#include "generate/score.h"
#include "text/tokenizer.h"

typedef struct rf_evaluation {
  const rf_options *options; /* argument 0 is MODEL */
  const rafter_sink *sink;
  rf_settings settings;
  rf_tokenizer *tokenizer;
  json_t *result;    /* object for --json, to which the task adds its numbers */
  json_t *rows;      /* --output: rows added by rf_eval_put_row */
  json_t *kept;      /* --continue: rows already in --output, by row number */
  char of[17];       /* hex XXH3 of the options that may change a row; identifies the evaluation */
  rf_record *record; /* --trace */
  rf_journal journal;
  bool stopped; /* a signal came: the task reports the rows evaluated so far */
} rf_evaluation;

/* Adds `row`, the result for row `index` of --data, to the rows of --output. Takes the
 * reference. */
void rf_eval_put_row(rf_evaluation *e, int64_t index, json_t *row);
/* The result that an earlier, stopped evaluation wrote for row `index` of --data; NULL: none. */
const json_t *rf_eval_kept(const rf_evaluation *e, int64_t index);

/* A task: reads --data, runs the model, prints its figures, and fills `result` and `rows`. */
typedef rf_status (*rf_eval_task)(rf_evaluation *e, rf_error *error);
rf_status rf_eval_perplexity(rf_evaluation *e, rf_error *error);
rf_status rf_eval_choices(rf_evaluation *e, rf_error *error);
rf_status rf_eval_gsm8k(rf_evaluation *e, rf_error *error);

/* Reads a list of at most `limit` (0: all) and at least one object of a .jsonl file; the caller
 * owns the list. */
rf_status rf_eval_read_rows(const char *path, int64_t limit, json_t **rows, rf_error *error);
/* Opens a scorer for texts of up to `longest` tokens. rf_eval_score scores `count` texts and
 * sets *done to the number scored, which a signal may make less than `count`. */
rf_status rf_eval_open_scorer(rf_evaluation *e, int64_t longest, rf_scorer **scorer, rf_error *error);
rf_status rf_eval_score(rf_evaluation *e, rf_scorer *scorer, rf_scored *text, int64_t count, int64_t *done,
                        rf_error *error);

/* Token ids of a text, with the beginning-of-text token but without an end-of-text token. */
rf_status rf_eval_encode(rf_evaluation *e, const char *text, size_t bytes, int flags, rf_ids *ids,
                         rf_error *error);

/* Adds the share right/n and its 95 % confidence interval to the result, and prints a line. The
 * name "accuracy" gives the keys "accuracy", "accuracy_low" and "accuracy_high". */
void rf_eval_put_share(rf_evaluation *e, const char *name, int64_t right, int64_t n);

#endif
