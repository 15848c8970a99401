/* test_sampler_rows.c - tests the effect of penalties and biases on a row, the reported alternatives,
 * rows of a batch, and rows and requests that are refused. */
#define _GNU_SOURCE
#include "unit/generate/sampling.h"

/* ---- a slow implementation of all options of a request --------------------------------------- */

enum fault {
  NO_FAULT,
  REPEAT_ANSWER_ONLY,
  REPEAT_DIVIDES_ALL,
  PRESENCE_PER_TIME,
  FREQUENCY_OF_PROMPT,
  BIAS_AFTERWARDS,
  MIN_TOKENS_OFF_BY_ONE,
  FAULTS
};

typedef struct history {
  const int32_t *prompt, *answer;
  int64_t prompt_count, answer_count;
} history;

static int64_t times(const int32_t *ids, int64_t count, int32_t id) {
  int64_t n = 0;
  for (int64_t i = 0; i < count; i++) n += ids[i] == id;
  return n;
}

/* The logits after bias, penalties and bars, computed token by token from the definitions. */
static void slow_adjust(const rf_sampler_options *o, const history *h, const float *logits, int64_t vocab,
                        enum fault fault, float *out) {
  for (int32_t id = 0; id < vocab; id++) {
    float x = logits[id], bias = 0;
    int64_t in_prompt = times(h->prompt, h->prompt_count, id),
            in_answer = times(h->answer, h->answer_count, id);
    for (int64_t i = 0; i < o->bias_count; i++)
      if (o->bias[i].id == id) bias += o->bias[i].bias;
    if (fault != BIAS_AFTERWARDS) x += bias;
    if (o->repetition_penalty > 0 && in_answer + (fault == REPEAT_ANSWER_ONLY ? 0 : in_prompt) > 0)
      x = x > 0 || fault == REPEAT_DIVIDES_ALL ? x / o->repetition_penalty : x * o->repetition_penalty;
    x -= o->frequency_penalty * (float)(in_answer + (fault == FREQUENCY_OF_PROMPT ? in_prompt : 0));
    x -= o->presence_penalty * (float)(fault == PRESENCE_PER_TIME ? in_answer : in_answer > 0);
    if (fault == BIAS_AFTERWARDS) x += bias;
    bool barred = o->ignore_eos || h->answer_count < o->min_tokens + (fault == MIN_TOKENS_OFF_BY_ONE);
    out[id] = barred && times(o->eos, o->eos_count, id) ? -INFINITY : x;
  }
}

/* The token for which the draw falls into its range of the running probability. Tokens are in
 * descending order of probability if a filter is set, otherwise by id. Returns -1 if the draw is so
 * near a border that rounding decides. `fresh`: the row differs from that of the last call. */
static int32_t slow_choice(const rf_sampler_options *o, const float *row, int64_t vocab, int64_t position,
                           bool fresh) {
  static double p[MAX];
  static entry order[MAX];
  int64_t best = 0;
  for (int64_t i = 1; i < vocab; i++) best = row[i] > row[best] ? i : best;
  if (!(o->temperature > 0)) return (int32_t)best;
  if (fresh) expected(*o, row, vocab, p);
  bool filtered = (o->top_k > 0 && o->top_k < vocab) || o->top_p < 1 || o->min_p > 0;
  for (int64_t i = 0; fresh && i < vocab; i++) order[i] = (entry){(long double)row[i], (int32_t)i};
  if (fresh && filtered) qsort(order, (size_t)vocab, sizeof *order, likelier);
  uint32_t words[4];
  rf_philox(rf_key(o->seed, rf_name_key("sampler"), 0), (uint64_t)position, 0, words);
  double uniform = ((double)words[0] + (double)words[1] * 0x1p-32) * 0x1p-32, run = 0;
  for (int64_t i = 0; i < vocab; i++) {
    run += p[order[i].id];
    if (fabs(run - uniform) < 1e-10) return -1;
    if (uniform < run) return order[i].id;
  }
  return -1;
}

