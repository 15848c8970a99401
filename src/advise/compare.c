/* compare.c - `rafter plan --compare A B`: two plans side by side, and the difference of every
 * number. */
#include "advise/set.h"
#include "advise/vary.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static rf_status plan_side(const rf_options *o, const char *text, json_t **json, rf_error *error) {
  rf_options *one = rf_options_copy(o);
  rf_error inner = {0};
  rf_status status = text ? rf_options_apply(one, text, &inner) : RAFTER_OK;
  if (status == RAFTER_OK && !rf_options_argument(one, 0))
    status = RF_FAIL(&inner, RAFTER_INVALID,
                     "name a model: `rafter plan MODEL --compare A B`, or in A and B themselves",
                     "which model? (MODEL is missing)");
  if (status == RAFTER_OK) status = rf_plan_object_of(one, json, &inner);
  rf_options_free(one);
  if (status == RAFTER_OK || !error) return status;
  return RF_FAIL(error, status, inner.hint, "--compare %.100s: %s", text ? text : "", inner.message);
}

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

/* Numbers that are copied to the top of the object, because readers want them most. */
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

static void verdict(const json_t *a, const json_t *b, char text[200]) {
  double time = rf_json_at(b, "rate", "tokens_per_second") / rf_json_at(a, "rate", "tokens_per_second") - 1,
         memory = rf_json_at(b, "memory", "peak_bytes") - rf_json_at(a, "memory", "peak_bytes");
  char m[32];
  if (rf_json_fits(a) != rf_json_fits(b)) snprintf(text, 200, "only %s fits", rf_json_fits(a) ? "A" : "B");
  else if (!rf_json_fits(a)) snprintf(text, 200, "neither fits");
  else
    snprintf(text, 200, "B makes %.1f %% %s tokens a second and takes %s %s memory",
             100 * (time < 0 ? -time : time), time < 0 ? "fewer" : "more",
             rf_text_bytes(memory < 0 ? -memory : memory, m), memory < 0 ? "less" : "more");
}

rf_status rf_plan_compare(const rf_options *o, const rafter_sink *sink, rf_error *error) {
  int count = 0;
  const char *const *sides = rf_options_texts(o, "compare", &count);
  json_t *a = NULL, *b = NULL;
  rf_status status = RAFTER_OK;
  char text[200];
  if (count > 2)
    return RF_FAIL(error, RAFTER_INVALID, "compare two, or sweep over several: --sweep OPTION=LIST",
                   "--compare takes two sides (expected A B, got %d)", count);
  const char *first = count == 2 ? sides[0] : NULL, *second = sides[count - 1];
  RF_GO(plan_side(o, first, &a, error));
  RF_GO(plan_side(o, second, &b, error));
  const char *label = first ? first : rf_options_argument(o, 0);
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
  rf_say(sink, "%-14s %16s %16s\n", "fits", rf_json_fits(a) ? "yes" : "no", rf_json_fits(b) ? "yes" : "no");
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
