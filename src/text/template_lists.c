/* template_lists.c - filters on lists and dicts, and a table of the tests ("is defined"). */
#include "text/template_lists.h"

#include <math.h>
#include <string.h>

#include "text/template_eval.h"

/* ---- first, last, list, items, join ---------------------------------------------------------- */

rf_status rf_tpl_filter_first(tpl_run *run, const tpl_value *self, const tpl_value *argument,
                              tpl_value *result) {
  (void)argument;
  tpl_list items;
  size_t next = self->kind == TPL_LIST ? self->list->next : 0;
  RF_TRY(rf_tpl_iterate(run, self, &items));
  *result = items.count ? items.item[0] : tpl_undefined("the first item", 14);
  /* The other items remain for later reads of the lazy list. */
  if (self->kind == TPL_LIST && self->form == FORM_LAZY && items.count) self->list->next = next + 1;
  return RAFTER_OK;
}

rf_status rf_tpl_filter_last(tpl_run *run, const tpl_value *self, const tpl_value *argument,
                             tpl_value *result) {
  (void)argument;
  tpl_list items;
  if (self->kind == TPL_LIST && self->form == FORM_LAZY)
    return TPL_FAIL(run, "a lazy filter has no last item: use |list first");
  RF_TRY(rf_tpl_iterate(run, self, &items));
  *result = items.count ? items.item[items.count - 1] : tpl_undefined("the last item", 13);
  return RAFTER_OK;
}

rf_status rf_tpl_filter_list(tpl_run *run, const tpl_value *self, const tpl_value *argument,
                             tpl_value *result) {
  (void)argument;
  tpl_list items;
  RF_TRY(rf_tpl_iterate(run, self, &items));
  return rf_tpl_list(run, FORM_LIST, items.item, items.count, result);
}

rf_status rf_tpl_filter_items(tpl_run *run, const tpl_value *self, const tpl_value *argument,
                              tpl_value *result) {
  (void)argument;
  static const tpl_dict empty;
  if (self->kind != TPL_DICT && self->kind != TPL_UNDEFINED)
    return TPL_FAIL(run, "only a dict has items, not %s", rf_tpl_kind_name(self));
  const tpl_dict *dict = self->kind == TPL_DICT ? self->dict : &empty;
  tpl_value *pairs;
  RF_TRY(rf_tpl_room(run, dict->count, sizeof *pairs, &pairs));
  for (size_t i = 0; i < dict->count; ++i)
    RF_TRY(rf_tpl_list(run, FORM_TUPLE, (const tpl_value[]){dict->key[i], dict->value[i]}, 2, &pairs[i]));
  return rf_tpl_list(run, FORM_LAZY, pairs, dict->count, result);
}

/* Evaluates item[part][part]... for the parts of a dotted name; digits are an index. */
static rf_status get_path(tpl_run *run, const tpl_value *item, const tpl_value *path, tpl_value *result) {
  *result = *item;
  if (path->kind != TPL_STRING) return rf_tpl_item(run, item, path, result);
  for (tpl_text rest = path->text;;) {
    size_t dot = rf_tpl_find(rest, TPL_TEXT("."), 0);
    tpl_text part = {rest.at, dot == SIZE_MAX ? rest.bytes : dot};
    tpl_value key = {.kind = TPL_STRING, .text = part}, object = *result;
    int64_t index = 0;
    size_t digits = 0;
    while (digits < part.bytes && digits < 18 && part.at[digits] >= '0' && part.at[digits] <= '9')
      index = index * 10 + (part.at[digits++] - '0');
    if (digits && digits == part.bytes) key = tpl_int(index);
    RF_TRY(rf_tpl_step(run, 1));
    RF_TRY(rf_tpl_item(run, &object, &key, result));
    if (dot == SIZE_MAX) return RAFTER_OK;
    rest = (tpl_text){rest.at + dot + 1, rest.bytes - dot - 1};
  }
}

static rf_status get_paths(tpl_run *run, tpl_list *items, const tpl_value *path, const tpl_value *otherwise) {
  tpl_value *got;
  RF_TRY(rf_tpl_room(run, items->count, sizeof *got, &got));
  for (size_t i = 0; i < items->count; ++i) {
    RF_TRY(get_path(run, &items->item[i], path, &got[i]));
    if (got[i].kind == TPL_UNDEFINED && otherwise) got[i] = *otherwise;
  }
  items->item = got;
  return RAFTER_OK;
}

