/* test_gguf_source.c - tests folders as GGUF tensors. Any range gives the same values, and tensors
 * that are transposed, moved or changed by an addition have the values of the folder. */
#include "base/file.h"
#include "model/gguf_source.h"
#include "formats/safetensors.h"
#include "model/weight_file.h"
#include "model/weights.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "support/scratch.h"
#include "support/params.h"

static rf_gguf_source *open_golden(const char *name) {
  char path[256];
  rf_gguf_source *source = NULL;
  rf_error error = {0};
  snprintf(path, sizeof path, RF_TEST_DATA "/goldens/%s", name);
  if (rf_gguf_source_open(path, &source, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return source;
}

static int find(const rf_gguf_source *source, const char *name) {
  for (int i = 0; i < rf_gguf_source_count(source); ++i)
    if (strcmp(rf_gguf_source_at(source, i)->name, name) == 0) return i;
  fail_msg("%s is not there", name);
  return -1;
}

/* All values, allocated with malloc. */
static float *values_of(const rf_gguf_source *source, int i) {
  int64_t count = rf_gguf_source_at(source, i)->count;
  float *all = malloc((size_t)count * 4 + 1);
  rf_error error = {0};
  if (rf_gguf_source_read(source, i, 0, count, all, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return all;
}

static void test_any_range_is_the_same_values(void **state) {
  (void)state;
  static const char *const MODELS[] = {"gpt2", "llama", "gemma3_text", "gpt_neox", "qwen2", "mixtral"};
  for (size_t m = 0; m < sizeof MODELS / sizeof *MODELS; ++m) {
    rf_gguf_source *source = open_golden(MODELS[m]);
    uint64_t draw = 99;
    rf_error error;
    for (int i = 0; i < rf_gguf_source_count(source); ++i) {
      int64_t count = rf_gguf_source_at(source, i)->count;
      float *all = values_of(source, i), one;
      for (int trial = 0; trial < 10; ++trial) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        int64_t first = (int64_t)(draw >> 33) % count, n = (int64_t)(draw >> 20) % (count - first + 1);
        float *part = malloc((size_t)n * 4 + 1);
        assert_int_equal(rf_gguf_source_read(source, i, first, n, part, &error), RAFTER_OK);
        assert_memory_equal(part, all + first, (size_t)n * 4);
        free(part);
      }
      assert_int_equal(rf_gguf_source_read(source, i, count, 1, &one, &error), RAFTER_FAILED);
      assert_int_equal(rf_gguf_source_read(source, i, -1, 1, &one, &error), RAFTER_FAILED);
      assert_int_equal(rf_gguf_source_read(source, i, 1, INT64_MAX, &one, &error), RAFTER_FAILED);
      free(all);
    }
    rf_gguf_source_close(source);
  }
}

/* One tensor of the folder itself. */
static float *stored(const char *model, const char *name, const rf_stored **out, rf_tensor_file **file) {
  char path[256];
  rf_error error = {0};
  snprintf(path, sizeof path, RF_TEST_DATA "/goldens/%s", model);
  assert_int_equal(rf_tensor_file_open(path, file, &error), RAFTER_OK);
  *out = rf_tensor_file_find(*file, name);
  assert_non_null(*out);
  float *all = malloc((size_t)(*out)->count * 4);
  assert_int_equal(rf_stored_read(*out, 0, (*out)->count, all, &error), RAFTER_OK);
  return all;
}

static void test_moved_turned_and_added(void **state) {
  (void)state;
  const rf_stored *from;
  rf_tensor_file *file;
  /* llama: row e of a head of 12 moves to rf_gguf_permuted_row; v does not move. */
  rf_gguf_source *source = open_golden("llama");
  static const char *const PAIRS[][2] = {{"model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q.weight"},
                                         {"model.layers.1.self_attn.k_proj.weight", "blk.1.attn_k.weight"},
                                         {"model.layers.1.self_attn.v_proj.weight", "blk.1.attn_v.weight"}};
  for (int p = 0; p < 3; ++p) {
    float *theirs = stored("llama", PAIRS[p][0], &from, &file),
          *ours = values_of(source, find(source, PAIRS[p][1]));
    for (int64_t r = 0, D = from->shape[1]; r < from->shape[0]; ++r)
      assert_memory_equal(ours + (p < 2 ? rf_gguf_permuted_row(r, 12) : r) * D, theirs + r * D,
                          (size_t)D * 4);
    free(theirs);
    free(ours);
    rf_tensor_file_close(file);
  }
  /* Llama 3's rotary factors by the formula of the converter: wavelengths against 16 positions,
   * bounds 1 and 4, factor 8. */
  float *factors = values_of(source, find(source, "rope_freqs.weight"));
  for (int i = 0; i < 6; ++i) {
    double wavelength = 2 * M_PI * pow(10000, i / 6.0), smooth = (16 / wavelength - 1) / 3;
    double expected = wavelength < 4 ? 1 : wavelength > 16 ? 8 : 1 / ((1 - smooth) / 8 + smooth);
    assert_true(fabs(factors[i] - expected) < 1e-5);
  }
  free(factors);
  rf_gguf_source_close(source);

  source = open_golden("gpt2"); /* (in, out) becomes (out, in) */
  float *theirs = stored("gpt2", "transformer.h.0.mlp.c_fc.weight", &from, &file),
        *ours = values_of(source, find(source, "blk.0.ffn_up.weight"));
  for (int64_t i = 0; i < from->shape[0]; ++i)
    for (int64_t o = 0; o < from->shape[1]; ++o)
      assert_true(ours[o * from->shape[0] + i] == theirs[i * from->shape[1] + o]);
  free(theirs);
  free(ours);
  rf_tensor_file_close(file);
  rf_gguf_source_close(source);

  source = open_golden("gemma"); /* 1 is added to gains, and to no other tensor */
  theirs = stored("gemma", "model.norm.weight", &from, &file);
  ours = values_of(source, find(source, "output_norm.weight"));
  for (int64_t i = 0; i < from->count; ++i) assert_true(ours[i] == theirs[i] + 1);
  free(theirs);
  free(ours);
  rf_tensor_file_close(file);
  theirs = stored("gemma", "model.embed_tokens.weight", &from, &file);
  ours = values_of(source, find(source, "token_embd.weight"));
  assert_memory_equal(ours, theirs, (size_t)from->count * 4);
  free(theirs);
  free(ours);
  rf_tensor_file_close(file);
  rf_gguf_source_close(source);
}

/* All experts of a layer are one tensor (E, out, in), in order. */
static void test_experts_stand_below_each_other(void **state) {
  (void)state;
  static const char *const PAIRS[][2] = {{"w1", "blk.1.ffn_gate_exps.weight"},
                                         {"w2", "blk.1.ffn_down_exps.weight"},
                                         {"w3", "blk.1.ffn_up_exps.weight"}};
  rf_gguf_source *source = open_golden("mixtral");
  for (int p = 0; p < 3; ++p) {
    int i = find(source, PAIRS[p][1]);
    const rf_quant_tensor *tensor = rf_gguf_source_at(source, i);
    float *ours = values_of(source, i);
    assert_true(tensor->rank == 3 && tensor->shape[0] == 4);
    for (int e = 0; e < 4; ++e) {
      char name[128];
      const rf_stored *from;
      rf_tensor_file *file;
      snprintf(name, sizeof name, "model.layers.1.block_sparse_moe.experts.%d.%s.weight", e, PAIRS[p][0]);
      float *theirs = stored("mixtral", name, &from, &file);
      assert_true(tensor->shape[1] == from->shape[0] && tensor->shape[2] == from->shape[1]);
      assert_memory_equal(ours + e * from->count, theirs, (size_t)from->count * 4);
      free(theirs);
      rf_tensor_file_close(file);
    }
    free(ours);
  }
  rf_gguf_source_close(source);
}

/* Experts of several storage types become a tensor of one type that can hold all of them. Experts
 * of one type keep it. */
static void test_experts_share_a_type(void **state) {
  (void)state;
  rf_tensor_file *file = NULL;
  rf_tensor_writer *writer = NULL;
  rf_error error = {0};
  char *config;
  size_t bytes;
  assert_int_equal(
      rf_file_read(RF_TEST_DATA "/goldens/mixtral/config.json", 1 << 20, &config, &bytes, &error), RAFTER_OK);
  mkdir(at("mixed"), 0700);
  assert_int_equal(rf_file_write(at("mixed/config.json"), config, bytes, &error), RAFTER_OK);
  assert_int_equal(rf_tensor_file_open(RF_TEST_DATA "/goldens/mixtral", &file, &error), RAFTER_OK);
  int count = rf_tensor_file_count(file);
  rf_stored *list = malloc((size_t)count * sizeof *list);
  for (int i = 0; i < count; ++i) {
    list[i] = *rf_tensor_file_at(file, i);
    bool narrow = strstr(list[i].name, "layers.1.") &&
                  (strstr(list[i].name, "experts.0.w1.") || strstr(list[i].name, ".w2."));
    if (narrow) {
      list[i].dtype = RF_BF16;
      list[i].bytes = list[i].count * 2;
    }
  }
  assert_int_equal(rf_tensor_writer_open(at("mixed/model.safetensors"), list, count, NULL, &writer, &error),
                   RAFTER_OK);
  for (int i = 0; i < count; ++i) {
    const rf_stored *from = rf_tensor_file_at(file, i);
    float *values = malloc((size_t)from->count * 4);
    assert_int_equal(rf_stored_read(from, 0, from->count, values, &error), RAFTER_OK);
    assert_int_equal(rf_tensor_writer_put(writer, values, from->count, &error), RAFTER_OK);
    free(values);
  }
  assert_int_equal(rf_tensor_writer_commit(writer, &error), RAFTER_OK);
  rf_gguf_source *source = NULL;
  if (rf_gguf_source_open(at("mixed"), &source, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_int_equal(rf_gguf_source_at(source, find(source, "blk.1.ffn_gate_exps.weight"))->type->number,
                   RF_Q_F32);
  assert_int_equal(rf_gguf_source_at(source, find(source, "blk.1.ffn_down_exps.weight"))->type->number,
                   RF_Q_BF16);
  rf_gguf_source_close(source);
  rf_tensor_file_close(file);
  free(list);
  free(config);
}

typedef struct kept_bias {
  int param;
  float value[512];
} kept_bias;

/* Keeps the values of one parameter. */
static rf_status keep_bias(void *context, int param, int64_t first, int64_t count, const float *values,
                           rf_error *error) {
  kept_bias *kept = context;
  (void)error;
  if (param == kept->param) memcpy(kept->value + first, values, (size_t)count * sizeof *values);
  return RAFTER_OK;
}

/* A llama with biases of only queries, keys and values is called Qwen2 elsewhere. It becomes one
 * when it is written as GGUF. */
static void test_biased_llama(void **state) {
  (void)state;
  kept_bias theirs = {0}, ours = {0};
  rf_gguf_source *source = open_golden("llama_biased");
  int count = 0;
  rf_quant_tensor *kept = calloc((size_t)rf_gguf_source_count(source), sizeof *kept);
  rf_gguf_writer *writer = NULL;
  rf_error error = {0};
  for (int i = 0; i < rf_gguf_source_count(source); ++i) {
    const rf_quant_tensor *t = rf_gguf_source_at(source, i);
    bool dropped =
        strstr(t->name, "attn_output.bias") || (strstr(t->name, "ffn_") && strstr(t->name, ".bias"));
    if (!dropped) kept[count++] = *t;
  }
  assert_int_equal(rf_gguf_source_count(source) - count, 3 * 4);
  if (rf_gguf_writer_open(at("biased.gguf"), rf_gguf_source_meta(source), kept, count, &writer, &error) !=
      RAFTER_OK)
    fail_msg("%s", error.message);
  for (int i = 0; i < count; ++i) {
    float *all = values_of(source, find(source, kept[i].name));
    assert_int_equal(rf_gguf_writer_put(writer, all, kept[i].count, &error), RAFTER_OK);
    free(all);
  }
  assert_int_equal(rf_gguf_writer_commit(writer, &error), RAFTER_OK);
  rf_model model, folder_model;
  if (rf_model_file_read(at("biased.gguf"), &model, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_true(model.family == RF_FAMILY_QWEN2 && model.qkv_bias && !model.attn_bias && !model.mlp_bias &&
              rf_model_is_hugging_face(&model));
  assert_int_equal(
      rf_model_config_read(RF_TEST_DATA "/goldens/llama_biased/config.json", &folder_model, &error),
      RAFTER_OK);
  rf_pool *pool = rf_pool_new();
  rf_params a = rf_model_params(&model, pool), b = rf_model_params(&folder_model, pool);
  ours.param = params_find(&a, "block.0/attn/qkv/bias");
  theirs.param = params_find(&b, "block.0/attn/qkv/bias");
  if (rf_weights_read(at("biased.gguf"), &model, &a, keep_bias, &ours, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  if (rf_weights_read(RF_TEST_DATA "/goldens/llama_biased", &folder_model, &b, keep_bias, &theirs, &error) !=
      RAFTER_OK)
    fail_msg("%s", error.message);
  assert_true(ours.param >= 0 && a.at[ours.param].count == 96 && ours.value[0] != 0);
  assert_memory_equal(ours.value, theirs.value, 96 * sizeof(float));
  rf_pool_free(pool);
  free(kept);
  rf_gguf_source_close(source);
}

static void test_no_model(void **state) {
  (void)state;
  rf_gguf_source *source = NULL;
  rf_error error;
  assert_int_equal(rf_gguf_source_open(RF_TEST_DATA "/goldens", &source, &error), RAFTER_FAILED);
  assert_int_equal(rf_gguf_source_open(RF_TEST_DATA "/README.md", &source, &error), RAFTER_FAILED);
  assert_int_equal(rf_gguf_source_open(RF_TEST_DATA "/nothere.gguf", &source, &error), RAFTER_FAILED);
  rf_gguf_source_close(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_range_is_the_same_values),
                                     cmocka_unit_test(test_moved_turned_and_added),
                                     cmocka_unit_test(test_experts_stand_below_each_other),
                                     cmocka_unit_test(test_experts_share_a_type),
                                     cmocka_unit_test(test_biased_llama),
                                     cmocka_unit_test(test_no_model)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
