/* calibrate_overlap.c - measures how much longer a computation takes if a collective runs at the
 * same time. The difference is the time that the collective takes from the cores of a rank. */
#include "run/calibrate_parts.h"

#include "backend/mpi/flight.h"
#include "backend/mpi/link.h"
#include "graph/mesh/place.h"

#include <math.h>
#include <omp.h>

enum { VALUES = 1 << 12, BATCHES = 5, SLOW_BATCHES = 2 };
/* number of rounds of the computation, and their seconds */
static const double LONGER = 1.5, SHORTEST = 2e-4, SLOW = 0.25;

const rf_op_def *rf_calibrate_start_of(rf_collective kind) {
  return kind == RF_ALL_GATHER       ? &RF_OP_ALL_GATHER_START
         : kind == RF_REDUCE_SCATTER ? &RF_OP_REDUCE_SCATTER_START
         : kind == RF_ALL_REDUCE     ? &RF_OP_ALL_REDUCE_START
                                     : NULL;
}

/* Arithmetic on values in the L1 and L2 caches. Each thread does the arithmetic `times` times. */
static double compute(int threads, int64_t times) {
  double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  {
    float value[VALUES];
    for (int i = 0; i < VALUES; i++) value[i] = (float)i;
    for (int64_t k = 0; k < times; k++)
      for (int i = 0; i < VALUES; i++) value[i] = value[i] * 0.999f + 1.0f;
    sum += (double)value[times % VALUES];
  }
  return sum;
}

/* Returns how many rounds `compute` does in this number of seconds. */
static int64_t times_for(int threads, double seconds) {
  int64_t times = 16;
  double took = 0;
  while (took < SHORTEST) {
    double start = rf_now_seconds(), sum = compute(threads, times);
    took = rf_now_seconds() - start + 0 * sum;
    if (took < SHORTEST) times *= 2;
  }
  return (int64_t)ceil((double)times * seconds / took);
}

/* `start` and `wait` are calls of the two ops of the graph. */
static rf_status time_both(const rf_calibrate_options *o, const rf_call *start, const rf_call *wait,
                           double seconds, double *core, rf_error *error) {
  const rf_kernel *begin = rf_kernel_choose(&RF_BACKEND_CPU, o->isa, start->graph, start->op),
                  *end = rf_kernel_choose(&RF_BACKEND_CPU, o->isa, wait->graph, wait->op);
  double more[BATCHES], wanted = fmax(LONGER * seconds, SHORTEST), all = seconds;
  int64_t times = times_for(o->threads, wanted);
  int batches = o->quick || wanted > SLOW ? SLOW_BATCHES : BATCHES;
  RF_TRY(rf_calibrate_largest(o->link, &all, error));
  for (int i = -1; i < batches; i++) { /* the first one connects */
    RF_TRY(rf_calibrate_meet(o, error));
    double at = rf_now_seconds(), sum = compute(o->threads, times), alone = rf_now_seconds() - at;
    RF_TRY(rf_calibrate_meet(o, error));
    at = rf_now_seconds();
    begin->run(start);
    sum += compute(o->threads, times);
    end->run(wait);
    double both = rf_now_seconds() - at - alone + 0 * sum;
    RF_TRY(rf_link_status(o->link, "calibrating", error));
    RF_TRY(rf_calibrate_largest(o->link, &both, error));
    more[i < 0 ? 0 : i] = fmin(fmax(both, 1e-7), all);
  }
  *core = rf_ceiling_of(more, batches).median;
  return RAFTER_OK;
}

rf_status rf_calibrate_core(const rf_calibrate_options *o, const rf_graph *graph, rf_calibrate_room *room,
                            const void *in, void *out, double seconds, double *core, rf_error *error) {
  rf_status status = RAFTER_OK;
  const rf_kernel *kernel;
  rf_flights *flights = NULL;
  rf_call start;
  rf_run_inputs run = {.rows = graph->rows};
  RF_TRY(rf_calibrate_kernel(o, graph, room, "collectives", &kernel, &start, error));
  RF_GO(rf_flights_open(graph, o->link, &flights, error));
  rf_place_of(&graph->mesh, o->link->rank, run.place);
  start.run = &run;
  start.link = o->link;
  start.flights = flights;
  start.in[0] = in;
  start.out[0] = out;
  rf_call wait = start;
  wait.op = &graph->op[1];
  RF_GO(time_both(o, &start, &wait, seconds, core, error));
done:
  rf_flights_close(flights);
  return status;
}
