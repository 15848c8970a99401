/* check.c - verifies a plan from the graph alone, without code or intermediate results of the
 * layout. It has two independent arguments.
 * 1. Lifetimes: they cover every use, and no two ranges of bytes that are alive at the same time
 * overlap.
 * 2. Bytes: a step is simulated. Each write takes its range of bytes away from the earlier owners.
 * Every op must find all its inputs unchanged since they were written, in the first microbatch and
 * in later ones. */
#include "graph/mesh/pipeline.h"
#include "support/plan/check.h"

#include <string.h>

typedef struct range {
  int64_t start, end;
  int tensor;
} range;

typedef struct checker {
  const rf_plan *plan;
  const rf_graph *graph;
  rf_error *error;
  rf_pool *pool;
  /* disjoint and ascending: ranges in use in the arena and, after its end, in the host's region */
  range *held;
  int held_count;
  bool *intact;       /* whether the bytes of each tensor are as its last writer left them */
  int *section_first; /* first section that touches each tensor, or RF_SECTIONS */
} checker;

#define RF_WRONG(c, ...) \
  RF_FAIL((c)->error, RAFTER_FAILED, "this is a fault of the planner, please report it", __VA_ARGS__)

static const rf_tensor *content(const checker *c, int t) { return rf_plan_content(c->plan, t); }
static const char *name_of(const checker *c, int t) { return content(c, t)->name; }

/* ---- checks of single tensors ---------------------------------------------------------------- */

/* Bytes of a packed matrix: lanes in groups of sixteen, each with whole blocks, and their
 * headers. */
static int64_t packed_bytes(const rf_panels *panels) {
  int64_t bytes = 0;
  for (int i = 0; i < panels->parts; i++) {
    const rf_quant_type *type = panels->part[i].type;
    bytes +=
        (panels->part[i].outputs + 15) / 16 * 16 * (type->head + panels->inner / type->values * type->bytes);
  }
  return panels->experts > 0 ? bytes * panels->experts : bytes;
}

static int64_t bare_bytes(const rf_tensor *t) {
  if (t->dtype == RF_PACKED) return packed_bytes(&t->panels);
  int64_t bytes = rf_dtype_bytes(t->dtype);
  for (int i = 0; i < t->rank; i++) bytes *= t->shape[i];
  return t->dtype == RF_I4 ? bytes - bytes / 2 : bytes; /* two values per byte */
}

static bool is_laid_out(const checker *c, int t) { return c->plan->tensor[t].offset >= 0; }

/* First byte of a tensor, in one range of addresses for both memories. */
static int64_t start_of(const checker *c, int t) {
  return c->plan->tensor[t].offset + (content(c, t)->host ? c->plan->arena_bytes : 0);
}

static rf_status check_tensor(checker *c, int t) {
  const rf_plan_tensor *p = &c->plan->tensor[t];
  const rf_tensor *tensor = content(c, t);
  const char *where = tensor->host ? "the host's region" : "the arena";
  int64_t end = tensor->host ? c->plan->host_bytes : c->plan->arena_bytes;
  int64_t kept = tensor->host ? c->plan->host_persistent_bytes : c->plan->persistent_bytes;
  bool used = tensor->persistent || c->section_first[t] != RF_SECTIONS;
  if (!is_laid_out(c, t))
    return used ? RF_WRONG(c, "%s is used but has no place in the arena", name_of(c, t)) : RAFTER_OK;
  if (p->offset % 64 != 0)
    return RF_WRONG(c, "%s is misaligned (offset: expected a multiple of 64, got %lld)", name_of(c, t),
                    (long long)p->offset);
  int64_t least = bare_bytes(tensor) * (tensor->slots > 1 ? tensor->slots : 1);
  if (p->bytes < least)
    return RF_WRONG(c, "%s has too few bytes (expected at least %lld, got %lld)", name_of(c, t),
                    (long long)least, (long long)p->bytes);
  if (p->offset + p->bytes > end || p->bytes > end)
    return RF_WRONG(c, "%s is outside %s (end: expected at most %lld, got %lld)", name_of(c, t), where,
                    (long long)end, (long long)(p->offset + p->bytes));
  bool front = p->offset + p->bytes <= kept, after = p->offset >= kept;
  if (tensor->persistent ? !front : !after)
    return RF_WRONG(c,
                    "%s is on the wrong side of the persistent region (%s: region ends at %lld, offset %lld)",
                    name_of(c, t), tensor->persistent ? "persistent" : "not persistent", (long long)kept,
                    (long long)p->offset);
  return RAFTER_OK;
}

