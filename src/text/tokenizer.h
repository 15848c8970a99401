/* tokenizer.h - converts text to token ids and back. A tokenizer is read from one of these:
 * tokenizer.json (Hugging Face), tokenizer.model (SentencePiece), the .bin file of llama2.c, or the
 * vocabulary of a GGUF file. A model without a tokenizer uses the byte tokenizer. The ids 0..255 of
 * the byte tokenizer are the bytes. Id 256 of the byte tokenizer ends a document if the vocabulary
 * has more than 256 ids. An open tokenizer never changes, so several threads may use it at once. An
 * unsupported setting that would change the ids is an error that names the setting. */
#ifndef RF_TOKENIZER_H
#define RF_TOKENIZER_H

#include "base/base.h"

typedef struct rf_tokenizer rf_tokenizer;

/* A reference to bytes that another object owns. The bytes do not end with a NUL. */
typedef struct rf_span {
  const char *at;
  size_t bytes;
} rf_span;

/* A growing list of token ids; {0} is an empty list. */
typedef struct rf_ids {
  int32_t *at;
  int64_t count, capacity;
} rf_ids;
/* reserves memory for `more` further ids */
rf_status rf_ids_reserve(rf_ids *ids, int64_t more, rf_error *error);
rf_status rf_ids_add(rf_ids *ids, int32_t id, rf_error *error);
void rf_ids_free(rf_ids *ids);

/* ---- opening --------------------------------------------------------------------------------- */

/* `path` is a tokenizer file, any .gguf file, or a folder. In a folder, the first of
 * tokenizer.json, tokenizer.gguf, tokenizer.model and tokenizer.bin is opened. A
 * tokenizer_config.json in the same folder only says which tokens are BOS and EOS, and whether
 * encoding adds them. */
rf_status rf_tokenizer_open(const char *path, rf_tokenizer **tokenizer, rf_error *error);
/* Copies the tokenizer of a model to `to_folder`, next to saved weights. `from` is the path that
 * rf_model_resolve returns. If `from` is a folder, or a weight file in a folder, the following
 * files are copied: tokenizer.json, tokenizer.model, the chat template, generation_config.json, ...
 * If `from` is a .gguf file, its tokenizer.* metadata becomes tokenizer.gguf, a GGUF file without
 * tensors. A byte-level BPE is also written as tokenizer.json, and a SentencePiece vocabulary as
 * tokenizer.model. *copied is the number of tokenizer files that were found. */
rf_status rf_tokenizer_files_copy(const char *from, const char *to_folder, int *copied, rf_error *error);
/* Copies the tokenizer `from`, which is a folder, or a file of any name that rf_tokenizer_open
 * reads. The copy goes to the new folder `to_folder`, where rf_tokenizer_open finds the same
 * tokenizer. */
rf_status rf_tokenizer_place(const char *from, const char *to_folder, rf_error *error);
/* Writes a tokenizer_config.json that says that the model was trained on bytes. */
rf_status rf_tokenizer_bytes_write(const char *to_folder, int64_t vocab, rf_error *error);
/* Reads a tokenizer_config.json or chat_template.json. */
struct json_t;
rf_status rf_tokenizer_config_read(const char *path, struct json_t **config, rf_error *error);
/* Returns true if the folder has a tokenizer file. */
bool rf_tokenizer_in(const char *folder);
/* Makes the byte tokenizer for a vocabulary of `vocab` ids. `model` is the model's name in errors.
 * Returns RAFTER_INVALID if the vocabulary has fewer than 256 ids. */
rf_status rf_tokenizer_byte(const char *model, int64_t vocab, rf_tokenizer **tokenizer, rf_error *error);
/* Opens the tokenizer of a model. `folder` is the path that rf_model_resolve returns. If `folder`
 * is empty (the model is given only by its shape), the result is the byte tokenizer. The byte
 * tokenizer is also used if tokenizer_config.json says that the model was trained on bytes. Any
 * other folder must have a tokenizer file. If the folder has no tokenizer file, returns
 * RAFTER_INVALID. RAFTER_FAILED: an id of the tokenizer is outside the model's vocabulary. */
rf_status rf_tokenizer_for(const char *model, int64_t vocab, const char *folder, rf_tokenizer **tokenizer,
                           rf_error *error);
void rf_tokenizer_close(rf_tokenizer *tokenizer); /* NULL is allowed */