static uint32_t word_at(uint64_t seed, uint64_t i) {
  uint32_t words[4];
  rf_philox(rf_key(seed, 6, 0), i, 0, words);
  return words[0];
}

/* Makes a random request, row and history. The lists are static, as those of a request belong to
 * its caller. */
static rf_sampler_options random_request(uint64_t seed, float *logits, int64_t *vocab, history *h) {
  static rf_logit_bias bias[8];
  static int32_t eos[3], prompt[64], answer[64];
  static const int64_t sizes[] = {1, 2, 5, 31, 32, 33, 97, 300, 1000, 2049, 4096};
  static const float spreads[] = {0.3f, 1, 3, 8}, temperatures[] = {0, 0.5f, 1, 1, 1.7f, 30},
                     top_ps[] = {1, 1, 0.999f, 0.9f, 0.5f, 0.1f};
  uint64_t at = 0;
  *vocab = sizes[word_at(seed, at++) % 11];
  random_logits(logits, *vocab, seed, spreads[word_at(seed, at++) % 4]);
  uint32_t coarse = word_at(seed, at++) % 4;
  for (int64_t i = 0; i < *vocab; i++) {
    if (coarse == 0) logits[i] = roundf(logits[i] * 4) / 4; /* many equal values */
    if (coarse == 1 && i % 3) logits[i] = -INFINITY;
  }
  uint32_t v = (uint32_t)*vocab, k = word_at(seed, at++) % 4;
  rf_sampler_options o = {.temperature = temperatures[word_at(seed, at++) % 6], .seed = seed};
  o.top_p = top_ps[word_at(seed, at++) % 6];
  o.top_k = k == 0   ? (int32_t)(1 + word_at(seed, at++) % v)
            : k == 1 ? (int32_t)(1 + word_at(seed, at++) % 50)
                     : 0;
  o.min_p = word_at(seed, at++) % 3 ? 0 : 0.3f / (float)(1 + word_at(seed, at++) % 100);
  if (word_at(seed, at++) % 2) o.repetition_penalty = 0.8f + (float)(word_at(seed, at++) % 8) / 10;
  if (word_at(seed, at++) % 2) o.frequency_penalty = (float)(word_at(seed, at++) % 9) / 4 - 1;
  if (word_at(seed, at++) % 2) o.presence_penalty = (float)(word_at(seed, at++) % 9) / 4 - 1;
  *h = (history){prompt, answer, word_at(seed, at++) % 64, 0};
  h->answer_count = word_at(seed, at++) % 64;
  for (int i = 0; i < 64; i++) {
    prompt[i] = (int32_t)(word_at(seed, at++) % v);
    answer[i] = (int32_t)(word_at(seed, at++) % (i % 2 && v > 9 ? 9 : v));
  }
  o.bias = bias;
  o.bias_count = word_at(seed, at++) % 9;
  for (int i = 0; i < 8; i++) {
    bias[i].id = (int32_t)(word_at(seed, at++) % v);
    bias[i].bias = (float)(word_at(seed, at++) % 41) / 4 - 5;
  }
  o.eos = eos;
  o.eos_count = v > 100 ? word_at(seed, at++) % 4 : 0;
  for (int i = 0; i < 3; i++) eos[i] = answer[i]; /* tokens that can be drawn */
  o.min_tokens = h->answer_count + (int64_t)(word_at(seed, at++) % 3) - 1;
  o.ignore_eos = word_at(seed, at++) % 8 == 0;
  return o;
}

static void recall(rf_sampler *sampler, const history *h) {
  assert_int_equal(rf_sampler_prompt(sampler, h->prompt, h->prompt_count, NULL), RAFTER_OK);
  for (int64_t i = 0; i < h->answer_count; i++)
    assert_int_equal(rf_sampler_accept(sampler, h->answer[i], NULL), RAFTER_OK);
}

/* Every request gives the token of the slow implementation, and every fault planted there is
 * noticed. One sampler serves all requests, with a reset in between, next to a new sampler for
 * each. */
