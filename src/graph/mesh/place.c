/* place.c - see place.h. */
#include "graph/mesh/place.h"

#include <stdlib.h>
#include <string.h>

void rf_place_of(const rf_mesh *mesh, int64_t chip, int32_t place[RF_AXES]) {
  for (int a = RF_AXES - 1; a >= 0; a--) {
    int64_t extent = rf_mesh_extent(mesh, (rf_axis)a);
    place[a] = (int32_t)(chip % extent);
    chip /= extent;
  }
}

int64_t rf_place_first_row(const rf_mesh *mesh, rf_axes axes, const int32_t place[RF_AXES], int64_t rows) {
  rf_axes strided = axes & RF_AXIS_BIT(RF_AXIS_CONTEXT), outer = axes & (RF_AXIS_BIT(RF_AXIS_CONTEXT) - 1),
          inner = axes & (rf_axes) ~(outer | strided);
  int64_t run =
      rf_mesh_rank(mesh, outer, place) * rf_mesh_size(mesh, inner) + rf_mesh_rank(mesh, inner, place);
  return run * rf_mesh_size(mesh, strided) * rows + rf_mesh_rank(mesh, strided, place);
}

/* A tensor with the part of one chip, and the tensor with all parts. */
typedef struct where {
  const rf_graph *graph;
  const rf_tensor *tensor, *whole;
  int32_t place[RF_AXES];
  int64_t mine[RF_MAX_RANK], all[RF_MAX_RANK]; /* extents of both tensors; 1 after the last dimension */
} where;

static void shape_of(const rf_tensor *t, int64_t dims[RF_MAX_RANK]) {
  for (int d = 0; d < RF_MAX_RANK; d++) dims[d] = d < t->rank ? t->shape[d] : 1;
}

static where where_of(const rf_graph *graph, int64_t chip, int tensor, const rf_tensor *whole) {
  where w = {.graph = graph, .tensor = &graph->tensor[tensor], .whole = whole};
  rf_place_of(&graph->mesh, chip, w.place);
  shape_of(w.tensor, w.mine);
  shape_of(whole, w.all);
  return w;
}

/* ---- one dimension --------------------------------------------------------------------------- */

/* A dimension that is split over `chips` chips. */
typedef struct cut {
  int64_t rank, chips, local, whole;
  int64_t each; /* number of rows of one expert on all chips */
  int64_t own;  /* number of columns of query heads on all chips; an adapter may have fewer than the model */
  rf_form form;
  const rf_model *model;
} cut;

/* Maps query, key and value heads. Either the chips divide the key heads, or several chips have the
 * same key head. */
static int64_t of_heads(const cut *c, int64_t i) {
  int64_t dim = c->model->head_dim, heads = c->own / dim, kv = c->model->kv_heads, mine = heads / c->chips,
          kv_mine = kv > c->chips ? kv / c->chips : 1;
  int64_t head = i / dim, first = kv >= c->chips ? c->rank * kv_mine : c->rank * kv / c->chips;
  if (head < mine) return (c->rank * mine + head) * dim + i % dim;
  head -= mine;
  int64_t part = head / kv_mine;
  return (heads + part * kv + first + head % kv_mine) * dim + i % dim;
}

static int64_t of_dim(const cut *c, int64_t i) {
  int64_t at = c->rank * c->local + i, half = c->local / 2, each, mine;
  switch (c->form) {
  case RF_FORM_HALVES: return i / half * (c->whole / 2) + c->rank * half + i % half;
  case RF_FORM_HEADS: return of_heads(c, i);
  case RF_FORM_STRIDED: return i * c->chips + c->rank;
  case RF_FORM_KEYS:
    each = c->whole / c->model->kv_heads; /* elements of a head */
    mine = c->model->kv_heads >= c->chips ? c->rank * (c->model->kv_heads / c->chips)
                                          : c->rank * c->model->kv_heads / c->chips;
    return mine * each + i;
  case RF_FORM_EACH:
    each = c->each;
    mine = each / c->chips;
    return i / mine * each + c->rank * mine + i % mine;
  default: return at < c->whole ? at : -1;
  }
}

