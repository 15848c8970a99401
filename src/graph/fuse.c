/* fuse.c - joins ops that one kernel computes in one pass over memory. A fused op keeps every
 * rounding of the replaced ops, so its results are bit-identical. Two ops are joined only if
 * no third op reads the tensor between the two ops. */
#include "graph/passes.h"

typedef struct fuser {
  rf_graph *graph;
  rf_uses uses;
  int *writer; /* for each tensor: the op that makes the tensor, or RF_NONE */
  bool *gone;  /* for each op: true if the op was fused into another op */
} fuser;

static int readers(const fuser *f, int t) { return f->uses.reader_at[t + 1] - f->uses.reader_at[t]; }

/* Returns the op with definition `def` that makes tensor t, if exactly one op reads t. Otherwise
 * returns NULL. */
static rf_op *sole_source(const fuser *f, int t, const rf_op_def *def) {
  if (t < 0 || readers(f, t) != 1 || f->graph->tensor[t].output || f->writer[t] == RF_NONE) return NULL;
  rf_op *source = &f->graph->op[f->writer[t]];
  return source->def == def ? source : NULL;
}

static bool ready_before(const fuser *f, int t, const rf_op *source) {
  return f->writer[t] < (int)(source - f->graph->op);
}

static bool fuse_gelu(fuser *f, rf_op *gelu) {
  int u = gelu->input[0];
  if (f->writer[u] == RF_NONE) return false;
  rf_op *source = &f->graph->op[f->writer[u]];
  if (source->def != &RF_OP_MATMUL || source->attr.matmul.epilogue != RF_EPILOGUE_NONE ||
      source->section != gelu->section)
    return false;
  source->attr.matmul.epilogue = RF_EPILOGUE_GELU;
  if (readers(f, u) == 1 && !f->graph->tensor[u].output) source->output[0] = RF_NONE;
  source->output[1] = gelu->output[0];
  f->writer[gelu->output[0]] = f->writer[u];
  return true;
}

static bool fuse_residual(fuser *f, rf_op *add) {
  for (int slot = 1; slot >= 0; slot--) {
    rf_op *source = sole_source(f, add->input[slot], &RF_OP_MATMUL);
    int other = add->input[1 - slot];
    if (!source || source->attr.matmul.epilogue != RF_EPILOGUE_NONE || source->section != add->section ||
        !ready_before(f, other, source))
      continue;
    if (slot == 0 && add->def == &RF_OP_ADD_DROPOUT) continue;
    source->attr.matmul.epilogue = RF_EPILOGUE_RESIDUAL;
    if (add->def == &RF_OP_ADD_DROPOUT) {
      source->attr.dropout.rate = add->attr.dropout.rate;
      source->attr.dropout.site = add->attr.dropout.site;
      source->attr.dropout.token_step = add->attr.dropout.token_step;
    }
    source->input[3] = other;
    source->output[0] = RF_NONE;
    source->output[1] = add->output[0];
    f->writer[add->output[0]] = (int)(source - f->graph->op);
    return true;
  }
  return false;
}

static bool fuse_gelu_bwd(fuser *f, rf_op *gelu_bwd) {
  rf_op *source = sole_source(f, gelu_bwd->input[1], &RF_OP_MATMUL_DX);
  int u = gelu_bwd->input[0];
  if (!source || source->input[2] != RF_NONE || source->section != gelu_bwd->section ||
      !ready_before(f, u, source))
    return false;
  source->input[2] = u;
  source->output[0] = RF_NONE;
  source->output[1] = gelu_bwd->output[0];
  f->writer[gelu_bwd->output[0]] = (int)(source - f->graph->op);
  return true;
}

static bool fuse_norm_bwd(fuser *f, rf_op *add) {
  for (int slot = 1; slot >= 0; slot--) {
    int other = add->input[1 - slot];
    rf_op *source = sole_source(f, add->input[slot], &RF_OP_LAYERNORM_BWD);
    if (!source) source = sole_source(f, add->input[slot], &RF_OP_RMSNORM_BWD);
    if (!source || source->input[4] != RF_NONE || source->section != add->section ||
        !ready_before(f, other, source))
      continue;
    source->input[4] = other;
    /* the output of the joined op keeps the name of dx, the output of the norm's backward op */
    f->graph->tensor[add->output[0]].name = f->graph->tensor[source->output[0]].name;
    source->output[0] = add->output[0];
    f->writer[add->output[0]] = (int)(source - f->graph->op);
    return true;
  }
  return false;
}

/* With a policy's loss, the log-probabilities may be known from sampling. Then the gradient `dnll`
 * does not depend on the results of `loss`, and the op that computes `dnll` moves before `loss`.
 * Returns the new position of `loss`. NULL: the gradient needs the results of `loss`. */
