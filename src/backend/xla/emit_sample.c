/* emit_sample.c - the emitter of `sample`. No row is sorted. Bisection over the bits of a logit
 * finds the token at which a sum over the most likely tokens reaches a target. Each of the 32
 * rounds is one pass over the row. If loops are slow, a round finds four bits, and the program has
 * no loop. */
#include "backend/xla/emit.h"

#include <math.h>

enum { LANES = 128, BITS = 32, DIGIT = 4, DIGITS = (1 << DIGIT) - 1 };

/* Rows of logits as (R,C,LANES), so that sums run along C for all lanes at once. The unused lanes
 * at the end of a row have key 0 and weight 0. All other keys are larger than 0. */
typedef struct rows {
  rf_val key;    /* u32: keys have the same order as the logits */
  rf_val weight; /* f32: exp((z - largest z) / temperature) */
  rf_val number; /* i32: the token */
  int64_t count, vocab;
  bool unrolled; /* true: rounds of four bits instead of loops */
} rows;

/* Repeats a value per row (R) for every element of the row. */
static rf_val everywhere(rf_hlo *h, const rows *r, rf_val v) {
  return rf_hlo_broadcast(h, v, (const int[]){0}, r->key.rank, r->key.dim);
}

static rf_val total(rf_hlo *h, rf_val v) {
  return rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_reduce(h, RF_HLO_SUM, v, 1), 1);
}

/* The sum of v over the elements whose `which` compares with the row's bound as `order` says. */
static rf_val sum_where(rf_hlo *h, const rows *r, rf_val which, rf_hlo_order order, rf_val bound, rf_val v) {
  rf_val in = rf_hlo_compare(h, order, which, everywhere(h, r, bound));
  return total(h, rf_hlo_select(h, in, v, rf_hlo_scalar(h, RF_HLO_F32, 0)));
}

/* Does the same for DIGITS bounds per row, (R,DIGITS): returns the sums (R,DIGITS). */
static rf_val sums_where(rf_hlo *h, const rows *r, rf_val which, rf_hlo_order order, rf_val bound, rf_val v) {
  const int64_t *dim = r->key.dim, all[4] = {dim[0], DIGITS, dim[1], dim[2]};
  rf_val in = rf_hlo_compare(h, order, rf_hlo_broadcast(h, which, (const int[]){0, 2, 3}, 4, all),
                             rf_hlo_broadcast(h, bound, (const int[]){0, 1}, 4, all));
  v = rf_hlo_select(h, in, rf_hlo_broadcast(h, v, (const int[]){0, 2, 3}, 4, all),
                    rf_hlo_scalar(h, RF_HLO_F32, 0));
  return rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_reshape(h, v, RF_DIMS(dim[0], DIGITS, dim[1] * dim[2])), 2);
}

/* The first function repeats a vector (R) as (R,DIGITS). The second function gives the numbers 1 to
 * DIGITS as (R,DIGITS). */
static rf_val for_digits(rf_hlo *h, rf_val v) {
  return rf_hlo_broadcast(h, v, (const int[]){0}, RF_DIMS(v.dim[0], DIGITS));
}
static rf_val digits(rf_hlo *h, const rows *r) {
  return rf_hlo_add_c(h, rf_hlo_iota(h, RF_HLO_I32, 1, RF_DIMS(r->count, DIGITS)), 1);
}

/* The number of flags (R,DIGITS) that are set in each row, i32 (R). */
static rf_val count_of(rf_hlo *h, rf_val flag) {
  return rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_convert(h, flag, RF_HLO_I32), 1);
}

/* Number of rounds of a loop: `rounds` if any row needs the loop, otherwise 0. */
static rf_val rounds_if(rf_hlo *h, rf_val needed, int rounds) {
  rf_val many = rf_hlo_scalar(h, RF_HLO_I32, rounds), none = rf_hlo_scalar(h, RF_HLO_I32, 0);
  return rf_hlo_reduce_all(h, RF_HLO_MAX, rf_hlo_select(h, needed, many, none));
}

/* As key_at. The sums decrease from digit to digit, so the digit is the number of sums that reach
 * the target. */
