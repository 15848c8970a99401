/* attention.c - causal attention (with windows and grouped heads) over packed segments, its
 * backward op, and attention over a KV cache. No op stores an array of (queries, keys). */
#include "graph/mesh/shard.h"

rf_status rf_heads_of(const rf_graph *graph, const rf_op *op, rf_heads *heads, rf_error *error) {
  const rf_attr_attention *a = &op->attr.attention;
  int64_t dim = a->head_dim;
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  *heads = (rf_heads){.rows = rf_input_dim(graph, op, 0, 0),
                      .q = a->heads * dim,
                      .kv = 2 * a->kv_heads * dim,
                      .qkv = (a->heads + 2 * a->kv_heads) * dim,
                      .dtype = dtype,
                      .wide = rf_wide_dtype(dtype)};
  if (a->heads > 0 && a->kv_heads > 0 && dim > 0 && a->heads % a->kv_heads == 0 && a->window >= 0 &&
      op->attr.group >= 0)
    return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_INVALID, NULL,
      "bad heads (%s: expected heads a multiple of kv_heads, all > 0, got %d, %d, head_dim %d, window %d)",
      op->name, a->heads, a->kv_heads, a->head_dim, a->window);
}

rf_work rf_pairs_work(const rf_graph *graph, const rf_op *op, int64_t rows, double pair, double again) {
  rf_work work = rf_work_bytes(graph, op);
  double causal, square, chips = op->attr.group > 1 ? op->attr.group : 1;
  rf_attention_pairs(graph, rows, op->attr.attention.window, &causal, &square);
  work.flops = pair * causal / chips;
  work.flops_full = pair * square / chips;
  work.flops_again = again * causal / chips;
  return work;
}

static rf_status attention_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  rf_heads h;
  RF_TRY(rf_heads_of(graph, op, &h, error));
  RF_IN(0, RF_ANY_FLOAT, h.rows, h.qkv);
  RF_IN(1, RF_I32, h.rows + 1);
  RF_OUT(0, RF_CLASS_ACTIVATION, h.dtype, h.rows, h.q);
  RF_OUT(1, RF_CLASS_ACTIVATION, h.wide, op->attr.attention.heads, h.rows);
  return RAFTER_OK;
}

/* FLOPs of one product over a pair of query and key, for all heads. */
static double pair_flops(const rf_op *op) {
  return 2.0 * op->attr.attention.heads * op->attr.attention.head_dim;
}

/* Attention computes two products: the scores, and the weighted sum of the values. */
static rf_work attention_work(const rf_graph *graph, const rf_op *op) {
  return rf_pairs_work(graph, op, rf_input_dim(graph, op, 0, 0), 2 * pair_flops(op), 0);
}

static rf_status attention_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  rf_heads h;
  RF_TRY(rf_heads_of(graph, op, &h, error));
  RF_IN(0, RF_ANY_FLOAT, h.rows, h.qkv);
  RF_IN(1, h.dtype, h.rows, h.q);
  RF_IN(2, h.wide, op->attr.attention.heads, h.rows);
  RF_IN(3, h.dtype, h.rows, h.q);
  RF_IN(4, RF_I32, h.rows + 1);
  RF_OUT(0, RF_CLASS_ACTIVATION, h.dtype, h.rows, h.qkv);
  return RAFTER_OK;
}

/* The backward op computes four products (dV, dP, dQ, dK), and recomputes the scores. */
static rf_work attention_bwd_work(const rf_graph *graph, const rf_op *op) {
  return rf_pairs_work(graph, op, rf_input_dim(graph, op, 0, 0), 4 * pair_flops(op), pair_flops(op));
}

