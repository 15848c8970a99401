/* guard.c - the promise that a step allocates nothing, made fatal. Built with RF_DEBUG_GUARD the
 * process's allocator entry points are replaced by ones that pass through to glibc's own, and
 * abort with the phase's name while a guard is up. */
#define _GNU_SOURCE
#include "run/run.h"

#ifdef RF_DEBUG_GUARD

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static _Atomic(const char *) phase_up;

static void check(const char *call) {
  const char *phase = atomic_load_explicit(&phase_up, memory_order_relaxed);
  if (!phase) return;
  atomic_store(&phase_up, NULL);
  const char *parts[] = {"rafter: ", call, " during ", phase,
                         " (expected: no allocation between the first and the last step)\n"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (write(2, parts[i], strlen(parts[i])) < 0) break;
  abort();
}

void *malloc(size_t n) { return check("malloc"), __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return check("calloc"), __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return check("realloc"), __libc_realloc(p, n); }
void *memalign(size_t a, size_t n) { return check("memalign"), __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { return check("aligned_alloc"), __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n) {
  check("posix_memalign");
  *p = __libc_memalign(a, n);
  return *p ? 0 : ENOMEM;
}
void free(void *p) {
  if (p) check("free");
  __libc_free(p);
}
void *mmap(void *at, size_t n, int prot, int flags, int file, off_t offset) {
  check("mmap");
  return (void *)syscall(SYS_mmap, at, n, prot, flags, file, offset);
}
int munmap(void *at, size_t n) { return check("munmap"), (int)syscall(SYS_munmap, at, n); }

void rf_guard_begin(const char *phase) { atomic_store(&phase_up, phase); }
void rf_guard_end(void) { atomic_store(&phase_up, NULL); }
bool rf_guard_built(void) { return true; }

#else

void rf_guard_begin(const char *phase) { (void)phase; }
void rf_guard_end(void) {}
bool rf_guard_built(void) { return false; }

#endif
