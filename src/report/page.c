/* page.c - makes the report's page: inserts the report model into the HTML page that the build
 * composes. */
#include "report/page.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

/* RF_REPORT_PAGE is the page that the build composes from page/. It contains MARKER once. */
#ifndef RF_REPORT_PAGE
#error "RF_REPORT_PAGE must be the path of the composed page"
#endif
__asm__(".pushsection .rodata\n"
        ".hidden rf_report_frame\n.globl rf_report_frame\nrf_report_frame:\n"
        ".incbin \"" RF_REPORT_PAGE "\"\n.byte 0\n"
        ".popsection\n");
extern const char rf_report_frame[];

static const char MARKER[] = "@@model@@";

/* Some characters could end the script element or a line of script. If such a character is at `at`,
 * returns its number of bytes, and sets *other to its JSON escape. If not, returns 0. In JSON,
 * these characters occur only inside strings. */
static size_t spelled(const unsigned char *at, const char **other) {
  static const struct {
    const char *raw, *other;
  } spellings[] = {{"<", "\\u003c"},
                   {">", "\\u003e"},
                   {"&", "\\u0026"},
                   {"\xe2\x80\xa8", "\\u2028"},
                   {"\xe2\x80\xa9", "\\u2029"}};
  for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
    if (!strncmp((const char *)at, spellings[i].raw, strlen(spellings[i].raw))) {
      *other = spellings[i].other;
      return strlen(spellings[i].raw);
    }
  return 0;
}

rf_status rf_report_page_html(const json_t *model, char **html, size_t *bytes, rf_error *error) {
  const char *marker = strstr(rf_report_frame, MARKER), *other;
  char *text = rf_json_text(model, 0), *page, *out;
  size_t room = strlen(rf_report_frame);
  *html = NULL;
  if (!text)
    return RF_FAIL(error, RAFTER_FAILED, "free memory or report fewer runs",
                   "out of memory for the report's data");
  for (const char *at = text; *at; at++)
    room += *at == '<' || *at == '>' || *at == '&' || (unsigned char)*at == 0xe2 ? 6 : 1;
  page = malloc(room + 1);
  if (!page) {
    free(text);
    return RF_FAIL(error, RAFTER_FAILED, "free memory or report fewer runs",
                   "out of memory for a page of %zu bytes", room);
  }
  out = page;
  memcpy(out, rf_report_frame, (size_t)(marker - rf_report_frame));
  out += marker - rf_report_frame;
  for (const char *at = text; *at;) {
    size_t took = spelled((const unsigned char *)at, &other);
    if (took) {
      memcpy(out, other, 6);
      out += 6;
      at += took;
    } else *out++ = *at++;
  }
  strcpy(out, marker + sizeof MARKER - 1);
  free(text);
  *html = page;
  *bytes = (size_t)(out - page) + strlen(out);
  return RAFTER_OK;
}
