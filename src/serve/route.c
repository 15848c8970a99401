/* route.c - the table of paths, and a function that answers each path. */
#include "serve/call.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char JSON[] = "application/json";

/* ---- facts ----------------------------------------------------------------------------------- */

/* Appends one model of the list. `parent` is the base model of an adapter, or NULL. */
static void put_model(const rf_server *s, const char *name, int64_t created, const char *parent,
                      rf_body *out) {
  rf_body_text(out, "{\"id\":");
  rf_body_string(out, name, strlen(name));
  rf_body_format(out,
                 ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"rafter\",\"max_model_len\":%lld"
                 ",\"parent\":",
                 (long long)created, (long long)s->rules.context);
  if (parent) rf_body_string(out, parent, strlen(parent));
  rf_body_text(out, parent ? "}" : "null}");
}

static bool answer_models(rf_call *c, rf_body *out, const char **type) {
  *type = JSON;
  rf_body_text(out, "{\"object\":\"list\",\"data\":[");
  const rf_server *s = c->server;
  char name[RF_ADAPTER_NAME + 1];
  int64_t created;
  put_model(s, s->rules.model, s->started, NULL, out);
  for (int i = 0; rf_named_adapter_at(s->adapters, i, name, &created); i++) {
    rf_body_text(out, ",");
    put_model(s, name, created, s->rules.model, out);
  }
  rf_body_text(out, "]}");
  return true;
}

static bool answer_model(rf_call *c, rf_body *out, const char **type) {
  const rf_server *s = c->server;
  const char *name = c->path + strlen(c->route->path);
  int64_t adapter, created = s->started;
  *type = JSON;
  if (!rf_ask_model(&s->rules, "model", name, &adapter, &c->wrong)) return false;
  if (adapter) rf_named_adapter(s->adapters, name, &created);
  put_model(s, adapter ? name : s->rules.model, created, adapter ? s->rules.model : NULL, out);
  return true;
}

static bool answer_health(rf_call *c, rf_body *out, const char **type) {
  (void)c;
  *type = JSON;
  rf_body_text(out, "{\"status\":\"ok\"}");
  return true;
}

static bool answer_ready(rf_call *c, rf_body *out, const char **type) {
  rf_server *s = c->server;
  *type = JSON;
  pthread_mutex_lock(&s->lock);
  bool draining = s->draining;
  pthread_mutex_unlock(&s->lock);
  if (draining) return rf_wrong_stopping(&c->wrong);
  rf_body_text(out, "{\"status\":\"ready\"}");
  return true;
}

static bool answer_version(rf_call *c, rf_body *out, const char **type) {
  (void)c;
  *type = JSON;
  rf_body_format(out, "{\"version\":\"%s\"}", rafter_version());
  return true;
}

static bool answer_metrics(rf_call *c, rf_body *out, const char **type) {
  rf_server *s = c->server;
  *type = "text/plain; version=0.0.4; charset=utf-8";
  pthread_mutex_lock(&s->lock);
  rf_metrics_text(&s->metrics, &s->counts, s->running, s->open_answers - s->running, s->settings->prefix,
                  s->rules.model, out);
  pthread_mutex_unlock(&s->lock);
  return true;
}

static bool answer_embeddings(rf_call *c, rf_body *out, const char **type) {
  (void)out;
  (void)type;
  return rf_wrong_set(&c->wrong, 400, "unsupported_endpoint", NULL,
                      "%.200s generates text and has no embeddings", c->server->rules.model);
}

/* ---- prompts to ids -------------------------------------------------------------------------- */

static bool need_tokenizer(rf_call *c) {
  return c->server->tokenizer || rf_wrong_set(&c->wrong, 400, "no_tokenizer", NULL,
                                              "the model has no tokenizer: give prompts as token ids");
}

static bool encode_chat(rf_call *c, rf_part *p) {
  const rf_server *s = c->server;
  rafter_error error = {0};
  if (!need_tokenizer(c)) return false;
  if (!rafter_tokenizer_chats(s->tokenizer))
    return rf_wrong_set(
        &c->wrong, 400, "no_chat_template", "messages",
        "the model has no chat template; use /v1/completions, or start the server with --template");
  const rf_ask *a = &c->ask;
  bool forced = a->tools && a->kind == RF_ASK_CHAT && a->tool_choice != RF_TOOLS_AUTO;
  char *messages = rf_must(json_dumps(a->messages, JSON_COMPACT)),
       *tools = a->tools ? rf_must(json_dumps(a->tools, JSON_COMPACT)) : NULL;
  const rafter_conversation of = {.size = sizeof of,
                                  .messages = messages,
                                  .tools = tools,
                                  .begin = forced ? s->rules.tool_format->opening : NULL,
                                  .opens_answer = a->opens_answer};
  rafter_status status = rafter_tokenizer_conversation(s->tokenizer, &of, &p->ids, &p->count, &error);
  free(messages);
  free(tools);
  return status == RAFTER_OK || rf_wrong_from(&c->wrong, 400, "chat_template", "messages", &error);
}

