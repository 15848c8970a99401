/* objective.c - checks that the settings of a training step's loss are in range. */
#include "graph/graph.h"

#include <math.h>

bool rf_objective_has_reference(const rf_build_options *options) {
  if (options->objective == RF_OBJECTIVE_POLICY) return options->policy.beta != 0;
  return options->objective == RF_OBJECTIVE_PAIRS && options->pairs.kind != RF_PAIRS_SIMPO;
}

/* A setting that is one number, and its range. NaN is in no range. */
typedef struct setting {
  const char *name, *range;
  float value;
  bool good;
} setting;

static rf_status first_bad(const setting *list, int count, rf_error *error) {
  for (int i = 0; i < count; i++)
    if (!list[i].good)
      return RF_FAIL(error, RAFTER_INVALID, NULL, "loss setting out of range (%s: expected %s, got %g)",
                     list[i].name, list[i].range, (double)list[i].value);
  return RAFTER_OK;
}

static bool from_zero(float value) { return value >= 0 && value < INFINITY; }

static rf_status policy_check(const rf_policy *p, rf_error *error) {
  const setting list[] = {
      {"clip_low", "0 to 1", p->clip_low, p->clip_low >= 0 && p->clip_low <= 1},
      {"clip_high", "a number from 0", p->clip_high, from_zero(p->clip_high)},
      {"cap", "0 or a number from 1", p->cap, p->cap == 0 || (p->cap >= 1 && p->cap < INFINITY)},
      {"beta", "a number from 0", p->beta, from_zero(p->beta)},
  };
  return first_bad(list, sizeof list / sizeof *list, error);
}

static rf_status pairs_check(const rf_pairs *p, rf_error *error) {
  bool ipo = p->kind == RF_PAIRS_IPO;
  const setting list[] = {
      {"beta", "a number above 0", p->beta, p->beta > 0 && p->beta < INFINITY},
      {"gamma", "a number from 0", p->gamma, from_zero(p->gamma)},
      {"smoothing", ipo ? "0, because IPO has no smoothing" : "0 to below 0.5", p->smoothing,
       ipo ? p->smoothing == 0 : p->smoothing >= 0 && p->smoothing < 0.5f},
  };
  return first_bad(list, sizeof list / sizeof *list, error);
}

rf_status rf_objective_check(const rf_build_options *options, rf_error *error) {
  if (options->objective == RF_OBJECTIVE_NLL) return RAFTER_OK;
  if (options->job != RF_JOB_TRAIN)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "only a training job has the loss of a policy or of pairs");
  return options->objective == RF_OBJECTIVE_POLICY ? policy_check(&options->policy, error)
                                                   : pairs_check(&options->pairs, error);
}
