/* weights_write.c - writes a model's parameters in the names and the layout of other programs,
 * to one file, or to several files with an index. */
#include "model/weights.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/names.h"
#include "formats/safetensors.h"

/* TILE columns are transposed at a time: this many values fill one cache line. A strip has STRIP
 * columns, or fewer if the matrix has many rows. All threads transpose the tiles of a strip. */
enum { BLOCK_VALUES = RF_WEIGHTS_CHUNK, TILE = 16, STRIP = 512, STRIP_VALUES = 1 << 21 };

static int64_t strip_columns(int64_t height) {
  int64_t columns = STRIP_VALUES / (height > 0 ? height : 1) / TILE * TILE;
  return columns < TILE ? TILE : columns < STRIP ? columns : STRIP;
}

/* Number of values in the buffers that write_part needs. */
static int64_t writer_values(const rf_params *params) {
  int64_t most = BLOCK_VALUES;
  for (int i = 0; i < params->count; ++i) {
    int64_t height = rf_param_height(&params->at[i]), columns = rf_param_width(&params->at[i]);
    int64_t strip = strip_columns(height), transposed = height * (strip < columns ? strip : columns);
    if (transposed > most) most = transposed;
    if (columns > most) most = columns;
  }
  return most;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A parameter or one expert's slice, which is written at once, with the names of its tensors. */
typedef struct piece {
  int param, file;
  rf_param slice;
  rf_name name;
  int first_stored; /* the piece's first tensor in the writer's list */
} piece;

struct rf_weights_writer {
  char *folder;
  piece *piece;
  rf_stored *stored;
  int count, stored_count, files, current;
  int64_t bytes,        /* of all tensors */
      held;             /* number of values of the current piece that have arrived */
  float *block, *strip; /* buffers for transposing */
  float *values;        /* values of the current piece that rf_weights_writer_put received */
  int64_t capacity;     /* number of values for which `values` has memory */
  rf_tensor_writer *out;
};

static void list_pieces(rf_weights_writer *w, const rf_model *model, const rf_params *params,
                        const rf_weights_form *form) {
  int64_t in_file = 0;
  for (int i = 0; i < params->count; ++i)
    for (int e = 0; e < rf_param_slices(&params->at[i]); ++e) {
      piece *p = &w->piece[w->count++];
      *p = (piece){.param = i, .slice = rf_param_slice(&params->at[i], e), .first_stored = w->stored_count};
      p->name = rf_param_name(model, &p->slice, !form->bare);
      if (form->tied_as_head && strcmp(p->slice.name, "embed/token/weight") == 0)
        snprintf(p->name.part[0], sizeof p->name.part[0], "lm_head.weight");
      int64_t bytes = p->slice.count * rf_dtype_bytes(form->dtype);
      if (form->file_bytes > 0 && in_file > 0 && in_file + bytes > form->file_bytes) {
        in_file = 0;
        w->files++;
      }
      in_file += bytes;
      w->bytes += bytes;
      p->file = w->files;
      for (int j = 0; j < p->name.count; ++j) {
        rf_stored *tensor = &w->stored[w->stored_count++];
        *tensor = (rf_stored){.name = p->name.part[j], .dtype = form->dtype, .rank = p->slice.rank};
        if (p->slice.rank == 2) tensor->shape[p->name.transposed] = rf_param_height(&p->slice);
        tensor->shape[p->slice.rank == 2 ? !p->name.transposed : 0] = p->name.columns[j];
      }
    }
  w->files++;
}

static void file_name(const rf_weights_writer *w, int file, char name[64]) {
  if (w->files == 1) snprintf(name, 64, "model.safetensors");
  else snprintf(name, 64, "model-%05d-of-%05d.safetensors", file + 1, w->files);
}

static rf_status open_file_of_piece(rf_weights_writer *w, rf_error *error) {
  const piece *p = &w->piece[w->current];
  if (w->out && p->file == p[-1].file) return RAFTER_OK;
  if (w->out) {
    rf_tensor_writer *full = w->out;
    w->out = NULL;
    RF_TRY(rf_tensor_writer_commit(full, error));
  }
  int last = w->current;
  while (last + 1 < w->count && w->piece[last + 1].file == p->file) ++last;
  char name[64], path[4400];
  file_name(w, p->file, name);
  snprintf(path, sizeof path, "%s/%s", w->folder, name);
  int end = last + 1 < w->count ? w->piece[last + 1].first_stored : w->stored_count;
  return rf_tensor_writer_open(path, w->stored + p->first_stored, end - p->first_stored, NULL, &w->out,
                               error);
}

/* If a file stores q, k and v head by head, returns the parameter's column for its column f. */
static int64_t own_column(const rf_name *name, int64_t f) {
  int64_t size = name->head_dim, third = name->columns[0] / 3;
  return f / size % 3 * third + f / (3 * size) * size + f % size;
}

static rf_status write_by_head(const rf_weights_writer *w, const piece *p, rf_weights_source source,
                               void *context, rf_error *error) {
  int64_t all = rf_param_width(&p->slice), height = rf_param_height(&p->slice);
  for (int64_t f = 0, run = p->name.transposed ? 1 : p->name.head_dim; f < all; f += run) {
    for (int64_t r = 0; r < height; ++r)
      RF_TRY(source(context, p->param, r * all + own_column(&p->name, f), run, w->block + r * run, error));
    RF_TRY(rf_tensor_writer_put(w->out, w->block, height * run, error));
  }
  return RAFTER_OK;
}

/* to[c][r] = from[r][c], with all threads. */
static void transpose(const float *from, int64_t rows, int64_t columns, float *to) {
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t c0 = 0; c0 < columns; c0 += TILE) {
    int64_t end = columns - c0 < TILE ? columns : c0 + TILE;
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)
      for (int64_t c = c0; c < end; ++c)
        for (int64_t r = r0; r < rows && r < r0 + TILE; ++r) to[c * rows + r] = from[r * columns + c];
  }
}

