/* gemm_amx.c - products with bf16 operands on AMX tiles (gemm.h defines the arithmetic). A product
 * of 32 rows by 32 columns uses four tiles for sums, two tiles for rows and two tiles for columns.
 * A tile of 16 rows is [row][32 values of k], and a tile of 16 columns is [pair of k][column][2].
 * Zeros fill an incomplete tile. Packed tiles are ordered by k, then by piece, then by row or
 * column. Pieces are bf16. An f32 value has two pieces, and a bf16 value has one piece. */
#include "backend/cpu/gemm_tiles.h"
#include "backend/cpu/tiles.h"

#include <immintrin.h>
#include <string.h>

enum { SIXTEEN = 16, DEPTH = RF_TILE_DEPTH, TILE_BYTES = 1024, PIECES = 2 };

/* ---- packing one tile ------------------------------------------------------------------------ */

/* The source of a tile. A line is a row of A or a column of B. Element k of line i is from[i *
 * line_step + k * k_step]. Either line_step or k_step is 1. */
typedef struct block {
  const void *from;
  rf_dtype dtype;
  int64_t line_step, k_step;
  int lines, steps; /* number of lines; number of values of k */
} block;
static const void *element_at(const void *from, rf_dtype dtype, int64_t i) {
  return (const char *)from + i * (dtype == RF_BF16 ? 2 : 4);
}

/* Splits f32 into two bf16 pieces: the upper half, and the remainder rounded to nearest even. For
 * NaNs and infinities, the second piece is 0. */
static inline void cut(__m512 x, __m512i piece[PIECES]) {
  const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
  __m512i bits = _mm512_castps_si512(x), first = _mm512_and_si512(bits, upper);
  /* the lanes that are neither NaN nor infinity */
  __mmask16 finite = (__mmask16)~_mm512_fpclass_ps_mask(x, 0x99);
  first = _mm512_mask_or_epi32(first, _mm512_fpclass_ps_mask(x, 0x81), first, _mm512_set1_epi32(0x00400000));
  __m512 rest = _mm512_maskz_sub_ps(finite, x, _mm512_castsi512_ps(first));
  __m512i left = _mm512_castps_si512(rest),
          even = _mm512_and_si512(_mm512_srli_epi32(left, 16), _mm512_set1_epi32(1));
  piece[0] = first;
  piece[1] =
      _mm512_and_si512(_mm512_add_epi32(left, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff))), upper);
}
/* Sets v[i] to the 32 values of k of line i. `full` means that the block has 16 lines and 32 values
 * of k. */
