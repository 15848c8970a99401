/* machine.h - speed and size of a machine, from data sheets and calibration files. */
#ifndef RF_MACHINE_H
#define RF_MACHINE_H

#include <jansson.h>

#include "graph/graph.h"
#include "graph/mesh/mesh.h"
#include "machine/isa.h"

/* Measured speed of a class of ops at several sizes. The efficiency of a kernel depends on `size`
 * (rf_cost_size in plan). The points ascend in `size`. If all sizes of a curve are 0, `work` is
 * used as the size. Between two points, the rate work/seconds is interpolated linearly in
 * log(size). */
enum { RF_CURVE_POINTS = 32 };
typedef struct rf_curve {
  /* name of an op, "load", or name of a class of products with packed matrices (rf_cost_classes) */
  char op[32];
  rf_dtype dtype;
  int count;
  /* work of one call: FLOPs for ops that multiply, and bytes for other ops */
  double work[RF_CURVE_POINTS];
  /* measured seconds of one call, with the calibrated number of threads */
  double seconds[RF_CURVE_POINTS];
  double size[RF_CURVE_POINTS];
  char kernel[64];
  bool multiplies; /* value of rf_curve_multiplies(op) */
} rf_curve;
/* True if the time of an op with this name depends on its FLOPs. False if the time depends on
 * the bytes that the op moves. */
bool rf_curve_multiplies(const char *op);

/* Rates with fewer threads than the machine has. The rates are FLOP/s in f32, and bytes/s of
 * reading. */
enum { RF_SCALING_POINTS = 16 };
typedef struct rf_scaling {
  int threads;
  double flops, read_bps;
} rf_scaling;

typedef enum rf_collective {
  RF_ALL_GATHER,
  RF_REDUCE_SCATTER,
  RF_ALL_REDUCE,
  RF_ALL_TO_ALL,
  RF_PERMUTE, /* every chip sends data to its neighbour */
  RF_COLLECTIVES
} rf_collective;

/* Measured seconds of a collective in a group. The points are in ascending order of the bytes of
 * rf_collective_seconds. A group is known by its number of chips in one node and its number of
 * nodes. `dtype` matters only for sums. Other collectives have the dtype RF_F32, because their time
 * depends only on the bytes. */
enum { RF_EXCHANGE_CURVES = 160, RF_EXCHANGE_POINTS = 12 };
typedef struct rf_exchange_curve {
  rf_collective kind;
  rf_dtype dtype;
  int inside, nodes;
  int count;
  double bytes[RF_EXCHANGE_POINTS], seconds[RF_EXCHANGE_POINTS];
  /* seconds that the exchange takes from a rank's cores if the rank computes meanwhile; 0: not
   * measured */
  double core_seconds[RF_EXCHANGE_POINTS];
} rf_exchange_curve;

/* TORUS: every chip has one link in each direction along each axis. SWITCH: a switch joins the
 * chips of a node, and a second network joins the nodes. */
typedef enum rf_network_form { RF_NETWORK_NONE, RF_NETWORK_TORUS, RF_NETWORK_SWITCH } rf_network_form;
/* Lengths at which a torus axis closes to a ring. FULL16: 16 chips (v5e, v6e). MULTIPLE_OF_4:
 * multiples of 4, because v4, v5p and v7x consist of 4x4x4 cubes. */
