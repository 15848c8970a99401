/* fast_kernels.h - packs rows of A into 8 bits and multiplies the packed rows by panels of B. Only
 * the files fast_*.c include this file, so it is compiled once per ISA. */
#include "backend/cpu/fast_codes.h"

#include <math.h>
#include <string.h>

/* ---- packing A ------------------------------------------------------------------------------- */

/* Returns the factor that maps the largest magnitude of a block to `levels`, and sets *scale to the
 * inverse of the factor. `most` has the bits of the largest magnitude, which is an f32. */
RF_INLINE float block_steps(float levels, int32_t most, float *scale) {
  float largest;
  memcpy(&largest, &most, sizeof largest);
  float steps = largest > 0 ? levels / largest : 0.0f;
  *scale = largest / levels;
  if (isinf(steps)) { /* the magnitudes are so small that they count as 0 */
    steps = 0.0f;
    *scale = 0.0f;
  }
  if (most >= 0x7f800000) {
    steps = 0.0f;
    *scale = NAN;
  }
  return steps;
}
/* Returns the bits of the largest magnitude of 16 * `count` values. The bits of f32 magnitudes,
 * compared as integers, have the same order as the magnitudes. */
RF_INLINE int32_t most_of(int count, const void *from, rf_dtype dtype, int64_t at) {
  w_word most = w_set_word(0);
#pragma GCC unroll 8
  for (int i = 0; i < count; i++) {
    rf_v16 x = rf_v16_abs(rf_v16_get(from, dtype, at + 16 * i));
#if defined(__AVX512F__)
    most = _mm512_max_epi32(most, _mm512_castps_si512(x));
#else
    most = _mm256_max_epi32(most, _mm256_max_epi32(_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)));
#endif
  }
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32(most);
#else
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
#endif
}
/* Multiplies sixteen values by `steps`, and rounds the products to integers. If `steps` is 0, all
 * results are zeros, even for NaN and infinity. */
