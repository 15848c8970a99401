/* rope.c - which keys a layer sees and how its heads turn. */
#include "model/model.h"

#include <math.h>

const char *rf_family_name(rf_family family) {
  static const char *const names[RF_FAMILIES] = {"gpt", "llama", "mistral", "gemma", "gemma2", "gemma3", "qwen2", "qwen3", "gpt-neox", "mixtral"};
  return (unsigned)family < RF_FAMILIES ? names[family] : "unknown";
}

int64_t rf_model_window(const rf_model *model, int layer) {
  bool full = model->window_period > 0 && (layer + 1) % model->window_period == 0;
  return full ? 0 : model->window;
}

rf_rope rf_model_rope(const rf_model *model, int layer) {
  rf_rope rope = model->rope;
  if (rope.dim == 0) rope.dim = (int32_t)model->head_dim;
  if (rope.scaling == RF_ROPE_TABLE) rope.divisor = model->rope_divisor;
  if (model->local_theta > 0 && rf_model_window(model, layer) > 0) rope = (rf_rope){.theta = model->local_theta, .dim = rope.dim};
  return rope;
}

double rf_rope_frequency(const rf_rope *rope, int64_t i) {
  double frequency = pow((double)rope->theta, -2.0 * (double)i / (double)rope->dim), factor = (double)rope->factor;
  if (rope->scaling == RF_ROPE_LINEAR) return frequency / factor;
  if (rope->scaling == RF_ROPE_TABLE) return frequency / (double)rope->divisor[i];
  if (rope->scaling != RF_ROPE_LLAMA3) return frequency;
  double turns = (double)rope->original * frequency / (2 * M_PI), low = (double)rope->low, high = (double)rope->high;
  if (turns <= low) return frequency / factor;
  if (turns >= high) return frequency;
  double kept = (turns - low) / (high - low);
  return kept * frequency + (1 - kept) * frequency / factor;
}
