/* automaton.c - see automaton.h. */
#include "constrain/automaton.h"

#include <stdlib.h>
#include <string.h>

enum {
  STATES = RF_AUTOMATON_STATES,
  STACKS = RF_AUTOMATON_STACKS,
  WIDTH = RF_AUTOMATON_WIDTH,
  MARKS = 4 * WIDTH
};

typedef rf_automaton_tables tables;

static uint32_t mix(uint32_t a, uint32_t b) {
  uint64_t x = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
  return (uint32_t)(x >> 32);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static bool open_tables(tables *t, int classes) {
  t->state = malloc(STATES * sizeof *t->state);
  t->place = malloc(RF_AUTOMATON_PLACES * sizeof *t->place);
  t->next = malloc((size_t)STATES * (size_t)classes * sizeof *t->next);
  t->stack = malloc(STACKS * sizeof *t->stack);
  t->state_hash = calloc(2 * STATES, sizeof *t->state_hash);
  t->stack_hash = calloc(2 * STACKS, sizeof *t->stack_hash);
  t->states = t->stacks = 1;
  if (t->stack) t->stack[0] = (struct rf_automaton_stack){0};
  return t->state && t->place && t->next && t->stack && t->state_hash && t->stack_hash;
}

static void close_tables(tables *t) {
  free(t->state);
  free(t->place);
  free(t->next);
  free(t->stack);
  free(t->state_hash);
  free(t->stack_hash);
}

/* Finds or adds a stack; -1: no memory is left. */
static int32_t stack_of(tables *t, int32_t to, int32_t below) {
  uint32_t at = mix((uint32_t)to, (uint32_t)below) % (2 * STACKS);
  for (; t->stack_hash[at]; at = (at + 1) % (2 * STACKS)) {
    const struct rf_automaton_stack *s = &t->stack[t->stack_hash[at]];
    if (s->to == to && s->below == below) return t->stack_hash[at];
  }
  if (t->stacks == STACKS) return -1;
  t->stack[t->stacks] = (struct rf_automaton_stack){to, below, (uint8_t)(t->stack[below].depth + 1)};
  return t->stack_hash[at] = t->stacks++;
}

/* Finds or adds the state with the places of a->set; -1: no memory is left. */
static int32_t state_of(rf_automaton *a) {
  tables *t = a->now;
  uint32_t hash = a->ends;
  for (int32_t i = 0; i < a->count; i++)
    hash = mix(hash ^ (uint32_t)a->set[i].state, (uint32_t)a->set[i].stack + hash);
  uint32_t at = hash % (2 * STATES);
  size_t bytes = (size_t)a->count * sizeof *a->set;
  for (; t->state_hash[at]; at = (at + 1) % (2 * STATES)) {
    const struct rf_automaton_state *s = &t->state[t->state_hash[at]];
    if (s->count == a->count && s->ends == a->ends && !memcmp(t->place + s->first, a->set, bytes))
      return t->state_hash[at];
  }
  if (t->states == STATES || t->places + a->count > RF_AUTOMATON_PLACES) return -1;
  t->state[t->states] = (struct rf_automaton_state){t->places, a->count, -1, a->ends};
  memcpy(t->place + t->places, a->set, bytes);
  t->places += a->count;
  int classes = a->grammar.classes;
  memset(t->next + (size_t)t->states * (size_t)classes, 0, (size_t)classes * sizeof *t->next);
  return t->state_hash[at] = t->states++;
}

/* ---- places ---------------------------------------------------------------------------------- */

static void begin_set(rf_automaton *a) {
  a->count = 0;
  a->ends = false;
  if (!(++a->stamp & 0xfffff)) { /* the stamp has 20 bits of a mark */
    memset(a->mark, 0, MARKS * sizeof *a->mark);
    a->stamp = 1;
  }
}

/* Adds a place if the text can be completed from this place within the maximum depth. */
static rf_automaton_result add_place(rf_automaton *a, int32_t state, int32_t stack) {
  uint32_t stamp = (a->stamp & 0xfffff) << 12, at = mix((uint32_t)state, (uint32_t)stack) % MARKS;
  if (a->now->stack[stack].depth + a->grammar.need[state] > RF_GRAMMAR_DEPTH) return RF_AUTOMATON_OK;
  for (; (a->mark[at] & ~0xfffu) == stamp; at = (at + 1) % MARKS) {
    const rf_place *p = &a->set[a->mark[at] & 0xfff];
    if (p->state == state && p->stack == stack) return RF_AUTOMATON_OK;
  }
  if (a->count == WIDTH) return RF_AUTOMATON_WIDE;
  a->mark[at] = stamp | (uint32_t)a->count;
  a->set[a->count++] = (rf_place){state, stack};
  return RF_AUTOMATON_OK;
}

static rf_automaton_result follow(rf_automaton *a, const rf_arc *e, int32_t stack) {
  const rf_grammar *g = &a->grammar;
  int depth = a->now->stack[stack].depth;
  if (e->kind == RF_ARC_SKIP) return add_place(a, e->to, stack);
  if (e->kind != RF_ARC_CALL) return RF_AUTOMATON_OK;
  if (depth + g->need[e->to] > RF_GRAMMAR_DEPTH || depth + 1 + g->need[e->rule] > RF_GRAMMAR_DEPTH)
    return RF_AUTOMATON_OK;
  /* A call at the end of a rule needs no place to return to. */
  if (g->ends[e->to]) return add_place(a, e->rule, stack);
  int32_t inner = stack_of(a->now, e->to, stack);
  return inner < 0 ? RF_AUTOMATON_FULL : add_place(a, e->rule, inner);
}

/* Adds all places that can be reached without reading a byte. */
static rf_automaton_result close_set(rf_automaton *a) {
  const rf_grammar *g = &a->grammar;
  rf_automaton_result result = RF_AUTOMATON_OK;
  for (int32_t i = 0; i < a->count; i++) {
    const rf_place p = a->set[i];
    for (int32_t e = g->first[p.state]; e >= 0 && !result; e = g->edge[e].next)
      result = follow(a, &g->edge[e], p.stack);
    if (result) return result;
    if (!g->ends[p.state]) continue;
    const struct rf_automaton_stack *top = &a->now->stack[p.stack];
    if (!p.stack) a->ends = true;
    else result = add_place(a, top->to, top->below);
  }
  return result;
}

static bool before(rf_place x, rf_place y) {
  return x.state < y.state || (x.state == y.state && x.stack < y.stack);
}

/* Drops places that read no byte, and sorts the other places. Shell's sort allocates nothing. */
static void sort_set(rf_automaton *a) {
  static const int GAPS[] = {701, 301, 132, 57, 23, 10, 4, 1};
  int32_t kept = 0;
  for (int32_t i = 0; i < a->count; i++)
    if (a->reads[a->set[i].state]) a->set[kept++] = a->set[i];
  a->count = kept;
  for (size_t k = 0; k < sizeof GAPS / sizeof *GAPS; k++)
    for (int32_t i = GAPS[k]; i < kept; i++) {
      rf_place moved = a->set[i];
      int32_t at = i;
      for (; at >= GAPS[k] && before(moved, a->set[at - GAPS[k]]); at -= GAPS[k])
        a->set[at] = a->set[at - GAPS[k]];
      a->set[at] = moved;
    }
}

/* Makes the state of the places in a->set. */
static rf_automaton_result finish_set(rf_automaton *a, int32_t *state) {
  rf_automaton_result result = close_set(a);
  if (result) return result;
  sort_set(a);
  if (!a->count && !a->ends) {
    *state = RF_AUTOMATON_DEAD;
    return RF_AUTOMATON_OK;
  }
  int32_t made = state_of(a);
  if (made < 0) return RF_AUTOMATON_FULL;
  *state = made;
  return RF_AUTOMATON_OK;
}

rf_automaton_result rf_automaton_step(rf_automaton *a, int32_t state, int class, int32_t *next) {
  const rf_grammar *g = &a->grammar;
  const tables *t = a->now;
  int32_t known = t->next[(size_t)state * (size_t)g->classes + (size_t) class];
  if (known) {
    *next = known;
    return RF_AUTOMATON_OK;
  }
  const struct rf_automaton_state *s = &t->state[state];
  uint8_t byte = g->byte_of[class];
  begin_set(a);
  for (int32_t i = 0; i < s->count; i++) {
    const rf_place p = t->place[s->first + i];
    for (int32_t e = g->first[p.state]; e >= 0; e = g->edge[e].next) {
      const rf_arc *edge = &g->edge[e];
      if (edge->kind != RF_ARC_BYTES || byte < edge->low || byte > edge->high) continue;
      rf_automaton_result result = add_place(a, edge->to, p.stack);
      if (result) return result;
    }
  }
  rf_automaton_result result = finish_set(a, next);
  if (!result) t->next[(size_t)state * (size_t)g->classes + (size_t) class] = *next;
  return result;
}

/* ---- generations ----------------------------------------------------------------------------- */

static tables *other_tables(rf_automaton *a) { return a->now == &a->table[0] ? &a->table[1] : &a->table[0]; }

void rf_automaton_move(rf_automaton *a) {
  tables *to = other_tables(a);
  memset(to->state_hash, 0, 2 * STATES * sizeof *to->state_hash);
  memset(to->stack_hash, 0, 2 * STACKS * sizeof *to->stack_hash);
  to->states = to->stacks = 1;
  to->places = 0;
  a->now = to;
  rf_automaton_keep(a, &a->start);
}

/* Copies a stack of the previous generation; -1: no memory is left. */
static int32_t keep_stack(rf_automaton *a, int32_t stack) {
  const tables *from = other_tables(a);
  int32_t open[RF_GRAMMAR_DEPTH + 1], kept = 0;
  int count = 0;
  for (; stack; stack = from->stack[stack].below) open[count++] = stack;
  while (count-- && kept >= 0) kept = stack_of(a->now, from->stack[open[count]].to, kept);
  return kept;
}

rf_automaton_result rf_automaton_keep(rf_automaton *a, int32_t *state) {
  const tables *from = other_tables(a);
  const struct rf_automaton_state *s = &from->state[*state];
  a->count = s->count;
  a->ends = s->ends;
  for (int32_t i = 0; i < s->count; i++) {
    const rf_place p = from->place[s->first + i];
    a->set[i] = (rf_place){p.state, keep_stack(a, p.stack)};
    if (a->set[i].stack < 0) return RF_AUTOMATON_FULL;
  }
  sort_set(a);
  int32_t kept = state_of(a);
  if (kept < 0) return RF_AUTOMATON_FULL;
  *state = kept;
  return RF_AUTOMATON_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

rf_status rf_automaton_open(rf_automaton *a, rf_grammar *grammar, rf_error *error) {
  *a = (rf_automaton){.grammar = *grammar};
  rf_grammar *g = &a->grammar;
  *grammar = (rf_grammar){0};
  a->now = &a->table[0];
  a->reads = calloc((size_t)g->states, sizeof *a->reads);
  a->set = malloc(WIDTH * sizeof *a->set);
  a->mark = calloc(MARKS, sizeof *a->mark);
  if (!open_tables(&a->table[0], g->classes) || !open_tables(&a->table[1], g->classes) || !a->reads ||
      !a->set || !a->mark)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading a form");
  for (int32_t s = 0; s < g->states; s++)
    for (int32_t e = g->first[s]; e >= 0; e = g->edge[e].next) a->reads[s] |= g->edge[e].kind == RF_ARC_BYTES;
  begin_set(a);
  rf_automaton_result result = add_place(a, g->start, 0);
  if (!result) result = finish_set(a, &a->start);
  return result ? RF_FAIL(error, RAFTER_INVALID,
                          "use fewer alternatives, or a reference that reads something first",
                          "the form is too ambiguous (expected at most %d ways to read a text)", WIDTH)
                : RAFTER_OK;
}

void rf_automaton_close(rf_automaton *a) {
  rf_grammar_free(&a->grammar);
  close_tables(&a->table[0]);
  close_tables(&a->table[1]);
  free(a->reads);
  free(a->set);
  free(a->mark);
  *a = (rf_automaton){0};
}
