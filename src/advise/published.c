/* published.c - `rafter plan --compare published:ID`: compares a published training run with its
 * plan. `--fit` finds the settings that were not published. */
#include "advise/set.h"
#include "advise/vary.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The table of published runs (data/published-runs.tsv) is built into the program. */
#ifndef RF_DATA_DIR
#error "RF_DATA_DIR must be the path of the data folder"
#endif
__asm__(".pushsection .rodata\n"
        ".hidden rf_published_text\n.globl rf_published_text\nrf_published_text:\n"
        ".incbin \"" RF_DATA_DIR "/published-runs.tsv\"\n.byte 0\n"
        ".popsection\n");
extern const char rf_published_text[];

enum { ID, SYSTEM, MACHINE, CHIPS, MODEL, SEQ, PRECISION, RATE };
enum { PUBLISHED = RATE + 1, SOURCE, MESH, BATCH, ACCUMULATE, REMAT, COLUMNS };
typedef struct published {
  char text[COLUMNS][200];
} published;

static bool read_row(const char *line, published *row) {
  memset(row, 0, sizeof *row);
  for (int c = 0; c < COLUMNS; c++) {
    size_t n = strcspn(line, "\t\n");
    snprintf(row->text[c], sizeof row->text[c], "%.*s",
             (int)(n < sizeof row->text[c] ? n : sizeof row->text[c] - 1), line);
    line += n + (line[n] == '\t');
  }
  return row->text[ID][0] && row->text[ID][0] != '#' && strcmp(row->text[ID], "id") != 0;
}

static rf_status find_row(const char *id, published *row, rf_error *error) {
  char hint[512] = "choose one of";
  for (const char *line = rf_published_text; *line;) {
    if (read_row(line, row)) {
      if (!strcmp(row->text[ID], id)) return RAFTER_OK;
      rf_text_append(hint, sizeof hint, " %s", row->text[ID]);
    }
    size_t n = strcspn(line, "\n");
    line += n + (line[n] == '\n');
  }
  return RF_FAIL(error, RAFTER_INVALID, hint, "no published run is named '%.40s'", id);
}

/* Sets options from an entry of the table. Options on the command line take precedence. */
static rf_status apply_row(rf_options *o, const published *row, rf_error *error) {
  bool eight = !strcmp(row->text[PRECISION], "fp8") || !strcmp(row->text[PRECISION], "int8");
  if (!rf_options_argument(o, 0)) RF_TRY(rf_options_set(o, "MODEL", row->text[MODEL], error));
  if (!rf_options_given(o, "on")) RF_TRY(rf_set_chips(o, row->text[MACHINE], row->text[CHIPS], error));
  if (!rf_options_given(o, "seq")) RF_TRY(rf_options_set(o, "seq", row->text[SEQ], error));
  if (!rf_options_given(o, "dtype"))
    RF_TRY(rf_options_set(o, "dtype", strcmp(row->text[PRECISION], "f32") ? "bf16" : "f32", error));
  if (eight && rf_options_knows(o, "matmul-dtype") && !rf_options_given(o, "matmul-dtype"))
    RF_TRY(rf_options_set(o, "matmul-dtype", row->text[PRECISION], error));
  bool typed = rf_options_given(o, "remat") || rf_options_given(o, "mesh") || rf_options_given(o, "fit");
  static const struct {
    int column;
    const char *option;
  } stated[] = {{MESH, "mesh"}, {BATCH, "batch"}, {ACCUMULATE, "accumulate"}, {REMAT, "remat"}};
  bool in_parts = rf_options_given(o, "batch") || rf_options_given(o, "microbatch");
  for (size_t i = 0; i < sizeof stated / sizeof *stated; i++) {
    const char *text = row->text[stated[i].column];
    /* the batch columns are valid only for the published batch */
    bool of_batch = stated[i].column == BATCH || stated[i].column == ACCUMULATE;
    if (*text && !(of_batch && in_parts) && !rf_options_given(o, stated[i].option))
      RF_TRY(rf_options_set(o, stated[i].option, text, error));
  }
  if (typed) return RAFTER_OK;
  json_t *fit = json_pack("{sb}", "fit", 1); /* --fit without a value: the machine's memory is the limit */
  rf_status status = rf_options_read_json(o, fit, "--compare", error);
  json_decref(fit);
  return status;
}

