/* test_check.c - tests the checker with planted faults. It must find every fault in plans that were
 * valid before. */
#include "unit/plan/plans.h"

static rf_plan *made[8];
static int made_count;

static void add_plan(const char *spec, rf_dtype dtype, int64_t microbatch, int accumulate, rf_remat remat,
                     float clip, int guard, rf_job_kind job) {
  rf_model model = model_named(spec);
  rf_plan_options options = train_options(machine_named("a5000"), dtype, microbatch, accumulate, 32, remat);
  options.build.clip = clip;
  options.guard_bytes = guard;
  options.build.job = job;
  if (job == RF_JOB_GENERATE) options.build.rows = 32;
  made[made_count++] = plan_of(&model, &options);
}

static int make_plans(void **state) {
  (void)state;
  const char *gpt = "gpt:layers=3,width=64,heads=4,ff=256,vocab=300,seq=32",
             *llama = "llama:layers=2,width=64,heads=4,kv_heads=2,ff=128,vocab=300,seq=32";
  add_plan(gpt, RF_F32, 4, 3, RF_REMAT_NONE, 1, 0, RF_JOB_TRAIN);
  add_plan(gpt, RF_BF16, 4, 1, RF_REMAT_MLP_ATTN, 0, 0, RF_JOB_TRAIN);
  add_plan(gpt, RF_BF16, 2, 2, RF_REMAT_BLOCK, 1, 64, RF_JOB_TRAIN);
  add_plan(llama, RF_F32, 4, 1, RF_REMAT_NONE, 1, 100, RF_JOB_TRAIN);
  add_plan(llama, RF_BF16, 3, 4, RF_REMAT_MLP, 0, 0, RF_JOB_TRAIN);
  add_plan(gpt, RF_F32, 2, 1, RF_REMAT_NONE, 0, 0, RF_JOB_GENERATE);
  return 0;
}

static int free_plans(void **state) {
  (void)state;
  while (made_count) rf_plan_free(made[--made_count]);
  return 0;
}

/* A fault and how often it was planted. `plant` changes a copy of a plan and returns false if this
 * draw gives no fault. */
typedef bool (*planter)(rf_plan *plan, uint64_t *seed);

static int any_tensor(const rf_plan *plan, uint64_t *seed, bool persistent) {
  for (int tries = 0; tries < 1000; tries++) {
    int t = (int)draw_in(seed, 0, plan->tensor_count - 1);
    if (plan->tensor[t].offset >= 0 && rf_plan_content(plan, t)->persistent == persistent &&
        plan->tensor[t].bytes > 0)
      return t;
  }
  fail_msg("no such tensor");
  return -1;
}

static bool plant_overlap(rf_plan *plan, uint64_t *seed) {
  bool persistent = draw(seed) % 8 == 0;
  int a = any_tensor(plan, seed, persistent), b = any_tensor(plan, seed, persistent);
  rf_plan_tensor *p = &plan->tensor[a], *q = &plan->tensor[b];
  if (a == b || p->last < q->first || q->last < p->first || p->shares == b || q->shares == a) return false;
  int64_t room = q->bytes / 64, at = q->offset + 64 * draw_in(seed, 0, room - 1);
  if (at == p->offset || at + p->bytes > plan->arena_bytes) return false;
  /* a chain of tensors that reuse the same bytes */
  if (p->offset < q->offset + q->bytes && q->offset < p->offset + p->bytes) return false;
  p->offset = at;
  return true;
}

static bool plant_misaligned(rf_plan *plan, uint64_t *seed) {
  rf_plan_tensor *p = &plan->tensor[any_tensor(plan, seed, draw(seed) % 2)];
  p->offset += draw_in(seed, 1, 63);
  return true;
}

static bool plant_outside(rf_plan *plan, uint64_t *seed) {
  rf_plan_tensor *p = &plan->tensor[any_tensor(plan, seed, false)];
  p->offset = draw(seed) % 2 ? plan->arena_bytes : plan->arena_bytes - rf_align(p->bytes) + 64;
  return true;
}

static bool plant_not_in_front(rf_plan *plan, uint64_t *seed) {
  rf_plan_tensor *p = &plan->tensor[any_tensor(plan, seed, true)];
  if (plan->arena_bytes - plan->persistent_bytes < p->bytes) return false;
  p->offset = plan->arena_bytes - p->bytes;
  return true;
}

