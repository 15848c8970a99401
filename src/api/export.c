/* export.c - `rafter export MODEL OUT`: writes a model, or the newest checkpoint of a run, as a
 * file or folder for other programs. */
#define _GNU_SOURCE
#include "api/api.h"
#include "base/file.h"
#include "base/partial.h"
#include "base/text.h"
#include "formats/quant.h"
#include "model/adapter.h"
#include "text/tokenizer.h"
#include "model/weights.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct export {
  const rafter_sink *sink;
  rf_model model;
  rf_params params;
  rf_weights_form form;
  /* `from`: file or folder of the weights. `folder`: the folder of config.json and the tokenizer;
   * "" if `from` is a single file. */
  char from[4096], folder[4096];
  rf_weights_writer *writer;
  rf_merger *merger; /* adapters to merge into the weights or to export alone; NULL: none */
  float *merged;     /* (room): sums of base weights and adapter products */
  int64_t room;
  int64_t values;
  int files, tokenizer_files;
}
export;

/* ---- the model ------------------------------------------------------------------------------- */

static bool has(const char *folder, const char *name) {
  char path[4300];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return access(path, R_OK) == 0;
}

static rf_status find_model(export *e, const char *name, rf_error *error) {
  struct stat info;
  RF_TRY(rf_model_resolve(name, &e->model, e->from, error));
  if (!*e->from)
    return RF_FAIL(error, RAFTER_INVALID,
                   "name a run, a folder with config.json and safetensors, a .gguf or a .bin file",
                   "%s is a shape without weights", name);
  if (!stat(e->from, &info) && S_ISDIR(info.st_mode)) {
    snprintf(e->folder, sizeof e->folder, "%s", e->from);
  } else if (rf_text_ends_with(e->from, ".safetensors")) {
    char *slash = strrchr(strcpy(e->folder, e->from), '/');
    if (slash) slash[slash == e->folder] = 0;
    else strcpy(e->folder, ".");
  }
  return RAFTER_OK;
}

static rf_dtype dtype_of(const rf_options *o, rf_dtype stored) {
  /* dtypes in the order of the choices of --dtype */
  static const rf_dtype dtypes[] = {RF_F32, RF_BF16, RF_F16};
  return rf_options_is_set(o, "dtype") ? dtypes[rf_options_choice(o, "dtype")] : stored;
}

/* ---- files of the folder ----------------------------------------------------------------- */

/* Counts `count` more written values, and reports the progress. */
static rf_status tell(export *e, int param, int64_t count, rf_error *error) {
  if (rf_asked_to_stop(e->sink))
    return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal; nothing was written");
  e->values += count;
  if (e->params.total > 1 << 26)
    rf_put_bar(e->sink, "exporting %s  %.0f %%", e->params.at[param].name,
               100 * (double)e->values / (double)e->params.total);
  return RAFTER_OK;
}

static rf_status put_tensor(void *context, int param, int part, const void *data, int64_t bytes,
                            rf_error *error) {
  export *e = context;
  RF_TRY(tell(e, param, bytes / rf_dtype_bytes(e->form.dtype), error));
  return rf_weights_writer_put_part(e->writer, param, part, data, bytes, error);
}

static rf_status put_values(void *context, int param, int64_t first, int64_t count, const float *values,
                            rf_error *error) {
  export *e = context;
  RF_TRY(tell(e, param, count, error));
  if (!e->merger) return rf_weights_writer_put(e->writer, param, first, count, values, error);
  if (count > e->room) {
    float *grown = realloc(e->merged, (size_t)count * sizeof *grown);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    e->merged = grown;
    e->room = count;
  }
  memcpy(e->merged, values, (size_t)count * sizeof *values);
  rf_merger_add(e->merger, param, first, count, e->merged);
  return rf_weights_writer_put(e->writer, param, first, count, e->merged, error);
}

