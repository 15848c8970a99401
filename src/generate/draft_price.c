/* draft_price.c - see draft_price.h. */
#include "generate/draft_price.h"

#include <math.h>
#include <stdlib.h>

/* The predicted time of a pass uses the fastest of the last LATEST passes with the same number of
 * rows, because other programs slow down some passes. A single measured pass counts at most as
 * UNSURE times a pass with fewer rows. If a size was not measured for HALF steps, its excess over
 * the time of smaller passes is halved, so that this size is tried again. */
enum { LATEST = 4 };
static const double UNSURE = 3, HALF = 512;

typedef struct pace {
  double ratio[LATEST], /* measured / predicted seconds */
      planned;          /* plan's seconds of the latest predicted pass */
  int64_t passes,       /* number of measured passes */
      step;             /* step of the latest measured pass */
} pace;

struct rf_draft_price {
  rf_pass_prices *plan;
  pace *at; /* (rows + 1) */
  int64_t rows, step;
  double credit;
};

rf_draft_price *rf_draft_price_open(const rf_plan *decode, int64_t rows) {
  rf_draft_price *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  p->rows = rows;
  p->plan = rf_pass_prices_open(decode);
  p->at = calloc((size_t)rows + 1, sizeof *p->at);
  if (p->plan && p->at) return p;
  rf_draft_price_close(p);
  return NULL;
}

void rf_draft_price_close(rf_draft_price *p) {
  if (!p) return;
  rf_pass_prices_close(p->plan);
  free(p->at);
  free(p);
}

/* Returns measured / predicted seconds of passes with `rows` rows. If no such pass was measured,
 * takes the ratio of the closest smaller number of rows, or else of the closest larger number. */
static double ratio_of(const rf_draft_price *p, int64_t rows) {
  double ratio = 0;
  for (int64_t r = 1; r <= p->rows && (r <= rows || !ratio); r++) {
    const pace *a = &p->at[r];
    double best = a->ratio[0], fewer = ratio;
    if (!a->passes) continue;
    for (int i = 1; i < LATEST && i < a->passes; i++) best = fmin(best, a->ratio[i]);
    if (fewer > 0 && best > fewer) {
      if (a->passes == 1) best = fmin(best, UNSURE * fewer);
      best = fewer + (best - fewer) * exp2(-(double)(p->step - a->step) / HALF);
    }
    ratio = best;
  }
  return ratio > 0 ? ratio : 1;
}

double rf_draft_price_of(rf_draft_price *p, const rf_extent *part, int parts) {
  int64_t rows = 0;
  for (int i = 0; i < parts; i++) rows += part[i].rows;
  p->at[rows].planned = rf_pass_price(p->plan, part, parts, NULL);
  return p->at[rows].planned * ratio_of(p, rows);
}

void rf_draft_price_measured(rf_draft_price *p, int64_t rows, double seconds) {
  pace *a = &p->at[rows];
  if (a->planned <= 0) return;
  a->ratio[a->passes++ % LATEST] = seconds / a->planned;
  a->step = p->step;
}

double rf_draft_credit(rf_draft_price *p) {
  bool first = p->step++ == 0;
  p->credit = fmin(p->credit + (first ? RF_DRAFT_START : RF_DRAFT_SHARE), RF_DRAFT_CREDIT);
  return first ? 0 : p->credit; /* the first pass has no drafts, to measure the time without drafts */
}

void rf_draft_saved(rf_draft_price *p, double passes) { p->credit += passes; }
