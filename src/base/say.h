/* say.h - what a command prints, through the functions of its caller (rafter_sink). */
#ifndef RF_SAY_H
#define RF_SAY_H

#include <jansson.h>

#include "base/base.h"

/* For people, formatted. Safe with a sink that has no text function. */
void rf_say(const rafter_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* What people should know and results should not contain: settings that nobody typed, figures
 * that an answer builds on. */
void rf_note(const rafter_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));
void rf_say_text(const rafter_sink *sink, char *text); /* frees it */
void rf_put_bar(const rafter_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One JSON object to the sink; takes the reference. */
void rf_put_json(const rafter_sink *sink, json_t *json);
/* The caller wants it to end. */
bool rf_asked_to_stop(const rafter_sink *sink);

#endif
