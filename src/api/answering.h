/* answering.h - answers prompts with a generator and writes one row for each answer, in the order
 * of the prompts. `generate` and `rollout` share this loop. */
#ifndef RF_ANSWERING_H
#define RF_ANSWERING_H

#include "api/answers.h"
#include "run/record.h"

typedef struct rf_answering {
  rf_settings settings;
  rf_prompt_reader reader;
  rf_prompts prompts;
  const char *path; /* file of the prompts; NULL: none */
  const rafter_sink *sink;
  rf_generator *generator;
  rf_out_file *out; /* file of the rows; NULL: rows go to the sink */
  rf_journal journal;
  rf_record *record; /* --trace */
  /* `json`: the sink gets rows as JSON. `streams`: the sink gets each piece of text immediately.
   * `echo`: rows begin with the prompt. `flushes`: rows are written to the file `out` after each
   * step. `appends`: the file `out` keeps its rows even if the run fails. */
  bool json, streams, echo, flushes, appends;
  uint64_t form;   /* key of the form that answers must have (rf_given_form); 0: any form */
  bool sorts;      /* true: the last answers begin longest first (docs/formats.md) */
  bool helps;      /* true on ranks other than 0, which write no rows */
  int64_t written; /* index of the prompt with the next answer to write */
  int sample;      /* index of the next answer to write, among the answers to prompt `written` */
  /* `answers`: total number. `done`: number of finished answers. Both include earlier runs. */
  int64_t answers, done;
  int64_t before;      /* finished answers of earlier runs */
  double began, limit; /* limit: value of --max-seconds, counted from `began`; 0: no limit */
  bool time_is_up;
  double start, first_seconds, seconds; /* seconds: duration of the forward passes, which begin at `start` */
  double process_seconds;               /* seconds from the start of the program to the first token */
  double longest;                       /* seconds of the longest step */
  /* `said`: time at which limit_fraction was computed. `limit_fraction`: fraction of the machine's
   * peak rates. */
  double said, limit_fraction;
  rf_status failed; /* status of writing rows after a step; `why` has its message */
  rf_error why;
} rf_answering;

/* Queues each prompt that has unwritten answers. Answer `sample` of prompt `written` is the first
 * unwritten answer. */
rf_status rf_answering_submit(rf_answering *answering, rf_error *error);
/* Runs until all answers have ended. RAFTER_INTERRUPTED: a signal ended the run. If --max-seconds
 * has passed, sets time_is_up and returns RAFTER_OK. */
rf_status rf_answering_run(rf_answering *answering, rf_error *error);
/* Adds to `json` the fields that every form of output has. */
void rf_answering_put_answer(const rf_answering *answering, const rf_prompt *row, const rf_reply *reply,
                             json_t *json);
/* Returns RAFTER_INVALID if `path` is an input file of the run, which the output would
 * overwrite. */
rf_status rf_answering_spares_inputs(const rf_answering *answering, const rf_options *options,
                                     const char *path, rf_error *error);
/* Returns the number of written rows, with those of earlier runs. */
int64_t rf_answering_rows(const rf_answering *answering);
/* Reports the totals of a run, as a JSON object for `command` and as one line of text. */
void rf_answering_put_sum(const rf_answering *answering, const char *command, const char *output);
void rf_answering_say_sum(const rf_answering *answering);
/* Write the figures of drafts, to `json` (rf_answering_put_drafts) or into `text`
 * (rf_answering_say_drafts). */
void rf_answering_put_drafts(const rf_answering *answering, json_t *json);
void rf_answering_say_drafts(const rf_answering *answering, char text[240]);
/* Completes the file of rows. Then `out` is NULL. */
rf_status rf_answering_end_file(rf_answering *answering, rf_error *error);
/* Ends the record of the run. */
rf_status rf_answering_leave(rf_answering *answering, rf_error *error);
/* Frees everything that the fields own. Writes `status` and `error` to the journal. */
void rf_answering_close(rf_answering *answering, rf_status status, const rf_error *error);

/* Options for sampling and rows, which `generate` and `rollout` share. */
extern const rf_option RF_ANSWERING_OPTIONS[];

#endif
