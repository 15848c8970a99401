/* parts.h - what the files of this room share. */
#ifndef RF_MACHINE_PARTS_H
#define RF_MACHINE_PARTS_H

#include "machine/machine.h"

#include "base/json.h"

/* Fills `machine` from one JSON object. `where` names the file (and row) in messages.
 * RAFTER_FAILED: a field is missing, of the wrong kind or out of range. */
rf_status rf_machine_parse(const json_t *object, const char *where, rf_machine *machine, rf_error *error);

/* A text that must fit, and a number in [least, most]. If the field is absent, the value is
 * unchanged. */
rf_status rf_machine_text(const json_t *object, const char *key, bool required, char *out, size_t capacity,
                          const char *where, rf_error *error);
rf_status rf_machine_number(const json_t *object, const char *key, double least, double most, double *value,
                            const char *where, rf_error *error);
/* Reads everything beyond one chip: topology, networks, prices, shape. */
rf_status rf_machine_parse_network(const json_t *object, const char *where, rf_machine *machine,
                                   rf_error *error);
/* Writes the same fields to `object`. */
void rf_machine_network_json(const rf_machine *machine, json_t *object);

extern const char RF_MACHINE_HINT[];

#endif
