/* quant_k_search.c - quantizes to K types. The search finds the scales with the smallest sum of
 * squared errors, and the result is packed.
 *
 * With offsets (q2_k, q4_k, q5_k): x = a q - b. For each sub-block, the search rounds x in several
 * ways, and finds the a and b >= 0 with the smallest squared error. The file stores a and b as
 * integers, which are multiplied by d and dmin. Then the search alternates between two steps: it
 * chooses integers and levels (q), and fits the two f16 factors d and dmin. Without offsets (q3_k,
 * q6_k), x = a q, and the search fits only d.
 *
 * quant_k_search_body.h has the search. The search is compiled for several instruction sets, and
 * all versions give the same bits. */
#include <string.h>

#include "formats/quant_k_search.h"

enum { VALUES = RF_K_VALUES };

const rf_k_shape RF_K_SHAPES[RF_K_TYPES] = {
    {.offsets = true,
     .subs = 16,
     .levels = 3,
     .minimum = 0,
     .maximum = 15,
     .tries = 10,
     .step = 0.15f}, /* q2_k
                      */
    {.offsets = false,
     .subs = 16,
     .levels = 4,
     .minimum = -32,
     .maximum = 31,
     .tries = 9,
     .step = 0.12f}, /* q3_k
                      */
    {.offsets = true,
     .subs = 8,
     .levels = 15,
     .minimum = 0,
     .maximum = 63,
     .tries = 10,
     .step = 0.2f}, /* q4_k
                     */
    {.offsets = true,
     .subs = 8,
     .levels = 31,
     .minimum = 0,
     .maximum = 63,
     .tries = 8,
     .step = 0.25f}, /* q5_k
                      */
    {.offsets = false,
     .subs = 16,
     .levels = 32,
     .minimum = -128,
     .maximum = 127,
     .tries = 9,
     .step = 0.2f}, /* q6_k
                     */
};

rf_k_search *rf_k_search_of(int level) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
       avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  rf_k_search *const searches[] = {rf_k_search_base, avx2 ? rf_k_search_avx2 : NULL,
                                   avx512 ? rf_k_search_avx512 : NULL};
#else
  rf_k_search *const searches[] = {rf_k_search_base};
#endif
  return level < (int)(sizeof searches / sizeof *searches) ? searches[level] : NULL;
}

static rf_k_search *fastest_search(void) {
  rf_k_search *found = rf_k_search_base;
  for (int level = 0; rf_k_search_of(level); ++level) found = rf_k_search_of(level);
  return found;
}

typedef void put_block(const rf_k_super *from, uint8_t *at);

/* Quantizes `blocks` super-blocks of `bytes` bytes each. */
static void quantize(const rf_k_shape *s, const float *x, int64_t blocks, int bytes, put_block *put,
                     uint8_t *at) {
  rf_k_search *search = fastest_search();
  int batch = RF_K_LANES / s->subs;
  for (; blocks > 0; blocks -= batch, x += batch * VALUES) {
    float twice[2 * VALUES];
    rf_k_super found[2];
    int used = blocks < batch ? (int)blocks : batch;
    const float *from = x;
    if (used < batch) { /* the last super-block fills both halves of the batch */
      memcpy(twice, x, VALUES * sizeof *x);
      memcpy(twice + VALUES, x, VALUES * sizeof *x);
      from = twice;
    }
    search(s, from, found);
    for (int i = 0; i < used; ++i, at += bytes) {
      memset(at, 0, (size_t)bytes);
      put(&found[i], at);
    }
  }
}

/* ---- packing: quant_k.c describes the positions of the bits ---------------------------------- */

enum { RUNS = 8, RUN = 32 };

