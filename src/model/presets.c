/* presets.c - presets, inline shapes, and the resolution of MODEL on the command line. */
#include "base/text.h"
#include "model/adapter.h"
#include "model/run_folder.h"
#include "model/weight_file.h"

#include <math.h>
#include <stddef.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- presets --------------------------------------------------------------------------------- */

/* GPT-2: norms before the sublayers, learned positions, biases, tied head. The published weights
 * were trained with dropout 0.1, but the presets have no dropout. --dropout enables dropout. */
// clang-format off
#define GPT2(preset, l, d, n)                                                                                                                  \
  {.name = preset, .family = RF_FAMILY_GPT, .layers = l, .width = d, .heads = n, .kv_heads = n, .head_dim = 64, .ff = 4 * (d), .vocab = 50257, \
   .max_seq = 1024, .norm = RF_NORM_LAYERNORM, .mlp = RF_MLP_GELU, .position = RF_POSITION_LEARNED, .bias = true, .tied = true,                \
   .norm_eps = 1e-5f, .bos_id = 50256, .eos_id = 50256, .init = "gpt2"}
/* Llama: RMSNorm, rotary positions, SwiGLU, no biases, a head that is not tied. A preset may set
 * further fields. */
#define LLAMA(preset, l, d, f, n, k, v, t, base, bos, eos, ...) LLAMA_OF(preset, RF_FAMILY_LLAMA, l, d, f, n, k, v, t, base, bos, eos, __VA_ARGS__)
#define LLAMA_OF(preset, fam, l, d, f, n, k, v, t, base, bos, eos, ...)                                                                        \
  {.name = preset, .family = fam, .layers = l, .width = d, .heads = n, .kv_heads = k, .head_dim = (d) / (n), .ff = f, .vocab = v,  \
   .max_seq = t, .norm = RF_NORM_RMSNORM, .mlp = RF_MLP_SWIGLU, .position = RF_POSITION_ROPE, .norm_eps = 1e-5f, .rope.theta = base,           \
   .bos_id = bos, .eos_id = eos, .init = "llama", __VA_ARGS__}
#define SCALED(by) .rope.scaling = RF_ROPE_LLAMA3, .rope.factor = by, .rope.low = 1, .rope.high = 4, .rope.original = 8192
#define EXPERTS(of, used) .experts = of, .experts_used = used
/* Gemma: RMSNorm with factor 1 + gain, scaled embeddings, GeGLU, tied head. Gemma 2 and 3 also have
 * norms after the sublayers and windowed layers. */
#define GEMMA(preset, fam, l, d, f, n, k, h, v, t, base, ...)                                                                                  \
  {.name = preset, .family = fam, .layers = l, .width = d, .heads = n, .kv_heads = k, .head_dim = h, .ff = f, .vocab = v, .max_seq = t,        \
   .norm = RF_NORM_RMSNORM, .mlp = RF_MLP_GEGLU, .position = RF_POSITION_ROPE, .norm_eps = 1e-6f, .norm_offset = 1, .rope.theta = base,        \
   .tied = true, .bos_id = 2, .eos_id = 1, .init = "llama", __VA_ARGS__}
#define GEMMA2(preset, l, d, f, n, k, h, scalar_root)                                                                                          \
  GEMMA(preset, RF_FAMILY_GEMMA2, l, d, f, n, k, h, 256000, 8192, 1e4f, .post_norms = true, .attn_softcap = 50, .final_softcap = 30,           \
        .window = 4096, .window_period = 2, .attn_scale = 1.0f / (scalar_root))
#define GEMMA3(preset, l, d, f, n, k, h, v, t, w, scalar_root, ...)                                                                            \
  GEMMA(preset, RF_FAMILY_GEMMA3, l, d, f, n, k, h, v, t, 1e6f, .post_norms = true, .qk_norm = true, .window = w, .window_period = 6,          \
        .local_theta = 1e4f, .attn_scale = 1.0f / (scalar_root), __VA_ARGS__)
#define QWEN(preset, fam, l, d, f, n, k, h, t, tie, ...) QWEN_OF(preset, fam, 151936, l, d, f, n, k, h, t, tie, __VA_ARGS__)
#define QWEN_OF(preset, fam, v, l, d, f, n, k, h, t, tie, ...)                                                                                 \
  {.name = preset, .family = fam, .layers = l, .width = d, .heads = n, .kv_heads = k, .head_dim = h, .ff = f, .vocab = v, .max_seq = t,        \
   .norm = RF_NORM_RMSNORM, .mlp = RF_MLP_SWIGLU, .position = RF_POSITION_ROPE, .norm_eps = 1e-6f, .rope.theta = 1e6f, .tied = tie,            \
   .bos_id = 151643, .eos_id = 151645, .init = "llama", __VA_ARGS__}

/* GPT-NeoX: attention and MLP run in parallel, a quarter of each head is rotated, and GELU is
 * exact. */
#define NEOX(preset, l, d, n)                                                                                                                  \
  {.name = preset, .family = RF_FAMILY_NEOX, .layers = l, .width = d, .heads = n, .kv_heads = n, .head_dim = (d) / (n), .ff = 4 * (d),         \
   .vocab = 50304, .max_seq = 2048, .norm = RF_NORM_LAYERNORM, .mlp = RF_MLP_GELU_ERF, .position = RF_POSITION_ROPE, .bias = true,             \
   .parallel = true, .norm_eps = 1e-5f, .rope.theta = 1e4f, .rope.dim = (d) / (n) / 4, .bos_id = 0, .eos_id = 0, .init = "gpt2"}

/* DeepSeek-V2 and V3: latent attention, one plain MLP in each of the first layers, then shared and
 * chosen experts. YaRN scales scores by (0.1 m ln(factor) + 1)^2 / sqrt(H), m = mscale_all_dim. */
