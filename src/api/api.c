/* api.c - the table of commands, jobs and help. */
#define _GNU_SOURCE
#include "api/answers.h"
#include "api/handles.h"
#include "api/ranks.h"
#include "backend/mpi/link.h"
#include "base/file.h"
#include "base/partial.h"
#include "base/text.h"
#include "plan/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW(NAME) &RF_COMMAND_##NAME,
static const rf_command *const COMMANDS[] = {RF_COMMANDS(ROW)};

/* Names of options in other programs, each with the name of the same option in rafter. A name of
 * one letter is a short form. A hint prints rafter's name if the command has this option. */
static const rf_synonym SYNONYMS[] = {{"temp", "temperature"},
                                      {"n-predict", "max-tokens"},
                                      {"max-new-tokens", "max-tokens"},
                                      {"context", "seq"},
                                      {"ctx-size", "seq"},
                                      {"ctx-len", "seq"},
                                      {"context-length", "seq"},
                                      {"seq-len", "seq"},
                                      {"seq-length", "seq"},
                                      {"max-seq-len", "seq"},
                                      {"max-seq-length", "seq"},
                                      {"max-model-len", "seq"},
                                      {"batch-size", "batch"},
                                      {"max-num-seqs", "batch"},
                                      {"learning-rate", "lr"},
                                      {"max-steps", "steps"},
                                      {"num-train-epochs", "epochs"},
                                      {"warmup-steps", "warmup"},
                                      {"grad-accum", "accumulate"},
                                      {"gradient-accumulation-steps", "accumulate"},
                                      {"gpu", "on MACHINE"},
                                      {"gpus", "on MACHINE:N"},
                                      {"num-gpus", "on MACHINE:N"},
                                      {"chips", "on MACHINE:N"},
                                      {"tp", "mesh tensor=N"},
                                      {"tensor-parallel-size", "mesh tensor=N"},
                                      {"pp", "mesh pipeline=N"},
                                      {"pipeline-parallel-size", "mesh pipeline=N"},
                                      {"dp", "mesh data=N"},
                                      {"do-sample", "temperature"},
                                      {"repeat-penalty", "repetition-penalty"},
                                      {"output-dir", "out"},
                                      {"resume-from-checkpoint", "resume"},
                                      {"per-device-train-batch-size", "batch"},
                                      {"gradient-checkpointing", "remat block"},
                                      {"bf16", "dtype bf16"},
                                      {"warmup-ratio", "warmup STEPS"},
                                      {"num-generations", "samples"},
                                      {"prompts", "requests"},
                                      {"kv-cache-dtype", "kv-dtype"},
                                      {"cache-type-k", "kv-dtype"},
                                      {"quantization", "weights"},
                                      {"lora-modules", "adapters"},
                                      {"enable-lora", "adapters"},
                                      {"api-key", "api-key-file"},
                                      {"nproc-per-node", "mesh data=N"},
                                      {"t", "threads"},
                                      {"c", "seq"},
                                      {"prompt", "text"},
                                      {"weights", "weight-dtype"},
                                      {"out", "output"},
                                      {"output", "out"},
                                      {NULL, NULL}};

static const rf_short_form SHORT_FORMS[] = {{'p', "--prompt"}, {'n', "--max-tokens"}, {'m', NULL}, {0, NULL}};

const rf_commands RF_ALL_COMMANDS = {COMMANDS, sizeof COMMANDS / sizeof *COMMANDS, SYNONYMS, SHORT_FORMS};

void rafter_text_free(char *text) { free(text); }

const char *rafter_file_changed(const void *address) {
  const char *path = rf_mapped_path(address);
  if (path) rf_partials_remove();
  return path;
}

rafter_status rafter_job_new(const char *command, rafter_job **job, rafter_error *error) {
  rf_options *options = NULL;
  RF_TRY(rf_options_new(&RF_ALL_COMMANDS, command, &options, error));
  *job = calloc(1, sizeof **job);
  if (!*job) {
    rf_options_free(options);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while making a job");
  }
  (*job)->options = options;
  return RAFTER_OK;
}

void rafter_job_free(rafter_job *job) {
  if (job) rf_options_free(job->options);
  free(job);
}

static const char *option_name(const char *name) { return !strcmp(name, "model") ? "MODEL" : name; }

rafter_status rafter_job_set(rafter_job *job, const char *name, const char *value, rafter_error *error) {
  return rf_options_set(job->options, option_name(name), value, error);
}

rafter_status rafter_job_parse(rafter_job *job, int argc, char **argv, rafter_error *error) {
  return rf_options_parse(job->options, argc, argv, error);
}

rafter_status rafter_job_get(const rafter_job *job, const char *name, char **value, rafter_error *error) {
  const char *text = NULL;
  if (!strcmp(name, "model")) text = rf_options_argument(job->options, 0);
  else if (!rf_options_knows(job->options, name))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "%s has no option --%s", rf_options_command(job->options),
                   name);
  else if (rf_options_is_set(job->options, name)) text = rf_options_text(job->options, name);
  *value = strdup(text ? text : "");
  return *value ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
}

rafter_status rafter_job_json(const rafter_job *job, char **json, rafter_error *error) {
  json_t *object = rf_options_json(job->options);
  *json = rf_json_text(object, 0);
  json_decref(object);
  return *json ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
}

