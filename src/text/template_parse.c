/* template_parse.c - parses a template's statements into a tree. Expressions are in
 * template_expression.c. */
#include "text/template_parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

rf_status rf_tpl_fail_at(const rf_template *parsed, size_t at, rf_error *error, const char *file, int line,
                         const char *format, ...) {
  int row = 1;
  size_t start = 0;
  for (size_t i = 0; i < at && i < parsed->source.bytes; ++i)
    if (parsed->source.at[i] == '\n') {
      ++row;
      start = i + 1;
    }
  if (at > parsed->source.bytes) at = parsed->source.bytes;
  char what[600];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  long long column = 1 + (long long)rf_tpl_points((tpl_text){parsed->source.at + start, at - start});
  return rf_fail(error, RAFTER_FAILED, file, line, NULL, "%.150s, line %d, column %lld: %s", parsed->where,
                 row, column, what);
}

/* ---- shared by all parsers ------------------------------------------------------------------- */

bool rf_tpl_at_op(const tpl_parser *p, int op) {
  return p->token->kind == TOKEN_OPERATOR && p->token->op == op;
}
bool rf_tpl_at_name(const tpl_parser *p, const char *name) {
  return p->token->kind == TOKEN_NAME && rf_tpl_is(p->token->text, name);
}

bool rf_tpl_skip_op(tpl_parser *p, int op) {
  bool found = rf_tpl_at_op(p, op);
  p->token += found;
  return found;
}

bool rf_tpl_skip_name(tpl_parser *p, const char *name) {
  bool found = rf_tpl_at_name(p, name);
  p->token += found;
  return found;
}

rf_status rf_tpl_unexpected(tpl_parser *p, const char *expected) {
  static const char *const kinds[] = {"text",   "{{",       "}}",       "{%",          "%}",     "a name",
                                      "a text", "a number", "a number", "an operator", "the end"};
  const tpl_token *token = p->token;
  char got[64];
  if (token->kind == TOKEN_NAME)
    snprintf(got, sizeof got, "'%.*s'", (int)(token->text.bytes < 40 ? token->text.bytes : 40),
             token->text.at);
  else if (token->kind == TOKEN_OPERATOR)
    snprintf(got, sizeof got, "'%c%c'", token->op & 0xff, token->op >> 8 ? token->op >> 8 : ' ');
  else snprintf(got, sizeof got, "%s", kinds[token->kind]);
  if (token->kind == TOKEN_OPERATOR && !(token->op >> 8)) snprintf(got, sizeof got, "'%c'", token->op);
  return TPL_FAIL_AT(p->parsed, token->at, p->error, "expected %s, got %s", expected, got);
}

rf_status rf_tpl_expect_op(tpl_parser *p, int op) {
  if (rf_tpl_skip_op(p, op)) return RAFTER_OK;
  char expected[8];
  snprintf(expected, sizeof expected, "'%c'", op);
  return rf_tpl_unexpected(p, expected);
}

bool rf_tpl_reserved(tpl_text name) {
  static const char *const words[] = {"and",  "or",    "not",    "if",     "else",    "elif",
                                      "in",   "is",    "for",    "caller", "varargs", "kwargs",
                                      "self", "super", "cycler", "joiner", "lipsum"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i)
    if (rf_tpl_is(name, words[i])) return true;
  return false;
}

tpl_node *rf_tpl_node(tpl_parser *p, tpl_node_kind kind, size_t at) {
  tpl_node *node = rf_pool_alloc(p->parsed->pool, sizeof *node);
  node->kind = kind;
  node->at = at;
  node->depth = 1;
  return node;
}

rf_status rf_tpl_own(tpl_parser *p, tpl_node *node, const tpl_node *child) {
  if (!child || child->depth < node->depth) return RAFTER_OK;
  node->depth = child->depth + 1;
  if (node->depth <= TPL_TREE_DEPTH) return RAFTER_OK;
  return TPL_FAIL_AT(p->parsed, node->at, p->error, "the template nests more than %d deep here",
                     TPL_TREE_DEPTH);
}

rf_status rf_tpl_append(tpl_parser *p, tpl_node *node, tpl_node *child, tpl_text name, int op) {
  if ((node->count & (node->count - 1)) == 0) { /* `count` is 0 or a power of two, so the list is full */
    size_t capacity = node->count ? (size_t)node->count * 2 : 1;
    tpl_node **list = rf_pool_alloc(p->parsed->pool, capacity * sizeof *list);
    tpl_text *names = rf_pool_alloc(p->parsed->pool, capacity * sizeof *names);
    int *ops = rf_pool_alloc(p->parsed->pool, capacity * sizeof *ops);
    for (int i = 0; i < node->count; ++i) {
      list[i] = node->list[i];
      names[i] = node->names[i];
      ops[i] = node->ops[i];
    }
    node->list = list;
    node->names = names;
    node->ops = ops;
  }
  node->list[node->count] = child;
  node->names[node->count] = name;
  node->ops[node->count++] = op;
  return rf_tpl_own(p, node, child);
}

