/* pace.c - see pace.h. */
#include "generate/pace.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

typedef struct kind {
  const char *name;
  rf_sampler_options options;
} kind;
static const kind KINDS[] = {{"likeliest", {.temperature = 0}},
                             {"drawn", {.temperature = 1}},
                             {"filtered", {.top_p = 0.95f, .top_k = 64, .temperature = 1}},
                             {"penalized", {.repetition_penalty = 1.1f}}};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS, ROWS_EACH = 8, PASSES = 7 };

static const char *kind_of(const rf_sampler_options *o) {
  bool filters = o->top_k > 0 || (o->top_p > 0 && o->top_p < 1) || o->min_p > 0;
  return o->temperature <= 0 ? KINDS[0].name : filters ? KINDS[2].name : KINDS[1].name;
}

/* Fills the rows with different logits. Few logits are near the maximum, as in a language model. */
static void fill(float *logits, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    uint32_t a = (uint32_t)i * 2654435761u, b = a ^ a >> 15, c = b * 2246822519u;
    /* Mean 0, standard deviation 3. */
    logits[i] = (float)((a >> 8) + (b >> 8) + (c >> 8)) * 0x1p-24f * 6 - 9;
  }
}

/* Measures the seconds in which each thread chooses ROWS_EACH tokens, as generation does for a
 * batch. All threads read the same rows, which are larger than the caches of a core. */
static rf_status choose_rows(rf_sampler *sampler, int threads, const float *logits, int64_t vocab,
                             int64_t step, double *seconds, rf_error *error) {
  rf_status status = RAFTER_OK;
  double start = rf_now_seconds();
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < (int64_t)threads * ROWS_EACH; i++) {
    /* In generation, the head computes the log-sum-exp, whose value does not change the choice. */
    const float lse = 12;
    rf_logprobs none = {.lse = &lse};
    rf_error own;
    int32_t id;
    rf_status s = rf_sampler_choose(&sampler[omp_get_thread_num()], logits + i % ROWS_EACH * vocab,
                                    step * 64 + i, &id, &none, &own);
#pragma omp critical
    if (s != RAFTER_OK && status == RAFTER_OK) {
      status = s;
      if (error) *error = own;
    }
  }
  *seconds = rf_now_seconds() - start;
  return status;
}

static rf_status measure(const rf_calibrate_options *o, const float *logits, int64_t vocab, const kind *k,
                         rf_machine *m, rf_error *error) {
  rf_status status = RAFTER_OK;
  double seconds[PASSES];
  rf_sampler *sampler = calloc((size_t)o->threads, sizeof *sampler);
  if (!sampler)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while measuring how fast tokens are chosen");
  for (int t = 0; t < o->threads; t++) {
    RF_GO(rf_sampler_open(&k->options, vocab, &sampler[t], error));
    const int32_t seen[] = {1, 2, 3, 5, 8, 13, 21, 34};
    RF_GO(rf_sampler_prompt(&sampler[t], seen, 8, error));
  }
  for (int p = -1; p < (o->quick ? 3 : PASSES); p++)
    RF_GO(choose_rows(sampler, o->threads, logits, vocab, p + 1, &seconds[p < 0 ? 0 : p], error));
  rf_calibrate_add(m, "sample", k->name, (double)vocab, (double)vocab * o->threads * ROWS_EACH,
                   rf_ceiling_of(seconds, o->quick ? 3 : PASSES).median);
done:
  for (int t = 0; t < o->threads; t++) rf_sampler_close(&sampler[t]);
  free(sampler);
  return status;
}

rf_status rf_pace_calibrate(const rf_calibrate_options *o, rf_machine *m, rf_error *error) {
  static const int64_t vocabs[] = {1 << 12, 1 << 15, 1 << 18};
  rf_status status = RAFTER_OK;
  float *logits = malloc((size_t)vocabs[2] * ROWS_EACH * sizeof *logits);
  if (!logits)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while measuring how fast tokens are chosen");
  fill(logits, vocabs[2] * ROWS_EACH);
  for (int k = 0; k < KIND_COUNT; k++)
    for (int v = 0; v < 3; v++) {
      RF_GO(rf_calibrate_goes_on(o, error));
      RF_GO(measure(o, logits, vocabs[v], &KINDS[k], m, error));
    }
done:
  free(logits);
  return status;
}

double rf_pace_seconds(const rf_machine *m, const rf_sampler_options *o, int64_t vocab, int64_t rows) {
  double each = rf_cost_rows_seconds(m, "sample", kind_of(o), rows, vocab);
  /* A choice with penalties first copies the row of logits. The time of the copy is the difference
   * between a choice with penalties and a greedy choice. */
  double copied = rf_sampler_adjusts(o) ? rf_cost_rows_seconds(m, "sample", "penalized", rows, vocab) -
                                              rf_cost_rows_seconds(m, "sample", "likeliest", rows, vocab)
                                        : 0;
  return each + fmax(copied, 0);
}
