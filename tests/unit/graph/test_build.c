/* test_build.c - tests the graphs of the builder, autodiff and the optimizer: classes and bytes,
 * kept tensors, and the places where gradients are written and used. */
#include "unit/graph/fixture.h"

static int64_t class_bytes(const rf_graph *graph, rf_class class) {
  int64_t bytes = 0;
  for (int t = 0; t < graph->tensor_count; t++)
    if (graph->tensor[t].class == class) bytes += rf_tensor_bytes(&graph->tensor[t]);
  return bytes;
}

static void test_bytes_per_parameter(void **state) {
  (void)state;
  static const char *const models[] = {"uva", "gpt2", TINY_LLAMA};
  for (int m = 0; m < 3; m++)
    for (int narrow = 0; narrow < 2; narrow++) {
      rf_model model = fixture_model(models[m]);
      rf_build_options options = fixture_train(narrow ? RF_BF16 : RF_F32, 4, -1, 1);
      rf_graph *graph = fixture_graph(&model, &options, NULL);
      int64_t count = graph->params.total;
      if (m == 0) assert_int_equal(count, 155877376);
      assert_int_equal(class_bytes(graph, RF_CLASS_WEIGHT), (narrow ? 2 : 4) * count);
      assert_int_equal(class_bytes(graph, RF_CLASS_MASTER), narrow ? 4 * count : 0);
      assert_int_equal(class_bytes(graph, RF_CLASS_GRADIENT), 4 * count);
      assert_int_equal(class_bytes(graph, RF_CLASS_MOMENT), 8 * count);
      for (int t = 0; t < graph->tensor_count; t++) {
        const rf_tensor *tensor = &graph->tensor[t];
        bool keeps = tensor->class == RF_CLASS_WEIGHT || tensor->class == RF_CLASS_MASTER ||
                     tensor->class == RF_CLASS_MOMENT;
        assert_int_equal(tensor->persistent, keeps);
        assert_int_equal(tensor->param >= 0, keeps || tensor->class == RF_CLASS_GRADIENT);
      }
      fixture_verify(graph);
      rf_graph_free(graph);
    }
}

/* Elements per token that the forward pass makes and the backward pass reads inside block `layer`.
 * Tensors with only one number per row or head are left out. */
static int64_t kept_elements(const rf_graph *graph, int layer) {
  char prefix[64], before[64];
  snprintf(prefix, sizeof prefix, "step/micro/block.%d/", layer);
  snprintf(before, sizeof before, "step/micro/block.%d/", layer + 1);
  int64_t kept = 0;
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    if (tensor->class != RF_CLASS_ACTIVATION || tensor->rank != 2 || tensor->shape[0] != graph->rows ||
        tensor->shape[1] <= 2)
      continue;
    bool made = false, read = false;
    for (int o = 0; o < graph->op_count; o++) {
      const rf_op *op = &graph->op[o];
      for (int i = 0; i < op->output_count; i++)
        made =
            made || (op->output[i] == t && !op->backward && strncmp(op->name, prefix, strlen(prefix)) == 0);
      for (int i = 0; i < op->input_count; i++) read = read || (op->input[i] == t && op->backward);
    }
    if (made && read) kept += tensor->shape[1];
  }
  return kept;
}

static void test_kept_elements(void **state) {
  (void)state;
  static const char *const models[] = {TINY_GPT, "gpt:layers=3,width=48,heads=4,ff=200,vocab=300,seq=64",
                                       "uva"};
  for (int m = 0; m < 3; m++)
    for (int dropout = 0; dropout < 2; dropout++) {
      rf_model model = fixture_model(models[m]);
      rf_build_options options = fixture_train(RF_F32, 1, dropout ? 0.1f : 0, 0);
      rf_graph *graph = fixture_graph(&model, &options, NULL);
      /* A middle block: its output is the input x of the next block. */
      assert_int_equal(kept_elements(graph, 1), 8 * model.width + 2 * model.ff);
      rf_graph_free(graph);
    }
}

