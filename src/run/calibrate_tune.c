/* calibrate_tune.c - finds the fastest block sizes of products (`rafter calibrate --tune`). Block
 * sizes decide only where a sum is interrupted. Block sizes do not change the order of a sum's
 * additions. The fields are tuned one after another. Then new rounds compare the result with the
 * default. */
#include "run/calibrate_parts.h"

#include "machine/tuned.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two products from real models for each class of weights. The second product has a transposed
 * weight. */
enum { SHAPES = 2, ROW_CLASSES = 3, WEIGHT_CLASSES = 3 };
static const int64_t ROWS[ROW_CLASSES] = {128, 512, 1024};
static const struct {
  int64_t k, n;
} WEIGHTS[WEIGHT_CLASSES][SHAPES] = {
    {{768, 768}, {512, 1536}}, {{768, 3072}, {3072, 768}}, {{2048, 5632}, {5632, 2048}}};
static const rf_op_def *const OPS[] = {&RF_OP_MATMUL, &RF_OP_MATMUL_DX, &RF_OP_MATMUL_DW};
enum { OP_COUNT = sizeof OPS / sizeof *OPS };

/* The values that the search tries for each field. A 0 ends the list. */
enum { FIELDS = 3, MAX_TRIED = 9 };
static const int64_t TRIED[FIELDS][MAX_TRIED] = {{192, 256, 320, 384, 448, 512, 768, 0},
                                                 {512 << 10, 1 << 20, 1500 << 10, 2 << 20, 0},
                                                 {1024, 2048, 4096, 8192, 0}};
static int64_t *field(rf_blocks *b, int i) { return i == 0 ? &b->kc : i == 1 ? &b->a_bytes : &b->nc; }

/* The gain of a change must be at least 1 %, and at least twice the interquartile range of the
 * gains of all rounds. */
static const double WORTH = 0.01, SPREADS = 2;
enum { CHOOSING = 3, CHOOSING_QUICK = 1, PROVING = 15, PROVING_QUICK = 5, MAX_PROVING = 15 };

/* A graph of one product, its operands, and the number of calls per sample. */
typedef struct product {
  rf_graph *graph;
  const rf_kernel *kernel;
  rf_call call;
  rf_run_inputs inputs;
  int calls;
} product;

typedef struct bench {
  const rf_calibrate_options *options;
  rf_model model;
  void *at[3], *room; /* `at`: operands and result of the graph; `room`: its workspace */
  size_t bytes[3], room_bytes;
  product product[SHAPES];
} bench;

static rf_status build(bench *b, int op, rf_dtype dtype, int64_t rows, int shape, int64_t k, int64_t n,
                       rf_error *error) {
  product *p = &b->product[shape];
  bool transpose = shape == 1;
  int64_t x[] = {rows, k}, y[] = {rows, n}, w[] = {transpose ? n : k, transpose ? k : n};
  p->graph = rf_graph_new(&b->model);
  int inputs[] = {rf_graph_tensor(p->graph, "a", RF_CLASS_ACTIVATION, dtype, 2, op == 1 ? y : x),
                  rf_graph_tensor(p->graph, "b", op == 2 ? RF_CLASS_ACTIVATION : RF_CLASS_WEIGHT, dtype, 2,
                                  op == 2 ? y : w)};
  rf_attr attr = {.matmul = {.transpose = transpose}};
  p->graph->rows = rows;
  if (rf_graph_emit(p->graph, OPS[op], "product", RF_SECTION_MICRO, (rf_slots){inputs, 2}, RF_IDS(RF_WANTED),
                    &attr, error) < 0)
    return RAFTER_INVALID;
  p->kernel = rf_kernel_choose(&RF_BACKEND_CPU, b->options->isa, p->graph, &p->graph->op[0]);
  p->inputs = (rf_run_inputs){.rows = rows};
  p->call = (rf_call){.graph = p->graph,
                      .op = &p->graph->op[0],
                      .in = {b->at[0], b->at[1]},
                      .out = {b->at[2]},
                      .threads = b->options->threads,
                      .run = &p->inputs};
  return RAFTER_OK;
}

