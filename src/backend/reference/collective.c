/* collective.c - collectives in a group of one chip, and copies of tensors to and from host memory.
 * Most kernels copy x to y, or add x to y if the output accumulates. */
#include "backend/reference/kernels.h"

#include <string.h>

static void copy(const rf_call *call) {
  rf_view x = in_view(call, 0), y = out_view(call, 0);
  int64_t count = rf_tensor_count(rf_out(call, 0));
  if (!adds(call, 0)) {
    memcpy(y.data, x.data, (size_t)rf_tensor_bytes(rf_out(call, 0)));
    return;
  }
  for (int64_t i = 0; i < count; i++) store(y, i, start(call, 0, y, i) + load(x, i));
}

/* x -> y; x and y have the same elements */
void rf_reference_all_gather(const rf_call *call) { copy(call); }
void rf_reference_reduce_scatter(const rf_call *call) { copy(call); }
void rf_reference_all_reduce(const rf_call *call) { copy(call); }
void rf_reference_all_to_all(const rf_call *call) { copy(call); }
void rf_reference_permute(const rf_call *call) { copy(call); }
/* In a group of one chip, an exchange is complete at once. */
void rf_reference_all_gather_start(const rf_call *call) { copy(call); }
void rf_reference_reduce_scatter_start(const rf_call *call) { copy(call); }
void rf_reference_all_reduce_start(const rf_call *call) { copy(call); }
void rf_reference_exchange_wait(const rf_call *call) { (void)call; }
/* In a group of one chip, send has no receiver and does nothing. recv gives zeros. */
void rf_reference_send(const rf_call *call) { (void)call; }
void rf_reference_recv(const rf_call *call) {
  if (!adds(call, 0)) memset(call->out[0], 0, (size_t)rf_tensor_bytes(rf_out(call, 0)));
}
void rf_reference_offload_out(const rf_call *call) { copy(call); }
void rf_reference_offload_in(const rf_call *call) { copy(call); }

/* x -> y; y is this chip's part of x along one axis: a range, or every n-th element of n chips */
void rf_reference_take_run(const rf_call *call) {
  const rf_tensor *x = rf_in(call, 0), *y = rf_out(call, 0);
  int64_t dim = call->op->attr.collective.dim, outer = 1, inner = rf_dtype_bytes(x->dtype),
          mine = y->shape[dim];
  for (int64_t d = 0; d < dim; d++) outer *= x->shape[d];
  for (int64_t d = dim + 1; d < x->rank; d++) inner *= x->shape[d];
  bool strided = call->op->attr.collective.form == RF_FORM_STRIDED;
  int64_t first = rf_rank_of(call) * (strided ? 1 : mine), step = strided ? call->op->attr.group : mine,
          count = strided ? 1 : mine;
  for (int64_t i = 0; i < outer; i++)
    for (int64_t j = 0, at = first; j < mine; j += count, at += step)
      memcpy((char *)call->out[0] + (i * mine + j) * inner,
             (const char *)call->in[0] + (i * x->shape[dim] + at) * inner, (size_t)(count * inner));
}
