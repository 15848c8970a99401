/* adapters.c - see adapters.h. */
#include "generate/adapters.h"

#include "generate/batch.h"
#include "model/adapter.h"

#include <stdlib.h>
#include <string.h>

/* Slots for one adapted weight: the ids of the tensors that hold A, B and the ranks, and the sizes
 * of one slot. */
typedef struct layer {
  int param, a, b, ranks;
  rf_lora_parts parts;
  int64_t inner, joined;        /* K, S */
  int64_t a_at, b_at, ranks_at; /* first indices of this layer in the arrays of an rf_adapter_values */
} layer;

typedef struct slot {
  int64_t id;   /* id of the adapter; 0: the slot is free */
  bool leaving; /* true after unloading; the slot is free when no request uses the adapter */
} slot;

struct rf_adapters {
  int slots, layers;
  slot *slot;                     /* (slots) */
  layer *layer;                   /* (layers) */
  int64_t values, ranks, next_id; /* sizes of the arrays of an rf_adapter_values */
};

struct rf_adapter_values {
  const rf_generator *of; /* generator whose slots have this layout */
  float *value;           /* (values): A and B of each layer */
  int32_t *ranks; /* (ranks): rank of each part of each layer; 0: the adapter does not adapt this part */
};

/* ---- slots ----------------------------------------------------------------------------------- */

static int64_t a_count(const layer *l) { return l->inner * l->parts.count * l->parts.rank; }
static int64_t b_count(const layer *l) { return l->joined * l->parts.rank; }

static void add_layer(struct rf_adapters *s, const rf_graph *graph, const rf_model *slots, int param) {
  const rf_param *of = &graph->params.at[param];
  layer *l = &s->layer[s->layers];
  char name[3][160];
  static const char *const leaf[] = {"slots_a", "slots_b", "slots_ranks"};
  *l = (layer){.param = param, .parts = rf_lora_parts_of(slots, of), .inner = of->shape[0]};
  if (!l->parts.count) return;
  for (int i = 0; i < 3; i++)
    snprintf(name[i], sizeof name[i], "%.*s%s", (int)(strlen(of->name) - strlen("weight")), of->name,
             leaf[i]);
  l->a = rf_graph_find(graph, name[0]);
  l->b = rf_graph_find(graph, name[1]);
  l->ranks = rf_graph_find(graph, name[2]);
  l->joined = rf_lora_joined(&l->parts, l->parts.count);
  l->a_at = s->values;
  l->b_at = s->values + a_count(l);
  l->ranks_at = s->ranks;
  s->values = l->b_at + b_count(l);
  s->ranks += l->parts.count;
  s->layers++;
}

rf_status rf_adapters_open(rf_generator *g, rf_error *error) {
  const rf_graph *graph = g->prefill->graph;
  const rf_build_options *build = &g->prefill->options.build;
  rf_model slots = graph->model;
  if (build->adapter_slots < 1) return RAFTER_OK;
  RF_TRY(rf_lora_all(&graph->model, build->adapter_rank, &slots.lora, error));
  struct rf_adapters *s = g->adapters = calloc(1, sizeof *s);
  if (!s) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  s->slots = build->adapter_slots;
  s->slot = calloc((size_t)s->slots, sizeof *s->slot);
  s->layer = calloc((size_t)graph->params.base + 1, sizeof *s->layer);
  if (!s->slot || !s->layer)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  for (int p = 0; p < graph->params.base; p++) add_layer(s, graph, &slots, p);
  return RAFTER_OK;
}

void rf_adapters_close(rf_generator *g) {
  if (!g->adapters) return;
  free(g->adapters->slot);
  free(g->adapters->layer);
  free(g->adapters);
}

int rf_adapters_slot(const rf_generator *g, int64_t id) {
  for (int i = 0; id && g->adapters && i < g->adapters->slots; i++)
    if (g->adapters->slot[i].id == id) return i;
  return -1;
}

int rf_generator_adapters(const rf_generator *g, int *slots) {
  int loaded = 0;
  *slots = g->adapters ? g->adapters->slots : 0;
  for (int i = 0; i < *slots; i++) loaded += g->adapters->slot[i].id && !g->adapters->slot[i].leaving;
  return loaded;
}

