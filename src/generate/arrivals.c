/* arrivals.c - see arrivals.h. */
#define _GNU_SOURCE
#include "generate/arrivals.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"

void rf_arrivals_poisson(rf_arrival like, double per_second, uint64_t seed, rf_arrival *list, int64_t count) {
  double at = 0;
  for (int64_t i = 0; i < count; i++) {
    uint32_t word[4];
    rf_philox(rf_key(seed, (uint64_t)i, rf_name_key("arrival")), 0, 0, word);
    if (per_second > 0) at -= log(1 - (double)rf_uniform(word[0])) / per_second;
    list[i] = like;
    list[i].at = at;
  }
}

static int by_time(const void *a, const void *b) {
  const rf_arrival *x = a, *y = b;
  return (x->at > y->at) - (x->at < y->at);
}

static rf_status read_line(const char *path, int64_t line, const char *text, rf_arrival like,
                           rf_arrival *arrival, rf_error *error) {
  json_error_t fault;
  rf_status status = RAFTER_OK;
  json_t *json = json_loads(text, 0, &fault), *at = json_object_get(json, "at"), *value;
  *arrival = like;
  if (!json_is_object(json) || !json_is_number(at) || !(json_number_value(at) >= 0) ||
      !(json_number_value(at) < 1e9))
    RF_GO(RF_FAIL(error, RAFTER_INVALID, "each line is {\"at\": 1.5, \"prompt\": 512, \"answer\": 128}",
                  "%s, line %lld: bad arrival (expected an object with \"at\" in seconds >= 0, got %.60s)",
                  path, (long long)line, text));
  arrival->at = json_number_value(at);
  const struct {
    const char *key;
    int64_t *to, least, most;
  } field[] = {{"prompt", &arrival->prompt, 1, 1 << 24},
               {"answer", &arrival->answer, 1, 1 << 24},
               {"shared", &arrival->shared, 0, 1 << 24}};
  for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
    if (!(value = json_object_get(json, field[i].key))) continue;
    if (!json_is_integer(value) || json_integer_value(value) < field[i].least ||
        json_integer_value(value) > field[i].most)
      RF_GO(RF_FAIL(error, RAFTER_INVALID, "each line is {\"at\": 1.5, \"prompt\": 512, \"answer\": 128}",
                    "%s, line %lld: \"%s\" is out of range (expected %lld to %lld tokens)", path,
                    (long long)line, field[i].key, (long long)field[i].least, (long long)field[i].most));
    *field[i].to = json_integer_value(value);
  }
  if (arrival->shared > arrival->prompt) arrival->shared = arrival->prompt;
done:
  json_decref(json);
  return status;
}

/* ---- CSV files of the Azure traces ----------------------------------------------------------- */

static const char CSV_HEADER[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

/* Parses a time such as "2023-11-16 18:15:46.6805900", which may end with "+00:00", into seconds
 * since 1970. Returns the text after the time, or NULL. */
static const char *read_time(const char *text, double *seconds) {
  struct tm tm = {0};
  char *end = strptime(text, "%Y-%m-%d %H:%M:%S", &tm);
  if (!end) return NULL;
  *seconds = (double)timegm(&tm);
  if (*end == '.') {
    size_t digits = strspn(end + 1, "0123456789");
    double unit = 1;
    for (size_t i = 1; i <= digits && i < 12; i++) *seconds += (unit /= 10) * (end[i] - '0');
    end += 1 + digits;
  }
  return strncmp(end, "+00:00", 6) ? end : end + 6;
}

static rf_status read_row(const char *path, int64_t line, const char *text, rf_arrival like,
                          rf_arrival *arrival, rf_error *error) {
  long long prompt = 0, answer = 0;
  int used = 0;
  *arrival = like;
  const char *rest = read_time(text, &arrival->at);
  const bool read = rest && sscanf(rest, ",%lld,%lld%n", &prompt, &answer, &used) == 2 && used > 0 &&
                    !rest[(size_t)used + strspn(rest + used, " \t\r")];
  if (!read || prompt < 1 || prompt > 1 << 24 || answer < 1 || answer > 1 << 24)
    return RF_FAIL(error, RAFTER_INVALID, "each line is a time and two numbers of tokens from 1 to 16777216",
                   "%s, line %lld: bad row (expected 2023-11-16 18:15:46.68,374,44 below the header, got "
                   "%.60s)",
                   path, (long long)line, text);
  arrival->prompt = prompt;
  arrival->answer = answer;
  if (arrival->shared > arrival->prompt) arrival->shared = arrival->prompt;
  return RAFTER_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static const char HINT[] =
    "each line is {\"at\": 1.5, \"prompt\": 512, \"answer\": 128}, or the file is a CSV of the Azure traces";

static rf_status read_lines(const char *path, char *text, rf_arrival like, rf_arrival *out, int64_t *found,
                            rf_error *error) {
  const bool csv = !strncmp(text, CSV_HEADER, strlen(CSV_HEADER));
  int64_t line = 0;
  *found = 0;
  for (char *rest = text, *at; (at = strsep(&rest, "\n"));) {
    line++;
    if (!at[strspn(at, " \t\r")] || (csv && line == 1)) continue;
    RF_TRY((csv ? read_row : read_line)(path, line, at, like, &out[*found], error));
    ++*found;
  }
  if (!*found) return RF_FAIL(error, RAFTER_INVALID, HINT, "%s has no arrivals", path);
  qsort(out, (size_t)*found, sizeof *out, by_time);
  for (int64_t i = *found; csv && i-- > 0;) out[i].at -= out[0].at;
  return RAFTER_OK;
}

rf_status rf_arrivals_read(const char *path, rf_arrival like, rf_arrival **list, int64_t *count,
                           rf_error *error) {
  enum { MAX_BYTES = 256 << 20 };
  char *text = NULL;
  size_t bytes = 0;
  int64_t lines = 0, found = 0;
  rf_status status = RAFTER_OK;
  rf_arrival *out = NULL;
  rf_error inner = {0};
  status = rf_file_read(path, MAX_BYTES, &text, &bytes, &inner);
  if (status != RAFTER_OK)
    return RF_FAIL(error, status,
                   inner.hint[0] ? inner.hint
                                 : "--arrivals FILE has lines like {\"at\": 1.5, \"prompt\": 512, "
                                   "\"answer\": 128}, or is a CSV of the Azure traces",
                   "--arrivals: %s", inner.message);
  for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
  if (lines >= RF_MAX_ARRIVALS)
    RF_GO(RF_FAIL(error, RAFTER_INVALID, NULL, "%s has too many lines (expected at most %d)", path,
                  RF_MAX_ARRIVALS));
  out = calloc((size_t)lines + 1, sizeof *out);
  if (!out) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading %s", path));
  RF_GO(read_lines(path, text, like, out, &found, error));
done:
  free(text);
  if (status == RAFTER_OK) {
    *list = out;
    *count = found;
  } else free(out);
  return status;
}
