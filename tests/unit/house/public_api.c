/* public_api.c - a program of a user of the library: several requests at once, of which one is
 * cancelled and one fails, then scoring and tokens. test_install.sh builds it against the installed
 * header. */
#include <rafter.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MODEL[] = "gpt:layers=2,width=48,heads=3,ff=160,vocab=300,seq=96,init=flax";
enum { VOCAB = 300, REQUESTS = 4, LONGEST = 96 };

static rafter_error error;

static void check(bool good, int line, const char *what) {
  if (good) return;
  fprintf(stderr, "public_api.c:%d: %s (%s)\n", line, what, error.message);
  exit(1);
}
#define CHECK(condition) check(condition, __LINE__, #condition)
#define OK(call) check((call) == RAFTER_OK, __LINE__, #call)

static rafter_job *job_of(const char *command, const char *const option[][2]) {
  rafter_job *job = NULL;
  OK(rafter_job_new(command, &job, &error));
  OK(rafter_job_set(job, "model", MODEL, &error));
  OK(rafter_job_set(job, "threads", "1", &error));
  for (int i = 0; option[i][0]; i++) OK(rafter_job_set(job, option[i][0], option[i][1], &error));
  return job;
}

typedef struct answer {
  int32_t token[LONGEST];
  float logprob[LONGEST];
  char text[1024];
  int64_t count;
  int ends;
  rafter_finish finish;
  int64_t id;
} answer;

static void take(const rafter_event *e, answer *a) {
  CHECK(a->ends == 0);
  a->finish = e->finish;
  a->ends += e->finish != RAFTER_FINISH_NONE;
  strncat(a->text, e->text, sizeof a->text - strlen(a->text) - 1);
  CHECK((e->finish == RAFTER_FINISH_ERROR) == (e->status != RAFTER_OK));
  if (e->finish == RAFTER_FINISH_ERROR) CHECK(strstr(e->message, "every token is barred"));
  if (e->token < 0) return;
  CHECK(e->index == a->count);
  a->token[a->count] = e->token;
  a->logprob[a->count++] = e->logprob;
}

static void step(rafter_generator *g) {
  rafter_event event = {.size = sizeof event};
  OK(rafter_generator_step(g, &error));
  while (rafter_generator_next(g, &event)) take(&event, event.owner);
}

static answer answers[REQUESTS];

/* Scores of the prompt and the answer of request 0, which `score` compares. */
static float prompt_logprobs[20], prompt_top_logprobs[40];
static int32_t prompt_ranks[20], prompt_top_ids[40];

static void score_prompt(rafter_generator *g) {
  answer one = {0};
  int32_t tokens[20] = {3, 1, 4, 1, 5, 9, 2, 6};
  memcpy(tokens + 8, answers[0].token, 12 * sizeof *tokens);
  rafter_request request = {.size = sizeof request,
                            .tokens = tokens,
                            .count = 20,
                            .max_tokens = 1,
                            .owner = &one,
                            .prompt_logprobs = prompt_logprobs,
                            .prompt_top = 2};
  CHECK(rafter_generator_submit(g, &request, NULL, &error) == RAFTER_INVALID); /* arrays are missing */
  request.prompt_ranks = prompt_ranks;
  request.prompt_top_ids = prompt_top_ids;
  request.prompt_top_logprobs = prompt_top_logprobs;
  OK(rafter_generator_submit(g, &request, NULL, &error));
  while (rafter_generator_busy(g)) step(g);
  CHECK(one.ends == 1);
}

