/* generate.c - `rafter generate`: prints an answer as it grows, or answers prompts of a file. */
#define _GNU_SOURCE
#include "api/answers.h"
#include "journal/traced.h"
#include "journal/executed.h"
#include "base/file.h"
#include "generate/drafter.h"
#include "generate/speculate.h"
#include "plan/advice.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
  rf_settings settings;
  rf_prompt_reader reader;
  rf_prompts prompts;
  const char *path; /* file of the prompts; NULL: none */
  const rafter_sink *sink;
  rf_generator *generator;
  rf_out_file *out;
  rf_journal journal;
  rf_record *record; /* --trace */
  bool json, streams, verbose, converts;
  int64_t written; /* number of prompts whose answers were written */
  double start, first_seconds, seconds;
  /* load_seconds: to open the model. process_seconds: from program start to the first token. */
  double load_seconds, process_seconds;
} job;

/* ---- output ---------------------------------------------------------------------------------- */

static json_t *numbers(const float *values, int64_t count) {
  json_t *list = json_array();
  for (int64_t i = 0; i < count; i++) json_array_append_new(list, json_real((double)values[i]));
  return list;
}
static json_t *ids_json(const int32_t *ids, int64_t count) {
  json_t *list = json_array();
  for (int64_t i = 0; i < count && ids[i] >= 0; i++) json_array_append_new(list, json_integer(ids[i]));
  return list;
}

/* Adds the fields of an answer that every output format has. */
static void put_answer(const job *j, const rf_reply *r, json_t *json) {
  json_object_set_new(json, "tokens", ids_json(r->tokens.at, r->tokens.count));
  json_object_set_new(json, "logprobs", numbers(r->logprobs, r->tokens.count));
  json_object_set_new(json, "text", j->reader.tokenizer ? rf_json_bytes(r->text, r->bytes) : json_null());
  json_object_set_new(json, "finish_reason", json_string(rf_finish_name(r->finish)));
  if (!r->top) return;
  json_t *tops = json_array();
  for (int64_t t = 0; t < r->tokens.count; t++) {
    json_t *ids = ids_json(r->top_ids + t * r->top, r->top);
    json_t *logprobs = numbers(r->top_logprobs + t * r->top, (int64_t)json_array_size(ids));
    json_array_append_new(tops, json_pack("{so so}", "ids", ids, "logprobs", logprobs));
  }
  json_object_set_new(json, "top", tops);
}

static rf_status put_row(job *j, const rf_prompt *row, int sample, rf_error *error) {
  json_t *json = json_object();
  json_object_set_new(json, "id", row->id ? json_incref(row->id) : json_integer(row - j->prompts.row));
  json_object_set_new(json, "prompt", row->text ? rf_json_bytes(row->text, strlen(row->text)) : json_null());
  put_answer(j, &row->replies.reply[sample], json);
  json_object_set_new(json, "seed",
                      json_integer((json_int_t)rf_sample_seed(row->request.sampler.seed, sample)));
  json_object_set_new(json, "sample", json_integer(sample));
  if (!j->out) {
    rf_put_json(j->sink, json);
    return RAFTER_OK;
  }
  rf_status status = rf_json_write_line(j->out, json, error);
  json_decref(json);
  return status;
}

/* Writes finished answers, in the order of the prompts. */
static rf_status put_ready(void *self, rf_replies *last, rf_error *error) {
  job *j = self;
  (void)last;
  for (; j->written < j->prompts.rows && !j->prompts.row[j->written].replies.left; j->written++) {
    rf_prompt *row = &j->prompts.row[j->written];
    if (!j->path && row->request.samples == 1) continue;
    for (int s = 0; s < row->request.samples; s++) {
      RF_TRY(put_row(j, row, s, error));
      if (j->json || j->out) continue;
      if (row->request.samples > 1) rf_say(j->sink, "--- sample %d of %d\n", s + 1, row->request.samples);
      rf_say_text(j->sink, strdup(row->text && !j->reader.chats ? row->text : ""));
      rf_say_text(j->sink, strdup(row->replies.reply[s].text));
      rf_say(j->sink, "\n");
    }
    if (j->path) rf_replies_free(&row->replies);
  }
  return RAFTER_OK;
}

