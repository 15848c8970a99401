/* calibrate_products.c - measures products for several numbers of rows: products with packed
 * matrices of every storage type, exact and with int8 activations, and products with plain
 * matrices. Successive calls use different copies of the matrix. The copies together exceed the
 * caches. So weights are read from memory, as in a model. All products are measured in rounds, and
 * the mean of the rounds counts. */
#include "run/calibrate_parts.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INNER = 2048, OUTPUTS = 4096, STORED = 16, MAX_ROWS = 512, PASSES = 2, MAX_EACH = 12 };
enum { SHORT = INNER / 4, NARROW = OUTPUTS / 8 };
/* Numbers of rows to measure. From 9 rows on, another kernel runs, and from 17 rows on, a third
 * kernel. */
static const struct {
  int rows;
  bool quick;
} ROWS[] = {{1, true},  {2, false},  {4, true},   {8, true},   {9, false},  {12, false},
            {16, true}, {17, false}, {32, false}, {64, false}, {128, true}, {MAX_ROWS, false}};

enum { ROW_COUNT = sizeof ROWS / sizeof *ROWS };

typedef struct ring {
  const rf_calibrate_options *options;
  rf_machine *machine;
  rf_model model;
  void *at;
  size_t bytes;                  /* Bytes of all copies of the matrix. */
  int64_t each, count, next;     /* bytes of one copy; number of copies; index of the next copy */
  unsigned char *stored, *x, *y; /* stored: the matrix, as rows in a file; x: activations; y: result */
  int32_t labels[MAX_ROWS];
  rf_calibrate_room room;
  int64_t row_bytes;
} ring;

static const void *stored_row(void *self, int64_t output, const rf_quant_type *type) {
  const ring *r = self;
  (void)type;
  return r->stored + output % STORED * r->row_bytes;
}

static rf_status fill(ring *r, const rf_panels *panels, rf_error *error) {
  const rf_quant_type *type = panels->part[0].type;
  float values[INNER];
  r->row_bytes = type->head + panels->inner / type->values * type->bytes;
  for (int i = 0; i < STORED; i++) {
    for (int k = 0; k < panels->inner; k++)
      values[k] = (float)((uint32_t)(i * INNER + k) * 2654435761u >> 16 & 1023) / 1024 - 0.5f;
    type->quantize(values, panels->inner / type->values, r->stored + i * r->row_bytes);
  }
  r->each = rf_panels_bytes(panels);
  r->count = (int64_t)r->bytes / r->each;
  r->next = 0;
  rf_panel_source source = {.self = r, .stored = stored_row};
  RF_TRY(rf_panels_fill(panels, &source, r->at, error));
  for (int64_t i = 1; i < r->count; i++) memcpy((char *)r->at + i * r->each, r->at, (size_t)r->each);
  return RAFTER_OK;
}

static bool is_transposed(rf_cost_products how) {
  return how == RF_PRODUCTS_TURNED || how == RF_PRODUCTS_TURNED_BF16 || how == RF_PRODUCTS_TURNED_HEAD;
}
static bool is_bf16(rf_cost_products how) {
  return how == RF_PRODUCTS_BF16 || how == RF_PRODUCTS_TURNED_BF16 || how == RF_PRODUCTS_TURNED_HEAD;
}
static bool is_plain(rf_cost_products how) { return how == RF_PRODUCTS_ROWS || how == RF_PRODUCTS_COLUMNS; }

/* A product to measure. */
typedef struct product {
  const rf_panels *panels; /* sizes and storage type of the matrix */
  rf_cost_products how;
  bool no_gradient; /* for RF_PRODUCTS_TURNED_HEAD: true if the op is measured without its product */
} product;

