/* base.h - status codes, dtypes, memory, clock and random numbers, for all rooms of src. Options,
 * JSON and files have other headers in src/base. */
#ifndef RF_BASE_H
#define RF_BASE_H

#include "rafter.h"

typedef rafter_status rf_status;
typedef rafter_error rf_error;

/* Fills `error` (may be NULL) and returns `status`. `hint` may be NULL.
 *   return RF_FAIL(error, RAFTER_FAILED, "give a longer text", "%s has no tokens (expected >= 1,
 *     got 0)", path); */
rf_status rf_fail(rf_error *error, rf_status status, const char *file, int line, const char *hint,
                  const char *format, ...) __attribute__((format(printf, 6, 7)));
#define RF_FAIL(error, status, hint, ...) \
  rf_failed(rf_fail((error), (status), __FILE__, __LINE__, (hint), __VA_ARGS__), (status))
/* Returns `status`. The function is inline, so that the compiler sees the value of `status`. Then
 * the compiler does not warn about variables that are unset after a failed call. */
static inline rf_status rf_failed(rf_status filled, rf_status status) {
  (void)filled;
  return status;
}
#define RF_TRY(call) \
  do { \
    rf_status rf_try_status = (call); \
    if (rf_try_status != RAFTER_OK) return rf_try_status; \
  } while (0)
/* Like RF_TRY, for a function that cleans up at its label `done`. On failure, RF_GO sets the
 * function's variable `status` (rf_status) and jumps to `done`. */
#define RF_GO(call) \
  do { \
    status = (call); \
    if (status != RAFTER_OK) goto done; \
  } while (0)

/* RF_PACKED is a matrix of quantized blocks (formats/panels.h), so one element has no fixed
 * size. */
typedef enum rf_dtype {
  RF_F32,
  RF_BF16,
  RF_F16,
  RF_F64,
  RF_I32,
  RF_I8,
  RF_U8,
  RF_F8_E4M3,
  RF_F8_E5M2,
  RF_I64,
  RF_I4,
  RF_PACKED,
  RF_DTYPES
} rf_dtype;
/* Bytes of one element. For i4 the result is 1, although a byte holds two elements. RF_PACKED:
 * 0. */
int64_t rf_dtype_bytes(rf_dtype dtype);
int64_t rf_dtype_bits(rf_dtype dtype);     /* bits of one element; i4: 4 */
const char *rf_dtype_name(rf_dtype dtype); /* "f32", "bf16", ... */
rf_status rf_dtype_parse(const char *name, rf_dtype *dtype, rf_error *error);

typedef uint16_t rf_bf16;
/* Widening is exact. Conversion to a narrower type rounds to nearest, ties to even. The conversion
 * keeps subnormals and NaN. */
static inline float rf_bf16_to_f32(rf_bf16 x) {
  union {
    uint32_t u;
    float f;
  } v = {.u = (uint32_t)x << 16};
  return v.f;
}
static inline rf_bf16 rf_f32_to_bf16(float f) {
  union {
    float f;
    uint32_t u;
  } v = {.f = f};
  if ((v.u & 0x7fffffffu) > 0x7f800000u) return (rf_bf16)((v.u >> 16) | 0x40u);
  return (rf_bf16)((v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16);
}
float rf_f16_to_f32(uint16_t x);
uint16_t rf_f32_to_f16(float x);

/* Maps `bytes` bytes of zeroed memory, aligned to 2 MiB. The function requests huge pages.
 * *huge_bytes gets the number of bytes for which the request succeeded. It may be NULL.
 * RAFTER_FAILED: the machine has too little memory. */
rf_status rf_pages_map(size_t bytes, void **base, size_t *huge_bytes, rf_error *error);
void rf_pages_unmap(void *base, size_t bytes);
/* Bytes that the process can still allocate without swapping and without being killed. The number
 * is the smaller of the machine's available memory and the bytes that the control groups allow. -1:
 * unknown. */
int64_t rf_memory_available(void);

/* Returns `memory`. If `memory` is NULL, prints one line and aborts. For small allocations only. */
void *rf_must(void *memory);

/* A pool holds strings and arrays that are freed together, for example all strings and arrays of a
 * graph. */
typedef struct rf_pool rf_pool;
rf_pool *rf_pool_new(void);
void rf_pool_free(rf_pool *pool);
/* Allocates zeroed memory, aligned to 16 bytes. Aborts if the machine is out of memory. */
void *rf_pool_alloc(rf_pool *pool, size_t bytes);
/* Like rf_pool_alloc, but the memory is not zeroed. The caller writes every byte. */
void *rf_pool_raw(rf_pool *pool, size_t bytes);
char *rf_pool_format(rf_pool *pool, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns true if *flag is not 0. A signal handler or a thread may set *flag. NULL gives false. */
static inline bool rf_flag_is_set(const volatile int *flag) {
  return flag && __atomic_load_n(flag, __ATOMIC_RELAXED);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Greatest common divisor of two numbers that are at least 0. At least one of the numbers must be
 * above 0. */
int64_t rf_common_divisor(int64_t a, int64_t b);
/* For n >= 0. rf_ceil_div returns n / unit, rounded up. rf_round_up returns the smallest multiple
 * of `unit` that is not smaller than n. */
static inline int64_t rf_ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }
static inline int64_t rf_round_up(int64_t n, int64_t unit) { return rf_ceil_div(n, unit) * unit; }
/* Compares two doubles, for qsort in ascending order. */
int rf_compare_doubles(const void *a, const void *b);
/* Compares two strings, or two structs whose first field is a string, for qsort. For qsort and
 * bsearch. */
int rf_compare_names(const void *a, const void *b);

/* ---- clock ----------------------------------------------------------------------------------- */

double rf_now_seconds(void); /* monotonic clock */
int64_t rf_now_ns(void);     /* same clock as rf_now_seconds */

/* Seconds since this process started, including the time to load it. The steps are 0.01 s. -1:
 * unknown. */
double rf_process_seconds(void);

/* Random numbers depend only on a key and a counter. So random numbers are the same on any
 * thread. */

/* Philox-4x32-10 (Salmon et al., SC 2011): computes four 32-bit words from a key and a counter. */
void rf_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint32_t out[4]);
/* Mixes a seed and two numbers (for example a step and a site) into a 64-bit key. */
uint64_t rf_key(uint64_t seed, uint64_t a, uint64_t b);
/* FNV-1a hash of a name. The hash is the same on every machine. rf_key takes the hash of a name
 * such as "block.3/mlp/dropout" as the site. */
uint64_t rf_name_key(const char *name);
/* Converts a word of rf_philox to a uniform number in [0, 1). Uses the upper 24 bits. */
float rf_uniform(uint32_t word);
/* Converts two words of rf_philox to two standard normal numbers (Box-Muller). */
void rf_normal_pair(uint32_t a, uint32_t b, float out[2]);

#endif
