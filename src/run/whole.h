/* whole.h - whole tensors of a plan for several chips. Callers of a run see a tensor without the
 * mesh. These functions find the parts of the tensor in the memory of the chips. Private to
 * src/run.
 *
 * With several hosts, each host has the memory of its own chips. A write goes to the chips of the
 * host that writes. Parts that no chip of this host has come from other hosts. Only host 0 can read
 * parts of other hosts, while the other hosts serve (hosts.h). */
#ifndef RF_RUN_WHOLE_H
#define RF_RUN_WHOLE_H

#include "graph/mesh/place.h"
#include "plan/plan.h"

typedef struct rf_whole rf_whole;
/* *out is NULL for a plan of one chip. The plan must outlive the result. */
rf_status rf_whole_open(const rf_plan *plan, rf_device *device, rf_whole **out, rf_error *error);
void rf_whole_close(rf_whole *whole);
/* Returns the whole tensor of an input, an output or a persistent tensor, with name, dtype, rank
 * and shape. The whole tensor of a KV cache is that of one chip, because all chips have the same
 * pages, with other heads or other positions. */
const rf_tensor *rf_whole_tensor(const rf_whole *whole, int tensor);

/* These functions access bytes [at, at + bytes) of a whole tensor. A write goes to every chip that
 * has a part of these bytes. */
rf_status rf_whole_write(const rf_whole *whole, rf_memory *memory, int tensor, int64_t at, const void *from,
                         int64_t bytes, rf_error *error);
rf_status rf_whole_read(const rf_whole *whole, rf_memory *memory, int tensor, int64_t at, void *to,
                        int64_t bytes, rf_error *error);
rf_status rf_whole_fill(const rf_whole *whole, rf_memory *memory, int tensor, int64_t at, uint32_t word,
                        int64_t bytes, rf_error *error);
/* Copies bytes within the tensor on every chip. Only for a KV cache. */
rf_status rf_whole_copy(const rf_whole *whole, rf_memory *memory, int tensor, int64_t to, int64_t from,
                        int64_t bytes, rf_error *error);
/* Writes a complete input, or reads a complete output, with one transfer for each chip. In the list
 * "segments" of a chip, the first row of the chip has number 0. With slots for several
 * microbatches, the input goes to the slot of microbatch `micro`. */
rf_status rf_whole_push(const rf_whole *whole, rf_memory *memory, int tensor, int micro, const void *from,
                        rf_error *error);
rf_status rf_whole_pull(const rf_whole *whole, rf_memory *memory, int tensor, void *to, rf_error *error);

/* Chips and hosts, for gather.h. A persistent tensor has the part of each chip. Several chips may
 * have the same part. rf_whole_giver returns the chip from which host `to` takes the part of
 * `chip`: one of the host's own chips if possible, otherwise the first chip that has the part.
 * RF_NONE: an earlier chip has the same part, or the stage of the chip does not store the
 * tensor. */
int rf_whole_chips(const rf_whole *whole);
int rf_whole_host(const rf_whole *whole, int chip);
int rf_whole_giver(const rf_whole *whole, int tensor, int chip, int to);
const rf_place_part *rf_whole_part(const rf_whole *whole, int tensor, int chip);
/* The offset at which the part of a chip begins in the memory of the chip's host. */
int64_t rf_whole_base(const rf_whole *whole, const rf_memory *memory, int tensor, int chip);

#endif
