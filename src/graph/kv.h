/* kv.h - the size of the KV cache. The cache consists of pages of a fixed number of tokens. Layers
 * with a window have pages of their own, and keep only the pages that the window reaches. All
 * numbers of pages and bytes come from the functions of this file. */
#ifndef RF_KV_H
#define RF_KV_H

#include <float.h>

#include "graph/graph.h"

enum {
  RF_KV_PAGE = 256, /* default number of tokens in a page: one block of keys in attention */
  /* default maximum of tokens of one sequence in a forward pass */
  RF_PREFILL_ROWS = 256,
  /* Minimum number of tokens in a page. The number is a power of two. Attention kernels read this
   * many keys at once. */
  RF_KV_UNIT = 32,
};

/* An int8 cache stores each value x of a head as 127 x / m, where m is the largest |x| of that
 * head. If m < RF_NARROW_MIN, 127 / m would overflow, so the cache stores zeros. */
#define RF_NARROW_MIN (127 * FLT_MIN)

typedef enum rf_kv_class { RF_KV_GLOBAL, RF_KV_LOCAL, RF_KV_CLASSES } rf_kv_class;
const char *rf_kv_class_name(rf_kv_class class); /* "global" or "local" */
rf_kv_class rf_kv_class_of(const rf_model *model, int layer);

typedef struct rf_kv {
  int64_t page; /* tokens in a page */
  /* number of chips along the axis context; each chip stores every chips-th token of a page */
  int64_t chips;
  int64_t columns; /* number of columns of a page table: the pages of the longest context */
  int64_t sequences;
  rf_dtype dtype;
  struct rf_kv_layers {
    int64_t layers,     /* number of layers */
        window;         /* in tokens; 0: all keys */
    int64_t most;       /* maximum pages that one sequence holds at a time */
    int64_t page_bytes; /* bytes of one page over all layers of this class: keys, values and int8 scales */
    /* Number of pages in the cache: sequences * most. If a window bounds `most`, the cache has
     * pages for all slots. */
    int64_t pool;
  } of[RF_KV_CLASSES];
} rf_kv;
rf_kv rf_kv_of(const rf_model *model, const rf_build_options *options);

/* Maximum number of pages that a sequence of `tokens` tokens holds at a time. The number is 0 if
 * the class has no layers. Without a window, the number is ceil(tokens / page). With a window, the
 * number is at most ceil((window + chunk - 1) / page) + 1. */
int64_t rf_kv_pages(const rf_kv *kv, rf_kv_class class, int64_t tokens);
/* Bytes of the pages that a sequence of `tokens` tokens holds, over all layers of both classes. */
int64_t rf_kv_sequence_bytes(const rf_kv *kv, int64_t tokens);
/* Bytes of the cache that the next token reads. In layers with a window, the token reads only the
 * window. */
int64_t rf_kv_read_bytes(const rf_kv *kv, int64_t tokens);
/* The first position that a token at position `position` attends to. */
int64_t rf_kv_first_key(const rf_kv *kv, rf_kv_class class, int64_t position);

#endif
