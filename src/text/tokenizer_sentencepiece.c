/* tokenizer_sentencepiece.c - reads tokenizer.model, a protocol buffer. The fields that matter here
 * (sentencepiece_model.proto):
 *
 *   ModelProto       1 repeated SentencePiece   2 TrainerSpec   3 NormalizerSpec
 *   SentencePiece    1 piece   2 float score   3 type (normal when missing)
 *   TrainerSpec      3 model_type   24 treat_whitespace_as_suffix   35 byte_fallback
 *                    45 unk_piece   46 bos_piece   47 eos_piece   48 pad_piece
 *   NormalizerSpec   1 name   2 precompiled_charsmap   3 add_dummy_prefix
 *                    4 remove_extra_whitespaces   5 escape_whitespaces */
#include "text/tokenizer_parts.h"

#include <stddef.h>
#include <stdlib.h>

typedef struct message {
  const unsigned char *at, *end;
  bool broken;
} message;

typedef struct field {
  uint64_t number, value; /* `number` of the field, and `value` of a varint or of a four-byte field */
  rf_span bytes;          /* content of a length-delimited field */
  int wire;
} field;

static uint64_t read_varint(message *m) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (m->at == m->end) break;
    unsigned char c = *m->at++;
    value |= (uint64_t)(c & 0x7F) << shift;
    if (c < 0x80) return value;
  }
  m->broken = true;
  return 0;
}

/* Reads the next field. Returns false at the end of the message, or if the message is broken. */
static bool next_field(message *m, field *f) {
  enum { VARINT = 0, EIGHT = 1, BYTES = 2, FOUR = 5 };
  if (m->broken || m->at == m->end) return false;
  uint64_t tag = read_varint(m), size = 0;
  *f = (field){.number = tag >> 3, .wire = (int)(tag & 7)};
  if (f->wire == VARINT) f->value = read_varint(m);
  else if (f->wire == BYTES) size = read_varint(m);
  else if (f->wire == EIGHT) size = 8;
  else if (f->wire == FOUR) size = 4;
  else m->broken = true;
  if (m->broken || size > (uint64_t)(m->end - m->at)) return m->broken = true, false;
  f->bytes = (rf_span){(const char *)m->at, (size_t)size};
  if (f->wire == FOUR)
    for (int i = 3; i >= 0; i--) f->value = f->value << 8 | m->at[i];
  m->at += size;
  return true;
}

static message message_of(rf_span bytes) {
  return (message){(const unsigned char *)bytes.at, (const unsigned char *)bytes.at + bytes.bytes, false};
}

/* The fields of TrainerSpec and NormalizerSpec that rafter reads, with the defaults of the .proto
 * file. */
typedef struct specification {
  uint64_t model_type, suffix, byte_fallback, dummy_prefix, remove_extra, escape;
  rf_span charsmap, normalizer, rules, unk, bos, eos, pad;
} specification;

enum { TRAINER = 2, NORMALIZER = 3 }; /* field numbers in ModelProto */
#define AT(field) offsetof(specification, field)
static const struct {
  uint64_t message, number;
  bool text; /* true: the field is an rf_span; false: it is a uint64_t */
  size_t offset;
} FIELDS[] = {
    {TRAINER, 3, false, AT(model_type)},
    {TRAINER, 24, false, AT(suffix)},
    {TRAINER, 35, false, AT(byte_fallback)},
    {TRAINER, 45, true, AT(unk)},
    {TRAINER, 46, true, AT(bos)},
    {TRAINER, 47, true, AT(eos)},
    {TRAINER, 48, true, AT(pad)},
    {NORMALIZER, 1, true, AT(normalizer)},
    {NORMALIZER, 2, true, AT(charsmap)},
    {NORMALIZER, 3, false, AT(dummy_prefix)},
    {NORMALIZER, 4, false, AT(remove_extra)},
    {NORMALIZER, 5, false, AT(escape)},
    {NORMALIZER, 6, true, AT(rules)},
};

static bool read_specification(uint64_t number, rf_span bytes, specification *s) {
  message m = message_of(bytes);
  for (field f; next_field(&m, &f);)
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
      if (FIELDS[i].message != number || FIELDS[i].number != f.number) continue;
      char *to = (char *)s + FIELDS[i].offset;
      if (FIELDS[i].text) memcpy(to, &f.bytes, sizeof f.bytes);
      else memcpy(to, &f.value, sizeof f.value);
    }
  return !m.broken;
}

static bool read_piece(rf_span bytes, rf_span *piece, float *score, int32_t *type) {
  message m = message_of(bytes);
  *piece = (rf_span){"", 0};
  *score = 0;
  *type = RF_PIECE_NORMAL;
  for (field f; next_field(&m, &f);) {
    if (f.number == 1 && f.wire == 2) *piece = f.bytes;
    else if (f.number == 2 && f.wire == 5) {
      uint32_t bits = (uint32_t)f.value;
      memcpy(score, &bits, sizeof bits);
    } else if (f.number == 3) *type = f.value < 100 ? (int32_t)f.value : 100;
  }
  return !m.broken;
}

