/* rl.c - `rafter rl`: reads the options, and opens the parts of a run. rl_run.c runs the steps. */
#define _GNU_SOURCE
#include "api/rl_run.h"

#include "base/file.h"
#include "journal/executed.h"
#include "journal/traced.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All that a run owns. */
typedef struct parts {
  rf_options *options; /* options of the run, with the sizes that choose_sizes has set */
  rf_settings roll;    /* settings of sampling */
  rf_prompt_reader reader;
  rf_rewards *rewards;
  rf_rl_prompts *data, *held_out;
  rf_rl_settings settings;
  rf_journal journal;
  rf_record *traced;
  rf_executed sampled; /* measurements of sampling, which are set at the end of the run */
  rf_rl_run run;
} parts;

/* Sets options for the sizes that the user left open, so that run.json records the sizes. */
static rf_status choose_sizes(parts *p, rf_error *error) {
  RF_TRY(rf_settings_resolve(p->options, "generate", &p->roll, error));
  RF_TRY(rf_rl_sizes_set(p->options, rf_mesh_copies(&p->roll.plan.build.mesh), error));
  return rf_settings_resolve(p->options, "generate", &p->roll, error);
}

static void say_line(void *self, const char *line) { rf_note(self, "%s\n", line); }

static rf_status open_rewards(parts *p, rf_error *error) {
  rf_reward_options options = rf_reward_options_of(p->options);
  options.elsewhere = p->roll.plan.device.hosts.host > 0; /* host 0 sends the rewards */
  options.stop = p->run.sink->stop;
  options.say = say_line;
  options.self = (void *)p->run.sink;
  return rf_rewards_open(&options, &p->rewards, error);
}

static rf_status check(const rf_options *o, rf_error *error) {
  if (!rf_options_is_set(o, "data"))
    return RF_FAIL(error, RAFTER_INVALID,
                   "for example rafter rl MODEL --lora rank=16 --data prompts.jsonl --reward gsm8k",
                   "--data is missing (expected a file of JSON Lines)");
  if (rf_options_int(o, "eval-every") > 0 && !rf_options_is_set(o, "eval-data") &&
      rf_options_is_typed(o, "eval-every"))
    return RF_FAIL(error, RAFTER_INVALID, "give --eval-data FILE", "--eval-every needs held-out prompts");
  return RAFTER_OK;
}

/* Reads the prompts. Without --seq, the context has the length of the longest prompt with its
 * answer. */
static rf_status read_prompts(parts *p, rf_error *error) {
  rf_options *o = p->options;
  const char *held_out = rf_options_text(o, "eval-data");
  int64_t answer = rf_options_int(o, "max-tokens"), most = p->roll.model.max_seq;
  if (rf_options_given(o, "seq")) most = rf_options_int(o, "seq");
  if (most <= answer)
    return RF_FAIL(error, RAFTER_INVALID, "raise --seq, or lower --max-tokens",
                   "an answer leaves no room for a prompt (--max-tokens: expected less than %lld, got %lld)",
                   (long long)most, (long long)answer);
  p->reader = rf_reader_of(o, &p->roll);
  p->reader.chats =
      rf_options_flag(o, "chat") || rf_options_is_set(o, "system") || rf_options_is_set(o, "template");
  p->reader.ignores_ends = rf_options_flag(o, "ignore-eos");
  RF_TRY(rf_prompt_reader_open(&p->reader, p->reader.chats, error));
  RF_TRY(
      rf_rl_prompts_open(rf_options_text(o, "data"), &p->reader, p->rewards, most - answer, &p->data, error));
  if (held_out)
    RF_TRY(rf_rl_prompts_open(held_out, &p->reader, p->rewards, most - answer, &p->held_out, error));
  RF_TRY(rf_end_ids_of(&p->roll.model, p->roll.weights_folder, p->reader.tokenizer, &p->reader.ends, error));
  if (rf_options_given(o, "seq")) return RAFTER_OK;
  int64_t longest = rf_rl_prompts_longest(p->data), held = held_out ? rf_rl_prompts_longest(p->held_out) : 0;
  return rf_options_set_int(o, "seq", (longest > held ? longest : held) + answer, error);
}

/* Computes the settings of the policy and of sampling from the options. */
static rf_status resolve(parts *p, rafter_trainer *t, rf_error *error) {
  const rf_options *o = p->options;
  RF_TRY(rf_settings_resolve(o, "train", &t->settings, error));
  RF_TRY(rf_settings_resolve(o, "generate", &p->roll, error));
  const rf_build_options *b = &t->settings.plan.build;
  RF_TRY(rf_rl_shape_of(o, b->microbatch * b->accumulate, &p->run.shape, error));
  return rf_rl_shape_policy(o, &p->run.shape, &t->settings, error);
}

