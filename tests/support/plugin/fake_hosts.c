/* fake_hosts.c - see fake_hosts.h. */
#define _GNU_SOURCE
#include "fake_hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char why[300];

/* The store makes its errors with this function of the plugin. */
static void *make_error(int code, const char *text, size_t bytes) {
  snprintf(why, sizeof why, "error %d: %.*s", code, (int)bytes, text);
  return why;
}
static pjrt_make_error made = make_error;

static const char *put(const fake_nodes *n, const char *key, const void *value, size_t bytes) {
  void *(*call)(pjrt_kv_put *) = (void *(*)(pjrt_kv_put *))n->create.put;
  pjrt_kv_put args = {.struct_size = sizeof args,
                      .key = key,
                      .key_bytes = strlen(key),
                      .value = value,
                      .value_bytes = bytes,
                      .error = &made,
                      .self = n->create.put_arg};
  return call(&args);
}

static const char *get(const fake_nodes *n, const char *key, int timeout_ms, void *value, size_t bytes) {
  void *(*call)(pjrt_kv_get *) = (void *(*)(pjrt_kv_get *))n->create.get;
  pjrt_kv_get args = {.struct_size = sizeof args,
                      .key = key,
                      .key_bytes = strlen(key),
                      .timeout_ms = timeout_ms,
                      .error = &made,
                      .self = n->create.get_arg};
  const char *failed = call(&args);
  if (failed) return failed;
  if (args.value_bytes != bytes) failed = "a value has the wrong size";
  else memcpy(value, args.value, bytes);
  args.release(args.value);
  return failed;
}

static const char *try_get(const fake_nodes *n, const char *key) {
  void *(*call)(pjrt_kv_try *) = (void *(*)(pjrt_kv_try *))n->create.try_get;
  pjrt_kv_try args = {.struct_size = sizeof args,
                      .key = key,
                      .key_bytes = strlen(key),
                      .error = &made,
                      .self = n->create.try_get_arg};
  const char *failed = call(&args);
  if (!failed) args.release(args.value);
  return failed;
}

const char *fake_join(fake_nodes *n, const pjrt_client_create *create, int devices) {
  char key[64];
  const char *failed = NULL;
  n->create = *create;
  n->devices[n->node] = devices;
  if (n->nodes < 2) return NULL;
  if (n->nodes > FAKE_NODES || !create->get || !create->put || !create->try_get) return "no key-value store";
  const char *missing = try_get(n, "a key that nobody sets");
  if (!missing || !strstr(missing, "error 5")) return "a missing key is found";
  missing = get(n, "a key that nobody sets", 20, key, 1);
  if (!missing || !strstr(missing, "error 4")) return "a missing key does not end at its time";
  snprintf(key, sizeof key, "devices/%d", n->node);
  failed = put(n, key, &devices, sizeof devices);
  for (int i = 0; i < n->nodes && !failed; i++) {
    snprintf(key, sizeof key, "devices/%d", i);
    failed = get(n, key, 60000, &n->devices[i], sizeof n->devices[i]);
  }
  return failed;
}

const char *fake_sum(fake_nodes *n, int64_t *number) {
  char key[64];
  const char *failed = NULL;
  int64_t own = *number, at = n->sums++, more = 0;
  snprintf(key, sizeof key, "sum/%lld/%d", (long long)at, n->node);
  if (n->nodes < 2) return NULL;
  failed = put(n, key, &own, sizeof own);
  for (int i = 0; i < n->nodes && !failed; i++) {
    snprintf(key, sizeof key, "sum/%lld/%d", (long long)at, i);
    if (i == n->node) continue;
    failed = get(n, key, 600000, &more, sizeof more);
    *number += more;
  }
  return failed;
}

/* ---- programs -------------------------------------------------------------------------------- */

static int type_of(const char *name) {
  static const struct {
    const char *name;
    int type;
  } TYPES[] = {{"f32", 11}, {"bf16", 13}, {"f16", 10}, {"f64", 12}, {"i32", 4}, {"i64", 5},
               {"i8", 2},   {"ui8", 6},   {"ui16", 7}, {"ui32", 8}, {"i1", 1}};
  for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
    size_t bytes = strlen(TYPES[i].name);
    if (!strncmp(name, TYPES[i].name, bytes) && name[bytes] == '>') return TYPES[i].type;
  }
  return 0;
}

/* Reads "4x16xf32>". */
static fake_result read_type(const char *at) {
  fake_result r = {.alias = -1};
  char *end;
  while (*at >= '0' && *at <= '9' && r.rank < 8) {
    r.dim[r.rank++] = strtoll(at, &end, 10);
    at = end + 1;
  }
  r.type = type_of(at);
  return r;
}

int fake_results(const char *text, size_t bytes, fake_result result[FAKE_RESULTS]) {
  char *copy = strndup(text, bytes), *line = strstr(copy, "@main("),
       *arrow = line ? strstr(line, ") -> (") : NULL;
  int count = 0, argument = 0;
  char *end = arrow ? strchr(arrow, '{') : NULL;
  if (end) *end = 0;
  for (char *at = arrow; at && (at = strstr(at, "tensor<")) && count < FAKE_RESULTS; at += 7)
    result[count++] = read_type(at + 7);
  if (arrow) *arrow = 0;
  for (char *at = line; at && (at = strchr(at, '%')); argument++) {
    char *next = strchr(at + 1, '%'), *alias = strstr(at, "tf.aliasing_output = ");
    int of = alias && (!next || alias < next) ? atoi(alias + 21) : -1;
    if (of >= 0 && of < count) result[of].alias = argument;
    at = next;
  }
  free(copy);
  return count;
}
