/* copies.h - copies of the model on the ranks of a run, which answer different requests at the same
 * time. A copy is one rank, or several ranks that share the work of the copy (tensor, context,
 * sequence, fsdp). The first rank of a copy reports the work of the copy to rank 0. When all copies
 * are done, rank 0 informs the first ranks. Until then, no copy waits for another copy.
 *
 * The work between rf_copies_begin and the end is a round. All ranks begin a round together. */
#ifndef RF_RUN_COPIES_H
#define RF_RUN_COPIES_H

#include "run/run.h"

typedef struct rf_copies rf_copies;

/* *out is NULL if the run has one copy, or copies that run each step together (rf_mesh_apart). */
rf_status rf_copies_open(const rf_run *run, const rf_mesh *mesh, rf_copies **out, rf_error *error);
void rf_copies_close(rf_copies *copies);
int rf_copies_count(const rf_copies *copies);
int rf_copies_mine(const rf_copies *copies);  /* number of the copy of this rank; rank 0 is in copy 0 */
int rf_copies_ranks(const rf_copies *copies); /* ranks of one copy */
/* true on the first rank of every copy except the copy of rank 0 */
bool rf_copies_reports(const rf_copies *copies);

/* Sets *flags to the flags of all ranks of this copy, combined by `or`. */
rf_status rf_copies_agree(rf_copies *copies, uint32_t *flags, rf_error *error);
/* Like rf_copies_agree, but the flags that other copies have said count too. Sends the result to
 * the other copies. */
rf_status rf_copies_say(rf_copies *copies, uint32_t *flags, rf_error *error);
/* Returns the flags that this copy has said in this round. After the round, returns the flags of
 * all copies. */
uint32_t rf_copies_said(const rf_copies *copies);

/* Totals that rank 0 adds up. */
enum { RF_COPIES_TOTALS = 16 };
typedef struct rf_copies_totals {
  int64_t of[RF_COPIES_TOTALS];
} rf_copies_totals;

/* The work that this copy has done so far. */
typedef struct rf_copies_state {
  bool done, complete; /* done: the copy has stopped. complete: the copy has done all its work. */
  rf_copies_totals totals;
} rf_copies_state;

void rf_copies_begin(rf_copies *copies);
/* In the first rank of a copy: adds a result to the next report. */
rf_status rf_copies_add(rf_copies *copies, const void *data, int64_t bytes, rf_error *error);
/* The function that rank 0 calls with the results of a report. */
typedef rf_status rf_copies_take(void *self, const unsigned char *data, int64_t bytes, rf_error *error);
/* Sends and receives the messages that are due. If state->done is true, waits up to a second for
 * news. At the end of the round, sets *over. Sets *flags to the flags of all copies, or to 0 if all
 * copies are complete. All ranks of a copy call this function, and get the same values. The result
 * is RAFTER_FAILED if another copy has failed or is lost. */
rf_status rf_copies_exchange(rf_copies *copies, const rf_copies_state *state, rf_copies_take *take,
                             void *self, bool *over, uint32_t *flags, rf_error *error);
/* Sends the error of this copy to rank 0. The copy must then end. */
void rf_copies_fail(rf_copies *copies, rf_status status, const rf_error *error);
/* Returns the sums of the totals of the other copies. Only for rank 0. */
rf_copies_totals rf_copies_others(const rf_copies *copies);

#endif
