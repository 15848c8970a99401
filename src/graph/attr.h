/* attr.h - attributes of ops: what every op has, and a small struct for each family of ops. The
 * list of fields makes both the struct and its field table, which the digest of a plan and the
 * printed graph read. A new field is one line of a list. */
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

/* FIELD(of, type, name) expands to the member `type name;` of a struct, and to the row
 * {"norm.eps", RF_FIELD_FLOAT, offsetof(rf_attr, norm.eps), 4} of a field table. */
#define RF_ATTR_MEMBER(of, type, name) type name;

// clang-format off
/* Every op. Outside collectives the axes are those that split a sum or a table which the op would
 * need whole. `fill`: expected used share of the places of experts on several chips; 0: all. */
#define RF_ATTR_COMMON(FIELD, of) \
  FIELD(of, rf_axes, axes)   /* of the group of chips */ \
  FIELD(of, int32_t, group)  /* its chips */ \
  FIELD(of, float, fill)

/* layernorm, rmsnorm, latent_norm */
#define RF_ATTR_NORM(FIELD, of) \
  FIELD(of, float, eps) \
  FIELD(of, float, offset)  /* added to the gain */

/* The first fields of every family whose rows are heads. */
#define RF_ATTR_HEADS(FIELD, of) \
  FIELD(of, int32_t, heads) \
  FIELD(of, int32_t, kv_heads) \
  FIELD(of, int32_t, head_dim)

#define RF_ATTR_HEAD_NORM(FIELD, of) \
  RF_ATTR_HEADS(FIELD, of) \
  RF_ATTR_NORM(FIELD, of)

#define RF_ATTR_ROPE(FIELD, of) \
  RF_ATTR_HEADS(FIELD, of) \
  FIELD(of, rf_rope, rotation) \
  FIELD(of, bool, inverse)  /* rotates back: its own backward */

#define RF_ATTR_ATTENTION(FIELD, of) \
  RF_ATTR_HEADS(FIELD, of) \
  FIELD(of, int32_t, window)     /* 0: full causal */ \
  FIELD(of, float, scale)        /* 1/sqrt(H) */ \
  FIELD(of, float, softcap)      /* scores become cap tanh(x / cap); 0: unchanged */ \
  FIELD(of, rf_dtype, softmax)   /* f32; bf16: scaled scores are rounded before the exponential */ \
  FIELD(of, int32_t, rope_dim)   /* latent attention: R, the rotated columns of a key */ \
  FIELD(of, int32_t, value_dim)  /* latent attention: W */

/* dropout, add_dropout; the first fields of a product */
#define RF_ATTR_DROPOUT(FIELD, of) \
  FIELD(of, uint64_t, site)       /* rf_name_key */ \
  FIELD(of, float, rate)          /* probability of zeroing */ \
  FIELD(of, int32_t, token_step)  /* tokens from a row to the next, where tokens are split; 0: 1 */

/* `fast`, here and below: x is rounded to 8 bits first, in blocks of rf_fast_block_of w's type;
 * before int8 to two bytes, in blocks of RF_FAST_INT8_BLOCK. */
#define RF_ATTR_MATMUL(FIELD, of) \
  RF_ATTR_DROPOUT(FIELD, of) \
  FIELD(of, bool, transpose)  /* the weight is stored (out, in) */ \
  FIELD(of, bool, fast) \
  FIELD(of, rf_epilogue, epilogue)

#define RF_ATTR_HEAD(FIELD, of) \
  FIELD(of, bool, transpose) \
  FIELD(of, bool, fast) \
  FIELD(of, float, softcap)  /* of logits */ \
  FIELD(of, int32_t, top)    /* head_score: how many of the likeliest it keeps */ \
  FIELD(of, int64_t, vocab)  /* head_part: of all chips; 0: all is here */

/* How a router's logits become scores and weights: rf_model's router_* fields. */
#define RF_ATTR_ROUTER(FIELD, of) \
  FIELD(of, bool, sigmoid) \
  FIELD(of, bool, as_is) \
  FIELD(of, float, scale)  /* 0: 1 */ \
  FIELD(of, int32_t, groups) \
  FIELD(of, int32_t, groups_used)
typedef struct rf_router { RF_ATTR_ROUTER(RF_ATTR_MEMBER, ) } rf_router;

/* route, dispatch, matmul_experts, combine */
#define RF_ATTR_EXPERTS(FIELD, of) \
  FIELD(of, bool, fast) \
  FIELD(of, int32_t, experts)     /* E, of this chip */ \
  FIELD(of, int32_t, used)        /* k */ \
  FIELD(of, int64_t, room)        /* experts on several chips: rows that each takes of a chip; 0: all */ \
  FIELD(of, rf_router, router)

