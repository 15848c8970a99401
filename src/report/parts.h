/* parts.h - what the forms of a plan say of the model's parts and of a pipeline's stages.
 * Private to src/report. */
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
/* pipeline.c: the stages of a plan that has some. */
json_t *rf_report_pipeline_json(const rf_plan *plan);
void rf_report_print_pipeline(FILE *out, const rf_plan *plan);

json_t *rf_report_shape_json(const rf_tensor *tensor);

/* Buffers of one kind over all blocks: "block.N/mlp/up/u". */
typedef struct rf_report_buffers {
  char name[96];
  int tensor, count; /* tensor: the first of them */
  int64_t bytes;     /* of all; as laid out */
  int64_t each_bytes;
} rf_report_buffers;

/* What is alive where the memory is largest, by kind, largest first. malloc'ed; NULL without
 * memory. */
rf_report_buffers *rf_report_largest(const rf_plan *plan, int *count);
json_t *rf_report_largest_json(const rf_plan *plan);

#endif
