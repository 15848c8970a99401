/* emit_cudnn.c - attention and its backward op as one call of cuDNN each. XLA's compiler for NVIDIA
 * GPUs makes such a call one fused kernel. Then the scores never leave the chip, and the two
 * products run on tensor cores without a pass over the scores between them. The files
 * xla/service/gpu/cublas_cudnn.h and backend_configs.proto of openxla/xla define the calls and the
 * fields of their configuration. */
#include "backend/xla/emit_attention.h"

#include <stdio.h>

enum { DIM_STEP = 8, DIM_LIMIT = 128 }; /* head sizes for which all GPUs since Ampere have kernels */

bool rf_cudnn_allows(const rf_emit *e, const rf_op *op) {
  const rf_attr_attention *a = &op->attr.attention;
  return e->target.cudnn && e->known.whole_rows && rf_emit_in(e, op, 0).type == RF_HLO_BF16 &&
         a->softmax == RF_F32 && !(a->softcap > 0) && a->head_dim % DIM_STEP == 0 && a->head_dim <= DIM_LIMIT;
}

/* Letters of sizes: B sequences of T tokens, N query heads, K key heads, H columns of a head. */
typedef struct sizes {
  int64_t batch, tokens, heads, kv, dim, window;
} sizes;

static sizes sizes_of(const rf_emit *e, const rf_op *op, int64_t rows) {
  const rf_attr_attention *a = &op->attr.attention;
  int64_t tokens = e->graph->seq; /* known.whole_rows */
  return (sizes){.batch = rows / tokens,
                 .tokens = tokens,
                 .heads = a->heads,
                 .kv = a->kv_heads,
                 .dim = a->head_dim,
                 .window = a->window > 0 && a->window < tokens ? a->window : 0};
}

/* A product of two operands, given by the summed dimension and the two batch dimensions of each
 * operand. */
static int put_dot(char *to, size_t room, const char *name, const int of[6]) {
  return snprintf(to, room,
                  ", \"%s_dot_dimension_numbers\": {\"lhs_contracting_dimensions\": [\"%d\"], "
                  "\"rhs_contracting_dimensions\": [\"%d\"], \"lhs_batch_dimensions\": [\"%d\", \"%d\"], "
                  "\"rhs_batch_dimensions\": [\"%d\", \"%d\"]}",
                  name, of[0], of[1], of[2], of[3], of[4], of[5]);
}

/* The configuration of a call whose operands are (B,T,heads,H), as JSON. */
static void configure(char *to, size_t room, const rf_op *op, sizes s, bool backward) {
  static const struct {
    const char *name;
    int of[6];
  } DOTS[] = {{"bmm1", {3, 3, 0, 2, 0, 2}},
              {"bmm2", {3, 1, 0, 1, 0, 2}},
              {"bmm1_grad_gemm1", {2, 1, 0, 1, 0, 2}},
              {"bmm1_grad_gemm2", {3, 1, 0, 1, 0, 2}},
              {"bmm2_grad_gemm1", {2, 1, 0, 1, 0, 2}},
              {"bmm2_grad_gemm2", {3, 3, 0, 2, 0, 2}}};
  size_t at = (size_t)snprintf(
      to, room,
      "{\"operation_queue_id\": \"0\", \"cudnn_fmha_backend_config\": {\"algorithm\": {\"algo_id\": \"0\", "
      "\"math_type\": \"TENSOR_OP_MATH\", \"tuning_knobs\": {\"17\": \"1\", \"24\": \"0\"}, "
      "\"is_cudnn_frontend\": true, \"workspace_size\": \"0\"}, \"fmha_scale\": %.9g, "
      "\"intermediate_tensor_shape\": {\"element_type\": \"BF16\", \"dimensions\": [\"%lld\", \"%lld\", "
      "\"%lld\", \"%lld\"], \"layout\": {\"minor_to_major\": [\"3\", \"2\", \"1\", \"0\"]}, "
      "\"is_dynamic_dimension\": [false, false, false, false]}, \"is_flash_attention\": true, "
      "\"mask_type\": \"CAUSAL\", \"dropout_rate\": 0, \"seed\": 0, \"sliding_window_length\": %lld, "
      "\"max_seg_per_batch\": 1, \"is_paged_attention\": false",
      (double)op->attr.attention.scale, (long long)s.batch, (long long)s.heads, (long long)s.tokens,
      (long long)s.tokens, (long long)s.window);
  for (int i = backward ? 2 : 0; i < (backward ? 6 : 2); i++)
    at += (size_t)put_dot(to + at, room - at, DOTS[i].name, DOTS[i].of);
  snprintf(to + at, room - at, "}}");
}

