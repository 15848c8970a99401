/* attention_latent.c - latent attention (DeepSeek-V2, arXiv 2405.04434): the norm of the latent
 * row, causal attention and its backward ops, and attention over the latent rows of a text
 * (scoring) or of a cache (generation). The last two ops do not compute keys. Instead, the last two
 * ops map queries into the latent space. */
#include "graph/mesh/shard.h"

/* Letters for numbers of columns of a head. R: number of query columns that are rotated. P: number
 * of the other query columns, which are multiplied with keys from the latent row. W: number of
 * columns of a value head. */
typedef struct latent_dims {
  int64_t rows, heads, rotated, plain, value, pair; /* pair: number P + W of the columns of a head in kv_b */
  rf_dtype dtype;
} latent_dims;

static rf_status dims_of(const rf_graph *graph, const rf_op *op, latent_dims *d, rf_error *error) {
  const rf_attr_attention *a = &op->attr.attention;
  *d = (latent_dims){.rows = rf_input_dim(graph, op, 0, 0),
                     .heads = a->heads,
                     .rotated = a->rope_dim,
                     .plain = a->head_dim - a->rope_dim,
                     .value = a->value_dim,
                     .pair = a->head_dim - a->rope_dim + a->value_dim,
                     .dtype = rf_input_dtype(graph, op, 0)};
  if (d->heads > 0 && d->rotated > 0 && d->plain > 0 && d->value > 0 && a->softmax != RF_BF16 &&
      a->softcap == 0 && a->window == 0)
    return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, NULL,
                 "bad latent heads (%s: expected heads, rope dim below head_dim and value_dim above 0, f32 "
                 "softmax, no softcap, no window; got %d, %d, %d, "
                 "%d)",
                 op->name, a->heads, a->rope_dim, a->head_dim, a->value_dim);
}

/* ---- the latent row -------------------------------------------------------------------------- */

static rf_status norm_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1),
          latent = rf_input_dim(graph, op, 1, 0);
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  if (latent < 1 || latent >= width)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "no columns are left to rotate (%s: expected a gain of 1 to %lld, got %lld)", op->name,
                   (long long)width - 1, (long long)latent);
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  RF_IN(1, RF_ANY_FLOAT, latent);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, latent);
  RF_OUT(1, RF_CLASS_ACTIVATION, dtype, rows, width - latent);
  RF_OUT(2, RF_CLASS_ACTIVATION, rf_wide_dtype(dtype), rows, 1);
  return RAFTER_OK;
}

static rf_status norm_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1),
          latent = rf_input_dim(graph, op, 1, 0);
  rf_dtype dtype = rf_input_dtype(graph, op, 0), wide = rf_wide_dtype(dtype);
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  RF_IN(1, RF_ANY_FLOAT, latent);
  RF_IN(2, wide, rows, 1);
  RF_IN(3, dtype, rows, latent);
  RF_IN(4, dtype, rows, width - latent);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, width);
  RF_OUT(1, RF_CLASS_GRADIENT, wide, latent);
  return RAFTER_OK;
}

const rf_op_def RF_OP_LATENT_NORM = {
    .name = "latent_norm",
    .kind = RF_KIND_NORM,
    .formula = "rstd = 1/sqrt(sum_{c<C} x[r,c]^2 / C + eps); latent[r,c] = round(x[r,c]*rstd*gain[c]); "
               "turns[r,i] = x[r,C+i]; stats[r] = {rstd}; in f32",
    .inputs = {"x (n,C+R)", "gain (C)"},
    .outputs = {"latent (n,C)", "turns (n,R)", "stats (n,1)"},
    .fields = RF_FIELDS_NORM,
    .shape = norm_shape,
    .work = rf_work_bytes,
    .gradient = {&RF_OP_LATENT_NORM_BWD, {RF_X(0), RF_X(1), RF_Y(2), RF_DY(0), RF_DY(1)}},
    .shard = rf_shard_rows,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_RMSNORM, &RF_OP_ADD},
};

