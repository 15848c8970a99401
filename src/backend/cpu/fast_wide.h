/* fast_wide.h - products of an int8 matrix, with one scale per output, and activations in two bytes
 * (fast.h). Only the files fast_*.c include this file, after fast_kernels.h, so it is compiled once
 * per ISA. With AVX-512 VNNI, the two planes of a strip have the high and the low bytes, as tiles
 * need them. Otherwise, the planes have pairs of 16-bit values. Of each four values, the first
 * plane has values 0 and 2, and the second plane has values 1 and 3. */
#if defined(__AVX512VNNI__)
enum { IN_BYTES = 1 };
#else
enum { IN_BYTES = 0 };
#endif

/* CHUNK: number of contiguous values of a row */
enum { WIDE_QUADS = RF_FAST_WIDE / 4, WIDE_CHUNK = 64, WIDE_PLANE = RF_FAST_WIDE / WIDE_CHUNK };

/* Writes sixteen integers to the two planes. */
RF_INLINE void put_planes(sixteen q, char *first, char *second) {
#if defined(__AVX512VNNI__)
  sixteen high = sixteen_high(q);
  sixteen_store(high, first);
  sixteen_store(sixteen_low(q, high), second);
#else
#if defined(__AVX512F__)
  __m256i x = _mm512_cvtepi32_epi16(q);
#else
  __m256i x = q;
#endif
  x = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(x, 0xd8), 0xd8);
  x = _mm256_permute4x64_epi64(_mm256_shuffle_epi32(x, 0xd8), 0xd8);
  _mm_storeu_si128((__m128i *)(void *)first, _mm256_castsi256_si128(x));
  _mm_storeu_si128((__m128i *)(void *)second, _mm256_extracti128_si256(x, 1));
#endif
}
static void pack_wide(const rf_gemm *g, bool is_long, int64_t i0, int used, int rows, int64_t k0, int64_t k1,
                      void *strip) {
  (void)is_long;
  char *to = (char *)strip + k0 / RF_FAST_WIDE * RF_FAST_WIDE_BYTES * rows;
  for (int64_t k = k0; k < k1; k += RF_FAST_WIDE, to += RF_FAST_WIDE_BYTES * rows) {
    int count = k1 - k < RF_FAST_WIDE ? (int)(k1 - k) : RF_FAST_WIDE;
    float *scale = (float *)(void *)(to + 2 * RF_FAST_WIDE * rows);
    int32_t *minus = (int32_t *)(void *)(scale + rows);
    memset(to, 0, (size_t)(RF_FAST_WIDE_BYTES * rows));
    for (int r = 0; r < used; r++) {
      int64_t at = (i0 + r) * g->a_row + k;
      int32_t sum = 0;
      float steps = block_steps(32639, most_of(count / 16, g->a, g->a_dtype, at), &scale[r]);
      for (int i = 0; i < count && steps != 0.0f; i += 16) {
        char *first = to + (i / WIDE_CHUNK * rows + r) * WIDE_CHUNK + i % WIDE_CHUNK;
        sixteen q = sixteen_of(rf_v16_get(g->a, g->a_dtype, at + i), steps);
        put_planes(q, first, first + RF_FAST_WIDE * rows);
        sum += sixteen_sum(q);
      }
      minus[r] = -128 * sum;
    }
  }
}

/* Integer sums stay in registers. The f32 sums stay in y, in L1. */
typedef struct wide_sum {
  w_word high, low; /* without IN_BYTES, `low` has the whole sum */
} wide_sum;
RF_INLINE wide_sum wide_start(int32_t minus) {
  return (wide_sum){w_set_word(0), IN_BYTES ? w_set_word(minus) : w_set_word(0)};
}
/* Four codes of each lane, as one word of unsigned bytes or as two words of 16-bit pairs. */
typedef struct wide_codes {
  w_word u, second;
} wide_codes;
RF_INLINE wide_codes wide_codes_of(w_word q) {
  if (IN_BYTES) return (wide_codes){.u = w_xor(q, w_set_word((int)0x80808080u))};
  return (wide_codes){W(srai_epi16)(W(slli_epi16)(q, 8), 8), W(srai_epi16)(q, 8)};
}
RF_INLINE void wide_add(wide_sum *sum, const wide_codes *c, w_word first, w_word second) {
#if defined(__AVX512VNNI__)
  sum->high = dot(sum->high, c->u, first);
  sum->low = dot(sum->low, c->u, second);
#else
  sum->low = dot_pairs(sum->low, c->u, first);
  sum->low = dot_pairs(sum->low, c->second, second);
#endif
}
RF_INLINE w_word wide_total(const wide_sum *sum) {
  return IN_BYTES ? W(add_epi32)(sum->low, W(slli_epi32)(sum->high, 8)) : sum->low;
}
#define WIDE_START(r, l) wide_sum sum_##r##_##l = wide_start((r) < rows && (l) < vectors ? minus[r] : 0);
#define WIDE_CODES(r, l) \
  wide_codes u##l = {.u = w_set_word(0)}; \
  if ((l) < vectors) u##l = wide_codes_of(w_load_word(codes + 4 * (l)*W_LANES));
#define WIDE_DOT(r, l) \
  if ((r) < rows && (l) < vectors) \
    wide_add(&sum_##r##_##l, &u##l, w_set_word(words[16 * (r)]), \
             w_set_word(words[16 * (r) + WIDE_QUADS * packed]));
