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

typedef struct row {
  const char *name, *beaten; /* beaten: text that replaces a figure above 100 %; "": print the figure */
  double seconds, predicted, limit;
} row;

static row row_of(const json_t *one, const char *name) {
  return (row){name, rf_json_text_at(one, "beaten"), rf_json_number_at(one, "seconds"),
               rf_json_number_at(one, "predicted_seconds"), rf_json_number_at(one, "limit_seconds")};
}

static void print_row(FILE *out, row r, double all) {
  char a[32], b[32] = "", c[32] = "", fraction[32] = "";
  if (r.predicted > 0) rf_text_seconds(r.predicted, b);
  if (r.limit > 0) rf_text_seconds(r.limit, c);
  if (*r.beaten) snprintf(fraction, sizeof fraction, "%.12s", r.beaten);
  else if (r.limit > 0 && r.seconds > 0)
    snprintf(fraction, sizeof fraction, "%.0f %%", 100 * r.limit / r.seconds);
  fprintf(out, "  %-16.16s %12s %12s %12s %8.1f %% %10s\n", r.name, rf_text_seconds(r.seconds, a), b, c,
          all > 0 ? 100 * (r.seconds / all) : 0, fraction);
}

/* Explains the words of the column "of limit". */
static void print_words(FILE *out, const json_t *pass) {
  const char *word = rf_json_text_at(pass, "beaten");
  const json_t *one;
  size_t i;
  json_array_foreach (json_object_get(pass, "kinds"), i, one)
    if (*rf_json_text_at(one, "beaten")) word = rf_json_text_at(one, "beaten");
  if (!strcmp(word, "too low"))
    fputs("too low: the limit is a guess of this machine's speed; `rafter calibrate` measures it\n", out);
  else if (*word) fputs("in cache: the limit is that of memory, and the data came from a cache\n", out);
}

static void print_pass(FILE *out, const json_t *pass, int rows) {
  const json_t *list = json_object_get(pass, "kinds"), *one;
  double wall = rf_json_number_at(pass, "seconds");
  row others = {"other ops", "", 0, 0, 0}, gaps = {"between ops", "", 0, 0, 0};
  char title[64];
  size_t i;
  if (rf_json_number_at(pass, "count") > 1)
    snprintf(title, sizeof title, "%s x %.0f", rf_json_text_at(pass, "walk"),
             rf_json_number_at(pass, "count"));
  else snprintf(title, sizeof title, "%s", rf_json_text_at(pass, "walk"));
  fprintf(out, "%-18.18s %12s %12s %12s %10s %10s\n", title, "measured", "predicted", "limit", "share",
          "of limit");
  json_array_foreach ((json_t *)list, i, one) {
    row r = row_of(one, rf_json_text_at(one, "name"));
    if ((int)i < rows || json_array_size(list) <= (size_t)rows + 1) {
      print_row(out, r, wall);
      continue;
    }
    others.seconds += r.seconds;
    others.predicted += r.predicted;
    others.limit += r.limit;
    if (*r.beaten) others.beaten = r.beaten;
  }
  if (others.limit <= others.seconds) others.beaten = "";
  if (others.seconds > 0) print_row(out, others, wall);
  gaps.seconds = rf_json_number_at(pass, "gap_seconds");
  if (gaps.seconds > 0) print_row(out, gaps, wall);
  print_row(out, row_of(pass, "all"), wall);
  print_words(out, pass);
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
  if (rf_json_number_at(memory, "capacity_bytes") > 0)
    fprintf(out, " of the machine's %s", rf_text_bytes(rf_json_number_at(memory, "capacity_bytes"), a));
  if (json_object_get(memory, "outside_bytes"))
    fprintf(out, "; outside the arena %s", rf_text_bytes(rf_json_number_at(memory, "outside_bytes"), a));
  fputc('\n', out);
}

static void print_rate(FILE *out, const json_t *pass) {
  const json_t *rate = json_object_get(pass, "rate");
  char a[32], b[32], c[32];
  if (!json_object_get(rate, "tokens_per_second")) return;
  double here = rf_json_number_at(rate, "tokens_per_second"), limit = rf_json_number_at(rate, "limit");
  fprintf(out, "rate     %s: %s tokens/s, predicted %s, limit %s", rf_json_text_at(pass, "walk"),
          rf_text_count(here, a), rf_text_count(rf_json_number_at(rate, "predicted"), b),
          rf_text_count(limit, c));
  if (*rf_json_text_at(pass, "beaten")) fprintf(out, " (%s)", rf_json_text_at(pass, "beaten"));
  else fprintf(out, " (%.0f %% of it)", limit > 0 ? 100 * here / limit : 0);
  if (json_object_get(rate, "mfu")) fprintf(out, "; MFU %.1f %%", 100 * rf_json_number_at(rate, "mfu"));
  fputc('\n', out);
}

/* Prints `text` in lines that are broken at blanks. All lines except the first are indented. */
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
  /* The summary of a training run shows the training step, but not the validation. */
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
