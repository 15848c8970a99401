/* parts.h - functions that the files of src/machine share. */
#ifndef RF_MACHINE_PARTS_H
#define RF_MACHINE_PARTS_H

#include "machine/machine.h"

#include "base/json.h"

/* Fills `machine` from the fields of one JSON object. Errors begin with `where`, which is the name
 * of the file or data sheet. RAFTER_FAILED: a field is missing, has the wrong type or is out of
 * range. */
rf_status rf_machine_parse(const json_t *object, const char *where, rf_machine *machine, rf_error *error);

/* Reads a text that is shorter than `capacity` bytes. The second function reads a number from
 * `least` to `most`. */
rf_status rf_machine_text(const json_t *object, const char *key, bool required, char *out, size_t capacity,
                          const char *where, rf_error *error);
rf_status rf_machine_number(const json_t *object, const char *key, double least, double most, double *value,
                            const char *where, rf_error *error);
/* Reads the fields of machines with several chips: topology, networks, prices, shape. */
rf_status rf_machine_parse_network(const json_t *object, const char *where, rf_machine *machine,
                                   rf_error *error);
/* Writes the fields that rf_machine_parse_network reads. */
void rf_machine_network_json(const rf_machine *machine, json_t *object);

/* exchange.c: reads and writes the field "collectives". */
rf_status rf_machine_parse_exchanges(const json_t *object, const char *where, rf_machine *machine,
                                     rf_error *error);
void rf_machine_exchanges_json(const rf_machine *machine, json_t *object);

extern const char RF_MACHINE_HINT[];

#endif
