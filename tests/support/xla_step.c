/* xla_step.c - see xla_step.h. */
#include "support/xla_step.h"

#include "backend/xla/device.h"
#include "graph/mesh/place.h"
#include "support/compare.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

world *step_world(const rf_graph *graph, const rf_graph *whole, const rf_run_inputs *run) {
  world *w = world_new(graph, whole->rows);
  w->run = *run;
  world_fill(w, whole, 0, false);
  return w;
}

/* ---- the compiled step ----------------------------------------------------------------------- */

/* Inputs of the graph have one part for each microbatch. Sums are f64 in the graph and f32 here. */
static void write_argument(world *w, const rf_graph *whole, int64_t chip, int tensor, char *to) {
  const rf_tensor *t = &w->graph->tensor[tensor];
  int parts = t->input ? whole->accumulate : 1;
  for (int m = 0; m < parts; m++) {
    if (t->input) world_fill(w, whole, m, true);
    if (t->dtype == RF_F64)
      for (int64_t i = 0; i < rf_tensor_count(t); i++)
        ((float *)(void *)to)[i] = (float)world_get(w, chip, tensor, i);
    else memcpy(to + m * rf_tensor_bytes(t), world_data(w, chip, tensor), (size_t)rf_tensor_bytes(t));
  }
}

static void read_result(world *w, int64_t chip, int tensor, const char *from) {
  const rf_tensor *t = &w->graph->tensor[tensor];
  if (t->dtype == RF_F64)
    for (int64_t i = 0; i < rf_tensor_count(t); i++)
      world_put(w, chip, tensor, i, (double)((const float *)(const void *)from)[i]);
  else memcpy(world_data(w, chip, tensor), from, (size_t)rf_tensor_bytes(t));
}

/* Places of arguments and results in shared memory. */
typedef struct places {
  rf_xla_argument *argument;
  rf_xla_result *result;
  bool *donated;
  int64_t bytes;
} places;

static int64_t take(places *p, int64_t bytes) {
  int64_t at = p->bytes;
  p->bytes += (bytes + 63) / 64 * 64;
  return at;
}

static places places_of(const rf_emitted *m) {
  size_t chips = (size_t)m->replicas;
  places p = {.argument = calloc(chips * (size_t)m->arguments + 1, sizeof *p.argument),
              .result = calloc(chips * (size_t)m->results + 1, sizeof *p.result),
              .donated = calloc((size_t)m->arguments + 1, sizeof *p.donated)};
  for (int i = 0; i < m->arguments; i++) p.donated[i] = m->argument[i].alias >= 0;
  for (int i = 0; i < m->replicas * m->arguments; i++) {
    rf_xla_shape shape = rf_xla_shape_of(m->argument[i % m->arguments].of);
    p.argument[i] = (rf_xla_argument){.at = take(&p, rf_xla_shape_bytes(&shape)), .shape = shape};
  }
  for (int i = 0; i < m->replicas * m->results; i++) {
    rf_xla_shape shape = rf_xla_shape_of(m->result[i % m->results].of);
    int64_t bytes = rf_xla_shape_bytes(&shape);
    p.result[i] = (rf_xla_result){.at = take(&p, bytes), .bytes = bytes};
  }
  return p;
}

static void execute(rf_xla_client *client, world *w, const rf_graph *whole, const rf_emitted *m,
                    rf_xla_id program) {
  rf_error error = {0};
  rf_xla_shared shared;
  places p = places_of(m);
  if (rf_xla_share(client, p.bytes + 64, &shared, &error) != RAFTER_OK) fail_msg("%s", error.message);
  for (int i = 0; i < m->replicas * m->arguments; i++) {
    char *to = (char *)shared.data + p.argument[i].at;
    int tensor = m->argument[i % m->arguments].tensor;
    if (tensor == RF_NONE) rf_emit_run_words(&w->run, (uint32_t *)(void *)to);
    else write_argument(w, whole, i / m->arguments, tensor, to);
  }
  const rf_xla_call call = {.program = program,
                            .devices = m->replicas,
                            .arguments = m->arguments,
                            .results = m->results,
                            .argument = p.argument,
                            .result = p.result,
                            .shared = &shared};
  if (rf_xla_execute(client, &call, p.donated, &error) != RAFTER_OK) fail_msg("%.3000s", error.message);
  for (int i = 0; i < m->replicas * m->results; i++)
    if (m->result[i % m->results].tensor >= 0)
      read_result(w, i / m->results, m->result[i % m->results].tensor, (char *)shared.data + p.result[i].at);
  rf_xla_unshare(client, &shared);
  free(p.argument);
  free(p.result);
  free(p.donated);
}

void xla_step(rf_xla_client *client, world *w, const rf_graph *whole, const rf_emit_options *options,
              const char *flags) {
  rf_error error = {0};
  rf_emitted m;
  rf_xla_id program = 0;
  rf_xla_stats stats;
  if (rf_emit_graph(w->graph, options, &m, &error) != RAFTER_OK) fail_msg("%s", error.message);
  const rf_xla_compile of = {.text = m.text, .bytes = m.bytes, .replicas = m.replicas, .flags = flags};
  if (rf_xla_program(client, &of, &program, &stats, &error) != RAFTER_OK) fail_msg("%.3000s", error.message);
  execute(client, w, whole, &m, program);
  rf_xla_program_free(client, program);
  rf_emitted_free(&m);
}

/* ---- comparison ------------------------------------------------------------------------------ */

