/* test_weights.c - tests weights of other programs: they are read by name, transposed and fused,
 * and written so that they read the same. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/json.h"
#include "formats/safetensors.h"
#include "formats/shards.h"
#include "model/weights.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/scratch.h"
#include "support/params.h"

/* All parameters of a model in memory. */
typedef struct store {
  rf_model model;
  rf_pool *pool;
  rf_params params;
  float **value;
  int64_t *next; /* elements of each parameter so far; chunks must follow each other */
  int last;
} store;

static store *store_new(const rf_model *model) {
  store *s = calloc(1, sizeof *s);
  s->model = *model;
  s->pool = rf_pool_new();
  s->params = rf_model_params(model, s->pool);
  s->value = calloc((size_t)s->params.count, sizeof *s->value);
  s->next = calloc((size_t)s->params.count, sizeof *s->next);
  for (int i = 0; i < s->params.count; ++i)
    s->value[i] = calloc((size_t)s->params.at[i].count, sizeof(float));
  return s;
}

static void store_free(store *s) {
  for (int i = 0; i < s->params.count; ++i) free(s->value[i]);
  rf_pool_free(s->pool);
  free(s->value);
  free(s->next);
  free(s);
}

static rf_status take(void *context, int param, int64_t first, int64_t count, const float *values,
                      rf_error *error) {
  (void)error;
  store *s = context;
  assert_true(param >= s->last && first == s->next[param] && first + count <= s->params.at[param].count);
  s->last = param;
  s->next[param] += count;
  memcpy(s->value[param] + first, values, (size_t)count * sizeof *values);
  return RAFTER_OK;
}

static rf_status give(void *context, int param, int64_t first, int64_t count, float *values,
                      rf_error *error) {
  (void)error;
  const store *s = context;
  assert_true(first >= 0 && first + count <= s->params.at[param].count);
  memcpy(values, s->value[param] + first, (size_t)count * sizeof *values);
  return RAFTER_OK;
}

static store *read_folder(const char *path, rf_error *error) {
  rf_model model;
  if (rf_model_resolve(path, &model, NULL, error) != RAFTER_OK) return NULL;
  store *s = store_new(&model);
  if (rf_weights_read(path, &s->model, &s->params, take, s, error) != RAFTER_OK) {
    store_free(s);
    return NULL;
  }
  for (int i = 0; i < s->params.count; ++i) assert_int_equal(s->next[i], s->params.at[i].count);
  return s;
}

/* Compares our values with the file's. Index arithmetic that shares nothing with the reader splits
 * and transposes them. */