static void choices_are_those_of_a_slow_reading(void **state) {
  (void)state;
  static float logits[MAX], row[MAX];
  int noticed[FAULTS] = {0}, borders = 0, compared = 0;
  for (uint64_t seed = 0; seed < 200; seed++) {
    int64_t vocab;
    history h;
    rf_sampler_options o = random_request(seed, logits, &vocab, &h);
    rf_sampler sampler = open_or_fail((rf_sampler_options){.top_p = 1, .repetition_penalty = 3}, vocab);
    const int32_t other[] = {0, (int32_t)(vocab - 1), (int32_t)(vocab / 2)};
    recall(&sampler, &(history){other, other, 3, 3}); /* The sampler must forget this history. */
    assert_int_equal(rf_sampler_reset(&sampler, &o, NULL), RAFTER_OK);
    recall(&sampler, &h);
    for (enum fault fault = NO_FAULT; fault < FAULTS; fault++) {
      slow_adjust(&o, &h, logits, vocab, fault, row);
      for (int64_t position = 0; position < (vocab > 1000 ? 3 : 8); position++) {
        int32_t id = next(&sampler, logits, position),
                want = slow_choice(&o, row, vocab, position, position == 0);
        borders += want < 0;
        compared++;
        if (want < 0 || id == want) continue;
        if (fault == NO_FAULT)
          fail_msg("request %d: token %d (expected %d; %lld tokens, k %d, p %g, min %g, temperature %g)",
                   (int)seed, id, want, (long long)vocab, o.top_k, (double)o.top_p, (double)o.min_p,
                   (double)o.temperature);
        noticed[fault]++;
      }
    }
    rf_sampler_close(&sampler);
  }
  print_message("%d choices, %d on a border; faults noticed", compared, borders);
  for (int fault = 1; fault < FAULTS; fault++) print_message(" %d", noticed[fault]);
  print_message("\n");
  for (int fault = 1; fault < FAULTS; fault++) assert_true(noticed[fault] > 5);
  assert_true(borders < compared / 1000 + 1);
}

/* The adjusted row, computed by hand. It is read from the ordered candidates of a draw that keeps
 * all tokens. */
