/* ask_fields.c - the table of request fields, and a reader for each field. */
#include "serve/ask.h"
#include "serve/names.h"

#include "base/json.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef rf_ask_rules rules;
typedef rf_ask_field field;

static bool out_of_range(rf_wrong *wrong, const field *f, double got) {
  return rf_wrong_set(wrong, 400, "invalid_value", f->name,
                      "%s is out of range (expected %.10g to %.10g, got %.10g)", f->name, f->least, f->most,
                      got);
}

/* Reads a whole number, which may also be written as 3.0. */
static bool whole(const field *f, const json_t *value, int64_t *number, rf_wrong *wrong) {
  double real = json_number_value(value);
  if (!json_is_number(value) || (json_is_real(value) && (real != floor(real) || fabs(real) > 9e15)))
    return rf_ask_type(wrong, f->name, "a whole number", value);
  *number = json_is_real(value) ? (int64_t)real : json_integer_value(value);
  return (double)*number >= f->least && (double)*number <= f->most ? true
                                                                   : out_of_range(wrong, f, (double)*number);
}

/* ---- readers --------------------------------------------------------------------------------- */

static bool number(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  double got = json_number_value(value);
  (void)r;
  if (!json_is_number(value)) return rf_ask_type(wrong, f->name, "a number", value);
  if (!(got >= f->least && got <= f->most)) return out_of_range(wrong, f, got);
  *(float *)((char *)&ask->request + f->at) = (float)got;
  return true;
}

/* In a rafter_request, a top_p of 0 means unset. In a request's JSON, a top_p of 0 keeps only the
 * likeliest token. */
static bool top_p(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  if (!number(r, f, value, ask, wrong)) return false;
  if (ask->request.top_p <= 0) ask->request.top_p = FLT_MIN;
  return true;
}

static bool top_k(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  int64_t k = 0;
  (void)r;
  if (!whole(f, value, &k, wrong)) return false;
  ask->request.top_k = k > 0 ? (int32_t)k : 0; /* -vLLM also accepts -1 for all tokens */
  return true;
}

static bool tokens(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  int64_t *at = (int64_t *)((char *)&ask->request + f->at);
  const json_t *newer = json_object_get(ask->body, "max_completion_tokens");
  int64_t got = 0;
  (void)r;
  if (!whole(f, value, &got, wrong)) return false;
  if (strcmp(f->name, "max_tokens") || !newer || json_is_null(newer)) *at = got;
  return true;
}

static bool samples(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  int64_t n = 0;
  (void)r;
  if (!whole(f, value, &n, wrong)) return false;
  if (!strcmp(f->name, "n")) ask->request.samples = (int32_t)n; /* best_of is compared with n later */
  return true;
}

static bool seed(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  (void)r;
  if (!json_is_integer(value)) return rf_ask_type(wrong, f->name, "a whole number", value);
  ask->request.seed = (uint64_t)json_integer_value(value);
  ask->seeded = true;
  return true;
}

static bool flag(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  (void)r;
  if (!json_is_boolean(value)) return rf_ask_type(wrong, f->name, "true or false", value);
  *(bool *)((char *)ask + f->at) = json_is_true(value);
  return true;
}

/* In chats, `logprobs` is a flag. In completions, `logprobs` is a number of alternatives. */
static bool logprobs(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  int64_t top = 0;
  if (ask->kind == RF_ASK_CHAT) return flag(r, f, value, ask, wrong);
  if (!whole(f, value, &top, wrong)) return false;
  ask->logprobs = true;
  ask->request.top_logprobs = (int32_t)top;
  return true;
}

static bool top_logprobs(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  int64_t top = 0;
  (void)r;
  if (!whole(f, value, &top, wrong)) return false;
  ask->request.top_logprobs = (int32_t)top;
  return true;
}

static bool prompt_logprobs(const rules *r, const field *f, const json_t *value, rf_ask *ask,
                            rf_wrong *wrong) {
  int64_t top = 0;
  (void)r;
  if (!whole(f, value, &top, wrong)) return false;
  ask->prompt_logprobs = true;
  ask->prompt_top = (int32_t)top;
  return true;
}

