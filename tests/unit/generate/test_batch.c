/* test_batch.c - the answer to a request depends on nothing but the request. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/generate.h"

enum { CONTEXT = 96, VOCAB = 203 };
static const char MODEL[] = "gpt:layers=2,width=48,heads=3,ff=160,vocab=203,seq=96,init=flax";
/* A model with windows of 24 keys in five layers of six; the texts are much longer. */
static const char WINDOWED[] =
    "gemma3:layers=6,width=32,heads=4,kv_heads=2,head_dim=16,ff=64,vocab=203,seq=4096,window=24,init=flax";

static rf_machine machine;

/* The answer to a request. */
typedef struct answer {
  int32_t token[CONTEXT];
  float logprob[CONTEXT];
  int64_t count;
  rf_finish finish;
} answer;

static rf_infer_settings settings_of(const char *model, int64_t batch) {
  rf_infer_settings s = {.seed = 6};
  rf_error error = {0};
  if (rf_model_resolve(model, &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){
      .build = {.job = RF_JOB_GENERATE, .softmax = RF_F32, .microbatch = batch, .seq = CONTEXT},
      .backend = &RF_BACKEND_CPU,
      .isa = rf_isa_detect(),
      .threads = 1,
      .machine = &machine};
  return s;
}

static rf_generator *open_settings(const rf_infer_settings *s) {
  rf_generator *g = NULL;
  rf_error error = {0};
  if (rf_generator_open(s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return g;
}

static rf_generator *open_or_fail(const char *model, int64_t batch) {
  rf_infer_settings s = settings_of(model, batch);
  return open_settings(&s);
}

static void run_all(rf_generator *g) {
  rf_error error = {0};
  while (rf_generator_busy(g)) {
    const rf_event *event;
    int count;
    if (rf_generator_step(g, &event, &count, &error) != RAFTER_OK) fail_msg("%s", error.message);
    for (int i = 0; i < count; i++) {
      answer *a = (answer *)event[i].owner + event[i].sample;
      assert_int_equal(a->finish, RF_FINISH_NONE); /* No event follows the last one. */
      a->finish = event[i].finish;
      if (event[i].token < 0) continue;
      assert_int_equal(event[i].index, a->count);
      a->token[a->count] = event[i].token;
      a->logprob[a->count++] = event[i].logprob;
    }
  }
}

static void submit_or_fail(rf_generator *g, const rf_request *r) {
  rf_error error = {0};
  if (rf_generator_submit(g, r, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
}

static void an_answer_is_what_feeding_gives(void **state) {
  (void)state;
  rf_generator *g = open_or_fail(MODEL, 1);
  int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6};
  answer a = {0};
  submit_or_fail(
      g, &(rf_request){.tokens = prompt, .count = 8, .max_tokens = 20, .sampler = {.top_p = 1}, .owner = &a});
  run_all(g);
  assert_int_equal(a.count, 20);
  assert_int_equal(a.finish, RF_FINISH_LENGTH);
  rf_generator_reset(g);
  const float *logits = NULL;
  rf_error error;
  assert_int_equal(rf_generator_feed(g, prompt, 8, &logits, &error), RAFTER_OK);
  for (int64_t i = 0; i < a.count; i++) {
    int best = 0;
    for (int v = 1; v < VOCAB; v++) best = logits[v] > logits[best] ? v : best;
    assert_int_equal(a.token[i], best);
    assert_true(a.logprob[i] == rf_generator_logprob(g, best));
    assert_int_equal(rf_generator_feed(g, &a.token[i], 1, &logits, &error), RAFTER_OK);
  }
  rf_generator_close(g);
}

static void ends(void **state) {
  (void)state;
  rf_generator *g = open_or_fail(MODEL, 1);
  int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6};
  static answer a[4];
  memset(a, 0, sizeof a);
  rf_request r = {.tokens = prompt, .count = 8, .sampler = {.top_p = 1}, .owner = &a[0]};
  submit_or_fail(g, &r); /* Fills the context completely: the last token needs no place in the cache. */
  run_all(g);
  assert_int_equal(a[0].count, CONTEXT - 8 + 1);
  int32_t stop = a[0].token[5];
  int64_t first = 0;
  while (a[0].token[first] != stop) first++;
  r.stop = &stop;
  r.stop_count = 1;
  r.owner = &a[1];
  submit_or_fail(g, &r);
  run_all(g);
  assert_int_equal(a[1].count, first + 1);
  assert_int_equal(a[1].finish, RF_FINISH_STOP);
  /* A cancelled request gets one last event, and the next request runs. */
  int64_t id;
  rf_error error = {0};
  const rf_event *event;
  int count;
  r.owner = &a[2];
  r.stop_count = 0;
  assert_int_equal(rf_generator_submit(g, &r, &id, &error), RAFTER_OK);
  r.owner = &a[3];
  r.max_tokens = 3;
  submit_or_fail(g, &r);
  for (count = 0; !count;) assert_int_equal(rf_generator_step(g, &event, &count, &error), RAFTER_OK);
  rf_generator_cancel(g, id, 0);
  rf_generator_cancel(g, id, -1); /* The request has already ended, so no event follows. */
  run_all(g);
  assert_int_equal(a[2].count, 0);
  assert_int_equal(a[2].finish, RF_FINISH_CANCELLED);
  assert_int_equal(a[3].count, 3);
  assert_string_equal(rf_finish_name(a[3].finish), "length");
  rf_generator_close(g);
}

/* Waiting answers are cancelled one by one, also if there are more than one step can report. */
static void every_cancelled_answer_is_reported_once(void **state) {
  (void)state;
  enum { SAMPLES = 9 };
  rf_generator *g = open_or_fail(MODEL, 2);
  int32_t prompt[] = {3, 1, 4, 1};
  static answer a[SAMPLES];
  int64_t id, passes;
  memset(a, 0, sizeof a);
  rf_error error = {0};
  const rf_event *event;
  int count;
  rf_request r = {.tokens = prompt, .count = 4, .samples = SAMPLES, .owner = a};
  assert_int_equal(rf_generator_submit(g, &r, &id, &error), RAFTER_OK);
  assert_int_equal(rf_generator_step(g, &event, &count, &error), RAFTER_OK);
  rf_generator_cancel(g, id, 5);
  rf_generator_cancel(g, id, -1);
  passes = rf_generator_counts(g).passes;
  run_all(g);
  for (int s = 0; s < SAMPLES; s++) assert_int_equal(a[s].finish, RF_FINISH_CANCELLED);
  assert_int_equal(rf_generator_counts(g).passes, passes); /* No pass was needed. */
  rf_generator_close(g);
}

/* If a sampler fails, only its own answer ends. */
static void an_error_belongs_to_its_request(void **state) {
  (void)state;
  rf_generator *g = open_or_fail(MODEL, 3);
  int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6};
  static answer a[3], alone;
  static rf_logit_bias none[VOCAB];
  memset(a, 0, sizeof a);
  memset(&alone, 0, sizeof alone);
  for (int v = 0; v < VOCAB; v++) none[v] = (rf_logit_bias){v, -INFINITY};
  rf_request r = {.tokens = prompt, .count = 8, .max_tokens = 5, .owner = &alone};
  submit_or_fail(g, &r);
  run_all(g);
  for (int i = 0; i < 3; i++) {
    r.owner = &a[i];
    r.sampler.bias = i == 1 ? none : NULL;
    r.sampler.bias_count = i == 1 ? VOCAB : 0;
    submit_or_fail(g, &r);
  }
  rf_error error = {0};
  const rf_event *event;
  int count, failed = 0;
  while (rf_generator_busy(g)) {
    assert_int_equal(rf_generator_step(g, &event, &count, &error), RAFTER_OK);
    for (int i = 0; i < count; i++) {
      answer *to = event[i].owner;
      if (event[i].finish == RF_FINISH_ERROR) {
        assert_ptr_equal(to, &a[1]);
        assert_int_equal(event[i].error->status, RAFTER_INVALID);
        assert_non_null(strstr(event[i].error->message, "every token is barred"));
        failed++;
        continue;
      }
      to->token[to->count] = event[i].token;
      to->logprob[to->count++] = event[i].logprob;
      to->finish = event[i].finish;
    }
  }
  assert_int_equal(failed, 1);
  assert_int_equal(a[1].count, 0);
  assert_memory_equal(&a[0], &alone, sizeof alone);
  assert_memory_equal(&a[2], &alone, sizeof alone);
  rf_generator_close(g);
}

static void refuse(rf_generator *g, rf_request r, const char *says) {
  rf_error error = {0};
  assert_int_equal(rf_generator_submit(g, &r, NULL, &error), RAFTER_INVALID);
  if (!strstr(error.message, says)) fail_msg("expected '%s' in '%s'", says, error.message);
  assert_false(rf_generator_busy(g));
}

static void bad_requests_are_refused(void **state) {
  (void)state;
  rf_generator *g = open_or_fail(MODEL, 1);
  int32_t ids[CONTEXT + 1] = {0}, bad[] = {1, VOCAB};
  rf_request r = {.tokens = ids, .count = 4, .sampler = {.top_p = 1}};
  rf_request x = r;
  x.count = 0;
  refuse(g, x, "empty");
  x = r;
  x.count = CONTEXT + 1;
  refuse(g, x, "expected a prompt of at most 96 tokens, got 97");
  x = r;
  x.tokens = bad;
  x.count = 2;
  refuse(g, x, "prompt, token 1");
  x = r;
  x.stop = bad;
  x.stop_count = 2;
  refuse(g, x, "stop ids, token 1");
  x = r;
  x.top = RF_TOP_LOGPROBS + 1;
  refuse(g, x, "alternatives");
  x = r;
  x.sampler.repetition_penalty = -1;
  refuse(g, x, "repetition_penalty");
  rf_generator_close(g);
}

/* ---- answers do not depend on other requests ------------------------------------------------- */

enum { REQUESTS = 12, SAMPLES = 3 };

typedef struct asked {
  int32_t prompt[CONTEXT], stop;
  rf_request of;
} asked;
static asked requests[REQUESTS];
static rf_logit_bias bias[] = {{17, 2}, {40, -INFINITY}};

/* Makes prompts of 1 to 60 tokens, some with the first tokens of others, and uses every option of
 * the sampler. */
static void make_requests(void) {
  for (int i = 0; i < REQUESTS; i++) {
    asked *a = &requests[i];
    int64_t count = (int64_t[]){1, 7, 60, 40, 33, 2, 50, 60, 20, 31, 32, 45}[i];
    for (int64_t t = 0; t < count; t++) {
      uint32_t words[4];
      /* 3, 7 and 11 begin like 2 */
      rf_philox(rf_key(5, (uint64_t)(i % 4 == 3 ? 2 : i), 0), (uint64_t)t, 0, words);
      a->prompt[t] = (int32_t)(words[0] % VOCAB);
    }
    a->stop = 11;
    a->of = (rf_request){.tokens = a->prompt,
                         .count = count,
                         .max_tokens = 4 + 5 * (i % 5),
                         .samples = i % 3 == 1 ? SAMPLES : 1,
                         .sampler = {.temperature = i % 2 ? 1.0f : 0, .top_p = 1, .seed = (uint64_t)i}};
    if (i == 3) a->of.sampler.top_k = 20;
    if (i == 5) a->of.sampler.top_p = 0.8f;
    if (i == 6) a->of.sampler.repetition_penalty = 1.3f;
    if (i == 7) {
      a->of.sampler.min_p = 0.05f;
      a->of.sampler.presence_penalty = 0.5f;
    }
    if (i == 8) {
      a->of.sampler.frequency_penalty = 0.4f;
      a->of.sampler.bias = bias;
      a->of.sampler.bias_count = 2;
    }
    if (i == 9) {
      a->of.stop = &a->stop;
      a->of.stop_count = 1;
      a->of.sampler.temperature = 3;
    }
    if (i == 10) a->of.keep = true;
    if (i == 11) a->of.max_tokens = 0; /* until the context is full */
  }
}

typedef struct answers {
  answer of[REQUESTS][SAMPLES];
} answers;

/* Answers all requests on a generator of its own. The last requests are submitted while the first
 * run. */
static void answer_with(rf_generator *g, answers *out) {
  memset(out, 0, sizeof *out);
  for (int i = 0; i < REQUESTS; i++) {
    rf_request r = requests[i].of;
    r.owner = out->of[i];
    submit_or_fail(g, &r);
    if (i != 6) continue;
    const rf_event *event;
    int count;
    rf_error error = {0};
    if (rf_generator_step(g, &event, &count, &error) != RAFTER_OK) fail_msg("%s", error.message);
    for (int k = 0; k < count; k++) {
      answer *a = (answer *)event[k].owner + event[k].sample;
      a->token[a->count] = event[k].token;
      a->logprob[a->count++] = event[k].logprob;
      a->finish = event[k].finish;
    }
  }
  run_all(g);
}

static rf_generate_counts answer_all(const rf_infer_settings *s, answers *out) {
  rf_generator *g = open_settings(s);
  answer_with(g, out);
  rf_generate_counts counts = rf_generator_counts(g);
  rf_generator_close(g);
  return counts;
}

static void expect_equal(const answers *a, const answers *b, const char *what) {
  for (int i = 0; i < REQUESTS; i++)
    for (int s = 0; s < requests[i].of.samples; s++) {
      const answer *x = &a->of[i][s], *y = &b->of[i][s];
      if (x->count != y->count || x->finish != y->finish ||
          memcmp(x->token, y->token, (size_t)x->count * sizeof *x->token) ||
          memcmp(x->logprob, y->logprob, (size_t)x->count * sizeof *x->logprob))
        fail_msg("%s: request %d, sample %d is answered otherwise (%d and %d tokens)", what, i, s,
                 (int)x->count, (int)y->count);
    }
}

/* Case 0: f32. 1: bf16. 2: f32 over an int8 cache. */
static void set_dtypes(rf_infer_settings *s, int number) {
  s->plan.build.dtype = number == 1 ? RF_BF16 : RF_F32;
  s->plan.build.kv_dtype_set = number == 2;
  s->plan.build.kv_dtype = RF_I8;
}

static void answers_depend_on_nothing_else(void **state) {
  (void)state;
  static answers want, got;
  static const char *const models[] = {MODEL, WINDOWED};
  for (int m = 0; m < 2; m++)
    for (int d = 0; d < 3; d++) {
      rf_infer_settings s = settings_of(models[m], 1);
      set_dtypes(&s, d);
      s.no_sharing = true;
      rf_generate_counts counts = answer_all(&s, &want);
      assert_int_equal(counts.reused, 0);
      assert_true(want.of[11][0].count == CONTEXT - 45 + 1 && want.of[9][0].count > 0);
      int64_t reused = 0;
      for (int64_t batch = 1; batch <= 8; batch++) {
        static const int64_t chunks[] = {7, 64, 0, 1, 33, 16, 50, 9},
                             pages[] = {32, 64, 32, 32, 0, 32, 128, 32};
        char what[96];
        s = settings_of(models[m], batch);
        set_dtypes(&s, d);
        s.plan.build.chunk = chunks[batch - 1];
        s.plan.build.kv_page = pages[batch - 1];
        s.plan.build.sequences = batch % 2 ? batch : batch + 1;
        s.plan.threads = batch % 3 ? 1 : 2;
        s.debug.vary_threads = batch % 3 == 0;
        s.debug.poison = batch == 3 || batch == 8;
        s.plan.guard_bytes = s.debug.poison ? 256 : 0;
        s.no_sharing = batch == 5;
        snprintf(what, sizeof what, "model %d, dtype %d, batch %d", m, d, (int)batch);
        counts = answer_all(&s, &got);
        assert_true(s.no_sharing ? counts.reused == 0 : counts.reused >= 0);
        reused += counts.reused;
        expect_equal(&want, &got, what);
      }
      assert_true(reused > 0);
    }
  /* A planted fault, to show that the comparison can fail. */
  got.of[2][0].logprob[1] = nextafterf(got.of[2][0].logprob[1], 0);
  assert_int_not_equal(memcmp(want.of[2][0].logprob, got.of[2][0].logprob, sizeof got.of[2][0].logprob), 0);
}

/* Passes that verify drafted tokens give the bits of passes with one token per answer: for greedy
 * and drawn answers, penalties, stop ids, windows, shared prefixes and caches of every dtype. */
static void drafts_change_nothing(void **state) {
  (void)state;
  static answers want, got;
  static const char *const models[] = {MODEL, WINDOWED};
  int64_t accepted = 0, refused = 0;
  for (int m = 0; m < 2; m++)
    for (int d = 0; d < 3; d++) {
      rf_infer_settings s = settings_of(models[m], 1);
      set_dtypes(&s, d);
      s.no_sharing = true;
      answer_all(&s, &want);
      for (int64_t batch = 1; batch <= 8; batch += batch == 1 ? 2 : 5) {
        char what[96];
        s.no_sharing = batch == 1;
        s.plan.build.microbatch = batch;
        s.plan.build.sequences = batch + 1;
        s.plan.build.draft = batch == 3 ? 1 : 7;
        s.plan.build.kv_page = batch == 8 ? 32 : 0;
        s.plan.threads = batch == 8 ? 2 : 1;
        s.drafts_all = true;
        s.debug.poison = batch == 8;
        snprintf(what, sizeof what, "drafts, model %d, dtype %d, batch %d", m, d, (int)batch);
        rf_generate_counts counts = answer_all(&s, &got);
        expect_equal(&want, &got, what);
        accepted += counts.accepted;
        refused += counts.drafted - counts.accepted;
      }
    }
  assert_true(accepted > 100 && refused > 100);
}

/* The settings of a model that drafts for `s`. */
static rf_infer_settings drafter_of(const rf_infer_settings *s, const char *model) {
  rf_infer_settings d = settings_of(model, s->plan.build.microbatch);
  d.plan.build.dtype = s->plan.build.dtype;
  d.plan.build.kv_dtype_set = s->plan.build.kv_dtype_set;
  d.plan.build.kv_dtype = s->plan.build.kv_dtype;
  d.plan.build.chunk = 7;
  d.plan.threads = s->plan.threads;
  d.debug = s->debug;
  return d;
}

/* The same for drafts of a model: of another one, and of one with windows. */
static void drafts_of_a_model_change_nothing(void **state) {
  (void)state;
  static answers want, got;
  static const char SMALL[] = "gpt:layers=1,width=16,heads=1,ff=32,vocab=203,seq=96,init=flax";
  static const char *const models[] = {MODEL, WINDOWED}, *const drafters[] = {MODEL, WINDOWED, SMALL};
  int64_t accepted = 0, refused = 0;
  for (int m = 0; m < 2; m++)
    for (int d = 0; d < 3; d++) {
      rf_infer_settings s = settings_of(models[m], 1);
      set_dtypes(&s, d);
      s.no_sharing = true;
      answer_all(&s, &want);
      for (int k = 0; k < 3; k++) {
        static const int64_t batches[] = {1, 3, 8};
        char what[96];
        s.plan.build.microbatch = batches[(k + d) % 3];
        s.plan.build.sequences = s.plan.build.microbatch + 1;
        s.plan.build.draft = 5;
        s.drafts_all = k != d;
        s.no_sharing = k == 1;
        s.debug.poison = k == 2;
        rf_infer_settings drafter = drafter_of(&s, drafters[k]);
        s.drafter = &drafter;
        snprintf(what, sizeof what, "model %d, dtype %d, drafts of model %d", m, d, k);
        rf_generate_counts counts = answer_all(&s, &got);
        expect_equal(&want, &got, what);
        accepted += counts.accepted;
        refused += counts.drafted - counts.accepted;
      }
    }
  assert_true(accepted > 100 && refused > 100);
}

/* If a model drafts for itself, the drafts of greedy answers are all right. So the caches of the
 * model that drafts follow the texts: after wrong drafts of drawn answers in the same slots, with
 * prompts in chunks, shared prefixes, windows and several answers at once. */
static void a_model_drafts_its_own_answers(void **state) {
  (void)state;
  static const char *const models[] = {MODEL, WINDOWED};
  for (int m = 0; m < 2; m++)
    for (int64_t batch = 1; batch <= 4; batch += 3) {
      static answers unused;
      answer a[8] = {0};
      int32_t prompt[8][40];
      rf_infer_settings s = settings_of(models[m], batch), drafter;
      s.plan.build.sequences = batch + 1;
      s.plan.build.draft = 4;
      s.drafts_all = true;
      s.debug.poison = batch == 4;
      drafter = drafter_of(&s, models[m]);
      s.drafter = &drafter;
      rf_generator *g = open_settings(&s);
      answer_with(g, &unused);
      rf_generate_counts before = rf_generator_counts(g);
      for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 40; k++) prompt[i][k] = (k * 7 + (k > 20 ? i : 0)) % VOCAB;
        submit_or_fail(g, &(rf_request){.tokens = prompt[i],
                                        .count = 40 - i,
                                        .max_tokens = 30,
                                        .sampler = {.top_p = 1},
                                        .owner = &a[i]});
      }
      run_all(g);
      rf_generate_counts after = rf_generator_counts(g);
      assert_true(after.drafted - before.drafted > 8 * 20);
      assert_int_equal(after.accepted - before.accepted, after.drafted - before.drafted);
      rf_generator_close(g);
    }
}

