/* link_parts.h - what link.c and progress.c share: the state of a link. Private to backend/mpi. */
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

/* Where a rank runs. A process number means something only to ranks that have the same kernel
 * (boot) and the same list of processes (space). */
typedef struct seat {
  char host[200], boot[40];
  uint64_t space;
  int64_t process;
} seat;

/* The exchange in progress. With its first message to or from a rank, a rank sends one byte, and
 * expects one. */
typedef struct exchange {
  bool open;
  int64_t begin_ns;
  int64_t number;   /* of this exchange */
  int64_t *met;     /* for each rank: the last exchange in which a byte was sent to it */
  message *message; /* the bytes sent and expected */
  char *byte;       /* for each rank: the byte from it */
  int count, missing;
  int last; /* the rank that began last, as far as is known */
} exchange;

typedef struct link_state {
  rf_link link; /* first, so that a link is a state */
  const rf_mpi_abi *mpi;
  seat *seat; /* (ranks) */
  message_group group[ALL_GROUPS];
  exchange exchange;
  message *posted; /* messages with a number; `done` if one is not in flight */
  int posts;
  int room;   /* messages that a group can hold */
  bool ended; /* another rank has ended, so the launcher ends this one */
  bool agreed;
  rf_link_cores mine, lowest;
  _Atomic bool failing; /* a thread writes link.error */
  /* One thread at a time is in the library (`library`), and advances flights (`flying`). A thread
   * that has `flying` may take `library`, but not the other way round. */
  pthread_mutex_t library, flying;
  pthread_cond_t begun;
  rf_link_flight *flight[RF_LINK_FLIGHTS]; /* in the order in which they began */
  _Atomic int flights;
  bool flights_reserved;
  _Atomic bool waiting; /* the main thread waits, and advances flights itself */
} link_state;

static inline link_state *state_of(const rf_link *link) { return (link_state *)(uintptr_t)link; }

/* A rank that waits looks at the other one each PATIENCE seconds. An ended process may have sent
 * its last messages, so only the second look counts. */
typedef struct rf_link_watch {
  double next;
  int ended; /* rank, or -1 */
} rf_link_watch;
/* After `waited` seconds for a message. False: it will not come, and the link has failed. */
bool rf_link_look(link_state *s, const message *m, double waited, rf_link_watch *watch);
/* Other ranks may need this core, so after some polls the process yields, and then sleeps. */
void rf_link_pause(int64_t polls);
/* Records a wait in the trace, if steps are recorded. */
void rf_link_record_wait(rf_remote cause, int rank, int64_t begin, int64_t end);

#endif