static void free_products(bench *b) {
  for (int s = 0; s < SHAPES; s++) {
    rf_graph_free(b->product[s].graph);
    b->product[s].graph = NULL;
  }
}

static rf_status time_product(bench *b, product *p, const rf_blocks *blocks, double *seconds,
                              rf_error *error) {
  const rf_tiling by = {b->options->threads, *blocks};
  size_t room = rf_kernel_workspace(p->kernel, p->graph, p->call.op, by);
  if (room > b->room_bytes) {
    if (b->room) rf_pages_unmap(b->room, b->room_bytes);
    b->room = NULL;
    b->room_bytes = 0;
    RF_TRY(rf_pages_map(room, &b->room, NULL, error));
    memset(b->room, 0, room);
    b->room_bytes = room;
  }
  RF_TRY(rf_calibrate_goes_on(b->options, error));
  p->call.workspace = b->room;
  p->call.blocks = *blocks;
  if (!p->calls) { /* the first call wakes threads, and the second is one measured call */
    p->kernel->run(&p->call);
    double start = rf_now_seconds();
    p->kernel->run(&p->call);
    double wanted = (b->options->quick ? 0.001 : 0.004) / fmax(rf_now_seconds() - start, 1e-7);
    p->calls = wanted < 1 ? 1 : wanted > 100 ? 100 : (int)wanted;
  }
  double start = rf_now_seconds();
  for (int i = 0; i < p->calls; i++) p->kernel->run(&p->call);
  *seconds = (rf_now_seconds() - start) / p->calls;
  return RAFTER_OK;
}

/* Finds the candidate with the lowest median time. The first candidate is the current choice. Every
 * round times each candidate once. */
static rf_status fastest(bench *b, const rf_blocks *candidate, int count, int *best, rf_error *error) {
  double took[SHAPES][MAX_TRIED + 1][CHOOSING], score[MAX_TRIED + 1] = {0};
  int rounds = b->options->quick ? CHOOSING_QUICK : CHOOSING;
  for (int r = 0; r < rounds; r++)
    for (int s = 0; s < SHAPES; s++)
      for (int c = 0; c < count; c++)
        RF_TRY(time_product(b, &b->product[s], &candidate[(c + r) % count], &took[s][(c + r) % count][r],
                            error));
  *best = 0;
  for (int s = 0; s < SHAPES; s++) {
    double first = rf_ceiling_of(took[s][0], rounds).median;
    for (int c = 0; c < count; c++) score[c] += rf_ceiling_of(took[s][c], rounds).median / first;
  }
  for (int c = 1; c < count; c++)
    if (score[c] < score[*best]) *best = c;
  return RAFTER_OK;
}

/* Times the default block sizes and the best block sizes alternately. The gain of a round is the
 * mean over shapes. */
static rf_status prove(bench *b, const rf_blocks *usual, const rf_blocks *best, rf_tuned_row *row,
                       rf_error *error) {
  double gain[MAX_PROVING], of[SHAPES][MAX_PROVING], seconds[2];
  int rounds = b->options->quick ? PROVING_QUICK : PROVING;
  for (int r = 0; r < rounds; r++) {
    gain[r] = 0;
    for (int s = 0; s < SHAPES; s++) {
      for (int turn = 0; turn < 2; turn++) {
        int which = (turn + r) % 2;
        RF_TRY(time_product(b, &b->product[s], which ? best : usual, &seconds[which], error));
      }
      of[s][r] = seconds[0] / seconds[1] - 1;
      gain[r] += of[s][r] / SHAPES;
    }
  }
  bool worse = false;
  for (int s = 0; s < SHAPES; s++) worse = worse || rf_ceiling_of(of[s], rounds).median < 0;
  row->gain = rf_ceiling_of(gain, rounds).median; /* also sorts `gain` */
  row->spread = gain[3 * rounds / 4] - gain[rounds / 4];
  if (!worse && row->gain >= WORTH && row->gain > SPREADS * row->spread) row->best = *best;
  return RAFTER_OK;
}

