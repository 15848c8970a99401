/* fast_evex_avx2.c - products in 8 bits with AVX-512 VNNI, in 256-bit vectors. */
#define VNNI_ENCODING "%{evex%} "
#define TABLE RF_FAST_EVEX_VNNI
#define OTHER NULL
#include "backend/cpu/fast_vnni.h"
