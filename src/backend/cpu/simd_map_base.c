/* simd_map_base.c - the functions of simd_map.h, compiled for base. */
#define RF_SIMD_MAP rf_simd_map_base
#include "backend/cpu/simd_map_body.h"
