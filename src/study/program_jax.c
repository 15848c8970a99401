/* program_jax.c - the memory of a JAX program. Each argument and each result is an array. A
 * temporary is an array that exists during a range of times. The graph has `ops` forward ops. Op i
 * runs forward at time i, and backward at time `2 * ops - 1 - i`. */
#include "study/program.h"

#include "base/text.h"
#include "graph/remat.h"
#include "machine/tiles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { COPIES, GRADIENTS, KEPT, WORKING, KINDS } kind;

typedef struct array {
  int64_t bytes;
  int first, last;
  kind what;
  bool brief; /* true if the array is so short-lived that on-chip memory may hold it */
} array;

typedef struct sizing {
  const rf_model *model;
  const rf_program_job *job;
  const rf_program_options *program;
  rf_graph *graph;
  rf_pool *pool;
  array *at;
  int count, capacity;
  int ops, end;              /* ops: number of forward ops. end: time at which the backward pass ends. */
  int scan_first, scan_last; /* first op of the first layer, and last op of the last layer */
  bool trains, scan;
  /* The following arrays have an entry for each tensor. producer: the op that makes the tensor.
   * last_read: the last forward op that reads the tensor. needed_by: the first op whose backward
   * reads the tensor. crosses: true if the loop over layers (lax.scan) stores the tensor for
   * backward. */
  int *producer, *last_read, *needed_by, *crosses;
  /* The following arrays have an entry for each op. region: index of the recomputed region with
   * this op, or RF_NONE. region_first, region_last: first and last op of this region. */
  int *region, *region_first, *region_last;
  int64_t state_leaves, stacked;
  bool *saved;    /* for each tensor: true if the remat policy stores the tensor */
  int64_t shards; /* number of devices that shard parameters, gradients and states (fsdp) */
} sizing;

/* ---- arrays ---------------------------------------------------------------------------------- */

static void add(sizing *s, kind what, bool brief, int64_t bytes, int first, int last) {
  if (bytes <= 0) return;
  if (s->count == s->capacity) {
    int capacity = s->capacity ? 2 * s->capacity : 1024;
    array *more = rf_pool_alloc(s->pool, (size_t)capacity * sizeof *more);
    if (s->count) memcpy(more, s->at, (size_t)s->count * sizeof *more);
    s->at = more;
    s->capacity = capacity;
  }
  if (what == KEPT && s->scan && first == s->scan_first && last == s->end - 1 - s->scan_first)
    s->stacked += bytes;
  s->at[s->count++] = (array){bytes, first, last, what, brief};
}

static bool on_tpu(const sizing *s) { return s->job->machine->kind == RF_MACHINE_TPU; }
/* On a TPU, f32 products use bf16 operands. So arrays that only products read are bf16. */
static rf_dtype product_dtype(const sizing *s) {
  return on_tpu(s) && s->job->build.dtype == RF_F32 ? RF_BF16 : s->job->build.dtype;
}
static int64_t bytes_of(const sizing *s, rf_dtype dtype, int rank, const int64_t *dims) {
  return rf_machine_bytes(s->job->machine, dtype, rank, dims);
}
static int64_t scalar_bytes(const sizing *s, rf_dtype dtype) { return bytes_of(s, dtype, 0, NULL); }

/* True if a forward pass contains tokens of all sequences, false if it contains only the tokens of
 * one sequence. */
static bool is_whole(const rf_build_options *b) { return b->rows % b->microbatch == 0; }
static int64_t sequences_of(const sizing *s) {
  const rf_build_options *b = &s->job->build;
  return b->job != RF_JOB_GENERATE || b->rows < 1 || is_whole(b) ? b->microbatch : 1;
}
static int64_t tokens_of(const sizing *s) {
  const rf_build_options *b = &s->job->build;
  return b->job != RF_JOB_GENERATE ? b->seq : b->rows < 1 ? 1 : b->rows / sequences_of(s);
}

/* Returns the bytes of a tensor in JAX's shape, (sequences, tokens, columns). The graph's shape is
 * (sequences x tokens, columns). */
static int64_t tensor_bytes(const sizing *s, const rf_tensor *t, rf_dtype dtype, int64_t divisor) {
  int64_t columns = t->rank > 1 ? t->shape[1] / divisor : 1;
  if (t->shape[0] != sequences_of(s) * tokens_of(s))
    return bytes_of(s, dtype, 2, (int64_t[]){t->shape[0], columns});
  return bytes_of(s, dtype, 3, (int64_t[]){sequences_of(s), tokens_of(s), columns});
}

