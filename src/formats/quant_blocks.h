/* quant_blocks.h - sizes and conversions of blocks of storage types, and little-endian access. */
#ifndef RF_QUANT_BLOCKS_H
#define RF_QUANT_BLOCKS_H

#include "formats/quant.h"

/* Block sizes in bytes. The comment of each conversion function lists the fields of a block in
 * order. */
enum { RF_Q4_0_BYTES = 18, RF_Q4_1_BYTES = 20, RF_Q5_0_BYTES = 22, RF_Q5_1_BYTES = 24, RF_Q8_0_BYTES = 34 };
enum { RF_Q2_K_BYTES = 84, RF_Q3_K_BYTES = 110, RF_Q4_K_BYTES = 144 };
enum { RF_Q5_K_BYTES = 176, RF_Q6_K_BYTES = 210 };
enum { RF_INT8_HEAD = 4 };
enum { RF_K_VALUES = 256 }; /* number of values in a super-block of a K type */

#define RF_QUANT_BOTH(type) \
  void rf_dequantize_##type(const void *from, int64_t blocks, float *out); \
  void rf_quantize_##type(const float *values, int64_t blocks, void *out);
/* RF_QUANT_BOTH(q4_0) declares rf_dequantize_q4_0 and rf_quantize_q4_0. */
RF_QUANT_BOTH(q4_0)
RF_QUANT_BOTH(q4_1)
RF_QUANT_BOTH(q5_0)
RF_QUANT_BOTH(q5_1)
RF_QUANT_BOTH(q8_0)
RF_QUANT_BOTH(int8)
RF_QUANT_BOTH(q2_k)
RF_QUANT_BOTH(q3_k)
RF_QUANT_BOTH(q4_k)
RF_QUANT_BOTH(q5_k)
RF_QUANT_BOTH(q6_k)
#undef RF_QUANT_BOTH

static inline uint16_t rf_load_u16(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }
static inline uint32_t rf_load_u32(const uint8_t *at) {
  return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}
static inline uint64_t rf_load_u64(const uint8_t *at) {
  return rf_load_u32(at) | (uint64_t)rf_load_u32(at + 4) << 32;
}
static inline void rf_store_u16(uint8_t *at, uint16_t value) {
  at[0] = (uint8_t)value;
  at[1] = (uint8_t)(value >> 8);
}
static inline void rf_store_u32(uint8_t *at, uint32_t value) {
  rf_store_u16(at, (uint16_t)value);
  rf_store_u16(at + 2, (uint16_t)(value >> 16));
}
static inline void rf_store_u64(uint8_t *at, uint64_t value) {
  rf_store_u32(at, (uint32_t)value);
  rf_store_u32(at + 4, (uint32_t)(value >> 32));
}
static inline float rf_load_f16(const uint8_t *at) { return rf_f16_to_f32(rf_load_u16(at)); }
static inline void rf_store_f16(uint8_t *at, float value) { rf_store_u16(at, rf_f32_to_f16(value)); }

#endif
