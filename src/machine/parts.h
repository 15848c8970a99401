/* parts.h - what the files of this room share. */
#ifndef RF_MACHINE_PARTS_H
#define RF_MACHINE_PARTS_H

#include "machine/machine.h"

#include "base/json.h"

/* Fills `machine` from one JSON object. `where` names the file (and row) in messages. RAFTER_FAILED: a field is missing, of the wrong
 * kind or out of range. */
rf_status rf_machine_parse(const json_t *object, const char *where, rf_machine *machine, rf_error *error);

#endif