/* Takes `heads` heads of rows (B*T, columns) from column `begin` on, as (B,T,heads,H). */
static rf_val heads_of(rf_hlo *h, sizes s, rf_val rows, int64_t begin, int64_t heads) {
  rf_val v = rf_hlo_slice(h, rows, 1, begin * s.dim, (begin + heads) * s.dim);
  return rf_hlo_reshape(h, v, RF_DIMS(s.batch, s.tokens, heads, s.dim));
}

static void split(rf_hlo *h, sizes s, rf_val rows, rf_val qkv[3]) {
  qkv[0] = heads_of(h, s, rows, 0, s.heads);
  qkv[1] = heads_of(h, s, rows, s.heads, s.kv);
  qkv[2] = heads_of(h, s, rows, s.heads + s.kv, s.kv);
}

/* A result of shape (B,heads,T,H), which is stored in the order (B,T,heads,H). */
static const int BY_TOKEN[] = {3, 1, 2, 0};
static rf_val result_of(sizes s, int64_t heads) {
  return (rf_val){.type = RF_HLO_BF16, .rank = 4, .dim = {s.batch, heads, s.tokens, s.dim}};
}
static rf_val rows_of(rf_hlo *h, sizes s, rf_val v) {
  v = rf_hlo_transpose(h, v, (const int[]){0, 2, 1, 3});
  return rf_hlo_reshape(h, v, RF_DIMS(s.batch * s.tokens, v.dim[2] * s.dim));
}

/* the compiler sets the size of this result */
static const rf_val WORKSPACE = {.type = RF_HLO_U8, .rank = 1, .dim = {0}};
enum { CONFIG = 4096 };

void rf_cudnn_attention(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val rows = rf_emit_in(e, op, 0), qkv[3];
  sizes s = sizes_of(e, op, rows.dim[0]);
  char config[CONFIG];
  configure(config, sizeof config, op, s, false);
  split(h, s, rows, qkv);
  rf_val lse = {.type = RF_HLO_F32, .rank = 3, .dim = {s.batch, s.heads, s.tokens}};
  rf_val result[] = {result_of(s, s.heads), lse, WORKSPACE};
  const int *const order[] = {BY_TOKEN, NULL, NULL};
  rf_hlo_call(h, &(rf_hlo_callee){"__cudnn$fmhaSoftmax", config, 3, 3, qkv, result, order});
  if (rf_emit_wants(op, 0)) rf_emit_out(e, op, 0, rows_of(h, s, result[0]));
  if (!rf_emit_wants(op, 1)) return;
  lse = rf_hlo_transpose(h, result[1], (const int[]){1, 0, 2});
  rf_emit_out(e, op, 1, rf_hlo_reshape(h, lse, RF_DIMS(s.heads, s.batch * s.tokens)));
}

void rf_cudnn_attention_bwd(rf_emit *e, const rf_op *op, rf_val rows, rf_val dctx) {
  rf_hlo *h = e->h;
  sizes s = sizes_of(e, op, rows.dim[0]);
  char config[CONFIG];
  configure(config, sizeof config, op, s, true);
  rf_val qkv[3], lse = rf_hlo_convert(h, rf_emit_in(e, op, 2), RF_HLO_F32);
  split(h, s, rows, qkv);
  lse = rf_hlo_reshape(h, lse, RF_DIMS(s.heads, s.batch, s.tokens));
  lse = rf_hlo_transpose(h, lse, (const int[]){1, 0, 2});
  const rf_val operand[] = {qkv[0],
                            qkv[1],
                            qkv[2],
                            lse,
                            heads_of(h, s, dctx, 0, s.heads),
                            heads_of(h, s, rf_emit_in(e, op, 1), 0, s.heads)};
  rf_val result[] = {result_of(s, s.heads), result_of(s, s.kv), result_of(s, s.kv), WORKSPACE}, part[3];
  const int *const order[] = {BY_TOKEN, BY_TOKEN, BY_TOKEN, NULL};
  rf_hlo_call(h, &(rf_hlo_callee){"__cudnn$fmhaSoftmaxBackward", config, 6, 4, operand, result, order});
  for (int i = 0; i < 3; i++) part[i] = rows_of(h, s, result[i]);
  rf_emit_out(e, op, 0, rf_hlo_concatenate(h, 1, 3, part));
}
