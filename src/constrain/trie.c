/* trie.c - see trie.h. */
#include "constrain/trie.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

typedef struct word {
  rf_span text;
  int32_t id;
  int group;
} word;

/* The group of a token, and its characters. */
static int group_of(rf_span text, int *chars) {
  const char *at = text.at, *end = text.at + text.bytes;
  *chars = 0;
  while (at < end) {
    int bytes = rf_utf8_length(at, end);
    if (!bytes || (unsigned char)*at < 0x20 || *at == '"' || *at == '\\') return RF_TRIE_OTHER;
    at += bytes;
    ++*chars;
  }
  return *chars <= RF_TRIE_SHORT_CHARS ? RF_TRIE_SHORT : RF_TRIE_LONG;
}

static int compare_words(const void *a, const void *b) {
  const word *x = a, *y = b;
  if (x->group != y->group) return x->group < y->group ? -1 : 1;
  size_t bytes = x->text.bytes < y->text.bytes ? x->text.bytes : y->text.bytes;
  int order = memcmp(x->text.at, y->text.at, bytes);
  if (order) return order;
  if (x->text.bytes != y->text.bytes) return x->text.bytes < y->text.bytes ? -1 : 1;
  return x->id < y->id ? -1 : 1;
}

static int64_t read_words(rf_trie *t, const rf_tokenizer *tokenizer, word *words) {
  int64_t count = 0, ids = rf_tokenizer_vocab(tokenizer);
  for (int64_t id = 0; id < t->vocab && id < ids; id++) {
    rf_span text = rf_tokenizer_text_of(tokenizer, (int32_t)id);
    int chars = 0;
    if (!text.bytes || text.bytes > RF_TRIE_BYTES) continue;
    const bool special = rf_tokenizer_is_special(tokenizer, (int32_t)id);
    int group = special ? RF_TRIE_SPECIAL : group_of(text, &chars);
    struct rf_trie_part *part = &t->part[group];
    if (!special && chars > part->chars) part->chars = chars;
    part->mask[id >> 6] |= (uint64_t)1 << (id & 63);
    t->text[id] = text;
    if (text.bytes == 1 && !special) t->has[(uint8_t)*text.at] = true;
    words[count++] = (word){text, (int32_t)id, group};
  }
  return count;
}

static size_t common(rf_span a, rf_span b) {
  size_t n = 0;
  while (n < a.bytes && n < b.bytes && a.at[n] == b.at[n]) n++;
  return n;
}

static void add_node(rf_trie *t, uint8_t byte, size_t depth) {
  t->node[t->nodes++] = (struct rf_trie_node){byte, (uint8_t)depth, 0, t->tokens};
}

/* Adds the sorted words of one group. */
static void add_group(rf_trie *t, const word *words, int64_t count, struct rf_trie_part *part) {
  int32_t open[RF_TRIE_BYTES]; /* nodes of the latest word */
  size_t depth = 0;
  part->first = t->nodes;
  for (int64_t i = 0; i < count; i++) {
    size_t same = i ? common(words[i - 1].text, words[i].text) : 0;
    while (depth > same) t->node[open[--depth]].skip = t->nodes;
    for (; depth < words[i].text.bytes; depth++) {
      open[depth] = t->nodes;
      add_node(t, (uint8_t)words[i].text.at[depth], depth);
    }
    t->token[t->tokens++] = words[i].id;
  }
  while (depth) t->node[open[--depth]].skip = t->nodes;
  part->end = t->nodes;
}

static void fill(rf_trie *t, word *words, int64_t count) {
  qsort(words, (size_t)count, sizeof *words, compare_words);
  for (int64_t i = 0, group = 0; group < RF_TRIE_GROUPS; group++) {
    int64_t begin = i;
    while (i < count && words[i].group == group) i++;
    add_group(t, words + begin, i - begin, &t->part[group]);
  }
  add_node(t, 0, 0); /* ends the tokens of the last node */
  t->nodes--;
}

rf_status rf_trie_open(const rf_tokenizer *tokenizer, int64_t vocab, rf_trie **out, rf_error *error) {
  rf_trie *t = calloc(1, sizeof *t);
  word *words = calloc((size_t)vocab, sizeof *words);
  size_t bytes = 1;
  if (!t || !words) goto failed;
  t->vocab = vocab;
  t->words = (vocab + 63) / 64;
  t->text = calloc((size_t)vocab, sizeof *t->text);
  t->token = calloc((size_t)vocab + 1, sizeof *t->token);
  for (int i = 0; i < RF_TRIE_GROUPS; i++) {
    t->part[i].mask = calloc((size_t)t->words, sizeof(uint64_t));
    if (!t->part[i].mask) goto failed;
  }
  if (!t->text || !t->token) goto failed;
  int64_t count = read_words(t, tokenizer, words);
  for (int64_t i = 0; i < count; i++) bytes += words[i].text.bytes;
  t->node = malloc(bytes * sizeof *t->node);
  if (!t->node) goto failed;
  fill(t, words, count);
  free(words);
  struct rf_trie_node *less = realloc(t->node, ((size_t)t->nodes + 1) * sizeof *less);
  if (less) t->node = less;
  *out = t;
  return RAFTER_OK;
failed:
  free(words);
  rf_trie_close(t);
  return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading a vocabulary");
}

void rf_trie_close(rf_trie *t) {
  if (!t) return;
  for (int i = 0; i < RF_TRIE_GROUPS; i++) free(t->part[i].mask);
  free(t->text);
  free(t->token);
  free(t->node);
  free(t);
}
