/* template_expression.c - parses expressions with Jinja's precedences. Jinja's precedences differ
 * from Python's: '~' binds more tightly than '+', and filters bind more tightly than any
 * operator. */
#include "text/template_parser.h"

#include <string.h>

static rf_status parse_binary(tpl_parser *p, int level, tpl_node **expression);
static rf_status parse_unary(tpl_parser *p, bool filters, tpl_node **expression);
static rf_status parse_primary(tpl_parser *p, tpl_node **expression);
static rf_status parse_postfix(tpl_parser *p, tpl_node **expression);

static const struct {
  const char *name;
  tpl_value value;
} CONSTANTS[] = {
    {"true", {.kind = TPL_BOOL, .truth = true}},
    {"True", {.kind = TPL_BOOL, .truth = true}},
    {"false", {.kind = TPL_BOOL}},
    {"False", {.kind = TPL_BOOL}},
    {"none", {.kind = TPL_NONE}},
    {"None", {.kind = TPL_NONE}},
};
enum { CONSTANT_COUNT = sizeof CONSTANTS / sizeof CONSTANTS[0] };

static int constant_row(tpl_text name) {
  int i = 0;
  while (i < CONSTANT_COUNT && !rf_tpl_is(name, CONSTANTS[i].name)) ++i;
  return i;
}

bool rf_tpl_constant_name(tpl_text name) { return constant_row(name) < CONSTANT_COUNT; }

static rf_status enter_level(tpl_parser *p) {
  if (++p->depth <= TPL_TREE_DEPTH) return RAFTER_OK;
  return TPL_FAIL_AT(p->parsed, p->token->at, p->error, "expressions nest more than %d deep", TPL_TREE_DEPTH);
}

static rf_status make_node(tpl_parser *p, tpl_node_kind kind, size_t at, int op, tpl_node *a, tpl_node *b,
                           tpl_node *c, tpl_node **made) {
  tpl_node *node = rf_tpl_node(p, kind, at);
  node->op = op;
  tpl_node *kids[3] = {a, b, c};
  for (int i = 0; i < 3; ++i) {
    node->kid[i] = kids[i];
    RF_TRY(rf_tpl_own(p, node, kids[i]));
  }
  *made = node;
  return RAFTER_OK;
}

/* ---- primaries ------------------------------------------------------------------------------- */

/* Parses the items of a list after '[', or the keys and values of a dict after '{'. */
static rf_status parse_items(tpl_parser *p, tpl_node_kind kind, tpl_node **expression) {
  tpl_node *node = rf_tpl_node(p, kind, p->token->at), *item;
  bool dict = kind == NODE_DICT;
  while (!rf_tpl_skip_op(p, dict ? '}' : ']')) {
    if (node->count) {
      RF_TRY(rf_tpl_expect_op(p, ','));
      if (rf_tpl_skip_op(p, dict ? '}' : ']')) break;
    }
    for (int i = 0; i < 1 + dict; ++i) {
      if (i) RF_TRY(rf_tpl_expect_op(p, ':'));
      RF_TRY(rf_tpl_parse_expression(p, &item));
      RF_TRY(rf_tpl_append(p, node, item, (tpl_text){0}, 0));
    }
  }
  *expression = node;
  return RAFTER_OK;
}

static rf_status parse_parentheses(tpl_parser *p, tpl_node **expression) {
  if (rf_tpl_skip_op(p, ')')) {
    *expression = rf_tpl_node(p, NODE_TUPLE, p->token[-1].at);
    return RAFTER_OK;
  }
  RF_TRY(rf_tpl_parse_tuple(p, true, expression));
  return rf_tpl_expect_op(p, ')');
}