static int32_t id_of(const rf_vocabulary *v, rf_span name, int type) {
  for (int64_t id = 0; id < v->count; id++)
    if (v->types[id] == type && v->pieces[id].bytes == name.bytes &&
        !memcmp(v->pieces[id].at, name.at, name.bytes))
      return (int32_t)id;
  return -1;
}

enum { UNIGRAM = 1, BPE = 2 };

static rf_status check_model(const specification *s, const rf_vocabulary *v, const char *where,
                             rf_error *error) {
  if (s->model_type != UNIGRAM && s->model_type != BPE)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "unsupported SentencePiece model (%s, model_type: expected 1 unigram or 2 BPE, got %llu)",
                   where, (unsigned long long)s->model_type);
  if (s->charsmap.bytes || s->rules.bytes)
    return RF_FAIL(error, RAFTER_FAILED,
                   "only the normalizer 'identity' is supported; try the model's tokenizer.json",
                   "unsupported SentencePiece normalizer (%s, precompiled_charsmap: expected none, got %zu "
                   "bytes of '%.*s')",
                   where, s->charsmap.bytes, (int)(s->normalizer.bytes < 40 ? s->normalizer.bytes : 40),
                   s->normalizer.at);
  if (s->suffix)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "unsupported SentencePiece setting (%s: treat_whitespace_as_suffix)", where);
  bool bytes = false;
  for (int64_t id = 0; id < v->count; id++) {
    bytes |= v->types[id] == RF_PIECE_BYTE;
    if (v->types[id] == RF_PIECE_UNUSED && s->model_type == BPE)
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "unsupported SentencePiece setting (%s: an unused piece in a BPE model, id %lld)", where,
                     (long long)id);
  }
  if (bytes && !s->byte_fallback)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "byte pieces without byte_fallback (%s)", where);
  return RAFTER_OK;
}

/* Sets all fields of `v` except the pieces. */
static void set_vocabulary(const specification *s, rf_vocabulary *v) {
  bool bpe = s->model_type == BPE;
  v->kind = bpe ? "llama" : "unigram";
  v->bos_id = id_of(v, s->bos, RF_PIECE_CONTROL);
  v->eos_id = id_of(v, s->eos, RF_PIECE_CONTROL);
  v->pad_id = id_of(v, s->pad, RF_PIECE_CONTROL);
  v->unk_id = id_of(v, s->unk, RF_PIECE_UNKNOWN);
  v->dummy_prefix = s->dummy_prefix;
  v->remove_extra_whitespace = s->remove_extra;
  v->plain_spaces = !s->escape;
  /* The file does not say whether BOS or EOS is added to a text. BPE models (Llama, Gemma, Mistral)
   * begin a text with BOS. Unigram models (T5) end a text with EOS. */
  v->add_bos = bpe;
  v->add_eos = !bpe;
}

rf_status rf_tokenizer_sentencepiece_read(const char *text, size_t bytes, const char *where,
                                          rf_tokenizer **tokenizer, rf_error *error) {
  rf_status status = RAFTER_OK;
  specification s = {.model_type = UNIGRAM,
                     .dummy_prefix = 1,
                     .remove_extra = 1,
                     .escape = 1,
                     .charsmap = {"", 0},
                     .normalizer = {"", 0},
                     .unk = {"<unk>", 5},
                     .bos = {"<s>", 3},
                     .eos = {"</s>", 4},
                     .pad = {"<pad>", 5}};
  int64_t count = 0;
  bool valid = true;
  *tokenizer = NULL;
  message m = message_of((rf_span){text, bytes});
  for (field f; next_field(&m, &f);) count += f.number == 1 && f.wire == 2;
  rf_span *pieces = malloc(((size_t)count + 1) * sizeof *pieces);
  float *scores = malloc(((size_t)count + 1) * sizeof *scores);
  int32_t *types = malloc(((size_t)count + 1) * sizeof *types);
  rf_vocabulary v = {.pieces = pieces, .scores = scores, .types = types};
  if (!pieces || !scores || !types) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  m = message_of((rf_span){text, bytes});
  for (field f; valid && next_field(&m, &f);) {
    if (f.wire != 2) continue;
    if (f.number == 1) {
      valid = read_piece(f.bytes, &pieces[v.count], &scores[v.count], &types[v.count]);
      v.count++;
    } else if (f.number == TRAINER || f.number == NORMALIZER) {
      valid = read_specification(f.number, f.bytes, &s);
    }
  }
  if (!valid || m.broken || !v.count) {
    status = RF_FAIL(error, RAFTER_FAILED, "check that the file is complete and was made by SentencePiece",
                     "%s is not a SentencePiece model (error after %lld pieces)", where, (long long)v.count);
    goto done;
  }
  RF_GO(check_model(&s, &v, where, error));
  set_vocabulary(&s, &v);
  status = rf_tokenizer_build(&v, where, tokenizer, error);
done:
  free(pieces);
  free(scores);
  free(types);
  return status;
}