typedef enum rf_wrap { RF_WRAP_NEVER, RF_WRAP_FULL16, RF_WRAP_MULTIPLE_OF_4, RF_WRAP_ALWAYS } rf_wrap;
enum { RF_TORUS_AXES = 4, RF_PRICE_TIERS = 6, RF_NETWORK_AXES_MAX = 1 << 20 };
typedef struct rf_topology {
  rf_network_form form;
  rf_wrap wrap;
  int axes;               /* TORUS: number of axes */
  int pod[RF_TORUS_AXES]; /* TORUS: maximum number of chips along each axis */
  int64_t pod_chips;      /* maximum number of chips of a network; 0: no limit */
  int64_t job_chips;      /* maximum number of chips of one job; 0: all chips */
  int host_chips;         /* number of chips that share a host; 0: unknown */
  /* bytes/s in one direction. TORUS: over one link. SWITCH: bytes/s out of one chip. */
  double oneway_bps;
  /* Latency in seconds; 0: unknown. TORUS: hop_seconds is that of one link. SWITCH: a small all-reduce
   * takes 2 hop_seconds in a node, and 2 node_hop_seconds more over several nodes. */
  double hop_seconds, node_hop_seconds;
  double fraction; /* fraction of oneway_bps that large transfers reach; 1: unknown */
  int domain;      /* SWITCH: maximum number of chips at one switch */
  double node_bps; /* SWITCH: bytes/s out of a full node; 0: unknown */
  /* bytes/s in one direction between the two devices of a chip; 0: a chip is one device */
  double die_bps;
} rf_topology;
typedef struct rf_price {
  char tier[16], date[16]; /* tier: one of "list", "committed", "flex-start", ... date: such as "2025-02" */
  char source[160];
  double usd_per_chip_hour;
} rf_price;

/* ---- tuned block sizes of products (tuned.c) ---- */

enum { RF_TUNED_ROWS = 64, RF_TUNED_CLASSES = 9 };
/* Sizes of the blocks in which the kernel of a product computes. The sizes do not affect results.
 * If all sizes are 0, the kernel chooses them. */
typedef struct rf_blocks {
  int64_t kc,  /* values of k in a block */
      a_bytes, /* bytes of packed rows in a block, for each group of threads that works on it */
      nc;      /* columns in a block */
} rf_blocks;

/* The best block sizes for one shape class of an op, and the speed-up of these sizes over the
 * default sizes. */
typedef struct rf_tuned_row {
  char op[32], kernel[64];
  int class; /* index of a class of rf_tuned_class */
  rf_dtype dtype;
  /* usual: the default sizes. best: the best sizes; all fields are 0 if the default is best. */
  rf_blocks usual, best;
  /* gain: median over rounds of the speed-up, as a fraction. spread: interquartile range of this
   * speed-up. */
  double gain, spread;
} rf_tuned_row;
/* Result of `rafter calibrate --tune`. */
typedef struct rf_tuned {
  char cpu[128]; /* CPU on which block sizes were tuned; "": block sizes were not tuned */
  bool here;     /* true if this CPU is the tuned CPU; if false, the table is ignored */
  int threads;   /* number of threads during tuning; with another number, the table is ignored */
  int count;
  rf_tuned_row row[RF_TUNED_ROWS];
} rf_tuned;

/* Kind of a machine. RF_MACHINE_NONE means unknown. An empty rf_machine has this value. */
typedef enum rf_machine_kind {
  RF_MACHINE_NONE,
  RF_MACHINE_CPU,
  RF_MACHINE_GPU,
  RF_MACHINE_TPU
} rf_machine_kind;
const char *rf_machine_kind_name(rf_machine_kind kind); /* "", "cpu", "gpu", "tpu" */

