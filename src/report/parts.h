/* parts.h - parts of a plan's JSON and text: model parts, pipeline stages and largest buffers. */
#ifndef RF_REPORT_PARTS_H
#define RF_REPORT_PARTS_H

#include "report/report.h"

/* Returns the time and work of one step of the whole job. All printed times and rates come from
 * this function. */
rf_plan_totals rf_report_totals(const rf_report_plan *report);
/* Returns one unit of the whole job. All printed costs, --tokens and --budget use this function. */
rf_report_unit rf_report_unit_of(const rf_report_plan *report);
/* Tokens of the largest prompt that one forward pass of the prefill plan computes, and the seconds
 * of this pass. Other prompts wait. The plan's own step_seconds is for the end of a full context. */
int64_t rf_report_prompt_tokens(const rf_plan *prefill);
double rf_report_prompt_seconds(const rf_plan *prefill);
/* Adds parameters_attention and the other parameter counts to the object `model`. */
void rf_report_put_parameters(json_t *model, const rf_plan *plan);
/* Adds "by_part" (the FLOPs of each model part) and the sums of its groups to the object `work`. */
void rf_report_put_work(json_t *work, const rf_plan *plan);
/* Each of the next two functions prints one line of text. */
void rf_report_print_parameters(FILE *out, const rf_plan *plan);
void rf_report_print_work(FILE *out, const rf_report_plan *report);
/* pipeline.c: the stages of a plan with pipeline parallelism. */
json_t *rf_report_pipeline_json(const rf_plan *plan);
void rf_report_print_pipeline(FILE *out, const rf_plan *plan);

json_t *rf_report_shape_json(const rf_tensor *tensor);
/* plan_json.c: adds "layer" and "sublayer" to the object of an op if the op has them. */
void rf_report_put_place(json_t *row, const rf_op *op);
/* Copies the name of an op or tensor, and replaces the block's number by "*". */
void rf_report_kind_name(const char *name, char kind[160]);

/* Buffers whose names differ only in the number of the block. `name` has "*" in place of this
 * number. */
typedef struct rf_report_buffers {
  char name[160];
  int tensor, count; /* tensor: index of the first buffer. count: number of buffers. */
  int64_t bytes;     /* bytes of all these buffers, with alignment */
  int64_t each_bytes;
} rf_report_buffers;

/* Returns the buffers that are alive at the peak by kind, the largest first. The result is
 * malloc'ed, or NULL. */
rf_report_buffers *rf_report_largest(const rf_plan *plan, int *count);
json_t *rf_report_largest_json(const rf_plan *plan);

#endif