static tpl_text join_texts(tpl_parser *p) {
  tpl_text text = p->token++->text;
  if (p->token->kind != TOKEN_TEXT) return text;
  size_t bytes = text.bytes;
  for (const tpl_token *t = p->token; t->kind == TOKEN_TEXT; ++t) bytes += t->text.bytes;
  char *joined = rf_pool_alloc(p->parsed->pool, bytes + 1);
  memcpy(joined, text.at, text.bytes);
  for (size_t at = text.bytes; p->token->kind == TOKEN_TEXT; at += p->token++->text.bytes)
    memcpy(joined + at, p->token->text.at, p->token->text.bytes);
  return (tpl_text){joined, bytes};
}

static rf_status parse_primary(tpl_parser *p, tpl_node **expression) {
  const tpl_token *token = p->token;
  tpl_node *node = rf_tpl_node(p, NODE_CONSTANT, token->at);
  *expression = node;
  if (token->kind == TOKEN_TEXT) {
    node->constant = (tpl_value){.kind = TPL_STRING, .text = join_texts(p)};
  } else if (token->kind == TOKEN_INT || token->kind == TOKEN_FLOAT) {
    ++p->token;
    node->constant = token->kind == TOKEN_INT ? tpl_int(token->whole) : tpl_float(token->real);
  } else if (token->kind == TOKEN_NAME) {
    int row = constant_row(token->text);
    if (row == CONSTANT_COUNT && rf_tpl_reserved(token->text)) return rf_tpl_unexpected(p, "a value");
    ++p->token;
    if (row < CONSTANT_COUNT) node->constant = CONSTANTS[row].value;
    else node->kind = NODE_NAME;
    node->name = token->text;
  } else if (rf_tpl_skip_op(p, '(')) {
    return parse_parentheses(p, expression);
  } else if (rf_tpl_skip_op(p, '[')) {
    return parse_items(p, NODE_LIST, expression);
  } else if (rf_tpl_skip_op(p, '{')) {
    return parse_items(p, NODE_DICT, expression);
  } else {
    return rf_tpl_unexpected(p, "a value");
  }
  return RAFTER_OK;
}

/* ---- postfix: calls, subscripts, attributes, filters ----------------------------------------- */

/* Parses arguments after '(' up to ')' and appends them to `node`. */
static rf_status parse_arguments(tpl_parser *p, tpl_node *node) {
  bool named = false;
  for (bool first = true; !rf_tpl_skip_op(p, ')'); first = false) {
    if (!first) {
      RF_TRY(rf_tpl_expect_op(p, ','));
      if (rf_tpl_skip_op(p, ')')) break;
    }
    if (rf_tpl_at_op(p, '*') || rf_tpl_at_op(p, TPL_OP('*', '*')))
      return TPL_FAIL_AT(p->parsed, p->token->at, p->error, "arguments unpacked with * are not supported");
    tpl_text name = {0};
    if (p->token->kind == TOKEN_NAME && p->token[1].kind == TOKEN_OPERATOR && p->token[1].op == '=') {
      name = p->token->text;
      p->token += 2;
      named = true;
    } else if (named) {
      return TPL_FAIL_AT(p->parsed, p->token->at, p->error, "a positional argument follows a named argument");
    }
    tpl_node *value;
    RF_TRY(rf_tpl_parse_expression(p, &value));
    RF_TRY(rf_tpl_append(p, node, value, name, 0));
  }
  return RAFTER_OK;
}

static rf_status parse_subscript(tpl_parser *p, tpl_node **expression) {
  size_t at = p->token[-1].at;
  tpl_node *part[3] = {NULL, NULL, NULL}, *node;
  int count = 0;
  bool slice = false;
  for (;; ++count) {
    if (!rf_tpl_at_op(p, ':') && !rf_tpl_at_op(p, ']')) RF_TRY(rf_tpl_parse_expression(p, &part[count]));
    if (count == 2 || !rf_tpl_skip_op(p, ':')) break;
    slice = true;
  }
  if (!slice && !part[0]) return rf_tpl_unexpected(p, "an index");
  RF_TRY(rf_tpl_expect_op(p, ']'));
  RF_TRY(make_node(p, slice ? NODE_SLICE : NODE_ITEM, at, 0, *expression, part[0], part[1], &node));
  node->kid[3] = part[2];
  RF_TRY(rf_tpl_own(p, node, part[2]));
  *expression = node;
  return RAFTER_OK;
}