int exact_tensor(const rf_graph *exact, const rf_tensor *t) {
  char name[256];
  size_t length = strlen(t->name), tail = strlen("/master");
  if (length > tail && !strcmp(t->name + length - tail, "/master")) length -= tail;
  snprintf(name, sizeof name, "%.*s", (int)length, t->name);
  return rf_graph_find(exact, name);
}

double step_error(const world *got, int tensor, const world *exact) {
  const rf_tensor *t = &got->graph->tensor[tensor];
  int other = exact_tensor(exact->graph, t);
  double square = 0, error = 0;
  assert_int_not_equal(other, RF_NONE);
  int64_t count = rf_tensor_count(t), *at = world_places(got, tensor, &exact->graph->tensor[other]);
  for (int64_t i = 0; i < got->chips * count; i++) {
    double want = at[i] < 0 ? 0 : world_get(exact, 0, other, at[i]),
           difference = world_get(got, i / count, tensor, i % count) - want;
    square += want * want;
    error += difference * difference;
  }
  free(at);
  double relative = square > 0 ? sqrt(error / square) : error > 0 ? INFINITY : 0;
  return isfinite(relative) ? relative : INFINITY;
}

/* In the graph of a mesh, some tensors that the host keeps have no twin: sums of norms on one
 * chip. */
static bool compared(const world *w, const rf_tensor *t, const world *exact) {
  return (t->output || t->persistent) && (w->chips == 1 || exact_tensor(exact->graph, t) != RF_NONE);
}

/* All elements of tensor `of` of the exact graph, from all chips of `w`. An element on no chip is
 * NaN. */
static double *whole_of(const world *w, const world *exact, int of) {
  const rf_tensor *whole = &exact->graph->tensor[of];
  int mine = rf_graph_find(w->graph, whole->name);
  assert_int_not_equal(mine, RF_NONE);
  int64_t part = rf_tensor_count(&w->graph->tensor[mine]), count = rf_tensor_count(whole);
  double *values = malloc((size_t)count * sizeof *values);
  for (int64_t i = 0; i < count; i++) values[i] = NAN;
  int64_t *at = world_places(w, mine, whole);
  for (int64_t i = 0; i < w->chips * part; i++)
    if (at[i] >= 0) values[at[i]] = world_get(w, i / part, mine, i % part);
  free(at);
  return values;
}

/* Updates the weight of an op adamw of the exact graph, from the new moments of `w`. */
static void update(world *expected, const world *w, const rf_op *op) {
  const rf_attr_adamw *attr = &op->attr.adamw;
  double *m = whole_of(w, expected, op->output[1]), *v = whole_of(w, expected, op->output[2]);
  double lr = (double)w->run.lr, step = (double)w->run.step, correction1 = 1 - pow((double)attr->beta1, step),
         correction2 = 1 - pow((double)attr->beta2, step);
  int64_t count = rf_tensor_count(&expected->graph->tensor[op->output[0]]);
  for (int64_t i = 0; i < count; i++) {
    double old = world_get(expected, 0, op->output[0], i), root = sqrt(v[i] / correction2);
    double change = m[i] / correction1 / (root + (double)attr->eps) + (double)attr->weight_decay * old;
    world_put(expected, 0, op->output[0], i, old - lr * change);
  }
  free(m);
  free(v);
}

/* The exact step, but its weights follow from the moments of `w`. */
static world *step_expected(const world *w, const world *exact) {
  const rf_graph *graph = exact->graph;
  world *expected = step_world(graph, graph, &exact->run);
  bool *updated = calloc((size_t)graph->tensor_count, sizeof *updated);
  for (int o = 0; o < graph->op_count; o++) {
    if (graph->op[o].def != &RF_OP_ADAMW) continue;
    updated[graph->op[o].output[0]] = true;
    update(expected, w, &graph->op[o]);
  }
  for (int t = 0; t < graph->tensor_count; t++)
    if (!updated[t])
      memcpy(world_data(expected, 0, t), world_data(exact, 0, t), (size_t)rf_tensor_bytes(&graph->tensor[t]));
  free(updated);
  return expected;
}

const char *step_difference(const world *got, const world *reference, const world *exact, rf_dtype dtype,
                            char text[400]) {
  double most[RF_CLASSES] = {0}, floor = compare_epsilon(dtype) * sqrt(dtype == RF_F32 ? 40 * 160 : 40);
  world *of_reference = step_expected(reference, exact), *of_got = step_expected(got, exact);
  const char *wrong = NULL;
  int seen = 0;
  for (int t = 0; t < got->graph->tensor_count; t++) {
    const rf_tensor *tensor = &got->graph->tensor[t];
    if (compared(got, tensor, exact))
      most[tensor->class] = fmax(most[tensor->class], step_error(reference, t, of_reference));
  }
  /* The norm of all gradients is as exact as the gradients, which the moments show. */
  most[RF_CLASS_IO] = fmax(most[RF_CLASS_IO], most[RF_CLASS_MOMENT]);
  for (int t = 0; t < got->graph->tensor_count && !wrong; t++) {
    const rf_tensor *tensor = &got->graph->tensor[t];
    if (!compared(got, tensor, exact)) continue;
    seen++;
    double error = step_error(got, t, of_got), bound = fmax(4 * most[tensor->class], floor);
    if (error <= bound) continue;
    snprintf(text, 400, "%s: error %.2g of its norm, allowed %.2g; reference %.2g", tensor->name, error,
             bound, step_error(reference, t, of_reference));
    wrong = text;
  }
  world_free(of_reference);
  world_free(of_got);
  assert_true(wrong || seen >= 4);
  return wrong;
}
