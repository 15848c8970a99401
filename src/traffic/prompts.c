/* prompts.c - see prompts.h. */
#include "traffic/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "formats/json_lines.h"

/* After a blank, each of these words is one token in the vocabularies of GPT-2, Llama, Qwen and
 * Gemma. */
static const char *const WORDS[] = {
    "air",   "all",   "and",   "area",  "back",  "bank",  "base",  "been",  "best",   "black",  "body",
    "book",  "both",  "call",  "case",  "city",  "come",  "cost",  "data",  "day",    "deal",   "door",
    "early", "each",  "end",   "even",  "face",  "fact",  "far",   "field", "find",   "fire",   "food",
    "force", "form",  "four",  "free",  "game",  "girl",  "give",  "good",  "group",  "half",   "hand",
    "head",  "high",  "home",  "hour",  "house", "idea",  "issue", "job",   "keep",   "kind",   "land",
    "large", "law",   "left",  "level", "life",  "light", "line",  "list",  "long",   "look",   "made",
    "main",  "many",  "mind",  "money", "month", "more",  "music", "name",  "near",   "need",   "night",
    "north", "open",  "order", "over",  "page",  "part",  "past",  "place", "plan",   "play",   "point",
    "power", "price", "rate",  "read",  "real",  "right", "road",  "room",  "school", "second", "seven",
    "side",  "small", "sound", "space", "state", "step",  "story", "study", "table",  "team",   "term",
    "test",  "third", "time",  "town",  "trade", "turn",  "type",  "under", "value",  "view",   "voice",
    "war",   "water", "week",  "white", "wind",  "word",  "year"};
enum { WORD_COUNT = sizeof WORDS / sizeof *WORDS, MAX_ROWS = 1 << 20 };

/* ---- rows of a file -------------------------------------------------------------------------- */

static bool is_list_of_ids(const json_t *list) {
  size_t i;
  json_t *id;
  bool good = json_array_size(list) > 0;
  json_array_foreach ((json_t *)list, i, id) good &= json_is_integer(id) && json_integer_value(id) >= 0;
  return good;
}

static rf_status check_row(const rf_traffic_prompts *p, const json_t *row, const char *path, int64_t line,
                           rf_error *error) {
  const json_t *prompt = json_object_get(row, "prompt"), *messages = json_object_get(row, "messages"),
               *tokens = json_object_get(row, "tokens"), *most = json_object_get(row, "max_tokens");
  const bool one = !!prompt + !!messages + !!tokens == 1;
  if (!one || (prompt && !json_string_length(prompt)) || (messages && !json_array_size(messages)) ||
      (tokens && !is_list_of_ids(tokens)))
    return RF_FAIL(error, RAFTER_INVALID, "each line is {\"prompt\": \"text\", \"max_tokens\": 64}",
                   "%s, line %lld: bad row (expected one of \"prompt\" (text), \"messages\" (list) and "
                   "\"tokens\" (ids))",
                   path, (long long)line);
  if (messages && !p->chat)
    return RF_FAIL(error, RAFTER_INVALID, "add --chat", "%s, line %lld: \"messages\" need --chat", path,
                   (long long)line);
  if (tokens && p->chat)
    return RF_FAIL(error, RAFTER_INVALID, "leave out --chat",
                   "%s, line %lld: \"tokens\" cannot be sent with --chat", path, (long long)line);
  if (most && (!json_is_integer(most) || json_integer_value(most) < 1 || json_integer_value(most) > 1 << 24))
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "%s, line %lld: \"max_tokens\" is out of range (expected 1 to %d)", path, (long long)line,
                   1 << 24);
  return RAFTER_OK;
}

rf_status rf_traffic_prompts_read(const char *path, rf_traffic_prompts *p, rf_error *error) {
  rf_json_lines lines = {0};
  rf_status status = RAFTER_OK;
  json_t *row = NULL;
  RF_TRY(rf_json_lines_open(path, "--data FILE has lines like {\"prompt\": \"text\"}", &lines, error));
  for (;;) {
    RF_GO(rf_json_lines_next(&lines, &row, error));
    if (!row) break;
    RF_GO(check_row(p, row, path, lines.line, error));
    if (p->rows == MAX_ROWS)
      RF_GO(
          RF_FAIL(error, RAFTER_INVALID, NULL, "%s has too many rows (expected at most %d)", path, MAX_ROWS));
    if ((p->rows & (p->rows - 1)) == 0) {
      json_t **grown = realloc(p->row, (size_t)(p->rows ? 2 * p->rows : 1) * sizeof(json_t *));
      if (!grown) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading %s", path));
      p->row = grown;
    }
    p->row[p->rows++] = row;
    row = NULL;
  }
  if (!p->rows)
    RF_GO(RF_FAIL(error, RAFTER_INVALID, "each line is {\"prompt\": \"text\"}", "%s has no rows", path));
done:
  json_decref(row);
  rf_json_lines_close(&lines);
  return status;
}

