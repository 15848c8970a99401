/* compare.c - `rafter plan --compare A B`: two plans side by side, and every number of the
 * second less that of the first. */
#include "api/plan.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Whether "NAME=..." begins here and NAME is an option of `plan`. */
static bool names_option(const rf_options *options, const char *text) {
  char name[64];
  size_t length = strcspn(text, "=:, ");
  if (text[length] != '=' || length == 0 || length >= sizeof name) return false;
  memcpy(name, text, length);
  name[length] = 0;
  return rf_options_has(options, name);
}

static rf_status set_pair(rf_options *options, char *pair, rf_error *error) {
  char *equals = strchr(pair, '=');
  if (equals) *equals = 0;
  return rf_options_set(options, pair, equals ? equals + 1 : "", error);
}

/* Whether "pipeline=4" behind a comma is an axis of the mesh that begins the list, and not the
 * option, whose value is no number. */
static bool is_axis(const char *list, const char *text) {
  return !strncmp(list, "mesh=", 5) && !strncmp(text, "pipeline=", 9) && isdigit((unsigned char)text[9]);
}

/* NAME=VALUE,NAME=VALUE: a comma ends a value only where an option's name follows. */
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

/* As typed: --name value, --name=value, name=value and a MODEL, between blanks. */
static rf_status set_words(rf_options *options, char *words, rf_error *error) {
  char *rest = words, *word, *value;
  while ((word = strsep(&rest, " \t"))) {
    if (!*word) continue;
    if (strncmp(word, "--", 2)) {
      RF_TRY(names_option(options, word) ? set_list(options, word, error)
                                         : rf_options_set(options, "MODEL", word, error));
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

/* NAME=VALUE whose NAME no option has: no file and no SOURCE:NAME of a model. */
static bool is_pair(const char *text) { return text[strcspn(text, "=:/")] == '='; }

rf_status rf_options_apply(rf_options *options, const char *text, rf_error *error) {
  rf_status status;
  char *copy = strdup(text);
  if (!copy) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while comparing");
  if (strpbrk(text, " \t") || !strncmp(text, "--", 2)) status = set_words(options, copy, error);
  else if (names_option(options, text) || is_pair(text)) status = set_list(options, copy, error);
  else status = rf_options_set(options, "MODEL", text, error);
  free(copy);
  return status;
}

static rf_status plan_side(const rafter_job *job, const char *text, json_t **json, rf_error *error) {
  rafter_job one = {rf_options_copy(job->options)};
  rf_error inner = {0};
  rf_status status = text ? rf_options_apply(one.options, text, &inner) : RAFTER_OK;
  if (status == RAFTER_OK && !rf_options_argument(one.options, 0))
    status = RF_FAIL(&inner, RAFTER_INVALID,
                     "name a model: `rafter plan MODEL --compare A B`, or in A and B themselves",
                     "which model? (MODEL is missing)");
  if (status == RAFTER_OK) status = rf_plan_once(&one, NULL, json, &inner);
  rf_options_free(one.options);
  if (status == RAFTER_OK || !error) return status;
  return RF_FAIL(error, status, inner.hint, "--compare %.100s: %s", text ? text : "", inner.message);
}

/* What both have and is a number, in the same places: b - a, or b / a. */
json_t *rf_json_between(const json_t *a, const json_t *b, bool ratio) {
  const char *key;
  json_t *left, *out = json_object();
  json_object_foreach ((json_t *)a, key, left) {
    json_t *right = json_object_get(b, key);
    double x = json_number_value(left), y = json_number_value(right);
    if (json_is_object(left) && json_is_object(right)) {
      json_t *inside = rf_json_between(left, right, ratio);
      if (json_object_size(inside)) json_object_set(out, key, inside);
      json_decref(inside);
    } else if (!json_is_number(left) || !json_is_number(right) || (ratio && x == 0)) continue;
    else if (ratio) json_object_set_new(out, key, json_real(y / x));
    else if (json_is_integer(left) && json_is_integer(right))
      json_object_set_new(out, key, json_integer(json_integer_value(right) - json_integer_value(left)));
    else json_object_set_new(out, key, json_real(y - x));
  }
  return out;
}

/* The numbers that are asked for most stand at the top as well. */
static const struct {
  const char *key, *object;
} SHORT[] = {{"seconds", "time"},           {"peak_bytes", "memory"},
             {"tokens_per_second", "rate"}, {"mfu", "rate"},
             {"model_flops", "work"},       {"hardware_flops", "work"},
             {"parameters", "model"},       {"usd_per_million_tokens", "cost"},
             {"collective_bytes", "work"},  {"network_seconds", "time"}};

static void add_short(json_t *difference) {
  for (size_t i = 0; i < sizeof SHORT / sizeof *SHORT; i++) {
    json_t *value = json_object_get(json_object_get(difference, SHORT[i].object), SHORT[i].key);
    if (value) json_object_set(difference, SHORT[i].key, value);
  }
}

static void say_line(const rafter_sink *sink, const char *what, char *(*text)(double, char[32]), double a,
                     double b) {
  char x[32], y[32];
  if (a > 0) rf_say(sink, "%-14s %16s %16s %+9.1f %%\n", what, text(a, x), text(b, y), 100 * (b / a - 1));
  else rf_say(sink, "%-14s %16s %16s\n", what, text(a, x), text(b, y));
}

static bool fits(const json_t *plan) {
  return json_is_true(json_object_get(json_object_get(plan, "memory"), "fits"));
}

static void verdict(const json_t *a, const json_t *b, char text[200]) {
  double time = rf_json_at(b, "rate", "tokens_per_second") / rf_json_at(a, "rate", "tokens_per_second") - 1,
         memory = rf_json_at(b, "memory", "peak_bytes") - rf_json_at(a, "memory", "peak_bytes");
  char m[32];
  if (fits(a) != fits(b)) snprintf(text, 200, "only %s fits", fits(a) ? "A" : "B");
  else if (!fits(a)) snprintf(text, 200, "neither fits");
  else
    snprintf(text, 200, "B makes %.1f %% %s tokens a second and takes %s %s memory",
             100 * (time < 0 ? -time : time), time < 0 ? "fewer" : "more",
             rf_text_bytes(memory < 0 ? -memory : memory, m), memory < 0 ? "less" : "more");
}

rf_status rf_plan_compare(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  int count = 0;
  const char *const *sides = rf_options_texts(job->options, "compare", &count);
  json_t *a = NULL, *b = NULL;
  rf_status status = RAFTER_OK;
  char text[200];
  if (count > 2)
    return RF_FAIL(error, RAFTER_INVALID, "compare two, or sweep over several: --sweep OPTION=LIST",
                   "--compare takes two sides (expected A B, got %d)", count);
  if (count == 1 && !strncmp(sides[0], "published:", 10))
    return rf_compare_published(job, sides[0] + 10, sink, error);
  const char *first = count == 2 ? sides[0] : NULL, *second = sides[count - 1];
  RF_GO(plan_side(job, first, &a, error));
  RF_GO(plan_side(job, second, &b, error));
  const char *label = first ? first : rf_options_argument(job->options, 0);
  rf_say(sink, "A: %s\nB: %s\n\n%-14s %16s %16s\n", label, second, "", "A", "B");
  say_line(sink, "memory", rf_text_bytes, rf_json_at(a, "memory", "peak_bytes"),
           rf_json_at(b, "memory", "peak_bytes"));
  say_line(sink, "time", rf_text_seconds, rf_json_at(a, "time", "seconds"), rf_json_at(b, "time", "seconds"));
  say_line(sink, "tokens/s", rf_text_count, rf_json_at(a, "rate", "tokens_per_second"),
           rf_json_at(b, "rate", "tokens_per_second"));
  say_line(sink, "FLOPs", rf_text_flops, rf_json_at(a, "work", "hardware_flops"),
           rf_json_at(b, "work", "hardware_flops"));
  say_line(sink, "parameters", rf_text_count, rf_json_at(a, "model", "parameters"),
           rf_json_at(b, "model", "parameters"));
  rf_say(sink, "%-14s %16s %16s\n", "fits", fits(a) ? "yes" : "no", fits(b) ? "yes" : "no");
  verdict(a, b, text);
  rf_say(sink, "\n%s\n", text);
  json_t *difference = rf_json_between(a, b, false), *ratio = rf_json_between(a, b, true);
  add_short(difference);
  add_short(ratio);
  rf_put_json(sink, json_pack("{ss ss s[ss] sO sO so so ss}", "rafter", RF_VERSION, "command", "plan",
                              "compare", label, second, "a", a, "b", b, "difference", difference, "ratio",
                              ratio, "verdict", text));
done:
  json_decref(a);
  json_decref(b);
  return status;
}
