/* isa.c - see isa.h. */
#include "machine/isa.h"
#include "machine/machine.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

bool rf_isa_has_vex_vnni(void) {
#if defined(__x86_64__)
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
#else
  return false;
#endif
}

static rf_isa detect(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return RF_ISA_BASE;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return rf_isa_has_vex_vnni() ? RF_ISA_AVXVNNI : RF_ISA_AVX2;
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni")) return RF_ISA_AVX512;
  return rf_machine_has_tiles() ? RF_ISA_AMX : RF_ISA_AVX512BF16;
#else
  return RF_ISA_BASE;
#endif
}

rf_isa rf_isa_detect(void) {
  /* Several threads may run this detection at the same time, because all of them find the same
   * result. */
  static int known = -1;
  int isa = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (isa < 0) {
    isa = (int)detect();
    __atomic_store_n(&known, isa, __ATOMIC_RELAXED);
  }
  return (rf_isa)isa;
}

bool rf_isa_runs(rf_isa isa) {
  if (isa > rf_isa_detect()) return false;
#if defined(__x86_64__)
  if (isa == RF_ISA_AVXVNNI) return rf_isa_has_vex_vnni() || __builtin_cpu_supports("avx512vnni");
#endif
  return true;
}

const char *rf_isa_name(rf_isa isa) {
  static const char *const names[RF_ISAS] = {"base", "avx2", "avxvnni", "avx512", "avx512bf16", "amx"};
  return (unsigned)isa < RF_ISAS ? names[isa] : "unknown";
}

rf_status rf_isa_resolve(const char *name, rf_isa *isa, rf_error *error) {
  rf_isa most = rf_isa_detect();
  if (!strcmp(name, "auto")) return *isa = most, RAFTER_OK;
  for (int i = 0; i < RF_ISAS; i++) {
    if (strcmp(name, rf_isa_name((rf_isa)i))) continue;
    if (!rf_isa_runs((rf_isa)i))
      return RF_FAIL(error, RAFTER_INVALID, "leave --cpu out",
                     "this CPU lacks the requested instructions (--cpu: expected at most %s, got %s)",
                     rf_isa_name(most), name);
    return *isa = (rf_isa)i, RAFTER_OK;
  }
  return RF_FAIL(error, RAFTER_INVALID, "one of auto, base, avx2, avxvnni, avx512, avx512bf16, amx",
                 "unknown instruction set %s", name);
}
