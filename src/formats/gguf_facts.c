/* gguf_facts.c - reads the architecture of a model from the metadata of a file. */
#include "formats/gguf_facts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* Properties that files do not have. Source: llama.cpp, load_hparams, convert_hf_to_gguf.py. */
typedef struct arch_row {
  const char *name;
  rf_gguf_arch arch;
  bool layernorm, interleaved, qkv_bias, qk_norm, post_norms, embed_scale;
  double norm_offset, local_theta;    /* `local_theta` 0: all layers have the same theta */
  int64_t window, window_period;      /* used if the file has no window */
  double attn_softcap, final_softcap; /* used if the file has no softcap */
  /* If a model has this number of layers, its scores are scaled by 1/sqrt(D/N), not 1/sqrt(H). */
  int64_t wide_layers;
} arch_row;

// clang-format off
static const arch_row ARCHS[] = {
  {.name = "llama",   .arch = RF_GGUF_LLAMA,  .interleaved = true},
  {.name = "gemma",   .arch = RF_GGUF_GEMMA,  .norm_offset = 1, .embed_scale = true},
  {.name = "gemma2",  .arch = RF_GGUF_GEMMA2, .norm_offset = 1, .embed_scale = true, .post_norms = true, .window = 4096, .window_period = 2,
   .attn_softcap = 50, .final_softcap = 30, .wide_layers = 46},
  {.name = "gemma3",  .arch = RF_GGUF_GEMMA3, .norm_offset = 1, .embed_scale = true, .post_norms = true, .qk_norm = true, .window_period = 6,
   .local_theta = 10000, .wide_layers = 62},
  {.name = "qwen2",   .arch = RF_GGUF_QWEN2,  .qkv_bias = true},
  {.name = "qwen3",   .arch = RF_GGUF_QWEN3,  .qk_norm = true},
  {.name = "gpt2",    .arch = RF_GGUF_GPT2,   .layernorm = true, .qkv_bias = true},
  {.name = "gptneox", .arch = RF_GGUF_NEOX,   .layernorm = true, .qkv_bias = true},
};
// clang-format on
enum { ARCH_COUNT = sizeof ARCHS / sizeof ARCHS[0] };

/* Maximum sizes of a model. With these sizes, the size of a tensor cannot overflow. */
enum {
  WIDTH_MAX = 1 << 20,
  HEADS_MAX = 1 << 14,
  VOCAB_MAX = 1 << 24,
  POSITIONS_MAX = 1 << 28,
  EXPERTS_MAX = 1 << 14
};

/* Reads the keys of one architecture. key_of() makes "llama.block_count" from "block_count". */
typedef struct reader {
  const rf_gguf *file;
  const char *arch;
  rf_error *error;
  char key[128];
} reader;

static const char *key_of(reader *r, const char *name) {
  snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
  return r->key;
}
static bool has(reader *r, const char *name) { return rf_gguf_value_find(r->file, key_of(r, name)) != NULL; }

/* Reads a number. The file may store one number, or an array that repeats this number for each
 * layer. An error if the numbers of the array differ. If `otherwise` is -1, the key is required. */
static rf_status take_int(reader *r, const char *name, int64_t least, int64_t most, int64_t otherwise,
                          int64_t *value) {
  const rf_gguf_value *found = rf_gguf_value_find(r->file, key_of(r, name));
  if (!found || found->kind != RF_GGUF_ARRAY)
    return otherwise < 0 ? rf_gguf_int(r->file, r->key, least, most, value, r->error)
                         : rf_gguf_int_or(r->file, r->key, least, most, otherwise, value, r->error);
  int32_t *items;
  int64_t count;
  RF_TRY(rf_gguf_ints(r->file, r->key, least, most, &items, &count, r->error));
  bool same = count > 0;
  for (int64_t i = 1; i < count; ++i) same = same && items[i] == items[0];
  *value = same ? items[0] : 0;
  free(items);
  if (same) return RAFTER_OK;
  return RF_FAIL(r->error, RAFTER_FAILED, NULL,
                 "%s: metadata \"%s\" differs between layers, which no supported architecture allows",
                 rf_gguf_path(r->file), r->key);
}

static rf_status take_float(reader *r, const char *name, double least, double most, double otherwise,
                            double *value) {
  return rf_gguf_float_or(r->file, key_of(r, name), least, most, otherwise, value, r->error);
}

