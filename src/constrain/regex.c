/* regex.c - regular expressions. An expression becomes a tree of parts, because a repeated part is
 * added several times. */
#include "constrain/grammar.h"
#include "text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NESTED = 100, COUNTS = 65535, NO_END = -1, LAST_CHAR = 0x10ffff };

typedef enum kind { NOTHING, CHARS, SEQUENCE, EITHER, REPEAT, BEGIN, END } kind;

typedef struct part {
  kind kind;
  int child, next; /* indices of the first child and of the next part of the same parent; -1: none */
  int low, high;   /* REPEAT: counts; NO_END: no maximum */
  rf_chars set;    /* CHARS */
} part;

typedef struct parser {
  const char *at, *end, *text, *where;
  part *part;
  int parts, room;
  int depth;
  rf_error *error;
} parser;

/* Fills the error with a reason, which has one %s for `what`. Returns -1. */
static int wrong(parser *p, const char *hint, const char *reason_format, const char *what) {
  const char *at = strstr(reason_format, "%s");
  char reason[200];
  snprintf(reason, sizeof reason, "%.*s%s%s", (int)(at - reason_format), reason_format, what, at + 2);
  RF_FAIL(p->error, RAFTER_INVALID, hint, "%s (%s, character %d)", reason, p->where, (int)(p->at - p->text));
  return -1;
}

static int new_part(parser *p, kind of, int child) {
  if (p->parts == p->room) {
    p->room = p->room ? 2 * p->room : 64;
    p->part = rf_must(realloc(p->part, (size_t)p->room * sizeof *p->part));
  }
  p->part[p->parts] = (part){.kind = of, .child = child, .next = -1};
  return p->parts++;
}

/* ---- characters ------------------------------------------------------------------------------ */

/* Adds the characters of \d, \w or \s. Returns false if the letter has another meaning. */
static bool add_named(rf_chars *set, char letter) {
  static const uint32_t DIGIT[] = {'0', '9', 1}, WORD[] = {'0', '9', 'A', 'Z', '_', '_', 'a', 'z', 1},
                        SPACE[] = {'\t', '\r', ' ', ' ', 1};
  char small = (char)(letter | 0x20);
  const uint32_t *ranges = small == 'd' ? DIGIT : small == 'w' ? WORD : small == 's' ? SPACE : NULL;
  rf_chars named = {0};
  if (!ranges) return false;
  for (; *ranges != 1; ranges += 2) rf_chars_add(&named, ranges[0], ranges[1]);
  if (letter != small) rf_chars_invert(&named);
  for (int i = 0; i < named.count; i++) rf_chars_add(set, named.range[i].low, named.range[i].high);
  rf_chars_free(&named);
  return true;
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* Reads the digits of \xHH, \uHHHH, \x{H...} and \u{H...}. */
static int read_hex(parser *p, int digits, uint32_t *code) {
  bool braces = p->at < p->end && *p->at == '{';
  int count = 0;
  *code = 0;
  if (braces) {
    p->at++;
    digits = 6;
  }
  for (; count < digits && p->at < p->end && hex_digit(*p->at) >= 0; count++)
    *code = *code * 16 + (uint32_t)hex_digit(*p->at++);
  if (braces ? !count || p->at == p->end || *p->at++ != '}' : count < digits)
    return wrong(p, NULL, "a character code has the wrong %s", "digits");
  if (*code > LAST_CHAR || (*code >= 0xd800 && *code <= 0xdfff))
    return wrong(p, NULL, "a character code is not a %s", "character");
  return 0;
}

static int refuse_escape(parser *p, char letter) {
  char name[3] = {'\\', letter, 0};
  if (letter >= '1' && letter <= '9')
    return wrong(p, "repeat the group itself", "backreferences are not supported (%s)", name);
  if (letter == 'p' || letter == 'P' || letter == 'X')
    return wrong(p, "write a class such as [a-z]", "Unicode properties are not supported (%s)", name);
  if (strchr("bBAzZG", letter)) return wrong(p, NULL, "this assertion is not supported (%s)", name);
  return wrong(p, NULL, "an escape is unknown (%s)", name);
}

/* Reads an escape after its backslash. *code is -1 if a named set was added to `set`. */
static int read_escape(parser *p, rf_chars *set, int64_t *code, bool in_class) {
  static const char FROM[] = "ntrfv0ae", TO[] = "\n\t\r\f\v\0\a\x1b";
  uint32_t hex;
  if (p->at == p->end) return wrong(p, NULL, "the expression ends with %s", "\\");
  char c = *p->at++;
  const char *known = c ? strchr(FROM, c) : NULL;
  *code = -1;
  if (c == 'b' && in_class) return *code = '\b', 0;
  if (known) return *code = (unsigned char)TO[known - FROM], 0;
  if (c == 'x' || c == 'u') {
    if (read_hex(p, c == 'x' ? 2 : 4, &hex) < 0) return -1;
    return *code = hex, 0;
  }
  if (add_named(set, c)) return 0;
  if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c & 0x80))
    return refuse_escape(p, c);
  return *code = c, 0;
}

