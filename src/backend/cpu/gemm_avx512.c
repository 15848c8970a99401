/* gemm_avx512.c - the product with 512-bit vectors. A tile of 12 rows x 32 columns uses 24
 * accumulators, two vectors of B and one broadcast of A. */
enum { MR = 12, NR = 32 };
#include "backend/cpu/fast.h"
#include "backend/cpu/gemm_kernels.h"
#include "backend/cpu/gemm_tiles.h"

#define VECTOR __m512
#define LANES 16
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define SPLAT(p) _mm512_set1_ps(*(p))
#define ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#include "backend/cpu/gemm_micro.h"

/* (the formatter would take instances for the beginning of a declaration) */
// clang-format off
MICRO(1) MICRO(2) MICRO(3) MICRO(4) MICRO(5) MICRO(6) MICRO(7) MICRO(8) MICRO(9) MICRO(10) MICRO(11) MICRO(12)
static const rf_gemm_micro micros[] = {
    NULL, micro_1, micro_2, micro_3, micro_4, micro_5, micro_6, micro_7, micro_8, micro_9, micro_10, micro_11, micro_12};
// clang-format on

/* ISA(&RF_FAST_AVX512, NULL) is {"gemm_avx512_12x32", ..., &RF_FAST_AVX512, NULL, NULL, NULL}. */
#define ISA(fast, tiles) \
  { \
    "gemm_avx512_12x32", MR, NR, 2, 2, 1, pack_a, pack_b, micros, begin_tile, finish_tile, stream, \
        stream_panels, fast, tiles, NULL, NULL, NULL \
  }
const rf_gemm_isa RF_GEMM_AVX512 = ISA(&RF_FAST_AVX512, NULL);
/* its products in 8 bits use dot products of byte quadruples */
const rf_gemm_isa RF_GEMM_AVX512BF16 = ISA(&RF_FAST_AVX512BF16, NULL);

/* Products with AMX tiles use the epilogues of the vectors. */
#define TILES(form, a_words, b_words, stream_panels) \
  { \
    "gemm_amx_32x32", RF_TILE_ROWS, RF_TILE_COLUMNS, a_words, b_words, RF_TILE_DEPTH, rf_tiles_pack_a, \
        rf_tiles_pack_b, NULL, begin_tile, finish_tile, NULL, stream_panels, NULL, NULL, \
        RF_TILE_MICROS[form], rf_tiles_open, rf_tiles_close \
  }
static const rf_gemm_isa tiles[RF_TILE_FORMS] = {TILES(0, 1, 1, rf_tiles_stream_panels), TILES(1, 2, 1, NULL),
                                                 TILES(2, 1, 2, NULL)};
const rf_gemm_isa RF_GEMM_AMX = ISA(&RF_FAST_AMX, tiles);
