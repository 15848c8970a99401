/* page_of.c - writes the report page of any report model: page_of MODEL.json PAGE.html. Browser
 * tests use report models that no run would produce. */
#include "base/json.h"
#include "report/page.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
  json_t *model = NULL;
  char *html = NULL;
  size_t bytes;
  rf_error error;
  if (count != 3) {
    fprintf(stderr, "page_of MODEL.json PAGE.html\n");
    return 2;
  }
  rf_status status = rf_json_read(arguments[1], (size_t)1 << 30, &model, &error);
  if (status == RAFTER_OK) status = rf_report_page_html(model, &html, &bytes, &error);
  if (status == RAFTER_OK) status = rf_file_write(arguments[2], html, bytes, &error);
  if (status != RAFTER_OK) fprintf(stderr, "page_of: %s\n", error.message);
  json_decref(model);
  free(html);
  return status == RAFTER_OK ? 0 : 1;
}
