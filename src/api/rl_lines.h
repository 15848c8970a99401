/* rl_lines.h - the lines of metrics.jsonl and samples.jsonl that `rafter rl` writes. docs/rl.md
 * lists the keys. */
#ifndef RF_RL_LINES_H
#define RF_RL_LINES_H

#include "rl/rl.h"

/* The line of a step. The caller frees the object. */
json_t *rf_rl_line_step(const rf_rl *rl, const rf_rl_report *report);
/* Adds the figures of an evaluation to a line. */
void rf_rl_line_evaluation(const rf_rl *rl, const rf_rl_report *report, json_t *line);
/* Returns a line for a group: its prompt, its answers and their tokens. The caller frees the
 * object. */
json_t *rf_rl_line_group(const rf_rl *rl, int64_t group, int64_t step, bool evaluation);

#endif
