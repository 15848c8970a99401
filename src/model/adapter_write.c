/* adapter_write.c - writes adapters as PEFT's LoRA files. */
#include "model/adapter_parts.h"

#include "base/json.h"
#include "base/text.h"
#include "formats/safetensors.h"

#include <stdlib.h>
#include <string.h>

/* Returns the prefix of layer names in the family's files, for example "model.". */
static const char *prefix_of(const rf_model *model, const rf_param *base, char prefix[128]) {
  rf_name bare = rf_param_name(model, base, false), whole = rf_param_name(model, base, true);
  snprintf(prefix, 128, "%.*s", (int)(strlen(whole.part[0]) - strlen(bare.part[0])), whole.part[0]);
  return prefix;
}

static const char *last_word(const char *module) {
  const char *dot = strrchr(module, '.');
  return dot ? dot + 1 : module;
}

static bool has_word(const json_t *words, const char *word) {
  for (size_t i = 0; i < json_array_size(words); ++i)
    if (strcmp(json_string_value(json_array_get(words, i)), word) == 0) return true;
  return false;
}

static bool has_site(const rf_model *model, const rf_param *param, int site) {
  int64_t at, columns;
  return rf_lora_site_columns(model, param, site, &at, &columns);
}

/* With `whole`, lists the full names of adapted layers. Otherwise, lists each last word of these
 * names once. */
static json_t *modules_of(const rf_model *model, const rf_params *params, bool whole) {
  json_t *modules = json_array();
  char prefix[128];
  for (int p = params->base; p < params->count; p += 2) {
    const rf_param *param = &params->at[params->at[p].adapts];
    rf_lora_parts parts = rf_lora_parts_of(model, param);
    for (int i = 0; i < parts.count; ++i) {
      rf_lora_module_name module = rf_lora_module(model, param, parts.site[i]);
      if (whole)
        json_array_append_new(modules, json_sprintf("%s%s", prefix_of(model, param, prefix), module.text));
      else if (!has_word(modules, last_word(module.text)))
        json_array_append_new(modules, json_string(last_word(module.text)));
    }
  }
  return modules;
}

/* True if a word is the last one of a name of this parameter, which no adapter has. */
static bool matches(const json_t *words, const rf_model *model, const rf_param *param) {
  const rf_param one = rf_param_slice(param, 0);
  const rf_name name = rf_param_name(model, &one, false);
  for (int i = 0; i < name.count; ++i) {
    char module[sizeof name.part[i]];
    snprintf(module, sizeof module, "%s", name.part[i]);
    char *end = strstr(module, ".weight");
    if (end) *end = 0;
    if (has_word(words, last_word(module))) return true;
  }
  return false;
}

/* True if `words` match only adapted linear layers in each block that has an adapter. A word may
 * match too much: GPT-2 has two linear layers named c_proj in each block. */
static bool words_suffice(const rf_model *model, const rf_params *params, const json_t *words) {
  for (int p = 0; p < params->base; ++p) {
    const rf_param *param = &params->at[p];
    if (param->layer < 0 || !model->lora.sites[param->layer]) continue;
    if (!param->lora) { /* for example the matrices of experts */
      if (matches(words, model, param)) return false;
      continue;
    }
    for (int site = 0; rf_lora_site_name(site); ++site)
      if (!(model->lora.sites[param->layer] >> site & 1) && has_site(model, param, site) &&
          has_word(words, last_word(rf_lora_module(model, param, site).text)))
        return false;
  }
  return true;
}

rf_status rf_adapter_base_check(const char *base, rf_error *error) {
  json_t *text = json_string(base);
  if (!text)
    return RF_FAIL(error, RAFTER_FAILED, "move or link the model to a path in UTF-8",
                   "an adapter cannot name its base, whose path is not UTF-8 (%.300s)", base);
  json_decref(text);
  return RAFTER_OK;
}

