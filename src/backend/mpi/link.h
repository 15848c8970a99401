/* link.h - the ranks of an MPI job, and messages between them. A process has one link. The link
 * exists only if a launcher of MPI (mpirun, srun) started the process. Only the thread that opened
 * the link calls these functions. Any thread may call the functions of a flight. Every wait has a
 * time limit, so a run with a lost rank ends with an error. */
#ifndef RF_LINK_H
#define RF_LINK_H

#include "base/base.h"

/* default limit of a wait; the variable RAFTER_MPI_SECONDS sets another limit */
enum { RF_LINK_SECONDS = 300 };

/* Times in exchanges (rf_link_begin_exchange). The rest of `all_ns` is the time that this rank
 * packs messages and adds values. */
typedef struct rf_link_times {
  int64_t exchanges, all_ns;
  int64_t late_ns;    /* waits until all ranks of an exchange have begun; the cause is a slow rank */
  int64_t network_ns; /* waits for messages after all ranks have begun */
  /* waits outside exchanges, which all_ns does not include. stage_ns: for messages of pipeline
   * stages (rf_link_finish). between_ns: for all other messages */
  int64_t stage_ns, between_ns;
} rf_link_times;

typedef struct rf_link {
  int rank, ranks;
  int together;      /* ranks on this machine */
  double seconds;    /* limit of a wait */
  char library[128]; /* name and version of the MPI library */
  /* The first failure. Later calls do nothing and return false. */
  _Atomic bool failed;
  rf_error error;
  int64_t waited_ns; /* time in rf_link_wait and rf_link_send, rf_link_receive */
  rf_link_times times;
  /* true: a thread moves the messages of flights while the other threads compute. false: the MPI
   * library allows calls of only one thread, so messages of flights move between ops and in
   * waits. */
  bool threaded;
  /* address of the errno of the thread that is in a call of the MPI library for messages; NULL: no
   * thread. Such a call may allocate */
  _Atomic(const void *) in_library;
} rf_link;

/* True if the environment says that a launcher of MPI started several processes. *rank and *ranks
 * get the launcher's values. *ranks is 0 if the launcher gives no number of ranks. */
bool rf_link_launched(int *rank, int *ranks);
/* Opens the link of this process at the first call. *link is NULL if no launcher started several
 * processes. Returns RAFTER_FAILED if the library of the launcher is missing or does not start. */
rf_status rf_link_open(rf_link **link, rf_error *error);
rf_link *rf_link_of_process(void);                       /* NULL before rf_link_open */
const char *rf_link_host(const rf_link *link, int rank); /* name of the rank's machine */

/* Groups of messages in flight. One group can be in flight while another group is used. */
enum { RF_LINK_GROUPS = 2, RF_LINK_BYTES = 1 << 30 };
/* Begins a message of a group, with at most RF_LINK_BYTES bytes. Until rf_link_wait, the caller
 * must not change `data` of a send or read `data` of a receive. */
bool rf_link_begin_send(rf_link *link, int group, int to, const void *data, int64_t bytes);
bool rf_link_begin_receive(rf_link *link, int group, int from, void *data, int64_t bytes);
/* Waits for all messages of the group. On failure, link->error says which rank is missing. */
bool rf_link_wait(rf_link *link, int group);
/* True if all messages of the group are done. Does not wait. After a failure, true. */
bool rf_link_done(rf_link *link, int group);

/* A flight is an exchange that runs while this rank computes. A flight has three groups of
 * messages. Groups 0 and 1 (rf_link_group_of) are for its chunks. In group 2, each rank tells the
 * other ranks of the flight that it has begun. */
enum { RF_LINK_FLIGHTS = 16, RF_LINK_FLIGHT_GROUPS = 3 };
typedef struct rf_link_flight {
  int number; /* number below RF_LINK_FLIGHTS; flights that run at the same time have different numbers */
  /* Continues the exchange without waiting. Returns true when the exchange is complete. */
  bool (*advance)(struct rf_link_flight *flight);
  /* set by these functions */
  bool open;
  _Atomic bool done;
  int64_t there_ns; /* time at which all ranks had begun; 0: not all ranks have begun */
} rf_link_flight;
static inline int rf_link_group_of(const rf_link_flight *flight, int k) {
  return RF_LINK_GROUPS + flight->number * RF_LINK_FLIGHT_GROUPS + k;
}
/* Called before the first flight. Allocates memory for flights, and starts the thread that moves
 * their messages. */
