/* emit_head.c - emitters of the output head: loss, its gradient, logits, scores, and the parts of a
 * sharded vocabulary. Training and scoring never have the logits of all rows in memory. A loop
 * computes the logits z (c,V) of one chunk of c rows, and all results that depend on these logits.
 * Each chunk reads the whole weight, so chunks are as large as rf_emit.head_bytes allows. */
#include "backend/xla/emit_head.h"

#include <math.h>

enum { PARTS = 4 };

/* The operands of all ops in this file. */
typedef struct head {
  rf_val w, bias; /* w (D,V) or (V,D), bias f32 (V)? */
  int64_t width, vocab;
  bool transpose, rounds; /* rounds: the gradient of logits is rounded to bf16 */
  float cap, temperature; /* temperature 0: 1 */
  rf_val first;           /* i32 scalar: first token of this chip; no value: 0 */
  /* i32 scalar: number of tokens of this chip, without padding; no value: all columns */
  rf_val words;
  int64_t padding; /* columns that pad_vocabulary added */
} head;

/* A chunk of rows, or all rows. The function `body` computes out[] and adds to the sums sum[]. */
typedef struct chunk {
  head of;
  rf_val in[PARTS]; /* (n,..): x, labels, and other arrays that the body reads */
  /* (n,..) results; before the body runs, their type and shape without rows; no value: not
   * wanted */
  rf_val out[PARTS];
  rf_val sum[2];    /* present value of each sum; no value: 0 */
  rf_val sum_of[2]; /* type and shape of each sum; no value: the sum is not wanted */
  void (*body)(rf_emit *e, const rf_op *op, struct chunk *c);
} chunk;

static head head_of(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  const rf_attr_head *attr = &op->attr.head;
  head of = {.w = rf_emit_in(e, op, 1),
             .bias = rf_emit_wide(e, op, 2),
             .transpose = attr->transpose,
             .rounds = attr->gradient == RF_BF16,
             .cap = attr->softcap,
             .temperature = attr->temperature,
             .first = RF_NO_VAL,
             .words = RF_NO_VAL};
  of.vocab = of.w.dim[attr->transpose ? 0 : 1];
  of.width = of.w.dim[attr->transpose ? 1 : 0];
  if (attr->fast) rf_emit_refuse(e, "it multiplies activations of 8 bits");
  if (!op->attr.axes) return of;
  of.first = rf_hlo_multiply_c(h, rf_emit_rank(e, op->attr.axes), (double)of.vocab);
  if (attr->vocab == of.vocab * rf_mesh_size(&e->graph->mesh, op->attr.axes)) return of;
  rf_val left = rf_hlo_subtract(h, rf_hlo_scalar(h, RF_HLO_I32, (double)attr->vocab), of.first);
  of.words = rf_hlo_minimum(h, rf_hlo_maximum_c(h, left, 0), rf_hlo_scalar(h, RF_HLO_I32, (double)of.vocab));
  return of;
}

/* Adds empty tokens to the vocabulary, because the target multiplies some numbers of columns
 * faster. Without the empty tokens, the compiler pads the weight in each chunk. */
static void pad_vocabulary(rf_emit *e, head *of) {
  rf_hlo *h = e->h;
  int64_t more = rf_emit_head_vocab(&e->target, of->vocab) - of->vocab;
  if (!more || rf_has(of->words)) return;
  of->w = rf_hlo_pad(h, of->w, of->transpose ? 0 : 1, 0, more, 0);
  if (rf_has(of->bias)) of->bias = rf_hlo_pad(h, of->bias, 0, 0, more, 0);
  of->words = rf_hlo_scalar(h, RF_HLO_I32, (double)of->vocab);
  of->padding = more;
  of->vocab += more;
}

/* ---- products -------------------------------------------------------------------------------- */

static rf_val plus(rf_hlo *h, rf_val sum, rf_val v) { return rf_has(sum) ? rf_hlo_add(h, sum, v) : v; }

/* Computes sum + a * b in f32, or a * b if `sum` has no value. One operand may be transposed. If the
 * types differ and products of bf16 are faster, the f32 operand becomes a sum of two bf16 numbers,
 * which keeps 16 bits. If the product sums over rows, the rows of the second number follow the rows
 * of the first. */
