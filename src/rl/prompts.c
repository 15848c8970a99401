/* prompts.c - see prompts.h. All rows stay in memory, and a limit bounds their bytes. */
#include "rl/prompts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "formats/json_lines.h"

struct rf_rl_prompts {
  char *path;
  rf_rl_prompt *row; /* (count) rows, which own their texts, ids and JSON */
  int64_t count, capacity, skipped, longest, tokens, bytes;
  json_t *lines; /* line number of each id, while the file is read */
  XXH3_state_t *hash;
  uint64_t digest;
};

/* The settings for reading rows. */
typedef struct reading {
  rf_prompt_reader *reader;
  const rf_rewards *rewards;
  int64_t longest, memory_bytes;
} reading;

static void free_row(rf_rl_prompt *row) {
  free((char *)(uintptr_t)row->id);
  free((char *)(uintptr_t)row->text);
  free((int32_t *)(uintptr_t)row->tokens);
  free((char *)(uintptr_t)row->answer);
  json_decref((json_t *)(uintptr_t)row->row);
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* Returns the text of a text or number, malloc'ed. Returns NULL if the value has another type, or
 * if memory runs out. */
static char *text_of(const json_t *value) {
  if (json_is_string(value)) return strdup(json_string_value(value));
  return json_is_number(value) ? rf_json_text(value, 0) : NULL;
}

static rf_status read_field(const json_t *json, const char *key, const char *where, char **text,
                            rf_error *error) {
  const json_t *value = json_object_get(json, key);
  *text = NULL;
  if (!value || json_is_null(value)) return RAFTER_OK;
  *text = text_of(value);
  return *text ? RAFTER_OK
               : RF_FAIL(error, RAFTER_FAILED, NULL,
                         "a field has a wrong type (%s, %s: expected a text or a number, got %s)", where, key,
                         rf_json_type(value));
}

/* Reads the row's "id", which no earlier row may have. The name of a row without an id is its line
 * number. */
static rf_status read_id(rf_rl_prompts *p, const json_t *json, int64_t line, const char *where, char **id,
                         rf_error *error) {
  char own[40];
  RF_TRY(read_field(json, "id", where, id, error));
  if (!*id) {
    snprintf(own, sizeof own, "line %lld", (long long)line);
    *id = rf_must(strdup(own));
  }
  const json_t *before = json_object_get(p->lines, *id);
  if (before)
    return RF_FAIL(error, RAFTER_FAILED, "give each row its own id, or leave the ids out",
                   "an id occurs twice (%s, id: '%.60s' is also that of line %lld)", where, *id,
                   (long long)json_integer_value(before));
  return json_object_set_new(p->lines, *id, json_integer(line))
             ? RF_FAIL(error, RAFTER_FAILED, NULL, "an id cannot be stored (%s, id)", where)
             : RAFTER_OK;
}

/* Reads the prompt's ids and text. The text of a row of ids is decoded from these ids. */
static rf_status read_prompt(const reading *r, const json_t *json, const char *where, rf_rl_prompt *row,
                             rf_error *error) {
  rf_prompt prompt = {0};
  size_t bytes;
  rf_status status = rf_prompt_only_of_json(r->reader, json, where, &prompt, error);
  if (status == RAFTER_OK && !prompt.text) status = rf_prompt_reader_open(r->reader, false, error);
  if (status == RAFTER_OK && !prompt.text)
    status = rf_tokenizer_decode(r->reader->tokenizer, prompt.tokens.at, prompt.tokens.count,
                                 RF_DECODE_SPECIALS, &prompt.text, &bytes, error);
  if (status == RAFTER_OK) {
    row->count = prompt.tokens.count;
    int32_t *exact = realloc(prompt.tokens.at, (size_t)row->count * sizeof *exact);
    row->tokens = exact ? exact : prompt.tokens.at;
    row->text = prompt.text;
    prompt.tokens = (rf_ids){0};
    prompt.text = NULL;
  }
  rf_prompt_free(&prompt);
  return status;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Bytes of a JSON value in memory. jansson needs about 64 bytes for each value, and for each
 * name. */
static int64_t json_bytes(const json_t *value) {
  const char *key;
  json_t *part;
  size_t i;
  int64_t bytes = 64 + (json_is_string(value) ? (int64_t)json_string_length(value) : 0);
  json_object_foreach ((json_t *)(uintptr_t)value, key, part)
    bytes += 64 + (int64_t)strlen(key) + json_bytes(part);
  json_array_foreach (value, i, part) bytes += json_bytes(part);
  return bytes;
}

static int64_t row_bytes(const rf_rl_prompt *row) {
  return (int64_t)sizeof *row + (int64_t)strlen(row->id) + (int64_t)strlen(row->text) + 4 * row->count +
         (row->answer ? (int64_t)strlen(row->answer) : 0) + json_bytes(row->row);
}

static rf_status keep_row(rf_rl_prompts *p, const reading *r, const rf_rl_prompt *row, const char *where,
                          rf_error *error) {
  p->bytes += row_bytes(row);
  if (p->bytes > r->memory_bytes)
    return RF_FAIL(error, RAFTER_FAILED, "give a part of the rows, or rows without long fields",
                   "the prompts need too much memory (%s: expected at most %.2f GiB with all rows before it)",
                   where, (double)r->memory_bytes / (1 << 30));
  if (p->count == p->capacity) {
    int64_t capacity = p->capacity ? 2 * p->capacity : 64;
    rf_rl_prompt *grown = realloc(p->row, (size_t)capacity * sizeof *grown);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    p->row = grown;
    p->capacity = capacity;
  }
  p->row[p->count++] = *row;
  p->tokens += row->count;
  if (row->count > p->longest) p->longest = row->count;
  XXH3_64bits_update(p->hash, &row->count, sizeof row->count);
  XXH3_64bits_update(p->hash, row->tokens, (size_t)row->count * sizeof *row->tokens);
  return RAFTER_OK;
}

/* Hashes the line of a row, with all its fields. */
static void hash_line(rf_rl_prompts *p, const rf_json_lines *lines) {
  size_t bytes = lines->bytes;
  while (bytes && strchr(" \t\r\n", lines->text[bytes - 1])) bytes--;
  XXH3_64bits_update(p->hash, &bytes, sizeof bytes);
  XXH3_64bits_update(p->hash, lines->text, bytes);
}

/* Reads one row. The row keeps the JSON object. */
static rf_status read_row(rf_rl_prompts *p, const reading *r, const rf_json_lines *lines, const json_t *json,
                          rf_error *error) {
  char where[4200], *id = NULL, *answer = NULL;
  rf_rl_prompt row = {0};
  snprintf(where, sizeof where, "%s, line %lld", p->path, (long long)lines->line);
  rf_status status = read_id(p, json, lines->line, where, &id, error);
  if (status == RAFTER_OK) status = read_field(json, "answer", where, &answer, error);
  row.id = id;
  row.answer = answer;
  if (status == RAFTER_OK && r->rewards) status = rf_rewards_check(r->rewards, answer, where, error);
  if (status == RAFTER_OK) status = read_prompt(r, json, where, &row, error);
  bool fits = row.count <= r->longest;
  if (status == RAFTER_OK && !fits) p->skipped++;
  if (status == RAFTER_OK && fits) {
    row.row = json_incref((json_t *)(uintptr_t)json);
    hash_line(p, lines);
    status = keep_row(p, r, &row, where, error);
    if (status == RAFTER_OK) return status;
  }
  free_row(&row);
  return status;
}

static rf_status read_rows(rf_rl_prompts *p, const reading *r, rf_error *error) {
  rf_status status;
  rf_json_lines lines;
  json_t *json = NULL;
  RF_TRY(rf_json_lines_open(p->path, "rows are {\"prompt\": TEXT, \"answer\": TEXT}", &lines, error));
  while ((status = rf_json_lines_next(&lines, &json, error)) == RAFTER_OK && json) {
    status = read_row(p, r, &lines, json, error);
    json_decref(json);
    if (status != RAFTER_OK) break;
  }
  rf_json_lines_close(&lines);
  if (status != RAFTER_OK || p->count) return status;
  if (!p->skipped) return RF_FAIL(error, RAFTER_FAILED, NULL, "%s has no rows", p->path);
  return RF_FAIL(
      error, RAFTER_FAILED, "give a larger --seq or fewer --max-tokens",
      "all prompts are too long (%s: expected prompts of at most %lld tokens, got %lld longer ones)", p->path,
      (long long)r->longest, (long long)p->skipped);
}

rf_status rf_rl_prompts_open_within(const char *path, rf_prompt_reader *reader, const rf_rewards *rewards,
                                    int64_t longest, int64_t memory_bytes, rf_rl_prompts **prompts,
                                    rf_error *error) {
  rf_rl_prompts *p = calloc(1, sizeof *p);
  const reading r = {reader, rewards, longest, memory_bytes};
  if (!p) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  p->path = strdup(path);
  p->lines = json_object();
  p->hash = XXH3_createState();
  rf_status status =
      p->path && p->lines && p->hash ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  if (status == RAFTER_OK) {
    XXH3_64bits_reset(p->hash);
    status = read_rows(p, &r, error);
    p->digest = XXH3_64bits_digest(p->hash);
  }
  json_decref(p->lines);
  p->lines = NULL;
  XXH3_freeState(p->hash);
  p->hash = NULL;
  if (status == RAFTER_OK) *prompts = p;
  else rf_rl_prompts_close(p);
  return status;
}

rf_status rf_rl_prompts_open(const char *path, rf_prompt_reader *reader, const rf_rewards *rewards,
                             int64_t longest, rf_rl_prompts **prompts, rf_error *error) {
  return rf_rl_prompts_open_within(path, reader, rewards, longest, RF_RL_PROMPT_BYTES, prompts, error);
}

void rf_rl_prompts_close(rf_rl_prompts *p) {
  if (!p) return;
  for (int64_t i = 0; i < p->count; i++) free_row(&p->row[i]);
  free(p->row);
  free(p->path);
  free(p);
}

/* ---- questions ------------------------------------------------------------------------------- */

int64_t rf_rl_prompts_count(const rf_rl_prompts *p) { return p->count; }

int64_t rf_rl_prompts_skipped(const rf_rl_prompts *p) { return p->skipped; }

int64_t rf_rl_prompts_longest(const rf_rl_prompts *p) { return p->longest; }

const rf_rl_prompt *rf_rl_prompts_row(const rf_rl_prompts *p, int64_t row) { return &p->row[row]; }

const rf_rl_prompt *rf_rl_prompts_draw(const rf_rl_prompts *p, uint64_t seed, int64_t position) {
  uint64_t key = rf_key(seed, rf_name_key("rl prompts"), 0);
  return &p->row[rf_shuffle(key, position / p->count, position % p->count, p->count)];
}

rf_given rf_rl_prompts_given(const rf_rl_prompts *p) {
  return (rf_given){.spec = p->path, .rows = p->count, .tokens = p->tokens, .digest = p->digest};
}
