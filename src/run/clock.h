/* clock.h - measures how far the clock of each rank is ahead of the clock of rank 0. Each machine
 * has a clock of its own (rf_now_ns), which begins when the machine boots. Rank 0 sends short
 * messages to each rank and measures how long the answers take. Rank 0 does so at the start and at
 * the end of a run, so that it finds a clock that is too fast. */
#ifndef RF_RUN_CLOCK_H
#define RF_RUN_CLOCK_H

#include "backend/mpi/link.h"
#include "run/record.h"

/* Times in ns of one message and of its answer. `there` is a time of the other rank's clock. */
typedef struct rf_ping {
  int64_t sent, there, back;
} rf_ping;

/* At the time `at` of a rank's clock, this clock is `ahead` ns ahead of the clock of rank 0. The
 * true difference may be up to `error` ns larger or smaller, because the times of the message and
 * of its answer are not known separately. */
typedef struct rf_clock_mark {
  int64_t at;
  double ahead, error;
} rf_clock_mark;
/* Makes a mark from the message with the fastest answer. */
rf_clock_mark rf_clock_mark_of(const rf_ping *ping, int count);

/* A clock between two marks. */
typedef struct rf_clock {
  rf_clock_mark begin, end;
} rf_clock;
/* If the differences of both marks are below their errors, the two ranks have the same clock. Then
 * `ahead` is 0 in both marks. */
rf_clock rf_clock_of(rf_clock_mark begin, rf_clock_mark end);
/* Returns the time of rank 0 at the time `ns` of this clock. Later times stay later. */
int64_t rf_clock_of_first(const rf_clock *clock, int64_t ns);
/* error in ns, which is the larger of the errors of the two marks */
double rf_clock_error(const rf_clock *clock);

/* Every rank calls this function at the same place. `now` is the clock of the rank that calls. */
rf_status rf_clock_measure(rf_link *link, int64_t (*now)(void), rf_clock_mark *mark, rf_error *error);

/* The clock of this process in a run whose steps are recorded. Every rank calls rf_clock_begin and
 * rf_clock_finish. If the run has one rank, the functions do nothing, and rf_clock_finish returns a
 * clock of zeros. */
rf_status rf_clock_begin(rf_error *error);
rf_status rf_clock_finish(rf_clock *clock, rf_error *error);
bool rf_clock_began(void); /* true if several ranks have called rf_clock_begin, but not yet rf_clock_finish */

/* Converts the times of a trace from this clock to the clock of rank 0. After this, times count
 * from `origin`. `origin` is a time of rank 0 that is not after the origin of the trace. */
void rf_clock_align(const rf_clock *clock, int64_t origin, rf_trace *trace);

#endif
