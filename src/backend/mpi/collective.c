/* collective.c - collectives of the backends cpu and reference: one rank of MPI is one chip. A
 * collective consists of messages between two ranks, and adds values in chip order. So the bits of
 * a result depend on the mesh, but not on the MPI library.
 *
 * Messages are split into chunks. While the chunks of one round are on their way, a rank unpacks or
 * sums the chunks of the round before. A chunk that is contiguous in its tensor needs no copy. */
#include "backend/mpi/mpi.h"
#include "backend/mpi/exchange.h"
#include "backend/reference/element.h"
#include "graph/mesh/place.h"

#include <math.h>
#include <string.h>

enum {
  CHUNK_BYTES =
      256 << 10, /* size of a chunk that is packed, unpacked or summed; such a chunk stays in the L2 cache */
  DIRECT_BYTES = 4 << 20, /* size of any other chunk */
  ALL_TO_ALL_REDUCE =
      32 << 10, /* up to this size, every rank computes all sums, which needs fewer rounds of messages */
};

static int64_t slot_bytes(int64_t chunk, int64_t size) { return rf_round_up(chunk * size, 64); }

/* ---- groups and sizes ------------------------------------------------------------------------ */

static int64_t largest_message(const rf_graph *graph, const rf_op *op) {
  int64_t most = 0, group = op->attr.group;
  for (int64_t r = 0; r < group; r++) {
    int64_t a = rf_boxes_of(graph, op, r, 0).elements, b = rf_boxes_of(graph, op, 0, r).elements;
    most = a > most ? a : most;
    most = b > most ? b : most;
  }
  return most;
}

static bool sums(const rf_op *op) {
  return op->def->exchange == RF_EXCHANGE_REDUCE_SCATTER || op->def->exchange == RF_EXCHANGE_ALL_REDUCE;
}

/* Elements of a chunk. Sender and receiver of a message get the same result. */
static int64_t chunk_of(const rf_graph *graph, const rf_op *op) {
  int64_t size = rf_dtype_bytes(graph->tensor[op->input[0]].dtype), at, most = largest_message(graph, op);
  rf_boxes a = rf_boxes_of(graph, op, 0, op->attr.group - 1),
           b = rf_boxes_of(graph, op, op->attr.group - 1, 0);
  bool direct = !sums(op) && op->attr.accumulate[0] == RF_WRITE && rf_boxes_direct(&a, false, &at) &&
                rf_boxes_direct(&b, true, &at);
  int64_t chunk = (direct ? DIRECT_BYTES : CHUNK_BYTES) / size;
  return most < chunk ? most : chunk;
}

/* True if messages pass through the workspace on any rank. */
static bool needs_room(const rf_graph *graph, const rf_op *op) {
  int64_t at;
  if (sums(op) || op->attr.accumulate[0] != RF_WRITE) return true;
  for (int64_t r = 0; r < op->attr.group; r++) {
    rf_boxes a = rf_boxes_of(graph, op, r, 0), b = rf_boxes_of(graph, op, 0, r);
    if (!rf_boxes_direct(&a, false, &at) || !rf_boxes_direct(&a, true, &at) ||
        !rf_boxes_direct(&b, false, &at) || !rf_boxes_direct(&b, true, &at))
      return true;
  }
  return false;
}

size_t rf_exchange_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  if (!needs_room(graph, op)) return 0;
  int64_t size = rf_dtype_bytes(graph->tensor[op->input[0]].dtype), chunk = chunk_of(graph, op);
  return (size_t)(2 * op->attr.group * 2 * slot_bytes(chunk, size) + slot_bytes(chunk, 8));
}

int rf_exchange_rank(const exchange *e, int64_t member) {
  const rf_mesh *mesh = &e->call->graph->mesh;
  int64_t left = e->first + member, number = 0;
  for (int a = RF_AXES - 1, step = 1; a >= 0; a--) {
    int64_t extent = rf_mesh_extent(mesh, (rf_axis)a), at = e->call->run->place[a];
    if (e->call->op->attr.axes & RF_AXIS_BIT(a)) {
      at = left % extent;
      left /= extent;
    }
    number += at * step;
    step *= (int)extent;
  }
  return (int)number;
}

