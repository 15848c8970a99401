/* eval_gsm8k.c - grade-school arithmetic (Cobbe et al., 2021). A row is {"question", "answer"}, and
 * the answer ends in "#### NUMBER". The model's answer is right if its final number equals NUMBER.
 * The prompt is plain text with worked examples, or a message in the model's chat template. */
#define _GNU_SOURCE
#include "api/answers.h"
#include "api/eval.h"
#include "api/ranks.h"
#include "reward/number.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 8, PLAIN_SHOTS = 5 };

typedef struct problem {
  rf_prompt of;       /* first field, because the owner of the replies is a pointer to the prompt */
  bool ended;         /* true after the answer is finished, in this evaluation or an earlier one */
  const json_t *kept; /* result of an earlier evaluation; NULL: none */
} problem;

typedef struct exam {
  rf_evaluation *e;
  json_t *rows, *shots; /* shots: worked examples that precede every question */
  problem *problem;
  int count, done, left; /* `done`: number of finished answers. `left`: number of answers to generate. */
  rf_generator *g;
  double start;
  rf_numbers *numbers;
  int64_t longest;
  rf_status failed; /* failed, why: status and error of a step, equal on all ranks */
  rf_error why;
} exam;

/* ---- the questions --------------------------------------------------------------------------- */

static rf_status check_rows(const exam *x, const json_t *rows, const char *path, rf_error *error) {
  size_t i;
  json_t *row;
  char number[RF_NUMBER_BYTES];
  bool marked;
  json_array_foreach ((json_t *)rows, i, row) {
    const char *answer = json_string_value(json_object_get(row, "answer"));
    if (!json_is_string(json_object_get(row, "question")) || !answer ||
        !rf_numbers_final(x->numbers, answer, strlen(answer), &marked, number) || !marked)
      return RF_FAIL(error, RAFTER_FAILED,
                     "rows are {\"question\": TEXT, \"answer\": TEXT that ends in \"#### NUMBER\"}",
                     "a row is not a question with its answer (%s, row %zu)", path, i + 1);
  }
  return RAFTER_OK;
}

/* Reads the worked examples from the first rows of --shots-from. Without --shots-from, reads the
 * examples from train.jsonl in the folder of the data. */
static rf_status read_shots(exam *x, rf_error *error) {
  const rf_options *o = x->e->options;
  int64_t shots = rf_options_given(o, "shots") ? rf_options_int(o, "shots")
                  : x->e->reader.chat          ? 0
                                               : PLAIN_SHOTS;
  char path[4200], copy[4096];
  if (!shots)
    return (x->shots = json_array()) ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  snprintf(copy, sizeof copy, "%s", rf_options_text(o, "data"));
  snprintf(path, sizeof path, "%s/train.jsonl", dirname(copy));
  if (rf_options_is_set(o, "shots-from")) snprintf(path, sizeof path, "%s", rf_options_text(o, "shots-from"));
  rf_status status = rf_eval_read_rows(path, shots, &x->shots, error);
  if (status == RAFTER_OK) status = check_rows(x, x->shots, path, error);
  if (status != RAFTER_OK && error)
    snprintf(error->hint, sizeof error->hint,
             "worked examples come from --shots-from FILE, or train.jsonl next to the data; --shots 0 uses "
             "none");
  return status;
}

static void add_turn(json_t *messages, const char *role, json_t *content) {
  json_array_append_new(messages, json_pack("{ss sO}", "role", role, "content", content));
}

static rf_status encode_chat(exam *x, const json_t *row, problem *p, rf_error *error) {
  const rf_options *o = x->e->options;
  json_t *messages = json_array(), *shot;
  size_t i;
  if (rf_options_is_set(o, "system"))
    json_array_append_new(messages,
                          json_pack("{ss ss}", "role", "system", "content", rf_options_text(o, "system")));
  json_array_foreach (x->shots, i, shot) {
    add_turn(messages, "user", json_object_get(shot, "question"));
    add_turn(messages, "assistant", json_object_get(shot, "answer"));
  }
  add_turn(messages, "user", json_object_get(row, "question"));
  rf_status status = rf_prompt_of_messages(&x->e->reader, messages, &p->of, error);
  json_decref(messages);
  return status;
}

/* Encodes the prompt of lm-evaluation-harness: "Question: ...\nAnswer: ...\n\n" for every example,
 * then "Question: ...\nAnswer:". */
static rf_status encode_plain(exam *x, const json_t *row, problem *p, rf_error *error) {
  char *text = NULL;
  size_t bytes = 0, i;
  json_t *shot;
  FILE *out = open_memstream(&text, &bytes);
  if (!out) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  json_array_foreach (x->shots, i, shot)
    fprintf(out, "Question: %s\nAnswer: %s\n\n", json_string_value(json_object_get(shot, "question")),
            json_string_value(json_object_get(shot, "answer")));
  fprintf(out, "Question: %s\nAnswer:", json_string_value(json_object_get(row, "question")));
  bool written = !fclose(out);
  rf_status status = written ? rf_eval_encode(x->e, text, bytes, RF_ENCODE_BOS_EOS, &p->of.tokens, error)
                             : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  free(text);
  return status;
}

