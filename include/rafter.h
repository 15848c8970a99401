/* rafter.h - the public C API of rafter.
 *
 * Six opaque handles:
 *   rafter_job        the options of one command (model, machine, batch, dtype, ...)
 *   rafter_plan       a job laid out and priced: every op, tensor, offset, kernel, predicted time
 *   rafter_trainer    a training run, step by step
 *   rafter_generator  answers to many requests at once, step by step
 *   rafter_scorer     log-probabilities of given texts
 *   rafter_tokenizer  text to token ids and back, and conversations to ids
 *
 * Errors. A call that can fail returns a status and, unless it is RAFTER_OK, fills the caller's
 * error (which may be NULL). Out-parameters are written on success only. Out of memory is
 * RAFTER_FAILED for arenas, caches, queues and files. A failed allocation of the few KiB that hold
 * options or a chat template ends the process.
 *
 * Ownership. A handle is freed by its _free or _close, which accept NULL. A `char **` result
 * belongs to the caller and goes to rafter_text_free(), an `int32_t **` to rafter_ids_free().
 *
 * Units. Sizes are in bytes, times in seconds, counts in elements; token ids are in [0, vocab).
 * Strings are UTF-8.
 *
 * Sized structs. A struct whose first field is `size` grows at its end in later versions: set it to
 * sizeof of the struct, and every field that you do not use to zero, which means unset. A size of 0
 * is RAFTER_INVALID.
 *
 * Threads. One thread at a time may use a handle; different handles may be used from different
 * threads at the same time. A rafter_tokenizer never changes: any number of threads may use one.
 * Callers hold the locks. The option `threads` says with how many threads a call computes. At most
 * one job with the option `trace` may run in a process at a time.
 *
 * Side effects. Nothing here exits, prints, or handles signals. Files are written where an option
 * says so (out, output, trace). Training without the option out writes the shards of a text, and
 * as a whole command its run, to runs/. For the history of runs see rafter_sink.history. */
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

#define RAFTER_VERSION_MAJOR 0
#define RAFTER_VERSION_MINOR 1
#define RAFTER_VERSION_PATCH 0
#define RAFTER_VERSION "0.1.0" /* of this header; rafter_version() is of the library */

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
/* Frees a list of ids that a call below returned; NULL is fine. */
void rafter_ids_free(int32_t *ids);

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
  size_t size;
  int64_t step;                      /* 1-based */
  int64_t tokens;                    /* read since step 1, prompts included */
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
/* The trainer's plan joined with what was measured, as JSON: memory and, per kind of op,
 * predicted and measured seconds. */
rafter_status rafter_trainer_report(const rafter_trainer *trainer, char **json, rafter_error *error);
void rafter_trainer_close(rafter_trainer *trainer);

/* ---- generation, step by step ---------------------------------------------------------------- */
typedef struct rafter_generator rafter_generator;
typedef struct rafter_tokenizer rafter_tokenizer;

/* Opens a model to answer requests, from a job of command "generate": the option batch is how many
 * answers run at once (unset: 8), seq the context in tokens (unset: 4096 or what the model has).
 * Options of prompts and sampling are not read. RAFTER_NO_FIT before anything is allocated;
 * RAFTER_FAILED: files, memory. */
rafter_status rafter_generator_open(const rafter_job *job, rafter_generator **generator, rafter_error *error);
void rafter_generator_close(rafter_generator *generator);
/* Its tokenizer, which lives as long as the generator; NULL when the model has none. */
const rafter_tokenizer *rafter_generator_tokenizer(const rafter_generator *generator);

typedef struct rafter_logit_bias {
  int32_t id;
  float bias; /* added to the logit; -INFINITY bars the token */
} rafter_logit_bias;

/* One prompt and how to answer it. Everything is copied. */
typedef struct rafter_request {
  size_t size;
  const int32_t *tokens; /* (count): the whole prompt */
  int64_t count;
  int64_t max_tokens; /* 0: as many as the context has room for */
  int32_t samples;    /* answers, each with a seed of its own; 0: 1 */
  int32_t top_k;      /* 0: all */
  float temperature;  /* 0: greedy */
  float top_p;        /* in (0, 1]; 0: unset */
  float min_p;        /* 0: unset */
  float repetition_penalty, frequency_penalty, presence_penalty; /* 0: none */
  uint64_t seed;
  int64_t min_tokens;            /* before these no end-of-text token is chosen */
  const rafter_logit_bias *bias; /* (bias_count) */
  int64_t bias_count;
  const char *const *stop; /* (stop_count): texts that end an answer, before which its text ends */
  int32_t stop_count;
  int32_t top_logprobs; /* alternatives with each token, 0 to 32 */
  bool ignore_eos;      /* bar the model's end-of-text tokens; otherwise they end an answer */
  bool keep;            /* keep the answer cached for the next turn of its conversation */
  void *owner;          /* comes back with every event */
} rafter_request;

typedef enum rafter_finish {
  RAFTER_FINISH_NONE = 0,
  RAFTER_FINISH_STOP = 1,      /* an end-of-text token or a stop text */
  RAFTER_FINISH_LENGTH = 2,    /* max_tokens, or the end of the context */
  RAFTER_FINISH_ERROR = 3,     /* status and message say why */
  RAFTER_FINISH_CANCELLED = 4, /* rafter_generator_cancel */
} rafter_finish;

/* One token of one answer, or its end. Every answer has exactly one event whose finish is set: its
 * last. Pointers are valid until the next step. */
