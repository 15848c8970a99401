/* pipeline.c - plans every stage of a pipeline as the program of its own chips. A simulation of all
 * stages gives the step time. */
#include "plan/pipeline.h"

#include "plan/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the schedule ---------------------------------------------------------------------------- */

typedef struct line {
  const rf_mesh *mesh;
  int stages, chunks, pieces, micros;
  const rf_piece_times *piece;
  /* Times of each pass, by direction, piece and microbatch. A negative time is unknown. */
  double *done[2], /* end of the pass */
      *came[2];    /* arrival of the input */
  int *places;     /* for each piece: number of memory slots for forward inputs */
  rf_half *order;  /* schedules of all stages, one after another */
} line;

static size_t cell(const line *l, int piece, int micro) {
  return (size_t)piece * (size_t)l->micros + (size_t)micro;
}

/* Time when the input of a pass arrives. 0: the pass has no input. A negative time is still
 * unknown. */
static double arrival(line *l, int piece, int micro, bool backward) {
  int from = piece + (backward ? 1 : -1), places = backward ? (l->micros < 2 ? 1 : 2) : l->places[piece];
  if (from < 0 || from >= l->pieces) return 0;
  double start = l->done[backward][cell(l, from, micro)],
         seconds = backward ? l->piece[from].to_before : l->piece[from].to_next;
  if (start < 0) return -1;
  if (micro > 0 && l->came[backward][cell(l, piece, micro - 1)] > start)
    start = l->came[backward][cell(l, piece, micro - 1)];
  /* The input uses the slot of an earlier microbatch. The backward pass of that microbatch must end
   * first. */
  if (micro >= places && l->done[1][cell(l, piece, micro - places)] > start)
    start = l->done[1][cell(l, piece, micro - places)];
  return l->came[backward][cell(l, piece, micro)] = start + seconds;
}

static bool begin_line(line *l) {
  size_t cells = (size_t)l->pieces * (size_t)l->micros,
         halves = (size_t)l->stages * 2 * (size_t)l->chunks * (size_t)l->micros;
  for (int b = 0; b < 2; b++) {
    l->done[b] = malloc(cells * sizeof(double));
    l->came[b] = malloc(cells * sizeof(double));
    if (!l->done[b] || !l->came[b]) return false;
    for (size_t i = 0; i < cells; i++) l->done[b][i] = l->came[b][i] = -1;
  }
  l->order = malloc(halves * sizeof *l->order);
  l->places = malloc((size_t)l->pieces * sizeof(int));
  if (!l->order || !l->places) return false;
  for (int s = 0; s < l->stages; s++)
    rf_pipeline_order(l->mesh, s, l->micros,
                      l->order + (size_t)s * 2 * (size_t)l->chunks * (size_t)l->micros);
  for (int p = 0; p < l->pieces; p++) {
    int places = rf_pipeline_in_flight(l->mesh, p % l->stages, l->micros, p / l->stages) + 1;
    l->places[p] = places < l->micros ? places : l->micros;
  }
  return true;
}

/* Simulates the next passes of a stage until one cannot start. False: none did. */
static bool advance(line *l, int stage, int *at, double *start, double *now) {
  int halves = 2 * l->chunks * l->micros, begun = *at;
  const rf_half *order = l->order + (size_t)stage * (size_t)halves;
  for (; *at < halves; ++*at) {
    const rf_half *h = &order[*at];
    int piece = h->chunk * l->stages + stage;
    double ready = arrival(l, piece, h->micro, h->backward);
    if (ready < 0) break;
    if (ready > *now) *now = ready;
    if (*at == 0) *start = *now;
    *now += h->backward ? l->piece[piece].backward : l->piece[piece].forward;
    l->done[h->backward][cell(l, piece, h->micro)] = *now;
  }
  return *at > begun;
}

static double simulate(const rf_mesh *mesh, int micros, const rf_piece_times *piece, double *start,
                       double *finish) {
  line l = {.mesh = mesh,
            .stages = rf_pipeline_stages(mesh),
            .chunks = rf_pipeline_chunks(mesh),
            .pieces = rf_pipeline_pieces(mesh),
            .micros = micros,
            .piece = piece};
  int *at = calloc((size_t)l.stages, sizeof *at);
  double most = -1;
  if (at && begin_line(&l)) {
    most = 0;
    for (int s = 0; s < l.stages; s++) start[s] = finish[s] = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (int s = 0; s < l.stages; s++) moved |= advance(&l, s, &at[s], &start[s], &finish[s]);
    }
    for (int s = 0; s < l.stages; s++) most = finish[s] > most ? finish[s] : most;
  }
  for (int b = 0; b < 2; b++) {
    free(l.done[b]);
    free(l.came[b]);
  }
  free(l.order);
  free(l.places);
  free(at);
  return most;
}