#if defined(__AVX512F__)
typedef __m512i sixteen; /* of 32 bits */
RF_INLINE sixteen sixteen_of(rf_v16 x, float steps) {
  __m512 by = _mm512_set1_ps(steps);
  return _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(by, _mm512_setzero_ps(), _CMP_NEQ_OQ),
                                  _mm512_mul_ps(x, by));
}
RF_INLINE void sixteen_store(sixteen q, char *a) {
  _mm_storeu_si128((__m128i *)(void *)a, _mm512_cvtepi32_epi8(q));
}
RF_INLINE int32_t sixteen_sum(sixteen q) { return _mm512_reduce_add_epi32(q); }
/* The nearest multiple of 256 below q + 128, divided by 256. */
RF_INLINE sixteen sixteen_high(sixteen q) {
  return _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
}
RF_INLINE sixteen sixteen_low(sixteen q, sixteen high) {
  return _mm512_sub_epi32(q, _mm512_slli_epi32(high, 8));
}
#else
typedef __m256i sixteen; /* 16 bits are enough, because magnitudes are at most 32,639 */
RF_INLINE sixteen sixteen_of(rf_v16 x, float steps) {
  __m256 by = _mm256_set1_ps(steps);
  __m256i used = _mm256_castps_si256(_mm256_cmp_ps(by, _mm256_setzero_ps(), _CMP_NEQ_OQ));
  __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(x.lo, by)),
          second = _mm256_cvtps_epi32(_mm256_mul_ps(x.hi, by));
  return _mm256_and_si256(used, _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8));
}
RF_INLINE void sixteen_store(sixteen q, char *a) {
  _mm_storeu_si128((__m128i *)(void *)a,
                   _mm_packs_epi16(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1)));
}
RF_INLINE int32_t sixteen_sum(sixteen q) {
  __m256i eight = _mm256_madd_epi16(q, _mm256_set1_epi16(1));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
/* The nearest multiple of 256 below q + 128, divided by 256. */
RF_INLINE sixteen sixteen_high(sixteen q) {
  return _mm256_srai_epi16(_mm256_add_epi16(q, _mm256_set1_epi16(128)), 8);
}
RF_INLINE sixteen sixteen_low(sixteen q, sixteen high) {
  return _mm256_sub_epi16(q, _mm256_slli_epi16(high, 8));
}
#endif
/* Packs a block of 16 * `count` values. Each 64 bytes of the result start `step` bytes after the
 * previous 64 bytes. Sets sum[i] to the sum of the i-th sixteen integers. Returns the scale. */
RF_INLINE float pack_block(int count, const void *from, rf_dtype dtype, int64_t at, char *a, int64_t step,
                           int32_t *sum) {
  float scale, steps = block_steps(127, most_of(count, from, dtype, at), &scale);
#pragma GCC unroll 8
  for (int i = 0; i < count; i++) {
    sixteen q = sixteen_of(rf_v16_get(from, dtype, at + 16 * i), steps);
    sixteen_store(q, a + i / 4 * step + i % 4 * 16);
    sum[i] = sixteen_sum(q);
  }
  return scale;
}
static void pack_short(const rf_gemm *g, int64_t i0, int used, int rows, int64_t k0, int64_t k1, char *to) {
  for (int64_t k = k0; k < k1; k += RF_FAST_BLOCK, to += RF_FAST_ITEMS * rows * 4) {
    float *scale = (float *)(void *)(to + RF_FAST_BLOCK * rows), *sum = scale + rows;
    int32_t *minus = (int32_t *)(void *)(sum + rows), *first = minus + rows, *second = first + rows;
    for (int r = 0; r < used; r++) {
      int32_t half[2];
      scale[r] = pack_block(2, g->a, g->a_dtype, (i0 + r) * g->a_row + k, to + RF_FAST_BLOCK * r, 0, half);
      sum[r] = scale[r] * (float)(half[0] + half[1]);
      minus[r] = -128 * (half[0] + half[1]);
      first[r] = -128 * half[0];
      second[r] = -128 * half[1];
    }
  }
}
static void pack_long(const rf_gemm *g, int64_t i0, int used, int rows, int64_t k0, int64_t k1, char *to) {
  enum { RUNS = RF_FAST_LONG / RF_FAST_BLOCK };
  for (int64_t k = k0; k < k1; k += RF_FAST_LONG, to += RF_FAST_LONG_ITEMS * rows * 4) {
    rf_fast_long rest = rf_fast_long_at(to, rows);
    for (int r = 0; r < used; r++) {
      int32_t half[2 * RUNS], run[RUNS];
      rest.scale[r] =
          pack_block(2 * RUNS, g->a, g->a_dtype, (i0 + r) * g->a_row + k, to + 64 * r, 64 * rows, half);
      for (int i = 0; i < RUNS; i++) run[i] = half[2 * i] + half[2 * i + 1];
      for (int i = 0; i < RUNS / 2; i++)
        rest.pairs[i * rows + r] =
            (int32_t)((uint32_t)run[2 * i + 1] << 16 | ((uint32_t)run[2 * i] & 0xffff));
    }
  }
}
static void pack(const rf_gemm *g, bool is_long, int64_t i0, int used, int rows, int64_t k0, int64_t k1,
                 void *strip) {
  char *to = (char *)strip + rf_fast_strip_bytes(is_long, rows, k0);
  if (used < rows) memset(to, 0, (size_t)rf_fast_strip_bytes(is_long, rows, k1 - k0));
  (is_long ? pack_long : pack_short)(g, i0, used, rows, k0, k1, to);
}

/* ---- the product ----------------------------------------------------------------------------- */

typedef struct part {
  const char *at; /* codes of the panel */
  int lanes;      /* lanes of the panel */
  int64_t k0, k1;
  int lane;
  const char *strip;
  float *y;
} part;

/* Integer sums stay in registers, and f32 sums stay in y, in L1. */
// clang-format off
#define EACH(X) \
  EACH_VECTOR(X, 0) EACH_VECTOR(X, 1) EACH_VECTOR(X, 2) EACH_VECTOR(X, 3) \
  EACH_VECTOR(X, 4) EACH_VECTOR(X, 5) EACH_VECTOR(X, 6) EACH_VECTOR(X, 7)
// clang-format on
#define SUM_START(r, l) \
  w_sum sum_##r##_##l = {w_set_word(0), w_set_word(0)}; \
  if (HAS_VNNI && (r) < rows && zero >= 0) sum_##r##_##l.words = zeros_of(zero, minus[r]);
#define BLOCK_OF(r, l) \
  w_block b##l = {block + 2 * (p->lane + (l)*W_LANES), \
                  block + 2 * halves * p->lanes + 4 * (p->lane + (l)*W_LANES), p->lanes}; \
  w_word fifths##l = w_set_word(0); \
  if ((l) < vectors && (type == RF_Q_Q5_0 || type == RF_Q_Q5_1)) fifths##l = block_word(&b##l, 0);
