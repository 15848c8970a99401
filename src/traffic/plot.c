/* plot.c - see result.h: draws the results of a test over the rates. Measured values are points
 * joined by solid lines. The plan's values are dashed lines. */
#include "traffic/result.h"

#include "advise/gnuplot.h"
#include "advise/plot_labels.h"
#include "report/report.h"

#include <math.h>
#include <stdio.h>

enum { WIDTH = 1100, HEIGHT = 1160, MAX_SERIES = 2 };

/* Two colours from the palette of Okabe and Ito, which colour-blind readers can distinguish. */
static const char *const COLOUR[MAX_SERIES] = {"#0072b2", "#d55e00"};

static double tokens_per_second(const rf_traffic_results *r, const rf_traffic_stats *s) {
  (void)r;
  return rf_traffic_token_rate(s);
}
static double tokens_per_usd(const rf_traffic_results *r, const rf_traffic_stats *s) {
  return rf_traffic_usd(r, s) > 0 ? 1e6 / rf_traffic_usd(r, s) : NAN;
}
static double usd(const rf_traffic_results *r, const rf_traffic_stats *s) {
  return rf_traffic_usd(r, s) > 0 ? rf_traffic_usd(r, s) : NAN;
}
static double if_any(const rf_traffic_metric *m, double value) { return m->count ? value : NAN; }
#define METRIC(name, METRIC_, field) \
  static double name(const rf_traffic_results *r, const rf_traffic_stats *s) { \
    (void)r; \
    return if_any(&s->metric[METRIC_], s->metric[METRIC_].field); \
  }
METRIC(ttft_median, RF_TRAFFIC_TTFT, median)
METRIC(ttft_p99, RF_TRAFFIC_TTFT, p99)
METRIC(tpot_median, RF_TRAFFIC_TPOT, median)
METRIC(tpot_p99, RF_TRAFFIC_TPOT, p99)
METRIC(e2el_median, RF_TRAFFIC_E2EL, median)
METRIC(e2el_p99, RF_TRAFFIC_E2EL, p99)
static double batch(const rf_traffic_results *r, const rf_traffic_stats *s) {
  (void)r;
  return s->batch;
}
static double queue(const rf_traffic_results *r, const rf_traffic_stats *s) {
  (void)r;
  return s->queue;
}

typedef double value_of(const rf_traffic_results *results, const rf_traffic_stats *stats);
typedef struct panel {
  const char *label;
  value_of *value[MAX_SERIES];
  const char *title[MAX_SERIES];
  bool seconds, log;
  bool priced; /* true: only with --price. */
} panel;

static const panel PANELS[] = {
    {"output tokens per second", {tokens_per_second, NULL}, {NULL, NULL}, false, false, false},
    {"tokens per USD", {tokens_per_usd, NULL}, {NULL, NULL}, false, false, true},
    {"USD per million tokens", {usd, NULL}, {NULL, NULL}, false, false, true},
    {"time to the first token", {ttft_median, ttft_p99}, {"median", "p99"}, true, true, false},
    {"time per further token", {tpot_median, tpot_p99}, {"median", "p99"}, true, false, false},
    {"end-to-end latency", {e2el_median, e2el_p99}, {"median", "p99"}, true, true, false},
    {"mean batch", {batch, NULL}, {NULL, NULL}, false, false, false},
    {"mean queue", {queue, NULL}, {NULL, NULL}, false, false, false}};
enum { PANEL_COUNT = sizeof PANELS / sizeof *PANELS };

/* Writes the values of a panel, and finds the range of its axis. The first column is the rate. Each
 * series has two further columns, the measured and the planned value. */
static void put_values(rf_gnuplot *p, const rf_traffic_results *r, int k, const panel *n,
                       rf_plot_area *area) {
  double low = INFINITY, high = 0;
  fprintf(p->script, "$panel%d << EOD\n", k);
  for (int i = 0; i < r->rows; i++) {
    const rf_traffic_row *row = &r->row[i];
    fprintf(p->script, "%.9g", row->rate);
    for (int s = 0; s < MAX_SERIES && n->value[s]; s++)
      for (int planned = 0; planned < 2; planned++) {
        double v =
            planned && !row->has_plan ? NAN : n->value[s](r, planned ? &row->predicted : &row->measured);
        const bool shown = isfinite(v) && !(n->log && !(v > 0)) && (planned || row->measured.completed);
        rf_plot_put_value(p, v, shown, &low, &high);
      }
    fputc('\n', p->script);
  }
  fputs("EOD\n", p->script);
  area->y0 = n->log && isfinite(low) ? low / 1.5 : 0;
  area->y1 = high > 0 ? high * (n->log ? 3 : 1.4) : 1;
  area->log_y = n->log && high > 0;
}

/* Draws the critical rates as vertical lines. The first panel also has a line of text about these
 * rates. */