static rf_val product(rf_emit *e, rf_val sum, rf_val a, bool a_transposed, rf_val b, bool b_transposed) {
  rf_hlo *h = e->h;
  if (b.type == RF_HLO_I8) b = rf_hlo_convert(h, b, a.type);
  if (a.type != b.type && !e->target.bf16_products) {
    a = rf_hlo_convert(h, a, RF_HLO_F32);
    b = rf_hlo_convert(h, b, RF_HLO_F32);
  }
  if (a.type == b.type) return plus(h, sum, rf_hlo_matmul(h, a, a_transposed, b, b_transposed, RF_HLO_F32));
  bool left = a.type == RF_HLO_F32;
  rf_val wide = left ? a : b, other = left ? b : a, high = rf_hlo_round_bf16(h, wide), part[2];
  part[0] = rf_hlo_convert(h, high, other.type);
  part[1] = rf_hlo_convert(h, rf_hlo_subtract(h, wide, high), other.type);
  if (a_transposed) { /* two products would need two arrays of the size of the sum */
    rf_val twice[2] = {other, other}, both = rf_hlo_concatenate(h, 0, 2, part);
    other = rf_hlo_concatenate(h, 0, 2, twice);
    return plus(h, sum, rf_hlo_matmul(h, left ? both : other, true, left ? other : both, false, RF_HLO_F32));
  }
  for (int i = 0; i < 2; i++)
    sum = plus(
        h, sum,
        rf_hlo_matmul(h, left ? part[i] : a, a_transposed, left ? b : part[i], b_transposed, RF_HLO_F32));
  return sum;
}

/* Numbers of the columns, i32 (c,V). */
static rf_val columns(rf_hlo *h, rf_val z) { return rf_hlo_iota(h, RF_HLO_I32, 1, 2, z.dim); }

static rf_val lowest(rf_hlo *h) { return rf_hlo_scalar(h, RF_HLO_F32, -(double)INFINITY); }

/* Logits z (c,V), without the mask of padding. */
static rf_val all_logits(rf_emit *e, const head *of, rf_val x) {
  rf_val z = product(e, RF_NO_VAL, x, false, of->w, of->transpose);
  if (rf_has(of->bias)) z = rf_hlo_add(e->h, z, rf_emit_across_rows(e, of->bias, z.dim[0]));
  z = rf_emit_softcap(e->h, z, of->cap);
  if (!(of->temperature > 0)) return z;
  return rf_hlo_divide(e->h, z, rf_hlo_scalar(e->h, RF_HLO_F32, (double)of->temperature));
}

/* Logits z (c,V); -inf in columns of padding. */
static rf_val logits(rf_emit *e, const head *of, rf_val x) {
  rf_val z = all_logits(e, of, x);
  if (!rf_has(of->words)) return z;
  return rf_hlo_select(e->h, rf_hlo_compare(e->h, RF_HLO_LT, columns(e->h, z), of->words), z, lowest(e->h));
}

/* ---- results of rows of logits --------------------------------------------------------------- */

enum { SUBLANES = 8, LANES = 128 }; /* of a tile of f32 */

/* A row of V logits is divided into G groups of L consecutive logits. One pass computes the maximum
 * of each group. Then the program searches only the group with the largest maximum for the
 * position. About sqrt(V/k) is best. */
static int64_t group_length(const rf_emit *e, int64_t vocab, int64_t k) {
  int64_t best = 1;
  /* Accelerators store the last dimension in lanes of 128, so groups of another length would need a
   * padded copy. */
  if (e->target.bf16_products) return k > 1 && vocab % LANES == 0 ? LANES : 1;
  for (int64_t l = 1; l <= 1024 && l * l * k <= 4 * vocab; l++)
    if (vocab % l == 0) best = l;
  return best;
}

typedef struct rows {
  rf_val z;       /* (c,V) */
  rf_val grouped; /* z as (c,G,L), or as (c,V) for groups of 1 */
  rf_val tiles;   /* z as (c/8,G,8,L); no value: arrays of this compiler have no tiles */
  rf_val tops;    /* (c,G): largest of each group */
  rf_val most;    /* (c): largest logit of the row, or -1e30 if all are smaller */
  rf_val sum;     /* (c): sum of exp(z - most) */
} rows;

/* Sets the groups and their largest elements. If memory has tiles of 8 rows and 128 columns, z
 * already has the order of r->tiles, and (c,G,L) would be a copy. */
static void group_rows(rf_emit *e, rows *r, int64_t k) {
  rf_hlo *h = e->h;
  int64_t c = r->z.dim[0], l = group_length(e, r->z.dim[1], k), g = r->z.dim[1] / l;
  if (!e->target.tiles || l != LANES || c % SUBLANES) {
    r->grouped = l == 1 ? r->z : rf_hlo_reshape(h, r->z, RF_DIMS(c, g, l));
    r->tops = l == 1 ? r->z : rf_hlo_reduce(h, RF_HLO_MAX, r->grouped, 2);
    return;
  }
  r->tiles = rf_hlo_transpose(h, rf_hlo_reshape(h, r->z, RF_DIMS(c / SUBLANES, SUBLANES, g, l)),
                              (const int[]){0, 2, 1, 3});
  rf_val tops = rf_hlo_transpose(h, rf_hlo_reduce(h, RF_HLO_MAX, r->tiles, 3), (const int[]){0, 2, 1});
  r->tops = rf_hlo_reshape(h, tops, RF_DIMS(c, g));
}

