/* train.c - `rafter train`: reads its options, prints lines, and writes metrics.jsonl and
 * checkpoints. */
#define _GNU_SOURCE
#include "api/preferences.h"
#include "api/run_files.h"

#include "base/file.h"
#include "base/partial.h"
#include "base/text.h"
#include "model/run_folder.h"
#include "plan/loss.h"
#include "run/waits.h"
#include "train/checkpoint.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct run_log {
  const rafter_sink *sink;
  FILE *metrics;
  double start, seconds_limit; /* seconds_limit: 0 means no limit */
  int64_t steps, first_step, val_every, val_rows, save_every;
  int64_t first_tokens; /* number of tokens that earlier runs of this training have read */
  int64_t saved_step;   /* step of the last checkpoint; -1: none */
  int keep;
  bool validates;       /* true if the last step of the resumed run is a step with validation */
  bool owes_validation; /* true if the last line of metrics.jsonl has no val_loss */
  bool json, continued; /* continued: true if metrics.jsonl already has steps of this run */
  double step_seconds;  /* sum over all steps */
  double mfu_seconds;   /* sum of MFU x seconds of all steps */
  double save_seconds;  /* with a limit: seconds of the last checkpoint; before the first, an estimate */
  bool hidden;          /* true on hosts other than 0, whose files nobody reads */
  int unwritten;        /* errno of the first failed write of metrics.jsonl; 0: none */
  rafter_step last;
  double val_loss; /* loss of the last validation; NaN: none */
  /* figures of a loss of preferences in the last step, and in the last validation */
  rf_preference pairs, val_pairs;
  bool prefers; /* true for a loss of preferences */
} run_log;

/* JSON has no infinite numbers and no NaN. */
static double or_zero(double x) { return isfinite(x) ? x : 0; }

static void put_metrics(run_log *log, const char *line) {
  if (!log->metrics) return;
  bool written = fprintf(log->metrics, "%s\n", line) > 0 && !fflush(log->metrics);
  if (!written && !log->hidden && !log->unwritten) log->unwritten = errno ? errno : EIO;
}

static void log_step(run_log *log, const rafter_step *s, const double *val_loss) {
  char line[1024], a[32], b[32], c[32];
  snprintf(line, sizeof line,
           "{\"step\":%lld,\"loss\":%.9g,\"lr\":%.6g,\"grad_norm\":%.6g,\"accuracy\":%.6g,\"tokens\":"
           "%lld,\"seconds\":%.6g,\"tokens_per_second\":%.6g,\"mfu\":%.5g,\"predicted_seconds\":%.6g,"
           "\"loss_tokens\":%lld,\"epoch\":%.6g",
           (long long)s->step, or_zero(s->loss), s->lr, or_zero(s->grad_norm), or_zero(s->accuracy),
           (long long)s->tokens, s->seconds, s->tokens_per_second, s->mfu, s->predicted_seconds,
           (long long)s->loss_tokens, s->epoch);
  if (log->prefers) rf_put_preference(&log->pairs, false, line, sizeof line);
  if (val_loss) rf_text_append(line, sizeof line, ",\"val_loss\":%.9g", or_zero(*val_loss));
  if (val_loss && log->prefers) rf_put_preference(&log->val_pairs, true, line, sizeof line);
  rf_text_append(line, sizeof line, "}");
  put_metrics(log, line);
  if (log->json && log->sink->json) log->sink->json(log->sink->self, line);
  int64_t done = s->step - log->first_step, every = rf_line_every(log->steps);
  if (s->step == 1 || s->step == log->steps || s->step % every == 0 || val_loss) {
    char val[64] = "", margin[48] = "";
    if (val_loss) snprintf(val, sizeof val, "  val %.4f", *val_loss);
    if (val_loss && log->prefers)
      rf_text_append(val, sizeof val, " (%.1f %%)", 100 * log->val_pairs.accuracy);
    if (log->prefers) snprintf(margin, sizeof margin, "  margin %.4f", log->pairs.margin);
    rf_say(log->sink,
           "step %6lld/%lld  loss %.4f%s  lr %.2e  norm %.3f  acc %4.1f %%%s  %s (planned %s)  %s tok/s  MFU "
           "%.1f %%\n",
           (long long)s->step, (long long)log->steps, s->loss, val, s->lr, s->grad_norm, 100 * s->accuracy,
           margin, rf_text_seconds(s->seconds, a), rf_text_seconds(s->predicted_seconds, b),
           rf_text_count(s->tokens_per_second, c), 100 * s->mfu);
  }
  double spent = rf_now_seconds() - log->start,
         left = (double)(log->steps - s->step) * log->step_seconds / (double)(done > 0 ? done : 1);
  double part = (double)s->step / (double)log->steps;
  if (log->seconds_limit > 0 && log->seconds_limit - spent < left) {
    left = log->seconds_limit - spent;
    part = spent / log->seconds_limit;
  }
  char bar[41];
  int filled = (int)(40 * (part < 1 ? part : 1));
  for (int i = 0; i < 40; i++) bar[i] = i < filled ? '#' : '.';
  bar[40] = 0;
  rf_put_bar(log->sink, "[%s] %lld/%lld  loss %.4f  %s tok/s  %s left", bar, (long long)s->step,
             (long long)log->steps, s->loss, rf_text_count(s->tokens_per_second, c),
             rf_text_seconds(left > 0 ? left : 0, a));
}

