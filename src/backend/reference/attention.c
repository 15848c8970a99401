/* attention.c - causal attention over the segments of a batch, and over a cache. A row of qkv
 * (n,(N+2K)H) has N query heads, K key heads and K value heads of H elements. Query i of a segment
 * sees keys j <= i. With a window, query i sees keys i - window < j <= i. */
#include "backend/reference/kernels.h"
#include "graph/kv.h"

/* The workspace has the unrounded sums of one row: ctx, dq, or dk and dv. */
size_t rf_reference_attention_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)graph;
  (void)by;
  return 2 * (size_t)op->attr.attention.head_dim * sizeof(double);
}

/* The KV cache of a call. */
typedef struct paged {
  rf_view data;                      /* pages of keys and values (P,2,G,KH) */
  float *scale;                      /* scales of an i8 cache (P,2,G,K) */
  const int32_t *table;              /* numbers of the pages of each slot (slots,C) */
  int64_t columns, page, heads, dim; /* C, G, K and H */
} paged;

/* The row of the cache for a position of a slot. `which` is 0 for keys and 1 for values. */
static int64_t paged_row(const paged *p, int64_t slot, int64_t which, int64_t position) {
  return (p->table[slot * p->columns + position / p->page] * 2 + which) * p->page + position % p->page;
}

static double paged_load(const paged *p, int64_t slot, int64_t which, int64_t position, int64_t head,
                         int64_t c) {
  int64_t row = paged_row(p, slot, which, position), at = (row * p->heads + head) * p->dim + c;
  if (p->data.dtype != RF_I8) return load(p->data, at);
  return (double)((float)((const int8_t *)p->data.data)[at] * p->scale[row * p->heads + head]);
}

static void paged_store(const paged *p, int64_t slot, int64_t which, int64_t position, int64_t head,
                        rf_view from, int64_t from_at) {
  int64_t row = paged_row(p, slot, which, position), at = (row * p->heads + head) * p->dim;
  if (p->data.dtype != RF_I8) {
    for (int64_t c = 0; c < p->dim; c++) store(p->data, at + c, load(from, from_at + c));
    return;
  }
  float most = 0;
  bool finite = true;
  for (int64_t c = 0; c < p->dim; c++) {
    float x = (float)load(from, from_at + c);
    finite &= isfinite(x) != 0;
    most = fmaxf(most, fabsf(x));
  }
  float steps = finite && most >= RF_NARROW_MIN ? 127.0f / most : 0;
  p->scale[row * p->heads + head] = !finite ? NAN : steps > 0 ? most / 127.0f : 0;
  for (int64_t c = 0; c < p->dim; c++)
    ((int8_t *)p->data.data)[at + c] =
        finite ? (int8_t)nearbyintf((float)load(from, from_at + c) * steps) : 0;
}

/* The keys and values of one head. If `cache` is not NULL, the keys and values are in slot `slot`
 * of the cache. Otherwise element c of key j is data[key_at + j * stride + c], and element c of
 * value j is data[value_at + j * stride + c]. */
typedef struct head_rows {
  rf_view data;
  int64_t key_at, value_at, stride;
  const paged *cache;
  int64_t slot, head;
} head_rows;

static double key_of(const head_rows *rows, int64_t j, int64_t c) {
  return rows->cache ? paged_load(rows->cache, rows->slot, 0, j, rows->head, c)
                     : load(rows->data, rows->key_at + j * rows->stride + c);
}
static double value_of(const head_rows *rows, int64_t j, int64_t c) {
  return rows->cache ? paged_load(rows->cache, rows->slot, 1, j, rows->head, c)
                     : load(rows->data, rows->value_at + j * rows->stride + c);
}

typedef struct query {
  const rf_attr_attention *attr;
  rf_view q;
  int64_t at; /* offset of the query head in q */
  head_rows keys;
} query;

/* The scaled score of a query and key j. With a bf16 softmax, the score is a chain of f32 fused
 * multiply-adds, because the definition rounds this result to bf16. Otherwise the score is a sum in
 * double. */
static double score(const query *of, int64_t j) {
  const rf_attr_attention *attr = of->attr;
  bool chain = attr->softmax == RF_BF16 && of->q.dtype != RF_F64;
  double sum = 0;
  for (int64_t c = 0; c < attr->head_dim; c++) {
    double a = load(of->q, of->at + c), b = key_of(&of->keys, j, c);
    sum = chain ? exact_fma(false, a, b, sum) : sum + a * b;
  }
  sum = chain ? exact_mul(false, sum, (double)attr->scale) : sum * (double)attr->scale;
  sum = capped(attr->softcap, sum);
  return attr->softmax == RF_BF16 ? rounded(RF_BF16, sum) : sum;
}

static int64_t first_key(const rf_attr_attention *attr, int64_t i) {
  return attr->window > 0 && i >= attr->window ? i - attr->window + 1 : 0;
}

