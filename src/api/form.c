/* form.c - reads the required form of answers from --json-schema, --regex and --choice. */
#include "api/answers.h"

#include "base/file.h"
#include "constrain/constrain.h"

#define XXH_INLINE_ALL
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const char *const OPTIONS[] = {"json-schema", "regex", "choice"};
enum { JSON_SCHEMA, REGEX, CHOICE, COUNT };

/* Finds the only given option of OPTIONS. Sets *given to COUNT if no option is given. */
static rf_status find_option(const rf_options *o, int *given, rf_error *error) {
  *given = COUNT;
  for (int i = 0; i < COUNT; i++) {
    if (!rf_options_is_set(o, OPTIONS[i])) continue;
    if (*given < COUNT)
      return RF_FAIL(error, RAFTER_INVALID, "leave one of them out",
                     "an answer has one form (got --%s and --%s)", OPTIONS[*given], OPTIONS[i]);
    *given = i;
  }
  return RAFTER_OK;
}

/* Returns the texts of --choice as a JSON list. */
static char *choices(const rf_options *o) {
  int count = 0;
  const char *const *text = rf_options_texts(o, "choice", &count);
  json_t *list = rf_must(json_array());
  for (int i = 0; i < count; i++) json_array_append_new(list, json_string(text[i]));
  char *json = rf_must(json_dumps(list, JSON_COMPACT));
  json_decref(list);
  return json;
}

static rf_status read_form(const rf_options *o, int given, char **text, size_t *bytes, rf_error *error) {
  if (given == JSON_SCHEMA)
    return rf_file_read(rf_options_text(o, "json-schema"), RF_TEXT_BYTES, text, bytes, error);
  *text = given == REGEX ? rf_must(strdup(rf_options_text(o, "regex"))) : choices(o);
  *bytes = strlen(*text);
  return RAFTER_OK;
}

rf_status rf_given_form_open(const rf_options *o, rf_prompt_reader *reader, rf_given_form *form,
                             rf_error *error) {
  static const rf_text_form FORMS[] = {RF_TEXT_SCHEMA, RF_TEXT_REGEX, RF_TEXT_CHOICE};
  int given;
  char *text = NULL;
  size_t bytes = 0;
  RF_TRY(find_option(o, &given, error));
  if (given == COUNT) return RAFTER_OK;
  RF_TRY(rf_prompt_reader_open(reader, false, error));
  if (!reader->ends.count)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "--%s needs a model with an end-of-text token, and this model has none", OPTIONS[given]);
  rf_error why = {0};
  RF_TRY(read_form(o, given, &text, &bytes, error));
  form->all = rf_constraints_open(reader->tokenizer, reader->model->vocab);
  rf_status status = rf_constraints_get(form->all, FORMS[given], text, bytes, &form->of, &why);
  form->key = rf_key(XXH3_64bits(text, bytes), (uint64_t)given, 0);
  free(text);
  if (status == RAFTER_OK) return status;
  return RF_FAIL(error, why.status, *why.hint ? why.hint : NULL, "%s (--%s)", why.message, OPTIONS[given]);
}

void rf_given_form_close(rf_given_form *form) {
  if (!form->all) return;
  rf_constraint_release(form->of);
  rf_constraints_close(form->all);
}

const rf_option RF_FORM_OPTIONS[] = {
    RF_WORDS("json-schema", PATH, "FILE", NULL, "Sampling",
             "JSON schema that the answer follows; docs/serve.md lists the keywords"),
    RF_WORDS("regex", TEXT, "REGEX", NULL, "Sampling", "regular expression that matches the whole answer"),
    RF_WORDS("choice", TEXTS, "TEXT", NULL, "Sampling", "text that the answer may be; may be repeated"),
    {.name = NULL},
};
