/* offload.c - tensors in the host's memory: optimizer states, weights and caches between uses,
 * activations between forward and backward. Each run of ops that uses such a tensor has a copy of
 * the tensor on the chip. The chip fetches the copy one layer early, and sends it back if an op
 * changed it. So the chip has the copies of two layers at a time. The last layer's activations stay
 * on the chip, because backward begins with this layer. */
#include "graph/passes.h"

#include <stdlib.h>
#include <string.h>

/* A run of ops that uses one host tensor. All ops of the run are in one section. In the section
 * `micro`, the ops of a run are all forward ops or all backward ops. */
typedef struct stay {
  int tensor; /* the tensor in the host's memory */
  int copy;   /* the copy that the ops of this run read and write */
  int first, last_write, phase;
  bool reads;
  int block; /* the layer of the first of these ops; RF_NONE: this op is outside all layers */
} stay;

typedef struct offload {
  rf_graph *graph;
  rf_error *error;
  int ops, tensors;   /* number of ops and of tensors in the original graph */
  int first_backward; /* index of the first backward op of `micro`, or op_count */
  stay *list;
  int count, capacity;
  int *open;          /* for each tensor: number of its last run of ops in `list`, or RF_NONE */
  rf_op_place *place; /* for each tensor: the layer to which it belongs */
  /* for each op: lists of the new ops before the op and after it */
  int *before, *after, *next, *moved, moves;
} offload;

static const char *const NAMES[RF_OFFLOADS] = {"optimizer", "activations", "kv", "weights"};

const char *rf_offload_name(int bit) { return NAMES[bit]; }

rf_status rf_offload_parse(const char *text, unsigned *what, rf_error *error) {
  *what = 0;
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    int bit = 0;
    while (bit < RF_OFFLOADS && (strlen(NAMES[bit]) != length || strncmp(NAMES[bit], at, length))) bit++;
    if (bit == RF_OFFLOADS)
      return RF_FAIL(error, RAFTER_INVALID,
                     "write names separated by commas, for example optimizer,activations",
                     "unknown entry in a list (--offload: expected optimizer, activations, kv "
                     "or weights, got '%.*s')",
                     (int)(length < 40 ? length : 40), at);
    if (*what & 1u << bit)
      return RF_FAIL(error, RAFTER_INVALID, "name each thing once", "%s is named twice (--offload)",
                     NAMES[bit]);
    *what |= 1u << bit;
    at += length;
    if (!*at) return RAFTER_OK;
  }
}

static int phase_of(const offload *f, int o) {
  rf_section section = f->graph->op[o].section;
  return 2 * (int)section + (section == RF_SECTION_MICRO && o >= f->first_backward);
}

static void find_backward(offload *f) {
  f->first_backward = f->ops;
  for (int o = f->ops; o-- > 0;) {
    const rf_op *op = &f->graph->op[o];
    if (op->section == RF_SECTION_MICRO && (op->backward || op->recompute_of != RF_NONE))
      f->first_backward = o;
  }
}

/* Matrices of layers. Vectors, the token table and the head stay on the chip. */
static bool is_weight(const rf_graph *graph, const rf_tensor *t) {
  return t->class == RF_CLASS_WEIGHT && t->rank > 1 && t->param >= 0 && graph->params.at[t->param].layer >= 0;
}

static bool stands_there(const rf_graph *graph, const rf_tensor *t, unsigned what) {
  if (!t->persistent) return false;
  return (what & RF_OFFLOAD_OPTIMIZER && (t->class == RF_CLASS_MASTER || t->class == RF_CLASS_MOMENT)) ||
         (what & RF_OFFLOAD_KV && t->class == RF_CLASS_KV) ||
         (what & RF_OFFLOAD_WEIGHTS && is_weight(graph, t));
}

/* ---- the tensors to move, and the ops that use these tensors --------------------------------- */

