/* profile_ops.c - see profile.h: adds up the kernels of each execution of an op. */
#include <stdlib.h>

#include "backend/xla/profile.h"

/* A call is one execution of an op. */
typedef struct sums {
  int *first_call; /* (ops + 1): index of the first call of each op */
  /* (calls), then one for each kernel that belongs to no op; end - begin is the sum of its
   * kernels */
  rf_xla_op_time *call;
  int calls, others;
  /* (instructions): number of events of each instruction, and number of the event that was counted
   * last */
  int *runs, *event;
  int *run; /* (instructions): events so far */
} sums;

static int calls_of(const rf_graph *graph, int op) {
  bool micro = graph->op[op].section == RF_SECTION_MICRO;
  return micro && graph->accumulate > 1 ? (int)graph->accumulate : 1;
}

static void free_sums(sums *s) {
  free(s->first_call);
  free(s->call);
  free(s->runs);
}

static bool open_sums(sums *s, const rf_xla_kernels *kernels, const rf_xla_instructions *in,
                      const rf_graph *graph) {
  *s = (sums){.first_call = malloc(((size_t)graph->op_count + 1) * sizeof *s->first_call),
              .runs = calloc(3 * ((size_t)in->count + 1), sizeof *s->runs)};
  for (int i = 0; s->first_call && i <= graph->op_count; i++) {
    s->first_call[i] = s->calls;
    if (i < graph->op_count) s->calls += calls_of(graph, i);
  }
  s->call = calloc((size_t)s->calls + (size_t)kernels->count + 1, sizeof *s->call);
  if (!s->first_call || !s->runs || !s->call) return false;
  s->event = s->runs + in->count + 1;
  s->run = s->event + in->count + 1;
  for (int i = 0; i < in->count; i++) s->event[i] = RF_NONE;
  for (int k = 0; k < kernels->count; k++) {
    int i = kernels->at[k].instruction;
    if (i == RF_NONE || s->event[i] == kernels->at[k].event) continue;
    s->event[i] = kernels->at[k].event;
    s->runs[i]++;
  }
  for (int i = 0; i < in->count; i++) s->event[i] = RF_NONE;
  return true;
}

/* The call to which a kernel belongs. For an instruction in the loop over microbatches, the number
 * of events is a multiple of the number of rounds. */
static rf_xla_op_time *call_of(sums *s, const rf_xla_kernel *k, const rf_xla_instructions *in) {
  int i = k->instruction, op = i == RF_NONE ? RF_NONE : in->at[i].number;
  if (op == RF_NONE) {
    rf_xla_op_time *other = &s->call[s->calls + s->others++];
    *other = (rf_xla_op_time){.op = RF_NONE};
    return other;
  }
  if (s->event[i] != k->event) {
    s->event[i] = k->event;
    s->run[i]++;
  }
  int64_t calls = s->first_call[op + 1] - s->first_call[op], runs = s->runs[i] > calls ? s->runs[i] : calls;
  int call = (int)((s->run[i] - 1) * calls / runs);
  rf_xla_op_time *of = &s->call[s->first_call[op] + call];
  of->op = op;
  of->call = call;
  return of;
}

static int by_begin(const void *a, const void *b) {
  const rf_xla_op_time *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return x->op != y->op ? (x->op > y->op) - (x->op < y->op) : (x->call > y->call) - (x->call < y->call);
}

rf_status rf_xla_op_times_of(const rf_xla_kernels *kernels, const rf_xla_instructions *in,
                             const rf_graph *graph, rf_xla_op_times *out, rf_error *error) {
  sums s;
  rf_status status = RAFTER_OK;
  *out = (rf_xla_op_times){0};
  if (!open_sums(&s, kernels, in, graph))
    RF_GO(RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while reading a profile"));
  int64_t worked = INT64_MIN; /* end of the device's work so far */
  for (int k = 0; k < kernels->count; k++) {
    const rf_xla_kernel *kernel = &kernels->at[k];
    int64_t from = kernel->begin > worked ? kernel->begin : worked;
    rf_xla_op_time *call = call_of(&s, kernel, in);
    if (kernel->end <= from) continue;
    if (call->begin == call->end) call->begin = call->end = from;
    call->end += kernel->end - from;
    worked = kernel->end;
  }
  int count = 0;
  for (int i = 0; i < s.calls + s.others; i++)
    if (s.call[i].end > s.call[i].begin) s.call[count++] = s.call[i];
  if (count) qsort(s.call, (size_t)count, sizeof *s.call, by_begin);
  for (int i = 1; i < count; i++) {
    int64_t late = s.call[i - 1].end - s.call[i].begin;
    if (late <= 0) continue;
    s.call[i].begin += late;
    s.call[i].end += late;
  }
  *out = (rf_xla_op_times){s.call, count};
  s.call = NULL;
done:
  free_sums(&s);
  return status;
}
