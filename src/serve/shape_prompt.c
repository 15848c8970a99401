/* shape_prompt.c - arrays for log-probabilities of prompts, and their JSON in the shape of vLLM. */
#include "serve/call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void rf_scores_open(rf_call *c, rf_part *p) {
  size_t count = (size_t)p->count, top = (size_t)c->ask.request.prompt_top;
  p->logprobs = rf_must(calloc(count, sizeof *p->logprobs));
  p->ranks = rf_must(calloc(count, sizeof *p->ranks));
  if (!top) return;
  p->top_ids = rf_must(calloc(count * top, sizeof *p->top_ids));
  p->top_logprobs = rf_must(calloc(count * top, sizeof *p->top_logprobs));
}

void rf_scores_close(rf_part *p) {
  free(p->logprobs);
  free(p->ranks);
  free(p->top_ids);
  free(p->top_logprobs);
}

/* Adds the first `top` of the `have` alternatives of one token of the prompt. */
static void add_top(rf_answer *to, const rf_part *p, int64_t t, int32_t have, int32_t top) {
  struct rf_answer_token *token = &to->token[t];
  token->top = (int32_t)to->tops;
  for (int32_t k = 0; t && k < top && k < have && p->top_ids[t * have + k] >= 0; k++, token->tops++)
    to->top[to->tops++] = (struct rf_answer_top){p->top_ids[t * have + k], p->top_logprobs[t * have + k]};
}

rf_answer rf_scores_with(const rf_part *p, int32_t top, const rf_answer *a) {
  int32_t have = p->call->ask.request.prompt_top;
  int64_t own = a ? a->count : 0, tops = a ? a->tops : 0;
  rf_answer made = {.count = p->count + own};
  made.token = rf_must(calloc((size_t)made.count, sizeof *made.token));
  made.top = rf_must(calloc((size_t)(p->count * top + tops) + 1, sizeof *made.top));
  for (int64_t t = 0; t < p->count; t++) {
    made.token[t] = (struct rf_answer_token){.id = p->ids[t], .logprob = t ? p->logprobs[t] : NAN};
    add_top(&made, p, t, have, top);
  }
  for (int64_t t = 0; t < own; t++) {
    made.token[p->count + t] = a->token[t];
    made.token[p->count + t].top += (int32_t)made.tops;
  }
  if (tops) memcpy(made.top + made.tops, a->top, (size_t)tops * sizeof *made.top);
  made.tops += tops;
  return made;
}

void rf_scores_release(rf_answer *a) {
  free(a->token);
  free(a->top);
}

static void put_entry(const rf_call *c, int32_t id, float logprob, int32_t rank, rf_body *out) {
  rf_body_format(out, "\"%d\":{\"logprob\":", id);
  rf_body_logprob(out, logprob);
  rf_body_format(out, ",\"rank\":%d,\"decoded_token\":", rank);
  rf_shape_piece(c, id, out);
  rf_body_text(out, "}");
}

/* Appends the token itself, then the likeliest other tokens. */
static void put_row(const rf_call *c, const rf_part *p, int64_t t, rf_body *out) {
  int32_t have = c->ask.request.prompt_top;
  rf_body_text(out, "{");
  put_entry(c, p->ids[t], p->logprobs[t], p->ranks[t], out);
  for (int32_t k = 0; k < c->ask.prompt_top && p->top_ids[t * have + k] >= 0; k++) {
    if (p->top_ids[t * have + k] == p->ids[t]) continue;
    rf_body_text(out, ",");
    put_entry(c, p->top_ids[t * have + k], p->top_logprobs[t * have + k], k + 1, out);
  }
  rf_body_text(out, "}");
}

void rf_shape_prompt_logprobs(const rf_call *c, const rf_part *p, rf_body *out) {
  rf_body_text(out, ",\"prompt_logprobs\":[null");
  for (int64_t t = 1; t < p->count; t++) {
    rf_body_text(out, ",");
    put_row(c, p, t, out);
  }
  rf_body_text(out, "]");
}