static bool has_experts(const where *w) {
  return w->tensor->param >= 0 && w->graph->params.at[w->tensor->param].experts > 0;
}

/* An adapter changes only some of the heads of a fused row. */
static int64_t queries_of(const where *w) {
  const rf_model *model = &w->graph->model;
  const rf_param *param = w->tensor->param < 0 ? NULL : &w->graph->params.at[w->tensor->param];
  int64_t all = model->heads * model->head_dim, own = 0;
  if (!param || param->adapts < 0) return all;
  rf_lora_parts parts = rf_lora_parts_of(model, &w->graph->params.at[param->adapts]);
  for (int i = 0; i < parts.count; i++)
    if (parts.at[i] < all) own = all;
  return own;
}

static bool passes(const where *w) { return w->graph->job == RF_JOB_GENERATE; }

/* Number of copies of the model. The whole tensor holds the rows (or pages) of all copies. */
static int64_t copies_of(const where *w) {
  rf_class class = w->tensor->class;
  bool of_copy = class == RF_CLASS_IO || class == RF_CLASS_LOGITS || class == RF_CLASS_KV;
  if (!passes(w) || !of_copy) return 1;
  return w->all[0] > w->mine[0] * rf_mesh_size(&w->graph->mesh, w->tensor->spec.split[0])
             ? rf_mesh_copies(&w->graph->mesh)
             : 1;
}

/* The mesh axes before the axis context choose a range of rows. The axis context distributes the
 * rows of this range, and the axes after it divide the result into ranges. */
static int64_t of_strided_rows(const where *w, rf_axes axes, int64_t i) {
  const rf_mesh *mesh = &w->graph->mesh;
  rf_axes outer = axes & (RF_AXIS_BIT(RF_AXIS_CONTEXT) - 1), strided = axes & RF_AXIS_BIT(RF_AXIS_CONTEXT),
          inner = axes & (rf_axes) ~(outer | strided);
  int64_t chips = rf_mesh_size(mesh, strided), run = rf_mesh_rank(mesh, inner, w->place) * w->mine[0] + i;
  return rf_mesh_rank(mesh, outer, w->place) * (w->all[0] / rf_mesh_size(mesh, outer)) + run * chips +
         rf_mesh_rank(mesh, strided, w->place);
}

/* Chips along the axis sequence divide the heads of their tensor group into ranges. */
static int64_t rank_of(const where *w, rf_axes axes) {
  const rf_mesh *mesh = &w->graph->mesh;
  if (w->tensor->class != RF_CLASS_KV) return rf_mesh_rank(mesh, axes, w->place);
  rf_axes outer = axes & RF_AXIS_BIT(RF_AXIS_TENSOR), inner = axes & (rf_axes)~outer;
  return rf_mesh_rank(mesh, outer, w->place) * rf_mesh_size(mesh, inner) +
         rf_mesh_rank(mesh, inner, w->place);
}