static rows rows_of(rf_emit *e, rf_val z, int64_t k) {
  rf_hlo *h = e->h;
  rows r = {.z = z, .grouped = z, .tiles = RF_NO_VAL};
  group_rows(e, &r, k);
  r.most = rf_hlo_maximum_c(h, rf_hlo_reduce(h, RF_HLO_MAX, r.tops, 1), -1e30);
  rf_val all = rf_hlo_broadcast(h, r.most, (const int[]){0}, r.grouped.rank, r.grouped.dim);
  r.sum = rf_hlo_exponential(h, rf_hlo_subtract(h, r.grouped, all));
  while (r.sum.rank > 1) r.sum = rf_hlo_reduce(h, RF_HLO_SUM, r.sum, 1 + (r.sum.rank == 3));
  return r;
}

static rf_val lse_of(rf_hlo *h, const rows *r) { return rf_hlo_add(h, r->most, rf_hlo_log(h, r->sum)); }

/* Index pairs (row, column) as i32 (c,2). */
static rf_val pairs(rf_hlo *h, rf_val column) {
  int64_t c = column.dim[0];
  rf_val both[2] = {rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(c, 1)), rf_hlo_reshape(h, column, RF_DIMS(c, 1))};
  return rf_hlo_concatenate(h, 1, 2, both);
}

/* The first column of each row of a (c,m) whose value is the row's `most` (c). */
static rf_val first_equal(rf_hlo *h, rf_val a, rf_val most) {
  rf_val same = rf_hlo_compare(h, RF_HLO_EQ, a, rf_hlo_broadcast(h, most, (const int[]){0}, 2, a.dim)),
         last = rf_hlo_scalar(h, RF_HLO_I32, (double)(a.dim[1] - 1));
  return rf_hlo_reduce(h, RF_HLO_MIN, rf_hlo_select(h, same, columns(h, a), last), 1);
}

/* Gets groups group[r,..] (c,k) of each row r, as (c,k,L). */
static rf_val groups_at(rf_hlo *h, const rows *r, rf_val group) {
  int64_t c = group.dim[0], k = group.dim[1];
  if (!rf_has(r->tiles)) {
    rf_val index[2] = {rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(c, k, 1)),
                       rf_hlo_reshape(h, group, RF_DIMS(c, k, 1))};
    return rf_hlo_gather(h, r->grouped, rf_hlo_concatenate(h, 2, 2, index), 2, (const int[]){0, 1});
  }
  int64_t g = r->tiles.dim[1], l = r->tiles.dim[3];
  rf_val lines = rf_hlo_reshape(h, r->tiles, RF_DIMS(c * g, l)),
         row = rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(c, k)),
         within = rf_hlo_remainder(h, row, rf_hlo_scalar(h, RF_HLO_I32, SUBLANES)),
         line = rf_hlo_multiply_c(h, rf_hlo_subtract(h, row, within), (double)g);
  line = rf_hlo_add(h, rf_hlo_add(h, line, rf_hlo_multiply_c(h, group, SUBLANES)), within);
  return rf_hlo_gather(h, lines, rf_hlo_reshape(h, line, RF_DIMS(c, k, 1)), 1, (const int[]){0});
}

/* The smallest v with z[r,v] = most, i32 (c). */
static rf_val best_of(rf_hlo *h, const rows *r) {
  rf_val group = first_equal(h, r->tops, r->most);
  if (r->grouped.rank == 2) return group;
  rf_val part = rf_hlo_gather(h, r->grouped, pairs(h, group), 2, (const int[]){0, 1}),
         at = first_equal(h, part, r->most);
  return rf_hlo_add(h, rf_hlo_multiply_c(h, group, (double)r->grouped.dim[2]), at);
}

/* z[r,labels[r]] (c). If a label is out of range, the caller does not use the result. */
static rf_val of_labels(rf_hlo *h, rf_val z, rf_val labels) {
  return rf_hlo_gather(h, z, pairs(h, labels), 2, (const int[]){0, 1});
}

static rf_val is_label(rf_hlo *h, rf_val labels) { return rf_hlo_compare_c(h, RF_HLO_GE, labels, 0); }
static rf_val zero_if_ignored(rf_hlo *h, rf_val labels, rf_val v) {
  return rf_hlo_select(h, is_label(h, labels), v, rf_hlo_scalar(h, v.type, 0));
}

