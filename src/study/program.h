/* program.h - what a JAX program of the same model takes on a device: a second lifetime problem
 * beside our own plan. */
#ifndef RF_PROGRAM_H
#define RF_PROGRAM_H

#include "machine/machine.h"

/* Whose program is sized: ours, or what XLA makes of one that loops over stacked layers
 * (lax.scan) or writes them out one by one. */
typedef enum rf_program_kind {
  RF_PROGRAM_RAFTER,
  RF_PROGRAM_JAX_SCAN,
  RF_PROGRAM_JAX_UNROLLED
} rf_program_kind;

/* What a forward pass returns for every position. */
typedef enum rf_program_result {
  RF_RESULT_LOSS,         /* the mean loss, over logits that are all there at once */
  RF_RESULT_HIDDEN,       /* what the head reads */
  RF_RESULT_LOGITS,       /* all of them */
  RF_RESULT_TOP,          /* the likeliest tokens, found in logits that are all there at once */
  RF_RESULT_TOP_BY_CHUNK, /* the same, by a loop over positions */
} rf_program_result;

enum { RF_PROGRAM_TOP = 64 }; /* tokens kept of each position where nothing else is said */

typedef struct rf_program_options {
  rf_program_kind program;
  rf_program_result result; /* of a job that scores */
  int top;                  /* tokens kept of each position */
  bool ring;                /* generate: windowed layers cache their window only */
  /* generate: the loop over steps is inside the program, with a buffer of answers */
  bool loop;
} rf_program_options;

/* What XLA's memory analysis reports. */
typedef struct rf_program_memory {
  int64_t argument, output, alias, temp;
  int64_t total; /* argument + output - alias + temp: what the device must hold */
  /* What temp is made of at its largest. */
  int64_t copies;    /* matrices in the dtype they are multiplied in */
  int64_t gradients; /* and their accumulators */
  int64_t kept;      /* what the forward pass leaves for the backward pass */
  int64_t working;   /* the rest, less what lies on the chip */
  int64_t stacked;   /* what is kept in arrays of all layers, of one microbatch */
  char peak[96];     /* the op of our graph where temp is largest: "block.3/attn/attention/bwd" */
} rf_program_memory;

/* What is sized: a job of a model, as a JAX program would compute it on a machine. */
typedef struct rf_program_job {
  rf_build_options build;
  rf_remat remat;
  const rf_machine *machine;
  int64_t room_bytes; /* of the device's memory, for this program */
  rf_program_options program;
} rf_program_job;

/* RAFTER_INVALID for a job that has no JAX program here. */
rf_status rf_program_size(const rf_model *model, const rf_program_job *job, rf_program_memory *memory,
                          rf_error *error);

/* Bytes of a TPU's vector memory that short-lived arrays may use: all but what kernels work in
 * (the compiler's default, xla_tpu_scoped_vmem_limit_kib). */
enum { RF_PROGRAM_SCOPED_BYTES = 16384 << 10 };
int64_t rf_program_chip_bytes(const rf_machine *machine);
const char *rf_program_name(rf_program_kind program); /* "rafter", "jax-scan", "jax-unrolled" */

#endif
