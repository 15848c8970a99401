/* tpu_aot.c - compares the planner's TPU memory with the TPU compiler's: tpu_aot [FILE]. FILE has
 * the format of data/tpu-aot.json, which is the default. */
#include "base/json.h"
#include "machine/tiles.h"
#include "plan/parts.h"
#include "program_mesh.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays ---------------------------------------------------------------------------------- */

static int bits_of(const char *dtype) {
  static const struct {
    const char *name;
    int bits;
  } known[] = {{"f32", 32}, {"s32", 32}, {"u32", 32}, {"bf16", 16}, {"u16", 16},
               {"s8", 8},   {"f8", 8},   {"pred", 8}, {"s4", 4}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(known[i].name, dtype)) return known[i].bits;
  return 0;
}

/* Rows of layout_rows: [topology, dtype, shape, bytes, layout]. The planner must give the same
 * bytes for each row. */
static int check_arrays(const json_t *root) {
  const json_t *rows = json_object_get(root, "layout_rows");
  int exact = 0, all = (int)json_array_size(rows);
  for (int r = 0; r < all; r++) {
    const json_t *row = json_array_get(rows, (size_t)r), *shape = json_array_get(row, 2);
    const char *dtype = json_string_value(json_array_get(row, 1));
    int64_t dims[8], want = json_integer_value(json_array_get(row, 3));
    int rank = (int)json_array_size(shape), bits = dtype ? bits_of(dtype) : 0;
    if (!bits || rank > 8) {
      printf("array %d: unknown dtype or rank (%s, %d)\n", r, dtype ? dtype : "none", rank);
      continue;
    }
    for (int d = 0; d < rank; d++) dims[d] = json_integer_value(json_array_get(shape, (size_t)d));
    int64_t got = rf_tiled_bytes(bits, rank, dims);
    exact += got == want;
    if (got != want)
      printf("array %d of %s: expected %lld bytes, got %lld\n", r, dtype, (long long)want, (long long)got);
  }
  printf("arrays: %d of %d to the byte\n", exact, all);
  return exact != all;
}

/* ---- programs -------------------------------------------------------------------------------- */

typedef struct program {
  rf_machine machine;
  rf_model model;
  rf_plan_options plan;
} program;

