/* template_eval.c - evaluates expressions, names (in Jinja's scopes) and calls. Statements are in
 * template_render.c. */
#include "text/template_eval.h"

#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

rf_status rf_tpl_new_frame(tpl_run *run, tpl_frame *parent, tpl_frame **frame) {
  RF_TRY(rf_tpl_room(run, 1, sizeof **frame, frame));
  (*frame)->parent = parent;
  return RAFTER_OK;
}

static rf_status find_name(tpl_run *run, tpl_frame *frame, tpl_text name, tpl_variable **variable) {
  for (tpl_variable *v = frame->first; v; v = v->next) {
    RF_TRY(rf_tpl_step(run, 1));
    if (!rf_tpl_same(v->name, name)) continue;
    *variable = v;
    return RAFTER_OK;
  }
  *variable = NULL;
  return RAFTER_OK;
}

rf_status rf_tpl_assign(tpl_run *run, tpl_text name, const tpl_value *value) {
  tpl_variable *variable;
  RF_TRY(find_name(run, run->frame, name, &variable));
  if (!variable) {
    RF_TRY(rf_tpl_room(run, 1, sizeof *variable, &variable));
    variable->name = name;
    variable->next = run->frame->first;
    run->frame->first = variable;
  }
  variable->value = *value;
  return RAFTER_OK;
}

static rf_status look_up(tpl_run *run, tpl_text name, tpl_value *value) {
  for (tpl_frame *frame = run->frame; frame; frame = frame->parent) {
    tpl_variable *variable;
    RF_TRY(rf_tpl_step(run, 1));
    RF_TRY(find_name(run, frame, name, &variable));
    if (!variable) continue;
    *value = variable->value;
    return RAFTER_OK;
  }
  const tpl_function *global = rf_tpl_global(name);
  *value =
      global ? (tpl_value){.kind = TPL_FUNCTION, .function = global} : tpl_undefined(name.at, name.bytes);
  return RAFTER_OK;
}

/* ---- simple expressions ---------------------------------------------------------------------- */

static rf_status eval_constant(tpl_run *run, const tpl_node *node, tpl_value *value) {
  (void)run;
  *value = node->constant;
  return RAFTER_OK;
}

static rf_status eval_name(tpl_run *run, const tpl_node *node, tpl_value *value) {
  return look_up(run, node->name, value);
}

static rf_status eval_captured(tpl_run *run, const tpl_node *node, tpl_value *value) {
  (void)node;
  *value = (tpl_value){.kind = TPL_STRING, .text = run->captured};
  return RAFTER_OK;
}

static rf_status eval_items(tpl_run *run, const tpl_node *node, tpl_value *value) {
  tpl_value *items;
  RF_TRY(rf_tpl_room(run, (size_t)node->count, sizeof *items, &items));
  for (int i = 0; i < node->count; ++i) RF_TRY(rf_tpl_eval(run, node->list[i], &items[i]));
  return rf_tpl_list(run, node->kind == NODE_LIST ? FORM_LIST : FORM_TUPLE, items, (size_t)node->count,
                     value);
}

static rf_status eval_dict(tpl_run *run, const tpl_node *node, tpl_value *value) {
  RF_TRY(rf_tpl_dict(run, value));
  for (int i = 0; i < node->count; i += 2) {
    tpl_value key, item;
    RF_TRY(rf_tpl_eval(run, node->list[i], &key));
    RF_TRY(rf_tpl_eval(run, node->list[i + 1], &item));
    RF_TRY(rf_tpl_dict_set(run, value, &key, &item));
  }
  return RAFTER_OK;
}

static rf_status loop_attribute(tpl_run *run, const tpl_loop *loop, tpl_text name, tpl_value *value) {
  size_t count = loop->items->count, i = loop->index;
  const struct {
    const char *name;
    tpl_value value;
  } rows[] = {{"index", tpl_int((int64_t)i + 1)},
              {"index0", tpl_int((int64_t)i)},
              {"revindex", tpl_int((int64_t)(count - i))},
              {"revindex0", tpl_int((int64_t)(count - i) - 1)},
              {"first", tpl_bool(i == 0)},
              {"last", tpl_bool(i + 1 == count)},
              {"length", tpl_int((int64_t)count)},
              {"depth", tpl_int(1)}, /* recursive loops are not supported, so the depth of a loop is 1 */
              {"depth0", tpl_int(0)},
              {"previtem", i > 0 ? loop->items->item[i - 1] : tpl_undefined("loop.previtem", 13)},
              {"nextitem", i + 1 < count ? loop->items->item[i + 1] : tpl_undefined("loop.nextitem", 13)}};
  for (size_t row = 0; row < sizeof rows / sizeof rows[0]; ++row)
    if (rf_tpl_is(name, rows[row].name)) {
      *value = rows[row].value;
      return RAFTER_OK;
    }
  return TPL_FAIL(run, "loop.%.*s is not supported", TPL_SHOWN(name));
}

