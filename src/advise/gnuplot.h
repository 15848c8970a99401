/* gnuplot.h - a script for gnuplot, and the picture it makes. */
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

/* RAFTER_INVALID: the path ends neither in .svg nor in .png; RAFTER_FAILED: gnuplot is missing.
 * Call this function before any long computation. */
rf_status rf_gnuplot_check(const char *path, rf_error *error);
/* Starts a picture of width x height pixels; the path must outlive it. */
rf_status rf_gnuplot_open(const char *path, int width, int height, rf_gnuplot *plot, rf_error *error);
/* Returns the text in gnuplot's single quotes, valid until the next call. */
const char *rf_gnuplot_quote(rf_gnuplot *plot, const char *text);
/* Runs the script and writes the picture, or no file on failure. Always frees the plot. */
rf_status rf_gnuplot_close(rf_gnuplot *plot, rf_error *error);

#endif
