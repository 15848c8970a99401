/* experts.c - the router, the ops that move rows to experts and back, and the linear layers. */
#include "backend/reference/kernels.h"

static double logit(rf_view logits, int64_t at) {
  double x = load(logits, at);
  return x == x ? x : -INFINITY; /* NaN is chosen last */
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* log(sum_e exp(logits[r,e])) */
static double all_of(rf_view logits, int64_t row, int64_t experts) {
  double top = -INFINITY, sum = 0;
  for (int64_t e = 0; e < experts; e++) top = fmax(top, load(logits, row + e));
  for (int64_t e = 0; e < experts; e++) sum += exp(load(logits, row + e) - top);
  return top + log(sum);
}

/* Experts are ranked by their logits, because softmax does not change the order. With a choice
 * bias, experts are ranked by score (softmax or sigmoid) plus bias. */
static double rank_of(const rf_call *call, int64_t row, int64_t e, double all) {
  rf_view logits = in_view(call, 0), choice = in_view(call, 1);
  double z = logit(logits, row + e);
  if (!choice.data) return z;
  return (call->op->attr.experts.router.sigmoid ? sigmoid(z) : exp(z - all)) + load(choice, e);
}

/* A group of experts is ranked by the value of its best expert. With sigmoids, the group is ranked
 * by the sum of its two best values. */
static double group_rank(const rf_call *call, int64_t row, int64_t group, double all) {
  const rf_attr_experts *attr = &call->op->attr.experts;
  int64_t size = attr->experts / attr->router.groups;
  bool scores = attr->router.sigmoid && !in_view(call, 1).data;
  double first = -INFINITY, second = -INFINITY;
  for (int64_t e = group * size; e < (group + 1) * size; e++) {
    double rank = rank_of(call, row, e, all);
    if (scores) rank = sigmoid(rank);
    if (rank > first) {
      second = first;
      first = rank;
    } else if (rank > second) second = rank;
  }
  return attr->router.sigmoid ? first + second : first;
}

/* True if the group of expert e is among the `groups_used` best groups. Among equal groups, the
 * group with the lower index is better. */
static bool is_open(const rf_call *call, int64_t row, int64_t e, double all) {
  const rf_router *router = &call->op->attr.experts.router;
  if (router->groups == 0) return true;
  int64_t group = e / (call->op->attr.experts.experts / router->groups), better = 0;
  double mine = group_rank(call, row, group, all);
  for (int64_t g = 0; g < router->groups; g++) {
    double other = group_rank(call, row, g, all);
    better += other > mine || (other == mine && g < group);
  }
  return better < router->groups_used;
}

/* logits (n,E), choice (E)? -> weights (n,k), experts (n*k), place (n*k), starts (E+1) */
void rf_reference_route(const rf_call *call) {
  const rf_attr_experts *attr = &call->op->attr.experts;
  const rf_router *router = &attr->router;
  rf_view logits = in_view(call, 0), weights = out_view(call, 0);
  int32_t *chosen = call->out[1], *place = call->out[2], *starts = call->out[3];
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), experts = attr->experts, used = attr->used;
  double scale = router->scale > 0 ? (double)router->scale : 1;
  for (int64_t r = 0; r < rows; r++) {
    int64_t row = r * experts;
    double sum = 0, top, all = all_of(logits, row, experts);
    for (int64_t j = 0; j < used; j++) {
      int64_t best = -1;
      for (int64_t e = 0; e < experts; e++) {
        bool taken = !is_open(call, row, e, all);
        for (int64_t i = 0; i < j; i++) taken = taken || chosen[r * used + i] == e;
        if (!taken && (best < 0 || rank_of(call, row, e, all) > rank_of(call, row, best, all))) best = e;
      }
      chosen[r * used + j] = (int32_t)best;
    }
    top = load(logits, row + chosen[r * used]);
    for (int64_t j = 0; j < used; j++) {
      double z = load(logits, row + chosen[r * used + j]);
      sum += router->sigmoid ? sigmoid(z) : exp(z - top);
    }
    for (int64_t j = 0; j < used; j++) {
      double z = load(logits, row + chosen[r * used + j]),
             score = router->sigmoid ? sigmoid(z) : exp(z - (router->as_is ? all : top));
      store(weights, r * used + j, (router->as_is ? score : score / sum) * scale);
    }
  }
  int32_t at = 0;
  for (int64_t e = 0; e < experts; e++) {
    starts[e] = at;
    for (int64_t i = 0; i < rows * used; i++)
      if (chosen[i] == e) place[i] = at++;
  }
  starts[experts] = at;
  for (int64_t i = 0; attr->room > 0 && i < rows * used; i++) {
    int64_t e = chosen[i], index = place[i] - starts[e];
    place[i] = index < attr->room ? (int32_t)(e * attr->room + index) : -1;
  }
  for (int64_t e = 0; attr->room > 0 && e <= experts; e++) starts[e] = (int32_t)(e * attr->room);
}

