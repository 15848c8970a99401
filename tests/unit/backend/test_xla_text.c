/* test_xla_text.c - properties of the module of a whole training step, read from its text: no large
 * arrays, donated arguments, names of ops. Needs no plugin. */
#include "backend/kernel.h"
#include "backend/xla/emit.h"
#include "unit/graph/fixture.h"

#include <ctype.h>
#include <stdlib.h>

/* GPT-2 with two layers: two sequences of 1024 tokens. */
#define GPT2 "gpt2:layers=2"
enum { SEQUENCES = 2, SEQ = 1024, VOCAB = 50257 };

/* The step of a model on a mesh ("": one chip) with ZeRO-3. `lora` "": without adapters. */
static rf_graph *tuning_of(const char *model, const char *lora, rf_dtype dtype, int accumulate, float dropout,
                           const char *mesh) {
  rf_model of = fixture_model(model);
  if (lora[0]) fixture_lora(&of, lora);
  rf_build_options options = fixture_train(dtype, accumulate, dropout, 1);
  rf_error error = {0};
  if (rf_mesh_parse(mesh, 3, &options.mesh, &error) != RAFTER_OK) fail_msg("%s", error.message);
  options.microbatch = SEQUENCES;
  options.seq = SEQ;
  options.softmax = RF_F32;
  options.plain = true;
  return fixture_graph(&of, &options, NULL);
}

static rf_graph *step_of(const char *model, rf_dtype dtype, int accumulate, float dropout, const char *mesh) {
  return tuning_of(model, "", dtype, accumulate, dropout, mesh);
}

static rf_graph *graph_of(const char *model, rf_dtype dtype, int accumulate) {
  return step_of(model, dtype, accumulate, 0, "");
}

static rf_emitted emit_known(const rf_graph *graph, const char *platform, rf_emit_known known) {
  const rf_emit_options options = {.target = rf_emit_target_of(platform), .known = known};
  rf_emitted m;
  rf_error error = {0};
  if (rf_emit_graph(graph, &options, &m, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return m;
}

static rf_emitted emit_for(const rf_graph *graph, const char *platform) {
  return emit_known(graph, platform, (rf_emit_known){0});
}
static rf_emitted emit(const rf_graph *graph) { return emit_for(graph, "cpu"); }

/* Extents of the type after `at`, "tensor<2x8xf32>"; returns their number. */
static int extents_of(const char *at, int64_t dim[8]) {
  int rank = 0;
  at += strlen("tensor<");
  while (isdigit((unsigned char)*at) && rank < 8) {
    char *end;
    dim[rank] = strtoll(at, &end, 10);
    if (*end != 'x') break;
    rank++;
    at = end + 1;
  }
  return rank;
}

/* The first array of the module for which `wrong` is true; NULL: none. */
static const char *find_array(const char *text, bool (*wrong)(int rank, const int64_t *dim)) {
  for (const char *at = strstr(text, "tensor<"); at; at = strstr(at + 1, "tensor<")) {
    int64_t dim[8];
    if (wrong(extents_of(at, dim), dim)) return at;
  }
  return NULL;
}

static int64_t times(int rank, const int64_t *dim, int64_t extent) {
  int64_t count = 0;
  for (int i = 0; i < rank; i++) count += dim[i] == extent;
  return count;
}
/* Scores of all pairs of a sequence, and logits of all tokens. */
static bool is_scores(int rank, const int64_t *dim) { return times(rank, dim, SEQ) >= 2; }
static bool is_logits(int rank, const int64_t *dim) {
  int64_t count = 1;
  for (int i = 0; i < rank; i++) count *= dim[i];
  return times(rank, dim, VOCAB) > 0 && count >= (int64_t)VOCAB * SEQUENCES * SEQ;
}

static void test_no_array_of_all_scores_or_logits(void **state) {
  (void)state;
  static const char planted[] = "%1 = \"x\"() : () -> tensor<2x1024x12x1024xf32> tensor<2048x50257xf32>";
  assert_non_null(find_array(planted, is_scores));
  assert_non_null(find_array(planted, is_logits));
  for (int accumulate = 1; accumulate <= 2; accumulate++) {
    rf_graph *graph = graph_of(GPT2, RF_BF16, accumulate);
    rf_emitted m = emit(graph);
    const char *scores = find_array(m.text, is_scores), *logits = find_array(m.text, is_logits);
    if (scores) fail_msg("an array of all scores: %.60s", scores);
    if (logits) fail_msg("an array of all logits: %.60s", logits);
    rf_emitted_free(&m);
    rf_graph_free(graph);
  }
}

static int count_of(const char *text, const char *word) {
  int count = 0;
  for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) count++;
  return count;
}

/* On GPUs, attention over whole rows is one call forward and one backward in each layer. Other
 * rows, f32 and other targets get blocks. */
static void test_whole_rows_call_cudnn(void **state) {
  (void)state;
  static const struct {
    const char *platform;
    rf_dtype dtype;
    bool whole;
    int calls;
  } CASES[] = {{"cuda", RF_BF16, true, 2},
               {"cuda", RF_BF16, false, 0},
               {"cuda", RF_F32, true, 0},
               {"tpu", RF_BF16, true, 0},
               {"cpu", RF_BF16, true, 0}};
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    rf_graph *graph = graph_of(GPT2, CASES[i].dtype, 1);
    rf_emitted m = emit_known(graph, CASES[i].platform, (rf_emit_known){.whole_rows = CASES[i].whole});
    assert_int_equal(count_of(m.text, "\"__cudnn$fmhaSoftmax\""), CASES[i].calls);
    assert_int_equal(count_of(m.text, "\"__cudnn$fmhaSoftmaxBackward\""), CASES[i].calls);
    rf_emitted_free(&m);
    rf_graph_free(graph);
  }
}

