/* plot.c - the pictures of `rafter plan --plot`. The subject is a sweep, a frontier, the rates
 * of a server, or one plan (its memory over its ops, and its ops in a roofline). */
#include "advise/gnuplot.h"
#include "advise/plot_labels.h"
#include "advise/vary.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The first eight colours are the palette of Okabe and Ito for people with any colour vision. */
static const char *const COLOUR[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
                                     "#f0e442", "#999999", "#000000", "#7f3c8d", "#3969ac", "#b0b0b0"};
enum { COLOURS = sizeof COLOUR / sizeof *COLOUR };
#define LIMIT_COLOUR "#d00000"
enum { NEAR = 3 }; /* a limit above NEAR times the largest value gets a label, not a line */

/* Draws the machine's memory limit as a line. If the limit is far above the data, writes only a
 * label. */
static void put_limit(rf_gnuplot *p, const char *machine, double room, double most) {
  char label[120], size[32];
  bool near = room < NEAR * most;
  snprintf(label, sizeof label, "%.60s: %s%s", machine, rf_text_bytes(room, size),
           near ? "" : " (above this picture)");
  fprintf(p->script, "set yrange [0:%.6g]\nunset arrow\nunset label\n",
          1.25 * (near && room > most ? room : most) / 0x1p30);
  if (near)
    fprintf(p->script,
            "set arrow 1 from graph 0,first %.6g to graph 1,first %.6g nohead lc rgb '" LIMIT_COLOUR
            "' lw 2 dt 2\n",
            room / 0x1p30, room / 0x1p30);
  fprintf(p->script, "set label 1 %s at graph 0.01,", rf_gnuplot_quote(p, label));
  if (near) fprintf(p->script, "first %.6g offset 0,0.6 tc rgb '" LIMIT_COLOUR "'\n", room / 0x1p30);
  else fputs("0.95 tc rgb '" LIMIT_COLOUR "'\n", p->script);
}

/* ---- a sweep --------------------------------------------------------------------------------- */

static void put_x_axis(rf_gnuplot *p, const char *name, const rf_sweep_row *row, int count) {
  double least = row[0].x, most = row[0].x;
  bool numbers = true;
  for (int i = 0; i < count; i++) {
    numbers = numbers && isfinite(row[i].x);
    least = fmin(least, row[i].x);
    most = fmax(most, row[i].x);
  }
  fprintf(p->script, "set xlabel %s\n", rf_gnuplot_quote(p, name));
  if (numbers && least > 0 && most / least >= 16) {
    fprintf(p->script, "set logscale x 2\nset xrange [%.6g:%.6g]\n", least / 1.1, most * 1.1);
    return;
  }
  if (numbers) {
    fprintf(p->script, "set xrange [%.6g:%.6g]\n", least - 0.02 * (most - least) - (most == least),
            most + 0.02 * (most - least) + (most == least));
    return;
  }
  fputs("set xtics (", p->script);
  for (int i = 0; i < count; i++)
    fprintf(p->script, "%s%s %d", i ? ", " : "", rf_gnuplot_quote(p, row[i].value), i);
  fprintf(p->script, ")\nset xrange [-0.5:%g]\n", count - 0.5);
}

static void put_cliffs(rf_gnuplot *p, const json_t *cliffs, const rf_sweep_row *row, int count,
                       const char *const *what) {
  size_t i;
  json_t *cliff;
  double last = NAN;
  int column = 0; /* if several cliffs have the same value, their texts are next to each other, in columns */
  json_array_foreach ((json_t *)cliffs, i, cliff) {
    bool shown = false;
    for (int k = 0; what[k]; k++)
      shown = shown || !strcmp(what[k], json_string_value(json_object_get(cliff, "what")));
    for (int k = 0; shown && k < count; k++) {
      if (strcmp(row[k].value, json_string_value(json_object_get(cliff, "at")))) continue;
      double x = isfinite(row[k].x) ? row[k].x : k;
      column = x == last ? column + 1 : 0;
      last = x;
      fprintf(p->script,
              "set arrow from first %.6g,graph 0 to first %.6g,graph 1 nohead lc rgb '#888888' dt 3\nset "
              "label %s at first %.6g,graph 0.04 rotate by 90 offset %.1f,0 tc rgb '#666666'\n",
              x, x, rf_gnuplot_quote(p, json_string_value(json_object_get(cliff, "kind"))), x,
              0.7 + 1.6 * column);
    }
  }
}

