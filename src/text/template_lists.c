/* template_lists.c - filters on lists and dicts, and the table of tests ("is defined"). */
#include "text/template_lists.h"

#include <math.h>
#include <string.h>

#include "text/template_eval.h"

/* ---- first, last, list, items, join ---------------------------------------------------------- */

rf_status rf_tpl_filter_first(tpl_run *run, const tpl_call *c) {
  tpl_list items;
  size_t next = c->self->kind == TPL_LIST ? c->self->list->next : 0;
  RF_TRY(rf_tpl_iterate(run, c->self, &items));
  *c->result = items.count ? items.item[0] : tpl_undefined("the first item", 14);
  /* A lazy list keeps its remaining items for later reads. */
  if (c->self->kind == TPL_LIST && c->self->form == FORM_LAZY && items.count) c->self->list->next = next + 1;
  return RAFTER_OK;
}

rf_status rf_tpl_filter_last(tpl_run *run, const tpl_call *c) {
  tpl_list items;
  if (c->self->kind == TPL_LIST && c->self->form == FORM_LAZY)
    return TPL_FAIL(run, "a lazy filter has no last item: use |list first");
  RF_TRY(rf_tpl_iterate(run, c->self, &items));
  *c->result = items.count ? items.item[items.count - 1] : tpl_undefined("the last item", 13);
  return RAFTER_OK;
}

rf_status rf_tpl_filter_list(tpl_run *run, const tpl_call *c) {
  tpl_list items;
  RF_TRY(rf_tpl_iterate(run, c->self, &items));
  return rf_tpl_list(run, FORM_LIST, items.item, items.count, c->result);
}

rf_status rf_tpl_filter_items(tpl_run *run, const tpl_call *c) {
  static const tpl_dict empty;
  if (c->self->kind != TPL_DICT && c->self->kind != TPL_UNDEFINED)
    return TPL_FAIL(run, "only a dict has items, not %s", rf_tpl_kind_name(c->self));
  const tpl_dict *dict = c->self->kind == TPL_DICT ? c->self->dict : &empty;
  tpl_value *pairs;
  RF_TRY(rf_tpl_room(run, dict->count, sizeof *pairs, &pairs));
  for (size_t i = 0; i < dict->count; ++i)
    RF_TRY(rf_tpl_list(run, FORM_TUPLE, (const tpl_value[]){dict->key[i], dict->value[i]}, 2, &pairs[i]));
  return rf_tpl_list(run, FORM_LAZY, pairs, dict->count, c->result);
}

/* Follows a dotted name: the path "a.0.b" gives item["a"][0]["b"]. */
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

rf_status rf_tpl_filter_join(tpl_run *run, const tpl_call *c) {
  tpl_list items;
  tpl_text between = TPL_TEXT("");
  RF_TRY(rf_tpl_iterate(run, c->self, &items));
  if (TPL_GIVEN(c->argument[0])) RF_TRY(rf_tpl_str(run, &c->argument[0], &between));
  if (TPL_GIVEN(c->argument[1]) && c->argument[1].kind != TPL_NONE)
    RF_TRY(get_paths(run, &items, &c->argument[1], NULL));
  return rf_tpl_join(run, between, &items, false, c->result);
}

/* ---- map, select, reject --------------------------------------------------------------------- */

/* Finds the filter or test whose name is argument number `index`. */
static rf_status named_row(tpl_run *run, const tpl_arguments *arguments, int index, const char *what,
                           const tpl_function *(*find)(tpl_text name), const tpl_function **row) {
  tpl_text name;
  if (index >= arguments->count || arguments->name[index].at)
    return TPL_FAIL(run, "the name of a %s is missing", what);
  RF_TRY(rf_tpl_wants_text(run, &arguments->value[index], "the name", &name));
  *row = find(name);
  return *row ? RAFTER_OK : TPL_FAIL(run, "unknown %s \"%.*s\"", what, TPL_SHOWN(name));
}

/* Returns the arguments without the first `skip` arguments. A call without arguments has NULL
 * pointers, and NULL pointers must not be advanced. */
static tpl_arguments arguments_after(const tpl_arguments *arguments, int skip) {
  return skip ? (tpl_arguments){arguments->value + skip, arguments->name + skip, arguments->count - skip}
              : *arguments;
}

