/* bench_plot.c - draws measurements by batch: elapsed time, seconds per token, memory. */
#include "api/bench.h"

#include "advise/gnuplot.h"
#include "advise/plot_labels.h"
#include "report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 900, HEIGHT = 1100, MAX_SERIES = 6 };

/* Colours from the palette of Okabe and Ito, which colour-blind readers can distinguish. */
static const char *const COLOUR[MAX_SERIES] = {"#0072b2", "#d55e00", "#009e73",
                                               "#cc79a7", "#56b4e9", "#e69f00"};

static double elapsed(const rf_bench_point *p, bool planned) {
  return planned ? p->predicted_seconds : p->seconds;
}
static double per_token(const rf_bench_point *p, bool planned) { return elapsed(p, planned) / p->tokens; }
static double memory(const rf_bench_point *p, bool planned) {
  return (planned ? p->planned_bytes : p->resident_bytes) / 0x1p20;
}

typedef struct panel {
  const char *label;
  double (*value)(const rf_bench_point *point, bool planned);
  char *(*text)(double value, char text[32]);
} panel;
static const panel PANELS[] = {{"elapsed time", elapsed, rf_text_seconds},
                               {"time per token", per_token, rf_text_seconds},
                               {"memory, MiB (resident; planned arena)", memory, rf_text_count}};
enum { PANEL_COUNT = sizeof PANELS / sizeof *PANELS };

/* A test with the base model or with the adapter. */
typedef struct series {
  const char *test;
  bool adapter;
} series;

static int find_series(const rf_bench_points *points, series list[MAX_SERIES]) {
  int count = 0;
  for (int i = 0; i < points->count; i++) {
    const rf_bench_point *p = &points->at[i];
    int k = 0;
    while (k < count && (strcmp(list[k].test, p->test) || list[k].adapter != p->adapter)) k++;
    if (k == count && count < MAX_SERIES) list[count++] = (series){p->test, p->adapter};
  }
  return count;
}

static void put_panel(rf_gnuplot *p, const rf_bench_points *points, const series *list, int count, int k,
                      const rf_plot_area *at) {
  const panel *n = &PANELS[k];
  rf_plot_area area = *at;
  double low = INFINITY, high = 0;
  for (int s = 0; s < count; s++) {
    fprintf(p->script, "$p%d_%d << EOD\n", k, s);
    for (int i = 0; i < points->count; i++) {
      const rf_bench_point *q = &points->at[i];
      if (strcmp(q->test, list[s].test) || q->adapter != list[s].adapter) continue;
      fprintf(p->script, "%lld", (long long)q->batch);
      for (int planned = 0; planned < 2; planned++) {
        double v = n->value(q, planned);
        rf_plot_put_value(p, v, isfinite(v) && v > 0, &low, &high);
      }
      fputc('\n', p->script);
    }
    fputs("EOD\n", p->script);
  }
  area.log_y = high > 0;
  area.y0 = isfinite(low) ? low / 1.5 : 0;
  area.y1 = high > 0 ? high * 6 : 1;
  rf_plot_put_area(p, &area);
  rf_plot_put_ticks(p, &area, 'x', rf_text_count, "");
  rf_plot_put_ticks(p, &area, 'y', n->text, "");
  fprintf(p->script,
          "set key top left reverse Left samplen 2 noenhanced maxrows 2\nset ylabel '%s'\nset xlabel "
          "'sequences (--batch)'\nplot ",
          n->label);
  for (int s = 0; s < count; s++)
    fprintf(p->script,
            "%s$p%d_%d using 1:2 with linespoints pt 7 ps 0.8 lw 2 lc rgb '%s' title '%s%s', "
            "'' using 1:3 with lines lw 2 dt 2 lc rgb '%s' notitle",
            s ? ", " : "", k, s, COLOUR[s], list[s].test, list[s].adapter ? " + adapter" : "", COLOUR[s]);
  fputc('\n', p->script);
}

rf_status rf_bench_plot(const char *path, const char *model, const rf_bench_points *points, rf_error *error) {
  rf_gnuplot plot, *p = &plot;
  rf_plot_area area = {.x0 = INFINITY, .width = WIDTH, .height = HEIGHT, .left = 0.12, .right = 0.97};
  series list[MAX_SERIES];
  char title[200];
  int count = find_series(points, list);
  if (!count)
    return RF_FAIL(error, RAFTER_NO_FIT, "choose smaller batches", "no batch fits, so %s is not drawn", path);
  RF_TRY(rf_gnuplot_open(path, WIDTH, HEIGHT, p, error));
  for (int i = 0; i < points->count; i++) {
    area.x0 = fmin(area.x0, (double)points->at[i].batch);
    area.x1 = fmax(area.x1, (double)points->at[i].batch);
  }
  area.log_x = area.x1 / area.x0 >= 8;
  area.x0 = area.log_x ? area.x0 / 1.2 : 0;
  area.x1 *= area.log_x ? 1.2 : 1.05;
  snprintf(title, sizeof title, "%.90s by batch: points are measured, dashed lines planned", model);
  fprintf(p->script, "set multiplot title %s noenhanced\n", rf_gnuplot_quote(p, title));
  for (int k = 0; k < PANEL_COUNT; k++) {
    area.top = 0.955 - 0.32 * k;
    area.bottom = area.top - 0.25;
    put_panel(p, points, list, count, k, &area);
  }
  fputs("unset multiplot\n", p->script);
  return rf_gnuplot_close(p, error);
}
