#include "support/kernel_check.h"
#include "support/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 64, GUARD = 0x5c, THREADS = 2 };

/* The outputs of a kernel, and what they were before the call. */
typedef struct outputs {
  void *data[RF_MAX_OUTPUTS];
} outputs;

static size_t bytes_of(const rf_call *call, int i) { return (size_t)rf_tensor_bytes(rf_out(call, i)); }

/* Copies of the outputs, followed by guard bytes. */
static outputs take(const rf_call *call) {
  outputs taken = {{0}};
  for (int i = 0; i < call->op->output_count; i++) {
    if (!call->out[i]) continue;
    taken.data[i] = malloc(bytes_of(call, i) + GUARD_BYTES);
    memcpy(taken.data[i], call->out[i], bytes_of(call, i));
    memset((char *)taken.data[i] + bytes_of(call, i), GUARD, GUARD_BYTES);
  }
  return taken;
}
static void drop(outputs *taken) {
  for (int i = 0; i < RF_MAX_OUTPUTS; i++) free(taken->data[i]);
}

/* Runs a kernel on copies of the outputs. */
static outputs results_of(const rf_kernel *kernel, const rf_call *call, const rf_run_inputs *run) {
  outputs taken = take(call);
  rf_call mine = *call;
  rf_inner inner[RF_MAX_INNER] = {0};
  mine.threads = THREADS;
  mine.run = run;
  size_t bytes = rf_kernel_workspace(kernel, call->graph, call->op, (rf_tiling){.threads = THREADS});
  mine.workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
  memset(mine.workspace, 0xff, bytes);
  for (int i = 0; i < call->op->output_count; i++) mine.out[i] = taken.data[i];
  for (int i = 0; i < call->op->input_count; i++)
    for (int k = 0; k < call->op->output_count; k++)
      if (call->in[i] && call->in[i] == call->out[k]) mine.in[i] = taken.data[k];
  if (kernel->inner) kernel->inner(kernel->level, call->graph, call->op, inner);
  mine.inner = inner;
  kernel->run(&mine);
  free(mine.workspace);
  return taken;
}

/* Compares column `c` of `columns` columns of an output. Elements that neither kernel has changed
 * are left out, because an op may write a part of a tensor. */
static bool is_close(const rf_call *call, int output, const outputs *got, const outputs *before, int64_t c,
                     int64_t columns, compare_report *report) {
  const rf_tensor *t = rf_out(call, output);
  const rf_op_def *def = call->op->def;
  size_t size = (size_t)rf_dtype_bytes(t->dtype);
  int64_t rows = rf_tensor_count(t) / columns, count = 0;
  double norm = (double)(t->dtype == RF_BF16 ? def->tolerance.bf16 : def->tolerance.f32);
  char *a = malloc((size_t)rows * size + 1), *b = malloc((size_t)rows * size + 1);
  for (int64_t i = 0; i < rows; i++) {
    size_t at = (size_t)(i * columns + c) * size;
    const char *mine = (const char *)got->data[output] + at, *want = (const char *)call->out[output] + at,
               *first = (const char *)before->data[output] + at;
    if (!memcmp(mine, first, size) && !memcmp(want, first, size)) continue;
    memcpy(a + (size_t)count * size, mine, size);
    memcpy(b + (size_t)count++ * size, want, size);
  }
  bool ok = compare_close(t->dtype, a, b, count, (compare_bound){norm, 4 * norm}, report);
  free(a);
  free(b);
  return ok;
}

/* Whether results equal those of the reference, within the tolerance of the op. */
static bool same(const rf_call *call, const outputs *got, const outputs *before, char text[400]) {
  for (int i = 0; i < call->op->output_count; i++) {
    if (!call->out[i]) continue;
    const rf_tensor *t = rf_out(call, i);
    /* the columns of parts of the head have different units */
    int64_t columns = call->op->def == &RF_OP_HEAD_PART ? t->shape[1] : 1;
    for (int64_t c = 0; c < columns; c++) {
      compare_report report;
      if (is_close(call, i, got, before, c, columns, &report)) continue;
      snprintf(text, 400, "%s, column %lld: %s", t->name, (long long)c, report.text);
      return false;
    }
    for (int k = 0; k < GUARD_BYTES; k++)
      if (((unsigned char *)got->data[i])[bytes_of(call, i) + (size_t)k] != GUARD) {
        snprintf(text, 400, "%s: wrote after its end", t->name);
        return false;
      }
  }
  return true;
}

static void note_place(kernel_check *check, const rf_op_def *op, bool noticed) {
  int i = 0;
  while (i < check->placed_count && check->placed[i].op != op) i++;
  if (i == KERNEL_CHECK_OPS) abort();
  if (i == check->placed_count) check->placed[check->placed_count++].op = op;
  check->placed[i].noticed += noticed;
}

void kernel_check_run(const rf_kernel *reference, const rf_call *call, void *context) {
  kernel_check *check = context;
  const rf_kernel *kernel[RF_ISAS];
  outputs got[RF_ISAS], lost = {{0}};
  int count = 0;
  for (rf_isa isa = RF_ISA_BASE; isa <= rf_isa_detect(); isa++) {
    if (!rf_isa_runs(isa)) continue;
    const rf_kernel *k = rf_kernel_choose(&RF_BACKEND_CPU, isa, call->graph, call->op);
    if (k->run == reference->run || (count && kernel[count - 1] == k)) continue;
    kernel[count] = k;
    got[count++] = results_of(k, call, call->run);
  }
  outputs before = take(call);
  bool placed = count && call->op->attr.axes && rf_rank_of(call) > 0;
  if (placed) {
    rf_run_inputs first = *call->run;
    memset(first.place, 0, sizeof first.place);
    lost = results_of(kernel[count - 1], call, &first);
  }
  reference->run(call);
  for (int k = 0; k < count; k++) {
    char text[400];
    check->compared++;
    if (!same(call, &got[k], &before, text) && !check->wrong++)
      snprintf(check->text, sizeof check->text, "%s, kernel %s of %s: %s", call->op->name, kernel[k]->name,
               rf_isa_name((rf_isa)kernel[k]->level), text);
    drop(&got[k]);
  }
  char text[400];
  if (placed) note_place(check, call->op->def, !same(call, &lost, &before, text));
  drop(&lost);
  drop(&before);
}
