/* parts.h - parts of a plan's JSON and text: model parts, pipeline stages, largest buffers. */
#ifndef RF_REPORT_PARTS_H
#define RF_REPORT_PARTS_H

#include "report/report.h"

/* Time and work of one step of the whole job. All figures of time and rate come from here. */
rf_plan_totals rf_report_totals(const rf_report_plan *report);
/* One unit of the whole job. All figures of cost, --tokens and --budget come from here. */
rf_report_unit rf_report_unit_of(const rf_report_plan *report);
/* Adds parameters_attention and the other parameter counts to the object `model`. */
void rf_report_put_parameters(json_t *model, const rf_plan *plan);
/* Adds "by_part" (FLOPs of each model part) and the sums of its groups to the object `work`. */
void rf_report_put_work(json_t *work, const rf_plan *plan);
/* Each of these two functions prints one line of text. */
void rf_report_print_parameters(FILE *out, const rf_plan *plan);
void rf_report_print_work(FILE *out, const rf_report_plan *report);
/* pipeline.c: the stages of a plan with pipeline parallelism. */
json_t *rf_report_pipeline_json(const rf_plan *plan);
void rf_report_print_pipeline(FILE *out, const rf_plan *plan);

json_t *rf_report_shape_json(const rf_tensor *tensor);
/* plan_json.c: adds "layer" and "sublayer" to the object of an op, each only if the op has one. */
void rf_report_put_place(json_t *row, const rf_op *op);
/* Copies the name of an op or tensor, with "*" in place of the block's number. */
void rf_report_kind_name(const char *name, char kind[160]);

/* Buffers whose names differ only in the block's number. `name` has "*" for this number. */
typedef struct rf_report_buffers {
  char name[160];
  int tensor, count; /* tensor: index of the first buffer. count: number of buffers. */
  int64_t bytes;     /* sum over all buffers, with alignment */
  int64_t each_bytes;
} rf_report_buffers;

/* The buffers that are alive at the peak, by kind, largest first. malloc'ed, or NULL. */
rf_report_buffers *rf_report_largest(const rf_plan *plan, int *count);
json_t *rf_report_largest_json(const rf_plan *plan);

#endif