static inline void lines_of_bf16(const block *b, bool full, __m512i v[SIXTEEN]) {
  __mmask32 mask = full || b->steps >= DEPTH ? 0xffffffffu : (1u << b->steps) - 1;
#pragma GCC unroll 16
  for (int i = 0; i < SIXTEEN; i++)
    v[i] = full || i < b->lines ? _mm512_maskz_loadu_epi16(mask, (const uint16_t *)b->from + i * b->line_step)
                                : _mm512_setzero_si512();
}
/* Sets v[p] to values 2p and 2p + 1 of k of all sixteen lines. */
static inline void pairs_of_bf16(const block *b, bool full, __m512i v[SIXTEEN]) {
  __mmask16 mask = full || b->lines >= SIXTEEN ? 0xffff : (__mmask16)((1u << b->lines) - 1);
  const uint16_t *at = b->from;
#pragma GCC unroll 16
  for (int p = 0; p < SIXTEEN; p++, at += 2 * b->k_step) {
    __m256i even = full || 2 * p < b->steps ? _mm256_maskz_loadu_epi16(mask, at) : _mm256_setzero_si256();
    __m256i odd = full || 2 * p + 1 < b->steps ? _mm256_maskz_loadu_epi16(mask, at + b->k_step)
                                               : _mm256_setzero_si256();
    v[p] = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
  }
}
/* The next two functions convert, and also split f32 values into bf16 pieces. */
static inline void lines_of_f32(const block *b, __m512i v[PIECES][SIXTEEN]) {
  static const uint16_t upper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                     33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i which = _mm512_loadu_si512(upper); /* the upper halves of two vectors */
  const int steps = b->steps;
  __mmask16 low = steps >= 16 ? 0xffff : (__mmask16)((1u << steps) - 1);
  __mmask16 high = steps >= DEPTH ? 0xffff : steps <= 16 ? 0 : (__mmask16)((1u << (steps - 16)) - 1);
  for (int i = 0; i < SIXTEEN; i++) {
    const float *at = (const float *)b->from + i * b->line_step;
    __m512i left[PIECES], right[PIECES];
    cut(i < b->lines ? _mm512_maskz_loadu_ps(low, at) : _mm512_setzero_ps(), left);
    cut(i < b->lines ? _mm512_maskz_loadu_ps(high, at + 16) : _mm512_setzero_ps(), right);
    for (int p = 0; p < PIECES; p++) v[p][i] = _mm512_permutex2var_epi16(left[p], which, right[p]);
  }
}
static inline void pairs_of_f32(const block *b, __m512i v[PIECES][SIXTEEN]) {
  __mmask16 mask = b->lines >= SIXTEEN ? 0xffff : (__mmask16)((1u << b->lines) - 1);
  const float *at = b->from;
  for (int p = 0; p < SIXTEEN; p++, at += 2 * b->k_step) {
    __m512i even[PIECES], odd[PIECES];
    cut(2 * p < b->steps ? _mm512_maskz_loadu_ps(mask, at) : _mm512_setzero_ps(), even);
    cut(2 * p + 1 < b->steps ? _mm512_maskz_loadu_ps(mask, at + b->k_step) : _mm512_setzero_ps(), odd);
    for (int i = 0; i < PIECES; i++)
      v[i][p] = _mm512_or_si512(_mm512_srli_epi32(even[i], 16),
                                _mm512_and_si512(odd[i], _mm512_set1_epi32((int)0xffff0000u)));
  }
}
/* Transposes 16 x 16 dwords, which converts between lines and pairs. */
static inline void transpose(__m512i v[SIXTEEN]) {
  rf_v16 x[SIXTEEN];
#pragma GCC unroll 16
  for (int i = 0; i < SIXTEEN; i++) x[i] = _mm512_castsi512_ps(v[i]);
  rf_v16_transpose(x);
#pragma GCC unroll 16
  for (int i = 0; i < SIXTEEN; i++) v[i] = _mm512_castps_si512(x[i]);
}
static inline void store(const __m512i v[SIXTEEN], char *to) {
#pragma GCC unroll 16
  for (int i = 0; i < SIXTEEN; i++) _mm512_store_si512(to + 64 * i, v[i]);
}
/* Packs a block as a tile of rows (lines) or of columns (pairs). */
static inline void pack_bf16(const block *b, bool full, bool as_lines, char *to) {
  __m512i v[SIXTEEN];
  bool lines = b->k_step == 1;
  if (lines) lines_of_bf16(b, full, v);
  else pairs_of_bf16(b, full, v);
  if (lines != as_lines) transpose(v);
  store(v, to);
}
/* Packs an f32 block as two tiles, one for each piece, `apart` bytes apart. */
static void pack_f32(const block *b, bool as_lines, char *to, int64_t apart) {
  __m512i v[PIECES][SIXTEEN];
  bool lines = b->k_step == 1;
  if (lines) lines_of_f32(b, v);
  else pairs_of_f32(b, v);
  for (int p = 0; p < PIECES; p++, to += apart) {
    if (lines != as_lines) transpose(v[p]);
    store(v[p], to);
  }
}
static inline void pack(const block *b, bool as_lines, char *to, int64_t apart) {
  _Alignas(64) char room[SIXTEEN * DEPTH * 4];
  block copy = {room, b->dtype, DEPTH, 1, SIXTEEN, DEPTH};
  if (b->k_step != 1 && b->line_step != 1) { /* if no stride is 1, elements are copied one by one */
    int item = b->dtype == RF_BF16 ? 2 : 4;
    memset(room, 0, sizeof room);
    for (int i = 0; i < b->lines; i++)
      for (int k = 0; k < b->steps; k++)
        memcpy(room + (i * DEPTH + k) * item, element_at(b->from, b->dtype, i * b->line_step + k * b->k_step),
               (size_t)item);
    b = &copy;
  }
  if (b->dtype == RF_F32) pack_f32(b, as_lines, to, apart);
  else if (b->lines == SIXTEEN && b->steps == DEPTH) pack_bf16(b, true, as_lines, to);
  else pack_bf16(b, false, as_lines, to);
}
static int at_most(int64_t count, int most) { return count < most ? (int)count : most; }
static int pieces_of(rf_dtype dtype) { return dtype == RF_BF16 ? 1 : PIECES; }

