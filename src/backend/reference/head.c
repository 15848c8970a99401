/* head.c - the output head: logits of chosen rows, and cross-entropy with its gradient, without an
 * (n,V) array of logits. A logit is a chain of f32 fused multiply-adds as in a matmul, plus the
 * bias. Logits are not rounded to the activation dtype, because no tensor stores logits. */
#include "backend/reference/kernels.h"

/* The operands of all ops in this file: x (n,D), w (D,V) or (V,D), bias (V)?. */
typedef struct head {
  rf_view x, w, bias;
  int64_t rows, width, vocab;
  /* this chip's part of the vocabulary: its first token, and its number of tokens without
   * padding */
  int64_t first, words;
  bool transpose, wide, fast;
  rf_dtype gradient;      /* bf16: the gradient of logits is rounded to bf16 */
  float cap, temperature; /* temperature 0: 1 */
} head;

static head head_of(const rf_call *call) {
  const rf_tensor *x = rf_in(call, 0), *w = rf_in(call, 1);
  const rf_attr_head *attr = &call->op->attr.head;
  int64_t vocab = w->shape[attr->transpose ? 0 : 1], first = rf_rank_of(call) * vocab,
          words = call->op->attr.axes && attr->vocab - first < vocab ? attr->vocab - first : vocab;
  return (head){.x = in_view(call, 0),
                .w = in_view(call, 1),
                .bias = in_view(call, 2),
                .rows = rows_in_use(call, x->shape[0]),
                .width = x->shape[1],
                .vocab = vocab,
                .first = first,
                .words = words > 0 ? words : 0,
                .transpose = attr->transpose,
                .wide = x->dtype == RF_F64,
                .fast = attr->fast,
                .gradient = attr->gradient,
                .cap = attr->softcap,
                .temperature = attr->temperature};
}

static int64_t weight_at(const head *of, int64_t d, int64_t v) {
  return of->transpose ? v * of->width + d : d * of->vocab + v;
}

static double logit(const head *of, int64_t r, int64_t v) {
  rf_line w = {of->w, weight_at(of, 0, v), of->transpose ? 1 : of->vocab, of->width};
  double sum = product_dot(of->fast, of->wide, of->x, r * of->width, w);
  if (of->bias.data) sum = exact_add(of->wide, sum, load(of->bias, v));
  sum = capped(of->cap, sum);
  if (!(of->temperature > 0)) return sum;
  return rounded(of->wide ? RF_F64 : RF_F32, sum / (double)of->temperature);
}

/* Derivative of a logit with respect to its sum of products, computed from the logit. */
static double logit_slope(const head *of, double z) {
  double by = of->temperature > 0 ? (double)of->temperature : 1;
  return cap_slope(of->cap, z * by) / by;
}

/* Returns the sum of exp(logit - largest) over row r. Sets *most to the largest logit, and *best to
 * the first token with this logit. */
static double row_sum(const head *of, int64_t r, int32_t *best, double *most) {
  double largest = -INFINITY, sum = 0;
  for (int64_t v = 0; v < of->words; v++) {
    double value = logit(of, r, v);
    if (value > largest) {
      sum = sum * exp(largest - value);
      largest = value;
      *best = (int32_t)v;
    }
    sum += exp(value - largest);
  }
  *most = largest;
  return sum;
}
static double row_lse(const head *of, int64_t r, int32_t *best) {
  double largest, sum = row_sum(of, r, best, &largest);
  return largest + log(sum);
}

/* Writes nll, argmax and lse (if present) of every row. An ignored row (label -1) has nll 0. */
static void loss_rows(const rf_call *call, const head *of, const int32_t *labels, rf_view lse) {
  rf_view nll = out_view(call, 0);
  int32_t *argmax = call->out[1];
  for (int64_t r = 0; r < of->rows; r++) {
    int32_t best = 0;
    double value = row_lse(of, r, &best);
    if (nll.data) store(nll, r, labels[r] < 0 ? 0.0 : value - logit(of, r, labels[r]));
    if (argmax) argmax[r] = best;
    if (lse.data) store(lse, r, value);
  }
}

/* The workspace has the gradients (n) of the logits of one token, the sums of dx (n,D) and, for
 * head_loss_grad, lse (n). */
