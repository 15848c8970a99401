/* rules.c - the built-in rewards. Each value is in [0, 1]. To add a rule, add one row to
 * RF_RULES. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "reward/parts.h"

typedef struct span {
  const char *at;
  size_t bytes;
} span;

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static span trim(const char *text, size_t bytes) {
  while (bytes && is_blank(*text)) {
    text++;
    bytes--;
  }
  while (bytes && is_blank(text[bytes - 1])) bytes--;
  return (span){text, bytes};
}

static bool always(const rf_component *c) {
  (void)c;
  return true;
}

bool rf_is_blank(const char *text) { return !trim(text, strlen(text)).bytes; }

static bool without_argument(const rf_component *c) { return !c->argument; }

/* ---- exact, contains, regex ------------------------------------------------------------------ */

static double exact(rf_component *c, const rf_numbers *numbers, const rf_reward_row *row) {
  (void)c;
  (void)numbers;
  span answer = trim(row->answer, row->bytes), reference = trim(row->reference, strlen(row->reference));
  return answer.bytes == reference.bytes && !memcmp(answer.at, reference.at, answer.bytes);
}

static double contains(rf_component *c, const rf_numbers *numbers, const rf_reward_row *row) {
  (void)numbers;
  const char *text = c->argument ? c->argument : row->reference;
  span wanted = c->argument ? (span){text, strlen(text)} : trim(text, strlen(text));
  return memmem(row->answer, row->bytes, wanted.at, wanted.bytes) != NULL;
}

static rf_status open_contains(rf_component *c, rf_error *error) {
  if (!c->argument || *c->argument) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "without '=', the text is the field \"answer\" of the row",
                 "the text is empty (--reward contains=: expected a text)");
}

static rf_status open_regex(rf_component *c, rf_error *error) {
  if (*c->argument) return rf_pattern_open(c->argument, &c->pattern, error);
  return RF_FAIL(error, RAFTER_INVALID, NULL,
                 "the pattern is empty (--reward regex=: expected a regular expression)");
}

