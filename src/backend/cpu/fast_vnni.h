/* fast_vnni.h - products in 8 bits with dot products of four bytes in 256-bit vectors. Two files
 * include this file. Each file defines VNNI_ENCODING, a prefix of the assembler. AVX-VNNI encodes
 * the dot products with VEX, and AVX-512 VNNI with EVEX. Each file also defines TABLE, the name of
 * its table, and OTHER, the table of the other encoding or NULL. */
#include "backend/cpu/fast_kernels.h"

enum { CODE_BIAS = 128 };
#include "backend/cpu/fast_unpack.h"

#include "backend/cpu/fast_many.h"
#include "backend/cpu/fast_wide.h"

static const rf_fast_isa WIDE = {
    .pack = pack_wide, .panels = panels_wide, .steps = RF_FAST_WIDE, .row_bytes = RF_FAST_WIDE_BYTES};
const rf_fast_isa TABLE = {.pack = pack,
                           .panels = panels_product,
                           .unpack = unpack,
                           .many = many,
                           .steps = RF_FAST_BLOCK,
                           .row_bytes = 4 * RF_FAST_ITEMS,
                           .wide = &WIDE,
                           .evex = OTHER};