rf_status rf_plot_sweep(const char *path, const char *title, const char *machine, const char *name,
                        const rf_sweep_row *row, int count, const json_t *cliffs, rf_error *error) {
  static const char *const of_memory[] = {"memory", "fit", NULL}, *const of_time[] = {"time", "rate", "bound",
                                                                                      NULL};
  rf_gnuplot plot, *p = &plot;
  double most = 0, slowest = 0, fastest = 0;
  RF_TRY(rf_gnuplot_open(path, 900, 1000, p, error));
  fputs("$rows << EOD\n", p->script);
  for (int i = 0; i < count; i++) {
    if (!row[i].planned) continue;
    fprintf(p->script, "%.9g %.9g %.9g %.9g\n", isfinite(row[i].x) ? row[i].x : i, row[i].bytes / 0x1p30,
            row[i].seconds, row[i].rate);
    most = fmax(most, row[i].bytes);
    slowest = fmax(slowest, row[i].seconds);
    fastest = fmax(fastest, row[i].rate);
  }
  double unit = slowest < 1e-3 ? 1e6 : slowest < 1 ? 1e3 : 1;
  fprintf(p->script,
          "EOD\nset multiplot layout 3,1 title %s noenhanced\nset lmargin 12\nset rmargin 3\nunset key\n",
          rf_gnuplot_quote(p, title));
  put_x_axis(p, name, row, count);
  double room = 0;
  for (int i = 0; i < count && room == 0; i++) room = row[i].room;
  put_limit(p, machine, room, most);
  put_cliffs(p, cliffs, row, count, of_memory);
  fprintf(p->script,
          "set ylabel 'memory per chip (GiB)'\nplot $rows using 1:2 with linespoints pt 7 ps 0.7 lw 2 lc rgb "
          "'%s'\n",
          COLOUR[0]);
  fputs("unset arrow\nunset label\nset yrange [0:*]\n", p->script);
  put_cliffs(p, cliffs, row, count, of_time);
  fprintf(p->script,
          "set ylabel 'time of a step (%s)'\nplot $rows using 1:(%g*$3) with linespoints pt 7 ps 0.7 lw 2 lc "
          "rgb '%s'\n",
          unit == 1     ? "s"
          : unit == 1e3 ? "ms"
                        : "µs",
          unit, COLOUR[1]);
  rf_plot_area rates = {.y1 = 1.1 * fastest};
  fprintf(p->script, "set yrange [0:%.9g]\n", rates.y1);
  rf_plot_put_ticks(p, &rates, 'y', rf_text_count, "");
  fprintf(p->script,
          "set ylabel 'tokens per second'\nplot $rows using 1:4 with linespoints pt 7 ps 0.7 lw 2 lc rgb "
          "'%s'\nunset multiplot\n",
          COLOUR[2]);
  return rf_gnuplot_close(p, error);
}

/* ---- a frontier ------------------------------------------------------------------------------ */

/* Appends ", text" to the title if the text is the same for all rows, otherwise to the row's
 * label. */
static void put_setting(char *title, char *label, bool differs, const char *text) {
  char *to = differs ? label : title;
  rf_text_append(to, differs ? RF_PLOT_LABEL_MAX : 256, "%s%s", *to ? ", " : "", text);
}

