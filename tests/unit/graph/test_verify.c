/* test_verify.c - the checker accepts every graph that the passes make, and finds every planted
 * fault. */
#include "unit/graph/fixture.h"

static void test_all_configurations_verify(void **state) {
  (void)state;
  static const char *const models[] = {TINY_GPT, "gpt:layers=2,width=32,heads=2,ff=64,vocab=100,seq=32",
                                       TINY_LLAMA, "uva"};
  static const char *const passes[] = {"build", "differentiate", "optimize", "fuse"};
  static const rf_dtype dtypes[] = {RF_F32, RF_BF16, RF_F64};
  int checked = 0;
  for (int m = 0; m < 4; m++)
    for (int flags = 0; flags < 32; flags++)
      for (int d = 0; d < 3; d++)
        for (int pass = 0; pass < 4; pass++) {
          rf_model model = fixture_model(models[m]);
          if (m < 3) {
            model.tied = flags & 1;
            model.mlp_first = flags & 2;
            model.head_bias = flags & 1;
          }
          if (m == 1) model.bias = flags & 4;
          rf_build_options options =
              fixture_train(dtypes[d], flags & 4 ? 3 : 1, flags & 8 ? 0.1f : 0, flags & 16 ? 1 : 0);
          rf_graph *graph = fixture_graph(&model, &options, passes[pass]);
          fixture_verify(graph);
          checked++;
          rf_graph_free(graph);
        }
  assert_int_equal(checked, 4 * 32 * 3 * 4);
}

/* ---- planted faults -------------------------------------------------------------------------- */

static rf_graph *subject(int accumulate, float clip) {
  rf_model model = fixture_model("gpt:layers=2,width=32,heads=2,ff=64,vocab=100,seq=32");
  model.tied = true;
  rf_build_options options = fixture_train(RF_BF16, accumulate, 0.1f, clip);
  rf_graph *graph = fixture_graph(&model, &options, NULL);
  fixture_verify(graph);
  return graph;
}

static void caught(rf_graph *graph, const char *says) {
  rf_error error = {0};
  rf_status status = rf_graph_verify(graph, &error);
  if (status != RAFTER_INVALID || !strstr(error.message, says))
    fail_msg("expected '%s', got %d: %s", says, (int)status, error.message);
  rf_graph_free(graph);
}

static rf_op *op_of(rf_graph *graph, const char *name) {
  int o = fixture_op(graph, name);
  if (o < 0) fail_msg("no op %s", name);
  return &graph->op[o];
}

static void swap(rf_graph *graph, int a, int b) {
  rf_op op = graph->op[a];
  graph->op[a] = graph->op[b];
  graph->op[b] = op;
}

static void test_reader_before_writer(void **state) {
  (void)state;
  /* two neighbours of which the second reads the first */
  rf_graph *probe = subject(1, 0);
  int ops = probe->op_count, tried = 0;
  rf_graph_free(probe);
  for (int o = 0; o + 1 < ops; o++) {
    rf_graph *graph = subject(1, 0);
    bool reads = false;
    for (int i = 0; i < graph->op[o + 1].input_count; i++)
      for (int k = 0; k < graph->op[o].output_count; k++)
        reads = reads || (graph->op[o].output[k] >= 0 && graph->op[o].output[k] == graph->op[o + 1].input[i]);
    if (!reads || graph->op[o].section != graph->op[o + 1].section) {
      rf_graph_free(graph);
      continue;
    }
    tried++;
    swap(graph, o, o + 1);
    rf_error error = {0};
    if (rf_graph_verify(graph, &error) == RAFTER_OK)
      fail_msg("swapping %s and %s was not found", graph->op[o + 1].name, graph->op[o].name);
    rf_graph_free(graph);
  }
  assert_true(tried > 20);
  /* A missing op leaves its readers without a value. */
  rf_graph *graph = subject(1, 0);
  memmove(&graph->op[3], &graph->op[4], (size_t)(graph->op_count - 4) * sizeof *graph->op);
  graph->op_count--;
  caught(graph, "read before it is written");
}