/* ---- declared lifetimes ---------------------------------------------------------------------- */

static rf_status covers(checker *c, int t, int op) {
  const rf_plan_tensor *p = &c->plan->tensor[t];
  if (p->first <= op && op <= p->last) return RAFTER_OK;
  return RF_WRONG(c, "%s is used outside its lifetime (%s: lives from op %d to %d, used at %d)",
                  name_of(c, t), c->graph->op[op].name, p->first, p->last, op);
}

static bool inplace_allowed(const rf_op *op, int output, int input) {
  for (int k = 0; k < op->def->inplace_count; k++)
    if (op->output[op->def->inplace[k].output] == output && op->input[op->def->inplace[k].input] == input)
      return true;
  return false;
}

/* A tensor may reuse the bytes of another only if the op allows it, at the last op that reads the
 * other. */
static rf_status check_share(checker *c, int t) {
  const rf_plan_tensor *p = &c->plan->tensor[t];
  int from = p->shares;
  if (from == RF_NONE) return RAFTER_OK;
  if (from < 0 || from >= c->plan->tensor_count || p->first < 0 || p->first >= c->graph->op_count)
    return RF_WRONG(c, "%s shares with nothing", name_of(c, t));
  const rf_op *op = &c->graph->op[p->first];
  const rf_plan_tensor *q = &c->plan->tensor[from];
  int reads = 0, heirs = 0;
  for (int i = 0; i < op->input_count; i++) reads += op->input[i] == from;
  for (int i = 0; i < op->output_count; i++)
    heirs += op->output[i] >= 0 && c->plan->tensor[op->output[i]].shares == from;
  if (!inplace_allowed(op, t, from) || reads != 1 || heirs != 1 || q->last != p->first ||
      start_of(c, t) != start_of(c, from) || p->bytes > q->bytes || content(c, from)->persistent ||
      content(c, from)->output || content(c, t)->persistent)
    return RF_WRONG(c, "%s may not take the place of %s (%s)", name_of(c, t), name_of(c, from), op->name);
  return RAFTER_OK;
}

/* Index of the first held range that ends after `start`. */
static int seek(const checker *c, int64_t start) {
  int low = 0, high = c->held_count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (c->held[middle].end <= start) low = middle + 1;
    else high = middle;
  }
  return low;
}

static void drop_at(checker *c, int at, int count) {
  memmove(c->held + at, c->held + at + count, (size_t)(c->held_count - at - count) * sizeof *c->held);
  c->held_count -= count;
}

static void insert_at(checker *c, int at, range r) {
  memmove(c->held + at + 1, c->held + at, (size_t)(c->held_count - at) * sizeof *c->held);
  c->held[at] = r;
  c->held_count++;
}

static range range_of(const checker *c, int t, bool with_guard) {
  const rf_plan_tensor *p = &c->plan->tensor[t];
  int64_t guard = with_guard && !content(c, t)->persistent ? c->plan->options.guard_bytes : 0;
  return (range){start_of(c, t), start_of(c, t) + p->bytes + guard, t};
}

static void release(checker *c, int t) {
  int at = seek(c, start_of(c, t));
  if (at < c->held_count && c->held[at].tensor == t) drop_at(c, at, 1);
}

static rf_status begin_life(checker *c, int t) {
  if (c->plan->tensor[t].shares != RF_NONE) release(c, c->plan->tensor[t].shares);
  range r = range_of(c, t, true);
  if (r.end == r.start) return RAFTER_OK;
  int at = seek(c, r.start);
  if (at < c->held_count && c->held[at].start < r.end)
    return RF_WRONG(c, "%s overlaps %s (offsets %lld and %lld, both live at op %d)", name_of(c, t),
                    name_of(c, c->held[at].tensor), (long long)r.start, (long long)c->held[at].start,
                    c->plan->tensor[t].first);
  insert_at(c, at, r);
  return RAFTER_OK;
}

/* Lists tensors by the op at which they begin (or after which they end): `head` by op + 1, linked
 * by `next`. */
static void by_op(const checker *c, bool begin, int *head, int *next) {
  for (int i = 0; i < c->graph->op_count + 2; i++) head[i] = RF_NONE;
  for (int t = c->plan->tensor_count - 1; t >= 0; t--) {
    if (!is_laid_out(c, t)) continue;
    int at = (begin ? c->plan->tensor[t].first : c->plan->tensor[t].last) + 1;
    next[t] = head[at];
    head[at] = t;
  }
}