/* The label of a row has the settings that differ between the rows; `title` gets the others. */
static void name_row(const rafter_plan *plan, int i, char title[256], char label[RF_PLOT_LABEL_MAX]) {
  const rf_fit_row *row = plan->found.row, *r = &row[i];
  bool dtype = false, remat = false, batch = false, meshes = false;
  char text[160], mesh[160], first[160];
  rf_mesh_text(&row[0].mesh, first);
  for (int k = 1; k < plan->found.rows; k++) {
    dtype |= row[k].dtype != row[0].dtype;
    remat |= row[k].remat != row[0].remat;
    batch |= row[k].accumulate != row[0].accumulate || row[k].microbatch != row[0].microbatch;
    meshes |= strcmp(rf_mesh_text(&row[k].mesh, mesh), first) != 0;
  }
  *label = 0;
  put_setting(title, label, dtype, rf_dtype_name(r->dtype));
  snprintf(text, sizeof text, "remat %s", rf_remat_name(r->remat));
  put_setting(title, label, remat, text);
  snprintf(text, sizeof text, "%d x %lld", r->accumulate, (long long)r->microbatch);
  put_setting(title, label, batch, text);
  if (rf_mesh_chips(&r->mesh) > 1 || meshes) put_setting(title, label, meshes, rf_mesh_text(&r->mesh, text));
}

/* Draws the memory limit as a line if it is near the data, otherwise only its label. */
static void put_room(rf_gnuplot *p, const rf_plot_area *area, double room) {
  char label[64], size[32];
  bool near = room / 0x1p30 < area->x1;
  snprintf(label, sizeof label, "limit %s%s", rf_text_bytes(room, size),
           near ? "" : " (right of this picture)");
  if (near)
    fprintf(p->script,
            "set arrow from first %.6g,graph 0 to first %.6g,graph 1 nohead lc rgb '" LIMIT_COLOUR
            "' lw 2 dt 2\nset label %s at first %.6g,graph 0.96 right offset -0.7,0 tc rgb '" LIMIT_COLOUR
            "'\n",
            room / 0x1p30, room / 0x1p30, rf_gnuplot_quote(p, label), room / 0x1p30);
  else
    fprintf(p->script, "set label %s at graph 0.985,0.96 right tc rgb '" LIMIT_COLOUR "'\n",
            rf_gnuplot_quote(p, label));
}

static char *plain_text(double value, char text[32]) {
  snprintf(text, 32, "%g", value);
  return text;
}

rf_status rf_plot_frontier(const char *path, const rafter_plan *plan, rf_error *error) {
  enum { WIDTH = 1000, HEIGHT = 640, MAX = 64 };
  rf_gnuplot plot, *p = &plot;
  double least = INFINITY, most = 0, fastest = INFINITY, slowest = 0,
         room = (double)rf_plan_room(&plan->plan->options);
  char title[512], common[256] = "";
  rf_plot_label label[MAX] = {0};
  int rows = plan->found.rows < MAX ? plan->found.rows : MAX;
  RF_TRY(rf_gnuplot_open(path, WIDTH, HEIGHT, p, error));
  fputs("$rows << EOD\n", p->script);
  for (int i = 0; i < rows; i++) {
    const rf_fit_row *r = &plan->found.row[i];
    char all[256] = "";
    label[i] = (rf_plot_label){.x = (double)r->peak_bytes / 0x1p30, .y = r->seconds, .radius = 5};
    name_row(plan, i, i ? all : common, label[i].text);
    fprintf(p->script, "%.9g %.9g %d\n", label[i].x, r->seconds, r->fits);
    least = fmin(least, label[i].x);
    most = fmax(most, label[i].x);
    fastest = fmin(fastest, r->seconds);
    slowest = fmax(slowest, r->seconds);
  }
  double limit = room / 0x1p30, end = limit < 1.6 * most ? fmax(limit, most) : most, wide = end - 0.8 * least;
  rf_plot_area area = {.left = 0.09,
                       .right = 0.975,
                       .bottom = 0.11,
                       .top = 0.9,
                       .width = WIDTH,
                       .height = HEIGHT,
                       .x0 = 0.8 * least,
                       .x1 = end + 0.12 * wide,
                       .y0 = 0.85 * fastest,
                       .y1 = 1.15 * slowest};
  snprintf(title, sizeof title, "%.60s on %.60s: settings that no other setting beats in memory and time",
           plan->plan->graph->model.name, plan->plan->machine.name);
  fprintf(p->script, "EOD\nset title %s noenhanced\nset ylabel 'time of a step'\nunset key\n",
          rf_gnuplot_quote(p, title));
  snprintf(title, sizeof title, "memory per chip%s%s", *common ? "; all settings: " : "", common);
  fprintf(p->script, "set xlabel %s noenhanced\n", rf_gnuplot_quote(p, title));
  rf_plot_put_area(p, &area);
  rf_plot_put_ticks(p, &area, 'x', plain_text, " GiB");
  rf_plot_put_ticks(p, &area, 'y', rf_text_seconds, "");
  put_room(p, &area, room);
  rf_plot_put_labels(p, &area, label, rows);
  fprintf(p->script,
          "plot $rows using 1:2 with lines lw 1 lc rgb '#bbbbbb', '' using 1:($3==1?$2:1/0) with points pt 7 "
          "ps 1.2 lc rgb '%s', '' using 1:($3==0?$2:1/0) with points pt 6 ps 1.2 lc rgb '%s'\n",
          COLOUR[0], COLOUR[5]);
  return rf_gnuplot_close(p, error);
}

