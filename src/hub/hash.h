/* hash.h - the two sums by which the hub names a file's content: SHA-256 of large files, Git's
 * blob id of small ones. */
#ifndef RF_HASH_H
#define RF_HASH_H

#include "base/base.h"

typedef enum rf_hash_kind { RF_HASH_NONE, RF_HASH_SHA256, RF_HASH_GIT_BLOB } rf_hash_kind;
enum { RF_HASH_TEXT = 65 }; /* hexadecimal digits and a NUL */

typedef struct rf_hash rf_hash;
/* `bytes`: how long the content will be; a Git blob's sum begins with it. */
rf_status rf_hash_open(rf_hash_kind kind, int64_t bytes, rf_hash **hash, rf_error *error);
void rf_hash_add(rf_hash *hash, const void *data, size_t bytes);
/* The digits of what was added; frees. Of RF_HASH_NONE "". */
void rf_hash_end(rf_hash *hash, char text[RF_HASH_TEXT]);
/* Whether a text is such a sum: 64 or 40 small hexadecimal digits. */
bool rf_hash_is(rf_hash_kind kind, const char *text);

#endif