static bool stop(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  size_t count = json_is_array(value) ? json_array_size(value) : 1;
  (void)r;
  if (count > RF_ASK_STOPS)
    return rf_wrong_set(wrong, 400, "invalid_value", f->name,
                        "%s has too many texts (expected at most %d, got %zu)", f->name, RF_ASK_STOPS, count);
  for (size_t i = 0; i < count; i++) {
    const json_t *text = json_is_array(value) ? json_array_get(value, i) : value;
    if (!json_is_string(text)) return rf_ask_type(wrong, f->name, "a text or a list of texts", text);
    if (json_string_length(text) < 1 || json_string_length(text) > RF_ASK_STOP_BYTES)
      return rf_wrong_set(wrong, 400, "invalid_value", f->name,
                          "a text of %s is out of range (expected 1 to %d bytes, got %zu)", f->name,
                          RF_ASK_STOP_BYTES, json_string_length(text));
    ask->stop[i] = json_string_value(text);
  }
  ask->request.stop_count = (int32_t)count;
  return true;
}

static bool logit_bias(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  const char *name;
  json_t *bias;
  if (!json_is_object(value)) return rf_ask_type(wrong, f->name, "an object of token ids and numbers", value);
  if (json_object_size(value) > RF_ASK_BIASES)
    return rf_wrong_set(wrong, 400, "invalid_value", f->name,
                        "%s has too many tokens (expected at most %d, got %zu)", f->name, RF_ASK_BIASES,
                        json_object_size(value));
  ask->bias = rf_must(calloc(json_object_size(value) + 1, sizeof *ask->bias));
  json_object_foreach ((json_t *)(uintptr_t)value, name, bias) {
    char *end;
    long long id = strtoll(name, &end, 10);
    double by = json_number_value(bias);
    if (*end || end == name || id < 0 || id >= r->vocab)
      return rf_wrong_set(wrong, 400, "invalid_token", f->name,
                          "a name in %s is not a token id (expected 0 to %lld, got \"%.40s\")", f->name,
                          (long long)r->vocab - 1, name);
    if (!json_is_number(bias)) return rf_ask_type(wrong, f->name, "numbers", bias);
    if (!(by >= f->least && by <= f->most)) return out_of_range(wrong, f, by);
    ask->bias[ask->request.bias_count++] = (rafter_logit_bias){(int32_t)id, (float)by};
  }
  return true;
}

bool rf_ask_model(const rf_ask_rules *r, const char *param, const char *name, int64_t *adapter,
                  rf_wrong *wrong) {
  *adapter = 0;
  if (!strcmp(name, r->model) || (r->alias && !strcmp(name, r->alias))) return true;
  if (r->adapters) *adapter = rf_named_adapter(r->adapters, name, NULL);
  if (*adapter) return true;
  return rf_wrong_set(wrong, 404, "model_not_found", param,
                      "the model %.200s does not exist; this server has %.200s", name, r->model);
}

static bool model(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  const char *name = json_string_value(value);
  if (!name) return rf_ask_type(wrong, f->name, "a text", value);
  if (!rf_ask_model(r, f->name, name, &ask->request.adapter, wrong)) return false;
  if (ask->request.adapter) ask->model = name;
  return true;
}

static bool text(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  (void)r;
  if (!json_is_string(value)) return rf_ask_type(wrong, f->name, "a text", value);
  *(const char **)((char *)ask + f->at) = json_string_value(value);
  return true;
}

static bool stream_options(const rules *r, const field *f, const json_t *value, rf_ask *ask,
                           rf_wrong *wrong) {
  const struct {
    const char *name;
    bool *to;
  } known[] = {{"include_usage", &ask->usage}, {"continuous_usage_stats", &ask->usage_always}};
  (void)r;
  if (!json_is_object(value)) return rf_ask_type(wrong, f->name, "an object", value);
  for (size_t i = 0; i < 2; i++) {
    const json_t *given = json_object_get(value, known[i].name);
    if (!given || json_is_null(given)) continue;
    if (!json_is_boolean(given)) return rf_ask_type(wrong, f->name, "true or false as its values", given);
    *known[i].to = json_is_true(given);
  }
  return true;
}