/* ---- statements ------------------------------------------------------------------------------ */

static rf_status parse_body(tpl_parser *p, const char *const *ends, tpl_node **body);

static rf_status block_end(tpl_parser *p) {
  if (p->token->kind != TOKEN_BLOCK_END) return rf_tpl_unexpected(p, "%}");
  ++p->token;
  return RAFTER_OK;
}

static rf_status set_child(tpl_parser *p, tpl_node *node, int slot, tpl_node *child) {
  node->kid[slot] = child;
  return rf_tpl_own(p, node, child);
}

static rf_status parse_if(tpl_parser *p, tpl_node *node) {
  static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
  node->kind = NODE_IF;
  for (;;) {
    tpl_node *condition, *body;
    RF_TRY(rf_tpl_parse_tuple(p, false, &condition));
    RF_TRY(block_end(p));
    RF_TRY(parse_body(p, ends, &body));
    RF_TRY(rf_tpl_append(p, node, condition, (tpl_text){0}, 0));
    RF_TRY(rf_tpl_append(p, node, body, (tpl_text){0}, 0));
    if (rf_tpl_skip_name(p, "elif")) continue;
    if (rf_tpl_skip_name(p, "else")) {
      RF_TRY(block_end(p));
      RF_TRY(parse_body(p, last, &body));
      RF_TRY(set_child(p, node, 0, body));
    }
    ++p->token;
    return block_end(p);
  }
}

/* Parses the target of "for" or "set": one name, or several names separated by commas. */
static rf_status parse_target(tpl_parser *p, tpl_node **target) {
  tpl_node *node = rf_tpl_node(p, NODE_TUPLE, p->token->at);
  bool tuple = false, open = rf_tpl_skip_op(p, '(');
  do {
    if (node->count && (rf_tpl_at_name(p, "in") || rf_tpl_at_op(p, '=') || rf_tpl_at_op(p, ')'))) break;
    if (p->token->kind != TOKEN_NAME || rf_tpl_reserved(p->token->text) ||
        rf_tpl_constant_name(p->token->text))
      return rf_tpl_unexpected(p, "a name to assign to");
    tpl_node *name = rf_tpl_node(p, NODE_NAME, p->token->at);
    name->name = p->token++->text;
    RF_TRY(rf_tpl_append(p, node, name, (tpl_text){0}, 0));
    tuple |= rf_tpl_at_op(p, ',');
  } while (rf_tpl_skip_op(p, ','));
  if (open) RF_TRY(rf_tpl_expect_op(p, ')'));
  *target = tuple ? node : node->list[0];
  return RAFTER_OK;
}

static rf_status parse_for(tpl_parser *p, tpl_node *node) {
  static const char *const ends[] = {"endfor", "else", NULL};
  tpl_node *kid;
  node->kind = NODE_FOR;
  RF_TRY(parse_target(p, &kid));
  RF_TRY(set_child(p, node, 0, kid));
  if (!rf_tpl_skip_name(p, "in")) return rf_tpl_unexpected(p, "'in'");
  RF_TRY(rf_tpl_parse_tuple(p, false, &kid));
  RF_TRY(set_child(p, node, 1, kid));
  if (rf_tpl_skip_name(p, "if")) {
    RF_TRY(rf_tpl_parse_expression(p, &kid));
    RF_TRY(set_child(p, node, 2, kid));
  }
  if (rf_tpl_at_name(p, "recursive"))
    return TPL_FAIL_AT(p->parsed, p->token->at, p->error, "recursive loops are not supported");
  RF_TRY(block_end(p));
  ++p->loops;
  RF_TRY(parse_body(p, ends, &kid));
  --p->loops;
  RF_TRY(set_child(p, node, 3, kid));
  if (rf_tpl_skip_name(p, "else")) {
    RF_TRY(block_end(p));
    RF_TRY(parse_body(p, (const char *const[]){"endfor", NULL}, &kid));
    RF_TRY(set_child(p, node, 4, kid));
  }
  ++p->token;
  return block_end(p);
}

/* A {% break %} in a captured block must not leave a loop outside the block. */
static rf_status parse_captured(tpl_parser *p, const char *end, tpl_node **body) {
  int loops = p->loops;
  p->loops = 0;
  RF_TRY(parse_body(p, (const char *const[]){end, NULL}, body));
  p->loops = loops;
  ++p->token;
  return block_end(p);
}

