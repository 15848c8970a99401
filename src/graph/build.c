/* build.c - builds a job's forward graph from the model's shape and parameter table. A layer has a
 * bias if the parameter table lists that bias. The head has a matrix of its own if the table lists
 * that matrix. So the code of build.c does not depend on the model's family. */
#include "graph/kv.h"
#include "graph/passes.h"
#include "graph/remat.h"
#include "graph/mesh/pipeline.h"
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 64 };

typedef struct builder {
  rf_graph *graph;
  const rf_model *model;
  const rf_build_options *options;
  rf_error *error;
  rf_dtype dtype;
  float dropout;
  int normed; /* id of the last sublayer's normalized input */
  /* for each row of the parameter table: the name of the parameter, without "block.N/" */
  const char *row_name[MAX_ROWS];
  /* ids of weight tensors, indexed by layer + 1; RF_NONE: the layer has no such weight */
  int *row_tensor[MAX_ROWS];
  int tokens, labels, positions, segments, slots, rows; /* ids of the inputs that the caller writes */
  rf_kv kv;
  int pages[RF_KV_CLASSES]; /* ids of the page tables of the cache */
} builder;

/* ---- parameters ------------------------------------------------------------------------------ */

static const char *inside_block(const rf_param *param) {
  const char *slash = param->layer < 0 ? NULL : strchr(param->name, '/');
  return slash ? slash + 1 : param->name;
}

/* True if a parameter may be stored packed or narrow: the parameter is a matrix that is not
 * trained, and only products or lookups read the matrix. The position table keeps its dtype,
 * because its rows are added. */
static bool is_matrix(const builder *b, const rf_param *param) {
  bool trained = b->options->job == RF_JOB_TRAIN && b->model->lora.rank == 0;
  if (trained || b->dtype == RF_F64 || param->rank != 2) return false;
  /* a router is small, and rounding it would change the choice of experts */
  if (b->options->narrow_set && param->part == RF_PART_ROUTER) return false;
  return param->matmul || strcmp(param->name, "embed/token/weight") == 0;
}

static rf_status make_weights(builder *b) {
  rf_graph *graph = b->graph;
  const rf_weight_types *types = b->options->weights;
  const rf_params *params = &graph->params;
  for (int p = 0; p < params->base; p++) {
    const rf_param *param = &params->at[p];
    if (param->row < 0 || param->row >= MAX_ROWS)
      return RF_FAIL(b->error, RAFTER_FAILED, NULL,
                     "parameter table too long (%s: expected a row below %d, got %d)", param->name, MAX_ROWS,
                     param->row);
    if (!b->row_tensor[param->row]) {
      size_t count = (size_t)b->model->layers + 1;
      b->row_name[param->row] = inside_block(param);
      b->row_tensor[param->row] = rf_pool_alloc(graph->pool, count * sizeof(int));
      for (size_t i = 0; i < count; i++) b->row_tensor[param->row][i] = RF_NONE;
    }
    int id = rf_graph_tensor(graph, param->name, RF_CLASS_WEIGHT, b->dtype, param->rank, param->shape);
    graph->tensor[id].param = p;
    int twin = b->options->stored_as && is_matrix(b, param)
                   ? rf_graph_find(b->options->stored_as, param->name)
                   : RF_NONE;
    if (twin != RF_NONE) {
      graph->tensor[id].dtype = b->options->stored_as->tensor[twin].dtype;
      graph->tensor[id].panels = b->options->stored_as->tensor[twin].panels;
    } else if (b->options->narrow_set && is_matrix(b, param)) {
      bool table = param->embedding && b->options->narrow == RF_I4;
      graph->tensor[id].dtype = table ? RF_I8 : b->options->narrow;
    } else if (!b->options->plain && is_matrix(b, param)) {
      graph->tensor[id].dtype = RF_PACKED;
      graph->tensor[id].panels =
          rf_weight_panels(b->model, param, types && p < types->count ? types->at[p] : NULL, b->dtype);
    }
    graph->tensor[id].persistent = true;
    graph->tensor[id].reason = "parameter";
    b->row_tensor[param->row][param->layer + 1] = id;
  }
  return RAFTER_OK;
}

/* Weight tensor of the current layer, or RF_NONE. The name has two parts, for example "mlp/up" and
 * "/bias". */
static int weight_of(const builder *b, const char *part, const char *leaf) {
  size_t length = strlen(part);
  for (int r = 0; r < MAX_ROWS; r++) {
    const char *name = b->row_name[r];
    if (name && strncmp(name, part, length) == 0 && strcmp(name + length, leaf) == 0)
      return b->row_tensor[r][b->graph->at.layer + 1];
  }
  return RF_NONE;
}

/* ---- tensors and ops ------------------------------------------------------------------------- */

