/* file.h - reads complete files, and writes files whose name appears only when they are
 * complete. */
#ifndef RF_FILE_H
#define RF_FILE_H

#include "base/base.h"

/* Opens a file for reading. RAFTER_FAILED: the file does not exist or is not a regular file. If the
 * file does not exist, the error has the hint `hint`, which may be NULL. Opening a FIFO would wait
 * for a writer, perhaps for ever. Users reach pipes and devices by a path in /dev or /proc, such as
 * /dev/stdin and the shell's <(...). */
rf_status rf_file_open(const char *path, const char *hint, int *file, rf_error *error);

/* Reads the complete file into malloc'ed memory. Adds a NUL at the end. *bytes does not count the
 * NUL. RAFTER_FAILED: the file does not exist, is not a regular file, or has more than `most`
 * bytes. */
rf_status rf_file_read(const char *path, size_t most, char **text, size_t *bytes, rf_error *error);

/* Size of a regular file, and time of the last write to it. If two stamps of a file are equal, no
 * program wrote to the file between them. Other files have a stamp of zeros. */
typedef struct rf_file_stamp {
  int64_t device, inode, bytes, seconds, nanoseconds; /* seconds and nanoseconds: time of the last write */
} rf_file_stamp;
rf_file_stamp rf_file_stamp_of(int file);
rf_file_stamp rf_file_stamp_at(const char *path);
bool rf_file_stamps_equal(rf_file_stamp a, rf_file_stamp b);
/* RAFTER_FAILED: after `stamp`, a program wrote to the file at `path` or replaced it. */
rf_status rf_file_unchanged(const char *path, rf_file_stamp stamp, rf_error *error);

/* Maps a regular file for reading. RAFTER_FAILED if the file is empty. */
rf_status rf_map_file(const char *path, void **map, size_t *bytes, rf_error *error);
void rf_unmap_file(void *map, size_t bytes); /* `map` may be NULL */
/* Returns the path of the mapped file that contains `address`, or NULL. A signal handler may call
 * this function. */
const char *rf_mapped_path(const void *address);
/* RAFTER_FAILED: another program wrote to the file after it was mapped at `map`. If a file was
 * replaced by a rename, the mapping is unchanged, because it holds the old file. `map` may be
 * NULL. */
rf_status rf_mapped_unchanged(const void *map, rf_error *error);
#define RF_CHANGED_HINT "wait until the other program has written the file, then run the command again"
/* Drops pages of a mapped file from memory. The caller promises not to read the dropped pages
 * again. */
void rf_map_unneeded(const void *at, size_t bytes);

/* Fails with RAFTER_INVALID if the file `out` is the file `in`, or a .safetensors, .json or .model
 * file in the folder `in`. Links are followed. */
rf_status rf_out_is_not_input(const char *out, const char *in, rf_error *error);

/* True for a pipe or a device, such as /dev/stdout. */
bool rf_out_is_stream(const char *path);

/* Number of free bytes on the disk of a new file or folder `path`. Infinity: unknown. */
double rf_out_room(const char *path);

/* A file is written under a temporary name, synced to the disk and then renamed. If the name is a
 * symbolic link, the target of the link is replaced, and not the link. A pipe or a device is
 * written without a temporary file. */
typedef struct rf_out_file rf_out_file;
/* Opens a file. Reserves `expected_bytes` (0: unknown) if possible, so that a full disk is noticed
 * at the start. */
rf_status rf_out_open(const char *path, int64_t expected_bytes, rf_out_file **out, rf_error *error);
rf_status rf_out_write(rf_out_file *out, const void *data, size_t bytes, rf_error *error);
int64_t rf_out_bytes(const rf_out_file *out);
/* Syncs, renames, closes and frees the file. After a failure, neither the file nor the temporary
 * file remains. */
rf_status rf_out_commit(rf_out_file *out, rf_error *error);
/* Removes the temporary file and frees `out`, which may be NULL. */
void rf_out_discard(rf_out_file *out);

/* Opens a file to which parts are appended without a temporary file. So a program that is killed
 * loses only the part that it was writing. Keeps the content, and locks the file. RAFTER_FAILED:
 * the file cannot be written, is not a regular file, or another process appends to it. */
rf_status rf_out_append(const char *path, rf_out_file **out, rf_error *error);
/* Shortens the file of rf_out_append to its first `bytes` bytes. Must be called before the first
 * write. */
rf_status rf_out_keep(rf_out_file *out, int64_t bytes, rf_error *error);
/* Ends a part: writes all bytes so far to the file of rf_out_append. rf_out_discard keeps these
 * bytes, and removes the bytes that came later. rf_out_discard removes the file if rf_out_append
 * made it and it has no complete part. */
rf_status rf_out_flush(rf_out_file *out, rf_error *error);

/* Opens a file, writes the given bytes and commits the file. */
rf_status rf_file_write(const char *path, const void *data, size_t bytes, rf_error *error);

/* Creates a folder and its parents. If the folder exists, does nothing. */
rf_status rf_make_folders(const char *path, rf_error *error);

/* Creates an empty folder next to `path`, and the parents of `path`. The caller fills the folder
 * and then renames it to `path`. `part` has room for `size` bytes, and gets the name of the new
 * folder. After the caller has renamed or removed the folder, it calls
 * rf_partial_done_folder(part). */
rf_status rf_make_sibling_folder(const char *path, char *part, size_t size, rf_error *error);

/* Locks a folder by its file `lock`, which stays in the folder. close(*lock) and the end of the
 * process unlock the folder. RAFTER_FAILED: another process has the lock. */
rf_status rf_lock_folder(const char *folder, int *lock, rf_error *error);

/* Removes a folder and its files. A folder that contains folders is not removed. */
void rf_remove_folder(const char *path);

#endif
