/* template_methods.c - the tables of string methods, dict methods and global functions. Methods
 * that change a value, and methods that no template needs, have table entries without a function.
 * Without these entries, a call of such a method would report a missing key of a dict. */
#include "text/template_parts.h"

#include <string.h>

/* ---- strings --------------------------------------------------------------------------------- */

/* Bit 1 of the variant strips the start of the string, and bit 2 strips the end. */
static rf_status method_strip(tpl_run *run, const tpl_call *c) {
  tpl_text set = {0};
  if (TPL_GIVEN(c->argument[0]) && c->argument[0].kind != TPL_NONE) {
    RF_TRY(rf_tpl_wants_text(run, &c->argument[0], "the set of characters to strip", &set));
    if (!set.at) set.at = "";
  }
  RF_TRY(rf_tpl_step(run, c->self->text.bytes / 16));
  *c->result = *c->self;
  c->result->text = rf_tpl_strip(c->self->text, set, c->variant);
  return RAFTER_OK;
}

static rf_status method_case(tpl_run *run, const tpl_call *c) {
  return rf_tpl_case(run, c->self->text, c->variant, c->result);
}

/* Returns true if `self` starts (variant 0) or ends (variant 1) with argument 0. */
static rf_status method_has_end(tpl_run *run, const tpl_call *c) {
  tpl_text part;
  RF_TRY(rf_tpl_wants_text(run, &c->argument[0], "the prefix or suffix", &part));
  bool fits = part.bytes <= c->self->text.bytes;
  size_t at = fits && c->variant ? c->self->text.bytes - part.bytes : 0;
  *c->result = tpl_bool(fits && (part.bytes == 0 || memcmp(c->self->text.at + at, part.at, part.bytes) == 0));
  return rf_tpl_step(run, part.bytes / 64);
}

static rf_status method_remove_end(tpl_run *run, const tpl_call *c) {
  RF_TRY(method_has_end(run, c));
  size_t bytes = c->result->truth ? c->argument[0].text.bytes : 0;
  *c->result = *c->self;
  if (!c->variant && bytes) c->result->text.at += bytes;
  c->result->text.bytes -= bytes;
  return RAFTER_OK;
}

static rf_status method_replace(tpl_run *run, const tpl_call *c) {
  tpl_text old, new;
  int64_t most;
  RF_TRY(rf_tpl_wants_text(run, &c->argument[0], "the text to replace", &old));
  RF_TRY(rf_tpl_wants_text(run, &c->argument[1], "the replacement", &new));
  RF_TRY(rf_tpl_wants_whole(run, &c->argument[2], "the number of replacements", -1, &most));
  return rf_tpl_replace(run, c->self->text, old, new, most, c->result);
}

/* Splits `self` at a separator. Without a separator, splits at each sequence of white space. */
static rf_status method_split(tpl_run *run, const tpl_call *c) {
  tpl_text rest = c->self->text, between = {0};
  int64_t most;
  bool spaces = !TPL_GIVEN(c->argument[0]) || c->argument[0].kind == TPL_NONE;
  if (!spaces) RF_TRY(rf_tpl_wants_text(run, &c->argument[0], "the separator", &between));
  if (!spaces && between.bytes == 0) return TPL_FAIL(run, "the separator of split() is empty");
  RF_TRY(rf_tpl_wants_whole(run, &c->argument[1], "the number of splits", -1, &most));
  RF_TRY(rf_tpl_step(run, rest.bytes / 4));
  tpl_value *items = NULL;
  size_t count = 0, capacity = 0;
  if (spaces) rest = rf_tpl_strip(rest, (tpl_text){0}, 1);
  for (bool ends = spaces && rest.bytes == 0; !ends; ++count) {
    size_t end = SIZE_MAX, n = 0;
    uint32_t point;
    if (most != 0 && !spaces) {
      end = rf_tpl_find(rest, between, 0);
      n = between.bytes;
    }
    for (size_t i = 0, m; most != 0 && spaces && i < rest.bytes; i += m) {
      m = rf_tpl_point(rest.at + i, rest.bytes - i, &point);
      if (m == 0) return TPL_FAIL(run, "a text is not valid UTF-8");
      if (!rf_tpl_space(point)) continue;
      end = i;
      n = m;
      break;
    }
    if (count == capacity) {
      capacity = capacity ? capacity * 2 : 4;
      tpl_value *larger;
      RF_TRY(rf_tpl_room(run, capacity, sizeof *larger, &larger));
      if (count) memcpy(larger, items, count * sizeof *larger);
      items = larger;
    }
    ends = end == SIZE_MAX;
    items[count] = tpl_string(rest.at, ends ? rest.bytes : end);
    if (ends) continue;
    rest = (tpl_text){rest.at + end + n, rest.bytes - end - n};
    if (spaces) rest = rf_tpl_strip(rest, (tpl_text){0}, 1);
    ends = spaces && rest.bytes == 0;
    --most;
  }
  return rf_tpl_list(run, FORM_LIST, items, count, c->result);
}

