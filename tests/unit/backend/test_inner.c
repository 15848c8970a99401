/* test_inner.c - products inside an op: the logits of the head and their gradients, the products of
 * experts and of adapters. The kernels of such a product depend on its number of rows. The kernels
 * that `inner` of a row chooses are compared with a plain rule, and every call must use them. */
#include "backend/cpu/product.h"
#include "support/op_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- every call uses the kernel that was chosen ---------------------------------------------- */

/* Copies of the chosen kernels whose functions count the call and then run the original. */
typedef struct spy {
  rf_gemm_kernel many, few;
  rf_gemm_path *many_path, *few_path;
  bool has_few;
} spy;
static spy spies[RF_MAX_INNER];
static const rf_kernel *spied;
static int many_calls, few_calls, wrong;

static const spy *spy_of(const rf_gemm *g) {
  for (int i = 0; i < RF_MAX_INNER; i++)
    if (g->inner && g->inner->kernel == &spies[i].many.inner) return &spies[i];
  fail_msg("%s computes a product without the kernels of the plan", spied->name);
  return NULL;
}
static void run_many(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace) {
  const spy *s = spy_of(g);
  many_calls++;
  wrong += s->has_few && g->m <= s->few.inner.max_rows;
  s->many_path(isa, g, threads, workspace);
}
static void run_few(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace) {
  const spy *s = spy_of(g);
  few_calls++;
  wrong += g->m > s->few.inner.max_rows;
  s->few_path(isa, g, threads, workspace);
}
static void spying(int level, const rf_graph *graph, const rf_op *op, rf_inner inner[RF_MAX_INNER]) {
  memset(spies, 0, sizeof spies);
  spied->inner(level, graph, op, inner);
  for (int i = 0; i < RF_MAX_INNER; i++) {
    spy *s = &spies[i];
    if (!inner[i].product) continue;
    s->many = *(const rf_gemm_kernel *)inner[i].kernel;
    s->many_path = s->many.path;
    s->many.path = run_many;
    inner[i].kernel = &s->many.inner;
    s->has_few = inner[i].few != NULL;
    if (!s->has_few) continue;
    s->few = *(const rf_gemm_kernel *)inner[i].few;
    s->few_path = s->few.path;
    s->few.path = run_few;
    inner[i].few = &s->few.inner;
  }
}

