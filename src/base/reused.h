/* reused.h - a list of entries. A signal handler can read the list at any time and without a lock.
 * Therefore entries are never freed. They are used again. */
#ifndef RF_REUSED_H
#define RF_REUSED_H

#include <stdbool.h>
#include <stddef.h>

/* The first member of each entry. */
typedef struct rf_reused {
  struct rf_reused *next;
  bool taken; /* atomic */
} rf_reused;

/* Returns the first entry of a list. The field `next` leads to the other entries. The list itself
 * is a static pointer. */
static inline rf_reused *rf_reused_first(rf_reused *const *list) {
  return __atomic_load_n(list, __ATOMIC_ACQUIRE);
}
/* Takes an entry that nobody uses, or adds an entry of this number of zero bytes. NULL: out of
 * memory. */
void *rf_reused_take(rf_reused **list, size_t bytes);
/* Returns an entry to its list. Before the call, the caller marks the entry's content as
 * invalid. */
void rf_reused_release(rf_reused *entry);

#endif
