/* null.c - the backend that touches nothing: the CPU's kernels as far as a plan can see (names,
 * workspaces), and a walk that calls none of them. So its plans are the CPU's plans, byte for
 * byte, and a plan too large for this machine can still be walked.
 *
 * The list is the CPU backend's (cpu.c), which keeps its own to itself; a test holds that both
 * choose the same kernel for every op. */
#include "backend/cpu/cpu.h"
#include "backend/reference/reference.h"

static const rf_kernel *const tables[] = {
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

const rf_backend RF_BACKEND_NULL = {.name = "null", .tables = tables, .touches_memory = false};
