/* fast_wide.h - products of an int8 matrix, with one scale per output, and activations in two bytes
 * (fast.h). Only fast_*.c include this file, after fast_kernels.h. It is compiled once per ISA. */

/* CHUNK: contiguous values of a row */
enum { WIDE_QUADS = RF_FAST_WIDE / 4, WIDE_CHUNK = 64, WIDE_PLANE = RF_FAST_WIDE / WIDE_CHUNK };

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
        char *high = to + (i / WIDE_CHUNK * rows + r) * WIDE_CHUNK + i % WIDE_CHUNK;
        sixteen q = sixteen_of(rf_v16_get(g->a, g->a_dtype, at + i), steps), top = sixteen_high(q);
        sixteen_store(top, high);
        sixteen_store(sixteen_low(q, top), high + RF_FAST_WIDE * rows);
        sum += sixteen_sum(q);
      }
      minus[r] = -128 * sum;
    }
  }
}

#if defined(VNNI_ENCODING)
#define wide_dot dot
#else
/* Multiplies even and odd bytes separately as 16-bit integers, because maddubs would saturate. */
RF_INLINE w_word wide_dot(w_word sum, w_word codes, w_word a) {
  w_word even = W(madd_epi16)(w_and(codes, w_set_word(0x00ff00ff)), W(srai_epi16)(W(slli_epi16)(a, 8), 8));
  return W(add_epi32)(sum, W(add_epi32)(even, W(madd_epi16)(W(srli_epi16)(codes, 8), W(srai_epi16)(a, 8))));
}
#endif
/* Sums of high bytes and of low bytes stay in registers. The f32 sums stay in y (in L1). */
#define WIDE_START(r, l) \
  w_word high_##r##_##l = w_set_word(0), low_##r##_##l = w_set_word(0); \
  if ((r) < rows && (l) < vectors) low_##r##_##l = w_set_word(minus[r]);
#define WIDE_CODES(r, l) \
  w_word u##l = w_set_word(0); \
  if ((l) < vectors) u##l = w_xor(w_load_word(codes + 4 * (l)*W_LANES), w_set_word((int)0x80808080u));
#define WIDE_DOT(r, l) \
  if ((r) < rows && (l) < vectors) { \
    high_##r##_##l = wide_dot(high_##r##_##l, u##l, w_set_word(words[16 * (r)])); \
    low_##r##_##l = wide_dot(low_##r##_##l, u##l, w_set_word(words[16 * (r) + WIDE_QUADS * packed])); \
  }
#define WIDE_HEAD(r, l) \
  w_float d##l = w_set(0); \
  if ((l) < vectors) d##l = W(loadu_ps)(heads + (l)*W_LANES);
#define WIDE_JOIN(r, l) \
  if ((r) < rows && (l) < vectors) { \
    float *to = y + (r)*RF_PANEL_LANES + (l)*W_LANES; \
    w_float acc = first ? w_set(0) : W(loadu_ps)(to); \
    w_word sum = W(add_epi32)(low_##r##_##l, W(slli_epi32)(high_##r##_##l, 8)); \
    W(storeu_ps)(to, W(fmadd_ps)(d##l, W(mul_ps)(w_set(scale[r]), w_integer(sum)), acc)); \
  }
/* Arguments of wide_block, which multiplies some rows of a strip by some vectors of lanes. */
typedef struct wide_part {
  int count, row; /* steps of k; first row in the strip */
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
/* vectors of lanes for 1, 2, 4 and 8 rows */
static const int WIDE_VECTORS[] = {4, 4, 2, 1};
#else
WIDE_FEW(1, 4) WIDE_FEW(2, 2) WIDE_FEW(4, 1) WIDE_FEW(8, 1)
static const int WIDE_VECTORS[] = {4, 2, 1, 1};
#endif
// clang-format on
static const wide_fn WIDE_BODIES[4][2] = {
    {wide_1, wide_narrow_1}, {wide_2, wide_narrow_2}, {wide_4, wide_narrow_4}, {wide_8, wide_narrow_8}};

static void panels_wide(const rf_panel *panel, int count, const char *b, int64_t inner,
                        const char *const strips[2], int rows, float *y) {
  enum { AHEAD = 16 }; /* prefetch distance; 1 is four steps of k */
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
