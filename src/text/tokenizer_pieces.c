/* tokenizer_pieces.c - the vocabulary, which maps ids to spellings and spellings to ids; growing
 * buffers. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static rf_status no_memory(rf_error *error) { return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory"); }

rf_status rf_buffer_reserve(rf_buffer *buffer, size_t more, rf_error *error) {
  size_t need = buffer->bytes + more;
  if (need <= buffer->capacity) return RAFTER_OK;
  size_t capacity = need + need / 2 + 64;
  char *grown = realloc(buffer->at, capacity);
  if (!grown) return no_memory(error);
  buffer->at = grown;
  buffer->capacity = capacity;
  return RAFTER_OK;
}

rf_status rf_buffer_add(rf_buffer *buffer, const char *at, size_t bytes, rf_error *error) {
  RF_TRY(rf_buffer_reserve(buffer, bytes, error));
  if (bytes) memcpy(buffer->at + buffer->bytes, at, bytes);
  buffer->bytes += bytes;
  return RAFTER_OK;
}

rf_status rf_ids_reserve(rf_ids *ids, int64_t more, rf_error *error) {
  int64_t need = ids->count + more;
  if (need <= ids->capacity) return RAFTER_OK;
  int64_t capacity = need + need / 2 + 16;
  int32_t *grown = realloc(ids->at, (size_t)capacity * sizeof *grown);
  if (!grown) return no_memory(error);
  ids->at = grown;
  ids->capacity = capacity;
  return RAFTER_OK;
}

rf_status rf_ids_add(rf_ids *ids, int32_t id, rf_error *error) {
  if (ids->count == ids->capacity) RF_TRY(rf_ids_reserve(ids, 1, error));
  ids->at[ids->count++] = id;
  return RAFTER_OK;
}

void rf_ids_free(rf_ids *ids) {
  free(ids->at);
  *ids = (rf_ids){0};
}

static rf_status rehash_pieces(rf_pieces *pieces, uint64_t slots, rf_error *error) {
  uint64_t *old = pieces->slots, old_slots = old ? pieces->mask + 1 : 0;
  uint64_t *made = calloc(slots, sizeof *made);
  if (!made) return no_memory(error);
  pieces->slots = made;
  pieces->mask = slots - 1;
  for (uint64_t i = 0; i < old_slots; i++) {
    if (!old[i]) continue;
    rf_span text = rf_pieces_at(pieces, (int64_t)(uint32_t)old[i] - 1);
    uint64_t slot = XXH3_64bits(text.at, text.bytes) & pieces->mask;
    while (made[slot]) slot = (slot + 1) & pieces->mask;
    made[slot] = old[i];
  }
  free(old);
  return RAFTER_OK;
}

rf_status rf_pieces_reserve(rf_pieces *pieces, int64_t ids, rf_error *error) {
  RF_TRY(rf_buffer_reserve(&pieces->text, 1, error)); /* an empty buffer also needs a valid pointer */
  if (ids <= pieces->capacity) return RAFTER_OK;
  int64_t capacity = ids < 1024 ? 1024 : ids + ids / 4;
  rf_piece_row *grown = realloc(pieces->row, (size_t)capacity * sizeof *grown);
  if (!grown) return no_memory(error);
  memset(grown + pieces->capacity, 0, (size_t)(capacity - pieces->capacity) * sizeof *grown);
  pieces->row = grown;
  pieces->capacity = capacity;
  uint64_t slots = 2048;
  while (slots < (uint64_t)capacity * 2) slots *= 2;
  return pieces->slots && pieces->mask + 1 >= slots ? RAFTER_OK : rehash_pieces(pieces, slots, error);
}

static rf_status enter_piece(rf_pieces *pieces, int64_t id, uint64_t hash, const char *where,
                             rf_error *error) {
  if (pieces->used * 2 > pieces->mask) RF_TRY(rehash_pieces(pieces, (pieces->mask + 1) * 2, error));
  uint64_t slot = hash & pieces->mask;
  for (; pieces->slots[slot]; slot = (slot + 1) & pieces->mask) {
    if (pieces->slots[slot] >> 32 != hash >> 32) continue;
    rf_span text = rf_pieces_at(pieces, id),
            other = rf_pieces_at(pieces, (int64_t)(uint32_t)pieces->slots[slot] - 1);
    if (other.bytes == text.bytes && !memcmp(other.at, text.at, text.bytes))
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "a piece is in the vocabulary twice (%s: '%.*s', ids %lld and %lld)", where,
                     (int)(text.bytes < 60 ? text.bytes : 60), text.at,
                     (long long)(uint32_t)pieces->slots[slot] - 1, (long long)id);
  }
  pieces->slots[slot] = (hash >> 32) << 32 | (uint64_t)(id + 1);
  pieces->used++;
  return RAFTER_OK;
}

