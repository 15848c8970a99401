/* diagnose.h - what limits a run and what changes would gain, as numbers. An entry of a report
 * model is read into these structs once; summary.c writes them as JSON and summary_words.c says
 * them in sentences. Seconds are of one step or forward pass, unless a comment says otherwise.
 * Texts belong to the entry. Private to src/report. */
#ifndef RF_REPORT_DIAGNOSE_H
#define RF_REPORT_DIAGNOSE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { RF_SUMS = 32, RF_LOSSES = 10, RF_CHANGES = 64, RF_OUTLIER = 10 };
/* Names of bounds that no op has. */
#define RF_BOUND_OTHERS "other programs"
#define RF_BOUND_STOPPED "stopped"
#define RF_BOUND_BUBBLE "pipeline bubble"
/* A difference is worth a sentence from this ratio to the prediction on, and from this share of
 * the step on. */
static const double RF_MISSED = 1.1, RF_WORTH = 0.02;
/* Something else than its kernels holds up a forward pass from this ratio to the prediction on. */
static const double RF_FAR = 2;

/* Ops of one kind, phase, bound or layer. */
typedef struct rf_sum {
  const char *name; /* NULL of a layer */
  int layer;        /* -1: outside of layers */
  double seconds, fastest, predicted, limit, flops, bytes, calls;
} rf_sum;
typedef struct rf_sums {
  rf_sum at[RF_SUMS];
  int count;
} rf_sums;

/* Where an op's measured time most exceeds its limit. */
typedef struct rf_loss {
  const char *name, *kernel;
  int id;
  double seconds, predicted, limit;
} rf_loss;

/* Tokens per second; of a plan that has not run, only what is predicted. */
typedef struct rf_rate {
  bool known, measured, limited; /* limited: `limit` is known */
  bool full;                     /* every row was used, as planned */
  double tokens, predicted, limit, mfu;
} rf_rate;

/* Fastest calls say what a run would take alone; not if all were held up, or if rows varied. */
typedef enum rf_alone { RF_ALONE_UNKNOWN, RF_ALONE_KNOWN, RF_ALONE_HELD, RF_ALONE_MIXED } rf_alone;

typedef struct rf_diagnosed_walk {
  const char *name;
  double count; /* steps or forward passes; 0: planned, not measured */
  double seconds, inside, gaps, predicted, limit, fastest, flops, bytes;
  rf_sums bounds, phases, kinds; /* slowest first */
  rf_sum bound_kind;             /* the slowest kind of op that has the first bound; no name: none */
  rf_sum *layer;                 /* in order, then what is outside of layers; layers 0: none */
  int layers;
  rf_loss loss[RF_LOSSES]; /* largest first */
  int losses;
  rf_rate rate;
  bool trains, alike; /* alike: its calls are of one size (not prefill) */
  rf_alone alone;
} rf_diagnosed_walk;

/* Shares of all threads' time in the recorded steps of a trace. */
typedef struct rf_share {
  const char *name;
  double part;
} rf_share;
typedef struct rf_shares {
  rf_share at[RF_SUMS];
  int count;
} rf_shares;
typedef struct rf_diagnosed_threads {
  bool traced;
  int steps;
  double work, phases;
  rf_shares gaps;
  /* between recorded steps; part 0: nothing is recorded there */
  double between_seconds, between_part, between_unexplained;
  rf_shares between_phases;
} rf_diagnosed_threads;

/* One change of an option, priced at this run's own efficiency. */
typedef struct rf_change {
  const char *change;
  double seconds, now_seconds, gain, predicted, peak_bytes, more_bytes;
  bool approximate, exact, fits;
} rf_change;

/* Training steps that took more than RF_OUTLIER times the median, and their part of all time. */
typedef struct rf_outliers {
  double count, steps, part, median;
} rf_outliers;

/* The last step of a run that has no report; seconds 0: it has one. */
typedef struct rf_last_step {
  double step, seconds, predicted, tokens_per_second;
} rf_last_step;

typedef struct rf_diagnosis {
  const json_t *entry, *plan;
  bool measured;
  rf_diagnosed_walk *walk;
  int walks, most; /* most: the one that the sentence is about; -1: none */
  rf_diagnosed_threads threads;
  double others; /* see rf_report_others_part */
  rf_outliers outliers;
  rf_last_step last;
  const char *bound;            /* in a word; NULL: nothing has a bound */
  double gap_part;              /* of a bound that is a gap of the threads; 0: it is not */
  bool taken;                   /* the bound is other programs, by their part of the time */
  bool stood;                   /* outliers took so much of the time that means are useless */
  bool useless;                 /* the measured times do not support advice */
  bool by_others;               /* the bound is other programs or other threads */
  bool crowded;                 /* threads waited: more of them gain nothing */
  rf_change change[RF_CHANGES]; /* largest gain first */
  int changes;
  const rf_change *best; /* NULL: none */
} rf_diagnosis;

/* Returns false only without memory. Free with rf_diagnosis_free. */
bool rf_diagnose(const json_t *entry, rf_diagnosis *diagnosis);
void rf_diagnosis_free(rf_diagnosis *diagnosis);

/* diagnose_walk.c: `measured` NULL: as planned. */
bool rf_diagnose_walk(const json_t *plan, const json_t *measured, rf_diagnosed_walk *walk);
const rf_sum *rf_sum_named(const rf_sums *sums, const char *name);
/* diagnose_threads.c */
rf_diagnosed_threads rf_diagnose_threads(const json_t *entry);
/* diagnose_change.c: fills change and changes; `quiet`: as the run would be without others. */
void rf_diagnose_changes(rf_diagnosis *diagnosis, bool quiet);

/* summary_words.c: texts are malloc'ed. The sentence; "" if nothing is known. */
char *rf_words_sentence(const rf_diagnosis *diagnosis);
char *rf_words_threads(const rf_diagnosed_threads *threads);
/* Appends why measured and predicted times differ. */
void rf_words_notes(const rf_diagnosis *diagnosis, json_t *notes);

#endif
