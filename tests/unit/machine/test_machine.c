/* test_machine.c - tests data sheets, the detected host, and machine files that other people
 * wrote. */
#include "machine/machine.h"

#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/rafter-machine-XXXXXX";
static char path[256];

static int make_folder(void **state) {
  (void)state;
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s/m.json", folder);
  setenv("XDG_CACHE_HOME", folder, 1);
  return 0;
}

static int drop_folder(void **state) {
  (void)state;
  unlink(path);
  return rmdir(folder);
}

static void store(const char *text, size_t length) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, length, file), length);
  assert_int_equal(fclose(file), 0);
}

static void every_sheet_reads_and_names_its_sources(void **state) {
  (void)state;
  static const char *const wanted[] = {"a5000",   "a100-80g", "rtx-4090", "l4",     "h100-sxm",
                                       "h200",    "b200",     "gb200",    "tpu-v4", "tpu-v5e",
                                       "tpu-v5p", "tpu-v6e",  "tpu-v7x"};
  static rf_machine machine;
  rf_error error;
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
    assert_int_equal(rf_machine_find(wanted[i], &machine, &error), RAFTER_OK);
  json_t *sheets, *row, *before;
  size_t count, k;
  assert_int_equal(rf_json_read("data/machines.json", 1 << 24, &sheets, &error), RAFTER_OK);
  json_t *rows = json_object_get(sheets, "machines");
  json_array_foreach (rows, count, row) {
    const char *name = json_string_value(json_object_get(row, "name"));
    assert_int_equal(rf_machine_find(name, &machine, &error), RAFTER_OK);
    assert_string_equal(machine.name, name);
    assert_string_equal(machine.source, "data-sheet");
    assert_true(strlen(machine.source_note) > 20);
    assert_true(machine.flops[RF_F32] > 1e12 && machine.flops[RF_BF16] > machine.flops[RF_F32]);
    assert_true(machine.memory_bytes > 1e10 && machine.reserve_bytes < 0.1 * machine.memory_bytes);
    assert_true(machine.read_bps > 1e11 && machine.read_bps == machine.copy_bps);
    assert_true(machine.efficiency_compute < 1 && machine.efficiency_memory < 1);
    json_array_foreach (rows, k, before)
      if (k < count) assert_string_not_equal(json_string_value(json_object_get(before, "name")), name);
  }
  assert_true(count >= 6);
  json_decref(sheets);
}

static void published_figures(void **state) {
  (void)state;
  static rf_machine m;
  assert_int_equal(rf_machine_find("tpu-v5e", &m, NULL), RAFTER_OK);
  assert_float_equal(m.flops[RF_BF16] / m.read_bps, 240, 1); /* critical intensity */
  /* the largest program that its compiler accepts */
  assert_float_equal(m.memory_bytes - m.reserve_bytes, 16909271040.0, 1);
  assert_int_equal(rf_machine_find("h100-sxm", &m, NULL), RAFTER_OK);
  assert_float_equal(m.flops[RF_BF16] / m.read_bps, 295, 1);
  assert_int_equal(rf_machine_find("a100-80g", &m, NULL), RAFTER_OK);
  assert_float_equal(m.flops[RF_BF16] / m.read_bps, 153, 1);
}

