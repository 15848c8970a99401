/* client_cache.c - see client_parts.h: compiled programs in files of a folder. The name of a file
 * is the hash of everything that the compiler reads. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>
#include <xxhash.h>

#include "backend/xla/client_parts.h"
#include "base/file.h"

#define CACHE_MAGIC "rafterX1"
#define CACHE_END ".xla"
#define CACHE_MOST ((int64_t)4 << 30) /* bytes of all files of a folder */

/* A file consists of this head and the program in the plugin's format. The file of a topology has
 * only the head. */
typedef struct cache_head {
  char magic[8];
  uint64_t bytes;
  XXH128_hash_t hash; /* hash of the bytes that follow this field */
  rf_wire_program program;
} cache_head;

static XXH128_hash_t hash_of(const cache_head *head, const void *data, size_t bytes) {
  XXH3_state_t *state = rf_must(XXH3_createState());
  XXH3_128bits_reset(state);
  XXH3_128bits_update(state, &head->program, sizeof head->program);
  if (bytes) XXH3_128bits_update(state, data, bytes);
  XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  return hash;
}

/* Adds a text with its length, so that no two lists of texts give the same bytes. */
static void add(XXH3_state_t *state, const void *data, size_t bytes) {
  uint64_t count = bytes;
  XXH3_128bits_update(state, &count, sizeof count);
  if (bytes) XXH3_128bits_update(state, data, bytes);
}

static void add_text(XXH3_state_t *state, const char *text) {
  add(state, text ? text : "", text ? strlen(text) : 0);
}

/* Adds the line with the features of this CPU, because a program that was compiled for one CPU may
 * not run on another CPU. */
static void add_features(XXH3_state_t *state) {
  char line[8192] = "";
  FILE *file = fopen("/proc/cpuinfo", "r");
  while (file && fgets(line, sizeof line, file))
    if (!strncmp(line, "flags", 5) || !strncmp(line, "Features", 8)) break;
  if (file) fclose(file);
  add_text(state, line);
}

void rf_xla_cache_path(const rf_xla_client *client, const rf_xla_compile *of, const void *options,
                       size_t options_bytes, char *path, size_t size) {
  static const char *const VARIABLE[] = {"XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_XLA_FLAGS"};
  const rf_xla_facts *facts = &client->facts;
  rf_file_stamp stamp = rf_file_stamp_at(client->plugin);
  int64_t number[] = {RF_WIRE_VERSION, facts->api_major, facts->api_minor, facts->devices,
                      stamp.bytes,     stamp.seconds,    stamp.nanoseconds};
  XXH3_state_t *state = rf_must(XXH3_createState());
  XXH3_128bits_reset(state);
  add(state, number, sizeof number);
  add_text(state, facts->platform);
  add_text(state, facts->version);
  add_text(state, facts->kind);
  add(state, client->settings, client->settings_bytes);
  for (size_t i = 0; i < sizeof VARIABLE / sizeof *VARIABLE; i++) add_text(state, getenv(VARIABLE[i]));
  if (!of->topology) add_features(state);
  add_text(state, of->topology);
  add_text(state, of->target);
  add(state, options, options_bytes);
  add(state, of->text, of->bytes);
  XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  snprintf(path, size, "%s/%016llx%016llx" CACHE_END, of->cache, (unsigned long long)hash.high64,
           (unsigned long long)hash.low64);
}

bool rf_xla_cache_read(const char *path, rf_wire_program *program, void **data, size_t *bytes) {
  rf_error unused;
  cache_head head;
  char *file = NULL;
  size_t size = 0;
  if (rf_file_read(path, (size_t)1 << 31, &file, &size, &unused) != RAFTER_OK) return false;
  bool good = size >= sizeof head;
  if (good) {
    memcpy(&head, file, sizeof head);
    good = !memcmp(head.magic, CACHE_MAGIC, sizeof head.magic) && head.bytes == size - sizeof head &&
           XXH128_isEqual(head.hash, hash_of(&head, file + sizeof head, (size_t)head.bytes));
  }
  if (!good) {
    free(file);
    return false;
  }
  *program = head.program;
  *bytes = (size_t)head.bytes;
  memmove(file, file + sizeof head, *bytes);
  *data = file;
  utimes(path, NULL); /* sets the time of the file's last use, because the oldest files are removed first */
  return true;
}

typedef struct entry {
  char name[64];
  int64_t bytes;
  struct timespec used;
} entry;

static int compare_used(const void *a, const void *b) {
  const entry *x = a, *y = b;
  if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
  return (x->used.tv_nsec > y->used.tv_nsec) - (x->used.tv_nsec < y->used.tv_nsec);
}

/* Removes files, the longest unused first, until `most` bytes or fewer remain. */
void rf_xla_cache_trim(const char *folder, int64_t most) {
  entry *list = NULL;
  size_t count = 0, room = 0;
  int64_t total = 0;
  DIR *open = opendir(folder);
  for (struct dirent *at; open && (at = readdir(open));) {
    struct stat file;
    size_t length = strlen(at->d_name), end = strlen(CACHE_END);
    if (length <= end || length >= sizeof list->name || strcmp(at->d_name + length - end, CACHE_END))
      continue;
    if (fstatat(dirfd(open), at->d_name, &file, AT_SYMLINK_NOFOLLOW) || !S_ISREG(file.st_mode)) continue;
    if (count == room) {
      room = room ? 2 * room : 64;
      list = rf_must(realloc(list, room * sizeof *list));
    }
    strcpy(list[count].name, at->d_name);
    list[count].bytes = file.st_size;
    list[count++].used = file.st_mtim;
    total += file.st_size;
  }
  if (count) qsort(list, count, sizeof *list, compare_used);
  for (size_t i = 0; i < count && total > most; i++)
    if (!unlinkat(dirfd(open), list[i].name, 0)) total -= list[i].bytes;
  free(list);
  if (open) closedir(open);
}

void rf_xla_cache_write(const char *folder, const char *path, const rf_wire_program *program,
                        const void *data, size_t bytes) {
  rf_error unused;
  rf_out_file *out = NULL;
  cache_head head = {.magic = CACHE_MAGIC, .bytes = bytes, .program = *program};
  head.program.program = 0;
  head.hash = hash_of(&head, data, bytes);
  if (rf_make_folders(folder, &unused) != RAFTER_OK) return;
  if (rf_out_open(path, (int64_t)(sizeof head + bytes), &out, &unused) != RAFTER_OK) return;
  if (rf_out_write(out, &head, sizeof head, &unused) != RAFTER_OK ||
      rf_out_write(out, data, bytes, &unused) != RAFTER_OK) {
    rf_out_discard(out);
    return;
  }
  if (rf_out_commit(out, &unused) == RAFTER_OK) rf_xla_cache_trim(folder, CACHE_MOST);
}