static bool prompt(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  bool text = ask->kind == RF_ASK_TOKENIZE, ids = ask->kind == RF_ASK_DETOKENIZE;
  if (text && !json_is_string(value)) return rf_ask_type(wrong, f->name, "a text", value);
  if (ids && (!json_is_array(value) || json_is_array(json_array_get(value, 0)) ||
              json_is_string(json_array_get(value, 0))))
    return rf_ask_type(wrong, f->name, "a list of token ids", value);
  if (ids && !json_array_size(value)) return ask->prompts = 1, true;
  return rf_ask_prompts(r, f->name, value, ask, wrong);
}

static bool messages(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  (void)f;
  return rf_ask_messages(r, value, ask, wrong);
}

/* Accepts a field that changes no answer. */
static bool accept(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  (void)r;
  (void)f;
  (void)value;
  (void)ask;
  (void)wrong;
  return true;
}

/* Returns true for a value that asks for nothing, such as false, "", "none", [], ["text"] or
 * {"type": "text"}. */
static bool asks_nothing(const json_t *value) {
  const json_t *type = json_is_object(value) ? json_object_get(value, "type") : value;
  if (json_is_array(value) && !json_array_size(value)) return true;
  if (json_is_array(value) && json_array_size(value) == 1) type = json_array_get(value, 0);
  const char *text = json_string_value(type);
  return json_is_false(value) || (text && (!*text || !strcmp(text, "none") || !strcmp(text, "text")));
}