static rf_status parse_call(tpl_parser *p, tpl_node **expression) {
  tpl_node *node;
  RF_TRY(make_node(p, NODE_CALL, p->token[-1].at, 0, *expression, NULL, NULL, &node));
  RF_TRY(parse_arguments(p, node));
  *expression = node;
  return RAFTER_OK;
}

static rf_status parse_dot(tpl_parser *p, tpl_node **expression) {
  const tpl_token *token = p->token++;
  tpl_node *node, *index = NULL;
  if (token->kind == TOKEN_INT) {
    index = rf_tpl_node(p, NODE_CONSTANT, token->at);
    index->constant = tpl_int(token->whole);
  } else if (token->kind != TOKEN_NAME) {
    --p->token;
    return rf_tpl_unexpected(p, "the name of an attribute");
  }
  RF_TRY(make_node(p, index ? NODE_ITEM : NODE_ATTRIBUTE, token->at, 0, *expression, index, NULL, &node));
  node->name = token->text;
  *expression = node;
  return RAFTER_OK;
}

static rf_status parse_postfix(tpl_parser *p, tpl_node **expression) {
  for (;;) {
    if (rf_tpl_skip_op(p, '.')) RF_TRY(parse_dot(p, expression));
    else if (rf_tpl_skip_op(p, '[')) RF_TRY(parse_subscript(p, expression));
    else if (rf_tpl_skip_op(p, '(')) RF_TRY(parse_call(p, expression));
    else return RAFTER_OK;
  }
}

/* Finds the filter or test that the current token names. */
static rf_status named_row(tpl_parser *p, const char *what, const tpl_function *(*find)(tpl_text name),
                           tpl_node *node) {
  if (p->token->kind != TOKEN_NAME) return rf_tpl_unexpected(p, "a name");
  node->name = p->token->text;
  node->function = find(node->name);
  if (!node->function)
    return TPL_FAIL_AT(p->parsed, p->token->at, p->error, "unknown %s \"%.*s\"", what, TPL_SHOWN(node->name));
  ++p->token;
  return RAFTER_OK;
}

rf_status rf_tpl_parse_filter(tpl_parser *p, tpl_node *input, tpl_node **filtered) {
  tpl_node *node;
  ++p->token;
  RF_TRY(make_node(p, NODE_FILTER, p->token->at, 0, input, NULL, NULL, &node));
  RF_TRY(named_row(p, "filter", rf_tpl_filter, node));
  if (rf_tpl_skip_op(p, '(')) RF_TRY(parse_arguments(p, node));
  *filtered = node;
  return RAFTER_OK;
}

static bool starts_test_argument(const tpl_parser *p) {
  const tpl_token *t = p->token;
  if (t->kind == TOKEN_TEXT || t->kind == TOKEN_INT || t->kind == TOKEN_FLOAT) return true;
  if (t->kind == TOKEN_OPERATOR) return t->op == '[' || t->op == '{';
  return t->kind == TOKEN_NAME && (rf_tpl_constant_name(t->text) || !rf_tpl_reserved(t->text));
}

static rf_status parse_test(tpl_parser *p, tpl_node **expression) {
  tpl_node *node, *argument;
  RF_TRY(make_node(p, NODE_TEST, p->token->at, 0, *expression, NULL, NULL, &node));
  node->op = rf_tpl_skip_name(p, "not");
  RF_TRY(named_row(p, "test", rf_tpl_test, node));
  if (rf_tpl_skip_op(p, '(')) {
    RF_TRY(parse_arguments(p, node));
  } else if (starts_test_argument(p)) {
    RF_TRY(parse_primary(p, &argument));
    RF_TRY(parse_postfix(p, &argument));
    RF_TRY(rf_tpl_append(p, node, argument, (tpl_text){0}, 0));
  }
  *expression = node;
  return RAFTER_OK;
}

