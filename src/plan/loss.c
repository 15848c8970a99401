/* loss.c - see loss.h. */
#include "plan/loss.h"

#include "graph/mesh/mesh.h"

#include <string.h>

/* One row for each loss of pairs. Sources of the formulas and defaults: docs/preferences.md. */
static const struct loss {
  const char *name;
  rf_pairs_kind kind;
  double beta, gamma; /* default values; if gamma is 0, the loss has no margin */
  bool smooths;       /* the loss has --label-smoothing */
} LOSSES[] = {
    {"dpo", RF_PAIRS_DPO, 0.1, 0, true},
    {"ipo", RF_PAIRS_IPO, 0.1, 0, false},
    {"simpo", RF_PAIRS_SIMPO, 2, 1, true},
};
enum { COUNT = sizeof LOSSES / sizeof *LOSSES };

const char *rf_loss_name(const rf_build_options *build) {
  if (build->objective == RF_OBJECTIVE_NLL) return "nll";
  for (int i = 0; build->objective == RF_OBJECTIVE_PAIRS && i < COUNT; i++)
    if (LOSSES[i].kind == build->pairs.kind) return LOSSES[i].name;
  return NULL;
}

static bool given(const rf_options *options, const char *name) {
  return rf_options_knows(options, name) && rf_options_given(options, name);
}

/* Refuses settings that belong to another loss. */
static rf_status no_effect(const rf_options *options, const char *name, const char *loss, const char *with,
                           rf_error *error) {
  if (!given(options, name)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, with, "--%s has no effect with --loss %s", name, loss);
}

static rf_status check_shape(const rf_options *options, const rf_build_options *build, rf_error *error) {
  const int64_t batch = build->microbatch * build->accumulate, share = 2 * rf_mesh_copies(&build->mesh);
  const char *name = batch % share ? "batch" : given(options, "microbatch") ? "microbatch" : "accumulate";
  if (build->microbatch % share == 0) return RAFTER_OK;
  if (!strcmp(name, "accumulate"))
    return RF_FAIL(error, RAFTER_INVALID, "lower --accumulate, or raise --batch",
                   "a pair is two sequences of one microbatch (--batch %lld --accumulate %d: expected "
                   "microbatches of a multiple of %lld sequences, got %lld)",
                   (long long)batch, build->accumulate, (long long)share, (long long)build->microbatch);
  return RF_FAIL(error, RAFTER_INVALID, "two sequences of the batch are one pair: --batch 8 is 4 pairs",
                 "a pair is two sequences of one microbatch (--%s: expected a multiple of %lld, got %lld)",
                 name, (long long)share, (long long)(batch % share ? batch : build->microbatch));
}

rf_status rf_loss_resolve(const rf_options *options, rf_build_options *build, rf_error *error) {
  const struct loss *loss = NULL;
  if (!rf_options_knows(options, "loss") || !strcmp(rf_options_text_or(options, "job", "train"), "rl"))
    return RAFTER_OK;
  const char *name = rf_options_text_or(options, "loss", "nll");
  for (int i = 0; i < COUNT; i++)
    if (!strcmp(LOSSES[i].name, name)) loss = &LOSSES[i];
  if (!strcmp(name, "nll")) {
    static const char *const settings[] = {"beta", "gamma", "label-smoothing"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
      RF_TRY(no_effect(options, settings[i], name,
                       "add --loss dpo, ipo or simpo, whose rows are pairs of answers", error));
  }
  if (!loss && strcmp(name, "nll") && !strcmp(rf_options_command(options), "plan"))
    return RF_FAIL(error, RAFTER_INVALID, "add --job rl", "--loss %s is one of reinforcement learning", name);
  if (!loss) return RAFTER_OK;
  if (!(loss->gamma > 0)) RF_TRY(no_effect(options, "gamma", name, "only --loss simpo has a margin", error));
  if (!loss->smooths)
    RF_TRY(no_effect(options, "label-smoothing", name, "use --loss dpo or --loss simpo", error));
  if (given(options, "loss-on") && !strcmp(rf_options_text(options, "loss-on"), "all"))
    return RF_FAIL(error, RAFTER_INVALID, "leave --loss-on out",
                   "--loss %s counts the tokens of the answers (--loss-on: got all)", name);
  build->objective = RF_OBJECTIVE_PAIRS;
  build->pairs = (rf_pairs){.kind = loss->kind,
                            .beta = (float)rf_options_float_or(options, "beta", loss->beta),
                            .gamma = (float)rf_options_float_or(options, "gamma", loss->gamma),
                            .smoothing = (float)rf_options_float_or(options, "label-smoothing", 0)};
  /* the loss compares the model with its reference, which has no dropout */
  if (!given(options, "dropout")) build->dropout = 0;
  RF_TRY(check_shape(options, build, error));
  return rf_objective_check(build, error);
}

const rf_option RF_LOSS_OPTIONS[] = {
    RF_CHOICE("loss", RF_LOSS_NAMES, "nll", "Training",
              "nll, or a loss of preferences: rows with prompt, chosen and rejected\nTwo sequences of "
              "--batch are one pair."),
    RF_NUMBER("beta", FLOAT, NULL, 1e-6, 1e6, NULL, "Training",
              "strength of the loss of preferences; unset: 0.1 (dpo, ipo), 2 (simpo)"),
    {.name = NULL},
};

const rf_option RF_PREFERENCE_OPTIONS[] = {
    RF_NUMBER("gamma", FLOAT, NULL, 0, 1e6, NULL, "Training", "margin of rewards (simpo); unset: 1"),
    RF_NUMBER("label-smoothing", FLOAT, "P", 0, 0.5, NULL, "Training",
              "probability that a pair has its answers exchanged (dpo, simpo); unset: 0"),
    {.name = NULL},
};
