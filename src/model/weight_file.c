/* weight_file.c - see weight_file.h. */
#include "model/weight_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/gguf_facts.h"
#include "formats/llama2c.h"

/* Exactly one of the three file handles is open. `facts` is set for a GGUF or llama2.c file. */
struct rf_weight_file {
  rf_tensor_file *safetensors;
  rf_gguf *gguf;
  rf_llama2c *llama2c;
  rf_gguf_facts facts;
};

rf_status rf_weight_file_open(const char *path, rf_weight_file **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_weight_file *file = calloc(1, sizeof *file);
  if (!file) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to read %s", path);
  if (rf_text_ends_with(path, ".gguf")) {
    RF_GO(rf_gguf_open(path, &file->gguf, error));
    RF_GO(rf_gguf_facts_read(file->gguf, &file->facts, error));
  } else if (rf_text_ends_with(path, ".bin")) {
    RF_GO(rf_llama2c_open(path, &file->llama2c, error));
    file->facts = *rf_llama2c_facts(file->llama2c);
  } else {
    RF_GO(rf_tensor_file_open(path, &file->safetensors, error));
  }
  *out = file;
  return RAFTER_OK;
done:
  rf_weight_file_close(file);
  return status;
}

void rf_weight_file_close(rf_weight_file *file) {
  if (!file) return;
  if (file->safetensors) rf_tensor_file_close(file->safetensors);
  rf_gguf_close(file->gguf);
  rf_llama2c_close(file->llama2c);
  free(file);
}

rf_status rf_weight_file_unchanged(const rf_weight_file *file, rf_error *error) {
  return file->gguf      ? rf_gguf_unchanged(file->gguf, error)
         : file->llama2c ? rf_llama2c_unchanged(file->llama2c, error)
                         : rf_tensor_file_unchanged(file->safetensors, error);
}

const char *rf_weight_file_path(const rf_weight_file *file) {
  return file->gguf      ? rf_gguf_path(file->gguf)
         : file->llama2c ? rf_llama2c_path(file->llama2c)
                         : rf_tensor_file_path(file->safetensors);
}

int rf_weight_file_count(const rf_weight_file *file) {
  return file->gguf      ? rf_gguf_count(file->gguf)
         : file->llama2c ? rf_llama2c_count(file->llama2c)
                         : rf_tensor_file_count(file->safetensors);
}

static const rf_quant_tensor *quant_at(const rf_weight_file *file, int index) {
  return file->gguf ? rf_gguf_at(file->gguf, index) : rf_llama2c_at(file->llama2c, index);
}

const char *rf_weight_file_tensor(const rf_weight_file *file, int index) {
  return file->safetensors ? rf_tensor_file_at(file->safetensors, index)->name : quant_at(file, index)->name;
}

