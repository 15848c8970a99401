/* hlo_shape.c - see hlo.h: operations that change shapes, products, reductions, indexed access. */
#include "backend/xla/hlo_text.h"

#include <stdio.h>
#include <string.h>

/* ---- shapes ---------------------------------------------------------------------------------- */

rf_val rf_hlo_reshape(rf_hlo *h, rf_val a, int rank, const int64_t *dim) {
  rf_val result = rf_hlo_new_value(h, a.type, rank, dim);
  RF_EXPECT(rf_val_count(a) == rf_val_count(result));
  if (rank == a.rank && memcmp(dim, a.dim, (size_t)rank * sizeof *dim) == 0) return a;
  return rf_hlo_one(h, "reshape", a, "", result);
}

rf_val rf_hlo_broadcast(rf_hlo *h, rf_val a, const int *axis, int rank, const int64_t *dim) {
  char attributes[600];
  for (int i = 0; i < a.rank; i++) RF_EXPECT(a.dim[i] == dim[axis[i]] || a.dim[i] == 1);
  snprintf(attributes, sizeof attributes, " {broadcast_dimensions = %s}",
           rf_hlo_array_of_ints(a.rank, axis).text);
  return rf_hlo_one(h, "broadcast_in_dim", a, attributes, rf_hlo_new_value(h, a.type, rank, dim));
}

rf_val rf_hlo_transpose(rf_hlo *h, rf_val a, const int *axis) {
  char attributes[600];
  rf_val result = rf_hlo_new_value(h, a.type, a.rank, a.dim);
  for (int i = 0; i < a.rank; i++) result.dim[i] = a.dim[axis[i]];
  snprintf(attributes, sizeof attributes, " {permutation = %s}", rf_hlo_array_of_ints(a.rank, axis).text);
  return rf_hlo_one(h, "transpose", a, attributes, result);
}

rf_val rf_hlo_slice(rf_hlo *h, rf_val a, int axis, int64_t begin, int64_t end) {
  RF_EXPECT(0 <= begin && begin <= end && end <= a.dim[axis]);
  if (begin == 0 && end == a.dim[axis]) return a;
  char attributes[1800];
  int64_t from[RF_HLO_RANK] = {0}, to[RF_HLO_RANK], step[RF_HLO_RANK];
  rf_val result = rf_hlo_new_value(h, a.type, a.rank, a.dim);
  for (int i = 0; i < a.rank; i++) {
    to[i] = a.dim[i];
    step[i] = 1;
  }
  from[axis] = begin;
  to[axis] = end;
  result.dim[axis] = end - begin;
  snprintf(attributes, sizeof attributes, " {start_indices = %s, limit_indices = %s, strides = %s}",
           rf_hlo_array(a.rank, from).text, rf_hlo_array(a.rank, to).text, rf_hlo_array(a.rank, step).text);
  return rf_hlo_one(h, "slice", a, attributes, result);
}

/* The texts "%1, %2" and "tensor<..>, tensor<..>" of a list of values, for use as operands. */
static void put_operands(rf_hlo *h, int count, const rf_val *v) {
  for (int i = 0; i < count; i++) RF_PUT("%s%%%d", i ? ", " : "", v[i].id);
}
static void put_types(rf_hlo *h, int count, const rf_val *v) {
  for (int i = 0; i < count; i++) RF_PUT("%s%s", i ? ", " : "", RF_TYPE(v[i]));
}

