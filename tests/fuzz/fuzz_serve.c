/* Reads any bytes as the body of a request. Either there is one error with a status of 400 or 404,
 * or the request is within all bounds, and each of its prompts is a text or ids of the vocabulary.
 * The first byte chooses the kind of request. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/ask.h"

enum { VOCAB = 300, CONTEXT = 64, ANSWERS = 40 };

static const rf_ask_rules RULES = {.model = "tiny",
                                   .vocab = VOCAB,
                                   .context = CONTEXT,
                                   .max_tokens = 16,
                                   .answers = ANSWERS,
                                   .chat_template = "tools <tool_call>",
                                   .knows_tools = true,
                                   .knows_calls = true};

static void expect(bool holds) {
  if (!holds) abort();
}

static void check_request(const rf_ask *ask) {
  const rafter_request *r = &ask->request;
  expect(r->samples >= 1 && ask->prompts >= 1 && ask->prompts * r->samples <= ANSWERS);
  expect(r->max_tokens >= 1 && r->min_tokens >= 0 && r->top_k >= 0);
  expect(r->temperature >= 0 && r->temperature <= 100 && r->top_p >= 0 && r->top_p <= 1);
  expect(r->min_p >= 0 && r->min_p <= 1 && r->repetition_penalty >= 0 && r->top_logprobs >= 0);
  expect(r->top_logprobs <= RF_ASK_TOP && r->stop_count >= 0 && r->stop_count <= RF_ASK_STOPS);
  for (int i = 0; i < r->stop_count; i++)
    expect(strlen(ask->stop[i]) >= 1 && strlen(ask->stop[i]) <= RF_ASK_STOP_BYTES);
  expect(!ask->tools || json_is_array(ask->tools));
  expect((ask->tool_choice < RF_TOOLS_REQUIRED || ask->form_field) && (!ask->tool_name || ask->tools));
  for (int64_t i = 0; i < r->bias_count; i++) expect(ask->bias[i].id >= 0 && ask->bias[i].id < VOCAB);
}

static void check_prompts(const rf_ask *ask) {
  for (int64_t p = 0; p < ask->prompts && !ask->messages; p++) {
    const char *text = NULL;
    size_t bytes = 0;
    int32_t *ids = NULL;
    int64_t count = 0;
    rf_wrong wrong = {0};
    if (!rf_ask_prompt(&RULES, ask, p, &text, &bytes, &ids, &count, &wrong)) {
      expect(wrong.status == 400);
      continue;
    }
    expect(ids || (text && memchr(text, 0, bytes + 1) == text + bytes));
    for (int64_t i = 0; i < count; i++) expect(ids[i] >= 0 && ids[i] < VOCAB);
    free(ids);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static const rf_ask_kind kinds[] = {RF_ASK_COMPLETION, RF_ASK_CHAT, RF_ASK_TOKENIZE, RF_ASK_DETOKENIZE};
  rf_ask ask = {0};
  rf_wrong wrong = {0};
  rf_body out = {0};
  if (bytes < 1) return 0;
  rf_ask_kind kind = kinds[data[0] & 3];
  rf_ask_rules rules = RULES;
  rules.tool_format = rf_tool_format_of(rules.chat_template);
  if (!rf_ask_read(&rules, kind, (const char *)data + 1, bytes - 1, &ask, &wrong)) {
    expect(wrong.status == 400 || wrong.status == 404);
    expect(*wrong.message);
    rf_wrong_json(&wrong, &out);
    json_t *json = json_loadb(out.at, out.bytes, 0, NULL);
    expect(json != NULL);
    json_decref(json);
  } else {
    if (kind == RF_ASK_COMPLETION || kind == RF_ASK_CHAT) check_request(&ask);
    check_prompts(&ask);
    for (const char *c = ask.ignored; *c; c++) expect(*c >= ' ' && *c <= '~' && *c != '"');
  }
  rf_body_free(&out);
  rf_ask_free(&ask);
  return 0;
}
