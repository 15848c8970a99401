/* test_ops.c - the op table is complete, and its work and shape rules agree with counts made by
 * hand. */
#include "unit/graph/fixture.h"

static int row_count(void) {
  int count = 0;
  while (RF_OPS[count]) count++;
  return count;
}

static int slots(const char *const *texts, int limit) {
  int count = 0;
  while (count < limit && texts[count]) count++;
  return count;
}

static void test_every_row_is_whole(void **state) {
  (void)state;
  for (int r = 0; RF_OPS[r]; r++) {
    const rf_op_def *def = RF_OPS[r];
    assert_non_null(def->name);
    assert_ptr_equal(rf_op_find(def->name), def); /* Also: no earlier row has the same name. */
    if (!def->formula || strlen(def->formula) < 20) fail_msg("%s has no formula", def->name);
    if (!def->shape || !def->work) fail_msg("%s lacks a shape or a work rule", def->name);
    if (!(def->tolerance.f32 > 0) || !(def->tolerance.bf16 > 0)) fail_msg("%s has no tolerance", def->name);
    int inputs = slots(def->inputs, RF_MAX_INPUTS), outputs = slots(def->outputs, RF_MAX_OUTPUTS);
    /* send, recv */
    assert_true((inputs >= 1 && outputs >= 1) || (inputs + outputs == 1 && rf_op_is_exchange(def)));
    for (int i = 0; i < inputs; i++)
      if (!strchr(def->inputs[i], '(')) fail_msg("%s: input %d has no shape", def->name, i);
    for (int i = 0; i < outputs; i++)
      if (!strchr(def->outputs[i], '(')) fail_msg("%s: output %d has no shape", def->name, i);
    assert_in_range(def->inplace_count, 0, 4);
    for (int i = 0; i < def->inplace_count; i++) {
      assert_in_range(def->inplace[i].output, 0, outputs - 1);
      assert_in_range(def->inplace[i].input, 0, inputs - 1);
    }
    for (int i = def->inplace_count; i < 4; i++)
      assert_true(def->inplace[i].output == 0 && def->inplace[i].input == 0);
  }
  assert_null(rf_op_find("no_such_op"));
}

/* Every row occurs in a graph that a builder or a pass makes. There its in-place pairs have equal
 * bytes and its work is not zero. */
static void test_every_row_occurs_and_works(void **state) {
  (void)state;
  static const char *const models[] = {TINY_GPT,     TINY_LLAMA, TINY_GEMMA,   TINY_NEOX,
                                       TINY_MIXTRAL, TINY_LLAMA, TINY_DEEPSEEK};
  static const char *const passes[] = {"optimize", "fuse"};
  int rows = row_count(), seen[128] = {0};
  assert_true(rows < 128);
  for (int m = 0; m < 7; m++)
    for (int kind = 0; kind < 6; kind++) {
      rf_model model = fixture_model(models[m]);
      if (m == 5) fixture_lora(&model, "rank=4,dropout=0.1");
      rf_build_options options = kind < 3 || kind == 5 ? fixture_train(RF_BF16, 1, kind == 2 ? 0 : 0.1f, 1)
                                                       : fixture_generate(RF_BF16, 3, 8);
      options.sampled = kind == 3;
      if (kind == 1 && (m == 1 || m == 2))
        options.objective = m == 1 ? RF_OBJECTIVE_POLICY : RF_OBJECTIVE_PAIRS;
      options.pairs.beta = 0.1f;
      options.adapter_slots = kind == 3 && m == 1 ? 2 : 0;
      options.adapter_rank = 4;
      if (kind == 4) {
        options.job = RF_JOB_SCORE;
        options.top = 3;
      }
      if (kind == 3 && m == 0) options.mesh.of[RF_AXIS_CONTEXT] = 2;
      if (kind == 5 && model.kv_rank == 0) {
        options.mesh = (rf_mesh){.of = {[RF_AXIS_TENSOR] = 2}, .zero = 3};
        options.mesh.of[m % 2 ? RF_AXIS_FSDP : RF_AXIS_CONTEXT] = 2;
        if (m % 2 == 0) options.dropout = 0;
      } else if (kind == 5) {
        options.mesh = (rf_mesh){.of = {[RF_AXIS_PIPELINE] = 2}};
        options.accumulate = 2;
      }
      rf_graph *graph = fixture_graph(&model, &options, passes[kind < 1 ? 0 : 1]);
      for (int o = 0; o < graph->op_count; o++) {
        const rf_op *op = &graph->op[o];
        rf_work work = op->def->work(graph, op);
        /* counted at the sender */
        bool senders = !strcmp(op->def->name, "recv") && op->attr.accumulate[0] == RF_WRITE;
        if (!senders && (!(op->input_count ? work.bytes_read > 0 : true) ||
                         !(op->output_count ? work.bytes_written > 0 : true)))
          fail_msg("%s moves no bytes", op->name);
        if (!(work.flops >= 0 && work.flops_full >= work.flops))
          fail_msg("%s: %g FLOPs of %g", op->name, work.flops, work.flops_full);
        for (int i = 0; i < op->def->inplace_count; i++) {
          int out = op->output[op->def->inplace[i].output], in = op->input[op->def->inplace[i].input];
          if (out >= 0 && in >= 0)
            assert_int_equal(rf_tensor_bytes(&graph->tensor[out]), rf_tensor_bytes(&graph->tensor[in]));
        }
        for (int r = 0; r < rows; r++) seen[r] |= RF_OPS[r] == op->def;
      }
      rf_graph_free(graph);
    }
  for (int r = 0; r < rows; r++) /* Collectives occur in graphs of several chips: test_shard.c. */
    if (!seen[r] && !rf_op_is_exchange(RF_OPS[r])) fail_msg("no graph has the op %s", RF_OPS[r]->name);
}

