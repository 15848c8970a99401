/* answering.c - see answering.h. */
#define _GNU_SOURCE
#include "api/answering.h"
#include "api/rollout_file.h"

#include "base/text.h"
#include "generate/drafter.h"
#include "generate/speculate.h"
#include "journal/executed.h"
#include "journal/traced.h"
#include "plan/advice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows ------------------------------------------------------------------------------------ */

static void add_numbers(json_t *list, const float *values, int64_t count) {
  for (int64_t i = 0; i < count; i++) json_array_append_new(list, json_real((double)values[i]));
}
static void add_ids(json_t *list, const int32_t *ids, int64_t count) {
  for (int64_t i = 0; i < count && ids[i] >= 0; i++) json_array_append_new(list, json_integer(ids[i]));
}

static void put_tops(const rf_reply *r, int64_t skipped, json_t *json) {
  json_t *tops = json_array();
  for (int64_t i = 0; i < skipped; i++) json_array_append_new(tops, json_null());
  for (int64_t t = 0; t < r->tokens.count; t++) {
    json_t *ids = json_array(), *logprobs = json_array();
    add_ids(ids, r->top_ids + t * r->top, r->top);
    add_numbers(logprobs, r->top_logprobs + t * r->top, (int64_t)json_array_size(ids));
    json_array_append_new(tops, json_pack("{so so}", "ids", ids, "logprobs", logprobs));
  }
  json_object_set_new(json, "top", tops);
}

/* Writes the text of an answer. With --echo, the text of the prompt comes first. */
static json_t *text_of(const rf_answering *a, const rf_prompt *row, const rf_reply *r) {
  char *prompt = NULL, *whole = NULL;
  size_t bytes = 0;
  json_t *text = NULL;
  if (!a->reader.tokenizer) return json_null();
  if (!a->echo) return rf_json_bytes(r->text, r->bytes);
  if (row->text) {
    prompt = strdup(row->text);
    bytes = strlen(row->text);
  } else if (rf_tokenizer_decode(a->reader.tokenizer, row->tokens.at, row->tokens.count, 0, &prompt, &bytes,
                                 NULL) != RAFTER_OK)
    prompt = NULL;
  whole = prompt ? realloc(prompt, bytes + r->bytes + 1) : NULL;
  if (whole) {
    memcpy(whole + bytes, r->text, r->bytes);
    text = rf_json_bytes(whole, bytes + r->bytes);
  }
  free(whole);
  return text ? text : json_null();
}

void rf_answering_put_answer(const rf_answering *a, const rf_prompt *row, const rf_reply *r, json_t *json) {
  json_t *tokens = json_array(), *logprobs = json_array();
  int64_t echoed = a->echo ? row->tokens.count : 0;
  add_ids(tokens, row->tokens.at, echoed);
  add_ids(tokens, r->tokens.at, r->tokens.count);
  for (int64_t i = 0; i < echoed; i++) json_array_append_new(logprobs, json_null());
  add_numbers(logprobs, r->logprobs, r->tokens.count);
  json_object_set_new(json, "tokens", tokens);
  json_object_set_new(json, "logprobs", logprobs);
  json_object_set_new(json, "text", text_of(a, row, r));
  json_object_set_new(json, "finish_reason", json_string(rf_finish_name(r->finish)));
  if (a->echo) json_object_set_new(json, "prompt_tokens", json_integer((json_int_t)echoed));
  if (r->top) put_tops(r, echoed, json);
}

static rf_status put_row(rf_answering *a, const rf_prompt *row, int sample, rf_error *error) {
  json_t *json = json_object();
  json_object_set_new(json, "id", row->id ? json_incref(row->id) : json_integer(row - a->prompts.row));
  json_object_set_new(json, "prompt", row->text ? rf_json_bytes(row->text, strlen(row->text)) : json_null());
  rf_answering_put_answer(a, row, &row->replies.reply[sample], json);
  json_object_set_new(json, "seed",
                      json_integer((json_int_t)rf_sample_seed(row->request.sampler.seed, sample)));
  json_object_set_new(json, "sample", json_integer(sample));
  if (!a->out) {
    rf_put_json(a->sink, json);
    return RAFTER_OK;
  }
  rf_status status = rf_json_write_line(a->out, json, error);
  json_decref(json);
  return status;
}