const rf_op_def RF_OP_LATENT_NORM_BWD = {
    .name = "latent_norm_bwd",
    .kind = RF_KIND_NORM,
    .formula = "h[r,c] = x[r,c]*rstd[r]; g[r,c] = dlatent[r,c]*gain[c]; b[r] = sum_c g[r,c]*h[r,c] / C; "
               "dx[r,c] = round(rstd[r]*(g[r,c] - h[r,c]*b[r])); dx[r,C+i] = dturns[r,i]; dgain[c] = sum_r "
               "dlatent[r,c]*h[r,c], rows ascending, from 0 (write) or from the present value (add); in f32",
    .inputs = {"x (n,C+R)", "gain (C)", "stats (n,1)", "dlatent (n,C)?", "dturns (n,R)?"},
    .outputs = {"dx (n,C+R)?", "dgain (C)?"},
    .fields = RF_FIELDS_NORM,
    .shape = norm_bwd_shape,
    .work = rf_work_bytes,
    .shard = rf_shard_rows,
    .tolerance = {1e-5f, 1e-2f},
    .timed_like = {&RF_OP_RMSNORM_BWD, &RF_OP_ADD},
};

/* ---- rows of text ---------------------------------------------------------------------------- */

/* Checks inputs q, kv and turns (the rotated part of keys) of attention over rows of text. */
static rf_status row_inputs(rf_graph *graph, rf_op *op, latent_dims *d, rf_error *error) {
  RF_TRY(dims_of(graph, op, d, error));
  RF_IN(0, RF_ANY_FLOAT, d->rows, d->heads * (d->plain + d->rotated));
  RF_IN(1, d->dtype, d->rows, d->heads * d->pair);
  RF_IN(2, d->dtype, d->rows, d->rotated);
  return RAFTER_OK;
}

static rf_status attention_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  latent_dims d;
  RF_TRY(row_inputs(graph, op, &d, error));
  RF_IN(3, RF_I32, d.rows + 1);
  RF_OUT(0, RF_CLASS_ACTIVATION, d.dtype, d.rows, d.heads * d.value);
  RF_OUT(1, RF_CLASS_ACTIVATION, rf_wide_dtype(d.dtype), d.heads, d.rows);
  return RAFTER_OK;
}

/* FLOPs per pair of query and key, for all heads. A score sums P + R columns, and a value has W
 * columns. */
static double scores_flops(const rf_op *op) {
  return 2.0 * op->attr.attention.heads * op->attr.attention.head_dim;
}
static double pair_flops(const rf_op *op) {
  return scores_flops(op) + 2.0 * op->attr.attention.heads * op->attr.attention.value_dim;
}
static rf_work attention_work(const rf_graph *graph, const rf_op *op) {
  return rf_pairs_work(graph, op, rf_input_dim(graph, op, 0, 0), pair_flops(op), 0);
}

static rf_status attention_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  latent_dims d;
  RF_TRY(row_inputs(graph, op, &d, error));
  RF_IN(3, d.dtype, d.rows, d.heads * d.value);
  RF_IN(4, rf_wide_dtype(d.dtype), d.heads, d.rows);
  RF_IN(5, d.dtype, d.rows, d.heads * d.value);
  RF_IN(6, RF_I32, d.rows + 1);
  RF_OUT(0, RF_CLASS_ACTIVATION, d.dtype, d.rows, d.heads * (d.plain + d.rotated));
  RF_OUT(1, RF_CLASS_ACTIVATION, d.dtype, d.rows, d.heads * d.pair);
  RF_OUT(2, RF_CLASS_ACTIVATION, d.dtype, d.rows, d.rotated);
  return RAFTER_OK;
}

/* The forward op computes two products. The backward op computes four products (dQ, dK, dV, dP),
 * and recomputes the scores. */
static rf_work attention_bwd_work(const rf_graph *graph, const rf_op *op) {
  return rf_pairs_work(graph, op, rf_input_dim(graph, op, 0, 0), 2 * pair_flops(op), scores_flops(op));
}