static void compare_with_file(const store *s, const char *path) {
  rf_tensor_file *file;
  assert_int_equal(rf_tensor_file_open(path, &file, NULL), RAFTER_OK);
  const rf_model *m = &s->model;
  int64_t q = m->heads * m->head_dim, k = m->kv_heads * m->head_dim, compared = 0;
  for (int i = 0; i < rf_tensor_file_count(file); ++i) {
    const rf_stored *t = rf_tensor_file_at(file, i);
    char ours[128] = "";
    int64_t column = 0, layer = 0;
    bool transposed = false;
    if (m->family == RF_FAMILY_GPT) {
      static const char *const map[][2] = {
          {"ln_1.weight", "attn/norm/gain"},         {"ln_1.bias", "attn/norm/bias"},
          {"ln_2.weight", "mlp/norm/gain"},          {"ln_2.bias", "mlp/norm/bias"},
          {"attn.c_attn.weight", "attn/qkv/weight"}, {"attn.c_attn.bias", "attn/qkv/bias"},
          {"attn.c_proj.weight", "attn/out/weight"}, {"attn.c_proj.bias", "attn/out/bias"},
          {"mlp.c_fc.weight", "mlp/up/weight"},      {"mlp.c_fc.bias", "mlp/up/bias"},
          {"mlp.c_proj.weight", "mlp/down/weight"},  {"mlp.c_proj.bias", "mlp/down/bias"}};
      char rest[100];
      if (sscanf(t->name, "transformer.h.%ld.%99s", &layer, rest) == 2)
        for (size_t j = 0; j < sizeof map / sizeof map[0]; ++j)
          if (strcmp(rest, map[j][0]) == 0) snprintf(ours, sizeof ours, "block.%d/%s", (int)layer, map[j][1]);
      if (strcmp(t->name, "transformer.wte.weight") == 0) strcpy(ours, "embed/token/weight");
      if (strcmp(t->name, "transformer.wpe.weight") == 0) strcpy(ours, "embed/position/weight");
      if (strcmp(t->name, "transformer.ln_f.weight") == 0) strcpy(ours, "final/norm/gain");
      if (strcmp(t->name, "transformer.ln_f.bias") == 0) strcpy(ours, "final/norm/bias");
    } else {
      const struct {
        const char *theirs, *mine;
        int64_t column;
      } map[] = {{"input_layernorm.weight", "attn/norm/gain", 0},
                 {"post_attention_layernorm.weight", "mlp/norm/gain", 0},
                 {"self_attn.q_proj.weight", "attn/qkv/weight", 0},
                 {"self_attn.k_proj.weight", "attn/qkv/weight", q},
                 {"self_attn.v_proj.weight", "attn/qkv/weight", q + k},
                 {"self_attn.o_proj.weight", "attn/out/weight", 0},
                 {"mlp.gate_proj.weight", "mlp/gate_up/weight", 0},
                 {"mlp.up_proj.weight", "mlp/gate_up/weight", m->ff},
                 {"mlp.down_proj.weight", "mlp/down/weight", 0}};
      char rest[100];
      transposed = strstr(t->name, "_proj") || strcmp(t->name, "lm_head.weight") == 0;
      if (sscanf(t->name, "model.layers.%ld.%99s", &layer, rest) == 2)
        for (size_t j = 0; j < sizeof map / sizeof map[0]; ++j)
          if (strcmp(rest, map[j].theirs) == 0) {
            snprintf(ours, sizeof ours, "block.%d/%s", (int)layer, map[j].mine);
            column = map[j].column;
          }
      if (strcmp(t->name, "model.embed_tokens.weight") == 0) strcpy(ours, "embed/token/weight");
      if (strcmp(t->name, "model.norm.weight") == 0) strcpy(ours, "final/norm/gain");
      if (strcmp(t->name, "lm_head.weight") == 0) strcpy(ours, "head/weight");
    }
    int index = params_find(&s->params, ours);
    if (index < 0) fail_msg("%s has no place", t->name);
    const rf_param *p = &s->params.at[index];
    int64_t width = p->shape[p->rank - 1];
    float *theirs = malloc((size_t)t->count * sizeof *theirs);
    assert_int_equal(rf_stored_read(t, 0, t->count, theirs, NULL), RAFTER_OK);
    for (int64_t e = 0; e < t->count; ++e) {
      int64_t r = t->rank == 2 ? e / t->shape[1] : 0, c = t->rank == 2 ? e % t->shape[1] : e;
      float mine =
          transposed ? s->value[index][c * width + column + r] : s->value[index][r * width + column + c];
      assert_true(mine == theirs[e]);
    }
    compared += t->count;
    free(theirs);
  }
  assert_int_equal(compared, s->params.total);
  rf_tensor_file_close(file);
}

static void same_values(const store *a, const store *b) {
  assert_int_equal(a->params.count, b->params.count);
  for (int i = 0; i < a->params.count; ++i)
    assert_memory_equal(a->value[i], b->value[i], (size_t)a->params.at[i].count * sizeof(float));
}

/* Whether two models are equal in every field except the name. */
static void same_model(const rf_model *a, const rf_model *b) {
  rf_model one, two;
  memcpy(&one, a, sizeof one);
  memcpy(&two, b, sizeof two); /* Also compares padding, because both began as zeros. */
  memset(one.name, 0, sizeof one.name);
  memset(two.name, 0, sizeof two.name);
  for (size_t i = 0; i < sizeof one; ++i)
    if (((const char *)&one)[i] != ((const char *)&two)[i])
      fail_msg("the models differ at byte %zu of rf_model", i);
}

/* A written model has the tensors of its source: names, shapes and bytes. */
static void same_files(const char *source, const char *copy) {
  rf_tensor_file *a, *b;
  assert_int_equal(rf_tensor_file_open(source, &a, NULL), RAFTER_OK);
  assert_int_equal(rf_tensor_file_open(copy, &b, NULL), RAFTER_OK);
  assert_int_equal(rf_tensor_file_count(a), rf_tensor_file_count(b));
  for (int i = 0; i < rf_tensor_file_count(a); ++i) {
    const rf_stored *x = rf_tensor_file_at(a, i), *y = rf_tensor_file_at(b, i);
    if (strcmp(x->name, y->name) || x->rank != y->rank ||
        memcmp(x->shape, y->shape, (size_t)x->rank * sizeof *x->shape) || x->bytes != y->bytes ||
        memcmp(x->data, y->data, (size_t)x->bytes))
      fail_msg("%s: %s came back as %s, or with other values", source, x->name, y->name);
  }
  rf_tensor_file_close(a);
  rf_tensor_file_close(b);
}

