/* gather.h - gives a block of a whole tensor to every host at the same time. The blocks come from
 * the hosts that have the parts. Private to src/run; callers use rf_run_gather. */
#ifndef RF_RUN_GATHER_H
#define RF_RUN_GATHER_H

#include "run/run.h"
#include "run/whole.h"

/* Host h gets block[h]. `to` has the size of the block of this host. All hosts pass the same
 * list. */
rf_status rf_gather(const rf_whole *whole, rf_memory *memory, const rf_run_block *block, void *to,
                    rf_error *error);

#endif
