/* link_parts.h - declarations that link.c and progress.c share: the state of a link. Private to
 * backend/mpi. */
#ifndef RF_LINK_PARTS_H
#define RF_LINK_PARTS_H

#include <pthread.h>

#include "backend/lanes.h"
#include "backend/mpi/abi.h"
#include "backend/mpi/link.h"

enum { ALL_GROUPS = RF_LINK_GROUPS + RF_LINK_FLIGHTS * RF_LINK_FLIGHT_GROUPS };

typedef struct message {
  uint64_t request;
  int64_t bytes;
  int rank;
  bool done, out;
} message;

typedef struct message_group {
  message *message;
  int count;
  int last; /* rank of the message that was done last */
} message_group;

/* Where a rank runs. A process number is valid only for ranks with the same kernel (boot) and the
 * same process namespace (space). */
typedef struct seat {
  char host[200], boot[40];
  uint64_t space;
  int64_t process;
} seat;

/* The exchange in progress. With its first message to or from another rank, a rank sends this other
 * rank one byte, and expects one byte back. */
typedef struct exchange {
  bool open;
  int64_t begin_ns;
  int64_t number;   /* of this exchange */
  int64_t *met;     /* (ranks) number of the last exchange in which the rank was sent a byte */
  message *message; /* the bytes sent and expected */
  char *byte;       /* (ranks) byte that comes from each rank */
  int count, missing;
  int last; /* the rank that began last, among the ranks that are known to have begun */
} exchange;

typedef struct link_state {
  rf_link link; /* first field, so that a pointer to the link is a pointer to the state */
  const rf_mpi_abi *mpi;
  seat *seat; /* (ranks) */
  message_group group[ALL_GROUPS];
  exchange exchange;
  message *posted; /* messages with a number; `done` is true if a message is not in flight */
  int posts;
  int room;   /* maximum number of messages in a group */
  bool ended; /* true: another rank has ended, so the launcher ends this rank */
  bool agreed;
  rf_link_cores mine, lowest;
  _Atomic bool failing; /* a thread writes link.error */
  /* `library` is the lock for calls of the library, and `flying` is the lock for advancing flights.
   * A thread that has `flying` may take `library`. A thread that has `library` must not take
   * `flying`. */
  pthread_mutex_t library, flying;
  pthread_cond_t begun;
  rf_link_flight *flight[RF_LINK_FLIGHTS]; /* flights, in the order in which they began */
  _Atomic int flights;
  bool flights_reserved;
  _Atomic bool waiting; /* true: the main thread waits, and advances flights itself */
} link_state;

static inline link_state *state_of(const rf_link *link) { return (link_state *)(uintptr_t)link; }

/* A rank that waits checks every PATIENCE seconds whether the other process has ended. A process
 * may have sent its last messages before it ended, so only the second check counts. */
typedef struct rf_link_watch {
  double next;
  int ended; /* rank, or -1 */
} rf_link_watch;
/* Called after a wait of `waited` seconds for a message. Returns false if the message will not
 * come. Then the link has failed. */
bool rf_link_look(link_state *s, const message *m, double waited, rf_link_watch *watch);
/* Other ranks may need this core. So the process yields after some polls, and sleeps after more
 * polls. */
void rf_link_pause(int64_t polls);
/* Records a wait in the trace, if steps are recorded. */
void rf_link_record_wait(rf_remote cause, int rank, int64_t begin, int64_t end);

#endif
