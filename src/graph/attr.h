/* attr.h - attributes of ops: the common fields, and one small struct for each family of ops. Each
 * family has one list of fields. Macros make the struct and the field table of the family from this
 * list. The plan's digest and the printed graph read the field table. */
#ifndef RF_GRAPH_ATTR_H
#define RF_GRAPH_ATTR_H

#include "graph/mesh/mesh.h"
#include "model/model.h"

enum { RF_MAX_OUTPUTS = 6 };

/* How an op writes an output that is a gradient or a running sum. ADD always adds to the old value.
 * MICRO overwrites the old value in the first microbatch of a step, and adds in later microbatches.
 * The order of additions never changes. */
typedef enum rf_accumulate { RF_WRITE, RF_ACCUMULATE_MICRO, RF_ACCUMULATE_ADD } rf_accumulate;

typedef enum rf_epilogue { RF_EPILOGUE_NONE, RF_EPILOGUE_GELU, RF_EPILOGUE_RESIDUAL } rf_epilogue;

/* Losses of reinforcement learning (op policy_loss) and of preferences (op pair_loss). The rows of
 * both ops in ops/policy.c define them. */
typedef enum rf_policy_level {
  RF_POLICY_TOKEN,         /* each token has its own ratio */
  RF_POLICY_SEQUENCE_MEAN, /* the tokens of a sequence share the geometric mean of their ratios */
  RF_POLICY_SEQUENCE_SUM   /* the tokens of a sequence share the product of their ratios */
} rf_policy_level;
typedef enum rf_policy_clip {
  RF_POLICY_CLIP_NONE,
  RF_POLICY_CLIP_RATIO, /* min(ratio A, clip(ratio) A) */
  RF_POLICY_CLIP_WEIGHT /* the clipped ratio is a constant factor of A logp */
} rf_policy_clip;
typedef enum rf_pairs_kind { RF_PAIRS_DPO, RF_PAIRS_IPO, RF_PAIRS_SIMPO } rf_pairs_kind;

/* FIELD(of, type, name) declares the struct member `type name;`. In the field table, FIELD creates
 * an entry, for example {"norm.eps", RF_FIELD_FLOAT, offsetof(rf_attr, norm.eps), 4}. */
#define RF_ATTR_MEMBER(of, type, name) type name;

// clang-format off
/* Fields of every op. In ops that are not collectives, `axes` are the mesh axes that shard a sum or
 * a table of the op. */
#define RF_ATTR_COMMON(FIELD, of) \
  FIELD(of, rf_axes, axes)   /* for a collective: mesh axes along which the chips of the group differ */ \
  FIELD(of, int32_t, group)  /* for a collective: number of chips in the group */ \
  FIELD(of, float, fill)  /* fraction of the rows reserved for experts that has data; 0: all have data */

/* layernorm, rmsnorm, latent_norm */
#define RF_ATTR_NORM(FIELD, of) \
  FIELD(of, float, eps) \
  FIELD(of, float, offset)  /* the gain is offset + gain[d] */

/* Fields with which every family begins whose rows consist of heads. */
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
  FIELD(of, bool, inverse)  /* true in the backward pass: rotates by the negative angle */

#define RF_ATTR_ATTENTION(FIELD, of) \
  RF_ATTR_HEADS(FIELD, of) \
  FIELD(of, int32_t, window)     /* number of the latest keys that a query sees; 0: it sees all keys */ \
  FIELD(of, float, scale)        /* factor of the scores, often 1/sqrt(head_dim) */ \
  FIELD(of, float, softcap)      /* scores become cap * tanh(score / cap); 0: no cap */ \
  FIELD(of, rf_dtype, softmax)   /* for bf16: scaled scores are rounded to bf16 before the exponential */ \
  FIELD(of, int32_t, rope_dim)   /* for latent attention: R, the number of rotated columns of a key */ \
  FIELD(of, int32_t, value_dim)  /* for latent attention: W, the number of columns of a value head */