/* The backward op of a head, which computes the logits, their gradient and the product. */
static int build_head(rf_graph *graph, const product *p, int64_t rows, int w, rf_error *error) {
  int64_t x[] = {rows, p->panels->inner};
  int inputs[] = {rf_graph_tensor(graph, "x", RF_CLASS_ACTIVATION, RF_BF16, 2, x), w, RF_NONE,
                  rf_graph_tensor(graph, "labels", RF_CLASS_IO, RF_I32, 1, x),
                  rf_graph_tensor(graph, "lse", RF_CLASS_ACTIVATION, RF_F32, 1, x)};
  return rf_graph_emit(graph, &RF_OP_HEAD_LOSS_BWD, "product", RF_SECTION_MICRO, (rf_slots){inputs, 5},
                       RF_IDS(p->no_gradient ? RF_NONE : RF_WANTED), NULL, error);
}

static rf_status build(const ring *r, const product *p, int64_t rows, rf_graph **out, rf_error *error) {
  rf_graph *graph = rf_graph_new(&r->model);
  const rf_panels *panels = p->panels;
  bool turned = is_transposed(p->how), columns = p->how == RF_PRODUCTS_COLUMNS,
       half = is_bf16(p->how) || (is_plain(p->how) && panels->part[0].type->number == RF_Q_BF16);
  int64_t outputs = panels->part[0].outputs, x[] = {rows, turned ? outputs : panels->inner},
          w[] = {columns ? outputs : panels->inner, columns ? panels->inner : outputs};
  rf_dtype dtype = half ? RF_BF16 : RF_F32;
  int inputs[] = {rf_graph_tensor(graph, "x", RF_CLASS_ACTIVATION, dtype, 2, x),
                  rf_graph_tensor(graph, "w", RF_CLASS_WEIGHT, is_plain(p->how) ? dtype : RF_PACKED, 2, w)};
  rf_attr attr = {.matmul = {.fast = p->how == RF_PRODUCTS_FAST, .transpose = columns}};
  graph->rows = rows;
  graph->tensor[inputs[1]].panels = *panels;
  int made = p->how == RF_PRODUCTS_TURNED_HEAD
                 ? build_head(graph, p, rows, inputs[1], error)
                 : rf_graph_emit(graph, turned ? &RF_OP_MATMUL_DX : &RF_OP_MATMUL, "product",
                                 RF_SECTION_MICRO, (rf_slots){inputs, 2}, RF_IDS(RF_WANTED), &attr, error);
  if (made < 0) {
    rf_graph_free(graph);
    return RAFTER_INVALID;
  }
  *out = graph;
  return RAFTER_OK;
}

/* Seconds of calls. The measurement has several passes, so that a disturbance affects few
 * samples. */
typedef struct samples {
  double seconds[PASSES * MAX_EACH];
  int count;
} samples;

static rf_status measure(ring *r, const rf_graph *graph, samples *s, rf_error *error) {
  const rf_kernel *kernel;
  rf_call call;
  rf_run_inputs inputs = {.rows = graph->rows};
  RF_TRY(rf_calibrate_kernel(r->options, graph, &r->room, "products", &kernel, &call, error));
  call.in[0] = r->x;
  if (graph->op[0].input[3] >= 0) { /* inputs of a head: any numbers can be the sums of the logits */
    call.in[3] = r->labels;
    call.in[4] = r->x;
  }
  call.out[0] = graph->op[0].output[0] >= 0 ? r->y : NULL;
  call.run = &inputs;
  RF_TRY(rf_calibrate_goes_on(r->options, error));
  double start = rf_now_seconds(), budget = r->options->quick ? 0.002 : 0.005;
  double work = 2.0 * (double)graph->rows * (double)rf_tensor_count(&graph->tensor[graph->op[0].input[1]]);
  /* The first call wakes threads and fills caches. In a long call, this time is too short to matter. */
  bool warm = s->count > 0 || (r->options->quick && work > budget * r->machine->flops[RF_F32]);
  for (int i = warm ? 0 : -1; i < 1 || (i < MAX_EACH && rf_now_seconds() - start < budget); i++) {
    call.in[1] = (const char *)r->at + r->next * r->each;
    r->next = (r->next + 1) % r->count;
    double before = rf_now_seconds();
    kernel->run(&call);
    if (i >= 0) s->seconds[s->count++] = rf_now_seconds() - before;
  }
  return RAFTER_OK;
}

