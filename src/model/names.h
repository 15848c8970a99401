/* names.h - how the rows of the parameter table are called, cut and turned in the files of other
 * programs. */
#ifndef RF_NAMES_H
#define RF_NAMES_H

#include "model/model.h"
#include "formats/safetensors.h"

enum { RF_NAME_PARTS = 3 };

/* How the columns of a part stand in a file: as in the table; head by head, q, k and v of each
 * (gpt-neox; the only part); with the two halves of each head interleaved (GGUF's llama). */
typedef enum rf_name_order { RF_NAME_PLAIN, RF_NAME_BY_HEAD, RF_NAME_PAIRS } rf_name_order;

/* A parameter's tensors in a file: its columns, cut into `count` parts that stand beside each
 * other. */
typedef struct rf_name {
  int count;
  char part[RF_NAME_PARTS][128];
  int64_t columns[RF_NAME_PARTS]; /* of each part; their sum is the parameter's last axis */
  bool turned;                    /* the file has (out, in), the table (in, out) */
  rf_name_order order[RF_NAME_PARTS];
  int64_t head_dim; /* H */
  float offset;     /* what the file's values have more than the table's */
} rf_name;

/* Names of `param` (of stacked experts: a slice) in a Hugging Face file of this model
 * (`prefixed`: "transformer." or "model." stands before all but the head), or our own. */
rf_name rf_param_name(const rf_model *model, const rf_param *param, bool prefixed);
/* The columns of each of the parts that files cut this parameter into: q, k and v, or gate and
 * up, or all. */
void rf_param_parts(const rf_model *model, const rf_param *param, int count, int64_t columns[RF_NAME_PARTS]);
/* Where column `column` of part `part` stands in the file. */
int64_t rf_name_column(const rf_name *name, int part, int64_t column);
/* The tensor of that name, or where a file holds the text model inside a larger one, of the name
 * it has there; NULL when there is none. */
const rf_stored *rf_name_find(const rf_tensor_file *file, const char *name);
/* Tensors that a file of this model may hold beside its parameters: buffers, the head of a tied
 * model, what reads pictures beside a Gemma 3. */
bool rf_name_is_extra(const rf_model *model, const char *name);

#endif
