/* gnuplot.h - a script for gnuplot, and the picture that it draws. */
#ifndef RF_GNUPLOT_H
#define RF_GNUPLOT_H

#include <stdio.h>

#include "base/base.h"

typedef struct rf_gnuplot {
  FILE *script; /* write here after rf_gnuplot_open */
  char *text;
  size_t bytes;
  const char *path;
  char quoted[1024];
} rf_gnuplot;

/* Call this function before any long computation. RAFTER_INVALID: the path does not end in .svg
 * or .png. RAFTER_FAILED: gnuplot is missing. */
rf_status rf_gnuplot_check(const char *path, rf_error *error);
/* Starts a picture of width x height pixels. `path` must stay valid until rf_gnuplot_close. */
rf_status rf_gnuplot_open(const char *path, int width, int height, rf_gnuplot *plot, rf_error *error);
/* Returns the text in gnuplot's single quotes. The result is valid until the next call. */
const char *rf_gnuplot_quote(rf_gnuplot *plot, const char *text);
/* Runs the script and writes the picture. On failure, writes no file. Always frees the plot. */
rf_status rf_gnuplot_close(rf_gnuplot *plot, rf_error *error);

#endif
