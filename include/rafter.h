/* rafter.h - the public C API of rafter.
 *
 * There are six opaque handles.
 *   `rafter_job`: the options of one command (model, machine, batch, dtype, ...).
 *   `rafter_plan`: the plan of a job: every op, tensor, offset, kernel and predicted time.
 *   `rafter_trainer`: a training run, step by step.
 *   `rafter_generator`: answers to many requests at once, step by step.
 *   `rafter_scorer`: log-probabilities of given texts.
 *   `rafter_tokenizer`: converts text to token ids and back, and conversations to ids.
 *
 * Errors. A call that can fail returns a status. If the status is not RAFTER_OK, the call fills the
 * caller's error (which may be NULL). A call writes its out-parameters only on success. A call that
 * cannot allocate an arena, a cache, a queue or a file buffer returns RAFTER_FAILED. If a small
 * object cannot be allocated (an option, a graph, a plan, a template), the library prints one line
 * to stderr and aborts the process.
 *
 * Ownership. The caller frees a handle with its function _free or _close, which accepts NULL. The
 * caller owns each text that is returned through a `char **` and frees it with rafter_text_free().
 * The caller frees ids that are returned through an `int32_t **` with rafter_ids_free().
 *
 * Units. Sizes are in bytes, times in seconds, counts in elements. Token ids are in [0, vocab).
 * Strings are UTF-8.
 *
 * Sized structs. Later versions may add fields at the end of a struct whose first field is `size`.
 * Set `size` to sizeof of the struct. Set every field that you do not use to zero, which means
 * unset. If `size` is 0, the call returns RAFTER_INVALID.
 *
 * Threads. One thread at a time may use a handle. Different threads may use different handles at
 * the same time. Any number of threads may use one rafter_tokenizer, because it never changes. The
 * caller does all locking. The option `threads` is the number of threads that a call computes with.
 * Only one job with the option `trace` may run in a process at a time.
 *
 * Side effects. Apart from the abort above, the library never exits, prints or handles signals. The
 * library writes files to the paths of the options out, output and trace. Training makes token
 * shards from text files. If the option out is not set, training writes these shards to runs/, and
 * rafter_run() writes the run's folder to runs/. The field rafter_sink.history says when a command
 * writes the history of runs. */
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
#define RAFTER_VERSION "0.1.0" /* version of this header; rafter_version() returns the library's */

/* The result of a call; the numbers are also the exit statuses of the program `rafter`. */
typedef enum rafter_status {
  RAFTER_OK = 0,
  RAFTER_FAILED = 1,        /* the work failed: bad input, an I/O error or a number that is not finite */
  RAFTER_INVALID = 2,       /* an option or argument is wrong */
  RAFTER_NO_FIT = 3,        /* the plan needs more memory than the job may use */
  RAFTER_INTERRUPTED = 130, /* stopped by a signal after saving */
} rafter_status;

/* The error of a failed call, with advice. The caller owns the struct. */
typedef struct rafter_error {
  rafter_status status;
  char message[768]; /* what failed, and where: "WHAT (WHERE: expected X, got Y)" */
  char hint[512];    /* advice; may be empty */
  char source[96];   /* file:line in rafter's source, for bug reports */
} rafter_error;

/* Returns "rafter 0.1.0 (commit abc1234)" in static storage. */
const char *rafter_version(void);
/* Frees a text that a function of this header returned. `text` may be NULL. */
void rafter_text_free(char *text);
/* Frees a list of ids that a function of this header returned. `ids` may be NULL. */
void rafter_ids_free(int32_t *ids);

/* ---- jobs: the resolved options of one command ----------------------------------------------- */
/* `command` is a command that `rafter --help` lists, such as plan, train or generate. Options have
 * the names that `rafter COMMAND --help-all` lists, without dashes: "batch", "remat",
 * "max-seconds". The argument MODEL of a command is the option "model". */
typedef struct rafter_job rafter_job;

/* Makes a job, in which every option has its default value. RAFTER_INVALID: unknown command. */
rafter_status rafter_job_new(const char *command, rafter_job **job, rafter_error *error);
void rafter_job_free(rafter_job *job);
/* Sets one option from its text form ("16GiB", "4k", "bf16"). RAFTER_INVALID: the name is unknown,
 * or the value is wrong or out of range. */
