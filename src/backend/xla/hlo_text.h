/* hlo_text.h - the text of a module while it grows, for the files that implement hlo.h. */
#ifndef RF_XLA_HLO_TEXT_H
#define RF_XLA_HLO_TEXT_H

#include "backend/xla/hlo.h"

typedef struct rf_hlo_buffer {
  char *data;
  size_t bytes, room;
} rf_hlo_buffer;

struct rf_hlo {
  /* texts with the values and the types of the results of main */
  rf_hlo_buffer body, arguments, types, values;
  rf_hlo_buffer names; /* location aliases */
  int32_t next;        /* number of the next value */
  int argument_count, result_count;
  int *donated_to; /* for each argument: index of the result that reuses its memory, or -1 */
  int donated_room;
  const char *name; /* location of the next operations */
  int name_count;
  int depth; /* number of nested regions, for the indentation */
  bool failed;
  const char *fault; /* text about the first wrong operand */
  const char *fault_name;
};

/* Checks an operand. Without this check, the compiler would refuse a wrong operand with a message
 * that does not name the op. */
#define RF_EXPECT(condition) \
  do { \
    if (!(condition) && !h->fault) { \
      h->fault = #condition; \
      h->fault_name = h->name; \
    } \
  } while (0)

void rf_hlo_print(rf_hlo *h, rf_hlo_buffer *to, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A string of MLIR, in which quotes, backslashes and bytes that cannot be printed are escaped. */
void rf_hlo_quote(rf_hlo *h, rf_hlo_buffer *to, const char *text);
#define RF_PUT(...) rf_hlo_print(h, &h->body, __VA_ARGS__)

/* Text of a type, as "tensor<4x8xf32>". */
typedef struct rf_hlo_typed {
  char text[160];
} rf_hlo_typed;
rf_hlo_typed rf_hlo_typed_of(rf_val v);
#define RF_TYPE(v) (rf_hlo_typed_of(v).text)

rf_val rf_hlo_new_value(rf_hlo *h, rf_hlo_type type, int rank, const int64_t *dim);
/* Starts an operation: indentation and "%id = ". */
void rf_hlo_begin(rf_hlo *h, rf_val result);
/* Ends an operation: its location and a new line. */
void rf_hlo_end(rf_hlo *h);
/* "[1, 2]" or "array<i64: 1, 2>" of integers. */
typedef struct rf_hlo_list_text {
  char text[512];
} rf_hlo_list_text;
rf_hlo_list_text rf_hlo_ints(int count, const int *value);
rf_hlo_list_text rf_hlo_array(int count, const int64_t *value);
rf_hlo_list_text rf_hlo_array_of_ints(int count, const int *value);
/* Writes a whole operation with one or two operands. `attributes` is text, "" for none. */
rf_val rf_hlo_one(rf_hlo *h, const char *name, rf_val a, const char *attributes, rf_val result);
rf_val rf_hlo_two(rf_hlo *h, const char *name, rf_val a, rf_val b, const char *attributes, rf_val result);
/* Writes the region " ({ ... })" of a reduction or a scatter over scalars of `type`. */
void rf_hlo_region(rf_hlo *h, rf_hlo_reduction how, rf_hlo_type type);
double rf_hlo_start_of(rf_hlo_reduction how, rf_hlo_type type); /* the neutral value */

#endif
