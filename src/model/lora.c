/* lora.c - the sites (columns of linear weights) that adapters may have. An option or a file
 * selects some of these sites. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "model/names.h"
#include "model/name_pattern.h"

enum { TARGETS_MAX = 64, TEXT_MAX = 1024 };

/* `columns` gives the columns of a fused weight that a site covers. Letter Q stands for N*H
 * columns, K and V for K*H columns each, G (gate) and U (up) for F columns each, and '*' for all
 * columns. */
typedef struct site_row {
  const char *name, *weight, *columns;
} site_row;
static const site_row SITES[] = {
    {"attn/q", "attn/qkv/weight", "Q"},      {"attn/k", "attn/qkv/weight", "K"},
    {"attn/v", "attn/qkv/weight", "V"},      {"attn/kv", "attn/qkv/weight", "KV"},
    {"attn/qkv", "attn/qkv/weight", "*"},    {"attn/out", "attn/out/weight", "*"},
    {"mlp/gate", "mlp/gate_up/weight", "G"}, {"mlp/up", "mlp/gate_up/weight", "U"},
    {"mlp/up", "mlp/up/weight", "*"},        {"mlp/gate_up", "mlp/gate_up/weight", "*"},
    {"mlp/down", "mlp/down/weight", "*"},
};
enum { SITE_COUNT = sizeof SITES / sizeof *SITES };

const char *rf_lora_site_name(int site) { return site >= 0 && site < SITE_COUNT ? SITES[site].name : NULL; }

/* True if columns `at` to `at + columns - 1` are complete tensors. *one becomes true if they are
 * one tensor. */
static bool are_whole_tensors(const rf_name *name, int64_t at, int64_t columns, bool *one) {
  bool begins = false, ends = false;
  int64_t from = 0;
  *one = false;
  for (int i = 0; i < name->count; from += name->columns[i++]) {
    begins |= from == at;
    ends |= from + name->columns[i] == at + columns;
    *one |= from == at && name->columns[i] == columns;
  }
  return begins && ends;
}

bool rf_lora_site_columns(const rf_model *model, const rf_param *param, int site, int64_t *at,
                          int64_t *columns) {
  const site_row *row = &SITES[site];
  if (!param->lora || strcmp(rf_param_row_name(param->row), row->weight) != 0) return false;
  int64_t q = model->heads * model->head_dim, kv = model->kv_heads * model->head_dim;
  const struct {
    char letter;
    int64_t at, columns;
  } runs[] = {{'*', 0, param->shape[1]}, {'Q', 0, q},         {'K', q, kv},
              {'V', q + kv, kv},         {'G', 0, model->ff}, {'U', model->ff, model->ff}};
  *at = -1;
  *columns = 0;
  for (const char *c = row->columns; *c; ++c)
    for (size_t i = 0; i < sizeof runs / sizeof *runs; ++i)
      if (runs[i].letter == *c) {
        *at = *at < 0 ? runs[i].at : *at;
        *columns += runs[i].columns;
      }
  rf_name name = rf_param_name(model, param, false);
  bool one;
  return are_whole_tensors(&name, *at, *columns, &one);
}

rf_lora_parts rf_lora_parts_of(const rf_model *model, const rf_param *param) {
  rf_lora_parts parts = {.rank = model->lora.rank};
  if (model->lora.rank < 1 || param->layer < 0 || param->layer >= RF_LORA_LAYERS) return parts;
  for (int site = 0; site < SITE_COUNT && parts.count < RF_LORA_PARTS; ++site) {
    int64_t at, columns;
    if (!(model->lora.sites[param->layer] >> site & 1) ||
        !rf_lora_site_columns(model, param, site, &at, &columns))
      continue;
    parts.site[parts.count] = site;
    parts.at[parts.count] = (int32_t)at;
    parts.columns[parts.count++] = (int32_t)columns;
  }
  return parts;
}

/* ---- targets --------------------------------------------------------------------------------- */

typedef struct target {
  const char *text;         /* a word, or '~' and a regular expression */
  rf_name_pattern *pattern; /* the compiled regular expression */
  bool met,                 /* the target matches a site */
      slow;                 /* true: matching `pattern` took too long */
} target;

/* Writes the last word of a module or site name: "attn/q" -> "q", "h.0.attn.c_attn.weight" ->
 * "c_attn". */
static void last_word(const char *name, char word[128]) {
  char copy[256];
  snprintf(copy, sizeof copy, "%s", name);
  size_t length = strlen(copy);
  if (length > 7 && strcmp(copy + length - 7, ".weight") == 0) copy[length - 7] = 0;
  const char *slash = strrchr(copy, '/'), *dot = strrchr(copy, '.');
  snprintf(word, 128, "%s", slash ? slash + 1 : dot ? dot + 1 : copy);
}

static bool matches_name(target *t, const char *whole) {
  int found = rf_name_pattern_matches(t->pattern, whole, strlen(whole));
  t->slow |= found < 0;
  return found > 0;
}