static bool encode_text(rf_call *c, rf_part *p) {
  rafter_error error = {0};
  return need_tokenizer(c) &&
         (rafter_tokenizer_encode(c->server->tokenizer, p->text, p->text_bytes, c->ask.add_special, &p->ids,
                                  &p->count, &error) == RAFTER_OK ||
          rf_wrong_from(&c->wrong, 400, NULL, "prompt", &error));
}

/* Encodes all prompts as token ids. */
static bool encode(rf_call *c) {
  c->part = rf_must(calloc((size_t)c->ask.prompts, sizeof *c->part));
  for (int64_t i = 0; i < c->ask.prompts; i++) {
    rf_part *p = &c->part[i];
    p->call = c;
    p->index = (int)i;
    p->request = -1;
    if (c->ask.messages) {
      if (!encode_chat(c, p)) return false;
    } else {
      if (!rf_ask_prompt(&c->server->rules, &c->ask, i, &p->text, &p->text_bytes, &p->ids, &p->count,
                         &c->wrong))
        return false;
      if (!p->ids && !encode_text(c, p)) return false;
    }
    c->prompt_tokens += p->count;
  }
  return true;
}

bool rf_route_read(rf_call *c) {
  bool good = rf_ask_read(&c->server->rules, (rf_ask_kind)c->route->ask, c->body.at ? c->body.at : "",
                          c->body.bytes, &c->ask, &c->wrong);
  rf_body_free(&c->body);
  return good;
}

/* ---- answers of the generator ---------------------------------------------------------------- */

static bool check_lengths(rf_call *c) {
  int64_t most = c->server->rules.context;
  const char *param = c->ask.messages ? "messages" : "prompt";
  for (int64_t i = 0; i < c->ask.prompts; i++) {
    if (c->part[i].count < 1)
      return rf_wrong_set(&c->wrong, 400, "invalid_value", param, "the prompt is empty");
    if (c->part[i].count > most)
      return rf_wrong_set(&c->wrong, 400, "context_length_exceeded", param,
                          "the prompt has %lld tokens (expected at most %lld, the context of this server)",
                          (long long)c->part[i].count, (long long)most);
  }
  return true;
}

/* Allocates the arrays for log-probabilities of prompts. */
static bool make_scores(rf_call *c) {
  int64_t entries = c->prompt_tokens * (1 + c->ask.request.prompt_top) * c->ask.request.samples;
  if (!c->ask.scores) return true;
  if (entries > RF_ASK_SCORES)
    return rf_wrong_set(
        &c->wrong, 400, "too_many_logprobs", c->ask.prompt_logprobs ? "prompt_logprobs" : "echo",
        "the request asks for %lld log-probabilities of its prompts (expected at most %d: tokens "
        "x (alternatives + 1) x n)",
        (long long)entries, RF_ASK_SCORES);
  for (int64_t i = 0; i < c->ask.prompts; i++) rf_scores_open(c, &c->part[i]);
  return true;
}

/* Compiles the constraint on this HTTP thread, so that other requests do not wait for the
 * compilation. */
static bool make_constraint(rf_call *c) {
  const rf_ask *a = &c->ask;
  rafter_error error = {0};
  if (!a->form_field) return true;
  if (rafter_constraint_open(c->server->generator, a->form, a->form_text, a->form_bytes, &c->constraint,
                             &error) != RAFTER_OK)
    return rf_wrong_from(&c->wrong, error.status == RAFTER_INVALID ? 400 : 500, "invalid_form", a->form_field,
                         &error);
  c->ask.request.constraint = c->constraint;
  return true;
}

/* Makes the empty answers. */
static void open_answers(rf_call *c) {
  const rf_ask *a = &c->ask;
  c->answer = rf_must(calloc((size_t)c->answers, sizeof *c->answer));
  for (int64_t i = 0; a->tools && i < c->answers; i++) {
    rf_tool_calls *calls = c->answer[i].calls = rf_must(malloc(sizeof *calls));
    rf_tool_calls_start(calls, c->server->rules.tool_format, a->tools, !a->several_calls || a->tool_name,
                        a->tool_choice != RF_TOOLS_AUTO, a->stream);
  }
}

static void choose_seed(rf_call *c) {
  rafter_request *r = &c->ask.request;
  if (c->ask.seeded) return;
  if (c->server->settings->seed) {
    r->seed = *c->server->settings->seed;
    return;
  }
  c->random_seed = true;
  if (getrandom(&r->seed, sizeof r->seed, 0) != sizeof r->seed) r->seed = (uint64_t)rf_now_ns();
  r->seed >>= 2;
}

/* Returns true if the server can accept the answers of the call. The caller holds the lock. */
static bool has_room(rf_call *c) {
  const rf_server *s = c->server;
  if (s->draining) return rf_wrong_stopping(&c->wrong);
  if (s->open_answers + c->answers <= s->rules.answers) return true;
  return rf_wrong_set(&c->wrong, 429, "queue_full", NULL,
                      "the queue is full (%lld answers run or wait at most); try again later",
                      (long long)s->rules.answers);
}

