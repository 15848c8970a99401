/* exchange.h - one collective of this rank as rounds of messages. A kernel runs the rounds at once,
 * or begins them and lets a flight of the link advance them (flight.h). Private to backend/mpi. */
#ifndef RF_MPI_EXCHANGE_H
#define RF_MPI_EXCHANGE_H

#include "backend/mpi/boxes.h"
#include "backend/mpi/link.h"

struct exchange;
typedef struct rounds {
  int64_t count, posted, next; /* next: the round whose messages are posted next, if they are not yet */
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
  int64_t rank, group;     /* this chip's rank in the group, and the group's chips */
  int64_t first;           /* rank along the axes of the first chip of the group */
  const unsigned char *in; /* the input */
  unsigned char *out;      /* the output */
  unsigned char *room;     /* [2 rounds][group][in and out]: chunks */
  bool adds;               /* the output accumulates */
  bool shares;             /* sums: each rank sums a share, and sends it to the others */
  rounds phase[2];
  int phases, now;
} exchange;

/* Begins the exchange of a call. NULL: with the messages of the link that no flight has. */
exchange rf_exchange_begin(const rf_call *call, const rf_link_flight *flight);
/* Runs the rounds whose messages are there, or with `waits` all. True: nothing more can be done,
 * because the exchange is complete or the link has failed. */
bool rf_exchange_advance(exchange *e, bool waits);
int rf_exchange_rank(const exchange *e, int64_t member); /* MPI rank of a member of the group */

/* For the kernel tables. */
size_t rf_exchange_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by);
bool rf_exchange_has_group(const rf_graph *graph, const rf_op *op);
bool rf_exchange_has_sums(const rf_graph *graph, const rf_op *op);

#endif