enum { RF_MAX_CURVES = 160 };
typedef struct rf_machine {
  char name[64];
  rf_machine_kind kind;
  char source[24];       /* "data-sheet", "detected", "calibrated", "file" */
  char source_note[256]; /* text that says where the figures come from */
  int chips, threads;
  double flops[RF_DTYPES]; /* peak FLOP/s of one chip for products of a dtype; 0: unknown */
  /* peak FLOP/s of the vector units, if `flops` is the rate of tiles; 0: the same as `flops`, or
   * unknown */
  double flops_vectors[RF_DTYPES];
  double flops_tf32, flops_f4; /* FLOP/s of formats that have no rf_dtype; 0: unknown */
  double memory_bytes;         /* capacity of one chip */
  double reserve_bytes;        /* part of memory_bytes that the runtime reserves */
  /* bytes/s of reading, and bytes/s of copying; a data sheet has the memory bandwidth for both */
  double read_bps, copy_bps;
  double launch_seconds; /* overhead of one op */
  double watts;          /* power of one busy chip; 0: unknown */
  /* the list price, or the price that rf_machine_set_price set; 0: unknown */
  double usd_per_chip_hour;
  /* tier of the price: "list", another tier, or "given" if the user gave an amount; "": no price */
  char price_tier[16];
  int price_count;
  rf_price price[RF_PRICE_TIERS]; /* list of all price tiers that have a source */
  double vmem_bytes, vmem_bps;    /* vmem: memory on the chip that programs address; 0: none, or unknown */
  /* rows and columns are rounded up to multiples of tile[0] and tile[1]; 0: they are not rounded */
  int tile[2];
  /* dcn: data-centre network. dcn_bps: bytes/s out of one chip. dcn_hop_seconds: latency. */
  double dcn_bps, dcn_hop_seconds;
  /* pcie_bps: bytes/s in one direction between chip and host. host_bytes: the host's memory. */
  double pcie_bps, host_bytes;
  /* number of devices of a chip: 1, or 2 devices that are joined with topology.die_bps */
  int devices_per_chip;
  bool by_device; /* true if all figures are for one device, and `chips` counts devices */
  rf_topology topology;
  char edition[32]; /* edition of the data sheet from which the figures come; "": the sheet itself */
  int shape_rank;   /* number of entries of `shape`; 0: one chip */
  /* shape: the extents of the axes (TORUS), or the number of chips of a node and the number of
   * nodes (SWITCH). slices: number of copies of this shape, which the data-centre network joins. */
  int shape[RF_TORUS_AXES], slices;
  /* fractions of the peak rates that ops reach, for machines without curves */
  double efficiency_compute, efficiency_memory;
  /* efficiency of grouped products (experts) as a fraction of efficiency_compute; 0: unknown */
  double efficiency_experts;
  /* efficiency of products with 8-bit operands, as a fraction of efficiency_compute; 0: unknown */
  double efficiency_eight_bits;
  char isa[16]; /* instruction-set level of a CPU */
  /* value of RF_CALIBRATION when the figures were measured; 0: before this version, or not
   * measured */
  int calibration;
  double others_part; /* part of the cores that other programs took during the calibration, 0 to 1 */
  int scaling_count;
  rf_scaling scaling[RF_SCALING_POINTS];
  int curve_count;
  rf_curve curve[RF_MAX_CURVES];
  /* number of curves that `rafter calibrate --network` measured; 0: none */
  int exchange_count;
  rf_exchange_curve exchange[RF_EXCHANGE_CURVES];
  bool guessed; /* true if rf_machine_as_chips made the chips, so that no link between them was measured */
  rf_tuned tuned;
} rf_machine;

/* Finds a machine. Finds a machine. `spec` is "local", the path of a machine file, or the name of a
 * data sheet. "local" is the calibrated machine. Without a calibration, "local" is the detected
 * machine. A name has the form NAME[@EDITION][:SHAPE][*SLICES]. EDITION selects other figures of
 * the data sheet. SHAPE is the number of chips along each axis (tpu-v5e:4x4). For a machine with
 * nodes, SHAPE is the number of nodes and of chips per node (h100-sxm:4x8 has 4 nodes of 8 chips).
 * SLICES is the number of slices with this SHAPE on the data-centre network. `chips` becomes the
 * product of SHAPE and SLICES. All other figures are still those of one chip. */
rf_status rf_machine_find(const char *spec, rf_machine *machine, rf_error *error);
/* Like rf_machine_find, for kernels of level `isa`: "local" is the machine that was calibrated at
 * this level. If no file for this level exists, "local" is the machine that was calibrated at the
 * best level. */
rf_status rf_machine_find_at(const char *spec, rf_isa isa, rf_machine *machine, rf_error *error);
/* Returns the data sheet number `index` of data/machines.json. Returns NULL after the last sheet. A
 * data sheet has the name, the title, the editions, and the source of each figure. */
const json_t *rf_machine_sheet(int index);
/* Sets `text` to the suffix of a machine's name for this many chips: ":8x8x8" (as close to a
 * cube as the torus allows), ":4x8" (4 nodes of 8 chips at a switch), or "" for one chip. */
