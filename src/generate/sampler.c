#include "generate/sampler_rows.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct rf_candidate candidate;

enum {
  BLOCK = RF_ROW_BLOCK, /* Logits per block. A block has one maximum and one total weight. */
  BUCKETS = 4096, /* Maximum number of buckets. A bucket is an interval of logits with about 64 tokens. */
  SORTED = 1024,  /* If top-k is at most SORTED, the kept tokens are sorted. */
  /* Number of most likely tokens that are tried before the sampler uses buckets. In language
   * models, the probabilities of these tokens often sum to top-p. */
  GUESS = 256,
};

struct rf_sampler_work {
  int64_t vocab, blocks, buckets;
  candidate *candidate;  /* (V) */
  candidate *peak;       /* (V/BLOCK): maximum logit of each block. */
  candidate *peak_order; /* (V/BLOCK): copy of `peak` for sorting. */
  double *block_weight;  /* (V/BLOCK) */
  float *adjusted;       /* (V): logits after bias and penalties. */
  uint16_t *bucket;      /* (V): bucket of each token. */
  struct tally {
    double mass;
    int64_t count;
  } * tally; /* (buckets): total weight and number of the tokens of each bucket. */
  const rf_row_functions *rows;
  int64_t opened; /* Index of the bucket whose tokens are in `candidate`; -1: no bucket. */
};

#define LOG2E 1.4426950408889634

static double weigh(rf_sampler_work *work, const rf_row *s) {
  return work->rows->weigh(s, work->block_weight);
}

/* Finds the maximum of each block, ignoring NaN. Returns the lowest id among the tokens with the
 * row's maximum. Returns 0 if every logit is -INFINITY or NaN. */
static int32_t find_peaks(rf_sampler_work *work, const float *logits) {
  float top = -INFINITY;
  int64_t best = 0;
  work->rows->peaks(logits, work->vocab, work->peak);
  for (int64_t b = 0; b < work->blocks; b++)
    if (work->peak[b].logit > top) {
      top = work->peak[b].logit;
      best = b;
    }
  if (!(top > -INFINITY)) return 0;
  int64_t id = best * BLOCK;
  while (logits[id] != top) id++;
  return (int32_t)id;
}

static bool likelier(candidate a, candidate b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift(candidate *c, int64_t n, int64_t at) {
  candidate moved = c[at];
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && likelier(c[child + 1], c[child])) child++;
    if (!likelier(c[child], moved)) break;
    c[at] = c[child];
  }
  c[at] = moved;
}

/* Sorts the k most likely of n candidates to the front. Uses a heap, because qsort may allocate,
 * and quickselect takes quadratic time on some rows. */
static void order_first(candidate *c, int64_t n, int64_t k) {
  int64_t ordered = 1;
  while (ordered < n && likelier(c[ordered - 1], c[ordered])) ordered++;
  if (ordered >= n) return; /* the candidates are already sorted, for instance in a bucket of equal logits */
  for (int64_t i = n / 2 - 1; i >= 0; i--) sift(c, n, i);
  for (int64_t i = 0; i < k; i++) {
    candidate likeliest = c[0];
    c[0] = c[n - 1 - i];
    c[n - 1 - i] = likeliest;
    sift(c, n - 1 - i, 0);
  }
  int64_t half = k < n / 2 ? k : n / 2;
  for (int64_t i = 0; i < half; i++) {
    candidate swap = c[i];
    c[i] = c[n - 1 - i];
    c[n - 1 - i] = swap;
  }
}

/* Copies all peaks that may be among the k largest to work->peak_order, and returns their number.
 * Sorts the peaks of every EACH-th block, to estimate a limit that about 2 k peaks reach. Copies
 * the peaks that reach the limit. If fewer than k peaks reach the limit, copies all peaks. */
