/* roofline_parts.h - declarations that the roofline_*.c files share. */
#ifndef RF_ROOFLINE_PARTS_H
#define RF_ROOFLINE_PARTS_H

#include "study/roofline.h"

typedef struct rf_number_type {
  const char *name;
  rf_dtype dtype; /* dtype whose peak FLOP/s apply */
  double bytes;
} rf_number_type;

typedef struct rf_question {
  const rf_options *o;
  rf_answer *answer;
  rf_machine machine; /* the data sheet of the machine, with the figures that options replace */
  bool has_model;
  rf_model model;
  rf_params params;
  rf_pool *pool;
  /* dtype: type of arithmetic and activations. weight: type of weights. kv: type of the KV
   * cache. */
  rf_number_type dtype, weight, kv;
  bool widened;     /* true: arithmetic runs at the peak FLOP/s of a wider dtype */
  double chips;     /* number of chips from --chips, otherwise from the machine */
  uint64_t used[8]; /* one bit per option, which is set if the answer has used the option */
} rf_question;

/* ---- asking (roofline.c) ---- */

/* rf_asked returns true if the user gave the option. rf_value returns the first of these values:
 * the given value, the model's field of this name, the option's default, NaN. */
bool rf_asked(rf_question *q, const char *name);
double rf_value(rf_question *q, const char *name);
double rf_value_or(rf_question *q, const char *name, double otherwise);
/* Returns the number of parameters of the matrices that multiply one token: --active-parameters,
 * --parameters, or P_mm of --model (rf_params.matmul). P_mm leaves out lookup tables, and counts a
 * tied table once, as the head. Returns `otherwise` if neither these options nor a model is
 * given. */
double rf_multiplied(rf_question *q, double otherwise);
double rf_usd_per_hour(rf_question *q); /* USD per chip and hour (--price); 0: unknown */
/* returns the given word or the default; NULL: unset */
const char *rf_word(rf_question *q, const char *name);
bool rf_flag(rf_question *q, const char *name);
rf_status rf_need(rf_question *q, const char *name, double *value, rf_error *error);
/* Sets *experts to the experts per layer, and *used to the experts per token (0: none).
 * RAFTER_INVALID: a token uses too many. */
rf_status rf_experts(rf_question *q, double *experts, double *used, rf_error *error);

/* ---- the machine ---- */

rf_status rf_peak(rf_question *q, double *flops, rf_error *error); /* peak FLOP/s for q->dtype */
/* Sets *bps to the bytes/s of one chip over hbm, vmem, pcie, ici or dcn. ici is one torus axis in
 * both directions, or the link to the switch. With a switch, dcn is the chip's part of its node's
 * rate. */
rf_status rf_link_bps(rf_question *q, const char *link, double *bps, rf_error *error);
/* Sets *group to the chips that --axes, --wrap and --slices describe. */
rf_status rf_asked_group(rf_question *q, rf_group *group, rf_error *error);
/* Sets *bytes to --bytes, or to the size of an array with --shape, --dtype and --count. */
rf_status rf_asked_bytes(rf_question *q, double *bytes, rf_error *error);

/* ---- answering ---- */

void rf_fact_add(rf_question *q, const char *key, const char *what, rf_unit unit, double value);
#define RF_ADD_FACT(name, UNIT) \
  static inline void rf_add_##name(rf_question *q, const char *key, const char *what, double value) { \
    rf_fact_add(q, key, what, RF_UNIT_##UNIT, value); \
  }
RF_ADD_FACT(number, NUMBER)
RF_ADD_FACT(bytes, BYTES)
RF_ADD_FACT(seconds, SECONDS)
RF_ADD_FACT(flops, FLOPS)
void rf_fact_text(rf_question *q, const char *key, const char *what, const char *text);
void rf_fact_note(rf_question *q, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds the six figures that every answer has. NaN means that a figure has no value. */
void rf_fact_head(rf_question *q, double flops, double bytes, double seconds, const char *bound,
                  double critical);
/* Adds the time of arithmetic and the time of traffic. The answer's time is the larger of the time
 * of arithmetic and the time of traffic. */
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