/* Attention of a query to keys `from` to `last`. Writes H elements of ctx and returns
 * log(sum(exp(score))). `sums` has room for H numbers. */
static double attend(const query *of, int64_t from, int64_t last, rf_view ctx, int64_t ctx_at, double *sums) {
  int64_t dim = of->attr->head_dim;
  double largest = -INFINITY, sum = 0;
  for (int64_t j = from; j <= last; j++) largest = fmax(largest, score(of, j));
  for (int64_t j = from; j <= last; j++) sum += exp(score(of, j) - largest);
  double lse = largest + log(sum);
  for (int64_t c = 0; c < dim; c++) sums[c] = 0;
  for (int64_t j = from; j <= last; j++) {
    double p = exp(score(of, j) - lse);
    for (int64_t c = 0; c < dim; c++) sums[c] += p * value_of(&of->keys, j, c);
  }
  for (int64_t c = 0; c < dim; c++) store(ctx, ctx_at + c, from <= last ? sums[c] : 0);
  return from <= last ? lse : -INFINITY;
}

static int64_t qkv_width(const rf_attr_attention *attr) {
  return (int64_t)(attr->heads + 2 * attr->kv_heads) * attr->head_dim;
}

/* The key/value head of query head h, in a segment that begins at row `begin`. */
static head_rows qkv_head(const rf_attr_attention *attr, rf_view qkv, int64_t begin, int64_t h) {
  int64_t width = qkv_width(attr), group = h / (attr->heads / attr->kv_heads);
  int64_t key_at = begin * width + (attr->heads + group) * attr->head_dim;
  return (head_rows){.data = qkv,
                     .key_at = key_at,
                     .value_at = key_at + (int64_t)attr->kv_heads * attr->head_dim,
                     .stride = width};
}

