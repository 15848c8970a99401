/* job_ranks.c - jobs whose chips are ranks of MPI: the number of ranks, their cores, and the
 * machine of a mesh with `--on local`. */
#include "backend/mpi/link.h"
#include "graph/mesh/pipeline.h"
#include "graph/mesh/place.h"
#include "plan/job_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

rf_status rf_ranks_agree(rf_plan_options *plan, rf_error *error) {
  rf_link *link = rf_link_of_process();
  if (!link || link->ranks == 1) return RAFTER_OK;
  rf_link_cores cores = {plan->isa, plan->threads};
  if (!plan->threads_fixed && cores.threads == sysconf(_SC_NPROCESSORS_ONLN))
    cores.threads = cores.threads > link->together ? cores.threads / link->together : 1;
  RF_TRY(rf_link_agree(link, &cores, error));
  plan->isa = (rf_isa)cores.isa;
  plan->threads = (int)cores.threads;
  return RAFTER_OK;
}

void rf_ranks_choose_stage(rf_plan_options *plan) {
  int32_t place[RF_AXES];
  rf_mesh *mesh = &plan->build.mesh;
  if (!rf_backend_has_ranks(plan->backend) || plan->device.hosts.hosts < 2 || rf_pipeline_stages(mesh) < 2)
    return;
  rf_place_of(mesh, plan->device.hosts.host, place);
  mesh->stage = place[RF_AXIS_PIPELINE];
  plan->own_stage = true;
}

rf_status rf_ranks_check(const rf_mesh *mesh, int ranks, rf_error *error) {
  char text[160], hint[200];
  int64_t chips = rf_mesh_chips(mesh);
  if (chips == ranks) return RAFTER_OK;
  if (ranks == 1) {
    snprintf(hint, sizeof hint,
             "start the command with mpirun -n %lld (docs/many-machines.md), or leave --mesh out",
             (long long)chips);
    return RF_FAIL(error, RAFTER_INVALID, hint,
                   "--mesh %s needs one process for each chip (expected %lld processes, got 1)",
                   rf_mesh_text(mesh, text), (long long)chips);
  }
  snprintf(hint, sizeof hint, "give a mesh of %d chips, for example --mesh data=%d, or --mesh auto", ranks,
           ranks);
  return RF_FAIL(
      error, RAFTER_INVALID, hint,
      "the launcher started %d processes, one for each chip, but the mesh has %lld (--mesh: expected "
      "%d chips, got %s)",
      ranks, (long long)chips, ranks, rf_mesh_text(mesh, text));
}

/* ---- the machine ----------------------------------------------------------------------------- */

rf_rank_room rf_ranks_lowest_room(const rf_rank_room *room, int ranks) {
  rf_rank_room lowest = room[0];
  int64_t together = room[0].together;
  for (int i = 1; i < ranks; i++) {
    const rf_rank_room *r = &room[i];
    if (r->together > together) together = r->together;
    if ((r->memory_bytes - r->reserve_bytes) / (double)r->together <
        (lowest.memory_bytes - lowest.reserve_bytes) / (double)lowest.together)
      lowest = *r;
  }
  double scale = (double)together / (double)lowest.together; /* exactly 1 if all machines are equal */
  return (rf_rank_room){lowest.memory_bytes * scale, lowest.reserve_bytes * scale, together};
}

/* Sets *lowest on all ranks. */
static rf_status agree_on_room(rf_link *link, const rf_rank_room *mine, rf_rank_room *lowest,
                               rf_error *error) {
  rf_rank_room *all = calloc((size_t)link->ranks, sizeof *all);
  if (!all) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  rf_status status = RAFTER_OK;
  all[0] = *mine;
  for (int rank = 1; rank < link->ranks && link->rank == 0 && status == RAFTER_OK; rank++)
    status = rf_link_receive(link, rank, &all[rank], sizeof *all, error);
  if (link->rank > 0) status = rf_link_send(link, 0, mine, sizeof *mine, error);
  *lowest = rf_ranks_lowest_room(all, link->rank == 0 ? link->ranks : 1);
  free(all);
  return status == RAFTER_OK ? rf_link_share(link, lowest, sizeof *lowest, error) : status;
}

/* The machine for which all ranks plan, after the first call of rf_ranks_share_machine. */
static struct {
  bool known;
  rf_machine *machine; /* NULL: the first call was not for a local machine */
  rf_rank_room room;
} common;

rf_status rf_ranks_share_machine(bool local, rf_machine *machine, rf_error *error) {
  rf_link *link = rf_link_of_process();
  if (!link || link->ranks == 1) return RAFTER_OK;
  if (!common.known) {
    const rf_rank_room mine = {machine->memory_bytes, machine->reserve_bytes, link->together};
    RF_TRY(agree_on_room(link, &mine, &common.room, error));
    common.machine = local ? malloc(sizeof *machine) : NULL;
    if (local && !common.machine) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
    if (local) {
      *common.machine = *machine;
      RF_TRY(rf_link_share(link, common.machine, sizeof *machine, error));
      common.machine->memory_bytes = common.room.memory_bytes;
      common.machine->reserve_bytes = common.room.reserve_bytes;
    }
    common.known = true;
  }
  if (local && common.machine) *machine = *common.machine;
  return RAFTER_OK;
}

/* Finds the file of `rafter calibrate --network` for this number of ranks, if it exists. */
static rf_status read_own(rf_isa isa, int ranks, rf_machine *machine, bool *found, rf_error *error) {
  char path[4096];
  rf_machine_ranks_path(isa, ranks, path);
  *found = access(path, R_OK) == 0;
  if (!*found) return RAFTER_OK;
  RF_TRY(rf_machine_read(path, machine, error));
  if (machine->chips == ranks) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "run rafter calibrate --network again",
                 "%s was measured with another number of ranks (expected %d, got %d)", path, ranks,
                 machine->chips);
}

/* All ranks must make the same plan, so all take the file that rank 0 has. The ranks exchange this
 * file only at the first call, because a rank may make more plans than the others. */
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

void rf_ranks_divide(rf_machine *machine, int chips, int together) {
  rf_machine_as_chips(machine, together);
  machine->shape[0] = machine->chips = machine->topology.domain = chips;
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
  const int together = common.known && link->ranks == chips ? (int)common.room.together : (int)chips;
  if (!found) return rf_ranks_divide(machine, (int)chips, together), RAFTER_OK;
  if (common.known && link->ranks == chips) { /* a process may have less memory than at the calibration */
    const double memory = common.room.memory_bytes / together, reserve = common.room.reserve_bytes / together;
    if (memory - reserve < machine->memory_bytes - machine->reserve_bytes) {
      machine->memory_bytes = memory;
      machine->reserve_bytes = reserve;
    }
  }
  machine->usd_per_chip_hour = price / (double)together;
  memcpy(machine->price_tier, tier, sizeof tier);
  return RAFTER_OK;
}
