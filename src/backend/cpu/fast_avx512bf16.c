/* fast_avx512bf16.c - products in 8 bits with the byte dot products of AVX-512 VNNI. */
#include "backend/cpu/fast_kernels.h"

enum { CODE_BIAS = 128 };
#include "backend/cpu/fast_unpack.h"
#include "backend/cpu/fast_wide.h"

/* ---- many rows: up to six rows by two vectors of lanes; unpacked codes stay in L1 ------------ */

#define SIX(X) X(0, 0) X(0, 1) X(1, 0) X(1, 1) X(2, 0) X(2, 1) X(3, 0) X(3, 1) X(4, 0) X(4, 1) X(5, 0) X(5, 1)
/* Arguments. The rows of `strip` from `row` on are multiplied by the 32 lanes from `lane` on. */
typedef struct quads_part {
  const rf_fast_block *block;
  int lane, row;
  const char *strip;
  float *y;
  coming *later;
} quads_part;
#define Q_LOAD(r, l) \
  w_float acc_##r##_##l = \
      (r) < rows && !first ? _mm512_loadu_ps(y + (r)*RF_PANEL_LANES + (l)*W_LANES) : w_set(0);
#define Q_STORE(r, l) \
  if ((r) < rows) _mm512_storeu_ps(y + (r)*RF_PANEL_LANES + (l)*W_LANES, acc_##r##_##l);
#define Q_START(r, l) w_word sum_##r##_##l = (r) < rows && !offsets ? w_set_word(minus[r]) : w_set_word(0);
#define Q_DOT(r, l) \
  if ((r) < rows) sum_##r##_##l = dot(sum_##r##_##l, u##l, w_set_word(words[8 * (r) + j]));
#define Q_JOIN(r, l) \
  if ((r) < rows) { \
    acc_##r##_##l = \
        _mm512_fmadd_ps(d##l, _mm512_mul_ps(w_set(scale[r]), w_integer(sum_##r##_##l)), acc_##r##_##l); \
    if (offsets) acc_##r##_##l = _mm512_fmadd_ps(e##l, w_set(total[r]), acc_##r##_##l); \
  }
RF_INLINE void quads(int rows, bool halves, bool offsets, bool first, const quads_part *p) {
  enum { STRIDE = RF_FAST_ITEMS * RF_FAST_ROWS * 4 };
  const rf_fast_block *block = p->block;
  const int lane = p->lane, row = p->row;
  const char *strip = p->strip;
  const int turns = halves ? 2 : 1, count = 8 / turns;
  const char *codes = block->codes + 4 * lane;
  const float *d = block->d + lane, *e = offsets ? block->e + lane : d;
  float *y = p->y + row * RF_PANEL_LANES + lane;
  SIX(Q_LOAD)
  for (int b = 0; b < block->count; b++, strip += STRIDE, codes += block->stride) {
    come(p->later);
#pragma GCC unroll 2
    for (int h = 0; h < turns; h++, d += RF_PANEL_LANES, e += RF_PANEL_LANES) {
      const int32_t *words = (const int32_t *)(const void *)strip + 8 * row + h * count;
      const float *scale = (const float *)(const void *)(strip + RF_FAST_BLOCK * RF_FAST_ROWS) + row,
                  *total = scale + RF_FAST_ROWS;
      const int32_t *minus = (const int32_t *)(const void *)total + (halves ? 2 + h : 1) * RF_FAST_ROWS;
      SIX(Q_START)
#pragma GCC unroll 8
      for (int j = 0; j < count; j++) {
        const char *at = codes + 4 * RF_PANEL_LANES * (h * count + j);
        w_word u0 = w_load_word(at), u1 = w_load_word(at + 64);
        SIX(Q_DOT)
      }
      w_float d0 = _mm512_loadu_ps(d), d1 = _mm512_loadu_ps(d + W_LANES), e0 = d0, e1 = d1;
      if (offsets) {
        e0 = _mm512_loadu_ps(e);
        e1 = _mm512_loadu_ps(e + W_LANES);
      }
      SIX(Q_JOIN)
    }
  }
  SIX(Q_STORE)
}

/* Blocks of 128 values. The integer sums stay in registers. */
#define L_ZERO(r, l) w_word all_##r##_##l = w_set_word(0);
#define L_START(r, l) w_word sum_##r##_##l = w_set_word(0);
#define L_DOT(r, l) \
  if ((r) < rows) sum_##r##_##l = dot(sum_##r##_##l, u##l, w_set_word(words[16 * (r) + j]));
#define L_ADD(r, l) \
  if ((r) < rows) all_##r##_##l = _mm512_add_epi32(all_##r##_##l, _mm512_mullo_epi32(c##l, sum_##r##_##l));
#define L_NONE(r, l) w_word off_##r##_##l = w_set_word(0);
#define L_OFFSET(r, l) \
  if ((r) < rows) off_##r##_##l = dot_pairs(off_##r##_##l, m##l, w_set_word(pairs[r]));
#define L_JOIN(r, l) \
  if ((r) < rows) { \
    float *to = y + (r)*RF_PANEL_LANES + (l)*W_LANES; \
    w_float acc = first && half == 0 ? w_set(0) : _mm512_loadu_ps(to), s = w_set(scale[r]); \
    acc = _mm512_fmadd_ps(d##l, _mm512_mul_ps(s, w_integer(all_##r##_##l)), acc); \
    _mm512_storeu_ps(to, _mm512_fmadd_ps(e##l, _mm512_mul_ps(s, w_integer(off_##r##_##l)), acc)); \
  }
RF_INLINE void quads_of_long(int rows, bool first, const quads_part *p) {
  enum { RUNS = RF_FAST_LONG / RF_FAST_BLOCK };
  const rf_fast_block *block = p->block;
  const int lane = p->lane, row = p->row;
  const char *strip = p->strip;
  const char *codes = block->codes + 4 * lane;
  const int32_t *c = block->c + lane, *m = block->m + lane;
  w_float d0 = _mm512_loadu_ps(block->d + lane), d1 = _mm512_loadu_ps(block->d + lane + W_LANES);
  w_float e0 = _mm512_loadu_ps(block->e + lane), e1 = _mm512_loadu_ps(block->e + lane + W_LANES);
  float *y = p->y + row * RF_PANEL_LANES + lane;
  for (int half = 0; half < RF_FAST_KC / RF_FAST_LONG;
       half++, strip += rf_fast_strip_bytes(true, RF_FAST_ROWS, RF_FAST_LONG)) {
    const rf_fast_long rest = rf_fast_long_at(strip, RF_FAST_ROWS);
    const float *scale = rest.scale + row;
    SIX(L_ZERO)
    for (int run = 0; run < RUNS; run++, codes += 4 * 8 * RF_PANEL_LANES, c += RF_PANEL_LANES) {
      come(p->later);
      const int32_t *words =
          (const int32_t *)(const void *)(strip + run / 2 * 64 * RF_FAST_ROWS + run % 2 * 32 + 64 * row);
      SIX(L_START)
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) {
        const char *at = codes + 4 * RF_PANEL_LANES * j;
        w_word u0 = w_load_word(at), u1 = w_load_word(at + 64);
        SIX(L_DOT)
      }
      w_word c0 = w_load_word(c), c1 = w_load_word(c + W_LANES);
      SIX(L_ADD)
    }
    SIX(L_NONE)
#pragma GCC unroll 2
    for (int i = 0; i < RUNS / 2; i++, m += RF_PANEL_LANES) {
      const int32_t *pairs = rest.pairs + i * RF_FAST_ROWS + row;
      w_word m0 = w_load_word(m), m1 = w_load_word(m + W_LANES);
      SIX(L_OFFSET)
    }
    SIX(L_JOIN)
  }
}
/* QUADS(3) defines quads_K_3(part, first) for three rows. K is the kind of block: 0 plain, 1 with
 * runs of 16, 2 with offsets, 3 with 128 values. The functions also read 32 lanes of a panel of 16
 * or 48 lanes, because its unpacked codes have room for RF_PANEL_LANES lanes. */
RF_INLINE void quads_of(int kind, int rows, bool first, const quads_part *p) {
  if (kind == 3) quads_of_long(rows, first, p);
  else quads(rows, kind == 1, kind == 2, first, p);
}
// clang-format off
#define QUADS_OF(kind, rows) \
  static __attribute__((noinline)) void quads_##kind##_##rows(const quads_part *p, bool first) { \
    if (first) quads_of(kind, rows, true, p); \
    else quads_of(kind, rows, false, p); \
  }
#define QUADS(rows) QUADS_OF(0, rows) QUADS_OF(1, rows) QUADS_OF(2, rows) QUADS_OF(3, rows)
QUADS(1) QUADS(2) QUADS(3) QUADS(4) QUADS(5) QUADS(6)
#define QUADS_ROW(rows) {quads_0_##rows, quads_1_##rows, quads_2_##rows, quads_3_##rows}
enum { QUAD_ROWS = 6 };
static void (*const BODIES_OF[QUAD_ROWS + 1][4])(const quads_part *p, bool first) = {
    {NULL}, QUADS_ROW(1), QUADS_ROW(2), QUADS_ROW(3), QUADS_ROW(4), QUADS_ROW(5), QUADS_ROW(6)};
// clang-format on

static void many(const rf_fast_block *block, const void *strip, int used, bool first, float *sums,
                 const char *ahead, int64_t ahead_bytes) {
  int chunks = (used + QUAD_ROWS - 1) / QUAD_ROWS, pairs = (block->lanes + 31) / 32;
  int kind = block->c ? 3 : block->e ? 2 : block->halves ? 1 : 0;
  coming later = coming_of(ahead, ahead_bytes, chunks * pairs * block->count);
  for (int c = 0; c < chunks; c++) {
    int row = used * c / chunks, rows = used * (c + 1) / chunks - row;
    for (int lane = 0; lane < block->lanes; lane += 32)
      BODIES_OF[rows][kind](&(quads_part){block, lane, row, strip, sums, &later}, first);
  }
}

/* Unpacks the codes, and c and m as integers. The codes are not multiplied by c. */
RF_INLINE rf_fast_block unpack_long(int type, const rf_panel *panel, const char *at, int64_t k0, char *room) {
  const char *stored = at + k0 / RF_FAST_KC * panel->block_bytes;
  rf_fast_block block = long_block(panel, room);
  float *d = (float *)(void *)(room + RF_FAST_CODES);
  int32_t *c = (int32_t *)(void *)(d + 2 * RF_PANEL_LANES), *m = c + 8 * RF_PANEL_LANES;
  const w_run none = {.fifths = w_set_word(0)};
  for (int l = 0; l < panel->lanes; l += W_LANES) {
    w_block b = {stored + 2 * l, stored + 4 * panel->lanes + 4 * l, panel->lanes};
    for (int run = 0; run < RF_FAST_KC / RF_FAST_BLOCK; run++) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) {
        w_word codes = run_codes(type, run_low(type, &b, run, j / 4, j % 4),
                                 run_high(type, &b, run, j / 4, j % 4, &none));
        _mm512_storeu_si512(room + 4 * ((8 * run + j) * RF_PANEL_LANES + l), codes);
      }
      w_word scale, offset;
      parts_of_k4(&b, run, &scale, &offset);
      _mm512_storeu_si512(c + run * RF_PANEL_LANES + l, scale);
      if (run % 2 == 0) _mm512_storeu_si512(m + run / 2 * RF_PANEL_LANES + l, long_pair(&b, run / 2));
    }
    w_float scale, offset;
    long_scale(&b, &scale, &offset);
    _mm512_storeu_ps(d + l, scale);
    _mm512_storeu_ps(d + RF_PANEL_LANES + l, offset);
  }
  return block;
}

/* int8: up to four rows by two vectors of lanes at a time. The product reads the codes in place. */
static rf_fast_block wide_in_place(const rf_panel *panel, const char *at, int64_t k0, int64_t k1,
                                   void *room) {
  (void)room;
  return (rf_fast_block){.codes = at + k0 * panel->lanes,
                         .stride = 4 * (int64_t)panel->lanes,
                         .d = (const float *)(const void *)at - panel->lanes,
                         .count = (int)((k1 - k0) / RF_FAST_BLOCK),
                         .lanes = panel->lanes};
}
// clang-format off
/* WIDE_MANY(3, 2) defines wide_3_2(part): three rows, two vectors of lanes. */
#define WIDE_MANY(rows, vectors) \
  static __attribute__((noinline)) void wide_##rows##_##vectors(const wide_part *p) { \
    wide_block(rows, vectors, RF_FAST_ROWS, p); \
  }
