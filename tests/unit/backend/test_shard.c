/* test_shard.c - a graph sharded over a mesh computes the results of the unsharded graph. The
 * programs of all chips run in one process with real exchanges. Metrics, gradients (from the
 * optimizer's first moments) and updated weights are compared with those of one chip. */
#include <math.h>

#include "graph/mesh/place.h"
#include "support/graph/verify.h"
#include "support/shard_cases.h"
#include "support/stages.h"

static rf_build_options options_of(const setting *s) { return shard_training(s, RF_F64); }

static bool compared(const rf_tensor *t) { return t->output || t->persistent; }

/* The first difference; NULL if there is none. Sums of f64 over chips have another order, so 1e-9
 * of the largest element is allowed. If a gradient is almost zero, only the moments of its Adam
 * update are compared. */
static const char *difference(const world *w, const world *one, char text[300]) {
  int seen = 0;
  for (int t = 0; t < w->graph->tensor_count; t++) {
    const rf_tensor *mine = &w->graph->tensor[t];
    int other = rf_graph_find(one->graph, mine->name);
    if (!compared(mine) || other == RF_NONE) continue;
    const rf_tensor *all = &one->graph->tensor[other];
    double largest = 0;
    for (int64_t i = 0; i < rf_tensor_count(all); i++)
      largest = fmax(largest, fabs(world_get(one, 0, other, i)));
    double bound = (mine->class == RF_CLASS_IO && mine->dtype == RF_F32 ? 1e-6 : 1e-9) * fmax(largest, 1e-30);
    if (mine->class == RF_CLASS_WEIGHT || mine->class == RF_CLASS_ADAPTER) bound = 1e-7;
    seen++;
    int64_t count = rf_tensor_count(mine), *at = world_places(w, t, all);
    bool differs = false;
    for (int64_t k = 0; k < w->chips * count && !differs; k++) {
      int64_t chip = k / count, i = k % count;
      double got = world_get(w, chip, t, i), want = at[k] < 0 ? 0 : world_get(one, 0, other, at[k]);
      if (fabs(got - want) <= bound) continue;
      snprintf(text, 300, "%s, chip %lld, element %lld: expected %.12g, got %.12g", mine->name,
               (long long)chip, (long long)i, want, got);
      differs = true;
    }
    free(at);
    if (differs) return text;
  }
  assert_true(seen >= 1);
  return NULL;
}

typedef struct pair {
  rf_graph *whole, *cut;
  world *one, *many;
} pair;

static pair make_job(const setting *s, rf_build_options options) {
  rf_model model = fixture_model(s->model);
  if (s->lora) fixture_lora(&model, s->lora);
  rf_error error = {0};
  pair p = {.whole = fixture_graph(&model, &options, s->after)};
  if (rf_mesh_parse(s->mesh, s->zero, &options.mesh, &error) != RAFTER_OK) fail_msg("%s", error.message);
  options.mesh.capacity = 4; /* room for every row */
  if (rf_graph_build(&model, &options, s->after, &p.cut, &error) != RAFTER_OK)
    fail_msg("%s, %s: %s", s->model, s->mesh, error.message);
  if (rf_graph_verify(p.cut, &error) != RAFTER_OK) fail_msg("%s, %s: %s", s->model, s->mesh, error.message);
  p.one = world_new(p.whole, p.whole->rows);
  p.many = world_new(p.cut, p.whole->rows);
  return p;
}

static pair make(const setting *s) { return make_job(s, options_of(s)); }

static void drop(pair *p) {
  world_free(p->one);
  world_free(p->many);
  rf_graph_free(p->whole);
  rf_graph_free(p->cut);
}

static void test_cut_graphs_compute_the_same(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof SHARD_SETTINGS / sizeof *SHARD_SETTINGS; i++) {
    char text[300];
    setting s = SHARD_SETTINGS[i];
    pair p = make(&s);
    shard_step(p.one, p.whole);
    shard_step(p.many, p.whole);
    const char *wrong = difference(p.many, p.one, text);
    if (wrong)
      fail_msg("%s over %s, zero %d, accumulate %d: %s", s.model, s.mesh, s.zero, s.accumulate, wrong);
    drop(&p);
  }
}

static void same_results(const setting *s, rf_build_options options, const char *job) {
  char text[300];
  pair p = make_job(s, options);
  shard_step(p.one, p.whole);
  shard_step(p.many, p.whole);
  const char *wrong = difference(p.many, p.one, text);
  if (wrong) fail_msg("%s of %s over %s: %s", job, s->model, s->mesh, wrong);
  drop(&p);
}

