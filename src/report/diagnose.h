/* diagnose.h - the limits of a run and the gains of changes, as numbers. rf_diagnose reads an entry
 * of a report model into the structs below. summary.c writes these structs as JSON, and
 * summary_words.c writes them as sentences. Seconds are per step or forward pass, unless a comment
 * says otherwise. The entry owns all texts of the structs. Private to src/report. */
#ifndef RF_REPORT_DIAGNOSE_H
#define RF_REPORT_DIAGNOSE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { RF_SUMS = 32, RF_LOSSES = 10, RF_CHANGES = 64, RF_OUTLIER = 10 };
/* Names of bounds that only a whole run can have, but no single op. */
#define RF_BOUND_OTHERS "other programs"
#define RF_BOUND_STOPPED "stopped"
#define RF_BOUND_BUBBLE "pipeline bubble"
/* A measured time is reported as different if it differs from the prediction by more than the
 * factor RF_MISSED. A gain is reported if it exceeds the fraction RF_WORTH of the step. */
static const double RF_MISSED = 1.1, RF_WORTH = 0.02;
/* If a forward pass takes longer than RF_FAR times its prediction, slow kernels are not the only
 * cause. */
static const double RF_FAR = 2;

/* Sums over all ops of a kind, a phase, a bound or a layer. */
typedef struct rf_sum {
  const char *name; /* NULL if the sum is over a layer */
  int layer;        /* -1: the sum is over the ops outside all layers */
  double seconds, fastest, predicted, limit, flops, bytes, calls;
} rf_sum;
typedef struct rf_sums {
  rf_sum at[RF_SUMS];
  int count;
} rf_sums;

/* An op whose measured time is much longer than its limit. */
typedef struct rf_loss {
  const char *name, *kernel;
  int id;
  double seconds, predicted, limit;
} rf_loss;

/* Tokens per second. A plan that was not run has only `predicted`, and sometimes `limit`. */
typedef struct rf_rate {
  bool known, measured, limited; /* limited: `limit` is known */
  bool full;                     /* true if every step had as many rows as planned */
  double tokens, predicted, limit, mfu;
} rf_rate;

/* States whether the fastest calls show the time of a run without other programs. HELD: the fastest
 * calls do not show this time, because they were delayed too. MIXED: the fastest calls do not show
 * this time, because the calls had different numbers of rows. */
typedef enum rf_alone { RF_ALONE_UNKNOWN, RF_ALONE_KNOWN, RF_ALONE_HELD, RF_ALONE_MIXED } rf_alone;

typedef struct rf_diagnosed_pass {
  const char *name;
  double count; /* number of measured steps or forward passes; 0: the pass was only planned */
  double seconds, inside, gaps, predicted, limit, fastest, flops, bytes;
  rf_sums bounds, phases, kinds; /* slowest first */
  rf_sum bound_kind;             /* slowest kind of op whose bound is bounds.at[0]; its name may be NULL */
  rf_sum *layer;                 /* layers in order; the last entry has the ops outside all layers */
  int layers;                    /* number of entries of `layer` */
  rf_loss loss[RF_LOSSES];       /* largest first */
  int losses;
  rf_rate rate;
  bool guessed;       /* true: the limits come from a detected machine, whose ceilings are guesses */
  bool trains, alike; /* alike: all forward passes have the same number of rows (not so in prefill) */
  bool compiled;      /* true: the pass ran as one program, whose ops were not timed */
  rf_alone alone;
} rf_diagnosed_pass;

/* Fraction of all threads' time in the recorded steps of a trace, for one cause. */
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
  bool device; /* true: a device executed the ops, so the trace has no threads of the host */
  int steps;
  double work, phases; /* fractions of all time. work: inside ops. phases: outside ops. */
  rf_shares gaps;
  /* time between two recorded steps, in seconds and as fractions of all time; 0: unknown */
  double between_seconds, between_part, between_unexplained;
  rf_shares between_phases;
} rf_diagnosed_threads;

/* A change of one option. The predicted gain of the change is corrected by this run's measured
 * efficiency. */
typedef struct rf_change {
  const char *change;
  double seconds, now_seconds, gain, predicted, peak_bytes, more_bytes;
  bool approximate, exact, fits;
} rf_change;

/* Training steps that took more than RF_OUTLIER times the median. part: their fraction of all
 * time. */
typedef struct rf_outliers {
  double count, steps, part, median;
} rf_outliers;

/* The last step of a run without report.json. If the run has a report, `seconds` is 0. */
typedef struct rf_last_step {
  double step, seconds, predicted, tokens_per_second;
} rf_last_step;

typedef struct rf_diagnosis {
  const json_t *entry, *plan;
  bool measured;
  rf_diagnosed_pass *pass;
  int passes, most; /* most: the index in `pass` of the pass that the summary describes; -1: none */
  rf_diagnosed_threads threads;
  double others; /* result of rf_report_others_part */
  /* true: threads waited for a core for more than half of the run, so its times blame no kernel */
  bool busy;
  rf_outliers outliers;
  rf_last_step last;
  const char *bound; /* name of the bound; NULL: the bound is unknown */
  /* fraction of the threads' time that the gap takes, if the bound is a gap; otherwise 0 */
  double gap_part;
  bool taken;     /* true: other programs took so much time that they are the bound */
  bool stood;     /* true: slow steps took so much time that mean times are useless */
  bool useless;   /* true: the measured times do not support advice */
  bool by_others; /* true: other programs or other threads are the bound */
  /* true: threads waited for each other or for a core, so more threads would gain nothing */
  bool crowded;
  rf_change change[RF_CHANGES]; /* largest gain first */
  int changes;
  const rf_change *best; /* NULL: none */
} rf_diagnosis;

/* The result is false only if memory runs out. Free with rf_diagnosis_free. */
bool rf_diagnose(const json_t *entry, rf_diagnosis *diagnosis);
void rf_diagnosis_free(rf_diagnosis *diagnosis);

/* diagnose_pass.c: sums over a forward pass or step. If `measured` is NULL, times are predicted
 * times. */
bool rf_diagnose_pass(const json_t *plan, const json_t *measured, rf_diagnosed_pass *pass);
/* Says why a measured time is below its limit: "too low" if the limit is a guess, or "in cache".
 * The result is NULL if the time is not below its limit. The result is also NULL for products,
 * because a product below its limit means an error of calibration. */
const char *rf_diagnosed_beaten(const rf_diagnosed_pass *pass, const rf_sum *sum);
const rf_sum *rf_sum_named(const rf_sums *sums, const char *name);
/* diagnose_threads.c */
bool rf_report_was_busy(const json_t *entry); /* see rf_diagnosis.busy */
rf_diagnosed_threads rf_diagnose_threads(const json_t *entry);
/* diagnose_change.c: fills `change` and `changes`. With `quiet`, delays by other programs are left
 * out. */
void rf_diagnose_changes(rf_diagnosis *diagnosis, bool quiet);

/* summary_words.c: the texts are malloc'ed. If nothing is known, rf_words_sentence returns "". */
char *rf_words_sentence(const rf_diagnosis *diagnosis);
char *rf_words_threads(const rf_diagnosed_threads *threads);
/* Appends the reasons why measured and predicted times differ. */
void rf_words_notes(const rf_diagnosis *diagnosis, json_t *notes);

#endif
