/* hlo.c - see hlo.h: the text, values without operands, elementwise operations. */
#include "backend/xla/hlo_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *name;
  int bytes;
} TYPES[RF_HLO_TYPES] = {
    [RF_HLO_F32] = {"f32", 4},  [RF_HLO_BF16] = {"bf16", 2}, [RF_HLO_F16] = {"f16", 2},
    [RF_HLO_F64] = {"f64", 8},  [RF_HLO_I32] = {"i32", 4},   [RF_HLO_I64] = {"i64", 8},
    [RF_HLO_I8] = {"i8", 1},    [RF_HLO_U8] = {"ui8", 1},    [RF_HLO_U16] = {"ui16", 2},
    [RF_HLO_U32] = {"ui32", 4}, [RF_HLO_U64] = {"ui64", 8},  [RF_HLO_BOOL] = {"i1", 1},
};
const char *rf_hlo_type_name(rf_hlo_type type) { return TYPES[type].name; }
static int bytes_of(rf_hlo_type type) { return TYPES[type].bytes; }
static bool is_float(rf_hlo_type type) { return type <= RF_HLO_F64; }

int64_t rf_val_count(rf_val v) {
  int64_t count = 1;
  for (int i = 0; i < v.rank; i++) count *= v.dim[i];
  return count;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void grow(rf_hlo *h, rf_hlo_buffer *to, size_t more) {
  if (to->bytes + more + 1 <= to->room || h->failed) return;
  size_t room = 2 * (to->bytes + more) + 4096;
  char *data = realloc(to->data, room);
  if (!data) {
    h->failed = true;
    return;
  }
  to->data = data;
  to->room = room;
}

void rf_hlo_print(rf_hlo *h, rf_hlo_buffer *to, const char *format, ...) {
  va_list list, again;
  va_start(list, format);
  va_copy(again, list);
  int more = vsnprintf(NULL, 0, format, list);
  va_end(list);
  if (more < 0) h->failed = true;
  else grow(h, to, (size_t)more);
  if (!h->failed) {
    vsnprintf(to->data + to->bytes, (size_t)more + 1, format, again);
    to->bytes += (size_t)more;
  }
  va_end(again);
}

rf_hlo *rf_hlo_new(void) {
  rf_hlo *h = calloc(1, sizeof *h);
  if (h) h->depth = 2;
  return h;
}

void rf_hlo_free(rf_hlo *h) {
  if (!h) return;
  rf_hlo_buffer *buffer[] = {&h->body, &h->arguments, &h->types, &h->values, &h->names};
  for (size_t i = 0; i < sizeof buffer / sizeof *buffer; i++) free(buffer[i]->data);
  free(h->donated_to);
  free(h);
}

const char *rf_hlo_fault(const rf_hlo *h, const char **name) {
  *name = h->fault_name ? h->fault_name : "";
  return h->fault;
}

void rf_hlo_quote(rf_hlo *h, rf_hlo_buffer *to, const char *text) {
  rf_hlo_print(h, to, "\"");
  for (const char *c = text; *c; c++)
    if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ' || (unsigned char)*c > '~')
      rf_hlo_print(h, to, "\\%02X", (unsigned char)*c);
    else rf_hlo_print(h, to, "%c", *c);
  rf_hlo_print(h, to, "\"");
}

void rf_hlo_name(rf_hlo *h, const char *name) {
  h->name = name;
  if (!name) return;
  rf_hlo_print(h, &h->names, "#op%d = loc(", h->name_count++);
  rf_hlo_quote(h, &h->names, name);
  rf_hlo_print(h, &h->names, ")\n");
}

rf_hlo_typed rf_hlo_typed_of(rf_val v) {
  rf_hlo_typed typed;
  size_t at = (size_t)snprintf(typed.text, sizeof typed.text, "tensor<");
  for (int i = 0; i < v.rank; i++)
    at += (size_t)snprintf(typed.text + at, sizeof typed.text - at, "%lldx", (long long)v.dim[i]);
  snprintf(typed.text + at, sizeof typed.text - at, "%s>", rf_hlo_type_name(v.type));
  return typed;
}

rf_val rf_hlo_new_value(rf_hlo *h, rf_hlo_type type, int rank, const int64_t *dim) {
  RF_EXPECT(rank <= RF_HLO_RANK);
  rf_val v = {.id = h->next++, .type = type, .rank = rank};
  for (int i = 0; i < rank; i++) v.dim[i] = dim[i];
  return v;
}

void rf_hlo_begin(rf_hlo *h, rf_val result) { RF_PUT("%*s%%%d = ", 2 * h->depth, "", result.id); }

void rf_hlo_end(rf_hlo *h) {
  if (h->name) RF_PUT(" loc(#op%d)\n", h->name_count - 1);
  else RF_PUT("\n");
}

static rf_hlo_list_text list_text(const char *open, int count, const int64_t *wide, const int *narrow) {
  rf_hlo_list_text list;
  size_t at = (size_t)snprintf(list.text, sizeof list.text, "%s", open);
  for (int i = 0; i < count; i++)
    at += (size_t)snprintf(list.text + at, sizeof list.text - at, "%s%lld", i ? ", " : "",
                           (long long)(wide ? wide[i] : narrow[i]));
  return list;
}
rf_hlo_list_text rf_hlo_ints(int count, const int *value) {
  rf_hlo_list_text list = list_text("[", count, NULL, value);
  strcat(list.text, "]");
  return list;
}
/* MLIR writes an empty array without the colon. */
rf_hlo_list_text rf_hlo_array(int count, const int64_t *value) {
  rf_hlo_list_text list = list_text(count ? "array<i64: " : "array<i64", count, value, NULL);
  strcat(list.text, ">");
  return list;
}
rf_hlo_list_text rf_hlo_array_of_ints(int count, const int *value) {
  rf_hlo_list_text list = list_text(count ? "array<i64: " : "array<i64", count, NULL, value);
  strcat(list.text, ">");
  return list;
}

/* ---- main ------------------------------------------------------------------------------------ */

rf_val rf_hlo_argument(rf_hlo *h, rf_hlo_type type, int rank, const int64_t *dim) {
  rf_val v = rf_hlo_new_value(h, type, rank, dim);
  if (h->argument_count == h->donated_room) {
    int room = 2 * h->donated_room + 64;
    int *list = realloc(h->donated_to, (size_t)room * sizeof *list);
    if (!list) {
      h->failed = true;
      return v;
    }
    h->donated_to = list;
    h->donated_room = room;
  }
  h->donated_to[h->argument_count++] = -1;
  rf_hlo_print(h, &h->arguments, "%d %s\n", v.id, RF_TYPE(v));
  return v;
}

int rf_hlo_result(rf_hlo *h, rf_val v, int donated) {
  const char *comma = h->result_count ? ", " : "";
  if (donated >= 0) h->donated_to[donated] = h->result_count;
  rf_hlo_print(h, &h->values, "%s%%%d", comma, v.id);
  rf_hlo_print(h, &h->types, "%s%s", comma, RF_TYPE(v));
  return h->result_count++;
}

static void put_arguments(rf_hlo *h, rf_hlo_buffer *text) {
  const char *line = h->arguments.data;
  for (int i = 0; i < h->argument_count; i++) {
    const char *space = strchr(line, ' '), *end = strchr(line, '\n');
    rf_hlo_print(h, text, "%s%%%.*s: %.*s", i ? ", " : "", (int)(space - line), line, (int)(end - space - 1),
                 space + 1);
    if (h->donated_to[i] >= 0) rf_hlo_print(h, text, " {tf.aliasing_output = %d : i32}", h->donated_to[i]);
    line = end + 1;
  }
}

char *rf_hlo_finish(rf_hlo *h, const char *module, int replicas, size_t *bytes) {
  rf_hlo_buffer text = {0};
  rf_hlo_print(h, &text,
               "module @%s attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = %d : i32} {\n"
               "  func.func public @main(",
               module, replicas);
  if (!h->failed) put_arguments(h, &text);
  rf_hlo_print(h, &text, ") -> (%s) {\n", h->types.data ? h->types.data : "");
  rf_hlo_print(h, &text, "%s", h->body.data ? h->body.data : "");
  rf_hlo_print(h, &text, "    \"func.return\"(%s) : (%s) -> ()\n  }\n}\n%s",
               h->values.data ? h->values.data : "", h->types.data ? h->types.data : "",
               h->names.data ? h->names.data : "");
  if (h->failed) {
    free(text.data);
    return NULL;
  }
  *bytes = text.bytes;
  return text.data;
}

/* ---- values without operands ----------------------------------------------------------------- */

/* Floats are written as bits, so that the compiler reads every value exactly, including
 * infinities. */
static void put_number(rf_hlo *h, rf_hlo_type type, double value) {
  float narrow = (float)value;
  union {
    float f;
    uint32_t bits;
  } f32 = {narrow};
  union {
    double f;
    uint64_t bits;
  } f64 = {value};
  switch (type) {
  case RF_HLO_F32: RF_PUT("0x%08X", f32.bits); break;
  case RF_HLO_F64: RF_PUT("0x%016llX", (unsigned long long)f64.bits); break;
  case RF_HLO_BF16: RF_PUT("0x%04X", (unsigned)rf_f32_to_bf16(narrow)); break;
  case RF_HLO_F16: RF_PUT("0x%04X", (unsigned)rf_f32_to_f16(narrow)); break;
  case RF_HLO_BOOL: RF_PUT("%s", value != 0 ? "true" : "false"); break;
  default: RF_PUT("%lld", (long long)value); break;
  }
}

rf_val rf_hlo_full(rf_hlo *h, rf_hlo_type type, double value, int rank, const int64_t *dim) {
  rf_val v = rf_hlo_new_value(h, type, rank, dim);
  rf_hlo_begin(h, v);
  RF_PUT("\"stablehlo.constant\"() {value = dense<");
  put_number(h, type, value);
  RF_PUT("> : %s} : () -> %s", RF_TYPE(v), RF_TYPE(v));
  rf_hlo_end(h);
  return v;
}
rf_val rf_hlo_scalar(rf_hlo *h, rf_hlo_type type, double value) {
  return rf_hlo_full(h, type, value, 0, NULL);
}
rf_val rf_hlo_full_like(rf_hlo *h, rf_val like, double value) {
  return rf_hlo_full(h, like.type, value, like.rank, like.dim);
}

rf_val rf_hlo_scalar_u64(rf_hlo *h, rf_hlo_type type, uint64_t value) {
  rf_val v = rf_hlo_new_value(h, type, 0, NULL);
  rf_hlo_begin(h, v);
  RF_PUT("\"stablehlo.constant\"() {value = dense<%llu> : %s} : () -> %s", (unsigned long long)value,
         RF_TYPE(v), RF_TYPE(v));
  rf_hlo_end(h);
  return v;
}

rf_val rf_hlo_list(rf_hlo *h, rf_hlo_type type, int64_t count, const double *value) {
  rf_val v = rf_hlo_new_value(h, type, 1, &count);
  rf_hlo_begin(h, v);
  RF_PUT("\"stablehlo.constant\"() {value = dense<[");
  for (int64_t i = 0; i < count; i++) {
    if (i) RF_PUT(", ");
    put_number(h, type, value[i]);
  }
  RF_PUT("]> : %s} : () -> %s", RF_TYPE(v), RF_TYPE(v));
  rf_hlo_end(h);
  return v;
}

rf_val rf_hlo_iota(rf_hlo *h, rf_hlo_type type, int axis, int rank, const int64_t *dim) {
  rf_val v = rf_hlo_new_value(h, type, rank, dim);
  rf_hlo_begin(h, v);
  RF_PUT("\"stablehlo.iota\"() {iota_dimension = %d : i64} : () -> %s", axis, RF_TYPE(v));
  rf_hlo_end(h);
  return v;
}

/* ---- elementwise ----------------------------------------------------------------------------- */

rf_val rf_hlo_one(rf_hlo *h, const char *name, rf_val a, const char *attributes, rf_val result) {
  RF_EXPECT(rf_has(a));
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.%s\"(%%%d)%s : (%s) -> %s", name, a.id, attributes, RF_TYPE(a), RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

rf_val rf_hlo_two(rf_hlo *h, const char *name, rf_val a, rf_val b, const char *attributes, rf_val result) {
  RF_EXPECT(rf_has(a) && rf_has(b));
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.%s\"(%%%d, %%%d)%s : (%s, %s) -> %s", name, a.id, b.id, attributes, RF_TYPE(a),
         RF_TYPE(b), RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

static inline bool same_shape(rf_val a, rf_val b) {
  return a.rank == b.rank && memcmp(a.dim, b.dim, (size_t)a.rank * sizeof *a.dim) == 0;
}

static rf_val spread(rf_hlo *h, rf_val a, rf_val like) {
  return a.rank == 0 && like.rank > 0 ? rf_hlo_broadcast(h, a, NULL, like.rank, like.dim) : a;
}

static rf_val like(rf_hlo *h, rf_val a, rf_hlo_type type) { return rf_hlo_new_value(h, type, a.rank, a.dim); }

static rf_val binary(rf_hlo *h, const char *name, rf_val a, rf_val b) {
  rf_val left = spread(h, a, b), right = spread(h, b, a);
  RF_EXPECT(same_shape(left, right) && left.type == right.type);
  return rf_hlo_two(h, name, left, right, "", like(h, left, left.type));
}

#define RF_HLO_DEFINE(name) \
  rf_val rf_hlo_##name(rf_hlo *h, rf_val a, rf_val b) { return binary(h, #name, a, b); }
RF_HLO_BINARY(RF_HLO_DEFINE)
#undef RF_HLO_DEFINE
#define RF_HLO_DEFINE(name) \
  rf_val rf_hlo_##name(rf_hlo *h, rf_val a) { \
    bool flags = strcmp(#name, "is_finite") == 0; \
    return rf_hlo_one(h, #name, a, "", like(h, a, flags ? RF_HLO_BOOL : a.type)); \
  }
RF_HLO_UNARY(RF_HLO_DEFINE)
#undef RF_HLO_DEFINE

/* erfc is an operation of the dialect chlo, which plugins also know. */
rf_val rf_hlo_erfc(rf_hlo *h, rf_val a) {
  rf_val result = like(h, a, a.type);
  rf_hlo_begin(h, result);
  RF_PUT("\"chlo.erfc\"(%%%d) : (%s) -> %s", a.id, RF_TYPE(a), RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

rf_val rf_hlo_add_c(rf_hlo *h, rf_val a, double c) { return rf_hlo_add(h, a, rf_hlo_scalar(h, a.type, c)); }
rf_val rf_hlo_multiply_c(rf_hlo *h, rf_val a, double c) {
  return rf_hlo_multiply(h, a, rf_hlo_scalar(h, a.type, c));
}
rf_val rf_hlo_maximum_c(rf_hlo *h, rf_val a, double c) {
  return rf_hlo_maximum(h, a, rf_hlo_scalar(h, a.type, c));
}

rf_val rf_hlo_compare(rf_hlo *h, rf_hlo_order order, rf_val a, rf_val b) {
  static const char *const ORDERS[] = {"EQ", "NE", "LT", "LE", "GT", "GE"};
  rf_val left = spread(h, a, b), right = spread(h, b, a);
  RF_EXPECT(same_shape(left, right) && left.type == right.type);
  bool is_unsigned = left.type == RF_HLO_U32 || left.type == RF_HLO_U64 || left.type == RF_HLO_U8 ||
                     left.type == RF_HLO_U16 || left.type == RF_HLO_BOOL;
  char attributes[160];
  snprintf(attributes, sizeof attributes,
           " {compare_type = #stablehlo<comparison_type %s>, comparison_direction = "
           "#stablehlo<comparison_direction %s>}",
           is_float(left.type) ? "FLOAT"
           : is_unsigned       ? "UNSIGNED"
                               : "SIGNED",
           ORDERS[order]);
  return rf_hlo_two(h, "compare", left, right, attributes, like(h, left, RF_HLO_BOOL));
}
rf_val rf_hlo_compare_c(rf_hlo *h, rf_hlo_order order, rf_val a, double c) {
  return rf_hlo_compare(h, order, a, rf_hlo_scalar(h, a.type, c));
}

rf_val rf_hlo_select(rf_hlo *h, rf_val where, rf_val a, rf_val b) {
  rf_val left = spread(h, a, where), right = spread(h, b, where);
  if (left.rank > 0 && where.rank == 0) right = spread(h, right, left);
  if (right.rank > 0 && where.rank == 0) left = spread(h, left, right);
  RF_EXPECT(same_shape(left, right) && left.type == right.type && where.type == RF_HLO_BOOL);
  rf_val result = like(h, left, left.type);
  rf_hlo_begin(h, result);
  RF_PUT("\"stablehlo.select\"(%%%d, %%%d, %%%d) : (%s, %s, %s) -> %s", where.id, left.id, right.id,
         RF_TYPE(where), RF_TYPE(left), RF_TYPE(right), RF_TYPE(result));
  rf_hlo_end(h);
  return result;
}

rf_val rf_hlo_convert(rf_hlo *h, rf_val a, rf_hlo_type type) {
  return a.type == type ? a : rf_hlo_one(h, "convert", a, "", like(h, a, type));
}
rf_val rf_hlo_bitcast(rf_hlo *h, rf_val a, rf_hlo_type type) {
  RF_EXPECT(bytes_of(a.type) == bytes_of(type));
  return a.type == type ? a : rf_hlo_one(h, "bitcast_convert", a, "", like(h, a, type));
}

rf_val rf_hlo_round_bf16(rf_hlo *h, rf_val a) {
  RF_EXPECT(a.type == RF_HLO_F32);
  return rf_hlo_one(h, "reduce_precision", a, " {exponent_bits = 8 : i32, mantissa_bits = 7 : i32}",
                    like(h, a, a.type));
}

double rf_hlo_start_of(rf_hlo_reduction how, rf_hlo_type type) {
  if (how == RF_HLO_SUM) return 0;
  if (how == RF_HLO_AND) return 1;
  double sign = how == RF_HLO_MAX ? -1 : 1;
  return is_float(type) ? sign * (double)INFINITY : sign > 0 ? 2147483647.0 : -2147483648.0;
}