rafter_status rafter_help(const char *command, const char *form, char **text, rafter_error *error) {
  rf_options *known = NULL;
  const char *detail = strchr(form, ':'); /* a width, or a shell */
  int columns = detail ? atoi(detail + 1) : 100;
  size_t length = detail ? (size_t)(detail - form) : strlen(form);
  bool all = length == 3 && !strncmp(form, "all", 3);
  if (command) RF_TRY(rf_options_new(&RF_ALL_COMMANDS, command, &known, error));
  rf_options_free(known);
  if (all || (length == 4 && !strncmp(form, "text", 4)))
    *text = rf_options_help(&RF_ALL_COMMANDS, command, all, columns < 60 ? 60 : columns);
  else if (!strcmp(form, "man")) *text = rf_options_man(&RF_ALL_COMMANDS);
  else if (length == 10 && !strncmp(form, "completion", 10)) {
    *text = rf_options_completion(&RF_ALL_COMMANDS, detail ? detail + 1 : "bash");
    if (!*text)
      return RF_FAIL(error, RAFTER_INVALID, "give bash, zsh or fish",
                     "no completion for this shell (expected bash, zsh or fish, got %s)", detail + 1);
  } else
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "unknown form of help (expected text, all, man or completion, got %s)", form);
  return *text ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
}

int rafter_rank(const rafter_job *job) {
  int rank, all;
  if (job) return rf_rank_of_job(job->options);
  return rf_link_launched(&rank, &all) ? rank : 0;
}

rafter_status rafter_run(const rafter_job *job, const rafter_sink *sink, rafter_error *error) {
  const rf_command *command = rf_command_named(&RF_ALL_COMMANDS, rf_options_command(job->options));
  rafter_sink own = {0};
  if (sink) RF_TRY(rf_sized_copy(&own, sizeof own, sink, sink->size, "rafter_sink", error));
  /* rank 0 speaks for all */
  if (rafter_rank(job) > 0) {
    own = (rafter_sink){.size = sizeof own, .stop = own.stop};
    if (rf_options_knows(job->options, "output") && rf_options_is_set(job->options, "output"))
      RF_TRY(rf_options_set(job->options, "output", "/dev/null", error));
  }
  RF_TRY(rf_ranks_mesh(job->options, &own, error));
  RF_TRY(rf_ranks_input(job->options, error));
  return command->run(job, &own, error);
}

static void say_loading(void *self, const char *what, double part) {
  if (part < 1) rf_put_bar(self, "%s %3.0f %%", what, 100 * part);
  else rf_put_bar(self, "%s", "");
}

rf_progress rf_load_bar(const rafter_sink *sink) {
  return (rf_progress){.report = say_loading, .self = (void *)(uintptr_t)sink, .stop = sink->stop};
}

char *rf_speed_text(int64_t tokens, double seconds, double predicted, char text[128]) {
  snprintf(text, 128, "%lld token%s in %s (predicted %s), %.1f tokens/s", (long long)tokens,
           rf_plural(tokens), rf_text_seconds(seconds, (char[32]){0}),
           rf_text_seconds(predicted, (char[32]){0}), seconds > 0 ? (double)tokens / seconds : 0);
  return text;
}

static void say_compiling(void *self, int64_t rows, double seconds, int64_t bytes) {
  enum { LONG_SECONDS = 2 };
  char needs[64] = "";
  if (bytes > 0) snprintf(needs, sizeof needs, "; it needs %s", rf_text_bytes((double)bytes, (char[32]){0}));
  if (seconds == 0) rf_put_bar(self, "compiling the program for %lld rows", (long long)rows);
  else if (seconds > LONG_SECONDS)
    rf_note(self, "compiled the program for %lld rows in %.1f s%s\n", (long long)rows, seconds, needs);
}

static void say_note(void *self, const char *text) { rf_note(self, "notice: %s\n", text); }

static const char *program_cache(void) {
  static char folder[4096];
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (cache && *cache) snprintf(folder, sizeof folder, "%s/rafter/xla", cache);
  else if (home && *home) snprintf(folder, sizeof folder, "%s/.cache/rafter/xla", home);
  return *folder ? folder : NULL;
}

void rf_device_listen(rf_device_settings *device, const rafter_sink *sink) {
  device->cache = program_cache();
  if (!sink) return;
  device->compiling = say_compiling;
  device->note = say_note;
  device->self = (void *)(uintptr_t)sink;
  device->stop = sink->stop;
}

void rf_note_machine(const rf_options *options, const rafter_sink *sink) {
  char text[200];
  rf_machine *machine = calloc(1, sizeof *machine);
  const char *on = rf_options_knows(options, "on") ? rf_options_text_or(options, "on", "") : "local";
  rf_isa isa = rf_isa_detect();
  if (rf_options_knows(options, "cpu"))
    rf_isa_resolve(rf_options_text_or(options, "cpu", "auto"), &isa, NULL);
  if (machine && rf_machine_find_at(on, isa, machine, NULL) == RAFTER_OK &&
      (rf_machine_odd_node(machine, text) || rf_machine_old_calibration(machine, text) ||
       rf_machine_busy_calibration(machine, text)))
    rf_note(sink, "notice: %s\n", text);
  free(machine);
}

const rf_option RF_EVERY_OPTIONS[] = {
    RF_FLAG("json", "Output", "print one JSON object (or JSON Lines) on stdout and all else on stderr"),
    RF_FLAG("quiet", "Output", "print results only: no progress, no notices"),
    RF_FLAG("verbose", "Output", "print more details, and for each error its line in rafter's source"),
    RF_WORDS("config", PATH, "FILE", NULL, "Output",
             "JSON file of options, such as a run.json; options on the command line override the file"),
    {.name = NULL},
};

const rf_option RF_DEBUG_OPTIONS[] = {
    RF_FLAG("debug", "Machine",
            "overwrite dead memory, check guard bytes and report the first operation that produces NaN"),
    {.name = NULL},
};
