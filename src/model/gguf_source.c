/* gguf_source.c - reads GGUF and llama2.c files unchanged, and presents folders as GGUF tensors. */
#include "model/run_folder.h"
#include "model/gguf_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "text/chat.h"
#include "formats/llama2c.h"
#include "model/names.h"
#include "formats/safetensors.h"
#include "text/tokenizer.h"

/* Where a folder stores the values of one GGUF tensor. A linear layer is a matrix with one row for
 * each output and one column for each input. A vector is one column. */
typedef struct origin {
  /* One tensor, or one tensor for each expert. NULL for the rotary factors, which are computed. */
  const rf_stored **stored;
  int64_t slices;
  rf_name name;          /* order of the rows, for GPT-NeoX */
  int64_t rows, columns; /* number of rows and columns of one tensor or of one expert's matrix */
  int64_t moved;         /* width of a head if GGUF permutes the rows of a head, otherwise 0 */
  bool transposed;       /* true: the folder stores the matrix as (in, out) */
  float offset;          /* number that is added to every value of a norm */
} origin;

struct rf_gguf_source {
  rf_gguf *gguf;
  rf_llama2c *llama2c;
  rf_tensor_file *folder;
  rf_pool *pool;
  rf_gguf_meta *meta;
  rf_model model;
  int count;
  rf_quant_tensor *tensor; /* tensors of a folder */
  origin *origin;
  bool has_tokenizer;
  bool has_tools_template; /* the copied metadata has a template for conversations with tools */
  char note[sizeof((rf_error *)0)->message]; /* reason why the metadata has no tokenizer */
};

static const rf_quant_type *type_of(rf_dtype dtype, int rank) {
  /* Vectors are always f32, because they are small and other programs expect f32. */
  return rf_quant_type_of(rank == 1          ? RF_Q_F32
                          : dtype == RF_F16  ? RF_Q_F16
                          : dtype == RF_BF16 ? RF_Q_BF16
                                             : RF_Q_F32);
}

/* ---- folders --------------------------------------------------------------------------------- */

static void add_tensor(rf_gguf_source *s, const char *name, const rf_quant_type *type, int rank,
                       const int64_t *shape, origin from) {
  rf_quant_tensor *t = &s->tensor[s->count];
  *t = (rf_quant_tensor){.name = name, .type = type, .rank = rank, .count = 1};
  for (int i = 0; i < rank; ++i) t->count *= t->shape[i] = shape[i];
  t->bytes = t->count / type->values * type->bytes;
  s->origin[s->count++] = from;
}

/* Finds tensor `i` of a parameter or of one of its experts, and checks the tensor's shape and
 * type. */
static rf_status find_part(const rf_gguf_source *s, const rf_param *param, const rf_name *name, int i,
                           const int64_t shape[2], const rf_stored **found, rf_error *error) {
  const char *path = rf_tensor_file_path(s->folder);
  const rf_stored *stored = rf_name_find(s->folder, name->part[i]);
  if (!stored && s->model.tied && strcmp(param->name, "embed/token/weight") == 0)
    /* Some tied models store the embedding under the head's name. */
    stored = rf_name_find(s->folder, "lm_head.weight");
  *found = stored;
  if (!stored)
    return RF_FAIL(error, RAFTER_FAILED, "the weights and config.json may belong to different models",
                   "%s has no tensor \"%s\"", path, name->part[i]);
  bool fits = stored->rank == param->rank && stored->count == shape[0] * shape[1] &&
              (param->rank == 1 || stored->shape[0] == shape[0]);
  if (!fits)
    return RF_FAIL(error, RAFTER_FAILED, "the weights and config.json may belong to different models",
                   "%s: tensor \"%s\" has the wrong shape (expected %lld values, got %lld)", path,
                   name->part[i], (long long)(shape[0] * shape[1]), (long long)stored->count);
  rf_error reason;
  if (rf_stored_read(stored, 0, 0, NULL, &reason) == RAFTER_OK) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, reason.hint, "%.300s: %s", stored->file, reason.message);
}

