/* fast_amx.c - products in 8 bits of many rows with the tile unit: sixteen rows times sixteen lanes times a run, as integers, which vectors then scale
 * and add up. The sums of integers are exact, so the bits are those of every other ISA; few rows take the dot products of byte quadruples. */
#include "backend/cpu/fast_codes.h"
#include "backend/cpu/tiles.h"

#include <string.h>

enum { CODE_BIAS = 0 };
#include "backend/cpu/fast_unpack.h"

/* Tiles 0 to 3 hold sums, 4 and 6 rows and codes of a run of 32, 5 and 7 of a run of 16. */
static const rf_tile_shapes TILES = {.palette = 1, .row_bytes = {64, 64, 64, 64, 32, 16, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 8, 4}};
static void open_tiles(void) { _tile_loadconfig(&TILES); }
static void close_tiles(void) { _tile_release(); }

/* Sums of a run leave their tile through memory, AHEAD runs before vectors take them. Of a run (20 ns for 16 x 16 x 32 on a Sapphire Rapids core) the
 * product is 5 ns, the store 5 and the vectors 8; they overlap little. What lost: two runs and then both scaled, 85 % of this; runs of the next lanes before
 * the end of these, 90 %; four runs of all lanes at once, 97 %. */
#define SIXTEEN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define ROW_LOAD(r) w_float acc##r = first ? w_set(0) : _mm512_loadu_ps(y + (r)*RF_PANEL_LANES);
#define ROW_STORE(r) _mm512_storeu_ps(y + (r)*RF_PANEL_LANES, acc##r);
#define ROW_JOIN(r) \
  acc##r = _mm512_fmadd_ps(d0, _mm512_mul_ps(w_set(scale[r]), w_integer(_mm512_load_si512(sums + 16 * (r)))), acc##r); \
  if (offsets) acc##r = _mm512_fmadd_ps(e0, w_set(scale[RF_FAST_ROWS + (r)]), acc##r);
#define MULTIPLY(into, rows, columns, run) \
  _tile_loadd(rows, strip + STRIDE * ((run) / turns) + 16 * ((run) % turns), RF_FAST_BLOCK); \
  _tile_loadd(columns, codes + block->stride * ((run) / turns) + 16 * RF_PANEL_LANES * ((run) % turns), 4 * RF_PANEL_LANES); \
  _tile_zero(into); \
  _tile_dpbssd(into, rows, columns); \
  _tile_stored(into, room[(run) % SLOTS], 64);
#define TURN(t) \
  if (i + (t) < runs) { \
    if (halves) { \
      MULTIPLY(t, 5, 7, i + (t)) \
    } else { \
      MULTIPLY(t, 4, 6, i + (t)) \
    } \
  } \
  if (i >= AHEAD && i + (t) < runs + AHEAD) { \
    const int run = i + (t)-AHEAD; \
    const int32_t *sums = room[run % SLOTS]; \
    const float *scale = (const float *)(const void *)(strip + STRIDE * (run / turns) + RF_FAST_BLOCK * RF_FAST_ROWS); \
    w_float d0 = _mm512_loadu_ps(d + run * RF_PANEL_LANES), e0 = offsets ? _mm512_loadu_ps(e + run * RF_PANEL_LANES) : d0; \
    SIXTEEN(ROW_JOIN) \
  }
