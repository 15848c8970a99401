/* xla_bench.c - times modules of StableHLO text through one PJRT plugin, in turns. Results that
 * share memory with an argument become that argument of the next call, as in a training loop.
 *   xla_bench PLUGIN ROUNDS CALLS SEQ A.mlir B.mlir ...
 * prints for each module (XLA_BENCH_CACHE names a folder for compiled programs): seconds of
 * compiling, the compiler's bytes, and the median and the range of the milliseconds of a call. Each
 * round times CALLS calls of every module. The text may come from `rafter plan --stablehlo` or from
 * JAX (bench/peers/jax_step.py --stablehlo). */
#include "backend/xla/client.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORTS = 4096, MODULES = 8, ROUNDS = 64 };

typedef struct module {
  const char *name;
  char *text;
  size_t bytes;
  rf_xla_argument argument[PORTS];
  rf_xla_result result[PORTS];
  bool donated[PORTS];
  int alias[PORTS]; /* of an argument: the result that takes its place, or -1 */
  int arguments, results;
  rf_xla_id program;
  rf_xla_stats stats;
  double ms[ROUNDS];
} module;

static void fail(const char *what) {
  fprintf(stderr, "xla_bench: %s\n", what);
  exit(1);
}
static void must(rf_status status, const rf_error *error) {
  if (status != RAFTER_OK) fail(error->message);
}

static const struct {
  const char *name;
  int dtype;
} TYPES[] = {{"f32", RF_F32}, {"bf16", RF_BF16}, {"i32", RF_I32}, {"ui32", RF_DTYPES},
             {"i8", RF_I8},   {"ui8", RF_U8},    {"f64", RF_F64}, {"ui16", RF_XLA_U16}};

/* Reads "tensor<4x8xf32>"; returns the end. */
static const char *read_type(const char *at, rf_xla_shape *shape) {
  *shape = (rf_xla_shape){0};
  at += strlen("tensor<");
  for (;;) {
    char *end;
    long long dim = strtoll(at, &end, 10);
    if (end == at || *end != 'x') break;
    shape->dim[shape->rank++] = dim;
    at = end + 1;
  }
  for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
    size_t length = strlen(TYPES[i].name);
    if (strncmp(at, TYPES[i].name, length) || at[length] != '>') continue;
    shape->dtype = TYPES[i].dtype;
    return at + length + 1;
  }
  fail("an argument has a type that this program does not know");
  return NULL;
}

static const char *end_of_list(const char *at) { /* of "(...)": the parenthesis that closes it */
  int depth = 0;
  for (bool quoted = false; *at; at++) {
    if (*at == '"') quoted = !quoted;
    if (quoted) continue;
    depth += (*at == '(') - (*at == ')');
    if (depth == 0) return at;
  }
  fail("main has no end");
  return NULL;
}

static void read_signature(module *m) {
  const char *at = strstr(m->text, "@main(");
  if (!at) fail("no function main");
  const char *end = end_of_list(at += strlen("@main")), *next = at;
  while ((next = strstr(next, "tensor<")) && next < end) {
    if (m->arguments == PORTS) fail("too many arguments");
    next = read_type(next, &m->argument[m->arguments].shape);
    const char *comma = strstr(next, "%"), *alias = strstr(next, "tf.aliasing_output = ");
    bool mine = alias && alias < end && (!comma || alias < comma);
    m->alias[m->arguments++] = mine ? atoi(alias + strlen("tf.aliasing_output = ")) : -1;
  }
  const char *results = strchr(end, '('), *line = strchr(end, '{');
  if (!results || (line && line < results)) results = end;
  const char *stop = strstr(end, "{\n");
  for (next = results; (next = strstr(next, "tensor<")) && next < stop;) {
    rf_xla_shape shape;
    next = read_type(next, &shape);
    m->result[m->results++] = (rf_xla_result){.keep = true, .at = -1, .bytes = rf_xla_shape_bytes(&shape)};
  }
}

/* Small numbers for floats, valid ids for integers. A list of n + 1 integers holds starts of
 * segments. */