/* ---- packing --------------------------------------------------------------------------------- */

void rf_tiles_pack_a(const rf_gemm *g, int64_t i0, int rows, int64_t k0, int64_t kc, float *to) {
  int tiles = rows > SIXTEEN ? 2 : 1, pieces = pieces_of(g->a_dtype);
  char *at = (char *)to;
  for (int64_t k = 0; k < kc; k += DEPTH, at += tiles * pieces * TILE_BYTES)
    for (int h = 0; h < tiles; h++) {
      int64_t row = i0 + h * SIXTEEN;
      block b = {element_at(g->a, g->a_dtype, row * g->a_row + (k0 + k) * g->a_step),
                 g->a_dtype,
                 g->a_row,
                 g->a_step,
                 at_most(rows - h * SIXTEEN, SIXTEEN),
                 at_most(kc - k, DEPTH)};
      pack(&b, true, at + h * TILE_BYTES, tiles * TILE_BYTES);
    }
}

/* Packs sixteen columns that are not contiguous in one panel. Copies them to [k][16] first. */
static void pack_gathered(const rf_gemm *g, int64_t j, int cols, int64_t k, int steps, char *to) {
  _Alignas(64) uint16_t room[DEPTH * SIXTEEN] = {0};
  for (int p = 0; p < steps; p++)
    for (int i = 0; i < cols; i++) {
      int64_t output = g->transposed ? k + p : j + i, value = g->transposed ? j + i : k + p;
      rf_panel panel = rf_panels_find(g->panels, output);
      room[p * SIXTEEN + i] =
          ((const uint16_t *)(const void *)((const char *)g->b +
                                            panel.offset))[value * panel.lanes + output - panel.first];
    }
  pack(&(block){room, RF_BF16, 1, SIXTEEN, SIXTEEN, DEPTH}, false, to, TILE_BYTES);
}
static void pack_lanes(const rf_gemm *g, int64_t j, int cols, int64_t k0, int64_t kc, char *to) {
  rf_panel panel = rf_panels_find(g->panels, j);
  int lane = (int)(j - panel.first);
  bool whole = lane + cols <= panel.used && lane + SIXTEEN <= panel.lanes;
  const uint16_t *at =
      (const uint16_t *)(const void *)((const char *)g->b + panel.offset) + k0 * panel.lanes + lane;
  for (int64_t k = 0; k < kc; k += DEPTH, at += DEPTH * panel.lanes, to += 2 * TILE_BYTES) {
    int steps = at_most(kc - k, DEPTH);
    if (!whole) {
      pack_gathered(g, j, cols, k0 + k, steps, to);
      continue;
    }
    pack(&(block){at, RF_BF16, 1, panel.lanes, cols, steps}, false, to, TILE_BYTES);
  }
}
/* Packs one step of a full panel. Prefetches memory AHEAD steps of k ahead, because hardware
 * prefetchers stop at page ends. */
enum { AHEAD = 32 };
static inline void pack_panel_step(const char *at, const char *later, char *left, char *right) {
  enum { ROW = 2 * RF_PANEL_LANES };
  /* the unpack instruction interleaves the four words of each 128-bit half */
  const __m512i halves = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
#pragma GCC unroll 4
  for (int p = 0; p < SIXTEEN; p++, at += 2 * ROW, later += 2 * ROW) {
    for (int line = 0; line < 4; line++) _mm_prefetch(later + 64 * line, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      __m512i even = _mm512_permutexvar_epi64(halves, _mm512_loadu_si512(at + 64 * h)),
              odd = _mm512_permutexvar_epi64(halves, _mm512_loadu_si512(at + ROW + 64 * h));
      char *to = (h ? right : left) + 64 * p;
      _mm512_store_si512(to, _mm512_unpacklo_epi16(even, odd));
      _mm512_store_si512(to + TILE_BYTES, _mm512_unpackhi_epi16(even, odd));
    }
  }
}
void rf_tiles_pack_panel(const rf_gemm *g, const rf_panel *panel, int64_t k0, int64_t kc, float *left,
                         float *right) {
  enum { PART = DEPTH * 2 * RF_PANEL_LANES, LATER = AHEAD * 2 * RF_PANEL_LANES };
  const char *at = (const char *)g->b + panel->offset + k0 * 2 * RF_PANEL_LANES;
  char *to[2] = {(char *)left, (char *)right};
  int64_t k = 0;
  for (; k + DEPTH <= kc; k += DEPTH, at += PART) {
    pack_panel_step(at, at + LATER, to[0], to[1]);
    to[0] += 2 * TILE_BYTES;
    to[1] += 2 * TILE_BYTES;
  }
  if (k == kc) return;
  _Alignas(64) char last[PART] = {0}; /* zeros follow after the end of k */
  memcpy(last, at, (size_t)(kc - k) * 2 * RF_PANEL_LANES);
  pack_panel_step(last, last, to[0], to[1]);
}
/* For a transposed B. The lanes of a panel are values of k, and the values of a lane are
 * columns. */