static int64_t part_bytes(const sizing *s, const rf_op *op, rf_kept_part part) {
  const rf_tensor *in = op->input[0] < 0 ? NULL : &s->graph->tensor[op->input[0]],
                  *out = op->output[0] < 0 ? NULL : &s->graph->tensor[op->output[0]];
  rf_dtype dtype = part.bits == 32                   ? RF_F32
                   : part.bits == 8                  ? RF_U8
                   : part.bits == RF_KEPT_AS_PRODUCT ? product_dtype(s)
                                                     : s->job->build.dtype;
  int64_t b = sequences_of(s), t = tokens_of(s), keys = s->job->build.seq, one = 0;
  switch (part.extent) {
  case RF_EXTENT_INPUT: one = in ? tensor_bytes(s, in, dtype, 1) : 0; break;
  case RF_EXTENT_SECOND: one = tensor_bytes(s, &s->graph->tensor[op->input[1]], dtype, 1); break;
  case RF_EXTENT_HALF: one = in ? tensor_bytes(s, in, dtype, 2) : 0; break;
  case RF_EXTENT_OUTPUT: one = out ? tensor_bytes(s, out, dtype, 1) : 0; break;
  case RF_EXTENT_ROW: one = bytes_of(s, dtype, 2, (int64_t[]){b, t}); break;
  case RF_EXTENT_SCORES:
    one = bytes_of(s, dtype, 4, (int64_t[]){b, op->attr.attention.heads, t, keys});
    break;
  case RF_EXTENT_LOGITS: one = bytes_of(s, dtype, 3, (int64_t[]){b, t, s->model->vocab}); break;
  }
  return part.count * one;
}

static int64_t parts_bytes(const sizing *s, const rf_op *op, const rf_kept_part parts[RF_RULE_PARTS]) {
  int64_t sum = 0;
  for (int i = 0; i < RF_RULE_PARTS; i++) sum += part_bytes(s, op, parts[i]);
  return sum;
}

/* ---- parameters ------------------------------------------------------------------------------ */

enum { MAX_ARRAYS = 2, MAX_DIMS = 5 };
typedef struct shapes {
  int count, rank[MAX_ARRAYS];
  int64_t dim[MAX_ARRAYS][MAX_DIMS];
} shapes;

#define SHAPE(s, ...) \
  do { \
    const int64_t dims_[] = {__VA_ARGS__}; \
    (s).rank[(s).count] = (int)(sizeof dims_ / sizeof *dims_); \
    memcpy((s).dim[(s).count++], dims_, sizeof dims_); \
  } while (0)

/* Returns the arrays of a JAX program for one parameter of rafter's graph. Heads are a separate
 * dimension. Gate and up are two arrays. If there are fewer key heads than query heads, queries are
 * a separate array. */
static shapes shapes_of(const rf_model *m, const rf_param *p) {
  shapes s = {0};
  int64_t d = m->width, n = m->heads, k = m->kv_heads, h = m->head_dim;
  bool one = n == k && m->norm == RF_NORM_LAYERNORM;
  if (p->adapts >= 0) SHAPE(s, p->shape[0], p->shape[1]);
  else if (rf_text_ends_with(p->name, "attn/qkv/weight") && one) SHAPE(s, d, n, 3 * h);
  else if (rf_text_ends_with(p->name, "attn/qkv/bias") && one) SHAPE(s, n, 3 * h);
  else if (rf_text_ends_with(p->name, "attn/qkv/weight")) {
    SHAPE(s, n, d, h);
    SHAPE(s, 2, k, d, h);
  } else if (rf_text_ends_with(p->name, "attn/qkv/bias")) {
    SHAPE(s, n, h);
    SHAPE(s, 2, k, h);
  } else if (rf_text_ends_with(p->name, "attn/out/weight")) SHAPE(s, n, h, d);
  else if (p->experts > 0 && rf_text_ends_with(p->name, "gate_up/weight")) {
    SHAPE(s, p->experts, p->shape[0] / p->experts, p->shape[1] / 2);
    SHAPE(s, p->experts, p->shape[0] / p->experts, p->shape[1] / 2);
  } else if (p->experts > 0) SHAPE(s, p->experts, p->shape[0] / p->experts, p->shape[1]);
  else if (rf_text_ends_with(p->name, "gate_up/weight")) {
    SHAPE(s, p->shape[0], p->shape[1] / 2);
    SHAPE(s, p->shape[0], p->shape[1] / 2);
  } else if (p->rank == 2) SHAPE(s, p->shape[0], p->shape[1]);
  else SHAPE(s, p->shape[0]);
  return s;
}

