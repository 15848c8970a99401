/* flight.h - collectives that run while this rank computes. In a plan, such a collective is two
 * ops: one with the suffix _start, and exchange_wait. */
#ifndef RF_MPI_FLIGHT_H
#define RF_MPI_FLIGHT_H

#include "backend/kernel.h"

typedef struct rf_flights rf_flights;
/* The flights of a graph; *flights is NULL if it has none. `graph` must outlive the result. Returns
 * RAFTER_FAILED if a start has no wait, or if too many exchanges run at a time. */
rf_status rf_flights_open(const rf_graph *graph, struct rf_link *link, rf_flights **flights, rf_error *error);
/* Ends flights that are still open. */
void rf_flights_close(rf_flights *flights);
/* Waits a short time for exchanges for which no op has waited. If an exchange does not end in this
 * time, the link fails. */
void rf_flights_drop(rf_flights *flights);
/* Called at the end of a section. Returns RAFTER_FAILED if an exchange began, but no op has waited
 * for this exchange. */
rf_status rf_flights_check(const rf_flights *flights, rf_error *error);

/* Kernels of these ops. The last entry has op NULL. */
extern const rf_kernel RF_MPI_FLIGHTS[];

#endif