/* The configuration of a call is JSON with the sizes of the graph. */
static void test_calls_of_cudnn_have_their_sizes(void **state) {
  (void)state;
  rf_graph *graph = graph_of(GPT2, RF_BF16, 1);
  rf_emitted m = emit_known(graph, "cuda", (rf_emit_known){.whole_rows = true});
  const char *call = strstr(m.text, "\"__cudnn$fmhaSoftmaxBackward\"");
  assert_non_null(call);
  assert_non_null(strstr(call, "\\22fmha_scale\\22: 0.125,"));
  assert_non_null(strstr(call, "\\22dimensions\\22: [\\222\\22, \\2212\\22, \\221024\\22, \\221024\\22]"));
  assert_non_null(strstr(call, "dense<[3, 1, 2, 0]> : tensor<4xindex>"));
  rf_emitted_free(&m);
  rf_graph_free(graph);
}

/* GPUs multiply logits in columns of a multiple of 64. */
static bool is_narrow_product(int rank, const int64_t *dim) {
  return rank == 2 && dim[1] == VOCAB && dim[0] > 1;
}
static bool is_wide_product(int rank, const int64_t *dim) { return rank == 2 && dim[1] == 50304; }
static void test_vocabularies_are_padded_for_gpus(void **state) {
  (void)state;
  rf_graph *graph = graph_of(GPT2, RF_BF16, 1);
  rf_emitted m = emit_for(graph, "cuda"), cpu = emit(graph);
  assert_null(find_array(m.text, is_narrow_product));
  assert_non_null(find_array(m.text, is_wide_product));
  assert_non_null(find_array(cpu.text, is_narrow_product));
  rf_emitted_free(&m);
  rf_emitted_free(&cpu);
  rf_graph_free(graph);
}

static bool has_array(const rf_emitted *m, int64_t rows, int64_t columns, const char *type) {
  char text[80];
  snprintf(text, sizeof text, "tensor<%lldx%lldx%s>", (long long)rows, (long long)columns, type);
  return strstr(m->text, text) != NULL;
}

static rf_op *head_of(rf_graph *graph) {
  int at = 0;
  while (at < graph->op_count && graph->op[at].def != &RF_OP_HEAD_LOSS_GRAD) at++;
  assert_true(at < graph->op_count);
  return &graph->op[at];
}
static int64_t head_bytes(const rf_graph *graph, const rf_op *op) {
  const rf_kernel *kernel = rf_kernel_choose(&RF_BACKEND_SHEET_GPU, RF_ISA_BASE, graph, op);
  return (int64_t)kernel->workspace_bytes(graph, op, (rf_tiling){0});
}

