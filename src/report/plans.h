/* plans.h - the plans of a run as one object: the first at the top, the others in its "plans". */
#ifndef RF_REPORT_PLANS_H
#define RF_REPORT_PLANS_H

#include <jansson.h>

#include "report/report.h"

/* plan.json of a run; the caller's. */
json_t *rf_report_plans_json(const rf_report_walk *walk, int walks);
/* Gives a plan object its name, and in "plans" the prefill plan of a decode plan. */
void rf_report_name_plans(json_t *json, const rf_plan *plan, const rf_plan *prefill);

#endif