rf_val rf_hlo_concatenate(rf_hlo *h, int axis, int count, const rf_val *part) {
  if (count == 1) return part[0];
  rf_val result = rf_hlo_new_value(h, part[0].type, part[0].rank, part[0].dim);
  for (int i = 1; i < count; i++) {
    RF_EXPECT(part[i].type == part[0].type && part[i].rank == part[0].rank);
    result.dim[axis] += part[i].dim[axis];
  }
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.concatenate\"(");
  put_operands(h, count, part);
  RF_PUT(") {dimension = %d : i64} : (", axis);
  put_types(h, count, part);
  RF_PUT(") -> %s", RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

rf_val rf_hlo_pad(rf_hlo *h, rf_val a, int axis, int64_t before, int64_t after, double value) {
  char attributes[1800];
  int64_t low[RF_HLO_RANK] = {0}, high[RF_HLO_RANK] = {0}, none[RF_HLO_RANK] = {0};
  rf_val fill = rf_hlo_scalar(h, a.type, value), result = rf_hlo_new_value(h, a.type, a.rank, a.dim);
  low[axis] = before;
  high[axis] = after;
  result.dim[axis] += before + after;
  snprintf(attributes, sizeof attributes,
           " {edge_padding_low = %s, edge_padding_high = %s, interior_padding = %s}",
           rf_hlo_array(a.rank, low).text, rf_hlo_array(a.rank, high).text, rf_hlo_array(a.rank, none).text);
  return rf_hlo_two(h, "pad", a, fill, attributes, result);
}

rf_val rf_hlo_dynamic_slice(rf_hlo *h, rf_val a, const rf_val *start, const int64_t *size) {
  rf_val result = rf_hlo_new_value(h, a.type, a.rank, size);
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.dynamic_slice\"(%%%d, ", a.id);
  put_operands(h, a.rank, start);
  RF_PUT(") {slice_sizes = %s} : (%s, ", rf_hlo_array(a.rank, size).text, RF_TYPE(a));
  put_types(h, a.rank, start);
  RF_PUT(") -> %s", RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

rf_val rf_hlo_dynamic_update(rf_hlo *h, rf_val a, rf_val part, const rf_val *start) {
  RF_EXPECT(a.type == part.type && a.rank == part.rank);
  rf_val result = rf_hlo_new_value(h, a.type, a.rank, a.dim);
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.dynamic_update_slice\"(%%%d, %%%d, ", a.id, part.id);
  put_operands(h, a.rank, start);
  RF_PUT(") : (%s, %s, ", RF_TYPE(a), RF_TYPE(part));
  put_types(h, a.rank, start);
  RF_PUT(") -> %s", RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

/* ---- products -------------------------------------------------------------------------------- */

static int listed(const int *list) {
  int count = 0;
  while (count < 4 && list[count] >= 0) count++;
  return count;
}

static bool contains(const int *list, int axis) {
  for (int i = 0; i < listed(list); i++)
    if (list[i] == axis) return true;
  return false;
}

rf_val rf_hlo_dot_general(rf_hlo *h, rf_val a, rf_val b, rf_hlo_dot of, rf_hlo_type type) {
  char attributes[2400];
  rf_val result = {.type = type};
  int batches = listed(of.a_batch), sums = listed(of.a_sum);
  RF_EXPECT(a.type == b.type && batches == listed(of.b_batch) && sums == listed(of.b_sum));
  for (int i = 0; i < batches; i++) {
    RF_EXPECT(a.dim[of.a_batch[i]] == b.dim[of.b_batch[i]]);
    result.dim[result.rank++] = a.dim[of.a_batch[i]];
  }
  for (int i = 0; i < sums; i++) RF_EXPECT(a.dim[of.a_sum[i]] == b.dim[of.b_sum[i]]);
  for (int i = 0; i < a.rank; i++)
    if (!contains(of.a_batch, i) && !contains(of.a_sum, i)) result.dim[result.rank++] = a.dim[i];
  for (int i = 0; i < b.rank; i++)
    if (!contains(of.b_batch, i) && !contains(of.b_sum, i)) result.dim[result.rank++] = b.dim[i];
  const char *precision = a.type == RF_HLO_F32 ? "HIGHEST" : "DEFAULT";
  snprintf(attributes, sizeof attributes,
           " {dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = %s, rhs_batching_dimensions = "
           "%s, lhs_contracting_dimensions = %s, rhs_contracting_dimensions = %s>, precision_config = "
           "[#stablehlo<precision %s>, #stablehlo<precision %s>]}",
           rf_hlo_ints(batches, of.a_batch).text, rf_hlo_ints(batches, of.b_batch).text,
           rf_hlo_ints(sums, of.a_sum).text, rf_hlo_ints(sums, of.b_sum).text, precision, precision);
  return rf_hlo_two(h, "dot_general", a, b, attributes, rf_hlo_new_value(h, type, result.rank, result.dim));
}

rf_val rf_hlo_matmul(rf_hlo *h, rf_val a, bool a_transposed, rf_val b, bool b_transposed, rf_hlo_type type) {
  rf_hlo_dot of = {{-1}, {-1}, {a_transposed ? 0 : 1, -1}, {b_transposed ? 1 : 0, -1}};
  return rf_hlo_dot_general(h, a, b, of, type);
}

rf_val rf_hlo_ragged_dot(rf_hlo *h, rf_val a, rf_val b, rf_val sizes, int b_sum, rf_hlo_type type) {
  rf_val result = {.type = type, .rank = 2, .dim = {a.dim[0], b.dim[3 - b_sum]}};
  if (b_sum == 0) result = (rf_val){.type = type, .rank = 3, .dim = {sizes.dim[0], a.dim[1], b.dim[1]}};
  result = rf_hlo_new_value(h, type, result.rank, result.dim);
  const char *precision = a.type == RF_HLO_F32 ? "HIGHEST" : "DEFAULT";
  rf_hlo_begin(h, result);
  RF_PUT(
      "\"chlo.ragged_dot\"(%%%d, %%%d, %%%d) {precision_config = [#chlo<precision %s>, #chlo<precision %s>], "
      "ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [], "
      "rhs_batching_dimensions = [], lhs_contracting_dimensions = [%d], rhs_contracting_dimensions = [%d], "
      "lhs_ragged_dimensions = [0], rhs_group_dimensions = [%s]>} : (%s, %s, %s) -> %s",
      a.id, b.id, sizes.id, precision, precision, b_sum > 0, b_sum, b_sum > 0 ? "0" : "", RF_TYPE(a),
      RF_TYPE(b), RF_TYPE(sizes), RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

/* ---- reductions ------------------------------------------------------------------------------ */

void rf_hlo_region(rf_hlo *h, rf_hlo_reduction how, rf_hlo_type type) {
  static const char *const NAMES[] = {"add", "maximum", "minimum", "and"};
  rf_val a = rf_hlo_new_value(h, type, 0, NULL), b = rf_hlo_new_value(h, type, 0, NULL),
         c = rf_hlo_new_value(h, type, 0, NULL);
  RF_PUT(" ({ ^bb0(%%%d: %s, %%%d: %s): ", a.id, RF_TYPE(a), b.id, RF_TYPE(b));
  RF_PUT("%%%d = \"stablehlo.%s\"(%%%d, %%%d) : (%s, %s) -> %s ", c.id, NAMES[how], a.id, b.id, RF_TYPE(a),
         RF_TYPE(b), RF_TYPE(c));
  RF_PUT("\"stablehlo.return\"(%%%d) : (%s) -> () })", c.id, RF_TYPE(c));
}

rf_val rf_hlo_reduce(rf_hlo *h, rf_hlo_reduction how, rf_val a, int axis) {
  rf_val start = rf_hlo_scalar(h, a.type, rf_hlo_start_of(how, a.type)),
         result = rf_hlo_new_value(h, a.type, a.rank - 1, a.dim);
  for (int i = axis; i < a.rank - 1; i++) result.dim[i] = a.dim[i + 1];
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.reduce\"(%%%d, %%%d)", a.id, start.id);
  rf_hlo_region(h, how, a.type);
  RF_PUT(" {dimensions = array<i64: %d>} : (%s, %s) -> %s", axis, RF_TYPE(a), RF_TYPE(start),
         RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

rf_val rf_hlo_reduce_all(rf_hlo *h, rf_hlo_reduction how, rf_val a) {
  int64_t count = rf_val_count(a);
  return rf_hlo_reduce(h, how, rf_hlo_reshape(h, a, 1, &count), 0);
}

/* ---- indexed access -------------------------------------------------------------------------- */

/* The dimensions of a gather's result, or of a scatter's updates. First come the dimensions of
 * `index` except the last, then the dimensions of `a` that are not indexed. window[] gets the
 * positions of the dimensions of `a`. */
static rf_val sliced(rf_val a, rf_val index, int k, const int *axis, int *window) {
  rf_val v = {.type = a.type};
  int indexed[5] = {-1, -1, -1, -1, -1};
  for (int i = 0; i < k; i++) indexed[i] = axis[i];
  for (int i = 0; i < index.rank - 1; i++) v.dim[v.rank++] = index.dim[i];
  for (int i = 0, n = 0; i < a.rank; i++) {
    if (contains(indexed, i)) continue;
    window[n++] = v.rank;
    v.dim[v.rank++] = a.dim[i];
  }
  return v;
}

rf_val rf_hlo_gather(rf_hlo *h, rf_val a, rf_val index, int k, const int *axis) {
  char attributes[2800];
  int window[RF_HLO_RANK];
  int64_t size[RF_HLO_RANK];
  RF_EXPECT(index.type == RF_HLO_I32 && index.dim[index.rank - 1] == k);
  rf_val shape = sliced(a, index, k, axis, window);
  for (int i = 0; i < a.rank; i++) size[i] = a.dim[i];
  for (int i = 0; i < k; i++) size[axis[i]] = 1;
  snprintf(
      attributes, sizeof attributes,
      " {dimension_numbers = #stablehlo.gather<offset_dims = %s, collapsed_slice_dims = %s, start_index_map "
      "= %s, index_vector_dim = %d>, slice_sizes = %s, indices_are_sorted = false}",
      rf_hlo_ints(a.rank - k, window).text, rf_hlo_ints(k, axis).text, rf_hlo_ints(k, axis).text,
      index.rank - 1, rf_hlo_array(a.rank, size).text);
  return rf_hlo_two(h, "gather", a, index, attributes, rf_hlo_new_value(h, a.type, shape.rank, shape.dim));
}

/* If the scatter does not add, its region returns the update. */
static void put_scatter_region(rf_hlo *h, rf_hlo_type type, bool add) {
  if (add) {
    rf_hlo_region(h, RF_HLO_SUM, type);
    return;
  }
  rf_val a = rf_hlo_new_value(h, type, 0, NULL), b = rf_hlo_new_value(h, type, 0, NULL);
  RF_PUT(" ({ ^bb0(%%%d: %s, %%%d: %s): \"stablehlo.return\"(%%%d) : (%s) -> () })", a.id, RF_TYPE(a), b.id,
         RF_TYPE(b), b.id, RF_TYPE(b));
}

rf_val rf_hlo_scatter(rf_hlo *h, rf_val a, rf_val index, rf_val update, int k, const int *axis, bool add,
                      bool unique) {
  int window[RF_HLO_RANK];
  rf_val shape = sliced(a, index, k, axis, window), result = rf_hlo_new_value(h, a.type, a.rank, a.dim);
  RF_EXPECT(shape.rank == update.rank && update.type == a.type && index.type == RF_HLO_I32);
  for (int i = 0; i < shape.rank; i++) RF_EXPECT(shape.dim[i] == update.dim[i]);
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.scatter\"(%%%d, %%%d, %%%d)", a.id, index.id, update.id);
  put_scatter_region(h, a.type, add);
  RF_PUT(
      " {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = %s, inserted_window_dims = %s, "
      "scatter_dims_to_operand_dims = %s, index_vector_dim = %d>, indices_are_sorted = false, "
      "unique_indices = %s} : (%s, %s, %s) -> %s",
      rf_hlo_ints(a.rank - k, window).text, rf_hlo_ints(k, axis).text, rf_hlo_ints(k, axis).text,
      index.rank - 1, unique ? "true" : "false", RF_TYPE(a), RF_TYPE(index), RF_TYPE(update),
      RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

rf_val rf_hlo_rows(rf_hlo *h, rf_val table, rf_val index) {
  int64_t dim[RF_HLO_RANK];
  for (int i = 0; i < index.rank; i++) dim[i] = index.dim[i];
  dim[index.rank] = 1;
  return rf_hlo_gather(h, table, rf_hlo_reshape(h, index, index.rank + 1, dim), 1, (const int[]){0});
}

/* ---- sorting --------------------------------------------------------------------------------- */

void rf_hlo_sort(rf_hlo *h, int axis, rf_val *key, rf_val *other) {
  int count = rf_has(*other) ? 2 : 1;
  rf_val in[2] = {*key, *other}, out[2], scalar[4];
  for (int i = 0; i < count; i++) out[i] = rf_hlo_new_value(h, in[i].type, in[i].rank, in[i].dim);
  /* All results of an operation share one number, "%5:2", and have the names %5#0 and %5#1. A
   * reshape of each result gives the result its own number. */
  int32_t id = h->next++;
  RF_PUT("%*s%%%d:%d = \"stablehlo.sort\"(", 2 * h->depth, "", id, count);
  put_operands(h, count, in);
  RF_PUT(") ({ ^bb0(");
  for (int i = 0; i < 2 * count; i++) {
    scalar[i] = rf_hlo_new_value(h, in[i / 2].type, 0, NULL);
    RF_PUT("%s%%%d: %s", i ? ", " : "", scalar[i].id, RF_TYPE(scalar[i]));
  }
  rf_val less = rf_hlo_new_value(h, RF_HLO_BOOL, 0, NULL);
  RF_PUT("): %%%d = \"stablehlo.compare\"(%%%d, %%%d) {compare_type = #stablehlo<comparison_type %s>, "
         "comparison_direction = #stablehlo<comparison_direction LT>} : (%s, %s) -> %s ",
         less.id, scalar[0].id, scalar[1].id, key->type <= RF_HLO_F64 ? "FLOAT" : "SIGNED",
         RF_TYPE(scalar[0]), RF_TYPE(scalar[1]), RF_TYPE(less));
  RF_PUT("\"stablehlo.return\"(%%%d) : (%s) -> () }) {dimension = %d : i64, is_stable = true} : (", less.id,
         RF_TYPE(less), axis);
  put_types(h, count, in);
  RF_PUT(") -> (");
  put_types(h, count, out);
  RF_PUT(")");
  rf_hlo_end(h);
  rf_val *result[2] = {key, other};
  for (int i = 0; i < count; i++) {
    rf_hlo_begin(h, out[i]);
    RF_PUT("\"stablehlo.reshape\"(%%%d#%d) : (%s) -> %s", id, i, RF_TYPE(out[i]), RF_TYPE(out[i]));
    rf_hlo_end(h);
    *result[i] = out[i];
  }
}

/* Gives each result of operation `id` its own number. */
static void take_results(rf_hlo *h, int32_t id, int count, const rf_val *result) {
  for (int i = 0; i < count; i++) {
    rf_hlo_begin(h, result[i]);
    RF_PUT("\"stablehlo.reshape\"(%%%d#%d) : (%s) -> %s", id, i, RF_TYPE(result[i]), RF_TYPE(result[i]));
    rf_hlo_end(h);
  }
}

static void put_order(rf_hlo *h, rf_val v, const int *order) {
  int plain[RF_HLO_RANK];
  for (int i = 0; i < v.rank; i++) plain[i] = v.rank - 1 - i;
  RF_PUT("dense<%s> : tensor<%dxindex>", rf_hlo_ints(v.rank, order ? order : plain).text, v.rank);
}

void rf_hlo_call(rf_hlo *h, const rf_hlo_callee *of) {
  int32_t id = h->next++;
  for (int i = 0; i < of->results; i++)
    of->result[i] = rf_hlo_new_value(h, of->result[i].type, of->result[i].rank, of->result[i].dim);
  RF_PUT("%*s%%%d:%d = \"stablehlo.custom_call\"(", 2 * h->depth, "", id, of->results);
  for (int i = 0; i < of->operands; i++) RF_PUT("%s%%%d", i ? ", " : "", of->operand[i].id);
  RF_PUT(") {call_target_name = ");
  rf_hlo_quote(h, &h->body, of->target);
  RF_PUT(", backend_config = ");
  rf_hlo_quote(h, &h->body, of->config);
  RF_PUT(", api_version = 2 : i32, has_side_effect = false, operand_layouts = [");
  for (int i = 0; i < of->operands; i++) {
    RF_PUT(i ? ", " : "");
    put_order(h, of->operand[i], NULL);
  }
  RF_PUT("], result_layouts = [");
  for (int i = 0; i < of->results; i++) {
    RF_PUT(i ? ", " : "");
    put_order(h, of->result[i], of->order[i]);
  }
  RF_PUT("]} : (");
  for (int i = 0; i < of->operands; i++) RF_PUT("%s%s", i ? ", " : "", RF_TYPE(of->operand[i]));
  RF_PUT(") -> (");
  for (int i = 0; i < of->results; i++) RF_PUT("%s%s", i ? ", " : "", RF_TYPE(of->result[i]));
  RF_PUT(")");
  rf_hlo_end(h);
  take_results(h, id, of->results, of->result);
}

/* If the compiler knows the operation of the dialect chlo, this operation is faster than a sort. */
void rf_hlo_top_k(rf_hlo *h, rf_val a, int64_t k, rf_val *values, rf_val *indices) {
  int last = a.rank - 1;
  rf_val out[2] = {rf_hlo_new_value(h, a.type, a.rank, a.dim),
                   rf_hlo_new_value(h, RF_HLO_I32, a.rank, a.dim)};
  for (int i = 0; i < 2; i++) out[i].dim[last] = k;
  int32_t id = h->next++;
  RF_PUT("%*s%%%d:2 = \"chlo.top_k\"(%%%d) {k = %lld : i64} : (%s) -> (%s, %s)", 2 * h->depth, "", id, a.id,
         (long long)k, RF_TYPE(a), RF_TYPE(out[0]), RF_TYPE(out[1]));
  rf_hlo_end(h);
  take_results(h, id, 2, out);
  *values = out[0];
  *indices = out[1];
}
