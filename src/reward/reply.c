/* reply.c - reads a line that the program of --reward-command wrote. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reward/command.h"

enum { KEY_BYTES = 64, KEYS = 32 };
static const double REWARD_MOST = 1e9;
static const char OF_LINES[] =
    "the command writes one line {\"id\": ID, \"reward\": NUMBER} to stdout for each line that it reads, and "
    "messages to stderr";

const char *rf_excerpt(const char *text, size_t bytes, char out[RF_EXCERPT]) {
  size_t n = bytes < 80 ? bytes : 80;
  for (size_t i = 0; i < n; i++) out[i] = (unsigned char)text[i] < ' ' || text[i] == 127 ? ' ' : text[i];
  while (n && bytes > 80 && (out[n - 1] & 0xc0) == 0x80) n--; /* whole characters */
  if (n && bytes > 80 && (unsigned char)out[n - 1] >= 0xc0) n--;
  strcpy(out + n, bytes > 80 ? "..." : "");
  return out;
}

static bool is_reward(const json_t *value) {
  return json_is_number(value) && fabs(json_number_value(value)) <= REWARD_MOST;
}

/* Writes a short form of a value, for errors. */
static void show(const json_t *value, char out[RF_EXCERPT]) {
  char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
  const char *shown = text ? text : "nothing";
  rf_excerpt(shown, strlen(shown), out);
  free(text);
}

static bool check_rewards(const json_t *rewards, char why[300]) {
  const char *key;
  json_t *value;
  char got[RF_EXCERPT];
  if (rewards && !json_is_null(rewards) && !json_is_object(rewards)) {
    show(rewards, got);
    snprintf(why, 300, "\"rewards\": expected an object, got %s", got);
    return false;
  }
  if (json_object_size(rewards) > KEYS) {
    snprintf(why, 300, "\"rewards\": expected at most %d names, got %zu", KEYS, json_object_size(rewards));
    return false;
  }
  json_object_foreach ((json_t *)rewards, key, value) {
    if (*key && strlen(key) <= KEY_BYTES && is_reward(value)) continue;
    show(value, got);
    snprintf(why, 300, "\"rewards\", \"%.64s\": expected a name of 1 to %d bytes and a number, got %s", key,
             KEY_BYTES, got);
    return false;
  }
  return true;
}

static bool check(const json_t *json, int64_t number, char why[300]) {
  const json_t *id = json_object_get(json, "id"), *reward = json_object_get(json, "reward");
  char got[RF_EXCERPT];
  if (!json_is_integer(id) || json_integer_value(id) != number) {
    bool before = json_is_integer(id) && json_integer_value(id) > 0 && json_integer_value(id) < number;
    show(id, got);
    snprintf(why, 300, "\"id\": expected %lld, got %s%s", (long long)number, got,
             before ? ", the id of an earlier line" : "");
    return false;
  }
  if (!is_reward(reward)) {
    show(reward, got);
    snprintf(why, 300, "\"reward\": expected a number from -1e9 to 1e9, got %s", got);
    return false;
  }
  return check_rewards(json_object_get(json, "rewards"), why);
}

bool rf_reward_reply_read(const char *text, size_t bytes, int64_t number, double *reward, json_t **rewards,
                          char why[300], const char **hint) {
  json_error_t bad;
  char got[RF_EXCERPT];
  json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &bad);
  *hint = OF_LINES;
  *rewards = NULL;
  if (!json_is_object(json)) {
    rf_excerpt(text, bytes, got);
    snprintf(why, 300, "expected a JSON object, got '%s'", got);
    if (strstr(got, "NaN") || strstr(got, "Infinity"))
      *hint = "JSON has no NaN and no Infinity: the command must give each answer a finite reward";
  }
  bool right = json_is_object(json) && check(json, number, why);
  if (right) {
    *reward = json_number_value(json_object_get(json, "reward"));
    if (json_object_size(json_object_get(json, "rewards")))
      *rewards = json_incref(json_object_get(json, "rewards"));
  }
  json_decref(json);
  return right;
}
