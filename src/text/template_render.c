/* template_render.c - executes statements and macros, and renders a template. */
#include "text/template_eval.h"

#include <stdlib.h>
#include <string.h>

typedef rf_status execution(tpl_run *run, const tpl_node *node);
static execution execute_node;

/* ---- printing -------------------------------------------------------------------------------- */

static rf_status exec_data(tpl_run *run, const tpl_node *node) {
  return rf_tpl_put(run, run->out, node->name);
}

static rf_status exec_print(tpl_run *run, const tpl_node *node) {
  tpl_value value;
  tpl_text text;
  RF_TRY(rf_tpl_eval(run, node->kid[0], &value));
  run->at = node->at;
  RF_TRY(rf_tpl_str(run, &value, &text));
  return rf_tpl_put(run, run->out, text);
}

static rf_status capture_output(tpl_run *run, const tpl_node *body, tpl_frame *frame, tpl_text *text) {
  tpl_out out = {0}, *outside = run->out;
  tpl_frame *around = run->frame;
  run->out = &out;
  run->frame = frame;
  rf_status status = execute_node(run, body);
  run->out = outside;
  run->frame = around;
  *text = tpl_string(out.at, out.bytes).text;
  return status;
}

/* ---- assignments ----------------------------------------------------------------------------- */

static rf_status assign_target(tpl_run *run, const tpl_node *target, const tpl_value *value) {
  if (target->kind == NODE_NAME) return rf_tpl_assign(run, target->name, value);
  tpl_list items;
  RF_TRY(rf_tpl_iterate(run, value, &items));
  if (items.count != (size_t)target->count)
    return TPL_FAIL(run, "cannot unpack %zu values into %d names", items.count, target->count);
  for (int i = 0; i < target->count; ++i) RF_TRY(rf_tpl_assign(run, target->list[i]->name, &items.item[i]));
  return RAFTER_OK;
}

static rf_status exec_set(tpl_run *run, const tpl_node *node) {
  tpl_value value;
  RF_TRY(rf_tpl_eval(run, node->kid[1], &value));
  run->at = node->at;
  return assign_target(run, node->kid[0], &value);
}

static rf_status capture_filtered(tpl_run *run, const tpl_node *body, const tpl_node *filter,
                                  tpl_value *value) {
  tpl_frame *frame;
  tpl_text text, before = run->captured;
  RF_TRY(rf_tpl_new_frame(run, run->frame, &frame));
  RF_TRY(capture_output(run, body, frame, &text));
  run->captured = text;
  RF_TRY(rf_tpl_eval(run, filter, value));
  run->captured = before;
  return RAFTER_OK;
}

static rf_status exec_set_block(tpl_run *run, const tpl_node *node) {
  tpl_value value;
  RF_TRY(capture_filtered(run, node->kid[1], node->kid[2], &value));
  run->at = node->at;
  return assign_target(run, node->kid[0], &value);
}

static rf_status exec_filtered(tpl_run *run, const tpl_node *node) {
  tpl_value value;
  tpl_text text;
  RF_TRY(capture_filtered(run, node->kid[0], node->kid[1], &value));
  RF_TRY(rf_tpl_str(run, &value, &text));
  return rf_tpl_put(run, run->out, text);
}

static rf_status exec_set_field(tpl_run *run, const tpl_node *node) {
  tpl_value space, value, key = tpl_string(node->name.at, node->name.bytes);
  RF_TRY(rf_tpl_eval(run, node->kid[1], &value));
  RF_TRY(rf_tpl_eval(run, node->kid[0], &space));
  run->at = node->at;
  if (space.kind != TPL_NAMESPACE)
    return TPL_FAIL(run, "only fields of a namespace can be set, not of %s", rf_tpl_kind_name(&space));
  return rf_tpl_dict_set(run, &space, &key, &value);
}

/* ---- branches and loops ---------------------------------------------------------------------- */

static rf_status exec_if(tpl_run *run, const tpl_node *node) {
  for (int i = 0; i < node->count; i += 2) {
    tpl_value condition;
    RF_TRY(rf_tpl_eval(run, node->list[i], &condition));
    if (rf_tpl_truth(&condition)) return execute_node(run, node->list[i + 1]);
  }
  return node->kid[0] ? execute_node(run, node->kid[0]) : RAFTER_OK;
}

/* Keeps the items of a loop that pass the loop's "if". The condition may use the targets of the
 * loop, but not `loop`. */