static rf_status add_part(rf_gguf_source *s, const rf_gguf_facts *facts, const rf_param *param,
                          const rf_gguf_name *row, int i, bool prefixed, rf_error *error) {
  const char *hole = strstr(row->part[i], "%d");
  int slices = rf_param_slices(param);
  origin from = {.stored = rf_pool_alloc(s->pool, (size_t)slices * sizeof *from.stored), .slices = slices};
  int64_t shape[2] = {0};
  for (int e = 0; e < slices; ++e) {
    rf_param slice = rf_param_slice(param, e);
    from.name = rf_param_name(&s->model, &slice, prefixed);
    int64_t rows = slice.rank == 2 ? slice.shape[0] : 1, columns = from.name.columns[i];
    shape[0] = from.name.transposed ? columns : rows;
    shape[1] = from.name.transposed ? rows : columns;
    RF_TRY(find_part(s, &slice, &from.name, i, shape, &from.stored[e], error));
  }
  from.transposed = row->transposed && !from.name.transposed;
  from.offset = row->norm ? (float)facts->norm_offset : 0;
  from.moved = facts->interleaved && row->permuted >> i & 1 ? facts->key_length : 0;
  from.rows = param->rank == 1 ? from.name.columns[i] : shape[from.transposed];
  from.columns = param->rank == 1 ? 1 : shape[!from.transposed];
  char *text = hole ? rf_pool_format(s->pool, "%.*s%d%s", (int)(hole - row->part[i]), row->part[i],
                                     param->layer, hole + 2)
                    : rf_pool_format(s->pool, "%s", row->part[i]);
  int64_t out[3] = {slices, from.rows, from.columns};
  rf_dtype dtype = from.stored[0]->dtype;
  /* All experts of a layer get the same type. */
  for (int e = 1; e < slices; ++e) dtype = from.stored[e]->dtype == dtype ? dtype : RF_F32;
  add_tensor(s, text, type_of(dtype, param->rank), param->experts ? 3 : param->rank,
             param->experts ? out : out + 1, from);
  return RAFTER_OK;
}

static const char TOOLS_TEMPLATE[] = "tokenizer.chat_template.tool_use";

/* Copies the vocabulary of tokenizer.gguf unchanged. Does nothing if the folder has another
 * tokenizer file, because that file was added later and takes precedence. */
static rf_status copy_vocabulary(rf_gguf_source *s, const char *folder, rf_error *error) {
  char path[4200];
  struct stat info;
  rf_gguf *file = NULL;
  static const char *const first[] = {"tokenizer.json", "tokenizer.model", "tokenizer.bin"};
  for (size_t i = 0; i < sizeof first / sizeof *first; ++i) {
    snprintf(path, sizeof path, "%.4000s/%s", folder, first[i]);
    if (stat(path, &info) == 0) return RAFTER_OK;
  }
  snprintf(path, sizeof path, "%.4000s/tokenizer.gguf", folder);
  RF_TRY(rf_gguf_open(path, &file, error));
  rf_status status = rf_tokenizer_gguf_copy(file, s->meta, error);
  s->has_tools_template = rf_gguf_value_find(file, TOOLS_TEMPLATE) != NULL;
  rf_gguf_close(file);
  s->has_tokenizer = status == RAFTER_OK;
  return status;
}

/* Adds the template of conversations with tools, under the keys that llama.cpp reads. */
static bool set_tools_template(rf_gguf_meta *meta, const char *template) {
  static const char name[] = "tool_use";
  const rf_gguf_text names = {name, sizeof name - 1};
  return rf_gguf_set_texts(meta, "tokenizer.chat_templates", &names, 1) &&
         rf_gguf_set_text(meta, TOOLS_TEMPLATE, template);
}

/* Adds the folder's chat templates to the metadata. They are added even if the vocabulary came from
 * a GGUF file. Then the file's template for tools is replaced too, even if the folder has only one
 * template. */
static rf_status add_template(rf_gguf_source *s, const char *path, rf_error *error) {
  char *template = NULL, *tools = NULL;
  RF_TRY(rf_chat_source(path, &template, &tools, error));
  bool kept = !template || rf_gguf_set_text(s->meta, "tokenizer.chat_template", template);
  const char *with_tools = tools ? tools : s->has_tools_template ? template : NULL;
  kept = kept && (!with_tools || set_tools_template(s->meta, with_tools));
  free(template);
  free(tools);
  return kept ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for the metadata of %s", path);
}

/* Adds the folder's tokenizer to the metadata. If GGUF cannot represent the tokenizer, sets
 * `note`. */
