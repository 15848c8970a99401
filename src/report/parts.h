/* parts.h - what the forms of a plan say of the model's parts. Private to src/report. */
#ifndef RF_REPORT_PARTS_H
#define RF_REPORT_PARTS_H

#include "report/report.h"

/* Adds parameters_attention, ... to the object `model`. */
void rf_report_put_parameters(json_t *model, const rf_plan *plan);
/* Adds by_part and what sums it to the object `work`. */
void rf_report_put_work(json_t *work, const rf_plan *plan);
/* The same as a line each. */
void rf_report_print_parameters(FILE *out, const rf_plan *plan);
void rf_report_print_work(FILE *out, const rf_plan *plan);

#endif
