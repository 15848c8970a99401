/* machine.h - what a machine can do: data sheets (data/machines.json) and calibration files.
 * Holds data only, measures nothing. */
#ifndef RF_MACHINE_H
#define RF_MACHINE_H

#include "graph/graph.h"
#include "graph/mesh/mesh.h"

/* How fast one op class runs on this machine, by size. Points ascend in `size`, the number a
 * kernel's efficiency depends on (rf_cost_size of plan says which); all zero: `size` is `work`.
 * Between points the rate work/seconds is interpolated over log(size). */
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
/* Whether the time of what a curve of this name measures follows arithmetic, or bytes. */
bool rf_curve_multiplies(const char *op);

/* Ceilings with fewer threads. */
enum { RF_SCALING_POINTS = 16 };
typedef struct rf_scaling {
  int threads;
  double flops, read_bps;
} rf_scaling; /* f32 FLOP/s, bytes/s */

/* ---- how chips are joined ---- */

/* TORUS: every chip has a link each way along each axis. SWITCH: a switch joins the chips of a
 * node, and nodes by their own network. */
typedef enum rf_network_form { RF_NETWORK_NONE, RF_NETWORK_TORUS, RF_NETWORK_SWITCH } rf_network_form;
/* When an axis of a torus closes to a ring: never; at 16 chips (v5e, v6e); at a multiple of 4
 * (v4, v5p, v7x: whole cubes of 4x4x4); always. */
typedef enum rf_wrap { RF_WRAP_NEVER, RF_WRAP_FULL16, RF_WRAP_MULTIPLE_OF_4, RF_WRAP_ALWAYS } rf_wrap;
enum { RF_TORUS_AXES = 4, RF_PRICE_TIERS = 6, RF_NETWORK_AXES_MOST = 1 << 20 };
typedef struct rf_topology {
  rf_network_form form;
  rf_wrap wrap;
  int axes;               /* TORUS: how many */
  int pod[RF_TORUS_AXES]; /* TORUS: the longest each axis can be */
  int64_t pod_chips;      /* the most chips that are joined; 0: unlimited */
  int64_t job_chips;      /* the most of them that one job is given; 0: all */
  int host_chips;         /* chips that share a host; 0: unknown */
  double oneway_bps;      /* bytes/s one way: TORUS over one link; SWITCH out of a chip */
  double hop_seconds;     /* latency of one link; 0: not published */
  double fraction;        /* share of oneway_bps that large transfers reach; 1: unknown */
  int domain;             /* SWITCH: chips that one switch joins at most */
  double node_bps;        /* SWITCH: bytes/s out of a full node; 0: unknown */
  double die_bps;         /* bytes/s one way between the devices of one chip; 0: it is one device */
} rf_topology;
typedef struct rf_price {
  char tier[16], date[16]; /* "list", "committed", "flex-start", ...; "2025-02" */
  char source[160];
  double usd_per_chip_hour;
} rf_price;

/* ---- blocks of products that were tuned (tuned.c) ---- */

enum { RF_TUNED_ROWS = 64, RF_TUNED_CLASSES = 9 };
/* One shape class of an op: how much the fastest blocks gained over the kernel's own. */
typedef struct rf_tuned_row {
  char op[32], kernel[64];
  int class; /* of rf_tuned_class */
  rf_dtype dtype;
  rf_blocks usual, best; /* best: all 0 where the default stays */
  /* of the fastest over the default, in rounds of their own: the median; between the quartiles */
  double gain, spread;
} rf_tuned_row;
/* What `rafter calibrate --tune` found. */
typedef struct rf_tuned {
  char cpu[128]; /* on which; "": nothing was tuned */
  bool here;     /* that is this CPU: on another nothing of it counts */
  int threads;   /* with so many; with others nothing of it counts */
  int count;
  rf_tuned_row row[RF_TUNED_ROWS];
} rf_tuned;