static void published_weights_are_read_and_written_back(void **state) {
  (void)state;
  static const char *const names[] = {"gpt2",
                                      "llama",
                                      "mistral",
                                      "qwen2",
                                      "qwen3",
                                      "gemma",
                                      "gemma2",
                                      "gemma3_text",
                                      "gemma3_text_scaled",
                                      "llama_biased",
                                      "gemma3_text_listed",
                                      "gpt_neox",
                                      "mixtral"};
  for (size_t n = 0; n < sizeof names / sizeof *names; ++n) {
    char path[512], path_of[512];
    snprintf(path, sizeof path, "%s/goldens/%s", RF_TEST_DATA, names[n]);
    strcpy(path_of, path);
    rf_error error = {0};
    store *s = read_folder(path, &error);
    if (!s) fail_msg("%s", error.message);
    if (n < 2) compare_with_file(s, path);
    snprintf(path, sizeof path, "%s/goldens/%s/config-v4.json", RF_TEST_DATA, names[n]);
    rf_model old;
    /* The older spelling gives the same model. */
    assert_int_equal(rf_model_config_read(path, &old, NULL), RAFTER_OK);
    assert_true(old.layers == s->model.layers && old.width == s->model.width && old.heads == s->model.heads &&
                old.kv_heads == s->model.kv_heads);
    assert_true(old.ff == s->model.ff && old.tied == s->model.tied && old.max_seq == s->model.max_seq &&
                old.rope.theta == s->model.rope.theta);
    assert_true(old.norm_eps == s->model.norm_eps && old.eos_id == s->model.eos_id);
    assert_int_equal(rf_weights_write(folder, &s->model, &s->params, RF_F32, give, s, NULL), RAFTER_OK);
    store *back = read_folder(folder, &error);
    if (!back) fail_msg("%s", error.message);
    same_values(s, back);
    if (n < 2) compare_with_file(back, folder);
    same_files(path_of, folder);
    same_model(&back->model, &s->model);
    same_model(&old, &s->model);
    store_free(back);
    store_free(s);
  }
}

static store *random_store(const char *spec) {
  rf_model model;
  assert_int_equal(rf_model_resolve(spec, &model, NULL, NULL), RAFTER_OK);
  store *s = store_new(&model);
  for (int i = 0; i < s->params.count; ++i)
    rf_param_init(&s->params.at[i], 3, 0, s->params.at[i].count, s->value[i]);
  return s;
}

static void every_kind_of_model_comes_back(void **state) {
  (void)state;
  static const char *const specs[] = {"gpt:layers=2,width=32,heads=2,vocab=70,seq=9",
                                      "gpt:layers=2,width=32,heads=2,vocab=70,seq=9,tied=0",
                                      "uva:layers=2,width=32,heads=2,vocab=70,seq=9",
                                      "llama:layers=2,width=32,heads=4,kv_heads=2,ff=37,vocab=53",
                                      "llama:layers=1,width=32,heads=2,tied=1,vocab=33,ff=8",
                                      "gpt:layers=1,width=512,vocab=9000,tied=0,seq=8"};
  static const rf_dtype dtypes[] = {RF_F32, RF_BF16, RF_F16};
  for (int i = 0; i < 6; ++i)
    for (int d = 0; d < 3; ++d) {
      store *s = random_store(specs[i]);
      for (int p = 0; p < s->params.count; ++p) /* values that the dtype holds exactly */
        for (int64_t e = 0; e < s->params.at[p].count; ++e)
          s->value[p][e] = dtypes[d] == RF_F32
                               ? s->value[p][e]
                               : rf_bf16_to_f32(rf_f32_to_bf16((float)((e * 37 + p) % 251 - 125) / 64));
      rf_error error = {0};
      if (rf_weights_write(folder, &s->model, &s->params, dtypes[d], give, s, &error) != RAFTER_OK)
        fail_msg("%s: %s", specs[i], error.message);
      store *back = read_folder(folder, &error);
      if (!back) fail_msg("%s: %s", specs[i], error.message);
      same_values(s, back);
      store_free(back);
      store_free(s);
    }
}

