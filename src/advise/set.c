/* set.c - see set.h. */
#include "advise/set.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine/machine.h"

/* True if `text` begins with "NAME=" and NAME is an option of `plan`. */
static bool names_option(const rf_options *options, const char *text) {
  char name[64];
  size_t length = strcspn(text, "=:, ");
  if (text[length] != '=' || length == 0 || length >= sizeof name) return false;
  memcpy(name, text, length);
  name[length] = 0;
  return rf_options_knows(options, name);
}

static rf_status set_pair(rf_options *options, char *pair, rf_error *error) {
  char *equals = strchr(pair, '=');
  if (equals) *equals = 0;
  return rf_options_set(options, pair, equals ? equals + 1 : "", error);
}

/* True if "pipeline=4" after a comma is an axis of the list's mesh. The option --pipeline takes
 * no number, so "pipeline=4" cannot be this option. */
static bool is_axis(const char *list, const char *text) {
  return !strncmp(list, "mesh=", 5) && !strncmp(text, "pipeline=", 9) && isdigit((unsigned char)text[9]);
}

/* Reads NAME=VALUE,NAME=VALUE. A comma ends a value only if an option's name follows the comma. */
static rf_status set_list(rf_options *options, char *list, rf_error *error) {
  while (list) {
    char *next = list;
    do next = strchr(next + 1, ',');
    while (next && (is_axis(list, next + 1) || !names_option(options, next + 1)));
    if (next) *next++ = 0;
    RF_TRY(set_pair(options, list, error));
    list = next;
  }
  return RAFTER_OK;
}

/* Sets MODEL. The name of a machine is an error here, because `on=` is easy to forget. */
static rf_status set_model(rf_options *options, const char *text, rf_error *error) {
  const size_t length = strcspn(text, ":@*");
  const json_t *sheet;
  for (int i = 0; (sheet = rf_machine_sheet(i)); i++) {
    const char *name = json_string_value(json_object_get(sheet, "name"));
    char hint[160];
    if (!name || strlen(name) != length || strncmp(name, text, length)) continue;
    snprintf(hint, sizeof hint, "write on=%.100s", text);
    return RF_FAIL(error, RAFTER_INVALID, hint, "'%.100s' is a machine, not a model", text);
  }
  return rf_options_set(options, "MODEL", text, error);
}

/* Reads words of a command line: --name value, --name=value, name=value or a MODEL. */
static rf_status set_words(rf_options *options, char *words, rf_error *error) {
  char *rest = words, *word, *value;
  while ((word = strsep(&rest, " \t"))) {
    if (!*word) continue;
    if (strncmp(word, "--", 2)) {
      RF_TRY(names_option(options, word) ? set_list(options, word, error) : set_model(options, word, error));
      continue;
    }
    bool alone = strchr(word, '=') || !rest || !strncmp(rest, "--", 2);
    if (alone) RF_TRY(set_pair(options, word + 2, error));
    else {
      value = strsep(&rest, " \t");
      RF_TRY(rf_options_set(options, word + 2, value, error));
    }
  }
  return RAFTER_OK;
}

/* True if a text has the form NAME=VALUE. A text of this form is read as an option, and an unknown
 * NAME is an error. */
static bool is_pair(const char *text) { return text[strcspn(text, "=:/")] == '='; }

rf_status rf_options_apply(rf_options *options, const char *text, rf_error *error) {
  rf_status status;
  char *copy = strdup(text);
  if (!copy) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading options");
  if (strpbrk(text, " \t") || !strncmp(text, "--", 2)) status = set_words(options, copy, error);
  else if (names_option(options, text) || is_pair(text)) status = set_list(options, copy, error);
  else status = set_model(options, text, error);
  free(copy);
  return status;
}

rf_status rf_set_chips(rf_options *options, const char *machine, const char *chips, rf_error *error) {
  rf_machine *m = calloc(1, sizeof *m);
  char base[200], spec[300], shape[64];
  int64_t count = strtoll(chips, NULL, 10);
  if (!m) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  snprintf(base, sizeof base, "%.*s", (int)strcspn(machine, ":*"), machine);
  rf_status status = count < 1 || count > 1 << 20
                         ? RF_FAIL(error, RAFTER_INVALID, NULL,
                                   "--chips is out of range (expected 1 to %d, got %.20s)", 1 << 20, chips)
                         : rf_machine_find(base, m, error);
  if (status == RAFTER_OK) {
    rf_machine_shape_for(m, count, shape, sizeof shape);
    snprintf(spec, sizeof spec, "%s%s", base, shape);
    status = rf_options_set(options, "on", spec, error);
  }
  free(m);
  return status;
}
