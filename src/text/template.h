/* template.h - chat templates in the part of Jinja that published chat templates use. Templates are
 * rendered as in transformers (with trim_blocks and lstrip_blocks). An unsupported feature is an
 * error that names the feature, its line and its column. One difference from Jinja is known, and no
 * published template depends on this difference. An inner scope may read a variable of the caller
 * before this scope sets the variable. In Jinja, the variable is then undefined. In rafter, the
 * variable then has the caller's value. */
#ifndef RF_TEMPLATE_H
#define RF_TEMPLATE_H

#include <jansson.h>
#include <time.h>

#include "base/base.h"

typedef struct rf_template rf_template;

/* Limits of one rendering. A limit of 0 means the default. */
typedef struct rf_template_limits {
  int64_t steps;       /* evaluated nodes plus processed bytes and items; default 20 million */
  size_t output_bytes; /* size of any text, including intermediate results; default 64 MiB */
  size_t memory_bytes; /* memory of all values that a rendering makes; default 512 MiB */
} rf_template_limits;

/* Bytes [first, last) of a text. */
typedef struct rf_range {
  size_t first, last;
} rf_range;

typedef struct rf_rendered {
  char *text; /* `bytes` bytes and a NUL */
  size_t bytes;
  rf_range *generated; /* spans of {% generation %} blocks, in order */
  int64_t generated_count;
} rf_rendered;

/* Parses `bytes` bytes of UTF-8. `where` names the template in errors ("tokenizer_config.json").
 * The text is copied. */
rf_status rf_template_parse(const char *text, size_t bytes, const char *where, rf_template **parsed,
                            rf_error *error);
void rf_template_free(rf_template *parsed);
/* True if the template has a {% generation %} block, which marks the assistant's text. */
bool rf_template_marks_generation(const rf_template *parsed);
/* Renders a template. The fields of the object `variables` are the template's variables. `now` is
 * the result of strftime_now(); NULL: a call of strftime_now() is an error. `limits` may be NULL.
 * If the template calls raise_exception(), the error has the message of this call. */
rf_status rf_template_render(const rf_template *parsed, const json_t *variables, const struct tm *now,
                             const rf_template_limits *limits, rf_rendered *rendered, rf_error *error);
void rf_rendered_free(rf_rendered *rendered);

#endif
