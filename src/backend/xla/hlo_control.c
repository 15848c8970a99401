/* hlo_control.c - see hlo.h: loops, barriers, and operations between replicas. */
#include "backend/xla/hlo_text.h"

#include <stdio.h>

static void put_list(rf_hlo *h, int count, const rf_val *v, bool typed) {
  for (int i = 0; i < count; i++) {
    if (typed) RF_PUT(", %%%d: %s", v[i].id, RF_TYPE(v[i]));
    else RF_PUT(", %%%d", v[i].id);
  }
}
static void put_type_list(rf_hlo *h, int count, const rf_val *v) {
  for (int i = 0; i < count; i++) RF_PUT(", %s", RF_TYPE(v[i]));
}

/* If `times` has no value, the loop has `fixed` rounds. */
static void begin(rf_hlo *h, rf_hlo_loop *loop, int64_t fixed, rf_val times, rf_val *values, int count) {
  rf_val zero = rf_hlo_scalar(h, RF_HLO_I32, 0), limit, below;
  RF_EXPECT(count <= RF_HLO_CARRIED);
  *loop = (rf_hlo_loop){.count = count, .first = h->next, .name = h->name};
  h->next++;
  RF_PUT("%*s%%%d:%d = \"stablehlo.while\"(%%%d", 2 * h->depth, "", loop->first, count + 1, zero.id);
  put_list(h, count, values, false);
  RF_PUT(") ({\n");
  h->depth++;
  /* The condition of the loop reads only the counter, but has an argument for every carried
   * value. */
  rf_val i = rf_hlo_new_value(h, RF_HLO_I32, 0, NULL);
  RF_PUT("%*s^bb0(%%%d: %s", 2 * h->depth, "", i.id, RF_TYPE(i));
  for (int k = 0; k < count; k++) {
    rf_val unused = rf_hlo_new_value(h, values[k].type, values[k].rank, values[k].dim);
    put_list(h, 1, &unused, true);
  }
  RF_PUT("):\n");
  limit = rf_has(times) ? times : rf_hlo_scalar(h, RF_HLO_I32, (double)fixed);
  below = rf_hlo_compare(h, RF_HLO_LT, i, limit);
  RF_PUT("%*s\"stablehlo.return\"(%%%d) : (%s) -> ()\n%*s}, {\n", 2 * h->depth, "", below.id, RF_TYPE(below),
         2 * (h->depth - 1), "");
  loop->i = rf_hlo_new_value(h, RF_HLO_I32, 0, NULL);
  for (int k = 0; k < count; k++)
    values[k] = rf_hlo_new_value(h, values[k].type, values[k].rank, values[k].dim);
  RF_PUT("%*s^bb0(%%%d: %s", 2 * h->depth, "", loop->i.id, RF_TYPE(loop->i));
  put_list(h, count, values, true);
  RF_PUT("):\n");
}

void rf_hlo_loop_begin(rf_hlo *h, rf_hlo_loop *loop, int64_t times, rf_val *values, int count) {
  begin(h, loop, times, RF_NO_VAL, values, count);
}
void rf_hlo_loop_begin_to(rf_hlo *h, rf_hlo_loop *loop, rf_val times, rf_val *values, int count) {
  begin(h, loop, 0, times, values, count);
}

void rf_hlo_loop_end(rf_hlo *h, rf_hlo_loop *loop, rf_val *values) {
  rf_val next = rf_hlo_add_c(h, loop->i, 1);
  RF_PUT("%*s\"stablehlo.return\"(%%%d", 2 * h->depth, "", next.id);
  put_list(h, loop->count, values, false);
  RF_PUT(") : (%s", RF_TYPE(next));
  put_type_list(h, loop->count, values);
  h->depth--;
  RF_PUT(") -> ()\n%*s}) : (%s", 2 * h->depth, "", RF_TYPE(next));
  put_type_list(h, loop->count, values);
  RF_PUT(") -> (%s", RF_TYPE(next));
  put_type_list(h, loop->count, values);
  RF_PUT(")");
  rf_hlo_end(h);
  for (int k = 0; k < loop->count; k++) {
    rf_val out = rf_hlo_new_value(h, values[k].type, values[k].rank, values[k].dim);
    rf_hlo_begin(h, out);
    RF_PUT("\"stablehlo.reshape\"(%%%d#%d) : (%s) -> %s", loop->first, k + 1, RF_TYPE(out), RF_TYPE(out));
    rf_hlo_end(h);
    values[k] = out;
  }
}