static rf_status parse_set(tpl_parser *p, tpl_node *node) {
  tpl_node *kid;
  if (p->token->kind == TOKEN_NAME && p->token[1].kind == TOKEN_OPERATOR && p->token[1].op == '.') {
    node->kind = NODE_SET_FIELD;
    kid = rf_tpl_node(p, NODE_NAME, p->token->at);
    kid->name = p->token->text;
    p->token += 2;
    if (p->token->kind != TOKEN_NAME) return rf_tpl_unexpected(p, "a name to assign to");
    node->name = p->token++->text;
    RF_TRY(set_child(p, node, 0, kid));
    if (!rf_tpl_at_op(p, '=')) return rf_tpl_unexpected(p, "'='");
  } else {
    node->kind = NODE_SET;
    RF_TRY(parse_target(p, &kid));
    RF_TRY(set_child(p, node, 0, kid));
  }
  if (rf_tpl_skip_op(p, '=')) {
    RF_TRY(rf_tpl_parse_tuple(p, true, &kid));
    RF_TRY(set_child(p, node, 1, kid));
    return block_end(p);
  }
  node->kind = NODE_SET_BLOCK;
  tpl_node *captured = rf_tpl_node(p, NODE_CAPTURED, p->token->at);
  while (rf_tpl_at_op(p, '|')) RF_TRY(rf_tpl_parse_filter(p, captured, &captured));
  RF_TRY(set_child(p, node, 2, captured));
  RF_TRY(block_end(p));
  RF_TRY(parse_captured(p, "endset", &kid));
  return set_child(p, node, 1, kid);
}

static rf_status parse_macro(tpl_parser *p, tpl_node *node) {
  node->kind = NODE_MACRO;
  if (p->token->kind != TOKEN_NAME || rf_tpl_reserved(p->token->text))
    return rf_tpl_unexpected(p, "the macro's name");
  node->name = p->token++->text;
  RF_TRY(rf_tpl_expect_op(p, '('));
  bool defaults = false;
  while (!rf_tpl_at_op(p, ')')) {
    if (node->count) RF_TRY(rf_tpl_expect_op(p, ','));
    if (p->token->kind != TOKEN_NAME || rf_tpl_reserved(p->token->text))
      return rf_tpl_unexpected(p, "a parameter's name");
    tpl_text name = p->token++->text;
    tpl_node *value = NULL;
    if (rf_tpl_skip_op(p, '=')) {
      RF_TRY(rf_tpl_parse_expression(p, &value));
      defaults = true;
    } else if (defaults) {
      return TPL_FAIL_AT(p->parsed, p->token->at, p->error,
                         "a parameter without a default follows a parameter with a default");
    }
    RF_TRY(rf_tpl_append(p, node, value, name, 0));
  }
  ++p->token;
  RF_TRY(block_end(p));
  tpl_node *body;
  RF_TRY(parse_captured(p, "endmacro", &body));
  return set_child(p, node, 0, body);
}

static rf_status parse_filtered(tpl_parser *p, tpl_node *node) {
  node->kind = NODE_FILTERED;
  tpl_node *filter = rf_tpl_node(p, NODE_CAPTURED, p->token->at), *body;
  --p->token; /* here, the word "filter" stands in place of the '|' before a filter */
  do RF_TRY(rf_tpl_parse_filter(p, filter, &filter));
  while (rf_tpl_at_op(p, '|'));
  RF_TRY(set_child(p, node, 1, filter));
  RF_TRY(block_end(p));
  RF_TRY(parse_captured(p, "endfilter", &body));
  return set_child(p, node, 0, body);
}

static rf_status parse_generation(tpl_parser *p, tpl_node *node) {
  node->kind = NODE_GENERATION;
  p->parsed->marks_generation = true;
  RF_TRY(block_end(p));
  tpl_node *body;
  RF_TRY(parse_captured(p, "endgeneration", &body));
  return set_child(p, node, 0, body);
}

static rf_status parse_leave(tpl_parser *p, tpl_node *node) {
  node->kind = rf_tpl_is(p->token[-1].text, "break") ? NODE_BREAK : NODE_CONTINUE;
  if (p->loops == 0)
    return TPL_FAIL_AT(p->parsed, node->at, p->error, "break and continue are only allowed in a loop");
  return block_end(p);
}

