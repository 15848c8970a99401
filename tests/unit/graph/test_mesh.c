/* test_mesh.c - tests the option of meshes. If a number does not divide, the error names a number
 * that does. */
#include "unit/graph/fixture.h"
#include "graph/mesh/place.h"

static void refused_text(const char *text, const char *what) {
  rf_mesh mesh;
  rf_error error = {0};
  assert_int_equal(rf_mesh_parse(text, -1, &mesh, &error), RAFTER_INVALID);
  if (!strstr(error.message, what)) fail_msg("%s: expected '%s' in '%s'", text, what, error.message);
}

static void test_option(void **state) {
  (void)state;
  rf_mesh mesh;
  rf_error error = {0};
  char text[160];
  assert_int_equal(rf_mesh_parse("data=2,fsdp=16,tensor=4@d2d", -1, &mesh, &error), RAFTER_OK);
  assert_int_equal(rf_mesh_chips(&mesh), 128);
  assert_int_equal(mesh.zero, 3);
  assert_int_equal(mesh.pinned, RF_AXIS_BIT(RF_AXIS_TENSOR));
  assert_string_equal(rf_mesh_text(&mesh, text), "data=2, fsdp=16, tensor=4");
  assert_int_equal(rf_mesh_copies(&mesh), 32);
  assert_int_equal(rf_mesh_parse("", 1, &mesh, &error), RAFTER_OK);
  assert_string_equal(rf_mesh_text(&mesh, text), "one chip");
  refused_text("rows=2", "unknown axis");
  refused_text("data", "unknown axis");
  refused_text("data=0", "bad number");
  refused_text("data=-1", "bad number");
  refused_text("data=2x", "bad number");
  refused_text("data=", "bad number");
  refused_text("data=99999999", "bad number");
  refused_text("data=2,data=2", "twice");
  refused_text("data=2@d2d,fsdp=2@d2d", "two axes");
  refused_text("data=8192,fsdp=8192", "too many chips");
}

/* Every chip has its own coordinates, and its rank in all axes together is its number. */
static void test_places(void **state) {
  (void)state;
  rf_mesh mesh = {.of = {[RF_AXIS_DATA] = 3, [RF_AXIS_FSDP] = 2, [RF_AXIS_TENSOR] = 4}};
  for (int64_t chip = 0; chip < 24; chip++) {
    int32_t place[RF_AXES];
    rf_place_of(&mesh, chip, place);
    assert_int_equal(rf_mesh_rank(&mesh, 0xff, place), chip);
    assert_int_equal(rf_mesh_rank(&mesh, RF_AXIS_BIT(RF_AXIS_TENSOR), place), chip % 4);
    assert_int_equal(rf_mesh_rank(&mesh, RF_AXIS_BIT(RF_AXIS_DATA), place), chip / 8);
  }
}