/* The work of a step is three times the forward pass, which is 2 n per multiplied weight plus
 * attention. */
static void test_flops(void **state) {
  (void)state;
  static const char *const models[] = {TINY_GPT, "gpt2", TINY_LLAMA};
  for (int m = 0; m < 3; m++)
    for (int fused = 0; fused < 2; fused++) {
      rf_model model = fixture_model(models[m]);
      rf_build_options options = fixture_train(RF_F32, 1, 0.1f, 1);
      rf_graph *graph = fixture_graph(&model, &options, fused ? NULL : "optimize");
      double flops = 0, full = 0, n = (double)graph->rows, seq = (double)options.seq,
             width = (double)(model.heads * model.head_dim);
      for (int o = 0; o < graph->op_count; o++) {
        rf_work work = graph->op[o].def->work(graph, &graph->op[o]);
        flops += work.flops;
        full += work.flops_full;
      }
      double weights = 6 * n * (double)graph->params.matmul, layers = (double)model.layers;
      assert_true(flops == weights + layers * 3 * 4 * width * (n / seq) * seq * (seq + 1) / 2);
      assert_true(full == weights + layers * 12 * width * n * seq);
      rf_graph_free(graph);
    }
}

/* For each parameter's gradient, the first writer writes (or starts the sum over microbatches),
 * later writers add, and no op reads it before the last writer. */
static void test_gradient_order(void **state) {
  (void)state;
  for (int accumulate = 1; accumulate <= 4; accumulate += 3) {
    rf_model model = fixture_model("gpt2"); /* The head is tied, so the token table has two writers. */
    rf_build_options options = fixture_train(RF_BF16, accumulate, 0, 1);
    rf_graph *graph = fixture_graph(&model, &options, NULL);
    rf_uses uses = rf_graph_uses(graph, graph->pool);
    int gradients = 0, doubles = 0;
    for (int t = 0; t < graph->tensor_count; t++) {
      if (graph->tensor[t].class != RF_CLASS_GRADIENT) continue;
      gradients++;
      int writers = uses.writer_at[t + 1] - uses.writer_at[t], last = uses.writer[uses.writer_at[t + 1] - 1];
      doubles += writers == 2;
      assert_in_range(writers, 1, 2);
      for (int w = 0; w < writers; w++) {
        const rf_op *op = &graph->op[uses.writer[uses.writer_at[t] + w]];
        assert_true(op->backward && op->section == RF_SECTION_MICRO);
        for (int i = 0; i < op->output_count; i++)
          if (op->output[i] == t)
            assert_int_equal(op->attr.accumulate[i], w                ? RF_ACCUMULATE_ADD
                                                     : accumulate > 1 ? RF_ACCUMULATE_MICRO
                                                                      : RF_WRITE);
      }
      int readers = uses.reader_at[t + 1] - uses.reader_at[t];
      assert_int_equal(readers, 2); /* its norm and its update */
      for (int r = 0; r < readers; r++) {
        const rf_op *op = &graph->op[uses.reader[uses.reader_at[t] + r]];
        assert_true(uses.reader[uses.reader_at[t] + r] > last);
        assert_int_equal(op->section, RF_SECTION_END);
      }
    }
    assert_int_equal(gradients, graph->params.count);
    assert_int_equal(doubles, 1);
    rf_graph_free(graph);
  }
}

/* Without clipping and accumulation, an update directly follows the last use of its gradient and of
 * the old weight. */