static void unknown_machines_and_shapes_are_refused(void **state) {
  (void)state;
  static rf_machine m;
  rf_error e;
  assert_int_equal(rf_machine_find("h100-sxn", &m, &e), RAFTER_INVALID);
  assert_non_null(strstr(e.hint, "did you mean h100-sxm?"));
  static const struct {
    const char *spec, *says;
  } rows[] = {
      {"tpu-v5e:", "is not a shape"},
      {"tpu-v5e:0x4", "is not a shape"},
      {"tpu-v5e:-2", "is not a shape"},
      {"tpu-v5e:2x", "is not a shape"},
      {"tpu-v5e:2x4*", "is not a shape"},
      {"tpu-v5e:2y4", "is not a shape"},
      {"tpu-v5e:99999999999999999999", "is not a shape"},
      {"tpu-v5e:2x4x2", "tpu-v5e has 2 axes"},
      {"tpu-v5e:2x32", "does not fit a pod of tpu-v5e (expected axes within 16x16, got 32)"},
      {"tpu-v7x:64x64x64", "more chips than a pod of tpu-v7x (expected at most 9216, got 262144)"},
      {"h100-sxm:12", "joins at most 8 chips"},
      {"h100-sxm:8x4x2", "levels"},
      {"a5000:2x2", "no figure for the network between nodes"},
      {"a5000*2", "no figure for the network between slices"},
      {"tpu-v5e@nine", "no such edition"},
      {"tpu-v5e@:4x4", "has no edition after @"},
      {"tpu-v5e:16x16*1000000", "too many chips"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_int_equal(rf_machine_find(rows[i].spec, &m, &e), RAFTER_INVALID);
    if (!strstr(e.message, rows[i].says))
      fail_msg("%s: '%s' does not say '%s'", rows[i].spec, e.message, rows[i].says);
    assert_true(e.hint[0]);
  }
  static const char *const shapes[][2] = {{"tpu-v5e:256", "for 256 chips, write tpu-v5e:16x16"},
                                          {"tpu-v5e:2x32", "for 64 chips, write tpu-v5e:8x8"},
                                          {"tpu-v5e:512", "for 512 chips, write tpu-v5e:16x16*2"},
                                          {"tpu-v5e:257", "write *2 after the shape for two slices"}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    assert_int_equal(rf_machine_find(shapes[i][0], &m, &e), RAFTER_INVALID);
    assert_string_equal(e.hint, shapes[i][1]);
  }
  assert_int_equal(rf_machine_find("tpu-v5e@nine", &m, &e), RAFTER_INVALID);
  assert_non_null(strstr(e.hint, "tpu-v5e@sb-new"));
  assert_int_equal(rf_machine_find("tpu-v99:2x4", &m, &e), RAFTER_INVALID);
  assert_non_null(strstr(e.message, "unknown machine 'tpu-v99'"));
  assert_int_equal(rf_machine_find("/no/such/file.json", &m, &e), RAFTER_FAILED);
  assert_int_equal(rf_machine_find("/tmp", &m, &e), RAFTER_FAILED);
}

static void shapes_and_editions(void **state) {
  (void)state;
  static const struct {
    const char *spec;
    int chips, rank, shape[3], slices;
  } rows[] = {
      {"tpu-v5e", 1, 0, {0}, 0},
      {"tpu-v5e:4x8", 32, 2, {4, 8}, 1},
      {"tpu-v5p:28x20x16", 8960, 3, {28, 20, 16}, 1},
      {"tpu-v5e:16x16*3", 768, 2, {16, 16}, 3},
      {"tpu-v5e*2", 2, 0, {0}, 2},
      {"h100-sxm:2048x8", 16384, 2, {8, 2048}, 1},
      {"h100-sxm:4", 4, 1, {4}, 1},
      {"h100-sxm:32", 32, 2, {8, 4}, 1},
      {"gb200:2x72", 144, 2, {72, 2}, 1},
      {"h100-sxm:2x4", 8, 2, {4, 2}, 1},
      {"h100-sxm:1x8", 8, 2, {8, 1}, 1},
      {"h100-sxm:2x16", 32, 2, {16, 2}, 1},
  };
  static rf_machine m, again;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_int_equal(rf_machine_find(rows[i].spec, &m, NULL), RAFTER_OK);
    assert_int_equal(m.chips, rows[i].chips);
    assert_int_equal(m.shape_rank, rows[i].rank);
    assert_int_equal(m.slices, rows[i].slices);
    for (int k = 0; k < m.shape_rank; k++) assert_int_equal(m.shape[k], rows[i].shape[k]);
    assert_int_equal(rf_machine_write(&m, path, NULL), RAFTER_OK);
    assert_int_equal(rf_machine_read(path, &again, NULL), RAFTER_OK);
    snprintf(again.source, sizeof again.source, "%s", m.source); /* the name from the file */
    assert_memory_equal(&m, &again, sizeof m);
  }
  assert_int_equal(rf_machine_find("tpu-v5e@sb:2x2", &m, NULL), RAFTER_OK);
  assert_string_equal(m.edition, "sb");
  assert_float_equal(m.read_bps, 8.1e11, 1);
  assert_float_equal(m.flops[RF_BF16], 1.97e14, 1); /* A figure that the edition does not have stays. */
  assert_int_equal(rf_machine_find("h100-sxm@sb", &m, NULL), RAFTER_OK);
  assert_float_equal(m.usd_per_chip_hour, 10.80, 1e-9);
  assert_int_equal(rf_machine_find("b200", &m, NULL), RAFTER_OK); /* a committed price is not a list price */
  assert_true(m.usd_per_chip_hour == 0 && m.price_count == 1 && !m.price_tier[0]);
  assert_int_equal(rf_machine_set_price(&m, "committed", NULL), RAFTER_OK);
  assert_true(m.usd_per_chip_hour == 6.95 && !strcmp(m.price_tier, "committed"));
  assert_int_equal(rf_machine_set_price(&m, "2.5", NULL), RAFTER_OK);
  assert_true(m.usd_per_chip_hour == 2.5 && !strcmp(m.price_tier, "given"));
  rf_error refused = {0};
  assert_int_equal(rf_machine_set_price(&m, "spot", &refused), RAFTER_INVALID);
  assert_non_null(strstr(refused.message,
                         "no price 'spot' of b200 is known: the data sheet has committed 6.95 USD "
                         "(--price: expected a price of the data sheet, or an amount)"));
  assert_int_equal(rf_machine_find("tpu-v5e", &m, NULL), RAFTER_OK);
  assert_true(rf_machine_wraps(&m, 16) && !rf_machine_wraps(&m, 8) && !rf_machine_wraps(&m, 1));
  assert_int_equal(rf_machine_find("tpu-v4", &m, NULL), RAFTER_OK);
  assert_true(rf_machine_wraps(&m, 4) && rf_machine_wraps(&m, 12) && !rf_machine_wraps(&m, 2));
}

