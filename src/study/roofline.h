/* roofline.h - `rafter roofline`: formulas for one operation, collective, strategy or run on one
 * machine. No graph is built. docs/planning.md lists all formulas and their sources. */
#ifndef RF_ROOFLINE_H
#define RF_ROOFLINE_H

#include "base/options.h"
#include "machine/machine.h"

typedef enum rf_unit {
  RF_UNIT_NUMBER,
  RF_UNIT_MINIMUM, /* the minimum of a count; the table rounds this minimum up */
  RF_UNIT_MAXIMUM, /* the maximum of a count; the table rounds this maximum down */
  RF_UNIT_NEAREST, /* the best value of a count; the table rounds this value to the nearest whole number */
  RF_UNIT_BYTES,
  RF_UNIT_SECONDS,
  RF_UNIT_FLOPS,
  RF_UNIT_COUNT,
  RF_UNIT_BPS, /* bytes per second */
  RF_UNIT_PERCENT,
  RF_UNIT_USD,
  RF_UNIT_TRUTH,
  RF_UNIT_TEXT
} rf_unit;

/* One figure of an answer. A `value` that is not finite means "never" or "none". */
typedef struct rf_fact {
  const char *key, *what; /* what: label in the table; NULL: the figure appears only in JSON */
  rf_unit unit;
  double value;
  char text[96]; /* the figure, if the unit is RF_UNIT_TEXT */
} rf_fact;

enum { RF_FACTS_MAX = 96, RF_NOTES_MAX = 12 };
typedef struct rf_answer {
  const char *op;
  char machine[96];
  int count, notes;
  rf_fact fact[RF_FACTS_MAX];
  char note[RF_NOTES_MAX][160]; /* assumptions of the answer, and options without effect */
} rf_answer;

/* Returns the name of operation i, or NULL. *help describes the answer. `help` may be NULL. */
const char *rf_roofline_op(int i, const char **help);
/* Answers one question of `rafter roofline`. RAFTER_INVALID: an option is missing or out of
 * range. The error names the option. */
rf_status rf_roofline_answer(const rf_options *options, rf_answer *answer, rf_error *error);

extern const rf_option RF_ROOFLINE_OPTIONS[];

#endif
