/* template_value.c - the values of a rendering, with Python's semantics: truth, equality, order,
 * lists and dicts. */
#include "text/template_parts.h"

#include <math.h>
#include <string.h>

/* ---- budgets --------------------------------------------------------------------------------- */

rf_status rf_tpl_step(tpl_run *run, size_t steps) {
  if (run->steps_left >= 0 && steps <= (size_t)run->steps_left) {
    run->steps_left -= (int64_t)steps;
    return RAFTER_OK;
  }
  run->steps_left = -1;
  return TPL_FAIL(run, "the template takes too many steps");
}

rf_status rf_tpl_room(tpl_run *run, size_t count, size_t size, void *memory) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > run->room_left || run->room_left - bytes < 32)
    return TPL_FAIL(run, "the template takes too much memory");
  run->room_left -= bytes + 32; /* 32: overhead of one allocation */
  *(void **)memory = rf_pool_alloc(run->pool, bytes ? bytes : 1);
  return RAFTER_OK;
}

/* ---- kinds of values ------------------------------------------------------------------------- */

const char *rf_tpl_kind_name(const tpl_value *value) {
  static const char *const names[] = {
      "an undefined value", "none",     "a boolean", "an integer", "a float", "a string", "a list", "a dict",
      "a namespace",        "the loop", "a macro",   "a function", "a method"};
  return names[value->kind];
}

bool rf_tpl_truth(const tpl_value *value) {
  switch ((tpl_kind)value->kind) {
  case TPL_UNDEFINED:
  case TPL_NONE: return false;
  case TPL_BOOL: return value->truth;
  case TPL_INT: return value->whole != 0;
  case TPL_FLOAT: return value->real != 0;
  case TPL_STRING: return value->text.bytes != 0;
  case TPL_LIST: return value->form == FORM_LAZY || value->list->count != 0;
  case TPL_DICT: return value->dict->count != 0;
  default: return true;
  }
}

bool rf_tpl_whole(const tpl_value *value, int64_t *whole) {
  if (value->kind != TPL_INT && value->kind != TPL_BOOL) return false;
  *whole = value->kind == TPL_INT ? value->whole : value->truth;
  return true;
}

bool rf_tpl_number(const tpl_value *value, double *real) {
  int64_t whole;
  if (value->kind == TPL_FLOAT) *real = value->real;
  else if (rf_tpl_whole(value, &whole)) *real = (double)whole;
  else return false;
  return true;
}

/* ---- equality and order ---------------------------------------------------------------------- */

/* Compares an int with a float exactly. Converting a large int to double would round the int. */
static int order_numbers(const tpl_value *a, const tpl_value *b) {
  int64_t x, y;
  if (rf_tpl_whole(a, &x) && rf_tpl_whole(b, &y)) return x < y ? -1 : x > y;
  long double u = a->kind == TPL_FLOAT ? (long double)a->real
                  : a->kind == TPL_INT ? (long double)a->whole
                                       : a->truth;
  long double v = b->kind == TPL_FLOAT ? (long double)b->real
                  : b->kind == TPL_INT ? (long double)b->whole
                                       : b->truth;
  return u < v ? -1 : u > v ? 1 : u == v ? 0 : 2; /* 2: one value is NaN */
}

static rf_status equal_dicts(tpl_run *run, const tpl_dict *a, const tpl_dict *b, bool *equal) {
  *equal = a->count == b->count;
  for (size_t i = 0; *equal && i < a->count; ++i) {
    size_t index;
    RF_TRY(rf_tpl_dict_find(run, b, &a->key[i], &index));
    if (index == SIZE_MAX) *equal = false;
    else RF_TRY(rf_tpl_equal(run, &a->value[i], &b->value[index], equal));
  }
  return RAFTER_OK;
}