static rf_status attention_kv_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t pages = rf_input_dim(graph, op, 1, 0), page = rf_input_dim(graph, op, 1, 2);
  rf_dtype cache = rf_input_dtype(graph, op, 1);
  rf_heads h;
  RF_TRY(rf_heads_of(graph, op, &h, error));
  RF_IN(0, RF_ANY_FLOAT, h.rows, h.qkv);
  RF_IN(1, rf_dtype_is_narrow(cache) ? (int)cache : (int)RF_ANY_FLOAT, pages, 2, page, h.kv / 2);
  RF_IN(2, RF_I32, rf_input_dim(graph, op, 2, 0), rf_input_dim(graph, op, 2, 1));
  RF_IN(3, RF_I32, h.rows);
  RF_IN(4, RF_I32, h.rows);
  if ((cache == RF_I8) != (op->input[5] != RF_NONE))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "only an int8 cache has scales (attention_kv %s)", op->name);
  RF_IN(5, RF_F32, pages, 2, page, op->attr.attention.kv_heads);
  RF_OUT(0, RF_CLASS_ACTIVATION, h.dtype, h.rows, h.q);
  RF_OUT(3, RF_CLASS_ACTIVATION, h.wide, h.rows, op->attr.attention.heads);
  if (op->output[1] != op->input[1] || op->output[2] != op->input[5])
    return RF_FAIL(
        error, RAFTER_INVALID, NULL,
        "the cache must be written in place (attention_kv %s: expected output cache = input cache)",
        op->name);
  return RAFTER_OK;
}

double rf_cache_position_bytes(const rf_tensor *cache) {
  rf_tensor one = *cache;
  one.shape[0] = one.shape[2] = 1;
  return (double)rf_tensor_bytes(&one);
}

bool rf_op_is_cached(const rf_op *op) {
  return op->def == &RF_OP_ATTENTION_KV || op->def == &RF_OP_ATTENTION_LATENT_KV;
}

rf_cached rf_cached_of(const rf_graph *graph, const rf_op *op) {
  if (op->def == &RF_OP_ATTENTION_LATENT_KV) return rf_cached_latent(graph, op);
  const rf_tensor *cache = &graph->tensor[op->input[1]];
  /* each of the `chips` chips has the keys of every chips-th position */
  double chips = op->attr.group > 1 ? op->attr.group : 1;
  double bytes = rf_cache_position_bytes(cache) +
                 (op->input[5] >= 0 ? rf_cache_position_bytes(&graph->tensor[op->input[5]]) : 0);
  return (rf_cached){.flops_key = 4.0 * op->attr.attention.heads * op->attr.attention.head_dim / chips,
                     .position_bytes = bytes / chips,
                     .table = op->input[2],
                     .page = cache->shape[2] * (int64_t)chips};
}

/* If the rows fill all sequences, the pass computes whole prompts, and a row sees only itself and
 * earlier rows. A shorter pass is the last chunk of full contexts, so every row sees every position.
 * The planner scales this work down for shorter contexts. */
rf_work rf_cached_work(const rf_graph *graph, const rf_op *op) {
  rf_cached cached = rf_cached_of(graph, op);
  const rf_tensor *table = &graph->tensor[cached.table];
  const double rows = (double)rf_input_dim(graph, op, 0, 0), slots = (double)table->shape[0],
               seq = (double)graph->seq, window = op->attr.attention.window;
  double context = (double)(table->shape[1] * cached.page);
  if (seq > 0 && seq < context) context = seq;
  const bool whole = seq > 0 && rows > slots && rows >= slots * seq;
  double reach = !whole && window > 0 && window < context ? window : context;
  double pairs = reach, square = reach, sequences = whole ? rows / seq : rows < slots ? rows : slots;
  if (whole) {
    rf_attention_pairs(graph, rf_input_dim(graph, op, 0, 0), op->attr.attention.window, &pairs, &square);
    pairs /= rows;
    square /= rows;
  }
  rf_work work = {
      .bytes_read = (double)rf_tensor_bytes(&graph->tensor[op->input[0]]) + cached.fixed_bytes + 8 * rows,
      .bytes_written = (double)rf_tensor_bytes(&graph->tensor[op->output[0]]) + rows * cached.position_bytes};
  work.bytes_read += sequences * reach * cached.position_bytes;
  work.flops = cached.flops_row * rows + cached.flops_key * rows * pairs;
  work.flops_full = cached.flops_row * rows + cached.flops_key * rows * square;
  return work;
}

