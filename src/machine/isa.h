/* isa.h - the x86 instruction-set levels of kernels, and the level of this CPU. Other CPUs have
 * RF_ISA_BASE. */
#ifndef RF_ISA_H
#define RF_ISA_H

#include "base/base.h"

/* The levels are in ascending order. Each level includes all lower levels, except that AVX-512 may
 * lack AVXVNNI. */
typedef enum rf_isa {
  RF_ISA_BASE,
  RF_ISA_AVX2,
  RF_ISA_AVXVNNI, /* the CPU has dot products of four bytes in 256-bit vectors */
  RF_ISA_AVX512,
  RF_ISA_AVX512BF16,
  RF_ISA_AMX,
  RF_ISAS
} rf_isa;
/* Returns the highest level that cpuid reports, and whose registers the operating system saves. */
rf_isa rf_isa_detect(void);
/* True if this CPU runs the kernels of a level. A CPU with AVX-512 VNNI also runs the kernels of
 * RF_ISA_AVXVNNI. */
bool rf_isa_runs(rf_isa isa);
/* True if the CPU has the VEX encoding of VNNI. Otherwise dot products exist only in AVX-512
 * VNNI. */
bool rf_isa_has_vex_vnni(void);
const char *rf_isa_name(rf_isa isa); /* "base", "avx2", "avxvnni", "avx512", "avx512bf16", "amx" */
/* Converts a name to a level. Parses the name of a level. "auto" is the level of this CPU.
 * RAFTER_INVALID: the name is unknown, or this CPU lacks the level. */
rf_status rf_isa_resolve(const char *name, rf_isa *isa, rf_error *error);

#endif