static void calls_use_what_was_chosen(const op_case *of, const op_size *size, rf_dtype dtype, rf_isa isa) {
  op_harness *h = op_case_build(of, size, dtype);
  const rf_op *op = &h->graph->op[h->subject];
  spied = rf_kernel_choose(&RF_BACKEND_CPU, isa, h->graph, op);
  if (spied->inner) {
    rf_kernel kernel = *spied;
    void *want[RF_MAX_OUTPUTS] = {0};
    kernel.inner = spying;
    many_calls = few_calls = wrong = 0;
    op_run_range(h, 0, h->subject, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
    op_reset(h, h->subject);
    op_run(h, h->subject, spied, 2, NULL);
    for (int i = 0; i < op->output_count; i++)
      if (op->output[i] >= 0) want[i] = op_copy(h, op->output[i]);
    op_reset(h, h->subject);
    op_run(h, h->subject, &kernel, 2, NULL);
    for (int i = 0; i < op->output_count; i++) {
      if (want[i])
        assert_memory_equal(op_data(h, op->output[i]), want[i],
                            (size_t)rf_tensor_bytes(&h->graph->tensor[op->output[i]]));
      free(want[i]);
    }
    if (wrong || many_calls + few_calls == 0)
      fail_msg("%s %s: %d calls, %d of them outside the rows of their kernel", of->op, spied->name,
               many_calls + few_calls, wrong);
  }
  op_harness_free(h);
}

static void all_calls_use_what_was_chosen(void **state) {
  (void)state;
  int seen = 0;
  for (const op_case *of = OP_CASES; of->op; of++)
    for (int d = 0; d < 2; d++)
      for (rf_isa isa = RF_ISA_BASE; isa <= rf_isa_detect(); isa++)
        for (int s = 0; s < 2 && rf_isa_runs(isa); s++) {
          spied = NULL;
          calls_use_what_was_chosen(of, &of->sizes[s], d ? RF_BF16 : RF_F32, isa);
          seen += spied->inner != NULL;
        }
  assert_true(seen > 40);
}

/* ---- what is chosen -------------------------------------------------------------------------- */

/* The kernel of a product, by the rows: the plain rule that the table of kernels must follow. */
static const char *name_of(const rf_gemm_isa *isa, const rf_gemm *g, int64_t rows) {
  bool bf16 = g->a_dtype == RF_BF16 || g->b_dtype == RF_BF16,
       few = rows <= RF_FEW_ROWS && !g->transposed && !g->sums_columns;
  if (isa->tiles && bf16) return few ? "gemm_amx_32x32_few" : "gemm_amx_32x32";
  if (isa == &RF_GEMM_BASE) return few ? "gemm_base_4x16_stream" : "gemm_base_4x16";
#if defined(__x86_64__)
  if (isa == &RF_GEMM_AVX2 || isa == &RF_GEMM_AVXVNNI)
    return few ? "gemm_avx2_6x16_stream" : "gemm_avx2_6x16";
#endif
  return few ? "gemm_avx512_12x32_stream" : "gemm_avx512_12x32";
}

static void kernels_follow_the_rows(void **state) {
  (void)state;
  static const struct {
    int level;
    const rf_gemm_isa *isa;
  } at[] = {
#if defined(__x86_64__)
    {RF_ISA_AVX2, &RF_GEMM_AVX2},
    {RF_ISA_AVXVNNI, &RF_GEMM_AVXVNNI},
    {RF_ISA_AVX512, &RF_GEMM_AVX512},
    {RF_ISA_AVX512BF16, &RF_GEMM_AVX512BF16},
    {RF_ISA_AMX, &RF_GEMM_AMX},
#endif
    {RF_ISA_BASE, &RF_GEMM_BASE}
  };
  for (size_t i = 0; i < sizeof at / sizeof *at; i++)
    for (int form = 0; form < 16; form++)
      for (int64_t most = 1; most < 40; most++) {
        rf_gemm g = {.m = most,
                     .n = 64,
                     .k = 64,
                     .a_dtype = form & 1 ? RF_BF16 : RF_F32,
                     .b_dtype = form & 2 ? RF_BF16 : RF_F32,
                     .transposed = form & 4,
                     .sums_columns = form & 8};
        const rf_inner all = rf_gemm_inner(at[i].level, "x", &g, 1),
                       own = rf_gemm_inner(at[i].level, "x", &g, most);
        assert_null(own.few);
        assert_ptr_equal(own.kernel, all.kernel);
        for (int64_t rows = 1; rows <= most; rows++)
          assert_string_equal(rf_inner_for(&all, rows)->name, name_of(at[i].isa, &g, rows));
      }
}

/* Packed weights stream by panels. With activations in 8 bits, few rows have a kernel where the ISA
 * multiplies many rows in another way. */
static void packed_and_fast_kernels(void **state) {
  (void)state;
#if !defined(__x86_64__)
  skip(); /* the names are those of x86 kernels */
#endif
  rf_panels panels = {
      .inner = 64, .parts = 1, .part = {{.outputs = 64, .type = rf_quant_type_of(RF_Q_Q8_0)}}};
  rf_gemm g = {.m = 64, .n = 64, .k = 64, .a_dtype = RF_F32, .b_dtype = RF_PACKED, .panels = &panels};
  rf_inner inner = rf_product_inner(RF_ISA_AMX, "x", &g, 1);
  assert_string_equal(inner.kernel->name, "gemm_avx512_12x32");
  assert_string_equal(inner.few->name, "gemm_avx512_12x32_panels");
  g.fast = true;
  static const struct {
    int level, type;
    const char *few; /* NULL: one kernel for all rows */
    int rows;
  } want[] = {
      {RF_ISA_AMX, RF_Q_Q8_0, "fast_amx_few", 8},
      {RF_ISA_AMX, RF_Q_INT8, "fast_amx_few", 8},
      {RF_ISA_AVX512BF16, RF_Q_INT8, "fast_avx512bf16_few", 8},
      {RF_ISA_AVX512, RF_Q_Q4_K, "fast_avx512_few", 8},
      {RF_ISA_AVX512, RF_Q_INT8, NULL, 0},
      {RF_ISA_AVX2, RF_Q_Q8_0, "fast_avx2_few", 8},
      {RF_ISA_AVX2, RF_Q_Q4_K, "fast_avx2_few", 2},
      {RF_ISA_AVX2, RF_Q_INT8, NULL, 0},
  };
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    panels.part[0].type = rf_quant_type_of(want[i].type);
    g.m = 64;
    inner = rf_product_inner(want[i].level, "x", &g, 1);
    assert_memory_equal(inner.kernel->name, "fast_", 5);
    if (!want[i].few) {
      assert_null(inner.few);
      continue;
    }
    assert_string_equal(inner.few->name, want[i].few);
    assert_int_equal(inner.few->max_rows, want[i].rows);
    assert_null(rf_product_inner(want[i].level, "x", &g, 9).few);
    g.m = want[i].rows; /* all calls have few rows */
    inner = rf_product_inner(want[i].level, "x", &g, 1);
    assert_string_equal(inner.kernel->name, want[i].few);
    assert_null(inner.few);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_calls_use_what_was_chosen),
      cmocka_unit_test(kernels_follow_the_rows),
      cmocka_unit_test(packed_and_fast_kernels),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