WIDE_MANY(1, 1) WIDE_MANY(2, 1) WIDE_MANY(3, 1) WIDE_MANY(4, 1)
WIDE_MANY(1, 2) WIDE_MANY(2, 2) WIDE_MANY(3, 2) WIDE_MANY(4, 2)
enum { WIDE_ROWS = 4 };
static const wide_fn WIDE_OF[WIDE_ROWS + 1][2] = {
    {NULL}, {wide_1_1, wide_1_2}, {wide_2_1, wide_2_2}, {wide_3_1, wide_3_2}, {wide_4_1, wide_4_2}};
// clang-format on
static void many_wide(const rf_fast_block *block, const void *strip, int used, bool first, float *sums,
                      const char *ahead, int64_t ahead_bytes) {
  int chunks = (used + WIDE_ROWS - 1) / WIDE_ROWS;
  coming later = coming_of(ahead, ahead_bytes, chunks);
  for (int c = 0; c < chunks; c++) {
    int row = used * c / chunks, rows = used * (c + 1) / chunks - row;
    come(&later);
    for (int lane = 0; lane < block->lanes; lane += 32) {
      wide_part p = {.count = block->count * RF_FAST_BLOCK,
                     .row = row,
                     .strip = strip,
                     .codes = block->codes + 4 * lane,
                     .lanes = block->lanes,
                     .heads = block->d + lane,
                     .first = first,
                     .y = sums + row * RF_PANEL_LANES + lane,
                     .ahead = block->codes + 4 * lane};
      WIDE_OF[rows][block->lanes - lane >= 32](&p);
    }
  }
}

static const rf_fast_isa WIDE = {.pack = pack_wide,
                                 .panels = panels_wide,
                                 .unpack = wide_in_place,
                                 .many = many_wide,
                                 .steps = RF_FAST_WIDE,
                                 .row_bytes = RF_FAST_WIDE_BYTES};
const rf_fast_isa RF_FAST_AVX512BF16 = {.pack = pack,
                                        .panels = panels_product,
                                        .unpack = unpack,
                                        .many = many,
                                        .steps = RF_FAST_BLOCK,
                                        .row_bytes = 4 * RF_FAST_ITEMS,
                                        .wide = &WIDE};