static int64_t copy_largest_peaks(rf_sampler_work *work, int64_t k) {
  enum { EACH = 16 };
  const candidate *peak = work->peak;
  candidate *p = work->peak_order;
  int64_t blocks = work->blocks, count = 0, rank = 2 * k / EACH;
  for (int64_t b = 0; b < blocks; b += EACH) p[count++] = peak[b];
  if (rank > 0 && rank < count / 2) {
    order_first(p, count, rank);
    float least = p[rank - 1].logit;
    count = 0;
    for (int64_t b = 0; b < blocks; b++) {
      p[count] = peak[b];
      count += peak[b].logit >= least;
    }
    if (count >= k) return count;
  }
  memcpy(p, peak, (size_t)blocks * sizeof *p);
  return blocks;
}

/* Sorts the k most likely tokens of the row into work->candidate. Call find_peaks before. Only the
 * k blocks with the largest maxima can contain these tokens. The logit of each such token is at
 * least the smallest of these k maxima. */
static void take_likeliest(rf_sampler_work *work, const float *logits, int64_t k) {
  candidate *c = work->candidate, *p = work->peak_order;
  int64_t n = 0, blocks = work->blocks;
  if (k >= blocks) {
    for (; n < work->vocab; n++) c[n] = (candidate){logits[n], (int32_t)n};
  } else {
    order_first(p, copy_largest_peaks(work, k), k);
    float least = p[k - 1].logit;
    for (int64_t j = 0; j < k; j++) {
      int64_t first = (int64_t)p[j].id * BLOCK,
              end = first + BLOCK < work->vocab ? first + BLOCK : work->vocab;
      for (int64_t i = first; i < end; i++)
        if (logits[i] >= least) c[n++] = (candidate){logits[i], (int32_t)i};
    }
  }
  order_first(c, n, k);
}

/* Adds up the weights in the order of ids. Returns the token at which the sum first exceeds
 * `target`. */
static int32_t draw_by_id(const rf_sampler_work *work, const rf_row *s, double target) {
  double run = 0;
  int64_t b = 0, chosen = 0;
  while (b + 1 < work->blocks && run + work->block_weight[b] <= target) run += work->block_weight[b++];
  for (int64_t i = b * BLOCK; i < s->n && i < (b + 1) * BLOCK; i++) {
    double w = rf_row_weight(s, s->logits[i]);
    run += w;
    if (w > 0) chosen = i;
    if (w > 0 && target < run) break;
  }
  return (int32_t)chosen;
}

/* Does the same as weigh, but estimates the weights of blocks without likely tokens. *error is the
 * maximum error of any sum of blocks. If too many blocks have likely tokens, computes exact weights
 * and sets *error to 0. */
static double guess_weights(rf_sampler_work *work, const rf_row *s, double *error) {
  enum { LEAST = 12, MOST = 32 };
  int64_t count[MOST + 1] = {0}, exact = 0;
  int from = 0;
  for (int64_t b = 0; b < work->blocks; b++) {
    double t = (s->top - (double)work->peak[b].logit) * s->scale;
    count[t < MOST ? (int)t : MOST]++;
  }
  while (from < MOST && (from < LEAST || exact + count[from] <= work->blocks / 16)) exact += count[from++];
  *error = 0;
  if (exact > work->blocks / 4) return weigh(work, s);
  double low = work->rows->guess(s, work->peak, -from, work->block_weight, work->peak_order), total = 0;
  for (int64_t b = 0; b < work->blocks; b++) total += work->block_weight[b];
  /* The second term is an upper bound for tiny weights and for the rounding errors of both kinds of
   * sums. */
  *error = low * RF_ROW_ERROR + total * 0x1p-36;
  return total;
}

/* Draws the same token as draw_by_id, from estimated weights. Returns -1 if the error of the
 * estimates may change the token. */
static int32_t draw_by_guess(const rf_sampler_work *work, const rf_row *s, double target, double error) {
  double run = 0, next = 0;
  const double unsure = 2 * error;
  int64_t b = 0;
  for (; b + 1 < work->blocks; b++) {
    next = run + work->block_weight[b];
    if (fabs(next - target) <= unsure) return -1;
    if (next > target) break;
    run = next;
  }
  for (int64_t i = b * BLOCK; i < s->n && i < (b + 1) * BLOCK; i++) {
    double w = rf_row_weight(s, s->logits[i]);
    run += w;
    if (w <= 0) continue;
    if (fabs(run - target) <= unsure) return -1;
    if (target < run) return (int32_t)i;
  }
  return -1;
}