/* Predicted seconds to load the weights. Returns -1 (unknown) if the weights are converted, or if
 * there is no file of weights. */
static double planned_load(const job *j) {
  const rf_settings *s = &j->settings;
  return *s->weights_folder && !j->converts ? rf_plan_load_seconds(j->generator->prefill) : -1;
}

/* Predicted seconds to open the tokenizer. The prediction depends on the bytes of tokenizer.json,
 * or on the size of a vocabulary with scores. Returns 0 if the machine file has no measurement. */
static double planned_tokenizer(const job *j) {
  const rf_tokenizer *tokenizer = j->reader.tokenizer;
  bool json = tokenizer && rf_tokenizer_json_bytes(tokenizer) > 0;
  double bytes = json        ? (double)rf_tokenizer_json_bytes(tokenizer)
                 : tokenizer ? (double)rf_tokenizer_scored_bytes(tokenizer)
                             : 0;
  double seconds =
      bytes > 0 ? rf_cost_load_seconds(&j->settings.machine, json ? "tokenizer.json" : "vocabulary", bytes)
                : 0;
  return seconds > 0 ? seconds : 0;
}

/* The drafts of the run. `predicted`: tokens of a pass by the formula of speculate.h; `gain`: tokens
 * per second / tokens per second without drafts, by the plan, if each pass drafts. */
typedef struct draft_figures {
  double acceptance, tokens, predicted, gain;
} draft_figures;

static draft_figures drafts_of(const job *j) {
  rf_generate_counts c = rf_generator_counts(j->generator);
  const rf_build_options *b = &j->generator->settings.plan.build;
  rf_speculation_found found = {0};
  draft_figures d = {0};
  if (!c.verified) return d;
  double mean = (double)c.drafted / (double)c.verified;
  d.acceptance = c.compared ? (double)c.accepted / (double)c.compared : 1;
  d.tokens = 1 + (double)c.accepted / (double)c.verified;
  d.predicted = rf_speculation_tokens(d.acceptance, (int)lround(mean));
  const rf_speculation of = {j->generator->decode,
                             j->generator->drafter ? rf_drafter_plan(j->generator->drafter) : NULL,
                             (int)b->microbatch, b->seq, b->draft};
  if (rf_speculation_find(&of, d.acceptance, &found, NULL) == RAFTER_OK) d.gain = found.gain;
  return d;
}

static void say_drafts(const job *j, char text[240]) {
  rf_generate_counts c = rf_generator_counts(j->generator);
  draft_figures d = drafts_of(j);
  *text = 0;
  if (!j->settings.plan.build.draft) return;
  int at = snprintf(text, 240, "; %lld of %lld drafted tokens were right", (long long)c.accepted,
                    (long long)c.drafted);
  if (c.verified)
    snprintf(
        text + at, 240 - (size_t)at,
        ": acceptance %.2f, %.2f tokens per pass with drafts (predicted %.2f); with drafts in each pass, "
        "the plan predicts %.2f times the rate without drafts",
        d.acceptance, d.tokens, d.predicted, d.gain);
}

static void put_drafts(const job *j, json_t *json) {
  rf_generate_counts c = rf_generator_counts(j->generator);
  if (!j->settings.plan.build.draft) return;
  json_object_set_new(json, "drafted_tokens", json_integer((json_int_t)c.drafted));
  json_object_set_new(json, "accepted_tokens", json_integer((json_int_t)c.accepted));
  draft_figures d = drafts_of(j);
  if (!c.verified) return;
  json_object_set_new(json, "acceptance", json_real(d.acceptance));
  json_object_set_new(json, "tokens_per_verifying_pass", json_real(d.tokens));
  json_object_set_new(json, "predicted_tokens_per_verifying_pass", json_real(d.predicted));
  json_object_set_new(json, "predicted_gain", json_real(d.gain));
}