enum { RF_MAX_CURVES = 160 };
typedef struct rf_machine {
  char name[64];
  char kind[16];         /* "cpu", "gpu", "tpu" */
  char source[24];       /* "data-sheet", "detected", "calibrated", "file" */
  char source_note[256]; /* where the figures come from */
  int chips, threads;
  double flops[RF_DTYPES]; /* peak FLOP/s per chip by dtype of the product; 0: unknown */
  /* of a CPU whose `flops` are its tiles': what its vectors reach; 0: no other than `flops`, or
   * unknown */
  double flops_vectors[RF_DTYPES];
  double flops_tf32, flops_f4; /* the two that are no dtype of ours; 0: unknown */
  double memory_bytes;         /* capacity per chip */
  double reserve_bytes;        /* what the runtime keeps for itself */
  double read_bps, copy_bps;   /* bytes/s; data sheets fill both with the memory bandwidth */
  double launch_seconds;       /* per op */
  double watts;                /* of a chip at work; 0: no source gives it */
  /* the list price, or what rf_machine_set_price chose; 0: no source gives one */
  double usd_per_chip_hour;
  char price_tier[16]; /* whose price that is: "list", another tier, "given"; "": none */
  int price_count;
  rf_price price[RF_PRICE_TIERS];  /* all tiers that a source gives */
  double vmem_bytes, vmem_bps;     /* memory on the chip that programs address; 0: none or unknown */
  int tile[2];                     /* rows and columns that the matrix unit rounds to; 0: none */
  double dcn_bps, dcn_hop_seconds; /* data-centre network, bytes/s out of a chip */
  double pcie_bps, host_bytes;     /* between a chip and its host, one way; memory of the host */
  int devices_per_chip;            /* 2: two devices joined by topology.die_bps */
  bool by_device;                  /* what stands here is of one device, and `chips` counts them */
  rf_topology topology;
  char edition[32]; /* of the sheet's figures: "" for its own */
  int shape_rank;   /* 0: no shape was asked for, one chip */
  /* TORUS: extents of its axes; SWITCH: chips a node, nodes. slices: copies joined by the
   * data-centre network */
  int shape[RF_TORUS_AXES], slices;
  double efficiency_compute, efficiency_memory; /* for machines without curves */
  /* what grouped products reach of efficiency_compute; 0: not known of this machine */
  double efficiency_experts;
  char isa[16]; /* of a CPU */
  int scaling_count;
  rf_scaling scaling[RF_SCALING_POINTS];
  int curve_count;
  rf_curve curve[RF_MAX_CURVES];
  rf_tuned tuned;
} rf_machine;

/* `spec`: "local" (the calibrated machine, or a detected sheet when there is no calibration), a
 * path to a machine JSON file, or NAME[@EDITION][:SHAPE][*SLICES]: a row of machines.json,
 * another edition of its figures, chips along each axis (tpu-v5e:4x4; h100-sxm:8x4 is 8 a node
 * and 4 nodes), and how many such slices the data-centre network joins. `chips` becomes their
 * product; every other figure stays per chip. RAFTER_INVALID names the nearest row, the
 * editions, or which number of the shape is wrong. */
rf_status rf_machine_find(const char *spec, rf_machine *machine, rf_error *error);
/* The SHAPE and SLICES of a spec ("4x4", "4x4*2" or "*2"), set on a machine. */
/* What to write behind a machine's name for so many chips: ":8x8x8" as near to a cube as a torus
 * can, ":8x4" for nodes of a switch, "" for one. */
void rf_machine_shape_for(const rf_machine *machine, int64_t chips, char *text, size_t capacity);
rf_status rf_machine_set_shape(rf_machine *machine, const char *shape, rf_error *error);
/* What a chip costs an hour: a tier that the machine has, or an amount in USD. RAFTER_INVALID
 * lists the tiers that there are. */
rf_status rf_machine_set_price(rf_machine *machine, const char *text, rf_error *error);
/* "list 2.70, committed 1.61"; "" where no source gives a price. */
const char *rf_machine_prices_text(const rf_machine *machine, char text[200]);
/* Whether so many chips along each axis, in any order, can be cut out of a pod of a torus;
 * `what` says whose they are. */
