/* test_xla_profile.c - reads optimized programs and profiles, and adds up the times of ops. The
 * bytes come from a plugin, so damaged ones are tried too. */
#include "backend/xla/profile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/proto_writer.h"

static rf_error fault; /* of the last call that failed */

#define GOOD(call) \
  do { \
    if ((call) != RAFTER_OK) fail_msg("%s: %s", #call, fault.message); \
  } while (0)

/* Two ops of a microbatch, and one of the section end. */
static rf_op OPS[] = {{.name = "step/micro/up", .section = RF_SECTION_MICRO},
                      {.name = "step/micro/down", .section = RF_SECTION_MICRO},
                      {.name = "step/end/adamw", .section = RF_SECTION_END}};
enum { UP, DOWN, ADAMW };
static rf_graph graph = {.op = OPS, .op_count = 3, .accumulate = 1};

/* ---- messages -------------------------------------------------------------------------------- */

static rf_proto_bytes bytes_of(const char *data, size_t count) { return (rf_proto_bytes){data, count}; }

static void test_fields_are_read(void **state) {
  (void)state;
  static const char DATA[] = "\x08\x96\x01\x12\x03"
                             "abc\x1d\x01\x00\x00\x00\x21\x02\x00\x00\x00\x00\x00\x00\x00"
                             "\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
  rf_proto_field f;
  rf_proto p = rf_proto_of(bytes_of(DATA, sizeof DATA - 1));
  assert_true(rf_proto_next(&p, &f) && f.number == 1 && f.is_number && f.value == 150);
  assert_true(rf_proto_next(&p, &f) && f.number == 2 && !f.is_number && rf_proto_is(f.bytes, "abc"));
  assert_true(rf_proto_next(&p, &f) && f.number == 3 && f.value == 1);
  assert_true(rf_proto_next(&p, &f) && f.number == 4 && f.value == 2);
  assert_true(rf_proto_next(&p, &f) && f.number == 5 && f.value == UINT64_MAX);
  assert_false(rf_proto_next(&p, &f));
  assert_false(p.damaged);
  assert_true(rf_proto_is(rf_proto_find(bytes_of(DATA, sizeof DATA - 1), 2), "abc"));
  assert_int_equal(rf_proto_find(bytes_of(DATA, sizeof DATA - 1), 1).count, 0);
}

static void test_damaged_fields_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *data;
    size_t count;
  } BAD[] = {
      {"\x08", 1},                                              /* no value */
      {"\x08\x80", 2},                                          /* a value without an end */
      {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11},     /* above 64 bits */
      {"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 12}, /* too long */
      {"\x12\x04"
       "abc",
       5},                                                  /* a text longer than the rest */
      {"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11}, /* a huge text */
      {"\x00\x01", 2},                                      /* field 0 */
      {"\x0b", 1},                                          /* a group */
      {"\x0d\x01\x02", 3},                                  /* a short number of 32 bits */
      {"\x09\x01\x02\x03", 4},                              /* a short number of 64 bits */
      {"\xf8\xff\xff\xff\xff\x01\x01", 7},                  /* a number of a field above 32 bits */
  };
  for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
    rf_proto_field f;
    rf_proto p = rf_proto_of(bytes_of(BAD[i].data, BAD[i].count));
    if (rf_proto_next(&p, &f) || !p.damaged) fail_msg("damaged message %zu is read", i);
    assert_false(rf_proto_next(&p, &f));
    assert_false(rf_proto_is_whole(bytes_of(BAD[i].data, BAD[i].count)));
  }
  assert_true(rf_proto_is_whole(bytes_of(NULL, 0)));
}

/* ---- programs -------------------------------------------------------------------------------- */

