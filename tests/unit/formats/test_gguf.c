/* test_gguf.c - tests the GGUF reader with corrupt files, and the writer with the reader. */
#include "base/file.h"
#include "formats/gguf.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/scratch.h"

/* ---- a file made by hand, so that any byte can be wrong -------------------------------------- */

typedef struct bytes {
  unsigned char at[4096];
  size_t used;
} bytes;

static void put(bytes *b, uint64_t value, int width) {
  for (int i = 0; i < width; ++i) b->at[b->used++] = (unsigned char)(value >> 8 * i);
}
static void put_text(bytes *b, const char *text) {
  put(b, strlen(text), 8);
  memcpy(b->at + b->used, text, strlen(text));
  b->used += strlen(text);
}

/* Changes to an otherwise valid file, which has three values, two tensors and 32 + 18 + 12 bytes of
 * data. */
typedef struct lies {
  uint32_t version, kind, axes, type, alignment, item, flag;
  uint64_t tensors, values, text_bytes, size, inner, offset, items;
  const char *second_key, *second_name, *first_name;
  int cut, more; /* bytes removed from the end, or added after it */
} lies;
#define HONEST \
  (lies) { \
    .version = 3, .kind = RF_GGUF_U32, .axes = 2, .type = RF_Q_Q4_0, .alignment = 32, .item = RF_GGUF_TEXT, \
    .flag = 1, .tensors = 2, .values = 5, .text_bytes = 5, .size = 1, .inner = 32, .offset = 32, .items = 2, \
    .second_key = "b.text", .second_name = "beta", .first_name = "alpha" \
  }

static bytes file_of(lies l) {
  bytes b = {.used = 0};
  memcpy(b.at, "GGUF", 4);
  b.used = 4;
  put(&b, l.version, 4);
  put(&b, l.tensors, 8);
  put(&b, l.values, 8);
  put_text(&b, "general.alignment");
  put(&b, l.kind, 4);
  put(&b, l.alignment, 4);
  put_text(&b, l.second_key);
  put(&b, RF_GGUF_TEXT, 4);
  put(&b, l.text_bytes, 8);
  memcpy(b.at + b.used, "hello", 5);
  b.used += 5;
  put_text(&b, "c.list");
  put(&b, RF_GGUF_ARRAY, 4);
  put(&b, l.item, 4);
  put(&b, l.items, 8);
  put_text(&b, "x");
  put_text(&b, "");
  put_text(&b, "d.flag");
  put(&b, RF_GGUF_BOOL, 4);
  put(&b, l.flag, 1);
  put_text(&b, "e.real");
  put(&b, RF_GGUF_F32, 4);
  put(&b, 0x3fc00000, 4); /* 1.5 */
  put_text(&b, l.first_name);
  put(&b, 1, 4);
  put(&b, 3, 8);
  put(&b, RF_Q_F32, 4);
  put(&b, 0, 8);
  put_text(&b, l.second_name);
  put(&b, l.axes, 4);
  put(&b, l.inner, 8);
  put(&b, l.size, 8);
  put(&b, l.type, 4);
  put(&b, l.offset, 8);
  while (b.used % 32) put(&b, 0, 1);
  for (int i = 0; i < 3; ++i) put(&b, 0x3f800000 + ((uint64_t)i << 23), 4); /* 1, 2, 4 */
  for (int i = 12; i < 32; ++i) put(&b, 0, 1);
  put(&b, 0x3c00, 2); /* d = 1 */
  for (int i = 0; i < 16; ++i) put(&b, (uint64_t)i * 17, 1);
  b.used += (size_t)l.more;
  b.used -= (size_t)l.cut;
  return b;
}

/* Parses bytes in a block of exactly their size, so that a sanitizer sees reads past the end. */
static rf_status parse(const bytes *b, rf_error *error) {
  unsigned char *exact = malloc(b->used + 1);
  memcpy(exact, b->at, b->used);
  exact = realloc(exact, b->used ? b->used : 1);
  rf_gguf *file = NULL;
  rf_status status = rf_gguf_parse(exact, b->used, "file.gguf", &file, error);
  if (status == RAFTER_OK) {
    float value[64];
    for (int i = 0; i < rf_gguf_count(file); ++i) { /* Everything that was accepted can be read. */
      const rf_quant_tensor *t = rf_gguf_at(file, i);
      if (t->type->dequantize && t->count <= 64)
        assert_int_equal(rf_quant_read(t, 0, t->count, value, error), RAFTER_OK);
    }
    rf_gguf_close(file);
  }
  free(exact);
  return status;
}