static rf_status parse_statement(tpl_parser *p, tpl_node **statement) {
  static const struct {
    const char *name;
    rf_status (*parse)(tpl_parser *p, tpl_node *node);
  } rows[] = {{"if", parse_if},       {"for", parse_for},         {"set", parse_set},
              {"macro", parse_macro}, {"filter", parse_filtered}, {"generation", parse_generation},
              {"break", parse_leave}, {"continue", parse_leave}};
  const tpl_token *name = p->token;
  if (name->kind != TOKEN_NAME) return rf_tpl_unexpected(p, "the name of a block");
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
    if (rf_tpl_is(name->text, rows[i].name)) {
      ++p->token;
      *statement = rf_tpl_node(p, NODE_BODY, name->at);
      return rows[i].parse(p, *statement);
    }
  return TPL_FAIL_AT(p->parsed, name->at, p->error, "the block {%% %.*s %%} is not supported here",
                     TPL_SHOWN(name->text));
}

/* Parses up to a block tag whose name is in `ends`. If `ends` is NULL, parses to the end of the
 * source. */
static rf_status parse_body(tpl_parser *p, const char *const *ends, tpl_node **body) {
  tpl_node *node = rf_tpl_node(p, NODE_BODY, p->token->at), *child = NULL;
  if (++p->depth > TPL_TREE_DEPTH)
    return TPL_FAIL_AT(p->parsed, node->at, p->error, "blocks nest more than %d deep", TPL_TREE_DEPTH);
  for (;;) {
    const tpl_token *token = p->token++;
    if (token->kind == TOKEN_DATA) {
      child = rf_tpl_node(p, NODE_DATA, token->at);
      child->name = token->text;
    } else if (token->kind == TOKEN_PRINT) {
      child = rf_tpl_node(p, NODE_PRINT, token->at);
      tpl_node *value;
      RF_TRY(rf_tpl_parse_tuple(p, true, &value));
      if (p->token->kind != TOKEN_PRINT_END) return rf_tpl_unexpected(p, "}}");
      ++p->token;
      RF_TRY(set_child(p, child, 0, value));
    } else if (token->kind == TOKEN_BLOCK) {
      bool ended = false;
      for (int i = 0; ends && ends[i]; ++i) ended |= rf_tpl_at_name(p, ends[i]);
      if (ended) break;
      RF_TRY(parse_statement(p, &child));
    } else {
      --p->token;
      if (!ends) break;
      int last = 0;
      while (ends[last + 1]) ++last;
      return TPL_FAIL_AT(p->parsed, node->at, p->error,
                         "the block that starts here does not end (expected {%% %s %%})", ends[last]);
    }
    RF_TRY(rf_tpl_append(p, node, child, (tpl_text){0}, 0));
  }
  --p->depth;
  *body = node;
  return RAFTER_OK;
}

/* ---- templates ------------------------------------------------------------------------------- */

/* Copies the source. Like Jinja, replaces every kind of newline by \n, and drops one newline at the
 * end. Fails if the source is not valid UTF-8. */
static rf_status take_source(rf_template *parsed, const char *text, size_t bytes, rf_error *error) {
  char *copy = rf_pool_alloc(parsed->pool, bytes + 1);
  size_t length = 0;
  uint32_t point;
  parsed->source = (tpl_text){copy, 0};
  for (size_t i = 0, n; i < bytes; i += n) {
    n = rf_tpl_point(text + i, bytes - i, &point);
    if (n == 0)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s is not valid UTF-8 (byte %zu)", parsed->where, i);
    if (point == '\r') {
      copy[length++] = '\n';
      if (i + 1 < bytes && text[i + 1] == '\n') ++i;
    } else {
      memcpy(copy + length, text + i, n);
      length += n;
    }
  }
  if (length && copy[length - 1] == '\n') --length;
  parsed->source.bytes = length;
  return RAFTER_OK;
}

rf_status rf_template_parse(const char *text, size_t bytes, const char *where, rf_template **parsed,
                            rf_error *error) {
  if (bytes > TPL_SOURCE_MAX)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s is too large for a chat template (expected at most %d bytes, got %zu)", where,
                   TPL_SOURCE_MAX, bytes);
  rf_pool *pool = rf_pool_new();
  rf_template *made = rf_pool_alloc(pool, sizeof *made);
  made->pool = pool;
  made->where = rf_pool_format(pool, "%s", where);
  tpl_token *tokens;
  rf_status status;
  RF_GO(take_source(made, text, bytes, error));
  RF_GO(rf_tpl_lex(made, &tokens, error));
  tpl_parser p = {.parsed = made, .token = tokens, .error = error};
  RF_GO(parse_body(&p, NULL, &made->body));
  if (p.token->kind != TOKEN_END) status = rf_tpl_unexpected(&p, "the end");
done:
  if (status == RAFTER_OK) *parsed = made;
  else rf_template_free(made);
  return status;
}

void rf_template_free(rf_template *parsed) {
  if (parsed) rf_pool_free(parsed->pool);
}

bool rf_template_marks_generation(const rf_template *parsed) { return parsed->marks_generation; }