/* A program whose fusions have an op of their own, that of a root, or none. */
static proto_out program_of(bool configured) {
  proto_out module = {0}, all = {0}, entry = {0}, inner = {0}, outer = {0}, loop = {0};
  proto_text(&module, 1, "step");
  proto_instruction(&inner, 1, "add.1", "step/micro/up", 0);
  proto_instruction(&inner, 2, "multiply.1", "step/micro/down", 0);
  proto_number(&inner, 5, 7);
  proto_number(&inner, 6, 2); /* the root */
  proto_instruction(&outer, 1, "call.1", NULL, 7);
  proto_number(&outer, 5, 8);
  proto_number(&outer, 6, 1);
  proto_instruction(&loop, 1, "endless", NULL, 9);
  proto_number(&loop, 5, 9);
  proto_number(&loop, 6, 1);
  proto_instruction(&entry, 4, "fusion.2", "step/micro/up", 7);
  proto_instruction(&entry, 3, "fusion.1", NULL, 7);
  proto_instruction(&entry, 5, "fusion.3", NULL, 8);
  proto_instruction(&entry, 6, "fusion.10", "step/end/adamw", 0);
  proto_instruction(&entry, 7, "copy.1", NULL, 0);
  proto_instruction(&entry, 8, "copy.2", "results", 0);
  proto_instruction(&entry, 9, "broken", NULL, 100);
  proto_number(&entry, 5, 1);
  proto_message(&module, 3, &entry);
  proto_message(&module, 3, &outer);
  proto_message(&module, 3, &loop);
  proto_message(&module, 3, &inner);
  if (!configured) return module;
  proto_message(&all, 1, &module);
  proto_text(&all, 2, "configuration");
  return all;
}

static rf_xla_instructions read_program(bool configured) {
  rf_xla_instructions in;
  proto_out program = program_of(configured);
  GOOD(rf_xla_instructions_read(program.data, program.bytes, &graph, &in, &fault));
  return in;
}

static int op_of(const rf_xla_instructions *in, const char *name) {
  int i = rf_xla_instructions_find(in, bytes_of(name, strlen(name)));
  return i == RF_NONE ? -100 : in->at[i].number;
}

static void test_instructions_belong_to_ops(void **state) {
  (void)state;
  for (int configured = 0; configured < 2; configured++) {
    rf_xla_instructions in = read_program(configured);
    assert_int_equal(in.count, 11);
    assert_int_equal(op_of(&in, "fusion.2"), UP);   /* its own op comes before that of its root */
    assert_int_equal(op_of(&in, "fusion.1"), DOWN); /* of the root */
    assert_int_equal(op_of(&in, "fusion.3"), DOWN); /* of the root of the root */
    assert_int_equal(op_of(&in, "fusion.10"), ADAMW);
    assert_int_equal(op_of(&in, "copy.1"), RF_NONE);
    assert_int_equal(op_of(&in, "copy.2"), RF_NONE); /* "results" names none */
    assert_int_equal(op_of(&in, "broken"), RF_NONE);
    assert_int_equal(op_of(&in, "endless"), RF_NONE);
    assert_int_equal(op_of(&in, "fusion"), -100);
    rf_xla_instructions_free(&in);
  }
}

static char *copied(const char *data, size_t count) {
  char *copy = malloc(count + 1);
  if (!copy) abort();
  if (count) memcpy(copy, data, count);
  return copy;
}

static void test_damaged_programs_are_refused(void **state) {
  (void)state;
  rf_xla_instructions in;
  assert_int_equal(rf_xla_instructions_read(copied("optimized", 9), 9, &graph, &in, &fault), RAFTER_FAILED);
  assert_int_equal(rf_xla_instructions_read(copied("", 0), 0, &graph, &in, &fault), RAFTER_FAILED);
  proto_out program = program_of(true);
  for (size_t cut = 0; cut < program.bytes; cut++) { /* the reader may find a part, or refuse */
    if (rf_xla_instructions_read(copied(program.data, cut), cut, &graph, &in, &fault) == RAFTER_OK)
      rf_xla_instructions_free(&in);
    char *changed = copied(program.data, program.bytes);
    changed[cut] = (char)~changed[cut];
    if (rf_xla_instructions_read(changed, program.bytes, &graph, &in, &fault) == RAFTER_OK)
      rf_xla_instructions_free(&in);
  }
  free(program.data);
}

/* ---- profiles -------------------------------------------------------------------------------- */

enum { HLO_OP = 1, NAME_OF_FUSION_1, OTHER_STAT };

static void add_stat_names(proto_out *plane) {
  proto_metadata(plane, 5, HLO_OP, "hlo_op", NULL);
  proto_metadata(plane, 5, NAME_OF_FUSION_1, "fusion.1", NULL);
  proto_metadata(plane, 5, OTHER_STAT, "occupancy", NULL);
}

static proto_out line_of(const char *name, uint64_t time) {
  proto_out line = {0};
  proto_text(&line, 2, name);
  proto_number(&line, 3, time);
  return line;
}

