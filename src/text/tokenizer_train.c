/* tokenizer_train.c - makes a byte-level BPE from text. See rf_tokenizer_train. Each distinct word
 * is stored once, with its count. A merge visits only the words that contain its pair. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <xxhash.h>

enum {
  BYTE_IDS = 256,
  PIECE_MAX = 1024, /* maximum bytes of a piece, because its spelling must fit RF_PIECE_MAX */
  COUNT_MIN = 2,    /* a pair that occurs once saves nothing in other texts */
};

typedef struct word {
  const char *text;
  size_t bytes;
  int64_t count;
  int32_t *ids; /* ids of the word after the merges so far */
  int64_t length;
} word;

typedef struct pair {
  uint64_t key; /* left id << 32 | right id */
  int64_t count;
  int64_t *words; /* indices of words that contain the pair, or once contained it */
  int64_t words_count, words_capacity;
} pair;

typedef struct candidate {
  int64_t count;
  uint64_t key;
} candidate;

typedef struct maker {
  word *words;
  int64_t words_count, words_capacity;
  int64_t *word_slot; /* open addressing: index of a word + 1 */
  uint64_t word_slots;
  pair *pairs;
  int64_t pairs_count, pairs_capacity;
  int64_t *pair_slot; /* open addressing: index of a pair + 1 */
  uint64_t pair_slots;
  candidate *heap; /* the best candidate is first; counts may be outdated */
  int64_t heap_count, heap_capacity;
  rf_span *pieces; /* bytes of each id */
  rf_span *merges; /* "left right" in GPT-2's byte alphabet */
  int64_t ids;     /* number of ids so far */
} maker;

static rf_status grow(void **list, int64_t count, int64_t *capacity, size_t size, rf_error *error) {
  if (count < *capacity) return RAFTER_OK;
  int64_t more = *capacity ? 2 * *capacity : 8;
  void *grown = realloc(*list, (size_t)more * size);
  if (!grown)
    return RF_FAIL(error, RAFTER_FAILED, "give less text", "out of memory while making a tokenizer");
  *list = grown;
  *capacity = more;
  return RAFTER_OK;
}

/* ---- words ----------------------------------------------------------------------------------- */

static int64_t *slot_of_word(const maker *m, const char *text, size_t bytes) {
  uint64_t at = XXH3_64bits(text, bytes) & (m->word_slots - 1);
  for (; m->word_slot[at]; at = (at + 1) & (m->word_slots - 1)) {
    const word *w = &m->words[m->word_slot[at] - 1];
    if (w->bytes == bytes && !memcmp(w->text, text, bytes)) break;
  }
  return &m->word_slot[at];
}

static rf_status resize_words(maker *m, rf_error *error) {
  uint64_t slots = m->word_slots ? 2 * m->word_slots : 1 << 12;
  free(m->word_slot);
  m->word_slot = calloc(slots, sizeof *m->word_slot);
  m->word_slots = m->word_slot ? slots : 0;
  if (!m->word_slot)
    return RF_FAIL(error, RAFTER_FAILED, "give less text", "out of memory while making a tokenizer");
  for (int64_t i = 0; i < m->words_count; i++) *slot_of_word(m, m->words[i].text, m->words[i].bytes) = i + 1;
  return RAFTER_OK;
}