static rf_val key_by_digits(rf_hlo *h, const rows *r, rf_val v, rf_hlo_order order, rf_val target) {
  rf_val key = rf_hlo_full(h, RF_HLO_U32, 0, RF_DIMS(r->count));
  for (int at = BITS - DIGIT; at >= 0; at -= DIGIT) {
    rf_val place = rf_hlo_scalar_u64(h, RF_HLO_U32, (uint64_t)at),
           digit = rf_hlo_bitcast(h, digits(h, r), RF_HLO_U32),
           tried = rf_hlo_or(h, for_digits(h, key), rf_hlo_shift_left(h, digit, place)),
           sum = sums_where(h, r, r->key, RF_HLO_GE, tried, v),
           found = count_of(h, rf_hlo_compare(h, order, sum, for_digits(h, target)));
    key = rf_hlo_or(h, key, rf_hlo_shift_left(h, rf_hlo_bitcast(h, found, RF_HLO_U32), place));
  }
  return key;
}

/* For each row, sums v over the elements with a key or a larger key. Returns the largest key whose
 * sum is at least `target` (RF_HLO_GE), or more than `target` (RF_HLO_GT). */
static rf_val key_at(rf_hlo *h, const rows *r, rf_val v, rf_hlo_order order, rf_val target, rf_val needed) {
  if (r->unrolled) return key_by_digits(h, r, v, order, target);
  rf_val key = rf_hlo_full(h, RF_HLO_U32, 0, RF_DIMS(r->count));
  rf_hlo_loop loop;
  rf_hlo_loop_begin_to(h, &loop, rounds_if(h, needed, BITS), &key, 1);
  rf_val place = rf_hlo_subtract(h, rf_hlo_scalar(h, RF_HLO_I32, BITS - 1), loop.i),
         bit =
             rf_hlo_shift_left(h, rf_hlo_scalar_u64(h, RF_HLO_U32, 1), rf_hlo_convert(h, place, RF_HLO_U32)),
         tried = rf_hlo_or(h, key, bit), sum = sum_where(h, r, r->key, RF_HLO_GE, tried, v);
  key = rf_hlo_select(h, rf_hlo_compare(h, order, sum, target), tried, key);
  rf_hlo_loop_end(h, &loop, &key);
  return key;
}

/* As token_at. The sums increase from digit to digit. */
static rf_val token_by_digits(rf_hlo *h, const rows *r, rf_val v, rf_val target, int bits) {
  rf_val token = rf_hlo_full(h, RF_HLO_I32, 0, RF_DIMS(r->count));
  for (int at = (bits - 1) / DIGIT * DIGIT; at >= 0; at -= DIGIT) {
    rf_val place = rf_hlo_scalar(h, RF_HLO_I32, at),
           tried = rf_hlo_or(h, for_digits(h, token), rf_hlo_shift_left(h, digits(h, r), place)),
           sum = sums_where(h, r, r->number, RF_HLO_LT, tried, v),
           below = rf_hlo_and(h, rf_hlo_compare(h, RF_HLO_LE, sum, for_digits(h, target)),
                              rf_hlo_compare_c(h, RF_HLO_LT, tried, (double)r->vocab));
    token = rf_hlo_or(h, token, rf_hlo_shift_left(h, count_of(h, below), place));
  }
  return token;
}

/* For each row, the first token at which the sum of v, in the order of tokens, exceeds `target`. */
static rf_val token_at(rf_hlo *h, const rows *r, rf_val v, rf_val target, rf_val needed) {
  rf_val token = rf_hlo_full(h, RF_HLO_I32, 0, RF_DIMS(r->count));
  int bits = 1;
  while (1 << bits < r->vocab) bits++;
  if (r->unrolled) return token_by_digits(h, r, v, target, bits);
  rf_hlo_loop loop;
  rf_hlo_loop_begin_to(h, &loop, rounds_if(h, needed, bits), &token, 1);
  rf_val place = rf_hlo_subtract(h, rf_hlo_scalar(h, RF_HLO_I32, bits - 1), loop.i),
         tried = rf_hlo_or(h, token, rf_hlo_shift_left(h, rf_hlo_scalar(h, RF_HLO_I32, 1), place)),
         sum = sum_where(h, r, r->number, RF_HLO_LT, tried, v);
  rf_val below = rf_hlo_and(h, rf_hlo_compare(h, RF_HLO_LE, sum, target),
                            rf_hlo_compare_c(h, RF_HLO_LT, tried, (double)r->vocab));
  token = rf_hlo_select(h, below, tried, token);
  rf_hlo_loop_end(h, &loop, &token);
  return token;
}

/* Logits as (R,C,LANES), filled up with -inf. */
static rf_val in_lanes(rf_hlo *h, rf_val z) {
  int64_t count = z.dim[0], vocab = z.dim[1], padded = (vocab + LANES - 1) / LANES * LANES;
  if (padded > vocab) z = rf_hlo_pad(h, z, 1, 0, padded - vocab, -(double)INFINITY);
  return rf_hlo_reshape(h, z, RF_DIMS(count, padded / LANES, LANES));
}