/* Checks that only transfers touch the host's memory. */
static rf_status check_memories(checker *c, const rf_op *op) {
  bool in = op->def->exchange == RF_EXCHANGE_FROM_HOST, out = op->def->exchange == RF_EXCHANGE_TO_HOST;
  for (int k = 0; k < op->input_count; k++)
    if (op->input[k] >= 0 && c->graph->tensor[op->input[k]].host != in)
      return RF_WRONG(c, "%s reads %s in the wrong memory", op->name, name_of(c, op->input[k]));
  for (int k = 0; k < op->output_count; k++)
    if (op->output[k] >= 0 && c->graph->tensor[op->output[k]].host != out)
      return RF_WRONG(c, "%s writes %s in the wrong memory", op->name, name_of(c, op->output[k]));
  return RAFTER_OK;
}

static rf_status check_lifetimes(checker *c) {
  const rf_graph *graph = c->graph;
  size_t ops = (size_t)graph->op_count + 2, tensors = (size_t)c->plan->tensor_count + 1;
  for (int t = 0; t < c->plan->tensor_count; t++) {
    const rf_plan_tensor *p = &c->plan->tensor[t];
    if (is_laid_out(c, t) && (p->first < -1 || p->last > graph->op_count || p->first > p->last))
      return RF_WRONG(c, "%s has a bad lifetime (from op %d to %d of %d)", name_of(c, t), p->first, p->last,
                      graph->op_count);
  }
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    for (int k = 0; k < op->input_count; k++)
      if (op->input[k] >= 0) RF_TRY(covers(c, op->input[k], i));
    for (int k = 0; k < op->output_count; k++)
      if (op->output[k] >= 0) RF_TRY(covers(c, op->output[k], i));
    if (c->plan->op[i].workspace >= 0) RF_TRY(covers(c, c->plan->op[i].workspace, i));
    if (c->plan->host_bytes > 0) RF_TRY(check_memories(c, op));
  }
  for (int t = 0; t < c->plan->tensor_count; t++)
    if (is_laid_out(c, t)) RF_TRY(check_share(c, t));
  int *begin = rf_pool_alloc(c->pool, ops * sizeof(int)),
      *begin_next = rf_pool_alloc(c->pool, tensors * sizeof(int));
  int *end = rf_pool_alloc(c->pool, ops * sizeof(int)),
      *end_next = rf_pool_alloc(c->pool, tensors * sizeof(int));
  by_op(c, true, begin, begin_next);
  by_op(c, false, end, end_next);
  c->held_count = 0;
  for (int i = 0; i < graph->op_count + 2; i++) {
    for (int pass = 0; pass < 2; pass++) /* First the tensors that reuse bytes of others. */
      for (int t = begin[i]; t != RF_NONE; t = begin_next[t])
        if ((c->plan->tensor[t].shares != RF_NONE) == (pass == 0)) RF_TRY(begin_life(c, t));
    for (int t = end[i]; t != RF_NONE; t = end_next[t]) release(c, t);
  }
  return RAFTER_OK;
}

/* ---- the bytes ------------------------------------------------------------------------------- */

/* Tensor t is written. The earlier owners of its bytes lose them. */
static void claim(checker *c, int t) {
  if (content(c, t)->persistent || (c->intact[t])) {
    c->intact[t] = true;
    return;
  }
  range r = range_of(c, t, false);
  int at = seek(c, r.start), gone = 0;
  while (at + gone < c->held_count && c->held[at + gone].start < r.end)
    c->intact[c->held[at + gone++].tensor] = false;
  drop_at(c, at, gone);
  if (r.end > r.start) insert_at(c, at, r);
  c->intact[t] = true;
}

/* Starts a new lifetime of t. Its old bytes no longer count, but another tensor may have taken its
 * range. */
static void renew(checker *c, int t) {
  if (c->intact[t] && !content(c, t)->persistent) release(c, t);
  c->intact[t] = content(c, t)->persistent;
  claim(c, t);
}

static rf_status must_hold(checker *c, const rf_op *op, int t) {
  if (c->intact[t]) return RAFTER_OK;
  int at = seek(c, start_of(c, t));
  const char *taker = at < c->held_count && c->held[at].start < start_of(c, t) + c->plan->tensor[t].bytes
                          ? name_of(c, c->held[at].tensor)
                          : NULL;
  return RF_WRONG(c, "%s reads %s, whose bytes %s%s", op->name, name_of(c, t),
                  taker ? "were overwritten by " : "nobody has written", taker ? taker : "");
}