static int64_t read_char(parser *p) {
  int bytes = rf_utf8_length(p->at, p->end);
  if (!bytes) return wrong(p, NULL, "the expression is not valid %s", "UTF-8");
  uint32_t code = rf_utf8_code(p->at, bytes);
  p->at += bytes;
  return code;
}

/* Reads one character of a class; *code is -1 for a named set. */
static int read_member(parser *p, rf_chars *set, int64_t *code) {
  if (*p->at == '\\') {
    p->at++;
    return read_escape(p, set, code, true);
  }
  if (*p->at == '[' && p->at + 1 < p->end && strchr(":.=", p->at[1]))
    return wrong(p, "write a class such as [a-z]", "POSIX classes are not supported (%s)", "[:name:]");
  *code = read_char(p);
  return *code < 0 ? -1 : 0;
}

static int read_class(parser *p) {
  int made = new_part(p, CHARS, -1);
  bool inverted = p->at < p->end && *p->at == '^', first = true;
  int64_t low, high;
  rf_chars set = {0};
  p->at += inverted;
  for (; p->at < p->end && (first || *p->at != ']'); first = false) {
    if (read_member(p, &set, &low) < 0) goto failed;
    bool range = p->end - p->at > 1 && *p->at == '-' && p->at[1] != ']';
    if (range) {
      p->at++;
      if (read_member(p, &set, &high) < 0) goto failed;
      if (low < 0 || high < low) {
        wrong(p, NULL, "the ends of a range are in the wrong %s", "order");
        goto failed;
      }
    } else high = low;
    if (low >= 0) rf_chars_add(&set, (uint32_t)low, (uint32_t)high);
  }
  if (p->at == p->end) {
    wrong(p, "write \\[ for the character", "a class has no %s", "]");
    goto failed;
  }
  p->at++;
  if (inverted) rf_chars_invert(&set);
  p->part[made].set = set;
  return made;
failed:
  rf_chars_free(&set);
  return -1;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static int read_either(parser *p);

static int read_group(parser *p) {
  if (p->at < p->end && *p->at == '?') {
    const char *a = p->at + 1;
    size_t left = (size_t)(p->end - a);
    if (left && (*a == '=' || *a == '!'))
      return wrong(p, NULL, "lookahead is not supported (%s)", *a == '=' ? "(?=" : "(?!");
    if (left > 1 && *a == '<' && (a[1] == '=' || a[1] == '!'))
      return wrong(p, NULL, "lookbehind is not supported (%s)", a[1] == '=' ? "(?<=" : "(?<!");
    if (left > 1 && *a == 'P' && a[1] == '<') a++;
    if (left && *a == '<') {
      while (a < p->end && *a != '>') a++;
      if (a == p->end) return wrong(p, NULL, "the name of a group has no %s", ">");
    } else if (!left || *a != ':')
      return wrong(p, NULL, "this group is not supported (%s)", "only (...), (?:...) and (?<name>...) are");
    p->at = a + 1;
  }
  if (++p->depth > NESTED) return wrong(p, NULL, "groups are nested too %s", "deeply");
  int inside = read_either(p);
  p->depth--;
  if (inside < 0) return -1;
  if (p->at == p->end) return wrong(p, "write \\( for the character", "a group has no %s", ")");
  p->at++;
  return inside;
}

static int one_char(parser *p, int64_t code) {
  int made = new_part(p, CHARS, -1);
  if (code >= 0) rf_chars_add(&p->part[made].set, (uint32_t)code, (uint32_t)code);
  return made;
}

static int read_one(parser *p) {
  int64_t code;
  int made;
  switch (*p->at) {
  case '(': p->at++; return read_group(p);
  case '[': p->at++; return read_class(p);
  case '^': p->at++; return new_part(p, BEGIN, -1);
  case '$': p->at++; return new_part(p, END, -1);
  case '.':
    p->at++;
    made = one_char(p, '\n');
    rf_chars_invert(&p->part[made].set);
    return made;
  case '\\':
    p->at++;
    made = new_part(p, CHARS, -1);
    rf_chars set = {0};
    int status = read_escape(p, &set, &code, false);
    if (status == 0 && code >= 0) rf_chars_add(&set, (uint32_t)code, (uint32_t)code);
    p->part[made].set = set;
    return status < 0 ? -1 : made;
  case '*':
  case '+':
  case '?': return wrong(p, "write a backslash before the character", "nothing is before a %s", "quantifier");
  default: code = read_char(p); return code < 0 ? -1 : one_char(p, code);
  }
}

/* Reads {m}, {m,} or {m,n}. Any other text after a brace is not a quantifier. */
static bool read_counts(parser *p, int *low, int *high) {
  const char *a = p->at + 1;
  int64_t number[2] = {0, NO_END};
  int digits = 0;
  for (; a < p->end && *a >= '0' && *a <= '9'; a++, digits++)
    if (number[0] <= COUNTS) number[0] = number[0] * 10 + (*a - '0');
  if (!digits || a == p->end) return false;
  if (*a == ',') {
    for (a++, digits = 0; a < p->end && *a >= '0' && *a <= '9'; a++, digits++)
      if (number[1] <= COUNTS) number[1] = (digits ? number[1] * 10 : 0) + (*a - '0');
  } else number[1] = number[0];
  if (a == p->end || *a != '}') return false;
  p->at = a + 1;
  *low = (int)number[0];
  *high = (int)number[1];
  return true;
}

/* Reads the quantifier after a part. */
static int read_repeat(parser *p, int inside) {
  int low = 0, high = NO_END, more[2];
  if (p->at == p->end || !*p->at || !strchr("*+?{", *p->at)) return inside;
  char c = *p->at;
  if (c == '{') {
    if (!read_counts(p, &low, &high)) return inside;
  } else {
    p->at++;
    low = c == '+';
    high = c == '?' ? 1 : NO_END;
  }
  if (low > COUNTS || high > COUNTS || (high != NO_END && high < low))
    return wrong(p, "use counts up to 65535, the smaller one first", "a quantifier is out of %s", "range");
  if (p->part[inside].kind == BEGIN || p->part[inside].kind == END)
    return wrong(p, NULL, "%s cannot be repeated", "an anchor");
  int made = new_part(p, REPEAT, inside);
  p->part[made].low = low;
  p->part[made].high = high;
  if (p->at < p->end && *p->at == '?') p->at++; /* a lazy quantifier matches the same texts */
  if (p->at < p->end && *p->at == '+')
    return wrong(p, NULL, "possessive quantifiers are not supported (%s)", "+");
  if (p->at < p->end && (*p->at == '*' || *p->at == '?' || (*p->at == '{' && read_counts(p, more, more + 1))))
    return wrong(p, "put the repeated part into a group", "a quantifier follows a %s", "quantifier");
  return made;
}

static int read_sequence(parser *p) {
  int made = new_part(p, SEQUENCE, -1), last = -1;
  while (p->at < p->end && *p->at != '|' && *p->at != ')') {
    int one = read_one(p);
    if (one >= 0) one = read_repeat(p, one);
    if (one < 0) return -1;
    if (last < 0) p->part[made].child = one;
    else p->part[last].next = one;
    last = one;
  }
  return made;
}

static int read_either(parser *p) {
  int made = new_part(p, EITHER, -1), last = -1;
  for (;;) {
    int one = read_sequence(p);
    if (one < 0) return -1;
    if (last < 0) p->part[made].child = one;
    else p->part[last].next = one;
    last = one;
    if (p->at == p->end || *p->at != '|') return made;
    p->at++;
  }
}

/* ---- states ---------------------------------------------------------------------------------- */

typedef struct adder {
  rf_grammar *g;
  parser *p;
  bool string;
} adder;

static void add_part(const adder *a, int index, int32_t from, int32_t to);

static void add_repeat(const adder *a, const part *of, int32_t from, int32_t to) {
  rf_grammar *g = a->g;
  for (int i = 0; i < of->low && !g->full; i++) {
    int32_t next = rf_grammar_state(g);
    add_part(a, of->child, from, next);
    from = next;
  }
  if (of->high == NO_END) {
    int32_t loop = rf_grammar_state(g), after = rf_grammar_state(g);
    rf_grammar_skip(g, from, loop);
    add_part(a, of->child, loop, after);
    rf_grammar_skip(g, after, loop);
    rf_grammar_skip(g, loop, to);
    return;
  }
  rf_grammar_skip(g, from, to);
  for (int i = of->low; i < of->high && !g->full; i++) {
    int32_t next = rf_grammar_state(g);
    add_part(a, of->child, from, next);
    rf_grammar_skip(g, next, to);
    from = next;
  }
}

static void add_part(const adder *a, int index, int32_t from, int32_t to) {
  const part *of = &a->p->part[index];
  switch (of->kind) {
  case CHARS: rf_grammar_chars(a->g, from, &of->set, a->string, to); break;
  case REPEAT: add_repeat(a, of, from, to); break;
  case EITHER:
    for (int i = of->child; i >= 0 && !a->g->full; i = a->p->part[i].next) {
      /* Each alternative begins in its own state, so that a loop inside it cannot enter the other
       * alternatives. */
      int32_t begin = rf_grammar_state(a->g);
      rf_grammar_skip(a->g, from, begin);
      add_part(a, i, begin, to);
    }
    break;
  case SEQUENCE:
    for (int i = of->child; i >= 0 && !a->g->full; i = a->p->part[i].next) {
      int32_t next = rf_grammar_state(a->g);
      add_part(a, i, from, next);
      from = next;
    }
    rf_grammar_skip(a->g, from, to);
    break;
  default: rf_grammar_skip(a->g, from, to); break;
  }
}

/* Finds anchors that are not at the ends of an alternative of the whole expression. */
static bool anchors_inside(const parser *p, int root) {
  bool allowed = true;
  int anchors = 0, found = 0;
  for (int i = 0; i < p->parts; i++) anchors += p->part[i].kind == BEGIN || p->part[i].kind == END;
  for (int s = p->part[root].child; s >= 0; s = p->part[s].next)
    for (int i = p->part[s].child, first = 1; i >= 0; i = p->part[i].next, first = 0) {
      if (p->part[i].kind != BEGIN && p->part[i].kind != END) continue;
      found++;
      allowed &= p->part[i].kind == BEGIN ? first : p->part[i].next < 0;
    }
  return !allowed || found < anchors;
}

static void add_any_text(rf_grammar *g, int32_t from, int32_t to) {
  rf_chars all = {0};
  int32_t loop = rf_grammar_state(g);
  rf_chars_add(&all, 0, LAST_CHAR);
  rf_grammar_skip(g, from, loop);
  rf_grammar_chars(g, loop, &all, true, loop);
  rf_grammar_skip(g, loop, to);
  rf_chars_free(&all);
}

/* Adds one alternative of a searched expression. */
static void add_searched(const adder *a, int sequence, int32_t from, int32_t to) {
  const part *of = a->p->part;
  bool begins = false, ends = false;
  for (int i = of[sequence].child; i >= 0; i = of[i].next) {
    begins |= of[i].kind == BEGIN;
    ends |= of[i].kind == END;
  }
  int32_t first = rf_grammar_state(a->g), last = rf_grammar_state(a->g);
  if (begins) rf_grammar_skip(a->g, from, first);
  else add_any_text(a->g, from, first);
  add_part(a, sequence, first, last);
  if (ends) rf_grammar_skip(a->g, last, to);
  else add_any_text(a->g, last, to);
}

rf_status rf_regex_add(rf_grammar *g, const char *regex, size_t bytes, rf_regex_form form, const char *where,
                       int32_t from, int32_t to, rf_error *error) {
  rf_error why = {.status = RAFTER_OK};
  parser p = {.at = regex, .text = regex, .end = regex + bytes, .where = where, .error = &why};
  int root = read_either(&p);
  if (root >= 0 && p.at < p.end) root = wrong(&p, "write \\) for the character", "a group has no %s", "(");
  if (root >= 0 && anchors_inside(&p, root))
    root =
        wrong(&p, "leave the anchor out: the expression always matches the whole text",
              "anchors are supported only at the %s", "beginning (^) and at the end ($) of the expression");
  if (root >= 0) {
    adder a = {g, &p, form != RF_REGEX_PLAIN};
    if (form != RF_REGEX_SEARCH) add_part(&a, root, from, to);
    for (int s = p.part[root].child; form == RF_REGEX_SEARCH && s >= 0; s = p.part[s].next)
      add_searched(&a, s, from, to);
  }
  for (int i = 0; i < p.parts; i++) rf_chars_free(&p.part[i].set);
  free(p.part);
  if (error && root < 0) *error = why;
  return root < 0 ? RAFTER_INVALID : RAFTER_OK;
}
