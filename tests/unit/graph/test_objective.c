/* test_objective.c - training graphs whose loss is that of a policy or of pairs of answers. */
#include "unit/graph/fixture.h"

#include <math.h>

static rf_build_options objective(rf_objective kind) {
  rf_build_options options = fixture_train(RF_F32, 2, 0, 1);
  options.objective = kind;
  options.policy = (rf_policy){.clip = RF_POLICY_CLIP_RATIO, .clip_low = 0.2f, .clip_high = 0.2f};
  options.pairs = (rf_pairs){.beta = 0.1f};
  return options;
}

static const rf_op *op_of(const rf_graph *graph, const char *def) {
  for (int o = 0; o < graph->op_count; o++)
    if (!strcmp(graph->op[o].def->name, def)) return &graph->op[o];
  return NULL;
}

/* The named inputs and outputs of rows: those of `names`, and no others of all names. */
static void has_only(const rf_graph *graph, const char *names) {
  static const char *const all[] = {"old_logprobs",       "advantages", "loss_weights",
                                    "reference_logprobs", "nll",        "margins"};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    int id = rf_graph_find(graph, all[i]);
    bool wanted = strstr(names, all[i]) != NULL;
    if ((id != RF_NONE) != wanted)
      fail_msg("%s: %s, got %s", all[i], wanted ? "expected" : "not expected",
               id == RF_NONE ? "none" : "one");
    if (!wanted) continue;
    const rf_tensor *tensor = &graph->tensor[id];
    assert_true(tensor->class == RF_CLASS_IO && tensor->dtype == RF_F32 && tensor->rank == 1);
    assert_int_equal(tensor->shape[0], graph->rows);
    assert_true(tensor->input == (i < 4) && tensor->output == (i >= 4));
  }
}

static void check(rf_build_options options, const char *lora, const char *names) {
  for (int loss_only = 0; loss_only < 2; loss_only++) {
    rf_model model = fixture_model(TINY_LLAMA);
    if (lora) fixture_lora(&model, lora);
    options.loss_only = loss_only;
    rf_graph *graph = fixture_graph(&model, &options, NULL);
    fixture_verify(graph);
    has_only(graph, names);
    const rf_op *loss = op_of(graph, options.objective == RF_OBJECTIVE_PAIRS ? "pair_loss" : "policy_loss"),
                *back = op_of(graph, "head_loss_bwd"), *sum = op_of(graph, "loss_sum");
    assert_non_null(loss);
    assert_non_null(sum);
    assert_int_equal(sum->input[0], loss->output[0]);
    assert_int_equal(loss->input[0], rf_graph_find(graph, "nll"));
    if (loss_only) {
      assert_null(back);
      assert_int_equal(loss->output[1], RF_NONE);
    } else {
      assert_non_null(back);
      assert_int_equal(back->input[5], loss->output[1]);
      assert_null(op_of(graph, "head_loss_grad")); /* the loss is between its two ops */
    }
    rf_graph_free(graph);
  }
}

static void test_graphs_have_the_inputs_of_their_loss(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    const char *lora = i ? "rank=4" : NULL;
    rf_build_options policy = objective(RF_OBJECTIVE_POLICY), pairs = objective(RF_OBJECTIVE_PAIRS);
    check(policy, lora, "old_logprobs advantages loss_weights nll");
    policy.policy.beta = 0.04f;
    policy.policy.level = RF_POLICY_SEQUENCE_MEAN;
    check(policy, lora, "old_logprobs advantages loss_weights reference_logprobs nll");
    check(pairs, lora, "loss_weights reference_logprobs nll margins");
    pairs.pairs.kind = RF_PAIRS_IPO;
    check(pairs, lora, "loss_weights reference_logprobs nll margins");
    pairs.pairs.kind = RF_PAIRS_SIMPO;
    check(pairs, lora, "loss_weights nll margins");
  }
  rf_model model = fixture_model(TINY_LLAMA);
  rf_build_options options = objective(RF_OBJECTIVE_NLL);
  rf_graph *graph = fixture_graph(&model, &options, NULL);
  has_only(graph, "");
  assert_non_null(op_of(graph, "head_loss_grad"));
  rf_graph_free(graph);
}

/* If the log-probabilities are known from sampling, the loss needs nothing from the head. Its op is
 * first, and one op computes the head. With a sharded vocabulary, several ops compute it. */