static rf_status write_weights(export *e, const char *out, rf_error *error) {
  RF_TRY(rf_weights_writer_open(out, &e->model, &e->params, &e->form, &e->writer, error));
  e->files = rf_weights_writer_files(e->writer);
  rf_status status = RAFTER_OK;
  bool copied = false;
  if (!e->merger)
    status = rf_weights_copy(e->from, &e->model, &e->params, e->form.dtype, put_tensor, e, &copied, error);
  if (status == RAFTER_OK && !copied)
    status = rf_weights_read(e->from, &e->model, &e->params, put_values, e, error);
  rf_weights_writer *writer = e->writer;
  e->writer = NULL;
  if (status == RAFTER_OK) return rf_weights_writer_commit(writer, error);
  rf_weights_writer_discard(writer);
  return status;
}

/* Copies the source's config.json and changes the dtype. Writes a new config.json if the source has
 * none, or if the model's shape is only in its "text_config". */
static rf_status write_config(const export *e, const char *out, rf_error *error) {
  static const char *const keys[] = {"torch_dtype", "dtype"};
  char path[4400];
  json_t *json = NULL;
  if (*e->folder) {
    snprintf(path, sizeof path, "%s/config.json", e->folder);
    RF_TRY(rf_json_read(path, 4 << 20, &json, error));
  }
  snprintf(path, sizeof path, "%s/config.json", out);
  if (!json || json_object_get(json, "text_config")) {
    json_decref(json);
    return rf_model_config_write(&e->model, e->form.dtype, path, error);
  }
  const char *name = e->form.dtype == RF_BF16 ? "bfloat16" : e->form.dtype == RF_F16 ? "float16" : "float32";
  for (int i = 0; i < 2; i++)
    if (json_object_get(json, keys[i]) || (i == 0 && !json_object_get(json, keys[1])))
      json_object_set_new(json, keys[i], json_string(name));
  json_object_del(json, "quantization_config"); /* the exported values are not quantized */
  rf_status status = rf_json_write(path, json, 2, error);
  json_decref(json);
  return status;
}

/* If the source has no generation_config.json, writes one with the BOS and EOS ids. */
static rf_status write_generation(const export *e, const char *out, rf_error *error) {
  char path[4400];
  if (has(out, "generation_config.json") || (e->model.bos_id < 0 && e->model.eos_id < 0)) return RAFTER_OK;
  json_t *json = json_object();
  if (e->model.bos_id >= 0) json_object_set_new(json, "bos_token_id", json_integer(e->model.bos_id));
  if (e->model.eos_id >= 0) json_object_set_new(json, "eos_token_id", json_integer(e->model.eos_id));
  json_t *config = NULL; /* may have a list of ids */
  snprintf(path, sizeof path, "%s/config.json", out);
  if (rf_json_read(path, 4 << 20, &config, NULL) == RAFTER_OK &&
      json_is_array(json_object_get(config, "eos_token_id")))
    json_object_set(json, "eos_token_id", json_object_get(config, "eos_token_id"));
  json_decref(config);
  snprintf(path, sizeof path, "%s/generation_config.json", out);
  rf_status status = rf_json_write(path, json, 2, error);
  json_decref(json);
  return status;
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* Fails if the parent folder does not exist, because the user probably mistyped the path. */
static rf_status check_parent(const char *out, rf_error *error) {
  char copy[4096];
  struct stat info;
  snprintf(copy, sizeof copy, "%s", out);
  const char *parent = dirname(copy);
  if (!stat(parent, &info) && S_ISDIR(info.st_mode)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "make the folder first, or choose another OUT",
                 "cannot write %s (the folder %s does not exist)", out, parent);
}

static rf_status check_out(const char *out, rf_error *error) {
  DIR *folder = opendir(out);
  if (!folder && access(out, F_OK)) return check_parent(out, error);
  int entries = 0;
  while (folder && entries < 3 && readdir(folder)) entries++;
  if (folder) closedir(folder);
  if (folder && entries < 3) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "choose another OUT, or remove this one", "%s exists already", out);
}

static rf_status fill_model(export *e, const char *part, rf_error *error) {
  RF_TRY(write_weights(e, part, error));
  RF_TRY(write_config(e, part, error));
  RF_TRY(rf_tokenizer_files_copy(e->from, part, &e->tokenizer_files, error));
  return write_generation(e, part, error);
}