static rf_status pass_op(checker *c, int i, int round) {
  const rf_op *op = &c->graph->op[i];
  int workspace = c->plan->op[i].workspace;
  for (int k = 0; k < op->input_count; k++)
    if (op->input[k] >= 0) RF_TRY(must_hold(c, op, op->input[k]));
  for (int k = 0; k < op->output_count; k++) {
    rf_accumulate how = op->attr.accumulate[k];
    if (op->output[k] >= 0 && (how == RF_ACCUMULATE_ADD || (how == RF_ACCUMULATE_MICRO && round > 0)))
      RF_TRY(must_hold(c, op, op->output[k]));
  }
  for (int k = 0; k < op->output_count; k++)
    if (op->output[k] >= 0) claim(c, op->output[k]);
  if (workspace >= 0 && op->def->exchange == RF_EXCHANGE_WAIT) RF_TRY(must_hold(c, op, workspace));
  else if (workspace >= 0) renew(c, workspace);
  /* While the op runs, all of its tensors must be present, except an input whose bytes an output
   * may reuse. */
  for (int k = 0; k < op->input_count; k++) {
    int t = op->input[k];
    bool given = false;
    for (int o = 0; t >= 0 && o < op->output_count; o++)
      given |= op->output[o] >= 0 && c->plan->tensor[op->output[o]].shares == t &&
               c->plan->tensor[op->output[o]].first == i;
    if (t >= 0 && !c->intact[t] && !given)
      return RF_WRONG(c, "%s writes over its own input %s", op->name, name_of(c, t));
  }
  for (int k = 0; k < op->output_count; k++)
    if (op->output[k] >= 0 && !c->intact[op->output[k]])
      return RF_WRONG(c, "%s writes over its own output %s", op->name, name_of(c, op->output[k]));
  return RAFTER_OK;
}

/* Executes a section once. Inputs that the caller writes before the section are fresh. An output is
 * fresh at its first plain write. */
static rf_status pass_section(checker *c, rf_section section, int round) {
  const rf_graph *graph = c->graph;
  for (int t = 0; t < c->plan->tensor_count; t++)
    if (content(c, t)->input && c->section_first[t] == (int)section && is_laid_out(c, t)) renew(c, t);
  for (int i = 0; i < graph->op_count; i++)
    if (graph->op[i].section == section) RF_TRY(pass_op(c, i, round));
  return RAFTER_OK;
}

static rf_status check_bytes(checker *c) {
  const rf_graph *graph = c->graph;
  c->held_count = 0;
  for (int t = 0; t < c->plan->tensor_count; t++) c->intact[t] = content(c, t)->persistent;
  RF_TRY(pass_section(c, RF_SECTION_BEGIN, 0));
  for (int round = 0; round < (graph->accumulate < 3 ? graph->accumulate : 3); round++)
    RF_TRY(pass_section(c, RF_SECTION_MICRO, round));
  RF_TRY(pass_section(c, RF_SECTION_END, 0));
  for (int t = 0; t < c->plan->tensor_count; t++)
    if (content(c, t)->output && is_laid_out(c, t) && !c->intact[t])
      return RF_WRONG(c, "%s does not survive to the end of the step", name_of(c, t));
  return RAFTER_OK;
}

/* ---- pipelines ------------------------------------------------------------------------------- */

/* The first and the last half of a microbatch that use a tensor, in the order of halves on this
 * stage: chunks forward, then chunks backward from the last. */
typedef struct meeting {
  int first, last;
  bool sums;
} meeting;

static void find_meetings(const checker *c, meeting *meet) {
  const rf_graph *graph = c->graph;
  int chunks = rf_pipeline_chunks(&graph->mesh),
      *half = rf_pool_alloc(c->pool, ((size_t)graph->op_count + 1) * sizeof *half);
  rf_pipeline_halves(graph, half);
  for (int t = 0; t < c->plan->tensor_count; t++) meet[t] = (meeting){INT32_MAX, -1, false};
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    int at = half[o] & 1 ? 2 * chunks - 1 - half[o] / 2 : half[o] / 2;
    for (int k = 0; half[o] >= 0 && k < op->input_count + op->output_count; k++) {
      int output = k - op->input_count, t = output < 0 ? op->input[k] : op->output[output];
      if (t < 0) continue;
      if (at < meet[t].first) meet[t].first = at;
      if (at > meet[t].last) meet[t].last = at;
      meet[t].sums |= output >= 0 && op->attr.accumulate[output] != RF_WRITE;
    }
  }
}

/* Simulates the schedule. A value that one half of a microbatch leaves to another must have a place
 * of its own from its first half to its last, also when slots are reused. */