static void say_row(const rf_answering *a, const rf_prompt *row, int sample) {
  if (row->request.samples > 1) rf_say(a->sink, "--- sample %d of %d\n", sample + 1, row->request.samples);
  rf_say_text(a->sink, strdup(row->text && !a->reader.chats ? row->text : ""));
  rf_say_text(a->sink, strdup(row->replies.reply[sample].text));
  rf_say(a->sink, "\n");
}

/* Writes finished answers in their order, and stops at the first unfinished answer. */
static rf_status put_ready(rf_answering *a, rf_error *error) {
  for (; a->written < a->prompts.rows; a->written++) {
    rf_prompt *row = &a->prompts.row[a->written];
    if (!a->path && row->request.samples == 1) return RAFTER_OK;
    for (; a->sample < row->request.samples; a->sample++) {
      if (row->replies.reply[a->sample].finish == RF_FINISH_NONE) return RAFTER_OK;
      RF_TRY(put_row(a, row, a->sample, error));
      if (!a->json && !a->out) say_row(a, row, a->sample);
    }
    a->sample = 0;
    if (a->path && !row->replies.left) rf_replies_free(&row->replies);
  }
  return RAFTER_OK;
}

/* ---- drafts ---------------------------------------------------------------------------------- */

/* Figures of the run's drafts. `predicted`: predicted tokens per pass, by the formula of
 * speculate.h. `gain`: predicted speed-up over a run without drafts, if each pass drafts. */
typedef struct draft_figures {
  double acceptance, tokens, predicted, gain;
} draft_figures;

static draft_figures drafts_of(const rf_answering *a) {
  rf_generate_counts c = rf_generator_counts(a->generator);
  const rf_build_options *b = &a->generator->settings.plan.build;
  rf_speculation_found found = {0};
  draft_figures d = {0};
  if (!c.verified) return d;
  double mean = (double)c.drafted / (double)c.verified;
  d.acceptance = c.compared ? (double)c.accepted / (double)c.compared : 1;
  d.tokens = 1 + (double)c.accepted / (double)c.verified;
  d.predicted = rf_speculation_tokens(d.acceptance, (int)lround(mean));
  const rf_speculation of = {a->generator->decode,
                             a->generator->drafter ? rf_drafter_plan(a->generator->drafter) : NULL,
                             (int)b->microbatch, b->seq, b->draft};
  if (rf_speculation_find(&of, d.acceptance, &found, NULL) == RAFTER_OK) d.gain = found.gain;
  return d;
}

void rf_answering_say_drafts(const rf_answering *a, char text[240]) {
  rf_generate_counts c = rf_generator_counts(a->generator);
  draft_figures d = drafts_of(a);
  *text = 0;
  if (!a->settings.plan.build.draft) return;
  int at = snprintf(text, 240, "; %lld of %lld drafted tokens were right", (long long)c.accepted,
                    (long long)c.drafted);
  if (c.verified)
    snprintf(
        text + at, 240 - (size_t)at,
        ": acceptance %.2f, %.2f tokens per pass with drafts (predicted %.2f); with drafts in each pass, "
        "the plan predicts %.2f times the rate without drafts",
        d.acceptance, d.tokens, d.predicted, d.gain);
}

