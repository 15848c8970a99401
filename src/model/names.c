/* names.c - tensor names in Hugging Face's files, for each parameter and family. */
#include "model/names.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "formats/gguf_facts.h"

/* BARE: the name never has the family's prefix. BY_HEAD: the file's columns are ordered head by
 * head. First come q, k and v of the first head, then those of the second head, and so on. */
enum { TRANSPOSED = 1, BARE = 2, BY_HEAD = 4 };
/* `part` has up to three tensor names. '#' stands for the block's number, and '*' for the expert's
 * number. `columns` has one letter for each part, which gives the part's width (C = N*H, K = K*H, F
 * = MLP, E = one expert, S = shared experts). */
typedef struct name_row {
  const char *row;
  const char *part[RF_NAME_PARTS];
  const char *columns;
  unsigned form; /* TRANSPOSED and so on */
} name_row;

// clang-format off
/* GPT-2's linear layers have the class Conv1D. Weights of Conv1D are stored as (in, out), like the
 * parameters of rafter. Only an untied head has the class Linear and is stored as (out, in). */
static const name_row GPT2[] = {
    {"embed/token/weight", {"wte.weight"}, NULL, 0},
    {"embed/position/weight", {"wpe.weight"}, NULL, 0},
    {"attn/norm/gain", {"h.#.ln_1.weight"}, NULL, 0},
    {"attn/norm/bias", {"h.#.ln_1.bias"}, NULL, 0},
    {"attn/qkv/weight", {"h.#.attn.c_attn.weight"}, NULL, 0},
    {"attn/qkv/bias", {"h.#.attn.c_attn.bias"}, NULL, 0},
    {"attn/out/weight", {"h.#.attn.c_proj.weight"}, NULL, 0},
    {"attn/out/bias", {"h.#.attn.c_proj.bias"}, NULL, 0},
    {"mlp/norm/gain", {"h.#.ln_2.weight"}, NULL, 0},
    {"mlp/norm/bias", {"h.#.ln_2.bias"}, NULL, 0},
    {"mlp/up/weight", {"h.#.mlp.c_fc.weight"}, NULL, 0},
    {"mlp/up/bias", {"h.#.mlp.c_fc.bias"}, NULL, 0},
    {"mlp/down/weight", {"h.#.mlp.c_proj.weight"}, NULL, 0},
    {"mlp/down/bias", {"h.#.mlp.c_proj.bias"}, NULL, 0},
    {"final/norm/gain", {"ln_f.weight"}, NULL, 0},
    {"final/norm/bias", {"ln_f.bias"}, NULL, 0},
    {"head/weight", {"lm_head.weight"}, NULL, TRANSPOSED | BARE},
};
#define LLAMA_LIKE \
  {"embed/token/weight", {"embed_tokens.weight"}, NULL, 0}, \
  {"attn/norm/gain", {"layers.#.input_layernorm.weight"}, NULL, 0}, \
  {"attn/qkv/weight", {"layers.#.self_attn.q_proj.weight", "layers.#.self_attn.k_proj.weight", \
   "layers.#.self_attn.v_proj.weight"}, "CKK", TRANSPOSED}, \
  {"attn/qkv/bias", {"layers.#.self_attn.q_proj.bias", "layers.#.self_attn.k_proj.bias", \
   "layers.#.self_attn.v_proj.bias"}, "CKK", 0}, \
  {"attn/out/bias", {"layers.#.self_attn.o_proj.bias"}, NULL, 0}, \
  {"mlp/gate_up/bias", {"layers.#.mlp.gate_proj.bias", "layers.#.mlp.up_proj.bias"}, "FF", 0}, \
  {"mlp/down/bias", {"layers.#.mlp.down_proj.bias"}, NULL, 0}, \
  {"attn/q_norm/gain", {"layers.#.self_attn.q_norm.weight"}, NULL, 0}, \
  {"attn/k_norm/gain", {"layers.#.self_attn.k_norm.weight"}, NULL, 0}, \
  {"attn/out/weight", {"layers.#.self_attn.o_proj.weight"}, NULL, TRANSPOSED}, \
  {"mlp/gate_up/weight", {"layers.#.mlp.gate_proj.weight", \
   "layers.#.mlp.up_proj.weight"}, "FF", TRANSPOSED}, \
  {"mlp/down/weight", {"layers.#.mlp.down_proj.weight"}, NULL, TRANSPOSED}, \
  {"final/norm/gain", {"norm.weight"}, NULL, 0}, \
  {"head/weight", {"lm_head.weight"}, NULL, TRANSPOSED | BARE}