static rf_status method_splitlines(tpl_run *run, const tpl_call *c) {
  return rf_tpl_lines(run, c->self->text, c->result);
}

static rf_status method_join(tpl_run *run, const tpl_call *c) {
  tpl_list items;
  RF_TRY(rf_tpl_iterate(run, &c->argument[0], &items));
  return rf_tpl_join(run, c->self->text, &items, true, c->result);
}

static const tpl_function STRING_METHODS[] = {
    {.name = "capitalize", .call = method_case, .variant = 'c'},
    {.name = "endswith", .call = method_has_end, .parameter = {"suffix"}, .needed = 1, .variant = 1},
    {.name = "join", .call = method_join, .parameter = {"iterable"}, .needed = 1},
    {.name = "lower", .call = method_case, .variant = 'l'},
    {.name = "lstrip", .call = method_strip, .parameter = {"chars"}, .variant = 1},
    {.name = "removeprefix", .call = method_remove_end, .parameter = {"prefix"}, .needed = 1},
    {.name = "removesuffix", .call = method_remove_end, .parameter = {"suffix"}, .needed = 1, .variant = 1},
    {.name = "replace", .call = method_replace, .parameter = {"old", "new", "count"}, .needed = 2},
    {.name = "rstrip", .call = method_strip, .parameter = {"chars"}, .variant = 2},
    {.name = "split", .call = method_split, .parameter = {"sep", "maxsplit"}},
    {.name = "splitlines", .call = method_splitlines},
    {.name = "startswith", .call = method_has_end, .parameter = {"prefix"}, .needed = 1},
    {.name = "strip", .call = method_strip, .parameter = {"chars"}, .variant = 3},
    {.name = "title", .call = method_case, .variant = 't'},
    {.name = "upper", .call = method_case, .variant = 'u'},
};
static const char *const STRING_REFUSED[] = {
    "casefold",     "center",    "count",     "encode",      "expandtabs", "find",      "format",
    "format_map",   "index",     "isalnum",   "isalpha",     "isascii",    "isdecimal", "isdigit",
    "isidentifier", "islower",   "isnumeric", "isprintable", "isspace",    "istitle",   "isupper",
    "ljust",        "maketrans", "partition", "rfind",       "rindex",     "rjust",     "rpartition",
    "rsplit",       "swapcase",  "translate", "zfill",       NULL};

/* ---- dicts ----------------------------------------------------------------------------------- */

