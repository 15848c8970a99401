/* hash.h - the hub's two checksums: SHA-256 for large files, Git's blob id for small files. */
#ifndef RF_HASH_H
#define RF_HASH_H

#include "base/base.h"

typedef enum rf_hash_kind { RF_HASH_NONE, RF_HASH_SHA256, RF_HASH_GIT_BLOB } rf_hash_kind;
enum { RF_HASH_TEXT = 65 }; /* hexadecimal digits and a NUL */

typedef struct rf_hash rf_hash;
/* Opens a checksum of `bytes` bytes of content. A Git blob id depends on the number of bytes. */
rf_status rf_hash_open(rf_hash_kind kind, int64_t bytes, rf_hash **hash, rf_error *error);
void rf_hash_add(rf_hash *hash, const void *data, size_t bytes);
/* Writes the checksum in hexadecimal ("" for RF_HASH_NONE) and frees `hash`. */
void rf_hash_end(rf_hash *hash, char text[RF_HASH_TEXT]);
/* True if a text has the form of a checksum: 64 (SHA-256) or 40 (Git) lower-case hex digits. */
bool rf_hash_is(rf_hash_kind kind, const char *text);

#endif