/* Families with LLAMA_LIKE names differ only in the name of the norm before the MLP. In families
 * that also have norms after the sublayers, "post_attention_layernorm" is the norm after
 * attention. */
static const name_row LLAMA[] = {
    LLAMA_LIKE,
    {"mlp/norm/gain", {"layers.#.post_attention_layernorm.weight"}, NULL, 0},
};
static const name_row MIXTRAL[] = {
    LLAMA_LIKE,
    {"mlp/norm/gain", {"layers.#.post_attention_layernorm.weight"}, NULL, 0},
    {"mlp/router/weight", {"layers.#.block_sparse_moe.gate.weight"}, NULL, TRANSPOSED},
    {"mlp/experts/gate_up/weight", {"layers.#.block_sparse_moe.experts.*.w1.weight",
     "layers.#.block_sparse_moe.experts.*.w3.weight"}, "FF", TRANSPOSED},
    {"mlp/experts/down/weight", {"layers.#.block_sparse_moe.experts.*.w2.weight"}, NULL, TRANSPOSED},
};
/* Files store the columns of q_proj, kv_a_proj_with_mqa and kv_b_proj in the order of the
 * parameters. Columns without rotation come first, then rotated columns or columns of the value. */
static const name_row DEEPSEEK[] = {
    LLAMA_LIKE,
    {"mlp/norm/gain", {"layers.#.post_attention_layernorm.weight"}, NULL, 0},
    {"attn/q/weight", {"layers.#.self_attn.q_proj.weight"}, NULL, TRANSPOSED},
    {"attn/q_a/weight", {"layers.#.self_attn.q_a_proj.weight"}, NULL, TRANSPOSED},
    {"attn/q_a_norm/gain", {"layers.#.self_attn.q_a_layernorm.weight"}, NULL, 0},
    {"attn/q_b/weight", {"layers.#.self_attn.q_b_proj.weight"}, NULL, TRANSPOSED},
    {"attn/kv_a/weight", {"layers.#.self_attn.kv_a_proj_with_mqa.weight"}, NULL, TRANSPOSED},
    {"attn/kv_a_norm/gain", {"layers.#.self_attn.kv_a_layernorm.weight"}, NULL, 0},
    {"attn/kv_b/weight", {"layers.#.self_attn.kv_b_proj.weight"}, NULL, TRANSPOSED},
    {"mlp/router/weight", {"layers.#.mlp.gate.weight"}, NULL, TRANSPOSED},
    {"mlp/router/choice", {"layers.#.mlp.gate.e_score_correction_bias"}, NULL, 0},
    {"mlp/shared/gate_up/weight", {"layers.#.mlp.shared_experts.gate_proj.weight",
     "layers.#.mlp.shared_experts.up_proj.weight"}, "SS", TRANSPOSED},
    {"mlp/shared/down/weight", {"layers.#.mlp.shared_experts.down_proj.weight"}, NULL, TRANSPOSED},
    {"mlp/experts/gate_up/weight", {"layers.#.mlp.experts.*.gate_proj.weight",
     "layers.#.mlp.experts.*.up_proj.weight"}, "EE", TRANSPOSED},
    {"mlp/experts/down/weight", {"layers.#.mlp.experts.*.down_proj.weight"}, NULL, TRANSPOSED},
};
static const name_row GEMMA2[] = {
    LLAMA_LIKE,
    {"attn/post_norm/gain", {"layers.#.post_attention_layernorm.weight"}, NULL, 0},
    {"mlp/norm/gain", {"layers.#.pre_feedforward_layernorm.weight"}, NULL, 0},
    {"mlp/post_norm/gain", {"layers.#.post_feedforward_layernorm.weight"}, NULL, 0},
};
static const name_row NEOX[] = {
    {"embed/token/weight", {"embed_in.weight"}, NULL, 0},
    {"attn/norm/gain", {"layers.#.input_layernorm.weight"}, NULL, 0},
    {"attn/norm/bias", {"layers.#.input_layernorm.bias"}, NULL, 0},
    {"attn/qkv/weight", {"layers.#.attention.query_key_value.weight"}, NULL, TRANSPOSED | BY_HEAD},
    {"attn/qkv/bias", {"layers.#.attention.query_key_value.bias"}, NULL, BY_HEAD},
    {"attn/out/weight", {"layers.#.attention.dense.weight"}, NULL, TRANSPOSED},
    {"attn/out/bias", {"layers.#.attention.dense.bias"}, NULL, 0},
    {"mlp/norm/gain", {"layers.#.post_attention_layernorm.weight"}, NULL, 0},
    {"mlp/norm/bias", {"layers.#.post_attention_layernorm.bias"}, NULL, 0},
    {"mlp/up/weight", {"layers.#.mlp.dense_h_to_4h.weight"}, NULL, TRANSPOSED},
    {"mlp/up/bias", {"layers.#.mlp.dense_h_to_4h.bias"}, NULL, 0},
    {"mlp/down/weight", {"layers.#.mlp.dense_4h_to_h.weight"}, NULL, TRANSPOSED},
    {"mlp/down/bias", {"layers.#.mlp.dense_4h_to_h.bias"}, NULL, 0},
    {"final/norm/gain", {"final_layer_norm.weight"}, NULL, 0},
    {"final/norm/bias", {"final_layer_norm.bias"}, NULL, 0},
    {"head/weight", {"embed_out.weight"}, NULL, TRANSPOSED | BARE},
};
// clang-format on