static void test_reads_what_is_there(void **state) {
  (void)state;
  bytes b = file_of(HONEST);
  rf_error error;
  rf_gguf *file;
  assert_int_equal(rf_gguf_parse(b.at, b.used, "file.gguf", &file, &error), RAFTER_OK);
  assert_int_equal(rf_gguf_version(file), 3);
  assert_int_equal(rf_gguf_count(file), 2);
  const rf_quant_tensor *beta = rf_gguf_find(file, "beta"), *alpha = rf_gguf_find(file, "alpha");
  assert_non_null(beta);
  assert_non_null(alpha);
  assert_null(rf_gguf_find(file, "gamma"));
  assert_int_equal(beta->rank, 2);
  assert_int_equal(beta->shape[0], 1);
  assert_int_equal(beta->shape[1], 32);
  assert_int_equal(beta->bytes, 18);
  float value[32];
  assert_int_equal(rf_quant_read(beta, 0, 32, value, &error), RAFTER_OK);
  for (int i = 0; i < 32; ++i) assert_true(value[i] == (float)(i % 16 - 8));
  assert_int_equal(rf_quant_read(alpha, 0, 3, value, &error), RAFTER_OK);
  assert_true(value[0] == 1 && value[1] == 2 && value[2] == 4);

  rf_gguf_text text, *list;
  int64_t count, whole;
  double real;
  bool flag;
  assert_int_equal(rf_gguf_text_of(file, "b.text", &text, &error), RAFTER_OK);
  assert_true(text.bytes == 5 && memcmp(text.at, "hello", 5) == 0);
  assert_int_equal(rf_gguf_texts(file, "c.list", &list, &count, &error), RAFTER_OK);
  assert_true(count == 2 && list[0].bytes == 1 && *list[0].at == 'x' && list[1].bytes == 0);
  free(list);
  assert_int_equal(rf_gguf_bool_or(file, "d.flag", false, &flag, &error), RAFTER_OK);
  assert_true(flag);
  assert_int_equal(rf_gguf_float(file, "e.real", 0, 2, &real, &error), RAFTER_OK);
  assert_true(real == 1.5);
  assert_int_equal(rf_gguf_int_or(file, "nothere", 0, 9, 7, &whole, &error), RAFTER_OK);
  assert_int_equal(whole, 7);
  /* Integers are accepted as floats. */
  assert_int_equal(rf_gguf_float(file, "general.alignment", 0, 64, &real, &error), RAFTER_OK);

  assert_int_equal(rf_gguf_int(file, "nothere", 0, 9, &whole, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "nothere"));
  assert_int_equal(rf_gguf_int(file, "b.text", 0, 9, &whole, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "expected a whole number, got text"));
  assert_int_equal(rf_gguf_int_or(file, "general.alignment", 0, 9, 0, &whole, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "expected 0 to 9, got 32"));
  assert_int_equal(rf_gguf_float(file, "e.real", 2, 3, &real, &error), RAFTER_FAILED);
  assert_int_equal(rf_gguf_bool_or(file, "e.real", false, &flag, &error), RAFTER_FAILED);
  assert_int_equal(rf_gguf_text_of(file, "c.list", &text, &error), RAFTER_FAILED);
  assert_int_equal(rf_gguf_texts(file, "b.text", &list, &count, &error), RAFTER_FAILED);
  rf_gguf_close(file);
}

static void refuse(const char *word, lies l) {
  bytes b = file_of(l);
  rf_error error = {0};
  assert_int_equal(parse(&b, &error), RAFTER_FAILED);
  if (!strstr(error.message, word) || !strstr(error.message, "file.gguf"))
    fail_msg("expected \"%s\" in: %s", word, error.message);
}
/* REFUSED("twice", l.version = 2) makes a valid file with another version. The error must contain
 * the word. */
