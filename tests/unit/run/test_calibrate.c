/* test_calibrate.c - calibration measures on memory that was written, in every job that it runs,
 * and with the peak rates of the requested instruction set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "backend/cpu/peaks.h"
#include "run/calibrate.h"

/* Pages of a tensor with only zeros. */
static int64_t empty_pages(const unsigned char *at, int64_t bytes) {
  enum { PAGE = 4096 };
  static const unsigned char zeros[PAGE];
  int64_t empty = 0;
  for (int64_t i = 0; i < bytes; i += PAGE)
    empty += !memcmp(at + i, zeros, (size_t)(bytes - i < PAGE ? bytes - i : PAGE));
  return empty;
}

static void nothing_persistent_stays_zero(void **state) {
  (void)state;
  static rf_machine machine;
  rf_error error = {0};
  assert_int_equal(rf_machine_find("a5000", &machine, &error), RAFTER_OK);
  for (int i = 0; i < 4; i++) {
    rf_model model;
    rf_plan *plan = NULL;
    rf_run *run = NULL;
    assert_int_equal(
        rf_model_resolve("gpt:layers=1,width=64,heads=2,ff=256,vocab=256,seq=64", &model, NULL, &error),
        RAFTER_OK);
    rf_plan_options options = {.build = {.job = i / 2 ? RF_JOB_TRAIN : RF_JOB_GENERATE,
                                         .dtype = i % 2 ? RF_BF16 : RF_F32,
                                         .softmax = RF_F32,
                                         .microbatch = 1,
                                         .seq = 64,
                                         .rows = i / 2 ? 0 : 1,
                                         .accumulate = 1,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.95f,
                                         .eps = 1e-8f},
                               .backend = &RF_BACKEND_CPU,
                               .isa = rf_isa_detect(),
                               .threads = 1,
                               .machine = &machine};
    if (rf_plan_make(&model, &options, &plan, &error) != RAFTER_OK) fail_msg("%s", error.message);
    const rf_plan *plans[] = {plan};
    if (rf_run_open(plans, 1, (rf_run_debug){0}, &run, &error) != RAFTER_OK) fail_msg("%s", error.message);
    assert_int_equal(rf_calibrate_fill(run, plan, &error), RAFTER_OK);
    int packed = 0;
    for (int t = 0; t < plan->graph->tensor_count; t++) {
      const rf_tensor *tensor = &plan->graph->tensor[t];
      if (!tensor->persistent || tensor->class == RF_CLASS_MOMENT) continue;
      packed += tensor->dtype == RF_PACKED;
      int64_t empty = empty_pages(rf_run_tensor(run, 0, t), rf_tensor_bytes(tensor));
      if (empty) fail_msg("%lld pages of %s were never written", (long long)empty, tensor->name);
    }
    assert_true(i / 2 ? packed == 0 : packed > 4);
    rf_run_close(run);
    rf_plan_free(plan);
  }
}

static void peaks_are_those_of_the_level(void **state) {
  (void)state;
  static const rf_peak_unit narrow[] = {RF_PEAK_NONE, RF_PEAK_NONE,    RF_PEAK_NONE,
                                        RF_PEAK_NONE, RF_PEAK_VECTORS, RF_PEAK_TILES};
  assert_int_equal(sizeof narrow / sizeof *narrow, RF_ISAS);
  for (int i = 0; i <= (int)rf_isa_detect(); i++) {
    rf_isa isa = (rf_isa)i, below = RF_PEAK_VECTORS_OF(isa);
    assert_int_equal(rf_peak_unit_of(RF_F32, isa), RF_PEAK_VECTORS);
    assert_int_equal(rf_peak_unit_of(RF_F64, isa), RF_PEAK_NONE);
    assert_true(rf_peak_flops(RF_F32, isa, 1, 1e-4) > 0);
    for (int k = 0; k < 2; k++) {
      rf_dtype dtype = k ? RF_I8 : RF_BF16;
      assert_int_equal(rf_peak_unit_of(dtype, isa), narrow[isa]);
      assert_true(rf_peak_unit_of(dtype, below) != RF_PEAK_TILES);
      assert_true((rf_peak_flops(dtype, isa, 1, 1e-4) > 0) == (narrow[isa] != RF_PEAK_NONE));
      assert_true((rf_peak_flops(dtype, below, 1, 1e-4) > 0) == (narrow[isa] != RF_PEAK_NONE));
    }
  }
}

static double slow_then_fast(const rf_device *device, rf_memory *memory, rf_traffic traffic, int passes) {
  static int calls;
  (void)device, (void)memory, (void)traffic;
  assert_int_equal(passes, 1);
  return ++calls == 3 ? 9e9 : 2e9 + calls;
}

/* One fast pass does not raise the figure that calibrate and bench report. */
static void bandwidth_is_the_median_of_single_passes(void **state) {
  (void)state;
  rf_device_type type = {.bandwidth = slow_then_fast};
  rf_device device = {.type = &type};
  double bps = rf_bandwidth_median(&device, NULL, RF_TRAFFIC_READ, 5);
  assert_true(bps > 2e9 && bps < 3e9);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(bandwidth_is_the_median_of_single_passes),
                                     cmocka_unit_test(nothing_persistent_stays_zero),
                                     cmocka_unit_test(peaks_are_those_of_the_level)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
