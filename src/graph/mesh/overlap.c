/* overlap.c - lets exchanges run while the chip computes. A collective whose result is not needed
 * at once becomes two ops: one begins it, and exchange_wait ends it before the first op that needs
 * the result. The gathers of weights already run before their readers (shard_exchange.c). The norm
 * and the update of a gradient follow its sum at once. So the norm and the update move to a later
 * place, in their order, and backward ops run in between. No other op moves, so no sum gets another
 * order.
 *
 * If `most` exchanges already run, the oldest exchange must end before the next one begins. All
 * exchanges end in the section in which they begin. */
#include "graph/mesh/overlap.h"
#include "graph/passes.h"

#include <string.h>

typedef enum piece { WHOLE, START, WAIT } piece;
typedef struct item {
  int op; /* number of the op in the graph before the pass */
  piece which;
} item;

typedef struct splitter {
  rf_graph *graph;
  int most;
  bool *whole;    /* for each op: true if the op stays one op */
  bool *in_place; /* for each op: true if an all_reduce may write its sums over its input */
  int *same;      /* for each tensor: the tensor that replaces it */
  item *item;     /* the new order */
  int items;
  int flight[RF_OVERLAP_MOST], flights; /* ops whose exchanges run; the oldest is first */
  int *later, first_later, last_later;  /* ops that will follow when the exchanges before them have ended */
  /* for each tensor: number of these ops that read the tensor, or write it */
  int *reads, *writes;
} splitter;

static const rf_op_def *start_of(const rf_op_def *def) {
  static const rf_op_def *const pairs[][2] = {{&RF_OP_ALL_GATHER, &RF_OP_ALL_GATHER_START},
                                              {&RF_OP_REDUCE_SCATTER, &RF_OP_REDUCE_SCATTER_START},
                                              {&RF_OP_ALL_REDUCE, &RF_OP_ALL_REDUCE_START}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    if (pairs[i][0] == def) return pairs[i][1];
  return NULL;
}

bool rf_overlap_may_split(const rf_op *op) { return op->attr.group > 1 && start_of(op->def) != NULL; }

static bool splits(const splitter *s, int o) {
  return !s->whole[o] && rf_overlap_may_split(&s->graph->op[o]);
}

/* ---- operands -------------------------------------------------------------------------------- */

static int input(const splitter *s, const rf_op *op, int i) {
  return op->input[i] < 0 ? RF_NONE : s->same[op->input[i]];
}
static int output(const splitter *s, const rf_op *op, int i) {
  return op->output[i] < 0 ? RF_NONE : s->same[op->output[i]];
}

/* Index of an exchange in flight that an op must wait for, because the op uses the exchange's
 * output or writes its input. RF_NONE: the op waits for none. */
static int flight_before(const splitter *s, const rf_op *op) {
  for (int f = 0; f < s->flights; f++) {
    const rf_op *of = &s->graph->op[s->flight[f]];
    int x = input(s, of, 0), y = output(s, of, 0);
    for (int i = 0; i < op->input_count; i++)
      if (input(s, op, i) == y) return f;
    for (int i = 0; i < op->output_count; i++)
      if (output(s, op, i) == y || output(s, op, i) == x) return f;
  }
  return RF_NONE;
}

/* True if an op must follow an op that will run later. */
static bool follows_later(const splitter *s, const rf_op *op) {
  for (int i = 0; i < op->input_count; i++)
    if (input(s, op, i) >= 0 && s->writes[input(s, op, i)]) return true;
  for (int i = 0; i < op->output_count; i++) {
    int t = output(s, op, i);
    if (t >= 0 && (s->reads[t] || s->writes[t])) return true;
  }
  return false;
}

static void count_operands(splitter *s, const rf_op *op, int by) {
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] >= 0) s->reads[input(s, op, i)] += by;
  for (int i = 0; i < op->output_count; i++)
    if (op->output[i] >= 0) s->writes[output(s, op, i)] += by;
}

/* ---- the new order --------------------------------------------------------------------------- */

static void put(splitter *s, int op, piece which) { s->item[s->items++] = (item){op, which}; }

static void put_op(splitter *s, int o) {
  put(s, o, splits(s, o) ? START : WHOLE);
  if (splits(s, o)) s->flight[s->flights++] = o;
}

/* Waits until exchange f in flight has ended. Then the ops that waited for the exchange can run. */
static void end_flight(splitter *s, int f) {
  put(s, s->flight[f], WAIT);
  s->flights--;
  memmove(s->flight + f, s->flight + f + 1, (size_t)(s->flights - f) * sizeof *s->flight);
  while (s->first_later < s->last_later) {
    int o = s->later[s->first_later];
    const rf_op *op = &s->graph->op[o];
    if (flight_before(s, op) != RF_NONE || (splits(s, o) && s->flights == s->most)) return;
    s->first_later++;
    count_operands(s, op, -1);
    put_op(s, o);
  }
}

static void add_op(splitter *s, int o) {
  const rf_op *op = &s->graph->op[o];
  bool follows = follows_later(s, op);
  int f = flight_before(s, op);
  if ((f != RF_NONE && op->def->kind == RF_KIND_OPTIMIZER) ||
      (follows && (op->def->kind == RF_KIND_OPTIMIZER || rf_op_is_exchange(op->def)))) {
    s->later[s->last_later++] = o;
    count_operands(s, op, 1);
    return;
  }
  while (follows_later(s, op)) end_flight(s, 0);
  while ((f = flight_before(s, op)) != RF_NONE) end_flight(s, f);
  while (splits(s, o) && s->flights == s->most) end_flight(s, 0);
  put_op(s, o);
}