static rf_status prepare(exam *x, rf_error *error) {
  rf_evaluation *e = x->e;
  rf_prompt_reader *r = &e->reader;
  const rf_options *o = e->options;
  const char *path = rf_options_text(o, "data");
  static const char *const stop = "Question:";
  RF_TRY(rf_numbers_open(&x->numbers, error));
  RF_TRY(rf_eval_read_rows(path, rf_options_int(o, "limit"), &x->rows, error));
  RF_TRY(check_rows(x, x->rows, path, error));
  RF_TRY(rf_prompt_reader_open(r, rf_options_flag(o, "chat"), error));
  RF_TRY(read_shots(x, error));
  RF_TRY(rf_end_ids_of(r->model, r->folder, r->tokenizer, &r->ends, error));
  RF_TRY(rf_stop_of(&stop, r->chat ? 0 : 1, &r->common.stop, error));
  x->count = (int)json_array_size(x->rows);
  x->problem = calloc((size_t)x->count, sizeof *x->problem);
  if (!x->problem) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int i = 0; i < x->count; i++) {
    problem *p = &x->problem[i];
    const json_t *row = json_array_get(x->rows, (size_t)i);
    p->kept = rf_eval_kept(e, i);
    p->ended = p->kept != NULL;
    RF_TRY(r->chat ? encode_chat(x, row, p, error) : encode_plain(x, row, p, error));
    if (p->of.tokens.count > x->longest) x->longest = p->of.tokens.count;
  }
  return RAFTER_OK;
}

/* ---- the answers ----------------------------------------------------------------------------- */

static rf_status ended(void *self, rf_replies *answer, rf_error *error) {
  exam *x = self;
  (void)error;
  ((problem *)answer->owner)->ended = true;
  x->done++;
  return RAFTER_OK;
}

static bool stepped(void *self, int events) {
  exam *x = self;
  (void)events;
  double seconds = rf_now_seconds() - x->start;
  rf_put_bar_left(x->e->sink, seconds, (double)x->done / x->left, "%d of %d answers, %.1f tokens/s", x->done,
                  x->left, (double)rf_generator_counts(x->g).tokens / seconds);
  if (!rf_replies_busy(x->g)) return true;
  uint32_t stops = rf_asked_to_stop(x->e->sink);
  x->failed = rf_replies_agree(x->g, &stops, &x->why); /* all ranks stop together */
  return x->failed == RAFTER_OK && !stops;
}

/* The ranks share the prompts, so all ranks need the same list. */
static rf_status check_ranks(const exam *x, const rf_generator *g, rf_error *error) {
  rf_fingerprint *f = rf_fingerprint_new();
  for (int i = 0; i < x->count; i++) {
    const problem *p = &x->problem[i];
    if (!p->ended)
      rf_fingerprint_add(f, p->of.tokens.at, (size_t)p->of.tokens.count * sizeof *p->of.tokens.at);
  }
  return rf_ranks_same(g->run, "other prompts", f, error);
}

