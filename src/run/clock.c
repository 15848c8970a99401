/* clock.c - see clock.h. A process has one link, and one clock. */
#include "run/clock.h"

#include <math.h>

enum { PINGS = 32 };

static rf_clock_mark first_mark;
static bool began;

rf_clock_mark rf_clock_mark_of(const rf_ping *ping, int count) {
  const rf_ping *best = ping;
  for (int i = 1; i < count; i++)
    if (ping[i].back - ping[i].sent < best->back - best->sent) best = &ping[i];
  double half = 0.5 * (double)(best->back - best->sent);
  return (rf_clock_mark){best->there, (double)(best->there - best->sent) - half, half};
}

rf_clock rf_clock_of(rf_clock_mark begin, rf_clock_mark end) {
  bool same = fabs(begin.ahead) <= begin.error && fabs(end.ahead) <= end.error;
  if (same) begin.ahead = end.ahead = 0;
  return (rf_clock){begin, end};
}

int64_t rf_clock_of_first(const rf_clock *clock, int64_t ns) {
  const rf_clock_mark *a = &clock->begin, *b = &clock->end;
  double length = (double)(b->at - a->at), change = b->ahead - a->ahead;
  /* A real clock is never wrong by this much. So the difference comes from the errors of the marks
   * in a short run. */
  bool steady = length <= 0 || fabs(change) > 0.1 * length;
  double part = steady ? 0 : (double)(ns - a->at) / length;
  return ns - llround(a->ahead + part * change);
}

double rf_clock_error(const rf_clock *clock) { return fmax(clock->begin.error, clock->end.error); }

static rf_status ask(rf_link *link, int rank, int64_t (*now)(void), rf_error *error) {
  rf_ping ping[PINGS];
  for (int i = 0; i < PINGS; i++) {
    ping[i].sent = now();
    RF_TRY(rf_link_send(link, rank, &ping[i].sent, sizeof ping[i].sent, error));
    RF_TRY(rf_link_receive(link, rank, &ping[i].there, sizeof ping[i].there, error));
    ping[i].back = now();
  }
  rf_clock_mark mark = rf_clock_mark_of(ping, PINGS);
  return rf_link_send(link, rank, &mark, sizeof mark, error);
}

static rf_status answer(rf_link *link, int64_t (*now)(void), rf_clock_mark *mark, rf_error *error) {
  for (int i = 0; i < PINGS; i++) {
    int64_t asked, there;
    RF_TRY(rf_link_receive(link, 0, &asked, sizeof asked, error));
    there = now();
    RF_TRY(rf_link_send(link, 0, &there, sizeof there, error));
  }
  return rf_link_receive(link, 0, mark, sizeof *mark, error);
}

rf_status rf_clock_measure(rf_link *link, int64_t (*now)(void), rf_clock_mark *mark, rf_error *error) {
  *mark = (rf_clock_mark){.at = now()};
  if (link->rank > 0) return answer(link, now, mark, error);
  for (int rank = 1; rank < link->ranks; rank++) RF_TRY(ask(link, rank, now, error));
  return RAFTER_OK;
}

rf_status rf_clock_begin(rf_error *error) {
  rf_link *link = rf_link_of_process();
  began = link && link->ranks > 1;
  return began ? rf_clock_measure(link, rf_now_ns, &first_mark, error) : RAFTER_OK;
}

bool rf_clock_began(void) { return began; }

rf_status rf_clock_finish(rf_clock *clock, rf_error *error) {
  rf_clock_mark mark = {0};
  *clock = (rf_clock){.begin = {0}};
  if (!began) return RAFTER_OK;
  began = false;
  RF_TRY(rf_clock_measure(rf_link_of_process(), rf_now_ns, &mark, error));
  *clock = rf_clock_of(first_mark, mark);
  return RAFTER_OK;
}

void rf_clock_align(const rf_clock *clock, int64_t origin, rf_trace *trace) {
  int64_t own = trace->origin;
  for (int64_t i = 0; i < trace->count; i++) {
    rf_stamp *s = &trace->span[i];
    int64_t length = s->end - s->begin;
    s->begin = rf_clock_of_first(clock, own + s->begin) - origin;
    s->end =
        s->kind == RF_SPAN_PREDICTED ? s->begin + length : rf_clock_of_first(clock, own + s->end) - origin;
  }
  for (int i = 0; i < trace->steps; i++) {
    rf_traced_step *step = &trace->step[i];
    step->begin = rf_clock_of_first(clock, own + step->begin) - origin;
    step->end = rf_clock_of_first(clock, own + step->end) - origin;
    step->after.end = rf_clock_of_first(clock, own + step->after.end) - origin;
  }
  trace->wall += 1e-9 * (double)(origin - rf_clock_of_first(clock, own));
  trace->origin = origin;
}
