/* test_hub.c - tests names, listings and checksums of the hub: which safetensors variant is chosen,
 * which files are downloaded, which paths are refused. tests/e2e/test_pull.sh tests the requests to
 * a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hub/hub.h"

static void variants(void **state) {
  (void)state;
  static const struct {
    const char *name, *repository;
  } cases[] = {{"google/gemma/flax/2b-it/2", "google/gemma-2b-it"},
               {"google/gemma/Flax/1.1-7b-it", "google/gemma-1.1-7b-it"},
               {"google/gemma/pyTorch/7b", "google/gemma-7b"},
               {"keras/gemma/keras/gemma_instruct_2b_en", "google/gemma-2b-it"},
               {"keras/gemma/keras/gemma_1.1_instruct_2b_en/4", "google/gemma-1.1-2b-it"},
               {"google/gemma-2/flax/gemma2-2b-it", "google/gemma-2-2b-it"},
               {"google/gemma-2/transformers/gemma-2-27b", "google/gemma-2-27b"},
               {"keras/gemma2/keras/gemma2_instruct_9b_en", "google/gemma-2-9b-it"},
               {"google/gemma-3/flax/gemma3-1b", "google/gemma-3-1b-pt"},
               {"google/gemma-3/flax/gemma3-4b-it/1", "google/gemma-3-4b-it"},
               {"google/gemma-3/transformers/gemma-3-12b-pt", "google/gemma-3-12b-pt"},
               {"google/gemma-3/flax/gemma-3-270m-it", "google/gemma-3-270m-it"},
               {"google/gemma-3/flax/gemma3-270m", "google/gemma-3-270m"},
               {"keras/gemma3/keras/gemma3_instruct_4b_text", "google/gemma-3-4b-it"},
               {"metaresearch/llama-3.2/transformers/1b-instruct", "meta-llama/Llama-3.2-1B-Instruct"},
               {"metaresearch/llama-3.1/pyTorch/8b", "meta-llama/Llama-3.1-8B"},
               {"metaresearch/llama-3/transformers/8b-chat-hf", "meta-llama/Meta-Llama-3-8B"},
               {"metaresearch/llama-2/pyTorch/7b-chat-hf", "meta-llama/Llama-2-7b-chat-hf"},
               {"mistral-ai/mistral/pytorch/7b-instruct-v0.1-hf", "mistralai/Mistral-7B-Instruct-v0.1"},
               {"qwen-lm/qwen2.5/transformers/0.5b-instruct", "Qwen/Qwen2.5-0.5B-Instruct"},
               {"qwen-lm/qwen-3/transformers/0.6b", "Qwen/Qwen3-0.6B"},
               {"google/gemma-2b-flax", "google/gemma-2b"},
               {"google/gemma-7b-it-pytorch", "google/gemma-7b-it"},
               {"/home/someone/gemma2-9b-it", "google/gemma-2-9b-it"},
               {"org/some-model-orbax", "org/some-model"}};
  char repository[208];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (!rf_hub_variant(cases[i].name, repository)) fail_msg("%s: not known", cases[i].name);
    if (strcmp(repository, cases[i].repository))
      fail_msg("%s: %s, want %s", cases[i].name, repository, cases[i].repository);
  }
  static const char *const unknown[] = {"google/bert/tensorflow2/cased",
                                        "google/codegemma/keras/code_gemma_2b_en", "google/gemma/flax/20b",
                                        "", "gemma"};
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
    if (rf_hub_variant(unknown[i], repository)) fail_msg("%s: %s", unknown[i], repository);
}

static void paths(void **state) {
  (void)state;
  static const char *const safe[] = {"na\303\257ve/\346\250\241\345\236\213.gguf",
                                     "config.json",
                                     "a/b/c.safetensors",
                                     "..a",
                                     "a..b/c",
                                     "...",
                                     "a b/c+%.json",
                                     "Grüße.json"};
  static const char *const unsafe[] = {"a\302\233b",
                                       "a\342\200\256b",
                                       "a\342\201\246b",
                                       "a\342\200\250b",
                                       "a\330\234b",
                                       "bad\377",
                                       "",
                                       "/",
                                       "/a",
                                       "a/",
                                       "a//b",
                                       ".",
                                       "..",
                                       "../a",
                                       "a/..",
                                       "a/../b",
                                       "a/./b",
                                       "a\\b",
                                       "a\nb",
                                       "a\x7f"};
  for (size_t i = 0; i < sizeof safe / sizeof *safe; i++) assert_true(rf_hub_path_is_safe(safe[i]));
  for (size_t i = 0; i < sizeof unsafe / sizeof *unsafe; i++) assert_false(rf_hub_path_is_safe(unsafe[i]));
  char longest[300];
  memset(longest, 'a', sizeof longest);
  longest[255] = 0;
  assert_true(rf_hub_path_is_safe(longest));
  longest[255] = 'a';
  longest[256] = 0;
  assert_false(rf_hub_path_is_safe(longest));
}

/* The wanted paths of a repository, joined; or the error. */
static void choose(const char *paths, const char *pattern, char *wanted, size_t size, rf_status want,
                   rf_error *error) {
  char json[4096] = "{\"siblings\": [", copy[2048], *rest = copy;
  rf_hub_listing listing;
  rf_hub_name name = {"org/name", "main"};
  snprintf(copy, sizeof copy, "%s", paths);
  for (char *path, *comma = ""; (path = strsep(&rest, " ")); comma = ",")
    snprintf(json + strlen(json), sizeof json - strlen(json), "%s{\"rfilename\": \"%s\", \"size\": 1}", comma,
             path);
  strcat(json, "]}");
  *wanted = 0;
  assert_int_equal(rf_hub_read_listing(json, strlen(json), "test", &listing, error), RAFTER_OK);
  assert_int_equal(rf_hub_choose(&listing, &name, &pattern, pattern != NULL, error), want);
  for (int i = 0; i < listing.count && want == RAFTER_OK; i++)
    if (listing.file[i].wanted)
      snprintf(wanted + strlen(wanted), size - strlen(wanted), "%s%s", *wanted ? " " : "",
               listing.file[i].path);
  rf_hub_listing_free(&listing);
}

