/* plot_labels.c - places labels in pixels, because gnuplot does not move labels apart. The script
 * contains the coordinates of the labels in the plot's area. */
#include "advise/plot_labels.h"

#include <math.h>
#include <string.h>

/* Width of a letter in the font of the labels, in pixels, rounded up. */
static const double LETTER = 6.9;

typedef struct box {
  double left, low, wide, high;
} box;

static bool overlap(const box *a, const box *b) {
  return a->left < b->left + b->wide && b->left < a->left + a->wide && a->low < b->low + b->high &&
         b->low < a->low + a->high;
}

static double part(double at, double from, double to, bool log) {
  return log ? log10(at / from) / log10(to / from) : (at - from) / (to - from);
}

static double pixels_wide(const rf_plot_area *a) { return (a->right - a->left) * a->width; }

static double pixels_high(const rf_plot_area *a) { return (a->top - a->bottom) * a->height; }

static double pixel_x(const rf_plot_area *a, const rf_plot_label *l) {
  return part(l->x, a->x0, a->x1, a->log_x) * pixels_wide(a);
}

static double pixel_y(const rf_plot_area *a, const rf_plot_label *l) {
  return part(l->y, a->y0, a->y1, a->log_y) * pixels_high(a);
}

static box box_of(const rf_plot_label *l) { return (box){l->left, l->low, l->wide, RF_PLOT_LABEL_HIGH}; }

/* True if a label may have this box. */
static bool is_free(const rf_plot_area *area, const rf_plot_label *label, int count, const box *b) {
  if (b->left < 0 || b->low < 0 || b->left + b->wide > pixels_wide(area) ||
      b->low + b->high > pixels_high(area))
    return false;
  for (int i = 0; i < count; i++) {
    double r = label[i].radius + 1;
    box point = {pixel_x(area, &label[i]) - r, pixel_y(area, &label[i]) - r, 2 * r, 2 * r},
        other = box_of(&label[i]);
    if (overlap(&point, b) || (label[i].placed && overlap(&other, b))) return false;
  }
  return true;
}

void rf_plot_place(const rf_plot_area *area, rf_plot_label *label, int count) {
  static const int DIRECTIONS[8][2] = {{1, 1}, {0, 1}, {1, 0}, {0, -1}, {-1, 0}, {1, -1}, {-1, 1}, {-1, -1}};
  enum { NEAR = 4, FAR = 240, STEP = 6 };
  for (int i = 0; i < count; i++) label[i].placed = false;
  for (int i = 0; i < count; i++) {
    rf_plot_label *l = &label[i];
    double x = pixel_x(area, l), y = pixel_y(area, l), high = RF_PLOT_LABEL_HIGH;
    l->wide = LETTER * (double)strlen(l->text);
    for (int away = NEAR; *l->text && away <= FAR && !l->placed; away += STEP)
      for (int k = 0; k < 8 && !l->placed; k++) {
        int dx = DIRECTIONS[k][0], dy = DIRECTIONS[k][1];
        double d = (l->radius + away) * (dx && dy ? 0.7 : 1);
        box b = {x + dx * d -
                     (dx < 0 ? l->wide
                      : dx   ? 0
                             : l->wide / 2),
                 y + dy * d -
                     (dy < 0 ? high
                      : dy   ? 0
                             : high / 2),
                 l->wide, high};
        if (!is_free(area, label, count, &b)) continue;
        l->left = b.left;
        l->low = b.low;
        l->placed = true;
      }
  }
}

void rf_plot_put_area(rf_gnuplot *p, const rf_plot_area *a) {
  fprintf(p->script,
          "set lmargin at screen %.4f\nset rmargin at screen %.4f\nset bmargin at screen %.4f\nset tmargin "
          "at screen %.4f\n",
          a->left, a->right, a->bottom, a->top);
  fprintf(p->script, "unset logscale\n%s%sset xrange [%.9g:%.9g]\nset yrange [%.9g:%.9g]\n",
          a->log_x ? "set logscale x\n" : "", a->log_y ? "set logscale y\n" : "", a->x0, a->x1, a->y0, a->y1);
}

void rf_plot_put_value(rf_gnuplot *p, double value, bool shown, double *low, double *high) {
  if (!shown) {
    fputs(" NaN", p->script);
    return;
  }
  *low = fmin(*low, value);
  *high = fmax(*high, value);
  fprintf(p->script, " %.9g", value);
}

static double nearest(double at, double from, double length) { return fmin(fmax(at, from), from + length); }

void rf_plot_put_labels(rf_gnuplot *p, const rf_plot_area *area, rf_plot_label *label, int count) {
  double wide = pixels_wide(area), high = pixels_high(area);
  rf_plot_place(area, label, count);
  for (int i = 0; i < count; i++) {
    const rf_plot_label *l = &label[i];
    if (!l->placed) continue;
    double x = pixel_x(area, l), y = pixel_y(area, l), to_x = nearest(x, l->left, l->wide),
           to_y = nearest(y, l->low + 2, RF_PLOT_LABEL_HIGH - 4);
    if (hypot(to_x - x, to_y - y) > l->radius + 12)
      fprintf(
          p->script,
          "set arrow from graph %.5f,graph %.5f to graph %.5f,graph %.5f nohead lc rgb '#999999' lw 0.7\n",
          x / wide, y / high, to_x / wide, to_y / high);
    fprintf(p->script, "set label %s at graph %.5f,graph %.5f left font ',9' noenhanced front\n",
            rf_gnuplot_quote(p, l->text), l->left / wide, (l->low + RF_PLOT_LABEL_HIGH / 2.0) / high);
  }
}

/* Writes one tick, without zeros after its last significant digit: "10 M" for "10.0 M". */
static void put_tick(rf_gnuplot *p, const char **comma, double at, char *(*text)(double, char[32]),
                     const char *after) {
  char said[32], *point = strchr(text(at, said), '.'), *unit = strchr(said, ' ');
  size_t end = point ? (unit ? (size_t)(unit - said) : strlen(said)) : 0, keep = end;
  while (point && keep > (size_t)(point - said) && (said[keep - 1] == '0' || said[keep - 1] == '.')) {
    bool last = said[--keep] == '.';
    if (last) break;
  }
  if (point) memmove(said + keep, said + end, strlen(said + end) + 1);
  fprintf(p->script, "%s\"%s%s\" %.9g", *comma, said, after, at);
  *comma = ", ";
}

void rf_plot_put_ticks(rf_gnuplot *p, const rf_plot_area *area, char axis, char *(*text)(double, char[32]),
                       const char *after) {
  static const double steps[] = {1, 2, 5};
  bool x = axis == 'x';
  double from = x ? area->x0 : area->y0, to = x ? area->x1 : area->y1;
  const char *comma = "";
  fprintf(p->script, "set %ctics (", axis);
  if (x ? area->log_x : area->log_y) {
    int all = to / from < 2e3 ? 3 : 1;
    for (int d = (int)floor(log10(from)); d <= (int)ceil(log10(to)); d++)
      for (int k = 0; k < all; k++) {
        double at = steps[k] * pow(10, d);
        if (at >= from && at <= to) put_tick(p, &comma, at, text, after);
      }
  } else {
    double raw = (to - from) / 6, power = pow(10, floor(log10(raw))), step = 10 * power;
    for (int k = 3; k-- > 0;)
      if (steps[k] * power >= raw) step = steps[k] * power;
    for (double i = ceil(from / step); i * step <= to * (1 + 1e-12); i++)
      put_tick(p, &comma, i * step, text, after);
  }
  fputs(")\n", p->script);
}
