/* test_hosts.c - the variables of launchers: which host this is, how many there are, and where host
 * 0 is. */
#include "backend/hosts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static rf_error fault;
static rf_hosts found;

static const char *const VARIABLES[] = {"OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "MPI_LOCALNRANKS",
                                        "PMIX_RANK",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_JOB_NODELIST",
                                        "SLURM_NODELIST",
                                        "TPU_WORKER_ID",
                                        "TPU_WORKER_HOSTNAMES",
                                        "JOB_COMPLETION_INDEX",
                                        "MEGASCALE_NUM_SLICES"};

/* Sets the variables "NAME=VALUE NAME=VALUE", and no others. */
static void set(const char *settings) {
  char text[600], *next = NULL;
  for (size_t i = 0; i < sizeof VARIABLES / sizeof *VARIABLES; i++) unsetenv(VARIABLES[i]);
  snprintf(text, sizeof text, "%s", settings);
  for (char *at = strtok_r(text, " ", &next); at; at = strtok_r(NULL, " ", &next)) {
    char *equals = strchr(at, '=');
    *equals = 0;
    setenv(at, equals + 1, 1);
  }
}

static void finds_with(rf_hosts_wish wish, const char *settings, int host, int hosts, const char *address) {
  set(settings);
  if (rf_hosts_find(&wish, &found, &fault) != RAFTER_OK) fail_msg("%s: %s", settings, fault.message);
  if (found.host != host || found.hosts != hosts || strcmp(found.address, address))
    fail_msg("%s: host %d of %d at \"%s\"", settings, found.host, found.hosts, found.address);
}

static void finds(const char *settings, int host, int hosts, const char *address) {
  finds_with((rf_hosts_wish){.host = -1}, settings, host, hosts, address);
  assert_int_equal(found.port, RF_HOSTS_PORT);
}

static void fails_with(rf_hosts_wish wish, const char *settings, const char *message) {
  set(settings);
  assert_int_equal(rf_hosts_find(&wish, &found, &fault), RAFTER_INVALID);
  if (!strstr(fault.message, message))
    fail_msg("%s: \"%s\" is not in \"%s\"", settings, message, fault.message);
  assert_true(*fault.hint);
}

static void fails(const char *settings, const char *message) {
  fails_with((rf_hosts_wish){.host = -1}, settings, message);
}

static void every_launcher_is_understood(void **state) {
  (void)state;
  finds("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=3", 1, 3, "127.0.0.1");
  finds("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_SIZE=1", 0, 1, "");
  finds("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=3 PMIX_RANK=2", 2, 3,
        "127.0.0.1");
  finds("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=2", 1, 2, "127.0.0.1");
  finds("SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_JOB_NODELIST=n[03-05,7]", 3, 4, "n03");
  finds("SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=4 SLURM_JOB_NODELIST=a,b SLURM_STEP_NODELIST=b",
        3, 4, "b");
  finds("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_NODELIST=one,two PMIX_RANK=1", 1, 2, "one");
  finds("TPU_WORKER_ID=2 TPU_WORKER_HOSTNAMES=t-0.s,t-1.s,t-2.s,t-3.s", 2, 4, "t-0.s");
  finds("TPU_WORKER_ID=1 TPU_WORKER_HOSTNAMES=10.0.0.1,10.0.0.2 JOB_COMPLETION_INDEX=1", 1, 2, "10.0.0.1");
  finds("TPU_WORKER_ID=0 TPU_WORKER_HOSTNAMES=localhost MEGASCALE_NUM_SLICES=1", 0, 1, "");
}

static void lists_of_slurm_are_read(void **state) {
  (void)state;
  static const char *const LIST[][2] = {{"node1", "node1"},
                                        {"node1,node2", "node1"},
                                        {"node[7]", "node7"},
                                        {"node[07-11]", "node07"},
                                        {"node[3,5-9],other[1-2]", "node3"},
                                        {"a[1-2]b[30-40]c,d", "a1b30c"},
                                        {"rack-2.cluster[001-100].net", "rack-2.cluster001.net"}};
  for (size_t i = 0; i < sizeof LIST / sizeof *LIST; i++) {
    char settings[200];
    snprintf(settings, sizeof settings, "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=%s", LIST[i][0]);
    finds(settings, 0, 2, LIST[i][1]);
  }
  fails("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=,",
        "SLURM_JOB_NODELIST must be a list of machines (got ,)");
  fails("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=node[1-", "SLURM_JOB_NODELIST must be a list");
}