static rf_graph *bare(rf_model *model) {
  *model = fixture_model(TINY_GPT);
  return rf_graph_new(model);
}

static int make(rf_graph *graph, const char *name, rf_dtype dtype, int64_t a, int64_t b) {
  return rf_graph_tensor(graph, name, RF_CLASS_ACTIVATION, dtype, b ? 2 : 1, (int64_t[]){a, b});
}

/* Counts pairs one by one, for full and windowed attention, with segments of whole and of odd
 * length. */
static void test_attention_counts_what_the_mask_leaves(void **state) {
  (void)state;
  static const struct {
    int64_t rows, seq;
    int window;
  } cases[] = {{64, 64, 0}, {128, 32, 0}, {96, 32, 5}, {64, 64, 64}, {64, 64, 100}, {7, 7, 1}, {12, 3, 2}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    rf_model model;
    rf_graph *graph = bare(&model);
    graph->seq = cases[c].seq;
    rf_error error = {0};
    int inputs[] = {make(graph, "qkv", RF_F32, cases[c].rows, (4 + 2 * 2) * 8),
                    make(graph, "segments", RF_I32, cases[c].rows + 1, 0)};
    rf_attr attr = {.attention = {.heads = 4, .kv_heads = 2, .head_dim = 8, .window = cases[c].window}};
    int id = rf_graph_emit(graph, &RF_OP_ATTENTION, "attention/fwd", RF_SECTION_MICRO, (rf_slots){inputs, 2},
                           RF_ALL_NEW, &attr, &error);
    assert_true(id >= 0);
    double pairs = 0, square = 0;
    for (int64_t s = 0; s < cases[c].rows / cases[c].seq; s++)
      for (int64_t i = 0; i < cases[c].seq; i++)
        for (int64_t j = 0; j < cases[c].seq; j++) {
          square++;
          pairs += j <= i && (cases[c].window == 0 || j > i - cases[c].window);
        }
    rf_work work = graph->op[id].def->work(graph, &graph->op[id]);
    assert_true(work.flops == pairs * 4 * 4 * 8);
    assert_true(work.flops_full == square * 4 * 4 * 8);
    rf_graph_free(graph);
  }
}

static void test_matmul_work(void **state) {
  (void)state;
  rf_model model;
  rf_graph *graph = bare(&model);
  rf_error error = {0};
  int inputs[] = {make(graph, "x", RF_BF16, 6, 10), make(graph, "w", RF_BF16, 20, 10),
                  make(graph, "b", RF_BF16, 20, 0)};
  rf_attr attr = {.matmul = {.transpose = true}};
  int id = rf_graph_emit(graph, &RF_OP_MATMUL, "step/micro/part/fwd", RF_SECTION_MICRO, (rf_slots){inputs, 3},
                         RF_IDS(RF_WANTED), &attr, &error);
  assert_true(id >= 0);
  rf_work work = graph->op[id].def->work(graph, &graph->op[id]);
  assert_true(work.flops == 2.0 * 6 * 10 * 20 && work.flops_again == 0);
  assert_true(work.bytes_read == 2.0 * (60 + 200 + 20) && work.bytes_written == 2.0 * 120);
  assert_string_equal(graph->tensor[graph->op[id].output[0]].name, "part/u");

  int dw_inputs[] = {inputs[0], graph->op[id].output[0]};
  rf_attr dw_attr = {.matmul = {.transpose = true}, .accumulate = {RF_ACCUMULATE_ADD}};
  id = rf_graph_emit(graph, &RF_OP_MATMUL_DW, "step/micro/part/bwd/weight", RF_SECTION_MICRO,
                     (rf_slots){dw_inputs, 2}, RF_IDS(RF_WANTED), &dw_attr, &error);
  assert_true(id >= 0);
  const rf_tensor *dw = &graph->tensor[graph->op[id].output[0]];
  assert_true(dw->dtype == RF_F32 && dw->shape[0] == 20 && dw->shape[1] == 10 &&
              dw->class == RF_CLASS_GRADIENT);
  work = graph->op[id].def->work(graph, &graph->op[id]);
  /* The tensor that it adds to is read as well. */
  assert_true(work.bytes_read == 2.0 * (60 + 120) + 4.0 * 200);
  rf_graph_free(graph);
}