/* Writes only the adapters, in PEFT's format. */
static rf_status fill_adapter(export *e, const char *part, rf_error *error) {
  char base[4096];
  if (!realpath(e->from, base)) snprintf(base, sizeof base, "%s", e->from);
  return rf_adapter_write(part, &e->model, &e->params, base, rf_merger_values, e->merger, error);
}

static rf_status export_folder(export *e, const char *out,
                               rf_status (*fill)(export *e, const char *part, rf_error *error),
                               rf_error *error) {
  rf_status status = RAFTER_OK;
  char part[4096];
  RF_TRY(rf_make_sibling_folder(out, part, sizeof part, error));
  RF_GO(fill(e, part, error));
  if (rename(part, out))
    status = RF_FAIL(error, RAFTER_FAILED, "choose another name", "cannot name the folder %s (%s)", out,
                     strerror(errno));
done:
  if (status != RAFTER_OK) rf_remove_folder(part);
  rf_partial_done_folder(part);
  return status;
}

/* Fails, before writing anything, if the disk of OUT has too little space. `copies`: bytes of
 * copies that are removed at the end. */
static rf_status check_space(const export *e, const char *out, int64_t copies, rf_error *error) {
  int64_t bytes = e->params.total * rf_dtype_bytes(e->form.dtype) + copies;
  double room = rf_out_room(out);
  char need[32], have[32], copy[32], hint[160] = "free some space, or choose an OUT on another disk";
  if (room >= (double)bytes) return RAFTER_OK;
  if (copies)
    rf_text_append(hint, sizeof hint, "; the merged model is first written next to OUT in f32 (%s)",
                   rf_text_bytes((double)copies, copy));
  return RF_FAIL(error, RAFTER_FAILED, hint, "not enough disk space for %s (expected %s or more, got %s)",
                 out, rf_text_bytes((double)bytes, need), rf_text_bytes(room, have));
}

/* The storage type of most weights of MODEL. NULL: MODEL is not quantized. */
static const rf_quant_type *quantized_as(const export *e) {
  enum { NUMBERS = 256 };
  int64_t values[NUMBERS] = {0};
  int most = 0;
  rf_weight_types *types = malloc(sizeof *types);
  if (types && rf_weight_types_read(e->from, &e->model, RF_WEIGHTS_FILE, types, NULL) == RAFTER_OK)
    for (int p = 0; p < types->count && p < e->params.count; p++)
      values[types->at[p][0]] += e->params.at[p].count;
  free(types);
  for (int n = 1; n < NUMBERS; n++)
    if (values[n] > values[most]) most = n;
  const rf_quant_type *type = rf_quant_type_of(most);
  return type && values[most] && type->values > 1 && type->quantize ? type : NULL;
}

/* If MODEL is quantized, OUT is larger. Says how to make OUT smaller. */
static void note_size(const export *e, rf_dtype dtype, const char *out) {
  struct stat info;
  const rf_quant_type *type = quantized_as(e);
  double bytes = (double)e->params.total * (double)rf_dtype_bytes(dtype);
  if (!type || stat(e->from, &info) || bytes < 1.5 * (double)info.st_size) return;
  rf_note(e->sink,
          "notice: the weights of OUT are %s, so OUT has %.1f x the bytes of MODEL, whose weights are %s; "
          "`rafter quantize %s small.gguf --weights %s` makes it smaller\n",
          rf_dtype_name(dtype), bytes / (double)info.st_size, type->name, out, type->name);
}

