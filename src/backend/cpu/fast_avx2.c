/* fast_avx2.c - products in 8 bits with 256-bit vectors. */
#include "backend/cpu/fast_kernels.h"

const rf_fast_isa RF_FAST_AVX2 = {pack, panels_product, NULL, NULL, NULL, NULL};
