/* weights.c - reads a model's parameters in blocks, which needs little memory. */
#include "model/run_folder.h"
#include "model/weights.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/weight_file.h"

/* A transposition takes TURN_MIN to TURN_MAX rows and TILE columns at a time. TILE values fill a
 * cache line. */
enum { BLOCK_VALUES = RF_WEIGHTS_CHUNK, TURN_MIN = 16, TURN_MAX = 256, TILE = 16 };

/* ---- reading --------------------------------------------------------------------------------- */

static void shape_text(const int64_t *shape, int rank, char text[128]) {
  int used = snprintf(text, 128, "(");
  for (int i = 0; i < rank && used < 100; ++i)
    used += snprintf(text + used, 128 - (size_t)used, "%s%lld", i ? ", " : "", (long long)shape[i]);
  snprintf(text + used, 128 - (size_t)used, ")");
}

/* Returns the path of the file that holds the part. A model may have several files. */
static const char *path_of(const rf_weight_file *file, const rf_weight_part *part) {
  return part->stored ? part->stored->file : rf_weight_file_path(file);
}

/* Selects one expert if the file stores all experts of a layer in one tensor. */
static void take_slice(const rf_param *slice, rf_weight_part *part) {
  if (slice->experts == 0 || part->rank != 3 || part->shape[0] != slice->experts) return;
  part->first = slice->expert * part->shape[1] * part->shape[2];
  part->rank = 2;
  part->shape += 1;
}

/* Finds the tensors of one parameter, or of one of its experts, and checks their shapes. */
static rf_status find_parts(const rf_weight_file *file, const rf_model *model, const rf_param *param,
                            rf_name *name, rf_weight_part part[RF_NAME_PARTS], rf_error *error) {
  *name = rf_weight_file_name(file, model, param);
  for (int i = 0; i < name->count; ++i) {
    bool there = rf_weight_file_find(file, name->part[i], &part[i]);
    if (!there && model->tied && strcmp(param->name, "embed/token/weight") == 0)
      /* Some tied models store the embedding under the head's name. */
      there = rf_weight_file_find(file, "lm_head.weight", &part[i]);
    if (!there)
      return RF_FAIL(error, RAFTER_FAILED, "the weights and config.json may belong to different models",
                     "%s has no tensor \"%s\" (it has %d tensors)", rf_weight_file_path(file), name->part[i],
                     rf_weight_file_count(file));
    take_slice(param, &part[i]);
    int64_t shape[2] = {rf_param_height(param), name->columns[i]};
    if (name->transposed) {
      shape[0] = name->columns[i];
      shape[1] = rf_param_height(param);
    }
    const int64_t *expected = param->rank == 2 ? shape : &name->columns[i];
    if (part[i].rank != param->rank ||
        memcmp(part[i].shape, expected, (size_t)param->rank * sizeof *expected) != 0) {
      char want[128], got[128];
      shape_text(expected, param->rank, want);
      shape_text(part[i].shape, part[i].rank, got);
      return RF_FAIL(error, RAFTER_FAILED, "the weights and config.json may belong to different models",
                     "%s: tensor \"%s\" has the wrong shape (expected %s, got %s)", path_of(file, &part[i]),
                     name->part[i], want, got);
    }
    rf_error reason;
    /* reading 0 values only checks the type */
    if (rf_weight_part_read(&part[i], 0, 0, NULL, &reason) != RAFTER_OK)
      return RF_FAIL(error, RAFTER_FAILED, reason.hint, "%.300s: %s", path_of(file, &part[i]),
                     reason.message);
  }
  return RAFTER_OK;
}

/* Fails if the file has a tensor that the model does not use, for example a tensor of an extra
 * layer. */
static rf_status check_rest(const rf_weight_file *file, const rf_model *model, const bool *seen,
                            rf_error *error) {
  for (int i = 0; i < rf_weight_file_count(file); ++i) {
    const char *name = rf_weight_file_tensor(file, i);
    if (!seen[i] && !rf_weight_file_is_extra(file, model, name))
      return RF_FAIL(error, RAFTER_FAILED, "the weights and config.json may belong to different models",
                     "%s: tensor \"%.100s\" does not belong to the model", rf_weight_file_path(file), name);
  }
  return RAFTER_OK;
}

