/* generate.c - `rafter generate`: text, or token ids, as they come. */
#define _GNU_SOURCE
#include "api/api.h"

#include "base/text.h"
#include "generate/generate.h"
#include "generate/stop.h"
#include "model/adapter.h"
#include "model/chat.h"
#include "model/tokenizer.h"
#include "train/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MARKS = 16 };

/* What a request says, or else the model's generation_config.json. */
static const struct preference {
  const char *option, *key;
} PREFERENCES[] = {
    {"temperature", "temperature"}, {"top-k", "top_k"}, {"top-p", "top_p"}, {"min-p", "min_p"}, {"repetition-penalty", "repetition_penalty"}};
enum { TEMPERATURE, TOP_K, TOP_P, MIN_P, REPETITION, PREFERENCE_COUNT };

typedef struct request {
  double preferred[PREFERENCE_COUNT];
  rf_settings settings;
  rf_tokenizer *tokenizer; /* of text */
  bool text;               /* prompt and answer are text */
  int32_t *prompt;
  int64_t prompt_count, max_tokens;
  rf_stop stop;
  int32_t eos[MARKS]; /* the model's, the tokenizer's and generation_config.json's: each ends an answer */
  int eos_count;
  rf_logit_bias *bias;
  int bias_count, top;
  bool ignore_eos, chats;
} request;

typedef struct answer {
  char *text;
  size_t text_bytes, capacity;
  json_t *tokens, *logprobs, *top;
  int64_t count;
  const char *finish_reason;
  double first_seconds, seconds;
} answer;

/* The prompt as the user's turn of a conversation, in the words the model was trained on. *text malloc'ed. */
static rf_status chat_prompt(const rf_options *o, const request *r, const char *prompt, char **text, size_t *bytes, rf_error *error) {
  rf_chat *chat = NULL;
  rf_rendered rendered = {0};
  time_t seconds = time(NULL);
  struct tm now;
  RF_TRY(rf_chat_open(r->settings.weights_folder, &chat, error));
  json_t *messages = json_array();
  if (rf_options_is_set(o, "system"))
    json_array_append_new(messages, json_pack("{ss ss}", "role", "system", "content", rf_options_text(o, "system")));
  json_array_append_new(messages, json_pack("{ss ss}", "role", "user", "content", prompt));
  rf_chat_options options = {.add_generation_prompt = true, .now = localtime_r(&seconds, &now)};
  rf_status status = rf_chat_render(chat, messages, &options, &rendered, error);
  if (status == RAFTER_OK) {
    *text = rendered.text, *bytes = rendered.bytes;
    rendered.text = NULL;
  }
  rf_rendered_free(&rendered);
  json_decref(messages);
  rf_chat_free(chat);
  return status;
}

static rf_status read_prompt(const rf_options *o, request *r, rf_error *error) {
  int count = 0;
  r->text = !rf_options_is_set(o, "tokens");
  if (!r->text) {
    const int64_t *ids = rf_options_list(o, "tokens", &count);
    r->prompt = malloc(((size_t)count + 1) * sizeof *r->prompt);
    for (int i = 0; r->prompt && i < count; i++) {
      if (ids[i] >= r->settings.model.vocab)
        return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                       "token out of range (--tokens, token %d: expected an id below %lld, got %lld)", i, (long long)r->settings.model.vocab,
                       (long long)ids[i]);
      r->prompt[i] = (int32_t)ids[i];
    }
  } else {
    RF_TRY(rf_tokenizer_for(&r->settings.model, r->settings.weights_folder, &r->tokenizer, error));
    const char *prompt = rf_options_is_set(o, "prompt") ? rf_options_text(o, "prompt") : "\n";
    rf_ids ids = {0};
    char *rendered = NULL;
    size_t bytes = strlen(prompt);
    r->chats = rf_options_flag(o, "chat");
    if (r->chats) RF_TRY(chat_prompt(o, r, prompt, &rendered, &bytes, error));
    rf_status status = rf_ids_reserve(&ids, 1, error);
    int flags = r->chats ? RF_ENCODE_PARSE : RF_ENCODE_MARKS | RF_ENCODE_PARSE; /* a template writes its marks itself */
    if (status == RAFTER_OK) status = rf_tokenizer_encode(r->tokenizer, rendered ? rendered : prompt, bytes, flags, &ids, error);
    free(rendered);
    r->prompt = ids.at, count = (int)ids.count;
    RF_TRY(status);
  }
  if (!r->prompt) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  r->prompt_count = count;
  if (!count) return RF_FAIL(error, RAFTER_INVALID, "give --prompt TEXT or --tokens 1,2,3", "the prompt is empty");
  return RAFTER_OK;
}