static void put_single(const job *j) {
  const rf_prompt *row = j->prompts.row;
  const rf_reply *r = row->replies.reply;
  double decode = j->seconds - j->first_seconds, steps = (double)(r->tokens.count - 1),
         bandwidth = j->settings.machine.read_bps;
  json_t *json = json_pack("{ss}", "command", "generate");
  put_answer(j, r, json);
  json_t *rest =
      json_pack("{sI sI sf sf sf sI}", "prompt_tokens", (json_int_t)row->tokens.count, "completion_tokens",
                (json_int_t)r->tokens.count, "seconds_to_first_token", j->first_seconds, "tokens_per_second",
                decode > 0 ? steps / decode : 0, "bandwidth_fraction",
                decode > 0 && bandwidth > 0 ? j->generator->decode->bytes * steps / decode / bandwidth : 0,
                "arena_bytes", (json_int_t)rf_generator_arena_bytes(j->generator));
  json_object_update(json, rest);
  json_decref(rest);
  put_drafts(j, json);
  double tokenizer = planned_tokenizer(j), load = planned_load(j),
         prompt = rf_generator_prompt_seconds(j->generator, row->tokens.count);
  json_object_set_new(json, "load_seconds", json_real(j->load_seconds));
  json_object_set_new(json, "tokenizer_seconds", json_real(j->reader.tokenizer_seconds));
  json_object_set_new(json, "process_seconds_to_first_token", json_real(j->process_seconds));
  json_object_set_new(json, "predicted_tokenizer_seconds", json_real(tokenizer));
  json_object_set_new(json, "predicted_prefill_seconds", json_real(prompt));
  json_object_set_new(json, "predicted_load_seconds", load < 0 ? json_null() : json_real(load));
  json_object_set_new(json, "predicted_seconds_to_first_token",
                      load < 0 ? json_null() : json_real(tokenizer + load + prompt));
  rf_put_json(j->sink, json);
  if (j->verbose && load >= 0)
    rf_note(j->sink,
            "first token %.2f s after the start of the program: tokenizer %.2f s (predicted %.2f), loading "
            "%.2f s (predicted %.2f), prompt %.2f s (predicted %.2f)\n",
            j->process_seconds, j->reader.tokenizer_seconds, tokenizer, j->load_seconds, load,
            j->first_seconds, prompt);
  char drafts[240], compute[RF_COMPUTE_LINE], rate[40] = "";
  say_drafts(j, drafts);
  if (steps > 0 && decode > 0) snprintf(rate, sizeof rate, ": %.1f tokens/s", steps / decode);
  rf_note(j->sink, "%lld token%s in %.2f s, the first after %.2f s%s%s%s\n", (long long)r->tokens.count,
          rf_plural(r->tokens.count), j->seconds, j->first_seconds, rate, drafts,
          rf_plan_compute_line(j->generator->decode, j->generator->prefill, compute));
}

/* Says why a single answer may be shorter than expected. */
static void say_end(const job *j) {
  const rf_prompt *row = j->prompts.row;
  const rf_reply *r = row->replies.reply;
  rf_chat *chat = NULL;
  if (r->finish == RF_FINISH_LENGTH && r->tokens.count < row->request.max_tokens)
    rf_note(j->sink, "notice: prompt and answer fill the context of %lld tokens (--seq)\n",
            (long long)j->settings.plan.build.seq);
  if (r->finish != RF_FINISH_STOP || j->reader.common.stop.string_count || j->reader.chats || !row->text ||
      !*j->reader.folder)
    return;
  if (rf_chat_find(j->reader.folder, &chat, NULL) == RAFTER_OK && chat)
    rf_note(j->sink, "notice: this model has a chat template; --chat puts the prompt into it\n");
  rf_chat_free(chat);
}

static void put_sum(const job *j, const char *path) {
  rf_generate_counts c = rf_generator_counts(j->generator);
  json_t *json =
      json_pack("{ss ss sI sI sI sI sf sf sI}", "command", "generate", "output", path, "rows",
                (json_int_t)j->written, "answers", (json_int_t)c.answers, "prompt_tokens",
                (json_int_t)c.prompt_tokens, "completion_tokens", (json_int_t)c.tokens, "seconds", j->seconds,
                "tokens_per_second", j->seconds > 0 ? (double)c.tokens / j->seconds : 0, "arena_bytes",
                (json_int_t)rf_generator_arena_bytes(j->generator));
  put_drafts(j, json);
  rf_put_json(j->sink, json);
}