size_t rf_reference_head_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  const rf_tensor *x = &graph->tensor[op->input[0]];
  return (size_t)(x->shape[0] * (x->shape[1] + 2)) * sizeof(double);
}

/* Computes dlogits = (softmax - onehot) * dnll (without dnll: loss_scale), one token of the
 * vocabulary at a time, and rounds dlogits to bf16 if the op says so. Then computes the outputs dx
 * (index `slot`), dw (`slot` + 1) and dbias (`slot` + 2). */
static void gradients(const rf_call *call, const head *of, const int32_t *labels, rf_view lse, rf_view dnll,
                      int slot) {
  rf_view dx = out_view(call, slot), dw = out_view(call, slot + 1), dbias = out_view(call, slot + 2);
  double *column = call->workspace, *sums = column + of->rows;
  for (int64_t i = 0; i < of->rows * of->width; i++) sums[i] = 0;
  for (int64_t v = 0; v < of->vocab; v++) {
    for (int64_t r = 0; r < of->rows; r++) {
      double z = labels[r] < 0 ? 0.0 : logit(of, r, v),
             p = exp(z - load(lse, r)) - (labels[r] == of->first + v ? 1.0 : 0.0);
      double scale = dnll.data ? load(dnll, r) : (double)call->run->loss_scale;
      column[r] = labels[r] < 0 || v >= of->words ? 0.0 : p * scale * logit_slope(of, z);
      if (of->gradient == RF_BF16) column[r] = rounded(RF_BF16, column[r]);
    }
    for (int64_t d = 0; d < of->width; d++) {
      int64_t at = weight_at(of, d, v);
      double sum = dw.data ? start(call, slot + 1, dw, at) : 0.0, weight = load(of->w, at);
      for (int64_t r = 0; r < of->rows; r++) {
        sum += load(of->x, r * of->width + d) * column[r];
        sums[r * of->width + d] += column[r] * weight;
      }
      if (dw.data) store(dw, at, sum);
    }
    if (!dbias.data) continue;
    double sum = start(call, slot + 2, dbias, v);
    for (int64_t r = 0; r < of->rows; r++) sum += column[r];
    store(dbias, v, sum);
  }
  for (int64_t i = 0; i < of->rows * of->width && dx.data; i++) store(dx, i, sums[i]);
}

/* x, w, bias?, labels (n) -> nll (n), argmax (n), lse (n) */
void rf_reference_head_loss(const rf_call *call) {
  head of = head_of(call);
  loss_rows(call, &of, ids(call, 3), out_view(call, 2));
}

/* x, w, bias?, labels (n) -> part (n,4): largest logit, sum, logit of the label, best token */
void rf_reference_head_part(const rf_call *call) {
  head of = head_of(call);
  const int32_t *labels = ids(call, 3);
  rf_view part = out_view(call, 0);
  for (int64_t r = 0; r < of.rows; r++) {
    int32_t best = 0;
    double most = -INFINITY, sum = row_sum(&of, r, &best, &most);
    bool here = labels[r] >= of.first && labels[r] < of.first + of.words;
    store(part, r * 4, of.words ? most : -1e30);
    store(part, r * 4 + 1, sum);
    store(part, r * 4 + 2, here ? logit(&of, r, labels[r] - of.first) : 0);
    store(part, r * 4 + 3, (double)(of.first + best));
  }
}

/* parts (n,4c), labels (n) -> nll?, argmax?, lse?, logprob? */
void rf_reference_head_merge(const rf_call *call) {
  rf_view parts = in_view(call, 0), nll = out_view(call, 0), lse = out_view(call, 2),
          logprob = out_view(call, 3);
  const int32_t *labels = ids(call, 1);
  int32_t *argmax = call->out[1];
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), columns = rf_in(call, 0)->shape[1];
  for (int64_t r = 0; r < rows; r++) {
    double most = -INFINITY, sum = 0, label = 0, best = 0;
    for (int64_t c = 0; c < columns; c += 4)
      if (load(parts, r * columns + c) > most) {
        most = load(parts, r * columns + c);
        best = load(parts, r * columns + c + 3);
      }
    for (int64_t c = 0; c < columns; c += 4) {
      sum += load(parts, r * columns + c + 1) * exp(load(parts, r * columns + c) - most);
      label += load(parts, r * columns + c + 2);
    }
    double value = labels[r] < 0 ? 0.0 : most + log(sum) - label;
    if (nll.data) store(nll, r, value);
    if (argmax) argmax[r] = (int32_t)best;
    if (lse.data) store(lse, r, most + log(sum));
    if (logprob.data) store(logprob, r, -value);
  }
}