#define REFUSED(word, ...) \
  do { \
    lies l = HONEST; \
    __VA_ARGS__; \
    refuse(word, l); \
  } while (0)

static void test_refuses_lies(void **state) {
  (void)state;
  rf_error error;
  bytes good = file_of(HONEST);
  assert_int_equal(parse(&good, &error), RAFTER_OK);
  lies two = HONEST, longer_file = HONEST;
  two.version = 2;
  longer_file.more = 77;
  bytes older = file_of(two), longer = file_of(longer_file);
  assert_int_equal(parse(&older, &error), RAFTER_OK);
  assert_int_equal(parse(&longer, &error), RAFTER_OK);

  REFUSED("an unknown GGUF version", l.version = 1);
  REFUSED("an unknown GGUF version", l.version = 4);
  REFUSED("big-endian", l.version = 3u << 24);
  REFUSED("too short for the counts", l.tensors = UINT64_MAX);
  REFUSED("too short for the counts", l.values = 1ull << 32);
  REFUSED("a tensor's name", l.tensors = 4);
  REFUSED("occurs twice", l.second_key = "general.alignment");
  REFUSED("occurs twice", l.second_name = "alpha");
  REFUSED("wrong length", l.first_name = "");
  REFUSED("control character", l.first_name = "al\npha");
  REFUSED("ends inside metadata \"b.text\"", l.text_bytes = UINT64_MAX);
  REFUSED("ends inside metadata \"b.text\"", l.text_bytes = 1 << 20);
  REFUSED("unknown kind", l.kind = 13);
  REFUSED("array of arrays", l.item = RF_GGUF_ARRAY);
  REFUSED("unknown kind", l.item = 99);
  REFUSED("more items than the file has bytes", l.items = UINT64_MAX);
  REFUSED("more items than the file has bytes", l.items = 1ull << 61; l.item = RF_GGUF_F64);
  REFUSED("neither true nor false", l.flag = 2);
  REFUSED("power of two", l.alignment = 24);
  REFUSED("out of range", l.alignment = 0);
  REFUSED("out of range", l.alignment = 1u << 30);
  REFUSED("wrong type", l.kind = RF_GGUF_F32; l.alignment = 0x42000000);
  REFUSED("too many axes", l.axes = 5);
  REFUSED("too many axes", l.axes = UINT32_MAX);
  REFUSED("unknown type", l.type = 4);
  REFUSED("unknown type", l.type = 4000000000u);
  REFUSED("whole blocks", l.inner = 31);
  REFUSED("more elements", l.size = UINT64_MAX);
  REFUSED("more elements", l.size = 1ull << 58);
  REFUSED("outside the file", l.size = 2);
  REFUSED("outside the file", l.size = 1ull << 50);
  REFUSED("outside the file", l.cut = 1);
  REFUSED("outside the file", l.offset = 64);
  REFUSED("outside the file", l.offset = UINT64_MAX - 31);
  REFUSED("wrong offset", l.offset = 33);
  REFUSED("overlap", l.offset = 0);
}

/* Every truncated file and every flipped byte is refused or read without an error of the
 * sanitizer. */
static void test_survives_cuts_and_flips(void **state) {
  (void)state;
  bytes good = file_of(HONEST);
  rf_error error;
  size_t full = good.used;
  for (good.used = 0; good.used < full; ++good.used) assert_int_equal(parse(&good, &error), RAFTER_FAILED);
  for (size_t i = 0; i < full; ++i)
    for (int flip = 1; flip < 256; flip = flip * 2 + 1) {
      good.at[i] ^= (unsigned char)flip;
      parse(&good, &error);
      good.at[i] ^= (unsigned char)flip;
    }
}

