/* tokenizer_added.c - finds added tokens in text. Of all matches with the first start, the longest
 * match counts. */
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

/* Finds the first sorted token in [low, high) whose byte at index `depth` is at least `byte`. */
static int first_row(const rf_matcher *matcher, int low, int high, size_t depth, int byte) {
  while (low < high) {
    int middle = low + (high - low) / 2;
    if ((unsigned char)matcher->at[middle].text.at[depth] < byte) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* Returns the longest added token that matches the text at `at`, or NULL. */
static const rf_added *longest_at(const rf_matcher *matcher, const char *at, const char *end, bool specials) {
  unsigned char c = (unsigned char)*at;
  int low = matcher->first[c], high = matcher->first[c + 1];
  const rf_added *best = NULL;
  /* At this point, all tokens in [low, high) begin with the first `depth` bytes of the text at
   * `at`. */
  for (size_t depth = 1; low < high; depth++) {
    const rf_added *row = matcher->at + low;
    if (row->text.bytes == depth) {
      if (specials || !row->special) best = row;
      if (++low == high) break;
    }
    if (at + depth >= end) break;
    c = (unsigned char)at[depth];
    high = first_row(matcher, low, high, depth, c + 1);
    low = first_row(matcher, low, high, depth, c);
  }
  return best;
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
    const char *after = from + found->text.bytes;
    if (found->single_word &&
        ((from > text && word_at(rf_utf8_before(text, from), end)) || (after < end && word_at(after, end)))) {
      from = after - 1;
      continue;
    }
    *start = from;
    *stop = after;
    *id = found->id;
    for (int n; found->lstrip && (n = rf_blank_before(at, *start, end));) *start -= n;
    for (int n; found->rstrip && (n = rf_blank_at(*stop, end));) *stop += n;
    return true;
  }
  return false;
}

void rf_matcher_free(rf_matcher *matcher) {
  for (int i = 0; i < matcher->count; i++) free((char *)matcher->at[i].text.at);
  free(matcher->at);
  *matcher = (rf_matcher){0};
}
