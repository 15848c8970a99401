/* fast_amx.c - products in 8 bits of many rows with AMX tiles. A tile product multiplies integers
 * of sixteen rows of A by a run of codes in sixteen lanes of B. Vector instructions then scale and
 * add the integer results. Integer sums are exact, so results are bit-identical to other ISAs.
 * Products with few rows use vector dot products of four bytes instead of tiles. */
#include "backend/cpu/fast_codes.h"
#include "backend/cpu/tiles.h"

#include <string.h>

enum { CODE_BIAS = 0 };
#include "backend/cpu/fast_unpack.h"

/* Tiles 0 to 3 hold sums. For products of 32 values of k, tile 4 holds rows of A and tile 6 codes
 * of B. For products of 64 values of k, tile 5 holds rows and tile 7 codes. */
static const rf_tile_shapes TILES = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 32, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 8, 16}};
static void open_tiles(void) { _tile_loadconfig(&TILES); }
static void close_tiles(void) { _tile_release(); }

/* Tiles store the sums of a run to memory. Vectors read these sums AHEAD runs later. A run of 16 x
 * 16 x 32 takes 20 ns on a Sapphire Rapids core: 5 ns for the product, 5 ns for the store and 8 ns
 * for the vectors. Three other orders reached 85 % of this speed (scaling two runs together), 90 %
 * (starting the next lanes early) and 97 % (four runs for all lanes at once). */
#define SIXTEEN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define ROW_LOAD(r) w_float acc##r = first ? w_set(0) : _mm512_loadu_ps(y + (r)*RF_PANEL_LANES);
#define ROW_STORE(r) _mm512_storeu_ps(y + (r)*RF_PANEL_LANES, acc##r);
#define ROW_JOIN(r) \
  acc##r = _mm512_fmadd_ps( \
      d0, _mm512_mul_ps(w_set(scale[r]), w_integer(_mm512_load_si512(sums + 16 * (r)))), acc##r); \
  if (offsets) acc##r = _mm512_fmadd_ps(e0, w_set(scale[RF_FAST_ROWS + (r)]), acc##r);
/* A tile multiplies a run of 16 values as 32 values, of which 16 have code 0. */
#define MULTIPLY(into, run) \
  _tile_loadd(4, strip + STRIDE * ((run) / turns), RF_FAST_BLOCK); \
  _tile_loadd(6, codes + block->stride * ((run) / turns) + 16 * RF_PANEL_LANES * ((run) % turns), \
              4 * RF_PANEL_LANES); \
  _tile_zero(into); \
  _tile_dpbssd(into, 4, 6); \
  _tile_stored(into, room[(run) % SLOTS], 64);
#define TURN(t) \
  if (i + (t) < runs) { \
    MULTIPLY(t, i + (t)) \
  } \
  if (i >= AHEAD && i + (t) < runs + AHEAD) { \
    const int run = i + (t)-AHEAD; \
    const int32_t *sums = room[run % SLOTS]; \
    const float *scale = \
        (const float *)(const void *)(strip + STRIDE * (run / turns) + RF_FAST_BLOCK * RF_FAST_ROWS); \
    w_float d0 = _mm512_loadu_ps(d + run * RF_PANEL_LANES), \
            e0 = offsets ? _mm512_loadu_ps(e + run * RF_PANEL_LANES) : d0; \
    SIXTEEN(ROW_JOIN) \
  }
typedef struct tiles_part {
  const rf_fast_block *block;
  const char *strip;
  bool first; /* the sums start from 0 */
  float *y;
  coming *later;
} tiles_part;
RF_INLINE void tiles(int count, bool halves, bool offsets, int lane, const tiles_part *p) {
  enum { STRIDE = RF_FAST_ITEMS * RF_FAST_ROWS * 4, AHEAD = 4, SLOTS = 8 };
  _Alignas(64) int32_t room[SLOTS][16 * 16];
  const rf_fast_block *block = p->block;
  const char *strip = p->strip, *codes = block->codes + 4 * lane;
  const int turns = halves ? 2 : 1, runs = count * turns;
  const bool first = p->first;
  float *y = p->y + lane;
  const float *d = block->d + lane, *e = offsets ? block->e + lane : d;
  SIXTEEN(ROW_LOAD)
#pragma GCC unroll 5
  for (int i = 0; i < runs + AHEAD; i += 4) {
    come(p->later);
    TURN(0)
    TURN(1)
    TURN(2)
    TURN(3)
  }
  SIXTEEN(ROW_STORE)
}
RF_INLINE void kind_of_tiles(int count, const tiles_part *p) {
  for (int lane = 0; lane < p->block->lanes; lane += W_LANES) {
    if (p->block->halves) tiles(count, true, false, lane, p);
    else if (p->block->e) tiles(count, false, true, lane, p);
    else tiles(count, false, false, lane, p);
  }
}

