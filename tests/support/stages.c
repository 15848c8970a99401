#include "support/stages.h"

#include <stdlib.h>
#include <string.h>

typedef struct letter {
  uint64_t site;
  int to, micro;
  int64_t chip;
  void *data;
  struct letter *next;
} letter;

typedef struct runner {
  int begun, at, count, op; /* Halves that have begun; their place in the order; the next op to run. */
  rf_half *order;
  int *half;  /* half of each op */
  bool waits; /* waits until all stages have their part of a sum */
} runner;

static int stage_of(const stages *s, const world *w) {
  int i = 0;
  while (s->world[i] != w) i++;
  return i;
}

static letter **find(stages *s, const rf_op *op, int stage, int64_t chip, int micro) {
  letter **at = &s->letters;
  while (*at && ((*at)->site != op->attr.transfer.site || (*at)->to != stage || (*at)->chip != chip ||
                 (*at)->micro != micro))
    at = &(*at)->next;
  return at;
}

static int micro_of(const world *w, const rf_op *op) {
  return op->section == RF_SECTION_MICRO ? w->run.micro : -1;
}

static void transfer(world *w, const rf_op *op, int64_t chip, void *context) {
  stages *s = context;
  int stage = stage_of(s, w), tensor = op->input_count ? op->input[0] : op->output[0];
  const rf_tensor *t = &w->graph->tensor[tensor];
  size_t bytes = (size_t)rf_tensor_bytes(t);
  bool broken = s->broken_stage == stage && s->broken_op == (int)(op - w->graph->op);
  if (op->input_count) {
    letter *l = calloc(1, sizeof *l);
    *l = (letter){
        op->attr.transfer.site, op->attr.transfer.stage, micro_of(w, op), chip, calloc(1, bytes), s->letters};
    if (!broken) memcpy(l->data, world_data(w, chip, tensor), bytes);
    s->letters = l;
    return;
  }
  letter **at = find(s, op, stage, chip, micro_of(w, op)), *l = *at;
  for (int64_t i = 0; i < rf_tensor_count(t); i++) {
    double mine = op->attr.accumulate[0] == RF_WRITE ? 0 : world_get(w, chip, tensor, i),
           theirs = t->dtype == RF_F64 ? ((double *)l->data)[i] : ((float *)l->data)[i];
    world_put(w, chip, tensor, i, mine + (broken ? 0 : theirs));
  }
  *at = l->next;
  free(l->data);
  free(l);
}

stages *stages_new(rf_graph *const *graph, int count, int64_t whole_rows) {
  stages *s = calloc(1, sizeof *s);
  s->count = count;
  s->accumulate = graph[0]->accumulate;
  s->mesh = graph[0]->mesh;
  s->broken_stage = s->broken_op = -1;
  for (int i = 0; i < count; i++) {
    rf_pass_slots(graph[i]);
    graph[i]->mesh.of[RF_AXIS_PIPELINE] = 1;
    s->world[i] = world_new(graph[i], whole_rows);
    s->world[i]->transfer = transfer;
    s->world[i]->context = s;
  }
  return s;
}

static void drop_letters(stages *s) {
  while (s->letters) {
    letter *l = s->letters;
    s->letters = l->next;
    free(l->data);
    free(l);
  }
}

void stages_free(stages *s) {
  drop_letters(s);
  for (int i = 0; i < s->count; i++) world_free(s->world[i]);
  free(s);
}

/* The next op of a stage: of its half, or of the section after the loop. -1: the stage is done.
 * Enters the next half if one has ended. */
static int next_op(stages *s, int stage, runner *k, void (*inputs)(world *, int, const void *),
                   const void *context) {
  world *w = s->world[stage];
  const rf_graph *graph = w->graph;
  for (;; k->op = 0, k->at++) {
    bool loops = k->at < k->count;
    if (loops && k->begun <= k->at) {
      k->begun = k->at + 1;
      w->run.micro = k->order[k->at].micro;
      if (k->order[k->at].chunk == 0 && !k->order[k->at].backward) inputs(w, w->run.micro, context);
    }
    for (; k->op < graph->op_count; k->op++) {
      const rf_op *op = &graph->op[k->op];
      if (loops ? k->half[k->op] == 2 * k->order[k->at].chunk + k->order[k->at].backward
                : op->section == RF_SECTION_END)
        return k->op;
    }
    if (!loops) return -1;
  }
}

static bool crosses_stages(const rf_op *op) {
  return !strcmp(op->def->name, "all_reduce") && op->attr.axes & RF_AXIS_BIT(RF_AXIS_PIPELINE);
}

/* Sums over all stages the values that each stage has summed over its own chips. */
static void sum_over_stages(stages *s, runner *k) {
  for (int64_t chip = 0; chip < s->world[0]->chips; chip++) {
    double sum = 0;
    for (int i = 0; i < s->count; i++)
      sum += world_get(s->world[i], chip, s->world[i]->graph->op[k[i].op].output[0], 0);
    for (int i = 0; i < s->count; i++)
      world_put(s->world[i], chip, s->world[i]->graph->op[k[i].op].output[0], 0, sum);
  }
  for (int i = 0; i < s->count; i++) {
    k[i].op++;
    k[i].waits = false;
  }
}

void stages_step(stages *s, void (*inputs)(world *w, int micro, const void *context), const void *context) {
  runner k[STAGES_MAX] = {0};
  for (int i = 0; i < s->count; i++) {
    const rf_graph *graph = s->world[i]->graph;
    k[i].count = 2 * rf_pipeline_chunks(&s->mesh) * s->accumulate;
    k[i].order = calloc((size_t)k[i].count, sizeof *k[i].order);
    k[i].half = calloc((size_t)graph->op_count, sizeof *k[i].half);
    rf_pipeline_order(&s->mesh, i, s->accumulate, k[i].order);
    rf_pipeline_halves(graph, k[i].half);
    world_run(s->world[i], RF_SECTION_BEGIN);
  }
  int done = 0, waiting = 0;
  for (bool moved = true; moved && done < s->count;) {
    moved = false;
    done = waiting = 0;
    for (int i = 0; i < s->count; i++) {
      world *w = s->world[i];
      int o;
      while (!k[i].waits && (o = next_op(s, i, &k[i], inputs, context)) >= 0) {
        const rf_op *op = &w->graph->op[o];
        if (!strcmp(op->def->name, "recv") && !*find(s, op, i, 0, micro_of(w, op))) break;
        world_run_op(w, o);
        moved = true;
        if (crosses_stages(op)) k[i].waits = true;
        else k[i].op++;
      }
      waiting += k[i].waits;
      done += !k[i].waits && next_op(s, i, &k[i], inputs, context) < 0;
    }
    if (waiting == s->count) {
      sum_over_stages(s, k);
      moved = true;
    }
  }
  s->stuck = done < s->count || s->letters;
  for (int i = 0; i < s->count; i++) {
    free(k[i].order);
    free(k[i].half);
  }
}
