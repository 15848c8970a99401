/* trace_pack.h - a trace's columns as the report's page carries them: small, and text. */
#ifndef RF_REPORT_TRACE_PACK_H
#define RF_REPORT_TRACE_PACK_H

#include <jansson.h>

#include "base/base.h"

/* {"header", "columns"} of a trace.bin: its header with "coding" beside the types of "columns",
 * and base64 of the gzip'ed columns (page/README.md). `columns` are as in the file:
 * header["columns"] one after the other, header["count"] little-endian values each, `bytes` of
 * them. */
rf_status rf_report_pack_trace(const json_t *header, const void *columns, size_t bytes, json_t **trace,
                               rf_error *error);

#endif
