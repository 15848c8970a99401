/* tokenizer_json.c - reads Hugging Face's tokenizer.json. Nearly all bytes of the file are the
 * vocabulary and the merges. A scanner for strict JSON, without recursion, reads these parts. All
 * threads read the merges, so that 33 MB of merges take only a fraction of a second. Jansson reads
 * all other parts of the file. */
#include "text/tokenizer_parts.h"

#include "base/json.h"

#include <stdlib.h>

enum { DEPTH_MAX = 64 };

typedef struct scan {
  const char *at, *end, *text, *where;
  rf_error *error;
} scan;

static rf_status fail_expected(const scan *s, const char *expected) {
  return RF_FAIL(s->error, RAFTER_FAILED, NULL, "%s is not a tokenizer (byte %lld: expected %s)", s->where,
                 (long long)(s->at - s->text), expected);
}

static inline void skip_blanks(scan *s) {
  while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t')) s->at++;
}

static inline bool take_char(scan *s, char c) {
  skip_blanks(s);
  if (s->at == s->end || *s->at != c) return false;
  s->at++;
  return true;
}

static rf_status expect_char(scan *s, char c, const char *expected) {
  return take_char(s, c) ? RAFTER_OK : fail_expected(s, expected);
}

/* ---- strings --------------------------------------------------------------------------------- */

