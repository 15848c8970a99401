/* names.c - one row per parameter and family: the names of its parts, which axis they have, how they are turned. */
#include "model/names.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

/* `part`: up to three names, '#' standing for the block. `columns`: letters of model.h for parts that share an axis (C = N*H, K = K*H, F). */
typedef struct name_row {
  const char *row;
  const char *part[RF_NAME_PARTS];
  const char *columns;
  bool turned, bare; /* bare: never with the family's prefix */
} name_row;

/* GPT-2's linear layers are Conv1D: (in, out), as ours. Only the untied head is a Linear. */
static const name_row GPT2[] = {
    {"embed/token/weight", {"wte.weight"}, NULL, false, false},
    {"embed/position/weight", {"wpe.weight"}, NULL, false, false},
    {"attn/norm/gain", {"h.#.ln_1.weight"}, NULL, false, false},
    {"attn/norm/bias", {"h.#.ln_1.bias"}, NULL, false, false},
    {"attn/qkv/weight", {"h.#.attn.c_attn.weight"}, NULL, false, false},
    {"attn/qkv/bias", {"h.#.attn.c_attn.bias"}, NULL, false, false},
    {"attn/out/weight", {"h.#.attn.c_proj.weight"}, NULL, false, false},
    {"attn/out/bias", {"h.#.attn.c_proj.bias"}, NULL, false, false},
    {"mlp/norm/gain", {"h.#.ln_2.weight"}, NULL, false, false},
    {"mlp/norm/bias", {"h.#.ln_2.bias"}, NULL, false, false},
    {"mlp/up/weight", {"h.#.mlp.c_fc.weight"}, NULL, false, false},
    {"mlp/up/bias", {"h.#.mlp.c_fc.bias"}, NULL, false, false},
    {"mlp/down/weight", {"h.#.mlp.c_proj.weight"}, NULL, false, false},
    {"mlp/down/bias", {"h.#.mlp.c_proj.bias"}, NULL, false, false},
    {"final/norm/gain", {"ln_f.weight"}, NULL, false, false},
    {"final/norm/bias", {"ln_f.bias"}, NULL, false, false},
    {"head/weight", {"lm_head.weight"}, NULL, true, true},
};
static const name_row LLAMA[] = {
    {"embed/token/weight", {"embed_tokens.weight"}, NULL, false, false},
    {"attn/norm/gain", {"layers.#.input_layernorm.weight"}, NULL, false, false},
    {"attn/qkv/weight",
     {"layers.#.self_attn.q_proj.weight", "layers.#.self_attn.k_proj.weight", "layers.#.self_attn.v_proj.weight"},
     "CKK",
     true,
     false},
    {"attn/out/weight", {"layers.#.self_attn.o_proj.weight"}, NULL, true, false},
    {"mlp/norm/gain", {"layers.#.post_attention_layernorm.weight"}, NULL, false, false},
    {"mlp/gate_up/weight", {"layers.#.mlp.gate_proj.weight", "layers.#.mlp.up_proj.weight"}, "FF", true, false},
    {"mlp/down/weight", {"layers.#.mlp.down_proj.weight"}, NULL, true, false},
    {"final/norm/gain", {"norm.weight"}, NULL, false, false},
    {"head/weight", {"lm_head.weight"}, NULL, true, true},
};

static const char *const EXTRAS[] = {"*h.*.attn.bias", "*h.*.attn.masked_bias", "*rotary_emb.inv_freq"};

static int64_t columns_of(const rf_model *model, char letter) {
  return letter == 'C' ? model->heads * model->head_dim : letter == 'K' ? model->kv_heads * model->head_dim : model->ff;
}

static void fill_in(char *out, size_t size, const char *prefix, const char *pattern, int layer) {
  const char *hash = strchr(pattern, '#');
  if (hash) snprintf(out, size, "%s%.*s%d%s", prefix, (int)(hash - pattern), pattern, layer, hash + 1);
  else snprintf(out, size, "%s%s", prefix, pattern);
}

rf_name rf_param_name(const rf_model *model, const rf_param *param, bool prefixed) {
  rf_name name = {.count = 1};
  bool llama = model->family == RF_FAMILY_LLAMA;
  const name_row *row = llama ? LLAMA : GPT2;
  int rows = llama ? (int)(sizeof LLAMA / sizeof *LLAMA) : (int)(sizeof GPT2 / sizeof *GPT2);
  const char *kind = rf_param_row_name(param->row);
  name.columns[0] = param->shape[param->rank - 1];
  if (rf_model_is_hugging_face(model) || llama)
    for (int i = 0; i < rows; ++i) {
      if (strcmp(row[i].row, kind) != 0) continue;
      name.turned = row[i].turned;
      for (name.count = 0; name.count < RF_NAME_PARTS && row[i].part[name.count]; ++name.count) {
        const char *prefix = !prefixed || row[i].bare ? "" : llama ? "model." : "transformer.";
        fill_in(name.part[name.count], sizeof name.part[0], prefix, row[i].part[name.count], param->layer);
        if (row[i].columns) name.columns[name.count] = columns_of(model, row[i].columns[name.count]);
      }
      return name;
    }
  snprintf(name.part[0], sizeof name.part[0], "%s", param->name);
  return name;
}

bool rf_name_is_extra(const rf_model *model, const char *name) {
  if (model->tied && strcmp(name, "lm_head.weight") == 0) return true;
  for (size_t i = 0; i < sizeof EXTRAS / sizeof *EXTRAS; ++i)
    if (fnmatch(EXTRAS[i], name, 0) == 0) return true;
  return false;
}