static rf_status save_checkpoint(rafter_trainer *t, run_log *log, rf_error *error) {
  const int64_t before = log->saved_step;
  double began = rf_now_seconds();
  RF_TRY(rf_save_run(t, log->sink, log->keep, &log->saved_step, error));
  if (log->saved_step != before) log->save_seconds = rf_now_seconds() - began;
  return RAFTER_OK;
}

/* Records the folder from which weights were read, if an option names a run. The run may get newer
 * checkpoints. */
static void record_checkpoint(json_t *options, const char *name, const char *given, const char *read) {
  char newest[4096];
  if (given && *read && rf_run_newest(given, newest)) json_object_set_new(options, name, json_string(read));
}

/* Returns the options for run.json, with which the run can be repeated and planned. --seq is always
 * recorded, because `plan` has another default. If a run continues in its own folder, --resume is
 * left out, so that the options repeat the run from its start. */
static json_t *recorded_options(const rafter_trainer *t, const rf_options *o) {
  char run[4096];
  json_t *options = rf_options_json(o);
  if (!rf_trains_by_epochs(o)) json_object_del(options, "epochs");
  json_object_del(options, "host-rank"); /* a repeated run may have other hosts */
  json_object_del(options, "coordinator");
  /* a resumed run reads the base of its adapters, and the reference of preferences, again */
  const rf_train_settings *s = &t->trainer->settings;
  if (t->trainer->plan->graph->params.adapter > 0 || t->preferences)
    record_checkpoint(options, "model", rf_options_argument(o, 0),
                      s->weights_folder ? s->weights_folder : "");
  if (t->preferences)
    record_checkpoint(options, "adapter", rf_options_text_or(o, "adapter", NULL), s->model.lora.folder);
  const rf_build_options *build = &t->trainer->plan->options.build;
  json_object_set_new(options, "seq", json_integer((json_int_t)build->seq));
  json_object_set_new(options, "batch", json_integer((json_int_t)(build->microbatch * build->accumulate)));
  if (!rf_options_is_set(o, "resume")) return options;
  rf_run_folder_of_resume(rf_options_text(o, "resume"), run);
  if (rf_same_folder(run, t->out)) json_object_del(options, "resume");
  return options;
}

static bool validates_at(const rf_trainer *r, const run_log *log) {
  return r->val_batch.tokens && log->val_every > 0 &&
         (r->step % log->val_every == 0 || r->step == log->steps);
}

