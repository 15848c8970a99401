/* template_lists.h - filters on lists; the table in template_filters.c lists them. */
#ifndef RF_TEMPLATE_LISTS_H
#define RF_TEMPLATE_LISTS_H

#include "text/template_parts.h"

tpl_body rf_tpl_filter_first, rf_tpl_filter_last, rf_tpl_filter_list, rf_tpl_filter_items, rf_tpl_filter_join,
    rf_tpl_filter_map, rf_tpl_filter_choose;
/* Bits of rf_tpl_filter_choose's variant. KEEP: keep items that pass. ATTRIBUTE: test an
 * attribute. */
enum { RF_TPL_KEEP = 1, RF_TPL_ATTRIBUTE = 2 };

#endif
