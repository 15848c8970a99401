/* fake_profiler.h - the profiler of the plugin without a compiler. In a program that rafter writes,
 * each location is an instruction of the optimized program: "fusion.N". An execution that is
 * profiled takes some milliseconds, which its instructions share equally: first those of
 * microbatches, N times (rounds=N), then the others. A copy of no op comes first.
 * Words of FAKE_PLUGIN:
 *   no_profiler
 *   profile_create, profile_start, profile_stop, profile_collect: the call that fails
 *   profile_die: the plugin aborts when the profile is read
 *   profile_none: no bytes; profile_half: half of them; profile_huge: a wrong size inside
 *   profile_strange: other names of instructions
 *   profile_late: the clock is wrong; profile_twice: the bytes come at the second call
 *   profile_zero: a zero byte is counted; rounds=N */
#ifndef FAKE_PROFILER_H
#define FAKE_PROFILER_H

#include "pjrt_host/pjrt_abi.h"

/* Names of the instructions' ops, in the order of the text. NULL ends the list. */
char **fake_names(const char *text, size_t bytes);
/* An optimized program with these instructions; free(). */
char *fake_program(char *const *name, size_t *bytes);
/* An execution of a program with these instructions. */
void fake_profiled(char *const *name);
/* The plugin's list of extensions. */
const pjrt_extension *fake_extensions(void);

#endif