static bool plant_in_front(rf_plan *plan, uint64_t *seed) {
  rf_plan_tensor *p = &plan->tensor[any_tensor(plan, seed, false)];
  p->offset = 64 * draw_in(seed, 0, plan->persistent_bytes / 64 - 1);
  return p->bytes <= plan->arena_bytes - p->offset;
}

static bool plant_too_few_bytes(rf_plan *plan, uint64_t *seed) {
  int t = any_tensor(plan, seed, draw(seed) % 2);
  plan->tensor[t].bytes -= 64;
  return plan->tensor[t].bytes < rf_tensor_bytes(rf_plan_content(plan, t));
}

static bool plant_no_place(rf_plan *plan, uint64_t *seed) {
  plan->tensor[any_tensor(plan, seed, draw(seed) % 2)].offset = RF_NONE;
  return true;
}

static bool uses(const rf_plan *plan, int op, int t) {
  const rf_op *o = &plan->graph->op[op];
  bool found = plan->op[op].workspace == t;
  for (int i = 0; i < o->input_count; i++) found |= o->input[i] == t;
  for (int i = 0; i < o->output_count; i++) found |= o->output[i] == t;
  return found;
}

static bool plant_short_life(rf_plan *plan, uint64_t *seed) {
  int t = any_tensor(plan, seed, false);
  rf_plan_tensor *p = &plan->tensor[t];
  bool tail = draw(seed) % 2;
  int op = tail ? p->last : p->first;
  if (op < 0 || op >= plan->graph->op_count || !uses(plan, op, t)) return false;
  if (tail) p->last--;
  else p->first++;
  return true;
}

static bool allowed(const rf_op *op, int to, int from) {
  for (int k = 0; k < op->def->inplace_count; k++)
    if (op->output[op->def->inplace[k].output] == to && op->input[op->def->inplace[k].input] == from)
      return true;
  return false;
}

/* Puts an output in the place of an input although the op does not allow it, or although another op
 * still reads the input. */
static bool plant_illegal_inplace(rf_plan *plan, uint64_t *seed) {
  int i = (int)draw_in(seed, 0, plan->graph->op_count - 1);
  const rf_op *op = &plan->graph->op[i];
  int to = op->output[draw(seed) % RF_MAX_OUTPUTS % (unsigned)op->output_count],
      from = op->input[draw(seed) % (unsigned)op->input_count];
  if (to < 0 || from < 0 || to == from || rf_plan_content(plan, to)->persistent ||
      rf_plan_content(plan, from)->persistent)
    return false;
  rf_plan_tensor *p = &plan->tensor[to], *q = &plan->tensor[from];
  if (p->shares != RF_NONE || p->first != i || (allowed(op, to, from) && q->last == i)) return false;
  if (q->offset + p->bytes > plan->arena_bytes) return false;
  p->shares = from;
  p->offset = q->offset;
  return true;
}

static bool plant_two_heirs(rf_plan *plan, uint64_t *seed) {
  int t = any_tensor(plan, seed, false);
  rf_plan_tensor *p = &plan->tensor[t];
  if (p->shares == RF_NONE) return false;
  const rf_op *op = &plan->graph->op[p->first];
  for (int k = 0; k < op->output_count; k++) {
    int other = op->output[k];
    if (other < 0 || other == t || rf_plan_content(plan, other)->persistent ||
        plan->tensor[other].bytes > p->bytes)
      continue;
    plan->tensor[other].shares = p->shares;
    plan->tensor[other].offset = p->offset;
    return true;
  }
  return false;
}

static bool plant_workspace_on_operand(rf_plan *plan, uint64_t *seed) {
  int i = (int)draw_in(seed, 0, plan->graph->op_count - 1);
  const rf_op *op = &plan->graph->op[i];
  int w = plan->op[i].workspace, t = op->output[0] >= 0 ? op->output[0] : op->input[0];
  if (w < 0 || t < 0 || rf_plan_content(plan, t)->persistent || plan->tensor[t].bytes == 0 ||
      plan->tensor[w].bytes == 0)
    return false;
  if (plan->tensor[t].offset + plan->tensor[w].bytes > plan->arena_bytes) return false;
  plan->tensor[w].offset = plan->tensor[t].offset;
  return true;
}

static bool plant_bad_sum(rf_plan *plan, uint64_t *seed) {
  plan->by_class[draw(seed) % RF_CLASSES] += draw_in(seed, 1, 64);
  return true;
}

/* A planner that forgets values carried from one microbatch to the next. Its layout agrees with its
 * own lifetimes, so only the simulation of bytes can find the fault. */
