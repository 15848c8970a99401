/* schema_array.c - arrays, and alternatives of schemas. */
#include "constrain/schema.h"

#include <stdio.h>
#include <string.h>

/* ---- arrays ---------------------------------------------------------------------------------- */

typedef struct array {
  const json_t *prefix, *items; /* NULL: none */
  int64_t low, high;            /* number of items; high < 0: no maximum */
  int64_t firsts;               /* items of `prefix` */
} array;

static rf_status read_array(rf_schema *s, const json_t *schema, array *a) {
  a->prefix = json_object_get(schema, "prefixItems");
  a->items = json_object_get(schema, "items");
  if (json_is_true(json_object_get(schema, "uniqueItems")))
    return rf_schema_wrong(s, "uniqueItems", "is not supported");
  if (a->prefix && !json_is_array(a->prefix)) return rf_schema_wrong(s, "prefixItems", "is not a list");
  if (json_is_array(a->items)) return rf_schema_wrong(s, "items", "is a list; use prefixItems");
  RF_TRY(rf_schema_count(s, schema, "minItems", 0, &a->low));
  RF_TRY(rf_schema_count(s, schema, "maxItems", -1, &a->high));
  a->firsts = (int64_t)json_array_size(a->prefix);
  /* As for properties: without `items`, a list with a prefix has no other items. */
  bool closed = json_is_false(a->items) || (a->prefix && !a->items);
  if (closed && (a->high < 0 || a->high > a->firsts)) a->high = a->firsts;
  if (a->high >= 0 && a->high < a->low)
    return rf_schema_wrong(s, "maxItems", "allows fewer items than minItems");
  return RAFTER_OK;
}

/* Gets the rule of item `index`. */
static rf_status item_rule(rf_schema *s, const array *a, int64_t index, int32_t *rule) {
  const json_t *item = index < a->firsts ? json_array_get(a->prefix, (size_t)index) : a->items;
  if (!item) {
    *rule = rf_schema_any(s);
    return RAFTER_OK;
  }
  char name[32];
  snprintf(name, sizeof name, "%lld", (long long)index);
  size_t up = rf_schema_down(s, index < a->firsts ? "prefixItems" : "items"),
         up_index = index < a->firsts ? rf_schema_down(s, name) : up;
  rf_status status = rf_schema_rule_of(s, item, rule);
  rf_schema_up(s, up_index < up ? up_index : up);
  return status;
}

/* Adds the items from `index` on. `state` is the state after item index - 1, and `end` is
 * the state before "]". */
static rf_status add_items(rf_schema *s, const array *a, int32_t state, int32_t end) {
  rf_grammar *g = s->g;
  int32_t rule;
  for (int64_t i = 0; (a->high < 0 || i < a->high) && !g->full; i++) {
    int32_t before = rf_grammar_state(g), after = rf_grammar_state(g);
    bool loops = a->high < 0 && i >= a->low && i >= a->firsts && i > 0;
    if (i >= a->low) rf_grammar_skip(g, state, end);
    if (i) {
      int32_t comma = rf_grammar_state(g);
      rf_grammar_bytes(g, state, ',', ',', comma);
      rf_schema_blank(s, comma, before);
    } else rf_grammar_skip(g, state, before);
    RF_TRY(item_rule(s, a, i, &rule));
    rf_grammar_call(g, before, rule, loops ? state : after);
    if (loops) return RAFTER_OK;
    state = after;
  }
  rf_grammar_skip(g, state, end);
  return RAFTER_OK;
}

rf_status rf_schema_add_array(rf_schema *s, const json_t *schema, int32_t from, int32_t to) {
  array a;
  RF_TRY(read_array(s, schema, &a));
  int32_t begin = rf_grammar_state(s->g), end = rf_grammar_state(s->g), close = rf_grammar_state(s->g);
  rf_schema_blank(s, rf_grammar_text(s->g, from, "[", 1), begin);
  rf_schema_blank(s, end, close);
  rf_grammar_bytes(s->g, close, ']', ']', to);
  return add_items(s, &a, begin, end);
}

/* ---- alternatives ---------------------------------------------------------------------------- */

/* Counts the work of comparing alternatives, which a short schema can make endless. Returns false
 * after too much work. Then the alternatives count as not distinct. */
static bool may_compare(rf_schema *s, size_t work) {
  s->compared += (int64_t)work + 1;
  return s->compared <= RF_SCHEMA_COMPARED;
}

/* Follows the references of a schema, and returns the schema that they name. */
static const json_t *resolve(rf_schema *s, const json_t *schema) {
  for (int i = 0; json_object_get(schema, "$ref"); i++) {
    schema = i < RF_SCHEMA_NESTED && may_compare(s, 0) ? rf_schema_target(s, schema) : NULL;
    if (!schema) return NULL;
  }
  return schema;
}

