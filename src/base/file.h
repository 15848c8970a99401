/* file.h - whole files in, finished files out: nobody ever sees half a file. */
#ifndef RF_FILE_H
#define RF_FILE_H

#include "base/base.h"

/* The whole file, malloc'ed, with a NUL behind it that *bytes does not count. RAFTER_FAILED when
 * it is missing, no regular file or pipe, or larger than `most` bytes. */
rf_status rf_file_read(const char *path, size_t most, char **text, size_t *bytes, rf_error *error);

/* A whole regular file that is not empty, for reading. munmap() it. RAFTER_FAILED names the file
 * and what is wrong with it. */
rf_status rf_map_file(const char *path, void **map, size_t *bytes, rf_error *error);
/* Pages of a mapped file that this process will not read again leave it; they stay in the
 * system's cache. */
void rf_map_unneeded(const void *at, size_t bytes);

/* A file that is written beside its place and gets its name when it is complete and on the disk.
 * Links are followed and stay; a pipe or a device is written as it is. */
typedef struct rf_out_file rf_out_file;
/* `expected_bytes` (0: unknown) is taken from the disk at once where the file system can, so
 * that a full disk is noticed before the work. */
rf_status rf_out_open(const char *path, int64_t expected_bytes, rf_out_file **out, rf_error *error);
rf_status rf_out_write(rf_out_file *out, const void *data, size_t bytes, rf_error *error);
int64_t rf_out_bytes(const rf_out_file *out);
/* fsync, rename, close and free; on failure nothing is left at either name. */
rf_status rf_out_commit(rf_out_file *out, rf_error *error);
/* Removes what was written and frees. NULL is allowed. */
void rf_out_discard(rf_out_file *out);

/* The three above for data at hand. */
rf_status rf_file_write(const char *path, const void *data, size_t bytes, rf_error *error);

/* Makes a folder and those above it; one that is there is fine. */
rf_status rf_make_folders(const char *path, rf_error *error);

/* A new empty folder beside `path`, for what gets that name when it is complete. `part` has room
 * for `size` bytes. Folders above are made. */
rf_status rf_make_folder_beside(const char *path, char *part, size_t size, rf_error *error);

/* Removes a folder and the files in it; folders in it stay, and so does it then. */
void rf_remove_folder(const char *path);

#endif