rf_status rf_tpl_filter_join(tpl_run *run, const tpl_value *self, const tpl_value *argument,
                             tpl_value *result) {
  tpl_list items;
  tpl_text between = TPL_TEXT("");
  RF_TRY(rf_tpl_iterate(run, self, &items));
  if (TPL_GIVEN(argument[0])) RF_TRY(rf_tpl_str(run, &argument[0], &between));
  if (TPL_GIVEN(argument[1]) && argument[1].kind != TPL_NONE)
    RF_TRY(get_paths(run, &items, &argument[1], NULL));
  return rf_tpl_join(run, between, &items, false, result);
}

/* ---- map, select, reject --------------------------------------------------------------------- */

static rf_status named_argument(tpl_run *run, const tpl_arguments *arguments, int index, const char *what,
                                tpl_text *name) {
  if (index >= arguments->count || arguments->name[index].at)
    return TPL_FAIL(run, "the name of a %s is missing", what);
  return rf_tpl_wants_text(run, &arguments->value[index], "the name", name);
}

/* The arguments after the first `skip`. A call without arguments has no arrays to point into. */
static tpl_arguments arguments_after(const tpl_arguments *arguments, int skip) {
  return skip ? (tpl_arguments){arguments->value + skip, arguments->name + skip, arguments->count - skip}
              : *arguments;
}

rf_status rf_tpl_filter_map(tpl_run *run, const tpl_value *self, const tpl_arguments *arguments,
                            tpl_value *result) {
  tpl_list items;
  /* Jinja does not check the arguments when the list is empty. */
  if (!rf_tpl_truth(self)) return rf_tpl_list(run, FORM_LAZY, NULL, 0, result);
  RF_TRY(rf_tpl_iterate(run, self, &items));
  if (arguments->count && arguments->name[0].at) {
    const tpl_value *path = NULL, *otherwise = NULL;
    for (int i = 0; i < arguments->count; ++i) {
      if (rf_tpl_is(arguments->name[i], "attribute")) path = &arguments->value[i];
      else if (rf_tpl_is(arguments->name[i], "default")) otherwise = &arguments->value[i];
      else
        return TPL_FAIL(run, "\"map\" does not take the argument %.*s",
                        (int)(arguments->name[i].bytes < 60 ? arguments->name[i].bytes : 60),
                        arguments->name[i].at);
    }
    if (!path) return TPL_FAIL(run, "\"map\" needs an attribute or the name of a filter");
    if (otherwise && otherwise->kind == TPL_NONE) otherwise = NULL;
    RF_TRY(get_paths(run, &items, path, otherwise));
    return rf_tpl_list(run, FORM_LAZY, items.item, items.count, result);
  }
  tpl_text name;
  RF_TRY(named_argument(run, arguments, 0, "filter", &name));
  const tpl_function *row = rf_tpl_filter(name);
  if (!row)
    return TPL_FAIL(run, "unknown filter \"%.*s\"", (int)(name.bytes < 60 ? name.bytes : 60), name.at);
  tpl_arguments rest = arguments_after(arguments, 1);
  tpl_value *got;
  RF_TRY(rf_tpl_room(run, items.count, sizeof *got, &got));
  if (++run->depth > TPL_RUN_DEPTH) return TPL_FAIL(run, "filters nest too deep");
  for (size_t i = 0; i < items.count; ++i) {
    RF_TRY(rf_tpl_step(run, 1));
    RF_TRY(rf_tpl_call_row(run, row, &items.item[i], &rest, &got[i]));
  }
  --run->depth;
  return rf_tpl_list(run, FORM_LAZY, got, items.count, result);
}

/* Keeps the items for which a test gives `wanted`; without a test, the truth value of the item
 * counts. With `by_path`, the test applies to an attribute of the item (argument 0). */
