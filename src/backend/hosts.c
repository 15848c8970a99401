/* hosts.c - see hosts.h: one row for each launcher. */
#include "backend/hosts.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 3 };

/* The variables of a launcher. If an entry has several names, the first variable that is set
 * counts. */
typedef struct launcher {
  const char *name;
  const char *host;            /* number of this process */
  const char *hosts[NAMES];    /* number of processes */
  const char *together[NAMES]; /* number of processes on this machine */
  const char *list[NAMES];     /* names of the machines; host 0 runs on the first machine */
  bool counts_list;            /* the list has one name for each process */
  bool brackets;               /* the list is Slurm's: node[03-05,7] */
} launcher;

static const launcher LAUNCHER[] = {
    {.name = "Open MPI",
     .host = "OMPI_COMM_WORLD_RANK",
     .hosts = {"OMPI_COMM_WORLD_SIZE"},
     .together = {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
    {.name = "PMI", .host = "PMI_RANK", .hosts = {"PMI_SIZE"}, .together = {"MPI_LOCALNRANKS"}},
    {.name = "GKE", .host = "TPU_WORKER_ID", .list = {"TPU_WORKER_HOSTNAMES"}, .counts_list = true},
    {.name = "Slurm",
     .host = "SLURM_PROCID",
     .hosts = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     .list = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"},
     .brackets = true},
    {.name = "PMIx", .host = "PMIX_RANK"},
    {.name = "Kubernetes", .host = "JOB_COMPLETION_INDEX"},
};
enum { LAUNCHERS = sizeof LAUNCHER / sizeof *LAUNCHER };

/* Two variables that number the same process, so their values must agree. */
static const char *const SAME[][2] = {{"OMPI_COMM_WORLD_RANK", "PMIX_RANK"},
                                      {"TPU_WORKER_ID", "JOB_COMPLETION_INDEX"},
                                      {"SLURM_PROCID", "PMIX_RANK"}};

static const char *const BY_HAND = "give --hosts N --host-rank K --coordinator HOST:PORT";

static const char *get(const char *name) {
  const char *value = name ? getenv(name) : NULL;
  return value && *value ? value : NULL;
}

/* The first of these variables that is set, or NULL. */
static const char *first_set(const char *const name[NAMES]) {
  for (int i = 0; i < NAMES; i++)
    if (get(name[i])) return name[i];
  return NULL;
}

static rf_status read_number(const char *name, int lowest, int *number, rf_error *error) {
  const char *text = get(name);
  char *end = NULL;
  errno = 0;
  long value = text && isdigit((unsigned char)*text) ? strtol(text, &end, 10) : -1;
  if (!end || *end || errno || value < lowest || value > RF_HOSTS_MOST)
    return RF_FAIL(error, RAFTER_INVALID, BY_HAND,
                   "the launcher's variable %s must be a number from %d to %d (got %.60s)", name, lowest,
                   RF_HOSTS_MOST, text ? text : "nothing");
  *number = (int)value;
  return RAFTER_OK;
}

static const launcher *find_launcher(void) {
  for (int i = 0; i < LAUNCHERS; i++)
    if (get(LAUNCHER[i].host)) return &LAUNCHER[i];
  return NULL;
}

static rf_status check_same(const launcher *by, int host, rf_error *error) {
  for (size_t i = 0; i < sizeof SAME / sizeof *SAME; i++) {
    int other = host;
    if (strcmp(by->host, SAME[i][0]) || !get(SAME[i][1])) continue;
    RF_TRY(read_number(SAME[i][1], 0, &other, error));
    if (other != host)
      return RF_FAIL(error, RAFTER_INVALID, BY_HAND,
                     "the launcher's variables contradict each other (%s is %d, %s is %d)", by->host, host,
                     SAME[i][1], other);
  }
  return RAFTER_OK;
}

/* ---- lists of machines ----------------------------------------------------------------------- */

static int count_names(const char *list) {
  int count = 1;
  for (const char *at = list; *at; at++) count += *at == ',';
  return count;
}

/* Copies the first machine of a list. Slurm lists endings in brackets: the first machine of
 * node[03-05,7] is node03. */
static bool first_name(const char *list, bool brackets, char *name, size_t size) {
  size_t used = 0;
  bool skips = false, inside = false;
  for (const char *at = list; *at && (inside || *at != ','); at++) {
    if (brackets && *at == '[') inside = true;
    else if (brackets && *at == ']') inside = skips = false;
    else if (inside && (*at == '-' || *at == ',')) skips = true;
    else if (!skips) {
      if (used + 1 >= size || isspace((unsigned char)*at)) return false;
      name[used++] = *at;
    }
  }
  name[used] = 0;
  return used > 0 && !inside;
}

static rf_status address_of_list(const launcher *by, rf_hosts *hosts, rf_error *error) {
  const char *name = first_set(by->list);
  if (first_name(get(name), by->brackets, hosts->address, sizeof hosts->address)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, BY_HAND,
                 "the launcher's variable %s must be a list of machines (got %.60s)", name, get(name));
}

/* "NAME", "NAME:PORT", "[IPv6]:PORT" or an IPv6 address. */
static rf_status read_coordinator(const char *text, rf_hosts *hosts, rf_error *error) {
  const char *end = text + strlen(text), *colon = strrchr(text, ':'), *port = NULL;
  if (*text == '[') {
    const char *close = strchr(text++, ']');
    if (close && (close[1] == ':' || !close[1])) {
      port = close[1] ? close + 2 : NULL;
      end = close;
    } else end = text;
  } else if (colon && strchr(text, ':') == colon) {
    port = colon + 1;
    end = colon;
  }
  char *rest = NULL;
  long number = port && isdigit((unsigned char)*port) ? strtol(port, &rest, 10) : 0;
  if (end == text || end - text >= (long)sizeof hosts->address || memchr(text, ' ', (size_t)(end - text)) ||
      (port && (!rest || *rest || number < 1 || number > 65535)))
    return RF_FAIL(error, RAFTER_INVALID, "write for example --coordinator 10.0.0.1:7643",
                   "--coordinator must name a machine (expected NAME:PORT, got %.100s)", text);
  snprintf(hosts->address, sizeof hosts->address, "%.*s", (int)(end - text), text);
  if (port) hosts->port = (int)number;
  return RAFTER_OK;
}

/* ---- finding --------------------------------------------------------------------------------- */

static rf_status find_host(const launcher *by, const rf_hosts_wish *wish, rf_hosts *hosts, rf_error *error) {
  hosts->host = wish->host;
  if (wish->host < 0 && !by)
    return RF_FAIL(error, RAFTER_INVALID,
                   "start one process on each host with mpirun or srun, or give --host-rank K",
                   "no launcher says which host this is (expected a variable such as OMPI_COMM_WORLD_RANK or "
                   "SLURM_PROCID)");
  if (wish->host >= 0) return RAFTER_OK;
  RF_TRY(read_number(by->host, 0, &hosts->host, error));
  return check_same(by, hosts->host, error);
}

static rf_status find_count(const launcher *by, const rf_hosts_wish *wish, rf_hosts *hosts, rf_error *error) {
  const char *name = by ? first_set(by->hosts) : NULL,
             *list = by && by->counts_list ? first_set(by->list) : NULL;
  int said = 0;
  if (name) RF_TRY(read_number(name, 1, &said, error));
  else if (list) said = count_names(get(list));
  hosts->hosts = wish->hosts ? wish->hosts : said;
  if (!hosts->hosts)
    return RF_FAIL(error, RAFTER_INVALID, "give --hosts N",
                   by ? "%s does not say how many hosts there are"
                      : "no launcher says how many hosts there are",
                   by ? by->name : "");
  if (wish->hosts && said && said != wish->hosts && wish->host < 0)
    return RF_FAIL(error, RAFTER_INVALID, "start one process on each host",
                   "--hosts contradicts the launcher (expected %d, which is %s, got %d)", said,
                   name ? name : list, wish->hosts);
  if (hosts->host < hosts->hosts) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "count hosts from 0",
                 "this host's number is not below the number of hosts (%s: expected 0 to %d, got %d)",
                 wish->host >= 0 ? "--host-rank" : by->host, hosts->hosts - 1, hosts->host);
}

static rf_status find_address(const launcher *by, const rf_hosts_wish *wish, rf_hosts *hosts,
                              rf_error *error) {
  const char *together = by ? first_set(by->together) : NULL;
  int here = 0;
  if (wish->coordinator) return read_coordinator(wish->coordinator, hosts, error);
  if (by && first_set(by->list)) return address_of_list(by, hosts, error);
  if (together) RF_TRY(read_number(together, 1, &here, error));
  if (here == hosts->hosts) return snprintf(hosts->address, sizeof hosts->address, "127.0.0.1"), RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "give --coordinator HOST:PORT, with the machine of host 0",
                 by ? "%s does not say where host 0 is" : "no launcher says where host 0 is",
                 by ? by->name : "");
}

rf_status rf_hosts_find(const rf_hosts_wish *wish, rf_hosts *hosts, rf_error *error) {
  const launcher *by = find_launcher();
  int slices = 1;
  *hosts = (rf_hosts){.hosts = 1, .port = RF_HOSTS_PORT};
  if (wish->hosts == 1) return RAFTER_OK;
  if (get("MEGASCALE_NUM_SLICES")) RF_TRY(read_number("MEGASCALE_NUM_SLICES", 1, &slices, error));
  if (slices > 1)
    return RF_FAIL(error, RAFTER_INVALID, "use one slice; `rafter plan` supports several",
                   "several slices can be planned but not run (MEGASCALE_NUM_SLICES: expected 1, got %d)",
                   slices);
  RF_TRY(find_host(by, wish, hosts, error));
  RF_TRY(find_count(by, wish, hosts, error));
  if (hosts->hosts == 1) return RAFTER_OK;
  return find_address(by, wish, hosts, error);
}
