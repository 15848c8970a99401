/* test_digest.c - the digest and the printed graph include every attribute of every op. Changing a
 * field in an op's field table changes both. */
#include "graph/attr.h"
#include "unit/plan/plans.h"

typedef struct fingerprint {
  char digest[17], *line;
} fingerprint;

/* Takes the digest of the plan and the printed line of its first op. */
static fingerprint take(rf_plan *plan) {
  fingerprint print;
  rf_plan_digest(plan);
  memcpy(print.digest, plan->digest, sizeof print.digest);
  char *text = (char *)(uintptr_t)rf_graph_print(plan->graph); /* "section begin, ..\n    0  op ..\n" */
  print.line = strchr(text, '\n') + 1;
  *strchr(print.line, '\n') = '\0';
  return print;
}

static void every_field_changes_digest_and_print(void **state) {
  (void)state;
  rf_model model = model_named("gpt:layers=1,width=64,heads=4,ff=128,vocab=64,seq=64");
  rf_plan_options options = train_options(machine_named("a5000"), RF_F32, 4, 1, 64, RF_REMAT_NONE);
  rf_plan *plan = plan_of(&model, &options);
  rf_op *op = &plan->graph->op[0];
  plan->graph->op_count = 1;
  for (int i = 0; RF_OPS[i]; i++) {
    op->def = RF_OPS[i];
    op->input_count = op->output_count = 0;
    op->attr = (rf_attr){0};
    fingerprint before = take(plan);
    for (const rf_field *f = rf_op_fields(op->def); f->name; f++) {
      unsigned char *byte = (unsigned char *)&op->attr + f->offset;
      for (uint16_t b = 0; b < (f->type == RF_FIELD_NUMBER ? f->size : 1); b++) {
        byte[b] ^= 1;
        fingerprint after = take(plan);
        if (!strcmp(before.digest, after.digest))
          fail_msg("%s.%s is not in the digest", op->def->name, f->name);
        if (!strcmp(before.line, after.line)) fail_msg("%s.%s is not printed", op->def->name, f->name);
        byte[b] ^= 1;
      }
    }
    for (int o = 0; o < RF_MAX_OUTPUTS; o++) {
      op->attr.accumulate[o] = RF_ACCUMULATE_ADD;
      assert_string_not_equal(before.digest, take(plan).digest);
      op->attr.accumulate[o] = RF_WRITE;
    }
  }
  rf_plan_free(plan);
}

/* --compute fast changes the bits, but not the names of the reference kernels. */
static void rounded_activations_change_the_digest(void **state) {
  (void)state;
  rf_model model = model_named("gpt:layers=1,width=64,heads=4,ff=128,vocab=64,seq=64");
  rf_plan_options options = train_options(machine_named("a5000"), RF_F32, 4, 1, 64, RF_REMAT_NONE);
  options.backend = &RF_BACKEND_REFERENCE;
  rf_plan *plan = plan_of(&model, &options);
  int product = 0;
  while (strcmp(plan->graph->op[product].def->name, "matmul") != 0) product++;
  char exact[17];
  memcpy(exact, plan->digest, sizeof exact);
  plan->graph->op[product].attr.matmul.fast = true;
  rf_plan_digest(plan);
  assert_string_not_equal(exact, plan->digest);
  rf_plan_free(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_field_changes_digest_and_print),
      cmocka_unit_test(rounded_activations_change_the_digest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