static rf_status choose_items(tpl_run *run, const tpl_node *node, tpl_list *items) {
  if (!node->kid[2]) return RAFTER_OK;
  tpl_list chosen = {0};
  tpl_frame *around = run->frame;
  RF_TRY(rf_tpl_room(run, items->count, sizeof *chosen.item, &chosen.item));
  for (size_t i = 0; i < items->count; ++i) {
    tpl_value condition;
    RF_TRY(rf_tpl_new_frame(run, around, &run->frame));
    RF_TRY(assign_target(run, node->kid[0], &items->item[i]));
    RF_TRY(rf_tpl_eval(run, node->kid[2], &condition));
    if (rf_tpl_truth(&condition)) chosen.item[chosen.count++] = items->item[i];
  }
  run->frame = around;
  *items = chosen;
  return RAFTER_OK;
}

/* As in Jinja, "else" runs if no iteration reached the end of the body: there were no items, or all
 * iterations left the body by "break" or "continue". */
static rf_status exec_for(tpl_run *run, const tpl_node *node) {
  bool finished = false;
  tpl_value value;
  tpl_list *items;
  tpl_loop *loop;
  tpl_frame *around = run->frame;
  RF_TRY(rf_tpl_room(run, 1, sizeof *items, &items));
  RF_TRY(rf_tpl_room(run, 1, sizeof *loop, &loop));
  RF_TRY(rf_tpl_eval(run, node->kid[1], &value));
  run->at = node->at;
  RF_TRY(rf_tpl_iterate(run, &value, items));
  RF_TRY(choose_items(run, node, items));
  loop->items = items;
  const tpl_value seen = {.kind = TPL_LOOP, .loop = loop};
  for (loop->index = 0; loop->index < items->count; ++loop->index) {
    RF_TRY(rf_tpl_new_frame(run, around, &run->frame));
    RF_TRY(rf_tpl_assign(run, TPL_TEXT("loop"), &seen));
    run->at = node->at;
    RF_TRY(assign_target(run, node->kid[0], &items->item[loop->index]));
    RF_TRY(execute_node(run, node->kid[3]));
    bool ends = run->leave == NODE_BREAK;
    finished |= !run->leave;
    run->leave = 0;
    if (ends) break;
  }
  run->frame = around;
  return !finished && node->kid[4] ? execute_node(run, node->kid[4]) : RAFTER_OK;
}

static rf_status exec_leave(tpl_run *run, const tpl_node *node) {
  run->leave = (int)node->kind;
  return RAFTER_OK;
}

static rf_status exec_body(tpl_run *run, const tpl_node *node) {
  for (int i = 0; i < node->count && !run->leave; ++i) RF_TRY(execute_node(run, node->list[i]));
  return RAFTER_OK;
}

/* ---- macros and generation blocks ------------------------------------------------------------ */

static rf_status exec_macro(tpl_run *run, const tpl_node *node) {
  tpl_macro *macro;
  RF_TRY(rf_tpl_room(run, 1, sizeof *macro, &macro));
  *macro = (tpl_macro){node, run->frame};
  return rf_tpl_assign(run, node->name, &(tpl_value){.kind = TPL_MACRO, .macro = macro});
}

/* Assigns the arguments in the macro's scope. A default value may use the parameters before its own
 * parameter. */
static rf_status bind_macro(tpl_run *run, const tpl_node *node, const tpl_arguments *arguments) {
  int used = 0;
  for (int slot = 0; slot < node->count; ++slot) {
    tpl_value value = tpl_undefined(node->names[slot].at, node->names[slot].bytes);
    bool given = false;
    for (int i = 0; i < arguments->count; ++i) {
      bool here = arguments->name[i].at ? rf_tpl_same(arguments->name[i], node->names[slot]) : i == slot;
      if (here && given) return TPL_FAIL(run, "the macro got an argument twice");
      if (!here) continue;
      value = arguments->value[i];
      given = true;
      ++used;
    }
    if (!given && node->list[slot]) RF_TRY(rf_tpl_eval(run, node->list[slot], &value));
    RF_TRY(rf_tpl_assign(run, node->names[slot], &value));
  }
  if (used != arguments->count)
    return TPL_FAIL(run, "the macro \"%.*s\" does not take all of these arguments", (int)node->name.bytes,
                    node->name.at);
  return RAFTER_OK;
}

rf_status rf_tpl_call_macro(tpl_run *run, const tpl_macro *macro, const tpl_arguments *arguments,
                            tpl_value *result) {
  tpl_frame *around = run->frame, *frame;
  tpl_text text;
  RF_TRY(rf_tpl_new_frame(run, macro->frame, &frame));
  run->frame = frame;
  RF_TRY(bind_macro(run, macro->node, arguments));
  run->frame = around;
  RF_TRY(capture_output(run, macro->node->kid[0], frame, &text));
  *result = (tpl_value){.kind = TPL_STRING, .text = text};
  return RAFTER_OK;
}