double rf_pipeline_simulate(const rf_mesh *mesh, int micros, const rf_piece_times *piece, double *start,
                            double *finish) {
  enum { GROUPS = 16 };
  int stages = rf_pipeline_stages(mesh), some = GROUPS * stages;
  if (micros <= some + stages) return simulate(mesh, micros, piece, start, finish);
  /* With this number of microbatches, the schedule repeats itself. So a few are simulated, and the
   * result is extrapolated. */
  double *before = malloc((size_t)stages * sizeof *before), most = -1;
  some += micros % stages;
  if (before && simulate(mesh, some - stages, piece, start, before) >= 0 &&
      simulate(mesh, some, piece, start, finish) >= 0) {
    most = 0;
    for (int s = 0; s < stages; s++) {
      finish[s] += (finish[s] - before[s]) * ((micros - some) / stages);
      most = finish[s] > most ? finish[s] : most;
    }
  }
  free(before);
  return most;
}

/* ---- one stage ------------------------------------------------------------------------------- */

static bool time_pieces(const rf_plan *plan, rf_piece_times *piece, rf_plan_stage *stage) {
  const rf_graph *graph = plan->graph;
  int chunks = rf_pipeline_chunks(&graph->mesh), *half = malloc(((size_t)graph->op_count + 1) * sizeof *half);
  if (!half) return false;
  rf_pipeline_halves(graph, half);
  for (int c = 0; c < chunks; c++) {
    rf_piece_times *p = &piece[c * rf_pipeline_stages(&graph->mesh) + graph->mesh.stage];
    p->forward = rf_plan_seconds_of(plan, half, 2 * c);
    p->backward = rf_plan_seconds_of(plan, half, 2 * c + 1);
    stage->forward_seconds += p->forward;
    stage->backward_seconds += p->backward;
    for (int o = 0; o < graph->op_count; o++)
      if (half[o] >> 1 == c && graph->op[o].def->exchange == RF_EXCHANGE_SEND)
        *(half[o] & 1 ? &p->to_before : &p->to_next) += plan->op[o].seconds;
  }
  for (int o = 0; o < graph->op_count; o++) half[o] = (int)graph->op[o].section;
  stage->end_seconds =
      rf_plan_seconds_of(plan, half, RF_SECTION_BEGIN) + rf_plan_seconds_of(plan, half, RF_SECTION_END);
  free(half);
  return true;
}

static void describe(const rf_plan *plan, rf_plan_stage *stage) {
  const rf_graph *graph = plan->graph;
  const rf_mesh *mesh = &graph->mesh;
  for (int c = 0; c < rf_pipeline_chunks(mesh); c++) {
    int64_t first, count;
    rf_pipeline_layers(mesh, graph->model.layers, c * rf_pipeline_stages(mesh) + mesh->stage, &first, &count);
    if (c == 0) stage->first_layer = first;
    stage->layers += count;
    stage->in_flight += rf_pipeline_in_flight(mesh, mesh->stage, graph->accumulate, c);
  }
  stage->peak_bytes = plan->arena_bytes;
  stage->persistent_bytes = plan->persistent_bytes;
  for (int t = 0; t < graph->tensor_count; t++)
    if (graph->tensor[t].slots > 1 && plan->tensor[t].offset >= 0) stage->held_bytes += plan->tensor[t].bytes;
}

/* ---- all stages ------------------------------------------------------------------------------ */

typedef struct sums {
  double model_flops, hardware_flops, flops_full_square, bytes;
  rf_part_work part[RF_PARTS];
} sums;

/* The plan of a stage counts its ops as if all chips ran these ops. `share` is the fraction of all
 * chips that one stage has. */
