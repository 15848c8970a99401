/* tokenizer_parts.h - the parts of a tokenizer, which the files tokenizer*.c share. Readers (json,
 * sentencepiece, llama2c, build) fill the parts. Encoding and decoding only read the parts. The
 * stages of encoding:
 *
 *   text ──raw added tokens──> segments ──normalize──> text ──normalized added tokens──>
 *     segments ──prepare, split──> words ──model──> ids */
#ifndef RF_TOKENIZER_PARTS_H
#define RF_TOKENIZER_PARTS_H

#include "text/tokenizer.h"
#include "text/utf8.h"

#include <string.h>

#define RF_SPACE_MARK "\xE2\x96\x81" /* U+2581, a space in SentencePiece's pieces */

typedef struct rf_buffer {
  char *at;
  size_t bytes, capacity;
} rf_buffer;
rf_status rf_buffer_reserve(rf_buffer *buffer, size_t more, rf_error *error);
rf_status rf_buffer_add(rf_buffer *buffer, const char *at, size_t bytes, rf_error *error);

/* ---- pieces (tokenizer_pieces.c) ------------------------------------------------------------- */

/* Maximum bytes of a piece. This maximum limits the work that is quadratic in the length of a
 * piece. */
enum { RF_PIECE_MAX = 4096 };

typedef struct rf_piece_row {
  uint32_t first, bytes; /* position of the spelling in pieces.text; `bytes` is 0 if the id is unused */
  uint8_t type;          /* rf_piece_type; 0: the id is unused */
  bool special;
} rf_piece_row;

typedef struct rf_pieces {
  int64_t count, capacity; /* `count`: number of ids; `capacity`: number of allocated entries */
  rf_piece_row *row;
  rf_buffer text;
  uint64_t *slots; /* open addressing; an entry has the upper 32 bits of the hash, and id + 1 */
  uint64_t mask, used;
} rf_pieces;

rf_status rf_pieces_reserve(rf_pieces *pieces, int64_t ids, rf_error *error);
/* Stores a piece under its id. rf_pieces_find finds the piece only after rf_pieces_list. Returns
 * RAFTER_FAILED if the id already has a piece. */
rf_status rf_pieces_put(rf_pieces *pieces, int64_t id, rf_span text, rf_piece_type type, const char *where,
                        rf_error *error);
/* Enters all normal pieces into the hash table. With `users`, also enters the pieces of type
 * RF_PIECE_USER. Several cache misses of this function overlap. RAFTER_FAILED: two pieces have the
 * same spelling. */
rf_status rf_pieces_list(rf_pieces *pieces, bool users, const char *where, rf_error *error);
int32_t rf_pieces_find(const rf_pieces *pieces, const char *at, size_t bytes); /* -1: none */
/* Finds up to RF_FIND_MAX pieces in one call, so that the cache misses of the lookups overlap.
 * Reading merges spends most of its time on cache misses. */
enum { RF_FIND_MAX = 96 };
void rf_pieces_find_many(const rf_pieces *pieces, const rf_span *keys, int count, int32_t *ids);
static inline rf_span rf_pieces_at(const rf_pieces *pieces, int64_t id) {
  return (rf_span){pieces->text.at + pieces->row[id].first, pieces->row[id].bytes};
}
void rf_pieces_free(rf_pieces *pieces);

/* ---- finding tokens in text before the model runs (tokenizer_added.c) ------------------------ */

typedef struct rf_added {
  rf_span text;
  int32_t id;
  bool special, lstrip, rstrip, single_word;
} rf_added;

/* Added tokens, sorted by text, so that tokens with a common prefix are adjacent. */
typedef struct rf_matcher {
  int count, capacity;
  rf_added *at;
  int first[257]; /* for each byte: index in `at` of the first token that begins with this byte */
} rf_matcher;

/* Copies the text of `added`. */
rf_status rf_matcher_add(rf_matcher *matcher, const rf_added *added, rf_error *error);
rf_status rf_matcher_sort(rf_matcher *matcher, const char *where, rf_error *error);
/* Finds the longest of the first matches in [at, end). Returns false if nothing matches. [*start,
 * *stop) is the match, with the blanks around it that the token strips. */
bool rf_matcher_next(const rf_matcher *matcher, const char *text, const char *at, const char *end,
                     bool specials, const char **start, const char **stop, int32_t *id);
void rf_matcher_free(rf_matcher *matcher);

/* ---- limits ---------------------------------------------------------------------------------- */

/* The work that may still be done for one text. A tokenizer.json may come from anywhere, so limits
 * bound the memory and the time of its normalizers and patterns. */
typedef struct rf_effort {
  uint64_t steps;       /* steps of difficult pattern matches (tokenizer_split.c) */
  size_t bytes;         /* bytes of normalized text */
  void *data, *context; /* PCRE2's memory, which the first match allocates */
} rf_effort;
/* Returns the limits for a text of `bytes` bytes. No tokenizer of a real model reaches these
 * limits. */
