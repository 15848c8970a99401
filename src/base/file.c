/* file.c - reads complete files, and writes files whose name appears only when they are
 * complete. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for fallocate */
#endif
#include "base/file.h"

#include "base/partial.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

rf_status rf_file_open(const char *path, const char *hint, int *file, rf_error *error) {
  bool device = !strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6);
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | (device ? 0 : O_NONBLOCK));
  struct stat info;
  if (fd < 0) return RF_FAIL(error, RAFTER_FAILED, hint, "cannot open %s (%s)", path, strerror(errno));
  bool read = fstat(fd, &info) == 0, folder = read && S_ISDIR(info.st_mode);
  if (read && !folder && (device || S_ISREG(info.st_mode))) {
    *file = fd;
    return RAFTER_OK;
  }
  close(fd);
  return folder ? RF_FAIL(error, RAFTER_FAILED, NULL, "cannot read %s (it is a folder)", path)
                : RF_FAIL(error, RAFTER_FAILED, "give a file; a pipe can be given as /dev/stdin",
                          "%s is not a regular file", path);
}

rf_status rf_file_read(const char *path, size_t most, char **text, size_t *bytes, rf_error *error) {
  rf_status status = RAFTER_OK;
  char *buffer = NULL;
  size_t used = 0, size = 0;
  struct stat info = {0};
  int fd;
  RF_TRY(rf_file_open(path, NULL, &fd, error));
  fstat(fd, &info);
  if (S_ISREG(info.st_mode) && (uint64_t)info.st_size > most) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s is too large (expected at most %zu bytes, got %lld)",
                     path, most, (long long)info.st_size);
    goto done;
  }
  size = (S_ISREG(info.st_mode) ? (size_t)info.st_size : 65536) + 1;
  for (;;) {
    char *larger = !buffer || used == size - 1 ? realloc(buffer, size = buffer ? size * 2 : size) : buffer;
    if (!larger) {
      status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to read %s (%zu bytes)", path, size);
      goto done;
    }
    buffer = larger;
    ssize_t got = read(fd, buffer + used, size - 1 - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      status =
          RF_FAIL(error, RAFTER_FAILED, NULL, "cannot read %s (%s at byte %zu)", path, strerror(errno), used);
      goto done;
    }
    if (got == 0 && used < size - 1) break;
    used += (size_t)got;
    if (used > most) {
      status =
          RF_FAIL(error, RAFTER_FAILED, NULL, "%s is too large (expected at most %zu bytes)", path, most);
      goto done;
    }
    if (got == 0) break;
  }
  buffer[used] = 0;
  *text = buffer;
  *bytes = used;
  buffer = NULL;
done:
  free(buffer);
  close(fd);
  return status;
}

static rf_file_stamp stamp_of(const struct stat *info) {
  if (!S_ISREG(info->st_mode)) return (rf_file_stamp){0};
  return (rf_file_stamp){(int64_t)info->st_dev, (int64_t)info->st_ino, info->st_size, info->st_mtim.tv_sec,
                         info->st_mtim.tv_nsec};
}

rf_file_stamp rf_file_stamp_of(int file) {
  struct stat info;
  return fstat(file, &info) ? (rf_file_stamp){0} : stamp_of(&info);
}

rf_file_stamp rf_file_stamp_at(const char *path) {
  struct stat info;
  return stat(path, &info) ? (rf_file_stamp){0} : stamp_of(&info);
}

bool rf_file_stamps_equal(rf_file_stamp a, rf_file_stamp b) {
  return a.device == b.device && a.inode == b.inode && a.bytes == b.bytes && a.seconds == b.seconds &&
         a.nanoseconds == b.nanoseconds;
}

rf_status rf_file_unchanged(const char *path, rf_file_stamp stamp, rf_error *error) {
  if (rf_file_stamps_equal(rf_file_stamp_at(path), stamp)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, RF_CHANGED_HINT, "%s changed while it was read", path);
}

static bool is_file(const char *path, const struct stat *file) {
  struct stat info;
  return !stat(path, &info) && info.st_dev == file->st_dev && info.st_ino == file->st_ino;
}