static bool drops_flat(const rf_options *o, const rf_rl_loss *loss) {
  const char *text = rf_options_text(o, "dynamic-sampling");
  return text ? !strcmp(text, "on") : loss->drops_flat;
}

static rf_status settings_of(parts *p, rafter_trainer *t, rf_error *error) {
  const rf_options *o = p->options;
  const rf_rl_shape *shape = &p->run.shape;
  rf_rl_settings *s = &p->settings;
  *s = (rf_rl_settings){.train = {.model = t->settings.model,
                                  .plan = t->settings.plan,
                                  .seed = (uint64_t)rf_options_int(o, "seed"),
                                  .weights_folder = t->settings.weights_folder,
                                  .work_folder = t->out,
                                  .debug = rf_debug_of(o),
                                  .progress = rf_load_bar(p->run.sink)},
                        .roll = p->roll.plan.build,
                        .loss = shape->loss,
                        .beta = shape->beta,
                        .prompts = shape->prompts,
                        .samples = shape->samples,
                        .max_tokens = rf_options_int(o, "max-tokens"),
                        .iterations = shape->iterations,
                        .masks_cut = rf_options_flag(o, "mask-cut"),
                        .drops_flat = drops_flat(o, shape->loss),
                        .overlong = rf_options_int(o, "overlong"),
                        .tokenizer = p->reader.tokenizer,
                        .data = p->data,
                        .held_out = p->held_out,
                        .rewards = p->rewards,
                        .progress = rf_rl_run_progress,
                        .self = &p->run};
  if (s->train.debug.poison) s->train.plan.guard_bytes = 64;
  if (*t->resume) s->train.resume_folder = t->resume;
  rf_sampling_typed(o, &s->sampler);
  s->sampler.eos = p->reader.ends.id;
  s->sampler.eos_count = p->reader.ends.count;
  s->sampler.ignore_eos = rf_options_flag(o, "ignore-eos");
  rf_device_listen(&s->train.plan.device, p->run.sink);
  return rf_schedule_of(o, rf_options_int(o, "steps") * shape->iterations, &s->train.schedule, error);
}

/* Returns the mean number of tokens of a prompt, rounded up. */
static int64_t mean_prompt(const rf_rl_prompts *prompts) {
  int64_t count = rf_rl_prompts_count(prompts), tokens = 0;
  for (int64_t i = 0; i < count; i++) tokens += rf_rl_prompts_row(prompts, i)->count;
  return (tokens + count - 1) / count;
}

/* Returns the options for run.json. With these options, the run can be repeated and planned. */
static json_t *recorded_options(const parts *p) {
  json_t *options = rf_options_json(p->options);
  char run[4096];
  /* `rafter plan --job rl` needs these two options, which `rafter rl` does not have */
  json_object_set_new(options, "requests", json_integer((json_int_t)p->run.shape.prompts));
  json_object_set_new(options, "prompt-tokens", json_integer((json_int_t)mean_prompt(p->data)));
  if (!rf_options_is_set(p->options, "resume")) return options;
  rf_run_folder_of_resume(rf_options_text(p->options, "resume"), run);
  if (rf_same_folder(run, p->run.folder->out)) json_object_del(options, "resume");
  return options;
}

/* Lists the plans of the run with their measurements, first the plans of the policy. `sampled` has
 * the measurements of sampling; NULL: sampling is not measured yet. */
static int passes_of(const parts *p, const rf_executed *sampled, rf_report_pass pass[4]) {
  const rf_rl *rl = p->run.rl;
  int count = rf_trainer_passes(p->run.folder, pass);
  rf_executed_plans(rl->generator, &pass[count]);
  for (int i = 0; i < 2 && sampled; i++) pass[count + i] = sampled->pass[i];
  count += 2;
  if (rl->reference)
    pass[count++] = (rf_report_pass){.name = "reference",
                                     .plan = rl->plans.reference,
                                     .measured = rf_run_measured(rl->reference->run, rl->reference->number)};
  return count;
}

