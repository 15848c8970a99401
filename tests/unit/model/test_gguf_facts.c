/* test_gguf_facts.c - tests what GGUF files say about models and tokenizers, with stories260K and,
 * if they were downloaded, two published models. */
#include "base/file.h"
#include "model/gguf_source.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/files.h"

/* ---- small files, written for these tests ---------------------------------------------------- */

typedef struct fixture {
  rf_gguf_meta *meta;
  const char *arch;
  char path[64];
  rf_gguf *file;
} fixture;

static void set(fixture *f, const char *key, int64_t value) {
  char full[128];
  snprintf(full, sizeof full, "%s%s", *key == '.' ? f->arch : "", key);
  assert_true(rf_gguf_set_int(f->meta, full, RF_GGUF_U32, value));
}
static void set_real(fixture *f, const char *key, float value) {
  char full[128];
  snprintf(full, sizeof full, "%s%s", f->arch, key);
  assert_true(rf_gguf_set_f32(f->meta, full, value));
}

static fixture start(const char *arch) {
  fixture f = {rf_gguf_meta_new(), arch, "", NULL};
  bool layernorm = !strcmp(arch, "gpt2") || !strcmp(arch, "gptneox");
  assert_true(rf_gguf_set_text(f.meta, "general.architecture", arch));
  set(&f, ".block_count", 4);
  set(&f, ".embedding_length", 64);
  set(&f, ".feed_forward_length", 96);
  set(&f, ".context_length", 128);
  set(&f, ".attention.head_count", 4);
  set(&f, ".vocab_size", 32);
  set_real(&f, layernorm ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon", 1e-6f);
  return f;
}

/* Writes the file with tensors of one zero-filled block each, and opens it. */
static void write_and_open(fixture *f, const rf_quant_tensor *tensors, int count) {
  rf_error error;
  rf_gguf_writer *writer;
  strcpy(f->path, "/tmp/rafter-test-XXXXXX");
  int fd = mkstemp(f->path);
  assert_true(fd >= 0);
  close(fd);
  assert_int_equal(rf_gguf_writer_open(f->path, f->meta, tensors, count, &writer, &error), RAFTER_OK);
  for (int i = 0; i < count; ++i) {
    int64_t values = tensors[i].shape[0] * (tensors[i].rank == 2 ? tensors[i].shape[1] : 1);
    float *zeros = calloc((size_t)values, 4);
    assert_int_equal(rf_gguf_writer_put(writer, zeros, values, &error), RAFTER_OK);
    free(zeros);
  }
  assert_int_equal(rf_gguf_writer_commit(writer, &error), RAFTER_OK);
  assert_int_equal(rf_gguf_open(f->path, &f->file, &error), RAFTER_OK);
}

static void finish(fixture *f) {
  rf_gguf_close(f->file);
  rf_gguf_meta_free(f->meta);
  unlink(f->path);
}

static rf_gguf_facts facts_of(fixture *f) {
  rf_gguf_facts facts;
  rf_error error = {0};
  write_and_open(f, NULL, 0);
  if (rf_gguf_facts_read(f->file, &facts, &error) != RAFTER_OK) fail_msg("%s", error.message);
  finish(f);
  return facts;
}

static void refused(fixture f, const char *word) {
  rf_gguf_facts facts;
  rf_error error = {0};
  write_and_open(&f, NULL, 0);
  assert_int_equal(rf_gguf_facts_read(f.file, &facts, &error), RAFTER_FAILED);
  if (!strstr(error.message, word)) fail_msg("expected \"%s\" in: %s", word, error.message);
  finish(&f);
}

static void test_architectures(void **state) {
  (void)state;
  fixture f = start("llama");
  rf_gguf_facts a = facts_of(&f);
  assert_true(a.arch == RF_GGUF_LLAMA && a.layers == 4 && a.width == 64 && a.ff == 96 && a.heads == 4 &&
              a.kv_heads == 4 && a.vocab == 32);
  assert_true(a.key_length == 16 && a.rope_dim == 16 && a.rope_theta == 10000 && a.rope_factor == 1 &&
              a.interleaved && !a.layernorm);
  assert_true(a.tied && a.window == 0 && a.window_period == 0 && a.attn_softcap == 0 &&
              a.attn_scale == 0.25 && a.embed_scale == 1);

  f = start("gemma2");
  set(&f, ".attention.key_length", 32);
  set(&f, ".attention.value_length", 32);
  set(&f, ".attention.head_count_kv", 2);
  rf_gguf_facts b = facts_of(&f);
  assert_true(b.key_length == 32 && b.kv_heads == 2 && b.window == 4096 && b.window_period == 2 &&
              b.attn_softcap == 50 && b.final_softcap == 30);
  assert_true(b.post_norms && !b.qk_norm && b.norm_offset == 1 && b.embed_scale == 8 && !b.interleaved &&
              b.attn_scale == 1 / sqrt(32.0));

  f = start("gemma3");
  set(&f, ".attention.sliding_window", 512);
  set(&f, ".block_count", 62);
  set_real(&f, ".rope.freq_base", 1e6f);
  rf_gguf_set_text(f.meta, "gemma3.rope.scaling.type", "linear");
  set_real(&f, ".rope.scaling.factor", 8);
  rf_gguf_facts c = facts_of(&f);
  assert_true(c.window == 512 && c.window_period == 6 && c.qk_norm && c.post_norms && c.attn_softcap == 0 &&
              c.final_softcap == 0);
  assert_true(c.rope_theta == 1e6 && c.rope_local_theta == 10000 && c.rope_factor == 8 &&
              strcmp(c.rope_scaling, "linear") == 0);
  /* 62 layers identify the 27B model, whose scale is by width over heads. */
  assert_true(c.attn_scale == 0.25);

  f = start("qwen3");
  set(&f, ".attention.key_length", 24);
  set(&f, ".attention.value_length", 24);
  rf_gguf_facts d = facts_of(&f);
  assert_true(d.qk_norm && !d.qkv_bias && d.key_length == 24);
  f = start("qwen2");
  assert_true(facts_of(&f).qkv_bias);
  f = start("gpt2");
  rf_gguf_facts e = facts_of(&f);
  assert_true(e.layernorm && e.rope_theta == 0 && e.rope_dim == 0 && !e.parallel);
  f = start("gptneox");
  set(&f, ".rope.dimension_count", 4);
  rf_gguf_facts g = facts_of(&f);
  assert_true(g.layernorm && g.rope_dim == 4 && g.parallel);
  f = start("llama");
  set(&f, ".expert_count", 8);
  set(&f, ".expert_used_count", 2);
  set_real(&f, ".rope.scale_linear", 4);
  rf_gguf_facts h = facts_of(&f);
  assert_true(h.experts == 8 && h.experts_used == 2 && h.expert_ff == 96 && h.rope_factor == 4 &&
              strcmp(h.rope_scaling, "linear") == 0);
  f = start("llama");
  set_real(&f, ".rope.scaling.attn_factor", 1);
  set(&f, ".expert_group_count", 1);
  rf_gguf_set_bool(f.meta, "llama.attention.causal", true);
  assert_int_equal(facts_of(&f).rope_dim, 16);
  f = start("llama");
  set_real(&f, ".rope.scaling.factor", 4); /* without a type, the scaling is linear */
  rf_gguf_facts i = facts_of(&f);
  assert_true(i.rope_factor == 4 && strcmp(i.rope_scaling, "linear") == 0);
}

static void test_values_for_each_layer(void **state) {
  (void)state;
  int32_t same[] = {2, 2, 2, 2}, mixed[] = {2, 2, 4, 2}, pattern[] = {1, 0, 1, 0}, irregular[] = {1, 0, 0, 1},
          all[] = {1, 1, 1, 1};
  fixture f = start("llama");
  rf_gguf_set_i32s(f.meta, "llama.attention.head_count_kv", same, 4);
  assert_int_equal(facts_of(&f).kv_heads, 2);
  f = start("llama");
  rf_gguf_set_i32s(f.meta, "llama.attention.head_count_kv", mixed, 4);
  refused(f, "differs between layers");
  f = start("llama");
  rf_gguf_set_i32s(f.meta, "llama.attention.head_count_kv", same, 0);
  refused(f, "differs between layers");
  f = start("gemma3");
  set(&f, ".attention.sliding_window", 9);
  rf_gguf_set_i32s(f.meta, "gemma3.attention.sliding_window_pattern", pattern, 4);
  assert_int_equal(facts_of(&f).window_period, 2);
  f = start("gemma3");
  set(&f, ".attention.sliding_window", 9);
  rf_gguf_set_i32s(f.meta, "gemma3.attention.sliding_window_pattern", all, 4);
  assert_int_equal(facts_of(&f).window_period, 0);
  f = start("gemma3");
  set(&f, ".attention.sliding_window", 9);
  set(&f, ".attention.sliding_window_pattern", 3);
  assert_int_equal(facts_of(&f).window_period, 3);
  f = start("gemma3");
  rf_gguf_set_i32s(f.meta, "gemma3.attention.sliding_window_pattern", irregular, 4);
  refused(f, "is not periodic");
  f = start("gemma3");
  rf_gguf_set_i32s(f.meta, "gemma3.attention.sliding_window_pattern", pattern, 3);
  refused(f, "is not periodic");
}

static void test_refuses_models_that_do_not_fit(void **state) {
  (void)state;
  fixture f = start("llama");
  rf_gguf_set_text(f.meta, "general.architecture", "mamba");
  refused(f, "expected llama, gemma, gemma2, gemma3, qwen2, qwen3, gpt2, gptneox, got \"mamba\"");
  f = start("llama");
  rf_gguf_set_text(f.meta, "general.architecture", "bad\n\x1b[31m");
  refused(f, "got \"bad??[31m\"");
  f = start("llama");
  set(&f, "general.architecture", 1);
  refused(f, "expected text, got u32");
  f = start("llama");
  set(&f, ".block_count", 0);
  refused(f, "expected 1 to 4096, got 0");
  f = start("llama");
  set(&f, ".embedding_length", 4294967295);
  refused(f, "llama.embedding_length");
  f = start("llama");
  set(&f, ".attention.head_count", 5);
  refused(f, "heads do not divide the width");
  f = start("llama");
  set(&f, ".attention.head_count_kv", 3);
  refused(f, "not a multiple");
  f = start("llama");
  set(&f, ".attention.value_length", 8);
  refused(f, "differ in width");
  f = start("llama");
  set(&f, ".rope.dimension_count", 18);
  refused(f, "rotated elements");
  f = start("llama");
  set_real(&f, ".attention.layer_norm_rms_epsilon", NAN);
  refused(f, "out of range");
  f = start("llama");
  set(&f, ".expert_used_count", 2);
  refused(f, "more experts");
  f = start("llama");
  rf_gguf_set_text(f.meta, "llama.rope.scaling.type", "a long word that is no scaling");
  refused(f, "not a known scaling");
  /* Values that llama.cpp computes, or refuses itself. */
  f = start("llama");
  set(&f, ".rope.dimension_count", 8);
  refused(f, "llama.rope.dimension_count");
  f = start("qwen3");
  set(&f, ".rope.dimension_count", 8);
  refused(f, "qwen3.rope.dimension_count");
  f = start("llama");
  set_real(&f, ".rope.scaling.attn_factor", 1.5f);
  refused(f, "llama.rope.scaling.attn_factor");
  f = start("llama");
  set(&f, ".expert_count", 8);
  set(&f, ".expert_used_count", 2);
  set(&f, ".expert_group_count", 2);
  refused(f, "llama.expert_group_count");
  f = start("llama");
  rf_gguf_set_bool(f.meta, "llama.attention.causal", false);
  refused(f, "llama.attention.causal");
  fixture bare = {rf_gguf_meta_new(), "llama", "", NULL};
  refused(bare, "no metadata \"general.architecture\"");
  fixture half = {rf_gguf_meta_new(), "llama", "", NULL};
  rf_gguf_set_text(half.meta, "general.architecture", "llama");
  refused(half, "no metadata \"llama.block_count\"");
  /* A token table of another width. */
  fixture other = start("llama");
  rf_quant_tensor table = {
      .name = "token_embd.weight", .type = rf_quant_type_named("f32"), .rank = 2, .shape = {32, 32}};
  rf_gguf_facts facts;
  rf_error error;
  write_and_open(&other, &table, 1);
  assert_int_equal(rf_gguf_facts_read(other.file, &facts, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "expected (vocabulary, 64)"));
  finish(&other);
}

/* Facts of a model that are written can be read back: a GGUF file keeps what config.json says. */
static void test_facts_there_and_back(void **state) {
  (void)state;
  static const char *const MODELS[] = {
      "gpt2",    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gemma3_text_scaled",
      "gpt_neox"};
  for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; ++i) {
    char path[256];
    rf_model model;
    rf_error error = {0};
    snprintf(path, sizeof path, RF_TEST_DATA "/goldens/%s/config.json", MODELS[i]);
    if (rf_model_config_read(path, &model, &error) != RAFTER_OK) fail_msg("%s", error.message);
    rf_gguf_facts a, b;
    assert_int_equal(rf_gguf_facts_of(&model, &a, &error), RAFTER_OK);
    fixture f = {rf_gguf_meta_new(), a.arch_name, "", NULL};
    assert_true(rf_gguf_facts_write(&a, f.meta));
    b = facts_of(&f);
    assert_string_equal(a.name, b.name);
    assert_string_equal(a.arch_name, b.arch_name);
    assert_string_equal(a.rope_scaling, b.rope_scaling);
    assert_true(a.arch == b.arch && a.layers == b.layers && a.width == b.width && a.heads == b.heads &&
                a.kv_heads == b.kv_heads && a.ff == b.ff);
    assert_true(a.vocab == b.vocab && a.positions == b.positions && a.key_length == b.key_length &&
                a.value_length == b.value_length);
    assert_true(a.layernorm == b.layernorm && (float)a.norm_eps == (float)b.norm_eps &&
                a.rope_dim == b.rope_dim && a.interleaved == b.interleaved);
    assert_true((float)a.rope_theta == (float)b.rope_theta &&
                (float)a.rope_local_theta == (float)b.rope_local_theta && a.rope_factor == b.rope_factor);
    assert_true(a.norm_offset == b.norm_offset && a.window == b.window &&
                a.window_period == b.window_period && a.qk_norm == b.qk_norm);
    assert_true(a.attn_softcap == b.attn_softcap && a.final_softcap == b.final_softcap &&
                (float)a.attn_scale == (float)b.attn_scale);
    assert_true((float)a.embed_scale == (float)b.embed_scale && a.post_norms == b.post_norms &&
                a.parallel == b.parallel && a.experts == b.experts);
  }
  rf_model model;
  rf_gguf_facts none;
  rf_error error;
  /* With the MLP first, no architecture of GGUF fits. */
  assert_int_equal(rf_model_resolve("uva", &model, NULL, &error), RAFTER_OK);
  assert_int_equal(rf_gguf_facts_of(&model, &none, &error), RAFTER_FAILED);
}