static rf_status find_arch(const rf_gguf *file, const arch_row **row, rf_error *error) {
  rf_gguf_text name;
  char list[256] = "";
  RF_TRY(rf_gguf_text_of(file, "general.architecture", &name, error));
  for (int i = 0; i < ARCH_COUNT; ++i) {
    if ((int64_t)strlen(ARCHS[i].name) == name.bytes &&
        memcmp(ARCHS[i].name, name.at, (size_t)name.bytes) == 0)
      return *row = &ARCHS[i], RAFTER_OK;
    rf_text_append(list, sizeof list, "%s%s", i ? ", " : "", ARCHS[i].name);
  }
  char shown[64]; /* the architecture's name in the file, without bytes that cannot be printed */
  int n = 0;
  for (; n < 40 && n < name.bytes; ++n)
    shown[n] = (unsigned char)name.at[n] >= 0x20 && (unsigned char)name.at[n] < 0x7f ? name.at[n] : '?';
  shown[n] = 0;
  return RF_FAIL(error, RAFTER_FAILED, NULL,
                 "%s: metadata \"general.architecture\" is not supported (expected %s, got \"%s\")",
                 rf_gguf_path(file), list, shown);
}

static rf_status read_rope(reader *r, const arch_row *row, rf_gguf_facts *f) {
  rf_gguf_text type;
  bool learned = row->arch == RF_GGUF_GPT2;
  RF_TRY(take_float(r, "rope.freq_base", 1, 1e12, learned ? 0 : 10000, &f->rope_theta));
  RF_TRY(take_float(r, "rope.freq_base_swa", 1, 1e12, row->local_theta > 0 ? row->local_theta : f->rope_theta,
                    &f->rope_local_theta));
  RF_TRY(take_int(r, "rope.dimension_count", 1, WIDTH_MAX, learned ? 0 : f->key_length, &f->rope_dim));
  RF_TRY(rf_gguf_text_or(r->file, key_of(r, "rope.scaling.type"), "none", &type, r->error));
  if (type.bytes >= (int64_t)sizeof f->rope_scaling || memchr(type.at, 0, (size_t)type.bytes))
    return RF_FAIL(r->error, RAFTER_FAILED, NULL,
                   "%s: metadata \"%s\" is not a known scaling (got a text of %lld bytes)",
                   rf_gguf_path(r->file), r->key, (long long)type.bytes);
  memcpy(f->rope_scaling, type.at, (size_t)type.bytes);
  f->rope_scaling[type.bytes] = 0;
  /* the key in older files */
  RF_TRY(take_float(r, "rope.scale_linear", 1e-6, 1e6, 0, &f->rope_factor));
  RF_TRY(take_float(r, "rope.scaling.factor", 1e-6, 1e6, f->rope_factor > 0 ? f->rope_factor : 1,
                    &f->rope_factor));
  if (f->rope_factor <= 0) f->rope_factor = 1;
  if (!has(r, "rope.scaling.type")) strcpy(f->rope_scaling, f->rope_factor == 1 ? "none" : "linear");
  RF_TRY(take_int(r, "rope.scaling.original_context_length", 1, POSITIONS_MAX, 0, &f->rope_original));
  f->rope_freqs = rf_gguf_find(r->file, "rope_freqs.weight") != NULL;
  return RAFTER_OK;
}

static rf_status unsupported(const reader *r, const char *expected) {
  return RF_FAIL(r->error, RAFTER_FAILED, NULL, "%s: metadata \"%s\" is not supported (expected %s)",
                 rf_gguf_path(r->file), r->key, expected);
}

/* Refuses values that change the results of llama.cpp, and that rafter does not compute or cannot
 * export. */
static rf_status refuse_settings(reader *r, const rf_gguf_facts *f) {
  /* Models with other scalings can only be planned. */
  bool computed = !strcmp(f->rope_scaling, "none") || !strcmp(f->rope_scaling, "linear"), causal;
  double factor;
  int64_t groups;
  RF_TRY(take_float(r, "rope.scaling.attn_factor", 0, 1e6, 1, &factor));
  if (computed && factor != 1) return unsupported(r, "1");
  key_of(r, "rope.dimension_count");
  if (f->rope_theta > 0 && f->arch != RF_GGUF_NEOX && f->rope_dim < f->key_length)
    return unsupported(r, "the width of a head");
  RF_TRY(take_int(r, "expert_group_count", 0, EXPERTS_MAX, 0, &groups));
  if (groups > 1) return unsupported(r, "at most 1");
  RF_TRY(rf_gguf_bool_or(r->file, key_of(r, "attention.causal"), true, &causal, r->error));
  return causal ? RAFTER_OK : unsupported(r, "true");
}