#define WIDE_HEAD(r, l) \
  w_float d##l = w_set(0); \
  if ((l) < vectors) d##l = W(loadu_ps)(heads + (l)*W_LANES);
#define WIDE_JOIN(r, l) \
  if ((r) < rows && (l) < vectors) { \
    float *to = y + (r)*RF_PANEL_LANES + (l)*W_LANES; \
    w_float acc = first ? w_set(0) : W(loadu_ps)(to); \
    w_float sum = w_integer(wide_total(&sum_##r##_##l)); \
    W(storeu_ps)(to, W(fmadd_ps)(d##l, W(mul_ps)(w_set(scale[r]), sum), acc)); \
  }
/* Arguments of wide_block, which multiplies some rows of a strip by some vectors of lanes. */
typedef struct wide_part {
  int count, row; /* number of steps of k; index of the first row in the strip */
  const char *strip, *codes;
  int lanes;          /* lanes of the panel */
  const float *heads; /* scales of the lanes */
  bool first;         /* the sums start from 0 */
  float *y;
  const char *ahead; /* prefetched during the product */
} wide_part;
RF_INLINE void wide_block(int rows, int vectors, int packed, const wide_part *p) {
  const char *codes = p->codes, *ahead = p->ahead;
  const float *heads = p->heads;
  const float *scale = (const float *)(const void *)(p->strip + 2 * RF_FAST_WIDE * packed) + p->row;
  const int32_t *minus = (const int32_t *)(const void *)(scale + packed);
  const int32_t *words = (const int32_t *)(const void *)p->strip + 16 * p->row;
  const int count = p->count, lanes = p->lanes;
  const bool first = p->first;
  float *y = p->y;
  EACH(WIDE_START)
  for (int c = 0; c < count; c += WIDE_CHUNK, words += 16 * (packed - 1)) {
    int quads = count - c < WIDE_CHUNK ? (count - c) / 4 : WIDE_CHUNK / 4;
    for (int j = 0; j < quads; j += 8)
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++, words++, codes += 4 * (int64_t)lanes, ahead += 4 * (int64_t)lanes) {
        for (int v = 0; v < vectors * W_LANES * 4; v += 64) __builtin_prefetch(ahead + v, 0, 3);
        EACH_VECTOR(WIDE_CODES, 0)
        EACH(WIDE_DOT)
      }
  }
  EACH_VECTOR(WIDE_HEAD, 0)
  EACH(WIDE_JOIN)
}

/* ---- few rows -------------------------------------------------------------------------------- */

typedef void (*wide_fn)(const wide_part *p);
/* WIDE_FEW(2, 4) defines wide_2(part) for two rows by four vectors of lanes, and
 * wide_narrow_2(part) for two rows by sixteen lanes. */
#define WIDE_FEW(rows, vectors) \
  static __attribute__((noinline)) void wide_##rows(const wide_part *p) { \
    wide_block(rows, vectors, rows, p); \
  } \
  static __attribute__((noinline)) void wide_narrow_##rows(const wide_part *p) { \
    wide_block(rows, 16 / W_LANES, rows, p); \
  }
// clang-format off
#if defined(__AVX512F__)
WIDE_FEW(1, 4) WIDE_FEW(2, 4) WIDE_FEW(4, 2) WIDE_FEW(8, 1)
/* number of vectors of lanes for 1, 2, 4 and 8 rows */
static const int WIDE_VECTORS[] = {4, 4, 2, 1};
#else
WIDE_FEW(1, 4) WIDE_FEW(2, 4) WIDE_FEW(4, 2) WIDE_FEW(8, 1)
static const int WIDE_VECTORS[] = {4, 4, 2, 1};
#endif
// clang-format on
static const wide_fn WIDE_BODIES[4][2] = {
    {wide_1, wide_narrow_1}, {wide_2, wide_narrow_2}, {wide_4, wide_narrow_4}, {wide_8, wide_narrow_8}};

static void panels_wide(const rf_panel *panel, int count, const char *b, int64_t inner,
                        const char *const strips[2], int rows, float *y) {
  enum { AHEAD = 16 }; /* prefetch distance, in units of four steps of k */
  int shape = rows == 8 ? 3 : rows / 2;
  for (int64_t k = 0; k < inner; k += RF_FAST_WIDE)
    for (int i = 0; i < count; i++) {
      bool narrow = panel[i].lanes != RF_PANEL_LANES;
      int lanes = narrow ? 16 : WIDE_VECTORS[shape] * W_LANES;
      const char *at = b + panel[i].offset, *codes = at + k * panel[i].lanes;
      wide_part p = {.count = inner - k < RF_FAST_WIDE ? (int)(inner - k) : RF_FAST_WIDE,
                     .strip = strips[0] + k / RF_FAST_WIDE * RF_FAST_WIDE_BYTES * rows,
                     .codes = codes,
                     .lanes = panel[i].lanes,
                     .heads = (const float *)(const void *)at - panel[i].lanes,
                     .first = k == 0,
                     .y = y + (int64_t)i * rows * RF_PANEL_LANES,
                     .ahead = codes + 4 * AHEAD * (int64_t)panel[i].lanes};
      for (int lane = 0; lane < panel[i].lanes; lane += lanes) {
        WIDE_BODIES[shape][narrow](&p);
        p.codes += 4 * lanes;
        p.ahead += 4 * lanes;
        p.heads += lanes;
        p.y += lanes;
      }
    }
}