static rf_status parse_filters(tpl_parser *p, tpl_node **expression) {
  for (;;) {
    if (rf_tpl_at_op(p, '|')) RF_TRY(rf_tpl_parse_filter(p, *expression, expression));
    else if (rf_tpl_skip_name(p, "is")) RF_TRY(parse_test(p, expression));
    else if (rf_tpl_skip_op(p, '(')) RF_TRY(parse_call(p, expression));
    else return RAFTER_OK;
  }
}

/* ---- operators ------------------------------------------------------------------------------- */

/* A sign binds more tightly than a postfix: in Jinja, -x.y is (-x).y. */
static rf_status parse_unary(tpl_parser *p, bool filters, tpl_node **expression) {
  RF_TRY(enter_level(p));
  size_t at = p->token->at;
  bool minus = rf_tpl_skip_op(p, '-');
  if (minus || rf_tpl_skip_op(p, '+')) {
    RF_TRY(parse_unary(p, false, expression));
    RF_TRY(make_node(p, minus ? NODE_NEGATIVE : NODE_POSITIVE, at, 0, *expression, NULL, NULL, expression));
  } else {
    RF_TRY(parse_primary(p, expression));
  }
  RF_TRY(parse_postfix(p, expression));
  if (filters) RF_TRY(parse_filters(p, expression));
  --p->depth;
  return RAFTER_OK;
}

enum { LEVEL_OR, LEVEL_AND, LEVEL_NOT, LEVEL_COMPARE, LEVEL_SUM, LEVEL_JOIN, LEVEL_PRODUCT, LEVEL_UNARY };
static const struct {
  int op; /* TPL_OP of the operator; 0: the operator is a word */
  const char *word;
  int level;
} BINARY[] = {
    {0, "or", LEVEL_OR},
    {0, "and", LEVEL_AND},
    {TPL_OP('=', '='), NULL, LEVEL_COMPARE},
    {TPL_OP('!', '='), NULL, LEVEL_COMPARE},
    {'<', NULL, LEVEL_COMPARE},
    {'>', NULL, LEVEL_COMPARE},
    {TPL_OP('<', '='), NULL, LEVEL_COMPARE},
    {TPL_OP('>', '='), NULL, LEVEL_COMPARE},
    {0, "in", LEVEL_COMPARE},
    {'+', NULL, LEVEL_SUM},
    {'-', NULL, LEVEL_SUM},
    {'~', NULL, LEVEL_JOIN},
    {'*', NULL, LEVEL_PRODUCT},
    {'/', NULL, LEVEL_PRODUCT},
    {TPL_OP('/', '/'), NULL, LEVEL_PRODUCT},
    {'%', NULL, LEVEL_PRODUCT},
};

/* If the current token is an operator of precedence `level`, consumes the token and returns the
 * operator. If not, returns -1. For an operator that is a word, the first letter is returned. */
static int take_operator(tpl_parser *p, int level) {
  for (size_t i = 0; i < sizeof BINARY / sizeof BINARY[0]; ++i) {
    if (BINARY[i].level != level) continue;
    if (BINARY[i].word ? rf_tpl_skip_name(p, BINARY[i].word) : rf_tpl_skip_op(p, BINARY[i].op))
      return BINARY[i].word ? BINARY[i].word[0] : BINARY[i].op;
  }
  bool not_in = level == LEVEL_COMPARE && rf_tpl_at_name(p, "not") && p->token[1].kind == TOKEN_NAME &&
                rf_tpl_is(p->token[1].text, "in");
  if (!not_in) return -1;
  p->token += 2;
  return 'n';
}

static rf_status parse_not(tpl_parser *p, tpl_node **expression) {
  size_t at = p->token->at;
  if (!rf_tpl_skip_name(p, "not")) return parse_binary(p, LEVEL_COMPARE, expression);
  RF_TRY(enter_level(p));
  RF_TRY(parse_not(p, expression));
  --p->depth;
  return make_node(p, NODE_NOT, at, 0, *expression, NULL, NULL, expression);
}