void rf_hlo_barrier(rf_hlo *h, rf_val *values, int count) {
  if (count == 0) return;
  int32_t id = h->next++;
  RF_PUT("%*s%%%d:%d = \"stablehlo.optimization_barrier\"(%%%d", 2 * h->depth, "", id, count, values[0].id);
  put_list(h, count - 1, values + 1, false);
  for (int k = 0; k < 2; k++) {
    RF_PUT(k ? ") -> (%s" : ") : (%s", RF_TYPE(values[0]));
    put_type_list(h, count - 1, values + 1);
  }
  RF_PUT(")");
  rf_hlo_end(h);
  for (int k = 0; k < count; k++) {
    rf_val out = rf_hlo_new_value(h, values[k].type, values[k].rank, values[k].dim);
    rf_hlo_begin(h, out);
    if (count == 1) RF_PUT("\"stablehlo.reshape\"(%%%d) : (%s) -> %s", id, RF_TYPE(out), RF_TYPE(out));
    else RF_PUT("\"stablehlo.reshape\"(%%%d#%d) : (%s) -> %s", id, k, RF_TYPE(out), RF_TYPE(out));
    rf_hlo_end(h);
    values[k] = out;
  }
}

/* ---- several devices ------------------------------------------------------------------------- */

rf_val rf_hlo_replica_id(rf_hlo *h) {
  rf_val result = rf_hlo_new_value(h, RF_HLO_U32, 0, NULL);
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.replica_id\"() : () -> %s", RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

/* "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>" */
static void put_pairs(rf_hlo *h, int count, int size, const int32_t *id) {
  RF_PUT("dense<[");
  for (int g = 0; g < count; g++) {
    RF_PUT("%s[", g ? ", " : "");
    for (int i = 0; i < size; i++) RF_PUT("%s%d", i ? ", " : "", id[g * size + i]);
    RF_PUT("]");
  }
  RF_PUT("]> : tensor<%dx%dxi64>", count, size);
}

static void put_groups(rf_hlo *h, rf_hlo_groups groups) {
  RF_PUT("replica_groups = ");
  put_pairs(h, groups.count, groups.size, groups.id);
}

static rf_val end_collective(rf_hlo *h, rf_val a, rf_val result) {
  RF_PUT("} : (%s) -> %s", RF_TYPE(a), RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

rf_val rf_hlo_all_gather(rf_hlo *h, rf_val a, int axis, rf_hlo_groups groups) {
  rf_val result = rf_hlo_new_value(h, a.type, a.rank, a.dim);
  result.dim[axis] *= groups.size;
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.all_gather\"(%%%d) {all_gather_dim = %d : i64, ", a.id, axis);
  put_groups(h, groups);
  return end_collective(h, a, result);
}

rf_val rf_hlo_reduce_scatter(rf_hlo *h, rf_val a, int axis, rf_hlo_groups groups) {
  rf_val result = rf_hlo_new_value(h, a.type, a.rank, a.dim);
  RF_EXPECT(a.dim[axis] % groups.size == 0);
  result.dim[axis] /= groups.size;
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.reduce_scatter\"(%%%d)", a.id);
  rf_hlo_region(h, RF_HLO_SUM, a.type);
  RF_PUT(" {scatter_dimension = %d : i64, ", axis);
  put_groups(h, groups);
  return end_collective(h, a, result);
}

rf_val rf_hlo_all_reduce(rf_hlo *h, rf_hlo_reduction how, rf_val a, rf_hlo_groups groups) {
  rf_val result = rf_hlo_new_value(h, a.type, a.rank, a.dim);
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.all_reduce\"(%%%d)", a.id);
  rf_hlo_region(h, how, a.type);
  RF_PUT(" {");
  put_groups(h, groups);
  return end_collective(h, a, result);
}

rf_val rf_hlo_all_to_all(rf_hlo *h, rf_val a, int split, int join, rf_hlo_groups groups) {
  rf_val result = rf_hlo_new_value(h, a.type, a.rank, a.dim);
  RF_EXPECT(a.dim[split] % groups.size == 0);
  result.dim[split] /= groups.size;
  result.dim[join] *= groups.size;
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.all_to_all\"(%%%d) {split_dimension = %d : i64, concat_dimension = %d : i64, "
         "split_count = "
         "%d : i64, ",
         a.id, split, join, groups.size);
  put_groups(h, groups);
  return end_collective(h, a, result);
}

rf_val rf_hlo_permute(rf_hlo *h, rf_val a, int pairs, const int32_t (*pair)[2]) {
  rf_val result = rf_hlo_new_value(h, a.type, a.rank, a.dim);
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.collective_permute\"(%%%d) {source_target_pairs = ", a.id);
  put_pairs(h, pairs, 2, &pair[0][0]);
  return end_collective(h, a, result);
}