static void penalties_by_hand(void **state) {
  (void)state;
  enum { V = 6 };
  const float logits[V] = {2, -1, 0.5f, 4, -3, 0};
  const int32_t prompt[] = {0, 4, 4, 5}, answer[] = {0, 1, 1, 3};
  static const rf_logit_bias bias[] = {{0, 1}, {2, -0.5f}, {3, -INFINITY}};
  static const int32_t eos[] = {3, 5};
  static const struct {
    rf_sampler_options o;
    float want[V];
  } cases[] = {
      {{.top_p = 1}, {2, -1, 0.5f, 4, -3, 0}},
      {{.repetition_penalty = 1}, {2, -1, 0.5f, 4, -3, 0}},
      {{.repetition_penalty = 2}, {1, -2, 0.5f, 2, -6, 0}}, /* tokens 0 1 3 4 5 occurred */
      {{.repetition_penalty = 0.5f}, {4, -0.5f, 0.5f, 8, -1.5f, 0}},
      {{.frequency_penalty = 0.5f}, {1.5f, -2, 0.5f, 3.5f, -3, 0}}, /* 0 once, 1 twice, 3 once */
      {{.presence_penalty = 0.5f}, {1.5f, -1.5f, 0.5f, 3.5f, -3, 0}},
      {{.presence_penalty = -1, .frequency_penalty = 0.5f}, {2.5f, -1, 0.5f, 4.5f, -3, 0}},
      {{.repetition_penalty = 2, .presence_penalty = 0.25f, .frequency_penalty = 0.5f},
       {0.25f, -3.25f, 0.5f, 1.25f, -6, 0}},
      {{.bias = bias, .bias_count = 2}, {3, -1, 0, 4, -3, 0}},
      /* The bias is applied first. */
      {{.bias = bias, .bias_count = 3, .repetition_penalty = 2}, {1.5f, -2, 0, -INFINITY, -6, 0}},
      {{.eos = eos, .eos_count = 2}, {2, -1, 0.5f, 4, -3, 0}},
      {{.eos = eos, .eos_count = 2, .ignore_eos = true}, {2, -1, 0.5f, -INFINITY, -3, -INFINITY}},
      /* The answer has four tokens. */
      {{.eos = eos, .eos_count = 2, .min_tokens = 4}, {2, -1, 0.5f, 4, -3, 0}},
      {{.eos = eos, .eos_count = 2, .min_tokens = 5}, {2, -1, 0.5f, -INFINITY, -3, -INFINITY}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rf_sampler_options o = cases[i].o;
    o.temperature = 1;
    o.top_p = 1;
    o.min_p = 1e-30f;
    rf_sampler sampler = open_or_fail(o, V);
    recall(&sampler, &(history){prompt, answer, 4, 4});
    next(&sampler, logits, 0);
    for (int k = 0; k < V; k++)
      if (sampler.candidate[k].logit != cases[i].want[sampler.candidate[k].id])
        fail_msg("case %zu: token %d has %g (expected %g)", i, sampler.candidate[k].id,
                 (double)sampler.candidate[k].logit, (double)cases[i].want[sampler.candidate[k].id]);
    rf_sampler_close(&sampler);
  }
}

/* Draws from sets too large to sort are exact too: a chi-square test over a vocabulary with a
 * nucleus of a thousand tokens, with penalties. */
static void large_sets_follow_the_softmax(void **state) {
  (void)state;
  enum { V = 3000 };
  static float logits[V], row[V];
  static int64_t seen[V];
  static double p[V], other[V];
  static const rf_logit_bias bias[] = {{11, 5}, {12, 6}};
  static const rf_sampler_options requests[] = {
      {.temperature = 1, .top_p = 0.9f, .seed = 1},
      {.temperature = 1.5f, .top_p = 1, .top_k = 2000, .seed = 2},
      {.temperature = 1, .top_p = 1, .min_p = 0.01f, .seed = 3},
      {.temperature = 2, .top_p = 0.7f, .top_k = 2500, .min_p = 0.001f, .seed = 4},
      {.temperature = 1,
       .top_p = 0.95f,
       .seed = 5,
       .bias = bias,
       .bias_count = 2,
       .repetition_penalty = 1.5f,
       .frequency_penalty = 0.3f},
      {.temperature = 0.9f, .top_p = 1, .seed = 6, .bias = bias, .bias_count = 2, .presence_penalty = 1},
  };
  const int32_t prompt[] = {11, 400}, answer[] = {12, 12, 500, 12};
  const history h = {prompt, answer, 2, 4};
  random_logits(logits, V, 21, 1.2f);
  for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
    rf_sampler sampler = open_or_fail(requests[i], V);
    recall(&sampler, &h);
    memset(seen, 0, sizeof seen);
    for (int64_t position = 0; position < LARGE_DRAWS; position++) seen[next(&sampler, logits, position)]++;
    rf_sampler_close(&sampler);
    slow_adjust(&requests[i], &h, logits, V, NO_FAULT, row);
    expected(requests[i], row, V, p);
    rf_sampler_options warmer = requests[i];
    warmer.temperature *= 1.5f;
    expected(warmer, row, V, other);
    double off = surprise(seen, p, V, LARGE_DRAWS), warmer_off = surprise(seen, other, V, LARGE_DRAWS);
    print_message("large request %zu: %.2f deviations; against a warmer softmax %.1f\n", i, off, warmer_off);
    assert_true(off <= SURPRISE_BOUND && warmer_off > SURPRISE_BOUND);
  }
}

/* If a top-k ends among thousands of equal values, it keeps the lower ids, all with the same
 * probability. */