/* Returns the number of layers in the array that holds parameter p. A program with a loop over
 * layers has one array for a parameter of all layers. In this case, the result is 0 for all layers
 * except the first. Without a loop, returns 1. */
static int64_t stacked(const sizing *s, const rf_params *params, int p) {
  const rf_param *param = &params->at[p];
  if (!s->scan || param->layer < 0) return 1;
  int64_t layers = 0;
  for (int q = 0; q < params->count; q++) {
    const rf_param *other = &params->at[q];
    if (other->row != param->row || other->count != param->count ||
        (other->adapts >= 0) != (param->adapts >= 0) || other->layer < 0)
      continue;
    if (param->adapts >= 0 && strcmp(strrchr(other->name, '/'), strrchr(param->name, '/'))) continue;
    if (q < p) return 0;
    layers++;
  }
  return layers;
}

/* Returns the bytes of arrays that are stacked over `layers` layers (0: not stacked) and sharded
 * over `shards` devices. A matrix is sharded along its longest dimension. Vectors are not
 * sharded. */
static int64_t shapes_bytes(const sizing *s, const shapes *shape, rf_dtype dtype, int64_t layers,
                            int64_t shards) {
  int64_t sum = 0;
  for (int i = 0; i < shape->count; i++) {
    int64_t dims[MAX_DIMS + 1] = {layers};
    int lead = layers > 0, longest = lead;
    memcpy(dims + lead, shape->dim[i], sizeof shape->dim[i]);
    for (int d = lead; d < shape->rank[i] + lead; d++)
      if (dims[d] > dims[longest]) longest = d;
    if (shape->rank[i] > 1) dims[longest] = (dims[longest] + shards - 1) / shards;
    sum += bytes_of(s, dtype, shape->rank[i] + lead, dims);
  }
  return sum;
}

static int reader_of(const sizing *s, int param) {
  for (int i = 0; i < s->ops; i++)
    for (int k = 0; k < s->graph->op[i].input_count; k++) {
      int t = s->graph->op[i].input[k];
      if (t >= 0 && s->graph->tensor[t].param == param && s->graph->tensor[t].persistent) return i;
    }
  return 0;
}

static int backward_of(const sizing *s, int op) { return s->end - 1 - op; }

/* Returns the last matrix product before an op, or -1. */
static int product_before(const sizing *s, int op) {
  do op--;
  while (op >= 0 && s->graph->op[op].def->product == RF_PRODUCT_NONE);
  return op;
}

/* Counts the full copy of a sharded matrix. Chips gather this copy one product early. Also counts
 * the full gradient of the matrix, which exists until chips reduce and scatter the gradient. */
static void gather(sizing *s, const shapes *shape, rf_dtype product, int reader, bool learns) {
  int64_t whole = shapes_bytes(s, shape, product, 0, 1);
  int before = product_before(s, reader), back = backward_of(s, reader);
  add(s, WORKING, false, whole, before < 0 ? reader : before, reader);
  if (!s->trains) return;
  add(s, WORKING, false, whole, back - 1, back);
  if (learns) add(s, WORKING, false, whole, back, back);
}

/* Adds the bytes of weights, optimizer states, gradients, and copies of matrices in the dtype of
 * products. Matrices are converted once, before the layers. */
static void size_parameters(sizing *s, rf_program_memory *m) {
  const rf_params *params = &s->graph->params;
  rf_dtype dtype = s->job->build.dtype, product = product_dtype(s);
  bool adapters = s->model->lora.rank > 0;
  for (int p = 0; p < params->count; p++) {
    const rf_param *param = &params->at[p];
    shapes shape = shapes_of(s->model, param);
    bool in_scan = s->scan && param->layer >= 0, learns = s->trains && (!adapters || param->adapts >= 0);
    int reader = reader_of(s, p);
    if (s->shards > 1 && param->matmul) gather(s, &shape, product, reader, learns);
    int64_t layers = stacked(s, params, p), stack = in_scan ? layers : 0;
    if (!layers) continue;
    int64_t stored = shapes_bytes(s, &shape, learns ? RF_F32 : dtype, stack, s->shards),
            copy = shapes_bytes(s, &shape, product, stack, s->shards);
    m->argument += learns ? 3 * stored : stored;
    if (!learns) continue;
    m->alias += 3 * stored;
    s->state_leaves += 3 * shape.count;
    add(s, GRADIENTS, false, stored, in_scan ? backward_of(s, s->scan_last) : backward_of(s, reader), s->end);
    if (s->job->build.accumulate > 1) add(s, GRADIENTS, false, stored, 0, s->end);
    if (!param->matmul || product == RF_F32) continue;
    /* A loop over layers with a backward pass stores a second copy of the converted matrix. */
    bool twice = in_scan && s->region[reader] == RF_NONE && dtype != RF_F32;
    /* The converted matrix exists from time 0 to the end of the loop over microbatches, if there is
     * such a loop. */
    add(s, COPIES, false, copy, 0, twice && s->job->build.accumulate == 1 ? s->scan_last : s->end - 1);
    if (twice) add(s, COPIES, false, copy, s->scan_first, backward_of(s, s->scan_first));
  }
}