static exchange begin(const rf_call *call, const rf_link_flight *flight) {
  const rf_op *op = call->op;
  exchange e = {.call = call, .link = call->link, .in = call->in[0], .out = call->out[0]};
  for (int k = 0; k < 2; k++) e.message[k] = flight ? rf_link_group_of(flight, k) : k;
  int64_t rank = rf_rank_of(call);
  e.group = op->attr.group;
  e.first = e.group < rf_mesh_size(&call->graph->mesh, op->attr.axes) ? rank / e.group * e.group : 0;
  e.rank = rank - e.first;
  e.size = rf_dtype_bytes(rf_in(call, 0)->dtype);
  e.chunk = chunk_of(call->graph, op);
  e.room = call->workspace;
  e.adds = adds(call, 0);
  return e;
}

/* Memory for the chunk that comes from a member (or goes to a member) in round `k`. */
static unsigned char *slot(const exchange *e, int64_t k, int64_t member, bool sends) {
  return e->room + (((k & 1) * e->group + member) * 2 + sends) * slot_bytes(e->chunk, e->size);
}
/* Memory for one chunk of sums. */
static void *sum_room(const exchange *e) { return e->room + 4 * e->group * slot_bytes(e->chunk, e->size); }

/* ---- chunks ---------------------------------------------------------------------------------- */

typedef struct copied {
  unsigned char *tensor, *chunk;
  int64_t size;
} copied;

static void take_run(void *self, int64_t at, int64_t done, int64_t count) {
  const copied *c = self;
  memcpy(c->chunk + done * c->size, c->tensor + at * c->size, (size_t)(count * c->size));
}

static void put_run(void *self, int64_t at, int64_t done, int64_t count) {
  const copied *c = self;
  memcpy(c->tensor + at * c->size, c->chunk + done * c->size, (size_t)(count * c->size));
}

typedef struct added {
  rf_view out, chunk;
} added;

static void add_run(void *self, int64_t at, int64_t done, int64_t count) {
  const added *a = self;
  for (int64_t i = 0; i < count; i++) store(a->out, at + i, load(a->out, at + i) + load(a->chunk, done + i));
}

/* Elements [from, from + count) of a message. */
typedef struct part {
  int64_t from, count;
} part;
static part chunk_at(part whole, int64_t k, int64_t chunk) {
  int64_t from = k * chunk < whole.count ? k * chunk : whole.count;
  return (part){whole.from + from, whole.count - from < chunk ? whole.count - from : chunk};
}

/* The address of a part of a message that this rank sends. Packs the part if it is not
 * contiguous. */
static const unsigned char *packed(const exchange *e, const rf_boxes *boxes, part p, unsigned char *room) {
  int64_t at;
  if (rf_boxes_direct(boxes, false, &at)) return e->in + (at + p.from) * e->size;
  copied c = {(unsigned char *)(uintptr_t)e->in, room, e->size};
  rf_boxes_runs(boxes, false, p.from, p.count, take_run, &c);
  return room;
}

/* Puts a part of a message into the output. */
static void unpack(const exchange *e, const rf_boxes *boxes, part p, const unsigned char *chunk) {
  copied c = {e->out, (unsigned char *)(uintptr_t)chunk, e->size};
  added a = {out_view(e->call, 0), {.data = (void *)(uintptr_t)chunk, .dtype = rf_in(e->call, 0)->dtype}};
  rf_boxes_runs(boxes, true, p.from, p.count, e->adds ? add_run : put_run, e->adds ? (void *)&a : (void *)&c);
}

static rf_boxes boxes_of(const exchange *e, int64_t from, int64_t to) {
  return rf_boxes_of(e->call->graph, e->call->op, from, to);
}

/* ---- moving: all_gather, all_to_all, permute ------------------------------------------------- */