static rf_status eval_attribute(tpl_run *run, const tpl_node *node, tpl_value *value) {
  tpl_value object;
  RF_TRY(rf_tpl_eval(run, node->kid[0], &object));
  run->at = node->at;
  if (object.kind == TPL_LOOP) return loop_attribute(run, object.loop, node->name, value);
  return rf_tpl_attribute(run, &object, node->name, value);
}

static rf_status eval_item(tpl_run *run, const tpl_node *node, tpl_value *value) {
  tpl_value object, index;
  RF_TRY(rf_tpl_eval(run, node->kid[0], &object));
  RF_TRY(rf_tpl_eval(run, node->kid[1], &index));
  run->at = node->at;
  if (object.kind == TPL_LOOP && index.kind == TPL_STRING)
    return loop_attribute(run, object.loop, index.text, value);
  return rf_tpl_item(run, &object, &index, value);
}

static rf_status eval_slice(tpl_run *run, const tpl_node *node, tpl_value *value) {
  tpl_value object, bounds[3] = {tpl_none(), tpl_none(), tpl_none()};
  RF_TRY(rf_tpl_eval(run, node->kid[0], &object));
  for (int i = 0; i < 3; ++i)
    if (node->kid[i + 1]) RF_TRY(rf_tpl_eval(run, node->kid[i + 1], &bounds[i]));
  run->at = node->at;
  return rf_tpl_slice(run, &object, bounds, value);
}

/* ---- operators ------------------------------------------------------------------------------- */

static rf_status eval_sign(tpl_run *run, const tpl_node *node, tpl_value *value) {
  RF_TRY(rf_tpl_eval(run, node->kid[0], value));
  run->at = node->at;
  double real;
  int64_t whole;
  bool minus = node->kind == NODE_NEGATIVE;
  if (rf_tpl_whole(value, &whole)) {
    if (minus && whole == INT64_MIN) return TPL_FAIL(run, "an integer grows beyond 64 bits");
    *value = tpl_int(minus ? -whole : whole);
  } else if (rf_tpl_number(value, &real)) {
    *value = tpl_float(minus ? -real : real);
  } else {
    return TPL_FAIL(run, "%s cannot have a sign", rf_tpl_kind_name(value));
  }
  return RAFTER_OK;
}

static rf_status eval_not(tpl_run *run, const tpl_node *node, tpl_value *value) {
  RF_TRY(rf_tpl_eval(run, node->kid[0], value));
  *value = tpl_bool(!rf_tpl_truth(value));
  return RAFTER_OK;
}

/* As in Python, "and" and "or" return the value of the operand that decides. */
static rf_status eval_and_or(tpl_run *run, const tpl_node *node, tpl_value *value) {
  RF_TRY(rf_tpl_eval(run, node->kid[0], value));
  return rf_tpl_truth(value) == (node->kind == NODE_OR) ? RAFTER_OK : rf_tpl_eval(run, node->kid[1], value);
}

static rf_status eval_binary(tpl_run *run, const tpl_node *node, tpl_value *value) {
  tpl_value a, b;
  RF_TRY(rf_tpl_eval(run, node->kid[0], &a));
  RF_TRY(rf_tpl_eval(run, node->kid[1], &b));
  run->at = node->at;
  return rf_tpl_arithmetic(run, node->op, &a, &b, value);
}

rf_status rf_tpl_compare(tpl_run *run, int op, const tpl_value *a, const tpl_value *b, bool *holds) {
  int order;
  if (op == 'i' || op == 'n') {
    RF_TRY(rf_tpl_contains(run, b, a, holds));
    *holds = *holds == (op == 'i');
    return RAFTER_OK;
  }
  if (op == TPL_OP('=', '=') || op == TPL_OP('!', '=')) {
    RF_TRY(rf_tpl_equal(run, a, b, holds));
    *holds = *holds == (op == TPL_OP('=', '='));
    return RAFTER_OK;
  }
  RF_TRY(rf_tpl_order(run, a, b, &order));
  bool orders = order != 2;
  *holds = orders && ((op & 0xff) == '<' ? order < 0 : order > 0);
  if (op >> 8) *holds = *holds || order == 0;
  return RAFTER_OK;
}

static rf_status eval_compare(tpl_run *run, const tpl_node *node, tpl_value *value) {
  tpl_value left, right;
  bool holds = true;
  RF_TRY(rf_tpl_eval(run, node->kid[0], &left));
  for (int i = 0; holds && i < node->count; ++i, left = right) {
    RF_TRY(rf_tpl_eval(run, node->list[i], &right));
    run->at = node->at;
    RF_TRY(rf_tpl_compare(run, node->ops[i], &left, &right, &holds));
  }
  *value = tpl_bool(holds);
  return RAFTER_OK;
}

