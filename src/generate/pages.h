/* pages.h - records which sequences own which pages of the KV cache. A sequence lists its pages in
 * one table per class of layers (global or local attention). Sequences with a common prefix list
 * the same pages, so the prefix is computed once. This file knows page ids and counts only; the
 * owner of the arena copies and clears the bytes. */
#ifndef RF_PAGES_H
#define RF_PAGES_H

#include "graph/kv.h"

typedef struct rf_pages {
  rf_kv kv;
  struct rf_page_pool {
    int32_t *holders; /* (pool): for each page, how many sequences list it. */
    int32_t *free;    /* (pool): stack of unused pages. */
    int64_t free_count;
  } pool[RF_KV_CLASSES];
  /* Called when page `to` replaces page `from`: the owner copies the contents. If `from` is -1,
   * page `to` was released. May be NULL. */
  void (*moved)(void *self, rf_kv_class class, int32_t from, int32_t to);
  void *self;
} rf_pages;

typedef struct rf_sequence {
  int32_t *tokens; /* (context): cached tokens. */
  int64_t length;  /* Number of cached tokens. */
  struct rf_page_table {
    int32_t *page;      /* (columns): page of each block of kv.page positions; -1: none. */
    int64_t first, end; /* Columns that have a page: [first, end). */
    int64_t need;       /* Maximum number of pages that the sequence may hold at once. */
    /* true: the sequence may write to its last page although other sequences list this page too.
     * Other sequences read only the shared positions of the page. */
    bool writes;
  } of[RF_KV_CLASSES];
} rf_sequence;

rf_status rf_pages_open(const rf_kv *kv, rf_pages *pages, rf_error *error);
void rf_pages_close(rf_pages *pages);
rf_status rf_sequence_open(const rf_pages *pages, int64_t context, rf_sequence *sequence, rf_error *error);
void rf_sequence_close(rf_sequence *sequence); /* Release its pages first. */

/* Sets how many tokens the sequence may reach; rf_pages_room reserves pages for them. */
void rf_sequence_expect(const rf_pages *pages, rf_sequence *sequence, int64_t tokens);
/* Makes the next `count` positions writable: releases pages beyond the attention window, takes new
 * pages, and replaces a shared last page by a copy. RAFTER_FAILED: out of pages; the sequence keeps
 * the pages taken so far and may be released. */
rf_status rf_sequence_extend(rf_pages *pages, rf_sequence *sequence, int64_t count, rf_error *error);
/* Whether the cache still has all keys that the next token after the first `length` tokens would
 * read. */
bool rf_sequence_reaches(const rf_pages *pages, const rf_sequence *sequence, int64_t length);
/* Makes the empty `sequence` list the pages of the first `length` tokens of `from`. Returns false
 * if a page that `sequence` needs was released. */
bool rf_sequence_share(rf_pages *pages, rf_sequence *sequence, const rf_sequence *from, int64_t length);
/* Keeps only the first `length` tokens. If keys for the next token are gone, changes nothing and
 * returns false. */
bool rf_sequence_cut(rf_pages *pages, rf_sequence *sequence, int64_t length);
void rf_sequence_release(rf_pages *pages, rf_sequence *sequence);

/* Whether there are enough pages for all `count` sequences to grow to their expected lengths. */
bool rf_pages_room(const rf_pages *pages, const rf_sequence *const *sequence, int count);
/* Checks, independently of the code that updates them, that page tables, holder counts and free
 * pages agree. Also checks that each sequence has the pages that its next token reads. */
rf_status rf_pages_check(const rf_pages *pages, const rf_sequence *const *sequence, int count,
                         rf_error *error);

#endif
