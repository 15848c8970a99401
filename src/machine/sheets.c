/* sheets.c - the built-in data sheets, and the search for a machine by the name that a user
 * types. */
#include "machine/parts.h"

#include "base/text.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The program contains the text of data/machines.json. So the program works without that file. The
 * build sets RF_DATA_DIR to the absolute path of data/, and rebuilds this file when the JSON
 * changes. */
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

static json_t *sheets; /* parsed once */
static void parse_sheets(void) {
  if (rf_json_parse(rf_machines_text, (size_t)(rf_machines_text_end - rf_machines_text) - 1,
                    "the built-in machines.json", &sheets, NULL) != RAFTER_OK)
    sheets = NULL;
}

/* The function reports no error, because the JSON is part of the program, and a unit test reads
 * every row. */
static json_t *sheet_rows(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, parse_sheets);
  return json_object_get(sheets, "machines");
}

const json_t *rf_machine_sheet(int index) { return json_array_get(sheet_rows(), (size_t)index); }

/* Copies a data sheet and applies the changes of one of its editions. */
static rf_status with_edition(const json_t *row, const char *edition, json_t **sheet, rf_error *error) {
  json_t *editions = json_object_get(row, "editions"), *changes = json_object_get(editions, edition);
  const char *name = json_string_value(json_object_get(row, "name"));
  *sheet = NULL;
  if (!changes) {
    char hint[256] = "";
    const char *key;
    json_t *value;
    json_object_foreach (editions, key, value)
      rf_text_append(hint, sizeof hint, "%s%s@%s", hint[0] ? ", " : "write ", name, key);
    rf_text_append(hint, sizeof hint, "%s%s for its own figures", hint[0] ? ", or " : "write ", name);
    return RF_FAIL(error, RAFTER_INVALID, hint, "%s has no such edition (--on: got '@%.40s')", name, edition);
  }
  *sheet = rf_must(json_deep_copy(row));
  json_object_update_recursive(*sheet, changes);
  json_object_set_new(*sheet, "edition", json_string(edition));
  return RAFTER_OK;
}

/* Names of machines that clouds and other programs use. The number after the last '-' of such a
 * name counts chips. In rows that end with '/', the number counts cores. A chip has two cores. */
static const rf_synonym MACHINE_SYNONYMS[] = {
    {"h100", "h100-sxm"},  {"a100", "a100-80g"},     {"rtx4090", "rtx-4090"}, {"4090", "rtx-4090"},
    {"v5e", "tpu-v5e"},    {"v5litepod", "tpu-v5e"}, {"v5lite", "tpu-v5e"},   {"tpu-v5e", "tpu-v5e"},
    {"v6e", "tpu-v6e"},    {"tpu-v6e", "tpu-v6e"},   {"trillium", "tpu-v6e"}, {"ironwood", "tpu-v7x"},
    {"tpu7x", "tpu-v7x"},  {"v5p", "tpu-v5p/"},      {"tpu-v5p", "tpu-v5p/"}, {"v4", "tpu-v4/"},
    {"tpu-v4", "tpu-v4/"}, {"v3", "tpu-v3/"},        {"tpu-v3", "tpu-v3/"},   {NULL, NULL}};

/* If `spec` is a machine's name in another program, writes the machine's name in rafter to `meant`.
 * Otherwise writes "". */
static void machine_meant(const char *spec, char meant[64]) {
  char name[64];
  snprintf(name, sizeof name, "%.63s", spec);
  for (char *c = name; *c; c++) *c = (char)tolower((unsigned char)*c);
  const char *dash = strrchr(name, '-');
  int64_t chips = 0;
  const rf_synonym *same = rf_synonym_of(MACHINE_SYNONYMS, NULL, name, strlen(name));
  if (!same && dash && rf_text_int(dash + 1, &chips))
    same = rf_synonym_of(MACHINE_SYNONYMS, NULL, name, (size_t)(dash - name));
  *meant = 0;
  if (!same) return;
  size_t length = strcspn(same->ours, "/");
  if (same->ours[length]) chips = (chips + 1) / 2;
  snprintf(meant, 64, "%.*s", (int)length, same->ours);
  if (chips > 0) rf_text_append(meant, 64, ":%lld", (long long)chips);
}

