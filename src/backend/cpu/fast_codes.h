/* fast_codes.h - loads the codes and scales of a run of a panel as vectors of lanes, and multiplies
 * codes by bytes. Only fast_*.c include this file. */
#include "backend/cpu/fast.h"
#include "backend/cpu/panel_codes.h"
#include "backend/cpu/simd.h"

/* Without this barrier, gcc 12 reorders the additions of a sum and stores all its terms on the
 * stack. */
#define W_IN_ORDER(x) __asm__("" : "+v"(x))

/* ---- codes of four values of k, one in each byte of a word ----------------------------------- */

/* A word has four adjacent k, one in each byte. VNNI adds the four products of a word to 32 bits.
 * Without VNNI, maddubs adds two products to 16 bits and saturates. Since |a| <= 127 (fast.h),
 * these sums of products are exact in 16 bits:
 *   4-bit codes: 8 words, 8 * 2 * 15 * 127 = 30,480
 *   5-bit codes: 4 words, 4 * 2 * 31 * 127 = 31,496
 *   6-bit codes: 2 words, 2 * 2 * 63 * 127 = 32,004
 *   q8_0:        1 word,      2 * 128 * 127 = 32,512, with |q| and the sign of q moved to a. */
#if defined(__AVX512VNNI__) && !defined(VNNI_ENCODING)
#define VNNI_ENCODING "" /* of 512-bit vectors */
#endif
#if defined(VNNI_ENCODING)
enum { HAS_VNNI = 1 };
RF_INLINE w_word dot(w_word sum, w_word codes, w_word a) {
  /* The dot product is inline assembly, because gcc 12 copies the accumulators of the intrinsic. */
  __asm__(VNNI_ENCODING "vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(a));
  return sum;
}
#else
enum { HAS_VNNI = 0 };
#endif
/* Number of words whose products are added between two calls of `widen`. */
RF_INLINE int words_of(int type) {
  if (HAS_VNNI || type == RF_Q_Q4_0 || type == RF_Q_Q4_1 || type == RF_Q_Q4_K) return 8;
  return type == RF_Q_Q8_0 ? 1 : type == RF_Q_Q6_K ? 2 : 4;
}
/* True if codes are multiplied as signed bytes. Otherwise codes are unsigned bytes, and 128 is
 * added to the codes of q8_0. */
RF_INLINE bool is_signed(int type) { return !HAS_VNNI && type == RF_Q_Q8_0; }

/* The unsigned operand of a product. The sign of this operand is moved to the other operand. */
typedef struct w_codes {
  w_word u;
#if defined(__AVX512F__)
  __mmask64 minus; /* the negative codes */
#else
  w_word q; /* the codes */
#endif
} w_codes;
RF_INLINE w_codes codes_of(int type, w_word q) {
  w_codes c = {.u = is_signed(type) ? W(abs_epi8)(q) : q};
#if defined(__AVX512F__)
  if (is_signed(type)) c.minus = _mm512_movepi8_mask(q);
#else
  c.q = q;
#endif
  return c;
}
/* Sums of products. `words` has sums of 32 bits. `part` has the sums of 16 bits since the last
 * `widen`. */
typedef struct w_sum {
  w_word words, part;
} w_sum;
RF_INLINE void add_products(int type, w_sum *sum, const w_codes *c, w_word a) {
#if defined(VNNI_ENCODING)
  (void)type;
  sum->words = dot(sum->words, c->u, a);
#else
  if (is_signed(type)) {
#if defined(__AVX512F__)
    a = _mm512_mask_sub_epi8(a, c->minus, w_set_word(0), a);
#else
    a = _mm256_sign_epi8(a, c->q);
#endif
    w_word pairs = W(madd_epi16)(W(maddubs_epi16)(c->u, a), W(set1_epi16)(1));
    sum->words = W(add_epi32)(sum->words, pairs);
    W_IN_ORDER(sum->words);
  } else {
    sum->part = W(add_epi16)(sum->part, W(maddubs_epi16)(c->u, a));
    W_IN_ORDER(sum->part);
  }
#endif
}
/* Adds the sums in 16 bits to the sums in 32 bits. */
RF_INLINE void widen(int type, w_sum *sum) {
  if (HAS_VNNI || is_signed(type)) return;
  sum->words = W(add_epi32)(sum->words, W(madd_epi16)(sum->part, W(set1_epi16)(1)));
  W_IN_ORDER(sum->words);
  sum->part = w_set_word(0);
}
RF_INLINE w_word both_halves(w_word x) { return w_or(x, w_left(x, 16)); }
/* Adds c times the sum of a run, or of a part of a run. Without VNNI, each word has c in both
 * halves. */
RF_INLINE void add_run(w_word *all, w_sum *run, w_word c) {
#if defined(VNNI_ENCODING)
  *all = W(add_epi32)(*all, W(mullo_epi32)(c, run->words));
#else
  *all = W(add_epi32)(*all, W(madd_epi16)(run->part, c));
  W_IN_ORDER(*all);
  run->part = w_set_word(0);
#endif
}

/* m and a are pairs of 16-bit integers. */
RF_INLINE w_word dot_pairs(w_word sum, w_word m, w_word a) {
#if defined(VNNI_ENCODING)
  __asm__(VNNI_ENCODING "vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(m), "v"(a));
#else
  sum = W(add_epi32)(sum, W(madd_epi16)(m, a));
  W_IN_ORDER(sum);
#endif
  return sum;
}

/* The codes as operands of add_products. With VNNI, the operands are unsigned, so 128 is added to
 * codes of q8_0. */
RF_INLINE w_word operand_codes(int type, w_word low, w_word high) {
  return HAS_VNNI ? unsigned_codes(type, low, high) : run_codes(type, low, high);
}
/* Base-2 logarithm of a type's z (fast.h), or -1 for types with offsets. */
RF_INLINE int zero_bits(int type) {
  return type == RF_Q_Q8_0 ? 7 : type == RF_Q_Q4_0 ? 3 : type == RF_Q_Q5_0 ? 4 : type == RF_Q_Q6_K ? 5 : -1;
}
/* -Computes z times a sum of integers a, from -128 times this sum. */
RF_INLINE w_word zeros_of(int zero, int32_t minus) {
  return W(srai_epi32)(w_set_word(minus), zero < 0 ? 0 : 7 - zero);
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
