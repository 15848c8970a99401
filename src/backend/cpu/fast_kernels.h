/* fast_kernels.h - packing rows into 8 bits, and their product with one panel, written once and compiled for each ISA by fast_*.c; included
 * there only. */
#include "backend/cpu/fast.h"
#include "backend/cpu/panel_codes.h"
#include "backend/cpu/simd.h"

#include <math.h>
#include <string.h>

/* ---- packing A ------------------------------------------------------------------------------------------------------- */

static void pack(const rf_gemm *g, int64_t i0, int used, int rows, void *tile) {
  int32_t *to = tile;
  for (int64_t k = 0; k < g->k; k += RF_FAST_BLOCK, to += RF_FAST_ITEMS * rows) {
    float *scale = (float *)to + RF_FAST_WORDS * rows, *sum = scale + rows, *low = sum + rows, *high = low + rows;
    for (int r = 0; r < rows; r++) {
      float x[RF_FAST_BLOCK];
      int32_t a[RF_FAST_BLOCK], bits, most = 0, first = 0, second = 0;
      int64_t at = (i0 + r) * g->a_row + k;
      for (int i = 0; i < RF_FAST_BLOCK; i++)
        x[i] = r >= used ? 0.0f : g->a_dtype == RF_BF16 ? rf_bf16_to_f32(((const rf_bf16 *)g->a)[at + i]) : ((const float *)g->a)[at + i];
      for (int i = 0; i < RF_FAST_BLOCK; i++) { /* magnitudes are in the order of their bits */
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
      }
      float largest, s;
      memcpy(&largest, &most, sizeof largest);
      float steps = largest > 0 ? 127.0f / largest : 0.0f;
      s = largest / 127.0f;
      if (isinf(steps)) steps = 0.0f, s = 0.0f; /* subnormal numbers count as nothing */
      if (most >= 0x7f800000) steps = 0.0f, s = NAN;
      for (int i = 0; i < RF_FAST_BLOCK; i++) a[i] = steps == 0.0f ? 0 : (int32_t)nearbyintf(x[i] * steps);
      for (int i = 0; i < RF_FAST_BLOCK / 2; i++) first += a[i], second += a[i + RF_FAST_BLOCK / 2];
      for (int j = 0; j < RF_FAST_WORDS; j++) {
        uint32_t word = 0;
        for (int i = 0; i < 4; i++) word |= (uint32_t)(a[4 * j + i] & 255) << (8 * i);
        to[j * rows + r] = (int32_t)word;
      }
      scale[r] = s, sum[r] = s * (float)(first + second), low[r] = s * (float)first, high[r] = s * (float)second;
    }
  }
}

/* ---- codes of four values of k in the bytes of a word ------------------------------------------------------------------- */

#if defined(__AVX512VNNI__)
RF_INLINE w_word dot(w_word sum, w_word codes, w_word a) { return _mm512_dpbusd_epi32(sum, codes, a); }
#else
/* Even and odd bytes as pairs of 16 bits: products of bytes would saturate there. */
RF_INLINE w_word dot(w_word sum, w_word codes, w_word a) {
  w_word even = W(madd_epi16)(w_and(codes, w_set_word(0x00ff00ff)), W(srai_epi16)(W(slli_epi16)(a, 8), 8));
  return W(add_epi32)(sum, W(add_epi32)(even, W(madd_epi16)(W(srli_epi16)(codes, 8), W(srai_epi16)(a, 8))));
}
#endif

