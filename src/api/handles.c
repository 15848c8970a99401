/* handles.c - the public tokenizer and scorer of rafter.h, and functions that all handles share. */
#include "api/answers.h"
#include "api/handles.h"

#include <stdlib.h>
#include <string.h>

/* ---- sized structs and options --------------------------------------------------------------- */

rf_status rf_sized_copy(void *own, size_t size, const void *from, size_t from_size, const char *name,
                        rf_error *error) {
  if (from_size < sizeof(size_t))
    return RF_FAIL(error, RAFTER_INVALID, "set the struct's first field, size, to the sizeof of its type",
                   "the field size of a %s is not set (got %zu bytes)", name, from_size);
  memcpy(own, from, size < from_size ? size : from_size);
  return RAFTER_OK;
}

void rf_sized_give(void *to, const void *own, size_t size) {
  size_t wanted = *(const size_t *)to, given = size < wanted ? size : wanted;
  if (given > sizeof(size_t))
    memcpy((char *)to + sizeof(size_t), (const char *)own + sizeof(size_t), given - sizeof(size_t));
}

rf_status rf_handle_options(const rafter_job *job, const char *command, rf_options **o, rf_error *error) {
  const char *is = rf_options_command(job->options);
  bool generates = command && !strcmp(command, "generate") && !strcmp(is, "serve");
  if (command && !generates && strcmp(is, command))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "the job was made for another command (expected %s, got %s)",
                   command, is);
  rf_status status = rf_options_with_model(job->options, rf_options_argument(job->options, 0), o, error);
  if (status == RAFTER_OK) return status;
  rf_options_free(*o);
  *o = NULL;
  return status;
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

rf_status rf_tokenizer_handle(const rf_options *o, const rf_model *model, const char *folder,
                              rafter_tokenizer **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rafter_tokenizer *t = calloc(1, sizeof *t);
  if (!t) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a tokenizer");
  RF_GO(rf_tokenizer_for(model->name, model->vocab, folder, &t->tokenizer, error));
  if (rf_options_knows(o, "template") && rf_options_is_set(o, "template"))
    RF_GO(rf_chat_read(rf_options_text(o, "template"), t->tokenizer, &t->chat, error));
  else if (*folder) RF_GO(rf_chat_find(folder, &t->chat, error));
done:
  if (status == RAFTER_OK) *out = t;
  else rafter_tokenizer_close(t);
  return status;
}

rafter_status rafter_tokenizer_open(const rafter_job *job, rafter_tokenizer **tokenizer,
                                    rafter_error *error) {
  rf_options *o = NULL;
  rf_model model;
  char folder[4096];
  RF_TRY(rf_handle_options(job, NULL, &o, error));
  rf_status status = rf_model_resolve(rf_options_argument(o, 0), &model, folder, error);
  if (status == RAFTER_OK) status = rf_tokenizer_handle(o, &model, folder, tokenizer, error);
  rf_options_free(o);
  return status;
}

void rafter_tokenizer_close(rafter_tokenizer *t) {
  if (!t) return;
  rf_chat_free(t->chat);
  rf_tokenizer_close(t->tokenizer);
  free(t);
}

int64_t rafter_tokenizer_vocab(const rafter_tokenizer *t) { return rf_tokenizer_vocab(t->tokenizer); }
void rafter_ids_free(int32_t *ids) { free(ids); }

static rf_status give_ids(rf_status status, rf_ids *from, int32_t **ids, int64_t *count) {
  if (status == RAFTER_OK) {
    *ids = from->at;
    *count = from->count;
  } else rf_ids_free(from);
  return status;
}

rafter_status rafter_tokenizer_encode(const rafter_tokenizer *t, const char *text, size_t bytes, bool special,
                                      int32_t **ids, int64_t *count, rafter_error *error) {
  rf_ids list = {0};
  return give_ids(rf_tokenizer_encode(t->tokenizer, text, bytes,
                                      special ? RF_ENCODE_BOS_EOS | RF_ENCODE_PARSE : 0, &list, error),
                  &list, ids, count);
}

rafter_status rafter_tokenizer_decode(const rafter_tokenizer *t, const int32_t *ids, int64_t count,
                                      char **text, size_t *bytes, rafter_error *error) {
  int64_t vocab = rf_tokenizer_vocab(t->tokenizer);
  for (int64_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= vocab)
      return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                     "token out of range (token %lld: expected an id below %lld, got %d)", (long long)i,
                     (long long)vocab, ids[i]);
  return rf_tokenizer_decode(t->tokenizer, ids, count, 0, text, bytes, error);
}

rafter_status rafter_tokenizer_piece(const rafter_tokenizer *t, int32_t id, const char **text, size_t *bytes,
                                     rafter_error *error) {
  int64_t vocab = rf_tokenizer_vocab(t->tokenizer);
  if (id < 0 || id >= vocab)
    return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                   "token out of range (expected an id below %lld, got %d)", (long long)vocab, id);
  rf_span span = rf_tokenizer_text_of(t->tokenizer, id);
  *text = span.at ? span.at : "";
  *bytes = span.bytes;
  return RAFTER_OK;
}