/* Returns a list of a dict's items ('i'), keys ('k') or values ('v'). */
static rf_status method_view(tpl_run *run, const tpl_call *c) {
  const tpl_dict *dict = c->self->dict;
  tpl_value *items;
  RF_TRY(rf_tpl_room(run, dict->count, sizeof *items, &items));
  for (size_t i = 0; i < dict->count; ++i) {
    if (c->variant != 'i') items[i] = c->variant == 'k' ? dict->key[i] : dict->value[i];
    else
      RF_TRY(rf_tpl_list(run, FORM_TUPLE, (const tpl_value[]){dict->key[i], dict->value[i]}, 2, &items[i]));
  }
  return rf_tpl_list(run, FORM_VIEW, items, dict->count, c->result);
}

static rf_status method_get(tpl_run *run, const tpl_call *c) {
  size_t index;
  RF_TRY(rf_tpl_dict_find(run, c->self->dict, &c->argument[0], &index));
  if (index != SIZE_MAX) *c->result = c->self->dict->value[index];
  else *c->result = TPL_GIVEN(c->argument[1]) ? c->argument[1] : tpl_none();
  return RAFTER_OK;
}

static const tpl_function DICT_METHODS[] = {
    {.name = "get", .call = method_get, .parameter = {"key", "default"}, .needed = 1},
    {.name = "items", .call = method_view, .variant = 'i'},
    {.name = "keys", .call = method_view, .variant = 'k'},
    {.name = "values", .call = method_view, .variant = 'v'},
};
static const char *const DICT_REFUSED[] = {"clear",   "copy",       "fromkeys", "pop",
                                           "popitem", "setdefault", "update",   NULL};