/* x, w, bias?, labels, lse, dnll? (n) -> dx (n,D), dw, dbias? */
void rf_reference_head_loss_bwd(const rf_call *call) {
  head of = head_of(call);
  gradients(call, &of, ids(call, 3), in_view(call, 4), in_view(call, 5), 0);
}

/* x, w, bias?, labels, dnll? -> nll, argmax, dx, dw, dbias?: the results of head_loss, then of
 * head_loss_bwd. Between the two ops, lse is rounded to its dtype. */
void rf_reference_head_loss_grad(const rf_call *call) {
  head of = head_of(call);
  double *space = call->workspace;
  rf_view lse = {space + of.rows * (of.width + 1), of.wide ? RF_F64 : RF_F32, NULL};
  loss_rows(call, &of, ids(call, 3), lse);
  gradients(call, &of, ids(call, 3), lse, in_view(call, 4), 2);
}

/* nll, argmax, labels -> metrics (4): sum of nll, valid labels, correct predictions, 0 */
void rf_reference_loss_sum(const rf_call *call) {
  const int32_t *argmax = ids(call, 1), *labels = ids(call, 2);
  rf_view nll = in_view(call, 0), metrics = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]);
  double sum[4] = {0};
  for (int i = 0; i < 4; i++) sum[i] = start(call, 0, metrics, i);
  for (int64_t r = 0; r < rows; r++) {
    if (labels[r] < 0) continue;
    sum[0] += load(nll, r);
    sum[1] += 1;
    sum[2] += argmax[r] == labels[r];
  }
  for (int i = 0; i < 4; i++) store(metrics, i, sum[i]);
}

/* x, w, bias?, rows (R) -> logits (R,V), lse (R)?; a row index of -1 gives zeros */
void rf_reference_head_logits(const rf_call *call) {
  head of = head_of(call);
  const int32_t *rows = ids(call, 3);
  rf_view logits = out_view(call, 0);
  for (int64_t i = 0; i < rf_out(call, 0)->shape[0]; i++)
    for (int64_t v = 0; v < of.vocab; v++)
      store(logits, i * of.vocab + v, rows[i] < 0 ? 0.0 : logit(&of, rows[i], v));
  rf_view lse = out_view(call, 1);
  int32_t best;
  for (int64_t i = 0; i < rf_out(call, 0)->shape[0] && lse.data; i++)
    store(lse, i, rows[i] < 0 ? 0.0 : row_lse(&of, rows[i], &best));
}

/* x, w, bias?, labels (n) -> logprob (n), top_ids (n,K)?, top_logprobs (n,K)? */
void rf_reference_head_score(const rf_call *call) {
  head of = head_of(call);
  const int32_t *labels = ids(call, 3);
  rf_view logprob = out_view(call, 0), top = out_view(call, 2);
  int32_t *top_ids = call->out[1], best;
  int64_t most = call->op->attr.head.top;
  for (int64_t r = 0; r < of.rows; r++) {
    double lse = rounded(of.wide ? RF_F64 : RF_F32, row_lse(&of, r, &best)), before = INFINITY;
    store(logprob, r, labels[r] < 0 ? 0.0 : logit(&of, r, labels[r]) - lse);
    int64_t last = -1;
    /* finds the next token in descending order of logits, after token `last` with logit `before` */
    for (int64_t k = 0; k < most && (top_ids || top.data); k++) {
      double largest = -INFINITY;
      int64_t at = -1;
      for (int64_t v = 0; v < of.vocab; v++) {
        double z = logit(&of, r, v);
        bool after = z < before || (z == before && v > last);
        if (after && (at < 0 || z > largest)) {
          largest = z;
          at = v;
        }
      }
      before = largest;
      last = at;
      if (top_ids) top_ids[r * most + k] = (int32_t)at;
      if (top.data) store(top, r * most + k, largest - lse);
    }
  }
}
