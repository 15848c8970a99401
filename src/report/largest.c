/* largest.c - the tensors that are alive at a plan's peak, summed by kind over all blocks. */
#include "report/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *rf_report_shape_json(const rf_tensor *t) {
  json_t *shape = json_array();
  for (int i = 0; i < t->rank; i++) json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
  return shape;
}

static int larger_first(const void *a, const void *b) {
  const rf_report_buffers *x = a, *y = b;
  return x->bytes != y->bytes ? (x->bytes > y->bytes ? -1 : 1) : x->tensor - y->tensor;
}

void rf_report_kind_name(const char *name, char kind[160]) {
  const char *at = strstr(name, "block."), *digits = at ? at + 6 : NULL;
  size_t n = digits ? strspn(digits, "0123456789") : 0;
  if (n) snprintf(kind, 160, "%.*s*%.100s", (int)(digits - name < 50 ? digits - name : 50), name, digits + n);
  else snprintf(kind, 160, "%.150s", name);
}

rf_report_buffers *rf_report_largest(const rf_plan *plan, int *count) {
  enum { MAX = 512 };
  rf_report_buffers *list = calloc(MAX, sizeof *list);
  char name[160];
  *count = 0;
  for (int t = 0; list && t < plan->tensor_count; t++) {
    const rf_plan_tensor *p = &plan->tensor[t];
    const rf_tensor *tensor = rf_plan_content(plan, t);
    bool holds = p->offset >= 0 && !tensor->host && p->first + (p->shares != RF_NONE) <= plan->peak_op &&
                 /* an output in the memory of an input counts only after the op that writes it */
                 p->last >= plan->peak_op;
    if (!holds) continue;
    rf_report_kind_name(tensor->name, name);
    int k = 0;
    while (k < *count && strcmp(list[k].name, name)) k++;
    if (k == MAX) continue;
    if (k == *count) {
      list[(*count)++] = (rf_report_buffers){.tensor = t, .each_bytes = rf_tensor_bytes(tensor)};
      memcpy(list[k].name, name, sizeof name);
    }
    list[k].count += tensor->slots > 1 ? tensor->slots : 1;
    list[k].bytes += p->bytes;
  }
  if (list) qsort(list, (size_t)*count, sizeof *list, larger_first);
  return list;
}

json_t *rf_report_largest_json(const rf_plan *plan) {
  json_t *rows = json_array();
  char type[64];
  int count = 0;
  rf_report_buffers *list = rf_report_largest(plan, &count);
  for (int i = 0; i < count; i++) {
    const rf_tensor *t = rf_plan_content(plan, list[i].tensor);
    json_array_append_new(rows, json_pack("{ss ss ss so si sI sI ss?}", "name", list[i].name, "class",
                                          rf_class_name(t->class), "dtype", rf_tensor_type(t, type), "shape",
                                          rf_report_shape_json(t), "count", list[i].count, "each_bytes",
                                          (json_int_t)list[i].each_bytes, "bytes", (json_int_t)list[i].bytes,
                                          "reason", t->reason));
  }
  free(list);
  return rows;
}