/* ---- chunks of rows -------------------------------------------------------------------------- */

/* The number of rows of a chunk for which computing takes as long as moving data on an accelerator.
 * Each chunk reads the weight once, and also reads and writes the gradient of the weight, if there
 * is one. */
enum { LARGEST = 1 << 30 }; /* size of a chunk of logits in f32, in bytes */
enum { BALANCED_ROWS = 256, BALANCED_ROWS_WITH_GRADIENT = 512 };

int64_t rf_emit_head_vocab(const rf_emit_target *target, int64_t vocab) {
  return target->columns ? rf_ceil_div(vocab, target->columns) * target->columns : vocab;
}

int64_t rf_emit_head_rows(const rf_emit_target *target, int64_t bytes, const rf_head_size *of) {
  int64_t fewest = 1, gradient = 4 * of->width * of->vocab;
  if (bytes == 0) {
    bytes = target->head_bytes ? target->head_bytes : 64 << 20;
    /* A chunk reads and writes the gradient, so chunks are larger for large gradients. */
    if (target->head_bytes && of->adds && bytes < gradient) bytes = gradient < LARGEST ? gradient : LARGEST;
    if (target->bf16_products) fewest = of->adds ? BALANCED_ROWS_WITH_GRADIENT : BALANCED_ROWS;
    else if (of->adds && bytes < 2 * gradient) bytes = 2 * gradient;
  }
  int64_t row = 4 * of->vocab, most = bytes / row > fewest ? bytes / row : fewest,
          count = rf_ceil_div(of->rows, most), each = rf_ceil_div(of->rows, count);
  return count > 1 && target->tiles ? rf_ceil_div(each, SUBLANES) * SUBLANES : each;
}

static int64_t rows_of_chunk(const rf_emit *e, const chunk *c) {
  return rf_emit_head_rows(
      &e->target, e->head_bytes,
      &(rf_head_size){
          .rows = c->in[0].dim[0], .width = c->of.width, .vocab = c->of.vocab, .adds = rf_has(c->sum_of[0])});
}

/* Selects rows from `row` (i32 scalar) on. All other dimensions stay whole. */
static void start_of(rf_hlo *h, rf_val row, rf_val start[RF_HLO_RANK], int rank) {
  start[0] = row;
  for (int i = 1; i < rank; i++) start[i] = rf_hlo_scalar(h, RF_HLO_I32, 0);
}
static rf_val take(rf_hlo *h, rf_val a, rf_val row, int64_t count) {
  rf_val start[RF_HLO_RANK];
  int64_t size[RF_HLO_RANK];
  start_of(h, row, start, a.rank);
  for (int i = 0; i < a.rank; i++) size[i] = i ? a.dim[i] : count;
  return rf_hlo_dynamic_slice(h, a, start, size);
}
static rf_val give(rf_hlo *h, rf_val a, rf_val part, rf_val row) {
  rf_val start[RF_HLO_RANK];
  start_of(h, row, start, a.rank);
  return rf_hlo_dynamic_update(h, a, rf_hlo_convert(h, part, a.type), start);
}

/* Lists the values that pass from one chunk to the next: first the outputs, then the sums. */
static int carried(const chunk *c, rf_val *list[PARTS + 2], chunk *of) {
  int count = 0;
  for (int i = 0; i < PARTS; i++)
    if (rf_has(c->out[i])) list[count++] = &of->out[i];
  for (int i = 0; i < 2; i++)
    if (rf_has(c->sum_of[i])) list[count++] = &of->sum[i];
  return count;
}

/* The backward pass does not need all results. Without a barrier, the compiler computes the other
 * results after the backward pass, and keeps the logits until then. */
static void finish_together(rf_hlo *h, chunk *c) {
  rf_val *list[PARTS + 2], v[PARTS + 2];
  int count = carried(c, list, c);
  for (int i = 0; i < count; i++) v[i] = *list[i];
  rf_hlo_barrier(h, v, count);
  for (int i = 0; i < count; i++) *list[i] = v[i];
}

/* Runs the body over all rows. Padding rows fill the last chunk. The labels (in[1]) of padding rows
 * are -1. */
