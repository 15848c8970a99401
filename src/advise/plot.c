/* plot.c - the pictures of `rafter plan --plot`. The subject is a sweep, a frontier, the rates
 * of a server, or one plan (its memory over its ops, and its ops in a roofline). */
#include "advise/gnuplot.h"
#include "advise/vary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The first eight colours are the palette of Okabe and Ito for people with any colour vision. */
static const char *const COLOUR[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
                                     "#f0e442", "#999999", "#000000", "#7f3c8d", "#3969ac", "#b0b0b0"};
enum { COLOURS = sizeof COLOUR / sizeof *COLOUR };
#define LIMIT_COLOUR "#d00000"
enum { NEAR = 6 }; /* a limit above NEAR times the largest value gets a label, not a line */

/* Draws the machine's memory limit as a line. If it is far above the data, writes only a label. */
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
  json_array_foreach ((json_t *)cliffs, i, cliff) {
    bool shown = false;
    for (int k = 0; what[k]; k++)
      shown = shown || !strcmp(what[k], json_string_value(json_object_get(cliff, "what")));
    for (int k = 0; shown && k < count; k++) {
      if (strcmp(row[k].value, json_string_value(json_object_get(cliff, "at")))) continue;
      double x = isfinite(row[k].x) ? row[k].x : k;
      fprintf(p->script,
              "set arrow from first %.6g,graph 0 to first %.6g,graph 1 nohead lc rgb '#888888' dt 3\nset "
              "label %s at first %.6g,graph 0.04 rotate by 90 offset 0.7,0 tc rgb '#666666'\n",
              x, x, rf_gnuplot_quote(p, json_string_value(json_object_get(cliff, "kind"))), x);
    }
  }
}

