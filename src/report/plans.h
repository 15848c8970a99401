/* plans.h - a run's plans as one JSON object. The object is the first plan, and its list "plans"
 * has the other plans. */
#ifndef RF_REPORT_PLANS_H
#define RF_REPORT_PLANS_H

#include <jansson.h>

#include "report/report.h"

/* Makes the JSON object of a run's plan.json. The caller owns this object. */
json_t *rf_report_plans_json(const rf_report_pass *pass, int passes);
/* Sets the name of the plan object `json`, and adds `prefill` (may be NULL) to its "plans". */
void rf_report_name_plans(json_t *json, const rf_plan *plan, const rf_plan *prefill);

#endif