static bool refuse(const rules *r, const field *f, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  (void)r;
  (void)ask;
  if (asks_nothing(value)) return true;
  return rf_wrong_set(wrong, 400, "unsupported_field", f->name, "%s is not supported by this server",
                      f->name);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define ANSWER (RF_ASK_COMPLETION | RF_ASK_CHAT)
#define TEXTS (RF_ASK_TOKENIZE | RF_ASK_DETOKENIZE)
#define OF_REQUEST(name) offsetof(rafter_request, name)
#define OF_ASK(name) offsetof(rf_ask, name)
#define MAX_TOKENS (1 << 24)

// clang-format off
const rf_ask_field RF_ASK_FIELDS[] = {
    {"model", ANSWER | TEXTS, model, 0, 0, 0},
    {"prompt", RF_ASK_COMPLETION | RF_ASK_TOKENIZE, prompt, 0, 0, 0},
    {"content", RF_ASK_TOKENIZE, prompt, 0, 0, 0},
    {"tokens", RF_ASK_DETOKENIZE, prompt, 0, 0, 0},
    {"messages", RF_ASK_CHAT | RF_ASK_TOKENIZE, messages, 0, 0, 0},
    {"max_tokens", ANSWER, tokens, OF_REQUEST(max_tokens), 1, MAX_TOKENS},
    {"max_completion_tokens", ANSWER, tokens, OF_REQUEST(max_tokens), 1, MAX_TOKENS},
    {"min_tokens", ANSWER, tokens, OF_REQUEST(min_tokens), 0, MAX_TOKENS},
    {"temperature", ANSWER, number, OF_REQUEST(temperature), 0, 100},
    {"top_p", ANSWER, top_p, OF_REQUEST(top_p), 0, 1},
    {"top_k", ANSWER, top_k, OF_REQUEST(top_k), -1, MAX_TOKENS},
    {"min_p", ANSWER, number, OF_REQUEST(min_p), 0, 1},
    {"repetition_penalty", ANSWER, number, OF_REQUEST(repetition_penalty), 0.01, 100},
    {"presence_penalty", ANSWER, number, OF_REQUEST(presence_penalty), -2, 2},
    {"frequency_penalty", ANSWER, number, OF_REQUEST(frequency_penalty), -2, 2},
    {"logit_bias", ANSWER, logit_bias, 0, -100, 100},
    {"seed", ANSWER, seed, 0, 0, 0},
    {"n", ANSWER, samples, 0, 1, RF_ASK_SAMPLES},
    {"best_of", RF_ASK_COMPLETION, samples, 0, 1, RF_ASK_SAMPLES},
    {"stop", ANSWER, stop, 0, 0, 0},
    {"ignore_eos", ANSWER, flag, OF_ASK(request.ignore_eos), 0, 0},
    {"stream", ANSWER, flag, OF_ASK(stream), 0, 0},
    {"stream_options", ANSWER, stream_options, 0, 0, 0},
    {"logprobs", ANSWER, logprobs, OF_ASK(logprobs), 0, RF_ASK_TOP},
    {"top_logprobs", RF_ASK_CHAT, top_logprobs, 0, 0, RF_ASK_TOP},
    {"echo", RF_ASK_COMPLETION, flag, OF_ASK(echo), 0, 0},
    {"return_token_ids", ANSWER, flag, OF_ASK(token_ids), 0, 0},
    {"add_special_tokens", RF_ASK_TOKENIZE, flag, OF_ASK(add_special), 0, 0},
    {"add_special", RF_ASK_TOKENIZE, flag, OF_ASK(add_special), 0, 0},
    {"add_generation_prompt", RF_ASK_TOKENIZE, flag, OF_ASK(opens_answer), 0, 0},
    {"return_token_strs", RF_ASK_TOKENIZE, flag, OF_ASK(pieces), 0, 0},
    {"with_pieces", RF_ASK_TOKENIZE, flag, OF_ASK(pieces), 0, 0},
    {"lora_name", RF_ASK_LOAD | RF_ASK_UNLOAD, text, OF_ASK(lora_name), 0, 0},
    {"lora_path", RF_ASK_LOAD, text, OF_ASK(lora_path), 0, 0},
    {"lora_int_id", RF_ASK_UNLOAD, accept, 0, 0, 0},
    {"load_inplace", RF_ASK_LOAD, refuse, 0, 0, 0},
    {"user", ANSWER, accept, 0, 0, 0},
    {"safety_identifier", ANSWER, accept, 0, 0, 0},
    {"prompt_cache_key", ANSWER, accept, 0, 0, 0},
    {"service_tier", ANSWER, accept, 0, 0, 0},
    {"store", ANSWER, accept, 0, 0, 0},
    {"metadata", ANSWER, accept, 0, 0, 0},
    {"parallel_tool_calls", RF_ASK_CHAT, flag, OF_ASK(several_calls), 0, 0},
    {"tools", RF_ASK_CHAT | RF_ASK_TOKENIZE, rf_ask_tools, 0, 0, 0},
    {"tool_choice", RF_ASK_CHAT, rf_ask_tool_choice, 0, 0, 0},
    {"functions", RF_ASK_CHAT, refuse, 0, 0, 0},
    {"function_call", RF_ASK_CHAT, refuse, 0, 0, 0},
    {"response_format", ANSWER, rf_ask_response_format, 0, 0, 0},
    {"structured_outputs", ANSWER, rf_ask_structured, 0, 0, 0},
    {"guided_json", ANSWER, rf_ask_guided, 0, 0, 0},
    {"guided_regex", ANSWER, rf_ask_guided, 0, 0, 0},
    {"guided_choice", ANSWER, rf_ask_guided, 0, 0, 0},
    {"guided_grammar", ANSWER, refuse, 0, 0, 0},
    {"json_schema", ANSWER, rf_ask_guided, 0, 0, 0},
    {"grammar", ANSWER, refuse, 0, 0, 0},
    {"prompt_logprobs", ANSWER, prompt_logprobs, 0, 0, RF_ASK_TOP},
    {"suffix", RF_ASK_COMPLETION, refuse, 0, 0, 0},
    {"audio", RF_ASK_CHAT, refuse, 0, 0, 0},
    {"modalities", RF_ASK_CHAT, refuse, 0, 0, 0},
    {"prediction", RF_ASK_CHAT, refuse, 0, 0, 0},
    {"reasoning_effort", RF_ASK_CHAT, refuse, 0, 0, 0},
    {"use_beam_search", ANSWER, refuse, 0, 0, 0},
    {.name = NULL}};
// clang-format on
