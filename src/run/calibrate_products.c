/* calibrate_products.c - how fast products with packed matrices are: of every storage type, exact and with activations in 8 bits, by the number of rows.
 * Weights come from memory as in a model: call after call takes the next of many equal matrices, which together fit no cache. */
#include "run/calibrate_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INNER = 2048, OUTPUTS = 4096, STORED = 16, ROWS_MOST = 512, SAMPLES_MOST = 48, SAMPLES_LEAST = 3 };
/* Kernels change at 9 and at 17 rows. */
static const struct {
  int rows;
  bool quick;
} ROWS[] = {{1, true},  {2, false},  {4, true},   {8, true},   {9, false},  {12, false},
            {16, true}, {17, false}, {32, false}, {64, false}, {128, true}, {ROWS_MOST, false}};

typedef struct ring {
  void *at;
  size_t bytes;                         /* of all */
  int64_t each, count, next;            /* bytes of a matrix, how many there are, which is the next */
  unsigned char *stored, *x, *y, *room; /* rows as a file has them; operands; a kernel's workspace */
  size_t room_bytes;
  int64_t row_bytes;
} ring;

static const void *stored_row(void *self, int64_t output, const rf_quant_type *type) {
  const ring *r = self;
  (void)type;
  return r->stored + output % STORED * r->row_bytes;
}

static rf_status fill(ring *r, const rf_quant_type *type, const rf_panels *panels, rf_error *error) {
  float values[INNER];
  r->row_bytes = INNER / type->values * type->bytes;
  for (int i = 0; i < STORED; i++) {
    for (int k = 0; k < INNER; k++) values[k] = (float)((uint32_t)(i * INNER + k) * 2654435761u >> 16 & 1023) / 1024 - 0.5f;
    type->quantize(values, INNER / type->values, r->stored + i * r->row_bytes);
  }
  r->each = rf_panels_bytes(panels), r->count = (int64_t)r->bytes / r->each, r->next = 0;
  rf_panel_source source = {.self = r, .stored = stored_row};
  RF_TRY(rf_panels_fill(panels, &source, r->at, error));
  for (int64_t i = 1; i < r->count; i++) memcpy((char *)r->at + i * r->each, r->at, (size_t)r->each);
  return RAFTER_OK;
}

/* A graph of one product. */
static rf_status build(const rf_model *model, const rf_panels *panels, int64_t rows, bool fast, rf_graph **out, rf_error *error) {
  rf_graph *graph = rf_graph_new(model);
  int64_t x[] = {rows, INNER}, w[] = {INNER, OUTPUTS};
  int inputs[] = {rf_graph_tensor(graph, "x", RF_CLASS_ACTIVATION, RF_F32, 2, x), rf_graph_tensor(graph, "w", RF_CLASS_WEIGHT, RF_PACKED, 2, w)};
  rf_attr attr = {.fast = fast};
  graph->rows = rows, graph->tensor[inputs[1]].panels = *panels;
  if (rf_graph_op(graph, "matmul", "product", RF_SECTION_MICRO, inputs, 2, 1, &attr, error) < 0) {
    rf_graph_free(graph);
    return RAFTER_INVALID;
  }
  *out = graph;
  return RAFTER_OK;
}

