/* weights.h - reads and writes a model's parameters in files of other programs. A table in names.c
 * says how the files name, transpose and split each parameter. */
#ifndef RF_WEIGHTS_H
#define RF_WEIGHTS_H

#include "model/names.h"
#include "formats/panels.h"

enum { RF_WEIGHTS_CHUNK = 1 << 20 }; /* maximum number of values per call of visit or source */

/* A visit receives values of `param`, and a source returns them. The values are row-major,
 * beginning with element `first`. */
typedef rf_status (*rf_weights_visit)(void *context, int param, int64_t first, int64_t count,
                                      const float *values, rf_error *error);
typedef rf_status (*rf_weights_source)(void *context, int param, int64_t first, int64_t count, float *values,
                                       rf_error *error);

/* Reads each parameter once as f32, in the order of the table, in chunks of a few MiB at most.
 * `path` is a folder, a .safetensors file or an index file. All names and shapes are checked before
 * the first visit. RAFTER_FAILED: the error names a tensor that is missing, unknown or of another
 * shape. */
rf_status rf_weights_read(const char *path, const rf_model *model, const rf_params *params,
                          rf_weights_visit visit, void *context, rf_error *error);

/* Like rf_weights_read, but calls `place` (may be NULL) for each parameter. If `place` returns
 * panels and memory, the parameter is packed into this memory, and not visited. */
typedef rf_status (*rf_weights_place)(void *context, int param, const rf_panels **panels, void **memory,
                                      rf_error *error);
rf_status rf_weights_load(const char *path, const rf_model *model, const rf_params *params,
                          rf_weights_place place, rf_weights_visit visit, void *context, rf_error *error);
/* If all tensors are safetensors of this dtype, sets *copied and passes their bytes to `take`, in
 * the order of the parameters, experts and tensors. `part` is the index of the tensor. Otherwise
 * passes nothing. This function checks the file as rf_weights_read does. */
typedef rf_status (*rf_weights_take)(void *context, int param, int part, const void *data, int64_t bytes,
                                     rf_error *error);
rf_status rf_weights_copy(const char *path, const rf_model *model, const rf_params *params, rf_dtype dtype,
                          rf_weights_take take, void *context, bool *copied, rf_error *error);
/* Packs a parameter's initial values. */
rf_status rf_weights_initialise(const rf_param *param, uint64_t seed, const rf_panels *panels, void *data,
                                rf_error *error);

/* Storage types (numbers of quant.h) of the tensors of each parameter in a file, in the order of
 * the table. */
enum { RF_WEIGHT_TYPES_MAX = 8192, RF_WEIGHT_NO_PART = 0xff, RF_WEIGHT_AS_DTYPE = 0xfe };
typedef struct rf_weight_types {
  int count; /* number of parameters; 0: all matrices have the plan's dtype */
  uint8_t at[RF_WEIGHT_TYPES_MAX][RF_NAME_PARTS];
} rf_weight_types;
/* Storage types of matrices. Some types store groups of values. If the group size of a type does
 * not divide the length of a matrix's rows, the matrix gets the fallback type of this type. */
typedef enum rf_weights_as {
  /* matrices of a GGUF file keep their types; matrices of other files get the plan's dtype */
  RF_WEIGHTS_FILE,
  RF_WEIGHTS_F32,
  RF_WEIGHTS_BF16,
  RF_WEIGHTS_INT8, /* signed bytes with an f32 scale for each output */
  RF_WEIGHTS_Q4,   /* q4_0; for embeddings q8_0 */
  RF_WEIGHTS_FP8,  /* for plans only */
  RF_WEIGHTS_INT4  /* for plans only */
} rf_weights_as;
/* Reads the names and types of the weights at `path` ("": no weights), but no values. */
rf_status rf_weight_types_read(const char *path, const rf_model *model, rf_weights_as as,
                               rf_weight_types *types, rf_error *error);
/* The panels of a parameter. `row` has the storage types of its tensors. NULL: all tensors have
 * `dtype`. */
rf_panels rf_weight_panels(const rf_model *model, const rf_param *param, const uint8_t row[RF_NAME_PARTS],
                           rf_dtype dtype);

/* Writes model.safetensors, rounded to `dtype` (f32, bf16 or f16), and config.json into an existing
 * folder. Tensors have Hugging Face's names if rf_model_is_hugging_face(model), otherwise rafter's
 * own names. */
rf_status rf_weights_write(const char *folder, const rf_model *model, const rf_params *params, rf_dtype dtype,
                           rf_weights_source source, void *context, rf_error *error);

/* Writes parameters one by one. Only one parameter (or one expert's slice) is in memory at a time.
 * Pass rf_weights_writer_put as `visit` and the writer as `context` to rf_weights_read. The caller
 * writes config.json. */
typedef struct rf_weights_form {
  rf_dtype dtype;
  bool bare;          /* true: omit the prefix "model.", "transformer.", ... */
  bool tied_as_head;  /* true: store a tied model's embedding under the head's name */
  int64_t file_bytes; /* maximum size of a file before a new file starts; 0: one file */
  int shards;         /* number of files of similar size that share the tensors; 0: file_bytes decides */
} rf_weights_form;
typedef struct rf_weights_writer rf_weights_writer;
rf_status rf_weights_writer_open(const char *folder, const rf_model *model, const rf_params *params,
                                 const rf_weights_form *form, rf_weights_writer **writer, rf_error *error);
rf_status rf_weights_writer_put(void *writer, int param, int64_t first, int64_t count, const float *values,
                                rf_error *error);
/* Writes the bytes of tensor `part` of a parameter or expert, as rf_weights_copy passes them. */
rf_status rf_weights_writer_put_part(rf_weights_writer *writer, int param, int part, const void *data,
                                     int64_t bytes, rf_error *error);
int rf_weights_writer_files(const rf_weights_writer *writer);
rf_status rf_weights_writer_index(const rf_weights_writer *writer, rf_error *error); /* none for one file */
rf_status rf_weights_writer_commit(rf_weights_writer *writer, rf_error *error); /* frees, also on failure */
void rf_weights_writer_discard(rf_weights_writer *writer);                      /* NULL is allowed */

/* Several processes can each write one file. All processes open a writer with the same form. Each
 * process lists the blocks of all files, and passes the values of the blocks of its own file in
 * this order. rf_weights_writer_index writes the index. */
typedef struct rf_weights_block {
  int param;
  /* the block has `rows` runs of `count` values, which begin `stride` values apart */
  int64_t first, rows, stride, count;
  bool transposed; /* true: the writer transposes the block */
} rf_weights_block;
typedef struct rf_weights_cursor {
  int piece, part;
  int64_t at;
} rf_weights_cursor; /* all fields 0: before the first block */
bool rf_weights_writer_next(const rf_weights_writer *writer, int file, rf_weights_cursor *cursor,
                            rf_weights_block *block);
/* returns the number of values of the largest block */
int64_t rf_weights_writer_room(const rf_weights_writer *writer);
rf_status rf_weights_writer_begin_file(rf_weights_writer *writer, int file, rf_error *error);
rf_status rf_weights_writer_put_block(rf_weights_writer *writer, const rf_weights_block *block,
                                      const float *values, rf_error *error);
rf_status rf_weights_writer_commit_file(rf_weights_writer *writer, rf_error *error);

/* Finds the naming scheme and the dtype of the weights at `path`. The dtype is BF16 or F16 if all
 * tensors have this type. Otherwise, the dtype is F32, which represents every value of all types
 * except F64. */
rf_status rf_weights_form_of(const char *path, const rf_model *model, const rf_params *params,
                             rf_weights_form *form, rf_error *error);

#endif