static rf_status add_tokenizer(rf_gguf_source *s, const char *path, rf_error *error) {
  rf_tokenizer *tokenizer = NULL;
  rf_error reason;
  snprintf(s->note, sizeof s->note, "%.300s has none", path);
  if (!rf_tokenizer_in(path)) return RAFTER_OK;
  RF_TRY(copy_vocabulary(s, path, error));
  if (s->has_tokenizer) return add_template(s, path, error);
  RF_TRY(rf_tokenizer_open(path, &tokenizer, error));
  rf_status status = rf_tokenizer_gguf_write(tokenizer, s->model.vocab, path, s->meta, &reason);
  /* Without tokenizer_config.json, only config.json gives the ids of BOS and EOS. */
  bool no_bos = rf_tokenizer_bos(tokenizer) < 0 && s->model.bos_id >= 0;
  bool no_eos = rf_tokenizer_eos(tokenizer) < 0 && s->model.eos_id >= 0;
  rf_tokenizer_close(tokenizer);
  s->has_tokenizer = status == RAFTER_OK;
  if (status == RAFTER_INVALID) return snprintf(s->note, sizeof s->note, "%s", reason.message), RAFTER_OK;
  if (status != RAFTER_OK) {
    if (error) *error = reason;
    return status;
  }
  bool kept =
      (!no_bos || rf_gguf_set_int(s->meta, "tokenizer.ggml.bos_token_id", RF_GGUF_U32, s->model.bos_id)) &&
      (!no_eos || rf_gguf_set_int(s->meta, "tokenizer.ggml.eos_token_id", RF_GGUF_U32, s->model.eos_id));
  return kept ? add_template(s, path, error)
              : RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for the metadata of %s", path);
}

static rf_status open_folder(rf_gguf_source *s, const char *path, rf_error *error) {
  rf_gguf_facts facts;
  rf_rope rope;
  char config[4200];
  snprintf(config, sizeof config, "%s/config.json", path);
  RF_TRY(rf_model_config_read(config, &s->model, error));
  RF_TRY(rf_gguf_facts_of(&s->model, &facts, error));
  RF_TRY(rf_run_check_weights(path, error));
  RF_TRY(rf_tensor_file_open(path, &s->folder, error));
  rf_params params = rf_model_params(&s->model, s->pool);
  size_t most = (size_t)params.count * RF_GGUF_PARTS + 1;
  s->tensor = rf_pool_alloc(s->pool, most * sizeof *s->tensor);
  s->origin = rf_pool_alloc(s->pool, most * sizeof *s->origin);
  rf_name first = rf_param_name(&s->model, &params.at[1], true);
  bool prefixed = rf_name_find(s->folder, first.part[0]) != NULL;
  for (int p = 0; p < params.count; ++p) {
    const char *kind = rf_param_row_name(params.at[p].row);
    const rf_gguf_name *row = rf_gguf_name_of(facts.arch, kind);
    rf_param slice = rf_param_slice(&params.at[p], 0);
    rf_name name = rf_param_name(&s->model, &slice, prefixed);
    if (!row || name.count > RF_GGUF_PARTS || !row->part[name.count - 1])
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: parameter \"%s\" cannot be stored in a GGUF file of %s",
                     path, params.at[p].name, facts.arch_name);
    for (int i = 0; i < name.count; ++i) RF_TRY(add_part(s, &facts, &params.at[p], row, i, prefixed, error));
  }
  rope = rf_model_rope(&s->model, 0);
  int64_t pairs = rope.dim / 2;
  if (facts.rope_freqs)
    add_tensor(s, "rope_freqs.weight", rf_quant_type_of(RF_Q_F32), 1, &pairs,
               (origin){.slices = 1, .rows = pairs, .columns = 1});
  if (!rf_gguf_facts_write(&facts, s->meta))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for the metadata of %s", path);
  return add_tokenizer(s, path, error);
}

/* Returns the row of the folder's tensor that becomes row `row` of the GGUF tensor. */
static int64_t source_row(const origin *o, int64_t row) {
  if (o->moved) {
    int64_t head = row / o->moved, e = row % o->moved;
    return head * o->moved + (e % 2 ? o->moved / 2 : 0) + e / 2; /* inverse of rf_gguf_permuted_row */
  }
  /* the result differs from `row` only if the rows are ordered by head */
  return rf_name_column(&o->name, 0, row);
}

static rf_status read_folder(const rf_gguf_source *s, const origin *o, int64_t first, int64_t count,
                             float *out, rf_error *error) {
  for (int64_t n; count > 0; count -= n, first += n, out += n) {
    int64_t slice = first / (o->columns * o->rows), row = first / o->columns % o->rows,
            column = first % o->columns;
    const rf_stored *stored = o->stored ? o->stored[slice] : NULL;
    n = o->columns - column < count ? o->columns - column : count;
    if (!stored) { /* the divisor is the plain frequency / the scaled frequency, and at least 1 */
      rf_rope scaled = rf_model_rope(&s->model, 0), plain = scaled;
      plain.scaling = RF_ROPE_PLAIN;
      *out = (float)(rf_rope_frequency(&plain, row) / rf_rope_frequency(&scaled, row));
    } else if (o->transposed) {
      n = 1;
      RF_TRY(rf_stored_read(stored, column * o->rows + row, 1, out, error));
    } else if (o->columns == 1 && !o->moved && o->name.order[0] == RF_NAME_PLAIN) { /* a vector, unchanged */
      n = count;
      RF_TRY(rf_stored_read(stored, first, n, out, error));
    } else {
      RF_TRY(rf_stored_read(stored, source_row(o, row) * o->columns + column, n, out, error));
    }
    for (int64_t i = 0; o->offset != 0 && i < n; ++i) out[i] += o->offset;
  }
  return RAFTER_OK;
}

