/* fast_avx512bf16.c - products in 8 bits with the byte dot products of AVX-512 VNNI. */
#include "backend/cpu/fast_kernels.h"

enum { CODE_BIAS = 128 };
#include "backend/cpu/fast_unpack.h"

#include "backend/cpu/fast_many.h"
#include "backend/cpu/fast_wide.h"

/* For int8, one call computes up to four rows by two vectors of lanes, and reads the codes in
 * place. */
static rf_fast_block wide_in_place(const rf_panel *panel, const char *at, int64_t k0, int64_t k1,
                                   void *room) {
  (void)room;
  return (rf_fast_block){.codes = at + k0 * panel->lanes,
                         .stride = 4 * (int64_t)panel->lanes,
                         .d = (const float *)(const void *)at - panel->lanes,
                         .count = (int)((k1 - k0) / RF_FAST_BLOCK),
                         .lanes = panel->lanes};
}
// clang-format off
/* WIDE_MANY(3, 2) defines wide_3_2(part) for three rows and two vectors of lanes. */
#define WIDE_MANY(rows, vectors) \
  static __attribute__((noinline)) void wide_##rows##_##vectors(const wide_part *p) { \
    wide_block(rows, vectors, RF_FAST_ROWS, p); \
  }
WIDE_MANY(1, 1) WIDE_MANY(2, 1) WIDE_MANY(3, 1) WIDE_MANY(4, 1)
WIDE_MANY(1, 2) WIDE_MANY(2, 2) WIDE_MANY(3, 2) WIDE_MANY(4, 2)
enum { WIDE_ROWS = 4 };
static const wide_fn WIDE_OF[WIDE_ROWS + 1][2] = {
    {NULL}, {wide_1_1, wide_1_2}, {wide_2_1, wide_2_2}, {wide_3_1, wide_3_2}, {wide_4_1, wide_4_2}};
// clang-format on
static void many_wide(const rf_fast_block *block, const void *strip, int used, bool first, float *sums,
                      const char *ahead, int64_t ahead_bytes) {
  int chunks = (used + WIDE_ROWS - 1) / WIDE_ROWS;
  coming later = coming_of(ahead, ahead_bytes, chunks);
  for (int c = 0; c < chunks; c++) {
    int row = used * c / chunks, rows = used * (c + 1) / chunks - row;
    come(&later);
    for (int lane = 0; lane < block->lanes; lane += 32) {
      wide_part p = {.count = block->count * RF_FAST_BLOCK,
                     .row = row,
                     .strip = strip,
                     .codes = block->codes + 4 * lane,
                     .lanes = block->lanes,
                     .heads = block->d + lane,
                     .first = first,
                     .y = sums + row * RF_PANEL_LANES + lane,
                     .ahead = block->codes + 4 * lane};
      WIDE_OF[rows][block->lanes - lane >= 32](&p);
    }
  }
}

static const rf_fast_isa WIDE = {.pack = pack_wide,
                                 .panels = panels_wide,
                                 .unpack = wide_in_place,
                                 .many = many_wide,
                                 .steps = RF_FAST_WIDE,
                                 .row_bytes = RF_FAST_WIDE_BYTES};
const rf_fast_isa RF_FAST_AVX512BF16 = {.pack = pack,
                                        .panels = panels_product,
                                        .unpack = unpack,
                                        .many = many,
                                        .steps = RF_FAST_BLOCK,
                                        .row_bytes = 4 * RF_FAST_ITEMS,
                                        .wide = &WIDE};
