/* template_filters.c - the table of filters. The filters on lists are in template_lists.c. */
#include "text/template_lists.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- functions that filters and methods share ------------------------------------------------ */

rf_status rf_tpl_wants_text(tpl_run *run, const tpl_value *value, const char *what, tpl_text *text) {
  if (value->kind != TPL_STRING)
    return TPL_FAIL(run, "%s must be a string, not %s", what, rf_tpl_kind_name(value));
  *text = value->text;
  return RAFTER_OK;
}

rf_status rf_tpl_wants_whole(tpl_run *run, const tpl_value *value, const char *what, int64_t otherwise,
                             int64_t *whole) {
  *whole = otherwise;
  if (!TPL_GIVEN(*value) || rf_tpl_whole(value, whole)) return RAFTER_OK;
  return TPL_FAIL(run, "%s must be an integer, not %s", what, rf_tpl_kind_name(value));
}

/* True if the character belongs to a script without upper and lower case. For other non-ASCII
 * characters, a change of case would need Python's tables (ß becomes SS). */
static bool has_no_case(uint32_t point) {
  static const uint32_t ranges[][2] = {
      {0xa0, 0xa9},     {0x5d0, 0x6ff},   {0x900, 0xe7f},   {0x2000, 0x206f},   {0x3000, 0x312f},
      {0x3400, 0x9fff}, {0xac00, 0xd7a3}, {0xfe0f, 0xfe0f}, {0x1f300, 0x1faff}, {0x20000, 0x2a6d6}};
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; ++i)
    if (point >= ranges[i][0] && point <= ranges[i][1]) return true;
  return false;
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static char to_upper(char c) { return c >= 'a' && c <= 'z' ? (char)(c - 32) : c; }
static char to_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

rf_status rf_tpl_case(tpl_run *run, tpl_text text, int how, tpl_value *result) {
  char *out;
  RF_TRY(rf_tpl_step(run, text.bytes / 8));
  RF_TRY(rf_tpl_room(run, text.bytes, 1, &out));
  for (size_t i = 0; i < text.bytes; ++i) {
    char c = text.at[i];
    uint32_t point = 0;
    bool follows = ((unsigned char)c & 0xc0) == 0x80; /* a continuation byte, because `text` is valid UTF-8 */
    if ((unsigned char)c >= 0x80 && !follows &&
        (!rf_tpl_point(text.at + i, text.bytes - i, &point) || !has_no_case(point)))
      return TPL_FAIL(run, "changing the case of U+%04X is not supported (only of ASCII)", point);
    bool starts = i == 0 || (how == 't' && !is_letter(text.at[i - 1]));
    out[i] = how == 'u' || (starts && how != 'l') ? to_upper(c) : to_lower(c);
  }
  *result = tpl_string(out, text.bytes);
  return RAFTER_OK;
}

rf_status rf_tpl_replace(tpl_run *run, tpl_text text, tpl_text old, tpl_text new, int64_t most,
                         tpl_value *result) {
  if (old.bytes == 0) return TPL_FAIL(run, "replacing an empty text is not supported");
  tpl_out out = {0};
  RF_TRY(rf_tpl_step(run, text.bytes / 16));
  size_t at = 0, found;
  while (most-- != 0 && (found = rf_tpl_find(text, old, at)) != SIZE_MAX) {
    RF_TRY(rf_tpl_step(run, 1));
    RF_TRY(rf_tpl_put(run, &out, (tpl_text){text.at + at, found - at}));
    RF_TRY(rf_tpl_put(run, &out, new));
    at = found + old.bytes;
  }
  RF_TRY(rf_tpl_put(run, &out, (tpl_text){text.at + at, text.bytes - at}));
  *result = tpl_string(out.at, out.bytes);
  return RAFTER_OK;
}