static void run_chunks(rf_emit *e, const rf_op *op, chunk *c) {
  rf_hlo *h = e->h;
  int64_t n = c->in[0].dim[0], each = rows_of_chunk(e, c), count = (n + each - 1) / each;
  if (count == 1) {
    c->body(e, op, c);
    if (e->target.bf16_products && e->graph->job == RF_JOB_TRAIN) finish_together(h, c);
    return;
  }
  chunk all = *c, part = *c;
  rf_val *whole[PARTS + 2], *some[PARTS + 2], value[PARTS + 2];
  int values = carried(c, whole, &all), outs = 0;
  carried(c, some, &part);
  for (int i = 0; i < PARTS; i++) {
    if (rf_has(c->in[i]) && count * each > n)
      all.in[i] = rf_hlo_pad(h, c->in[i], 0, 0, count * each - n, i == 1 ? -1 : 0);
    if (!rf_has(c->out[i])) continue;
    all.out[i].dim[0] = count * each;
    all.out[i] = rf_hlo_full(h, all.out[i].type, 0, all.out[i].rank, all.out[i].dim);
    outs++;
  }
  for (int i = 0; i < 2; i++)
    if (rf_has(c->sum_of[i]) && !rf_has(c->sum[i])) all.sum[i] = rf_hlo_full_like(h, c->sum_of[i], 0);
  for (int k = 0; k < values; k++) value[k] = *whole[k];
  rf_hlo_loop loop;
  rf_hlo_loop_begin(h, &loop, count, value, values);
  rf_val row = rf_hlo_multiply_c(h, loop.i, (double)each);
  for (int i = 0; i < PARTS; i++)
    if (rf_has(c->in[i])) part.in[i] = take(h, all.in[i], row, each);
  for (int k = outs; k < values; k++) *some[k] = value[k];
  part.body(e, op, &part);
  for (int k = 0; k < values; k++) value[k] = k < outs ? give(h, value[k], *some[k], row) : *some[k];
  rf_hlo_loop_end(h, &loop, value);
  for (int k = 0; k < values; k++) *whole[k] = k < outs ? rf_hlo_slice(h, value[k], 0, 0, n) : value[k];
  *c = all;
}

/* An output of the type of slot `slot`, with `columns` numbers in each row; 0: one number per
 * row. */
static rf_val out_of(rf_emit *e, const rf_op *op, int slot, int64_t columns) {
  if (!rf_emit_wants(op, slot)) return RF_NO_VAL;
  return (rf_val){
      .id = 0, .type = rf_emit_out_type(e, op, slot), .rank = columns ? 2 : 1, .dim = {1, columns}};
}

