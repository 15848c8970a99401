/* rafter.h - the public C API of rafter.
 *
 * Three opaque handles carry everything:
 *   rafter_job      the resolved options of one command (model, machine, batch, dtype, ...)
 *   rafter_plan     the laid-out program of a job: every op, tensor, offset, kernel and
 *     predicted time
 *   rafter_session  a plan bound to a backend: its one arena, its weights, its clock
 *
 * Conventions, for every function here:
 *   - every call returns a status and, when it is not RAFTER_OK, fills the caller's error (which
 *     may be NULL);
 *   - out-parameters are written on success only;
 *   - sizes are in bytes, times in seconds, counts in elements; token ids are int32_t in [0,
 *     vocab);
 *   - strings are UTF-8; a `char **` result is malloc'ed and belongs to the caller: give it to
 *     rafter_text_free();
 *   - nothing here exits, prints or changes global state; two sessions may live side by side in
 *     one process. */
#ifndef RAFTER_H
#define RAFTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* The numbers are the program's exit statuses. */
typedef enum rafter_status {
  RAFTER_OK = 0,
  RAFTER_FAILED = 1,        /* input, I/O or numbers: the work itself failed */
  RAFTER_INVALID = 2,       /* an option or argument is wrong */
  RAFTER_NO_FIT = 3,        /* the plan does not fit the memory it was given */
  RAFTER_INTERRUPTED = 130, /* stopped by a signal after saving */
} rafter_status;

/* What went wrong, in three lines a person can act on. Filled by the call that failed; the
 * caller owns the storage. */
typedef struct rafter_error {
  rafter_status status;
  char message[768]; /* WHAT (where: expected X, got Y) */
  char hint[512];    /* what to do; may be empty */
  char source[96];   /* file:line in rafter's source, for bug reports */
} rafter_error;

/* "rafter 0.1.0 (commit abc1234)"; static storage. */
const char *rafter_version(void);
/* Frees a text that a call below returned; NULL is fine. */
void rafter_text_free(char *text);

/* ---- jobs: the resolved options of one command
 *   --------------------------------------------------
 * `command` is one of those that `rafter --help` lists: plan, train, generate, calibrate, bench,
 * ... Every option of `rafter COMMAND --help` may be set by name, without its dashes: "batch",
 * "remat", "max-seconds". MODEL is the option "model". */
typedef struct rafter_job rafter_job;

/* A job with every option at its default. RAFTER_INVALID: unknown command (the message names the
 * nearest). */
rafter_status rafter_job_new(const char *command, rafter_job **job, rafter_error *error);
void rafter_job_free(rafter_job *job);
/* Sets one option from its text form ("16GiB", "4k", "bf16"). RAFTER_INVALID: unknown name, bad
 * value, out of range. */
rafter_status rafter_job_set(rafter_job *job, const char *name, const char *value, rafter_error *error);
/* Sets options from a command line without program and command: argv[0] is the first argument.
 * RAFTER_INVALID as above. */
rafter_status rafter_job_parse(rafter_job *job, int argc, char **argv, rafter_error *error);
/* The value of one option in its text form; "" when unset. RAFTER_INVALID: unknown name. */
rafter_status rafter_job_get(const rafter_job *job, const char *name, char **value, rafter_error *error);
/* All resolved options as one JSON object, the same that run.json records. */
rafter_status rafter_job_json(const rafter_job *job, char **json, rafter_error *error);
/* Help made from the options table. `command` NULL: the program. `form`: "text", "man" or
 * "completion" (bash). */
rafter_status rafter_help(const char *command, const char *form, char **text, rafter_error *error);

/* ---- plans: the program of a job, laid out and priced, without a device and without weights
 *   ---- */
typedef struct rafter_plan rafter_plan;

/* Plans a job of command plan, train, generate or bench. Allocates no tensor. A plan that is too
 * large is returned with fits = false, with the option "fit" and nothing fitting the smallest
 * one. RAFTER_INVALID: shapes or options that do not go together. */
rafter_status rafter_plan_new(const rafter_job *job, rafter_plan **plan, rafter_error *error);
void rafter_plan_free(rafter_plan *plan);
/* The plan as `rafter plan --json` prints it (docs/formats.md), or as the table it prints for
 * people. */