static void pack_transposed(const rf_gemm *g, int64_t j, int cols, int64_t k0, int64_t kc, char *to) {
  for (int64_t k = 0; k < kc; k += DEPTH, to += 2 * TILE_BYTES) {
    rf_panel panel = rf_panels_find(g->panels, k0 + k);
    int lane = (int)(k0 + k - panel.first), steps = at_most(kc - k, DEPTH);
    if (lane + steps > panel.used) {
      pack_gathered(g, j, cols, k0 + k, steps, to);
      continue;
    }
    const uint16_t *at =
        (const uint16_t *)(const void *)((const char *)g->b + panel.offset) + j * panel.lanes + lane;
    pack(&(block){at, RF_BF16, panel.lanes, 1, cols, steps}, false, to, TILE_BYTES);
  }
}
static void add_columns(const rf_gemm *g, int64_t j, int cols, int64_t k0, int64_t kc, bool resume,
                        float *sum) {
  __mmask16 mask = cols >= SIXTEEN ? 0xffff : (__mmask16)((1u << cols) - 1);
  __m512 s = resume ? _mm512_maskz_loadu_ps(mask, sum) : _mm512_setzero_ps();
  for (int64_t k = k0; k < k0 + kc; k++) {
    const void *at = element_at(g->b, g->b_dtype, k * g->b_step + j);
    __m512 x = g->b_dtype == RF_F32 ? _mm512_maskz_loadu_ps(mask, at)
                                    : _mm512_castsi512_ps(_mm512_slli_epi32(
                                          _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at)), 16));
    s = _mm512_add_ps(s, x);
  }
  _mm512_mask_storeu_ps(sum, mask, s);
}
void rf_tiles_pack_b(const rf_gemm *g, int64_t j0, int cols, int64_t k0, int64_t kc, float *to, float *sum) {
  int pieces = g->panels ? 1 : pieces_of(g->b_dtype);
  for (int h = 0; h < 2; h++) {
    int64_t j = j0 + h * SIXTEEN;
    int used = at_most(cols - h * SIXTEEN, SIXTEEN);
    char *at = (char *)to + h * TILE_BYTES;
    if (used <= 0) { /* the second half of the last panel may have no columns */
      for (int64_t k = 0; k < kc; k += DEPTH)
        for (int p = 0; p < pieces; p++, at += 2 * TILE_BYTES) memset(at, 0, TILE_BYTES);
      continue;
    }
    if (g->panels && g->transposed) pack_transposed(g, j, used, k0, kc, at);
    else if (g->panels) pack_lanes(g, j, used, k0, kc, at);
    else
      for (int64_t k = 0; k < kc; k += DEPTH, at += 2 * pieces * TILE_BYTES) {
        const void *from = element_at(g->b, g->b_dtype, (k0 + k) * g->b_step + j * g->b_col);
        pack(&(block){from, g->b_dtype, g->b_col, g->b_step, used, at_most(kc - k, DEPTH)}, false, at,
             2 * TILE_BYTES);
      }
    if (sum) add_columns(g, j, used, k0, kc, k0 > 0 || g->column_sum_accumulate, sum + h * SIXTEEN);
  }
}

/* ---- multiplying ----------------------------------------------------------------------------- */

/* Tiles 0 to 3 hold sums, 4 and 5 hold rows, 6 and 7 hold columns. */
static const rf_tile_shapes TILES = RF_WHOLE_TILES;
void rf_tiles_open(void) { _tile_loadconfig(&TILES); }
void rf_tiles_close(void) {
  _mm_sfence(); /* orders the non-temporal stores */
  _tile_release();
}

