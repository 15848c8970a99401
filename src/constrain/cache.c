/* cache.c - the constraints of one model. */
#include "constrain/constrain.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct kept {
  struct kept *next;
  rf_text_form form;
  size_t bytes;
  rf_constraint *constraint;
  char text[];
} kept;

struct rf_constraints {
  const rf_tokenizer *tokenizer;
  int64_t vocab;
  pthread_mutex_t lock;
  rf_trie *trie; /* NULL: not read yet */
  kept *first;   /* list of the cached constraints, the latest first */
  int count;
  int64_t compiled, found;
  double seconds;
};

rf_constraints *rf_constraints_open(const rf_tokenizer *tokenizer, int64_t vocab) {
  rf_constraints *c = rf_must(calloc(1, sizeof *c));
  c->tokenizer = tokenizer;
  c->vocab = vocab;
  pthread_mutex_init(&c->lock, NULL);
  return c;
}

static void drop(kept *k) {
  rf_constraint_release(k->constraint);
  free(k);
}

void rf_constraints_close(rf_constraints *c) {
  if (!c) return;
  for (kept *k = c->first, *next; k; k = next) {
    next = k->next;
    drop(k);
  }
  rf_trie_close(c->trie);
  pthread_mutex_destroy(&c->lock);
  free(c);
}

static rf_status read_vocabulary(rf_constraints *c, rf_error *error) {
  if (c->trie) return RAFTER_OK;
  if (!c->tokenizer)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "a form of answers needs a model with a tokenizer, and this model has none");
  return rf_trie_open(c->tokenizer, c->vocab, &c->trie, error);
}

/* Finds an entry, moves it to the front and adds a reference to its constraint. */
static rf_constraint *find(rf_constraints *c, rf_text_form form, const char *text, size_t bytes) {
  for (kept **at = &c->first; *at; at = &(*at)->next) {
    kept *k = *at;
    if (k->form != form || k->bytes != bytes || memcmp(k->text, text, bytes)) continue;
    *at = k->next;
    k->next = c->first;
    c->first = k;
    return rf_constraint_hold(k->constraint);
  }
  return NULL;
}

static void keep(rf_constraints *c, rf_text_form form, const char *text, size_t bytes,
                 rf_constraint *constraint) {
  kept *k = malloc(sizeof *k + bytes + 1);
  if (!k) return;
  *k = (kept){.next = c->first, .form = form, .bytes = bytes, .constraint = rf_constraint_hold(constraint)};
  memcpy(k->text, text, bytes);
  c->first = k;
  if (c->count < RF_TEXT_KEPT) {
    c->count++;
    return;
  }
  kept **last = &c->first;
  while ((*last)->next) last = &(*last)->next;
  drop(*last);
  *last = NULL;
}

rf_status rf_constraints_get(rf_constraints *c, rf_text_form form, const char *text, size_t bytes,
                             rf_constraint **out, rf_error *error) {
  rf_constraint *made = NULL;
  double start = rf_now_seconds();
  pthread_mutex_lock(&c->lock);
  rf_status status = read_vocabulary(c, error);
  *out = status == RAFTER_OK ? find(c, form, text, bytes) : NULL;
  c->found += *out != NULL;
  pthread_mutex_unlock(&c->lock);
  if (status != RAFTER_OK || *out) return status;
  status = rf_constraint_open(c->trie, form, text, bytes, &made, error);
  pthread_mutex_lock(&c->lock);
  c->compiled += status == RAFTER_OK;
  c->seconds += rf_now_seconds() - start;
  if (status == RAFTER_OK) {
    *out = find(c, form, text, bytes); /* another thread may have made the same constraint at the same time */
    if (!*out) keep(c, form, text, bytes, *out = made);
    else rf_constraint_release(made);
  }
  pthread_mutex_unlock(&c->lock);
  return status;
}

rf_constraint_counts rf_constraints_counts(rf_constraints *c) {
  pthread_mutex_lock(&c->lock);
  rf_constraint_counts counts = {.compiled = c->compiled, .found = c->found, .compile_seconds = c->seconds};
  rf_trie *trie = c->trie;
  pthread_mutex_unlock(&c->lock);
  if (!trie) return counts;
  counts.masks = trie->masks;
  counts.mask_hits = trie->mask_hits;
  counts.mask_seconds = (double)trie->mask_ns * 1e-9;
  return counts;
}
