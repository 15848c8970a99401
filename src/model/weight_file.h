/* weight_file.h - a model's tensors in any file that has them (safetensors, GGUF, llama2.c),
 * behind one way to find and to read them. */
#ifndef RF_WEIGHT_FILE_H
#define RF_WEIGHT_FILE_H

#include "model/names.h"
#include "formats/panels.h"
#include "formats/quant.h"
#include "formats/safetensors.h"

typedef struct rf_weight_file rf_weight_file;

/* One tensor: one of the two is there. */
typedef struct rf_weight_part {
  const rf_stored *stored;
  const rf_quant_tensor *quant;
  int index; /* in the file, below its count */
  int rank;
  const int64_t *shape;
  int64_t first; /* element of the tensor where the part begins */
} rf_weight_part;

/* A folder, a .safetensors file or an index, a .gguf or a .bin file. */
rf_status rf_weight_file_open(const char *path, rf_weight_file **file, rf_error *error);
void rf_weight_file_close(rf_weight_file *file); /* NULL is allowed */
const char *rf_weight_file_path(const rf_weight_file *file);
int rf_weight_file_count(const rf_weight_file *file);
const char *rf_weight_file_tensor(const rf_weight_file *file, int index); /* a tensor's name */
bool rf_weight_file_find(const rf_weight_file *file, const char *name, rf_weight_part *part);

/* How this file calls, cuts and turns a parameter. */
rf_name rf_weight_file_name(const rf_weight_file *file, const rf_model *model, const rf_param *param);
/* A tensor that may stand beside the parameters: a buffer, the head of a tied model, ... */
bool rf_weight_file_is_extra(const rf_weight_file *file, const rf_model *model, const char *name);

/* Elements [first, first + count) as f32; count 0 asks only whether the type can be read. */
rf_status rf_weight_part_read(const rf_weight_part *part, int64_t first, int64_t count, float *out,
                              rf_error *error);

/* Its storage type, a number of quant.h; f64 stands for safetensors types that are in no GGUF
 * file. */
int rf_weight_part_type(const rf_weight_part *part);
/* Where element `first`, the first of a block, stands in the mapped file: of all types but that
 * f64. */
const void *rf_weight_part_data(const rf_weight_part *part, int64_t first);

/* Its bytes were read for the last time. */
void rf_weight_part_done(const rf_weight_part *part);

/* A parameter of two axes as a source of panels: its name in the file and its parts. */
typedef struct rf_weight_matrix {
  const rf_name *name;
  const rf_weight_part *part;
  int64_t inner;
  bool outputs_first; /* as in rf_panels */
} rf_weight_matrix;
rf_panel_source rf_weight_matrix_source(rf_weight_matrix *matrix);

/* The model a .gguf or .bin file describes. What it says that this program cannot compute is
 * refused by its name. */
rf_status rf_model_file_read(const char *path, rf_model *model, rf_error *error);

#endif
