/* plan.c - the functions of rafter_plan in rafter.h. */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

#include "advise/planned.h"

rafter_status rafter_plan_new(const rafter_job *job, rafter_plan **plan, rafter_error *error) {
  return rf_plan_of_options(job->options, plan, error);
}

rafter_status rafter_plan_json(const rafter_plan *plan, char **text, rafter_error *error) {
  json_t *json = NULL;
  RF_TRY(rf_plan_object(plan, &json, error));
  *text = rf_json_text(json, 0);
  json_decref(json);
  return *text ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a plan");
}

rafter_status rafter_plan_text(const rafter_plan *plan, char **text, rafter_error *error) {
  return rf_plan_table(plan, text, error);
}

/* Makes the plan's JSON object at the first call and keeps the object for later calls. Two threads
 * may not call this function at the same time. */
rafter_status rafter_plan_number(const rafter_plan *plan, const char *pointer, double *value,
                                 rafter_error *error) {
  char part[128];
  if (!plan->object) RF_TRY(rf_plan_object(plan, &((rafter_plan *)plan)->object, error));
  json_t *at = plan->object;
  for (const char *p = pointer; at && *p == '/';) {
    size_t n = strcspn(++p, "/");
    if (n >= sizeof part) n = sizeof part - 1;
    memcpy(part, p, n);
    part[n] = 0;
    at = json_is_array(at) ? json_array_get(at, strtoul(part, NULL, 10)) : json_object_get(at, part);
    p += n;
  }
  if (json_is_boolean(at)) *value = json_is_true(at);
  else if (json_is_number(at)) *value = json_number_value(at);
  else
    return RF_FAIL(error, RAFTER_INVALID, "for example /memory/peak_bytes", "a plan has no number at %s",
                   pointer);
  return RAFTER_OK;
}
