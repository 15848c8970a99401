/* generate.c - `rafter generate`: prints an answer as it grows, or answers prompts of a file. */
#define _GNU_SOURCE
#include "api/answering.h"
#include "api/ranks.h"

#include "base/file.h"
#include "base/text.h"
#include "journal/executed.h"
#include "journal/traced.h"

#include <stdlib.h>
#include <string.h>

typedef struct job {
  rf_answering a;
  rf_given_form form;
  bool verbose, converts;
  double load_seconds; /* to open the model */
} job;

/* ---- output ---------------------------------------------------------------------------------- */

/* Returns the predicted seconds to load the weights. Returns -1 (unknown) if the weights are
 * converted, or if there is no file of weights. */
static double planned_load(const job *j) {
  const rf_settings *s = &j->a.settings;
  return *s->weights_folder && !j->converts ? rf_plan_load_seconds(j->a.generator->prefill) : -1;
}

/* Returns the predicted seconds to open the tokenizer. The prediction depends on the bytes of
 * tokenizer.json, or on the size of a vocabulary with scores. Returns 0 if the machine file has no
 * measurement. */
static double planned_tokenizer(const job *j) {
  const rf_tokenizer *tokenizer = j->a.reader.tokenizer;
  bool json = tokenizer && rf_tokenizer_json_bytes(tokenizer) > 0;
  double bytes = json        ? (double)rf_tokenizer_json_bytes(tokenizer)
                 : tokenizer ? (double)rf_tokenizer_scored_bytes(tokenizer)
                             : 0;
  double seconds =
      bytes > 0 ? rf_cost_load_seconds(&j->a.settings.machine, json ? "tokenizer.json" : "vocabulary", bytes)
                : 0;
  return seconds > 0 ? seconds : 0;
}

static void put_single(const job *j) {
  const rf_prompt *row = j->a.prompts.row;
  const rf_reply *r = row->replies.reply;
  double decode = j->a.seconds - j->a.first_seconds, steps = (double)(r->tokens.count - 1),
         bandwidth = j->a.settings.machine.read_bps;
  json_t *json = json_pack("{ss}", "command", "generate");
  rf_answering_put_answer(&j->a, row, r, json);
  json_t *rest =
      json_pack("{sI sI sf sf sf sI}", "prompt_tokens", (json_int_t)row->tokens.count, "completion_tokens",
                (json_int_t)r->tokens.count, "seconds_to_first_token", j->a.first_seconds,
                "tokens_per_second", decode > 0 ? steps / decode : 0, "bandwidth_fraction",
                decode > 0 && bandwidth > 0 ? j->a.generator->decode->bytes * steps / decode / bandwidth : 0,
                "arena_bytes", (json_int_t)rf_generator_arena_bytes(j->a.generator));
  json_object_update(json, rest);
  json_decref(rest);
  rf_answering_put_drafts(&j->a, json);
  double tokenizer = planned_tokenizer(j), load = planned_load(j),
         prompt = rf_generator_prompt_seconds(j->a.generator, row->tokens.count);
  json_object_set_new(json, "load_seconds", json_real(j->load_seconds));
  json_object_set_new(json, "tokenizer_seconds", json_real(j->a.reader.tokenizer_seconds));
  json_object_set_new(json, "process_seconds_to_first_token", json_real(j->a.process_seconds));
  json_object_set_new(json, "predicted_tokenizer_seconds", json_real(tokenizer));
  json_object_set_new(json, "predicted_prefill_seconds", json_real(prompt));
  json_object_set_new(json, "predicted_load_seconds", load < 0 ? json_null() : json_real(load));
  json_object_set_new(json, "predicted_seconds_to_first_token",
                      load < 0 ? json_null() : json_real(tokenizer + load + prompt));
  rf_put_json(j->a.sink, json);
  if (j->verbose && load >= 0)
    rf_note(j->a.sink,
            "first token %.2f s after the start of the program: tokenizer %.2f s (predicted %.2f), loading "
            "%.2f s (predicted %.2f), prompt %.2f s (predicted %.2f)\n",
            j->a.process_seconds, j->a.reader.tokenizer_seconds, tokenizer, j->load_seconds, load,
            j->a.first_seconds, prompt);
  char drafts[240], compute[RF_COMPUTE_LINE], rate[40] = "";
  rf_answering_say_drafts(&j->a, drafts);
  if (steps > 0 && decode > 0) snprintf(rate, sizeof rate, ": %.1f tokens/s", steps / decode);
  rf_note(j->a.sink, "%lld token%s in %.2f s, the first after %.2f s%s%s%s\n", (long long)r->tokens.count,
          rf_plural(r->tokens.count), j->a.seconds, j->a.first_seconds, rate, drafts,
          rf_plan_compute_line(j->a.generator->decode, j->a.generator->prefill, compute));
}