static int io_tensor(builder *b, const char *name, rf_dtype dtype, bool input, int rank,
                     const int64_t *shape) {
  int id = rf_graph_tensor(b->graph, name, RF_CLASS_IO, dtype, rank, shape);
  b->graph->tensor[id].input = input;
  b->graph->tensor[id].output = !input;
  b->graph->tensor[id].reason = input ? "written by the caller" : "read by the caller";
  return id;
}

/* Appends an op. The name of the op is its path inside the block. Returns output 0, or RF_NONE with
 * an error. */
static int emit_to(builder *b, const rf_op_def *def, const char *part, rf_slots inputs, rf_slots outputs,
                   const rf_attr *attr) {
  char name[320];
  snprintf(name, sizeof name, "step/micro/%s%s/fwd", b->graph->scope, part);
  int id = rf_graph_emit(b->graph, def, name, RF_SECTION_MICRO, inputs, outputs, attr, b->error);
  return id < 0 ? RF_NONE : b->graph->op[id].output[0];
}

static int emit(builder *b, const rf_op_def *def, const char *part, rf_slots inputs, const rf_attr *attr) {
  return emit_to(b, def, part, inputs, RF_ALL_NEW, attr);
}

/* Builder functions return a tensor id, or RF_NONE on failure. A caller that gets RF_NONE returns
 * RF_NONE too. */
#define RF_BUILT(id) \
  do { \
    if ((id) == RF_NONE) return RF_NONE; \
  } while (0)

/* Sets the name that remat policies use for a tensor. */
static int saved(const builder *b, rf_saved_name name, int chain, int id) {
  if (id != RF_NONE) b->graph->tensor[id].saved = RF_SAVED_AS(name, chain);
  return id;
}

static int norm(builder *b, const char *part, int x) {
  rf_attr attr = {.norm = {.eps = b->model->norm_eps, .offset = b->model->norm_offset}};
  int gain = weight_of(b, part, "/gain");
  if (b->model->norm != RF_NORM_LAYERNORM) return emit(b, &RF_OP_RMSNORM, part, RF_IDS(x, gain), &attr);
  return emit(b, &RF_OP_LAYERNORM, part, RF_IDS(x, gain, weight_of(b, part, "/bias")), &attr);
}

static int linear(builder *b, const char *part, int x) {
  rf_slots inputs = RF_IDS(x, weight_of(b, part, "/weight"), weight_of(b, part, "/bias"));
  return emit_to(b, &RF_OP_MATMUL, part, inputs, RF_IDS(RF_WANTED), NULL);
}

static int residual(builder *b, const char *part, const char *site, int x, int h) {
  if (!(b->dropout > 0)) return emit(b, &RF_OP_ADD, part, RF_IDS(x, h), NULL);
  uint64_t key = rf_name_key(rf_graph_join(b->graph, b->graph->scope, site, ""));
  rf_attr attr = {.dropout = {.rate = b->dropout, .site = key}};
  return emit(b, &RF_OP_ADD_DROPOUT, part, RF_IDS(x, h), &attr);
}

/* ---- sublayers ------------------------------------------------------------------------------- */

/* Normalizes and rotates queries and keys; values do not change. */
static int positions(builder *b, int qkv) {
  const rf_model *m = b->model;
  rf_attr norm = {.head_norm = {.heads = (int32_t)m->heads,
                                .kv_heads = (int32_t)m->kv_heads,
                                .head_dim = (int32_t)m->head_dim,
                                .eps = m->norm_eps,
                                .offset = m->norm_offset}};
  rf_attr rope = {.rope = {.heads = (int32_t)m->heads,
                           .kv_heads = (int32_t)m->kv_heads,
                           .head_dim = (int32_t)m->head_dim,
                           .rotation = rf_model_rope(m, b->graph->at.layer)}};
  int q_gain = weight_of(b, "attn/q_norm", "/gain"), k_gain = weight_of(b, "attn/k_norm", "/gain");
  if (q_gain != RF_NONE) {
    qkv = emit(b, &RF_OP_HEAD_NORM, "attn/head_norm", RF_IDS(qkv, q_gain, k_gain), &norm);
    RF_BUILT(saved(b, RF_SAVED_QKV, 0, qkv));
  }
  if (m->position != RF_POSITION_ROPE) return qkv;
  qkv = emit(b, &RF_OP_ROPE, "attn/rope", RF_IDS(qkv, b->positions), &rope);
  return saved(b, RF_SAVED_QKV, 0, qkv);
}

/* Creates the cache of a layer, with `columns` values per token. */
static int cache_tensor(builder *b, const char *name, rf_dtype dtype, rf_kv_class class, int64_t columns) {
  int64_t shape[] = {b->kv.of[class].pool, b->model->kv_rank > 0 ? 1 : 2, b->kv.page / b->kv.chips, columns};
  int id = rf_graph_tensor(b->graph, rf_graph_join(b->graph, b->graph->scope, name, ""), RF_CLASS_KV, dtype,
                           4, shape);
  b->graph->tensor[id].persistent = true;
  b->graph->tensor[id].reason = "pages of keys and values";
  return id;
}

