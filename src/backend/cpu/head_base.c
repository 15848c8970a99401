/* head_base.c - the row operations of the head in plain C. */
#include "backend/cpu/head_rows.h"

const rf_head_isa RF_HEAD_BASE = {&RF_GEMM_BASE, row_lse, row_sum,    row_gradient,
                                  row_narrow,    row_cap, row_divide, row_top};
