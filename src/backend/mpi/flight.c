/* flight.c - see flight.h. A flight keeps a copy of the call that began the flight, because the
 * interpreter changes its calls and their inputs from op to op. */
#include "backend/mpi/flight.h"
#include "backend/mpi/exchange.h"

#include <stdlib.h>

typedef struct flight {
  rf_link_flight link; /* first field, so that a pointer to the link's flight is a pointer to the flight */
  int op;
  rf_call call;
  rf_run_inputs run;
  exchange exchange;
  char *byte; /* (group) bytes that the chips of the group send when they have begun */
} flight;

struct rf_flights {
  const rf_graph *graph;
  rf_link *link;
  flight *flight;
  int count;
  int *of_op; /* (ops) index of the flight that an op begins or waits for, or RF_NONE */
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool waits_for(const rf_op *op, const rf_op *start) {
  return op->def->exchange == RF_EXCHANGE_WAIT && op->output[0] == start->output[0];
}

/* Flights that run at the same time get different numbers. */
static rf_status number_flights(rf_flights *f, rf_error *error) {
  bool taken[RF_LINK_FLIGHTS] = {false};
  const rf_graph *graph = f->graph;
  for (int o = 0; o < graph->op_count; o++) {
    int at = f->of_op[o], number = 0, wait = o + 1;
    if (at == RF_NONE) continue;
    flight *own = &f->flight[at];
    if (own->op != o) {
      taken[own->link.number] = false;
      continue;
    }
    while (wait < graph->op_count && f->of_op[wait] != at) wait++;
    if (wait == graph->op_count || graph->op[wait].section != graph->op[o].section)
      return RF_FAIL(error, RAFTER_FAILED, "this is a fault of the planner, please report it",
                     "no op of the section waits for an exchange (%s)", graph->op[o].name);
    while (number < RF_LINK_FLIGHTS && taken[number]) number++;
    if (number == RF_LINK_FLIGHTS)
      return RF_FAIL(error, RAFTER_FAILED, "this is a fault of the planner, please report it",
                     "too many exchanges run at a time (%s: expected at most %d)", graph->op[o].name,
                     RF_LINK_FLIGHTS);
    taken[own->link.number = number] = true;
  }
  return RAFTER_OK;
}

static bool find_flights(rf_flights *f) {
  const rf_graph *graph = f->graph;
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    f->of_op[o] = RF_NONE;
    if (op->def->exchange == RF_EXCHANGE_WAIT)
      for (int i = f->count - 1; i >= 0 && f->of_op[o] == RF_NONE; i--)
        if (waits_for(op, &graph->op[f->flight[i].op])) f->of_op[o] = i;
    if (!op->def->starts) continue;
    flight *own = &f->flight[f->of_op[o] = f->count++];
    own->op = o;
    if (!(own->byte = calloc((size_t)op->attr.group, 1))) return false;
  }
  return true;
}

rf_status rf_flights_open(const rf_graph *graph, rf_link *link, rf_flights **out, rf_error *error) {
  int starts = 0;
  rf_flights *f = *out = NULL;
  for (int o = 0; o < graph->op_count; o++) starts += graph->op[o].def->starts;
  if (!starts) return RAFTER_OK;
  if (!(f = *out = calloc(1, sizeof *f)) || !(f->flight = calloc((size_t)starts, sizeof *f->flight)) ||
      !(f->of_op = malloc((size_t)graph->op_count * sizeof *f->of_op)))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
  f->graph = graph;
  f->link = link;
  if (!find_flights(f)) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
  RF_TRY(number_flights(f, error));
  return rf_link_reserve_flights(link, error);
}

void rf_flights_drop(rf_flights *f) {
  for (int i = 0; f && i < f->count; i++)
    if (f->flight[i].link.open) rf_link_drop_flight(f->link, &f->flight[i].link);
}

void rf_flights_close(rf_flights *f) {
  if (!f) return;
  rf_flights_drop(f);
  for (int i = 0; i < f->count; i++) free(f->flight[i].byte);
  free(f->flight);
  free(f->of_op);
  free(f);
}

rf_status rf_flights_check(const rf_flights *f, rf_error *error) {
  for (int i = 0; f && i < f->count; i++)
    if (f->flight[i].link.open)
      return RF_FAIL(error, RAFTER_FAILED, "this is a fault of the planner, please report it",
                     "an exchange began, and nothing has waited for it (%s)",
                     f->graph->op[f->flight[i].op].name);
  return RAFTER_OK;
}

/* ---- kernels --------------------------------------------------------------------------------- */

static flight *flight_of(const rf_call *call) {
  return &call->flights->flight[call->flights->of_op[call->op - call->graph->op]];
}

static bool advance(rf_link_flight *of) { return rf_exchange_advance(&((flight *)of)->exchange, false); }

static void run_start(const rf_call *call) {
  static char begun; /* the value says nothing */
  flight *f = flight_of(call);
  if (call->link->failed) return;
  f->call = *call;
  f->run = *call->run;
  f->call.run = &f->run;
  f->link.advance = advance;
  f->exchange = rf_exchange_begin(&f->call, &f->link);
  int group = rf_link_group_of(&f->link, 2);
  for (int64_t d = 1; d < f->exchange.group; d++) {
    int64_t from = (f->exchange.rank + f->exchange.group - d) % f->exchange.group,
            to = (f->exchange.rank + d) % f->exchange.group;
    rf_link_begin_receive(call->link, group, rf_exchange_rank(&f->exchange, from), &f->byte[from], 1);
    rf_link_begin_send(call->link, group, rf_exchange_rank(&f->exchange, to), &begun, 1);
  }
  rf_link_begin_flight(call->link, &f->link);
}

static void run_wait(const rf_call *call) { rf_link_end_flight(call->link, &flight_of(call)->link); }

#define START(ACCEPTS) \
  .name = "mpi", .accepts = ACCEPTS, .workspace_bytes = rf_exchange_workspace, .run = run_start
const rf_kernel RF_MPI_FLIGHTS[] = {
    {.op = "all_gather_start", START(rf_exchange_has_group)},
    {.op = "reduce_scatter_start", START(rf_exchange_has_sums)},
    {.op = "all_reduce_start", START(rf_exchange_has_sums)},
    {.op = "exchange_wait", .name = "mpi", .accepts = rf_exchange_has_group, .run = run_wait},
    {.op = NULL},
};
