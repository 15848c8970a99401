/* template_lex.c - splits a template into tokens. Tokens are the trimmed text between tags, and the
 * words and operators inside tags. The rules are the rules of Jinja 3 with trim_blocks and
 * lstrip_blocks. */
#include "text/template_parts.h"
#include "text/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct lexer {
  const rf_template *parsed;
  tpl_text source;
  size_t at;
  tpl_token *token;
  size_t count, capacity;
  rf_error *error;
} lexer;

static tpl_token *add_token(lexer *l, tpl_token_kind kind, size_t at) {
  if (l->count == l->capacity) {
    l->capacity = l->capacity ? l->capacity * 2 : 64;
    tpl_token *larger = rf_pool_alloc(l->parsed->pool, l->capacity * sizeof *larger);
    if (l->count) memcpy(larger, l->token, l->count * sizeof *larger);
    l->token = larger;
  }
  tpl_token *token = &l->token[l->count++];
  *token = (tpl_token){.kind = kind, .at = at};
  return token;
}

static char peek_char(const lexer *l, size_t ahead) {
  return l->at + ahead < l->source.bytes ? l->source.at[l->at + ahead] : 0;
}

static bool next_is(const lexer *l, const char *word) {
  size_t n = strlen(word);
  return l->source.bytes - l->at >= n && memcmp(l->source.at + l->at, word, n) == 0;
}

static void skip_space(lexer *l) {
  tpl_text rest = {l->source.at + l->at, l->source.bytes - l->at};
  l->at = l->source.bytes - rf_tpl_strip(rest, (tpl_text){0}, 1).bytes;
}

/* Removes white space after a block or comment. If the tag ends with '-', all following white space
 * is removed. If the tag ends with '+', no white space is removed. Otherwise removes one
 * newline. */
static void trim_after(lexer *l, char sign) {
  if (sign == '-') skip_space(l);
  else if (sign != '+' && peek_char(l, 0) == '\n') ++l->at;
}

/* ---- strings and numbers --------------------------------------------------------------------- */

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes one escape of Python's "unicode_escape"; l->at is after the backslash. */
static rf_status read_escape(lexer *l, char *out, size_t *bytes) {
  static const char plain[] = "\\'\"abfnrtv", means[] = "\\'\"\a\b\f\n\r\t\v";
  size_t at = l->at - 1;
  char c = peek_char(l, 0);
  ++l->at;
  if (c == '\n') return RAFTER_OK;
  const char *found = c ? strchr(plain, c) : NULL;
  if (found) {
    out[(*bytes)++] = means[found - plain];
    return RAFTER_OK;
  }
  uint32_t point = 0;
  if (c >= '0' && c <= '7') {
    --l->at;
    for (int i = 0; i < 3 && peek_char(l, 0) >= '0' && peek_char(l, 0) <= '7'; ++i)
      point = point * 8 + (uint32_t)(l->source.at[l->at++] - '0');
  } else if (c == 'x' || c == 'u' || c == 'U') {
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    for (int i = 0; i < digits; ++i) {
      int digit = hex_digit(peek_char(l, 0));
      if (digit < 0)
        return TPL_FAIL_AT(l->parsed, at, l->error, "the escape \\%c needs %d hexadecimal digits", c, digits);
      point = point << 4 | (uint32_t)digit;
      ++l->at;
    }
    if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
      return TPL_FAIL_AT(l->parsed, at, l->error, "the escape \\%c names no character (U+%04X)", c, point);
  } else if (c == 'N' || (unsigned char)c >= 0x80) {
    return TPL_FAIL_AT(l->parsed, at, l->error, "a backslash before %s is not supported",
                       c == 'N' ? "N" : "a non-ASCII character");
  } else { /* Python keeps an unknown escape unchanged */
    out[(*bytes)++] = '\\';
    out[(*bytes)++] = c;
    return RAFTER_OK;
  }
  *bytes += (size_t)rf_utf8_put(point, out + *bytes);
  return RAFTER_OK;
}