static rf_status answer_all(exam *x, rf_error *error) {
  rf_evaluation *e = x->e;
  const rf_options *o = e->options;
  rf_build_options *b = &e->settings.plan.build;
  rf_status status = RAFTER_OK;
  rf_generator *g = NULL;
  int64_t most = rf_options_given(o, "seq") ? rf_options_int(o, "seq") : e->settings.model.max_seq,
          answer_tokens = rf_options_int(o, "max-tokens");
  rf_request request = {.max_tokens = answer_tokens, .samples = 1};
  /* Does not read generation_config.json. The result lists all sampling settings. */
  rf_sampling_typed(o, &request.sampler);
  json_object_set_new(e->result, "sampling", rf_sampling_json(&request.sampler));
  json_object_set_new(e->result, "max_tokens", json_integer(answer_tokens));
  if (x->longest >= most)
    return RF_FAIL(error, RAFTER_INVALID, "give fewer --shots, or a larger --seq",
                   "the prompts leave no room for an answer (expected fewer than %lld tokens, got %lld)",
                   (long long)most, (long long)x->longest);
  for (int i = 0; i < x->count; i++) x->left += !x->problem[i].ended;
  if (!x->left) return RAFTER_OK;
  b->seq = x->longest + answer_tokens < most ? x->longest + answer_tokens : most;
  const int64_t usual = BATCH * rf_generate_shares(&e->settings.plan);
  b->microbatch = rf_options_given(o, "batch") ? rf_options_int(o, "batch")
                  : x->left < usual            ? x->left
                                               : usual;
  RF_GO(rf_open_generator(&e->settings, o, e->sink, &g, error));
  RF_GO(check_ranks(x, g, error));
  rf_report_pass pass[2];
  rf_executed_plans(g, pass);
  RF_GO(rf_begin_journal(&e->journal, e->sink, o, pass, 2, error));
  rf_replies_begin(g, x->left);
  for (int i = 0; i < x->count; i++) {
    problem *p = &x->problem[i];
    if (p->ended) continue;
    p->of.request = request;
    RF_GO(rf_prompt_submit(&x->e->reader, &p->of, g, error));
  }
  x->g = g;
  x->start = rf_now_seconds();
  RF_GO(
      rf_replies_run(g, &(rf_reply_loop){.self = x, .ended = ended, .stepped = stepped}, &e->stopped, error));
  rf_put_bar(e->sink, "%s", "");
  if (x->failed != RAFTER_OK) {
    if (error) *error = x->why;
    RF_GO(x->failed);
  }
  double seconds = rf_now_seconds() - x->start;
  RF_GO(rf_executed_leave(g, e->record, &e->journal, seconds, error));
  rf_generate_counts counts = rf_generator_counts(g);
  snprintf(e->rate, sizeof e->rate,
           "%lld tokens in %.1f s, %.1f tokens/s (predicted %.1f with %lld answers at once); %lld of %lld "
           "prompt tokens came from the cache\n",
           (long long)counts.tokens, seconds, (double)counts.tokens / seconds,
           (double)b->microbatch / g->decode->step_seconds, (long long)b->microbatch,
           (long long)counts.reused, (long long)counts.prompt_tokens);
  json_t *numbers = json_pack(
      "{sf sI sI sf sI sI}", "seconds", seconds, "completion_tokens", (json_int_t)counts.tokens,
      "prompt_tokens", (json_int_t)counts.prompt_tokens, "tokens_per_second", (double)counts.tokens / seconds,
      "batch", (json_int_t)b->microbatch, "arena_bytes", (json_int_t)rf_generator_arena_bytes(g));
  json_object_update(e->result, numbers);
  json_decref(numbers);
done:
  rf_generator_close(g);
  return status;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static json_t *mark(const exam *x, const problem *p, const json_t *given) {
  char expected[RF_NUMBER_BYTES] = "", number[RF_NUMBER_BYTES] = "";
  bool marked, ignored;
  const char *answer = json_string_value(json_object_get(given, "answer")), *text = p->of.replies.reply->text;
  rf_numbers_final(x->numbers, answer, strlen(answer), &ignored, expected);
  bool found = rf_numbers_final(x->numbers, text, strlen(text), &marked, number),
       same = found && rf_numbers_equal(number, expected);
  json_t *row =
      json_pack("{ss ss* ss sb sb}", "expected", expected, "number", found ? number : NULL, "finish_reason",
                rf_finish_name(p->of.replies.reply->finish), "right", same, "marked", marked);
  json_object_set_new(row, "text", rf_json_bytes(p->of.replies.reply->text, p->of.replies.reply->bytes));
  if (json_object_get(given, "id")) json_object_set(row, "id", json_object_get(given, "id"));
  return row;
}

static void mark_all(exam *x) {
  rf_evaluation *e = x->e;
  int64_t n = 0, right = 0, strict = 0, cut = 0;
  for (int i = 0; i < x->count; i++) {
    const problem *p = &x->problem[i];
    if (!p->ended) continue;
    json_t *row = p->kept ? json_deep_copy(p->kept) : mark(x, p, json_array_get(x->rows, (size_t)i));
    const char *finish = json_string_value(json_object_get(row, "finish_reason"));
    bool same = json_is_true(json_object_get(row, "right"));
    n++;
    right += same;
    strict += same && json_is_true(json_object_get(row, "marked"));
    cut += finish && !strcmp(finish, rf_finish_name(RF_FINISH_LENGTH));
    rf_eval_put_row(e, i, row);
  }
  rf_say(e->sink,
         "%d questions, %s, %zu worked examples; an answer's number is the first after \"####\", otherwise "
         "the last, matched by /%s/\n",
         (int)n, x->e->reader.chat ? "chat template" : "plain text", json_array_size(x->shots),
         RF_NUMBER_PATTERN);
  if (cut) rf_say(e->sink, "%lld answers were cut by --max-tokens\n", (long long)cut);
  json_t *numbers = json_pack("{sI sI sb ss sI}", "n", (json_int_t)n, "shots",
                              (json_int_t)json_array_size(x->shots), "chat", x->e->reader.chat != NULL,
                              "number", RF_NUMBER_PATTERN, "answers_cut", (json_int_t)cut);
  json_object_update(e->result, numbers);
  json_decref(numbers);
  if (!n) return; /* the evaluation stopped before its first answer */
  rf_eval_put_share(e, "accuracy", right, n);
  rf_eval_put_share(e, "accuracy_marked", strict, n);
}

rf_status rf_eval_gsm8k(rf_evaluation *e, rf_error *error) {
  exam x = {.e = e};
  rf_status status = prepare(&x, error);
  if (status == RAFTER_OK) status = answer_all(&x, error);
  if (status == RAFTER_OK) mark_all(&x);
  for (int i = 0; i < x.count && x.problem; i++) rf_prompt_free(&x.problem[i].of);
  json_decref(x.rows);
  json_decref(x.shots);
  rf_numbers_close(x.numbers);
  free(x.problem);
  return status;
}
