/* init.c - initial values of parameters. Element i depends only on (seed, name, i), so the
 * values are the same with every chunk size and number of threads. */
#include "model/model.h"

#include <math.h>

/* The standard deviation of a standard normal distribution that is truncated to [-2, 2]. As in
 * flax, samples are divided by CUT_STD, so that they have the requested standard deviation. */
#define CUT_STD 0.87962566103423978

/* Standard normals for elements 4*group .. 4*group+3. If `cut` is true, draws values with |x| > 2
 * again. */
static void draw_normals(uint64_t key, uint64_t group, bool cut, float out[4]) {
  bool missing[4] = {true, true, true, true};
  for (uint64_t attempt = 0;; ++attempt) {
    uint32_t word[4];
    float normal[4];
    rf_philox(key, group, attempt, word);
    rf_normal_pair(word[0], word[1], normal);
    rf_normal_pair(word[2], word[3], normal + 2);
    bool again = false;
    for (int i = 0; i < 4; ++i) {
      if (!missing[i]) continue;
      missing[i] = cut && fabsf(normal[i]) > 2.0f;
      if (missing[i]) again = true;
      else out[i] = normal[i];
    }
    if (!again) return;
  }
}

void rf_param_init(const rf_param *param, uint64_t seed, int64_t first, int64_t count, float *out) {
  if (param->init == RF_INIT_ZEROS || param->init == RF_INIT_ONES) {
    for (int64_t i = 0; i < count; ++i) out[i] = param->init == RF_INIT_ONES ? 1.0f : 0.0f;
    return;
  }
  bool cut = param->init == RF_INIT_LECUN;
  float std = cut ? (float)(param->init_std / CUT_STD) : param->init_std;
  uint64_t key = rf_key(seed, rf_name_key("init"), rf_name_key(param->name));
  for (int64_t i = first; i < first + count;) {
    float normal[4];
    draw_normals(key, (uint64_t)i / 4, cut, normal);
    int64_t end = (i / 4 + 1) * 4;
    for (; i < end && i < first + count; ++i) out[i - first] = std * normal[i % 4];
  }
}
