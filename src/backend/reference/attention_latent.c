/* attention_latent.c - multi-head latent attention over keys and values, its backward pass, and the
 * same attention over latent rows of a batch or of a cache. The query of a head has P plain and R
 * rotated numbers. A head of kv has the P plain numbers of its key, then the W numbers of its
 * value. The R rotated numbers of a key (`turns`) are the same for all heads. */
#include "backend/reference/kernels.h"

/* ---- the latent row -------------------------------------------------------------------------- */

/* x (n,C+R), gain (C) -> latent (n,C), turns (n,R), stats (n,1)? */
void rf_reference_latent_norm(const rf_call *call) {
  rf_view x = in_view(call, 0), gain = in_view(call, 1), latent = out_view(call, 0),
          turns = out_view(call, 1), stats = out_view(call, 2);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1],
          size = rf_in(call, 1)->shape[0];
  for (int64_t r = 0; r < rows; r++) {
    double square = 0;
    for (int64_t c = 0; c < size; c++)
      square += load(x, r * width + c) * load(x, r * width + c) / (double)size;
    double rstd = 1.0 / sqrt(square + (double)call->op->attr.norm.eps);
    for (int64_t c = 0; c < size; c++)
      store(latent, r * size + c, load(x, r * width + c) * rstd * load(gain, c));
    for (int64_t i = size; i < width; i++)
      store(turns, r * (width - size) + i - size, load(x, r * width + i));
    if (stats.data) store(stats, r, rstd);
  }
}

static double load_or_0(rf_view view, int64_t i) { return view.data ? load(view, i) : 0; }

/* x, gain, stats, dlatent (n,C)?, dturns (n,R)? -> dx (n,C+R)?, dgain (C)? */
void rf_reference_latent_norm_bwd(const rf_call *call) {
  rf_view x = in_view(call, 0), gain = in_view(call, 1), stats = in_view(call, 2), dlatent = in_view(call, 3),
          dturns = in_view(call, 4);
  rf_view dx = out_view(call, 0), dgain = out_view(call, 1);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1],
          size = rf_in(call, 1)->shape[0];
  for (int64_t r = 0; r < rows && dx.data; r++) {
    double rstd = load(stats, r), both = 0;
    for (int64_t c = 0; c < size; c++)
      both += load_or_0(dlatent, r * size + c) * load(gain, c) * load(x, r * width + c) * rstd / (double)size;
    for (int64_t c = 0; c < size; c++) {
      double g = load_or_0(dlatent, r * size + c) * load(gain, c);
      store(dx, r * width + c, rstd * (g - load(x, r * width + c) * rstd * both));
    }
    for (int64_t i = size; i < width; i++)
      store(dx, r * width + i, load_or_0(dturns, r * (width - size) + i - size));
  }
  for (int64_t c = 0; c < size && dgain.data; c++) {
    double sum = start(call, 1, dgain, c);
    for (int64_t r = 0; r < rows; r++)
      sum += load_or_0(dlatent, r * size + c) * load(x, r * width + c) * load(stats, r);
    store(dgain, c, sum);
  }
}

/* ---- attention over rows --------------------------------------------------------------------- */

typedef struct latent {
  int64_t rows, heads, rotated, plain, value, pair, query; /* pair: P + W; query: P + R */
  double scale;
  rf_view q, kv, turns;
} latent;

static latent latent_of(const rf_call *call) {
  const rf_attr_attention *a = &call->op->attr.attention;
  return (latent){.rows = rf_in(call, 0)->shape[0],
                  .heads = a->heads,
                  .rotated = a->rope_dim,
                  .plain = a->head_dim - a->rope_dim,
                  .value = a->value_dim,
                  .pair = a->head_dim - a->rope_dim + a->value_dim,
                  .query = a->head_dim,
                  .scale = (double)a->scale,
                  .q = in_view(call, 0),
                  .kv = in_view(call, 1),
                  .turns = in_view(call, 2)};
}