/* Reads many adjacent elements with all threads. */
static rf_status read_run(const rf_weight_part *part, int64_t first, int64_t count, float *out,
                          rf_error *error) {
  enum { RUN = 1 << 15 };
  int failed = 0;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t at = 0; at < count; at += RUN) {
    rf_error mine;
    if (rf_weight_part_read(part, first + at, count - at < RUN ? count - at : RUN, out + at, &mine) ==
        RAFTER_OK)
      continue;
#pragma omp critical(rf_weights_failed)
    {
      if (!failed && error) *error = mine;
      failed = 1;
    }
  }
  return failed ? RAFTER_FAILED : RAFTER_OK;
}

/* Rows [first, first + rows) of a parameter, or of one of its experts. */
typedef struct block {
  const rf_name *name;
  const rf_weight_part *part;
  int64_t height, columns; /* of the parameter */
  int64_t first, rows;
} block;

/* Reads tensor `i` of a parameter with all threads. The file stores this tensor transposed. The
 * parameter's columns are rows of the file. TILE rows of the file are read at a time. */
static rf_status read_transposed(const block *b, int i, float *out, rf_error *error) {
  int failed = 0;
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t c0 = 0; c0 < b->name->columns[i]; c0 += TILE) {
    float strip[TILE][TURN_MAX];
    int64_t count = b->name->columns[i] - c0 < TILE ? b->name->columns[i] - c0 : TILE;
    rf_error mine;
    for (int64_t c = 0; c < count; ++c) {
      int64_t first = rf_name_column(b->name, i, c0 + c) * b->height + b->first;
      if (rf_weight_part_read(&b->part[i], first, b->rows, strip[c], &mine) == RAFTER_OK) continue;
#pragma omp critical(rf_weights_failed)
      {
        if (!failed && error) *error = mine;
        failed = 1;
      }
    }
    for (int64_t r = 0; r < b->rows; ++r)
      for (int64_t c = 0; c < count; ++c) out[r * b->columns + c0 + c] = strip[c][r];
  }
  return failed ? RAFTER_FAILED : RAFTER_OK;
}

static rf_status read_rows(const block *b, float *out, rf_error *error) {
  const rf_name *name = b->name;
  for (int i = 0; i < name->count; out += name->columns[i++]) {
    if (name->transposed) {
      RF_TRY(read_transposed(b, i, out, error));
      continue;
    }
    /* number of columns that are adjacent in the file */
    int64_t run = name->order[i] == RF_NAME_PLAIN   ? name->columns[i]
                  : name->order[i] == RF_NAME_PAIRS ? 1
                                                    : name->head_dim;
    for (int64_t r = 0; r < b->rows; ++r)
      for (int64_t c = 0; c < name->columns[i]; c += run)
        RF_TRY(rf_weight_part_read(&b->part[i],
                                   (b->first + r) * name->columns[i] + rf_name_column(name, i, c), run,
                                   out + r * b->columns + c, error));
  }
  return RAFTER_OK;
}

static bool is_plain(const rf_name *name) {
  return name->count == 1 && !name->transposed && name->order[0] == RF_NAME_PLAIN;
}
static int64_t rows_at_once(const rf_param *param) {
  int64_t rows = BLOCK_VALUES * 4 / rf_param_width(param);
  return rows < TURN_MIN ? TURN_MIN : rows > TURN_MAX ? TURN_MAX : rows;
}