static bool plant_forgotten_loop(rf_plan *plan, uint64_t *seed) {
  if (plan->graph->accumulate == 1) return false;
  int forgotten = 0;
  for (int t = 0; t < plan->graph->tensor_count; t++) {
    rf_plan_tensor *p = &plan->tensor[t];
    if (plan->graph->tensor[t].class != RF_CLASS_GRADIENT || draw(seed) % 4 == 0) continue;
    int writer = 0;
    while (!uses(plan, writer, t)) writer++;
    forgotten += p->first < writer;
    p->first = writer;
  }
  int64_t before = plan->arena_bytes;
  rf_plan_layout(plan);
  plan->by_class[RF_CLASS_PADDING] += plan->arena_bytes - before;
  if (plan->live_bytes > plan->arena_bytes) plan->live_bytes = plan->arena_bytes;
  return forgotten > 3 && plan->arena_bytes < before;
}

static void every_planted_fault_is_found(void **state) {
  (void)state;
  static const struct {
    const char *name;
    planter plant;
    int least;
  } rows[] = {
      {"overlap", plant_overlap, 400},
      {"misaligned", plant_misaligned, 200},
      {"outside the arena", plant_outside, 200},
      {"persistent behind", plant_not_in_front, 60},
      {"transient in front", plant_in_front, 100},
      {"too few bytes", plant_too_few_bytes, 60},
      {"no place", plant_no_place, 100},
      {"short life", plant_short_life, 200},
      {"illegal in-place", plant_illegal_inplace, 150},
      {"two heirs", plant_two_heirs, 0},
      {"workspace on an operand", plant_workspace_on_operand, 20},
      {"bad sum", plant_bad_sum, 50},
      {"forgotten loop", plant_forgotten_loop, 10},
  };
  uint64_t seed = 11;
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
    int planted = 0;
    for (int trial = 0; trial < 1200; trial++) {
      const rf_plan *from = made[trial % made_count];
      rf_plan plan = *from;
      size_t bytes = (size_t)from->tensor_count * sizeof *plan.tensor;
      plan.tensor = malloc(bytes);
      memcpy(plan.tensor, from->tensor, bytes);
      if (rows[r].plant(&plan, &seed)) {
        rf_error error = {0};
        planted++;
        if (rf_plan_check(&plan, &error) == RAFTER_OK)
          fail_msg("%s: fault %d was not found", rows[r].name, planted);
        assert_true(strlen(error.message) > 10);
      }
      free(plan.tensor);
    }
    if (planted < rows[r].least) fail_msg("%s: only %d planted", rows[r].name, planted);
  }
  for (int i = 0; i < made_count; i++) assert_int_equal(rf_plan_check(made[i], NULL), RAFTER_OK);
}

/* ---- lifetimes on small graphs with known answers -------------------------------------------- */

static rf_graph *graph;
static int64_t shape[] = {4, 8};

static int tensor(const char *name) {
  return rf_graph_tensor(graph, name, RF_CLASS_ACTIVATION, RF_F32, 2, shape);
}
static int op(const char *def, rf_section section, int a, int b, int out, rf_accumulate how) {
  rf_error error = {0};
  int inputs[] = {a, b}, outputs[] = {out};
  rf_attr attr = {.accumulate = {how}};
  int id = rf_graph_emit(graph, rf_op_find(def), def, section, (rf_slots){inputs, b == RF_NONE ? 1 : 2},
                         (rf_slots){outputs, 1}, &attr, &error);
  if (id < 0) fail_msg("%s", error.message);
  return id;
}

