/* tokenizer_bpe.c - byte pair encoding. The algorithm repeatedly merges the two neighbouring
 * symbols whose pair has the lowest rank. Of pairs with equal ranks, the leftmost is merged first.
 * Merging ends when no pair can be merged. If no piece contains two characters as neighbours, no
 * merge can join these characters. So without a pre-tokenizer (SentencePiece), a text is split
 * between such characters into short words. The ids of each word are cached. Long words use a heap,
 * so that any text takes O(n log n) time. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { SHORT_WORD = 48, INSIDE_BITS = 22 };
#define NO_ID UINT32_MAX

static inline uint64_t pair_slot(const rf_bpe *bpe, uint32_t left, uint32_t right) {
  uint64_t key = ((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15);
  return (key >> 32 ^ key) & bpe->mask;
}

static inline const rf_pair *find_pair(const rf_bpe *bpe, uint32_t left, uint32_t right) {
  for (uint64_t slot = pair_slot(bpe, left, right);; slot = (slot + 1) & bpe->mask) {
    const rf_pair *pair = &bpe->slots[slot];
    if ((pair->left == left && pair->right == right) || pair->rank == RF_NO_RANK) return pair;
  }
}

rf_status rf_bpe_reserve(rf_bpe *bpe, int64_t pairs, rf_error *error) {
  uint64_t slots = 16;
  while (slots < (uint64_t)pairs * 2) slots *= 2;
  if (bpe->slots && bpe->mask + 1 >= slots) return RAFTER_OK;
  rf_bpe grown = {.mask = slots - 1, .slots = malloc(slots * sizeof *grown.slots)};
  if (!grown.slots) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  memset(grown.slots, 0xff, slots * sizeof *grown.slots);
  for (uint64_t i = 0; bpe->slots && i <= bpe->mask; i++)
    if (bpe->slots[i].rank != RF_NO_RANK)
      *(rf_pair *)find_pair(&grown, bpe->slots[i].left, bpe->slots[i].right) = bpe->slots[i];
  free(bpe->slots);
  bpe->slots = grown.slots;
  bpe->mask = grown.mask;
  return RAFTER_OK;
}

void rf_bpe_expect(const rf_bpe *bpe, uint32_t left, uint32_t right) {
  __builtin_prefetch(&bpe->slots[pair_slot(bpe, left, right)], 1);
}

void rf_bpe_pair(rf_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t id) {
  rf_pair *pair = (rf_pair *)find_pair(bpe, left, right);
  bpe->pairs += pair->rank == RF_NO_RANK;
  *pair = (rf_pair){left, right, rank, id};
}

static int by_rank(const void *a, const void *b) {
  const rf_pair *x = a, *y = b;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

rf_pair *rf_bpe_sorted(const rf_bpe *bpe) {
  rf_pair *order = malloc(((size_t)bpe->pairs + 1) * sizeof *order);
  size_t count = 0;
  for (uint64_t i = 0; order && bpe->slots && i <= bpe->mask; i++)
    if (bpe->slots[i].rank != RF_NO_RANK) order[count++] = bpe->slots[i];
  if (order) qsort(order, count, sizeof *order, by_rank);
  return order;
}

static inline uint32_t inside_bit(uint32_t left, uint32_t right) {
  return (left * 0x9E3779B1u ^ right * 0x85EBCA6Bu) >> (32 - INSIDE_BITS);
}

rf_status rf_bpe_finish(rf_tokenizer *tokenizer, const char *where, rf_error *error) {
  rf_bpe *bpe = &tokenizer->bpe;
  const rf_pieces *pieces = &tokenizer->pieces;
  RF_TRY(rf_bpe_reserve(bpe, bpe->pairs, error));
  for (int byte = 0; byte < 256; byte++) {
    char c = (char)byte;
    bpe->symbol[byte] = byte < 128 || bpe->byte_level ? rf_pieces_find(pieces, &c, 1) : -1;
  }
  if (bpe->byte_level) return RAFTER_OK;
  bpe->inside = calloc((1u << INSIDE_BITS) / 64, sizeof *bpe->inside);
  if (!bpe->inside) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int64_t id = 0; id < pieces->count; id++) {
    rf_span piece = rf_pieces_at(pieces, id);
    const char *at = piece.at, *end = at + piece.bytes;
    if (pieces->row[id].type == RF_PIECE_CONTROL || pieces->row[id].type == RF_PIECE_BYTE) continue;
    uint32_t left = 0;
    for (int n; at < end; at += n) {
      n = rf_utf8_length(at, end);
      if (!n)
        return RF_FAIL(error, RAFTER_FAILED, NULL, "a piece is not valid UTF-8 (%s, id %lld)", where,
                       (long long)id);
      uint32_t right = rf_utf8_code(at, n), bit = inside_bit(left, right);
      if (at > piece.at) bpe->inside[bit / 64] |= UINT64_C(1) << bit % 64;
      left = right;
    }
  }
  return RAFTER_OK;
}

void rf_bpe_free(rf_bpe *bpe) {
  free(bpe->slots);
  free(bpe->inside);
  free(bpe->rank);
}

/* ---- symbols --------------------------------------------------------------------------------- */

