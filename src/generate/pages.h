/* pages.h - whose the pages of the KV cache are. A sequence names its pages in a table for each
 * class of layers; a page that several name is shared: a prefix that is walked once. Knows ids
 * and counts, never the bytes: who owns the arena copies and clears. */
#ifndef RF_PAGES_H
#define RF_PAGES_H

#include "graph/kv.h"

typedef struct rf_pages {
  rf_kv kv;
  struct rf_page_pool {
    int32_t *holders; /* (pool): sequences that name the page */
    int32_t *free;    /* (pool): the pages that nobody holds, the last one is handed out next */
    int64_t free_count;
  } pool[RF_KV_CLASSES];
  /* A page takes the place of another: its contents are to be copied, or (from -1) nobody holds
   * it any more. May be NULL. */
  void (*moved)(void *self, rf_kv_class class, int32_t from, int32_t to);
  void *self;
} rf_pages;

/* One text in the cache. */
typedef struct rf_sequence {
  int32_t *tokens; /* (context): those in the cache */
  int64_t length;  /* of them */
  struct rf_page_table {
    int32_t *page;      /* (columns): of each kv.page positions; -1: none */
    int64_t first, end; /* columns that are held: [first, end) */
    int64_t need;       /* pages it may come to hold at once */
    /* the last page may be written though others hold it: nobody else reads behind what stands
     * there */
    bool writes;
  } of[RF_KV_CLASSES];
} rf_sequence;

rf_status rf_pages_open(const rf_kv *kv, rf_pages *pages, rf_error *error);
void rf_pages_close(rf_pages *pages);
rf_status rf_sequence_open(const rf_pages *pages, int64_t context, rf_sequence *sequence, rf_error *error);
void rf_sequence_close(rf_sequence *sequence); /* its pages must have been released */

/* How far the sequence may grow: what rf_pages_room counts with. */
void rf_sequence_expect(const rf_pages *pages, rf_sequence *sequence, int64_t tokens);
/* Makes the next `count` positions writable: gives back pages that no window reaches any more,
 * takes new ones, and one in place of a last page that others hold. RAFTER_FAILED: out of pages;
 * what was taken stays taken, and the sequence may be released. */
rf_status rf_sequence_extend(rf_pages *pages, rf_sequence *sequence, int64_t count, rf_error *error);
/* Whether it holds what the token behind its first `length` ones reads. */
bool rf_sequence_reaches(const rf_pages *pages, const rf_sequence *sequence, int64_t length);
/* `sequence`, which is empty, begins with the first `length` tokens of `from`, whose pages they
 * share. false: some are gone. */
bool rf_sequence_share(rf_pages *pages, rf_sequence *sequence, const rf_sequence *from, int64_t length);
/* Forgets all but the first `length` tokens. false, and nothing is changed: keys that the next
 * token sees are gone. */
bool rf_sequence_cut(rf_pages *pages, rf_sequence *sequence, int64_t length);
/* Gives all pages back and forgets all tokens. */
void rf_sequence_release(rf_pages *pages, rf_sequence *sequence);

/* Whether all of these can grow as far as they expect, whatever the order. */
bool rf_pages_room(const rf_pages *pages, const rf_sequence *const *sequence, int count);
/* Proof by own code that the tables of all sequences, the holders and the free pages fit
 * together, and that each sequence has the pages its next token reads. */
rf_status rf_pages_check(const rf_pages *pages, const rf_sequence *const *sequence, int count,
                         rf_error *error);

#endif