rf_lora_module_name rf_lora_module(const rf_model *model, const rf_param *param, int site) {
  rf_lora_module_name module = {""};
  rf_name name = rf_param_name(model, param, false);
  int64_t at, columns, from = 0;
  bool one;
  if (!rf_lora_site_columns(model, param, site, &at, &columns)) return module;
  are_whole_tensors(&name, at, columns, &one);
  for (int i = 0; i < name.count; from += name.columns[i++]) {
    if (from != at) continue;
    size_t length = strlen(name.part[i]),
           end = length > 7 && strcmp(name.part[i] + length - 7, ".weight") == 0 ? length - 7 : length;
    if (strcmp(name.part[i], param->name) == 0) end = length - strlen("/weight"); /* our own names */
    const char *dot = one ? NULL : memrchr(name.part[i], '.', end);
    snprintf(module.text, sizeof module.text, "%.*s", (int)(dot ? dot + 1 - name.part[i] : (ptrdiff_t)end),
             name.part[i]);
    if (dot) rf_text_append(module.text, sizeof module.text, "%s_proj", strrchr(SITES[site].name, '/') + 1);
  }
  return module;
}

/* True if a site is exactly one tensor in the family's files. General targets ("all", regular
 * expressions) select only sites of this kind. */
static bool is_plain(const rf_model *model, const rf_param *param, int site) {
  rf_name name = rf_param_name(model, param, false);
  int64_t at, columns;
  bool one = false;
  return rf_lora_site_columns(model, param, site, &at, &columns) &&
         are_whole_tensors(&name, at, columns, &one) && one;
}

static bool is_wanted(const rf_model *model, const rf_param *param, int site, target *targets, int count) {
  char word[128], module[128], name[160];
  last_word(SITES[site].name, word);
  last_word(rf_lora_module(model, param, site).text, module);
  snprintf(name, sizeof name, "block.%d/%s", param->layer, SITES[site].name);
  bool wanted = false;
  for (int i = 0; i < count; ++i) {
    target *t = &targets[i];
    bool met;
    if (t->pattern)
      met = is_plain(model, param, site) && (matches_name(t, name) || matches_name(t, param->name));
    else if (strcmp(t->text, "all") == 0 || strcmp(t->text, "all-linear") == 0)
      met = is_plain(model, param, site);
    else
      met = strcmp(t->text, word) == 0 || (strcmp(t->text, "o") == 0 && strcmp(word, "out") == 0) ||
            (*module && strcmp(t->text, module) == 0);
    t->met |= met;
    wanted |= met;
  }
  return wanted;
}

static void known_targets(const rf_model *model, const rf_params *params, char *text, size_t size) {
  char word[128];
  for (int i = 0; i < params->base && params->at[i].layer <= 0; ++i)
    for (int site = 0; site < SITE_COUNT && params->at[i].layer == 0; ++site) {
      int64_t at, columns;
      if (!rf_lora_site_columns(model, &params->at[i], site, &at, &columns) ||
          !is_plain(model, &params->at[i], site))
        continue;
      last_word(SITES[site].name, word);
      rf_text_append(text, size, "%s%s", *text ? ", " : "", word);
    }
}

/* Sets lora->sites. Each target must match a site, and no column may have two adapters. */
static rf_status place_adapters(const rf_model *model, rf_lora *lora, target *targets, int count,
                                rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_pool *pool = rf_pool_new();
  rf_model bare = *model;
  bare.lora = (rf_lora){0};
  rf_params params = rf_model_params(&bare, pool);
  for (int p = 0; p < params.count; ++p) {
    const rf_param *param = &params.at[p];
    if (!param->lora || param->layer < 0) continue;
    int64_t end = 0, at, columns;
    for (int site = 0; site < SITE_COUNT; ++site) {
      if (!rf_lora_site_columns(model, param, site, &at, &columns) ||
          !is_wanted(model, param, site, targets, count))
        continue;
      if (at < end) {
        status = RF_FAIL(error, RAFTER_INVALID, "name either the fused layer or its parts",
                         "two adapters for the same columns (--lora targets: %s)", SITES[site].name);
        goto done;
      }
      end = at + columns;
      lora->sites[param->layer] |= (uint16_t)(1u << site);
    }
  }
  for (int i = 0; i < count; ++i) {
    if (targets[i].slow) {
      status =
          RF_FAIL(error, RAFTER_INVALID, NULL,
                  "a regular expression takes too long to match (--lora targets: '%.80s')", targets[i].text);
      goto done;
    }
    if (!targets[i].met) {
      char known[256] = "";
      known_targets(model, &params, known, sizeof known);
      status = RF_FAIL(
          error, RAFTER_INVALID, "o is short for out; ~REGEX matches names such as block.3/attn/q",
          "the model has no such linear layer (--lora targets: expected some of %s or all, got '%.80s')",
          known, targets[i].text);
      goto done;
    }
  }
done:
  rf_pool_free(pool);
  return status;
}

/* ---- the option ------------------------------------------------------------------------------ */

