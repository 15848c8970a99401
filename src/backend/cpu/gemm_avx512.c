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

// clang-format off
MICRO(1) MICRO(2) MICRO(3) MICRO(4) MICRO(5) MICRO(6)
MICRO(7) MICRO(8) MICRO(9) MICRO(10) MICRO(11) MICRO(12)
static const rf_gemm_micro micros[] = {
    NULL,    micro_1, micro_2, micro_3,  micro_4,  micro_5, micro_6,
    micro_7, micro_8, micro_9, micro_10, micro_11, micro_12};
// clang-format on

#define NAME .name = "gemm_avx512_12x32"
const rf_gemm_isa RF_GEMM_AVX512 = {NAME, RF_GEMM_KERNELS, .fast = &RF_FAST_AVX512};
/* for products in 8 bits, avx512bf16 also has dot products of four bytes */
const rf_gemm_isa RF_GEMM_AVX512BF16 = {NAME, RF_GEMM_KERNELS, .fast = &RF_FAST_AVX512BF16};

/* Products with AMX tiles use the epilogues of the vector kernels. */
#define TILES \
  .name = "gemm_amx_32x32", .mr = RF_TILE_ROWS, .nr = RF_TILE_COLUMNS, .depth = RF_TILE_DEPTH, \
  .pack_a = rf_tiles_pack_a, .pack_b = rf_tiles_pack_b, .begin = begin_tile, .finish = finish_tile, \
  .open = rf_tiles_open, .close = rf_tiles_close
static const rf_gemm_isa tiles[RF_TILE_FORMS] = {
    {TILES, .a_words = 1, .b_words = 1, .tile_micros = RF_TILE_MICROS[0],
     .stream_panels = rf_tiles_stream_panels},
    {TILES, .a_words = 2, .b_words = 1, .tile_micros = RF_TILE_MICROS[1]},
    {TILES, .a_words = 1, .b_words = 2, .tile_micros = RF_TILE_MICROS[2]}};
const rf_gemm_isa RF_GEMM_AMX = {NAME, RF_GEMM_KERNELS, .fast = &RF_FAST_AMX, .tiles = tiles};
