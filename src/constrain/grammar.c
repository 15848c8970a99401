/* grammar.c - see grammar.h. */
#include "constrain/grammar.h"

#include <stdlib.h>
#include <string.h>

void rf_grammar_free(rf_grammar *g) {
  free(g->edge);
  free(g->first);
  free(g->need);
  free(g->ends);
  *g = (rf_grammar){0};
}

int32_t rf_grammar_state(rf_grammar *g) {
  if (g->full || g->states == RF_GRAMMAR_STATES) {
    g->full = true;
    return 0;
  }
  if (g->states == g->state_room) {
    size_t room = g->state_room ? 2 * (size_t)g->state_room : 256;
    g->first = rf_must(realloc(g->first, room * sizeof *g->first));
    g->ends = rf_must(realloc(g->ends, room * sizeof *g->ends));
    g->state_room = (int32_t)room;
  }
  g->first[g->states] = -1;
  g->ends[g->states] = false;
  return g->states++;
}

int32_t rf_grammar_end(rf_grammar *g) {
  int32_t state = rf_grammar_state(g);
  if (!g->full) g->ends[state] = true;
  return state;
}

static void add_edge(rf_grammar *g, int32_t from, rf_arc edge) {
  if (g->full || g->edges == RF_GRAMMAR_EDGES) {
    g->full = true;
    return;
  }
  if (g->edges == g->edge_room) {
    size_t room = g->edge_room ? 2 * (size_t)g->edge_room : 512;
    g->edge = rf_must(realloc(g->edge, room * sizeof *g->edge));
    g->edge_room = (int32_t)room;
  }
  edge.next = g->first[from];
  g->first[from] = g->edges;
  g->edge[g->edges++] = edge;
}

void rf_grammar_skip(rf_grammar *g, int32_t from, int32_t to) {
  add_edge(g, from, (rf_arc){.to = to, .kind = RF_ARC_SKIP});
}

void rf_grammar_bytes(rf_grammar *g, int32_t from, int low, int high, int32_t to) {
  add_edge(g, from, (rf_arc){.to = to, .kind = RF_ARC_BYTES, .low = (uint8_t)low, .high = (uint8_t)high});
}

void rf_grammar_call(rf_grammar *g, int32_t from, int32_t rule, int32_t to) {
  add_edge(g, from, (rf_arc){.to = to, .rule = rule, .kind = RF_ARC_CALL});
}

int32_t rf_grammar_text(rf_grammar *g, int32_t from, const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes && !g->full; i++) {
    int32_t to = rf_grammar_state(g);
    rf_grammar_bytes(g, from, (uint8_t)text[i], (uint8_t)text[i], to);
    from = to;
  }
  return from;
}

int32_t rf_grammar_share(rf_grammar *g, int32_t from, const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes && !g->full; i++) {
    int32_t e = g->first[from];
    while (e >= 0 && (g->edge[e].kind != RF_ARC_BYTES || g->edge[e].low != (uint8_t)text[i]))
      e = g->edge[e].next;
    if (e < 0) return rf_grammar_text(g, from, text + i, bytes - i);
    from = g->edge[e].to;
  }
  return from;
}

/* ---- need ------------------------------------------------------------------------------------ */

/* The edges that enter each state s: entry[first[s + 1]] to entry[first[s + 2] - 1]. `now` has the
 * states of the current need, and `later` has the states whose need is larger by one. */
typedef struct needs {
  const rf_grammar *g;
  int32_t *first, *entry, *owner; /* (states + 2), (2 x edges), (edges) */
  int32_t *now, *later;
  int32_t now_count, later_count;
} needs;

static bool reads(const rf_arc *e, const bool has[256]) {
  bool any = e->kind != RF_ARC_BYTES;
  for (int b = e->low; b <= e->high && !any; b++) any = has[b];
  return any;
}