bool rafter_tokenizer_chats(const rafter_tokenizer *t) { return t->chat != NULL; }

const char *rafter_tokenizer_template(const rafter_tokenizer *t) {
  return t->chat ? rf_chat_text(t->chat) : NULL;
}

const char *rafter_tokenizer_tools_template(const rafter_tokenizer *t) {
  return t->chat ? rf_chat_tools_text(t->chat) : NULL;
}

/* Reads a text of a conversation. NULL gives NULL. */
static rf_status read_part(const char *text, json_type type, const char *what, const char *hint,
                           json_t **json, rf_error *error) {
  json_error_t fault;
  *json = text ? json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &fault) : NULL;
  if (!text || (*json && json_typeof(*json) == type)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, hint, "%s", what);
}

rafter_status rafter_tokenizer_conversation(const rafter_tokenizer *t, const rafter_conversation *of,
                                            int32_t **ids, int64_t *count, rafter_error *error) {
  rafter_conversation own = {0};
  json_t *messages = NULL, *tools = NULL, *variables = NULL;
  rf_ids list = {0};
  rf_status status;
  RF_TRY(rf_sized_copy(&own, sizeof own, of, of->size, "rafter_conversation", error));
  if (!t->chat) return RF_FAIL(error, RAFTER_FAILED, NULL, "the model has no chat template");
  RF_GO(read_part(own.messages ? own.messages : "", JSON_ARRAY, "messages are not a JSON list",
                  "for example [{\"role\": \"user\", \"content\": \"Hello\"}]", &messages, error));
  RF_GO(read_part(own.tools, JSON_ARRAY, "tools are not a JSON list", NULL, &tools, error));
  RF_GO(
      read_part(own.variables, JSON_OBJECT, "the variables are not a JSON object", NULL, &variables, error));
  const rf_chat_options options = {
      .add_generation_prompt = own.opens_answer, .tools = tools, .variables = variables, .begin = own.begin};
  status = rf_chat_encode(t->chat, t->tokenizer, messages, &options, &list, NULL, error);
done:
  json_decref(messages);
  json_decref(tools);
  json_decref(variables);
  return give_ids(status, &list, ids, count);
}

rafter_status rafter_tokenizer_chat(const rafter_tokenizer *t, const char *messages, bool opens_answer,
                                    int32_t **ids, int64_t *count, rafter_error *error) {
  const rafter_conversation of = {.size = sizeof of, .messages = messages, .opens_answer = opens_answer};
  return rafter_tokenizer_conversation(t, &of, ids, count, error);
}

/* ---- scorer ---------------------------------------------------------------------------------- */

struct rafter_scorer {
  rf_settings settings;
  rf_scorer *scorer;
};

static rf_status open_scorer(rafter_scorer *h, const rf_options *o, rf_error *error) {
  enum { LONGEST = 1024 };
  RF_TRY(rf_settings_resolve(o, "score", &h->settings, error));
  rf_build_options *b = &h->settings.plan.build;
  if (!rf_options_given(o, "seq") && b->seq > LONGEST) b->seq = LONGEST;
  if (!rf_options_given(o, "batch")) b->microbatch = 1;
  return rf_open_scorer(&h->settings, o, NULL, &h->scorer, error);
}

rafter_status rafter_scorer_open(const rafter_job *job, rafter_scorer **scorer, rafter_error *error) {
  rf_options *o = NULL;
  RF_TRY(rf_handle_options(job, "score", &o, error));
  rafter_scorer *h = calloc(1, sizeof *h);
  rf_status status = h ? open_scorer(h, o, error)
                       : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a scorer");
  rf_options_free(o);
  if (status == RAFTER_OK) *scorer = h;
  else rafter_scorer_close(h);
  return status;
}

void rafter_scorer_close(rafter_scorer *h) {
  if (!h) return;
  rf_scorer_close(h->scorer);
  free(h);
}

int64_t rafter_scorer_tokens(const rafter_scorer *h) { return rf_scorer_rows(h->scorer); }

rafter_status rafter_scorer_score(rafter_scorer *h, const rafter_score *text, int32_t count,
                                  rafter_error *error) {
  rf_status status = RAFTER_OK;
  if (count < 1) return RF_FAIL(error, RAFTER_INVALID, NULL, "there are no texts to score");
  rf_scored *own = calloc((size_t)count, sizeof *own);
  if (!own) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while scoring");
  for (int32_t i = 0; i < count; i++) {
    rafter_score one = {0};
    const char *at = (const char *)text + (size_t)i * text->size;
    RF_GO(rf_sized_copy(&one, sizeof one, at, text->size, "rafter_score", error));
    own[i] = (rf_scored){one.tokens, one.count, one.logprobs, one.top_ids, one.top_logprobs};
  }
  status = rf_scorer_pass(h->scorer, own, count, error);
done:
  free(own);
  return status;
}
