/* listing.c - reads the list of a repository's files from the hub's API. */
#define _GNU_SOURCE
#include "hub/hub.h"

#include "base/json.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_FILES = 100000, MAX_PATH = 1024, MAX_PART = 255, MAX_LISTING_BYTES = 64 << 20 };

/* True for characters that control a terminal or hide a part of a name. Such characters are control
 * characters, marks of writing direction, and line and paragraph separators. */
static bool is_hidden(utf8proc_int32_t code) {
  utf8proc_category_t kind = utf8proc_category(code);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_ZL ||
         kind == UTF8PROC_CATEGORY_ZP;
}

bool rf_hub_path_is_safe(const char *path) {
  size_t bytes = strlen(path);
  if (!bytes || bytes > MAX_PATH || strchr(path, '\\')) return false;
  for (size_t i = 0; i < bytes;) {
    utf8proc_int32_t code;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)path + i, (utf8proc_ssize_t)(bytes - i), &code);
    if (n < 1 || is_hidden(code)) return false;
    i += (size_t)n;
  }
  for (const char *part = path;; part++) {
    size_t n = strcspn(part, "/");
    if (!n || n > MAX_PART || (n == 1 && *part == '.') || (n == 2 && !strncmp(part, "..", 2))) return false;
    if (!part[n]) return true;
    part += n;
  }
}

/* Reads one file's entry: {"rfilename", "size", "blobId", "lfs": {"sha256" or "oid", "size"}}. */
static rf_status read_file(const json_t *json, int index, const char *where, rf_hub_file *file,
                           rf_error *error) {
  const json_t *lfs = json_object_get(json, "lfs"),
               *size = json_object_get(json_is_object(lfs) ? lfs : json, "size");
  const json_t *path_text = json_object_get(json, "rfilename");
  const char *path = json_string_value(path_text);
  if (!path || strlen(path) != json_string_length(path_text) || !rf_hub_path_is_safe(path))
    return RF_FAIL(
        error, RAFTER_FAILED, "nothing was written: do not trust this server",
        "the server lists an unsafe path (%s, file %d: expected a plain path inside the repository)", where,
        index + 1);
  if (!size) size = json_object_get(json, "size");
  if (size && !json_is_null(size) && (!json_is_integer(size) || json_integer_value(size) < 0))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "the server lists a size that is not a number of bytes (%s, %s)", where, path);
  *file = (rf_hub_file){.bytes = json_is_integer(size) ? json_integer_value(size) : -1};
  const char *sum = NULL;
  if (json_is_object(lfs)) {
    sum = json_string_value(json_object_get(lfs, "sha256"));
    if (!sum) sum = json_string_value(json_object_get(lfs, "oid"));
    file->kind = sum ? RF_HASH_SHA256 : RF_HASH_NONE;
    if (sum && !strncmp(sum, "sha256:", 7)) sum += 7;
  } else if ((sum = json_string_value(json_object_get(json, "blobId")))) {
    file->kind = RF_HASH_GIT_BLOB;
  }
  if (sum && !rf_hash_is(file->kind, sum))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "the server lists an invalid checksum (%s, %s)", where, path);
  /* A Git blob id depends on the file's size, so rafter cannot verify the id without the size. */
  if (file->kind == RF_HASH_GIT_BLOB && file->bytes < 0) file->kind = RF_HASH_NONE;
  if (file->kind != RF_HASH_NONE) strcpy(file->hash, sum);
  return (file->path = strdup(path)) ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
}

rf_status rf_hub_read_listing(const char *text, size_t bytes, const char *where, rf_hub_listing *listing,
                              rf_error *error) {
  json_t *json = NULL;
  rf_status status = rf_json_parse(text, bytes, where, &json, error);
  *listing = (rf_hub_listing){0};
  if (status != RAFTER_OK) return status;
  const json_t *siblings = json_object_get(json, "siblings"), *sha = json_object_get(json, "sha");
  size_t count = json_array_size(siblings);
  if (!json_is_array(siblings) || count > MAX_FILES) {
    status =
        RF_FAIL(error, RAFTER_FAILED, "does the endpoint speak the hub's API?",
                "the answer is not a list of files (%s: expected \"siblings\", a list of at most %d files)",
                where, MAX_FILES);
    goto done;
  }
  if (json_is_string(sha) && rf_hash_is(RF_HASH_GIT_BLOB, json_string_value(sha)))
    strcpy(listing->commit, json_string_value(sha));
  listing->file = calloc(count + 1, sizeof *listing->file);
  if (!listing->file) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  for (size_t i = 0; i < count; i++) {
    RF_GO(read_file(json_array_get(siblings, i), (int)i, where, &listing->file[listing->count], error));
    listing->count++;
  }
done:
  json_decref(json);
  if (status != RAFTER_OK) rf_hub_listing_free(listing);
  return status;
}