static int attention(builder *b, int qkv) {
  const rf_model *model = b->model;
  rf_attr attr = {.attention = {.heads = (int32_t)model->heads,
                                .kv_heads = (int32_t)model->kv_heads,
                                .head_dim = (int32_t)model->head_dim,
                                .softmax = b->options->softmax,
                                .window = (int32_t)rf_model_window(model, b->graph->at.layer),
                                .softcap = model->attn_softcap,
                                .scale = rf_model_attn_scale(model)}};
  qkv = positions(b, qkv);
  RF_BUILT(qkv);
  if (b->options->job != RF_JOB_GENERATE)
    return emit(b, &RF_OP_ATTENTION, "attn/attention", RF_IDS(qkv, b->segments), &attr);
  rf_kv_class class = rf_kv_class_of(model, b->graph->at.layer);
  int cache = cache_tensor(b, "attn/cache", b->kv.dtype, class, model->kv_heads * model->head_dim);
  int scale =
      b->kv.dtype == RF_I8 ? cache_tensor(b, "attn/cache/scale", RF_F32, class, model->kv_heads) : RF_NONE;
  return emit_to(b, &RF_OP_ATTENTION_KV, "attn/attention",
                 RF_IDS(qkv, cache, b->pages[class], b->slots, b->positions, scale),
                 RF_IDS(RF_WANTED, cache, scale), &attr);
}

/* Computes queries and rotates their last columns. In a model with q_rank, queries are computed
 * from a latent row. */
static int latent_queries(builder *b, int y, rf_rope rotation) {
  rf_attr rope = {.rope = {.heads = (int32_t)b->model->heads,
                           .head_dim = (int32_t)b->model->head_dim,
                           .rotation = rotation}};
  if (weight_of(b, "attn/q_a", "/weight") != RF_NONE) {
    y = linear(b, "attn/q_a", y);
    RF_BUILT(y);
    y = norm(b, "attn/q_a_norm", y);
    RF_BUILT(y);
  }
  int q = linear(b, b->model->q_rank > 0 ? "attn/q_b" : "attn/q", y);
  RF_BUILT(saved(b, RF_SAVED_QKV, 0, q));
  q = emit(b, &RF_OP_ROPE, "attn/rope", RF_IDS(q, b->positions), &rope);
  return saved(b, RF_SAVED_QKV, 0, q);
}

/* Keys and values are computed from a latent row, and all heads share one rotated part of the keys.
 * The cache stores the latent row and the rotated part. Scoring computes the same products as
 * generation, because both must give the same bits. Training computes keys and values, because this
 * costs less. */
static int latent_attention(builder *b, int y) {
  const rf_model *model = b->model;
  rf_rope rotation = rf_model_rope(model, b->graph->at.layer);
  rf_attr attr = {.attention = {.heads = (int32_t)model->heads,
                                .head_dim = (int32_t)model->head_dim,
                                .value_dim = (int32_t)rf_model_value_dim(model),
                                .rope_dim = rotation.dim,
                                .scale = rf_model_attn_scale(model)}};
  rf_attr rope = {.rope = {.heads = 1, .head_dim = (int32_t)model->rope_dim, .rotation = rotation}};
  rf_attr norms = {.norm = {.eps = model->norm_eps}};
  int q = latent_queries(b, y, rotation);
  RF_BUILT(q);
  int row = linear(b, "attn/kv_a", y);
  RF_BUILT(row);
  int latent = emit(b, &RF_OP_LATENT_NORM, "attn/kv_a_norm",
                    RF_IDS(row, weight_of(b, "attn/kv_a_norm", "/gain")), &norms);
  RF_BUILT(latent);
  int turns = b->graph->op[b->graph->op_count - 1].output[1];
  turns = emit(b, &RF_OP_ROPE, "attn/rope_key", RF_IDS(turns, b->positions), &rope);
  RF_BUILT(saved(b, RF_SAVED_QKV, 2, turns));
  int w = weight_of(b, "attn/kv_b", "/weight");
  if (b->options->job == RF_JOB_SCORE)
    return emit(b, &RF_OP_ATTENTION_LATENT_ROWS, "attn/attention", RF_IDS(q, latent, turns, w, b->segments),
                &attr);
  if (b->options->job == RF_JOB_GENERATE) {
    rf_kv_class class = rf_kv_class_of(model, b->graph->at.layer);
    int cache = cache_tensor(b, "attn/cache", b->kv.dtype, class, model->kv_rank + model->rope_dim);
    rf_slots inputs = RF_IDS(q, latent, turns, w, cache, b->pages[class], b->slots, b->positions);
    return emit_to(b, &RF_OP_ATTENTION_LATENT_KV, "attn/attention", inputs, RF_IDS(RF_WANTED, cache), &attr);
  }
  int kv = saved(b, RF_SAVED_QKV, 1, linear(b, "attn/kv_b", latent));
  RF_BUILT(kv);
  return emit(b, &RF_OP_ATTENTION_LATENT, "attn/attention", RF_IDS(q, kv, turns, b->segments), &attr);
}