/* The address in the output at which the message can arrive; NULL: the message must be unpacked. */
static unsigned char *landing(const exchange *e, const rf_boxes *boxes, part p) {
  int64_t at;
  return !e->adds && rf_boxes_direct(boxes, true, &at) ? e->out + (at + p.from) * e->size : NULL;
}

static void post_moves(const exchange *e, int64_t k) {
  for (int64_t d = 1; d < e->group; d++) { /* every rank begins with another member */
    int64_t from = (e->rank + e->group - d) % e->group, to = (e->rank + d) % e->group;
    rf_boxes in = boxes_of(e, from, e->rank), out = boxes_of(e, e->rank, to);
    part p = chunk_at((part){0, in.elements}, k, e->chunk),
         q = chunk_at((part){0, out.elements}, k, e->chunk);
    if (p.count > 0) {
      unsigned char *at = landing(e, &in, p);
      rf_link_begin_receive(e->link, e->message[k & 1], rf_exchange_rank(e, from),
                            at ? at : slot(e, k, from, false), p.count * e->size);
    }
    if (q.count > 0)
      rf_link_begin_send(e->link, e->message[k & 1], rf_exchange_rank(e, to),
                         packed(e, &out, q, slot(e, k, to, true)), q.count * e->size);
  }
}

static void finish_moves(const exchange *e, int64_t k) {
  for (int64_t from = 0; from < e->group; from++) {
    rf_boxes in = boxes_of(e, from, e->rank);
    part p = chunk_at((part){0, in.elements}, k, e->chunk);
    if (p.count == 0) continue;
    unsigned char *own = slot(e, k, from, false);
    if (from == e->rank) unpack(e, &in, p, packed(e, &in, p, own));
    else if (!landing(e, &in, p)) unpack(e, &in, p, own);
  }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Adds the values of one chip in f32. Calls for the chips of the group come in chip order. The
 * result replaces `sum`. */
static void sum_f32(float *restrict sum, const void *data, rf_dtype dtype, bool first, int64_t count) {
  const float *x = data;
  const rf_bf16 *b = data;
  if (dtype == RF_F32 && first) memcpy(sum, x, (size_t)count * sizeof *sum);
  else if (dtype == RF_F32)
    for (int64_t i = 0; i < count; i++) sum[i] += x[i];
  else
    for (int64_t i = 0; i < count; i++) sum[i] = (first ? 0.0f : sum[i]) + rf_bf16_to_f32(b[i]);
}

static void sum_f64(double *restrict sum, const double *x, bool first, int64_t count) {
  for (int64_t i = 0; i < count; i++) sum[i] = (first ? 0.0 : sum[i]) + x[i];
}

/* Computes log(sum of exp(x)). The largest x is subtracted first. */
static void log_sum(double *sum, const unsigned char *const *list, int64_t group, rf_dtype dtype,
                    int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    double most = -INFINITY, total = 0;
    for (int64_t r = 0; r < group; r++) {
      double x = load((rf_view){.data = (void *)(uintptr_t)list[r], .dtype = dtype}, i);
      most = x > most ? x : most;
    }
    for (int64_t r = 0; r < group && most > -INFINITY; r++)
      total += exp(load((rf_view){.data = (void *)(uintptr_t)list[r], .dtype = dtype}, i) - most);
    sum[i] = most > -INFINITY ? most + log(total) : most;
  }
}

enum { MOST_CHIPS = 4096 };

/* Lists the chunks of all chips for one part, in chip order. */
static void chunks_of(const exchange *e, const rf_boxes *boxes, part p, int64_t k,
                      const unsigned char *list[MOST_CHIPS]) {
  for (int64_t r = 0; r < e->group; r++)
    list[r] = r == e->rank ? packed(e, boxes, p, slot(e, k, r, true)) : slot(e, k, r, false);
}

