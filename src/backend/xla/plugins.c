/* plugins.c - see plugins.h. */
#include "backend/xla/plugins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Files of plugins in packages of PyPI, relative to the folder that contains the packages. */
static const char *const KNOWN[] = {
    "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",  "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
    "fastatomstruct_xla_cpu/libpjrt_cpu.so",     "libtpu/libtpu.so",
    "jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
    "jax_plugins/xla_rocm7/xla_rocm_plugin.so",
};

void rf_xla_plugins_folder(char path[4096]) {
  const char *named = getenv("RAFTER_PLUGINS"), *home = getenv("HOME");
  if (named && *named) snprintf(path, 4096, "%s", named);
  else snprintf(path, 4096, "%s/.cache/rafter-plugins", home ? home : "");
}

/* Adds a file to the list if the file exists and is not in the list. */
static void add(char list[RF_XLA_PLUGINS][4096], int *count, const char *path) {
  if (!path || !*path || strlen(path) >= 4096 || *count == RF_XLA_PLUGINS || access(path, R_OK)) return;
  for (int i = 0; i < *count; i++)
    if (!strcmp(list[i], path)) return;
  strcpy(list[(*count)++], path);
}

int rf_xla_plugins(char list[RF_XLA_PLUGINS][4096]) {
  char folder[4096], path[4200];
  int count = 0;
  rf_xla_plugins_folder(folder);
  add(list, &count, getenv("RAFTER_PJRT_PLUGIN"));
  for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, KNOWN[i]);
    add(list, &count, path);
  }
  add(list, &count, getenv("TPU_LIBRARY_PATH"));
  add(list, &count, "/lib/libtpu.so");
  return count;
}

/* Ends an attempt that takes too long. */
typedef struct limit {
  double seconds;
  const volatile int *stop;
  volatile int end;
} limit;

static void check_limit(void *context, double seconds) {
  limit *l = context;
  if (seconds > l->seconds || rf_flag_is_set(l->stop)) __atomic_store_n(&l->end, 1, __ATOMIC_RELAXED);
}

static bool try_open(const char *path, bool compile_only, double seconds, const volatile int *stop,
                     rf_xla_facts *facts, rf_error *error) {
  limit l = {.seconds = seconds, .stop = stop};
  rf_xla_client *client = NULL;
  rf_xla_settings settings = {
      .plugin = path, .compile_only = compile_only, .stop = &l.end, .waiting = check_limit, .context = &l};
  rf_status status = rf_xla_open(&settings, &client, error);
  if (status == RAFTER_OK) *facts = *rf_xla_facts_of(client);
  rf_xla_close(client);
  if (status == RAFTER_INTERRUPTED && !rf_flag_is_set(stop))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "no answer within %.0f s", seconds) == RAFTER_OK;
  return status == RAFTER_OK;
}

void rf_xla_probe(const char *path, double seconds, const volatile int *stop, rf_xla_ability *ability) {
  rf_error unused;
  *ability = (rf_xla_ability){0};
  bool opened = try_open(path, false, seconds, stop, &ability->facts, &ability->problem);
  ability->runs = opened && ability->facts.devices > 0;
  if (opened && !ability->runs)
    snprintf(ability->problem.message, sizeof ability->problem.message, "it has no device here");
  if (!opened) opened = try_open(path, true, seconds, stop, &ability->facts, &unused);
  ability->topologies = opened && ability->facts.has_topologies;
}
