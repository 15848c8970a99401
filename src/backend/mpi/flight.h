/* flight.h - collectives that run while this rank computes. The plan has them as two ops: one
 * with the suffix _start, and exchange_wait. */
#ifndef RF_MPI_FLIGHT_H
#define RF_MPI_FLIGHT_H

#include "backend/kernel.h"

typedef struct rf_flights rf_flights;
/* The flights of a graph; *flights is NULL if it has none. `graph` must outlive the result.
 * RAFTER_FAILED: a start has no wait, or too many exchanges run at a time. */
rf_status rf_flights_open(const rf_graph *graph, struct rf_link *link, rf_flights **flights, rf_error *error);
/* Ends flights that are still open. */
void rf_flights_close(rf_flights *flights);
/* At the end of a section. RAFTER_FAILED: an exchange began, and no op has waited for it. */
/* Waits for a short time for exchanges that nothing has waited for. If they do not end, the link has
 * failed. */
void rf_flights_drop(rf_flights *flights);
rf_status rf_flights_check(const rf_flights *flights, rf_error *error);

/* Kernels of these ops; end with an entry whose op is NULL. */
extern const rf_kernel RF_MPI_FLIGHTS[];

#endif
