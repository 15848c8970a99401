/* calibrate_heads.c - measures an output head's work per row: log-sum-exp, softcap, top tokens, and
 * the gradient of the logits. */
#include "run/calibrate_parts.h"

#include <math.h>
#include <stdlib.h>

enum { INNER = 16, ROWS_EACH = 8, PASSES = 9, TOP = 64 };

/* A head that does one operation more than the head before it in the table. The curve gets the
 * difference of the times of these two heads. */
typedef struct head {
  const char *curve; /* name of the curve; NULL: this head is only the base of the next curve */
  bool scores, sums, caps, top, gradient;
} head;
static const head HEADS[] = {{NULL, .sums = false},
                             {"sums", .sums = true},
                             {"softcap", .sums = true, .caps = true},
                             {NULL, .scores = true},
                             {"likeliest", .scores = true, .top = true},
                             {NULL, .sums = false},
                             {"gradient", .gradient = true}};

/* All operands are in one allocation. It begins at `x`. */
typedef struct operands {
  float *x, *w, *logits, *sums, *top;
  int32_t *rows, *ids;
} operands;

static rf_status measure(const rf_calibrate_options *o, const rf_model *model, const head *h, int64_t vocab,
                         const operands *p, rf_calibrate_room *room, double *median, rf_error *error) {
  rf_status status = RAFTER_OK;
  int64_t rows = (int64_t)o->threads * ROWS_EACH, x[] = {rows, INNER}, w[] = {INNER, vocab};
  double seconds[PASSES];
  rf_graph *graph = rf_graph_new(model);
  int inputs[] = {rf_graph_tensor(graph, "x", RF_CLASS_ACTIVATION, RF_F32, 2, x),
                  rf_graph_tensor(graph, "w", RF_CLASS_WEIGHT, RF_F32, 2, w), RF_NONE,
                  rf_graph_tensor(graph, "rows", RF_CLASS_IO, RF_I32, 1, x),
                  rf_graph_tensor(graph, "lse", RF_CLASS_ACTIVATION, RF_F32, 1, x)};
  rf_attr attr = {.head = {.softcap = h->caps ? 30 : 0, .top = h->top ? TOP : 0}};
  graph->rows = rows;
  rf_slots outputs = h->gradient ? RF_IDS(RF_NONE) : RF_IDS(RF_WANTED, RF_WANTED, RF_WANTED);
  if (!h->gradient) outputs.count = h->sums ? 2 : h->top ? 3 : 1;
  const rf_op_def *def = h->gradient ? &RF_OP_HEAD_LOSS_BWD
                         : h->scores ? &RF_OP_HEAD_SCORE
                                     : &RF_OP_HEAD_LOGITS;
  if (rf_graph_emit(graph, def, "head", RF_SECTION_MICRO, (rf_slots){inputs, h->gradient ? 5 : 4}, outputs,
                    &attr, error) < 0)
    RF_GO(RAFTER_INVALID);
  const rf_kernel *kernel;
  rf_call call;
  rf_run_inputs run = {.rows = rows};
  RF_GO(rf_calibrate_kernel(o, graph, room, "heads", &kernel, &call, error));
  call.in[0] = p->x;
  call.in[1] = p->w;
  call.in[3] = p->rows;
  call.run = &run;
  if (h->gradient) {
    call.in[4] = p->sums;
  } else if (!h->scores) {
    call.out[0] = p->logits;
    call.out[1] = h->sums ? p->sums : NULL;
  } else {
    call.out[0] = p->sums;
    call.out[1] = h->top ? p->ids : NULL;
    call.out[2] = h->top ? p->top : NULL;
  }
  int passes = o->quick ? 3 : PASSES;
  for (int i = -1; i < passes; i++) { /* the first call wakes threads */
    RF_GO(rf_calibrate_goes_on(o, error));
    double start = rf_now_seconds();
    kernel->run(&call);
    seconds[i < 0 ? 0 : i] = rf_now_seconds() - start;
  }
  *median = rf_ceiling_of(seconds, passes).median;
done:
  rf_graph_free(graph);
  return status;
}

rf_status rf_calibrate_heads(const rf_calibrate_options *o, rf_machine *m, rf_error *error) {
  static const int64_t vocabs[] = {1 << 12, 1 << 15, 1 << 18};
  size_t rows = (size_t)o->threads * ROWS_EACH, most = (size_t)vocabs[2];
  rf_status status = RAFTER_OK;
  rf_model model;
  operands p = {0};
  rf_calibrate_room room = {0};
  RF_TRY(rf_calibrate_model(&model, error));
  p.x = aligned_alloc(64, 4 * (rows * (INNER + most + 2 * 16 + 2 * TOP) + most * INNER));
  if (!p.x) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while measuring heads");
  p.w = p.x + rows * INNER;
  p.logits = p.w + most * INNER;
  p.sums = p.logits + rows * most;
  p.top = p.sums + rows * 16;
  p.rows = (int32_t *)(void *)(p.top + rows * TOP);
  p.ids = p.rows + rows * 16;
  for (size_t i = 0; i < rows * INNER; i++)
    p.x[i] = (float)((uint32_t)i * 2654435761u >> 16 & 1023) / 512 - 1;
  for (size_t i = 0; i < most * INNER; i++)
    p.w[i] = (float)((uint32_t)i * 2246822519u >> 16 & 1023) / 512 - 1;
  for (size_t i = 0; i < rows; i++) p.rows[i] = (int32_t)i;
  for (int v = 0; v < 3; v++) {
    double before = 0, seconds = 0;
    for (size_t h = 0; h < sizeof HEADS / sizeof *HEADS; h++, before = seconds) {
      RF_GO(measure(o, &model, &HEADS[h], vocabs[v], &p, &room, &seconds, error));
      if (HEADS[h].curve)
        rf_calibrate_add(m, "head_rows", HEADS[h].curve, (double)vocabs[v], (double)vocabs[v] * (double)rows,
                         fmax(seconds - before, 0.01 * seconds));
    }
  }
done:
  free(p.x);
  free(room.at);
  return status;
}