static void index_edges(needs *n, const bool has[256]) {
  const rf_grammar *g = n->g;
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t s = 0; s < g->states; s++)
      for (int32_t i = g->first[s]; i >= 0; i = g->edge[i].next) {
        const rf_arc *e = &g->edge[i];
        n->owner[i] = s;
        if (!reads(e, has)) continue;
        int32_t *to = &n->first[e->to + 1];
        if (pass) n->entry[--*to] = i;
        else ++*to;
        to = &n->first[e->rule + 1];
        if (e->kind != RF_ARC_CALL) continue;
        if (pass) n->entry[--*to] = i;
        else ++*to;
      }
    for (int32_t s = 0; s < g->states && !pass; s++) n->first[s + 1] += n->first[s];
    if (!pass) n->first[g->states + 1] = n->first[g->states];
  }
}

static void reach(needs *n, int32_t state, uint8_t need) {
  if (n->g->need[state] != RF_GRAMMAR_NEVER) return;
  n->g->need[state] = need;
  n->now[n->now_count++] = state;
}

static void enter(needs *n, int32_t i, uint8_t need) {
  const rf_arc *e = &n->g->edge[i];
  uint8_t after = n->g->need[e->to];
  if (e->kind == RF_ARC_CALL) {
    uint8_t inside = n->g->need[e->rule];
    if (after == RF_GRAMMAR_NEVER || inside == RF_GRAMMAR_NEVER) return;
    if (inside + 1 > after) after = (uint8_t)(inside + 1);
  }
  if (after <= need) reach(n, n->owner[i], need);
  else n->later[n->later_count++] = n->owner[i];
}

static void compute_need(rf_grammar *g, const bool has[256]) {
  size_t states = (size_t)g->states, edges = (size_t)g->edges;
  needs n = {.g = g,
             .first = rf_must(calloc(states + 2, sizeof *n.first)),
             .entry = rf_must(calloc(2 * edges + 1, sizeof *n.entry)),
             .owner = rf_must(calloc(edges + 1, sizeof *n.owner)),
             .now = rf_must(calloc(states + 1, sizeof *n.now)),
             .later = rf_must(calloc(2 * edges + 1, sizeof *n.later))};
  g->need = rf_must(malloc(states));
  memset(g->need, RF_GRAMMAR_NEVER, states);
  index_edges(&n, has);
  for (int32_t s = 0; s < g->states; s++)
    if (g->ends[s]) reach(&n, s, 0);
  for (uint8_t need = 0; need <= RF_GRAMMAR_DEPTH && n.now_count; need++) {
    for (int32_t k = 0; k < n.now_count; k++) {
      int32_t s = n.now[k];
      for (int32_t i = n.first[s + 1]; i < n.first[s + 2]; i++) enter(&n, n.entry[i], need);
    }
    n.now_count = 0;
    for (int32_t k = 0; k < n.later_count; k++) reach(&n, n.later[k], (uint8_t)(need + 1));
    n.later_count = 0;
  }
  free(n.first);
  free(n.entry);
  free(n.owner);
  free(n.now);
  free(n.later);
}

static void find_classes(rf_grammar *g) {
  bool begins[257] = {true};
  for (int32_t i = 0; i < g->edges; i++)
    if (g->edge[i].kind == RF_ARC_BYTES) begins[g->edge[i].low] = begins[g->edge[i].high + 1] = true;
  g->classes = 0;
  for (int b = 0; b < 256; b++) {
    if (begins[b]) g->byte_of[g->classes++] = (uint8_t)b;
    g->class_of[b] = (uint8_t)(g->classes - 1);
  }
}

rf_status rf_grammar_finish(rf_grammar *g, const bool has[256], rf_error *error) {
  if (g->full)
    return RF_FAIL(error, RAFTER_INVALID, "use smaller counts, or fewer alternatives",
                   "the form is too large (expected at most %d states and %d edges)", RF_GRAMMAR_STATES,
                   RF_GRAMMAR_EDGES);
  compute_need(g, has);
  find_classes(g);
  if (g->need[g->start] != RF_GRAMMAR_NEVER) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "check required properties that contain themselves",
                 "no text has this form (all texts need bytes that the tokenizer lacks, or more than %d "
                 "nested values)",
                 RF_GRAMMAR_DEPTH);
}
