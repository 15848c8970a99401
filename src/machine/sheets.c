/* sheets.c - the data sheets the program carries, and how a machine is found by the name a person types. */
#include "machine/parts.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The text of data/machines.json becomes part of the program, so that one binary works wherever it is copied. The build defines
 * RF_DATA_DIR as the absolute path of data/ and makes this file depend on machines.json. */
#ifndef RF_DATA_DIR
#error "RF_DATA_DIR must be the path of the data folder"
#endif
__asm__(".pushsection .rodata\n"
        ".hidden rf_machines_text\n.globl rf_machines_text\nrf_machines_text:\n"
        ".incbin \"" RF_DATA_DIR "/machines.json\"\n.byte 0\n"
        ".hidden rf_machines_text_end\n.globl rf_machines_text_end\nrf_machines_text_end:\n"
        ".popsection\n");
extern const char rf_machines_text[], rf_machines_text_end[];

enum { MAX_SHEETS = 64 };

/* The parsed sheets. The text is ours, so a fault in it is our own mistake; a unit test reads every row. */
static json_t *load_sheets(json_t **rows, rf_error *error) {
  json_t *root;
  if (rf_json_parse(rf_machines_text, (size_t)(rf_machines_text_end - rf_machines_text) - 1, "the built-in machines.json", &root, error) != RAFTER_OK)
    return NULL;
  *rows = json_object_get(root, "machines");
  return root;
}

const char *rf_machine_name(int i) {
  static char names[MAX_SHEETS][64];
  static int count = -1;
  if (count < 0) {
    json_t *rows, *root = load_sheets(&rows, NULL);
    int n = 0;
    for (size_t k = 0; root && k < json_array_size(rows) && n < MAX_SHEETS; k++)
      snprintf(names[n++], sizeof *names, "%s", json_string_value(json_object_get(json_array_get(rows, k), "name")));
    json_decref(root);
    count = n;
  }
  return i >= 0 && i < count ? names[i] : NULL;
}

static rf_status find_sheet(const char *name, rf_machine *machine, rf_error *error) {
  json_t *rows, *root = load_sheets(&rows, error);
  if (!root) return RAFTER_FAILED;
  rf_status status = RAFTER_INVALID;
  const char *names[MAX_SHEETS + 1] = {"local"};
  int count = 1;
  for (size_t k = 0; k < json_array_size(rows) && count <= MAX_SHEETS; k++) {
    const json_t *row = json_array_get(rows, k);
    const char *row_name = json_string_value(json_object_get(row, "name"));
    names[count++] = row_name;
    if (!row_name || strcmp(row_name, name)) continue;
    status = rf_machine_parse(row, "machines.json", machine, error);
    if (status == RAFTER_OK) snprintf(machine->source, sizeof machine->source, "data-sheet");
    json_decref(root);
    return status;
  }
  char hint[512] = "";
  const char *near = rf_nearest(name, names, count);
  size_t at = 0;
  if (near) at = (size_t)snprintf(hint, sizeof hint, "did you mean %s? ", near);
  at += (size_t)snprintf(hint + at, sizeof hint - at, "known machines:");
  for (int i = 0; i < count && at + 72 < sizeof hint; i++) at += (size_t)snprintf(hint + at, sizeof hint - at, " %s", names[i]);
  RF_FAIL(error, RAFTER_INVALID, hint, "unknown machine '%.60s' (--on: expected local, a data sheet's name or a machine file)", name);
  json_decref(root);
  return status;
}

void rf_machine_local_path(char path[4096]) {
  char host[256] = "";
  if (gethostname(host, sizeof host - 1) != 0 || !host[0]) snprintf(host, sizeof host, "local");
  for (char *c = host; *c; c++)
    if (*c == '/') *c = '_';
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (cache && cache[0] == '/') snprintf(path, 4096, "%.3800s/rafter/%s.json", cache, host);
  else snprintf(path, 4096, "%.3800s/.cache/rafter/%s.json", home && home[0] == '/' ? home : "/tmp", host);
}

rf_status rf_machine_find(const char *spec, rf_machine *machine, rf_error *error) {
  if (!spec || !*spec || !strcmp(spec, "local")) {
    char path[4096];
    rf_machine_local_path(path);
    if (access(path, F_OK) == 0) return rf_machine_read(path, machine, error);
    return rf_machine_detect(machine, error);
  }
  struct stat info;
  size_t length = strlen(spec);
  bool json = length > 5 && !strcmp(spec + length - 5, ".json");
  if (strchr(spec, '/') || json || (stat(spec, &info) == 0 && S_ISREG(info.st_mode))) return rf_machine_read(spec, machine, error);
  const char *shape = strchr(spec, ':');
  if (shape) {
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(shape - spec), spec);
    RF_TRY(find_sheet(name, machine, error));
    char hint[160];
    snprintf(hint, sizeof hint, "plan for one chip: --on %s", name);
    return RF_FAIL(error, RAFTER_INVALID, hint, "machine shapes are not supported yet (--on: expected '%s', got '%.80s')", name, spec);
  }
  return find_sheet(spec, machine, error);
}