/* The plan of a GPU has the arrays of the head's largest chunk: the logits, the gradient of the
 * logits (`parts` arrays of its type), and a padded weight and its gradient. */
static void test_plans_of_gpus_have_the_chunk_of_logits(void **state) {
  (void)state;
  static const struct {
    const char *model;
    rf_dtype dtype;
    int64_t rows, columns, padded; /* padded: elements of a weight with columns of padding */
  } CASES[] = {
      {GPT2, RF_BF16, 2048, 50304, 50304 * 768},
      {GPT2, RF_F32, 2048, 50304, 50304 * 768},
      {"llama:layers=1,width=64,heads=4,kv_heads=2,vocab=128000,seq=1024", RF_BF16, 1024, 128000, 0},
      {"llama:layers=1,width=64,heads=4,kv_heads=2,vocab=200000,seq=1024", RF_BF16, 512, 200000, 0},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    rf_graph *graph = graph_of(CASES[i].model, CASES[i].dtype, 1);
    rf_emitted m = emit_for(graph, "cuda");
    int64_t rows = CASES[i].rows, columns = CASES[i].columns;
    bool narrow = CASES[i].dtype == RF_BF16;
    assert_true(has_array(&m, rows, columns, "f32"));
    assert_true(!narrow ||
                (has_array(&m, 2 * rows, columns, "bf16") && has_array(&m, rows, columns, "bf16")));
    assert_int_equal(head_bytes(graph, head_of(graph)),
                     rows * columns * (narrow ? 4 + 3 * 2 : 4) + CASES[i].padded * (narrow ? 2 + 4 : 4 + 4));
    rf_emitted_free(&m);
    rf_graph_free(graph);
  }
}

/* A gradient of logits that is rounded to bf16 is one array in the program and in the plan. */
static void test_rounded_gradients_of_logits_are_one_array(void **state) {
  (void)state;
  rf_graph *graph = graph_of(GPT2, RF_BF16, 1);
  rf_op *head = head_of(graph);
  rf_emitted whole = emit_for(graph, "cuda");
  head->attr.head.gradient = RF_BF16;
  rf_emitted rounded = emit_for(graph, "cuda");
  assert_true(has_array(&whole, 2 * 2048, 50304, "bf16"));
  assert_false(has_array(&rounded, 2 * 2048, 50304, "bf16"));
  assert_true(has_array(&rounded, 2048, 50304, "bf16"));
  rf_emitted_free(&whole);
  rf_emitted_free(&rounded);
  assert_int_equal(head_bytes(graph, head), 2048 * 50304LL * (4 + 2) + 50304LL * 768 * (2 + 4));
  rf_graph_free(graph);
}

/* A GPU's host waits for each round of a loop. Sampling has none, attention over an unknown number
 * of keys has one in each layer. */
static void test_known_decoding_has_no_loop(void **state) {
  (void)state;
  rf_model of = fixture_model("llama:layers=2,width=64,heads=4,kv_heads=2,vocab=512,seq=4096");
  rf_build_options options = fixture_generate(RF_BF16, 3, 3);
  options.seq = 4096;
  options.plain = options.sampled = true;
  rf_graph *graph = fixture_graph(&of, &options, NULL);
  rf_emitted known = emit_known(graph, "cuda", (rf_emit_known){.greedy = true, .reach = 2048}),
             sampled = emit_known(graph, "cuda", (rf_emit_known){.reach = 2048}),
             unknown = emit_for(graph, "cuda"), tpu = emit_for(graph, "tpu");
  assert_int_equal(count_of(known.text, "stablehlo.while"), 0);
  assert_int_equal(count_of(sampled.text, "stablehlo.while"), 0);
  assert_int_equal(count_of(unknown.text, "stablehlo.while"), 2);
  assert_true(count_of(tpu.text, "stablehlo.while") > 2);
  rf_emitted_free(&sampled);
  rf_emitted_free(&tpu);
  rf_emitted_free(&known);
  rf_emitted_free(&unknown);
  rf_graph_free(graph);
}