static void test_no_file(void **state) {
  (void)state;
  rf_gguf *file;
  rf_error error;
  assert_int_equal(rf_gguf_open(at("nothere.gguf"), &file, &error), RAFTER_FAILED);
  assert_int_equal(rf_gguf_open(folder, &file, &error), RAFTER_FAILED);
  assert_int_equal(rf_file_write(at("empty.gguf"), "", 0, &error), RAFTER_OK);
  assert_int_equal(rf_gguf_open(at("empty.gguf"), &file, &error), RAFTER_FAILED);
  assert_int_equal(rf_file_write(at("text.gguf"), "PK\3\4 and so on", 14, &error), RAFTER_OK);
  assert_int_equal(rf_gguf_open(at("text.gguf"), &file, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "not a GGUF file"));
}

/* ---- the writer ------------------------------------------------------------------------------ */

static rf_gguf_meta *some_meta(void) {
  rf_gguf_meta *meta = rf_gguf_meta_new();
  int32_t ints[] = {-1, 2, 3};
  float floats[] = {0.5f, -2};
  rf_gguf_text texts[] = {{"one", 3}, {"", 0}, {"\0x", 2}};
  assert_true(rf_gguf_set_text(meta, "general.architecture", "llama"));
  assert_true(rf_gguf_set_int(meta, "a.u64", RF_GGUF_U64, INT64_MAX) &&
              rf_gguf_set_int(meta, "a.i8", RF_GGUF_I8, -5));
  assert_true(rf_gguf_set_int(meta, "a.u16", RF_GGUF_U16, 65535) &&
              rf_gguf_set_int(meta, "a.i16", RF_GGUF_I16, -32768));
  assert_true(rf_gguf_set_int(meta, "a.again", RF_GGUF_I64, 1) && rf_gguf_set_f32(meta, "a.f32", 1e-5f) &&
              rf_gguf_set_bool(meta, "a.bool", true));
  assert_true(rf_gguf_set_i32s(meta, "a.ints", ints, 3) && rf_gguf_set_f32s(meta, "a.floats", floats, 2) &&
              rf_gguf_set_texts(meta, "a.texts", texts, 3));
  assert_true(rf_gguf_set_texts(meta, "a.none", NULL, 0) &&
              rf_gguf_set_int(meta, "a.again", RF_GGUF_I64, -2));
  return meta;
}