/* Refuses a request early if the queue is full, because reading its prompt and its form may take
 * long. */
static bool check_room(rf_call *c) {
  c->answers = c->ask.prompts * c->ask.request.samples;
  pthread_mutex_lock(&c->server->lock);
  bool has = has_room(c);
  pthread_mutex_unlock(&c->server->lock);
  return has;
}

bool rf_route_submit(rf_call *c) {
  rf_server *s = c->server;
  if (!rf_route_read(c) || !check_room(c) || !encode(c) || !check_lengths(c) || !make_scores(c) ||
      !make_constraint(c))
    return false;
  choose_seed(c);
  rf_ask_trim(&c->ask);
  open_answers(c);
  if (s->settings->request_seconds > 0) c->deadline = c->arrived + s->settings->request_seconds;
  pthread_mutex_lock(&s->lock);
  bool has = has_room(c);
  if (has) {
    rf_call_submit(c);
    rf_watch_add(c);
  }
  pthread_mutex_unlock(&s->lock);
  return has;
}

/* ---- /tokenize and /detokenize --------------------------------------------------------------- */

static bool answer_tokenize(rf_call *c, rf_body *out, const char **type) {
  const rafter_tokenizer *t = c->server->tokenizer;
  *type = JSON;
  if (!rf_route_read(c) || !need_tokenizer(c) || !encode(c)) return false;
  const rf_part *p = c->part;
  rf_body_format(out, "{\"count\":%lld,\"max_model_len\":%lld,\"tokens\":[", (long long)p->count,
                 (long long)c->server->rules.context);
  for (int64_t i = 0; i < p->count; i++) rf_body_format(out, i ? ",%d" : "%d", p->ids[i]);
  rf_body_text(out, c->ask.pieces ? "],\"token_strs\":[" : "]}");
  for (int64_t i = 0; i < p->count && c->ask.pieces; i++) {
    const char *text = "";
    size_t bytes = 0;
    rafter_tokenizer_piece(t, p->ids[i], &text, &bytes, NULL);
    rf_body_text(out, i ? "," : "");
    rf_body_string(out, text, bytes);
  }
  if (c->ask.pieces) rf_body_text(out, "]}");
  return true;
}

static bool answer_detokenize(rf_call *c, rf_body *out, const char **type) {
  rafter_error error = {0};
  char *text = NULL;
  size_t bytes = 0;
  *type = JSON;
  if (!rf_route_read(c) || !need_tokenizer(c) || !encode(c)) return false;
  if (rafter_tokenizer_decode(c->server->tokenizer, c->part->ids, c->part->count, &text, &bytes, &error) !=
      RAFTER_OK)
    return rf_wrong_from(&c->wrong, 400, "invalid_token", "tokens", &error);
  rf_body_text(out, "{\"prompt\":");
  rf_body_string(out, text, bytes);
  rf_body_text(out, "}");
  rafter_text_free(text);
  return true;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* A path that ends in '/' also matches every longer path with this prefix. The path / matches only
 * itself. Paths without `ask` and `answer` are files of the page. */
static const rf_route ROUTES[] = {
    {"/", false, true, 0, NULL},
    {"/page.css", false, true, 0, NULL},
    {"/page.js", false, true, 0, NULL},
    {"/v1/models", false, false, 0, answer_models},
    {"/v1/models/", false, false, 0, answer_model},
    {"/v1/completions", true, false, RF_ASK_COMPLETION, NULL},
    {"/v1/chat/completions", true, false, RF_ASK_CHAT, NULL},
    {"/v1/embeddings", true, false, 0, answer_embeddings},
    {"/v1/load_lora_adapter", true, false, RF_ASK_LOAD, rf_adapters_load},
    {"/v1/unload_lora_adapter", true, false, RF_ASK_UNLOAD, rf_adapters_unload},
    {"/tokenize", true, false, RF_ASK_TOKENIZE, answer_tokenize},
    {"/detokenize", true, false, RF_ASK_DETOKENIZE, answer_detokenize},
    {"/health", false, true, 0, answer_health},
    {"/ready", false, true, 0, answer_ready},
    {"/metrics", false, true, 0, answer_metrics},
    {"/version", false, false, 0, answer_version},
};

const rf_route *rf_route_find(const char *path, const char *method, const rf_route **other) {
  bool get = !strcmp(method, "GET") || !strcmp(method, "HEAD"), post = !strcmp(method, "POST");
  *other = NULL;
  for (size_t i = 0; i < sizeof ROUTES / sizeof *ROUTES; i++) {
    const rf_route *r = &ROUTES[i];
    size_t bytes = strlen(r->path);
    bool folder = bytes > 1 && r->path[bytes - 1] == '/';
    if (folder ? strncmp(path, r->path, bytes) || !path[bytes] : strcmp(path, r->path)) continue;
    if (r->post ? post : get) return r;
    *other = r;
  }
  return NULL;
}