static void say_sum(const job *j) {
  rf_generate_counts c = rf_generator_counts(j->generator);
  char drafts[240], compute[RF_COMPUTE_LINE];
  say_drafts(j, drafts);
  rf_say(j->sink,
         "%lld prompt%s, %lld answer%s with %lld token%s in %.2f s: %.1f tokens/s; %lld step%s, %lld of %lld "
         "prompt tokens shared, arena %.1f MiB%s%s\n",
         (long long)j->prompts.rows, rf_plural(j->prompts.rows), (long long)c.answers, rf_plural(c.answers),
         (long long)c.tokens, rf_plural(c.tokens), j->seconds,
         j->seconds > 0 ? (double)c.tokens / j->seconds : 0, (long long)c.passes, rf_plural(c.passes),
         (long long)c.reused, (long long)c.prompt_tokens,
         (double)rf_generator_arena_bytes(j->generator) / 0x1p20, drafts,
         rf_plan_compute_line(j->generator->decode, j->generator->prefill, compute));
}

/* ---- the run --------------------------------------------------------------------------------- */

static rf_status taken(void *self, rf_replies *a, const rf_event *event, rf_error *error) {
  job *j = self;
  rf_reply *r = &a->reply[event->sample];
  (void)error;
  if (j->first_seconds == 0) {
    j->first_seconds = rf_now_seconds() - j->start;
    j->process_seconds = rf_process_seconds();
  }
  if (j->streams && r->bytes > r->shown && j->sink->text) j->sink->text(j->sink->self, r->text + r->shown);
  r->shown = r->bytes;
  return RAFTER_OK;
}

static bool stepped(void *self, int events) {
  job *j = self;
  j->seconds = rf_now_seconds() - j->start;
  if (j->path && events)
    rf_put_bar_left(j->sink, j->seconds, (double)j->written / (double)j->prompts.rows,
                    "%lld of %lld prompts, %lld tokens", (long long)j->written, (long long)j->prompts.rows,
                    (long long)rf_generator_counts(j->generator).tokens);
  return !(rf_generator_busy(j->generator) && rf_asked_to_stop(j->sink));
}

static rf_status run(job *j, rf_error *error) {
  bool stopped;
  j->start = rf_now_seconds();
  rf_run_measured_reset(j->generator->run);
  RF_TRY(rf_replies_run(j->generator,
                        &(rf_reply_loop){.self = j, .taken = taken, .ended = put_ready, .stepped = stepped},
                        &stopped, error));
  if (stopped)
    return RF_FAIL(error, RAFTER_INTERRUPTED, NULL,
                   "stopped after %lld tokens; the answers to %lld of %lld prompts were written",
                   (long long)rf_generator_counts(j->generator).tokens, (long long)j->written,
                   (long long)j->prompts.rows);
  if (j->path) rf_put_bar(j->sink, "%s", "");
  j->seconds = rf_now_seconds() - j->start;
  return RAFTER_OK;
}

/* ---- the run folder -------------------------------------------------------------------------- */

static rf_status leave(job *j, rf_error *error) {
  rf_generate_counts c = rf_generator_counts(j->generator);
  json_object_update_new(j->journal.results,
                         json_pack("{sI sI sI}", "answers", (json_int_t)c.answers, "prompt_tokens",
                                   (json_int_t)c.prompt_tokens, "completion_tokens", (json_int_t)c.tokens));
  return rf_executed_leave(j->generator, j->record, &j->journal, j->seconds, error);
}

static rf_status end_file(job *j, rf_error *error) {
  rf_out_file *out = j->out;
  j->out = NULL;
  return rf_out_commit(out, error);
}

/* Without an option that gives the prompt, and with --prompt -, the prompt is the caller's input.
 * The prompt becomes the value of --prompt, so run.json has it. */
