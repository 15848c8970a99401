/* tokenizer.h - text to token ids and back. One implementation; its data comes from
 * tokenizer.json (Hugging Face), tokenizer.model (SentencePiece), the .bin of llama2.c, or a
 * description in memory (the vocabulary of a GGUF file). Built in for models that bring none:
 * the byte tokenizer, whose ids 0..255 are the bytes themselves and whose id 256 ends a document
 * where the vocabulary has room for it.
 *
 * A tokenizer never changes once it is open: any number of threads may use one at the same time.
 * A setting that would change the ids and is not known here is refused by its name. */
#ifndef RF_TOKENIZER_H
#define RF_TOKENIZER_H

#include "base/base.h"

typedef struct rf_tokenizer rf_tokenizer;

/* Some bytes of somebody else's; no NUL behind them. */
typedef struct rf_span {
  const char *at;
  size_t bytes;
} rf_span;

/* A list of ids that grows; {0} is an empty one. */
typedef struct rf_ids {
  int32_t *at;
  int64_t count, capacity;
} rf_ids;
rf_status rf_ids_reserve(rf_ids *ids, int64_t more, rf_error *error); /* room for so many more */
rf_status rf_ids_add(rf_ids *ids, int32_t id, rf_error *error);
void rf_ids_free(rf_ids *ids);

/* ---- opening --------------------------------------------------------------------------------- */

/* A folder (its tokenizer.json, else its tokenizer.gguf, tokenizer.model or tokenizer.bin), one
 * such file, or any .gguf file. tokenizer_config.json beside it, where there is one, may only
 * turn the document marks on or off and name them. */
rf_status rf_tokenizer_open(const char *path, rf_tokenizer **tokenizer, rf_error *error);
/* What makes text of a model's tokens goes along with its weights. `from` as rf_model_resolve
 * gives it: of a folder, or the folder of a weight file, its files (tokenizer.json,
 * tokenizer.model, chat template, generation_config.json, ...); of a .gguf file its tokenizer.*
 * metadata as the file tokenizer.gguf, which has no tensors, and of a byte-level BPE
 * tokenizer.json too, of a SentencePiece vocabulary tokenizer.model. *copied says how many files
 * of the tokenizer there were. */
rf_status rf_tokenizer_files_copy(const char *from, const char *to_folder, int *copied, rf_error *error);
/* Of a model that was trained on bytes: tokenizer_config.json says so, which is what
 * rf_tokenizer_for asks. */
rf_status rf_tokenizer_bytes_write(const char *to_folder, int64_t vocab, rf_error *error);
/* Whether a folder brings a tokenizer. */
bool rf_tokenizer_in(const char *folder);
/* The byte tokenizer for a model, named in errors, with `vocab` rows. RAFTER_INVALID when the
 * vocabulary has fewer than 256 rows. */
rf_status rf_tokenizer_byte(const char *model, int64_t vocab, rf_tokenizer **tokenizer, rf_error *error);
/* What a model is read with. `folder` as rf_model_resolve gives it: "", a shape, is read byte by
 * byte, and so is a folder that says so; every other folder, or the folder of a weight file,
 * brings its own. RAFTER_INVALID when it brings none, RAFTER_FAILED when an id of the tokenizer
 * has no row in the model's vocabulary. */
rf_status rf_tokenizer_for(const char *model, int64_t vocab, const char *folder, rf_tokenizer **tokenizer,
                           rf_error *error);
void rf_tokenizer_close(rf_tokenizer *tokenizer); /* NULL is allowed */

/* The numbers of SentencePiece and of GGUF's tokenizer.ggml.token_type. */
typedef enum rf_piece_type {
  RF_PIECE_NORMAL = 1,
  RF_PIECE_UNKNOWN,
  RF_PIECE_CONTROL, /* found in text only when special tokens are asked for */
  RF_PIECE_USER,    /* always found in text, never merged */
  RF_PIECE_UNUSED,
  RF_PIECE_BYTE, /* "<0x41>" */
} rf_piece_type;

/* A vocabulary in memory; nothing in it is kept. Ids are the indices of `pieces`. */
typedef struct rf_vocabulary {
  const char *kind; /* "llama": SentencePiece BPE; "unigram": SentencePiece unigram; "gpt2": byte-level BPE */
  /* gpt2: how text is cut before merging, by GGUF's names: "gpt-2", "llama-bpe", "qwen2",
   * "smollm", ... */
  const char *pre;
  int64_t count;
  const rf_span *pieces; /* llama, unigram: UTF-8, spaces as U+2581; gpt2: in GPT-2's byte alphabet */
  const float *scores;   /* llama, unigram */
  /* rf_piece_type; NULL: every piece is normal but the four below, and "<0xHH>" where the kind
   * is llama */
  const int32_t *types;
  int64_t merge_count; /* gpt2: "left right" by rank */
  const rf_span *merges;
  int32_t bos_id, eos_id, pad_id, unk_id; /* -1: none */
  bool add_bos, add_eos;
  bool dummy_prefix;            /* llama, unigram: a space goes in front of the text */
  bool plain_spaces;            /* pieces hold spaces as they are (llama2.c) */
  bool remove_extra_whitespace; /* runs of spaces become one, those at both ends go */
} rf_vocabulary;
rf_status rf_tokenizer_build(const rf_vocabulary *vocabulary, const char *where, rf_tokenizer **tokenizer,
                             rf_error *error);