/* Every figure of every row has a source. */
static void check_sources(const json_t *value, const char *name, const json_t *source, const char *row) {
  static const char *const plain[] = {"name", "title", "kind", "chips", "prices", "editions", "source"};
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
    if (!strcmp(name, plain[i])) return;
  if (json_is_string(json_object_get(source, name))) return;
  if (!json_is_object(value)) fail_msg("%s: %s has no source", row, name);
  const char *key;
  json_t *inner;
  json_object_foreach ((json_t *)value, key, inner) {
    char path_of[128];
    snprintf(path_of, sizeof path_of, "%s.%s", name, key);
    check_sources(inner, path_of, source, row);
  }
}

static void every_figure_has_a_source(void **state) {
  (void)state;
  json_t *root;
  assert_int_equal(rf_json_read("data/machines.json", 1 << 20, &root, NULL), RAFTER_OK);
  size_t i, k;
  const json_t *row, *price;
  json_array_foreach (json_object_get(root, "machines"), i, row) {
    const char *key, *name = json_string_value(json_object_get(row, "name")), *edition;
    json_t *value, *changes;
    json_object_foreach ((json_t *)row, key, value)
      check_sources(value, key, json_object_get(row, "source"), name);
    json_array_foreach (json_object_get(row, "prices"), k, price) {
      assert_true(strlen(json_string_value(json_object_get(price, "source"))) > 5);
      assert_non_null(json_object_get(price, "date"));
    }
    json_object_foreach (json_object_get(row, "editions"), edition, changes) {
      static rf_machine m;
      char spec[80];
      snprintf(spec, sizeof spec, "%s@%s", name, edition);
      assert_int_equal(rf_machine_find(spec, &m, NULL), RAFTER_OK);
      json_object_foreach (changes, key, value)
        check_sources(value, key, json_object_get(changes, "source"), spec);
    }
  }
  json_decref(root);
}