/* Products with f32 and with bf16 matrices, in the order of `measured.plain`. */
static const int64_t PLAIN[] = {RF_Q_F32, RF_Q_BF16};
enum { PLAIN_COUNT = sizeof PLAIN / sizeof *PLAIN, EDGE_SHAPES = 3, MAX_TYPES = 64 };

/* The mean seconds of each product over the rounds. 0: not measured. */
typedef double times[ROW_COUNT];
typedef struct measured {
  times start[RF_COST_PRODUCTS]; /* only for one row: the product with a small matrix */
  times edge[RF_COST_PRODUCTS][EDGE_SHAPES];
  times type[MAX_TYPES][RF_COST_PRODUCTS]; /* in the order of RF_QUANT_TYPES */
  times rest[MAX_TYPES];                   /* RF_PRODUCTS_TURNED_HEAD without its product */
  times plain[PLAIN_COUNT][RF_COST_PRODUCTS];
} measured;

/* True if ROWS[row] is measured. Products for gradients always have many rows. */
static bool is_measured(int row, bool quick, rf_cost_products how) {
  return (ROWS[row].quick || !quick) && (!is_transposed(how) || ROWS[row].rows >= 128);
}

/* Measures products with the ring's matrices, for the first `most` entries of ROWS, and adds
 * this round's share of the mean seconds. With `quick`, measures fewer entries. */
static rf_status measure_products(ring *r, const product *p, bool quick, int most, times seconds,
                                  rf_error *error) {
  samples of[ROW_COUNT] = {{.count = 0}};
  for (int pass = 0; pass < PASSES; pass++)
    for (int i = 0; i < most; i++) {
      rf_graph *graph = NULL;
      if (!is_measured(i, quick || r->options->quick, p->how)) continue;
      RF_TRY(build(r, p, ROWS[i].rows, &graph, error));
      rf_status status = measure(r, graph, &of[i], error);
      rf_graph_free(graph);
      RF_TRY(status);
    }
  for (int i = 0; i < most; i++) {
    if (!of[i].count) continue;
    double median = rf_ceiling_of(of[i].seconds, of[i].count).median - r->machine->launch_seconds;
    seconds[i] += fmax(median, 1e-9) / rf_calibrate_rounds(r->options);
  }
  return RAFTER_OK;
}

/* Measures the product of a small matrix, which fits in the caches and has one panel for each
 * thread, and the products of three sizes K x N. */
static rf_status measure_edges(ring *r, rf_cost_products how, measured *m, rf_error *error) {
  const rf_quant_type *type = rf_quant_type_of(how == RF_PRODUCTS_BF16 ? RF_Q_BF16 : RF_Q_Q8_0);
  int64_t lanes = (int64_t)RF_PANEL_LANES * r->options->threads;
  const rf_panels shapes[EDGE_SHAPES] = {{.inner = INNER, .parts = 1, .part = {{type, OUTPUTS}}},
                                         {.inner = SHORT, .parts = 1, .part = {{type, OUTPUTS}}},
                                         {.inner = INNER, .parts = 1, .part = {{type, NARROW}}}};
  const rf_panels small = {.inner = 256, .parts = 1, .part = {{type, lanes}}};
  RF_TRY(fill(r, &small, error));
  r->count = 1;
  RF_TRY(measure_products(r, &(product){&small, how, false}, false, 1, m->start[how], error));
  for (int s = 0; s < EDGE_SHAPES; s++) {
    RF_TRY(fill(r, &shapes[s], error));
    RF_TRY(measure_products(r, &(product){&shapes[s], how, false}, false, ROW_COUNT, m->edge[how][s], error));
  }
  return RAFTER_OK;
}

