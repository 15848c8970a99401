/* inspect.c - `rafter inspect FILE`: prints the contents of a model, plan, checkpoint, run, shard
 * or machine file. */
#define _GNU_SOURCE
#include "api/api.h"

#include "base/text.h"
#include "machine/tuned.h"
#include "model/adapter.h"
#include "formats/safetensors.h"
#include "train/checkpoint.h"
#include "train/shard.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool has(const char *folder, const char *name) {
  char path[4300];
  struct stat info;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return !stat(path, &info);
}

static rf_status inspect_tensors(const char *path, const rafter_sink *sink, json_t *json, rf_error *error) {
  rf_tensor_file *file = NULL;
  char a[32];
  int64_t bytes = 0, elements = 0;
  RF_TRY(rf_tensor_file_open(path, &file, error));
  json_t *list = json_array();
  for (int i = 0; i < rf_tensor_file_count(file); i++) {
    const rf_stored *t = rf_tensor_file_at(file, i);
    const char *dtype = t->dtype == RF_DTYPES ? "other" : rf_dtype_name(t->dtype);
    rf_inspect_tensor(sink, list, t->name, dtype, t->rank, t->shape, t->bytes);
    bytes += t->bytes;
    elements += t->count;
  }
  rf_say(sink, "%d tensors, %lld elements, %s\n", rf_tensor_file_count(file), (long long)elements,
         rf_text_bytes((double)bytes, a));
  json_object_update_new(json, json_pack("{so sI sI}", "tensors", list, "elements", (json_int_t)elements,
                                         "bytes", (json_int_t)bytes));
  rf_tensor_file_close(file);
  return RAFTER_OK;
}

static rf_status inspect_model(const char *path, const rafter_sink *sink, json_t *json, rf_error *error) {
  rf_model m;
  RF_TRY(rf_model_resolve(path, &m, NULL, error));
  rf_pool *pool = rf_pool_new();
  rf_params p = rf_model_params(&m, pool);
  rf_say(sink,
         "%s: %s, %lld layers, width %lld, %lld heads of %lld (%lld for keys and values), feed-forward %lld, "
         "vocabulary %lld, %lld positions\n",
         m.name, rf_family_name(m.family), (long long)m.layers, (long long)m.width, (long long)m.heads,
         (long long)m.head_dim, (long long)m.kv_heads, (long long)m.ff, (long long)m.vocab,
         (long long)m.max_seq);
  char total[32], products[32], tables[32];
  rf_say(sink, "%s parameters (%s in matrix products, %s in tables), %s head\n",
         rf_text_whole(p.total, total), rf_text_whole(p.matmul, products), rf_text_whole(p.embedding, tables),
         m.tied ? "tied" : "own");
  json_object_update_new(json, json_pack("{ss ss sI sI sI sI}", "kind", "model", "name", m.name, "layers",
                                         (json_int_t)m.layers, "width", (json_int_t)m.width, "vocab",
                                         (json_int_t)m.vocab, "parameters", (json_int_t)p.total));
  rf_pool_free(pool);
  return RAFTER_OK;
}

static rf_status inspect_machine(const char *path, const json_t *content, const rafter_sink *sink,
                                 json_t *json, rf_error *error) {
  char a[32], old[200];
  rf_machine *m = calloc(1, sizeof *m);
  if (!m) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading %s", path);
  rf_status status = rf_machine_read(path, m, error);
  if (status == RAFTER_OK) {
    rf_say(sink,
           "machine %s (%s%s%s), %d threads, %s of memory: f32 %.0f GFLOP/s, read %.1f GB/s, %d curves\n%s\n",
           m->name, rf_machine_kind_name(m->kind), m->isa[0] ? ", " : "", m->isa, m->threads,
           rf_text_bytes(m->memory_bytes, a), m->flops[RF_F32] * 1e-9, m->read_bps * 1e-9, m->curve_count,
           m->source_note);
    if (rf_machine_old_calibration(m, old) || rf_machine_busy_calibration(m, old))
      rf_note(sink, "notice: %s\n", old);
    if (m->tuned.cpu[0]) rf_say_tuned(sink, &m->tuned);
    else rf_say(sink, "no block sizes were tuned: `rafter calibrate --tune` tunes them\n");
    json_object_set_new(json, "kind", json_string("machine"));
    json_object_set_new(json, "tuned", m->tuned.cpu[0] ? rf_tuned_json(&m->tuned) : json_null());
    json_object_set_new(json, "tuned_here", json_boolean(m->tuned.here));
    json_object_set(json, "content", (json_t *)content);
  }
  free(m);
  return status;
}

