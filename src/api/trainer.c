/* trainer.c - the public trainer of rafter.h, with its run folder, settings and steps. */
#define _GNU_SOURCE
#include "api/trainer.h"

#include "base/file.h"
#include "base/partial.h"
#include "base/text.h"
#include "train/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the run folder -------------------------------------------------------------------------- */

void rf_run_folder_of_resume(const char *resume, char run[4096]) {
  char path[4200];
  snprintf(run, 4096, "%s", resume);
  snprintf(path, sizeof path, "%s/run.json", resume);
  if (!access(path, F_OK)) return;
  const char *parent = dirname(run);
  memmove(run, parent, strlen(parent) + 1);
}

bool rf_same_folder(const char *a, const char *b) {
  struct stat x, y;
  return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Returns true if `path` does not exist or is an empty folder. */
static bool is_bare(const char *path) {
  DIR *folder = opendir(path);
  int entries = 0;
  if (!folder) return access(path, F_OK) != 0;
  while (entries < 3 && readdir(folder)) entries++;
  closedir(folder);
  return entries < 3;
}

/* Fails if the folder has checkpoints of another run. Two runs must not share checkpoints. */
static rf_status check_out(const rafter_trainer *t, const char *resume, rf_error *error) {
  char run[4096] = "";
  if (resume) rf_run_folder_of_resume(resume, run);
  if ((resume && rf_same_folder(run, t->out)) || !rf_checkpoint_any(t->out)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED,
                 "choose another --out, remove the folder, or continue its run with --resume",
                 "%s holds a run already", t->out);
}

static rf_status find_checkpoint(rafter_trainer *t, const char *resume, rf_error *error) {
  /* a trainer of rafter.h has its own options, so it does not begin a run again */
  if (!t->command) return rf_checkpoint_newest(resume, t->resume, error);
  RF_TRY(rf_checkpoint_resumed(resume, t->resume, error));
  t->again = !*t->resume;
  return RAFTER_OK;
}

/* Creates, locks and then checks the run folder. The lock comes first, because other processes can
 * change an unlocked folder. */
static rf_status take_folder(rafter_trainer *t, const rf_options *o, bool unnamed, const char *resume,
                             rf_error *error) {
  RF_TRY(unnamed ? rf_journal_make_folder(o, t->out, error) : rf_make_folders(t->out, error));
  RF_TRY(rf_lock_folder(t->out, &t->lock, error));
  if (!unnamed) RF_TRY(check_out(t, resume, error));
  if (!resume) return RAFTER_OK;
  RF_TRY(find_checkpoint(t, resume, error));
  rf_partials_sweep(t->out, NULL);
  return rf_checkpoint_prune(t->out, 0, -1, error); /* incomplete checkpoints may fill the disk */
}

/* ---- settings -------------------------------------------------------------------------------- */

rf_status rf_schedule_of(const rf_options *o, int64_t steps, rf_schedule *s, rf_error *error) {
  s->kind = (rf_schedule_kind)rf_options_choice(o, "schedule");
  s->steps = steps;
  s->peak = rf_options_float(o, "lr");
  s->floor = rf_options_float_or(o, "min-lr", s->peak / 10);
  s->warmup = rf_options_int_or(o, "warmup", s->steps / 20);
  s->decay = rf_options_int_or(o, "decay", s->steps / 5);
  if (s->kind == RF_SCHEDULE_WARMUP_EXPONENTIAL && s->floor <= 0 && s->peak > 0)
    return RF_FAIL(error, RAFTER_INVALID, "give a small --min-lr, such as a hundredth of --lr",
                   "an exponential never reaches 0 (--min-lr: expected more than 0, got %g)", s->floor);
  static const char *const SHAPES[] = {"warmup", "decay"};
  for (int i = 0; i < 2 && s->kind == RF_SCHEDULE_CONSTANT; i++)
    if (rf_options_is_typed(o, SHAPES[i]) && rf_options_int_or(o, SHAPES[i], 0) > 0)
      return RF_FAIL(error, RAFTER_INVALID, "add --schedule warmup-cosine",
                     "--%s has no effect with --schedule constant", SHAPES[i]);
  if (s->floor > s->peak)
    return RF_FAIL(error, RAFTER_INVALID, "lower --min-lr",
                   "the final learning rate is above the highest (--min-lr: expected at most %g, got %g)",
                   s->peak, s->floor);
  return RAFTER_OK;
}

/* Returns true if --epochs sets the length of the run. A file of options, such as run.json, may
 * have both --steps and --epochs. Then the option on the command line takes precedence. */
bool rf_trains_by_epochs(const rf_options *o) {
  return rf_options_is_set(o, "epochs") && !(rf_options_source(o, "steps") == RF_OPTION_GIVEN &&
                                             rf_options_source(o, "epochs") != RF_OPTION_GIVEN);
}

static rf_status check_length(const rf_options *o, bool random, rf_error *error) {
  if (!rf_trains_by_epochs(o)) return RAFTER_OK;
  if (rf_options_source(o, "steps") == RF_OPTION_GIVEN)
    return RF_FAIL(error, RAFTER_INVALID, "give only one of --steps and --epochs",
                   "--steps and --epochs both set the length of the training");
  if (!(rf_options_float(o, "epochs") > 0))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "--epochs is out of range (expected above 0, got %g)",
                   rf_options_float(o, "epochs"));
  return random ? RF_FAIL(error, RAFTER_INVALID, "give --steps", "random data never ends (--epochs %g)",
                          rf_options_float(o, "epochs"))
                : RAFTER_OK;
}

