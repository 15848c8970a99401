/* bench_rows.h - what `rafter bench --json` printed, as the report model holds it.
 * docs/formats.md, "The report model". */
#ifndef RF_REPORT_BENCH_ROWS_H
#define RF_REPORT_BENCH_ROWS_H

#include <jansson.h>

#include "base/base.h"

/* Whether the first line of a file is such a row. */
bool rf_report_is_bench(const char *path);
/* Its rows, checked, into the model's "benches" under this name. */
rf_status rf_report_add_bench(json_t *model, const char *path, const char *name, rf_error *error);

#endif