/* Writes bits `shift` and `shift` + 1 of every q (64 bytes). */
static void put_two_bits(const rf_k_super *from, int shift, uint8_t *at) {
  for (int r = 0; r < RUNS; ++r)
    for (int l = 0; l < RUN; ++l)
      at[RUN * (r / 4) + l] |= (uint8_t)((from->q[RUN * r + l] >> shift & 3) << 2 * (r % 4));
}
static void put_one_bit(const rf_k_super *from, int bit, uint8_t *at) { /* writes 32 bytes */
  for (int r = 0; r < RUNS; ++r)
    for (int l = 0; l < RUN; ++l) at[l] |= (uint8_t)((from->q[RUN * r + l] >> bit & 1) << r);
}
static void put_nibbles(const rf_k_super *from, uint8_t *at) { /* writes 128 bytes */
  for (int r = 0; r < RUNS; ++r)
    for (int l = 0; l < RUN; ++l)
      at[RUN * (r / 2) + l] |= (uint8_t)((from->q[RUN * r + l] & 15) << 4 * (r % 2));
}
static void put_scales_4(const rf_k_super *from, uint8_t *at) { /* writes 12 bytes */
  for (int s = 0; s < 4; ++s) {
    at[s] = (uint8_t)(from->scale[s] | from->scale[s + 4] >> 4 << 6);
    at[s + 4] = (uint8_t)(from->offset[s] | from->offset[s + 4] >> 4 << 6);
    at[s + 8] = (uint8_t)((from->scale[s + 4] & 15) | (from->offset[s + 4] & 15) << 4);
  }
}

static void put_q2_k(const rf_k_super *b, uint8_t *at) {
  for (int s = 0; s < 16; ++s) at[s] = (uint8_t)(b->scale[s] | b->offset[s] << 4);
  put_two_bits(b, 0, at + 16);
  rf_store_f16(at + 80, b->d);
  rf_store_f16(at + 82, b->dmin);
}
void rf_quantize_q2_k(const float *x, int64_t blocks, void *to) {
  quantize(&RF_K_SHAPES[0], x, blocks, RF_Q2_K_BYTES, put_q2_k, to);
}

static void put_q3_k(const rf_k_super *b, uint8_t *at) {
  put_one_bit(b, 2, at);
  put_two_bits(b, 0, at + 32);
  for (int s = 0; s < 16; ++s) {
    unsigned code = (unsigned)(b->scale[s] + 32);
    at[96 + s % 8] |= (uint8_t)((code & 15) << 4 * (s / 8));
    at[104 + s % 4] |= (uint8_t)(code >> 4 << 2 * (s / 4));
  }
  rf_store_f16(at + 108, b->d);
}
void rf_quantize_q3_k(const float *x, int64_t blocks, void *to) {
  quantize(&RF_K_SHAPES[1], x, blocks, RF_Q3_K_BYTES, put_q3_k, to);
}

static void put_q4_k(const rf_k_super *b, uint8_t *at) {
  rf_store_f16(at, b->d);
  rf_store_f16(at + 2, b->dmin);
  put_scales_4(b, at + 4);
  put_nibbles(b, at + 16);
}
void rf_quantize_q4_k(const float *x, int64_t blocks, void *to) {
  quantize(&RF_K_SHAPES[2], x, blocks, RF_Q4_K_BYTES, put_q4_k, to);
}

static void put_q5_k(const rf_k_super *b, uint8_t *at) {
  rf_store_f16(at, b->d);
  rf_store_f16(at + 2, b->dmin);
  put_scales_4(b, at + 4);
  put_one_bit(b, 4, at + 16);
  put_nibbles(b, at + 48);
}
void rf_quantize_q5_k(const float *x, int64_t blocks, void *to) {
  quantize(&RF_K_SHAPES[3], x, blocks, RF_Q5_K_BYTES, put_q5_k, to);
}

static void put_q6_k(const rf_k_super *b, uint8_t *at) {
  for (int r = 0; r < RUNS; ++r)
    for (int l = 0; l < RUN; ++l)
      at[64 * (r / 4) + RUN * (r % 2) + l] |= (uint8_t)((b->q[RUN * r + l] & 15) << 4 * (r % 4 / 2));
  put_two_bits(b, 4, at + 128);
  for (int s = 0; s < 16; ++s) at[192 + s] = (uint8_t)(int8_t)b->scale[s];
  rf_store_f16(at + 208, b->d);
}
void rf_quantize_q6_k(const float *x, int64_t blocks, void *to) {
  quantize(&RF_K_SHAPES[4], x, blocks, RF_Q6_K_BYTES, put_q6_k, to);
}