/* Index along dimension d of the whole tensor. -1: the element is padding. */
static int64_t in_dim(const where *w, int d, int64_t i) {
  const rf_mesh *mesh = &w->graph->mesh;
  const rf_axes of_copies =
      (rf_axes) ~(RF_AXES_OF_PASS | RF_AXIS_BIT(RF_AXIS_TENSOR) | RF_AXIS_BIT(RF_AXIS_PIPELINE));
  rf_axes axes = d < w->tensor->rank ? w->tensor->spec.split[d] : 0;
  if (axes & RF_AXIS_BIT(RF_AXIS_CONTEXT) && d == 0 && w->tensor->param < 0 && !passes(w))
    return of_strided_rows(w, axes, i);
  int64_t block = 0, all = w->all[d], copies = d == 0 ? copies_of(w) : 1;
  if (copies > 1) {
    all /= copies;
    block = rf_mesh_rank(mesh, of_copies, w->place) * all;
  }
  /* a range of the experts, and a range of the rows of each expert */
  if (axes & RF_AXIS_BIT(RF_AXIS_EXPERT) && has_experts(w)) {
    rf_axes experts = RF_AXIS_BIT(RF_AXIS_EXPERT);
    all /= rf_mesh_size(mesh, experts);
    block = rf_mesh_rank(mesh, experts, w->place) * all;
    axes &= (rf_axes)~experts;
  }
  int64_t each =
      w->graph->model.experts && d < w->whole->rank ? w->whole->shape[d] / w->graph->model.experts : 0;
  cut c = {rank_of(w, axes), rf_mesh_size(mesh, axes),         w->mine[d],      all, each,
           queries_of(w),    (rf_form)w->tensor->spec.form[d], &w->graph->model};
  int64_t at = c.chips > 1 ? of_dim(&c, i) : i;
  return at < 0 ? -1 : block + at;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Changes the page and row in a chip's cache to the page and row in the whole cache. Each slot has
 * consecutive pages. Along the context axis, each chip has every n-th position of a page. */
static bool cached_at(const where *w, int64_t slots, int64_t index[RF_MAX_RANK]) {
  int64_t chips = rf_mesh_extent(&w->graph->mesh, RF_AXIS_CONTEXT);
  int64_t most = w->mine[0] / slots, whole = w->all[0] / rf_mesh_copies(&w->graph->mesh) / slots;
  int64_t position = (index[0] % most * w->mine[2] + index[2]) * chips + w->place[RF_AXIS_CONTEXT];
  index[0] = index[0] / most * whole + position / w->all[2];
  index[2] = position % w->all[2];
  return position < whole * w->all[2];
}

/* Lists the indices in the whole tensor of every index along each dimension. */
static void list_dims(const where *w, rf_pool *pool, int64_t *list[RF_MAX_RANK]) {
  for (int d = 0; d < RF_MAX_RANK; d++) {
    list[d] = rf_pool_raw(pool, ((size_t)w->mine[d] + 1) * sizeof **list);
    for (int64_t i = 0; i < w->mine[d]; i++) list[d][i] = in_dim(w, d, i);
  }
}

void rf_place_indices(const rf_graph *graph, int64_t chip, int tensor, const rf_tensor *whole, rf_pool *pool,
                      int64_t *at) {
  where w = where_of(graph, chip, tensor, whole);
  bool caches = passes(&w) && w.tensor->class == RF_CLASS_KV;
  int64_t slots = caches ? graph->tensor[rf_graph_find(graph, "rows")].shape[0] : 0;
  int64_t count = rf_tensor_count(w.tensor), *list[RF_MAX_RANK];
  if (!caches) list_dims(&w, pool, list);
  for (int64_t i = 0; i < count; i++) {
    int64_t index[RF_MAX_RANK], left = i;
    for (int d = RF_MAX_RANK - 1; d >= 0; d--) {
      index[d] = left % w.mine[d];
      left /= w.mine[d];
    }
    at[i] = caches && !cached_at(&w, slots, index) ? -1 : 0;
    for (int d = 0; d < RF_MAX_RANK && at[i] >= 0; d++) {
      int64_t in_whole = caches ? in_dim(&w, d, index[d]) : list[d][index[d]];
      at[i] = in_whole < 0 ? -1 : at[i] * w.all[d] + in_whole;
    }
  }
}

/* ---- runs ------------------------------------------------------------------------------------ */

static int by_whole(const void *a, const void *b) {
  const rf_place_run *x = a, *y = b;
  return (x->whole > y->whole) - (x->whole < y->whole);
}

/* Visits the indices along dimension d twice. The first visit counts the runs, and the second lists
 * them. */
static int list_runs(const where *w, int d, rf_place_run *run) {
  int count = 0;
  int64_t next = -1;
  for (int64_t i = 0; i < w->mine[d]; i++) {
    int64_t at = in_dim(w, d, i);
    if (at >= 0 && at != next) {
      if (run) run[count] = (rf_place_run){i, at, 0};
      count++;
    }
    if (at >= 0 && run) run[count - 1].count++;
    next = at < 0 ? -1 : at + 1;
  }
  return count;
}

rf_place_part rf_place_part_of(const rf_graph *graph, int64_t chip, int tensor, const rf_tensor *whole,
                               rf_pool *pool) {
  where w = where_of(graph, chip, tensor, whole);
  rf_place_part part = {.rank = whole->rank > 0 ? whole->rank : 1};
  memcpy(part.mine, w.mine, sizeof part.mine);
  memcpy(part.whole, w.all, sizeof part.whole);
  for (int d = 0; d < part.rank; d++) {
    part.runs[d] = list_runs(&w, d, NULL);
    part.run[d] = rf_pool_alloc(pool, ((size_t)part.runs[d] + 1) * sizeof(rf_place_run));
    list_runs(&w, d, part.run[d]);
    qsort(part.run[d], (size_t)part.runs[d], sizeof(rf_place_run), by_whole);
  }
  return part;
}

bool rf_place_same(const rf_place_part *a, const rf_place_part *b) {
  if (a->rank != b->rank) return false;
  for (int d = 0; d < a->rank; d++)
    if (a->mine[d] != b->mine[d] || a->runs[d] != b->runs[d] ||
        memcmp(a->run[d], b->run[d], (size_t)a->runs[d] * sizeof(rf_place_run)) != 0)
      return false;
  return true;
}

typedef struct search {
  const rf_place_part *part;
  int64_t first, end;                            /* number of elements of the whole tensor */
  int64_t mine[RF_MAX_RANK], whole[RF_MAX_RANK]; /* number of elements that one index along a dimension has */
  int last; /* true if the part has all elements of the later dimensions, in the same order */
  rf_place_visit visit;
  void *context;
  rf_error *error;
} search;

static rf_status visit_run(const search *s, int64_t mine, int64_t whole, int64_t count) {
  int64_t from = whole > s->first ? whole : s->first, end = whole + count < s->end ? whole + count : s->end;
  return from < end ? s->visit(s->context, mine + from - whole, from, end - from, s->error) : RAFTER_OK;
}

/* Visits dimension d of the part. The indices say where the visit begins. */
static rf_status visit_dim(const search *s, int d, int64_t mine, int64_t whole) {
  int64_t each = s->whole[d];
  for (int k = 0; k < s->part->runs[d]; k++) {
    rf_place_run r = s->part->run[d][k];
    int64_t low = whole + r.whole * each, high = low + r.count * each;
    if (high <= s->first || low >= s->end) continue;
    if (d == s->last || d == RF_MAX_RANK - 1) {
      RF_TRY(visit_run(s, mine + r.mine * s->mine[d], low, r.count * each));
      continue;
    }
    int64_t i = s->first > low ? (s->first - low) / each : 0;
    for (; i < r.count && low + i * each < s->end; i++)
      RF_TRY(visit_dim(s, d + 1, mine + (r.mine + i) * s->mine[d], low + i * each));
  }
  return RAFTER_OK;
}

static bool is_full(const rf_place_part *part, int d) {
  return part->runs[d] == 1 && part->mine[d] == part->whole[d] && part->run[d][0].count == part->mine[d];
}

rf_status rf_place_pieces(const rf_place_part *part, int64_t first, int64_t count, rf_place_visit visit,
                          void *context, rf_error *error) {
  search s = {.part = part,
              .first = first,
              .end = first + count,
              .last = part->rank - 1,
              .visit = visit,
              .context = context,
              .error = error};
  for (int64_t d = part->rank - 1, mine = 1, whole = 1; d >= 0; d--) {
    s.mine[d] = mine;
    s.whole[d] = whole;
    mine *= part->mine[d];
    whole *= part->whole[d];
  }
  while (s.last > 0 && is_full(part, s.last)) s.last--;
  return visit_dim(&s, 0, 0, 0);
}
