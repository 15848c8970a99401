/* mapped.c - maps files for reading. If another program shortens a mapped file, a read of the
 * missing bytes raises SIGBUS. A list of all mapped files shows the signal handler which file
 * changed. If another program overwrites a mapped file, or shortens it within its last page, no
 * signal is raised. The file's size, and the time of its last write, reveal such a change. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/file.h"
#include "base/reused.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* `base` is written last. While it is NULL, the entry names no file. */
typedef struct mapping {
  rf_reused entry;
  void *base; /* atomic */
  size_t bytes;
  char *path;
  rf_file_stamp stamp;
} mapping;

static rf_reused *list; /* of mapping */

/* If no memory for an entry is left, the file stays mapped, but a signal handler does not find
 * it. */
static void remember(const char *path, void *base, size_t bytes, rf_file_stamp stamp) {
  mapping *m = rf_reused_take(&list, sizeof *m);
  if (!m) return;
  free(m->path);
  m->path = strdup(path);
  m->bytes = bytes;
  m->stamp = stamp;
  __atomic_store_n(&m->base, base, __ATOMIC_RELEASE);
}

const char *rf_mapped_path(const void *address) {
  for (rf_reused *r = rf_reused_first(&list); r; r = r->next) {
    mapping *m = (mapping *)r;
    const char *base = __atomic_load_n(&m->base, __ATOMIC_ACQUIRE), *at = address;
    if (base && at >= base && (size_t)(at - base) < m->bytes) return m->path;
  }
  return NULL;
}

rf_status rf_map_file(const char *path, void **map, size_t *bytes, rf_error *error) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  struct stat info = {0};
  if (fd < 0) return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot open %s (%s)", path, strerror(errno));
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
    bool empty = S_ISREG(info.st_mode);
    close(fd);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s is %s", path, empty ? "empty" : "not a regular file");
  }
  *bytes = (size_t)info.st_size;
  *map = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  int problem = errno;
  rf_file_stamp stamp = rf_file_stamp_of(fd);
  close(fd);
  if (*map == MAP_FAILED)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot map %s (%s)", path, strerror(problem));
  remember(path, *map, *bytes, stamp);
  return RAFTER_OK;
}

rf_status rf_mapped_unchanged(const void *map, rf_error *error) {
  for (rf_reused *r = rf_reused_first(&list); r && map; r = r->next) {
    mapping *m = (mapping *)r;
    if (__atomic_load_n(&m->base, __ATOMIC_ACQUIRE) != map || !m->path) continue;
    rf_file_stamp now = rf_file_stamp_at(m->path);
    bool replaced = now.inode != m->stamp.inode || now.device != m->stamp.device;
    return replaced ? RAFTER_OK : rf_file_unchanged(m->path, m->stamp, error);
  }
  return RAFTER_OK;
}

void rf_unmap_file(void *map, size_t bytes) {
  if (!map) return;
  for (rf_reused *r = rf_reused_first(&list); r; r = r->next) {
    mapping *m = (mapping *)r;
    if (__atomic_load_n(&m->base, __ATOMIC_ACQUIRE) != map) continue;
    __atomic_store_n(&m->base, NULL, __ATOMIC_RELEASE);
    rf_reused_release(r);
  }
  munmap(map, bytes);
}

void rf_map_unneeded(const void *at, size_t bytes) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)at + page - 1) / page * page,
            end = ((uintptr_t)at + bytes) / page * page;
  if (end > first) madvise((void *)first, end - first, MADV_DONTNEED);
}