typedef struct rafter_event {
  size_t size;
  int64_t request; /* from rafter_generator_submit */
  int32_t sample;
  int32_t token; /* -1: an end without a token */
  int64_t index; /* of the token in its answer, from 0; -1: no token */
  void *owner;
  const char *text; /* (text_bytes), then a NUL: what can be shown since the event before: whole
                       characters, nothing that may belong to a stop text. "" without a tokenizer */
  size_t text_bytes;
  float logprob;             /* natural log of the token's probability under the whole softmax */
  int32_t top;               /* alternatives, the likeliest first */
  const int32_t *top_ids;    /* (top) */
  const float *top_logprobs; /* (top) */
  rafter_finish finish;      /* NONE: the answer continues */
  rafter_status status;      /* RAFTER_FINISH_ERROR; otherwise RAFTER_OK */
  const char *message;       /* RAFTER_FINISH_ERROR; otherwise "" */
} rafter_event;

/* Queues a request; requests start in order. RAFTER_INVALID: an empty prompt or one longer than the
 * context, a token or an option out of range. */
rafter_status rafter_generator_submit(rafter_generator *generator, const rafter_request *request, int64_t *id,
                                      rafter_error *error);
/* Whether an answer runs or waits, or an event is due: step again. */
bool rafter_generator_busy(const rafter_generator *generator);
/* One forward pass: a token of every running answer, then chunks of prompts. An error of one
 * request is an event of that request; a step fails only when the machine does. */
rafter_status rafter_generator_step(rafter_generator *generator, rafter_error *error);
/* The next event of the last step; false: there is none left. */
bool rafter_generator_next(rafter_generator *generator, rafter_event *event);
/* Ends one answer of a request, or all (sample -1), that has not ended: its last event comes with
 * the next steps. */
void rafter_generator_cancel(rafter_generator *generator, int64_t request, int32_t sample);
/* Bytes of its arena: the plan's peak. */
int64_t rafter_generator_arena_bytes(const rafter_generator *generator);

/* ---- scoring --------------------------------------------------------------------------------- */
typedef struct rafter_scorer rafter_scorer;

/* One text and where its numbers go. */
typedef struct rafter_score {
  size_t size;
  const int32_t *tokens; /* (count) */
  int64_t count;         /* 1 to the option seq */
  float *logprobs;       /* (count): of each token given those before it; [0] is 0 */
  int32_t *top_ids;      /* (count, top) or NULL: the likeliest at each position; row 0 is -1 */
  float *top_logprobs;   /* (count, top) or NULL */
} rafter_score;

/* Opens a model to score texts, from a job of command "score": the option seq is the longest text
 * (unset: 1024 or what the model has), batch times seq the tokens of one call (batch unset: 1), top
 * the alternatives. RAFTER_NO_FIT, RAFTER_FAILED as above. */
rafter_status rafter_scorer_open(const rafter_job *job, rafter_scorer **scorer, rafter_error *error);
void rafter_scorer_close(rafter_scorer *scorer);
/* Tokens that one call takes. */
int64_t rafter_scorer_tokens(const rafter_scorer *scorer);
/* Scores texts in one forward pass; none changes another's bits. All have the size of the first.
 * RAFTER_INVALID: they have too many tokens, or a token is out of range. */
rafter_status rafter_scorer_score(rafter_scorer *scorer, const rafter_score *text, int32_t count,
                                  rafter_error *error);

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The tokenizer of a job's model, from a job of any command that has a model. The option template,
 * where the command has it, replaces the model's chat template. */
rafter_status rafter_tokenizer_open(const rafter_job *job, rafter_tokenizer **tokenizer, rafter_error *error);
void rafter_tokenizer_close(rafter_tokenizer *tokenizer);
/* Ids from 0 to this number, less one, have a text. */
int64_t rafter_tokenizer_vocab(const rafter_tokenizer *tokenizer);
/* Ids of a text. `special`: with the tokenizer's own begin and end tokens, and with special tokens
 * that the text spells out; otherwise all of it is plain text. */
rafter_status rafter_tokenizer_encode(const rafter_tokenizer *tokenizer, const char *text, size_t bytes,
                                      bool special, int32_t **ids, int64_t *count, rafter_error *error);
/* Text of ids, with a NUL after it; special tokens give nothing. RAFTER_INVALID: out of range. */
rafter_status rafter_tokenizer_decode(const rafter_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                      char **text, size_t *bytes, rafter_error *error);
/* Ids of a conversation in the model's chat template. `messages`: a JSON list of {"role",
 * "content"}. `opens_answer`: end with the opening of the assistant's turn. RAFTER_FAILED: the
 * model has no template. */
rafter_status rafter_tokenizer_chat(const rafter_tokenizer *tokenizer, const char *messages,
                                    bool opens_answer, int32_t **ids, int64_t *count, rafter_error *error);

/* ---- whole commands -------------------------------------------------------------------------- */

/* Where a command's output goes. Any function may be NULL. Texts are only valid during the call. */
typedef struct rafter_sink {
  size_t size;
  void *self;
  void (*text)(void *self, const char *text); /* for people; ends in a newline where a line ends */
  void (*json)(void *self, const char *line); /* one JSON object, no newline */
  void (*bar)(void *self, const char *line);  /* a progress line that replaces the one before; "" ends it */
  /* becomes non-zero (from a signal handler): save, then return RAFTER_INTERRUPTED */
  const volatile int *stop;
  /* chat: asks for a line, shown after `prompt`; malloc'ed, without its end; NULL: there is
   * none any more. chat ends an answer when *stop is set, and goes on: whoever sets it clears it
   * when the next line is asked for. */
  char *(*line)(void *self, const char *prompt);
  /* for people, next to the results: settings that were chosen; NULL: `text` gets it */
  void (*note)(void *self, const char *text);
  /* keep the history of runs, as the program does: in $RAFTER_RUNS, or in `runs` of the working
   * directory. Without it only where RAFTER_RUNS is set and not empty */
  bool history;
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