/* State of the filters top-p and min-p, which go through the top-k tokens from the most likely
 * token on. */
typedef struct filters {
  double need;  /* Total weight of kept tokens at which top-p stops. */
  double least; /* Min-p drops all tokens with a weight below this number. */
  double kept;
  double unsure; /* Maximum error of `need`. */
} filters;

static bool drops(const filters *f, double w) { return f->kept > 0 && (f->kept >= f->need || w < f->least); }

/* Draws one of n sorted candidates. `all`: the candidates are all tokens that may be drawn. Returns
 * false if all n candidates pass the filters and `all` is false, because other tokens may pass too.
 * Also returns false, and sets *unsure, if the error of f.need may change the drawn token. */
static bool draw_ordered(const rf_row *s, const candidate *c, int64_t n, filters f, double uniform, bool all,
                         int32_t *chosen, bool *unsure) {
  int64_t keep = 0;
  *unsure = false;
  for (; keep < n; keep++) {
    double w = rf_row_weight(s, c[keep].logit);
    *unsure = f.unsure > 0 && fabs(f.kept - f.need) <= f.unsure;
    if (*unsure) return false;
    if (drops(&f, w)) break;
    f.kept += w;
  }
  if (keep == n && !all) return false;
  double run = 0, target = uniform * f.kept;
  for (int64_t i = 0; i < keep; i++) {
    double w = rf_row_weight(s, c[i].logit);
    run += w;
    if (w > 0) *chosen = c[i].id;
    if (target < run) break;
  }
  return true;
}

static int64_t bucket_of(const rf_sampler_work *work, double t, double per_bit) {
  double x = -t * per_bit;
  return x < (double)(work->buckets - 1) ? (x > 0 ? (int64_t)x : 0) : work->buckets - 1;
}

/* Divides the row's logits into buckets, in descending order. Adds up the weights and counts the
 * tokens of each bucket. Returns the number of buckets over which weights fall by a factor of 2. */
static double fill_buckets(rf_sampler_work *work, const rf_row *s) {
  float lowest = (float)s->top;
  for (int64_t i = 0; i < s->n; i++)
    if (s->logits[i] < lowest && s->logits[i] > -INFINITY) lowest = s->logits[i];
  double bits = (s->top - (double)lowest) * s->scale;
  /* The buckets cover weights down to 2^-96. Smaller weights are negligible. */
  double per_bit = (double)work->buckets / (bits > 0 ? (bits < 96 ? bits : 96) : 1);
  memset(work->tally, 0, (size_t)work->buckets * sizeof *work->tally);
  work->opened = -1;
  for (int64_t b = 0; b < work->blocks; b++) {
    const float *at = s->logits + b * BLOCK;
    double t[BLOCK], w[BLOCK];
    work->rows->weights(s, b, t, w);
    for (int64_t i = 0; i < BLOCK && b * BLOCK + i < s->n; i++) {
      if (at[i] > -INFINITY) {
        int64_t k = bucket_of(work, t[i], per_bit);
        work->bucket[b * BLOCK + i] = (uint16_t)k;
        work->tally[k].mass += w[i];
        work->tally[k].count++;
      } else {
        work->bucket[b * BLOCK + i] = BUCKETS;
      }
    }
  }
  return per_bit;
}

/* Sorts the tokens of one bucket into work->candidate and returns their number. */
static int64_t open_bucket(rf_sampler_work *work, const rf_row *s, int64_t bucket) {
  int64_t n = 0;
  if (work->opened == bucket || !work->tally[bucket].count) return work->tally[bucket].count;
  work->opened = bucket;
  for (int64_t i = 0; i < s->n; i++)
    if (work->bucket[i] == bucket) work->candidate[n++] = (candidate){s->logits[i], (int32_t)i};
  order_first(work->candidate, n, n);
  return n;
}

/* Draws the same token as draw_ordered, but does not sort the row. Sorts only the bucket with the
 * drawn token, and the buckets in which a filter stops. `limit`: top-k, or the vocabulary size. */