static void test_a_known_ratio_needs_one_head(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    rf_model model = fixture_model(TINY_LLAMA);
    rf_build_options options = objective(RF_OBJECTIVE_POLICY);
    options.policy.on_policy = true;
    options.accumulate = i == 1 ? 3 : 1;
    if (i == 1) fixture_lora(&model, "rank=4");
    if (i >= 2) options.mesh.of[i == 2 ? RF_AXIS_DATA : RF_AXIS_TENSOR] = 2;
    rf_graph *graph = fixture_graph(&model, &options, NULL);
    fixture_verify(graph);
    has_only(graph, "old_logprobs advantages loss_weights nll");
    const rf_op *loss = op_of(graph, "policy_loss"), *head = op_of(graph, "head_loss_grad"),
                *sum = op_of(graph, "loss_sum");
    assert_int_equal(head != NULL, i < 3);
    assert_int_equal(op_of(graph, "head_loss_bwd") != NULL, i == 3);
    if (head) {
      assert_true(loss < head && head < sum);
      assert_int_equal(loss->input[0], RF_NONE);
      assert_int_equal(head->input[4], loss->output[1]);
      assert_int_equal(head->output[0], rf_graph_find(graph, "nll"));
      assert_int_equal(sum->input[0], loss->output[0]);
      assert_int_equal(sum->input[1], head->output[1]);
    }
    rf_graph_free(graph);
  }
}

static void refused(const rf_build_options *options, const char *says) {
  rf_model model = fixture_model(TINY_LLAMA);
  rf_graph *graph = NULL;
  rf_error error = {0};
  if (rf_graph_build(&model, options, NULL, &graph, &error) == RAFTER_OK) fail_msg("accepted: %s", says);
  if (!strstr(error.message, says)) fail_msg("expected '%s' in: %s", says, error.message);
}

static void test_settings_out_of_range_are_refused(void **state) {
  (void)state;
  rf_build_options good = objective(RF_OBJECTIVE_POLICY), bad = good;
  bad.policy.clip_low = 1.5f;
  refused(&bad, "clip_low: expected 0 to 1, got 1.5");
  bad = good;
  bad.policy.clip_high = -0.1f;
  refused(&bad, "clip_high");
  bad = good;
  bad.policy.cap = 0.5f;
  refused(&bad, "cap: expected 0 or a number from 1, got 0.5");
  bad = good;
  bad.policy.beta = NAN;
  refused(&bad, "beta");
  bad.policy.beta = INFINITY;
  refused(&bad, "beta");
  good = bad = objective(RF_OBJECTIVE_PAIRS);
  bad.pairs.beta = 0;
  refused(&bad, "beta: expected a number above 0");
  bad = good;
  bad.pairs.gamma = -1;
  refused(&bad, "gamma");
  bad = good;
  bad.pairs.smoothing = 0.5f;
  refused(&bad, "smoothing: expected 0 to below 0.5");
  bad.pairs = (rf_pairs){.kind = RF_PAIRS_IPO, .beta = 0.1f, .smoothing = 0.1f};
  refused(&bad, "IPO has no smoothing");
  bad = good;
  bad.job = RF_JOB_SCORE;
  refused(&bad, "only a training job");
}

/* Sequences may be shared among chips, but the two answers of a pair are on one chip. */
static void test_meshes(void **state) {
  (void)state;
  rf_model model = fixture_model(TINY_LLAMA);
  rf_build_options options = objective(RF_OBJECTIVE_POLICY);
  for (int axis = 0; axis < 3; axis++) {
    options.mesh = (rf_mesh){0};
    options.mesh.of[(const rf_axis[]){RF_AXIS_DATA, RF_AXIS_TENSOR, RF_AXIS_CONTEXT}[axis]] = 2;
    rf_graph *graph = fixture_graph(&model, &options, NULL);
    const rf_op *loss = op_of(graph, "policy_loss");
    assert_non_null(loss);
    assert_int_equal(graph->tensor[loss->input[0]].shape[0], axis == 0 ? 32 : 64);
    /* along the axis context, a chip has every n-th row of the loss */
    const rf_op *taken = op_of(graph, "take_run");
    if (axis == 2) assert_non_null(taken);
    if (axis == 2) assert_int_equal(taken->attr.collective.form, RF_FORM_STRIDED);
    rf_graph_free(graph);
  }
  options.objective = RF_OBJECTIVE_PAIRS;
  options.mesh = (rf_mesh){0};
  options.mesh.of[RF_AXIS_TENSOR] = 2;
  rf_graph *graph = fixture_graph(&model, &options, NULL);
  rf_graph_free(graph);
  options.mesh.of[RF_AXIS_DATA] = 2;
  refused(&options, "the two answers of a pair cannot be on different chips");
  options.microbatch = 4;
  graph = fixture_graph(&model, &options, NULL);
  const rf_op *pairs = op_of(graph, "pair_loss");
  assert_int_equal(graph->tensor[pairs->input[0]].shape[0], 64);
  rf_graph_free(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_graphs_have_the_inputs_of_their_loss),
      cmocka_unit_test(test_a_known_ratio_needs_one_head),
      cmocka_unit_test(test_settings_out_of_range_are_refused),
      cmocka_unit_test(test_meshes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
