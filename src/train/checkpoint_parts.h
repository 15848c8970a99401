/* checkpoint_parts.h - the large files of a checkpoint. Private to src/train. */
#ifndef RF_CHECKPOINT_PARTS_H
#define RF_CHECKPOINT_PARTS_H

#include "formats/safetensors.h"
#include "model/run_folder.h"
#include "train/train.h"

/* optimizer.safetensors: the moments of all trained parameters. */
rf_status rf_moments_save(const rf_trainer *trainer, const char *folder, rf_error *error);
rf_status rf_moments_load(const rf_trainer *trainer, const char *folder, rf_error *error);

/* The moments m and v of all trained parameters, in this order: m and v of the first parameter,
 * then of the next. */
typedef struct rf_moments {
  rf_pool *pool; /* memory for the arrays and names */
  rf_stored *stored;
  int *tensor, count;
} rf_moments;
rf_moments rf_moments_list(const rf_trainer *trainer); /* Lists the moments. The caller frees the pool. */

/* Writes weights and moments as shards. Every rank writes one file of weights and one of moments.
 * The rank's files are on its disk when the function returns. All ranks call this function, and all
 * get the failure of any rank. hashed[0] and hashed[1] get the hashes of the files of this rank.
 * The names of the hashes are "" if the rank has no files. */
enum { RF_SHARD_KINDS = 2 };
rf_status rf_shards_save(rf_trainer *trainer, const char *folder, rf_run_hash hashed[RF_SHARD_KINDS],
                         rf_error *error);

#endif
