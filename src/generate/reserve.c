/* reserve.c - see reserve.h. */
#include "generate/reserve.h"

#include <stdlib.h>

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

rf_claim rf_claim_of(const rf_sequence *sequence, int64_t start, int64_t length, int64_t prompt,
                     int64_t max_tokens, int64_t rows) {
  rf_claim claim = {.sequence = sequence, .start = start, .last = prompt + max_tokens - 1};
  claim.from = length >= prompt ? length : prompt - rows; /* the last chunk of a prompt has no drafts */
  claim.steps = length >= prompt - 1 ? claim.last - length : RF_STEPS_UNKNOWN;
  return claim;
}

rf_status rf_reserve_open(const rf_pages *pages, int most, int64_t rows, rf_reserve *r, rf_error *error) {
  *r = (rf_reserve){.claim = calloc((size_t)most, sizeof *r->claim),
                    .order = calloc((size_t)most, sizeof *r->order),
                    .held = calloc((size_t)most, sizeof *r->held),
                    .owned = calloc((size_t)most, sizeof *r->owned),
                    .rows = rows,
                    .most = most};
  bool good = r->claim && r->order && r->held && r->owned;
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    r->users[c] = calloc((size_t)pages->kv.of[c].pool + 1, sizeof *r->users[c]);
    good &= r->users[c] != NULL;
  }
  return good ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
}

void rf_reserve_close(rf_reserve *r) {
  free(r->claim);
  free(r->order);
  free(r->held);
  free(r->owned);
  for (int c = 0; c < RF_KV_CLASSES; c++) free(r->users[c]);
  *r = (rf_reserve){0};
}

/* Sorts by insertion, because qsort may allocate, and because the order changes little between
 * steps. */
static void sort(rf_reserve *r) {
  for (int i = 0; i < r->count; i++) {
    int at = i;
    while (at > 0 && r->claim[r->order[at - 1]].steps < r->claim[i].steps) {
      r->order[at] = r->order[at - 1];
      at--;
    }
    r->order[at] = i;
  }
}

static void add_users(rf_reserve *r, int class, int32_t by) {
  for (int i = 0; i < r->count; i++) {
    if (!r->claim[i].sequence) continue;
    const struct rf_page_table *t = &r->claim[i].sequence->of[class];
    for (int64_t k = t->first; k < t->end; k++) r->users[class][t->page[k]] += by;
  }
}

/* Returns true if the sequence will copy its last page before writing to it. A sequence that does
 * not grow never writes. */
static bool copies(const rf_reserve *r, const rf_pages *pages, int class, const rf_claim *claim) {
  const rf_sequence *s = claim->sequence;
  const struct rf_page_table *t = &s->of[class];
  return claim->last > s->length && s->length % pages->kv.page && t->end > t->first && !t->writes &&
         r->users[class][t->page[t->end - 1]] > 1;
}

/* Claims are ordered by their ends, with the last end first. Sets held[k] to the number of
 * different pages of the first k + 1 claims. Sets owned[k] to the number of columns of claim k that
 * need no new page. If a sequence will copy a page, the page counts only for its other users. */
static void count_held(rf_reserve *r, const rf_pages *pages, int class) {
  int32_t *users = r->users[class];
  int64_t held = 0;
  add_users(r, class, 1);
  for (int k = 0; k < r->count; k++) {
    const rf_claim *claim = &r->claim[r->order[k]];
    r->owned[k] = 0;
    if (claim->sequence) {
      const struct rf_page_table *t = &claim->sequence->of[class];
      r->owned[k] = t->end - copies(r, pages, class, claim);
    }
  }
  add_users(r, class, -1);
  for (int k = 0; k < r->count; k++) {
    const rf_claim *claim = &r->claim[r->order[k]];
    for (int64_t i = claim->sequence ? claim->sequence->of[class].first : 0; i < r->owned[k]; i++)
      held += !users[claim->sequence->of[class].page[i]]++;
    r->held[k] = held;
  }
  for (int k = 0; k < r->count; k++) {
    const rf_claim *claim = &r->claim[r->order[k]];
    for (int64_t i = claim->sequence ? claim->sequence->of[class].first : 0; i < r->owned[k]; i++)
      users[claim->sequence->of[class].page[i]] = 0;
  }
}

/* Returns the number of used pages in step `step`, in which the first `running` claims still
 * run. */
static int64_t pages_at(const rf_reserve *r, const rf_pages *pages, int running, int64_t step) {
  int64_t sum = r->held[running - 1];
  for (int k = 0; k < running; k++) {
    const rf_claim *claim = &r->claim[r->order[k]];
    if (step < claim->start) continue;
    int64_t tokens = smaller(claim->last, claim->from + (step - claim->start + 1) * r->rows),
            more = rf_ceil_div(tokens, pages->kv.page) - r->owned[k];
    if (more > 0) sum += more;
  }
  return sum;
}

/* Until the next answer ends, the number of used pages only grows. So it suffices to check the last
 * step of each answer. */
static bool lasts(rf_reserve *r, const rf_pages *pages, int class) {
  const int64_t pool = pages->kv.of[class].pool;
  count_held(r, pages, class);
  if (pages_at(r, pages, r->count, RF_STEPS_UNKNOWN) <= pool) return true;
  for (int k = r->count - 1; k >= 0; k--) {
    int64_t steps = r->claim[r->order[k]].steps;
    if (k + 1 < r->count && r->claim[r->order[k + 1]].steps == steps) continue;
    if (pages_at(r, pages, k + 1, steps - 1) > pool) return false;
  }
  return true;
}

/* A sequence releases pages before its window, but another sequence may still use such a page. So
 * each sequence counts with its maximum number of pages. */
static bool fits_window(const rf_reserve *r, const rf_pages *pages, int class) {
  int64_t sum = 0;
  for (int i = 0; i < r->count; i++) {
    const rf_claim *claim = &r->claim[i];
    int64_t need = rf_kv_pages(&pages->kv, (rf_kv_class) class, claim->last), held = 0;
    if (claim->sequence) held = claim->sequence->of[class].end - claim->sequence->of[class].first;
    sum += need > held ? need : held;
  }
  return sum <= pages->kv.of[class].pool;
}

bool rf_reserve_fits(rf_reserve *r, const rf_pages *pages) {
  if (!r->count) return true;
  sort(r);
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    if (!pages->kv.of[c].layers) continue;
    bool grows = pages->kv.of[c].most == pages->kv.columns;
    if (grows ? !lasts(r, pages, c) : !fits_window(r, pages, c)) return false;
  }
  return true;
}
