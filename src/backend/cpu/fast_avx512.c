/* fast_avx512.c - products in 8 bits with 512-bit vectors. */
#include "backend/cpu/fast_kernels.h"
#include "backend/cpu/fast_wide.h"

static const rf_fast_isa WIDE = {pack_wide,    panels_wide,        NULL, NULL, NULL, NULL,
                                 RF_FAST_WIDE, RF_FAST_WIDE_BYTES, NULL};
const rf_fast_isa RF_FAST_AVX512 = {pack,          panels_product,    NULL, NULL, NULL, NULL,
                                    RF_FAST_BLOCK, 4 * RF_FAST_ITEMS, &WIDE};