#define DEEPSEEK(preset, fam, l, d, f, n, v, dense, of, used, shared, each, m, bos, eos, ...)                                                  \
  {.name = preset, .family = fam, .layers = l, .width = d, .heads = n, .kv_heads = n, .head_dim = 192, .rope_dim = 64, .value_dim = 128,       \
   .kv_rank = 512, .ff = f, .vocab = v, .max_seq = 163840, .norm = RF_NORM_RMSNORM, .mlp = RF_MLP_SWIGLU, .position = RF_POSITION_ROPE,        \
   .norm_eps = 1e-6f, .rope = {.theta = 1e4f, .scaling = RF_ROPE_YARN, .factor = 40, .low = 1, .high = 32, .original = 4096},                  \
   .attn_scale = (float)((0.1 * (m) * 3.6888794541139363 + 1) * (0.1 * (m) * 3.6888794541139363 + 1) / 13.856406460551018), .experts = of,     \
   .experts_used = used, .experts_shared = shared, .expert_ff = each, .first_dense = dense, .bos_id = bos, .eos_id = eos, .init = "llama", __VA_ARGS__}
#define SIGMOID_ROUTER .router_sigmoid = true, .router_choice = true, .router_scale = 2.5f

static const rf_model PRESETS[] = {
  {.name = "uva", .family = RF_FAMILY_GPT, .layers = 12, .width = 1024, .heads = 8, .kv_heads = 8, .head_dim = 128, .ff = 4096, .vocab = 2048,
   .max_seq = 512, .norm = RF_NORM_LAYERNORM, .mlp = RF_MLP_GELU, .position = RF_POSITION_LEARNED, .bias = true, .head_bias = true,
   .mlp_first = true, .norm_eps = 1e-6f, .dropout = 0.1f, .bos_id = -1, .eos_id = -1, .init = "flax"},
  GPT2("gpt2", 12, 768, 12),
  GPT2("gpt2-medium", 24, 1024, 16),
  GPT2("gpt2-large", 36, 1280, 20),
  GPT2("gpt2-xl", 48, 1600, 25),
  LLAMA("llama2-7b", 32, 4096, 11008, 32, 32, 32000, 4096, 1e4f, 1, 2, .tied = false),
  LLAMA("llama2-13b", 40, 5120, 13824, 40, 40, 32000, 4096, 1e4f, 1, 2, .tied = false),
  LLAMA("llama2-70b", 80, 8192, 28672, 64, 8, 32000, 4096, 1e4f, 1, 2, .tied = false),
  LLAMA("llama3-8b", 32, 4096, 14336, 32, 8, 128256, 8192, 5e5f, 128000, 128001, .tied = false),
  LLAMA("llama3-70b", 80, 8192, 28672, 64, 8, 128256, 8192, 5e5f, 128000, 128001, .tied = false),
  LLAMA("llama3-405b", 126, 16384, 53248, 128, 8, 128256, 131072, 5e5f, 128000, 128001, SCALED(8)),
  LLAMA("llama3.1-8b", 32, 4096, 14336, 32, 8, 128256, 131072, 5e5f, 128000, 128001, SCALED(8)),
  LLAMA("llama3.1-70b", 80, 8192, 28672, 64, 8, 128256, 131072, 5e5f, 128000, 128001, SCALED(8)),
  LLAMA("llama3.1-405b", 126, 16384, 53248, 128, 8, 128256, 131072, 5e5f, 128000, 128001, SCALED(8)),
  LLAMA("llama3.2-3b", 28, 3072, 8192, 24, 8, 128256, 131072, 5e5f, 128000, 128001, .tied = true, SCALED(32)),
  LLAMA("llama3.2-1b", 16, 2048, 8192, 32, 8, 128256, 131072, 5e5f, 128000, 128001, .tied = true, SCALED(32)),
  LLAMA_OF("mistral-7b", RF_FAMILY_MISTRAL, 32, 4096, 14336, 32, 8, 32000, 32768, 1e4f, 1, 2, .window = 4096),
  LLAMA_OF("mixtral-8x7b", RF_FAMILY_MIXTRAL, 32, 4096, 14336, 32, 8, 32000, 32768, 1e6f, 1, 2, EXPERTS(8, 2)),
  LLAMA_OF("mixtral-8x22b", RF_FAMILY_MIXTRAL, 56, 6144, 16384, 48, 8, 32000, 65536, 1e6f, 1, 2, EXPERTS(8, 2)),
  QWEN("qwen2.5-0.5b", RF_FAMILY_QWEN2, 24, 896, 4864, 14, 2, 64, 32768, true, .qkv_bias = true),
  QWEN("qwen2.5-1.5b", RF_FAMILY_QWEN2, 28, 1536, 8960, 12, 2, 128, 32768, true, .qkv_bias = true),
  QWEN("qwen2.5-3b", RF_FAMILY_QWEN2, 36, 2048, 11008, 16, 2, 128, 32768, true, .qkv_bias = true),
  QWEN_OF("qwen2.5-7b", RF_FAMILY_QWEN2, 152064, 28, 3584, 18944, 28, 4, 128, 32768, false, .qkv_bias = true),
  QWEN_OF("qwen2.5-14b", RF_FAMILY_QWEN2, 152064, 48, 5120, 13824, 40, 8, 128, 32768, false, .qkv_bias = true),
  QWEN_OF("qwen2.5-32b", RF_FAMILY_QWEN2, 152064, 64, 5120, 27648, 40, 8, 128, 32768, false, .qkv_bias = true),
  QWEN_OF("qwen2.5-72b", RF_FAMILY_QWEN2, 152064, 80, 8192, 29568, 64, 8, 128, 32768, false, .qkv_bias = true),
  QWEN("qwen3-0.6b", RF_FAMILY_QWEN3, 28, 1024, 3072, 16, 8, 128, 40960, true, .qk_norm = true),
  QWEN("qwen3-1.7b", RF_FAMILY_QWEN3, 28, 2048, 6144, 16, 8, 128, 40960, true, .qk_norm = true),
  QWEN("qwen3-4b", RF_FAMILY_QWEN3, 36, 2560, 9728, 32, 8, 128, 40960, true, .qk_norm = true),
  QWEN("qwen3-8b", RF_FAMILY_QWEN3, 36, 4096, 12288, 32, 8, 128, 40960, false, .qk_norm = true),
  QWEN("qwen3-14b", RF_FAMILY_QWEN3, 40, 5120, 17408, 40, 8, 128, 40960, false, .qk_norm = true),
  QWEN("qwen3-32b", RF_FAMILY_QWEN3, 64, 5120, 25600, 64, 8, 128, 40960, false, .qk_norm = true),
  GEMMA("gemma-2b", RF_FAMILY_GEMMA, 18, 2048, 16384, 8, 1, 256, 256000, 8192, 1e4f, .window = 0),
  GEMMA("gemma-7b", RF_FAMILY_GEMMA, 28, 3072, 24576, 16, 16, 256, 256000, 8192, 1e4f, .window = 0),
  GEMMA2("gemma2-2b", 26, 2304, 9216, 8, 4, 256, 16.0f),
  GEMMA2("gemma2-9b", 42, 3584, 14336, 16, 8, 256, 16.0f),
  GEMMA2("gemma2-27b", 46, 4608, 36864, 32, 16, 128, 12.0f),
  GEMMA3("gemma3-270m", 18, 640, 2048, 4, 1, 256, 262144, 32768, 512, 16.0f, .rope.scaling = RF_ROPE_PLAIN),
  GEMMA3("gemma3-1b", 26, 1152, 6912, 4, 1, 256, 262144, 32768, 512, 16.0f, .rope.scaling = RF_ROPE_PLAIN),
  GEMMA3("gemma3-4b", 34, 2560, 10240, 8, 4, 256, 262208, 131072, 1024, 16.0f, .rope.scaling = RF_ROPE_LINEAR, .rope.factor = 8),
  GEMMA3("gemma3-12b", 48, 3840, 15360, 16, 8, 256, 262208, 131072, 1024, 16.0f, .rope.scaling = RF_ROPE_LINEAR, .rope.factor = 8),
  GEMMA3("gemma3-27b", 62, 5376, 21504, 32, 16, 128, 262208, 131072, 1024, 12.961481f, .rope.scaling = RF_ROPE_LINEAR, .rope.factor = 8),
  NEOX("pythia-70m", 6, 512, 8),
  NEOX("pythia-160m", 12, 768, 12),
  DEEPSEEK("deepseek2-16b", RF_FAMILY_DEEPSEEK2, 27, 2048, 10944, 16, 102400, 1, 64, 6, 2, 1408, 0.707, 100000, 100001, .router_as_is = true),
  DEEPSEEK("deepseek-v3", RF_FAMILY_DEEPSEEK3, 61, 7168, 18432, 128, 129280, 3, 256, 8, 1, 2048, 1.0, 0, 1, .q_rank = 1536, SIGMOID_ROUTER,
           .router_groups = 8, .router_groups_used = 4),
  /* PaLM (arXiv 2204.02311): attention and MLP run in parallel after one norm without bias, with
   * one key/value head and a tied head. */
  {.name = "palm-540b", .family = RF_FAMILY_PALM, .layers = 118, .width = 18432, .heads = 48, .kv_heads = 1, .head_dim = 256, .ff = 73728, .vocab = 256000,
   .max_seq = 2048, .norm = RF_NORM_RMSNORM, .mlp = RF_MLP_SWIGLU, .position = RF_POSITION_ROPE, .tied = true, .parallel = true, .one_norm = true,
   .norm_eps = 1e-6f, .rope.theta = 1e4f, .bos_id = -1, .eos_id = -1, .init = "llama",
   .plan_only = "its weights were never published; a LayerNorm without bias is planned as an RMSNorm, which has the same parameters and moves the same bytes"},
};
// clang-format on
enum { PRESET_COUNT = sizeof PRESETS / sizeof PRESETS[0] };