static rf_status choose(tpl_run *run, const tpl_value *self, const tpl_arguments *arguments, bool by_path,
                        bool wanted, tpl_value *result) {
  tpl_list items;
  tpl_value *kept;
  size_t count = 0;
  const tpl_function *row = NULL;
  tpl_text name;
  if (!rf_tpl_truth(self)) return rf_tpl_list(run, FORM_LAZY, NULL, 0, result);
  if (by_path && (arguments->count == 0 || arguments->name[0].at))
    return TPL_FAIL(run, "the name of an attribute is missing");
  if (arguments->count > by_path) {
    RF_TRY(named_argument(run, arguments, by_path, "test", &name));
    row = rf_tpl_test(name);
    if (!row)
      return TPL_FAIL(run, "unknown test \"%.*s\"", (int)(name.bytes < 60 ? name.bytes : 60), name.at);
  }
  int skip = by_path + (row != NULL);
  tpl_arguments rest = arguments_after(arguments, skip);
  RF_TRY(rf_tpl_iterate(run, self, &items));
  RF_TRY(rf_tpl_room(run, items.count, sizeof *kept, &kept));
  for (size_t i = 0; i < items.count; ++i) {
    tpl_value seen = items.item[i], holds;
    RF_TRY(rf_tpl_step(run, 1));
    if (by_path) RF_TRY(get_path(run, &items.item[i], &arguments->value[0], &seen));
    holds = seen;
    if (row) RF_TRY(rf_tpl_call_row(run, row, &seen, &rest, &holds));
    if (rf_tpl_truth(&holds) == wanted) kept[count++] = items.item[i];
  }
  return rf_tpl_list(run, FORM_LAZY, kept, count, result);
}

rf_status rf_tpl_filter_select(tpl_run *run, const tpl_value *self, const tpl_arguments *arguments,
                               tpl_value *result) {
  return choose(run, self, arguments, false, true, result);
}
rf_status rf_tpl_filter_reject(tpl_run *run, const tpl_value *self, const tpl_arguments *arguments,
                               tpl_value *result) {
  return choose(run, self, arguments, false, false, result);
}
rf_status rf_tpl_filter_selectattr(tpl_run *run, const tpl_value *self, const tpl_arguments *arguments,
                                   tpl_value *result) {
  return choose(run, self, arguments, true, true, result);
}
rf_status rf_tpl_filter_rejectattr(tpl_run *run, const tpl_value *self, const tpl_arguments *arguments,
                                   tpl_value *result) {
  return choose(run, self, arguments, true, false, result);
}

/* ---- tests ----------------------------------------------------------------------------------- */

#define KIND_TEST(name, condition) \
  static rf_status test_##name(tpl_run *run, const tpl_value *self, const tpl_value *argument, \
                               tpl_value *result) { \
    (void)run, (void)argument; \
    *result = tpl_bool(condition); \
    return RAFTER_OK; \
  }
/* KIND_TEST(none, condition) defines the function test_none, whose result is the condition. */
KIND_TEST(defined, self->kind != TPL_UNDEFINED)
KIND_TEST(undefined, self->kind == TPL_UNDEFINED)
KIND_TEST(none, self->kind == TPL_NONE)
KIND_TEST(string, self->kind == TPL_STRING)
KIND_TEST(mapping, self->kind == TPL_DICT)
KIND_TEST(boolean, self->kind == TPL_BOOL)
KIND_TEST(true, self->kind == TPL_BOOL && self->truth)
KIND_TEST(false, self->kind == TPL_BOOL && !self->truth)
KIND_TEST(integer, self->kind == TPL_INT)
KIND_TEST(float, self->kind == TPL_FLOAT)
KIND_TEST(number, self->kind >= TPL_BOOL && self->kind <= TPL_FLOAT)
KIND_TEST(iterable, self->kind == TPL_UNDEFINED || (self->kind >= TPL_STRING && self->kind <= TPL_DICT) ||
                        self->kind == TPL_LOOP)
KIND_TEST(sequence, self->kind == TPL_UNDEFINED || self->kind == TPL_STRING || self->kind == TPL_DICT ||
                        (self->kind == TPL_LIST && self->form < FORM_VIEW))

#define COMPARE_TEST(name, op) \
  static rf_status test_##name(tpl_run *run, const tpl_value *self, const tpl_value *argument, \
                               tpl_value *result) { \
    bool holds; \
    RF_TRY(rf_tpl_compare(run, op, self, &argument[0], &holds)); \
    *result = tpl_bool(holds); \
    return RAFTER_OK; \
  }