static rf_status take_input(rf_options *o, const rafter_sink *sink, rf_error *error) {
  enum { MAX = 16 << 20 };
  bool given = rf_options_is_set(o, "prompt"), asked = given && !strcmp(rf_options_text(o, "prompt"), "-");
  size_t bytes = 0;
  rf_status status = RAFTER_OK;
  if (rf_options_is_set(o, "input") || rf_options_is_set(o, "tokens") || (given && !asked)) return RAFTER_OK;
  char *text = sink->input ? sink->input(sink->self, asked, MAX, &bytes) : NULL;
  if (bytes && bytes <= MAX && text[bytes - 1] == '\n') bytes--;
  if (!text)
    status =
        RF_FAIL(error, RAFTER_INVALID,
                "give --prompt TEXT, or a pipe: echo TEXT | rafter generate MODEL; --prompt '' begins at "
                "the model's start token",
                "there is no prompt (expected --prompt, --tokens, --input or text on standard input)");
  else if (!bytes)
    status =
        RF_FAIL(error, RAFTER_INVALID, "give --prompt TEXT; --prompt '' begins at the model's start token",
                "the prompt is empty (standard input has no text)");
  else if (bytes > MAX || memchr(text, 0, bytes))
    status = RF_FAIL(error, RAFTER_INVALID, "give a shorter text, or rows of a file with --input",
                     "the prompt on standard input is not usable (expected at most 16 MiB of text, got %s)",
                     bytes > MAX ? "more" : "a zero byte");
  else {
    text[bytes] = 0;
    status = rf_options_set(o, "prompt", text, error);
  }
  free(text);
  return status;
}

static rf_status generate(const rf_options *o, job *j, rf_error *error) {
  const rf_prompts *p = &j->prompts;
  rf_report_pass pass[2];
  j->path = rf_options_text(o, "input");
  RF_TRY(rf_prompts_given(o, j->sink, &j->settings, &j->reader, &j->prompts, error));
  if (rf_options_is_set(o, "output") && !j->path && p->row[0].request.samples == 1)
    return RF_FAIL(error, RAFTER_INVALID, "give --input FILE, or leave --output out",
                   "--output needs a file of prompts (--input) or several samples (--samples)");
  bool single = !j->path && p->row[0].request.samples == 1;
  j->json = rf_options_flag(o, "json");
  j->streams = single && !j->json;
  RF_TRY(rf_traced_open(o, &j->record, error));
  j->verbose = rf_options_flag(o, "verbose");
  j->converts = rf_options_given(o, "weights");
  double start = rf_now_seconds();
  RF_TRY(rf_open_generator(&j->settings, o, j->sink, &j->generator, error));
  j->load_seconds = rf_now_seconds() - start;
  if (rf_options_is_set(o, "output")) RF_TRY(rf_out_open(rf_options_text(o, "output"), 0, &j->out, error));
  for (int64_t i = 0; i < p->rows; i++) RF_TRY(rf_prompt_submit(&j->reader, &p->row[i], j->generator, error));
  rf_executed_plans(j->generator, pass);
  RF_TRY(rf_begin_journal(&j->journal, j->sink, o, pass, 2, error));
  if (j->streams && j->reader.tokenizer && !j->reader.chats && rf_options_is_set(o, "prompt"))
    rf_say_text(j->sink, strdup(rf_options_text(o, "prompt")));
  rf_status status = run(j, error);
  if (status == RAFTER_INTERRUPTED && j->out && j->written) RF_TRY(end_file(j, error));
  if (status == RAFTER_INTERRUPTED) RF_TRY(leave(j, error));
  RF_TRY(status);
  if (j->streams) rf_say(j->sink, "\n");
  if (single) {
    put_single(j);
    say_end(j);
  } else say_sum(j);
  RF_TRY(leave(j, error));
  if (!j->out) return RAFTER_OK;
  RF_TRY(end_file(j, error));
  put_sum(j, rf_options_text(o, "output"));
  return RAFTER_OK;
}

