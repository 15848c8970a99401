/* template.h - chat templates: the part of Jinja that the known model families use, rendered as
 * transformers renders it. What is not known is refused by name, line and column; nothing is
 * guessed. Blocks are trimmed as with trim_blocks and lstrip_blocks. One known difference: Jinja
 * settles scopes before it runs. A caller's variable that a scope sets, and that before it only
 * scopes within it read, is undefined there for Jinja; here it is the caller's. None of the
 * families' templates does so. */
#ifndef RF_TEMPLATE_H
#define RF_TEMPLATE_H

#include <jansson.h>
#include <time.h>

#include "base/base.h"

typedef struct rf_template rf_template;

/* Bounds of one rendering; a field that is 0 takes the default beside it. */
typedef struct rf_template_limits {
  int64_t steps;       /* 20 million: nodes evaluated, and bytes or items touched */
  size_t output_bytes; /* 64 MiB: the longest text, rendered or in between */
  size_t memory_bytes; /* 512 MiB: all values of a rendering */
} rf_template_limits;

/* Bytes [first, last) of a text. */
typedef struct rf_range {
  size_t first, last;
} rf_range;

typedef struct rf_rendered {
  char *text; /* NUL behind `bytes` */
  size_t bytes;
  rf_range *generated; /* what stood between {% generation %} and {% endgeneration %}, in order */
  int64_t generated_count;
} rf_rendered;

/* Parses `bytes` bytes of UTF-8. `where` names the template in errors ("tokenizer_config.json")
 * and is copied. */
rf_status rf_template_parse(const char *text, size_t bytes, const char *where, rf_template **parsed,
                            rf_error *error);
void rf_template_free(rf_template *parsed);
/* Whether it has a {% generation %} block, so that rendering says what the assistant wrote. */
bool rf_template_marks_generation(const rf_template *parsed);
/* Renders with the fields of the object `variables` as variables. `now` is the time
 * strftime_now() formats; NULL: the template may not ask. `limits` may be NULL. RAFTER_FAILED
 * also when the template calls raise_exception(): the message is the template's. */
rf_status rf_template_render(const rf_template *parsed, const json_t *variables, const struct tm *now,
                             const rf_template_limits *limits, rf_rendered *rendered, rf_error *error);
void rf_rendered_free(rf_rendered *rendered);

#endif
