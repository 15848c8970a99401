/* waits.c - see waits.h. A process has one link, so its waits are those of the process. */
#include "run/waits.h"

#include "backend/mpi/link.h"
#include "run/run.h"

#include <stdio.h>
#include <stdlib.h>

static rf_link_times before;
static double began, took;
static rf_rank_waits *gathered;

void rf_waits_begin(void) {
  const rf_link *link = rf_link_of_process();
  if (link) before = link->times;
  began = rf_now_seconds();
}

rf_status rf_waits_gather(rf_error *error) {
  rf_link *link = rf_link_of_process();
  if (!link || link->ranks == 1) return RAFTER_OK;
  const rf_link_times *now = &link->times;
  rf_rank_waits own = {.exchanges = (double)(now->exchanges - before.exchanges),
                       .seconds = 1e-9 * (double)(now->all_ns - before.all_ns),
                       .late = 1e-9 * (double)(now->late_ns - before.late_ns),
                       .network = 1e-9 * (double)(now->network_ns - before.network_ns),
                       .allocations = (double)rf_guard_library_allocations()};
  took = rf_now_seconds() - began;
  snprintf(own.host, sizeof own.host, "%s", rf_link_host(link, link->rank));
  if (link->rank > 0) return rf_link_send(link, 0, &own, sizeof own, error);
  free(gathered);
  gathered = calloc((size_t)link->ranks, sizeof *gathered);
  if (!gathered)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while gathering the waits of ranks");
  gathered[0] = own;
  for (int rank = 1; rank < link->ranks; rank++)
    RF_TRY(rf_link_receive(link, rank, &gathered[rank], sizeof *gathered, error));
  return RAFTER_OK;
}

const rf_rank_waits *rf_waits_of_ranks(int *ranks, double *seconds) {
  const rf_link *link = rf_link_of_process();
  *ranks = gathered && link ? link->ranks : 0;
  *seconds = took;
  return *ranks ? gathered : NULL;
}