/* Types of pieces, with the numbers that SentencePiece and GGUF (tokenizer.ggml.token_type) use. */
typedef enum rf_piece_type {
  RF_PIECE_NORMAL = 1,
  RF_PIECE_UNKNOWN,
  RF_PIECE_CONTROL, /* control pieces, which are found in text only with RF_ENCODE_PARSE */
  /* pieces that are found in the text before it is split into words, and that no merge forms */
  RF_PIECE_USER,
  RF_PIECE_UNUSED,
  RF_PIECE_BYTE, /* "<0x41>" */
} rf_piece_type;

/* A vocabulary in memory, which rf_tokenizer_build copies. The index of a piece in `pieces` is its
 * id. */
typedef struct rf_vocabulary {
  const char *kind; /* "llama": SentencePiece BPE; "unigram": SentencePiece unigram; "gpt2": byte-level BPE */
  /* gpt2: name of the pre-tokenizer in GGUF files ("gpt-2", "llama-bpe", "qwen2", ...) */
  const char *pre;
  int64_t count;
  const rf_span *pieces; /* llama, unigram: UTF-8 with U+2581 for spaces; gpt2: GPT-2's byte alphabet */
  const float *scores;   /* llama, unigram: score of each piece */
  /* rf_piece_type of each piece. If `types` is NULL, all pieces are normal, with two exceptions.
   * The exceptions are the four special ids below and, for "llama" and "unigram", pieces that are
   * spelled "<0xHH>". */
  const int32_t *types;
  int64_t merge_count;                    /* gpt2: number of merges */
  const rf_span *merges;                  /* gpt2: merges "left right", sorted by rank */
  int32_t bos_id, eos_id, pad_id, unk_id; /* -1: the vocabulary has no such token */
  bool add_bos, add_eos;
  bool dummy_prefix;            /* llama, unigram: true if encoding puts a space before the text */
  bool plain_spaces;            /* true: pieces contain plain spaces, not U+2581 (llama2.c) */
  bool remove_extra_whitespace; /* true: encoding joins adjacent spaces, and strips spaces at both ends */
} rf_vocabulary;
rf_status rf_tokenizer_build(const rf_vocabulary *vocabulary, const char *where, rf_tokenizer **tokenizer,
                             rf_error *error);
/* Makes a byte-level BPE with at most `vocab` ids (at least 257) from a text. GPT-2's pattern
 * splits the text into words. The first 256 ids are the bytes in GPT-2's order. Each further id
 * joins the pair of ids that is adjacent at the largest number of places. Of equally frequent
 * pairs, the pair with the smaller left id is joined first, then the pair with the smaller right
 * id. Pairs that occur at only one place, and pairs of more than 1024 bytes, are not joined. The
 * last id is <|endoftext|>. RAFTER_INTERRUPTED: *stop became non-zero. */
rf_status rf_tokenizer_train(const char *text, size_t bytes, int64_t vocab, const volatile int *stop,
                             rf_tokenizer **tokenizer, rf_error *error);
/* Writes a byte-level BPE as tokenizer.json and tokenizer_config.json to an existing folder.
 * *written is false for any other tokenizer. `chat_template`: a text or a list of named templates,
 * as in tokenizer_config.json; NULL: none. */
rf_status rf_tokenizer_json_write(const rf_tokenizer *tokenizer, struct json_t *chat_template,
                                  const char *folder, bool *written, rf_error *error);
/* Parses the text of a tokenizer.json. `where` is the file name in errors. */
rf_status rf_tokenizer_json_read(const char *text, size_t bytes, const char *where, rf_tokenizer **tokenizer,
                                 rf_error *error);

struct rf_gguf_meta;
struct rf_gguf;
/* Copies the tokenizer.* metadata of a GGUF file unchanged. */
rf_status rf_tokenizer_gguf_copy(const struct rf_gguf *file, struct rf_gguf_meta *meta, rf_error *error);
/* Writes the tokenizer as metadata of a GGUF file for a model with `vocab` ids. Returns
 * RAFTER_INVALID with the reason if GGUF cannot represent the tokenizer. */
rf_status rf_tokenizer_gguf_write(const rf_tokenizer *tokenizer, int64_t vocab, const char *where,
                                  struct rf_gguf_meta *meta, rf_error *error);

/* ---- text to ids ----------------------------------------------------------------------------- */

