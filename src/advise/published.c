/* published.c - `rafter plan --compare published:ID`: compares a published training run with its
 * plan. `--fit` finds the settings that were not published. `--compare published` lists the runs.
 */
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
enum { PUBLISHED = RATE + 1, SOURCE, MESH, BATCH, ACCUMULATE, REMAT, OPTIONS, COLUMNS };
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

/* Reads the first row at or after *line, and moves *line to the end of this row. Returns false if
 * there is no further row. */
static bool next_row(const char **line, published *row) {
  while (**line) {
    bool found = read_row(*line, row);
    size_t n = strcspn(*line, "\n");
    *line += n + ((*line)[n] == '\n');
    if (found) return true;
  }
  return false;
}

static rf_status find_row(const char *id, published *row, rf_error *error) {
  char hint[512] = "`rafter plan --compare published` lists the runs:";
  for (const char *line = rf_published_text; next_row(&line, row);) {
    if (!strcmp(row->text[ID], id)) return RAFTER_OK;
    rf_text_append(hint, sizeof hint, " %s", row->text[ID]);
  }
  return RF_FAIL(error, RAFTER_INVALID, hint, "no published run is named '%.40s'", id);
}

/* Reads the next NAME=VALUE of the list in the column OPTIONS. Returns false at the end of the
 * list. */
static bool next_option(const char **list, char name[64], char value[64]) {
  int taken = 0;
  if (sscanf(*list, " %63[^= ]=%63s%n", name, value, &taken) != 2) return false;
  *list += taken;
  return true;
}

/* Sets the options for the model, the machine, the sequence length and the types of the row. As in
 * apply_row, options on the command line take precedence. */
static rf_status apply_job(rf_options *o, const published *row, rf_error *error) {
  bool eight = !strcmp(row->text[PRECISION], "fp8") || !strcmp(row->text[PRECISION], "int8");
  if (!rf_options_argument(o, 0)) RF_TRY(rf_options_set(o, "MODEL", row->text[MODEL], error));
  if (!rf_options_given(o, "on")) RF_TRY(rf_set_chips(o, row->text[MACHINE], row->text[CHIPS], error));
  if (!rf_options_given(o, "seq")) RF_TRY(rf_options_set(o, "seq", row->text[SEQ], error));
  if (!rf_options_given(o, "dtype"))
    RF_TRY(rf_options_set(o, "dtype", strcmp(row->text[PRECISION], "f32") ? "bf16" : "f32", error));
  if (eight && rf_options_knows(o, "matmul-dtype") && !rf_options_given(o, "matmul-dtype"))
    RF_TRY(rf_options_set(o, "matmul-dtype", row->text[PRECISION], error));
  return RAFTER_OK;
}

/* Sets all options that the row states. */
static rf_status apply_row(rf_options *o, const published *row, rf_error *error) {
  RF_TRY(apply_job(o, row, error));
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
  char name[64], value[64];
  for (const char *list = row->text[OPTIONS]; next_option(&list, name, value);)
    if (!rf_options_given(o, name)) RF_TRY(rf_options_set(o, name, value, error));
  if (typed) return RAFTER_OK;
  /* With --fit but no value, the machine's memory is the limit. The published run used all memory
   * of the machine. */
  json_t *fit = json_pack("{sb}", "fit", 1);
  if (!rf_options_given(o, "margin")) json_object_set_new(fit, "margin", json_real(0));
  rf_status status = rf_options_read_json(o, fit, "--compare", error);
  json_decref(fit);
  return status;
}

/* Appends "WHAT: expected X, got Y" if the texts differ. */
static void expect(char wrong[480], const char *what, const char *expected, const char *got) {
  if (strcmp(expected, got) != 0)
    rf_text_append(wrong, 480, "%s%s: expected %.60s, got %.60s", *wrong ? "; " : "", what, expected, got);
}

