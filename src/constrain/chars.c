/* chars.c - sets of characters, and the bytes of their UTF-8. */
#include "constrain/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAST_CHAR = 0x10ffff, SURROGATES = 0xd800, SURROGATES_END = 0xdfff };

void rf_chars_free(rf_chars *set) {
  free(set->range);
  *set = (rf_chars){0};
}

void rf_chars_add(rf_chars *set, uint32_t low, uint32_t high) {
  int at = 0, end;
  while (at < set->count && set->range[at].high + 1 < low) at++;
  for (end = at; end < set->count && set->range[end].low <= high + 1; end++) {
    if (set->range[end].low < low) low = set->range[end].low;
    if (set->range[end].high > high) high = set->range[end].high;
  }
  if (set->count == set->room) {
    set->room = set->room ? 2 * set->room : 8;
    set->range = rf_must(realloc(set->range, (size_t)set->room * sizeof *set->range));
  }
  memmove(set->range + at + 1, set->range + end, (size_t)(set->count - end) * sizeof *set->range);
  set->range[at] = (struct rf_char_range){low, high};
  set->count += 1 - (end - at);
}

void rf_chars_invert(rf_chars *set) {
  rf_chars other = {0};
  uint32_t next = 0;
  for (int i = 0; i < set->count; i++) {
    if (set->range[i].low > next) rf_chars_add(&other, next, set->range[i].low - 1);
    next = set->range[i].high + 1;
  }
  if (next <= LAST_CHAR) rf_chars_add(&other, next, LAST_CHAR);
  rf_chars_free(set);
  *set = other;
}

/* States after which n bytes of 80 to BF follow until the end of the character. 0: the state was
 * not made yet. */
typedef struct tails {
  int32_t after[4];
} tails;

static int32_t tail(rf_grammar *g, tails *t, int bytes) {
  if (!t->after[bytes]) {
    int32_t to = tail(g, t, bytes - 1);
    t->after[bytes] = rf_grammar_state(g);
    rf_grammar_bytes(g, t->after[bytes], 0x80, 0xbf, to);
  }
  return t->after[bytes];
}

/* Adds the last `bytes` bytes of the characters low to high. All earlier bytes of these characters
 * are equal. */
static void add_bytes(rf_grammar *g, int32_t from, uint32_t low, uint32_t high, int bytes, int total,
                      tails *t) {
  static const uint8_t LEAD[] = {0, 0, 0xc0, 0xe0, 0xf0};
  int shift = 6 * (bytes - 1);
  uint32_t mask = ((uint32_t)1 << shift) - 1, first = low >> shift, last = high >> shift;
  uint32_t mark = bytes == total ? LEAD[total] : 0x80;
  if (total > 1 && bytes < total) {
    first &= 0x3f;
    last &= 0x3f;
  }
  if (bytes == 1) {
    rf_grammar_bytes(g, from, (int)(mark | first), (int)(mark | last), t->after[0]);
    return;
  }
  bool cut_low = (low & mask) != 0, cut_high = (high & mask) != mask;
  if (first == last && (cut_low || cut_high)) {
    int32_t to = rf_grammar_state(g);
    rf_grammar_bytes(g, from, (int)(mark | first), (int)(mark | first), to);
    add_bytes(g, to, low, high, bytes - 1, total, t);
    return;
  }
  if (cut_low) {
    add_bytes(g, from, low, low | mask, bytes, total, t);
    first++;
  }
  if (cut_high) {
    add_bytes(g, from, high & ~mask, high, bytes, total, t);
    last--;
  }
  if (first <= last)
    rf_grammar_bytes(g, from, (int)(mark | first), (int)(mark | last), tail(g, t, bytes - 1));
}

static void add_range(rf_grammar *g, int32_t from, uint32_t low, uint32_t high, tails *t) {
  static const uint32_t END[] = {0, 0x7f, 0x7ff, 0xffff, LAST_CHAR};
  for (int bytes = 1; bytes <= 4; bytes++) {
    uint32_t begin = bytes == 1 ? 0 : END[bytes - 1] + 1, a = low > begin ? low : begin,
             b = high < END[bytes] ? high : END[bytes];
    if (a <= b) add_bytes(g, from, a, b, bytes, bytes, t);
  }
}

/* Surrogates have no UTF-8. */
static void add_plain(rf_grammar *g, int32_t from, uint32_t low, uint32_t high, tails *t) {
  if (low < SURROGATES) add_range(g, from, low, high < SURROGATES ? high : SURROGATES - 1, t);
  if (high > SURROGATES_END) add_range(g, from, low > SURROGATES_END ? low : SURROGATES_END + 1, high, t);
}

/* Adds a character that JSON strings escape. NUL has no edge, because many readers refuse it. */
static void add_escape(rf_grammar *g, int32_t from, uint32_t code, int32_t to) {
  static const char NAMES[] = "\b\f\n\r\t\"\\", LETTERS[] = "bfnrt\"\\";
  char text[8];
  const char *name = code ? strchr(NAMES, (int)code) : NULL;
  if (name) snprintf(text, sizeof text, "\\%c", LETTERS[name - NAMES]);
  else snprintf(text, sizeof text, "\\u%04x", (unsigned)code);
  if (code) rf_grammar_skip(g, rf_grammar_text(g, from, text, strlen(text)), to);
}

void rf_grammar_chars(rf_grammar *g, int32_t from, const rf_chars *set, bool string, int32_t to) {
  tails t = {{to}};
  for (int i = 0; i < set->count && !g->full; i++) {
    uint32_t low = set->range[i].low, high = set->range[i].high;
    for (uint32_t c = low; string && c <= high && c <= '\\'; c++)
      if (c < 0x20 || c == '"' || c == '\\') add_escape(g, from, c, to);
    if (!string) {
      add_plain(g, from, low, high, &t);
      continue;
    }
    const struct rf_char_range plain[] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, LAST_CHAR}};
    for (int k = 0; k < 3; k++) {
      uint32_t a = low > plain[k].low ? low : plain[k].low, b = high < plain[k].high ? high : plain[k].high;
      if (a <= b) add_plain(g, from, a, b, &t);
    }
  }
}
