/* test_xla_ops.c - compiles the emitter of every op with a PJRT plugin, runs it on the data of the
 * op harness, and compares the results with the reference, within the tolerances of the op table.
 * RAFTER_PJRT_PLUGIN names the plugin; without it the test is skipped. RAFTER_XLA_OPS=NAME tests
 * one op. */
#include "backend/reference/reference.h"
#include "backend/xla/client.h"
#include "backend/xla/emit.h"
#include "support/compare.h"
#include "support/op_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Sums of positive numbers are f32 in the module. Each of a few stages of runs of 256 adds rounds
 * up to 2^-24 of the sum; errors of random sign grow with the root of the length. */
static const double F32_SUM = 3 * 16 * 0x1p-24;

static rf_xla_client *client;
static int failures, compiled;

static void test_every_op_has_an_emitter_or_a_reason(void **state) {
  (void)state;
  int missing = 0;
  for (int i = 0; RF_OPS[i]; i++) {
    const rf_emitter *row = rf_emitter_of(RF_OPS[i]);
    if (row && (row->emit != NULL) != (row->why != NULL)) continue;
    fprintf(stderr, "  %s has no emitter and no reason\n", RF_OPS[i]->name);
    missing++;
  }
  if (missing) fail_msg("%d ops", missing);
}

static int dtype_of(rf_hlo_type type) {
  static const int DTYPES[RF_HLO_TYPES] = {
      [RF_HLO_F32] = RF_F32, [RF_HLO_BF16] = RF_BF16,   [RF_HLO_I32] = RF_I32,    [RF_HLO_I8] = RF_I8,
      [RF_HLO_U8] = RF_U8,   [RF_HLO_U16] = RF_XLA_U16, [RF_HLO_U32] = RF_XLA_U32};
  return DTYPES[type];
}

static rf_xla_shape shape_of(rf_val v) {
  rf_xla_shape shape = {.dtype = dtype_of(v.type), .rank = v.rank};
  for (int i = 0; i < v.rank; i++) shape.dim[i] = v.dim[i];
  return shape;
}

/* Sums are f64 in the graph and f32 in the module. */
static void write_argument(const op_harness *h, int tensor, void *to) {
  int64_t count = op_count(h, tensor);
  if (h->graph->tensor[tensor].dtype == RF_F64)
    for (int64_t i = 0; i < count; i++) ((float *)to)[i] = (float)op_get(h, tensor, i);
  else memcpy(to, op_data(h, tensor), (size_t)rf_tensor_bytes(&h->graph->tensor[tensor]));
}
static void read_result(op_harness *h, int tensor, const void *from) {
  int64_t count = op_count(h, tensor);
  if (h->graph->tensor[tensor].dtype == RF_F64)
    for (int64_t i = 0; i < count; i++) op_set(h, tensor, i, (double)((const float *)from)[i]);
  else memcpy(op_data(h, tensor), from, (size_t)rf_tensor_bytes(&h->graph->tensor[tensor]));
}

static void write_run(const rf_run_inputs *run, uint32_t word[RF_RUN_WORDS]) {
  word[RF_RUN_SEED] = (uint32_t)run->seed;
  word[RF_RUN_SEED_HIGH] = (uint32_t)(run->seed >> 32);
  word[RF_RUN_STEP] = (uint32_t)run->step;
  memcpy(&word[RF_RUN_LOSS_SCALE], &run->loss_scale, 4);
  memcpy(&word[RF_RUN_LR], &run->lr, 4);
  word[RF_RUN_MICRO] = (uint32_t)run->micro;
  word[RF_RUN_FIRST_TOKEN] = (uint32_t)run->first_token;
}

/* Runs a module on the harness's data and writes the results there. */
static rf_status execute(op_harness *h, const rf_emitted *m, rf_error *error) {
  rf_xla_id program = 0;
  rf_xla_stats stats;
  const rf_xla_compile of = {.text = m->text, .bytes = m->bytes, .replicas = 1};
  RF_TRY(rf_xla_program(client, &of, &program, &stats, error));
  compiled++;
  rf_xla_argument argument[64] = {{0}};
  rf_xla_result result[64] = {{0}};
  int64_t at = 0;
  for (int i = 0; i < m->arguments; i++) {
    argument[i] = (rf_xla_argument){.at = at, .shape = shape_of(m->argument[i].of)};
    at += (rf_xla_shape_bytes(&argument[i].shape) + 63) / 64 * 64;
  }
  for (int i = 0; i < m->results; i++) {
    rf_xla_shape shape = shape_of(m->result[i].of);
    result[i] = (rf_xla_result){.at = at, .bytes = rf_xla_shape_bytes(&shape)};
    at += (result[i].bytes + 63) / 64 * 64;
  }
  rf_xla_shared shared;
  RF_TRY(rf_xla_share(client, at + 64, &shared, error));
  bool donated[64] = {false};
  for (int i = 0; i < m->arguments; i++) {
    char *to = (char *)shared.data + argument[i].at;
    if (m->argument[i].tensor == RF_NONE) write_run(&h->run, (uint32_t *)(void *)to);
    else write_argument(h, m->argument[i].tensor, to);
  }
  const rf_xla_call call = {.program = program,
                            .devices = 1,
                            .arguments = m->arguments,
                            .results = m->results,
                            .argument = argument,
                            .result = result,
                            .shared = &shared};
  rf_status status = rf_xla_execute(client, &call, donated, error);
  for (int i = 0; i < m->results && status == RAFTER_OK; i++)
    read_result(h, m->result[i].tensor, (char *)shared.data + result[i].at);
  rf_xla_unshare(client, &shared);
  rf_xla_free(client, &program, 1);
  return status;
}

