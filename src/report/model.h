/* model.h - the report model: one JSON object of runs, plans, sweeps and benches. The page, the
 * terminal output and scripts read the report model. Format: docs/formats.md, "The report
 * model". */
#ifndef RF_REPORT_MODEL_H
#define RF_REPORT_MODEL_H

#include <jansson.h>

#include "base/base.h"

/* Returns an empty model: {"rafter", "runs": [], "sweeps": [], "benches": []}. */
json_t *rf_report_model(void);

/* Adds a run or a file to the model. A run is given by its folder, or by its name below `root`. A
 * file has the output of `rafter plan --json`, `rafter plan --sweep --json` or `rafter bench
 * --json`. All fields are checked. RAFTER_FAILED: the error names the file, the field and the
 * expected value. After an error, the model is unchanged. */
rf_status rf_report_add(json_t *model, const char *root, const char *path, rf_error *error);
/* Adds a plan and takes ownership. `of` is the id of the run to compare the plan with, or NULL. */
rf_status rf_report_add_plan(json_t *model, const char *name, const char *of, json_t *plan, rf_error *error);

/* rf_report_pass_of returns the measurements of a run's plan ("train", "decode", ...).
 * rf_report_plan_of returns the plan itself. NULL: there is none. */
const json_t *rf_report_pass_of(const json_t *run, const char *pass);
const json_t *rf_report_plan_of(const json_t *run, const char *pass);

#endif
