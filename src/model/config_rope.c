/* config_rope.c - rotary positions in config.json, in the notations before and since transformers
 * 5. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/config_parts.h"

/* ---- reading --------------------------------------------------------------------------------- */

/* "longrope" has a list of divisors for short texts and a list for long texts, with one divisor for
 * each rotated pair. "longrope" is supported only if both lists are equal and attention_factor is
 * 1. */
static rf_status read_table(const json_t *json, const char *where, rf_rope *rope, rf_model *model,
                            rf_error *error) {
  const json_t *divisors = json_object_get(json, "long_factor"),
               *others = json_object_get(json, "short_factor");
  double weight;
  size_t count = json_array_size(divisors);
  RF_TRY(rf_json_float_or(json, "attention_factor", where, 0, 1e9, 0, &weight, error));
  if (weight != 1 || !count || !json_equal(divisors, others)) {
    model->plan_only = "this version does not compute the scaling of its rotary positions (short_factor, "
                       "long_factor and attention_factor of its config.json)";
    return RAFTER_OK;
  }
  for (size_t i = 0; i < count && i < RF_ROPE_TABLE_MAX; ++i)
    model->rope_divisor[i] = (float)json_number_value(json_array_get(divisors, i));
  rope->scaling = RF_ROPE_TABLE;
  model->rope_divisors = count > INT32_MAX ? INT32_MAX : (int32_t)count;
  return RAFTER_OK;
}

static double yarn_weight(double factor, double scale) {
  return factor > 1 ? 0.1 * scale * log(factor) + 1 : 1;
}

/* Computes how YaRN scales attention scores. In the following formulas, w(m) is yarn_weight() of
 * the field m. Latent attention multiplies scores by w(mscale_all_dim)^2, and rotated queries and
 * keys by w(mscale) / w(mscale_all_dim). rafter requires that mscale equals mscale_all_dim.
 * Ordinary attention multiplies cosines and sines by one factor. So if heads are fully rotated, the
 * scores are multiplied by the square of the factor. Source: transformers, modeling_rope_utils,
 * _compute_yarn_parameters, and modeling_deepseek_v3. */
static rf_status yarn_scores(const json_t *json, const char *where, double factor, double *weight,
                             bool *computed, bool latent, rf_error *error) {
  double scale, all, given;
  RF_TRY(rf_json_float_or(json, "mscale", where, 0, 1e9, 0, &scale, error));
  RF_TRY(rf_json_float_or(json, "mscale_all_dim", where, 0, 1e9, 0, &all, error));
  RF_TRY(rf_json_float_or(json, "attention_factor", where, 1e-6, 1e9, 0, &given, error));
  if (latent) {
    *computed = scale == all && all != 0 && given == 0;
    *weight = yarn_weight(factor, all);
    return RAFTER_OK;
  }
  *computed = true;
  *weight = given > 0                ? given
            : scale != 0 && all != 0 ? yarn_weight(factor, scale) / yarn_weight(factor, all)
                                     : yarn_weight(factor, 1);
  return RAFTER_OK;
}

static rf_status read_yarn(const json_t *json, const char *where, rf_rope *rope, rf_model *model,
                           rf_error *error) {
  double factor, slow, fast, original, weight;
  bool latent = model->kv_rank > 0, computed;
  const json_t *truncates = json_object_get(json, "truncate");
  RF_TRY(rf_json_float(json, "factor", where, 1e-6, 1e9, &factor, error));
  RF_TRY(rf_json_float_or(json, "original_max_position_embeddings", where, 1, 1e12, (double)model->max_seq,
                          &original, error));
  RF_TRY(rf_json_float_or(json, "beta_slow", where, 1e-6, 1e9, 1, &slow, error));
  RF_TRY(rf_json_float_or(json, "beta_fast", where, 1e-6, 1e9, 32, &fast, error));
  RF_TRY(yarn_scores(json, where, factor, &weight, &computed, latent, error));
  if (!computed || model->local_theta > 0 || model->family == RF_FAMILY_NEOX ||
      (truncates && !json_is_true(truncates))) {
    model->plan_only = "this version does not compute the scaling of its rotary positions (rope_type of its "
                       "config.json: YaRN with truncate false, with local positions, on a part of each head, "
                       "or under latent attention with mscale other than mscale_all_dim)";
    return RAFTER_OK;
  }
  *rope = (rf_rope){.theta = rope->theta,
                    .scaling = RF_ROPE_YARN,
                    .factor = (float)factor,
                    .low = (float)slow,
                    .high = (float)fast,
                    .original = (float)original};
  double plain = model->attn_scale > 0 ? (double)model->attn_scale : 1 / sqrt((double)model->head_dim);
  model->attn_scale = (float)(weight * weight * plain);
  return RAFTER_OK;
}

