/* fetch.c - downloads one file of a repository. The download continues a partial file. The file
 * gets its name only after its checksum was verified. openat() opens each folder of the path
 * without following links, so a path from a server cannot leave the destination. */
#define _GNU_SOURCE
#include "hub/hub.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 };

/* The state of one download. */
typedef struct arrival {
  const rf_hub_place *place;
  const rf_hub_file *file;
  /* file names in `folder`: the file, its partial download, and the record of this download */
  char base[256], part[272], mark[280];
  int folder, fd;
  rf_hash *hash;
  rf_http_body body;
  /* number of responses with a body; different responses may have different versions of the file */
  int answers;
} arrival;

static rf_status cannot(const arrival *a, const char *what, rf_error *error) {
  int problem = errno;
  const char *hint =
      problem == ENOSPC || problem == EDQUOT ? "free some space or choose another folder with --out" : NULL;
  if (problem == ELOOP || problem == ENOTDIR)
    hint = "a link or a file has the name of a folder or file of the model: remove it or choose another "
           "--out";
  return RF_FAIL(error, RAFTER_FAILED, hint, "cannot %s %s/%s (%s)", what, a->place->folder_name,
                 a->file->path, strerror(problem));
}

/* Opens the folder of the file, and creates it if it is missing. */
static rf_status open_folder(arrival *a, rf_error *error) {
  const char *rest = a->file->path;
  a->folder = dup(a->place->folder);
  for (const char *slash; a->folder >= 0 && (slash = strchr(rest, '/')); rest = slash + 1) {
    char part[256];
    snprintf(part, sizeof part, "%.*s", (int)(slash - rest), rest);
    if (mkdirat(a->folder, part, 0777) && errno != EEXIST) return cannot(a, "make the folder of", error);
    int inner = openat(a->folder, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inner < 0) return cannot(a, "open the folder of", error);
    close(a->folder);
    a->folder = inner;
  }
  if (a->folder < 0) return cannot(a, "open the folder of", error);
  snprintf(a->base, sizeof a->base, "%s", rest);
  snprintf(a->part, sizeof a->part, "%s.part", rest);
  snprintf(a->mark, sizeof a->mark, "%s.part.etag", rest);
  return RAFTER_OK;
}

/* Hashes the first `bytes` bytes of an existing file. */
static rf_status add_what_is_here(arrival *a, int fd, int64_t bytes, rf_error *error) {
  rf_status status = RAFTER_OK;
  char *chunk = malloc(CHUNK);
  if (!chunk) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int64_t at = 0; at < bytes && status == RAFTER_OK;) {
    ssize_t got = pread(fd, chunk, bytes - at < CHUNK ? (size_t)(bytes - at) : CHUNK, at);
    if (got <= 0) {
      status = cannot(a, "read", error);
      break;
    }
    rf_hash_add(a->hash, chunk, (size_t)got);
    at += got;
    if (a->place->progress) a->place->progress(a->place->self, a->file, at);
    if (rf_flag_is_set(a->place->stop))
      status = RF_FAIL(error, RAFTER_INTERRUPTED, "run the same command again to continue",
                       "stopped by a signal; the downloaded bytes are kept");
  }
  free(chunk);
  return status;
}

