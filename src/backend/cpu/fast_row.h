/* fast_row.h - one row times a full panel of q4_k, q5_k or q6_k. The parts of a stored block of 256
 * values are far apart. Hardware prefetchers do not see a stream if a kernel reads only some lanes
 * of each part. So this kernel finishes a block for one vector of lanes before it starts the next
 * vector, and prefetches all bytes of the next block in order. This kernel loads words with codes
 * of several runs only once. fast_kernels.h includes this file. */

/* Divides the bytes of a block into `pieces` pieces, and prefetches piece `i`. All are
 * constants. */
RF_INLINE void fetch_piece(const char *next, int bytes, int i, int pieces) {
  const int lines = bytes / 64;
  for (int line = lines * i / pieces; line < lines * (i + 1) / pieces; line++)
    fetch_line(true, next + 64 * line);
}

/* The codes of word `j` (0..7) of a run. */
RF_INLINE w_codes row_codes(int type, const w_block *b, int run, int j) {
  const w_run none = {.fifths = w_set_word(0)};
  return codes_of(type, operand_codes(type, run_low(type, b, run, j / 4, j % 4),
                                      run_high(type, b, run, j / 4, j % 4, &none)));
}
RF_INLINE w_word row_word(const char *a, int j) { return w_set_word(((const int32_t *)(const void *)a)[j]); }

/* For q4_k and q5_k: adds 128 values, which start with run `before`, to one vector of sums. */
RF_INLINE w_float row_long(int type, int before, const w_block *b, const char *strip, const char *next,
                           int bytes, w_float acc) {
  const rf_fast_long rest = rf_fast_long_at(strip, 1);
  w_word all = w_set_word(0), off = all;
#pragma GCC unroll 2
  for (int pair = 0; pair < 2; pair++) {
    const int run = before + 2 * pair;
    const char *a = strip + 64 * pair;
    w_sum first = {w_set_word(0), w_set_word(0)}, second = first;
    w_word c0, c1, m0, m1;
    parts_of_k4(b, run, &c0, &m0);
    parts_of_k4(b, run + 1, &c1, &m1);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
      fetch_piece(next, bytes, 8 * pair + j, 16);
      w_codes u0 = row_codes(type, b, run, j), u1 = row_codes(type, b, run + 1, j);
      add_products(type, &first, &u0, row_word(a, j));
      add_products(type, &second, &u1, row_word(a + 32, j));
      if ((j + 1) % words_of(type) > 0) continue;
      add_run(&all, &first, HAS_VNNI ? c0 : both_halves(c0));
      add_run(&all, &second, HAS_VNNI ? c1 : both_halves(c1));
    }
    off = dot_pairs(off, w_or(m0, w_left(m1, 16)), w_set_word(rest.pairs[pair]));
  }
  w_float s = w_set(rest.scale[0]), d, e;
  long_scale(b, &d, &e);
  acc = W(fmadd_ps)(d, W(mul_ps)(s, w_integer(all)), acc);
  return W(fmadd_ps)(e, W(mul_ps)(s, w_integer(off)), acc);
}

/* For q6_k: the four runs from `before` on share their words, so one function sums all four
 * runs. */
#define ROW_RUNS(X) X(0) X(1) X(2) X(3)
#define ROW_START(r) \
  const char *a##r = strip + 4 * RF_FAST_ITEMS * (r); \
  w_sum sum##r[2]; \
  for (int h = 0; h < 2; h++) \
    sum##r[h] = (w_sum){HAS_VNNI ? zeros_of(zero, row_minus(a##r, h)) : w_set_word(0), w_set_word(0)};
#define ROW_DOT(r) \
  { \
    w_codes u = row_codes(type, b, before + r, 4 * h + j); \
    add_products(type, &sum##r[h], &u, row_word(a##r, 4 * h + j)); \
    if ((j + 1) % words_of(type) == 0 || j == 3) widen(type, &sum##r[h]); \
  }
#define ROW_JOIN(r) \
  for (int h = 0; h < 2; h++) { \
    w_word sum = sum##r[h].words; \
    if (!HAS_VNNI) sum = W(add_epi32)(sum, zeros_of(zero, row_minus(a##r, h))); \
    w_float s = w_set(*(const float *)(const void *)(a##r + RF_FAST_BLOCK)); \
    acc = W(fmadd_ps)(scale_of_k6(b, before + r, h), W(mul_ps)(s, w_integer(sum)), acc); \
  }
/* -128 times the sum of half `h` of a packed run of one row (fast.h). */
RF_INLINE int32_t row_minus(const char *a, int h) {
  return ((const int32_t *)(const void *)(a + RF_FAST_BLOCK))[3 + h];
}
RF_INLINE w_float row_halves(int type, int before, const w_block *b, const char *strip, const char *next,
                             int bytes, w_float acc) {
  const int zero = zero_bits(type);
  ROW_RUNS(ROW_START)
#pragma GCC unroll 2
  for (int h = 0; h < 2; h++) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      fetch_piece(next, bytes, 4 * h + j, 8);
      ROW_RUNS(ROW_DOT)
    }
  }
  ROW_RUNS(ROW_JOIN)
  return acc;
}

/* Sets y [RF_PANEL_LANES] to the product of the row with the panel at `at`, over all k. */
RF_INLINE void row_panel(int type, const char *at, int64_t inner, const char *strip, float *y) {
  enum { STORED = 256, HALF = STORED / 2, PIECES = RF_PANEL_LANES / W_LANES * 2 };
  const bool is_long = type != RF_Q_Q6_K;
  const int block_bytes = RF_PANEL_LANES * form_of(type).bytes, share = block_bytes / PIECES;
  for (int64_t k = 0; k < inner; k += STORED, at += block_bytes) {
    const char *a = strip + rf_fast_strip_bytes(is_long, 1, k), *next = at + block_bytes,
               *b_half = a + rf_fast_strip_bytes(is_long, 1, HALF);
    for (int l = 0; l < RF_PANEL_LANES; l += W_LANES, next += 2 * share) {
      w_block b = block_of(type, at, at, RF_PANEL_LANES, l);
      w_float acc = k ? W(loadu_ps)(y + l) : w_set(0);
      if (is_long) {
        acc = row_long(type, 0, &b, a, next, share, acc);
        acc = row_long(type, 4, &b, b_half, next + share, share, acc);
      } else {
        acc = row_halves(type, 0, &b, a, next, share, acc);
        acc = row_halves(type, 4, &b, b_half, next + share, share, acc);
      }
      W(storeu_ps)(y + l, acc);
    }
  }
}
#define EACH_ROW_TYPE(X) X(q4_k, RF_Q_Q4_K) X(q5_k, RF_Q_Q5_K) X(q6_k, RF_Q_Q6_K)
#define ROW_OF(name, type) \
  static __attribute__((noinline)) void row_##name(const char *at, int64_t inner, const char *strip, \
                                                   float *y) { \
    row_panel(type, at, inner, strip, y); \
  }
EACH_ROW_TYPE(ROW_OF)
/* Returns the kernel that multiplies one row by panels of this type, or NULL. */
typedef void (*row_fn)(const char *at, int64_t inner, const char *strip, float *y);
static row_fn row_of(const rf_panel *panel) {
  switch (panel->type->number) {
#define ROW_CASE(name, type) \
  case type: return row_##name;
    EACH_ROW_TYPE(ROW_CASE)
#undef ROW_CASE
  default: return NULL;
  }
}