static const char *text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}
static int64_t int_of(const json_t *object, const char *key, int64_t otherwise) {
  const json_t *value = json_object_get(object, key);
  return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

static rf_status find_machine(const char *topology, rf_machine *machine, rf_error *error) {
  char name[64];
  snprintf(name, sizeof name, "%s%.*s", strncmp(topology, "tpu", 3) ? "tpu-" : "",
           (int)strcspn(topology, ":"), topology);
  if (!strcmp(name, "tpu7x")) snprintf(name, sizeof name, "tpu-v7x");
  RF_TRY(rf_machine_find(name, machine, error));
  rf_machine_by_device(machine);
  return RAFTER_OK;
}

/* The training step of the tutorial's transformer (suites uva and scale). */
static rf_status read_training(const json_t *config, program *p, rf_error *error) {
  char spec[256];
  int64_t width = int_of(config, "D", 1024), heads = int_of(config, "H", 8);
  snprintf(spec, sizeof spec, "uva:layers=%lld,width=%lld,ff=%lld,heads=%lld,seq=%lld",
           (long long)int_of(config, "L", 12), (long long)width, (long long)int_of(config, "F", 4096),
           (long long)heads, (long long)int_of(config, "T", 512));
  RF_TRY(rf_model_resolve(spec, &p->model, NULL, error));
  p->model.head_dim = int_of(config, "K", 128);
  static const char *const remats[] = {"none", "mlp", "attn", "mlp+attn", "block"};
  for (int r = 0; r < 5; r++)
    if (!strcmp(text_of(config, "remat"), remats[r])) p->plan.remat = (rf_remat)r;
  int64_t accumulate = int_of(config, "acc", 1);
  p->plan.build = (rf_build_options){.job = RF_JOB_TRAIN,
                                     .dtype = !strcmp(text_of(config, "dtype"), "bf16") ? RF_BF16 : RF_F32,
                                     .accumulate = (int)accumulate,
                                     .microbatch = int_of(config, "batch", 1) / accumulate,
                                     .seq = int_of(config, "T", 512),
                                     .dropout = (float)json_number_value(json_object_get(config, "dropout")),
                                     .optimizer = RF_ADAM,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.999f,
                                     .eps = 1e-8f};
  p->plan.program.program =
      json_is_true(json_object_get(config, "scan")) ? RF_PROGRAM_JAX_SCAN : RF_PROGRAM_JAX_UNROLLED;
  return RAFTER_OK;
}

/* Gemma 3 1B: one decode step, a loop of decode steps, or a pass over whole sequences. Layers are
 * unrolled. */
static rf_status read_gemma(const json_t *config, program *p, rf_error *error) {
  static const struct {
    const char *mode;
    rf_program_result result;
  } modes[] = {{"nll", RF_RESULT_LOSS},
               {"prelogits", RF_RESULT_HIDDEN},
               {"logits", RF_RESULT_LOGITS},
               {"logits_topk", RF_RESULT_TOP},
               {"chunk_topk", RF_RESULT_TOP_BY_CHUNK}};
  const char *mode = text_of(config, "mode"), *kv = text_of(config, "kv");
  RF_TRY(rf_model_resolve("gemma3-1b", &p->model, NULL, error));
  p->plan.program.program = RF_PROGRAM_JAX_UNROLLED;
  p->plan.build = (rf_build_options){.job = *mode ? RF_JOB_SCORE : RF_JOB_GENERATE,
                                     .dtype = RF_BF16,
                                     .accumulate = 1,
                                     .microbatch = int_of(config, "B", 1),
                                     .seq = int_of(config, *mode ? "T" : "S", 1024),
                                     .kv_dtype_set = !*mode,
                                     .kv_dtype = !strcmp(kv, "s8")    ? RF_I8
                                                 : !strcmp(kv, "f32") ? RF_F32
                                                                      : RF_BF16};
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
    if (!strcmp(modes[i].mode, mode)) p->plan.program.result = modes[i].result;
  p->plan.program.top = 128;
  p->plan.program.ring = json_is_true(json_object_get(config, "ring"));
  p->plan.program.loop = json_is_true(json_object_get(config, "loop"));
  return RAFTER_OK;
}

/* ---- programs over a mesh -------------------------------------------------------------------- */

/* The mesh of x by y devices of a topology such as "v5e:2x4". */
static rf_mesh mesh_of(const char *topology) {
  int64_t devices = 1;
  for (const char *at = strchr(topology, ':'); at && *at; at = strchr(at + 1, 'x'))
    devices *= strtol(at + 1, NULL, 10);
  int32_t x = devices == 8 ? 2 : (int32_t)sqrt((double)devices);
  rf_mesh mesh = {0};
  mesh.of[RF_AXIS_FSDP] = x;
  mesh.of[RF_AXIS_TENSOR] = (int32_t)(devices / x);
  return mesh;
}

/* The axes of each dimension, from text such as "(('x', 'y'), None)". */
static rf_spec spec_of(const char *text) {
  rf_spec spec = {0};
  int dim = 0, depth = 0;
  for (const char *c = text; *c; c++) {
    depth += *c == '(' ? 1 : *c == ')' ? -1 : 0;
    if (*c == ',' && depth == 1 && dim < 1) dim++;
    if (*c == 'x') spec.split[dim] |= RF_AXIS_BIT(RF_AXIS_FSDP);
    if (*c == 'y') spec.split[dim] |= RF_AXIS_BIT(RF_AXIS_TENSOR);
  }
  return spec;
}

typedef struct chain {
  rf_graph *graph;
  rf_spec given[16];
} chain;

static int chain_tensor(chain *c, const char *name, bool matrix, int64_t rows, int64_t columns,
                        const char *spec) {
  int t = rf_graph_tensor(c->graph, name, matrix ? RF_CLASS_WEIGHT : RF_CLASS_IO, RF_BF16, 2,
                          (int64_t[]){rows, columns});
  c->graph->tensor[t].persistent = matrix;
  c->graph->tensor[t].input = !matrix;
  c->given[t] = spec_of(spec);
  return t;
}

/* A single product, or an MLP of two matrices, forward or as a training step. */
static rf_status size_chain(const json_t *row, const rf_machine *machine, rf_program_memory *memory,
                            rf_error *error) {
  const json_t *config = json_object_get(row, "config");
  rf_mesh mesh = mesh_of(text_of(row, "topology"));
  bool trains = strstr(text_of(row, "id"), "_train_") != NULL, product = json_object_get(config, "a") != NULL;
  rf_model model;
  chain c = {0};
  RF_TRY(rf_model_resolve("uva", &model, NULL, error));
  c.graph = rf_graph_new(&model);
  int64_t m = int_of(config, product ? "M" : "B", 1), k = int_of(config, product ? "K" : "D", 1),
          n = int_of(config, product ? "N" : "F", 1);
  int first[] = {chain_tensor(&c, "a", false, m, k, text_of(config, product ? "a" : "h")),
                 chain_tensor(&c, "b", true, k, n, text_of(config, product ? "b" : "w1")), RF_NONE};
  int op = rf_graph_emit(c.graph, &RF_OP_MATMUL, "first", RF_SECTION_MICRO, (rf_slots){first, 3},
                         RF_IDS(RF_WANTED), NULL, error);
  if (op >= 0 && !product) {
    int u = c.graph->op[op].output[0], w = chain_tensor(&c, "c", true, n, k, text_of(config, "w2"));
    op = rf_graph_emit(c.graph, &RF_OP_GELU, "between", RF_SECTION_MICRO, RF_IDS(u), RF_ALL_NEW, NULL, error);
    if (op >= 0)
      op = rf_graph_emit(c.graph, &RF_OP_MATMUL, "second", RF_SECTION_MICRO,
                         RF_IDS(c.graph->op[op].output[0], w), RF_IDS(RF_WANTED), NULL, error);
  }
  rf_status status = RAFTER_INVALID;
  if (op >= 0) {
    int result = c.graph->op[op].output[0];
    c.graph->tensor[result].output = true;
    c.given[result] = spec_of(text_of(config, product ? "out" : "h"));
    status = size_on_mesh(c.graph, &mesh, c.given, trains, machine, memory, error);
  }
  rf_graph_free(c.graph);
  return status;
}

typedef struct tally {
  int rows, near, large, large_near, verdicts, verdicts_right;
  double worst, sum; /* of the absolute errors of totals */
} tally;

static rf_status size_row(const json_t *row, rf_program_memory *memory, double *limit, rf_error *error) {
  static program p;
  const json_t *config = json_object_get(row, "config");
  memset(&p, 0, sizeof p);
  RF_TRY(find_machine(text_of(row, "topology"), &p.machine, error));
  *limit = p.machine.memory_bytes - p.machine.reserve_bytes;
  if (!strcmp(text_of(row, "suite"), "shard")) return size_chain(row, &p.machine, memory, error);
  RF_TRY(!strcmp(text_of(row, "suite"), "gemma") ? read_gemma(config, &p, error)
                                                 : read_training(config, &p, error));
  p.plan.machine = &p.machine;
  return rf_plan_program_size(&p.model, &p.plan, memory, error);
}

static double total_of(const json_t *row) {
  if (!json_is_true(json_object_get(row, "fits")))
    return json_number_value(json_object_get(row, "oom_total_gib")) * 1073741824;
  return (double)(int_of(row, "arg", 0) + int_of(row, "out", 0) - int_of(row, "alias", 0) +
                  int_of(row, "temp", 0));
}

static void check_row(const json_t *row, tally *t) {
  rf_program_memory m = {0};
  rf_error error = {0};
  double limit = 0, want = total_of(row), gib = 1073741824;
  const char *id = text_of(row, "id");
  t->rows++;
  if (size_row(row, &m, &limit, &error) != RAFTER_OK) {
    printf("%-72s %s\n", id, error.message);
    return;
  }
  double off = (double)m.total / want - 1;
  bool near = fabs(off) <= 0.1, fits = json_is_true(json_object_get(row, "fits")),
       asked = fabs(want / limit - 1) > 0.02;
  t->near += near;
  t->sum += fabs(off);
  if (fabs(off) > t->worst) t->worst = fabs(off);
  if (want > gib) {
    t->large++;
    t->large_near += fabs(off) <= 0.2;
  }
  if (asked) {
    t->verdicts++;
    t->verdicts_right += fits == ((double)m.total <= limit);
  }
  printf("%-72s %8.3f %8.3f GiB %+6.1f %%  arg %+lld temp %.0f of %.0f MB (kept %.0f copies %.0f gradients "
         "%.0f working %.0f)\n",
         id, want / gib, (double)m.total / gib, 100 * off,
         fits ? (long long)(m.argument - int_of(row, "arg", 0)) : 0, (double)m.temp / 1e6,
         (double)int_of(row, "temp", 0) / 1e6, (double)m.kept / 1e6, (double)m.copies / 1e6,
         (double)m.gradients / 1e6, (double)m.working / 1e6);
}

/* Suites that are judged together. The `share` of rows must be within 10 % of the compiler's total.
 * All training rows above 1 GiB must be within 20 %. */
static int check_programs(const json_t *root, const char *only) {
  static const struct {
    const char *title, *suites[2];
    double share;
    bool large;
  } groups[] = {{"gemma", {"gemma", ""}, 0.8, false},
                {"uva and scale", {"uva", "scale"}, 0.8, true},
                {"shard", {"shard", ""}, 7.0 / 9, false}};
  const json_t *rows = json_object_get(root, "rows"), *row;
  int failed = 0;
  for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
    tally t = {0};
    size_t i;
    json_array_foreach (rows, i, row) {
      const char *suite = text_of(row, "suite");
      if (strcmp(suite, groups[g].suites[0]) && strcmp(suite, groups[g].suites[1])) continue;
      if (!only || strstr(text_of(row, "id"), only)) check_row(row, &t);
    }
    bool good = t.near >= groups[g].share * t.rows && (!groups[g].large || t.large_near == t.large) &&
                t.verdicts_right == t.verdicts;
    printf("%s: %d of %d within 10 %% (mean %.1f %%, worst %.1f %%), %d of %d above 1 GiB within 20 %%, %d "
           "of %d verdicts right: %s\n",
           groups[g].title, t.near, t.rows, t.rows ? 100 * t.sum / t.rows : 0, 100 * t.worst, t.large_near,
           t.large, t.verdicts_right, t.verdicts, good ? "good" : "NOT GOOD");
    failed |= !good;
  }
  return failed;
}

int main(int count, char **argument) {
  const char *path = count > 1 ? argument[1] : "data/tpu-aot.json";
  rf_error error = {0};
  json_t *root;
  if (rf_json_read(path, 64 << 20, &root, &error) != RAFTER_OK) {
    fprintf(stderr, "tpu_aot: %s\n", error.message);
    return 2;
  }
  int failed = check_arrays(root);
  failed |= check_programs(root, count > 2 ? argument[2] : NULL);
  json_decref(root);
  return failed ? 1 : 0;
}
