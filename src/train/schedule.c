#include "train/schedule.h"

#include <math.h>

static double progress(int64_t step, int64_t first, int64_t last) {
  if (step <= first) return 0;
  return step >= last ? 1 : (double)(step - first) / (double)(last - first);
}

double rf_schedule_lr(const rf_schedule *s, int64_t step) {
  if (step <= s->warmup && s->kind != RF_SCHEDULE_CONSTANT) return s->peak * (double)step / (double)s->warmup;
  double x = progress(step, s->warmup, s->steps);
  switch (s->kind) {
  case RF_SCHEDULE_WARMUP_COSINE:
    return s->floor + (s->peak - s->floor) * 0.5 * (1 + cos(3.14159265358979323846 * x));
  case RF_SCHEDULE_WARMUP_EXPONENTIAL: return s->peak * pow(s->floor > 0 ? s->floor / s->peak : 0.01, x);
  case RF_SCHEDULE_WSD: return s->peak + (s->floor - s->peak) * progress(step, s->steps - s->decay, s->steps);
  case RF_SCHEDULE_CONSTANT: break;
  }
  return s->peak;
}
