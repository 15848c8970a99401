/* reused.c - see reused.h. */
#include "base/reused.h"

#include <stdlib.h>

void *rf_reused_take(rf_reused **list, size_t bytes) {
  for (rf_reused *r = rf_reused_first(list); r; r = r->next)
    if (!__atomic_exchange_n(&r->taken, true, __ATOMIC_ACQ_REL)) return r;
  rf_reused *made = calloc(1, bytes);
  if (!made) return NULL;
  made->taken = true;
  made->next = rf_reused_first(list);
  while (!__atomic_compare_exchange_n(list, &made->next, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {}
  return made;
}

void rf_reused_release(rf_reused *entry) { __atomic_store_n(&entry->taken, false, __ATOMIC_RELEASE); }