/* Prints why a single answer may be shorter than expected. */
static void say_end(const job *j) {
  const rf_prompt *row = j->a.prompts.row;
  const rf_reply *r = row->replies.reply;
  rf_chat *chat = NULL;
  if (r->finish == RF_FINISH_LENGTH && r->tokens.count < row->request.max_tokens)
    rf_note(j->a.sink, "notice: prompt and answer fill the context of %lld tokens (--seq)\n",
            (long long)j->a.settings.plan.build.seq);
  if (r->finish != RF_FINISH_STOP || j->a.reader.common.stop.string_count || j->a.reader.chats ||
      !row->text || !*j->a.reader.folder)
    return;
  if (rf_chat_find(j->a.reader.folder, &chat, NULL) == RAFTER_OK && chat)
    rf_note(j->a.sink, "notice: this model has a chat template; --chat puts the prompt into it\n");
  rf_chat_free(chat);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* If no option gives a prompt, or with `--prompt -`, the prompt is the caller's standard input. The
 * prompt becomes the value of --prompt, so run.json records the prompt. */
static rf_status take_input(rf_options *o, const rafter_sink *sink, rf_error *error) {
  enum { MAX = 16 << 20 };
  bool given = rf_options_is_set(o, "prompt"), asked = given && !strcmp(rf_options_text(o, "prompt"), "-");
  size_t bytes = 0;
  rf_status status = RAFTER_OK;
  if (rf_options_is_set(o, "input") || rf_options_is_set(o, "tokens") || (given && !asked)) return RAFTER_OK;
  char *text = sink->input ? sink->input(sink->self, asked, MAX, &bytes) : NULL;
  char *own = text;
  RF_GO(rf_ranks_text(o, &text, &bytes, error));
  if (text != own) free(own);
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
done:
  free(text);
  return status;
}

static rf_status generate(const rf_options *o, job *j, rf_error *error) {
  const rf_prompts *p = &j->a.prompts;
  rf_report_pass pass[2];
  j->a.path = rf_options_text(o, "input");
  RF_TRY(rf_prompts_given(o, j->a.sink, &j->a.settings, &j->a.reader, &j->a.prompts, error));
  RF_TRY(rf_given_form_open(o, &j->a.reader, &j->form, error));
  j->a.form = j->form.key;
  for (int64_t i = 0; i < p->rows; i++) p->row[i].request.sampler.constraint = j->form.of;
  if (rf_options_is_set(o, "output") && !j->a.path && p->row[0].request.samples == 1)
    return RF_FAIL(error, RAFTER_INVALID, "give --input FILE, or leave --output out",
                   "--output needs a file of prompts (--input) or several samples (--samples)");
  bool single = !j->a.path && p->row[0].request.samples == 1;
  j->a.json = rf_options_flag(o, "json");
  j->a.streams = single && !j->a.json;
  RF_TRY(rf_traced_open(o, &j->a.record, error));
  j->verbose = rf_options_flag(o, "verbose");
  j->converts = rf_options_given(o, "weights");
  const char *output = rf_options_text_or(o, "output", NULL);
  if (output) RF_TRY(rf_answering_spares_inputs(&j->a, o, output, error));
  double start = rf_now_seconds();
  RF_TRY(rf_open_generator(&j->a.settings, o, j->a.sink, &j->a.generator, error));
  j->load_seconds = rf_now_seconds() - start;
  if (output) RF_TRY(rf_out_open(output, 0, &j->a.out, error));
  RF_TRY(rf_answering_submit(&j->a, error));
  rf_executed_plans(j->a.generator, pass);
  RF_TRY(rf_begin_journal(&j->a.journal, j->a.sink, o, pass, 2, error));
  if (j->a.streams && j->a.reader.tokenizer && !j->a.reader.chats && rf_options_is_set(o, "prompt"))
    rf_say_text(j->a.sink, strdup(rf_options_text(o, "prompt")));
  rf_status status = rf_answering_run(&j->a, error);
  if (status == RAFTER_INTERRUPTED && j->a.out && (j->a.written || j->a.sample))
    RF_TRY(rf_answering_end_file(&j->a, error));
  if (status == RAFTER_INTERRUPTED) RF_TRY(rf_answering_leave(&j->a, error));
  RF_TRY(status);
  if (j->a.streams) rf_say(j->a.sink, "\n");
  if (single && !j->a.helps) {
    put_single(j);
    say_end(j);
  } else if (!single) rf_answering_say_sum(&j->a);
  RF_TRY(rf_answering_leave(&j->a, error));
  if (!j->a.out) return RAFTER_OK;
  RF_TRY(rf_answering_end_file(&j->a, error));
  rf_answering_put_sum(&j->a, "generate", rf_options_text(o, "output"));
  return RAFTER_OK;
}

static rf_status rf_command_generate(const rafter_job *asked, const rafter_sink *sink, rf_error *error) {
  rf_options *o = NULL;
  job *j = calloc(1, sizeof *j);
  if (!j) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  j->a.sink = sink;
  rf_status status = rf_options_with_model(asked->options, rf_options_argument(asked->options, 0), &o, error);
  if (status == RAFTER_OK) status = take_input(o, sink, error);
  if (status == RAFTER_OK) status = generate(o, j, error);
  rf_answering_close(&j->a, status, error);
  rf_given_form_close(&j->form);
  free(j);
  rf_options_free(o);
  return status;
}

static const rf_option GENERATE[] = {
    RF_WORDS("prompt", TEXT, "TEXT", NULL, "Prompt",
             "text to continue; - reads standard input (the default for a pipe), without its last newline"),
    RF_FLAG("chat", "Prompt", "put the prompt into the model's chat template as the user's message"),
    RF_WORDS("tokens", LIST, "IDS", NULL, "Prompt", "token ids to continue, in place of a prompt"),
    RF_WORDS("input", PATH, "FILE", NULL, "Prompt",
             "JSON Lines of prompts: \"prompt\", \"messages\" or \"tokens\", with \"id\", \"samples\", "
             "\"seed\" and other options per row"),
    RF_NUMBER("batch", INT, "ANSWERS", 1, 1024, NULL, "Memory",
              "answers generated at once; unset: 1, or up to 8 for several answers"),
    RF_WORDS("output", PATH, "FILE", NULL, "Output",
             "file for the answers as JSON Lines, in the order of --input"),
    {.name = NULL},
};

const rf_command RF_COMMAND_GENERATE = {
    RF_COMMAND_HEAD("generate", "MODEL", 1, 1, "Run", "Continue a text, or answer prompts from a file."),
    .options = {RF_TABLE(GENERATE), RF_TABLE(RF_ANSWERING_OPTIONS), RF_TABLE(RF_CHAT_OPTIONS),
                RF_TABLE(RF_STOP_OPTIONS), RF_TABLE(RF_FORM_OPTIONS), RF_TABLE(RF_SAMPLING_OPTIONS),
                RF_INFERENCE_TABLES, RF_TABLE(RF_CACHE_OPTIONS), RF_TABLE(RF_SPECULATION_OPTIONS),
                RF_LEFT_TABLES},
    .common = "prompt chat system input samples max-tokens temperature top-k top-p stop dtype weights "
              "compute adapter output json",
    .examples =
        {"generate models/org/name --prompt 'Once upon a time' --temperature 0 # the likeliest text",
         "generate model.gguf --chat --prompt 'Why is the sky blue?' --compute fast # ask a question",
         "generate runs/3 --input prompts.jsonl --output answers.jsonl --samples 4 # a file of prompts"},
    .run = rf_command_generate};
