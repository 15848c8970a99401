/* panel_widen.h - converts packed panels to f32 in vectors of lanes, for AVX2 and AVX-512. Plain C
 * calls the functions of formats/. gemm_kernels.h includes this file. A value is d q + e, rounded
 * once. q is the stored code, 0 or larger. A run of 16 or 32 values shares d and e. If the type has
 * no offset, e = -z d, where z is the code of the value 0. The product d q is exact in f32, so only
 * the addition rounds. So results are bit-identical to those of ggml if the scales are finite. Only
 * the sign of a zero may differ. The sign of a zero changes no sum, because every sum starts at
 * 0. */

/* Writes steps [k0, k0 + steps) of lanes [lane, lane + lanes) to to[step][RF_PANEL_LANES]. `lane`
 * and `lanes` are multiples of 16. For types with codes, k0 and `steps` are also multiples of
 * 16. */
typedef void (*widen_fn)(const rf_panel *panel, const char *at, int64_t k0, int steps, int lane, int lanes,
                         float *to);
enum { HALF_RUN = 16 }; /* k0 of `widen` must be a multiple of this number */

#if defined(__AVX2__)

#include "backend/cpu/panel_codes.h"

RF_INLINE w_float run_value(int type, w_word codes, int i, const w_run *r, const w_tables *t) {
  return W(fmadd_ps)(code_float(type, codes, i, t), r->d, r->e);
}

/* Converts values [16 * from, 16 * end) of run `run` of a block. */
RF_INLINE void widen_run(int type, const w_block *b, int run, int from, int end, const w_tables *t,
                         float *to) {
  w_run r = run_begin(type, b, run);
  for (int h = from; h < end; h++, to += HALF_RUN * RF_PANEL_LANES) {
    run_half(type, b, run, h, &r);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      w_word codes = unsigned_codes(type, run_low(type, b, run, h, j), run_high(type, b, run, h, j, &r));
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++)
        W(storeu_ps)(to + (4 * j + i) * RF_PANEL_LANES, run_value(type, codes, i, &r, t));
    }
  }
}

/* Converts steps [k0, k0 + steps) of blocks of codes, for `lanes` lanes from `lane` on. */
RF_INLINE void widen_blocks(int type, const rf_panel *panel, const char *at, int64_t k0, int steps, int lane,
                            int lanes, float *to) {
  const int values = form_of(type).values;
  const w_tables tables = w_tables_make();
  for (int64_t k = k0, now; k < k0 + steps; k += now, to += now * RF_PANEL_LANES) {
    const char *block = at + k / values * panel->block_bytes;
    int inside = (int)(k % values), from = inside / HALF_RUN % 2,
        end = k0 + steps - k + HALF_RUN * from > HALF_RUN ? 2 : 1;
    for (int l = 0; l < lanes; l += W_LANES) {
      w_block b = block_of(type, at, block, panel->lanes, lane + l);
      widen_run(type, &b, inside / 32, from, end, &tables, to + l);
    }
    now = HALF_RUN * (end - from);
  }
}
RF_INLINE w_float plain_value(int type, const char *at) {
  return type == RF_Q_BF16  ? w_bf16(at)
         : type == RF_Q_F16 ? w_halves(at)
                            : W(loadu_ps)((const float *)(const void *)at);
}
RF_INLINE void widen_plain(int type, const rf_panel *panel, const char *at, int64_t k0, int steps, int lane,
                           int lanes, float *to) {
  const int bytes = type == RF_Q_F32 ? 4 : 2;
  for (int k = 0; k < steps; k++)
    for (int l = 0; l < lanes; l += W_LANES) W(storeu_ps)
  (to + k * RF_PANEL_LANES + l, plain_value(type, at + bytes * ((k0 + k) * panel->lanes + lane + l)));
}

/* A product of up to FEW_ROWS_MAX rows with a full panel converts codes to f32 in registers. If the
 * registers hold the sums of all lanes, the product runs over all k at once. Otherwise the product
 * takes RUN steps of k for some vectors of lanes, then the same steps for the next vectors. So
 * these steps of A and B stay in L1 (docs/measurements.md has other orders). FEW_EACH(X) is X(row,
 * vector) for all rows and vectors. */
#define FOUR_ROWS(X, r0, r1, r2, r3) \
  EACH_VECTOR(X, r0) EACH_VECTOR(X, r1) EACH_VECTOR(X, r2) EACH_VECTOR(X, r3)
#if defined(__AVX512F__)
enum { FEW_ROWS_MAX = 16 };
#define FEW_EACH(X) \
  FOUR_ROWS(X, 0, 1, 2, 3) FOUR_ROWS(X, 4, 5, 6, 7) FOUR_ROWS(X, 8, 9, 10, 11) FOUR_ROWS(X, 12, 13, 14, 15)