/* Two GPUs and the host. GPU 1 is named first; GPU 0 has two streams. */
static proto_out gpus(void) {
  proto_out space = {0}, host = {0}, gpu = {0}, other = {0}, line;
  proto_text(&host, 2, "/host:CPU");
  line = line_of("Stream of a thread", 5);
  proto_event(&line, 1, 0, 1000, 0, NULL, 0);
  proto_message(&host, 3, &line);
  proto_message(&space, 1, &host);
  proto_text(&other, 2, "/device:GPU:1");
  line = line_of("Stream #1", 9);
  proto_event(&line, 1, 0, 77000, HLO_OP, "fusion.2", 0);
  proto_message(&other, 3, &line);
  add_stat_names(&other);
  proto_message(&space, 1, &other);
  proto_text(&gpu, 2, "/device:GPU:0");
  line = line_of("Stream #2", 1000);
  proto_event(&line, 1, 30000, 5000, HLO_OP, NULL, NAME_OF_FUSION_1); /* 1030 to 1035 ns */
  proto_event(&line, 1, 90000, 0, HLO_OP, "fusion.1", 0);             /* no time */
  proto_message(&gpu, 3, &line);
  line = line_of("Stream #1(Compute)", 1000);
  proto_event(&line, 1, 0, 10000, HLO_OP, "fusion.2", 0);
  proto_event(&line, 1, 10000, 20000, OTHER_STAT, "fusion.2", 0); /* no instruction */
  proto_event(&line, 2, 32000, 8000, 0, NULL, 0);                 /* only a name of a kernel */
  proto_message(&gpu, 3, &line);
  line = line_of("Launches", 1000);
  proto_event(&line, 1, 0, 10000, HLO_OP, "fusion.2", 0);
  proto_message(&gpu, 3, &line);
  proto_metadata(&gpu, 4, 1, "a_kernel", NULL);
  proto_metadata(&gpu, 4, 2, "%fusion.10 = f32[8] fusion(%x)", NULL);
  add_stat_names(&gpu);
  proto_message(&space, 1, &gpu);
  return space;
}

static void test_kernels_of_a_gpu(void **state) {
  (void)state;
  rf_xla_instructions in = read_program(true);
  rf_xla_kernels kernels;
  proto_out space = gpus();
  static const struct {
    int64_t begin, end;
    const char *name;
  } EXPECTED[] = {{1000, 1010, "fusion.2"}, {1010, 1030, NULL}, {1030, 1035, "fusion.1"}, {1032, 1040, NULL}};
  for (int zero = 0; zero < 2; zero++) {
    GOOD(rf_xla_kernels_read(bytes_of(space.data, space.bytes), &in, &kernels, &fault));
    assert_int_equal(kernels.count, 4);
    assert_int_equal(kernels.known, 2);
    for (int i = 0; i < 4; i++) {
      assert_int_equal(kernels.at[i].begin, EXPECTED[i].begin);
      assert_int_equal(kernels.at[i].end, EXPECTED[i].end);
      const char *name = EXPECTED[i].name;
      int found = name ? rf_xla_instructions_find(&in, bytes_of(name, strlen(name))) : RF_NONE;
      assert_int_equal(kernels.at[i].instruction, found);
    }
    free(kernels.at);
    proto_byte(&space, 0); /* a plugin may count one byte more */
  }
  free(space.data);
  rf_xla_instructions_free(&in);
}

/* If an event names several instructions, the last one that is known is the innermost. */
static void test_the_innermost_instruction_counts(void **state) {
  (void)state;
  rf_xla_instructions in = read_program(true);
  rf_xla_kernels kernels;
  proto_out space = {0}, gpu = {0}, line = line_of("Stream #1", 0), event = {0};
  static const char *const NAMES[] = {"fusion.1", "fusion.2", "unknown.3"};
  proto_number(&event, 3, 5000);
  for (int i = 0; i < 3; i++) {
    proto_out stat = {0};
    proto_number(&stat, 1, HLO_OP);
    proto_text(&stat, 5, NAMES[i]);
    proto_message(&event, 4, &stat);
  }
  proto_message(&line, 4, &event);
  proto_text(&gpu, 2, "/device:GPU:0");
  proto_message(&gpu, 3, &line);
  add_stat_names(&gpu);
  proto_message(&space, 1, &gpu);
  GOOD(rf_xla_kernels_read(bytes_of(space.data, space.bytes), &in, &kernels, &fault));
  assert_int_equal(kernels.count, 1);
  assert_true(rf_proto_is(in.at[kernels.at[0].instruction].name, "fusion.2"));
  free(kernels.at);
  free(space.data);
  rf_xla_instructions_free(&in);
}

