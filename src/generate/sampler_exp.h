/* sampler_exp.h - 2^t for vectors of doubles of any width. RF_EXP2 defines the function `name` for
 * vectors of the type `lanes`. The type `bits` has the same number of uint64_t. Every width gives
 * the same bits. */
#ifndef RF_SAMPLER_EXP_H
#define RF_SAMPLER_EXP_H

#include <stdint.h>

#define RF_EXP2_TINY (-1022.0) /* Weights below 2^-1022 are zero. */

/* Computes 2^t for t <= 0 with a relative error below 1e-15. The result is exactly 1 for t = 0, 0
 * for t below RF_EXP2_TINY, and NaN for NaN. The polynomial is the Chebyshev fit of (2^f - 1)/f on
 * [-1/2, 1/2], with error 6e-16. Adding `shift` rounds t to an integer n. The lowest bits of the
 * sum are then the exponent field of 2^n. */
#define RF_EXP2(name, lanes, bits) \
  static inline __attribute__((always_inline)) lanes name(lanes t) { \
    const double shift = 0x1.8p52 + 1023; \
    lanes z = t + shift, f = t - (z - shift); \
    lanes p = f * 0x1.e5e9f548e5725p-28 + 0x1.b6571de2f2351p-24; \
    p = p * f + 0x1.62bfe46117445p-20; \
    p = p * f + 0x1.ffcb76789860fp-17; \
    p = p * f + 0x1.4309130378460p-13; \
    p = p * f + 0x1.5d87fe908f88ap-10; \
    p = p * f + 0x1.3b2ab6fba385fp-7; \
    p = p * f + 0x1.c6b08d7044119p-5; \
    p = p * f + 0x1.ebfbdff82c590p-3; \
    p = p * f + 0x1.62e42fefa39f7p-1; \
    p = p * f + 1.0; \
    lanes w = p * (lanes)((bits)z << 52); \
    return (lanes)((bits)w & ~(bits)(t <= RF_EXP2_TINY)); \
  }

#endif