/* ---- q4_k and q5_k ------------------------------------------------------------------------------
 *
 * Unpacking multiplies each code q by the c of its run, so 128 values need one integer sum. The
 * product has two unsigned bytes: low = q (c % 8) and high = q (c / 8), each at most 31 * 7. The
 * layout is [sixteen lanes][64 values of k][low, high][four values of k][lane]. */
enum { CODE_PLANE = 1024, LANES_BYTES = 2 * RF_FAST_KC * W_LANES };

RF_INLINE rf_fast_block unpack_long(int type, const rf_panel *panel, const char *at, int64_t k0, char *room) {
  const char *stored = at + k0 / RF_FAST_KC * panel->block_bytes;
  rf_fast_block block = long_block(type, panel, room);
  float *d = (float *)(void *)(room + RF_FAST_CODES);
  int32_t *m = (int32_t *)(void *)(d + (2 + 8) * RF_PANEL_LANES);
  const w_run none = {.fifths = w_set_word(0)};
  for (int l = 0; l < panel->lanes; l += W_LANES) {
    w_block b = {stored + 2 * l, stored + 4 * panel->lanes + 4 * l, panel->lanes};
#pragma GCC unroll 8
    for (int run = 0; run < RF_FAST_KC / RF_FAST_BLOCK; run++) {
      char *to = room + l / W_LANES * LANES_BYTES + run / 2 * 2 * CODE_PLANE + run % 2 * 8 * 64;
      w_word c, offset;
      parts_of_k4(&b, run, &c, &offset);
      w_word low = w_and(c, w_set_word(7)), high = w_right(c, 3);
      low = w_or(low, w_left(low, 16));
      high = w_or(high, w_left(high, 16));
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) { /* each product of a code and three bits of c stays below 256 */
        w_word codes = operand_codes(type, run_low(type, &b, run, j / 4, j % 4),
                                     run_high(type, &b, run, j / 4, j % 4, &none));
        _mm512_storeu_si512(to + 64 * j, _mm512_mullo_epi16(codes, low));
        _mm512_storeu_si512(to + CODE_PLANE + 64 * j, _mm512_mullo_epi16(codes, high));
      }
      if (run % 2 == 0) _mm512_storeu_si512(m + run / 2 * RF_PANEL_LANES + l, long_pair(&b, run / 2));
    }
    w_float scale, offset;
    long_scale(&b, &scale, &offset);
    _mm512_storeu_ps(d + l, scale);
    _mm512_storeu_ps(d + RF_PANEL_LANES + l, offset);
  }
  return block;
}

/* While tiles compute the sums of 128 values of k, vectors add the stored sums of the previous 128
 * values. Tiles and 512-bit vectors slow each other down, so this loop has few vector
 * instructions. */
typedef int32_t long_sums[2][16 * 16];
#define L_JOIN(r) \
  { \
    w_word low = _mm512_load_si512(sums[0] + 16 * (r)), high = _mm512_load_si512(sums[1] + 16 * (r)); \
    w_float s = w_set(rest.scale[r]), acc = zero ? w_set(0) : _mm512_loadu_ps(y + (r)*RF_PANEL_LANES); \
    acc = _mm512_fmadd_ps(d, _mm512_mul_ps(s, w_integer(_mm512_add_epi32(low, w_left(high, 3)))), acc); \
    w_word all = dot_pairs(w_set_word(0), m0, w_set_word(rest.pairs[r])); \
    all = dot_pairs(all, m1, w_set_word(rest.pairs[RF_FAST_ROWS + (r)])); \
    acc = _mm512_fmadd_ps(e, _mm512_mul_ps(s, w_integer(all)), acc); \
    _mm512_storeu_ps(y + (r)*RF_PANEL_LANES, acc); \
  }
