/* emit_cache.c - the emitter of attention over a KV cache of keys and values. */
#include "backend/xla/emit_cached.h"
#include "graph/kv.h"

#include <math.h>

/* Rows (n,2,K,H) as codes (n,2,KH) with scales (n,2,K): scale = m / 127 and round(x * (127 / m))
 * for m = max|x|. A head with a non-finite element gets scale NaN and codes 0. */
static void encode(rf_hlo *h, rf_val x, rf_val *codes, rf_val *scales) {
  int64_t n = x.dim[0], heads = x.dim[2], dim = x.dim[3];
  rf_val finite = rf_hlo_reduce(h, RF_HLO_AND, rf_hlo_is_finite(h, x), 3);
  rf_val most = rf_hlo_reduce(h, RF_HLO_MAX, rf_hlo_abs(h, x), 3), zero = rf_hlo_scalar(h, RF_HLO_F32, 0);
  rf_val large = rf_hlo_compare_c(h, RF_HLO_GE, most, (double)RF_NARROW_MIN),
         levels = rf_hlo_full_like(h, most, 127);
  rf_val steps = rf_hlo_select(h, large, rf_hlo_divide(h, levels, most), zero);
  rf_val scale = rf_hlo_select(h, large, rf_hlo_divide(h, most, levels), zero);
  *scales = rf_hlo_select(h, finite, scale, rf_hlo_scalar(h, RF_HLO_F32, (double)NAN));
  rf_val each = rf_hlo_broadcast(h, steps, (const int[]){0, 1, 2}, 4, x.dim),
         fine = rf_hlo_broadcast(h, finite, (const int[]){0, 1, 2}, 4, x.dim);
  rf_val code = rf_hlo_select(h, fine, rf_hlo_round_nearest_even(h, rf_hlo_multiply(h, x, each)), zero);
  *codes = rf_hlo_convert(h, rf_hlo_reshape(h, code, RF_DIMS(n, 2, heads * dim)), RF_HLO_I8);
}

/* The type of the numbers that a cache stores. */
static rf_hlo_type stored_type(const rf_emit *e, int tensor) {
  rf_dtype dtype = e->graph->tensor[tensor].dtype;
  return dtype == RF_BF16 ? RF_HLO_BF16 : dtype == RF_F16 ? RF_HLO_F16 : rf_emit_type(e, tensor);
}

static void emit_attention_kv(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  const rf_attr_attention *of = &op->attr.attention;
  int64_t kv = of->kv_heads, dim = of->head_dim, group = of->heads / kv;
  rf_val qkv = rf_emit_in(e, op, 0), scales = RF_NO_VAL, ctx, lse;
  int64_t n = qkv.dim[0];
  rf_pages p = {.op = op,
                .cache = rf_emit_in(e, op, 1),
                .scale = rf_emit_in(e, op, 5),
                .table = 2,
                .slots = 3,
                .positions = 4,
                .kv_heads = kv,
                .key = dim,
                .value = dim,
                .type = stored_type(e, op->input[1])};
  rf_val q = rf_hlo_reshape(h, rf_hlo_slice(h, qkv, 1, 0, kv * group * dim), RF_DIMS(n, kv, group, dim));
  rf_val rows = rf_hlo_slice(h, qkv, 1, kv * group * dim, qkv.dim[1]);
  if (p.type == RF_HLO_I8) {
    encode(h, rf_hlo_reshape(h, rf_hlo_convert(h, rows, RF_HLO_F32), RF_DIMS(n, 2, kv, dim)), &rows, &scales);
  } else {
    rows = rf_hlo_convert(h, rf_hlo_reshape(h, rows, RF_DIMS(n, 2, kv * dim)), p.type);
    if (p.cache.type == RF_HLO_U16) rows = rf_hlo_bitcast(h, rows, RF_HLO_U16);
  }
  rf_pages_write(e, &p, rows, scales);
  if (p.type == RF_HLO_F32) q = rf_hlo_convert(h, q, RF_HLO_F32);
  rf_pages_attend(e, &p, q, &ctx, &lse);
  rf_emit_out(e, op, 0, ctx);
  rf_emit_out(e, op, 1, p.cache);
  if (rf_has(scales)) rf_emit_out(e, op, 2, p.scale);
  rf_emit_out(e, op, 3, lse);
}

const rf_emitter RF_EMIT_CACHE[] = {
    {&RF_OP_ATTENTION_KV, emit_attention_kv, NULL},
    {0},
};