static void add_work(sums *s, const rf_plan *plan, double share) {
  rf_part_work part[RF_PARTS];
  rf_plan_work_by_part(plan, part);
  s->model_flops += share * plan->model_flops;
  s->hardware_flops += share * plan->hardware_flops;
  s->flops_full_square += share * plan->flops_full_square;
  s->bytes += share * plan->bytes;
  for (int p = 0; p < RF_PARTS; p++) {
    s->part[p].forward += share * part[p].forward;
    s->part[p].step += share * part[p].step;
    s->part[p].forward_full += share * part[p].forward_full;
    s->part[p].step_full += share * part[p].step_full;
  }
}

/* Sets the time of the returned plan. The time has the plan's own work, and its waits for transfers
 * and for other stages. */
static void set_time(rf_plan *plan, double seconds) {
  const rf_plan_stage *mine = &plan->stage[plan->graph->mesh.stage];
  rf_step_time *t = &plan->time;
  double core = 0, own = mine->busy_seconds + mine->end_seconds, sent = 0;
  for (int i = 0; i < plan->graph->op_count; i++)
    if (plan->op[i].lanes) sent += plan->op[i].seconds * plan->op[i].calls;
  for (int b = 0; b < RF_BOUNDS; b++)
    if (b != RF_BOUND_NETWORK) core += t->by[b];
  t->seconds = seconds;
  t->bubble = seconds > own ? seconds - own : 0;
  t->by[RF_BOUND_NETWORK] = seconds > core ? seconds - core : 0;
  t->network_hidden = sent - (t->by[RF_BOUND_NETWORK] - t->bubble);
  if (t->network_hidden < 1e-12 * sent) t->network_hidden = 0; /* a rounding error */
  t->bound = rf_largest_bound(t);
  plan->step_seconds = seconds;
}

/* The difference of two times, which cannot be negative. Without this function, rounding could make
 * a difference negative. */
static double left(double seconds, double taken) { return seconds > taken ? seconds - taken : 0; }

/* Stores the time and the work of all stages in the plan that is returned. False: out of memory. */
static bool join(rf_plan *plan, const rf_piece_times *piece, rf_plan_stage *stage, int stages,
                 const sums *s) {
  double *finish = malloc((size_t)stages * 2 * sizeof *finish), *start = finish + stages, seconds = 0;
  int micros = plan->graph->accumulate;
  if (!finish || rf_pipeline_simulate(&plan->graph->mesh, micros, piece, start, finish) < 0) {
    free(finish);
    return false;
  }
  for (int i = 0; i < stages; i++) {
    stage[i].busy_seconds = micros * (stage[i].forward_seconds + stage[i].backward_seconds);
    if (finish[i] + stage[i].end_seconds > seconds) seconds = finish[i] + stage[i].end_seconds;
  }
  for (int i = 0; i < stages; i++) {
    stage[i].idle_seconds = left(seconds, stage[i].busy_seconds + stage[i].end_seconds);
    stage[i].fill_seconds = start[i];
    stage[i].drain_seconds = left(seconds, finish[i] + stage[i].end_seconds);
  }
  plan->stage = stage;
  plan->stages = stages;
  plan->model_flops = s->model_flops;
  plan->hardware_flops = s->hardware_flops;
  plan->flops_full_square = s->flops_full_square;
  plan->bytes = s->bytes;
  memcpy(plan->stage_work, s->part, sizeof s->part);
  set_time(plan, seconds);
  free(finish);
  return true;
}

/* Replaces the digest of a stage's plan by a digest of the plans of all stages, which is the same
 * on all ranks. */
static void join_digests(rf_plan *plan) {
  uint64_t key = 0;
  for (int i = 0; i < plan->stages; i++) key = rf_key(key, rf_name_key(rf_plan_of_stage(plan, i)->digest), 0);
  snprintf(plan->digest, sizeof plan->digest, "%016llx", (unsigned long long)key);
}

/* All stages of a job. `plan` gets the finished plans. */
typedef struct line_up {
  const rf_plan_options *options;
  int stages;
  rf_graph **graph; /* until rf_plan_finish takes them */
  rf_plan **plan;
  rf_plan_stage *stage;
  rf_piece_times *piece;
  sums sum;
} line_up;

static rf_status no_memory(rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
}