static bool is_written(const rf_graph *graph, int tensor) {
  for (int i = 0; i < graph->op_count; i++)
    for (int k = 0; k < graph->op[i].output_count; k++)
      if (graph->op[i].output[k] == tensor) return true;
  return false;
}

/* The step updates weights in place: each persistent tensor that changes reuses its argument. */
static void test_changed_tensors_are_donated(void **state) {
  (void)state;
  rf_graph *graph = graph_of(GPT2, RF_BF16, 1);
  rf_emitted m = emit(graph);
  int donated = 0, changed = 0, marked = 0;
  for (int i = 0; i < m.arguments; i++) {
    const rf_emit_port *a = &m.argument[i];
    if (a->alias < 0) continue;
    assert_int_equal(m.result[a->alias].tensor, a->tensor);
    assert_int_equal(m.result[a->alias].alias, i);
    assert_true(graph->tensor[a->tensor].persistent && is_written(graph, a->tensor));
    donated++;
  }
  for (int t = 0; t < graph->tensor_count; t++)
    changed += graph->tensor[t].persistent && is_written(graph, t);
  for (const char *at = strstr(m.text, "tf.aliasing_output"); at; at = strstr(at + 1, "tf.aliasing_output"))
    marked++;
  assert_true(changed > 60); /* weights, masters and two moments of 28 parameters */
  assert_int_equal(donated, changed);
  assert_int_equal(marked, changed);
  rf_emitted_free(&m);
  rf_graph_free(graph);
}

/* Traces of a plugin name each operation by its location. */
static void test_every_op_is_a_location(void **state) {
  (void)state;
  rf_graph *graph = graph_of(GPT2, RF_F32, 2);
  rf_emitted m = emit(graph);
  for (int i = 0; i < graph->op_count; i++) {
    char name[400];
    snprintf(name, sizeof name, "loc(\"%s\")", graph->op[i].name);
    if (!strstr(m.text, name)) fail_msg("no location %s", name);
  }
  rf_emitted_free(&m);
  rf_graph_free(graph);
}

/* Products of bf16 weights read bf16: no operand is widened first. */
static void test_products_read_their_operands_as_stored(void **state) {
  (void)state;
  rf_graph *graph = graph_of(GPT2, RF_BF16, 1);
  rf_emitted m = emit(graph);
  assert_true(count_of(m.text, "tensor<768x3072xbf16>) -> tensor<2048x3072x") >= 2); /* up, in each layer */
  assert_int_equal(count_of(m.text, "tensor<768x3072xf32>) -> tensor<2048x3072x"), 0);
  rf_emitted_free(&m);
  rf_graph_free(graph);
}

/* Whether an operation of this kind has the op's name as its location. */
static bool has(const char *text, const char *operation, const char *name) {
  char of[400], loc[40];
  snprintf(of, sizeof of, " = loc(\"%s\")", name);
  const char *alias = strstr(text, of), *end = alias;
  if (!alias) return false;
  while (alias > text && alias[-1] != '\n') alias--;
  snprintf(loc, sizeof loc, " loc(%.*s)", (int)(end - alias), alias);
  for (const char *at = strstr(text, operation); at; at = strstr(at + 1, operation)) {
    const char *found = strstr(at, loc);
    if (found && found < at + strcspn(at, "\n")) return true;
  }
  return false;
}

/* With ZeRO-3, gathers of a layer wait for the layer before the previous one. */
static void test_gathers_wait_for_earlier_layers(void **state) {
  (void)state;
  rf_graph *graph = step_of("gpt2:layers=4", RF_BF16, 1, 0, "fsdp=2");
  rf_emitted m = emit(graph);
  int waiting = 0;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    if (op->def != &RF_OP_ALL_GATHER || op->at.layer < 2 || !graph->tensor[op->input[0]].persistent) continue;
    if (!has(m.text, "stablehlo.select", op->name)) fail_msg("%s may run at the start of the step", op->name);
    waiting++;
  }
  assert_true(waiting >= 16); /* four matrices in two layers, forward and backward */
  rf_emitted_free(&m);
  rf_graph_free(graph);
}

