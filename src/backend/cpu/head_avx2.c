/* head_avx2.c - the row operations of the head with 256-bit vectors. */
#include "backend/cpu/head_rows.h"

const rf_head_isa RF_HEAD_AVX2 = {&RF_GEMM_AVX2, row_lse, row_sum,    row_gradient,
                                  row_narrow,    row_cap, row_divide, row_top};
const rf_head_isa RF_HEAD_AVXVNNI = {&RF_GEMM_AVXVNNI, row_lse, row_sum,    row_gradient,
                                     row_narrow,       row_cap, row_divide, row_top};
