/* panel_codes.h - codes, scales and offsets of packed panels as vectors, for AVX2 and AVX-512. */
#ifndef RF_PANEL_CODES_H
#define RF_PANEL_CODES_H

#include "backend/cpu/simd.h"
#include "formats/panels.h"

#include <immintrin.h>

#if defined(__AVX512F__)
typedef __m512 w_float;
typedef __m512i w_word;
enum { W_LANES = 16 };
#define W(name) _mm512_##name
#define w_load_word(p) _mm512_loadu_si512(p)
#define w_store_word(p, x) _mm512_storeu_si512(p, x)
#define w_and(a, b) _mm512_and_si512(a, b)
#define w_or(a, b) _mm512_or_si512(a, b)
#define w_xor(a, b) _mm512_xor_si512(a, b)
RF_INLINE w_float w_halves(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
RF_INLINE w_float w_bf16(const void *p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
#else
typedef __m256 w_float;
typedef __m256i w_word;
enum { W_LANES = 8 };
#define W(name) _mm256_##name
#define w_load_word(p) _mm256_loadu_si256((const __m256i *)(p))
#define w_store_word(p, x) _mm256_storeu_si256((__m256i *)(p), x)
#define w_and(a, b) _mm256_and_si256(a, b)
#define w_or(a, b) _mm256_or_si256(a, b)
#define w_xor(a, b) _mm256_xor_si256(a, b)
RF_INLINE w_float w_halves(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
RF_INLINE w_float w_bf16(const void *p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
#endif
/* X(row, vector) for four vectors. Sums are variables, because gcc 12 keeps arrays in memory. */
#define EACH_VECTOR(X, r) X(r, 0) X(r, 1) X(r, 2) X(r, 3)
#define w_set(x) W(set1_ps)(x)
#define w_set_word(x) W(set1_epi32)(x)
#define w_right(x, by) W(srli_epi32)(x, by) /* `by` is an int that is constant after unrolling */
#define w_left(x, by) W(slli_epi32)(x, by)
#define w_integer(x) W(cvtepi32_ps)(x)

// clang-format off
/* The types with codes, as X(name, type, values, halves, dwords). `values`, `halves` and `dwords`
 * are the numbers of values, 16-bit words and 32-bit words of a stored block. */
#define EACH_CODED(X) \
  X(q8_0, RF_Q_Q8_0, 32, 1, 8) X(q4_0, RF_Q_Q4_0, 32, 1, 4) X(q4_1, RF_Q_Q4_1, 32, 2, 4) \
  X(q5_0, RF_Q_Q5_0, 32, 1, 5) X(q5_1, RF_Q_Q5_1, 32, 2, 5) X(q4_k, RF_Q_Q4_K, 256, 2, 35) \
  X(q5_k, RF_Q_Q5_K, 256, 2, 43) X(q6_k, RF_Q_Q6_K, 256, 1, 52)
// clang-format on
typedef struct code_form {
  int values, halves, bytes; /* number of values, 16-bit words and bytes of a lane in a stored block */
} code_form;
RF_INLINE code_form form_of(int type) { /* `type` is a constant */
  switch (type) {
#define FORM_OF(name, type, values, halves, dwords) \
  case type: return (code_form){values, halves, 2 * halves + 4 * dwords};
    EACH_CODED(FORM_OF)
#undef FORM_OF
  default: return (code_form){32, 0, 32}; /* int8 */
  }
}

/* The data of one stored block of a panel, from lane `lane` on. */
typedef struct w_block {
  /* Addresses of the first 16-bit word and the first 32-bit word of the lanes. For int8, `half` is
   * the address of the f32 scales of the lanes, which come before the blocks. */
  const char *half, *word;
  int lanes;
} w_block;
RF_INLINE w_block block_of(int type, const char *panel, const char *block, int lanes, int lane) {
  return (w_block){type == RF_Q_INT8 ? panel - 4 * (lanes - lane) : block + 2 * lane,
                   block + 2 * form_of(type).halves * lanes + 4 * lane, lanes};
}
RF_INLINE w_float block_half(const w_block *b, int i) { return w_halves(b->half + 2 * i * b->lanes); }
RF_INLINE w_float block_head(const w_block *b) { return W(loadu_ps)((const float *)(const void *)b->half); }
RF_INLINE w_word block_word(const w_block *b, int i) {
  return w_load_word(b->word + 4 * (int64_t)i * b->lanes);
}

/* Prefetches a cache line to L2 if `far`, otherwise to L1. The parts of a stored block of 256
 * values are far apart. So the whole next block must be in a cache before a kernel reads the
 * block's first values. Two blocks do not fit in L1 (docs/measurements.md). */
RF_INLINE void fetch_line(bool far, const char *at) {
  if (far) __builtin_prefetch(at, 0, 2);
  else __builtin_prefetch(at, 0, 3);
}

/* Scale and offset of a run of q4_k or q5_k. parts_of_k4 returns scale and offset as six-bit
 * integers. scales_of_k4 multiplies these integers by the scales of the block, as quant_k.c
 * does. */
RF_INLINE void parts_of_k4(const w_block *b, int run, w_word *scale, w_word *offset) {
  w_word low = block_word(b, 0), middle = block_word(b, 1), high = block_word(b, 2);
  int at = 8 * (run % 4);
  if (run < 4) {
    *scale = w_and(w_right(low, at), w_set_word(63));
    *offset = w_and(w_right(middle, at), w_set_word(63));
  } else {
    *scale =
        w_or(w_and(w_right(high, at), w_set_word(15)), w_left(w_and(w_right(low, at + 6), w_set_word(3)), 4));
    *offset = w_or(w_and(w_right(high, at + 4), w_set_word(15)),
                   w_left(w_and(w_right(middle, at + 6), w_set_word(3)), 4));
  }
}
RF_INLINE void scales_of_k4(const w_block *b, int run, w_float *d, w_float *e) {
  w_word scale, offset;
  parts_of_k4(b, run, &scale, &offset);
  *d = W(mul_ps)(block_half(b, 0), w_integer(scale));
  *e = W(sub_ps)(w_set(0), W(mul_ps)(block_half(b, 1), w_integer(offset)));
}
/* For q6_k: the scale of sixteen values, which is stored as one signed byte. */
RF_INLINE w_float scale_of_k6(const w_block *b, int run, int h) {
  w_word scale = W(srai_epi32)(w_left(block_word(b, 48 + run / 2), 24 - 8 * (2 * (run % 2) + h)), 24);
  return W(mul_ps)(block_half(b, 0), w_integer(scale));
}

/* A run of 32 values for one vector of lanes. `type` is a constant in all later functions. */
typedef struct w_run {
  w_float d, e;
  w_word fifths;
} w_run;
RF_INLINE w_run run_begin(int type, const w_block *b, int run) {
  w_run r = {w_set(0), w_set(0), w_set_word(0)};
  switch (type) {
  case RF_Q_Q8_0:
  case RF_Q_INT8:
    r.d = type == RF_Q_INT8 ? block_head(b) : block_half(b, 0);
    r.e = W(mul_ps)(r.d, w_set(-128));
    break;
  case RF_Q_Q4_0:
  case RF_Q_Q5_0:
    r.d = block_half(b, 0);
    r.e = W(mul_ps)(r.d, w_set(type == RF_Q_Q4_0 ? -8 : -16));
    break;
  case RF_Q_Q4_1:
  case RF_Q_Q5_1:
    r.d = block_half(b, 0);
    r.e = block_half(b, 1);
    break;
  case RF_Q_Q4_K:
  case RF_Q_Q5_K: scales_of_k4(b, run, &r.d, &r.e); break;
  default: break; /* q6_k: set by run_half */
  }
  if (type == RF_Q_Q5_0 || type == RF_Q_Q5_1) r.fifths = block_word(b, 0);
  return r;
}
RF_INLINE void run_half(int type, const w_block *b, int run, int h, w_run *r) {
  if (type == RF_Q_Q6_K) {
    r->d = scale_of_k6(b, run, h);
    r->e = W(mul_ps)(r->d, w_set(-32));
  }
}
/* run_low returns words with the low bits of values 16 h + 4 j to 16 h + 4 j + 3, one value per
 * byte from bit 0 on. run_high returns words with the high bits of the same values. */
RF_INLINE w_word run_low(int type, const w_block *b, int run, int h, int j) {
  bool k45 = type == RF_Q_Q4_K || type == RF_Q_Q5_K,
       /* values k and k + 16 share a byte */
      halved = !k45 && type != RF_Q_Q8_0 && type != RF_Q_INT8 && type != RF_Q_Q6_K;
  bool upper = halved ? h : k45 ? run % 2 : type == RF_Q_Q6_K && run % 4 >= 2;
  int code = type == RF_Q_Q4_K   ? 3 + 8 * (run / 2)
             : type == RF_Q_Q5_K ? 11 + 8 * (run / 2)
             : type == RF_Q_Q6_K ? 16 * (run / 4) + 8 * (run % 2)
                                 : type == RF_Q_Q5_0 || type == RF_Q_Q5_1;
  w_word low = block_word(b, code + (halved ? 0 : 4 * h) + j);
  return upper ? w_right(low, 4) : low;
}
RF_INLINE w_word run_high(int type, const w_block *b, int run, int h, int j, const w_run *r) {
  if (type == RF_Q_Q5_K) return w_right(block_word(b, 3 + 4 * h + j), run);
  if (type == RF_Q_Q6_K) return w_right(block_word(b, 32 + 8 * (run / 4) + 4 * h + j), 2 * (run % 4));
  return type == RF_Q_Q5_0 || type == RF_Q_Q5_1 ? w_right(r->fifths, 16 * h + 4 * j) : w_set_word(0);
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
  const w_word lowest_byte =
      _mm256_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c, 0x08080808, 0x04040404, 0);
  const w_word bit = w_set_word(0x08040201);
  w_word set = _mm256_cmpeq_epi8(w_and(_mm256_shuffle_epi8(x, lowest_byte), bit), bit);
  return w_and(set, w_set_word(0x10101010));
}
#endif
/* The four codes in the words of run_low and run_high, one in each byte. Codes of q8_0 and int8 are
 * signed, and all other codes are unsigned. */
RF_INLINE w_word run_codes(int type, w_word low, w_word high) {
  if (type == RF_Q_Q8_0 || type == RF_Q_INT8) return low;
  w_word codes = w_and(low, w_set_word(0x0f0f0f0f));
  switch (type) {
  case RF_Q_Q5_0:
  case RF_Q_Q5_1: return w_or(codes, fifth_bits(high));
  case RF_Q_Q5_K: return w_or(codes, w_left(w_and(high, w_set_word(0x01010101)), 4));
  case RF_Q_Q6_K: return w_or(codes, w_left(w_and(high, w_set_word(0x03030303)), 4));
  default: return codes;
  }
}
/* The same codes as unsigned bytes. Codes of q8_0 and int8 get 128 added. */
RF_INLINE w_word unsigned_codes(int type, w_word low, w_word high) {
  w_word codes = run_codes(type, low, high);
  bool is_signed = type == RF_Q_Q8_0 || type == RF_Q_INT8;
  return is_signed ? w_xor(codes, w_set_word((int)0x80808080u)) : codes;
}
/* Byte i of each word. The shuffle moves byte i to byte 0 and sets the other bytes to 0. */
RF_INLINE w_word byte_of(w_word x, int i) {
  if (i == 0) return w_and(x, w_set_word(255));
  if (i == 3) return w_right(x, 24);
  const int at = (int)0x80808000u + i;
  const __m128i four = _mm_setr_epi32(at, at + 4, at + 8, at + 12);
#if defined(__AVX512F__)
  return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(four));
#else
  return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(four));
#endif
}
/* Converts byte i of each word of unsigned_codes to f32. With AVX-512, tables convert codes of four
 * and five bits, and ignore all higher bits. */
#if defined(__AVX512F__)
typedef struct w_tables {
  w_float low, high; /* 0..15, 16..31 */
} w_tables;
RF_INLINE w_tables w_tables_make(void) {
  w_float low = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return (w_tables){low, _mm512_add_ps(low, _mm512_set1_ps(16))};
}
RF_INLINE w_float code_float(int type, w_word codes, int i, const w_tables *t) {
  switch (type) {
  case RF_Q_Q4_0:
  case RF_Q_Q4_1:
  case RF_Q_Q4_K: return _mm512_permutexvar_ps(w_right(codes, 8 * i), t->low);
  case RF_Q_Q5_0:
  case RF_Q_Q5_1:
  case RF_Q_Q5_K: return _mm512_permutex2var_ps(t->low, w_right(codes, 8 * i), t->high);
  default: return w_integer(byte_of(codes, i));
  }
}
#else
typedef struct w_tables {
  char none;
} w_tables;
RF_INLINE w_tables w_tables_make(void) { return (w_tables){0}; }
RF_INLINE w_float code_float(int type, w_word codes, int i, const w_tables *t) {
  (void)type, (void)t;
  return w_integer(byte_of(codes, i));
}
#endif

#endif
