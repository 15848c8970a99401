/* text.c - parsers for numbers and names that people type. */
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool rf_text_int(const char *text, int64_t *value) {
  if (!text || !(isdigit((unsigned char)text[0]) || (text[0] == '-' && isdigit((unsigned char)text[1]))))
    return false;
  char *end;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  if (errno || *end) return false;
  *value = number;
  return true;
}

bool rf_text_float(const char *text, double *value) {
  if (!text || !(isdigit((unsigned char)text[0]) || text[0] == '-' || text[0] == '.')) return false;
  for (const char *c = text; *c; ++c) /* the parser refuses hexadecimal numbers, infinity and NaN */
    if (!strchr("0123456789.eE+-", *c)) return false;
  char *end;
  errno = 0;
  double number = strtod(text, &end);
  if (end == text || *end || !isfinite(number)) return false;
  *value = number;
  return true;
}

bool rf_text_bool(const char *text, bool *value) {
  static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
  for (int i = 0; text && i < 8; ++i)
    if (strcasecmp(text, words[i]) == 0) {
      *value = i & 1;
      return true;
    }
  return false;
}

bool rf_text_ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

void rf_text_real(double value, char text[40]) {
  for (int digits = 15; digits <= 17; ++digits) {
    snprintf(text, 40, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
}

void rf_text_append(char *buffer, size_t size, const char *format, ...) {
  size_t used = strnlen(buffer, size);
  if (used + 1 >= size) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(buffer + used, size - used, format, arguments);
  va_end(arguments);
}

const char *rf_plural(int64_t count) { return count == 1 ? "" : "s"; }

/* From this factor on, a percentage is hard to read. For example, 91.5 % less time is 11.7 x
 * faster. */
static const double FACTOR = 2;

static int decimals(double factor) { return factor < 10 ? 2 : factor < 100 ? 1 : 0; }

const char *rf_text_speed(double before, double after, char text[32]) {
  const double faster = before / after, slower = after / before;
  if (!(before > 0) || !(after > 0)) snprintf(text, 32, "no time");
  else if (faster >= FACTOR) snprintf(text, 32, "%.*f x faster", decimals(faster), faster);
  else if (slower >= FACTOR) snprintf(text, 32, "%.*f x slower", decimals(slower), slower);
  else
    snprintf(text, 32, "%.1f %% %s time", 100 * (slower < 1 ? 1 - slower : slower - 1),
             slower < 1 ? "less" : "more");
  return text;
}

const char *rf_text_ratio(double before, double after, char text[32]) {
  const double more = after / before, less = before / after;
  if (more >= FACTOR) snprintf(text, 32, "%.*f x", decimals(more), more);
  else if (less >= FACTOR) snprintf(text, 32, "1/%.*f", decimals(less), less);
  else snprintf(text, 32, "%+.1f %%", fabs(more - 1) < 0.0005 ? 0 : 100 * (more - 1)); /* not -0.0 */
  return text;
}

static int letter(char c) { return c == '_' ? '-' : tolower((unsigned char)c); }

int rf_edit_distance(const char *a, const char *b) {
  enum { LONGEST = 63 }; /* the comparison ignores letters after the 63rd */
  int rows[3][LONGEST + 1], *before = rows[0], *last = rows[1], *now = rows[2];
  int n = (int)strnlen(a, LONGEST), m = (int)strnlen(b, LONGEST);
  for (int j = 0; j <= m; ++j) last[j] = j;
  for (int i = 1; i <= n; ++i) {
    now[0] = i;
    for (int j = 1; j <= m; ++j) {
      bool same = letter(a[i - 1]) == letter(b[j - 1]);
      int least = last[j - 1] + !same;
      if (last[j] + 1 < least) least = last[j] + 1;
      if (now[j - 1] + 1 < least) least = now[j - 1] + 1;
      bool swapped =
          i > 1 && j > 1 && letter(a[i - 1]) == letter(b[j - 2]) && letter(a[i - 2]) == letter(b[j - 1]);
      if (swapped && before[j - 2] + 1 < least) least = before[j - 2] + 1;
      now[j] = least;
    }
    int *spare = before;
    before = last;
    last = now;
    now = spare;
  }
  return last[m];
}

const char *rf_nearest(const char *word, const char *const *names, int count) {
  const char *best = NULL;
  /* words with this distance or more are not similar */
  int least = (int)strlen(word) <= 3 ? 2 : (int)strlen(word) / 3 + 2;
  for (int i = 0; i < count; ++i) {
    int distance = names[i] ? rf_edit_distance(word, names[i]) : least;
    if (distance >= least) continue;
    least = distance;
    best = names[i];
  }
  return best;
}

const rf_synonym *rf_synonym_of(const rf_synonym *table, const rf_synonym *from, const char *word,
                                size_t length) {
  for (const rf_synonym *row = from ? from + 1 : table; row && row->said; row++) {
    size_t i = 0;
    while (i < length && row->said[i] && row->said[i] == (word[i] == '_' ? '-' : word[i])) i++;
    if (i == length && !row->said[i]) return row;
  }
  return NULL;
}
