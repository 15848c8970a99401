/* adapter_parts.h - declarations that reading and writing of PEFT's files share. */
#ifndef RF_ADAPTER_PARTS_H
#define RF_ADAPTER_PARTS_H

#include "model/adapter.h"
#include "model/names.h"

#include <stdio.h>

/* Returns the order of B's columns if files store this fused weight head by head. Otherwise,
 * returns NULL. Sets *name. */
const rf_name *rf_adapter_order(const rf_model *model, const rf_param *param, rf_name *name);

static inline void rf_adapter_path(char path[4300], const char *folder, const char *name) {
  snprintf(path, 4300, "%s/%s", folder, name);
}

#endif
