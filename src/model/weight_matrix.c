/* weight_matrix.c - finds the storage types of matrices, and reads matrices as panels (packed
 * blocks) from a file or an initialiser. */
#include "base/text.h"
#include "model/weight_file.h"
#include "model/weights.h"

#include <string.h>

/* ---- from a file ----------------------------------------------------------------------------- */

/* True if the weights of one output are contiguous in the file. */
static bool rows_are_outputs(const rf_weight_matrix *m) { return m->outputs_first != m->name->transposed; }

/* Finds the tensor of the file that holds an output, and the column of the output in this
 * tensor. */
static int locate_output(const rf_weight_matrix *m, int64_t output, int64_t *column) {
  int part = 0;
  if (!m->outputs_first) /* the file stores the columns in several tensors */
    for (; part < m->name->count - 1 && output >= m->name->columns[part]; part++)
      output -= m->name->columns[part];
  *column = m->outputs_first ? output : rf_name_column(m->name, part, output);
  return part;
}

static const void *stored_output(void *self, int64_t output, const rf_quant_type *type) {
  const rf_weight_matrix *m = self;
  int64_t row;
  int part = locate_output(m, output, &row);
  if (!rows_are_outputs(m) || m->name->offset != 0 || rf_weight_part_type(&m->part[part]) != type->number)
    return NULL;
  return rf_weight_part_data(&m->part[part], row * m->inner);
}

/* Reads several adjacent columns at a time, for outputs whose weights are columns in the file. */
static rf_status read_columns(const rf_weight_matrix *m, int64_t first, int count, float *values,
                              rf_error *error) {
  float strip[RF_PANEL_LANES];
  for (int i = 0, run; i < count; i += run) {
    int64_t column, next;
    int part = locate_output(m, first + i, &column);
    for (run = 1;
         i + run < count && locate_output(m, first + i + run, &next) == part && next == column + run;)
      run++;
    int64_t stride = m->part[part].shape[m->part[part].rank - 1];
    for (int64_t k = 0; k < m->inner; k++) {
      RF_TRY(rf_weight_part_read(&m->part[part], k * stride + column, run, strip, error));
      for (int j = 0; j < run; j++) values[(i + j) * m->inner + k] = strip[j];
    }
  }
  return RAFTER_OK;
}

static rf_status read_outputs(void *self, int64_t first, int count, float *values, rf_error *error) {
  const rf_weight_matrix *m = self;
  if (!rows_are_outputs(m)) RF_TRY(read_columns(m, first, count, values, error));
  for (int i = 0; i < count && rows_are_outputs(m); i++) {
    int64_t row;
    int part = locate_output(m, first + i, &row);
    RF_TRY(rf_weight_part_read(&m->part[part], row * m->inner, m->inner, values + i * m->inner, error));
  }
  for (int64_t i = 0; m->name->offset != 0 && i < count * m->inner; i++) values[i] -= m->name->offset;
  return RAFTER_OK;
}

rf_panel_source rf_weight_matrix_source(rf_weight_matrix *matrix) {
  return (rf_panel_source){matrix, stored_output, read_outputs};
}

/* ---- from an initialiser --------------------------------------------------------------------- */

typedef struct initialiser {
  const rf_param *param;
  uint64_t seed;
  const rf_panels *panels;
  int64_t before; /* number of the parameter's rows before this matrix */
} initialiser;

static rf_status read_initialiser(void *self, int64_t first, int count, float *values, rf_error *error) {
  const initialiser *from = self;
  int64_t inner = from->panels->inner;
  float strip[RF_PANEL_LANES];
  (void)error;
  if (from->panels->outputs_first) {
    rf_param_init(from->param, from->seed, first * inner, count * inner, values);
    return RAFTER_OK;
  }
  for (int64_t k = 0; k < inner; k++) {
    rf_param_init(from->param, from->seed, (from->before + k) * from->param->shape[1] + first, count, strip);
    for (int i = 0; i < count; i++) values[i * inner + k] = strip[i];
  }
  return RAFTER_OK;
}

rf_status rf_weights_initialise(const rf_param *param, uint64_t seed, const rf_panels *panels, void *data,
                                rf_error *error) {
  rf_panels one = rf_panels_one(panels);
  for (int64_t e = 0; e < rf_param_slices(param); e++) {
    initialiser from = {param, seed, &one, e * one.inner};
    rf_panel_source source = {&from, NULL, read_initialiser};
    RF_TRY(rf_panels_fill(&one, &source, (char *)data + e * rf_panels_bytes(&one), error));
  }
  return RAFTER_OK;
}

