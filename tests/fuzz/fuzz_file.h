/* Writes bytes to a file of a given name, for readers that take a path. The folder is made once per
 * process and removed when the process ends. */
#ifndef RF_FUZZ_FILE_H
#define RF_FUZZ_FILE_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char fuzz_folder[] = "/tmp/rafter-fuzz-XXXXXX";
static void fuzz_clean(void) {
  char command[96];
  snprintf(command, sizeof command, "rm -rf '%s'", fuzz_folder);
  if (system(command)) perror(fuzz_folder);
}

static const char *fuzz_file(const char *name, const uint8_t *data, size_t bytes) {
  static char path[128];
  static int made;
  if (!made) {
    if (!mkdtemp(fuzz_folder)) abort();
    atexit(fuzz_clean);
    made = 1;
  }
  snprintf(path, sizeof path, "%s/%s", fuzz_folder, name);
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0 || write(file, data, bytes) != (ssize_t)bytes) abort();
  close(file);
  return path;
}

#endif