static rf_status trainer_settings(rafter_trainer *t, const rf_options *o, rf_train_settings *s,
                                  rf_error *error) {
  RF_TRY(rf_settings_resolve(o, "train", &t->settings, error));
  *s = (rf_train_settings){.model = t->settings.model,
                           .plan = t->settings.plan,
                           .seed = (uint64_t)rf_options_int(o, "seed"),
                           .weights_folder = t->settings.weights_folder,
                           .work_folder = t->out};
  /* bench trains on random tokens with a constant learning rate */
  if (strcmp(rf_options_command(o), "train")) {
    s->data = "random:seed=0";
    s->pack = true;
    s->schedule =
        (rf_schedule){.kind = RF_SCHEDULE_CONSTANT, .peak = 1e-4, .floor = 1e-4, .steps = INT64_MAX / 4};
    return RAFTER_OK;
  }
  s->data = rf_options_text_or(o, "data", "");
  s->pack = !strcmp(rf_options_text(o, "packing"), "fit");
  s->loss_on = (rf_loss_on)rf_options_choice(o, "loss-on");
  if (rf_options_is_set(o, "fields")) s->fields = rf_options_text(o, "fields");
  if (rf_options_is_set(o, "template")) s->template = rf_options_text(o, "template");
  s->val_fraction = rf_options_int(o, "val-every") > 0 ? rf_options_float(o, "val-fraction") : 0;
  const bool random = rf_sources_are_random(s->data);
  if (random) s->val_fraction = 0; /* random tokens have no validation split */
  RF_TRY(check_length(o, random, error));
  s->debug = rf_debug_of(o);
  if (s->debug.poison) s->plan.guard_bytes = 64;
  if (*t->resume) s->resume_folder = t->resume;
  return rf_schedule_of(o, rf_options_int(o, "steps"), &s->schedule, error);
}

/* Returns true if the run records a trace. A resumed run records a trace only if --trace is given
 * again. */
bool rf_trains_with_trace(const rf_options *o) {
  return rf_options_is_set(o, "trace") &&
         (!rf_options_is_set(o, "resume") || rf_options_source(o, "trace") == RF_OPTION_GIVEN);
}

/* Copies the tokenizer of --tokenizer into the run's folder, so that the run does not depend on
 * other files. A resumed run already has this copy. */