/* One operand stays in L1. Tile loads of the other operand bypass L1 (tileloaddt1). With 512 steps
 * and 1 MiB of rows in L2, a Sapphire Rapids core reaches 2.9 TFLOP/s of its peak of 3.0. With
 * ordinary loads of both operands, the core reaches 2.0 TFLOP/s. `tiles` is the number of tiles of
 * rows, 1 or 2. a_pieces and b_pieces are the numbers of pieces of an element. At most one of
 * a_pieces and b_pieces may be 2. All fields are compile-time constants. */
#define LOAD_A(tile, at) \
  if (a_stays) _tile_loadd(tile, at, 64); \
  else _tile_stream_loadd(tile, at, 64); \
  FILL
#define LOAD_B(tile, at) \
  if (a_stays) _tile_stream_loadd(tile, at, 64); \
  else _tile_loadd(tile, at, 64); \
  FILL
#define MULTIPLY(to, rows, columns) \
  _tile_dpbf16ps(to, rows, columns); \
  FILL
/* While the core's other hyperthread is busy, adjacent tile instructions wait for each other. With
 * eight other instructions after each tile instruction, a step takes 64 % of the time. Alone, a
 * core loses nothing. */
#define FILL __asm__ volatile("nop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop");
typedef struct form {
  bool a_stays;
  int tiles, a_pieces, b_pieces;
} form;
RF_INLINE void micro(form f, int64_t steps, const float *a, const float *b, const float *from, float *to,
                     rf_tile_errands *errands) {
  const bool a_stays = f.a_stays;
  const int tiles = f.tiles, a_pieces = f.a_pieces, b_pieces = f.b_pieces;
  enum { ROW = 32 * 4 }; /* bytes of a row of sums */
  const char *rows = (const char *)a, *columns = (const char *)b;
  if (from) {
    _tile_loadd(0, from, ROW);
    _tile_loadd(1, from + 16, ROW);
    if (tiles == 2) {
      _tile_loadd(2, from + 16 * 32, ROW);
      _tile_loadd(3, from + 16 * 32 + 16, ROW);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (tiles == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  for (int64_t k = 0; k < steps; k++) {
#pragma GCC unroll 2
    for (int p = 0; p < a_pieces * b_pieces; p++) {
      const bool new_a = p == 0 || a_pieces > 1, new_b = p == 0 || b_pieces > 1;
      if (new_b) {
        LOAD_B(6, columns)
      }
      if (new_a) {
        LOAD_A(4, rows)
      }
      if (new_b) {
        LOAD_B(7, columns + TILE_BYTES)
        columns += 2 * TILE_BYTES;
      }
      if (new_a && tiles == 2) {
        LOAD_A(5, rows + TILE_BYTES)
      }
      MULTIPLY(0, 4, 6)
      MULTIPLY(1, 4, 7)
      if (tiles == 2) {
        MULTIPLY(2, 5, 6)
        MULTIPLY(3, 5, 7)
      }
      if (new_a) rows += tiles * TILE_BYTES;
    }
    if (errands) errands->run(errands);
  }
  _tile_stored(0, to, ROW);
  _tile_stored(1, to + 16, ROW);
  if (tiles == 2) {
    _tile_stored(2, to + 16 * 32, ROW);
    _tile_stored(3, to + 16 * 32 + 16, ROW);
  }
}
/* The constants below are for products of up to sixteen rows with a full panel. Memory bandwidth
 * limits these products. Tiles 0 to 3 keep the sums for all k. In each step of 32 values of k,
 * vector instructions interleave adjacent k and store the pairs in one of SLOTS buffers. A tile
 * loads the buffer DELAY steps later, because a load waits for a recent store to the same address.
 * Interleaving permutes the lanes, so the sums are permuted back. */
enum { SLOTS = 4, DELAY = 2 };
static inline void pair_lanes(const char *at, const char *later, char *to) {
#pragma GCC unroll 4
  for (int p = 0; p < SIXTEEN; p++, at += 4 * RF_PANEL_LANES, later += 4 * RF_PANEL_LANES) {
    for (int line = 0; line < 4; line++) _mm_prefetch(later + 64 * line, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      __m512i even = _mm512_loadu_si512(at + 64 * h),
              odd = _mm512_loadu_si512(at + 64 * h + 2 * RF_PANEL_LANES);
      _mm512_store_si512(to + 2 * h * TILE_BYTES + 64 * p, _mm512_unpacklo_epi16(even, odd));
      _mm512_store_si512(to + (2 * h + 1) * TILE_BYTES + 64 * p, _mm512_unpackhi_epi16(even, odd));
    }
  }
}
/* One or two rows use vectors, which reach 96 % of memory bandwidth; tiles reach 81 %. The low half
 * of a dword belongs to an even lane. The high half belongs to the next odd lane. LANES(X, r)
 * expands to X(r, vector) for each vector. If the product has one panel, r is the row. If the
 * product has one row, r is the panel. `sum` adds whole steps. `even` sums the even k of one step,
 * and `odd` sums the odd k. */
enum { STEP_BYTES = DEPTH * RF_PANEL_LANES * 2, FEWEST = 2 };
/* SOON: prefetch distance in bytes. FLUSH: subnormal operands and results become zeros. */
enum { SOON = 2 << 10, FLUSH = 0x8040 };
#define LANES(X, r) X(r, 0) X(r, 1) X(r, 2) X(r, 3)
#define ROW_SUMS(r, l) __m512 sum_##r##_##l = _mm512_setzero_ps();
#define ROW_CHAINS(r, l) __m512 even_##r##_##l = _mm512_setzero_ps(), odd_##r##_##l = even_##r##_##l;
#define ROW_EVEN(r, l) \
  if ((r) < rows) even_##r##_##l = _mm512_fmadd_ps(x##r, w##l, even_##r##_##l);
#define ROW_ODD(r, l) \
  if ((r) < rows) odd_##r##_##l = _mm512_fmadd_ps(x##r, w##l, odd_##r##_##l);
/* After the end of k, tiles add 0 for padding. ROW_EVEN_ZERO and ROW_ODD_ZERO add the same 0. The
 * addition turns -0 into 0. */
#define ROW_EVEN_ZERO(r, l) even_##r##_##l = _mm512_add_ps(even_##r##_##l, _mm512_setzero_ps());
#define ROW_ODD_ZERO(r, l) odd_##r##_##l = _mm512_add_ps(odd_##r##_##l, _mm512_setzero_ps());
#define ROW_JOIN(r, l) \
  sum_##r##_##l = _mm512_add_ps(sum_##r##_##l, _mm512_add_ps(even_##r##_##l, odd_##r##_##l));
#define ROW_STORE(r) \
  for (int h = 0; h < 2; h++) { \
    const __m512i half = \
        _mm512_add_epi32(_mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), \
                         _mm512_set1_epi32(8 * h)); \
    _mm512_storeu_ps(y + (r)*RF_PANEL_LANES + 16 * h, \
                     _mm512_permutex2var_ps(sum_##r##_0, half, sum_##r##_1)); \
    _mm512_storeu_ps(y + (r)*RF_PANEL_LANES + 32 + 16 * h, \
                     _mm512_permutex2var_ps(sum_##r##_2, half, sum_##r##_3)); \
  }
#define WIDEN_LANES \
  __m512i left = _mm512_loadu_si512(at), right = _mm512_loadu_si512(at + 64); \
  __m512 w0 = _mm512_castsi512_ps(_mm512_slli_epi32(left, 16)), \
         w1 = _mm512_castsi512_ps(_mm512_and_si512(left, upper)); \
  __m512 w2 = _mm512_castsi512_ps(_mm512_slli_epi32(right, 16)), \
         w3 = _mm512_castsi512_ps(_mm512_and_si512(right, upper)); \
  _mm_prefetch(at + SOON, _MM_HINT_T0); \
  _mm_prefetch(at + SOON + 64, _MM_HINT_T0); \
  at += 2 * RF_PANEL_LANES;
RF_INLINE void stream_rows(int rows, const char *at, int64_t inner, const void *row0, const void *row1,
                           float *y) {
  const uint32_t *a0 = row0, *a1 = row1;
  const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | FLUSH);
  LANES(ROW_SUMS, 0)
  LANES(ROW_SUMS, 1)
  for (int64_t k = 0; k < inner; k += DEPTH, a0 += DEPTH / 2, a1 += DEPTH / 2) {
    LANES(ROW_CHAINS, 0)
    LANES(ROW_CHAINS, 1)
    int64_t end = inner - k < DEPTH ? inner - k : DEPTH;
#pragma GCC unroll 2
    for (int p = 0; p < end / 2; p++) {
      __m512i pair0 = _mm512_set1_epi32((int)a0[p]), pair1 = _mm512_set1_epi32((int)a1[p]);
      {
        __m512 x0 = _mm512_castsi512_ps(_mm512_slli_epi32(pair0, 16)),
               x1 = _mm512_castsi512_ps(_mm512_slli_epi32(pair1, 16));
        WIDEN_LANES
        LANES(ROW_EVEN, 0)
        LANES(ROW_EVEN, 1)
      }
      {
        __m512 x0 = _mm512_castsi512_ps(_mm512_and_si512(pair0, upper)),
               x1 = _mm512_castsi512_ps(_mm512_and_si512(pair1, upper));
        WIDEN_LANES
        LANES(ROW_ODD, 0)
        LANES(ROW_ODD, 1)
      }
    }
    if (end % 2) {
      __m512 x0 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_set1_epi32((int)a0[end / 2]), 16));
      __m512 x1 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_set1_epi32((int)a1[end / 2]), 16));
      WIDEN_LANES
      LANES(ROW_EVEN, 0)
      LANES(ROW_EVEN, 1)
    }
    if (end < DEPTH - 1) {
      LANES(ROW_EVEN_ZERO, 0)
      LANES(ROW_EVEN_ZERO, 1)
    }
    if (end < DEPTH) {
      LANES(ROW_ODD_ZERO, 0)
      LANES(ROW_ODD_ZERO, 1)
    }
    LANES(ROW_JOIN, 0)
    LANES(ROW_JOIN, 1)
  }
  _mm_setcsr(before);
  ROW_STORE(0)
  if (rows > 1) {
    ROW_STORE(1)
  }
}
/* For one row, alternates between two panels, because hardware prefetchers can follow two
 * streams. */
#define PANEL_STEP(r, from) \
  { \
    enum { rows = r + 1 }; \
    const char *at = from; \
    LANES(ROW_CHAINS, r) \
    _Pragma("GCC unroll 2") for (int p = 0; p < end / 2; p++) { \
      __m512i pair = _mm512_set1_epi32((int)a[p]); \
      { \
        __m512 x##r = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)); \
        WIDEN_LANES \
        LANES(ROW_EVEN, r) \
      } \
      { \
        __m512 x##r = _mm512_castsi512_ps(_mm512_and_si512(pair, upper)); \
        WIDEN_LANES \
        LANES(ROW_ODD, r) \
      } \
    } \
    if (end % 2) { \
      __m512 x##r = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_set1_epi32((int)a[end / 2]), 16)); \
      WIDEN_LANES \
      LANES(ROW_EVEN, r) \
    } \
    if (end < DEPTH - 1) { \
      LANES(ROW_EVEN_ZERO, r) \
    } \
    if (end < DEPTH) { \
      LANES(ROW_ODD_ZERO, r) \
    } \
    LANES(ROW_JOIN, r) \
    from = at; \
  }
static void stream_two(const char *at0, const char *at1, int64_t inner, const void *row, float *y) {
  const uint32_t *a = row;
  const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | FLUSH);
  LANES(ROW_SUMS, 0)
  LANES(ROW_SUMS, 1)
  for (int64_t k = 0; k < inner; k += DEPTH, a += DEPTH / 2) {
    int64_t end = inner - k < DEPTH ? inner - k : DEPTH;
    PANEL_STEP(0, at0)
    PANEL_STEP(1, at1)
  }
  _mm_setcsr(before);
  ROW_STORE(0)
  ROW_STORE(1)
}
/* Copies rows of A from their tiles to contiguous memory. In a tile, every step of a row has its
 * own cache line, so the product would wait for many lines. */
