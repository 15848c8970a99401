/* bench.h - declarations shared by the files of `rafter bench`. */
#ifndef RF_BENCH_H
#define RF_BENCH_H

#include "api/api.h"
#include "generate/generate.h"
#include "generate/score.h"
#include "run/calibrate.h"
#include "run/record.h"

enum {
  RF_BENCH_PEAKS = 5, /* number of kinds of arithmetic whose peak rate is measured */
  RF_BENCH_BURSTS = 512,
  RF_BENCH_REPS = 10000,
  RF_BENCH_FULL = 3 /* with fewer repetitions, less time is spent on the ceilings */
};

typedef struct rf_bursts {
  double rate[RF_BENCH_BURSTS];
  int count;
} rf_bursts;

/* One measurement of a test that measures --batch sequences. */
typedef struct rf_bench_point {
  char test[16];
  bool adapter; /* false: the base model */
  int64_t batch;
  double tokens, seconds, predicted_seconds; /* median values over the repetitions */
  double arena_bytes, planned_bytes;
  double resident_bytes; /* growth of the process's resident memory since the start of the test */
} rf_bench_point;
typedef struct rf_bench_points {
  rf_bench_point *at;
  int count;
} rf_bench_points;

/* The machine's highest rates (ceilings). The ceilings are sampled between the measurements of a
 * test, so that other running programs slow the ceilings and the test equally. */
typedef struct rf_ceilings {
  rf_bursts peak[RF_BENCH_PEAKS], read;
  rf_device *device; /* device of the test; --cpu may limit the device to a lower instruction set */
  rf_memory *memory;
  rf_dtype product;          /* dtype that the matrix products of the test use */
  int parts;                 /* 1 to RF_BENCH_FULL: how much time is spent on the ceilings */
  const char *sweep, *value; /* option and value of --sweep; NULL: no sweep */
  rf_bench_points points;
} rf_ceilings;

/* kind: p = prefill, t = decode, b = decode `tokens` answers at once, s = score, T = train. With
 * --batch sequences: R = rollout, F = forward pass, K = forward pass with the likeliest tokens. */
typedef struct rf_bench_test {
  char name[64];
  char kind;
  int64_t tokens, depth;
} rf_bench_test;

typedef struct rf_bench {
  const rafter_job *job;
  const rafter_sink *sink;
  const rf_bench_test *t;
  rf_ceilings *c;
  rf_settings settings; /* settings of the test's job */
  rf_record *record;    /* --trace */
  int reps;
  const rf_bench_point *point;   /* measurement in progress; NULL: the test does not depend on --batch */
  double seconds[RF_BENCH_REPS]; /* seconds of each repetition */
} rf_bench;

/* The work of a test. A quantity of work, divided by its ceiling, gives the shortest possible time.
 * A field with the value 0 is not used. `causal`: FLOPs without masked attention scores. */
typedef struct rf_bench_limits {
  double flops, causal, bytes;
  const char *counted; /* formula of the FLOPs, for the output */
} rf_bench_limits;

/* Measure a ceiling `count` times. With few repetitions, `count` is reduced to a part. */
void rf_bench_sample_flops(rf_ceilings *c, int count);
void rf_bench_sample_read(rf_ceilings *c, int count);
/* Sets the dtype of the matrix products: int8 with --compute fast, bf16 on tiles, else f32. */
void rf_bench_choose_product(rf_ceilings *c, const rf_plan *plan);
/* Prints the results of a test. Also returns the results for the history; the caller owns the
 * results. The shortest possible time is the longer of compute time and memory time. */
json_t *rf_bench_report(rf_bench *b, double tokens, double predicted, const rf_bench_limits *l);
/* With --trace, writes the trace of a test. Without --trace, adds the test to the history. Takes
 * ownership of `results`. */
rf_status rf_bench_leave(const rf_bench *b, const rf_generator *generator, const rf_plan *plan,
                         json_t *results, rf_error *error);
/* Totals of a scoring test, which rf_bench_leave_scores takes: passes, rows and seconds. */
typedef struct rf_bench_scores {
  int64_t passes, rows;
  double seconds;
} rf_bench_scores;
rf_status rf_bench_leave_scores(const rf_bench *b, const rf_scorer *scorer, const rf_bench_scores *all,
                                json_t *results, rf_error *error);
rf_status rf_bench_check_positions(const rf_settings *s, const rf_bench_test *t, int64_t needed,
                                   rf_error *error);
/* Returns the token id at position `i` of a text for tests. */
int32_t rf_bench_id(int64_t i, int64_t vocab);
double rf_bench_weight_bytes(const rf_plan *plan);
/* Returns the FLOPs of a prompt: 2 P per token for the P parameters of the blocks, and the head for
 * the last token. */
double rf_bench_prompt_flops(const rf_params *params, int64_t tokens);

/* Runs a test with --batch sequences: first with the base model, then with the adapter, if one is
 * given. If a batch of a sweep does not fit in memory, prints a note and continues. */
rf_status rf_bench_sized(rf_bench *b, rf_error *error);
/* Draws elapsed time, seconds per token and memory over the batch. Each plot has measured and
 * planned values. */
rf_status rf_bench_plot(const char *path, const char *model, const rf_bench_points *points, rf_error *error);

#endif
