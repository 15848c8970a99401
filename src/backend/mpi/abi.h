/* abi.h - the functions of an MPI library that rafter calls. MPI libraries have the same functions
 * but different types. So there is one shim for each library: src/mpi_shim/shim.c, compiled with
 * the headers of that library. rafter loads the shim for the library of the launcher. Messages
 * between two ranks with the same tag arrive in the order of their sends. */
#ifndef RF_MPI_ABI_H
#define RF_MPI_ABI_H

#include <stdint.h>

enum { RF_MPI_ABI = 3 };

/* Functions return 0, or an error code of the library. `describe` gives the text of an error
 * code. */
typedef struct rf_mpi_abi {
  int version; /* RF_MPI_ABI */
  /* Starts the library. Sets *together to the number of ranks on this machine. The caller sets
   * *serialized if several threads will call the library, one at a time. The library clears
   * *serialized if only the calling thread may do so. */
  int (*open)(int *rank, int *ranks, int *together, int *serialized);
  int (*close)(void);      /* waits for the other ranks */
  void (*abort)(int code); /* ends all ranks that the launcher can end */
  /* Every rank calls this function, and gets the `bytes` bytes of all ranks in the order of the
   * ranks. */
  int (*share)(const void *mine, void *all, int bytes);
  /* `send` and `receive` begin a message of at most 2^30 bytes. `data` belongs to the library until
   * `test` sets *done. */
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
