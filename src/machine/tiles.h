/* tiles.h - the number of bytes that an array takes in the memory of a machine. */
#ifndef RF_TILES_H
#define RF_TILES_H

#include "machine/machine.h"

/* Number of bytes of an array in the memory of a TPU. The TPU compiler stores arrays in tiles of 8
 * sublanes by 128 lanes. The compiler chooses the order of dimensions with the smallest padding.
 * `bits`, the bits of an element, is 4, 8 (also for booleans), 16 or 32. A wider element is stored
 * as two 32-bit halves. */
int64_t rf_tiled_bytes(int bits, int rank, const int64_t *dims);
/* Number of bytes of an array on this machine. Only a TPU pads arrays to tiles. The dtype may not
 * be RF_PACKED, which has its own layout. */
int64_t rf_machine_bytes(const rf_machine *machine, rf_dtype dtype, int rank, const int64_t *dims);

#endif
