/* abi.h - the functions of an MPI library that rafter calls. MPI libraries have the same functions
 * but different types, so each library has a shim, src/mpi_shim/shim.c, which is compiled with its
 * headers. rafter loads the shim of the library that the launcher belongs to. Messages between two
 * ranks arrive in the order in which they were sent with the same tag. */
#ifndef RF_MPI_ABI_H
#define RF_MPI_ABI_H

#include <stdint.h>

enum { RF_MPI_ABI = 3 };

/* Functions return 0, or an error code of the library, which `describe` puts into words. */
typedef struct rf_mpi_abi {
  int version; /* RF_MPI_ABI */
  /* Starts the library. `together`: ranks on this machine. Gets and sets *serialized: whether several
   * threads make the further calls, one at a time. Without it, only the calling thread does. */
  int (*open)(int *rank, int *ranks, int *together, int *serialized);
  int (*close)(void);      /* waits for the other ranks */
  void (*abort)(int code); /* ends all ranks, as far as the launcher can */
  /* Gives every rank the `bytes` bytes of all ranks, in their order. Every rank calls it. */
  int (*share)(const void *mine, void *all, int bytes);
  /* These calls begin a message of at most 2^30 bytes. `data` belongs to the library until `test`
   * says that *request is done. */
  int (*send)(const void *data, int64_t bytes, int to, int tag, uint64_t *request);
  int (*receive)(void *data, int64_t bytes, int from, int tag, uint64_t *request);
  int (*test)(uint64_t *request, int *done);
  void (*describe)(int code, char *text, int size);
  void (*library)(char *text, int size); /* name and version */
} rf_mpi_abi;

/* The only symbol of a shim. */
#define RF_MPI_SYMBOL "rafter_mpi_abi"
const rf_mpi_abi *rafter_mpi_abi(void);

#endif