static rf_status check_held(checker *c, int t, meeting m, const rf_half *order, int count, int begin,
                            int end) {
  const rf_tensor *tensor = content(c, t);
  const rf_plan_tensor *p = &c->plan->tensor[t];
  int chunks = rf_pipeline_chunks(&c->graph->mesh), now = 0, most = 0,
      places = tensor->slots > 1 ? tensor->slots : 1;
  if (tensor->input && m.last >= 0) m.first = 0;
  if (m.last < 0 || m.first == m.last || m.sums || tensor->persistent) return RAFTER_OK;
  for (int i = 0; i < count; i++) {
    int at = order[i].backward ? 2 * chunks - 1 - order[i].chunk : order[i].chunk;
    now += at == m.first;
    if (now > most) most = now;
    now -= at == m.last;
  }
  if (places < most)
    return RF_WRONG(c, "%s is overwritten by a later microbatch (places: expected %d, got %d)", name_of(c, t),
                    most, places);
  if ((most > 1 || chunks > 1) && (p->first > begin || p->last < end))
    return RF_WRONG(c, "%s gives its place away between two halves of a microbatch", name_of(c, t));
  return RAFTER_OK;
}

static rf_status check_pipeline(checker *c) {
  const rf_graph *graph = c->graph;
  if (rf_pipeline_stages(&graph->mesh) < 2 || graph->accumulate < 2) return RAFTER_OK;
  int count = 2 * rf_pipeline_chunks(&graph->mesh) * graph->accumulate, begin = -1, end = graph->op_count;
  rf_half *order = rf_pool_alloc(c->pool, (size_t)count * sizeof *order);
  meeting *meet = rf_pool_alloc(c->pool, ((size_t)c->plan->tensor_count + 1) * sizeof *meet);
  for (int o = graph->op_count - 1; o >= 0 && graph->op[o].section != RF_SECTION_BEGIN; o--)
    if (graph->op[o].section == RF_SECTION_END) end = o;
  for (int o = 0; o < graph->op_count && graph->op[o].section == RF_SECTION_BEGIN; o++) begin = o;
  rf_pipeline_order(&graph->mesh, graph->mesh.stage, graph->accumulate, order);
  find_meetings(c, meet);
  for (int t = 0; t < c->plan->tensor_count; t++)
    if (is_laid_out(c, t)) RF_TRY(check_held(c, t, meet[t], order, count, begin, end));
  return RAFTER_OK;
}

/* ---- the plan -------------------------------------------------------------------------------- */

static void find_sections(checker *c) {
  const rf_graph *graph = c->graph;
  for (int t = 0; t < c->plan->tensor_count; t++) c->section_first[t] = RF_SECTIONS;
  for (int i = graph->op_count - 1; i >= 0; i--) {
    const rf_op *op = &graph->op[i];
    for (int k = 0; k < op->input_count; k++)
      if (op->input[k] >= 0) c->section_first[op->input[k]] = op->section;
    for (int k = 0; k < op->output_count; k++)
      if (op->output[k] >= 0) c->section_first[op->output[k]] = op->section;
    if (c->plan->op[i].workspace >= 0) c->section_first[c->plan->op[i].workspace] = op->section;
  }
}

rf_status rf_plan_check(const rf_plan *plan, rf_error *error) {
  rf_pool *pool = rf_pool_new();
  size_t tensors = (size_t)plan->tensor_count + 1;
  checker c = {.plan = plan, .graph = plan->graph, .error = error, .pool = pool};
  c.held = rf_pool_alloc(pool, tensors * sizeof *c.held);
  c.intact = rf_pool_alloc(pool, tensors * sizeof *c.intact);
  c.section_first = rf_pool_alloc(pool, tensors * sizeof *c.section_first);
  find_sections(&c);
  rf_status status = RAFTER_OK;
  int64_t sum = 0;
  for (int t = 0; t < plan->tensor_count; t++) RF_GO(check_tensor(&c, t));
  RF_GO(check_lifetimes(&c));
  RF_GO(check_bytes(&c));
  RF_GO(check_pipeline(&c));
  for (int k = 0; k < RF_CLASSES; k++) sum += plan->by_class[k];
  if (sum != plan->arena_bytes || plan->live_bytes > plan->arena_bytes)
    status = RF_WRONG(&c, "the classes do not add up to the arena (expected %lld, got %lld; live %lld)",
                      (long long)plan->arena_bytes, (long long)sum, (long long)plan->live_bytes);
done:
  rf_pool_free(pool);
  return status;
}
