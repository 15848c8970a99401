/* test_load.c - tests the memory of loading weights, for every file format and storage form. A
 * process never holds more than the planned arena, one tensor of the file and the documented
 * scratch. A long load reports its progress. Each measurement is a process of its own: this
 * program, with the model to load as its argument. */
#include "generate/batch.h"
#include "base/file.h"
#include "model/gguf_source.h"
#include "model/weights.h"
#include "run/load.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/files.h"
#include "support/scratch.h"

enum { THREADS = 2, WIDTH = 512, FF = 1536, VOCAB = 8192, LAYERS = 4 };
static const char SHAPE[] = "llama:layers=4,width=512,heads=8,kv_heads=4,ff=1536,vocab=8192,seq=64";
/* Scratch of loading, in addition to the arena and one tensor: a block of values that are assembled
 * (RF_WEIGHTS_CHUNK of them), the values and stored blocks of sixteen outputs per thread, and the
 * last huge page of the arena. */
#define SCRATCH_BYTES ((int64_t)RF_WEIGHTS_CHUNK * 4 + (int64_t)THREADS * 2 * 16 * FF * 4 + (2 << 20))

/* ---- one measurement ------------------------------------------------------------------------- */

/* A field of /proc/self/status in kilobytes, converted to bytes. */
static int64_t status_bytes(const char *key) {
  FILE *file = fopen("/proc/self/status", "r");
  char line[256];
  long long found = -1;
  while (file && found < 0 && fgets(line, sizeof line, file))
    if (strncmp(line, key, strlen(key)) == 0) found = strtoll(line + strlen(key), NULL, 10);
  if (file) fclose(file);
  return found * 1024;
}

static bool forget_peak(void) {
  FILE *file = fopen("/proc/self/clear_refs", "w");
  bool done = file && fputs("5", file) >= 0;
  if (file) done = fclose(file) == 0 && done;
  return done;
}

/* Touches all pages of the program and its libraries before memory is measured, so that code which
 * runs for the first time does not count as scratch. */
static void meet_code(void) {
  FILE *file = fopen("/proc/self/maps", "r");
  char line[4400], mode[8];
  unsigned long from, to;
  volatile char met = 0;
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3 && mode[0] == 'r' && strchr(line, '/'))
      for (unsigned long at = from; at < to; at += 4096) met = *(const volatile char *)at;
  (void)met;
  if (file) fclose(file);
}

/* Planted faults: a loader that maps and reads the whole file, and one that reads the file into
 * memory. */
static int plant(const char *fault, const char *path) {
  void *map;
  char *text;
  size_t bytes, sum = 0;
  if (strcmp(fault, "mapped") == 0) {
    if (rf_map_file(path, &map, &bytes, NULL) != RAFTER_OK) return 1;
    for (size_t i = 0; i < bytes; i += 4096) sum += ((unsigned char *)map)[i];
    return sum == 1; /* The sum is used, so the compiler keeps the reads. */
  }
  return strcmp(fault, "read") == 0 && rf_file_read(path, (size_t)1 << 30, &text, &bytes, NULL) != RAFTER_OK;
}

static rf_status measure(const char *path, rf_weights_as as, const char *fault, const char *file,
                         int64_t *arena, int64_t *grown, rf_error *error) {
  static rf_machine machine;
  static rf_weight_types types;
  char where[4096];
  rf_infer_settings s = {.seed = 3};
  rf_plan *plans[2] = {NULL, NULL};
  rf_run *run = NULL;
  RF_TRY(rf_machine_find("local", &machine, error));
  RF_TRY(rf_model_resolve(path, &s.model, where, error));
  RF_TRY(rf_weight_types_read(where, &s.model, as, &types, error));
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_GENERATE,
                                       .dtype = RF_F32,
                                       .softmax = RF_F32,
                                       .weights = &types,
                                       .microbatch = 1,
                                       .seq = 16,
                                       .chunk = 4},
                             .backend = &RF_BACKEND_CPU,
                             .isa = rf_isa_detect(),
                             .threads = THREADS,
                             .machine = &machine};
  RF_TRY(rf_generate_plans(&s, &plans[0], &plans[1], error));
  meet_code();
  int64_t before = status_bytes("VmRSS:");
  if (before < 0 || !forget_peak()) return RF_FAIL(error, RAFTER_FAILED, NULL, "/proc/self cannot be asked");
  if (plant(fault, file)) return RF_FAIL(error, RAFTER_FAILED, NULL, "the fault is not there");
  RF_TRY(rf_run_open((const rf_plan *const *)plans, 2, (rf_run_debug){0}, &run, error));
  RF_TRY(rf_fill_weights(run, 0, plans[0], where, 3, (rf_progress){0}, error));
  *grown = status_bytes("VmHWM:") - before;
  *arena = rf_run_arena_bytes(run);
  rf_run_close(run);
  rf_plan_free(plans[0]);
  rf_plan_free(plans[1]);
  return RAFTER_OK;
}

