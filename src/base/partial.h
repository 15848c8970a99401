/* partial.h - incomplete files and folders, named NAME.part-PID. A process that is killed leaves
 * them. The next writer of NAME removes those of processes that no longer exist. */
#ifndef RF_PARTIAL_H
#define RF_PARTIAL_H

#include "base/base.h"

/* An incomplete file or folder that this process writes. */
typedef struct rf_partial rf_partial;
/* Locks the file `file` (opened for writing; -1: `path` is a folder), and remembers its path until
 * rf_partial_done. NULL, which rf_partial_done accepts: the path is too long, or out of memory. */
rf_partial *rf_partial_add(const char *path, int file);
void rf_partial_done(rf_partial *partial);
void rf_partial_done_folder(const char *path);

/* Removes everything that this process has not completed. Async-signal-safe: a process calls this
 * before it ends. */
void rf_partials_remove(void);

/* Removes NAME.part-PID in `folder` if no process holds its lock and no process has the number PID.
 * `name` NULL: removes those of every name and number, because the caller has locked the folder.
 * rf_partials_sweep_for removes those of the target `path`. */
void rf_partials_sweep(const char *folder, const char *name);
void rf_partials_sweep_for(const char *path);

#endif