static rf_status inspect_json(const char *path, const rafter_sink *sink, json_t *json, rf_error *error) {
  json_t *content = NULL;
  RF_TRY(rf_json_read(path, (size_t)256 << 20, &content, error));
  const char *format = json_string_value(json_object_get(content, "format"));
  if (format && !strcmp(format, RF_MACHINE_FORMAT)) {
    rf_status status = inspect_machine(path, content, sink, json, error);
    json_decref(content);
    return status;
  }
  char *text = rf_json_text(content, 1);
  if (text && strlen(text) < 1 << 16) {
    rf_say_text(sink, text);
    rf_say(sink, "\n");
  } else {
    rf_say(sink, "%s: JSON, %zu bytes\n", path, text ? strlen(text) : 0);
    free(text);
  }
  json_object_set_new(json, "kind", json_string("json"));
  json_object_set_new(json, "content", content);
  return RAFTER_OK;
}

static rf_status inspect_shard(const char *path, const rafter_sink *sink, json_t *json, rf_error *error) {
  rf_shard s;
  RF_TRY(rf_shard_open(path, &s, error));
  rf_say(sink, "%s: token shard, %lld tokens of %d bytes, ids below %lld, %lld document%s%s\n", path,
         (long long)s.tokens, s.token_bytes, (long long)s.vocab, (long long)s.documents,
         rf_plural(s.documents), s.mask_byte ? ", with a loss mask" : "");
  json_object_update_new(json, json_pack("{ss sI sI sI sb}", "kind", "shard", "tokens", (json_int_t)s.tokens,
                                         "vocab", (json_int_t)s.vocab, "documents", (json_int_t)s.documents,
                                         "loss_mask", s.mask_byte != 0));
  rf_status status = rf_shard_scan(&s, s.vocab, NULL, error);
  rf_shard_close(&s);
  return status;
}

/* Returns the bytes of all files in a folder and its subfolders, down to level `depth`. */
static int64_t folder_bytes(const char *path, int depth) {
  char file[4400];
  struct stat info;
  int64_t bytes = 0;
  DIR *folder = opendir(path);
  for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    snprintf(file, sizeof file, "%.4000s/%.300s", path, entry->d_name);
    if (lstat(file, &info)) continue;
    if (S_ISREG(info.st_mode)) bytes += info.st_size;
    else if (S_ISDIR(info.st_mode) && depth > 1) bytes += folder_bytes(file, depth - 1);
  }
  if (folder) closedir(folder);
  return bytes;
}

/* Prints steps, losses and rate of a training run, and the size of the run's folder. */
static void say_run(const char *path, const rafter_sink *sink, json_t *json) {
  static const struct {
    const char *key, *before, *after;
    char *(*text)(double, char[32]);
  } FIGURES[] = {{"steps", "", " steps", rf_text_count},
                 {"loss", ", loss ", "", rf_text_number},
                 {"val_loss", ", validation loss ", "", rf_text_number},
                 {"reward", ", reward ", "", rf_text_number},
                 {"best_eval_reward", ", best evaluation ", "", rf_text_number},
                 {"tokens", ", ", " tokens", rf_text_count},
                 {"tokens_per_second", ", median ", " tokens/s", rf_text_count}};
  json_t *last = rf_runs_last_steps(path), *value;
  char text[32];
  int64_t bytes = folder_bytes(path, 2);
  for (size_t i = 0; i < sizeof FIGURES / sizeof *FIGURES; i++)
    if (json_is_number(value = json_object_get(last, FIGURES[i].key)))
      rf_say(sink, "%s%s%s", FIGURES[i].before, FIGURES[i].text(json_number_value(value), text),
             FIGURES[i].after);
  rf_say(sink, "%s%s in its folder\n", last ? "; " : "", rf_text_bytes((double)bytes, text));
  json_object_set_new(json, "last", last ? last : json_null());
  json_object_set_new(json, "bytes", json_integer((json_int_t)bytes));
}

static rf_status inspect_run(const char *path, const rafter_sink *sink, json_t *json, rf_error *error) {
  char newest[4096], file[4300];
  json_t *run = NULL;
  snprintf(file, sizeof file, "%s/run.json", path);
  RF_TRY(rf_json_read(file, 1 << 20, &run, error));
  bool resumable = rf_checkpoint_newest(path, newest, NULL) == RAFTER_OK;
  json_t *options = json_object_get(run, "options");
  rf_say(sink, "run of %s on %s; %s%s\n",
         json_string_value(json_object_get(options, "model"))
             ? json_string_value(json_object_get(options, "model"))
             : "?",
         json_string_value(json_object_get(run, "machine")),
         resumable ? "newest checkpoint " : "no complete checkpoint", resumable ? newest : "");
  json_object_update_new(
      json, json_pack("{ss so ss?}", "kind", "run", "run", run, "checkpoint", resumable ? newest : NULL));
  say_run(path, sink, json);
  return RAFTER_OK;
}