static rf_status take_tokenizer(rafter_trainer *t, const rf_options *o, rf_train_settings *s,
                                rf_error *error) {
  const char *given = rf_options_text(o, "tokenizer"), *weights = s->weights_folder;
  if (!given) return RAFTER_OK;
  bool own = weights && *weights && rf_tokenizer_in(weights);
  bool recorded = rf_options_is_set(o, "resume") && rf_options_source(o, "tokenizer") != RF_OPTION_GIVEN;
  /* the weights are a checkpoint of the run, with the run's tokenizer */
  if (own && recorded) return RAFTER_OK;
  if (own)
    return RF_FAIL(error, RAFTER_INVALID, "leave --tokenizer out",
                   "the model has a tokenizer of its own (%s, --tokenizer %.200s)", weights, given);
  snprintf(t->tokenizer, sizeof t->tokenizer, "%s/tokenizer", t->out);
  s->tokenizer_folder = t->tokenizer;
  return rf_tokenizer_in(t->tokenizer) ? RAFTER_OK : rf_tokenizer_place(given, t->tokenizer, error);
}

/* Only host 0 keeps files. The other hosts work in temporary folders, which may contain converted
 * data. If a rank is killed, its folder remains. The next rank on this machine removes the
 * folder. */
static rf_status make_hidden(rafter_trainer *t, int host, rf_error *error) {
  enum { TRIES = 100 };
  const char *root = getenv("TMPDIR");
  char machine[41] = "", name[80];
  if (!root || !*root) root = "/tmp";
  gethostname(machine, sizeof machine - 1);
  snprintf(name, sizeof name, "rafter-%s-rank%d", machine, host);
  rf_partials_sweep(root, name);
  for (int i = 0; i < TRIES && !t->hidden; i++) {
    snprintf(t->out, sizeof t->out, "%.3900s/%s.part-%d-%d", root, name, (int)getpid(), i);
    t->hidden = mkdir(t->out, 0700) == 0;
    if (!t->hidden && errno != EEXIST) break;
  }
  if (t->hidden) return rf_partial_add(t->out, -1), RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "set TMPDIR to a folder that can be written",
                 "cannot make the folder %s (%s)", t->out, strerror(errno));
}

/* Sets t->out to the folder of the run. */
static void name_folder(rafter_trainer *t, const rf_options *o, const char *resume, bool *unnamed) {
  *unnamed = false;
  if (rf_options_knows(o, "out") && rf_options_is_set(o, "out"))
    snprintf(t->out, sizeof t->out, "%s", rf_options_text(o, "out"));
  else if (resume) snprintf(t->out, sizeof t->out, "%s", resume);
  else {
    rf_journal_name_folder(o, t->out);
    *unnamed = true;
  }
}

rf_status rf_trainer_begin_folder(rafter_trainer *t, const rf_options *o, bool *ours, rf_error *error) {
  const char *resume = rf_options_text(o, "resume");
  bool unnamed;
  rf_hosts hosts;
  t->command = true;
  RF_TRY(rf_hosts_of(o, &hosts, error));
  if (hosts.host > 0) {
    *ours = false;
    if (resume) RF_TRY(find_checkpoint(t, resume, error));
    return make_hidden(t, hosts.host, error);
  }
  name_folder(t, o, resume, &unnamed);
  if (resume) RF_TRY(find_checkpoint(t, resume, error));
  if (!unnamed) RF_TRY(check_out(t, resume, error));
  *ours = unnamed || is_bare(t->out);
  return take_folder(t, o, unnamed, resume, error);
}

static rf_status open_trainer(rafter_trainer *t, const rf_train_settings *s, rf_error *error) {
  if (s->plan.build.objective == RF_OBJECTIVE_NLL) return rf_trainer_open(s, &t->trainer, error);
  RF_TRY(rf_preferences_open(s, &t->preferences, error));
  t->trainer = t->preferences->trainer;
  return RAFTER_OK;
}

/* Computes reference log-probabilities before the first step of a trainer of rafter.h. */
static rf_status begin_alone(rafter_trainer *t, const rf_options *o, rf_error *error) {
  const bool validates = rf_options_int(o, "val-every") > 0;
  bool all;
  return rf_preferences_begin(t->preferences, t->trainer->settings.schedule.steps,
                              validates ? rf_options_int(o, "val-rows") : 0, NULL, NULL, &all, error);
}

