/* test_llama2c.c - tests llama2.c files. Three files of one model must have the same numbers, and
 * corrupt headers are refused. */
#include "formats/llama2c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define STORIES RF_UNPACKED_DATA "/models/stories260K/stories260K"

static void same_tensor(const rf_quant_tensor *a, const rf_quant_tensor *b) {
  rf_error error;
  assert_non_null(a);
  assert_non_null(b);
  assert_int_equal(a->rank, b->rank);
  assert_memory_equal(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape);
  float *x = malloc((size_t)a->count * 4), *y = malloc((size_t)b->count * 4);
  assert_int_equal(rf_quant_read(a, 0, a->count, x, &error), RAFTER_OK);
  assert_int_equal(rf_quant_read(b, 0, b->count, y, &error), RAFTER_OK);
  assert_memory_equal(x, y, (size_t)a->count * 4);
  free(x);
  free(y);
}

static void test_three_files_of_one_model(void **state) {
  (void)state;
  rf_llama2c *v0, *v1;
  rf_gguf *gguf;
  rf_error error;
  assert_int_equal(rf_llama2c_open(STORIES ".bin", &v0, &error), RAFTER_OK);
  assert_int_equal(rf_llama2c_open(STORIES "_v1.bin", &v1, &error), RAFTER_OK);
  assert_int_equal(rf_gguf_open(STORIES ".gguf", &gguf, &error), RAFTER_OK);
  assert_int_equal(rf_llama2c_count(v0), 47);
  assert_int_equal(rf_llama2c_count(v1), 47);
  assert_int_equal(rf_gguf_count(gguf), 48);
  for (int i = 0; i < 47; ++i) {
    const rf_quant_tensor *t = rf_llama2c_at(v0, i);
    same_tensor(t, rf_llama2c_find(v1, t->name));
    same_tensor(t, rf_gguf_find(gguf, t->name));
  }
  /* The GGUF file has a copy of the tied head. */
  same_tensor(rf_gguf_find(gguf, "output.weight"), rf_llama2c_find(v0, "token_embd.weight"));
  rf_gguf_facts f;
  assert_int_equal(rf_gguf_facts_read(gguf, &f, &error), RAFTER_OK);
  const rf_llama2c *both[] = {v0, v1};
  for (int i = 0; i < 2; ++i) {
    const rf_gguf_facts *g = rf_llama2c_facts(both[i]);
    assert_true(g->arch == f.arch && g->layers == f.layers && g->width == f.width && g->ff == f.ff &&
                g->heads == f.heads);
    assert_true(g->kv_heads == f.kv_heads && g->vocab == f.vocab && g->key_length == f.key_length &&
                g->rope_dim == f.rope_dim);
    assert_true(g->norm_eps == f.norm_eps && g->rope_theta == f.rope_theta &&
                g->interleaved == f.interleaved && g->tied);
    /* The GGUF file has 2048. */
    assert_true(g->attn_scale == f.attn_scale && g->embed_scale == f.embed_scale && g->positions == 512);
  }
  rf_llama2c_close(v0);
  rf_llama2c_close(v1);
  rf_gguf_close(gguf);
}

/* A model made by hand: one layer, D 4, F 6, two heads, one key head, V 5, T 3. Values count up
 * from 0. */

enum { D = 4, F = 6, N = 2, K = 1, V = 5, T = 3, HEAD = D / N };
enum { BODY = V * D + D + D * D + 2 * K * HEAD * D + D * D + D + 3 * F * D + D, TABLES = T * HEAD };

static unsigned char *file_of(int version, const int32_t fields[7], int values, size_t *bytes) {
  size_t header = version ? 256 : 28;
  *bytes = header + (size_t)values * 4;
  unsigned char *b = calloc(1, *bytes);
  int32_t one = version;
  if (version) {
    memcpy(b, "24ka", 4);
    memcpy(b + 4, &one, 4);
    b[36] = fields[5] > 0;
  }
  int32_t size[7];
  memcpy(size, fields, sizeof size);
  if (version && size[5] < 0) size[5] = -size[5];
  memcpy(b + (version ? 8 : 0), size, sizeof size);
  for (int i = 0; i < values; ++i) {
    float value = (float)i;
    memcpy(b + header + (size_t)i * 4, &value, 4);
  }
  return b;
}

static float first_of(const rf_llama2c *file, const char *name) {
  float value = -1;
  rf_error error;
  const rf_quant_tensor *t = rf_llama2c_find(file, name);
  assert_non_null(t);
  assert_int_equal(rf_quant_read(t, 0, 1, &value, &error), RAFTER_OK);
  return value;
}

