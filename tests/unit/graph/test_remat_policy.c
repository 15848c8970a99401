/* test_remat_policy.c - a policy keeps the tensors of a block that it names, and no others. */
#include "unit/graph/fixture.h"

#include "graph/remat.h"

/* The name after "block.N/"; NULL for a tensor outside blocks. */
static const char *within(const char *name) {
  const char *slash = strncmp(name, "block.", 6) ? NULL : strchr(name, '/');
  return slash ? slash + 1 : NULL;
}

static bool lists(const char *names, const char *name) {
  size_t length = strlen(name);
  for (const char *at = names; (at = strstr(at, name)); at += length)
    if ((at == names || at[-1] == ' ') && (!at[length] || at[length] == ' ')) return true;
  return false;
}

/* A norm's statistics and attention's lse are kept with the result of their op. */
static bool goes_along(const char *name) { return strstr(name, "/stats") || strstr(name, "/lse"); }

/* Returns NULL if, in every block, the forward pass keeps for the backward pass exactly the tensors
 * of `expected` (those that the block has) and the residual stream. */
static const char *kept_wrong(const rf_graph *graph, const char *model, const char *expected,
                              char text[200]) {
  const char *stream = strstr(model, "mlp_first") ? "attn/residual/y" : "mlp/residual/y";
  int first = 0;
  while (!graph->op[first].backward) first++;
  for (int o = 0; o < first; o++)
    for (int i = 0; i < graph->op[o].output_count; i++) {
      int t = graph->op[o].output[i];
      const char *name = t < 0 ? NULL : within(graph->tensor[t].name);
      bool read = false;
      if (!name || goes_along(name)) continue;
      for (int k = first; k < graph->op_count; k++)
        for (int j = 0; j < graph->op[k].input_count; j++) read = read || graph->op[k].input[j] == t;
      if (read == (lists(expected, name) || !strcmp(name, stream))) continue;
      snprintf(text, 200, "%s is %s", graph->tensor[t].name, read ? "kept" : "gone");
      return text;
    }
  return NULL;
}

static void apply(rf_graph *graph, const char *policy, const char *flip) {
  rf_remat remat;
  rf_error error = {0};
  if (rf_remat_parse(policy, &remat, &error) != RAFTER_OK) fail_msg("%s: %s", policy, error.message);
  bool *drop = calloc((size_t)graph->tensor_count + 1, 1);
  rf_remat_policy(graph, remat, drop);
  if (flip) drop[rf_graph_find(graph, flip)] ^= true;
  if (rf_pass_remat(graph, drop, &error) != RAFTER_OK) fail_msg("%s: %s", policy, error.message);
  fixture_verify(graph);
  free(drop);
}

static const struct {
  const char *model, *lora, *policy, *kept;
} ROWS[] = {
    {TINY_GPT, NULL, "save:qkv,out,mlpwi", "attn/qkv/u attn/residual/y mlp/up/u"},
    {TINY_GPT, NULL, "save:mlpact+context", "mlp/gelu/g attn/attention/ctx"},
    {TINY_GPT, NULL, "save:norm1,norm2", "attn/norm/y mlp/norm/y"},
    {TINY_GPT, NULL, "full", ""},
    {TINY_GPT ",mlp_first=true", NULL, "save:qkv,mlpwo", "attn/qkv/u mlp/residual/y"},
    {TINY_GPT ",mlp_first=true", NULL, "save:qkv,out", "attn/qkv/u"},
    {TINY_GPT, "rank=2,targets=all", "minimal", "attn/qkv/lora/y attn/residual/y mlp/up/lora/y"},
    {TINY_LLAMA, NULL, "save:qkv,out,mlpwi", "attn/rope/rotated attn/residual/y mlp/gate_up/u"},
    {TINY_LLAMA, NULL, "minimal_with_context",
     "attn/rope/rotated attn/attention/ctx attn/residual/y mlp/gate_up/u"},
    {TINY_LLAMA, NULL, "save_dot_with_context_except_mlp",
     "attn/rope/rotated attn/attention/ctx attn/residual/y"},
    {TINY_LLAMA, NULL, "save_qkv_proj", "attn/rope/rotated"},
    {TINY_LLAMA, NULL, "save:x,mlpact", "mlp/swiglu/h"},
    {TINY_GEMMA, NULL, "save_out_proj", "attn/out/u"},
    {TINY_GEMMA, NULL, "minimal", "attn/qkv/u attn/out/u mlp/gate_up/u mlp/down/u"},
    {TINY_GEMMA, NULL, "save_dot_except_mlp", "attn/qkv/u attn/out/u"},
    {TINY_GEMMA, NULL, "save_dot_except_mlpwi", "attn/qkv/u attn/out/u mlp/down/u"},
    {TINY_NEOX, NULL, "save:mlpwi,qkv", "attn/rope/rotated mlp/up/u"},
    {TINY_MIXTRAL, NULL, "minimal",
     "attn/rope/rotated attn/residual/y mlp/experts/gate_up/u mlp/experts/down/u"},
    {TINY_DEEPSEEK, NULL, "minimal",
     "attn/rope/rotated attn/kv_b/u attn/rope_key/rotated attn/residual/y mlp/gate_up/u "
     "mlp/experts/gate_up/u mlp/experts/down/u "
     "mlp/shared/gate_up/u"},
};

