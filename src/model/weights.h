/* weights.h - a model's parameters from and to the files other programs use: names, orientation
 * and fused parts by one table. */
#ifndef RF_WEIGHTS_H
#define RF_WEIGHTS_H

#include "model/names.h"
#include "formats/panels.h"

enum { RF_WEIGHTS_CHUNK = 1 << 20 }; /* values that come or go at once */

/* Elements [first, first + count) of parameter `param` (row-major in the table's own shape). */
typedef rf_status (*rf_weights_visit)(void *context, int param, int64_t first, int64_t count,
                                      const float *values, rf_error *error);
typedef rf_status (*rf_weights_source)(void *context, int param, int64_t first, int64_t count, float *values,
                                       rf_error *error);

/* Reads every parameter once, in the table's order, in chunks of at most a few MiB, widened to
 * f32, from `path`: a folder, a .safetensors file or an index. All names and shapes are checked
 * before the first visit. RAFTER_FAILED: missing, of another shape, or not the model's. */
rf_status rf_weights_read(const char *path, const rf_model *model, const rf_params *params,
                          rf_weights_visit visit, void *context, rf_error *error);

/* The same, but a parameter for which `place` (may be NULL) gives panels and their memory is not
 * visited: it is packed there. */
typedef rf_status (*rf_weights_place)(void *context, int param, const rf_panels **panels, void **memory,
                                      rf_error *error);
rf_status rf_weights_load(const char *path, const rf_model *model, const rf_params *params,
                          rf_weights_place place, rf_weights_visit visit, void *context, rf_error *error);
/* Packs a parameter's initialiser. */
rf_status rf_weights_initialise(const rf_param *param, uint64_t seed, const rf_panels *panels, void *data,
                                rf_error *error);

/* What the matrices of a model are stored in: a number of quant.h for each part of each
 * parameter, in the parameter table's order. */
enum { RF_WEIGHT_TYPES_MOST = 8192, RF_WEIGHT_NO_PART = 0xff, RF_WEIGHT_AS_DTYPE = 0xfe };
typedef struct rf_weight_types {
  int count; /* parameters; 0: nothing is said, all matrices are as the plan's dtype */
  uint8_t at[RF_WEIGHT_TYPES_MOST][RF_NAME_PARTS];
} rf_weight_types;
/* FILE: as they stand in a GGUF file, as the plan's dtype elsewhere. INT8: signed bytes, an f32
 * scale for each output. Q4: q4_0, the tables of tokens q8_0. FP8, INT4: plans know them,
 * nothing is read as them. A matrix whose rows are no whole number of groups gets what its type
 * falls back to. */
typedef enum rf_weights_as {
  RF_WEIGHTS_FILE,
  RF_WEIGHTS_F32,
  RF_WEIGHTS_BF16,
  RF_WEIGHTS_INT8,
  RF_WEIGHTS_Q4,
  RF_WEIGHTS_FP8,
  RF_WEIGHTS_INT4
} rf_weights_as;
/* `path`: where the weights come from, "" for none. Reads names and types only. */
rf_status rf_weight_types_read(const char *path, const rf_model *model, rf_weights_as as,
                               rf_weight_types *types, rf_error *error);
/* The panels of a parameter, from its row of the table (NULL: as `dtype`). */
rf_panels rf_weight_panels(const rf_model *model, const rf_param *param, const uint8_t row[RF_NAME_PARTS],
                           rf_dtype dtype);

/* Writes FOLDER/model.safetensors (rounded to `dtype`: f32, bf16 or f16) and FOLDER/config.json,
 * with Hugging Face's names where it has such a model, with our own otherwise. The folder must
 * be there. */
rf_status rf_weights_write(const char *folder, const rf_model *model, const rf_params *params, rf_dtype dtype,
                           rf_weights_source source, void *context, rf_error *error);

/* The same for values that come as rf_weights_read visits them, in that order:
 * rf_weights_writer_put is such a visitor, its context the writer. Holds one parameter (of
 * experts: one of them) at a time. config.json is left to the caller. */
typedef struct rf_weights_form {
  rf_dtype dtype;
  bool bare;          /* names without "model.", "transformer.", ... */
  bool tied_as_head;  /* the table of a tied model is called as its head */
  int64_t file_bytes; /* more than this goes into several files with an index; 0: one file */
} rf_weights_form;
typedef struct rf_weights_writer rf_weights_writer;
rf_status rf_weights_writer_open(const char *folder, const rf_model *model, const rf_params *params,
                                 const rf_weights_form *form, rf_weights_writer **writer, rf_error *error);
rf_status rf_weights_writer_put(void *writer, int param, int64_t first, int64_t count, const float *values,
                                rf_error *error);
int rf_weights_writer_files(const rf_weights_writer *writer);
rf_status rf_weights_writer_commit(rf_weights_writer *writer, rf_error *error); /* frees, also on failure */
void rf_weights_writer_discard(rf_weights_writer *writer);                      /* NULL is allowed */

/* How the weights at `path` are stored: how they are called, and their dtype: BF16 or F16 where
 * all are, else F32, which holds every value of all types but F64. */
rf_status rf_weights_form_of(const char *path, const rf_model *model, const rf_params *params,
                             rf_weights_form *form, rf_error *error);

#endif
