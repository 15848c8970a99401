/* adapter.c - reads PEFT's LoRA files; adapter_write.c writes them. In a file, each adapted layer
 * has one A (r, K) and one B (N, r). In memory, all A of a fused weight are one parameter, and all
 * B are one parameter. */
#define _GNU_SOURCE
#include "model/adapter_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/json.h"
#include "base/text.h"
#include "model/name_pattern.h"
#include "model/run_folder.h"
#include "formats/safetensors.h"

enum { CONFIG_MAX = 1 << 20, REGULAR_MAX = 1024, KEY_MAX = 1000 };

bool rf_adapter_is(const char *folder) {
  char path[4300];
  rf_adapter_path(path, folder, "adapter_config.json");
  return access(path, F_OK) == 0;
}

/* ---- adapter_config.json --------------------------------------------------------------------- */

/* One key of "alpha_pattern", which gives some layers their own alpha. */
typedef struct own_alpha {
  const char *key;
  rf_name_pattern *pattern; /* the key's regular expression; NULL: the key is the end of a layer's name */
  double alpha;
} own_alpha;

typedef struct settings {
  json_t *json;
  own_alpha *own; /* in file order */
  size_t own_count;
  char path[4300];
  int64_t rank;
  double alpha, dropout;
  bool rank_stabilized;
} settings;

/* Fields of adapter_config.json that rafter does not support. Such a field is accepted if its value
 * is null, false, 0, "none" or "". */
// clang-format off
static const char *const UNSUPPORTED[] = {
    "use_dora", "lora_bias", "bias", "modules_to_save", "layer_replication", "target_parameters",
    "use_qalora", "use_bdlora", "alora_invocation_tokens", "trainable_token_indices", "megatron_config",
    "arrow_config", "kasa_config", "monteclora_config", "velora_config", "lora_ga_config",
    "ensure_weight_tying",
};
// clang-format on

static bool is_unset(const json_t *value) {
  if (!value || json_is_null(value) || json_is_false(value)) return true;
  if (json_is_string(value))
    return !*json_string_value(value) || strcmp(json_string_value(value), "none") == 0;
  if (json_is_array(value)) return json_array_size(value) == 0;
  if (json_is_object(value)) return json_object_size(value) == 0;
  return json_is_number(value) && json_number_value(value) == 0;
}

/* Accepts initialisations of A and B that leave the base weights unchanged. Other initialisations
 * (PiSSA, OLoRA, CorDA, LoftQ, ...) subtract the initial product A B from the base weights. */
static rf_status check_start(const settings *s, rf_error *error) {
  static const char *const KEEP[] = {"gaussian", "eva", "orthogonal"};
  const json_t *value = json_object_get(s->json, "init_lora_weights");
  const char *text = json_string_value(value);
  bool known = !value || json_is_null(value) || json_is_boolean(value);
  for (size_t i = 0; text && i < sizeof KEEP / sizeof *KEEP; ++i) known |= strcasecmp(text, KEEP[i]) == 0;
  if (known) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED,
                 "save the adapter as plain LoRA with the tool that made it "
                 "(path_initial_model_for_weight_conversion), or merge it with this tool",
                 "%s: the field \"init_lora_weights\" is not supported (expected true, false, gaussian, eva "
                 "or orthogonal, got %.40s): this initialization changes the base model",
                 s->path, text ? text : "not a string");
}

static const char REGULAR[] = "^$*+?()[]{}|\\";

/* "alpha_pattern" maps ends of layer names, or regular expressions, to numbers. PEFT matches
 * (.*\.)?KEY$. */
static rf_status read_patterns(settings *s, rf_error *error) {
  const char *key;
  json_t *value, *patterns = json_object_get(s->json, "alpha_pattern");
  int regular = 0;
  if (!patterns || json_is_null(patterns)) return RAFTER_OK;
  if (!json_is_object(patterns))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"alpha_pattern\" is not an object (expected names and numbers)", s->path);
  s->own = calloc(json_object_size(patterns) + 1, sizeof *s->own);
  if (!s->own) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  json_object_foreach (patterns, key, value) {
    own_alpha *own = &s->own[s->own_count++];
    own->key = key;
    RF_TRY(rf_json_float(patterns, key, s->path, 1e-6, 1e6, &own->alpha, error));
    if (!strpbrk(key, REGULAR)) continue;
    if (++regular > REGULAR_MAX)
      return RF_FAIL(error, RAFTER_FAILED, "use the plain ends of layer names as keys",
                     "%s: \"alpha_pattern\" has more than %d regular expressions", s->path, (int)REGULAR_MAX);
    char text[KEY_MAX + 16];
    bool fits = snprintf(text, sizeof text, "(.*\\.)?(%s)", key) < (int)sizeof text;
    own->pattern = fits && strlen(key) <= KEY_MAX ? rf_name_pattern_new(text) : NULL;
    if (!own->pattern)
      return RF_FAIL(
          error, RAFTER_FAILED, NULL,
          "%s: a key of \"alpha_pattern\" is not a regular expression of at most %d bytes (got '%.60s')",
          s->path, (int)KEY_MAX, key);
  }
  return RAFTER_OK;
}