static void owes_validation(void *self, const char *text, size_t kept) {
  run_log *log = self;
  log->owes_validation = log->validates && rf_step_line_lacks(text, kept, log->first_step, "\"val_loss\"");
}

static rf_status open_metrics(const rafter_trainer *t, run_log *log, rf_error *error) {
  size_t kept;
  log->validates = validates_at(t->trainer, log);
  RF_TRY(rf_step_lines_open(t->out, "metrics.jsonl", log->first_step, owes_validation, log, &log->metrics,
                            &kept, error));
  log->continued = kept > 0;
  return RAFTER_OK;
}

static rf_status say_start(const rafter_trainer *t, run_log *log, rf_error *error) {
  char a[32], b[32], c[32], d[32], line[512];
  const rf_trainer *r = t->trainer;
  rf_outside o;
  RF_TRY(rf_run_outside(r->run, &o, error));
  snprintf(line, sizeof line,
           "{\"arena_bytes\":%lld,\"peak_bytes\":%lld,\"outside_arena_bytes\":{\"total\":%lld,\"program_and_"
           "libraries\":%lld,\"heap_and_stacks\":%lld}}",
           (long long)rf_run_arena_bytes(r->run), (long long)r->plan->arena_bytes, (long long)o.outside_bytes,
           (long long)o.file_bytes, (long long)o.other_bytes);
  if (!log->continued) put_metrics(log, line);
  if (log->json && log->sink->json) log->sink->json(log->sink->self, line);
  const rf_params *params = &r->plan->graph->params;
  if (params->adapter > 0)
    rf_say(log->sink, "adapters of rank %d: %s parameters are trained, the base model is frozen\n",
           r->settings.model.lora.rank, rf_text_count((double)params->adapter, a));
  rf_say(log->sink,
         "%s: %s parameters; plan %s %s: %s; outside the plan %s (program and libraries "
         "%s, heap and stacks %s)\n",
         r->settings.model.name, rf_text_count((double)r->plan->graph->params.total, a), r->plan->digest,
         r->plan->options.backend->compiles ? "predicted (XLA decides what it allocates)"
                                            : "predicted and allocated",
         rf_text_bytes((double)r->plan->arena_bytes, b), rf_text_bytes((double)o.outside_bytes, c),
         rf_text_bytes((double)o.file_bytes, d), rf_text_bytes((double)o.other_bytes, line));
  if (t->preferences) rf_say_pairs(t, log->sink, log->val_every > log->steps);
  for (int i = 0; i < r->loader.count && !t->preferences; i++) {
    const rf_source *s = &r->loader.source[i];
    if (s->random) rf_say(log->sink, "data %s\n", s->spec);
    else
      rf_say(log->sink,
             "data %s: %s tokens, %lld row%s of %lld (%.1f %% full), %lld held out for validation%s\n",
             s->spec, rf_text_count((double)s->tokens, a), (long long)s->train.count,
             rf_plural(s->train.count), (long long)s->seq, 100 * s->train.efficiency,
             (long long)s->held_out.count,
             s->held_out.count && log->val_every > log->steps ? " after the last step (--val-every)" : "");
    if (s->tokenizer_vocab && !*r->settings.weights_folder && s->tokenizer_vocab < r->settings.model.vocab)
      rf_note(log->sink,
              "notice: data %s: the tokenizer has %lld ids, the model %lld; the others are unused\n", s->spec,
              (long long)s->tokenizer_vocab, (long long)r->settings.model.vocab);
    if (s->cut)
      rf_say(log->sink,
             "data %s: truncated %lld example%s to a row; %s tokens are left out (a longer --seq includes "
             "them)\n",
             s->spec, (long long)s->cut, rf_plural(s->cut), rf_text_count((double)s->cut_tokens, a));
    if (s->skipped)
      rf_say(log->sink, "data %s: left out %lld example%s without a token in the loss\n", s->spec,
             (long long)s->skipped, rf_plural(s->skipped));
  }
  rf_put_bar(log->sink, "%lld/%lld", (long long)r->step, (long long)log->steps);
  if (r->step) rf_say(log->sink, "resumed from %s at step %lld\n", t->resume, (long long)r->step);
  if (t->again) rf_say(log->sink, "%s", RF_BEGINS_AGAIN);
  if (r->step >= log->steps)
    rf_say(log->sink, "the run is already at step %lld of %lld; --steps trains further\n", (long long)r->step,
           (long long)log->steps);
  return RAFTER_OK;
}

