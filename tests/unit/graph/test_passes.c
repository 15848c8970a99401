/* test_passes.c - fusing and recomputing change no value. The test evaluates graphs on symbols: the
 * value of a tensor is a hash of the formula that made it. Fused ops are expanded into the ops that
 * they replace. So equal hashes mean equal formulas over equal inputs. Only this test has such an
 * evaluator. */
#include "unit/graph/fixture.h"

typedef uint64_t symbol;

static symbol mix(symbol a, symbol b) {
  a ^= b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2);
  a *= 0xff51afd7ed558ccdu;
  return a ^ (a >> 29);
}

static symbol of_text(const char *text) {
  symbol hash = 77;
  while (*text) hash = mix(hash, (unsigned char)*text++);
  return hash;
}

static symbol sum_of(symbol a, symbol b) {
  return a < b ? mix(mix(of_text("add"), a), b) : mix(mix(of_text("add"), b), a);
}

/* Value of output `slot` of an op `name` with these attributes over inputs in[0..count). */
static symbol apply(const char *name, const rf_attr *attr, const symbol *in, int count, int slot) {
  symbol hash = mix(of_text(name), (symbol)slot);
  for (const rf_field *f = rf_op_fields(rf_op_find(name)); f->name; f++)
    for (uint16_t b = 0; b < f->size; b++) hash = mix(hash, ((const unsigned char *)attr)[f->offset + b]);
  for (int i = 0; i < count; i++) hash = mix(hash, in[i]);
  return hash;
}

static void evaluate_op(const rf_op *op, symbol *value) {
  const char *name = op->def->name;
  symbol in[RF_MAX_INPUTS], out[RF_MAX_OUTPUTS] = {0};
  rf_attr attr = op->attr, none = {0}, product = {0};
  for (int i = 0; i < RF_MAX_INPUTS; i++)
    in[i] = i < op->input_count && op->input[i] >= 0 ? value[op->input[i]] : 1;
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] >= 0 && value[op->input[i]] == 0) fail_msg("%s reads what nobody wrote", op->name);
  if (strncmp(name, "matmul", 6) == 0) product.matmul.transpose = attr.matmul.transpose;
  if (strncmp(name, "head", 4) == 0) {
    product.head.transpose = attr.head.transpose;
    product.head.temperature = attr.head.temperature;
  }
  if (strcmp(name, "matmul") == 0) {
    out[0] = apply(name, &product, in, 3, 0);
    if (attr.matmul.epilogue == RF_EPILOGUE_GELU) out[1] = apply("gelu", &none, out, 1, 0);
    rf_attr drop = {.dropout = {.rate = attr.dropout.rate, .site = attr.dropout.site}};
    symbol pair[] = {in[3], out[0]};
    if (attr.matmul.epilogue == RF_EPILOGUE_RESIDUAL)
      out[1] = attr.dropout.rate > 0 ? apply("add_dropout", &drop, pair, 2, 0) : sum_of(in[3], out[0]);
  } else if (strcmp(name, "matmul_dx") == 0) {
    out[0] = apply(name, &product, in, 2, 0);
    symbol pair[] = {in[2], out[0]};
    out[1] = apply("gelu_bwd", &none, pair, 2, 0);
  } else if (strcmp(name, "layernorm_bwd") == 0 || strcmp(name, "rmsnorm_bwd") == 0) {
    for (int i = 0; i < op->output_count; i++) out[i] = apply(name, &attr, in, 4, i);
    if (op->input[4] >= 0) out[0] = sum_of(out[0], in[4]);
  } else if (strcmp(name, "head_loss_grad") == 0) {
    symbol loss_in[] = {in[0], in[1], in[2], in[3], apply("head_loss", &product, in, 4, 2), 1};
    for (int i = 0; i < 2; i++) out[i] = apply("head_loss", &product, in, 4, i);
    for (int i = 0; i < 3; i++) out[2 + i] = apply("head_loss_bwd", &product, loss_in, 6, i);
  } else if (strcmp(name, "add") == 0) {
    out[0] = sum_of(in[0], in[1]);
  } else if (strcmp(name, "norm_sq") == 0) {
    /* The elements are independent, so their order does not matter. */
    out[0] = value[op->output[0]] ^ apply(name, &attr, in, 1, 0);
  } else if (strcmp(name, "adamw") == 0) {
    rf_attr norm = {.sums = {.element = attr.adamw.element}};
    attr.adamw.element = 0;
    for (int i = 0; i < 4; i++) out[i] = apply(name, &attr, in, op->input_count, i);
    if (op->output_count > 4 && op->output[4] >= 0)
      out[4] = value[op->output[4]] ^ apply("norm_sq", &norm, in, 1, 0);
  } else {
    for (int i = 0; i < op->output_count; i++) out[i] = apply(name, &attr, in, op->input_count, i);
  }
  for (int i = 0; i < op->output_count; i++) {
    int t = op->output[i];
    if (t < 0) continue;
    value[t] = attr.accumulate[i] == RF_WRITE
                   ? out[i]
                   : mix(attr.accumulate[i] == RF_ACCUMULATE_ADD ? value[t] : 5, out[i]);
  }
}

