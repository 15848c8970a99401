/* client_process.c - see client_parts.h: the program rafter-pjrt as a child process. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/xla/client_parts.h"

#ifndef RF_LIBEXEC
#define RF_LIBEXEC "/usr/local/libexec"
#endif
#define PROGRAM "rafter-pjrt"

extern char **environ;

/* Writes "FOLDER OF file/name" to `path`. */
static bool next_to(const char *file, const char *name, char *path, size_t size) {
  const char *slash = strrchr(file, '/');
  if (!slash) return false;
  int length = snprintf(path, size, "%.*s/%s", (int)(slash - file), file, name);
  return length > 0 && (size_t)length < size && !access(path, X_OK);
}

/* Finds the program: the file that the user named, a file next to the running program or next to
 * this library, or an installed file. */
static rf_status find_program(char *path, size_t size, rf_error *error) {
  const char *named = getenv("RAFTER_PJRT_HOST");
  if (named && *named) {
    snprintf(path, size, "%s", named);
    if (!access(path, X_OK)) return RAFTER_OK;
    return RF_FAIL(error, RAFTER_INVALID, "unset RAFTER_PJRT_HOST, or name the file " PROGRAM,
                   "%s is not a program (RAFTER_PJRT_HOST)", named);
  }
  char self[4096];
  Dl_info library;
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  self[length < 0 ? 0 : length] = 0;
  if (next_to(self, PROGRAM, path, size)) return RAFTER_OK;
  if (next_to(self, "../libexec/" PROGRAM, path, size)) return RAFTER_OK;
  if (dladdr((void *)(uintptr_t)find_program, &library) && library.dli_fname) {
    if (next_to(library.dli_fname, PROGRAM, path, size)) return RAFTER_OK;
    if (next_to(library.dli_fname, "../libexec/" PROGRAM, path, size)) return RAFTER_OK;
  }
  snprintf(path, size, "%s/%s", RF_LIBEXEC, PROGRAM);
  if (!access(path, X_OK)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "install rafter again, or set RAFTER_PJRT_HOST to the program's path",
                 "the program " PROGRAM ", which loads plugins, is missing (looked next to %s and in %s)",
                 self, RF_LIBEXEC);
}

/* True if this machine, or this container, has a device file of a TPU. */
static bool has_tpu(void) {
  if (!access("/dev/accel0", F_OK)) return true;
  DIR *folder = opendir("/dev/vfio"); /* numbered files are devices */
  bool found = false;
  for (struct dirent *at; folder && !found && (at = readdir(folder));)
    found = strchr("0123456789", at->d_name[0]);
  if (folder) closedir(folder);
  return found;
}

/* The environment of the child: our environment, and defaults for variables that are not set. */
static char **child_environment(bool compile_only) {
  static const struct {
    const char *name, *setting;
    bool without_tpu;
  } DEFAULT[] = {
      {"TF_CPP_MIN_LOG_LEVEL", "TF_CPP_MIN_LOG_LEVEL=2", false},
      /* without these variables, libtpu asks the server of the cloud for minutes, and only one
       * process can load libtpu */
      {"TPU_SKIP_MDS_QUERY", "TPU_SKIP_MDS_QUERY=1", true},
      {"ALLOW_MULTIPLE_LIBTPU_LOAD", "ALLOW_MULTIPLE_LIBTPU_LOAD=1", true},
  };
  enum { DEFAULTS = sizeof DEFAULT / sizeof *DEFAULT };
  bool without_tpu = compile_only || !has_tpu();
  size_t count = 0;
  while (environ[count]) count++;
  char **list = malloc((count + DEFAULTS + 1) * sizeof *list);
  if (!list) return NULL;
  memcpy(list, environ, count * sizeof *list);
  for (int i = 0; i < DEFAULTS; i++)
    if ((without_tpu || !DEFAULT[i].without_tpu) && !getenv(DEFAULT[i].name))
      list[count++] = (char *)(uintptr_t)DEFAULT[i].setting;
  list[count] = NULL;
  return list;
}

static int spawn(const char *path, const char *plugin, int socket, int log, char **environment,
                 pid_t *child) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, log, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, log, STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, socket, RF_WIRE_SOCKET);
  char *arguments[] = {PROGRAM, (char *)plugin, NULL};
  int failed = posix_spawn(child, path, &actions, &attributes, arguments, environment);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return failed;
}