/* The u32 keys have the same order as the f32 values. -0 and 0 have the same key. */
static rf_val keys_of(rf_hlo *h, rf_val z) {
  rf_val zero = rf_hlo_scalar(h, RF_HLO_F32, 0),
         bits =
             rf_hlo_bitcast(h, rf_hlo_select(h, rf_hlo_compare(h, RF_HLO_EQ, z, zero), zero, z), RF_HLO_U32),
         sign = rf_hlo_scalar_u64(h, RF_HLO_U32, 0x80000000u),
         all = rf_hlo_scalar_u64(h, RF_HLO_U32, 0xffffffffu);
  return rf_hlo_select(h, rf_hlo_compare(h, RF_HLO_LT, z, zero), rf_hlo_xor(h, bits, all),
                       rf_hlo_or(h, bits, sign));
}

/* Sets the barred tokens (R,E) of z (R,V) to -inf. */
static rf_val without_barred(rf_hlo *h, rf_val z, rf_val barred) {
  int64_t count = barred.dim[0], ends = barred.dim[1];
  rf_val row = rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(count, ends, 1)),
         pair[2] = {row, rf_hlo_reshape(h, barred, RF_DIMS(count, ends, 1))},
         gone = rf_hlo_full(h, RF_HLO_F32, -(double)INFINITY, RF_DIMS(count, ends));
  return rf_hlo_scatter(h, z, rf_hlo_concatenate(h, 2, 2, pair), gone, 2, (const int[]){0, 1}, false, false);
}

static rf_val rule(rf_hlo *h, rf_val rules, int which) {
  return rf_hlo_reshape(h, rf_hlo_slice(h, rules, 1, which, which + 1), RF_DIMS(rules.dim[0]));
}

static rf_val is_more(rf_hlo *h, rf_val a, double c) { return rf_hlo_compare_c(h, RF_HLO_GT, a, c); }
static rf_val at_least_one(rf_hlo *h, rf_val a) { return rf_hlo_maximum_c(h, a, 1); }

/* Weights v of the tokens before a cut. `all` tokens have the key of the cut, and `some` of these
 * tokens are before the cut. Tokens with the same key have equal weights, so each token with the
 * key of the cut gets the fraction some / all of its weight. Tokens with larger keys keep their
 * weight. */
static rf_val before_cut(rf_hlo *h, const rows *r, rf_val v, rf_val cut, rf_val some, rf_val all) {
  rf_val key = everywhere(h, r, cut), zero = rf_hlo_scalar(h, RF_HLO_F32, 0),
         part = rf_hlo_multiply(h, v, everywhere(h, r, rf_hlo_divide(h, some, all)));
  return rf_hlo_select(h, rf_hlo_compare(h, RF_HLO_GT, r->key, key), v,
                       rf_hlo_select(h, rf_hlo_compare(h, RF_HLO_EQ, r->key, key), part, zero));
}

/* The weights after top-k, which keeps the k (R) most likely tokens of a filtered row. */
static rf_val keep_k(rf_hlo *h, const rows *r, rf_val k, rf_val filtered) {
  rf_val one = rf_hlo_full_like(h, r->weight, 1), real = rf_hlo_compare_c(h, RF_HLO_GT, r->key, 0);
  one = rf_hlo_select(h, real, one, rf_hlo_scalar(h, RF_HLO_F32, 0));
  rf_val cut = key_at(h, r, one, RF_HLO_GE, k, filtered),
         above = sum_where(h, r, r->key, RF_HLO_GT, cut, one),
         at = at_least_one(h, sum_where(h, r, r->key, RF_HLO_EQ, cut, one));
  rf_val kept = before_cut(h, r, r->weight, cut, rf_hlo_subtract(h, k, above), at);
  return rf_hlo_select(h, everywhere(h, r, filtered), kept, r->weight);
}

static rf_val round_up(rf_hlo *h, rf_val a) {
  rf_val whole = rf_hlo_convert(h, rf_hlo_convert(h, a, RF_HLO_I32), RF_HLO_F32),
         more = rf_hlo_select(h, rf_hlo_compare(h, RF_HLO_LT, whole, a), rf_hlo_scalar(h, RF_HLO_F32, 1),
                              rf_hlo_scalar(h, RF_HLO_F32, 0));
  return rf_hlo_add(h, whole, more);
}