/* Reads one set of rotary parameters: theta, the rotated fraction of a head, and the scaling. A
 * model with unsupported scaling can be planned, but it cannot run. */
static rf_status read_rope_object(const json_t *json, const char *where, rf_rope *rope, double *share,
                                  rf_model *model, rf_error *error) {
  double theta = (double)rope->theta, factor, low, high, original;
  RF_TRY(rf_json_float_or(json, "rope_theta", where, 0, 1e30, theta, &theta, error));
  RF_TRY(rf_json_float_or(json, "partial_rotary_factor", where, 0, 1, *share, share, error));
  rope->theta = (float)theta;
  json_t *type = json_object_get(json, "rope_type");
  if (!type) type = json_object_get(json, "type");
  if (!type && !json_object_get(json, "factor")) return RAFTER_OK;
  if (!json_is_string(type))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"rope_type\" is missing or not a string",
                   where);
  const char *name = json_string_value(type);
  if (strcmp(name, "default") == 0) return RAFTER_OK;
  bool linear = strcmp(name, "linear") == 0;
  if (strcmp(name, "yarn") == 0) return read_yarn(json, where, rope, model, error);
  if (strcmp(name, "longrope") == 0) return read_table(json, where, rope, model, error);
  /* "dynamic" changes only the angles of texts that are longer than the model's positions. rafter
   * accepts no text of this length, so it uses the unscaled angles. Source: transformers,
   * modeling_rope_utils, _compute_dynamic_ntk_parameters. */
  if (strcmp(name, "dynamic") == 0) {
    RF_TRY(rf_json_float(json, "factor", where, 1e-6, 1e9, &factor, error));
    rope->scaling = RF_ROPE_DYNAMIC;
    rope->factor = (float)factor;
    return RAFTER_OK;
  }
  if (!linear && strcmp(name, "llama3") != 0) {
    model->plan_only =
        "this version does not compute the scaling of its rotary positions (rope_type of its config.json)";
    return RAFTER_OK;
  }
  RF_TRY(rf_json_float(json, "factor", where, 1e-6, 1e9, &factor, error));
  rope->scaling = linear ? RF_ROPE_LINEAR : RF_ROPE_LLAMA3;
  rope->factor = (float)factor;
  if (linear) return RAFTER_OK;
  RF_TRY(rf_json_float(json, "low_freq_factor", where, 1e-6, 1e9, &low, error));
  RF_TRY(rf_json_float(json, "high_freq_factor", where, 1e-6, 1e9, &high, error));
  RF_TRY(rf_json_float(json, "original_max_position_embeddings", where, 1, 1e12, &original, error));
  if (!(high > low))
    return RF_FAIL(
        error, RAFTER_FAILED, NULL,
        "%s: the field \"high_freq_factor\" is out of range (expected above low_freq_factor %g, got %g)",
        where, low, high);
  rope->low = (float)low;
  rope->high = (float)high;
  rope->original = (float)original;
  return RAFTER_OK;
}