static const char *const KEYS[] = {"rank", "alpha", "targets", "dropout", "rslora"};
enum { RANK, ALPHA, TARGETS, DROPOUT, RSLORA, KEY_COUNT };

/* Returns the index of the key that begins at `text` ("alpha=...", or "rslora" alone), or -1. */
static int key_at(const char *text, size_t *length) {
  for (int k = 0; k < KEY_COUNT; ++k) {
    *length = strlen(KEYS[k]);
    if (strncmp(text, KEYS[k], *length) == 0 &&
        (text[*length] == '=' || (k == RSLORA && (text[*length] == ',' || !text[*length]))))
      return k;
  }
  return -1;
}

/* Finds the end of a value, which is the comma before the next key or list item. A regex may
 * contain commas. */
static char *value_end(char *value, bool regex) {
  size_t length;
  for (char *c = value; *c; ++c)
    if (*c == ',' && (!regex || key_at(c + 1, &length) >= 0)) return c;
  return value + strlen(value);
}

static rf_status bad_option(const char *key, const char *expected, const char *got, rf_error *error) {
  return RF_FAIL(error, RAFTER_INVALID, "for example --lora rank=16,alpha=32,targets=q,k,v,o,gate,up,down",
                 "--lora: bad %s (expected %s, got '%.60s')", key, expected, got);
}

static rf_status set_number(rf_lora *lora, int key, const char *value, rf_error *error) {
  int64_t whole;
  double real;
  if (key == RANK) {
    if (!rf_text_int(value, &whole) || whole < 1 || whole > 1024)
      return bad_option("rank", "a number from 1 to 1024", value, error);
    lora->rank = (int32_t)whole;
  } else if (key == ALPHA) {
    if (!rf_text_float(value, &real) || !(real > 0) || real > 1e6)
      return bad_option("alpha", "a number above 0", value, error);
    lora->alpha = (float)real;
  } else if (key == DROPOUT) {
    if (!rf_text_float(value, &real) || !(real >= 0) || !(real < 1))
      return bad_option("dropout", "0 or more and below 1", value, error);
    lora->dropout = (float)real;
  } else if (!rf_text_bool(value, &lora->rank_stabilized))
    return bad_option("rslora", "true or false", value, error);
  return RAFTER_OK;
}

static rf_status add_target(target *targets, int *count, const char *text, rf_error *error) {
  if (*count == TARGETS_MAX) return bad_option("targets", "at most 64 targets", text, error);
  if (!*text) return bad_option("targets", "a word between two commas", text, error);
  targets[*count] = (target){.text = text};
  if (*text == '~' && !(targets[*count].pattern = rf_name_pattern_new(text + 1)))
    return bad_option("targets", "a regular expression after ~", text, error);
  ++*count;
  return RAFTER_OK;
}

rf_status rf_lora_parse(const char *text, const rf_model *model, rf_lora *lora, rf_error *error) {
  rf_status status = RAFTER_OK;
  target targets[TARGETS_MAX];
  char copy[TEXT_MAX];
  int count = 0, key = -1;
  memset(lora, 0, sizeof *lora);
  lora->rank = 16;
  if (strlen(text) >= sizeof copy) return bad_option("text", "fewer than 1024 characters", text, error);
  if (model->layers > RF_LORA_LAYERS)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "too many layers for adapters (%s: expected at most %d, got %lld)", model->name,
                   RF_LORA_LAYERS, (long long)model->layers);
  snprintf(copy, sizeof copy, "%s", text);
  for (char *at = copy; *at;) {
    size_t length;
    int next = key_at(at, &length);
    if (next >= 0) {
      key = next;
      at += length + (at[length] == '=');
    } else if (key != TARGETS) {
      status = bad_option("text", "rank=, alpha=, targets=, dropout= or rslora", at, error);
      goto done;
    }
    char *end = value_end(at, key == TARGETS && *at == '~'), *follows = *end ? end + 1 : end;
    *end = 0;
    if (key == TARGETS) RF_GO(add_target(targets, &count, at, error));
    else RF_GO(set_number(lora, key, next == RSLORA && !*at ? "true" : at, error));
    at = follows;
  }
  if (!(lora->alpha > 0)) lora->alpha = 2.0f * (float)lora->rank;
  if (!count) RF_GO(add_target(targets, &count, "all", error));
  status = place_adapters(model, lora, targets, count, error);
done:
  for (int i = 0; i < count; ++i) rf_name_pattern_free(targets[i].pattern);
  return status;
}

int64_t rf_lora_joined(const rf_lora_parts *parts, int part) {
  int64_t sum = 0;
  for (int i = 0; i < part; i++) sum += parts->columns[i];
  return sum;
}

rf_status rf_lora_all(const rf_model *model, int rank, rf_lora *lora, rf_error *error) {
  char text[64];
  snprintf(text, sizeof text, "rank=%d,alpha=%d,targets=all", rank, rank);
  return rf_lora_parse(text, model, lora, error);
}
