/* device.h - the device of the XLA backend: its memory, shared by device.c and program.c.
 *
 * The arena of a run is an image in shared memory, which the child process can read. On several
 * chips, the image has a block for each chip of this host, one after the other. An offset of the
 * plan is an offset in each block. Inputs and outputs stay in the image. A persistent tensor has a
 * buffer on each chip, and uses the image only while the host writes or reads the tensor. */
#ifndef RF_XLA_DEVICE_H
#define RF_XLA_DEVICE_H

#include "backend/kernel.h"
#include "backend/xla/client.h"
#include "backend/xla/emit.h"

#include <pthread.h>

typedef struct rf_xla_device {
  rf_device device; /* first field, because callers have a pointer to rf_device */
  rf_xla_client *client;
  rf_device_settings settings;
  /* NONE: the plugin has no profiler, or the profiler has failed */
  enum { RF_XLA_PROFILER_UNKNOWN, RF_XLA_PROFILER_NONE } profiler;
} rf_xla_device;

/* A persistent tensor's value on one chip. At least one of the flags is set. */
typedef struct rf_xla_value {
  rf_xla_id buffer;
  bool on_host,  /* true: the image has the newest value */
      on_device; /* true: `buffer` has the newest value */
} rf_xla_value;
typedef struct rf_xla_slot {
  int64_t offset, bytes; /* offset in the block of each chip, and size */
  rf_xla_shape shape;
  uint64_t plans;   /* bit i is set if plan i of the run has the tensor */
  bool lost;        /* true: another plan has written to these bytes of the image */
  rf_xla_value *on; /* (chips) of this host */
} rf_xla_slot;

typedef struct rf_xla_memory {
  rf_memory memory; /* first field; `host` is NULL */
  rf_xla_device *device;
  rf_xla_shared image;
  int chips;         /* of this host */
  int64_t extra;     /* first free byte of the image after the blocks, for data of programs */
  rf_xla_slot *slot; /* slots in ascending order of offsets */
  int slots;
  pthread_mutex_t lock;
} rf_xla_memory;

static inline void *rf_xla_at(const rf_xla_memory *m, int64_t at) { return (char *)m->image.data + at; }
/* Reserves bytes after the blocks. *at gets the offset of these bytes. */
rf_status rf_xla_reserve(rf_xla_memory *m, int64_t bytes, int64_t *at, rf_error *error);
/* Finds the slot of a persistent tensor, or adds a slot for it. The pointer is valid until the next
 * call. */
rf_status rf_xla_slot_of(rf_xla_memory *m, const rf_tensor *tensor, const rf_xla_shape *shape, int64_t offset,
                         rf_xla_slot **slot, rf_error *error);
/* The slot that holds byte `at` of a block, or NULL. */
rf_xla_slot *rf_xla_find_slot(rf_xla_memory *m, int64_t at);
/* Copies the value of the image to chip `chip` if the chip does not have this value. */
rf_status rf_xla_to_device(rf_xla_memory *m, rf_xla_slot *slot, int chip, rf_error *error);
rf_xla_shape rf_xla_shape_of(rf_val v);
bool rf_xla_same_shape(const rf_xla_shape *a, const rf_xla_shape *b);

/* program.c */
rf_status rf_xla_compile_plan(rf_device *device, const rf_program_source *source, rf_program **program,
                              rf_error *error);

#endif