static const struct {
  const name_row *row;
  int count;
  const char *prefix;
} NAMES[RF_FAMILIES] = {
#define NAMES_OF(table, prefix) \
  { table, (int)(sizeof table / sizeof *table), prefix }
    [RF_FAMILY_GPT] = NAMES_OF(GPT2, "transformer."),
    [RF_FAMILY_LLAMA] = NAMES_OF(LLAMA, "model."),
    [RF_FAMILY_MISTRAL] = NAMES_OF(LLAMA, "model."),
    [RF_FAMILY_GEMMA] = NAMES_OF(LLAMA, "model."),
    [RF_FAMILY_GEMMA2] = NAMES_OF(GEMMA2, "model."),
    [RF_FAMILY_GEMMA3] = NAMES_OF(GEMMA2, "model."),
    [RF_FAMILY_QWEN2] = NAMES_OF(LLAMA, "model."),
    [RF_FAMILY_QWEN3] = NAMES_OF(LLAMA, "model."),
    [RF_FAMILY_NEOX] = NAMES_OF(NEOX, "gpt_neox."),
    [RF_FAMILY_MIXTRAL] = NAMES_OF(MIXTRAL, "model."),
    [RF_FAMILY_DEEPSEEK2] = NAMES_OF(DEEPSEEK, "model."),
    [RF_FAMILY_DEEPSEEK3] = NAMES_OF(DEEPSEEK, "model."),
#undef NAMES_OF
};

/* Name prefixes in a text-only Gemma 3 (`text`) and in a multimodal Gemma 3 (`pictures`). The last
 * entry is for files of transformers 4.52 and later. */
static const struct {
  const char *text, *pictures;
} INSIDE[] = {{"model.", "language_model.model."},
              {"lm_head.", "language_model.lm_head."},
              {"model.", "model.language_model."}};
enum { INSIDE_COUNT = sizeof INSIDE / sizeof INSIDE[0] };
static const char *const PICTURES[] = {"vision_tower.*", "multi_modal_projector.*", "model.vision_tower.*",
                                       "model.multi_modal_projector.*"};

static const char *const EXTRAS[] = {"*h.*.attn.bias", "*h.*.attn.masked_bias", "*rotary_emb.inv_freq",
                                     "*layers.*.attention.bias", "*attention.masked_bias"};

static int64_t columns_of(const rf_model *model, char letter) {
  if (letter == 'E') return rf_model_expert_ff(model);
  if (letter == 'S') return model->experts_shared * rf_model_expert_ff(model);
  return letter == 'C'   ? model->heads * model->head_dim
         : letter == 'K' ? model->kv_heads * model->head_dim
                         : model->ff;
}

