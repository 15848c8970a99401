/* tokenizer_parts.h - what the files tokenizer*.c share. Readers (json, sentencepiece, llama2c,
 * build) fill these parts, then only encoding and decoding walk them.
 *
 *   text ──raw added tokens──> segments ──normalize──> text ──normalized added tokens──>
 *     segments ──prepare, split──> words ──model──> ids */
#ifndef RF_TOKENIZER_PARTS_H
#define RF_TOKENIZER_PARTS_H

#include "text/tokenizer.h"

#include <string.h>

#define RF_SPACE_MARK "\xE2\x96\x81" /* U+2581, a space in SentencePiece's pieces */

typedef struct rf_buffer {
  char *at;
  size_t bytes, capacity;
} rf_buffer;
rf_status rf_buffer_reserve(rf_buffer *buffer, size_t more, rf_error *error);
rf_status rf_buffer_add(rf_buffer *buffer, const char *at, size_t bytes, rf_error *error);

/* ---- pieces (tokenizer_pieces.c) ------------------------------------------------------------- */

/* bytes of one piece: what is derived from a piece costs the square of its length */
enum { RF_PIECE_MOST = 4096 };

typedef struct rf_piece_row {
  uint32_t first, bytes; /* its spelling in pieces.text; bytes 0: no such id */
  uint8_t type;          /* rf_piece_type, 0: no such id */
  bool special;
} rf_piece_row;

typedef struct rf_pieces {
  int64_t count, capacity; /* ids of the vocabulary, and rows there is room for */
  rf_piece_row *row;
  rf_buffer text;
  uint64_t *slots; /* open addressing: upper half of the hash, then id + 1 */
  uint64_t mask, used;
} rf_pieces;

rf_status rf_pieces_reserve(rf_pieces *pieces, int64_t ids, rf_error *error);
/* A piece under its id, which text does not find yet. RAFTER_FAILED when the id is taken. */
rf_status rf_pieces_put(rf_pieces *pieces, int64_t id, rf_span text, rf_piece_type type, const char *where,
                        rf_error *error);
/* Text finds all normal pieces from now on (`users`: the user's too): once, since the memory of
 * many is waited for together. RAFTER_FAILED when two have one spelling. */
rf_status rf_pieces_list(rf_pieces *pieces, bool users, const char *where, rf_error *error);
int32_t rf_pieces_find(const rf_pieces *pieces, const char *at, size_t bytes); /* -1: none */
/* At most RF_FIND_MOST at once: their memory is waited for together, which is most of the time
 * that reading merges takes. */
enum { RF_FIND_MOST = 96 };
void rf_pieces_find_many(const rf_pieces *pieces, const rf_span *keys, int count, int32_t *ids);
static inline rf_span rf_pieces_at(const rf_pieces *pieces, int64_t id) {
  return (rf_span){pieces->text.at + pieces->row[id].first, pieces->row[id].bytes};
}
void rf_pieces_free(rf_pieces *pieces);

/* ---- tokens found in text before anything else (tokenizer_added.c) --------------------------- */

typedef struct rf_added {
  rf_span text;
  int32_t id;
  bool special, lstrip, rstrip, single_word;
} rf_added;

/* Sorted by text, so that what begins with the same bytes is a range. */
typedef struct rf_matcher {
  int count, capacity;
  rf_added *at;
  int first[257]; /* of each first byte */
} rf_matcher;

/* keeps a copy of the text */
rf_status rf_matcher_add(rf_matcher *matcher, const rf_added *added, rf_error *error);
rf_status rf_matcher_sort(rf_matcher *matcher, const char *where, rf_error *error);
/* The first match in [at, end), the longest there. false: none. What is cut out is [*start,
 * *stop), with the blanks a token takes along. */
bool rf_matcher_next(const rf_matcher *matcher, const char *text, const char *at, const char *end,
                     bool specials, const char **start, const char **stop, int32_t *id);
