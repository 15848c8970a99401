/* template_text.c - UTF-8 strings as in Python, which are counted, sliced and stripped by code
 * points. */
#define _GNU_SOURCE /* memmem */
#include "text/template_parts.h"
#include "text/utf8.h"

#include <string.h>

bool rf_tpl_same(tpl_text a, tpl_text b) {
  return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.at, b.at, a.bytes) == 0);
}

bool rf_tpl_is(tpl_text a, const char *word) { return rf_tpl_same(a, (tpl_text){word, strlen(word)}); }

size_t rf_tpl_point(const char *at, size_t left, uint32_t *point) {
  int bytes = left ? rf_utf8_length(at, at + left) : 0;
  if (bytes) *point = rf_utf8_code(at, bytes);
  return (size_t)bytes;
}

static bool starts_point(char c) { return ((unsigned char)c & 0xc0) != 0x80; }

int64_t rf_tpl_points(tpl_text text) {
  int64_t count = 0;
  for (size_t i = 0; i < text.bytes; ++i) count += starts_point(text.at[i]);
  return count;
}

size_t rf_tpl_offset(tpl_text text, int64_t index) {
  size_t i = 0;
  for (; i < text.bytes; ++i)
    if (starts_point(text.at[i]) && index-- == 0) break;
  return i;
}

bool rf_tpl_space(uint32_t point) { return rf_code_is_blank(point) || (point >= 0x1c && point <= 0x1f); }

static bool in_set(tpl_text set, const char *at, size_t bytes) {
  uint32_t point;
  if (!set.at) return rf_tpl_point(at, bytes, &point) && rf_tpl_space(point);
  for (size_t i = 0, n; i < set.bytes; i += n) {
    n = rf_tpl_point(set.at + i, set.bytes - i, &point);
    if (n == 0) return false;
    if (n == bytes && memcmp(set.at + i, at, n) == 0) return true;
  }
  return false;
}

tpl_text rf_tpl_strip(tpl_text text, tpl_text set, int sides) {
  uint32_t point;
  while ((sides & 1) && text.bytes) {
    size_t n = rf_tpl_point(text.at, text.bytes, &point);
    if (n == 0 || !in_set(set, text.at, n)) break;
    text.at += n;
    text.bytes -= n;
  }
  while ((sides & 2) && text.bytes) {
    size_t n = 1;
    while (n < text.bytes && !starts_point(text.at[text.bytes - n])) ++n;
    if (!in_set(set, text.at + text.bytes - n, n)) break;
    text.bytes -= n;
  }
  return text;
}

size_t rf_tpl_find(tpl_text text, tpl_text part, size_t from) {
  if (from > text.bytes || part.bytes > text.bytes - from) return SIZE_MAX;
  if (part.bytes == 0) return from;
  const char *found = memmem(text.at + from, text.bytes - from, part.at, part.bytes);
  return found ? (size_t)(found - text.at) : SIZE_MAX;
}