/* logits, weights, experts, dweights -> dlogits */
void rf_reference_route_bwd(const rf_call *call) {
  const rf_attr_experts *attr = &call->op->attr.experts;
  const rf_router *router = &attr->router;
  rf_view logits = in_view(call, 0), weights = in_view(call, 1), dweights = in_view(call, 3),
          dlogits = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), experts = attr->experts, used = attr->used;
  double scale = router->scale > 0 ? (double)router->scale : 1;
  for (int64_t r = 0; r < rows; r++) {
    double sum = 0, all = router->as_is && !router->sigmoid ? all_of(logits, r * experts, experts) : 0;
    for (int64_t j = 0; j < used; j++) sum += load(weights, r * used + j) * load(dweights, r * used + j);
    for (int64_t e = 0; e < experts; e++) {
      int64_t at = r * experts + e;
      double gradient = router->as_is && !router->sigmoid ? -sum * exp(load(logits, at) - all) : 0;
      for (int64_t j = 0; j < used; j++) {
        int64_t i = r * used + j;
        if (ids(call, 2)[i] != e) continue;
        double own = load(weights, i) * (load(dweights, i) - (router->as_is ? 0 : sum / scale));
        gradient += router->sigmoid ? own * (1 - sigmoid(load(logits, at))) : own;
      }
      store(dlogits, at, gradient);
    }
  }
}

/* x (n,D), place -> rows (n*k,D) */
void rf_reference_dispatch(const rf_call *call) {
  rf_view x = in_view(call, 0), sorted = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1],
          used = call->op->attr.experts.used;
  for (int64_t i = 0; call->op->attr.experts.room > 0 && i < rf_tensor_count(rf_out(call, 0)); i++)
    store(sorted, i, 0);
  for (int64_t i = 0; i < rows * used; i++)
    for (int64_t d = 0; d < width && ids(call, 1)[i] >= 0; d++)
      store(sorted, ids(call, 1)[i] * width + d, load(x, i / used * width + d));
}

/* drows (n*k,D), place -> dx (n,D) */
void rf_reference_dispatch_bwd(const rf_call *call) {
  rf_view sorted = in_view(call, 0), dx = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_out(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1],
          used = call->op->attr.experts.used;
  bool wide = dx.dtype == RF_F64;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t d = 0; d < width; d++) {
      double sum = 0;
      for (int64_t j = 0; j < used; j++)
        if (ids(call, 1)[r * used + j] >= 0)
          sum = exact_add(wide, sum, load(sorted, ids(call, 1)[r * used + j] * width + d));
      store(dx, r * width + d, sum);
    }
}

/* Number of runs of consecutive rows. Run r belongs to expert r % experts. */
static int64_t runs(const rf_call *call) {
  return call->op->attr.experts.experts * (int64_t)(call->op->attr.group > 1 ? call->op->attr.group : 1);
}

