/* stored_types.h - the element types of safetensors files, for the reader and the writer. */
#ifndef RF_STORED_TYPES_H
#define RF_STORED_TYPES_H

#include "base/base.h"

typedef struct rf_stored_type {
  const char *name;
  int64_t bytes;
  rf_dtype dtype;
} rf_stored_type;
extern const rf_stored_type RF_STORED_TYPES[];
extern const int RF_STORED_TYPE_COUNT;

#endif