/* Measures one storage type, for all kinds of products that the type supports. */
static rf_status measure_type(ring *r, int t, measured *m, rf_error *error) {
  const rf_quant_type *type = &RF_QUANT_TYPES[t];
  rf_panels panels = {.inner = INNER, .parts = 1, .part = {{type, OUTPUTS}}};
  /* Weights without integer codes are decoded one at a time, for any number of rows. */
  bool codes = rf_panels_have_codes(&panels), slow = type->values > 1 && !codes;
  RF_TRY(fill(r, &panels, error));
  for (rf_cost_products how = 0; how < RF_COST_PRODUCTS; how++) {
    if ((how == RF_PRODUCTS_FAST && !codes) || (is_bf16(how) && type->number != RF_Q_BF16) || is_plain(how))
      continue;
    RF_TRY(measure_products(r, &(product){&panels, how, false}, slow, ROW_COUNT, m->type[t][how], error));
    if (how == RF_PRODUCTS_TURNED_HEAD)
      RF_TRY(measure_products(r, &(product){&panels, how, true}, slow, ROW_COUNT, m->rest[t], error));
  }
  return RAFTER_OK;
}

/* Measures plain matrices of one dtype. Such products are those of generation in a trainer's
 * arena. The ring has valid values of both dtypes. */
static rf_status measure_plain(ring *r, int number, measured *m, rf_error *error) {
  const rf_quant_type *type = rf_quant_type_of(PLAIN[number]);
  const rf_panels sizes = {.inner = INNER, .parts = 1, .part = {{type, OUTPUTS}}};
  r->each = (int64_t)INNER * OUTPUTS * (PLAIN[number] == RF_Q_BF16 ? 2 : 4);
  r->count = (int64_t)r->bytes / r->each;
  r->next = 0;
  for (rf_cost_products how = RF_PRODUCTS_ROWS; how <= RF_PRODUCTS_COLUMNS; how++)
    RF_TRY(
        measure_products(r, &(product){&sizes, how, false}, false, ROW_COUNT, m->plain[number][how], error));
  return RAFTER_OK;
}

/* A curve is measured for a type if it can be read and written. */
static bool has_curves(const rf_quant_type *type) { return rf_panels_take(type) && type->quantize; }

static rf_status measure_round(ring *r, measured *m, int round, int rounds, rf_error *error) {
  const rf_calibrate_options *o = r->options;
  for (rf_cost_products how = 0; how <= RF_PRODUCTS_BF16; how++) RF_TRY(measure_edges(r, how, m, error));
  for (int t = 0; t < RF_QUANT_TYPE_COUNT; t++) {
    if (!has_curves(&RF_QUANT_TYPES[t])) continue;
    double done = RF_CALIBRATE_CEILINGS + RF_CALIBRATE_SHAPES,
           part = (round + (double)t / RF_QUANT_TYPE_COUNT) / rounds;
    if (o->say) o->say(o->self, RF_QUANT_TYPES[t].name, done + (1 - done) * part);
    RF_TRY(measure_type(r, t, m, error));
  }
  rf_calibrate_values(r->at, r->bytes, 0.5f);
  for (int i = 0; i < PLAIN_COUNT; i++) RF_TRY(measure_plain(r, i, m, error));
  return RAFTER_OK;
}

/* Seconds of a product with the INNER x OUTPUTS matrix that are not multiplications. `start`: a
 * constant. `outputs`: seconds to store the sums. `inner`: seconds to pack the rows. */
typedef struct edges {
  double start, outputs[ROW_COUNT], inner[ROW_COUNT];
} edges;

/* Fits `t = c K N + outputs N / OUTPUTS + inner K / INNER` to the times for three sizes K x N, and
 * adds the curves. The product with a small matrix gives the constant. */
static void add_edges(rf_machine *machine, rf_cost_products how, const measured *m, edges *e) {
  const char *kernel = RF_COST_PRODUCT_NAMES[how];
  const times *seconds = m->edge[how];
  e->start = m->start[how][0];
  rf_calibrate_add(machine, "matmul_start", kernel, 1, 1, e->start);
  for (int i = 0; i < ROW_COUNT; i++) {
    if (seconds[0][i] <= 0) continue;
    double all = seconds[0][i] - e->start, of_short = seconds[1][i] - e->start,
           of_narrow = seconds[2][i] - e->start;
    e->outputs[i] = fmin(fmax(all - (all - of_short) * INNER / (INNER - SHORT), 1e-9), 0.4 * seconds[0][i]);
    e->inner[i] =
        fmin(fmax(all - (all - of_narrow) * OUTPUTS / (OUTPUTS - NARROW), 1e-9), 0.4 * seconds[0][i]);
    rf_calibrate_add(machine, "matmul_outputs", kernel, ROWS[i].rows, OUTPUTS, e->outputs[i]);
    rf_calibrate_add(machine, "matmul_inner", kernel, ROWS[i].rows, INNER, e->inner[i]);
  }
}

