/* tokenizer_json_steps.c - reads those steps of tokenizer.json that run before and after the model.
 * Each supported type of step has a table entry with its name in Hugging Face's tokenizers. All
 * other types of steps are errors. */
#include "text/tokenizer_parts.h"

#include "base/json.h"

#include <utf8proc.h>

typedef struct reading {
  rf_tokenizer *t;
  const char *where;
  rf_error *error;
  bool bytes,      /* decoding converts "<0x41>" to a byte */
      spaces;      /* decoding converts U+2581 to a space */
  bool byte_level; /* true: a ByteLevel pre-tokenizer was read, and no other pre-tokenizer may follow */
  bool begun;      /* true: a pre-tokenizer was read, so a step that adds a prefix may not follow */
  bool templated;
  const struct step_row *row; /* table entry of the current step */
} reading;

typedef struct step_row {
  const char *type;
  rf_status (*read)(reading *r, json_t *step);
  int unicode; /* NORMAL_UNICODE: options of utf8proc */
} step_row;

static rf_status refuse_setting(const reading *r, const char *what, const char *which) {
  return RF_FAIL(r->error, RAFTER_FAILED, "this version does not support this setting",
                 "unsupported %s (%s: %s)", what, r->where, which);
}

/* A section of tokenizer.json with the steps that it may have. `list` is the name of the field that
 * has the steps of a Sequence. */
typedef struct section {
  const char *what, *list;
  const step_row *rows;
  size_t count;
} section;

/* Reads one step by its type, or each step of a Sequence. Sequences may be nested. */
static rf_status read_step(reading *r, json_t *step, const section *in, int depth) {
  const char *type;
  if (!step || json_is_null(step)) return RAFTER_OK;
  if (!json_is_object(step) || depth > 8)
    return refuse_setting(r, in->what, "not an object, or nested too deep");
  RF_TRY(rf_json_string(step, "type", r->where, &type, r->error));
  if (!strcmp(type, "Sequence")) {
    json_t *steps = json_object_get(step, in->list), *one;
    size_t i;
    if (!json_is_array(steps)) return refuse_setting(r, in->what, "a Sequence without its list");
    json_array_foreach (steps, i, one) RF_TRY(read_step(r, one, in, depth + 1));
    return RAFTER_OK;
  }
  for (size_t i = 0; i < in->count; i++) {
    r->row = &in->rows[i];
    if (!strcmp(r->row->type, type)) return r->row->read(r, step);
  }
  return refuse_setting(r, in->what, type);
}

static rf_span span_of(const char *text) { return (rf_span){text, strlen(text)}; }

static rf_status read_nothing(reading *r, json_t *step) {
  (void)r;
  (void)step;
  return RAFTER_OK;
}

/* Reads the pattern {"String": "..."} or {"Regex": "..."}. */
static rf_status pattern_of(const reading *r, json_t *step, const char *what, rf_span *pattern,
                            bool *literal) {
  json_t *given = json_object_get(step, "pattern"), *text = json_object_get(given, "String");
  *literal = text != NULL;
  if (!text) text = json_object_get(given, "Regex");
  if (!json_is_string(text) || !json_string_length(text))
    return refuse_setting(r, what, "the pattern is empty, or neither a String nor a Regex");
  *pattern = (rf_span){json_string_value(text), json_string_length(text)};
  return RAFTER_OK;
}

/* ---- normalizers ----------------------------------------------------------------------------- */

static rf_status normal_prepend(reading *r, json_t *step) {
  const char *text;
  RF_TRY(rf_json_string(step, "prepend", r->where, &text, r->error));
  return rf_normals_add(&r->t->normals, RF_NORMAL_PREPEND, span_of(""), span_of(text), r->where, r->error);
}

