/* utf8.c - see utf8.h. */
#include "text/utf8.h"

#include <stddef.h>
#include <string.h>
#include <utf8proc.h>

int rf_utf8_length(const char *at, const char *end) {
  const unsigned char *s = (const unsigned char *)at;
  ptrdiff_t left = end - at;
  if (left < 1) return 0;
  if (s[0] < 0x80) return 1;
  if (s[0] < 0xC2 || s[0] > 0xF4) return 0;
  int bytes = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
  if (left < bytes) return 0;
  for (int i = 1; i < bytes; i++)
    if ((s[i] & 0xC0) != 0x80) return 0;
  /* Rejects overlong forms, surrogates and codes above U+10FFFF. */
  if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF0 && s[1] < 0x90) ||
      (s[0] == 0xF4 && s[1] > 0x8F))
    return 0;
  return bytes;
}

uint32_t rf_utf8_code(const char *at, int bytes) {
  const unsigned char *s = (const unsigned char *)at;
  if (bytes == 1) return s[0];
  uint32_t code = s[0] & (0xFFu >> (bytes + 1));
  for (int i = 1; i < bytes; i++) code = code << 6 | (s[i] & 0x3Fu);
  return code;
}

const char *rf_utf8_valid(const char *at, const char *end) {
  while (at < end) {
    uint64_t eight;
    while (end - at >= 8 && (memcpy(&eight, at, 8), !(eight & UINT64_C(0x8080808080808080)))) at += 8;
    if (at >= end) break;
    int n = rf_utf8_length(at, end);
    if (!n) break;
    at += n;
  }
  return at;
}

int rf_utf8_put(uint32_t code, char out[4]) {
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  int bytes = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (int i = bytes - 1; i > 0; i--) {
    out[i] = (char)(0x80 | (code & 0x3F));
    code >>= 6;
  }
  out[0] = (char)((0xF00u >> bytes & 0xF0u) | code);
  return bytes;
}

bool rf_code_is_blank(uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool rf_code_is_word(uint32_t code) {
  if (code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9)) return true;
  switch (utf8proc_category((utf8proc_int32_t)code)) {
  case UTF8PROC_CATEGORY_LU:
  case UTF8PROC_CATEGORY_LL:
  case UTF8PROC_CATEGORY_LT:
  case UTF8PROC_CATEGORY_LM:
  case UTF8PROC_CATEGORY_LO:
  case UTF8PROC_CATEGORY_MN:
  case UTF8PROC_CATEGORY_MC:
  case UTF8PROC_CATEGORY_ME:
  case UTF8PROC_CATEGORY_ND:
  case UTF8PROC_CATEGORY_NL:
  case UTF8PROC_CATEGORY_PC: return true;
  default: return false;
  }
}

const char *rf_utf8_before(const char *text, const char *at) {
  do at--;
  while (at > text && (*at & 0xC0) == 0x80);
  return at;
}

int rf_blank_at(const char *at, const char *end) {
  int n = rf_utf8_length(at, end);
  return n && rf_code_is_blank(rf_utf8_code(at, n)) ? n : 0;
}

int rf_blank_before(const char *text, const char *at, const char *end) {
  if (at <= text) return 0;
  const char *last = rf_utf8_before(text, at);
  return rf_blank_at(last, end) ? (int)(at - last) : 0;
}