rf_status rf_tpl_equal(tpl_run *run, const tpl_value *a, const tpl_value *b, bool *equal) {
  double x, y;
  RF_TRY(rf_tpl_step(run, 1));
  *equal = false;
  if (rf_tpl_number(a, &x) && rf_tpl_number(b, &y)) *equal = order_numbers(a, b) == 0;
  else if (a->kind != b->kind) return RAFTER_OK;
  else if (a->kind == TPL_STRING) {
    RF_TRY(rf_tpl_step(run, a->text.bytes / 64));
    *equal = rf_tpl_same(a->text, b->text);
  } else if (a->kind == TPL_LIST && a->form != b->form) *equal = false;
  else if (a->kind == TPL_LIST && (a->form == FORM_VIEW || a->form == FORM_LAZY)) *equal = a->list == b->list;
  else if (a->kind == TPL_LIST) {
    *equal = a->list->count == b->list->count;
    for (size_t i = 0; *equal && i < a->list->count; ++i)
      RF_TRY(rf_tpl_equal(run, &a->list->item[i], &b->list->item[i], equal));
  } else if (a->kind == TPL_DICT) return equal_dicts(run, a->dict, b->dict, equal);
  else if (a->kind == TPL_NAMESPACE) *equal = a->dict == b->dict;
  else if (a->kind >= TPL_LOOP) *equal = a->macro == b->macro;
  else *equal = true; /* a and b are both none or both undefined */
  return RAFTER_OK;
}

rf_status rf_tpl_order(tpl_run *run, const tpl_value *a, const tpl_value *b, int *order) {
  double x, y;
  RF_TRY(rf_tpl_step(run, 1));
  if (rf_tpl_number(a, &x) && rf_tpl_number(b, &y)) {
    *order = order_numbers(a, b);
    return RAFTER_OK;
  }
  /* The order of UTF-8 bytes equals the order of code points. */
  if (a->kind == TPL_STRING && b->kind == TPL_STRING) {
    size_t shorter = a->text.bytes < b->text.bytes ? a->text.bytes : b->text.bytes;
    RF_TRY(rf_tpl_step(run, shorter / 64));
    int least = shorter ? memcmp(a->text.at, b->text.at, shorter) : 0;
    *order = least                           ? (least < 0 ? -1 : 1)
             : a->text.bytes < b->text.bytes ? -1
                                             : a->text.bytes > b->text.bytes;
    return RAFTER_OK;
  }
  if (a->kind != TPL_LIST || b->kind != TPL_LIST || a->form != b->form || a->form > FORM_TUPLE)
    return TPL_FAIL(run, "%s and %s have no order", rf_tpl_kind_name(a), rf_tpl_kind_name(b));
  for (size_t i = 0; i < a->list->count && i < b->list->count; ++i) {
    bool equal;
    RF_TRY(rf_tpl_equal(run, &a->list->item[i], &b->list->item[i], &equal));
    if (!equal) return rf_tpl_order(run, &a->list->item[i], &b->list->item[i], order);
  }
  *order = a->list->count < b->list->count ? -1 : a->list->count > b->list->count;
  return RAFTER_OK;
}

rf_status rf_tpl_contains(tpl_run *run, const tpl_value *container, const tpl_value *item, bool *found) {
  *found = false;
  if (container->kind == TPL_STRING) {
    if (item->kind != TPL_STRING)
      return TPL_FAIL(run, "only a string can be in a string, not %s", rf_tpl_kind_name(item));
    RF_TRY(rf_tpl_step(run, container->text.bytes / 16));
    *found = rf_tpl_find(container->text, item->text, 0) != SIZE_MAX;
    return RAFTER_OK;
  }
  if (container->kind == TPL_DICT) {
    size_t index;
    RF_TRY(rf_tpl_dict_find(run, container->dict, item, &index));
    *found = index != SIZE_MAX;
    return RAFTER_OK;
  }
  tpl_list items;
  RF_TRY(rf_tpl_iterate(run, container, &items));
  for (size_t i = 0; !*found && i < items.count; ++i) RF_TRY(rf_tpl_equal(run, &items.item[i], item, found));
  return RAFTER_OK;
}

/* ---- lists and dicts ------------------------------------------------------------------------- */

static rf_status check_nesting(tpl_run *run, tpl_value *outer, const tpl_value *inner) {
  if ((inner->kind == TPL_LIST || inner->kind == TPL_DICT) && inner->depth >= outer->depth)
    outer->depth = (uint16_t)(inner->depth + 1);
  if (outer->depth > TPL_VALUE_DEPTH)
    return TPL_FAIL(run, "lists and dicts nest more than %d deep", TPL_VALUE_DEPTH);
  return RAFTER_OK;
}

