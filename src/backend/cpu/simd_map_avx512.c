/* simd_map_avx512.c - the functions of simd_map.h, compiled for avx512. */
#define RF_SIMD_MAP rf_simd_map_avx512
#include "backend/cpu/simd_map_body.h"
