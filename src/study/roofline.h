/* roofline.h - `rafter roofline`: formulas about one operation, collective, strategy or run on one
 * machine, without a graph. docs/planning.md lists all formulas and their sources. */
#ifndef RF_ROOFLINE_H
#define RF_ROOFLINE_H

#include "base/options.h"
#include "machine/machine.h"

typedef enum rf_unit {
  RF_UNIT_NUMBER,
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
  const char *key, *what; /* `what`: label for people; NULL: only JSON has it */
  rf_unit unit;
  double value;
  char text[96]; /* used in place of `value` if the unit is RF_UNIT_TEXT */
} rf_fact;

enum { RF_FACTS_MOST = 96, RF_NOTES_MOST = 12 };
typedef struct rf_answer {
  const char *op;
  char machine[96];
  int count, notes;
  rf_fact fact[RF_FACTS_MOST];
  char note[RF_NOTES_MOST][160]; /* assumptions of the answer, and options that it ignored */
} rf_answer;

/* Name of operation i, or NULL after the last; *help (may be NULL) describes the answer. */
const char *rf_roofline_op(int i, const char **help);
/* Answers one `rafter roofline` question. If an option is missing or out of range, returns
 * RAFTER_INVALID; the error names the option. */
rf_status rf_roofline_answer(const rf_options *options, rf_answer *answer, rf_error *error);

extern const rf_option RF_ROOFLINE_OPTIONS[];

#endif