void rf_matcher_free(rf_matcher *matcher);

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
  char *from, *to;     /* replace a literal; prepend: `to` */
  size_t from_bytes, to_bytes;
  int unicode;      /* utf8proc's options */
  bool left, right; /* strip; squeeze: `right` takes U+2581 at the end too */
} rf_normal;

enum { RF_STEPS_MOST = 16 };
typedef struct rf_normals {
  int count;
  rf_normal at[RF_STEPS_MOST];
} rf_normals;
/* `text` itself when no step changes it, else a text in `buffer` or `spare`. */
rf_status rf_normalize(const rf_normals *normals, rf_span text, rf_buffer *buffer, rf_buffer *spare,
                       rf_span *result, rf_error *error);
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
  rf_split at[RF_STEPS_MOST];
  /* Before the first split, on each segment: */
  bool prefix;       /* put `mark` or a space in front unless it is there */
  bool prefix_first; /* ... of the text's first segment only */
  bool mark;         /* spaces become U+2581 */
} rf_splits;

extern const char RF_GPT2_PATTERN[];
rf_status rf_pattern_new(const char *text, size_t bytes, bool literal, const char *where,
                         rf_pattern **pattern, rf_error *error);
void rf_pattern_free(rf_pattern *pattern);
const char *rf_pattern_literal(const rf_pattern *pattern); /* NULL: a regular expression */
const char *rf_pattern_text(const rf_pattern *pattern);    /* as it was given */
/* The next match in [at, end) that is not empty; 1 found, 0 none, -1 the pattern needs more than
 * is reasonable. `text` begins the subject. */
int rf_pattern_next(const rf_pattern *pattern, void *match, const char *text, const char *at, const char *end,
                    const char **start, const char **stop);
void *rf_match_new(void);
void rf_match_free(void *match);
rf_status rf_splits_add(rf_splits *splits, const char *text, size_t bytes, bool literal,
                        rf_behaviour behaviour, bool invert, const char *where, rf_error *error);
/* The splits that GGUF calls by this name; *ignore_merges with it. */
rf_status rf_splits_named(const char *name, rf_splits *splits, bool *ignore_merges, const char *where,
                          rf_error *error);
/* The name of these splits, or NULL. */
const char *rf_splits_name(const rf_splits *splits, bool ignore_merges);
typedef rf_status rf_word_function(void *self, const char *word, size_t bytes, rf_error *error);
rf_status rf_split_words(const rf_splits *splits, void *match, const char *text, size_t bytes,
                         rf_word_function *word, void *self, rf_error *error);
void rf_splits_free(rf_splits *splits);

/* ---- models (tokenizer_bpe.c, tokenizer_unigram.c) ------------------------------------------- */

typedef struct rf_pair {
  uint32_t left, right, rank, id; /* rank RF_NO_RANK: an empty slot */
} rf_pair;
#define RF_NO_RANK UINT32_MAX

typedef struct rf_bpe {
  rf_pair *slots;
  uint64_t mask;
  int64_t pairs;
  /* of each piece, where any two neighbours merge whose text together is one; NULL: where the
   * pairs are listed */
  uint32_t *rank;
  uint32_t longest;    /* bytes of the longest piece that has a rank */
  bool byte_level;     /* symbols are bytes; else characters */
  bool ignore_merges;  /* a word that is a piece is that piece */
  int32_t symbol[256]; /* id of a byte (byte_level) or of an ASCII character; -1: none */
  /* one bit for each pair of neighbouring characters inside any piece, hashed: text is cut
   * between all others */
  uint64_t *inside;
} rf_bpe;

typedef struct rf_edge {
  uint32_t node, child; /* child 0: an empty slot */
  uint8_t byte;
} rf_edge;
typedef struct rf_unigram {
  rf_edge *edges; /* the trie: (node, byte) -> child */
  uint64_t mask;
  uint32_t nodes, node_capacity;
  int32_t *piece; /* of a node; -1: none */
  double *score;  /* of a piece */
  double unknown; /* score of an unknown character */
  bool single;    /* sums are rounded to float, as SentencePiece does */
} rf_unigram;

