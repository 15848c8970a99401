/* elementwise_avx2.c - the norms, activations, embeddings and optimizer for AVX2. */
#define RF_TABLE RF_CPU_ELEMENTWISE_AVX2
#define RF_TABLE_ISA RF_ISA_AVX2
#define RF_TABLE_SUFFIX "avx2"
#include "backend/cpu/elementwise_table.h"
