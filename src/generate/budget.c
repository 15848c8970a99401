/* budget.c - see budget.h. */
#include "generate/budget.h"

#include <stdlib.h>

struct rf_budget {
  rf_pass_prices *prefill, *decode;
  double growth;
  rf_extent *part; /* (slots + 1): the answers of the pass, then the prompt */
  int parts;
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

/* Tries halves of `most`, in multiples of RF_BUDGET_ROWS. */
int64_t rf_budget_rows(rf_budget *b, int64_t most, int64_t length) {
  if (!b->parts) return most;
  double limit = b->growth * rf_pass_price(b->decode, b->part, b->parts, NULL);
  int64_t rows = most;
  while (rows > RF_BUDGET_ROWS) {
    b->part[b->parts] = (rf_extent){rows, length + rows};
    if (rf_pass_price(b->prefill, b->part, b->parts + 1, NULL) <= limit) return rows;
    rows = rows / 2 / RF_BUDGET_ROWS * RF_BUDGET_ROWS;
  }
  return most < RF_BUDGET_ROWS ? most : RF_BUDGET_ROWS;
}