static chunk chunk_of(rf_emit *e, const rf_op *op, void (*body)(rf_emit *, const rf_op *, chunk *)) {
  chunk c = {.of = head_of(e, op), .body = body};
  pad_vocabulary(e, &c.of);
  for (int i = 0; i < PARTS; i++) c.in[i] = c.out[i] = RF_NO_VAL;
  for (int i = 0; i < 2; i++) c.sum[i] = c.sum_of[i] = RF_NO_VAL;
  c.in[0] = rf_emit_in(e, op, 0);
  c.in[1] = rf_emit_in(e, op, 3);
  return c;
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* nll (c), argmax (c) and lse (c) from the logits. */
static void results_of(rf_emit *e, chunk *c, rf_val z, rf_val *lse) {
  rf_hlo *h = e->h;
  rows r = rows_of(e, z, 1);
  *lse = lse_of(h, &r);
  if (rf_has(c->out[0]))
    c->out[0] = zero_if_ignored(h, c->in[1], rf_hlo_subtract(h, *lse, of_labels(h, z, c->in[1])));
  if (rf_has(c->out[1])) c->out[1] = best_of(h, &r);
}

static void loss_body(rf_emit *e, const rf_op *op, chunk *c) {
  (void)op;
  rf_val lse;
  results_of(e, c, logits(e, &c->of, c->in[0]), &lse);
  c->out[2] = lse;
}

/* x, w, bias?, labels (n) -> nll (n), argmax (n), lse (n) */
static void emit_head_loss(rf_emit *e, const rf_op *op) {
  chunk c = chunk_of(e, op, loss_body);
  for (int i = 0; i < 3; i++) c.out[i] = out_of(e, op, i, 0);
  run_chunks(e, op, &c);
  for (int i = 0; i < 3; i++) rf_emit_out(e, op, i, c.out[i]);
}

/* dz (c,V) = (exp(z - lse) - [v is the label]) * dnll (without dnll: loss_scale) * slope of the
 * softcap / temperature */
static rf_val logits_gradient(rf_emit *e, const chunk *c, rf_val z, rf_val lse) {
  rf_hlo *h = e->h;
  rf_val labels = c->in[1],
         scale = rf_has(c->in[3]) ? c->in[3] : rf_hlo_broadcast(h, e->run.loss_scale, NULL, 1, labels.dim),
         mine = rf_has(c->of.first) ? rf_hlo_subtract(h, labels, c->of.first) : labels;
  float by = c->of.temperature > 0 ? c->of.temperature : 1;
  if (by != 1) scale = rf_hlo_divide(h, scale, rf_hlo_scalar(h, RF_HLO_F32, (double)by));
  rf_val p = rf_hlo_exponential(h, rf_hlo_subtract(h, z, rf_emit_across_columns(e, lse, z.dim[1]))),
         here = rf_hlo_compare(h, RF_HLO_EQ, columns(h, z), rf_emit_across_columns(e, mine, z.dim[1]));
  p = rf_hlo_subtract(h, p, rf_hlo_convert(h, here, RF_HLO_F32));
  p = rf_hlo_multiply(h, p, rf_emit_across_columns(e, scale, z.dim[1]));
  if (c->of.cap > 0) p = rf_hlo_multiply(h, p, rf_emit_softcap_slope(h, z, c->of.cap / by));
  rf_val used = rf_emit_across_columns(e, is_label(h, labels), z.dim[1]);
  if (rf_has(c->of.words))
    used = rf_hlo_and(h, used, rf_hlo_compare(h, RF_HLO_LT, columns(h, z), c->of.words));
  return rf_hlo_select(h, used, p, rf_hlo_scalar(h, RF_HLO_F32, 0));
}

/* Computes dx (c,D) in out[at], and adds to the sums dw and dbias. If the op rounds dz, both products
 * have one operand of bf16 numbers. */
static void gradients(rf_emit *e, chunk *c, rf_val dz, int at) {
  bool transpose = c->of.transpose;
  rf_val x = c->in[0], wide = c->of.rounds ? rf_hlo_round_bf16(e->h, dz) : dz;
  dz = c->of.rounds ? rf_hlo_convert(e->h, wide, RF_HLO_BF16) : wide;
  if (rf_has(c->out[at])) {
    bool narrow = e->target.one_bf16 && c->out[at].type == c->of.w.type;
    rf_val slope = narrow ? rf_hlo_convert(e->h, dz, c->of.w.type) : dz;
    c->out[at] = product(e, RF_NO_VAL, slope, false, c->of.w, !transpose);
  }
  if (rf_has(c->sum_of[0]))
    c->sum[0] =
        transpose ? product(e, c->sum[0], dz, true, x, false) : product(e, c->sum[0], x, true, dz, false);
  if (rf_has(c->sum_of[1])) c->sum[1] = plus(e->h, c->sum[1], rf_hlo_reduce(e->h, RF_HLO_SUM, wide, 0));
}

/* The dimension of sum i (dw or dbias) that counts tokens. */
static int words_axis(const chunk *c, int i) { return i == 0 && !c->of.transpose ? 1 : 0; }

/* Sum i is output `slot` + i. */
static void begin_sums(rf_emit *e, const rf_op *op, chunk *c, int slot) {
  const rf_val shape[2] = {c->of.w, c->of.bias};
  for (int i = 0; i < 2; i++) {
    if (!rf_emit_wants(op, slot + i)) continue;
    c->sum_of[i] = shape[i];
    c->sum_of[i].type = RF_HLO_F32;
    rf_val start = rf_emit_start(e, op, slot + i);
    if (!rf_has(start)) continue;
    c->sum[i] = rf_hlo_convert(e->h, start, RF_HLO_F32);
    if (c->of.padding) c->sum[i] = rf_hlo_pad(e->h, c->sum[i], words_axis(c, i), 0, c->of.padding, 0);
  }
}
/* Sets the sums, and the outputs before `slot`, which never accumulate. */
static void end_sums(rf_emit *e, const rf_op *op, const chunk *c, int slot) {
  for (int i = 0; i < slot; i++)
    if (rf_emit_wants(op, i)) rf_emit_set(e, op, i, c->out[i]);
  for (int i = 0; i < 2; i++) {
    if (!rf_emit_wants(op, slot + i)) continue;
    rf_val sum = c->sum[i];
    if (c->of.padding)
      sum = rf_hlo_slice(e->h, sum, words_axis(c, i), 0, sum.dim[words_axis(c, i)] - c->of.padding);
    rf_emit_set(e, op, slot + i, sum);
  }
}

static void loss_bwd_body(rf_emit *e, const rf_op *op, chunk *c) {
  (void)op;
  rf_val z = all_logits(e, &c->of, c->in[0]);
  gradients(e, c, logits_gradient(e, c, z, c->in[2]), 0);
}

/* x, w, bias?, labels, lse, dnll? (n) -> dx (n,D), dw, dbias? */
static void emit_head_loss_bwd(rf_emit *e, const rf_op *op) {
  chunk c = chunk_of(e, op, loss_bwd_body);
  c.in[2] = rf_emit_wide(e, op, 4);
  c.in[3] = rf_emit_wide(e, op, 5);
  c.out[0] = out_of(e, op, 0, c.of.width);
  begin_sums(e, op, &c, 1);
  run_chunks(e, op, &c);
  end_sums(e, op, &c, 1);
}

static void loss_grad_body(rf_emit *e, const rf_op *op, chunk *c) {
  (void)op;
  rf_val z = logits(e, &c->of, c->in[0]), lse;
  results_of(e, c, z, &lse);
  gradients(e, c, logits_gradient(e, c, z, lse), 2);
}

/* x, w, bias?, labels, dnll? -> nll, argmax, dx, dw, dbias? */
static void emit_head_loss_grad(rf_emit *e, const rf_op *op) {
  chunk c = chunk_of(e, op, loss_grad_body);
  c.in[3] = rf_emit_wide(e, op, 4);
  c.out[0] = out_of(e, op, 0, 0);
  c.out[1] = out_of(e, op, 1, 0);
  c.out[2] = out_of(e, op, 2, c.of.width);
  begin_sums(e, op, &c, 3);
  run_chunks(e, op, &c);
  end_sums(e, op, &c, 3);
}

/* ---- logits and scores ----------------------------------------------------------------------- */

/* x, w, bias?, rows (R) -> logits (R,V), lse (R)?; a row index of -1 gives zeros */
static void emit_head_logits(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  head of = head_of(e, op);
  rf_val picked = rf_emit_in(e, op, 3), z = all_logits(e, &of, rf_hlo_rows(h, rf_emit_in(e, op, 0), picked)),
         used = rf_emit_across_columns(e, is_label(h, picked), z.dim[1]);
  rf_emit_out(e, op, 0, rf_hlo_select(h, used, z, rf_hlo_scalar(h, RF_HLO_F32, 0)));
  if (!rf_emit_wants(op, 1)) return;
  if (rf_has(of.words))
    z = rf_hlo_select(h, rf_hlo_compare(h, RF_HLO_LT, columns(h, z), of.words), z, lowest(h));
  rows r = rows_of(e, z, 1);
  rf_emit_out(e, op, 1, zero_if_ignored(h, picked, lse_of(h, &r)));
}

/* The k largest logits of each row in descending order. Among equal logits, the lower token comes
 * first. The k groups with the largest maxima contain these logits, if the lower group comes first
 * among equal maxima. */
static void likeliest(rf_hlo *h, const rows *r, int64_t k, rf_val *values, rf_val *ids) {
  int64_t c = r->z.dim[0], g = r->tops.dim[1], l = r->z.dim[1] / g;
  if (k >= g || l == 1) {
    rf_hlo_top_k(h, r->z, k, values, ids);
    return;
  }
  rf_val largest, group, none = RF_NO_VAL;
  rf_hlo_top_k(h, r->tops, k, &largest, &group);
  rf_hlo_sort(h, 1, &group, &none); /* groups in ascending order, so candidates are in the order of tokens */
  rf_val some = groups_at(h, r, group), at;
  rf_hlo_top_k(h, rf_hlo_reshape(h, some, RF_DIMS(c, k * l)), k, values, &at);
  rf_val token =
      rf_hlo_broadcast(h, rf_hlo_multiply_c(h, group, (double)l), (const int[]){0, 1}, RF_DIMS(c, k, l));
  token = rf_hlo_add(h, token, rf_hlo_iota(h, RF_HLO_I32, 2, RF_DIMS(c, k, l)));
  rf_val place[2] = {rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(c, k, 1)),
                     rf_hlo_reshape(h, at, RF_DIMS(c, k, 1))};
  *ids = rf_hlo_gather(h, rf_hlo_reshape(h, token, RF_DIMS(c, k * l)), rf_hlo_concatenate(h, 2, 2, place), 2,
                       (const int[]){0, 1});
}

