/* trace_pack.h - packs a trace's columns as compressed text for the report's page. */
#ifndef RF_REPORT_TRACE_PACK_H
#define RF_REPORT_TRACE_PACK_H

#include <jansson.h>

#include "base/base.h"

/* Makes {"header", "columns"} from a trace.bin. "header" is the file's header with a "coding" for
 * each column. "columns" is base64 of the gzip'ed columns (page/README.md). `columns` has the
 * `bytes` bytes of the file's columns. Each column has header["count"] little-endian values. */
rf_status rf_report_pack_trace(const json_t *header, const void *columns, size_t bytes, json_t **trace,
                               rf_error *error);

#endif