/* These functions return element c of the query (row i, head h), key or value (row j, head h). They
 * are not inlined, because gcc then takes seven times as long for this file. */
__attribute__((noinline)) static double query_of(const latent *l, int64_t i, int64_t h, int64_t c) {
  return load(l->q, (i * l->heads + h) * l->query + c);
}
__attribute__((noinline)) static double key_of(const latent *l, int64_t j, int64_t h, int64_t c) {
  return c < l->plain ? load(l->kv, (j * l->heads + h) * l->pair + c)
                      : load(l->turns, j * l->rotated + c - l->plain);
}
__attribute__((noinline)) static double value_of(const latent *l, int64_t j, int64_t h, int64_t c) {
  return load(l->kv, (j * l->heads + h) * l->pair + l->plain + c);
}

static double score(const latent *l, int64_t i, int64_t j, int64_t h) {
  double sum = 0;
  for (int64_t c = 0; c < l->query; c++) sum += query_of(l, i, h, c) * key_of(l, j, h, c);
  return sum * l->scale;
}

/* q, kv, turns, segments (n+1) -> ctx (n,NW), lse (N,n)? */
void rf_reference_attention_latent(const rf_call *call) {
  latent l = latent_of(call);
  const int32_t *segments = ids(call, 3);
  rf_view ctx = out_view(call, 0), lse = out_view(call, 1);
  int64_t used = rows_in_use(call, l.rows);
  double *sums = call->workspace;
  for (int64_t s = 0; s < l.rows && segments[s] < used; s++)
    for (int64_t i = segments[s]; i < segments[s + 1] && i < used; i++)
      for (int64_t h = 0; h < l.heads; h++) {
        double most = -INFINITY, sum = 0;
        for (int64_t j = segments[s]; j <= i; j++) most = fmax(most, score(&l, i, j, h));
        for (int64_t j = segments[s]; j <= i; j++) sum += exp(score(&l, i, j, h) - most);
        double all = most + log(sum);
        for (int64_t c = 0; c < l.value; c++) sums[c] = 0;
        for (int64_t j = segments[s]; j <= i; j++) {
          double p = exp(score(&l, i, j, h) - all);
          for (int64_t c = 0; c < l.value; c++) sums[c] += p * value_of(&l, j, h, c);
        }
        for (int64_t c = 0; c < l.value; c++) store(ctx, (i * l.heads + h) * l.value + c, sums[c]);
        if (lse.data) store(lse, h * l.rows + i, all);
      }
}

typedef struct pair {
  double p, ds;
} pair;

/* Returns the probability of key j for query i of head h, and the gradient of the score. */
static pair pair_of(const rf_call *call, const latent *l, int64_t i, int64_t j, int64_t h) {
  rf_view ctx = in_view(call, 3), lse = in_view(call, 4), dctx = in_view(call, 5);
  double p = exp(score(l, i, j, h) - load(lse, h * l->rows + i)), delta = 0, dp = 0;
  for (int64_t c = 0; c < l->value; c++) {
    int64_t at = (i * l->heads + h) * l->value + c;
    delta += load(dctx, at) * load(ctx, at);
    dp += load(dctx, at) * value_of(l, j, h, c);
  }
  return (pair){p, p * (dp - delta) * l->scale};
}

