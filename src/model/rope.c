/* rope.c - attention windows and rotary frequencies of a layer. */
#include "model/model.h"

#include <math.h>

const char *rf_family_name(rf_family family) {
  static const char *const names[RF_FAMILIES] = {"gpt",       "llama",     "mistral", "gemma",    "gemma2",
                                                 "gemma3",    "qwen2",     "qwen3",   "gpt-neox", "mixtral",
                                                 "deepseek2", "deepseek3", "palm"};
  return (unsigned)family < RF_FAMILIES ? names[family] : "unknown";
}

int64_t rf_model_window(const rf_model *model, int layer) {
  bool full = model->window_listed ? model->window_full[layer / 8] >> layer % 8 & 1
                                   : model->window_period > 0 && (layer + 1) % model->window_period == 0;
  return full ? 0 : model->window;
}

rf_rope rf_model_rope(const rf_model *model, int layer) {
  rf_rope rope = model->rope;
  if (rope.dim == 0) rope.dim = (int32_t)(model->kv_rank ? model->rope_dim : model->head_dim);
  rope.tail = model->kv_rank > 0;
  if (rope.scaling == RF_ROPE_TABLE) rope.divisor = model->rope_divisor;
  if (model->local_theta > 0 && rf_model_window(model, layer) > 0)
    rope = (rf_rope){.theta = model->local_theta, .dim = rope.dim};
  return rope;
}

/* Pairs before `first` keep their plain frequency. The frequency of pairs after `last` is divided
 * by `factor`; the frequencies of pairs in between are blended linearly. Source: transformers,
 * modeling_rope_utils, _compute_yarn_parameters. */
static double yarn_frequency(const rf_rope *rope, double i, double frequency) {
  double dim = (double)rope->dim, pairs = dim / (2 * log((double)rope->theta)),
         turns = (double)rope->original / (2 * M_PI);
  double first = floor(pairs * log(turns / (double)rope->high)),
         last = ceil(pairs * log(turns / (double)rope->low));
  if (first < 0) first = 0;
  if (last > dim - 1) last = dim - 1;
  double slow = (i - first) / (last > first ? last - first : 0.001);
  slow = slow < 0 ? 0 : slow > 1 ? 1 : slow;
  return frequency * (1 - slow) + frequency / (double)rope->factor * slow;
}

double rf_rope_frequency(const rf_rope *rope, int64_t i) {
  double frequency = pow((double)rope->theta, -2.0 * (double)i / (double)rope->dim),
         factor = (double)rope->factor;
  if (rope->scaling == RF_ROPE_LINEAR) return frequency / factor;
  if (rope->scaling == RF_ROPE_TABLE) return frequency / (double)rope->divisor[i];
  if (rope->scaling == RF_ROPE_YARN) return yarn_frequency(rope, (double)i, frequency);
  if (rope->scaling != RF_ROPE_LLAMA3) return frequency;
  double turns = (double)rope->original * frequency / (2 * M_PI), low = (double)rope->low,
         high = (double)rope->high;
  if (turns <= low) return frequency / factor;
  if (turns >= high) return frequency;
  double kept = (turns - low) / (high - low);
  return kept * frequency + (1 - kept) * frequency / factor;
}