/* ---- functions for all three kinds of sources ------------------------------------------------ */

rf_status rf_gguf_source_open(const char *path, rf_gguf_source **result, rf_error *error) {
  rf_status status = RAFTER_OK;
  struct stat info;
  rf_gguf_source *s = calloc(1, sizeof *s);
  if (s) s->meta = rf_gguf_meta_new();
  if (!s || !s->meta) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to open %s", path);
    goto done;
  }
  s->pool = rf_pool_new();
  bool filled = true;
  if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
    RF_GO(open_folder(s, path, error));
  } else if (rf_text_ends_with(path, ".bin")) {
    RF_GO(rf_llama2c_open(path, &s->llama2c, error));
    s->count = rf_llama2c_count(s->llama2c);
    filled = rf_gguf_facts_write(rf_llama2c_facts(s->llama2c), s->meta);
  } else if (rf_text_ends_with(path, ".gguf")) {
    RF_GO(rf_gguf_open(path, &s->gguf, error));
    s->count = rf_gguf_count(s->gguf);
    filled = rf_gguf_copy(s->meta, s->gguf);
  } else {
    status = RF_FAIL(error, RAFTER_FAILED,
                     "give a .gguf file, a llama2.c .bin file or a folder with config.json and safetensors",
                     "%s is not a model that can be converted", path);
  }
  /* Other programs expect the key tokenizer.ggml.model in every file. */
  if (!s->gguf && !s->has_tokenizer)
    filled = filled && rf_gguf_set_text(s->meta, "tokenizer.ggml.model", "none");
  if (!filled && status == RAFTER_OK)
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for the metadata of %s", path);
done:
  if (status == RAFTER_OK) *result = s;
  else rf_gguf_source_close(s);
  return status;
}

void rf_gguf_source_close(rf_gguf_source *s) {
  if (!s) return;
  rf_gguf_close(s->gguf);
  rf_llama2c_close(s->llama2c);
  rf_tensor_file_close(s->folder);
  if (s->pool) rf_pool_free(s->pool);
  rf_gguf_meta_free(s->meta);
  free(s);
}

rf_status rf_gguf_source_unchanged(const rf_gguf_source *s, rf_error *error) {
  return s->gguf      ? rf_gguf_unchanged(s->gguf, error)
         : s->llama2c ? rf_llama2c_unchanged(s->llama2c, error)
                      : rf_tensor_file_unchanged(s->folder, error);
}

rf_gguf_meta *rf_gguf_source_meta(rf_gguf_source *s) { return s->meta; }
bool rf_gguf_source_has_tokenizer(const rf_gguf_source *s) {
  return s->has_tokenizer || (s->gguf && rf_gguf_value_find(s->gguf, "tokenizer.ggml.tokens"));
}
const char *rf_gguf_source_note(const rf_gguf_source *s) {
  return *s->note ? s->note : "the source has no tokenizer that GGUF can represent";
}
int rf_gguf_source_count(const rf_gguf_source *s) { return s->count; }

const rf_quant_tensor *rf_gguf_source_at(const rf_gguf_source *s, int i) {
  if (s->gguf) return rf_gguf_at(s->gguf, i);
  if (s->llama2c) return rf_llama2c_at(s->llama2c, i);
  return i >= 0 && i < s->count ? &s->tensor[i] : NULL;
}

rf_status rf_gguf_source_read(const rf_gguf_source *s, int i, int64_t first, int64_t count, float *out,
                              rf_error *error) {
  if (!s->folder) return rf_quant_read(rf_gguf_source_at(s, i), first, count, out, error);
  if (first < 0 || count < 0 || first > s->tensor[i].count || count > s->tensor[i].count - first)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "tensor \"%.100s\" has %lld elements (expected to read %lld from element %lld on)",
                   s->tensor[i].name, (long long)s->tensor[i].count, (long long)count, (long long)first);
  return read_folder(s, &s->origin[i], first, count, out, error);
}