rf_status rf_out_is_not_input(const char *out, const char *in, rf_error *error) {
  struct stat file;
  if (stat(out, &file) || !S_ISREG(file.st_mode)) return RAFTER_OK;
  static const char *const ENDINGS[] = {".safetensors", ".json", ".model"};
  bool same = is_file(in, &file);
  DIR *folder = same ? NULL : opendir(in);
  for (struct dirent *entry; folder && !same && (entry = readdir(folder)) != NULL;) {
    char path[4400];
    snprintf(path, sizeof path, "%.4096s/%s", in, entry->d_name);
    for (size_t i = 0; i < sizeof ENDINGS / sizeof *ENDINGS; i++)
      same |= rf_text_ends_with(path, ENDINGS[i]) && is_file(path, &file);
  }
  if (folder) closedir(folder);
  return same ? RF_FAIL(error, RAFTER_INVALID, "choose another name for the output",
                        "the output %s would replace the input %s: they are the same file", out, in)
              : RAFTER_OK;
}

/* After each AHEAD bytes, the system starts to write these bytes to the disk. So the final fsync
 * has to wait for fewer bytes. */
enum { OUT_BUFFER = 1 << 16, AHEAD = 8 << 20 };

struct rf_out_file {
  int fd;
  size_t used; /* number of bytes in `buffer` */
  /* number of bytes written, and of bytes that the kernel was asked to write to the disk */
  int64_t bytes, started;
  char *path, *temporary;
  rf_partial *partial; /* NULL: no temporary file */
  bool appends, made;  /* appends: rf_out_append opened the file; made: it also made the file */
  int64_t kept;        /* with `appends`: number of bytes of the parts that are complete */
  unsigned char buffer[OUT_BUFFER];
};

/* Follows the symbolic links of `path`. The last target may not exist yet. The result is malloc'ed.
 * NULL: the path has too many links, or memory ran out. Pipes and devices keep their path, because
 * the target of a link such as /dev/stdout may have no path. */
static char *resolve_links(const char *path) {
  enum { LINKS_MAX = 40 };
  struct stat info;
  if (stat(path, &info) == 0) return S_ISREG(info.st_mode) ? realpath(path, NULL) : strdup(path);
  char target[4096], *now = strdup(path);
  for (int i = 0; now && i <= LINKS_MAX; i++) {
    ssize_t n = readlink(now, target, sizeof target - 1);
    if (n < 0) return now; /* the path in `now` is not a link, or does not exist */
    target[n] = 0;
    const char *slash = target[0] == '/' ? NULL : strrchr(now, '/');
    char *next = NULL;
    if (asprintf(&next, "%.*s%s", slash ? (int)(slash + 1 - now) : 0, now, target) < 0) next = NULL;
    free(now);
    now = next;
  }
  free(now);
  return NULL;
}

/* A pipe or a device is written without a temporary file. A rename would replace the pipe or device
 * by a regular file. */
static int open_target(rf_out_file *out, size_t size) {
  struct stat info;
  if (stat(out->path, &info) == 0 && !S_ISREG(info.st_mode)) {
    out->temporary[0] = 0;
    if (S_ISDIR(info.st_mode)) {
      errno = EISDIR;
      return -1;
    }
    return open(out->path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
  }
  rf_partials_sweep_for(out->path);
  snprintf(out->temporary, size, "%s.part-%ld", out->path, (long)getpid());
  int file = open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file >= 0) out->partial = rf_partial_add(out->temporary, file);
  return file;
}