/* Default fields of the inline shapes `gpt:`, `llama:`, `mixtral:`, `deepseek:` and `gemma3:`. */
static const rf_model BASES[] = {
    GPT2("gpt", 12, 768, 12),
    LLAMA_OF("mixtral", RF_FAMILY_MIXTRAL, 16, 1024, 3584, 16, 4, 32000, 4096, 1e6f, -1, -1, EXPERTS(8, 2)),
    LLAMA("llama", 16, 2048, 5632, 32, 32, 32000, 4096, 1e4f, -1, -1, .tied = false),
    DEEPSEEK("deepseek", RF_FAMILY_DEEPSEEK3, 4, 512, 1408, 8, 32000, 1, 8, 2, 1, 352, 1.0, -1, -1,
             SIGMOID_ROUTER),
    GEMMA3("gemma3", 18, 640, 2048, 4, 1, 256, 262144, 32768, 512, 16.0f, .rope.scaling = RF_ROPE_PLAIN),
};

enum { BASE_COUNT = sizeof BASES / sizeof BASES[0] };

const char *rf_model_preset(int index) {
  return index >= 0 && index < PRESET_COUNT ? PRESETS[index].name : NULL;
}

static const rf_model *find_model(const rf_model *models, int count, const char *name, size_t length) {
  for (int i = 0; i < count; ++i)
    if (strlen(models[i].name) == length && strncmp(models[i].name, name, length) == 0) return &models[i];
  return NULL;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static rf_status check_experts(const rf_model *model, const char *where, rf_error *error) {
  int64_t groups = model->router_groups, used = model->router_groups_used, most = 1 << 20;
  if (model->first_dense < 0 || model->first_dense > model->layers)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "%s: first_dense is out of range (expected 0 to %lld, got %lld)", where,
                   (long long)model->layers, (long long)model->first_dense);
  if (model->expert_ff < 0 || model->expert_ff > most || model->experts_shared < 0 ||
      model->experts_shared > 1024 || model->experts_shared * rf_model_expert_ff(model) > most)
    return RF_FAIL(
        error, RAFTER_INVALID, NULL,
        "%s: the experts' width is out of range (expected up to %lld, got expert_ff %lld and %lld shared)",
        where, (long long)most, (long long)model->expert_ff, (long long)model->experts_shared);
  if (groups && (groups < 1 || model->experts % groups || used < 1 || used > groups ||
                 model->experts / groups * used < model->experts_used))
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "%s: %lld experts cannot form %lld groups of which %lld are used", where,
                   (long long)model->experts, (long long)groups, (long long)used);
  return RAFTER_OK;
}

