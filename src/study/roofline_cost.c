/* roofline_cost.c - FLOPs, time, price and utilisation of a training run. MFU is defined in PaLM
 * (Chowdhery et al. 2022), appendix B. */
#include "study/roofline_parts.h"

#include <math.h>

/* FLOPs per token: 6 P for P parameters of matrices, or 2 P for a forward pass only. Attention adds
 * `12 * L * N * H T` (forward: 4), with L layers, N heads, H columns per head and T = `seq`
 * positions. A causal mask halves the FLOPs of attention. */
static rf_status per_token(rf_question *q, double *matmuls, double *attention, rf_error *error) {
  double parameters = rf_multiplied(q, NAN), layers = rf_value_or(q, "layers", NAN);
  double heads = rf_asked(q, "heads") || q->has_model ? rf_value(q, "heads") : NAN,
         dim = rf_asked(q, "head-dim") || q->has_model ? rf_value(q, "head-dim") : NAN;
  bool forward = rf_flag(q, "forward"), causal = !rf_flag(q, "non-causal"),
       with_attention = rf_options_given(q->o, "seq"); /* rf_asked would note the default as used */
  *attention = 0;
  if (isnan(parameters)) return rf_need(q, "parameters", &parameters, error);
  *matmuls = (forward ? 2 : 6) * parameters;
  rf_fact_note(q, forward
                      ? "a forward pass (generation, scoring): 2 FLOPs per parameter and token"
                      : "training: 6 FLOPs per parameter and token (2 forward, 4 backward); --forward counts "
                        "a forward pass, as in generation and scoring");
  if (!with_attention) {
    rf_fact_note(q, "without the FLOPs of attention; --seq adds them");
    return RAFTER_OK;
  }
  if (isnan(layers)) return rf_need(q, "layers", &layers, error);
  if (isnan(heads) || isnan(dim))
    return RF_FAIL(error, RAFTER_INVALID, "give --heads and --head-dim, or --model",
                   "attention over --seq needs the heads (expected --heads and --head-dim)");
  *attention = (forward ? 4 : 12) * layers * heads * dim * rf_value(q, "seq") / (causal ? 2 : 1);
  rf_fact_note(q, causal ? "causal attention; --non-causal counts all pairs" : "attention of all pairs");
  return RAFTER_OK;
}

rf_status rf_roofline_cost(rf_question *q, rf_error *error) {
  double peak = NAN, price = rf_usd_per_hour(q), matmuls = NAN, attention = 0, chips = q->chips;
  double rate = rf_value_or(q, "tokens-per-second", NAN), seconds = rf_value_or(q, "seconds", NAN),
         tokens = rf_value_or(q, "tokens", NAN), flops;
  rf_asked(q, "chips");
  RF_TRY(rf_peak(q, &peak, error));
  /* without --seconds, the answer is for the tokens of one second */
  if (isnan(tokens) && !isnan(rate)) tokens = isnan(seconds) ? rate : rate * seconds;
  if (rf_asked(q, "flops")) {
    flops = rf_value(q, "flops");
    matmuls = flops;
  } else {
    RF_TRY(per_token(q, &matmuls, &attention, error));
    if (isnan(tokens)) return rf_need(q, "tokens", &tokens, error);
    flops = (matmuls + attention) * tokens;
    matmuls *= tokens;
  }
  if (isnan(seconds) && !isnan(rate)) seconds = tokens / rate;
  if (isnan(seconds)) {
    seconds = flops / (chips * peak * rf_value(q, "mfu"));
    rf_fact_note(q,
                 rf_asked(q, "mfu") ? "time and cost assume an MFU of %g %% (--mfu)"
                                    : "time and cost assume an MFU of %g %%, which no run reaches; --mfu 0.4 "
                                      "assumes 40 %%",
                 100 * rf_value(q, "mfu"));
  }
  double mfu = flops / (seconds * chips * peak), dollars = price > 0 ? chips * price / 3600 : NAN;
  rf_fact_head(q, flops, NAN, seconds, "compute", NAN);
  rf_add_number(q, "days", "days", seconds / 86400);
  rf_fact_add(q, "mfu", "fraction of the peak (MFU)", RF_UNIT_PERCENT, mfu);
  rf_fact_add(q, "mfu_without_attention", "MFU without attention", RF_UNIT_PERCENT,
              matmuls / (seconds * chips * peak));
  rf_add_flops(q, "flops_per_second_per_chip", "arithmetic per second and chip", flops / seconds / chips);
  rf_add_number(q, "tokens_per_second", "tokens per second", tokens / seconds);
  rf_add_number(q, "tokens_per_second_per_chip", "tokens per second and chip", tokens / seconds / chips);
  rf_add_number(q, "chip_hours", "chip hours", chips * seconds / 3600);
  rf_fact_add(q, "usd", "dollars", RF_UNIT_USD, dollars * seconds);
  rf_fact_add(q, "usd_per_chip_hour", "dollars per chip and hour", RF_UNIT_USD, price > 0 ? price : NAN);
  rf_fact_add(q, "usd_per_million_tokens", "dollars per million tokens", RF_UNIT_USD,
              dollars * seconds / tokens * 1e6);
  rf_add_number(q, "tokens_per_usd", "tokens per dollar", tokens / (dollars * seconds));
  rf_add_flops(q, "flops_per_usd", "arithmetic per dollar", flops / (dollars * seconds));
  rf_add_flops(q, "peak_flops_per_usd", "peak arithmetic per dollar", price > 0 ? peak * 3600 / price : NAN);
  rf_add_flops(q, "performance_per_price", "arithmetic per second, for a dollar per hour",
               price > 0 ? flops / seconds / chips / price : NAN);
  char tiers[200];
  if (!(price > 0) && q->machine.price_count)
    rf_fact_note(q, "%s has no list price: --price takes %s, or an amount in USD", q->machine.name,
                 rf_machine_prices_text(&q->machine, tiers));
  else if (!(price > 0)) rf_fact_note(q, "%s has no list price: --price USD gives one", q->machine.name);
  return RAFTER_OK;
}
