/* template_print.c - prints values like Python's str() and repr(), and as transformers' JSON. */
#include "text/template_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

rf_status rf_tpl_put(tpl_run *run, tpl_out *out, tpl_text text) {
  if (text.bytes > run->text_most || out->bytes > run->text_most - text.bytes)
    return TPL_FAIL(run, "a text grows beyond %zu bytes", run->text_most);
  RF_TRY(rf_tpl_step(run, text.bytes / 64));
  if (out->bytes + text.bytes > out->capacity) {
    size_t capacity = out->capacity ? out->capacity * 2 : 64;
    while (capacity < out->bytes + text.bytes) capacity *= 2;
    char *larger;
    RF_TRY(rf_tpl_room(run, capacity, 1, &larger));
    if (out->bytes) memcpy(larger, out->at, out->bytes);
    out->at = larger;
    out->capacity = capacity;
  }
  if (text.bytes) memcpy(out->at + out->bytes, text.at, text.bytes);
  out->bytes += text.bytes;
  return RAFTER_OK;
}

static rf_status put_text(tpl_run *run, tpl_out *out, const char *text) {
  return rf_tpl_put(run, out, (tpl_text){text, strlen(text)});
}

static void print_real(double value, char text[40]) {
  if (isnan(value) || isinf(value)) {
    strcpy(text, isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
    return;
  }
  char digits[40];
  for (int precision = 0; precision <= 16;
       ++precision) { /* the smallest number of digits from which the value can be read exactly */
    snprintf(digits, sizeof digits, "%.*e", precision, value);
    if (strtod(digits, NULL) == value) break;
  }
  char *e = strchr(digits, 'e');
  int exponent = atoi(e + 1), length = 0;
  *e = 0;
  char plain[24];
  const char *from = digits + (digits[0] == '-');
  for (const char *c = from; *c; ++c)
    if (*c != '.') plain[length++] = *c;
  plain[length] = 0;
  char *out = text;
  if (digits[0] == '-') *out++ = '-';
  if (exponent < -4 || exponent >= 16) {
    sprintf(out, "%c%s%se%c%02d", plain[0], length > 1 ? "." : "", plain + 1, exponent < 0 ? '-' : '+',
            abs(exponent));
  } else if (exponent < 0) {
    sprintf(out, "0.%.*s%s", -exponent - 1, "0000", plain);
  } else {
    for (int i = 0; i <= exponent; ++i) *out++ = i < length ? plain[i] : '0';
    *out++ = '.';
    strcpy(out, length > exponent + 1 ? plain + exponent + 1 : "0");
  }
}

/* ---- repr ------------------------------------------------------------------------------------ */

/* True for characters that Python's repr() never escapes. Other non-ASCII characters are an
 * error. */
static bool surely_printable(uint32_t point) {
  static const uint32_t ranges[][2] = {
      {0x20, 0x7e},     {0xa1, 0xac},     {0xae, 0x377},      {0x3a3, 0x52f},    {0x5d0, 0x5ea},
      {0x620, 0x66f},   {0x904, 0x939},   {0xe01, 0xe3a},     {0x10d0, 0x10ff},  {0x1e00, 0x1f15},
      {0x2010, 0x2027}, {0x2030, 0x205e}, {0x20a0, 0x20bf},   {0x2100, 0x218b},  {0x2190, 0x23ff},
      {0x2500, 0x2b73}, {0x3001, 0x303f}, {0x3041, 0x3096},   {0x30a0, 0x30ff},  {0x4e00, 0x9fef},
      {0xac00, 0xd7a3}, {0xff01, 0xffbe}, {0x1f300, 0x1f6d4}, {0x20000, 0x2a6d6}};
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; ++i)
    if (point >= ranges[i][0] && point <= ranges[i][1]) return true;
  return false;
}

static rf_status put_quoted(tpl_run *run, tpl_out *out, tpl_text text) {
  bool single = memchr(text.at, '\'', text.bytes) != NULL, both = single && memchr(text.at, '"', text.bytes);
  char quote = single && !both ? '"' : '\'';
  RF_TRY(rf_tpl_put(run, out, (tpl_text){&quote, 1}));
  RF_TRY(rf_tpl_step(run, text.bytes));
  for (size_t i = 0, n; i < text.bytes; i += n) {
    static const char names[] = "\\\n\r\t", letters[] = "\\nrt";
    uint32_t point = 0;
    n = rf_tpl_point(text.at + i, text.bytes - i, &point);
    if (n == 0) return TPL_FAIL(run, "a text is not valid UTF-8");
    char escaped[16];
    const char *name = point && point < 0x80 ? strchr(names, (int)point) : NULL;
    if (name || point == (unsigned char)quote)
      snprintf(escaped, sizeof escaped, "\\%c", name ? letters[name - names] : quote);
    else if (point < 0x20 || (point >= 0x7f && point <= 0xa0) || point == 0xad)
      snprintf(escaped, sizeof escaped, "\\x%02x", point);
    else if (!surely_printable(point))
      return TPL_FAIL(run, "printing U+%04X inside a list or dict is not supported", point);
    else {
      RF_TRY(rf_tpl_put(run, out, (tpl_text){text.at + i, n}));
      continue;
    }
    RF_TRY(put_text(run, out, escaped));
  }
  return rf_tpl_put(run, out, (tpl_text){&quote, 1});
}

