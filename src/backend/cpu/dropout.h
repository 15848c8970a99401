/* dropout.h - computes which of sixteen consecutive channels of a token dropout keeps. Philox runs
 * four counters at once, and gives the same words as the scalar rf_philox on every ISA. */
#ifndef RF_DROPOUT_H
#define RF_DROPOUT_H

#include "backend/kernel.h"
#include "backend/cpu/simd.h"

/* The dropout of one op in one step. A channel is kept if rf_uniform(word) >= p. rf_uniform(word)
 * is a multiple of 2^-24, so kernels can compare integers instead: word >= threshold. */
typedef struct rf_dropout {
  uint64_t key;
  uint32_t round_key[10][2]; /* key of each round of Philox, as two 32-bit words */
  uint32_t threshold;
  float scale;  /* 1 / (1 - p) */
  int64_t step; /* token index of a row minus token index of the row before */
  bool active;  /* p > 0 */
} rf_dropout;

RF_INLINE rf_dropout rf_dropout_of(const rf_call *call) {
  float p = call->op->attr.dropout.rate;
  if (!(p > 0.0f)) return (rf_dropout){.scale = 1.0f};
  rf_dropout drop = {
      .threshold = (uint32_t)ceilf(p * 0x1p24f) << 8, .scale = 1.0f / (1.0f - p), .active = true};
  drop.step = call->op->attr.dropout.token_step > 0 ? call->op->attr.dropout.token_step : 1;
  drop.key = rf_key(call->run->seed, (uint64_t)call->run->step, call->op->attr.dropout.site);
  for (uint32_t round = 0; round < 10; round++) {
    drop.round_key[round][0] = (uint32_t)drop.key + round * 0x9E3779B9u;
    drop.round_key[round][1] = (uint32_t)(drop.key >> 32) + round * 0xBB67AE85u;
  }
  return drop;
}

#if defined(__AVX2__) && defined(__FMA__)
RF_INLINE __m256i rf_xor3(__m256i a, __m256i b, __m256i c) {
#if defined(__AVX512VL__)
  return _mm256_ternarylogic_epi32(a, b, c, 0x96);
#else
  return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
#endif
}
/* Runs Philox on four counters, one per 64-bit lane. The multiplication reads only the low dword of
 * a lane, so the high dword may have any value. */
RF_INLINE void rf_philox_x4(const uint32_t round_key[10][2], uint64_t counter_low, uint64_t counter_high,
                            __m256i *first, __m256i *second) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  __m256i c0 = _mm256_set1_epi64x((int64_t)counter_low), c2 = _mm256_set1_epi64x((int64_t)counter_high);
  c2 = _mm256_add_epi64(c2, _mm256_setr_epi64x(0, 1, 2, 3));
  __m256i c1 = _mm256_srli_epi64(c0, 32), c3 = _mm256_srli_epi64(c2, 32);
  for (int round = 0; round < 10; round++) {
    __m256i p = _mm256_mul_epu32(c0, m0), q = _mm256_mul_epu32(c2, m1);
    __m256i a = _mm256_set1_epi32((int32_t)round_key[round][0]),
            b = _mm256_set1_epi32((int32_t)round_key[round][1]);
    c0 = rf_xor3(_mm256_srli_epi64(q, 32), c1, a);
    c2 = rf_xor3(_mm256_srli_epi64(p, 32), c3, b);
    c1 = q;
    c3 = p;
  }
  __m256i low = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xaa),
          high = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xaa);
  /* output words of counters 0,2 and 1,3 */
  __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
  *first = _mm256_permute2x128_si256(even, odd, 0x20);
  *second = _mm256_permute2x128_si256(even, odd, 0x31);
}
#endif

