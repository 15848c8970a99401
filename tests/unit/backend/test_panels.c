/* test_panels.c - tests packed matrices. A packed matrix unpacks to the same bytes. A product with
 * a packed matrix has the bits of the product with the same matrix widened to f32. Every type,
 * parts of several types, every op that takes a packed matrix, every instruction set and the
 * reference are tested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/panels.h"
#include "support/files.h"
#include "support/compare.h"
#include "support/op_harness.h"

static const int TYPES[] = {RF_Q_F32,  RF_Q_BF16, RF_Q_F16,  RF_Q_Q8_0, RF_Q_Q4_0, RF_Q_Q4_1, RF_Q_Q5_0,
                            RF_Q_Q5_1, RF_Q_Q2_K, RF_Q_Q3_K, RF_Q_Q4_K, RF_Q_Q5_K, RF_Q_Q6_K, RF_Q_INT8};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES };

/* ---- the bytes ------------------------------------------------------------------------------- */

static void packed_bytes_come_out_again(void **state) {
  (void)state;
  for (int t = 0; t < TYPE_COUNT; t++) {
    const rf_quant_type *type = rf_quant_type_of(TYPES[t]);
    for (int outputs = 1; outputs <= 131; outputs += 13) {
      int64_t inner = type->values == 1 ? 75 : 2 * type->values, blocks = inner / type->values,
              row_bytes = type->head + blocks * type->bytes;
      rf_panels panels = {.inner = inner, .parts = 1, .part = {{type, outputs}}};
      uint8_t *stored = malloc((size_t)(outputs * row_bytes)),
              *packed = malloc((size_t)rf_panels_bytes(&panels)), back[256];
      assert_int_equal(rf_panels_bytes(&panels), (outputs + 15) / 16 * 16 * row_bytes);
      for (int64_t i = 0; i < outputs * row_bytes; i++) stored[i] = (uint8_t)(i * 2654435761u >> 13);
      memset(packed, 0xff, (size_t)rf_panels_bytes(&panels));
      for (int64_t p = 0; p < rf_panels_count(&panels); p++) {
        rf_panel panel = rf_panels_at(&panels, p);
        const void *row[RF_PANEL_LANES] = {NULL};
        for (int i = 0; i < panel.used; i++) row[i] = stored + (panel.first + i) * row_bytes;
        rf_panel_pack(&panel, inner, row, packed + panel.offset);
      }
      for (int o = 0; o < outputs; o++) {
        rf_panel panel = rf_panels_find(&panels, o);
        for (int64_t b = 0; b < blocks; b++) {
          rf_panel_block(&panel, packed + panel.offset, (int)(o - panel.first), b, back);
          assert_memory_equal(back, stored + o * row_bytes, (size_t)type->head);
          assert_memory_equal(back + type->head, stored + o * row_bytes + type->head + b * type->bytes,
                              (size_t)type->bytes);
        }
      }
      rf_panel last = rf_panels_at(&panels, rf_panels_count(&panels) - 1);
      for (int lane = last.used; lane < last.lanes; lane++) { /* Padding is zeros. */
        uint8_t zeros[256] = {0};
        rf_panel_block(&last, packed + last.offset, lane, blocks - 1, back);
        assert_memory_equal(back, zeros, (size_t)(type->head + type->bytes));
      }
      free(stored);
      free(packed);
    }
  }
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct product {
  const char *op;
  bool table; /* whether the matrix is (outputs, inner) */
  bool fast;  /* rounds x to 8 bits */
} product;
static const product PRODUCTS[] = {
    {"matmul", false, false},           {"matmul", true, false},      {"matmul_dx", false, false},
    {"matmul_dx", true, false},         {"head_logits", true, false}, {"head_logits", false, false},
    {"head_score", true, false},        {"head_loss", true, false},   {"head_loss_grad", true, false},
    {"head_loss_grad", false, false},   {"embed", true, false},       {"matmul_experts", false, false},
    {"matmul_experts_dx", false, false}};
enum { EXPERTS = 3 }; /* of which the second has no row */
static bool has_experts(const product *p) { return !strncmp(p->op, "matmul_experts", 14); }
static rf_panels panels_of(const product *p, const rf_panels *like) {
  rf_panels own = *like;
  own.outputs_first = p->table;
  own.experts = has_experts(p) ? EXPERTS : 0;
  return own;
}

static rf_dtype plain_dtype = RF_F32;
/* Adds the op on `rows` rows, with a weight that is packed or plain in plain_dtype. Returns the
 * tensor of the weight. */
static int build(op_harness *h, const product *p, const rf_panels *like, bool packed, int rows) {
  int64_t outputs = op_panels_outputs(like), inner = like->inner, experts = rf_panels_experts(like);
  op_fill normal = {1, 0}, small = {0.1, 0};
  int w = packed ? op_packed(h, "w", like, small)
          : like->outputs_first
              ? op_tensor(h, "w", RF_CLASS_WEIGHT, plain_dtype, small, OP_SHAPE(outputs, inner))
              : op_tensor(h, "w", RF_CLASS_WEIGHT, plain_dtype, small, OP_SHAPE(experts * inner, outputs));
  rf_attr attr = {.head = {.transpose = like->outputs_first, .fast = p->fast, .top = 3}},
          linear = {.matmul = {.transpose = like->outputs_first, .fast = p->fast}};
  int32_t ids[128], positions[128];
  for (int i = 0; i < rows; i++) {
    ids[i] = (int32_t)(i * 7919 % outputs);
    positions[i] = i;
  }
  if (!strcmp(p->op, "embed")) {
    int inputs[] = {op_ids(h, "tokens", rows, ids), op_ids(h, "positions", rows, positions), w, RF_NONE},
        outs[] = {RF_WANTED};
    attr = (rf_attr){.embed = {.scale = 3, .dtype = RF_F32}}; /* as in the plain table */
    op_apply(h, "embed", 4, inputs, 1, outs, &attr);
    return w;
  }
  bool dx = !strcmp(p->op, "matmul_dx") || !strcmp(p->op, "matmul_experts_dx"),
       matmul = !strcmp(p->op, "matmul");
  int x = op_tensor(h, "x", RF_CLASS_ACTIVATION, h->dtype, normal, OP_SHAPE(rows, dx ? outputs : inner));
  if (has_experts(p)) {
    int32_t starts[EXPERTS + 1] = {0, rows / 2, rows / 2, rows};
    attr = (rf_attr){.experts = {.fast = p->fast, .experts = EXPERTS, .used = 1}};
    op_apply(h, p->op, 3, (int[]){x, w, op_ids(h, "starts", EXPERTS + 1, starts)}, 1, (int[]){RF_WANTED},
             &attr);
    return w;
  }
  if (dx) {
    op_apply(h, "matmul_dx", 3, (int[]){x, w, RF_NONE}, 2, (int[]){RF_WANTED, RF_NONE}, &linear);
    return w;
  }
  int bias = op_tensor(h, "bias", RF_CLASS_WEIGHT, RF_F32, normal, OP_SHAPE(outputs));
  if (matmul) {
    op_apply(h, "matmul", 4, (int[]){x, w, bias, RF_NONE}, 2, (int[]){RF_WANTED, RF_NONE}, &linear);
    return w;
  }
  int labels = op_ids(h, "labels", rows, !strcmp(p->op, "head_logits") ? positions : ids);
  int outs[] = {RF_WANTED, RF_WANTED, RF_WANTED, RF_NONE, RF_NONE}, count = !strcmp(p->op, "head_logits") ? 2
                                                                            : !strcmp(p->op, "head_loss_grad")
                                                                                ? 5
                                                                                : 3;
  op_apply(h, p->op, 4, (int[]){x, w, bias, labels}, count, outs, &attr);
  return w;
}

/* Writes the packed matrix's values into the plain matrix, with the functions of the file
 * format. */
static void widen(op_harness *to, const op_harness *from, int w) {
  const rf_panels *all = &from->graph->tensor[w].panels, one = rf_panels_one(all);
  int64_t outputs = op_panels_outputs(all), inner = one.inner;
  float *values = malloc((size_t)inner * sizeof *values), *out = op_data(to, w);
  rf_bf16 *half = op_data(to, w);
  for (int64_t i = 0; i < rf_panels_experts(all) * outputs; i++) {
    int64_t e = i / outputs, o = i % outputs;
    rf_panels_read(&one, (char *)op_data(from, w) + e * rf_panels_bytes(&one), o, 0, inner, values);
    for (int64_t k = 0; k < inner; k++) {
      int64_t at = one.outputs_first ? o * inner + k : (e * inner + k) * outputs + o;
      if (plain_dtype == RF_BF16) half[at] = rf_f32_to_bf16(values[k]);
      else out[at] = values[k];
    }
  }
  free(values);
}

/* Fills outputs with NaN, so that an element which a kernel does not write is found. */
static void poison_outputs(op_harness *h) {
  const rf_op *op = &h->graph->op[0];
  for (int i = 0; i < op->output_count; i++)
    if (op->output[i] >= 0)
      memset(op_data(h, op->output[i]), 0xff, (size_t)rf_tensor_bytes(&h->graph->tensor[op->output[i]]));
}

/* Runs the plain product once, on the first instruction set, and the packed product on each. */
static void same(const product *p, const rf_panels *panels, rf_dtype dtype, int rows,
                 const rf_backend *backend, rf_isa from, rf_isa to, int threads) {
  op_harness *packed = op_harness_new(dtype, rows), *plain = op_harness_new(dtype, rows);
  rf_panels own = panels_of(p, panels);
  int w = build(packed, p, &own, true, rows);
  assert_int_equal(build(plain, p, &own, false, rows), w);
  op_fill_all(packed, 7);
  op_fill_all(plain, 7);
  widen(plain, packed, w);
  op_run_range(plain, 0, 1, backend, from, threads);
  const rf_op *op = &packed->graph->op[0];
  for (rf_isa isa = from; isa <= to; isa++) {
    if (!rf_isa_runs(isa)) continue;
    poison_outputs(packed);
    op_run_range(packed, 0, 1, backend, isa, threads);
    for (int i = 0; i < op->output_count; i++) {
      char name[64];
      compare_report report;
      if (op->output[i] < 0) continue;
      if (!compare_equal(packed->graph->tensor[op->output[i]].dtype, op_data(packed, op->output[i]),
                         op_data(plain, op->output[i]), op_count(packed, op->output[i]), &report))
        fail_msg("%s%s of %s, %d rows, k %lld, isa %s, output %d: packed is not widened: %s", p->op,
                 p->table ? " (table)" : "", rf_panels_name(&own, name), rows, (long long)own.inner,
                 rf_isa_name(isa), i, report.text);
    }
  }
  op_harness_free(packed);
  op_harness_free(plain);
}

static void products_of(const rf_panels *panels, rf_dtype dtype, int rows, int threads) {
  for (size_t p = 0; p < sizeof PRODUCTS / sizeof *PRODUCTS; p++) {
    rf_isa most = rf_isa_detect() < RF_ISA_AVX512 ? rf_isa_detect() : RF_ISA_AVX512;
    same(&PRODUCTS[p], panels, dtype, rows, &RF_BACKEND_CPU,
         rows <= 3 || most == RF_ISA_BASE ? RF_ISA_BASE : RF_ISA_AVX2, most, threads);
    if (rows == 2 && panels->inner <= 96)
      same(&PRODUCTS[p], panels, dtype, rows, &RF_BACKEND_REFERENCE, RF_ISA_BASE, RF_ISA_BASE, 1);
  }
}

static void every_type_is_its_widened_self(void **state) {
  (void)state;
  static const int ROWS[] = {1, 2, 3, 16, 21};
  for (int t = 0; t < TYPE_COUNT; t++) {
    const rf_quant_type *type = rf_quant_type_of(TYPES[t]);
    rf_panels panels = {.inner = type->values == 256  ? 512
                                 : type->values == 32 ? 96
                                                      : 75,
                        .parts = 1,
                        .part = {{type, 97}}};
    for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++)
      products_of(&panels, RF_F32, ROWS[r], 1 + (int)r % 2);
    products_of(&panels, RF_BF16, 4, 2);
  }
}

