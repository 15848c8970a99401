/* template_parser.h - what the parsers of statements and expressions share. */
#ifndef RF_TEMPLATE_PARSER_H
#define RF_TEMPLATE_PARSER_H

#include "text/template_parts.h"

typedef struct tpl_parser {
  rf_template *parsed;
  const tpl_token *token; /* the current one; TOKEN_END is the last */
  int depth, loops;       /* bodies or expressions, and loops, around here */
  rf_error *error;
} tpl_parser;

bool rf_tpl_at_op(const tpl_parser *p, int op);
bool rf_tpl_at_name(const tpl_parser *p, const char *name);
bool rf_tpl_skip_op(tpl_parser *p, int op);
bool rf_tpl_skip_name(tpl_parser *p, const char *name);
rf_status rf_tpl_expect_op(tpl_parser *p, int op);
rf_status rf_tpl_unexpected(tpl_parser *p, const char *expected); /* fails at the current token */
bool rf_tpl_reserved(tpl_text name);                              /* words that are no variable here */
bool rf_tpl_constant_name(tpl_text name);                         /* true, None, ... */

tpl_node *rf_tpl_node(tpl_parser *p, tpl_node_kind kind, size_t at);
/* Makes `node` deeper than `child` (may be NULL), within the bound. */
rf_status rf_tpl_own(tpl_parser *p, tpl_node *node, const tpl_node *child);
rf_status rf_tpl_append(tpl_parser *p, tpl_node *node, tpl_node *child, tpl_text name, int op);

rf_status rf_tpl_parse_expression(tpl_parser *p, tpl_node **expression);
/* An expression, or several with commas between them. `choice`: may end in "x if y else z" (not
 * so in for and if). */
rf_status rf_tpl_parse_tuple(tpl_parser *p, bool choice, tpl_node **expression);
/* The token is the '|', or any that stands for it. */
rf_status rf_tpl_parse_filter(tpl_parser *p, tpl_node *input, tpl_node **filtered);

#endif
