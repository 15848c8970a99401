/* page.c - see page.h. The build embeds the files of page/ in the program. */
#include "serve/page.h"

#include "base/base.h"

#include <stdio.h>
#include <string.h>

/* RF_SERVE_PAGE is the folder page/. */
#ifndef RF_SERVE_PAGE
#error "RF_SERVE_PAGE must be the folder of the page's files"
#endif
#define FILE_OF(name) ".incbin \"" RF_SERVE_PAGE "/" name "\"\n"
/* All scripts form one file. core.js is first, because the other scripts need its object. */
// clang-format off
__asm__(".pushsection .rodata\n"
        ".hidden rf_page_html\n.globl rf_page_html\nrf_page_html:\n"
        FILE_OF("page.html") ".byte 0\n"
        ".hidden rf_page_css\n.globl rf_page_css\nrf_page_css:\n"
        FILE_OF("page.css") ".byte 0\n"
        ".hidden rf_page_js\n.globl rf_page_js\nrf_page_js:\n"
        FILE_OF("core.js") FILE_OF("markdown.js") FILE_OF("tokens.js")
        FILE_OF("stream.js") FILE_OF("live.js") FILE_OF("settings.js") FILE_OF("answer.js")
        FILE_OF("chat.js") ".byte 0\n"
        ".hidden rf_page_end\n.globl rf_page_end\nrf_page_end:\n"
        ".byte 0\n"
        ".popsection\n");
// clang-format on
extern const char rf_page_html[], rf_page_css[], rf_page_js[], rf_page_end[];

/* A zero byte follows each file, and then the next file begins. */
static const rf_page_file FILES[] = {
    {"/", "text/html; charset=utf-8", rf_page_html, rf_page_css - 1},
    {"/page.css", "text/css; charset=utf-8", rf_page_css, rf_page_js - 1},
    {"/page.js", "text/javascript; charset=utf-8", rf_page_js, rf_page_end - 1},
};

const rf_page_file *rf_page_find(const char *path) {
  for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++)
    if (!strcmp(path, FILES[i].path)) return &FILES[i];
  return NULL;
}

void rf_page_tag(const rf_page_file *file, char tag[24]) {
  snprintf(tag, 24, "\"%016llx\"", (unsigned long long)rf_name_key(file->at));
}