static int measuring(char **argument) {
  rf_error error = {0};
  int64_t arena, grown;
  if (measure(argument[0], (rf_weights_as)atoi(argument[1]), argument[2], argument[3], &arena, &grown,
              &error) != RAFTER_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  printf("%lld %lld\n", (long long)arena, (long long)grown);
  return 0;
}

/* ---- models ---------------------------------------------------------------------------------- */

static rf_model model;
static rf_params params;
static int64_t largest; /* values in the largest tensor */

/* Values that are cheap to compute and differ; no block has a value twice. */
static void fill(int param, int64_t first, int64_t count, float *values) {
  for (int64_t i = 0; i < count; i++)
    values[i] = (float)((first + i) * 7919 % 2003 - 1001) * 1e-4f + (float)param * 1e-6f;
}

static void write_folder(const char *to, rf_dtype dtype, int64_t file_bytes) {
  float *values = malloc((size_t)RF_WEIGHTS_CHUNK * sizeof *values);
  rf_weights_form form = {.dtype = dtype, .file_bytes = file_bytes};
  rf_weights_writer *writer = NULL;
  rf_error error = {0};
  char path[300];
  assert_int_equal(mkdir(to, 0777), 0);
  snprintf(path, sizeof path, "%s/config.json", to);
  if (rf_model_config_write(&model, dtype, path, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (rf_weights_writer_open(to, &model, &params, &form, &writer, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  for (int p = 0; p < params.count; p++)
    for (int64_t at = 0, n; at < params.at[p].count; at += n) {
      n = params.at[p].count - at < RF_WEIGHTS_CHUNK ? params.at[p].count - at : RF_WEIGHTS_CHUNK;
      fill(p, at, n, values);
      if (rf_weights_writer_put(writer, p, at, n, values, &error) != RAFTER_OK) fail_msg("%s", error.message);
    }
  assert_int_equal(rf_weights_writer_files(writer) > 1, file_bytes > 0);
  if (rf_weights_writer_commit(writer, &error) != RAFTER_OK) fail_msg("%s", error.message);
  free(values);
}

/* Writes the folder as a GGUF file whose matrices have one storage type. */
static void write_gguf(const char *from, const char *to, int number) {
  enum { CHUNK = 1 << 18 };
  const rf_quant_type *wanted = rf_quant_type_of(number);
  rf_gguf_source *source = NULL;
  rf_gguf_writer *writer = NULL;
  rf_error error = {0};
  if (rf_gguf_source_open(from, &source, &error) != RAFTER_OK) fail_msg("%s", error.message);
  int count = rf_gguf_source_count(source);
  rf_quant_tensor *tensors = calloc((size_t)count, sizeof *tensors);
  float *values = malloc(CHUNK * sizeof *values);
  void *blocks = malloc(CHUNK * sizeof(float));
  for (int i = 0; i < count; i++) {
    tensors[i] = *rf_gguf_source_at(source, i);
    if (tensors[i].rank == 2) tensors[i].type = wanted;
    tensors[i].bytes = tensors[i].count / tensors[i].type->values * tensors[i].type->bytes;
  }
  if (rf_gguf_writer_open(to, rf_gguf_source_meta(source), tensors, count, &writer, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  for (int i = 0; i < count; i++)
    for (int64_t at = 0, n; at < tensors[i].count; at += n) {
      n = tensors[i].count - at < CHUNK ? tensors[i].count - at : CHUNK;
      if (rf_gguf_source_read(source, i, at, n, values, &error) != RAFTER_OK) fail_msg("%s", error.message);
      tensors[i].type->quantize(values, n / tensors[i].type->values, blocks);
      if (rf_gguf_writer_put_bytes(writer, blocks, n / tensors[i].type->values * tensors[i].type->bytes,
                                   &error) != RAFTER_OK)
        fail_msg("%s", error.message);
    }
  if (rf_gguf_writer_commit(writer, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_gguf_source_close(source);
  free(tensors);
  free(values);
  free(blocks);
}

static rf_pool *pool; /* memory of params */

static int make_models(void **state) {
  rf_error error = {0};
  if (make_folder(state) != 0) return -1;
  if (rf_model_resolve(SHAPE, &model, NULL, &error) != RAFTER_OK) return -1;
  pool = rf_pool_new();
  params = rf_model_params(&model, pool);
  write_folder(at("bf16"), RF_BF16, 0);
  write_folder(at("sharded"), RF_F32, 12 << 20);
  write_gguf(at("bf16"), at("q8_0.gguf"), RF_Q_Q8_0);
  largest = (int64_t)VOCAB * WIDTH;
  return 0;
}

static int remove_models(void **state) {
  rf_pool_free(pool);
  return remove_folder(state);
}

/* ---- tests ----------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__)
enum { MEASURABLE = 0 }; /* A sanitizer's shadow memory would count as memory of the process. */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
enum { MEASURABLE = 0 };
#else
enum { MEASURABLE = 1 };
#endif
#else
enum { MEASURABLE = 1 };
#endif

static const struct source {
  const char *path, *file; /* the model to load; a file of the model */
  double tensor_bytes;     /* bytes of a value in the file */
} SOURCES[] = {{"bf16", "bf16/model.safetensors", 2},
               {"sharded", "sharded/model-00001-of-00006.safetensors", 4},
               {"q8_0.gguf", "q8_0.gguf", 34 / 32.0}};
static const char *const AS[] = {[RF_WEIGHTS_FILE] = "file",
                                 [RF_WEIGHTS_F32] = "f32",
                                 [RF_WEIGHTS_BF16] = "bf16",
                                 [RF_WEIGHTS_INT8] = "int8",
                                 [RF_WEIGHTS_Q4] = "q4"};

/* Maximum bytes in use, minus the arena. */
static int64_t above_arena(const struct source *source, rf_weights_as as, const char *fault, int64_t *arena) {
  char command[1200], self[400] = "";
  long long a = 0, g = 0;
  assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  snprintf(command, sizeof command, "OMP_NUM_THREADS=%d '%s' measure '%s' %d %s '%s'", THREADS, self,
           at(source->path), (int)as, fault, at(source->file));
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  int read = fscanf(pipe, "%lld %lld", &a, &g);
  assert_int_equal(pclose(pipe), 0);
  assert_int_equal(read, 2);
  *arena = a;
  return (int64_t)(g - a);
}

static void loading_holds_one_tensor_of_the_file(void **state) {
  (void)state;
  if (!MEASURABLE) skip_for("sanitizers change what is measured");
  for (size_t i = 0; i < sizeof SOURCES / sizeof *SOURCES; i++)
    for (rf_weights_as as = RF_WEIGHTS_FILE; as <= RF_WEIGHTS_Q4; as++) {
      int64_t arena, above = above_arena(&SOURCES[i], as, "none", &arena),
                     tensor = (int64_t)((double)largest * SOURCES[i].tensor_bytes);
      print_message("%-10s --weights %-5s arena %6.1f MiB, above it %5.1f MiB, of which one tensor may be "
                    "%.1f and scratch %.1f\n",
                    SOURCES[i].path, AS[as], (double)arena / 0x1p20, (double)above / 0x1p20,
                    (double)tensor / 0x1p20, (double)SCRATCH_BYTES / 0x1p20);
      assert_true(above <= tensor + SCRATCH_BYTES);
    }
}

static void faults_are_seen(void **state) {
  (void)state;
  if (!MEASURABLE) skip_for("sanitizers change what is measured");
  static const char *const FAULTS[] = {"mapped", "read"};
  int64_t arena, tensor = (int64_t)((double)largest * SOURCES[0].tensor_bytes);
  for (int f = 0; f < 2; f++)
    assert_true(above_arena(&SOURCES[0], RF_WEIGHTS_INT8, FAULTS[f], &arena) > tensor + SCRATCH_BYTES);
}

typedef struct heard {
  int count;
  double last;
  bool grew;
} heard;

static void hear(void *self, const char *what, double part) {
  heard *h = self;
  assert_string_equal(what, "loading");
  h->grew = h->grew && part > h->last && part <= 1;
  h->last = part;
  h->count++;
}

/* Progress is shown from 1 GiB on. A lower limit lets a small model show it. */
static void long_loads_are_told(void **state) {
  (void)state;
  static const struct {
    int64_t least;
    bool reports;
  } rows[] = {{1, true}, {0, false}};
  assert_int_equal(RF_LOAD_LONG_BYTES, 1 << 30);
  for (int i = 0; i < 2; i++)
    for (size_t k = 0; k < sizeof SOURCES / sizeof *SOURCES; k++) {
      static rf_machine machine;
      heard h = {.last = -1, .grew = true};
      char where[4096];
      rf_error error = {0};
      rf_infer_settings s = {.seed = 3,
                             .progress = {.report = hear, .self = &h, .least_bytes = rows[i].least}};
      rf_generator *g = NULL;
      assert_int_equal(rf_machine_find("local", &machine, &error), RAFTER_OK);
      if (rf_model_resolve(at(SOURCES[k].path), &s.model, where, &error) != RAFTER_OK)
        fail_msg("%s", error.message);
      s.weights_folder = where;
      s.plan = (rf_plan_options){.build = {.job = RF_JOB_GENERATE,
                                           .dtype = RF_BF16,
                                           .softmax = RF_F32,
                                           .microbatch = 1,
                                           .seq = 16,
                                           .chunk = 4},
                                 .backend = &RF_BACKEND_CPU,
                                 .isa = rf_isa_detect(),
                                 .threads = THREADS,
                                 .machine = &machine};
      if (rf_generator_open(&s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
      rf_generator_close(g);
      assert_true(rows[i].reports ? h.grew && h.last == 1 && h.count > 10 && h.count <= 101 : h.count == 0);
    }
}

int main(int count, char **argument) {
  if (count == 6 && strcmp(argument[1], "measure") == 0) return measuring(argument + 2);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(loading_holds_one_tensor_of_the_file),
      cmocka_unit_test(faults_are_seen),
      cmocka_unit_test(long_loads_are_told),
  };
  return cmocka_run_group_tests(tests, make_models, remove_models);
}
