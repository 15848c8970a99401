/* compiled_target.c - see compiled_target.h. */
#include "advise/compiled_target.h"

#include <stdio.h>
#include <string.h>

/* For each generation of TPUs: a part of the machine's name, the plugin's name, and the number of
 * axes of the topology. */
static const struct {
  const char *machine, *word;
  int axes;
} TPUS[] = {{"tpu-v4", "v4", 3},
            {"tpu-v5e", "v5e", 2},
            {"tpu-v5p", "v5p", 3},
            {"tpu-v6e", "v6e", 2},
            {"tpu-v7x", "tpu7x", 3}};

/* Sizes of GPUs, from which the compiler chooses tiles. The sizes are the compute capability times
 * 10, the number of multiprocessors, the f32 units, KiB of shared memory and threads of one
 * multiprocessor, KiB of L2, and the highest clock in GHz. Sources: NVIDIA's architecture papers,
 * and the tables of technical specifications of the CUDA C++ Programming Guide. */
typedef struct gpu {
  const char *machine;
  int capability, cores, units, shared_kib, threads, cache_kib;
  double clock;
} gpu;
static const gpu GPUS[] = {
    {"a5000", 86, 64, 128, 100, 1536, 6144, 1.695},     {"a100-80g", 80, 108, 64, 164, 2048, 40960, 1.41},
    {"h100-sxm", 90, 132, 128, 228, 2048, 51200, 1.98}, {"h100-pcie", 90, 114, 128, 228, 2048, 51200, 1.755},
    {"h200", 90, 132, 128, 228, 2048, 61440, 1.98},     {"b200", 100, 148, 128, 228, 2048, 129024, 1.965},
    {"gb200", 100, 152, 128, 228, 2048, 129024, 2.062}, {"rtx-4090", 89, 128, 128, 100, 1536, 73728, 2.52},
    {"l4", 89, 58, 128, 100, 1536, 49152, 2.04},        {"a10", 86, 72, 128, 100, 1536, 6144, 1.695}};

/* True if the machine is `name`, on one chip or several. */
static bool is(const rf_machine *machine, const char *name) {
  size_t length = strlen(name);
  return strncmp(machine->name, name, length) == 0 && strchr(":@*", machine->name[length]);
}

static int extent(const rf_machine *machine, int axis) {
  return axis < machine->shape_rank ? machine->shape[axis] : 1;
}

static void describe(const gpu *of, const rf_machine *machine, rf_compiled_target *target) {
  const int kib = 1024;
  snprintf(
      target->config, sizeof target->config,
      "gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 "
      "shared_memory_per_core: %d threads_per_core_limit: %d core_count: %d fpus_per_core: %d "
      "block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 "
      "memory_bandwidth: %.0f l2_cache_size: %d clock_rate_ghz: %g device_memory_size: %lld "
      "shared_memory_per_block_optin: %d cuda_compute_capability { major: %d minor: %d } "
      "registers_per_core_limit: 65536 registers_per_block_limit: 65536 thread_dim_limit_x: 1024 "
      "thread_dim_limit_y: 1024 thread_dim_limit_z: 64 device_vendor: \"NVIDIA Corporation\" "
      "device_address_bits: 64 name: \"%s\" driver_version: \"13.0.0\" runtime_version: \"12.8.0\" "
      "compile_time_toolkit_version: \"12.8.0\" dnn_version: \"9.10.0\" } platform_name: \"CUDA\" "
      "dnn_version_info { major: 9 minor: 10 patch: 0 } device_description_str: \"%s\"",
      of->shared_kib * kib, of->threads, of->cores, of->units, machine->read_bps, of->cache_kib * kib,
      of->clock, (long long)machine->memory_bytes, (of->shared_kib - 1) * kib, of->capability / 10,
      of->capability % 10, machine->name, machine->name);
}

rf_status rf_compiled_target_of(const rf_machine *machine, rf_compiled_target *target, rf_error *error) {
  *target = (rf_compiled_target){.platform = "tpu"};
  for (size_t i = 0; i < sizeof TPUS / sizeof *TPUS; i++) {
    if (!is(machine, TPUS[i].machine)) continue;
    if (machine->slices > 1) break;
    int at = snprintf(target->topology, sizeof target->topology, "%s:", TPUS[i].word);
    for (int a = 0; a < TPUS[i].axes; a++)
      at += snprintf(target->topology + at, sizeof target->topology - (size_t)at, "%s%d", a ? "x" : "",
                     extent(machine, a));
    memcpy(target->name, target->topology, sizeof target->name);
    return RAFTER_OK;
  }
  for (size_t i = 0; i < sizeof GPUS / sizeof *GPUS; i++) {
    if (!is(machine, GPUS[i].machine)) continue;
    target->platform = "cuda";
    int chips = extent(machine, 0), nodes = extent(machine, 1);
    if (chips * nodes == 1) snprintf(target->name, sizeof target->name, "%.40s", GPUS[i].machine);
    else snprintf(target->name, sizeof target->name, "%.40s:%dx%d", GPUS[i].machine, nodes, chips);
    /* the topology has one network, a number of nodes, and a number of chips per node */
    snprintf(target->topology, sizeof target->topology, "1x%dx%d", nodes, chips);
    describe(&GPUS[i], machine, target);
    return RAFTER_OK;
  }
  return RF_FAIL(error, RAFTER_INVALID,
                 "for example --on h100-sxm, or --on tpu-v5e:2x4, one slice of tpu-v4, v5e, v5p, v6e or v7x",
                 "--compile knows no topology for this machine (--on: got %s)", machine->name);
}
