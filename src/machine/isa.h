/* isa.h - the levels of x86 that kernels are compiled for, and which this CPU has. */
#ifndef RF_ISA_H
#define RF_ISA_H

#include "base/base.h"

/* Ordered: a level includes those below it. */
typedef enum rf_isa {
  RF_ISA_BASE,
  RF_ISA_AVX2,
  RF_ISA_AVX512,
  RF_ISA_AVX512BF16,
  RF_ISA_AMX,
  RF_ISAS
} rf_isa;
rf_isa rf_isa_detect(void);          /* by cpuid, once; also asks whether the system saves the registers */
const char *rf_isa_name(rf_isa isa); /* "base", "avx2", "avx512", "avx512bf16", "amx" */
/* "auto" is what this CPU has. RAFTER_INVALID: unknown, or more than this CPU has. */
rf_status rf_isa_resolve(const char *name, rf_isa *isa, rf_error *error);

#endif