static void test_early_updates(void **state) {
  (void)state;
  static const char *const models[] = {TINY_GPT, "uva", "gpt2", TINY_LLAMA};
  for (int m = 0; m < 4; m++)
    for (int clip = 0; clip < 2; clip++)
      for (int accumulate = 1; accumulate <= 2; accumulate++) {
        rf_model model = fixture_model(models[m]);
        rf_build_options options = fixture_train(RF_F32, accumulate, -1, (float)clip);
        rf_graph *graph = fixture_graph(&model, &options, NULL);
        bool early = accumulate == 1 && !clip;
        int updates = 0;
        for (int o = 0; o < graph->op_count; o++) {
          const rf_op *op = &graph->op[o];
          if (strcmp(op->def->name, "adamw") != 0) continue;
          updates++;
          assert_int_equal(op->section, early ? RF_SECTION_MICRO : RF_SECTION_END);
          assert_int_equal(op->input[4] >= 0, clip);
          const rf_param *param = &graph->params.at[graph->tensor[op->input[1]].param];
          assert_true(op->attr.adamw.weight_decay == (param->decays ? 0.1f : 0.0f));
          if (!early) continue;
          int weight = op->output[3] >= 0 ? op->output[3] : op->input[1], before = -1;
          for (int k = 0; k < graph->op_count; k++) {
            bool state_op = strcmp(graph->op[k].def->name, "adamw") == 0 ||
                            strcmp(graph->op[k].def->name, "norm_sq") == 0;
            if (state_op) continue;
            for (int i = 0; i < graph->op[k].input_count; i++)
              if (graph->op[k].input[i] == weight) before = k > before ? k : before;
            for (int i = 0; i < graph->op[k].output_count; i++)
              if (graph->op[k].output[i] == op->input[0]) before = k > before ? k : before;
          }
          /* Only norms and updates are in between (and the loss sums, if the head's backward pass
           * is part of the loss). */
          assert_true(before >= 0 && before < o);
          for (int k = before + 1; k < o; k++) {
            const char *between = graph->op[k].def->name;
            assert_true(strcmp(between, "adamw") == 0 || strcmp(between, "norm_sq") == 0 ||
                        strcmp(between, "loss_sum") == 0);
          }
        }
        assert_int_equal(updates, graph->params.count);
        const rf_op *last = &graph->op[graph->op_count - 1];
        if (early) assert_true(strcmp(last->def->name, "clip") == 0 && last->section == RF_SECTION_END);
        fixture_verify(graph);
        rf_graph_free(graph);
      }
}

static void test_adam_does_not_decay(void **state) {
  (void)state;
  rf_model model = fixture_model(TINY_GPT);
  rf_build_options options = fixture_train(RF_F32, 1, 0, 0);
  options.optimizer = RF_ADAM;
  rf_graph *graph = fixture_graph(&model, &options, NULL);
  for (int o = 0; o < graph->op_count; o++)
    if (graph->op[o].def->fields == RF_FIELDS_ADAMW) assert_true(graph->op[o].attr.adamw.weight_decay == 0);
  rf_graph_free(graph);
}

static void test_block_order_and_names(void **state) {
  (void)state;
  rf_model model = fixture_model(TINY_GPT);
  rf_build_options options = fixture_train(RF_F32, 1, 0.1f, 0);
  for (int mlp_first = 0; mlp_first < 2; mlp_first++) {
    model.mlp_first = mlp_first;
    rf_graph *graph = fixture_graph(&model, &options, NULL);
    int mlp = fixture_op(graph, "step/micro/block.1/mlp/down/fwd"),
        attn = fixture_op(graph, "step/micro/block.1/attn/out/fwd");
    int bwd = fixture_op(graph, "step/micro/block.1/mlp/down/bwd");
    assert_true(mlp >= 0 && attn >= 0 && bwd > mlp && (mlp < attn) == mlp_first);
    assert_true(graph->op[mlp].attr.dropout.site == rf_name_key("block.1/mlp/dropout"));
    assert_true(graph->op[attn].attr.dropout.site == rf_name_key("block.1/attn/dropout"));
    assert_true(graph->op[mlp].attr.dropout.rate == 0.1f &&
                graph->op[mlp].attr.matmul.epilogue == RF_EPILOGUE_RESIDUAL);
    /* The backward op of dropout draws from the same site. */
    const rf_op *drop = &graph->op[fixture_op(graph, "step/micro/block.1/mlp/residual/bwd")];
    assert_string_equal(drop->def->name, "dropout");
    assert_true(drop->attr.dropout.site == graph->op[mlp].attr.dropout.site);
    assert_true(rf_graph_find(graph, "block.1/mlp/down/weight") >= 0 &&
                rf_graph_find(graph, "block.1/mlp/down/weight/grad") >= 0);
    assert_int_equal(rf_graph_find(graph, "nothing"), RF_NONE);
    rf_graph_free(graph);
  }
}