static void free_settings(settings *s) {
  for (size_t i = 0; i < s->own_count; ++i) rf_name_pattern_free(s->own[i].pattern);
  free(s->own);
  json_decref(s->json);
}

static rf_status read_settings(const char *folder, settings *s, rf_error *error) {
  const char *type;
  memset(s, 0, sizeof *s);
  rf_adapter_path(s->path, folder, "adapter_config.json");
  RF_TRY(rf_json_read(s->path, CONFIG_MAX, &s->json, error));
  RF_TRY(rf_json_string_or(s->json, "peft_type", s->path, "LORA", &type, error));
  if (strcmp(type, "LORA") != 0)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"peft_type\" is not supported (expected LORA, got %.40s)", s->path, type);
  for (size_t i = 0; i < sizeof UNSUPPORTED / sizeof *UNSUPPORTED; ++i)
    if (!is_unset(json_object_get(s->json, UNSUPPORTED[i])))
      return RF_FAIL(
          error, RAFTER_FAILED, "merge the adapter with the tool that made it, and load the merged model",
          "%s: the field \"%s\" is not supported (expected null, false or none)", s->path, UNSUPPORTED[i]);
  RF_TRY(rf_json_int(s->json, "r", s->path, 1, 1024, &s->rank, error));
  RF_TRY(rf_json_float(s->json, "lora_alpha", s->path, 1e-6, 1e6, &s->alpha, error));
  RF_TRY(rf_json_float_or(s->json, "lora_dropout", s->path, 0, 0.999, 0, &s->dropout, error));
  RF_TRY(check_start(s, error));
  RF_TRY(read_patterns(s, error));
  return rf_json_bool_or(s->json, "use_rslora", s->path, false, &s->rank_stabilized, error);
}

rf_status rf_adapter_base(const char *folder, char base[4096], rf_error *error) {
  settings s;
  const char *text = "";
  rf_status status = read_settings(folder, &s, error);
  if (status == RAFTER_OK)
    status = rf_json_string_or(s.json, "base_model_name_or_path", s.path, "", &text, error);
  if (status == RAFTER_OK && !*text)
    status = RF_FAIL(error, RAFTER_FAILED, "give the base as MODEL, and the adapter with --adapter",
                     "%s does not name its base model", s.path);
  /* A path that does not exist in the adapter's folder is relative to the working directory. */
  if (*text == '/' || snprintf(base, 4096, "%s/%s", folder, text) >= 4096 || access(base, F_OK))
    snprintf(base, 4096, "%s", text);
  free_settings(&s);
  return status;
}

/* True if `module` ends with `tail` at a word boundary ('.' or '/'). */
static bool ends_with(const char *module, size_t length, const char *tail) {
  size_t size = strlen(tail);
  return size && size <= length && memcmp(module + length - size, tail, size) == 0 &&
         (size == length || module[length - size - 1] == '.' || module[length - size - 1] == '/');
}

static double scale_of(const settings *s, double alpha, double rank) {
  return alpha / (s->rank_stabilized ? __builtin_sqrt(rank) : rank);
}

/* ---- the tensors ----------------------------------------------------------------------------- */

typedef struct pair {
  const rf_stored *side[2]; /* A (r, K), B (N, r) */
} pair;

/* Returns the end of the layer's name in "X.lora_A.weight" or "X.lora_A.NAME.weight". For other
 * names, returns NULL. */
static const char *module_end(const char *name, int side) {
  const char *at = strstr(name, side ? ".lora_B." : ".lora_A.");
  return at && rf_text_ends_with(at, ".weight") ? at : NULL;
}

/* Returns 1 if the key names the layer of tensor `a`, 0 if it does not, and -1 if matching takes
 * too long. */