/* A forward pass of a generator over a cache with contents. Key heads are distributed, or shared if
 * there are fewer than chips. */
static void test_passes_of_a_generator(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof SHARD_PASSES / sizeof *SHARD_PASSES; i++)
    same_results(&SHARD_PASSES[i], shard_pass(&SHARD_PASSES[i], RF_F64), "decoding");
}

static void test_scores(void **state) {
  (void)state;
  static const setting settings[] = {{MIN_LLAMA, "data=2,tensor=2", 0, 1, 0, 0, NULL, NULL},
                                     {MIN_GEMMA, "tensor=4", 0, 1, 0, 0, NULL, NULL},
                                     {MIN_GPT, "fsdp=2,tensor=4", 3, 1, 0, 0, NULL, NULL},
                                     {MIN_LATENT, "fsdp=2,tensor=2", 3, 1, 0, 0, NULL, NULL},
                                     {MIN_LATENT, "sequence=2,tensor=2", 0, 1, 0, 0, NULL, NULL},
                                     {MIN_LATENT, "data=2,expert=2", 0, 1, 0, 0, NULL, NULL}};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
    for (int top = 0; top < 4; top += 3) {
      rf_build_options options = options_of(&settings[i]);
      options.job = RF_JOB_SCORE;
      options.top = top;
      same_results(&settings[i], options, "scoring");
      options.job = RF_JOB_TRAIN;
      options.loss_only = true;
      same_results(&settings[i], options, "validation");
    }
}

/* Recomputation is added after sharding: recomputed tensors are exchanged again. */
static void test_recomputation(void **state) {
  (void)state;
  static const setting settings[] = {{MIN_LLAMA, "fsdp=2,tensor=2", 3, 2, 1, 0, NULL, NULL},
                                     {MIN_GPT, "fsdp=2,sequence=2", 3, 1, 1, 0.2f, NULL, NULL}};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
    for (int k = 0; k < 6; k++) {
      static const char *const policies[] = {"mlp",   "attn",    "mlp+attn",
                                             "block", "minimal", "save:context,norm2"};
      char text[300];
      rf_remat policy;
      rf_error error = {0};
      assert_int_equal(rf_remat_parse(policies[k], &policy, &error), RAFTER_OK);
      pair p = make(&settings[i]);
      world_free(p.many); /* of the graph before this change */
      bool *gone = calloc((size_t)p.cut->tensor_count, sizeof *gone);
      rf_remat_policy(p.cut, policy, gone);
      if (rf_pass_remat(p.cut, gone, &error) != RAFTER_OK || rf_graph_verify(p.cut, &error) != RAFTER_OK)
        fail_msg("%s", error.message);
      p.many = world_new(p.cut, p.whole->rows);
      shard_step(p.one, p.whole);
      shard_step(p.many, p.whole);
      const char *wrong = difference(p.many, p.one, text);
      /* A weight is gathered for the forward and the backward pass, and not a third time. */
      for (int o = 0, seen = 0; o < p.cut->op_count; o++) {
        if (p.cut->op[o].def != rf_op_find("all_gather") ||
            strcmp(p.cut->tensor[p.cut->op[o].input[0]].name, "block.0/mlp/down/weight"))
          continue;
        if (++seen > 2)
          fail_msg("%s over %s, remat %s: %s", settings[i].model, settings[i].mesh, policies[k],
                   p.cut->op[o].name);
      }
      if (wrong)
        fail_msg("%s over %s, remat %s: %s", settings[i].model, settings[i].mesh, policies[k], wrong);
      free(gone);
      drop(&p);
    }
}

/* Runs a step of one microbatch. Before each exchange, a copy of all chips finishes the step
 * without this exchange. */
static void each_exchange_is_needed(const setting *s, rf_build_options options) {
  static const rf_section sections[] = {RF_SECTION_BEGIN, RF_SECTION_MICRO, RF_SECTION_END};
  pair p = make_job(s, options);
  char text[300];
  assert_int_equal(p.whole->accumulate, 1);
  shard_step(p.one, p.whole);
  shard_begin(p.many, p.whole);
  for (int k = 0; k < 3; k++) {
    if (sections[k] == RF_SECTION_MICRO) world_fill(p.many, p.whole, 0, true);
    for (int o = 0; o < p.cut->op_count; o++) {
      const rf_op *op = &p.cut->op[o];
      if (op->section != sections[k]) continue;
      if (rf_op_is_exchange(op->def) && op->attr.group != 1) {
        world *w = world_copy(p.many);
        w->broken = o;
        world_finish(w, p.whole, o);
        if (!difference(w, p.one, text))
          fail_msg("%s over %s: nothing differs without %s", s->model, s->mesh, op->name);
        world_free(w);
      }
      world_run_op(p.many, o);
    }
  }
  if (difference(p.many, p.one, text)) fail_msg("%s over %s: %s", s->model, s->mesh, text);
  drop(&p);
}