static void test_inputs_and_outputs(void **state) {
  (void)state;
  static const struct {
    const char *name;
    rf_dtype dtype;
    bool input;
  } train[] = {{"tokens", RF_I32, true},   {"labels", RF_I32, true},   {"positions", RF_I32, true},
               {"segments", RF_I32, true}, {"metrics", RF_F64, false}, {"clip", RF_F32, false}};
  rf_model model = fixture_model(TINY_GPT);
  rf_build_options options = fixture_train(RF_BF16, 2, 0, 1);
  rf_graph *graph = fixture_graph(&model, &options, NULL);
  int found = 0;
  for (int t = 0; t < graph->tensor_count; t++) found += graph->tensor[t].input || graph->tensor[t].output;
  assert_int_equal(found, 6);
  for (int i = 0; i < 6; i++) {
    int t = rf_graph_find(graph, train[i].name);
    assert_true(t >= 0 && graph->tensor[t].dtype == train[i].dtype && graph->tensor[t].class == RF_CLASS_IO);
    assert_true(graph->tensor[t].input == train[i].input && graph->tensor[t].output == !train[i].input);
  }
  assert_int_equal(graph->rows, 64);
  rf_graph_free(graph);
}

static bool drops(const rf_op *op) {
  bool can = op->def->fields == RF_FIELDS_DROPOUT || op->def->fields == RF_FIELDS_MATMUL;
  return can && op->attr.dropout.rate > 0;
}

static void test_generate(void **state) {
  (void)state;
  static const char *const models[] = {TINY_GPT, TINY_LLAMA, "gpt2"};
  for (int m = 0; m < 3; m++) {
    rf_model model = fixture_model(models[m]);
    rf_build_options options = fixture_generate(RF_BF16, 3, 16);
    rf_graph *graph = fixture_graph(&model, &options, NULL);
    fixture_verify(graph);
    /* 48 positions: one page */
    assert_int_equal(class_bytes(graph, RF_CLASS_KV),
                     model.layers * 3 * 2 * 256 * model.kv_heads * model.head_dim * 2);
    /* The rows of the token table are padded to sixteen lanes. */
    int64_t padding = (model.vocab + 15) / 16 * 16 - model.vocab;
    assert_int_equal(class_bytes(graph, RF_CLASS_WEIGHT), 2 * (graph->params.total + padding * model.width));
    assert_int_equal(class_bytes(graph, RF_CLASS_GRADIENT) + class_bytes(graph, RF_CLASS_MOMENT) +
                         class_bytes(graph, RF_CLASS_MASTER),
                     0);
    static const char *const io[] = {"tokens", "positions", "slots", "rows", "logits", "pages/global"};
    for (int i = 0; i < 6; i++) assert_true(rf_graph_find(graph, io[i]) >= 0);
    const rf_tensor *logits = &graph->tensor[rf_graph_find(graph, "logits")];
    assert_true(logits->output && logits->shape[0] == 3 && logits->shape[1] == model.vocab &&
                logits->dtype == RF_F32);
    for (int o = 0; o < graph->op_count; o++) {
      assert_false(graph->op[o].backward);
      /* No op reads u, so it is not made. */
      if (graph->op[o].def->fields == RF_FIELDS_MATMUL &&
          graph->op[o].attr.matmul.epilogue == RF_EPILOGUE_GELU)
        assert_int_equal(graph->op[o].output[0], RF_NONE);
      assert_false(drops(&graph->op[o]));
    }
    rf_graph_free(graph);
  }
}