#define L_FOUR(i) L_JOIN(4 * (i)) L_JOIN(4 * (i) + 1) L_JOIN(4 * (i) + 2) L_JOIN(4 * (i) + 3)
#define L_PRODUCT(low, high, i) \
  come(p->later); \
  _tile_loadd(5, rows + 64 * RF_FAST_ROWS * (i), 64); \
  _tile_loadd(7, codes + 2 * CODE_PLANE * (i), 64); \
  _tile_dpbsud(low, 5, 7); \
  _tile_loadd(7, codes + 2 * CODE_PLANE * (i) + CODE_PLANE, 64); \
  _tile_dpbsud(high, 5, 7);
#define L_TILES(low, high, low_before, high_before) \
  if (more) { \
    _tile_zero(low); \
    _tile_zero(high); \
    L_PRODUCT(low, high, 0) \
  } \
  if (before) { \
    _tile_stored(low_before, sums[0], 64); \
    _tile_stored(high_before, sums[1], 64); \
  } \
  if (more) { \
    L_PRODUCT(low, high, 1) \
  } \
  if (before) { \
    SIXTEEN(L_JOIN) \
  }
/* A half is 128 of the RF_FAST_KC values of k. If `more`, tiles multiply half `half` of lanes
 * [lane, lane + 16). If `before`, vectors also add the stored sums of the previous half. */
RF_INLINE void long_tiles(int half, bool more, bool before, int lane, const tiles_part *p) {
  enum { HALF = RF_FAST_LONG_ITEMS * 4 * RF_FAST_ROWS };
  const int past = half ? lane : before ? lane - W_LANES : 0;
  /* true: the previous half has the first values of k, so its sums start from 0 */
  const bool zero = p->first && half;
  const rf_fast_block *block = p->block;
  const char *codes = block->codes + lane / W_LANES * LANES_BYTES + half * 4 * CODE_PLANE,
             *rows = p->strip + half * HALF;
  const rf_fast_long rest = rf_fast_long_at(p->strip + !half * HALF, RF_FAST_ROWS);
  const int32_t *m = block->m + 2 * !half * RF_PANEL_LANES + past;
  _Alignas(64) long_sums sums;
  w_float d = _mm512_loadu_ps(block->d + past), e = _mm512_loadu_ps(block->e + past);
  w_word m0 = w_load_word(m), m1 = w_load_word(m + RF_PANEL_LANES);
  float *y = p->y + past;
  if (half) {
    L_TILES(2, 3, 0, 1)
  } else {
    L_TILES(0, 1, 2, 3)
  }
}
RF_INLINE void long_lanes(const tiles_part *p) {
  long_tiles(0, true, false, 0, p);
  for (int lane = 0;;) {
    long_tiles(1, true, true, lane, p);
    lane += W_LANES;
    if (lane == p->block->lanes) break;
    long_tiles(0, true, true, lane, p);
  }
  long_tiles(0, false, true, p->block->lanes, p);
}

static void many(const rf_fast_block *block, const void *strip, int used, bool first, float *sums,
                 const char *ahead, int64_t ahead_bytes) {
  enum { WHOLE = RF_FAST_KC / RF_FAST_BLOCK };
  (void)used; /* unused rows are zeros */
  int turns = block->c ? 4 : (block->halves ? 2 : 1) * block->count / 4 + 1;
  coming later = coming_of(ahead, ahead_bytes, block->lanes / W_LANES * turns);
  tiles_part p = {block, strip, first, sums, &later};
  if (block->c) long_lanes(&p);
  else if (block->count == WHOLE) kind_of_tiles(WHOLE, &p);
  else kind_of_tiles(block->count, &p);
}

/* The product reads the signed bytes of q8_0 in place, so this function unpacks only the scales. */
static rf_fast_block unpack_signed(const rf_panel *panel, const char *at, int64_t k0, int64_t k1,
                                   void *room) {
  if (panel->type->number != RF_Q_Q8_0 || panel->lanes != RF_PANEL_LANES)
    return unpack(panel, at, k0, k1, room);
  float *d = room;
  const char *first = at + k0 / RF_FAST_BLOCK * panel->block_bytes;
  int count = (int)((k1 - k0) / RF_FAST_BLOCK);
  for (int b = 0; b < count; b++)
    for (int l = 0; l < RF_PANEL_LANES; l += W_LANES)
      _mm512_storeu_ps(d + b * RF_PANEL_LANES + l, w_halves(first + b * panel->block_bytes + 2 * l));
  return (rf_fast_block){.codes = first + 2 * RF_PANEL_LANES,
                         .stride = panel->block_bytes,
                         .d = d,
                         .count = count,
                         .lanes = RF_PANEL_LANES};
}

