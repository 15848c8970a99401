/* settings.c - see settings.h. */
#include "generate/settings.h"

#include "run/record.h"

rf_status rf_infer_open(const rf_infer_settings *s, const rf_plan *const *plans, int count, rf_run **run,
                        rf_error *error) {
  RF_TRY(rf_plan_require_fit(plans[0], error));
  RF_TRY(rf_run_open(plans, count, s->debug, run, error));
  if (!rf_run_named(*run, 0, "tokens", NULL)) return RAFTER_OK;
  int64_t began = rf_phase_begin();
  rf_status status = rf_fill_weights(*run, 0, plans[0], s->weights_folder, s->seed, s->progress, error);
  rf_phase_end(RF_PHASE_LOAD, began);
  if (rf_run_gathers(*run)) status = rf_run_settle(*run, status, error);
  return status == RAFTER_OK ? rf_run_same_weights(*run, error) : status;
}