static void parts_have_types_of_their_own(void **state) {
  (void)state;
  const rf_quant_type *q4 = rf_quant_type_of(RF_Q_Q4_K), *q6 = rf_quant_type_of(RF_Q_Q6_K),
                      *q8 = rf_quant_type_of(RF_Q_Q8_0);
  rf_panels panels[] = {{.inner = 256, .parts = 3, .part = {{q4, 128}, {q4, 32}, {q6, 32}}},
                        {.inner = 256, .parts = 3, .part = {{q4, 70}, {q8, 5}, {q6, 9}}},
                        {.inner = 768, .parts = 2, .part = {{q8, 37}, {q6, 41}}}};
  for (int i = 0; i < 3; i++)
    for (int rows = 1; rows <= 41; rows += 8) products_of(&panels[i], RF_F32, rows, 2);
}

static void rows_do_not_depend_on_their_number(void **state) {
  (void)state;
  const rf_quant_type *type = rf_quant_type_of(RF_Q_Q5_0);
  rf_panels panels = {.inner = 160, .parts = 1, .part = {{type, 130}}};
  for (int rows = 1; rows <= 18; rows++)
    same(&PRODUCTS[0], &panels, RF_F32, rows, &RF_BACKEND_CPU, rf_isa_detect(), rf_isa_detect(), 2);
}