static rf_status put_repr(tpl_run *run, tpl_out *out, const tpl_value *value);

static rf_status put_list(tpl_run *run, tpl_out *out, const tpl_value *value) {
  if (value->form > FORM_TUPLE)
    return TPL_FAIL(
        run, "printing the result of range(), a dict method or a lazy filter is not supported: use |list");
  RF_TRY(put_text(run, out, value->form == FORM_TUPLE ? "(" : "["));
  for (size_t i = 0; i < value->list->count; ++i) {
    if (i) RF_TRY(put_text(run, out, ", "));
    RF_TRY(put_repr(run, out, &value->list->item[i]));
  }
  if (value->form == FORM_TUPLE && value->list->count == 1) RF_TRY(put_text(run, out, ","));
  return put_text(run, out, value->form == FORM_TUPLE ? ")" : "]");
}

static rf_status put_dict(tpl_run *run, tpl_out *out, const tpl_dict *dict) {
  RF_TRY(put_text(run, out, "{"));
  for (size_t i = 0; i < dict->count; ++i) {
    if (i) RF_TRY(put_text(run, out, ", "));
    RF_TRY(put_repr(run, out, &dict->key[i]));
    RF_TRY(put_text(run, out, ": "));
    RF_TRY(put_repr(run, out, &dict->value[i]));
  }
  return put_text(run, out, "}");
}

/* Prints a number or a constant. Returns false for other kinds of values. */
static bool simple_text(const tpl_value *value, char text[40]) {
  if (value->kind == TPL_NONE) strcpy(text, "None");
  else if (value->kind == TPL_BOOL) strcpy(text, value->truth ? "True" : "False");
  else if (value->kind == TPL_INT) snprintf(text, 40, "%lld", (long long)value->whole);
  else if (value->kind == TPL_FLOAT) print_real(value->real, text);
  else return false;
  return true;
}

static rf_status put_repr(tpl_run *run, tpl_out *out, const tpl_value *value) {
  char text[40];
  RF_TRY(rf_tpl_step(run, 1));
  if (simple_text(value, text)) return put_text(run, out, text);
  if (value->kind == TPL_STRING && value->form == FORM_PLAIN) return put_quoted(run, out, value->text);
  if (value->kind == TPL_LIST) return put_list(run, out, value);
  if (value->kind == TPL_DICT) return put_dict(run, out, value->dict);
  if (value->kind == TPL_UNDEFINED) return put_text(run, out, "Undefined");
  return TPL_FAIL(run, "printing %s is not supported", rf_tpl_kind_name(value));
}