static rf_status inspect_adapter(const char *path, const rafter_sink *sink, json_t *json, rf_error *error) {
  char base[4096], file[4300];
  json_t *config = NULL;
  int64_t rank = 0;
  double alpha = 0;
  RF_TRY(rf_adapter_base(path, base, error));
  snprintf(file, sizeof file, "%s/adapter_config.json", path);
  RF_TRY(rf_json_read(file, 1 << 20, &config, error));
  rf_status status = rf_json_int(config, "r", file, 1, 1024, &rank, error);
  if (status == RAFTER_OK) status = rf_json_float(config, "lora_alpha", file, 1e-6, 1e6, &alpha, error);
  json_decref(config);
  RF_TRY(status);
  rf_say(sink, "adapter of rank %lld, alpha %g, for %s\n", (long long)rank, alpha, base);
  json_object_update_new(json, json_pack("{ss ss sI sf}", "kind", "adapter", "base", base, "rank",
                                         (json_int_t)rank, "alpha", alpha));
  snprintf(file, sizeof file, "%s/adapter_model.safetensors", path);
  return inspect_tensors(file, sink, json, error);
}

static rf_status rf_command_inspect(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  const char *path = rf_options_argument(job->options, 0);
  struct stat info;
  rf_status status;
  if (!path)
    return RF_FAIL(error, RAFTER_INVALID, "for example `rafter inspect model.safetensors`",
                   "which file? (FILE is missing)");
  json_t *json = json_pack("{ss ss}", "command", "inspect", "path", path);
  bool there = !stat(path, &info), folder = there && S_ISDIR(info.st_mode);
  bool adapter = folder && rf_adapter_is(path);
  if (folder && !adapter && !has(path, "run.json") && !has(path, "config.json"))
    status = RF_FAIL(
        error, RAFTER_FAILED, "give the folder of a run or of a model, or one file",
        "%s is neither a run nor a model (expected run.json, config.json or adapter_config.json in it)",
        path);
  else if (folder && has(path, "run.json")) status = inspect_run(path, sink, json, error);
  else if (folder) {
    status = adapter ? inspect_adapter(path, sink, json, error) : inspect_model(path, sink, json, error);
    if (status == RAFTER_OK && (has(path, "model.safetensors") || has(path, "model.safetensors.index.json")))
      status = inspect_tensors(path, sink, json, error);
    if (status == RAFTER_OK && has(path, "state.json")) {
      rf_say(sink, "checkpoint: %s\n", has(path, "DONE") ? "complete" : "INCOMPLETE, DONE is missing");
      json_object_set_new(json, "complete", json_boolean(has(path, "DONE")));
    }
  } else if (rf_text_ends_with(path, ".safetensors") || rf_text_ends_with(path, ".index.json"))
    status = inspect_tensors(path, sink, json, error);
  else if (rf_text_ends_with(path, ".json")) status = inspect_json(path, sink, json, error);
  else if (rf_text_ends_with(path, ".shard")) status = inspect_shard(path, sink, json, error);
  else if (rf_text_ends_with(path, ".gguf") || rf_text_ends_with(path, ".bin")) {
    status = rf_inspect_blocks(path, sink, json, error);
    rf_model known; /* for an unknown architecture, the model's shape is not printed */
    if (status == RAFTER_OK && rf_model_resolve(path, &known, NULL, NULL) == RAFTER_OK)
      status = inspect_model(path, sink, json, error);
  } else if (there)
    status = RF_FAIL(error, RAFTER_FAILED, "rename it to end in .safetensors, .gguf, .shard or .json",
                     "inspect does not recognise the name of %s", path);
  /* the name of a preset, or a shape such as gpt:layers=4 */
  else status = inspect_model(path, sink, json, error);
  if (status == RAFTER_OK) rf_put_json(sink, json);
  else json_decref(json);
  return status;
}

const rf_command RF_COMMAND_INSPECT = {
    RF_COMMAND_HEAD("inspect", "FILE", 1, 1, "Look",
                    "Print what is in a model, plan, checkpoint, machine file or run."),
    .options = {RF_TABLE(RF_EVERY_OPTIONS)}, .examples = {"inspect model.gguf", "inspect runs/3 --json"},
    .run = rf_command_inspect};