rf_status rf_trainer_of_job(const rafter_job *job, const rafter_sink *sink, rafter_trainer **out,
                            rf_error *error) {
  rf_status status = RAFTER_OK;
  const rf_options *o = job->options;
  rafter_trainer *t = calloc(1, sizeof *t);
  rf_train_settings *s = calloc(1, sizeof *s);
  if (!t || !s) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a trainer");
    goto done;
  }
  t->lock = -1;
  t->command = sink != NULL;
  bool trains = !strcmp(rf_options_command(o), "train");
  const char *resume = trains ? rf_options_text(o, "resume") : NULL;
  bool unnamed = false;
  rf_hosts hosts;
  RF_GO(rf_hosts_of(o, &hosts, error));
  if (hosts.host > 0) RF_GO(make_hidden(t, hosts.host, error));
  else name_folder(t, o, resume, &unnamed);
  if (resume) RF_GO(find_checkpoint(t, resume, error));
  RF_GO(trainer_settings(t, o, s, error));
  if (sink) s->progress = rf_load_bar(sink);
  rf_device_listen(&s->plan.device, sink);
  if (trains && !unnamed) RF_GO(check_out(t, resume, error));
  /* A trainer of rafter.h needs a folder only for token shards that are made from text. */
  bool writes = trains && (sink || !unnamed || !rf_sources_are_random(s->data));
  bool ours = writes && (unnamed || is_bare(t->out));
  if (writes) RF_GO(take_folder(t, o, unnamed, resume, error));
  if (writes) status = take_tokenizer(t, o, s, error);
  if (status == RAFTER_OK) status = open_trainer(t, s, error);
  /* the number of steps per epoch is known only after loading the data */
  if (status == RAFTER_OK && trains && rf_trains_by_epochs(o)) {
    int64_t steps = 0;
    status = rf_loader_steps(&t->trainer->loader, rf_options_float(o, "epochs"), &steps, error);
    if (status == RAFTER_OK) status = rf_schedule_of(o, steps, &t->trainer->settings.schedule, error);
  }
  if (status == RAFTER_OK && trains && rf_trains_with_trace(o))
    status = rf_traced_check(o, t->trainer->step + 1, t->trainer->settings.schedule.steps, error);
  if (status == RAFTER_OK && t->preferences && !sink) status = begin_alone(t, o, error);
  if (ours && status != RAFTER_OK && *t->tokenizer) rf_remove_folder(t->tokenizer);
  /* the folder may contain token shards of the data */
  if (ours && status != RAFTER_OK) rf_remove_folder(t->out);
done:
  free(s);
  if (status == RAFTER_OK) *out = t;
  else rafter_trainer_close(t);
  return status;
}

/* ---- the public trainer ---------------------------------------------------------------------- */

rafter_status rafter_trainer_open(const rafter_job *job, rafter_trainer **trainer, rafter_error *error) {
  const char *command = rf_options_command(job->options);
  if (strcmp(command, "train") && strcmp(command, "bench"))
    return RF_FAIL(error, RAFTER_INVALID, "make the job with rafter_job_new(\"train\", ...)",
                   "a trainer needs a train or bench job (got %s)", command);
  return rf_trainer_of_job(job, NULL, trainer, error);
}

void rafter_trainer_progress(const rafter_trainer *t, int64_t *done, int64_t *of) {
  *done = t->trainer->step;
  *of = t->trainer->settings.schedule.steps;
}
rafter_status rafter_trainer_step(rafter_trainer *t, rafter_step *step, rafter_error *error) {
  rafter_step own = {0};
  RF_TRY(rf_sized_copy(&own, sizeof own, step, step->size, "rafter_step", error));
  RF_TRY(rf_take_step(t, &own, NULL, error));
  rf_sized_give(step, &own, sizeof own);
  return RAFTER_OK;
}
rafter_status rafter_trainer_validate(rafter_trainer *t, int64_t rows, double *loss, rafter_error *error) {
  return rf_take_validation(t, rows, loss, NULL, error);
}
rafter_status rafter_trainer_save(rafter_trainer *t, const char *folder, rafter_error *error) {
  return rf_checkpoint_save(t->trainer, folder, error);
}

