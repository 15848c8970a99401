/* bench_rows.h - adds the output of `rafter bench` to the report model (see docs/formats.md). */
#ifndef RF_REPORT_BENCH_ROWS_H
#define RF_REPORT_BENCH_ROWS_H

#include <jansson.h>

#include "base/base.h"

/* True if the first line of a file is output of `rafter bench --json`. */
bool rf_report_is_bench(const char *path);
/* Checks the lines of a file and adds them to the model's "benches" under `name`. */
rf_status rf_report_add_bench(json_t *model, const char *path, const char *name, rf_error *error);

#endif
