/* plot_labels.h - places the labels of a plot's points: no label covers a point or another label. */
#ifndef RF_PLOT_LABELS_H
#define RF_PLOT_LABELS_H

#include "advise/gnuplot.h"

/* Position of a plot's area, as fractions of the picture, from its left and lower edges. */
typedef struct rf_plot_area {
  double left, right, bottom, top;
  int width, height;     /* pixels of the picture */
  double x0, x1, y0, y1; /* ranges of the axes */
  bool log_x, log_y;
} rf_plot_area;

enum { RF_PLOT_LABEL_MAX = 80 };

typedef struct rf_plot_label {
  double x, y, radius;          /* the point, in the units of the axes; its radius in pixels */
  char text[RF_PLOT_LABEL_MAX]; /* empty: the point has no label */
  bool placed;                  /* out: false if all places near the point are taken */
  double left, low;             /* out: the label's lower left corner, in pixels of the area */
  double wide;                  /* out: pixels */
} rf_plot_label;

/* Height of a line of text in pixels. */
enum { RF_PLOT_LABEL_HIGH = 14 };

/* Places the labels in order: earlier labels get the nearer places. */
void rf_plot_place(const rf_plot_area *area, rf_plot_label *label, int count);
/* Writes margins, ranges and scales of the axes. */
void rf_plot_put_area(rf_gnuplot *plot, const rf_plot_area *area);
/* Writes a column of a row of data, and widens the range that `low` and `high` give. A value that
 * is not shown becomes NaN. */
void rf_plot_put_value(rf_gnuplot *plot, double value, bool shown, double *low, double *high);
/* Places the labels and writes them, with a line to each label that is far from its point. */
void rf_plot_put_labels(rf_gnuplot *plot, const rf_plot_area *area, rf_plot_label *label, int count);
/* Writes the ticks of an axis ('x' or 'y') with texts from a function such as rf_text_count.
 * Logarithmic axes have ticks at 1, 2 and 5 in each decade. Linear axes have ticks at multiples of
 * such a number. */
void rf_plot_put_ticks(rf_gnuplot *plot, const rf_plot_area *area, char axis, char *(*text)(double, char[32]),
                       const char *after);

#endif
