/* schema.h - what the files schema*.c share. */
#ifndef RF_SCHEMA_H
#define RF_SCHEMA_H

#include "constrain/grammar.h"

#include <jansson.h>

enum {
  RF_SCHEMA_NESTED = 64,
  RF_SCHEMA_WHERE = 400,        /* bytes of a JSON pointer in errors */
  RF_SCHEMA_PROPERTIES = 2000,  /* of an object */
  RF_SCHEMA_NAME = 512,         /* bytes of a property's name */
  RF_SCHEMA_COMPARED = 1 << 20, /* values, names and schemas that oneOf compares */
};

/* The JSON types of a value, as bits. An integer is a number too. */
enum {
  RF_TYPE_NULL = 1,
  RF_TYPE_BOOLEAN = 2,
  RF_TYPE_INTEGER = 4,
  RF_TYPE_NUMBER = 8,
  RF_TYPE_STRING = 16,
  RF_TYPE_ARRAY = 32,
  RF_TYPE_OBJECT = 64,
  RF_TYPE_ANY = 127
};

typedef struct rf_schema {
  rf_grammar *g;
  const json_t *root;
  rf_error *error;
  /* First states of rules that many places call; 0: not made yet. */
  int32_t blank, character, any, object;
  struct rf_schema_rule {
    const json_t *schema;
    int32_t start;
  } * rule;
  int rules, rule_room;
  int nested;
  int64_t compared;            /* number of values, names and schemas that oneOf has compared */
  char where[RF_SCHEMA_WHERE]; /* JSON pointer to the current schema */
} rf_schema;

/* Appends "/name" to the pointer, and returns its old length for rf_schema_up. */
size_t rf_schema_down(rf_schema *s, const char *name);
void rf_schema_up(rf_schema *s, size_t length);
/* Fills the error with the keyword and the pointer. Returns RAFTER_INVALID. */
rf_status rf_schema_wrong(rf_schema *s, const char *keyword, const char *why);
/* Reads a count of at least 0. The count is `otherwise` if the schema has no such keyword. */
rf_status rf_schema_count(rf_schema *s, const json_t *of, const char *keyword, int64_t otherwise,
                          int64_t *count);
/* Returns the schema that a $ref names. On failure, returns NULL and sets the error. */
const json_t *rf_schema_target(rf_schema *s, const json_t *schema);

/* Adds the values of a schema. */
rf_status rf_schema_value(rf_schema *s, const json_t *schema, int32_t from, int32_t to);
/* Makes a rule for the values of a schema, unless the schema already has a rule. */
rf_status rf_schema_rule_of(rf_schema *s, const json_t *schema, int32_t *start);
/* Adds one JSON text of a value, without blanks. */
void rf_schema_literal(rf_schema *s, const json_t *value, int32_t from, int32_t to);
void rf_schema_blank(rf_schema *s, int32_t from, int32_t to); /* see docs/serve.md */
int32_t rf_schema_any(rf_schema *s);                          /* rule: any JSON value */
/* Adds a whole string of any characters. */
void rf_schema_string(rf_schema *s, int32_t from, int32_t to);

/* schema_string.c, schema_array.c, schema_object.c: one type each. */
rf_status rf_schema_add_string(rf_schema *s, const json_t *schema, int32_t from, int32_t to);
rf_status rf_schema_add_array(rf_schema *s, const json_t *schema, int32_t from, int32_t to);
rf_status rf_schema_add_properties(rf_schema *s, const json_t *schema, int32_t from, int32_t to);
/* Adds the values of all schemas in a list: anyOf, oneOf, allOf. */
rf_status rf_schema_alternatives(rf_schema *s, const json_t *schema, const char *keyword, int32_t from,
                                 int32_t to);
/* Returns the types that a schema allows, as bits. */
unsigned rf_schema_types(const json_t *schema);
/* True if the list `required` of a schema contains the name. NULL: an empty list. */
bool rf_schema_requires(const json_t *required, const char *name);

#endif
