/* test_xla_ops.c - compiles the emitter of every op with a PJRT plugin, runs it on the data of the
 * op harness, and compares the results with the reference, within the tolerances of the op table.
 * RAFTER_PJRT_PLUGIN names the plugin; without it the test is skipped. RAFTER_XLA_OPS=NAME tests
 * one op. */
#include "backend/reference/reference.h"
#include "backend/xla/device.h"
#include "support/xla_client.h"
#include "support/compare.h"
#include "support/op_cases.h"

#include <math.h>
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

/* Runs a module on the harness's data and writes the results there. */
static rf_status execute(op_harness *h, const rf_emitted *m, rf_error *error) {
  rf_xla_id program = 0;
  rf_xla_stats stats;
  const rf_emit_target target = rf_emit_target_of(rf_xla_facts_of(client)->platform);
  const rf_xla_compile of = {.text = m->text, .bytes = m->bytes, .replicas = 1, .flags = target.flags};
  RF_TRY(rf_xla_program(client, &of, &program, &stats, error));
  compiled++;
  rf_xla_argument argument[64] = {{0}};
  rf_xla_result result[64] = {{0}};
  int64_t at = 0;
  for (int i = 0; i < m->arguments; i++) {
    argument[i] = (rf_xla_argument){.at = at, .shape = rf_xla_shape_of(m->argument[i].of)};
    at += (rf_xla_shape_bytes(&argument[i].shape) + 63) / 64 * 64;
  }
  for (int i = 0; i < m->results; i++) {
    rf_xla_shape shape = rf_xla_shape_of(m->result[i].of);
    result[i] = (rf_xla_result){.at = at, .bytes = rf_xla_shape_bytes(&shape)};
    at += (result[i].bytes + 63) / 64 * 64;
  }
  rf_xla_shared shared;
  RF_TRY(rf_xla_share(client, at + 64, &shared, error));
  bool donated[64] = {false};
  for (int i = 0; i < m->arguments; i++) {
    char *to = (char *)shared.data + argument[i].at;
    if (m->argument[i].tensor == RF_NONE) rf_emit_run_words(&h->run, (uint32_t *)(void *)to);
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
  rf_xla_program_free(client, program);
  return status;
}

static bool is_packed(const op_harness *h, const rf_op *op) {
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] >= 0 && h->graph->tensor[op->input[i]].dtype == RF_PACKED) return true;
  return false;
}

/* The form for GPUs rounds the gradient of logits to bf16 for dx. The sum over the vocabulary may
 * almost cancel, so dx is compared with a reference that rounds too. */