static int32_t draw_from_buckets(rf_sampler_work *work, const rf_row *s, const rf_sampler_options *o,
                                 int64_t limit, double uniform, int32_t best) {
  const candidate *c = work->candidate;
  double per_bit = fill_buckets(work, s), total = 0;
  int64_t last = 0, taken = 0;
  for (; last < work->buckets - 1 && taken + work->tally[last].count < limit; last++) {
    taken += work->tally[last].count;
    total += work->tally[last].mass;
  }
  /* Number of tokens that top-k keeps in its last bucket. */
  int64_t last_count = limit - taken < work->tally[last].count ? limit - taken : work->tally[last].count;
  if (last_count < work->tally[last].count) open_bucket(work, s, last);
  else total += work->tally[last].mass;
  for (int64_t i = 0; last_count < work->tally[last].count && i < last_count; i++)
    total += rf_row_weight(s, c[i].logit);

  filters f = {.need = o->top_p < 1 ? (double)o->top_p * total : INFINITY, .least = (double)o->min_p};
  int64_t floor_bucket =
      o->min_p > 0 ? bucket_of(work, log2((double)o->min_p) + 1e-9, per_bit) : work->buckets;
  /* Last bucket with kept tokens, and number of kept tokens in this bucket. */
  int64_t end = 0, end_count = 0;
  for (bool open = true; open && end <= last; end += open) {
    end_count = work->tally[end].count;
    if (end < last && end < floor_bucket && f.kept + work->tally[end].mass < f.need) {
      f.kept += work->tally[end].mass;
      continue;
    }
    int64_t n = open_bucket(work, s, end);
    if (end == last) n = last_count;
    for (end_count = 0; open && end_count < n; end_count += open) {
      double w = rf_row_weight(s, c[end_count].logit);
      open = !drops(&f, w);
      if (open) f.kept += w;
    }
  }

  double run = 0, target = uniform * f.kept;
  int32_t chosen = best;
  for (int64_t b = 0; b <= last && b <= end; b++) {
    if (b < end && b < last && run + work->tally[b].mass <= target) {
      run += work->tally[b].mass;
      continue;
    }
    int64_t n = open_bucket(work, s, b);
    if (b == end) n = end_count;
    else if (b == last) n = last_count;
    for (int64_t i = 0; i < n; i++) {
      double w = rf_row_weight(s, c[i].logit);
      run += w;
      if (w > 0) chosen = c[i].id;
      if (target < run) return chosen;
    }
  }
  return chosen;
}

double rf_sampler_uniform(uint64_t seed, int64_t position) { /* 64 bits of Philox */
  uint32_t words[4];
  rf_philox(rf_key(seed, rf_name_key("sampler"), 0), (uint64_t)position, 0, words);
  return ((double)words[0] + (double)words[1] * 0x1p-32) * 0x1p-32;
}

/* Draws from all tokens. `weighed`: see draw. */
static int32_t draw_unfiltered(rf_sampler_work *work, const rf_row *s, double uniform, double weighed) {
  double error, total = weighed;
  if (total <= 0) {
    total = guess_weights(work, s, &error);
    int32_t chosen = error > 0 ? draw_by_guess(work, s, uniform * total, error) : -1;
    if (chosen >= 0) return chosen;
    if (error > 0) total = weigh(work, s);
  }
  return draw_by_id(work, s, uniform * total);
}