/* q, kv, turns, ctx, lse, dctx, segments -> dq?, dkv?, dturns? */
void rf_reference_attention_latent_bwd(const rf_call *call) {
  latent l = latent_of(call);
  const int32_t *segments = ids(call, 6);
  rf_view dctx = in_view(call, 5), dq = out_view(call, 0), dkv = out_view(call, 1),
          dturns = out_view(call, 2);
  double *query = call->workspace, *pairs = query + l.query, *turns = pairs + l.pair;
  /* row `at` is the query for dq, and then the key for dkv and dturns */
  for (int64_t s = 0; s < l.rows && segments[s] < l.rows; s++)
    for (int64_t at = segments[s]; at < segments[s + 1]; at++) {
      for (int64_t c = 0; c < l.rotated; c++) turns[c] = 0;
      for (int64_t h = 0; h < l.heads; h++) {
        for (int64_t c = 0; c < l.query; c++) query[c] = 0;
        for (int64_t c = 0; c < l.pair; c++) pairs[c] = 0;
        for (int64_t j = segments[s]; j <= at; j++) {
          pair of = pair_of(call, &l, at, j, h);
          for (int64_t c = 0; c < l.query; c++) query[c] += of.ds * key_of(&l, j, h, c);
        }
        for (int64_t i = at; i < segments[s + 1]; i++) {
          pair of = pair_of(call, &l, i, at, h);
          for (int64_t c = 0; c < l.plain; c++) pairs[c] += of.ds * query_of(&l, i, h, c);
          for (int64_t c = 0; c < l.value; c++)
            pairs[l.plain + c] += of.p * load(dctx, (i * l.heads + h) * l.value + c);
          for (int64_t c = 0; c < l.rotated; c++) turns[c] += of.ds * query_of(&l, i, h, l.plain + c);
        }
        for (int64_t c = 0; c < l.query && dq.data; c++)
          store(dq, (at * l.heads + h) * l.query + c, query[c]);
        for (int64_t c = 0; c < l.pair && dkv.data; c++)
          store(dkv, (at * l.heads + h) * l.pair + c, pairs[c]);
      }
      for (int64_t c = 0; c < l.rotated && dturns.data; c++) store(dturns, at * l.rotated + c, turns[c]);
    }
}

size_t rf_reference_attention_latent_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)graph;
  (void)by;
  return (size_t)(2 * op->attr.attention.head_dim + op->attr.attention.value_dim) * sizeof(double);
}

/* ---- over latent rows ------------------------------------------------------------------------ */

/* The workspace has the query in latent space, and the weighted sum of latent rows. */
size_t rf_reference_attention_absorbed_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  return 2 * (size_t)graph->tensor[op->input[1]].shape[1] * sizeof(double);
}

/* State of one query (row and head) in latent space, with the softmax over the keys so far. Scoring
 * and generation use the same code, so their results have the same bits. */
typedef struct absorbed {
  const latent *l;
  rf_view w;         /* (C,N(P+W)) */
  int64_t size;      /* C */
  double *u, *o;     /* (C) each: the query in latent space, the sum of latent rows */
  double most, sum;  /* most: largest score. sum: sum of exp(score - most) */
  int64_t row, head; /* of the query */
} absorbed;

static absorbed absorbed_of(const rf_call *call, const latent *l) {
  int64_t size = rf_in(call, 1)->shape[1];
  double *u = call->workspace;
  return (absorbed){.l = l, .w = in_view(call, 3), .size = size, .u = u, .o = u + size};
}

static double absorbed_weight(const absorbed *a, int64_t c, int64_t column) {
  return load(a->w, (c * a->l->heads + a->head) * a->l->pair + column);
}

static void absorb(absorbed *a, int64_t row, int64_t head) {
  a->row = row;
  a->head = head;
  a->most = -INFINITY;
  a->sum = 0;
  for (int64_t c = 0; c < a->size; c++) {
    a->u[c] = a->o[c] = 0;
    for (int64_t d = 0; d < a->l->plain; d++)
      a->u[c] += absorbed_weight(a, c, d) * query_of(a->l, row, head, d);
  }
}

/* Adds one key: its latent row starts at latents[at], its rotated part at turns[turn]. The softmax
 * is an online softmax: a new largest score scales down the running sums. */