rf_status rf_link_reserve_flights(rf_link *link, rf_error *error);
/* Flights begin in the same order on all their ranks. Several threads call `advance`, one at a
 * time, until it returns true. rf_link_end_flight waits until then. */
bool rf_link_begin_flight(rf_link *link, rf_link_flight *flight);
bool rf_link_end_flight(rf_link *link, rf_link_flight *flight);
/* Ends a flight whose result nobody needs. If the flight is not complete soon, the link fails,
 * because the library may still write to the flight's memory. */
void rf_link_drop_flight(rf_link *link, rf_link_flight *flight);
/* Advances the flights without waiting. */
void rf_link_poll_flights(rf_link *link);

/* Messages that stay in flight while other messages are exchanged. Each message has a number below
 * `count`. Messages of one channel from one rank to another arrive in the order in which the two
 * ranks post them. rf_link_post_message begins message `number`, which must not be in flight.
 * rf_link_finish waits until message `number` is done. rf_link_poll lets the library move messages,
 * and does not wait. */
rf_status rf_link_reserve(rf_link *link, int count, rf_error *error);
typedef struct rf_link_post {
  int rank, channel;
  bool out; /* true: the message goes to the rank; false: it comes from the rank */
  void *data;
  int64_t bytes; /* at most RF_LINK_BYTES */
} rf_link_post;
bool rf_link_post_message(rf_link *link, int number, const rf_link_post *post);
bool rf_link_finish(rf_link *link, int number);
void rf_link_poll(rf_link *link);

/* The messages between these two calls are an exchange. When a rank begins an exchange, it tells
 * the other ranks of the exchange. */
void rf_link_begin_exchange(rf_link *link);
void rf_link_end_exchange(rf_link *link);

/* Sends or receives one message of any length. Messages of a rank arrive in the order in which the
 * rank sent them. */
rf_status rf_link_send(rf_link *link, int to, const void *data, int64_t bytes, rf_error *error);
rf_status rf_link_receive(rf_link *link, int from, void *data, int64_t bytes, rf_error *error);
/* Rank 0 sends its bytes to all other ranks, and these ranks receive the bytes. Does nothing if
 * `link` is NULL. */
rf_status rf_link_share(rf_link *link, void *data, int64_t bytes, rf_error *error);
/* RAFTER_OK, or the first failure. `what` was computed meanwhile: "step/end/norm". */
rf_status rf_link_status(const rf_link *link, const char *what, rf_error *error);
/* Ranks may differ in these values. All ranks must use the lowest value. */
typedef struct rf_link_cores {
  int64_t isa, threads; /* instruction-set level and number of threads */
} rf_link_cores;
/* Replaces this rank's values by the lowest values of all ranks. Ranks exchange their values only
 * at the first call. A later call with the same values gives the same result. A later call with
 * other values changes nothing, because one rank may plan more than the others. */
rf_status rf_link_agree(rf_link *link, rf_link_cores *cores, rf_error *error);

/* A message that may be in flight for minutes, at the same time as messages of groups. {.rank,
 * .out} initialises a new message. */
typedef struct rf_link_letter {
  int rank; /* rank to which the message goes (out), or from which it comes */
  bool out;
  bool open; /* true: the message has begun and is not done */
  uint64_t request;
  double since; /* time of the first look that found the message not done; 0: none */
  /* state of the limit of a wait. next: seconds after `since`. ended: rank whose process had
   * ended */
  double next;
  int ended;
} rf_link_letter;
/* Begins the message. Until rf_link_arrived, the caller must not change `data` (out) or read it. */
rf_status rf_link_begin_letter(rf_link *link, rf_link_letter *letter, void *data, int64_t bytes,
                               rf_error *error);
/* Sets *done if the message is done. Returns RAFTER_FAILED if the other rank has ended, or if looks
 * found the message not done for longer than the limit of a wait. */
rf_status rf_link_arrived(rf_link *link, rf_link_letter *letter, bool *done, rf_error *error);

#endif