/* Reads "rope_parameters", which has one set for all layers or one set for each kind of layer. */
static rf_status read_parameters(const json_t *json, const char *inside, const config_type *type,
                                 double *share, rf_model *model, rf_error *error) {
  json_t *full = json_object_get(json, "full_attention"),
         *sliding = json_object_get(json, "sliding_attention");
  bool by_layer = type->local_theta > 0;
  if (by_layer && json_object_size(json) > 0 && !json_is_object(full) && !json_is_object(sliding))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: expected the fields \"full_attention\" and \"sliding_attention\" for %s", inside,
                   type->type);
  if (!by_layer && (json_is_object(full) || json_is_object(sliding)))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"%s\" is not supported for %s (expected one set for all layers)", inside,
                   json_is_object(full) ? "full_attention" : "sliding_attention", type->type);
  if (json_is_object(sliding)) {
    rf_rope windowed = {.theta = model->local_theta};
    const char *before = model->plan_only;
    RF_TRY(read_rope_object(sliding, inside, &windowed, share, model, error));
    if (windowed.scaling != RF_ROPE_PLAIN || model->plan_only != before)
      return RF_FAIL(
          error, RAFTER_FAILED, NULL,
          "%s: the field \"rope_type\" of sliding_attention is not supported (expected \"default\")", inside);
    model->local_theta = windowed.theta;
  }
  if (by_layer && !json_is_object(full)) return RAFTER_OK;
  return read_rope_object(by_layer ? full : json, inside, &model->rope, share, model, error);
}

/* transformers 5 prefers this field to the field of the scaling, and transformers 4 does not read
 * it. So the two fields must agree. */
static rf_status check_original(const json_t *json, const char *where, const rf_model *model,
                                rf_error *error) {
  double used = (double)model->rope.original, given;
  if (model->rope.scaling != RF_ROPE_YARN && model->rope.scaling != RF_ROPE_LLAMA3) return RAFTER_OK;
  RF_TRY(rf_json_float_or(json, "original_max_position_embeddings", where, 1, 1e12, used, &given, error));
  if ((float)given == model->rope.original) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "give the field only inside \"rope_scaling\" or \"rope_parameters\"",
                 "%s: the field \"original_max_position_embeddings\" contradicts the scaling of rotary "
                 "positions (%g and %g)",
                 where, given, used);
}

/* Older files have a theta and "rope_scaling"; newer files have "rope_parameters". */
rf_status rf_config_read_rope(const json_t *json, const char *where, const config_type *type, rf_model *model,
                              rf_error *error) {
  static const char *const GIVEN[] = {"rope_theta", "rotary_emb_base"};
  double theta, inner, local, share = 1;
  char inside[420];
  bool partial = model->family == RF_FAMILY_NEOX;
  json_t *parameters = json_object_get(json, "rope_parameters"),
         *scaling = json_object_get(json, "rope_scaling");
  RF_TRY(rf_json_float_or(json, type->theta_key, where, 0, 1e30, type->theta, &theta, error));
  RF_TRY(rf_json_float_or(json, "rope_local_base_freq", where, 0, 1e30, type->local_theta, &local, error));
  if (partial) RF_TRY(rf_json_float_or(json, "rotary_pct", where, 0, 1, 0.25, &share, error));
  else RF_TRY(rf_json_float_or(json, "partial_rotary_factor", where, 0, 1, 1, &share, error));
  model->rope.theta = (float)theta;
  model->local_theta = type->local_theta > 0 ? (float)local : 0;
  if (scaling && !json_is_null(scaling) && !json_is_object(scaling))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"rope_scaling\" has the wrong type (expected an object)", where);
  if (json_is_object(scaling) && json_is_object(parameters) && !json_equal(scaling, parameters))
    return RF_FAIL(error, RAFTER_FAILED, "keep only one of the two fields",
                   "%s: the fields \"rope_scaling\" and \"rope_parameters\" contradict each other", where);
  if (json_is_object(parameters)) {
    snprintf(inside, sizeof inside, "%.380s: rope_parameters", where);
    RF_TRY(read_parameters(parameters, inside, type, &share, model, error));
  } else if (json_is_object(scaling)) {
    snprintf(inside, sizeof inside, "%.380s: rope_scaling", where);
    for (int i = 0; i < 2; ++i) { /* the older and the newer field may both give theta */
      RF_TRY(rf_json_float_or(scaling, "rope_theta", inside, 0, 1e30, theta, &inner, error));
      if (json_object_get(json, GIVEN[i]) && inner != theta)
        return RF_FAIL(error, RAFTER_FAILED, "keep only one of the two fields",
                       "%s: the field \"rope_theta\" contradicts \"%s\" (%g and %g)", inside, GIVEN[i], inner,
                       theta);
    }
    RF_TRY(read_rope_object(scaling, inside, &model->rope, &share, model, error));
  }
  if (!partial && share != 1)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"partial_rotary_factor\" is not supported for %s (expected 1, got %g)",
                   where, type->type, share);
  model->rope.dim = share < 1 ? (int32_t)(share * (double)model->head_dim) : 0;
  return check_original(json, where, model, error);
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_yarn(json_t *scaling, const config_type *type, const rf_model *model) {
  double root = sqrt((double)model->attn_scale * sqrt((double)model->head_dim));
  json_object_set_new(scaling, "rope_type", json_string("yarn"));
  json_object_set_new(scaling, "factor", rf_json_decimal(model->rope.factor));
  json_object_set_new(scaling, "beta_slow", rf_json_decimal(model->rope.low));
  json_object_set_new(scaling, "beta_fast", rf_json_decimal(model->rope.high));
  json_object_set_new(scaling, "original_max_position_embeddings",
                      json_integer((json_int_t)model->rope.original));
  if (model->kv_rank == 0) { /* with query_pre_attn_scalar, only this field scales the scores */
    json_object_set_new(scaling, "attention_factor",
                        type->query_scalar > 0 ? json_real(1) : rf_json_decimal((float)root));
    return;
  }
  /* Rounds to four decimals, because a float keeps no more decimals. */
  double printed = round((root - 1) / (0.1 * log((double)model->rope.factor)) * 1e4) / 1e4;
  json_object_set_new(scaling, "mscale", json_real(printed));
  json_object_set_new(scaling, "mscale_all_dim", json_real(printed));
}

