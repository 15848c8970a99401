/* attention_base.c - the attention kernels in plain C, for any CPU. */
#include "backend/cpu/attention_backward.h"
#include "backend/cpu/attention_cached.h"
#include "backend/cpu/attention_forward.h"

void rf_attention_base(const rf_call *call) { attention_run(call); }
void rf_attention_kv_base(const rf_call *call) { attention_kv_run(call); }
void rf_attention_bwd_base(const rf_call *call) { attention_bwd_run(call); }