rf_status rf_tpl_list(tpl_run *run, int form, const tpl_value *items, size_t count, tpl_value *list) {
  tpl_list *made;
  RF_TRY(rf_tpl_step(run, count / 4));
  RF_TRY(rf_tpl_room(run, 1, sizeof *made, &made));
  RF_TRY(rf_tpl_room(run, count, sizeof *items, &made->item));
  made->count = count;
  *list = (tpl_value){.kind = TPL_LIST, .form = (uint8_t)form, .list = made};
  for (size_t i = 0; i < count; ++i) {
    made->item[i] = items[i];
    RF_TRY(check_nesting(run, list, &items[i]));
  }
  return RAFTER_OK;
}

rf_status rf_tpl_dict(tpl_run *run, tpl_value *dict) {
  *dict = (tpl_value){.kind = TPL_DICT};
  return rf_tpl_room(run, 1, sizeof *dict->dict, &dict->dict);
}

rf_status rf_tpl_dict_find(tpl_run *run, const tpl_dict *dict, const tpl_value *key, size_t *index) {
  *index = SIZE_MAX;
  if (key->kind == TPL_DICT || (key->kind == TPL_LIST && key->form != FORM_TUPLE))
    return TPL_FAIL(run, "%s cannot be the key of a dict", rf_tpl_kind_name(key));
  RF_TRY(rf_tpl_step(run, dict->count / 16));
  for (size_t i = 0; i < dict->count; ++i) {
    bool equal = false;
    if (key->kind == TPL_STRING)
      equal = dict->key[i].kind == TPL_STRING && rf_tpl_same(key->text, dict->key[i].text);
    else RF_TRY(rf_tpl_equal(run, key, &dict->key[i], &equal));
    if (!equal) continue;
    *index = i;
    break;
  }
  return RAFTER_OK;
}

/* Appends an entry. The caller has checked that the dict does not have the key. */
static rf_status dict_append(tpl_run *run, tpl_value *value, const tpl_value *key, const tpl_value *item) {
  tpl_dict *dict = value->dict;
  if (dict->count == dict->capacity) {
    size_t capacity = dict->capacity ? dict->capacity * 2 : 4;
    tpl_value *keys, *values;
    RF_TRY(rf_tpl_room(run, capacity, sizeof *keys, &keys));
    RF_TRY(rf_tpl_room(run, capacity, sizeof *values, &values));
    for (size_t i = 0; i < dict->count; ++i) {
      keys[i] = dict->key[i];
      values[i] = dict->value[i];
    }
    dict->key = keys;
    dict->value = values;
    dict->capacity = capacity;
  }
  dict->key[dict->count] = *key;
  dict->value[dict->count++] = *item;
  return RAFTER_OK;
}

rf_status rf_tpl_dict_set(tpl_run *run, tpl_value *value, const tpl_value *key, const tpl_value *item) {
  size_t index;
  RF_TRY(rf_tpl_dict_find(run, value->dict, key, &index));
  /* No function recurses into a namespace, so the depth of its values needs no check. */
  if (value->kind == TPL_DICT) RF_TRY(check_nesting(run, value, item));
  if (index == SIZE_MAX) return dict_append(run, value, key, item);
  value->dict->value[index] = *item;
  return RAFTER_OK;
}

rf_status rf_tpl_iterate(tpl_run *run, const tpl_value *value, tpl_list *items) {
  *items = (tpl_list){0};
  if (value->kind == TPL_LIST) {
    *items = *value->list;
    if (value->form == FORM_LAZY) {
      items->item += value->list->next;
      items->count -= value->list->next;
      value->list->next = value->list->count;
    }
  } else if (value->kind == TPL_DICT) {
    items->item = value->dict->key;
    items->count = value->dict->count;
  } else if (value->kind == TPL_STRING) {
    size_t count = (size_t)rf_tpl_points(value->text), at = 0;
    RF_TRY(rf_tpl_step(run, value->text.bytes));
    RF_TRY(rf_tpl_room(run, count, sizeof *items->item, &items->item));
    for (items->count = 0; items->count < count; ++items->count) {
      size_t end = at + rf_tpl_offset((tpl_text){value->text.at + at, value->text.bytes - at}, 1);
      items->item[items->count] = tpl_string(value->text.at + at, end - at);
      at = end;
    }
  } else if (value->kind != TPL_UNDEFINED) {
    return TPL_FAIL(run, "%s cannot be iterated over", rf_tpl_kind_name(value));
  }
  return rf_tpl_step(run, items->count / 16);
}