static void test_places(void **state) {
  (void)state;
  rf_llama2c *file;
  rf_error error;
  size_t bytes;
  int32_t untied[7] = {D, F, 1, N, K, -V, T}, tied[7] = {D, F, 1, N, K, V, T};
  unsigned char *b = file_of(0, untied, BODY + TABLES + V * D, &bytes);
  assert_int_equal(rf_llama2c_parse(b, bytes, "x.bin", &file, &error), RAFTER_OK);
  assert_int_equal(rf_llama2c_count(file), 12);
  assert_true(first_of(file, "token_embd.weight") == 0 && first_of(file, "blk.0.attn_norm.weight") == 20);
  assert_true(first_of(file, "blk.0.attn_q.weight") == 24 &&
              first_of(file, "output_norm.weight") == BODY - D);
  assert_true(first_of(file, "output.weight") == BODY + TABLES);
  assert_false(rf_llama2c_facts(file)->tied);
  assert_int_equal(rf_llama2c_find(file, "blk.0.attn_k.weight")->shape[0], 2);
  assert_int_equal(rf_llama2c_find(file, "blk.0.attn_k.weight")->shape[1], 4);
  assert_int_equal(rf_llama2c_find(file, "blk.0.ffn_down.weight")->shape[1], F);
  assert_null(rf_llama2c_find(file, "blk.1.attn_k.weight"));
  rf_llama2c_close(file);
  free(b);
  b = file_of(1, untied, BODY + V * D, &bytes);
  assert_int_equal(rf_llama2c_parse(b, bytes, "x.bin", &file, &error), RAFTER_OK);
  assert_true(first_of(file, "blk.0.attn_norm.weight") == 0 && first_of(file, "blk.0.ffn_norm.weight") == 4);
  assert_true(first_of(file, "output_norm.weight") == 8 && first_of(file, "token_embd.weight") == 12 &&
              first_of(file, "output.weight") == BODY);
  rf_llama2c_close(file);
  free(b);
  b = file_of(1, tied, BODY, &bytes);
  assert_int_equal(rf_llama2c_parse(b, bytes, "x.bin", &file, &error), RAFTER_OK);
  assert_null(rf_llama2c_find(file, "output.weight"));
  assert_true(rf_llama2c_facts(file)->tied);
  rf_llama2c_close(file);
  free(b);
}

static void refused(int version, int field, int32_t value, int more, const char *word) {
  int32_t fields[7] = {D, F, 1, N, K, V, T};
  rf_llama2c *file;
  rf_error error = {0};
  size_t bytes;
  if (field >= 0) fields[field] = value;
  unsigned char *b = file_of(version, fields, (version ? BODY : BODY + TABLES) + more, &bytes);
  assert_int_equal(rf_llama2c_parse(b, bytes, "x.bin", &file, &error), RAFTER_FAILED);
  if (!strstr(error.message, word) || !strstr(error.message, "x.bin"))
    fail_msg("expected \"%s\" in: %s", word, error.message);
  free(b);
}

static void test_refuses_lies(void **state) {
  (void)state;
  rf_llama2c *file;
  rf_error error = {0};
  for (int version = 0; version < 2; ++version) {
    refused(version, -1, 0, 1, "wrong length");
    refused(version, -1, 0, -1, "wrong length");
    refused(version, 0, 0, 0, "the width is wrong");
    refused(version, 0, -4, 0, "the width is wrong");
    refused(version, 0, 1 << 30, 0, "the width is wrong");
    refused(version, 0, 1 << 20, 0, "wrong length");
    refused(version, 0, 5, 0, "the width, a multiple of the heads");
    refused(version, 1, INT32_MIN, 0, "the feed-forward width");
    refused(version, 2, 0, 0, "the number of layers");
    refused(version, 2, INT32_MAX, 0, "the number of layers");
    refused(version, 2, 4096, 0, "wrong length");
    refused(version, 3, 4, 0, "rotated elements"); /* A head of one element cannot be rotated. */
    refused(version, 4, 3, 0, "not a multiple");
    refused(version, 5, 0, 0, "the vocabulary");
    refused(version, 6, 0, 0, "the number of positions");
  }
  refused(0, 5, INT32_MIN, 0, "the vocabulary");
  int32_t fields[7] = {D, F, 1, N, K, V, T};
  size_t bytes;
  unsigned char *b = file_of(1, fields, BODY, &bytes);
  b[36] = 2;
  assert_int_equal(rf_llama2c_parse(b, bytes, "x.bin", &file, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "byte 36"));
  b[36] = 1;
  b[4] = 2;
  assert_int_equal(rf_llama2c_parse(b, bytes, "x.bin", &file, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "the version"));
  b[4] = 1;
  for (size_t cut = 0; cut < bytes; cut += cut < 300 ? 1 : 37) {
    unsigned char *exact = malloc(cut ? cut : 1);
    memcpy(exact, b, cut);
    assert_int_equal(rf_llama2c_parse(exact, cut, "x.bin", &file, &error), RAFTER_FAILED);
    free(exact);
  }
  free(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_three_files_of_one_model),
                                     cmocka_unit_test(test_places), cmocka_unit_test(test_refuses_lies)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
