/* file.h - reads complete files, and writes files that appear only when they are complete. */
#ifndef RF_FILE_H
#define RF_FILE_H

#include "base/base.h"

/* Reads the complete file into malloc'ed memory and adds a NUL, which *bytes does not count.
 * Returns RAFTER_FAILED if the file does not exist, is a folder or has more than `most` bytes. */
rf_status rf_file_read(const char *path, size_t most, char **text, size_t *bytes, rf_error *error);

/* Maps a regular file for reading; free it with munmap(). RAFTER_FAILED if the file is empty. */
rf_status rf_map_file(const char *path, void **map, size_t *bytes, rf_error *error);
/* Drops pages of a mapped file from memory; the process will not read these pages again. */
void rf_map_unneeded(const void *at, size_t bytes);

/* A file is written under a temporary name, synced to the disk and then renamed. A symbolic link
 * stays; its target is replaced. A pipe or a device is written directly. */
typedef struct rf_out_file rf_out_file;
/* Reserves `expected_bytes` (0: unknown) if possible, so that a full disk is noticed early. */
rf_status rf_out_open(const char *path, int64_t expected_bytes, rf_out_file **out, rf_error *error);
rf_status rf_out_write(rf_out_file *out, const void *data, size_t bytes, rf_error *error);
int64_t rf_out_bytes(const rf_out_file *out);
/* Syncs, renames, closes and frees the file. After a failure, neither name exists. */
rf_status rf_out_commit(rf_out_file *out, rf_error *error);
/* Removes the temporary file and frees `out`, which may be NULL. */
void rf_out_discard(rf_out_file *out);

/* Opens, writes and commits a file with the given bytes. */
rf_status rf_file_write(const char *path, const void *data, size_t bytes, rf_error *error);

/* Creates a folder and its parents. It is no error if the folder exists. */
rf_status rf_make_folders(const char *path, rf_error *error);

/* Creates an empty folder next to `path`, and its parents. The caller renames the complete folder
 * to `path`. `part` receives the name of the new folder and has room for `size` bytes. */
rf_status rf_make_folder_beside(const char *path, char *part, size_t size, rf_error *error);

/* Removes a folder and its files. A folder that contains folders stays. */
void rf_remove_folder(const char *path);

#endif