/* The mask of the channels of `token` that are kept. Lane 0 is `channel`, a multiple of 4. */
RF_INLINE rf_m16 rf_dropout_keep(const rf_dropout *drop, int64_t token, int64_t channel) {
#if defined(__AVX2__) && defined(__FMA__)
  __m256i first, second, least = _mm256_set1_epi32((int32_t)drop->threshold);
  rf_philox_x4(drop->round_key, (uint64_t)token, (uint64_t)(channel / 4), &first, &second);
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  return (rf_m16)((unsigned)_mm256_cmpge_epu32_mask(first, least) |
                  (unsigned)_mm256_cmpge_epu32_mask(second, least) << 8);
#else
  return (rf_m16){_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(first, least), first)),
                  _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(second, least), second))};
#endif
#else
  rf_m16 keep;
  for (int i = 0; i < RF_LANES; i += 4) {
    uint32_t word[4];
    rf_philox(drop->key, (uint64_t)token, (uint64_t)(channel + i) / 4, word);
    for (int j = 0; j < 4; j++) keep.v[i / 4][j] = word[j] >= drop->threshold ? -1 : 0;
  }
  return keep;
#endif
}

/* The masks of 32 consecutive channels. AVX-512 runs eight counters at once. A shuffle moves the
 * upper dword of each product down, because a shift would use the execution port of the
 * multiplications. */
RF_INLINE void rf_dropout_keep_pair(const rf_dropout *drop, int64_t token, int64_t channel, rf_m16 keep[2]) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57),
                least = _mm512_set1_epi32((int32_t)drop->threshold);
  const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11),
                second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  __m512i c0 = _mm512_set1_epi64(token),
          c2 = _mm512_add_epi64(_mm512_set1_epi64(channel / 4), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  __m512i c1 = _mm512_srli_epi64(c0, 32), c3 = _mm512_srli_epi64(c2, 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++) {
    __m512i p = _mm512_mul_epu32(c0, m0), q = _mm512_mul_epu32(c2, m1);
    __m512i a = _mm512_set1_epi32((int32_t)drop->round_key[round][0]),
            b = _mm512_set1_epi32((int32_t)drop->round_key[round][1]);
    c0 = _mm512_ternarylogic_epi32(_mm512_shuffle_epi32(q, (_MM_PERM_ENUM)0xf5), c1, a, 0x96);
    c2 = _mm512_ternarylogic_epi32(_mm512_shuffle_epi32(p, (_MM_PERM_ENUM)0xf5), c3, b, 0x96);
    c1 = q;
    c3 = p;
  }
  __m512i low = _mm512_mask_shuffle_epi32(c0, 0xaaaa, c1, (_MM_PERM_ENUM)0xa0),
          high = _mm512_mask_shuffle_epi32(c2, 0xaaaa, c3, (_MM_PERM_ENUM)0xa0);
  keep[0] = _mm512_cmpge_epu32_mask(_mm512_permutex2var_epi64(low, first, high), least);
  keep[1] = _mm512_cmpge_epu32_mask(_mm512_permutex2var_epi64(low, second, high), least);
#else
  for (int h = 0; h < 2; h++) keep[h] = rf_dropout_keep(drop, token, channel + RF_LANES * h);
#endif
}

/* Applies dropout to sixteen channels: kept values times 1/(1-p), all others 0. */
RF_INLINE rf_v16 rf_dropout_apply(const rf_dropout *drop, rf_v16 x, int64_t token, int64_t channel) {
  if (!drop->active) return x;
  return rf_v16_select(rf_dropout_keep(drop, token, channel), rf_v16_mul(x, rf_v16_set1(drop->scale)),
                       rf_v16_zero());
}
RF_INLINE void rf_dropout_apply_pair(const rf_dropout *drop, rf_v16 x[2], int64_t token, int64_t channel) {
  if (!drop->active) return;
  rf_m16 keep[2];
  rf_dropout_keep_pair(drop, token, channel, keep);
  for (int h = 0; h < 2; h++)
    x[h] = rf_v16_select(keep[h], rf_v16_mul(x[h], rf_v16_set1(drop->scale)), rf_v16_zero());
}

#endif
