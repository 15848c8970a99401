/* page.h - the report as one HTML file that needs nothing else: no network, no folder beside it. */
#ifndef RF_REPORT_PAGE_H
#define RF_REPORT_PAGE_H

#include <jansson.h>

#include "base/base.h"

/* The page of a report model (page/README.md says what panels read of it), malloc'ed with a NUL
 * behind it. Names in the model may be hostile: they stay data. */
rf_status rf_report_page_html(const json_t *model, char **html, size_t *bytes, rf_error *error);

#endif