/* Writes one file of several, as the process that has this file does. */
static void write_shard(const char *to, const store *s, int file, int shards) {
  rf_weights_writer *w;
  rf_weights_cursor at = {0};
  rf_weights_block block;
  int64_t blocks = 0;
  rf_error error = {0};
  const rf_weights_form form = {.dtype = RF_F32, .shards = shards};
  assert_int_equal(rf_weights_writer_open(to, &s->model, &s->params, &form, &w, &error), RAFTER_OK);
  float *values = malloc((size_t)rf_weights_writer_room(w) * sizeof *values);
  if (rf_weights_writer_begin_file(w, file, &error) != RAFTER_OK) fail_msg("%s", error.message);
  for (; rf_weights_writer_next(w, file, &at, &block); blocks++) {
    assert_true(block.rows * block.count <= rf_weights_writer_room(w));
    for (int64_t r = 0; r < block.rows; r++)
      memcpy(values + r * block.count, s->value[block.param] + block.first + r * block.stride,
             (size_t)block.count * sizeof *values);
    assert_int_equal(rf_weights_writer_put_block(w, &block, values, &error), RAFTER_OK);
  }
  assert_true(blocks > 0);
  if (rf_weights_writer_commit_file(w, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (file == 0) assert_int_equal(rf_weights_writer_index(w, &error), RAFTER_OK);
  rf_weights_writer_discard(w);
  free(values);
}

/* Shards that several processes write have the tensors of the one file. */
static void shards_have_the_same_tensors(void **state) {
  (void)state;
  static const char *const specs[] = {"gpt:layers=2,width=32,heads=2,vocab=70,seq=9",
                                      "llama:layers=2,width=32,heads=4,kv_heads=2,ff=37,vocab=53",
                                      "gpt:layers=1,width=512,vocab=9000,tied=0,seq=8",
                                      RF_TEST_DATA "/goldens/gpt_neox", RF_TEST_DATA "/goldens/mixtral"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; ++i)
    for (int shards = 1; shards < 5; ++shards) {
      char to[200], path[260];
      rf_error error = {0};
      snprintf(to, sizeof to, "%s/shards-%zu-%d", folder, i, shards);
      store *s = i < 3 ? random_store(specs[i]) : read_folder(specs[i], &error);
      assert_non_null(s);
      assert_int_equal(mkdir(to, 0700), 0);
      for (int file = shards - 1; file >= 0; --file) write_shard(to, s, file, shards);
      snprintf(path, sizeof path, "%s/config.json", to);
      assert_int_equal(rf_model_config_write(&s->model, RF_F32, path, NULL), RAFTER_OK);
      assert_int_equal(rf_weights_write(folder, &s->model, &s->params, RF_F32, give, s, NULL), RAFTER_OK);
      same_files(folder, to);
      store *back = read_folder(to, &error);
      if (!back) fail_msg("%s", error.message);
      same_values(s, back);
      store_free(back);
      store_free(s);
    }
}

static void tensors_are_shared_out(void **state) {
  (void)state;
  static const int64_t bytes[] = {100, 60, 10, 30, 20, 0};
  int file[6];
  assert_int_equal(rf_shard_files(bytes, 6, 2, file), 2);
  assert_memory_equal(file, ((int[]){0, 1, 1, 1, 0, 1}), sizeof file);
  assert_int_equal(rf_shard_files(bytes, 6, 9, file), 6); /* no file is empty */
  for (int i = 0; i < 6; i++) assert_int_equal(file[i], i);
  assert_int_equal(rf_shard_files(bytes, 6, 1, file), 1);
  assert_int_equal(file[5], 0);
  char name[RF_SHARD_NAME];
  rf_shard_name("model", 0, 1, name);
  assert_string_equal(name, "model.safetensors");
  rf_shard_name("optimizer", 1, 12, name);
  assert_string_equal(name, "optimizer-00002-of-00012.safetensors");
}

/* Writes the folder's model again with one change to its tensors. */
enum { CUT_PREFIX, ADD_BUFFERS, DROP_ONE, DROP_FIRST, RENAME_ONE, ADD_LAYER, TURN_ONE, INTEGERS };
static void change_file(int change) {
  char path[128];
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  rf_tensor_file *file;
  assert_int_equal(rf_tensor_file_open(path, &file, NULL), RAFTER_OK);
  int count = 0, all = rf_tensor_file_count(file);
  rf_stored *list = calloc((size_t)all + 3, sizeof *list);
  for (int i = 0; i < all; ++i) {
    rf_stored t = *rf_tensor_file_at(file, i);
    bool chosen = strstr(t.name, "h.0.mlp.c_fc.weight") != NULL;
    if (change == CUT_PREFIX && strncmp(t.name, "transformer.", 12) == 0) t.name += 12;
    if (change == DROP_ONE && chosen) continue;
    if (change == DROP_FIRST && strcmp(t.name, "transformer.h.0.ln_1.weight") == 0) continue;
    if (change == RENAME_ONE && chosen) t.name = "transformer.h.0.mlp.c_fb.weight";
    if (change == TURN_ONE && chosen) {
      t.shape[0] = rf_tensor_file_at(file, i)->shape[1];
      t.shape[1] = rf_tensor_file_at(file, i)->shape[0];
    }
    if (change == INTEGERS && chosen) t.dtype = RF_I32;
    list[count++] = t;
  }
  static const float zeros[64];
  if (change == ADD_BUFFERS) {
    list[count++] = (rf_stored){.name = "transformer.h.0.attn.bias",
                                .dtype = RF_U8,
                                .rank = 4,
                                .shape = {1, 1, 4, 4},
                                .bytes = 16,
                                .data = zeros};
    list[count++] = (rf_stored){
        .name = "lm_head.weight", .dtype = RF_F32, .rank = 1, .shape = {2}, .bytes = 8, .data = zeros};
  }
  if (change == ADD_LAYER)
    list[count++] = (rf_stored){.name = "transformer.h.2.ln_1.bias",
                                .dtype = RF_F32,
                                .rank = 1,
                                .shape = {2},
                                .bytes = 8,
                                .data = zeros};
  rf_tensor_writer *writer;
  assert_int_equal(rf_tensor_writer_open(path, list, count, NULL, &writer, NULL), RAFTER_OK);
  for (int i = 0; i < count; ++i)
    assert_int_equal(rf_tensor_writer_put_bytes(writer, list[i].data, list[i].bytes, NULL), RAFTER_OK);
  assert_int_equal(rf_tensor_writer_commit(writer, NULL), RAFTER_OK);
  rf_tensor_file_close(file);
  free(list);
}

static void files_that_do_not_fit_are_refused(void **state) {
  (void)state;
  static const struct {
    int change;
    const char *message;
  } row[] = {
      {CUT_PREFIX, NULL},
      {ADD_BUFFERS, NULL},
      {DROP_ONE, "h.0.mlp.c_fc.weight"},
      {DROP_FIRST, "has no tensor \"transformer.h.0.ln_1.weight\""},
      {RENAME_ONE, "h.0.mlp.c_fc.weight"},
      {ADD_LAYER, "h.2.ln_1.bias"},
      {TURN_ONE, "expected (32, 128), got (128, 32)"},
      {INTEGERS, "other than plain floats"},
  };
  for (size_t i = 0; i < sizeof row / sizeof row[0]; ++i) {
    store *s = random_store("gpt:layers=2,width=32,heads=2,vocab=70,seq=9");
    assert_int_equal(rf_weights_write(folder, &s->model, &s->params, RF_F32, give, s, NULL), RAFTER_OK);
    change_file(row[i].change);
    rf_error error = {0};
    store *back = read_folder(folder, &error);
    if (row[i].message && (back || !strstr(error.message, row[i].message)))
      fail_msg("change %d: '%s'", row[i].change, error.message);
    if (!row[i].message) {
      if (!back) fail_msg("change %d: %s", row[i].change, error.message);
      same_values(s, back);
      store_free(back);
    }
    store_free(s);
  }
}

/* Changes by another program to a file while rafter reads the first tensor. */
enum { OVERWRITE, SHORTEN, LENGTHEN, REPLACE, NOTHING };
typedef struct disturbance {
  int kind;
  bool done;
  char path[4400], copy[4500];
} disturbance;

static void disturb(disturbance *d) {
  FILE *file = fopen(d->kind == REPLACE ? d->copy : d->path, d->kind == REPLACE ? "wb" : "r+b");
  assert_non_null(file);
  assert_int_equal(fseek(file, 0, SEEK_END), 0);
  long bytes = ftell(file);
  if (d->kind == OVERWRITE) assert_int_equal(fseek(file, bytes - 8, SEEK_SET), 0);
  if (d->kind != SHORTEN) fputc('x', file);
  fclose(file);
  if (d->kind == SHORTEN) assert_int_equal(truncate(d->path, bytes - 1), 0);
  if (d->kind == REPLACE) assert_int_equal(rename(d->copy, d->path), 0);
}

static rf_status take_and_disturb(void *context, int param, int64_t first, int64_t count, const float *values,
                                  rf_error *error) {
  (void)param, (void)first, (void)count, (void)values, (void)error;
  disturbance *d = context;
  if (!d->done && d->kind != NOTHING) disturb(d);
  d->done = true;
  return RAFTER_OK;
}

/* Copies a file and makes the copy one minute old: two writes within a tick of the system's clock
 * have the same time. */
static void copy_file(const char *from, const char *to) {
  char *text;
  size_t bytes;
  assert_int_equal(rf_file_read(from, 1 << 24, &text, &bytes, NULL), RAFTER_OK);
  assert_int_equal(rf_file_write(to, text, bytes, NULL), RAFTER_OK);
  free(text);
  struct timespec old[2];
  clock_gettime(CLOCK_REALTIME, &old[0]);
  old[0].tv_sec -= 60;
  old[1] = old[0];
  assert_int_equal(utimensat(AT_FDCWD, to, old, 0), 0);
}

static void files_that_change_while_they_are_read_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *from, *to, *model;
  } file[] = {{RF_TEST_DATA "/goldens/llama/model.safetensors", "model.safetensors", "."},
              {RF_UNPACKED_DATA "/models/stories260K/stories260K.gguf", "m.gguf", "m.gguf"},
              {RF_UNPACKED_DATA "/models/stories260K/stories260K.bin", "m.bin", "m.bin"}};
  copy_file(RF_TEST_DATA "/goldens/llama/config.json", at("config.json"));
  for (size_t n = 0; n < sizeof file / sizeof *file; n++)
    for (int kind = OVERWRITE; kind <= NOTHING; kind++) {
      copy_file(file[n].from, at(file[n].to));
      disturbance d = {.kind = kind};
      snprintf(d.path, sizeof d.path, "%s/%s", folder, file[n].to);
      snprintf(d.copy, sizeof d.copy, "%s.new", d.path);
      rf_model model;
      rf_error error = {0};
      if (rf_model_resolve(at(file[n].model), &model, NULL, &error)) fail_msg("%s", error.message);
      rf_pool *pool = rf_pool_new();
      rf_params params = rf_model_params(&model, pool);
      rf_status status = rf_weights_read(at(file[n].model), &model, &params, take_and_disturb, &d, &error);
      bool fine = kind == NOTHING || kind == REPLACE; /* the old file stays mapped */
      if (status != (fine ? RAFTER_OK : RAFTER_FAILED)) fail_msg("%s, kind %d: %d", d.path, kind, status);
      if (!fine &&
          (!strstr(error.message, file[n].to) || !strstr(error.message, "changed while it was read")))
        fail_msg("%s", error.message);
      rf_pool_free(pool);
    }
}

