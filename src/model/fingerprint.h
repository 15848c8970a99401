/* fingerprint.h - a short text that changes if the content of a model or a list changes. */
#ifndef RF_FINGERPRINT_H
#define RF_FINGERPRINT_H

#include "base/base.h"

enum { RF_FINGERPRINT_TEXT = 33 }; /* hexadecimal digits and a NUL */

typedef struct rf_fingerprint rf_fingerprint;
rf_fingerprint *rf_fingerprint_new(void); /* aborts if the machine is out of memory */
void rf_fingerprint_add(rf_fingerprint *fingerprint, const void *data, size_t bytes);
/* Adds a file, or the model files of a folder: their names, sizes and a part of their bytes. Small
 * files are read completely. Large files are read at the start, at the end and in blocks between.
 * Names of folders do not change the fingerprint. RAFTER_FAILED: a file cannot be read. */
rf_status rf_fingerprint_add_files(rf_fingerprint *fingerprint, const char *path, rf_error *error);
/* Writes the text and frees the fingerprint. */
void rf_fingerprint_end(rf_fingerprint *fingerprint, char text[RF_FINGERPRINT_TEXT]);

#endif