static bool is_packed(const op_harness *h, const rf_op *op) {
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] >= 0 && h->graph->tensor[op->input[i]].dtype == RF_PACKED) return true;
  return false;
}

static void try_op(const op_case *of, const op_size *size, rf_dtype dtype) {
  op_harness *h = op_case_build(of, size, dtype);
  const rf_op *op = &h->graph->op[h->subject];
  const rf_emitter *row = rf_emitter_of(op->def);
  if (!row || !row->emit || is_packed(h, op)) {
    op_harness_free(h);
    return;
  }
  char where[200];
  snprintf(where, sizeof where, "%s [%s] rows %lld, width %lld, columns %lld %s", of->op, of->name,
           (long long)size->rows, (long long)size->width, (long long)size->columns, rf_dtype_name(dtype));
  op_run_range(h, 0, h->subject + 1, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
  void *want[RF_MAX_OUTPUTS] = {0};
  for (int i = 0; i < op->output_count; i++)
    if (op->output[i] >= 0) want[i] = op_copy(h, op->output[i]);
  op_reset(h, h->subject);
  rf_error error = {0};
  rf_emitted module;
  rf_status status = rf_emit_ops(h->graph, NULL, h->subject, 1, h->run.micro, &module, &error);
  if (status == RAFTER_OK) {
    status = execute(h, &module, &error);
    if (status != RAFTER_OK && getenv("RAFTER_XLA_TEXT")) fprintf(stderr, "%s\n", module.text);
    rf_emitted_free(&module);
  }
  bool ok = status == RAFTER_OK;
  if (!ok) fprintf(stderr, "  %s: %.1500s\n", where, error.message);
  for (int i = 0; ok && i < op->output_count; i++) {
    if (op->output[i] < 0) continue;
    const rf_tensor *t = &h->graph->tensor[op->output[i]];
    double norm = (double)(t->dtype == RF_BF16 ? op->def->tolerance.bf16 : op->def->tolerance.f32);
    if (t->dtype == RF_F64 && norm < F32_SUM) norm = F32_SUM;
    compare_report report;
    ok = compare_close(t->dtype, op_data(h, op->output[i]), want[i], op_count(h, op->output[i]),
                       (compare_bound){norm, 4 * norm}, &report);
    if (!ok) fprintf(stderr, "  %s: %s: %s\n", where, op->def->outputs[i], report.text);
  }
  failures += !ok;
  for (int i = 0; i < RF_MAX_OUTPUTS; i++) free(want[i]);
  op_harness_free(h);
}

static void test_programs_agree_with_the_reference(void **state) {
  (void)state;
  if (!client) skip();
  const char *only = getenv("RAFTER_XLA_OPS");
  bool all = getenv("RAFTER_XLA_ALL") != NULL;
  for (const op_case *of = OP_CASES; of->op; of++) {
    if (only && strcmp(of->op, only) != 0) continue;
    int number = 0;
    for (const op_size *size = of->sizes; size->rows; size++, number++)
      for (int d = 0; d < 2 && (all || number < OP_SMALL_SIZES); d++) try_op(of, size, d ? RF_BF16 : RF_F32);
  }
  printf("%d programs compiled, %d differ\n", compiled, failures);
  if (failures) fail_msg("%d programs differ", failures);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_op_has_an_emitter_or_a_reason),
      cmocka_unit_test(test_programs_agree_with_the_reference),
  };
  rf_error error = {0};
  const rf_xla_settings settings = {.plugin = getenv("RAFTER_PJRT_PLUGIN")};
  if (settings.plugin && rf_xla_open(&settings, &client, &error) != RAFTER_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (client) rf_xla_close(client);
  return failed;
}
