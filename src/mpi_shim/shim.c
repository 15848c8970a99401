/* shim.c - see backend/mpi/abi.h: the calls of one MPI library. */
#include "backend/mpi/abi.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

static MPI_Comm world;

static int open_library(int *rank, int *ranks, int *together, int *serialized) {
  int level = MPI_THREAD_SINGLE, wanted = *serialized ? MPI_THREAD_SERIALIZED : MPI_THREAD_FUNNELED, code;
  MPI_Comm near;
  if ((code = MPI_Init_thread(NULL, NULL, wanted, &level))) return code;
  *serialized = *serialized && level >= MPI_THREAD_SERIALIZED;
  if ((code = MPI_Comm_dup(MPI_COMM_WORLD, &world))) return code;
  if ((code = MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN))) return code;
  if ((code = MPI_Comm_rank(world, rank))) return code;
  if ((code = MPI_Comm_size(world, ranks))) return code;
  if ((code = MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &near))) return code;
  if ((code = MPI_Comm_size(near, together))) return code;
  return MPI_Comm_free(&near);
}

static int close_library(void) { return MPI_Finalize(); }

static void abort_all(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

static int share(const void *mine, void *all, int bytes) {
  return MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, world);
}

/* A request is a pointer in some MPI libraries and a number in others. */
static MPI_Request load(const uint64_t *request) {
  MPI_Request own;
  _Static_assert(sizeof own <= sizeof *request, "a request fits");
  memcpy(&own, request, sizeof own);
  return own;
}
static void store(uint64_t *request, MPI_Request own) {
  *request = 0;
  memcpy(request, &own, sizeof own);
}

static int begin_send(const void *data, int64_t bytes, int to, int tag, uint64_t *request) {
  MPI_Request own = MPI_REQUEST_NULL;
  int code = MPI_Isend(data, (int)bytes, MPI_BYTE, to, tag, world, &own);
  store(request, own);
  return code;
}

static int begin_receive(void *data, int64_t bytes, int from, int tag, uint64_t *request) {
  MPI_Request own = MPI_REQUEST_NULL;
  int code = MPI_Irecv(data, (int)bytes, MPI_BYTE, from, tag, world, &own);
  store(request, own);
  return code;
}

/* The MPI library reports a message that is too long as an error. */
static int test(uint64_t *request, int *done) {
  MPI_Request own = load(request);
  int code = MPI_Test(&own, done, MPI_STATUS_IGNORE);
  store(request, own);
  return code;
}

static void describe(int code, char *text, int size) {
  char words[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  if (MPI_Error_string(code, words, &length)) snprintf(words, sizeof words, "error %d", code);
  snprintf(text, (size_t)size, "%s", words);
}

static void library(char *text, int size) {
  char words[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
  int length = 0;
  MPI_Get_library_version(words, &length);
  words[strcspn(words, "\n,")] = 0;
  snprintf(text, (size_t)size, "%s", words);
}

const rf_mpi_abi *rafter_mpi_abi(void) {
  static const rf_mpi_abi table = {RF_MPI_ABI, open_library,  close_library, abort_all, share,
                                   begin_send, begin_receive, test,          describe,  library};
  return &table;
}