/* Writes columns [column, column + columns) of a piece, unchanged or transposed. Each call of
 * `source` asks for adjacent elements of a row. */
static rf_status write_part(const rf_weights_writer *w, const piece *p, int64_t column, int64_t columns,
                            rf_weights_source source, void *context, rf_error *error) {
  const rf_param *param = &p->slice;
  int64_t all = rf_param_width(param), height = rf_param_height(param), before = param->expert * param->count;
  if (!p->name.transposed && columns == all) {
    for (int64_t first = 0, count; first < param->count; first += count) {
      count = param->count - first < BLOCK_VALUES ? param->count - first : BLOCK_VALUES;
      RF_TRY(source(context, p->param, before + first, count, w->block, error));
      RF_TRY(rf_tensor_writer_put(w->out, w->block, count, error));
    }
    return RAFTER_OK;
  }
  if (!p->name.transposed) {
    for (int64_t r = 0; r < height; ++r) {
      RF_TRY(source(context, p->param, before + r * all + column, columns, w->block, error));
      RF_TRY(rf_tensor_writer_put(w->out, w->block, columns, error));
    }
    return RAFTER_OK;
  }
  for (int64_t c = 0, most = strip_columns(height), width; c < columns; c += width) {
    width = columns - c < most ? columns - c : most;
    for (int64_t r = 0; r < height; ++r)
      RF_TRY(source(context, p->param, before + r * all + column + c, width, w->strip + r * width, error));
    transpose(w->strip, height, width, w->block);
    RF_TRY(rf_tensor_writer_put(w->out, w->block, width * height, error));
  }
  return RAFTER_OK;
}

static rf_status write_piece(rf_weights_writer *w, rf_weights_source source, void *context, rf_error *error) {
  const piece *p = &w->piece[w->current];
  RF_TRY(open_file_of_piece(w, error));
  w->current++;
  if (p->name.order[0] == RF_NAME_BY_HEAD) return write_by_head(w, p, source, context, error);
  int64_t column = 0;
  for (int j = 0; j < p->name.count; column += p->name.columns[j++])
    RF_TRY(write_part(w, p, column, p->name.columns[j], source, context, error));
  return RAFTER_OK;
}

rf_status rf_weights_writer_open(const char *folder, const rf_model *model, const rf_params *params,
                                 const rf_weights_form *form, rf_weights_writer **result, rf_error *error) {
  size_t count = 1;
  for (int i = 0; i < params->count; ++i) count += (size_t)rf_param_slices(&params->at[i]);
  if (strlen(folder) > 4096) return RF_FAIL(error, RAFTER_INVALID, NULL, "the folder's path is too long");
  rf_weights_writer *w = calloc(1, sizeof *w);
  if (w) {
    w->folder = strdup(folder);
    w->piece = calloc(count, sizeof *w->piece);
    w->stored = calloc(count * RF_NAME_PARTS, sizeof *w->stored);
    w->block = malloc((size_t)writer_values(params) * sizeof *w->block);
    w->strip = malloc((size_t)writer_values(params) * sizeof *w->strip);
  }
  if (!w || !w->folder || !w->piece || !w->stored || !w->block || !w->strip) {
    rf_weights_writer_discard(w);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to write the weights into %s", folder);
  }
  list_pieces(w, model, params, form);
  *result = w;
  return RAFTER_OK;
}