/* Finds which layers have an attention window. The file may have one bool for each layer, which is
 * true if the layer has a window. The bools must be periodic, and only the last layer of each
 * period may have no window. */
static rf_status read_window(reader *r, const arch_row *row, rf_gguf_facts *f) {
  RF_TRY(take_int(r, "attention.sliding_window", 0, POSITIONS_MAX, row->window, &f->window));
  f->window_period = row->window_period;
  const rf_gguf_value *pattern = rf_gguf_value_find(r->file, key_of(r, "attention.sliding_window_pattern"));
  if (!pattern) return RAFTER_OK;
  if (pattern->kind != RF_GGUF_ARRAY)
    return rf_gguf_int(r->file, r->key, 0, RF_GGUF_LAYERS_MAX, &f->window_period, r->error);
  int32_t *windowed;
  int64_t count, period = 1;
  RF_TRY(rf_gguf_ints(r->file, r->key, 0, 1, &windowed, &count, r->error));
  while (period <= count && windowed[period - 1]) ++period;
  bool regular = count == f->layers;
  for (int64_t i = 0; i < count; ++i) regular = regular && windowed[i] == ((i + 1) % period != 0);
  free(windowed);
  if (!regular)
    return RF_FAIL(r->error, RAFTER_FAILED, NULL,
                   "%s: metadata \"%s\" is not periodic (expected one item for each of %lld layers)",
                   rf_gguf_path(r->file), r->key, (long long)f->layers);
  f->window_period = period > count ? 0 : period;
  return RAFTER_OK;
}

rf_status rf_gguf_facts_check(const rf_gguf_facts *f, const char *where, rf_error *error) {
  if (f->heads % f->kv_heads)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: query heads are not a multiple of key and value heads (got %lld and %lld)", where,
                   (long long)f->heads, (long long)f->kv_heads);
  if (f->key_length != f->value_length)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: keys and values differ in width (got %lld and %lld)",
                   where, (long long)f->key_length, (long long)f->value_length);
  if (f->rope_dim > f->key_length || f->rope_dim % 2)
    return RF_FAIL(
        error, RAFTER_FAILED, NULL,
        "%s: wrong number of rotated elements of a head (expected an even number up to %lld, got %lld)",
        where, (long long)f->key_length, (long long)f->rope_dim);
  if (f->experts_used > f->experts)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: more experts used than exist (got %lld of %lld)", where,
                   (long long)f->experts_used, (long long)f->experts);
  return RAFTER_OK;
}

/* The vocabulary size is the number of rows of the token table. The tokenizer must not have more
 * tokens than the token table has rows. */
static rf_status read_vocab_size(reader *r, rf_gguf_facts *f) {
  const rf_quant_tensor *table = rf_gguf_find(r->file, "token_embd.weight");
  const rf_gguf_value *tokens = rf_gguf_value_find(r->file, "tokenizer.ggml.tokens");
  int64_t listed = tokens && tokens->kind == RF_GGUF_ARRAY ? tokens->count : 0;
  if (table &&
      (table->rank != 2 || table->shape[1] != f->width || table->shape[0] < 1 || table->shape[0] > VOCAB_MAX))
    return RF_FAIL(r->error, RAFTER_FAILED, NULL,
                   "%s: tensor \"token_embd.weight\" has the wrong shape (expected (vocabulary, %lld))",
                   rf_gguf_path(r->file), (long long)f->width);
  RF_TRY(take_int(r, "vocab_size", 1, VOCAB_MAX, table ? table->shape[0] : listed ? listed : -1, &f->vocab));
  /* Some token tables have padding rows after the vocabulary. rafter treats padding rows as
   * vocabulary. */
  if (table) f->vocab = table->shape[0];
  if (listed > f->vocab)
    return RF_FAIL(r->error, RAFTER_FAILED, NULL,
                   "%s: the tokenizer does not fit the token table (expected at most %lld tokens, got %lld)",
                   rf_gguf_path(r->file), (long long)f->vocab, (long long)listed);
  return RAFTER_OK;
}