static rf_graph *graph_of(size_t row, const char *mesh) {
  rf_model model = fixture_model(ROWS[row].model);
  if (ROWS[row].lora) fixture_lora(&model, ROWS[row].lora);
  rf_build_options options = fixture_train(RF_BF16, 2, 0, 1);
  rf_error error = {0};
  if (rf_mesh_parse(mesh, 0, &options.mesh, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return fixture_graph(&model, &options, NULL);
}

static void test_what_is_named_stays(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
    char text[200];
    rf_graph *graph = graph_of(i, "");
    apply(graph, ROWS[i].policy, NULL);
    const char *wrong = kept_wrong(graph, ROWS[i].model, ROWS[i].kept, text);
    if (wrong) fail_msg("%s of %s: %s", ROWS[i].policy, ROWS[i].model, wrong);
    rf_graph_free(graph);
  }
}

/* The tensors of one chip have the same names, or are what was gathered from them. */
static void test_over_a_mesh(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
    char text[200];
    if (strcmp(ROWS[i].model, TINY_LLAMA)) continue;
    rf_graph *graph = graph_of(i, "tensor=2");
    apply(graph, ROWS[i].policy, NULL);
    const char *wrong = kept_wrong(graph, ROWS[i].model, ROWS[i].kept, text);
    if (wrong) fail_msg("%s of %s over tensor=2: %s", ROWS[i].policy, ROWS[i].model, wrong);
    rf_graph_free(graph);
  }
}

/* The check above notices one tensor too many and one too few. */
static void test_a_wrong_set_is_seen(void **state) {
  (void)state;
  static const char *const flips[] = {"block.1/attn/residual/y", "block.1/mlp/up/u", "block.0/mlp/gelu/g",
                                      "block.2/attn/qkv/u"};
  for (int i = 0; i < 4; i++) {
    char text[200];
    rf_graph *graph = graph_of(0, "");
    apply(graph, ROWS[0].policy, flips[i]);
    assert_non_null(kept_wrong(graph, ROWS[0].model, ROWS[0].kept, text));
    if (strncmp(text, flips[i], strlen(flips[i]))) fail_msg("%s, not %s", text, flips[i]);
    rf_graph_free(graph);
  }
}

static void test_names(void **state) {
  (void)state;
  static const struct {
    const char *text, *written;
  } good[] = {{"none", "none"},
              {"mlp+attn", "mlp+attn"},
              {"auto", "auto"},
              {"save:qkv,out,mlpwi", "save:qkv,out,mlpwi"},
              {"save:mlpwi+qkv", "save:qkv,mlpwi"},
              {"save:x", "full"},
              {"minimal", "minimal"},
              {"save:qkv,out,mlpwi+mlpwo", "minimal"},
              {"save_dot_with_context_except_mlp", "save_dot_with_context_except_mlp"},
              {"save:x,qkv,context,out,mlpwi,mlpact,mlpwo,norm1,norm2",
               "save:x,qkv,context,out,mlpwi,mlpact,mlpwo,norm1,norm2"}};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    rf_remat remat, again;
    assert_int_equal(rf_remat_parse(good[i].text, &remat, NULL), RAFTER_OK);
    assert_string_equal(rf_remat_name(remat), good[i].written);
    assert_int_equal(rf_remat_parse(rf_remat_name(remat), &again, NULL), RAFTER_OK);
    assert_true(again == remat && rf_remat_valid(remat));
  }
  static const char *const bad[][2] = {{"save:soul", "'soul'"},
                                       {"save:", "''"},
                                       {"save:qkv,", "''"},
                                       {"save:q", "expected qkv"},
                                       {"save:gate,up", "expected mlpwi"},
                                       {"save:norm", "norm1 and norm2"},
                                       {"mpl", "'mpl'"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    rf_remat remat;
    rf_error error = {0};
    assert_int_equal(rf_remat_parse(bad[i][0], &remat, &error), RAFTER_INVALID);
    if (!strstr(error.message, bad[i][1])) fail_msg("%s: %s", bad[i][0], error.message);
    if (i < 6 && !strstr(error.hint, "x, qkv, context, out, mlpwi, mlpact, mlpwo, norm1, norm2"))
      fail_msg("%s", error.hint);
  }
  assert_false(rf_remat_valid((rf_remat)77) || rf_remat_valid((rf_remat)(RF_REMAT_SAVE << 1)) ||
               rf_remat_valid((rf_remat)(RF_REMAT_SAVE | 2)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_named_stays), cmocka_unit_test(test_over_a_mesh),
      cmocka_unit_test(test_a_wrong_set_is_seen), cmocka_unit_test(test_names)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
