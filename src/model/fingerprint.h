/* fingerprint.h - a short text for a content, to notice that a model or a list has changed. */
#ifndef RF_FINGERPRINT_H
#define RF_FINGERPRINT_H

#include "base/base.h"

enum { RF_FINGERPRINT_TEXT = 33 }; /* hexadecimal digits and a NUL */

typedef struct rf_fingerprint rf_fingerprint;
rf_fingerprint *rf_fingerprint_new(void); /* aborts if the machine is out of memory */
void rf_fingerprint_add(rf_fingerprint *fingerprint, const void *data, size_t bytes);
/* Adds a file, or a folder's files of the kinds that models have: their names, sizes and a part of
 * their bytes (all of small files; the start, the end and blocks in between of others). Names of
 * folders are not part of it. RAFTER_FAILED: a file cannot be read. */
rf_status rf_fingerprint_add_files(rf_fingerprint *fingerprint, const char *path, rf_error *error);
/* Writes the text and frees the fingerprint. */
void rf_fingerprint_end(rf_fingerprint *fingerprint, char text[RF_FINGERPRINT_TEXT]);

#endif