static symbol *evaluate(const rf_graph *graph) {
  symbol *value = calloc((size_t)graph->tensor_count + 1, sizeof *value);
  for (int t = 0; t < graph->tensor_count; t++)
    if (graph->tensor[t].persistent || graph->tensor[t].input) value[t] = of_text(graph->tensor[t].name);
  for (int o = 0; o < graph->op_count; o++) evaluate_op(&graph->op[o], value);
  return value;
}

/* Whether all persistent tensors and outputs have the same value in both graphs. */
static bool same_step(const rf_graph *a, const rf_graph *b) {
  symbol *x = evaluate(a), *y = evaluate(b);
  bool same = true;
  int u = 0, compared = 0;
  for (int t = 0; t < a->tensor_count; t++) {
    if (!a->tensor[t].persistent && !a->tensor[t].output) continue;
    while (u < b->tensor_count && !b->tensor[u].persistent && !b->tensor[u].output) u++;
    assert_true(u < b->tensor_count);
    assert_string_equal(a->tensor[t].name, b->tensor[u].name);
    same = same && x[t] != 0 && x[t] == y[u];
    u++;
    compared++;
  }
  assert_true(compared > 10);
  free(x);
  free(y);
  return same;
}

static rf_model random_model(int *kind) {
  rf_model model = fixture_model(*kind % 3 == 2 ? TINY_LLAMA : TINY_GPT);
  if (*kind % 3 < 2) {
    model.tied = rand() & 1;
    model.mlp_first = rand() & 1;
    model.bias = rand() & 1;
  }
  (*kind)++;
  return model;
}

static rf_build_options random_options(void) {
  rf_build_options options = fixture_train(rand() & 1 ? RF_BF16 : RF_F32, rand() & 1 ? 1 : 3,
                                           rand() & 1 ? 0.1f : 0, rand() & 1 ? 1 : 0);
  options.temperature = rand() & 1 ? 0.7f : 0;
  options.objective = rand() & 1 ? RF_OBJECTIVE_POLICY : RF_OBJECTIVE_NLL;
  return options;
}

