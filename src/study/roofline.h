/* roofline.h - questions of arithmetic: one operation, collective, strategy or run against one
 * machine, by formula and without a graph. Every formula stands with its source in
 * docs/planning.md. */
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
  RF_UNIT_BPS, /* bytes/s */
  RF_UNIT_PERCENT,
  RF_UNIT_USD,
  RF_UNIT_TRUTH,
  RF_UNIT_TEXT
} rf_unit;

/* One figure of an answer: its JSON key, what people call it, its value. Not finite: there is
 * none ("never"). */
typedef struct rf_fact {
  const char *key, *what; /* what NULL: JSON only */
  rf_unit unit;
  double value;
  char text[96]; /* RF_UNIT_TEXT */
} rf_fact;

enum { RF_FACTS_MOST = 96, RF_NOTES_MOST = 12 };
typedef struct rf_answer {
  const char *op;
  char machine[96];
  int count, notes;
  rf_fact fact[RF_FACTS_MOST];
  char note[RF_NOTES_MOST][160]; /* what the answer assumes, and options that play no part in it */
} rf_answer;

/* Name of the i-th operation that can be asked about, NULL behind the last; *help (may be NULL)
 * gets what it answers. */
const char *rf_roofline_op(int i, const char **help);
/* Answers the question that the options of `rafter roofline` ask. RAFTER_INVALID names what is
 * missing or out of range. */
rf_status rf_roofline_answer(const rf_options *options, rf_answer *answer, rf_error *error);

extern const rf_option RF_ROOFLINE_OPTIONS[];

#endif
