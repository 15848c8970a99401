/* files.h - finds the larger files of tests, and skips a test whose file is missing. */
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

/* Skips the running test. The reason is printed on a line that ./dev test and ./dev check
 * collect. */
#define skip_for(...) (printf("skip: " __VA_ARGS__), printf("\n"), fflush(stdout), skip())

/* The path of a file in tests/data/files.tar.xz, otherwise of one in the folder RAFTER_TEST_DATA
 * (default: ../shared/data). NULL if neither has the file. */
__attribute__((unused)) static const char *test_file(const char *name, char path[4200]) {
  const char *folder = getenv("RAFTER_TEST_DATA");
  snprintf(path, 4200, "%s/%s", RF_UNPACKED_DATA, name);
  if (access(path, R_OK) == 0) return path;
  snprintf(path, 4200, "%s/%s", folder ? folder : RF_SHARED_DATA, name);
  return access(path, R_OK) ? NULL : path;
}

/* Finds a file as test_file does, and skips the test if the file is missing. */
__attribute__((unused)) static const char *need_file(const char *name, char path[4200]) {
  if (!test_file(name, path)) skip_for("%s is missing (RAFTER_TEST_DATA)", name);
  return path;
}

/* Finds a real model: the file that `variable` names, otherwise `file` in RAFTER_MODELS or
 * ~/.cache/rafter-models. Skips the test if the model is missing. */
__attribute__((unused)) static const char *need_model(const char *variable, const char *file,
                                                      char path[4200]) {
  const char *folder = getenv("RAFTER_MODELS"), *home = getenv("HOME");
  if (getenv(variable)) snprintf(path, 4200, "%s", getenv(variable));
  else if (folder) snprintf(path, 4200, "%s/%s", folder, file);
  else snprintf(path, 4200, "%s/.cache/rafter-models/%s", home ? home : "", file);
  if (access(path, R_OK)) skip_for("%s is missing (./dev models)", file);
  return path;
}

/* Finds a PJRT plugin for CPUs: the file that RAFTER_PJRT_PLUGIN names, otherwise the one in the
 * folder RAFTER_PLUGINS or ~/.cache/rafter-plugins. Skips the test if it is missing. */
__attribute__((unused)) static const char *need_plugin(char path[4200]) {
  const char *folder = getenv("RAFTER_PLUGINS"), *home = getenv("HOME"),
             *named = getenv("RAFTER_PJRT_PLUGIN");
  const char *file = "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so";
  if (named) snprintf(path, 4200, "%s", named);
  else if (folder) snprintf(path, 4200, "%s/%s", folder, file);
  else snprintf(path, 4200, "%s/.cache/rafter-plugins/%s", home ? home : "", file);
  if (access(path, R_OK)) skip_for("a PJRT plugin is missing (./dev setup --xla)");
  return path;
}

#endif