static rf_status held_values(void *context, int param, int64_t first, int64_t count, float *values,
                             rf_error *error) {
  const rf_weights_writer *w = context;
  const rf_param *slice = &w->piece[w->current - 1].slice;
  (void)param;
  (void)error;
  memcpy(values, w->values + first - slice->expert * slice->count, (size_t)count * sizeof *values);
  return RAFTER_OK;
}

static rf_status reserve(rf_weights_writer *w, const rf_param *slice, rf_error *error) {
  if (slice->count <= w->capacity) return RAFTER_OK;
  free(w->values);
  w->values = malloc((size_t)slice->count * sizeof *w->values);
  w->capacity = w->values ? slice->count : 0;
  return w->values ? RAFTER_OK
                   : RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for %s (%lld values)", slice->name,
                             (long long)slice->count);
}

rf_status rf_weights_writer_put(void *writer, int param, int64_t first, int64_t count, const float *values,
                                rf_error *error) {
  rf_weights_writer *w = writer;
  while (count > 0) {
    const piece *p = &w->piece[w->current];
    int64_t begin = w->current < w->count ? p->slice.expert * p->slice.count + w->held : -1;
    if (w->current == w->count || param != p->param || first != begin)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "values come out of order (parameter %d from %lld on)",
                     param, (long long)first);
    if (w->held == 0) RF_TRY(reserve(w, &p->slice, error));
    int64_t left = p->slice.count - w->held, part = count < left ? count : left;
    memcpy(w->values + w->held, values, (size_t)part * sizeof *values);
    w->held += part;
    first += part;
    values += part;
    count -= part;
    if (w->held < p->slice.count) continue;
    w->held = 0;
    RF_TRY(write_piece(w, held_values, w, error));
  }
  return RAFTER_OK;
}

rf_status rf_weights_writer_put_part(rf_weights_writer *w, int param, int part, const void *data,
                                     int64_t bytes, rf_error *error) {
  const piece *p = &w->piece[w->current];
  if (w->current == w->count || param != p->param || part >= p->name.count)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "tensors come out of order (parameter %d)", param);
  if (part == 0) RF_TRY(open_file_of_piece(w, error));
  RF_TRY(rf_tensor_writer_put_bytes(w->out, data, bytes, error));
  w->current += part == p->name.count - 1;
  return RAFTER_OK;
}

/* Writes the index of tensors and files that Hugging Face's loaders read. */
static rf_status write_index(const rf_weights_writer *w, rf_error *error) {
  char path[4400], name[64];
  json_t *map = json_object();
  for (int i = 0; i < w->count; ++i) {
    file_name(w, w->piece[i].file, name);
    for (int j = 0; j < w->piece[i].name.count; ++j)
      json_object_set_new(map, w->piece[i].name.part[j], json_string(name));
  }
  json_t *json = json_pack("{s{sI} so}", "metadata", "total_size", (json_int_t)w->bytes, "weight_map", map);
  snprintf(path, sizeof path, "%s/model.safetensors.index.json", w->folder);
  rf_status status = rf_json_write(path, json, 2, error);
  json_decref(json);
  return status;
}

rf_status rf_weights_writer_commit(rf_weights_writer *w, rf_error *error) {
  rf_status status = RAFTER_OK;
  if (w->current < w->count || !w->out) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s is incomplete (%d of %d parameters written)", w->folder,
                     w->current, w->count);
    goto done;
  }
  rf_tensor_writer *out = w->out;
  w->out = NULL;
  RF_GO(rf_tensor_writer_commit(out, error));
  if (w->files > 1) RF_GO(write_index(w, error));
done:
  rf_weights_writer_discard(w);
  return status;
}

void rf_weights_writer_discard(rf_weights_writer *w) {
  if (!w) return;
  rf_tensor_writer_discard(w->out);
  free(w->folder);
  free(w->piece);
  free(w->stored);
  free(w->block);
  free(w->strip);
  free(w->values);
  free(w);
}

int rf_weights_writer_files(const rf_weights_writer *w) { return w->files; }

rf_status rf_weights_write(const char *folder, const rf_model *model, const rf_params *params, rf_dtype dtype,
                           rf_weights_source source, void *context, rf_error *error) {
  rf_status status = RAFTER_OK;
  char path[4400];
  rf_weights_writer *w = NULL;
  RF_TRY(rf_weights_writer_open(folder, model, params, &(rf_weights_form){.dtype = dtype}, &w, error));
  while (w->current < w->count) RF_GO(write_piece(w, source, context, error));
  status = rf_weights_writer_commit(w, error);
  w = NULL;
  if (status != RAFTER_OK) return status;
  snprintf(path, sizeof path, "%s/config.json", folder);
  return rf_model_config_write(model, dtype, path, error);
done:
  rf_weights_writer_discard(w);
  return status;
}
