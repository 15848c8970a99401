/* partial.c - incomplete files and folders, named NAME.part-PID. A list names the files and folders
 * that this process writes, so that a signal handler can remove them. Killed processes left the
 * other files and folders. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/partial.h"
#include "base/reused.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

struct rf_partial {
  rf_reused entry;
  bool valid; /* true if `path` names a file; threads access this field with atomic operations */
  int lock;   /* descriptor of the opened folder; -1: the path is not a folder */
  char path[PATH_MAX + 64];
};

static rf_reused *list; /* list of rf_partial */

enum { FOLDERS = 4 }; /* maximum depth of folders inside folders */

rf_partial *rf_partial_add(const char *path, int file) {
  rf_partial *p = strlen(path) < sizeof p->path ? rf_reused_take(&list, sizeof *p) : NULL;
  if (!p) return NULL;
  strcpy(p->path, path);
  p->lock = file >= 0 ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  /* The lock shows that the writer still runs. This works also where its process number means
   * nothing: on other machines and in other containers. */
  if (file >= 0 || p->lock >= 0) flock(file >= 0 ? file : p->lock, LOCK_EX | LOCK_NB);
  __atomic_store_n(&p->valid, true, __ATOMIC_RELEASE);
  return p;
}

void rf_partial_done(rf_partial *p) {
  if (!p) return;
  __atomic_store_n(&p->valid, false, __ATOMIC_RELEASE);
  if (p->lock >= 0) close(p->lock);
  rf_reused_release(&p->entry);
}

void rf_partial_done_folder(const char *path) {
  for (rf_reused *r = rf_reused_first(&list); r; r = r->next) {
    rf_partial *p = (rf_partial *)r;
    if (!__atomic_load_n(&p->valid, __ATOMIC_ACQUIRE) || strcmp(p->path, path)) continue;
    rf_partial_done(p);
    return;
  }
}

/* Removes the contents of a folder. Calls only functions that a signal handler may call. So the
 * function does not call readdir. */
static void empty_folder(int folder, int depth) {
  struct entry {
    uint64_t inode;
    int64_t next;
    unsigned short bytes;
    unsigned char type;
    char name[];
  };
  _Alignas(struct entry) char buffer[4096];
  for (long got; (got = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0;)
    for (long at = 0; at < got; at += ((struct entry *)(buffer + at))->bytes) {
      const char *name = ((struct entry *)(buffer + at))->name;
      if (!strcmp(name, ".") || !strcmp(name, "..") || unlinkat(folder, name, 0) == 0) continue;
      int inner = depth ? openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW) : -1;
      if (inner < 0) continue;
      empty_folder(inner, depth - 1);
      close(inner);
      unlinkat(folder, name, AT_REMOVEDIR);
    }
}

void rf_partials_remove(void) {
  for (rf_reused *r = rf_reused_first(&list); r; r = r->next) {
    rf_partial *p = (rf_partial *)r;
    if (!__atomic_load_n(&p->valid, __ATOMIC_ACQUIRE)) continue;
    if (p->lock >= 0) empty_folder(p->lock, FOLDERS);
    if (p->lock >= 0) rmdir(p->path);
    else unlink(p->path);
  }
}

/* ---- what killed processes left -------------------------------------------------------------- */

/* Returns the number in NAME.part-PID or NAME.part-PID-TRY. 0: the name has another form. `name`
 * NULL: any name. */
static pid_t writer_of(const char *entry, const char *name) {
  const char *part = name && !strncmp(entry, name, strlen(name)) ? entry + strlen(name)
                     : name                                      ? ""
                                                                 : strstr(entry, ".part-");
  if (!part || strncmp(part, ".part-", 6) || !isdigit((unsigned char)part[6])) return 0;
  char *end;
  errno = 0;
  long pid = strtol(part + 6, &end, 10);
  if (*end == '-' && isdigit((unsigned char)end[1])) strtol(end + 1, &end, 10);
  return *end || errno || pid < 1 || pid > INT_MAX ? 0 : (pid_t)pid;
}

/* Removes one entry, unless a process holds its lock. If the file system has no locks, the entry
 * stays. */
static void remove_if_free(int folder, const char *entry) {
  int file = openat(folder, entry, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return;
  if (flock(file, LOCK_EX | LOCK_NB) == 0 && unlinkat(folder, entry, 0) != 0) {
    empty_folder(file, FOLDERS);
    unlinkat(folder, entry, AT_REMOVEDIR);
  }
  close(file);
}

void rf_partials_sweep(const char *folder, const char *name) {
  DIR *opened = opendir(folder);
  if (!opened) return;
  for (struct dirent *entry; (entry = readdir(opened)) != NULL;) {
    pid_t pid = writer_of(entry->d_name, name);
    if (pid && (!name || (kill(pid, 0) != 0 && errno == ESRCH))) remove_if_free(dirfd(opened), entry->d_name);
  }
  closedir(opened);
}

void rf_partials_sweep_for(const char *path) {
  char folder[PATH_MAX];
  const char *slash = strrchr(path, '/');
  size_t bytes = slash ? (size_t)(slash - path) : 0;
  if (bytes >= sizeof folder) return;
  snprintf(folder, sizeof folder, "%.*s", (int)bytes, path);
  rf_partials_sweep(slash ? (bytes ? folder : "/") : ".", slash ? slash + 1 : path);
}
