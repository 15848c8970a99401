/* pages.h - records which sequences use which pages of the KV cache. A sequence has one table of
 * pages for each class of layers (global or local attention). Sequences with a common prefix have
 * the same pages in their tables, so the prefix is computed once. This file handles only page ids
 * and counts. The owner of the arena copies and clears the bytes of pages. */
#ifndef RF_PAGES_H
#define RF_PAGES_H

#include "graph/kv.h"

typedef struct rf_pages {
  rf_kv kv;
  struct rf_page_pool {
    int32_t *holders; /* (pool): number of sequences that have each page. */
    int32_t *free;    /* (pool): stack of unused pages. */
    int64_t free_count;
  } pool[RF_KV_CLASSES];
  /* Called when page `to` replaces page `from`, so that the owner copies the contents. If `from` is
   * -1, page `to` was released. NULL: no calls. */
  void (*moved)(void *self, rf_kv_class class, int32_t from, int32_t to);
  void *self;
} rf_pages;

typedef struct rf_sequence {
  int32_t *tokens; /* (context): cached tokens. */
  int64_t length;  /* Number of cached tokens. */
  struct rf_page_table {
    int32_t *page;      /* (columns): page of each block of kv.page positions; -1: no page. */
    int64_t first, end; /* Columns `first` to `end` - 1 have a page. */
    /* true: the sequence may write to its last page, even if other sequences also use this page.
     * Other sequences read only the positions of the common prefix. */
    bool writes;
  } of[RF_KV_CLASSES];
} rf_sequence;

rf_status rf_pages_open(const rf_kv *kv, rf_pages *pages, rf_error *error);
void rf_pages_close(rf_pages *pages);
rf_status rf_sequence_open(const rf_pages *pages, int64_t context, rf_sequence *sequence, rf_error *error);
void rf_sequence_close(rf_sequence *sequence); /* before this call, release the sequence's pages */

/* Makes the next `count` positions writable. Releases pages before the attention window, takes new
 * pages, and replaces a shared last page by a copy. Returns RAFTER_FAILED if the cache is out of
 * pages. After a failure, the sequence keeps its pages, and the caller may release the sequence. */
rf_status rf_sequence_extend(rf_pages *pages, rf_sequence *sequence, int64_t count, rf_error *error);
/* Returns true if the cache still has all keys that a token after the first `length` tokens would
 * read. */
bool rf_sequence_reaches(const rf_pages *pages, const rf_sequence *sequence, int64_t length);
/* Gives the empty `sequence` the pages of the first `length` tokens of `from`. Returns false if a
 * page that `sequence` needs was released. */
bool rf_sequence_share(rf_pages *pages, rf_sequence *sequence, const rf_sequence *from, int64_t length);
/* Keeps only the first `length` tokens. If the cache no longer has the keys for the next token,
 * returns false and changes nothing. */
bool rf_sequence_cut(rf_pages *pages, rf_sequence *sequence, int64_t length);
/* Removes tokens that were written after the last rf_sequence_extend, and keeps the first `length`
 * tokens. */
void rf_sequence_retract(rf_pages *pages, rf_sequence *sequence, int64_t length);
void rf_sequence_release(rf_pages *pages, rf_sequence *sequence);

/* Returns the number of pages of a class that rf_sequence_extend would take for `count`
 * positions. */
int64_t rf_sequence_takes(const rf_pages *pages, const rf_sequence *sequence, rf_kv_class class,
                          int64_t count);
/* Checks that page tables, counts of holders and free pages agree. Also checks that each sequence
 * has the pages for its next token. This code is independent of the code that updates the
 * tables. */
rf_status rf_pages_check(const rf_pages *pages, const rf_sequence *const *sequence, int count,
                         rf_error *error);

#endif
