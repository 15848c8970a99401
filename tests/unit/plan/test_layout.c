/* test_layout.c - tests the layout of blocks over time: no overlap and a result near the bound, for
 * any shape and number of blocks. */
#include "unit/plan/plans.h"

static int64_t bound_of(const rf_block *block, int count) {
  int64_t most = 0;
  for (int i = 0; i < count; i++) { /* The maximum is reached where some block begins. */
    int64_t sum = 0;
    for (int k = 0; k < count; k++)
      sum += block[k].first <= block[i].first && block[i].first <= block[k].last ? block[k].bytes : 0;
    if (sum > most) most = sum;
  }
  return most;
}

/* Checks all pairs by brute force and returns height / bound. */
static double proven(rf_block *block, int count) {
  int64_t height = rf_layout_blocks(block, count, 0), top = 0;
  for (int i = 0; i < count; i++) {
    assert_true(block[i].offset >= 0 && block[i].offset % 64 == 0);
    if (block[i].offset + block[i].bytes > top) top = block[i].offset + block[i].bytes;
    for (int k = i + 1; k < count; k++) {
      if (block[i].last < block[k].first || block[k].last < block[i].first) continue;
      if (block[i].offset + block[i].bytes <= block[k].offset ||
          block[k].offset + block[k].bytes <= block[i].offset)
        continue;
      fail_msg("blocks %d and %d overlap", i, k);
    }
  }
  assert_int_equal(top, height);
  int64_t bound = bound_of(block, count);
  assert_true(height >= bound);
  return bound ? (double)height / (double)bound : 1;
}

static void simple_shapes_are_packed_perfectly(void **state) {
  (void)state;
  assert_int_equal(rf_layout_blocks(NULL, 0, 0), 0);
  rf_block one[] = {{.bytes = 64, .first = 3, .last = 3}};
  assert_int_equal(rf_layout_blocks(one, 1, 0), 64);
  rf_block apart[] = {{.bytes = 640, .first = 0, .last = 1},
                      {.bytes = 320, .first = 2, .last = 3},
                      {.bytes = 320, .first = 2, .last = 9}};
  assert_int_equal(rf_layout_blocks(apart, 3, 0), 640);
  rf_block nested[40]; /* forward activations and their backward ops */
  for (int i = 0; i < 40; i++)
    nested[i] = (rf_block){.bytes = 64 * (1 + i * 7 % 13), .first = i, .last = 80 - i};
  assert_true(proven(nested, 40) == 1.0);
  rf_block stairs[80]; /* activations end while gradients begin */
  for (int i = 0; i < 40; i++) {
    stairs[i] = (rf_block){.bytes = 64 * 8, .first = i, .last = 80 - i};
    stairs[40 + i] = (rf_block){.bytes = 64 * 4, .first = 41 + i, .last = 120};
  }
  assert_true(proven(stairs, 80) <= 1.03);
  rf_block empty[] = {{.bytes = 0, .first = 0, .last = 9},
                      {.bytes = 64, .first = 0, .last = 9},
                      {.bytes = 0, .first = -1, .last = -1}};
  assert_int_equal(rf_layout_blocks(empty, 3, 0), 64);
}

static void random_blocks_never_overlap(void **state) {
  (void)state;
  uint64_t seed = 1;
  double worst = 0, sum = 0;
  for (int trial = 0; trial < 300; trial++) {
    static rf_block block[200];
    int count = (int)draw_in(&seed, 1, 200), ops = (int)draw_in(&seed, 1, 100);
    for (int i = 0; i < count; i++) {
      int a = (int)draw_in(&seed, -1, ops), b = (int)draw_in(&seed, -1, ops), life = trial % 3 ? 6 : ops;
      if (b < a) b = a;
      block[i] = (rf_block){.bytes = 64 * (draw(&seed) % 5 ? draw_in(&seed, 0, 40) : draw_in(&seed, 0, 4000)),
                            .first = a,
                            .last = b - a > life ? a + life : b};
    }
    double ratio = proven(block, count);
    sum += ratio;
    if (ratio > worst) worst = ratio;
  }
  assert_true(sum / 300 < 1.03);
  /* Without structure there is no guarantee. This bound only catches a broken search. */
  assert_true(worst < 1.35);
}

/* With more than about a thousand blocks, short blocks are placed in the gaps between long ones.
 * This is other code with the same guarantees. */
