/* fast_many.h - products of more than RF_FAST_FEW rows. A tile has up to TILE_ROWS rows and two
 * vectors of lanes. Unpacked codes stay in L1. Only the files fast_*.c include this file, after
 * fast_unpack.h, so it is compiled once per ISA. */

// clang-format off
#define FOUR_ROWS(X) X(0, 0) X(0, 1) X(1, 0) X(1, 1) X(2, 0) X(2, 1) X(3, 0) X(3, 1)
#if defined(__AVX512F__)
#define TILE(X) FOUR_ROWS(X) X(4, 0) X(4, 1) X(5, 0) X(5, 1)
enum { TILE_ROWS = 6 };
#else
#define TILE(X) FOUR_ROWS(X)
enum { TILE_ROWS = 4 };
#endif
// clang-format on
enum { TILE_LANES = 2 * W_LANES };

/* Arguments. Multiplies rows of `strip` from `row` on by TILE_LANES lanes from `lane` on. */
typedef struct quads_part {
  const rf_fast_block *block;
  int lane, row;
  const char *strip;
  float *y;
  coming *later;
} quads_part;
/* True if registers can hold the f32 sums of a tile. Otherwise the sums stay in y, in L1. */
RF_INLINE bool holds_sums(int type) {
  return W_LANES == 16 && (HAS_VNNI || words_of(type) == 8 || is_signed(type));
}
#define Q_LOAD(r, l) \
  w_float acc_##r##_##l = w_set(0); \
  if (held && !first && (r) < rows) acc_##r##_##l = W(loadu_ps)(y + (r)*RF_PANEL_LANES + (l)*W_LANES); \
  if (!held && first && (r) < rows) W(storeu_ps)(y + (r)*RF_PANEL_LANES + (l)*W_LANES, acc_##r##_##l);
#define Q_STORE(r, l) \
  if (held && (r) < rows) W(storeu_ps)(y + (r)*RF_PANEL_LANES + (l)*W_LANES, acc_##r##_##l);
#define Q_START(r, l) \
  w_sum sum_##r##_##l = {w_set_word(0), w_set_word(0)}; \
  if (HAS_VNNI && (r) < rows && !offsets) sum_##r##_##l.words = w_set_word(minus[r]);
#define Q_CODES(r, l) const w_codes u##l = codes_of(type, w_load_word(at + 4 * (l)*W_LANES));
#define Q_DOT(r, l) \
  if ((r) < rows) add_products(type, &sum_##r##_##l, &u##l, w_set_word(words[8 * (r) + j]));
#define Q_WIDEN(r, l) \
  if ((r) < rows) widen(type, &sum_##r##_##l);
#define Q_SCALE(r, l) \
  const w_float d##l = W(loadu_ps)(d + (l)*W_LANES), e##l = offsets ? W(loadu_ps)(e + (l)*W_LANES) : d##l;
#define Q_JOIN(r, l) \
  if ((r) < rows) { \
    float *to = y + (r)*RF_PANEL_LANES + (l)*W_LANES; \
    w_float acc = held ? acc_##r##_##l : W(loadu_ps)(to); \
    w_word sum = sum_##r##_##l.words; \
    if (adds_zeros) sum = W(add_epi32)(sum, zeros_of(zero, minus[r])); \
    acc = W(fmadd_ps)(d##l, W(mul_ps)(w_set(scale[r]), w_integer(sum)), acc); \
    if (offsets) acc = W(fmadd_ps)(e##l, w_set(total[r]), acc); \
    if (held) acc_##r##_##l = acc; \
    else W(storeu_ps)(to, acc); \
  }
RF_INLINE void quads(int type, int rows, bool first, const quads_part *p) {
  enum { STRIDE = RF_FAST_ITEMS * RF_FAST_ROWS * 4 };
  const rf_fast_block *block = p->block;
  const int lane = p->lane, row = p->row, zero = zero_bits(type);
  const bool held = holds_sums(type), halves = type == RF_Q_Q6_K, offsets = zero < 0,
             adds_zeros = !HAS_VNNI && !offsets && !is_signed(type);
  const char *strip = p->strip;
  const int turns = halves ? 2 : 1, count = 8 / turns;
  const char *codes = block->codes + 4 * lane;
  const float *d = block->d + lane, *e = offsets ? block->e + lane : d;
  float *y = p->y + row * RF_PANEL_LANES + lane;
  TILE(Q_LOAD)
  for (int b = 0; b < block->count; b++, strip += STRIDE, codes += block->stride) {
    come(p->later);
#pragma GCC unroll 2
    for (int h = 0; h < turns; h++, d += RF_PANEL_LANES, e += RF_PANEL_LANES) {
      const int32_t *words = (const int32_t *)(const void *)strip + 8 * row + h * count;
      const float *scale = (const float *)(const void *)(strip + RF_FAST_BLOCK * RF_FAST_ROWS) + row,
                  *total = scale + RF_FAST_ROWS;
      const int32_t *minus = (const int32_t *)(const void *)total + (halves ? 2 + h : 1) * RF_FAST_ROWS;
      TILE(Q_START)
#pragma GCC unroll 8
      for (int j = 0; j < count; j++) {
        const char *at = codes + 4 * RF_PANEL_LANES * (h * count + j);
        Q_CODES(0, 0)
        Q_CODES(0, 1)
        TILE(Q_DOT)
        if ((j + 1) % words_of(type) > 0 && j + 1 < count) continue;
        TILE(Q_WIDEN)
      }
      Q_SCALE(0, 0)
      Q_SCALE(0, 1)
      TILE(Q_JOIN)
    }
  }
  TILE(Q_STORE)
}

/* Blocks of 128 values. The integer sums stay in registers. */
#define L_ZERO(r, l) w_word all_##r##_##l = w_set_word(0);
#define L_START(r, l) w_sum sum_##r##_##l = {w_set_word(0), w_set_word(0)};
#define L_DOT(r, l) \
  if ((r) < rows) add_products(type, &sum_##r##_##l, &u##l, w_set_word(words[16 * (r) + j]));
#define L_ADD(r, l) \
  if ((r) < rows) add_run(&all_##r##_##l, &sum_##r##_##l, c##l);
#define L_NONE(r, l) w_word off_##r##_##l = w_set_word(0);
#define L_OFFSET(r, l) \
  if ((r) < rows) off_##r##_##l = dot_pairs(off_##r##_##l, m##l, w_set_word(pairs[r]));
#define L_JOIN(r, l) \
  if ((r) < rows) { \
    float *to = y + (r)*RF_PANEL_LANES + (l)*W_LANES; \
    w_float acc = first && half == 0 ? w_set(0) : W(loadu_ps)(to), s = w_set(scale[r]); \
    acc = W(fmadd_ps)(d##l, W(mul_ps)(s, w_integer(all_##r##_##l)), acc); \
    W(storeu_ps)(to, W(fmadd_ps)(e##l, W(mul_ps)(s, w_integer(off_##r##_##l)), acc)); \
  }
RF_INLINE void quads_of_long(int type, int rows, bool first, const quads_part *p) {
  enum { RUNS = RF_FAST_LONG / RF_FAST_BLOCK };
  const rf_fast_block *block = p->block;
  const int lane = p->lane, row = p->row;
  const char *strip = p->strip;
  const char *codes = block->codes + 4 * lane;
  const int32_t *c = block->c + lane, *m = block->m + lane;
  w_float d0 = W(loadu_ps)(block->d + lane), d1 = W(loadu_ps)(block->d + lane + W_LANES);
  w_float e0 = W(loadu_ps)(block->e + lane), e1 = W(loadu_ps)(block->e + lane + W_LANES);
  float *y = p->y + row * RF_PANEL_LANES + lane;
  for (int half = 0; half < RF_FAST_KC / RF_FAST_LONG;
       half++, strip += rf_fast_strip_bytes(true, RF_FAST_ROWS, RF_FAST_LONG)) {
    const rf_fast_long rest = rf_fast_long_at(strip, RF_FAST_ROWS);
    const float *scale = rest.scale + row;
    TILE(L_ZERO)
    for (int run = 0; run < RUNS; run++, codes += 4 * 8 * RF_PANEL_LANES, c += RF_PANEL_LANES) {
      come(p->later);
      const int32_t *words =
          (const int32_t *)(const void *)(strip + run / 2 * 64 * RF_FAST_ROWS + run % 2 * 32 + 64 * row);
      TILE(L_START)
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) {
        const char *at = codes + 4 * RF_PANEL_LANES * j;
        Q_CODES(0, 0)
        Q_CODES(0, 1)
        TILE(L_DOT)
        if ((j + 1) % words_of(type) > 0) continue;
        w_word c0 = w_load_word(c), c1 = w_load_word(c + W_LANES);
        TILE(L_ADD)
      }
    }
    TILE(L_NONE)
#pragma GCC unroll 2
    for (int i = 0; i < RUNS / 2; i++, m += RF_PANEL_LANES) {
      const int32_t *pairs = rest.pairs + i * RF_FAST_ROWS + row;
      w_word m0 = w_load_word(m), m1 = w_load_word(m + W_LANES);
      TILE(L_OFFSET)
    }
    TILE(L_JOIN)
  }
}
/* MANY_OF(q4_0, type) defines many_q4_0_3(part, first) for three rows. With 512-bit vectors, these
 * functions also read 32 lanes of a panel of 16 or 48 lanes, because its unpacked codes have room
 * for RF_PANEL_LANES lanes. */
RF_INLINE void quads_of(int type, int rows, bool first, const quads_part *p) {
  if (type == RF_Q_Q4_K || type == RF_Q_Q5_K) quads_of_long(type, rows, first, p);
  else quads(type, rows, first, p);
}
// clang-format off
#define MANY_ROWS_OF(name, type, rows) \
  static __attribute__((noinline)) void many_##name##_##rows(const quads_part *p, bool first) { \
    if (holds_sums(type) && first) quads_of(type, rows, true, p); \
    else quads_of(type, rows, holds_sums(type) ? false : first, p); \
  }
#if defined(__AVX512F__)
#define MANY_OF(name, type, ...) \
  MANY_ROWS_OF(name, type, 1) MANY_ROWS_OF(name, type, 2) MANY_ROWS_OF(name, type, 3) \
  MANY_ROWS_OF(name, type, 4) MANY_ROWS_OF(name, type, 5) MANY_ROWS_OF(name, type, 6)
#define MANY_ROW(name, ...) \
  {NULL,             many_##name##_1, many_##name##_2, many_##name##_3, \
   many_##name##_4, many_##name##_5, many_##name##_6},
#else
#define MANY_OF(name, type, ...) \
  MANY_ROWS_OF(name, type, 1) MANY_ROWS_OF(name, type, 2) MANY_ROWS_OF(name, type, 3) \
  MANY_ROWS_OF(name, type, 4)
#define MANY_ROW(name, ...) {NULL, many_##name##_1, many_##name##_2, many_##name##_3, many_##name##_4},
#endif
/* With VNNI, one kernel computes all types of the same form. */
#if defined(VNNI_ENCODING)
#define EACH_FORM(X) X(plain, RF_Q_Q8_0) X(halves, RF_Q_Q6_K) X(offsets, RF_Q_Q4_1) X(long, RF_Q_Q4_K)
RF_INLINE int form_number(const rf_fast_block *block) {
  return block->c ? 3 : block->e ? 2 : block->halves ? 1 : 0;
}
#else
#define EACH_FORM EACH_CODED
RF_INLINE int form_number(const rf_fast_block *block) {
#define TYPE_OF(name, type, ...) type,
  static const int NUMBERS[] = {EACH_CODED(TYPE_OF)};
#undef TYPE_OF
  int i = 0;
  while (NUMBERS[i] != block->type) i++;
  return i;
}
#endif
EACH_FORM(MANY_OF)
static void (*const MANY[][TILE_ROWS + 1])(const quads_part *p, bool first) = {EACH_FORM(MANY_ROW)};
// clang-format on

static void many(const rf_fast_block *block, const void *strip, int used, bool first, float *sums,
                 const char *ahead, int64_t ahead_bytes) {
  int chunks = (used + TILE_ROWS - 1) / TILE_ROWS, tiles = (block->lanes + TILE_LANES - 1) / TILE_LANES,
      form = form_number(block);
  coming later = coming_of(ahead, ahead_bytes, chunks * tiles * block->count);
  for (int c = 0; c < chunks; c++) {
    int row = used * c / chunks, rows = used * (c + 1) / chunks - row;
    for (int lane = 0; lane < block->lanes; lane += TILE_LANES)
      MANY[form][rows](&(quads_part){block, lane, row, strip, sums, &later}, first);
  }
}

/* Unpacks the codes, and c and m as integers. Does not multiply the codes by c. */
RF_INLINE rf_fast_block unpack_long(int type, const rf_panel *panel, const char *at, int64_t k0, char *room) {
  const char *stored = at + k0 / RF_FAST_KC * panel->block_bytes;
  rf_fast_block block = long_block(type, panel, room);
  float *d = (float *)(void *)(room + RF_FAST_CODES);
  int32_t *c = (int32_t *)(void *)(d + 2 * RF_PANEL_LANES), *m = c + 8 * RF_PANEL_LANES;
  const w_run none = {.fifths = w_set_word(0)};
  for (int l = 0; l < panel->lanes; l += W_LANES) {
    w_block b = {stored + 2 * l, stored + 4 * panel->lanes + 4 * l, panel->lanes};
#pragma GCC unroll 8
    for (int run = 0; run < RF_FAST_KC / RF_FAST_BLOCK; run++) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) {
        w_word codes = operand_codes(type, run_low(type, &b, run, j / 4, j % 4),
                                     run_high(type, &b, run, j / 4, j % 4, &none));
        w_store_word(room + 4 * ((8 * run + j) * RF_PANEL_LANES + l), codes);
      }
      w_word scale, offset;
      parts_of_k4(&b, run, &scale, &offset);
      w_store_word(c + run * RF_PANEL_LANES + l, HAS_VNNI ? scale : both_halves(scale));
      if (run % 2 == 0) w_store_word(m + run / 2 * RF_PANEL_LANES + l, long_pair(&b, run / 2));
    }
    w_float scale, offset;
    long_scale(&b, &scale, &offset);
    W(storeu_ps)(d + l, scale);
    W(storeu_ps)(d + RF_PANEL_LANES + l, offset);
  }
  return block;
}
