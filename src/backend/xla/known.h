/* known.h - finds facts about the inputs of a run. For known facts, a program can leave out
 * operations (rf_emit_known). On GPUs, a program without loops of unknown length and without
 * branches is much faster. */
#ifndef RF_XLA_KNOWN_H
#define RF_XLA_KNOWN_H

#include "backend/xla/emit.h"

enum { RF_KNOWN_SEGMENTS, RF_KNOWN_SLOTS, RF_KNOWN_POSITIONS, RF_KNOWN_RULES, RF_KNOWN_INPUTS };

/* The tensors that contain these inputs; RF_NONE: the graph does not read the input, or all inputs
 * use the same program. */
typedef struct rf_known_inputs {
  bool any;
  int tensor[RF_KNOWN_INPUTS];
} rf_known_inputs;
/* `offset` has the offset of each tensor, negative if the tensor is not stored. `allowed` is
 * rf_emit_target.known on one host, and false on several hosts. All hosts must choose the same
 * program, but a host sees only its own inputs. */
rf_known_inputs rf_known_find(const rf_graph *graph, const int64_t *offset, bool allowed, int chips);

/* The inputs of a run with `rows` rows. data[i] is NULL if the input does not exist. */
typedef struct rf_known_values {
  const void *data[RF_KNOWN_INPUTS];
  int64_t bytes[RF_KNOWN_INPUTS], rows;
} rf_known_values;
rf_emit_known rf_known_of(const rf_graph *graph, const rf_known_values *of);
bool rf_known_equal(const rf_emit_known *a, const rf_emit_known *b);

#endif