/* ---- rates of a server ----------------------------------------------------------------------- */

/* Plots the median in column `at` and the 99th percentile in the next column. */
static void put_latencies(rf_gnuplot *p, int at) {
  fputs("plot ", p->script);
  for (int part = 0; part < 2; part++)
    fprintf(
        p->script,
        "$rates using 1:%d with lines lw 2 lc rgb '%s' title '%s', '' using 1:($2==0?$%d:1/0) with points "
        "pt 7 ps 0.9 lc rgb '%s' notitle, '' using 1:($2==1?$%d:1/0) with points pt 6 ps 1.1 lc rgb '%s' "
        "notitle%s",
        at + part, COLOUR[part], part ? "99th percentile" : "median", at + part, COLOUR[part], at + part,
        COLOUR[part], part ? "\n" : ", ");
}

/* Draws token rate against latency with one point for each request rate. A point is hollow if
 * the queue of requests grows without end. */
rf_status rf_plot_rates(const char *path, const rafter_plan *plan, rf_error *error) {
  enum { WIDTH = 900, HEIGHT = 860, MAX = 64 };
  static const struct {
    const char *key, *label;
    bool log;
    double bottom, top;
  } panel[] = {{"ttft_seconds", "time to the first token", true, 0.58, 0.95},
               {"tpot_seconds", "time per further token", false, 0.08, 0.45}};
  rf_gnuplot plot, *p = &plot;
  const json_t *rates = json_object_get(json_object_get(plan->extra, "serving"), "rates"), *row;
  int rows = json_array_size(rates) < MAX ? (int)json_array_size(rates) : MAX;
  char title[256];
  RF_TRY(rf_gnuplot_open(path, WIDTH, HEIGHT, p, error));
  snprintf(title, sizeof title, "%.60s on %.60s, %d chip%s: token rate and latency by requests per second",
           plan->plan->graph->model.name, plan->plan->machine.name, plan->plan->machine.chips,
           rf_plural(plan->plan->machine.chips));
  fputs("$rates << EOD\n", p->script);
  for (int i = 0; i < rows; i++) {
    row = json_array_get(rates, (size_t)i);
    fprintf(p->script, "%.9g %d", json_number_value(json_object_get(row, "tokens_per_second")),
            json_is_true(json_object_get(row, "saturated")));
    for (int k = 0; k < 2; k++)
      fprintf(p->script, " %.9g %.9g", rf_json_at(row, panel[k].key, "p50"),
              rf_json_at(row, panel[k].key, "p99"));
    fputc('\n', p->script);
  }
  fprintf(
      p->script,
      "EOD\nset multiplot title %s noenhanced\nset key top left reverse Left\nset xlabel 'tokens per second "
      "(hollow points: requests pile up)'\n",
      rf_gnuplot_quote(p, title));
  for (int k = 0; k < 2; k++) {
    rf_plot_label label[2 * MAX] = {0};
    char text[32];
    rf_plot_area area = {.left = 0.11,
                         .right = 0.97,
                         .bottom = panel[k].bottom,
                         .top = panel[k].top,
                         .width = WIDTH,
                         .height = HEIGHT,
                         .y0 = INFINITY,
                         .log_y = panel[k].log};
    for (int i = 0; i < rows; i++) {
      row = json_array_get(rates, (size_t)i);
      double x = json_number_value(json_object_get(row, "tokens_per_second")),
             p50 = rf_json_at(row, panel[k].key, "p50"), p99 = rf_json_at(row, panel[k].key, "p99");
      label[i] = (rf_plot_label){.x = x, .y = p99, .radius = 5};
      label[rows + i] = (rf_plot_label){.x = x, .y = p50, .radius = 5}; /* a point without a label */
      snprintf(label[i].text, sizeof label[i].text, "%s/s",
               rf_text_figures(json_number_value(json_object_get(row, "requests_per_second")), 4, text));
      area.x1 = fmax(area.x1, x);
      area.y0 = fmin(area.y0, p50);
      area.y1 = fmax(area.y1, p99);
    }
    area.x1 *= 1.08;
    area.y0 = panel[k].log ? area.y0 / 1.6 : 0;
    area.y1 *= panel[k].log ? 2.5 : 1.25;
    fprintf(p->script, "unset label\nunset arrow\nset ylabel '%s'\n", panel[k].label);
    rf_plot_put_area(p, &area);
    rf_plot_put_ticks(p, &area, 'x', rf_text_count, "");
    rf_plot_put_ticks(p, &area, 'y', rf_text_seconds, "");
    rf_plot_put_labels(p, &area, label, 2 * rows);
    put_latencies(p, 3 + 2 * k);
  }
  fputs("unset multiplot\n", p->script);
  return rf_gnuplot_close(p, error);
}

