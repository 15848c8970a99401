/* exchange.h - one collective of this rank as rounds of messages. A kernel runs all rounds at once,
 * or begins the rounds and lets a flight of the link advance the rounds (flight.h). Private to
 * backend/mpi. */
#ifndef RF_MPI_EXCHANGE_H
#define RF_MPI_EXCHANGE_H

#include "backend/mpi/boxes.h"
#include "backend/mpi/link.h"

struct exchange;
typedef struct rounds {
  /* posted: number of rounds whose messages are posted. next: round that rf_exchange_advance handles
   * next */
  int64_t count, posted, next;
  void (*post)(const struct exchange *e, int64_t k);
  void (*finish)(const struct exchange *e, int64_t k);
} rounds;

/* The state of one call. `rank` and `member` are ranks in the op's group. */
typedef struct exchange {
  const rf_call *call;
  rf_link *link;
  int message[2];          /* groups of the link for the messages of even and odd rounds */
  int64_t size;            /* bytes of an element */
  int64_t chunk;           /* elements */
  int64_t rank, group;     /* rank: this chip's rank in the group. group: number of chips in the group */
  int64_t first;           /* rank of the group's first chip along the axes */
  const unsigned char *in; /* the input */
  unsigned char *out;      /* the output */
  unsigned char *room;     /* [2 rounds][group][in and out]: chunks */
  bool adds;               /* the output accumulates */
  bool shares;             /* for sums: each rank sums one share, and sends its sums to the others */
  rounds phase[2];
  int phases, now;
} exchange;

/* Begins the exchange of a call. flight = NULL: the exchange uses the message groups that belong to
 * no flight. */
exchange rf_exchange_begin(const rf_call *call, const rf_link_flight *flight);
/* Runs the rounds whose messages have arrived, or all rounds if `waits`. Returns true when the
 * exchange is complete or the link has failed. */
bool rf_exchange_advance(exchange *e, bool waits);
int rf_exchange_rank(const exchange *e, int64_t member); /* MPI rank of a member of the group */

/* For the kernel tables. */
size_t rf_exchange_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by);
bool rf_exchange_has_group(const rf_graph *graph, const rf_op *op);
bool rf_exchange_has_sums(const rf_graph *graph, const rf_op *op);

#endif
