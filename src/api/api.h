/* api.h - declarations shared by the files of src/api. */
#ifndef RF_API_H
#define RF_API_H

#include <jansson.h>
#include <stdio.h>

#include "base/json.h"
#include "base/options.h"
#include "base/say.h"
#include "plan/job.h"
#include "run/load.h"
#include "report/report.h"

struct rafter_job {
  rf_options *options;
};

/* List of all commands. `TRAIN` is the command RF_COMMAND_TRAIN in train.c. A new command needs an
 * entry here. */
// clang-format off
#define RF_COMMANDS(X) \
  X(PLAN) X(CALIBRATE) X(ROOFLINE) \
  X(TRAIN) X(RL) X(GENERATE) X(ROLLOUT) X(CHAT) X(SERVE) X(SCORE) X(EVAL) X(BENCH) X(BENCH_SERVE) \
  X(REPORT) X(RUNS) X(INSPECT) X(MODELS) X(MACHINES) X(DOCTOR) \
  X(PULL) X(EXPORT) X(QUANTIZE) X(TOKENIZE)
// clang-format on
#define RF_COMMAND_HEAD(name_, arguments_, least_, most_, group_, help_) \
  .name = name_, .arguments = arguments_, .least = least_, .most = most_, .group = group_, .help = help_
#define RF_DECLARE_COMMAND(NAME) extern const rf_command RF_COMMAND_##NAME;
RF_COMMANDS(RF_DECLARE_COMMAND)
extern const rf_commands RF_ALL_COMMANDS;

/* Tables of options, and the commands with these options. EVERY: all. DEBUG: commands that compute.
 * EXAMPLE: tokenize, train. SPECIAL: tokenize, score. ROWS_OUT: score, eval. TOP: score, bench. */
extern const rf_option RF_EVERY_OPTIONS[], RF_DEBUG_OPTIONS[], RF_EXAMPLE_OPTIONS[], RF_SPECIAL_OPTIONS[],
    RF_ROWS_OUT_OPTIONS[], RF_TOP_OPTIONS[];
/* RF_TABLE(rows) expands to all entries of an option table. RF_INFERENCE_TABLES: tables of commands
 * that run a model. RF_LEFT_TABLES: tables of commands that may write a run folder. */
#define RF_TABLE(rows) \
  { rows, NULL }
#define RF_INFERENCE_TABLES RF_TABLE(RF_MODEL_OPTIONS), RF_TABLE(RF_INFERENCE_OPTIONS)
#define RF_LEFT_TABLES \
  RF_TABLE(RF_LEFT_FOLDER_OPTIONS), RF_TABLE(RF_TRACE_OPTIONS), RF_TABLE(RF_DEBUG_OPTIONS), \
      RF_TABLE(RF_EVERY_OPTIONS)
/* Returns the flags of rf_tokenizer_encode that --no-bos and --no-special set. */
int rf_encode_flags(const rf_options *options);

/* Writes the HTML page of a plan. Takes ownership of the plan's JSON object. */
rf_status rf_report_write_plan(const char *path, const char *name, json_t *plan, const rafter_sink *sink,
                               rf_error *error);
void rf_say_tuned(const rafter_sink *sink, const rf_tuned *tuned);
/* Writes a model as a GGUF file whose matrices have storage type `type`. `shown` is the model's
 * name in the results. `name` is its name in the file; NULL: the name of `in`. */
rf_status rf_write_gguf(const char *in, const char *shown, const char *name, const char *out,
                        const char *type, int threads, const rafter_sink *sink, rf_error *error);
/* Prints the name, type and shape of one tensor. Also appends these values to `list` as an
 * object. */
void rf_inspect_tensor(const rafter_sink *sink, json_t *list, const char *name, const char *dtype, int rank,
                       const int64_t *shape, int64_t bytes);
/* These functions run `rafter inspect` for .gguf and .bin files. */
rf_status rf_inspect_blocks(const char *path, const rafter_sink *sink, json_t *json, rf_error *error);

rf_progress rf_load_bar(const rafter_sink *sink);
/* "1,374 tokens in 1.77 s (predicted 1.52 s), 776.3 tokens/s" */
char *rf_speed_text(int64_t tokens, double seconds, double predicted, char text[128]);

/* Connects a device to the sink: the device reports its compilation there, and asks there whether
 * to stop. Also sets the cache folder of compiled programs (~/.cache/rafter/xla). */
void rf_device_listen(rf_device_settings *device, const rafter_sink *sink);
/* Prints a notice if the node size of --on differs from the machine's data sheet. Also prints a
 * notice if another version of rafter calibrated the machine. */
void rf_note_machine(const rf_options *options, const rafter_sink *sink);
/* Sets `folder` to the folder of the run with number `which` in the history. Sets `folder` to "" if
 * `which` is not a number, or if a file or folder has the name `which`. */
rf_status rf_runs_folder(const char *which, char folder[4096], rf_error *error);
/* Returns the figures of the last step in a run's metrics.jsonl, and the median rate of the last
 * steps. Returns NULL if the folder has no metrics. */
json_t *rf_runs_last_steps(const char *folder);

const rf_plan *rf_plan_of_trainer(const rafter_trainer *trainer);
struct rf_record;
/* Writes the trace of a trainer's steps into the folder `part` below --out (see
 * rf_traced_leave). */
rf_status rf_trainer_leave_trace(const rafter_trainer *trainer, const struct rf_record *record,
                                 const rf_options *options, const char *part, json_t *results,
                                 const rafter_sink *sink, rf_error *error);

#endif
