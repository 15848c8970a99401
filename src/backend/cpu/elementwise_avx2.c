/* elementwise_avx2.c - the norms, activations, embeddings and optimizer for AVX2. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/dropout.h"
#include "backend/cpu/simd.h"

#include "backend/cpu/norm_body.h" /* included first, because the other bodies use its row helpers */

#include "backend/cpu/elementwise_body.h"
#include "backend/cpu/embed_body.h"
#include "backend/cpu/experts_body.h"
#include "backend/cpu/head_norm_body.h"
#include "backend/cpu/optimizer_body.h"

#define RF_TABLE RF_CPU_ELEMENTWISE_AVX2
#define RF_TABLE_ISA RF_ISA_AVX2
#define RF_TABLE_SUFFIX "avx2"
#include "backend/cpu/elementwise_table.h"