/* ---- what is computed again ------------------------------------------------------------------ */

static void find_regions(sizing *s) {
  static const struct {
    bool mlp, attn, whole;
  } policy[] = {[RF_REMAT_MLP] = {true, false, false},
                [RF_REMAT_ATTN] = {false, true, false},
                [RF_REMAT_MLP_ATTN] = {true, true, false},
                [RF_REMAT_BLOCK] = {true, true, true},
                [RF_REMAT_AUTO] = {0}};
  rf_remat remat = !s->trains                       ? RF_REMAT_NONE
                   : s->job->remat >= RF_REMAT_SAVE ? RF_REMAT_BLOCK
                                                    : s->job->remat;
  s->scan_first = s->ops;
  s->scan_last = 0;
  for (int i = 0; i < s->ops; i++) {
    rf_op_place at = s->graph->op[i].at;
    bool mlp = at.sublayer == RF_SUBLAYER_MLP;
    s->region[i] = RF_NONE;
    if (at.layer < 0) continue;
    if (i < s->scan_first) s->scan_first = i;
    s->scan_last = i;
    if (mlp ? policy[remat].mlp : policy[remat].attn)
      s->region[i] = policy[remat].whole ? at.layer : 2 * at.layer + mlp;
  }
  for (int i = 0; i < s->ops; i++) {
    s->region_first[i] = s->region_last[i] = i;
    if (s->region[i] == RF_NONE) continue;
    if (i > 0 && s->region[i - 1] == s->region[i]) s->region_first[i] = s->region_first[i - 1];
  }
  for (int i = s->ops - 2; i >= 0; i--)
    if (s->region[i] != RF_NONE && s->region[i + 1] == s->region[i])
      s->region_last[i] = s->region_last[i + 1];
}

/* Marks tensors that jax.checkpoint_policies.save_only_these_names stores. As in published
 * programs, a name means the last tensor of its chain of ops (for example, queries after rotation).
 * The residual stream has no name. */
static void find_saved(sizing *s) {
  rf_saved_seen seen;
  rf_saved_begin(&seen);
  for (int i = s->ops - 1; i >= 0; i--) {
    int32_t layer = s->graph->op[i].at.layer;
    for (int k = s->graph->op[i].output_count - 1; k >= 0 && s->region[i] != RF_NONE; k--) {
      int t = s->graph->op[i].output[k];
      const char *name = t < 0 ? "" : s->graph->tensor[t].name;
      if (t < 0 || rf_text_ends_with(name, "/residual/y") || layer < 0) continue;
      s->saved[t] = rf_saved_first(s->job->remat, &s->graph->tensor[t], layer, &seen);
    }
  }
}

/* ---- lifetimes ------------------------------------------------------------------------------- */

static const rf_kept_rule *rule_at(const sizing *s, int op) { return rf_kept_rule_of(s->graph->op[op].def); }
static bool is_activation(const sizing *s, int t) {
  return t >= 0 && !s->graph->tensor[t].persistent && s->producer[t] != RF_NONE;
}
static bool in_layers(const sizing *s, int op) { return op >= s->scan_first && op <= s->scan_last; }

/* Finds the last forward op that reads each tensor. XLA recomputes a fused op in each of its
 * readers, so these readers also read the fused op's inputs. */
static void find_reads(sizing *s) {
  for (int t = 0; t < s->graph->tensor_count; t++) {
    s->producer[t] = RF_NONE;
    s->last_read[t] = RF_NONE;
    s->needed_by[t] = RF_NONE;
  }
  for (int i = 0; i < s->ops; i++)
    for (int k = 0; k < s->graph->op[i].output_count; k++)
      if (s->graph->op[i].output[k] >= 0 && !s->graph->tensor[s->graph->op[i].output[k]].persistent)
        s->producer[s->graph->op[i].output[k]] = i;
  for (int i = s->ops - 1; i >= 0; i--) {
    const rf_op *op = &s->graph->op[i];
    int last = i;
    if (rule_at(s, i)->fuses && op->output[0] >= 0 && s->last_read[op->output[0]] > last)
      last = s->last_read[op->output[0]];
    for (int k = 0; k < op->input_count; k++)
      if (op->input[k] >= 0 && s->last_read[op->input[k]] < last) s->last_read[op->input[k]] = last;
  }
}

