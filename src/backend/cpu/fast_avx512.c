/* fast_avx512.c - products in 8 bits with 512-bit vectors. */
#include "backend/cpu/fast_kernels.h"

const rf_fast_isa RF_FAST_AVX512 = {pack, panels_product, NULL, NULL, NULL, NULL};
