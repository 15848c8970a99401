/* say.h - prints texts of a command through the functions of its caller (rafter_sink). */
#ifndef RF_SAY_H
#define RF_SAY_H

#include <jansson.h>

#include "base/base.h"

/* Prints formatted text for people. If the sink has no function for texts, prints nothing. */
void rf_say(const rafter_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints a note for people, such as a setting that nobody typed. A note is not a result. */
void rf_note(const rafter_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));
void rf_say_text(const rafter_sink *sink, char *text); /* Prints `text`, and then frees it. */
void rf_put_bar(const rafter_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Like rf_put_bar, but the line ends with the time left. `part` (0 to 1) of the work took
 * `seconds`. */
void rf_put_bar_left(const rafter_sink *sink, double seconds, double part, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Sends one JSON object to the sink. Takes the caller's reference. */
void rf_put_json(const rafter_sink *sink, json_t *json);
/* True if the program that uses the library wants to stop the command. */
bool rf_asked_to_stop(const rafter_sink *sink);

#endif