static int copy_of(offload *f, int t, int phase) {
  static const char *const suffix[] = {"/here", "/here", "/here", "/here/bwd", "/here/end", "/here/end"};
  rf_tensor tensor = f->graph->tensor[t];
  int id = rf_graph_tensor(f->graph, rf_graph_join(f->graph, tensor.name, suffix[phase], ""), tensor.class,
                           tensor.dtype, tensor.rank, tensor.shape);
  rf_tensor *copy = &f->graph->tensor[id];
  copy->param = tensor.param;
  copy->panels = tensor.panels;
  copy->spec = tensor.spec;
  copy->reason = "copied from the host for the ops that use it";
  return id;
}

static stay *use(offload *f, int t, int o, bool reads) {
  int phase = phase_of(f, o);
  if (f->open[t] != RF_NONE && f->list[f->open[t]].phase == phase) return &f->list[f->open[t]];
  if (f->count == f->capacity)
    f->list = rf_pool_grown(f->graph->pool, f->list, f->count, &f->capacity, sizeof *f->list);
  stay *s = &f->list[f->count];
  *s = (stay){.tensor = t,
              .copy = copy_of(f, t, phase),
              .first = o,
              .last_write = RF_NONE,
              .phase = phase,
              .reads = reads};
  s->block = f->graph->op[o].at.layer;
  f->open[t] = f->count++;
  return s;
}

static void find_stays(offload *f, const bool *there) {
  for (int o = 0; o < f->ops; o++) {
    const rf_op op = f->graph->op[o];
    for (int i = 0; i < op.input_count; i++)
      if (op.input[i] >= 0 && there[op.input[i]])
        f->graph->op[o].input[i] = use(f, op.input[i], o, true)->copy;
    for (int i = 0; i < op.output_count; i++) {
      int t = op.output[i];
      if (t < 0 || !there[t]) continue;
      stay *s = use(f, t, o, op.attr.accumulate[i] != RF_WRITE);
      s->last_write = o;
      f->graph->op[o].output[i] = s->copy;
    }
  }
}

/* ---- activations ----------------------------------------------------------------------------- */

/* For each tensor that backward reads: the op that makes the tensor. RF_NONE for all other tensors,
 * and for tensors of the last layer. */
static int *find_kept(offload *f) {
  const rf_graph *graph = f->graph;
  int *source = rf_pool_alloc(graph->pool, ((size_t)f->tensors + 1) * sizeof *source), last = -1;
  bool *read = rf_pool_alloc(graph->pool, (size_t)f->tensors + 1);
  for (int t = 0; t < f->tensors; t++) source[t] = RF_NONE;
  for (int o = 0; o < f->ops; o++) {
    const rf_op *op = &graph->op[o];
    if (op->section != RF_SECTION_MICRO) continue;
    for (int i = 0; o >= f->first_backward && i < op->input_count; i++)
      if (op->input[i] >= 0) read[op->input[i]] = true;
    for (int i = 0; o < f->first_backward && i < op->output_count; i++) {
      const rf_tensor *t = op->output[i] < 0 ? NULL : &graph->tensor[op->output[i]];
      bool fits =
          t && t->class == RF_CLASS_ACTIVATION && !t->persistent && !t->input && !t->output && t->rank > 1;
      if (fits && op->at.layer >= 0) source[op->output[i]] = o;
    }
  }
  for (int t = 0; t < f->tensors; t++) {
    if (!read[t]) source[t] = RF_NONE;
    if (source[t] != RF_NONE && graph->op[source[t]].at.layer > last) last = graph->op[source[t]].at.layer;
  }
  for (int t = 0; t < f->tensors; t++)
    if (source[t] != RF_NONE && graph->op[source[t]].at.layer == last) source[t] = RF_NONE;
  return source;
}

/* ---- the copies ------------------------------------------------------------------------------ */

static void place(offload *f, int *head, int o, int op) {
  f->next[op - f->ops] = RF_NONE;
  int *end = &head[o];
  while (*end != RF_NONE) end = &f->next[*end - f->ops];
  *end = op;
}

