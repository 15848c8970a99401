/* template_text.c - UTF-8 strings as in Python: counted, sliced and stripped by code points. */
#define _GNU_SOURCE /* memmem */
#include "text/template_parts.h"

#include <string.h>

bool rf_tpl_same(tpl_text a, tpl_text b) {
  return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.at, b.at, a.bytes) == 0);
}

bool rf_tpl_is(tpl_text a, const char *word) { return rf_tpl_same(a, (tpl_text){word, strlen(word)}); }

size_t rf_tpl_point(const char *at, size_t left, uint32_t *point) {
  static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
  if (left == 0) return 0;
  unsigned char first = (unsigned char)at[0];
  size_t bytes = first < 0x80   ? 1
                 : first < 0xc0 ? 0
                 : first < 0xe0 ? 2
                 : first < 0xf0 ? 3
                 : first < 0xf8 ? 4
                                : 0;
  if (bytes == 0 || bytes > left) return 0;
  uint32_t value = bytes == 1 ? first : first & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if (((unsigned char)at[i] & 0xc0) != 0x80) return 0;
    value = value << 6 | ((unsigned char)at[i] & 0x3f);
  }
  if (value < least[bytes] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return 0;
  *point = value;
  return bytes;
}

size_t rf_tpl_put_point(uint32_t point, char out[4]) {
  if (point < 0x80) {
    out[0] = (char)point;
    return 1;
  }
  size_t bytes = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (size_t i = bytes - 1; i > 0; --i, point >>= 6) out[i] = (char)(0x80 | (point & 0x3f));
  out[0] = (char)(lead[bytes] | point);
  return bytes;
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

bool rf_tpl_space(uint32_t point) {
  if (point < 0x80) return point == ' ' || (point >= 9 && point <= 13) || (point >= 0x1c && point <= 0x1f);
  if (point >= 0x2000 && point <= 0x200a) return true;
  static const uint16_t others[] = {0x85, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
  for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i)
    if (point == others[i]) return true;
  return false;
}

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