/* Validates if a signal ended the validation of the run's last step. Adds the loss to the last line
 * of metrics.jsonl. */
static rf_status validate_first(rafter_trainer *t, run_log *log, bool *stopped, rf_error *error) {
  double val_loss = 0;
  rf_status status = rf_take_validation(t, log->val_rows, &val_loss, &log->val_pairs, error);
  if (status == RAFTER_OK) {
    char more[128] = "";
    log->val_loss = val_loss;
    if (log->prefers) rf_put_preference(&log->val_pairs, true, more, sizeof more);
    status = log->hidden ? RAFTER_OK : rf_step_line_reopen(log->metrics, "metrics.jsonl", error);
    if (status == RAFTER_OK) fprintf(log->metrics, ",\"val_loss\":%.9g%s}\n", or_zero(val_loss), more);
    if (status == RAFTER_OK && !log->hidden) status = rf_check_written(log->metrics, "metrics.jsonl", error);
  }
  *stopped = status == RAFTER_INTERRUPTED;
  return *stopped ? RAFTER_OK : status;
}

/* Saves the steps so far, because a data file cannot be read any more, or has changed. Returns the
 * error of the data file. */
static rf_status save_without_data(rafter_trainer *t, run_log *log, rf_error *error) {
  rf_error unsaved;
  /* saving needs all hosts, and the other hosts are in their next step */
  if (rf_run_hosts(t->trainer->run) > 1) return RAFTER_FAILED;
  if (!t->trainer->step || save_checkpoint(t, log, &unsaved) != RAFTER_OK) return RAFTER_FAILED;
  if (error)
    snprintf(error->hint, sizeof error->hint, "restore the file, then continue with --resume %.200s", t->out);
  return RAFTER_FAILED;
}

/* Sets *stopped or *time_is_up if the run ends after this step. *time_is_up: another step and a
 * checkpoint would end too late. All hosts of a run get the same result. `step_seconds` is the time
 * of the longest step. */
static rf_status ask_end(const rafter_trainer *t, run_log *log, double step_seconds, bool *stopped,
                         bool *time_is_up, rf_error *error) {
  enum { STOP = 1, TIME = 2, UNWRITTEN = 4 };
  uint32_t flags = (rf_asked_to_stop(log->sink) ? STOP : 0) | (log->unwritten ? UNWRITTEN : 0);
  double next = step_seconds + log->save_seconds;
  if (log->seconds_limit > 0 && rf_now_seconds() - log->start + next > log->seconds_limit) flags |= TIME;
  RF_TRY(rf_run_agree(t->trainer->run, &flags, error));
  *stopped = flags & STOP;
  *time_is_up = flags & TIME;
  if (flags & UNWRITTEN && !log->unwritten) log->unwritten = EIO; /* the error of another host */
  return RAFTER_OK;
}