/* Parses a chain such as `a < b < c` as one comparison, which means a < b and b < c. */
static rf_status parse_compare(tpl_parser *p, tpl_node **expression) {
  RF_TRY(parse_binary(p, LEVEL_COMPARE + 1, expression));
  tpl_node *node = NULL, *right;
  for (int op; (op = take_operator(p, LEVEL_COMPARE)) >= 0;) {
    size_t at = p->token[-1].at;
    if (!node) RF_TRY(make_node(p, NODE_COMPARE, at, 0, *expression, NULL, NULL, &node));
    RF_TRY(parse_binary(p, LEVEL_COMPARE + 1, &right));
    RF_TRY(rf_tpl_append(p, node, right, (tpl_text){0}, op));
    *expression = node;
  }
  return RAFTER_OK;
}

static rf_status parse_binary(tpl_parser *p, int level, tpl_node **expression) {
  if (level == LEVEL_UNARY) {
    RF_TRY(parse_unary(p, true, expression));
    if (rf_tpl_at_op(p, TPL_OP('*', '*')))
      return TPL_FAIL_AT(p->parsed, p->token->at, p->error, "the operator ** is not supported");
    return RAFTER_OK;
  }
  if (level == LEVEL_NOT) return parse_not(p, expression);
  static const tpl_node_kind kinds[] = {[LEVEL_OR] = NODE_OR,
                                        [LEVEL_AND] = NODE_AND,
                                        [LEVEL_SUM] = NODE_BINARY,
                                        [LEVEL_JOIN] = NODE_BINARY,
                                        [LEVEL_PRODUCT] = NODE_BINARY};
  if (level == LEVEL_COMPARE) return parse_compare(p, expression);
  RF_TRY(parse_binary(p, level + 1, expression));
  for (int op; (op = take_operator(p, level)) >= 0;) {
    size_t at = p->token[-1].at;
    tpl_node *right;
    RF_TRY(parse_binary(p, level + 1, &right));
    RF_TRY(make_node(p, kinds[level], at, op, *expression, right, NULL, expression));
  }
  return RAFTER_OK;
}

rf_status rf_tpl_parse_expression(tpl_parser *p, tpl_node **expression) {
  RF_TRY(enter_level(p));
  RF_TRY(parse_binary(p, LEVEL_OR, expression));
  for (size_t at = p->token->at; rf_tpl_skip_name(p, "if"); at = p->token->at) {
    tpl_node *condition, *otherwise = NULL;
    RF_TRY(parse_binary(p, LEVEL_OR, &condition));
    if (rf_tpl_skip_name(p, "else")) RF_TRY(rf_tpl_parse_expression(p, &otherwise));
    RF_TRY(make_node(p, NODE_CHOICE, at, 0, condition, *expression, otherwise, expression));
  }
  --p->depth;
  return RAFTER_OK;
}

rf_status rf_tpl_parse_tuple(tpl_parser *p, bool choice, tpl_node **expression) {
  tpl_node *node = NULL, *item;
  for (;;) {
    bool ends =
        p->token->kind == TOKEN_PRINT_END || p->token->kind == TOKEN_BLOCK_END || rf_tpl_at_op(p, ')');
    if (node && ends) break;
    RF_TRY(choice ? rf_tpl_parse_expression(p, &item) : parse_binary(p, LEVEL_OR, &item));
    bool comma = rf_tpl_at_op(p, ',');
    if (!node && !comma) {
      *expression = item;
      return RAFTER_OK;
    }
    if (!node) node = rf_tpl_node(p, NODE_TUPLE, item->at);
    RF_TRY(rf_tpl_append(p, node, item, (tpl_text){0}, 0));
    if (!comma) break;
    ++p->token;
  }
  *expression = node;
  return RAFTER_OK;
}
