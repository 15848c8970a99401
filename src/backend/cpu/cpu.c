/* cpu.c - the CPU backend: its device and its tables of kernels. Reference kernels come last. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/peaks.h"
#include "backend/host.h"
#include "backend/mpi/mpi.h"
#include "backend/mpi/pipe.h"
#include "backend/reference/reference.h"

#include <unistd.h>

static const rf_kernel *const TABLES[] = {
    RF_CPU_MATMUL,
    RF_CPU_EXPERTS,
    RF_CPU_LORA,
    RF_CPU_LORA_SLOTS,
    RF_CPU_HEAD,
    RF_CPU_ATTENTION,
#if defined(__x86_64__)
    RF_CPU_ELEMENTWISE_AVX512,
    RF_CPU_ELEMENTWISE_AVX2,
#endif
    RF_CPU_ELEMENTWISE_BASE,
    RF_MPI_COLLECTIVES,
    RF_MPI_FLIGHTS,
    RF_MPI_TRANSFERS,
    RF_REFERENCE_KERNELS,
    NULL,
};

int64_t rf_l2_bytes(void) {
  static int64_t known = -1;
  int64_t bytes = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (bytes < 0) {
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (bytes < 0) bytes = 0;
    __atomic_store_n(&known, bytes, __ATOMIC_RELAXED);
  }
  return bytes;
}

static rf_isa level_of(const rf_device *device, rf_alu alu) {
  return alu == RF_ALU_MATRIX ? (rf_isa)device->level : RF_PEAK_VECTORS_OF((rf_isa)device->level);
}

static bool has_alu(const rf_device *device, rf_dtype dtype, rf_alu alu) {
  rf_peak_unit wanted = alu == RF_ALU_MATRIX ? RF_PEAK_TILES : RF_PEAK_VECTORS;
  return rf_peak_unit_of(dtype, level_of(device, alu)) == wanted;
}

static double flops(const rf_device *device, rf_dtype dtype, rf_alu alu, double seconds) {
  if (!has_alu(device, dtype, alu)) return 0;
  return rf_peak_flops(dtype, level_of(device, alu), device->workers, seconds);
}

static double bandwidth(const rf_device *device, rf_memory *memory, rf_traffic traffic, int passes) {
  size_t bytes = (size_t)memory->bytes;
  if (traffic == RF_TRAFFIC_READ) return rf_peak_read_bps(memory->host, bytes, device->workers, passes);
  return rf_peak_nt_copy_bps(memory->host, bytes, device->workers, passes);
}

static double launch_seconds(const rf_device *device) { return rf_peak_launch_seconds(device->workers); }

static const rf_device_type DEVICE = {RF_HOST_DEVICE, .has_alu = has_alu, .flops = flops,
                                      .bandwidth = bandwidth, .launch_seconds = launch_seconds};

static bool default_blocks(const rf_kernel *kernel, rf_blocks *blocks) {
  *blocks = rf_gemm_blocks();
  return rf_matmul_has_blocks(kernel);
}

const rf_backend RF_BACKEND_CPU = {
    .name = "cpu", .tables = TABLES, .device = &DEVICE, .blocks = default_blocks, .many_chips = true};