/* If tiles multiply bf16 as bf16, the bits are those of the plain bf16 matrix, wherever parts
 * end. */
static void bf16_on_tiles_is_plain_bf16(void **state) {
  (void)state;
  const rf_quant_type *bf16 = rf_quant_type_of(RF_Q_BF16);
  const rf_panels panels[] = {{.inner = 75, .parts = 1, .part = {{bf16, 97}}},
                              {.inner = 200, .parts = 3, .part = {{bf16, 70}, {bf16, 5}, {bf16, 137}}}};
  static const int ROWS[] = {1, 2, 16, 17, 40};
  if (rf_isa_detect() < RF_ISA_AMX) skip_for("no matrix tiles on this CPU");
  plain_dtype = RF_BF16;
  for (int i = 0; i < 2; i++)
    for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++)
      for (size_t p = 0; p < sizeof PRODUCTS / sizeof *PRODUCTS; p++)
        if (strcmp(PRODUCTS[p].op, "embed"))
          same(&PRODUCTS[p], &panels[i], RF_BF16, ROWS[r], &RF_BACKEND_CPU, RF_ISA_AMX, RF_ISA_AMX,
               1 + (int)r % 2);
  plain_dtype = RF_F32;
}

/* With one row, the kernel alternates between neighbouring panels, also if a part ends between
 * them. */