#define RF_ATTR_LORA(FIELD, of) \
  FIELD(of, float, scale)           /* alpha / r */ \
  FIELD(of, rf_lora_parts, parts)   /* which columns they read and join */

#define RF_ATTR_EMBED(FIELD, of) \
  FIELD(of, float, scale)     /* of the token rows; 0: 1 */ \
  FIELD(of, rf_dtype, dtype)  /* of x, where the table is packed */

/* norm_sq; the first fields of adamw. Columns from `own_columns` on are held by `copies` chips. */
#define RF_ATTR_SUMS(FIELD, of) \
  FIELD(of, int32_t, element)  /* of the sums, that the op writes */ \
  FIELD(of, int32_t, copies)   /* 0: 1 */ \
  FIELD(of, int64_t, own_columns)

#define RF_ATTR_CLIP(FIELD, of) \
  FIELD(of, float, limit)  /* largest global norm; 0: measure only */

#define RF_ATTR_ADAMW(FIELD, of) \
  RF_ATTR_SUMS(FIELD, of) \
  FIELD(of, float, eps) \
  FIELD(of, float, beta1) \
  FIELD(of, float, beta2) \
  FIELD(of, float, weight_decay)

/* all_gather, reduce_scatter, all_reduce, all_to_all, permute, take_run */
#define RF_ATTR_COLLECTIVE(FIELD, of) \
  RF_ATTR_HEADS(FIELD, of)         /* of a row in RF_FORM_HEADS */ \
  FIELD(of, int32_t, dim)          /* that is gathered, split or reduced */ \
  FIELD(of, int32_t, to)           /* all_to_all: that is split */ \
  FIELD(of, uint8_t, form)         /* rf_form of `dim` */ \
  FIELD(of, bool, log_sum)         /* all_reduce: log of the sum of exp(x) */ \
  FIELD(of, bool, back)            /* permute: from the chip after this one */ \
  FIELD(of, int64_t, whole)        /* extent of `dim` on all chips; 0: as the shape says */ \
  FIELD(of, int64_t, own_columns)  /* all_reduce: columns before this one are not summed */

/* send, recv */
#define RF_ATTR_TRANSFER(FIELD, of) \
  FIELD(of, uint64_t, site)  /* rf_name_key of what is handed over */ \
  FIELD(of, int32_t, stage)  /* the other one */

/* offload_out, offload_in, of a cache */
#define RF_ATTR_OFFLOAD(FIELD, of) \
  FIELD(of, int32_t, window)  /* keys that are fetched; 0: all */ \
  FIELD(of, int64_t, rows)    /* that are sent back; 0: all */

#define RF_ATTR_FAMILIES(FAMILY) \
  FAMILY(NORM, norm)       FAMILY(HEADS, heads)     FAMILY(HEAD_NORM, head_norm) FAMILY(ROPE, rope) \
  FAMILY(ATTENTION, attention) FAMILY(DROPOUT, dropout) FAMILY(MATMUL, matmul)   FAMILY(HEAD, head) \
  FAMILY(EXPERTS, experts) FAMILY(LORA, lora)       FAMILY(EMBED, embed)         FAMILY(SUMS, sums) \
  FAMILY(CLIP, clip)       FAMILY(ADAMW, adamw)     FAMILY(COLLECTIVE, collective) \
  FAMILY(TRANSFER, transfer) FAMILY(OFFLOAD, offload)
#define RF_ATTR_STRUCT(NAME, name) \
  typedef struct rf_attr_##name { RF_ATTR_##NAME(RF_ATTR_MEMBER, ) } rf_attr_##name;
RF_ATTR_FAMILIES(RF_ATTR_STRUCT)
// clang-format on

/* The row of an op names the one family that it has. Families with the same first fields may be
 * read through the shorter one (`heads`, `dropout`, `sums`): C's common initial sequence. */
typedef struct rf_attr {
  rf_accumulate accumulate[RF_MAX_OUTPUTS];
  RF_ATTR_COMMON(RF_ATTR_MEMBER, )
#define RF_ATTR_UNION(NAME, name) rf_attr_##name name;
  union {
    RF_ATTR_FAMILIES(RF_ATTR_UNION)
  };
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
#define RF_FIELDS_EXTERN(NAME, name) extern const rf_field RF_FIELDS_##NAME[];
RF_ATTR_FAMILIES(RF_FIELDS_EXTERN)

enum { RF_FIELD_TEXT = 64 };
/* " name=value", or " name" of a flag. Returns whether the field is set: not 0. */
bool rf_field_write(const rf_field *field, const rf_attr *attr, char text[RF_FIELD_TEXT]);

#endif
