/* head_avx512.c - the row operations of the head with 512-bit vectors. */
#include "backend/cpu/head_rows.h"

const rf_head_isa RF_HEAD_AVX512 = {&RF_GEMM_AVX512, row_lse, row_sum,    row_gradient,
                                    row_narrow,      row_cap, row_divide, row_top};
const rf_head_isa RF_HEAD_AVX512BF16 = {&RF_GEMM_AVX512BF16, row_lse, row_sum,    row_gradient,
                                        row_narrow,          row_cap, row_divide, row_top};
const rf_head_isa RF_HEAD_AMX = {&RF_GEMM_AMX, row_lse, row_sum,    row_gradient,
                                 row_narrow,   row_cap, row_divide, row_top};