/* qkv (n,(N+2K)H), segments (n+1) -> ctx (n,N*H), lse (N,n)? */
void rf_reference_attention(const rf_call *call) {
  const rf_attr_attention *attr = &call->op->attr.attention;
  const int32_t *segments = ids(call, 1);
  rf_view qkv = in_view(call, 0), ctx = out_view(call, 0), lse = out_view(call, 1);
  int64_t rows = rf_in(call, 0)->shape[0], used = rows_in_use(call, rows), width = qkv_width(attr),
          head_dim = attr->head_dim;
  for (int64_t s = 0; s < rows && segments[s] < used; s++)
    for (int64_t r = segments[s]; r < segments[s + 1] && r < used; r++)
      for (int64_t h = 0; h < attr->heads; h++) {
        query of = {attr, qkv, r * width + h * head_dim, qkv_head(attr, qkv, segments[s], h)};
        int64_t i = r - segments[s], ctx_at = (r * attr->heads + h) * head_dim;
        double value = attend(&of, first_key(attr, i), i, ctx, ctx_at, call->workspace);
        if (lse.data) store(lse, h * rows + r, value);
      }
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct pair {
  double p, ds;
} pair;

/* Returns the probability of key j for query i of head h, and the gradient of the score. The
 * segment starts at row `begin`. */
static pair pair_of(const rf_call *call, int64_t begin, int64_t h, int64_t i, int64_t j) {
  const rf_attr_attention *attr = &call->op->attr.attention;
  rf_view qkv = in_view(call, 0), ctx = in_view(call, 1), lse = in_view(call, 2), dctx = in_view(call, 3);
  int64_t head_dim = attr->head_dim, rows = rf_in(call, 0)->shape[0], row = begin + i;
  head_rows keys = qkv_head(attr, qkv, begin, h);
  query of = {attr, qkv, row * qkv_width(attr) + h * head_dim, keys};
  int64_t at = (row * attr->heads + h) * head_dim;
  double s = score(&of, j), p = exp(s - load(lse, h * rows + row));
  double delta = 0, dp = 0;
  for (int64_t c = 0; c < head_dim; c++) {
    delta += load(dctx, at + c) * load(ctx, at + c);
    dp += load(dctx, at + c) * load(qkv, keys.value_at + j * keys.stride + c);
  }
  return (pair){p, p * (dp - delta) * (double)attr->scale * cap_slope(attr->softcap, s)};
}

/* Computes dq of query i of head h, a sum over the keys that the query sees. */
static void query_gradient(const rf_call *call, int64_t begin, int64_t h, int64_t i, double *dq) {
  const rf_attr_attention *attr = &call->op->attr.attention;
  rf_view qkv = in_view(call, 0), dqkv = out_view(call, 0);
  head_rows keys = qkv_head(attr, qkv, begin, h);
  int64_t head_dim = attr->head_dim, at = (begin + i) * qkv_width(attr) + h * head_dim;
  for (int64_t c = 0; c < head_dim; c++) dq[c] = 0;
  for (int64_t j = first_key(attr, i); j <= i; j++) {
    pair of = pair_of(call, begin, h, i, j);
    for (int64_t c = 0; c < head_dim; c++) dq[c] += of.ds * load(qkv, keys.key_at + j * keys.stride + c);
  }
  for (int64_t c = 0; c < head_dim; c++) store(dqkv, at + c, dq[c]);
}

/* Computes dk and dv of key j of key/value head g. The sums dk and dv run over the queries that see
 * key j, in all query heads that share head g. */
static void key_gradient(const rf_call *call, int64_t begin, int64_t length, int64_t g, int64_t j,
                         double *dk) {
  const rf_attr_attention *attr = &call->op->attr.attention;
  rf_view qkv = in_view(call, 0), dctx = in_view(call, 3), dqkv = out_view(call, 0);
  int64_t head_dim = attr->head_dim, group = attr->heads / attr->kv_heads;
  double *dv = dk + head_dim;
  for (int64_t c = 0; c < 2 * head_dim; c++) dk[c] = 0;
  for (int64_t h = g * group; h < (g + 1) * group; h++)
    for (int64_t i = j; i < length && first_key(attr, i) <= j; i++) {
      pair of = pair_of(call, begin, h, i, j);
      int64_t row = begin + i;
      for (int64_t c = 0; c < head_dim; c++) {
        dk[c] += of.ds * load(qkv, row * qkv_width(attr) + h * head_dim + c);
        dv[c] += of.p * load(dctx, (row * attr->heads + h) * head_dim + c);
      }
    }
  head_rows at = qkv_head(attr, dqkv, begin, g * group);
  for (int64_t c = 0; c < head_dim; c++) {
    store(dqkv, at.key_at + j * at.stride + c, dk[c]);
    store(dqkv, at.value_at + j * at.stride + c, dv[c]);
  }
}

/* qkv, ctx, lse, dctx, segments -> dqkv (n,(N+2K)H). Probabilities are recomputed from lse. */
void rf_reference_attention_bwd(const rf_call *call) {
  const rf_attr_attention *attr = &call->op->attr.attention;
  const int32_t *segments = ids(call, 4);
  int64_t rows = rf_in(call, 0)->shape[0];
  for (int64_t s = 0; s < rows && segments[s] < rows; s++) {
    int64_t begin = segments[s], length = segments[s + 1] - begin;
    for (int64_t i = 0; i < length; i++) {
      for (int64_t h = 0; h < attr->heads; h++) query_gradient(call, begin, h, i, call->workspace);
      for (int64_t g = 0; g < attr->kv_heads; g++) key_gradient(call, begin, length, g, i, call->workspace);
    }
  }
}

/* ---- over a cache ---------------------------------------------------------------------------- */

/* Number of positions below `end` that a chip stores. A chip stores the positions with position %
 * chips == rank. */
static int64_t held(int64_t end, int64_t chips, int64_t rank) { return (end - rank + chips - 1) / chips; }

/* qkv (n,(N+2K)H), cache (P,2,G,K*H), table (slots,C), slots (n), positions (n), scale (P,2,G,K)?
 * -> ctx (n,N*H), cache and scale (same tensors). A step may have several rows of one slot, because
 * the kernel first writes all rows to the cache. A row with slot -1 gets zeros. */
void rf_reference_attention_kv(const rf_call *call) {
  const rf_attr_attention *attr = &call->op->attr.attention;
  const int32_t *slots = ids(call, 3), *positions = ids(call, 4);
  rf_view qkv = in_view(call, 0), ctx = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = qkv_width(attr),
          head_dim = attr->head_dim, group = attr->heads / attr->kv_heads;
  paged cache = {.data = out_view(call, 1),
                 .scale = call->out[2],
                 .table = ids(call, 2),
                 .columns = rf_in(call, 2)->shape[1],
                 .page = rf_in(call, 1)->shape[2],
                 .heads = attr->kv_heads,
                 .dim = head_dim};
  rf_view lse = out_view(call, 3);
  int64_t chips = call->op->attr.group > 1 ? call->op->attr.group : 1, rank = rf_rank_of(call);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; slots[r] >= 0 && positions[r] % chips == rank && h < 2 * attr->kv_heads; h++)
      paged_store(&cache, slots[r], h / attr->kv_heads, positions[r] / chips, h % attr->kv_heads, qkv,
                  r * width + (attr->heads + h) * head_dim);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; h < attr->heads; h++) {
      int64_t ctx_at = (r * attr->heads + h) * head_dim;
      if (slots[r] < 0) {
        for (int64_t c = 0; c < head_dim; c++) store(ctx, ctx_at + c, 0.0);
        if (lse.data) store(lse, r * attr->heads + h, 0.0);
        continue;
      }
      query of = {
          attr, qkv, r * width + h * head_dim, {.cache = &cache, .slot = slots[r], .head = h / group}};
      double value = attend(&of, held(first_key(attr, positions[r]), chips, rank),
                            held(positions[r] + 1, chips, rank) - 1, ctx, ctx_at, call->workspace);
      if (lse.data) store(lse, r * attr->heads + h, value);
    }
}