bool rf_weight_file_find(const rf_weight_file *file, const char *name, rf_weight_part *part) {
  memset(part, 0, sizeof *part);
  if (file->safetensors) {
    part->stored = rf_name_find(file->safetensors, name);
    if (!part->stored) return false;
    part->index = (int)(part->stored - rf_tensor_file_at(file->safetensors, 0));
    part->rank = part->stored->rank;
    part->shape = part->stored->shape;
    return true;
  }
  part->quant = file->gguf ? rf_gguf_find(file->gguf, name) : rf_llama2c_find(file->llama2c, name);
  if (!part->quant) return false;
  part->index = (int)(part->quant - quant_at(file, 0));
  part->rank = part->quant->rank;
  part->shape = part->quant->shape;
  return true;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* GGUF stores q, k, v, gate and up as separate tensors, and any other parameter as one tensor. */
static rf_name gguf_name(const rf_weight_file *file, const rf_model *model, const rf_param *param) {
  rf_name name = {.count = 1, .head_dim = model->head_dim};
  const rf_gguf_name *row = rf_gguf_name_of(file->facts.arch, rf_param_row_name(param->row));
  rf_param_parts(model, param, 1, name.columns);
  if (!row) {
    snprintf(name.part[0], sizeof name.part[0], "%s", param->name);
    return name;
  }
  name.transposed = row->transposed;
  name.offset = row->norm ? (float)file->facts.norm_offset : 0;
  for (name.count = 0; name.count < RF_GGUF_PARTS && row->part[name.count]; ++name.count) {
    const char *pattern = row->part[name.count], *layer = strstr(pattern, "%d");
    if (layer) {
      int before = (int)(layer - pattern);
      snprintf(name.part[name.count], sizeof name.part[0], "%.*s%d%s", before, pattern, param->layer,
               layer + 2);
    } else {
      snprintf(name.part[name.count], sizeof name.part[0], "%s", pattern);
    }
    if (file->facts.interleaved && row->permuted >> name.count & 1) name.order[name.count] = RF_NAME_PAIRS;
  }
  rf_param_parts(model, param, name.count, name.columns);
  return name;
}

/* The name of the first block's norm shows whether names have the family's prefix. If the file has
 * no such norm, any name with the prefix decides, so that errors name the tensor that is missing. */
static bool is_prefixed(const rf_weight_file *file, const rf_model *model) {
  rf_weight_part part;
  rf_param probe = {.row = -1};
  for (int row = 0; row < rf_param_rows(); ++row)
    if (strcmp(rf_param_row_name(row), "attn/norm/gain") == 0)
      probe = (rf_param){.name = "block.0/attn/norm/gain", .row = row, .rank = 1};
  rf_name first = rf_param_name(model, &probe, true), bare = rf_param_name(model, &probe, false);
  if (rf_weight_file_find(file, first.part[0], &part)) return true;
  if (rf_weight_file_find(file, bare.part[0], &part)) return false;
  size_t prefix = strlen(first.part[0]) - strlen(bare.part[0]);
  for (int i = 0; i < rf_weight_file_count(file); ++i)
    if (strncmp(rf_weight_file_tensor(file, i), first.part[0], prefix) == 0) return true;
  return false;
}

rf_name rf_weight_file_name(const rf_weight_file *file, const rf_model *model, const rf_param *param) {
  if (!file->safetensors) return gguf_name(file, model, param);
  return rf_param_name(model, param, is_prefixed(file, model));
}

bool rf_weight_file_is_extra(const rf_weight_file *file, const rf_model *model, const char *name) {
  if (file->safetensors) return rf_name_is_extra(model, name);
  return rf_gguf_name_is_extra(name) || strcmp(name, "rope_freqs.weight") == 0; /* read with the model */
}

int rf_weight_part_type(const rf_weight_part *part) {
  if (part->quant) return part->quant->type->number;
  rf_dtype dtype = part->stored->dtype;
  return dtype == RF_F32 ? RF_Q_F32 : dtype == RF_BF16 ? RF_Q_BF16 : dtype == RF_F16 ? RF_Q_F16 : RF_Q_F64;
}

const void *rf_weight_part_data(const rf_weight_part *part, int64_t first) {
  first += part->first;
  if (!part->quant) return (const char *)part->stored->data + first * rf_dtype_bytes(part->stored->dtype);
  return (const char *)part->quant->data + first / part->quant->type->values * part->quant->type->bytes;
}

void rf_weight_part_done(const rf_weight_part *part) {
  if (part->stored) rf_map_unneeded(part->stored->data, (size_t)part->stored->bytes);
  else rf_map_unneeded(part->quant->data, (size_t)part->quant->bytes);
}

rf_status rf_weight_part_read(const rf_weight_part *part, int64_t first, int64_t count, float *out,
                              rf_error *error) {
  if (part->stored) return rf_stored_read(part->stored, part->first + first, count, out, error);
  return rf_quant_read(part->quant, part->first + first, count, out, error);
}

/* ---- the model ------------------------------------------------------------------------------- */

static const struct {
  rf_gguf_arch arch;
  rf_family family;
  rf_mlp_kind mlp;
  const char *init;
} ARCHS[] = {
    {RF_GGUF_LLAMA, RF_FAMILY_LLAMA, RF_MLP_SWIGLU, "llama"},
    {RF_GGUF_GEMMA, RF_FAMILY_GEMMA, RF_MLP_GEGLU, "llama"},
    {RF_GGUF_GEMMA2, RF_FAMILY_GEMMA2, RF_MLP_GEGLU, "llama"},
    {RF_GGUF_GEMMA3, RF_FAMILY_GEMMA3, RF_MLP_GEGLU, "llama"},
    {RF_GGUF_QWEN2, RF_FAMILY_QWEN2, RF_MLP_SWIGLU, "llama"},
    {RF_GGUF_QWEN3, RF_FAMILY_QWEN3, RF_MLP_SWIGLU, "llama"},
    {RF_GGUF_GPT2, RF_FAMILY_GPT, RF_MLP_GELU, "gpt2"},
    {RF_GGUF_NEOX, RF_FAMILY_NEOX, RF_MLP_GELU_ERF, "gpt2"},
};

/* "rope_freqs.weight" has a divisor for each frequency. If Llama 3's rule (factor 8 or 32; low 1,
 * high 4, original 8192) gives the same divisors, the scaling is LLAMA3, otherwise TABLE. */
static bool is_llama3(const rf_rope *rope, const float *table, int64_t pairs, rf_rope *scaled) {
  *scaled = *rope;
  scaled->scaling = RF_ROPE_LLAMA3;
  scaled->factor = table[pairs - 1];
  scaled->low = 1;
  scaled->high = 4;
  scaled->original = 8192;
  for (int64_t i = 0; i < pairs; ++i) {
    double divisor = rf_rope_frequency(rope, i) / rf_rope_frequency(scaled, i);
    if (!(divisor > 0.999 * (double)table[i] && divisor < 1.001 * (double)table[i])) return false;
  }
  return true;
}

static rf_status rope_of_table(const rf_weight_file *file, rf_model *model, rf_error *error) {
  rf_weight_part part;
  rf_rope plain = model->rope, llama3;
  int64_t pairs = model->rope.dim / 2;
  double linear = plain.scaling == RF_ROPE_LINEAR ? (double)plain.factor : 1;
  if (!rf_weight_file_find(file, "rope_freqs.weight", &part) || part.rank != 1 || part.shape[0] != pairs ||
      pairs < 1 || pairs > RF_ROPE_TABLE_MAX)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: tensor \"rope_freqs.weight\" has the wrong shape (expected %lld numbers, at most %d)",
                   rf_weight_file_path(file), (long long)pairs, RF_ROPE_TABLE_MAX);
  RF_TRY(rf_weight_part_read(&part, 0, pairs, model->rope_divisor, error));
  plain.scaling = RF_ROPE_PLAIN;
  if (linear == 1 && is_llama3(&plain, model->rope_divisor, pairs, &llama3)) {
    model->rope = llama3;
    return RAFTER_OK;
  }
  model->rope = plain;
  model->rope.scaling = RF_ROPE_TABLE;
  model->rope_divisors = (int32_t)pairs;
  for (int64_t i = 0; i < pairs; ++i) model->rope_divisor[i] *= (float)linear;
  return RAFTER_OK;
}