/* Gemma-style models normalize a sublayer's output before they add it to the residual stream. */
static int post_norm(builder *b, const char *part, int out) {
  return b->model->post_norms ? norm(b, part, out) : out;
}

/* The attention sublayer reads the normalized y and returns its addition to the residual stream. */
static int attn_sublayer(builder *b, int y) {
  int ctx;
  if (b->model->kv_rank > 0) ctx = latent_attention(b, y);
  else {
    int qkv = saved(b, RF_SAVED_QKV, 0, linear(b, "attn/qkv", y));
    RF_BUILT(qkv);
    ctx = attention(b, qkv);
  }
  RF_BUILT(saved(b, RF_SAVED_CONTEXT, 0, ctx));
  int out = saved(b, RF_SAVED_OUT, 0, linear(b, "attn/out", ctx));
  RF_BUILT(out);
  return post_norm(b, "attn/post_norm", out);
}

static int mlp(builder *b, const char *in, const char *out, const char *path, int y) {
  bool shared = b->model->experts_shared > 0 && b->graph->at.layer >= b->model->first_dense;
  static const struct {
    const rf_op_def *def;
    const char *name;
  } activation[] = {[RF_MLP_GELU] = {&RF_OP_GELU, "/gelu"},
                    [RF_MLP_GELU_ERF] = {&RF_OP_GELU_ERF, "/gelu_erf"},
                    [RF_MLP_SWIGLU] = {&RF_OP_SWIGLU, "/swiglu"},
                    [RF_MLP_GEGLU] = {&RF_OP_GEGLU, "/geglu"}};
  const char *name = rf_graph_join(b->graph, path, activation[b->model->mlp].name, "");
  int u = saved(b, RF_SAVED_MLPWI, shared ? 2 : 0, linear(b, in, y));
  RF_BUILT(u);
  int g = emit(b, activation[b->model->mlp].def, name, RF_IDS(u), NULL);
  RF_BUILT(saved(b, RF_SAVED_MLPACT, shared ? 1 : 0, g));
  return saved(b, RF_SAVED_MLPWO, shared ? 2 : 0, linear(b, out, g));
}

/* A gated MLP per expert. Each row goes to its chosen experts. The result is the weighted sum of
 * the outputs of these experts. */
static int experts(builder *b, int y) {
  const rf_model *model = b->model;
  rf_attr attr = {.experts = {.experts = (int32_t)model->experts, .used = (int32_t)model->experts_used}};
  rf_attr router = attr;
  router.experts.router = (rf_router){.sigmoid = model->router_sigmoid,
                                      .as_is = model->router_as_is,
                                      .scale = model->router_scale,
                                      .groups = model->router_groups,
                                      .groups_used = model->router_groups_used};
  int logits = linear(b, "mlp/router", y);
  RF_BUILT(logits);
  int weights =
      emit(b, &RF_OP_ROUTE, "mlp/route", RF_IDS(logits, weight_of(b, "mlp/router", "/choice")), &router);
  RF_BUILT(weights);
  const int *route = b->graph->op[b->graph->op_count - 1].output, place = route[2], starts = route[3];
  int rows = emit(b, &RF_OP_DISPATCH, "mlp/dispatch", RF_IDS(y, place), &attr);
  RF_BUILT(rows);
  int u = emit(b, &RF_OP_MATMUL_EXPERTS, "mlp/experts/gate_up",
               RF_IDS(rows, weight_of(b, "mlp/experts/gate_up", "/weight"), starts), &attr);
  RF_BUILT(saved(b, RF_SAVED_MLPWI, 1, u));
  bool geglu = model->mlp == RF_MLP_GEGLU;
  int g = emit(b, geglu ? &RF_OP_GEGLU : &RF_OP_SWIGLU, geglu ? "mlp/geglu" : "mlp/swiglu", RF_IDS(u), NULL);
  RF_BUILT(saved(b, RF_SAVED_MLPACT, 0, g));
  int h = emit(b, &RF_OP_MATMUL_EXPERTS, "mlp/experts/down",
               RF_IDS(g, weight_of(b, "mlp/experts/down", "/weight"), starts), &attr);
  RF_BUILT(saved(b, RF_SAVED_MLPWO, 1, h));
  int mixed = emit(b, &RF_OP_COMBINE, "mlp/combine", RF_IDS(h, weights, place), &attr);
  RF_BUILT(mixed);
  if (model->experts_shared == 0) return mixed;
  int shared = mlp(b, "mlp/shared/gate_up", "mlp/shared/down", "mlp/shared", y);
  RF_BUILT(shared);
  return emit(b, &RF_OP_ADD, "mlp/shared/sum", RF_IDS(mixed, shared), NULL);
}

