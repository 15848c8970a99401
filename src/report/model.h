/* model.h - the report model: one JSON object of runs, plans, sweeps and benches. The page, the
 * terminal output and scripts read the model. Format: docs/formats.md, "The report model". */
#ifndef RF_REPORT_MODEL_H
#define RF_REPORT_MODEL_H

#include <jansson.h>

#include "base/base.h"

/* An empty model: {"rafter", "runs": [], "sweeps": [], "benches": []}. */
json_t *rf_report_model(void);

/* Adds the folder of a run (or its name below `root`), or a file with the output of `rafter plan
 * --json`, `rafter plan --sweep --json` or `rafter bench --json`. All fields are checked.
 * RAFTER_FAILED names the file, the field and the expected value. Then the model is unchanged. */
rf_status rf_report_add(json_t *model, const char *root, const char *path, rf_error *error);
/* Adds a plan and takes ownership. `of`: id of the run to compare the plan with; may be NULL. */
rf_status rf_report_add_plan(json_t *model, const char *name, const char *of, json_t *plan, rf_error *error);

/* rf_report_pass_of returns the measurements of a plan ("train", "decode", ...) of a run.
 * rf_report_plan_of returns the plan itself. NULL: there is none. */
const json_t *rf_report_pass_of(const json_t *run, const char *pass);
const json_t *rf_report_plan_of(const json_t *run, const char *pass);

#endif
