/* compiled.h - what an accelerator's own compiler says about a plan. The programs of the plan are
 * written as StableHLO and compiled by a PJRT plugin for a topology. No device is needed. */
#ifndef RF_COMPILED_H
#define RF_COMPILED_H

#include "advise/planned.h"

/* Does the work of --compile: compiles the plan's programs, and adds the compiler's figures to the
 * plan's JSON ("compiled") and to its table. A program that does not fit the device's memory is
 * reported, and is not an error. RAFTER_FAILED: the plugin's error. */
rf_status rf_plan_compile(rafter_plan *plan, const rf_options *options, const volatile int *stop,
                          rf_error *error);
/* Does the work of --stablehlo: writes the plan's programs to the folder, with a README that says
 * how to run them. */
rf_status rf_plan_write_programs(const rafter_plan *plan, const char *folder, rf_error *error);

#endif
