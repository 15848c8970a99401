/* machine.h - what a machine can do: data sheets (data/machines.json) and calibration files.
 * Holds data only, measures nothing. */
#ifndef RF_MACHINE_H
#define RF_MACHINE_H

#include "graph/graph.h"
#include "graph/mesh/mesh.h"

/* Measured speed of one op class by size. Points ascend in `size`, the number that a kernel's
 * efficiency depends on (see rf_cost_size in plan); if all are zero, `size` is `work`. Between
 * points the rate work/seconds is interpolated over log(size). */
enum { RF_CURVE_POINTS = 32 };
typedef struct rf_curve {
  char op[32]; /* op_def name, "load", or the class of a packed matrix's products (rf_cost_classes of plan) */
  rf_dtype dtype;
  int count;
  double work[RF_CURVE_POINTS];    /* flops (compute-bound ops) or bytes (memory-bound ops) of one call */
  double seconds[RF_CURVE_POINTS]; /* measured seconds of that call, threads as calibrated */
  double size[RF_CURVE_POINTS];
  char kernel[64];
  bool multiplies; /* rf_curve_multiplies(op) */
} rf_curve;
/* Whether the time of this curve's ops follows their arithmetic; otherwise it follows their
 * bytes. */
bool rf_curve_multiplies(const char *op);

/* Peaks with fewer threads. */
enum { RF_SCALING_POINTS = 16 };
typedef struct rf_scaling {
  int threads;
  double flops, read_bps;
} rf_scaling; /* f32 FLOP/s, bytes/s */

/* ---- how chips are joined ---- */

/* TORUS: every chip has a link each way along each axis. SWITCH: a switch joins the chips of a
 * node, and nodes by their own network. */
typedef enum rf_network_form { RF_NETWORK_NONE, RF_NETWORK_TORUS, RF_NETWORK_SWITCH } rf_network_form;
/* When a torus axis closes to a ring: never; at 16 chips (v5e, v6e); at a multiple of 4 (v4,
 * v5p, v7x: whole cubes of 4x4x4); always. */
typedef enum rf_wrap { RF_WRAP_NEVER, RF_WRAP_FULL16, RF_WRAP_MULTIPLE_OF_4, RF_WRAP_ALWAYS } rf_wrap;
enum { RF_TORUS_AXES = 4, RF_PRICE_TIERS = 6, RF_NETWORK_AXES_MOST = 1 << 20 };
typedef struct rf_topology {
  rf_network_form form;
  rf_wrap wrap;
  int axes;               /* TORUS: number of axes */
  int pod[RF_TORUS_AXES]; /* TORUS: the longest each axis can be */
  int64_t pod_chips;      /* maximum chips joined; 0: unlimited */
  int64_t job_chips;      /* maximum chips for one job; 0: all */
  int host_chips;         /* chips that share a host; 0: unknown */
  double oneway_bps;      /* bytes/s one way: TORUS over one link; SWITCH out of a chip */
  double hop_seconds;     /* latency of one link; 0: not published */
  double fraction;        /* share of oneway_bps that large transfers reach; 1: unknown */
  int domain;             /* SWITCH: maximum chips of one switch */
  double node_bps;        /* SWITCH: bytes/s out of a full node; 0: unknown */
  double die_bps;         /* bytes/s one way between the devices of one chip; 0: the chip is one device */
} rf_topology;
typedef struct rf_price {
  char tier[16], date[16]; /* "list", "committed", "flex-start", ...; "2025-02" */
  char source[160];
  double usd_per_chip_hour;
} rf_price;

/* ---- blocks of products that were tuned (tuned.c) ---- */

enum { RF_TUNED_ROWS = 64, RF_TUNED_CLASSES = 9 };
/* One shape class of an op, and the gain of its fastest blocks over the kernel's default. */
typedef struct rf_tuned_row {
  char op[32], kernel[64];
  int class; /* see rf_tuned_class */
  rf_dtype dtype;
  rf_blocks usual, best; /* best: all 0 if the default is kept */
  /* speed-up of the best blocks in separate rounds: median; interquartile range */
  double gain, spread;
} rf_tuned_row;
/* Result of `rafter calibrate --tune`. */
typedef struct rf_tuned {
  char cpu[128]; /* on this CPU; "": not tuned */
  bool here;     /* it is the CPU of this machine; on another one the table is ignored */
  int threads;   /* number of threads; with another number the table is ignored */
  int count;
  rf_tuned_row row[RF_TUNED_ROWS];
} rf_tuned;