/* Heads are sharded. Along the axis sequence, an all-to-all replaces shards of rows by heads. */
static rf_status attention_shard(rf_sharding *s) {
  rf_axes sequence = RF_AXIS_BIT(RF_AXIS_SEQUENCE), here = sequence | RF_AXIS_BIT(RF_AXIS_TENSOR);
  bool backward = s->op->def == &RF_OP_ATTENTION_BWD;
  int segments = backward ? 4 : 1;
  rf_axes rows = s->in[0].split[0] & (rf_axes)~here,
          heads = s->in[0].split[1] | (s->in[0].split[0] & sequence);
  rf_spec list = s->in[segments];
  for (int i = 0; i < 4; i++) s->in[i] = rf_spec_of(rows, heads, i == 0 ? RF_FORM_HEADS : RF_FORM_BLOCKS);
  s->in[segments] = list;
  s->out[0] = s->in[backward ? 0 : 3];
  if (backward) s->in[2] = rf_spec_of(heads, rows, RF_FORM_BLOCKS);
  else s->out[1] = rf_spec_of(heads, rows, RF_FORM_BLOCKS);
  return rf_shard_heads(s, heads);
}

/* Each chip caches the heads that it computes. Along the axis sequence, an all-to-all replaces
 * shards of rows by shards of heads. */
static rf_status attention_kv_shard(rf_sharding *s) {
  rf_axes heads = s->in[0].split[1] | (s->in[0].split[0] & RF_AXIS_BIT(RF_AXIS_SEQUENCE));
  s->in[0] = rf_spec_of(0, heads, RF_FORM_HEADS);
  s->out[0] = rf_spec_of(0, heads, RF_FORM_BLOCKS);
  return rf_shard_heads(s, heads);
}