rf_effort rf_effort_for(size_t bytes);
void rf_effort_free(rf_effort *effort);
uint64_t rf_pattern_steps(size_t bytes); /* returns the steps for a text of `bytes` bytes */

/* ---- normalizing (tokenizer_normalize.c) ----------------------------------------------------- */

typedef struct rf_pattern rf_pattern; /* a compiled regular expression or literal (tokenizer_split.c) */
typedef enum rf_normal_kind {
  RF_NORMAL_PREPEND,
  RF_NORMAL_REPLACE,
  RF_NORMAL_UNICODE,
  RF_NORMAL_SQUEEZE,
  RF_NORMAL_STRIP
} rf_normal_kind;
typedef struct rf_normal {
  rf_normal_kind kind;
  rf_pattern *pattern; /* replace */
  char *from, *to;     /* literal replacement: `from` and `to`; prepend: only `to` */
  size_t from_bytes, to_bytes;
  int unicode;      /* options for utf8proc */
  bool left, right; /* strip: the ends to strip; squeeze: `right` also removes U+2581 at the end */
} rf_normal;

enum { RF_STEPS_MAX = 16 };
typedef struct rf_normals {
  int count;
  rf_normal at[RF_STEPS_MAX];
} rf_normals;
/* Sets *result to `text` itself if no step changes the text. Otherwise, the result is in `buffer` or
 * `spare`. RAFTER_FAILED: the text would grow by more than `effort` allows. */
rf_status rf_normalize(const rf_normals *normals, rf_span text, rf_effort *effort, rf_buffer *buffer,
                       rf_buffer *spare, rf_span *result, rf_error *error);
rf_status rf_normals_add(rf_normals *normals, rf_normal_kind kind, rf_span from, rf_span to,
                         const char *where, rf_error *error);
void rf_normals_free(rf_normals *normals);

/* ---- splitting (tokenizer_split.c) ----------------------------------------------------------- */

typedef enum rf_behaviour {
  RF_SPLIT_ISOLATED,
  RF_SPLIT_REMOVED,
  RF_SPLIT_PREVIOUS,
  RF_SPLIT_NEXT,
  RF_SPLIT_CONTIGUOUS
} rf_behaviour;
typedef struct rf_split {
  rf_pattern *pattern;
  rf_behaviour behaviour;
  bool invert;
} rf_split;
typedef struct rf_splits {
  int count;
  rf_split at[RF_STEPS_MAX];
  /* The following fields apply to each segment before the first split. */
  bool prefix;       /* true: put `mark` or a space before a segment that does not begin with one */
  bool prefix_first; /* true: put this prefix only before the first segment of the text */
  bool mark;         /* spaces become U+2581 */
} rf_splits;

extern const char RF_GPT2_PATTERN[];
rf_status rf_pattern_new(const char *text, size_t bytes, bool literal, const char *where,
                         rf_pattern **pattern, rf_error *error);
void rf_pattern_free(rf_pattern *pattern);
const char *rf_pattern_literal(const rf_pattern *pattern); /* NULL for a regular expression */
/* returns the pattern as rf_pattern_new received it */
const char *rf_pattern_text(const rf_pattern *pattern);
/* Finds the first match in [text, end) after the match *hit; {0}: from the start. Without a match,
 * hit->at is NULL. A match may be empty, but not where *hit ends. Source: onig 6, FindMatches.
 * RAFTER_FAILED: no steps are left. */
rf_status rf_pattern_next(const rf_pattern *pattern, rf_effort *effort, const char *text, const char *end,
                          rf_span *hit, rf_error *error);
rf_status rf_splits_add(rf_splits *splits, const char *text, size_t bytes, bool literal,
                        rf_behaviour behaviour, bool invert, const char *where, rf_error *error);
/* Adds the splits of the pre-tokenizer `name` (as in GGUF files). Sets *ignore_merges. */
rf_status rf_splits_named(const char *name, rf_splits *splits, bool *ignore_merges, const char *where,
                          rf_error *error);
/* Returns the name of the pre-tokenizer with these splits in GGUF files, or NULL. */
const char *rf_splits_name(const rf_splits *splits, bool ignore_merges);
typedef rf_status rf_word_function(void *self, const char *word, size_t bytes, rf_error *error);
rf_status rf_split_words(const rf_splits *splits, rf_effort *effort, const char *text, size_t bytes,
                         rf_word_function *word, void *self, rf_error *error);
void rf_splits_free(rf_splits *splits);

/* ---- models (tokenizer_bpe.c, tokenizer_unigram.c) ------------------------------------------- */

