/* machine.h - what a machine can do: data sheets (data/machines.json) and calibration files. Holds data only, measures nothing. */
#ifndef RF_MACHINE_H
#define RF_MACHINE_H

#include "graph/graph.h"

/* How fast one op class runs on this machine, by size. Points ascend in `size`, the number a kernel's efficiency depends on (rf_cost_size of
 * plan says which); all zero: `size` is `work`. Between points the rate work/seconds is interpolated over log(size). */
enum { RF_CURVE_POINTS = 24 };
typedef struct rf_curve {
  char op[32]; /* op_def name */
  rf_dtype dtype;
  int count;
  double work[RF_CURVE_POINTS];    /* flops (compute-bound ops) or bytes (memory-bound ops) of one call */
  double seconds[RF_CURVE_POINTS]; /* measured seconds of that call, threads as calibrated */
  double size[RF_CURVE_POINTS];
  char kernel[64];
} rf_curve;

/* Ceilings with fewer threads. */
enum { RF_SCALING_POINTS = 16 };
typedef struct rf_scaling {
  int threads;
  double flops, read_bps;
} rf_scaling; /* f32 FLOP/s, bytes/s */

enum { RF_MAX_CURVES = 96 };
typedef struct rf_machine {
  char name[64];
  char kind[16];         /* "cpu", "gpu", "tpu" */
  char source[24];       /* "data-sheet", "detected", "calibrated", "file" */
  char source_note[256]; /* where the figures come from */
  int chips, threads;
  double flops[RF_DTYPES];                      /* peak FLOP/s per chip by dtype of the product; 0: unknown */
  double memory_bytes;                          /* capacity per chip */
  double reserve_bytes;                         /* what the runtime keeps for itself */
  double read_bps, copy_bps;                    /* bytes/s; data sheets fill both with the memory bandwidth */
  double launch_seconds;                        /* per op */
  double usd_per_chip_hour;                     /* 0: unknown */
  double efficiency_compute, efficiency_memory; /* for machines without curves */
  char isa[16];                                 /* of a CPU */
  int scaling_count;
  rf_scaling scaling[RF_SCALING_POINTS];
  int curve_count;
  rf_curve curve[RF_MAX_CURVES];
} rf_machine;

/* Row `i` of the data sheets that the program carries (made from data/machines.json), or NULL past the end. */
const char *rf_machine_name(int i);
/* `spec`: "local" (the calibrated machine, or a detected sheet when there is no calibration), a row of machines.json, or a path
 * to a machine JSON file. Shapes such as tpu-v5e:2x4 are refused: one chip is planned. RAFTER_INVALID names the nearest row. */
rf_status rf_machine_find(const char *spec, rf_machine *machine, rf_error *error);
rf_status rf_machine_read(const char *path, rf_machine *machine, rf_error *error);
rf_status rf_machine_write(const rf_machine *machine, const char *path, rf_error *error); /* beside, then renamed */
/* What the operating system and the CPU say about this machine, without measuring anything: source "detected", low confidence. */
rf_status rf_machine_detect(rf_machine *machine, rf_error *error);
/* Where calibrate stores this machine's file: $XDG_CACHE_HOME/rafter/HOST.json or ~/.cache/rafter/HOST.json. */
void rf_machine_local_path(char path[4096]);

#endif
