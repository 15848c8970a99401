/* batch.h - requests inside a generator: what generate.c and batch.c share. */
#ifndef RF_BATCH_H
#define RF_BATCH_H

#include "generate/generate.h"

rf_status rf_batch_open(rf_generator *generator, rf_error *error);
void rf_batch_close(rf_generator *generator);

#endif