/* Adds the curve of one kind of product: `seconds` minus `besides`, which are the seconds of work
 * other than multiplications. */
static void add_products(rf_machine *machine, rf_cost_products how, const char *kernel, const times seconds,
                         const times besides) {
  for (int i = 0; i < ROW_COUNT; i++)
    if (seconds[i] > 0)
      rf_calibrate_add(machine, RF_COST_PRODUCT_NAMES[how], kernel, ROWS[i].rows,
                       2.0 * ROWS[i].rows * INNER * OUTPUTS, fmax(seconds[i] - besides[i], 0.1 * seconds[i]));
}

static void add_curves(rf_machine *machine, const measured *m) {
  edges edge[RF_COST_PRODUCTS] = {{0}}; /* zero for transposed products */
  for (rf_cost_products how = 0; how <= RF_PRODUCTS_BF16; how++) add_edges(machine, how, m, &edge[how]);
  for (int t = 0; t < RF_QUANT_TYPE_COUNT; t++)
    for (rf_cost_products how = 0; how < RF_COST_PRODUCTS; how++) {
      times besides;
      for (int i = 0; i < ROW_COUNT; i++) {
        besides[i] = edge[how].start + edge[how].outputs[i] + edge[how].inner[i];
        if (how == RF_PRODUCTS_TURNED_HEAD) besides[i] += m->rest[t][i];
      }
      add_products(machine, how, RF_QUANT_TYPES[t].name, m->type[t][how], besides);
    }
  for (int number = 0; number < PLAIN_COUNT; number++) {
    bool half = PLAIN[number] == RF_Q_BF16;
    times besides;
    for (int i = 0; i < ROW_COUNT; i++) besides[i] = edge[half ? RF_PRODUCTS_BF16 : RF_PRODUCTS_EXACT].start;
    for (rf_cost_products how = RF_PRODUCTS_ROWS; how <= RF_PRODUCTS_COLUMNS; how++)
      add_products(machine, how, rf_dtype_name(half ? RF_BF16 : RF_F32), m->plain[number][how], besides);
  }
}

rf_status rf_calibrate_products(const rf_calibrate_options *o, rf_machine *machine, rf_error *error) {
  ring r = {.options = o, .machine = machine, .bytes = rf_bandwidth_buffer_bytes() / (o->quick ? 8 : 2)};
  rf_status status = RAFTER_OK;
  int rounds = rf_calibrate_rounds(o);
  assert(RF_QUANT_TYPE_COUNT <= MAX_TYPES);
  measured *m = calloc(1, sizeof *m);
  RF_GO(rf_calibrate_model(&r.model, error));
  RF_GO(rf_pages_map(r.bytes, &r.at, NULL, error));
  r.stored = malloc((size_t)STORED * INNER * 4);
  r.x = aligned_alloc(64, (size_t)MAX_ROWS * OUTPUTS * 4);
  r.y = aligned_alloc(64, (size_t)MAX_ROWS * OUTPUTS * 4);
  if (!m || !r.stored || !r.x || !r.y)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while measuring products"));
  rf_calibrate_values(r.x, (size_t)MAX_ROWS * OUTPUTS * 4, 0.5f);
  memset(r.y, 0, (size_t)MAX_ROWS * OUTPUTS * 4);
  for (int i = 0; i < rounds; i++) RF_GO(measure_round(&r, m, i, rounds, error));
  add_curves(machine, m);
done:
  free(m);
  free(r.stored);
  free(r.x);
  free(r.y);
  free(r.room.at);
  if (r.at) rf_pages_unmap(r.at, r.bytes);
  return status;
}