/* Multiplies each row by the weights w (K,N) of its expert: computes x w, or dy w^T if `back`. */
static void expert_products(const rf_call *call, bool back) {
  const rf_attr_experts *attr = &call->op->attr.experts;
  rf_view a = in_view(call, 0), w = in_view(call, 1), out = out_view(call, 0);
  int64_t inner = rf_in(call, 0)->shape[1], columns = rf_out(call, 0)->shape[1], step = back ? 1 : columns;
  for (int64_t run = 0; run < runs(call); run++)
    for (int64_t p = ids(call, 2)[run]; p < ids(call, 2)[run + 1]; p++)
      for (int64_t c = 0; c < columns; c++) {
        double sum = 0;
        int64_t e = run % attr->experts, at = e * inner * columns + (back ? c * inner : c);
        if (!back)
          sum = product_dot(attr->fast, out.dtype == RF_F64, a, p * inner, (rf_line){w, at, step, inner});
        else
          for (int64_t k = 0; k < inner; k++)
            sum = exact_fma(out.dtype == RF_F64, load(a, p * inner + k), load(w, at + k * step), sum);
        store(out, p * columns + c, sum);
      }
}

/* x (R,K), w (E*K,N), starts -> u (R,N) */
void rf_reference_matmul_experts(const rf_call *call) { expert_products(call, false); }
/* dy (R,N), w (E*K,N), starts -> dx (R,K) */
void rf_reference_matmul_experts_dx(const rf_call *call) { expert_products(call, true); }

/* x (R,K), dy (R,N), starts -> dw (E*K,N) */
void rf_reference_matmul_experts_dw(const rf_call *call) {
  rf_view x = in_view(call, 0), dy = in_view(call, 1), dw = out_view(call, 0);
  int64_t inner = rf_in(call, 0)->shape[1], columns = rf_in(call, 1)->shape[1];
  bool wide = rf_in(call, 0)->dtype == RF_F64;
  for (int64_t e = 0; e < call->op->attr.experts.experts; e++)
    for (int64_t i = 0; i < inner; i++)
      for (int64_t n = 0; n < columns; n++) {
        int64_t at = (e * inner + i) * columns + n;
        double sum = start(call, 0, dw, at);
        for (int64_t run = e; run < runs(call); run += call->op->attr.experts.experts)
          for (int64_t p = ids(call, 2)[run]; p < ids(call, 2)[run + 1]; p++)
            sum = exact_fma(wide, load(x, p * inner + i), load(dy, p * columns + n), sum);
        store(dw, at, sum);
      }
}

/* h (n*k,D), weights (n,k), place -> y (n,D) */
void rf_reference_combine(const rf_call *call) {
  rf_view h = in_view(call, 0), weights = in_view(call, 1), y = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 1)->shape[0]), width = rf_in(call, 0)->shape[1],
          used = call->op->attr.experts.used;
  bool wide = y.dtype == RF_F64;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t d = 0; d < width; d++) {
      double sum = 0;
      for (int64_t i = r * used; i < (r + 1) * used; i++)
        if (ids(call, 2)[i] >= 0)
          sum = exact_fma(wide, load(weights, i), load(h, ids(call, 2)[i] * width + d), sum);
      store(y, r * width + d, sum);
    }
}

/* h, weights, place, dy (n,D) -> dh (n*k,D)?, dweights (n,k)? */
void rf_reference_combine_bwd(const rf_call *call) {
  rf_view h = in_view(call, 0), weights = in_view(call, 1), dy = in_view(call, 3), dh = out_view(call, 0),
          dweights = out_view(call, 1);
  int64_t rows = rows_in_use(call, rf_in(call, 1)->shape[0]), width = rf_in(call, 0)->shape[1],
          used = call->op->attr.experts.used;
  bool wide = rf_in(call, 0)->dtype == RF_F64;
  for (int64_t i = 0; dh.data && call->op->attr.experts.room > 0 && i < rf_tensor_count(rf_out(call, 0)); i++)
    store(dh, i, 0);
  for (int64_t i = 0; i < rows * used; i++) {
    int64_t at = ids(call, 2)[i] * width, row = i / used * width;
    double sum = 0;
    for (int64_t d = 0; d < width && at >= 0; d++) {
      if (dh.data) store(dh, at + d, exact_mul(wide, load(weights, i), load(dy, row + d)));
      sum += load(h, at + d) * load(dy, row + d);
    }
    if (dweights.data) store(dweights, i, sum);
  }
}