rf_status rf_machine_check_pod(const rf_machine *machine, const int *shape, int rank, const char *what,
                               const char *hint, rf_error *error);
/* A machine of two devices a chip becomes one of twice as many chips with half of everything,
 * joined in pairs by topology.die_bps. No-op otherwise. */
void rf_machine_by_device(rf_machine *machine);
/* Bytes a second of one chip into the data-centre network; of GPUs its share of what leaves its
 * node. 0: no figure. */
double rf_machine_dcn_bps(const rf_machine *machine);
/* Whether an axis of this length closes to a ring. */
bool rf_machine_wraps(const rf_machine *machine, int extent);
#define RF_MACHINE_FORMAT "rafter-machine-1" /* "format" of a file that was written */
rf_status rf_machine_read(const char *path, rf_machine *machine, rf_error *error);
/* beside, then renamed */
rf_status rf_machine_write(const rf_machine *machine, const char *path, rf_error *error);
/* What the operating system and the CPU say about this machine, without measuring anything:
 * source "detected", low confidence. */
rf_status rf_machine_detect(rf_machine *machine, rf_error *error);
/* Whether this CPU has tiles with products of bytes and of bf16, and the system gives them to
 * this process: their state is saved only for those who ask. */
bool rf_machine_has_tiles(void);
/* This CPU by its name, family, model, stepping and L2; "" where it does not say. */
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
  RF_PERMUTE, /* every chip to its neighbour */
  RF_COLLECTIVES
} rf_collective;

/* One dimension of a group on a torus: `extent` chips, `stride` links apart; a ring that wraps
 * has both directions. */
typedef struct rf_ring {
  int extent, stride;
  bool wraps;
} rf_ring;
/* Where the members of a group of chips lie, and what joins them. The parts that are 1 do not
 * exist. */
typedef struct rf_group {
  int chips; /* members, of all parts */
  int rings; /* TORUS */
  rf_ring ring[RF_TORUS_AXES];
  double oneway_bps, hop_seconds; /* TORUS: a link; SWITCH: out of a chip */
  int inside, nodes;              /* SWITCH: members of one node, nodes */
  double node_bps;                /* SWITCH: out of a node, this group's share of it */
  int slices;                     /* over the data-centre network */
  double dcn_bps, dcn_hop_seconds;
  bool die; /* the two devices of a chip */
  double die_bps;
  double fraction;    /* share of the links' bandwidth that is reached in practice: for the caller to apply */
  uint32_t resources; /* what is busy meanwhile: bit i axis i of the torus, and the bits below */
} rf_group;
enum {
  RF_RESOURCE_SWITCH = 1 << 8,
  RF_RESOURCE_NODE = 1 << 9,
  RF_RESOURCE_DCN = 1 << 10,
  RF_RESOURCE_DIE = 1 << 11
};

/* The group that these axes of the mesh span. Inner axes get neighbouring chips, axes of the
 * torus stay whole where they can, `slice` lies on the data-centre network. On a machine by
 * device the pinned axis (else the innermost even one) lies between the two devices of a chip.
 * RAFTER_INVALID: the mesh has not as many chips as the machine, or the machine has no figure
 * for what would join them. */
rf_status rf_machine_group(const rf_machine *machine, const rf_mesh *mesh, rf_axes axes, rf_group *group,
                           rf_error *error);
/* A group of whole axes, as `extent` lists them (SWITCH: chips of a node, then nodes); `wrap`
 * -1: by the machine's rule, else 0 or 1. */
rf_status rf_machine_axes(const rf_machine *machine, const int *extent, int count, int wrap, rf_group *group,
                          rf_error *error);
/* Seconds, per docs/planning.md. `whole_bytes`: the array of the whole group (all-gather:
 * gathered; reduce-scatter, all-reduce: of one member before; all-to-all: of all members;
 * permute: what one member sends). `literature`: without the factor (X-1)/X of rings, as books
 * print it. *latency (may be NULL) gets the part that no bandwidth shortens; the result is never
 * below it. */
double rf_collective_seconds(const rf_group *group, rf_collective kind, double whole_bytes, bool literature,
                             double *latency);

#endif
