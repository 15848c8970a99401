/* weights_write.c - writes a model's parameters in the names and the layout of other programs. The
 * output is one file, or several files with an index. */
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/names.h"
#include "formats/safetensors.h"
#include "formats/shards.h"

/* TILE columns are transposed at a time, because this number of values fills a cache line. A strip
 * has STRIP columns, but fewer if the matrix has many rows. All threads transpose the tiles of a
 * strip. */
enum { BLOCK_VALUES = RF_WEIGHTS_CHUNK, TILE = 16, STRIP = 512, STRIP_VALUES = 1 << 21 };

static int64_t strip_columns(int64_t height) {
  int64_t columns = STRIP_VALUES / (height > 0 ? height : 1) / TILE * TILE;
  return columns < TILE ? TILE : columns < STRIP ? columns : STRIP;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A parameter or one expert's slice, with the names of its tensors. A piece is written as a
 * whole. */
typedef struct piece {
  int param, file;
  rf_param slice;
  rf_name name;
  int64_t bytes;
  int first_stored; /* index of the piece's first tensor in the writer's list */
} piece;

struct rf_weights_writer {
  char *folder;
  piece *piece;
  rf_stored *stored;
  int count, stored_count, files, current;
  int64_t bytes,        /* of all tensors */
      held;             /* number of values of the current piece that have arrived */
  float *block, *strip; /* buffers for transposing */
  int64_t room;         /* number of values of the largest block */
  float *values;        /* values of the current piece that rf_weights_writer_put received */
  int64_t capacity;     /* number of values for which `values` has memory */
  rf_tensor_writer *out;
};

static void list_pieces(rf_weights_writer *w, const rf_model *model, const rf_params *params,
                        const rf_weights_form *form) {
  for (int i = 0; i < params->count; ++i)
    for (int e = 0; e < rf_param_slices(&params->at[i]); ++e) {
      piece *p = &w->piece[w->count++];
      *p = (piece){.param = i, .slice = rf_param_slice(&params->at[i], e)};
      p->name = rf_param_name(model, &p->slice, !form->bare);
      if (form->tied_as_head && strcmp(p->slice.name, "embed/token/weight") == 0)
        snprintf(p->name.part[0], sizeof p->name.part[0], "lm_head.weight");
      p->bytes = p->slice.count * rf_dtype_bytes(form->dtype);
      w->bytes += p->bytes;
    }
}

/* Starts a new file if the current file would otherwise become larger than `file_bytes`. */
static void fill_files(rf_weights_writer *w, int64_t file_bytes) {
  int64_t in_file = 0;
  for (int i = 0; i < w->count; ++i) {
    if (file_bytes > 0 && in_file > 0 && in_file + w->piece[i].bytes > file_bytes) {
      in_file = 0;
      w->files++;
    }
    in_file += w->piece[i].bytes;
    w->piece[i].file = w->files;
  }
  w->files++;
}

static int by_file(const void *a, const void *b) {
  const piece *x = a, *y = b;
  if (x->file != y->file) return x->file < y->file ? -1 : 1;
  if (x->param != y->param) return x->param < y->param ? -1 : 1;
  return (x->slice.expert > y->slice.expert) - (x->slice.expert < y->slice.expert);
}

/* Assigns each piece to one of `shards` files, and sorts the pieces by file. */
static bool share_files(rf_weights_writer *w, int shards) {
  int64_t *bytes = calloc((size_t)w->count, sizeof *bytes);
  int *file = calloc((size_t)w->count, sizeof *file);
  if (bytes && file) {
    for (int i = 0; i < w->count; ++i) bytes[i] = w->piece[i].bytes;
    w->files = rf_shard_files(bytes, w->count, shards, file);
    for (int i = 0; i < w->count; ++i) w->piece[i].file = file[i];
    qsort(w->piece, (size_t)w->count, sizeof *w->piece, by_file);
  }
  bool fine = bytes && file;
  free(bytes);
  free(file);
  return fine;
}

static void list_stored(rf_weights_writer *w, rf_dtype dtype) {
  for (int i = 0; i < w->count; ++i) {
    piece *p = &w->piece[i];
    p->first_stored = w->stored_count;
    for (int j = 0; j < p->name.count; ++j) {
      rf_stored *tensor = &w->stored[w->stored_count++];
      *tensor = (rf_stored){.name = p->name.part[j], .dtype = dtype, .rank = p->slice.rank};
      if (p->slice.rank == 2) tensor->shape[p->name.transposed] = rf_param_height(&p->slice);
      tensor->shape[p->slice.rank == 2 ? !p->name.transposed : 0] = p->name.columns[j];
    }
  }
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
  char name[RF_SHARD_NAME], path[4400];
  rf_shard_name("model", p->file, w->files, name);
  snprintf(path, sizeof path, "%s/%s", w->folder, name);
  int end = last + 1 < w->count ? w->piece[last + 1].first_stored : w->stored_count;
  return rf_tensor_writer_open(path, w->stored + p->first_stored, end - p->first_stored, NULL, &w->out,
                               error);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Sets the block at a cursor in a piece, in the order of the file, and moves the cursor. Returns
 * false at the end of the piece. */
static bool next_in_piece(const piece *p, rf_weights_cursor *at, rf_weights_block *block) {
  const rf_name *name = &p->name;
  const rf_param *param = &p->slice;
  int64_t all = rf_param_width(param), height = rf_param_height(param), column = 0;
  if (at->part == name->count) return false;
  for (int j = 0; j < at->part; ++j) column += name->columns[j];
  int64_t columns = name->columns[at->part], left;
  bool by_head = name->order[0] == RF_NAME_BY_HEAD;
  if (by_head) columns = all;
  *block = (rf_weights_block){.param = p->param, .stride = all, .transposed = name->transposed};
  if (by_head) { /* the file has q, k and v of head 0, then q, k and v of head 1, ... */
    int64_t size = name->head_dim, third = name->columns[0] / 3, head = at->at / size;
    column = head % 3 * third + head / 3 * size;
    block->rows = height;
    block->count = size;
    at->at += size;
    left = all - at->at;
  } else if (name->transposed) {
    left = columns - at->at;
    block->rows = height;
    block->count = left < strip_columns(height) ? left : strip_columns(height);
    column += at->at;
    at->at += block->count;
    left -= block->count;
  } else { /* rows of a matrix; adjacent rows form one run */
    int64_t rows = BLOCK_VALUES / columns > 0 ? BLOCK_VALUES / columns : 1;
    block->rows = height - at->at < rows ? height - at->at : rows;
    block->count = columns;
    column += at->at * all;
    at->at += block->rows;
    left = height - at->at;
  }
  block->first = param->expert * param->count + column;
  if (!block->transposed && block->count == all) { /* adjacent rows form one run */
    block->count *= block->rows;
    block->rows = 1;
  }
  if (left == 0) *at = (rf_weights_cursor){.piece = at->piece, .part = by_head ? name->count : at->part + 1};
  return true;
}

static int64_t largest_block(const rf_weights_writer *w) {
  int64_t most = BLOCK_VALUES;
  rf_weights_block block;
  for (int i = 0; i < w->count; ++i)
    for (rf_weights_cursor at = {0}; next_in_piece(&w->piece[i], &at, &block);)
      if (block.rows * block.count > most) most = block.rows * block.count;
  return most;
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

static rf_status put_block(const rf_weights_writer *w, const rf_weights_block *block, const float *values,
                           rf_error *error) {
  if (!block->transposed) return rf_tensor_writer_put(w->out, values, block->rows * block->count, error);
  transpose(values, block->rows, block->count, w->block);
  return rf_tensor_writer_put(w->out, w->block, block->rows * block->count, error);
}

static rf_status write_piece(rf_weights_writer *w, rf_weights_source source, void *context, rf_error *error) {
  const piece *p = &w->piece[w->current];
  rf_weights_block block;
  RF_TRY(open_file_of_piece(w, error));
  w->current++;
  for (rf_weights_cursor at = {0}; next_in_piece(p, &at, &block);) {
    for (int64_t r = 0; r < block.rows; ++r)
      RF_TRY(source(context, p->param, block.first + r * block.stride, block.count,
                    w->strip + r * block.count, error));
    RF_TRY(put_block(w, &block, w->strip, error));
  }
  return RAFTER_OK;
}

rf_status rf_weights_writer_open(const char *folder, const rf_model *model, const rf_params *params,
                                 const rf_weights_form *form, rf_weights_writer **result, rf_error *error) {
  size_t count = 1;
  for (int i = 0; i < params->count; ++i) count += (size_t)rf_param_slices(&params->at[i]);
  if (strlen(folder) > 4096) return RF_FAIL(error, RAFTER_INVALID, NULL, "the folder's path is too long");
  rf_weights_writer *w = calloc(1, sizeof *w);
  bool fine = w && (w->folder = strdup(folder)) && (w->piece = calloc(count, sizeof *w->piece)) &&
              (w->stored = calloc(count * RF_NAME_PARTS, sizeof *w->stored));
  if (fine) {
    list_pieces(w, model, params, form);
    if (form->shards > 0) fine = share_files(w, form->shards);
    else fill_files(w, form->file_bytes);
    list_stored(w, form->dtype);
    w->room = largest_block(w);
    w->block = malloc((size_t)w->room * sizeof *w->block);
    w->strip = malloc((size_t)w->room * sizeof *w->strip);
  }
  if (!fine || !w->block || !w->strip) {
    rf_weights_writer_discard(w);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to write the weights into %s", folder);
  }
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
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "values are in the wrong order (parameter %d, from value %lld on)", param,
                     (long long)first);
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
    return RF_FAIL(error, RAFTER_FAILED, NULL, "tensors are in the wrong order (parameter %d)", param);
  if (part == 0) RF_TRY(open_file_of_piece(w, error));
  RF_TRY(rf_tensor_writer_put_bytes(w->out, data, bytes, error));
  w->current += part == p->name.count - 1;
  return RAFTER_OK;
}

rf_status rf_weights_writer_index(const rf_weights_writer *w, rf_error *error) {
  if (w->files == 1) return RAFTER_OK;
  rf_shard_index *index = rf_shard_index_new("model", w->files);
  for (int i = 0; i < w->count; ++i)
    for (int j = 0; j < w->piece[i].name.count; ++j)
      rf_shard_index_add(index, w->piece[i].name.part[j], w->piece[i].file);
  return rf_shard_index_write(index, w->folder, w->bytes, error);
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
  status = rf_weights_writer_index(w, error);
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

/* ---- one file of several --------------------------------------------------------------------- */

int64_t rf_weights_writer_room(const rf_weights_writer *w) { return w->room; }

bool rf_weights_writer_next(const rf_weights_writer *w, int file, rf_weights_cursor *at,
                            rf_weights_block *block) {
  while (at->piece < w->count) {
    const piece *p = &w->piece[at->piece];
    if (p->file == file && next_in_piece(p, at, block)) return true;
    *at = (rf_weights_cursor){.piece = at->piece + 1};
  }
  return false;
}

rf_status rf_weights_writer_begin_file(rf_weights_writer *w, int file, rf_error *error) {
  w->current = 0;
  while (w->current < w->count && w->piece[w->current].file != file) w->current++;
  if (w->current == w->count)
    return RF_FAIL(error, RAFTER_FAILED, "this is a bug; please report it", "file %d of %d has no tensors",
                   file, w->files);
  return open_file_of_piece(w, error);
}

rf_status rf_weights_writer_put_block(rf_weights_writer *w, const rf_weights_block *block,
                                      const float *values, rf_error *error) {
  return put_block(w, block, values, error);
}

rf_status rf_weights_writer_commit_file(rf_weights_writer *w, rf_error *error) {
  rf_tensor_writer *out = w->out;
  w->out = NULL;
  return rf_tensor_writer_commit(out, error);
}

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