/* The context is the prompt and what may follow, unless --seq gives one; what the model has positions for bounds it. */
static rf_status resolve_context(const rf_options *o, request *r, rf_error *error) {
  rf_build_options *b = &r->settings.plan.build;
  int64_t most = r->settings.model.max_seq;
  r->max_tokens = rf_options_int(o, "max-tokens");
  if (!rf_options_is_set(o, "seq")) b->seq = r->prompt_count + r->max_tokens < most ? r->prompt_count + r->max_tokens : most;
  if (r->prompt_count >= b->seq)
    return RF_FAIL(error, RAFTER_INVALID, "shorten the prompt", "the prompt leaves no room to generate (expected fewer than %lld tokens, got %lld)",
                   (long long)b->seq, (long long)r->prompt_count);
  b->microbatch = 1, b->accumulate = 1;
  return RAFTER_OK;
}

/* Room for `more` bytes and a terminator behind the text. */
static rf_status make_room(answer *a, size_t more, rf_error *error) {
  if (a->text_bytes + more + 1 <= a->capacity) return RAFTER_OK;
  size_t capacity = 2 * (a->text_bytes + more + 1);
  char *text = realloc(a->text, capacity);
  if (!text) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  a->text = text, a->capacity = capacity;
  return RAFTER_OK;
}

/* Bytes that may be shown now: kept for the answer and, where it is watched, written. */
static rf_status release(answer *a, const rf_stop_text *text, const rafter_sink *sink, bool streams, rf_error *error) {
  for (int i = 0; i < 2; i++) {
    rf_span span = text->released[i];
    if (!span.bytes) continue;
    RF_TRY(make_room(a, span.bytes, error));
    memcpy(a->text + a->text_bytes, span.at, span.bytes);
    a->text[a->text_bytes + span.bytes] = 0;
    if (streams && sink->text) sink->text(sink->self, a->text + a->text_bytes);
    a->text_bytes += span.bytes;
  }
  return RAFTER_OK;
}

/* One token's log-probability, and the likeliest beside it, into the answer's lists. */
static void note(const request *r, answer *a, const rf_generator *g, int32_t id, const rf_logprobs *top) {
  json_array_append_new(a->tokens, json_integer(id));
  json_array_append_new(a->logprobs, json_real((double)rf_generator_logprob(g, id)));
  if (!r->top) return;
  json_t *ids = json_array(), *logprobs = json_array();
  for (int i = 0; i < top->count; i++) {
    json_array_append_new(ids, json_integer(top->ids[i]));
    json_array_append_new(logprobs, json_real((double)rf_generator_logprob(g, top->ids[i])));
  }
  json_array_append_new(a->top, json_pack("{so so}", "ids", ids, "logprobs", logprobs));
}

static rf_status sample(request *r, rf_generator *g, rf_sampler *sampler, bool streams, const rafter_sink *sink, answer *a, rf_error *error) {
  const float *logits = NULL;
  double start = rf_now_seconds(), likelihood[RF_TOP_LOGPROBS];
  int32_t likeliest[RF_TOP_LOGPROBS];
  rf_status status = RAFTER_OK;
  rf_decoder decoder;
  rf_stop_state state;
  rf_stop_text text;
  size_t room = r->text ? rf_decoder_room(r->tokenizer) : 16;
  char *piece = malloc(room + 1);
  if (!piece) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  rf_decoder_start(&decoder, r->tokenizer, RF_DECODE_CONTINUES);
  rf_stop_start(&r->stop, &state);
  RF_GO(rf_sampler_prompt(sampler, r->prompt, r->prompt_count, error));
  RF_GO(rf_generator_feed(g, r->prompt, r->prompt_count, &logits, error));
  a->finish_reason = "length";
  rf_run_measured_reset(g->run);
  while (a->count < r->max_tokens) {
    int32_t id;
    rf_logprobs top = {.wanted = r->top, .ids = likeliest, .logprobs = likelihood};
    RF_GO(rf_sampler_choose(sampler, logits, g->length, &id, &top, error));
    RF_GO(rf_sampler_accept(sampler, id, error));
    if (!a->count) a->first_seconds = rf_now_seconds() - start;
    a->count++;
    note(r, a, g, id, &top);
    if (rf_stop_has_id(&r->stop, id) && !r->ignore_eos) {
      a->finish_reason = "stop";
      break;
    }
    size_t bytes = r->text ? rf_decoder_next(&decoder, id, piece) : (size_t)sprintf(piece, "%s%d", a->count > 1 ? "," : "", id);
    bool found = rf_stop_next(&state, piece, bytes, &text);
    RF_GO(release(a, &text, sink, streams, error));
    if (found) {
      a->finish_reason = "stop";
      break;
    }
    if (a->count == r->max_tokens || g->length >= r->settings.plan.build.seq) break;
    if (rf_asked_to_stop(sink)) {
      status = RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped after %lld tokens", (long long)a->count);
      goto done;
    }
    RF_GO(rf_generator_feed(g, &id, 1, &logits, error));
  }
  if (!state.found) {
    size_t bytes = r->text ? rf_decoder_end(&decoder, piece) : 0;
    rf_stop_next(&state, piece, bytes, &text);
    RF_GO(release(a, &text, sink, streams, error));
    rf_stop_end(&state, &text);
    RF_GO(release(a, &text, sink, streams, error));
  }
  a->seconds = rf_now_seconds() - start;
done:
  free(piece);
  return status;
}