static void users_take_precedence(void **state) {
  (void)state;
  const char *slurm = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_NODELIST=one,two";
  finds_with((rf_hosts_wish){.hosts = 1, .host = -1}, slurm, 0, 1, "");
  finds_with((rf_hosts_wish){.hosts = 2, .host = -1}, slurm, 1, 2, "one");
  finds_with((rf_hosts_wish){.hosts = 4, .host = 3, .coordinator = "x"}, slurm, 3, 4, "x");
  finds_with((rf_hosts_wish){.hosts = 4, .host = 3, .coordinator = "x"}, "", 3, 4, "x");
  finds_with((rf_hosts_wish){.hosts = 2, .host = 0, .coordinator = "10.1.2.3:99"}, "", 0, 2, "10.1.2.3");
  assert_int_equal(found.port, 99);
  finds_with((rf_hosts_wish){.hosts = 2, .host = 0, .coordinator = "[fe80::1]:99"}, "", 0, 2, "fe80::1");
  assert_int_equal(found.port, 99);
  finds_with((rf_hosts_wish){.hosts = 2, .host = 0, .coordinator = "fe80::1"}, "", 0, 2, "fe80::1");
  assert_int_equal(found.port, RF_HOSTS_PORT);
  finds_with((rf_hosts_wish){.hosts = 2, .host = -1, .coordinator = "x"}, "JOB_COMPLETION_INDEX=1", 1, 2,
             "x");
  finds_with((rf_hosts_wish){.hosts = 2, .host = -1, .coordinator = "x"}, "PMIX_RANK=1", 1, 2, "x");
  static const char *const BAD[] = {"",     ":1",     "x:",  "x:0",  "x:65536", "x:1y",
                                    "[::1", "[::1]x", "a b", "[]:1", "x:-1"};
  for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
    fails_with((rf_hosts_wish){.hosts = 2, .host = 0, .coordinator = BAD[i]}, "",
               "--coordinator must name a machine");
}

static void missing_variables_are_named(void **state) {
  (void)state;
  fails("", "no launcher says which host this is");
  fails("SLURM_PROCID= SLURM_NTASKS=2", "no launcher says which host this is");
  fails("OMPI_COMM_WORLD_RANK=0", "Open MPI does not say how many hosts there are");
  fails("PMIX_RANK=0", "PMIx does not say how many hosts there are");
  fails("JOB_COMPLETION_INDEX=0", "Kubernetes does not say how many hosts there are");
  fails("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1",
        "Open MPI does not say where host 0 is");
  fails("SLURM_PROCID=0 SLURM_NTASKS=2", "Slurm does not say where host 0 is");
  fails_with((rf_hosts_wish){.hosts = 2, .host = 1}, "", "no launcher says where host 0 is");
}

static void contradictions_are_errors(void **state) {
  (void)state;
  fails("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK: expected 0 to 1, got 2");
  fails("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=0",
        "OMPI_COMM_WORLD_RANK is 1, PMIX_RANK is 0");
  fails("SLURM_PROCID=1 SLURM_NTASKS=2 PMIX_RANK=0 SLURM_NODELIST=a", "SLURM_PROCID is 1, PMIX_RANK is 0");
  fails("TPU_WORKER_ID=1 TPU_WORKER_HOSTNAMES=a,b JOB_COMPLETION_INDEX=0",
        "TPU_WORKER_ID is 1, JOB_COMPLETION_INDEX is 0");
  fails("TPU_WORKER_ID=0 TPU_WORKER_HOSTNAMES=a,b MEGASCALE_NUM_SLICES=2", "several slices can be planned");
  fails_with((rf_hosts_wish){.hosts = 3, .host = -1}, "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2",
             "--hosts contradicts the launcher (expected 2, which is PMI_SIZE, got 3)");
  fails_with((rf_hosts_wish){.hosts = 3, .host = -1}, "TPU_WORKER_ID=0 TPU_WORKER_HOSTNAMES=a,b",
             "expected 2, which is TPU_WORKER_HOSTNAMES, got 3");
  fails_with((rf_hosts_wish){.hosts = 2, .host = 2, .coordinator = "x"}, "",
             "--host-rank: expected 0 to 1, got 2");
}

static void malformed_variables_are_errors(void **state) {
  (void)state;
  static const char *const BAD[] = {"-1", "x", "1x", "99999999999999999999", "4097", "0x1", "+1"};
  for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
    char settings[200];
    snprintf(settings, sizeof settings, "SLURM_PROCID=%s SLURM_NTASKS=2 SLURM_NODELIST=a", BAD[i]);
    fails(settings, "SLURM_PROCID must be a number from 0 to 4096");
    snprintf(settings, sizeof settings, "SLURM_PROCID=0 SLURM_NTASKS=%s SLURM_NODELIST=a", BAD[i]);
    fails(settings, "SLURM_NTASKS must be a number from 1 to 4096");
    snprintf(settings, sizeof settings, "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=%s", BAD[i]);
    fails(settings, "MPI_LOCALNRANKS must be a number");
    snprintf(settings, sizeof settings, "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=%s", BAD[i]);
    fails(settings, "PMIX_RANK must be a number");
  }
  fails("SLURM_PROCID=0 SLURM_NTASKS=0", "SLURM_NTASKS must be a number from 1");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_launcher_is_understood), cmocka_unit_test(lists_of_slurm_are_read),
      cmocka_unit_test(users_take_precedence),        cmocka_unit_test(missing_variables_are_named),
      cmocka_unit_test(contradictions_are_errors),    cmocka_unit_test(malformed_variables_are_errors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
