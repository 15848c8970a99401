/* partial.h - incomplete files and folders, named NAME.part-PID. A killed process leaves its
 * incomplete files and folders. The next writer of NAME removes files and folders whose process no
 * longer exists. */
#ifndef RF_PARTIAL_H
#define RF_PARTIAL_H

#include "base/base.h"

/* An incomplete file or folder that this process writes. */
typedef struct rf_partial rf_partial;
/* Locks the file `file`, and remembers its path until rf_partial_done. `file` is opened for
 * writing. -1: `path` is a folder. The result is NULL if the path is too long or memory runs out.
 * rf_partial_done accepts NULL. */
rf_partial *rf_partial_add(const char *path, int file);
void rf_partial_done(rf_partial *partial);
void rf_partial_done_folder(const char *path);

/* Removes every file and folder that this process has not completed. The function is
 * async-signal-safe, because a process calls it before it ends. */
void rf_partials_remove(void);

/* Removes NAME.part-PID in `folder` if no process holds its lock and no process has the number PID.
 * If `name` is NULL, removes files and folders of every name and number, because the caller has
 * locked the folder. rf_partials_sweep_for removes the files and folders of the target `path`. */
void rf_partials_sweep(const char *folder, const char *name);
void rf_partials_sweep_for(const char *path);

#endif
