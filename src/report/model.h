/* model.h - the report model: one JSON object of what runs left and plans say, which the page,
 * the terminal and scripts share. docs/formats.md, "The report model". */
#ifndef RF_REPORT_MODEL_H
#define RF_REPORT_MODEL_H

#include <jansson.h>

#include "base/base.h"

/* An empty model: {"rafter", "runs": [], "sweeps": [], "benches": []}. */
json_t *rf_report_model(void);

/* Adds what a path holds: the folder of a run (or the name of one below `root`), the output of
 * `rafter plan --json`, of `--sweep --json` or of `rafter bench --json`, as a file. Files are
 * hostile until checked: RAFTER_FAILED names the file, the field and what was expected there;
 * the model is then as it was. */
rf_status rf_report_add(json_t *model, const char *root, const char *path, rf_error *error);
/* Adds a plan that was made now; takes the reference. `of`: the id of the run that it is to be
 * held against; may be NULL. */
rf_status rf_report_add_plan(json_t *model, const char *name, const char *of, json_t *plan, rf_error *error);

/* The measured walk ("train", "decode") of a run's entry, and the plan that it walked; NULL:
 * none. */
const json_t *rf_report_walk_of(const json_t *run, const char *walk);
const json_t *rf_report_plan_of(const json_t *run, const char *walk);

#endif
