/* page.h - the files of the chat page, which the program contains. */
#ifndef RF_PAGE_H
#define RF_PAGE_H

#include <stddef.h>

typedef struct rf_page_file {
  const char *path, *type; /* `path`: path of the URL. `type`: value of the header Content-Type. */
  const char *at, *end;
} rf_page_file;

/* This policy lets the page load and run only its own files, whatever text a model writes. */
#define RF_PAGE_POLICY \
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " \
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; " \
  "trusted-types 'none'"

/* Returns NULL if no file of the page has this path. */
const rf_page_file *rf_page_find(const char *path);

/* Writes the file's ETag, with its quotes. */
void rf_page_tag(const rf_page_file *file, char tag[24]);

#endif