static void the_host_is_detected(void **state) {
  (void)state;
  static rf_machine m;
  /* XDG_CACHE_HOME is empty, so there is no calibration. */
  assert_int_equal(rf_machine_find("local", &m, NULL), RAFTER_OK);
  assert_string_equal(m.source, "detected");
  assert_int_equal(m.kind, RF_MACHINE_CPU);
  assert_true(m.threads >= 1 && m.flops[RF_F32] > 1e9 && m.memory_bytes > 1e8 && m.reserve_bytes > 0);
  assert_true(m.isa[0]);
}

static void a_written_machine_reads_back_the_same(void **state) {
  (void)state;
  static rf_machine a, b;
  assert_int_equal(rf_machine_detect(&a, NULL), RAFTER_OK);
  snprintf(a.source, sizeof a.source, "calibrated");
  a.calibration = RF_CALIBRATION;
  a.flops[RF_F32] = 449.123456789e9;
  a.scaling_count = 2;
  a.flops_vectors[RF_BF16] = 8.5e11;
  a.flops_vectors[RF_I8] = 1.7e12;
  a.scaling[0] = (rf_scaling){1, 2.25e11, 17e9};
  a.scaling[1] = (rf_scaling){2, 4.49e11, 33e9};
  a.curve_count = RF_MAX_CURVES;
  for (int i = 0; i < a.curve_count; i++) {
    rf_curve *c = &a.curve[i];
    snprintf(c->op, sizeof c->op, "op_%d", i);
    snprintf(c->kernel, sizeof c->kernel, "gemm_avx512_12x32");
    c->dtype = i % 2 ? RF_BF16 : RF_F32;
    c->count = 1 + i % RF_CURVE_POINTS;
    for (int k = 0; k < c->count; k++) {
      c->work[k] = 1000.25 * (k + 1) / 3;
      c->seconds[k] = 1e-6 / (k + 3);
      c->size[k] = i % 3 ? c->work[k] : k + 1;
    }
  }
  rf_machine_cpu(a.tuned.cpu);
  a.tuned.here = a.tuned.cpu[0];
  a.tuned.threads = 2;
  a.tuned.count = 2 * RF_TUNED_CLASSES;
  for (int i = 0; i < a.tuned.count; i++) {
    rf_tuned_row *row = &a.tuned.row[i];
    *row = (rf_tuned_row){
        .op = "matmul_dw", .kernel = "gemm_avx512_12x32", .class = i / 2, .dtype = i % 2 ? RF_BF16 : RF_F32};
    row->usual = (rf_blocks){320, 1500 << 10, 4096};
    row->gain = 0.001 * i;
    row->spread = 1e-4 * i;
    if (i % 3) row->best = (rf_blocks){256 + i, 1 << 20, 8192};
  }
  for (int k = 0; k < 2 && a.tuned.cpu[0]; k++) {
    assert_int_equal(rf_machine_write(&a, path, NULL), RAFTER_OK);
    assert_int_equal(rf_machine_read(path, &b, NULL), RAFTER_OK);
    assert_memory_equal(&a, &b, sizeof a);
    memset(a.tuned.cpu, 0, sizeof a.tuned.cpu);
    snprintf(a.tuned.cpu, sizeof a.tuned.cpu, "another CPU");
    a.tuned.here = false;
  }
  memset(&a.tuned, 0, sizeof a.tuned);
  assert_int_equal(rf_machine_write(&a, path, NULL), RAFTER_OK);
  assert_int_equal(rf_machine_read(path, &b, NULL), RAFTER_OK);
  assert_memory_equal(&a, &b, sizeof a);
  assert_int_equal(rf_machine_write(&a, "/no/such/folder/m.json", NULL), RAFTER_FAILED);
}