static rf_status read_param(const rf_name *name, const rf_weight_part *part, int index, const rf_param *param,
                            rf_weights_visit visit, void *context, float *values, rf_error *error) {
  block b = {name, part, rf_param_height(param), rf_param_width(param), 0, 0};
  int64_t most = rows_at_once(param), before = param->expert * param->count;
  if (is_plain(name)) {
    for (int64_t first = 0, count; first < param->count; first += count) {
      count = param->count - first < BLOCK_VALUES ? param->count - first : BLOCK_VALUES;
      RF_TRY(read_run(&part[0], first, count, values, error));
      for (int64_t i = 0; i < count && name->offset != 0; ++i) values[i] -= name->offset;
      RF_TRY(visit(context, index, before + first, count, values, error));
    }
    return RAFTER_OK;
  }
  for (; b.first < b.height; b.first += b.rows) {
    b.rows = b.height - b.first < most ? b.height - b.first : most;
    RF_TRY(read_rows(&b, values, error));
    RF_TRY(visit(context, index, before + b.first * b.columns, b.rows * b.columns, values, error));
  }
  return RAFTER_OK;
}

static int64_t block_values(const rf_params *params) {
  int64_t most = BLOCK_VALUES;
  for (int i = 0; i < params->count; ++i) {
    const rf_param *param = &params->at[i];
    int64_t rows = rows_at_once(param),
            values = rf_param_width(param) * (rows < rf_param_height(param) ? rows : rf_param_height(param));
    if (values > most) most = values;
  }
  return most;
}

static rf_status pack_param(const rf_name *name, const rf_weight_part *part, const rf_panels *panels,
                            int expert, void *data, rf_error *error) {
  rf_weight_matrix matrix = {
      .name = name, .part = part, .inner = panels->inner, .outputs_first = panels->outputs_first};
  rf_panel_source source = rf_weight_matrix_source(&matrix);
  rf_panels one = rf_panels_one(panels);
  int64_t count = rf_panels_count(&one), from = 0, outputs = 0;
  /* All outputs of q come first, then those of k, then those of v. So only one tensor is mapped at
   * a time. */
  for (int i = 0; i < name->count; i++) {
    int64_t end = from;
    outputs += name->columns[i];
    while (end < count && (i == name->count - 1 || rf_panels_at(&one, end).first < outputs)) end++;
    RF_TRY(
        rf_panels_fill_some(&one, from, end, &source, (char *)data + expert * rf_panels_bytes(&one), error));
    rf_weight_part_done(&part[i]);
    from = end;
  }
  return RAFTER_OK;
}

rf_status rf_weights_read(const char *path, const rf_model *model, const rf_params *params,
                          rf_weights_visit visit, void *context, rf_error *error) {
  return rf_weights_load(path, model, params, NULL, visit, context, error);
}

/* Opens the weights and checks the names and shapes of all tensors. */
static rf_status open_checked(const char *path, const rf_model *model, const rf_params *params,
                              rf_weight_file **file, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_name name;
  rf_weight_part part[RF_NAME_PARTS];
  RF_TRY(rf_run_check_weights(path, error));
  RF_TRY(rf_weight_file_open(path, file, error));
  bool *seen = calloc((size_t)rf_weight_file_count(*file) + 1, sizeof *seen);
  if (!seen) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to read %s", path);
    goto done;
  }
  for (int i = 0; i < params->count; ++i)
    for (int e = 0; e < rf_param_slices(&params->at[i]); ++e) {
      rf_param slice = rf_param_slice(&params->at[i], e);
      RF_GO(find_parts(*file, model, &slice, &name, part, error));
      for (int j = 0; j < name.count; ++j) seen[part[j].index] = true;
    }
  RF_GO(check_rest(*file, model, seen, error));
done:
  free(seen);
  if (status != RAFTER_OK) {
    rf_weight_file_close(*file);
    *file = NULL;
  }
  return status;
}

rf_status rf_weights_load(const char *path, const rf_model *model, const rf_params *params,
                          rf_weights_place place, rf_weights_visit visit, void *context, rf_error *error) {
  rf_weight_file *file = NULL;
  rf_status status = RAFTER_OK;
  rf_name name;
  rf_weight_part part[RF_NAME_PARTS];
  RF_TRY(open_checked(path, model, params, &file, error));
  float *values = malloc((size_t)block_values(params) * sizeof *values);
  if (!values) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to read %s", path);
    goto done;
  }
  for (int i = 0; i < params->count; ++i) {
    const rf_panels *panels = NULL;
    void *data = NULL;
    if (place) RF_GO(place(context, i, &panels, &data, error));
    for (int e = 0; e < rf_param_slices(&params->at[i]); ++e) {
      rf_param slice = rf_param_slice(&params->at[i], e);
      RF_GO(find_parts(file, model, &slice, &name, part, error));
      if (data) RF_GO(pack_param(&name, part, panels, e, data, error));
      else RF_GO(read_param(&name, part, i, &slice, visit, context, values, error));
      for (int j = 0; j < name.count && !data; ++j) rf_weight_part_done(&part[j]);
    }
  }
  status = rf_weight_file_unchanged(file, error);