static void fill_in(char *out, size_t size, const char *prefix, const char *pattern, const rf_param *param) {
  int used = snprintf(out, size, "%s", prefix);
  for (; *pattern && used < (int)size - 12; ++pattern) {
    if (*pattern == '#') used += snprintf(out + used, size - (size_t)used, "%d", param->layer);
    else if (*pattern == '*') used += snprintf(out + used, size - (size_t)used, "%d", param->expert);
    else out[used++] = *pattern;
  }
  out[used] = 0;
}

rf_name rf_param_name(const rf_model *model, const rf_param *param, bool prefixed) {
  rf_name name = {.count = 1};
  const name_row *row = NAMES[model->family].row;
  const char *kind = rf_param_row_name(param->row);
  name.columns[0] = param->shape[param->rank - 1];
  for (int i = 0; i < NAMES[model->family].count && rf_model_is_hugging_face(model); ++i) {
    if (strcmp(row[i].row, kind) != 0) continue;
    name.transposed = row[i].form & TRANSPOSED;
    name.head_dim = model->head_dim;
    if (row[i].form & BY_HEAD) name.order[0] = RF_NAME_BY_HEAD;
    for (name.count = 0; name.count < RF_NAME_PARTS && row[i].part[name.count]; ++name.count) {
      const char *prefix = !prefixed || row[i].form & BARE ? "" : NAMES[model->family].prefix;
      fill_in(name.part[name.count], sizeof name.part[0], prefix, row[i].part[name.count], param);
      if (row[i].columns) name.columns[name.count] = columns_of(model, row[i].columns[name.count]);
    }
    return name;
  }
  if (param->experts) snprintf(name.part[0], sizeof name.part[0], "%s.%d", param->name, param->expert);
  else snprintf(name.part[0], sizeof name.part[0], "%s", param->name);
  return name;
}

void rf_param_parts(const rf_model *model, const rf_param *param, int count, int64_t columns[RF_NAME_PARTS]) {
  int64_t all = param->shape[param->rank - 1];
  columns[0] = all;
  if (count == 3) {
    columns[0] = model->heads * model->head_dim;
    columns[1] = columns[2] = model->kv_heads * model->head_dim;
  }
  if (count == 2) columns[0] = columns[1] = all / 2;
}

int64_t rf_name_column(const rf_name *name, int part, int64_t column) {
  if (name->order[part] == RF_NAME_PLAIN) return column;
  if (name->order[part] == RF_NAME_PAIRS) return rf_gguf_permuted_row(column, name->head_dim);
  int64_t size = name->head_dim, third = name->columns[0] / 3, which = column / third,
          head = column % third / size;
  return (head * 3 + which) * size + column % size;
}

const rf_stored *rf_name_find(const rf_tensor_file *file, const char *name) {
  const rf_stored *found = rf_tensor_file_find(file, name);
  for (int i = 0; i < INSIDE_COUNT && !found; ++i) {
    char other[192];
    size_t length = strlen(INSIDE[i].text);
    if (strncmp(name, INSIDE[i].text, length) != 0) continue;
    snprintf(other, sizeof other, "%s%s", INSIDE[i].pictures, name + length);
    found = rf_tensor_file_find(file, other);
  }
  return found;
}

bool rf_name_is_extra(const rf_model *model, const char *name) {
  if (model->tied &&
      (strcmp(name, "lm_head.weight") == 0 || strcmp(name, "language_model.lm_head.weight") == 0))
    return true;
  for (size_t i = 0; i < sizeof PICTURES / sizeof *PICTURES && model->family == RF_FAMILY_GEMMA3; ++i)
    if (fnmatch(PICTURES[i], name, 0) == 0) return true;
  int layer; /* DeepSeek-V3 has extra layers after its last layer, which predict further tokens */
  if (model->family == RF_FAMILY_DEEPSEEK3 && sscanf(name, "model.layers.%d.", &layer) == 1 &&
      layer >= model->layers)
    return true;
  for (size_t i = 0; i < sizeof EXTRAS / sizeof *EXTRAS; ++i)
    if (fnmatch(EXTRAS[i], name, 0) == 0) return true;
  return false;
}