#else
enum { FEW_ROWS_MAX = 2 };
#define FEW_EACH(X) EACH_VECTOR(X, 0) EACH_VECTOR(X, 1)
#endif
/* Arguments of a product of all rows with some vectors of lanes, over steps [k0, k1) of k. */
typedef struct few_part {
  const char *at; /* codes of the panel */
  int64_t k0, k1;
  int lane;       /* first lane of the vectors */
  const float *a; /* A as [k][m] from k0 on; a variant for more than m rows also reads the next step */
  int m;
  float *y;          /* [m][RF_PANEL_LANES] */
  const char *ahead; /* prefetches start here and are spread evenly over the call */
} few_part;
#define FEW_LOAD(r, l) \
  w_float sum_##r##_##l = (r) < rows && (l) < vectors && (r) < p->m && p->k0 \
                              ? W(loadu_ps)(p->y + (r)*RF_PANEL_LANES + p->lane + (l)*W_LANES) \
                              : w_set(0);
#define FEW_STORE(r, l) \
  if ((r) < rows && (l) < vectors && (r) < p->m) \
    W(storeu_ps)(p->y + (r)*RF_PANEL_LANES + p->lane + (l)*W_LANES, sum_##r##_##l);
#define FEW_BLOCK(r, l) \
  w_block b##l = block_of(type, p->at, block, RF_PANEL_LANES, p->lane + (l)*W_LANES); \
  w_run run##l = {w_set(0), w_set(0), w_set_word(0)}; \
  if ((l) < vectors) run##l = run_begin(type, &b##l, run);
#define FEW_HALF_RUN(r, l) \
  if ((l) < vectors) run_half(type, &b##l, run, h, &run##l);
#define FEW_WORDS(r, l) \
  w_word codes##l = w_set_word(0); \
  if ((l) < vectors) \
    codes##l = \
        unsigned_codes(type, run_low(type, &b##l, run, h, j), run_high(type, &b##l, run, h, j, &run##l));
#define FEW_VALUE(r, l) \
  w_float w##l = (l) < vectors ? run_value(type, codes##l, i, &run##l, &tables) : w_set(0);
#define FEW_PLAIN(r, l) w_float w##l = (l) < vectors ? plain_value(type, at + bytes * (l)*W_LANES) : w_set(0);
#define FEW_STEP(r, l) \
  if ((r) < rows && (l) < vectors) sum_##r##_##l = W(fmadd_ps)(w_set(x[r]), w##l, sum_##r##_##l);
RF_INLINE void few_blocks(int type, int rows, int vectors, const few_part *p) {
  const int values = form_of(type).values, bytes = form_of(type).bytes;
  const w_tables tables = w_tables_make();
  const bool far = values == 256 && vectors * W_LANES == RF_PANEL_LANES;
  const int fetched = vectors * W_LANES * 4 * bytes / values; /* bytes of four steps */
  const char *ahead = p->ahead;
  const float *x = p->a;
  FEW_EACH(FEW_LOAD)
  for (int64_t k = p->k0; k < p->k1; k += 32) {
    const char *block = p->at + k / values * (RF_PANEL_LANES * (int64_t)bytes);
    int run = (int)(k % values / 32);
    EACH_VECTOR(FEW_BLOCK, 0)
    for (int h = 0; h < 2; h++) {
      EACH_VECTOR(FEW_HALF_RUN, 0)
      for (int j = 0; j < 4; j++, ahead += fetched) {
        EACH_VECTOR(FEW_WORDS, 0)
        /* for q8_0, skips the last 4 of 68 bytes */
        for (int b = 0; b + 4 < fetched; b += 64) fetch_line(far, ahead + b);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++, x += p->m) {
          EACH_VECTOR(FEW_VALUE, 0)
          FEW_EACH(FEW_STEP)
        }
      }
    }
  }
  FEW_EACH(FEW_STORE)
}
RF_INLINE void few_plain(int type, int rows, int vectors, const few_part *p) {
  const int bytes = type == RF_Q_F32 ? 4 : 2, fetched = vectors * W_LANES * bytes;
  const char *at = p->at + bytes * (p->k0 * RF_PANEL_LANES + p->lane), *ahead = p->ahead;
  const float *x = p->a;
  FEW_EACH(FEW_LOAD)
#pragma GCC unroll 4
  for (int64_t k = p->k0; k < p->k1; k++, x += p->m, at += bytes * RF_PANEL_LANES, ahead += fetched) {
    for (int b = 0; b < fetched; b += 64) __builtin_prefetch(ahead + b, 0, 3);
    EACH_VECTOR(FEW_PLAIN, 0)
    FEW_EACH(FEW_STEP)
  }
  FEW_EACH(FEW_STORE)
}

#if defined(__AVX512F__)
/* For bf16, one load has two vectors of lanes: even lanes in the low halves of dwords, odd lanes in
 * the high halves. A pass computes six or eight rows. A second pass computes the other rows, and
 * finds the lanes in L1. Each pass prefetches half of the next data. This order reaches 158
 * GFLOP/s. With sixteen rows and one vector at a time, the rate is 148 (M = 16, one thread,
 * Sapphire Rapids). */
// clang-format off
#define PAIR_EACH(X) \
  X(0, 0) X(0, 1) X(1, 0) X(1, 1) X(2, 0) X(2, 1) X(3, 0) X(3, 1) \
  X(4, 0) X(4, 1) X(5, 0) X(5, 1) X(6, 0) X(6, 1) X(7, 0) X(7, 1)
// clang-format on
#define PAIR_LOAD(r, l) \
  w_float sum_##r##_##l = w_set(0); \
  if ((r) < rows && (r) < used && p->k0) \
    sum_##r##_##l = _mm512_permutex2var_ps(W(loadu_ps)(y + (r)*RF_PANEL_LANES), apart##l, \
                                           W(loadu_ps)(y + (r)*RF_PANEL_LANES + W_LANES));
#define PAIR_STORE(r, l) \
  if ((r) < rows && (r) < used) \
    _mm512_storeu_ps(y + (r)*RF_PANEL_LANES + (l)*W_LANES, \
                     _mm512_permutex2var_ps(sum_##r##_0, joined##l, sum_##r##_1));
#define PAIR_STEP(r, l) \
  if ((r) < rows) sum_##r##_##l = W(fmadd_ps)(w_set(x[r]), w##l, sum_##r##_##l);
RF_INLINE void few_pairs(int rows, int first, int passes, const few_part *p) {
  const w_word apart0 = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
               apart1 = W(add_epi32)(apart0, w_set_word(1));
  const w_word joined0 = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
               joined1 = W(add_epi32)(joined0, w_set_word(8));
  const char *at = p->at + 2 * (p->k0 * RF_PANEL_LANES + p->lane), *ahead = p->ahead + (first ? 64 : 0);
  const float *x = p->a + first;
  float *y = p->y + first * RF_PANEL_LANES + p->lane;
  const int used = p->m - first;
  PAIR_EACH(PAIR_LOAD)
#pragma GCC unroll 4
  for (int64_t k = p->k0; k < p->k1; k++, x += p->m, at += 2 * RF_PANEL_LANES) {
    if (passes == 1 || (k & 1) == (first > 0)) {
      __builtin_prefetch(ahead, 0, 3);
      ahead += 64 * passes;
    }
    w_word both = w_load_word(at);
    w_float w0 = _mm512_castsi512_ps(w_left(both, 16)),
            w1 = _mm512_castsi512_ps(w_and(both, w_set_word((int)0xffff0000u)));
    PAIR_EACH(PAIR_STEP)
  }
  PAIR_EACH(PAIR_STORE)
}
#endif

RF_INLINE void few_body(int type, int rows, int vectors, const few_part *p) {
#if defined(__AVX512F__)
  if (type == RF_Q_BF16 && rows == 8) {
    few_pairs(8, 0, 1, p);
    return;
  }
  if (type == RF_Q_BF16 && rows > 8) {
    few_pairs(rows / 2, 0, 2, p);
    few_pairs(rows / 2, rows / 2, 2, p);
    return;
  }
#endif
  if (type == RF_Q_F32 || type == RF_Q_BF16 || type == RF_Q_F16) few_plain(type, rows, vectors, p);
  else few_blocks(type, rows, vectors, p);
}

// clang-format off
/* The variants are listed as X(name, type, rows, vectors). */
#if defined(__AVX512F__)
#define FEW_SHAPES(X, ...) \
  X(__VA_ARGS__, 1, 4) X(__VA_ARGS__, 2, 4) X(__VA_ARGS__, 4, 4) \
  X(__VA_ARGS__, 8, 2) X(__VA_ARGS__, 12, 1) X(__VA_ARGS__, 16, 1)
#else
#define FEW_SHAPES(X, ...) X(__VA_ARGS__, 1, 4) X(__VA_ARGS__, 2, 2)
#endif
/* PANEL_TYPE(q4_0, RF_Q_Q4_0, blocks) defines widen_q4_0(...), few_q4_0_1(part) and so on. */
#define FEW_BODY(name, type, rows, vectors) \
  static __attribute__((noinline)) void few_##name##_##rows(const few_part *p) { \
    few_body(type, rows, vectors, p); \
  }
#define PANEL_TYPE(name, type, kind) \
  static void widen_##name(const rf_panel *panel, const char *at, int64_t k0, int steps, int lane, \
                           int lanes, float *to) { \
    widen_##kind(type, panel, at, k0, steps, lane, lanes, to); \
  } \
  FEW_SHAPES(FEW_BODY, name, type)
#define CODED_TYPE(name, type, ...) PANEL_TYPE(name, type, blocks)
EACH_CODED(CODED_TYPE)
PANEL_TYPE(int8, RF_Q_INT8, blocks)
PANEL_TYPE(f32, RF_Q_F32, plain)
PANEL_TYPE(bf16, RF_Q_BF16, plain)
PANEL_TYPE(f16, RF_Q_F16, plain)

#define FEW_SHAPE(name, type, rows, vectors) {rows, vectors},
#define FEW_NAME(name, type, rows, vectors) few_##name##_##rows,
#define TYPE_ROW(name, type, ...) {type, widen_##name, {FEW_SHAPES(FEW_NAME, name, type)}},
static const struct few_shape {
  int rows, vectors;
} SHAPES[] = {FEW_SHAPES(FEW_SHAPE, , )};
static const struct panel_type {
  int type;
  widen_fn widen;
  void (*few[sizeof SHAPES / sizeof *SHAPES])(const few_part *p);
} PANEL_TYPES[] = {EACH_CODED(TYPE_ROW) TYPE_ROW(int8, RF_Q_INT8) TYPE_ROW(f32, RF_Q_F32)
                   TYPE_ROW(bf16, RF_Q_BF16) TYPE_ROW(f16, RF_Q_F16)};
// clang-format on

static const struct panel_type *panel_type_of(const rf_panel *panel) {
  for (size_t i = 0; i < sizeof PANEL_TYPES / sizeof *PANEL_TYPES; i++)
    if (PANEL_TYPES[i].type == panel->type->number) return &PANEL_TYPES[i];
  return NULL;
}
/* Runs the product and returns true if the panel is full and has a variant for its type and m. */
static bool few_run(const rf_panel *panel, const char *at, int64_t inner, const float *a, int m, float *y) {
  enum { RUN = 256, AHEAD = 2048 }; /* steps; bytes */
  const struct panel_type *type = panel_type_of(panel);
  if (!type || m > FEW_ROWS_MAX || panel->lanes != RF_PANEL_LANES) return false;
  int shape = 0;
  while (SHAPES[shape].rows < m) shape++;
  int pairs = type->type == RF_Q_BF16 && SHAPES[shape].rows >= 8;
  int lanes = (pairs ? 2 : SHAPES[shape].vectors) * W_LANES;
  int64_t values = panel->type->values, bytes = panel->block_bytes,
          run = lanes == RF_PANEL_LANES ? inner : RUN;
  int64_t distance = run < inner ? run * bytes / values : values == RUN ? bytes : AHEAD;
  few_part p = {.at = at, .a = a, .m = m, .y = y, .ahead = at + distance};
  for (; p.k0 < inner; p.k0 = p.k1, p.a += run * m) {
    p.k1 = p.k0 + run < inner ? p.k0 + run : inner;
    for (p.lane = 0; p.lane < RF_PANEL_LANES;
         p.lane += lanes, p.ahead += (p.k1 - p.k0) * bytes / values * lanes / RF_PANEL_LANES)
      type->few[shape](&p);
  }
  return true;
}

#endif

/* Converts any type. For this, rebuilds the stored block of each lane. */
static void widen_any(const rf_panel *panel, const char *at, int64_t k0, int steps, int lane, int lanes,
                      float *to) {
  for (int l = 0; l < lanes; l++) {
    uint8_t stored[RF_QUANT_BLOCK_MAX];
    float whole[RF_QUANT_BLOCK_MAX];
    int64_t held = -1;
    for (int k = 0; k < steps; k++) {
      int64_t block = (k0 + k) / panel->type->values;
      if (block != held) {
        rf_panel_block(panel, at, lane + l, block, stored);
        panel->type->dequantize(stored, 1, whole);
        held = block;
      }
      to[k * RF_PANEL_LANES + l] = whole[(k0 + k) % panel->type->values];
    }
  }
}

static widen_fn widen_of(const rf_panel *panel) {
#if defined(__AVX2__)
  const struct panel_type *type = panel_type_of(panel);
  if (type) return type->widen;
#else
  (void)panel;
#endif
  return widen_any;
}