rafter_status rafter_job_set(rafter_job *job, const char *name, const char *value, rafter_error *error);
/* Sets options from the arguments of a command line. argv[0] is the first argument after the
 * command. RAFTER_INVALID: the same errors as rafter_job_set. */
rafter_status rafter_job_parse(rafter_job *job, int argc, char **argv, rafter_error *error);
/* Gets the text of one option, or "" if the option is unset. RAFTER_INVALID: unknown name. */
rafter_status rafter_job_get(const rafter_job *job, const char *name, char **value, rafter_error *error);
/* Gets all resolved options as one JSON object, in the form of run.json. */
rafter_status rafter_job_json(const rafter_job *job, char **json, rafter_error *error);
/* Gets the help of a command, or of the program if `command` is NULL. `form` is "text", "all" (with
 * all options), "man", "completion" (for bash), "completion:zsh" or "completion:fish". "text:80"
 * sets the width in columns. */
rafter_status rafter_help(const char *command, const char *form, char **text, rafter_error *error);

/* ---- plans: memory and time of a job, without a device and without weights ------------------- */
typedef struct rafter_plan rafter_plan;

/* Makes a plan for a job of command plan, train, generate or bench. Allocates no tensor. If the
 * plan does not fit the memory, the call still returns the plan, with fits = false. With the option
 * "fit", the call returns the smallest plan if no plan fits. RAFTER_INVALID: shapes or options that
 * cannot be combined. */
rafter_status rafter_plan_new(const rafter_job *job, rafter_plan **plan, rafter_error *error);
void rafter_plan_free(rafter_plan *plan);
/* Gets the plan as the JSON of `rafter plan --json` (docs/formats.md), or as text. */
rafter_status rafter_plan_json(const rafter_plan *plan, char **json, rafter_error *error);
rafter_status rafter_plan_text(const rafter_plan *plan, char **text, rafter_error *error);
/* Gets one number of the plan's JSON. `pointer` is a JSON Pointer: "/memory/peak_bytes" (bytes),
 * "/time/seconds" (seconds per step), "/model/parameters". RAFTER_INVALID: no such number. */
rafter_status rafter_plan_number(const rafter_plan *plan, const char *pointer, double *value,
                                 rafter_error *error);

/* ---- training, step by step ------------------------------------------------------------------ */
typedef struct rafter_trainer rafter_trainer;

/* Results of one optimizer step. `loss` is the mean over all labels in the loss, in nats per token.
 * With --loss dpo, ipo or simpo, `loss` is the mean over pairs, and `accuracy` is the fraction of
 * pairs whose chosen answer has the higher reward. */
typedef struct rafter_step {
  size_t size;
  int64_t step;                      /* number of the step, from 1 */
  int64_t tokens;                    /* tokens read since step 1, including prompts */
  double loss, accuracy;             /* accuracy: fraction of labels that were the most likely token */
  double lr, grad_norm;              /* grad_norm: global L2 norm before clipping */
  double seconds, predicted_seconds; /* measured and predicted time of this step */
  double tokens_per_second;
  /* MFU: the step's causal model FLOPs / (seconds x the machine's f32 or bf16 peak) */
  double mfu;
  int64_t loss_tokens; /* the part of `tokens` that is in the loss */
  double epoch;        /* passes over the data so far; 0 for random data */
} rafter_step;

/* Plans the job, maps its arena, opens its data and sets the weights. The weights are random, or
 * come from the model's files or a checkpoint. RAFTER_NO_FIT: the plan does not fit, and nothing
 * was allocated. RAFTER_FAILED: the data or a checkpoint cannot be read, or memory is short. */
rafter_status rafter_trainer_open(const rafter_job *job, rafter_trainer **trainer, rafter_error *error);
/* Gets the number of finished steps (`done`) and the number of all steps of the run (`of`). */
void rafter_trainer_progress(const rafter_trainer *trainer, int64_t *done, int64_t *of);
/* Runs one optimizer step over the next batch. Allocates nothing. RAFTER_FAILED: the data cannot be
 * read, or a number is not finite (then the message names the op). */