static rf_status check_latent(const rf_model *model, const char *where, rf_error *error) {
  if (model->kv_rank == 0) return RAFTER_OK;
  bool sizes = model->kv_rank > 0 && model->kv_rank <= 1 << 18 && model->q_rank >= 0 &&
               model->q_rank <= 1 << 18 && model->value_dim > 0 && model->value_dim <= 4096 &&
               model->rope_dim > 0 && model->rope_dim < model->head_dim;
  if (!sizes)
    return RF_FAIL(
        error, RAFTER_INVALID, NULL,
        "%s: latent attention is out of range (expected ranks up to %d, value_dim up to 4096, rope_dim below "
        "head_dim %lld; got q_rank %lld, kv_rank %lld, value_dim %lld, rope_dim %lld)",
        where, 1 << 18, (long long)model->head_dim, (long long)model->q_rank, (long long)model->kv_rank,
        (long long)model->value_dim, (long long)model->rope_dim);
  if (model->position != RF_POSITION_ROPE || model->bias || model->qkv_bias || model->attn_bias ||
      model->mlp_bias || model->qk_norm || model->window || model->attn_softcap != 0 ||
      model->norm != RF_NORM_RMSNORM || model->kv_heads != model->heads)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "%s: latent attention needs rotary positions, RMSNorm, as many key heads as query heads, "
                   "and no biases, head norms, windows or softcaps",
                   where);
  return RAFTER_OK;
}

/* Checks that the bytes of all parameters, with gradients and moments in f32, stay below 2^63. The
 * bounds in rf_model_check limit each product, but not the sum of the products. */
static rf_status check_total(const rf_model *model, const char *where, rf_error *error) {
  enum { BYTES_EACH = 16 };
  rf_pool *pool = rf_pool_new();
  int64_t total = rf_model_params(model, pool).total, most = ((int64_t)1 << 62) / BYTES_EACH;
  rf_pool_free(pool);
  if (total <= most) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "use fewer layers, experts or columns",
                 "%s: too many parameters (expected at most %lld, got %lld)", where, (long long)most,
                 (long long)total);
}

rf_status rf_model_check(const rf_model *model, const char *where, rf_error *error) {
  /* The bounds keep every product of sizes below 2^63, even if it is summed over 4096 layers. */
  const struct {
    const char *name;
    int64_t value, most;
  } field[] = {
      {"layers", model->layers, RF_LAYERS_MAX},
      {"width", model->width, 1 << 18},
      {"heads", model->heads, 4096},
      {"kv_heads", model->kv_heads, 4096},
      {"head_dim", model->head_dim, 4096},
      {"ff", model->ff, 1 << 20},
      {"vocab", model->vocab, 1 << 22},
      {"seq", model->max_seq, 1 << 24},
  };
  for (size_t i = 0; i < sizeof field / sizeof field[0]; ++i)
    if (field[i].value < 1 || field[i].value > field[i].most)
      return RF_FAIL(error, RAFTER_INVALID, "give a number in the range; larger models are not supported",
                     "%s: %s is out of range (expected 1 to %lld, got %lld)", where, field[i].name,
                     (long long)field[i].most, (long long)field[i].value);
  if (model->heads % model->kv_heads != 0)
    return RF_FAIL(error, RAFTER_INVALID, "choose kv_heads that divides heads",
                   "%s: %lld query heads cannot share %lld key/value heads evenly", where,
                   (long long)model->heads, (long long)model->kv_heads);
  if (model->heads * model->head_dim > 1 << 20)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "%s: heads * head_dim is out of range (expected at most %d, got %lld)", where, 1 << 20,
                   (long long)(model->heads * model->head_dim));
  int64_t transposed = model->rope.dim ? model->rope.dim : model->kv_rank ? model->rope_dim : model->head_dim;
  if (model->position == RF_POSITION_ROPE &&
      (transposed % 2 != 0 || transposed < 2 || transposed > model->head_dim))
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "%s: rotary positions rotate pairs (expected an even count up to head_dim %lld, got %lld)",
                   where, (long long)model->head_dim, (long long)transposed);
  if (model->window < 0 || model->window > 1 << 24)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "%s: window is out of range (expected 0 to %d, got %lld)",
                   where, 1 << 24, (long long)model->window);
  if (model->position == RF_POSITION_ROPE && !(model->rope.theta > 0 && isfinite(model->rope.theta)))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "%s: rope theta is out of range (expected above 0, got %g)",
                   where, (double)model->rope.theta);
  if (model->experts < 0 || model->experts > 1024 || model->experts_used < (model->experts > 0) ||
      model->experts_used > RF_EXPERTS_USED_MAX || model->experts_used > model->experts)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "%s: experts are out of range (expected up to 1024, of which a token uses 1 to %d, got "
                   "%lld and %lld)",
                   where, RF_EXPERTS_USED_MAX, (long long)model->experts, (long long)model->experts_used);
  if (model->experts > 0 && (model->bias || model->mlp_bias || !rf_mlp_gated(model->mlp)))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "%s: experts with biases or without a gate are not supported",
                   where);
  RF_TRY(check_experts(model, where, error));
  RF_TRY(check_latent(model, where, error));
  bool table = model->rope.scaling == RF_ROPE_TABLE;
  for (int i = 0; table && i < model->rope_divisors && i < RF_ROPE_TABLE_MAX; ++i)
    table = model->rope_divisor[i] > 0 && isfinite(model->rope_divisor[i]);
  if (model->rope.scaling == RF_ROPE_TABLE &&
      (!table || model->rope_divisors != transposed / 2 || transposed / 2 > RF_ROPE_TABLE_MAX))
    return RF_FAIL(
        error, RAFTER_INVALID, NULL,
        "%s: the table of rotary factors does not fit (expected %lld numbers above 0, at most %d, got %d)",
        where, (long long)(transposed / 2), RF_ROPE_TABLE_MAX, model->rope_divisors);
  if (!(model->norm_eps >= 0 && model->norm_eps < 1))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "%s: norm_eps is out of range (expected 0 to 1, got %g)",
                   where, (double)model->norm_eps);
  if (!(model->dropout >= 0 && model->dropout < 1))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "%s: dropout is out of range (expected 0 to below 1, got %g)",
                   where, (double)model->dropout);
  if (model->bos_id < -1 || model->bos_id >= model->vocab || model->eos_id < -1 ||
      model->eos_id >= model->vocab)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "%s: a special token is outside the vocabulary (expected -1 to %lld, got bos %d, eos %d)",
                   where, (long long)model->vocab - 1, model->bos_id, model->eos_id);
  return check_total(model, where, error);
}