/* ---- one plan -------------------------------------------------------------------------------- */

/* Returns the live bytes at each op by class of tensor: live[op * RF_CLASSES + class]. */
static double *live_bytes(const rf_plan *plan) {
  int ops = plan->graph->op_count;
  double *live = calloc((size_t)(ops + 1) * RF_CLASSES, sizeof *live);
  for (int t = 0; live && t < plan->tensor_count; t++) {
    const rf_plan_tensor *p = &plan->tensor[t];
    if (p->offset < 0 || rf_plan_content(plan, t)->host) continue;
    int class = (int)rf_plan_content(plan, t)->class, first = p->first + (p->shares != RF_NONE),
        last = p->last < ops ? p->last : ops - 1;
    for (int i = first < 0 ? 0 : first; i <= last; i++) live[i * RF_CLASSES + class] += (double)p->bytes;
  }
  return live;
}

static rf_status put_timeline(rf_gnuplot *p, const rf_plan *plan, const rf_plot_area *area, rf_error *error) {
  int ops = plan->graph->op_count, shown[RF_CLASSES], classes = 0;
  double *live = live_bytes(plan), most = (double)plan->arena_bytes;
  if (!live) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while plotting");
  for (int c = 0; c < RF_CLASSES; c++) {
    double largest = 0;
    for (int i = 0; i < ops; i++) largest = fmax(largest, live[i * RF_CLASSES + c]);
    if (largest > 1e-3 * most) shown[classes++] = c;
  }
  fputs("$live << EOD\n", p->script);
  for (int i = 0; i < ops; i++) {
    double sum = 0;
    fprintf(p->script, "%d", i);
    for (int k = 0; k < classes; k++)
      fprintf(p->script, " %.6g", (sum += live[i * RF_CLASSES + shown[k]]) / 0x1p30);
    fputc('\n', p->script);
  }
  free(live);
  fprintf(
      p->script,
      "EOD\nset lmargin at screen %.4f\nset rmargin at screen %.4f\nset bmargin at screen %.4f\nset tmargin "
      "at screen %.4f\n",
      area->left, area->right, area->bottom, area->top);
  fprintf(p->script,
          "set xrange [0:%d]\nset xlabel 'op, in execution order'\nset ylabel 'memory per chip "
          "(GiB)'\nset key outside right top reverse Left\n",
          ops > 1 ? ops - 1 : 1);
  put_limit(p, plan->machine.name, (double)rf_plan_room(&plan->options), most);
  for (int s = RF_SECTIONS; s-- > 1;)
    for (int i = 1; i < ops; i++)
      if ((int)plan->graph->op[i].section == s && (int)plan->graph->op[i - 1].section != s)
        fprintf(p->script,
                "set arrow from first %d,graph 0 to first %d,graph 1 nohead lc rgb '#888888' dt 3\n", i, i);
  fputs("plot ", p->script);
  for (int k = classes; k-- > 0;)
    fprintf(p->script,
            "$live using 1:%d with filledcurves y1=0 fs solid 0.85 noborder lc rgb '%s' title '%s'%s", k + 2,
            COLOUR[shown[k] % COLOURS], rf_class_name((rf_class)shown[k]), k ? ", " : "\n");
  return RAFTER_OK;
}