static rf_status build_stages(line_up *l, const rf_model *model, rf_error *error) {
  rf_graph *whole = NULL;
  rf_build_options build = l->options->build;
  rf_status status = rf_graph_build(model, &build, "optimize", &whole, error);
  for (build.mesh.stage = 0; build.mesh.stage < l->stages && status == RAFTER_OK; build.mesh.stage++)
    status = rf_graph_stage(whole, &build, &l->graph[build.mesh.stage], error);
  rf_graph_free(whole);
  return status;
}

static rf_status plan_stage(line_up *l, int number, rf_plan_depth depth, rf_error *error) {
  rf_plan_options of_stage = *l->options;
  bool own = of_stage.own_stage && number == l->options->build.mesh.stage;
  rf_graph *graph = l->graph[number];
  if (own) rf_pass_elsewhere(graph, l->graph);
  if (of_stage.owner) {
    of_stage.owner = rf_plan_of_stage(of_stage.owner, number);
    RF_TRY(rf_plan_adopt(graph, of_stage.owner, error));
  }
  of_stage.build.mesh.stage = number;
  l->graph[number] = NULL;
  RF_TRY(rf_plan_finish(graph, &of_stage, depth, &l->plan[number], error));
  /* stage that the user chose; graph->mesh.stage is the stage of the plan */
  l->plan[number]->options.build.mesh.stage = l->options->build.mesh.stage;
  if (depth < RF_PLAN_PRICES) return RAFTER_OK;
  describe(l->plan[number], &l->stage[number]);
  add_work(&l->sum, l->plan[number], 1.0 / l->stages);
  return time_pieces(l->plan[number], l->piece, &l->stage[number]) ? RAFTER_OK : no_memory(error);
}

/* Removes one plan from the list: the plan that the function returns. The other plans stay in the
 * list. */
static rf_plan *take_plan(line_up *l) {
  int chosen = l->options->own_stage ? l->options->build.mesh.stage : 0;
  for (int i = 0; i < l->stages && !l->options->own_stage; i++)
    if (l->plan[i]->arena_bytes > l->plan[chosen]->arena_bytes) chosen = i;
  rf_plan *plan = l->plan[chosen];
  l->plan[chosen] = NULL;
  return plan;
}

rf_status rf_plan_make_stages(const rf_model *model, const rf_plan_options *options, rf_plan_depth depth,
                              rf_plan **out, rf_error *error) {
  int stages = rf_pipeline_stages(&options->build.mesh);
  rf_status status = RAFTER_OK;
  rf_plan *plan = NULL;
  line_up l = {.options = options,
               .stages = stages,
               .graph = calloc((size_t)stages, sizeof *l.graph),
               .plan = calloc((size_t)stages, sizeof *l.plan),
               .stage = calloc((size_t)stages, sizeof *l.stage),
               .piece = calloc((size_t)rf_pipeline_pieces(&options->build.mesh), sizeof *l.piece)};
  if (!l.graph || !l.plan || !l.stage || !l.piece) RF_GO(no_memory(error));
  if (options->program.program != RF_PROGRAM_RAFTER)
    RF_GO(
        RF_FAIL(error, RAFTER_INVALID, "leave --program out, or use data, fsdp and tensor",
                "a JAX program cannot be planned with pipeline stages (--mesh pipeline: expected 1, got %d)",
                stages));
  RF_GO(build_stages(&l, model, error));
  /* this process's own stage is first, because it reads the graphs of the other stages */
  if (options->own_stage) RF_GO(plan_stage(&l, options->build.mesh.stage, depth, error));
  for (int i = 0; i < stages; i++)
    if (!l.plan[i]) RF_GO(plan_stage(&l, i, depth, error));
  plan = take_plan(&l);
  if (depth >= RF_PLAN_PRICES) {
    if (!join(plan, l.piece, l.stage, stages, &l.sum)) RF_GO(no_memory(error));
    l.stage = NULL; /* the plan owns it */
    if (options->own_stage) {
      plan->stage_plan = l.plan;
      l.plan = NULL;
      if (depth == RF_PLAN_WHOLE) join_digests(plan);
    }
  }
  *out = plan;
  plan = NULL;
done:
  for (int i = 0; i < stages; i++) {
    if (l.graph) rf_graph_free(l.graph[i]);
    if (l.plan) rf_plan_free(l.plan[i]);
  }
  rf_plan_free(plan);
  free(l.graph);
  free(l.plan);
  free(l.stage);
  free(l.piece);
  return status;
}