/* MODEL may be a run: then its newest checkpoint is meant. */
static rf_status resolve_model(const rafter_job *job, rafter_job *resolved, rf_error *error) {
  char folder[4096], path[4200];
  struct stat info;
  const char *model = rf_options_argument(job->options, 0);
  resolved->options = rf_options_copy(job->options);
  if (!resolved->options) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  if (!model || stat(model, &info) || !S_ISDIR(info.st_mode)) return RAFTER_OK;
  snprintf(path, sizeof path, "%s/config.json", model);
  if (!stat(path, &info) || rf_adapter_is(model)) return RAFTER_OK;
  RF_TRY(rf_checkpoint_newest(model, folder, error));
  return rf_options_set(resolved->options, "MODEL", folder, error);
}

static rf_status read_bias(const rf_options *o, request *r, rf_error *error) {
  const char *const *texts = rf_options_is_set(o, "logit-bias") ? rf_options_texts(o, "logit-bias", &r->bias_count) : NULL;
  r->bias = calloc((size_t)r->bias_count + 1, sizeof *r->bias);
  if (!r->bias) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int i = 0; i < r->bias_count; i++) {
    int end = 0;
    if (sscanf(texts[i], "%d=%f%n", &r->bias[i].id, &r->bias[i].bias, &end) != 2 || texts[i][end])
      return RF_FAIL(error, RAFTER_INVALID, "for example --logit-bias 464=-5",
                     "--logit-bias is not a token and a number (expected ID=BIAS, got '%.60s')", texts[i]);
  }
  return RAFTER_OK;
}

static void add_mark(request *r, int64_t id) {
  if (id < 0 || id >= r->settings.model.vocab || r->eos_count == MARKS) return;
  for (int i = 0; i < r->eos_count; i++)
    if (r->eos[i] == id) return;
  r->eos[r->eos_count++] = (int32_t)id;
}

/* generation_config.json beside the weights: how its authors sample, and further ids that end an answer. What is typed wins. */
static rf_status read_preferences(const rf_options *o, request *r, const rafter_sink *sink, rf_error *error) {
  char path[4200], said[256] = "";
  json_t *json = NULL;
  for (int i = 0; i < PREFERENCE_COUNT; i++) r->preferred[i] = rf_options_float(o, PREFERENCES[i].option);
  snprintf(path, sizeof path, "%s/generation_config.json", r->settings.weights_folder);
  if (!*r->settings.weights_folder || access(path, R_OK)) return RAFTER_OK;
  RF_TRY(rf_json_read(path, 1 << 20, &json, error));
  bool samples = true;
  rf_status status = rf_json_bool_or(json, "do_sample", path, json_object_get(json, "temperature") != NULL, &samples, error);
  for (int i = 0; i < PREFERENCE_COUNT && status == RAFTER_OK; i++) {
    double value = i == TEMPERATURE && !samples ? 0 : r->preferred[i];
    if (rf_options_given(o, PREFERENCES[i].option) ||
        (i == TEMPERATURE && !json_object_get(json, "do_sample") && !json_object_get(json, "temperature")))
      continue;
    if (i != TEMPERATURE || samples) status = rf_json_float_or(json, PREFERENCES[i].key, path, 0, 1e9, value, &value, error);
    if (value == r->preferred[i]) continue;
    r->preferred[i] = value;
    rf_text_append(said, sizeof said, "%s%s %g", *said ? ", " : "", PREFERENCES[i].option, value);
  }
  json_t *eos = json_object_get(json, "eos_token_id"), *id;
  size_t i;
  if (json_is_integer(eos)) add_mark(r, json_integer_value(eos));
  json_array_foreach(eos, i, id) add_mark(r, json_is_integer(id) ? json_integer_value(id) : -1);
  if (*said) rf_put_bar(sink, "generation_config.json: %s", said), rf_put_bar(sink, "%s", "");
  json_decref(json);
  return status;
}

