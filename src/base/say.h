/* say.h - prints for a command, through the functions of its caller (rafter_sink). */
#ifndef RF_SAY_H
#define RF_SAY_H

#include <jansson.h>

#include "base/base.h"

/* Prints formatted text for people. Does nothing if the sink has no text function. */
void rf_say(const rafter_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints notes for people, such as settings that nobody typed; notes are not results. */
void rf_note(const rafter_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));
void rf_say_text(const rafter_sink *sink, char *text); /* Prints `text` and frees it. */
void rf_put_bar(const rafter_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sends one JSON object to the sink and drops the reference. */
void rf_put_json(const rafter_sink *sink, json_t *json);
/* Whether the caller of the library wants the command to stop. */
bool rf_asked_to_stop(const rafter_sink *sink);

#endif
