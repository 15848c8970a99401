/* plans.c - see plans.h. */
#include "report/plans.h"

#include <string.h>

static const char *const JOBS[] = {
    [RF_JOB_TRAIN] = "train", [RF_JOB_GENERATE] = "generate", [RF_JOB_SCORE] = "score"};

static json_t *plan_of(const rf_plan *plan, const rf_plan *prefill, const char *name) {
  rf_report_plan report = {
      .plan = plan, .prefill = prefill, .job = JOBS[plan->options.build.job], .tensors = true, .ops = true};
  json_t *json = rf_report_plan_json(&report);
  if (json) json_object_set_new(json, "name", json_string(name));
  return json;
}

json_t *rf_report_plans_json(const rf_report_pass *pass, int passes) {
  const rf_plan *prefill = NULL;
  for (int i = 1; i < passes; i++)
    if (!strcmp(pass[i].name, "prefill")) prefill = pass[i].plan;
  json_t *json = plan_of(pass[0].plan, prefill, pass[0].name), *others = json_array();
  for (int i = 1; i < passes; i++) json_array_append_new(others, plan_of(pass[i].plan, NULL, pass[i].name));
  if (passes > 1) json_object_set_new(json, "plans", others);
  else json_decref(others);
  return json;
}

void rf_report_name_plans(json_t *json, const rf_plan *plan, const rf_plan *prefill) {
  const char *job = JOBS[plan->options.build.job];
  json_object_set_new(json, "name", json_string(plan->options.build.job == RF_JOB_GENERATE ? "decode" : job));
  if (prefill) json_object_set_new(json, "plans", json_pack("[o]", plan_of(prefill, NULL, "prefill")));
}
