/* job_ranks.c - the machine of a mesh whose chips are ranks of MPI on `--on local`. */
#include "backend/mpi/link.h"
#include "plan/job_parts.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The file of `rafter calibrate --network` with this many ranks, if there is one. */
static rf_status read_own(rf_isa isa, int ranks, rf_machine *machine, bool *found, rf_error *error) {
  char path[4096];
  rf_machine_ranks_path(isa, ranks, path);
  *found = access(path, R_OK) == 0;
  if (!*found) return RAFTER_OK;
  RF_TRY(rf_machine_read(path, machine, error));
  if (machine->chips == ranks) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "run rafter calibrate --network again",
                 "%s is the file of another number of ranks (expected %d chips, got %d)", path, ranks,
                 machine->chips);
}

/* All ranks must make the same plan, so they take the file that rank 0 has. They exchange it at the
 * first call only: a rank may plan more than the others. */
static rf_status read_first(rf_link *link, rf_isa isa, rf_machine *machine, bool *found, rf_error *error) {
  static rf_machine *kept;
  static bool known;
  uint8_t there = false;
  if (!known) {
    rf_status status = RAFTER_OK;
    rf_machine *m = calloc(1, sizeof *m);
    if (!m) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
    bool own = false;
    if (link->rank == 0) status = read_own(isa, link->ranks, m, &own, error);
    there = status == RAFTER_OK && own;
    if (status == RAFTER_OK) status = rf_link_share(link, &there, 1, error);
    if (status == RAFTER_OK && there) status = rf_link_share(link, m, sizeof *m, error);
    if (status != RAFTER_OK || !there) free(m);
    else kept = m;
    if (status != RAFTER_OK) return status;
    known = true;
  }
  *found = kept != NULL;
  if (kept) *machine = *kept;
  return RAFTER_OK;
}

rf_status rf_ranks_machine(const rf_plan_options *plan, bool local, int64_t chips, rf_machine *machine,
                           rf_error *error) {
  rf_link *link = rf_link_of_process();
  bool found = false;
  double price = machine->usd_per_chip_hour;
  char tier[sizeof machine->price_tier];
  memcpy(tier, machine->price_tier, sizeof tier);
  if (local && rf_backend_has_ranks(plan->backend)) {
    if (link && link->ranks == chips) RF_TRY(read_first(link, plan->isa, machine, &found, error));
    else RF_TRY(read_own(plan->isa, (int)chips, machine, &found, error));
  }
  if (!found) return rf_machine_as_chips(machine, (int)chips), RAFTER_OK;
  machine->usd_per_chip_hour = price / (double)chips;
  memcpy(machine->price_tier, tier, sizeof tier);
  return RAFTER_OK;
}
