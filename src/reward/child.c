/* child.c - see child.h. */
#define _GNU_SOURCE
#include "reward/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void rf_child_close(int *pipe) {
  if (*pipe >= 0) close(*pipe);
  *pipe = -1;
}

/* Makes a pipe. The file descriptors are above those of the standard streams, which dup2
 * replaces. */
static bool make_pipe(int ends[2]) {
  int made[2];
  if (pipe2(made, O_CLOEXEC)) return false;
  for (int i = 0; i < 2; i++) {
    ends[i] = fcntl(made[i], F_DUPFD_CLOEXEC, 3);
    close(made[i]);
  }
  return ends[0] >= 0 && ends[1] >= 0;
}

/* With these variables, a program that the child starts would take itself for a rank of this job. */
static bool is_of_launcher(const char *variable) {
  static const char *const PREFIX[] = {"OMPI_", "PMI_",  "PMIX_",        "MPI_",          "HYDI_",
                                       "PRTE_", "PALS_", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_"};
  for (size_t i = 0; i < sizeof PREFIX / sizeof *PREFIX; i++)
    if (!strncmp(variable, PREFIX[i], strlen(PREFIX[i]))) return true;
  return false;
}

/* Returns a list of the variables for a child, which the caller frees. NULL: out of memory. */
static char **environment(void) {
  size_t count = 0, kept = 0;
  while (environ && environ[count]) count++;
  char **list = malloc((count + 1) * sizeof *list);
  for (size_t i = 0; list && i < count; i++)
    if (!is_of_launcher(environ[i])) list[kept++] = environ[i];
  if (list) list[kept] = NULL;
  return list;
}

static int spawn(const char *text, const int far[3], pid_t *pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none, all;
  char *arguments[] = {"sh", "-c", (char *)(uintptr_t)text, NULL}, **variables = environment();
  if (!variables) return ENOMEM;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  for (int i = 0; i < 3; i++) posix_spawn_file_actions_adddup2(&actions, far[i], i);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  int failed = posix_spawn(pid, "/bin/sh", &actions, &attributes, arguments, variables);
  free(variables);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return failed;
}

rf_status rf_child_start(const char *text, rf_child *child, rf_error *error) {
  int ends[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}}, failed = 0;
  *child = (rf_child){0, -1, -1, -1};
  for (int i = 0; i < 3 && !failed; i++)
    if (!make_pipe(ends[i])) failed = errno ? errno : EMFILE;
  const int far[3] = {ends[0][0], ends[1][1], ends[2][1]};
  int own[3] = {ends[0][1], ends[1][0], ends[2][0]};
  for (int i = 0; i < 3 && !failed; i++)
    if (fcntl(own[i], F_SETFL, O_NONBLOCK)) failed = errno;
  if (!failed) failed = spawn(text, far, &child->pid);
  for (int i = 0; i < 3; i++)
    if (far[i] >= 0) close(far[i]);
  if (!failed) {
    child->in = own[0];
    child->out = own[1];
    child->err = own[2];
    return RAFTER_OK;
  }
  for (int i = 0; i < 3; i++) rf_child_close(&own[i]);
  child->pid = 0;
  return RF_FAIL(error, RAFTER_FAILED, "give fewer --reward-workers", "cannot start the reward command (%s)",
                 strerror(failed));
}

bool rf_child_ended(const rf_child *child) {
  siginfo_t info = {0};
  return child->pid && !waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid;
}

static void describe(int status, char how[80]) {
  if (WIFSIGNALED(status))
    snprintf(how, 80, "was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
  else snprintf(how, 80, "ended with exit status %d", WEXITSTATUS(status));
}

void rf_child_end(rf_child *child, char how[80]) {
  int status = 0, waited = 0;
  enum { KILL_MS = 1000 };
  snprintf(how, 80, "still runs");
  if (child->pid) {
    bool ended = rf_child_ended(child);
    /* No other group can get the same number before the process is reaped. */
    kill(-child->pid, SIGKILL);
    while (waitpid(child->pid, &status, WNOHANG) == 0 && waited++ < KILL_MS) usleep(1000);
    if (ended) describe(status, how);
  }
  child->pid = 0;
  rf_child_close(&child->in);
  rf_child_close(&child->out);
  rf_child_close(&child->err);
}