/* A file without the field is from before the field. Only calibrations have a version. */
static void calibrations_of_another_version_are_recognised(void **state) {
  (void)state;
  static rf_machine m;
  char text[200];
  assert_int_equal(rf_machine_detect(&m, NULL), RAFTER_OK);
  assert_false(rf_machine_old_calibration(&m, text));
  assert_string_equal(text, "");
  snprintf(m.source, sizeof m.source, "calibrated");
  static const struct {
    int calibration;
    const char *says;
  } rows[] = {{0, "an earlier version"}, {RF_CALIBRATION, NULL}, {RF_CALIBRATION + 1, "a later version"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    m.calibration = rows[i].calibration;
    assert_int_equal(rf_machine_write(&m, path, NULL), RAFTER_OK);
    memset(&m, 0, sizeof m);
    assert_int_equal(rf_machine_read(path, &m, NULL), RAFTER_OK);
    assert_int_equal(m.calibration, rows[i].calibration);
    assert_int_equal(rf_machine_old_calibration(&m, text), rows[i].says != NULL);
    if (rows[i].says) assert_non_null(strstr(text, rows[i].says));
    if (rows[i].says) assert_non_null(strstr(text, "run `rafter calibrate` again"));
  }
}

/* A calibration that other programs slowed is recognised, in its file too. */
static void busy_calibrations_are_recognised(void **state) {
  (void)state;
  static rf_machine m;
  char text[200];
  assert_int_equal(rf_machine_detect(&m, NULL), RAFTER_OK);
  for (int percent = 0; percent < 60; percent += 58 / 2) {
    snprintf(m.source, sizeof m.source, "calibrated");
    m.others_part = percent / 100.0;
    assert_int_equal(rf_machine_write(&m, path, NULL), RAFTER_OK);
    memset(&m, 0, sizeof m);
    assert_int_equal(rf_machine_read(path, &m, NULL), RAFTER_OK);
    assert_true(m.others_part == percent / 100.0);
    assert_int_equal(rf_machine_busy_calibration(&m, text), percent > 10);
    if (percent == 58) assert_non_null(strstr(text, "other programs used 58 % of the cores"));
  }
}

#define MACHINE \
  "{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":1e12},\"memory_bytes\":1e10,\"memory_bps\":1e10"
#define TUNED(rows) MACHINE ",\"tuned\":{\"cpu\":\"c\",\"threads\":2,\"rows\":[" rows "]}}"
#define TUNED_ROW(op, class, dtype, usual, best) \
  "{\"op\":\"" op "\",\"class\":\"" class "\",\"dtype\":\"" dtype "\",\"kernel\":\"k\",\"default\":" usual \
                                          ",\"best\":" best ",\"gain\":0,\"spread\":0}"
