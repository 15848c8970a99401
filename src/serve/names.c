/* names.c - see names.h. */
#include "serve/names.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct entry {
  char name[RF_ADAPTER_NAME + 1];
  int64_t id, created; /* id 0: not loaded yet */
} entry;

struct rf_named_adapters {
  pthread_mutex_t lock;
  entry *at;
  int count, room;
};

rf_named_adapters *rf_named_adapters_new(void) {
  rf_named_adapters *list = rf_must(calloc(1, sizeof *list));
  pthread_mutex_init(&list->lock, NULL);
  return list;
}

void rf_named_adapters_free(rf_named_adapters *list) {
  if (!list) return;
  pthread_mutex_destroy(&list->lock);
  free(list->at);
  free(list);
}

static entry *find(const rf_named_adapters *list, const char *name) {
  for (int i = 0; i < list->count; i++)
    if (!strcmp(list->at[i].name, name)) return &list->at[i];
  return NULL;
}

int64_t rf_named_adapter(rf_named_adapters *list, const char *name, int64_t *created) {
  pthread_mutex_lock(&list->lock);
  const entry *e = find(list, name);
  int64_t id = e ? e->id : 0;
  if (e && created) *created = e->created;
  pthread_mutex_unlock(&list->lock);
  return id;
}

bool rf_named_adapter_at(rf_named_adapters *list, int index, char name[RF_ADAPTER_NAME + 1],
                         int64_t *created) {
  bool found = false;
  pthread_mutex_lock(&list->lock);
  for (int i = 0; i < list->count && !found; i++) {
    if (!list->at[i].id || index--) continue;
    memcpy(name, list->at[i].name, sizeof list->at[i].name);
    *created = list->at[i].created;
    found = true;
  }
  pthread_mutex_unlock(&list->lock);
  return found;
}

bool rf_named_adapter_reserve(rf_named_adapters *list, const char *name) {
  pthread_mutex_lock(&list->lock);
  bool is_new = !find(list, name);
  if (is_new && list->count == list->room) {
    list->room = list->room ? 2 * list->room : 8;
    list->at = rf_must(realloc(list->at, (size_t)list->room * sizeof *list->at));
  }
  if (is_new) {
    entry *e = &list->at[list->count++];
    *e = (entry){.created = (int64_t)time(NULL)};
    snprintf(e->name, sizeof e->name, "%s", name);
  }
  pthread_mutex_unlock(&list->lock);
  return is_new;
}

int64_t rf_named_adapter_settle(rf_named_adapters *list, const char *name, int64_t id) {
  pthread_mutex_lock(&list->lock);
  entry *e = find(list, name);
  int64_t before = e ? e->id : 0;
  if (e && id) e->id = id;
  else if (e) *e = list->at[--list->count];
  pthread_mutex_unlock(&list->lock);
  return before;
}