static rf_status train_loop(rafter_trainer *t, run_log *log, bool *stopped, rf_error *error) {
  rf_trainer *r = t->trainer;
  double longest = 0;
  bool time_is_up = false;
  if (log->seconds_limit > 0)
    RF_TRY(rf_checkpoint_foresee(r, t->out, log->seconds_limit / 2, &log->save_seconds, error));
  if (t->preferences)
    RF_TRY(rf_begin_preferences(
        t, log->sink, log->val_every > 0 ? log->val_rows : 0,
        log->seconds_limit > 0 ? fmax(log->start + log->seconds_limit - log->save_seconds, 1e-9) : 0, stopped,
        &time_is_up, error));
  if (*stopped || time_is_up) return RAFTER_OK;
  uint32_t owes = log->owes_validation; /* known only to host 0, because only host 0 has metrics.jsonl */
  RF_TRY(rf_run_agree(r->run, &owes, error));
  if (owes) RF_TRY(validate_first(t, log, stopped, error));
  while (r->step < log->steps && !*stopped) {
    rafter_step step;
    double val_loss = 0, began = rf_now_seconds();
    rf_status status = rf_take_step(t, &step, &log->pairs, error);
    if (status == RAFTER_INTERRUPTED) return *stopped = true, RAFTER_OK;
    if (r->lost_data) return save_without_data(t, log, error);
    RF_TRY(status);
    rf_waits_step();
    log->step_seconds += step.seconds;
    log->mfu_seconds += step.mfu * step.seconds;
    log->last = step;
    bool validates = validates_at(r, log);
    if (validates) status = rf_take_validation(t, log->val_rows, &val_loss, &log->val_pairs, error);
    if (status == RAFTER_INTERRUPTED || r->lost_data) validates = false; /* a resumed run validates first */
    else RF_TRY(status);
    if (validates) log->val_loss = val_loss;
    int64_t writes = rf_phase_begin();
    log_step(log, &step, validates ? &val_loss : NULL);
    rf_phase_end(RF_PHASE_WRITE, writes);
    if (r->lost_data) return save_without_data(t, log, error);
    double took = rf_now_seconds() - began;
    if (took > longest) longest = took;
    if (log->save_every > 0 && r->step % log->save_every == 0 && r->step < log->steps)
      RF_TRY(save_checkpoint(t, log, error));
    RF_TRY(ask_end(t, log, longest, stopped, &time_is_up, error));
    if (time_is_up || log->unwritten) break;
  }
  return RAFTER_OK;
}

static void add_results(const run_log *log, json_t *results) {
  if (isfinite(log->val_loss)) json_object_set_new(results, "val_loss", json_real(log->val_loss));
  if (!log->last.step) {
    /* This process executed no step. So the row of the history gets no measured or predicted
     * rate. */
    json_object_set_new(results, "steps", json_integer((json_int_t)log->first_step));
    json_object_del(results, "predicted_seconds");
    json_object_del(results, "predicted_tokens_per_second");
    return;
  }
  json_object_update_new(results,
                         json_pack("{sI sf sI sf}", "steps", (json_int_t)log->last.step, "loss",
                                   or_zero(log->last.loss), "tokens", (json_int_t)log->last.tokens, "mfu",
                                   log->step_seconds > 0 ? log->mfu_seconds / log->step_seconds : 0));
}

static void say_time_is_up(const rafter_trainer *t, const run_log *log) {
  char spent[32];
  if (log->seconds_limit > 0 && t->trainer->step < log->steps)
    rf_say(log->sink,
           "stopped after %s at step %lld of %lld (--max-seconds); `rafter train --resume %s` continues\n",
           rf_text_seconds(rf_now_seconds() - log->start, spent), (long long)t->trainer->step,
           (long long)log->steps, t->out);
}