static rf_status normal_replace(reading *r, json_t *step) {
  const char *content;
  rf_span pattern;
  bool literal;
  RF_TRY(pattern_of(r, step, "normalizer", &pattern, &literal));
  RF_TRY(rf_json_string(step, "content", r->where, &content, r->error));
  RF_TRY(rf_normals_add(&r->t->normals, RF_NORMAL_REPLACE, literal ? pattern : span_of(""), span_of(content),
                        r->where, r->error));
  if (literal) return RAFTER_OK;
  rf_normal *normal = &r->t->normals.at[r->t->normals.count - 1];
  return rf_pattern_new(pattern.at, pattern.bytes, false, r->where, &normal->pattern, r->error);
}

static rf_status normal_strip(reading *r, json_t *step) {
  RF_TRY(rf_normals_add(&r->t->normals, RF_NORMAL_STRIP, span_of(""), span_of(""), r->where, r->error));
  rf_normal *normal = &r->t->normals.at[r->t->normals.count - 1];
  RF_TRY(rf_json_bool(step, "strip_left", r->where, &normal->left, r->error));
  return rf_json_bool(step, "strip_right", r->where, &normal->right, r->error);
}

static rf_status normal_unicode(reading *r, json_t *step) {
  (void)step;
  RF_TRY(rf_normals_add(&r->t->normals, RF_NORMAL_UNICODE, span_of(""), span_of(""), r->where, r->error));
  r->t->normals.at[r->t->normals.count - 1].unicode = UTF8PROC_STABLE | r->row->unicode;
  return RAFTER_OK;
}

