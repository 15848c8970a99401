/* emit_attention.h - attention over rows, in the layout (sequences, key heads, ...), which the
 * ops of attention, latent attention and attention over parts share. See emit_attend.c. */
#ifndef RF_XLA_EMIT_ATTENTION_H
#define RF_XLA_EMIT_ATTENTION_H

#include "backend/xla/emit.h"

/* Letters of shapes: B sequences, K key heads, g query heads per key head, Q queries and S keys
 * of a sequence, D columns of a key, W columns of a value. */
typedef struct rf_attend {
  const rf_attr_attention *attr; /* scale, softcap, softmax */
  int64_t batch, queries, keys;  /* B, Q, S */
  int64_t stride;                /* query i of a sequence is at position i * stride + rank */
  int64_t window;                /* number of latest keys that a query sees; 0: all keys */
  int64_t block;                 /* maximum tokens of a block; 0: the length decides */
  rf_val rank;                   /* i32 scalar */
  rf_val low;                    /* i32 (B,Q): the first key of its sequence that a query sees */
} rf_attend;

/* Size of the equal blocks of a sequence, at most `most` tokens. If `most` is 0, at most 256
 * tokens. In short sequences, blocks of 128 skip more keys. A program with more than
 * RF_ATTEND_BLOCKS blocks uses a loop. */
enum { RF_ATTEND_BLOCKS = 8 };
int64_t rf_attend_block(int64_t tokens, int64_t most);
/* Number of tokens of one sequence of an op with `keys` keys, and `stride` times as many keys as
 * queries. If the keys are whole rows of the batch, a sequence is a row. Otherwise all keys are one
 * sequence, because sequences with their own loss may begin anywhere in a microbatch. */
int64_t rf_attend_tokens(const rf_graph *graph, int64_t keys, int64_t stride);

/* The sequences of an op with `rows` queries and `stride` times as many keys. `segments` is the
 * slot of the starts of segments. A row of a training batch is a whole sequence. In other jobs, all
 * rows are one sequence. */
rf_attend rf_attend_of(rf_emit *e, const rf_op *op, int segments, int64_t rows, int64_t stride, rf_val rank);

/* Reshapes columns [begin, begin + heads * group * dim) of rows (B*T, columns) to (B, heads, group,
 * T, dim). */
rf_val rf_attend_split(rf_hlo *h, const rf_attend *a, rf_val rows, int64_t begin,
                       const int64_t heads_group_dim[3]);
/* The opposite: (B,K,g,T,D) as rows (B*T, K*g*D). */
rf_val rf_attend_join(rf_hlo *h, rf_val heads);

/* q (B,K,g,Q,D), k (B,K,S,D), v (B,K,S,W) of one type -> ctx f32 (B,K,g,Q,W), lse f32 (B,K,g,Q). */
void rf_attend_forward(rf_emit *e, const rf_attend *a, const rf_val qkv[3], rf_val *ctx, rf_val *lse);
/* Computes the gradients dq, dk and dv in f32, with the shapes of q, k and v. dctx is (B,K,g,Q,W),
 * and lse and delta are f32 (B,K,g,Q). */
void rf_attend_backward(rf_emit *e, const rf_attend *a, const rf_val qkv[3], rf_val dctx, rf_val lse,
                        rf_val delta, rf_val grad[3]);
/* Computes delta (B,K,g,Q) from the rows ctx and dctx (B*Q, K*g*W). rf_attend_lse_in reshapes lse
 * from (N,B*Q) to (B,K,g,Q). rf_attend_lse_out does the opposite. */
rf_val rf_attend_delta(rf_emit *e, const rf_attend *a, rf_val ctx, rf_val dctx, int64_t heads, int64_t group);
rf_val rf_attend_lse_in(rf_hlo *h, const rf_attend *a, rf_val lse, int64_t heads, int64_t group);
rf_val rf_attend_lse_out(rf_hlo *h, rf_val lse);

/* Attention and its backward op as one call of cuDNN. rf_cudnn_allows returns true if the op, the
 * batch and the target allow this call. `qkv` and `dctx` are inputs 0 and 3. See emit_cudnn.c. */
bool rf_cudnn_allows(const rf_emit *e, const rf_op *op);
void rf_cudnn_attention(rf_emit *e, const rf_op *op);
void rf_cudnn_attention_bwd(rf_emit *e, const rf_op *op, rf_val qkv, rf_val dctx);

#endif