done:
  free(values);
  rf_weight_file_close(file);
  return status;
}

/* Passes the bytes of each tensor to the function `take`. If `take` is NULL, this function only
 * sets *whole. *whole is true if each tensor has this dtype and belongs to one parameter or
 * expert. */
static rf_status pass_tensors(rf_weight_file *file, const rf_model *model, const rf_params *params,
                              rf_dtype dtype, rf_weights_take take, void *context, bool *whole,
                              rf_error *error) {
  for (int i = 0; i < params->count; ++i)
    for (int e = 0; e < rf_param_slices(&params->at[i]); ++e) {
      rf_name name;
      rf_weight_part part[RF_NAME_PARTS];
      rf_param slice = rf_param_slice(&params->at[i], e);
      RF_TRY(find_parts(file, model, &slice, &name, part, error));
      for (int j = 0; j < name.count; ++j) {
        const rf_stored *stored = part[j].stored;
        if (!take) *whole = *whole && stored && stored->dtype == dtype && stored->rank == part[j].rank;
        else RF_TRY(take(context, i, j, stored->data, stored->bytes, error));
        if (take) rf_weight_part_done(&part[j]);
      }
    }
  return RAFTER_OK;
}

rf_status rf_weights_copy(const char *path, const rf_model *model, const rf_params *params, rf_dtype dtype,
                          rf_weights_take take, void *context, bool *copied, rf_error *error) {
  rf_weight_file *file = NULL;
  rf_status status = RAFTER_OK;
  *copied = true;
  RF_TRY(open_checked(path, model, params, &file, error));
  RF_GO(pass_tensors(file, model, params, dtype, NULL, NULL, copied, error));
  if (*copied) RF_GO(pass_tensors(file, model, params, dtype, take, context, NULL, error));
  status = rf_weight_file_unchanged(file, error);
done:
  rf_weight_file_close(file);
  return status;
}

/* F32 represents every value of the other types exactly. Only F64 values are rounded. */
static rf_dtype dtype_of(const rf_weight_part *part) {
  bool bf16 = part->stored ? part->stored->dtype == RF_BF16 : part->quant->type->number == RF_Q_BF16;
  bool f16 = part->stored ? part->stored->dtype == RF_F16 : part->quant->type->number == RF_Q_F16;
  return bf16 ? RF_BF16 : f16 ? RF_F16 : RF_F32;
}

rf_status rf_weights_form_of(const char *path, const rf_model *model, const rf_params *params,
                             rf_weights_form *form, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_weight_file *file = NULL;
  RF_TRY(rf_weight_file_open(path, &file, error));
  form->dtype = RF_DTYPES;
  for (int i = 0; i < params->count; ++i)
    for (int e = 0; e < rf_param_slices(&params->at[i]); ++e) {
      rf_name name;
      rf_weight_part part[RF_NAME_PARTS];
      rf_param slice = rf_param_slice(&params->at[i], e);
      RF_GO(find_parts(file, model, &slice, &name, part, error));
      for (int j = 0; j < name.count; ++j) {
        rf_dtype dtype = dtype_of(&part[j]);
        form->dtype = form->dtype == RF_DTYPES || form->dtype == dtype ? dtype : RF_F32;
      }
      if (i > 0 || !part[0].stored) continue;
      form->bare = strcmp(name.part[0], rf_param_name(model, &slice, true).part[0]) != 0;
      form->tied_as_head = strcmp(part[0].stored->name, "lm_head.weight") == 0;
    }
done:
  rf_weight_file_close(file);
  return status;
}