static rf_status train(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  const rf_options *o = job->options;
  rf_status status = RAFTER_OK;
  rafter_trainer *t = NULL;
  rf_journal journal = {0};
  rf_record *traced = NULL;
  bool stopped = false;
  rf_hosts hosts;
  const rafter_sink silent = {.size = sizeof silent, .stop = sink->stop};
  RF_TRY(rf_hosts_of(o, &hosts, error));
  if (hosts.host > 0) sink = &silent; /* host 0 speaks for all */
  journal.unlisted = hosts.host > 0;
  run_log log = {.saved_step = -1,
                 .sink = sink,
                 .start = rf_now_seconds(),
                 .val_every = rf_options_int(o, "val-every"),
                 .val_rows = rf_options_int(o, "val-rows"),
                 .save_every = rf_options_int(o, "save-every"),
                 .keep = (int)rf_options_int(o, "keep"),
                 .json = rf_options_flag(o, "json"),
                 .val_loss = NAN};
  if (rf_options_is_set(o, "max-seconds")) log.seconds_limit = rf_options_float(o, "max-seconds");
  if (rf_trains_with_trace(o)) RF_TRY(rf_traced_open(o, &traced, error));
  RF_GO(rf_trainer_of_job(job, sink, &t, error));
  log.hidden = t->hidden;
  log.first_step = t->trainer->step;
  log.first_tokens = t->trainer->tokens;
  log.steps = t->trainer->settings.schedule.steps;
  log.prefers = t->preferences != NULL;
  rf_report_pass pass[RF_TRAINER_PASSES];
  int passes = rf_trainer_passes(t, pass);
  /* Write run.json and plan.json first, so that a killed run can be understood and repeated. */
  RF_GO(rf_journal_begin(&journal, sink, o, recorded_options(t, o), t->out, pass, passes, error));
  RF_GO(open_metrics(t, &log, error));
  RF_GO(say_start(t, &log, error));
  RF_GO(rf_traced_begin(o, traced, t->trainer->run, error));
  rf_waits_begin();
  RF_GO(train_loop(t, &log, &stopped, error));
  RF_GO(rf_waits_gather(t->trainer->plan->arena_bytes, rf_run_arena_bytes(t->trainer->run),
                        t->trainer->plan->options.threads, error));
  rf_put_bar(sink, "%s", "");
  add_results(&log, journal.results);
  RF_GO(save_checkpoint(t, &log, error));
  if (!stopped) say_time_is_up(t, &log);
  RF_GO(rf_traced_write(traced, &journal, pass, passes, error));
  if (t->trainer->counted.steps && hosts.host == 0) {
    rf_trainer_passes(t, pass); /* lists the plans again, now with measurements */
    RF_GO(rf_journal_sum_up(&journal, t->trainer->run, pass, passes, rf_now_seconds() - log.start, error));
  }
  if (log.unwritten && !log.hidden) /* the steps are saved, but their lines are not */
    RF_GO(RF_FAIL(error, RAFTER_FAILED, "make room, then continue with --resume",
                  "cannot write metrics.jsonl (%s)", strerror(log.unwritten)));
  if (stopped)
    status = RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped at step %lld; continue with --resume %s",
                     (long long)t->trainer->step, t->out);
done:
  rf_journal_close(&journal, status, error);
  if (log.metrics) fclose(log.metrics);
  rafter_trainer_close(t);
  rf_record_close(traced);
  return status;
}

static rf_status rf_command_train(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  rf_note_machine(job->options, sink);
  if (!rf_options_is_set(job->options, "resume")) return train(job, sink, error);
  rafter_job merged = {0};
  RF_TRY(rf_job_resumed(job, "train", &merged, error));
  rf_status status = train(&merged, sink, error);
  rf_options_free(merged.options);
  return status;
}

const rf_option RF_EXAMPLE_OPTIONS[] = {
    RF_CHOICE("loss-on", "assistant|completion|all", "assistant", "Data",
              "tokens in the loss; assistant: all turns of the assistant; completion: its last turn, or the "
              "completion; all: all tokens"),
    RF_WORDS("fields", TEXT, "OURS=THEIRS", NULL, "Data",
             "field names in .jsonl rows, such as prompt=question,completion=answer"),
    RF_WORDS("template", TEXT, "FILE", NULL, "Data",
             "chat template for conversations in .jsonl files; none: plain prompt and completion; unset: the "
             "model's own"),
    {.name = NULL},
};

