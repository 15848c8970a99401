/* params.h - the index of a parameter by its name, or -1. */
#ifndef RF_TEST_PARAMS_H
#define RF_TEST_PARAMS_H

#include <string.h>

#include "model/model.h"

static inline int params_find(const rf_params *params, const char *name) {
  for (int i = 0; i < params->count; i++)
    if (!strcmp(params->at[i].name, name)) return i;
  return -1;
}

#endif
