/* names.h - how the files of other programs name, split and transpose the parameters of a model. */
#ifndef RF_NAMES_H
#define RF_NAMES_H

#include "model/model.h"
#include "formats/safetensors.h"

enum { RF_NAME_PARTS = 3 };

/* Order of the columns of a tensor in a file. PLAIN: the parameter's order. BY_HEAD: q, k and v of
 * head 0 come first, then those of head 1, and so on. (GPT-NeoX). PAIRS: columns i and i + H/2 of a
 * head are adjacent (GGUF's llama). */
typedef enum rf_name_order { RF_NAME_PLAIN, RF_NAME_BY_HEAD, RF_NAME_PAIRS } rf_name_order;

/* How a file stores a parameter: as `count` tensors, each with a part of the columns. */
typedef struct rf_name {
  int count;
  char part[RF_NAME_PARTS][128];
  int64_t columns[RF_NAME_PARTS]; /* number of columns of each tensor; their sum is the parameter's width */
  bool transposed;                /* true: the file stores (out, in), but the parameter is (in, out) */
  rf_name_order order[RF_NAME_PARTS];
  int64_t head_dim; /* H */
  float offset;     /* value in the file minus value of the parameter */
} rf_name;

/* Returns the tensor names of `param` in Hugging Face's files, or rafter's own names. If the
 * parameter has experts, `param` must be the slice of one expert. If `prefixed` is true, all names
 * except the head's begin with "transformer." or "model.". */
rf_name rf_param_name(const rf_model *model, const rf_param *param, bool prefixed);
/* Writes the number of columns of each tensor that a parameter has in files. These tensors are q, k
 * and v, or gate and up, or one tensor. */
void rf_param_parts(const rf_model *model, const rf_param *param, int count, int64_t columns[RF_NAME_PARTS]);
/* Maps a column number of tensor `part` from the parameter's order to the file's order. */
int64_t rf_name_column(const rf_name *name, int part, int64_t column);
/* Finds a tensor by name. In a multimodal file, looks for the name with the text model's prefix.
 * NULL: the file has no such tensor. */
const rf_stored *rf_name_find(const rf_tensor_file *file, const char *name);
/* True if a file may have this tensor in addition to the parameters. Such tensors are buffers, the
 * head of a tied model, and the image encoder of a Gemma 3. */
bool rf_name_is_extra(const rf_model *model, const char *name);

#endif