static void lifetimes_follow_the_loop(void **state) {
  (void)state;
  for (int accumulate = 1; accumulate <= 4; accumulate += 3) {
    rf_model model = model_named("gpt:layers=1,width=8,heads=1,ff=8,vocab=8,seq=4");
    graph = rf_graph_new(&model);
    graph->accumulate = accumulate;
    graph->rows = 4;
    graph->seq = 4;
    int in = tensor("in"), before = tensor("before"), x = tensor("x"), y = tensor("y"), sum = tensor("sum"),
        last = tensor("last"), out = tensor("out"), unused = tensor("unused"), weight = tensor("weight");
    graph->tensor[in].input = true;
    graph->tensor[out].output = true;
    graph->tensor[weight].persistent = true;
    op("add", RF_SECTION_BEGIN, weight, weight, before, RF_WRITE);    /* 0 */
    op("add", RF_SECTION_MICRO, weight, weight, last, RF_WRITE);      /* 1 */
    op("add", RF_SECTION_MICRO, in, before, x, RF_WRITE);             /* 2 */
    op("gelu", RF_SECTION_MICRO, x, RF_NONE, y, RF_WRITE);            /* 3 */
    op("add", RF_SECTION_MICRO, y, weight, sum, RF_ACCUMULATE_MICRO); /* 4 */
    op("add", RF_SECTION_MICRO, y, y, last, RF_WRITE);                /* 5 */
    op("add", RF_SECTION_END, sum, last, out, RF_WRITE);              /* 6 */
    rf_plan_options options = train_options(machine_named("a5000"), RF_F32, 1, accumulate, 4, RF_REMAT_NONE);
    options.backend = &RF_BACKEND_REFERENCE;
    rf_plan *plan = rf_plan_of_graph(graph, &options, RF_PLAN_WHOLE);
    assert_int_equal(rf_plan_check(plan, NULL), RAFTER_OK);
    const rf_plan_tensor *p = plan->tensor;
    bool loop = accumulate > 1;
    assert_int_equal(p[in].first, 1); /* The caller writes it before the microbatch. */
    assert_int_equal(p[in].last, 2);
    assert_int_equal(p[before].first, 0);
    assert_int_equal(p[before].last, loop ? 6 : 2); /* Every microbatch reads it. */
    assert_int_equal(p[x].first, 2);
    assert_int_equal(p[x].last, 3);
    assert_int_equal(p[sum].first, loop ? 0 : 4); /* It is carried from microbatch to microbatch. */
    assert_int_equal(p[sum].last, 6);
    assert_int_equal(p[last].first, 1); /* It is written again each time, so nothing is carried. */
    assert_int_equal(p[out].last, plan->graph->op_count);
    assert_int_equal(p[unused].offset, RF_NONE);
    assert_int_equal(p[weight].first, -1);
    assert_int_equal(p[weight].offset, 0);
    assert_int_equal(p[y].shares, x); /* gelu may reuse the bytes of its input */
    assert_int_equal(p[y].offset, p[x].offset);
    if (loop) assert_int_equal(p[sum].shares, RF_NONE);
    assert_int_equal(p[out].shares == sum || p[out].shares == last, 1);
    int64_t sum_of_classes = 0;
    for (int c = 0; c < RF_CLASSES; c++) sum_of_classes += plan->by_class[c];
    assert_int_equal(sum_of_classes, plan->arena_bytes);
    rf_plan_free(plan);
  }
}

static void two_readers_forbid_inplace(void **state) {
  (void)state;
  rf_model model = model_named("gpt:layers=1,width=8,heads=1,ff=8,vocab=8,seq=4");
  graph = rf_graph_new(&model);
  graph->rows = 4;
  graph->seq = 4;
  int in = tensor("in"), x = tensor("x"), y = tensor("y"), z = tensor("z"), out = tensor("out");
  graph->tensor[in].input = true;
  graph->tensor[out].output = true;
  op("gelu", RF_SECTION_MICRO, in, RF_NONE, x, RF_WRITE);
  op("gelu", RF_SECTION_MICRO, x, RF_NONE, y, RF_WRITE); /* x is read again below */
  op("add", RF_SECTION_MICRO, x, y, z, RF_WRITE);
  op("add", RF_SECTION_MICRO, z, z, out, RF_WRITE); /* the same input twice */
  rf_plan_options options = train_options(machine_named("a5000"), RF_F32, 1, 1, 4, RF_REMAT_NONE);
  options.backend = &RF_BACKEND_REFERENCE;
  rf_plan *plan = rf_plan_of_graph(graph, &options, RF_PLAN_WHOLE);
  assert_int_equal(rf_plan_check(plan, NULL), RAFTER_OK);
  assert_int_equal(plan->tensor[x].shares, RF_NONE); /* `in` belongs to the caller */
  assert_int_equal(plan->tensor[y].shares, RF_NONE);
  assert_true(plan->tensor[z].shares == x || plan->tensor[z].shares == y);
  assert_int_equal(plan->tensor[out].shares, RF_NONE);
  assert_int_equal(plan->arena_bytes, plan->live_bytes);
  rf_plan_free(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_planted_fault_is_found),
      cmocka_unit_test(lifetimes_follow_the_loop),
      cmocka_unit_test(two_readers_forbid_inplace),
  };
  return cmocka_run_group_tests(tests, make_plans, free_plans);
}
