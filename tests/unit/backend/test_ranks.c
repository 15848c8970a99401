/* test_ranks.c - collectives between the ranks of MPI. Each rank runs the programs of all chips in
 * its own process (support/world.h). At every exchange it also calls the kernel of MPI with the
 * inputs of its own chip, together with the other ranks, and compares the output. The test starts
 * itself with the mpirun of each MPI library that is installed. Without one, it checks only which
 * elements move. */
#include <math.h>
#include <unistd.h>

#include "backend/mpi/boxes.h"
#include "backend/mpi/flight.h"
#include "backend/mpi/link.h"
#include "backend/mpi/mpi.h"
#include "graph/mesh/place.h"
#include "support/world.h"
#include "unit/graph/fixture.h"

#define GPT "gpt:layers=1,width=16,heads=4,ff=32,vocab=37,seq=16"
#define LLAMA "llama:layers=1,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16"
#define GEMMA "gemma3:layers=1,width=16,heads=4,kv_heads=2,head_dim=8,ff=24,vocab=40,seq=16"
#define EXPERTS \
  "mixtral:layers=1,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16,experts=4,experts_used=2"
#define QWEN "qwen2.5-0.5b:layers=1,width=16,heads=8,kv_heads=2,head_dim=8,ff=24,vocab=40,seq=16"

enum { SEQUENCES = 12, SEQ = WORLD_SEQ };

typedef struct setting {
  const char *model, *mesh;
  int zero, accumulate;
} setting;
static const setting SETTINGS[] = {
    {LLAMA, "data=2", 0, 2},        {LLAMA, "fsdp=2", 3, 1},
    {GPT, "tensor=2", 3, 2},        {LLAMA, "sequence=2", 0, 1},
    {LLAMA, "context=2", 0, 1},     {EXPERTS, "expert=2", 0, 1},
    {LLAMA, "fsdp=4", 3, 2},        {GPT, "data=2,tensor=2", 0, 1},
    {GPT, "context=4", 3, 1},       {LLAMA, "sequence=2,tensor=2", 0, 2},
    {EXPERTS, "expert=4", 3, 1},    {GEMMA, "context=2,tensor=2", 0, 1},
    {GEMMA, "tensor=4", 0, 1},      {LLAMA, "slice=2,fsdp=2", 3, 2},
    {QWEN, "tensor=8", 0, 1},       {LLAMA, "data=2,fsdp=2,tensor=2", 3, 1},
    {GPT, "data=3,tensor=2", 1, 1},
};