/* ---- inline shapes --------------------------------------------------------------------------- */

enum { KEY_INT, KEY_COUNT_FROM_0, KEY_FLOAT, KEY_BOOL, KEY_ID, KEY_INIT };
enum { GPT = 1, LLA = 2, MIX = 4, DEEP = 8, EVERY = 15 };
static const struct shape_key {
  const char *name;
  int type, families;
  size_t offset;
} KEYS[] = {
    {"layers", KEY_INT, EVERY, offsetof(rf_model, layers)},
    {"width", KEY_INT, EVERY, offsetof(rf_model, width)},
    {"heads", KEY_INT, EVERY, offsetof(rf_model, heads)},
    {"kv_heads", KEY_INT, EVERY, offsetof(rf_model, kv_heads)},
    {"head_dim", KEY_INT, EVERY, offsetof(rf_model, head_dim)},
    {"ff", KEY_INT, EVERY, offsetof(rf_model, ff)},
    {"vocab", KEY_INT, EVERY, offsetof(rf_model, vocab)},
    {"seq", KEY_INT, EVERY, offsetof(rf_model, max_seq)},
    {"tied", KEY_BOOL, EVERY, offsetof(rf_model, tied)},
    {"bias", KEY_BOOL, GPT, offsetof(rf_model, bias)},
    {"head_bias", KEY_BOOL, GPT, offsetof(rf_model, head_bias)},
    {"mlp_first", KEY_BOOL, GPT, offsetof(rf_model, mlp_first)},
    {"norm_eps", KEY_FLOAT, EVERY, offsetof(rf_model, norm_eps)},
    {"rope_theta", KEY_FLOAT, LLA, offsetof(rf_model, rope.theta)},
    {"window", KEY_INT, LLA, offsetof(rf_model, window)},
    {"dropout", KEY_FLOAT, GPT, offsetof(rf_model, dropout)},
    {"bos", KEY_ID, EVERY, offsetof(rf_model, bos_id)},
    {"eos", KEY_ID, EVERY, offsetof(rf_model, eos_id)},
    {"init", KEY_INIT, EVERY, offsetof(rf_model, init)},
    {"experts", KEY_INT, MIX | DEEP, offsetof(rf_model, experts)},
    {"experts_used", KEY_INT, MIX | DEEP, offsetof(rf_model, experts_used)},
    {"expert_ff", KEY_INT, MIX | DEEP, offsetof(rf_model, expert_ff)},
    {"experts_shared", KEY_COUNT_FROM_0, DEEP, offsetof(rf_model, experts_shared)},
    {"first_dense", KEY_COUNT_FROM_0, DEEP, offsetof(rf_model, first_dense)},
    {"q_rank", KEY_COUNT_FROM_0, DEEP, offsetof(rf_model, q_rank)},
    {"kv_rank", KEY_INT, DEEP, offsetof(rf_model, kv_rank)},
    {"rope_dim", KEY_INT, DEEP, offsetof(rf_model, rope_dim)},
    {"value_dim", KEY_INT, DEEP, offsetof(rf_model, value_dim)},
};
enum { KEY_COUNT = sizeof KEYS / sizeof KEYS[0] };
/* Indices of the first entries of KEYS, for derive_sizes(). */
enum { LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, FF };

const char *rf_model_init(const char *name) {
  static const char *const known[] = {"gpt2", "flax", "llama"};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i)
    if (strcmp(name, known[i]) == 0) return known[i];
  return NULL;
}

static void known_keys(int families, const char **names, char *list, size_t size) {
  list[0] = 0;
  for (int i = 0; i < KEY_COUNT; ++i) {
    names[i] = KEYS[i].families & families ? KEYS[i].name : NULL;
    if (names[i]) rf_text_append(list, size, "%s%s", *list ? ", " : "", names[i]);
  }
}