void rf_machine_shape_for(const rf_machine *machine, int64_t chips, char *text, size_t capacity);
/* Sets SHAPE and SLICES of a spec ("4x4", "4x4*2" or "*2"). */
rf_status rf_machine_set_shape(rf_machine *machine, const char *shape, rf_error *error);
/* Text that describes the chips: "2 nodes of 8 chips", "16 chips (4x4)" or "2 slices of 16 chips
 * (4x4)". */
const char *rf_machine_chips_text(const rf_machine *machine, char text[120]);
/* True if the nodes of SHAPE are larger or smaller than the nodes of the data sheet. If so, `text`
 * gets a sentence with both sizes. */
bool rf_machine_odd_node(const rf_machine *machine, char text[200]);
/* Sets the price of a chip-hour. `text` is the name of a tier, or an amount in USD. Errors list the
 * tiers. */
rf_status rf_machine_set_price(rf_machine *machine, const char *text, rf_error *error);
/* Text with all prices, such as "list 2.70, committed 1.61". The text is "" if no price is
 * known. */
const char *rf_machine_prices_text(const rf_machine *machine, char text[200]);
/* Checks that a slice with these extents fits in a pod. The order of the extents does not matter.
 * Errors call it `what`. */
rf_status rf_machine_check_pod(const rf_machine *machine, const int *shape, int rank, const char *what,
                               const char *hint, rf_error *error);
/* Counts each of the two devices of a chip as a chip. Doubles the number of chips, and halves every
 * figure. topology.die_bps joins the two devices. Does nothing if a chip is one device. */
void rf_machine_by_device(rf_machine *machine);
/* Changes a machine of one chip into `chips` chips, which share its cores and its memory equally. A
 * compiler's plugin for CPUs has such devices. The memory's bandwidth joins these devices. This is
 * a guess (`guessed`). The curves of the whole machine do not hold for one of these devices. */
void rf_machine_as_chips(rf_machine *machine, int chips);
/* Bytes/s of one chip into the data-centre network. On a GPU, this is the chip's part of its
 * node's bytes/s. 0: unknown. */
double rf_machine_dcn_bps(const rf_machine *machine);
/* True if an axis of this length closes to a ring. */
bool rf_machine_wraps(const rf_machine *machine, int extent);
#define RF_MACHINE_FORMAT "rafter-machine-1" /* field "format" of the machine files that rafter writes */
/* Field "calibration" of the files that `rafter calibrate` writes. Raise this number if a measured
 * figure changes its meaning. In version 2, memory bandwidth is the median of single passes. In
 * version 3, products with an adapter's narrow matrix count the FLOPs of whole vectors. */
enum { RF_CALIBRATION = 3 };
/* True if figures of a calibration have another definition than those of RF_CALIBRATION. If so,
 * `text` gets a sentence about this difference, with advice. */
bool rf_machine_old_calibration(const rf_machine *machine, char text[200]);
/* True if other programs took so much of the cores that the figures of the calibration are too low.
 * If so, `text` gets a sentence with advice. */
bool rf_machine_busy_calibration(const rf_machine *machine, char text[200]);
rf_status rf_machine_read(const char *path, rf_machine *machine, rf_error *error);
/* Writes a machine file. The file gets its name only when it is complete. */
rf_status rf_machine_write(const rf_machine *machine, const char *path, rf_error *error);
/* Describes this machine roughly, without measuring it. Sets `source` to "detected". */
rf_status rf_machine_detect(rf_machine *machine, rf_error *error);
/* True if this CPU has tiles for int8 and bf16 products, and if this process may use the tiles. The
 * function asks the system for permission. Tiles need this permission because their registers are
 * large. */
bool rf_machine_has_tiles(void);
/* Name, family, model, stepping and L2 cache of this CPU. "" if they are unknown. */
void rf_machine_cpu(char cpu[128]);
/* The path where `rafter calibrate` stores the file of this machine:
 * $XDG_CACHE_HOME/rafter/HOST.json or ~/.cache/rafter/HOST.json. A lower level of `--cpu` has a
 * file of its own, such as HOST.avx2.json. */
