/* number.c - JSON numbers between two bounds, compared digit by digit as decimal numbers. */
#include "constrain/grammar.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = RF_NUMBER_DIGITS };

/* A bound that is at least 0: DIGITS digits before the point and DIGITS after it. */
typedef struct bound {
  char digit[2 * DIGITS];
  bool excluded;
} bound;

/* Digits of the smallest and of the largest magnitude of one sign. */
typedef struct span {
  bound low, high;
  bool integer;
} span;

static rf_status to_bound(double value, const char *where, bound *to, rf_error *error) {
  char text[64] = "";
  int places = 0;
  value = fabs(value); /* -0 */
  if (value < 1e15) do
      snprintf(text, sizeof text, "%0*.*f", DIGITS + (places ? places + 1 : 0), places, value);
    while (strtod(text, NULL) != value && ++places <= DIGITS);
  if (value >= 1e15 || places > DIGITS)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "a bound has too many digits (%s: expected at most %d before and after the point, got %g)",
                   where, DIGITS, value);
  memset(to->digit, 0, sizeof to->digit);
  for (int i = 0; i < DIGITS; i++) to->digit[i] = (char)(text[i] - '0');
  for (int i = 0; i < places; i++) to->digit[DIGITS + i] = (char)(text[DIGITS + 1 + i] - '0');
  return RAFTER_OK;
}

static bool zeros(const char *digit, int count) {
  for (int i = 0; i < count; i++)
    if (digit[i]) return false;
  return true;
}

/* True if a number may end before digit `at`. `low` and `high` are true if all digits so far equal
 * the digits of this bound. */
static bool may_end(const span *s, int at, bool low, bool high) {
  bool rest = zeros(s->low.digit + at, 2 * DIGITS - at);
  if (low && (!rest || s->low.excluded)) return false;
  return !high || !s->high.excluded || !zeros(s->high.digit + at, 2 * DIGITS - at);
}

/* The states after digit `at` for the four pairs of `low` and `high`. 0: the state was not made
 * yet. */
typedef struct grid {
  rf_grammar *g;
  const span *s;
  int32_t state[2 * DIGITS + 1][2][2];
  int32_t to;
} grid;

static int32_t state_at(grid *d, int at, bool low, bool high) {
  int32_t *state = &d->state[at][low][high];
  if (!*state) *state = rf_grammar_state(d->g);
  return *state;
}

/* Adds the digits from `from` on: digit `at` is between the digits of the bounds. */
static void add_digits(grid *d, int32_t from, int at, bool low, bool high, int least) {
  int a = low ? d->s->low.digit[at] : 0, b = high ? d->s->high.digit[at] : 9;
  if (a < least) a = least;
  for (int digit = a; digit <= b; digit++) {
    bool still_low = low && digit == d->s->low.digit[at], still_high = high && digit == d->s->high.digit[at];
    rf_grammar_bytes(d->g, from, '0' + digit, '0' + digit, state_at(d, at + 1, still_low, still_high));
  }
}

/* Adds the edges of all states after digit `at`. */
static void add_column(grid *d, int at) {
  bool point = at == DIGITS;
  for (int k = 0; k < 4; k++) {
    int32_t from = d->state[at][k & 1][k >> 1];
    if (!from) continue;
    if (at >= DIGITS && may_end(d->s, at, k & 1, k >> 1)) rf_grammar_skip(d->g, from, d->to);
    if (at == 2 * DIGITS || (point && d->s->integer)) continue;
    if (point) {
      int32_t after = rf_grammar_state(d->g);
      rf_grammar_bytes(d->g, from, '.', '.', after);
      from = after;
    }
    add_digits(d, from, at, k & 1, k >> 1, 0);
  }
}

/* Adds numbers without a sign. A number of n digits before the point begins at digit DIGITS - n;
 * all digits before are 0. */
static void add_span(rf_grammar *g, const span *s, int32_t from, int32_t to) {
  grid d = {.g = g, .s = s, .to = to};
  if (memcmp(s->low.digit, s->high.digit, sizeof s->low.digit) > 0) return;
  for (int begin = 0; begin < DIGITS; begin++) {
    bool low = zeros(s->low.digit, begin), high = zeros(s->high.digit, begin);
    if (!low) break; /* the lower bound has more digits */
    add_digits(&d, from, begin, low, high, begin < DIGITS - 1);
  }
  for (int at = 1; at <= 2 * DIGITS; at++) add_column(&d, at);
}

/* Rounds the bounds of an integer inwards. */
static void round_range(rf_number_range *r) {
  if (r->has_low) {
    r->low = r->above ? floor(r->low) + 1 : ceil(r->low);
    r->above = false;
  }
  if (r->has_high) {
    r->high = r->below ? ceil(r->high) - 1 : floor(r->high);
    r->below = false;
  }
}

static void add_free(rf_grammar *g, bool integer, int32_t from, int32_t to) {
  static const char INTEGER[] = "-?(0|[1-9][0-9]{0,14})",
                    NUMBER[] = "-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?";
  const char *form = integer ? INTEGER : NUMBER;
  rf_regex_add(g, form, strlen(form), RF_REGEX_PLAIN, "a number", from, to, NULL);
}

rf_status rf_number_add(rf_grammar *g, const rf_number_range *given, bool integer, const char *where,
                        int32_t from, int32_t to, rf_error *error) {
  const double last = 1e15 - 1;
  rf_number_range r = *given;
  span s = {.integer = integer};
  if (!r.has_low && !r.has_high) return add_free(g, integer, from, to), RAFTER_OK;
  if (integer) round_range(&r);
  if (!r.has_low || r.low < -last) r = (rf_number_range){-last, r.high, true, r.has_high, false, r.below};
  if (!r.has_high || r.high > last) r = (rf_number_range){r.low, last, true, true, r.above, false};
  if (r.low > r.high || (r.low >= r.high && (r.above || r.below)))
    return RF_FAIL(error, RAFTER_INVALID, "raise the maximum or lower the minimum",
                   "no number is in the range (%s)", where);
  if (r.high >= 0) { /* 0 and positive numbers */
    RF_TRY(to_bound(r.low > 0 ? r.low : 0, where, &s.low, error));
    RF_TRY(to_bound(r.high, where, &s.high, error));
    s.low.excluded = r.above && r.low >= 0;
    s.high.excluded = r.below;
    add_span(g, &s, from, to);
  }
  if (r.low < 0) { /* the magnitudes of negative numbers, without -0 */
    int32_t minus = rf_grammar_state(g);
    rf_grammar_bytes(g, from, '-', '-', minus);
    RF_TRY(to_bound(r.high < 0 ? -r.high : 0, where, &s.low, error));
    RF_TRY(to_bound(-r.low, where, &s.high, error));
    s.low.excluded = r.below || r.high >= 0;
    s.high.excluded = r.above;
    add_span(g, &s, minus, to);
  }
  return RAFTER_OK;
}
