/* elementwise_body.h - ops that read each element once: activations, residuals, dropout, rope.
 * Included once per ISA (elementwise_*.c). Values are computed in f32 and rounded when stored. */

RF_INLINE int64_t elements_used(const rf_call *call, int slot) {
  int64_t per_row = 1;
  for (int axis = 1; axis < rf_in(call, slot)->rank; axis++) per_row *= rf_in(call, slot)->shape[axis];
  return rf_rows_used(call, slot) * per_row;
}
/* Threads take multiples of 64 elements, so no two threads write the same cache line. */
enum { RF_ELEMENT_GRAIN = 64 };
/* Calls `f` with the dtype as a constant, so that loads and stores compile without branches. */
#define RF_FOR_DTYPE(f, dtype, ...) \
  do { \
    if ((dtype) == RF_F32) f(__VA_ARGS__, RF_F32); \
    else f(__VA_ARGS__, RF_BF16); \
  } while (0)

/* RF_ELEMENTS(add, 12) defines add_run, which calls add_elements and touches 12 bytes for each
 * element. RF_ROWS(rope, 8, rope_rows, call, begin, end) defines rope_run. rope_run calls
 * rope_rows(call, begin, end, dtype), and touches 8 bytes for each channel of input 0. */
#define RF_ELEMENTS(op, bytes) \
  static void op##_range(const rf_call *call, int64_t begin, int64_t end) { \
    RF_FOR_DTYPE(op##_elements, rf_in(call, 0)->dtype, call, begin, end); \
  } \
  static void op##_run(const rf_call *call) { \
    rf_split(call, elements_used(call, 0), RF_ELEMENT_GRAIN, bytes, op##_range); \
  }
#define RF_ROWS(op, bytes, rows, ...) \
  static void op##_range(const rf_call *call, int64_t begin, int64_t end) { \
    RF_FOR_DTYPE(rows, rf_in(call, 0)->dtype, __VA_ARGS__); \
  } \
  static void op##_run(const rf_call *call) { \
    rf_split(call, rf_rows_used(call, 0), 1, (bytes)*rf_in(call, 0)->shape[1], op##_range); \
  }