static void panels_in_turns(void **state) {
  (void)state;
  static const int TURNED[] = {RF_Q_F32, RF_Q_BF16, RF_Q_F16, RF_Q_Q8_0};
  for (size_t t = 0; t < sizeof TURNED / sizeof *TURNED; t++) {
    const rf_quant_type *type = rf_quant_type_of(TURNED[t]), *f32 = rf_quant_type_of(RF_Q_F32);
    rf_panels panels = {.inner = 96, .parts = 3, .part = {{type, 70}, {f32, 64}, {type, 2100}}};
    if (type->values == 1) panels.inner = 75;
    rf_isa most = rf_isa_detect() < RF_ISA_AVX512 ? rf_isa_detect() : RF_ISA_AVX512;
    for (int threads = 1; threads <= 2; threads++)
      same(&PRODUCTS[0], &panels, RF_F32, 1, &RF_BACKEND_CPU, RF_ISA_BASE, most, threads);
  }
  plain_dtype = RF_BF16;
  const rf_quant_type *bf16 = rf_quant_type_of(RF_Q_BF16);
  const rf_panels panels[] = {{.inner = 75, .parts = 3, .part = {{bf16, 64}, {bf16, 70}, {bf16, 2100}}},
                              {.inner = 160, .parts = 1, .part = {{bf16, 2112}}}};
  for (int i = 0; i < 2 && rf_isa_detect() >= RF_ISA_AMX; i++)
    for (int threads = 1; threads <= 2; threads++)
      same(&PRODUCTS[0], &panels[i], RF_BF16, 1, &RF_BACKEND_CPU, RF_ISA_AMX, RF_ISA_AMX, threads);
  plain_dtype = RF_F32;
}

/* ---- activations in 8 bits ------------------------------------------------------------------- */

/* Compares with the reference, which reads values one by one. Both round rows in the same way, so
 * only the rounding of sums differs. Every instruction set and number of threads gives the same
 * bits. */