/* A model of any depth needs no list of layer types if no field needs one. */
static void types_are_asked_for_only_where_they_differ(void **state) {
  (void)state;
  static rf_weight_types types;
  rf_model model;
  rf_error error = {0};
  assert_int_equal(
      rf_model_resolve("llama:layers=1400,width=64,heads=2,ff=64,vocab=256,seq=64", &model, NULL, &error),
      RAFTER_OK);
  assert_int_equal(rf_weight_types_read("", &model, RF_WEIGHTS_FILE, &types, &error), RAFTER_OK);
  assert_int_equal(types.count, 0);
  assert_int_equal(rf_weight_types_read("a/folder", &model, RF_WEIGHTS_FILE, &types, &error), RAFTER_OK);
  assert_int_equal(rf_weight_types_read("", &model, RF_WEIGHTS_INT8, &types, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "too many parameters"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_weights_are_read_and_written_back),
      cmocka_unit_test(every_kind_of_model_comes_back),
      cmocka_unit_test(shards_have_the_same_tensors),
      cmocka_unit_test(tensors_are_shared_out),
      cmocka_unit_test(files_that_do_not_fit_are_refused),
      cmocka_unit_test(files_that_change_while_they_are_read_are_refused),
      cmocka_unit_test(types_are_asked_for_only_where_they_differ),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