/* Python's str.splitlines(). */
rf_status rf_tpl_lines(tpl_run *run, tpl_text text, tpl_value *lines) {
  tpl_value *items;
  size_t count = 0, at = 0, most = 1, n;
  uint32_t point;
  RF_TRY(rf_tpl_step(run, text.bytes / 4));
  for (int pass = 0; pass < 2; ++pass) { /* pass 0 counts, pass 1 splits */
    if (pass) RF_TRY(rf_tpl_room(run, most, sizeof *items, &items));
    for (size_t i = 0; i < text.bytes; i += n) {
      n = rf_tpl_point(text.at + i, text.bytes - i, &point);
      if (n == 0) return TPL_FAIL(run, "a text is not valid UTF-8");
      bool ends = (point >= 10 && point <= 13) || (point >= 0x1c && point <= 0x1e) || point == 0x85 ||
                  point == 0x2028 || point == 0x2029;
      if (!ends) continue;
      size_t here = i;
      if (point == '\r' && i + 1 < text.bytes && text.at[i + 1] == '\n') n = 2;
      if (!pass) ++most;
      else items[count++] = tpl_string(text.at + at, here - at);
      at = here + n;
    }
    if (!pass) at = 0;
  }
  if (at < text.bytes) items[count++] = tpl_string(text.at + at, text.bytes - at);
  return rf_tpl_list(run, FORM_LIST, items, count, lines);
}

