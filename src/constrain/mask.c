/* mask.c - computes the tokens that may follow a state: reads the vocabulary's tree with the
 * automaton, and leaves out the branches that are dead. */
#include "constrain/mask.h"

#include <string.h>

/* Limit for the work of one mask: the number of visited nodes of the tree, times the places of
 * their states. */
static const int64_t WORK = (int64_t)1 << 26;

rf_automaton_result rf_mask_move(rf_constraint *c, int32_t *state) {
  rf_automaton *a = &c->automaton;
  rf_automaton_move(a); /* keeps a->start */
  rf_automaton_result result = state == &a->start ? RF_AUTOMATON_OK : rf_automaton_keep(a, state);
  if (result) *state = RF_AUTOMATON_DEAD;
  for (rf_constrained *one = c->answers; one; one = one->next)
    if (&one->state != state && one->state > 0 && rf_automaton_keep(a, &one->state) != RF_AUTOMATON_OK)
      one->state = RF_AUTOMATON_DEAD;
  for (int i = 0; i < c->slots; i++) c->slot[i].state = 0;
  return result;
}

static rf_automaton_result add_tokens(rf_constraint *c, int32_t state, const struct rf_trie_part *part,
                                      uint64_t *mask, int64_t *work) {
  const rf_trie *t = c->trie;
  rf_automaton *a = &c->automaton;
  int32_t after[RF_TRIE_BYTES + 1]; /* states after the bytes of the current node */
  after[0] = state;
  for (int32_t i = part->first; i < part->end;) {
    const struct rf_trie_node *n = &t->node[i];
    int class = a->grammar.class_of[n->byte];
    rf_automaton_result result = rf_automaton_step(a, after[n->depth], class, &after[n->depth + 1]);
    if (result) return result;
    int32_t reached = after[n->depth + 1];
    if (reached < 0) {
      i = n->skip;
      continue;
    }
    *work += 1 + rf_automaton_at(a, reached)->count;
    if (*work > WORK) return RF_AUTOMATON_WIDE;
    for (int32_t k = n->tokens; k < n[1].tokens; k++)
      mask[t->token[k] >> 6] |= (uint64_t)1 << (t->token[k] & 63);
    i++;
  }
  return RF_AUTOMATON_OK;
}

/* ---- characters of strings ------------------------------------------------------------------- */

enum { FRONT = 8 };

/* States that are reached by the same number of plain characters. */
typedef struct front {
  int32_t state[FRONT];
  int count;
} front;

/* Adds a state. Returns false if there are too many states. */
static bool join(front *f, int32_t state) {
  for (int i = 0; i < f->count; i++)
    if (f->state[i] == state) return true;
  if (f->count == FRONT) return false;
  f->state[f->count++] = state;
  return true;
}

/* Adds the states after all bytes from low to high. *all becomes false if one of these states is
 * dead. */
static rf_automaton_result spread(rf_automaton *a, int32_t state, int low, int high, front *to, bool *all) {
  for (int b = low, class = -1; b <= high && *all; b++) {
    int32_t next;
    if (a->grammar.class_of[b] == class) continue;
    class = a->grammar.class_of[b];
    rf_automaton_result result = rf_automaton_step(a, state, class, &next);
    if (result) return result;
    *all = next > 0 && join(to, next);
  }
  return RF_AUTOMATON_OK;
}

static rf_automaton_result spread_all(rf_automaton *a, const front *from, int low, int high, front *to,
                                      bool *all) {
  rf_automaton_result result = RF_AUTOMATON_OK;
  for (int i = 0; i < from->count && !result; i++) result = spread(a, from->state[i], low, high, to, all);
  return result;
}

/* Adds the states after each plain character. The ranges of bytes are from table 3-7 of the Unicode
 * standard. */