static world *world_of(const setting *s, rf_dtype dtype, rf_graph **whole, rf_graph **cut) {
  rf_model model = fixture_model(s->model);
  rf_build_options options = fixture_train(dtype, s->accumulate, 0, 1);
  rf_error error = {0};
  options.microbatch = SEQUENCES;
  options.seq = SEQ;
  *whole = fixture_graph(&model, &options, NULL);
  if (rf_mesh_parse(s->mesh, s->zero, &options.mesh, &error) != RAFTER_OK) fail_msg("%s", error.message);
  options.mesh.capacity = 4;
  if (rf_graph_build(&model, &options, NULL, cut, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return world_new(*cut, (*whole)->rows);
}

typedef void (*visit_op)(world *w, int op, void *context);

/* One step of all chips, which calls `visit` in place of world_run_op. */
static void step(world *w, const rf_graph *whole, visit_op visit, void *context) {
  w->run = (rf_run_inputs){.seed = 3, .step = 1, .loss_scale = 1.0f / 64, .lr = 1e-2f};
  world_fill(w, whole, 0, false);
  for (int s = 0; s < RF_SECTIONS; s++)
    for (int m = 0; m < (s == RF_SECTION_MICRO ? whole->accumulate : 1); m++) {
      w->run.micro = m;
      if (s == RF_SECTION_MICRO) world_fill(w, whole, m, true);
      for (int o = 0; o < w->graph->op_count; o++)
        if (w->graph->op[o].section == (rf_section)s) visit(w, o, context);
    }
}

/* ---- which elements move --------------------------------------------------------------------- */

typedef struct runs {
  double *value;
  const world *w;
  int64_t chip;
  int tensor;
} runs;

static void take(void *self, int64_t at, int64_t done, int64_t count) {
  const runs *r = self;
  for (int64_t i = 0; i < count; i++) r->value[done + i] = world_get(r->w, r->chip, r->tensor, at + i);
}
static void check(void *self, int64_t at, int64_t done, int64_t count) {
  const runs *r = self;
  for (int64_t i = 0; i < count; i++) {
    double got = world_get(r->w, r->chip, r->tensor, at + i);
    if (got != r->value[done + i] && !(isnan(got) && isnan(r->value[done + i])))
      fail_msg("element %lld of chip %lld: %g, and the message has %g", (long long)(at + i),
               (long long)r->chip, got, r->value[done + i]);
  }
}

static int64_t chip_of(const world *w, const rf_op *op, int64_t chip, int64_t rank) {
  int32_t place[RF_AXES], other[RF_AXES];
  rf_place_of(&w->graph->mesh, chip, place);
  for (int64_t c = 0; c < w->chips; c++) {
    bool same = true;
    rf_place_of(&w->graph->mesh, c, other);
    for (int a = 0; a < RF_AXES; a++) same = same && (op->attr.axes & RF_AXIS_BIT(a) || place[a] == other[a]);
    if (same && rf_mesh_rank(&w->graph->mesh, op->attr.axes, other) == rank) return c;
  }
  fail_msg("no chip has this rank");
  return -1;
}

/* After an exchange that only moves elements: every message has the elements of the output. */
static void check_moves(world *w, int o, void *context) {
  const rf_op *op = &w->graph->op[o];
  rf_exchange_kind kind = op->def->exchange;
  int *checked = context;
  world_run_op(w, o);
  if (op->attr.group < 2 ||
      (kind != RF_EXCHANGE_ALL_GATHER && kind != RF_EXCHANGE_ALL_TO_ALL && kind != RF_EXCHANGE_PERMUTE))
    return;
  for (int64_t chip = 0; chip < w->chips; chip++) {
    int32_t place[RF_AXES];
    int64_t covered = 0;
    rf_place_of(&w->graph->mesh, chip, place);
    int64_t rank = rf_mesh_rank(&w->graph->mesh, op->attr.axes, place);
    for (int64_t from = 0; from < op->attr.group; from++) {
      const rf_boxes boxes = rf_boxes_of(w->graph, op, from, rank);
      double *value = calloc((size_t)boxes.elements + 1, sizeof *value);
      runs in = {value, w, chip_of(w, op, chip, from), op->input[0]}, out = {value, w, chip, op->output[0]};
      /* in two pieces, as chunks are */
      int64_t first = boxes.elements / 3;
      rf_boxes_runs(&boxes, false, 0, first, take, &in);
      in.value += first;
      rf_boxes_runs(&boxes, false, first, boxes.elements - first, take, &in);
      rf_boxes_runs(&boxes, true, 0, boxes.elements, check, &out);
      covered += boxes.elements;
      free(value);
    }
    assert_int_equal(covered, rf_tensor_count(&w->graph->tensor[op->output[0]]));
  }
  ++*checked;
}

static void test_messages_have_the_right_elements(void **state) {
  (void)state;
  int checked = 0;
  for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++) {
    rf_graph *whole, *cut;
    world *w = world_of(&SETTINGS[i], RF_F64, &whole, &cut);
    step(w, whole, check_moves, &checked);
    world_free(w);
    rf_graph_free(whole);
    rf_graph_free(cut);
  }
  assert_in_range(checked, 100, 100000);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Exchanges that run at the same time, with their results in one piece. */
enum { TOGETHER = 5 };
typedef struct batch {
  rf_graph *graph; /* the ops that begin them, and then those that wait */
  void *in[TOGETHER], *out[TOGETHER], *expected[TOGETHER];
  rf_run_inputs run[TOGETHER];
  int count;
} batch;

typedef struct compared {
  rf_link *link;
  int exchanges;
  batch batch;
  bool plant; /* this rank leaves out what it should compute: the comparison must notice */
} compared;

static void run_kernel(world *w, int o, rf_link *link, const void *in, void *out) {
  const rf_op *op = &w->graph->op[o];
  const rf_kernel *kernel = rf_kernel_choose(&RF_BACKEND_CPU, RF_ISA_BASE, w->graph, op);
  assert_string_equal(kernel->name, "mpi");
  size_t bytes = rf_kernel_workspace(kernel, w->graph, op, (rf_tiling){.threads = 1});
  rf_run_inputs run = w->run;
  rf_place_of(&w->graph->mesh, link->rank, run.place);
  rf_call call = {.graph = w->graph, .op = op, .threads = 1, .run = &run, .link = link};
  call.in[0] = in;
  call.out[0] = out;
  call.workspace = malloc(bytes + 1);
  kernel->run(&call);
  free(call.workspace);
  rf_error error = {0};
  if (rf_link_status(link, op->name, &error) != RAFTER_OK) fail_msg("%s", error.message);
}

/* Largest difference of two tensors, relative to the largest element. */
static double distance(const rf_tensor *t, const void *a, const void *b) {
  double most = 1e-300, worst = 0;
  for (int64_t i = 0; i < rf_tensor_count(t); i++) {
    double x = 0, y = 0;
    if (t->dtype == RF_F64) x = ((const double *)a)[i], y = ((const double *)b)[i];
    else if (t->dtype == RF_F32) x = (double)((const float *)a)[i], y = (double)((const float *)b)[i];
    else if (t->dtype == RF_BF16)
      x = (double)rf_bf16_to_f32(((const rf_bf16 *)a)[i]),
      y = (double)rf_bf16_to_f32(((const rf_bf16 *)b)[i]);
    else x = ((const int32_t *)a)[i], y = ((const int32_t *)b)[i];
    if (isnan(x) && isnan(y)) continue;
    most = fmax(most, fabs(y));
    worst = fmax(worst, isfinite(x - y) ? fabs(x - y) : x == y ? 0 : INFINITY);
  }
  return worst / most;
}

/* ---- exchanges in two halves ----------------------------------------------------------------- */

static void call_half(const batch *b, rf_flights *flights, rf_link *link, int o, void **workspace) {
  const rf_op *op = &b->graph->op[o];
  const rf_kernel *kernel = rf_kernel_choose(&RF_BACKEND_CPU, RF_ISA_BASE, b->graph, op);
  int at = o % b->count;
  assert_string_equal(kernel->name, "mpi");
  size_t bytes = rf_kernel_workspace(kernel, b->graph, op, (rf_tiling){.threads = 1});
  if (op->def->starts) *workspace = malloc(bytes + 1);
  rf_call call = {.graph = b->graph, .op = op, .threads = 1, .run = &b->run[at], .link = link};
  call.flights = flights;
  call.in[0] = b->in[at];
  call.out[0] = b->out[at];
  call.workspace = *workspace;
  kernel->run(&call);
  rf_error error = {0};
  if (rf_link_status(link, op->name, &error) != RAFTER_OK) fail_msg("%s", error.message);
}

/* An op that nobody waits for is noticed before and after it runs. */
static void check_missing_wait(const batch *b, rf_link *link) {
  rf_graph *graph = rf_graph_borrow(b->graph);
  rf_flights *flights = NULL;
  rf_error error = {0};
  graph->op_count = 2 * b->count - 1;
  assert_int_equal(rf_flights_open(graph, link, &flights, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "no op of the section waits"));
  rf_flights_close(flights);
  rf_graph_free(graph);
}

/* Begins all exchanges of the batch. One is waited for out of turn. Bits must be those of the
 * exchanges in one piece. */
static void run_batch(world *w, batch *b, rf_link *link) {
  rf_flights *flights = NULL;
  rf_error error = {0};
  void *workspace[TOGETHER];
  if (b->count == 0) return;
  b->graph->op_count = 2 * b->count;
  for (int i = 0; i < b->count; i++) {
    rf_op *op = &b->graph->op[b->count + i];
    *op = b->graph->op[i];
    op->def = &RF_OP_EXCHANGE_WAIT;
  }
  check_missing_wait(b, link);
  if (rf_flights_open(b->graph, link, &flights, &error) != RAFTER_OK) fail_msg("%s", error.message);
  for (int i = 0; i < b->count; i++) call_half(b, flights, link, i, &workspace[i]);
  assert_int_equal(rf_flights_check(flights, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "nothing has waited for it"));
  for (int k = 0; k < b->count; k++) {
    int i = (k + b->count / 2) % b->count;
    call_half(b, flights, link, b->count + i, &workspace[i]);
    const rf_tensor *y = &w->graph->tensor[b->graph->op[i].output[0]];
    if (memcmp(b->out[i], b->expected[i], (size_t)rf_tensor_bytes(y)))
      fail_msg("%s, rank %d: other bits in two halves", b->graph->op[i].name, link->rank);
  }
  assert_int_equal(rf_flights_check(flights, &error), RAFTER_OK);
  for (int i = 0; i < b->count; i++) {
    free(workspace[i]);
    free(b->in[i]);
    free(b->out[i]);
    free(b->expected[i]);
  }
  rf_flights_close(flights);
  rf_graph_free(b->graph);
  *b = (batch){0};
}

static void *copy_of(const void *data, size_t bytes) { return memcpy(malloc(bytes), data, bytes); }

/* Adds an exchange whose result in one piece is `expected`; `before` was in the output. */
static void add_to_batch(world *w, batch *b, int o, rf_link *link, const void *in, const void *before,
                         const void *expected) {
  const rf_op *op = &w->graph->op[o];
  char name[40];
  snprintf(name, sizeof name, "%s_start", op->def->name);
  if (!rf_op_find(name)) return;
  if (!b->graph) b->graph = rf_graph_borrow(w->graph);
  size_t bytes = (size_t)rf_tensor_bytes(&w->graph->tensor[op->output[0]]);
  b->graph->op[b->count] = *op;
  b->graph->op[b->count].def = rf_op_find(name);
  b->run[b->count] = w->run;
  rf_place_of(&w->graph->mesh, link->rank, b->run[b->count].place);
  b->in[b->count] = copy_of(in, (size_t)rf_tensor_bytes(&w->graph->tensor[op->input[0]]));
  b->out[b->count] = copy_of(before, bytes);
  b->expected[b->count++] = copy_of(expected, bytes);
}

static void compare(world *w, int o, void *context) {
  compared *c = context;
  const rf_op *op = &w->graph->op[o];
  if (!rf_op_is_exchange(op->def) || op->attr.group < 2) {
    world_run_op(w, o);
    return;
  }
  const rf_tensor *x = &w->graph->tensor[op->input[0]], *y = &w->graph->tensor[op->output[0]];
  size_t in_bytes = (size_t)rf_tensor_bytes(x), bytes = (size_t)rf_tensor_bytes(y);
  for (int i = 0; i < c->batch.count; i++) /* an op starts once before it is waited for */
    if (c->batch.graph->op[i].output[0] == op->output[0] || c->batch.graph->op[i].section != op->section) {
      run_batch(w, &c->batch, c->link);
      break;
    }
  void *in = malloc(in_bytes), *out = malloc(bytes), *own = world_data(w, c->link->rank, op->output[0]);
  memcpy(in, world_data(w, c->link->rank, op->input[0]), in_bytes);
  memcpy(out, own, bytes);
  run_kernel(w, o, c->link, in, out);
  add_to_batch(w, &c->batch, o, c->link, in, own, out);
  if (c->batch.count == TOGETHER) run_batch(w, &c->batch, c->link);
  assert_memory_equal(in, world_data(w, c->link->rank, op->input[0]), in_bytes);
  bool in_place = op->def->exchange == RF_EXCHANGE_ALL_REDUCE && op->attr.accumulate[0] == RF_WRITE;
  if (in_place) run_kernel(w, o, c->link, in, in);
  world_run_op(w, o);
  if (c->plant && c->exchanges == 0) memset(out, 0, bytes);
  const double bound = y->dtype == RF_BF16 ? 1e-2 : y->dtype == RF_F32 ? 1e-6 : 1e-12;
  double worst = distance(y, out, own);
  if (!(worst <= bound) || (in_place && memcmp(in, out, bytes)))
    fail_msg("%s, rank %d: difference %g%s", op->name, c->link->rank, worst,
             in_place && memcmp(in, out, bytes) ? ", and other bits in place" : "");
  c->exchanges++;
  free(in);
  free(out);
}

/* All settings whose mesh has as many chips as there are ranks. */
static void test_collectives(void **state) {
  compared *c = *state;
  for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++)
    for (int d = 0; d < 3; d++) {
      static const rf_dtype DTYPES[] = {RF_F64, RF_F32, RF_BF16};
      rf_graph *whole, *cut;
      world *w = world_of(&SETTINGS[i], DTYPES[d], &whole, &cut);
      if (w->chips == c->link->ranks) step(w, whole, compare, c);
      run_batch(w, &c->batch, c->link);
      world_free(w);
      rf_graph_free(whole);
      rf_graph_free(cut);
    }
  assert_in_range(c->exchanges, 50, 100000);
  if (c->link->rank == 0)
    printf("%d ranks of %s: %d exchanges\n", c->link->ranks, c->link->library, c->exchanges);
}

/* ---- starting ranks -------------------------------------------------------------------------- */

static const char *const LIBRARY[] = {"openmpi", "mpich"};

static bool has(const char *folder, int library) {
  char command[4400];
  snprintf(command, sizeof command, "command -v mpirun.%s >/dev/null && test -f '%s/rafter-mpi-%s.so'",
           LIBRARY[library], folder, LIBRARY[library]);
  return system(command) == 0;
}

static int start(const char *self, int library, int ranks, const char *what) {
  char command[8800];
  snprintf(command, sizeof command,
           "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
           "ASAN_OPTIONS=detect_leaks=0 " /* MPI libraries never free some of their memory */
           "UCX_MEM_MMAP_HOOK_MODE=none " /* UCX would write over mmap of clang's sanitizer */
           "RAFTER_MPI_SECONDS=60 timeout 120 mpirun.%s -n %d '%s' %s >ranks-%d.log 2>&1",
           LIBRARY[library], ranks, self, what, (int)getpid());
  int status = system(command);
  if (status && !strcmp(what, "--ranks")) {
    snprintf(command, sizeof command, "tail -5 ranks-%d.log", (int)getpid());
    if (system(command)) puts("no output");
  }
  snprintf(command, sizeof command, "ranks-%d.log", (int)getpid());
  unlink(command);
  return status;
}

static void test_each_library(void **state) {
  char self[4096], folder[4096];
  int seen = 0;
  (void)state;
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  self[length < 0 ? 0 : length] = 0;
  snprintf(folder, sizeof folder, "%s", self);
  *strrchr(folder, '/') = 0;
  for (int library = 0; library < 2; library++) {
    if (!has(folder, library)) continue;
    for (int ranks = 2; ranks <= 8; ranks *= 2) assert_int_equal(start(self, library, ranks, "--ranks"), 0);
    /* a planted fault: one rank has a wrong result */
    assert_int_not_equal(start(self, library, 2, "--plant"), 0);
    seen++;
  }
  if (!seen) skip(); /* ./dev setup --mpi installs MPI */
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_messages_have_the_right_elements),
      cmocka_unit_test(test_each_library),
  };
  compared c = {.plant = argc > 1 && !strcmp(argv[1], "--plant")};
  rf_error error = {0};
  if (argc < 2) return cmocka_run_group_tests(tests, NULL, NULL);
  if (rf_link_open(&c.link, &error) != RAFTER_OK || !c.link) {
    fprintf(stderr, "%s\n", error.message);
    return 2;
  }
  c.plant = c.plant && c.link->rank == 1;
  const struct CMUnitTest ranks[] = {cmocka_unit_test_prestate(test_collectives, &c)};
  return cmocka_run_group_tests(ranks, NULL, NULL);
}