enum { RF_MAX_CURVES = 160 };
typedef struct rf_machine {
  char name[64];
  char kind[16];         /* "cpu", "gpu", "tpu" */
  char source[24];       /* "data-sheet", "detected", "calibrated", "file" */
  char source_note[256]; /* source of the figures */
  int chips, threads;
  double flops[RF_DTYPES]; /* peak FLOP/s per chip by dtype of the product; 0: unknown */
  /* CPU whose `flops` are for tiles: peak of its vector units; 0: same as `flops`, or unknown */
  double flops_vectors[RF_DTYPES];
  double flops_tf32, flops_f4; /* formats without a dtype of ours; 0: unknown */
  double memory_bytes;         /* capacity per chip */
  double reserve_bytes;        /* bytes that the runtime reserves */
  double read_bps, copy_bps;   /* bytes/s; data sheets fill both with the memory bandwidth */
  double launch_seconds;       /* per op */
  double watts;                /* watts of a working chip; 0: unknown */
  /* list price, or the choice of rf_machine_set_price; 0: unknown */
  double usd_per_chip_hour;
  char price_tier[16]; /* tier of that price: "list", another tier, "given"; "": none */
  int price_count;
  rf_price price[RF_PRICE_TIERS];  /* all tiers with a source */
  double vmem_bytes, vmem_bps;     /* memory on the chip that programs address; 0: none or unknown */
  int tile[2];                     /* rows and columns that the matrix unit rounds to; 0: none */
  double dcn_bps, dcn_hop_seconds; /* data-centre network, bytes/s out of a chip */
  double pcie_bps, host_bytes;     /* between a chip and its host, one way; memory of the host */
  int devices_per_chip;            /* 2: two devices, joined by topology.die_bps */
  bool by_device;                  /* all figures are per device, and `chips` counts devices */
  rf_topology topology;
  char edition[32]; /* edition of the figures; "": the sheet's own */
  int shape_rank;   /* 0: no shape given, one chip */
  /* TORUS: extents of its axes; SWITCH: chips a node, nodes. slices: copies joined by the
   * data-centre network */
  int shape[RF_TORUS_AXES], slices;
  double efficiency_compute, efficiency_memory; /* for machines without curves */
  /* efficiency of grouped products relative to efficiency_compute; 0: unknown */
  double efficiency_experts;
  char isa[16]; /* of a CPU */
  int scaling_count;
  rf_scaling scaling[RF_SCALING_POINTS];
  int curve_count;
  rf_curve curve[RF_MAX_CURVES];
  rf_tuned tuned;
} rf_machine;

/* `spec`: "local" (the calibrated machine, or a detected sheet without a calibration), a path to
 * a machine JSON file, or NAME[@EDITION][:SHAPE][*SLICES]: a row of machines.json, another
 * edition of its figures, chips along each axis (tpu-v5e:4x4; h100-sxm:8x4 is 8 per node and 4
 * nodes), and the number of such slices on the data-centre network. `chips` becomes the product;
 * all other figures stay per chip. RAFTER_INVALID names the nearest row, the editions, or the
 * wrong number of the shape. */
rf_status rf_machine_find(const char *spec, rf_machine *machine, rf_error *error);
/* Sets the SHAPE and SLICES of a spec ("4x4", "4x4*2" or "*2") on a machine. */
/* The shape to append to a machine's name for this many chips: ":8x8x8" (as near to a cube as
 * the torus allows), ":8x4" for nodes of a switch, "" for one chip. */
void rf_machine_shape_for(const rf_machine *machine, int64_t chips, char *text, size_t capacity);
rf_status rf_machine_set_shape(rf_machine *machine, const char *shape, rf_error *error);
/* Sets the price of a chip per hour: one of the machine's tiers, or an amount in USD.
 * RAFTER_INVALID lists the tiers. */
rf_status rf_machine_set_price(rf_machine *machine, const char *text, rf_error *error);
/* "list 2.70, committed 1.61"; "" if no price is known. */
const char *rf_machine_prices_text(const rf_machine *machine, char text[200]);
/* Whether a slice with these extents, in any order, can be cut out of a pod of a torus; `what`
 * names it in errors. */
rf_status rf_machine_check_pod(const rf_machine *machine, const int *shape, int rank, const char *what,
                               const char *hint, rf_error *error);
