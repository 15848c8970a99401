/* budget.c - see budget.h. */
#include "generate/budget.h"

#include <stdlib.h>

/* Passes are grouped into classes by size, with two classes per factor of two: 16, 24, 32, 48, ...
 * A measured value moves the mean of its class by the fraction NEWS. A value counts as at most
 * UNSURE times the mean, because other programs slow down some passes. If the mean of a larger
 * class is slower, it moves toward this mean by the fraction FADE, so that the budget tries this
 * size again. */
enum { SIZES = 48 };
static const double NEWS = 0.125, UNSURE = 3, LEAST = 0.01, FADE = 1.0 / 256;

typedef struct pace {
  double ratio; /* measured / predicted */
  int64_t passes;
} pace;

struct rf_budget {
  rf_pass_prices *prefill, *decode;
  double growth;
  rf_extent *part; /* (slots + 1): extents of the answers in the pass, then of the prompt */
  int parts;
  int64_t length; /* number of cached tokens of the pass's first prompt */
  /* `answers`: for passes without prompts. `rows`: for the time that prompts add to a pass. */
  pace answers[SIZES], rows[SIZES];
};

rf_status rf_budget_open(const rf_plan *prefill, const rf_plan *decode, double growth, int slots,
                         rf_budget **budget, rf_error *error) {
  rf_budget *b = *budget = calloc(1, sizeof *b);
  if (b) {
    b->growth = growth;
    b->prefill = rf_pass_prices_open(prefill);
    b->decode = rf_pass_prices_open(decode);
    b->part = calloc((size_t)slots + 1, sizeof *b->part);
    if (b->prefill && b->decode && b->part) return RAFTER_OK;
  }
  rf_budget_close(b);
  *budget = NULL;
  return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
}

void rf_budget_close(rf_budget *b) {
  if (!b) return;
  rf_pass_prices_close(b->prefill);
  rf_pass_prices_close(b->decode);
  free(b->part);
  free(b);
}

void rf_budget_begin(rf_budget *b) { b->parts = 0; }

void rf_budget_add(rf_budget *b, int64_t context) { b->part[b->parts++] = (rf_extent){1, context}; }

static int size_of(int64_t rows) {
  int size = 0;
  for (; rows > 3 && size < SIZES - 2; rows /= 2) size += 2;
  return size + (rows == 3);
}

/* Returns measured / predicted time for a size. If no pass of this size was measured, takes the
 * closest smaller measured size, otherwise the closest larger measured size. */
static double ratio_of(const pace at[SIZES], int64_t rows) {
  const int size = size_of(rows);
  double ratio = 0;
  for (int i = 0; i < SIZES && (i <= size || ratio <= 0); i++)
    if (at[i].passes) ratio = at[i].ratio;
  return ratio > 0 ? ratio : 1;
}

static void learn(pace at[SIZES], int64_t rows, double ratio) {
  pace *a = &at[size_of(rows)];
  if (a->passes++ && ratio > UNSURE * a->ratio) ratio = UNSURE * a->ratio;
  a->ratio = a->passes == 1 ? ratio : a->ratio + NEWS * (ratio - a->ratio);
  for (pace *larger = a + 1; larger < at + SIZES; larger++)
    if (larger->ratio > a->ratio) larger->ratio += FADE * (a->ratio - larger->ratio);
}

/* Returns the predicted seconds that `rows` tokens of prompts add to a pass. Without prompts, the
 * pass takes `alone` seconds. */
static double added(rf_budget *b, int64_t rows, double alone) {
  b->part[b->parts] = (rf_extent){rows, b->length + rows};
  const double more = rf_pass_price(b->prefill, b->part, b->parts + 1, NULL) - alone;
  return more > 0 ? more : 0;
}

/* Halves `most` until the pass is short enough, then bisects up to the last number that was too
 * large. Results below `most` are multiples of RF_BUDGET_ROWS. */
int64_t rf_budget_rows(rf_budget *b, int64_t most, int64_t length) {
  enum { UNIT = RF_BUDGET_ROWS };
  b->length = length;
  if (!b->parts || most <= UNIT) return most;
  const double alone = rf_pass_price(b->decode, b->part, b->parts, NULL),
               room = (b->growth - 1) * alone * ratio_of(b->answers, b->parts);
  int64_t rows = most, over = most;
  while (rows > UNIT && added(b, rows, alone) * ratio_of(b->rows, rows) > room) {
    over = rows;
    rows = rows / 2 / UNIT * UNIT;
  }
  if (rows < UNIT) rows = UNIT;
  while (over - rows > UNIT) {
    const int64_t half = (over - rows) / 2 / UNIT * UNIT, next = rows + (half > UNIT ? half : UNIT);
    if (added(b, next, alone) * ratio_of(b->rows, next) > room) over = next;
    else rows = next;
  }
  return rows;
}

rf_budget_pass rf_budget_expect(rf_budget *b, int64_t rows) {
  rf_budget_pass pass = {.parts = b->parts, .rows = rows};
  if (!pass.parts) return pass;
  pass.alone = rf_pass_price(b->decode, b->part, b->parts, NULL);
  if (rows) pass.more = added(b, rows, pass.alone);
  return pass;
}

void rf_budget_measured(rf_budget *b, const rf_budget_pass *pass, double seconds) {
  if (!pass->parts) return;
  if (!pass->rows) {
    learn(b->answers, pass->parts, seconds / pass->alone);
    return;
  }
  const double spent = seconds - pass->alone * ratio_of(b->answers, pass->parts),
               /* a ratio to almost zero seconds means nothing */
      ratio = pass->more > LEAST * pass->alone ? spent / pass->more : 1;
  learn(b->rows, pass->rows, ratio > LEAST ? ratio : LEAST);
}