const rf_op_def RF_OP_ATTENTION = {
    .name = "attention",
    .kind = RF_KIND_ATTENTION,
    .formula =
        "row i of segment [a,b) (a = segments[s], b = segments[s+1], at most n), query head h, key head "
        "h*K/N: it sees the keys j with max(a, i-W+1) <= j <= i (W = window; 0: from a); s_j = scale*(q_i . "
        "k_j); with a softcap s_j = softcap*tanh(s_j/softcap); if softmax is bf16, s_j is rounded to bf16; m "
        "= max_j s_j; p_j = exp(s_j - m); ctx_i = round(sum_j p_j*v_j / sum_j p_j); lse[h,i] = m + log(sum_j "
        "p_j); keys are processed in blocks of fixed size from the start of the segment, ascending, with "
        "running maximum and sums, in f32; a row holds N query heads, then K key heads, then K value heads",
    .inputs = {"qkv (n,(N+2K)H)", "segments i32 (n+1)"},
    .outputs = {"ctx (n,NH)", "lse (N,n)"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = attention_shape,
    .work = attention_work,
    .gradient = {&RF_OP_ATTENTION_BWD, {RF_X(0), RF_Y(0), RF_Y(1), RF_DY(0), RF_X(1)}},
    .shard = attention_shard,
    .expand = rf_expand_attention,
    .tolerance = {1e-5f, 2e-2f},
    .timing = RF_TIMING_ATTENTION,
    .curve_size = RF_CURVE_SEGMENT,
    /* For backward, XLA stores the exponentials in f32. In a loop, XLA also stores the softmax
     * weights in the dtype of products. XLA writes the scores in f32 once. XLA reads these scores
     * once for maximum and sum, and once for the softmax weights. XLA writes the softmax weights
     * once, and reads them once. Source: kept.h. */
    .kept = RF_KEEPS(.input_across_loop = true, .input = true,
                     .across_loop = {RF_KEPT_F32(1, SCORES), RF_KEPT_PRODUCT(1, SCORES)},
                     .kept = {RF_KEPT_F32(1, SCORES)}, .again = {RF_KEPT_F32(1, SCORES)},
                     .forward = {RF_KEPT_F32(1, SCORES), RF_KEPT_SAME(1, SCORES)},
                     .backward = {RF_KEPT_SAME(2, SCORES)}, .score_moves_f32 = 3, .score_moves = 2),
};

const rf_op_def RF_OP_ATTENTION_BWD = {
    .name = "attention_bwd",
    .kind = RF_KIND_ATTENTION,
    .formula = "with s_j as in attention: p_ij = exp(s_ij - lse[h,i]); delta_i = dctx_i . ctx_i; ds_ij = "
               "p_ij*(dctx_i . v_j - delta_i)*scale, times 1 - (s_ij/softcap)^2 with a softcap; dq_i = sum_j "
               "ds_ij*k_j; dk_j = sum of ds_ij*q_i over the query heads of the key head and over i; dv_j = "
               "the same sum of p_ij*dctx_i; each result is rounded once; in f32",
    .inputs = {"qkv (n,(N+2K)H)", "ctx (n,NH)", "lse (N,n)", "dctx (n,NH)", "segments i32 (n+1)"},
    .outputs = {"dqkv (n,(N+2K)H)"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = attention_bwd_shape,
    .work = attention_bwd_work,
    .shard = attention_shard,
    .expand = rf_expand_attention,
    .tolerance = {2e-5f, 2e-2f},
    .timing = RF_TIMING_ATTENTION_BACKWARD,
    .timed_like = {&RF_OP_ATTENTION},
    .curve_size = RF_CURVE_SEGMENT,
    /* XLA writes the gradient of the softmax weights (f32) once, and reads it once. XLA reads the
     * softmax weights twice. XLA writes the gradient of the scores once, and reads it twice. */
    .kept = RF_KEEPS(.input_across_loop = true, .input = true, .score_moves_f32 = 2, .score_moves = 5),
};

const rf_op_def RF_OP_ATTENTION_KV = {
    .name = "attention_kv",
    .kind = RF_KIND_ATTENTION,
    .formula =
        "position p of slot s is row p mod G of page table[s, p div G]; first, for every r, the key heads of "
        "row r are written to cache[page,0] and its value heads to cache[page,1]; then row r attends to the "
        "keys 0..positions[r] of slot slots[r] (window as in attention), with the formula, key blocks and "
        "bits of attention; slots[r] = -1: the row writes nothing and its ctx is 0; in a group of c chips, "
        "each chip stores the positions p with p mod c = its rank, at p div c instead of p, and attends to "
        "those (none: lse = -inf); an i8 cache stores rint(x * (127 / m)) and scale = m / 127 for every "
        "token and head, m = max|x|, in f32, and attention reads q * scale",
    .inputs = {"qkv (n,(N+2K)H)", "cache (P,2,G,KH)", "table i32 (slots,C)", "slots i32 (n)",
               "positions i32 (n)", "scale f32 (P,2,G,K)?"},
    .outputs = {"ctx (n,NH)", "cache (P,2,G,KH)", "scale f32 (P,2,G,K)?", "lse (n,N)?"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = attention_kv_shape,
    .work = rf_cached_work,
    .shard = attention_kv_shard,
    .expand = rf_expand_cached,
    .tolerance = {1e-5f, 2e-2f},
    .timing = RF_TIMING_ATTENTION,
    .timed_like = {&RF_OP_ATTENTION},
    .curve_size = RF_CURVE_ROWS,
    .long_curve = "attention_kv_long",
    .kept = RF_KEEPS(.forward = {RF_KEPT_F32(1, SCORES)}),
};
