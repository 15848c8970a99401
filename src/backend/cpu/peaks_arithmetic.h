/* peaks_arithmetic.h - loops of one three-operand instruction in registers of type
 * RF_PEAK_REGISTER. Many accumulators hide the latency of the instruction on two ports. The loops
 * are inline assembly, so the compiler cannot fold, reorder or spill the operations.
 *   RF_PEAK_STEP(op, 0) = __asm__ volatile("op %1, %2, %0" : "+v"(r0) : "v"(x), "v"(y)); */
#define RF_PEAK_STEP(op, i) \
  __asm__ volatile(op " %1, %2, %0" : RF_PEAK_IN_OUT(r##i) : RF_PEAK_IN(x), RF_PEAK_IN(y));
#if defined(__AVX512F__)
#define RF_PEAK_IN_OUT(r) "+v"(r)
#define RF_PEAK_IN(r) "v"(r)
#else
#define RF_PEAK_IN_OUT(r) "+x"(r)
#define RF_PEAK_IN(r) "x"(r)
#endif
#define RF_PEAK_NEW(op, i) RF_PEAK_REGISTER r##i = RF_PEAK_ZERO;
// clang-format off
#define RF_PEAK_12(F, op) \
  F(op, 0) F(op, 1) F(op, 2) F(op, 3) F(op, 4) F(op, 5) \
  F(op, 6) F(op, 7) F(op, 8) F(op, 9) F(op, 10) F(op, 11)
#define RF_PEAK_24(F, op) \
  RF_PEAK_12(F, op) F(op, 12) F(op, 13) F(op, 14) F(op, 15) F(op, 16) F(op, 17) \
  F(op, 18) F(op, 19) F(op, 20) F(op, 21) F(op, 22) F(op, 23)
// clang-format on
#define RF_PEAK_LOOP(name, op, each) \
  static void name(long rounds) { \
    RF_PEAK_REGISTER x = RF_PEAK_ZERO, y = RF_PEAK_ZERO; \
    each(RF_PEAK_NEW, op) for (long n = 0; n < rounds; n++) { each(RF_PEAK_STEP, op) } \
  }
#define RF_PEAK_LOOP_12(name, op) RF_PEAK_LOOP(name, op, RF_PEAK_12)
#define RF_PEAK_LOOP_24(name, op) RF_PEAK_LOOP(name, op, RF_PEAK_24)