/* Attributes of dropout and add_dropout. The attributes of a product begin with the same fields. */
#define RF_ATTR_DROPOUT(FIELD, of) \
  FIELD(of, uint64_t, site)       /* key of the random numbers (rf_name_key) */ \
  FIELD(of, float, rate)          /* probability that an element becomes 0 */ \
  FIELD(of, int32_t, token_step)  /* distance of successive rows in tokens; 0 means 1 */

/* If `fast` is true (here and below), the product rounds x to 8 bits first. Each block of x has its
 * own scale (see rf_fast_block_of). If the weights are int8, the product rounds x to 16 bits. */
#define RF_ATTR_MATMUL(FIELD, of) \
  RF_ATTR_DROPOUT(FIELD, of) \
  FIELD(of, bool, transpose)  /* the weight is stored as (out, in) */ \
  FIELD(of, bool, fast) \
  FIELD(of, rf_epilogue, epilogue)

#define RF_ATTR_HEAD(FIELD, of) \
  FIELD(of, bool, transpose) \
  FIELD(of, bool, fast) \
  FIELD(of, float, softcap)  /* logits become cap * tanh(logit / cap); 0: no cap */ \
  FIELD(of, float, temperature)  /* the logits are divided by this number, after the softcap; 0 means 1 */ \
  FIELD(of, int32_t, top)    /* for head_score: number of most likely tokens that it returns */ \
  FIELD(of, rf_dtype, gradient)  /* bf16: head_loss_bwd and head_loss_grad round the gradient of logits */ \
  FIELD(of, int64_t, vocab)  /* head_part: size of the vocabulary over all chips; 0: the head is not sharded */

#define RF_ATTR_POLICY(FIELD, of) \
  FIELD(of, rf_policy_level, level) \
  FIELD(of, rf_policy_clip, clip) \
  FIELD(of, float, clip_low)   /* lower bound of a clipped ratio: 1 - clip_low */ \
  FIELD(of, float, clip_high)  /* upper bound: 1 + clip_high */ \
  FIELD(of, float, cap)        /* larger ratios count as this constant; 0: no cap */ \
  FIELD(of, float, beta)       /* factor of the KL divergence from the reference; 0: no such term */ \
  FIELD(of, bool, on_policy)   /* the log-probabilities equal the old ones, so every ratio is 1 */

#define RF_ATTR_PAIRS(FIELD, of) \
  FIELD(of, rf_pairs_kind, kind) \
  FIELD(of, float, beta) \
  FIELD(of, float, gamma)      /* margin of SimPO */ \
  FIELD(of, float, smoothing)  /* probability that the label of a pair is wrong (not IPO) */

/* Fields that turn a router's logits into scores and weights: the router_* fields of rf_model. */
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
  FIELD(of, int32_t, experts)     /* E: experts on this chip */ \
  FIELD(of, int32_t, used)        /* k: experts per row */ \
  FIELD(of, int64_t, room)  /* rows reserved for a pair of expert and source chip; 0: no limit (one chip) */ \
  FIELD(of, rf_router, router)

#define RF_ATTR_LORA(FIELD, of) \
  FIELD(of, float, scale)           /* alpha / r */ \
  FIELD(of, rf_lora_parts, parts)   /* the columns that the adapter reads, and the columns to which it adds */

#define RF_ATTR_EMBED(FIELD, of) \
  FIELD(of, float, scale)     /* factor of the token embeddings; 0 means 1 */ \
  FIELD(of, rf_dtype, dtype)  /* dtype of x when the table is packed */

/* For the op norm_sq. The attributes of adamw begin with the same fields. */
#define RF_ATTR_SUMS(FIELD, of) \
  FIELD(of, int32_t, element)  /* index of the sum that the op writes */ \
  FIELD(of, int32_t, copies)   /* number of chips that store the same columns; 0 means 1 */ \
  FIELD(of, int64_t, own_columns)  /* number of columns, at the start, that differ between these chips */

#define RF_ATTR_CLIP(FIELD, of) \
  FIELD(of, float, limit)  /* maximum global norm; 0: the op only measures the norm */

#define RF_ATTR_ADAMW(FIELD, of) \
  RF_ATTR_SUMS(FIELD, of) \
  FIELD(of, float, eps) \
  FIELD(of, float, beta1) \
  FIELD(of, float, beta2) \
  FIELD(of, float, weight_decay)

