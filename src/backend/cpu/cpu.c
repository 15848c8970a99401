/* cpu.c - the CPU backend: its kernel tables, stronger ISAs first, and the reference as the last
 * resort. */
#include "backend/cpu/cpu.h"
#include "backend/reference/reference.h"

static const rf_kernel *const TABLES[] = {
    RF_CPU_MATMUL,
    RF_CPU_EXPERTS,
    RF_CPU_LORA,
    RF_CPU_HEAD,
    RF_CPU_ATTENTION,
    RF_CPU_ELEMENTWISE_AVX512,
    RF_CPU_ELEMENTWISE_AVX2,
    RF_CPU_ELEMENTWISE_BASE,
    RF_REFERENCE_KERNELS,
    NULL,
};

const rf_backend RF_BACKEND_CPU = {.name = "cpu", .tables = TABLES, .touches_memory = true};