rf_status rf_adapters_check(const rf_generator *g, int64_t id, rf_error *error) {
  int at = rf_adapters_slot(g, id);
  if (!id || (at >= 0 && !g->adapters->slot[at].leaving)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "load the adapter, and use the id that it gets",
                 "a request names an adapter that is not loaded (id %lld)", (long long)id);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reader {
  const rf_generator *g;
  const rf_model *model;   /* with the adapter */
  const rf_params *params; /* of this model */
  rf_adapter_values *to;
} reader;

static const layer *layer_of(const struct rf_adapters *s, int param) {
  for (int i = 0; i < s->layers; i++)
    if (s->layer[i].param == param) return &s->layer[i];
  return NULL;
}

/* Returns the part of an adapter that contains all columns of part `q` of the slots. Returns -1 if
 * no part contains all these columns. An adapter may treat a layer such as attn/qkv as one part,
 * and the slots as several parts. */
static int part_with(const rf_lora_parts *adapter, const rf_lora_parts *slots, int q) {
  int64_t first = slots->at[q], end = first + slots->columns[q];
  for (int i = 0; i < adapter->count; i++)
    if (adapter->at[i] <= first && (int64_t)adapter->at[i] + adapter->columns[i] >= end) return i;
  return -1;
}

/* Copies the columns of A that belong to part q of the slots. A has the shape (K, P r). */
static void copy_a(const layer *l, int q, const rf_lora_parts *from, int part, const float *values,
                   float *to) {
  int64_t wide = (int64_t)from->count * from->rank, ranks = (int64_t)l->parts.count * l->parts.rank;
  for (int64_t k = 0; k < l->inner; k++)
    memcpy(to + k * ranks + (int64_t)q * l->parts.rank, values + k * wide + (int64_t)part * from->rank,
           (size_t)from->rank * sizeof *to);
}

/* Copies the columns of B that belong to part q of the slots, multiplied by the scale. B has the
 * shape (r, S). The kernels of a plan with one adapter round these products in the same way. */
static void copy_b(const layer *l, int q, const rf_lora_parts *from, int part, float scale,
                   const float *values, float *to) {
  int64_t wide = rf_lora_joined(from, from->count),
          at = rf_lora_joined(from, part) + l->parts.at[q] - from->at[part],
          first = rf_lora_joined(&l->parts, q);
  for (int64_t j = 0; j < from->rank; j++)
    for (int64_t c = 0; c < l->parts.columns[q]; c++)
      to[j * l->joined + first + c] = scale * values[j * wide + at + c];
}

static rf_status take_param(void *self, int param, int64_t first, int64_t count, const float *values,
                            rf_error *error) {
  const reader *r = self;
  int base = r->params->at[param].adapts, side = (param - r->params->base) % 2;
  const layer *l = layer_of(r->g->adapters, base);
  const rf_lora_parts from = rf_lora_parts_of(r->model, &r->params->at[base]);
  int64_t found = 0;
  (void)first;
  (void)count;
  for (int q = 0; l && q < l->parts.count; q++) {
    int part = part_with(&from, &l->parts, q);
    if (part < 0) continue;
    found += l->parts.columns[q];
    r->to->ranks[l->ranks_at + q] = from.rank;
    if (side) copy_b(l, q, &from, part, rf_lora_scale(&r->model->lora), values, r->to->value + l->b_at);
    else copy_a(l, q, &from, part, values, r->to->value + l->a_at);
  }
  return found == rf_lora_joined(&from, from.count)
             ? RAFTER_OK
             : RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the slots have no place for an adapter of %s",
                       r->model->lora.folder, r->params->at[base].name);
}

static rf_status check_rank(const rf_generator *g, const rf_lora *lora, rf_error *error) {
  int most = g->prefill->options.build.adapter_rank;
  return lora->rank <= most
             ? RAFTER_OK
             : RF_FAIL(error, RAFTER_FAILED, "raise --adapter-rank when the model is opened",
                       "%s: the adapter's rank is too large for the slots (expected at most %d, got %d)",
                       lora->folder, most, lora->rank);
}