static rf_automaton_result spread_characters(rf_automaton *a, const front *from, front *to, bool *all) {
  static const struct {
    uint8_t range[4][2];
    int bytes;
  } CHARACTERS[] = {
      {{{0x20, 0x21}}, 1},
      {{{0x23, 0x5b}}, 1},
      {{{0x5d, 0x7f}}, 1},
      {{{0xc2, 0xdf}, {0x80, 0xbf}}, 2},
      {{{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}}, 3},
      {{{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}}, 3},
      {{{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}}, 3},
      {{{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}}, 3},
      {{{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}, 4},
      {{{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}, 4},
      {{{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}}, 4},
  };
  for (size_t i = 0; i < sizeof CHARACTERS / sizeof *CHARACTERS && *all; i++) {
    front at = *from;
    for (int k = 0; k < CHARACTERS[i].bytes && *all; k++) {
      front next = {.count = 0};
      bool last = k + 1 == CHARACTERS[i].bytes;
      const uint8_t *range = CHARACTERS[i].range[k];
      rf_automaton_result result = spread_all(a, &at, range[0], range[1], last ? to : &next, all);
      if (result) return result;
      at = next;
    }
  }
  return RF_AUTOMATON_OK;
}

static bool same(const front *a, const front *b) {
  return a->count == b->count && !memcmp(a->state, b->state, (size_t)a->count * sizeof *a->state);
}

/* Finds the largest number of characters, up to `most`, that may follow if any plain character is
 * allowed at each place. */
static rf_automaton_result plain_characters(rf_constraint *c, int32_t state, int most, int *count) {
  front from = {{state}, 1};
  for (*count = 0; *count < most; ++*count) {
    front to = {.count = 0};
    bool all = true;
    rf_automaton_result result = spread_characters(&c->automaton, &from, &to, &all);
    if (result || !all) return result;
    if (same(&from, &to)) {
      *count = most;
      break;
    }
    from = to;
  }
  return RF_AUTOMATON_OK;
}

/* ---- masks ----------------------------------------------------------------------------------- */

static rf_automaton_result fill(rf_constraint *c, int32_t state, uint64_t *mask) {
  const rf_trie *t = c->trie;
  int64_t work = 0;
  int plain;
  rf_automaton_result result = plain_characters(c, state, t->part[RF_TRIE_LONG].chars, &plain);
  memset(mask, 0, (size_t)t->words * sizeof *mask);
  for (int i = 0; i < RF_TRIE_GROUPS && !result; i++) {
    const struct rf_trie_part *part = &t->part[i];
    if (i == RF_TRIE_SPECIAL && !c->automaton.grammar.free) continue;
    if (i < RF_TRIE_OTHER && plain >= part->chars)
      for (int64_t w = 0; w < t->words; w++) mask[w] |= part->mask[w];
    else result = add_tokens(c, state, part, mask, &work);
  }
  return result;
}

/* Finds the slot that was not used for the longest time. */
static int oldest(const rf_constraint *c) {
  int best = 0;
  for (int i = 1; i < c->slots && c->slot[best].state; i++)
    if (!c->slot[i].state || c->slot[i].used < c->slot[best].used) best = i;
  return best;
}

rf_automaton_result rf_mask_of(rf_constraint *c, int32_t *state, int *slot) {
  rf_automaton *a = &c->automaton;
  *slot = rf_automaton_at(a, *state)->mask;
  c->trie->masks++;
  if (*slot >= 0) {
    c->trie->mask_hits++;
    c->slot[*slot].used = ++c->clock;
    return RF_AUTOMATON_OK;
  }
  int to = oldest(c);
  uint64_t *mask = c->mask + (size_t)to * (size_t)c->trie->words;
  if (c->slot[to].state) a->now->state[c->slot[to].state].mask = -1;
  c->slot[to].state = 0;
  rf_automaton_result result = fill(c, *state, mask);
  if (result == RF_AUTOMATON_FULL) {
    result = rf_mask_move(c, state);
    if (!result) result = fill(c, *state, mask);
  }
  if (result) return result;
  bool any = false;
  for (int64_t w = 0; w < c->trie->words && !any; w++) any = mask[w] != 0;
  c->slot[to] = (struct rf_mask_slot){*state, !any, ++c->clock};
  a->now->state[*state].mask = *slot = to;
  return RF_AUTOMATON_OK;
}
