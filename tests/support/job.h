/* job.h - jobs of the public C API for tests. */
#ifndef RF_TESTS_JOB_H
#define RF_TESTS_JOB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "rafter.h"

static rafter_error error;

#define OK(call) \
  if ((call) != RAFTER_OK) fail_msg("%s (%s)", error.message, error.hint)

/* Returns a job with the options {name, text}. The last row is {NULL}. */
static rafter_job *job_of(const char *command, const char *const (*options)[2]) {
  rafter_job *job = NULL;
  OK(rafter_job_new(command, &job, &error));
  for (; (*options)[0]; options++) OK(rafter_job_set(job, (*options)[0], (*options)[1], &error));
  return job;
}

#endif