/* Sums one part of all chips. Returns the chunk with the sums. */
static rf_view sum_part(const exchange *e, const rf_boxes *boxes, part p, int64_t k) {
  const unsigned char *list[MOST_CHIPS];
  rf_dtype dtype = rf_in(e->call, 0)->dtype;
  bool logs = e->call->op->attr.collective.log_sum, wide = dtype == RF_F64 || logs;
  void *sum = sum_room(e);
  chunks_of(e, boxes, p, k, list);
  if (logs) log_sum(sum, list, e->group, dtype, p.count);
  for (int64_t r = 0; r < e->group && !logs; r++) {
    if (wide) sum_f64(sum, (const double *)(const void *)list[r], r == 0, p.count);
    else sum_f32(sum, list[r], dtype, r == 0, p.count);
  }
  return (rf_view){.data = sum, .dtype = wide ? RF_F64 : RF_F32};
}

/* Computes the same sums with fewer passes over memory, in blocks that fit in the L1 cache. The
 * output must be contiguous, and either f32, or bf16 without accumulation. Returns false for other
 * outputs. */
static bool sum_into_output(const exchange *e, const rf_boxes *boxes, part p, int64_t k) {
  enum { BLOCK = 1024 };
  const unsigned char *list[MOST_CHIPS];
  float sum[BLOCK];
  rf_dtype dtype = rf_in(e->call, 0)->dtype, to = rf_out(e->call, 0)->dtype;
  int64_t at;
  bool half = to == RF_BF16 && !e->adds;
  if (e->call->op->attr.collective.log_sum || dtype == RF_F64 || !(to == RF_F32 || half) ||
      !rf_boxes_direct(boxes, true, &at))
    return false;
  float *y = (float *)(void *)e->out + at + p.from;
  rf_bf16 *z = (rf_bf16 *)(void *)e->out + at + p.from;
  chunks_of(e, boxes, p, k, list);
  for (int64_t i = 0; i < p.count; i += BLOCK) {
    int64_t n = p.count - i < BLOCK ? p.count - i : BLOCK;
    for (int64_t r = 0; r < e->group; r++) sum_f32(sum, list[r] + i * e->size, dtype, r == 0, n);
    for (int64_t j = 0; j < n && half; j++) z[i + j] = rf_f32_to_bf16(sum[j]);
    for (int64_t j = 0; j < n && !half; j++) y[i + j] = e->adds ? y[i + j] + sum[j] : sum[j];
  }
  return true;
}

typedef struct stored {
  rf_view out, sum;
  bool adds;
} stored;

static void store_run(void *self, int64_t at, int64_t done, int64_t count) {
  const stored *s = self;
  if (s->out.dtype == RF_F32 && s->sum.dtype == RF_F32) {
    float *y = (float *)s->out.data + at;
    const float *x = (const float *)s->sum.data + done;
    for (int64_t i = 0; i < count; i++) y[i] = s->adds ? y[i] + x[i] : x[i];
    return;
  }
  for (int64_t i = 0; i < count; i++)
    store(s->out, at + i, (s->adds ? load(s->out, at + i) : 0.0) + load(s->sum, done + i));
}

static void store_sums(const exchange *e, const rf_boxes *boxes, part p, rf_view sum) {
  stored s = {out_view(e->call, 0), sum, e->adds};
  rf_boxes_runs(boxes, true, p.from, p.count, store_run, &s);
}

static part equal_share(const rf_boxes *boxes, int64_t member, int64_t group) {
  int64_t from = boxes->elements * member / group;
  return (part){from, boxes->elements * (member + 1) / group - from};
}

/* The elements of a message whose sums `member` computes. */
static part share_of(const exchange *e, const rf_boxes *boxes, int64_t member) {
  return e->shares ? equal_share(boxes, member, e->group) : (part){0, boxes->elements};
}