static void large_ties_are_cut_by_id(void **state) {
  (void)state;
  enum { V = 4096, K = 2000 };
  static float logits[V];
  for (int shape = 0; shape < 2; shape++) {
    /* In shape 1 all even ids are kept, and no odd ones. */
    for (int i = 0; i < V; i++) logits[i] = shape && i % 2 ? 1 : 2;
    rf_sampler_options o = {.temperature = 1, .top_k = K, .top_p = 1, .min_p = 0.1f, .seed = 8};
    rf_sampler sampler = open_or_fail(o, V);
    for (int64_t position = 0; position < 300; position++) {
      uint32_t words[4];
      rf_philox(rf_key(o.seed, rf_name_key("sampler"), 0), (uint64_t)position, 0, words);
      int32_t want = (int32_t)((double)words[0] * 0x1p-32 * K);
      assert_int_equal(next(&sampler, logits, position), shape ? 2 * want : want);
    }
    rf_sampler_close(&sampler);
  }
}

static void alternatives_are_the_head_of_a_sort(void **state) {
  (void)state;
  static float logits[MAX];
  static entry order[MAX];
  for (uint64_t seed = 0; seed < 120; seed++) {
    int64_t vocab;
    history h;
    rf_sampler_options o = random_request(seed, logits, &vocab, &h);
    rf_sampler sampler = open_or_fail(o, vocab);
    recall(&sampler, &h); /* The history must not matter. */
    int32_t ids[RF_TOP_LOGPROBS + 1], id;
    double values[RF_TOP_LOGPROBS + 1];
    long double sum = 0;
    int64_t finite = 0, wanted = (int64_t)(seed % (RF_TOP_LOGPROBS + 1));
    for (int64_t i = 0; i < vocab; i++) {
      order[i] = (entry){(long double)logits[i], (int32_t)i};
      finite += logits[i] > -INFINITY;
    }
    qsort(order, (size_t)vocab, sizeof *order, likelier);
    for (int64_t i = 0; i < vocab; i++) sum += expl(order[i].p - order[0].p);
    long double log_sum = order[0].p + logl(sum);
    rf_logprobs given = {.wanted = (int32_t)wanted, .ids = ids, .logprobs = values};
    memset(ids, 0x55, sizeof ids);
    /* Otherwise all tokens are barred. */
    if (rf_sampler_choose(&sampler, logits, 3, &id, &given, NULL) == RAFTER_OK) {
      long double want = (long double)logits[id] - log_sum;
      assert_true(logits[id] > -INFINITY ? fabsl((long double)given.logprob - want) < 1e-12L
                                         : given.logprob < -1e300);
      assert_int_equal(given.count, finite < wanted ? finite : wanted);
      for (int i = 0; i < given.count; i++) {
        assert_int_equal(ids[i], order[i].id);
        assert_true(fabsl((long double)values[i] - (order[i].p - log_sum)) < 1e-12L);
      }
      assert_int_equal(ids[given.count], 0x55555555); /* Nothing was written after them. */
    }
    rf_sampler_close(&sampler);
  }
}

/* If the caller gives the sum of a row's exponentials, the token is the same and log-probabilities
 * use this sum. An invalid sum is an error. */
static void a_known_sum_changes_no_choice(void **state) {
  (void)state;
  static float logits[MAX];
  for (uint64_t seed = 0; seed < 240; seed++) {
    int64_t vocab;
    history h;
    rf_sampler_options o = random_request(seed, logits, &vocab, &h);
    /* seeds for which the same exponentials are used for the draw */
    if (seed % 3 == 0) {
      o.temperature = 1;
      o.top_k = 0;
      o.top_p = 1;
      o.min_p = 0;
    }
    rf_sampler sampler = open_or_fail(o, vocab);
    recall(&sampler, &h);
    const float sum = 2.5f, none = NAN;
    rf_logprobs taken = {0}, given = {.lse = &sum}, bad = {.lse = &none};
    int32_t id, same;
    rf_status status = rf_sampler_choose(&sampler, logits, 3, &id, &taken, NULL);
    assert_int_equal(rf_sampler_choose(&sampler, logits, 3, &same, &given, NULL), status);
    assert_int_equal(same, id);
    if (status == RAFTER_OK) assert_true(given.logprob == (double)logits[id] - 2.5);
    assert_int_equal(rf_sampler_choose(&sampler, logits, 3, &id, &bad, NULL), RAFTER_FAILED);
    assert_true(isnan(bad.logprob));
    rf_sampler_close(&sampler);
  }
}