static void round_dx(op_harness *h, void *want[RF_MAX_OUTPUTS]) {
  rf_op *op = &h->graph->op[h->subject];
  rf_dtype given = op->attr.head.gradient;
  op_reset(h, h->subject);
  op->attr.head.gradient = RF_BF16;
  op_run_range(h, h->subject, h->subject + 1, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
  op->attr.head.gradient = given;
  for (int i = 0; i < op->output_count; i++) {
    if (op->output[i] < 0 || strcmp(op->def->outputs[i], "dx") != 0) continue;
    free(want[i]);
    want[i] = op_copy(h, op->output[i]);
  }
}

static void try_op(const op_case *of, const op_size *size, rf_dtype dtype, const rf_emit_options *options) {
  op_harness *h = op_case_build(of, size, dtype);
  const rf_op *op = &h->graph->op[h->subject];
  const rf_emitter *row = rf_emitter_of(op->def);
  if (!row || !row->emit || is_packed(h, op)) {
    op_harness_free(h);
    return;
  }
  char where[200];
  snprintf(where, sizeof where, "%s [%s] rows %lld, width %lld, columns %lld %s%s", of->op, of->name,
           (long long)size->rows, (long long)size->width, (long long)size->columns, rf_dtype_name(dtype),
           options->head_bytes        ? ", in chunks"
           : options->attention_block ? ", in short blocks"
           : options->known.reach     ? ", for GPUs"
                                      : "");
  op_run_range(h, 0, h->subject + 1, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
  void *want[RF_MAX_OUTPUTS] = {0};
  for (int i = 0; i < op->output_count; i++)
    if (op->output[i] >= 0) want[i] = op_copy(h, op->output[i]);
  if (options->target.one_bf16 && op->def->kind == RF_KIND_HEAD) round_dx(h, want);
  op_reset(h, h->subject);
  rf_error error = {0};
  rf_emitted module;
  rf_status status = rf_emit_ops(h->graph, options, h->subject, 1, h->run.micro, &module, &error);
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
    double norm = op_tolerance(op, t);
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

/* The form for GPUs: padded vocabularies, one rounding of the logits' gradient, bias in bf16, two
 * rows instead of one, rounds of sampling without loops, and one step over all pages. cuDNN's
 * attention runs on GPUs alone. */
static void try_form_for_gpus(const op_case *of, const op_size *size, rf_dtype dtype) {
  static const uint8_t SAME[] = {RF_KIND_EMBED, RF_KIND_NORM, RF_KIND_EXPERTS, RF_KIND_OPTIMIZER,
                                 RF_KIND_EXCHANGE};
  const rf_op_def *def = rf_op_find(of->op);
  bool samples = def == &RF_OP_SAMPLE;
  if (dtype != RF_BF16 && !samples) return;
  for (size_t i = 0; i < sizeof SAME; i++)
    if ((uint8_t)def->kind == SAME[i]) return;
  rf_emit_options options = {.target = rf_emit_target_of("cuda"), .known.reach = 512};
  options.known.unfiltered = samples && of->flags & OP_WEIGHT;
  options.target.cudnn = false;
  try_op(of, size, dtype, &options);
}

/* Ops of the head also run in chunks of three rows, with products in halves of bf16. Attention over
 * long sequences also runs in short blocks: the module then has a loop over them. */
static void try_forms(const op_case *of, const op_size *size, rf_dtype dtype) {
  try_op(of, size, dtype, &(rf_emit_options){0});
  try_form_for_gpus(of, size, dtype);
  if (rf_op_find(of->op)->kind == RF_KIND_ATTENTION && size->rows > 128)
    try_op(of, size, dtype, &(rf_emit_options){.attention_block = 16});
  if (rf_op_find(of->op)->kind != RF_KIND_HEAD || size->rows <= 3) return;
  const rf_emit_options chunks = {.head_bytes = 3 * 4 * size->columns, .target = {.bf16_products = true}};
  try_op(of, size, dtype, &chunks);
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
      for (int d = 0; d < 2 && (all || number < OP_SMALL_SIZES); d++)
        try_forms(of, size, d ? RF_BF16 : RF_F32);
  }
  printf("%d programs compiled, %d differ\n", compiled, failures);
  if (failures) fail_msg("%d programs differ", failures);
}

/* Tokens with equal logits are in ascending order, and the first of the largest is the best. */
static void try_equal_logits(const op_case *of, const op_size *size, const rf_emit_options *options) {
  op_harness *h = op_case_build(of, size, RF_F32);
  const rf_op *op = &h->graph->op[h->subject];
  rf_error error = {0};
  rf_emitted module;
  for (int64_t v = 0; v < size->columns; v++) /* weights of tokens v, v + 37, v + 74 .. are equal */
    for (int64_t d = 0; d < size->width; d++) {
      int64_t at = op->attr.head.transpose ? v * size->width + d : d * size->columns + v;
      op_set(h, op->input[1], at, sin((double)(v % 37 * size->width + d + 1)));
    }
  op_run_range(h, 0, h->subject + 1, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
  int32_t *want = op_copy(h, op->output[1]);
  op_reset(h, h->subject);
  assert_int_equal(rf_emit_ops(h->graph, options, h->subject, 1, 0, &module, &error), RAFTER_OK);
  if (execute(h, &module, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_memory_equal(op_data(h, op->output[1]), want, (size_t)op_count(h, op->output[1]) * sizeof *want);
  rf_emitted_free(&module);
  free(want);
  op_harness_free(h);
}

/* The form for tiles has groups of 128 tokens, and needs more groups than likeliest tokens. */
static void test_equal_logits_are_in_the_order_of_tokens(void **state) {
  (void)state;
  static const op_size SIZE = {5, 16, 1536, 0, 0, 0}, WIDE = {20, 16, 2816, 0, 0, 0},
                       WHOLE = {16, 16, 2816, 0, 0, 0};
  const rf_emit_options tiles = {.head_bytes = 8 * 4 * WIDE.columns, .target = rf_emit_target_of("tpu")};
  const rf_emit_options whole = {.target = rf_emit_target_of("tpu")};
  if (!client) skip();
  for (const op_case *of = OP_CASES; of->op; of++) {
    bool scores = !strcmp(of->op, "head_score") && !strcmp(of->name, "likeliest");
    if (!scores && (strcmp(of->op, "head_loss") != 0 || of->flags != 0)) continue;
    try_equal_logits(of, &SIZE, NULL);
    try_equal_logits(of, &WIDE, &tiles);
    try_equal_logits(of, &WHOLE, &whole);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_op_has_an_emitter_or_a_reason),
      cmocka_unit_test(test_programs_agree_with_the_reference),
      cmocka_unit_test(test_equal_logits_are_in_the_order_of_tokens),
  };
  if (!xla_test_open(&client)) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (client) rf_xla_close(client);
  return failed;
}
