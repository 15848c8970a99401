/* optimizer.c - the global gradient norm and AdamW. */
#include "backend/reference/kernels.h"

enum { CHUNK = 4096 };

static double chunk_sum(const rf_call *call, int64_t from) {
  rf_view grad = in_view(call, 0);
  const rf_tensor *tensor = rf_in(call, 0);
  int64_t count = rf_tensor_count(tensor), columns = tensor->shape[tensor->rank - 1],
          part = call->op->attr.sums.own_columns, copies = call->op->attr.sums.copies;
  double sum = 0;
  for (int64_t i = from; i < count && i < from + CHUNK; i++)
    sum += load(grad, i) * load(grad, i) / (copies > 1 && i % columns >= part ? (double)copies : 1);
  return sum;
}

/* grad -> sums (P). Writes the sum of squares to element `element`. Sums each chunk of 4096
 * elements, then adds the sums of the chunks in order. */
void rf_reference_norm_sq(const rf_call *call) {
  rf_view sums = out_view(call, 0);
  double total = 0;
  for (int64_t from = 0; from < rf_tensor_count(rf_in(call, 0)); from += CHUNK)
    total += chunk_sum(call, from);
  store(sums, call->op->attr.sums.element, call->op->attr.group > 1 ? total / call->op->attr.group : total);
}

/* sums (P) -> clip (2): the global norm, and the factor by which AdamW multiplies the gradients */
void rf_reference_clip(const rf_call *call) {
  rf_view sums = in_view(call, 0), out = out_view(call, 0);
  double total = 0, limit = (double)call->op->attr.clip.limit;
  for (int64_t i = 0; i < rf_tensor_count(rf_in(call, 0)); i++) total += load(sums, i);
  double norm = sqrt(total);
  store(out, 0, norm);
  store(out, 1, limit > 0 && norm > limit ? limit / norm : 1.0);
}

/* sums (params) -> total (1) */
void rf_reference_norm_total(const rf_call *call) {
  rf_view sums = in_view(call, 0);
  double total = 0;
  for (int64_t i = 0; i < rf_tensor_count(rf_in(call, 0)); i++) total += load(sums, i);
  store(out_view(call, 0), 0, total);
}

/* grad, master, m, v, clip (2)? -> master, m, v (in place), weight?, sums (P)? as in norm_sq */
void rf_reference_adamw(const rf_call *call) {
  const rf_attr_adamw *attr = &call->op->attr.adamw;
  rf_view grad = in_view(call, 0), master_in = in_view(call, 1), m_in = in_view(call, 2),
          v_in = in_view(call, 3), clip = in_view(call, 4);
  rf_view master = out_view(call, 0), m_out = out_view(call, 1), v_out = out_view(call, 2),
          weight = out_view(call, 3), sums = out_view(call, 4);
  double beta1 = (double)attr->beta1, beta2 = (double)attr->beta2, lr = (double)call->run->lr,
         step = (double)call->run->step;
  double correction1 = 1.0 - pow(beta1, step), correction2 = 1.0 - pow(beta2, step),
         scale = clip.data ? load(clip, 1) : 1.0;
  double total = 0, here = 0;
  for (int64_t i = 0; i < rf_tensor_count(rf_in(call, 0)); i++) {
    if (sums.data && i % CHUNK == 0) total += here = chunk_sum(call, i);
    if (!isfinite(here)) continue;
    double g = load(grad, i) * scale, w = load(master_in, i);
    double m = beta1 * load(m_in, i) + (1.0 - beta1) * g, v = beta2 * load(v_in, i) + (1.0 - beta2) * g * g;
    w -=
        lr * (m / correction1 / (sqrt(v / correction2) + (double)attr->eps) + (double)attr->weight_decay * w);
    store(m_out, i, m);
    store(v_out, i, v);
    store(master, i, w);
    if (weight.data) store(weight, i, load(master, i));
  }
  if (sums.data) store(sums, attr->element, total);
}