static const char *const LIST_REFUSED[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                           "insert", "pop",   "remove", "reverse", "sort",   NULL};
static const char *const NUMBER_REFUSED[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes",   NULL};

const tpl_function *rf_tpl_method(const tpl_value *self, tpl_text name) {
  static const tpl_function refused = {.name = "refused"};
  static const struct {
    tpl_kind kind;
    const tpl_function *rows;
    size_t count;
    const char *const *refused;
  } tables[] = {
      {TPL_STRING, STRING_METHODS, sizeof STRING_METHODS / sizeof STRING_METHODS[0], STRING_REFUSED},
      {TPL_DICT, DICT_METHODS, sizeof DICT_METHODS / sizeof DICT_METHODS[0], DICT_REFUSED},
      {TPL_LIST, NULL, 0, LIST_REFUSED},
      {TPL_BOOL, NULL, 0, NUMBER_REFUSED},
      {TPL_INT, NULL, 0, NUMBER_REFUSED},
      {TPL_FLOAT, NULL, 0, NUMBER_REFUSED},
  };
  for (size_t t = 0; t < sizeof tables / sizeof tables[0]; ++t) {
    if (tables[t].kind != (tpl_kind)self->kind) continue;
    for (size_t i = 0; i < tables[t].count; ++i)
      if (rf_tpl_is(name, tables[t].rows[i].name)) return &tables[t].rows[i];
    for (const char *const *word = tables[t].refused; *word; ++word)
      if (rf_tpl_is(name, *word)) return &refused;
  }
  return NULL;
}

/* ---- global functions ------------------------------------------------------------------------ */

static rf_status function_raise(tpl_run *run, const tpl_call *c) {
  tpl_text message;
  RF_TRY(rf_tpl_str(run, &c->argument[0], &message));
  return TPL_FAIL(run, "%.*s", (int)(message.bytes < 500 ? message.bytes : 500),
                  message.at ? message.at : "");
}

/* Allows only the strftime directives that give the same result in every C library and locale. */
static rf_status function_strftime(tpl_run *run, const tpl_call *c) {
  tpl_text format;
  char pattern[128], text[1024];
  RF_TRY(rf_tpl_wants_text(run, &c->argument[0], "the format of a time", &format));
  if (!run->now) return TPL_FAIL(run, "the template needs the current time, which was not given");
  if (format.bytes >= sizeof pattern || memchr(format.at ? format.at : "", 0, format.bytes))
    return TPL_FAIL(run, "the format of a time must have at most 127 bytes");
  if (format.bytes) memcpy(pattern, format.at, format.bytes);
  pattern[format.bytes] = 0;
  for (const char *at = pattern; (at = strchr(at, '%')); ++at) {
    at += at[1] == '-' ? 2 : 1;
    if (!*at || !strchr("aAbBdHIjmMpSUwWyY%eDFTR", *at))
      return TPL_FAIL(run, "the time directive %%%c is not supported", *at ? *at : ' ');
  }
  size_t bytes = strftime(text, sizeof text, pattern, run->now);
  char *copy;
  RF_TRY(rf_tpl_room(run, bytes, 1, &copy));
  memcpy(copy, text, bytes);
  *c->result = tpl_string(copy, bytes);
  return RAFTER_OK;
}

static rf_status function_range(tpl_run *run, const tpl_call *c) {
  int64_t bound[3] = {0, 0, 1};
  bool one = !TPL_GIVEN(c->argument[1]);
  for (int i = 0; i < 3; ++i) {
    bool last = one && i == 0;
    RF_TRY(rf_tpl_wants_whole(run, &c->argument[i], "a bound of range()", bound[i], &bound[last ? 1 : i]));
    if (last) i = 2;
  }
  int64_t start = bound[0], stop = bound[1], step = bound[2], count = 0;
  if (step == 0) return TPL_FAIL(run, "the step of range() must not be 0");
  int64_t distance;
  if (__builtin_sub_overflow(stop, start, &distance))
    return TPL_FAIL(run, "range() has more than %d items", TPL_RANGE_MAX);
  if ((distance > 0) == (step > 0) && distance != 0)
    count = step == INT64_MIN ? 1 : (distance - (step > 0 ? 1 : -1)) / step + 1;
  if (count > TPL_RANGE_MAX) return TPL_FAIL(run, "range() has more than %d items", TPL_RANGE_MAX);
  tpl_value *items;
  RF_TRY(rf_tpl_room(run, (size_t)count, sizeof *items, &items));
  for (int64_t i = 0; i < count; ++i) items[i] = tpl_int(start + i * step);
  return rf_tpl_list(run, FORM_RANGE, items, (size_t)count, c->result);
}

/* namespace(...) and dict(...) copy the fields of a dict argument. Then these functions add the
 * named arguments. */
static rf_status function_dict(tpl_run *run, const tpl_call *c) {
  RF_TRY(rf_tpl_dict(run, c->result));
  for (int i = 0; i < c->arguments->count; ++i) {
    const tpl_value *value = &c->arguments->value[i];
    tpl_value name = {.kind = TPL_STRING, .text = c->arguments->name[i]};
    if (name.text.at) {
      RF_TRY(rf_tpl_dict_set(run, c->result, &name, value));
      continue;
    }
    if (i > 0 || value->kind != TPL_DICT)
      return TPL_FAIL(run, "namespace() and dict() take one dict and named arguments");
    for (size_t k = 0; k < value->dict->count; ++k)
      RF_TRY(rf_tpl_dict_set(run, c->result, &value->dict->key[k], &value->dict->value[k]));
  }
  return RAFTER_OK;
}
static rf_status function_namespace(tpl_run *run, const tpl_call *c) {
  RF_TRY(function_dict(run, c));
  c->result->kind = TPL_NAMESPACE;
  c->result->depth = 0;
  return RAFTER_OK;
}

const tpl_function *rf_tpl_global(tpl_text name) {
  static const tpl_function rows[] = {
      {.name = "dict", .call = function_dict, .unbound = true},
      {.name = "namespace", .call = function_namespace, .unbound = true},
      {.name = "raise_exception", .call = function_raise, .parameter = {"message"}, .needed = 1},
      {.name = "range", .call = function_range, .parameter = {"start", "stop", "step"}, .needed = 1},
      {.name = "strftime_now", .call = function_strftime, .parameter = {"format"}, .needed = 1},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
    if (rf_tpl_is(name, rows[i].name)) return &rows[i];
  return NULL;
}
