/* compare.c - `rafter plan --compare A B`: prints two plans in one table, with all differences. */
#include "base/text.h"
#include "advise/set.h"
#include "advise/vary.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static rf_status plan_side(const rf_options *o, const char *text, json_t **json, rf_error *error) {
  rf_options *one = rf_options_copy(o);
  rf_error inner = {0};
  rf_status status = text ? rf_options_apply(one, text, &inner) : RAFTER_OK;
  if (status == RAFTER_OK && !rf_options_argument(one, 0))
    status = RF_FAIL(&inner, RAFTER_INVALID,
                     "give MODEL as in `rafter plan MODEL --compare A B`, or name models in A and B",
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

/* The numbers that readers want first. The numbers of this table are also copied to the top level
 * of the JSON object. */
static const struct {
  const char *key, *object;
} SHORT[] = {{"seconds", "time"},           {"peak_bytes", "memory"},
             {"tokens_per_second", "cost"}, {"mfu", "rate"},
             {"model_flops", "work"},       {"hardware_flops", "work"},
             {"parameters", "model"},       {"usd_per_million_tokens", "cost"},
             {"collective_bytes", "work"},  {"network_seconds", "time"},
             {"tokens_per_usd", "cost"},    {"performance_per_usd", "cost"}};

static void add_short(json_t *difference) {
  for (size_t i = 0; i < sizeof SHORT / sizeof *SHORT; i++) {
    json_t *value = json_object_get(json_object_get(difference, SHORT[i].object), SHORT[i].key);
    if (value) json_object_set(difference, SHORT[i].key, value);
  }
}

static char *percent(double value, char text[32]) {
  snprintf(text, 32, "%.1f %%", 100 * value);
  return text;
}

static char *usd(double value, char text[32]) {
  if (value >= 1000) return rf_text_count(value, text);
  return rf_text_figures(value, 4, text);
}

/* True if the job answers prompts, so that its rate and cost are not those of a decode step. */
static bool answers(const json_t *plan) {
  const char *job = json_string_value(json_object_get(plan, "job"));
  return job && (!strcmp(job, "rollout") || !strcmp(job, "serve"));
}

/* Finds the assumption of the plan that explains a missing price and the use of --price. NULL: the
 * plan has a price. */
static const char *no_price(const json_t *plan) {
  const json_t *line;
  size_t i;
  json_array_foreach (json_object_get(plan, "assumptions"), i, line) {
    const char *text = json_string_value(line);
    if (text && (!strncmp(text, "no price of ", 12) || !strncmp(text, "no list price of ", 17))) return text;
  }
  return NULL;
}

static void say_no_price(const rafter_sink *sink, const json_t *a, const json_t *b) {
  const char *left = no_price(a), *right = no_price(b);
  const bool same = left && right && !strcmp(left, right);
  if (left) rf_say(sink, "%s: %s\n", same ? "A and B" : "A", left);
  if (right && !same) rf_say(sink, "B: %s\n", right);
}

/* Says why a plan has no figure of `key`: the plan has no price, or the job was not simulated. */
static const char *missing(const json_t *plan, const char *key) {
  bool priced = rf_json_at(plan, "cost", "usd_per_chip_hour") > 0;
  return strstr(key, "usd") && !priced ? "no price" : "unknown";
}

/* Prints the request rates at which the token rates and costs of --job serve were found. */
static void say_requests(const rafter_sink *sink, const json_t *a, const json_t *b) {
  const json_t *const plans[] = {a, b};
  rf_say(sink, "%-14s", "requests/s");
  for (int i = 0; i < 2; i++) {
    double rate = rf_json_at(json_object_get(plans[i], "serving"), "sustained", "requests_per_second");
    if (rate > 0) rf_say(sink, " %16.3g", rate);
    else rf_say(sink, " %16s", "unknown");
  }
  rf_say(sink, "\n");
}

static bool serves(const json_t *plan) {
  return json_object_get(json_object_get(plan, "serving"), "sustained") != NULL;
}

static void say_lines(const rafter_sink *sink, const json_t *a, const json_t *b) {
  static const struct {
    const char *label, *answers, *object,
        *key; /* answers: the label for jobs that answer prompts; NULL: the same as `label` */
    char *(*text)(double, char[32]);
  } LINES[] = {{"memory", NULL, "memory", "peak_bytes", rf_text_bytes},
               {"time", "decode step", "time", "seconds", rf_text_seconds},
               {"tokens/s", NULL, "cost", "tokens_per_second", rf_text_count},
               {"MFU", "decode MFU", "rate", "mfu", percent},
               {"USD/Mtokens", NULL, "cost", "usd_per_million_tokens", usd},
               {"tokens/USD", NULL, "cost", "tokens_per_usd", rf_text_count},
               {"MFU x peak/USD", NULL, "cost", "performance_per_usd", rf_text_flops},
               {"FLOPs", "decode FLOPs", "work", "hardware_flops", rf_text_flops},
               {"parameters", NULL, "model", "parameters", rf_text_count}};
  const bool both = answers(a) || answers(b);
  char x[32], y[32];
  for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
    double left = rf_json_at(a, LINES[i].object, LINES[i].key),
           right = rf_json_at(b, LINES[i].object, LINES[i].key);
    const bool cost = !strcmp(LINES[i].object, "cost");
    rf_say(sink, "%-14s %16s %16s", both && LINES[i].answers ? LINES[i].answers : LINES[i].label,
           cost && !(left > 0) ? missing(a, LINES[i].key) : LINES[i].text(left, x),
           cost && !(right > 0) ? missing(b, LINES[i].key) : LINES[i].text(right, y));
    if (left > 0 && (right > 0 || !cost)) rf_say(sink, " %11s", rf_text_ratio(left, right, x));
    rf_say(sink, "\n");
  }
  if (serves(a) || serves(b)) say_requests(sink, a, b);
  rf_say(sink, "%-14s %16s %16s\n", "fits", rf_json_fits(a) ? "yes" : "no", rf_json_fits(b) ? "yes" : "no");
}