/* Rows of a batch share only the scratch memory. */
static void rows_of_a_batch_do_not_touch_each_other(void **state) {
  (void)state;
  enum { V = 700, ROWS = 5, STEPS = 30 };
  static float logits[V];
  rf_sampler_work *work;
  rf_sampler together[ROWS], alone[ROWS];
  assert_int_equal(rf_sampler_work_open(V, &work, NULL), RAFTER_OK);
  for (int r = 0; r < ROWS; r++) {
    rf_sampler_options o = {.temperature = (float)r / 2,
                            .top_p = 0.9f,
                            .frequency_penalty = (float)r,
                            .repetition_penalty = 1.2f,
                            .seed = (uint64_t)r};
    assert_int_equal(rf_sampler_open_with(&o, work, &together[r], NULL), RAFTER_OK);
    alone[r] = open_or_fail(o, V);
  }
  int32_t answer[ROWS][STEPS];
  for (int64_t i = 0; i < STEPS; i++)
    for (int r = 0; r < ROWS; r++) {
      random_logits(logits, V, (uint64_t)(i * ROWS + r), 2);
      answer[r][i] = next(&together[r], logits, i);
      assert_int_equal(rf_sampler_accept(&together[r], answer[r][i], NULL), RAFTER_OK);
    }
  for (int r = 0; r < ROWS; r++) {
    for (int64_t i = 0; i < STEPS; i++) {
      random_logits(logits, V, (uint64_t)(i * ROWS + r), 2);
      assert_int_equal(next(&alone[r], logits, i), answer[r][i]);
      rf_sampler_accept(&alone[r], answer[r][i], NULL);
    }
    rf_sampler_close(&together[r]);
    rf_sampler_close(&alone[r]);
  }
  rf_sampler_work_close(work);
}

static void reset_forgets_all(void **state) {
  (void)state;
  enum { V = 50 };
  const int32_t tokens[] = {3, 3, 49, 0};
  rf_sampler_options o = {.temperature = 0, .top_p = 1, .presence_penalty = 1};
  rf_sampler sampler = open_or_fail(o, V);
  recall(&sampler, &(history){tokens, tokens, 4, 4});
  assert_int_equal(sampler.touched_count, 3);
  assert_int_equal(sampler.seen[3], RF_SEEN_PROMPT + 2);
  assert_int_equal(rf_sampler_reset(&sampler, &(rf_sampler_options){.top_p = NAN}, NULL), RAFTER_INVALID);
  assert_int_equal(sampler.touched_count, 3); /* as it was before */
  assert_int_equal(rf_sampler_reset(&sampler, &o, NULL), RAFTER_OK);
  for (int i = 0; i < V; i++) assert_int_equal(sampler.seen[i], 0);
  assert_true(!sampler.touched_count && !sampler.generated);
  for (int round = 0; round < 3; round++) /* more tokens than the vocabulary has */
    for (int32_t i = 0; i < V; i++) assert_int_equal(rf_sampler_accept(&sampler, i, NULL), RAFTER_OK);
  assert_int_equal(sampler.touched_count, V);
  assert_int_equal(sampler.generated, 3 * V);
  rf_sampler_close(&sampler);
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  static const rf_logit_bias outside[] = {{4, 1}}, negative[] = {{-1, 1}}, nothing[] = {{0, NAN}},
                             endless[] = {{0, INFINITY}};
  static const int32_t far[] = {4};
  const rf_sampler_options refused[] = {
      {.temperature = NAN},
      {.temperature = INFINITY},
      {.top_p = NAN},
      {.min_p = INFINITY},
      {.repetition_penalty = -1},
      {.repetition_penalty = NAN},
      {.frequency_penalty = INFINITY},
      {.presence_penalty = NAN},
      {.bias = outside, .bias_count = 1},
      {.bias = negative, .bias_count = 1},
      {.bias = nothing, .bias_count = 1},
      {.bias = endless, .bias_count = 1},
      {.bias_count = 1},
      {.eos = far, .eos_count = 1},
      {.eos_count = -1},
  };
  rf_sampler sampler;
  rf_error error;
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    assert_int_equal(rf_sampler_open(&refused[i], 4, &sampler, &error), RAFTER_INVALID);
    rf_sampler_close(&sampler);
  }
  assert_int_equal(rf_sampler_open(&(rf_sampler_options){.top_p = 1}, 0, &sampler, &error), RAFTER_INVALID);
  assert_int_equal(rf_sampler_open(&(rf_sampler_options){.top_p = 1}, INT64_MAX, &sampler, &error),
                   RAFTER_INVALID);
  sampler = open_or_fail((rf_sampler_options){.top_p = 1}, 4);
  assert_int_equal(rf_sampler_accept(&sampler, 4, &error), RAFTER_INVALID);
  assert_int_equal(rf_sampler_prompt(&sampler, (const int32_t[]){0, -1}, 2, &error), RAFTER_INVALID);
  rf_sampler_close(&sampler);
}