/* On a TPU, events contain others. The time of a loop is what its body leaves. */
static void test_kernels_of_a_tpu(void **state) {
  (void)state;
  rf_xla_instructions in = read_program(false);
  rf_xla_kernels kernels;
  proto_out space = {0}, tpu = {0}, ops = line_of("XLA Ops", 100), modules = line_of("XLA Modules", 100),
            stream = line_of("Stream #1", 100);
  proto_event(&ops, 3, 20000, 30000, 0, NULL, 0); /* fusion.10, in fusion.2 */
  proto_event(&ops, 1, 10000, 90000, 0, NULL, 0); /* fusion.2 */
  proto_event(&ops, 2, 30000, 10000, 0, NULL, 0); /* fusion.1, in fusion.10 */
  proto_event(&ops, 2, 50000, 10000, 0, NULL, 0); /* fusion.1, in fusion.2 */
  proto_event(&modules, 1, 0, 200000, 0, NULL, 0);
  proto_event(&stream, 1, 0, 200000, 0, NULL, 0);
  proto_text(&tpu, 2, "/device:TPU:0");
  proto_message(&tpu, 3, &modules);
  proto_message(&tpu, 3, &ops);
  proto_message(&tpu, 3, &stream);
  proto_metadata(&tpu, 4, 1, "%fusion.2 = while(...)", "fusion.2");
  proto_metadata(&tpu, 4, 2, "%fusion.1 = f32[2] fusion(...)", NULL);
  proto_metadata(&tpu, 4, 3, "text", "fusion.10");
  proto_message(&space, 1, &tpu);
  static const struct {
    int64_t begin, end;
    const char *name;
  } EXPECTED[] = {{110, 120, "fusion.2"},  {120, 130, "fusion.10"}, {130, 140, "fusion.1"},
                  {140, 150, "fusion.10"}, {150, 160, "fusion.1"},  {160, 200, "fusion.2"}};
  GOOD(rf_xla_kernels_read(bytes_of(space.data, space.bytes), &in, &kernels, &fault));
  assert_int_equal(kernels.count, 6);
  for (int i = 0; i < 6; i++) {
    assert_int_equal(kernels.at[i].begin, EXPECTED[i].begin);
    assert_int_equal(kernels.at[i].end, EXPECTED[i].end);
    assert_true(rf_proto_is(in.at[kernels.at[i].instruction].name, EXPECTED[i].name));
  }
  assert_int_equal(kernels.at[1].event, kernels.at[3].event); /* one event in two parts */
  assert_int_not_equal(kernels.at[2].event, kernels.at[4].event);
  free(kernels.at);
  free(space.data);
  rf_xla_instructions_free(&in);
}

static void test_profiles_without_kernels_are_refused(void **state) {
  (void)state;
  rf_xla_instructions in = read_program(true);
  rf_xla_kernels kernels;
  static const char *const NAMES[] = {"/host:CPU", "/device:GPU:", "/device:GPU:x", "/device:GPU:1234",
                                      "/device:TPU:0 SparseCore 1"};
  assert_int_equal(rf_xla_kernels_read(bytes_of(NULL, 0), &in, &kernels, &fault), RAFTER_FAILED);
  assert_string_equal(fault.message, "the profile has no kernels of a device");
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
    proto_out space = {0}, plane = {0}, line = line_of("Stream #1", 0);
    proto_event(&line, 1, 0, 1000, 0, NULL, 0);
    proto_text(&plane, 2, NAMES[i]);
    proto_message(&plane, 3, &line);
    proto_message(&space, 1, &plane);
    assert_int_equal(rf_xla_kernels_read(bytes_of(space.data, space.bytes), &in, &kernels, &fault),
                     RAFTER_FAILED);
    free(space.data);
  }
  rf_xla_instructions_free(&in);
}