/* The sums over all ops of one kind. */
typedef struct kind {
  const char *name;
  double flops, bytes, seconds;
  rf_bound bound;
} kind;

static int kinds_of(const rf_plan *plan, kind *list, int most) {
  int count = 0;
  for (int i = 0; i < plan->graph->op_count; i++) {
    const rf_plan_op *op = &plan->op[i];
    const char *name = plan->graph->op[i].def->name;
    int k = 0;
    while (k < count && strcmp(list[k].name, name)) k++;
    if (k == most) continue;
    if (k == count) list[count++] = (kind){.name = name, .bound = op->bound};
    list[k].flops += (op->work.flops + op->work.flops_again) * op->calls;
    list[k].seconds += op->seconds * op->calls;
    list[k].bytes += (op->work.bytes_read + op->work.bytes_written) * op->calls;
  }
  return count;
}

static int slowest_first(const void *a, const void *b) {
  const kind *x = a, *y = b;
  return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static char *rate_text(double flops, char text[32]) {
  char amount[32];
  snprintf(text, 32, "%.29s/s", rf_text_flops(flops, amount));
  return text;
}

/* Writes the ceilings as a line. Each part of the line has its own text, which is the label of one
 * point of the part. */
static void put_ceilings(rf_gnuplot *p, const rf_plot_area *area, double peak, double bps) {
  char a[32], b[32], c[32];
  fprintf(p->script, "roof(x) = x * %.6g < %.6g ? x * %.6g : %.6g\n", bps, peak, bps, peak);
  fprintf(p->script,
          "set label '%s' at first %.6g,first %.6g left offset 3.5,-0.4 tc rgb '" LIMIT_COLOUR
          "'\nset label '%s, ridge at %s FLOP per byte' at graph 0.985,first %.6g right offset 0,0.7 tc rgb "
          "'" LIMIT_COLOUR "'\n",
          rf_text_rate(bps, a), area->x0, 1.04 * area->x0 * bps, rate_text(peak, c),
          rf_text_count(round(peak / bps), b), peak);
}

/* The ops and the ceilings are per chip. */
static void put_roofs(rf_gnuplot *p, const rf_plan *plan, rf_plot_area area) {
  enum { MAX = 96 };
  kind list[MAX];
  rf_plot_label label[MAX] = {0};
  int count = kinds_of(plan, list, MAX), points = 0;
  double peak = rf_plan_peak_flops(plan) / plan->machine.chips, bps = plan->machine.read_bps, left = INFINITY,
         right = 0, low = INFINITY, unseen = 0, step = plan->step_seconds;
  qsort(list, (size_t)count, sizeof *list, slowest_first);
  fputs("unset arrow\nunset label\nset key off\n$ops << EOD\n", p->script);
  for (int i = 0; i < count; i++) {
    if (!(list[i].flops > 0 && list[i].seconds > 0)) {
      unseen += list[i].seconds;
      continue;
    }
    double x = list[i].flops / list[i].bytes, y = list[i].flops / list[i].seconds,
           share = list[i].seconds / step;
    double size = 1 + 3 * sqrt(share);
    rf_plot_label *l = &label[points++];
    *l = (rf_plot_label){.x = x, .y = y, .radius = 5 * size};
    if (share > 0.005) snprintf(l->text, sizeof l->text, "%.60s %.0f %%", list[i].name, 100 * share);
    left = fmin(left, x);
    right = fmax(right, x);
    low = fmin(low, y);
    fprintf(p->script, "%.6g %.6g %.4g\n", x, y, size);
  }
  fputs("EOD\n", p->script);
  if (!(peak > 0) || !(bps > 0) || !points) {
    fputs("set label 1 'no op has FLOPs, or the ceilings of this machine are unknown' at graph 0.5,0.5 "
          "center\nplot [0:1][0:1] 1/0\n",
          p->script);
    return;
  }
  area.x0 = fmin(left, peak / bps) / 2;
  area.x1 = fmax(right, peak / bps) * 3;
  area.y0 = fmin(low, bps * area.x0) / 2;
  area.y1 = peak * 2.5;
  area.log_x = area.log_y = true;
  rf_plot_put_area(p, &area);
  rf_plot_put_ticks(p, &area, 'x', rf_text_count, "");
  rf_plot_put_ticks(p, &area, 'y', rate_text, "");
  fprintf(p->script,
          "set xlabel 'intensity (FLOP per byte of memory traffic)'\nset ylabel 'predicted speed'\nset title "
          "'kinds of ops under the ceilings; area of a point: its share of the time (ops without FLOPs, not "
          "shown: %.0f %%)'\n",
          step > 0 ? 100 * unseen / step : 0);
  put_ceilings(p, &area, peak, bps);
  rf_plot_put_labels(p, &area, label, points);
  fprintf(p->script,
          "plot roof(x) with lines lw 2 lc rgb '" LIMIT_COLOUR "', $ops using 1:2:3 with points pt 7 ps "
          "variable lc rgb '%s'\n",
          COLOUR[0]);
}

rf_status rf_plot_plan(const char *path, const rafter_plan *plan, rf_error *error) {
  enum { WIDTH = 1100, HEIGHT = 1100 };
  rf_gnuplot plot, *p = &plot;
  const rf_plan *largest = rf_plan_larger(plan->plan, plan->prefill);
  rf_plot_area
      upper = {.left = 0.11, .right = 0.85, .bottom = 0.57, .top = 0.95, .width = WIDTH, .height = HEIGHT},
      lower = {.left = 0.11, .right = 0.97, .bottom = 0.06, .top = 0.47, .width = WIDTH, .height = HEIGHT};
  char title[200];
  RF_TRY(rf_gnuplot_open(path, WIDTH, HEIGHT, p, error));
  snprintf(title, sizeof title, "%.60s on %.60s: memory and time of %s", plan->plan->graph->model.name,
           plan->plan->machine.name, plan->prefill ? "a forward pass" : "a step");
  fprintf(p->script, "set multiplot title %s noenhanced\n", rf_gnuplot_quote(p, title));
  rf_status status = put_timeline(p, largest, &upper, error);
  put_roofs(p, plan->plan, lower);
  fputs("unset multiplot\n", p->script);
  rf_error later = {0};
  rf_status drawn = rf_gnuplot_close(p, status == RAFTER_OK ? error : &later);
  return status == RAFTER_OK ? drawn : status;
}
