/* template_lists.h - filters on lists; template_filters.c has them in its table. */
#ifndef RF_TEMPLATE_LISTS_H
#define RF_TEMPLATE_LISTS_H

#include "text/template_parts.h"

tpl_call rf_tpl_filter_first, rf_tpl_filter_last, rf_tpl_filter_list, rf_tpl_filter_items, rf_tpl_filter_join;
typedef rf_status tpl_call_any(tpl_run *run, const tpl_value *self, const tpl_arguments *arguments,
                               tpl_value *result);
tpl_call_any rf_tpl_filter_map, rf_tpl_filter_select, rf_tpl_filter_reject, rf_tpl_filter_selectattr,
    rf_tpl_filter_rejectattr;

#endif
