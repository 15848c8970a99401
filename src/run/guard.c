/* guard.c - makes allocations during a step fatal. With RF_DEBUG_GUARD, this file replaces the
 * allocator's functions. While a guard is active, these functions abort with the phase's name.
 * Otherwise they call glibc. */
#define _GNU_SOURCE
#include "run/run.h"

#include "backend/mpi/link.h"

#ifdef RF_DEBUG_GUARD

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
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

/* True for callers that may allocate during a step. When the number of threads changes, OpenMP
 * allocates a team, and the loader allocates the thread-local memory of new threads. */
static bool is_openmp(const void *caller) {
  Dl_info library;
  return dladdr(caller, &library) && library.dli_fname &&
         (strstr(library.dli_fname, "omp.so") || strstr(library.dli_fname, "/ld-linux"));
}

/* The OpenMP runtime frees a team by a tail call, so the call of free seems to come from our code.
 * Therefore the guard remembers the aligned blocks of the runtime. */
enum { TEAMS = 256 };
static _Atomic(void *) team[TEAMS];
static atomic_uint teams;

static bool is_team(const void *p) {
  if (!atomic_load_explicit(&phase_up, memory_order_relaxed)) return false;
  for (int i = 0; i < TEAMS; i++)
    if (atomic_load(&team[i]) == p) return true;
  return false;
}

/* true if the thread takes no part in steps, as threads that serve connections */
static _Thread_local bool apart;

/* An MPI library allocates memory for messages. The guard allows allocations by an MPI library, and
 * only counts them. */
static _Atomic int64_t of_library;

static void check(const char *call, const void *caller) {
  const char *phase = atomic_load_explicit(&phase_up, memory_order_relaxed);
  if (!phase || apart) return;
  const rf_link *link = rf_link_of_process();
  if (link && link->in_library == &errno) {
    atomic_fetch_add(&of_library, strcmp(call, "free") != 0 && strcmp(call, "munmap") != 0);
    return;
  }
  if (is_openmp(caller)) return;
  atomic_store(&phase_up, NULL);
  const char *parts[] = {"rafter: ", call, " during ", phase,
                         " (expected: no allocation between the first and the last step)\n"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (write(2, parts[i], strlen(parts[i])) < 0) break;
  abort();
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t n) {
  check("malloc", CALLER);
  return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
  check("calloc", CALLER);
  return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
  check("realloc", CALLER);
  return __libc_realloc(p, n);
}

static void *align(const char *call, const void *caller, size_t a, size_t n) {
  check(call, caller);
  void *p = __libc_memalign(a, n);
  if (is_openmp(caller)) atomic_store(&team[atomic_fetch_add(&teams, 1) % TEAMS], p);
  return p;
}

void *memalign(size_t a, size_t n) { return align("memalign", CALLER, a, n); }
void *aligned_alloc(size_t a, size_t n) { return align("aligned_alloc", CALLER, a, n); }
int posix_memalign(void **p, size_t a, size_t n) {
  check("posix_memalign", CALLER);
  *p = __libc_memalign(a, n);
  return *p ? 0 : ENOMEM;
}
void free(void *p) {
  if (p && !is_team(p)) check("free", CALLER);
  __libc_free(p);
}
void *mmap(void *at, size_t n, int prot, int flags, int file, off_t offset) {
  check("mmap", CALLER);
  return (void *)syscall(SYS_mmap, at, n, prot, flags, file, offset);
}
int munmap(void *at, size_t n) {
  check("munmap", CALLER);
  return (int)syscall(SYS_munmap, at, n);
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef int (*thread_maker)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
typedef struct thread_start {
  void *(*run)(void *);
  void *self;
} thread_start;
static thread_maker make_thread;

__attribute__((constructor)) static void find_thread_maker(void) {
  *(void **)&make_thread = dlsym(RTLD_NEXT, "pthread_create");
}

static void *run_apart(void *start) {
  const thread_start own = *(thread_start *)start;
  apart = true;
  __libc_free(start);
  return own.run(own.self);
}

/* Threads of OpenMP compute steps. All other threads are apart from steps, until they begin a step
 * themselves. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *self) {
  if (!make_thread) find_thread_maker();
  if (is_openmp(CALLER)) return make_thread(thread, attributes, run, self);
  thread_start *start = __libc_malloc(sizeof *start);
  if (!start) return EAGAIN;
  *start = (thread_start){run, self};
  int status = make_thread(thread, attributes, run_apart, start);
  if (status) __libc_free(start);
  return status;
}

void rf_guard_begin(const char *phase) {
  apart = false;
  atomic_store(&phase_up, phase);
}
void rf_guard_end(void) { atomic_store(&phase_up, NULL); }
bool rf_guard_built(void) { return true; }
int64_t rf_guard_library_allocations(void) { return atomic_load(&of_library); }

#else

void rf_guard_begin(const char *phase) { (void)phase; }
void rf_guard_end(void) {}
bool rf_guard_built(void) { return false; }
int64_t rf_guard_library_allocations(void) { return 0; }

#endif