/* Turns a machine with two devices per chip into one with twice the chips and half of every
 * figure, joined in pairs by topology.die_bps. Does nothing otherwise. */
void rf_machine_by_device(rf_machine *machine);
/* Bytes per second of one chip into the data-centre network (GPU: its share of its node's). 0:
 * unknown. */
double rf_machine_dcn_bps(const rf_machine *machine);
/* Whether an axis of this length closes to a ring. */
bool rf_machine_wraps(const rf_machine *machine, int extent);
#define RF_MACHINE_FORMAT "rafter-machine-1" /* "format" of a file that was written */
rf_status rf_machine_read(const char *path, rf_machine *machine, rf_error *error);
/* written to a temporary name, then renamed */
rf_status rf_machine_write(const rf_machine *machine, const char *path, rf_error *error);
/* This machine as the operating system and the CPU describe it, not measured: source "detected",
 * low confidence. */
rf_status rf_machine_detect(rf_machine *machine, rf_error *error);
/* Whether this CPU has tiles with int8 and bf16 products and the system grants them to this
 * process, which must ask because their state is large. */
bool rf_machine_has_tiles(void);
/* This CPU's name, family, model, stepping and L2; "" if unknown. */
void rf_machine_cpu(char cpu[128]);
/* Where calibrate stores this machine's file: $XDG_CACHE_HOME/rafter/HOST.json or
 * ~/.cache/rafter/HOST.json. */
void rf_machine_local_path(char path[4096]);

/* ---- links: how long a collective takes (links.c) ---- */

typedef enum rf_collective {
  RF_ALL_GATHER,
  RF_REDUCE_SCATTER,
  RF_ALL_REDUCE,
  RF_ALL_TO_ALL,
  RF_PERMUTE, /* every chip sends to its neighbour */
  RF_COLLECTIVES
} rf_collective;

/* One dimension of a group on a torus: `extent` chips, `stride` links apart; a ring that wraps
 * has both directions. */
typedef struct rf_ring {
  int extent, stride;
  bool wraps;
} rf_ring;
/* Places of the members of a group of chips and the links between them. A part of 1 does not
 * exist. */
typedef struct rf_group {
  int chips; /* members, of all parts */
  int rings; /* TORUS */
  rf_ring ring[RF_TORUS_AXES];
  double oneway_bps, hop_seconds; /* TORUS: a link; SWITCH: out of a chip */
  int inside, nodes;              /* SWITCH: members of one node, nodes */
  double node_bps;                /* SWITCH: this group's share of the bandwidth out of a node */
  int slices;                     /* over the data-centre network */
  double dcn_bps, dcn_hop_seconds;
  bool die; /* the two devices of a chip */
  double die_bps;
  double fraction;    /* share of the links' bandwidth that is reached in practice; the caller applies it */
  uint32_t resources; /* links in use: bit i is axis i of the torus; other bits below */
} rf_group;
enum {
  RF_RESOURCE_SWITCH = 1 << 8,
  RF_RESOURCE_NODE = 1 << 9,
  RF_RESOURCE_DCN = 1 << 10,
  RF_RESOURCE_DIE = 1 << 11
};

/* The group that these mesh axes span. Inner axes get neighbouring chips, torus axes are used
 * whole if possible, and `slice` uses the data-centre network. On a machine by device, the
 * pinned axis (else the innermost even one) joins the two devices of a chip. RAFTER_INVALID:
 * mesh and machine differ in chips, or the machine has no figure for the links. */
rf_status rf_machine_group(const rf_machine *machine, const rf_mesh *mesh, rf_axes axes, rf_group *group,
                           rf_error *error);
/* A group of whole axes, as `extent` lists them (SWITCH: chips of a node, then nodes); `wrap`
 * -1: by the machine's rule, else 0 or 1. */
rf_status rf_machine_axes(const rf_machine *machine, const int *extent, int count, int wrap, rf_group *group,
                          rf_error *error);
/* Seconds of a collective; see docs/planning.md. `whole_bytes`: the array of the whole group
 * (all-gather: after gathering; reduce-scatter, all-reduce: one member's input; all-to-all: all
 * members; permute: one member's message). `literature`: without the factor (X-1)/X of rings, as
 * books print it. *latency (may be NULL) gets the part that bandwidth does not shorten; the
 * result is at least that. */
double rf_collective_seconds(const rf_group *group, rf_collective kind, double whole_bytes, bool literature,
                             double *latency);

#endif