/* What ends the answer: ids, unless they are to be ignored, and texts. */
static rf_status read_stops(const rf_options *o, request *r, rf_error *error) {
  int count = 0;
  const char *const *texts = rf_options_is_set(o, "stop") ? rf_options_texts(o, "stop", &count) : NULL;
  rf_span *span = calloc((size_t)count + 1, sizeof *span);
  if (!span) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int i = 0; i < count; i++) span[i] = (rf_span){texts[i], strlen(texts[i])};
  add_mark(r, r->settings.model.eos_id);
  if (r->text) add_mark(r, rf_tokenizer_eos(r->tokenizer));
  r->ignore_eos = rf_options_flag(o, "ignore-eos");
  rf_stop_options options = {.strings = span, .string_count = count, .ids = r->eos, .id_count = r->eos_count};
  rf_status status = rf_stop_open(&options, &r->stop, error);
  free(span);
  return status;
}

static rf_status generate(const rf_options *o, request *r, const rafter_sink *sink, answer *a, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_generator *g = NULL;
  rf_sampler sampler = {0};
  RF_TRY(rf_settings_resolve(o, "generate", &r->settings, error));
  RF_TRY(read_prompt(o, r, error));
  RF_TRY(resolve_context(o, r, error));
  RF_TRY(read_preferences(o, r, sink, error));
  RF_TRY(read_stops(o, r, error));
  RF_TRY(read_bias(o, r, error));
  r->top = (int)rf_options_int(o, "top-logprobs");
  rf_sampler_options s = {.temperature = (float)r->preferred[TEMPERATURE],
                          .top_k = (int32_t)r->preferred[TOP_K],
                          .top_p = (float)r->preferred[TOP_P],
                          .min_p = (float)r->preferred[MIN_P],
                          .seed = (uint64_t)rf_options_int(o, "seed"),
                          .repetition_penalty = (float)r->preferred[REPETITION],
                          .presence_penalty = (float)rf_options_float(o, "presence-penalty"),
                          .frequency_penalty = (float)rf_options_float(o, "frequency-penalty"),
                          .bias = r->bias,
                          .bias_count = r->bias_count,
                          .eos = r->eos,
                          .eos_count = r->eos_count,
                          .min_tokens = rf_options_int(o, "min-tokens")};
  rf_generate_settings settings = {.model = r->settings.model,
                                   .plan = r->settings.plan,
                                   .weights_folder = r->settings.weights_folder,
                                   .progress = rf_load_bar(sink),
                                   .seed = (uint64_t)rf_options_int(o, "seed"),
                                   .debug = {.poison = rf_options_flag(o, "debug"), .find_nan = rf_options_flag(o, "debug")}};
  a->tokens = json_array(), a->logprobs = json_array(), a->top = json_array();
  RF_TRY(make_room(a, 16, error));
  a->text[0] = 0;
  RF_GO(rf_generator_open(&settings, &g, error));
  RF_GO(rf_sampler_open(&s, r->settings.model.vocab, &sampler, error));
  if (!g->io[0].logits) {
    status = RF_FAIL(error, RAFTER_INVALID, "choose --backend cpu or reference", "the null backend computes nothing to choose from");
    goto done;
  }
  bool json = rf_options_flag(o, "json");
  if (r->text && !json && !r->chats && rf_options_is_set(o, "prompt")) rf_say(sink, "%s", rf_options_text(o, "prompt"));
  RF_GO(sample(r, g, &sampler, !json, sink, a, error));
  if (!json) rf_say(sink, "\n");
  double decode = a->seconds - a->first_seconds, steps = (double)(a->count - 1), bandwidth = r->settings.machine.read_bps;
  json_t *text = r->text ? json_stringn(a->text, a->text_bytes) : NULL;
  json_t *json_answer = json_pack(
      "{ss so sO sO ss sI sI sf sf sf sI}", "command", "generate", "text", text ? text : json_null(), "tokens", a->tokens, "logprobs", a->logprobs,
      "finish_reason", a->finish_reason, "prompt_tokens", (json_int_t)r->prompt_count, "completion_tokens", (json_int_t)a->count,
      "seconds_to_first_token", a->first_seconds, "tokens_per_second", decode > 0 ? steps / decode : 0, "bandwidth_fraction",
      decode > 0 && bandwidth > 0 ? g->decode->bytes * steps / decode / bandwidth : 0, "arena_bytes", (json_int_t)rf_run_arena_bytes(g->run));
  if (r->top) json_object_set(json_answer, "top", a->top);
  rf_put_json(sink, json_answer);
done:
  rf_sampler_close(&sampler);
  rf_generator_close(g);
  return status;
}

rf_status rf_command_generate(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  rafter_job resolved = {0};
  request *r = calloc(1, sizeof *r);
  answer a = {0};
  rf_status status = r ? resolve_model(job, &resolved, error) : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  if (status == RAFTER_OK) status = generate(resolved.options, r, sink, &a, error);
  if (r) free(r->prompt), free(r->bias), rf_stop_close(&r->stop), rf_tokenizer_close(r->tokenizer);
  json_decref(a.tokens), json_decref(a.logprobs), json_decref(a.top);
  free(a.text), free(r);
  rf_options_free(resolved.options);
  return status;
}