rf_status rf_plot_sweep(const char *path, const char *title, const char *machine, const char *name,
                        const rf_sweep_row *row, int count, const json_t *cliffs, rf_error *error) {
  static const char *const of_memory[] = {"memory", "fit", NULL}, *const of_time[] = {"time", "rate", "bound",
                                                                                      NULL};
  rf_gnuplot plot, *p = &plot;
  double most = 0, slowest = 0;
  RF_TRY(rf_gnuplot_open(path, 900, 1000, p, error));
  fputs("$rows << EOD\n", p->script);
  for (int i = 0; i < count; i++) {
    if (!row[i].planned) continue;
    fprintf(p->script, "%.9g %.9g %.9g %.9g\n", isfinite(row[i].x) ? row[i].x : i, row[i].bytes / 0x1p30,
            row[i].seconds, row[i].rate);
    most = fmax(most, row[i].bytes);
    slowest = fmax(slowest, row[i].seconds);
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
  fprintf(p->script,
          "set ylabel 'tokens per second'\nset format y '%%.1s %%c'\nplot $rows using 1:4 with linespoints "
          "pt 7 ps 0.7 lw 2 lc rgb '%s'\nunset multiplot\n",
          COLOUR[2]);
  return rf_gnuplot_close(p, error);
}

/* ---- a frontier ------------------------------------------------------------------------------ */

rf_status rf_plot_frontier(const char *path, const rafter_plan *plan, rf_error *error) {
  rf_gnuplot plot, *p = &plot;
  double most = 0, slowest = 0, room = (double)rf_plan_room(&plan->plan->options);
  char label[256], mesh[160], size[32];
  RF_TRY(rf_gnuplot_open(path, 1000, 640, p, error));
  fputs("$rows << EOD\n", p->script);
  for (int i = 0; i < plan->found.rows; i++) {
    const rf_fit_row *r = &plan->found.row[i];
    bool many = rf_mesh_chips(&r->mesh) > 1;
    snprintf(label, sizeof label, "%s, remat %s, %d x %lld%s%s", rf_dtype_name(r->dtype),
             rf_remat_name(r->remat), r->accumulate, (long long)r->microbatch, many ? ", " : "",
             many ? rf_mesh_text(&r->mesh, mesh) : "");
    fprintf(p->script, "%.9g %.9g \"%s\" %d\n", (double)r->peak_bytes / 0x1p30, r->seconds, label, r->fits);
    most = fmax(most, (double)r->peak_bytes);
    slowest = fmax(slowest, r->seconds);
  }
  snprintf(label, sizeof label, "%.60s on %.60s: memory and time of settings that none beats in both",
           plan->plan->graph->model.name, plan->plan->machine.name);
  fprintf(p->script, "EOD\nset title %s noenhanced\n", rf_gnuplot_quote(p, label));
  snprintf(label, sizeof label, "limit %s", rf_text_bytes(room, size));
  bool near = room < NEAR * most;
  fprintf(p->script,
          "set xrange [0:%.6g]\nset yrange [0:%.6g]\nset xlabel 'memory per chip (GiB)'\nset ylabel 'time of "
          "a step (s)'\nunset key\n",
          1.3 * fmax(most, near ? room : 0) / 0x1p30, 1.45 * slowest);
  fprintf(p->script,
          "set arrow from first %.6g,graph 0 to first %.6g,graph 1 nohead lc rgb '" LIMIT_COLOUR
          "' lw 2 dt 2\nset label %s at ",
          room / 0x1p30, room / 0x1p30, rf_gnuplot_quote(p, label));
  if (near)
    fprintf(p->script, "first %.6g,graph 0.03 offset 0.5,0 tc rgb '" LIMIT_COLOUR "'\n", room / 0x1p30);
  else fputs("graph 0.98,0.95 right tc rgb '" LIMIT_COLOUR "'\n", p->script);
  fprintf(p->script,
          "plot $rows using 1:2 with lines lw 1 lc rgb '#bbbbbb', '' using 1:($4==1?$2:1/0) with points pt 7 "
          "ps 1.2 lc rgb '%s', '' using 1:($4==0?$2:1/0) with points pt 6 ps 1.2 lc rgb '%s', '' using 1:2:3 "
          "with labels left rotate by 35 offset 0.4,0.6 font ',9' noenhanced\n",
          COLOUR[0], COLOUR[5]);
  return rf_gnuplot_close(p, error);
}

/* ---- rates of a server ----------------------------------------------------------------------- */

/* Draws token rate against latency with one point for each request rate. A point is hollow if
 * the queue of requests grows without end. */
rf_status rf_plot_rates(const char *path, const rafter_plan *plan, rf_error *error) {
  static const struct {
    const char *key, *label;
  } panel[] = {{"ttft_seconds", "time to the first token"}, {"tpot_seconds", "time per further token"}};
  rf_gnuplot plot, *p = &plot;
  const json_t *serving = json_object_get(plan->extra, "serving"), *row;
  size_t i;
  char title[256];
  RF_TRY(rf_gnuplot_open(path, 900, 860, p, error));
  fputs("$rates << EOD\n", p->script);
  json_array_foreach (json_object_get(serving, "rates"), i, row) {
    fprintf(p->script, "%.9g %d \"%.4g/s\"", json_number_value(json_object_get(row, "tokens_per_second")),
            json_is_true(json_object_get(row, "saturated")),
            json_number_value(json_object_get(row, "requests_per_second")));
    for (int k = 0; k < 2; k++)
      fprintf(p->script, " %.9g %.9g", 1e3 * rf_json_at(row, panel[k].key, "p50"),
              1e3 * rf_json_at(row, panel[k].key, "p99"));
    fputc('\n', p->script);
  }
  snprintf(title, sizeof title, "%.60s on %.60s, %d chip%s: token rate and latency by requests per second",
           plan->plan->graph->model.name, plan->plan->machine.name, plan->plan->machine.chips,
           plan->plan->machine.chips > 1 ? "s" : "");
  fprintf(p->script,
          "EOD\nset multiplot layout 2,1 title %s noenhanced\nset lmargin 12\nset rmargin 8\nset key top "
          "left reverse Left\nset logscale y\nset xrange [0:*]\nset offsets 0,graph 0.08,0,0\nset format x "
          "'%%.1s %%c'\nset xlabel 'tokens per second (hollow points: requests pile up)'\n",
          rf_gnuplot_quote(p, title));
  for (int k = 0; k < 2; k++) {
    int at = 4 + 2 * k;
    fprintf(p->script, "%sset ylabel '%s (ms)'\nplot ",
            k ? "unset logscale y\nset yrange [0:*]\nset offsets 0,graph 0.08,graph 0.1,0\n" : "",
            panel[k].label);
    for (int part = 0; part < 2; part++)
      fprintf(p->script,
              "$rates using 1:%d with lines lw 2 lc rgb '%s' title '%s', '' using 1:($2==0?$%d:1/0) with "
              "points pt 7 ps 0.9 lc rgb '%s' notitle, '' using 1:($2==1?$%d:1/0) with points pt 6 ps 1.1 lc "
              "rgb '%s' notitle, ",
              at + part, COLOUR[part], part ? "99th percentile" : "median", at + part, COLOUR[part],
              at + part, COLOUR[part]);
    fprintf(p->script,
            "'' using 1:%d:3 with labels left offset 0.6,0.5 font ',9' tc rgb '#666666' noenhanced notitle\n",
            at + 1);
  }
  fputs("unset multiplot\n", p->script);
  return rf_gnuplot_close(p, error);
}

/* ---- one plan -------------------------------------------------------------------------------- */

/* Live bytes at each op by class of tensor: live[op * RF_CLASSES + class]. */
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

static rf_status put_timeline(rf_gnuplot *p, const rf_plan *plan, rf_error *error) {
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
  fprintf(p->script,
          "EOD\nset xrange [0:%d]\nset xlabel 'op, in execution order'\nset ylabel 'memory per chip "
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

/* Writes tics at 1, 2 and 5 of every decade. If there are many decades, writes tics only at 1. */
static void put_log_tics(rf_gnuplot *p, char axis, double least, double most) {
  static const int steps[] = {1, 2, 5};
  const char *comma = "";
  fprintf(p->script, "set %ctics (", axis);
  for (int d = (int)floor(log10(least)); d <= (int)ceil(log10(most)); d++)
    for (int k = 0; k < (most / least < 2e3 ? 3 : 1); k++, comma = ", ")
      fprintf(p->script, "%s%d.0e%d", comma, steps[k], d);
  fputs(")\n", p->script);
}

static int by_intensity(const void *a, const void *b) {
  const kind *x = a, *y = b;
  double i = x->flops / x->bytes, j = y->flops / y->bytes;
  return (i > j) - (i < j);
}

static void put_roofs(rf_gnuplot *p, const rf_plan *plan) {
  enum { MAX = 96 };
  kind list[MAX];
  int count = kinds_of(plan, list, MAX);
  double peak = rf_plan_peak_flops(plan), bps = plan->machine.read_bps * plan->machine.chips, left = INFINITY,
         right = 0, low = INFINITY, unseen = 0;
  for (int i = 0; i < count; i++) {
    if (!(list[i].flops > 0 && list[i].seconds > 0)) {
      unseen += list[i].seconds;
      continue;
    }
    left = fmin(left, list[i].flops / list[i].bytes);
    right = fmax(right, list[i].flops / list[i].bytes);
    low = fmin(low, list[i].flops / list[i].seconds);
  }
  if (!(peak > 0) || !(bps > 0) || !isfinite(left)) {
    fputs("set label 1 'no op has FLOPs, or the ceilings of this machine are unknown' at graph 0.5,0.5 "
          "center\nplot [0:1][0:1] 1/0\n",
          p->script);
    return;
  }
  left = fmin(left, peak / bps) / 4;
  right = fmax(right, peak / bps) * 8;
  fputs("unset arrow\nunset label\nset logscale xy\n", p->script);
  fprintf(p->script, "set xrange [%.6g:%.6g]\nset yrange [%.6g:%.6g]\nset format xy '%%.0s%%c'\n", left,
          right, fmin(low, bps * left) / 2, peak * 4);
  put_log_tics(p, 'x', left, right);
  put_log_tics(p, 'y', fmin(low, bps * left) / 2, peak * 4);
  fputs("set xlabel 'intensity (FLOP per byte of memory traffic)'\nset ylabel 'FLOP/s, predicted'\nset key "
        "outside right top Left reverse\n",
        p->script);
  fprintf(p->script,
          "set label 1 'not shown: ops without FLOPs (%.0f %% of the time)' at graph 0.02,0.95 tc rgb "
          "'#666666'\n",
          plan->step_seconds > 0 ? 100 * unseen / plan->step_seconds : 0);
  fprintf(p->script,
          "set label 2 'ridge: %.0f FLOP per byte' at first %.6g,first %.6g left offset 1,-1 tc rgb "
          "'" LIMIT_COLOUR "'\n",
          peak / bps, peak / bps, peak);
  qsort(list, (size_t)count, sizeof *list, by_intensity);
  fputs("$ops << EOD\n", p->script);
  double last = 0, step = pow(fmin(low, bps * left) / (8 * peak), 0.045);
  for (int i = 0, level = 0; i < count; i++) {
    double x = list[i].flops / list[i].bytes, share = list[i].seconds / plan->step_seconds;
    if (!(list[i].flops > 0 && list[i].seconds > 0)) continue;
    bool said = share > 0.02;
    /* the labels of close points are placed below each other */
    if (said) {
      level = x < 3 * last ? level + 1 : 0;
      last = x;
    }
    fprintf(p->script, "%.6g %.6g \"%s\" %.4g %.6g\n", x, list[i].flops / list[i].seconds,
            said ? list[i].name : "", share, list[i].flops / list[i].seconds * pow(step, level + 1));
  }
  fprintf(p->script, "EOD\nroof(x) = x * %.6g < %.6g ? x * %.6g : %.6g\n", bps, peak, bps, peak);
  fprintf(p->script,
          "plot roof(x) with lines lw 2 lc rgb '" LIMIT_COLOUR "' title '%s: %.3g TFLOP/s, %.3g TB/s'",
          plan->machine.name, peak * 1e-12, bps * 1e-12);
  fprintf(p->script,
          ", $ops using 1:2:(1 + 3 * sqrt($4)) with points pt 7 ps variable lc rgb '%s' title 'size of a "
          "point: share of the time'",
          COLOUR[0]);
  fputs(", $ops using 1:5:($4 > 0.02 ? sprintf('%s %.0f %%', strcol(3), 100 * $4) : '') with labels left "
        "offset 1,0 font ',9' noenhanced notitle\n",
        p->script);
}

rf_status rf_plot_plan(const char *path, const rafter_plan *plan, rf_error *error) {
  rf_gnuplot plot, *p = &plot;
  const rf_plan *largest = rf_plan_larger(plan->plan, plan->prefill);
  char title[200];
  RF_TRY(rf_gnuplot_open(path, 1100, 1100, p, error));
  snprintf(title, sizeof title, "%.60s on %.60s: memory and time of %s", plan->plan->graph->model.name,
           plan->plan->machine.name, plan->prefill ? "a forward pass" : "a step");
  fprintf(p->script, "set multiplot layout 2,1 title %s noenhanced\nset lmargin 12\nset rmargin 30\n",
          rf_gnuplot_quote(p, title));
  rf_status status = put_timeline(p, largest, error);
  put_roofs(p, plan->plan);
  fputs("unset multiplot\n", p->script);
  rf_error later = {0};
  rf_status drawn = rf_gnuplot_close(p, status == RAFTER_OK ? error : &later);
  return status == RAFTER_OK ? drawn : status;
}
