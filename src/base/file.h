/* file.h - reads whole files and writes files that appear only when complete. */
#ifndef RF_FILE_H
#define RF_FILE_H

#include "base/base.h"

/* Reads the whole file, malloc'ed, with a NUL after it that *bytes does not count. RAFTER_FAILED
 * if it is missing, not a regular file or pipe, or larger than `most` bytes. */
rf_status rf_file_read(const char *path, size_t most, char **text, size_t *bytes, rf_error *error);

/* Maps a whole, non-empty regular file for reading; munmap() it. RAFTER_FAILED names the file
 * and its fault. */
rf_status rf_map_file(const char *path, void **map, size_t *bytes, rf_error *error);
/* Releases pages of a mapped file that the process will not read again; they stay in the
 * system's cache. */
void rf_map_unneeded(const void *at, size_t bytes);

/* A file that is written under a temporary name and renamed when it is complete and on the disk.
 * Links are followed and kept; a pipe or a device is written directly. */
typedef struct rf_out_file rf_out_file;
/* `expected_bytes` (0: unknown) are reserved on the disk if the file system can, so that a full
 * disk is noticed before the work starts. */
rf_status rf_out_open(const char *path, int64_t expected_bytes, rf_out_file **out, rf_error *error);
rf_status rf_out_write(rf_out_file *out, const void *data, size_t bytes, rf_error *error);
int64_t rf_out_bytes(const rf_out_file *out);
/* fsync, rename, close and free. A failure leaves no file under either name. */
rf_status rf_out_commit(rf_out_file *out, rf_error *error);
/* Removes the temporary file and frees. NULL is allowed. */
void rf_out_discard(rf_out_file *out);

/* The three above for data in memory. */
rf_status rf_file_write(const char *path, const void *data, size_t bytes, rf_error *error);

/* Creates a folder and its parents; it may exist already. */
rf_status rf_make_folders(const char *path, rf_error *error);

/* Creates an empty folder next to `path`, to be renamed to it when complete. `part` has room for
 * `size` bytes. Parents are created. */
rf_status rf_make_folder_beside(const char *path, char *part, size_t size, rf_error *error);

/* Removes a folder and its files; it stays if it contains folders. */
void rf_remove_folder(const char *path);

#endif
