/* tokenizer_added.c - finds added tokens in text: the leftmost match, and the longest one there. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>

rf_status rf_matcher_add(rf_matcher *matcher, const rf_added *added, rf_error *error) {
  if (matcher->count == matcher->capacity) {
    int capacity = matcher->capacity * 2 + 16;
    rf_added *grown = realloc(matcher->at, (size_t)capacity * sizeof *grown);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    matcher->at = grown;
    matcher->capacity = capacity;
  }
  char *text = malloc(added->text.bytes + 1);
  if (!text) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  memcpy(text, added->text.at, added->text.bytes);
  rf_added *row = &matcher->at[matcher->count++];
  *row = *added;
  row->text.at = text;
  return RAFTER_OK;
}

static int by_text(const void *a, const void *b) {
  rf_span x = ((const rf_added *)a)->text, y = ((const rf_added *)b)->text;
  int order = memcmp(x.at, y.at, x.bytes < y.bytes ? x.bytes : y.bytes);
  return order ? order : (x.bytes > y.bytes) - (x.bytes < y.bytes);
}

rf_status rf_matcher_sort(rf_matcher *matcher, const char *where, rf_error *error) {
  if (matcher->count) qsort(matcher->at, (size_t)matcher->count, sizeof *matcher->at, by_text);
  for (int i = 1; i < matcher->count; i++)
    if (!by_text(matcher->at + i - 1, matcher->at + i))
      return RF_FAIL(error, RAFTER_FAILED, NULL, "a token is added twice (%s: '%.*s', ids %d and %d)", where,
                     (int)matcher->at[i].text.bytes, matcher->at[i].text.at, matcher->at[i - 1].id,
                     matcher->at[i].id);
  for (int byte = 0, i = 0; byte <= 256; byte++) {
    while (i < matcher->count && (unsigned char)matcher->at[i].text.at[0] < byte) i++;
    matcher->first[byte] = i;
  }
  return RAFTER_OK;
}

/* The longest acceptable token at `at`, or NULL. */
static const rf_added *longest_at(const rf_matcher *matcher, const char *at, const char *end, bool specials) {
  unsigned char c = (unsigned char)*at;
  int low = matcher->first[c], high = matcher->first[c + 1];
  const rf_added *best = NULL;
  /* All tokens in [low, high) begin with the `depth` bytes at `at`. */
  for (size_t depth = 1; low < high; depth++) {
    const rf_added *row = matcher->at + low;
    if (row->text.bytes == depth) {
      if (specials || !row->special) best = row;
      if (++low == high) break;
    }
    if (at + depth >= end) break;
    c = (unsigned char)at[depth];
    for (int width = high - low; width > 0;) { /* the first row with a byte >= c */
      int half = width / 2;
      if ((unsigned char)matcher->at[low + half].text.at[depth] < c) {
        low += half + 1;
        width -= half + 1;
      } else width = half;
    }
    int from = low;
    for (int width = high - low; width > 0;) { /* the first row with a byte > c */
      int half = width / 2;
      if ((unsigned char)matcher->at[from + half].text.at[depth] <= c) {
        from += half + 1;
        width -= half + 1;
      } else width = half;
    }
    high = from;
  }
  return best;
}

static const char *before(const char *text, const char *at) {
  do at--;
  while (at > text && (*at & 0xC0) == 0x80);
  return at;
}

static bool word_at(const char *at, const char *end) {
  int n = rf_utf8_length(at, end);
  return n && rf_code_is_word(rf_utf8_code(at, n));
}

bool rf_matcher_next(const rf_matcher *matcher, const char *text, const char *at, const char *end,
                     bool specials, const char **start, const char **stop, int32_t *id) {
  if (!matcher->count) return false;
  for (const char *from = at; from < end; from++) {
    unsigned char c = (unsigned char)*from;
    if (matcher->first[c] == matcher->first[c + 1]) continue;
    const rf_added *found = longest_at(matcher, from, end, specials);
    if (!found) continue;
    const char *behind = from + found->text.bytes;
    if (found->single_word &&
        ((from > text && word_at(before(text, from), end)) || (behind < end && word_at(behind, end)))) {
      from = behind - 1;
      continue;
    }
    *start = from;
    *stop = behind;
    *id = found->id;
    while (found->lstrip && *start > at) {
      const char *left = before(at, *start);
      int n = rf_utf8_length(left, end);
      if (!n || !rf_code_is_blank(rf_utf8_code(left, n))) break;
      *start = left;
    }
    while (found->rstrip && *stop < end) {
      int n = rf_utf8_length(*stop, end);
      if (!n || !rf_code_is_blank(rf_utf8_code(*stop, n))) break;
      *stop += n;
    }
    return true;
  }
  return false;
}

void rf_matcher_free(rf_matcher *matcher) {
  for (int i = 0; i < matcher->count; i++) free((char *)matcher->at[i].text.at);
  free(matcher->at);
  *matcher = (rf_matcher){0};
}