void rf_hub_listing_free(rf_hub_listing *listing) {
  for (int i = 0; i < listing->count; i++) free(listing->file[i].path);
  free(listing->file);
  *listing = (rf_hub_listing){0};
}

/* ---- the request ----------------------------------------------------------------------------- */

typedef struct text {
  char *at;
  size_t bytes, capacity;
} text;

static rf_status begin(void *self, int64_t at, rf_error *error) {
  text *t = self;
  (void)error;
  t->bytes = (size_t)at;
  return RAFTER_OK;
}

static rf_status take(void *self, const void *data, size_t bytes, rf_error *error) {
  text *t = self;
  if (t->bytes + bytes + 1 > t->capacity) {
    size_t capacity = 2 * (t->bytes + bytes + 1);
    char *grown = realloc(t->at, capacity);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    t->at = grown;
    t->capacity = capacity;
  }
  memcpy(t->at + t->bytes, data, bytes);
  t->bytes += bytes;
  return RAFTER_OK;
}

rf_status rf_hub_list(rf_http *http, const char *endpoint, const rf_hub_name *name, rf_hub_listing *listing,
                      rf_error *error) {
  char url[2048];
  text t = {0};
  rf_http_body body = {.most = MAX_LISTING_BYTES, .begin = begin, .take = take, .self = &t};
  rf_http_answer answer = {0};
  snprintf(url, sizeof url, "%s/api/models/", endpoint);
  bool fits = rf_http_escape(url, sizeof url, name->repository, true);
  rf_text_append(url, sizeof url, "/revision/");
  fits = fits && rf_http_escape(url, sizeof url, name->revision, false);
  rf_text_append(url, sizeof url, "?blobs=true");
  if (!fits || strlen(url) + 1 == sizeof url)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "the endpoint's address is too long");
  rf_status status = rf_http_get(http, url, &body, &answer, error);
  if (status == RAFTER_OK && answer.code != 200)
    status = rf_hub_refused(&answer, name, NULL, endpoint, rf_http_has_token(http), error);
  if (status == RAFTER_OK)
    status = rf_hub_read_listing(t.at ? t.at : "", t.bytes, "the hub's listing", listing, error);
  free(t.at);
  return status;
}

rf_status rf_hub_refused(const rf_http_answer *answer, const rf_hub_name *name, const char *path,
                         const char *endpoint, bool has_token, rf_error *error) {
  char what[1400], hint[400], said[320] = "";
  snprintf(what, sizeof what, "%s%s%s@%s", name->repository, path ? "/" : "", path ? path : "",
           name->revision);
  if (*answer->message || *answer->reason)
    snprintf(said, sizeof said, ": %s", *answer->message ? answer->message : answer->reason);
  switch (answer->code) {
  case 401:
    if (has_token)
      return RF_FAIL(error, RAFTER_FAILED, "the hub no longer accepts HF_TOKEN, or the name is wrong",
                     "the hub does not accept the token for %s (401%s)", what, said);
    snprintf(hint, sizeof hint,
             "check the name; for a private or licensed model, set HF_TOKEN to a token of "
             "%s/settings/tokens",
             endpoint);
    return RF_FAIL(error, RAFTER_FAILED, hint, "%s needs a token, or does not exist on the hub (401%s)", what,
                   said);
  case 403:
    snprintf(hint, sizeof hint, "accept the terms at %s/%s with the account of %s", endpoint,
             name->repository, has_token ? "the token" : "a token, and set HF_TOKEN");
    return RF_FAIL(error, RAFTER_FAILED, hint, "no access to %s (403%s)", what, said);
  case 404:
    return RF_FAIL(error, RAFTER_FAILED, "check the organisation, the name and the revision",
                   "the hub does not have %s (404%s)", what, said);
  case 429:
    return RF_FAIL(error, RAFTER_FAILED, "wait a few minutes; with HF_TOKEN the hub allows more requests",
                   "the hub received too many requests for %s (429%s)", what, said);
  default:
    if (answer->code >= 500)
      return RF_FAIL(error, RAFTER_FAILED, "run the same command again when the hub works again",
                     "the hub fails at %s (%ld%s)", what, answer->code, said);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "the hub refuses %s (%ld%s)", what, answer->code, said);
  }
}