static void many_blocks(void **state) {
  (void)state;
  uint64_t seed = 7;
  static rf_block block[6000];
  for (int trial = 0; trial < 4; trial++) {
    int count = 0, layers = trial < 2 ? 60 : 120, per = 10, ops = layers * per * 2;
    for (int l = 0; l < layers * per; l++) {
      if (trial != 3)
        block[count++] = (rf_block){
            .bytes = 64 * draw_in(&seed, 1, 60), .first = l, .last = ops - l + (int)draw_in(&seed, 0, 5)};
      for (int k = 0; k < 2; k++) {
        int first = (int)draw_in(&seed, 0, ops);
        block[count++] = (rf_block){.bytes = 64 * draw_in(&seed, 0, trial == 1 ? 900 : 50),
                                    .first = first,
                                    .last = first + (int)draw_in(&seed, 0, 9)};
      }
      if (l % 3 == 0 && trial != 0)
        block[count++] = (rf_block){.bytes = 64 * draw_in(&seed, 1, 60), .first = ops - l, .last = ops + 9};
    }
    assert_in_range(count, 1501, 6000);
    double ratio = proven(block, count);
    assert_true(ratio < 1.15);
  }
}

static int by_offset(const void *a, const void *b) {
  const rf_block *x = a, *y = b;
  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Best fit in the order of lifetimes, by looking at all placed blocks. The first order of the
 * search must give the same result. */
static void place_plainly(rf_block *block, int count) {
  static bool placed[1500];
  static rf_block met[1500];
  memset(placed, 0, sizeof placed);
  for (int round = 0; round < count; round++) {
    int next = -1, meets = 0;
    for (int i = 0; i < count; i++) {
      int life = block[i].last - block[i].first, most = next < 0 ? -1 : block[next].last - block[next].first;
      if (!placed[i] && (life > most || (life == most && block[i].bytes > block[next].bytes))) next = i;
    }
    for (int i = 0; i < count; i++)
      if (placed[i] && block[i].first <= block[next].last && block[i].last >= block[next].first)
        met[meets++] = block[i];
    qsort(met, (size_t)meets, sizeof *met, by_offset);
    int64_t over = INT64_MAX, best = -1, top = 0;
    for (int i = 0; i < meets; i++) {
      int64_t gap = met[i].offset - top - block[next].bytes;
      if (gap >= 0 && gap < over) {
        best = top;
        over = gap;
      }
      if (met[i].offset + met[i].bytes > top) top = met[i].offset + met[i].bytes;
    }
    block[next].offset = best >= 0 ? best : top;
    placed[next] = true;
  }
}

static void one_order_is_best_fit(void **state) {
  (void)state;
  uint64_t seed = 11;
  static rf_block block[1500], plain[1500];
  for (int trial = 0; trial < 40; trial++) {
    int count = trial ? (int)draw_in(&seed, 1, 300) : 1500,
        ops = (int)draw_in(&seed, 1, trial % 2 ? 40 : 400);
    for (int i = 0; i < count; i++) {
      int nested = (int)draw_in(&seed, 0, ops / 2), first = (int)draw_in(&seed, 0, ops),
          life = (int)draw_in(&seed, 0, trial % 3 ? 6 : ops);
      block[i] = (rf_block){
          .bytes = 64 * draw_in(&seed, 1, trial % 5 ? 40 : 4), .first = first, .last = first + life};
      /* like a forward tensor that the backward pass reads */
      if (i % 2) {
        block[i].first = nested;
        block[i].last = ops - nested;
      }
    }
    memcpy(plain, block, sizeof plain);
    place_plainly(plain, count);
    rf_layout_blocks(block, count, INT64_MAX / 2); /* any height is accepted */
    for (int i = 0; i < count; i++) assert_int_equal(block[i].offset, plain[i].offset);
  }
}

static void the_same_blocks_get_the_same_offsets(void **state) {
  (void)state;
  uint64_t seed = 3;
  rf_block a[300], b[300];
  for (int i = 0; i < 300; i++) {
    int first = (int)draw_in(&seed, 0, 50);
    a[i] = b[i] = (rf_block){
        .bytes = 64 * draw_in(&seed, 1, 9), .first = first, .last = first + (int)draw_in(&seed, 0, 20)};
  }
  assert_int_equal(rf_layout_blocks(a, 300, 0), rf_layout_blocks(b, 300, 0));
  for (int i = 0; i < 300; i++) assert_int_equal(a[i].offset, b[i].offset);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(simple_shapes_are_packed_perfectly),
      cmocka_unit_test(random_blocks_never_overlap),
      cmocka_unit_test(many_blocks),
      cmocka_unit_test(one_order_is_best_fit),
      cmocka_unit_test(the_same_blocks_get_the_same_offsets),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
