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
  rf_out_file *out; /* NULL: rows go to the sink */
  rf_journal journal;
  rf_record *record; /* --trace */
  /* json: rows of the sink are JSON. streams: text goes to the sink while it grows. echo: rows
   * begin with the prompt. flushes: each row is written to `out` when its step ends. appends: rows
   * stay in `out` even if the run fails. */
  bool json, streams, echo, flushes, appends;
  bool helps;            /* true on ranks other than 0, which write no rows */
  int64_t written;       /* index of the prompt whose answers are written next */
  int sample;            /* the sample of this prompt that is written next */
  int64_t answers, done; /* number of all answers, and of those that have ended, also in earlier runs */
  double began, limit;   /* --max-seconds: the run ends `limit` after `began`; 0: no limit */
  bool time_is_up;
  double start, first_seconds, seconds; /* seconds of the forward passes, from their start */
  double process_seconds;               /* from program start to the first token */
  double longest;                       /* seconds of the longest step */
  double said, limit_fraction;          /* time and value of the last fraction of the machine's limit */
  rf_status failed;                     /* an error of writing after a step, in `why` */
  rf_error why;
} rf_answering;

/* Queues the prompts whose answers are not all written. Answers before (written, sample) are not
 * computed. */
rf_status rf_answering_submit(rf_answering *answering, rf_error *error);
/* Runs until all answers have ended. RAFTER_INTERRUPTED: a signal ended the run. If the time is up,
 * sets time_is_up and returns RAFTER_OK. */
rf_status rf_answering_run(rf_answering *answering, rf_error *error);
/* Adds the fields that each form of output has to `json`. */
void rf_answering_put_answer(const rf_answering *answering, const rf_prompt *row, const rf_reply *reply,
                             json_t *json);
/* RAFTER_INVALID: `path` is a file that the run reads, and would lose its content. */
rf_status rf_answering_spares_inputs(const rf_answering *answering, const rf_options *options,
                                     const char *path, rf_error *error);
/* The number of answers whose rows are written, in earlier runs too. */
int64_t rf_answering_rows(const rf_answering *answering);
/* Reports the totals of a run, as a JSON object for `command` and as one line of text. */
void rf_answering_put_sum(const rf_answering *answering, const char *command, const char *output);
void rf_answering_say_sum(const rf_answering *answering);
/* Adds the figures of drafts to `json`; prints them into `text`. */
void rf_answering_put_drafts(const rf_answering *answering, json_t *json);
void rf_answering_say_drafts(const rf_answering *answering, char text[240]);
/* Completes the file of rows. Then `out` is NULL. */
rf_status rf_answering_end_file(rf_answering *answering, rf_error *error);
/* Ends the record of the run. */
rf_status rf_answering_leave(rf_answering *answering, rf_error *error);
/* Frees everything that the fields own. `status` and `error` go to the journal. */
void rf_answering_close(rf_answering *answering, rf_status status, const rf_error *error);

/* The options of `generate` and `rollout` for sampling and rows. */
extern const rf_option RF_ANSWERING_OPTIONS[];

#endif