static rf_status lex_text(lexer *l) {
  size_t start = l->at, length = 0;
  char quote = peek_char(l, 0);
  while (start + 1 + length < l->source.bytes && l->source.at[start + 1 + length] != quote)
    length += l->source.at[start + 1 + length] == '\\' ? 2 : 1;
  size_t end = start + 1 + length;
  if (end >= l->source.bytes)
    return TPL_FAIL_AT(l->parsed, start, l->error, "a string that starts with %c does not end", quote);
  char *out = rf_pool_alloc(l->parsed->pool, length + 1); /* an escape is never shorter than its character */
  size_t bytes = 0;
  for (l->at = start + 1; l->at < end;) {
    char c = l->source.at[l->at++];
    if (c != '\\') out[bytes++] = c;
    else RF_TRY(read_escape(l, out, &bytes));
  }
  if (l->at != end)
    return TPL_FAIL_AT(l->parsed, start, l->error, "an escape continues after the end of its string");
  ++l->at;
  add_token(l, TOKEN_TEXT, start)->text = (tpl_text){out, bytes};
  return RAFTER_OK;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool starts_name(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static rf_status lex_number(lexer *l) {
  size_t start = l->at, n = 0;
  while (is_digit(peek_char(l, n))) ++n;
  size_t whole = n, exponent;
  bool real = false;
  if (peek_char(l, n) == '.' && is_digit(peek_char(l, n + 1))) {
    real = true;
    for (++n; is_digit(peek_char(l, n));) ++n;
  }
  exponent = n + 1 + (peek_char(l, n + 1) == '+' || peek_char(l, n + 1) == '-');
  if ((peek_char(l, n) | 0x20) == 'e' && is_digit(peek_char(l, exponent))) {
    real = true;
    for (n = exponent; is_digit(peek_char(l, n));) ++n;
  }
  if (starts_name(peek_char(l, n)) || n > 60)
    return TPL_FAIL_AT(l->parsed, start, l->error, "this form of a number is not supported");
  if (!real && whole > 1 && peek_char(l, 0) == '0') {
    for (size_t i = 0; i < whole; ++i)
      if (peek_char(l, i) != '0')
        return TPL_FAIL_AT(l->parsed, start, l->error, "a number must not start with 0");
  }
  char text[64];
  memcpy(text, l->source.at + start, n);
  text[n] = 0;
  tpl_token *token = add_token(l, real ? TOKEN_FLOAT : TOKEN_INT, start);
  errno = 0;
  if (real) token->real = strtod(text, NULL);
  else token->whole = strtoll(text, NULL, 10);
  if (!real && errno) return TPL_FAIL_AT(l->parsed, start, l->error, "the number %s is too large", text);
  l->at += n;
  return RAFTER_OK;
}

/* ---- inside tags ----------------------------------------------------------------------------- */

static rf_status lex_operator(lexer *l, char *open, int *opened) {
  static const char *const two[] = {"==", "!=", "<=", ">=", "//", "**"};
  static const char one[] = "+-*/%~()[]{}<>=.:|,;";
  char c = peek_char(l, 0);
  for (size_t i = 0; i < sizeof two / sizeof two[0]; ++i)
    if (next_is(l, two[i])) {
      add_token(l, TOKEN_OPERATOR, l->at)->op = TPL_OP(two[i][0], two[i][1]);
      l->at += 2;
      return RAFTER_OK;
    }
  if (!c || !strchr(one, c)) {
    uint32_t point = 0;
    rf_tpl_point(l->source.at + l->at, l->source.bytes - l->at, &point);
    return TPL_FAIL_AT(l->parsed, l->at, l->error, "unexpected character (U+%04X)", point);
  }
  if (c == '(' || c == '[' || c == '{') {
    if (*opened == TPL_TREE_DEPTH)
      return TPL_FAIL_AT(l->parsed, l->at, l->error, "brackets nest more than %d deep", TPL_TREE_DEPTH);
    open[(*opened)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
  } else if (c == ')' || c == ']' || c == '}') {
    if (*opened == 0 || open[*opened - 1] != c)
      return TPL_FAIL_AT(l->parsed, l->at, l->error, "unexpected '%c'", c);
    --*opened;
  }
  add_token(l, TOKEN_OPERATOR, l->at)->op = c;
  ++l->at;
  return RAFTER_OK;
}

/* Reads a tag up to }} or %}. Inside brackets, }} does not end a tag: {{ {'a': {}} }}. */
static rf_status lex_inside(lexer *l, bool block, size_t start) {
  const char *end = block ? "%}" : "}}";
  char open[TPL_TREE_DEPTH];
  int opened = 0;
  for (;;) {
    char c = peek_char(l, 0);
    if (l->at >= l->source.bytes)
      return TPL_FAIL_AT(l->parsed, start, l->error, "the tag that starts here does not end (expected %s)",
                         end);
    bool sign = c == '-' || (block && c == '+');
    l->at += sign;
    bool ends = opened == 0 && next_is(l, end);
    l->at -= sign;
    if (ends) {
      add_token(l, block ? TOKEN_BLOCK_END : TOKEN_PRINT_END, l->at);
      l->at += sign + 2u;
      if (block || sign) trim_after(l, sign ? c : 0);
      return RAFTER_OK;
    }
    size_t before = l->at;
    skip_space(l);
    if (l->at != before) continue;
    if (starts_name(c)) {
      size_t n = 1;
      while (starts_name(peek_char(l, n)) || is_digit(peek_char(l, n))) ++n;
      add_token(l, TOKEN_NAME, l->at)->text = (tpl_text){l->source.at + l->at, n};
      l->at += n;
    } else if (is_digit(c)) {
      RF_TRY(lex_number(l));
    } else if (c == '\'' || c == '"') {
      RF_TRY(lex_text(l));
    } else {
      RF_TRY(lex_operator(l, open, &opened));
    }
  }
}

static rf_status lex_comment(lexer *l, size_t start) {
  size_t end = rf_tpl_find(l->source, TPL_TEXT("#}"), l->at);
  if (end == SIZE_MAX)
    return TPL_FAIL_AT(l->parsed, start, l->error, "the comment that starts here does not end");
  char sign = 0;
  if (end > l->at) sign = l->source.at[end - 1];
  l->at = end + 2;
  trim_after(l, sign);
  return RAFTER_OK;
}

/* Removes the white space before a block or comment if only white space precedes the tag on its
 * line. */
static tpl_text trim_line(const lexer *l, tpl_text data, size_t from) {
  size_t line = data.bytes;
  while (line > 0 && data.at[line - 1] != '\n') --line;
  if (line == 0 && from > 0 && l->source.at[from - 1] != '\n') return data;
  tpl_text last = {data.at + line, data.bytes - line};
  if (rf_tpl_strip(last, (tpl_text){0}, 1).bytes == 0) data.bytes = line;
  return data;
}

rf_status rf_tpl_lex(const rf_template *parsed, tpl_token **tokens, rf_error *error) {
  lexer l = {.parsed = parsed, .source = parsed->source, .error = error};
  while (l.at < l.source.bytes) {
    size_t from = l.at, tag = from;
    for (; tag + 1 < l.source.bytes; ++tag)
      if (l.source.at[tag] == '{' && memchr("{%#", l.source.at[tag + 1], 3)) break;
    bool found = tag + 1 < l.source.bytes;
    char kind = found ? l.source.at[tag + 1] : 0;
    tpl_text data = {l.source.at + from, (found ? tag : l.source.bytes) - from};
    l.at = found ? tag + 2 : l.source.bytes;
    char sign = found ? peek_char(&l, 0) : 0;
    if (sign == '-' || sign == '+') ++l.at;
    if (sign == '-') data = rf_tpl_strip(data, (tpl_text){0}, 2);
    else if (found && sign != '+' && kind != '{') data = trim_line(&l, data, from);
    if (data.bytes) add_token(&l, TOKEN_DATA, from)->text = data;
    if (!found) break;
    if (kind == '#') {
      RF_TRY(lex_comment(&l, tag));
      continue;
    }
    add_token(&l, kind == '%' ? TOKEN_BLOCK : TOKEN_PRINT, tag);
    RF_TRY(lex_inside(&l, kind == '%', tag));
  }
  add_token(&l, TOKEN_END, l.source.bytes);
  *tokens = l.token;
  return RAFTER_OK;
}