static void refused_mesh(const char *spec, rf_build_options options, const char *text, const char *what,
                         const char *hint) {
  rf_model model = fixture_model(spec);
  rf_error error = {0};
  if (rf_mesh_parse(text, 3, &options.mesh, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_int_equal(rf_mesh_check(&options.mesh, &model, &options, &error), RAFTER_INVALID);
  if (!strstr(error.message, what) || !strstr(error.hint, hint))
    fail_msg("%s: expected '%s' and '%s', got '%s' and '%s'", text, what, hint, error.message, error.hint);
}

static void test_what_does_not_divide(void **state) {
  (void)state;
  rf_build_options train = fixture_train(RF_F32, 1, 0, 0), generate = fixture_generate(RF_F32, 4, 4);
  train.microbatch = 6;
  refused_mesh(TINY_LLAMA, train, "tensor=3", "the heads", "1, 2 or 4");
  refused_mesh(TINY_LLAMA, train, "sequence=4", "the key and value heads", "1 or 2");
  refused_mesh("llama:layers=2,width=64,heads=4,ff=90,vocab=512,seq=64", train, "tensor=4",
               "the width of the MLP", "1, 2, 3, 5, 6, 9, 10");
  refused_mesh(TINY_LLAMA, train, "data=4", "expected a multiple, got 6 sequences", "multiple of 4");
  refused_mesh(TINY_LLAMA, train, "data=2,fsdp=2", "fsdp = 4", "multiple of 4");
  refused_mesh(TINY_LLAMA, generate, "data=3", "got 4 sequences", "multiple of 3");
  train.seq = 31;
  refused_mesh(TINY_LLAMA, train, "tensor=2", "the sequence", "1 or 31");
}

/* Padding may not double a dimension. So fsdp may be at most about twice the longest dimension of
 * the blocks' matrices (here 192). Smaller matrices then stay whole. */
static void test_fsdp_that_shards_nothing(void **state) {
  (void)state;
  static const struct {
    int32_t fsdp;
    bool fits;
  } rows[] = {{64, true}, {256, true}, {1024, false}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_model model = fixture_model("llama:layers=2,width=64,heads=4,ff=90,vocab=4096,seq=64");
    rf_build_options options = fixture_train(RF_F32, 1, 0, 0);
    rf_graph *graph = NULL;
    rf_error error = {0};
    options.microbatch = rows[i].fsdp;
    options.mesh = (rf_mesh){.zero = 3, .of = {[RF_AXIS_FSDP] = rows[i].fsdp}};
    rf_status status = rf_graph_build(&model, &options, "shard", &graph, &error);
    assert_int_equal(status, rows[i].fits ? RAFTER_OK : RAFTER_INVALID);
    if (!rows[i].fits) {
      assert_non_null(strstr(error.message, "too many chips along fsdp"));
      assert_non_null(strstr(error.message, "at most 192"));
      assert_non_null(strstr(error.hint, "data=N,fsdp=M"));
    }
    rf_graph_free(graph);
  }
}

/* Along the axes of rf_mesh_apart, no op of a generation exchanges anything. Along other axes with
 * copies of the model, some op does. */
static void test_copies_that_are_apart(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int zero;
    rf_axes apart;
  } rows[] = {{"data=2", 0, RF_AXIS_BIT(RF_AXIS_DATA)},
              {"data=2", 2, RF_AXIS_BIT(RF_AXIS_DATA)},
              {"data=2", 3, 0},
              {"fsdp=2", 3, 0},
              {"data=2,fsdp=2", 3, RF_AXIS_BIT(RF_AXIS_DATA)},
              {"data=2,tensor=2", 0, RF_AXIS_BIT(RF_AXIS_DATA)},
              {"data=2,context=2", 0, RF_AXIS_BIT(RF_AXIS_DATA)},
              {"tensor=2", 0, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_model model = fixture_model(TINY_LLAMA);
    rf_build_options options = {
        .job = RF_JOB_GENERATE, .dtype = RF_F32, .seq = 32, .microbatch = 8, .sequences = 8, .rows = 8};
    rf_graph *graph = NULL;
    rf_error error = {0};
    rf_axes used = 0;
    assert_int_equal(rf_mesh_parse(rows[i].text, rows[i].zero, &options.mesh, &error), RAFTER_OK);
    assert_int_equal(rf_mesh_apart(&options.mesh), rows[i].apart);
    if (rf_graph_build(&model, &options, NULL, &graph, &error) != RAFTER_OK)
      fail_msg("%s: %s", rows[i].text, error.message);
    for (int o = 0; o < graph->op_count; o++)
      if (rf_op_is_exchange(graph->op[o].def)) used |= graph->op[o].attr.axes;
    assert_int_equal(used, rf_mesh_live(&options.mesh, (rf_axes)~rows[i].apart));
    rf_graph_free(graph);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_option),
      cmocka_unit_test(test_places),
      cmocka_unit_test(test_what_does_not_divide),
      cmocka_unit_test(test_fsdp_that_shards_nothing),
      cmocka_unit_test(test_copies_that_are_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