/* Rows that are not a distribution, and requests that leave no token, are errors. */
static void rows_without_an_answer_are_told(void **state) {
  (void)state;
  const float bad[][4] = {{0, NAN, 1, 2},
                          {NAN, NAN, NAN, NAN},
                          {0, 1, INFINITY, 0},
                          {-INFINITY, -INFINITY, -INFINITY, -INFINITY},
                          {NAN, 0, 0, 0}};
  static const int32_t all[] = {0, 1, 2, 3};
  static const rf_logit_bias most[] = {{0, 3e38f}, {0, 3e38f}, {0, -INFINITY}, {1, 3e38f}};
  for (int t = 0; t < 3; t++) {
    rf_sampler_options o = {.temperature = (float)t, .top_p = t == 2 ? 0.5f : 1};
    rf_sampler sampler = open_or_fail(o, 4);
    rf_logprobs given = {0};
    int32_t id;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
      assert_int_equal(rf_sampler_choose(&sampler, bad[i], 0, &id, &given, NULL), RAFTER_FAILED);
      assert_true(id >= 0 && id < 4 && isnan(given.logprob));
    }
    o.eos = all;
    o.eos_count = 4;
    o.ignore_eos = true;
    assert_int_equal(rf_sampler_reset(&sampler, &o, NULL), RAFTER_OK);
    assert_int_equal(rf_sampler_choose(&sampler, (const float[]){0, 3, 1, 2}, 0, &id, &given, NULL),
                     RAFTER_INVALID);
    assert_true(id == 1 && isnan(given.logprob));
    o.ignore_eos = false;
    o.bias = most;
    o.bias_count = 4; /* Overflow is limited to a finite number. */
    assert_int_equal(rf_sampler_reset(&sampler, &o, NULL), RAFTER_OK);
    assert_int_equal(rf_sampler_choose(&sampler, (const float[]){3e38f, 3e38f, 1, 2}, 0, &id, &given, NULL),
                     RAFTER_OK);
    assert_int_equal(id, 1);
    rf_sampler_close(&sampler);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(choices_are_those_of_a_slow_reading),
      cmocka_unit_test(penalties_by_hand),
      cmocka_unit_test(large_sets_follow_the_softmax),
      cmocka_unit_test(large_ties_are_cut_by_id),
      cmocka_unit_test(alternatives_are_the_head_of_a_sort),
      cmocka_unit_test(a_known_sum_changes_no_choice),
      cmocka_unit_test(rows_of_a_batch_do_not_touch_each_other),
      cmocka_unit_test(reset_forgets_all),
      cmocka_unit_test(what_cannot_be_is_refused),
      cmocka_unit_test(rows_without_an_answer_are_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
