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