rf_status rf_tpl_filter_map(tpl_run *run, const tpl_call *c) {
  tpl_list items;
  /* Jinja does not check the arguments of the filter map when the list is empty. */
  if (!rf_tpl_truth(c->self)) return rf_tpl_list(run, FORM_LAZY, NULL, 0, c->result);
  RF_TRY(rf_tpl_iterate(run, c->self, &items));
  if (c->arguments->count && c->arguments->name[0].at) {
    const tpl_value *path = NULL, *otherwise = NULL;
    for (int i = 0; i < c->arguments->count; ++i) {
      if (rf_tpl_is(c->arguments->name[i], "attribute")) path = &c->arguments->value[i];
      else if (rf_tpl_is(c->arguments->name[i], "default")) otherwise = &c->arguments->value[i];
      else return TPL_FAIL(run, "\"map\" does not take the argument %.*s", TPL_SHOWN(c->arguments->name[i]));
    }
    if (!path) return TPL_FAIL(run, "\"map\" needs an attribute or the name of a filter");
    if (otherwise && otherwise->kind == TPL_NONE) otherwise = NULL;
    RF_TRY(get_paths(run, &items, path, otherwise));
    return rf_tpl_list(run, FORM_LAZY, items.item, items.count, c->result);
  }
  const tpl_function *row;
  RF_TRY(named_row(run, c->arguments, 0, "filter", rf_tpl_filter, &row));
  tpl_arguments rest = arguments_after(c->arguments, 1);
  tpl_value *got;
  RF_TRY(rf_tpl_room(run, items.count, sizeof *got, &got));
  if (++run->depth > TPL_RUN_DEPTH) return TPL_FAIL(run, "filters nest too deep");
  for (size_t i = 0; i < items.count; ++i) {
    RF_TRY(rf_tpl_step(run, 1));
    RF_TRY(rf_tpl_call_row(run, row, &items.item[i], &rest, &got[i]));
  }
  --run->depth;
  return rf_tpl_list(run, FORM_LAZY, got, items.count, c->result);
}

/* Filters the items by a test. With RF_TPL_KEEP, keeps the items that pass the test. Otherwise,
 * keeps the items that fail. If the call names no test, an item passes if the item is true. With
 * RF_TPL_ATTRIBUTE, argument 0 names an attribute, and the test applies to this attribute of the
 * item. */
rf_status rf_tpl_filter_choose(tpl_run *run, const tpl_call *c) {
  bool by_path = c->variant & RF_TPL_ATTRIBUTE, wanted = c->variant & RF_TPL_KEEP;
  const tpl_arguments *arguments = c->arguments;
  tpl_list items;
  tpl_value *kept;
  size_t count = 0;
  const tpl_function *row = NULL;
  if (!rf_tpl_truth(c->self)) return rf_tpl_list(run, FORM_LAZY, NULL, 0, c->result);
  if (by_path && (arguments->count == 0 || arguments->name[0].at))
    return TPL_FAIL(run, "the name of an attribute is missing");
  if (arguments->count > by_path) RF_TRY(named_row(run, arguments, by_path, "test", rf_tpl_test, &row));
  tpl_arguments rest = arguments_after(arguments, by_path + (row != NULL));
  RF_TRY(rf_tpl_iterate(run, c->self, &items));
  RF_TRY(rf_tpl_room(run, items.count, sizeof *kept, &kept));
  for (size_t i = 0; i < items.count; ++i) {
    tpl_value seen = items.item[i], holds;
    RF_TRY(rf_tpl_step(run, 1));
    if (by_path) RF_TRY(get_path(run, &items.item[i], &arguments->value[0], &seen));
    holds = seen;
    if (row) RF_TRY(rf_tpl_call_row(run, row, &seen, &rest, &holds));
    if (rf_tpl_truth(&holds) == wanted) kept[count++] = items.item[i];
  }
  return rf_tpl_list(run, FORM_LAZY, kept, count, c->result);
}

/* ---- tests ----------------------------------------------------------------------------------- */

#define IS(kind) (1 << TPL_##kind) /* a bit set of kinds of values; IS(NONE) has only TPL_NONE */

static rf_status test_kind(tpl_run *run, const tpl_call *c) {
  (void)run;
  *c->result = tpl_bool(c->variant >> c->self->kind & 1);
  return RAFTER_OK;
}