/* `weighed` is the total weight of the row if work->block_weight is already filled, otherwise 0. */
static int32_t draw(rf_sampler_work *work, const rf_row *s, const rf_sampler_options *o, int64_t position,
                    double weighed, int32_t best) {
  double uniform = rf_sampler_uniform(o->seed, position), total = weighed, error = 0;
  int64_t limit = o->top_k > 0 && o->top_k < s->n ? o->top_k : s->n;
  bool whole = limit == s->n, filtered = o->top_p < 1 || o->min_p > 0, unsure;
  filters f = {.need = INFINITY, .least = (double)o->min_p};
  if (whole && !filtered) return draw_unfiltered(work, s, uniform, weighed);
  if (whole && total <= 0 && o->top_p < 1) total = guess_weights(work, s, &error);
  int64_t n = limit <= SORTED ? limit : GUESS;
  take_likeliest(work, s->logits, n);
  if (o->top_p < 1) {
    if (!whole) total = 0;
    for (int64_t i = 0; !whole && i < n; i++) total += rf_row_weight(s, work->candidate[i].logit);
    f.need = (double)o->top_p * total;
    f.unsure = 2 * error;
  }
  int32_t chosen = best;
  /* Top-p needs the total weight of all top-k tokens, and the first GUESS tokens are only a part of
   * these. */
  if (limit > SORTED && !whole && o->top_p < 1) return draw_from_buckets(work, s, o, limit, uniform, best);
  if (draw_ordered(s, work->candidate, n, f, uniform, n == limit, &chosen, &unsure)) return chosen;
  if (unsure) {
    f.need = (double)o->top_p * weigh(work, s);
    f.unsure = 0;
    if (draw_ordered(s, work->candidate, n, f, uniform, n == limit, &chosen, &unsure)) return chosen;
  }
  return draw_from_buckets(work, s, o, limit, uniform, best);
}

/* Replaces +INFINITY by the largest finite number, and NaN by -INFINITY. */
static float within(float logit) { return logit <= FLT_MAX ? logit : logit > FLT_MAX ? FLT_MAX : -INFINITY; }

static bool penalizes(const rf_sampler_options *o) {
  return (o->repetition_penalty > 0 && o->repetition_penalty != 1) || o->frequency_penalty != 0 ||
         o->presence_penalty != 0;
}

bool rf_sampler_adjusts(const rf_sampler_options *o) {
  return penalizes(o) || o->bias_count > 0 || o->constraint;
}

bool rf_sampler_bars_eos(const rf_sampler_options *o, int64_t generated) {
  return o->eos_count > 0 && (o->ignore_eos || generated < o->min_tokens);
}

/* Sets the logits of all tokens that the constraint forbids to -INFINITY. An end id is never part
 * of the text, so an end id is allowed exactly where the text may end. */
static rf_status apply_constraint(rf_sampler *sampler, float *row, bool bars, rf_error *error) {
  const rf_sampler_options *o = &sampler->options;
  bool ends, only;
  RF_TRY(rf_constrained_mask(&sampler->form, sampler->allowed, &ends, &only, error));
  bool may = ends && (only || !bars);
  for (int64_t i = 0; i < o->eos_count; i++) {
    uint64_t bit = (uint64_t)1 << (o->eos[i] & 63), *word = &sampler->allowed[o->eos[i] >> 6];
    *word = may ? *word | bit : *word & ~bit;
  }
  for (int64_t w = 0; w * 64 < sampler->vocab; w++) {
    uint64_t word = sampler->allowed[w];
    int64_t first = w * 64, here = sampler->vocab - first < 64 ? sampler->vocab - first : 64;
    if (word == ~(uint64_t)0) continue;
    for (int64_t i = 0; i < here && !word; i++) row[first + i] = -INFINITY;
    for (int64_t i = 0; i < here && word; i++) row[first + i] = word >> i & 1 ? row[first + i] : -INFINITY;
  }
  return RAFTER_OK;
}

/* Sets *adjusted to a copy of the row with biases, penalties and barred ids. If nothing changes the
 * row, sets *adjusted to the row itself. */
static rf_status adjust(rf_sampler *sampler, const float *logits, const float **adjusted, rf_error *error) {
  const rf_sampler_options *o = &sampler->options;
  bool penalties = penalizes(o) && sampler->touched_count, bars = rf_sampler_bars_eos(o, sampler->generated);
  *adjusted = logits;
  if (!penalties && !bars && !o->bias_count && !o->constraint) return RAFTER_OK;
  float *row = sampler->work->adjusted, repetition = o->repetition_penalty > 0 ? o->repetition_penalty : 1;
  memcpy(row, logits, (size_t)sampler->vocab * sizeof *row);
  for (int64_t i = 0; i < o->bias_count; i++)
    row[o->bias[i].id] = within(row[o->bias[i].id] + o->bias[i].bias);
  for (int64_t i = 0; penalties && i < sampler->touched_count; i++) {
    int32_t id = sampler->touched[i];
    uint32_t times = sampler->seen[id] & ~RF_SEEN_PROMPT;
    float x = row[id];
    x = within(x < 0 ? x * repetition : x / repetition);
    if (times) x = within(within(x - o->frequency_penalty * (float)times) - o->presence_penalty);
    row[id] = x;
  }
  *adjusted = row;
  if (o->constraint) return apply_constraint(sampler, row, bars, error);
  for (int64_t i = 0; bars && i < o->eos_count; i++) row[o->eos[i]] = -INFINITY;
  return RAFTER_OK;
}

