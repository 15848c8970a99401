/* copies.h - copies of the model on the ranks of a run, which answer different requests at the same
 * time. A copy is one rank, or several that share its work (tensor, context, sequence, fsdp). The
 * first rank of a copy reports to rank 0 what its copy did. When all copies are done, rank 0 tells
 * the first ranks. Until then, no copy waits for another copy.
 *
 * The work between rf_copies_begin and the end is a round. All ranks begin it together. */
#ifndef RF_RUN_COPIES_H
#define RF_RUN_COPIES_H

#include "run/run.h"

typedef struct rf_copies rf_copies;

/* *out is NULL if the run has one copy, or copies that run in step (rf_mesh_apart). */
rf_status rf_copies_open(const rf_run *run, const rf_mesh *mesh, rf_copies **out, rf_error *error);
void rf_copies_close(rf_copies *copies);
int rf_copies_count(const rf_copies *copies);
int rf_copies_mine(const rf_copies *copies);     /* the copy of this rank; rank 0 is in copy 0 */
int rf_copies_ranks(const rf_copies *copies);    /* ranks of one copy */
bool rf_copies_reports(const rf_copies *copies); /* true in the first rank of a copy, but not in rank 0 */

/* Sets *flags to those of all ranks of this copy, combined by `or`. */
rf_status rf_copies_agree(rf_copies *copies, uint32_t *flags, rf_error *error);
/* The same, with the flags that other copies have said, and says the result to the other copies. */
rf_status rf_copies_say(rf_copies *copies, uint32_t *flags, rf_error *error);
/* The flags that this copy has said in this round. After the round, the flags of all copies. */
uint32_t rf_copies_said(const rf_copies *copies);

/* Totals that rank 0 adds up. */
enum { RF_COPIES_TOTALS = 16 };
typedef struct rf_copies_totals {
  int64_t of[RF_COPIES_TOTALS];
} rf_copies_totals;

/* The work of this copy so far. */
typedef struct rf_copies_state {
  bool done, complete; /* done: the copy has stopped. complete: the copy has done all its work. */
  rf_copies_totals totals;
} rf_copies_state;

void rf_copies_begin(rf_copies *copies);
/* In the first rank of a copy: adds a result to the next report. */
rf_status rf_copies_add(rf_copies *copies, const void *data, int64_t bytes, rf_error *error);
/* In rank 0, for the results of a report. */
typedef rf_status rf_copies_take(void *self, const unsigned char *data, int64_t bytes, rf_error *error);
/* Sends and receives what is due. With state->done, waits up to a second for news. At the end of
 * the round, sets *over. Sets *flags to the flags of all copies, or to 0 if all copies are
 * complete. All ranks of a copy call this function, and get the same values. RAFTER_FAILED: another
 * copy has failed or is lost. */
rf_status rf_copies_exchange(rf_copies *copies, const rf_copies_state *state, rf_copies_take *take,
                             void *self, bool *over, uint32_t *flags, rf_error *error);
/* Sends the error of this copy to rank 0. The copy must then end. */
void rf_copies_fail(rf_copies *copies, rf_status status, const rf_error *error);
/* Sums of the totals of the other copies, in rank 0. */
rf_copies_totals rf_copies_others(const rf_copies *copies);

#endif