/* Does nothing if the row has no number. */
static void expect_number(char wrong[480], const char *what, const char *expected, int64_t got) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)got);
  if (*expected) expect(wrong, what, expected, text);
}

static void without_spaces(const char *text, char *out) {
  for (; *text; text++)
    if (*text != ' ') *out++ = *text;
  *out = 0;
}

/* Compares the model, the machine and the types of a job with the row. */
static void compare_job(const published *row, const rf_settings *s, const rf_model *model, char wrong[480]) {
  const rf_build_options *b = &s->plan.build;
  const rf_machine *m = &s->machine;
  char machine[100];
  rf_model mine = s->model;
  mine.lora = model->lora;
  expect(wrong, "model", model->name, mine.name);
  if (!*wrong && memcmp(&mine, model, sizeof mine) != 0)
    expect(wrong, "model", model->name, "the same name with another shape");
  snprintf(machine, sizeof machine, "%.*s%s%s", (int)strcspn(m->name, ":@*"), m->name, *m->edition ? "@" : "",
           m->edition);
  expect(wrong, "machine", row->text[MACHINE], machine);
  expect_number(wrong, "chips", row->text[CHIPS], m->by_device ? m->chips / 2 : m->chips);
  expect_number(wrong, "sequence length", row->text[SEQ], b->seq);
  expect(wrong, "dtype", row->text[PRECISION],
         !b->matmul_set            ? rf_dtype_name(b->dtype)
         : b->matmul == RF_F8_E4M3 ? "fp8"
                                   : "int8");
  if (s->model.lora.rank > 0) expect(wrong, "trained weights", "all", "adapters (--lora)");
}

/* Compares the settings of the step with the settings in the row. */
static void compare_step(const published *row, const rf_options *o, const rf_settings *s, char wrong[480]) {
  const rf_build_options *b = &s->plan.build;
  char mesh[160], stated[200], name[64], value[64];
  expect_number(wrong, "batch", row->text[BATCH], b->microbatch * b->accumulate);
  expect_number(wrong, "accumulate", row->text[ACCUMULATE], b->accumulate);
  rf_remat remat;
  if (*row->text[REMAT] && rf_remat_parse(row->text[REMAT], &remat, NULL) == RAFTER_OK)
    expect(wrong, "remat", rf_remat_name(remat), rf_remat_name(s->plan.remat));
  without_spaces(row->text[MESH], stated);
  without_spaces(rf_mesh_text(&b->mesh, mesh), mesh);
  if (*stated) expect(wrong, "mesh", stated, mesh);
  for (const char *list = row->text[OPTIONS]; next_option(&list, name, value);)
    expect(wrong, name, value, rf_options_text(o, name));
}

