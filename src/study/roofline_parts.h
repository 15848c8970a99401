/* roofline_parts.h - what the files behind roofline.h share. */
#ifndef RF_ROOFLINE_PARTS_H
#define RF_ROOFLINE_PARTS_H

#include "study/roofline.h"

typedef struct rf_number_type {
  const char *name;
  rf_dtype dtype; /* whose peak it computes at */
  double bytes;
} rf_number_type;

typedef struct rf_question {
  const rf_options *o;
  rf_answer *answer;
  rf_machine machine; /* with the figures that options replace */
  bool has_model;
  rf_model model;
  rf_params params;
  rf_pool *pool;
  rf_number_type dtype, weight, kv; /* of the arithmetic and activations, of weights, of the cache */
  bool widened;                     /* the arithmetic runs at a wider dtype's peak */
  double chips;                     /* --chips, else the machine's */
  uint64_t used[8];                 /* which rows of the options table the answer asked for */
} rf_question;

/* ---- asking (roofline.c) ---- */

/* Whether the option was typed; and its value: as typed, else the model's field of that name,
 * else the default; NaN when there is none. */
bool rf_asked(rf_question *q, const char *name);
double rf_value(rf_question *q, const char *name);
double rf_value_or(rf_question *q, const char *name, double otherwise);
double rf_usd_per_hour(rf_question *q);                /* USD of a chip and hour, as --price says; 0: none */
const char *rf_word(rf_question *q, const char *name); /* as typed or the default; NULL: unset */
bool rf_flag(rf_question *q, const char *name);
/* A value that the answer cannot do without. */
rf_status rf_need(rf_question *q, const char *name, double *value, rf_error *error);
/* Experts of a layer and of a token, 0: none; RAFTER_INVALID where a token uses more than there
 * are. */
rf_status rf_experts(rf_question *q, double *experts, double *used, rf_error *error);

/* ---- the machine ---- */

rf_status rf_peak(rf_question *q, double *flops, rf_error *error); /* of all dtypes: q->dtype's */
/* Bytes/s of one chip over a link: hbm, vmem, pcie, ici (one axis, both ways; of a switch: out
 * of a chip), dcn (of a switch: its share of what leaves a node). */
rf_status rf_link_bps(rf_question *q, const char *link, double *bps, rf_error *error);
/* The group of chips that --axes, --wrap and --slices name. */
rf_status rf_asked_group(rf_question *q, rf_group *group, rf_error *error);
/* The bytes that --bytes, or --shape, --dtype and --count, name. */
rf_status rf_asked_bytes(rf_question *q, double *bytes, rf_error *error);

/* ---- answering ---- */

void rf_fact_add(rf_question *q, const char *key, const char *what, rf_unit unit, double value);
void rf_fact_text(rf_question *q, const char *key, const char *what, const char *text);
void rf_fact_note(rf_question *q, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The six keys that every answer has. NaN: none. */
void rf_fact_head(rf_question *q, double flops, double bytes, double seconds, const char *bound,
                  double critical);
/* The larger of arithmetic and traffic, with both. */
rf_status rf_fact_roofline(rf_question *q, double flops, double bytes, const char *link, double critical,
                           rf_error *error);

/* ---- the operations ---- */

rf_status rf_roofline_matmul(rf_question *q, rf_error *error);
rf_status rf_roofline_einsum(rf_question *q, rf_error *error);
rf_status rf_roofline_attention(rf_question *q, rf_error *error);
rf_status rf_roofline_transfer(rf_question *q, rf_error *error);
rf_status rf_roofline_critical_batch(rf_question *q, rf_error *error);
rf_status rf_roofline_collective(rf_question *q, rf_error *error);
rf_status rf_roofline_array(rf_question *q, rf_error *error);
rf_status rf_roofline_parallelism(rf_question *q, rf_error *error);
rf_status rf_roofline_cost(rf_question *q, rf_error *error);
rf_status rf_roofline_memory(rf_question *q, rf_error *error);
rf_status rf_roofline_kv(rf_question *q, rf_error *error);
rf_status rf_roofline_decode(rf_question *q, rf_error *error);

#endif
