/* attention_part.c - attention of this chip's queries to the keys of all chips, in double. */
#include "backend/reference/kernels.h"

#include <string.h>

typedef struct part {
  const rf_attr_attention *attr;
  rf_view qkv, kv;
  const int32_t *segments;
  int64_t rows, keys, chips, rank;
} part;

static part part_of(const rf_call *call, int segments) {
  const rf_attr_attention *attr = &call->op->attr.attention;
  return (part){attr,
                in_view(call, 0),
                in_view(call, 1),
                ids(call, segments),
                rf_in(call, 0)->shape[0],
                rf_in(call, 1)->shape[0],
                call->op->attr.group > 1 ? call->op->attr.group : 1,
                rf_rank_of(call)};
}

static int64_t q_at(const part *p, int64_t row, int64_t h) {
  return row * (p->attr->heads + 2 * p->attr->kv_heads) * p->attr->head_dim + h * p->attr->head_dim;
}
static int64_t ctx_at(const part *p, int64_t row, int64_t h) {
  return (row * p->attr->heads + h) * p->attr->head_dim;
}
/* Offset of the key (which = 0) or value (which = 1) of row `key` for query head h. */
static int64_t kv_at(const part *p, int64_t key, int which, int64_t h) {
  int64_t of = h / (p->attr->heads / p->attr->kv_heads);
  return ((key * 2 + which) * p->attr->kv_heads + of) * p->attr->head_dim;
}

static double dot(rf_view a, int64_t a_at, rf_view b, int64_t b_at, int64_t count) {
  double sum = 0;
  for (int64_t c = 0; c < count; c++) sum += load(a, a_at + c) * load(b, b_at + c);
  return sum;
}

static double score(const part *p, int64_t row, int64_t key, int64_t h) {
  double sum =
      capped(p->attr->softcap, dot(p->qkv, q_at(p, row, h), p->kv, kv_at(p, key, 0, h), p->attr->head_dim) *
                                   (double)p->attr->scale);
  return p->attr->softmax == RF_BF16 ? rounded(RF_BF16, sum) : sum;
}

/* The first key that query `at` sees in its segment and window. The last key is `at` itself. */
static int64_t first_key(const part *p, int64_t at) {
  int64_t s = 0;
  while (s + 1 < p->keys && p->segments[s + 1] <= at) s++;
  int64_t from = p->segments[s], window = p->attr->window;
  return window > 0 && at - window + 1 > from ? at - window + 1 : from;
}

/* qkv, kv (S,2KH), segments -> ctx, lse */
void rf_reference_attention_part(const rf_call *call) {
  part p = part_of(call, 2);
  rf_view ctx = out_view(call, 0), lse = out_view(call, 1);
  int64_t dim = p.attr->head_dim;
  for (int64_t r = 0; r < p.rows; r++)
    for (int64_t h = 0; h < p.attr->heads; h++) {
      int64_t at = r * p.chips + p.rank, from = first_key(&p, at);
      double most = -INFINITY, sum = 0, *sums = call->workspace;
      memset(sums, 0, (size_t)dim * sizeof *sums);
      for (int64_t j = from; j <= at; j++) most = fmax(most, score(&p, r, j, h));
      for (int64_t j = from; j <= at; j++) sum += exp(score(&p, r, j, h) - most);
      double total = most + log(sum);
      for (int64_t j = from; j <= at; j++) {
        double weight = exp(score(&p, r, j, h) - total);
        for (int64_t c = 0; c < dim; c++) sums[c] += weight * load(p.kv, kv_at(&p, j, 1, h) + c);
      }
      for (int64_t c = 0; c < dim; c++) store(ctx, ctx_at(&p, r, h) + c, sums[c]);
      if (lse.data) store(lse, h * p.rows + r, total);
    }
}

/* The workspace has the sums of one row, and the gradients of all keys and values. */
size_t rf_reference_attention_part_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  return ((size_t)op->attr.attention.head_dim + (size_t)rf_tensor_count(&graph->tensor[op->input[1]])) *
         sizeof(double);
}