static int is_of_layer(const own_alpha *own, const rf_stored *a) {
  const char *end = module_end(a->name, 0), *whole = "base_model.model.", *name = a->name;
  if (strncmp(name, whole, strlen(whole)) == 0) name += strlen(whole);
  if (!end || end <= name) return 0;
  size_t length = (size_t)(end - name);
  return own->pattern ? rf_name_pattern_matches(own->pattern, name, length)
                      : ends_with(name, length, own->key);
}

/* Returns the alpha of a layer from the first pattern that matches the layer's name. */
static double alpha_of(const settings *s, const rf_stored *a) {
  for (size_t i = 0; i < s->own_count; ++i)
    if (is_of_layer(&s->own[i], a) > 0) return s->own[i].alpha;
  return s->alpha;
}

static rf_status check_patterns_met(const settings *s, const rf_tensor_file *file, rf_error *error) {
  for (size_t k = 0; k < s->own_count; ++k) {
    const own_alpha *own = &s->own[k];
    bool met = false;
    /* The key is matched with every tensor, so that slow matching is always reported. */
    for (int i = 0; i < rf_tensor_file_count(file); ++i) {
      int found = is_of_layer(own, rf_tensor_file_at(file, i));
      if (found < 0)
        return RF_FAIL(error, RAFTER_FAILED, NULL,
                       "%s: a key of \"alpha_pattern\" takes too long to match ('%.100s')", s->path,
                       own->key);
      met = met || found;
    }
    if (!met)
      return RF_FAIL(error, RAFTER_FAILED,
                     "name a layer as in the base, for example model.layers.0.self_attn.q_proj, or by the "
                     "end of that name",
                     "%s: \"alpha_pattern\" names a layer that has no adapter ('%.100s')", s->path, own->key);
  }
  return RAFTER_OK;
}

/* Finds the tensors A and B of one layer, with any prefix of their names. */
static rf_status find_pair(const rf_tensor_file *file, const char *module, pair *found, bool *seen,
                           rf_error *error) {
  *found = (pair){{NULL, NULL}};
  for (int i = 0; i < rf_tensor_file_count(file); ++i) {
    const rf_stored *tensor = rf_tensor_file_at(file, i);
    for (int side = 0; side < 2; ++side) {
      const char *end = module_end(tensor->name, side);
      if (!end || !ends_with(tensor->name, (size_t)(end - tensor->name), module) ||
          strstr(tensor->name, "vision"))
        continue;
      if (found->side[side])
        return RF_FAIL(error, RAFTER_FAILED, "keep only one adapter in each file",
                       "%s: two tensors belong to one layer (\"%.100s\" and \"%.100s\")",
                       rf_tensor_file_path(file), found->side[side]->name, tensor->name);
      found->side[side] = tensor;
      if (seen) seen[i] = true;
    }
  }
  if (!found->side[0] == !found->side[1]) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, NULL,
                 "%s: an adapter is incomplete (\"%s\": expected lora_A and lora_B, got only lora_%c)",
                 rf_tensor_file_path(file), module, found->side[0] ? 'A' : 'B');
}

static rf_status check_pair(const rf_tensor_file *file, const pair *p, const rf_param *param, int64_t columns,
                            int64_t most, rf_error *error) {
  for (int side = 0; side < 2; ++side) {
    const rf_stored *t = p->side[side];
    int64_t wide = side ? columns : param->shape[0],
            expected[2] = {side ? wide : t->shape[0], side ? t->shape[1] : wide};
    int64_t rank = t->rank == 2 ? t->shape[side] : 0;
    if (t->rank != 2 || rank < 1 || rank > most || t->shape[0] != expected[0] || t->shape[1] != expected[1] ||
        rank != p->side[0]->shape[0])
      return RF_FAIL(error, RAFTER_FAILED, "the adapter may belong to another model",
                     "%s: tensor \"%.120s\" has the wrong shape (expected %s of width %lld and rank 1 to "
                     "%lld, got %d axes, %lld x %lld)",
                     rf_tensor_file_path(file), t->name, side ? "(width, rank)" : "(rank, width)",
                     (long long)wide, (long long)most, t->rank, (long long)t->shape[0],
                     t->rank > 1 ? (long long)t->shape[1] : 1);
    RF_TRY(rf_stored_read(t, 0, 0, NULL, error)); /* a read of 0 values only checks the type */
  }
  return RAFTER_OK;
}