/* RF_ACTIVATION(gelu, f, slope) defines gelu_run, y = f(x), and gelu_bwd_run, dx = dy slope(x). */
#define RF_ACTIVATION(op, value, slope) \
  RF_INLINE void op##_elements(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype) { \
    for (int64_t i = begin; i < end; i += RF_LANES) { \
      int n = piece(end, i); \
      put(call->out[0], dtype, i, value(get(call->in[0], dtype, i, n)), n); \
    } \
  } \
  RF_INLINE void op##_bwd_elements(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype) { \
    for (int64_t i = begin; i < end; i += RF_LANES) { \
      int n = piece(end, i); \
      rf_v16 by = slope(get(call->in[0], dtype, i, n)); \
      put(call->out[0], dtype, i, rf_v16_mul(get(call->in[1], dtype, i, n), by), n); \
    } \
  } \
  RF_ELEMENTS(op, 8) \
  RF_ELEMENTS(op##_bwd, 12)
RF_ACTIVATION(gelu, rf_v16_gelu_tanh, rf_v16_gelu_tanh_grad)
RF_ACTIVATION(gelu_erf, rf_v16_gelu_erf, rf_v16_gelu_erf_grad)

/* h (n, F) = act(gate) up. In gate_up (n, 2F), gate comes first. act is silu, or gelu for geglu. */
RF_INLINE void gated_rows(const rf_call *call, int64_t begin, int64_t end, bool gelu, rf_dtype dtype) {
  int64_t ff = rf_in(call, 0)->shape[1] / 2;
  for (int64_t r = begin; r < end; r++) {
    const void *gate = at_row(call->in[0], dtype, r, 2 * ff), *up = at_row(gate, dtype, 1, ff);
    void *h = (void *)at_row(call->out[0], dtype, r, ff);
    for (int64_t i = 0; i < ff; i += RF_LANES) {
      int n = piece(ff, i);
      rf_v16 a = get(gate, dtype, i, n);
      put(h, dtype, i, rf_v16_mul(gelu ? rf_v16_gelu_tanh(a) : rf_v16_silu(a), get(up, dtype, i, n)), n);
    }
  }
}
RF_ROWS(swiglu, 6, gated_rows, call, begin, end, false)
RF_ROWS(geglu, 6, gated_rows, call, begin, end, true)

/* dgate = dh up act'(gate), dup = dh act(gate). */
RF_INLINE void gated_bwd_rows(const rf_call *call, int64_t begin, int64_t end, bool gelu, rf_dtype dtype) {
  int64_t ff = rf_in(call, 0)->shape[1] / 2;
  for (int64_t r = begin; r < end; r++) {
    const void *gate = at_row(call->in[0], dtype, r, 2 * ff), *up = at_row(gate, dtype, 1, ff),
               *dh = at_row(call->in[1], dtype, r, ff);
    void *dgate = (void *)at_row(call->out[0], dtype, r, 2 * ff), *dup = (void *)at_row(dgate, dtype, 1, ff);
    for (int64_t i = 0; i < ff; i += RF_LANES) {
      int n = piece(ff, i);
      rf_v16 a = get(gate, dtype, i, n), b = get(up, dtype, i, n), d = get(dh, dtype, i, n), value, slope;
      if (gelu) {
        value = rf_v16_gelu_tanh(a);
        slope = rf_v16_gelu_tanh_grad(a);
      } else {
        rf_v16 mirror, s = rf_v16_sigmoid_pair(a, &mirror);
        value = rf_v16_mul(a, s);
        slope = rf_v16_fma(value, mirror, s);
      }
      put(dgate, dtype, i, rf_v16_mul(rf_v16_mul(d, b), slope), n);
      put(dup, dtype, i, rf_v16_mul(d, value), n);
    }
  }
}
RF_ROWS(swiglu_bwd, 10, gated_bwd_rows, call, begin, end, false)
RF_ROWS(geglu_bwd, 10, gated_bwd_rows, call, begin, end, true)

RF_INLINE void add_elements(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype) {
  for (int64_t i = begin; i < end; i += RF_LANES) {
    int n = piece(end, i);
    put(call->out[0], dtype, i, rf_v16_add(get(call->in[0], dtype, i, n), get(call->in[1], dtype, i, n)), n);
  }
}
RF_ELEMENTS(add, 12)

/* ---- dropout: no mask is stored, so every op computes its mask again ------------------------- */

RF_INLINE void add_dropout_rows(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype) {
  rf_dropout drop = rf_dropout_of(call);
  int64_t width = rf_in(call, 0)->shape[1], first = rf_rank_of(call) * width;
  for (int64_t r = begin; r < end; r++) {
    const void *x = at_row(call->in[0], dtype, r, width), *h = at_row(call->in[1], dtype, r, width);
    void *y = (void *)at_row(call->out[0], dtype, r, width);
    for (int64_t i = 0; i < width; i += RF_LANES) {
      int n = piece(width, i);
      rf_v16 kept =
          rf_dropout_apply(&drop, get(h, dtype, i, n), call->run->first_token + r * drop.step, first + i);
      put(y, dtype, i, rf_v16_add(get(x, dtype, i, n), kept), n);
    }
  }
}
RF_ROWS(add_dropout, 12, add_dropout_rows, call, begin, end)

RF_INLINE void dropout_rows(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype) {
  rf_dropout drop = rf_dropout_of(call);
  int64_t width = rf_in(call, 0)->shape[1], first = rf_rank_of(call) * width;
  for (int64_t r = begin; r < end; r++) {
    const void *dy = at_row(call->in[0], dtype, r, width);
    void *dh = (void *)at_row(call->out[0], dtype, r, width);
    int64_t i = 0;
    for (; i + 2 * RF_LANES <= width; i += 2 * RF_LANES) {
      rf_v16 x[2] = {get(dy, dtype, i, RF_LANES), get(dy, dtype, i + RF_LANES, RF_LANES)};
      rf_dropout_apply_pair(&drop, x, call->run->first_token + r * drop.step, first + i);
      for (int h = 0; h < 2; h++) put(dh, dtype, i + RF_LANES * h, x[h], RF_LANES);
    }
    for (; i < width; i += RF_LANES) {
      int n = piece(width, i);
      put(dh, dtype, i,
          rf_dropout_apply(&drop, get(dy, dtype, i, n), call->run->first_token + r * drop.step, first + i),
          n);
    }
  }
}
RF_ROWS(dropout, 8, dropout_rows, call, begin, end)

/* ---- rope ------------------------------------------------------------------------------------ */

enum { RF_ROPE_PAIRS = 512 }; /* maximum of H / 2 */

/* Rotates the pairs (i, i + R/2) of the q and k heads of qkv (n, (N+2K) H), where R = rope.dim.
 * Copies the v heads, and the elements of q and k heads that are not rotated. */
RF_INLINE void rope_rows(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype) {
  const rf_attr_rope *attr = &call->op->attr.rope;
  const int32_t *positions = call->in[1];
  int64_t item = dtype == RF_BF16 ? 2 : 4, width = rf_in(call, 0)->shape[1], half = attr->rotation.dim / 2,
          rotated = attr->heads + attr->kv_heads;
  float high[RF_ROPE_PAIRS], low[RF_ROPE_PAIRS], cosine[RF_ROPE_PAIRS], sine[RF_ROPE_PAIRS];
  for (int64_t i = 0; i < half; i++) {
    double frequency = rf_rope_frequency(&attr->rotation, i);
    high[i] = (float)frequency;
    low[i] = (float)(frequency - (double)high[i]);
  }
  int64_t known = -1; /* position for which `cosine` and `sine` were computed */
  for (int64_t r = begin; r < end; r++) {
    const void *x = at_row(call->in[0], dtype, r, width);
    void *y = (void *)at_row(call->out[0], dtype, r, width);
    if (positions[r] != known) {
      known = positions[r];
      for (int64_t i = 0; i < half; i += RF_LANES) {
        int n = piece(half, i);
        rf_v16 position = rf_v16_set1((float)known), f = rf_v16_load_n(high + i, n),
               angle = rf_v16_mul(position, f);
        rf_v16 rest =
            rf_v16_fma(position, rf_v16_load_n(low + i, n), rf_v16_fma(position, f, rf_v16_neg(angle)));
        rf_v16 c, s = rf_v16_sincos(angle, rest, &c);
        rf_v16_store_n(cosine + i, c, n);
        rf_v16_store_n(sine + i, attr->inverse ? rf_v16_neg(s) : s, n);
      }
    }
    for (int64_t h = 0; h < rotated; h++) {
      int64_t base = h * attr->head_dim;
      for (int64_t i = 0; i < half; i += RF_LANES) {
        int n = piece(half, i);
        rf_v16 a = get(x, dtype, base + i, n), b = get(x, dtype, base + half + i, n),
               c = get(cosine, RF_F32, i, n), s = get(sine, RF_F32, i, n);
        put(y, dtype, base + i, rf_v16_fnma(b, s, rf_v16_mul(a, c)), n);
        put(y, dtype, base + half + i, rf_v16_fma(a, s, rf_v16_mul(b, c)), n);
      }
      int64_t still = attr->head_dim - 2 * half;
      if (still > 0 && x != y)
        memcpy((void *)at_row(y, dtype, 1, base + 2 * half), at_row(x, dtype, 1, base + 2 * half),
               (size_t)(still * item));
    }
    int64_t rest = rotated * attr->head_dim;
    if (x != y)
      memcpy((void *)at_row(y, dtype, 1, rest), at_row(x, dtype, 1, rest), (size_t)((width - rest) * item));
  }
}
RF_ROWS(rope, 8, rope_rows, call, begin, end)