void rf_answering_put_drafts(const rf_answering *a, json_t *json) {
  rf_generate_counts c = rf_generator_counts(a->generator);
  if (!a->settings.plan.build.draft) return;
  json_object_set_new(json, "drafted_tokens", json_integer((json_int_t)c.drafted));
  json_object_set_new(json, "accepted_tokens", json_integer((json_int_t)c.accepted));
  draft_figures d = drafts_of(a);
  if (!c.verified) return;
  json_object_set_new(json, "acceptance", json_real(d.acceptance));
  json_object_set_new(json, "tokens_per_verifying_pass", json_real(d.tokens));
  json_object_set_new(json, "predicted_tokens_per_verifying_pass", json_real(d.predicted));
  json_object_set_new(json, "predicted_gain", json_real(d.gain));
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Returns the seconds of all forward passes at the machine's peak rates, divided by their measured
 * seconds. Returns 0 if the peak rates are unknown. */
static double limit_fraction(const rf_answering *a) {
  double measured = 0, limit = 0;
  for (int plan = RF_PREFILL; plan <= RF_DECODE; plan++) {
    int ops = rf_generator_plan(a->generator, plan)->graph->op_count;
    double passed = 0, *seconds = calloc(2 * (size_t)ops, sizeof *seconds);
    int64_t passes, rows;
    rf_generator_passes(a->generator, plan, &passes, &rows, &passed);
    measured += passed;
    if (seconds && rf_generator_predicted(a->generator, plan, seconds, seconds + ops, NULL) == RAFTER_OK)
      for (int i = 0; i < ops; i++) limit += seconds[ops + i];
    free(seconds);
  }
  return measured > 0 ? limit / measured : 0;
}

void rf_answering_put_sum(const rf_answering *a, const char *command, const char *path) {
  rf_generate_counts c = rf_generator_counts(a->generator);
  json_t *json =
      json_pack("{ss ss sI sI sI sI sf sf sI}", "command", command, "output", path, "rows",
                (json_int_t)a->written, "answers", (json_int_t)(a->done - a->before), "prompt_tokens",
                (json_int_t)c.prompt_tokens, "completion_tokens", (json_int_t)c.tokens, "seconds", a->seconds,
                "tokens_per_second", a->seconds > 0 ? (double)c.tokens / a->seconds : 0, "arena_bytes",
                (json_int_t)rf_generator_arena_bytes(a->generator));
  json_object_set_new(json, "limit_fraction", json_real(limit_fraction(a)));
  if (a->appends) {
    json_object_set_new(json, "all_answers", json_integer((json_int_t)a->answers));
    json_object_set_new(json, "complete", json_boolean(a->done == a->answers));
  }
  rf_answering_put_drafts(a, json);
  rf_put_json(a->sink, json);
}

void rf_answering_say_sum(const rf_answering *a) {
  rf_generate_counts c = rf_generator_counts(a->generator);
  char drafts[240], compute[RF_COMPUTE_LINE];
  rf_answering_say_drafts(a, drafts);
  rf_say(a->sink,
         "%lld prompt%s, %lld answer%s with %lld token%s in %.2f s: %.1f tokens/s; %lld step%s, %lld of %lld "
         "prompt tokens shared, arena %.1f MiB%s%s\n",
         (long long)a->prompts.rows, rf_plural(a->prompts.rows), (long long)(a->done - a->before),
         rf_plural(a->done - a->before), (long long)c.tokens, rf_plural(c.tokens), a->seconds,
         a->seconds > 0 ? (double)c.tokens / a->seconds : 0, (long long)c.passes, rf_plural(c.passes),
         (long long)c.reused, (long long)c.prompt_tokens,
         (double)rf_generator_arena_bytes(a->generator) / 0x1p20, drafts,
         rf_plan_compute_line(a->generator->decode, a->generator->prefill, compute));
}

int64_t rf_answering_rows(const rf_answering *a) {
  int64_t count = a->sample;
  for (int64_t i = 0; i < a->written; i++) count += a->prompts.row[i].request.samples;
  return count;
}

rf_status rf_answering_spares_inputs(const rf_answering *a, const rf_options *o, const char *path,
                                     rf_error *error) {
  const char *const inputs[] = {a->path, a->settings.weights_folder, rf_options_text_or(o, "adapter", NULL),
                                rf_options_text_or(o, "template", NULL)};
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
    if (inputs[i]) RF_TRY(rf_out_is_not_input(path, inputs[i], error));
  return RAFTER_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Long answers that begin last would run almost alone. Only the last answers are sorted, because
 * rows are written in the order of the prompts: a killed run loses those that wait for a row before
 * them. The first answers begin at once, so that each run of a killed file writes a row. */
enum { SORTED = 4 }; /* times the number of answers at once */

static int longest_first(const void *x, const void *y) {
  const rf_prompt *a = *(rf_prompt *const *)x, *b = *(rf_prompt *const *)y;
  const int64_t more = b->request.max_tokens - a->request.max_tokens;
  return more ? more > 0 ? 1 : -1 : a < b ? -1 : a > b;
}

static void sort_last(const rf_answering *a, rf_prompt **row, int64_t rows) {
  const int64_t slots = a->generator->decode->options.build.microbatch; /* of all copies of the model */
  int64_t first = rows, begins = 0;
  for (int64_t left = SORTED * slots; first > 0 && left > 0;) left -= row[--first]->request.samples;
  for (int64_t left = slots; begins < rows && left > 0;) left -= row[begins++]->request.samples;
  if (first < begins) first = begins;
  qsort(row + first, (size_t)(rows - first), sizeof *row, longest_first);
}

rf_status rf_answering_submit(rf_answering *a, rf_error *error) {
  const int64_t rows = a->prompts.rows - a->written;
  rf_status status = RAFTER_OK;
  rf_prompt **row = calloc((size_t)rows + 1, sizeof(rf_prompt *));
  if (!row) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  a->done = a->sample;
  a->answers = 0;
  for (int64_t i = 0; i < a->prompts.rows; i++) {
    a->answers += a->prompts.row[i].request.samples;
    if (i < a->written) a->done += a->prompts.row[i].request.samples;
    else row[i - a->written] = &a->prompts.row[i];
  }
  a->before = a->done;
  const rf_prompt *begun = rows ? row[0] : NULL;
  a->helps = rf_run_gathers(a->generator->run) && rf_run_host(a->generator->run) > 0;
  if (a->sorts) sort_last(a, row, rows);
  rf_replies_begin(a->generator, rows);
  for (int64_t i = 0; i < rows && status == RAFTER_OK; i++) {
    status = rf_prompt_submit(&a->reader, row[i], a->generator, error);
    for (int s = 0; row[i] == begun && s < a->sample && status == RAFTER_OK; s++)
      rf_generator_cancel(a->generator, row[i]->replies.request, s);
  }
  free(row);
  return status;
}

static rf_status taken(void *self, rf_replies *replies, const rf_event *event, rf_error *error) {
  rf_answering *a = self;
  rf_reply *r = &replies->reply[event->sample];
  if (a->first_seconds == 0) {
    a->first_seconds = rf_now_seconds() - a->start;
    a->process_seconds = rf_process_seconds();
  }
  if (a->streams && r->bytes > r->shown && a->sink->text) a->sink->text(a->sink->self, r->text + r->shown);
  r->shown = r->bytes;
  if (r->finish == RF_FINISH_NONE || r->finish == RF_FINISH_CANCELLED) return RAFTER_OK;
  a->done++;
  return a->helps ? RAFTER_OK : put_ready(a, error); /* rank 0 writes all rows */
}

/* Frees the replies of a request after its answers are written. */
static rf_status ended(void *self, rf_replies *replies, rf_error *error) {
  const rf_answering *a = self;
  const rf_prompt *row = replies->owner;
  (void)error;
  if (a->path && (a->helps || row - a->prompts.row < a->written)) rf_replies_free(replies);
  return RAFTER_OK;
}

static void say_progress(rf_answering *a) {
  /* seconds between two computations of limit_fraction, because a computation takes time */
  enum { EVERY = 2 };
  double part = a->answers ? (double)a->done / (double)a->answers : 1, seconds = a->seconds,
         spent = rf_now_seconds() - a->began;
  char limit[48] = "";
  rf_generate_counts c = rf_generator_counts(a->generator);
  if (a->seconds - a->said >= EVERY) {
    a->said = a->seconds;
    a->limit_fraction = limit_fraction(a);
  }
  if (a->limit_fraction > 0)
    snprintf(limit, sizeof limit, " (%.0f %% of the limit)", 100 * a->limit_fraction);
  if (a->limit > 0 && (part <= 0 || seconds * (1 - part) / part > a->limit - spent)) {
    part = spent < a->limit ? spent / a->limit : 1;
    seconds = spent;
  }
  rf_put_bar_left(a->sink, seconds, part, "%lld of %lld prompts, %lld of %lld answers, %.1f tokens/s%s",
                  (long long)a->written, (long long)a->prompts.rows, (long long)a->done,
                  (long long)a->answers, a->seconds > 0 ? (double)c.tokens / a->seconds : 0, limit);
}

enum { STOP = 1, TIME = 2 };

static bool stepped(void *self, int tokens) {
  rf_answering *a = self;
  double seconds = rf_now_seconds() - a->start;
  a->longest = fmax(a->longest, seconds - a->seconds);
  a->seconds = seconds;
  if (a->flushes && a->out) a->failed = rf_out_flush(a->out, &a->why);
  if (a->failed != RAFTER_OK) return false;
  if (a->path && tokens) say_progress(a);
  if (!rf_replies_busy(a->generator)) return true;
  uint32_t flags = rf_asked_to_stop(a->sink) ? STOP : 0;
  if (a->limit > 0 && rf_now_seconds() - a->began + a->longest > a->limit) flags |= TIME;
  a->failed = rf_replies_agree(a->generator, &flags, &a->why); /* all ranks stop together */
  a->time_is_up = flags & TIME;
  return a->failed == RAFTER_OK && !flags;
}

/* Each copy of the model answers its own share of the prompts, so all ranks need the same list. */
static rf_status check_ranks(const rf_answering *a, rf_error *error) {
  char text[RF_FINGERPRINT_TEXT];
  if (rf_run_hosts(a->generator->run) == 1) return RAFTER_OK;
  rf_rollout_prompts_text(a, text);
  return rf_run_same(a->generator->run, "other prompts or settings of the sampler",
                     rf_key(rf_name_key(text), a->form, 0), error);
}

rf_status rf_answering_run(rf_answering *a, rf_error *error) {
  bool stopped;
  RF_TRY(check_ranks(a, error));
  a->start = rf_now_seconds();
  rf_run_measured_reset(a->generator->run);
  uint32_t late = a->limit > 0 && a->start - a->began > a->limit;
  RF_TRY(rf_run_agree(a->generator->run, &late, error));
  a->time_is_up |= late != 0;
  if (a->time_is_up) return RAFTER_OK;
  RF_TRY(rf_replies_run(a->generator,
                        &(rf_reply_loop){.self = a, .taken = taken, .ended = ended, .stepped = stepped},
                        &stopped, error));
  if (a->failed != RAFTER_OK) {
    if (error) *error = a->why;
    return a->failed;
  }
  if (stopped) a->time_is_up |= (rf_replies_said(a->generator) & TIME) != 0;
  if (stopped && !a->time_is_up)
    return RF_FAIL(error, RAFTER_INTERRUPTED, NULL,
                   "stopped after %lld tokens; the answers to %lld of %lld prompts were written",
                   (long long)rf_generator_counts(a->generator).tokens, (long long)a->written,
                   (long long)a->prompts.rows);
  if (a->path) rf_put_bar(a->sink, "%s", "");
  a->seconds = rf_now_seconds() - a->start;
  return RAFTER_OK;
}

rf_status rf_answering_end_file(rf_answering *a, rf_error *error) {
  rf_out_file *out = a->out;
  a->out = NULL;
  return rf_out_commit(out, error);
}

/* ---- the record ------------------------------------------------------------------------------ */

rf_status rf_answering_leave(rf_answering *a, rf_error *error) {
  rf_generate_counts c = rf_generator_counts(a->generator);
  json_object_update_new(a->journal.results,
                         json_pack("{sI sI sI}", "answers", (json_int_t)(a->done - a->before),
                                   "prompt_tokens", (json_int_t)c.prompt_tokens, "completion_tokens",
                                   (json_int_t)c.tokens));
  return rf_executed_leave(a->generator, a->record, &a->journal, a->seconds, error);
}

void rf_answering_close(rf_answering *a, rf_status status, const rf_error *error) {
  rf_out_discard(a->out);
  rf_journal_close(&a->journal, status, error);
  rf_generator_close(a->generator);
  rf_record_close(a->record);
  rf_prompts_free(&a->prompts);
  rf_prompt_reader_close(&a->reader);
}

const rf_option RF_ANSWERING_OPTIONS[] = {
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
    RF_NUMBER("seq", TOKENS, NULL, 1, 1 << 24, NULL, "Memory",
              "maximum tokens of a prompt and its answer; unset: enough for the longest prompt, within the "
              "model's limit"),
    RF_NUMBER("top-logprobs", INT, "K", 0, 32, "0", "Output",
              "number of likeliest tokens listed for each token of an answer, in rows of JSON"),
    {.name = NULL},
};
