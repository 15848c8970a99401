/* call.c - adds events to the answers of a call, and ends the call. */
#include "serve/call.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

void rf_call_activate(rf_call *c) {
  rf_server *s = c->server;
  c->before = NULL;
  c->next = s->active;
  if (s->active) s->active->before = c;
  s->active = c;
}

void rf_call_submit(rf_call *c) {
  rf_server *s = c->server;
  c->submitted = true;
  c->left = c->answers;
  c->refs++;
  c->next = NULL;
  if (s->inbox_last) s->inbox_last->next = c;
  else s->inbox = c;
  s->inbox_last = c;
  s->open_answers += c->answers;
  s->metrics.prompt_tokens += c->prompt_tokens;
  for (int64_t i = 0; i < c->ask.prompts; i++)
    rf_metrics_observe(&s->metrics, RF_HISTOGRAM_PROMPT, (double)c->part[i].count);
  pthread_cond_signal(&s->wake);
}

static void wake(rf_call *c) {
  if (!c->suspended) return;
  c->suspended = false;
  rf_mhd.resume_connection(c->connection);
}

void rf_call_leave(rf_call *c) {
  c->gone = true;
  if (c->submitted && c->left > 0) {
    c->cancel = true;
    pthread_cond_signal(&c->server->wake);
  }
  wake(c);
}

void rf_call_fail(rf_call *c, const rf_wrong *wrong) {
  if (!c->wrong.status) c->wrong = *wrong;
  if (c->left > 0) c->cancel = true;
  wake(c);
}

void rf_call_release(rf_call *c) {
  if (--c->refs > 0) return;
  for (int64_t i = 0; c->part && i < c->ask.prompts; i++) {
    free(c->part[i].ids);
    rf_scores_close(&c->part[i]);
  }
  for (int64_t i = 0; c->answer && i < c->answers; i++) {
    free(c->answer[i].token);
    free(c->answer[i].top);
    rf_body_free(&c->answer[i].text);
    if (c->answer[i].calls) rf_tool_calls_free(c->answer[i].calls);
    free(c->answer[i].calls);
  }
  free(c->part);
  free(c->answer);
  rf_body_free(&c->body);
  rf_body_free(&c->out);
  rf_ask_free(&c->ask);
  rafter_constraint_close(c->constraint);
  free(c->path);
  free(c);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void add_token(rf_answer *a, const rafter_event *e) {
  if (a->count == a->room) {
    a->room = a->room ? 2 * a->room : 64;
    a->token = rf_must(realloc(a->token, (size_t)a->room * sizeof *a->token));
  }
  if (a->tops + e->top > a->top_room) {
    a->top_room = 2 * (a->tops + e->top);
    a->top = rf_must(realloc(a->top, (size_t)a->top_room * sizeof *a->top));
  }
  a->token[a->count++] = (struct rf_answer_token){.id = e->token,
                                                  .logprob = e->logprob,
                                                  .text_end = (uint32_t)a->text.bytes,
                                                  .top = (int32_t)a->tops,
                                                  .tops = e->top};
  for (int i = 0; i < e->top; i++)
    a->top[a->tops++] = (struct rf_answer_top){e->top_ids[i], e->top_logprobs[i]};
}

static void observe_token(rf_server *s, const rf_call *c, rf_answer *a, double now) {
  s->metrics.tokens++;
  if (a->count == 1) {
    a->first = now;
    s->running++;
    rf_metrics_observe(&s->metrics, RF_HISTOGRAM_FIRST, now - c->arrived);
  } else rf_metrics_observe(&s->metrics, RF_HISTOGRAM_BETWEEN, now - a->last);
  a->last = now;
}

static void end_answer(rf_call *c, rf_answer *a, const rafter_event *e, double now) {
  rf_server *s = c->server;
  a->finish = e->finish;
  s->metrics.finished[e->finish]++;
  rf_metrics_observe(&s->metrics, RF_HISTOGRAM_ANSWER, (double)a->count);
  if (a->count > 1)
    rf_metrics_observe(&s->metrics, RF_HISTOGRAM_PER_TOKEN, (a->last - a->first) / (double)(a->count - 1));
  if (a->count > 0) s->running--;
  s->open_answers--;
  c->left--;
  if (e->finish == RAFTER_FINISH_CANCELLED) return;
  s->mean_seconds += ((now - c->arrived) - s->mean_seconds) / 8;
  if (!c->left) rf_metrics_observe(&s->metrics, RF_HISTOGRAM_WHOLE, now - c->arrived);
}

/* Removes a call from the engine's list, after all its answers have ended. */
static void retire(rf_call *c) {
  rf_server *s = c->server;
  if (c->before) c->before->next = c->next;
  else s->active = c->next;
  if (c->next) c->next->before = c->before;
  rf_call_release(c);
}

void rf_call_take(rf_call *c, rf_part *part, const rafter_event *e, double now) {
  rf_server *s = c->server;
  rf_answer *a = &c->answer[part->index * c->ask.request.samples + e->sample];
  rf_wrong wrong;
  part->scored |= e->sample == 0;
  if (a->calls) rf_tool_calls_add(a->calls, e->text, e->text_bytes);
  else if (e->text_bytes) rf_body_bytes(&a->text, e->text, e->text_bytes);
  if (e->token >= 0) {
    add_token(a, e);
    observe_token(s, c, a, now);
  }
  if (e->finish != RAFTER_FINISH_NONE) {
    if (a->calls) rf_tool_calls_end(a->calls, e->finish == RAFTER_FINISH_LENGTH);
    end_answer(c, a, e, now);
  }
  if (e->finish == RAFTER_FINISH_ERROR) {
    rf_wrong_set(&wrong, e->status == RAFTER_INVALID ? 400 : 500, NULL, NULL, "%s", e->message);
    rf_call_fail(c, &wrong);
  }
  if (c->ask.stream && !c->gone && a->count - a->sent > RF_SERVE_AHEAD) {
    rf_call_leave(c);
    shutdown(c->fd, SHUT_RDWR);
  }
  if (c->ask.stream || !c->left) wake(c);
  if (!c->left) retire(c);
}
