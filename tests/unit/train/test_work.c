/* test_work.c - the FLOPs that a step reports are those of the tokens in its rows, as a plan of
 * only these tokens prices them. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "train/work.h"

#include "support/scratch.h"

static rf_machine machine;

static rf_plan *plan_of(const rf_model *model, int64_t seq, int64_t microbatch, rf_remat remat) {
  rf_plan_options options = {.build = {.job = RF_JOB_TRAIN,
                                       .dtype = RF_F32,
                                       .softmax = RF_F32,
                                       .microbatch = microbatch,
                                       .seq = seq,
                                       .accumulate = 2},
                             .remat = remat,
                             .backend = &RF_BACKEND_CPU,
                             .isa = rf_isa_detect(),
                             .threads = 2,
                             .machine = &machine};
  rf_plan *plan = NULL;
  rf_error error = {0};
  if (rf_plan_make(model, &options, &plan, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return plan;
}

/* FLOPs of a step of `rows` rows of 64 tokens, made of examples that read 32 tokens each. */
static double drawn(const rf_model *model, const rf_plan *plan, bool pack, int64_t rows,
                    int64_t expected_tokens) {
  rf_source_options data = {.model = model, .seq = 64, .pack = pack, .work_folder = folder};
  rf_loader loader;
  rf_error error = {0};
  int64_t tokens, valid;
  if (rf_loader_open(at("half.jsonl"), &data, 1, rows, &loader, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  rf_loader_draw(&loader, &tokens, &valid);
  assert_int_equal(tokens, expected_tokens);
  assert_int_equal(valid, expected_tokens / 32 * 7); /* seven tokens of each example count */
  rf_step_work work = rf_step_work_of(plan);
  double flops = rf_step_flops(&work, &loader, tokens);
  rf_loader_close(&loader);
  return flops;
}

static void only_own_tokens_are_work(void **state) {
  (void)state;
  static const char *const shapes[] = {
      "gpt:layers=2,width=32,heads=2,ff=64,vocab=300,seq=64",
      "gemma3:layers=6,width=32,heads=4,kv_heads=1,head_dim=16,ff=64,vocab=300,seq=64,window=16"};
  char *text = NULL;
  size_t bytes = 0;
  FILE *file = open_memstream(&text, &bytes);
  for (int e = 0; e < 64; e++) { /* 32 tokens and the last label; the loss counts 7 of them */
    fprintf(file, "{\"tokens\":[1");
    for (int i = 1; i < 32; i++) fprintf(file, ",%d", e + i);
    fprintf(file, "],\"mask\":[0");
    for (int i = 1; i < 32; i++) fprintf(file, ",%d", i > 24);
    fprintf(file, "]}\n");
  }
  fclose(file);
  rf_error error;
  assert_int_equal(rf_file_write(at("half.jsonl"), text, bytes, &error), RAFTER_OK);
  free(text);
  for (int k = 0; k < 2; k++)
    for (int remat = RF_REMAT_NONE; remat <= RF_REMAT_BLOCK; remat += RF_REMAT_BLOCK) {
      rf_model model;
      if (rf_model_resolve(shapes[k], &model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
      rf_plan *rows = plan_of(&model, 64, 2, (rf_remat)remat), *twice = plan_of(&model, 32, 4, RF_REMAT_NONE),
              *once = plan_of(&model, 32, 2, RF_REMAT_NONE);
      double packed = drawn(&model, rows, true, 4, 4 * 64), alone = drawn(&model, rows, false, 4, 4 * 32);
      if (fabs(packed - twice->model_flops) > 1e-12 * packed)
        fail_msg("%s: packed %.17g, planned %.17g", shapes[k], packed, twice->model_flops);
      if (fabs(alone - once->model_flops) > 1e-12 * alone)
        fail_msg("%s: alone %.17g, planned %.17g", shapes[k], alone, once->model_flops);
      assert_true(packed < rows->model_flops); /* full rows see more keys */
      rf_plan_free(rows);
      rf_plan_free(twice);
      rf_plan_free(once);
    }
}

static void full_rows_are_the_plan(void **state) {
  (void)state;
  rf_model model;
  rf_error error = {0};
  rf_loader loader;
  int64_t tokens, valid, steps;
  if (rf_model_resolve("gpt:layers=2,width=32,heads=2,ff=64,vocab=300,seq=64", &model, NULL, &error) !=
      RAFTER_OK)
    fail_msg("%s", error.message);
  rf_plan *plan = plan_of(&model, 64, 2, RF_REMAT_NONE);
  rf_source_options data = {.model = &model, .seq = 64, .pack = true, .work_folder = folder};
  assert_int_equal(rf_loader_open("random:seed=1", &data, 1, 4, &loader, &error), RAFTER_OK);
  rf_loader_draw(&loader, &tokens, &valid);
  rf_step_work work = rf_step_work_of(plan);
  assert_int_equal(tokens, 256);
  assert_true(fabs(rf_step_flops(&work, &loader, tokens) - plan->model_flops) < 1e-12 * plan->model_flops);
  assert_true(rf_loader_epoch(&loader) == 0);
  assert_int_equal(rf_loader_steps(&loader, 1, &steps, &error), RAFTER_INVALID);
  rf_loader_close(&loader);
  rf_plan_free(plan);
}

/* Checks the steps of an epoch, and that a validation reads every held-out row, whatever their
 * number. */
static void every_row_has_its_turn(void **state) {
  (void)state;
  enum { SEQ = 16, ROWS = 4 };
  char text[SEQ * 11 + 1];
  memset(text, 'a', sizeof text);
  rf_error error = {0};
  assert_int_equal(rf_file_write(at("text.txt"), text, sizeof text, &error), RAFTER_OK);
  rf_model model = {.name = "test", .vocab = 256, .max_seq = SEQ, .bos_id = -1, .eos_id = -1};
  rf_source_options data = {.model = &model, .seq = SEQ, .val_fraction = 0.27, .work_folder = folder};
  rf_loader loader;
  int64_t steps, tokens, valid;
  if (rf_loader_open(at("text.txt"), &data, 1, ROWS, &loader, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  assert_int_equal(rf_loader_held_out(&loader), 3); /* of 11 */
  assert_int_equal(rf_loader_steps(&loader, 1, &steps, &error), RAFTER_OK);
  assert_int_equal(steps, 2);
  assert_int_equal(rf_loader_steps(&loader, 2.5, &steps, &error), RAFTER_OK);
  assert_int_equal(steps, 5);
  rf_loader_draw(&loader, &tokens, &valid);
  rf_loader_draw(&loader, &tokens, &valid);
  assert_true(rf_loader_epoch(&loader) == 1);
  int32_t ids[ROWS * SEQ], labels[ROWS * SEQ], positions[ROWS * SEQ], segments[ROWS * SEQ + 1];
  rf_token_batch batch = {ids, labels, positions, segments, 0};
  assert_int_equal(rf_loader_fill_held_out(&loader, 0, ROWS, batch, &valid, &error), RAFTER_OK);
  assert_int_equal(valid, 3 * SEQ);
  for (int i = 0; i < ROWS * SEQ; i++) {
    assert_int_equal(labels[i], i < 3 * SEQ ? 'a' : -1);
    assert_int_equal(positions[i], i % SEQ);
    if (i < ROWS) assert_int_equal(segments[i], i * SEQ);
    else assert_int_equal(segments[i], ROWS * SEQ);
  }
  rf_loader_close(&loader);
}

int main(void) {
  rf_error error = {0};
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(only_own_tokens_are_work),
      cmocka_unit_test(full_rows_are_the_plan),
      cmocka_unit_test(every_row_has_its_turn),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