static int mlp_sublayer(builder *b, int y) {
  bool chosen = b->model->experts > 0 && b->graph->at.layer >= b->model->first_dense;
  int out = chosen ? experts(b, y)
                   : mlp(b, rf_mlp_gated(b->model->mlp) ? "mlp/gate_up" : "mlp/up", "mlp/down", "mlp", y);
  RF_BUILT(out);
  return post_norm(b, "mlp/post_norm", out);
}

/* One sublayer, which reads `from` and adds its output to `stream`. */
static int sublayer(builder *b, bool is_mlp, int from, int stream) {
  const char *part = is_mlp ? "mlp/norm" : "attn/norm";
  b->graph->at.sublayer = is_mlp ? RF_SUBLAYER_MLP : RF_SUBLAYER_ATTN;
  /* A sublayer without a norm reads the same input as the previous sublayer. */
  int y = weight_of(b, part, "/gain") == RF_NONE
              ? b->normed
              : saved(b, is_mlp ? RF_SAVED_NORM2 : RF_SAVED_NORM1, 0, norm(b, part, from));
  RF_BUILT(y);
  b->normed = y;
  int out = is_mlp ? mlp_sublayer(b, y) : attn_sublayer(b, y);
  RF_BUILT(out);
  out = is_mlp ? residual(b, "mlp/residual", "mlp/dropout", stream, out)
               : residual(b, "attn/residual", "attn/dropout", stream, out);
  return saved(b, is_mlp ? RF_SAVED_MLPWO : RF_SAVED_OUT, 0, out);
}