/* Times that no clock has are left out. */
static void test_huge_times_are_left_out(void **state) {
  (void)state;
  rf_xla_instructions in = read_program(true);
  rf_xla_kernels kernels;
  proto_out space = {0}, plane = {0}, line = line_of("Stream #1", 1), late = line_of("Stream #2", UINT64_MAX);
  proto_event(&line, 1, UINT64_MAX, 1000, 0, NULL, 0);
  proto_event(&line, 1, 0, UINT64_MAX, 0, NULL, 0);
  proto_event(&line, 1, 0, 1000, 0, NULL, 0);
  proto_event(&late, 1, 0, 1000, 0, NULL, 0);
  proto_text(&plane, 2, "/device:GPU:0");
  proto_message(&plane, 3, &line);
  proto_message(&plane, 3, &late);
  proto_message(&space, 1, &plane);
  GOOD(rf_xla_kernels_read(bytes_of(space.data, space.bytes), &in, &kernels, &fault));
  assert_int_equal(kernels.count, 1);
  free(kernels.at);
  free(space.data);
  rf_xla_instructions_free(&in);
}

static void read_any(const char *data, size_t count, const rf_xla_instructions *in) {
  rf_xla_kernels kernels;
  rf_xla_op_times times;
  char *exact = copied(data, count); /* for sanitizers: no bytes after the end */
  if (rf_xla_kernels_read(bytes_of(exact, count), in, &kernels, &fault) == RAFTER_OK) {
    GOOD(rf_xla_op_times_of(&kernels, in, &graph, &times, &fault));
    free(times.at);
    free(kernels.at);
  }
  free(exact);
}

static void test_damaged_profiles_are_harmless(void **state) {
  (void)state;
  rf_xla_instructions in = read_program(true);
  rf_xla_kernels kernels;
  proto_out space = gpus();
  assert_int_equal(rf_xla_kernels_read(bytes_of(space.data, space.bytes - 1), &in, &kernels, &fault),
                   RAFTER_FAILED);
  assert_string_equal(fault.message, "the profile is damaged");
  for (size_t cut = 0; cut < space.bytes; cut++) {
    read_any(space.data, cut, &in);
    char kept = space.data[cut];
    for (int value = 0; value < 256; value += 17) {
      space.data[cut] = (char)value;
      read_any(space.data, space.bytes, &in);
    }
    space.data[cut] = kept;
  }
  free(space.data);
  rf_xla_instructions_free(&in);
}

/* A profile of the CUDA plugin: a decoding step of Llama 3.2 1B. Kernels of CUDA graphs have the
 * name of the graph in place of an instruction. */
static void test_a_real_profile(void **state) {
  (void)state;
  static rf_op ops[] = {{.name = "step/micro/block.0/attn/attention/fwd", .section = RF_SECTION_MICRO},
                        {.name = "step/micro/block.5/attn/attention/fwd", .section = RF_SECTION_MICRO},
                        {.name = "step/micro/head/sample/fwd", .section = RF_SECTION_MICRO}};
  static const rf_graph decode = {.op = ops, .op_count = 3, .accumulate = 1};
  rf_xla_instructions in;
  rf_xla_kernels kernels;
  rf_xla_op_times times;
  char *program = NULL, *profile = NULL;
  size_t program_bytes = 0, profile_bytes = 0;
  GOOD(rf_file_read(RF_TEST_DATA "/xla/program.pb", 1 << 20, &program, &program_bytes, &fault));
  GOOD(rf_file_read(RF_TEST_DATA "/xla/profile.pb", 1 << 20, &profile, &profile_bytes, &fault));
  GOOD(rf_xla_instructions_read(program, program_bytes, &decode, &in, &fault));
  GOOD(rf_xla_kernels_read(bytes_of(profile, profile_bytes), &in, &kernels, &fault));
  assert_int_equal(kernels.count, 27);
  assert_int_equal(kernels.known, 24);
  GOOD(rf_xla_op_times_of(&kernels, &in, &decode, &times, &fault));
  int64_t sum = 0, of[3] = {0}, others = 0;
  for (int k = 0; k < kernels.count; k++) sum += kernels.at[k].end - kernels.at[k].begin;
  for (int i = 0; i < times.count; i++)
    *(times.at[i].op == RF_NONE ? &others : &of[times.at[i].op]) += times.at[i].end - times.at[i].begin;
  assert_int_equal(sum, of[0] + of[1] + of[2] + others); /* one stream: no overlaps */
  assert_true(of[0] > 0 && of[1] > 0 && of[2] == 0 && others > 0);
  free(times.at);
  free(kernels.at);
  free(profile);
  rf_xla_instructions_free(&in);
}