/* COMPARE_TEST(lt, '<') defines the function test_lt, whose result is "self < argument". */
COMPARE_TEST(eq, TPL_OP('=', '='))
COMPARE_TEST(ne, TPL_OP('!', '='))
COMPARE_TEST(lt, '<')
COMPARE_TEST(gt, '>')
COMPARE_TEST(le, TPL_OP('<', '='))
COMPARE_TEST(ge, TPL_OP('>', '='))
COMPARE_TEST(in, 'i')

static rf_status rest_is(tpl_run *run, const tpl_value *self, int64_t by, int64_t wanted, tpl_value *result) {
  tpl_value divisor = tpl_int(by), rest, goal = tpl_int(wanted);
  bool equal;
  RF_TRY(rf_tpl_arithmetic(run, '%', self, &divisor, &rest));
  RF_TRY(rf_tpl_equal(run, &rest, &goal, &equal));
  *result = tpl_bool(equal);
  return RAFTER_OK;
}
static rf_status test_odd(tpl_run *run, const tpl_value *self, const tpl_value *argument, tpl_value *result) {
  (void)argument;
  return rest_is(run, self, 2, 1, result);
}
static rf_status test_even(tpl_run *run, const tpl_value *self, const tpl_value *argument,
                           tpl_value *result) {
  (void)argument;
  return rest_is(run, self, 2, 0, result);
}
static rf_status test_divisibleby(tpl_run *run, const tpl_value *self, const tpl_value *argument,
                                  tpl_value *result) {
  int64_t by;
  RF_TRY(rf_tpl_wants_whole(run, &argument[0], "the divisor", 1, &by));
  return rest_is(run, self, by, 0, result);
}

static const tpl_function TESTS[] = {
    {.name = "defined", .call = test_defined},
    {.name = "undefined", .call = test_undefined},
    {.name = "none", .call = test_none},
    {.name = "string", .call = test_string},
    {.name = "mapping", .call = test_mapping},
    {.name = "boolean", .call = test_boolean},
    {.name = "true", .call = test_true},
    {.name = "false", .call = test_false},
    {.name = "integer", .call = test_integer},
    {.name = "float", .call = test_float},
    {.name = "number", .call = test_number},
    {.name = "iterable", .call = test_iterable},
    {.name = "sequence", .call = test_sequence},
    {.name = "odd", .call = test_odd},
    {.name = "even", .call = test_even},
    {.name = "divisibleby", .call = test_divisibleby, .parameter = {"num"}, .needed = 1},
    {.name = "eq", .call = test_eq, .parameter = {"b"}, .needed = 1},
    {.name = "equalto", .call = test_eq, .parameter = {"b"}, .needed = 1},
    {.name = "==", .call = test_eq, .parameter = {"b"}, .needed = 1},
    {.name = "ne", .call = test_ne, .parameter = {"b"}, .needed = 1},
    {.name = "!=", .call = test_ne, .parameter = {"b"}, .needed = 1},
    {.name = "lt", .call = test_lt, .parameter = {"b"}, .needed = 1},
    {.name = "lessthan", .call = test_lt, .parameter = {"b"}, .needed = 1},
    {.name = "<", .call = test_lt, .parameter = {"b"}, .needed = 1},
    {.name = "gt", .call = test_gt, .parameter = {"b"}, .needed = 1},
    {.name = "greaterthan", .call = test_gt, .parameter = {"b"}, .needed = 1},
    {.name = ">", .call = test_gt, .parameter = {"b"}, .needed = 1},
    {.name = "le", .call = test_le, .parameter = {"b"}, .needed = 1},
    {.name = "<=", .call = test_le, .parameter = {"b"}, .needed = 1},
    {.name = "ge", .call = test_ge, .parameter = {"b"}, .needed = 1},
    {.name = ">=", .call = test_ge, .parameter = {"b"}, .needed = 1},
    {.name = "in", .call = test_in, .parameter = {"seq"}, .needed = 1},
};

const tpl_function *rf_tpl_test(tpl_text name) {
  for (size_t i = 0; i < sizeof TESTS / sizeof TESTS[0]; ++i)
    if (rf_tpl_is(name, TESTS[i].name)) return &TESTS[i];
  return NULL;
}