static void side_by_side(const float *a, int64_t rows, int64_t steps, float *to) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < steps; i++)
      _mm512_store_si512((char *)to + 64 * (r * steps + i),
                         _mm512_load_si512((const char *)a + TILE_BYTES * i + 64 * r));
}
static void stream_one(const rf_gemm *g, const rf_panel *panel, const float *a, float *y, float *wide) {
  enum { ROW = RF_PANEL_LANES * 4 };
  const char *at = (const char *)g->b + panel->offset, *rows = (const char *)a;
  const int64_t steps = (g->k + DEPTH - 1) / DEPTH, left = g->k % DEPTH;
  char *room = (char *)wide;
  if (g->m <= FEWEST && g->m * steps * DEPTH * 2 <= SLOTS * STEP_BYTES) {
    side_by_side(a, g->m, steps, wide);
    if (g->m == 1) stream_rows(1, at, g->k, wide, wide, y);
    else stream_rows(2, at, g->k, wide, room + 64 * steps, y);
    return;
  }
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < steps + DELAY; i++) {
    if (i < steps) {
      char *to = room + i % SLOTS * STEP_BYTES;
      if (i + 1 == steps && left) { /* zeros follow after the end of k */
        _Alignas(64) char last[STEP_BYTES] = {0};
        memcpy(last, at + i * STEP_BYTES, (size_t)left * RF_PANEL_LANES * 2);
        pair_lanes(last, last, to);
      } else {
        pair_lanes(at + i * STEP_BYTES, at + i * STEP_BYTES + AHEAD * RF_PANEL_LANES * 2, to);
      }
    }
    const char *soon = rows + (i + 4) * TILE_BYTES;
    for (int64_t r = 0; r < g->m && i + 4 < steps; r++) _mm_prefetch(soon + 64 * r, _MM_HINT_T0);
    if (i < DELAY) continue;
    const char *pairs = room + (i - DELAY) % SLOTS * STEP_BYTES;
    _tile_loadd(4, rows + (i - DELAY) * TILE_BYTES, 64);
    _tile_loadd(5, pairs, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, pairs + TILE_BYTES, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, pairs + 2 * TILE_BYTES, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, pairs + 3 * TILE_BYTES, 64);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, y, ROW);
  _tile_stored(1, y + 16, ROW);
  _tile_stored(2, y + 32, ROW);
  _tile_stored(3, y + 48, ROW);
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
                second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  for (int64_t i = 0; i < g->m; i++)
    for (float *row = y + i * RF_PANEL_LANES, *end = row + RF_PANEL_LANES; row < end; row += 32) {
      __m512 low = _mm512_loadu_ps(row), high = _mm512_loadu_ps(row + 16);
      _mm512_storeu_ps(row, _mm512_permutex2var_ps(low, first, high));
      _mm512_storeu_ps(row + 16, _mm512_permutex2var_ps(low, second, high));
    }
}