static rf_status rf_command_generate(const rafter_job *asked, const rafter_sink *sink, rf_error *error) {
  rf_options *o = NULL;
  job *j = calloc(1, sizeof *j);
  if (!j) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  j->sink = sink;
  rf_status status = rf_options_with_model(asked->options, rf_options_argument(asked->options, 0), &o, error);
  if (status == RAFTER_OK) status = take_input(o, sink, error);
  if (status == RAFTER_OK) status = generate(o, j, error);
  rf_out_discard(j->out);
  rf_journal_close(&j->journal, status, error);
  rf_generator_close(j->generator);
  rf_record_close(j->record);
  rf_prompts_free(&j->prompts);
  rf_prompt_reader_close(&j->reader);
  free(j);
  rf_options_free(o);
  return status;
}

static const rf_option GENERATE[] = {
    RF_WORDS("prompt", TEXT, "TEXT", NULL, "Prompt",
             "text to continue; -, or no prompt and a pipe: standard input, without its last newline"),
    RF_FLAG("chat", "Prompt", "put the prompt into the model's chat template as the user's message"),
    RF_WORDS("tokens", LIST, "IDS", NULL, "Prompt", "token ids to continue, in place of a prompt"),
    RF_WORDS("input", PATH, "FILE", NULL, "Prompt",
             "JSON Lines of prompts: \"prompt\", \"messages\" or \"tokens\", with \"id\", \"samples\", "
             "\"seed\" and other options per row"),
    RF_NUMBER("samples", INT, "N", 1, 1 << 16, "1", "Prompt",
              "answers to each prompt; the prompt is computed once"),
    RF_NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, "128", "Sampling", "maximum tokens to generate"),
    RF_NUMBER("temperature", FLOAT, NULL, 0, 100, "1", "Sampling",
              "divisor of the logits; 0: always the likeliest token"),
    RF_NUMBER("min-tokens", TOKENS, NULL, 0, 1 << 24, "0", "Sampling",
              "minimum tokens of an answer before an end-of-text token is allowed"),
    RF_NUMBER("presence-penalty", FLOAT, NULL, -100, 100, "0", "Sampling",
              "number subtracted from the logit of each token that the answer contains"),
    RF_NUMBER("frequency-penalty", FLOAT, NULL, -100, 100, "0", "Sampling",
              "number subtracted from a token's logit for each time that the answer contains it"),
    RF_WORDS("logit-bias", TEXTS, "ID=BIAS", NULL, "Sampling",
             "number added to a token's logit; may be repeated"),
    RF_NUMBER("batch", INT, "ANSWERS", 1, 1024, NULL, "Memory",
              "answers generated at once; unset: 1, or up to 8 for several answers"),
    RF_NUMBER("seq", TOKENS, NULL, 1, 1 << 24, NULL, "Memory",
              "maximum tokens of a prompt and its answer; unset: enough for the longest prompt, within the "
              "model's limit"),
    RF_WORDS("output", PATH, "FILE", NULL, "Output",
             "file for the answers as JSON Lines, in the order of --input"),
    RF_NUMBER("top-logprobs", INT, "K", 0, 32, "0", "Output",
              "number of likeliest tokens listed for each token of an answer, with --json"),
    {.name = NULL},
};

const rf_command RF_COMMAND_GENERATE = {
    RF_COMMAND_HEAD("generate", "MODEL", 1, 1, "Run", "Continue a text, or answer prompts from a file."),
    .options = {RF_TABLE(GENERATE), RF_TABLE(RF_CHAT_OPTIONS), RF_TABLE(RF_STOP_OPTIONS),
                RF_TABLE(RF_SAMPLING_OPTIONS), RF_INFERENCE_TABLES, RF_TABLE(RF_CACHE_OPTIONS),
                RF_TABLE(RF_SPECULATION_OPTIONS), RF_LEFT_TABLES},
    .common = "prompt chat system input samples max-tokens temperature top-k top-p stop dtype weights "
              "compute adapter output json",
    .examples =
        {"generate models/org/name --prompt 'Once upon a time' --temperature 0 # the likeliest text",
         "generate model.gguf --chat --prompt 'Why is the sky blue?' --compute fast # ask a question",
         "generate runs/3 --input prompts.jsonl --output answers.jsonl --samples 4 # a file of prompts"},
    .run = rf_command_generate};