rf_status rf_tpl_from_json(tpl_run *run, const json_t *json, int depth, tpl_value *value) {
  RF_TRY(rf_tpl_step(run, 1));
  if (depth > TPL_VALUE_DEPTH) return TPL_FAIL(run, "the variables nest more than %d deep", TPL_VALUE_DEPTH);
  switch (json_typeof(json)) {
  case JSON_STRING: *value = tpl_string(json_string_value(json), json_string_length(json)); break;
  case JSON_INTEGER: *value = tpl_int(json_integer_value(json)); break;
  case JSON_REAL: *value = tpl_float(json_real_value(json)); break;
  case JSON_TRUE: *value = tpl_bool(true); break;
  case JSON_FALSE: *value = tpl_bool(false); break;
  case JSON_NULL: *value = tpl_none(); break;
  case JSON_ARRAY: {
    size_t count = json_array_size(json);
    tpl_value *items;
    RF_TRY(rf_tpl_room(run, count, sizeof *items, &items));
    for (size_t i = 0; i < count; ++i)
      RF_TRY(rf_tpl_from_json(run, json_array_get(json, i), depth + 1, &items[i]));
    return rf_tpl_list(run, FORM_LIST, items, count, value);
  }
  case JSON_OBJECT: {
    const char *key;
    json_t *child;
    RF_TRY(rf_tpl_dict(run, value));
    json_object_foreach ((json_t *)json, key, child) {
      tpl_value name = tpl_string(key, strlen(key)), item;
      RF_TRY(rf_tpl_from_json(run, child, depth + 1, &item));
      RF_TRY(check_nesting(run, value, &item));
      RF_TRY(dict_append(run, value, &name, &item));
    }
    break;
  }
  }
  return RAFTER_OK;
}

/* ---- items and slices ------------------------------------------------------------------------ */

rf_status rf_tpl_attribute(tpl_run *run, const tpl_value *object, tpl_text name, tpl_value *result) {
  if (object->kind == TPL_UNDEFINED)
    return TPL_FAIL(run, "'%.*s' is undefined, so it has no '%.*s'", TPL_SHOWN(object->text),
                    TPL_SHOWN(name));
  if (name.bytes >= 2 && name.at[0] == '_' && name.at[1] == '_')
    return TPL_FAIL(run, "the attribute '%.*s' is not supported", TPL_SHOWN(name));
  const tpl_function *row = rf_tpl_method(object, name);
  if (row && !row->call)
    return TPL_FAIL(run, "the attribute '%.*s' of %s is not supported", TPL_SHOWN(name),
                    rf_tpl_kind_name(object));
  if (row) {
    tpl_method *method;
    RF_TRY(rf_tpl_room(run, 1, sizeof *method, &method));
    RF_TRY(rf_tpl_room(run, 1, sizeof *method->self, &method->self));
    method->function = row;
    *method->self = *object;
    *result = (tpl_value){.kind = TPL_METHOD, .method = method};
    return RAFTER_OK;
  }
  *result = tpl_undefined(name.at, name.bytes);
  if (object->kind != TPL_DICT && object->kind != TPL_NAMESPACE) return RAFTER_OK;
  size_t index;
  tpl_value key = tpl_string(name.at, name.bytes);
  RF_TRY(rf_tpl_dict_find(run, object->dict, &key, &index));
  if (index != SIZE_MAX) *result = object->dict->value[index];
  return RAFTER_OK;
}