static void generate(void) {
  static const char *const options[][2] = {{"batch", "3"}, {"seq", "64"}, {0}};
  rafter_job *job = job_of("generate", options);
  rafter_generator *g = NULL;
  rafter_logit_bias bar[VOCAB];
  const int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6};
  for (int i = 0; i < VOCAB; i++) bar[i] = (rafter_logit_bias){i, -INFINITY};
  OK(rafter_generator_open(job, &g, &error));
  rafter_job_free(job);
  CHECK(rafter_generator_arena_bytes(g) > 0 && rafter_generator_tokenizer(g));
  rafter_request numbers = {.size = sizeof numbers, .max_tokens = 7};
  OK(rafter_generator_sampling(g, &numbers, &error));
  CHECK(numbers.temperature == 1 && numbers.max_tokens == 7); /* The model has no file of defaults. */
  for (int i = 0; i < REQUESTS; i++) {
    rafter_request request = {.size = sizeof request,
                              .tokens = prompt,
                              .count = 8,
                              .max_tokens = 12,
                              .ignore_eos = true,
                              .owner = &answers[i]};
    if (i == 2) request.bias = bar; /* This request fails. */
    if (i == 2) request.bias_count = VOCAB;
    OK(rafter_generator_submit(g, &request, &answers[i].id, &error));
  }
  rafter_request none = {.size = sizeof none};
  CHECK(rafter_generator_submit(g, &none, NULL, &error) == RAFTER_INVALID);
  none.size = 0;
  CHECK(rafter_generator_submit(g, &none, NULL, &error) == RAFTER_INVALID);
  while (answers[1].count < 3) step(g);
  rafter_counts counts = {.size = sizeof counts};
  OK(rafter_generator_counts(g, &counts, &error));
  CHECK(counts.context == 64 && counts.vocab == VOCAB && counts.slots == 3);
  CHECK(counts.running == 3 && !counts.waiting); /* One of the four requests has failed. */
  CHECK(counts.kv_used_bytes > 0 && counts.kv_used_bytes <= counts.kv_bytes);
  CHECK(counts.kv_bytes < rafter_generator_arena_bytes(g));
  CHECK(counts.passes > 0 && counts.seconds > 0 && counts.predicted_seconds > counts.limit_seconds);
  rafter_generator_cancel(g, answers[1].id, -1);
  int64_t used = counts.kv_used_bytes;
  OK(rafter_generator_counts(g, &counts, &error));
  CHECK(counts.running == 2 && counts.kv_used_bytes < used); /* The pages are free at once. */
  while (rafter_generator_busy(g)) step(g);
  OK(rafter_generator_counts(g, &counts, &error));
  CHECK(!counts.running && !counts.kv_used_bytes && counts.answers == REQUESTS);
  for (int i = 0; i < REQUESTS; i++) CHECK(answers[i].ends == 1);
  CHECK(answers[0].finish == RAFTER_FINISH_LENGTH && answers[0].count == 12);
  CHECK(answers[1].finish == RAFTER_FINISH_CANCELLED && answers[1].count == 3);
  CHECK(answers[2].finish == RAFTER_FINISH_ERROR && answers[2].count == 0);
  CHECK(!memcmp(answers[0].token, answers[3].token, 12 * sizeof(int32_t)));
  /* The text of an answer ends before a stop text. */
  const char *text = answers[0].text, *stop[] = {text + strlen(text) / 2};
  answer cut = {0};
  rafter_request request = {.size = sizeof request,
                            .tokens = prompt,
                            .count = 8,
                            .max_tokens = 12,
                            .stop = stop,
                            .stop_count = 1,
                            .ignore_eos = true,
                            .owner = &cut};
  OK(rafter_generator_submit(g, &request, NULL, &error));
  while (rafter_generator_busy(g)) step(g);
  CHECK(cut.finish == RAFTER_FINISH_STOP && cut.ends == 1);
  CHECK(strlen(cut.text) < strlen(text) && !strncmp(cut.text, text, strlen(cut.text)));
  score_prompt(g);
  rafter_generator_close(g);
}