/* qkv, kv, ctx, lse, dctx, segments -> dq, dkv */
void rf_reference_attention_part_bwd(const rf_call *call) {
  part p = part_of(call, 5);
  rf_view ctx = in_view(call, 2), lse = in_view(call, 3), dctx = in_view(call, 4), dq = out_view(call, 0),
          dkv = out_view(call, 1);
  int64_t dim = p.attr->head_dim, count = rf_tensor_count(rf_in(call, 1));
  double *row = call->workspace, *sums = row + dim;
  memset(sums, 0, (size_t)count * sizeof *sums);
  for (int64_t r = 0; r < p.rows; r++)
    for (int64_t h = 0; h < p.attr->heads; h++) {
      int64_t at = r * p.chips + p.rank;
      double delta = dot(dctx, ctx_at(&p, r, h), ctx, ctx_at(&p, r, h), dim);
      memset(row, 0, (size_t)dim * sizeof *row);
      for (int64_t j = first_key(&p, at); j <= at; j++) {
        double s = score(&p, r, j, h), weight = exp(s - load(lse, h * p.rows + r));
        double ds = weight * (dot(dctx, ctx_at(&p, r, h), p.kv, kv_at(&p, j, 1, h), dim) - delta) *
                    (double)p.attr->scale * cap_slope(p.attr->softcap, s);
        for (int64_t c = 0; c < dim; c++) {
          row[c] += ds * load(p.kv, kv_at(&p, j, 0, h) + c);
          sums[kv_at(&p, j, 0, h) + c] += ds * load(p.qkv, q_at(&p, r, h) + c);
          sums[kv_at(&p, j, 1, h) + c] += weight * load(dctx, ctx_at(&p, r, h) + c);
        }
      }
      for (int64_t c = 0; c < dim; c++) store(dq, ctx_at(&p, r, h) + c, row[c]);
    }
  for (int64_t i = 0; i < count; i++) store(dkv, i, sums[i]);
}

/* qkv -> kv (n,2KH) */
void rf_reference_kv_rows(const rf_call *call) {
  const rf_attr_attention *attr = &call->op->attr.attention;
  rf_view qkv = in_view(call, 0), kv = out_view(call, 0);
  int64_t width = rf_in(call, 0)->shape[1], narrow = rf_out(call, 0)->shape[1],
          skip = (int64_t)attr->heads * attr->head_dim;
  for (int64_t i = 0; i < rf_tensor_count(rf_out(call, 0)); i++)
    store(kv, i, load(qkv, i / narrow * width + skip + i % narrow));
}

/* dq (n,NH), dkv (n,2KH) -> dqkv */
void rf_reference_kv_join(const rf_call *call) {
  rf_view dq = in_view(call, 0), dkv = in_view(call, 1), dqkv = out_view(call, 0);
  int64_t first = rf_in(call, 0)->shape[1], second = rf_in(call, 1)->shape[1], width = first + second;
  for (int64_t i = 0; i < rf_tensor_count(rf_out(call, 0)); i++) {
    int64_t r = i / width, c = i % width;
    store(dqkv, i, c < first ? load(dq, r * first + c) : load(dkv, r * second + c - first));
  }
}

/* parts (n,cNH), lse (n,cN) -> ctx (n,NH) */
void rf_reference_attention_merge(const rf_call *call) {
  rf_view parts = in_view(call, 0), lse = in_view(call, 1), ctx = out_view(call, 0);
  int64_t rows = rf_in(call, 0)->shape[0], heads = call->op->attr.attention.heads,
          chips = rf_in(call, 1)->shape[1] / heads, width = rf_out(call, 0)->shape[1], dim = width / heads;
  for (int64_t i = 0; i < rows * heads; i++) {
    int64_t r = i / heads, h = i % heads;
    double most = -INFINITY, sum = 0;
    for (int64_t p = 0; p < chips; p++) most = fmax(most, load(lse, (r * chips + p) * heads + h));
    for (int64_t p = 0; p < chips; p++) sum += exp(load(lse, (r * chips + p) * heads + h) - most);
    for (int64_t c = 0; c < dim; c++) {
      double value = 0;
      for (int64_t p = 0; p < chips; p++)
        value += exp(load(lse, (r * chips + p) * heads + h) - most) / sum *
                 load(parts, ((r * chips + p) * heads + h) * dim + c);
      store(ctx, i * dim + c, value);
    }
  }
}
