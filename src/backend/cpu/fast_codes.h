/* fast_codes.h - loads the codes and scales of a run of a panel as vectors of lanes, and multiplies
 * codes by bytes. Only fast_*.c include this file. */
#include "backend/cpu/fast.h"
#include "backend/cpu/panel_codes.h"
#include "backend/cpu/simd.h"

/* ---- codes of four values of k, one in each byte of a word ----------------------------------- */

#if defined(__AVX512VNNI__)
RF_INLINE w_word dot(w_word sum, w_word codes, w_word a) {
  /* Inline assembly is used, because gcc 12 copies the accumulators of the intrinsic. */
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(a));
  return sum;
}
#else
/* Multiplies even and odd bytes separately as 16-bit integers, because maddubs would saturate. */
RF_INLINE w_word dot(w_word sum, w_word codes, w_word a) {
  w_word even = W(madd_epi16)(w_and(codes, w_set_word(0x00ff00ff)), W(srai_epi16)(W(slli_epi16)(a, 8), 8));
  return W(add_epi32)(sum, W(add_epi32)(even, W(madd_epi16)(W(srli_epi16)(codes, 8), W(srai_epi16)(a, 8))));
}
#endif

RF_INLINE w_word dot_pairs(w_word sum, w_word m, w_word a) {
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(sum, m, a);
#else
  return W(add_epi32)(sum, W(madd_epi16)(m, a));
#endif
}

#if defined(__AVX512F__)
/* Moves bit i (0..3) of a number to bit 4 of byte i. */
RF_INLINE w_word fifth_bits(w_word x) {
  const __m512i table =
      _mm512_setr_epi32(0, 0x10, 0x1000, 0x1010, 0x100000, 0x100010, 0x101000, 0x101010, 0x10000000,
                        0x10000010, 0x10001000, 0x10001010, 0x10100000, 0x10100010, 0x10101000, 0x10101010);
  return _mm512_permutexvar_epi32(x, table);
}
#else
RF_INLINE w_word fifth_bits(w_word x) {
  return w_or(w_or(w_and(w_left(x, 4), w_set_word(0x10)), w_and(w_left(x, 11), w_set_word(0x1000))),
              w_or(w_and(w_left(x, 18), w_set_word(0x100000)), w_and(w_left(x, 25), w_set_word(0x10000000))));
}
#endif
RF_INLINE w_word run_codes(int type, w_word low, w_word high) {
  if (type == RF_Q_Q8_0) return w_xor(low, w_set_word((int)0x80808080u));
  w_word codes = w_and(low, w_set_word(0x0f0f0f0f));
  switch (type) {
  case RF_Q_Q5_0:
  case RF_Q_Q5_1: return w_or(codes, fifth_bits(high));
  case RF_Q_Q5_K: return w_or(codes, w_left(w_and(high, w_set_word(0x01010101)), 4));
  case RF_Q_Q6_K: return w_or(codes, w_left(w_and(high, w_set_word(0x03030303)), 4));
  default: return codes;
  }
}
/* Base-2 logarithm of a type's z (fast.h), or -1 for types with offsets. */
RF_INLINE int zero_bits(int type) {
  return type == RF_Q_Q8_0 ? 7 : type == RF_Q_Q4_0 ? 3 : type == RF_Q_Q5_0 ? 4 : type == RF_Q_Q6_K ? 5 : -1;
}
/* Gets scale d and offset e of run `run`. For q6_k, gets the scale of half `h` of the run. */
RF_INLINE void run_scale(int type, const w_block *b, int run, int h, w_float *d, w_float *e) {
  if (type == RF_Q_Q6_K) *d = scale_of_k6(b, run, h);
  else *d = block_half(b, 0);
  if (zero_bits(type) < 0) *e = block_half(b, 1);
}
/* Scale and negated offset of a block of q4_k or q5_k. long_pair returns the m of two runs. */
RF_INLINE void long_scale(const w_block *b, w_float *d, w_float *e) {
  *d = block_half(b, 0);
  *e = W(sub_ps)(w_set(0), block_half(b, 1));
}
RF_INLINE w_word long_pair(const w_block *b, int pair) {
  w_word c, first, second;
  parts_of_k4(b, 2 * pair, &c, &first);
  parts_of_k4(b, 2 * pair + 1, &c, &second);
  return w_or(first, w_left(second, 16));
}