/* Writes the change of a rate as text: "5.3 % more", "11.7 x as many" or "as many". */
static void say_rate(double before, double after, char text[64]) {
  char x[32];
  double change = 100 * (after / before - 1);
  if (fabs(change) < 0.05) snprintf(text, 64, "as many");
  else if (after >= 2 * before) snprintf(text, 64, "%.31s as many", rf_text_ratio(before, after, x));
  else if (before >= 2 * after) snprintf(text, 64, "%.31s of the", rf_text_ratio(before, after, x));
  else snprintf(text, 64, "%.1f %% %s", change < 0 ? -change : change, change < 0 ? "fewer" : "more");
}

static void verdict(const json_t *a, const json_t *b, char text[200]) {
  double memory = rf_json_at(b, "memory", "peak_bytes") - rf_json_at(a, "memory", "peak_bytes");
  char m[32], rate[64];
  say_rate(rf_json_at(a, "cost", "tokens_per_second"), rf_json_at(b, "cost", "tokens_per_second"), rate);
  if (rf_json_fits(a) != rf_json_fits(b)) snprintf(text, 200, "only %s fits", rf_json_fits(a) ? "A" : "B");
  else if (!rf_json_fits(a)) snprintf(text, 200, "neither fits");
  else if (memory == 0) snprintf(text, 200, "B computes %s tokens per second and needs as much memory", rate);
  else
    snprintf(text, 200, "B computes %s tokens per second and needs %s %s memory", rate,
             rf_text_bytes(memory < 0 ? -memory : memory, m), memory < 0 ? "less" : "more");
}

rf_status rf_plan_compare(const rf_options *o, const rafter_sink *sink, rf_error *error) {
  int count = 0;
  const char *const *sides = rf_options_texts(o, "compare", &count);
  json_t *a = NULL, *b = NULL;
  rf_status status = RAFTER_OK;
  char text[200];
  if (count > 2)
    return RF_FAIL(error, RAFTER_INVALID, "compare two plans, or use --sweep OPTION=LIST for more",
                   "--compare takes two sides (expected A B, got %d)", count);
  const char *first = count == 2 ? sides[0] : NULL, *second = sides[count - 1];
  RF_GO(plan_side(o, first, &a, error));
  RF_GO(plan_side(o, second, &b, error));
  const char *label = first ? first : rf_options_argument(o, 0);
  rf_say(sink, "A: %s\nB: %s\n\n%-14s %16s %16s\n", label, second, "", "A", "B");
  say_lines(sink, a, b);
  verdict(a, b, text);
  rf_say(sink, "\n%s\n", text);
  say_no_price(sink, a, b);
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
