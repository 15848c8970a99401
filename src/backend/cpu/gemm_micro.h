/* gemm_micro.h - the register tile of the vector ISAs: MR rows x two vectors of columns.
 * gemm_avx2.c and gemm_avx512.c include this file and define MR, NR, VECTOR with its LANES, LOAD,
 * STORE and SPLAT, and ROWS(X) as X(0) X(1) ... X(MR - 1). The sums of each row are named
 * variables, and the fused multiply-add is inline assembly. In other forms, gcc 12 keeps the sums
 * in memory or copies the sums. `rows` is a compile-time constant. */
#define FMA(acc, x, y) __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(x), "v"(y))
#define ROW_LOAD(i) \
  VECTOR left##i = {0}, right##i = {0}; \
  if (resume && (i) < rows) { \
    left##i = LOAD(tile + (i)*NR); \
    right##i = LOAD(tile + (i)*NR + LANES); \
  }
#define ROW_STORE(i) \
  if ((i) < rows) { \
    STORE(tile + (i)*NR, left##i); \
    STORE(tile + (i)*NR + LANES, right##i); \
  }
#define ROW(i) \
  if ((i) < rows) { \
    VECTOR x = SPLAT(a + step * rows + (i)); \
    FMA(left##i, x, b0); \
    FMA(right##i, x, b1); \
  }
#define STEP(s) \
  do { \
    enum { step = (s) }; \
    VECTOR b0 = LOAD(b + step * NR), b1 = LOAD(b + step * NR + LANES); \
    ROWS(ROW) \
  } while (0)
#define FETCH(i) \
  if (lines##i-- > 0) { \
    _mm_prefetch(at##i, _MM_HINT_T1); \
    _mm_prefetch(at##i + 64, _MM_HINT_T1); \
    at##i += ahead[i].stride; \
  }

/* Every eight steps, prefetches one cache line of the next tile and two cache lines of C to L1.
 * Also prefetches two cache lines of each entry of `ahead` to L2. */
RF_INLINE void micro(int rows, int64_t kc, const float *a, const float *b, float *tile, bool resume,
                     const rf_gemm_ahead ahead[2], const char *const *tile_pieces) {
  const char *at0 = ahead[0].at, *at1 = ahead[1].at;
  const float *next = tile + MR * NR;
  int64_t lines0 = ahead[0].lines, lines1 = ahead[1].lines, k = 0;
  ROWS(ROW_LOAD)
  for (; k + 8 <= kc; k += 8) {
    FETCH(0)
    STEP(0);
    STEP(1);
    STEP(2);
    _mm_prefetch(next, _MM_HINT_T0);
    next += 16;
    STEP(3);
    FETCH(1)
    STEP(4);
    STEP(5);
    if (*tile_pieces) {
      _mm_prefetch(*tile_pieces, _MM_HINT_T0);
      _mm_prefetch(*tile_pieces + 64, _MM_HINT_T0);
      tile_pieces++;
    }
    STEP(6);
    STEP(7);
    a += 8 * rows;
    b += 8 * NR;
  }
  for (; k < kc; k++) {
    STEP(0);
    a += rows;
    b += NR;
  }
  ROWS(ROW_STORE)
}

/* MICRO(3) defines micro_3(...) { micro(3, ...); } */
#define MICRO(rows) \
  static void micro_##rows(int64_t kc, const float *a, const float *b, float *tile, bool resume, \
                           const rf_gemm_ahead ahead[2], const char *const *tile_pieces) { \
    micro(rows, kc, a, b, tile, resume, ahead, tile_pieces); \
  }