rafter_status rafter_trainer_memory(const rafter_trainer *t, int64_t *arena_bytes, int64_t *outside_bytes,
                                    rafter_error *error) {
  rf_outside outside;
  RF_TRY(rf_run_outside(t->trainer->run, &outside, error));
  *arena_bytes = rf_run_arena_bytes(t->trainer->run);
  *outside_bytes = outside.outside_bytes;
  return RAFTER_OK;
}

rf_status rf_take_step(rafter_trainer *t, rafter_step *step, rf_preference *preference, rf_error *error) {
  rf_preference own;
  if (!t->preferences) return rf_trainer_step(t->trainer, step, error);
  return rf_preferences_step(t->preferences, step, preference ? preference : &own, error);
}

rf_status rf_take_validation(rafter_trainer *t, int64_t rows, double *loss, rf_preference *preference,
                             rf_error *error) {
  rf_preference own;
  if (!t->preferences) return rf_trainer_validate(t->trainer, rows, loss, error);
  if (!preference) preference = &own;
  RF_TRY(rf_preferences_validate(t->preferences, rows, preference, error));
  *loss = preference->loss;
  return RAFTER_OK;
}

static int add_reference(const rafter_trainer *t, rf_report_pass pass[RF_TRAINER_PASSES], int count) {
  const rf_references *r = t->preferences ? t->preferences->references : NULL;
  if (!r) return count;
  pass[count] = (rf_report_pass){.name = "reference",
                                 .plan = r->plan,
                                 .measured = rf_run_measured(t->trainer->run, count),
                                 .timed = rf_run_timed(t->trainer->run, count),
                                 .count = r->passes,
                                 .tokens = (double)r->scored_tokens,
                                 .seconds = r->seconds};
  return count + 1;
}

int rf_trainer_passes(const rafter_trainer *t, rf_report_pass pass[RF_TRAINER_PASSES]) {
  const rf_trainer *r = t->trainer;
  pass[0] = (rf_report_pass){
      .name = "train", .plan = r->plan, .measured = rf_run_measured(r->run, 0), .count = r->counted.steps};
  pass[0].timed = rf_run_timed(r->run, 0);
  pass[0].seconds = r->counted.step_seconds;
  pass[0].tokens = (double)r->counted.tokens;
  if (!r->val_plan) return add_reference(t, pass, 1);
  pass[1] = (rf_report_pass){.name = "validation",
                             .plan = r->val_plan,
                             .measured = rf_run_measured(r->run, 1),
                             .timed = rf_run_timed(r->run, 1),
                             .count = r->counted.validation_passes};
  pass[1].seconds = r->counted.validation_seconds;
  return add_reference(t, pass, 2);
}

static json_t *report_json(const rafter_trainer *t) {
  rf_report_pass pass[RF_TRAINER_PASSES];
  return rf_journal_report(t->trainer->run, pass, rf_trainer_passes(t, pass));
}

rafter_status rafter_trainer_report(const rafter_trainer *t, char **json, rafter_error *error) {
  json_t *object = report_json(t);
  *json = rf_json_text(object, 0);
  json_decref(object);
  return *json ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
}

const rf_plan *rf_plan_of_trainer(const rafter_trainer *t) { return t->trainer->plan; }
rf_status rf_trainer_leave_trace(const rafter_trainer *t, const rf_record *record, const rf_options *options,
                                 const char *part, json_t *results, const rafter_sink *sink,
                                 rf_error *error) {
  rf_report_pass pass[RF_TRAINER_PASSES];
  const rf_traced_run traced = {record, t->trainer->run, pass, rf_trainer_passes(t, pass)};
  return rf_traced_leave(&traced, options, part, results, sink, error);
}

void rafter_trainer_close(rafter_trainer *t) {
  if (!t) return;
  if (t->preferences) rf_preferences_close(t->preferences);
  else rf_trainer_close(t->trainer);
  if (t->lock >= 0) close(t->lock);
  if (t->hidden) {
    rf_remove_folder(t->out);
    rf_partial_done_folder(t->out);
  }
  free(t);
}
