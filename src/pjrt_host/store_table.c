/* store_table.c - see store.h: keys and their values, in chains of equal hashes. */
#include <stdlib.h>
#include <string.h>

#include "pjrt_host/store.h"

enum { CHAINS = 1 << 14 };

typedef struct entry {
  struct entry *next;
  size_t key_bytes, value_bytes;
  char *value;
  char key[];
} entry;

struct store_table {
  entry *chain[CHAINS];
  size_t keys, bytes;
};

store_table *store_table_new(void) { return calloc(1, sizeof(store_table)); }

static void free_entry(entry *e) {
  free(e->value);
  free(e);
}

void store_table_free(store_table *table) {
  for (size_t i = 0; table && i < CHAINS; i++)
    for (entry *e = table->chain[i], *next; e; e = next) {
      next = e->next;
      free_entry(e);
    }
  free(table);
}

/* Returns the pointer that points to the entry of a key, or the pointer at the end of the key's
 * chain. */
static entry **place_of(const store_table *table, const char *key, size_t bytes) {
  uint32_t hash = 2166136261u; /* FNV-1a */
  for (size_t i = 0; i < bytes; i++) hash = (hash ^ (unsigned char)key[i]) * 16777619u;
  entry **at = (entry **)&table->chain[hash % CHAINS];
  while (*at && ((*at)->key_bytes != bytes || memcmp((*at)->key, key, bytes))) at = &(*at)->next;
  return at;
}

const char *store_table_put(store_table *table, const store_frame *frame) {
  size_t key_bytes = frame->head.key_bytes, value_bytes = frame->head.value_bytes;
  entry **at = place_of(table, frame->key, key_bytes);
  size_t old = *at ? (*at)->value_bytes : 0;
  if (table->bytes - old + value_bytes + (*at ? 0 : key_bytes) > STORE_ALL_BYTES)
    return "the store is full (expected at most 1 GiB of keys and values)";
  if (!*at && table->keys == STORE_KEYS) return "the store is full (expected at most 1048576 keys)";
  char *value = malloc(value_bytes + 1);
  if (value && !*at) *at = calloc(1, sizeof **at + key_bytes);
  if (!value || !*at) {
    free(value);
    return "the host of the store has no memory left";
  }
  memcpy(value, frame->value, value_bytes);
  if (!(*at)->value) {
    memcpy((*at)->key, frame->key, key_bytes);
    (*at)->key_bytes = key_bytes;
    table->keys++;
    table->bytes += key_bytes;
  }
  free((*at)->value);
  (*at)->value = value;
  (*at)->value_bytes = value_bytes;
  table->bytes += value_bytes - old;
  return NULL;
}

bool store_table_find(const store_table *table, const char *key, size_t key_bytes, const char **value,
                      size_t *value_bytes) {
  const entry *e = *place_of(table, key, key_bytes);
  if (!e) return false;
  *value = e->value;
  *value_bytes = e->value_bytes;
  return true;
}

void store_table_remove(store_table *table, const char *key, size_t key_bytes) {
  entry **at = place_of(table, key, key_bytes), *e = *at;
  if (!e) return;
  *at = e->next;
  table->keys--;
  table->bytes -= e->key_bytes + e->value_bytes;
  free_entry(e);
}