static const step_row NORMALIZERS[] = {{"Prepend", normal_prepend, 0},
                                       {"Replace", normal_replace, 0},
                                       {"Strip", normal_strip, 0},
                                       {"NFC", normal_unicode, UTF8PROC_COMPOSE},
                                       {"NFD", normal_unicode, UTF8PROC_DECOMPOSE},
                                       {"NFKC", normal_unicode, UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
                                       {"NFKD", normal_unicode, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};

/* ---- pre-tokenizers -------------------------------------------------------------------------- */

static rf_status add_split(reading *r, rf_span pattern, bool literal, rf_behaviour behaviour, bool invert) {
  if (r->byte_level) return refuse_setting(r, "pre-tokenizer", "another one after ByteLevel");
  r->begun = true;
  return rf_splits_add(&r->t->splits, pattern.at, pattern.bytes, literal, behaviour, invert, r->where,
                       r->error);
}

static rf_status split_pattern(reading *r, json_t *step) {
  static const char *const BEHAVIOURS[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                           "Contiguous"};
  const char *name;
  rf_span pattern;
  bool literal, invert;
  RF_TRY(pattern_of(r, step, "pre-tokenizer", &pattern, &literal));
  RF_TRY(rf_json_string(step, "behavior", r->where, &name, r->error));
  RF_TRY(rf_json_bool_or(step, "invert", r->where, false, &invert, r->error));
  for (int i = 0; i < 5; i++)
    if (!strcmp(BEHAVIOURS[i], name)) return add_split(r, pattern, literal, (rf_behaviour)i, invert);
  return refuse_setting(r, "behavior of a Split", name);
}

static rf_status split_digits(reading *r, json_t *step) {
  bool single;
  RF_TRY(rf_json_bool_or(step, "individual_digits", r->where, false, &single, r->error));
  return add_split(r, span_of(single ? "\\p{N}" : "\\p{N}+"), false, RF_SPLIT_ISOLATED, false);
}

static rf_status split_byte_level(reading *r, json_t *step) {
  bool prefix, cuts;
  RF_TRY(rf_json_bool_or(step, "add_prefix_space", r->where, true, &prefix, r->error));
  RF_TRY(rf_json_bool_or(step, "use_regex", r->where, true, &cuts, r->error));
  if (!r->t->bpe.byte_level) return refuse_setting(r, "pre-tokenizer", "ByteLevel supports only BPE models");
  if (prefix && r->begun)
    return refuse_setting(r, "pre-tokenizer", "ByteLevel with add_prefix_space after another");
  r->t->splits.prefix |= prefix;
  if (cuts) RF_TRY(add_split(r, span_of(RF_GPT2_PATTERN), false, RF_SPLIT_ISOLATED, false));
  if (r->byte_level) return refuse_setting(r, "pre-tokenizer", "ByteLevel twice");
  r->begun = r->byte_level = true;
  return RAFTER_OK;
}

/* Older files have the field add_prefix_space in place of prepend_scheme. */
static rf_status read_scheme(const reading *r, json_t *step, const char **scheme) {
  bool legacy;
  RF_TRY(rf_json_bool_or(step, "add_prefix_space", r->where, true, &legacy, r->error));
  return rf_json_string_or(step, "prepend_scheme", r->where, legacy ? "always" : "never", scheme, r->error);
}

/* True if a normalizer may remove the start of a text. Hugging Face's "first" then adds no prefix. */
static bool may_lose_start(const rf_normals *normals) {
  for (int i = 0; i < normals->count; i++) {
    const rf_normal *n = &normals->at[i];
    if (n->kind == RF_NORMAL_STRIP ? n->left : n->kind == RF_NORMAL_REPLACE && !n->to_bytes) return true;
  }
  return false;
}

static rf_status split_metaspace(reading *r, json_t *step) {
  const char *replacement, *scheme;
  bool cuts;
  RF_TRY(rf_json_string_or(step, "replacement", r->where, RF_SPACE_MARK, &replacement, r->error));
  RF_TRY(read_scheme(r, step, &scheme));
  RF_TRY(rf_json_bool_or(step, "split", r->where, true, &cuts, r->error));
  if (strcmp(replacement, RF_SPACE_MARK) != 0)
    return refuse_setting(r, "replacement of a Metaspace", replacement);
  if (strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0 && strcmp(scheme, "never") != 0)
    return refuse_setting(r, "prepend_scheme", scheme);
  if (r->begun) return refuse_setting(r, "pre-tokenizer", "Metaspace after another");
  if (*scheme == 'f' && may_lose_start(&r->t->normals))
    return refuse_setting(r, "prepend_scheme", "first, with a normalizer that removes text");
  r->begun = true;
  r->t->splits.mark = true;
  r->t->splits.prefix = *scheme != 'n';
  r->t->splits.prefix_first = *scheme == 'f';
  return cuts ? add_split(r, span_of(RF_SPACE_MARK), true, RF_SPLIT_NEXT, false) : RAFTER_OK;
}

static const step_row PRE_TOKENIZERS[] = {{"ByteLevel", split_byte_level, 0},
                                          {"Split", split_pattern, 0},
                                          {"Digits", split_digits, 0},
                                          {"Metaspace", split_metaspace, 0}};

bool rf_json_is_byte_level(const json_t *pre_tokenizer) {
  const char *type = json_string_value(json_object_get(pre_tokenizer, "type"));
  if (type && !strcmp(type, "ByteLevel")) return true;
  const json_t *list = json_object_get(pre_tokenizer, "pretokenizers");
  for (size_t i = 0; i < json_array_size(list); i++) {
    type = json_string_value(json_object_get(json_array_get(list, i), "type"));
    if (type && !strcmp(type, "ByteLevel")) return true;
  }
  return false;
}

/* ---- decoders -------------------------------------------------------------------------------- */

static rf_status decode_bytes(reading *r, json_t *step) {
  (void)step;
  r->bytes = true;
  return RAFTER_OK;
}

static rf_status decode_byte_level(reading *r, json_t *step) {
  (void)step;
  return r->t->bpe.byte_level ? RAFTER_OK : refuse_setting(r, "decoder", "ByteLevel needs byte-level pieces");
}

static rf_status decode_replace(reading *r, json_t *step) {
  const char *content;
  rf_span pattern;
  bool literal;
  RF_TRY(pattern_of(r, step, "decoder", &pattern, &literal));
  RF_TRY(rf_json_string(step, "content", r->where, &content, r->error));
  if (!literal || pattern.bytes != 3 || memcmp(pattern.at, RF_SPACE_MARK, 3) != 0 ||
      strcmp(content, " ") != 0)
    return refuse_setting(r, "decoder", "Replace may only replace U+2581 by a space");
  r->spaces = true;
  return RAFTER_OK;
}

static rf_status decode_strip(reading *r, json_t *step) {
  const char *content;
  int64_t start, stop;
  RF_TRY(rf_json_string(step, "content", r->where, &content, r->error));
  RF_TRY(rf_json_int(step, "start", r->where, 0, 1, &start, r->error));
  RF_TRY(rf_json_int(step, "stop", r->where, 0, 0, &stop, r->error));
  if (strcmp(content, " ") != 0) return refuse_setting(r, "decoder", "Strip may only strip spaces");
  r->t->strip_leading |= start == 1;
  return RAFTER_OK;
}

static rf_status decode_metaspace(reading *r, json_t *step) {
  const char *scheme;
  RF_TRY(read_scheme(r, step, &scheme));
  r->spaces = true;
  r->t->strip_leading |= strcmp(scheme, "never") != 0;
  return RAFTER_OK;
}

static const step_row DECODERS[] = {{"ByteLevel", decode_byte_level, 0}, {"ByteFallback", decode_bytes, 0},
                                    {"Replace", decode_replace, 0},      {"Strip", decode_strip, 0},
                                    {"Metaspace", decode_metaspace, 0},  {"Fuse", read_nothing, 0}};

/* ---- post-processors ------------------------------------------------------------------------- */

enum { SPECIAL_MAX = 16 };

static rf_status post_template(reading *r, json_t *step) {
  json_t *single = json_object_get(step, "single"), *specials = json_object_get(step, "special_tokens"),
         *item;
  int32_t special[2][SPECIAL_MAX];
  int count[2] = {0};
  size_t i;
  bool after = false;
  if (!json_is_array(single))
    return refuse_setting(r, "post-processor", "TemplateProcessing whose 'single' is not a list");
  if (r->templated) return refuse_setting(r, "post-processor", "TemplateProcessing twice");
  r->templated = true;
  json_array_foreach (single, i, item) {
    if (json_object_get(item, "Sequence")) {
      if (after) return refuse_setting(r, "post-processor", "TemplateProcessing that repeats the text");
      after = true;
      continue;
    }
    const char *name = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
    json_t *ids = json_object_get(json_object_get(specials, name ? name : ""), "ids");
    if (!json_array_size(ids))
      return refuse_setting(r, "post-processor", "TemplateProcessing with a token that has no ids");
    for (size_t k = 0; k < json_array_size(ids); k++) {
      json_t *id = json_array_get(ids, k);
      if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX ||
          count[after] == SPECIAL_MAX)
        return refuse_setting(r, "post-processor",
                              "TemplateProcessing has too many ids, or an id out of range");
      special[after][count[after]++] = (int32_t)json_integer_value(id);
    }
  }
  if (!after) return refuse_setting(r, "post-processor", "TemplateProcessing without the text");
  if (count[0]) r->t->bos_id = special[0][0];
  if (count[1]) r->t->eos_id = special[1][count[1] - 1];
  return rf_tokenizer_set_bos_eos(r->t, special[0], count[0], special[1], count[1], r->error);
}

static const step_row POST_PROCESSORS[] = {{"ByteLevel", read_nothing, 0},
                                           {"TemplateProcessing", post_template, 0}};

#define ROWS(table) table, sizeof table / sizeof *table
static const section SECTIONS[] = {{"normalizer", "normalizers", ROWS(NORMALIZERS)},
                                   {"pre-tokenizer", "pretokenizers", ROWS(PRE_TOKENIZERS)},
                                   {"decoder", "decoders", ROWS(DECODERS)},
                                   {"post-processor", "processors", ROWS(POST_PROCESSORS)}};

rf_status rf_json_steps_read(const rf_json_steps *steps, rf_tokenizer *tokenizer, bool *bytes, bool *spaces,
                             const char *where, rf_error *error) {
  reading r = {.t = tokenizer, .where = where, .error = error};
  json_t *const step[] = {steps->normalizer, steps->pre_tokenizer, steps->decoder, steps->post_processor};
  for (int i = 0; i < 4; i++) RF_TRY(read_step(&r, step[i], &SECTIONS[i], 0));
  *bytes = r.bytes;
  *spaces = r.spaces;
  return RAFTER_OK;
}
