/* stage.c - the program of one pipeline stage. The program has the ops of the stage's pieces
 * (pipeline.h). A half is the forward or backward pass of a piece. Before the first op of a half, a
 * stage receives the tensors that the half reads. A stage sends a tensor right after the op that
 * computes the tensor. If two stages use the same parameter, both store the parameter. After the
 * last microbatch, the two stages exchange their gradients. Then both stages make the same
 * update. */
#include "graph/passes.h"
#include "graph/mesh/pipeline.h"

#include <stdlib.h>
#include <string.h>

typedef struct crossing {
  int tensor, from, /* piece that computes the tensor */
      to;           /* piece that reads the tensor */
} crossing;

typedef struct stager {
  const rf_graph *whole;
  rf_graph *graph; /* the program of this stage */
  const rf_mesh *mesh;
  rf_error *error;
  int *piece;         /* for each op: its piece; RF_NONE: the op is outside the section `micro` */
  int *maker;         /* for each tensor: the op that makes the tensor, or RF_NONE */
  int *map;           /* for each tensor: the id of the tensor on this stage, or RF_NONE */
  int *low,           /* for each parameter: first stage that uses the parameter, or RF_NONE */
      *high;          /* for each parameter: last stage that uses the parameter, or RF_NONE */
  crossing *crossing; /* tensors that this stage sends or receives */
  int crossings, capacity;
  bool *written; /* for each parameter: true if an op of this stage has written the gradient */
  int trained;   /* number of parameters whose gradient norms this stage adds up */
} stager;

/* ---- pieces of ops --------------------------------------------------------------------------- */

static int stage_of(const stager *s, int piece) { return piece % rf_pipeline_stages(s->mesh); }

static int piece_of(const stager *s, const rf_op *op) {
  if (op->at.layer >= 0) return rf_pipeline_piece_of_layer(s->mesh, s->whole->model.layers, op->at.layer);
  return op->at.sublayer == RF_SUBLAYER_EMBED ? 0 : rf_pipeline_pieces(s->mesh) - 1;
}

static bool is_state(const rf_tensor *t) { return t->persistent || t->input; }

static void add_crossing(stager *s, int tensor, int from, int to) {
  for (int i = s->crossings - 1; i >= 0; i--)
    if (s->crossing[i].tensor == tensor && s->crossing[i].to == to) return;
  if (s->crossings == s->capacity)
    s->crossing = rf_pool_grown(s->graph->pool, s->crossing, s->crossings, &s->capacity, sizeof *s->crossing);
  s->crossing[s->crossings++] = (crossing){tensor, from, to};
}

static rf_status find_pieces(stager *s) {
  const rf_graph *whole = s->whole;
  int stage = s->mesh->stage;
  for (int t = 0; t < whole->tensor_count; t++) s->maker[t] = s->map[t] = RF_NONE;
  for (int p = 0; p < whole->params.count; p++) s->low[p] = s->high[p] = RF_NONE;
  for (int o = 0; o < whole->op_count; o++) {
    const rf_op *op = &whole->op[o];
    s->piece[o] = op->section == RF_SECTION_MICRO ? piece_of(s, op) : RF_NONE;
    if (s->piece[o] == RF_NONE) continue;
    int here = stage_of(s, s->piece[o]);
    for (int i = 0; i < op->input_count; i++) {
      int t = op->input[i];
      if (t < 0) continue;
      const rf_tensor *tensor = &whole->tensor[t];
      int from = s->maker[t] == RF_NONE ? RF_NONE : s->piece[s->maker[t]], p = tensor->param;
      if (tensor->persistent && p >= 0) {
        if (s->low[p] == RF_NONE || here < s->low[p]) s->low[p] = here;
        if (here > s->high[p]) s->high[p] = here;
      }
      if (is_state(tensor) || from == s->piece[o]) continue;
      if (from != s->piece[o] + (op->backward && from > s->piece[o] ? 1 : -1))
        return RF_FAIL(s->error, RAFTER_FAILED, "this is a fault of the planner, please report it",
                       "a tensor skips a stage (%s reads %s: piece %d, made by %d)", op->name, tensor->name,
                       s->piece[o], from);
      if (here == stage || stage_of(s, from) == stage) add_crossing(s, t, from, s->piece[o]);
    }
    for (int i = 0; i < op->output_count; i++) {
      int t = op->output[i];
      if (t >= 0 && !(whole->tensor[t].class == RF_CLASS_GRADIENT && whole->tensor[t].param >= 0))
        s->maker[t] = o;
    }
  }
  return RAFTER_OK;
}

/* ---- tensors and ops ------------------------------------------------------------------------- */

