/* json.h - reads and writes JSON files and fields (jansson). Errors name the file and the field. */
#ifndef RF_JSON_H
#define RF_JSON_H

#include <jansson.h>

#include "base/file.h"

/* Parses a file of at most `most` bytes. The caller owns *json. Duplicate names are an error. */
rf_status rf_json_read(const char *path, size_t most, json_t **json, rf_error *error);
rf_status rf_json_parse(const char *text, size_t bytes, const char *where, json_t **json, rf_error *error);

/* Functions that read a field of an object. `where` names the object in errors
 * ("model/config.json"). A missing field is an error. If the name of a function ends in _or, a
 * missing or null field has the value `otherwise`. A function for floats also accepts integers, and
 * a function for integers accepts 3.0. */
rf_status rf_json_int(const json_t *object, const char *key, const char *where, int64_t least, int64_t most,
                      int64_t *value, rf_error *error);
rf_status rf_json_float(const json_t *object, const char *key, const char *where, double least, double most,
                        double *value, rf_error *error);
rf_status rf_json_bool(const json_t *object, const char *key, const char *where, bool *value,
                       rf_error *error);
/* The string belongs to the JSON object. */
rf_status rf_json_string(const json_t *object, const char *key, const char *where, const char **value,
                         rf_error *error);
rf_status rf_json_int_or(const json_t *object, const char *key, const char *where, int64_t least,
                         int64_t most, int64_t otherwise, int64_t *value, rf_error *error);
rf_status rf_json_float_or(const json_t *object, const char *key, const char *where, double least,
                           double most, double otherwise, double *value, rf_error *error);
rf_status rf_json_bool_or(const json_t *object, const char *key, const char *where, bool otherwise,
                          bool *value, rf_error *error);
rf_status rf_json_string_or(const json_t *object, const char *key, const char *where, const char *otherwise,
                            const char **value, rf_error *error);

/* Name of the type of a value, for errors: "a list", "a text". */
const char *rf_json_type(const json_t *value);

/* Functions that read a field of an object that was already checked. A missing field is 0 or "". */
double rf_json_number_at(const json_t *object, const char *key);
const char *rf_json_text_at(const json_t *object, const char *key);

/* The shortest decimal number that reads back as this float, for example 1e-05 instead of
 * 9.99999974e-06. */
json_t *rf_json_decimal(float value);

/* Makes a JSON string from any bytes. If a character is not valid UTF-8, U+FFFD replaces its
 * longest valid prefix. NULL: out of memory. */
json_t *rf_json_bytes(const char *at, size_t bytes);

/* Copies a name that becomes a JSON string: valid UTF-8, and shorter than `room` bytes. */
void rf_json_name(const char *from, char *to, size_t room);

/* Returns the text of a JSON value. The text is malloc'ed. Keys keep their order. Doubles have the
 * fewest digits that read back as the same number. If `indent` is 0, the text has one line. */
char *rf_json_text(const json_t *json, int indent);
/* Writes the text of rf_json_text and a newline. The name of the file appears only when the file is
 * complete. */
rf_status rf_json_write(const char *path, const json_t *json, int indent, rf_error *error);
rf_status rf_json_write_line(rf_out_file *out, const json_t *json, rf_error *error);

#endif