static void need(sizing *s, int t, int op) {
  if (is_activation(s, t) && (s->needed_by[t] == RF_NONE || s->needed_by[t] > op)) s->needed_by[t] = op;
}

/* True if the product's matrix is frozen. Then the backward pass does not read the product's
 * input. */
static bool is_frozen_product(const sizing *s, const rf_op *op) {
  int w = op->input_count > 1 ? op->input[1] : RF_NONE;
  return rf_kept_rule_of(op->def)->for_matrix && s->model->lora.rank > 0 && w >= 0 &&
         s->graph->tensor[w].param >= 0 && s->graph->params.at[s->graph->tensor[w].param].adapts < 0;
}

/* In f32 programs, XLA does not fuse the constants of the random-number generator into the product
 * with dropout. The fusion reads these constants as arrays (HLO that libtpu 0.0.52 scheduled). With
 * a mask that is stored for backward, or with bf16, XLA makes other fusions without these
 * arrays. */
static void draw(sizing *s, int i) {
  const rf_op *op = &s->graph->op[i];
  if (!on_tpu(s) || s->job->build.dtype != RF_F32 || s->region[i] == RF_NONE) return;
  for (int k = 0; k < rule_at(s, i)->drawn; k++)
    add(s, WORKING, true, part_bytes(s, op, (rf_kept_part){1, 32, RF_EXTENT_OUTPUT}), i, i);
}

static void keep_of_op(sizing *s, int i) {
  const rf_op *op = &s->graph->op[i];
  rf_kept_rule adapted = *rule_at(s, i);
  const rf_kept_rule *rule = &adapted;
  if (is_frozen_product(s, op)) adapted.input = adapted.input_across_loop = false;
  int t = op->input[0], back = backward_of(s, i);
  if (s->region[i] != RF_NONE) {
    int again = backward_of(s, s->region_last[i]);
    add(s, WORKING, true, parts_bytes(s, op, rule->again), again, back);
    if (rule->input) need(s, t, i);
  } else if (s->scan && in_layers(s, i)) {
    add(s, KEPT, false, parts_bytes(s, op, rule->across_loop), s->scan_first, backward_of(s, s->scan_first));
    if (rule->input_across_loop && is_activation(s, t)) s->crosses[t] = true;
  } else {
    add(s, KEPT, !in_layers(s, i), parts_bytes(s, op, rule->kept), i, back);
    if (rule->input) need(s, t, i);
  }
  /* To recompute a region, XLA stores the tensors that this region reads from other regions. */
  for (int k = 0; k < op->input_count && s->region[i] != RF_NONE; k++)
    if (is_activation(s, op->input[k]) && s->region[s->producer[op->input[k]]] != s->region[i])
      need(s, op->input[k], s->region_first[i]);
}

static void keep_tensor(sizing *s, int t) {
  const rf_tensor *tensor = &s->graph->tensor[t];
  int made = s->producer[t], user = s->needed_by[t];
  int64_t bytes = tensor_bytes(s, tensor, tensor->dtype, 1);
  if (s->saved[t] && s->scan) add(s, KEPT, false, bytes, s->scan_first, backward_of(s, s->scan_first));
  else if (s->saved[t])
    add(s, KEPT, false, bytes, made, backward_of(s, user != RF_NONE ? user : s->region_last[made]));
  else if (s->crosses[t])
    add(s, KEPT, false, tensor_bytes(s, tensor, product_dtype(s), 1), s->scan_first,
        backward_of(s, s->scan_first));
  else if (user != RF_NONE && s->region[made] != RF_NONE && s->region[made] == s->region[user]) {
    if (!rule_at(s, made)->fuses)
      add(s, WORKING, true, bytes, backward_of(s, s->region_last[made]), backward_of(s, user));
  } else if (user != RF_NONE && s->scan && in_layers(s, user))
    add(s, KEPT, false, bytes, s->scan_first, backward_of(s, s->scan_first));
  else if (user != RF_NONE && !rule_at(s, made)->fuses)
    add(s, KEPT, false, bytes, made, backward_of(s, user));
}