/* ---- tokenizers ------------------------------------------------------------------------------ */

static rf_status vocab_with(const char *key, int64_t id, int scores, rf_error *error, rf_gguf_vocab *out) {
  fixture f = start("llama");
  rf_gguf_text tokens[] = {{"<unk>", 5}, {"<s>", 3}, {"</s>", 4}, {"a", 1}};
  float score[] = {0, 0, 0, -1, -2};
  rf_gguf_set_text(f.meta, "tokenizer.ggml.model", "llama");
  rf_gguf_set_texts(f.meta, "tokenizer.ggml.tokens", tokens, 4);
  rf_gguf_set_f32s(f.meta, "tokenizer.ggml.scores", score, scores);
  if (key) rf_gguf_set_int(f.meta, key, RF_GGUF_U32, id);
  write_and_open(&f, NULL, 0);
  rf_gguf_vocab vocab;
  rf_status status = rf_gguf_vocab_read(f.file, &vocab, error);
  if (status == RAFTER_OK) {
    *out = vocab;
    rf_gguf_vocab_free(&vocab);
  }
  finish(&f);
  return status;
}

static void test_tokenizers(void **state) {
  (void)state;
  rf_error error;
  rf_gguf_vocab v;
  assert_int_equal(vocab_with(NULL, 0, 4, &error, &v), RAFTER_OK);
  assert_true(v.count == 4 && v.bos == 1 && v.eos == 2 && v.unknown == 0 && v.pad == -1 && v.add_bos &&
              !v.add_eos && v.add_space_prefix);
  assert_int_equal(vocab_with("tokenizer.ggml.padding_token_id", 4294967295, 4, &error, &v), RAFTER_OK);
  assert_int_equal(v.pad, -1);
  assert_int_equal(vocab_with("tokenizer.ggml.bos_token_id", 3, 4, &error, &v), RAFTER_OK);
  assert_int_equal(v.bos, 3);
  assert_int_equal(vocab_with("tokenizer.ggml.bos_token_id", 4, 4, &error, &v), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "expected an id below 4, got 4"));
  assert_int_equal(vocab_with(NULL, 0, 5, &error, &v), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "expected 4, got 5"));
  assert_int_equal(vocab_with("tokenizer.ggml.add_bos_token", 1, 4, &error, &v), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "expected bool, got u32"));
  fixture none = start("llama");
  write_and_open(&none, NULL, 0);
  assert_int_equal(rf_gguf_vocab_read(none.file, &v, &error), RAFTER_OK);
  assert_true(v.count == 0 && v.bos == -1 && v.model.bytes == 4 && memcmp(v.model.at, "none", 4) == 0);
  rf_gguf_vocab_free(&v);
  finish(&none);
}