static rf_status open_file(const char *folder, rf_tensor_file **file, rf_error *error) {
  char path[4300];
  rf_adapter_path(path, folder, "adapter_model.safetensors");
  if (access(path, F_OK)) {
    rf_adapter_path(path, folder, "adapter_model.bin");
    if (!access(path, F_OK))
      return RF_FAIL(error, RAFTER_FAILED, "save it again with safe_serialization=True",
                     "%s is a pickle file, which is not supported (expected adapter_model.safetensors)",
                     path);
    rf_adapter_path(path, folder, "adapter_model.safetensors");
  }
  return rf_tensor_file_open(path, file, error);
}

/* True if a tensor belongs to a token embedding or a head, in the names of all families. */
static bool is_of_vocabulary(const char *name) {
  static const char *const WORDS[] = {"embed_tokens.", "lm_head.", "wte.", "embed_in.", "embed_out."};
  for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; ++i)
    if (strstr(name, WORDS[i])) return true;
  return false;
}

/* Finds which sites the file adapts, and the largest rank of an adapter. A site is a range of
 * columns of a weight. Every tensor of the file must belong to one site. */
static rf_status find_sites(const rf_tensor_file *file, const rf_model *model, const rf_params *params,
                            rf_lora *lora, bool *seen, rf_error *error) {
  int64_t rank = 0;
  for (int i = 0; i < rf_tensor_file_count(file); ++i) {
    const char *name = rf_tensor_file_at(file, i)->name;
    if (is_of_vocabulary(name))
      return RF_FAIL(error, RAFTER_FAILED,
                     "merge the adapter with the tool that made it, and load the merged model",
                     "%s: adapters of the embedding and of the head are not supported (tensor \"%.120s\")",
                     rf_tensor_file_path(file), name);
  }
  for (int p = 0; p < params->base; ++p) {
    const rf_param *param = &params->at[p];
    int64_t at, columns, end = 0;
    for (int site = 0; param->lora && param->layer >= 0 && rf_lora_site_name(site); ++site) {
      pair found;
      if (!rf_lora_site_columns(model, param, site, &at, &columns)) continue;
      RF_TRY(find_pair(file, rf_lora_module(model, param, site).text, &found, seen, error));
      if (!found.side[0]) continue;
      RF_TRY(check_pair(file, &found, param, columns, 1024, error));
      if (at < end)
        return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: two adapters for the same columns (\"%.120s\")",
                       rf_tensor_file_path(file), found.side[0]->name);
      end = at + columns;
      lora->sites[param->layer] |= (uint16_t)(1u << site);
      if (found.side[0]->shape[0] > rank) rank = found.side[0]->shape[0];
    }
  }
  for (int i = 0; i < rf_tensor_file_count(file); ++i)
    if (!seen[i])
      return RF_FAIL(error, RAFTER_FAILED, "the adapter may belong to another model",
                     "%s: tensor \"%.120s\" does not belong to the model %s", rf_tensor_file_path(file),
                     rf_tensor_file_at(file, i)->name, model->name);
  if (!rank) return RF_FAIL(error, RAFTER_FAILED, NULL, "%s has no adapter", rf_tensor_file_path(file));
  lora->rank = (int32_t)rank;
  return RAFTER_OK;
}

rf_status rf_adapter_open(const char *path, const rf_model *model, rf_lora *lora, rf_error *error) {
  char folder[4096];
  RF_TRY(rf_run_weights(path, folder, error));
  rf_status status = RAFTER_OK;
  settings s = {0};
  rf_tensor_file *file = NULL;
  bool *seen = NULL;
  rf_pool *pool = rf_pool_new();
  rf_model bare = *model;
  bare.lora = (rf_lora){0};
  memset(lora, 0, sizeof *lora);
  if (strlen(folder) >= sizeof lora->folder) {
    status = RF_FAIL(error, RAFTER_INVALID, NULL, "the adapter's path is too long (expected below %zu bytes)",
                     sizeof lora->folder);
    goto done;
  }
  if (model->layers > RF_LORA_LAYERS) {
    status = RF_FAIL(error, RAFTER_INVALID, NULL,
                     "too many layers for adapters (%s: expected at most %d, got %lld)", model->name,
                     RF_LORA_LAYERS, (long long)model->layers);
    goto done;
  }
  rf_params params = rf_model_params(&bare, pool);
  RF_GO(read_settings(folder, &s, error));
  RF_GO(open_file(folder, &file, error));
  seen = calloc((size_t)rf_tensor_file_count(file) + 1, sizeof *seen);
  if (!seen) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  RF_GO(find_sites(file, &bare, &params, lora, seen, error));
  RF_GO(check_patterns_met(&s, file, error));
  /* The model's scale follows from the file's default alpha and rank. If a layer has another scale,
   * its B is multiplied by (the layer's scale / the model's scale). */
  lora->rank_stabilized = s.rank_stabilized;
  lora->alpha = (float)(scale_of(&s, s.alpha, (double)s.rank) *
                        (s.rank_stabilized ? __builtin_sqrt((double)lora->rank) : (double)lora->rank));
  lora->dropout = (float)s.dropout;
  snprintf(lora->folder, sizeof lora->folder, "%s", folder);
done:
  free(seen);
  rf_tensor_file_close(file);
  free_settings(&s);
  rf_pool_free(pool);
  return status;
}

