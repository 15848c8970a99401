/* tool_calls.h - finds the calls of tools in the text of an answer while the text grows. */
#ifndef RF_TOOL_CALLS_H
#define RF_TOOL_CALLS_H

#include "serve/tool_format.h"

typedef struct rf_tool_call {
  char id[32];
  char *name;
  rf_body head;      /* text from before the call to the first brace of the arguments */
  rf_body arguments; /* arguments, exactly as the model wrote them */
  size_t sent;       /* number of bytes of the arguments that a stream has written */
  bool begun;        /* true: a stream has written the name */
} rf_tool_call;

/* Calls of one answer. The calls depend only on the text, but not on the pieces in which the text
 * arrives. */
typedef struct rf_tool_calls {
  const rf_tool_format *format;
  const json_t *tools; /* tools of the request, borrowed */
  bool single;         /* true: all calls after the first call are dropped */
  bool streams;        /* true: a call is sent before it is complete */
  rf_body content;     /* text of the answer without its calls */
  size_t content_sent;
  rf_tool_call *call;
  int count, room;
  /* Fields of the call that is being read. */
  int state;
  rf_body held;  /* text that may be content or the start of a call */
  size_t head;   /* number of bytes in `held` before the head of the call */
  size_t object; /* number of bytes in `held` before the call's JSON object */
  int depth;     /* open braces and brackets */
  bool in_string, escaped, dropped;
} rf_tool_calls;

/* `forced`: the prompt already contains the opening mark of the first call. Without `streams`, a
 * call whose arguments are not a JSON object becomes content. With `streams`, such a call stays a call,
 * because its name may have been sent. */
void rf_tool_calls_start(rf_tool_calls *calls, const rf_tool_format *format, const json_t *tools, bool single,
                         bool forced, bool streams);
void rf_tool_calls_add(rf_tool_calls *calls, const char *text, size_t bytes);
/* After the last text. `cut`: the answer reached its maximum length, so a call whose arguments are
 * not complete stays a call. Otherwise, the text of such a call becomes content (see `streams`). */
void rf_tool_calls_end(rf_tool_calls *calls, bool cut);
void rf_tool_calls_free(rf_tool_calls *calls);

/* Appends the members "content" and "tool_calls" of a message. */
void rf_tool_calls_message(const rf_tool_calls *calls, rf_body *out);
bool rf_tool_calls_news(const rf_tool_calls *calls);
/* Appends a JSON object with everything that is new since the last delta. */
void rf_tool_calls_delta(rf_tool_calls *calls, rf_body *out);

#endif