static rf_op *move_policy_first(fuser *f, rf_op *loss, int dnll) {
  rf_op *policy = loss + 1;
  int at = (int)(loss - f->graph->op);
  if (f->writer[dnll] != at + 1 || policy->def != &RF_OP_POLICY_LOSS || !policy->attr.policy.on_policy ||
      policy->section != loss->section)
    return NULL;
  const rf_op first = *policy;
  *policy = *loss;
  *loss = first;
  loss->input[0] = RF_NONE;
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < loss[k].output_count; i++)
      if (loss[k].output[i] >= 0) f->writer[loss[k].output[i]] = at + k;
  return policy;
}

/* Joins the op that computes the loss and the op that computes the loss's gradient. The joined op
 * takes the position of the loss, after a policy's loss that can move before it. No backward op may
 * be between the two ops. */
static bool fuse_head(fuser *f, rf_op *bwd) {
  rf_op *loss = sole_source(f, bwd->input[4], &RF_OP_HEAD_LOSS);
  int dnll = bwd->input[5];
  if (!loss || loss->section != bwd->section) return false;
  for (const rf_op *op = loss + 1; op < bwd; op++)
    if (op->backward && !f->gone[op - f->graph->op]) return false;
  for (int i = 0; i < 4; i++)
    if (loss->input[i] != bwd->input[i]) return false;
  if (dnll != RF_NONE) {
    loss = move_policy_first(f, loss, dnll);
    if (!loss) return false;
  }
  loss->input[4] = dnll;
  loss->input_count = 5;
  int at = (int)(loss - f->graph->op);
  loss->def = &RF_OP_HEAD_LOSS_GRAD;
  loss->name = rf_graph_join(f->graph, bwd->name, "", "");
  loss->output_count = 5;
  loss->attr.head.transpose = bwd->attr.head.transpose;
  loss->backward = true;
  for (int i = 0; i < 3; i++) {
    loss->output[2 + i] = bwd->output[i];
    loss->attr.accumulate[2 + i] = bwd->attr.accumulate[i];
    if (bwd->output[i] >= 0) f->writer[bwd->output[i]] = at;
  }
  return true;
}

/* Joins the norm of a gradient with the update that follows it. The two ops stay apart if the
 * update must wait for the norms of all gradients, or if several chips share the gradient. */
static bool fuse_norm_sq(fuser *f, rf_op *norm) {
  rf_op *update = norm + 1;
  if (update >= f->graph->op + f->graph->op_count || update->def != &RF_OP_ADAMW ||
      update->section != norm->section)
    return false;
  if (update->input[0] != norm->input[0] || update->input[4] != RF_NONE || norm->attr.group > 1 ||
      norm->attr.sums.copies > 1)
    return false;
  update->output_count = 5;
  update->output[4] = norm->output[0];
  update->attr.sums.element = norm->attr.sums.element;
  return true;
}

static bool fuse_op(fuser *f, rf_op *op) {
  if (op->def == &RF_OP_NORM_SQ) return fuse_norm_sq(f, op);
  if (op->def == &RF_OP_GELU) return fuse_gelu(f, op);
  if (op->def == &RF_OP_ADD && op->backward) return fuse_norm_bwd(f, op);
  if (op->def == &RF_OP_ADD || op->def == &RF_OP_ADD_DROPOUT) return fuse_residual(f, op);
  if (op->def == &RF_OP_GELU_BWD) return fuse_gelu_bwd(f, op);
  if (op->def == &RF_OP_HEAD_LOSS_BWD) return fuse_head(f, op);
  return false;
}

rf_status rf_pass_fuse(rf_graph *graph, rf_error *error) {
  (void)error;
  fuser f = {.graph = graph,
             .uses = rf_graph_uses(graph, graph->pool),
             .writer = rf_pool_alloc(graph->pool, (size_t)graph->tensor_count * sizeof(int)),
             .gone = rf_pool_alloc(graph->pool, (size_t)graph->op_count)};
  int *order = rf_pool_alloc(graph->pool, (size_t)graph->op_count * sizeof(int)), count = 0;
  for (int t = 0; t < graph->tensor_count; t++)
    f.writer[t] =
        f.uses.writer_at[t + 1] > f.uses.writer_at[t] ? f.uses.writer[f.uses.writer_at[t]] : RF_NONE;
  for (int o = 0; o < graph->op_count; o++) f.gone[o] = fuse_op(&f, &graph->op[o]);
  for (int o = 0; o < graph->op_count; o++)
    if (!f.gone[o]) order[count++] = o;
  rf_graph_reorder(graph, order, count);
  rf_graph_compact(graph);
  return RAFTER_OK;
}