static void samples_are_requests_of_their_own(void **state) {
  (void)state;
  static answer together[8], apart[8];
  static const char *const models[] = {MODEL, WINDOWED};
  for (int m = 0; m < 2; m++)
    for (int64_t batch = 2; batch <= 8; batch += 3) {
      rf_infer_settings s = settings_of(models[m], batch);
      s.plan.build.kv_page = 32;
      s.plan.build.sequences = batch + 1;
      s.debug.poison = true;
      rf_generator *g = open_settings(&s);
      rf_request r = requests[2].of;
      r.sampler = (rf_sampler_options){.temperature = 1, .top_p = 1, .seed = 77};
      r.max_tokens = 20;
      memset(together, 0, sizeof together);
      memset(apart, 0, sizeof apart);
      r.samples = 8;
      r.owner = together;
      submit_or_fail(g, &r);
      run_all(g);
      rf_generate_counts counts = rf_generator_counts(g);
      /* The prompt was computed once, and its last token once for each sample. */
      assert_int_equal(counts.reused, 7 * (r.count - 1));
      assert_int_equal(counts.tokens, 8 * 20);
      for (int k = 0; k < 8; k++) {
        r.samples = 1;
        r.owner = &apart[k];
        r.sampler.seed = rf_sample_seed(77, k);
        submit_or_fail(g, &r);
      }
      run_all(g);
      assert_memory_equal(together, apart, sizeof apart);
      assert_memory_not_equal(together[0].token, together[1].token, sizeof together[0].token);
      rf_generator_close(g);
    }
}