void rf_traffic_prompts_free(rf_traffic_prompts *p) {
  for (int64_t i = 0; i < p->rows; i++) json_decref(p->row[i]);
  free(p->row);
  p->row = NULL;
  p->rows = 0;
}

/* ---- lengths --------------------------------------------------------------------------------- */

/* A number from 0 to limit - 1. */
static uint64_t draw(uint64_t seed, uint64_t index, uint64_t at, const char *site, uint64_t limit) {
  uint32_t word[4];
  rf_philox(rf_key(seed, index, rf_name_key(site)), at, 0, word);
  return (((uint64_t)word[1] << 32) | word[0]) % limit;
}

static int64_t varied(int64_t length, double spread, uint64_t seed, int64_t index, const char *site) {
  int64_t by = (int64_t)((double)length * spread), low = length - by > 1 ? length - by : 1;
  return low + (int64_t)draw(seed, (uint64_t)index, 0, site, (uint64_t)(length + by - low + 1));
}

static void set_row_lengths(const json_t *row, rf_arrival *a) {
  const json_t *most = json_object_get(row, "max_tokens"), *tokens = json_object_get(row, "tokens"), *message;
  size_t characters = json_string_length(json_object_get(row, "prompt")), i;
  json_array_foreach (json_object_get(row, "messages"), i, message)
    characters += json_string_length(json_object_get(message, "content"));
  a->prompt = tokens ? (int64_t)json_array_size(tokens) : (int64_t)(characters + 3) / 4;
  if (a->prompt < 1) a->prompt = 1;
  if (most) a->answer = json_integer_value(most);
}

void rf_traffic_lengths(const rf_traffic_prompts *p, double spread, rf_arrival *list, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    if (p->rows) set_row_lengths(p->row[i % p->rows], &list[i]);
    else if (spread > 0) {
      list[i].prompt = varied(list[i].prompt, spread, p->seed, i, "prompt tokens");
      list[i].answer = varied(list[i].answer, spread, p->seed, i, "answer tokens");
    }
    if (list[i].shared > list[i].prompt) list[i].shared = list[i].prompt;
  }
}

/* ---- bodies ---------------------------------------------------------------------------------- */

/* Draws a random number for token `at` of a prompt. Shared tokens are the same in all prompts. */
static uint64_t token_of(const rf_traffic_prompts *p, int64_t index, int64_t at, const rf_arrival *a,
                         uint64_t limit) {
  const bool shared = at < a->shared;
  return draw(p->seed, shared ? 0 : rf_key(p->part, (uint64_t)index, 1), (uint64_t)at,
              shared ? "shared" : "prompt", limit);
}

static json_t *random_words(const rf_traffic_prompts *p, int64_t index, const rf_arrival *a) {
  enum { LONGEST = 8 };
  char *text = malloc((size_t)a->prompt * LONGEST + 1), *to = text;
  if (!text) return NULL;
  for (int64_t at = 0; at < a->prompt; at++) {
    const char *word = WORDS[token_of(p, index, at, a, WORD_COUNT)];
    size_t bytes = strlen(word);
    if (at) *to++ = ' ';
    memcpy(to, word, bytes);
    to += bytes;
  }
  json_t *json = json_stringn(text, (size_t)(to - text));
  free(text);
  return json;
}

/* Draws ids from the middle three quarters of the vocabulary, because special tokens are at its
 * ends. */
static json_t *random_ids(const rf_traffic_prompts *p, int64_t index, const rf_arrival *a) {
  const uint64_t low = (uint64_t)p->vocab / 8, most = (uint64_t)p->vocab - 2 * low;
  json_t *list = json_array();
  for (int64_t at = 0; at < a->prompt; at++)
    json_array_append_new(list, json_integer((json_int_t)(low + token_of(p, index, at, a, most))));
  return list;
}

static json_t *prompt_of(const rf_traffic_prompts *p, int64_t index, const rf_arrival *a) {
  if (!p->rows) return p->vocab ? random_ids(p, index, a) : random_words(p, index, a);
  const json_t *row = p->row[index % p->rows];
  json_t *text = json_object_get(row, "prompt"), *tokens = json_object_get(row, "tokens");
  return json_incref(text ? text : tokens ? tokens : json_object_get(row, "messages"));
}

char *rf_traffic_body(const rf_traffic_prompts *p, int64_t index, const rf_arrival *a) {
  json_t *prompt = prompt_of(p, index, a);
  if (p->chat && json_is_string(prompt)) prompt = json_pack("[{ss so}]", "role", "user", "content", prompt);
  json_t *json = json_pack("{ss so sI sf sb s{sb}}", "model", p->model, p->chat ? "messages" : "prompt",
                           prompt, "max_tokens", (json_int_t)a->answer, "temperature", p->temperature,
                           "stream", 1, "stream_options", "include_usage", 1);
  if (p->ignore_eos) json_object_set_new(json, "ignore_eos", json_true());
  if (p->extra) json_object_update(json, (json_t *)p->extra);
  char *text = json ? rf_json_text(json, 0) : NULL;
  json_decref(json);
  return text;
}