static rf_status test_sequence(tpl_run *run, const tpl_call *c) {
  (void)run;
  bool view = c->self->kind == TPL_LIST && c->self->form >= FORM_VIEW;
  *c->result = tpl_bool(!view && c->variant >> c->self->kind & 1);
  return RAFTER_OK;
}

static rf_status test_truth(tpl_run *run, const tpl_call *c) {
  (void)run;
  *c->result = tpl_bool(c->self->kind == TPL_BOOL && c->self->truth == c->variant);
  return RAFTER_OK;
}

static rf_status test_compare(tpl_run *run, const tpl_call *c) {
  bool holds;
  RF_TRY(rf_tpl_compare(run, c->variant, c->self, &c->argument[0], &holds));
  *c->result = tpl_bool(holds);
  return RAFTER_OK;
}

static rf_status rest_is(tpl_run *run, const tpl_value *self, int64_t by, int64_t wanted, tpl_value *result) {
  tpl_value divisor = tpl_int(by), rest, goal = tpl_int(wanted);
  bool equal;
  RF_TRY(rf_tpl_arithmetic(run, '%', self, &divisor, &rest));
  RF_TRY(rf_tpl_equal(run, &rest, &goal, &equal));
  *result = tpl_bool(equal);
  return RAFTER_OK;
}
static rf_status test_parity(tpl_run *run, const tpl_call *c) {
  return rest_is(run, c->self, 2, c->variant, c->result);
}
static rf_status test_divisibleby(tpl_run *run, const tpl_call *c) {
  int64_t by;
  RF_TRY(rf_tpl_wants_whole(run, &c->argument[0], "the divisor", 1, &by));
  return rest_is(run, c->self, by, 0, c->result);
}

static const tpl_function TESTS[] = {
    {.name = "defined", .call = test_kind, .variant = ~IS(UNDEFINED)},
    {.name = "undefined", .call = test_kind, .variant = IS(UNDEFINED)},
    {.name = "none", .call = test_kind, .variant = IS(NONE)},
    {.name = "string", .call = test_kind, .variant = IS(STRING)},
    {.name = "mapping", .call = test_kind, .variant = IS(DICT)},
    {.name = "boolean", .call = test_kind, .variant = IS(BOOL)},
    {.name = "true", .call = test_truth, .variant = 1},
    {.name = "false", .call = test_truth, .variant = 0},
    {.name = "integer", .call = test_kind, .variant = IS(INT)},
    {.name = "float", .call = test_kind, .variant = IS(FLOAT)},
    {.name = "number", .call = test_kind, .variant = IS(BOOL) | IS(INT) | IS(FLOAT)},
    {.name = "iterable",
     .call = test_kind,
     .variant = IS(UNDEFINED) | IS(STRING) | IS(LIST) | IS(DICT) | IS(LOOP)},
    {.name = "sequence", .call = test_sequence, .variant = IS(UNDEFINED) | IS(STRING) | IS(LIST) | IS(DICT)},
    {.name = "odd", .call = test_parity, .variant = 1},
    {.name = "even", .call = test_parity, .variant = 0},
    {.name = "divisibleby", .call = test_divisibleby, .parameter = {"num"}, .needed = 1},
    {.name = "eq", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = TPL_OP('=', '=')},
    {.name = "equalto", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = TPL_OP('=', '=')},
    {.name = "==", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = TPL_OP('=', '=')},
    {.name = "ne", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = TPL_OP('!', '=')},
    {.name = "!=", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = TPL_OP('!', '=')},
    {.name = "lt", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = '<'},
    {.name = "lessthan", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = '<'},
    {.name = "<", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = '<'},
    {.name = "gt", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = '>'},
    {.name = "greaterthan", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = '>'},
    {.name = ">", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = '>'},
    {.name = "le", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = TPL_OP('<', '=')},
    {.name = "<=", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = TPL_OP('<', '=')},
    {.name = "ge", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = TPL_OP('>', '=')},
    {.name = ">=", .call = test_compare, .parameter = {"b"}, .needed = 1, .variant = TPL_OP('>', '=')},
    {.name = "in", .call = test_compare, .parameter = {"seq"}, .needed = 1, .variant = 'i'},
};

const tpl_function *rf_tpl_test(tpl_text name) {
  for (size_t i = 0; i < sizeof TESTS / sizeof TESTS[0]; ++i)
    if (rf_tpl_is(name, TESTS[i].name)) return &TESTS[i];
  return NULL;
}