/* Every exchange is needed: without any one of them, some result is wrong. */
static void test_a_missing_exchange_is_found(void **state) {
  (void)state;
  static const setting settings[] = {{MIN_LLAMA, "fsdp=2,tensor=2", 3, 1, 1, 0, NULL, NULL},
                                     {MIN_GPT, "slice=2,data=2,tensor=2", 0, 1, 1, 0, NULL, NULL},
                                     {MIN_GEMMA, "fsdp=2,tensor=4", 3, 1, 1, 0, NULL, NULL},
                                     {MIN_EXPERTS, "expert=2,tensor=2", 0, 1, 1, 0, NULL, NULL},
                                     {MIN_LATENT, "sequence=2,tensor=2", 0, 1, 1, 0, NULL, NULL}};
  static const setting passes[] = {{MIN_LLAMA, "sequence=2,tensor=2", 0, 1, 0, 0, NULL, NULL},
                                   {MIN_LATENT, "expert=2,tensor=2", 0, 1, 0, 0, NULL, NULL},
                                   {MIN_LLAMA, "context=2,tensor=2", 0, 1, 0, 0, NULL, NULL}};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
    each_exchange_is_needed(&settings[i], options_of(&settings[i]));
  for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
    each_exchange_is_needed(&passes[i], shard_pass(&passes[i], RF_F64));
  }
}

/* The last op that writes a tensor before op `before`. */
static int writer_of(const rf_graph *graph, int t, int before) {
  for (int o = before - 1; o >= 0; o--)
    for (int i = 0; i < graph->op[o].output_count; i++)
      if (graph->op[o].output[i] == t) return o;
  return RF_NONE;
}

/* Counts sums of gradients that follow their writer with only other exchanges in between (early),
 * and those in the end section (late). */
static void count_sums(const rf_graph *graph, int *early, int *late) {
  *early = *late = 0;
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    if (!rf_op_is_exchange(op->def) || graph->tensor[op->input[0]].class != RF_CLASS_GRADIENT) continue;
    int between = writer_of(graph, op->input[0], o) + 1;
    while (between < o && rf_op_is_exchange(graph->op[between].def)) between++;
    if (op->section == RF_SECTION_END) ++*late;
    else if (between == o) ++*early;
    else fail_msg("%s waits", op->name);
  }
}

/* With one microbatch, a gradient is summed directly after the backward pass has computed it, so
 * that the rest of the pass hides the transfer. */
static void test_sums_follow_their_gradients(void **state) {
  (void)state;
  static const setting settings[] = {{MIN_LLAMA, "data=2", 0, 1, 1, 0, NULL, "shard"},
                                     {MIN_LLAMA, "data=2", 1, 1, 1, 0, NULL, "shard"},
                                     {MIN_GPT, "slice=2,fsdp=2", 3, 1, 1, 0, NULL, "shard"},
                                     {MIN_GEMMA, "data=2,tensor=4", 0, 1, 1, 0, NULL, "shard"}};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    int early, late;
    setting s = settings[i];
    pair p = make(&s);
    count_sums(p.cut, &early, &late);
    if (early < p.whole->params.count || late)
      fail_msg("%s over %s: %d early, %d late", s.model, s.mesh, early, late);
    for (int o = 0; i == 0 && o < p.cut->op_count; o++) { /* A sum one op too early is noticed. */
      rf_op *op = &p.cut->op[o];
      if (!rf_op_is_exchange(op->def) || rf_op_is_exchange(op[-1].def)) continue;
      rf_op sum = *op;
      char text[300];
      *op = op[-1];
      op[-1] = sum;
      world *w = world_new(p.cut, p.whole->rows);
      shard_step(p.one, p.whole);
      shard_step(w, p.whole);
      if (!difference(w, p.one, text))
        fail_msg("nothing differs where %s goes before its gradient", sum.name);
      world_free(w);
      break;
    }
    drop(&p);
    s.accumulate = 2;
    p = make(&s);
    count_sums(p.cut, &early, &late);
    if (early || late < p.whole->params.count)
      fail_msg("%s over %s in microbatches: %d early, %d late", s.model, s.mesh, early, late);
    drop(&p);
  }
}

