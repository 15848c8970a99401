/* say.c - see say.h. */
#include "base/say.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"

static void print(void (*put)(void *self, const char *text), void *self, const char *format, va_list values) {
  char line[4096];
  if (!put) return;
  vsnprintf(line, sizeof line, format, values);
  put(self, line);
}

void rf_say(const rafter_sink *sink, const char *format, ...) {
  va_list values;
  va_start(values, format);
  print(sink->text, sink->self, format, values);
  va_end(values);
}

void rf_note(const rafter_sink *sink, const char *format, ...) {
  va_list values;
  va_start(values, format);
  print(sink->note ? sink->note : sink->text, sink->self, format, values);
  va_end(values);
}

void rf_put_bar(const rafter_sink *sink, const char *format, ...) {
  va_list values;
  va_start(values, format);
  print(sink->bar, sink->self, format, values);
  va_end(values);
}

void rf_put_bar_left(const rafter_sink *sink, double seconds, double part, const char *format, ...) {
  char line[512];
  double left = part > 0 && part <= 1 ? seconds * (1 - part) / part : -1;
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  if (left < 0) rf_put_bar(sink, "%s", line);
  else if (left < 100) rf_put_bar(sink, "%s  %.0f s left", line, left);
  else if (left < 6000) rf_put_bar(sink, "%s  %.0f min left", line, left / 60);
  else rf_put_bar(sink, "%s  %.1f h left", line, left / 3600);
}

void rf_say_text(const rafter_sink *sink, char *text) {
  if (sink->text && text) sink->text(sink->self, text);
  free(text);
}

void rf_put_json(const rafter_sink *sink, json_t *json) {
  char *line = sink->json ? rf_json_text(json, 0) : NULL;
  if (line) sink->json(sink->self, line);
  free(line);
  json_decref(json);
}

bool rf_asked_to_stop(const rafter_sink *sink) { return rf_flag_is_set(sink->stop); }
