/* job_hosts.c - the options of several hosts. */
#include "plan/job.h"
#include "backend/mpi/link.h"

#include <stdlib.h>
#include <string.h>

bool rf_runs_on_ranks(const rf_options *options) {
  static const char *const COMMANDS[] = {"train", "generate", "score", "rollout", "rl", "eval"};
  for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS; i++)
    if (!strcmp(rf_options_command(options), COMMANDS[i])) return true;
  return false;
}

int rf_rank_of_job(const rf_options *options) {
  int rank, ranks;
  const rf_backend *backend = rf_backend_find(rf_options_text_or(options, "backend", "auto"));
  bool launched =
      rf_runs_on_ranks(options) && rf_backend_has_ranks(backend) && rf_link_launched(&rank, &ranks);
  return launched ? rank : 0;
}

/* On host devices, each rank of the MPI job is a host with one chip. */
static rf_status ranks_of(const rf_options *options, rf_hosts *hosts, rf_error *error) {
  rf_link *link;
  if (rf_options_knows(options, "hosts") &&
      (strcmp(rf_options_text_or(options, "hosts", "1"), "1") || rf_options_given(options, "host-rank") ||
       rf_options_given(options, "coordinator")))
    return RF_FAIL(
        error, RAFTER_INVALID,
        "leave --hosts, --host-rank and --coordinator out: mpirun gives the ranks of --backend cpu",
        "several hosts need a backend with a plugin (--backend: expected xla, got %s)",
        rf_options_text_or(options, "backend", "auto"));
  RF_TRY(rf_link_open(&link, error));
  if (link) *hosts = (rf_hosts){.host = link->rank, .hosts = link->ranks};
  return RAFTER_OK;
}

rf_status rf_hosts_of(const rf_options *options, rf_hosts *hosts, rf_error *error) {
  rf_hosts_wish wish = {.hosts = 1, .host = -1};
  *hosts = (rf_hosts){.hosts = 1};
  if (rf_runs_on_ranks(options) &&
      rf_backend_has_ranks(rf_backend_find(rf_options_text_or(options, "backend", "auto"))))
    return ranks_of(options, hosts, error);
  if (!rf_options_knows(options, "hosts")) return RAFTER_OK;
  const char *text = rf_options_text_or(options, "hosts", "1");
  char *end = NULL;
  long count = strtol(text, &end, 10);
  bool automatic = !strcmp(text, "auto");
  if (!automatic && (*end || end == text || count < 1 || count > RF_HOSTS_MOST))
    return RF_FAIL(error, RAFTER_INVALID, "--hosts auto asks the launcher",
                   "--hosts is neither auto nor a number of hosts (expected 1 to %d, got %.60s)",
                   RF_HOSTS_MOST, text);
  wish.hosts = automatic ? 0 : (int)count;
  wish.host = (int)rf_options_int_or(options, "host-rank", -1);
  wish.coordinator = rf_options_text(options, "coordinator");
  if (wish.hosts == 1 && (wish.host > 0 || rf_options_given(options, "coordinator")))
    return RF_FAIL(
        error, RAFTER_INVALID, "give --hosts N too, or --hosts auto",
        "--host-rank and --coordinator are for several hosts (--hosts: expected 2 or more, got 1)");
  return rf_hosts_find(&wish, hosts, error);
}

const rf_option RF_HOST_OPTIONS[] = {
    RF_WORDS(
        "hosts", TEXT, "N|auto", "1", "Machine",
        "hosts that share the chips of --mesh, each with a process of its own; auto: as mpirun, srun or "
        "JobSet says\nOnly for --backend xla (docs/tpu.md). With --backend cpu, each process of mpirun is "
        "one chip (docs/many-machines.md)."),
    RF_NUMBER("host-rank", INT, NULL, 0, 4095, NULL, "Machine",
              "number of this host, from 0; unset: as the launcher says"),
    RF_WORDS("coordinator", TEXT, "HOST[:PORT]", NULL, "Machine",
             "machine of host 0, which the other hosts reach at this TCP port (7643); unset: as the launcher "
             "says"),
    {.name = NULL},
};