/* Returns the symbol of the character or byte at `at`, or NO_ID if the vocabulary lacks it. *bytes
 * is the size of the character. */
static inline uint32_t symbol_at(const rf_tokenizer *tokenizer, const char *at, const char *end, int *bytes) {
  unsigned char c = (unsigned char)*at;
  *bytes = 1;
  if (tokenizer->bpe.byte_level || c < 0x80) return (uint32_t)tokenizer->bpe.symbol[c];
  *bytes = rf_utf8_length(at, end);
  if (!*bytes) {
    *bytes = 1;
    return NO_ID;
  }
  return (uint32_t)rf_pieces_find(&tokenizer->pieces, at, (size_t)*bytes);
}

/* Looks up the merge of `left` with `right`, and stores the merge's rank and result in `left`. The
 * text of `right` ends at byte `end` of the word. The symbol at the end of a word has no text. */
static inline void rank_symbol(const rf_tokenizer *tokenizer, const char *word, rf_symbol *left,
                               const rf_symbol *right, uint32_t end) {
  const rf_bpe *bpe = &tokenizer->bpe;
  left->rank = RF_NO_RANK;
  if (bpe->rank) {
    uint32_t bytes = end - left->first;
    if (right->first == end || bytes > bpe->longest) return;
    int32_t id = rf_pieces_find(&tokenizer->pieces, word + left->first, bytes);
    if (id >= 0) {
      left->rank = bpe->rank[id];
      left->merged = (uint32_t)id;
    }
    return;
  }
  if (left->id == NO_ID || right->id == NO_ID) return;
  const rf_pair *pair = find_pair(bpe, left->id, right->id);
  left->rank = pair->rank;
  left->merged = pair->id;
}

static rf_status put_symbol(rf_encoding *e, uint32_t id, const char *at, size_t bytes, rf_error *error) {
  if (id != NO_ID && id < (uint32_t)e->tokenizer->pieces.count) return rf_ids_add(e->ids, (int32_t)id, error);
  return rf_encode_unknown(e, at, bytes, error);
}

/* ---- merging --------------------------------------------------------------------------------- */

static rf_status merge_short(rf_encoding *e, const char *word, size_t bytes, rf_error *error) {
  const rf_tokenizer *tokenizer = e->tokenizer;
  rf_symbol s[SHORT_WORD + 2];
  int count = 0, n;
  for (const char *at = word; at < word + bytes; at += n) {
    s[count].first = (uint32_t)(at - word);
    s[count++].id = symbol_at(tokenizer, at, word + bytes, &n);
  }
  s[count] = s[count + 1] = (rf_symbol){.id = NO_ID, .first = (uint32_t)bytes};
  for (int i = 0; i < count; i++) rank_symbol(tokenizer, word, &s[i], &s[i + 1], s[i + 2].first);
  for (;;) {
    int best = -1;
    uint32_t rank = RF_NO_RANK;
    for (int i = 0; i + 1 < count; i++)
      if (s[i].rank < rank) {
        rank = s[i].rank;
        best = i;
      }
    if (best < 0) break;
    s[best].id = s[best].merged;
    memmove(s + best + 1, s + best + 2,
            (size_t)(count - best) * sizeof *s); /* this also moves the two symbols that mark the end */
    count--;
    rank_symbol(tokenizer, word, &s[best], &s[best + 1], s[best + 2].first);
    if (best) rank_symbol(tokenizer, word, &s[best - 1], &s[best], s[best + 1].first);
  }
  for (int i = 0; i < count; i++)
    RF_TRY(put_symbol(e, s[i].id, word + s[i].first, s[i + 1].first - s[i].first, error));
  return RAFTER_OK;
}

