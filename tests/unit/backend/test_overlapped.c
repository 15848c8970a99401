/* test_overlapped.c - graphs whose exchanges run while the chips compute. Runs the programs of all
 * chips in one process (support/world.h), where the result of an exchange is NaN until an op waited
 * for it. The results must have the bits of the graph before the pass. */
#include "graph/mesh/overlap.h"
#include "support/graph/verify.h"
#include "support/shard_cases.h"

static const setting SETTINGS[] = {
    {MIN_LLAMA, "data=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_LLAMA, "data=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_GPT, "data=2", 0, 2, 1, 0, NULL, NULL},
    {MIN_LLAMA, "data=2", 1, 1, 0, 0, NULL, NULL},
    {MIN_GPT, "fsdp=2", 3, 1, 0, 0.2f, NULL, NULL},
    {MIN_LLAMA, "fsdp=4", 3, 2, 1, 0, NULL, NULL},
    {MIN_GPT, "data=2,fsdp=2", 2, 2, 0, 0, NULL, NULL},
    {MIN_LLAMA, "slice=2,data=2", 1, 1, 0, 0, NULL, NULL},
    {MIN_GPT, "data=2,tensor=2", 0, 1, 1, 0, NULL, NULL},
    {MIN_EXPERTS, "data=2,expert=2", 0, 1, 0, 0, NULL, NULL},
    {MIN_QWEN, "data=2,tensor=4", 0, 1, 0, 0, NULL, NULL},
};
enum { COUNT = sizeof SETTINGS / sizeof *SETTINGS };

typedef struct pair {
  rf_graph *whole, *before, *after;
} pair;

static pair make(const setting *s, int most) {
  rf_model model = fixture_model(s->model);
  rf_build_options options = fixture_train(RF_F32, s->accumulate, s->dropout, s->clip);
  rf_error error = {0};
  pair p;
  options.microbatch = SEQUENCES;
  options.seq = SEQ;
  p.whole = fixture_graph(&model, &options, NULL);
  if (rf_mesh_parse(s->mesh, s->zero, &options.mesh, &error) != RAFTER_OK) fail_msg("%s", error.message);
  options.mesh.capacity = 4;
  if (rf_graph_build(&model, &options, NULL, &p.before, &error) != RAFTER_OK) fail_msg("%s", error.message);
  p.after = rf_graph_borrow(p.before);
  if (rf_pass_overlap(p.after, most, &error) != RAFTER_OK || rf_graph_verify(p.after, &error) != RAFTER_OK)
    fail_msg("%s over %s: %s", s->model, s->mesh, error.message);
  return p;
}

static void drop(pair *p) {
  rf_graph_free(p->after);
  rf_graph_free(p->before);
  rf_graph_free(p->whole);
}

/* The first tensor that stays after the step, and has other bits; NULL: there is none. */
static const char *difference(const world *a, const world *b) {
  for (int t = 0; t < a->graph->tensor_count; t++) {
    const rf_tensor *tensor = &a->graph->tensor[t];
    if (!tensor->persistent && !tensor->output) continue;
    for (int64_t chip = 0; chip < a->chips; chip++)
      if (memcmp(world_data(a, chip, t), world_data(b, chip, t), (size_t)rf_tensor_bytes(tensor)))
        return tensor->name;
  }
  return NULL;
}

static int count_of(const rf_graph *graph, bool starts) {
  int count = 0;
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op_def *def = graph->op[o].def;
    count += starts ? def->starts : def->exchange == RF_EXCHANGE_WAIT;
  }
  return count;
}

/* At most `most` exchanges run. Each of them has computation, or the start of another, in
 * between. */
static void check_order(const rf_graph *graph, int most) {
  int open = 0;
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    open += op->def->starts;
    open -= op->def->exchange == RF_EXCHANGE_WAIT;
    assert_in_range(open, 0, most);
    if (!op->def->starts) continue;
    int wait = o + 1, between = 0;
    while (graph->op[wait].def->exchange != RF_EXCHANGE_WAIT || graph->op[wait].output[0] != op->output[0])
      between += graph->op[wait++].def->exchange != RF_EXCHANGE_WAIT;
    assert_true(between > 0 && graph->op[wait].section == op->section);
  }
  assert_int_equal(open, 0);
}

static void test_bits_do_not_change(void **state) {
  (void)state;
  static const int MOST[] = {1, 2, 5, RF_OVERLAP_MOST};
  for (int i = 0; i < COUNT; i++)
    for (size_t k = 0; k < sizeof MOST / sizeof *MOST; k++) {
      pair p = make(&SETTINGS[i], MOST[k]);
      world *one = world_new(p.before, p.whole->rows), *other = world_new(p.after, p.whole->rows);
      check_order(p.after, MOST[k]);
      assert_int_equal(count_of(p.after, true), count_of(p.after, false));
      /* one at a time may have nothing to hide */
      assert_in_range(count_of(p.after, true), MOST[k] > 1 ? 4 : 0, 1000);
      shard_step(one, p.whole);
      shard_step(other, p.whole);
      const char *name = difference(one, other);
      if (name) fail_msg("%s over %s, %d at a time: %s", SETTINGS[i].model, SETTINGS[i].mesh, MOST[k], name);
      world_free(one);
      world_free(other);
      drop(&p);
    }
}

/* Without any one wait, some result is wrong. */
static void test_a_missing_wait_is_found(void **state) {
  (void)state;
  for (int i = 0; i < COUNT; i += 3) {
    pair p = make(&SETTINGS[i], 4);
    world *one = world_new(p.before, p.whole->rows);
    shard_step(one, p.whole);
    for (int o = 0; o < p.after->op_count; o++) {
      if (p.after->op[o].def->exchange != RF_EXCHANGE_WAIT) continue;
      world *other = world_new(p.after, p.whole->rows);
      other->broken = o;
      shard_step(other, p.whole);
      if (!difference(one, other)) fail_msg("nothing differs without %s", p.after->op[o].name);
      world_free(other);
    }
    world_free(one);
    drop(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bits_do_not_change),
      cmocka_unit_test(test_a_missing_wait_is_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
