/* scratch.h - a folder for the files of a group of tests, made before the group and removed after
 * it. */
#ifndef RF_TESTS_SCRATCH_H
#define RF_TESTS_SCRATCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state) {
  (void)state;
  strcpy(folder, "/tmp/rafter-test-XXXXXX");
  return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}

/* A path in the folder. Four paths may be in use at a time. */
__attribute__((unused)) static const char *at(const char *name) {
  static char path[4][256];
  static int turn;
  char *p = path[turn++ & 3];
  snprintf(p, sizeof path[0], "%s/%s", folder, name);
  return p;
}

#endif
