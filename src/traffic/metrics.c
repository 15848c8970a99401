/* metrics.c - see metrics.h. */
#include "traffic/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Names of the metrics without the server's prefix, such as "vllm:". */
static const char *const RUNNING[] = {"num_requests_running", "num_running_reqs", "requests_processing",
                                      NULL},
                         *const WAITING[] = {"num_requests_waiting", "num_queue_reqs", "requests_deferred",
                                             NULL};

static bool is_one_of(const char *name, size_t bytes, const char *const *list) {
  for (; *list; list++)
    if (strlen(*list) == bytes && !memcmp(*list, name, bytes)) return true;
  return false;
}

/* Reads `name{labels} value`. A label may contain blanks and braces in quotes. */
static bool read_line(const char *line, size_t bytes, const char **name, size_t *name_bytes, double *value) {
  const char *end = line + bytes, *colon = NULL, *at = line;
  bool quoted = false;
  while (at < end && *at != '{' && *at != ' ' && *at != '\t') {
    if (*at == ':') colon = at;
    at++;
  }
  *name = colon ? colon + 1 : line;
  *name_bytes = (size_t)(at - *name);
  if (at < end && *at == '{') {
    for (; at < end && (quoted || *at != '}'); at++) {
      if (*at == '\\' && at + 1 < end) at++;
      else if (*at == '"') quoted = !quoted;
    }
    if (at < end) at++;
  }
  char number[64];
  while (at < end && (*at == ' ' || *at == '\t')) at++;
  size_t length = (size_t)(end - at);
  if (!length || length >= sizeof number) return false;
  memcpy(number, at, length);
  number[length] = 0;
  char *after;
  *value = strtod(number, &after);
  return after != number && isfinite(*value) && *value >= 0;
}

bool rf_traffic_read_metrics(const char *text, double *running, double *waiting) {
  bool found = false;
  *running = *waiting = 0;
  for (const char *line = text; *line;) {
    size_t bytes = strcspn(line, "\r\n"), name_bytes;
    const char *name;
    double value;
    if (*line != '#' && read_line(line, bytes, &name, &name_bytes, &value)) {
      const bool runs = is_one_of(name, name_bytes, RUNNING), waits = is_one_of(name, name_bytes, WAITING);
      if (runs) *running += value;
      if (waits) *waiting += value;
      found |= runs || waits;
    }
    line += bytes;
    line += strspn(line, "\r\n");
  }
  return found;
}
