/* simd_map_avx2.c - the functions of simd_map.h, compiled for avx2. */
#define RF_SIMD_MAP rf_simd_map_avx2
#include "backend/cpu/simd_map_body.h"
