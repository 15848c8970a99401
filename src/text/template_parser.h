/* template_parser.h - declarations that the parsers of statements and expressions share. */
#ifndef RF_TEMPLATE_PARSER_H
#define RF_TEMPLATE_PARSER_H

#include "text/template_parts.h"

typedef struct tpl_parser {
  rf_template *parsed;
  const tpl_token *token; /* current token; the last token is TOKEN_END */
  int depth,              /* nesting depth of bodies and expressions */
      loops;              /* number of enclosing loops */
  rf_error *error;
} tpl_parser;

bool rf_tpl_at_op(const tpl_parser *p, int op);
bool rf_tpl_at_name(const tpl_parser *p, const char *name);
bool rf_tpl_skip_op(tpl_parser *p, int op);
bool rf_tpl_skip_name(tpl_parser *p, const char *name);
rf_status rf_tpl_expect_op(tpl_parser *p, int op);
rf_status rf_tpl_unexpected(tpl_parser *p, const char *expected); /* reports an error at the current token */
bool rf_tpl_reserved(tpl_text name);                              /* true for a name that Jinja reserves */
bool rf_tpl_constant_name(tpl_text name);                         /* true for "true", "None", ... */

tpl_node *rf_tpl_node(tpl_parser *p, tpl_node_kind kind, size_t at);
/* Raises the depth of `node` to one more than the depth of its child `child`, if it is lower. The
 * child may be NULL. Fails if the tree is too deep. */
rf_status rf_tpl_own(tpl_parser *p, tpl_node *node, const tpl_node *child);
rf_status rf_tpl_append(tpl_parser *p, tpl_node *node, tpl_node *child, tpl_text name, int op);

rf_status rf_tpl_parse_expression(tpl_parser *p, tpl_node **expression);
/* Parses one expression, or several expressions separated by commas. If `choice` is true, "x if y
 * else z" is allowed. After "for" and "if", this expression is not allowed. */
rf_status rf_tpl_parse_tuple(tpl_parser *p, bool choice, tpl_node **expression);
/* Parses a filter's name and arguments. The current token must be the token before the name. */
rf_status rf_tpl_parse_filter(tpl_parser *p, tpl_node *input, tpl_node **filtered);

#endif