/* ---- int8: high and low bytes of sixteen rows of A, times 32 lanes of B, which are read in place
 * --------- */

static const rf_tile_shapes WHOLE = RF_WHOLE_TILES;
static void open_whole(void) { _tile_loadconfig(&WHOLE); }

/* If the last codes do not fill a tile, copies these codes and appends zeros. */
static rf_fast_block wide_codes(const rf_panel *panel, const char *at, int64_t k0, int64_t k1, void *room) {
  const int64_t stride = 4 * (int64_t)panel->lanes, bytes = (k1 - k0) * panel->lanes;
  const char *codes = at + k0 * panel->lanes;
  if ((k1 - k0) % 64) {
    memcpy(room, codes, (size_t)bytes);
    memset((char *)room + bytes, 0, (size_t)(RF_FAST_BLOCK * panel->lanes));
    codes = room;
  }
  return (rf_fast_block){.codes = codes,
                         .stride = stride,
                         .d = (const float *)(const void *)at - panel->lanes,
                         .count = (int)((k1 - k0) / RF_FAST_BLOCK),
                         .lanes = panel->lanes};
}
#define WIDE_JOIN(r) \
  { \
    w_word high = _mm512_load_si512(sums[0] + 16 * (r)), low = _mm512_load_si512(sums[1] + 16 * (r)); \
    w_float acc = first ? w_set(0) : _mm512_loadu_ps(y + (r)*RF_PANEL_LANES); \
    w_float sum = w_integer(_mm512_add_epi32(low, w_left(high, 8))); \
    _mm512_storeu_ps(y + (r)*RF_PANEL_LANES, _mm512_fmadd_ps(d, _mm512_mul_ps(w_set(scale[r]), sum), acc)); \
  }
RF_INLINE void wide_join(const int32_t (*sums)[16 * 16], w_float d, const float *scale, bool first,
                         float *y) {
  SIXTEEN(WIDE_JOIN)
}
static void many_wide(const rf_fast_block *block, const void *strip, int used, bool first, float *y,
                      const char *ahead, int64_t ahead_bytes) {
  enum { PLANE = RF_FAST_WIDE * RF_FAST_ROWS, TILE = 64 * RF_FAST_ROWS };
  _Alignas(64) int32_t sums[2][4][16 * 16];
  const float *scale = (const float *)(const void *)((const char *)strip + 2 * PLANE);
  const int chunks = (block->count + 1) / 2;
  coming later = coming_of(ahead, ahead_bytes, (block->lanes + 31) / 32 * chunks);
  (void)used; /* unused rows are zeros */
  for (int lane = 0; lane < block->lanes; lane += 32) {
    const bool two = block->lanes - lane >= 32;
    const char *a = strip, *b = block->codes + 4 * lane;
    int32_t(*to)[16 * 16] = sums[lane / 32 % 2];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int c = 0; c < chunks; c++, a += TILE, b += 16 * block->stride) {
      come(&later);
      _tile_loadd(4, a, 64);
      _tile_loadd(6, b, (size_t)block->stride);
      _tile_dpbssd(0, 4, 6);
      _tile_loadd(5, a + PLANE, 64);
      _tile_dpbssd(1, 5, 6);
      if (!two) continue;
      _tile_loadd(7, b + 64, (size_t)block->stride);
      _tile_dpbssd(2, 4, 7);
      _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, to[0], 64);
    _tile_stored(1, to[1], 64);
    if (two) {
      _tile_stored(2, to[2], 64);
      _tile_stored(3, to[3], 64);
    }
    wide_join(to, _mm512_loadu_ps(block->d + lane), scale, first, y + lane);
    if (two) wide_join(to + 2, _mm512_loadu_ps(block->d + lane + W_LANES), scale, first, y + lane + W_LANES);
  }
}

static const rf_fast_isa WIDE = {.unpack = wide_codes,
                                 .many = many_wide,
                                 .open = open_whole,
                                 .close = close_tiles,
                                 .steps = RF_FAST_WIDE,
                                 .row_bytes = RF_FAST_WIDE_BYTES};
const rf_fast_isa RF_FAST_AMX = {.few = &RF_FAST_AVX512BF16,
                                 .unpack = unpack_signed,
                                 .many = many,
                                 .open = open_tiles,
                                 .close = close_tiles,
                                 .steps = RF_FAST_BLOCK,
                                 .row_bytes = 4 * RF_FAST_ITEMS,
                                 .wide = &WIDE};