#define CODES(r, l) \
  w_codes u##l = {.u = w_set_word(0)}; \
  if ((l) < vectors) { \
    w_run fifth = {.fifths = fifths##l}; \
    int h = turns == 2 ? turn : j / 4; \
    u##l = codes_of(type, operand_codes(type, run_low(type, &b##l, run, h, j % 4), \
                                        run_high(type, &b##l, run, h, j % 4, &fifth))); \
  }
#define DOT(r, l) \
  if ((r) < rows && (l) < vectors) add_products(type, &sum_##r##_##l, &u##l, w_set_word(words[8 * (r) + j]));
#define WIDEN(r, l) \
  if ((r) < rows && (l) < vectors) widen(type, &sum_##r##_##l);
#define SCALE(r, l) \
  w_float d##l = w_set(0), e##l = d##l; \
  if ((l) < vectors) run_scale(type, &b##l, run, h, &d##l, &e##l);
#define JOIN(r, l) \
  if ((r) < rows && (l) < vectors) { \
    float *to = p->y + (r)*RF_PANEL_LANES + p->lane + (l)*W_LANES; \
    w_float acc = W(loadu_ps)(to); \
    w_word sum = sum_##r##_##l.words; \
    if (adds_zeros) sum = W(add_epi32)(sum, zeros_of(zero, minus[r])); \
    acc = W(fmadd_ps)(d##l, W(mul_ps)(w_set(scale[r]), w_integer(sum)), acc); \
    if (zero < 0) acc = W(fmadd_ps)(e##l, w_set(total[r]), acc); \
    W(storeu_ps)(to, acc); \
  }
RF_INLINE void fetch(int values, const char *at, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) fetch_line(values == 256, at + b);
}
RF_INLINE void product(int type, int rows, int vectors, const part *p) {
  const int values = form_of(type).values, bytes = form_of(type).bytes, halves = form_of(type).halves;
  const int ahead_bytes = values == 32 ? 1024 : p->lanes * bytes;
  const int zero = zero_bits(type), turns = type == RF_Q_Q6_K ? 2 : 1, quads = 8 / turns;
  const bool adds_zeros = !HAS_VNNI && zero >= 0 && !is_signed(type);
  const int64_t run_bytes = (int64_t)RF_FAST_BLOCK * p->lanes * bytes / values,
                share = run_bytes * vectors * W_LANES / p->lanes;
  const char *ahead =
      p->at + p->k0 / RF_FAST_BLOCK * run_bytes + p->lane / (vectors * W_LANES) * share + ahead_bytes;
  const char *strip = p->strip + rf_fast_strip_bytes(false, rows, p->k0);
  for (int64_t k = p->k0; k < p->k1;
       k += RF_FAST_BLOCK, strip += RF_FAST_ITEMS * rows * 4, ahead += run_bytes) {
    const char *block = p->at + k / values * (p->lanes * (int64_t)bytes);
    const float *scale = (const float *)(const void *)(strip + RF_FAST_BLOCK * rows), *total = scale + rows;
    int run = (int)(k % values / 32);
    fetch(values, ahead, share);
    EACH_VECTOR(BLOCK_OF, 0)
#pragma GCC unroll 2
    for (int turn = 0; turn < turns; turn++) {
      const int32_t *words = (const int32_t *)(const void *)strip + turn * quads;
      const int32_t *minus =
          (const int32_t *)(const void *)(total + rows) + (turns == 2 ? 1 + turn : 0) * rows;
      EACH(SUM_START)
#pragma GCC unroll 8
      for (int j = 0; j < quads; j++) {
        EACH_VECTOR(CODES, 0)
        EACH(DOT)
        if ((j + 1) % words_of(type) > 0 && j + 1 < quads) continue;
        EACH(WIDEN)
      }
      int h = turn;
      EACH_VECTOR(SCALE, 0)
      EACH(JOIN)
    }
  }
}

#define LONG_OF(r, l) \
  w_block b##l = {block + 2 * (p->lane + (l)*W_LANES), block + 4 * (p->lanes + p->lane + (l)*W_LANES), \
                  p->lanes};
#define ALL_ZERO(r, l) w_word all_##r##_##l = w_set_word(0);
#define RUN_ZERO(r, l) w_sum sum_##r##_##l = {w_set_word(0), w_set_word(0)};
#define RUN_CODES(r, l) \
  w_codes u##l = {.u = w_set_word(0)}; \
  if ((l) < vectors) \
    u##l = codes_of(type, operand_codes(type, run_low(type, &b##l, run, j / 4, j % 4), \
                                        run_high(type, &b##l, run, j / 4, j % 4, &none)));
#define RUN_DOT(r, l) \
  if ((r) < rows && (l) < vectors) add_products(type, &sum_##r##_##l, &u##l, w_set_word(words[16 * (r) + j]));
#define RUN_PARTS(r, l) \
  w_word c##l = w_set_word(0), m##l = c##l; \
  if ((l) < vectors) parts_of_k4(&b##l, run, &c##l, &m##l);
#define RUN_ADD(r, l) \
  if ((r) < rows && (l) < vectors) \
    add_run(&all_##r##_##l, &sum_##r##_##l, HAS_VNNI ? c##l : both_halves(c##l));
#define PAIR_OF(r, l) \
  w_word m##l = w_set_word(0); \
  if ((l) < vectors) m##l = long_pair(&b##l, before / 2 + i);
#define PAIR_ADD(r, l) \
  if ((r) < rows && (l) < vectors) \
    off_##r##_##l = dot_pairs(off_##r##_##l, m##l, w_set_word(rest.pairs[i * rows + (r)]));
#define OFF_ZERO(r, l) w_word off_##r##_##l = w_set_word(0);
#define LONG_SCALE(r, l) \
  w_float d##l = w_set(0), e##l = d##l; \
  if ((l) < vectors) long_scale(&b##l, &d##l, &e##l);
#define FINISH(r, l) \
  if ((r) < rows && (l) < vectors) { \
    float *to = p->y + (r)*RF_PANEL_LANES + p->lane + (l)*W_LANES; \
    w_float s = w_set(rest.scale[r]), \
            acc = W(fmadd_ps)(d##l, W(mul_ps)(s, w_integer(all_##r##_##l)), W(loadu_ps)(to)); \
    W(storeu_ps)(to, W(fmadd_ps)(e##l, W(mul_ps)(s, w_integer(off_##r##_##l)), acc)); \
  }
/* Each word of rest.pairs has the sums of two runs. This line moves m to the 16 bits of this
 * run. */
#define RUN_TURN(r, l) m##l = odd ? w_left(m##l, 16) : m##l;
RF_INLINE void product_long(int type, int rows, int vectors, const part *p) {
  enum { STORED = 256, RUNS = RF_FAST_LONG / RF_FAST_BLOCK };
  const int64_t block_bytes = (int64_t)p->lanes * form_of(type).bytes,
                run_bytes = block_bytes * RF_FAST_BLOCK / STORED;
  const int64_t share = run_bytes * vectors * W_LANES / p->lanes;
  const char *ahead =
      p->at + p->k0 / RF_FAST_BLOCK * run_bytes + p->lane / (vectors * W_LANES) * share + block_bytes;
  const w_run none = {.fifths = w_set_word(0)};
  for (int64_t k = p->k0; k < p->k1; k += RF_FAST_LONG) {
    const char *block = p->at + k / STORED * block_bytes,
               *strip = p->strip + rf_fast_strip_bytes(true, rows, k);
    const rf_fast_long rest = rf_fast_long_at(strip, rows);
    const int before = (int)(k % STORED / RF_FAST_BLOCK);
    EACH_VECTOR(LONG_OF, 0)
    EACH(ALL_ZERO)
    EACH(OFF_ZERO)
#pragma GCC unroll 1
    for (int r = 0; r < RUNS; r++, ahead += run_bytes) {
      const int run = before + r;
      const int32_t *words = (const int32_t *)(const void *)(strip + r / 2 * 64 * rows + r % 2 * 32);
      fetch(STORED, ahead, share);
      EACH(RUN_ZERO)
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) {
        EACH_VECTOR(RUN_CODES, 0)
        EACH(RUN_DOT)
        if ((j + 1) % words_of(type) > 0) continue;
        EACH_VECTOR(RUN_PARTS, 0)
        EACH(RUN_ADD)
      }
      if (rows > 2) continue;
      const int i = r / 2, odd = r % 2;
      EACH_VECTOR(RUN_PARTS, 0)
      EACH_VECTOR(RUN_TURN, 0)
      EACH(PAIR_ADD)
    }
    /* with more than two rows, the loop above has no free register for these sums */
    for (int i = 0; i < RUNS / 2 && rows > 2; i++) {
      EACH_VECTOR(PAIR_OF, 0)
      EACH(PAIR_ADD)
    }
    EACH_VECTOR(LONG_SCALE, 0)
    EACH(FINISH)
  }
}

/* BODY(q4_0, type, 2, 4) defines q4_0_2(part) for two rows by four vectors of lanes, and
 * q4_0_narrow_2(part) for two rows by sixteen lanes. */
#define BODY(name, type, rows, vectors) \
  static __attribute__((noinline)) void name##_##rows(const part *p) { body_of(type, rows, vectors, p); } \
  static __attribute__((noinline)) void name##_narrow_##rows(const part *p) { \
    body_of(type, rows, 16 / W_LANES, p); \
  }
RF_INLINE void body_of(int type, int rows, int vectors, const part *p) {
  if (type == RF_Q_Q4_K || type == RF_Q_Q5_K) product_long(type, rows, vectors, p);
  else product(type, rows, vectors, p);
}
// clang-format off
#if defined(__AVX512F__)
#define BODIES(name, type, ...) \
  BODY(name, type, 1, 4) BODY(name, type, 2, 4) BODY(name, type, 4, 4) BODY(name, type, 8, 2)
/* number of vectors of lanes that a call computes for 1, 2, 4 and 8 rows */
static const int VECTORS[] = {4, 4, 4, 2};
#else
#define BODIES(name, type, ...) \
  BODY(name, type, 1, 4) BODY(name, type, 2, 4) BODY(name, type, 4, 2) BODY(name, type, 8, 1)
static const int VECTORS[] = {4, 4, 2, 1};
#endif
EACH_CODED(BODIES)

#define TYPE_ROW(name, type, ...) \
  {type, {{name##_1, name##_narrow_1}, {name##_2, name##_narrow_2}, \
          {name##_4, name##_narrow_4}, {name##_8, name##_narrow_8}}},
static const struct {
  int type;
  void (*body[4][2])(const part *p); /* [1, 2, 4 or 8 rows][full or narrow panel] */
} TYPES[] = {EACH_CODED(TYPE_ROW)};
// clang-format on

#include "backend/cpu/fast_row.h"

/* Alternates between two panels of B, because hardware prefetchers can follow two streams. */
static void few_panels(const rf_panel *panel, int count, const char *b, int64_t inner,
                       const char *const strip[2], int rows, float *y) {
  int shape = rows == 8 ? 3 : rows / 2, steps = 0, lanes[RF_FAST_PANELS];
  part parts[RF_FAST_PANELS];
  void (*body[RF_FAST_PANELS])(const part *p);
  for (int i = 0; i < count; i++) {
    /* number of steps of k before the product changes to the other panel */
    int own = rf_fast_is_long(panel[i].type) ? RF_FAST_LONG : panel[i].type->values;
    if (own > steps) steps = own;
    size_t t = 0;
    while (TYPES[t].type != panel[i].type->number) t++;
    int narrow = panel[i].lanes != RF_PANEL_LANES;
    body[i] = TYPES[t].body[shape][narrow];
    lanes[i] = narrow ? 16 : VECTORS[shape] * W_LANES;
    parts[i] = (part){.at = b + panel[i].offset,
                      .lanes = panel[i].lanes,
                      .strip = strip[rf_fast_is_long(panel[i].type)],
                      .y = y + (int64_t)i * rows * RF_PANEL_LANES};
  }
  memset(y, 0, (size_t)(count * rows) * RF_PANEL_LANES * sizeof *y);
  for (int64_t k0 = 0, k1; k0 < inner; k0 = k1) {
    k1 = k0 + steps < inner ? k0 + steps : inner;
    for (int i = 0; i < count; i++) {
      part *p = &parts[i];
      p->k0 = k0;
      p->k1 = k1;
      for (p->lane = 0; p->lane < panel[i].lanes; p->lane += lanes[i]) body[i](p);
    }
  }
}
/* For some types, products of one row have their own kernels (fast_row.h). */
static void panels_product(const rf_panel *panel, int count, const char *b, int64_t inner,
                           const char *const strip[2], int rows, float *y) {
  bool all = rows == 1;
  for (int i = 0; i < count; i++) all = all && panel[i].lanes == RF_PANEL_LANES && row_of(&panel[i]);
  if (!all) {
    few_panels(panel, count, b, inner, strip, rows, y);
    return;
  }
  for (int i = 0; i < count; i++)
    row_of (&panel[i])(b + panel[i].offset, inner, strip[rf_fast_is_long(panel[i].type)],
                       y + i * RF_PANEL_LANES);
}
