/* exchange.h - the ops of those collectives whose times a machine file can have. */
#ifndef RF_MACHINE_EXCHANGE_H
#define RF_MACHINE_EXCHANGE_H

#include "machine/machine.h"

extern const rf_op_def *const RF_COLLECTIVE_OPS[RF_COLLECTIVES];

#endif
