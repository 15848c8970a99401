/* shares.h - divides the requests of a round among the copies of the model (run/copies.h). Every
 * rank knows all requests, in the same order. Copy c of n answers the requests whose number modulo
 * n is c. If there are fewer requests than copies, the answers are divided in the same way. So the
 * division does not depend on time. Rank 0 gets all answers. Only src/generate includes this file;
 * other rooms use replies.h. */
#ifndef RF_SHARES_H
#define RF_SHARES_H

#include "generate/replies.h"
#include "run/copies.h"

typedef struct rf_shares rf_shares;

/* generator->shares is NULL if this process answers all requests. */
rf_status rf_shares_open(rf_generator *generator, rf_error *error);
void rf_shares_close(rf_shares *shares);
void rf_shares_begin(rf_shares *shares, int64_t requests);
/* Gives the request of `replies` its number in the round. */
rf_status rf_shares_add(rf_shares *shares, rf_replies *replies, rf_error *error);
/* Return true if this copy computes the answer `sample` (rf_shares_has), or any answer of the
 * request (rf_shares_has_any). */
bool rf_shares_has(const rf_shares *shares, const rf_replies *replies, int sample);
bool rf_shares_has_any(const rf_shares *shares, const rf_replies *replies);
/* Records that an answer of this copy has ended. The first rank of the copy sends the answer. */
rf_status rf_shares_give(rf_shares *shares, const rf_replies *replies, int sample, rf_error *error);
/* rf_replies_run for a generator with shares. */
rf_status rf_shares_run(rf_generator *generator, const rf_reply_loop *loop, bool *stopped, rf_error *error);
bool rf_shares_busy(const rf_shares *shares); /* true: the round has not ended */
rf_copies *rf_shares_copies(const rf_shares *shares);
/* Adds the counts of other copies, as far as rank 0 has received them. */
void rf_shares_add_counts(const rf_shares *shares, rf_generate_counts *counts);

#endif
