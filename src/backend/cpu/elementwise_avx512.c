/* elementwise_avx512.c - the norms, activations, embeddings and optimizer for AVX-512. */
#define RF_TABLE RF_CPU_ELEMENTWISE_AVX512
#define RF_TABLE_ISA RF_ISA_AVX512
#define RF_TABLE_SUFFIX "avx512"
#include "backend/cpu/elementwise_table.h"