rafter_status rafter_trainer_step(rafter_trainer *trainer, rafter_step *step, rafter_error *error);
/* Gets the mean loss (nats per token) over at most `rows` rows or pairs of the validation split.
 * RAFTER_INVALID: the data has no validation split. */
rafter_status rafter_trainer_validate(rafter_trainer *trainer, int64_t rows, double *loss,
                                      rafter_error *error);
/* Writes a checkpoint folder, which may replace an earlier checkpoint. The folder is complete when
 * it contains the file DONE. RAFTER_FAILED: an I/O error, or a folder with other files. After such
 * an error, the incomplete folder is removed. */
rafter_status rafter_trainer_save(rafter_trainer *trainer, const char *folder, rafter_error *error);
/* `arena_bytes`: size of the arena, which equals the plan's peak. `outside_bytes`: resident memory
 * of this process outside the arena. */
rafter_status rafter_trainer_memory(const rafter_trainer *trainer, int64_t *arena_bytes,
                                    int64_t *outside_bytes, rafter_error *error);
/* Gets JSON with the memory of the plan, and with the predicted and measured seconds of each op. */
rafter_status rafter_trainer_report(const rafter_trainer *trainer, char **json, rafter_error *error);
void rafter_trainer_close(rafter_trainer *trainer);

/* ---- generation, step by step ---------------------------------------------------------------- */
typedef struct rafter_generator rafter_generator;
typedef struct rafter_tokenizer rafter_tokenizer;

/* Opens a model to answer requests, from a job of command "generate" or "serve". The option batch
 * is the number of answers generated at once (unset: 8). The option seq is the context in tokens
 * (unset: 4096, or the model's limit). Options for prompts are ignored. Only
 * rafter_generator_sampling() uses the options for sampling. RAFTER_NO_FIT: the plan does not fit,
 * and nothing was allocated. RAFTER_FAILED: a file cannot be read, or memory is short. */
rafter_status rafter_generator_open(const rafter_job *job, rafter_generator **generator, rafter_error *error);
void rafter_generator_close(rafter_generator *generator);
/* Returns the generator's tokenizer, or NULL if the model has none. The pointer is valid until the
 * generator is closed. */
const rafter_tokenizer *rafter_generator_tokenizer(const rafter_generator *generator);

/* The form that the text of an answer must have. An answer that ends with RAFTER_FINISH_STOP has
 * this form, unless a stop text has cut the answer. */
typedef struct rafter_constraint rafter_constraint;

typedef enum rafter_form {
  RAFTER_FORM_JSON_OBJECT = 0, /* any JSON object */
  RAFTER_FORM_JSON_SCHEMA = 1, /* the JSON values of a schema */
  RAFTER_FORM_REGEX = 2,       /* the texts that a regular expression matches as a whole */
  RAFTER_FORM_CHOICE = 3,      /* one text of a JSON list of texts */
  RAFTER_FORM_PARTS = 4,       /* parts one after the other; see below */
} rafter_form;

/* RAFTER_FORM_PARTS is the JSON of a part. A part is a literal text, a list of parts in order, or
 * an object with one of these names:
 *   "schema": the JSON values of a schema. Each "$ref" names a part of the same schema.
 *   "regex": the texts that a regular expression matches.
 *   "any": a list of parts. The text has exactly one of these parts.
 *   "repeat": a part that occurs once or more. The text of "between" separates the occurrences.
 *   "without": any text that does not contain the given text, which has 1 to 64 bytes.
 *   "until": any text that ends with the given text, and does not contain it before the end.
 * "without" and "until" may have "begin", a text of one byte that is not 0 and not white space. The
 * first byte of the text after white space is then not this byte, and the text of "without" or
 * "until" must not begin with white space. Forms with "without" or "until" also allow special
 * tokens. They count as the text that spells them. */

/* Makes a constraint, or returns an equal constraint that was made before. `text` is the schema,
 * the expression or the list, in UTF-8. RAFTER_FORM_JSON_OBJECT does not use `text`. docs/serve.md
 * lists the supported keywords. Any number of threads may call this function, also while another
 * thread runs a step. RAFTER_INVALID: the text is wrong, has an unsupported part (the error names
 * the part), or exceeds a limit; or the model has no tokenizer or no end-of-text token. */