static void score_body(rf_emit *e, const rf_op *op, chunk *c) {
  rf_hlo *h = e->h;
  int64_t k = op->attr.head.top;
  bool top = rf_has(c->out[1]) || rf_has(c->out[2]);
  rf_val z = logits(e, &c->of, c->in[0]), values, ids;
  rows r = rows_of(e, z, top ? k : 1);
  rf_val lse = lse_of(h, &r);
  c->out[0] = zero_if_ignored(h, c->in[1], rf_hlo_subtract(h, of_labels(h, z, c->in[1]), lse));
  if (!top) return;
  likeliest(h, &r, k, &values, &ids);
  c->out[1] = ids;
  c->out[2] = rf_hlo_subtract(h, values, rf_emit_across_columns(e, lse, k));
}

/* x, w, bias?, labels -> logprob (n), top_ids (n,K)?, top_logprobs (n,K)? */
static void emit_head_score(rf_emit *e, const rf_op *op) {
  chunk c = chunk_of(e, op, score_body);
  for (int i = 0; i < 3; i++) c.out[i] = out_of(e, op, i, i ? op->attr.head.top : 0);
  run_chunks(e, op, &c);
  for (int i = 0; i < 3; i++) rf_emit_out(e, op, i, c.out[i]);
}

/* ---- a sharded vocabulary -------------------------------------------------------------------- */

