/* summary_text.c - a summary as text for the terminal, with at most 30 lines. */
#define _GNU_SOURCE
#include "report/summary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "report/report.h"

enum { COLUMNS = 110, ROWS = 7, PASSES = 2 };

static void print_row(FILE *out, const char *name, double seconds, double predicted, double limit,
                      double share) {
  char a[32], b[32] = "", c[32] = "", fraction[32] = "";
  if (predicted > 0) rf_text_seconds(predicted, b);
  if (limit > 0) rf_text_seconds(limit, c);
  if (limit > 0 && seconds > 0) snprintf(fraction, sizeof fraction, "%.0f %%", 100 * limit / seconds);
  fprintf(out, "  %-16.16s %12s %12s %12s %8.1f %% %10s\n", name, rf_text_seconds(seconds, a), b, c,
          100 * share, fraction);
}

static void print_pass(FILE *out, const json_t *pass, int rows) {
  const json_t *list = json_object_get(pass, "kinds"), *one;
  double wall = rf_json_number_at(pass, "seconds"), seconds = 0, predicted = 0, limit = 0,
         gaps = rf_json_number_at(pass, "gap_seconds");
  char title[64];
  size_t i;
  if (rf_json_number_at(pass, "count") > 1)
    snprintf(title, sizeof title, "%s x %.0f", rf_json_text_at(pass, "walk"),
             rf_json_number_at(pass, "count"));
  else snprintf(title, sizeof title, "%s", rf_json_text_at(pass, "walk"));
  fprintf(out, "%-18.18s %12s %12s %12s %10s %10s\n", title, "measured", "predicted", "limit", "share",
          "of limit");
  json_array_foreach ((json_t *)list, i, one) {
    bool rest = (int)i >= rows && json_array_size(list) > (size_t)rows + 1;
    if (!rest)
      print_row(out, rf_json_text_at(one, "name"), rf_json_number_at(one, "seconds"),
                rf_json_number_at(one, "predicted_seconds"), rf_json_number_at(one, "limit_seconds"),
                rf_json_number_at(one, "share"));
    else {
      seconds += rf_json_number_at(one, "seconds");
      predicted += rf_json_number_at(one, "predicted_seconds");
      limit += rf_json_number_at(one, "limit_seconds");
    }
  }
  if (seconds > 0) print_row(out, "other ops", seconds, predicted, limit, wall > 0 ? seconds / wall : 0);
  if (gaps > 0) print_row(out, "between ops", gaps, 0, 0, gaps / wall);
  print_row(out, "all", wall, rf_json_number_at(pass, "predicted_seconds"),
            rf_json_number_at(pass, "limit_seconds"), 1);
}

static void print_phases(FILE *out, const json_t *pass) {
  const json_t *one;
  char a[32], b[32];
  size_t i;
  if (json_array_size(json_object_get(pass, "phases")) < 2) return;
  fputs("phases ", out);
  json_array_foreach (json_object_get(pass, "phases"), i, one)
    fprintf(out, "%s %s %s (planned %s)", i ? "," : "", rf_json_text_at(one, "name"),
            rf_text_seconds(rf_json_number_at(one, "seconds"), a),
            rf_text_seconds(rf_json_number_at(one, "predicted_seconds"), b));
  fputc('\n', out);
}

static void print_memory(FILE *out, const json_t *memory) {
  char a[32];
  const json_t *measured = json_object_get(memory, "measured_bytes");
  if (measured)
    fprintf(out, "memory   predicted %.0f bytes, allocated %.0f bytes",
            rf_json_number_at(memory, "predicted_bytes"), rf_json_number_at(memory, "measured_bytes"));
  else fprintf(out, "memory   predicted %.0f bytes", rf_json_number_at(memory, "predicted_bytes"));
  if (rf_json_number_at(memory, "limit_bytes") > 0)
    fprintf(out, " of the machine's %s", rf_text_bytes(rf_json_number_at(memory, "limit_bytes"), a));
  if (json_object_get(memory, "outside_bytes"))
    fprintf(out, "; outside the arena %s", rf_text_bytes(rf_json_number_at(memory, "outside_bytes"), a));
  fputc('\n', out);
}

static void print_rate(FILE *out, const json_t *pass) {
  const json_t *rate = json_object_get(pass, "rate");
  char a[32], b[32], c[32];
  if (!json_object_get(rate, "tokens_per_second")) return;
  double here = rf_json_number_at(rate, "tokens_per_second"), limit = rf_json_number_at(rate, "limit");
  fprintf(out, "rate     %s: %s tokens/s, predicted %s, limit %s (%.0f %% of it)",
          rf_json_text_at(pass, "walk"), rf_text_count(here, a),
          rf_text_count(rf_json_number_at(rate, "predicted"), b), rf_text_count(limit, c),
          limit > 0 ? 100 * here / limit : 0);
  if (json_object_get(rate, "mfu")) fprintf(out, "; MFU %.1f %%", 100 * rf_json_number_at(rate, "mfu"));
  fputc('\n', out);
}

/* Breaks `text` into lines at blanks. Indents all lines except the first. */
static void print_wrapped(FILE *out, const char *text, const char *indent) {
  size_t room = COLUMNS;
  for (bool first = true; *text; first = false) {
    size_t take = strlen(text), width = room - (first ? 0 : strlen(indent));
    if (take > width) {
      take = width;
      while (take > 1 && text[take] != ' ') take--;
      if (take <= 1) take = width;
    }
    fprintf(out, "%s%.*s\n", first ? "" : indent, (int)take, text);
    text += take;
    while (*text == ' ') text++;
  }
}

char *rf_report_summary_text(const json_t *summary) {
  char *text = NULL;
  size_t bytes = 0, i;
  const json_t *passes = json_object_get(summary, "walks"), *pass, *note;
  FILE *out = open_memstream(&text, &bytes);
  if (!out) return NULL;
  /* A training run shows its training step, but not its validation. */
  bool trains = !strcmp(rf_json_text_at(json_array_get(passes, 0), "walk"), "train");
  size_t shown = trains ? 1 : PASSES;
  json_array_foreach ((json_t *)passes, i, pass)
    if (i < shown) print_pass(out, pass, trains || json_array_size(passes) == 1 ? ROWS : ROWS / 2);
  if (trains) print_phases(out, json_array_get(passes, 0));
  print_memory(out, json_object_get(summary, "memory"));
  json_array_foreach ((json_t *)passes, i, pass)
    if (i < shown) print_rate(out, pass);
  json_array_foreach (json_object_get(summary, "notes"), i, note)
    if (i < 3) fprintf(out, "note     %s\n", json_string_value(note));
  if (*rf_json_text_at(summary, "sentence")) print_wrapped(out, rf_json_text_at(summary, "sentence"), "  ");
  fclose(out);
  return text;
}