static void lifetimes(sizing *s) {
  find_reads(s);
  for (int i = 0; i < s->ops; i++) {
    const rf_op *op = &s->graph->op[i];
    const rf_kept_rule *rule = rule_at(s, i);
    add(s, WORKING, true, parts_bytes(s, op, rule->forward), i, i);
    if (s->trains) {
      draw(s, i);
      keep_of_op(s, i);
      add(s, WORKING, true, parts_bytes(s, op, rule->backward), backward_of(s, i), backward_of(s, i));
    }
  }
  for (int t = 0; t < s->graph->tensor_count; t++) {
    const rf_tensor *tensor = &s->graph->tensor[t];
    int made = s->producer[t];
    if (made == RF_NONE || tensor->output || tensor->class == RF_CLASS_IO || rule_at(s, made)->fuses ||
        s->graph->op[made].output[0] != t) {
      if (made != RF_NONE && s->trains) keep_tensor(s, t);
      continue;
    }
    int64_t bytes = tensor_bytes(s, tensor, tensor->dtype, 1);
    int last = s->last_read[t] > made ? s->last_read[t] : made;
    add(s, WORKING, true, bytes, made, last);
    if (!s->trains) continue;
    keep_tensor(s, t);
    add(s, WORKING, true, bytes, backward_of(s, last), backward_of(s, made)); /* the gradient of the tensor */
  }
}

/* ---- the peak -------------------------------------------------------------------------------- */

/* Sorts arrays by their priority for on-chip memory: `brief` arrays first, then larger arrays
 * first. */