typedef struct rf_pair {
  uint32_t left, right, rank, id; /* `rank` is RF_NO_RANK in an empty slot of the hash table */
} rf_pair;
#define RF_NO_RANK UINT32_MAX

typedef struct rf_bpe {
  rf_pair *slots;
  uint64_t mask;
  int64_t pairs;
  /* SentencePiece: rank of each piece. Two neighbours merge if their joined text is a piece, with
   * the rank of this piece. If `rank` is NULL, the merges are listed as pairs. */
  uint32_t *rank;
  uint32_t longest;    /* number of bytes of the longest piece that has a rank */
  bool byte_level;     /* true: symbols are bytes; false: symbols are characters */
  bool ignore_merges;  /* true: a word that is a piece becomes this piece, without merges */
  int32_t symbol[256]; /* id of each byte (byte_level) or ASCII character; -1: no such id */
  /* A hashed bit set: the pairs of characters that are neighbours in some piece. A text can be
   * split between the characters of any other pair. */
  uint64_t *inside;
} rf_bpe;

typedef struct rf_edge {
  uint32_t node, child; /* `child` is 0 in an empty slot of the hash table */
  uint8_t byte;
} rf_edge;
typedef struct rf_unigram {
  rf_edge *edges; /* the trie as a hash table: maps (node, byte) to the child node */
  uint64_t mask;
  uint32_t nodes, node_capacity;
  int32_t *piece; /* id of the piece that ends at each node; -1: none */
  double *score;  /* score of each piece */
  double unknown; /* score of an unknown character */
  bool single;    /* true: round sums of scores to float, as SentencePiece does */
} rf_unigram;

typedef enum rf_model_kind { RF_TOKENS_BYTE, RF_TOKENS_BPE, RF_TOKENS_UNIGRAM } rf_model_kind;

struct rf_tokenizer {
  rf_model_kind kind;
  rf_pieces pieces;
  /* raw: added tokens in raw text. normalized: added tokens in normalized text. */
  rf_matcher raw, normalized;
  rf_normals normals;
  rf_splits splits;
  rf_bpe bpe;
  rf_unigram unigram;
  bool fuse_unknown;
  int32_t fallback[256]; /* id of the piece of each byte; -1: none */
  bool byte_fallback;
  int32_t bos_id, eos_id, pad_id, unk_id;
  int32_t *prefix, *suffix; /* ids added before and after a text (BOS, EOS) */
  int prefix_count, suffix_count;
  rf_buffer decoded; /* texts of the pieces that decode to something other than their spelling */
  /* for each id: offset in `decoded` << 16 | bytes; UINT64_MAX: the id decodes to its spelling */
  uint64_t *decoded_at;
  size_t longest;       /* number of bytes of the longest text that one id decodes to */
  int64_t scored_bytes; /* total number of bytes of the pieces that are merged by score */
  int64_t json_bytes;   /* size of the tokenizer.json in bytes; 0: the tokenizer was read from another file */
  bool strip_leading;   /* true: decoding removes one space at the beginning */
};

/* The state of one call to rf_tokenizer_encode. */
typedef struct rf_encoding rf_encoding;
/* Encodes unknown bytes as byte pieces or as the unknown id. With fuse_unknown, unknown text adds
 * no id if the last id of the same segment is already the unknown id. */
rf_status rf_encode_unknown(rf_encoding *e, const char *at, size_t bytes, rf_error *error);
struct rf_cache;
typedef struct rf_symbol {
  uint32_t id, rank, merged; /* rank and result (`merged`) of this symbol's merge with the next symbol */
  uint32_t first;            /* offset of the symbol's first byte in the word */
} rf_symbol;
struct rf_encoding {
  const rf_tokenizer *tokenizer;
  rf_ids *ids;
  /* Number of ids before this word. Unknown pieces are fused within a word, and with invalid bytes
   * after the word, each of which is a word of its own. */
  int64_t word_ids;
  bool specials;
  const char *text, *end;
  rf_effort effort;
  rf_buffer buffer[3];
  struct rf_cache *cache;
  uint64_t cache_mask;
  rf_symbol *symbols; /* symbols of a long word */
  uint32_t *next, *previous;
  uint64_t *heap;
  size_t symbol_capacity, heap_capacity;
  double *path_score; /* unigram: the following fields have one entry for each byte of a segment */
  uint32_t *path_from;
  int32_t *path_id;
  size_t path_capacity;
};

