/* plans.h - a run's plans as one JSON object: the first plan, with the others in "plans". */
#ifndef RF_REPORT_PLANS_H
#define RF_REPORT_PLANS_H

#include <jansson.h>

#include "report/report.h"

/* Makes the JSON object of a run's plan.json; the caller owns the object. */
json_t *rf_report_plans_json(const rf_report_pass *pass, int passes);
/* Sets the name of the plan object `json`, and adds `prefill` (may be NULL) to its "plans". */
void rf_report_name_plans(json_t *json, const rf_plan *plan, const rf_plan *prefill);

#endif