static void test_fuse_changes_no_value(void **state) {
  (void)state;
  srand(5);
  for (int kind = 0; kind < 60;) {
    rf_model model = random_model(&kind);
    rf_build_options options = random_options();
    rf_graph *plain = fixture_graph(&model, &options, "optimize"),
             *fused = fixture_graph(&model, &options, "fuse");
    assert_true(fused->op_count < plain->op_count);
    if (!same_step(plain, fused)) fail_msg("fused graph %d computes something else", kind);
    for (int o = 0; o < fused->op_count; o++) {
      const char *name = fused->op[o].def->name;
      if (!strcmp(name, "gelu") || !strcmp(name, "gelu_bwd") || !strcmp(name, "add") ||
          !strcmp(name, "add_dropout") ||
          (!strcmp(name, "head_loss_bwd") && options.objective == RF_OBJECTIVE_NLL))
        fail_msg("%s was left alone", fused->op[o].name);
    }
    rf_graph_free(plain);
    rf_graph_free(fused);
  }
}

/* The evaluator notices a changed attribute, two exchanged inputs, and a read of an old value. */
static void test_evaluator_sees_changes(void **state) {
  (void)state;
  rf_model model = fixture_model(TINY_GPT);
  rf_build_options options = fixture_train(RF_F32, 1, 0.1f, 0);
  for (int fault = 0; fault < 4; fault++) {
    rf_graph *good = fixture_graph(&model, &options, NULL), *bad = fixture_graph(&model, &options, NULL);
    assert_true(same_step(good, bad));
    rf_op *down = &bad->op[fixture_op(bad, "step/micro/block.1/mlp/down/fwd")];
    if (fault == 0) down->attr.dropout.site++;
    if (fault == 1) down->attr.dropout.rate = 0.2f;
    if (fault == 2) down->input[3] = rf_graph_find(bad, "embed/x");
    if (fault == 3)
      bad->op[fixture_op(bad, "step/micro/block.1/mlp/down/bwd/weight")].attr.accumulate[0] =
          RF_ACCUMULATE_ADD;
    assert_false(same_step(good, bad));
    rf_graph_free(good);
    rf_graph_free(bad);
  }
}

/* No op is repeated twice, and no op after the last forward reader reads a dropped tensor. */
static void check_remat(const rf_graph *before, const rf_graph *after, const bool *drop) {
  int *repeats = calloc((size_t)after->op_count, sizeof *repeats), first = 0;
  bool *forward_read = calloc((size_t)before->tensor_count, 1);
  for (int o = 0; o < before->op_count; o++)
    for (int i = 0; i < before->op[o].input_count; i++)
      if (!before->op[o].backward && before->op[o].section == RF_SECTION_MICRO && before->op[o].input[i] >= 0)
        forward_read[before->op[o].input[i]] = true;
  for (int o = 0; o < after->op_count; o++)
    if (after->op[o].recompute_of >= 0 && ++repeats[after->op[o].recompute_of] > 1)
      fail_msg("%s repeats a second time", after->op[o].name);
  while (first < after->op_count && !after->op[first].backward) first++;
  for (int o = first; o < after->op_count; o++)
    for (int i = 0; i < after->op[o].input_count; i++) {
      int t = after->op[o].input[i];
      if (t >= 0 && t < before->tensor_count && drop[t] && forward_read[t])
        fail_msg("%s reads the dropped %s", after->op[o].name, after->tensor[t].name);
    }
  free(repeats);
  free(forward_read);
}

static bool droppable(const rf_graph *graph, int t) {
  bool made = false, read = false, needed = false;
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    for (int i = 0; i < op->output_count; i++)
      made = made || (op->output[i] == t && !op->backward && op->section == RF_SECTION_MICRO);
    for (int i = 0; i < op->input_count; i++) {
      read = read || (op->input[i] == t && op->backward);
      needed = needed || (op->input[i] == t && !op->backward);
    }
  }
  return made && read && needed && graph->tensor[t].class == RF_CLASS_ACTIVATION;
}