rf_status rf_gguf_facts_read(const rf_gguf *file, rf_gguf_facts *f, rf_error *error) {
  const arch_row *row = NULL;
  memset(f, 0, sizeof *f);
  RF_TRY(find_arch(file, &row, error));
  reader r = {file, row->name, error, ""};
  f->arch = row->arch;
  f->arch_name = row->name;
  f->layernorm = row->layernorm;
  f->interleaved = row->interleaved;
  f->qk_norm = row->qk_norm;
  f->post_norms = row->post_norms;
  f->norm_offset = row->norm_offset;
  rf_gguf_text name;
  RF_TRY(rf_gguf_text_or(file, "general.name", "", &name, error));
  for (int64_t i = 0; i < name.bytes && i < (int64_t)sizeof f->name - 1; ++i)
    f->name[i] = (unsigned char)name.at[i] >= 0x20 && (unsigned char)name.at[i] != 0x7f ? name.at[i] : '?';

  RF_TRY(take_int(&r, "block_count", 1, RF_GGUF_LAYERS_MAX, -1, &f->layers));
  RF_TRY(take_int(&r, "embedding_length", 1, WIDTH_MAX, -1, &f->width));
  RF_TRY(take_int(&r, "feed_forward_length", 1, WIDTH_MAX, -1, &f->ff));
  RF_TRY(take_int(&r, "context_length", 1, POSITIONS_MAX, -1, &f->positions));
  RF_TRY(take_int(&r, "attention.head_count", 1, HEADS_MAX, -1, &f->heads));
  RF_TRY(take_int(&r, "attention.head_count_kv", 1, HEADS_MAX, f->heads, &f->kv_heads));
  int64_t head = f->width / f->heads;
  if (f->width % f->heads && !has(&r, "attention.key_length"))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: heads do not divide the width and \"%s\" is missing (got %lld heads of %lld)",
                   rf_gguf_path(file), r.key, (long long)f->heads, (long long)f->width);
  RF_TRY(take_int(&r, "attention.key_length", 1, WIDTH_MAX, head, &f->key_length));
  RF_TRY(take_int(&r, "attention.value_length", 1, WIDTH_MAX, head, &f->value_length));
  const char *eps = row->layernorm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  RF_TRY(rf_gguf_float(file, key_of(&r, eps), 0, 1, &f->norm_eps, error));
  RF_TRY(read_rope(&r, row, f));
  RF_TRY(refuse_settings(&r, f));
  RF_TRY(read_window(&r, row, f));
  RF_TRY(take_float(&r, "attn_logit_softcapping", 0, 1e6, row->attn_softcap, &f->attn_softcap));
  RF_TRY(take_float(&r, "final_logit_softcapping", 0, 1e6, row->final_softcap, &f->final_softcap));
  double across = row->wide_layers && row->wide_layers == f->layers ? (double)f->width / (double)f->heads
                                                                    : (double)f->key_length;
  RF_TRY(take_float(&r, "attention.scale", 0, 1e6, 1 / sqrt(across), &f->attn_scale));
  f->embed_scale = row->embed_scale ? sqrt((double)f->width) : 1;
  RF_TRY(rf_gguf_bool_or(file, key_of(&r, "use_parallel_residual"), row->arch == RF_GGUF_NEOX, &f->parallel,
                         error));
  RF_TRY(take_int(&r, "expert_count", 0, EXPERTS_MAX, 0, &f->experts));
  RF_TRY(take_int(&r, "expert_used_count", 0, EXPERTS_MAX, 0, &f->experts_used));
  RF_TRY(take_int(&r, "expert_feed_forward_length", 0, WIDTH_MAX, f->experts ? f->ff : 0, &f->expert_ff));
  RF_TRY(read_vocab_size(&r, f));
  f->tied = rf_gguf_find(file, "output.weight") == NULL;
  /* some models of the llama architecture have biases */
  f->qkv_bias = row->qkv_bias || rf_gguf_find(file, "blk.0.attn_q.bias") != NULL;
  f->out_bias = rf_gguf_find(file, "blk.0.attn_output.bias") != NULL;
  f->mlp_bias = rf_gguf_find(file, "blk.0.ffn_down.bias") != NULL;
  return rf_gguf_facts_check(f, rf_gguf_path(file), error);
}