static rf_status set_key(rf_model *model, const struct shape_key *key, const char *spec, const char *value,
                         rf_error *error) {
  char *field = (char *)model + key->offset;
  int64_t number;
  double real;
  bool flag;
  switch (key->type) {
  case KEY_INT:
  case KEY_COUNT_FROM_0:
    if (!rf_text_int(value, &number) || number < (key->type == KEY_INT))
      return RF_FAIL(error, RAFTER_INVALID,
                     key->type == KEY_INT ? "write it as layers=12 or width=768"
                                          : "write a number, as in window=4096; 0: none",
                     "%s: %s is not a count (expected a whole number from %d, got '%s')", spec, key->name,
                     key->type == KEY_INT, value);
    memcpy(field, &number, sizeof number);
    return RAFTER_OK;
  case KEY_ID:
    if (!rf_text_int(value, &number) || number < -1 || number > INT32_MAX)
      return RF_FAIL(error, RAFTER_INVALID, NULL,
                     "%s: %s is not a token id (expected -1 for none or an id, got '%s')", spec, key->name,
                     value);
    memcpy(field, &(int32_t){(int32_t)number}, sizeof(int32_t));
    return RAFTER_OK;
  case KEY_FLOAT:
    if (!rf_text_float(value, &real))
      return RF_FAIL(error, RAFTER_INVALID, NULL, "%s: %s is not a number (got '%s')", spec, key->name,
                     value);
    memcpy(field, &(float){(float)real}, sizeof(float));
    return RAFTER_OK;
  case KEY_BOOL:
    if (!rf_text_bool(value, &flag))
      return RF_FAIL(error, RAFTER_INVALID, NULL, "%s: %s is not a switch (expected 0 or 1, got '%s')", spec,
                     key->name, value);
    memcpy(field, &flag, sizeof flag);
    return RAFTER_OK;
  default:
    model->init = rf_model_init(value);
    if (model->init) return RAFTER_OK;
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "%s: init is unknown (expected gpt2, flax or llama, got '%s')", spec, value);
  }
}

/* Gemma scales token embeddings by sqrt(width), which is not a constant expression in C. */
static float scale_of_tokens(const rf_model *model) {
  return model->norm_offset > 0 ? sqrtf((float)model->width) : 0;
}

/* Derives sizes that were not given: heads (width / head_dim of the base), kv_heads and ff. */
static rf_status derive_sizes(const rf_model *base, const bool *given, const char *spec, rf_model *model,
                              rf_error *error) {
  if (given[WIDTH] && !given[HEADS] && model->kv_rank == 0) {
    int64_t head_dim = given[HEAD_DIM] ? model->head_dim : base->head_dim;
    if (head_dim < 1 || model->width % head_dim != 0)
      return RF_FAIL(error, RAFTER_INVALID, "add heads=N",
                     "%s: width %lld is not a multiple of head_dim %lld", spec, (long long)model->width,
                     (long long)head_dim);
    model->heads = model->width / head_dim;
  }
  if ((given[WIDTH] || given[HEADS]) && !given[HEAD_DIM] && model->kv_rank == 0) {
    if (model->heads < 1 || model->width % model->heads != 0)
      return RF_FAIL(error, RAFTER_INVALID, "choose heads that divide width, or add head_dim=H",
                     "%s: width %lld is not a multiple of heads %lld", spec, (long long)model->width,
                     (long long)model->heads);
    model->head_dim = model->width / model->heads;
  }
  if ((given[WIDTH] || given[HEADS]) && !given[KV_HEADS]) model->kv_heads = model->heads;
  model->embed_scale = scale_of_tokens(model);
  /* attn_scale and rope.dim of `base` are wrong for another head width. */
  if (model->head_dim != base->head_dim) {
    model->attn_scale = 0;
    model->rope.dim = 0;
  }
  if (model->first_dense > model->layers && base->first_dense == model->first_dense)
    model->first_dense = model->layers;
  if (given[WIDTH] && !given[FF]) /* a gated MLP has 3 matrices, so F = 8/3 D, rounded up to 256 */
    model->ff = rf_mlp_gated(model->mlp) ? (8 * model->width / 3 + 255) / 256 * 256 : 4 * model->width;
  return RAFTER_OK;
}

static rf_status parse_shape(const char *spec, const rf_model *base, const char *pairs, rf_model *model,
                             rf_error *error) {
  bool given[KEY_COUNT] = {false};
  const char *names[KEY_COUNT];
  char list[512], hint[600];
  int family = base->family == RF_FAMILY_GPT ? GPT
               : base->kv_rank > 0           ? LLA | DEEP
               : base->experts > 0           ? LLA | MIX
                                             : LLA;
  known_keys(family, names, list, sizeof list);
  snprintf(hint, sizeof hint, "keys: %s", list);
  *model = *base;
  snprintf(model->name, sizeof model->name, "%s", spec);
  for (const char *at = pairs; *at;) {
    size_t length = strcspn(at, ",");
    char pair[128];
    if (length >= sizeof pair)
      return RF_FAIL(error, RAFTER_INVALID, hint, "model shape: a key=value of %zu characters is too long",
                     length);
    memcpy(pair, at, length);
    pair[length] = 0;
    at += length + (at[length] == ',');
    char *value = strchr(pair, '=');
    if (!value || value == pair || !value[1])
      return RF_FAIL(error, RAFTER_INVALID, hint, "model shape: expected key=value, got '%s'", pair);
    *value++ = 0;
    for (char *c = pair; *c; ++c) *c = *c == '-' ? '_' : *c;
    int key = 0;
    while (key < KEY_COUNT && !(names[key] && strcmp(names[key], pair) == 0)) ++key;
    if (key == KEY_COUNT) {
      const char *nearest = rf_nearest(pair, names, KEY_COUNT);
      return RF_FAIL(error, RAFTER_INVALID, hint, "model shape: unknown key '%s'%s%s%s", pair,
                     nearest ? " (did you mean '" : "", nearest ? nearest : "", nearest ? "'?)" : "");
    }
    if (given[key]) return RF_FAIL(error, RAFTER_INVALID, NULL, "model shape: %s is given twice", pair);
    given[key] = true;
    RF_TRY(set_key(model, &KEYS[key], "model shape", value, error));
  }
  RF_TRY(derive_sizes(base, given, "model shape", model, error));
  /* BOS and EOS of `base` may be outside a smaller vocabulary. */
  if (model->bos_id >= model->vocab) model->bos_id = -1;
  if (model->eos_id >= model->vocab) model->eos_id = -1;
  return rf_model_check(model, "model shape", error);
}