/* A parameter and its optimizer states belong to the parameter's layer. Any other tensor belongs to
 * the layer of the op that first writes the tensor. */
static void find_places(offload *f) {
  for (int t = 0; t < f->tensors; t++) {
    int p = f->graph->tensor[t].param;
    f->place[t] = (rf_op_place){p < 0 ? RF_NONE : f->graph->params.at[p].layer, RF_SUBLAYER_NONE};
  }
  for (int o = f->ops - 1; o >= 0; o--) {
    const rf_op *op = &f->graph->op[o];
    for (int i = 0; i < op->output_count; i++)
      if (op->output[i] >= 0 && f->graph->tensor[op->output[i]].param < 0) f->place[op->output[i]] = op->at;
  }
}

/* Joins the start of the op's name ("step/micro/"), the name of the tensor, and the suffix. */
static const char *path_of(offload *f, const rf_op *op, const char *tensor, const char *suffix) {
  const char *block = strstr(op->name, "block.");
  size_t stem = block ? (size_t)(block - op->name) : 0;
  for (int slashes = 0; !block && op->name[stem] && slashes < 2; stem++) slashes += op->name[stem] == '/';
  return rf_pool_format(f->graph->pool, "%.*s%s%s", (int)stem, op->name, tensor, suffix);
}

static rf_status move(offload *f, const rf_op_def *def, int from, int to, int near, bool in_front,
                      const char *suffix, rf_attr attr) {
  const rf_op like = f->graph->op[near];
  attr.group = 1;
  f->graph->at = f->place[def == &RF_OP_OFFLOAD_IN ? from : to];
  const char *name = path_of(f, &like, f->graph->tensor[def == &RF_OP_OFFLOAD_IN ? to : from].name, suffix);
  int id = rf_graph_emit(f->graph, def, name, like.section, RF_IDS(from), RF_IDS(to), &attr, f->error);
  if (id < 0) return RAFTER_INVALID;
  f->graph->op[id].backward = near >= f->first_backward && like.section == RF_SECTION_MICRO;
  place(f, in_front ? f->before : f->after, near, id);
  return RAFTER_OK;
}

/* For a cache, fetches only keys inside the window, and sends back only rows of this step. */
static rf_attr attr_of(const offload *f, const stay *s, bool back) {
  rf_attr attr = {0};
  if (f->graph->tensor[s->tensor].class != RF_CLASS_KV) return attr;
  attr.offload.window = f->graph->op[s->first].attr.attention.window;
  if (back) attr.offload.rows = f->graph->rows;
  return attr;
}

static int in_order(const void *a, const void *b) {
  const stay *x = a, *y = b;
  return x->first != y->first ? x->first - y->first : x->tensor - y->tensor;
}

/* Emits the copies. A copy for layer n starts just before layer n - 1 first uses its own copies.
 * The copies for the first layer start at the start of the section, or at the start of backward. */
static rf_status bring(offload *f) {
  int begin = 0,        /* index of the first run of this layer */
      begin_before = 0; /* index of the first run of the previous layer */
  for (int i = 0; i < f->count; i++) {
    const stay *s = &f->list[i];
    rf_section section = f->graph->op[s->first].section;
    if (i > 0 && (f->graph->op[f->list[i - 1].first].section != section || s->block != f->list[i - 1].block ||
                  s->phase != f->list[i - 1].phase)) {
      begin_before = begin;
      begin = i;
    }
    int at, o;
    if (begin > begin_before && f->graph->op[f->list[begin_before].first].section == section) {
      at = begin_before + (i - begin) < begin ? begin_before + (i - begin) : begin - 1;
      o = f->list[at].first;
    } else {
      o = s->first;
      while (o > 0 && f->graph->op[o - 1].section == section && phase_of(f, o - 1) == s->phase) o--;
    }
    if (s->reads)
      RF_TRY(move(f, &RF_OP_OFFLOAD_IN, s->tensor, s->copy, o, true, "/in", attr_of(f, s, false)));
    if (s->last_write == RF_NONE) continue;
    RF_TRY(
        move(f, &RF_OP_OFFLOAD_OUT, s->copy, s->tensor, s->last_write, false, "/out", attr_of(f, s, true)));
  }
  return RAFTER_OK;
}