/* Number of gradients of activations, in one layer, that wait for a gradient. */
static int waiting_in(const rf_graph *graph, const char *text, int layer) {
  int count = 0;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    count += op->def == &RF_OP_MATMUL_DX && op->at.layer == layer && has(text, "stablehlo.select", op->name);
  }
  return count;
}

/* On a mesh of TPUs, backward waits for the exchanged gradients of adapters. */
static void test_backward_waits_for_adapters(void **state) {
  (void)state;
  rf_graph *graph = tuning_of("gpt2:layers=4", "rank=4", RF_BF16, 1, 0, "fsdp=2"),
           *one = tuning_of("gpt2:layers=4", "rank=4", RF_BF16, 1, 0, "");
  rf_emitted tpu = emit_for(graph, "tpu"), cpu = emit(graph), alone = emit_for(one, "tpu");
  for (int layer = 0; layer < 4; layer++) {
    assert_true(waiting_in(graph, tpu.text, layer) >= 3);
    assert_int_equal(waiting_in(graph, cpu.text, layer), 0);
    assert_int_equal(waiting_in(one, alone.text, layer), 0);
  }
  rf_emitted_free(&tpu);
  rf_emitted_free(&cpu);
  rf_emitted_free(&alone);
  rf_graph_free(graph);
  rf_graph_free(one);
}

/* On a TPU, the search for the likeliest tokens reads the logits in the order of their tiles. */
static void test_likeliest_tokens_are_found_in_tiles(void **state) {
  (void)state;
  rf_model of = fixture_model("gemma3-1b:layers=1");
  rf_build_options options = fixture_train(RF_BF16, 1, 0, 0);
  options.job = RF_JOB_SCORE;
  options.microbatch = 1;
  options.seq = SEQ;
  options.top = 20;
  options.plain = true;
  rf_graph *graph = fixture_graph(&of, &options, NULL);
  rf_emitted tpu = emit_for(graph, "tpu"), gpu = emit_for(graph, "cuda");
  assert_true(count_of(tpu.text, "tensor<32x2048x8x128xf32>") > 0);
  assert_int_equal(count_of(tpu.text, "tensor<256x2048x128xf32>"), 0);
  assert_true(count_of(gpu.text, "tensor<512x2048x128xf32>") > 0);
  rf_emitted_free(&tpu);
  rf_emitted_free(&gpu);
  rf_graph_free(graph);
}

/* Each draw of a dropout mask depends on the op's input. */
static void test_masks_are_drawn_late(void **state) {
  (void)state;
  static const char needle[] = "comparison_direction NE";
  rf_graph *graph = step_of(GPT2, RF_F32, 1, 0.1f, ""), *plain = graph_of(GPT2, RF_F32, 1);
  rf_emitted m = emit(graph), without = emit(plain);
  /* two in each layer, forward and backward */
  assert_int_equal(count_of(m.text, needle) - count_of(without.text, needle), 8);
  rf_emitted_free(&m);
  rf_emitted_free(&without);
  rf_graph_free(graph);
  rf_graph_free(plain);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_array_of_all_scores_or_logits),
      cmocka_unit_test(test_whole_rows_call_cudnn),
      cmocka_unit_test(test_calls_of_cudnn_have_their_sizes),
      cmocka_unit_test(test_vocabularies_are_padded_for_gpus),
      cmocka_unit_test(test_plans_of_gpus_have_the_chunk_of_logits),
      cmocka_unit_test(test_rounded_gradients_of_logits_are_one_array),
      cmocka_unit_test(test_known_decoding_has_no_loop),
      cmocka_unit_test(test_changed_tensors_are_donated),
      cmocka_unit_test(test_every_op_is_a_location),
      cmocka_unit_test(test_products_read_their_operands_as_stored),
      cmocka_unit_test(test_gathers_wait_for_earlier_layers),
      cmocka_unit_test(test_backward_waits_for_adapters),
      cmocka_unit_test(test_likeliest_tokens_are_found_in_tiles),
      cmocka_unit_test(test_masks_are_drawn_late),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