static rf_status export_safetensors(export *e, const rf_options *o, const char *out, rf_error *error) {
  double begin = rf_now_seconds();
  char size[32];
  RF_TRY(check_out(out, error));
  RF_TRY(rf_weights_form_of(e->from, &e->model, &e->params, &e->form, error));
  e->form.dtype = dtype_of(o, e->form.dtype);
  e->form.file_bytes = rf_options_int(o, "shard-size");
  RF_TRY(check_space(e, out, 0, error));
  RF_TRY(export_folder(e, out, fill_model, error));
  int64_t bytes = e->params.total * rf_dtype_bytes(e->form.dtype);
  double seconds = rf_now_seconds() - begin;
  char count[32];
  rf_say(e->sink, "%s: %s parameters in %s, %s in %d file%s, %.1f s\n", out,
         rf_text_whole(e->params.total, count), rf_dtype_name(e->form.dtype),
         rf_text_bytes((double)bytes, size), e->files, rf_plural(e->files), seconds);
  note_size(e, e->form.dtype, out);
  if (e->tokenizer_files == 0) rf_say(e->sink, "%s has no tokenizer to copy\n", e->from);
  rf_put_json(e->sink,
              json_pack("{ss ss ss ss ss sI sI si si sf}", "command", "export", "model", e->from, "out", out,
                        "format", "safetensors", "dtype", rf_dtype_name(e->form.dtype), "parameters",
                        (json_int_t)e->params.total, "bytes", (json_int_t)bytes, "files", e->files,
                        "tokenizer_files", e->tokenizer_files, "seconds", seconds));
  return RAFTER_OK;
}

static rf_status export_adapter(export *e, const rf_options *o, const char *out, rf_error *error) {
  if (rf_options_is_set(o, "dtype") && strcmp(rf_options_text(o, "dtype"), "f32"))
    return RF_FAIL(error, RAFTER_INVALID, "leave --dtype out, or add --merge",
                   "adapters alone are written in f32 (--dtype %s)", rf_options_text(o, "dtype"));
  RF_TRY(check_out(out, error));
  RF_TRY(export_folder(e, out, fill_adapter, error));
  int64_t bytes = e->params.adapter * 4;
  char count[32];
  rf_say(e->sink, "%s: adapters of rank %d, %s parameters; --merge adds them to the weights\n", out,
         e->model.lora.rank, rf_text_whole(e->params.adapter, count));
  rf_put_json(e->sink, json_pack("{ss ss ss ss si sI sI}", "command", "export", "model", e->from, "out", out,
                                 "format", "adapter", "rank", e->model.lora.rank, "parameters",
                                 (json_int_t)e->params.adapter, "bytes", (json_int_t)bytes));
  return RAFTER_OK;
}

/* First writes the merged model as an f32 folder next to OUT, so that values are rounded only
 * once. */
static rf_status export_merged_gguf(export *e, const rf_options *o, const char *out, const char *type,
                                    rf_error *error) {
  char part[4096];
  RF_TRY(check_space(e, out, e->params.total * rf_dtype_bytes(RF_F32), error));
  e->form.dtype = RF_F32;
  e->form.file_bytes = rf_options_int(o, "shard-size");
  RF_TRY(rf_make_sibling_folder(out, part, sizeof part, error));
  rf_status status = fill_model(e, part, error);
  if (status == RAFTER_OK)
    status = rf_write_gguf(part, e->from, e->model.name, out, type, omp_get_max_threads(), e->sink, error);
  rf_remove_folder(part);
  rf_partial_done_folder(part);
  return status;
}

static rf_status export_gguf(export *e, const rf_options *o, const char *out, rf_error *error) {
  RF_TRY(check_out(out, error));
  RF_TRY(rf_weights_form_of(e->from, &e->model, &e->params, &e->form, error));
  const char *type = rf_options_text_or(o, "dtype", rf_dtype_name(e->form.dtype));
  const rf_dtype dtype = e->form.dtype = dtype_of(o, e->form.dtype);
  if (e->merger) RF_TRY(export_merged_gguf(e, o, out, type, error));
  else RF_TRY(rf_write_gguf(e->from, e->from, NULL, out, type, omp_get_max_threads(), e->sink, error));
  note_size(e, dtype, out);
  return RAFTER_OK;
}

/* Without --format, the name of OUT decides the format. */
static rf_status choose_format(const rf_options *o, const char *out, bool *gguf, rf_error *error) {
  bool named = rf_text_ends_with(out, ".gguf"), given = rf_options_given(o, "format");
  *gguf = given ? !strcmp(rf_options_text(o, "format"), "gguf") : named;
  if (named && !*gguf)
    return RF_FAIL(error, RAFTER_INVALID, "leave --format out, or choose another OUT",
                   "--format safetensors writes a folder, but OUT is named like a file (%s)", out);
  return RAFTER_OK;
}

