/* preferences.c - plans the reference model of a training step on preferences. */
#include "advise/jobs.h"

#include "base/text.h"
#include "rl/references.h"

#include <string.h>

/* If the reference pass needs the larger arena, the plan's memory becomes the memory of this
 * pass. */
static void take_memory(rafter_plan *p, const rf_plan *reference) {
  const rf_plan *const list[] = {p->plan, reference};
  const int64_t joint = rf_plan_joint_bytes(list, 2), room = rf_plan_room(&p->settings.plan);
  if (joint <= p->plan->arena_bytes) return;
  json_t *by_class = json_object();
  for (int c = 0; c < RF_CLASSES; c++)
    json_object_set_new(by_class, rf_class_name((rf_class)c),
                        json_integer((json_int_t)reference->by_class[c]));
  p->needs = joint;
  json_object_set_new(p->extra, "memory",
                      json_pack("{sI sb sI ss so}", "peak_bytes", (json_int_t)joint, "fits", joint <= room,
                                "headroom_bytes", (json_int_t)(room - joint), "peak_op",
                                rf_plan_peak(reference), "by_class", by_class));
}

rf_status rf_job_reference(rafter_plan *p, rf_error *error) {
  const rf_model *model = &p->settings.model;
  rf_model base = *model;
  rf_infer_settings settings;
  rf_plan *reference = NULL;
  char a[32], b[32];
  if (!rf_objective_has_reference(&p->plan->options.build)) return RAFTER_OK;
  if (!*model->lora.folder) base.lora = (rf_lora){0};
  RF_TRY(rf_reference_plan(&base, p->plan, &settings, &reference, error));
  take_memory(p, reference);
  const double seconds = rf_reference_seconds(reference, p->plan), step = p->plan->step_seconds;
  const int64_t pairs = p->plan->options.build.microbatch * p->plan->options.build.accumulate / 2;
  json_object_set_new(p->extra, "reference",
                      json_pack("{sf sI sI ss}", "seconds", seconds, "pairs", (json_int_t)pairs, "peak_bytes",
                                (json_int_t)reference->arena_bytes, "digest", reference->digest));
  fprintf(p->extra_text,
          "\nreference %s for the %lld pair%s of a step (the step itself: %s)\n  The run computes the "
          "reference once for each pair, and keeps the log-probabilities for all\n  epochs.\n",
          rf_text_seconds(seconds, a), (long long)pairs, rf_plural(pairs), rf_text_seconds(step, b));
  rf_plan_free(reference);
  return RAFTER_OK;
}
