/* page.h - the report as one HTML file that needs no network and no other files. */
#ifndef RF_REPORT_PAGE_H
#define RF_REPORT_PAGE_H

#include <jansson.h>

#include "base/base.h"

/* Writes the page of a report model (page/README.md) into *html, malloc'ed and NUL-terminated. A
 * name in the model cannot inject HTML or script. */
rf_status rf_report_page_html(const json_t *model, char **html, size_t *bytes, rf_error *error);

#endif
