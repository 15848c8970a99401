/* test_mesh_auto.c - --mesh auto: the chosen mesh fits as the run plans it, and meshes with any
 * number of chips along an axis are compared. */
#include "advise/fit_mesh.h"
#include "api/api.h"
#include "generate/generate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SHAPE "llama:layers=2,width=64,heads=6,kv_heads=6,head_dim=16,ff=192,vocab=512,seq=64"
#define LARGE "llama:layers=8,width=256,heads=1,head_dim=32,ff=1024,vocab=512,seq=64"

static rf_options *options_of(const char *command, const char *line) {
  char text[512], *argv[32];
  int argc = 0;
  rf_options *options = NULL;
  rf_error error = {0};
  snprintf(text, sizeof text, "%s", line);
  for (char *rest = text, *word; (word = strsep(&rest, " "));) argv[argc++] = word;
  if (rf_options_new(&RF_ALL_COMMANDS, command, &options, &error) != RAFTER_OK ||
      rf_options_parse(options, argc, argv, &error) != RAFTER_OK)
    fail_msg("%s: %s", line, error.message);
  return options;
}

/* True if both plans of the answers fit with the mesh of the options. */
static bool answers_fit(const rf_options *options) {
  static rf_settings settings;
  rf_error error = {0};
  rf_plan *prefill = NULL, *decode = NULL;
  if (rf_settings_resolve(options, "generate", &settings, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_infer_settings infer = {.model = settings.model, .plan = settings.plan};
  rf_generate_slots(&infer.plan);
  if (rf_generate_plans(&infer, &prefill, &decode, &error) != RAFTER_OK) fail_msg("%s", error.message);
  bool fits = rf_plan_fits(prefill) && rf_plan_fits(decode);
  rf_plan_free(prefill);
  rf_plan_free(decode);
  return fits;
}

/* Chips that share weights compute the same answers, so each of them needs the memory of all
 * answers. The weights are too large for one chip, and one head cannot be shared. */
static void test_answers_fit(void **state) {
  (void)state;
  int fit = 0, too_large = 0;
  for (int batch = 2; batch <= 512; batch *= 2) {
    char line[240], text[400];
    rf_error error = {0};
    snprintf(text, sizeof text, "%s --job generate --backend cpu --on local --threads 1 --batch %d %s", LARGE,
             batch, "--dtype f32 --seq 64 --fit=26MiB");
    rf_options *options = options_of("plan", text);
    rf_status status = rf_mesh_auto(options, "generate", 2, line, &error);
    if (status != RAFTER_OK && status != RAFTER_NO_FIT) fail_msg("batch %d: %s", batch, error.message);
    if (status == RAFTER_OK && !answers_fit(options))
      fail_msg("batch %d: %s does not fit (%s)", batch, rf_options_text(options, "mesh"), line);
    fit += status == RAFTER_OK;
    too_large += status == RAFTER_NO_FIT;
    rf_options_free(options);
  }
  assert_true(fit > 0 && too_large > 0);
}

/* The batch has one sequence, so the chips cannot share sequences. */
static void test_all_divisors(void **state) {
  (void)state;
  static const struct {
    int chips;
    const char *shape, *more;
  } rows[] = {{6, SHAPE, "--batch 1"},
              {3, SHAPE, "--batch 1"},
              /* an odd number of heads: only the tokens of a sequence can be shared */
              {4, "llama:layers=2,width=48,heads=3,head_dim=16,ff=192,vocab=512,seq=64", "--batch 1"},
              /* two copies, which each need three chips */
              {12, SHAPE, "--batch 2"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char line[240], text[400];
    rf_error error = {0};
    rf_mesh mesh;
    snprintf(text, sizeof text, "%s --backend cpu --on local --threads 1 --seq 48 %s", rows[i].shape,
             rows[i].more);
    rf_options *options = options_of("plan", text);
    if (rf_mesh_auto(options, "train", rows[i].chips, line, &error) != RAFTER_OK)
      fail_msg("%d chips: %s", rows[i].chips, error.message);
    assert_int_equal(rf_mesh_parse(rf_options_text(options, "mesh"), -1, &mesh, &error), RAFTER_OK);
    assert_int_equal(rf_mesh_chips(&mesh), rows[i].chips);
    rf_options_free(options);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_answers_fit),
      cmocka_unit_test(test_all_divisors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