/* Reading without the arrays has the same checks: pieces are texts, and ids are below their
 * number. */
static void test_marks(void **state) {
  (void)state;
  const rf_gguf_text tokens[] = {{"<unk>", 5}, {"<s>", 3}, {"</s>", 4}};
  const float numbers[] = {0, 1, 2};
  const struct {
    bool texts;
    int64_t eos;
    const char *says; /* part of the error; NULL: the file is valid */
  } cases[] = {{true, 2, NULL}, {true, 3, "expected an id below 3, got 3"}, {false, 2, "text array"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    fixture f = start("llama");
    rf_gguf_set_text(f.meta, "tokenizer.ggml.model", "llama");
    if (cases[i].texts) rf_gguf_set_texts(f.meta, "tokenizer.ggml.tokens", tokens, 3);
    else rf_gguf_set_f32s(f.meta, "tokenizer.ggml.tokens", numbers, 3);
    rf_gguf_set_int(f.meta, "tokenizer.ggml.eos_token_id", RF_GGUF_U32, cases[i].eos);
    write_and_open(&f, NULL, 0);
    rf_gguf_vocab marks, whole;
    rf_error error, same;
    rf_status status = rf_gguf_vocab_special(f.file, &marks, &error);
    assert_int_equal(rf_gguf_vocab_read(f.file, &whole, &same), status);
    assert_int_equal(status, cases[i].says ? RAFTER_FAILED : RAFTER_OK);
    if (cases[i].says)
      assert_true(strstr(error.message, cases[i].says) && strcmp(error.message, same.message) == 0);
    else
      assert_true(marks.count == 3 && marks.bos == whole.bos && marks.eos == 2 && whole.eos == 2 &&
                  marks.add_bos == whole.add_bos);
    rf_gguf_vocab_free(&whole);
    finish(&f);
  }
}

/* ---- names ----------------------------------------------------------------------------------- */

static void test_names(void **state) {
  (void)state;
  for (unsigned arch = 1; arch < RF_GGUF_EVERY; arch *= 2)
    for (int i = 0; i < RF_GGUF_NAME_COUNT; ++i) {
      const rf_gguf_name *row = &RF_GGUF_NAMES[i];
      /* one row per parameter */
      if (row->archs & arch) assert_ptr_equal(rf_gguf_name_of((rf_gguf_arch)arch, row->row), row);
      assert_non_null(row->part[0]);
    }
  assert_string_equal(rf_gguf_name_of(RF_GGUF_GEMMA3, "mlp/norm/gain")->part[0], "blk.%d.ffn_norm.weight");
  assert_null(rf_gguf_name_of(RF_GGUF_LLAMA, "attn/post_norm/gain"));
  /* In a head of 8, the pairs (0,4), (1,5), ... become neighbours, in every head, and no row is
   * lost. */
  static const int64_t EXPECTED[] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (int i = 0; i < 24; ++i) assert_int_equal(rf_gguf_permuted_row(i, 8), i / 8 * 8 + EXPECTED[i % 8]);
  assert_true(rf_gguf_name_is_extra("blk.3.attn_rot_embd"));
  assert_false(rf_gguf_name_is_extra("blk.3.attn_q.weight"));
}

/* Every tensor of a real file has a row, and every row of the model has its tensor. */
static void check_names(const rf_gguf *file, const rf_gguf_facts *facts) {
  int used = 0;
  for (int i = 0; i < RF_GGUF_NAME_COUNT; ++i) {
    const rf_gguf_name *row = &RF_GGUF_NAMES[i];
    if (!(row->archs & (unsigned)facts->arch)) continue;
    bool layered = strstr(row->part[0], "%d") != NULL,
         optional = strstr(row->part[0], "bias") || strcmp(row->row, "head/weight") == 0;
    /* no real file here has them */
    optional = optional || strstr(row->row, "router") || strstr(row->row, "experts");
    for (int layer = 0; layer < (layered ? facts->layers : 1); ++layer)
      for (int p = 0; p < RF_GGUF_PARTS && row->part[p]; ++p) {
        char name[64], *hole;
        snprintf(name, sizeof name, "%s", row->part[p]);
        if ((hole = strstr(name, "%d")))
          snprintf(hole, sizeof name - (size_t)(hole - name), "%d%s", layer, strstr(row->part[p], "%d") + 2);
        const rf_quant_tensor *t = rf_gguf_find(file, name);
        used += t != NULL;
        if (!t && !optional) fail_msg("%s is not there", name);
      }
  }
  assert_int_equal(used, rf_gguf_count(file));
}

/* ---- real files ------------------------------------------------------------------------------ */

static rf_gguf *open_real(const char *path, rf_gguf_facts *facts, rf_gguf_vocab *vocab) {
  rf_gguf *file = NULL;
  rf_error error = {0};
  if (rf_gguf_open(path, &file, &error) || rf_gguf_facts_read(file, facts, &error) ||
      rf_gguf_vocab_read(file, vocab, &error))
    fail_msg("%s", error.message);
  check_names(file, facts);
  for (int i = 0; i < rf_gguf_count(file); ++i) {
    const rf_quant_tensor *t = rf_gguf_at(file, i);
    float ends[2];
    assert_int_equal(rf_quant_read(t, 0, 1, &ends[0], &error), RAFTER_OK);
    assert_int_equal(rf_quant_read(t, t->count - 1, 1, &ends[1], &error), RAFTER_OK);
    assert_true(isfinite(ends[0]) && isfinite(ends[1]));
  }
  return file;
}

static bool text_is(rf_gguf_text text, const char *word) {
  return text.bytes == (int64_t)strlen(word) && !memcmp(text.at, word, strlen(word));
}

static void test_stories260k(void **state) {
  (void)state;
  rf_gguf_facts f;
  rf_gguf_vocab v;
  char path[4200];
  rf_gguf *file = open_real(need_file("models/stories260K/stories260K.gguf", path), &f, &v);
  assert_true(f.arch == RF_GGUF_LLAMA && f.layers == 5 && f.width == 64 && f.heads == 8 && f.kv_heads == 4 &&
              f.ff == 172 && f.vocab == 512);
  assert_true(!f.tied && f.positions == 2048 && f.rope_dim == 8 && (float)f.norm_eps == 1e-5f);
  assert_true(text_is(v.model, "llama") && v.count == 512 && v.bos == 1 && v.eos == 2 && v.pad == -1 &&
              text_is(v.token[1], "<s>"));
  assert_true(v.kind[0] == RF_GGUF_TOKEN_UNKNOWN && v.kind[1] == RF_GGUF_TOKEN_CONTROL &&
              v.kind[3] == RF_GGUF_TOKEN_BYTE && v.merges == 0);
  rf_gguf_vocab_free(&v);
  rf_gguf_close(file);
}

static void test_gemma3(void **state) {
  (void)state;
  rf_gguf_facts f;
  rf_gguf_vocab v;
  char path[4200];
  rf_gguf *file = open_real(need_model("RAFTER_GEMMA_GGUF", "gemma3-270m-q4_k_m.gguf", path), &f, &v);
  assert_true(f.arch == RF_GGUF_GEMMA3 && f.layers == 18 && f.width == 640 && f.heads == 4 &&
              f.kv_heads == 1 && f.key_length == 256);
  assert_true(f.ff == 2048 && f.vocab == 262144 && f.window == 512 && f.window_period == 6 &&
              f.rope_theta == 1e6 && f.rope_local_theta == 1e4);
  assert_true(f.tied && f.attn_scale == 0.0625 && v.add_bos && !v.add_space_prefix && v.bos == 2 &&
              text_is(v.token[2], "<bos>"));
  float gain[256]; /* Gains with 1 added are around 1 or larger; without, around 0. */
  double sum = 0;
  rf_error error;
  assert_int_equal(rf_quant_read(rf_gguf_find(file, "blk.0.attn_q_norm.weight"), 0, 256, gain, &error),
                   RAFTER_OK);
  for (int i = 0; i < 256; ++i) sum += gain[i] / 256;
  assert_true(sum > 0.5);
  rf_gguf_vocab_free(&v);
  rf_gguf_close(file);
}

static void test_smollm2(void **state) {
  (void)state;
  rf_gguf_facts f;
  rf_gguf_vocab v;
  char path[4200];
  rf_gguf *file =
      open_real(need_model("RAFTER_SMOLLM2_GGUF", "smollm2-135m-instruct-q4_1.gguf", path), &f, &v);
  assert_true(f.arch == RF_GGUF_LLAMA && f.layers == 30 && f.width == 576 && f.heads == 9 &&
              f.kv_heads == 3 && f.ff == 1536 && f.vocab == 49152);
  assert_true(f.tied && f.rope_theta == 1e5 && f.interleaved && text_is(v.model, "gpt2") &&
              text_is(v.pre, "smollm") && v.merges == 48900);
  assert_true(!v.add_bos && v.eos == 2 && v.chat_template.bytes == 368);
  rf_gguf_vocab_free(&v);
  rf_gguf_close(file);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_architectures),
      cmocka_unit_test(test_values_for_each_layer),
      cmocka_unit_test(test_refuses_models_that_do_not_fit),
      cmocka_unit_test(test_facts_there_and_back),
      cmocka_unit_test(test_tokenizers),
      cmocka_unit_test(test_marks),
      cmocka_unit_test(test_names),
      cmocka_unit_test(test_stories260k),
      cmocka_unit_test(test_gemma3),
      cmocka_unit_test(test_smollm2),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
