/* say.c - see say.h. */
#include "base/say.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"

void rf_say(const rafter_sink *sink, const char *format, ...) {
  char line[4096];
  va_list values;
  if (!sink->text) return;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  sink->text(sink->self, line);
}

void rf_note(const rafter_sink *sink, const char *format, ...) {
  char line[4096];
  va_list values;
  void (*put)(void *self, const char *text) = sink->note ? sink->note : sink->text;
  if (!put) return;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  put(sink->self, line);
}

void rf_say_text(const rafter_sink *sink, char *text) {
  if (sink->text && text) sink->text(sink->self, text);
  free(text);
}

void rf_put_bar(const rafter_sink *sink, const char *format, ...) {
  char line[512];
  va_list values;
  if (!sink->bar) return;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  sink->bar(sink->self, line);
}

void rf_put_json(const rafter_sink *sink, json_t *json) {
  char *line = sink->json ? rf_json_text(json, 0) : NULL;
  if (line) sink->json(sink->self, line);
  free(line);
  json_decref(json);
}

bool rf_asked_to_stop(const rafter_sink *sink) { return rf_flag_is_set(sink->stop); }