rf_status rf_sampler_work_open(int64_t vocab, rf_sampler_work **out, rf_error *error) {
  *out = NULL;
  if (vocab < 1 || vocab > INT32_MAX)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "the size of the vocabulary is out of range (expected 1 to %d tokens, got %lld)",
                   INT32_MAX, (long long)vocab);
  rf_sampler_work *work = calloc(1, sizeof *work);
  if (!work) goto failed;
  work->vocab = vocab;
  work->rows = rf_row_functions_of(rf_isa_detect());
  work->blocks = (vocab + BLOCK - 1) / BLOCK;
  work->buckets = vocab / 64 < 64 ? 64 : vocab / 64 < BUCKETS ? vocab / 64 : BUCKETS;
  work->candidate = malloc((size_t)vocab * sizeof *work->candidate);
  work->peak = malloc((size_t)work->blocks * sizeof *work->peak);
  work->peak_order = malloc((size_t)work->blocks * sizeof *work->peak_order);
  work->block_weight = malloc((size_t)work->blocks * sizeof *work->block_weight);
  work->adjusted = malloc((size_t)vocab * sizeof *work->adjusted);
  work->bucket = malloc((size_t)vocab * sizeof *work->bucket);
  work->tally = malloc((size_t)work->buckets * sizeof *work->tally);
  if (!work->candidate || !work->peak || !work->peak_order || !work->block_weight || !work->adjusted ||
      !work->bucket || !work->tally)
    goto failed;
  *out = work;
  return RAFTER_OK;
failed:
  rf_sampler_work_close(work);
  return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a sampler of %lld tokens",
                 (long long)vocab);
}

void rf_sampler_work_limit(rf_sampler_work *work, rf_isa isa) {
  if (rf_isa_runs(isa)) work->rows = rf_row_functions_of(isa);
}

void rf_sampler_work_close(rf_sampler_work *work) {
  if (!work) return;
  free(work->candidate);
  free(work->peak);
  free(work->peak_order);
  free(work->block_weight);
  free(work->adjusted);
  free(work->bucket);
  free(work->tally);
  free(work);
}

rf_status rf_sampler_check(const rf_sampler_options *o, int64_t vocab, rf_error *error) {
  const struct {
    const char *name;
    float value, least, most;
  } numbers[] = {
      {"temperature", o->temperature, -FLT_MAX, FLT_MAX},
      {"top_p", o->top_p, 0, FLT_MAX},
      {"min_p", o->min_p, -FLT_MAX, FLT_MAX},
      {"repetition_penalty", o->repetition_penalty, 0, FLT_MAX},
      {"frequency_penalty", o->frequency_penalty, -FLT_MAX, FLT_MAX},
      {"presence_penalty", o->presence_penalty, -FLT_MAX, FLT_MAX},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (!(numbers[i].value >= numbers[i].least && numbers[i].value <= numbers[i].most))
      return RF_FAIL(error, RAFTER_INVALID, NULL,
                     "%s is out of range (expected a number of at least %g, got %g)", numbers[i].name,
                     (double)numbers[i].least, (double)numbers[i].value);
  if (o->bias_count < 0 || o->eos_count < 0 || (o->bias_count && !o->bias) || (o->eos_count && !o->eos))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "a list of token ids has a length but no ids");
  for (int64_t i = 0; i < o->bias_count; i++) {
    if (o->bias[i].id < 0 || o->bias[i].id >= vocab)
      return RF_FAIL(error, RAFTER_INVALID, NULL,
                     "the token of a logit bias is out of range (expected 0 to %lld, got %d)",
                     (long long)vocab - 1, o->bias[i].id);
    if (!(o->bias[i].bias <= FLT_MAX))
      return RF_FAIL(error, RAFTER_INVALID, NULL,
                     "the logit bias of token %d is out of range (expected -inf or a finite number, got %g)",
                     o->bias[i].id, (double)o->bias[i].bias);
  }
  if (o->constraint && (!o->eos_count || rf_constraint_vocab(o->constraint) != vocab))
    return RF_FAIL(error, RAFTER_INVALID, "give the model's end ids",
                   "an answer with a form needs end ids and a form of the model's vocabulary");
  for (int64_t i = 0; i < o->eos_count; i++)
    if (o->eos[i] < 0 || o->eos[i] >= vocab)
      return RF_FAIL(error, RAFTER_INVALID, NULL, "a stop id is out of range (expected 0 to %lld, got %d)",
                     (long long)vocab - 1, o->eos[i]);
  return RAFTER_OK;
}

