/* op_harness.h - runs one op, or a short chain of ops, kernel by kernel in a graph of its own, on
 * seeded data. Every buffer and workspace is between guard bytes, which are checked after each
 * call. An input that is not also an output must not change. Outputs hold NaNs before the call, so
 * that an element which the kernel does not write is found. Any violation fails the test. */
#ifndef RF_TESTS_OP_HARNESS_H
#define RF_TESTS_OP_HARNESS_H

#include "backend/kernel.h"
#include "machine/isa.h"

typedef struct op_buffer op_buffer;

typedef struct op_harness {
  rf_graph *graph;
  rf_dtype dtype, wide; /* dtype: of activations and weights; wide: of sums, statistics and gradients */
  rf_run_inputs run;
  int subject; /* the op under test; the ops before it prepare its inputs */
  int buffer_capacity;
  op_buffer *buffer; /* one per tensor */
} op_harness;

/* An empty graph of `rows` token rows in activation dtype `dtype`. */
op_harness *op_harness_new(rf_dtype dtype, int64_t rows);
void op_harness_free(op_harness *h);

/* Tensors that the case fills with normal numbers of `scale` around `offset`, or with the given
 * ids. The functions return the tensor id. */
typedef struct op_fill {
  double scale, offset;
} op_fill;
int op_tensor(op_harness *h, const char *name, rf_class class, rf_dtype dtype, op_fill fill, int rank,
              const int64_t *shape);
/* Makes a packed matrix of such values, quantized to its types. */
int64_t op_panels_outputs(const rf_panels *panels);
int op_packed(op_harness *h, const char *name, const rf_panels *panels, op_fill fill);
int op_ids(op_harness *h, const char *name, int64_t count, const int32_t *values);
int op_floats(op_harness *h, const char *name, int64_t rows, int64_t columns, const float *values);
/* Makes a list (rows * columns) a matrix. */
void op_as_matrix(op_harness *h, int tensor, int64_t rows, int64_t columns);
/* Makes a page table (slots, columns) that names pages `slots * columns - 1` down to 0. */
int op_table(op_harness *h, int64_t slots, int64_t columns);
#define OP_SHAPE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }

/* Appends an op, which becomes the subject, and returns its id. Outputs hold ids, RF_WANTED or
 * RF_NONE. */
int op_apply(op_harness *h, const char *def, int input_count, const int *inputs, int output_count,
             const int *outputs, const rf_attr *attr);
#define OP_IDS(...) \
  (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]) { __VA_ARGS__ }
int op_output(const op_harness *h, int op, int slot); /* tensor id */

/* Allocates missing buffers and sets every tensor to its initial value. */
void op_fill_all(op_harness *h, uint64_t seed);
/* Sets the outputs of `op` to their initial values again. */
void op_reset(op_harness *h, int op);

/* Runs one op. `inplace` (may be NULL) says which output reuses the bytes of which input. */
void op_run(op_harness *h, int op, const rf_kernel *kernel, int threads, const rf_inplace *inplace);
/* Runs one op without failing the test. Returns false if a guard byte or an input changed, with a
 * description in `text`. */
bool op_try(op_harness *h, int op, const rf_kernel *kernel, int threads, const rf_inplace *inplace,
            char text[256]);
/* Runs ops [from, to) with the kernels that a backend chooses. */
void op_run_range(op_harness *h, int from, int to, const rf_backend *backend, rf_isa isa, int threads);

void *op_data(const op_harness *h, int tensor);
int64_t op_count(const op_harness *h, int tensor);
double op_get(const op_harness *h, int tensor, int64_t i);
void op_set(op_harness *h, int tensor, int64_t i, double value);
void *op_copy(const op_harness *h, int tensor); /* allocated with malloc */

#endif