rf_status rf_xla_start(rf_xla_client *client, rf_error *error) {
  char path[4096];
  int pair[2] = {-1, -1}, far = -1, failed = ENOMEM;
  RF_TRY(find_program(path, sizeof path, error));
  char **environment = child_environment(client->compile_only);
  client->log = memfd_create("rafter-pjrt-log", MFD_CLOEXEC);
  if (client->log >= 0) fcntl(client->log, F_SETFL, O_APPEND);
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) failed = errno;
  /* Moves the descriptor above all numbers that dup2 overwrites. So the child's end of the socket
   * is not a standard descriptor. */
  if (pair[1] >= 0) far = fcntl(pair[1], F_DUPFD_CLOEXEC, RF_WIRE_SOCKET + 1);
  int log = client->log >= 0 ? fcntl(client->log, F_DUPFD_CLOEXEC, RF_WIRE_SOCKET + 1) : -1;
  if (environment && far >= 0 && log >= 0)
    failed = spawn(path, client->plugin, far, log, environment, &client->child);
  free(environment);
  if (pair[1] >= 0) close(pair[1]);
  if (far >= 0) close(far);
  if (log >= 0) close(log);
  client->socket = pair[0];
  if (!failed) return RAFTER_OK;
  client->child = 0;
  return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: cannot start this program: %s", path, strerror(failed));
}

/* Copies the end of the child's stderr as one line. If `last`, copies only the last line. Otherwise
 * starts at the line of a failed check, if there is such a line, because a plugin prints a stack
 * trace after this line. */
static void read_log(const rf_xla_client *client, bool last, char *text, size_t size) {
  char log[16384];
  off_t bytes = lseek(client->log, 0, SEEK_END);
  off_t from = bytes > (off_t)sizeof log - 1 ? bytes - (off_t)sizeof log + 1 : 0;
  ssize_t got = pread(client->log, log, sizeof log - 1, from);
  log[got > 0 ? got : 0] = 0;
  size_t length = strlen(log);
  while (length && (log[length - 1] == '\n' || log[length - 1] == ' ')) log[--length] = 0;
  const char *start = last ? strrchr(log, '\n') : strstr(log, "Check failed");
  if (last && start) start++;
  if (!start && length >= size) {
    start = log + length - size + 1;
    const char *line = strchr(start, '\n');
    if (line && line[1]) start = line + 1;
  }
  snprintf(text, size, "%s", start ? start : log);
  for (char *at = text; *at; at++)
    if (*at == '\n' || *at == '\r' || *at == '\t') *at = ' ';
}

static void note_end(rf_xla_client *client, int status) {
  char log[400];
  int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  bool other_host = WIFEXITED(status) && WEXITSTATUS(status) == RF_WIRE_EXIT_HOST;
  read_log(client, other_host, log, sizeof log);
  if (other_host) snprintf(client->end, sizeof client->end, "%s", log);
  else if (number)
    snprintf(client->end, sizeof client->end, "the plugin ended with signal %d (%s)%s%s", number,
             strsignal(number), *log ? ": " : "", log);
  else
    snprintf(client->end, sizeof client->end, "the plugin ended with exit status %d%s%s",
             WIFEXITED(status) ? WEXITSTATUS(status) : -1, *log ? ": " : "", log);
}

/* Waits up to `ms` milliseconds for the end of the child. */
static bool wait_for(rf_xla_client *client, int ms, int *status) {
  for (int64_t end = rf_now_ns() + (int64_t)ms * 1000000;;) {
    pid_t got = waitpid(client->child, status, WNOHANG);
    if (got == client->child || (got < 0 && errno != EINTR)) return true;
    if (rf_now_ns() >= end) return false;
    usleep(200);
  }
}

void rf_xla_end(rf_xla_client *client, bool ask) {
  enum { GRACE_MS = 5000 };
  int status = 0;
  if (!client->child) return;
  if (!ask || !wait_for(client, GRACE_MS, &status)) {
    /* if the child has already ended, its own exit status stays */
    if (!wait_for(client, 0, &status)) {
      kill(client->child, SIGKILL);
      while (waitpid(client->child, &status, 0) < 0 && errno == EINTR) continue;
    }
  }
  client->child = 0;
  client->lost = true;
  note_end(client, status);
}