static int tensor_here(stager *s, int t) {
  if (t < 0 || s->map[t] != RF_NONE) return t < 0 ? t : s->map[t];
  const rf_tensor *old = &s->whole->tensor[t];
  int id = s->map[t] = rf_graph_tensor(s->graph, old->name, old->class, old->dtype, old->rank, old->shape);
  rf_tensor *fresh = &s->graph->tensor[id];
  const char *name = fresh->name;
  *fresh = *old;
  fresh->name = name;
  fresh->reason = old->reason ? rf_graph_join(s->graph, old->reason, "", "") : NULL;
  return id;
}

static rf_status transfer(stager *s, const rf_op_def *def, rf_section section, int t, int peer,
                          const char *path, bool backward, rf_accumulate how) {
  int id = tensor_here(s, t);
  const char *what = s->whole->tensor[t].name;
  int32_t layer = s->maker[t] == RF_NONE ? RF_NONE : s->whole->op[s->maker[t]].at.layer;
  s->graph->at = (rf_op_place){layer, RF_SUBLAYER_NONE};
  rf_attr attr = {.axes = RF_AXIS_BIT(RF_AXIS_PIPELINE),
                  .group = (int32_t)rf_pipeline_stages(s->mesh),
                  .accumulate = {how},
                  .transfer = {.site = rf_name_key(what), .stage = peer}};
  const char *name = rf_graph_join(s->graph, path, def == &RF_OP_SEND ? "/send/" : "/recv/", what);
  bool sends = def == &RF_OP_SEND;
  int op = rf_graph_emit(s->graph, def, name, section, (rf_slots){&id, sends}, (rf_slots){&id, !sends}, &attr,
                         s->error);
  if (op < 0) return RAFTER_INVALID;
  s->graph->op[op].backward = backward;
  if (!sends && section == RF_SECTION_MICRO) s->graph->tensor[id].reason = "received from another stage";
  return RAFTER_OK;
}