static void test_validation_graph(void **state) {
  (void)state;
  rf_model model = fixture_model("uva");
  rf_build_options options = fixture_train(RF_F32, 3, -1, 1);
  options.loss_only = true;
  rf_graph *graph = fixture_graph(&model, &options, NULL);
  fixture_verify(graph);
  assert_int_equal(class_bytes(graph, RF_CLASS_GRADIENT) + class_bytes(graph, RF_CLASS_MOMENT), 0);
  for (int o = 0; o < graph->op_count; o++) assert_true(!graph->op[o].backward && !drops(&graph->op[o]));
  const rf_op *sum = &graph->op[graph->op_count - 1];
  assert_string_equal(sum->def->name, "loss_sum");
  assert_int_equal(sum->attr.accumulate[0], RF_ACCUMULATE_MICRO);
  rf_graph_free(graph);
}

/* Large shapes need no memory: the graph knows sizes and holds no data. */
static void test_large_models(void **state) {
  (void)state;
  rf_model model = fixture_model("llama3-405b");
  rf_build_options options = fixture_train(RF_BF16, 1, 0, 0);
  options.seq = 8192;
  rf_graph *graph = fixture_graph(&model, &options, NULL);
  fixture_verify(graph);
  assert_true(graph->params.total > 405800000000 && graph->params.total < 405900000000);
  assert_int_equal(class_bytes(graph, RF_CLASS_MOMENT), 8 * graph->params.total);
  rf_graph_free(graph);
}

static void refused(const rf_model *model, const rf_build_options *options, const char *after,
                    const char *says) {
  rf_graph *graph = NULL;
  rf_error error = {0};
  assert_int_equal(rf_graph_build(model, options, after, &graph, &error), RAFTER_INVALID);
  assert_null(graph);
  if (!strstr(error.message, says)) fail_msg("expected '%s' in: %s", says, error.message);
}

static void test_refusals(void **state) {
  (void)state;
  rf_model model = fixture_model(TINY_GPT);
  rf_build_options good = fixture_train(RF_F32, 1, 0, 0), bad = good;
  refused(&model, &good, "scatter", "unknown pass");
  bad.seq = 65;
  refused(&model, &bad, NULL, "sequence too long");
  bad = good;
  bad.dtype = RF_I8;
  refused(&model, &bad, NULL, "dtype not supported");
  bad = good;
  bad.microbatch = 0;
  refused(&model, &bad, NULL, "empty microbatch");
  bad = good;
  bad.accumulate = 0;
  refused(&model, &bad, NULL, "no microbatch");
  bad = good;
  bad.dropout = 1;
  refused(&model, &bad, NULL, "dropout out of range");
  bad = good;
  bad.microbatch = INT64_MAX / 64;
  refused(&model, &bad, NULL, "microbatch too large");
  model = fixture_model("mixtral:layers=1,width=64,heads=2,ff=64,vocab=64");
  model.router_aux = 0.02f;
  model.router_logits = true;
  refused(&model, &good, NULL, "router_aux_loss_coef");
  model.router_logits = false; /* a part of zero columns */
  bad = good;
  bad.microbatch = 1 << 20;
  bad.seq = 1 << 10;
  refused(&model, &bad, NULL, "too large for the experts");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bytes_per_parameter),
      cmocka_unit_test(test_kept_elements),
      cmocka_unit_test(test_flops),
      cmocka_unit_test(test_gradient_order),
      cmocka_unit_test(test_early_updates),
      cmocka_unit_test(test_adam_does_not_decay),
      cmocka_unit_test(test_block_order_and_names),
      cmocka_unit_test(test_inputs_and_outputs),
      cmocka_unit_test(test_generate),
      cmocka_unit_test(test_validation_graph),
      cmocka_unit_test(test_large_models),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