#if defined(__AVX512F__)
/* Bit i of a number below 16 into bit 4 of byte i. */
RF_INLINE w_word fifth_bits(w_word x) {
  const __m512i table = _mm512_setr_epi32(0, 0x10, 0x1000, 0x1010, 0x100000, 0x100010, 0x101000, 0x101010, 0x10000000, 0x10000010, 0x10001000,
                                          0x10001010, 0x10100000, 0x10100010, 0x10101000, 0x10101010);
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
/* Scale and offset of a run, or of half h of a run of q6_k. */
RF_INLINE void run_scale(int type, const w_block *b, int run, int h, w_float *d, w_float *e) {
  switch (type) {
  case RF_Q_Q8_0: *d = block_half(b, 0), *e = W(mul_ps)(*d, w_set(-128)); break;
  case RF_Q_Q4_0: *d = block_half(b, 0), *e = W(mul_ps)(*d, w_set(-8)); break;
  case RF_Q_Q5_0: *d = block_half(b, 0), *e = W(mul_ps)(*d, w_set(-16)); break;
  case RF_Q_Q4_K:
  case RF_Q_Q5_K: scales_of_k4(b, run, d, e); break;
  case RF_Q_Q6_K: *d = scale_of_k6(b, run, h), *e = W(mul_ps)(*d, w_set(-32)); break;
  default: *d = block_half(b, 0), *e = block_half(b, 1); break; /* q4_1, q5_1 */
  }
}

/* ---- the product --------------------------------------------------------------------------------------------------------- */

typedef struct part {
  const char *at; /* the panel */
  int lanes;      /* of the panel */
  int64_t k0, k1;
  int lane;
  const int32_t *tile; /* from k0 on */
  float *y;
} part;

/* Sums of integers stay in registers, those in f32 in y, which is in the L1. */
#define EACH(X) \
  EACH_VECTOR(X, 0) EACH_VECTOR(X, 1) EACH_VECTOR(X, 2) EACH_VECTOR(X, 3) EACH_VECTOR(X, 4) EACH_VECTOR(X, 5) EACH_VECTOR(X, 6) EACH_VECTOR(X, 7)
#define SUM_ZERO(r, l) w_word sum_##r##_##l = w_set_word(0);
#define BLOCK_OF(r, l) \
  w_block b##l = {block + 2 * (p->lane + (l)*W_LANES), block + 2 * halves * p->lanes + 4 * (p->lane + (l)*W_LANES), p->lanes}; \
  w_word fifths##l = w_set_word(0); \
  if ((l) < vectors && (type == RF_Q_Q5_0 || type == RF_Q_Q5_1)) fifths##l = block_word(&b##l, 0);
#define CODES(r, l) \
  w_word u##l = w_set_word(0); \
  if ((l) < vectors) { \
    w_run fifth = {.fifths = fifths##l}; \
    u##l = run_codes(type, run_low(type, &b##l, run, h, j), run_high(type, &b##l, run, h, j, &fifth)); \
  }
#define DOT(r, l) \
  if ((r) < rows && (l) < vectors) sum_##r##_##l = dot(sum_##r##_##l, u##l, w_set_word(words[r]));
#define SCALE(r, l) \
  w_float d##l = w_set(0), e##l = d##l; \
  if ((l) < vectors) run_scale(type, &b##l, run, h, &d##l, &e##l);
#define JOIN(r, l) \
  if ((r) < rows && (l) < vectors) { \
    float *to = p->y + (r)*RF_PANEL_LANES + p->lane + (l)*W_LANES; \
    w_float acc = W(loadu_ps)(to); \
    acc = W(fmadd_ps)(d##l, W(mul_ps)(w_set(scale[r]), w_integer(sum_##r##_##l)), acc); \
    W(storeu_ps)(to, W(fmadd_ps)(e##l, w_set(total[r]), acc)); \
    sum_##r##_##l = w_set_word(0); \
  }
RF_INLINE void product(int type, int values, int bytes, int halves, int rows, int vectors, const part *p) {
  enum { AHEAD = 2048 };
  const int64_t run_bytes = (int64_t)RF_FAST_BLOCK * p->lanes * bytes / values, share = run_bytes * vectors * W_LANES / p->lanes;
  const char *ahead = p->at + p->k0 / RF_FAST_BLOCK * run_bytes + p->lane / (vectors * W_LANES) * share + AHEAD;
  const int32_t *words = p->tile;
  EACH(SUM_ZERO)
  for (int64_t k = p->k0; k < p->k1; k += RF_FAST_BLOCK, words += (RF_FAST_ITEMS - RF_FAST_WORDS) * rows, ahead += run_bytes) {
    const char *block = p->at + k / values * (p->lanes * (int64_t)bytes);
    const float *scale = (const float *)(const void *)words + RF_FAST_WORDS * rows, *total = scale + rows;
    int run = (int)(k % values / 32);
    for (int64_t b = 0; b < share; b += 64) __builtin_prefetch(ahead + b, 0, 3);
    EACH_VECTOR(BLOCK_OF, 0)
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++, words += rows) {
        EACH_VECTOR(CODES, 0)
        EACH(DOT)
      }
      if (type == RF_Q_Q6_K ? true : h == 1) {
        if (type == RF_Q_Q6_K) total = scale + (2 + h) * rows;
        EACH_VECTOR(SCALE, 0)
        EACH(JOIN)
      }
    }
  }
}

#if defined(__AVX512F__)
#define BODIES(name, type, values, bytes, halves) \
  BODY(name, type, values, bytes, halves, 1, 4) \
  BODY(name, type, values, bytes, halves, 2, 4) BODY(name, type, values, bytes, halves, 4, 4) BODY(name, type, values, bytes, halves, 8, 2)
static const int VECTORS[] = {4, 4, 4, 2}; /* of a body of 1, 2, 4, 8 rows */
#else
#define BODIES(name, type, values, bytes, halves) \
  BODY(name, type, values, bytes, halves, 1, 4) \
  BODY(name, type, values, bytes, halves, 2, 4) BODY(name, type, values, bytes, halves, 4, 2) BODY(name, type, values, bytes, halves, 8, 1)
static const int VECTORS[] = {4, 4, 2, 1};
#endif
#define BODY(name, type, values, bytes, halves, rows, vectors) \
  static __attribute__((noinline)) void name##_##rows(const part *p) { product(type, values, bytes, halves, rows, vectors, p); } \
  static __attribute__((noinline)) void name##_narrow_##rows(const part *p) { product(type, values, bytes, halves, rows, 16 / W_LANES, p); }
// clang-format off
BODIES(q8_0, RF_Q_Q8_0, 32, 34, 1)
BODIES(q4_0, RF_Q_Q4_0, 32, 18, 1)
BODIES(q4_1, RF_Q_Q4_1, 32, 20, 2)
BODIES(q5_0, RF_Q_Q5_0, 32, 22, 1)
BODIES(q5_1, RF_Q_Q5_1, 32, 24, 2)
BODIES(q4_k, RF_Q_Q4_K, 256, 144, 2)
BODIES(q5_k, RF_Q_Q5_K, 256, 176, 2)
BODIES(q6_k, RF_Q_Q6_K, 256, 210, 1)
// clang-format on
#define ROW(name, type) \
  { \
    type, { \
      {name##_1, name##_narrow_1}, {name##_2, name##_narrow_2}, {name##_4, name##_narrow_4}, { name##_8, name##_narrow_8 } \
    } \
  }
static const struct {
  int type;
  void (*body[4][2])(const part *p); /* of 1, 2, 4, 8 rows: full panels, and sixteen lanes at a time for narrow ones */
} TYPES[] = {ROW(q8_0, RF_Q_Q8_0), ROW(q4_0, RF_Q_Q4_0), ROW(q4_1, RF_Q_Q4_1), ROW(q5_0, RF_Q_Q5_0),
             ROW(q5_1, RF_Q_Q5_1), ROW(q4_k, RF_Q_Q4_K), ROW(q5_k, RF_Q_Q5_K), ROW(q6_k, RF_Q_Q6_K)};

static void panel_product(const rf_panel *panel, const char *at, int64_t inner, const void *tile, int rows, float *y) {
  enum { RUN = 256 }; /* steps of k that all lanes take before the next: their rows stay in the L1 */
  size_t t = 0;
  while (TYPES[t].type != panel->type->number) t++;
  int shape = rows == 8 ? 3 : rows / 2, narrow = panel->lanes != RF_PANEL_LANES;
  int lanes = narrow ? 16 : VECTORS[shape] * W_LANES;
  part p = {.at = at, .lanes = panel->lanes, .y = y};
  memset(y, 0, (size_t)rows * RF_PANEL_LANES * sizeof *y);
  for (; p.k0 < inner; p.k0 = p.k1) {
    p.k1 = p.k0 + RUN < inner ? p.k0 + RUN : inner;
    p.tile = (const int32_t *)tile + p.k0 / RF_FAST_BLOCK * RF_FAST_ITEMS * rows;
    for (p.lane = 0; p.lane < panel->lanes; p.lane += lanes) TYPES[t].body[shape][narrow](&p);
  }
}