static void part_body(rf_emit *e, const rf_op *op, chunk *c) {
  (void)op;
  rf_hlo *h = e->h;
  rf_val labels = c->in[1], z = logits(e, &c->of, c->in[0]), part[4], end;
  rows r = rows_of(e, z, 1);
  if (rf_has(c->of.first)) labels = rf_hlo_subtract(h, labels, c->of.first);
  end = rf_has(c->of.words) ? c->of.words : rf_hlo_scalar(h, RF_HLO_I32, (double)c->of.vocab);
  rf_val here = rf_hlo_and(h, is_label(h, labels), rf_hlo_compare(h, RF_HLO_LT, labels, end));
  part[0] = r.most;
  part[1] = r.sum;
  part[2] = rf_hlo_select(h, here, of_labels(h, z, labels), rf_hlo_scalar(h, RF_HLO_F32, 0));
  rf_val best = best_of(h, &r);
  if (rf_has(c->of.first)) best = rf_hlo_add(h, best, c->of.first);
  part[3] = rf_hlo_convert(h, best, RF_HLO_F32);
  for (int i = 0; i < 4; i++) part[i] = rf_hlo_reshape(h, part[i], RF_DIMS(part[i].dim[0], 1));
  c->out[0] = rf_hlo_concatenate(h, 1, 4, part);
}

/* x, w, bias?, labels (n) -> part (n,4): largest logit, sum, logit of the label, best token */
static void emit_head_part(rf_emit *e, const rf_op *op) {
  chunk c = chunk_of(e, op, part_body);
  c.out[0] = out_of(e, op, 0, 4);
  run_chunks(e, op, &c);
  rf_emit_out(e, op, 0, c.out[0]);
}

/* parts (n,4c), labels (n) -> nll?, argmax?, lse?, logprob? */
static void emit_head_merge(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val all = rf_emit_wide(e, op, 0), labels = rf_emit_in(e, op, 1), part[4];
  int64_t n = all.dim[0], chips = all.dim[1] / 4;
  all = rf_hlo_reshape(h, all, RF_DIMS(n, chips, 4));
  for (int i = 0; i < 4; i++)
    part[i] = rf_hlo_reshape(h, rf_hlo_slice(h, all, 2, i, i + 1), RF_DIMS(n, chips));
  rf_val most = rf_hlo_reduce(h, RF_HLO_MAX, part[0], 1),
         apart = rf_hlo_subtract(h, part[0], rf_emit_across_columns(e, most, chips)),
         sum = rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_multiply(h, part[1], rf_hlo_exponential(h, apart)), 1),
         lse = rf_hlo_add(h, most, rf_hlo_log(h, sum)),
         nll = zero_if_ignored(h, labels, rf_hlo_subtract(h, lse, rf_hlo_reduce(h, RF_HLO_SUM, part[2], 1)));
  rf_emit_out(e, op, 0, nll);
  if (rf_emit_wants(op, 1))
    rf_emit_out(e, op, 1,
                of_labels(h, rf_hlo_convert(h, part[3], RF_HLO_I32), first_equal(h, part[0], most)));
  rf_emit_out(e, op, 2, lse);
  rf_emit_out(e, op, 3, rf_hlo_negate(h, nll));
}

const rf_emitter RF_EMIT_HEAD[] = {
    {&RF_OP_HEAD_LOSS, emit_head_loss, NULL},           {&RF_OP_HEAD_LOSS_BWD, emit_head_loss_bwd, NULL},
    {&RF_OP_HEAD_LOSS_GRAD, emit_head_loss_grad, NULL}, {&RF_OP_HEAD_LOGITS, emit_head_logits, NULL},
    {&RF_OP_HEAD_SCORE, emit_head_score, NULL},         {&RF_OP_HEAD_PART, emit_head_part, NULL},
    {&RF_OP_HEAD_MERGE, emit_head_merge, NULL},         {0},
};