/* A tensor (an A or a B) of the file, and the columns of a parameter that receive this tensor. */
typedef struct part {
  const rf_stored *tensor;
  const rf_name *order; /* the file's column order; NULL: the parameter's own order */
  int64_t at, columns;
  float factor;
} part;

/* Transposes a tensor of the file and copies it to columns of `values`. If the tensor's rank is
 * below the parameter's rank, the remaining values stay 0. */
static rf_status read_part(const part *p, const rf_param *param, float *values, rf_error *error) {
  int64_t wide = param->shape[1], rows = p->tensor->shape[1];
  float *line = malloc((size_t)rows * sizeof *line);
  if (!line) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  rf_status status = RAFTER_OK;
  for (int64_t c = 0; c < p->columns && status == RAFTER_OK; ++c) {
    int64_t stored = p->order ? rf_name_column(p->order, 0, c) : c;
    status = rf_stored_read(p->tensor, stored * rows, rows, line, error);
    for (int64_t r = 0; r < rows && status == RAFTER_OK; ++r)
      values[r * wide + p->at + c] = line[r] * p->factor;
  }
  free(line);
  return status;
}

const rf_name *rf_adapter_order(const rf_model *model, const rf_param *param, rf_name *name) {
  *name = rf_param_name(model, param, false);
  return name->order[0] == RF_NAME_BY_HEAD ? name : NULL;
}

static rf_status read_param(const rf_tensor_file *file, const settings *s, const rf_model *model,
                            const rf_params *params, int p, float *values, rf_error *error) {
  const rf_param *param = &params->at[p], *base = &params->at[param->adapts];
  int side = (p - params->base) % 2;
  rf_lora_parts parts = rf_lora_parts_of(model, base);
  rf_name name;
  const rf_name *order = rf_adapter_order(model, base, &name);
  int64_t joined = 0;
  memset(values, 0, (size_t)param->count * sizeof *values);
  for (int i = 0; i < parts.count; joined += parts.columns[i++]) {
    rf_lora_module_name module = rf_lora_module(model, base, parts.site[i]);
    pair found;
    RF_TRY(find_pair(file, module.text, &found, NULL, error));
    if (!found.side[0])
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: no adapter for \"%s\"", rf_tensor_file_path(file),
                     module.text);
    RF_TRY(check_pair(file, &found, base, parts.columns[i], parts.rank, error));
    double alpha = side ? alpha_of(s, found.side[0]) : s->alpha; /* only B carries a different alpha */
    double factor = scale_of(s, alpha, (double)found.side[0]->shape[0]) / (double)rf_lora_scale(&model->lora);
    if (__builtin_fabs(factor - 1) < 1e-6) factor = 1; /* equal up to rounding */
    part one = side ? (part){found.side[1], order, joined, parts.columns[i], (float)factor}
                    : (part){found.side[0], NULL, (int64_t)i * parts.rank, found.side[0]->shape[0], 1};
    RF_TRY(read_part(&one, param, values, error));
  }
  return RAFTER_OK;
}

rf_status rf_adapter_read(const char *folder, const rf_model *model, const rf_params *params,
                          rf_weights_visit visit, void *context, rf_error *error) {
  rf_status status = RAFTER_OK;
  settings s = {0};
  rf_tensor_file *file = NULL;
  float *values = NULL;
  RF_GO(read_settings(folder, &s, error));
  RF_GO(rf_run_check_weights(folder, error));
  RF_GO(open_file(folder, &file, error));
  for (int p = params->base; p < params->count; ++p) {
    float *grown = realloc(values, (size_t)params->at[p].count * sizeof *values);
    if (!grown) {
      status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
      goto done;
    }
    values = grown;
    RF_GO(read_param(file, &s, model, params, p, values, error));
    RF_GO(visit(context, p, 0, params->at[p].count, values, error));
  }
  status = rf_tensor_file_unchanged(file, error);
done:
  free(values);
  rf_tensor_file_close(file);
  free_settings(&s);
  return status;
}