rafter_status rafter_constraint_open(const rafter_generator *generator, rafter_form form, const char *text,
                                     size_t bytes, rafter_constraint **constraint, rafter_error *error);
/* Submitted requests stay valid after their constraint is closed. Close all constraints before the
 * generator. */
void rafter_constraint_close(rafter_constraint *constraint);

/* A LoRA adapter that was read from files of Hugging Face's PEFT and checked. A generator whose job
 * has the option adapter-slots can have several adapters, and each request chooses one. A request
 * without an adapter gets the same answer as from a generator without adapters. */
typedef struct rafter_adapter rafter_adapter;

/* Reads the adapter in `folder`, or in the newest checkpoint of a run. Any number of threads may
 * call this function, also while another thread runs a step. RAFTER_INVALID: the generator has no
 * slots. RAFTER_FAILED: the folder has no adapter, or its adapter does not fit the model or the
 * slots. */
rafter_status rafter_adapter_open(const rafter_generator *generator, const char *folder,
                                  rafter_adapter **adapter, rafter_error *error);
void rafter_adapter_close(rafter_adapter *adapter);
/* Copies an adapter into a free slot, between two steps. Requests name the adapter by *id, which is
 * above 0. No later adapter of the generator gets the same id. The handle `adapter` may be closed
 * afterwards. RAFTER_NO_FIT: no slot is free. On failure, the loaded adapters do not change. */
rafter_status rafter_generator_load_adapter(rafter_generator *generator, const rafter_adapter *adapter,
                                            int64_t *id, rafter_error *error);
/* Unloads an adapter, so that later requests cannot use it. Earlier requests finish with the
 * adapter, and then its slot is free. RAFTER_INVALID: no adapter with this id is loaded. */
rafter_status rafter_generator_unload_adapter(rafter_generator *generator, int64_t id, rafter_error *error);

typedef struct rafter_logit_bias {
  int32_t id;
  float bias; /* added to the logit; -INFINITY excludes the token */
} rafter_logit_bias;

/* One prompt with its sampling settings. The call copies all inputs, except the data that `owner`
 * points to. */
typedef struct rafter_request {
  size_t size;
  const int32_t *tokens; /* (count) the prompt */
  int64_t count;
  int64_t max_tokens; /* maximum tokens of an answer; 0: up to the end of the context */
  int32_t samples;    /* number of answers, each with its own seed; 0 means 1 */
  int32_t top_k;      /* 0: all tokens */
  float temperature;  /* 0: greedy */
  float top_p;        /* in (0, 1]; 0: unset */
  float min_p;        /* 0: unset */
  float repetition_penalty, frequency_penalty, presence_penalty; /* 0: no penalty */
  uint64_t seed;
  int64_t min_tokens;            /* minimum tokens before an end-of-text token is allowed */
  const rafter_logit_bias *bias; /* (bias_count) */
  int64_t bias_count;
  const char *const *stop; /* (stop_count) texts that end an answer and are removed from it */
  int32_t stop_count;
  int32_t top_logprobs; /* number of likeliest tokens to report with each token, 0 to 32 */
  bool ignore_eos;      /* true: exclude end-of-text tokens; false: an end-of-text token ends an answer */
  bool keep;            /* keep the answer cached for the next turn of its conversation */
  void *owner;          /* the caller's pointer, returned with every event */
  /* Form of the answer. NULL: any form. An end-of-text token is allowed where the text may end. If
   * no other token may follow, an end-of-text token is allowed even with ignore_eos or before
   * min_tokens. */
  const rafter_constraint *constraint;
  int64_t adapter; /* id from rafter_generator_load_adapter; 0: the model without an adapter */
  bool specials;   /* print the names of special tokens in the text of the answers */
  /* Log-probabilities of the prompt. Row t is for token t, given the tokens before it. Row 0 is not
   * written. All rows are complete when the first event of answer 0 arrives. The caller must keep
   * the arrays until the last event. If `prompt_logprobs` is NULL, no step writes these arrays. */
  float *prompt_logprobs;
  int32_t *prompt_ranks;      /* (count) number of tokens that are as likely as this token, or likelier */
  int32_t prompt_top;         /* number of likeliest tokens to report in a row, 0 to 32 */
  int32_t *prompt_top_ids;    /* (count, prompt_top) likeliest first */
  float *prompt_top_logprobs; /* (count, prompt_top) */
} rafter_request;