rafter_status rafter_plan_json(const rafter_plan *plan, char **json, rafter_error *error);
rafter_status rafter_plan_text(const rafter_plan *plan, char **text, rafter_error *error);
/* One number of that JSON by its JSON Pointer: "/memory/peak_bytes" (bytes), "/time/seconds"
 * (seconds per step), "/model/parameters". RAFTER_INVALID: no such number. */
rafter_status rafter_plan_number(const rafter_plan *plan, const char *pointer, double *value,
                                 rafter_error *error);

/* ---- training, step by step ------------------------------------------------------------------ */
typedef struct rafter_trainer rafter_trainer;

/* What one optimizer step did. Loss is the mean over the labels that count, in nats per token. */
typedef struct rafter_step {
  int64_t step;                      /* 1-based */
  int64_t tokens;                    /* read since step 1: all that stood in the rows, prompts included */
  double loss, accuracy;             /* accuracy: share of labels that were the most likely token */
  double lr, grad_norm;              /* grad_norm: global L2 norm before clipping */
  double seconds, predicted_seconds; /* of this step */
  double tokens_per_second;
  /* model FLOPs (causal, of the step's own tokens) / (seconds x the machine's f32 or bf16 peak) */
  double mfu;
  int64_t loss_tokens; /* those of `tokens` that the loss counted */
  double epoch;        /* how often the data was gone through; 0 for random data */
} rafter_step;

/* Plans the job, maps its arena, opens its data, sets the weights (initialiser, --weights-from
 * or --resume). RAFTER_NO_FIT before anything is allocated; RAFTER_FAILED: data, checkpoint,
 * memory. */
rafter_status rafter_trainer_open(const rafter_job *job, rafter_trainer **trainer, rafter_error *error);
/* Steps done so far, out of how many. */
void rafter_trainer_progress(const rafter_trainer *trainer, int64_t *done, int64_t *of);
/* One optimizer step over the next batch. Allocates nothing. RAFTER_FAILED: data, or a number
 * that is not finite (the message names the op). */
rafter_status rafter_trainer_step(rafter_trainer *trainer, rafter_step *step, rafter_error *error);
/* Mean loss (nats per token) over at most `rows` rows of the validation split. RAFTER_INVALID:
 * there is none. */
rafter_status rafter_trainer_validate(rafter_trainer *trainer, int64_t rows, double *loss,
                                      rafter_error *error);
/* Writes a checkpoint folder; complete only when it holds DONE. RAFTER_FAILED: I/O; the folder
 * is then not there. */
rafter_status rafter_trainer_save(rafter_trainer *trainer, const char *folder, rafter_error *error);
/* Bytes: arena (= the plan's peak), and resident memory outside it. */
rafter_status rafter_trainer_memory(const rafter_trainer *trainer, int64_t *arena_bytes,
                                    int64_t *outside_bytes, rafter_error *error);
/* The session's plan joined with what was measured, as JSON: memory and, per kind of op,
 * predicted and measured seconds. */
rafter_status rafter_trainer_report(const rafter_trainer *trainer, char **json, rafter_error *error);
void rafter_trainer_close(rafter_trainer *trainer);

/* ---- whole commands -------------------------------------------------------------------------- */

/* Where a command's output goes. Any function may be NULL. Texts are only valid during the call. */
typedef struct rafter_sink {
  void *self;
  void (*text)(void *self, const char *text); /* for people; ends in a newline where a line ends */
  void (*json)(void *self, const char *line); /* one JSON object, no newline */
  void (*bar)(void *self, const char *line);  /* a progress line that replaces the one before; "" ends it */
  /* becomes non-zero (from a signal handler): save, then return RAFTER_INTERRUPTED */
  const volatile int *stop;
  /* chat: asks for a line, shown behind `prompt`; malloc'ed, without its end; NULL: there is
   * none any more. chat ends an answer when *stop is set, and goes on: whoever sets it clears it
   * when the next line is asked for. */
  char *(*line)(void *self, const char *prompt);
  /* for people, beside the results: what was chosen for them; NULL: `text` gets it */
  void (*note)(void *self, const char *text);
} rafter_sink;

/* Runs a job's whole command, as the program does. Any status. */
rafter_status rafter_run(const rafter_job *job, const rafter_sink *sink, rafter_error *error);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
