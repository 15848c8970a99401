/* attr.h - attributes of ops: a small struct per family of ops, next to what every op has. Each
 * list of fields below makes both the struct and its field table, which the digest of a plan and
 * the printed graph read: a field is one line. */
#ifndef RF_GRAPH_ATTR_H
#define RF_GRAPH_ATTR_H

#include "graph/mesh/mesh.h"
#include "model/model.h"

enum { RF_MAX_OUTPUTS = 6 };

/* How an output that is a gradient (or a running sum) is written. ADD always adds to what is
 * there; MICRO writes in the first microbatch of a step and adds in the later ones. Both
 * continue the fixed chain of additions, so they never reorder it. */
typedef enum rf_accumulate { RF_WRITE, RF_ACCUMULATE_MICRO, RF_ACCUMULATE_ADD } rf_accumulate;

typedef enum rf_epilogue { RF_EPILOGUE_NONE, RF_EPILOGUE_GELU, RF_EPILOGUE_RESIDUAL } rf_epilogue;

/* FIELD(of, type, name) is `type name;` in a struct, and a row of a field table for the member
 * `of name` of rf_attr: {"eps", RF_FIELD_float, offsetof(rf_attr, norm.eps), 4}. */
#define RF_ATTR_MEMBER(of, type, name) type name;

// clang-format off
/* How a router's logits become scores and weights: rf_model's router_* fields. */
#define RF_ATTR_ROUTER(FIELD, of) \
  FIELD(of, bool, sigmoid) \
  FIELD(of, bool, as_is) \
  FIELD(of, float, scale) /* 0: 1 */ \
  FIELD(of, int32_t, groups) \
  FIELD(of, int32_t, groups_used)
typedef struct rf_router { RF_ATTR_ROUTER(RF_ATTR_MEMBER, ) } rf_router;

/* Every op. */
#define RF_ATTR_COMMON(FIELD, of) \
  FIELD(of, rf_axes, axes)   /* of the group of chips; outside collectives: those that split a sum or table */ \
  FIELD(of, int32_t, group)  /* chips of the group */ \
  FIELD(of, float, fill)     /* experts on several chips: share of the room that is expected to be used; 0: 1 */

/* Fields of several ops: an op uses those that its rules and kernels name. */
#define RF_ATTR_FLAT(FIELD, of) \
  FIELD(of, float, eps) \
  FIELD(of, float, offset) \
  FIELD(of, float, scale) \
  FIELD(of, float, softcap) \
  FIELD(of, int32_t, heads) \
  FIELD(of, int32_t, kv_heads) \
  FIELD(of, int32_t, head_dim) \
  FIELD(of, int32_t, window) \
  FIELD(of, rf_dtype, dtype) \
  FIELD(of, rf_dtype, softmax) \
  FIELD(of, rf_rope, rope) \
  FIELD(of, bool, inverse) \
  FIELD(of, rf_epilogue, epilogue) \
  FIELD(of, bool, transpose) \
  FIELD(of, bool, fast) \
  FIELD(of, float, dropout) \
  FIELD(of, uint64_t, site) \
  FIELD(of, int32_t, token_step) \
  FIELD(of, float, beta1) \
  FIELD(of, float, beta2) \
  FIELD(of, float, weight_decay) \
  FIELD(of, rf_lora_parts, lora) \
  FIELD(of, float, clip) \
  FIELD(of, int32_t, experts) \
  FIELD(of, int32_t, experts_used) \
  FIELD(of, rf_router, router) \
  FIELD(of, int32_t, value_dim) \
  FIELD(of, int32_t, latent) \
  FIELD(of, int32_t, index) \
  FIELD(of, int32_t, dim) \
  FIELD(of, int32_t, to) \
  FIELD(of, uint8_t, form) \
  FIELD(of, int64_t, whole) \
  FIELD(of, int64_t, part)
// clang-format on

typedef struct rf_attr {
  rf_accumulate accumulate[RF_MAX_OUTPUTS];
  RF_ATTR_COMMON(RF_ATTR_MEMBER, )
  RF_ATTR_FLAT(RF_ATTR_MEMBER, )
} rf_attr;

/* A row of a field table. A table ends with a row without a name. */
typedef enum rf_field_type {
  RF_FIELD_FLAG,
  RF_FIELD_NUMBER,
  RF_FIELD_FLOAT,
  RF_FIELD_DTYPE,
  RF_FIELD_EPILOGUE
} rf_field_type;
typedef struct rf_field {
  const char *name;
  rf_field_type type;
  uint16_t offset, size; /* in rf_attr */
} rf_field;
extern const rf_field RF_FIELDS_COMMON[], RF_FIELDS_FLAT[];

enum { RF_FIELD_TEXT = 64 };
/* " name=value", or " name" of a flag. Returns whether the field is set: not 0. */
bool rf_field_write(const rf_field *field, const rf_attr *attr, char text[RF_FIELD_TEXT]);

#endif