typedef enum rafter_finish {
  RAFTER_FINISH_NONE = 0,
  RAFTER_FINISH_STOP = 1,      /* an end-of-text token or a stop text */
  RAFTER_FINISH_LENGTH = 2,    /* max_tokens, or the end of the context */
  RAFTER_FINISH_ERROR = 3,     /* an error; the event's status and message describe it */
  RAFTER_FINISH_CANCELLED = 4, /* the caller called rafter_generator_cancel */
} rafter_finish;

/* One token of one answer, or the end of an answer. Only the last event of an answer has a finish
 * other than RAFTER_FINISH_NONE. Pointers are valid until the next step. */
typedef struct rafter_event {
  size_t size;
  int64_t request; /* id from rafter_generator_submit */
  int32_t sample;
  int32_t token; /* -1: the answer ends without a token */
  int64_t index; /* position of the token in its answer, from 0; -1: no token */
  void *owner;
  /* New text of the answer: text_bytes bytes of complete characters, then a NUL. Text that may
   * begin a stop text comes with a later event. "" if the model has no tokenizer. */
  const char *text;
  size_t text_bytes;
  float logprob;             /* natural log of the token's probability in the full softmax */
  int32_t top;               /* number of reported likeliest tokens */
  const int32_t *top_ids;    /* (top) token ids, likeliest first */
  const float *top_logprobs; /* (top) logprob of each of top_ids */
  rafter_finish finish;      /* RAFTER_FINISH_NONE: the answer continues */
  rafter_status status;      /* the error if `finish` is RAFTER_FINISH_ERROR; otherwise RAFTER_OK */
  const char *message;       /* the error's message; otherwise "" */
} rafter_event;

/* Queues a request. Requests start in the order of submission. RAFTER_INVALID: the prompt is empty,
 * the prompt is longer than the context, or a token or an option is out of range. */
rafter_status rafter_generator_submit(rafter_generator *generator, const rafter_request *request, int64_t *id,
                                      rafter_error *error);
/* True if another step is needed, because an answer is running or waiting, or because an event is
 * not yet delivered. */
bool rafter_generator_busy(const rafter_generator *generator);
/* Finishes one forward pass. If decoding runs ahead, a step may start two passes or none. The pass
 * adds a token to every running answer and reads chunks of prompts. An error of a single request
 * becomes an event. The call fails only for an error that concerns all requests. */
rafter_status rafter_generator_step(rafter_generator *generator, rafter_error *error);
/* Gets the next event of the last step. Returns false after the last event. */
bool rafter_generator_next(rafter_generator *generator, rafter_event *event);
/* Ends the answer `sample` of a request. If `sample` is -1, ends all answers to the request. The
 * last event of each ended answer comes with a later step. */
void rafter_generator_cancel(rafter_generator *generator, int64_t request, int32_t sample);
/* Bytes of the generator's arena. This number is the predicted peak memory of the plan. */
int64_t rafter_generator_arena_bytes(const rafter_generator *generator);
/* Sets the sampling fields of a request, from top_k to presence_penalty, to the job's options. If
 * an option is not given, the field gets the number of the model's generation_config.json.
 * RAFTER_INVALID: the request's field `size` is not set. */
rafter_status rafter_generator_sampling(const rafter_generator *generator, rafter_request *request,
                                        rafter_error *error);

/* The sizes of a generator, its state after the last step, and totals since it was opened. */
typedef struct rafter_counts {
  size_t size;
  int64_t context;          /* maximum tokens of a prompt and its answer */
  int64_t vocab;            /* every token id is below this number */
  int32_t slots;            /* number of answers generated at once */
  int32_t running, waiting; /* answers in generation, and answers that wait for a slot */
  /* Bytes of the KV cache, and of the pages that running answers hold. Other pages may keep prompts
   * for later requests. */
  int64_t kv_bytes, kv_used_bytes;
  int64_t passes;                       /* forward passes */
  int64_t prompt_tokens, reused_tokens; /* prompt tokens, and prompt tokens found in the cache */
  int64_t answers, tokens;              /* answers that have begun, and tokens of answers */
  /* Seconds of all passes: measured, predicted, and at the machine's peak rates. */
  double seconds, predicted_seconds, limit_seconds;
  /* Constraints made, constraints found again, and seconds to make constraints. */
  int64_t constraints, constraints_found;
  double constraint_seconds;
  int64_t masks, masks_found;      /* token masks of constrained answers, and masks found in memory */
  double mask_seconds;             /* time of all masks; `seconds` does not include this time */
  int32_t adapter_slots, adapters; /* adapters that fit, and adapters that are loaded */
  /* Tokens for which the KV cache has memory, and cached tokens of running answers. */
  int64_t kv_tokens, kv_live_tokens;
} rafter_counts;
/* Gets the counts. This call takes the time of planning a few steps, so do not call it after every
 * step. */