static void rounded_with(const product *p, const rf_panels *panels, rf_dtype dtype, int rows,
                         void (*set)(op_harness *h)) {
  compare_bound bound = compare_bound_of(dtype, RF_F32, panels->inner);
  rf_panels own = panels_of(p, panels);
  op_harness *plain = op_harness_new(dtype, rows), *packed = op_harness_new(dtype, rows);
  build(plain, p, &own, true, rows);
  build(packed, p, &own, true, rows);
  op_fill_all(plain, 7);
  op_fill_all(packed, 7);
  if (set) {
    set(plain);
    set(packed);
  }
  op_run_range(plain, 0, 1, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
  const rf_op *op = &packed->graph->op[0];
  void *first[RF_MAX_OUTPUTS] = {NULL}; /* outputs of the first instruction set */
  for (rf_isa isa = RF_ISA_AVX2; isa <= rf_isa_detect(); isa++) {
    if (!rf_isa_runs(isa)) continue;
    poison_outputs(packed);
    op_run_range(packed, 0, 1, &RF_BACKEND_CPU, isa, 1 + (int)isa % 2);
    for (int i = 0; i < op->output_count; i++) {
      int id = op->output[i];
      compare_report report;
      /* The choice of likeliest ids may depend on a rounding error. */
      if (id < 0 || packed->graph->tensor[id].dtype == RF_I32) continue;
      rf_dtype of = packed->graph->tensor[id].dtype;
      if (!compare_close(of, op_data(packed, id), op_data(plain, id), op_count(packed, id), bound, &report) ||
          (first[i] && !compare_equal(of, op_data(packed, id), first[i], op_count(packed, id), &report)))
        fail_msg("%s%s of %s, %d rows, k %lld, isa %s, output %d: %s", p->op, p->table ? " (table)" : "",
                 own.part[0].type->name, rows, (long long)own.inner, rf_isa_name(isa), i, report.text);
      size_t bytes = (size_t)rf_tensor_bytes(&packed->graph->tensor[id]);
      if (!first[i]) first[i] = memcpy(malloc(bytes), op_data(packed, id), bytes);
    }
  }
  for (int i = 0; i < RF_MAX_OUTPUTS; i++) free(first[i]);
  op_harness_free(plain);
  op_harness_free(packed);
}

static void rounded(const product *p, const rf_panels *panels, rf_dtype dtype, int rows) {
  rounded_with(p, panels, dtype, rows, NULL);
}

static const product ROUNDED[] = {{"matmul", false, true},     {"matmul", true, true},
                                  {"head_logits", true, true}, {"head_score", true, true},
                                  {"head_loss", true, true},   {"matmul_experts", false, true}};

static void fast_products_round_their_rows_alone(void **state) {
  (void)state;
  static const int ROWS[] = {1, 2, 3, 5, 8, 17};
  for (int t = 0; t < TYPE_COUNT; t++) {
    const rf_quant_type *type = rf_quant_type_of(TYPES[t]);
    rf_panels panels = {
        .inner = type->values == 256 ? 512 : 288, .parts = 2, .part = {{type, 97}, {type, 64}}};
    if (!rf_panels_have_codes(&panels)) continue;
    for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++)
      for (size_t p = 0; p < sizeof ROUNDED / sizeof *ROUNDED; p++)
        rounded(&ROUNDED[p], &panels, r % 2 ? RF_F32 : RF_BF16, ROWS[r]);
  }
  /* blocks of 256 and of 32 values next to each other */
  const rf_quant_type *q4 = rf_quant_type_of(RF_Q_Q4_K), *q6 = rf_quant_type_of(RF_Q_Q6_K),
                      *q8 = rf_quant_type_of(RF_Q_Q8_0);
  rf_panels mixed = {.inner = 512, .parts = 3, .part = {{q4, 70}, {q8, 37}, {q6, 9}}};
  for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++) rounded(&ROUNDED[0], &mixed, RF_F32, ROWS[r]);
}

/* The kernels for 1, 2, 4 and 8 rows, and strips and tiles that are full or not. */
static void fast_products_of_every_number_of_rows(void **state) {
  (void)state;
  for (int t = 0; t < TYPE_COUNT; t++) {
    const rf_quant_type *type = rf_quant_type_of(TYPES[t]);
    rf_panels panels = {.inner = type->values == 256 ? 256 : 96, .parts = 1, .part = {{type, 113}}};
    if (!rf_panels_have_codes(&panels)) continue;
    for (int rows = 1; rows <= 70; rows += rows < 20 ? 1 : 10) rounded(&ROUNDED[0], &panels, RF_F32, rows);
  }
}

