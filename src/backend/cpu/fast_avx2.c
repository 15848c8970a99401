/* fast_avx2.c - products in 8 bits with 256-bit vectors. */
#include "backend/cpu/fast_kernels.h"

enum { CODE_BIAS = -1 };
#include "backend/cpu/fast_unpack.h"

#include "backend/cpu/fast_many.h"
#include "backend/cpu/fast_wide.h"

static const rf_fast_isa WIDE = {
    .pack = pack_wide, .panels = panels_wide, .steps = RF_FAST_WIDE, .row_bytes = RF_FAST_WIDE_BYTES};
const rf_fast_isa RF_FAST_AVX2 = {.pack = pack,
                                  .panels = panels_product,
                                  .unpack = unpack,
                                  .many = many,
                                  .few_of_256 = true,
                                  .steps = RF_FAST_BLOCK,
                                  .row_bytes = 4 * RF_FAST_ITEMS,
                                  .wide = &WIDE};