rf_status rf_out_open(const char *path, int64_t expected_bytes, rf_out_file **result, rf_error *error) {
  rf_out_file *out = calloc(1, sizeof *out);
  size_t size = 0;
  if (out) {
    out->fd = -1;
    out->path = resolve_links(path);
    size = out->path ? strlen(out->path) + 32 : 32;
    out->temporary = calloc(size, 1);
  }
  if (!out || !out->path || !out->temporary) {
    bool memory = errno == ENOMEM;
    rf_out_discard(out);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s (%s)", path,
                   memory ? "out of memory" : "too many links");
  }
  out->fd = open_target(out, size);
  rf_status status = RAFTER_OK;
  if (out->fd < 0)
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s (%s)", path, strerror(errno));
  else if (expected_bytes > 0 && fallocate(out->fd, FALLOC_FL_KEEP_SIZE, 0, expected_bytes) != 0 &&
           (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
    status = RF_FAIL(error, RAFTER_FAILED, "free some space or choose another folder with --out",
                     "cannot write %s (%s: %lld bytes are needed)", path, strerror(errno),
                     (long long)expected_bytes);
  if (status == RAFTER_OK) *result = out;
  else rf_out_discard(out);
  return status;
}

bool rf_out_is_stream(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

double rf_out_room(const char *path) {
  struct statvfs disk;
  char *copy = strdup(path);
  bool known = copy && statvfs(dirname(copy), &disk) == 0 && disk.f_blocks > 0;
  free(copy);
  return known ? (double)disk.f_bavail * (double)disk.f_frsize : HUGE_VAL;
}

static rf_status write_all(rf_out_file *out, const unsigned char *data, size_t bytes, rf_error *error) {
  while (bytes > 0) {
    ssize_t put = write(out->fd, data, bytes < AHEAD ? bytes : AHEAD);
    if (put < 0 && errno == EINTR) continue;
    const char *changed = put < 0 && errno == EFAULT ? rf_mapped_path(data) : NULL;
    if (changed)
      return RF_FAIL(error, RAFTER_FAILED, RF_CHANGED_HINT, "%s changed while it was read", changed);
    if (put <= 0)
      return RF_FAIL(error, RAFTER_FAILED, "free some space or choose another folder with --out",
                     "cannot write %s (%s after %lld bytes)", out->path,
                     put < 0 ? strerror(errno) : "no byte was written", (long long)out->bytes);
    data += put;
    bytes -= (size_t)put;
    out->bytes += put;
    if (out->temporary[0] && out->bytes - out->started >= AHEAD) {
      sync_file_range(out->fd, out->started, out->bytes - out->started, SYNC_FILE_RANGE_WRITE);
      out->started = out->bytes;
    }
  }
  return RAFTER_OK;
}

rf_status rf_out_write(rf_out_file *out, const void *data, size_t bytes, rf_error *error) {
  if (bytes < OUT_BUFFER - out->used) {
    if (bytes) memcpy(out->buffer + out->used, data, bytes);
    out->used += bytes;
    return RAFTER_OK;
  }
  RF_TRY(write_all(out, out->buffer, out->used, error));
  out->used = 0;
  if (bytes >= OUT_BUFFER) return write_all(out, data, bytes, error);
  memcpy(out->buffer, data, bytes);
  out->used = bytes;
  return RAFTER_OK;
}

rf_status rf_out_append(const char *path, rf_out_file **result, rf_error *error) {
  struct stat info;
  rf_out_file *out = calloc(1, sizeof *out);
  if (!out) return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s (out of memory)", path);
  out->appends = true;
  out->made = stat(path, &info) != 0;
  out->path = strdup(path);
  out->temporary = calloc(1, 1);
  out->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  rf_status status = RAFTER_OK;
  if (out->fd < 0 || !out->path || !out->temporary)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s (%s)", path, strerror(errno)));
  if (flock(out->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    out->made = false;
    RF_GO(RF_FAIL(error, RAFTER_FAILED, "wait until that program has ended, or choose another file",
                  "%s is in use: another program appends to it", path));
  }
  /* Before this process had the lock, another program could append to the file or remove it. */
  if (fstat(out->fd, &info) != 0 || !S_ISREG(info.st_mode))
    RF_GO(RF_FAIL(error, RAFTER_FAILED, "give the name of a file", "%s is not a regular file", path));
  if (!info.st_nlink) {
    out->made = false;
    RF_GO(RF_FAIL(error, RAFTER_FAILED, "run the command again", "another program has removed %s", path));
  }
  out->bytes = out->kept = info.st_size;
  *result = out;
done:
  if (status != RAFTER_OK) rf_out_discard(out);
  return status;
}

rf_status rf_out_keep(rf_out_file *out, int64_t bytes, rf_error *error) {
  if (ftruncate(out->fd, bytes) != 0 || lseek(out->fd, bytes, SEEK_SET) != bytes)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s (%s)", out->path, strerror(errno));
  out->bytes = out->kept = bytes;
  return RAFTER_OK;
}

rf_status rf_out_flush(rf_out_file *out, rf_error *error) {
  RF_TRY(write_all(out, out->buffer, out->used, error));
  out->used = 0;
  out->kept = out->bytes;
  return RAFTER_OK;
}

int64_t rf_out_bytes(const rf_out_file *out) { return out->bytes + (int64_t)out->used; }

/* Syncs the folder of a renamed file, so that the rename survives a power failure. If this sync
 * fails, the rename still counts. */
static void sync_folder(const char *path) {
  char *copy = strdup(path);
  int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  if (fd >= 0) {
    fsync(fd);
    close(fd);
  }
  free(copy);
}

rf_status rf_out_commit(rf_out_file *out, rf_error *error) {
  rf_status status = write_all(out, out->buffer, out->used, error);
  if (status == RAFTER_OK && fsync(out->fd) != 0 && errno != EINVAL)
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s (%s)", out->path, strerror(errno));
  if (status == RAFTER_OK) {
    int closed = close(out->fd);
    out->fd = -1;
    if (closed != 0 || (out->temporary[0] && rename(out->temporary, out->path) != 0))
      status = RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s (%s)", out->path, strerror(errno));
  }
  if (status == RAFTER_OK) {
    sync_folder(out->path);
    out->temporary[0] = 0; /* after the rename, no temporary file exists */
  }
  rf_out_discard(out);
  return status;
}

void rf_out_discard(rf_out_file *out) {
  if (!out) return;
  if (out->fd >= 0 && out->appends && out->bytes != out->kept && ftruncate(out->fd, out->kept) != 0)
    out->made = false; /* the next rf_out_append finds this incomplete part */
  if (out->fd >= 0 && out->made && !out->kept) unlink(out->path);
  if (out->fd >= 0) close(out->fd);
  if (out->temporary && out->temporary[0]) unlink(out->temporary);
  rf_partial_done(out->partial);
  free(out->path);
  free(out->temporary);
  free(out);
}

rf_status rf_file_write(const char *path, const void *data, size_t bytes, rf_error *error) {
  rf_out_file *out;
  RF_TRY(rf_out_open(path, (int64_t)bytes, &out, error));
  rf_status status = rf_out_write(out, data, bytes, error);
  if (status == RAFTER_OK) return rf_out_commit(out, error);
  rf_out_discard(out);
  return status;
}

rf_status rf_make_folders(const char *path, rf_error *error) {
  char *copy = strdup(path);
  if (!copy) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to make the folder %s", path);
  rf_status status = RAFTER_OK;
  for (char *c = copy + 1; status == RAFTER_OK && *copy; ++c) {
    if (*c && *c != '/') continue;
    bool last = !*c;
    *c = 0;
    struct stat info;
    if (mkdir(copy, 0777) != 0 && errno != EEXIST)
      status = RF_FAIL(error, RAFTER_FAILED, NULL, "cannot make the folder %s (%s)", copy, strerror(errno));
    else if (stat(copy, &info) != 0 || !S_ISDIR(info.st_mode))
      status = RF_FAIL(error, RAFTER_FAILED, NULL, "cannot make the folder %s (a file of that name is there)",
                       copy);
    if (last) break;
    *c = '/';
  }
  free(copy);
  return status;
}

rf_status rf_make_sibling_folder(const char *path, char *part, size_t size, rf_error *error) {
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') length--;
  if (length + 48 > size)
    return RF_FAIL(error, RAFTER_INVALID, "choose a shorter name",
                   "the folder's path is too long (%.100s...)", path);
  snprintf(part, size, "%.*s", (int)length, path);
  char *slash = strrchr(part, '/');
  if (slash && slash > part) {
    *slash = 0;
    RF_TRY(rf_make_folders(part, error));
  }
  snprintf(part, size, "%.*s", (int)length, path);
  rf_partials_sweep_for(part);
  for (int try = 0;; try++) {
    snprintf(part, size, "%.*s.part-%ld-%d", (int)length, path, (long)getpid(), try);
    if (mkdir(part, 0777) == 0) {
      rf_partial_add(part, -1);
      return RAFTER_OK;
    }
    if (errno != EEXIST)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot make the folder %s (%s)", part, strerror(errno));
  }
}

void rf_remove_folder(const char *path) {
  DIR *folder = opendir(path);
  if (!folder) return;
  int fd = dirfd(folder);
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
    if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) unlinkat(fd, entry->d_name, 0);
  closedir(folder);
  rmdir(path);
}

rf_status rf_lock_folder(const char *folder, int *lock, rf_error *error) {
  char path[4400];
  if ((size_t)snprintf(path, sizeof path, "%s/lock", folder) >= sizeof path)
    return RF_FAIL(error, RAFTER_INVALID, "choose a shorter name",
                   "the folder's path is too long (%.100s...)", folder);
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (file < 0) return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s (%s)", path, strerror(errno));
  if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(file);
    return RF_FAIL(error, RAFTER_FAILED, "wait until that program has ended, or choose another --out",
                   "%s is in use: another program writes its run there", folder);
  }
  *lock = file; /* a file system without locks gives another error, and then the run has no lock */
  return RAFTER_OK;
}