static rf_status count_word(void *self, const char *text, size_t bytes, rf_error *error) {
  maker *m = self;
  if (2 * (uint64_t)m->words_count >= m->word_slots) RF_TRY(resize_words(m, error));
  int64_t *slot = slot_of_word(m, text, bytes);
  if (!*slot) {
    RF_TRY(grow((void **)&m->words, m->words_count, &m->words_capacity, sizeof *m->words, error));
    m->words[m->words_count] = (word){.text = text, .bytes = bytes};
    *slot = ++m->words_count;
  }
  m->words[*slot - 1].count++;
  return RAFTER_OK;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static int64_t *slot_of_pair(const maker *m, uint64_t key) {
  uint64_t at = XXH3_64bits(&key, sizeof key) & (m->pair_slots - 1);
  while (m->pair_slot[at] && m->pairs[m->pair_slot[at] - 1].key != key) at = (at + 1) & (m->pair_slots - 1);
  return &m->pair_slot[at];
}

static rf_status resize_pairs(maker *m, rf_error *error) {
  uint64_t slots = m->pair_slots ? 2 * m->pair_slots : 1 << 12;
  free(m->pair_slot);
  m->pair_slot = calloc(slots, sizeof *m->pair_slot);
  m->pair_slots = m->pair_slot ? slots : 0;
  if (!m->pair_slot)
    return RF_FAIL(error, RAFTER_FAILED, "give less text", "out of memory while making a tokenizer");
  for (int64_t i = 0; i < m->pairs_count; i++) *slot_of_pair(m, m->pairs[i].key) = i + 1;
  return RAFTER_OK;
}

static rf_status pair_at(maker *m, uint64_t key, pair **found, rf_error *error) {
  if (2 * (uint64_t)m->pairs_count >= m->pair_slots) RF_TRY(resize_pairs(m, error));
  int64_t *slot = slot_of_pair(m, key);
  if (!*slot) {
    RF_TRY(grow((void **)&m->pairs, m->pairs_count, &m->pairs_capacity, sizeof *m->pairs, error));
    m->pairs[m->pairs_count] = (pair){.key = key};
    *slot = ++m->pairs_count;
  }
  *found = &m->pairs[*slot - 1];
  return RAFTER_OK;
}

static uint64_t key_at(const word *w, int64_t i) {
  return (uint64_t)(uint32_t)w->ids[i] << 32 | (uint32_t)w->ids[i + 1];
}

/* ---- the heap of candidates ------------------------------------------------------------------ */

/* More occurrences first. Of candidates with equal counts, the pair with the smaller ids comes
 * first. */
static bool before(const candidate *a, const candidate *b) {
  return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static rf_status heap_push(maker *m, candidate c, rf_error *error) {
  RF_TRY(grow((void **)&m->heap, m->heap_count, &m->heap_capacity, sizeof *m->heap, error));
  int64_t at = m->heap_count++;
  for (; at && before(&c, &m->heap[(at - 1) / 2]); at = (at - 1) / 2) m->heap[at] = m->heap[(at - 1) / 2];
  m->heap[at] = c;
  return RAFTER_OK;
}

static candidate heap_pop(maker *m) {
  candidate best = m->heap[0], last = m->heap[--m->heap_count];
  int64_t at = 0;
  for (int64_t child = 1; child < m->heap_count; child = 2 * at + 1) {
    if (child + 1 < m->heap_count && before(&m->heap[child + 1], &m->heap[child])) child++;
    if (!before(&m->heap[child], &last)) break;
    m->heap[at] = m->heap[child];
    at = child;
  }
  if (m->heap_count) m->heap[at] = last;
  return best;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Adds `sign` times the pairs of a word to their counts. Pairs with the id `made` are new in this
 * word, so the word joins their lists. If made < 0, all pairs are new. */
static rf_status count_pairs(maker *m, int64_t index, int sign, int32_t made, rf_error *error) {
  const word *w = &m->words[index];
  for (int64_t i = 0; i + 1 < w->length; i++) {
    pair *p;
    RF_TRY(pair_at(m, key_at(w, i), &p, error));
    p->count += sign * w->count;
    if (sign < 0 || (made >= 0 && w->ids[i] != made && w->ids[i + 1] != made)) continue;
    if (p->words_count && p->words[p->words_count - 1] == index) continue;
    RF_TRY(grow((void **)&p->words, p->words_count, &p->words_capacity, sizeof *p->words, error));
    p->words[p->words_count++] = index;
  }
  return RAFTER_OK;
}

static bool has_pair(const word *w, uint64_t key) {
  for (int64_t i = 0; i + 1 < w->length; i++)
    if (key_at(w, i) == key) return true;
  return false;
}

/* Replaces the pair by `made` in one word, from left to right. New pairs become candidates. */
static rf_status merge_word(maker *m, int64_t index, uint64_t key, int32_t made, rf_error *error) {
  word *w = &m->words[index];
  if (!has_pair(w, key)) return RAFTER_OK; /* an earlier merge took the pair out of this word */
  RF_TRY(count_pairs(m, index, -1, made, error));
  int64_t kept = 0;
  for (int64_t i = 0; i < w->length; i++) {
    bool joined = i + 1 < w->length && key_at(w, i) == key;
    w->ids[kept++] = joined ? made : w->ids[i];
    i += joined;
  }
  w->length = kept;
  return count_pairs(m, index, 1, made, error);
}

/* Makes candidates of the pairs, beginning with index `first`. After a merge, these are the pairs
 * with the new id. The counts of all other pairs have not grown. */
static rf_status push_new(maker *m, int64_t first, rf_error *error) {
  for (int64_t i = first; i < m->pairs_count; i++)
    if (m->pairs[i].count >= COUNT_MIN)
      RF_TRY(heap_push(m, (candidate){m->pairs[i].count, m->pairs[i].key}, error));
  return RAFTER_OK;
}

static rf_status add_piece(maker *m, uint64_t key, rf_error *error) {
  rf_span left = m->pieces[key >> 32], right = m->pieces[(uint32_t)key];
  char a[2 * PIECE_MAX], b[2 * PIECE_MAX];
  size_t a_bytes = rf_alphabet_text(left, a), b_bytes = rf_alphabet_text(right, b);
  char *piece = malloc(left.bytes + right.bytes), *merge = malloc(a_bytes + b_bytes + 1);
  m->pieces[m->ids] = (rf_span){piece, left.bytes + right.bytes};
  m->merges[m->ids - BYTE_IDS] = (rf_span){merge, a_bytes + b_bytes + 1};
  m->ids++;
  if (!piece || !merge) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while making a tokenizer");
  memcpy(piece, left.at, left.bytes);
  memcpy(piece + left.bytes, right.at, right.bytes);
  memcpy(merge, a, a_bytes);
  merge[a_bytes] = ' ';
  memcpy(merge + a_bytes + 1, b, b_bytes);
  return RAFTER_OK;
}

static rf_status merge_all(maker *m, int64_t ids, const volatile int *stop, rf_error *error) {
  while (m->ids < ids && m->heap_count) {
    candidate best = heap_pop(m);
    int64_t index = *slot_of_pair(m, best.key) - 1, first = m->pairs_count;
    int64_t count = m->pairs[index].count;
    if (rf_flag_is_set(stop)) return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal");
    if (count != best.count) { /* merges of other pairs have removed occurrences of this pair */
      if (count >= COUNT_MIN) RF_TRY(heap_push(m, (candidate){count, best.key}, error));
      continue;
    }
    if (m->pieces[best.key >> 32].bytes + m->pieces[(uint32_t)best.key].bytes > PIECE_MAX) continue;
    int32_t made = (int32_t)m->ids;
    RF_TRY(add_piece(m, best.key, error));
    for (int64_t i = 0; i < m->pairs[index].words_count; i++)
      RF_TRY(merge_word(m, m->pairs[index].words[i], best.key, made, error));
    pair *done = &m->pairs[index];
    free(done->words);
    done->words = NULL;
    done->words_count = done->words_capacity = 0;
    RF_TRY(push_new(m, first, error));
  }
  return RAFTER_OK;
}

/* ---- the tokenizer --------------------------------------------------------------------------- */

/* GPT-2's order of the bytes, in which printable bytes come first. */
static void order_bytes(uint8_t byte_of[BYTE_IDS], int32_t id_of[BYTE_IDS]) {
  int count = 0;
  for (int printable = 1; printable >= 0; printable--)
    for (int b = 0; b < BYTE_IDS; b++)
      if (((b > 32 && b < 127) || (b > 160 && b != 173)) == printable) {
        byte_of[count] = (uint8_t)b;
        id_of[b] = count++;
      }
}

static rf_status start_words(maker *m, const int32_t *id_of, rf_error *error) {
  for (int64_t i = 0; i < m->words_count; i++) {
    word *w = &m->words[i];
    w->ids = malloc(w->bytes * sizeof *w->ids);
    if (!w->ids)
      return RF_FAIL(error, RAFTER_FAILED, "give less text", "out of memory while making a tokenizer");
    for (size_t b = 0; b < w->bytes; b++) w->ids[b] = id_of[(uint8_t)w->text[b]];
    w->length = (int64_t)w->bytes;
    RF_TRY(count_pairs(m, i, 1, -1, error));
  }
  return push_new(m, 0, error);
}

static rf_status build(const maker *m, rf_tokenizer **tokenizer, rf_error *error) {
  static const char END[] = "<|endoftext|>";
  int64_t count = m->ids + 1;
  rf_status status = RAFTER_OK;
  rf_span *spelled = calloc((size_t)count, sizeof *spelled);
  int32_t *types = malloc((size_t)count * sizeof *types);
  size_t room = 0;
  for (int64_t id = 0; id < m->ids; id++) room += 2 * m->pieces[id].bytes;
  char *text = malloc(room), *at = text;
  if (!spelled || !types || !text) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory"));
  for (int64_t id = 0; id < m->ids; id++) {
    spelled[id] = (rf_span){at, rf_alphabet_text(m->pieces[id], at)};
    at += spelled[id].bytes;
    types[id] = RF_PIECE_NORMAL;
  }
  spelled[m->ids] = (rf_span){END, sizeof END - 1};
  types[m->ids] = RF_PIECE_CONTROL;
  rf_vocabulary v = {.kind = "gpt2",
                     .pre = "gpt-2",
                     .count = count,
                     .pieces = spelled,
                     .types = types,
                     .merge_count = m->ids - BYTE_IDS,
                     .merges = m->merges,
                     .bos_id = (int32_t)m->ids,
                     .eos_id = (int32_t)m->ids,
                     .pad_id = -1,
                     .unk_id = -1};
  status = rf_tokenizer_build(&v, "the new tokenizer", tokenizer, error);
done:
  free(spelled);
  free(types);
  free(text);
  return status;
}

static void free_maker(maker *m) {
  for (int64_t i = 0; i < m->words_count; i++) free(m->words[i].ids);
  for (int64_t i = 0; i < m->pairs_count; i++) free(m->pairs[i].words);
  for (int64_t id = BYTE_IDS; id < m->ids; id++) {
    free((char *)m->pieces[id].at);
    free((char *)m->merges[id - BYTE_IDS].at);
  }
  free(m->words);
  free(m->word_slot);
  free(m->pairs);
  free(m->pair_slot);
  free(m->heap);
  free(m->pieces);
  free(m->merges);
}

rf_status rf_tokenizer_train(const char *text, size_t bytes, int64_t vocab, const volatile int *stop,
                             rf_tokenizer **tokenizer, rf_error *error) {
  uint8_t byte_of[BYTE_IDS];
  int32_t id_of[BYTE_IDS];
  rf_status status = RAFTER_OK;
  rf_splits splits = {0};
  bool ignore_merges;
  maker m = {.ids = BYTE_IDS,
             .pieces = calloc((size_t)vocab, sizeof *m.pieces),
             .merges = calloc((size_t)vocab, sizeof *m.merges)};
  rf_effort effort = rf_effort_for(bytes);
  *tokenizer = NULL;
  if (!m.pieces || !m.merges) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory"));
  order_bytes(byte_of, id_of);
  for (int id = 0; id < BYTE_IDS; id++) m.pieces[id] = (rf_span){(const char *)&byte_of[id], 1};
  RF_GO(rf_splits_named("gpt-2", &splits, &ignore_merges, "the new tokenizer", error));
  RF_GO(rf_split_words(&splits, &effort, text, bytes, count_word, &m, error));
  RF_GO(start_words(&m, id_of, error));
  RF_GO(merge_all(&m, vocab - 1, stop, error));
  status = build(&m, tokenizer, error);
done:
  free_maker(&m);
  rf_splits_free(&splits);
  rf_effort_free(&effort);
  return status;
}