/* ---- ops ------------------------------------------------------------------------------------- */

typedef struct planted {
  int64_t begin, end;
  const char *name;
} planted;
typedef struct wanted {
  int op, call;
  int64_t begin, end;
} wanted;

static void check_times(const planted *kernel, int count, const wanted *expected, int wants) {
  rf_xla_instructions in = read_program(true);
  rf_xla_kernel at[16];
  rf_xla_kernels kernels = {at, count, count};
  rf_xla_op_times times;
  for (int i = 0; i < count; i++)
    at[i] =
        (rf_xla_kernel){kernel[i].begin, kernel[i].end,
                        rf_xla_instructions_find(&in, bytes_of(kernel[i].name, strlen(kernel[i].name))), i};
  GOOD(rf_xla_op_times_of(&kernels, &in, &graph, &times, &fault));
  assert_int_equal(times.count, wants);
  for (int i = 0; i < wants; i++) {
    assert_int_equal(times.at[i].op, expected[i].op);
    assert_int_equal(times.at[i].call, expected[i].call);
    assert_int_equal(times.at[i].begin, expected[i].begin);
    assert_int_equal(times.at[i].end, expected[i].end);
  }
  free(times.at);
  rf_xla_instructions_free(&in);
}
#define CHECK(kernel, expected) \
  check_times(kernel, sizeof(kernel) / sizeof *(kernel), expected, sizeof(expected) / sizeof *(expected))

/* The kernels of an op are added up. Other ops wait until it has ended. */
static void test_kernels_of_an_op_are_added(void **state) {
  (void)state;
  static const planted KERNELS[] = {{0, 10, "fusion.1"},
                                    {10, 30, "fusion.2"},
                                    {30, 35, "fusion.3"},
                                    {40, 50, "copy.1"},
                                    {60, 70, "fusion.10"}};
  static const wanted TIMES[] = {{DOWN, 0, 0, 15}, {UP, 0, 15, 35}, {RF_NONE, 0, 40, 50}, {ADAMW, 0, 60, 70}};
  CHECK(KERNELS, TIMES);
}

/* Two streams: time in which both work counts once. */
static void test_overlaps_count_once(void **state) {
  (void)state;
  static const planted KERNELS[] = {{0, 20, "fusion.1"}, {10, 15, "fusion.2"}, {15, 30, "fusion.10"}};
  static const wanted TIMES[] = {{DOWN, 0, 0, 20}, {ADAMW, 0, 20, 30}};
  CHECK(KERNELS, TIMES);
}

/* The loop over microbatches: each round is a call. An instruction that runs twice in each round,
 * and one that the compiler moved in front of the loop. */
static void test_microbatches_are_calls(void **state) {
  (void)state;
  static const planted KERNELS[] = {{0, 1, "fusion.3"},   {10, 12, "fusion.2"},  {12, 14, "fusion.2"},
                                    {14, 20, "fusion.1"}, {30, 33, "fusion.2"},  {33, 36, "fusion.2"},
                                    {36, 40, "fusion.1"}, {50, 60, "fusion.10"}, {60, 70, "fusion.10"}};
  static const wanted TIMES[] = {
      {DOWN, 0, 0, 7}, {UP, 0, 10, 14}, {UP, 1, 30, 36}, {DOWN, 1, 36, 40}, {ADAMW, 0, 50, 70}};
  graph.accumulate = 2;
  CHECK(KERNELS, TIMES);
  graph.accumulate = 1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fields_are_read),
      cmocka_unit_test(test_damaged_fields_are_refused),
      cmocka_unit_test(test_instructions_belong_to_ops),
      cmocka_unit_test(test_damaged_programs_are_refused),
      cmocka_unit_test(test_kernels_of_a_gpu),
      cmocka_unit_test(test_the_innermost_instruction_counts),
      cmocka_unit_test(test_kernels_of_a_tpu),
      cmocka_unit_test(test_profiles_without_kernels_are_refused),
      cmocka_unit_test(test_huge_times_are_left_out),
      cmocka_unit_test(test_damaged_profiles_are_harmless),
      cmocka_unit_test(test_a_real_profile),
      cmocka_unit_test(test_kernels_of_an_op_are_added),
      cmocka_unit_test(test_overlaps_count_once),
      cmocka_unit_test(test_microbatches_are_calls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