static int blocks(builder *b) {
  int wte = weight_of(b, "embed/token", "/weight"), wpe = weight_of(b, "embed/position", "/weight");
  rf_attr scaled = {.embed = {.scale = b->model->embed_scale, .dtype = b->dtype}};
  /* bf16 models were trained with this factor rounded to bf16 */
  if (b->dtype == RF_BF16) scaled.embed.scale = rf_bf16_to_f32(rf_f32_to_bf16(scaled.embed.scale));
  b->graph->at.sublayer = RF_SUBLAYER_EMBED;
  int x = emit(b, &RF_OP_EMBED, "embed", RF_IDS(b->tokens, b->positions, wte, wpe), &scaled);
  RF_BUILT(x);
  for (int layer = 0; layer < b->model->layers; layer++) {
    b->graph->at.layer = layer;
    snprintf(b->graph->scope, sizeof b->graph->scope, "block.%d/", layer);
    int first = sublayer(b, b->model->mlp_first, x, x);
    RF_BUILT(first);
    x = sublayer(b, !b->model->mlp_first, b->model->parallel ? x : first, first);
    RF_BUILT(x);
  }
  b->graph->at = (rf_op_place){RF_NONE, RF_SUBLAYER_HEAD};
  b->graph->scope[0] = '\0';
  return norm(b, "final/norm", x);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static int head(const builder *b, rf_attr *attr, int *bias) {
  int w = weight_of(b, "head", "/weight");
  attr->head.softcap = b->model->final_softcap;
  attr->head.temperature = b->options->temperature == 1 ? 0 : b->options->temperature;
  attr->head.transpose = w == RF_NONE; /* the head uses the token table, which has the shape (V,D) */
  *bias = weight_of(b, "head", "/bias");
  return w == RF_NONE ? weight_of(b, "embed/token", "/weight") : w;
}

/* Inputs of train and score jobs: tokens and labels. A token's label is the next token. */
static void text_inputs(builder *b) {
  int64_t rows[] = {b->graph->rows}, ends[] = {b->graph->rows + 1};
  b->tokens = io_tensor(b, "tokens", RF_I32, true, 1, rows);
  b->labels = io_tensor(b, "labels", RF_I32, true, 1, rows);
  b->positions = io_tensor(b, "positions", RF_I32, true, 1, rows);
  b->segments = io_tensor(b, "segments", RF_I32, true, 1, ends);
}

/* Creates an input or output that has one number for each row. */
static int row_tensor(builder *b, const char *name, bool input) {
  return io_tensor(b, name, rf_wide_dtype(b->dtype), input, 1, (int64_t[]){b->graph->rows});
}

/* Computes the losses of rows from the nll of rows. */
static int objective_loss(builder *b, int nll) {
  const rf_build_options *o = b->options;
  if (o->objective == RF_OBJECTIVE_NLL) return nll;
  int weights = row_tensor(b, "loss_weights", true), gradient = o->loss_only ? RF_NONE : RF_WANTED;
  int reference = rf_objective_has_reference(o) ? row_tensor(b, "reference_logprobs", true) : RF_NONE;
  if (o->objective == RF_OBJECTIVE_PAIRS) {
    rf_attr attr = {.pairs = o->pairs};
    return emit_to(b, &RF_OP_PAIR_LOSS, "loss/pairs", RF_IDS(nll, b->labels, b->segments, weights, reference),
                   RF_IDS(RF_WANTED, gradient, row_tensor(b, "margins", false)), &attr);
  }
  rf_attr attr = {.policy = o->policy};
  /* A cache of another dtype changes the sampler's bits. Sums over chips may change the bits of sampler
   * and trainer. */
  attr.policy.on_policy &= (!o->kv_dtype_set || o->kv_dtype == o->dtype) &&
                           rf_mesh_chips(&o->mesh) == rf_mesh_extent(&o->mesh, RF_AXIS_DATA);
  int old = row_tensor(b, "old_logprobs", true), advantages = row_tensor(b, "advantages", true);
  return emit_to(b, &RF_OP_POLICY_LOSS, "loss/policy",
                 RF_IDS(nll, b->labels, b->segments, old, advantages, weights, reference),
                 RF_IDS(RF_WANTED, gradient), &attr);
}

static rf_status build_train(builder *b) {
  rf_graph *graph = b->graph;
  int64_t four[] = {4};
  text_inputs(b);
  int metrics = io_tensor(b, "metrics", RF_F64, false, 1, four);
  int bias, x = blocks(b);
  if (x == RF_NONE) return RAFTER_INVALID;
  rf_attr attr = {.head.gradient = b->options->loss_only ? RF_F32 : b->options->head_gradient};
  int w = head(b, &attr, &bias);
  int nll = b->options->objective == RF_OBJECTIVE_NLL ? RF_WANTED : row_tensor(b, "nll", false);
  nll = emit_to(b, &RF_OP_HEAD_LOSS, "head/loss", RF_IDS(x, w, bias, b->labels),
                RF_IDS(nll, RF_WANTED, RF_WANTED), &attr);
  if (nll == RF_NONE) return RAFTER_INVALID;
  int argmax = graph->op[graph->op_count - 1].output[1], loss = objective_loss(b, nll);
  if (loss == RF_NONE) return RAFTER_INVALID;
  rf_attr sum = {.accumulate = {graph->accumulate > 1 ? RF_ACCUMULATE_MICRO : RF_WRITE}};
  int made = emit_to(b, &RF_OP_LOSS_SUM, "loss/sum", RF_IDS(loss, argmax, b->labels), RF_IDS(metrics), &sum);
  return made == RF_NONE ? RAFTER_INVALID : RAFTER_OK;
}

static rf_status build_score(builder *b) {
  rf_dtype wide = rf_wide_dtype(b->dtype);
  int64_t rows[] = {b->graph->rows}, tops[] = {b->graph->rows, b->options->top};
  text_inputs(b);
  int outputs[] = {io_tensor(b, "logprobs", wide, false, 1, rows), RF_NONE, RF_NONE};
  if (b->options->top > 0) {
    outputs[1] = io_tensor(b, "top_ids", RF_I32, false, 2, tops);
    outputs[2] = io_tensor(b, "top_logprobs", wide, false, 2, tops);
  }
  int bias, x = blocks(b);
  if (x == RF_NONE) return RAFTER_INVALID;
  rf_attr attr = {.head = {.top = b->options->top}};
  int w = head(b, &attr, &bias);
  int made = emit_to(b, &RF_OP_HEAD_SCORE, "head/score", RF_IDS(x, w, bias, b->labels),
                     (rf_slots){outputs, 3}, &attr);
  return made == RF_NONE ? RAFTER_INVALID : RAFTER_OK;
}

/* The op by which the program itself chooses tokens. Without this op, the caller chooses tokens
 * from the logits. */
static bool choose_tokens(builder *b, int logits, int lse) {
  int64_t rows = b->graph->tensor[lse].shape[0], rules[] = {rows, RF_RULES}, barred[] = {rows, RF_BARRED};
  int of = io_tensor(b, "rules", RF_F32, true, 2, rules),
      without = io_tensor(b, "barred", RF_I32, true, 2, barred),
      chosen = io_tensor(b, "chosen", RF_I32, false, 1, &rows),
      logprobs = io_tensor(b, "logprobs", b->graph->tensor[lse].dtype, false, 1, &rows);
  rf_attr attr = {0};
  return emit_to(b, &RF_OP_SAMPLE, "head/sample", RF_IDS(logits, lse, of, without), RF_IDS(chosen, logprobs),
                 &attr) != RF_NONE;
}

static rf_status build_generate(builder *b) {
  rf_graph *graph = b->graph;
  int64_t rows[] = {graph->rows}, picked[] = {b->options->microbatch * (1 + b->options->draft)},
          logits_shape[] = {picked[0], b->model->vocab};
  b->tokens = io_tensor(b, "tokens", RF_I32, true, 1, rows);
  graph->tensor[b->tokens].role = RF_ROLE_TOKENS;
  b->positions = io_tensor(b, "positions", RF_I32, true, 1, rows);
  b->slots = io_tensor(b, "slots", RF_I32, true, 1, rows);
  b->rows = io_tensor(b, "rows", RF_I32, true, 1, picked);
  if (b->options->adapter_slots > 0) io_tensor(b, "adapters", RF_I32, true, 1, rows);
  b->kv = rf_kv_of(b->model, b->options);
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    int64_t table[] = {b->options->microbatch, b->kv.columns};
    if (b->kv.of[c].layers)
      b->pages[c] = io_tensor(b, c == RF_KV_LOCAL ? "pages/local" : "pages/global", RF_I32, true, 2, table);
  }
  int logits = rf_graph_tensor(graph, "logits", RF_CLASS_LOGITS, rf_wide_dtype(b->dtype), 2, logits_shape);
  graph->tensor[logits].output = true;
  graph->tensor[logits].reason = "read by the caller";
  int lse = io_tensor(b, "lse", rf_wide_dtype(b->dtype), false, 1, picked);
  int bias, x = blocks(b);
  if (x == RF_NONE) return RAFTER_INVALID;
  rf_attr attr = {0};
  int w = head(b, &attr, &bias);
  int made =
      emit_to(b, &RF_OP_HEAD_LOGITS, "head/logits", RF_IDS(x, w, bias, b->rows), RF_IDS(logits, lse), &attr);
  bool done = made != RF_NONE && (!b->options->sampled || choose_tokens(b, logits, lse));
  /* The next step of the same answers reads the tokens that this one chooses. */
  if (b->options->sampled && picked[0] == rows[0]) graph->tensor[b->tokens].follows = "chosen";
  return done ? RAFTER_OK : RAFTER_INVALID;
}

