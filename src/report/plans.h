/* plans.h - the plans of a run as one JSON object: the first plan, with the others in "plans". */
#ifndef RF_REPORT_PLANS_H
#define RF_REPORT_PLANS_H

#include <jansson.h>

#include "report/report.h"

/* plan.json of a run; the caller owns it. */
json_t *rf_report_plans_json(const rf_report_walk *walk, int walks);
/* Sets the name of a plan object and adds the prefill plan of a decode plan to its "plans". */
void rf_report_name_plans(json_t *json, const rf_plan *plan, const rf_plan *prefill);

#endif
