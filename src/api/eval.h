/* eval.h - what the tasks of `rafter eval` share. */
#ifndef RF_EVAL_H
#define RF_EVAL_H

#include "api/api.h"
#include "journal/journal.h"
#include "journal/traced.h"
#include "journal/walked.h"
#include "generate/score.h"
#include "text/tokenizer.h"

typedef struct rf_evaluation {
  const rf_options *options; /* MODEL is the argument 0 here */
  const rafter_sink *sink;
  rf_settings settings;
  rf_tokenizer *tokenizer;
  json_t *result; /* of --json: the task adds its numbers */
  json_t *rows;   /* of --output, put there by rf_eval_put_row */
  json_t *kept;   /* --continue: rows that --output holds already, by their number */
  /* hex XXH3 of all that decides a row: rows of another evaluation are no part of this one */
  char of[17];
  rf_record *record; /* --trace */
  rf_journal journal;
  char folder[4096]; /* of --out or --trace; "": none */
  bool stopped;      /* by a signal: the task counts what is done */
} rf_evaluation;

/* Begins the journal, whose folder is made when all that can be refused was. walk[0]: see
 * rf_journal_begin. */
rf_status rf_eval_begin(rf_evaluation *e, const rf_report_walk *walk, int walks, rf_error *error);

/* A row of --output: number `index` of --data. Takes the reference. */
void rf_eval_put_row(rf_evaluation *e, int64_t index, json_t *row);
/* The row that an earlier evaluation left; NULL: it is to be done. */
const json_t *rf_eval_kept(const rf_evaluation *e, int64_t index);

/* A task: reads e->settings' model and --data, says its table, fills result and rows. */
typedef rf_status (*rf_eval_task)(rf_evaluation *e, rf_error *error);
rf_status rf_eval_perplexity(rf_evaluation *e, rf_error *error);
rf_status rf_eval_choices(rf_evaluation *e, rf_error *error);
rf_status rf_eval_gsm8k(rf_evaluation *e, rf_error *error);

/* The objects of a .jsonl file, at most `limit` (0: all) and at least one. json_decref() the
 * list. */
rf_status rf_eval_read_rows(const char *path, int64_t limit, json_t **rows, rf_error *error);
/* Opens a scorer whose walks take texts of up to `longest` tokens; rf_eval_score sends any
 * number of texts through it, or as many (*done) as there were before a signal. */
rf_status rf_eval_open_scorer(rf_evaluation *e, int64_t longest, rf_scorer **scorer, rf_error *error);
rf_status rf_eval_score(rf_evaluation *e, rf_scorer *scorer, rf_scored *text, int64_t count, int64_t *done,
                        rf_error *error);

/* Ids of a text with what the tokenizer puts in front of it, but with nothing that ends it. */
rf_status rf_eval_encode(rf_evaluation *e, const char *text, size_t bytes, int flags, rf_ids *ids,
                         rf_error *error);

/* "accuracy" and so on into the result: {"accuracy": p, "accuracy_low", "accuracy_high"}; and a
 * line for people. */
void rf_eval_put_share(rf_evaluation *e, const char *name, int64_t right, int64_t n);

#endif