/* Records the span of bytes that a generation block prints. In a macro or a captured block, byte
 * offsets are not final, so a generation block there is an error. */
static rf_status exec_generation(tpl_run *run, const tpl_node *node) {
  tpl_frame *around = run->frame;
  if (run->out != run->main)
    return TPL_FAIL(run, "{%% generation %%} inside a macro or a captured text is not supported");
  if (run->spans == run->span_capacity) {
    size_t capacity = run->span_capacity ? run->span_capacity * 2 : 8;
    rf_range *larger;
    RF_TRY(rf_tpl_room(run, capacity, sizeof *larger, &larger));
    if (run->spans) memcpy(larger, run->span, run->spans * sizeof *larger);
    run->span = larger;
    run->span_capacity = capacity;
  }
  size_t mine = run->spans++;
  run->span[mine].first = run->out->bytes;
  RF_TRY(rf_tpl_new_frame(run, around, &run->frame));
  RF_TRY(execute_node(run, node->kid[0]));
  run->frame = around;
  run->span[mine].last = run->out->bytes;
  return RAFTER_OK;
}

static rf_status execute_node(tpl_run *run, const tpl_node *node) {
  static execution *const rows[NODE_KINDS] = {
      [NODE_DATA] = exec_data,
      [NODE_PRINT] = exec_print,
      [NODE_IF] = exec_if,
      [NODE_FOR] = exec_for,
      [NODE_SET] = exec_set,
      [NODE_SET_BLOCK] = exec_set_block,
      [NODE_BODY] = exec_body,
      [NODE_SET_FIELD] = exec_set_field,
      [NODE_MACRO] = exec_macro,
      [NODE_FILTERED] = exec_filtered,
      [NODE_BREAK] = exec_leave,
      [NODE_CONTINUE] = exec_leave,
      [NODE_GENERATION] = exec_generation,
  };
  run->at = node->at;
  RF_TRY(rf_tpl_step(run, 1));
  if (++run->depth > TPL_RUN_DEPTH)
    return TPL_FAIL(run, "the template nests or recurs more than %d deep", TPL_RUN_DEPTH);
  RF_TRY(rows[node->kind](run, node));
  --run->depth;
  return RAFTER_OK;
}

/* ---- a rendering ----------------------------------------------------------------------------- */

static rf_status set_variables(tpl_run *run, const json_t *variables) {
  const char *name;
  json_t *json;
  json_object_foreach ((json_t *)variables, name, json) {
    tpl_value value;
    RF_TRY(rf_tpl_from_json(run, json, 0, &value));
    RF_TRY(rf_tpl_assign(run, (tpl_text){name, strlen(name)}, &value));
  }
  return RAFTER_OK;
}

rf_status rf_template_render(const rf_template *parsed, const json_t *variables, const struct tm *now,
                             const rf_template_limits *limits, rf_rendered *rendered, rf_error *error) {
  if (!json_is_object(variables))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the variables must be an object", parsed->where);
  rf_template_limits bound = limits ? *limits : (rf_template_limits){0};
  tpl_out out = {0};
  tpl_run run = {.parsed = parsed,
                 .error = error,
                 .now = now,
                 .steps_left = bound.steps ? bound.steps : 20000000,
                 .text_most = bound.output_bytes ? bound.output_bytes : (size_t)64 << 20,
                 .room_left = bound.memory_bytes ? bound.memory_bytes : (size_t)512 << 20,
                 .out = &out,
                 .main = &out,
                 .pool = rf_pool_new()};
  rf_status status;
  RF_GO(rf_tpl_new_frame(&run, NULL, &run.frame));
  RF_GO(set_variables(&run, variables));
  /* if the template sets a name, the name hides the variable */
  RF_GO(rf_tpl_new_frame(&run, run.frame, &run.frame));
  RF_GO(execute_node(&run, parsed->body));
  rf_rendered made = {
      .text = malloc(out.bytes + 1), .bytes = out.bytes, .generated_count = (int64_t)run.spans};
  made.generated = malloc((run.spans + 1) * sizeof *made.generated);
  rf_must(made.text);
  rf_must(made.generated);
  if (out.bytes) memcpy(made.text, out.at, out.bytes);
  made.text[out.bytes] = 0;
  if (run.spans) memcpy(made.generated, run.span, run.spans * sizeof *made.generated);
  *rendered = made;
done:
  rf_pool_free(run.pool);
  return status;
}

void rf_rendered_free(rf_rendered *rendered) {
  if (!rendered) return;
  free(rendered->text);
  free(rendered->generated);
  *rendered = (rf_rendered){0};
}