static rf_status emit(stager *s, const rf_op *op, rf_attr attr) {
  int inputs[RF_MAX_INPUTS], outputs[RF_MAX_OUTPUTS];
  s->graph->at = op->at;
  for (int i = 0; i < op->input_count; i++) inputs[i] = tensor_here(s, op->input[i]);
  for (int i = 0; i < op->output_count; i++) {
    int t = op->output[i];
    outputs[i] = tensor_here(s, t);
    if (t < 0 || op->section != RF_SECTION_MICRO || s->whole->tensor[t].class != RF_CLASS_GRADIENT ||
        s->whole->tensor[t].param < 0)
      continue;
    bool *written = &s->written[s->whole->tensor[t].param];
    attr.accumulate[i] = *written                   ? RF_ACCUMULATE_ADD
                         : s->whole->accumulate > 1 ? RF_ACCUMULATE_MICRO
                                                    : RF_WRITE;
    *written = true;
  }
  rf_attr_adopt(op->def, &attr, &s->graph->model);
  int id = rf_graph_emit(s->graph, op->def, op->name, op->section, (rf_slots){inputs, op->input_count},
                         (rf_slots){outputs, op->output_count}, &attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  s->graph->op[id].backward = op->backward;
  return RAFTER_OK;
}

static const char *half_path(stager *s, int piece, bool backward) {
  return rf_pool_format(s->graph->pool, "step/micro/piece.%d/%s", piece, backward ? "bwd" : "fwd");
}

/* Receives tensors of other pieces, before the first op of the half that reads these tensors.
 * Forward tensors come before backward tensors, as in the whole graph. */
static rf_status receive(stager *s, int piece, bool backward) {
  for (int i = 0; i < s->crossings; i++) {
    const crossing *c = &s->crossing[i];
    if (c->to != piece || (c->from > piece) != backward) continue;
    RF_TRY(transfer(s, &RF_OP_RECV, RF_SECTION_MICRO, c->tensor, stage_of(s, c->from),
                    half_path(s, piece, backward), backward, RF_WRITE));
  }
  return RAFTER_OK;
}

static rf_status send(stager *s, const rf_op *op, int piece) {
  for (int i = 0; i < s->crossings; i++) {
    const crossing *c = &s->crossing[i];
    bool makes = false;
    for (int k = 0; k < op->output_count; k++) makes |= op->output[k] == c->tensor;
    if (c->from != piece || !makes) continue;
    RF_TRY(transfer(s, &RF_OP_SEND, RF_SECTION_MICRO, c->tensor, stage_of(s, c->to),
                    half_path(s, piece, op->backward), op->backward, RF_WRITE));
  }
  return RAFTER_OK;
}

static rf_status micro_op(stager *s, int o, int *last, bool *was_backward) {
  const rf_op *op = &s->whole->op[o];
  int piece = s->piece[o];
  if (stage_of(s, piece) != s->mesh->stage) return RAFTER_OK;
  s->graph->chunk = piece / rf_pipeline_stages(s->mesh);
  if (piece != *last || op->backward != *was_backward) RF_TRY(receive(s, piece, op->backward));
  *last = piece;
  *was_backward = op->backward;
  RF_TRY(emit(s, op, op->attr));
  return send(s, op, piece);
}

/* ---- after the last microbatch --------------------------------------------------------------- */

static bool uses(const stager *s, int p) {
  return s->low[p] == s->mesh->stage || s->high[p] == s->mesh->stage;
}

/* Each of the two stages that use a parameter adds the other stage's gradient to its own. Both get
 * bit-identical sums, since a + b = b + a. */
static rf_status exchange_shared(stager *s) {
  for (int o = 0; o < s->whole->op_count; o++) {
    const rf_op *op = &s->whole->op[o];
    if (op->def != &RF_OP_ADAMW) continue;
    int g = op->input[0], p = s->whole->tensor[g].param;
    if (s->low[p] == s->high[p] || !uses(s, p)) continue;
    int peer = s->low[p] == s->mesh->stage ? s->high[p] : s->low[p];
    RF_TRY(transfer(s, &RF_OP_SEND, RF_SECTION_END, g, peer, "step/end", false, RF_WRITE));
    RF_TRY(transfer(s, &RF_OP_RECV, RF_SECTION_END, g, peer, "step/end", false, RF_ACCUMULATE_ADD));
  }
  return RAFTER_OK;
}

/* For the norm of all gradients, each stage adds up the squares of its own gradients. Then the
 * totals of all stages are added. */
static rf_status emit_clip(stager *s, const rf_op *op) {
  int sums = tensor_here(s, op->input[0]), clip = tensor_here(s, op->output[0]);
  s->graph->at = op->at;
  int total = rf_graph_make(s->graph, &RF_OP_NORM_TOTAL, "step/end/norm_total", RF_SECTION_END, RF_IDS(sums),
                            NULL, s->error);
  if (total == RF_NONE) return RAFTER_INVALID;
  s->graph->tensor[total].name = "gradient/total";
  return rf_graph_emit(s->graph, op->def, op->name, op->section, RF_IDS(total), RF_IDS(clip), &op->attr,
                       s->error) < 0
             ? RAFTER_INVALID
             : RAFTER_OK;
}

static rf_status end_op(stager *s, const rf_op *op) {
  int p = op->input[0] >= 0 ? s->whole->tensor[op->input[0]].param : RF_NONE;
  if (op->def == &RF_OP_CLIP) return emit_clip(s, op);
  if (p >= 0 && !uses(s, p)) return RAFTER_OK;
  rf_attr attr = op->attr;
  if (op->def == &RF_OP_NORM_SQ) {
    if (s->low[p] != s->mesh->stage) return RAFTER_OK;
    attr.sums.element = s->trained++;
  }
  return emit(s, op, attr);
}

static int count_trained(const stager *s) {
  int count = 0;
  for (int o = 0; o < s->whole->op_count; o++)
    if (s->whole->op[o].def == &RF_OP_NORM_SQ)
      count += s->low[s->whole->tensor[s->whole->op[o].input[0]].param] == s->mesh->stage;
  return count;
}

rf_status rf_pass_stage(const rf_graph *whole, const rf_mesh *mesh, rf_graph **out, rf_error *error) {
  rf_graph *graph = rf_graph_new(&whole->model);
  rf_pool *pool = graph->pool;
  size_t tensors = (size_t)whole->tensor_count + 1, params = (size_t)whole->params.count + 1;
  stager s = {.whole = whole,
              .graph = graph,
              .mesh = mesh,
              .error = error,
              .piece = rf_pool_alloc(pool, ((size_t)whole->op_count + 1) * sizeof(int)),
              .maker = rf_pool_alloc(pool, tensors * sizeof(int)),
              .map = rf_pool_alloc(pool, tensors * sizeof(int)),
              .low = rf_pool_alloc(pool, params * sizeof(int)),
              .high = rf_pool_alloc(pool, params * sizeof(int)),
              .written = rf_pool_alloc(pool, params)};
  rf_status status;
  bool ended = false, backward = false;
  int last = RF_NONE;
  graph->job = whole->job;
  graph->accumulate = whole->accumulate;
  graph->matmul = whole->matmul;
  graph->rows = whole->rows;
  graph->seq = whole->seq;
  RF_GO(find_pieces(&s));
  for (int o = 0; o < whole->op_count; o++) {
    const rf_op *op = &whole->op[o];
    if (op->section == RF_SECTION_MICRO) {
      RF_GO(micro_op(&s, o, &last, &backward));
      continue;
    }
    graph->chunk = 0;
    if (op->section == RF_SECTION_END && !ended) {
      ended = true;
      RF_GO(exchange_shared(&s));
    }
    if (op->def == &RF_OP_NORM_SQ && s.trained == 0)
      graph->tensor[tensor_here(&s, op->output[0])].shape[0] = count_trained(&s);
    RF_GO(end_op(&s, op));
  }
  *out = graph;
  return RAFTER_OK;
done:
  rf_graph_free(graph);
  return status;
}