static rf_status options_check(const rf_model *model, const rf_build_options *o, rf_error *error) {
  RF_TRY(rf_objective_check(o, error));
  if (!(o->temperature >= 0 && o->temperature < INFINITY))
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "temperature out of range (temperature: expected a number above 0, or 0 for 1, got %g)",
                   (double)o->temperature);
  if (o->dtype != RF_F32 && o->dtype != RF_BF16 && o->dtype != RF_F64)
    return RF_FAIL(error, RAFTER_INVALID, "use --dtype f32 or bf16",
                   "dtype not supported (dtype: expected f32, bf16 or f64, got %s)", rf_dtype_name(o->dtype));
  if (model->kv_rank > 0 && o->softmax == RF_BF16)
    return RF_FAIL(error, RAFTER_INVALID, "use --softmax f32", "latent attention has no softmax in bf16 (%s)",
                   model->name);
  if (o->microbatch < 1 || o->seq < 1)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "empty microbatch (microbatch, seq: expected >= 1, got %lld and %lld)",
                   (long long)o->microbatch, (long long)o->seq);
  if (model->position == RF_POSITION_LEARNED && o->seq > model->max_seq)
    return RF_FAIL(error, RAFTER_INVALID, "the model's position table ends there",
                   "sequence too long (seq: expected <= %lld, got %lld)", (long long)model->max_seq,
                   (long long)o->seq);
  if (o->job == RF_JOB_TRAIN && o->accumulate < 1)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "no microbatch (accumulate: expected >= 1, got %d)",
                   o->accumulate);
  if (o->job == RF_JOB_TRAIN && !o->loss_only &&
      ((model->router_logits && model->router_aux > 0) || model->router_jitter > 0))
    return RF_FAIL(error, RAFTER_INVALID,
                   "to train without these options, set output_router_logits to false and "
                   "router_jitter_noise to 0 in config.json",
                   "this version cannot train %s with these router options (router_aux_loss_coef with "
                   "output_router_logits: %g, router_jitter_noise: %g)",
                   model->name, (double)model->router_aux, (double)model->router_jitter);
  if (o->kv_dtype_set && o->kv_dtype != RF_F32 && o->kv_dtype != RF_BF16 && !rf_dtype_is_narrow(o->kv_dtype))
    return RF_FAIL(error, RAFTER_INVALID, "use --kv-dtype f32, bf16 or int8",
                   "dtype not supported (kv_dtype: expected f32, bf16, i8, f8_e4m3 or i4, got %s)",
                   rf_dtype_name(o->kv_dtype));
  if (o->kv_page && (o->kv_page < RF_KV_UNIT || o->kv_page > 1 << 20 || (o->kv_page & (o->kv_page - 1))))
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "bad page of the cache (kv_page: expected a power of two of at least %d tokens, got %lld)",
                   RF_KV_UNIT, (long long)o->kv_page);
  if (o->dropout >= 1)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "dropout out of range (dropout: expected 0 <= p < 1, got %g)",
                   (double)o->dropout);
  if (o->microbatch > INT32_MAX / o->seq || o->rows > INT32_MAX)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "microbatch too large (microbatch * seq: expected below 2^31, got %lld * %lld)",
                   (long long)o->microbatch, (long long)o->seq);
  int64_t rows = o->job != RF_JOB_GENERATE ? o->microbatch * o->seq
                 : o->rows > o->microbatch ? o->rows
                                           : o->microbatch;
  if (model->experts > 0 && rows > INT32_MAX / model->experts_used)
    return RF_FAIL(
        error, RAFTER_INVALID, "lower --microbatch or --seq",
        "microbatch too large for the experts (rows * experts_used: expected below 2^31, got %lld * %lld)",
        (long long)rows, (long long)model->experts_used);
  return RAFTER_OK;
}