#define BLOCKS(kc, a_bytes, nc) "{\"kc\":" kc ",\"a_bytes\":" a_bytes ",\"nc\":" nc "}"
#define GOOD_BLOCKS BLOCKS("320", "1048576", "2048")
#define TUNED_BEST(best) TUNED(TUNED_ROW("matmul", "rows<=128 weights<=1Mi", "f32", GOOD_BLOCKS, best))
static void bad_files_are_refused_with_the_field(void **state) {
  (void)state;
  static const struct {
    const char *text, *says;
  } rows[] = {
      {"", "not valid JSON"},
      {"[1,2]", "not a JSON object"},
      {"{\"name\":\"x\",\"name\":\"y\"}", "duplicate"},
      {"{\"format\":\"other\"}", "another format"},
      {"{\"kind\":\"cpu\"}", "\"name\" is missing"},
      {"{\"name\":\"\",\"kind\":\"cpu\"}", "name has a bad length"},
      {"{\"name\":\"x\\u001b[2J\",\"kind\":\"cpu\"}", "name holds a control character (byte 1"},
      {"{\"name\":\"x\",\"kind\":\"abacus\"}", "unknown kind"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":[]}", "flops is not an object"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{}}", "flops is empty"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f99\":1e12}}", "not a dtype"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":-1}}", "\"f32\" is out of range"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":\"fast\"}}", "\"f32\" has the wrong type"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":1e12}}", "\"memory_bytes\" is missing"},
      {MACHINE ",\"flops_vectors\":[]}", "flops_vectors is not an object"},
      {MACHINE ",\"flops_vectors\":{\"f99\":1e12}}", "not a dtype"},
      {MACHINE ",\"flops_vectors\":{\"i8\":-1}}", "\"i8\" is out of range"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":1e12},\"memory_bytes\":1e99}",
       "\"memory_bytes\" is out of range"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":1e12},\"memory_bytes\":1e10,\"reserve_bytes\":"
       "1e11}",
       "\"reserve_bytes\" is out of range"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":1e12},\"memory_bytes\":1e10,\"read_bps\":1e10}",
       "\"copy_bps\" is missing"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":1e12},\"memory_bytes\":1e10,\"memory_bps\":1e10,"
       "\"curves\":3}",
       "curves is not a list"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":1e12},\"memory_bytes\":1e10,\"memory_bps\":1e10,"
       "\"curves\":[7]}",
       "curve is not an object"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":1e12},\"memory_bytes\":1e10,\"memory_bps\":1e10,"
       "\"curves\":[{\"op\":\"a\",\"dtype\":"
       "\"f32\","
       "\"points\":[]}]}",
       "points of curve a"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":1e12},\"memory_bytes\":1e10,\"memory_bps\":1e10,"
       "\"curves\":[{\"op\":\"a\",\"dtype\":"
       "\"f32\","
       "\"points\":[{\"work\":2,\"seconds\":1},{\"work\":2,\"seconds\":1}]}]}",
       "do not ascend"},
      {"{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":1e12},\"memory_bytes\":1e10,\"memory_bps\":1e10,"
       "\"curves\":[{\"op\":\"a\",\"dtype\":"
       "\"f32\","
       "\"points\":[{\"work\":2}]}]}",
       "\"seconds\" is missing"},
      {MACHINE ",\"topology\":3}", "topology is not an object"},
      {MACHINE ",\"topology\":{\"form\":\"star\"}}", "unknown form"},
      {MACHINE ",\"topology\":{\"form\":\"torus\",\"oneway_bps\":1e9}}", "needs its size"},
      {MACHINE ",\"topology\":{\"form\":\"torus\",\"axes\":9,\"oneway_bps\":1e9}}",
       "\"axes\" is out of range"},
      {MACHINE ",\"topology\":{\"form\":\"torus\",\"axes\":2,\"pod\":[4],\"oneway_bps\":1e9}}",
       "another number of axes"},
      {MACHINE ",\"topology\":{\"form\":\"torus\",\"axes\":1,\"pod\":[0],\"oneway_bps\":1e9}}",
       "pod[0] is not a whole number"},
      {MACHINE ",\"topology\":{\"form\":\"switch\",\"domain\":8}}", "needs its size"},
      {MACHINE ",\"prices\":[{\"tier\":\"list\"}]}", "\"usd_per_chip_hour\" is missing"},
      {MACHINE ",\"prices\":{}}", "prices is not a list"},
      {MACHINE ",\"tuned\":[]}", "tuned is not an object"},
      {MACHINE ",\"tuned\":{}}", "\"cpu\" is missing"},
      {MACHINE ",\"tuned\":{\"cpu\":\"c\"}}", "\"threads\" is missing"},
      {MACHINE ",\"tuned\":{\"cpu\":\"c\",\"threads\":0,\"rows\":[]}}", "\"threads\" is out of range"},
      {MACHINE ",\"tuned\":{\"cpu\":\"c\",\"threads\":2,\"rows\":{}}}", "rows is not a list"},
      {TUNED("7"), "row 0: a row is not an object"},
      {TUNED(TUNED_ROW("softmax", "rows<=128 weights<=1Mi", "f32", GOOD_BLOCKS, GOOD_BLOCKS)),
       "'softmax' has no blocks to tune"},
      {TUNED(TUNED_ROW("matmul", "rows<=9", "f32", GOOD_BLOCKS, GOOD_BLOCKS)),
       "unknown shape class 'rows<=9'"},
      {TUNED(TUNED_ROW("matmul", "rows<=128 weights<=1Mi", "i8", GOOD_BLOCKS, GOOD_BLOCKS)),
       "unknown dtype 'i8'"},
      {TUNED(TUNED_ROW("matmul", "rows<=128 weights<=1Mi", "f32", "3", "null")), "blocks are not an object"},
      {TUNED_BEST("{\"kc\":320}"), "\"a_bytes\" is missing"},
      {TUNED_BEST(BLOCKS("0", "1048576", "2048")), "\"kc\" is out of range"},
      {TUNED_BEST(BLOCKS("-320", "1048576", "2048")), "\"kc\" is out of range"},
      {TUNED_BEST(BLOCKS("1000000000000", "1048576", "2048")), "\"kc\" is out of range"},
      {TUNED_BEST(BLOCKS("320", "0", "2048")), "\"a_bytes\" is out of range"},
      {TUNED_BEST(BLOCKS("320", "1099511627776", "2048")), "\"a_bytes\" is out of range"},
      {TUNED_BEST(BLOCKS("320", "1048576", "31")), "\"nc\" is out of range"},
      {TUNED_BEST(BLOCKS("320", "1048576", "9223372036854775807")), "\"nc\" is out of range"},
      {TUNED_BEST(BLOCKS("320.5", "1048576", "2048")), "\"kc\" has the wrong type"},
      {TUNED(TUNED_ROW("matmul", "rows<=128 weights<=1Mi", "f32", GOOD_BLOCKS,
                       "null") "," TUNED_ROW("matmul", "rows<=128 weights<=1Mi", "f32", GOOD_BLOCKS, "null")),
       "same op, class, dtype and kernel as row 0"},
  };
  static rf_machine m;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_error e;
    store(rows[i].text, strlen(rows[i].text));
    assert_int_equal(rf_machine_read(path, &m, &e), RAFTER_FAILED);
    if (!strstr(e.message, rows[i].says))
      fail_msg("row %zu: '%s' does not say '%s'", i, e.message, rows[i].says);
    assert_non_null(strstr(e.message, path));
  }
  /* A complete file with one damaged byte at a time gives a machine or an error. */
  assert_int_equal(rf_machine_find("a5000", &m, NULL), RAFTER_OK);
  assert_int_equal(rf_machine_write(&m, path, NULL), RAFTER_OK);
  char text[8192];
  FILE *file = fopen(path, "r");
  size_t length = fread(text, 1, sizeof text, file);
  fclose(file);
  for (size_t i = 0; i < length; i += 3) {
    char was = text[i];
    text[i] = (char)(i % 2 ? '"' : 0xf3);
    store(text, length);
    text[i] = was;
    rf_machine_read(path, &m, NULL);
  }
  for (size_t i = 0; i < length; i += 7) {
    store(text, i);
    assert_int_equal(rf_machine_read(path, &m, NULL), RAFTER_FAILED);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_sheet_reads_and_names_its_sources),
      cmocka_unit_test(published_figures),
      cmocka_unit_test(unknown_machines_and_shapes_are_refused),
      cmocka_unit_test(the_host_is_detected),
      cmocka_unit_test(shapes_and_editions),
      cmocka_unit_test(every_figure_has_a_source),
      cmocka_unit_test(a_written_machine_reads_back_the_same),
      cmocka_unit_test(calibrations_of_another_version_are_recognised),
      cmocka_unit_test(busy_calibrations_are_recognised),
      cmocka_unit_test(bad_files_are_refused_with_the_field),
  };
  return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