rf_status rf_tpl_str(tpl_run *run, const tpl_value *value, tpl_text *text) {
  if (value->kind == TPL_STRING) {
    *text = value->text;
  } else if (value->kind == TPL_UNDEFINED) {
    *text = TPL_TEXT("");
  } else {
    tpl_out out = {0};
    RF_TRY(put_repr(run, &out, value));
    *text = (tpl_text){out.at, out.bytes};
  }
  return RAFTER_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static rf_status json_text(tpl_run *run, tpl_out *out, tpl_text text, bool ascii) {
  static const char names[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
  RF_TRY(put_text(run, out, "\""));
  RF_TRY(rf_tpl_step(run, text.bytes));
  for (size_t i = 0, n; i < text.bytes; i += n) {
    uint32_t point = 0;
    n = rf_tpl_point(text.at + i, text.bytes - i, &point);
    if (n == 0) return TPL_FAIL(run, "a text is not valid UTF-8");
    char escaped[16];
    const char *name = point && point < 0x80 ? strchr(names, (int)point) : NULL;
    if (name) snprintf(escaped, sizeof escaped, "\\%c", letters[name - names]);
    else if (point < 0x20 || (ascii && point > 0x7e && point < 0x10000))
      snprintf(escaped, sizeof escaped, "\\u%04x", point);
    else if (ascii && point >= 0x10000)
      snprintf(escaped, sizeof escaped, "\\u%04x\\u%04x", 0xd800 + ((point - 0x10000) >> 10),
               0xdc00 + ((point - 0x10000) & 0x3ff));
    else {
      RF_TRY(rf_tpl_put(run, out, (tpl_text){text.at + i, n}));
      continue;
    }
    RF_TRY(put_text(run, out, escaped));
  }
  return put_text(run, out, "\"");
}

static void json_number(const tpl_value *value, char text[40]) {
  if (value->kind == TPL_NONE) strcpy(text, "null");
  else if (value->kind == TPL_BOOL) strcpy(text, value->truth ? "true" : "false");
  else if (value->kind == TPL_FLOAT && isnan(value->real)) strcpy(text, "NaN");
  else if (value->kind == TPL_FLOAT && isinf(value->real))
    strcpy(text, value->real < 0 ? "-Infinity" : "Infinity");
  else simple_text(value, text);
}

static rf_status json_line(tpl_run *run, tpl_out *out, const tpl_json_style *style, int depth) {
  if (!style->indent.at) return RAFTER_OK;
  RF_TRY(put_text(run, out, "\n"));
  for (int i = 0; i < depth; ++i) RF_TRY(rf_tpl_put(run, out, style->indent));
  return RAFTER_OK;
}

/* Lists a dict's keys, sorted or in insertion order. Insertion sort is fast enough for few keys.
 * Every comparison counts as a step. */
static rf_status key_order(tpl_run *run, const tpl_dict *dict, bool sorted, size_t **order) {
  RF_TRY(rf_tpl_room(run, dict->count, sizeof **order, order));
  for (size_t i = 0; i < dict->count; ++i) {
    size_t at = i;
    for (int later = -1; sorted && at > 0; --at) {
      RF_TRY(rf_tpl_order(run, &dict->key[i], &dict->key[(*order)[at - 1]], &later));
      if (later >= 0) break;
      (*order)[at] = (*order)[at - 1];
    }
    (*order)[at] = i;
  }
  return RAFTER_OK;
}

static rf_status json_dict(tpl_run *run, tpl_out *out, const tpl_dict *dict, const tpl_json_style *style,
                           int depth) {
  size_t *order;
  RF_TRY(key_order(run, dict, style->sorted, &order));
  RF_TRY(put_text(run, out, "{"));
  for (size_t i = 0; i < dict->count; ++i) {
    const tpl_value *key = &dict->key[order[i]];
    char name[40];
    if (i) RF_TRY(rf_tpl_put(run, out, style->between));
    RF_TRY(json_line(run, out, style, depth + 1));
    if (key->kind == TPL_STRING) {
      RF_TRY(json_text(run, out, key->text, style->ascii));
    } else if (key->kind >= TPL_NONE && key->kind <= TPL_FLOAT) {
      json_number(key, name);
      RF_TRY(json_text(run, out, (tpl_text){name, strlen(name)}, false));
    } else {
      return TPL_FAIL(run, "%s cannot be a key in JSON", rf_tpl_kind_name(key));
    }
    RF_TRY(rf_tpl_put(run, out, style->colon));
    RF_TRY(rf_tpl_json(run, out, &dict->value[order[i]], style, depth + 1));
  }
  if (dict->count) RF_TRY(json_line(run, out, style, depth));
  return put_text(run, out, "}");
}

rf_status rf_tpl_json(tpl_run *run, tpl_out *out, const tpl_value *value, const tpl_json_style *style,
                      int depth) {
  char text[40];
  RF_TRY(rf_tpl_step(run, 1));
  if (value->kind == TPL_STRING) return json_text(run, out, value->text, style->ascii);
  if (value->kind >= TPL_NONE && value->kind <= TPL_FLOAT) {
    json_number(value, text);
    return put_text(run, out, text);
  }
  if (value->kind == TPL_DICT) return json_dict(run, out, value->dict, style, depth);
  if (value->kind != TPL_LIST || value->form > FORM_TUPLE)
    return TPL_FAIL(run, "%s cannot be written as JSON", rf_tpl_kind_name(value));
  RF_TRY(put_text(run, out, "["));
  for (size_t i = 0; i < value->list->count; ++i) {
    if (i) RF_TRY(rf_tpl_put(run, out, style->between));
    RF_TRY(json_line(run, out, style, depth + 1));
    RF_TRY(rf_tpl_json(run, out, &value->list->item[i], style, depth + 1));
  }
  if (value->list->count) RF_TRY(json_line(run, out, style, depth));
  return put_text(run, out, "]");
}
