/* tuned.c - block sizes of products that were tuned on one CPU. The file has the shape classes, the
 * JSON in a machine file, and the choice for an op. */
#include "machine/tuned.h"

#include "machine/parts.h"

#include <stdio.h>
#include <string.h>

/* Limits for block sizes in a machine file. Larger blocks would need larger workspaces. */
static const struct {
  const char *name;
  int64_t least, most;
} FIELDS[] = {{"kc", 16, 1 << 16}, {"a_bytes", 1 << 12, 1 << 30}, {"nc", 64, 1 << 24}};
enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

/* Bounds between shape classes. ROWS_*: numbers of rows of the product's first input. WEIGHTS_*:
 * numbers of elements of the product's second input. */
enum { ROWS_FEW = 128, ROWS_SOME = 512, WEIGHTS_FEW = 1 << 20, WEIGHTS_SOME = 1 << 22 };
static const char *const CLASSES[RF_TUNED_CLASSES] = {
    "rows<=128 weights<=1Mi", "rows<=128 weights<=4Mi", "rows<=128 weights>4Mi",
    "rows<=512 weights<=1Mi", "rows<=512 weights<=4Mi", "rows<=512 weights>4Mi",
    "rows>512 weights<=1Mi",  "rows>512 weights<=4Mi",  "rows>512 weights>4Mi",
};
/* tuning measured no matrix with a smaller dimension, such as the matrix of an adapter */
enum { SIDE_MIN = 256 };

const char *rf_tuned_class_name(int class) {
  return class >= 0 && class < RF_TUNED_CLASSES ? CLASSES[class] : "none";
}

int rf_tuned_class(const rf_graph *graph, const rf_op *op) {
  if (op->def->timing != RF_TIMING_PRODUCT || op->attr.matmul.fast || op->input_count < 2 ||
      op->input[0] == RF_NONE || op->input[1] == RF_NONE)
    return -1;
  const rf_tensor *a = &graph->tensor[op->input[0]], *b = &graph->tensor[op->input[1]];
  if (a->rank != 2 || b->rank != 2 || a->dtype != b->dtype || (a->dtype != RF_F32 && a->dtype != RF_BF16))
    return -1;
  int64_t rows = a->shape[0], inner = op->def->product == RF_PRODUCT_DW ? a->shape[1] : b->shape[0],
          outer = b->shape[1];
  if (rows <= RF_FEW_ROWS || inner < SIDE_MIN || outer < SIDE_MIN) return -1;
  int64_t weights = inner * outer;
  return 3 * ((rows > ROWS_FEW) + (rows > ROWS_SOME)) + (weights > WEIGHTS_FEW) + (weights > WEIGHTS_SOME);
}

rf_blocks rf_tuned_blocks(const rf_tuned *tuned, const rf_graph *graph, const rf_op *op, const char *kernel,
                          int threads) {
  const rf_blocks own = {0};
  if (!tuned->count || !tuned->here || tuned->threads != threads) return own;
  int class = rf_tuned_class(graph, op);
  if (class < 0) return own;
  rf_dtype dtype = graph->tensor[op->input[0]].dtype;
  const char *name = op->def->name;
  for (int i = 0; i < tuned->count; i++) {
    const rf_tuned_row *row = &tuned->row[i];
    if (row->class == class && row->dtype == dtype && !strcmp(row->op, name) && !strcmp(row->kernel, kernel))
      return row->best;
  }
  return own;
}

/* ---- files ----------------------------------------------------------------------------------- */

static rf_status parse_blocks(const json_t *object, const char *where, rf_blocks *blocks, rf_error *error) {
  int64_t *const at[FIELD_COUNT] = {&blocks->kc, &blocks->a_bytes, &blocks->nc};
  if (!json_is_object(object))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                   "%s: blocks are not an object (expected {\"kc\": ..., \"a_bytes\": ..., \"nc\": ...})",
                   where);
  for (int i = 0; i < FIELD_COUNT; i++)
    RF_TRY(rf_json_int(object, FIELDS[i].name, where, FIELDS[i].least, FIELDS[i].most, at[i], error));
  return RAFTER_OK;
}