void rf_tiles_stream_panels(const rf_gemm *g, const rf_panel *panel, int count, const float *a, float *y,
                            float *wide) {
  const int64_t steps = (g->k + DEPTH - 1) / DEPTH;
  if (count == 2 && g->m == 1 && steps * 64 <= SLOTS * STEP_BYTES) {
    side_by_side(a, 1, steps, wide);
    stream_two((const char *)g->b + panel[0].offset, (const char *)g->b + panel[1].offset, g->k, wide, y);
    return;
  }
  for (int i = 0; i < count; i++) stream_one(g, &panel[i], a, y + i * g->m * RF_PANEL_LANES, wide);
}

/* MICRO(false, 1, 2, 1) defines micro_false_1_2_1(...) { micro((form){false, 1, 2, 1}, ...); } */
#define MICRO(a_stays, tiles, a_pieces, b_pieces) \
  static void micro_##a_stays##_##tiles##_##a_pieces##_##b_pieces(int64_t steps, const float *a, \
                                                                  const float *b, const float *from, \
                                                                  float *to, rf_tile_errands *errands) { \
    micro((form){a_stays, tiles, a_pieces, b_pieces}, steps, a, b, from, to, errands); \
  }
// clang-format off
#define MICROS(a_pieces, b_pieces) \
  MICRO(false, 1, a_pieces, b_pieces) MICRO(false, 2, a_pieces, b_pieces) \
  MICRO(true, 1, a_pieces, b_pieces) MICRO(true, 2, a_pieces, b_pieces)
#define FORM(pieces) \
  {{micro_false_1_##pieces, micro_false_2_##pieces}, {micro_true_1_##pieces, micro_true_2_##pieces}}
MICROS(1, 1) MICROS(2, 1) MICROS(1, 2)
const rf_tile_micro RF_TILE_MICROS[RF_TILE_FORMS][2][2] = {FORM(1_1), FORM(2_1), FORM(1_2)};
// clang-format on
