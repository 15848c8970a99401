/* shape.c - writes answers as JSON in the shape of OpenAI's API, whole or as a stream of events. */
#include "serve/call.h"

#include <math.h>
#include <string.h>

static bool is_chat(const rf_call *c) { return c->ask.kind == RF_ASK_CHAT; }

static const char *finish_name(const rf_answer *a) {
  if (a->finish == RAFTER_FINISH_STOP) return a->calls && a->calls->count ? "tool_calls" : "stop";
  return a->finish == RAFTER_FINISH_LENGTH ? "length" : "abort";
}

/* Appends the common fields of the answer's JSON object, without the closing brace. */
static void head(const rf_call *c, const char *object, rf_body *out) {
  const rf_server *s = c->server;
  const char *model = c->ask.model ? c->ask.model : s->rules.model;
  rf_body_format(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id, object,
                 (long long)c->created);
  rf_body_string(out, model, strlen(model));
  rf_body_format(out, ",\"system_fingerprint\":\"%s\"", s->fingerprint);
}

static void usage(const rf_call *c, rf_body *out) {
  int64_t tokens = 0;
  for (int64_t i = 0; i < c->answers; i++) tokens += c->answer[i].count;
  rf_body_format(out, ",\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld}",
                 (long long)c->prompt_tokens, (long long)tokens, (long long)(c->prompt_tokens + tokens));
}

static void put_ids(const int32_t *ids, int64_t count, rf_body *out) {
  rf_body_text(out, "[");
  for (int64_t i = 0; i < count; i++) rf_body_format(out, i ? ",%d" : "%d", ids[i]);
  rf_body_text(out, "]");
}

