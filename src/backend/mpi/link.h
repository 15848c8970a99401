/* link.h - the ranks of an MPI job, and messages between them. A process has one link. It exists
 * only if a launcher of MPI (mpirun, srun) started the process. Only the thread that opened the
 * link calls these functions, except for the functions of a flight. Every wait has a time limit, so
 * that a rank that is lost ends the run with an error. */
#ifndef RF_LINK_H
#define RF_LINK_H

#include "base/base.h"

enum { RF_LINK_SECONDS = 300 }; /* default limit of a wait; the variable RAFTER_MPI_SECONDS sets it */

/* Times in exchanges (rf_link_begin_exchange). The rest of `all_ns` is work of this rank: packing
 * messages and adding. */
typedef struct rf_link_times {
  int64_t exchanges, all_ns;
  int64_t late_ns;    /* waits until all ranks of an exchange have begun; the cause is a slow rank */
  int64_t network_ns; /* waits for messages after all ranks have begun */
  /* not a part of all_ns: waits for messages of pipeline stages (rf_link_finish), and for other
   * messages outside exchanges */
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
  /* A thread moves the messages of flights while the other threads compute. false: the MPI library
   * allows calls of one thread only, so they move between ops and in waits. */
  bool threaded;
  /* address of errno of the thread that is in a call of the MPI library for messages, which may
   * allocate; NULL: none */
  _Atomic(const void *) in_library;
} rf_link;

/* True if the environment says that a launcher of MPI started several processes. `rank` and `ranks`
 * are what it says; ranks is 0 if it does not say. */
bool rf_link_launched(int *rank, int *ranks);
/* Opens the link of this process at the first call. *link is NULL if no launcher started several
 * processes. RAFTER_FAILED: the library of the launcher is missing, or does not start. */
rf_status rf_link_open(rf_link **link, rf_error *error);
rf_link *rf_link_of_process(void);                       /* NULL before rf_link_open */
const char *rf_link_host(const rf_link *link, int rank); /* name of the rank's machine */

/* Groups of messages in flight. A group can be in flight while another one is used. */
enum { RF_LINK_GROUPS = 2, RF_LINK_BYTES = 1 << 30 };
/* Begin a message of a group, of at most RF_LINK_BYTES bytes. `data` must not change (send) or be
 * read (receive) until rf_link_wait. */
bool rf_link_begin_send(rf_link *link, int group, int to, const void *data, int64_t bytes);
bool rf_link_begin_receive(rf_link *link, int group, int from, void *data, int64_t bytes);
/* Waits for all messages of the group. On failure, link->error says which rank is missing. */
bool rf_link_wait(rf_link *link, int group);
/* Whether all messages of the group are done. Does not wait. After a failure, true. */
bool rf_link_done(rf_link *link, int group);

/* A flight is an exchange that runs while this rank computes. Its messages are in three groups:
 * rf_link_group_of gives the first two for its chunks, and the third for the bytes by which its
 * ranks tell each other that they have begun. */
enum { RF_LINK_FLIGHTS = 16, RF_LINK_FLIGHT_GROUPS = 3 };
typedef struct rf_link_flight {
  int number; /* below RF_LINK_FLIGHTS, and of no other flight at the same time */
  /* Does what is possible without a wait. Returns true when the exchange is complete. */
  bool (*advance)(struct rf_link_flight *flight);
  /* set by these functions */
  bool open;
  _Atomic bool done;
  int64_t there_ns; /* when all ranks had begun; 0: before */
} rf_link_flight;
static inline int rf_link_group_of(const rf_link_flight *flight, int k) {
  return RF_LINK_GROUPS + flight->number * RF_LINK_FLIGHT_GROUPS + k;
}
/* Before the first flight: makes room for them, and starts the thread that moves their messages. */
rf_status rf_link_reserve_flights(rf_link *link, rf_error *error);
/* Flights begin in the same order on all their ranks. `advance` is called by several threads, one at
 * a time, until it returns true. rf_link_end_flight waits for this. */
bool rf_link_begin_flight(rf_link *link, rf_link_flight *flight);
bool rf_link_end_flight(rf_link *link, rf_link_flight *flight);
/* Ends a flight whose result nobody needs. If it is not complete soon, the link fails, because the
 * library may still write to its memory. */
void rf_link_drop_flight(rf_link *link, rf_link_flight *flight);
/* Gives the flights the chance to advance, and does not wait. */
void rf_link_poll_flights(rf_link *link);

/* Messages that stay in flight while others are exchanged. Each has a number below `count`.
 * Messages of one channel, from one rank to another, arrive in the order in which both ranks post
 * them. rf_link_post_message begins message `number`, which is not in flight. rf_link_finish waits
 * until it is done. rf_link_poll gives the library the chance to move them, and does not wait. */
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

/* The messages between these two calls are an exchange. Its ranks tell each other when they
 * begin. */
void rf_link_begin_exchange(rf_link *link);
void rf_link_end_exchange(rf_link *link);

/* One message of any length. Ranks receive messages of a rank in the order in which it sent
 * them. */
rf_status rf_link_send(rf_link *link, int to, const void *data, int64_t bytes, rf_error *error);
rf_status rf_link_receive(rf_link *link, int from, void *data, int64_t bytes, rf_error *error);
/* Rank 0 sends its bytes to the others, which receive them. Does nothing if `link` is NULL. */
rf_status rf_link_share(rf_link *link, void *data, int64_t bytes, rf_error *error);
/* RAFTER_OK, or the first failure. `what` was computed meanwhile: "step/end/norm". */
rf_status rf_link_status(const rf_link *link, const char *what, rf_error *error);
/* Ranks may differ in these values. All must use the lowest one. */
typedef struct rf_link_cores {
  int64_t isa, threads; /* instruction-set level and number of threads */
} rf_link_cores;
/* Replaces this rank's values by the lowest of all ranks. The ranks exchange them at the first call
 * only. Later calls with the same values give the same result, and leave other values as they are:
 * a rank may plan more than the others. */
rf_status rf_link_agree(rf_link *link, rf_link_cores *cores, rf_error *error);

/* A message that may be in flight for minutes, next to messages of groups. {.rank, .out} is a new
 * one. */
typedef struct rf_link_letter {
  int rank; /* the rank to which (out) or from which the message goes */
  bool out;
  bool open; /* begun, and not yet done */
  uint64_t request;
  double since; /* time at which the message was first found not done; 0: never */
  double next;  /* for the limit of a wait: seconds after `since`, and the rank that had ended */
  int ended;
} rf_link_letter;
/* Begins the message. `data` must not change (out) or be read until rf_link_arrived. */
rf_status rf_link_begin_letter(rf_link *link, rf_link_letter *letter, void *data, int64_t bytes,
                               rf_error *error);
/* Sets *done if the message is done. RAFTER_FAILED: the other rank has ended, or looks have found the
 * message not done for longer than the limit of a wait. */
rf_status rf_link_arrived(rf_link *link, rf_link_letter *letter, bool *done, rf_error *error);

#endif
