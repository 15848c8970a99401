/* interpreter.h - the program that calls the plan's kernels one after the other. Backends whose
 * kernels are host functions (cpu, reference) share this program. */
#ifndef RF_INTERPRETER_H
#define RF_INTERPRETER_H

#include "backend/kernel.h"

/* `base` is the host address of `source->memory`. */
rf_status rf_interpreter_compile(const rf_program_source *source, unsigned char *base, rf_program **program,
                                 rf_error *error);

#endif