static void post_sums(const exchange *e, int64_t k) {
  for (int64_t d = 1; d < e->group; d++) {
    int64_t from = (e->rank + e->group - d) % e->group, to = (e->rank + d) % e->group;
    rf_boxes in = boxes_of(e, from, e->rank), out = boxes_of(e, e->rank, to);
    part p = chunk_at(share_of(e, &in, e->rank), k, e->chunk),
         q = chunk_at(share_of(e, &out, to), k, e->chunk);
    if (p.count > 0)
      rf_link_begin_receive(e->link, e->message[k & 1], rf_exchange_rank(e, from), slot(e, k, from, false),
                            p.count * e->size);
    if (q.count > 0)
      rf_link_begin_send(e->link, e->message[k & 1], rf_exchange_rank(e, to),
                         packed(e, &out, q, slot(e, k, to, true)), q.count * e->size);
  }
}

static void finish_sums(const exchange *e, int64_t k) {
  rf_boxes own = boxes_of(e, e->rank, e->rank);
  part p = chunk_at(share_of(e, &own, e->rank), k, e->chunk);
  if (p.count > 0 && !sum_into_output(e, &own, p, k)) store_sums(e, &own, p, sum_part(e, &own, p, k));
}

static int64_t rounds_of_sums(const exchange *e) {
  int64_t most = 0;
  for (int64_t r = 0; r < e->group; r++) {
    rf_boxes boxes = boxes_of(e, r, r);
    int64_t count = share_of(e, &boxes, r).count;
    most = count > most ? count : most;
  }
  return e->chunk ? rf_ceil_div(most, e->chunk) : 0;
}

/* The second half of an all_reduce. The output of each rank has the sums of this rank's share, and
 * the rank sends these sums to the others. */
static rf_boxes boxes_of_sums(const exchange *e) {
  rf_boxes boxes = boxes_of(e, e->rank, e->rank);
  /* the elements have the same positions in the input and the output */
  for (int i = 0; i < boxes.count; i++) {
    memcpy(boxes.box[i].from_stride, boxes.box[i].to_stride, sizeof boxes.box[i].to_stride);
    boxes.box[i].from_at = boxes.box[i].to_at;
  }
  return boxes;
}

static void post_shares(const exchange *e, int64_t k) {
  const rf_boxes boxes = boxes_of_sums(e);
  exchange out = *e;
  out.in = e->out;
  for (int64_t d = 1; d < e->group; d++) {
    int64_t from = (e->rank + e->group - d) % e->group, to = (e->rank + d) % e->group;
    part p = chunk_at(equal_share(&boxes, from, e->group), k, e->chunk),
         q = chunk_at(equal_share(&boxes, e->rank, e->group), k, e->chunk);
    unsigned char *at = landing(&out, &boxes, p);
    if (p.count > 0)
      rf_link_begin_receive(e->link, e->message[k & 1], rf_exchange_rank(e, from),
                            at ? at : slot(e, k, from, false), p.count * e->size);
    if (q.count > 0)
      rf_link_begin_send(e->link, e->message[k & 1], rf_exchange_rank(e, to),
                         packed(&out, &boxes, q, slot(e, k, to, true)), q.count * e->size);
  }
}

static void finish_shares(const exchange *e, int64_t k) {
  const rf_boxes boxes = boxes_of_sums(e);
  for (int64_t from = 0; from < e->group; from++) {
    part p = chunk_at(equal_share(&boxes, from, e->group), k, e->chunk);
    if (from != e->rank && p.count > 0 && !landing(e, &boxes, p))
      unpack(e, &boxes, p, slot(e, k, from, false));
  }
}

/* Copies the columns that the all_reduce does not sum. */
static void copy_own_columns(const exchange *e) {
  const rf_tensor *x = rf_in(e->call, 0);
  int64_t columns = x->shape[x->rank - 1], own = e->call->op->attr.collective.own_columns,
          rows = columns ? rf_tensor_count(x) / columns : 0;
  rf_view in = in_view(e->call, 0), out = out_view(e->call, 0);
  if (e->in == e->out) return;
  for (int64_t i = 0; i < rows * columns; i++)
    if (i % columns < own) store(out, i, (e->adds ? load(out, i) : 0.0) + load(in, i));
}