/* ---- pipelines ------------------------------------------------------------------------------- */

typedef struct staged {
  const char *model, *mesh, *schedule;
  int zero, accumulate;
  float clip, dropout;
  const char *lora;
  rf_remat remat;
} staged;

typedef struct line {
  rf_graph *whole, *stage[STAGES_MAX];
  world *one;
  stages *many;
} line;

#define DEEP_LLAMA "llama:layers=5,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16"
#define DEEP_GEMMA "gemma3:layers=4,width=16,heads=4,kv_heads=2,head_dim=8,ff=24,vocab=40,seq=16"
#define DEEP_GPT "gpt:layers=4,width=16,heads=4,ff=32,vocab=37,seq=16"
#define DEEP_MIXTRAL \
  "mixtral:layers=3,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16,experts=4,experts_used=2"
#define DEEP_DEEPSEEK \
  "deepseek:layers=4,width=16,heads=2,head_dim=10,rope_dim=4,value_dim=6,kv_rank=12,q_rank=8,ff=24,expert_" \
  "ff=8,experts=4,vocab=40,seq=16"

static line make_line(const staged *s) {
  setting plain = {s->model, s->mesh, s->zero, s->accumulate, s->clip, s->dropout, s->lora, NULL};
  rf_build_options options = options_of(&plain);
  rf_model model = fixture_model(s->model);
  if (s->lora) fixture_lora(&model, s->lora);
  rf_error error = {0};
  options.microbatch = 4; /* Several microbatches are run. */
  line l = {.whole = fixture_graph(&model, &options, NULL)};
  if (rf_mesh_parse(s->mesh, s->zero, &options.mesh, &error) != RAFTER_OK ||
      rf_pipeline_parse(s->schedule, &options.mesh, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  options.mesh.capacity = 4;
  int count = rf_pipeline_stages(&options.mesh);
  for (int i = 0; i < count; i++) {
    options.mesh.stage = i;
    if (rf_graph_build(&model, &options, NULL, &l.stage[i], &error) != RAFTER_OK)
      fail_msg("%s, %s: %s", s->model, s->mesh, error.message);
    bool *gone = calloc((size_t)l.stage[i]->tensor_count, sizeof *gone);
    rf_remat_policy(l.stage[i], s->remat, gone);
    if (s->remat && rf_pass_remat(l.stage[i], gone, &error) != RAFTER_OK) fail_msg("%s", error.message);
    free(gone);
    if (rf_graph_verify(l.stage[i], &error) != RAFTER_OK)
      fail_msg("%s, %s, stage %d: %s", s->model, s->mesh, i, error.message);
  }
  l.one = world_new(l.whole, l.whole->rows);
  l.many = stages_new(l.stage, count, l.whole->rows);
  return l;
}

static void drop_line(line *l) {
  int count = l->many->count;
  stages_free(l->many);
  world_free(l->one);
  rf_graph_free(l->whole);
  for (int i = 0; i < count; i++) rf_graph_free(l->stage[i]);
}

static void write_inputs(world *w, int micro, const void *whole) { world_fill(w, whole, micro, true); }

static void step_line(line *l) {
  for (int i = 0; i < l->many->count; i++) {
    l->many->world[i]->run = (rf_run_inputs){.seed = 3, .step = 1, .loss_scale = 1.0f / 64, .lr = 1e-2f};
    world_fill(l->many->world[i], l->whole, 0, false);
  }
  stages_step(l->many, write_inputs, l->whole);
}

/* The first difference on any stage, or "they wait for each other" if the schedule does not reach
 * its end. */
static const char *line_difference(const line *l, char text[300]) {
  if (l->many->stuck) return "they wait for each other";
  for (int i = 0; i < l->many->count; i++)
    if (difference(l->many->world[i], l->one, text)) return text;
  return NULL;
}

static const staged PIPELINES[] = {
    {DEEP_LLAMA, "pipeline=2", "1f1b", 0, 2, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=2", "1f1b", 0, 5, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=4", "1f1b", 0, 6, 0.1f, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=5", "gpipe", 0, 5, 0, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=2", "interleaved:2", 0, 4, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=2,data=2", "1f1b", 0, 3, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=2,data=2,tensor=2", "1f1b", 1, 3, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=2,fsdp=2,tensor=2", "1f1b", 3, 3, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=3,fsdp=2", "gpipe", 3, 4, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=2,fsdp=2", "interleaved:2", 2, 4, 1, 0, NULL, RF_REMAT_MLP},
    {DEEP_LLAMA, "slice=2,pipeline=2,data=2", "1f1b", 0, 2, 1, 0, NULL, RF_REMAT_BLOCK},
    {DEEP_LLAMA, "pipeline=2,context=2", "1f1b", 0, 3, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=2,sequence=2,tensor=2", "1f1b", 0, 3, 1, 0, NULL, RF_REMAT_NONE},
    /* one token table on two stages */
    {DEEP_GEMMA, "pipeline=2", "1f1b", 0, 3, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_GEMMA, "pipeline=4,tensor=2", "1f1b", 0, 4, 1, 0, NULL, RF_REMAT_ATTN},
    {DEEP_GEMMA, "pipeline=2,fsdp=2,tensor=2", "interleaved:2", 3, 4, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_GPT, "pipeline=2,data=2", "1f1b", 1, 3, 1, 0.2f, NULL, RF_REMAT_NONE},
    {DEEP_GPT, "pipeline=4,tensor=2", "gpipe", 0, 4, 0, 0.2f, NULL, RF_REMAT_MLP_ATTN},
    {MIN_NEOX, "pipeline=2,tensor=2", "1f1b", 0, 2, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_MIXTRAL, "pipeline=3,fsdp=2", "1f1b", 3, 3, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=2,fsdp=2,context=2", "interleaved:2", 3, 2, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_GEMMA, "pipeline=2,tensor=4", "1f1b", 0, 2, 1, 0, NULL, RF_REMAT_NONE}, /* copies of key heads */
    {DEEP_GPT, "pipeline=2,context=2,tensor=2", "1f1b", 0, 2, 1, 0.2f, NULL, RF_REMAT_NONE},
    {DEEP_MIXTRAL, "pipeline=3,expert=2,tensor=2", "1f1b", 0, 3, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_DEEPSEEK, "pipeline=2,tensor=2", "1f1b", 0, 2, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_MIXTRAL, "pipeline=2,expert=2", "1f1b", 0, 2, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_DEEPSEEK, "pipeline=2,fsdp=2", "1f1b", 3, 3, 1, 0, NULL, RF_REMAT_NONE},
    {DEEP_LLAMA, "pipeline=2,data=2", "1f1b", 0, 3, 1, 0, "rank=4,targets=all", RF_REMAT_NONE},
    {DEEP_GEMMA, "pipeline=2,tensor=2", "interleaved:2", 0, 2, 1, 0, "rank=2,targets=q,v,down",
     RF_REMAT_NONE},
};

static void test_stages_compute_the_same(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof PIPELINES / sizeof *PIPELINES; i++) {
    char text[300];
    const staged *s = &PIPELINES[i];
    line l = make_line(s);
    shard_step(l.one, l.whole);
    step_line(&l);
    const char *wrong = line_difference(&l, text);
    if (wrong)
      fail_msg("%s over %s, %s, zero %d, accumulate %d: %s", s->model, s->mesh, s->schedule, s->zero,
               s->accumulate, wrong);
    drop_line(&l);
  }
}

/* Every send and recv is needed, and so is every slot of a tensor for another microbatch. */
static void test_a_missing_transfer_is_found(void **state) {
  (void)state;
  static const staged settings[] = {
      {DEEP_GEMMA, "pipeline=2", "1f1b", 0, 3, 1, 0, NULL, RF_REMAT_NONE},
      {DEEP_LLAMA, "pipeline=2,tensor=2", "interleaved:2", 0, 2, 1, 0, NULL, RF_REMAT_NONE}};
  for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
    line l = make_line(&settings[k]);
    char text[300];
    shard_step(l.one, l.whole);
    for (int i = 0; i < l.many->count; i++)
      for (int o = 0; o < l.stage[i]->op_count; o++) {
        const char *op = l.stage[i]->op[o].def->name;
        if (strcmp(op, "send") && strcmp(op, "recv")) continue;
        l.many->broken_stage = i;
        l.many->broken_op = o;
        step_line(&l);
        if (!line_difference(&l, text))
          fail_msg("%s: nothing differs without %s of stage %d", settings[k].model, l.stage[i]->op[o].name,
                   i);
      }
    drop_line(&l);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cut_graphs_compute_the_same),
      cmocka_unit_test(test_passes_of_a_generator),
      cmocka_unit_test(test_scores),
      cmocka_unit_test(test_recomputation),
      cmocka_unit_test(test_a_missing_exchange_is_found),
      cmocka_unit_test(test_sums_follow_their_gradients),
      cmocka_unit_test(test_stages_compute_the_same),
      cmocka_unit_test(test_a_missing_transfer_is_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