RF_INLINE void tiles(int count, bool halves, bool offsets, const rf_fast_block *block, int lane, const char *strip, bool first, float *y,
                     coming *later) {
  enum { STRIDE = RF_FAST_ITEMS * RF_FAST_ROWS * 4, AHEAD = 4, SLOTS = 8 };
  _Alignas(64) int32_t room[SLOTS][16 * 16];
  const int turns = halves ? 2 : 1, runs = count * turns;
  const char *codes = block->codes + 4 * lane;
  const float *d = block->d + lane, *e = offsets ? block->e + lane : d;
  SIXTEEN(ROW_LOAD)
#pragma GCC unroll 5
  for (int i = 0; i < runs + AHEAD; i += 4) {
    come(later);
    TURN(0)
    TURN(1)
    TURN(2)
    TURN(3)
  }
  SIXTEEN(ROW_STORE)
}
RF_INLINE void kind_of_tiles(int count, const rf_fast_block *block, const char *strip, bool first, float *sums, coming *later) {
  for (int lane = 0; lane < block->lanes; lane += W_LANES) {
    if (block->halves) tiles(count, true, false, block, lane, strip, first, sums + lane, later);
    else if (block->e) tiles(count, false, true, block, lane, strip, first, sums + lane, later);
    else tiles(count, false, false, block, lane, strip, first, sums + lane, later);
  }
}
static void many(const rf_fast_block *block, const void *strip, int used, bool first, float *sums, const char *ahead, int64_t ahead_bytes) {
  enum { WHOLE = RF_FAST_KC / RF_FAST_BLOCK };
  (void)used; /* others are zeros */
  coming later = coming_of(ahead, ahead_bytes, block->lanes / W_LANES * ((block->halves ? 2 : 1) * block->count / 4 + 1));
  if (block->count == WHOLE) kind_of_tiles(WHOLE, block, strip, first, sums, &later);
  else kind_of_tiles(block->count, block, strip, first, sums, &later);
}

/* Codes of q8_0 are signed bytes as they lie: only their scales are taken out. */
static rf_fast_block unpack_signed(const rf_panel *panel, const char *at, int64_t k0, int64_t k1, void *room) {
  if (panel->type->number != RF_Q_Q8_0 || panel->lanes != RF_PANEL_LANES) return unpack(panel, at, k0, k1, room);
  float *d = room;
  const char *first = at + k0 / RF_FAST_BLOCK * panel->block_bytes;
  int count = (int)((k1 - k0) / RF_FAST_BLOCK);
  for (int b = 0; b < count; b++)
    for (int l = 0; l < RF_PANEL_LANES; l += W_LANES) _mm512_storeu_ps(d + b * RF_PANEL_LANES + l, w_halves(first + b * panel->block_bytes + 2 * l));
  return (rf_fast_block){first + 2 * RF_PANEL_LANES, panel->block_bytes, d, NULL, count, RF_PANEL_LANES, false};
}

/* ---- int8: both bytes of sixteen rows times two times sixteen lanes, as they lie ------------------------------------------------------------ */

static const rf_tile_shapes WHOLE = RF_WHOLE_TILES;
static void open_whole(void) { _tile_loadconfig(&WHOLE); }

/* Zeros behind an end of k that is no whole tile. */
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
RF_INLINE void wide_join(const int32_t (*sums)[16 * 16], w_float d, const float *scale, bool first, float *y) { SIXTEEN(WIDE_JOIN) }
static void many_wide(const rf_fast_block *block, const void *strip, int used, bool first, float *y, const char *ahead, int64_t ahead_bytes) {
  enum { PLANE = RF_FAST_WIDE * RF_FAST_ROWS, TILE = 64 * RF_FAST_ROWS };
  _Alignas(64) int32_t sums[2][4][16 * 16];
  const float *scale = (const float *)(const void *)((const char *)strip + 2 * PLANE);
  const int chunks = (block->count + 1) / 2;
  coming later = coming_of(ahead, ahead_bytes, (block->lanes + 31) / 32 * chunks);
  (void)used; /* others are zeros */
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

static const rf_fast_isa WIDE = {rf_fast_pack_wide, rf_fast_panels_wide, wide_codes,         many_wide, open_whole,
                                 close_tiles,       RF_FAST_WIDE,        RF_FAST_WIDE_BYTES, NULL};
const rf_fast_isa RF_FAST_AMX = {rf_fast_pack_quads, rf_fast_panels_quads, unpack_signed,     many, open_tiles,
                                 close_tiles,        RF_FAST_BLOCK,        4 * RF_FAST_ITEMS, &WIDE};