static void add_rounds(exchange *e, int64_t count, void (*post)(const exchange *, int64_t),
                       void (*finish)(const exchange *, int64_t)) {
  e->phase[e->phases++] = (rounds){.count = count, .post = post, .finish = finish};
}

exchange rf_exchange_begin(const rf_call *call, const rf_link_flight *flight) {
  exchange e = begin(call, flight);
  rf_exchange_kind kind = call->op->def->exchange;
  if (kind == RF_EXCHANGE_ALL_REDUCE) {
    rf_boxes boxes = boxes_of(&e, 0, 0);
    if (call->op->attr.collective.own_columns > 0) copy_own_columns(&e);
    /* an output that accumulates also has earlier values, so ranks cannot send sums from the
     * output */
    e.shares = !e.adds && boxes.elements * e.size > ALL_TO_ALL_REDUCE;
    add_rounds(&e, rounds_of_sums(&e), post_sums, finish_sums);
    int64_t largest_share = rf_ceil_div(boxes.elements, e.group) + 1;
    if (e.shares) add_rounds(&e, rf_ceil_div(largest_share, e.chunk), post_shares, finish_shares);
  } else if (kind == RF_EXCHANGE_REDUCE_SCATTER) {
    /* sets the padding of the last part to 0 */
    if (!e.adds && boxes_of(&e, e.rank, e.rank).elements < rf_tensor_count(rf_out(call, 0)))
      memset(e.out, 0, (size_t)rf_tensor_bytes(rf_out(call, 0)));
    add_rounds(&e, rounds_of_sums(&e), post_sums, finish_sums);
  } else {
    int64_t largest = largest_message(call->graph, call->op);
    add_rounds(&e, e.chunk ? rf_ceil_div(largest, e.chunk) : 0, post_moves, finish_moves);
  }
  return e;
}

/* Posts the messages of a round before it finishes the previous round. */
bool rf_exchange_advance(exchange *e, bool waits) {
  for (; e->now < e->phases; e->now++) {
    rounds *r = &e->phase[e->now];
    for (; r->next <= r->count; r->next++) {
      int64_t k = r->next;
      if (r->posted == k && k < r->count) {
        r->post(e, k);
        r->posted++;
      }
      if (k == 0) continue;
      int group = e->message[(k - 1) & 1];
      if (waits ? !rf_link_wait(e->link, group) : !rf_link_done(e->link, group)) return waits;
      if (e->link->failed) return true;
      r->finish(e, k - 1);
    }
  }
  return true;
}

/* ---- the table ------------------------------------------------------------------------------- */

bool rf_exchange_has_group(const rf_graph *graph, const rf_op *op) {
  (void)graph;
  return op->attr.group > 1 && op->attr.group <= MOST_CHIPS;
}

bool rf_exchange_has_sums(const rf_graph *graph, const rf_op *op) {
  rf_dtype dtype = graph->tensor[op->input[0]].dtype;
  return rf_exchange_has_group(graph, op) && (dtype == RF_F32 || dtype == RF_BF16 || dtype == RF_F64);
}

/* The link records these waits as waits of an exchange. */
static void run(const rf_call *call) {
  rf_link_begin_exchange(call->link);
  exchange e = rf_exchange_begin(call, NULL);
  rf_exchange_advance(&e, true);
  rf_link_end_exchange(call->link);
}

#define MPI(ACCEPTS) .name = "mpi", .accepts = ACCEPTS, .workspace_bytes = rf_exchange_workspace, .run = run
const rf_kernel RF_MPI_COLLECTIVES[] = {
    {.op = "all_gather", MPI(rf_exchange_has_group)}, {.op = "all_to_all", MPI(rf_exchange_has_group)},
    {.op = "permute", MPI(rf_exchange_has_group)},    {.op = "reduce_scatter", MPI(rf_exchange_has_sums)},
    {.op = "all_reduce", MPI(rf_exchange_has_sums)},  {.op = NULL},
};