/* Sets every code of the matrix to `byte`, and every x to a number of the same magnitude. */
static void set_codes(op_harness *h, int byte) {
  const rf_op *op = &h->graph->op[0];
  const rf_panels *panels = &h->graph->tensor[op->input[1]].panels;
  float *x = op_data(h, op->input[0]);
  for (int64_t i = 0; i < op_count(h, op->input[0]); i++) x[i] = byte == 0x80 && i % 5 > 2 ? -1 : 1;
  for (int64_t i = 0; i < rf_panels_count(panels); i++) {
    rf_panel panel = rf_panels_at(panels, i);
    char *block = (char *)op_data(h, op->input[1]) + panel.offset;
    int64_t halves = 2 * panel.form->halves * panel.lanes, blocks = panels->inner / panel.type->values;
    for (int64_t b = 0; b < blocks; b++, block += panel.block_bytes)
      memset(block + halves, byte, (size_t)(panel.block_bytes - halves));
  }
}
static void set_all_ones(op_harness *h) { set_codes(h, 0xff); }
static void set_smallest(op_harness *h) { set_codes(h, 0x80); }
static void fast_sums_hold_the_largest_codes(void **state) {
  (void)state;
  for (int t = 0; t < TYPE_COUNT; t++) {
    const rf_quant_type *type = rf_quant_type_of(TYPES[t]);
    rf_panels panels = {.inner = 512, .parts = 1, .part = {{type, 64}}};
    if (!rf_panels_have_codes(&panels)) continue;
    for (int rows = 1; rows <= 17; rows += 4) {
      rounded_with(&ROUNDED[0], &panels, RF_F32, rows, set_all_ones);
      rounded_with(&ROUNDED[0], &panels, RF_F32, rows, set_smallest);
    }
  }
}

static void fast_panels_in_turns(void **state) {
  (void)state;
  const rf_quant_type *q4 = rf_quant_type_of(RF_Q_Q4_K), *q6 = rf_quant_type_of(RF_Q_Q6_K),
                      *q8 = rf_quant_type_of(RF_Q_Q8_0);
  const rf_panels panels[] = {{.inner = 768, .parts = 3, .part = {{q6, 70}, {q8, 64}, {q6, 2100}}},
                              {.inner = 512, .parts = 2, .part = {{q4, 1090}, {q6, 1100}}}};
  for (int i = 0; i < 2; i++)
    for (int rows = 1; rows <= 8; rows += 7) rounded(&ROUNDED[0], &panels[i], RF_F32, rows);
}

/* The bits of a row do not depend on the other rows. */
static void fast_rows_do_not_depend_on_their_number(void **state) {
  (void)state;
  const rf_quant_type *q4 = rf_quant_type_of(RF_Q_Q4_K), *q6 = rf_quant_type_of(RF_Q_Q6_K),
                      *q8 = rf_quant_type_of(RF_Q_Q8_0);
  rf_panels panels = {.inner = 512, .parts = 3, .part = {{q6, 70}, {q8, 18}, {q4, 42}}};
  float whole[18 * 130];
  for (int rows = 18; rows >= 1; rows--) {
    op_harness *h = op_harness_new(RF_F32, rows);
    build(h, &ROUNDED[0], &panels, true, rows);
    op_fill_all(h, 7);
    op_run_range(h, 0, 1, &RF_BACKEND_CPU, rf_isa_detect(), 2);
    const float *got = op_data(h, h->graph->op[0].output[0]);
    if (rows == 18) memcpy(whole, got, sizeof whole);
    assert_memory_equal(got, whole, (size_t)rows * 130 * sizeof *got);
    op_harness_free(h);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(packed_bytes_come_out_again),
      cmocka_unit_test(every_type_is_its_widened_self),
      cmocka_unit_test(parts_have_types_of_their_own),
      cmocka_unit_test(rows_do_not_depend_on_their_number),
      cmocka_unit_test(bf16_on_tiles_is_plain_bf16),
      cmocka_unit_test(panels_in_turns),
      cmocka_unit_test(fast_products_round_their_rows_alone),
      cmocka_unit_test(fast_products_of_every_number_of_rows),
      cmocka_unit_test(fast_sums_hold_the_largest_codes),
      cmocka_unit_test(fast_panels_in_turns),
      cmocka_unit_test(fast_rows_do_not_depend_on_their_number),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