rf_status rf_tpl_join(tpl_run *run, tpl_text between, const tpl_list *items, bool strict, tpl_value *result) {
  tpl_out out = {0};
  for (size_t i = 0; i < items->count; ++i) {
    tpl_text text;
    RF_TRY(rf_tpl_step(run, 1));
    if (i) RF_TRY(rf_tpl_put(run, &out, between));
    if (strict) RF_TRY(rf_tpl_wants_text(run, &items->item[i], "an item to join", &text));
    else RF_TRY(rf_tpl_str(run, &items->item[i], &text));
    RF_TRY(rf_tpl_put(run, &out, text));
  }
  *result = tpl_string(out.at, out.bytes);
  return RAFTER_OK;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Gets a filter's string. A string that the filter "safe" has marked is an error. */
static rf_status own_text(tpl_run *run, const tpl_value *self, tpl_text *text) {
  if (self->kind == TPL_STRING && self->form == FORM_SAFE)
    return TPL_FAIL(run, "this filter does not support strings marked safe");
  return rf_tpl_str(run, self, text);
}

static rf_status filter_trim(tpl_run *run, const tpl_call *c) {
  tpl_text text, set = {0};
  RF_TRY(rf_tpl_str(run, c->self, &text));
  if (TPL_GIVEN(c->argument[0]) && c->argument[0].kind != TPL_NONE)
    RF_TRY(rf_tpl_wants_text(run, &c->argument[0], "the set of characters to trim", &set));
  RF_TRY(rf_tpl_step(run, text.bytes / 16));
  *c->result = (tpl_value){.kind = TPL_STRING,
                           .form = c->self->kind == TPL_STRING ? c->self->form : FORM_PLAIN,
                           .text = rf_tpl_strip(text, set, 3)};
  return RAFTER_OK;
}

static rf_status filter_case(tpl_run *run, const tpl_call *c) {
  tpl_text text;
  RF_TRY(own_text(run, c->self, &text));
  return rf_tpl_case(run, text, c->variant, c->result);
}

/* Jinja's title filter begins a word only after white space, '-' and opening brackets. Python's
 * str.title() also begins words after other characters. */
static rf_status filter_title(tpl_run *run, const tpl_call *c) {
  RF_TRY(filter_case(run, c));
  char *out;
  tpl_text text = c->result->text;
  RF_TRY(rf_tpl_room(run, text.bytes, 1, &out));
  for (size_t i = 0; i < text.bytes; ++i) {
    unsigned char before = i ? (unsigned char)text.at[i - 1] : ' ';
    out[i] = rf_tpl_space(before) || strchr("-({[<", before) ? to_upper(text.at[i]) : text.at[i];
  }
  c->result->text.at = out;
  return RAFTER_OK;
}

static rf_status filter_replace(tpl_run *run, const tpl_call *c) {
  tpl_text text, old, new;
  int64_t most = -1;
  RF_TRY(own_text(run, c->self, &text));
  RF_TRY(own_text(run, &c->argument[0], &old));
  RF_TRY(own_text(run, &c->argument[1], &new));
  if (c->argument[2].kind != TPL_NONE)
    RF_TRY(rf_tpl_wants_whole(run, &c->argument[2], "the number of replacements", -1, &most));
  return rf_tpl_replace(run, text, old, new, most, c->result);
}

/* Sets *text to an indentation. `given` is either the indentation itself, or a number of spaces. */
static rf_status read_indentation(tpl_run *run, const tpl_value *given, tpl_text *text) {
  tpl_value spaces = *given, one = tpl_string(" ", 1);
  if (spaces.kind != TPL_STRING) RF_TRY(rf_tpl_arithmetic(run, '*', &one, given, &spaces));
  return rf_tpl_wants_text(run, &spaces, "the indentation", text);
}

static rf_status filter_indent(tpl_run *run, const tpl_call *c) {
  tpl_text text, by;
  tpl_value lines, spaces = tpl_string("    ", 4), line;
  RF_TRY(rf_tpl_wants_text(run, c->self, "the text to indent", &text));
  RF_TRY(own_text(run, c->self, &text));
  RF_TRY(read_indentation(run, TPL_GIVEN(c->argument[0]) ? &c->argument[0] : &spaces, &by));
  bool first = rf_tpl_truth(&c->argument[1]), blank = rf_tpl_truth(&c->argument[2]);
  tpl_value newline = tpl_string("\n", 1);
  /* As in Jinja, a text that ends with a newline has an empty last line. */
  RF_TRY(rf_tpl_arithmetic(run, '+', c->self, &newline, &line));
  RF_TRY(rf_tpl_lines(run, line.text, &lines));
  tpl_out out = {0};
  for (size_t i = 0; i < lines.list->count; ++i) {
    text = lines.list->item[i].text;
    if (i) RF_TRY(rf_tpl_put(run, &out, TPL_TEXT("\n")));
    if (i ? blank || text.bytes : first) RF_TRY(rf_tpl_put(run, &out, by));
    RF_TRY(rf_tpl_put(run, &out, text));
  }
  *c->result = tpl_string(out.at, out.bytes);
  return RAFTER_OK;
}

static rf_status filter_string(tpl_run *run, const tpl_call *c) {
  *c->result = *c->self;
  if (c->self->kind == TPL_STRING) return RAFTER_OK;
  *c->result = (tpl_value){.kind = TPL_STRING};
  return rf_tpl_str(run, c->self, &c->result->text);
}

static rf_status filter_safe(tpl_run *run, const tpl_call *c) {
  RF_TRY(filter_string(run, c));
  c->result->form = FORM_SAFE;
  return RAFTER_OK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Parses a string like Python's int() or float(). *form becomes 'i' for an integer (in *whole), 'f'
 * for a float (in *real), and 0 if the string is not a number. */
static rf_status read_number(tpl_run *run, tpl_text text, int *form, int64_t *whole, double *real) {
  text = rf_tpl_strip(text, (tpl_text){0}, 3);
  *form = 0;
  char copy[64];
  size_t i = 0, digits = 0;
  if (text.bytes == 0) return RAFTER_OK;
  for (size_t k = 0, n; k < text.bytes; k += n) { /* Python also accepts 1_000, and digits of other scripts */
    uint32_t point = 0;
    n = rf_tpl_point(text.at + k, text.bytes - k, &point);
    bool letter = is_letter((char)point) && point < 0x80 && !strchr("eEinfatyINFATY", (int)point);
    if (n == 0 || letter || point == ' ' || (point >= 0x2e80 && point < 0xa4d0) ||
        (point >= 0x1f300 && point < 0x1fb00))
      return RAFTER_OK;
    if (point >= 0x80 || point == '_') return TPL_FAIL(run, "this form of a number is not supported");
  }
  i += text.at[0] == '-' || text.at[0] == '+';
  if (i < text.bytes && strchr("iInN", text.at[i]))
    return TPL_FAIL(run, "numbers such as \"inf\" and \"nan\" are not supported");
  *form = 'i';
  for (; i < text.bytes && text.at[i] >= '0' && text.at[i] <= '9'; ++i) ++digits;
  if (i < text.bytes && text.at[i] == '.') {
    *form = 'f';
    for (++i; i < text.bytes && text.at[i] >= '0' && text.at[i] <= '9'; ++i) ++digits;
  }
  if (digits && i < text.bytes && (text.at[i] | 0x20) == 'e') {
    size_t sign = i + 1 < text.bytes && (text.at[i + 1] == '-' || text.at[i + 1] == '+'),
           first = i + 1 + sign;
    *form = 'f';
    for (i = first; i < text.bytes && text.at[i] >= '0' && text.at[i] <= '9';) ++i;
    if (i == first) digits = 0;
  }
  if (digits == 0 || i != text.bytes) {
    *form = 0;
    return RAFTER_OK;
  }
  if (text.bytes >= sizeof copy) return TPL_FAIL(run, "a number of more than 63 characters is not supported");
  memcpy(copy, text.at, text.bytes);
  copy[text.bytes] = 0;
  *real = strtod(copy, NULL);
  if (*form == 'i' && fabs(*real) >= 0x1p63) return TPL_FAIL(run, "an integer grows beyond 64 bits");
  if (*form == 'i') *whole = strtoll(copy, NULL, 10);
  return RAFTER_OK;
}

/* Converts a value like Python's int() (variant 'i') or float() (variant 'f'). If the value is not
 * a number, the result is the default. */
static rf_status filter_number(tpl_run *run, const tpl_call *c) {
  int64_t whole = 0;
  double real = 0;
  int form = 0;
  if (c->self->kind == TPL_UNDEFINED) return TPL_FAIL(run, "'%.*s' is undefined", TPL_SHOWN(c->self->text));
  if (c->self->kind == TPL_STRING) RF_TRY(read_number(run, c->self->text, &form, &whole, &real));
  else if (c->variant == 'i' && rf_tpl_whole(c->self, &whole)) form = 'i';
  else if (rf_tpl_number(c->self, &real)) form = 'f';
  if (c->variant == 'i' && form == 'f' && !(fabs(real) < 0x1p63))
    return TPL_FAIL(run, "an integer grows beyond 64 bits");
  if (!form && TPL_GIVEN(c->argument[0])) *c->result = c->argument[0];
  else if (c->variant == 'i') *c->result = tpl_int(form == 'f' ? (int64_t)real : whole);
  else *c->result = tpl_float(real);
  return RAFTER_OK;
}

/* ---- values of any kind ---------------------------------------------------------------------- */

static rf_status filter_length(tpl_run *run, const tpl_call *c) {
  int64_t count = 0;
  if (c->self->kind == TPL_STRING) {
    RF_TRY(rf_tpl_step(run, c->self->text.bytes / 16));
    count = rf_tpl_points(c->self->text);
  } else if (c->self->kind == TPL_LIST && c->self->form != FORM_LAZY) count = (int64_t)c->self->list->count;
  else if (c->self->kind == TPL_DICT) count = (int64_t)c->self->dict->count;
  else if (c->self->kind != TPL_UNDEFINED)
    return TPL_FAIL(run, "%s has no length", rf_tpl_kind_name(c->self));
  *c->result = tpl_int(count);
  return RAFTER_OK;
}

static rf_status filter_default(tpl_run *run, const tpl_call *c) {
  (void)run;
  bool missing = c->self->kind == TPL_UNDEFINED || (rf_tpl_truth(&c->argument[1]) && !rf_tpl_truth(c->self));
  *c->result = *c->self;
  if (missing) *c->result = TPL_GIVEN(c->argument[0]) ? c->argument[0] : tpl_string("", 0);
  return RAFTER_OK;
}

static rf_status json_style(tpl_run *run, const tpl_value *argument, tpl_json_style *style) {
  *style = (tpl_json_style){.between = TPL_TEXT(", "), .colon = TPL_TEXT(": ")};
  style->ascii = TPL_GIVEN(argument[0]) && rf_tpl_truth(&argument[0]);
  style->sorted = TPL_GIVEN(argument[3]) && rf_tpl_truth(&argument[3]);
  if (TPL_GIVEN(argument[1]) && argument[1].kind != TPL_NONE) {
    RF_TRY(read_indentation(run, &argument[1], &style->indent));
    if (!style->indent.at) style->indent.at = "";
    style->between = TPL_TEXT(",");
  }
  if (!TPL_GIVEN(argument[2]) || argument[2].kind == TPL_NONE) return RAFTER_OK;
  if (argument[2].kind != TPL_LIST || argument[2].form > FORM_TUPLE || argument[2].list->count != 2)
    return TPL_FAIL(run, "the separators must be a list of two strings");
  RF_TRY(rf_tpl_wants_text(run, &argument[2].list->item[0], "a separator", &style->between));
  return rf_tpl_wants_text(run, &argument[2].list->item[1], "a separator", &style->colon);
}

static rf_status filter_tojson(tpl_run *run, const tpl_call *c) {
  tpl_json_style style;
  tpl_out out = {0};
  RF_TRY(json_style(run, c->argument, &style));
  RF_TRY(rf_tpl_json(run, &out, c->self, &style, 0));
  *c->result = tpl_string(out.at, out.bytes);
  return RAFTER_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const tpl_function FILTERS[] = {
    {.name = "capitalize", .call = filter_case, .variant = 'c'},
    {.name = "count", .call = filter_length},
    {.name = "d", .call = filter_default, .parameter = {"default_value", "boolean"}},
    {.name = "default", .call = filter_default, .parameter = {"default_value", "boolean"}},
    {.name = "first", .call = rf_tpl_filter_first},
    {.name = "float", .call = filter_number, .parameter = {"default"}, .variant = 'f'},
    {.name = "indent", .call = filter_indent, .parameter = {"width", "first", "blank"}},
    {.name = "int", .call = filter_number, .parameter = {"default"}, .variant = 'i'},
    {.name = "items", .call = rf_tpl_filter_items},
    {.name = "join", .call = rf_tpl_filter_join, .parameter = {"d", "attribute"}},
    {.name = "last", .call = rf_tpl_filter_last},
    {.name = "length", .call = filter_length},
    {.name = "list", .call = rf_tpl_filter_list},
    {.name = "lower", .call = filter_case, .variant = 'l'},
    {.name = "map", .call = rf_tpl_filter_map, .unbound = true},
    {.name = "reject", .call = rf_tpl_filter_choose, .unbound = true},
    {.name = "rejectattr", .call = rf_tpl_filter_choose, .variant = RF_TPL_ATTRIBUTE, .unbound = true},
    {.name = "replace", .call = filter_replace, .parameter = {"old", "new", "count"}, .needed = 2},
    {.name = "safe", .call = filter_safe},
    {.name = "select", .call = rf_tpl_filter_choose, .variant = RF_TPL_KEEP, .unbound = true},
    {.name = "selectattr",
     .call = rf_tpl_filter_choose,
     .variant = RF_TPL_KEEP | RF_TPL_ATTRIBUTE,
     .unbound = true},
    {.name = "string", .call = filter_string},
    {.name = "title", .call = filter_title, .variant = 'l'},
    {.name = "tojson",
     .call = filter_tojson,
     .parameter = {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {.name = "trim", .call = filter_trim, .parameter = {"chars"}},
    {.name = "upper", .call = filter_case, .variant = 'u'},
};

const tpl_function *rf_tpl_filter(tpl_text name) {
  for (size_t i = 0; i < sizeof FILTERS / sizeof FILTERS[0]; ++i)
    if (rf_tpl_is(name, FILTERS[i].name)) return &FILTERS[i];
  return NULL;
}
