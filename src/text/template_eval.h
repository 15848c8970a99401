/* template_eval.h - declarations that the evaluation of expressions and of statements share. */
#ifndef RF_TEMPLATE_EVAL_H
#define RF_TEMPLATE_EVAL_H

#include "text/template_parts.h"

typedef struct tpl_variable {
  tpl_text name;
  tpl_value value;
  struct tpl_variable *next;
} tpl_variable;

/* The variables of one scope. The template, each iteration of a loop, each call of a macro and each
 * captured block have their own scope. An if block has no scope. */
struct tpl_frame {
  tpl_frame *parent;
  tpl_variable *first;
};

rf_status rf_tpl_new_frame(tpl_run *run, tpl_frame *parent, tpl_frame **frame);
rf_status rf_tpl_assign(tpl_run *run, tpl_text name, const tpl_value *value); /* in run->frame */
rf_status rf_tpl_eval(tpl_run *run, const tpl_node *node, tpl_value *value);
/* Compares a with b. `op` is a TPL_OP, 'i' for "in", or 'n' for "not in". */
rf_status rf_tpl_compare(tpl_run *run, int op, const tpl_value *a, const tpl_value *b, bool *holds);

#endif