/* all_gather, reduce_scatter, all_reduce, all_to_all, permute, take_run */
#define RF_ATTR_COLLECTIVE(FIELD, of) \
  RF_ATTR_HEADS(FIELD, of)         /* heads of a row in RF_FORM_HEADS */ \
  FIELD(of, int32_t, dim)          /* dimension that is gathered, scattered or reduced */ \
  FIELD(of, int32_t, to)           /* all_to_all: dimension that is split */ \
  FIELD(of, uint8_t, form)         /* rf_form: how the chips split `dim` */ \
  FIELD(of, bool, log_sum)         /* for all_reduce: the result is log(sum of exp(x)) instead of the sum */ \
  FIELD(of, bool, back)  /* for permute: a chip receives from the next chip instead of the previous one */ \
  FIELD(of, int64_t, whole)  /* extent of `dim` over all chips; 0: group times the extent on one chip */ \
  FIELD(of, int64_t, own_columns)  /* for all_reduce: number of columns, at the start, that are not summed */

/* send, recv */
#define RF_ATTR_TRANSFER(FIELD, of) \
  FIELD(of, uint64_t, site)  /* rf_name_key of the tensor that is sent */ \
  FIELD(of, int32_t, stage)  /* number of the pipeline stage that sends or receives */

/* offload_out and offload_in of a KV cache */
#define RF_ATTR_OFFLOAD(FIELD, of) \
  FIELD(of, int32_t, window)  /* number of keys to fetch; 0: all keys */ \
  FIELD(of, int64_t, rows)    /* number of rows to send back; 0: all rows */

#define RF_ATTR_FAMILIES(FAMILY) \
  FAMILY(NORM, norm)       FAMILY(HEADS, heads)     FAMILY(HEAD_NORM, head_norm) FAMILY(ROPE, rope) \
  FAMILY(ATTENTION, attention) FAMILY(DROPOUT, dropout) FAMILY(MATMUL, matmul)   FAMILY(HEAD, head) \
  FAMILY(EXPERTS, experts) FAMILY(LORA, lora)       FAMILY(EMBED, embed)         FAMILY(SUMS, sums) \
  FAMILY(CLIP, clip)       FAMILY(ADAMW, adamw)     FAMILY(COLLECTIVE, collective) \
  FAMILY(TRANSFER, transfer) FAMILY(OFFLOAD, offload) FAMILY(POLICY, policy) FAMILY(PAIRS, pairs)
#define RF_ATTR_STRUCT(NAME, name) \
  typedef struct rf_attr_##name { RF_ATTR_##NAME(RF_ATTR_MEMBER, ) } rf_attr_##name;
RF_ATTR_FAMILIES(RF_ATTR_STRUCT)
// clang-format on
typedef rf_attr_policy rf_policy; /* settings of the op policy_loss */
typedef rf_attr_pairs rf_pairs;   /* settings of the op pair_loss */

/* Each op uses one family of attributes. The op's definition names this family. Several structs
 * begin with the fields of `heads`, `dropout` or `sums`. These structs begin with the same fields.
 * C allows code to read the common fields through any of the structs. */
typedef struct rf_attr {
  rf_accumulate accumulate[RF_MAX_OUTPUTS];
  RF_ATTR_COMMON(RF_ATTR_MEMBER, )
#define RF_ATTR_UNION(NAME, name) rf_attr_##name name;
  union {
    RF_ATTR_FAMILIES(RF_ATTR_UNION)
  };
} rf_attr;

/* An entry of a field table. The last entry of a table has no name. */
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
  uint16_t offset, size; /* offset and size of the field in rf_attr, in bytes */
} rf_field;
#define RF_FIELDS_EXTERN(NAME, name) extern const rf_field RF_FIELDS_##NAME[];
RF_ATTR_FAMILIES(RF_FIELDS_EXTERN)

enum { RF_FIELD_TEXT = 64 };
/* Writes " name=value", or " name" for a flag. Returns whether the field is not 0. */
bool rf_field_write(const rf_field *field, const rf_attr *attr, char text[RF_FIELD_TEXT]);

#endif
