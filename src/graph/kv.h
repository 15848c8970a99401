/* kv.h - the KV cache: pages of a fixed number of tokens, of one kind for layers that see all
 * keys and of another for windowed layers, which need only what their window touches. The one
 * place that says how many pages and bytes a sequence takes: builder, plans, generator and
 * reports ask it. */
#ifndef RF_KV_H
#define RF_KV_H

#include <float.h>

#include "graph/graph.h"

enum {
  RF_KV_PAGE = 256, /* tokens of a page: a block of attention's keys */
  /* rows of a walk that belong to one sequence, at most, where nobody says otherwise */
  RF_PREFILL_ROWS = 256,
  /* a page is a power of two of at least this many tokens: the keys that attention's kernels
   * take at once */
  RF_KV_UNIT = 32,
};

/* An i8 cache keeps 127 x / m of a head, m its largest |x|. Below this 127 / m is no number any
 * more: the head is zeros. */
#define RF_NARROW_LEAST (127 * FLT_MIN)

typedef enum rf_kv_class { RF_KV_GLOBAL, RF_KV_LOCAL, RF_KV_CLASSES } rf_kv_class;
const char *rf_kv_class_name(rf_kv_class class); /* "global", "local" */
rf_kv_class rf_kv_class_of(const rf_model *model, int layer);

typedef struct rf_kv {
  int64_t page; /* tokens, of which each of `chips` (the context axis) has every n-th one */
  int64_t chips;
  int64_t columns; /* of a page table: pages of the whole context */
  int64_t sequences;
  rf_dtype dtype;
  struct rf_kv_layers {
    int64_t layers, window; /* window 0: all keys */
    int64_t most;           /* pages that a sequence holds at once, whatever its length */
    int64_t page_bytes;     /* of one page in all these layers: keys, values, and the scales of int8 */
    int64_t pool;           /* pages there are: sequences x most */
  } of[RF_KV_CLASSES];
} rf_kv;
rf_kv rf_kv_of(const rf_model *model, const rf_build_options *options);

/* Pages that a sequence of at most `tokens` tokens holds at once: global ceil(tokens / page);
 * local at most ceil((window + chunk - 1) / page) + 1. 0 for a class without layers. */
int64_t rf_kv_pages(const rf_kv *kv, rf_kv_class class, int64_t tokens);
/* Their bytes, in all layers of both classes. */
int64_t rf_kv_sequence_bytes(const rf_kv *kv, int64_t tokens);
/* Of these what the next token may read: in windowed layers what its window reaches, without the
 * rest of pages. */
int64_t rf_kv_read_bytes(const rf_kv *kv, int64_t tokens);
/* The first position whose keys a token at `position` sees. */
int64_t rf_kv_first_key(const rf_kv *kv, rf_kv_class class, int64_t position);

#endif
