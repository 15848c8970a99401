/* mask.h - a constraint's automaton and its token masks. */
#ifndef RF_MASK_H
#define RF_MASK_H

#include "constrain/automaton.h"
#include "constrain/constrain.h"

#include <pthread.h>

enum { RF_MASK_BYTES = 1 << 22 }; /* maximum bytes of the masks that a constraint keeps */

struct rf_constraint {
  _Atomic int references;
  rf_trie *trie;
  rf_automaton automaton;
  pthread_mutex_t lock; /* protects the automaton and all following fields */
  rf_constrained *answers;
  struct rf_mask_slot {
    int32_t state; /* 0: none */
    bool only;
    int64_t used;
  } * slot;
  uint64_t *mask; /* (slots, words) */
  int slots;
  int64_t clock;
};

/* Gets the slot with the mask of a state. This call may give the state a new number. */
rf_automaton_result rf_mask_of(rf_constraint *constraint, int32_t *state, int *slot);
/* Moves the automaton to a new generation. All answers and *state get new numbers of states. */
rf_automaton_result rf_mask_move(rf_constraint *constraint, int32_t *state);

#endif
