/* keys.c - API keys from a file with one key per line. Every comparison takes the same time, so the
 * time reveals nothing about the keys. */
#include "serve/call.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { KEY_BYTES = 256, MOST_KEYS = 4096 };

struct rf_keys {
  int count;
  struct rf_key_text {
    unsigned char at[KEY_BYTES]; /* padded with zeros */
  } key[];
};

static rf_status read_lines(FILE *file, const char *path, struct rf_keys *keys, rf_error *error) {
  char line[KEY_BYTES + 2];
  for (int number = 1; fgets(line, sizeof line, file); number++) {
    size_t bytes = strcspn(line, "\r\n");
    bool whole = line[bytes] || feof(file);
    for (int c = 0; !whole && *line == '#' && c != '\n' && c != EOF;) c = fgetc(file); /* a long comment */
    while (bytes && strchr(" \t", line[bytes - 1])) bytes--;
    if (!bytes || *line == '#') continue;
    if (!whole || bytes >= KEY_BYTES)
      return RF_FAIL(error, RAFTER_INVALID, "shorten the key",
                     "a key is too long (%s, line %d: expected fewer than %d bytes)", path, number,
                     KEY_BYTES);
    if (keys->count == MOST_KEYS)
      return RF_FAIL(error, RAFTER_INVALID, NULL, "%s has too many keys (expected at most %d)", path,
                     MOST_KEYS);
    memcpy(keys->key[keys->count++].at, line, bytes);
  }
  return keys->count ? RAFTER_OK
                     : RF_FAIL(error, RAFTER_INVALID, "write one key a line",
                               "%s has no key (expected one a line)", path);
}

rf_status rf_keys_read(const char *path, struct rf_keys **keys, rf_error *error) {
  FILE *file = fopen(path, "re");
  if (!file)
    return RF_FAIL(error, RAFTER_INVALID, "check the path given to --api-key-file",
                   "cannot read the keys in %s (%m)", path);
  *keys = rf_must(calloc(1, sizeof **keys + MOST_KEYS * sizeof(*keys)->key[0]));
  rf_status status = read_lines(file, path, *keys, error);
  fclose(file);
  return status;
}

bool rf_keys_match(const struct rf_keys *keys, const char *authorization) {
  unsigned char given[KEY_BYTES] = {0};
  unsigned found = 0;
  if (!authorization || strncasecmp(authorization, "Bearer ", 7) || strlen(authorization + 7) >= KEY_BYTES)
    return false;
  memcpy(given, authorization + 7, strlen(authorization + 7));
  for (int i = 0; i < keys->count; i++) {
    unsigned differ = 0;
    for (int b = 0; b < KEY_BYTES; b++) differ |= keys->key[i].at[b] ^ given[b];
    found |= !differ;
  }
  return found;
}

void rf_keys_free(struct rf_keys *keys) { free(keys); }
