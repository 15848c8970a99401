/* rollout_file.c - see rollout_file.h. */
#define _GNU_SOURCE
#include "api/rollout_file.h"
#include "api/ranks.h"

#include "base/text.h"
#include "formats/json_lines.h"

#include <stdlib.h>
#include <string.h>

#define OVERWRITE_HINT "give another --output, or --overwrite to start again"
enum { SETTINGS_MAX = 1 << 20 };

/* ---- the settings ---------------------------------------------------------------------------- */

/* Options that may differ between the runs of one file: either no row depends on the option, or a
 * fingerprint covers its content. All other options must be equal. */
static const char *const FREE_OPTIONS[] = {
    "command", "model",         "adapter",   "input",        "output", "template", "overwrite", "max-seconds",
    "batch",   "threads",       "out",       "stats",        "trace",  "json",     "quiet",     "verbose",
    "config",  "prefill-chunk", "speculate", "draft-tokens", "on",     "debug",    "plugin",    "xla-flags"};

static json_t *options_of(const rf_answering *a, const rf_options *o) {
  json_t *all = rf_options_json(o);
  for (size_t i = 0; i < sizeof FREE_OPTIONS / sizeof *FREE_OPTIONS; i++)
    json_object_del(all, FREE_OPTIONS[i]);
  rf_ranks_drop_copies(&a->settings.plan, all);
  return all;
}

static void add_number(rf_fingerprint *f, double number) { rf_fingerprint_add(f, &number, sizeof number); }

static void add_stops(rf_fingerprint *f, const rf_stop *stop) {
  for (int64_t i = 0; i < stop->string_count; i++)
    rf_fingerprint_add(f, stop->string[i].text, (size_t)stop->string[i].bytes);
}

static void add_request(rf_fingerprint *f, const rf_request *r) {
  const rf_sampler_options *s = &r->sampler;
  const double numbers[] = {(double)r->max_tokens,
                            r->samples,
                            r->top,
                            (double)s->temperature,
                            s->top_k,
                            (double)s->top_p,
                            (double)s->min_p,
                            (double)s->min_tokens,
                            (double)s->repetition_penalty,
                            (double)s->frequency_penalty,
                            (double)s->presence_penalty};
  rf_fingerprint_add(f, numbers, sizeof numbers);
  rf_fingerprint_add(f, &s->seed, sizeof s->seed);
  for (int64_t i = 0; i < s->bias_count; i++) {
    add_number(f, s->bias[i].id);
    add_number(f, (double)s->bias[i].bias);
  }
}

void rf_rollout_prompts_text(const rf_answering *a, char text[RF_FINGERPRINT_TEXT]) {
  const rf_prompt_reader *reader = &a->reader;
  rf_fingerprint *f = rf_fingerprint_new();
  rf_fingerprint_add(f, reader->ends.id, (size_t)reader->ends.count * sizeof *reader->ends.id);
  add_number(f, reader->ignores_ends);
  add_stops(f, &reader->common.stop);
  for (int64_t i = 0; i < a->prompts.rows; i++) {
    const rf_prompt *row = &a->prompts.row[i];
    char *id = row->id ? json_dumps(row->id, JSON_ENCODE_ANY | JSON_SORT_KEYS) : NULL;
    rf_fingerprint_add(f, id ? id : "", id ? strlen(id) : 0);
    rf_fingerprint_add(f, row->tokens.at, (size_t)row->tokens.count * sizeof *row->tokens.at);
    add_request(f, &row->request);
    add_stops(f, &row->stop);
    free(id);
  }
  rf_fingerprint_end(f, text);
}

static rf_status settings_of(const rf_answering *a, const rf_options *o, json_t **settings, rf_error *error) {
  char model[RF_FINGERPRINT_TEXT], prompts[RF_FINGERPRINT_TEXT];
  RF_TRY(rf_model_text(&a->settings, rf_options_argument(o, 0), model, error));
  rf_rollout_prompts_text(a, prompts);
  *settings = json_pack("{ss ss so ss ss}", "rafter", RAFTER_VERSION, "command", "rollout", "options",
                        options_of(a, o), "model", model, "prompts", prompts);
  return *settings ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
}

/* ---- the comparison -------------------------------------------------------------------------- */

static void value_text(const json_t *value, char text[80]) {
  char *line = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
  snprintf(text, 80, "%.76s", line ? line : "unset");
  free(line);
}

static rf_status same_options(const json_t *was, const json_t *now, const char *path, rf_error *error) {
  const char *name;
  json_t *value, *both = json_is_object(was) ? json_copy((json_t *)was) : json_object();
  rf_status status = RAFTER_OK;
  json_object_update_missing(both, (json_t *)now);
  json_object_foreach (both, name, value) {
    const json_t *before = json_object_get(was, name), *after = json_object_get(now, name);
    char then[80], here[80];
    if (status != RAFTER_OK || (before && after && json_equal((json_t *)before, (json_t *)after))) continue;
    value_text(before, then);
    value_text(after, here);
    status =
        RF_FAIL(error, RAFTER_FAILED, "use the options of the first run; or " OVERWRITE_HINT,
                "the answers in %s are of other options (--%s: expected %s, got %s)", path, name, then, here);
  }
  json_decref(both);
  return status;
}

static rf_status same_text(const json_t *was, const json_t *now, const char *key, const char *what,
                           const char *path, rf_error *error) {
  if (!strcmp(rf_json_text_at(was, key), rf_json_text_at(now, key))) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, OVERWRITE_HINT, "the answers in %s are of %s", path, what);
}