static void write_table(json_t *scaling, const rf_model *model) {
  json_t *divisors = json_array();
  for (int i = 0; i < model->rope_divisors; ++i)
    json_array_append_new(divisors, rf_json_decimal(model->rope_divisor[i]));
  json_object_set_new(scaling, "rope_type", json_string("longrope"));
  json_object_set(scaling, "short_factor", divisors);
  json_object_set_new(scaling, "long_factor", divisors);
  json_object_set_new(scaling, "attention_factor", json_real(1));
  json_object_set_new(scaling, "original_max_position_embeddings", json_integer(model->max_seq));
}

void rf_config_write_rope(json_t *json, const config_type *type, const rf_model *model) {
  json_object_set_new(json, type->theta_key, rf_json_decimal(model->rope.theta));
  if (model->family == RF_FAMILY_NEOX)
    json_object_set_new(
        json, "rotary_pct",
        rf_json_decimal(model->rope.dim ? (float)model->rope.dim / (float)model->head_dim : 1.0f));
  if (model->local_theta > 0)
    json_object_set_new(json, "rope_local_base_freq", rf_json_decimal(model->local_theta));
  if (model->rope.scaling == RF_ROPE_PLAIN) return;
  json_t *scaling = json_object();
  if (model->rope.scaling == RF_ROPE_TABLE) {
    write_table(scaling, model);
  } else if (model->rope.scaling == RF_ROPE_YARN) {
    write_yarn(scaling, type, model);
  } else {
    static const char *const names[] = {
        [RF_ROPE_LINEAR] = "linear", [RF_ROPE_LLAMA3] = "llama3", [RF_ROPE_DYNAMIC] = "dynamic"};
    json_object_set_new(scaling, "rope_type", json_string(names[model->rope.scaling]));
    json_object_set_new(scaling, "factor", rf_json_decimal(model->rope.factor));
    if (model->rope.scaling == RF_ROPE_LLAMA3) {
      json_object_set_new(scaling, "low_freq_factor", rf_json_decimal(model->rope.low));
      json_object_set_new(scaling, "high_freq_factor", rf_json_decimal(model->rope.high));
      json_object_set_new(scaling, "original_max_position_embeddings",
                          json_integer((json_int_t)model->rope.original));
    }
  }
  json_object_set_new(json, "rope_scaling", scaling);
}
