/* names.h - how the files of other programs name, split and transpose the parameters of a model. */
#ifndef RF_NAMES_H
#define RF_NAMES_H

#include "model/model.h"
#include "formats/safetensors.h"

enum { RF_NAME_PARTS = 3 };

/* Column order of a tensor in a file. PLAIN: as in the parameter. BY_HEAD: q, k and v of each
 * head in turn (GPT-NeoX). PAIRS: the two halves of a head interleaved (GGUF's llama). */
typedef enum rf_name_order { RF_NAME_PLAIN, RF_NAME_BY_HEAD, RF_NAME_PAIRS } rf_name_order;

/* The tensors of a parameter in a file: its columns are split into `count` adjacent tensors. */
typedef struct rf_name {
  int count;
  char part[RF_NAME_PARTS][128];
  int64_t columns[RF_NAME_PARTS]; /* columns of each tensor; they sum to the last axis */
  bool turned;                    /* the file stores (out, in), the parameter is (in, out) */
  rf_name_order order[RF_NAME_PARTS];
  int64_t head_dim; /* H */
  float offset;     /* value in the file minus value of the parameter */
} rf_name;

/* Tensor names of `param` (for experts, of a slice) in Hugging Face's files, or rafter's own
 * names. `prefixed`: all names but the head's begin with "transformer." or "model.". */
rf_name rf_param_name(const rf_model *model, const rf_param *param, bool prefixed);
/* Columns of each of a parameter's tensors in files: q, k, v; gate, up; or a single tensor. */
void rf_param_parts(const rf_model *model, const rf_param *param, int count, int64_t columns[RF_NAME_PARTS]);
/* Which column of the file's tensor `part` holds its column `column` in the parameter's order. */
int64_t rf_name_column(const rf_name *name, int part, int64_t column);
/* Finds a tensor by name. In a multimodal file, the text model's prefix is added. NULL: none. */
const rf_stored *rf_name_find(const rf_tensor_file *file, const char *name);
/* Whether a file may have this tensor in addition to the parameters: buffers, the head of a tied
 * model, the image encoder of a Gemma 3. */
bool rf_name_is_extra(const rf_model *model, const char *name);

#endif
