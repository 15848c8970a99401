/* template_arithmetic.c - Python's operators on numbers, strings and lists. An integer that needs
 * more than 64 bits is an error. */
#include "text/template_parts.h"

#include <math.h>
#include <string.h>

static rf_status whole_arithmetic(tpl_run *run, int op, int64_t a, int64_t b, tpl_value *result) {
  int64_t value = 0;
  bool over = false;
  if ((op == TPL_OP('/', '/') || op == '%') && b == 0) return TPL_FAIL(run, "division by zero");
  if (op == '+') over = __builtin_add_overflow(a, b, &value);
  else if (op == '-') over = __builtin_sub_overflow(a, b, &value);
  else if (op == '*') over = __builtin_mul_overflow(a, b, &value);
  else if (a == INT64_MIN && b == -1) over = op != '%';
  else {
    int64_t rest = a % b;
    bool down = rest != 0 && (rest < 0) != (b < 0); /* C rounds toward zero, but Python rounds down */
    value = op == '%' ? rest + (down ? b : 0) : a / b - down;
  }
  if (over) return TPL_FAIL(run, "an integer grows beyond 64 bits");
  *result = tpl_int(value);
  return RAFTER_OK;
}

static rf_status real_arithmetic(tpl_run *run, int op, double a, double b, tpl_value *result) {
  if (op != '+' && op != '-' && op != '*' && b == 0) return TPL_FAIL(run, "division by zero");
  double value;
  if (op == '+') value = a + b;
  else if (op == '-') value = a - b;
  else if (op == '*') value = a * b;
  else if (op == '/') value = a / b;
  else { // as CPython's float_divmod
    double rest = fmod(a, b), ratio = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) {
      rest += b;
      ratio -= 1;
    } else if (rest == 0) {
      rest = copysign(0.0, b);
    }
    double whole = ratio != 0 ? floor(ratio) : copysign(0.0, a / b);
    if (ratio != 0 && ratio - whole > 0.5) whole += 1;
    value = op == '%' ? rest : whole;
  }
  *result = tpl_float(value);
  return RAFTER_OK;
}

static rf_status join_strings(tpl_run *run, const tpl_value *a, const tpl_value *b, tpl_value *result) {
  if (a->form == FORM_SAFE || b->form == FORM_SAFE)
    return TPL_FAIL(run, "joining a string marked safe with another string is not supported");
  size_t bytes = a->text.bytes + b->text.bytes;
  if (bytes > run->text_most) return TPL_FAIL(run, "a text grows beyond %zu bytes", run->text_most);
  char *text;
  RF_TRY(rf_tpl_step(run, bytes / 64));
  RF_TRY(rf_tpl_room(run, bytes, 1, &text));
  if (a->text.bytes) memcpy(text, a->text.at, a->text.bytes);
  if (b->text.bytes) memcpy(text + a->text.bytes, b->text.at, b->text.bytes);
  *result = tpl_string(text, bytes);
  return RAFTER_OK;
}

static rf_status join_lists(tpl_run *run, const tpl_value *a, const tpl_value *b, tpl_value *result) {
  size_t count = a->list->count + b->list->count;
  tpl_value *items;
  RF_TRY(rf_tpl_step(run, count / 4));
  RF_TRY(rf_tpl_room(run, count, sizeof *items, &items));
  for (size_t i = 0; i < count; ++i)
    items[i] = i < a->list->count ? a->list->item[i] : b->list->item[i - a->list->count];
  return rf_tpl_list(run, a->form, items, count, result);
}

static rf_status repeat_value(tpl_run *run, const tpl_value *what, int64_t times, tpl_value *result) {
  size_t unit = what->kind == TPL_STRING ? what->text.bytes : what->list->count, total;
  if (times < 0) times = 0;
  if (__builtin_mul_overflow(unit, (size_t)times, &total) || total > run->text_most)
    return TPL_FAIL(run, "a repetition grows too large");
  RF_TRY(rf_tpl_step(run, total / 4));
  if (what->kind == TPL_STRING) {
    char *text;
    RF_TRY(rf_tpl_room(run, total, 1, &text));
    for (size_t at = 0; at < total; at += unit) memcpy(text + at, what->text.at, unit);
    *result = tpl_string(text, total);
    return RAFTER_OK;
  }
  tpl_value *items;
  RF_TRY(rf_tpl_room(run, total, sizeof *items, &items));
  for (size_t i = 0; i < total; ++i) items[i] = what->list->item[i % unit];
  return rf_tpl_list(run, what->form, items, total, result);
}

static bool can_repeat(const tpl_value *value) {
  return (value->kind == TPL_STRING && value->form == FORM_PLAIN) ||
         (value->kind == TPL_LIST && value->form <= FORM_TUPLE);
}

rf_status rf_tpl_arithmetic(tpl_run *run, int op, const tpl_value *a, const tpl_value *b, tpl_value *result) {
  int64_t i, j;
  double x, y;
  if (op == '~') {
    tpl_value both[2] = {*a, *b};
    for (int k = 0; k < 2; ++k)
      if (both[k].kind != TPL_STRING) {
        RF_TRY(rf_tpl_str(run, &both[k], &both[k].text));
        both[k].kind = TPL_STRING;
        both[k].form = FORM_PLAIN;
      }
    return join_strings(run, &both[0], &both[1], result);
  }
  if (op != '/' && rf_tpl_whole(a, &i) && rf_tpl_whole(b, &j)) return whole_arithmetic(run, op, i, j, result);
  if (rf_tpl_number(a, &x) && rf_tpl_number(b, &y)) return real_arithmetic(run, op, x, y, result);
  if (op == '+' && a->kind == TPL_STRING && b->kind == TPL_STRING) return join_strings(run, a, b, result);
  if (op == '+' && a->kind == TPL_LIST && b->kind == TPL_LIST && a->form == b->form && a->form <= FORM_TUPLE)
    return join_lists(run, a, b, result);
  if (op == '*' && can_repeat(a) && rf_tpl_whole(b, &j)) return repeat_value(run, a, j, result);
  if (op == '*' && can_repeat(b) && rf_tpl_whole(a, &i)) return repeat_value(run, b, i, result);
  if (a->kind == TPL_UNDEFINED || b->kind == TPL_UNDEFINED) {
    tpl_text name = a->kind == TPL_UNDEFINED ? a->text : b->text;
    return TPL_FAIL(run, "'%.*s' is undefined", TPL_SHOWN(name));
  }
  return TPL_FAIL(run, "the operator '%c' is not supported between %s and %s", op & 0xff, rf_tpl_kind_name(a),
                  rf_tpl_kind_name(b));
}
