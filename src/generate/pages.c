/* pages.c - see pages.h. */
#include "generate/pages.h"

#include <stdlib.h>
#include <string.h>

#define FAULT(...) RF_FAIL(error, RAFTER_FAILED, "this is a bug in rafter; please report it", __VA_ARGS__)

typedef struct rf_page_pool page_pool;
typedef struct rf_page_table page_table;

rf_status rf_pages_open(const rf_kv *kv, rf_pages *pages, rf_error *error) {
  *pages = (rf_pages){.kv = *kv};
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    page_pool *pool = &pages->pool[c];
    int64_t count = kv->of[c].pool;
    pool->holders = calloc((size_t)count + 1, sizeof *pool->holders);
    pool->free = malloc(((size_t)count + 1) * sizeof *pool->free);
    if (!pool->holders || !pool->free)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening the pages of a cache");
    for (int64_t i = 0; i < count; i++) pool->free[i] = (int32_t)(count - 1 - i);
    pool->free_count = count;
  }
  return RAFTER_OK;
}

void rf_pages_close(rf_pages *pages) {
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    free(pages->pool[c].holders);
    free(pages->pool[c].free);
  }
  *pages = (rf_pages){0};
}

static int32_t take_page(rf_pages *pages, int class) {
  page_pool *pool = &pages->pool[class];
  if (!pool->free_count) return -1;
  int32_t page = pool->free[--pool->free_count];
  pool->holders[page]++;
  return page;
}

static void leave_page(rf_pages *pages, int class, int32_t page) {
  page_pool *pool = &pages->pool[class];
  if (--pool->holders[page] > 0) return;
  pool->free[pool->free_count++] = page;
  if (pages->moved) pages->moved(pages->self, (rf_kv_class) class, -1, page);
}

rf_status rf_sequence_open(const rf_pages *pages, int64_t context, rf_sequence *s, rf_error *error) {
  *s = (rf_sequence){.tokens = malloc((size_t)context * sizeof *s->tokens)};
  bool good = s->tokens != NULL;
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    size_t bytes = (size_t)pages->kv.columns * sizeof *s->of[c].page;
    s->of[c].page = malloc(bytes);
    good &= s->of[c].page != NULL;
    if (s->of[c].page) memset(s->of[c].page, 0xff, bytes);
  }
  return good ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a sequence");
}

void rf_sequence_close(rf_sequence *s) {
  free(s->tokens);
  for (int c = 0; c < RF_KV_CLASSES; c++) free(s->of[c].page);
  *s = (rf_sequence){0};
}

/* Returns the column of the first key that a token at `position` reads. */
static int64_t first_column(const rf_pages *pages, int class, int64_t position) {
  return rf_kv_first_key(&pages->kv, (rf_kv_class) class, position) / pages->kv.page;
}
static int64_t columns_of(const rf_pages *pages, int64_t tokens) {
  return (tokens + pages->kv.page - 1) / pages->kv.page;
}

static void drop_columns(rf_pages *pages, int class, page_table *t, int64_t from, int64_t to) {
  /* Pages are released in descending order. The free pages form a stack, so later sequences take
   * these pages in ascending order. */
  for (int64_t i = to - 1; i >= from; i--) {
    leave_page(pages, class, t->page[i]);
    t->page[i] = -1;
  }
}

static rf_status out_of_pages(const rf_pages *pages, int class, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "run fewer sequences at the same time",
                 "the KV cache is out of pages (%s layers: %lld pages of %lld tokens, none is free)",
                 rf_kv_class_name((rf_kv_class) class), (long long)pages->kv.of[class].pool,
                 (long long)pages->kv.page);
}

/* Prepares a write to a partly filled last page. Copies the page if other sequences also use it. */
static rf_status own_last_page(rf_pages *pages, int class, page_table *t, rf_error *error) {
  int32_t *last = &t->page[t->end - 1];
  if (t->writes || pages->pool[class].holders[*last] == 1) return RAFTER_OK;
  int32_t page = take_page(pages, class);
  if (page < 0) return out_of_pages(pages, class, error);
  if (pages->moved) pages->moved(pages->self, (rf_kv_class) class, *last, page);
  leave_page(pages, class, *last);
  *last = page;
  return RAFTER_OK;
}

