/* attention_avx2.c - the attention kernels for CPUs with AVX2 and FMA. */
#include "backend/cpu/attention_backward.h"
#include "backend/cpu/attention_cached.h"
#include "backend/cpu/attention_forward.h"

void rf_attention_avx2(const rf_call *call) { attention_run(call); }
void rf_attention_kv_avx2(const rf_call *call) { attention_kv_run(call); }
void rf_attention_bwd_avx2(const rf_call *call) { attention_bwd_run(call); }
