/* shares.h - distributes items over threads. Each thread has a share, a range of consecutive items.
 * A thread takes items from the front of its share, and so reads contiguous memory. After its own
 * share, the thread takes items from the end of another share. If adjacent items went to different
 * threads, cold caches would cost 13 % of the speed (one row, q4_0, k = 2,048, two threads, Granite
 * Rapids). */
#ifndef RF_SHARES_H
#define RF_SHARES_H

#include <stdatomic.h>
#include <stdint.h>

enum { RF_SHARES_MAX = 64 };

typedef struct rf_shares {
  int parts;
  struct {
    _Alignas(64) _Atomic uint64_t left; /* low 32 bits: first item; high 32 bits: end */
  } part[RF_SHARES_MAX];
} rf_shares;

static inline void rf_shares_cut(rf_shares *shares, int64_t count, int threads) {
  shares->parts = threads < RF_SHARES_MAX ? threads : RF_SHARES_MAX;
  for (int i = 0; i < shares->parts; i++) {
    uint64_t begin = (uint64_t)(count * i / shares->parts), end = (uint64_t)(count * (i + 1) / shares->parts);
    atomic_init(&shares->part[i].left, end << 32 | begin);
  }
}

/* Number of items that a thread takes at once. The number is `most`, or less so that all threads
 * end together. */
static inline int rf_shares_at_once(int64_t count, int most, int threads) {
  while (most > 1 && count < (int64_t)8 * most * threads) most /= 2;
  return most;
}

/* Takes up to `most` items for a thread. Sets *first to the first item. Returns the number of
 * items, or 0 if no item remains. A call takes at most half of a share, so that all threads end
 * together. */
static inline int rf_shares_take(rf_shares *shares, int thread, int most, int64_t *first) {
  for (int turn = 0; turn < shares->parts; turn++) {
    _Atomic uint64_t *place = &shares->part[(thread + turn) % shares->parts].left;
    uint64_t left = atomic_load_explicit(place, memory_order_relaxed), after;
    int count;
    do {
      int64_t begin = (int64_t)(left & UINT32_MAX), end = (int64_t)(left >> 32);
      count = (end - begin + 1) / 2 < most ? (int)((end - begin + 1) / 2) : most;
      *first = turn ? end - count : begin;
      after = turn ? (uint64_t)(end - count) << 32 | (uint64_t)begin
                   : (uint64_t)end << 32 | (uint64_t)(begin + count);
    } while (count > 0 && !atomic_compare_exchange_weak_explicit(place, &left, after, memory_order_relaxed,
                                                                 memory_order_relaxed));
    if (count > 0) return count;
  }
  return 0;
}

#endif
