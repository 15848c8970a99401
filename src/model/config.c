/* config.c - Hugging Face's config.json, both spellings of each field, and our own for shapes that Hugging Face has no class for.
 * One table of fields per model type, walked by the reader and by the writer. */
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/model.h"

enum { CONFIG_MOST = 4 << 20 }; /* bytes; the largest known ones have a few hundred kilobytes of label names */

enum { INT, FLOAT, BOOL };
typedef struct config_field {
  const char *key, *other; /* `other`: an older name of the same field */
  int type;
  bool required;
  double otherwise; /* what Hugging Face takes when it is missing */
  size_t offset;
} config_field;

#define AT(field) offsetof(rf_model, field)

/* n_inner null means 4 * n_embd; head_dim and the key/value heads follow from the heads. Our own fields stand at the end. */
static const config_field GPT2[] = {
    {"n_layer", NULL, INT, true, 0, AT(layers)},
    {"n_embd", NULL, INT, true, 0, AT(width)},
    {"n_head", NULL, INT, true, 0, AT(heads)},
    {"n_inner", NULL, INT, false, 0, AT(ff)},
    {"vocab_size", NULL, INT, true, 0, AT(vocab)},
    {"n_positions", "n_ctx", INT, true, 0, AT(max_seq)},
    {"layer_norm_epsilon", NULL, FLOAT, false, 1e-5, AT(norm_eps)},
    {"resid_pdrop", NULL, FLOAT, false, 0.1, AT(dropout)},
    {"tie_word_embeddings", NULL, BOOL, false, 1, AT(tied)},
};
static const config_field RAFTER_GPT[] = {
    {"head_dim", NULL, INT, true, 0, AT(head_dim)},    {"kv_heads", NULL, INT, true, 0, AT(kv_heads)},    {"bias", NULL, BOOL, true, 1, AT(bias)},
    {"head_bias", NULL, BOOL, true, 0, AT(head_bias)}, {"mlp_first", NULL, BOOL, true, 0, AT(mlp_first)},
};
static const config_field LLAMA[] = {
    {"num_hidden_layers", NULL, INT, true, 0, AT(layers)},
    {"hidden_size", NULL, INT, true, 0, AT(width)},
    {"num_attention_heads", NULL, INT, true, 0, AT(heads)},
    {"num_key_value_heads", NULL, INT, false, 0, AT(kv_heads)},
    {"head_dim", NULL, INT, false, 0, AT(head_dim)},
    {"intermediate_size", NULL, INT, true, 0, AT(ff)},
    {"vocab_size", NULL, INT, true, 0, AT(vocab)},
    {"max_position_embeddings", NULL, INT, false, 2048, AT(max_seq)},
    {"rms_norm_eps", NULL, FLOAT, false, 1e-6, AT(norm_eps)},
    {"rope_theta", NULL, FLOAT, false, 1e4, AT(rope_theta)},
    {"tie_word_embeddings", NULL, BOOL, false, 0, AT(tied)},
};
#define COUNT(table) (int)(sizeof table / sizeof table[0])

/* ---- reading --------------------------------------------------------------------------------------------------- */

static rf_status read_fields(const json_t *json, const char *where, const config_field *field, int count, rf_model *model, rf_error *error) {
  for (; count > 0; --count, ++field) {
    const char *key = field->key;
    json_t *found = json_object_get(json, key);
    if ((!found || json_is_null(found)) && field->other && json_object_get(json, field->other)) key = field->other;
    char *to = (char *)model + field->offset;
    int64_t whole = (int64_t)field->otherwise;
    double real = field->otherwise;
    bool flag = field->otherwise != 0;
    if (field->type == INT) {
      if (field->required) RF_TRY(rf_json_int(json, key, where, 1, INT64_MAX, &whole, error));
      else RF_TRY(rf_json_int_or(json, key, where, 1, INT64_MAX, whole, &whole, error));
      memcpy(to, &whole, sizeof whole);
    } else if (field->type == FLOAT) {
      RF_TRY(rf_json_float_or(json, key, where, 0, 1e30, real, &real, error));
      memcpy(to, &(float){(float)real}, sizeof(float));
    } else {
      if (field->required) RF_TRY(rf_json_bool(json, key, where, &flag, error));
      else RF_TRY(rf_json_bool_or(json, key, where, flag, &flag, error));
      memcpy(to, &flag, sizeof flag);
    }
  }
  return RAFTER_OK;
}

/* A token id, a list of them (the first counts) or none. Ids outside the vocabulary are left over from another tokenizer: none. */
static rf_status read_id(const json_t *json, const char *key, const char *where, int64_t otherwise, int64_t vocab, int32_t *id, rf_error *error) {
  json_t *value = json_object_get(json, key);
  if (json_is_array(value)) value = json_array_get(value, 0);
  if (value && !json_is_null(value) && !json_is_integer(value))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"%s\" has the wrong type (expected a token id)", where, key);
  int64_t number = json_is_integer(value) ? json_integer_value(value) : value ? -1 : otherwise;
  *id = number >= 0 && number < vocab && number <= INT32_MAX ? (int32_t)number : -1;
  return RAFTER_OK;
}