/* ---- MODEL ----------------------------------------------------------------------------------- */

/* Unsupported families. For these families, the error names the family and suggests no preset. */
static const char *const OTHER_FAMILIES[] = {"phi", "falcon", "llama4"};

static rf_status unknown_model(const char *spec, rf_error *error) {
  char name[64], list[512] = "";
  snprintf(name, sizeof name, "%.*s", (int)strcspn(spec, ":"), spec);
  for (size_t i = 0; i < sizeof OTHER_FAMILIES / sizeof OTHER_FAMILIES[0]; ++i)
    if (strncmp(name, OTHER_FAMILIES[i], strlen(OTHER_FAMILIES[i])) == 0)
      return RF_FAIL(error, RAFTER_INVALID,
                     "GPT-2, Llama, Mistral, Mixtral, Qwen and Gemma work: a preset such as gpt2 or "
                     "gemma3-1b, or gpt:layers=4,width=512",
                     "this version does not support the model family of '%s' (expected GPT, Llama, Mistral, "
                     "Mixtral, Qwen or Gemma)",
                     name);
  const char *names[PRESET_COUNT + BASE_COUNT];
  for (int i = 0; i < PRESET_COUNT; ++i) names[i] = PRESETS[i].name;
  for (int i = 0; i < BASE_COUNT; ++i) names[PRESET_COUNT + i] = BASES[i].name;
  /* Lists the presets whose names begin like `spec`. A hint is too short for all presets. */
  size_t same = strcspn(name, "0123456789-.");
  for (int i = 0; i < PRESET_COUNT && same > 1; ++i)
    if (!strncmp(names[i], name, same))
      rf_text_append(list, 300, "%s%s", *list ? ", " : "presets of this name: ", names[i]);
  rf_text_append(list, sizeof list,
                 "%s`rafter models` lists all presets; MODEL may also be a folder with config.json, a .gguf "
                 "file, or gpt:layers=4,width=512,...",
                 *list ? "; " : "");
  const char *nearest = rf_nearest(name, names, PRESET_COUNT + BASE_COUNT);
  return RF_FAIL(error, RAFTER_INVALID, list, "unknown model '%.200s'%s%s%s", spec,
                 nearest ? " (did you mean '" : "", nearest ? nearest : "", nearest ? "'?)" : "");
}

/* The beginnings of names on the hub, and the beginnings of presets that they stand for. */
static const rf_synonym HUB_SYNONYMS[] = {{"meta-llama-3.1", "llama3.1"},
                                          {"llama-3.1", "llama3.1"},
                                          {"llama-3.2", "llama3.2"},
                                          {"meta-llama-3", "llama3"},
                                          {"llama-3", "llama3"},
                                          {"llama-2", "llama2"},
                                          {"gemma-3", "gemma3"},
                                          {"gemma-2-", "gemma2-"},
                                          {"deepseek-v2-lite", "deepseek2-16b"},
                                          {"", ""},
                                          {NULL, NULL}};

/* If `spec` is ORG/NAME of the hub, writes a hint with the longest preset that NAME begins with. */
static void preset_meant(const char *spec, char meant[160]) {
  char name[96], ours[128] = "";
  const char *slash = strchr(spec, '/'), *best = NULL;
  *meant = 0;
  if (!slash || slash == spec || strchr(slash + 1, '/') || strlen(slash + 1) >= sizeof name) return;
  for (size_t i = 0; i <= strlen(slash + 1); i++) name[i] = (char)tolower((unsigned char)slash[1 + i]);
  for (const rf_synonym *row = HUB_SYNONYMS; row->said && !*ours; row++)
    if (!strncmp(name, row->said, strlen(row->said)))
      snprintf(ours, sizeof ours, "%s%s", row->ours, name + strlen(row->said));
  for (int i = 0; i < PRESET_COUNT; i++)
    if (!strncmp(ours, PRESETS[i].name, strlen(PRESETS[i].name)) &&
        (!best || strlen(PRESETS[i].name) > strlen(best)))
      best = PRESETS[i].name;
  if (rf_model_preset_on_hub(spec)) best = rf_model_preset_on_hub(spec);
  if (best)
    snprintf(meant, 160, "did you mean the preset %s? `rafter pull hf:%.90s` downloads the weights", best,
             spec);
}

/* Resolves the base model that an adapter names, and reads the adapter. */
static rf_status resolve_adapter(const char *adapter, rf_model *model, char folder[4096], rf_error *error) {
  char base[4096], weights[4096];
  struct stat status;
  rf_lora lora;
  RF_TRY(rf_adapter_base(adapter, base, error));
  bool there = stat(base, &status) == 0;
  if (there && S_ISDIR(status.st_mode) && rf_adapter_is(base))
    return RF_FAIL(error, RAFTER_INVALID, "merge the first adapter into its model",
                   "the base of %s is another adapter (%.300s)", adapter, base);
  rf_error reason;
  rf_status found = rf_model_resolve(base, model, weights, &reason);
  if (found != RAFTER_OK && there) { /* the base model exists but is invalid */
    if (error) *error = reason;
    return found;
  }
  if (found != RAFTER_OK)
    return RF_FAIL(error, RAFTER_INVALID, "give the base as MODEL, and the adapter with --adapter",
                   "the base of the adapter %s was not found (%.300s)", adapter, base);
  if (!*weights)
    return RF_FAIL(error, RAFTER_INVALID,
                   "give a model with weights as MODEL, and the adapter with --adapter",
                   "the base of the adapter %s has no weights (%.300s is a shape)", adapter, base);
  if (folder) memcpy(folder, weights, sizeof weights);
  RF_TRY(rf_adapter_open(adapter, model, &lora, error));
  model->lora = lora;
  return RAFTER_OK;
}

