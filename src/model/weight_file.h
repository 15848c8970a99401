/* weight_file.h - one interface for a model's tensors in safetensors, GGUF and llama2.c files. */
#ifndef RF_WEIGHT_FILE_H
#define RF_WEIGHT_FILE_H

#include "model/names.h"
#include "formats/panels.h"
#include "formats/quant.h"
#include "formats/safetensors.h"

typedef struct rf_weight_file rf_weight_file;

/* One tensor of a file. Exactly one of `stored` and `quant` is set. */
typedef struct rf_weight_part {
  const rf_stored *stored;
  const rf_quant_tensor *quant;
  int index; /* index in the file */
  int rank;
  const int64_t *shape;
  int64_t first; /* index of the part's first element in the tensor */
} rf_weight_part;

/* Opens a folder, a .safetensors file or an index, a .gguf or a .bin file. */
rf_status rf_weight_file_open(const char *path, rf_weight_file **file, rf_error *error);
void rf_weight_file_close(rf_weight_file *file); /* NULL is allowed */
/* RAFTER_FAILED: another program wrote to a file after it was opened. Call it after reading. */
rf_status rf_weight_file_unchanged(const rf_weight_file *file, rf_error *error);
const char *rf_weight_file_path(const rf_weight_file *file);
int rf_weight_file_count(const rf_weight_file *file);
const char *rf_weight_file_tensor(const rf_weight_file *file, int index); /* name of a tensor */
bool rf_weight_file_find(const rf_weight_file *file, const char *name, rf_weight_part *part);

/* Returns how this file names, splits and transposes a parameter. */
rf_name rf_weight_file_name(const rf_weight_file *file, const rf_model *model, const rf_param *param);
/* True if the file may have this tensor in addition to the parameters: a buffer, or a tied head. */
bool rf_weight_file_is_extra(const rf_weight_file *file, const rf_model *model, const char *name);

/* Reads elements [first, first + count) as f32. With count 0, only checks that the type can be
 * read. */
rf_status rf_weight_part_read(const rf_weight_part *part, int64_t first, int64_t count, float *out,
                              rf_error *error);

/* Returns the storage type, as a number of quant.h. The result RF_Q_F64 means a safetensors type
 * that GGUF lacks. */
int rf_weight_part_type(const rf_weight_part *part);
/* Returns the address of element `first` in the mapped file. A block of the storage type must begin
 * with this element. Not valid for RF_Q_F64. */
const void *rf_weight_part_data(const rf_weight_part *part, int64_t first);

/* Tells the system that the tensor's bytes are not needed any more, so that they may leave
 * memory. */
void rf_weight_part_done(const rf_weight_part *part);

/* A two-dimensional parameter from which panels (blocks of a packed matrix) are read. */
typedef struct rf_weight_matrix {
  const rf_name *name;
  const rf_weight_part *part;
  int64_t inner;
  bool outputs_first; /* as in rf_panels */
} rf_weight_matrix;
rf_panel_source rf_weight_matrix_source(rf_weight_matrix *matrix);

/* Reads the model that a .gguf or .bin file describes. An unsupported property is an error. */
rf_status rf_model_file_read(const char *path, rf_model *model, rf_error *error);

#endif