static void test_double_writer(void **state) {
  (void)state;
  rf_graph *graph = subject(1, 1);
  rf_op *first = op_of(graph, "step/micro/block.0/attn/norm/fwd"),
        *second = op_of(graph, "step/micro/block.0/mlp/norm/fwd");
  second->output[0] = first->output[0];
  caught(graph, "second writer");

  graph = subject(1, 1);
  /* The head's part of the tied table's gradient is lost. */
  op_of(graph, "step/micro/embed/bwd")->attr.accumulate[0] = RF_WRITE;
  caught(graph, "second writer");

  graph = subject(1, 1);
  op_of(graph, "step/micro/block.0/mlp/norm/bwd")->output[2] =
      op_of(graph, "step/micro/block.0/mlp/norm/bwd")->output[1];
  caught(graph, "written twice by one op");

  graph = subject(1, 1);
  op_of(graph, "step/end/block.0/mlp/norm/gain/norm_sq")->attr.sums.element =
      op_of(graph, "step/end/block.0/mlp/norm/bias/norm_sq")->attr.sums.element;
  caught(graph, "written twice");

  graph = subject(1, 1);
  rf_op *update = op_of(graph, "step/end/block.0/mlp/norm/bias/adamw"),
        *other = op_of(graph, "step/end/block.0/mlp/norm/gain/adamw");
  memcpy(update->input, other->input, sizeof update->input);
  memcpy(update->output, other->output, sizeof update->output);
  rf_error error = {0};
  assert_int_equal(rf_graph_verify(graph, &error), RAFTER_INVALID);
  rf_graph_free(graph);
}

static void test_bad_ids(void **state) {
  (void)state;
  static const int ids[] = {-7, -2, 1 << 20};
  for (int i = 0; i < 3; i++) {
    rf_graph *graph = subject(1, 0);
    op_of(graph, "step/micro/block.1/attn/qkv/fwd")->input[1] = ids[i];
    caught(graph, "bad tensor id");
    graph = subject(1, 0);
    op_of(graph, "step/micro/block.1/attn/qkv/fwd")->output[0] = ids[i];
    caught(graph, "bad tensor id");
  }
  rf_graph *graph = subject(1, 0);
  op_of(graph, "step/micro/block.1/attn/qkv/fwd")->input[0] = RF_NONE; /* this input is not optional */
  caught(graph, "bad tensor id");
  graph = subject(1, 0);
  op_of(graph, "step/micro/block.1/attn/qkv/fwd")->input_count = 2;
  caught(graph, "wrong slot count");
  graph = subject(1, 0);
  op_of(graph, "step/micro/block.1/attn/qkv/fwd")->def = NULL;
  caught(graph, "no row in the op table");
  graph = subject(1, 0);
  op_of(graph, "step/micro/block.1/attn/qkv/fwd")->recompute_of = 500;
  caught(graph, "repeats no earlier op");
  graph = subject(1, 0);
  op_of(graph, "step/micro/block.1/attn/qkv/fwd")->recompute_of = 0;
  caught(graph, "repeats another op");
  graph = subject(1, 0);
  op_of(graph, "step/micro/block.1/attn/qkv/fwd")->name = graph->op[0].name;
  caught(graph, "two ops of one name");
}

static void test_wrong_shapes(void **state) {
  (void)state;
  static const char *const tensors[] = {"block.1/attn/qkv/u",
                                        "block.1/mlp/up/weight",
                                        "block.1/mlp/norm/stats",
                                        "block.0/attn/attention/lse",
                                        "block.1/mlp/up/weight/grad",
                                        "embed/token/weight/m",
                                        "labels",
                                        "embed/x",
                                        "segments",
                                        "metrics"};
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
    rf_graph *graph = subject(1, 0);
    int t = rf_graph_find(graph, tensors[i]);
    if (t < 0) fail_msg("no tensor %s", tensors[i]);
    graph->tensor[t].shape[graph->tensor[t].rank - 1]++;
    caught(graph, "wrong shape");
    graph = subject(1, 0);
    graph->tensor[t].dtype = RF_I64;
    caught(graph, "wrong dtype");
    graph = subject(1, 0);
    graph->tensor[t].shape[0] = 0;
    caught(graph, "malformed tensor");
  }
  rf_graph *graph = subject(1, 0);
  rf_op *qkv = op_of(graph, "step/micro/block.1/attn/qkv/fwd");
  qkv->attr.matmul.transpose = true;
  caught(graph, "wrong shape");
}