static int by_preference(const void *a, const void *b) {
  const array *x = a, *y = b;
  if (x->brief != y->brief) return y->brief - x->brief;
  return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* Writes the name of the graph's op that runs at time `now`. */
static void name_peak(const sizing *s, int now, char peak[96]) {
  int op = now < s->ops ? now : s->trains && now < s->end ? s->end - 1 - now : s->ops - 1;
  const char *name = s->ops > 0 ? s->graph->op[op].name : "";
  int length = (int)strlen(name) - (rf_text_ends_with(name, "/fwd") ? 4 : 0);
  snprintf(peak, 96, "%.*s%s", length < 80 ? length : 80, name, now < s->ops || !s->trains ? "/fwd" : "/bwd");
}

static void find_peak(sizing *s, rf_program_memory *m) {
  array *live = rf_pool_alloc(s->pool, ((size_t)s->count + 1) * sizeof *live);
  int64_t *change = rf_pool_alloc(s->pool, ((size_t)s->end + 3) * sizeof *change);
  for (int i = 0; i < s->count; i++) {
    change[s->at[i].first] += s->at[i].bytes;
    change[s->at[i].last + 1] -= s->at[i].bytes;
  }
  int64_t sum = 0, chip = s->shards > 1 ? 0 : rf_program_chip_bytes(s->job->machine);
  int peak = 0;
  for (int now = 0; now <= s->end; now++) {
    sum += change[now];
    /* If all arrays fit on the chip, XLA keeps them on the chip, including gradients and copies. */
    if (sum <= m->temp || sum <= chip) continue;
    int64_t of[KINDS] = {0}, room = chip, total = 0;
    int count = 0;
    for (int i = 0; i < s->count; i++) {
      if (s->at[i].first > now || s->at[i].last < now) continue;
      of[s->at[i].what] += s->at[i].bytes;
      if (s->at[i].brief || s->at[i].what == KEPT) live[count++] = s->at[i];
    }
    if (room > 0) qsort(live, (size_t)count, sizeof *live, by_preference);
    for (int i = 0; i < count; i++)
      if (live[i].bytes <= room) {
        room -= live[i].bytes;
        of[live[i].what] -= live[i].bytes;
      }
    for (int k = 0; k < KINDS; k++) total += of[k];
    if (total <= m->temp) continue;
    peak = now;
    m->temp = total;
    m->copies = of[COPIES];
    m->gradients = of[GRADIENTS];
    m->kept = of[KEPT];
    m->working = of[WORKING];
  }
  name_peak(s, peak, m->peak);
}

/* ---- arguments and results ------------------------------------------------------------------- */

/* Bytes of the table of pointers that a program with several result arrays also returns. */
static int64_t table_bytes(const sizing *s, int64_t leaves) {
  return on_tpu(s) ? (4 * leaves + 511) / 512 * 512 : 8 * leaves;
}

static void size_training(const sizing *s, rf_program_memory *m) {
  const rf_build_options *b = &s->job->build;
  int64_t rows[] = {b->microbatch * b->accumulate, b->seq}, two[] = {2};
  /* bytes of the step number and the random key */
  int64_t counter = scalar_bytes(s, RF_I32) + bytes_of(s, RF_I32, 1, two);
  m->alias += counter;
  m->argument += counter + 2 * bytes_of(s, RF_I32, 2, rows);
  m->output = m->alias + bytes_of(s, RF_F32, 1, two) + table_bytes(s, s->state_leaves + 3);
}

static void size_generation(sizing *s, rf_program_memory *m) {
  const rf_build_options *b = &s->job->build;
  rf_dtype dtype = b->kv_dtype_set ? b->kv_dtype : b->dtype;
  int64_t slots[] = {b->microbatch}, answers[] = {b->microbatch, b->seq}, cache = 0, cast = 0, leaves = 3;
  for (int layer = 0; layer < s->model->layers; layer++) {
    int64_t window = s->program->ring ? rf_model_window(s->model, layer) : 0,
            keys = window > 0 && window < b->seq ? window : b->seq;
    int64_t dims[] = {b->microbatch, keys, s->model->kv_heads, s->model->head_dim};
    cache += 2 * bytes_of(s, dtype, 4, dims);
    if (rf_dtype_bytes(dtype) < rf_dtype_bytes(b->dtype))
      cast += bytes_of(s, b->dtype, 4, dims); /* narrow keys are converted before products read them */
    leaves += 2;
  }
  if (s->scan) leaves = 5;
  add(s, WORKING, false, cast, 0, s->end);
  int64_t ids = bytes_of(s, RF_I32, 1, slots), scalar = scalar_bytes(s, RF_I32),
          buffer = s->program->loop ? bytes_of(s, RF_I32, 2, answers) : 0;
  m->alias += cache + buffer;
  m->argument += cache + buffer + ids + scalar;
  m->output = m->alias + ids + scalar * (s->program->loop ? 2 : 1) + table_bytes(s, leaves);
}

static void size_scoring(sizing *s, rf_program_memory *m) {
  const rf_build_options *b = &s->job->build;
  int64_t tokens[] = {b->microbatch, b->seq}, hidden[] = {b->microbatch, b->seq, s->model->width},
          logits[] = {b->microbatch, b->seq, s->model->vocab},
          top[] = {b->microbatch, b->seq, s->program->top};
  int64_t all = bytes_of(s, b->dtype, 3, logits), wide = bytes_of(s, RF_F32, 3, logits);
  int64_t places = bytes_of(s, RF_I32, 3, logits), apart, within;
  int64_t likeliest = bytes_of(s, b->dtype, 3, top) + bytes_of(s, RF_I32, 3, top) + table_bytes(s, 2);
  m->argument += bytes_of(s, RF_I32, 2, tokens);
  switch (s->program->result) {
  case RF_RESULT_LOSS:
    m->output = scalar_bytes(s, RF_F32);
    add(s, WORKING, false, all + wide, s->end, s->end);
    break;
  case RF_RESULT_HIDDEN: m->output = bytes_of(s, b->dtype, 3, hidden); break;
  case RF_RESULT_LOGITS: m->output = all; break;
  case RF_RESULT_TOP:
    m->output = likeliest;
    /* Sorting returns the sorted logits and, for each sorted logit, its position before sorting.
     * The sorted logits reuse the memory of the logits. If the sorted logits do not fit there, the
     * sorted positions reuse the memory of the unsorted positions instead. */
    apart = all + 2 * places;
    within = 2 * all + places;
    add(s, WORKING, false, m->argument + m->output + apart > s->job->room_bytes ? within : apart, s->end,
        s->end);
    break;
  case RF_RESULT_TOP_BY_CHUNK:
    m->output = likeliest;
    /* The loop over chunks reads the positions in another order. XLA fuses the reordering with the
     * sum of all sublayers' results, so all these results stay in memory. */
    for (int i = 0; i < s->ops; i++)
      if (rule_at(s, i)->joins_residual)
        add(s, KEPT, false, part_bytes(s, &s->graph->op[i], (rf_kept_part){1, 0, RF_EXTENT_OUTPUT}), i,
            s->end);
    break;
  }
}

/* Sets *local to the job of one device. Each axis that shards sequences gives a device its share of
 * the sequences. Only fsdp may shard parameters. */
static rf_status on_one_device(const rf_model *m, const rf_program_job *o, rf_program_job *local,
                               int64_t *shards, rf_error *error) {
  const rf_mesh *mesh = &o->build.mesh;
  if (o->remat == RF_REMAT_AUTO && o->build.job == RF_JOB_TRAIN)
    return RF_FAIL(error, RAFTER_INVALID, "use none, mlp, attn, mlp+attn, block, minimal or save:NAMES",
                   "a JAX program cannot use --remat auto");
  *shards = rf_mesh_extent(mesh, RF_AXIS_FSDP);
  int64_t chips = rf_mesh_chips(mesh),
          known = *shards * rf_mesh_extent(mesh, RF_AXIS_DATA) * rf_mesh_extent(mesh, RF_AXIS_SLICE);
  char text[160];
  if (chips != known)
    return RF_FAIL(error, RAFTER_INVALID, "remove the other axes, or --program",
                   "JAX programs can be sized over the axes data, slice and fsdp only (--mesh: got %s)",
                   rf_mesh_text(mesh, text));
  if (o->build.microbatch % chips)
    return RF_FAIL(error, RAFTER_INVALID, "choose a number of chips that divides the microbatch",
                   "the microbatch cannot be divided evenly over the chips (expected a multiple of %lld "
                   "sequences, got %lld)",
                   (long long)chips, (long long)o->build.microbatch);
  const rf_build_options *b = &o->build;
  double rows = (double)b->microbatch * (double)b->seq, row = 16.0 * (double)m->heads * (double)b->seq +
                                                              64.0 * (double)(m->ff + m->width) +
                                                              16.0 * (double)m->vocab;
  if (rows * row * (double)(m->layers + 2) > 0x1p61)
    return RF_FAIL(error, RAFTER_INVALID, "lower --batch or --seq",
                   "a JAX program stores more scores and residuals than can be counted (expected at most "
                   "2^61 bytes, got about %.3g)",
                   rows * row * (double)(m->layers + 2));
  *local = *o;
  local->build.microbatch /= chips;
  local->build.rows /= chips;
  local->build.mesh = (rf_mesh){0};
  return RAFTER_OK;
}

rf_status rf_program_size(const rf_model *model, const rf_program_job *job, rf_program_memory *memory,
                          rf_error *error) {
  rf_program_job local;
  const rf_program_options *program = &job->program;
  sizing s = {
      .model = model, .job = &local, .program = program, .scan = program->program == RF_PROGRAM_JAX_SCAN};
  RF_TRY(on_one_device(model, job, &local, &s.shards, error));
  rf_build_options build = local.build;
  rf_program_memory m = {0};
  build.weights = NULL;
  build.kv_dtype_set = false;
  if (build.job == RF_JOB_GENERATE && build.rows < 1) build.rows = build.microbatch;
  RF_TRY(rf_graph_build(model, &build, "adapt", &s.graph, error));
  s.pool = s.graph->pool;
  s.ops = s.graph->op_count;
  s.trains = build.job == RF_JOB_TRAIN && !build.loss_only;
  s.end = s.trains ? 2 * s.ops : s.ops;
  size_t tensors = (size_t)s.graph->tensor_count + 1, ops = (size_t)s.ops + 1;
  s.producer = rf_pool_alloc(s.pool, tensors * sizeof(int));
  s.last_read = rf_pool_alloc(s.pool, tensors * sizeof(int));
  s.needed_by = rf_pool_alloc(s.pool, tensors * sizeof(int));
  s.crosses = rf_pool_alloc(s.pool, tensors * sizeof(int));
  s.region = rf_pool_alloc(s.pool, ops * sizeof(int));
  s.region_first = rf_pool_alloc(s.pool, ops * sizeof(int));
  s.region_last = rf_pool_alloc(s.pool, ops * sizeof(int));
  s.saved = rf_pool_alloc(s.pool, tensors);
  find_regions(&s);
  find_saved(&s);
  lifetimes(&s);
  size_parameters(&s, &m);
  if (s.trains) size_training(&s, &m);
  else if (build.job == RF_JOB_GENERATE) size_generation(&s, &m);
  else size_scoring(&s, &m);
  find_peak(&s, &m);
  m.stacked = s.stacked;
  m.total = m.argument + m.output - m.alias + m.temp;
  *memory = m;
  rf_graph_free(s.graph);
  return RAFTER_OK;
}

int64_t rf_program_chip_bytes(const rf_machine *machine) {
  /* a program runs on one of a chip's devices */
  int devices = machine->devices_per_chip > 1 && !machine->by_device ? machine->devices_per_chip : 1;
  double room = machine->kind != RF_MACHINE_TPU ? 0 : machine->vmem_bytes / devices - RF_PROGRAM_SCOPED_BYTES;
  return room > 0 ? (int64_t)room : 0;
}

const char *rf_program_name(rf_program_kind program) {
  static const char *const names[] = {"rafter", "jax-scan", "jax-unrolled"};
  return names[program];
}