typedef enum rf_model_kind { RF_TOKENS_BYTE, RF_TOKENS_BPE, RF_TOKENS_UNIGRAM } rf_model_kind;

struct rf_tokenizer {
  rf_model_kind kind;
  rf_pieces pieces;
  rf_matcher raw, normalized; /* matched before and after normalizing */
  rf_normals normals;
  rf_splits splits;
  rf_bpe bpe;
  rf_unigram unigram;
  bool fuse_unknown;
  int32_t fallback[256]; /* id of a byte's piece; used when all of them are there and the model says so */
  bool byte_fallback;
  int32_t bos_id, eos_id, pad_id, unk_id;
  int32_t *prefix, *suffix; /* marks */
  int prefix_count, suffix_count;
  /* decoding */
  rf_buffer decoded;    /* texts of pieces that are not their own spelling */
  uint64_t *decoded_at; /* first byte in `decoded` << 16 | bytes; UINT64_MAX: the spelling */
  size_t longest;       /* text of one id */
  int64_t scored_bytes; /* of the pieces that merge by their scores */
  int64_t json_bytes;   /* of the tokenizer.json it was read from; 0: another file */
  bool strip_leading;   /* one space at the beginning was not in the text */
};

/* What one call to encode works with. */
typedef struct rf_encoding rf_encoding;
/* Unknown bytes: their byte pieces, or the unknown id (fused with one right before it in this
 * segment). */
rf_status rf_encode_unknown(rf_encoding *e, const char *at, size_t bytes, rf_error *error);
struct rf_cache;
typedef struct rf_symbol {
  uint32_t id, rank, merged; /* id of this symbol; rank and result of merging it with the next */
  uint32_t first;            /* its first byte in the word */
} rf_symbol;
struct rf_encoding {
  const rf_tokenizer *tokenizer;
  rf_ids *ids;
  int64_t segment_ids; /* ids before this segment */
  bool specials;
  const char *text, *end;
  void *match;
  rf_buffer buffer[3];
  struct rf_cache *cache;
  uint64_t cache_mask;
  rf_symbol *symbols; /* of a long word */
  uint32_t *next, *previous;
  uint64_t *heap;
  size_t symbol_capacity, heap_capacity;
  double *path_score; /* unigram: per byte of a segment */
  uint32_t *path_from;
  int32_t *path_id;
  size_t path_capacity;
};