rf_status rf_sequence_extend(rf_pages *pages, rf_sequence *s, int64_t count, rf_error *error) {
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    page_table *t = &s->of[c];
    if (!pages->kv.of[c].layers) continue;
    int64_t first = first_column(pages, c, s->length), end = columns_of(pages, s->length + count);
    if (first > t->end) first = t->end;
    if (first > t->first) {
      drop_columns(pages, c, t, t->first, first);
      t->first = first;
    }
    if (s->length % pages->kv.page && t->end > t->first) RF_TRY(own_last_page(pages, c, t, error));
    t->writes = true;
    for (; t->end < end; t->end++) {
      int32_t page = t->end < pages->kv.columns ? take_page(pages, c) : -1;
      if (page < 0) return out_of_pages(pages, c, error);
      t->page[t->end] = page;
    }
  }
  return RAFTER_OK;
}

bool rf_sequence_reaches(const rf_pages *pages, const rf_sequence *s, int64_t length) {
  if (length > s->length) return false;
  for (int c = 0; c < RF_KV_CLASSES && length > 0; c++)
    if (pages->kv.of[c].layers && first_column(pages, c, length) < s->of[c].first) return false;
  return true;
}

bool rf_sequence_share(rf_pages *pages, rf_sequence *s, const rf_sequence *from, int64_t length) {
  if (!rf_sequence_reaches(pages, from, length)) return false;
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    page_table *t = &s->of[c];
    if (!pages->kv.of[c].layers) continue;
    t->first = first_column(pages, c, length);
    t->end = columns_of(pages, length);
    t->writes = false;
    if (t->first > t->end) t->first = t->end;
    for (int64_t i = t->first; i < t->end; i++) pages->pool[c].holders[t->page[i] = from->of[c].page[i]]++;
  }
  memcpy(s->tokens, from->tokens, (size_t)length * sizeof *s->tokens);
  s->length = length;
  return true;
}

bool rf_sequence_cut(rf_pages *pages, rf_sequence *s, int64_t length) {
  if (!rf_sequence_reaches(pages, s, length)) return false;
  if (length == s->length) return true;
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    page_table *t = &s->of[c];
    if (!pages->kv.of[c].layers) continue;
    int64_t end = columns_of(pages, length);
    if (length == 0) {
      drop_columns(pages, c, t, t->first, t->end);
      t->first = 0;
    } else drop_columns(pages, c, t, end, t->end);
    t->end = end;
    t->writes = false; /* other sequences may read the positions after `length` */
  }
  s->length = length;
  return true;
}

/* Only this sequence has written the positions after `length`. So the next write needs no copy of
 * the last page, unlike after rf_sequence_cut. */
void rf_sequence_retract(rf_pages *pages, rf_sequence *s, int64_t length) {
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    page_table *t = &s->of[c];
    int64_t end = columns_of(pages, length);
    if (!pages->kv.of[c].layers || end >= t->end) continue;
    drop_columns(pages, c, t, end, t->end);
    t->end = end;
  }
  s->length = length;
}

void rf_sequence_release(rf_pages *pages, rf_sequence *s) {
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    drop_columns(pages, c, &s->of[c], s->of[c].first, s->of[c].end);
    s->of[c].first = s->of[c].end = 0;
  }
  s->length = 0;
}

int64_t rf_sequence_takes(const rf_pages *pages, const rf_sequence *s, rf_kv_class class, int64_t count) {
  const page_table *t = &s->of[class];
  if (!pages->kv.of[class].layers) return 0;
  int64_t more = columns_of(pages, s->length + count) - t->end;
  bool copies = s->length % pages->kv.page && t->end > t->first && !t->writes &&
                pages->pool[class].holders[t->page[t->end - 1]] > 1;
  return (more > 0 ? more : 0) + copies;
}