/* A key, the number of tokens with this key, and the weight of one such token. */
typedef struct cut {
  rf_val key, count, weight;
} cut;
static cut cut_of(rf_hlo *h, const rows *r, rf_val key) {
  rf_val one = rf_hlo_full_like(h, r->weight, 1), count = sum_where(h, r, r->key, RF_HLO_EQ, key, one),
         sum = sum_where(h, r, r->key, RF_HLO_EQ, key, r->weight);
  count = at_least_one(h, count);
  return (cut){key, count, rf_hlo_divide(h, sum, count)};
}

/* Returns sum / weight, which is the number of tokens of equal weight in the sum. A weight of 0
 * gives 0. */
static rf_val tokens_in(rf_hlo *h, rf_val sum, rf_val weight) {
  return rf_hlo_divide(h, sum, rf_hlo_maximum_c(h, weight, 1e-37));
}

static rf_val keep_p(rf_hlo *h, const rows *r, rf_val kept, rf_val p, rf_val filtered) {
  rf_val need = rf_hlo_multiply(h, p, total(h, kept));
  cut c = cut_of(h, r, key_at(h, r, kept, RF_HLO_GE, need, filtered));
  rf_val above = sum_where(h, r, r->key, RF_HLO_GT, c.key, kept),
         some = round_up(h, tokens_in(h, rf_hlo_subtract(h, need, above), c.weight)),
         before = tokens_in(h, sum_where(h, r, r->key, RF_HLO_EQ, c.key, kept), c.weight);
  some = rf_hlo_minimum(h, at_least_one(h, some), before);
  return rf_hlo_select(h, everywhere(h, r, filtered), before_cut(h, r, r->weight, c.key, some, c.count),
                       kept);
}

static rf_val keep_min(rf_hlo *h, const rows *r, rf_val kept, rf_val least) {
  least = everywhere(h, r, rf_hlo_minimum(h, least, rf_hlo_scalar(h, RF_HLO_F32, 1)));
  rf_val enough = rf_hlo_compare(h, RF_HLO_GE, r->weight, least);
  return rf_hlo_select(h, enough, kept, rf_hlo_scalar(h, RF_HLO_F32, 0));
}

/* Finds the first token at which the sum of kept weights, in descending order, exceeds `target`.
 * Sets *key to the key of this token, and *which to its number among the tokens with this key. */
static void draw_ordered(rf_hlo *h, const rows *r, rf_val kept, rf_val target, rf_val needed, rf_val *key,
                         rf_val *which) {
  *key = key_at(h, r, kept, RF_HLO_GT, target, needed);
  cut c = cut_of(h, r, *key);
  rf_val above = sum_where(h, r, r->key, RF_HLO_GT, *key, kept),
         count = tokens_in(h, sum_where(h, r, r->key, RF_HLO_EQ, *key, kept), c.weight),
         place = tokens_in(h, rf_hlo_subtract(h, target, above), c.weight);
  rf_val last = rf_hlo_maximum_c(h, rf_hlo_add_c(h, count, -0.5), 0);
  place = rf_hlo_maximum_c(h, rf_hlo_minimum(h, place, last), 0);
  *which = rf_hlo_convert(h, rf_hlo_convert(h, place, RF_HLO_I32), RF_HLO_F32);
}

/* The first token of each row of z (R,C,LANES) that has the largest logit of the row. */
static rf_val best_token(rf_hlo *h, const rows *r, rf_val z, rf_val most) {
  rf_val is = rf_hlo_compare(h, RF_HLO_EQ, z, everywhere(h, r, most)),
         last = rf_hlo_scalar(h, RF_HLO_I32, (double)(r->vocab - 1)),
         token = rf_hlo_select(h, is, r->number, last);
  return rf_hlo_reduce(h, RF_HLO_MIN, rf_hlo_reduce(h, RF_HLO_MIN, token, 1), 1);
}

/* uniform * sum of v, but less than the sum, so that a token of weight 0 is never drawn. Without a
 * loop, the compiler may add partial sums in a different order from the sum, so the margin is
 * larger. */
static rf_val target_of(rf_hlo *h, const rows *r, rf_val rules, rf_val v) {
  rf_val sum = total(h, v), target = rf_hlo_multiply(h, rule(h, rules, RF_RULE_UNIFORM), sum);
  return rf_hlo_minimum(h, target, rf_hlo_multiply_c(h, sum, r->unrolled ? 1 - 0x1p-18 : 1 - 0x1p-23));
}

/* The same as `draw` if no row has top-k, top-p or min-p. */
static rf_val draw_from_all(rf_hlo *h, const rows *r, rf_val rules, rf_val sampled) {
  return token_at(h, r, r->weight, target_of(h, r, rules, r->weight), sampled);
}