static rf_status build_forward(const rf_model *model, const rf_build_options *options, rf_graph **out,
                               rf_error *error) {
  RF_TRY(options_check(model, options, error));
  rf_graph *graph = rf_graph_new(model);
  builder *b = rf_pool_alloc(graph->pool, sizeof *b);
  *b = (builder){.graph = graph,
                 .model = &graph->model,
                 .options = options,
                 .error = error,
                 .dtype = options->dtype,
                 .normed = RF_NONE};
  bool train = options->job == RF_JOB_TRAIN, rows_of_text = options->job != RF_JOB_GENERATE,
       learns = train && !options->loss_only;
  b->dropout = !learns ? 0 : options->dropout < 0 ? model->dropout : options->dropout;
  graph->accumulate = train ? options->accumulate : 1;
  graph->job = options->job;
  graph->seq = options->seq;
  if (options->matmul_set) graph->matmul = options->matmul;
  graph->rows = rows_of_text        ? options->microbatch * options->seq
                : options->rows > 0 ? options->rows
                                    : options->microbatch;
  rf_graph_reserve(graph, graph->params.count * (learns ? 5 : 1) + model->layers * (learns ? 40 : 16) + 32,
                   graph->params.count * (learns ? 2 : 0) + model->layers * (learns ? 32 : 16) + 16);
  rf_status status = make_weights(b);
  if (status == RAFTER_OK)
    status = train ? build_train(b) : rows_of_text ? build_score(b) : build_generate(b);
  for (int o = 0; status == RAFTER_OK && options->fast && o < graph->op_count; o++) {
    rf_op *op = &graph->op[o];
    if (rf_op_may_be_fast(graph, op)) *rf_attr_fast(op->def, &op->attr) = true;
  }
  if (status == RAFTER_OK) *out = graph;
  else rf_graph_free(graph);
  return status;
}

/* In generation, each data-parallel copy of the model serves an equal number of slots and has its
 * own cache. */
static void share_out_slots(rf_build_options *options) {
  int64_t chips = rf_mesh_copies(&options->mesh);
  if (options->rows == options->microbatch) options->rows = rf_ceil_div(options->rows, chips);
  options->microbatch = rf_ceil_div(options->microbatch, chips);
  options->sequences = rf_ceil_div(options->sequences, chips);
}

rf_status rf_graph_stage(const rf_graph *whole, const rf_build_options *options, rf_graph **out,
                         rf_error *error) {
  rf_graph *graph = NULL;
  rf_status status;
  RF_TRY(rf_pass_stage(whole, &options->mesh, &graph, error));
  RF_GO(rf_pass_shard(graph, &options->mesh, error));
  RF_GO(rf_pass_fuse(graph, error));
  *out = graph;
  return RAFTER_OK;
done:
  rf_graph_free(graph);
  return status;
}

rf_status rf_graph_build(const rf_model *model, const rf_build_options *options, const char *after,
                         rf_graph **out, rf_error *error) {
  static const char *const passes[] = {"build", "adapt", "differentiate", "optimize",
                                       "stage", "shard", "fuse"};
  bool learns = options->job == RF_JOB_TRAIN && !options->loss_only;
  int last = 6;
  for (int i = 0; after && i < 7; i++)
    if (strcmp(after, passes[i]) == 0) {
      last = i;
      after = NULL;
    }
  if (after)
    return RF_FAIL(error, RAFTER_INVALID,
                   "a pass is build, adapt, differentiate, optimize, stage, shard or fuse",
                   "unknown pass (after: expected a pass, got '%s')", after);
  rf_graph *graph = NULL;
  rf_status status;
  RF_TRY(rf_mesh_check(&options->mesh, model, options, error));
  rf_build_options local = *options;
  if (options->job == RF_JOB_GENERATE) share_out_slots(&local);
  RF_TRY(build_forward(model, &local, &graph, error));
  if (last >= 1) RF_GO(rf_pass_adapt(graph, options, learns, error));
  if (learns && last >= 2) RF_GO(rf_pass_differentiate(graph, error));
  if (learns && last >= 3) RF_GO(rf_pass_optimize(graph, options, error));
  if (last >= 4 && rf_pipeline_stages(&options->mesh) > 1) {
    rf_graph *whole = graph;
    graph = NULL;
    status = rf_pass_stage(whole, &options->mesh, &graph, error);
    rf_graph_free(whole);
    if (status != RAFTER_OK) goto done;
  }
  if (last >= 5 && rf_mesh_chips(&options->mesh) > 1) RF_GO(rf_pass_shard(graph, &options->mesh, error));
  if (last >= 6) RF_GO(rf_pass_fuse(graph, error));
  *out = graph;
  return RAFTER_OK;
done:
  rf_graph_free(graph);
  return status;
}