static rf_status parse_row(const json_t *object, const char *where, rf_tuned_row *row, rf_error *error) {
  char class[40] = "", dtype[16] = "";
  if (!json_is_object(object))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: a row is not an object", where);
  RF_TRY(rf_machine_text(object, "op", true, row->op, sizeof row->op, where, error));
  RF_TRY(rf_machine_text(object, "class", true, class, sizeof class, where, error));
  RF_TRY(rf_machine_text(object, "dtype", true, dtype, sizeof dtype, where, error));
  RF_TRY(rf_machine_text(object, "kernel", true, row->kernel, sizeof row->kernel, where, error));
  const rf_op_def *op = rf_op_find(row->op);
  if (!op || op->timing != RF_TIMING_PRODUCT)
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                   "%s: '%s' has no blocks to tune (expected matmul, matmul_dx or matmul_dw)", where,
                   row->op);
  if (rf_dtype_parse(dtype, &row->dtype, NULL) != RAFTER_OK ||
      (row->dtype != RF_F32 && row->dtype != RF_BF16))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: unknown dtype '%s' (expected f32 or bf16)",
                   where, dtype);
  for (row->class = 0; row->class < RF_TUNED_CLASSES; row->class ++)
    if (!strcmp(CLASSES[row->class], class)) break;
  if (row->class == RF_TUNED_CLASSES)
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                   "%s: unknown shape class '%s' (expected a class such as '%s')", where, class, CLASSES[0]);
  RF_TRY(parse_blocks(json_object_get(object, "default"), where, &row->usual, error));
  const json_t *best = json_object_get(object, "best");
  if (best && !json_is_null(best)) RF_TRY(parse_blocks(best, where, &row->best, error));
  RF_TRY(rf_json_float(object, "gain", where, -1, 1000, &row->gain, error));
  return rf_json_float(object, "spread", where, 0, 1000, &row->spread, error);
}

static bool same_key(const rf_tuned_row *a, const rf_tuned_row *b) {
  return a->class == b->class && a->dtype == b->dtype && !strcmp(a->op, b->op) &&
         !strcmp(a->kernel, b->kernel);
}

rf_status rf_tuned_parse(const json_t *object, const char *where, rf_tuned *tuned, rf_error *error) {
  char here[128], place[512];
  double threads = 0;
  if (!object) return RAFTER_OK;
  if (!json_is_object(object))
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: tuned is not an object", where);
  snprintf(place, sizeof place, "%.400s: tuned", where);
  RF_TRY(rf_machine_text(object, "cpu", true, tuned->cpu, sizeof tuned->cpu, place, error));
  RF_TRY(rf_json_float(object, "threads", place, 1, 65536, &threads, error));
  const json_t *rows = json_object_get(object, "rows");
  if (!json_is_array(rows) || json_array_size(rows) > RF_TUNED_ROWS)
    return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT, "%s: rows is not a list of at most %d rows", place,
                   RF_TUNED_ROWS);
  for (size_t i = 0; i < json_array_size(rows); i++) {
    rf_tuned_row *row = &tuned->row[i];
    snprintf(place, sizeof place, "%.400s: tuned row %zu", where, i);
    RF_TRY(parse_row(json_array_get(rows, i), place, row, error));
    for (size_t k = 0; k < i; k++)
      if (same_key(row, &tuned->row[k]))
        return RF_FAIL(error, RAFTER_FAILED, RF_MACHINE_HINT,
                       "%s: the same op, class, dtype and kernel as row %zu (expected each once)", place, k);
  }
  rf_machine_cpu(here);
  tuned->here = !strcmp(here, tuned->cpu);
  tuned->threads = (int)threads;
  tuned->count = (int)json_array_size(rows);
  return RAFTER_OK;
}

static json_t *blocks_json(const rf_blocks *b) {
  return json_pack("{sI sI sI}", "kc", (json_int_t)b->kc, "a_bytes", (json_int_t)b->a_bytes, "nc",
                   (json_int_t)b->nc);
}

json_t *rf_tuned_json(const rf_tuned *tuned) {
  json_t *rows = json_array();
  for (int i = 0; i < tuned->count; i++) {
    const rf_tuned_row *r = &tuned->row[i];
    json_array_append_new(rows, json_pack("{ss ss ss ss so so sf sf}", "op", r->op, "class",
                                          CLASSES[r->class], "dtype", rf_dtype_name(r->dtype), "kernel",
                                          r->kernel, "default", blocks_json(&r->usual), "best",
                                          r->best.kc ? blocks_json(&r->best) : json_null(), "gain", r->gain,
                                          "spread", r->spread));
  }
  return json_pack("{ss si so}", "cpu", tuned->cpu, "threads", tuned->threads, "rows", rows);
}