/* Returns the axes that shard heads. *rows gets the axes that shard rows. Along the axis sequence,
 * an all-to-all replaces shards of rows by shards of heads. */
static rf_axes heads_of(const rf_sharding *s, rf_axes *rows) {
  rf_axes sequence = RF_AXIS_BIT(RF_AXIS_SEQUENCE), here = sequence | RF_AXIS_BIT(RF_AXIS_TENSOR);
  *rows = s->in[0].split[0] & (rf_axes)~here;
  return s->in[0].split[1] | (s->in[0].split[0] & sequence);
}

/* Heads are sharded in the same way as in the op attention. All heads share the rotated part of the
 * keys, so the gradient of that part is a sum over all chips that have heads. */
static rf_status attention_shard(rf_sharding *s) {
  bool backward = s->op->def == &RF_OP_ATTENTION_LATENT_BWD;
  rf_axes rows, heads = heads_of(s, &rows);
  rf_spec mine = rf_spec_of(rows, heads, RF_FORM_BLOCKS), all = rf_spec_of(rows, 0, RF_FORM_BLOCKS),
          lse = rf_spec_of(heads, rows, RF_FORM_BLOCKS);
  s->in[0] = s->in[1] = mine;
  s->in[2] = all;
  s->out[0] = s->out[1] = mine;
  if (backward) {
    s->in[3] = s->in[5] = mine;
    s->in[4] = lse;
    s->out[2] = all;
    s->out[2].partial = heads;
  } else {
    s->out[1] = lse;
  }
  return rf_shard_heads(s, heads);
}

