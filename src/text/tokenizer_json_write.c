/* tokenizer_json_write.c - writes a byte-level BPE from a GGUF file as tokenizer.json and
 * tokenizer_config.json, for other libraries. */
#include "text/tokenizer_parts.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>

static json_t *text_of(rf_span span) { return json_stringn(span.at, span.bytes); }

/* Spells a piece as tokenizer.json does. A normal piece is spelled in GPT-2's byte alphabet, and
 * other pieces are unchanged. */
static json_t *make_spelling(const rf_tokenizer *t, int64_t id) {
  char out[2 * RF_PIECE_MAX];
  rf_span piece = rf_pieces_at(&t->pieces, id);
  const rf_piece_row *row = &t->pieces.row[id];
  if (t->bpe.byte_level && row->type == RF_PIECE_NORMAL && !row->special)
    piece = (rf_span){out, rf_alphabet_text(piece, out)};
  return text_of(piece);
}

static json_t *make_vocabulary(const rf_tokenizer *t) {
  json_t *vocab = json_object();
  size_t count = 0;
  for (int64_t id = 0; id < t->pieces.count; id++) {
    if (!t->pieces.row[id].type) continue;
    json_t *text = make_spelling(t, id); /* NULL: the spelling is not valid UTF-8 */
    if (text) json_object_set_new(vocab, json_string_value(text), json_integer(id));
    json_decref(text);
    count++;
  }
  if (json_object_size(vocab) == count) return vocab;
  json_decref(vocab); /* tokenizer.json cannot store invalid UTF-8, or two pieces with equal spellings */
  return NULL;
}

static json_t *make_merges(const rf_tokenizer *t) {
  rf_pair *order = rf_bpe_sorted(&t->bpe);
  json_t *list = order ? json_array() : NULL;
  for (int64_t i = 0; list && i < t->bpe.pairs; i++)
    json_array_append_new(
        list, json_pack("[oo]", make_spelling(t, order[i].left), make_spelling(t, order[i].right)));
  free(order);
  return list;
}

static json_t *make_added(const rf_tokenizer *t) {
  json_t *list = json_array();
  for (int64_t id = 0; id < t->pieces.count; id++) /* readers of the file expect ids in ascending order */
    for (int i = 0; i < t->raw.count; i++)
      if (t->raw.at[i].id == id)
        json_array_append_new(list,
                              json_pack("{sI so sb sb sb sb sb}", "id", (json_int_t)id, "content",
                                        text_of(t->raw.at[i].text), "single_word", t->raw.at[i].single_word,
                                        "lstrip", t->raw.at[i].lstrip, "rstrip", t->raw.at[i].rstrip,
                                        "normalized", false, "special", t->raw.at[i].special));
  return list;
}