rf_status rf_bpe_reserve(rf_bpe *bpe, int64_t pairs, rf_error *error);
/* Prefetches the slot of a pair in the hash table. */
void rf_bpe_expect(const rf_bpe *bpe, uint32_t left, uint32_t right);
/* Adds a pair. If the pair already exists, it gets the new rank. */
void rf_bpe_pair(rf_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* Returns all pairs, malloc'ed, in ascending order of rank. NULL: out of memory. */
rf_pair *rf_bpe_sorted(const rf_bpe *bpe);
/* Fills the tables `symbol` and `inside`. Call this function after all pieces and pairs were
 * added. */
rf_status rf_bpe_finish(rf_tokenizer *tokenizer, const char *where, rf_error *error);
rf_status rf_bpe_word(void *encoding, const char *word, size_t bytes, rf_error *error);
void rf_bpe_free(rf_bpe *bpe);
rf_status rf_cache_new(rf_encoding *e, size_t bytes, rf_error *error);

/* `scores` has one score for each id. */
rf_status rf_unigram_build(rf_tokenizer *tokenizer, const double *scores, bool sentencepiece,
                           const char *where, rf_error *error);
rf_status rf_unigram_word(void *encoding, const char *word, size_t bytes, rf_error *error);
void rf_unigram_free(rf_unigram *unigram);

/* ---- readers --------------------------------------------------------------------------------- */

rf_tokenizer *rf_tokenizer_new(rf_model_kind kind, rf_error *error);
/* The last step of every reader. This function finds the byte pieces, sorts the matchers and
 * prepares the decoded texts. With `bytes`, "<0x41>" decodes to a byte. With `spaces`, U+2581
 * decodes to a space. */
rf_status rf_tokenizer_finish(rf_tokenizer *tokenizer, bool bytes, bool spaces, const char *where,
                              rf_error *error);
rf_status rf_tokenizer_set_bos_eos(rf_tokenizer *tokenizer, const int32_t *prefix, int prefix_count,
                                   const int32_t *suffix, int suffix_count, rf_error *error);
/* Decodes a spelling in GPT-2's byte alphabet into `out`, which needs piece.bytes bytes. Returns
 * the number of bytes, or -1 if a character of the spelling is outside the alphabet. */
int64_t rf_alphabet_bytes(rf_span piece, char *out);
/* Encodes bytes in GPT-2's byte alphabet. `out` must have room for 2 * bytes. Returns the encoded
 * size. */
size_t rf_alphabet_text(rf_span bytes, char *out);
int rf_byte_piece(rf_span piece); /* "<0x41>" -> 65; -1 for any other piece */

rf_status rf_tokenizer_sentencepiece_read(const char *text, size_t bytes, const char *where,
                                          rf_tokenizer **tokenizer, rf_error *error);
rf_status rf_tokenizer_llama2c_read(const char *text, size_t bytes, const char *where,
                                    rf_tokenizer **tokenizer, rf_error *error);
/* Applies the tokenizer_config.json in the tokenizer's folder, if the folder has this file. With
 * `adds_bos_eos`, this file also decides whether BOS and EOS are added around a text. */
rf_status rf_tokenizer_config_apply(rf_tokenizer *tokenizer, const char *tokenizer_path, bool adds_bos_eos,
                                    rf_error *error);
/* Sets `folder` to the folder of the tokenizer. `from` is the folder itself, or a weight file in
 * it. */
void rf_tokenizer_folder(const char *from, char folder[4096]);
/* True if the folder's tokenizer_config.json says that the model was trained on bytes. */
bool rf_tokenizer_says_bytes(const char *folder);
/* Writes the tokenizer.* metadata of a GGUF file into a GGUF file without tensors. *written is
 * false if the file has no vocabulary. */
rf_status rf_tokenizer_gguf_extract(const char *from, const char *to, bool *written, rf_error *error);
/* Writes tokenizer_config.json with the special tokens and the chat template. If `class` is NULL,
 * the file names no tokenizer class, but says whether BOS and EOS are added around a text. */
rf_status rf_tokenizer_config_write(const rf_tokenizer *tokenizer, const char *class,
                                    struct json_t *chat_template, const char *folder, rf_error *error);
/* Writes the SentencePiece vocabulary of a GGUF file as tokenizer.model. *written is false for any
 * other kind of vocabulary, and if SentencePiece would read the vocabulary differently. */
struct rf_gguf_vocab;
rf_status rf_tokenizer_model_write(const struct rf_gguf_vocab *vocab, const char *folder, bool *written,
                                   rf_error *error);
rf_status rf_tokenizer_gguf_open(const char *path, rf_tokenizer **tokenizer, rf_error *error);
/* The four sections of tokenizer.json that tokenizer_json_steps.c reads. Each of these fields may
 * be NULL or JSON null. */
typedef struct rf_json_steps {
  struct json_t *normalizer, *pre_tokenizer, *decoder, *post_processor;
} rf_json_steps;
bool rf_json_is_byte_level(const struct json_t *pre_tokenizer);
rf_status rf_json_steps_read(const rf_json_steps *steps, rf_tokenizer *tokenizer, bool *bytes, bool *spaces,
                             const char *where, rf_error *error);

#endif