/* Returns RAFTER_FAILED if the first run of the file `path` had other settings. */
static rf_status compare(const rf_answering *a, const char *record, const json_t *now, const char *path,
                         rf_error *error) {
  json_t *was = NULL;
  rf_status status = RAFTER_OK;
  char prompts[4200];
  if (!rf_file_stamp_at(record).inode)
    return RF_FAIL(error, RAFTER_FAILED, OVERWRITE_HINT,
                   "%s has a content that no rollout can finish (expected an empty or a new file, or %s)",
                   path, record);
  RF_TRY(rf_json_read(record, SETTINGS_MAX, &was, error));
  snprintf(prompts, sizeof prompts, "other prompts or settings of rows than %s has", a->path);
  RF_GO(same_options(json_object_get(was, "options"), json_object_get(now, "options"), path, error));
  RF_GO(same_text(was, now, "model", "another model, or the model's files have changed", path, error));
  RF_GO(same_text(was, now, "prompts", prompts, path, error));
done:
  json_decref(was);
  return status;
}

/* ---- existing rows ----------------------------------------------------------------- */

/* Checks that a row of the file is the answer that has to come next. */
static rf_status check_row(const rf_answering *a, const json_t *json, const char *path, int64_t line,
                           rf_error *error) {
  if (a->written == a->prompts.rows)
    return RF_FAIL(error, RAFTER_FAILED, OVERWRITE_HINT,
                   "%s has more rows than answers are wanted (line %lld: expected the end)", path,
                   (long long)line);
  const rf_prompt *row = &a->prompts.row[a->written];
  json_t *id = row->id ? json_incref(row->id) : json_integer(a->written);
  json_int_t seed = (json_int_t)rf_sample_seed(row->request.sampler.seed, a->sample);
  bool right = json_equal(id, json_object_get(json, "id")) &&
               json_integer_value(json_object_get(json, "seed")) == seed &&
               json_integer_value(json_object_get(json, "sample")) == a->sample &&
               json_is_array(json_object_get(json, "tokens"));
  json_decref(id);
  return right ? RAFTER_OK
               : RF_FAIL(error, RAFTER_FAILED, OVERWRITE_HINT,
                         "a row is not the answer that comes next (%s, line %lld: expected sample %d of line "
                         "%lld of %s)",
                         path, (long long)line, a->sample, (long long)row->line, a->path);
}

/* Counts the rows of earlier runs. Sets *keep to the bytes of the complete rows. Sets *repairs if
 * an incomplete line of a killed process follows the complete rows. */
static rf_status read_rows(rf_answering *a, const char *path, int64_t *keep, bool *repairs, rf_error *error) {
  rf_json_lines lines;
  bool more = true;
  *keep = 0;
  *repairs = false;
  rf_status status = rf_json_lines_open(path, NULL, &lines, error);
  while (status == RAFTER_OK) {
    RF_GO(rf_json_lines_text(&lines, &more, error));
    if (!more) break;
    int64_t line = lines.line;
    json_t *json = lines.text[lines.bytes - 1] == '\n'
                       ? json_loadb(lines.text, lines.bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL)
                       : NULL;
    if (!json) {
      *repairs = true;
      RF_GO(rf_json_lines_text(&lines, &more, error));
      if (more)
        status = RF_FAIL(error, RAFTER_FAILED, OVERWRITE_HINT, "a line is not JSON (%s, line %lld)", path,
                         (long long)line);
      break;
    }
    status = check_row(a, json, path, line, error);
    json_decref(json);
    if (status != RAFTER_OK) break;
    *keep = (int64_t)ftello(lines.file);
    if (++a->sample < a->prompts.row[a->written].request.samples) continue;
    a->sample = 0;
    a->written++;
  }
done:
  rf_json_lines_close(&lines);
  return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

static void name_settings(const char *path, char name[4200]) {
  snprintf(name, 4200, "%.4096s.settings.json", path);
}

/* Returns true if the file of settings has these settings. The output may be empty, because a
 * killed run may have written no row. */
static bool has_settings(const char *path, const json_t *settings) {
  json_t *was = NULL;
  bool same = rf_file_stamp_at(path).inode && rf_json_read(path, SETTINGS_MAX, &was, NULL) == RAFTER_OK &&
              json_equal(was, (json_t *)settings);
  json_decref(was);
  return same;
}

rf_status rf_rollout_open(rf_answering *a, const rf_options *o, const char *path, bool overwrite,
                          rf_rollout_file *file, rf_error *error) {
  char settings[4200];
  *file = (rf_rollout_file){.path = path};
  name_settings(path, settings);
  RF_TRY(rf_answering_spares_inputs(a, o, path, error));
  RF_TRY(settings_of(a, o, &file->settings, error));
  RF_TRY(rf_out_append(path, &a->out, error));
  file->continues = has_settings(settings, file->settings);
  if (!rf_out_bytes(a->out) || overwrite) return RAFTER_OK;
  RF_TRY(compare(a, settings, file->settings, path, error));
  file->continues = true; /* true also if another version of rafter began the file */
  return read_rows(a, path, &file->keep, &file->repairs, error);
}

rf_status rf_rollout_begin(const rf_answering *a, const rf_rollout_file *file, rf_error *error) {
  char settings[4200];
  name_settings(file->path, settings);
  RF_TRY(rf_out_keep(a->out, file->keep, error));
  if (file->repairs) rf_note(a->sink, "%s: removed an incomplete last line\n", file->path);
  return file->keep ? RAFTER_OK : rf_json_write(settings, file->settings, 2, error);
}

void rf_rollout_close(rf_rollout_file *file) { json_decref(file->settings); }