/* A conversation: each turn begins with all earlier turns. */
static void what_is_kept_is_not_computed_again(void **state) {
  (void)state;
  static answer a[2], b;
  static const char *const models[] = {MODEL, WINDOWED};
  for (int m = 0; m < 2; m++)
    for (int spare = 0; spare < 2; spare++) {
      rf_infer_settings s = settings_of(models[m], 1);
      s.plan.build.kv_page = 32;
      s.plan.build.sequences = 1 + spare;
      s.debug.poison = true;
      rf_generator *g = open_settings(&s);
      rf_request r = requests[3].of;
      memset(a, 0, sizeof a);
      r.keep = true;
      r.max_tokens = 10;
      r.owner = &a[0];
      submit_or_fail(g, &r);
      run_all(g);
      int32_t turn[CONTEXT];
      memcpy(turn, r.tokens, (size_t)r.count * sizeof *turn);
      memcpy(turn + r.count, a[0].token, 10 * sizeof *turn);
      for (int k = 0; k < 5; k++) turn[r.count + 10 + k] = 50 + k;
      r.tokens = turn;
      r.count += 15;
      r.owner = &a[1];
      submit_or_fail(g, &r);
      run_all(g);
      /* The last token of the answer had not been computed. */
      assert_int_equal(rf_generator_counts(g).reused, 40 + 9);
      rf_generator *fresh = open_or_fail(models[m], 1);
      memset(&b, 0, sizeof b);
      r.owner = &b;
      submit_or_fail(fresh, &r);
      run_all(fresh);
      assert_memory_equal(&a[1], &b, sizeof b);
      /* Another text needs the memory. */
      memset(&b, 0, sizeof b);
      r = requests[6].of;
      r.owner = &b;
      submit_or_fail(g, &r);
      run_all(g);
      const float *logits;
      rf_error error = {0};
      assert_int_equal(rf_generator_feed(g, turn, CONTEXT / 2, &logits, &error), RAFTER_OK);
      rf_generator_close(fresh);
      rf_generator_close(g);
    }
}

