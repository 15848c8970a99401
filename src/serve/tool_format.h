/* tool_format.h - the formats in which models write calls of tools. The model's chat template
 * decides the format. */
#ifndef RF_TOOL_FORMAT_H
#define RF_TOOL_FORMAT_H

#include "serve/body.h"

#include <jansson.h>

/* `RF_TOOL_BLANKS`: maximum number of blanks between the beginning of an answer and a call, if the
 * call has no mark. More blanks are content, and so is the text after them. */
enum { RF_TOOL_MARKS = 3, RF_TOOL_BLANKS = 256 };

/* One format. A call consists of prefix, name_head, the name, name_end, the arguments and call_end,
 * in this order. */
typedef struct rf_tool_format {
  const char *name; /* in messages and documents */
  const char *has[2],
      /* `has`: texts that the template must contain. `lacks`: text that the template must not
       * contain. NULL: no condition. */
      *lacks;
  const char *opening;      /* text before the first call; "": the answer begins with the call */
  const char *first, *last; /* `first`: text after `opening`. `last`: text after the last call. */
  const char *prefix, *name_head, *name_end, *call_end;
  const char *between;              /* text between two calls; NULL: an answer has only one call */
  bool json;                        /* true: a call is a JSON object with a name and arguments */
  bool specials;                    /* true: the marks may be special tokens */
  bool short_ids;                   /* true: ids of calls have 9 letters and digits */
  const char *skip[RF_TOOL_MARKS];  /* marks after a call that are ignored */
  const char *again[RF_TOOL_MARKS]; /* marks that begin a further call */
} rf_tool_format;

/* Returns the format of a template; NULL: the format is unknown. */
const rf_tool_format *rf_tool_format_of(const char *chat_template);
/* Returns true if a template renders tools. For NULL, returns false. */
bool rf_tool_template(const char *chat_template);
/* Returns the mark of a first call. A format without `opening` has the mark among `again`. */
const char *rf_tool_mark(const rf_tool_format *format);
/* Returns the names of all formats, joined by ", ". */
const char *rf_tool_format_names(void);
/* Returns true if templates of the format take the arguments of calls as a text. */
bool rf_tool_text_arguments(const rf_tool_format *format, const char *chat_template);

/* Returns the form of an answer that must call a tool: any tool, or the tool `name` if `name` is
 * not NULL. The form begins after the opening mark. `several`: further calls may follow. The text
 * is malloc'ed (see RAFTER_FORM_PARTS). */
char *rf_tool_form(const rf_tool_format *format, const json_t *tools, const char *name, bool several);
/* Returns true if one of the tools is strict. The answer then needs rf_tool_strict_form. */
bool rf_tool_strict(const json_t *tools);
/* Returns the form of an answer in which the model decides whether it calls tools: text without
 * calls, or text and then calls. Arguments of strict tools are valid in their schemas, and arguments
 * of other tools are JSON objects. */
char *rf_tool_strict_form(const rf_tool_format *format, const json_t *tools, bool several);
/* Returns true if one of a request's tools has this name. */
bool rf_tool_known(const json_t *tools, const char *name, size_t bytes);

#endif