rf_status rf_pieces_put(rf_pieces *pieces, int64_t id, rf_span text, rf_piece_type type, const char *where,
                        rf_error *error) {
  if (text.bytes > RF_PIECE_MAX)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "a piece is too long (%s, id %lld: expected at most %d bytes, got %zu)", where,
                   (long long)id, (int)RF_PIECE_MAX, text.bytes);
  RF_TRY(rf_pieces_reserve(pieces, id + 1, error));
  rf_piece_row *row = pieces->row + id;
  if (row->type)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "two pieces have one id (%s: %lld)", where, (long long)id);
  if (pieces->text.bytes + text.bytes > UINT32_MAX)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "the vocabulary is too large (%s)", where);
  *row = (rf_piece_row){(uint32_t)pieces->text.bytes, (uint32_t)text.bytes, (uint8_t)type, false};
  RF_TRY(rf_buffer_add(&pieces->text, text.at, text.bytes, error));
  if (id >= pieces->count) pieces->count = id + 1;
  return RAFTER_OK;
}

rf_status rf_pieces_list(rf_pieces *pieces, bool users, const char *where, rf_error *error) {
  enum { AHEAD = 32 };
  uint64_t hash[AHEAD];
  for (int64_t id = 0; id < pieces->count + AHEAD; id++) {
    const rf_piece_row *row = id < AHEAD ? NULL : &pieces->row[id - AHEAD];
    bool listed =
        row && row->bytes && (row->type == RF_PIECE_NORMAL || (users && row->type == RF_PIECE_USER));
    if (listed) RF_TRY(enter_piece(pieces, id - AHEAD, hash[id % AHEAD], where, error));
    if (id >= pieces->count) continue;
    rf_span text = rf_pieces_at(pieces, id);
    hash[id % AHEAD] = XXH3_64bits(text.at, text.bytes);
    __builtin_prefetch(&pieces->slots[hash[id % AHEAD] & pieces->mask], 1);
  }
  return RAFTER_OK;
}

static int32_t find_hashed(const rf_pieces *pieces, uint64_t hash, const char *at, size_t bytes) {
  for (uint64_t slot = hash & pieces->mask; pieces->slots[slot]; slot = (slot + 1) & pieces->mask) {
    if (pieces->slots[slot] >> 32 != hash >> 32) continue;
    int64_t id = (int64_t)(uint32_t)pieces->slots[slot] - 1;
    if (pieces->row[id].bytes == bytes && !memcmp(pieces->text.at + pieces->row[id].first, at, bytes))
      return (int32_t)id;
  }
  return -1;
}

int32_t rf_pieces_find(const rf_pieces *pieces, const char *at, size_t bytes) {
  return pieces->slots ? find_hashed(pieces, XXH3_64bits(at, bytes), at, bytes) : -1;
}

void rf_pieces_find_many(const rf_pieces *pieces, const rf_span *keys, int count, int32_t *ids) {
  uint64_t hash[RF_FIND_MAX];
  uint32_t row[RF_FIND_MAX]; /* 1 + id of the first candidate for each key; 0: the key has no candidate */
  for (int i = 0; i < count; i++) ids[i] = -1;
  if (!pieces->slots) return;
  for (int i = 0; i < count; i++) {
    hash[i] = XXH3_64bits(keys[i].at, keys[i].bytes);
    __builtin_prefetch(&pieces->slots[hash[i] & pieces->mask]);
  }
  for (int i = 0; i < count; i++) {
    row[i] = (uint32_t)pieces->slots[hash[i] & pieces->mask];
    if (row[i]) __builtin_prefetch(&pieces->row[row[i] - 1]);
  }
  for (int i = 0; i < count; i++)
    if (row[i]) __builtin_prefetch(pieces->text.at + pieces->row[row[i] - 1].first);
  for (int i = 0; i < count; i++) ids[i] = find_hashed(pieces, hash[i], keys[i].at, keys[i].bytes);
}

void rf_pieces_free(rf_pieces *pieces) {
  free(pieces->row);
  free(pieces->text.at);
  free(pieces->slots);
  *pieces = (rf_pieces){0};
}