/* A text field that must have one of the values this program computes. */
static rf_status expect_text(const json_t *json, const char *key, const char *where, const char *first, const char *second, rf_error *error) {
  const char *value;
  RF_TRY(rf_json_string_or(json, key, where, first, &value, error));
  if (strcmp(value, first) == 0 || strcmp(value, second) == 0) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"%s\" is not supported (expected \"%s\", got \"%.60s\")", where, key, first, value);
}

static rf_status expect_off(const json_t *json, const char *key, const char *where, rf_error *error) {
  bool on;
  RF_TRY(rf_json_bool_or(json, key, where, false, &on, error));
  return on ? RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"%s\" is not supported (expected false)", where, key) : RAFTER_OK;
}

static rf_status read_gpt2(const json_t *json, const char *where, bool own, rf_model *model, rf_error *error) {
  model->family = RF_FAMILY_GPT;
  model->norm = RF_NORM_LAYERNORM;
  model->mlp = RF_MLP_GELU;
  model->position = RF_POSITION_LEARNED;
  model->bias = true;
  model->init = "gpt2";
  RF_TRY(read_fields(json, where, GPT2, COUNT(GPT2), model, error));
  RF_TRY(expect_text(json, "activation_function", where, "gelu_new", "gelu_pytorch_tanh", error));
  RF_TRY(expect_off(json, "add_cross_attention", where, error));
  RF_TRY(expect_off(json, "scale_attn_by_inverse_layer_idx", where, error));
  bool scaled;
  RF_TRY(rf_json_bool_or(json, "scale_attn_weights", where, true, &scaled, error));
  if (!scaled) return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"scale_attn_weights\" is not supported (expected true)", where);
  RF_TRY(read_id(json, "bos_token_id", where, 50256, model->vocab, &model->bos_id, error));
  RF_TRY(read_id(json, "eos_token_id", where, 50256, model->vocab, &model->eos_id, error));
  if (model->width <= 1 << 24 && model->ff == 0) model->ff = 4 * model->width;
  if (own) {
    const char *init;
    RF_TRY(read_fields(json, where, RAFTER_GPT, COUNT(RAFTER_GPT), model, error));
    RF_TRY(rf_json_string(json, "init", where, &init, error));
    model->init = rf_model_init(init);
    if (!model->init)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"init\" is unknown (expected gpt2, flax or llama, got \"%.40s\")", where, init);
    return RAFTER_OK;
  }
  if (model->width % model->heads != 0)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"n_embd\" is no multiple of \"n_head\" (%lld and %lld)", where,
                   (long long)model->width, (long long)model->heads);
  model->kv_heads = model->heads;
  model->head_dim = model->width / model->heads;
  return RAFTER_OK;
}

static rf_status read_llama(const json_t *json, const char *where, rf_model *model, rf_error *error) {
  model->family = RF_FAMILY_LLAMA;
  model->norm = RF_NORM_RMSNORM;
  model->mlp = RF_MLP_SWIGLU;
  model->position = RF_POSITION_ROPE;
  model->init = "llama";
  RF_TRY(read_fields(json, where, LLAMA, COUNT(LLAMA), model, error));
  RF_TRY(expect_text(json, "hidden_act", where, "silu", "swish", error));
  RF_TRY(expect_off(json, "attention_bias", where, error));
  RF_TRY(expect_off(json, "mlp_bias", where, error));
  RF_TRY(read_id(json, "bos_token_id", where, 1, model->vocab, &model->bos_id, error));
  RF_TRY(read_id(json, "eos_token_id", where, 2, model->vocab, &model->eos_id, error));
  /* Rotary positions: "rope_theta" and "rope_scaling" of old, or one "rope_parameters" that holds both. */
  json_t *parameters = json_object_get(json, "rope_parameters"), *scaling = json_object_get(json, "rope_scaling");
  if (json_is_object(parameters)) {
    double theta;
    char inside[400];
    snprintf(inside, sizeof inside, "%.380s: rope_parameters", where);
    RF_TRY(rf_json_float_or(parameters, "rope_theta", inside, 0, 1e30, model->rope_theta, &theta, error));
    model->rope_theta = (float)theta;
    scaling = parameters;
  }
  if (json_is_object(scaling)) {
    json_t *type = json_object_get(scaling, "rope_type");
    if (!type) type = json_object_get(scaling, "type");
    if (!json_is_string(type)) return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"rope_type\" is missing or no text", where);
    if (strcmp(json_string_value(type), "default") != 0) model->plan_only = "its rotary positions are scaled (rope_scaling of its config.json)";
  } else if (scaling && !json_is_null(scaling)) {
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"rope_scaling\" has the wrong type (expected an object)", where);
  }
  if (model->head_dim == 0) {
    if (model->width % model->heads != 0)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"hidden_size\" is no multiple of \"num_attention_heads\" (%lld and %lld)", where,
                     (long long)model->width, (long long)model->heads);
    model->head_dim = model->width / model->heads;
  }
  if (model->kv_heads == 0) model->kv_heads = model->heads;
  return RAFTER_OK;
}