static void put_critical(rf_gnuplot *p, const rf_traffic_results *r, const rf_plot_area *area, bool first) {
  const double at[] = {r->critical, r->planned_critical};
  static const char *const LOOKS[] = {"lc rgb '#d00000' lw 1.5", "lc rgb '#666666' lw 1.5 dt 2"};
  char text[160] = "", planned[64] = "";
  fputs("unset arrow\nunset label\n", p->script);
  for (int i = 0; i < 2; i++)
    if (at[i] > area->x0 && at[i] < area->x1 && (i || r->bounded))
      fprintf(p->script, "set arrow from first %.6g,graph 0 to first %.6g,graph 1 nohead %s back\n", at[i],
              at[i], LOOKS[i]);
  if (!first) return;
  if (r->planned_critical > 0)
    snprintf(planned, sizeof planned, "; planned %.3g/s (grey, dashed)", r->planned_critical);
  if (!(r->critical > 0)) snprintf(text, sizeof text, "critical rate: below these rates%s", planned);
  else
    snprintf(text, sizeof text, "critical rate: %s%.3g/s%s%s", r->bounded ? "" : "at least ", r->critical,
             r->bounded ? " (red)" : "", planned);
  fprintf(p->script, "set label %s at screen 0.5,0.967 center tc rgb '#444444' noenhanced\n",
          rf_gnuplot_quote(p, text));
}

static char *rate_text(double rate, char text[32]) {
  snprintf(text, 32, "%.4g", rate);
  return text;
}

static void put_panel(rf_gnuplot *p, const rf_traffic_results *r, int k, const panel *n,
                      const rf_plot_area *at) {
  rf_plot_area area = *at;
  bool planned = false;
  const char *comma = "";
  for (int i = 0; i < r->rows; i++) planned |= r->row[i].has_plan;
  put_values(p, r, k, n, &area);
  rf_plot_put_area(p, &area);
  rf_plot_put_ticks(p, &area, 'x', rate_text, "");
  rf_plot_put_ticks(p, &area, 'y', n->seconds ? rf_text_seconds : rf_text_count, "");
  put_critical(p, r, &area, k == 0);
  /* the price falls with the rate, but all other values rise */
  fprintf(p->script,
          "set key top %s reverse Left samplen 2 noenhanced maxrows 2\nset ylabel '%s'\nset xlabel 'requests "
          "per second'\nplot ",
          n->value[0] == usd ? "right" : "left", n->label);
  for (int s = 0; s < MAX_SERIES && n->value[s]; s++) {
    fprintf(p->script, "%s$panel%d using 1:%d with linespoints pt 7 ps 0.8 lw 2 lc rgb '%s' title '%s'",
            comma, k, 2 + 2 * s, COLOUR[s], n->title[s] ? n->title[s] : "measured");
    comma = ", ";
    if (planned)
      fprintf(p->script, ", '' using 1:%d with lines lw 2 dt 2 lc rgb '%s' title '%s'", 3 + 2 * s, COLOUR[s],
              "planned");
  }
  fputc('\n', p->script);
}

rf_status rf_traffic_plot(const char *path, const rf_traffic_results *r, rf_error *error) {
  rf_gnuplot plot, *p = &plot;
  rf_plot_area area = {.x0 = INFINITY, .width = WIDTH, .height = HEIGHT};
  const panel *shown[PANEL_COUNT];
  int panels = 0;
  char title[256];
  RF_TRY(rf_gnuplot_open(path, WIDTH, HEIGHT, p, error));
  for (int i = 0; i < PANEL_COUNT; i++)
    if (r->usd_per_hour > 0 || !PANELS[i].priced) shown[panels++] = &PANELS[i];
  for (int i = 0; i < r->rows; i++) {
    area.x0 = fmin(area.x0, r->row[i].rate);
    area.x1 = fmax(area.x1, r->row[i].rate);
  }
  area.log_x = area.x1 / area.x0 >= 8;
  area.x0 = area.log_x ? area.x0 / 1.2 : 0;
  area.x1 *= area.log_x ? 1.2 : 1.05;
  snprintf(title, sizeof title, "%.80s at %.80s: load by requests per second", r->model, r->server);
  fprintf(p->script, "set multiplot title %s noenhanced\n", rf_gnuplot_quote(p, title));
  const int lines = (panels + 1) / 2;
  for (int k = 0; k < panels; k++) {
    const double high = 0.95 / lines, top = 0.945 - high * (k / 2);
    area.left = k % 2 ? 0.59 : 0.085;
    area.right = k % 2 ? 0.985 : 0.48;
    area.top = top;
    area.bottom = top - high + 0.06;
    put_panel(p, r, k, shown[k], &area);
  }
  fputs("unset multiplot\n", p->script);
  return rf_gnuplot_close(p, error);
}