static void choices(void **state) {
  (void)state;
  char wanted[1024];
  rf_error error;
  choose("config.json model.safetensors pytorch_model.bin README.md tf_model.h5", NULL, wanted, sizeof wanted,
         RAFTER_OK, &error);
  assert_string_equal(wanted, "config.json model.safetensors");
  choose("model-00001-of-00001.safetensors model.safetensors.index.json model.safetensors "
         "consolidated.safetensors",
         NULL, wanted, sizeof wanted, RAFTER_OK, &error);
  assert_string_equal(wanted, "model-00001-of-00001.safetensors model.safetensors.index.json");
  choose("adapter_config.json adapter_model.safetensors optimizer.safetensors", NULL, wanted, sizeof wanted,
         RAFTER_OK, &error);
  assert_string_equal(wanted, "adapter_config.json adapter_model.safetensors");
  choose("model.safetensors model.Q4_0.gguf x/config.json", NULL, wanted, sizeof wanted, RAFTER_OK, &error);
  assert_string_equal(wanted, "model.safetensors");
  choose("model.safetensors chat_template.jinja additional_chat_templates/tool_use.jinja x/tool_use.jinja",
         NULL, wanted, sizeof wanted, RAFTER_OK, &error);
  assert_string_equal(wanted,
                      "model.safetensors chat_template.jinja additional_chat_templates/tool_use.jinja");
  choose("m-00001-of-00002.gguf m-00002-of-00002.gguf mmproj-m.gguf", NULL, wanted, sizeof wanted, RAFTER_OK,
         &error);
  assert_string_equal(wanted, "m-00001-of-00002.gguf m-00002-of-00002.gguf");
  choose("a.gguf b.gguf", NULL, wanted, sizeof wanted, RAFTER_INVALID, &error);
  choose("a.gguf b.gguf config.json", "b*", wanted, sizeof wanted, RAFTER_OK, &error);
  assert_string_equal(wanted, "b.gguf");
  choose("a.safetensors a.pkl a.py a.bin", "a.*", wanted, sizeof wanted, RAFTER_OK, &error);
  assert_string_equal(wanted, "a.safetensors");
  choose("a.safetensors a.pkl", "*.pkl", wanted, sizeof wanted, RAFTER_FAILED, &error);
  assert_non_null(strstr(error.message, "pickle"));
  choose("config.json sub/model.safetensors", NULL, wanted, sizeof wanted, RAFTER_FAILED, &error);
  assert_non_null(strstr(error.message, "in folders only"));
  choose("flax_model.msgpack config.json", NULL, wanted, sizeof wanted, RAFTER_FAILED, &error);
  assert_non_null(strstr(error.message, "Flax"));
}

/* Compares with the output of sha256sum and `git hash-object`. */
static void sums(void **state) {
  (void)state;
  static const struct {
    rf_hash_kind kind;
    const char *sum;
  } cases[] = {{RF_HASH_SHA256, "98ea6e4f216f2fb4b69fff9b3a44842c38686ca685f3f55dc48c5d3fb1107be4"},
               {RF_HASH_GIT_BLOB, "45b983be36b73c0788dc9cbcb76cbb80fc7bb057"},
               {RF_HASH_NONE, ""}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rf_hash *hash;
    char text[RF_HASH_TEXT];
    assert_int_equal(rf_hash_open(cases[i].kind, 3, &hash, NULL), RAFTER_OK);
    rf_hash_add(hash, "h", 1);
    rf_hash_add(hash, "i\n", 2);
    rf_hash_end(hash, text);
    assert_string_equal(text, cases[i].sum);
  }
  assert_true(rf_hash_is(RF_HASH_GIT_BLOB, "45b983be36b73c0788dc9cbcb76cbb80fc7bb057"));
  assert_false(rf_hash_is(RF_HASH_SHA256, "45b983be36b73c0788dc9cbcb76cbb80fc7bb057"));
  assert_false(rf_hash_is(RF_HASH_GIT_BLOB, "../983be36b73c0788dc9cbcb76cbb80fc7bb057"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(variants), cmocka_unit_test(paths),
                                     cmocka_unit_test(choices), cmocka_unit_test(sums)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