static rf_status run(parts *p, bool *stopped, rf_error *error) {
  rf_rl_run *r = &p->run;
  rf_report_pass pass[4];
  RF_TRY(rf_rl_open(&p->settings, &r->rl, error));
  r->folder->trainer = r->rl->trainer;
  int passes = passes_of(p, NULL, pass);
  p->journal.unlisted = r->folder->hidden;
  RF_TRY(rf_journal_begin(&p->journal, r->sink, p->options, recorded_options(p), r->folder->out, pass, passes,
                          error));
  RF_TRY(rf_traced_begin(p->options, p->traced, r->rl->run, error));
  RF_TRY(rf_rl_run_begin(r, error));
  rf_status status = rf_rl_run_steps(r, stopped, error);
  rf_put_bar(r->sink, "%s", "");
  rf_rl_run_results(r, p->journal.results);
  RF_TRY(status);
  RF_TRY(rf_save_run(r->folder, r->sink, r->keep, &r->saved, error));
  int64_t done = rf_rl_steps_done(r->rl);
  if (!*stopped && (done < r->steps || r->rl->late))
    rf_say(r->sink,
           "the time is up at step %lld of %lld (--max-seconds); `rafter rl --resume %s` continues\n",
           (long long)done, (long long)r->steps, r->folder->out);
  RF_TRY(rf_executed_of(r->rl->generator, &p->sampled, error));
  passes = passes_of(p, &p->sampled, pass);
  RF_TRY(rf_traced_write(p->traced, &p->journal, pass, passes, error));
  if (done > r->first_step && !r->folder->hidden)
    RF_TRY(rf_journal_sum_up(&p->journal, r->rl->run, pass, passes, rf_now_seconds() - r->start, error));
  if (!*stopped) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped at step %lld; continue with --resume %s",
                 (long long)done, r->folder->out);
}

/* Closes everything. If the run made its folder but did not begin, removes the folder. */
static void close_all(parts *p, bool ours, rf_status status, const rf_error *error) {
  rf_rl_run *r = &p->run;
  rafter_trainer *t = r->folder;
  bool begun = p->journal.run != NULL;
  rf_journal_close(&p->journal, status, error);
  rf_rl_run_close(r);
  rf_rewards_close(p->rewards);
  rf_rl_close(r->rl);
  rf_rl_prompts_close(p->data);
  rf_rl_prompts_close(p->held_out);
  rf_prompt_reader_close(&p->reader);
  rf_record_close(p->traced);
  rf_executed_free(&p->sampled);
  if (t) {
    if (ours && !begun && status != RAFTER_OK) rf_remove_folder(t->out);
    t->trainer = NULL; /* rf_rl_close has closed it */
    rafter_trainer_close(t);
  }
  rf_options_free(p->options);
}

static rf_status begin(parts *p, const rf_options *asked, bool *ours, rf_error *error) {
  rf_rl_run *r = &p->run;
  RF_TRY(rf_options_with_model(asked, rf_options_argument(asked, 0), &p->options, error));
  rf_options *o = p->options;
  r->options = o;
  r->steps = rf_options_int(o, "steps");
  r->save_every = rf_options_int(o, "save-every");
  r->eval_every = rf_options_int(o, "eval-every");
  r->show = rf_options_int(o, "show-samples");
  r->keep = (int)rf_options_int(o, "keep");
  r->json = rf_options_flag(o, "json");
  if (rf_options_is_set(o, "max-seconds")) r->seconds_limit = rf_options_float(o, "max-seconds");
  RF_TRY(check(o, error));
  RF_TRY(choose_sizes(p, error));
  RF_TRY(open_rewards(p, error));
  RF_TRY(read_prompts(p, error));
  if (!(r->folder = calloc(1, sizeof *r->folder)))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  r->folder->lock = -1;
  RF_TRY(resolve(p, r->folder, error));
  rf_note_random(&p->roll.model, p->roll.weights_folder, r->sink);
  RF_TRY(rf_traced_open(o, &p->traced, error));
  RF_TRY(rf_trainer_begin_folder(r->folder, o, ours, error));
  return settings_of(p, r->folder, error);
}

static rf_status rl(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  parts *p = calloc(1, sizeof *p);
  bool ours = false, stopped = false;
  if (!p) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  p->run = (rf_rl_run){.sink = sink, .start = rf_now_seconds(), .saved = -1};
  rf_status status = begin(p, job->options, &ours, error);
  if (status == RAFTER_OK) status = run(p, &stopped, error);
  close_all(p, ours, status, error);
  free(p);
  return status;
}

static rf_status rf_command_rl(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  rf_note_machine(job->options, sink);
  if (!rf_options_is_set(job->options, "resume")) return rl(job, sink, error);
  rafter_job merged = {0};
  if (rf_options_is_typed(job->options, "iterations"))
    return RF_FAIL(error, RAFTER_INVALID, "leave --iterations out",
                   "a resumed run keeps its number of iterations, which count its steps");
  RF_TRY(rf_job_resumed(job, "rl", &merged, error));
  rf_status status = rl(&merged, sink, error);
  rf_options_free(merged.options);
  return status;
}