static rf_status from_json(const json_t *json, const char *where, rf_model *result, rf_error *error) {
  rf_model model;
  memset(&model, 0, sizeof model);
  const char *type;
  RF_TRY(rf_json_string(json, "model_type", where, &type, error));
  if (strcmp(type, "gpt2") == 0) RF_TRY(read_gpt2(json, where, false, &model, error));
  else if (strcmp(type, "rafter_gpt") == 0) RF_TRY(read_gpt2(json, where, true, &model, error));
  else if (strcmp(type, "llama") == 0) RF_TRY(read_llama(json, where, &model, error));
  else
    return RF_FAIL(error, RAFTER_FAILED, "models of type gpt2 and llama can be read",
                   "%s: this version does not know the model type \"%.60s\" (field \"model_type\")", where, type);
  snprintf(model.name, sizeof model.name, "%s", type);
  if (rf_model_check(&model, where, error) != RAFTER_OK) {
    if (error) error->status = RAFTER_FAILED; /* the file is wrong, not the command line */
    return RAFTER_FAILED;
  }
  *result = model;
  return RAFTER_OK;
}

rf_status rf_model_config_parse(const char *text, size_t bytes, const char *where, rf_model *model, rf_error *error) {
  json_t *json;
  if (bytes > CONFIG_MOST)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s is too large (expected at most %d bytes, got %zu)", where, CONFIG_MOST, bytes);
  RF_TRY(rf_json_parse(text, bytes, where, &json, error));
  rf_status status = from_json(json, where, model, error);
  json_decref(json);
  return status;
}

rf_status rf_model_config_read(const char *path, rf_model *model, rf_error *error) {
  json_t *json;
  RF_TRY(rf_json_read(path, CONFIG_MOST, &json, error));
  rf_status status = from_json(json, path, model, error);
  json_decref(json);
  if (status != RAFTER_OK) return status;
  char real[PATH_MAX]; /* the model is called as its folder */
  if (realpath(path, real)) {
    const char *folder = basename(dirname(real));
    if (*folder && *folder != '/') snprintf(model->name, sizeof model->name, "%.95s", folder);
  }
  return RAFTER_OK;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

bool rf_model_is_hugging_face(const rf_model *model) {
  if (model->family == RF_FAMILY_LLAMA) return !model->bias && !model->head_bias && !model->plan_only;
  return model->bias && !model->head_bias && !model->mlp_first && model->kv_heads == model->heads && model->heads * model->head_dim == model->width;
}

static void write_fields(json_t *json, const config_field *field, int count, const rf_model *model) {
  for (; count > 0; --count, ++field) {
    const char *from = (const char *)model + field->offset;
    if (field->type == INT) json_object_set_new(json, field->key, json_integer(*(const int64_t *)from));
    else if (field->type == BOOL) json_object_set_new(json, field->key, json_boolean(*(const bool *)from));
    else {
      char shortest[32]; /* the decimal that was meant: 1e-05, not the float's own 9.99999974e-06 */
      float value = *(const float *)from;
      for (int digits = 5; digits <= 9; ++digits) {
        snprintf(shortest, sizeof shortest, "%.*g", digits, (double)value);
        if (strtof(shortest, NULL) == value) break;
      }
      json_object_set_new(json, field->key, json_real(strtod(shortest, NULL)));
    }
  }
}

static void write_id(json_t *json, const char *key, int32_t id) { json_object_set_new(json, key, id < 0 ? json_null() : json_integer(id)); }

rf_status rf_model_config_write(const rf_model *model, rf_dtype dtype, const char *path, rf_error *error) {
  bool llama = model->family == RF_FAMILY_LLAMA, other_reads = rf_model_is_hugging_face(model);
  if (llama && !other_reads) return RF_FAIL(error, RAFTER_INVALID, NULL, "%s cannot be written as config.json", model->name);
  json_t *json = json_object();
  json_object_set_new(json, "architectures", json_pack("[s]", llama ? "LlamaForCausalLM" : other_reads ? "GPT2LMHeadModel" : "RafterGPT"));
  json_object_set_new(json, "model_type", json_string(llama ? "llama" : other_reads ? "gpt2" : "rafter_gpt"));
  write_fields(json, llama ? LLAMA : GPT2, llama ? COUNT(LLAMA) : COUNT(GPT2), model);
  if (!llama) {
    json_object_set_new(json, "activation_function", json_string("gelu_new"));
    json_object_set_new(json, "attn_pdrop", json_real(0));
    json_object_set_new(json, "embd_pdrop", json_real(0));
  } else {
    json_object_set_new(json, "hidden_act", json_string("silu"));
  }
  if (!other_reads) {
    write_fields(json, RAFTER_GPT, COUNT(RAFTER_GPT), model);
    json_object_set_new(json, "init", json_string(model->init));
  }
  write_id(json, "bos_token_id", model->bos_id);
  write_id(json, "eos_token_id", model->eos_id);
  json_object_set_new(json, "torch_dtype", json_string(dtype == RF_BF16 ? "bfloat16" : dtype == RF_F16 ? "float16" : "float32"));
  rf_status status = rf_json_write(path, json, 2, error);
  json_decref(json);
  return status;
}
