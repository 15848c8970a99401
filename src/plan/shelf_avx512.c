/* shelf_avx512.c - rf_shelf_pass for sixteen blocks at a time. */
#include "plan/shelf.h"

#include <immintrin.h>

void rf_shelf_pass_avx512(const rf_shelf *s, int first, int last, rf_gap_search *to) {
  rf_gap_search f = *to;
  const __m512i from = _mm512_set1_epi32(first), until = _mm512_set1_epi32(last),
                bytes = _mm512_set1_epi64(f.bytes), none = _mm512_set1_epi64(INT64_MIN),
                highest = _mm512_set1_epi64(7);
  __m512i top = _mm512_set1_epi64(f.top);
  for (int j = 0; j < s->count && f.over; j += RF_STRIDE) {
    unsigned bits = s->count - j < RF_STRIDE ? (1u << (s->count - j)) - 1 : 0xffffu;
    bits = _mm512_mask_cmple_epi32_mask((__mmask16)bits, _mm512_loadu_si512(s->first + j), until);
    bits = _mm512_mask_cmpge_epi32_mask((__mmask16)bits, _mm512_loadu_si512(s->last + j), from);
    for (int half = j; bits; half += 8, bits >>= 8) {
      __mmask8 met = (__mmask8)bits;
      /* becomes the highest end of a block and all before it */
      __m512i high = _mm512_mask_loadu_epi64(none, met, s->end + half);
      high = _mm512_max_epi64(high, _mm512_alignr_epi64(high, none, 7));
      high = _mm512_max_epi64(high, _mm512_alignr_epi64(high, none, 6));
      high = _mm512_max_epi64(high, _mm512_alignr_epi64(high, none, 4));
      __m512i below = _mm512_max_epi64(top, _mm512_alignr_epi64(high, none, 7));
      __m512i over =
          _mm512_sub_epi64(_mm512_sub_epi64(_mm512_maskz_loadu_epi64(met, s->start + half), below), bytes);
      unsigned better = _mm512_mask_cmplt_epu64_mask(met, over, _mm512_set1_epi64((int64_t)f.over));
      if (better) { /* than the best so far; the first of the smallest counts */
        uint64_t overs[8];
        int64_t belows[8];
        _mm512_storeu_si512(overs, over);
        _mm512_storeu_si512(belows, below);
        for (; better; better &= better - 1) {
          int k = __builtin_ctz(better);
          if (overs[k] < f.over) {
            f.over = overs[k];
            f.best = belows[k];
          }
        }
      }
      top = _mm512_max_epi64(top, _mm512_permutexvar_epi64(highest, high));
    }
  }
  f.top = _mm_cvtsi128_si64(_mm512_castsi512_si128(top));
  *to = f;
}