static double regex(rf_component *c, const rf_numbers *numbers, const rf_reward_row *row) {
  (void)numbers;
  int found = rf_pattern_found(c->pattern, row->answer, row->bytes);
  c->over_steps += found < 0;
  return found > 0;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static double number(rf_component *c, const rf_numbers *numbers, const rf_reward_row *row) {
  (void)c;
  char given[RF_NUMBER_BYTES], expected[RF_NUMBER_BYTES];
  return rf_numbers_last(numbers, row->answer, row->bytes, given) &&
         rf_numbers_last(numbers, row->reference, strlen(row->reference), expected) &&
         rf_numbers_equal(given, expected);
}

static double gsm8k(rf_component *c, const rf_numbers *numbers, const rf_reward_row *row) {
  (void)c;
  char given[RF_NUMBER_BYTES], expected[RF_NUMBER_BYTES];
  bool marked;
  return rf_numbers_final(numbers, row->answer, row->bytes, &marked, given) &&
         rf_numbers_final(numbers, row->reference, strlen(row->reference), &marked, expected) &&
         rf_numbers_equal(given, expected);
}

/* ---- format ---------------------------------------------------------------------------------- */

/* Writes "<think>" or "</think>" and returns its length. */
static size_t write_tag(const char *tag, bool closing, char text[80]) {
  *text = 0;
  rf_text_append(text, 80, closing ? "</%s>" : "<%s>", tag);
  return strlen(text);
}

static int count_of(span text, const char *tag, size_t bytes) {
  int count = 0;
  for (const char *at; (at = memmem(text.at, text.bytes, tag, bytes)); count++) {
    text.bytes -= (size_t)(at + bytes - text.at);
    text.at = at + bytes;
  }
  return count;
}

/* Some chat templates put the first tag at the end of the prompt. Then the answer begins inside
 * this tag. */
static bool prompt_opens(const rf_reward_row *row, const char *tag, size_t bytes) {
  span prompt = trim(row->prompt ? row->prompt : "", row->prompt ? strlen(row->prompt) : 0);
  return prompt.bytes >= bytes && !memcmp(prompt.at + prompt.bytes - bytes, tag, bytes);
}

/* The value is 1 if the answer is <a>...</a><b>...</b>, with blanks around the tags, and each tag
 * occurs once. */
static double format(rf_component *c, const rf_numbers *numbers, const rf_reward_row *row) {
  (void)numbers;
  const span whole = {row->answer, row->bytes};
  span left = trim(row->answer, row->bytes);
  for (int i = 0; i < c->tags; i++) {
    char open[80], close[80];
    size_t opens = write_tag(c->tag[i], false, open), closes = write_tag(c->tag[i], true, close);
    bool starts = left.bytes >= opens && !memcmp(left.at, open, opens);
    if (!starts && (i || !prompt_opens(row, open, opens))) return 0;
    if (count_of(whole, open, opens) != starts || count_of(whole, close, closes) != 1) return 0;
    const char *end = memmem(left.at, left.bytes, close, closes);
    if (!end) return 0;
    left = trim(end + closes, left.bytes - (size_t)(end + closes - left.at));
  }
  return !left.bytes;
}

static rf_status open_format(rf_component *c, rf_error *error) {
  const char *text = c->argument ? c->argument : "think+answer", *at = text;
  for (;; at++) {
    size_t length = 0;
    while (isalnum((unsigned char)at[length]) || at[length] == '_' || at[length] == '-') length++;
    if (!length || length >= sizeof c->tag[0] || (at[length] && at[length] != '+') ||
        c->tags == RF_REWARD_TAGS)
      return RF_FAIL(error, RAFTER_INVALID, "for example --reward format=think+answer",
                     "the tags are wrong (--reward format: expected 1 to %d names joined by '+', got "
                     "'%.100s')",
                     RF_REWARD_TAGS, text);
    memcpy(c->tag[c->tags], at, length);
    for (int i = 0; i < c->tags; i++)
      if (!strcmp(c->tag[i], c->tag[c->tags]))
        return RF_FAIL(error, RAFTER_INVALID, NULL, "a tag occurs twice (--reward format: '%s' in '%.100s')",
                       c->tag[i], text);
    c->tags++;
    at += length;
    if (!*at) return RAFTER_OK;
  }
}

/* ---- length ---------------------------------------------------------------------------------- */

static rf_status open_length(rf_component *c, rf_error *error) {
  if (rf_text_int(c->argument, &c->target) && c->target >= 1) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "for example --reward length=256:0.1",
                 "the length is wrong (--reward length: expected a number of tokens from 1 on, got '%.60s')",
                 c->argument);
}

/* The value is 1 for at most `target` tokens, and falls to 0 at twice this number. */
static double length(rf_component *c, const rf_numbers *numbers, const rf_reward_row *row) {
  (void)numbers;
  double share = 2 - (double)row->tokens / (double)c->target;
  return share > 1 ? 1 : share < 0 ? 0 : share;
}

/* ---- the table ------------------------------------------------------------------------------- */

const rf_rule RF_RULES[] = {
    {.name = "exact", .value = exact, .needs_answer = always},
    {.name = "number", .value = number, .needs_answer = always, .needs_number = true},
    {.name = "gsm8k", .value = gsm8k, .needs_answer = always, .needs_number = true},
    {.name = "contains",
     .may_have = true,
     .open = open_contains,
     .value = contains,
     .needs_answer = without_argument,
     .needs_text = true},
    {.name = "regex",
     .may_have = true,
     .must_have = true,
     .example = "regex=[0-9]+",
     .open = open_regex,
     .value = regex},
    {.name = "format", .may_have = true, .open = open_format, .value = format},
    {.name = "length",
     .may_have = true,
     .must_have = true,
     .example = "length=256",
     .open = open_length,
     .value = length},
    {.name = "command"},
};
const int RF_RULE_COUNT = sizeof RF_RULES / sizeof *RF_RULES;

const rf_rule *rf_rule_named(const char *name, size_t bytes) {
  for (int i = 0; i < RF_RULE_COUNT; i++)
    if (strlen(RF_RULES[i].name) == bytes && !memcmp(RF_RULES[i].name, name, bytes)) return &RF_RULES[i];
  return NULL;
}
