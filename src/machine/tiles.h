/* tiles.h - the bytes of an array in a machine's memory. */
#ifndef RF_TILES_H
#define RF_TILES_H

#include "machine/machine.h"

/* Bytes of an array in the memory of a TPU, whose compiler stores every array in tiles of 8
 * sublanes by 128 lanes and orders the dimensions so that the padding is smallest. `bits` of an
 * element: 4, 8 (booleans too), 16 or 32 (wider ones are stored as two halves). */
int64_t rf_tiled_bytes(int bits, int rank, const int64_t *dims);
/* Bytes of an array on this machine: tiled on a TPU, bare elsewhere. RF_PACKED, which has a
 * layout of its own, is not allowed. */
int64_t rf_machine_bytes(const rf_machine *machine, rf_dtype dtype, int rank, const int64_t *dims);

#endif