static rf_status write_config(const char *folder, const rf_model *model, const rf_params *params,
                              const char *base, rf_error *error) {
  char path[4300];
  const rf_lora *lora = &model->lora;
  RF_TRY(rf_adapter_base_check(base, error));
  json_t *modules = modules_of(model, params, false), *layers = json_array();
  for (int layer = 0; layer < model->layers; ++layer)
    if (lora->sites[layer]) json_array_append_new(layers, json_integer(layer));
  bool everywhere = json_array_size(layers) == (size_t)model->layers;
  if (!words_suffice(model, params, modules)) {
    json_decref(modules);
    modules = modules_of(model, params, true);
    everywhere = true;
  }
  json_t *json = json_pack("{ss ss ss si so so sb ss so sb sb}", "peft_type", "LORA", "task_type",
                           "CAUSAL_LM", "base_model_name_or_path", base, "r", lora->rank, "lora_alpha",
                           rf_json_decimal(lora->alpha), "lora_dropout", rf_json_decimal(lora->dropout),
                           "use_rslora", lora->rank_stabilized, "bias", "none", "target_modules", modules,
                           "fan_in_fan_out", model->family == RF_FAMILY_GPT, "inference_mode", true);
  if (everywhere) json_decref(layers);
  else json_object_set_new(json, "layers_to_transform", layers);
  rf_adapter_path(path, folder, "adapter_config.json");
  rf_status status = rf_json_write(path, json, 2, error);
  json_decref(json);
  return status;
}

static int list_tensors(const rf_model *model, const rf_params *params, rf_pool *pool, rf_stored *list) {
  int count = 0;
  char prefix[128];
  for (int p = params->base; p < params->count; ++p) {
    const rf_param *base = &params->at[params->at[p].adapts];
    rf_lora_parts parts = rf_lora_parts_of(model, base);
    int side = (p - params->base) % 2;
    for (int i = 0; i < parts.count; ++i) {
      int64_t wide = side ? parts.columns[i] : base->shape[0];
      list[count++] = (rf_stored){
          .name = rf_pool_format(pool, "base_model.model.%s%s.lora_%c.weight", prefix_of(model, base, prefix),
                                 rf_lora_module(model, base, parts.site[i]).text, side ? 'B' : 'A'),
          .dtype = RF_F32,
          .rank = 2,
          .shape = {side ? wide : parts.rank, side ? parts.rank : wide},
          .count = wide * parts.rank,
          .bytes = wide * parts.rank * 4};
    }
  }
  return count;
}

static rf_status write_param(rf_tensor_writer *writer, const rf_model *model, const rf_params *params, int p,
                             rf_weights_source source, void *context, rf_error *error) {
  const rf_param *param = &params->at[p], *base = &params->at[param->adapts];
  rf_lora_parts parts = rf_lora_parts_of(model, base);
  rf_name name;
  const rf_name *order = rf_adapter_order(model, base, &name);
  int side = (p - params->base) % 2;
  int64_t rows = param->shape[0], wide = param->shape[1], at = 0;
  float *values = malloc((size_t)param->count * sizeof *values),
        *transposed = malloc((size_t)param->count * sizeof *transposed);
  rf_status status = values && transposed ? source(context, p, 0, param->count, values, error)
                                          : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int i = 0; i < parts.count && status == RAFTER_OK; ++i) {
    int64_t columns = side ? parts.columns[i] : parts.rank;
    for (int64_t c = 0; c < columns; ++c) {
      float *line = transposed + (side && order ? rf_name_column(order, 0, c) : c) * rows;
      for (int64_t r = 0; r < rows; ++r) line[r] = values[r * wide + at + c];
    }
    status = rf_tensor_writer_put(writer, transposed, rows * columns, error);
    at += columns;
  }
  free(values);
  free(transposed);
  return status;
}

rf_status rf_adapter_write(const char *folder, const rf_model *model, const rf_params *params,
                           const char *base, rf_weights_source source, void *context, rf_error *error) {
  rf_status status = RAFTER_OK;
  char path[4300];
  rf_tensor_writer *writer = NULL;
  rf_pool *pool = rf_pool_new();
  rf_stored *list =
      rf_pool_alloc(pool, ((size_t)(params->count - params->base) * RF_LORA_PARTS + 1) * sizeof *list);
  int count = list_tensors(model, params, pool, list);
  rf_adapter_path(path, folder, "adapter_model.safetensors");
  RF_GO(
      rf_tensor_writer_open(path, list, count, (const char *const[]){"format", "pt", NULL}, &writer, error));
  for (int p = params->base; p < params->count; ++p)
    RF_GO(write_param(writer, model, params, p, source, context, error));
  status = rf_tensor_writer_commit(writer, error);
  writer = NULL;
  if (status == RAFTER_OK) status = write_config(folder, model, params, base, error);
done:
  rf_tensor_writer_discard(writer);
  rf_pool_free(pool);
  return status;
}