const rf_op_def RF_OP_ATTENTION_LATENT = {
    .name = "attention_latent",
    .kind = RF_KIND_ATTENTION,
    .formula = "attention over the keys 0..i of a segment, with s_j = scale*(q_i[h,:P] . kv_j[h,:P] + "
               "q_i[h,P:] . turns_j) and v_j = kv_j[h,P:]; per head, a row of q holds P + R numbers and a "
               "row of kv P + W; in f32",
    .inputs = {"q (n,N(P+R))", "kv (n,N(P+W))", "turns (n,R)", "segments i32 (n+1)"},
    .outputs = {"ctx (n,NW)", "lse (N,n)"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = attention_shape,
    .work = attention_work,
    .gradient = {&RF_OP_ATTENTION_LATENT_BWD,
                 {RF_X(0), RF_X(1), RF_X(2), RF_Y(0), RF_Y(1), RF_DY(0), RF_X(3)}},
    .shard = attention_shard,
    .tolerance = {1e-5f, 2e-2f},
    .timing = RF_TIMING_ATTENTION,
    .timed_like = {&RF_OP_ATTENTION},
    .curve_size = RF_CURVE_SEGMENT,
};

const rf_op_def RF_OP_ATTENTION_LATENT_BWD = {
    .name = "attention_latent_bwd",
    .kind = RF_KIND_ATTENTION,
    .formula =
        "with s_j as in attention_latent: p_ij = exp(s_ij - lse[h,i]); ds_ij = p_ij*(dctx_i . v_j - dctx_i . "
        "ctx_i)*scale; dq_i = sum_j ds_ij*k_j; dkv_j[h] = (sum_i ds_ij*q_i[:P], sum_i p_ij*dctx_i); dturns_j "
        "= sum of ds_ij*q_i[P:] over heads and i; each result is rounded once; in f32",
    .inputs = {"q (n,N(P+R))", "kv (n,N(P+W))", "turns (n,R)", "ctx (n,NW)", "lse (N,n)", "dctx (n,NW)",
               "segments i32 (n+1)"},
    .outputs = {"dq (n,N(P+R))?", "dkv (n,N(P+W))?", "dturns (n,R)?"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = attention_bwd_shape,
    .work = attention_bwd_work,
    .shard = attention_shard,
    .tolerance = {2e-5f, 2e-2f},
    .timing = RF_TIMING_ATTENTION_BACKWARD,
    .timed_like = {&RF_OP_ATTENTION_BWD, &RF_OP_ATTENTION},
    .curve_size = RF_CURVE_SEGMENT,
};

/* ---- over latent rows ------------------------------------------------------------------------ */

/* Checks the inputs 0 to 3 of attention over latent rows: q, latent, turns and w. */
static rf_status latent_inputs(rf_graph *graph, rf_op *op, latent_dims *d, rf_error *error) {
  RF_TRY(dims_of(graph, op, d, error));
  int64_t latent = rf_input_dim(graph, op, 1, 1);
  RF_IN(0, RF_ANY_FLOAT, d->rows, d->heads * (d->plain + d->rotated));
  RF_IN(1, d->dtype, d->rows, latent);
  RF_IN(2, d->dtype, d->rows, d->rotated);
  RF_IN(3, RF_ANY_WEIGHT, latent, d->heads * d->pair);
  return RAFTER_OK;
}

/* FLOPs per row: mapping a query into the latent space, and mapping a sum of latent rows to a value
 * vector. */
static double row_flops(const rf_graph *graph, const rf_op *op) {
  const rf_attr_attention *a = &op->attr.attention;
  return 2.0 * a->heads * (double)rf_input_dim(graph, op, 1, 1) * (a->head_dim - a->rope_dim + a->value_dim);
}

/* FLOPs per (query, key) pair: a score sums C + R columns, and the sum of latent rows has C. */
static double key_flops(const rf_graph *graph, const rf_op *op) {
  const rf_attr_attention *a = &op->attr.attention;
  return 2.0 * a->heads * (2 * (double)rf_input_dim(graph, op, 1, 1) + a->rope_dim);
}

static rf_status attention_rows_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  latent_dims d;
  RF_TRY(latent_inputs(graph, op, &d, error));
  RF_IN(4, RF_I32, d.rows + 1);
  RF_OUT(0, RF_CLASS_ACTIVATION, d.dtype, d.rows, d.heads * d.value);
  return RAFTER_OK;
}

static rf_work attention_rows_work(const rf_graph *graph, const rf_op *op) {
  int64_t rows = rf_input_dim(graph, op, 0, 0);
  rf_work work = rf_pairs_work(graph, op, rows, key_flops(graph, op), 0);
  work.flops += row_flops(graph, op) * (double)rows;
  work.flops_full += row_flops(graph, op) * (double)rows;
  return work;
}

/* Heads are sharded in the same way as in attention_latent. The columns of w are sharded together
 * with the heads. Each chip needs the latent row of every key. */
static rf_status attention_rows_shard(rf_sharding *s) {
  rf_axes rows, heads = heads_of(s, &rows);
  s->in[0] = s->out[0] = rf_spec_of(rows, heads, RF_FORM_BLOCKS);
  s->in[1] = s->in[2] = rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  s->in[3] = rf_spec_of(0, heads, RF_FORM_BLOCKS);
  return rf_shard_heads(s, heads);
}

const rf_op_def RF_OP_ATTENTION_LATENT_ROWS = {
    .name = "attention_latent_rows",
    .kind = RF_KIND_ATTENTION,
    .formula =
        "attention over the keys 0..i of a segment, without keys and values: u[h] = w[:,h,:P] "
        "q_i[h,:P]; s_j = scale*(u[h] . latent_j + q_i[h,P:] . turns_j); o[h] = sum_j p_j*latent_j; "
        "ctx_i[h] = round(o[h] w[:,h,P:]), which is attention_latent with kv = latent w, rounded once; "
        "in f32; the bits of attention_latent_kv",
    .inputs = {"q (n,N(P+R))", "latent (n,C)", "turns (n,R)", "w (C,N(P+W))", "segments i32 (n+1)"},
    .outputs = {"ctx (n,NW)"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = attention_rows_shape,
    .work = attention_rows_work,
    .shard = attention_rows_shard,
    .tolerance = {1e-5f, 2e-2f},
    .timing = RF_TIMING_ATTENTION,
    .timed_like = {&RF_OP_ATTENTION_LATENT, &RF_OP_ATTENTION},
    .curve_size = RF_CURVE_SEGMENT,
};

static rf_status attention_kv_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  latent_dims d;
  RF_TRY(latent_inputs(graph, op, &d, error));
  RF_IN(4, rf_input_dtype(graph, op, 4), rf_input_dim(graph, op, 4, 0), 1, rf_input_dim(graph, op, 4, 2),
        rf_input_dim(graph, op, 1, 1) + d.rotated);
  RF_IN(5, RF_I32, rf_input_dim(graph, op, 5, 0), rf_input_dim(graph, op, 5, 1));
  RF_IN(6, RF_I32, d.rows);
  RF_IN(7, RF_I32, d.rows);
  RF_OUT(0, RF_CLASS_ACTIVATION, d.dtype, d.rows, d.heads * d.value);
  RF_OUT(2, RF_CLASS_ACTIVATION, rf_wide_dtype(d.dtype), d.rows, d.heads);
  if (op->output[1] != op->input[4])
    return RF_FAIL(
        error, RAFTER_INVALID, NULL,
        "the cache must be written in place (attention_latent_kv %s: expected output cache = input cache)",
        op->name);
  return RAFTER_OK;
}

rf_cached rf_cached_latent(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *cache = &graph->tensor[op->input[4]];
  double chips = op->attr.group > 1 ? op->attr.group : 1;
  return (rf_cached){.flops_row = row_flops(graph, op),
                     .flops_key = key_flops(graph, op) / chips,
                     .position_bytes = rf_cache_position_bytes(cache) / chips,
                     .table = op->input[5],
                     .page = cache->shape[2] * (int64_t)chips,
                     .fixed_bytes = (double)rf_tensor_bytes(&graph->tensor[op->input[1]]) +
                                    (double)rf_tensor_bytes(&graph->tensor[op->input[2]]) +
                                    (double)rf_tensor_bytes(&graph->tensor[op->input[3]])};
}

/* Each chip has the columns of w for its heads. Every chip of the group has the full latent
 * rows. */
static rf_status attention_kv_shard(rf_sharding *s) {
  rf_axes heads = s->in[0].split[1] | (s->in[0].split[0] & RF_AXIS_BIT(RF_AXIS_SEQUENCE));
  s->in[0] = s->in[3] = s->out[0] = rf_spec_of(0, heads, RF_FORM_BLOCKS);
  s->in[1] = s->in[2] = (rf_spec){.split = {0}};
  return rf_shard_heads(s, heads);
}

const rf_op_def RF_OP_ATTENTION_LATENT_KV = {
    .name = "attention_latent_kv",
    .kind = RF_KIND_ATTENTION,
    .formula =
        "position p of slot s is row p mod G of page table[s, p div G]; first, for every r, (latent, turns) "
        "of row r is written there; then row r attends to the keys 0..positions[r] of slot slots[r]: u[h] = "
        "w[:,h,:P] q[h,:P]; s_j = scale*(u[h] . latent_j + q[h,P:] . turns_j); o[h] = sum_j p_j*latent_j; "
        "ctx[h] = round(o[h] w[:,h,P:]), which is attention_latent with kv = latent w, rounded once; "
        "slots[r] = -1: the row writes nothing and its ctx is 0; a group of chips works as in attention_kv",
    .inputs = {"q (n,N(P+R))", "latent (n,C)", "turns (n,R)", "w (C,N(P+W))", "cache (B,1,G,C+R)",
               "table i32 (slots,T)", "slots i32 (n)", "positions i32 (n)"},
    .outputs = {"ctx (n,NW)", "cache (B,1,G,C+R)", "lse (n,N)?"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = attention_kv_shape,
    .work = rf_cached_work,
    .shard = attention_kv_shard,
    .expand = rf_expand_cached,
    .tolerance = {1e-5f, 2e-2f},
    .timing = RF_TIMING_ATTENTION,
    .timed_like = {&RF_OP_ATTENTION_KV, &RF_OP_ATTENTION},
    .curve_size = RF_CURVE_SEGMENT,
};