static void test_writes_what_the_reader_reads(void **state) {
  (void)state;
  rf_error error;
  rf_gguf_meta *meta = some_meta();
  rf_gguf_writer *writer;
  rf_quant_tensor tensors[] = {
      {.name = "first", .type = rf_quant_type_named("f32"), .rank = 1, .shape = {5}},
      {.name = "second", .type = rf_quant_type_named("q8_0"), .rank = 3, .shape = {2, 3, 64}},
      {.name = "none", .type = rf_quant_type_named("f16"), .rank = 2, .shape = {0, 4}},
      {.name = "third", .type = rf_quant_type_named("q6_k"), .rank = 2, .shape = {3, 256}},
      {.name = "last", .type = rf_quant_type_named("bf16"), .rank = 1, .shape = {3}}};
  float value[768];
  for (int i = 0; i < 768; ++i) value[i] = (float)(i % 127 - 63);
  assert_int_equal(rf_gguf_writer_open(at("out.gguf"), meta, tensors, 5, &writer, &error), RAFTER_OK);
  assert_int_equal(rf_gguf_writer_put(writer, value, 5, &error), RAFTER_OK);
  for (int from = 0, n; from < 384; from += n) { /* pieces that end anywhere */
    n = from % 7 + 1 + from / 3;
    if (n > 384 - from) n = 384 - from;
    assert_int_equal(rf_gguf_writer_put(writer, value + from, n, &error), RAFTER_OK);
  }
  uint8_t block[210];
  rf_quant_type_named("q6_k")->quantize(value, 1, block);
  assert_int_equal(rf_gguf_writer_put_bytes(writer, block, 209, &error), RAFTER_FAILED);
  assert_int_equal(rf_gguf_writer_put_bytes(writer, block, 210, &error), RAFTER_OK);
  float rest[515];
  memcpy(rest, value + 256, 512 * 4);
  memcpy(rest + 512, value, 12);
  assert_int_equal(rf_gguf_writer_put(writer, rest, 515, &error), RAFTER_OK); /* past the end of a tensor */
  assert_int_equal(rf_gguf_writer_put(writer, rest, 1, &error), RAFTER_FAILED);
  assert_int_not_equal(access(at("out.gguf"), F_OK), 0);
  assert_int_equal(rf_gguf_writer_commit(writer, &error), RAFTER_OK);

  rf_gguf *file, *again;
  float got[768], expected[768];
  uint8_t coded[1024];
  assert_int_equal(rf_gguf_open(at("out.gguf"), &file, &error), RAFTER_OK);
  assert_int_equal(rf_gguf_count(file), 5);
  for (int i = 0; i < 5; ++i) {
    const rf_quant_tensor *t = rf_gguf_at(file, i), *w = &tensors[i];
    assert_string_equal(t->name, w->name);
    assert_ptr_equal(t->type, w->type);
    assert_int_equal(t->rank, w->rank);
    assert_memory_equal(t->shape, w->shape, sizeof *t->shape * (size_t)t->rank);
    assert_int_equal(rf_quant_read(t, 0, t->count, got, &error), RAFTER_OK);
    t->type->quantize(value, t->count / t->type->values, coded);
    t->type->dequantize(coded, t->count / t->type->values, expected);
    assert_memory_equal(got, expected, (size_t)t->count * 4);
  }
  int64_t whole, count;
  int32_t *ints;
  float *floats;
  rf_gguf_text *texts;
  assert_int_equal(rf_gguf_int(file, "a.u64", 0, INT64_MAX, &whole, &error) | (whole != INT64_MAX), 0);
  assert_int_equal(rf_gguf_int(file, "a.i8", -9, 0, &whole, &error) | (whole != -5), 0);
  assert_int_equal(rf_gguf_int(file, "a.u16", 0, 65535, &whole, &error) | (whole != 65535), 0);
  assert_int_equal(rf_gguf_int(file, "a.i16", -32768, 0, &whole, &error) | (whole != -32768), 0);
  assert_int_equal(rf_gguf_int(file, "a.again", -9, 9, &whole, &error) | (whole != -2), 0);
  assert_int_equal(rf_gguf_ints(file, "a.ints", -9, 9, &ints, &count, &error), RAFTER_OK);
  assert_true(count == 3 && ints[0] == -1 && ints[2] == 3);
  free(ints);
  assert_int_equal(rf_gguf_ints(file, "a.ints", 0, 9, &ints, &count, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "item 0"));
  assert_int_equal(rf_gguf_floats(file, "a.floats", &floats, &count, &error), RAFTER_OK);
  assert_true(count == 2 && floats[1] == -2);
  free(floats);
  assert_int_equal(rf_gguf_texts(file, "a.texts", &texts, &count, &error), RAFTER_OK);
  assert_true(count == 3 && texts[2].bytes == 2 && texts[2].at[1] == 'x');
  free(texts);
  assert_int_equal(rf_gguf_texts(file, "a.none", &texts, &count, &error), RAFTER_OK);
  assert_int_equal(count, 0);
  free(texts);

  /* Copied metadata and copied blocks give the same file, byte for byte. */
  rf_gguf_meta *copy = rf_gguf_meta_new();
  assert_true(rf_gguf_copy(copy, file));
  assert_int_equal(rf_gguf_writer_open(at("again.gguf"), copy, rf_gguf_at(file, 0), 5, &writer, &error),
                   RAFTER_OK);
  for (int i = 0; i < 5; ++i)
    assert_int_equal(
        rf_gguf_writer_put_bytes(writer, rf_gguf_at(file, i)->data, rf_gguf_at(file, i)->bytes, &error),
        RAFTER_OK);
  assert_int_equal(rf_gguf_writer_commit(writer, &error), RAFTER_OK);
  assert_int_equal(rf_gguf_open(at("again.gguf"), &again, &error), RAFTER_OK);
  rf_gguf_close(again);
  char *a, *b;
  size_t a_bytes, b_bytes;
  assert_int_equal(rf_file_read(at("out.gguf"), 1 << 20, &a, &a_bytes, &error) |
                       rf_file_read(at("again.gguf"), 1 << 20, &b, &b_bytes, &error),
                   0);
  assert_int_equal(a_bytes, b_bytes);
  assert_memory_equal(a, b, a_bytes);
  assert_int_equal(a_bytes % 32, 0);
  free(a);
  free(b);
  rf_gguf_meta_free(copy);
  rf_gguf_meta_free(meta);
  rf_gguf_close(file);
}