/* Returns the types of a schema and of its alternatives. */
static unsigned types_within(rf_schema *s, const json_t *schema, int depth) {
  const json_t *one, *list;
  unsigned types = 0;
  size_t i;
  schema = depth < 8 ? resolve(s, schema) : NULL;
  if (!json_is_object(schema) || !may_compare(s, json_array_size(json_object_get(schema, "type"))))
    return RF_TYPE_ANY;
  list = json_object_get(schema, "anyOf");
  if (!list) list = json_object_get(schema, "oneOf");
  if (!list) {
    types = json_object_get(schema, "type") || !json_object_get(schema, "enum") ? rf_schema_types(schema)
                                                                                : RF_TYPE_ANY;
    return types & RF_TYPE_NUMBER ? types | RF_TYPE_INTEGER : types;
  }
  json_array_foreach ((json_t *)list, i, one) {
    if (types == RF_TYPE_ANY) break;
    types |= types_within(s, one, depth + 1);
  }
  return types;
}

/* Returns the values of a schema with `const` or `enum` as a list. NULL: the schema has neither
 * keyword. The caller owns it. */
static json_t *values_of(rf_schema *s, const json_t *schema) {
  schema = resolve(s, schema);
  json_t *one = json_object_get(schema, "const");
  return one ? json_pack("[O]", one) : json_incref(json_object_get(schema, "enum"));
}

/* After too much work, this function returns true. */
static bool share_value(rf_schema *s, const json_t *a, const json_t *b) {
  json_t *x, *y;
  size_t i, k;
  if (!may_compare(s, json_array_size(a) * json_array_size(b))) return true;
  json_array_foreach ((json_t *)a, i, x)
    json_array_foreach ((json_t *)b, k, y)
      if (json_equal(x, y)) return true;
  return false;
}

/* True if both schemas list their values, and no value is in both lists. */
static bool lists_differ(rf_schema *s, const json_t *a, const json_t *b) {
  json_t *x = values_of(s, a), *y = values_of(s, b);
  bool differ = json_is_array(x) && json_is_array(y) && !share_value(s, x, y);
  json_decref(x);
  json_decref(y);
  return differ;
}

bool rf_schema_requires(const json_t *required, const char *name) {
  const json_t *one;
  size_t i;
  json_array_foreach ((json_t *)(uintptr_t)required, i, one)
    if (json_is_string(one) && !strcmp(json_string_value(one), name)) return true;
  return false;
}

/* True if no value can match both schemas: their types or values differ, or a common property of
 * their objects has different values. */
static bool are_disjoint(rf_schema *s, const json_t *a, const json_t *b) {
  const char *name;
  json_t *value;
  if (!(types_within(s, a, 0) & types_within(s, b, 0)) || lists_differ(s, a, b)) return true;
  a = resolve(s, a);
  b = resolve(s, b);
  if (rf_schema_types(a) != RF_TYPE_OBJECT || rf_schema_types(b) != RF_TYPE_OBJECT) return false;
  json_object_foreach (json_object_get(a, "properties"), name, value) {
    const json_t *other = json_object_get(json_object_get(b, "properties"), name);
    const json_t *in_a = json_object_get(a, "required"), *in_b = json_object_get(b, "required");
    if (!may_compare(s, 0)) return false;
    if (!other || !lists_differ(s, value, other)) continue;
    if (!may_compare(s, json_array_size(in_a) + json_array_size(in_b))) return false;
    if (rf_schema_requires(in_a, name) && rf_schema_requires(in_b, name)) return true;
  }
  return false;
}

static rf_status check_disjoint(rf_schema *s, const json_t *list) {
  enum { ALTERNATIVES = 64 };
  size_t count = json_array_size(list);
  if (count > ALTERNATIVES) return rf_schema_wrong(s, "oneOf", "has more than 64 alternatives; use anyOf");
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; k < i; k++)
      if (!are_disjoint(s, json_array_get(list, i), json_array_get(list, k)))
        return rf_schema_wrong(s, "oneOf",
                               "has alternatives that a value may share; use anyOf, or give a required "
                               "property a different const in each");
  return RAFTER_OK;
}

rf_status rf_schema_alternatives(rf_schema *s, const json_t *schema, const char *keyword, int32_t from,
                                 int32_t to) {
  const json_t *list = json_object_get(schema, keyword), *one;
  char name[32];
  size_t i;
  if (!json_is_array(list) || !json_array_size(list))
    return rf_schema_wrong(s, keyword, "is not a list of schemas");
  if (!strcmp(keyword, "allOf") && json_array_size(list) > 1)
    return rf_schema_wrong(s, keyword, "is supported with one schema only");
  if (!strcmp(keyword, "oneOf")) RF_TRY(check_disjoint(s, list));
  size_t up = rf_schema_down(s, keyword);
  json_array_foreach ((json_t *)list, i, one) {
    snprintf(name, sizeof name, "%zu", i);
    size_t up_one = rf_schema_down(s, name);
    RF_TRY(rf_schema_value(s, one, from, to));
    rf_schema_up(s, up_one);
  }
  rf_schema_up(s, up);
  return RAFTER_OK;
}