rafter_status rafter_generator_counts(const rafter_generator *generator, rafter_counts *counts,
                                      rafter_error *error);

/* ---- scoring --------------------------------------------------------------------------------- */
typedef struct rafter_scorer rafter_scorer;

/* A text to score, and the arrays for its results. */
typedef struct rafter_score {
  size_t size;
  const int32_t *tokens; /* (count) */
  int64_t count;         /* from 1 to the value of the option seq */
  float *logprobs;       /* (count) log-probability of each token given the tokens before it; [0] is 0 */
  int32_t *top_ids;      /* (count, top) likeliest tokens at each position; row 0 is -1; may be NULL */
  float *top_logprobs;   /* (count, top) log-probabilities of these tokens; may be NULL */
} rafter_score;

/* Opens a model to score texts, from a job of command "score". The option seq is the maximum number
 * of tokens of a text (unset: 1024, or the model's limit). One call scores at most batch x seq
 * tokens (seq tokens if batch is unset). The option top is the number of likeliest tokens per
 * position. Errors: as for rafter_generator_open. */
rafter_status rafter_scorer_open(const rafter_job *job, rafter_scorer **scorer, rafter_error *error);
void rafter_scorer_close(rafter_scorer *scorer);
/* Maximum number of tokens of one call, over all its texts. */
int64_t rafter_scorer_tokens(const rafter_scorer *scorer);
/* Scores `count` texts in one forward pass. The results of a text do not depend on the other texts.
 * All `count` structs must have the same `size`. RAFTER_INVALID: there are too many tokens, or a
 * token is out of range. */
rafter_status rafter_scorer_score(rafter_scorer *scorer, const rafter_score *text, int32_t count,
                                  rafter_error *error);

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Opens the tokenizer of a job's model. The job may be of any command that has a model. If the
 * command has the option template, this option replaces the model's chat template. */
rafter_status rafter_tokenizer_open(const rafter_job *job, rafter_tokenizer **tokenizer, rafter_error *error);
void rafter_tokenizer_close(rafter_tokenizer *tokenizer);
/* Size of the vocabulary. Every id is below this number. */
int64_t rafter_tokenizer_vocab(const rafter_tokenizer *tokenizer);
/* Gets the token ids of a text. If `special` is true, adds the tokenizer's begin and end tokens.
 * With `special`, the text of a special token, such as "</s>", becomes the id of this token. If
 * `special` is false, the whole text is plain text. */
rafter_status rafter_tokenizer_encode(const rafter_tokenizer *tokenizer, const char *text, size_t bytes,
                                      bool special, int32_t **ids, int64_t *count, rafter_error *error);
/* Gets the text of token ids, with a NUL at the end. Special tokens are left out. RAFTER_INVALID:
 * an id is out of range. */
rafter_status rafter_tokenizer_decode(const rafter_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                      char **text, size_t *bytes, rafter_error *error);
/* Gets the bytes that one id adds to a text. The bytes may be a part of a character. For a special
 * token, gets its name. The bytes are valid until the tokenizer is closed. RAFTER_INVALID: the id
 * is out of range. */
rafter_status rafter_tokenizer_piece(const rafter_tokenizer *tokenizer, int32_t id, const char **text,
                                     size_t *bytes, rafter_error *error);
/* True if the tokenizer has a chat template for rafter_tokenizer_chat. */
bool rafter_tokenizer_chats(const rafter_tokenizer *tokenizer);
/* Gets the token ids of a conversation in the model's chat template. `messages` is a JSON list of
 * {"role", "content"}. If `opens_answer` is true, adds the beginning of the assistant's turn.
 * RAFTER_FAILED: the model has no template. */