static rf_status find_sheet(const char *name, const char *edition, rf_machine *machine, rf_error *error) {
  json_t *rows = sheet_rows(), *sheet = NULL;
  rf_status status = RAFTER_INVALID;
  const char *names[MAX_SHEETS + 1] = {"local"};
  int count = 1;
  for (size_t k = 0; k < json_array_size(rows) && count <= MAX_SHEETS; k++) {
    const json_t *row = json_array_get(rows, k);
    const char *row_name = json_string_value(json_object_get(row, "name"));
    names[count++] = row_name;
    if (!row_name || strcmp(row_name, name)) continue;
    if (edition[0]) RF_GO(with_edition(row, edition, &sheet, error));
    status = rf_machine_parse(sheet ? sheet : row, "machines.json", machine, error);
    if (status == RAFTER_OK) snprintf(machine->source, sizeof machine->source, "data-sheet");
    goto done;
  }
  char hint[512] = "";
  char meant[64];
  machine_meant(name, meant);
  const char *near = *meant ? meant : rf_nearest(name, names, count);
  if (near) rf_text_append(hint, sizeof hint, "did you mean %s? ", near);
  rf_text_append(hint, sizeof hint, "known machines:");
  for (int i = 0; i < count; i++) rf_text_append(hint, sizeof hint, " %s", names[i]);
  RF_FAIL(error, RAFTER_INVALID, hint,
          "unknown machine '%.60s' (--on: expected local, a data sheet's name or a machine file)", name);
done:
  json_decref(sheet);
  return status;
}

/* The path of a file of this host. The name of the file ends with `suffix`. */
static void path_of(rf_isa isa, const char *suffix, char path[4096]) {
  char host[256] = "", level[32] = "";
  if (isa != rf_isa_detect()) snprintf(level, sizeof level, ".%s", rf_isa_name(isa));
  if (gethostname(host, sizeof host - 1) != 0 || !host[0]) snprintf(host, sizeof host, "local");
  for (char *c = host; *c; c++)
    if (*c == '/') *c = '_';
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (cache && cache[0] == '/')
    snprintf(path, 4096, "%.3700s/rafter/%s%s%s.json", cache, host, level, suffix);
  else
    snprintf(path, 4096, "%.3700s/.cache/rafter/%s%s%s.json", home && home[0] == '/' ? home : "/tmp", host,
             level, suffix);
}

void rf_machine_local_path(rf_isa isa, char path[4096]) { path_of(isa, "", path); }

void rf_machine_ranks_path(rf_isa isa, int ranks, char path[4096]) {
  char suffix[32];
  snprintf(suffix, sizeof suffix, ".%d-ranks", ranks);
  path_of(isa, suffix, path);
}

static bool is_local(const char *spec) { return !spec || !*spec || !strcmp(spec, "local"); }

rf_status rf_machine_find_at(const char *spec, rf_isa isa, rf_machine *machine, rf_error *error) {
  char path[4096];
  if (is_local(spec)) {
    rf_machine_local_path(isa, path);
    if (access(path, F_OK) == 0) return rf_machine_read(path, machine, error);
  }
  return rf_machine_find(spec, machine, error);
}

rf_status rf_machine_find(const char *spec, rf_machine *machine, rf_error *error) {
  if (is_local(spec)) {
    char path[4096];
    rf_machine_local_path(rf_isa_detect(), path);
    if (access(path, F_OK) == 0) return rf_machine_read(path, machine, error);
    return rf_machine_detect(machine, error);
  }
  struct stat info;
  if (strchr(spec, '/') || rf_text_ends_with(spec, ".json") ||
      (stat(spec, &info) == 0 && S_ISREG(info.st_mode)))
    return rf_machine_read(spec, machine, error);
  char name[64] = "", edition[32] = "";
  size_t whole = strcspn(spec, ":*"), part = strcspn(spec, "@:*");
  if (part >= sizeof name || (part < whole && whole - part - 1 >= sizeof edition))
    return RF_FAIL(error, RAFTER_INVALID, "write NAME[@EDITION][:SHAPE][*SLICES], for example tpu-v5e:4x4",
                   "unknown machine '%.60s...'", spec);
  memcpy(name, spec, part);
  name[part] = 0;
  if (part < whole) {
    memcpy(edition, spec + part + 1, whole - part - 1);
    edition[whole - part - 1] = 0;
  }
  if (strstr(spec, "@d2d")) {
    RF_TRY(find_sheet(name, "", machine, error));
    bool two = machine->devices_per_chip == 2;
    return RF_FAIL(
        error, RAFTER_INVALID,
        two ? "write @d2d after an axis: --mesh fsdp=4,tensor=2@d2d"
            : "leave out @d2d, or choose a machine with two devices per chip, such as tpu-v7x",
        two ? "@d2d must follow an axis of --mesh (--on %.60s: expected no @d2d)"
            : "a chip of %.60s has one device, so there is no link between devices (--on: expected no @d2d)",
        two ? spec : name);
  }
  if (part < whole && !edition[0])
    return RF_FAIL(error, RAFTER_INVALID, "leave out @", "'%.60s' has no edition after @", spec);
  RF_TRY(find_sheet(name, edition, machine, error));
  const char *shape = spec + whole;
  return *shape ? rf_machine_set_shape(machine, *shape == ':' ? shape + 1 : shape, error) : RAFTER_OK;
}