/* Tests random sets of dropped tensors, from one to all. */
static void test_remat_changes_no_value(void **state) {
  (void)state;
  srand(11);
  for (int kind = 0; kind < 240;) {
    rf_model model = random_model(&kind);
    rf_build_options options = random_options();
    const char *last = kind % 5 == 0 ? "optimize" : "fuse";
    rf_graph *kept = fixture_graph(&model, &options, last), *less = fixture_graph(&model, &options, last);
    bool *drop = calloc((size_t)kept->tensor_count, 1);
    int chance = rand() % 101;
    for (int t = 0; t < kept->tensor_count; t++) drop[t] = rand() % 100 < chance && droppable(kept, t);
    rf_error error = {0};
    if (rf_pass_remat(less, drop, &error) != RAFTER_OK) fail_msg("%s", error.message);
    fixture_verify(less);
    check_remat(kept, less, drop);
    if (!same_step(kept, less)) fail_msg("recomputing graph %d computes something else", kind);
    free(drop);
    rf_graph_free(kept);
    rf_graph_free(less);
  }
}

/* Elements per token that are made before the backward pass begins and read after; tensors with one
 * number per row or head are left out. */
static int64_t kept_elements(const rf_graph *graph) {
  int first = 0;
  int64_t kept = 0;
  while (!graph->op[first].backward) first++;
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    if (tensor->class != RF_CLASS_ACTIVATION || tensor->rank != 2 || tensor->shape[0] != graph->rows ||
        tensor->shape[1] <= 2)
      continue;
    bool made = false, read = false;
    for (int o = 0; o < graph->op_count; o++) {
      for (int i = 0; i < graph->op[o].output_count; i++)
        made = made || (o < first && graph->op[o].output[i] == t);
      for (int i = 0; i < graph->op[o].input_count; i++)
        read = read || (o >= first && graph->op[o].input[i] == t);
    }
    if (made && read) kept += tensor->shape[1];
  }
  return kept;
}

static void test_policies_keep_what_they_say(void **state) {
  (void)state;
  for (int mlp_first = 0; mlp_first < 2; mlp_first++)
    for (int dropout = 0; dropout < 2; dropout++)
      for (int llama = 0; llama < 2; llama++) {
        rf_model model = fixture_model(llama ? TINY_LLAMA : TINY_GPT);
        model.mlp_first = mlp_first;
        rf_build_options options = fixture_train(RF_BF16, 1, dropout ? 0.1f : 0, 0);
        int64_t width = model.width, qkv = (model.heads + 2 * model.kv_heads) * model.head_dim,
                mlp = width + (llama ? 3 : 2) * model.ff;
        int64_t attn = 2 * width + qkv; /* norm, qkv, ctx; only the rotated qkv, not the one before */
        /* per layer: x, the residual stream after attention, and the tensors of each sublayer;
         * after the blocks: x and its norm for the head */
        const int64_t expected[] = {2 * width + mlp + attn, 2 * width + attn, 2 * width + mlp, 2 * width,
                                    width};
        static const rf_remat policies[] = {RF_REMAT_NONE, RF_REMAT_MLP, RF_REMAT_ATTN, RF_REMAT_MLP_ATTN,
                                            RF_REMAT_BLOCK};
        for (int p = 0; p < 5; p++) {
          rf_graph *kept = fixture_graph(&model, &options, NULL),
                   *less = fixture_graph(&model, &options, NULL);
          bool *drop = calloc((size_t)kept->tensor_count, 1);
          rf_error error = {0};
          rf_remat_policy(kept, policies[p], drop);
          assert_int_equal(rf_pass_remat(less, drop, &error), RAFTER_OK);
          fixture_verify(less);
          check_remat(kept, less, drop);
          assert_true(same_step(kept, less));
          int64_t ends = kept_elements(less) - model.layers * expected[p];
          if (ends != 2 * width)
            fail_msg("policy %d keeps %lld elements too many", p, (long long)(ends - 2 * width));
          free(drop);
          rf_graph_free(kept);
          rf_graph_free(less);
        }
      }
}