static json_t *pre_tokenizer(const rf_tokenizer *t) {
  /* in the order of rf_behaviour */
  static const char *const NAMES[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"};
  json_t *list = json_array();
  for (int i = 0; i < t->splits.count; i++) {
    const rf_split *s = &t->splits.at[i];
    json_array_append_new(list, json_pack("{ss s{ss} ss sb}", "type", "Split", "pattern",
                                          rf_pattern_literal(s->pattern) ? "String" : "Regex",
                                          rf_pattern_text(s->pattern), "behavior", NAMES[s->behaviour],
                                          "invert", s->invert));
  }
  json_array_append_new(list, json_pack("{ss sb sb sb}", "type", "ByteLevel", "add_prefix_space", false,
                                        "trim_offsets", true, "use_regex", false));
  return json_pack("{ss so}", "type", "Sequence", "pretokenizers", list);
}

/* Adds the ids that encoding puts before or after a text. */
static void put_bos_eos(const rf_tokenizer *t, const int32_t *ids, int count, json_t *form, json_t *named) {
  for (int i = 0; i < count; i++) {
    json_t *name = make_spelling(t, ids[i]);
    json_array_append_new(form, json_pack("{s{sO si}}", "SpecialToken", "id", name, "type_id", 0));
    json_object_set_new(named, json_string_value(name),
                        json_pack("{sO s[i] s[O]}", "id", name, "ids", (int)ids[i], "tokens", name));
    json_decref(name);
  }
}

static json_t *post_processor(const rf_tokenizer *t) {
  if (!t->prefix_count && !t->suffix_count) return json_null();
  json_t *single = json_array(), *pair = json_array(), *named = json_object();
  put_bos_eos(t, t->prefix, t->prefix_count, single, named);
  json_array_append_new(single, json_pack("{s{ss si}}", "Sequence", "id", "A", "type_id", 0));
  put_bos_eos(t, t->suffix, t->suffix_count, single, named);
  json_array_extend(pair, single);
  put_bos_eos(t, t->prefix, t->prefix_count, pair, named);
  json_array_append_new(pair, json_pack("{s{ss si}}", "Sequence", "id", "B", "type_id", 1));
  put_bos_eos(t, t->suffix, t->suffix_count, pair, named);
  return json_pack("{ss so so so}", "type", "TemplateProcessing", "single", single, "pair", pair,
                   "special_tokens", named);
}

static json_t *tokenizer_json(const rf_tokenizer *t) {
  json_t *vocab = make_vocabulary(t), *order = vocab ? make_merges(t) : NULL;
  if (!order) return json_decref(vocab), NULL;
  json_t *model =
      json_pack("{ss sn sn sn sn sb sb sb so so}", "type", "BPE", "dropout", "unk_token",
                "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", false, "byte_fallback", false,
                "ignore_merges", t->bpe.ignore_merges, "vocab", vocab, "merges", order);
  return json_pack("{ss sn sn so sn so so so so}", "version", "1.0", "truncation", "padding", "added_tokens",
                   make_added(t), "normalizer", "pre_tokenizer", pre_tokenizer(t), "post_processor",
                   post_processor(t), "decoder",
                   json_pack("{ss sb sb sb}", "type", "ByteLevel", "add_prefix_space", true, "trim_offsets",
                             true, "use_regex", true),
                   "model", model);
}

rf_status rf_tokenizer_config_write(const rf_tokenizer *t, const char *class, json_t *chat_template,
                                    const char *folder, rf_error *error) {
  const struct {
    const char *name;
    int32_t id;
  } marks[] = {
      {"bos_token", t->bos_id}, {"eos_token", t->eos_id}, {"unk_token", t->unk_id}, {"pad_token", t->pad_id}};
  char path[4400];
  json_t *json = json_pack("{ss* sb}", "tokenizer_class", class, "clean_up_tokenization_spaces", false);
  for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
    if (marks[i].id >= 0) json_object_set_new(json, marks[i].name, make_spelling(t, marks[i].id));
  if (!class) { /* tokenizer.model cannot store these two flags */
    json_object_set_new(json, "add_bos_token", json_boolean(t->prefix_count > 0));
    json_object_set_new(json, "add_eos_token", json_boolean(t->suffix_count > 0));
  }
  if (chat_template) json_object_set(json, "chat_template", chat_template);
  snprintf(path, sizeof path, "%.4300s/tokenizer_config.json", folder);
  rf_status status = rf_json_write(path, json, 2, error);
  json_decref(json);
  return status;
}

rf_status rf_tokenizer_json_write(const rf_tokenizer *t, json_t *chat_template, const char *folder,
                                  bool *written, rf_error *error) {
  char path[4400];
  bool plain = t->kind == RF_TOKENS_BPE && t->bpe.byte_level && !t->normals.count && !t->normalized.count &&
               !t->splits.prefix && !t->splits.mark;
  json_t *json = plain ? tokenizer_json(t) : NULL;
  *written = json != NULL;
  if (!json) return RAFTER_OK;
  snprintf(path, sizeof path, "%.4300s/tokenizer.json", folder);
  rf_status status = rf_json_write(path, json, 0, error);
  json_decref(json);
  RF_TRY(status);
  return rf_tokenizer_config_write(t, "PreTrainedTokenizerFast", chat_template, folder, error);
}