/* Refuses a job that differs from a value in the row of the published run. */
static rf_status check_row(const rf_options *o, const published *row, rf_error *error) {
  rf_options *one = rf_options_copy(o);
  rf_settings *s = calloc(1, sizeof *s);
  rf_model *model = calloc(1, sizeof *model);
  char wrong[480] = "", folder[4096];
  rf_status status = RAFTER_OK;
  if (!s || !model) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while comparing plans"));
  expect(wrong, "job", "train", rf_options_text(o, "job"));
  if (!*wrong) {
    RF_GO(apply_job(one, row, error));
    RF_GO(rf_settings_resolve(one, "train", s, error));
    RF_GO(rf_model_resolve(row->text[MODEL], model, folder, error));
    compare_job(row, s, model, wrong);
  }
  if (!*wrong) {
    RF_GO(apply_row(one, row, error));
    RF_GO(rf_settings_resolve(one, "train", s, error));
    compare_step(row, one, s, wrong);
  }
  if (*wrong)
    status = RF_FAIL(error, RAFTER_INVALID,
                     "leave these options and MODEL out, or compare two plans of your own with --compare A B",
                     "the job is not the published run %s (%s)", row->text[ID], wrong);
done:
  rf_options_free(one);
  free(s);
  free(model);
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

static void list_rows(const rafter_sink *sink) {
  static const struct {
    const char *key;
    int column, width;
  } show[] = {{"id", ID, 4},
              {"system", SYSTEM, 12},
              {"machine", MACHINE, 10},
              {"chips", CHIPS, 5},
              {"model", MODEL, 14},
              {"seq", SEQ, 5},
              {"dtype", PRECISION, 5},
              {"tokens_per_second_per_chip", RATE, 15},
              {"source", SOURCE, 0}};
  json_t *list = json_array();
  published row;
  for (size_t i = 0; i < sizeof show / sizeof *show; i++)
    rf_say(sink, show[i].width ? "%-*s  " : "%*s", show[i].width,
           show[i].column == RATE ? "tokens/s a chip" : show[i].key);
  rf_say(sink, "\n");
  for (const char *line = rf_published_text; next_row(&line, &row);) {
    json_t *object = json_pack("{ss}", "published", row.text[PUBLISHED]);
    for (size_t i = 0; i < sizeof show / sizeof *show; i++) {
      const char *text = row.text[show[i].column];
      bool number = show[i].column == CHIPS || show[i].column == SEQ, rate = show[i].column == RATE;
      json_object_set_new(object, show[i].key,
                          rate     ? json_real(strtod(text, NULL))
                          : number ? json_integer(strtoll(text, NULL, 10))
                                   : json_string(text));
      rf_say(sink, show[i].width ? "%-*s  " : "%*s", show[i].width, text);
    }
    rf_say(sink, "\n");
    json_array_append_new(list, object);
  }
  rf_put_json(sink, json_pack("{ss ss so}", "rafter", RF_VERSION, "command", "plan", "published", list));
}

rf_status rf_compare_published(const rf_options *o, const char *id, const rafter_sink *sink,
                               rf_error *error) {
  published row;
  json_t *a = NULL;
  char text[200], setting[160], a_chip[32], b_chip[32];
  if (!id) {
    list_rows(sink);
    return RAFTER_OK;
  }
  RF_TRY(find_row(id, &row, error));
  RF_TRY(check_row(o, &row, error));
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
           "published %s tokens per second per chip, planned %s: the run reaches %.0f %% of the plan",
           rf_text_count(rate, a_chip), rf_text_count(planned, b_chip), 100 * rate / planned);
  const bool eight = !strcmp(row.text[PRECISION], "fp8") || !strcmp(row.text[PRECISION], "int8");
  snprintf(setting, sizeof setting, "batch %lld, remat %.40s, %.12s%s%.8s",
           (long long)json_integer_value(json_object_get(settings, "batch")),
           json_string_value(json_object_get(settings, "remat")),
           json_string_value(json_object_get(settings, "dtype")), eight ? ", matmul " : "",
           eight ? row.text[PRECISION] : "");
  rf_say(sink, "%s: %s, %s on %s chip%s of %s, %s tokens, %s (%s)\n", row.text[ID], row.text[SYSTEM],
         row.text[MODEL], row.text[CHIPS], rf_plural((int64_t)chips), row.text[MACHINE], row.text[SEQ],
         row.text[PUBLISHED], row.text[SOURCE]);
  rf_say(sink, "planned with %s, %s-bound; the search chose the settings that were not published\n%s\n",
         setting, json_string_value(json_object_get(json_object_get(a, "time"), "bound")), text);
  json_t *difference = rf_json_between(a, b, false), *ratio = rf_json_between(a, b, true);
  json_object_set_new(difference, "tokens_per_second", json_real(rate * chips - planned * chips));
  rf_put_json(sink, json_pack("{ss ss s[ss] so so so so sf ss}", "rafter", RF_VERSION, "command", "plan",
                              "compare", "plan", row.text[ID], "a", a, "b", b, "difference", difference,
                              "ratio", ratio, "implied_efficiency", rate / planned, "verdict", text));
  return RAFTER_OK;
}
