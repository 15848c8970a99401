/* reused.h - a list of entries that a signal handler reads at any time and without a lock. So
 * entries are never freed, but used again. */
#ifndef RF_REUSED_H
#define RF_REUSED_H

#include <stdbool.h>
#include <stddef.h>

/* The first member of each entry. */
typedef struct rf_reused {
  struct rf_reused *next;
  bool taken; /* atomic */
} rf_reused;

/* The first entry of a list, whose entries follow by `next`. The list itself is a static pointer. */
static inline rf_reused *rf_reused_first(rf_reused *const *list) {
  return __atomic_load_n(list, __ATOMIC_ACQUIRE);
}
/* Takes an entry that nobody uses, or adds a zeroed one of this many bytes. NULL: out of memory. */
void *rf_reused_take(rf_reused **list, size_t bytes);
/* Returns an entry to its list. The caller has marked its content as invalid. */
void rf_reused_release(rf_reused *entry);

#endif