/* Drops the named tensors of the tiny GPT and returns the graph. */
static rf_graph *without(const char *const *names) {
  rf_model model = fixture_model(TINY_GPT);
  rf_build_options options = fixture_train(RF_BF16, 1, 0.1f, 0);
  rf_graph *graph = fixture_graph(&model, &options, NULL);
  bool *drop = calloc((size_t)graph->tensor_count, 1);
  rf_error error = {0};
  for (int i = 0; names[i]; i++) {
    int t = rf_graph_find(graph, names[i]);
    if (t < 0) fail_msg("no tensor %s", names[i]);
    drop[t] = true;
  }
  if (rf_pass_remat(graph, drop, &error) != RAFTER_OK) fail_msg("%s", error.message);
  fixture_verify(graph);
  free(drop);
  return graph;
}

static int repeated(const rf_graph *graph) {
  int count = 0;
  for (int o = 0; o < graph->op_count; o++) count += graph->op[o].recompute_of >= 0;
  return count;
}

static void test_epilogues_are_repeated_rightly(void **state) {
  (void)state;
  const char *name = "step/micro/block.1/mlp/up/fwd/recompute";
  rf_graph *graph = without((const char *[]){"block.1/mlp/gelu/g", NULL});
  const rf_op *op = &graph->op[fixture_op(graph, name)];
  assert_string_equal(op->def->name, "gelu"); /* u is kept, so there is no product. */
  assert_int_equal(op->input[0], rf_graph_find(graph, "block.1/mlp/up/u"));
  assert_int_equal(repeated(graph), 1);
  /* directly before its first reader */
  assert_string_equal(op[1].name, "step/micro/block.1/mlp/down/bwd/weight");
  rf_graph_free(graph);

  graph = without((const char *[]){"block.1/mlp/up/u", NULL});
  op = &graph->op[fixture_op(graph, name)];
  assert_true(strcmp(op->def->name, "matmul") == 0 && op->attr.matmul.epilogue == RF_EPILOGUE_NONE &&
              op->output[0] >= 0 && op->output[1] == RF_NONE);
  assert_int_equal(repeated(graph), 1);
  rf_graph_free(graph);

  graph = without((const char *[]){"block.1/mlp/up/u", "block.1/mlp/gelu/g", "block.1/mlp/norm/y", NULL});
  op = &graph->op[fixture_op(graph, name)];
  assert_true(strcmp(op->def->name, "matmul") == 0 && op->attr.matmul.epilogue == RF_EPILOGUE_GELU &&
              op->output[0] >= 0 && op->output[1] >= 0);
  assert_string_equal(op[-1].name, "step/micro/block.1/mlp/norm/fwd/recompute");
  assert_int_equal(op->input[0], op[-1].output[0]);
  assert_int_equal(repeated(graph), 2);
  rf_graph_free(graph);

  /* The residual stream after attention: its dropout mask is drawn again from its own site. */
  graph = without((const char *[]){"block.1/attn/residual/y", NULL});
  op = &graph->op[fixture_op(graph, "step/micro/block.1/attn/out/fwd/recompute")];
  assert_true(op->attr.matmul.epilogue == RF_EPILOGUE_RESIDUAL && op->attr.dropout.rate == 0.1f &&
              op->attr.dropout.site == rf_name_key("block.1/attn/dropout"));
  assert_int_equal(op->recompute_of, fixture_op(graph, "step/micro/block.1/attn/out/fwd"));
  assert_int_equal(repeated(graph), 1);
  rf_graph_free(graph);

  /* A tensor that only the head's backward pass reads begins its life there, so dropping it would
   * save nothing. */
  graph = without((const char *[]){"final/norm/y", NULL});
  assert_int_equal(repeated(graph), 0);
  rf_graph_free(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_evaluator_sees_changes),
      cmocka_unit_test(test_fuse_changes_no_value),
      cmocka_unit_test(test_remat_changes_no_value),
      cmocka_unit_test(test_policies_keep_what_they_say),
      cmocka_unit_test(test_epilogues_are_repeated_rightly),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