enum {
  RF_ENCODE_BOS_EOS = 1, /* add BOS and EOS around a text if the tokenizer adds them */
  /* Special tokens that are spelled in the text become ids. Without this flag, spelled special
   * tokens stay text. */
  RF_ENCODE_PARSE = 2,
};
/* Appends the ids of a text. Any bytes are accepted. Bytes that are not valid UTF-8 become byte
 * pieces or the unknown id. Returns RAFTER_FAILED if a character has no piece and the vocabulary
 * has no unknown id. */
rf_status rf_tokenizer_encode(const rf_tokenizer *tokenizer, const char *text, size_t bytes, int flags,
                              rf_ids *ids, rf_error *error);

/* ---- ids to text ----------------------------------------------------------------------------- */

/* Returns the bytes to which one id decodes. U+2581 becomes a space, "<0x41>" becomes 'A', and
 * "\xC4\xA0the" of a byte-level vocabulary becomes " the". A special id gives its name. An id that
 * is unknown gives no bytes. The bytes are valid until the tokenizer is closed. */
rf_span rf_tokenizer_text_of(const rf_tokenizer *tokenizer, int32_t id);
/* Returns a piece as the file spells it. For a byte-level vocabulary, returns the piece's bytes. */
rf_span rf_tokenizer_piece(const rf_tokenizer *tokenizer, int32_t id);
/* Returns the id of a piece, or of the special token with this name, or -1. */
int32_t rf_tokenizer_find(const rf_tokenizer *tokenizer, const char *piece, size_t bytes);

enum {
  RF_DECODE_SPECIALS = 1, /* special ids decode to their names; without this flag, they decode to nothing */
  /* The ids continue an earlier text (an answer after its prompt), so a leading space is kept. */
  RF_DECODE_CONTINUES = 2,
};
/* Returns a malloc'ed *text that ends with a NUL. *bytes does not count the NUL. Decoding
 * removes the space that encoding put before the text. */
rf_status rf_tokenizer_decode(const rf_tokenizer *tokenizer, const int32_t *ids, int64_t count, int flags,
                              char **text, size_t *bytes, rf_error *error);

/* Decodes ids one at a time. Each call returns those characters that are complete. Bytes that
 * cannot begin a character are returned at once. */
typedef struct rf_decoder {
  const rf_tokenizer *tokenizer;
  int flags;
  bool begun; /* true: some text was already returned, so a leading space is kept */
  int held;   /* number of bytes of the unfinished character */
  char hold[4];
} rf_decoder;
void rf_decoder_start(rf_decoder *decoder, const rf_tokenizer *tokenizer, int flags);
/* Decodes one more id. Writes at most rf_decoder_room() bytes without a NUL, and returns the number
 * of bytes. */
size_t rf_decoder_next(rf_decoder *decoder, int32_t id, char *out);
size_t rf_decoder_end(rf_decoder *decoder, char *out); /* writes the bytes of an unfinished last character */
size_t
rf_decoder_room(const rf_tokenizer *tokenizer); /* maximum number of bytes that rf_decoder_next writes */

/* ---- facts ----------------------------------------------------------------------------------- */

/* returns "byte", "bpe", "byte-level bpe" or "unigram" */
const char *rf_tokenizer_name(const rf_tokenizer *tokenizer);
int64_t rf_tokenizer_vocab(const rf_tokenizer *tokenizer); /* all ids are smaller than this number */
/* Returns the total bytes of the pieces that are merged by score (SentencePiece). Opening a
 * vocabulary spends most of its time on pieces that are merged by score. 0: the file lists merges,
 * or has no merges. */
int64_t rf_tokenizer_scored_bytes(const rf_tokenizer *tokenizer);
/* Returns the size of the tokenizer.json in bytes. 0: the tokenizer was read from another file. */
int64_t rf_tokenizer_json_bytes(const rf_tokenizer *tokenizer);
bool rf_tokenizer_is_special(const rf_tokenizer *tokenizer, int32_t id);
/* The next four functions return an id, or -1 if the tokenizer lacks the token. */
int32_t rf_tokenizer_bos(const rf_tokenizer *tokenizer);
int32_t rf_tokenizer_eos(const rf_tokenizer *tokenizer);
int32_t rf_tokenizer_pad(const rf_tokenizer *tokenizer);
int32_t rf_tokenizer_unk(const rf_tokenizer *tokenizer);
bool rf_tokenizer_is_byte(const rf_tokenizer *tokenizer); /* returns true for the built-in byte tokenizer */

#endif
