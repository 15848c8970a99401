/* speculate.c - see speculate.h. */
#include "generate/speculate.h"

#include <stdlib.h>

double rf_speculation_tokens(double acceptance, int drafted) {
  double tokens = 1, right = 1;
  for (int i = 0; i < drafted; i++) tokens += right *= acceptance;
  return tokens;
}

void rf_speculation_useful(rf_plan_totals *drafts, const rf_plan_totals *plain, double tokens) {
  drafts->model_flops = tokens * plain->model_flops;
  drafts->flops_full_square = tokens * plain->flops_full_square;
}

typedef struct prices {
  rf_pass_prices *decode, *drafter; /* drafter: times of the draft model; NULL: drafts cost no time */
  rf_extent *part;                  /* (parts) */
  double *seconds;                  /* (most + 1): entry n: seconds of a pass with n drafts */
} prices;

/* Returns the seconds of a pass in which each answer drafts `drafted` tokens. */
static double price(const rf_speculation *s, const prices *p, int drafted, rf_plan_totals *total) {
  double seconds = 0;
  for (int i = 0; i < s->parts; i++) p->part[i] = (rf_extent){1, s->context};
  if (p->drafter)
    for (int k = 0; k < drafted; k++) seconds += rf_pass_price(p->drafter, p->part, s->parts, total);
  for (int i = 0; i < s->parts; i++) p->part[i].rows = 1 + drafted;
  return seconds + rf_pass_price(p->decode, p->part, s->parts, total);
}

static int best_of(const rf_speculation *s, const double *seconds, double acceptance) {
  int best = 0;
  for (int n = 1; n <= s->most; n++)
    if (rf_speculation_tokens(acceptance, n) * seconds[best] >
        rf_speculation_tokens(acceptance, best) * seconds[n])
      best = n;
  return best;
}

/* Returns the acceptance above which drafts save time. The gain grows with the acceptance, so a
 * binary search finds the acceptance. */
static double wins_from(const rf_speculation *s, const double *seconds) {
  double no = 0, yes = 1;
  if (!best_of(s, seconds, 1)) return 2;
  for (int i = 0; i < 40; i++) {
    double middle = (no + yes) / 2;
    if (best_of(s, seconds, middle)) yes = middle;
    else no = middle;
  }
  return yes;
}

rf_status rf_speculation_find(const rf_speculation *s, double acceptance, rf_speculation_found *found,
                              rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_plan_totals plain = {0};
  prices p = {.decode = rf_pass_prices_open(s->decode),
              .drafter = s->drafter ? rf_pass_prices_open(s->drafter) : NULL,
              .part = calloc((size_t)s->parts, sizeof *p.part),
              .seconds = calloc((size_t)s->most + 1, sizeof *p.seconds)};
  *found = (rf_speculation_found){0};
  if (!p.decode || (s->drafter && !p.drafter) || !p.part || !p.seconds)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while pricing drafts"));
  for (int n = 0; n <= s->most; n++) p.seconds[n] = price(s, &p, n, NULL);
  found->drafted = best_of(s, p.seconds, acceptance);
  found->tokens = rf_speculation_tokens(acceptance, found->drafted);
  found->seconds = price(s, &p, found->drafted, &found->total);
  found->plain_seconds = price(s, &p, 0, &plain);
  rf_speculation_useful(&found->total, &plain, found->tokens);
  found->gain = found->tokens * found->plain_seconds / found->seconds;
  found->wins_from = wins_from(s, p.seconds);
done:
  rf_pass_prices_close(p.decode);
  rf_pass_prices_close(p.drafter);
  free(p.part);
  free(p.seconds);
  return status;
}