/* A binary heap of rank << 32 | symbol. The lowest rank comes first, and for equal ranks the
 * leftmost symbol. */
static void sift_down(uint64_t *heap, size_t count, size_t i) {
  uint64_t value = heap[i];
  for (size_t child; (child = 2 * i + 1) < count; i = child) {
    if (child + 1 < count && heap[child + 1] < heap[child]) child++;
    if (heap[child] >= value) break;
    heap[i] = heap[child];
  }
  heap[i] = value;
}

static void push_heap(uint64_t *heap, size_t *count, uint64_t value) {
  size_t i = (*count)++;
  while (i && heap[(i - 1) / 2] > value) {
    heap[i] = heap[(i - 1) / 2];
    i = (i - 1) / 2;
  }
  heap[i] = value;
}

/* Each merge adds at most two pairs to the heap, and removes one symbol. So the heap never has more
 * than three entries for each symbol. */
static rf_status reserve_symbols(rf_encoding *e, size_t symbols, rf_error *error) {
  if (symbols <= e->symbol_capacity) return RAFTER_OK;
  free(e->symbols);
  free(e->next);
  free(e->previous);
  free(e->heap);
  e->symbols = malloc(symbols * sizeof *e->symbols);
  e->next = malloc(symbols * sizeof *e->next);
  e->previous = malloc(symbols * sizeof *e->previous);
  e->heap = malloc(3 * symbols * sizeof *e->heap);
  e->symbol_capacity = e->symbols && e->next && e->previous && e->heap ? symbols : 0;
  return e->symbol_capacity ? RAFTER_OK
                            : RF_FAIL(error, RAFTER_FAILED, "give a shorter text", "out of memory");
}