/* A tokenizer.json by its text; `where` begins messages. */
rf_status rf_tokenizer_json_read(const char *text, size_t bytes, const char *where, rf_tokenizer **tokenizer,
                                 rf_error *error);

/* The tokenizer as metadata of a GGUF file for a model with `vocab` rows. RAFTER_INVALID, with
 * the reason: GGUF has no place for it. */
struct rf_gguf_meta;
struct rf_gguf;
/* What a GGUF file says of its tokenizer, as it stands. */
rf_status rf_tokenizer_gguf_copy(const struct rf_gguf *file, struct rf_gguf_meta *meta, rf_error *error);
rf_status rf_tokenizer_gguf_write(const rf_tokenizer *tokenizer, int64_t vocab, const char *where,
                                  struct rf_gguf_meta *meta, rf_error *error);

/* ---- text to ids ----------------------------------------------------------------------------- */

enum {
  RF_ENCODE_MARKS = 1, /* what the tokenizer itself puts around a text: BOS, EOS */
  /* special tokens spelled in the text become their ids; without it they are plain text */
  RF_ENCODE_PARSE = 2,
};
/* Appends the ids of a text. Any bytes are text: what is no UTF-8 becomes byte pieces, or the
 * unknown id. RAFTER_FAILED when the vocabulary has no piece for something in it and no unknown
 * id either. */
rf_status rf_tokenizer_encode(const rf_tokenizer *tokenizer, const char *text, size_t bytes, int flags,
                              rf_ids *ids, rf_error *error);

/* ---- ids to text ----------------------------------------------------------------------------- */

/* The bytes one id stands for (U+2581 is a space, "<0x41>" is 'A', "\xC4\xA0the" of a byte-level
 * vocabulary is " the"); of a special id its name. Empty for an id that is not there. Lives as
 * long as the tokenizer. */
rf_span rf_tokenizer_text_of(const rf_tokenizer *tokenizer, int32_t id);
/* As the file spells it; of a byte-level vocabulary the bytes. */
rf_span rf_tokenizer_piece(const rf_tokenizer *tokenizer, int32_t id);
/* The id of a piece or of a special token's name, or -1. */
int32_t rf_tokenizer_find(const rf_tokenizer *tokenizer, const char *piece, size_t bytes);

enum {
  RF_DECODE_SPECIALS = 1, /* special ids give their names; without it they give nothing */
  /* text stands in front of the first id (an answer behind its prompt): a leading space stays */
  RF_DECODE_CONTINUES = 2,
};
/* malloc'ed, with a NUL behind it that *bytes does not count. The space that encoding put in
 * front is taken away again. */
rf_status rf_tokenizer_decode(const rf_tokenizer *tokenizer, const int32_t *ids, int64_t count, int flags,
                              char **text, size_t *bytes, rf_error *error);

/* Decoding as ids come: each call gives the whole characters that are certain by now. Bytes that
 * can begin no character come out at once. */
typedef struct rf_decoder {
  const rf_tokenizer *tokenizer;
  int flags;
  bool begun; /* something came out: a leading space is text from here on */
  int held;   /* bytes of an unfinished character */
  char hold[4];
} rf_decoder;
void rf_decoder_start(rf_decoder *decoder, const rf_tokenizer *tokenizer, int flags);
/* Writes at most rf_decoder_room() bytes, returns how many; no NUL. */
size_t rf_decoder_next(rf_decoder *decoder, int32_t id, char *out);
size_t rf_decoder_end(rf_decoder *decoder, char *out); /* what was held back */
size_t rf_decoder_room(const rf_tokenizer *tokenizer); /* the longest text of one id, and a held character */

/* ---- facts ----------------------------------------------------------------------------------- */

const char *rf_tokenizer_name(const rf_tokenizer *tokenizer); /* "byte", "bpe", "byte-level bpe", "unigram" */
int64_t rf_tokenizer_vocab(const rf_tokenizer *tokenizer);    /* every id is below this */
/* Bytes of the pieces that merge by their scores, which is what takes time to open such a
 * vocabulary; 0: merges are listed, or there are none. */
int64_t rf_tokenizer_scored_bytes(const rf_tokenizer *tokenizer);
/* Of the tokenizer.json it was read from; 0 of other files. */
int64_t rf_tokenizer_json_bytes(const rf_tokenizer *tokenizer);
bool rf_tokenizer_is_special(const rf_tokenizer *tokenizer, int32_t id);
int32_t rf_tokenizer_bos(const rf_tokenizer *tokenizer); /* -1: none, here and below */
int32_t rf_tokenizer_eos(const rf_tokenizer *tokenizer);
int32_t rf_tokenizer_pad(const rf_tokenizer *tokenizer);
int32_t rf_tokenizer_unk(const rf_tokenizer *tokenizer);
bool rf_tokenizer_is_byte(const rf_tokenizer *tokenizer); /* the built-in one */

#endif