/* The log-probabilities of an answer are those of scoring the same tokens. */
static void score(void) {
  static const char *const options[][2] = {{"seq", "32"}, {"batch", "2"}, {"top", "2"}, {0}};
  rafter_job *job = job_of("score", options);
  rafter_scorer *s = NULL;
  const int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6};
  int32_t tokens[20], top_ids[40];
  float logprobs[2][20], top_logprobs[40];
  memcpy(tokens, prompt, sizeof prompt);
  memcpy(tokens + 8, answers[0].token, 12 * sizeof *tokens);
  OK(rafter_scorer_open(job, &s, &error));
  rafter_job_free(job);
  CHECK(rafter_scorer_tokens(s) == 64);
  rafter_score text[2] = {{.size = sizeof *text, .tokens = tokens, .count = 20, .logprobs = logprobs[0]},
                          {.size = sizeof *text,
                           .tokens = tokens,
                           .count = 20,
                           .logprobs = logprobs[1],
                           .top_ids = top_ids,
                           .top_logprobs = top_logprobs}};
  OK(rafter_scorer_score(s, text, 2, &error));
  CHECK(!memcmp(logprobs[0], logprobs[1], sizeof logprobs[0]));
  for (int i = 0; i < 12; i++) {
    CHECK(logprobs[0][8 + i] == answers[0].logprob[i]);
    CHECK(top_ids[2 * (8 + i)] == answers[0].token[i]); /* The answer was greedy. */
    CHECK(prompt_ranks[8 + i] == 1);
  }
  CHECK(!memcmp(prompt_logprobs + 1, logprobs[0] + 1, 19 * sizeof(float)));
  CHECK(!memcmp(prompt_top_ids + 2, top_ids + 2, 38 * sizeof(int32_t)));
  CHECK(!memcmp(prompt_top_logprobs + 2, top_logprobs + 2, 38 * sizeof(float)));
  text[0].count = 33;
  CHECK(rafter_scorer_score(s, text, 1, &error) == RAFTER_INVALID);
  rafter_scorer_close(s);
}

static void tokenize(void) {
  rafter_job *job = NULL;
  OK(rafter_job_new("tokenize", &job, &error));
  OK(rafter_job_set(job, "model", MODEL, &error));
  rafter_tokenizer *t = NULL;
  int32_t *ids = NULL;
  int64_t count = 0;
  char *text = NULL;
  size_t bytes = 0;
  OK(rafter_tokenizer_open(job, &t, &error));
  rafter_job_free(job);
  OK(rafter_tokenizer_encode(t, "a text", 6, false, &ids, &count, &error));
  CHECK(count == 6 && ids[0] == 'a' && rafter_tokenizer_vocab(t) >= 256);
  OK(rafter_tokenizer_decode(t, ids, count, &text, &bytes, &error));
  CHECK(bytes == 6 && !strcmp(text, "a text"));
  rafter_text_free(text);
  const char *piece = NULL;
  OK(rafter_tokenizer_piece(t, ids[2], &piece, &bytes, &error));
  CHECK(bytes == 1 && *piece == 't' && !rafter_tokenizer_chats(t));
  CHECK(rafter_tokenizer_piece(t, 1 << 20, &piece, &bytes, &error) == RAFTER_INVALID);
  CHECK(rafter_tokenizer_piece(t, -1, &piece, &bytes, &error) == RAFTER_INVALID);
  ids[0] = 1 << 20;
  CHECK(rafter_tokenizer_decode(t, ids, count, &text, &bytes, &error) == RAFTER_INVALID);
  const rafter_conversation none = {.messages = "[]"}, chat = {.size = sizeof chat, .messages = "[]"};
  CHECK(rafter_tokenizer_conversation(t, &none, &ids, &count, &error) == RAFTER_INVALID); /* no size */
  CHECK(rafter_tokenizer_conversation(t, &chat, &ids, &count, &error) == RAFTER_FAILED);
  CHECK(!rafter_tokenizer_template(t) && !rafter_tokenizer_tools_template(t));
  /* the model has no template */
  CHECK(rafter_tokenizer_chat(t, "[]", true, &ids, &count, &error) == RAFTER_FAILED);
  rafter_ids_free(ids);
  rafter_tokenizer_close(t);
}

int main(void) {
  CHECK(strstr(rafter_version(), "rafter " RAFTER_VERSION " "));
  generate();
  score();
  tokenize();
  puts(answers[0].text);
  return 0;
}
