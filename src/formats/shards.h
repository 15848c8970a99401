/* shards.h - tensors in several safetensors files with an index, as Hugging Face's loaders read
 * them: model-00001-of-00002.safetensors, ... and model.safetensors.index.json. */
#ifndef RF_SHARDS_H
#define RF_SHARDS_H

#include "base/base.h"

enum { RF_SHARD_NAME = 64 };
/* The name of a file. A single file has no number in its name. */
void rf_shard_name(const char *stem, int file, int files, char name[RF_SHARD_NAME]);
/* Sets file[i] for each of `count` tensors, so that the files have about the same number of bytes.
 * Returns the number of files, which is at most `shards`. No file is empty. */
int rf_shard_files(const int64_t *bytes, int count, int shards, int *file);

/* The index that assigns tensors to files. */
typedef struct rf_shard_index rf_shard_index;
rf_shard_index *rf_shard_index_new(const char *stem, int files); /* NULL: out of memory */
void rf_shard_index_add(rf_shard_index *index, const char *tensor, int file);
/* Writes STEM.safetensors.index.json and frees. `bytes`: of all tensors. `index` may be NULL. */
rf_status rf_shard_index_write(rf_shard_index *index, const char *folder, int64_t bytes, rf_error *error);

#endif