static void put_in_order(offload *f) {
  int *order = rf_pool_alloc(f->graph->pool, ((size_t)f->graph->op_count + 1) * sizeof *order), count = 0;
  for (int o = 0; o < f->ops; o++) {
    for (int i = f->before[o]; i != RF_NONE; i = f->next[i - f->ops]) order[count++] = i;
    order[count++] = o;
    for (int i = f->after[o]; i != RF_NONE; i = f->next[i - f->ops]) order[count++] = i;
  }
  rf_graph_reorder(f->graph, order, count);
}

/* Sends each stored activation to the host, right after the op that makes the activation.
 * Afterwards source[t] is the host tensor that backward reads instead. */
static rf_status send_kept(offload *f, bool *there, int *source) {
  for (int t = 0; t < f->tensors; t++) {
    int o = source[t];
    if (o == RF_NONE) continue;
    rf_tensor tensor = f->graph->tensor[t];
    int host = rf_graph_tensor(f->graph, rf_graph_join(f->graph, tensor.name, "/away", ""), tensor.class,
                               tensor.dtype, tensor.rank, tensor.shape);
    f->graph->tensor[host].host = true;
    f->graph->tensor[host].spec = tensor.spec;
    f->graph->tensor[host].reason = "stored in the host's memory until backward";
    f->place[host] = f->place[t];
    RF_TRY(move(f, &RF_OP_OFFLOAD_OUT, t, host, o, false, "/out", (rf_attr){0}));
    source[t] = host;
    there[host] = true;
  }
  for (int o = f->first_backward; o < f->ops; o++)
    for (int i = 0; i < f->graph->op[o].input_count; i++) {
      int t = f->graph->op[o].input[i];
      if (t >= 0 && t < f->tensors && source[t] != RF_NONE && f->graph->op[o].section == RF_SECTION_MICRO)
        f->graph->op[o].input[i] = source[t];
    }
  return RAFTER_OK;
}

rf_status rf_pass_offload(rf_graph *graph, unsigned what, rf_error *error) {
  rf_pool *pool = graph->pool;
  size_t ops = (size_t)graph->op_count + 1, tensors = 2 * (size_t)graph->tensor_count + 1,
         most = 4 * (tensors + ops);
  offload f = {.graph = graph, .error = error, .ops = graph->op_count, .tensors = graph->tensor_count};
  bool *there = rf_pool_alloc(pool, tensors), any = false;
  f.open = rf_pool_alloc(pool, tensors * sizeof(int));
  f.place = rf_pool_alloc(pool, tensors * sizeof *f.place);
  f.next = rf_pool_alloc(pool, most * sizeof(int));
  f.before = rf_pool_alloc(pool, ops * sizeof(int));
  f.after = rf_pool_alloc(pool, ops * sizeof(int));
  for (size_t t = 0; t < tensors; t++) f.open[t] = RF_NONE;
  for (size_t o = 0; o < ops; o++) f.before[o] = f.after[o] = RF_NONE;
  find_backward(&f);
  find_places(&f);
  if (what & RF_OFFLOAD_ACTIVATIONS) RF_TRY(send_kept(&f, there, find_kept(&f)));
  for (int t = 0; t < f.tensors; t++)
    if (stands_there(graph, &graph->tensor[t], what)) graph->tensor[t].host = there[t] = true;
  for (size_t t = 0; t < tensors; t++) any |= there[t];
  if (!any)
    return RF_FAIL(error, RAFTER_INVALID, "leave --offload out, or name tensors that this job has",
                   "this job has nothing to store in the host's memory (--offload)");
  find_stays(&f, there);
  qsort(f.list, (size_t)f.count, sizeof *f.list, in_order);
  RF_TRY(bring(&f));
  put_in_order(&f);
  return RAFTER_OK;
}