static rf_sampler_options with_defaults(const rf_sampler_options *options) {
  rf_sampler_options o = *options;
  if (o.top_p == 0) o.top_p = 1;
  return o;
}

rf_status rf_sampler_open_with(const rf_sampler_options *options, rf_sampler_work *work, rf_sampler *sampler,
                               rf_error *error) {
  *sampler = (rf_sampler){
      .options = with_defaults(options), .vocab = work->vocab, .work = work, .candidate = work->candidate};
  RF_TRY(rf_sampler_check(options, work->vocab, error));
  sampler->seen = calloc((size_t)work->vocab, sizeof *sampler->seen);
  sampler->touched = malloc((size_t)work->vocab * sizeof *sampler->touched);
  sampler->allowed = malloc((size_t)(work->vocab / 64 + 1) * sizeof *sampler->allowed);
  if (sampler->seen && sampler->touched && sampler->allowed) {
    rf_constrained_begin(&sampler->form, options->constraint);
    return RAFTER_OK;
  }
  rf_sampler_close(sampler);
  return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a sampler of %lld tokens",
                 (long long)work->vocab);
}

rf_status rf_sampler_open(const rf_sampler_options *options, int64_t vocab, rf_sampler *sampler,
                          rf_error *error) {
  *sampler = (rf_sampler){0};
  rf_sampler_work *work;
  RF_TRY(rf_sampler_work_open(vocab, &work, error));
  rf_status status = rf_sampler_open_with(options, work, sampler, error);
  if (status != RAFTER_OK) {
    rf_sampler_work_close(work);
    *sampler = (rf_sampler){0};
  } else sampler->owns_work = true;
  return status;
}

void rf_sampler_close(rf_sampler *sampler) {
  if (sampler->owns_work) rf_sampler_work_close(sampler->work);
  free(sampler->seen);
  free(sampler->touched);
  free(sampler->allowed);
  rf_constrained_begin(&sampler->form, NULL);
  *sampler = (rf_sampler){0};
}

void rf_sampler_use(rf_sampler *sampler, rf_sampler_work *work) {
  sampler->work = work;
  sampler->candidate = work->candidate;
}

rf_status rf_sampler_reset(rf_sampler *sampler, const rf_sampler_options *options, rf_error *error) {
  RF_TRY(rf_sampler_check(options, sampler->vocab, error));
  for (int64_t i = 0; i < sampler->touched_count; i++) sampler->seen[sampler->touched[i]] = 0;
  sampler->touched_count = sampler->generated = 0;
  sampler->options = with_defaults(options);
  sampler->form_ended = false;
  rf_constrained_begin(&sampler->form, options->constraint);
  return RAFTER_OK;
}

static rf_status check_id(int64_t vocab, int32_t id, rf_error *error) {
  if (id >= 0 && id < vocab) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, NULL, "token out of range (expected an id from 0 to %lld, got %d)",
                 (long long)vocab - 1, id);
}

