/* json.h - JSON files and fields, with errors that say where. The values are jansson's. */
#ifndef RF_JSON_H
#define RF_JSON_H

#include <jansson.h>

#include "base/file.h"

/* Parses a file of at most `most` bytes; json_decref() the result. Names used twice in one
 * object are an error. */
rf_status rf_json_read(const char *path, size_t most, json_t **json, rf_error *error);
rf_status rf_json_parse(const char *text, size_t bytes, const char *where, json_t **json, rf_error *error);

/* Fields of an object. `where` names the object in errors ("model/config.json"). A missing field
 * is an error; the _or forms take a missing field or a null as `otherwise`. A whole number also
 * serves as a float; 3.0 serves as a whole number. */
rf_status rf_json_int(const json_t *object, const char *key, const char *where, int64_t least, int64_t most,
                      int64_t *value, rf_error *error);
rf_status rf_json_float(const json_t *object, const char *key, const char *where, double least, double most,
                        double *value, rf_error *error);
rf_status rf_json_bool(const json_t *object, const char *key, const char *where, bool *value,
                       rf_error *error);
/* belongs to the object */
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

/* Fields of an object that was checked before; 0 and "" if it has none of that type. */
double rf_json_number_at(const json_t *object, const char *key);
const char *rf_json_text_at(const json_t *object, const char *key);

/* The shortest decimal that gives this float: 1e-05, not 9.99999974e-06. */
json_t *rf_json_decimal(float value);

/* A JSON text of any bytes: invalid UTF-8 becomes U+FFFD, one for each longest valid prefix of a
 * character. NULL: no memory. */
json_t *rf_json_bytes(const char *at, size_t bytes);

/* Text of a value, malloc'ed: keys in insertion order, doubles with the fewest digits that read
 * back the same. `indent` 0: one line. */
char *rf_json_text(const json_t *json, int indent);
/* Writes rf_json_text and a newline to a file that appears when complete. */
rf_status rf_json_write(const char *path, const json_t *json, int indent, rf_error *error);
/* One line of JSON Lines. */
rf_status rf_json_write_line(rf_out_file *out, const json_t *json, rf_error *error);

#endif
