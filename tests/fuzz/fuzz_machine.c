/* Reads any bytes as a machine file. Either an error names the field, or the machine is written and
 * read back as the same machine. */
#include "fuzz_file.h"

#include <string.h>

#include "machine/machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static rf_machine machine, again;
  rf_error error;
  if (rf_machine_read(fuzz_file("fuzz.json", data, bytes), &machine, &error) != RAFTER_OK) return 0;
  char path[128];
  snprintf(path, sizeof path, "%s/again.json", fuzz_folder);
  if (rf_machine_write(&machine, path, &error) != RAFTER_OK) abort();
  if (rf_machine_read(path, &again, &error) != RAFTER_OK) abort();
  if (strcmp(machine.name, again.name) || machine.memory_bytes != again.memory_bytes ||
      machine.curve_count != again.curve_count)
    abort();
  const rf_topology *a = &machine.topology, *b = &again.topology;
  if (machine.chips != again.chips || a->form != b->form || a->axes != b->axes || a->domain != b->domain ||
      a->oneway_bps != b->oneway_bps)
    abort();
  if (machine.price_count != again.price_count || machine.shape_rank != again.shape_rank ||
      machine.slices != again.slices)
    abort();
  return 0;
}
