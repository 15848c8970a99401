/* tool_format.h - how models write calls of tools. The model's chat template says which format. */
#ifndef RF_TOOL_FORMAT_H
#define RF_TOOL_FORMAT_H

#include "serve/body.h"

#include <jansson.h>

enum { RF_TOOL_MARKS = 3 };

/* One format. A call is: prefix, name_head, the name, name_end, the arguments, call_end. */
typedef struct rf_tool_format {
  const char *name; /* in messages and documents */
  const char *has[2],
      *lacks; /* texts that the template must contain, and one that it must not contain; NULL: no condition */
  const char *opening;      /* text before the first call; "": the answer begins with the call */
  const char *first, *last; /* text after `opening`, and text after the last call */
  const char *prefix, *name_head, *name_end, *call_end;
  const char *between;              /* text between two calls; NULL: an answer has only one call */
  bool json;                        /* a call is a JSON object with a name and arguments */
  bool specials;                    /* the marks may be special tokens */
  bool short_ids;                   /* ids of calls have 9 letters and digits */
  const char *skip[RF_TOOL_MARKS];  /* marks after a call that are ignored */
  const char *again[RF_TOOL_MARKS]; /* marks that begin a further call */
} rf_tool_format;

/* The format of a template; NULL: none is known. */
const rf_tool_format *rf_tool_format_of(const char *chat_template);
/* Whether a template renders tools. NULL: no. */
bool rf_tool_template(const char *chat_template);
/* Names of all formats, joined by ", ". */
const char *rf_tool_format_names(void);
/* Whether the templates of the format add the arguments of calls as a text. */
bool rf_tool_text_arguments(const rf_tool_format *format, const char *chat_template);

/* The form of an answer that calls one of the tools, or the tool `name` if it is not NULL, after
 * the opening. `several`: further calls may follow. The text is malloc'ed (see
 * RAFTER_FORM_PARTS). */
char *rf_tool_form(const rf_tool_format *format, const json_t *tools, const char *name, bool several);
/* Whether one of a request's tools has the name. */
bool rf_tool_known(const json_t *tools, const char *name, size_t bytes);

#endif