static int read_hex4(const char *at, const char *end) {
  int value = 0;
  if (end - at < 4) return -1;
  for (int i = 0; i < 4; i++) {
    char c = at[i];
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

/* Decodes one escape into UTF-8. s->at is after the backslash. Returns its bytes; 0: invalid. */
static int read_escape(scan *s, char out[4]) {
  static const char NAMES[] = "\"\\/bfnrt", VALUES[] = "\"\\/\b\f\n\r\t";
  if (s->at == s->end) return 0;
  char c = *s->at++;
  const char *name = c ? strchr(NAMES, c) : NULL;
  if (name) {
    out[0] = VALUES[name - NAMES];
    return 1;
  }
  int code = c == 'u' ? read_hex4(s->at, s->end) : -1, low;
  if (code < 0 || (code >= 0xDC00 && code <= 0xDFFF)) return 0;
  s->at += 4;
  if (code < 0xD800 || code > 0xDBFF) return rf_utf8_put((uint32_t)code, out);
  if (s->end - s->at < 6 || s->at[0] != '\\' || s->at[1] != 'u' ||
      (low = read_hex4(s->at + 2, s->end)) < 0xDC00 || low > 0xDFFF)
    return 0;
  s->at += 6;
  return rf_utf8_put(0x10000u + ((uint32_t)(code - 0xD800) << 10 | (uint32_t)(low - 0xDC00)), out);
}

static rf_status read_string(scan *s, char out[RF_PIECE_MAX], size_t *bytes) {
  size_t count = 0;
  if (!take_char(s, '"')) return fail_expected(s, "a string");
  for (;;) {
    const char *from = s->at;
    while (s->at < s->end && *s->at != '"' && *s->at != '\\' && (unsigned char)*s->at >= ' ') s->at++;
    size_t n = (size_t)(s->at - from);
    if (n > RF_PIECE_MAX - 4 - count) return fail_expected(s, "a string of at most 4092 bytes");
    memcpy(out + count, from, n);
    count += n;
    if (s->at == s->end) return fail_expected(s, "the end of a string");
    char c = *s->at++;
    if (c == '"') break;
    n = c == '\\' ? (size_t)read_escape(s, out + count) : 0;
    if (!n) return fail_expected(s, "a JSON string");
    count += n;
    if (count > RF_PIECE_MAX - 4) return fail_expected(s, "a string of at most 4092 bytes");
  }
  *bytes = count;
  return RAFTER_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A long array is divided at some of its commas, so that several threads can read it. `cut` has the
 * positions of the commas that divide the array. The part between two such commas is a stretch, and
 * one thread reads it. */
#ifdef RF_FUZZ
enum { CUTS_MAX = 64, CUT_BYTES = 64 }; /* the inputs are small */
#else
enum { CUTS_MAX = 64, CUT_BYTES = 1 << 18 };
#endif
typedef struct cuts {
  int count;
  const char *at[CUTS_MAX];
} cuts;

/* Skips a value and stores its bytes in *value. Only strings and brackets matter for finding the
 * end of the value. The content of the value is parsed later. */
static rf_status skip_value(scan *s, rf_span *value, cuts *cut) {
  static const char PLAIN[256] = {['"'] = 1, ['['] = 1, [']'] = 1, ['{'] = 1, ['}'] = 1, [','] = 1};
  int depth = 0;
  skip_blanks(s);
  const char *from = s->at, *last = from;
  for (; s->at < s->end; s->at++) {
    while (s->at < s->end && !PLAIN[(unsigned char)*s->at]) s->at++;
    if (s->at == s->end) break;
    char c = *s->at;
    if (c == '"') {
      for (s->at++; s->at < s->end && *s->at != '"'; s->at++)
        if (*s->at == '\\') s->at++;
      if (s->at >= s->end) break;
    } else if (c == '[' || c == '{') {
      if (++depth > DEPTH_MAX) return fail_expected(s, "fewer nested brackets");
    } else if (depth == 0) break; /* a comma, or the bracket that encloses the value */
    else if (c != ',') depth--;
    else if (cut && depth == 1 && cut->count < CUTS_MAX && s->at - last >= CUT_BYTES)
      cut->at[cut->count++] = last = s->at;
  }
  if (s->at > s->end) s->at = s->end;
  if (depth || s->at == s->end || s->at == from) return fail_expected(s, "a JSON value");
  *value = (rf_span){from, (size_t)(s->at - from)};
  return RAFTER_OK;
}

static rf_status read_id(scan *s, int64_t most, int64_t *value) {
  skip_blanks(s);
  const char *from = s->at;
  *value = 0;
  for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++) {
    *value = *value * 10 + (*s->at - '0');
    if (*value > most) return fail_expected(s, "a smaller id");
  }
  return s->at > from && (*from != '0' || s->at == from + 1) ? RAFTER_OK : fail_expected(s, "an id");
}

static rf_status read_real(scan *s, double *value) {
  char text[40], *end;
  size_t n = 0;
  skip_blanks(s);
  while (s->at < s->end && n < sizeof text - 1 && *s->at && strchr("+-.eE0123456789", *s->at))
    text[n++] = *s->at++;
  text[n] = 0;
  *value = strtod(text, &end);
  return n && !*end ? RAFTER_OK : fail_expected(s, "a number");
}

/* Fails if the skipped value has more text than was parsed. White space is allowed. */
static rf_status expect_end(scan *s) {
  skip_blanks(s);
  return s->at == s->end ? RAFTER_OK : fail_expected(s, "a comma or a closing bracket");
}

/* Reads the comma or closing bracket after a value. Sets *follows: another value follows. */
static rf_status read_separator(scan *s, char closing, bool *first, bool *follows) {
  if (take_char(s, closing)) return *follows = false, RAFTER_OK;
  if (!*first && !take_char(s, ',')) return fail_expected(s, "a comma or a closing bracket");
  *first = false;
  *follows = true;
  return RAFTER_OK;
}

/* ---- reading the parts of the file ----------------------------------------------------------- */

typedef struct parts {
  json_t *small;         /* top level of the file without the field `model` */
  json_t *model;         /* settings of `model`, without vocabulary and merges */
  rf_span vocab, merges; /* `bytes` is 0 if the file lacks this part */
  cuts cut;              /* cuts of `merges` */
} parts;

static rf_status read_small_value(const scan *s, const char *key, size_t key_bytes, rf_span value,
                                  json_t *into) {
  json_error_t bad;
  char name[64];
  snprintf(name, sizeof name, "%.*s", (int)(key_bytes < 60 ? key_bytes : 60), key);
  if (json_object_get(into, name))
    return RF_FAIL(s->error, RAFTER_FAILED, NULL, "%s has a field twice (%s)", s->where, name);
  json_t *read = json_loadb(value.at, value.bytes, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &bad);
  if (!read)
    return RF_FAIL(s->error, RAFTER_FAILED, NULL, "%s is not JSON (%s, byte %lld: %s)", s->where, name,
                   (long long)(value.at - s->text), bad.text);
  if (json_object_set_new(into, name, read))
    return RF_FAIL(s->error, RAFTER_FAILED, NULL, "%s has an invalid field name (%s)", s->where, name);
  return RAFTER_OK;
}

static bool key_is(const char *key, size_t bytes, const char *name) {
  return bytes == strlen(name) && !memcmp(key, name, bytes);
}

static rf_status read_object(scan *s, parts *p, bool in_model) {
  char key[RF_PIECE_MAX];
  size_t bytes;
  bool first = true, follows;
  RF_TRY(expect_char(s, '{', "an object"));
  for (;;) {
    RF_TRY(read_separator(s, '}', &first, &follows));
    if (!follows) return RAFTER_OK;
    RF_TRY(read_string(s, key, &bytes));
    RF_TRY(expect_char(s, ':', "a colon"));
    if (!in_model && key_is(key, bytes, "model")) {
      if (p->model) return RF_FAIL(s->error, RAFTER_FAILED, NULL, "%s has a field twice (model)", s->where);
      if (!(p->model = json_object())) return RF_FAIL(s->error, RAFTER_FAILED, NULL, "out of memory");
      /* this recurses at most once, because a model contains no other model */
      RF_TRY(read_object(s, p, true));
      continue;
    }
    rf_span value, *large = !in_model                      ? NULL
                            : key_is(key, bytes, "vocab")  ? &p->vocab
                            : key_is(key, bytes, "merges") ? &p->merges
                                                           : NULL;
    RF_TRY(skip_value(s, &value, large == &p->merges && !large->bytes ? &p->cut : NULL));
    if (large && large->bytes)
      return RF_FAIL(s->error, RAFTER_FAILED, NULL, "%s has a field twice (model.%.*s)", s->where, (int)bytes,
                     key);
    if (large) *large = value;
    else RF_TRY(read_small_value(s, key, bytes, value, in_model ? p->model : p->small));
  }
}

/* ---- vocabulary and merges ------------------------------------------------------------------- */

static rf_status put_piece(scan *s, rf_tokenizer *t, int64_t id, rf_span piece) {
  char bytes[RF_PIECE_MAX];
  if (t->bpe.byte_level) {
    int64_t n = rf_alphabet_bytes(piece, bytes);
    if (n >= 0) piece = (rf_span){bytes, (size_t)n};
  }
  return rf_pieces_put(&t->pieces, id, piece, RF_PIECE_NORMAL, s->where, s->error);
}

/* Reads {"piece": id, ...}. */
static rf_status read_vocab(scan *s, rf_tokenizer *t) {
  char piece[RF_PIECE_MAX];
  size_t bytes;
  bool first = true, follows;
  int64_t id, most = s->end - s->at < INT32_MAX / 4 ? s->end - s->at : INT32_MAX / 4;
  RF_TRY(expect_char(s, '{', "the vocabulary as an object"));
  RF_TRY(rf_pieces_reserve(&t->pieces, (s->end - s->at) / 32 + 1, s->error));
  for (;;) {
    RF_TRY(read_separator(s, '}', &first, &follows));
    if (!follows) return rf_pieces_list(&t->pieces, false, s->where, s->error);
    RF_TRY(read_string(s, piece, &bytes));
    RF_TRY(expect_char(s, ':', "a colon"));
    RF_TRY(read_id(s, most, &id));
    RF_TRY(put_piece(s, t, id, (rf_span){piece, bytes}));
  }
}

/* Reads [["piece", score], ...]. */
static rf_status read_scores(scan *s, rf_tokenizer *t, double **scores) {
  char piece[RF_PIECE_MAX];
  size_t bytes;
  bool first = true, follows;
  int64_t most = (s->end - s->at) / 6 + 1;
  if (!(*scores = calloc((size_t)most, sizeof **scores)))
    return RF_FAIL(s->error, RAFTER_FAILED, NULL, "out of memory");
  RF_TRY(expect_char(s, '[', "the vocabulary as an array"));
  for (int64_t id = 0;; id++) {
    RF_TRY(read_separator(s, ']', &first, &follows));
    if (!follows) return rf_pieces_list(&t->pieces, false, s->where, s->error);
    RF_TRY(expect_char(s, '[', "a piece with its score"));
    RF_TRY(read_string(s, piece, &bytes));
    RF_TRY(expect_char(s, ',', "a comma"));
    RF_TRY(read_real(s, &(*scores)[id < most ? id : most - 1]));
    RF_TRY(expect_char(s, ']', "the end of a piece"));
    RF_TRY(put_piece(s, t, id, (rf_span){piece, bytes}));
  }
}

/* Merges are read in blocks. One call looks up all pieces of a block. */
enum { BLOCK = RF_FIND_MAX / 3 };
typedef struct block {
  int count;
  const char *from[BLOCK];                        /* text of each merge in the file */
  size_t first[BLOCK], left[BLOCK], right[BLOCK]; /* left, right: number of bytes of each piece */
  rf_buffer text;
} block;

/* The merges between two cuts, as pairs of ids. */
typedef struct stretch {
  scan s;
  bool last;           /* true: the closing bracket of the array follows the stretch */
  rf_buffer found;     /* entries of type rf_pair, in the order of the file, without ranks */
  const char *unknown; /* a merge whose piece or result is not in the vocabulary; NULL: no such merge */
  rf_status status;
  rf_error error;
} stretch;

/* Reads "left right" or ["left", "right"]. */
static rf_status read_merge(scan *s, bool byte_level, block *b) {
  char left[RF_PIECE_MAX], other[RF_PIECE_MAX], *right = other;
  size_t left_bytes, right_bytes;
  skip_blanks(s);
  b->from[b->count] = s->at;
  if (take_char(s, '[')) {
    RF_TRY(read_string(s, left, &left_bytes));
    RF_TRY(expect_char(s, ',', "a comma"));
    RF_TRY(read_string(s, other, &right_bytes));
    RF_TRY(expect_char(s, ']', "the end of a merge"));
  } else {
    RF_TRY(read_string(s, left, &left_bytes));
    char *space = memchr(left, ' ', left_bytes);
    if (!space || memchr(space + 1, ' ', (size_t)(left + left_bytes - space - 1)))
      return fail_expected(s, "a merge of two pieces with one space between");
    right = space + 1;
    right_bytes = (size_t)(left + left_bytes - right);
    left_bytes = (size_t)(space - left);
  }
  if (!left_bytes || !right_bytes) return fail_expected(s, "a merge of two pieces that are not empty");
  if (byte_level) {
    int64_t n = rf_alphabet_bytes((rf_span){left, left_bytes}, left),
            m = rf_alphabet_bytes((rf_span){right, right_bytes}, right);
    if (n < 0 || m < 0) return fail_expected(s, "a merge in the byte alphabet");
    left_bytes = (size_t)n;
    right_bytes = (size_t)m;
  }
  b->first[b->count] = b->text.bytes;
  b->left[b->count] = left_bytes;
  b->right[b->count] = right_bytes;
  b->count++;
  RF_TRY(rf_buffer_add(&b->text, left, left_bytes, s->error));
  return rf_buffer_add(&b->text, right, right_bytes, s->error);
}

static rf_status find_merges(stretch *s, const rf_tokenizer *t, block *b) {
  rf_span keys[RF_FIND_MAX];
  int32_t ids[RF_FIND_MAX];
  if (!b->count) return RAFTER_OK;
  for (int i = 0; i < b->count; i++) {
    const char *at = b->text.at + b->first[i];
    keys[3 * i] = (rf_span){at, b->left[i]};
    keys[3 * i + 1] = (rf_span){at + b->left[i], b->right[i]};
    keys[3 * i + 2] = (rf_span){at, b->left[i] + b->right[i]};
  }
  rf_pieces_find_many(&t->pieces, keys, 3 * b->count, ids);
  RF_TRY(rf_buffer_reserve(&s->found, (size_t)b->count * sizeof(rf_pair), s->s.error));
  rf_pair *to = (rf_pair *)(void *)(s->found.at + s->found.bytes);
  for (int i = 0; i < b->count; i++) {
    if (ids[3 * i] < 0 || ids[3 * i + 1] < 0 || ids[3 * i + 2] < 0)
      return s->unknown = b->from[i], RAFTER_FAILED;
    *to++ = (rf_pair){(uint32_t)ids[3 * i], (uint32_t)ids[3 * i + 1], 0, (uint32_t)ids[3 * i + 2]};
    s->found.bytes += sizeof *to;
  }
  b->count = 0;
  b->text.bytes = 0;
  return RAFTER_OK;
}

/* Reads all merges of a stretch. With `after_comma`, the stretch must contain a merge. */
static rf_status read_stretch(stretch *s, bool after_comma, const rf_tokenizer *t) {
  rf_status status = RAFTER_OK;
  block b = {0};
  bool first = true, follows = true;
  while (follows) {
    skip_blanks(&s->s);
    if (first && after_comma) first = false;
    else if (s->last) RF_GO(read_separator(&s->s, ']', &first, &follows));
    else if (first) first = false; /* this is the first item of the array; an empty array has no cuts */
    else if ((follows = s->s.at < s->s.end)) RF_GO(expect_char(&s->s, ',', "a comma or a closing bracket"));
    if (follows) RF_GO(read_merge(&s->s, t->bpe.byte_level, &b));
    if (b.count == BLOCK || !follows) RF_GO(find_merges(s, t, &b));
  }
done:
  free(b.text.at);
  return status;
}

static rf_status put_merges(const scan *s, rf_tokenizer *t, const stretch *all, int count) {
  int64_t merges = 0;
  /* the stretches are in the order of the file, so the file's first error is reported */
  for (int k = 0; k < count; k++) {
    int64_t here = (int64_t)(all[k].found.bytes / sizeof(rf_pair));
    if (all[k].status != RAFTER_OK && all[k].unknown)
      return RF_FAIL(s->error, RAFTER_FAILED, NULL,
                     "a merge does not join two pieces into a third (%s, merge %lld, byte %lld)", s->where,
                     (long long)(merges + here), (long long)(all[k].unknown - s->text));
    if (all[k].status != RAFTER_OK) {
      if (s->error) *s->error = all[k].error;
      return all[k].status;
    }
    merges += here;
  }
  if (merges > INT32_MAX) return RF_FAIL(s->error, RAFTER_FAILED, NULL, "%s has too many merges", s->where);
  RF_TRY(rf_bpe_reserve(&t->bpe, merges, s->error));
  uint32_t rank = 0;
  for (int k = 0; k < count; k++) {
    enum { AHEAD = 16 };
    const rf_pair *pair = (const rf_pair *)(const void *)all[k].found.at;
    int64_t here = (int64_t)(all[k].found.bytes / sizeof *pair);
    for (int64_t i = 0; i < here; i++) {
      if (i + AHEAD < here) rf_bpe_expect(&t->bpe, pair[i + AHEAD].left, pair[i + AHEAD].right);
      rf_bpe_pair(&t->bpe, pair[i].left, pair[i].right, rank++, pair[i].id);
    }
  }
  return RAFTER_OK;
}

/* Looks up the ids on all threads. Then one thread enters the pairs into the hash table. */
static rf_status read_merges(scan *s, rf_tokenizer *t, const cuts *cut) {
  int count = cut->count + 1;
  RF_TRY(expect_char(s, '[', "the merges as an array"));
  stretch *all = calloc((size_t)count, sizeof *all);
  if (!all) return RF_FAIL(s->error, RAFTER_FAILED, NULL, "out of memory");
  for (int k = 0; k < count; k++) {
    all[k].s = (scan){k ? cut->at[k - 1] + 1 : s->at, k < cut->count ? cut->at[k] : s->end, s->text, s->where,
                      &all[k].error};
    all[k].last = k == cut->count;
  }
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
  for (int k = 0; k < count; k++) all[k].status = read_stretch(&all[k], k > 0, t);
  rf_status status = put_merges(s, t, all, count);
  s->at = all[count - 1].s.at;
  for (int k = 0; k < count; k++) free(all[k].found.at);
  free(all);
  return status;
}

/* ---- the model's settings -------------------------------------------------------------------- */

/* Returns true if `word` is in `list`, a text of words separated by spaces. */
static bool is_listed(const char *list, const char *word) {
  char spaced[40];
  snprintf(spaced, sizeof spaced, " %.37s ", word);
  return !strchr(word, ' ') && strstr(list, spaced);
}

static rf_status check_settings(const scan *s, json_t *model) {
  static const char KNOWN[] = " type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                              "byte_fallback ignore_merges unk_id ";
  static const char *const EMPTY[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  const char *key;
  json_t *value;
  json_object_foreach (model, key, value) {
    if (!is_listed(KNOWN, key))
      return RF_FAIL(s->error, RAFTER_FAILED, NULL, "unknown setting of a tokenizer's model (%s: model.%s)",
                     s->where, key);
  }
  for (size_t i = 0; i < sizeof EMPTY / sizeof EMPTY[0]; i++) {
    value = json_object_get(model, EMPTY[i]);
    if (value && !json_is_null(value) && !(json_is_string(value) && !json_string_length(value)))
      return RF_FAIL(s->error, RAFTER_FAILED, NULL,
                     "unsupported setting of a tokenizer's model (%s: model.%s is not empty)", s->where,
                     EMPTY[i]);
  }
  value = json_object_get(model, "dropout");
  if (value && !json_is_null(value) && !(json_number_value(value) == 0 && json_is_number(value)))
    return RF_FAIL(s->error, RAFTER_FAILED, NULL,
                   "unsupported setting of a tokenizer's model (%s: model.dropout is not 0)", s->where);
  return RAFTER_OK;
}

static rf_status unknown_id(const scan *s, rf_tokenizer *t, json_t *model) {
  json_t *name = json_object_get(model, "unk_token"), *id = json_object_get(model, "unk_id");
  if (json_is_string(name)) {
    t->unk_id = rf_pieces_find(&t->pieces, json_string_value(name), json_string_length(name));
    if (t->unk_id < 0)
      return RF_FAIL(s->error, RAFTER_FAILED, NULL, "the unknown token is not in the vocabulary (%s: %s)",
                     s->where, json_string_value(name));
  }
  if (json_is_integer(id)) {
    if (json_integer_value(id) < 0 || json_integer_value(id) >= t->pieces.count)
      return RF_FAIL(s->error, RAFTER_FAILED, NULL,
                     "the unknown id is out of range (%s: expected below %lld, got %lld)", s->where,
                     (long long)t->pieces.count, (long long)json_integer_value(id));
    t->unk_id = (int32_t)json_integer_value(id);
  }
  return RAFTER_OK;
}

static rf_status read_model(const scan *file, rf_tokenizer *t, const parts *p) {
  scan vocab = *file, merges = *file;
  vocab.at = p->vocab.at;
  vocab.end = p->vocab.at + p->vocab.bytes;
  merges.at = p->merges.at;
  merges.end = p->merges.at + p->merges.bytes;
  RF_TRY(check_settings(file, p->model));
  RF_TRY(rf_json_bool_or(p->model, "byte_fallback", file->where, false, &t->byte_fallback, file->error));
  RF_TRY(rf_json_bool_or(p->model, "fuse_unk", file->where, t->kind == RF_TOKENS_UNIGRAM, &t->fuse_unknown,
                         file->error));
  RF_TRY(rf_json_bool_or(p->model, "ignore_merges", file->where, false, &t->bpe.ignore_merges, file->error));
  if (t->kind == RF_TOKENS_UNIGRAM) {
    double *scores = NULL;
    rf_status status = read_scores(&vocab, t, &scores);
    if (status == RAFTER_OK) status = expect_end(&vocab);
    if (status == RAFTER_OK) status = rf_unigram_build(t, scores, false, file->where, file->error);
    free(scores);
    RF_TRY(status);
    return unknown_id(file, t, p->model);
  }
  RF_TRY(read_vocab(&vocab, t));
  RF_TRY(read_merges(&merges, t, &p->cut));
  RF_TRY(expect_end(&vocab));
  RF_TRY(expect_end(&merges));
  RF_TRY(unknown_id(file, t, p->model));
  return rf_bpe_finish(t, file->where, file->error);
}

/* ---- added tokens ---------------------------------------------------------------------------- */

static rf_status read_added(const scan *s, rf_tokenizer *t, json_t *token) {
  static const char *const KNOWN = " id content single_word lstrip rstrip normalized special ";
  const char *key, *where = s->where;
  json_t *value, *content = json_object_get(token, "content");
  rf_added added = {0};
  int64_t id;
  bool normalized, put = false;
  char own[RF_PIECE_MAX];
  if (!json_is_string(content) || !json_string_length(content) || json_string_length(content) > RF_PIECE_MAX)
    return RF_FAIL(s->error, RAFTER_FAILED, NULL, "the content of an added token is empty or too long (%s)",
                   where);
  json_object_foreach (token, key, value) {
    if (!is_listed(KNOWN, key))
      return RF_FAIL(s->error, RAFTER_FAILED, NULL, "unknown setting of an added token (%s: %s)", where, key);
  }
  RF_TRY(rf_json_int(token, "id", where, 0, s->end - s->text, &id, s->error));
  RF_TRY(rf_json_bool_or(token, "special", where, false, &added.special, s->error));
  RF_TRY(rf_json_bool_or(token, "single_word", where, false, &added.single_word, s->error));
  RF_TRY(rf_json_bool_or(token, "lstrip", where, false, &added.lstrip, s->error));
  RF_TRY(rf_json_bool_or(token, "rstrip", where, false, &added.rstrip, s->error));
  RF_TRY(rf_json_bool_or(token, "normalized", where, !added.special, &normalized, s->error));
  added.text = (rf_span){json_string_value(content), json_string_length(content)};
  added.id = (int32_t)id;
  if (id < t->pieces.count && t->pieces.row[id].type) {
    rf_span piece = rf_pieces_at(&t->pieces, id), spelled = added.text;
    int64_t n = t->bpe.byte_level ? rf_alphabet_bytes(spelled, own) : -1;
    if (n >= 0) spelled = (rf_span){own, (size_t)n};
    if (piece.bytes != spelled.bytes || memcmp(piece.at, spelled.at, spelled.bytes))
      return RF_FAIL(s->error, RAFTER_FAILED, NULL,
                     "an added token's id belongs to another piece (%s: '%s', id %lld)", where, added.text.at,
                     (long long)id);
  } else {
    int64_t n = t->bpe.byte_level ? rf_alphabet_bytes(added.text, own) : -1;
    int32_t other = n >= 0 ? rf_pieces_find(&t->pieces, own, (size_t)n)
                           : rf_pieces_find(&t->pieces, added.text.at, added.text.bytes);
    /* A byte-level vocabulary spells a piece in its alphabet, so a token outside of the alphabet is a
     * further token for the same bytes. */
    if (other >= 0 && (n >= 0 || !t->bpe.byte_level))
      return RF_FAIL(s->error, RAFTER_FAILED, NULL,
                     "an added token is in the vocabulary under another id (%s: '%s', ids %lld and %d)",
                     where, added.text.at, (long long)id, other);
    put = true;
  }
  rf_buffer buffer = {0}, spare = {0};
  rf_span spelled = added.text;
  rf_effort effort = rf_effort_for(added.text.bytes);
  rf_status status = normalized
                         ? rf_normalize(&t->normals, added.text, &effort, &buffer, &spare, &spelled, s->error)
                         : RAFTER_OK;
  /* An added token decodes to the text that it matches. If the normalizer puts U+2581 before this
   * text, the added U+2581 decodes to a space. Special tokens decode to their names. */
  bool named = added.special || !spelled.bytes || spelled.bytes > RF_PIECE_MAX;
  if (status == RAFTER_OK && put)
    status = rf_pieces_put(&t->pieces, id, named ? added.text : spelled,
                           added.special ? RF_PIECE_CONTROL : RF_PIECE_USER, where, s->error);
  if (status == RAFTER_OK) t->pieces.row[id].special |= added.special;
  added.text = spelled;
  if (status == RAFTER_OK && added.text.bytes)
    status = rf_matcher_add(normalized ? &t->normalized : &t->raw, &added, s->error);
  rf_effort_free(&effort);
  free(buffer.at);
  free(spare.at);
  return status;
}

static rf_status read_parts(scan *s, parts *p, rf_tokenizer **made) {
  json_t *added = json_object_get(p->small, "added_tokens"), *token;
  const char *type;
  size_t i;
  bool bytes = false, spaces = false;
  rf_json_steps steps = {json_object_get(p->small, "normalizer"), json_object_get(p->small, "pre_tokenizer"),
                         json_object_get(p->small, "decoder"), json_object_get(p->small, "post_processor")};
  /* Truncation and padding are ignored, because they are settings of the program that saved the
   * file. */
  RF_TRY(rf_json_string_or(p->small, "version", s->where, "1.0", &type, s->error));
  if (strcmp(type, "1.0") != 0)
    return RF_FAIL(s->error, RAFTER_FAILED, NULL,
                   "unknown version of tokenizer.json (%s: expected 1.0, got %s)", s->where, type);
  if (added && !json_is_array(added) && !json_is_null(added))
    return RF_FAIL(s->error, RAFTER_FAILED, NULL, "added_tokens is not a list (%s)", s->where);
  if (!p->model || !p->vocab.bytes)
    return RF_FAIL(s->error, RAFTER_FAILED, NULL, "%s has no vocabulary (model.vocab)", s->where);
  RF_TRY(
      rf_json_string_or(p->model, "type", s->where, p->merges.bytes ? "BPE" : "none named", &type, s->error));
  bool bpe = !strcmp(type, "BPE");
  if (!bpe && strcmp(type, "Unigram") != 0)
    return RF_FAIL(s->error, RAFTER_FAILED, "supported: BPE and Unigram",
                   "unsupported tokenizer model (%s: %s)", s->where, type);
  if (bpe && !p->merges.bytes)
    return RF_FAIL(s->error, RAFTER_FAILED, NULL, "%s has no merges (model.merges)", s->where);
  rf_tokenizer *t = *made = rf_tokenizer_new(bpe ? RF_TOKENS_BPE : RF_TOKENS_UNIGRAM, s->error);
  if (!t) return RAFTER_FAILED;
  t->bpe.byte_level = bpe && rf_json_is_byte_level(steps.pre_tokenizer);
  RF_TRY(read_model(s, t, p));
  RF_TRY(rf_json_steps_read(&steps, t, &bytes, &spaces, s->where, s->error));
  json_array_foreach (added, i, token) RF_TRY(read_added(s, t, token));
  for (int k = 0; k < t->prefix_count + t->suffix_count; k++) {
    int32_t id = k < t->prefix_count ? t->prefix[k] : t->suffix[k - t->prefix_count];
    if (id >= t->pieces.count)
      return RF_FAIL(s->error, RAFTER_FAILED, NULL,
                     "the post-processor adds an id outside the vocabulary (%s: expected below %lld, got %d)",
                     s->where, (long long)t->pieces.count, id);
  }
  return rf_tokenizer_finish(t, bytes, spaces, s->where, s->error);
}

rf_status rf_tokenizer_json_read(const char *text, size_t bytes, const char *where, rf_tokenizer **tokenizer,
                                 rf_error *error) {
  scan s = {text, text + bytes, text, where, error};
  parts p = {.vocab = {text, 0}, .merges = {text, 0}};
  rf_status status = RAFTER_OK;
  rf_tokenizer *made = NULL;
  *tokenizer = NULL;
  const char *valid = text;
  if (!(p.small = json_object())) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
#pragma omp parallel sections if (bytes > CUT_BYTES)
  {
#pragma omp section
    valid = rf_utf8_valid(text, text + bytes);
#pragma omp section
    status = read_object(&s, &p, false);
  }
  if (valid < s.end) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s is not valid UTF-8 (byte %lld)", where,
                     (long long)(valid - text));
    goto done;
  }
  RF_GO(status);
  skip_blanks(&s);
  if (s.at < s.end) {
    status = fail_expected(&s, "the end of the file");
    goto done;
  }
  status = read_parts(&s, &p, &made);
done:
  json_decref(p.small);
  json_decref(p.model);
  if (status != RAFTER_OK) rf_tokenizer_close(made);
  else {
    made->json_bytes = (int64_t)bytes;
    *tokenizer = made;
  }
  return status;
}
