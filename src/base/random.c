/* random.c - counter-based random numbers. The generators have no state, so any draw can be
 * repeated anywhere. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC
 * 2011), Philox-4x32-10. */
#include "base/base.h"

#include <math.h>

void rf_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint32_t out[4]) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
  uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p = (uint64_t)0xD2511F53u * c0, q = (uint64_t)0xCD9E8D57u * c2;
    uint32_t next0 = (uint32_t)(q >> 32) ^ c1 ^ k0, next2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)q;
    c3 = (uint32_t)p;
    c0 = next0;
    c2 = next2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/* A bijection of 64-bit words in which every input bit affects every output bit. */
static uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

uint64_t rf_key(uint64_t seed, uint64_t a, uint64_t b) {
  uint64_t h = mix(seed ^ 0x9E3779B97F4A7C15u);
  /* The mixing between `a` and `b` gives different keys for (a, b) and (b, a). */
  h = mix(h ^ mix(a ^ 0x3C6EF372FE94F82Au)) * 5 + 1;
  return mix(h ^ mix(b ^ 0xDAA66D2C7DDF743Fu));
}

uint64_t rf_name_key(const char *name) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const unsigned char *c = (const unsigned char *)name; *c; ++c) h = (h ^ *c) * 0x100000001B3u;
  return h;
}

float rf_uniform(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }

/* Box-Muller. The bits of initial weights must not depend on the C library. So this file computes
 * logarithm, sine and cosine with plain double operations in a fixed order. The error is below
 * 1e-12, far below the precision of a float. */
void rf_normal_pair(uint32_t a, uint32_t b, float out[2]) {
  /* u in (0, 1]: (a + 1) / 2^32 = mantissa * 2^exponent, mantissa in [sqrt(1/2), sqrt(2)) */
  union {
    double d;
    uint64_t u;
  } v = {.d = (double)a + 1.0};
  int exponent = (int)(v.u >> 52) - 1023 - 32;
  v.u = (v.u & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u;
  if (v.d > 1.4142135623730951) {
    v.d *= 0.5;
    exponent += 1;
  }
  double s = (v.d - 1.0) / (v.d + 1.0), t = s * s; /* log m = 2 atanh(s), |s| <= 0.172 */
  double series =
      1.0 + t * (1.0 / 3 +
                 t * (1.0 / 5 + t * (1.0 / 7 + t * (1.0 / 9 + t * (1.0 / 11 + t * (1.0 / 13 + t / 15))))));
  double logarithm = (double)exponent * 0.6931471805599453 + 2.0 * s * series;
  double radius = sqrt(-2.0 * (logarithm < 0 ? logarithm : 0.0));
  /* The two high bits of `b` choose the quadrant, and the other bits give an angle in [-pi/4,
   * pi/4). */
  double x = ((double)(b & 0x3FFFFFFFu) * 0x1p-30 - 0.5) * 1.5707963267948966, y = x * x;
  double sine =
      x * (1.0 +
           y * (-1.0 / 6 + y * (1.0 / 120 + y * (-1.0 / 5040 + y * (1.0 / 362880 + y * (-1.0 / 39916800))))));
  double cosine =
      1.0 + y * (-1.0 / 2 + y * (1.0 / 24 + y * (-1.0 / 720 +
                                                 y * (1.0 / 40320 + y * (-1.0 / 3628800 + y / 479001600)))));
  /* (cos, sin) of the angle in the middle of the quadrant */
  static const signed char TURN[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
  double c = TURN[b >> 30][0], d = TURN[b >> 30][1];
  out[0] = (float)(radius * (c * cosine - d * sine));
  out[1] = (float)(radius * (c * sine + d * cosine));
}
