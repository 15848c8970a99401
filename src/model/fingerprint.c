/* fingerprint.c - see fingerprint.h. The fingerprint is an XXH128 hash as text. */
#define _GNU_SOURCE
#include "model/fingerprint.h"

#include "base/file.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Files of at most WHOLE bytes are read completely. In larger files, BLOCKS places are read.
 * Training changes all weights, so the weights at these places change too. */
enum { BLOCK = 1 << 14, BLOCKS = 128, WHOLE = BLOCK * BLOCKS };

struct rf_fingerprint {
  XXH3_state_t *state;
};

rf_fingerprint *rf_fingerprint_new(void) {
  rf_fingerprint *f = rf_must(malloc(sizeof *f));
  f->state = rf_must(XXH3_createState());
  XXH3_128bits_reset(f->state);
  return f;
}

void rf_fingerprint_add(rf_fingerprint *f, const void *data, size_t bytes) {
  uint64_t count = bytes;
  XXH3_128bits_update(f->state, &count, sizeof count);
  if (bytes) XXH3_128bits_update(f->state, data, bytes);
}

void rf_fingerprint_end(rf_fingerprint *f, char text[RF_FINGERPRINT_TEXT]) {
  XXH128_hash_t sum = XXH3_128bits_digest(f->state);
  snprintf(text, RF_FINGERPRINT_TEXT, "%016llx%016llx", (unsigned long long)sum.high64,
           (unsigned long long)sum.low64);
  XXH3_freeState(f->state);
  free(f);
}

static rf_status add_file(rf_fingerprint *f, const char *path, rf_error *error) {
  unsigned char block[BLOCK];
  rf_status status = RAFTER_OK;
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  int file;
  RF_TRY(rf_file_open(path, NULL, &file, error));
  int64_t size = rf_file_stamp_of(file).bytes, last = size > BLOCK ? size - BLOCK : 0;
  rf_fingerprint_add(f, name, strlen(name));
  rf_fingerprint_add(f, &size, sizeof size);
  for (int i = 0; i < BLOCKS && status == RAFTER_OK; i++) {
    int64_t at = size <= WHOLE ? (int64_t)i * BLOCK : (int64_t)((double)last * i / (BLOCKS - 1));
    ssize_t got = at < size ? pread(file, block, BLOCK, at) : 0;
    if (got < 0) status = RF_FAIL(error, RAFTER_FAILED, NULL, "cannot read %s (%s)", path, strerror(errno));
    else rf_fingerprint_add(f, block, (size_t)got);
  }
  close(file);
  return status;
}

/* True for the kinds of files that belong to models and adapters. Other files of a folder may
 * change without effect. */
static bool is_of_model(const char *name) {
  static const char *const ENDINGS[] = {".safetensors", ".gguf", ".bin", ".model", ".jinja", ".json"};
  bool found = false;
  for (size_t i = 0; i < sizeof ENDINGS / sizeof *ENDINGS; i++) found |= rf_text_ends_with(name, ENDINGS[i]);
  /* the settings of a sampler are compared as values, if a job uses them */
  return found && name[0] != '.' && !rf_text_ends_with(name, ".settings.json") &&
         strcmp(name, "generation_config.json") != 0;
}

rf_status rf_fingerprint_add_files(rf_fingerprint *f, const char *path, rf_error *error) {
  struct stat info;
  struct dirent **entry = NULL;
  rf_status status = RAFTER_OK;
  char file[4500];
  if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) return add_file(f, path, error);
  int count = scandir(path, &entry, NULL, alphasort);
  if (count < 0)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot list the files of %s (%s)", path, strerror(errno));
  for (int i = 0; i < count; i++) {
    snprintf(file, sizeof file, "%s/%s", path, entry[i]->d_name);
    bool counts = is_of_model(entry[i]->d_name) && stat(file, &info) == 0 && S_ISREG(info.st_mode);
    if (counts && status == RAFTER_OK) status = add_file(f, file, error);
    free(entry[i]);
  }
  free(entry);
  return status;
}
