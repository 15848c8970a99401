/* rafter.h - the public C API of rafter.
 *
 * Three opaque handles carry everything:
 *   rafter_job      the resolved options of one command (model, machine, batch, dtype, ...)
 *   rafter_plan     the laid-out program of a job: every op, tensor, offset, kernel and predicted time
 *   rafter_session  a plan bound to a backend: its one arena, its weights, its clock
 *
 * Conventions, for every function here:
 *   - every call returns a status and, when it is not RAFTER_OK, fills the caller's error (which may be NULL);
 *   - out-parameters are written on success only;
 *   - sizes are in bytes, times in seconds, counts in elements; token ids are int32_t in [0, vocab);
 *   - strings are UTF-8; a `char **` result is malloc'ed and belongs to the caller: give it to rafter_text_free();
 *   - nothing here exits, prints or changes global state; two sessions may live side by side in one process.
 */
#ifndef RAFTER_H
#define RAFTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are the program's exit statuses. */
typedef enum rafter_status {
  RAFTER_OK = 0,
  RAFTER_FAILED = 1,        /* input, I/O or numbers: the work itself failed */
  RAFTER_INVALID = 2,       /* an option or argument is wrong */
  RAFTER_NO_FIT = 3,        /* the plan does not fit the memory it was given */
  RAFTER_INTERRUPTED = 130, /* stopped by a signal after saving */
} rafter_status;

/* What went wrong, in three lines a person can act on. Filled by the call that failed; the caller owns the storage. */
typedef struct rafter_error {
  rafter_status status;
  char message[768]; /* WHAT (where: expected X, got Y) */
  char hint[512];    /* what to do; may be empty */
  char source[96];   /* file:line in rafter's source, for bug reports */
} rafter_error;

#ifdef __cplusplus
}
#endif
#endif