rf_status rf_sampler_prompt(rf_sampler *sampler, const int32_t *tokens, int64_t count, rf_error *error) {
  for (int64_t i = 0; i < count; i++) {
    RF_TRY(check_id(sampler->vocab, tokens[i], error));
    if (!sampler->seen[tokens[i]]) sampler->touched[sampler->touched_count++] = tokens[i];
    sampler->seen[tokens[i]] |= RF_SEEN_PROMPT;
  }
  return RAFTER_OK;
}

/* Advances the form by one token. An end id adds no text to the form. */
static rf_status follow_form(rf_sampler *sampler, int32_t id, rf_error *error) {
  const rf_sampler_options *o = &sampler->options;
  for (int64_t i = 0; i < o->eos_count; i++) sampler->form_ended |= o->eos[i] == id;
  return sampler->form_ended ? RAFTER_OK : rf_constrained_accept(&sampler->form, id, error);
}

rf_status rf_sampler_accept(rf_sampler *sampler, int32_t id, rf_error *error) {
  RF_TRY(check_id(sampler->vocab, id, error));
  if (!sampler->seen[id]) sampler->touched[sampler->touched_count++] = id;
  if ((sampler->seen[id] & ~RF_SEEN_PROMPT) < ~RF_SEEN_PROMPT) sampler->seen[id]++;
  sampler->generated++;
  return sampler->form.of ? follow_form(sampler, id, error) : RAFTER_OK;
}

rf_status rf_sampler_check_sum(double log_sum, rf_error *error) {
  if (isfinite(log_sum)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, NULL,
                 "the logits are not finite (log-sum-exp: expected a finite number, got %g)", log_sum);
}

/* Finds the maxima of the blocks, the log-sum-exp at temperature 1 and the alternatives. Sets
 * *total to the total weight of the row. If the caller has given the log-sum-exp, sets *total to 0,
 * and does not fill work->block_weight. */
static rf_status read_row(rf_sampler_work *work, const float *logits, rf_logprobs *out, int32_t *best,
                          double *log_sum, double *total, rf_error *error) {
  *best = find_peaks(work, logits);
  rf_row plain = {logits, work->vocab, (double)logits[*best], LOG2E};
  *total = out->lse ? 0 : weigh(work, &plain);
  *log_sum = out->lse ? (double)*out->lse : plain.top + log(*total);
  out->count = 0;
  out->logprob = NAN;
  RF_TRY(rf_sampler_check_sum(*log_sum, error));
  if (out->wanted <= 0) return RAFTER_OK;
  int64_t n = out->wanted < RF_TOP_LOGPROBS ? out->wanted : RF_TOP_LOGPROBS;
  if (n > work->vocab) n = work->vocab;
  take_likeliest(work, logits, n);
  for (int64_t i = 0; i < n && work->candidate[i].logit > -INFINITY; i++, out->count++) {
    out->ids[i] = work->candidate[i].id;
    out->logprobs[i] = (double)work->candidate[i].logit - *log_sum;
  }
  return RAFTER_OK;
}

rf_status rf_sampler_choose(rf_sampler *sampler, const float *logits, int64_t position, int32_t *id,
                            rf_logprobs *logprobs, rf_error *error) {
  const rf_sampler_options *o = &sampler->options;
  double log_sum, total;
  RF_TRY(read_row(sampler->work, logits, logprobs, id, &log_sum, &total, error));
  const float *row;
  RF_TRY(adjust(sampler, logits, &row, error));
  int32_t likeliest = row == logits ? *id : find_peaks(sampler->work, row);
  rf_row s = {row, sampler->vocab, (double)row[likeliest],
              o->temperature > 0 ? LOG2E / (double)o->temperature : LOG2E};
  if (!(row[likeliest] > -INFINITY)) {
    logprobs->logprob = NAN;
    return RF_FAIL(error, RAFTER_INVALID, "bar fewer tokens, or raise their logit bias",
                   "every token is barred (expected at least one of %lld to be allowed)",
                   (long long)sampler->vocab);
  }
  *id = likeliest;
  if (o->temperature > 0)
    *id = draw(sampler->work, &s, o, position, row == logits && o->temperature == 1 ? total : 0, likeliest);
  logprobs->logprob = (double)logits[*id] - log_sum;
  return RAFTER_OK;
}