static void absorb_key(absorbed *a, rf_view latents, int64_t at, rf_view turns, int64_t turn) {
  double s = 0;
  for (int64_t c = 0; c < a->size; c++) s += a->u[c] * load(latents, at + c);
  for (int64_t c = 0; c < a->l->rotated; c++)
    s += query_of(a->l, a->row, a->head, a->l->plain + c) * load(turns, turn + c);
  s *= a->l->scale;
  double shrink = s > a->most ? exp(a->most - s) : 1;
  if (s > a->most) a->most = s;
  double p = exp(s - a->most);
  a->sum = a->sum * shrink + p;
  for (int64_t c = 0; c < a->size; c++) a->o[c] = a->o[c] * shrink + p * load(latents, at + c);
}

static void absorbed_store(const absorbed *a, rf_view ctx) {
  for (int64_t c = 0; c < a->l->value; c++) {
    double value = 0;
    for (int64_t i = 0; i < a->size && a->sum > 0; i++)
      value += a->o[i] / a->sum * absorbed_weight(a, i, a->l->plain + c);
    store(ctx, (a->row * a->l->heads + a->head) * a->l->value + c, value);
  }
}

/* q, latent (n,C), turns (n,R), w (C,N(P+W)), segments (n+1) -> ctx (n,NW) */
void rf_reference_attention_latent_rows(const rf_call *call) {
  latent l = latent_of(call);
  absorbed a = absorbed_of(call, &l);
  rf_view latents = in_view(call, 1), turns = in_view(call, 2), ctx = out_view(call, 0);
  const int32_t *segments = ids(call, 4);
  int64_t used = rows_in_use(call, l.rows);
  for (int64_t s = 0; s < l.rows && segments[s] < used; s++)
    for (int64_t i = segments[s]; i < segments[s + 1] && i < used; i++)
      for (int64_t h = 0; h < l.heads; h++) {
        absorb(&a, i, h);
        for (int64_t j = segments[s]; j <= i; j++) absorb_key(&a, latents, j * a.size, turns, j * l.rotated);
        absorbed_store(&a, ctx);
      }
}

/* q, latent (n,C), turns (n,R), w (C,N(P+W)), cache (B,1,G,C+R), table, slots, positions -> ctx
 * (n,NW), cache */
void rf_reference_attention_latent_kv(const rf_call *call) {
  latent l = latent_of(call);
  absorbed a = absorbed_of(call, &l);
  rf_view latents = in_view(call, 1), turns = in_view(call, 2), ctx = out_view(call, 0),
          cache = out_view(call, 1), lse = out_view(call, 2);
  const int32_t *table = ids(call, 5), *slots = ids(call, 6), *positions = ids(call, 7);
  int64_t size = a.size, width = size + l.rotated, page = rf_in(call, 4)->shape[2],
          columns = rf_in(call, 5)->shape[1], rows = rows_in_use(call, l.rows),
          chips = call->op->attr.group > 1 ? call->op->attr.group : 1, rank = rf_rank_of(call);
#define ROW_OF(slot, position) \
  (((int64_t)table[(slot)*columns + (position) / page] * page + (position) % page) * width)
  for (int64_t r = 0; r < rows; r++) {
    if (slots[r] < 0 || positions[r] % chips != rank) continue;
    int64_t at = ROW_OF(slots[r], positions[r] / chips);
    for (int64_t c = 0; c < size; c++) store(cache, at + c, load(latents, r * size + c));
    for (int64_t c = 0; c < l.rotated; c++) store(cache, at + size + c, load(turns, r * l.rotated + c));
  }
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; h < l.heads; h++) {
      absorb(&a, r, h);
      for (int64_t j = 0; j * chips + rank <= positions[r] && slots[r] >= 0; j++) {
        int64_t at = ROW_OF(slots[r], j);
        absorb_key(&a, cache, at, cache, at + size);
      }
      absorbed_store(&a, ctx);
      if (lse.data) store(lse, r * l.heads + h, slots[r] < 0 ? 0 : a.most + log(a.sum));
    }
#undef ROW_OF
}