static void fill(const module *m, int i, void *data, int64_t seq) {
  const rf_xla_shape *s = &m->argument[i].shape;
  int64_t bytes = rf_xla_shape_bytes(s), rows = s->rank == 1 ? s->dim[0] - 1 : 0;
  bool starts = false;
  for (int k = 0; k < m->arguments; k++)
    starts |= rows > 0 && m->argument[k].shape.dtype == RF_I32 && m->argument[k].shape.rank == 1 &&
              m->argument[k].shape.dim[0] == rows;
  memset(data, 0, (size_t)bytes);
  if (s->dtype == RF_I32)
    for (int64_t k = 0; k < bytes / 4; k++)
      ((int32_t *)data)[k] = (int32_t)(!starts ? k % 256 : k * seq < rows ? k * seq : rows);
  for (int64_t k = 0; s->dtype == RF_F32 && k < bytes / 4; k++)
    ((float *)data)[k] = 0.02f * (float)((k * 2654435761u >> 8) % 2001 - 1000) / 1000.0f;
  for (int64_t k = 0; s->dtype == RF_BF16 && k < bytes / 2; k++)
    ((rf_bf16 *)data)[k] = rf_f32_to_bf16(0.02f * (float)((k * 2654435761u >> 8) % 2001 - 1000) / 1000.0f);
  if (s->dtype == RF_DTYPES && bytes >= 12) ((uint32_t *)data)[2] = 1; /* step */
}

static void load(module *m, rf_xla_client *client, int64_t seq) {
  rf_error error = {0};
  must(rf_file_read(m->name, (size_t)1 << 30, &m->text, &m->bytes, &error), &error);
  read_signature(m);
  const rf_xla_compile of = {
      .text = m->text, .bytes = m->bytes, .replicas = 1, .cache = getenv("XLA_BENCH_CACHE")};
  must(rf_xla_program(client, &of, &m->program, &m->stats, &error), &error);
  for (int i = 0; i < m->arguments; i++) {
    rf_xla_shared shared;
    m->donated[i] = m->alias[i] >= 0;
    must(rf_xla_share(client, rf_xla_shape_bytes(&m->argument[i].shape) + 64, &shared, &error), &error);
    fill(m, i, shared.data, seq);
    must(rf_xla_put(client, 0, &m->argument[i].shape, &shared, 0, &m->argument[i].buffer, &error), &error);
    rf_xla_unshare(client, &shared);
  }
}

static void run(module *m, rf_xla_client *client) {
  rf_error error = {0};
  rf_xla_id drop[PORTS];
  bool taken[PORTS] = {false};
  int count = 0;
  const rf_xla_call call = {.program = m->program,
                            .devices = 1,
                            .arguments = m->arguments,
                            .results = m->results,
                            .argument = m->argument,
                            .result = m->result};
  must(rf_xla_execute(client, &call, m->donated, &error), &error);
  for (int i = 0; i < m->arguments; i++)
    if (m->alias[i] >= 0) {
      m->argument[i].buffer = m->result[m->alias[i]].buffer;
      taken[m->alias[i]] = true;
    }
  for (int i = 0; i < m->results; i++)
    if (!taken[i]) drop[count++] = m->result[i].buffer;
  rf_xla_free(client, drop, count);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  static module list[MODULES];
  int count = argc - 5, rounds = argc > 5 ? atoi(argv[2]) : 0, calls = argc > 5 ? atoi(argv[3]) : 0;
  if (count < 1 || count > MODULES || rounds < 1 || rounds > ROUNDS || calls < 1)
    fail("usage: xla_bench PLUGIN ROUNDS CALLS SEQ A.mlir ...");
  rf_error error = {0};
  rf_xla_client *client;
  const rf_xla_settings settings = {.plugin = argv[1]};
  must(rf_xla_open(&settings, &client, &error), &error);
  for (int i = 0; i < count; i++) {
    list[i].name = argv[5 + i];
    load(&list[i], client, atoll(argv[4]));
    run(&list[i], client);
  }
  for (int r = 0; r < rounds; r++)
    for (int i = 0; i < count; i++) {
      double start = rf_now_seconds();
      for (int c = 0; c < calls; c++) run(&list[i], client);
      list[i].ms[r] = 1e3 * (rf_now_seconds() - start) / calls;
    }
  printf("%-40s %8s %10s %10s %10s   ms a call: median [min..max], n %d\n", "module", "compile", "argument",
         "temporary", "total", rounds);
  for (int i = 0; i < count; i++) {
    module *m = &list[i];
    qsort(m->ms, (size_t)rounds, sizeof *m->ms, ascending);
    printf("%-40s %6.1f s %6.1f MiB %6.1f MiB %6.1f MiB   %.2f [%.2f..%.2f]\n", m->name, m->stats.seconds,
           (double)m->stats.argument / 1048576, (double)m->stats.temporary / 1048576,
           (double)m->stats.total / 1048576, m->ms[rounds / 2], m->ms[0], m->ms[rounds - 1]);
  }
  const rf_xla_times times = rf_xla_times_of(client);
  printf("the plugin's process adds %.0f us to a call (mean of %lld calls)\n",
         1e6 * (times.seconds - times.child_seconds) / (double)times.calls, (long long)times.calls);
  rf_xla_close(client);
  return 0;
}