static rf_status model_from(const rf_weight_file *file, rf_model *model, rf_error *error) {
  const rf_gguf_facts *f = &file->facts;
  const char *where = rf_weight_file_path(file);
  int row = 0;
  while (row < (int)(sizeof ARCHS / sizeof *ARCHS) && ARCHS[row].arch != f->arch) ++row;
  if (row == (int)(sizeof ARCHS / sizeof *ARCHS))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the architecture %s is not supported", where,
                   f->arch_name);
  if (f->experts > 0 && (f->arch != RF_GGUF_LLAMA || f->expert_ff != f->ff))
    return RF_FAIL(
        error, RAFTER_FAILED, NULL,
        "%s: experts of this kind are not supported (architecture %s, expert_feed_forward_length %lld)",
        where, f->arch_name, (long long)f->expert_ff);
  *model = (rf_model){.family = ARCHS[row].family,
                      .layers = f->layers,
                      .width = f->width,
                      .heads = f->heads,
                      .kv_heads = f->kv_heads,
                      .head_dim = f->key_length,
                      .ff = f->ff,
                      .vocab = f->vocab,
                      .max_seq = f->positions,
                      .norm = f->layernorm ? RF_NORM_LAYERNORM : RF_NORM_RMSNORM,
                      .mlp = ARCHS[row].mlp,
                      .experts = f->experts,
                      .experts_used = f->experts_used,
                      .position = f->rope_theta > 0 ? RF_POSITION_ROPE : RF_POSITION_LEARNED,
                      .bias = f->layernorm,
                      .tied = f->tied,
                      .norm_eps = (float)f->norm_eps,
                      .qkv_bias = f->qkv_bias && !f->out_bias && !f->layernorm,
                      .attn_bias = f->out_bias && !f->layernorm,
                      .mlp_bias = f->mlp_bias && !f->layernorm,
                      .qk_norm = f->qk_norm,
                      .post_norms = f->post_norms,
                      .parallel = f->parallel,
                      .norm_offset = (float)f->norm_offset,
                      .embed_scale = f->embed_scale == 1 ? 0 : (float)f->embed_scale,
                      .attn_softcap = (float)f->attn_softcap,
                      .final_softcap = (float)f->final_softcap,
                      .window = f->window,
                      .window_period = (int32_t)f->window_period,
                      .bos_id = -1,
                      .eos_id = -1,
                      .init = ARCHS[row].init};
  if (model->family == RF_FAMILY_LLAMA && f->window > 0) model->family = RF_FAMILY_MISTRAL;
  /* If a llama model has biases only for q, k and v, Hugging Face stores it as Qwen2. */
  if (model->family == RF_FAMILY_LLAMA && model->qkv_bias && !model->mlp_bias)
    model->family = RF_FAMILY_QWEN2;
  if (f->experts > 0) model->family = RF_FAMILY_MIXTRAL;
  if (model->family == RF_FAMILY_GEMMA2 || model->family == RF_FAMILY_GEMMA3)
    model->attn_scale = (float)f->attn_scale;
  if (model->position == RF_POSITION_ROPE) {
    model->rope = (rf_rope){.theta = (float)f->rope_theta, .dim = (int32_t)f->rope_dim};
    if (model->family == RF_FAMILY_GEMMA3) model->local_theta = (float)f->rope_local_theta;
    if (strcmp(f->rope_scaling, "linear") == 0 && f->rope_factor != 1) {
      model->rope.scaling = RF_ROPE_LINEAR;
      model->rope.factor = (float)f->rope_factor;
    } else if (strcmp(f->rope_scaling, "none") != 0 && strcmp(f->rope_scaling, "linear") != 0 &&
               *f->rope_scaling) {
      model->plan_only =
          "this version does not compute the scaling of its rotary positions (rope.scaling.type of the file)";
    }
    if (f->rope_freqs) RF_TRY(rope_of_table(file, model, error));
    if (model->rope.dim == model->head_dim) model->rope.dim = 0;
  }
  return rf_model_check(model, where, error);
}

/* Takes BOS and EOS from the tokenizer if their ids are in the vocabulary. */
static rf_status special_from(const rf_weight_file *file, rf_model *model, rf_error *error) {
  if (!file->gguf) return model->bos_id = 1, model->eos_id = 2, RAFTER_OK;
  rf_gguf_vocab vocab;
  RF_TRY(rf_gguf_vocab_special(file->gguf, &vocab, error));
  model->bos_id = vocab.bos < model->vocab ? vocab.bos : -1;
  model->eos_id = vocab.eos < model->vocab ? vocab.eos : -1;
  return RAFTER_OK;
}

rf_status rf_model_file_read(const char *path, rf_model *model, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_weight_file *file = NULL;
  RF_TRY(rf_weight_file_open(path, &file, error));
  RF_GO(model_from(file, model, error));
  RF_GO(special_from(file, model, error));
  const char *slash = strrchr(path, '/');
  rf_json_name(*file->facts.name ? file->facts.name
               : slash           ? slash + 1
                                 : path,
               model->name, sizeof model->name);
done:
  if (status != RAFTER_OK && error)
    error->status = status = RAFTER_FAILED; /* report a wrong file, not a wrong command line */
  rf_weight_file_close(file);
  return status;
}