static rf_status eval_choice(tpl_run *run, const tpl_node *node, tpl_value *value) {
  RF_TRY(rf_tpl_eval(run, node->kid[0], value));
  if (rf_tpl_truth(value)) return rf_tpl_eval(run, node->kid[1], value);
  if (node->kid[2]) return rf_tpl_eval(run, node->kid[2], value);
  *value = tpl_undefined("the missing else of an inline if", 32);
  return RAFTER_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

rf_status rf_tpl_call_row(tpl_run *run, const tpl_function *row, const tpl_value *self,
                          const tpl_arguments *arguments, tpl_value *result) {
  tpl_value bound[TPL_PARAMETERS];
  const tpl_call call = {self, bound, arguments, row->variant, result};
  if (row->unbound) return row->call(run, &call);
  for (int i = 0; i < TPL_PARAMETERS; ++i) bound[i] = (tpl_value){.kind = TPL_UNDEFINED, .form = 1};
  for (int i = 0; i < arguments->count; ++i) {
    int slot = i;
    if (arguments->name[i].at)
      for (slot = 0; slot < TPL_PARAMETERS && row->parameter[slot] &&
                     !rf_tpl_is(arguments->name[i], row->parameter[slot]);)
        ++slot;
    if (slot >= TPL_PARAMETERS || !row->parameter[slot] || TPL_GIVEN(bound[slot]))
      return TPL_FAIL(run, "\"%s\" does not take %s %.*s", row->name,
                      arguments->name[i].at ? "the argument" : "this many arguments",
                      (int)(arguments->name[i].bytes < 60 ? arguments->name[i].bytes : 60),
                      arguments->name[i].at ? arguments->name[i].at : "");
    bound[slot] = arguments->value[i];
  }
  for (int i = 0; i < row->needed; ++i)
    if (!TPL_GIVEN(bound[i]))
      return TPL_FAIL(run, "\"%s\" needs the argument \"%s\"", row->name, row->parameter[i]);
  return row->call(run, &call);
}

static rf_status eval_arguments(tpl_run *run, const tpl_node *node, tpl_arguments *arguments) {
  tpl_value *values;
  RF_TRY(rf_tpl_room(run, (size_t)node->count, sizeof *values, &values));
  for (int i = 0; i < node->count; ++i) RF_TRY(rf_tpl_eval(run, node->list[i], &values[i]));
  *arguments = (tpl_arguments){values, node->names, node->count};
  run->at = node->at;
  return RAFTER_OK;
}

static rf_status eval_call(tpl_run *run, const tpl_node *node, tpl_value *value) {
  tpl_value callee, nobody = tpl_undefined("", 0);
  tpl_arguments arguments;
  RF_TRY(rf_tpl_eval(run, node->kid[0], &callee));
  RF_TRY(eval_arguments(run, node, &arguments));
  if (callee.kind == TPL_MACRO) return rf_tpl_call_macro(run, callee.macro, &arguments, value);
  if (callee.kind == TPL_FUNCTION) return rf_tpl_call_row(run, callee.function, &nobody, &arguments, value);
  if (callee.kind == TPL_METHOD)
    return rf_tpl_call_row(run, callee.method->function, callee.method->self, &arguments, value);
  if (callee.kind == TPL_UNDEFINED)
    return TPL_FAIL(run, "'%.*s' is undefined and cannot be called", TPL_SHOWN(callee.text));
  return TPL_FAIL(run, "%s cannot be called", rf_tpl_kind_name(&callee));
}

static rf_status eval_filter(tpl_run *run, const tpl_node *node, tpl_value *value) {
  tpl_value input;
  tpl_arguments arguments;
  RF_TRY(rf_tpl_eval(run, node->kid[0], &input));
  RF_TRY(eval_arguments(run, node, &arguments));
  return rf_tpl_call_row(run, node->function, &input, &arguments, value);
}

static rf_status eval_test(tpl_run *run, const tpl_node *node, tpl_value *value) {
  RF_TRY(eval_filter(run, node, value));
  if (node->op) *value = tpl_bool(!rf_tpl_truth(value));
  return RAFTER_OK;
}

rf_status rf_tpl_eval(tpl_run *run, const tpl_node *node, tpl_value *value) {
  static rf_status (*const rows[NODE_KINDS])(tpl_run * run, const tpl_node *node, tpl_value *value) = {
      [NODE_CONSTANT] = eval_constant, [NODE_NAME] = eval_name,
      [NODE_LIST] = eval_items,        [NODE_TUPLE] = eval_items,
      [NODE_DICT] = eval_dict,         [NODE_ITEM] = eval_item,
      [NODE_SLICE] = eval_slice,       [NODE_ATTRIBUTE] = eval_attribute,
      [NODE_CALL] = eval_call,         [NODE_FILTER] = eval_filter,
      [NODE_TEST] = eval_test,         [NODE_NEGATIVE] = eval_sign,
      [NODE_POSITIVE] = eval_sign,     [NODE_NOT] = eval_not,
      [NODE_AND] = eval_and_or,        [NODE_OR] = eval_and_or,
      [NODE_BINARY] = eval_binary,     [NODE_CHOICE] = eval_choice,
      [NODE_CAPTURED] = eval_captured, [NODE_COMPARE] = eval_compare,
  };
  run->at = node->at;
  RF_TRY(rf_tpl_step(run, 1));
  if (++run->depth > TPL_RUN_DEPTH)
    return TPL_FAIL(run, "the template nests or recurs more than %d deep", TPL_RUN_DEPTH);
  RF_TRY(rows[node->kind](run, node, value));
  --run->depth;
  return RAFTER_OK;
}
