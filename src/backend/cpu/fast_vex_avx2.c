/* fast_vex_avx2.c - products in 8 bits with AVX-VNNI. */
#define VNNI_ENCODING "%{vex%} "
#define TABLE RF_FAST_AVXVNNI
#define OTHER &RF_FAST_EVEX_VNNI
#include "backend/cpu/fast_vnni.h"
