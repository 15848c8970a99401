/* plan.h - what the files behind `rafter plan` share. */
#ifndef RF_API_PLAN_H
#define RF_API_PLAN_H

#include "api/api.h"

/* The object of `rafter plan --json`; the caller's. */
rf_status rf_plan_object(const rafter_plan *plan, json_t **json, rf_error *error);
/* Plans a job: its object, its table to the sink; either may be NULL. */
rf_status rf_plan_once(const rafter_job *job, const rafter_sink *sink, json_t **json, rf_error *error);

/* The forms of the command. */
rf_status rf_plan_sweep(const rafter_job *job, const rafter_sink *sink, rf_error *error);

#endif
