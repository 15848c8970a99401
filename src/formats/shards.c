/* shards.c - see shards.h. */
#include "formats/shards.h"

#include "base/json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct rf_shard_index {
  const char *stem;
  int files;
  json_t *map;
};

void rf_shard_name(const char *stem, int file, int files, char name[RF_SHARD_NAME]) {
  if (files == 1) snprintf(name, RF_SHARD_NAME, "%.20s.safetensors", stem);
  else snprintf(name, RF_SHARD_NAME, "%.20s-%05d-of-%05d.safetensors", stem, file + 1, files);
}

int rf_shard_files(const int64_t *bytes, int count, int shards, int *file) {
  int files = shards < count ? shards : count;
  if (files < 1) files = 1;
  int64_t *held = calloc((size_t)files, sizeof *held);
  for (int i = 0; i < count; i++) { /* the next tensor goes to the file with the fewest bytes */
    file[i] = 0;
    for (int f = 1; held && f < files; f++)
      if (held[f] < held[file[i]]) file[i] = f;
    if (held) held[file[i]] += bytes[i] > 0 ? bytes[i] : 1;
  }
  if (!held) files = 1;
  free(held);
  return files;
}

rf_shard_index *rf_shard_index_new(const char *stem, int files) {
  rf_shard_index *index = malloc(sizeof *index);
  if (index) *index = (rf_shard_index){stem, files, json_object()};
  return index;
}

void rf_shard_index_add(rf_shard_index *index, const char *tensor, int file) {
  char name[RF_SHARD_NAME];
  if (!index) return;
  rf_shard_name(index->stem, file, index->files, name);
  json_object_set_new(index->map, tensor, json_string(name));
}

rf_status rf_shard_index_write(rf_shard_index *index, const char *folder, int64_t bytes, rf_error *error) {
  char path[4400];
  if (!index)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing an index in %s", folder);
  json_t *json =
      json_pack("{s{sI} so}", "metadata", "total_size", (json_int_t)bytes, "weight_map", index->map);
  snprintf(path, sizeof path, "%.4300s/%.20s.safetensors.index.json", folder, index->stem);
  rf_status status = rf_json_write(path, json, 2, error);
  json_decref(json);
  free(index);
  return status;
}