void rf_machine_local_path(rf_isa isa, char path[4096]);
/* Like rf_machine_local_path, for `rafter calibrate --network` with this number of ranks of MPI:
 * HOST.8-ranks.json. */
void rf_machine_ranks_path(rf_isa isa, int ranks, char path[4096]);

/* One dimension of a group of chips on a torus. The dimension has `extent` chips that are `stride`
 * links apart. If `wraps` is true, the ring closes, so it uses both directions. */
typedef struct rf_ring {
  int extent, stride;
  bool wraps;
} rf_ring;
/* A group of chips and the links between them. A dimension of size 1 is not listed. */
typedef struct rf_group {
  int chips; /* number of chips in the group */
  int rings; /* TORUS: number of rings */
  rf_ring ring[RF_TORUS_AXES];
  /* bytes/s of one link (TORUS) or out of one chip (SWITCH), and latencies as in rf_topology */
  double oneway_bps, hop_seconds, node_hop_seconds;
  /* For SWITCH. inside: number of the group's chips in one node. nodes: number of nodes. */
  int inside, nodes;
  double node_bps; /* for SWITCH: the group's part of the bytes/s out of a node */
  int slices;      /* number of slices, which the data-centre network joins */
  double dcn_bps, dcn_hop_seconds;
  bool die; /* true if the group uses the link between the two devices of a chip */
  double die_bps;
  /* fraction of the links' bandwidth that transfers reach; callers multiply the bandwidth by it */
  double fraction;
  uint32_t resources; /* bits of the links in use: bit i is torus axis i; other bits are RF_RESOURCE_* */
} rf_group;
enum { RF_RESOURCE_SWITCH = 1 << 8, RF_RESOURCE_NODE = 1 << 9 };
enum { RF_RESOURCE_DCN = 1 << 10, RF_RESOURCE_DIE = 1 << 11 };

/* Sets `group` to the chips along these mesh axes. Inner mesh axes use neighbouring chips. If
 * possible, a mesh axis uses complete torus axes. The `slice` axis uses the data-centre network. If
 * the machine is `by_device`, one mesh axis joins the two devices of a chip. The joining axis is
 * the pinned axis. Without a pinned axis, the innermost axis with an even extent joins them.
 * RAFTER_INVALID: the mesh and the machine have different numbers of chips, or the bandwidth of the
 * links is unknown. */
rf_status rf_machine_group(const rf_machine *machine, const rf_mesh *mesh, rf_axes axes, rf_group *group,
                           rf_error *error);
/* Sets `group` to a group with these extents along the network's axes (SWITCH: chips of a node,
 * then nodes). `wrap` is 1 if axes close to rings, 0 if not, and -1 to use the machine's rule. */
rf_status rf_machine_axes(const rf_machine *machine, const int *extent, int count, int wrap, rf_group *group,
                          rf_error *error);
/* Seconds of a collective. docs/planning.md has the formulas. `whole_bytes` are the bytes of an
 * array. For an all-gather, whole_bytes counts the gathered array. For a reduce-scatter or an
 * all-reduce, whole_bytes counts the input of one member. For an all-to-all, whole_bytes counts the
 * input of all members. For a permute, whole_bytes counts one message. If `literature` is true, the
 * formulas omit the factor (X-1)/X of rings, as books do. *latency gets only the latency. `latency`
 * may be NULL. */
double rf_collective_seconds(const rf_group *group, rf_collective kind, double whole_bytes, bool literature,
                             double *latency);
/* Like rf_collective_seconds, for this machine. If the machine has measured curves for this
 * collective and group (exchange.c), they give the seconds. Otherwise the formulas do, with the
 * fraction of the links that transfers reach. */
double rf_machine_exchange_seconds(const rf_machine *machine, const rf_group *group, rf_collective kind,
                                   rf_dtype dtype, double whole_bytes, double *latency);
/* Seconds that a collective takes from a rank's cores if the rank computes meanwhile. The seconds
 * come from measured times. -1: not measured. */
double rf_machine_exchange_core(const rf_machine *machine, const rf_group *group, rf_collective kind,
                                rf_dtype dtype, double whole_bytes);

#endif
