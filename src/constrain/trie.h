/* trie.h - the texts of a vocabulary as a tree of bytes. */
#ifndef RF_TRIE_H
#define RF_TRIE_H

#include "text/tokenizer.h"

#include <stdatomic.h>

enum { RF_TRIE_BYTES = 256 }; /* maximum bytes of a token; longer tokens are never chosen */

/* Tokens of whole characters that JSON strings do not escape have their own groups, because most
 * states inside a string allow all of these tokens. */
typedef enum rf_trie_group {
  RF_TRIE_SHORT,
  RF_TRIE_LONG,
  RF_TRIE_OTHER,
  RF_TRIE_SPECIAL, /* special tokens, as the text that spells them; only for forms with free text */
  RF_TRIE_GROUPS
} rf_trie_group;
enum { RF_TRIE_SHORT_CHARS = 8 };

typedef struct rf_trie {
  int64_t vocab, words; /* words: number of 64-bit words of a mask, with a bit for each token */
  struct rf_trie_node {
    uint8_t byte;
    uint8_t depth; /* bytes of its text - 1 */
    int32_t skip;  /* the next node that is not below this one */
    /* index in `token` of the node's first token; the next node's index is the end */
    int32_t tokens;
  } * node; /* (nodes + 1) in the order of their texts; the last entry only ends the tokens of a node */
  int32_t *token;
  int32_t nodes, tokens;
  struct rf_trie_part {
    int32_t first, end; /* nodes */
    int chars;          /* maximum characters of a token */
    uint64_t *mask;     /* (words) its tokens */
  } part[RF_TRIE_GROUPS];
  rf_span *text; /* (vocab) the bytes of each token; empty: never chosen */
  bool has[256]; /* true: the byte is a token */
  /* Totals of all constraints. */
  _Atomic int64_t masks, mask_hits, mask_ns;
} rf_trie;

/* The tokenizer must outlive the trie. */
rf_status rf_trie_open(const rf_tokenizer *tokenizer, int64_t vocab, rf_trie **trie, rf_error *error);
void rf_trie_close(rf_trie *trie); /* NULL is allowed. */

static inline bool rf_trie_is_special(const rf_trie *t, int32_t token) {
  return t->part[RF_TRIE_SPECIAL].mask[token >> 6] >> (token & 63) & 1;
}

#endif