static void test_wrong_sections(void **state) {
  (void)state;
  rf_graph *graph = subject(1, 0);
  op_of(graph, "step/micro/block.1/attn/qkv/fwd")->section = RF_SECTION_END;
  caught(graph, "wrong section");
  graph = subject(1, 0);
  op_of(graph, "step/micro/block.1/attn/qkv/fwd")->section = RF_SECTION_BEGIN;
  caught(graph, "wrong section");
  graph = subject(1, 0);
  op_of(graph, "step/micro/block.1/attn/qkv/fwd")->section = (rf_section)7;
  caught(graph, "wrong section");

  /* The early updates of one microbatch, run for several microbatches. Each would update the
   * weights with a part of the gradient. */
  graph = subject(1, 0);
  graph->accumulate = 2;
  caught(graph, "forgets earlier microbatches");
  graph = subject(1, 0);
  graph->accumulate = 2;
  for (int o = 0; o < graph->op_count; o++)
    for (int i = 0; i < graph->op[o].output_count; i++) {
      int t = graph->op[o].output[i];
      rf_accumulate *how = &graph->op[o].attr.accumulate[i];
      if (t >= 0 && graph->tensor[t].class == RF_CLASS_GRADIENT && *how == RF_WRITE)
        *how = RF_ACCUMULATE_MICRO;
    }
  caught(graph, "reads a sum over microbatches before the last one");

  /* A backward pass after the loop sees only the last microbatch. */
  graph = subject(2, 1);
  int last = fixture_op(graph, "step/micro/embed/bwd");
  assert_int_equal(graph->op[last + 1].section, RF_SECTION_END);
  graph->op[last].section = RF_SECTION_END;
  caught(graph, "reads an input of one microbatch outside of it");
}

static void test_sums_and_states(void **state) {
  (void)state;
  rf_graph *graph = subject(2, 1);
  op_of(graph, "step/micro/block.1/mlp/up/bwd/weight")->attr.accumulate[0] = RF_WRITE;
  caught(graph, "forgets earlier microbatches");
  graph = subject(2, 1);
  op_of(graph, "step/micro/block.1/mlp/up/bwd/weight")->attr.accumulate[0] = RF_ACCUMULATE_ADD;
  caught(graph, "adds to nothing");
  graph = subject(1, 1);
  op_of(graph, "step/micro/block.1/mlp/up/bwd")->attr.accumulate[0] = RF_ACCUMULATE_ADD;
  caught(graph, "holds no sum");

  /* an update before the last reader of the old weight */
  graph = subject(1, 0);
  int update = fixture_op(graph, "step/micro/block.1/mlp/up/weight/adamw"),
      dx = fixture_op(graph, "step/micro/block.1/mlp/up/bwd");
  assert_true(update > dx);
  rf_op moved = graph->op[update];
  memmove(&graph->op[dx + 1], &graph->op[dx], (size_t)(update - dx) * sizeof moved);
  graph->op[dx] = moved;
  caught(graph, "reads a state after its update");

  graph = subject(1, 1);
  op_of(graph, "step/micro/block.1/mlp/up/fwd")->output[1] = rf_graph_find(graph, "embed/x");
  rf_error error = {0};
  assert_int_equal(rf_graph_verify(graph, &error), RAFTER_INVALID);
  rf_graph_free(graph);

  graph = subject(1, 1);
  graph->tensor[rf_graph_find(graph, "block.1/attn/qkv/u")].persistent = true;
  caught(graph, "overwrites a state");
  graph = subject(1, 1);
  graph->tensor[rf_graph_find(graph, "block.1/attn/qkv/u")].input = true;
  caught(graph, "writes an input");
  graph = subject(1, 1);
  graph->tensor[rf_graph_find(graph, "labels")].input = false;
  caught(graph, "read before it is written");
  graph = subject(1, 1);
  int clip = fixture_op(graph, "step/end/clip");
  memmove(&graph->op[clip - 1], &graph->op[clip], (size_t)(graph->op_count - clip) * sizeof *graph->op);
  graph->op_count--;
  caught(graph, "read before it is whole");
  graph = subject(1, 0);
  graph->op_count--; /* clip is the last op */
  caught(graph, "promised and never written");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_configurations_verify),
      cmocka_unit_test(test_reader_before_writer),
      cmocka_unit_test(test_double_writer),
      cmocka_unit_test(test_bad_ids),
      cmocka_unit_test(test_wrong_shapes),
      cmocka_unit_test(test_wrong_sections),
      cmocka_unit_test(test_sums_and_states),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
