/* pipe.c - see pipe.h. */
#include "backend/mpi/pipe.h"
#include "backend/mpi/link.h"
#include "backend/reference/element.h"
#include "graph/mesh/place.h"

#include <stdlib.h>
#include <string.h>

/* A send or recv op of the section micro. */
typedef struct passage {
  int op, tensor;
  int rank, channel;
  int number, parts; /* number: number of its first message in the link */
  int last;          /* for a recv: the pass after which the slot of a microbatch is free */
  int posted;        /* for a recv: number of microbatches whose receives were posted in this step */
  bool out;
  bool early; /* for a recv: true if no other tensor uses the slots during the section */
} passage;

struct rf_pipe {
  rf_pipe_source source;
  passage *passage;
  int passages;
  int *of_op; /* (ops) index of the passage, or RF_NONE */
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool is_transfer(const rf_op *op) { return op->def == &RF_OP_SEND || op->def == &RF_OP_RECV; }

/* The rank of another stage that has the coordinates of this chip on all other axes. */
static int rank_of_stage(const rf_graph *graph, int rank, int stage) {
  int32_t place[RF_AXES];
  rf_place_of(&graph->mesh, rank, place);
  place[RF_AXIS_PIPELINE] = stage;
  return (int)rf_mesh_rank(&graph->mesh, (rf_axes)0xff, place);
}

/* The pass of a microbatch that uses a tensor last. */
static int last_half(const rf_pipe_source *s, int tensor) {
  int last = RF_NONE, latest = -1;
  for (int o = 0; o < s->graph->op_count; o++) {
    const rf_op *op = &s->graph->op[o];
    bool uses = false;
    for (int i = 0; i < op->input_count; i++) uses |= op->input[i] == tensor;
    for (int i = 0; i < op->output_count; i++) uses |= op->output[i] == tensor;
    if (!uses || s->half[o] < 0) continue;
    int at = 0;
    while (s->order[at].micro || 2 * s->order[at].chunk + s->order[at].backward != s->half[o]) at++;
    if (at > latest) {
      latest = at;
      last = s->half[o];
    }
  }
  return last;
}

static passage passage_of(const rf_pipe_source *s, int o) {
  const rf_op *op = &s->graph->op[o];
  passage p = {.op = o, .out = op->def == &RF_OP_SEND};
  p.tensor = p.out ? op->input[0] : op->output[0];
  const rf_tensor *tensor = &s->graph->tensor[p.tensor];
  p.rank = rank_of_stage(s->graph, s->link->rank, op->attr.transfer.stage);
  p.parts = (int)rf_ceil_div(rf_tensor_bytes(tensor), RF_LINK_BYTES);
  p.early = rf_slots_are_held(tensor, &s->graph->mesh);
  if (!p.out) p.last = last_half(s, p.tensor);
  return p;
}

/* Sender and receiver number their tensors in the same way: by site, and then by the order of the
 * ops. */
static bool comes_before(const rf_graph *graph, const passage *a, const passage *b) {
  uint64_t x = graph->op[a->op].attr.transfer.site, y = graph->op[b->op].attr.transfer.site;
  return x < y || (x == y && a->op < b->op);
}

static void number_channels(rf_pipe *pipe) {
  for (int i = 0; i < pipe->passages; i++)
    for (int k = 0; k < pipe->passages; k++) {
      const passage *other = &pipe->passage[k];
      passage *p = &pipe->passage[i];
      p->channel +=
          other->out == p->out && other->rank == p->rank && comes_before(pipe->source.graph, other, p);
    }
}

rf_status rf_pipe_open(const rf_pipe_source *source, rf_pipe **out, rf_error *error) {
  const rf_graph *graph = source->graph;
  int numbers = 0;
  rf_pipe *pipe = calloc(1, sizeof *pipe);
  *out = pipe;
  if (!pipe || !(pipe->passage = calloc((size_t)graph->op_count + 1, sizeof *pipe->passage)) ||
      !(pipe->of_op = malloc(((size_t)graph->op_count + 1) * sizeof *pipe->of_op)))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
  pipe->source = *source;
  for (int o = 0; o < graph->op_count; o++) {
    pipe->of_op[o] = RF_NONE;
    if (!is_transfer(&graph->op[o]) || graph->op[o].section != RF_SECTION_MICRO) continue;
    passage *p = &pipe->passage[pipe->of_op[o] = pipe->passages++];
    *p = passage_of(source, o);
    p->number = numbers;
    /* each slot can have its own messages in flight */
    numbers += p->parts * (p->early ? rf_slots_of(&graph->tensor[p->tensor]) : 1);
  }
  number_channels(pipe);
  return rf_link_reserve(source->link, numbers, error);
}

void rf_pipe_close(rf_pipe *pipe) {
  if (!pipe) return;
  free(pipe->passage);
  free(pipe->of_op);
  free(pipe);
}

/* ---- messages -------------------------------------------------------------------------------- */

static const rf_tensor *tensor_of(const rf_pipe *pipe, const passage *p) {
  return &pipe->source.graph->tensor[p->tensor];
}

/* Number of the first message of a microbatch. A stage sends only one tensor of a passage at a
 * time. */
static int number_of(const rf_pipe *pipe, const passage *p, int micro) {
  return p->number + (p->early && !p->out ? micro % rf_slots_of(tensor_of(pipe, p)) * p->parts : 0);
}

static void post(const rf_pipe *pipe, const passage *p, int micro) {
  int64_t bytes = rf_tensor_bytes(tensor_of(pipe, p));
  char *data = (char *)pipe->source.address[p->tensor] + rf_slot_at(tensor_of(pipe, p), micro);
  for (int i = 0; i < p->parts; i++) {
    int64_t at = (int64_t)i * RF_LINK_BYTES, left = bytes - at;
    const rf_link_post message = {.rank = p->rank,
                                  .channel = p->channel,
                                  .out = p->out,
                                  .data = data + at,
                                  .bytes = left < RF_LINK_BYTES ? left : RF_LINK_BYTES};
    if (!rf_link_post_message(pipe->source.link, number_of(pipe, p, micro) + i, &message)) return;
  }
}

static void finish(const rf_pipe *pipe, const passage *p, int micro) {
  for (int i = 0; i < p->parts; i++)
    if (!rf_link_finish(pipe->source.link, number_of(pipe, p, micro) + i)) return;
}

void rf_pipe_begin(rf_pipe *pipe) {
  for (int i = 0; i < pipe->passages; i++) {
    passage *p = &pipe->passage[i];
    p->posted = 0;
    while (!p->out && p->early && p->posted < rf_slots_of(tensor_of(pipe, p))) post(pipe, p, p->posted++);
  }
}

void rf_pipe_free_slots(rf_pipe *pipe, const rf_half *done) {
  for (int i = 0; i < pipe->passages; i++) {
    passage *p = &pipe->passage[i];
    bool frees = !p->out && p->early && p->last == 2 * done->chunk + done->backward;
    if (frees && p->posted < pipe->source.graph->accumulate) post(pipe, p, p->posted++);
  }
}

/* ---- kernels --------------------------------------------------------------------------------- */

static passage *passage_of_call(const rf_call *call) {
  int at = call->pipe->of_op[call->op - call->graph->op];
  return at == RF_NONE ? NULL : &call->pipe->passage[at];
}

/* If two stages use the same parameter, each stage adds the other stage's gradient after the last
 * microbatch. The op recv does this exchange, because the send must end before the sum replaces the
 * gradient. */
static void run_send(const rf_call *call) {
  const passage *p = passage_of_call(call);
  if (!p) return;
  post(call->pipe, p, call->run->micro);
  finish(call->pipe, p, call->run->micro);
}

enum { CHUNK = 1 << 16 }; /* number of elements of a gradient that one round exchanges */

static void add_chunk(const rf_call *call, const void *chunk, int64_t at, int64_t count) {
  rf_view out = out_view(call, 0), in = {.data = (void *)(uintptr_t)chunk, .dtype = rf_out(call, 0)->dtype};
  if (in.dtype == RF_F32) {
    float *y = (float *)call->out[0] + at;
    const float *x = chunk;
    for (int64_t i = 0; i < count; i++) y[i] += x[i];
    return;
  }
  for (int64_t i = 0; i < count; i++) store(out, at + i, load(out, at + i) + load(in, i));
}

static void exchange_gradients(const rf_call *call) {
  const rf_tensor *g = rf_out(call, 0);
  rf_link *link = call->link;
  int rank = rank_of_stage(call->graph, link->rank, call->op->attr.transfer.stage);
  int64_t all = rf_tensor_count(g), size = rf_dtype_bytes(g->dtype), rounds = rf_ceil_div(all, CHUNK);
  rf_link_begin_exchange(link);
  for (int64_t k = 0; k <= rounds; k++) {
    int64_t at = k * CHUNK, count = all - at < CHUNK ? all - at : CHUNK;
    if (k < rounds) {
      rf_link_begin_receive(link, k & 1, rank, (char *)call->workspace + (k & 1) * CHUNK * size,
                            count * size);
      rf_link_begin_send(link, k & 1, rank, (char *)call->out[0] + at * size, count * size);
    }
    if (k == 0) continue;
    at -= CHUNK;
    count = all - at < CHUNK ? all - at : CHUNK;
    if (!rf_link_wait(link, (k - 1) & 1)) break;
    add_chunk(call, (char *)call->workspace + ((k - 1) & 1) * CHUNK * size, at, count);
  }
  rf_link_end_exchange(link);
}

static void run_recv(const rf_call *call) {
  passage *p = passage_of_call(call);
  if (!p) {
    exchange_gradients(call);
    return;
  }
  if (!p->early) post(call->pipe, p, call->run->micro);
  finish(call->pipe, p, call->run->micro);
}

static bool has_stages(const rf_graph *graph, const rf_op *op) {
  (void)graph;
  return op->attr.group > 1;
}

static size_t recv_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  if (op->attr.accumulate[0] == RF_WRITE) return 0;
  return (size_t)(2 * CHUNK * rf_dtype_bytes(graph->tensor[op->output[0]].dtype));
}

const rf_kernel RF_MPI_TRANSFERS[] = {
    {.op = "send", .name = "mpi", .accepts = has_stages, .run = run_send},
    {.op = "recv", .name = "mpi", .accepts = has_stages, .workspace_bytes = recv_workspace, .run = run_recv},
    {.op = NULL},
};