rafter_status rafter_tokenizer_chat(const rafter_tokenizer *tokenizer, const char *messages,
                                    bool opens_answer, int32_t **ids, int64_t *count, rafter_error *error);

/* Returns the model's chat template, or NULL if the model has none. The text is valid until the
 * tokenizer is closed. */
const char *rafter_tokenizer_template(const rafter_tokenizer *tokenizer);
/* Returns the template for conversations with tools, or NULL if the model has no template. Most
 * models have one template for all conversations. */
const char *rafter_tokenizer_tools_template(const rafter_tokenizer *tokenizer);

/* A conversation with tools. The texts are JSON. */
typedef struct rafter_conversation {
  size_t size;
  const char *messages;  /* list of objects, which the template gets unchanged */
  const char *tools;     /* list of tools; NULL: none */
  const char *variables; /* object with further variables of the template; NULL: none */
  const char *begin;     /* plain text that begins the assistant's turn; NULL: none */
  bool opens_answer;     /* add the beginning of the assistant's turn */
} rafter_conversation;
/* Gets the token ids of a conversation in the model's chat template. RAFTER_INVALID: a text is not
 * JSON of the right type. RAFTER_FAILED: the model has no template, or the template refuses the
 * conversation. */
rafter_status rafter_tokenizer_conversation(const rafter_tokenizer *tokenizer,
                                            const rafter_conversation *conversation, int32_t **ids,
                                            int64_t *count, rafter_error *error);

/* ---- whole commands -------------------------------------------------------------------------- */

/* Receives a command's output. Any function pointer may be NULL. A text that is passed to one of
 * these functions is valid only until the function returns. */
typedef struct rafter_sink {
  size_t size;
  void *self;
  void (*text)(void *self, const char *text); /* text output; not always complete lines */
  void (*json)(void *self, const char *line); /* one JSON object without a newline */
  void (*bar)(void *self, const char *line);  /* replaces the last progress line; "" ends the progress */
  /* If *stop becomes non-zero, the command saves and returns RAFTER_INTERRUPTED. A signal handler
   * or another thread sets *stop with an atomic store. The library reads *stop atomically. */
  const volatile int *stop;
  /* Shows `prompt` and reads a line for chat. Returns the line without its newline, malloc'ed, or
   * NULL at the end of input. During a chat, a non-zero *stop ends only the current answer. After
   * that, this function must set *stop to 0. */
  char *(*line)(void *self, const char *prompt);
  void (*note)(void *self, const char *text); /* messages other than results; if NULL, `text` gets them */
  /* true: keep the history of runs in $RAFTER_RUNS, or in `runs` of the working directory. false:
   * keep the history only if RAFTER_RUNS is set and not empty. */
  bool history;
  /* Reads the prompt of a job without a prompt, or of a job whose prompt is "-" (then `asked` is
   * true). Returns the text with a zero byte at its end, malloc'ed, and sets *bytes. NULL: no
   * input. The function may stop reading after more than `most` bytes, because the command refuses
   * a text of this length. If this function is NULL, there is no input. */
  char *(*input)(void *self, bool asked, size_t most, size_t *bytes);
} rafter_sink;

/* Runs a job's command in the same way as the program `rafter` does. May return any status. */
rafter_status rafter_run(const rafter_job *job, const rafter_sink *sink, rafter_error *error);

/* Returns the MPI rank of this process in the job. A launcher of MPI (mpirun, srun) starts one
 * process for each chip of --mesh. Only rank 0 prints results. Returns 0 if the job runs in this
 * process alone. If `job` is NULL, returns the rank that the launcher gives. */
int rafter_rank(const rafter_job *job);

/* Call this function in a handler of SIGBUS. The library does not install such a handler. If
 * another program shortens a model file while the library reads the file, the missing bytes raise
 * SIGBUS at an address inside the file (siginfo_t.si_addr). For such an address, removes the
 * incomplete files that this process writes, and returns the path of the model file. The process
 * must then end. For any other address, returns NULL. Async-signal-safe. */
const char *rafter_file_changed(const void *address);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