/* Sets *present to true if the file already exists with the listed size and checksum. */
static rf_status is_present(arrival *a, bool *present, rf_error *error) {
  struct stat info;
  char sum[RF_HASH_TEXT];
  *present = false;
  int fd = openat(a->folder, a->base, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return RAFTER_OK;
  rf_status status = RAFTER_OK;
  if (fstat(fd, &info) || !S_ISREG(info.st_mode))
    RF_GO(RF_FAIL(error, RAFTER_FAILED, "remove the file, or choose another --out",
                  "%s/%s is not a regular file", a->place->folder_name, a->file->path));
  if (info.st_size != a->file->bytes || a->file->kind == RF_HASH_NONE) goto done;
  RF_GO(rf_hash_open(a->file->kind, a->file->bytes, &a->hash, error));
  status = add_what_is_here(a, fd, info.st_size, error);
  rf_hash_end(a->hash, sum);
  a->hash = NULL;
  *present = status == RAFTER_OK && !strcmp(sum, a->file->hash);
done:
  close(fd);
  return status;
}

/* ---- the partial file ------------------------------------------------------------------------ */

/* Writes the record of the partial file: the checksum from the listing and the server's ETag. */
static void write_mark(const arrival *a) {
  int fd =
      openat(a->folder, a->mark, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0) return; /* without this record, the next call downloads from the beginning */
  dprintf(fd, "%s\n%s\n", a->file->hash, a->body.etag);
  close(fd);
}

static bool read_mark(arrival *a) {
  char text[512] = "";
  int fd = openat(a->folder, a->mark, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  char *etag = got > 0 ? strchr(text, '\n') : NULL, *end = etag ? strchr(etag + 1, '\n') : NULL;
  if (!end || end - etag > (int)sizeof a->body.etag) return false;
  *etag = *end = 0;
  snprintf(a->body.etag, sizeof a->body.etag, "%s", etag + 1);
  return !strcmp(text, a->file->hash) && (*a->file->hash || *a->body.etag);
}

static rf_status begin(void *self, int64_t at, rf_error *error) {
  arrival *a = self;
  a->answers++;
  if (at) return RAFTER_OK; /* The download continues at the end of the partial file. */
  char unused[RF_HASH_TEXT];
  if (a->hash) rf_hash_end(a->hash, unused);
  a->hash = NULL;
  if (ftruncate(a->fd, 0) || lseek(a->fd, 0, SEEK_SET)) return cannot(a, "write", error);
  write_mark(a);
  return rf_hash_open(a->file->kind, a->file->bytes, &a->hash, error);
}

static rf_status take(void *self, const void *data, size_t bytes, rf_error *error) {
  arrival *a = self;
  rf_hash_add(a->hash, data, bytes);
  for (size_t done = 0; done < bytes;) {
    ssize_t put = write(a->fd, (const char *)data + done, bytes - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return cannot(a, "write", error);
    done += (size_t)put;
  }
  if (a->place->progress) a->place->progress(a->place->self, a->file, a->body.at + (int64_t)bytes);
  return RAFTER_OK;
}

/* Opens and locks the partial file, and finds how many of its bytes are valid. */
static rf_status open_part(arrival *a, rf_error *error) {
  struct stat info;
  a->fd = openat(a->folder, a->part, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
  if (a->fd < 0 || fstat(a->fd, &info)) return cannot(a, "write", error);
  if (!S_ISREG(info.st_mode)) {
    errno = EEXIST;
    return cannot(a, "write", error);
  }
  if (flock(a->fd, LOCK_EX | LOCK_NB))
    return RF_FAIL(error, RAFTER_FAILED, "wait for the other pull, or end it",
                   "another pull is writing %s/%s", a->place->folder_name, a->file->path);
  a->body.at = info.st_size > 0 && info.st_size <= a->body.most && read_mark(a) ? info.st_size : 0;
  if (!a->body.at) a->body.etag[0] = 0;
  int64_t missing = a->file->bytes - a->body.at;
  if (missing > 0 && fallocate(a->fd, FALLOC_FL_KEEP_SIZE, a->body.at, missing) &&
      (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
    return RF_FAIL(error, RAFTER_FAILED, "free some space or choose another folder with --out",
                   "no room for %s/%s (%lld bytes are missing)", a->place->folder_name, a->file->path,
                   (long long)missing);
  if (!a->body.at) return RAFTER_OK;
  RF_TRY(rf_hash_open(a->file->kind, a->file->bytes, &a->hash, error));
  RF_TRY(add_what_is_here(a, a->fd, a->body.at, error));
  return lseek(a->fd, a->body.at, SEEK_SET) < 0 ? cannot(a, "write", error) : RAFTER_OK;
}

/* ---- the request ----------------------------------------------------------------------------- */

static rf_status ask(arrival *a, const char *revision, rf_http_answer *answer, rf_error *error) {
  char url[8192] = "";
  const rf_hub_place *p = a->place;
  snprintf(url, 2048, "%s/", p->endpoint);
  bool fits = rf_http_escape(url, sizeof url, p->name->repository, true);
  rf_text_append(url, sizeof url, "/resolve/");
  fits = fits && rf_http_escape(url, sizeof url, revision, false);
  rf_text_append(url, sizeof url, "/");
  fits = fits && rf_http_escape(url, sizeof url, a->file->path, true);
  if (!fits) return RF_FAIL(error, RAFTER_FAILED, NULL, "the address of %s is too long", a->file->path);
  return rf_http_get(p->http, url, &a->body, answer, error);
}

/* Downloads the file of the listed commit, so that all files belong to one version. If the server
 * named no commit, as some mirrors do, downloads the file of the branch or tag. */
static rf_status transfer(arrival *a, rf_error *error) {
  const rf_hub_place *p = a->place;
  rf_http_answer answer = {0};
  /* The partial file is already complete, because an earlier call ended just before the rename. */
  if (a->body.exact && a->body.at == a->body.most && a->body.at > 0) return RAFTER_OK;
  const char *commit = p->listing->commit;
  rf_status status = ask(a, *commit ? commit : p->name->revision, &answer, error);
  if (status == RAFTER_OK && answer.code == 404 && *commit && strcmp(commit, p->name->revision))
    status = ask(a, p->name->revision, &answer, error);
  if (status == RAFTER_OK && answer.code != 200)
    return rf_hub_refused(&answer, p->name, a->file->path, p->endpoint, rf_http_has_token(p->http), error);
  if (status == RAFTER_OK || !error || strstr(error->message, a->file->path)) return status;
  rf_error inner = *error; /* Adds the file's name to the error. */
  snprintf(error->message, sizeof error->message, "%s: %.500s", a->file->path, inner.message);
  return status;
}

/* Verifies the checksum, then renames the file. */
static rf_status complete(arrival *a, bool *wrong, rf_error *error) {
  char sum[RF_HASH_TEXT];
  rf_hash_end(a->hash, sum);
  a->hash = NULL;
  *wrong = strcmp(sum, a->file->hash) != 0;
  if (*wrong) {
    if (ftruncate(a->fd, 0)) return cannot(a, "write", error);
    unlinkat(a->folder, a->mark, 0);
    unlinkat(a->folder, a->part, 0);
    return RF_FAIL(error, RAFTER_FAILED,
                   "the download was deleted: try again, or choose another revision or endpoint",
                   "%s is damaged or differs from the hub's list (%s: expected %s, got %s)", a->file->path,
                   a->file->kind == RF_HASH_SHA256 ? "SHA-256" : "Git's blob id", a->file->hash, sum);
  }
  if ((fsync(a->fd) && errno != EINVAL) || renameat(a->folder, a->part, a->folder, a->base))
    return cannot(a, "write", error);
  unlinkat(a->folder, a->mark, 0);
  fsync(a->folder);
  return RAFTER_OK;
}

static void close_arrival(arrival *a) {
  char unused[RF_HASH_TEXT];
  if (a->hash) rf_hash_end(a->hash, unused);
  if (a->fd >= 0) close(a->fd);
  if (a->folder >= 0) close(a->folder);
  a->hash = NULL;
  a->fd = a->folder = -1;
}

rf_status rf_hub_fetch(const rf_hub_place *place, const rf_hub_file *file, rf_hub_state *state,
                       rf_error *error) {
  rf_status status = RAFTER_OK;
  bool wrong = false, resumed = false;
  for (int tries = 0; tries < 2; tries++) {
    bool present;
    arrival a = {.place = place, .file = file, .folder = -1, .fd = -1};
    a.body = (rf_http_body){.most = file->bytes >= 0 ? file->bytes : place->room,
                            .exact = file->bytes >= 0,
                            .begin = begin,
                            .take = take,
                            .self = &a};
    *state = RF_HUB_PRESENT;
    status = open_folder(&a, error);
    if (status == RAFTER_OK) status = is_present(&a, &present, error);
    if (status != RAFTER_OK || present) {
      close_arrival(&a);
      return status;
    }
    status = open_part(&a, error);
    resumed = a.body.at > 0;
    if (status == RAFTER_OK) status = transfer(&a, error);
    if (status == RAFTER_OK) status = complete(&a, &wrong, error);
    /* The parts of the file may come from different versions, so the whole file is downloaded
     * again. */
    bool again = status != RAFTER_OK && wrong && (resumed || a.answers > 1);
    close_arrival(&a);
    if (!again) break;
    wrong = false;
  }
  *state = resumed ? RF_HUB_RESUMED : RF_HUB_DOWNLOADED;
  return status;
}