rf_status rf_adapter_values_read(const rf_generator *g, const char *folder, rf_adapter_values **out,
                                 rf_error *error) {
  if (!g->adapters)
    return RF_FAIL(error, RAFTER_INVALID, "give --adapter-slots N when the model is opened",
                   "the generator has no slots for adapters");
  rf_status status = RAFTER_OK;
  rf_pool *pool = rf_pool_new();
  rf_model *model = rf_pool_alloc(pool, sizeof *model);
  rf_adapter_values *v = calloc(1, sizeof *v);
  *model = g->prefill->graph->model;
  RF_GO(rf_adapter_open(folder, &g->prefill->graph->model, &model->lora, error));
  RF_GO(check_rank(g, &model->lora, error));
  rf_params params = rf_model_params(model, pool);
  reader r = {g, model, &params, v};
  if (v) {
    v->of = g;
    v->value = calloc((size_t)g->adapters->values, sizeof *v->value);
    v->ranks = calloc((size_t)g->adapters->ranks, sizeof *v->ranks);
  }
  if (!v || !v->value || !v->ranks)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading the adapter %s", folder));
  status = rf_adapter_read(model->lora.folder, model, &params, take_param, &r, error);
done:
  rf_pool_free(pool);
  if (status == RAFTER_OK) *out = v;
  else rf_adapter_values_free(v);
  return status;
}

void rf_adapter_values_free(rf_adapter_values *v) {
  if (!v) return;
  free(v->value);
  free(v->ranks);
  free(v);
}

/* ---- loading --------------------------------------------------------------------------------- */

static bool is_used(const rf_generator *g, int64_t id) {
  for (const rf_pending *p = g->batch->first; p; p = p->next)
    if (p->of.adapter == id) return true;
  return false;
}

/* Returns a slot that no request uses; -1: all slots are used. */
static int free_slot(const rf_generator *g) {
  const struct rf_adapters *s = g->adapters;
  for (int i = 0; i < s->slots; i++)
    if (!s->slot[i].id || (s->slot[i].leaving && !is_used(g, s->slot[i].id))) return i;
  return -1;
}

static rf_status no_slot(const struct rf_adapters *s, rf_error *error) {
  int leaving = 0;
  for (int i = 0; i < s->slots; i++) leaving += s->slot[i].leaving;
  if (leaving)
    return RF_FAIL(
        error, RAFTER_NO_FIT, "try again when their requests have finished",
        "all %d slots for adapters are in use, %d of them by requests to adapters that were unloaded",
        s->slots, leaving);
  return RF_FAIL(error, RAFTER_NO_FIT, "unload an adapter, or raise --adapter-slots when the model is opened",
                 "all %d slots for adapters are in use", s->slots);
}

/* Writes the adapter's values for one layer into slot `at`. */
static rf_status write_layer(rf_generator *g, const layer *l, int at, const rf_adapter_values *v,
                             rf_error *error) {
  int64_t a = a_count(l) * 4, b = b_count(l) * 4, ranks = l->parts.count * 4;
  RF_TRY(rf_run_write(g->run, g->first, l->a, at * a, v->value + l->a_at, a, error));
  RF_TRY(rf_run_write(g->run, g->first, l->b, at * b, v->value + l->b_at, b, error));
  return rf_run_write(g->run, g->first, l->ranks, at * ranks, v->ranks + l->ranks_at, ranks, error);
}

rf_status rf_generator_load(rf_generator *g, const rf_adapter_values *v, int64_t *id, rf_error *error) {
  struct rf_adapters *s = g->adapters;
  if (v->of != g)
    return RF_FAIL(error, RAFTER_INVALID, "read the adapter for this generator",
                   "the adapter was read for another generator");
  int at = free_slot(g);
  if (at < 0) return no_slot(s, error);
  RF_TRY(rf_generator_require_numbers(g, error));
  s->slot[at] = (slot){0};
  for (int i = 0; i < s->layers; i++) RF_TRY(write_layer(g, &s->layer[i], at, v, error));
  s->slot[at].id = *id = ++s->next_id;
  return RAFTER_OK;
}

rf_status rf_generator_unload(rf_generator *g, int64_t id, rf_error *error) {
  int at = rf_adapters_slot(g, id);
  if (at < 0 || g->adapters->slot[at].leaving)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "no adapter with this id is loaded (id %lld)", (long long)id);
  g->adapters->slot[at].leaving = true;
  rf_batch_forget_adapter(g, id);
  return RAFTER_OK;
}