static const rf_option TRAIN[] = {
    RF_WORDS(
        "data", TEXTS, "SOURCE", NULL, "Data",
        "a text, .jsonl or .shard file, or random:seed=0; .jsonl rows have text, tokens, messages, prompt "
        "and completion, or preferences (--loss); may be repeated, and FILE:WEIGHT sets a file's weight "
        "in the mix"),
    RF_WORDS("tokenizer", PATH, "DIR|FILE", NULL, "Data",
             "tokenizer.json, tokenizer.model or a folder with one, for a model without a tokenizer; unset: "
             "texts are read as bytes"),
    RF_CHOICE("packing", "fit|none", "fit", "Data",
              "fit: several documents per row of tokens; none: one document per row"),
    RF_NUMBER("val-fraction", FLOAT, "PART", 0, 0.5, "0.05", "Validation", "part of the data to hold out"),
    RF_NUMBER("val-every", INT, "STEPS", 0, 1e12, "100", "Validation", "steps between validations; 0: never"),
    RF_NUMBER("val-rows", INT, "ROWS", 1, 1e12, "64", "Validation",
              "held-out rows in a validation, rounded up to whole microbatches"),
    RF_NUMBER("batch", INT, "SEQUENCES", 1, 1 << 20, "8", "Training",
              "sequences in an optimizer step; the default is raised to a multiple of --microbatch or "
              "--accumulate"),
    RF_NUMBER("steps", INT, NULL, 1, 1e12, "1000", "Training", "optimizer steps"),
    RF_NUMBER("epochs", FLOAT, "TIMES", 0, 1e9, NULL, "Training", "passes over the data, instead of --steps"),
    RF_NUMBER("lr", FLOAT, "RATE", 0, 100, "3e-4", "Training", "highest learning rate"),
    RF_CHOICE("schedule", "constant|warmup-cosine|warmup-exponential|wsd", "warmup-cosine", "Training",
              "shape of the learning rate over the steps"),
    RF_NUMBER("save-every", INT, "STEPS", 0, 1e12, "0", "Checkpoints",
              "steps between checkpoints; 0: only at the end"),
    {.name = NULL},
};

const rf_command RF_COMMAND_TRAIN = {
    RF_COMMAND_HEAD("train", "MODEL", 1, 1, "Run", "Train a model, or adapters for it, exactly as planned."),
    .options = {RF_TABLE(TRAIN), RF_TABLE(RF_TRAINING_RUN_OPTIONS), RF_TABLE(RF_EXAMPLE_OPTIONS),
                RF_TABLE(RF_LOSS_OPTIONS), RF_TABLE(RF_PREFERENCE_OPTIONS), RF_TABLE(RF_STEP_OPTIONS),
                RF_TABLE(RF_OFFLOAD_OPTIONS), RF_TABLE(RF_PIPELINE_OPTIONS), RF_TABLE(RF_MODEL_OPTIONS),
                RF_TABLE(RF_HOST_OPTIONS), RF_TABLE(RF_RUN_FOLDER_OPTIONS), RF_TABLE(RF_TRACE_OPTIONS),
                RF_TABLE(RF_DEBUG_OPTIONS), RF_TABLE(RF_EVERY_OPTIONS)},
    .common =
        "data tokenizer batch steps max-seconds lr schedule loss lora seq accumulate remat dtype resume "
        "save-every "
        "out seed json",
    .examples =
        {"train gpt:layers=4,width=256,heads=4,vocab=256 --data notes.txt --steps 500 # a small GPT on bytes",
         "train models/org/name --data chats.jsonl --lora rank=16 --dtype bf16 # adapters only",
         "train models/org/name --data pairs.jsonl --loss dpo --lora rank=16 # from preferences",
         "train gpt2 --resume runs/3 --max-seconds 1h # continue a run for an hour"},
    .run = rf_command_train};
