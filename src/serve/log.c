/* log.c - the access log: one line of JSON for each request. */
#include "serve/call.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

void rf_random_hex(char *hex, size_t bytes) {
  static const char DIGITS[] = "0123456789abcdef";
  uint8_t random[32] = {0};
  if (getrandom(random, bytes, 0) != (ssize_t)bytes) memcpy(random, &(int64_t){rf_now_ns()}, sizeof(int64_t));
  for (size_t i = 0; i < bytes; i++) {
    hex[2 * i] = DIGITS[random[i] >> 4];
    hex[2 * i + 1] = DIGITS[random[i] & 15];
  }
  hex[2 * bytes] = 0;
}

static void put(rf_body *line, const char *name, const char *text) {
  rf_body_format(line, ",\"%s\":", name);
  rf_body_string(line, text, strlen(text));
}

void rf_log_call(const rf_call *c, double seconds, rf_body *line) {
  char time_text[40];
  struct tm utc;
  time_t now = time(NULL);
  if (!c->server->log) return;
  strftime(time_text, sizeof time_text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  rf_body_format(line, "{\"time\":\"%s\"", time_text);
  put(line, "request_id", c->request_id);
  put(line, "from", c->from);
  put(line, "method", c->method);
  put(line, "path", c->path);
  rf_body_format(line, ",\"status\":%d,\"seconds\":%.6f", c->gone ? 499 : c->status, seconds);
  if (c->submitted) {
    int64_t tokens = 0;
    double first = 0;
    for (int64_t i = 0; i < c->answers; i++) {
      const rf_answer *a = &c->answer[i];
      tokens += a->count;
      if (a->count && (first <= 0 || a->first < first)) first = a->first;
    }
    rf_body_format(line, ",\"id\":\"%s\",\"stream\":%s,\"prompt_tokens\":%lld,\"completion_tokens\":%lld",
                   c->id, c->ask.stream ? "true" : "false", (long long)c->prompt_tokens, (long long)tokens);
    if (first > 0) rf_body_format(line, ",\"seconds_to_first_token\":%.6f", first - c->arrived);
  }
  if (c->wrong.status) put(line, "error", c->wrong.message);
  rf_body_text(line, "}\n");
}

void rf_log_write(const rf_server *s, const rf_body *line) {
  if (!line->bytes) return;
  fwrite(line->at, 1, line->bytes, s->log);
  fflush(s->log);
}