static void refused(rf_graph *graph, const char *def, const int *inputs, int count, unsigned wanted,
                    const rf_attr *attr, const char *says) {
  rf_error error = {0};
  int before = graph->op_count,
      outputs[] = {wanted & 1 ? RF_WANTED : RF_NONE, wanted & 2 ? RF_WANTED : RF_NONE};
  int id = rf_graph_emit(graph, rf_op_find(def), "bad", RF_SECTION_MICRO, (rf_slots){inputs, count},
                         (rf_slots){outputs, wanted > 1 ? 2 : 1}, attr, &error);
  assert_int_equal(id, RF_NONE);
  assert_int_equal(graph->op_count, before);
  if (!strstr(error.message, says)) fail_msg("expected '%s' in: %s", says, error.message);
}

static void test_shape_rules_refuse(void **state) {
  (void)state;
  rf_model model;
  rf_graph *graph = bare(&model);
  int x = make(graph, "x", RF_F32, 6, 10), w = make(graph, "w", RF_F32, 11, 20),
      good = make(graph, "good", RF_F32, 10, 20);
  int ids = make(graph, "ids", RF_I32, 6, 0), short_ids = make(graph, "short", RF_I32, 5, 0),
      narrow = make(graph, "narrow", RF_BF16, 6, 10);
  rf_attr gelu = {.matmul = {.epilogue = RF_EPILOGUE_GELU}},
          residual = {.matmul = {.epilogue = RF_EPILOGUE_RESIDUAL}},
          odd = {.rope = {.heads = 1, .kv_heads = 1, .head_dim = 3}};
  rf_attr heads = {.attention = {.heads = 3, .kv_heads = 2, .head_dim = 2}},
          certain = {.dropout = {.rate = 1}};
  refused(graph, "matmul", (int[]){x, w}, 2, 1, NULL, "w (K,N) = w: expected (10,20), got (11,20)");
  refused(graph, "matmul", (int[]){x}, 1, 1, NULL, "missing input");
  refused(graph, "matmul", (int[]){x, good, RF_NONE, x}, 4, 2, &residual, "wrong shape");
  refused(graph, "matmul", (int[]){x, good}, 2, 2, &residual, "residual and epilogue disagree");
  refused(graph, "matmul", (int[]){x, good}, 2, 1, &gelu, "wrong outputs for the epilogue");
  refused(graph, "matmul", (int[]){ids, good}, 2, 1, NULL, "wrong dtype");
  refused(graph, "matmul", (int[]){x, 999}, 2, 1, NULL, "unknown tensor");
  refused(graph, "add", (int[]){x, narrow}, 2, 1, NULL, "wrong dtype");
  refused(graph, "add_dropout", (int[]){x, x}, 2, 1, &certain, "dropout out of range");
  refused(graph, "embed", (int[]){ids, short_ids, good}, 3, 1, NULL, "wrong shape");
  refused(graph, "rope", (int[]){x, ids}, 2, 1, &odd, "even rope dim");
  refused(graph, "attention", (int[]){x, ids}, 2, 3, &heads, "bad heads");
  refused(graph, "embed_bwd", (int[]){ids, ids, x}, 3, 1, NULL, "no tensor for the table's gradient");
  refused(graph, "gelu", (int[]){x, x}, 2, 1, NULL, "too many slots");
  rf_graph_free(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_row_is_whole),
      cmocka_unit_test(test_every_row_occurs_and_works),
      cmocka_unit_test(test_attention_counts_what_the_mask_leaves),
      cmocka_unit_test(test_matmul_work),
      cmocka_unit_test(test_shape_rules_refuse),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