static const rf_option RL[] = {
    RF_WORDS(
        "data", PATH, "FILE", NULL, "Data",
        "JSON Lines of prompts: \"prompt\", \"messages\" or \"tokens\", with \"id\", the right \"answer\", "
        "and fields for the reward command"),
    RF_FLAG("chat", "Data",
            "put each \"prompt\" into the chat template; --system and --template also do this"),
    RF_WORDS("eval-data", PATH, "FILE", NULL, "Evaluation", "held-out prompts, in the form of --data"),
    RF_NUMBER("eval-every", INT, "STEPS", 0, 1e12, "10", "Evaluation",
              "steps between evaluations, which answer all held-out prompts greedily; 0: never"),
    RF_CHOICE("loss", RF_RL_LOSS_NAMES, "grpo", "Reinforcement learning",
              "how rewards become a loss; docs/rl.md has the formulas"),
    RF_NUMBER("beta", FLOAT, NULL, 0, 1e6, NULL, "Reinforcement learning",
              "weight of the KL divergence from the base model; 0: the base model does not run and takes no "
              "memory; unset: 0.04 (grpo, rloo), 0.01 (reinforce++), otherwise 0"),
    RF_NUMBER("prompts", INT, "N", 1, 1 << 20, "8", "Reinforcement learning", "prompts of a step"),
    RF_NUMBER("samples", INT, "N", 1, 1 << 16, "8", "Reinforcement learning", "answers to each prompt"),
    RF_NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, "256", "Reinforcement learning",
              "maximum tokens of an answer"),
    RF_FLAG("mask-cut", "Reinforcement learning", "exclude answers that reach --max-tokens from the loss"),
    RF_NUMBER(
        "overlong", TOKENS, NULL, 0, 1 << 24, "0", "Reinforcement learning",
        "number of tokens before --max-tokens over which the reward of an answer falls by 1; 0: no penalty"),
    RF_CHOICE("dynamic-sampling", "on|off", NULL, "Reinforcement learning",
              "replace prompts whose answers all have the same reward by other prompts; unset: on for dapo"),
    RF_NUMBER("batch", INT, "ANSWERS", 1, 1024, NULL, "Memory",
              "answers sampled at once; unset: all of a step, but at most 64"),
    RF_NUMBER("steps", INT, NULL, 1, 1e12, "100", "Training", "steps of sampling and training"),
    RF_NUMBER("lr", FLOAT, "RATE", 0, 100, "1e-5", "Training",
              "highest learning rate; adapters of small models take 1e-4 and more"),
    RF_CHOICE("schedule", "constant|warmup-cosine|warmup-exponential|wsd", "constant", "Training",
              "shape of the learning rate over the steps"),
    RF_NUMBER("save-every", INT, "STEPS", 0, 1e12, "10", "Checkpoints",
              "steps between checkpoints; 0: only at the end"),
    RF_NUMBER("show-samples", INT, "PROMPTS", 0, 1 << 20, "2", "Output",
              "number of prompts per step whose answers are written to samples.jsonl, for the report"),
    RF_FLAG("ignore-eos", "Sampling", "continue after the end-of-text token"),
    {.name = NULL},
};

const rf_command RF_COMMAND_RL = {
    RF_COMMAND_HEAD("rl", "MODEL", 1, 1, "Run", "Train a model on rewards of its own answers."),
    .options = {RF_TABLE(RL), RF_TABLE(RF_TRAINING_RUN_OPTIONS), RF_TABLE(RF_RL_OPTIONS),
                RF_TABLE(RF_REWARD_OPTIONS), RF_TABLE(RF_CHAT_OPTIONS), RF_TABLE(RF_SAMPLING_OPTIONS),
                RF_TABLE(RF_STEP_OPTIONS), RF_INFERENCE_TABLES, RF_TABLE(RF_CACHE_OPTIONS),
                RF_TABLE(RF_RUN_FOLDER_OPTIONS), RF_TABLE(RF_TRACE_OPTIONS), RF_TABLE(RF_DEBUG_OPTIONS),
                RF_TABLE(RF_EVERY_OPTIONS)},
    .common = "data reward reward-command loss prompts samples max-tokens beta lora lr steps max-seconds "
              "eval-data resume dtype out json",
    .examples = {"rl models/org/name --lora rank=16 --data prompts.jsonl --reward gsm8k:1,format:0.2 # GRPO",
                 "rl model.gguf --lora rank=16 --data prompts.jsonl --reward-command ./reward --beta 0"},
    .run = rf_command_rl};
