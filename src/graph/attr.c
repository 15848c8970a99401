/* attr.c - the field tables of op attributes, and fields as text. */
#include "graph/graph.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
#define ROW(of, type, name) ROW_##type(of, name)
#define ROW_AS(kind, of, name) \
  {#name, RF_FIELD_##kind, offsetof(rf_attr, of name), sizeof(((rf_attr *)0)->of name)},

#define ROW_bool(of, name)        ROW_AS(FLAG, of, name)
#define ROW_uint8_t(of, name)     ROW_AS(NUMBER, of, name)
#define ROW_rf_axes(of, name)     ROW_AS(NUMBER, of, name)
#define ROW_int32_t(of, name)     ROW_AS(NUMBER, of, name)
#define ROW_int64_t(of, name)     ROW_AS(NUMBER, of, name)
#define ROW_uint64_t(of, name)    ROW_AS(NUMBER, of, name)
#define ROW_rf_dtype(of, name)    ROW_AS(DTYPE, of, name)
#define ROW_rf_epilogue(of, name) ROW_AS(EPILOGUE, of, name)
#define ROW_float(of, name)       ROW_AS(FLOAT, of, name)
#define ROW_rf_policy_level(of, name) ROW_AS(NUMBER, of, name)
#define ROW_rf_policy_clip(of, name)  ROW_AS(NUMBER, of, name)
#define ROW_rf_pairs_kind(of, name)   ROW_AS(NUMBER, of, name)

/* The field table has entries for members that are structs. */
#define ROW_IN(of, type, name) ROW_##type(of, name)
#define ROW_rf_router(of, name) RF_ATTR_ROUTER(ROW_IN, of name.)
#define ROW_rf_rope(of, name) \
  ROW_float(of, name.theta) ROW_int32_t(of, name.dim) ROW_AS(NUMBER, of, name.scaling) \
  ROW_float(of, name.factor) \
  ROW_float(of, name.low) ROW_float(of, name.high) ROW_float(of, name.original) ROW_bool(of, name.tail)
#define ROW_rf_lora_parts(of, name) \
  ROW_int32_t(of, name.count) ROW_int32_t(of, name.rank) \
  ROW_int32_t(of, name.at[0]) ROW_int32_t(of, name.at[1]) ROW_int32_t(of, name.at[2]) \
  ROW_int32_t(of, name.columns[0]) ROW_int32_t(of, name.columns[1]) ROW_int32_t(of, name.columns[2]) \
  ROW_int32_t(of, name.site[0]) ROW_int32_t(of, name.site[1]) ROW_int32_t(of, name.site[2])
static_assert(RF_LORA_PARTS == 3, "ROW_rf_lora_parts has a row for each part");

/* Every table begins with the common fields. */
static const rf_field EVERY[] = {RF_ATTR_COMMON(ROW, ) {0}};
#define TABLE(NAME, name) \
  const rf_field RF_FIELDS_##NAME[] = {RF_ATTR_COMMON(ROW, ) RF_ATTR_##NAME(ROW, name.) {0}};
RF_ATTR_FAMILIES(TABLE)
// clang-format on

const rf_field *rf_op_fields(const rf_op_def *def) { return def->fields ? def->fields : EVERY; }

bool rf_attr_same(const rf_op *a, const rf_op *b) {
  bool same = a->def == b->def;
  for (const rf_field *f = rf_op_fields(a->def); same && f->name; f++)
    same = !memcmp((const char *)&a->attr + f->offset, (const char *)&b->attr + f->offset, f->size);
  return same;
}

bool *rf_attr_fast(const rf_op_def *def, rf_attr *attr) {
  return def->fields == RF_FIELDS_MATMUL    ? &attr->matmul.fast
         : def->fields == RF_FIELDS_HEAD    ? &attr->head.fast
         : def->fields == RF_FIELDS_EXPERTS ? &attr->experts.fast
                                            : NULL;
}

bool rf_op_is_fast(const rf_op *op) {
  rf_attr attr = op->attr;
  const bool *fast = rf_attr_fast(op->def, &attr);
  return fast && *fast;
}
bool rf_op_may_be_fast(const rf_graph *graph, const rf_op *op) {
  rf_attr attr = op->attr;
  if (!rf_attr_fast(op->def, &attr) || op->input_count < 2 || op->input[1] < 0) return false;
  const rf_tensor *w = &graph->tensor[op->input[1]];
  return w->dtype == RF_PACKED && rf_panels_have_codes(&w->panels);
}

void rf_attr_adopt(const rf_op_def *def, rf_attr *attr, const rf_model *model) {
  if (def->fields == RF_FIELDS_ROPE && attr->rope.rotation.divisor)
    attr->rope.rotation.divisor = model->rope_divisor;
}

static int64_t number_of(const rf_field *field, const void *value) {
  switch (field->size) {
  case 1: return *(const uint8_t *)value;
  case 4: return *(const int32_t *)value;
  default: return *(const int64_t *)value;
  }
}

/* Writes the shortest decimal that reads back as the same float. */
static void write_float(char *text, size_t size, float value) {
  for (int digits = 6; digits <= 9; digits++) {
    snprintf(text, size, "%.*g", digits, (double)value);
    if (strtof(text, NULL) == value) return;
  }
}

bool rf_field_write(const rf_field *field, const rf_attr *attr, char text[RF_FIELD_TEXT]) {
  static const char *const epilogues[] = {"none", "gelu", "residual"};
  const void *value = (const char *)attr + field->offset;
  int at = snprintf(text, RF_FIELD_TEXT, field->type == RF_FIELD_FLAG ? " %s" : " %s=", field->name);
  char *end = text + at;
  size_t size = RF_FIELD_TEXT - (size_t)at;
  if (field->type == RF_FIELD_FLOAT) {
    write_float(end, size, *(const float *)value);
    return *(const float *)value != 0;
  }
  int64_t number = number_of(field, value);
  if (field->type == RF_FIELD_DTYPE) snprintf(end, size, "%s", rf_dtype_name((rf_dtype)number));
  if (field->type == RF_FIELD_EPILOGUE) snprintf(end, size, "%s", epilogues[number]);
  if (field->type == RF_FIELD_NUMBER) snprintf(end, size, "%lld", (long long)number);
  return number != 0;
}
