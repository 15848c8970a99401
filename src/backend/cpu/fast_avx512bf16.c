/* fast_avx512bf16.c - products in 8 bits with the dot products of byte quadruples. */
#include "backend/cpu/fast_kernels.h"

const rf_fast_isa RF_FAST_AVX512BF16 = {pack, panel_product};