/* A generator over an existing run, opened and filled by its caller, gives the bits of a generator
 * with its own run. */
static void a_bound_generator_is_an_opened_one(void **state) {
  (void)state;
  static answers want, got;
  rf_infer_settings s = settings_of(MODEL, 3);
  rf_error error = {0};
  rf_plan *prefill = NULL, *decode = NULL;
  rf_run *run = NULL;
  rf_generator *g = NULL;
  answer_all(&s, &want);
  assert_int_equal(rf_generate_plans(&s, &prefill, &decode, &error), RAFTER_OK);
  const rf_plan *plans[] = {decode, prefill, decode}; /* The plan need not be the first one of the run. */
  if (rf_run_open(plans, 3, s.debug, &run, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_int_equal(rf_fill_weights(run, 0, decode, NULL, 99, (rf_progress){0}, &error), RAFTER_OK);
  if (rf_generator_bind(&s, run, 1, prefill, decode, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  answer_with(g, &got);
  assert_memory_not_equal(&want, &got, sizeof want); /* other weights */
  rf_generator_reset(g);
  assert_int_equal(rf_fill_weights(run, 0, decode, NULL, s.seed, (rf_progress){0}, &error), RAFTER_OK);
  answer_with(g, &got);
  expect_equal(&want, &got, "bound to a run");
  rf_generator_close(g);
  rf_run_close(run);
  rf_plan_free(prefill);
  rf_plan_free(decode);
}

/* With windows shorter than the text, pages are released and reused. The bits are those of a cache
 * with a single page. */
static void recycled_pages_change_nothing(void **state) {
  (void)state;
  enum { LONG = 700 };
  static float whole[LONG], paged[LONG];
  rf_error error = {0};
  for (int d = 0; d < 2; d++)
    for (int variant = 0; variant < 4; variant++) {
      rf_infer_settings s = settings_of(WINDOWED, 1);
      s.plan.build.seq = LONG;
      s.plan.build.dtype = d ? RF_BF16 : RF_F32;
      s.plan.build.kv_page = variant ? 32 : 1024;
      s.plan.build.chunk = (int64_t[]){256, 16, 40, 256}[variant];
      s.debug.poison = variant == 2;
      rf_generator *g = open_settings(&s);
      rf_kv kv = rf_kv_of(&s.model, &g->prefill->options.build);
      if (variant == 1) assert_int_equal(kv.of[RF_KV_LOCAL].pool, (24 + 16 - 1 + 31) / 32 + 1);
      const float *logits = NULL;
      for (int64_t t = 0, count; t < LONG; t += count) {
        int32_t ids[LONG];
        count = variant == 3 && t == 0 ? 400 : 1 + (t % 3 ? 0 : 4);
        if (count > LONG - t) count = LONG - t;
        for (int64_t k = 0; k < count; k++) ids[k] = (int32_t)((t + k) * (t + k) % 199);
        if (rf_generator_feed(g, ids, count, &logits, &error) != RAFTER_OK) fail_msg("%s", error.message);
        for (int64_t k = 0; k < count; k++)
          (variant ? paged : whole)[t + k] =
              k + 1 < count ? 0 : rf_generator_logprob(g, (int32_t)(t % VOCAB));
      }
      if (variant == 1 || variant == 2) assert_memory_equal(whole, paged, sizeof whole);
      if (variant == 3) assert_true(whole[LONG - 1] == paged[LONG - 1]);
      rf_generator_close(g);
    }
}

/* A cache wider than the activations holds them exactly. A narrower cache does not. */
static void cache_dtypes(void **state) {
  (void)state;
  static answers plain, wide;
  rf_infer_settings s = settings_of(WINDOWED, 3);
  s.plan.build.dtype = RF_BF16;
  answer_all(&s, &plain);
  s.plan.build.kv_dtype_set = true;
  s.plan.build.kv_dtype = RF_F32;
  answer_all(&s, &wide);
  expect_equal(&plain, &wide, "f32 cache of bf16 activations");
  s.plan.build.dtype = RF_F32;
  static float logprob[2][VOCAB];
  double kl = 0;
  for (int v = 0; v < 2; v++) {
    const float *logits;
    rf_error error = {0};
    s.plan.build.kv_dtype = v ? RF_I8 : RF_F32;
    rf_generator *g = open_settings(&s);
    assert_int_equal(rf_generator_feed(g, requests[2].prompt, 60, &logits, &error), RAFTER_OK);
    for (int32_t id = 0; id < VOCAB; id++) logprob[v][id] = rf_generator_logprob(g, id);
    rf_generator_close(g);
  }
  for (int i = 0; i < VOCAB; i++)
    kl += exp((double)logprob[0][i]) * ((double)logprob[0][i] - (double)logprob[1][i]);
  print_message("an int8 cache moves the distribution behind 60 tokens by %.1e nat (KL)\n", kl);
  /* The error of each key and value is at most 1/254 of its head's largest, so scores of size 10
   * are off by a few hundredths. */
  assert_true(kl > 0 && kl < 0.05);
}

int main(void) {
  rf_error error = {0};
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  make_requests();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_answer_is_what_feeding_gives),
      cmocka_unit_test(ends),
      cmocka_unit_test(every_cancelled_answer_is_reported_once),
      cmocka_unit_test(an_error_belongs_to_its_request),
      cmocka_unit_test(a_bound_generator_is_an_opened_one),
      cmocka_unit_test(bad_requests_are_refused),
      cmocka_unit_test(answers_depend_on_nothing_else),
      cmocka_unit_test(drafts_change_nothing),
      cmocka_unit_test(drafts_of_a_model_change_nothing),
      cmocka_unit_test(a_model_drafts_its_own_answers),
      cmocka_unit_test(samples_are_requests_of_their_own),
      cmocka_unit_test(what_is_kept_is_not_computed_again),
      cmocka_unit_test(recycled_pages_change_nothing),
      cmocka_unit_test(cache_dtypes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