static void put_token_ids(const rf_answer *a, int64_t from, rf_body *out) {
  rf_body_text(out, ",\"token_ids\":[");
  for (int64_t i = from; i < a->count; i++) rf_body_format(out, i > from ? ",%d" : "%d", a->token[i].id);
  rf_body_text(out, "]");
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

static void piece_of(const rf_call *c, int32_t id, const char **text, size_t *bytes) {
  *text = "";
  *bytes = 0;
  if (c->server->tokenizer) rafter_tokenizer_piece(c->server->tokenizer, id, text, bytes, NULL);
}

void rf_shape_piece(const rf_call *c, int32_t id, rf_body *out) {
  const char *text;
  size_t bytes;
  piece_of(c, id, &text, &bytes);
  if (c->server->tokenizer) rf_body_string(out, text, bytes);
  else rf_body_format(out, "\"token_id:%d\"", id);
}

/* Appends "token", "logprob" and "bytes" of one token in a chat's log-probabilities. */
static void put_chat_token(const rf_call *c, int32_t id, float logprob, rf_body *out) {
  const char *text;
  size_t bytes;
  piece_of(c, id, &text, &bytes);
  rf_body_text(out, "\"token\":");
  rf_shape_piece(c, id, out);
  rf_body_text(out, ",\"logprob\":");
  rf_body_logprob(out, logprob);
  rf_body_text(out, ",\"bytes\":[");
  for (size_t i = 0; i < bytes; i++) rf_body_format(out, i ? ",%u" : "%u", (unsigned)(uint8_t)text[i]);
  rf_body_text(out, "]");
}

static void put_chat_logprobs(const rf_call *c, const rf_answer *a, int64_t from, rf_body *out) {
  rf_body_text(out, "{\"content\":[");
  for (int64_t i = from; i < a->count; i++) {
    const struct rf_answer_token *t = &a->token[i];
    rf_body_text(out, i > from ? ",{" : "{");
    put_chat_token(c, t->id, t->logprob, out);
    rf_body_text(out, ",\"top_logprobs\":[");
    for (int32_t k = 0; k < t->tops; k++) {
      rf_body_text(out, k ? ",{" : "{");
      put_chat_token(c, a->top[t->top + k].id, a->top[t->top + k].logprob, out);
      rf_body_text(out, "}");
    }
    rf_body_text(out, "]}");
  }
  rf_body_text(out, "],\"refusal\":null}");
}

/* Appends one object of alternatives, such as {" the": -0.5}. Tokens with the same text have one
 * entry. */
static void put_alternatives(const rf_call *c, const rf_answer *a, const struct rf_answer_token *t,
                             rf_body *out) {
  rf_body seen = {0}; /* names so far, each after a newline, because a JSON string never contains a newline */
  int written = 0;
  rf_body_text(out, "{");
  for (int32_t k = 0; k < t->tops; k++) {
    rf_body name = {0};
    rf_body_text(&name, "\n");
    rf_shape_piece(c, a->top[t->top + k].id, &name);
    rf_body_text(&name, ":");
    if (!seen.at || !strstr(seen.at, name.at)) {
      rf_body_text(out, written++ ? "," : "");
      rf_body_text(out, name.at + 1);
      rf_body_logprob(out, a->top[t->top + k].logprob);
      rf_body_text(&seen, name.at);
    }
    rf_body_free(&name);
  }
  rf_body_free(&seen);
  rf_body_text(out, "}");
}

static size_t characters(const char *text, size_t bytes) {
  size_t count = 0;
  for (size_t i = 0; i < bytes; i++) count += ((uint8_t)text[i] & 0xc0) != 0x80;
  return count;
}

/* Appends the log-probabilities of a completion. Advances the offset to the answer's next token. */
static void put_completion_logprobs(const rf_call *c, const rf_answer *a, int64_t from, size_t *offset,
                                    rf_body *out) {
  const char *text;
  size_t bytes;
  rf_body_text(out, "{\"tokens\":[");
  for (int64_t i = from; i < a->count; i++) {
    rf_body_text(out, i > from ? "," : "");
    rf_shape_piece(c, a->token[i].id, out);
  }
  rf_body_text(out, "],\"token_logprobs\":[");
  for (int64_t i = from; i < a->count; i++) {
    rf_body_text(out, i > from ? "," : "");
    /* the first token of a prompt has no log-probability */
    if (isnan(a->token[i].logprob)) rf_body_text(out, "null");
    else rf_body_logprob(out, a->token[i].logprob);
  }
  rf_body_text(out, "],\"top_logprobs\":");
  rf_body_text(out, c->ask.request.top_logprobs ? "[" : "null");
  for (int64_t i = from; i < a->count && c->ask.request.top_logprobs; i++) {
    rf_body_text(out, i > from ? "," : "");
    if (isnan(a->token[i].logprob)) rf_body_text(out, "null");
    else put_alternatives(c, a, &a->token[i], out);
  }
  rf_body_text(out, c->ask.request.top_logprobs ? "],\"text_offset\":[" : ",\"text_offset\":[");
  for (int64_t i = from; i < a->count; i++) {
    rf_body_format(out, i > from ? ",%zu" : "%zu", *offset);
    piece_of(c, a->token[i].id, &text, &bytes);
    *offset += characters(text, bytes);
  }
  rf_body_text(out, "]}");
}

static void put_logprobs(const rf_call *c, const rf_answer *a, int64_t from, size_t *offset, rf_body *out) {
  rf_body_text(out, ",\"logprobs\":");
  if (!c->ask.logprobs) rf_body_text(out, "null");
  else if (is_chat(c)) put_chat_logprobs(c, a, from, out);
  else put_completion_logprobs(c, a, from, offset, out);
}

/* Appends the log-probabilities of an answer with `echo`: first those of the prompt, then those of
 * `a`, which may be NULL. */
static void put_echoed(const rf_call *c, const rf_part *p, const rf_answer *a, size_t *offset, rf_body *out) {
  rf_answer both = rf_scores_with(p, c->ask.request.top_logprobs, a);
  put_logprobs(c, &both, 0, offset, out);
  rf_scores_release(&both);
}

/* ---- whole answers --------------------------------------------------------------------------- */

/* Appends the prompt of a completion with `echo`. Decodes a prompt that was given as ids. */
static void echo(const rf_call *c, int64_t index, rf_body *text) {
  const rf_part *p = &c->part[index / c->ask.request.samples];
  char *decoded = NULL;
  size_t bytes = 0;
  if (!c->ask.echo) return;
  if (p->text) rf_body_bytes(text, p->text, p->text_bytes);
  else if (c->server->tokenizer && rafter_tokenizer_decode(c->server->tokenizer, p->ids, p->count, &decoded,
                                                           &bytes, NULL) == RAFTER_OK)
    rf_body_bytes(text, decoded, bytes);
  rafter_text_free(decoded);
}

static void put_choice(const rf_call *c, int64_t index, rf_body *out) {
  const rf_answer *a = &c->answer[index];
  const rf_part *p = &c->part[index / c->ask.request.samples];
  rf_body text = {0};
  size_t offset = 0;
  rf_body_format(out, "{\"index\":%lld,", (long long)index);
  echo(c, index, &text);
  rf_body_bytes(&text, a->text.at ? a->text.at : "", a->text.bytes);
  if (is_chat(c)) rf_body_text(out, "\"message\":{\"role\":\"assistant\",");
  if (a->calls) rf_tool_calls_message(a->calls, out);
  else {
    rf_body_text(out, is_chat(c) ? "\"content\":" : "\"text\":");
    rf_body_string(out, text.at, text.bytes);
  }
  if (is_chat(c)) rf_body_text(out, ",\"refusal\":null}");
  if (c->ask.echo && c->ask.logprobs) put_echoed(c, p, a, &offset, out);
  else put_logprobs(c, a, 0, &offset, out);
  if (c->ask.prompt_logprobs && !is_chat(c)) rf_shape_prompt_logprobs(c, p, out);
  rf_body_format(out, ",\"finish_reason\":\"%s\"", finish_name(a));
  if (c->ask.token_ids) {
    put_token_ids(a, 0, out);
    if (!is_chat(c)) {
      rf_body_text(out, ",\"prompt_token_ids\":");
      put_ids(p->ids, p->count, out);
    }
  }
  rf_body_text(out, "}");
  rf_body_free(&text);
}

void rf_shape_whole(const rf_call *c, rf_body *out) {
  head(c, is_chat(c) ? "chat.completion" : "text_completion", out);
  rf_body_text(out, ",\"choices\":[");
  for (int64_t i = 0; i < c->answers; i++) {
    rf_body_text(out, i ? "," : "");
    put_choice(c, i, out);
  }
  rf_body_text(out, "]");
  usage(c, out);
  if (c->ask.prompt_logprobs && is_chat(c)) rf_shape_prompt_logprobs(c, c->part, out);
  if (c->ask.token_ids && is_chat(c)) {
    rf_body_text(out, ",\"prompt_token_ids\":");
    put_ids(c->part[0].ids, c->part[0].count, out);
  }
  rf_body_text(out, "}");
}

/* ---- streams --------------------------------------------------------------------------------- */

static void begin_event(const rf_call *c, rf_body *out) {
  rf_body_text(out, "data: ");
  head(c, is_chat(c) ? "chat.completion.chunk" : "text_completion", out);
  rf_body_text(out, ",\"choices\":[");
}

static void end_event(const rf_call *c, bool prompt_ids, rf_body *out) {
  rf_body_text(out, "]");
  if (c->ask.usage_always) usage(c, out);
  else if (c->ask.usage) rf_body_text(out, ",\"usage\":null");
  if (prompt_ids) {
    rf_body_text(out, ",\"prompt_token_ids\":");
    put_ids(c->part[0].ids, c->part[0].count, out);
  }
  rf_body_text(out, "}\n\n");
}

/* Appends the first event of an answer: the role in a chat, or the prompt if the request has
 * `echo`. */
static void open_answer(rf_call *c, int64_t index, rf_body *out) {
  rf_answer *a = &c->answer[index];
  const rf_part *p = &c->part[index / c->ask.request.samples];
  a->opened = true;
  if (!is_chat(c) && !c->ask.echo && !c->ask.token_ids) return;
  begin_event(c, out);
  rf_body_format(out, "{\"index\":%lld,", (long long)index);
  if (is_chat(c)) rf_body_text(out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
  else {
    rf_body text = {0};
    echo(c, index, &text);
    rf_body_text(out, "\"text\":");
    rf_body_string(out, text.at, text.bytes);
    rf_body_free(&text);
  }
  if (c->ask.echo && c->ask.logprobs) put_echoed(c, p, NULL, &a->offset, out);
  else rf_body_text(out, ",\"logprobs\":null");
  rf_body_text(out, ",\"finish_reason\":null");
  if (!is_chat(c) && c->ask.token_ids) {
    rf_body_text(out, ",\"prompt_token_ids\":");
    put_ids(p->ids, p->count, out);
  }
  rf_body_text(out, "}");
  end_event(c, is_chat(c) && c->ask.token_ids && index == 0, out);
}

/* Appends "delta" or "text" of an event, with `bytes` bytes of text from byte `from` on. */
static void put_text(const rf_call *c, rf_answer *a, size_t from, size_t bytes, rf_body *out) {
  rf_body_text(out, !is_chat(c) ? "\"text\":"
                    : a->calls  ? "\"delta\":"
                    : bytes     ? "\"delta\":{\"content\":"
                                : "\"delta\":{");
  if (a->calls) {
    rf_tool_calls_delta(a->calls, out);
    return;
  }
  if (bytes || !is_chat(c)) rf_body_string(out, bytes ? a->text.at + from : "", bytes);
  if (is_chat(c)) rf_body_text(out, "}");
}

/* Appends one event with all tokens of an answer that the stream has not yet sent. */
static void put_news(rf_call *c, int64_t index, rf_body *out) {
  rf_answer *a = &c->answer[index];
  size_t from = a->sent ? a->token[a->sent - 1].text_end : 0, bytes = a->text.bytes - from;
  bool ends = a->finish != RAFTER_FINISH_NONE, more = a->count > a->sent,
       said = a->calls ? rf_tool_calls_news(a->calls) : bytes > 0,
       news = said || ((c->ask.logprobs || c->ask.token_ids || c->ask.usage_always) && more);
  if (!ends && !news) {
    a->sent = a->count;
    return;
  }
  begin_event(c, out);
  rf_body_format(out, "{\"index\":%lld,", (long long)index);
  put_text(c, a, from, bytes, out);
  if (more) put_logprobs(c, a, a->sent, &a->offset, out);
  else rf_body_text(out, ",\"logprobs\":null");
  if (ends) rf_body_format(out, ",\"finish_reason\":\"%s\"", finish_name(a));
  else rf_body_text(out, ",\"finish_reason\":null");
  if (c->ask.token_ids) put_token_ids(a, a->sent, out);
  rf_body_text(out, "}");
  end_event(c, false, out);
  a->sent = a->count;
  a->closed = ends;
}

static void put_end(rf_call *c, rf_body *out) {
  if (c->wrong.status) {
    rf_body_text(out, "data: ");
    rf_wrong_json(&c->wrong, out);
    rf_body_text(out, "\n\n");
  } else if (c->ask.usage) {
    rf_body_text(out, "data: ");
    head(c, is_chat(c) ? "chat.completion.chunk" : "text_completion", out);
    rf_body_text(out, ",\"choices\":[]");
    usage(c, out);
    rf_body_text(out, "}\n\n");
  }
  rf_body_text(out, "data: [DONE]\n\n");
  c->closed = true;
}

void rf_shape_stream(rf_call *c) {
  bool ended = true;
  for (int64_t i = 0; i < c->answers && !c->wrong.status; i++) {
    rf_answer *a = &c->answer[i];
    bool waits = c->ask.scores && !c->part[i / c->ask.request.samples].scored;
    if (!a->opened && !waits && (a->count || a->finish != RAFTER_FINISH_NONE)) open_answer(c, i, &c->out);
    if (a->opened && !a->closed && (a->count > a->sent || a->finish != RAFTER_FINISH_NONE))
      put_news(c, i, &c->out);
    ended &= a->closed;
  }
  if ((ended || c->wrong.status) && !c->closed) put_end(c, &c->out);
}