/* True if the folder has a config.json. Such a folder wins over a preset of the same name. */
static bool holds_config(const char *folder) {
  char path[4096 + 16];
  return snprintf(path, sizeof path, "%s/config.json", folder) < (int)sizeof path && !access(path, F_OK);
}

static bool is_file_name(const char *spec) {
  return strchr(spec, '/') || rf_text_ends_with(spec, ".safetensors") || rf_text_ends_with(spec, ".gguf") ||
         rf_text_ends_with(spec, ".bin");
}

/* Reads the folder of a config.json, if `spec` is such a file. */
static bool folder_of_config(const char *spec, char folder[4096]) {
  static const char name[] = "config.json";
  size_t length = spec ? strlen(spec) : 0, before = length - (sizeof name - 1);
  if (length < sizeof name - 1 || length >= 4096 || strcmp(spec + before, name) || access(spec, R_OK))
    return false;
  if (before && spec[before - 1] != '/') return false;
  snprintf(folder, 4096, "%.*s", before ? (int)before : 1, before ? spec : ".");
  while (before > 1 && folder[before - 1] == '/') folder[--before] = 0;
  return true;
}

rf_status rf_model_resolve(const char *spec, rf_model *model, char folder[4096], rf_error *error) {
  char of_config[4096];
  if (folder_of_config(spec, of_config)) return rf_model_resolve(of_config, model, folder, error);
  if (folder) folder[0] = 0;
  if (!spec || !*spec)
    return RF_FAIL(error, RAFTER_INVALID,
                   "name a preset such as gpt2, a folder, or a shape such as gpt:layers=4,width=512",
                   "no model is given");
  size_t name_length = strcspn(spec, ":");
  const rf_model *base = find_model(PRESETS, PRESET_COUNT, spec, name_length);
  if (base && !spec[name_length] && !holds_config(spec)) {
    *model = *base;
    model->embed_scale = scale_of_tokens(model);
    return RAFTER_OK;
  }
  if (!base) base = find_model(BASES, BASE_COUNT, spec, name_length);
  struct stat status;
  bool there = stat(spec, &status) == 0;
  if (base && !there)
    return parse_shape(spec, base, spec[name_length] ? spec + name_length + 1 : "", model, error);
  if (!there) {
    char meant[160];
    preset_meant(spec, meant);
    if (*meant) return RF_FAIL(error, RAFTER_INVALID, meant, "no model at '%.300s'", spec);
    if (is_file_name(spec))
      return RF_FAIL(error, RAFTER_INVALID,
                     "give a folder with config.json, a .gguf file, or a .safetensors file with its "
                     "config.json next to it",
                     "no model at '%.300s' (no such file or folder)", spec);
    return unknown_model(spec, error);
  }
  char where[4096], path[4096 + 16];
  snprintf(where, sizeof where, "%s", spec);
  if (rf_text_ends_with(spec, ".gguf") || rf_text_ends_with(spec, ".bin")) {
    if (folder) snprintf(folder, 4096, "%s", spec);
    return rf_model_file_read(spec, model, error);
  }
  if (!S_ISDIR(status.st_mode)) {
    if (!rf_text_ends_with(spec, ".safetensors"))
      return RF_FAIL(error, RAFTER_INVALID,
                     "give a folder with config.json, a .gguf file, or a .safetensors file with its "
                     "config.json next to it",
                     "'%.300s' is not a model this version reads", spec);
    char *slash = strrchr(where, '/');
    if (slash) slash[slash == where] = 0;
    else snprintf(where, sizeof where, ".");
  }
  if (strlen(spec) >= sizeof where)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "the model's path is too long (expected below %zu bytes)",
                   sizeof where);
  snprintf(path, sizeof path, "%s/config.json", where);
  if (S_ISDIR(status.st_mode) && access(path, F_OK) && !rf_adapter_is(where)) {
    RF_TRY(rf_run_weights(where, path, error));
    if (strcmp(path, where) != 0) return rf_model_resolve(path, model, folder, error);
    return RF_FAIL(error, RAFTER_INVALID,
                   "give a folder with config.json or the folder of a run, a .gguf file, or a .safetensors "
                   "file with its config.json next to it",
                   "%.300s has no model (expected config.json, adapter_config.json, checkpoints or exactly "
                   "one .gguf file)",
                   where);
  }
  if (S_ISDIR(status.st_mode) && access(path, F_OK)) return resolve_adapter(where, model, folder, error);
  rf_model read;
  RF_TRY(rf_model_config_read(path, &read, error));
  if (folder) snprintf(folder, 4096, "%s", S_ISDIR(status.st_mode) ? where : spec);
  *model = read;
  return RAFTER_OK;
}

rf_status rf_model_require_runnable(const rf_model *model, rf_error *error) {
  if (!model->plan_only) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "`rafter plan` predicts its memory, speed and cost",
                 "this version plans %s but does not run it (%s)", model->name, model->plan_only);
}

rf_status rf_model_require_trainable(const rf_model *model, rf_error *error) {
  if (!model->router_choice || model->lora.rank > 0) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "train adapters with --lora",
                 "%s has an expert bias (e_score_correction_bias) that cannot be trained", model->name);
}