/* ---- storage types of matrices --------------------------------------------------------------- */

rf_panels rf_weight_panels(const rf_model *model, const rf_param *param, const uint8_t row[RF_NAME_PARTS],
                           rf_dtype dtype) {
  int parts = 0;
  int64_t columns[RF_NAME_PARTS];
  while (row && parts < RF_NAME_PARTS && row[parts] != RF_WEIGHT_NO_PART) parts++;
  rf_panels panels = {.outputs_first = param->embedding,
                      .inner = param->shape[param->embedding ? 1 : 0],
                      .experts = param->experts,
                      .parts = parts ? parts : 1};
  if (param->experts > 0) panels.inner /= param->experts;
  rf_param_parts(model, param, panels.parts, columns);
  if (param->embedding) columns[0] = param->shape[0];
  for (int i = 0; i < panels.parts; i++) {
    const rf_quant_type *type = parts ? rf_quant_type_of(row[i]) : NULL;
    if (!type || !rf_panels_take(type)) type = rf_quant_type_of(dtype == RF_BF16 ? RF_Q_BF16 : RF_Q_F32);
    type = rf_quant_fit(type, panels.inner);
    panels.part[i].type = type;
    panels.part[i].outputs = columns[i];
  }
  return panels;
}

/* A GGUF file decides the type of each matrix. In other files, matrices have the plan's dtype. */
static rf_status types_of_file(const char *path, const rf_model *model, const rf_params *params,
                               rf_weight_types *types, rf_error *error) {
  rf_weight_file *file = NULL;
  RF_TRY(rf_weight_file_open(path, &file, error));
  types->count = params->count;
  for (int p = 0; p < params->count; p++) {
    rf_name name = rf_weight_file_name(file, model, &params->at[p]);
    /* A missing tensor is not an error here, because loading the file reports it later. */
    for (int i = 0; i < name.count && params->at[p].rank == 2; i++) {
      rf_weight_part part;
      int type = rf_weight_file_find(file, name.part[i], &part) ? rf_weight_part_type(&part) : RF_Q_F32;
      types->at[p][i] = (uint8_t)(rf_panels_take(rf_quant_type_of(type)) ? type : RF_WEIGHT_AS_DTYPE);
    }
  }
  rf_weight_file_close(file);
  return RAFTER_OK;
}

rf_status rf_weight_types_read(const char *path, const rf_model *model, rf_weights_as as,
                               rf_weight_types *types, rf_error *error) {
  static const struct {
    uint8_t matrix, table;
  } TYPES[] = {[RF_WEIGHTS_F32] = {RF_Q_F32, RF_Q_F32},
               [RF_WEIGHTS_BF16] = {RF_Q_BF16, RF_Q_BF16},
               [RF_WEIGHTS_INT8] = {RF_Q_INT8, RF_Q_INT8},
               [RF_WEIGHTS_Q4] = {RF_Q_Q4_0, RF_Q_Q8_0}};
  rf_status status = RAFTER_OK;
  types->count = 0;
  memset(types->at, RF_WEIGHT_NO_PART, sizeof types->at);
  /* In this case, all matrices have the plan's dtype. */
  if (as == RF_WEIGHTS_FILE && !rf_text_ends_with(path, ".gguf")) return RAFTER_OK;
  rf_pool *pool = rf_pool_new();
  rf_params params = rf_model_params(model, pool);
  if (params.count > RF_WEIGHT_TYPES_MAX) {
    status = RF_FAIL(error, RAFTER_FAILED, "omit --weights",
                     "%s has too many parameters for individual types (expected at most %d, got %d)",
                     model->name, RF_WEIGHT_TYPES_MAX, params.count);
    goto done;
  }
  if (as == RF_WEIGHTS_FILE) {
    status = types_of_file(path, model, &params, types, error);
    goto done;
  }
  types->count = params.count;
  /* A router keeps its type, because it is small, and rounding its weights may change choices. */
  for (int p = 0; p < params.base; p++) {
    const rf_param *param = &params.at[p];
    bool head = strcmp(param->name, "head/weight") == 0;
    types->at[p][0] = param->embedding                            ? TYPES[as].table
                      : param->lora || param->experts > 0 || head ? TYPES[as].matrix
                                                                  : RF_WEIGHT_AS_DTYPE;
  }
done:
  rf_pool_free(pool);
  return status;
}