/* The median of what calls take. */
static rf_status measure(const rf_calibrate_options *o, ring *r, const rf_graph *graph, rf_machine *m, rf_error *error) {
  const rf_op *op = &graph->op[0];
  const rf_kernel *kernel = rf_kernel_choose(&RF_BACKEND_CPU, o->isa, graph, op);
  size_t room = kernel->workspace_bytes ? kernel->workspace_bytes(graph, op, o->threads) : 0;
  if (room > r->room_bytes) {
    free(r->room);
    r->room = aligned_alloc(64, (room + 63) / 64 * 64), r->room_bytes = r->room ? room : 0;
    if (!r->room) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to measure products");
    memset(r->room, 0, room);
  }
  rf_run_inputs inputs = {.rows = graph->rows};
  rf_call call = {.graph = graph, .op = op, .in = {r->x}, .out = {r->y}, .workspace = r->room, .threads = o->threads, .run = &inputs};
  double seconds[SAMPLES_MOST], start = 0, budget = o->quick ? 0.004 : 0.02;
  int count = 0;
  for (int i = -1; i < 1 || (i < SAMPLES_MOST && rf_now_seconds() - start < (i < SAMPLES_LEAST ? 5 * budget : budget)); i++) {
    call.in[1] = (const char *)r->at + r->next * r->each, r->next = (r->next + 1) % r->count;
    double before = rf_now_seconds();
    kernel->run(&call);
    if (i < 0) start = rf_now_seconds(); /* wakes threads, and finds its place in the caches */
    else seconds[count++] = rf_now_seconds() - before;
  }
  rf_work work = op->def->work(graph, op);
  rf_cost_class class[RF_PANEL_PARTS];
  rf_cost_classes(graph, op, work, class);
  rf_curve *curve = rf_calibrate_curve(m, class->name, RF_F32, class->type);
  double median = rf_ceiling_of(seconds, count).median;
  if (!curve || curve->count == RF_CURVE_POINTS || median <= 0) return RAFTER_OK;
  curve->size[curve->count] = class->size, curve->work[curve->count] = rf_cost_work(work);
  curve->seconds[curve->count++] = fmax(median - m->launch_seconds, 0.1 * median);
  return RAFTER_OK;
}

rf_status rf_calibrate_products(const rf_calibrate_options *o, rf_machine *m, rf_error *error) {
  ring r = {.bytes = rf_bandwidth_buffer_bytes() / (o->quick ? 8 : 2)};
  rf_status status = RAFTER_OK;
  rf_model model;
  rf_graph *graph = NULL;
  RF_TRY(rf_model_resolve("gpt:layers=1,width=64,heads=1,ff=64,vocab=64,seq=64", &model, NULL, error));
  RF_TRY(rf_pages_map(r.bytes, &r.at, NULL, error));
  r.stored = malloc((size_t)STORED * INNER * 4);
  r.x = aligned_alloc(64, (size_t)ROWS_MOST * INNER * 4), r.y = aligned_alloc(64, (size_t)ROWS_MOST * OUTPUTS * 4);
  if (!r.stored || !r.x || !r.y) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to measure products"));
  for (int i = 0; i < ROWS_MOST * INNER; i++) ((float *)(void *)r.x)[i] = (float)((uint32_t)i * 2654435761u >> 16 & 1023) / 1024 - 0.5f;
  memset(r.y, 0, (size_t)ROWS_MOST * OUTPUTS * 4);
  for (int t = 0; t < RF_QUANT_TYPE_COUNT; t++) {
    const rf_quant_type *type = &RF_QUANT_TYPES[t];
    rf_panels panels = {.inner = INNER, .parts = 1, .part = {{type, OUTPUTS}}};
    if (!rf_panels_take(type) || !type->quantize) continue;
    bool codes = rf_panels_have_codes(&panels), widened = type->values > 1 && !codes; /* a value at a time, which is slow with any number of rows */
    if (o->say) o->say(o->self, type->name, (double)t / RF_QUANT_TYPE_COUNT);
    RF_GO(fill(&r, type, &panels, error));
    for (int fast = 0; fast <= codes; fast++)
      for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        if ((o->quick || widened) && !ROWS[i].quick) continue;
        RF_GO(build(&model, &panels, ROWS[i].rows, fast, &graph, error));
        RF_GO(measure(o, &r, graph, m, error));
        rf_graph_free(graph), graph = NULL;
      }
  }
done:
  if (graph) rf_graph_free(graph);
  free(r.stored), free(r.x), free(r.y), free(r.room);
  rf_pages_unmap(r.at, r.bytes);
  return status;
}