/* Opens the adapter that --adapter or MODEL names. With --merge, the exported model has no
 * adapter. */
static rf_status find_adapter(export *e, const rf_options *o, bool gguf, rf_error *error) {
  bool merge = rf_options_flag(o, "merge");
  if (rf_options_is_set(o, "adapter")) {
    rf_lora lora;
    if (e->model.lora.rank > 0)
      return RF_FAIL(error, RAFTER_INVALID, "give the adapter's base model as MODEL",
                     "MODEL is an adapter already (%s)", e->model.lora.folder);
    RF_TRY(rf_adapter_open(rf_options_text(o, "adapter"), &e->model, &lora, error));
    e->model.lora = lora;
  }
  if (e->model.lora.rank == 0)
    return merge ? RF_FAIL(error, RAFTER_INVALID, "give --adapter DIR, or the folder of an adapter as MODEL",
                           "--merge has nothing to merge")
                 : RAFTER_OK;
  if (gguf && !merge)
    return RF_FAIL(error, RAFTER_INVALID, "add --merge, or give OUT a name without .gguf",
                   "adapters alone are written as safetensors only");
  RF_TRY(rf_merger_open(&e->model, &e->merger, error));
  if (merge) e->model.lora = (rf_lora){0};
  return RAFTER_OK;
}

static rf_status rf_command_export(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  const rf_options *o = job->options;
  const char *in = rf_options_argument(o, 0), *out = rf_options_argument(o, 1);
  if (!in || !out)
    return RF_FAIL(error, RAFTER_INVALID, "for example `rafter export runs/ID model`",
                   "export needs MODEL and OUT");
  export *e = calloc(1, sizeof *e);
  rf_pool *pool = rf_pool_new();
  if (!e) {
    rf_pool_free(pool);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  }
  e->sink = sink;
  bool gguf = false;
  rf_status status = choose_format(o, out, &gguf, error);
  if (status == RAFTER_OK) status = find_model(e, in, error);
  if (status == RAFTER_OK) status = find_adapter(e, o, gguf, error);
  if (status == RAFTER_OK) {
    e->params = rf_model_params(&e->model, pool);
    if (gguf) status = export_gguf(e, o, out, error);
    else
      status =
          e->model.lora.rank > 0 ? export_adapter(e, o, out, error) : export_safetensors(e, o, out, error);
  }
  rf_pool_free(pool);
  rf_merger_close(e->merger);
  free(e->merged);
  free(e);
  return status;
}

static const rf_option EXPORT[] = {
    RF_CHOICE("format", "safetensors|gguf", "safetensors", "Output",
              "safetensors: OUT is a folder in Hugging Face's layout; gguf: OUT is a .gguf file (the default "
              "if OUT ends in .gguf)"),
    RF_CHOICE("dtype", "f32|bf16|f16", NULL, "Output",
              "dtype of the values; unset: the stored dtype if --dtype accepts it, otherwise f32 (adapters "
              "alone: f32)"),
    RF_WORDS("shard-size", SIZE, "BYTES", "5GB", "Output",
             "maximum size of a safetensors file; larger models are split into files with an index"),
    RF_WORDS("adapter", PATH, "DIR", NULL, "Model",
             "PEFT adapter to write alone, or to add to the weights with --merge"),
    RF_FLAG(
        "merge", "Model",
        "add the adapter to the weights and write the complete model; for a .gguf file, the disk also needs "
        "space for a temporary copy in f32"),
    {.name = NULL},
};

const rf_command RF_COMMAND_EXPORT = {
    RF_COMMAND_HEAD("export", "MODEL OUT", 2, 2, "Files",
                    "Write a model, or the newest checkpoint of a run, for other programs."),
    .options = {RF_TABLE(EXPORT), RF_TABLE(RF_EVERY_OPTIONS)},
    .examples = {"export runs/3 my-model --dtype bf16 # a folder that transformers loads",
                 "export models/org/name merged --adapter runs/4 --merge # weights with their adapter"},
    .run = rf_command_export};