static rf_status check_class(const rf_pages *pages, int c, const rf_sequence *const *sequence, int count,
                             int32_t *named, rf_error *error) {
  const page_pool *pool = &pages->pool[c];
  int64_t total = pages->kv.of[c].pool, page = pages->kv.page, window = pages->kv.of[c].window;
  /* of each page: the last column that lists it, and 1 + the last sequence that lists it */
  int32_t *column = named + total + 1, *lister = column + total + 1;
  const char *class = rf_kv_class_name((rf_kv_class)c);
  for (int i = 0; i < count; i++) {
    const rf_sequence *s = sequence[i];
    for (int64_t k = 0; k < pages->kv.columns; k++) {
      int32_t id = s->of[c].page[k];
      if (id < -1 || id >= total)
        return FAULT("a page id of sequence %d is out of range (%s layers, column %lld: %d)", i, class,
                     (long long)k, id);
      if (id < 0) continue;
      if (lister[id] == i + 1)
        return FAULT("sequence %d lists page %d twice (%s layers, columns %d and %lld)", i, id, class,
                     column[id], (long long)k);
      if (named[id]++ && column[id] != k)
        return FAULT("page %d belongs to two sequences (%s layers, columns %d and %lld)", id, class,
                     column[id], (long long)k);
      column[id] = (int32_t)k;
      lister[id] = i + 1;
    }
    for (int64_t p = window > 0 && s->length >= window ? s->length - window + 1 : 0; p < s->length;
         p = (p / page + 1) * page)
      if (s->of[c].page[p / page] < 0)
        return FAULT(
            "sequence %d has released a page that its next token reads (%s layers, position %lld of %lld)", i,
            class, (long long)p, (long long)s->length);
  }
  for (int64_t k = 0; k < pool->free_count; k++) {
    int32_t id = pool->free[k];
    if (id < 0 || id >= total || named[id] == -1)
      return FAULT("page %d is free twice (%s layers)", id, class);
    if (named[id] > 0)
      return FAULT("page %d is both free and listed by %d sequences (%s layers)", id, named[id], class);
    named[id] = -1;
  }
  for (int64_t id = 0; id < total; id++) {
    int32_t holders = named[id] < 0 ? 0 : named[id];
    if (pool->holders[id] != holders)
      return FAULT("page %lld is listed by %d sequences (%s layers: expected %d)", (long long)id, holders,
                   class, pool->holders[id]);
    if (!named[id])
      return FAULT("page %lld is lost (%s layers: neither listed nor free)", (long long)id, class);
  }
  return RAFTER_OK;
}

/* Checks all pages that sequences `a` and `b` share. The tokens of both sequences must be equal up
 * to the end of each shared page, or up to the end of the shorter sequence. */
static rf_status check_shared(const rf_pages *pages, int c, const rf_sequence *a, const rf_sequence *b,
                              int64_t columns, rf_error *error) {
  for (int64_t k = 0; k < columns; k++) {
    if (a->of[c].page[k] < 0 || a->of[c].page[k] != b->of[c].page[k]) continue;
    int64_t both = a->length < b->length ? a->length : b->length,
            end = (k + 1) * pages->kv.page < both ? (k + 1) * pages->kv.page : both;
    if (end > 0 && memcmp(a->tokens, b->tokens, (size_t)end * sizeof *a->tokens))
      return FAULT("page %d belongs to two sequences with different tokens (%s layers, column %lld)",
                   a->of[c].page[k], rf_kv_class_name((rf_kv_class)c), (long long)k);
  }
  return RAFTER_OK;
}

/* Number of columns up to the last one in which any sequence lists a page. */
static int64_t columns_in_use(const rf_pages *pages, int c, const rf_sequence *const *sequence, int count) {
  int64_t used = 0;
  for (int i = 0; i < count; i++)
    for (int64_t k = pages->kv.columns; k > used; k--)
      if (sequence[i]->of[c].page[k - 1] >= 0) used = k;
  return used;
}

rf_status rf_pages_check(const rf_pages *pages, const rf_sequence *const *sequence, int count,
                         rf_error *error) {
  for (int c = 0; c < RF_KV_CLASSES; c++) {
    size_t total = (size_t)pages->kv.of[c].pool + 1;
    if (!pages->kv.of[c].layers) continue;
    int32_t *named = calloc(3 * total, sizeof *named);
    if (!named) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while checking pages");
    rf_status status = check_class(pages, c, sequence, count, named, error);
    free(named);
    RF_TRY(status);
    int64_t columns = columns_in_use(pages, c, sequence, count);
    for (int i = 0; i < count; i++)
      for (int j = 0; j < i; j++) RF_TRY(check_shared(pages, c, sequence[i], sequence[j], columns, error));
  }
  return RAFTER_OK;
}
