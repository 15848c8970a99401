/* emit_head.h - sizes of the chunks in which a program computes the output head. The emitter and the
 * plan of a machine that is only planned use the same sizes. See emit_head.c. */
#ifndef RF_XLA_EMIT_HEAD_H
#define RF_XLA_EMIT_HEAD_H

#include "backend/xla/emit.h"

/* Sizes of one op of the head. */
typedef struct rf_head_size {
  int64_t rows, width;
  int64_t vocab; /* columns of the logits, with the columns that rf_emit_head_vocab adds */
  bool adds;     /* the op adds to the gradient of the weight */
} rf_head_size;

/* Columns of the logits of `vocab` tokens. The columns after `vocab` are empty. They exist because
 * the target multiplies some numbers of columns faster. */
int64_t rf_emit_head_vocab(const rf_emit_target *target, int64_t vocab);
/* Rows of one chunk. `bytes`: maximum bytes of its logits in f32; 0: the target decides. */
int64_t rf_emit_head_rows(const rf_emit_target *target, int64_t bytes, const rf_head_size *of);

#endif
