/* files.h - the tests' larger files: where each is, and how a test is skipped without it. */
#ifndef RF_TESTS_FILES_H
#define RF_TESTS_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* Skips the running test; the reason is printed on a line that ./dev test and ./dev check collect. */
#define skip_for(...) (printf("skip: " __VA_ARGS__), printf("\n"), fflush(stdout), skip())

/* The path of a file that tests/data/files.tar.xz has, else of one in RAFTER_TEST_DATA (default:
 * ../shared/data). NULL if neither has it. */
__attribute__((unused)) static const char *test_file(const char *name, char path[4200]) {
  const char *folder = getenv("RAFTER_TEST_DATA");
  snprintf(path, 4200, "%s/%s", RF_UNPACKED_DATA, name);
  if (access(path, R_OK) == 0) return path;
  snprintf(path, 4200, "%s/%s", folder ? folder : RF_SHARED_DATA, name);
  return access(path, R_OK) ? NULL : path;
}

/* The same, skipping the test if the file is missing. */
__attribute__((unused)) static const char *need_file(const char *name, char path[4200]) {
  if (!test_file(name, path)) skip_for("%s is missing (RAFTER_TEST_DATA)", name);
  return path;
}

/* A real model: the file that `variable` names, else `file` in RAFTER_MODELS or ~/.cache/rafter-models.
 * Skips the test if it is missing. */
__attribute__((unused)) static const char *need_model(const char *variable, const char *file,
                                                      char path[4200]) {
  const char *folder = getenv("RAFTER_MODELS"), *home = getenv("HOME");
  if (getenv(variable)) snprintf(path, 4200, "%s", getenv(variable));
  else if (folder) snprintf(path, 4200, "%s/%s", folder, file);
  else snprintf(path, 4200, "%s/.cache/rafter-models/%s", home ? home : "", file);
  if (access(path, R_OK)) skip_for("%s is missing (./dev models)", file);
  return path;
}

#endif
