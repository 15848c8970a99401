/* spec.c - reads a list of rewards: NAME[=ARGUMENT][:WEIGHT],... A backslash before a comma or a
 * colon makes the character a part of the argument. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "reward/parts.h"

static const double WEIGHT_MOST = 1e6;
static const char ESCAPE[] = "in an argument, write \\, for a comma and \\: for a colon before a number";

/* "exact, number, ...", for errors. */
static const char *known(char text[200]) {
  *text = 0;
  for (int i = 0; i < RF_RULE_COUNT; i++) rf_text_append(text, 200, "%s%s", i ? ", " : "", RF_RULES[i].name);
  return text;
}

static rf_status refuse_name(const char *name, rf_error *error) {
  const char *names[32], *near;
  char text[200], hint[300];
  for (int i = 0; i < RF_RULE_COUNT; i++) names[i] = RF_RULES[i].name;
  near = rf_nearest(name, names, RF_RULE_COUNT);
  snprintf(hint, sizeof hint, near ? "did you mean '%s'?" : "%s", near ? near : ESCAPE);
  return RF_FAIL(error, RAFTER_INVALID, hint, "unknown reward '%.60s' (--reward: expected one of %s)", name,
                 known(text));
}

/* Finds the first comma without a backslash, or the end of the text. */
static const char *end_of(const char *at) {
  for (; *at && *at != ','; at++)
    if (*at == '\\' && at[1]) at++;
  return at;
}

/* Finds the last colon without a backslash in a text that begins at `at`. NULL: none. */
static char *last_colon(char *at) {
  char *found = NULL;
  for (; *at; at++) {
    if (*at == '\\' && at[1]) at++;
    else if (*at == ':') found = at;
  }
  return found;
}

/* Removes the backslashes before commas and colons. */
static void unescape(char *text) {
  char *to = text;
  for (const char *at = text; *at; at++) {
    if (*at == '\\' && (at[1] == ',' || at[1] == ':')) at++;
    else if (*at == '\\' && at[1]) *to++ = *at++;
    *to++ = *at;
  }
  *to = 0;
}

/* Gives the component a name that no other component has: "regex", "regex-2", ... */
static void set_name(rf_component *c, const rf_component *all, int count) {
  int number = 1;
  for (int i = 0; i < count; i++) number += all[i].rule == c->rule;
  if (number == 1) snprintf(c->name, sizeof c->name, "%s", c->rule->name);
  else snprintf(c->name, sizeof c->name, "%s-%d", c->rule->name, number);
}

static bool same(const rf_component *a, const rf_component *b) {
  return a->rule == b->rule && !strcmp(a->argument ? a->argument : "", b->argument ? b->argument : "");
}

static rf_status check_new(const rf_component *c, const rf_component *all, int count, rf_error *error) {
  if (count == RF_REWARDS)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "too many rewards (--reward: expected at most %d)",
                   RF_REWARDS);
  for (int i = 0; i < count; i++)
    if (same(c, &all[i]))
      return RF_FAIL(error, RAFTER_INVALID, "give it once, with the sum of the weights",
                     "the reward '%.60s' occurs twice (--reward)", c->name);
  if (fabs(c->weight) > WEIGHT_MOST)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "the weight of a reward is too large (--reward %s: expected -1e6 to 1e6, got %g)", c->name,
                   c->weight);
  if (c->argument && !c->rule->may_have)
    return RF_FAIL(error, RAFTER_INVALID, "leave '=' and the text after it out",
                   "a reward takes no argument (--reward %s: got '%.60s')", c->name, c->argument);
  if (!c->argument && c->rule->must_have)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "a reward needs an argument (--reward: expected for example %s, got %s)", c->rule->example,
                   c->name);
  return RAFTER_OK;
}

static rf_status append(rf_component c, rf_component *all, int *count, rf_error *error) {
  set_name(&c, all, *count);
  rf_status status = check_new(&c, all, *count, error);
  if (status == RAFTER_OK && c.rule->open) status = c.rule->open(&c, error);
  if (status == RAFTER_OK) all[(*count)++] = c;
  else rf_component_close(&c);
  return status;
}

/* Reads one component from a text, and may change the text. */
static rf_status read_one(char *text, rf_component *all, int *count, rf_error *error) {
  rf_component c = {.weight = 1};
  char *equals = strchr(text, '=');
  char *colon = last_colon(equals ? equals : text);
  if (colon && rf_text_float(colon + 1, &c.weight)) *colon = 0;
  else if (colon && !equals)
    return RF_FAIL(error, RAFTER_INVALID, "for example gsm8k:1,format:0.2",
                   "the weight of a reward is not a number (--reward: expected NAME:WEIGHT, got '%.60s')",
                   text);
  if (equals) *equals = 0;
  c.rule = rf_rule_named(text, strlen(text));
  if (!c.rule) return refuse_name(text, error);
  if (equals) {
    unescape(equals + 1);
    c.argument = rf_must(strdup(equals + 1));
  }
  return append(c, all, count, error);
}

rf_status rf_components_read(const char *list, rf_component *component, int *count, rf_error *error) {
  for (const char *at = list, *end;; at = end + 1) {
    end = end_of(at);
    char *text = rf_must(strndup(at, (size_t)(end - at)));
    rf_status status = *text ? read_one(text, component, count, error)
                             : RF_FAIL(error, RAFTER_INVALID, "for example --reward gsm8k:1,format:0.2",
                                       "the name of a reward is missing (--reward: got '%.200s')", list);
    free(text);
    if (status != RAFTER_OK || !*end) return status;
  }
}

rf_status rf_component_add(const rf_rule *rule, rf_component *component, int *count, rf_error *error) {
  return append((rf_component){.rule = rule, .weight = 1}, component, count, error);
}

void rf_component_close(rf_component *c) {
  rf_pattern_close(c->pattern);
  free(c->argument);
}
