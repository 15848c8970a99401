/* template_lists.h - filters on lists, for the table of filters in template_filters.c. */
#ifndef RF_TEMPLATE_LISTS_H
#define RF_TEMPLATE_LISTS_H

#include "text/template_parts.h"

tpl_body rf_tpl_filter_first, rf_tpl_filter_last, rf_tpl_filter_list, rf_tpl_filter_items, rf_tpl_filter_join,
    rf_tpl_filter_map, rf_tpl_filter_choose;
/* Bits of rf_tpl_filter_choose's variant. KEEP: keep the items that pass the test. ATTRIBUTE: test
 * an attribute of each item. */
enum { RF_TPL_KEEP = 1, RF_TPL_ATTRIBUTE = 2 };

#endif