static rf_status tune_class(bench *b, int op, rf_dtype dtype, rf_tuned *tuned, rf_error *error) {
  rf_blocks usual;
  const product *p = b->product;
  rf_tuned_row *row = &tuned->row[tuned->count];
  if (!RF_BACKEND_CPU.blocks(p->kernel, &usual)) return RAFTER_OK;
  rf_blocks best = usual;
  *row = (rf_tuned_row){.class = rf_tuned_class(p->graph, p->call.op), .dtype = dtype, .usual = usual};
  snprintf(row->op, sizeof row->op, "%s", OPS[op]->name);
  snprintf(row->kernel, sizeof row->kernel, "%s", p->kernel->name);
  for (int f = 0; f < FIELDS; f++) {
    rf_blocks candidate[MAX_TRIED + 1] = {best};
    int count = 1, at;
    for (const int64_t *value = TRIED[f]; *value; value++) {
      if (*value == *field(&best, f)) continue;
      candidate[count] = best;
      *field(&candidate[count++], f) = *value;
    }
    RF_TRY(fastest(b, candidate, count, &at, error));
    best = candidate[at];
  }
  tuned->count++;
  if (!memcmp(&best, &usual, sizeof best)) return RAFTER_OK;
  return prove(b, &usual, &best, row, error);
}

rf_status rf_calibrate_tune(const rf_calibrate_options *o, rf_tuned *tuned, rf_error *error) {
  bench b = {.options = o};
  rf_status status = RAFTER_OK;
  *tuned = (rf_tuned){.threads = o->threads, .here = true};
  rf_machine_cpu(tuned->cpu);
  if (!tuned->cpu[0])
    return RF_FAIL(error, RAFTER_FAILED, "calibrate without --tune",
                   "the name of this CPU is unknown, so block sizes cannot be saved for it");
  RF_GO(rf_calibrate_model(&b.model, error));
  int weights = o->quick ? 1 : WEIGHT_CLASSES, rows = o->quick ? 2 : ROW_CLASSES, done = 0;
  for (int i = 0; i < 3; i++) {
    b.bytes[i] = (size_t)(WEIGHTS[WEIGHT_CLASSES - 1][0].n * WEIGHTS[WEIGHT_CLASSES - 1][0].k) * 4;
    RF_GO(rf_pages_map(b.bytes[i], &b.at[i], NULL, error));
    rf_calibrate_values(b.at[i], b.bytes[i], 0.5f);
  }
  for (int d = 0; d < 2; d++)
    for (int op = 0; op < OP_COUNT; op++)
      for (int r = 0; r < rows; r++)
        for (int w = 0; w < weights; w++) {
          rf_dtype dtype = d ? RF_BF16 : RF_F32;
          memset(b.product, 0, sizeof b.product);
          for (int s = 0; s < SHAPES && status == RAFTER_OK; s++)
            status = build(&b, op, dtype, ROWS[r], s, WEIGHTS[w][s].k, WEIGHTS[w][s].n, error);
          if (status == RAFTER_OK) status = tune_class(&b, op, dtype, tuned, error);
          free_products(&b);
          if (status != RAFTER_OK) goto done;
          if (o->say) o->say(o->self, "blocks of products", 0.2 * ++done / (2 * OP_COUNT * rows * weights));
        }
done:
  for (int i = 0; i < 3; i++)
    if (b.at[i]) rf_pages_unmap(b.at[i], b.bytes[i]);
  if (b.room) rf_pages_unmap(b.room, b.room_bytes);
  return status;
}