/* Finds the fastest plan that fits. If no batch is given, tries 1 to 16 sequences per chip. */
static rf_status plan_row(const rf_options *o, const published *row, json_t **best, rf_error *error) {
  rf_status status = RAFTER_OK;
  long chips = strtol(row->text[CHIPS], NULL, 10);
  rf_error last = {0};
  for (long each = 1; each <= 16 && status == RAFTER_OK; each *= 2) {
    rf_options *one = rf_options_copy(o);
    json_t *json = NULL;
    char batch[32];
    snprintf(batch, sizeof batch, "%ld", each * chips);
    status = apply_row(one, row, error);
    bool said = rf_options_given(one, "batch");
    if (status == RAFTER_OK && !said) status = rf_options_set(one, "batch", batch, error);
    rf_status planned = status == RAFTER_OK ? rf_plan_object_of(one, &json, &last) : status;
    rf_options_free(one);
    bool fits = planned == RAFTER_OK && rf_json_fits(json);
    if (fits && (!*best || rf_json_at(json, "rate", "tokens_per_second") >
                               rf_json_at(*best, "rate", "tokens_per_second"))) {
      json_decref(*best);
      *best = json;
      json = NULL;
    }
    json_decref(json);
    if (said || !fits) break;
  }
  if (status != RAFTER_OK || *best) return status;
  return RF_FAIL(error, RAFTER_INVALID, last.hint[0] ? last.hint : "give --batch, --remat or --mesh",
                 "no plan of %s fits with its published settings: %s", row->text[ID],
                 last.message[0] ? last.message : "it is too large");
}

rf_status rf_compare_published(const rf_options *o, const char *id, const rafter_sink *sink,
                               rf_error *error) {
  published row;
  json_t *a = NULL;
  char text[200], setting[160];
  RF_TRY(find_row(id, &row, error));
  double chips = strtod(row.text[CHIPS], NULL), rate = strtod(row.text[RATE], NULL);
  rf_status status = plan_row(o, &row, &a, error);
  if (status != RAFTER_OK) {
    json_decref(a);
    return status;
  }
  double planned = rf_json_at(a, "rate", "tokens_per_second") / chips;
  json_t *settings = json_object_get(a, "settings");
  json_t *b =
      json_pack("{ss ss ss ss ss s{sf sf}}", "id", row.text[ID], "system", row.text[SYSTEM], "precision",
                row.text[PRECISION], "published", row.text[PUBLISHED], "source", row.text[SOURCE], "rate",
                "tokens_per_second", rate * chips, "tokens_per_second_per_chip", rate);
  snprintf(text, sizeof text,
           "published %.4g tokens per second per chip, planned %.4g: the run reaches %.0f %% of the plan",
           rate, planned, 100 * rate / planned);
  snprintf(setting, sizeof setting, "batch %lld, remat %.40s, %.12s",
           (long long)json_integer_value(json_object_get(settings, "batch")),
           json_string_value(json_object_get(settings, "remat")),
           json_string_value(json_object_get(settings, "dtype")));
  rf_say(sink, "%s: %s, %s on %s chips of %s, %s tokens, %s (%s)\n", row.text[ID], row.text[SYSTEM],
         row.text[MODEL], row.text[CHIPS], row.text[MACHINE], row.text[SEQ], row.text[PUBLISHED],
         row.text[SOURCE]);
  rf_say(sink, "planned with %s, %s-bound; the search chose the settings that were not published\n%s\n",
         setting, json_string_value(json_object_get(json_object_get(a, "time"), "bound")), text);
  json_t *difference = rf_json_between(a, b, false), *ratio = rf_json_between(a, b, true);
  json_object_set_new(difference, "tokens_per_second", json_real(rate * chips - planned * chips));
  rf_put_json(sink, json_pack("{ss ss s[ss] so so so so sf ss}", "rafter", RF_VERSION, "command", "plan",
                              "compare", "plan", row.text[ID], "a", a, "b", b, "difference", difference,
                              "ratio", ratio, "implied_efficiency", rate / planned, "verdict", text));
  return RAFTER_OK;
}
