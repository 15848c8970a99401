/* automaton.h - reads a grammar byte by byte. A state is a set of places in the grammar. Each place
 * has a list of the calls that are open there. States are made when a text first reaches them, in
 * memory of a fixed size. */
#ifndef RF_AUTOMATON_H
#define RF_AUTOMATON_H

#include "constrain/grammar.h"

enum {
  RF_AUTOMATON_STATES = 1 << 13,
  RF_AUTOMATON_PLACES = 1 << 18, /* of all states */
  RF_AUTOMATON_STACKS = 1 << 15,
  RF_AUTOMATON_WIDTH = 2048, /* places of one state */
  RF_AUTOMATON_DEAD = -1     /* no text can continue; other states have numbers from 1 */
};

typedef struct rf_place {
  int32_t state; /* of the grammar */
  int32_t stack; /* open calls; 0: none */
} rf_place;

/* One generation of states. When one generation is full, the states in use move to the other
 * generation. */
typedef struct rf_automaton_tables {
  struct rf_automaton_state {
    int32_t first, count; /* in `place` */
    int32_t mask;         /* slot of the state's token mask; -1: no mask */
    bool ends;            /* the text may end here */
  } * state;              /* (RF_AUTOMATON_STATES) */
  rf_place *place;        /* (RF_AUTOMATON_PLACES) */
  int32_t *next;          /* (states, classes); 0: not computed */
  struct rf_automaton_stack {
    int32_t to; /* state of the grammar after the call */
    int32_t below;
    uint8_t depth;
  } * stack;
  int32_t *state_hash, *stack_hash; /* (2 x states), (2 x stacks); 0: empty */
  int32_t states, places, stacks;
} rf_automaton_tables;

typedef struct rf_automaton {
  rf_grammar grammar;
  bool *reads; /* (states of the grammar) true: the state has an edge that reads a byte */
  rf_automaton_tables table[2], *now;
  int32_t start;
  rf_place *set; /* (RF_AUTOMATON_WIDTH): the state that is being made */
  int32_t count;
  bool ends;
  uint32_t *mark; /* (4 x RF_AUTOMATON_WIDTH) index in `set` and stamp, to find equal places */
  uint32_t stamp;
} rf_automaton;

/* Takes ownership of a finished grammar. RAFTER_INVALID: the first states of the grammar have too
 * many places. */
rf_status rf_automaton_open(rf_automaton *automaton, rf_grammar *grammar, rf_error *error);
void rf_automaton_close(rf_automaton *automaton); /* {0} is allowed. */

typedef enum rf_automaton_result {
  RF_AUTOMATON_OK,
  RF_AUTOMATON_FULL, /* call rf_automaton_move */
  RF_AUTOMATON_WIDE  /* a state has too many places */
} rf_automaton_result;

/* Gets the state after a byte of a class, or RF_AUTOMATON_DEAD. Allocates nothing. */
rf_automaton_result rf_automaton_step(rf_automaton *automaton, int32_t state, int class, int32_t *next);
/* Begins a new generation of states that has only the start state. Then call rf_automaton_keep for
 * each state in use, which gives the state a new number. All other states are lost, and all states
 * lose their masks. */
void rf_automaton_move(rf_automaton *automaton);
rf_automaton_result rf_automaton_keep(rf_automaton *automaton, int32_t *state);

static inline const struct rf_automaton_state *rf_automaton_at(const rf_automaton *a, int32_t state) {
  return &a->now->state[state];
}

#endif