rf_status rf_bpe_reserve(rf_bpe *bpe, int64_t pairs, rf_error *error);
/* that this pair comes soon */
void rf_bpe_expect(const rf_bpe *bpe, uint32_t left, uint32_t right);
/* a pair named twice keeps the later rank */
void rf_bpe_pair(rf_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* When all pieces and pairs are in: symbols and where text can be cut. */
rf_status rf_bpe_finish(rf_tokenizer *tokenizer, const char *where, rf_error *error);
rf_status rf_bpe_word(void *encoding, const char *word, size_t bytes, rf_error *error);
void rf_bpe_free(rf_bpe *bpe);
rf_status rf_cache_new(rf_encoding *e, size_t bytes, rf_error *error);

/* scores[id] of each piece. */
rf_status rf_unigram_build(rf_tokenizer *tokenizer, const double *scores, bool sentencepiece,
                           const char *where, rf_error *error);
rf_status rf_unigram_word(void *encoding, const char *word, size_t bytes, rf_error *error);
void rf_unigram_free(rf_unigram *unigram);

/* ---- readers --------------------------------------------------------------------------------- */

rf_tokenizer *rf_tokenizer_new(rf_model_kind kind, rf_error *error);
/* The byte pieces, the matchers, the texts of all pieces: the last step of every reader.
 * `bytes`: "<0x41>" is a byte; `spaces`: U+2581 is one. */
rf_status rf_tokenizer_finish(rf_tokenizer *tokenizer, bool bytes, bool spaces, const char *where,
                              rf_error *error);
rf_status rf_tokenizer_marks(rf_tokenizer *tokenizer, const int32_t *prefix, int prefix_count,
                             const int32_t *suffix, int suffix_count, rf_error *error);
/* Bytes of a spelling in GPT-2's alphabet into `out` (room for `piece.bytes`), or -1 when it
 * holds another character. */
int64_t rf_alphabet_bytes(rf_span piece, char *out);
/* The other way, into `out` (room for twice the bytes); returns how many. */
size_t rf_alphabet_text(rf_span bytes, char *out);
int rf_byte_piece(rf_span piece); /* "<0x41>" -> 65; -1: it is none */

rf_status rf_tokenizer_sentencepiece_read(const char *text, size_t bytes, const char *where,
                                          rf_tokenizer **tokenizer, rf_error *error);
rf_status rf_tokenizer_llama2c_read(const char *text, size_t bytes, const char *where,
                                    rf_tokenizer **tokenizer, rf_error *error);
/* tokenizer_config.json beside a tokenizer, if it is there; `says_marks`: also whether BOS and
 * EOS go around a text. */
rf_status rf_tokenizer_config_apply(rf_tokenizer *tokenizer, const char *tokenizer_path, bool says_marks,
                                    rf_error *error);
/* The folder that `from`, a folder or a weight file, has its tokenizer in. */
void rf_tokenizer_folder(const char *from, char folder[4096]);
/* Whether a folder's tokenizer_config.json says that its model reads bytes. */
bool rf_tokenizer_says_bytes(const char *folder);
/* The tokenizer.* metadata of a GGUF file as a GGUF file without tensors; *written is false
 * where the file has no vocabulary. */
rf_status rf_tokenizer_gguf_extract(const char *from, const char *to, bool *written, rf_error *error);
/* tokenizer.json and tokenizer_config.json of a byte-level BPE, with its chat template (may be
 * NULL); *written is false of any other tokenizer. */
rf_status rf_tokenizer_json_write(const rf_tokenizer *tokenizer, const char *chat_template,
                                  size_t template_bytes, const char *folder, bool *written, rf_error *error);
/* tokenizer_config.json: marks and template; `class` NULL: left to config.json, and whether
 * marks go around a text is said. */
rf_status rf_tokenizer_config_write(const rf_tokenizer *tokenizer, const char *class,
                                    const char *chat_template, size_t template_bytes, const char *folder,
                                    rf_error *error);
/* tokenizer.model of the SentencePiece vocabulary of a GGUF file; *written is false of any
 * other, and of one that SentencePiece would read otherwise. */
struct rf_gguf_vocab;
rf_status rf_tokenizer_model_write(const struct rf_gguf_vocab *vocab, const char *folder, bool *written,
                                   rf_error *error);
/* The vocabulary inside a GGUF file. */
rf_status rf_tokenizer_gguf_open(const char *path, rf_tokenizer **tokenizer, rf_error *error);
/* normalizer, pre_tokenizer, decoder and post_processor of tokenizer.json
 * (tokenizer_json_steps.c); each may be NULL or null. */
typedef struct rf_json_steps {
  struct json_t *normalizer, *pre_tokenizer, *decoder, *post_processor;
} rf_json_steps;
bool rf_json_is_byte_level(const struct json_t *pre_tokenizer);
rf_status rf_json_steps_read(const rf_json_steps *steps, rf_tokenizer *tokenizer, bool *bytes, bool *spaces,
                             const char *where, rf_error *error);

/* ---- UTF-8 (tokenizer_utf8.c) ---------------------------------------------------------------- */

/* Bytes of the character at `at`, 1 to 4; 0: no UTF-8 there. */
int rf_utf8_length(const char *at, const char *end);
uint32_t rf_utf8_code(const char *at, int bytes);
/* The end of the UTF-8 that begins at `at`. */
const char *rf_utf8_valid(const char *at, const char *end);
int rf_utf8_put(uint32_t code, char out[4]);
bool rf_code_is_blank(uint32_t code); /* White_Space */
bool rf_code_is_word(uint32_t code);  /* a letter, mark, digit or connector */

#endif