/* The drawn token of each row whose temperature is not 0. */
static rf_val draw(rf_hlo *h, const rows *r, rf_val rules, rf_val sampled) {
  rf_val k = rule(h, rules, RF_RULE_TOP_K), p = rule(h, rules, RF_RULE_TOP_P),
         least = rule(h, rules, RF_RULE_MIN_P), all = rf_hlo_scalar(h, RF_HLO_F32, (double)r->vocab);
  rf_val by_k = rf_hlo_and(h, is_more(h, k, 0), rf_hlo_compare(h, RF_HLO_LT, k, all)),
         by_p = rf_hlo_compare_c(h, RF_HLO_LT, p, 1), by_min = is_more(h, least, 0),
         filtered = rf_hlo_and(h, sampled, rf_hlo_or(h, by_k, rf_hlo_or(h, by_p, by_min)));
  by_k = rf_hlo_and(h, by_k, sampled);
  by_p = rf_hlo_and(h, by_p, sampled);
  rf_val kept = keep_k(h, r, rf_hlo_select(h, by_k, k, all), by_k);
  kept = keep_min(h, r, keep_p(h, r, kept, p, by_p), least);
  rf_val target = target_of(h, r, rules, kept), key, which, one = rf_hlo_full_like(h, r->weight, 1),
         zero = rf_hlo_scalar(h, RF_HLO_F32, 0);
  draw_ordered(h, r, kept, target, filtered, &key, &which);
  rf_val equal = rf_hlo_compare(h, RF_HLO_EQ, r->key, everywhere(h, r, key)),
         ordered = everywhere(h, r, filtered),
         v = rf_hlo_select(h, ordered, rf_hlo_select(h, equal, one, zero), r->weight);
  return token_at(h, r, v, rf_hlo_select(h, filtered, which, target), sampled);
}

static void emit_sample(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val logits = rf_emit_wide(e, op, 0), lse = rf_emit_wide(e, op, 1), rules = rf_emit_wide(e, op, 2),
         z = in_lanes(h, without_barred(h, logits, rf_emit_in(e, op, 3)));
  rows r = {
      .key = keys_of(h, z), .count = logits.dim[0], .vocab = logits.dim[1], .unrolled = e->target.known};
  rf_val chunk = rf_hlo_multiply_c(h, rf_hlo_iota(h, RF_HLO_I32, 1, z.rank, z.dim), LANES);
  r.number = rf_hlo_add(h, chunk, rf_hlo_iota(h, RF_HLO_I32, 2, z.rank, z.dim));
  /* these keys are the keys of the unused lanes at the end of a row */
  rf_val real = rf_hlo_compare_c(h, RF_HLO_LT, r.number, (double)r.vocab),
         none = rf_hlo_scalar(h, RF_HLO_U32, 0);
  r.key = rf_hlo_select(h, real, r.key, none);
  rf_val temperature = rule(h, rules, RF_RULE_TEMPERATURE), sampled = is_more(h, temperature, 0),
         most = rf_hlo_reduce(h, RF_HLO_MAX, rf_hlo_reduce(h, RF_HLO_MAX, z, 1), 1),
         finite = rf_hlo_maximum_c(h, most, -1e30);
  rf_val chosen = best_token(h, &r, z, most);
  if (!e->known.greedy) {
    temperature = rf_hlo_select(h, sampled, temperature, rf_hlo_scalar(h, RF_HLO_F32, 1));
    r.weight = rf_hlo_exponential(h, rf_hlo_divide(h, rf_hlo_subtract(h, z, everywhere(h, &r, finite)),
                                                   everywhere(h, &r, temperature)));
    rf_val drawn = e->known.unfiltered ? draw_from_all(h, &r, rules, sampled) : draw(h, &r, rules, sampled);
    chosen = rf_hlo_select(h, sampled, drawn, chosen);
  }
  rf_val pair[2] = {rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(r.count, 1)),
                    rf_hlo_reshape(h, chosen, RF_DIMS(r.count, 1))},
         value = rf_hlo_gather(h, logits, rf_hlo_concatenate(h, 1, 2, pair), 2, (const int[]){0, 1});
  rf_emit_out(e, op, 0, chosen);
  rf_emit_out(e, op, 1, rf_hlo_subtract(h, value, lse));
}

const rf_emitter RF_EMIT_SAMPLE[] = {{&RF_OP_SAMPLE, emit_sample, NULL}, {0}};
