/* detect.c - describes this machine from what the operating system and the CPU report, without
 * measuring. The result has peak rates, as a data sheet has, but no measured curves (rf_curve). */
#include "machine/isa.h"
#include "machine/machine.h"

#include <hwloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#endif

/* The number of physical cores that this process may use. Hardware threads do not count. */
static int usable_cores(void) {
  int count = 0;
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) == 0) {
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(topology) == 0) count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    hwloc_topology_destroy(topology);
  }
  if (count < 1) count = (int)sysconf(_SC_NPROCESSORS_ONLN);
  return count < 1 ? 1 : count;
}

/* Finds the first line of /proc/cpuinfo that begins with `key`. Returns the number after the colon
 * of this line, or 0 if no such line exists. */
static double cpuinfo_number(const char *key) {
  FILE *file = fopen("/proc/cpuinfo", "re");
  char line[512];
  double value = 0;
  while (file && value == 0 && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (colon && !strncmp(line, key, strlen(key))) sscanf(colon + 1, "%lf", &value);
  }
  if (file) fclose(file);
  return value;
}

static double clock_hertz(void) {
#if defined(__x86_64__) || defined(__i386__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  /* base clock in MHz */
  if (__get_cpuid_max(0, NULL) >= 0x16 && __get_cpuid(0x16, &a, &b, &c, &d) && (a & 0xffff))
    return (a & 0xffff) * 1e6;
#endif
  double mhz = cpuinfo_number("cpu MHz");
  return mhz > 0 ? mhz * 1e6 : 2.5e9;
}

bool rf_machine_has_tiles(void) {
#if defined(__x86_64__) && defined(__linux__)
  enum { ASK = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  bool tiles = d >> 24 & 1, bytes = d >> 25 & 1, pairs = d >> 22 & 1;
  return tiles && bytes && pairs && syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
#else
  return false;
#endif
}

void rf_machine_cpu(char cpu[128]) {
  *cpu = 0;
#if defined(__x86_64__) || defined(__i386__)
  unsigned words[12] = {0}, a, b, c, d;
  if ((unsigned)__get_cpuid_max(0x80000000, NULL) < 0x80000004 || !__get_cpuid(1, &a, &b, &c, &d)) return;
  for (unsigned i = 0; i < 3; i++)
    __get_cpuid(0x80000002 + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
  char name[49] = "";
  memcpy(name, words, 48);
  unsigned family = a >> 8 & 15, model = (a >> 4 & 15) | (a >> 12 & 0xf0);
  if (family == 15) family += a >> 20 & 255;
  for (char *at = name; *at; at++)
    if ((unsigned char)*at < 32 || (unsigned char)*at > 126) *at = ' ';
  const char *from = name + strspn(name, " ");
  int length = (int)strlen(from);
  while (length > 0 && from[length - 1] == ' ') length--;
  snprintf(cpu, 128, "%.*s, family %u model %u stepping %u, L2 %ld KiB", length, from, family, model, a & 15,
           sysconf(_SC_LEVEL2_CACHE_SIZE) / 1024);
#endif
}

/* f32 FLOPs per cycle of a core with two vector units. A fused multiply-add is two FLOPs. */
static double flops_per_cycle(rf_isa isa) {
#if defined(__x86_64__) || defined(__i386__)
  /* AMD's first AVX-512 cores split each 512-bit operation into two 256-bit operations. Intel's
   * server cores have two 512-bit vector units. */
  if (isa >= RF_ISA_AVX512) return __builtin_cpu_is("amd") ? 32 : 64;
  return isa >= RF_ISA_AVX2 ? 32 : 8;
#elif defined(__aarch64__)
  (void)isa;
  return 16;
#else
  (void)isa;
  return 8;
#endif
}

rf_status rf_machine_detect(rf_machine *machine, rf_error *error) {
  memset(machine, 0, sizeof *machine);
  double pages = (double)sysconf(_SC_PHYS_PAGES), page = (double)sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0)
    return RF_FAIL(error, RAFTER_FAILED, "give a machine file: --on FILE",
                   "the system does not report the size of its memory");
  int cores = usable_cores();
  rf_isa isa = rf_isa_detect();
  double per_cycle = flops_per_cycle(isa), clock = clock_hertz();
  snprintf(machine->name, sizeof machine->name, "local");
  snprintf(machine->isa, sizeof machine->isa, "%s", rf_isa_name(isa));
  machine->kind = RF_MACHINE_CPU;
  snprintf(machine->source, sizeof machine->source, "detected");
  machine->chips = 1;
  machine->devices_per_chip = 1;
  machine->topology.fraction = 1;
  machine->threads = cores;
  machine->flops[RF_F32] = cores * clock * per_cycle;
  machine->flops[RF_F64] = machine->flops[RF_F32] / 2;
  /* Memory counts as reserved if other processes use it. Memory above the limit of a control group
   * counts as reserved too. The process needs 64 MiB in addition to its arena. */
  machine->memory_bytes = pages * page;
  double available = (double)rf_memory_available();
  if (available > 0 && available < machine->memory_bytes)
    machine->reserve_bytes = machine->memory_bytes - available;
  machine->reserve_bytes += 64 << 20;
  if (machine->reserve_bytes > machine->memory_bytes) machine->reserve_bytes = machine->memory_bytes;
  /* A core of a current server or laptop reads 10 to 25 GB/s. A memory channel delivers about 20
   * GB/s, and small machines have at least two channels. */
  double bandwidth = 12e9 * cores;
  if (bandwidth > 60e9 && cores <= 16) bandwidth = 60e9;
  if (bandwidth > 200e9) bandwidth = 200e9;
  machine->read_bps = bandwidth;
  machine->copy_bps = bandwidth * 0.8;
  machine->launch_seconds = 3e-6; /* seconds that it takes to wake all worker threads */
  machine->efficiency_compute = 0.7;
  machine->efficiency_memory = 0.8;
  snprintf(machine->source_note, sizeof machine->source_note,
           "detected, not measured: %d cores x %.2f GHz x %.0f FLOP a cycle; memory bandwidth is a guess. "
           "`rafter calibrate` measures",
           cores, clock / 1e9, per_cycle);
  return RAFTER_OK;
}
