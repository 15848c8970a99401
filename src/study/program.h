/* program.h - the device memory that a JAX program of the same model needs. As in rafter's own
 * plans, the memory follows from the size and lifetime of every array. */
#ifndef RF_PROGRAM_H
#define RF_PROGRAM_H

#include "machine/machine.h"

/* The program whose memory is computed: rafter's own program, or the program that XLA compiles from
 * JAX code. The JAX code has a loop over stacked layers (lax.scan), or unrolled layers. */
typedef enum rf_program_kind {
  RF_PROGRAM_RAFTER,
  RF_PROGRAM_JAX_SCAN,
  RF_PROGRAM_JAX_UNROLLED
} rf_program_kind;

/* The results that a forward pass returns for every position. */
typedef enum rf_program_result {
  RF_RESULT_LOSS,         /* mean loss; all logits are in memory at once */
  RF_RESULT_HIDDEN,       /* input of the head */
  RF_RESULT_LOGITS,       /* all logits */
  RF_RESULT_TOP,          /* most likely tokens; all logits are in memory at once */
  RF_RESULT_TOP_BY_CHUNK, /* most likely tokens, by a loop over chunks of positions */
} rf_program_result;

enum { RF_PROGRAM_TOP = 64 }; /* maximum number of tokens returned per position */

typedef struct rf_program_options {
  rf_program_kind program;
  rf_program_result result; /* for score jobs */
  int top;                  /* default number of tokens returned per position */
  bool ring;                /* generate: true if a layer with an attention window caches only the window */
  /* generate: true if the program itself loops over the steps, and has a buffer for the answers */
  bool loop;
} rf_program_options;

/* The byte counts of XLA's memory analysis. */
typedef struct rf_program_memory {
  int64_t argument, output, alias, temp;
  int64_t total; /* argument + output - alias + temp: memory that the device needs */
  /* The following fields are the parts of `temp` at its peak. */
  int64_t copies;    /* copies of matrices in the dtype of products */
  int64_t gradients; /* gradients and their accumulators */
  int64_t kept;      /* activations that the forward pass stores for the backward pass */
  int64_t working;   /* all other temporaries, except arrays in on-chip memory */
  int64_t stacked;   /* part of `kept`: arrays of one microbatch that have an element for each layer */
  /* op of rafter's graph at the peak of `temp`, for example "block.3/attn/attention/bwd" */
  char peak[96];
} rf_program_memory;

/* The job whose memory is computed: a JAX program on a machine. */
typedef struct rf_program_job {
  rf_build_options build;
  rf_remat remat;
  const rf_machine *machine;
  int64_t room_bytes; /* device memory that the JAX program may use */
  rf_program_options program;
} rf_program_job;

/* RAFTER_INVALID: the memory of such a JAX program cannot be computed. */
rf_status rf_program_size(const rf_model *model, const rf_program_job *job, rf_program_memory *memory,
                          rf_error *error);

/* Bytes of a TPU's vector memory that kernels use as scratch (default of
 * xla_tpu_scoped_vmem_limit_kib). rf_program_chip_bytes returns the remaining bytes, which hold
 * short-lived arrays. */
enum { RF_PROGRAM_SCOPED_BYTES = 16384 << 10 };
int64_t rf_program_chip_bytes(const rf_machine *machine);
const char *rf_program_name(rf_program_kind program); /* "rafter", "jax-scan" or "jax-unrolled" */

#endif