static rf_status merge_long(rf_encoding *e, const char *word, size_t bytes, rf_error *error) {
  const rf_tokenizer *tokenizer = e->tokenizer;
  RF_TRY(reserve_symbols(e, bytes + 1, error));
  rf_symbol *s = e->symbols;
  uint32_t *next = e->next, *previous = e->previous, count = 0;
  size_t waiting = 0;
  int n;
  for (const char *at = word; at < word + bytes; at += n, count++) {
    s[count].first = (uint32_t)(at - word);
    next[count] = count + 1;
    previous[count] = count - 1;
    s[count].id = symbol_at(tokenizer, at, word + bytes, &n);
  }
  s[count] = (rf_symbol){.id = NO_ID, .first = (uint32_t)bytes};
  next[count] = count;
  for (uint32_t i = 0; i < count; i++) {
    rank_symbol(tokenizer, word, &s[i], &s[i + 1], s[next[i + 1]].first);
    if (s[i].rank != RF_NO_RANK) e->heap[waiting++] = (uint64_t)s[i].rank << 32 | i;
  }
  for (size_t i = waiting / 2; i-- > 0;) sift_down(e->heap, waiting, i);
  while (waiting) {
    uint32_t i = (uint32_t)e->heap[0], rank = (uint32_t)(e->heap[0] >> 32);
    e->heap[0] = e->heap[--waiting];
    if (waiting) sift_down(e->heap, waiting, 0);
    if (s[i].rank != rank) continue; /* an outdated entry: the symbol was merged, or its neighbour changed */
    uint32_t gone = next[i], after = next[gone];
    s[i].id = s[i].merged;
    s[gone].rank = RF_NO_RANK;
    next[i] = after;
    if (after < count) previous[after] = i;
    rank_symbol(tokenizer, word, &s[i], &s[after], s[next[after]].first);
    if (s[i].rank != RF_NO_RANK) push_heap(e->heap, &waiting, (uint64_t)s[i].rank << 32 | i);
    if (!i) continue;
    uint32_t before = previous[i], old = s[before].rank;
    rank_symbol(tokenizer, word, &s[before], &s[i], s[after].first);
    if (s[before].rank != RF_NO_RANK && s[before].rank != old)
      push_heap(e->heap, &waiting, (uint64_t)s[before].rank << 32 | before);
  }
  for (uint32_t i = 0; i < count; i = next[i])
    RF_TRY(put_symbol(e, s[i].id, word + s[i].first, s[next[i]].first - s[i].first, error));
  return RAFTER_OK;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* An entry of the cache of encoded words. A new word overwrites the old word of its entry. */
enum { CACHED_BYTES = 26, CACHED_IDS = 9, CACHE_MIN = 1 << 12 };
struct rf_cache {
  int32_t id[CACHED_IDS];
  uint8_t ids, bytes;
  char word[CACHED_BYTES];
};
_Static_assert(sizeof(struct rf_cache) == 64, "one cache line");

rf_status rf_cache_new(rf_encoding *e, size_t bytes, rf_error *error) {
  enum { MAX = 1 << 15 };
  uint64_t slots = 64;
  if (bytes < CACHE_MIN) return RAFTER_OK;
  while (slots < MAX && slots < bytes / 16) slots *= 2;
  void *cache = NULL;
  if (posix_memalign(&cache, 64, slots * sizeof *e->cache))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  memset(cache, 0, slots * sizeof *e->cache);
  e->cache = cache;
  e->cache_mask = slots - 1;
  return RAFTER_OK;
}

static rf_status merge_word(rf_encoding *e, const char *word, size_t bytes, rf_error *error) {
  if (bytes == 1 || !e->cache || bytes > CACHED_BYTES)
    return (bytes <= SHORT_WORD ? merge_short : merge_long)(e, word, bytes, error);
  struct rf_cache *line = &e->cache[XXH3_64bits(word, bytes) & e->cache_mask];
  if (line->bytes == bytes && !memcmp(line->word, word, bytes)) {
    RF_TRY(rf_ids_reserve(e->ids, CACHED_IDS, error));
    memcpy(e->ids->at + e->ids->count, line->id, sizeof line->id);
    e->ids->count += line->ids;
    return RAFTER_OK;
  }
  int64_t first = e->ids->count;
  RF_TRY(merge_short(e, word, bytes, error));
  int64_t count = e->ids->count - first;
  /* A word with an unknown id is not cached, because the id may fuse with an unknown id before the
   * word. */
  if (count < 1 || count > CACHED_IDS ||
      (e->tokenizer->unk_id >= 0 && e->ids->at[first] == e->tokenizer->unk_id))
    return RAFTER_OK;
  memcpy(line->id, e->ids->at + first, (size_t)count * sizeof *line->id);
  memcpy(line->word, word, bytes);
  line->ids = (uint8_t)count;
  line->bytes = (uint8_t)bytes;
  return RAFTER_OK;
}

rf_status rf_bpe_word(void *encoding, const char *word, size_t bytes, rf_error *error) {
  rf_encoding *e = encoding;
  const rf_bpe *bpe = &e->tokenizer->bpe;
  if (rf_utf8_length(word, word + bytes)) e->word_ids = e->ids->count;
  if (bpe->ignore_merges && bytes <= RF_PIECE_MAX) {
    int32_t id = rf_pieces_find(&e->tokenizer->pieces, word, bytes);
    if (id >= 0) return rf_ids_add(e->ids, id, error);
  }
  if (bpe->byte_level) return merge_word(e, word, bytes, error);
  const char *from = word, *end = word + bytes;
  uint32_t left = 0;
  int n;
  for (const char *at = word; at < end; at += n) {
    n = (unsigned char)*at < 0x80 ? 1 : rf_utf8_length(at, end);
    uint32_t right = n > 0 ? rf_utf8_code(at, n) : 0x110000u | (unsigned char)*at;
    if (!n) n = 1;
    uint32_t bit = inside_bit(left, right);
    if (at > from && !(bpe->inside[bit / 64] >> bit % 64 & 1)) {
      RF_TRY(merge_word(e, from, (size_t)(at - from), error));
      from = at;
    }
    left = right;
  }
  return from < end ? merge_word(e, from, (size_t)(end - from), error) : RAFTER_OK;
}