static void order_ops(splitter *s) {
  const rf_graph *graph = s->graph;
  s->items = s->flights = s->first_later = s->last_later = 0;
  for (int t = 0; t < graph->tensor_count; t++) s->same[t] = t;
  for (int o = 0; o < graph->op_count; o++)
    if (s->in_place[o] && splits(s, o)) s->same[graph->op[o].output[0]] = s->same[graph->op[o].input[0]];
  for (int o = 0; o < graph->op_count; o++) {
    if (o > 0 && graph->op[o].section != graph->op[o - 1].section)
      while (s->flights) end_flight(s, 0);
    add_op(s, o);
  }
  while (s->flights) end_flight(s, 0);
}

/* If only waits are between the start and the wait of an exchange, the exchange stays one op.
 * Returns true if the graph has such exchanges. */
static bool find_whole(splitter *s) {
  bool found = false;
  for (int i = 0; i < s->items; i++) {
    int k = i + 1;
    if (s->item[i].which != START) continue;
    while (s->item[k].which == WAIT && s->item[k].op != s->item[i].op) k++;
    if (s->item[k].which != WAIT) continue;
    s->whole[s->item[i].op] = found = true;
  }
  return found;
}

/* An all_reduce sums in place if nothing else needs its input. The layout does the same for an
 * all_reduce that is one op. */
static void find_in_place(splitter *s) {
  const rf_graph *graph = s->graph;
  int *last = rf_pool_alloc(graph->pool, ((size_t)graph->tensor_count + 1) * sizeof *last),
      *first = rf_pool_alloc(graph->pool, ((size_t)graph->tensor_count + 1) * sizeof *first);
  for (int t = 0; t < graph->tensor_count; t++) first[t] = RF_NONE;
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    for (int k = 0; k < op->input_count + op->output_count; k++) {
      int t = k < op->input_count ? op->input[k] : op->output[k - op->input_count];
      if (t < 0) continue;
      if (first[t] == RF_NONE) first[t] = o;
      last[t] = o;
    }
  }
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    if (op->def != &RF_OP_ALL_REDUCE || op->attr.accumulate[0] != RF_WRITE) continue;
    const rf_tensor *x = &graph->tensor[op->input[0]], *y = &graph->tensor[op->output[0]];
    bool kept = x->persistent || x->input || x->output || y->persistent || y->output;
    s->in_place[o] = !kept && x != y && last[op->input[0]] == o && first[op->output[0]] == o &&
                     rf_tensor_same_storage(x, y);
  }
}

static rf_status rewrite(splitter *s, rf_error *error) {
  rf_graph *graph = s->graph;
  int *order = rf_pool_alloc(graph->pool, ((size_t)s->items + 1) * sizeof *order), ops = graph->op_count;
  for (int o = 0; o < ops; o++) {
    rf_op *op = &graph->op[o];
    for (int i = 0; i < op->input_count; i++) op->input[i] = input(s, op, i);
    for (int i = 0; i < op->output_count; i++) op->output[i] = output(s, op, i);
  }
  for (int i = 0; i < s->items; i++) {
    int o = order[i] = s->item[i].op;
    if (s->item[i].which != WAIT) continue;
    const rf_op op = graph->op[o]; /* a copy, because a new op may move the array */
    rf_attr attr = op.attr;
    attr.accumulate[0] = RF_ACCUMULATE_ADD; /* the op that starts the exchange has written the output */
    int wait = rf_graph_emit(graph, &RF_OP_EXCHANGE_WAIT, rf_graph_join(graph, op.name, "/wait", ""),
                             op.section, RF_IDS(op.input[0]), RF_IDS(op.output[0]), &attr, error);
    if (wait < 0) return RAFTER_INVALID;
    graph->op[wait].backward = op.backward;
    graph->op[wait].at = op.at;
    graph->op[wait].chunk = op.chunk;
    order[i] = wait;
  }
  for (int i = 0; i < s->items; i++) {
    rf_op *op = &graph->op[s->item[i].op];
    if (s->item[i].which != START) continue;
    op->def = start_of(op->def);
    op->name = rf_graph_join(graph, op->name, "/start", "");
  }
  rf_graph_reorder(graph, order, s->items);
  return RAFTER_OK;
}

rf_status rf_pass_overlap(rf_graph *graph, int most, rf_error *error) {
  size_t ops = (size_t)graph->op_count + 1, tensors = (size_t)graph->tensor_count + 1;
  rf_pool *pool = graph->pool;
  splitter s = {.graph = graph,
                .most = most < RF_OVERLAP_MOST ? most : RF_OVERLAP_MOST,
                .whole = rf_pool_alloc(pool, ops),
                .in_place = rf_pool_alloc(pool, ops),
                .same = rf_pool_alloc(pool, tensors * sizeof(int)),
                .item = rf_pool_alloc(pool, 2 * ops * sizeof(item)),
                .later = rf_pool_alloc(pool, ops * sizeof(int)),
                .reads = rf_pool_alloc(pool, tensors * sizeof(int)),
                .writes = rf_pool_alloc(pool, tensors * sizeof(int))};
  if (s.most < 1) return RAFTER_OK;
  find_in_place(&s);
  do order_ops(&s);
  while (find_whole(&s));
  return rewrite(&s, error);
}