static void test_leaves_nothing_on_failure(void **state) {
  (void)state;
  rf_error error;
  rf_gguf_meta *meta = some_meta();
  rf_gguf_writer *writer;
  float zeros[64] = {0};
  char command[160];
  rf_quant_tensor t[2] = {{.name = "a", .type = rf_quant_type_named("q4_0"), .rank = 1, .shape = {64}},
                          {.name = "a", .type = rf_quant_type_named("f32"), .rank = 1, .shape = {1}}};
  assert_int_equal(rf_gguf_writer_open(at("bad.gguf"), meta, t, 2, &writer, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "twice"));
  t[1].name = "";
  assert_int_equal(rf_gguf_writer_open(at("bad.gguf"), meta, t, 2, &writer, &error), RAFTER_FAILED);
  t[1].name = "b";
  t[0].shape[0] = 65;
  assert_int_equal(rf_gguf_writer_open(at("bad.gguf"), meta, t, 2, &writer, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "whole blocks"));
  t[0].shape[0] = -32;
  assert_int_equal(rf_gguf_writer_open(at("bad.gguf"), meta, t, 2, &writer, &error), RAFTER_FAILED);
  t[0].shape[0] = 64;
  t[0].rank = 5;
  assert_int_equal(rf_gguf_writer_open(at("bad.gguf"), meta, t, 2, &writer, &error), RAFTER_FAILED);
  t[0].rank = 1;
  assert_int_equal(rf_gguf_writer_open(at("nothere/bad.gguf"), meta, t, 2, &writer, &error), RAFTER_FAILED);
  assert_int_equal(rf_gguf_writer_open(at("bad.gguf"), meta, t, 2, &writer, &error), RAFTER_OK);
  assert_int_equal(rf_gguf_writer_put(writer, zeros, 40, &error), RAFTER_OK);
  /* in the middle of a block */
  assert_int_equal(rf_gguf_writer_put_bytes(writer, zeros, 18, &error), RAFTER_FAILED);
  assert_int_equal(rf_gguf_writer_commit(writer, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "is incomplete"));
  t[0].type = rf_quant_type_named("iq4_xs");
  t[0].shape[0] = 256;
  assert_int_equal(rf_gguf_writer_open(at("bad.gguf"), meta, t, 1, &writer, &error), RAFTER_OK);
  assert_int_equal(rf_gguf_writer_put(writer, zeros, 1, &error), RAFTER_FAILED);
  rf_gguf_writer_discard(writer);

  struct rlimit old, small = {4096, RLIM_INFINITY}; /* a disk that becomes full */
  getrlimit(RLIMIT_FSIZE, &old);
  small.rlim_max = old.rlim_max;
  signal(SIGXFSZ, SIG_IGN);
  t[0].type = rf_quant_type_named("f32");
  t[0].shape[0] = 1 << 16;
  setrlimit(RLIMIT_FSIZE, &small);
  float *many = calloc(1 << 16, 4);
  rf_status status = rf_gguf_writer_open(at("bad.gguf"), meta, t, 1, &writer, &error);
  if (status == RAFTER_OK) {
    status = rf_gguf_writer_put(writer, many, 1 << 16, &error);
    if (status == RAFTER_OK) status = rf_gguf_writer_commit(writer, &error);
    else rf_gguf_writer_discard(writer);
  }
  setrlimit(RLIMIT_FSIZE, &old);
  free(many);
  assert_int_equal(status, RAFTER_FAILED);
  snprintf(command, sizeof command, "ls -A '%s' | grep -q bad", folder);
  assert_int_not_equal(system(command), 0);
  rf_gguf_meta_free(meta);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reads_what_is_there),
      cmocka_unit_test(test_refuses_lies),
      cmocka_unit_test(test_survives_cuts_and_flips),
      cmocka_unit_test_setup_teardown(test_no_file, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_writes_what_the_reader_reads, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_leaves_nothing_on_failure, make_folder, remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
