/* table.c - the op table. A new op is one file in ops/ and one entry of ops/list.h. */
#include "graph/ops/ops.h"

#include <string.h>

/* &RF_OP_ROPE, */
#define ROW(NAME, name) &RF_OP_##NAME,
const rf_op_def *const RF_OPS[] = {RF_OPS_LIST(ROW) NULL};

bool rf_op_is_exchange(const rf_op_def *def) {
  return def == &RF_OP_ALL_GATHER || def == &RF_OP_REDUCE_SCATTER || def == &RF_OP_ALL_REDUCE ||
         def == &RF_OP_ALL_TO_ALL || def == &RF_OP_PERMUTE || def == &RF_OP_OFFLOAD_OUT ||
         def == &RF_OP_OFFLOAD_IN || def == &RF_OP_SEND || def == &RF_OP_RECV;
}

const rf_op_def *rf_op_find(const char *name) {
  for (int i = 0; RF_OPS[i]; i++)
    if (strcmp(RF_OPS[i]->name, name) == 0) return RF_OPS[i];
  return NULL;
}
