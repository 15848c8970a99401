/* memory.c - pages from the kernel for the arena, and pools. The memory of a pool is freed
 * together. */
#include "base/base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* ---- how much memory there is ---------------------------------------------------------------- */

/* Returns the first number in a small file of the kernel. -1: the file does not exist, or has "max"
 * instead of a number. */
static int64_t read_number(const char *path) {
  FILE *file = fopen(path, "re");
  if (!file) return -1;
  char text[64];
  size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[length] = 0;
  char *end;
  long long value = strtoll(text, &end, 10);
  return end == text || value < 0 ? -1 : (int64_t)value;
}

/* Returns the number after `key` at the start of a line, multiplied by `unit`. -1: no such line
 * exists. */
static int64_t read_field(const char *path, const char *key, int64_t unit) {
  FILE *file = fopen(path, "re");
  if (!file) return -1;
  char line[256];
  int64_t value = -1;
  size_t length = strlen(key);
  while (value < 0 && fgets(line, sizeof line, file))
    if (strncmp(line, key, length) == 0) value = strtoll(line + length, NULL, 10) * unit;
  fclose(file);
  return value;
}

static int64_t smaller(int64_t a, int64_t b) { return b >= 0 && b < a ? b : a; }

/* Bytes that a control group still allows, which are its limit minus its use. Page cache that the
 * kernel can drop does not count as use. */
static int64_t group_available(const char *folder, const char *limit_name, const char *used_name,
                               const char *cache_key) {
  char path[4200];
  snprintf(path, sizeof path, "%s/%s", folder, limit_name);
  int64_t limit = read_number(path);
  if (limit < 0) return -1;
  snprintf(path, sizeof path, "%s/%s", folder, used_name);
  int64_t used = read_number(path);
  if (used < 0) return -1;
  snprintf(path, sizeof path, "%s/memory.stat", folder);
  int64_t cache = read_field(path, cache_key, 1);
  int64_t left = limit - used + (cache > 0 ? cache : 0);
  return left > 0 ? left : 0;
}

/* Bytes that the control groups of this process allow. Each group allows its limit minus its use,
 * and the smallest number counts. -1: no group has a limit. */
static int64_t groups_available(void) {
  FILE *file = fopen("/proc/self/cgroup", "re");
  if (!file) return -1;
  int64_t least = INT64_MAX;
  char line[4096];
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) continue;
    *group++ = 0;
    bool second = controllers[1] == 0, memory = strstr(controllers, "memory") != NULL;
    if (!second && !memory) continue;
    for (;;) {
      char folder[4160];
      snprintf(folder, sizeof folder, "%s%s", second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory",
               strcmp(group, "/") ? group : "");
      int64_t left = second ? group_available(folder, "memory.max", "memory.current", "inactive_file ")
                            : group_available(folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                              "total_inactive_file ");
      least = smaller(least, left);
      char *slash = strrchr(group, '/');
      if (!slash || !*group) break;
      *slash = 0;
    }
  }
  fclose(file);
  return least == INT64_MAX ? -1 : least;
}

int64_t rf_memory_available(void) {
  int64_t available = read_field("/proc/meminfo", "MemAvailable:", 1024);
  int64_t groups = groups_available();
  if (available < 0) return groups;
  return smaller(available, groups);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static size_t page_round(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

rf_status rf_pages_map(size_t bytes, void **base, size_t *huge_bytes, rf_error *error) {
  static const char hint[] =
      "choose a smaller batch, sequence or model, or more rematerialisation (--fit searches for one)";
  if (bytes == 0 || bytes > SIZE_MAX / 2)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot map %zu bytes of memory", bytes);
  /* The kernel would grant more memory than exists, and kill the process later. So the request is
   * refused before it reaches the kernel. */
  int64_t available = rf_memory_available();
  if (available >= 0 && bytes > (size_t)available)
    return RF_FAIL(error, RAFTER_FAILED, hint,
                   "not enough memory (needed %.2f GiB, the machine has %.2f GiB available)",
                   (double)bytes * 0x1p-30, (double)available * 0x1p-30);
  size_t length = page_round(bytes), mapped = length + HUGE_PAGE;
  char *start =
      mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED)
    return RF_FAIL(error, RAFTER_FAILED, hint, "cannot map %.2f GiB of memory (%s)", (double)bytes * 0x1p-30,
                   strerror(errno));
  size_t head = (HUGE_PAGE - (uintptr_t)start % HUGE_PAGE) % HUGE_PAGE;
  if (head) munmap(start, head);
  if (HUGE_PAGE - head) munmap(start + head + length, HUGE_PAGE - head);
  size_t huge = 0;
  if (length >= HUGE_PAGE && madvise(start + head, length, MADV_HUGEPAGE) == 0)
    huge = length / HUGE_PAGE * HUGE_PAGE;
  *base = start + head;
  if (huge_bytes) *huge_bytes = huge;
  return RAFTER_OK;
}

void rf_pages_unmap(void *base, size_t bytes) {
  if (base) munmap(base, page_round(bytes));
}

typedef struct chunk {
  struct chunk *next;
  size_t used, size; /* the chunk has `size` bytes at `bytes`, of which `used` are in use */
  _Alignas(16) unsigned char bytes[];
} chunk;

struct rf_pool {
  chunk *first;
};

void *rf_must(void *memory) {
  if (memory) return memory;
  fputs("rafter: the machine has no memory left\n", stderr);
  abort();
}

rf_pool *rf_pool_new(void) { return rf_must(calloc(1, sizeof(rf_pool))); }

void rf_pool_free(rf_pool *pool) {
  if (!pool) return;
  for (chunk *next, *c = pool->first; c; c = next) {
    next = c->next;
    free(c);
  }
  free(pool);
}

void *rf_pool_raw(rf_pool *pool, size_t bytes) {
  if (bytes > SIZE_MAX / 4) rf_must(NULL);
  bytes = (bytes + 15) & ~(size_t)15;
  chunk *c = pool->first;
  if (!c || c->size - c->used < bytes) {
    /* Each chunk has twice the size of the chunk before it, up to 1 MiB. So the number of chunks
     * stays small. */
    size_t size = c ? c->size * 2 : (size_t)16 << 10;
    if (size > (size_t)1 << 20) size = (size_t)1 << 20;
    if (size < bytes) size = bytes;
    c = rf_must(malloc(sizeof(chunk) + size));
    c->size = size;
    c->used = 0;
    c->next = pool->first;
    pool->first = c;
  }
  void *memory = c->bytes + c->used;
  c->used += bytes;
  return memory;
}

void *rf_pool_alloc(rf_pool *pool, size_t bytes) { return memset(rf_pool_raw(pool, bytes), 0, bytes); }

char *rf_pool_format(rf_pool *pool, const char *format, ...) {
  if (!format) format = "";
  char small[256];
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  int length = vsnprintf(small, sizeof small, format, arguments);
  va_end(arguments);
  char *text = rf_pool_alloc(pool, (size_t)(length < 0 ? 0 : length) + 1);
  if (length >= (int)sizeof small) vsnprintf(text, (size_t)length + 1, format, again);
  else if (length > 0) memcpy(text, small, (size_t)length);
  va_end(again);
  return text;
}
