/* calibrate_parts.h - what the parts of a calibration share. */
#ifndef RF_CALIBRATE_PARTS_H
#define RF_CALIBRATE_PARTS_H

#include "run/calibrate.h"

/* The curve of this op, dtype and kernel, made where there is none; NULL: there are as many as a machine can have. */
rf_curve *rf_calibrate_curve(rf_machine *machine, const char *op, rf_dtype dtype, const char *kernel);
/* calibrate_heads.c: curves "head_rows", by the numbers of a row. */
rf_status rf_calibrate_heads(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);
/* calibrate_products.c: curves of the products of packed matrices, of every storage type, by rows. */
rf_status rf_calibrate_products(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);

#endif