rf_status rf_tpl_item(tpl_run *run, const tpl_value *object, const tpl_value *index, tpl_value *result) {
  int64_t at, count;
  if (object->kind == TPL_UNDEFINED)
    return TPL_FAIL(run, "'%.*s' is undefined, so it has no items", TPL_SHOWN(object->text));
  *result = tpl_undefined("an item", 7);
  if (object->kind == TPL_DICT) {
    size_t found = SIZE_MAX;
    bool hashable = index->kind != TPL_DICT && (index->kind != TPL_LIST || index->form == FORM_TUPLE);
    if (hashable) RF_TRY(rf_tpl_dict_find(run, object->dict, index, &found));
    if (found != SIZE_MAX) {
      *result = object->dict->value[found];
      return RAFTER_OK;
    }
  } else if (object->kind == TPL_STRING && rf_tpl_whole(index, &at)) {
    RF_TRY(rf_tpl_step(run, object->text.bytes / 16));
    count = rf_tpl_points(object->text);
    if (at < 0) at += count;
    if (at < 0 || at >= count) return RAFTER_OK;
    size_t first = rf_tpl_offset(object->text, at), last = rf_tpl_offset(object->text, at + 1);
    *result = tpl_string(object->text.at + first, last - first);
    return RAFTER_OK;
  } else if (object->kind == TPL_LIST && object->form < FORM_VIEW && rf_tpl_whole(index, &at)) {
    count = (int64_t)object->list->count;
    if (at < 0) at += count;
    if (at >= 0 && at < count) *result = object->list->item[at];
    return RAFTER_OK;
  }
  return index->kind == TPL_STRING ? rf_tpl_attribute(run, object, index->text, result) : RAFTER_OK;
}

/* Reads one bound of a slice, and limits the bound to least..most, as Python does. */
static rf_status slice_bound(tpl_run *run, const tpl_value *value, int64_t otherwise, int64_t least,
                             int64_t most, int64_t count, int64_t *bound) {
  *bound = otherwise;
  if (value->kind == TPL_NONE) return RAFTER_OK;
  if (!rf_tpl_whole(value, bound))
    return TPL_FAIL(run, "a slice's bound must be an integer or none, not %s", rf_tpl_kind_name(value));
  if (*bound < 0) *bound += count;
  if (*bound < least) *bound = least;
  if (*bound > most) *bound = most;
  return RAFTER_OK;
}

rf_status rf_tpl_slice(tpl_run *run, const tpl_value *object, const tpl_value bounds[3], tpl_value *result) {
  int64_t step = 1, start, stop;
  if (object->kind == TPL_UNDEFINED)
    return TPL_FAIL(run, "'%.*s' is undefined, so it has no items", TPL_SHOWN(object->text));
  bool sliced = object->kind == TPL_STRING || (object->kind == TPL_LIST && object->form < FORM_VIEW);
  if (!sliced) return TPL_FAIL(run, "%s cannot be sliced", rf_tpl_kind_name(object));
  if (bounds[2].kind != TPL_NONE && !rf_tpl_whole(&bounds[2], &step))
    return TPL_FAIL(run, "a slice's step must be an integer or none");
  if (step == 0) return TPL_FAIL(run, "a slice's step must not be 0");
  tpl_list items;
  RF_TRY(rf_tpl_iterate(run, object, &items));
  int64_t count = (int64_t)items.count;
  RF_TRY(slice_bound(run, &bounds[0], step > 0 ? 0 : count - 1, step > 0 ? 0 : -1,
                     step > 0 ? count : count - 1, count, &start));
  RF_TRY(slice_bound(run, &bounds[1], step > 0 ? count : -1, step > 0 ? 0 : -1, step > 0 ? count : count - 1,
                     count, &stop));
  tpl_value *taken;
  size_t length = 0, bytes = 0;
  RF_TRY(rf_tpl_room(run, items.count, sizeof *taken, &taken));
  if (step > count) step = count + 1; /* a larger step would select the same items, but could overflow */
  if (step < -count) step = -count - 1;
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    taken[length] = items.item[i];
    if (object->kind == TPL_STRING) bytes += taken[length].text.bytes;
    ++length;
  }
  if (object->kind == TPL_LIST) return rf_tpl_list(run, object->form, taken, length, result);
  char *text;
  RF_TRY(rf_tpl_room(run, bytes, 1, &text));
  *result = tpl_string(text, bytes);
  for (size_t i = 0, at = 0; i < length; at += taken[i++].text.bytes)
    memcpy(text + at, taken[i].text.at, taken[i].text.bytes);
  return RAFTER_OK;
}
