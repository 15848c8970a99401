/* budget.h - decides how many tokens of prompts a forward pass reads while answers wait for their
 * next token. A long prompt then takes more passes, and no pass takes much longer than others.
 *
 * The plan predicts the seconds of a pass. A run measures the pass, and multiplies later
 * predictions by measured / predicted time. A simulation measures nothing. */
#ifndef RF_BUDGET_H
#define RF_BUDGET_H

#include "plan/plan.h"

enum { RF_BUDGET_ROWS = 16 }; /* minimum number of prompt tokens in a pass, so that prompts make progress */

/* Predicted times of passes with both plans, and the answers of the next pass. */
typedef struct rf_budget rf_budget;

/* A pass with prompts may take `growth` times the expected seconds of the same pass without
 * prompts. The plans must outlive the budget. */
rf_status rf_budget_open(const rf_plan *prefill, const rf_plan *decode, double growth, int slots,
                         rf_budget **budget, rf_error *error);
void rf_budget_close(rf_budget *budget); /* NULL is allowed */

void rf_budget_begin(rf_budget *budget); /* begins a pass without answers */
/* Adds an answer with one row, whose token attends to `context` tokens. */
void rf_budget_add(rf_budget *budget, int64_t context);
/* Returns how many tokens of prompts the pass may read, at most `most`. The first prompt has
 * `length` tokens in the cache. Allocates nothing. */
int64_t rf_budget_rows(rf_budget *budget, int64_t most, int64_t length);
/* The predicted times of one pass, and its size. */
typedef struct rf_budget_pass {
  int parts;          /* answers */
  int64_t rows;       /* tokens of prompts */
  double alone, more; /* predicted seconds of the answers, and seconds that the prompts add */
} rf_budget_pass;
/* Returns the times of the pass since rf_budget_begin, with `rows` tokens of prompts. The result
 * stays valid when another pass begins. Allocates nothing. */
rf_budget_pass rf_budget_expect(rf_budget *budget, int64_t rows);
/* Records that the pass took `seconds`. Allocates nothing. */
void rf_budget_measured(rf_budget *budget, const rf_budget_pass *pass, double seconds);

#endif
