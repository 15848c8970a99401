/* cost.c - predicts the seconds of an op from its FLOPs and bytes. Rates come from the machine's
 * measured curves. Without curves, rates come from its data sheet and from default efficiencies. */
#include "machine/tuned.h"
#include "plan/parts.h"

#include <math.h>
#include <string.h>

/* ---- size and class of an op ----------------------------------------------------------------- */

double rf_cost_flops(rf_work work) { return work.flops + work.flops_again; }

/* The shorter side of a product's plain matrix, if this side has at most the length of an adapter's
 * rank. Otherwise 0. */
static int64_t narrow_side(const rf_graph *graph, const rf_op *op) {
  enum { SHORT = 48 }; /* three parts of rank 16 */
  const rf_op_def *def = op->def;
  int w = !def->narrow_curve ? RF_NONE : def->product == RF_PRODUCT_DW ? op->output[0] : op->input[1];
  const rf_tensor *t = w < 0 ? NULL : &graph->tensor[w];
  if (!t || t->rank != 2 || t->dtype == RF_PACKED) return 0;
  int64_t side = t->shape[0] < t->shape[1] ? t->shape[0] : t->shape[1];
  return side <= SHORT ? side : 0;
}

const char *rf_cost_curve_name(const rf_graph *graph, const rf_op *op) {
  return narrow_side(graph, op) ? op->def->narrow_curve : op->def->name;
}

double rf_cost_work(rf_work work) {
  double flops = rf_cost_flops(work);
  return flops > 0 ? flops : work.bytes_read + work.bytes_written;
}

/* Kernels pad the narrow side of a matrix to whole vectors. So a product with few columns takes the
 * time of a product with the padded number. */
enum { NARROW_LANES = 32 };
double rf_cost_amount(const rf_graph *graph, const rf_op *op, rf_work work) {
  double narrow = (double)narrow_side(graph, op), amount = rf_cost_work(work);
  return narrow > 0 ? amount * ceil(narrow / NARROW_LANES) * NARROW_LANES / narrow : amount;
}

double rf_cost_size(const rf_graph *graph, const rf_op *op, rf_work work) {
  /* All rows of a sequence attend to the same keys. With one row, reading the keys takes most of
   * the time. With many rows, arithmetic takes most of the time. */
  if (op->def->curve_size == RF_CURVE_ROWS) {
    const rf_tensor *out = &graph->tensor[op->output[0]];
    int64_t slots = graph->tensor[rf_cached_of(graph, op).table].shape[0],
            sequences = slots < out->shape[0] ? slots : out->shape[0];
    return (double)rf_tensor_count(out) /
           (double)(op->attr.attention.heads * (sequences > 0 ? sequences : 1));
  }
  /* Short sequences with narrow heads are slow because of incomplete tiles and softmax. The number
   * of sequences has no influence on this. */
  if (op->def->curve_size == RF_CURVE_SEGMENT && graph->seq > 0)
    return (double)graph->seq * op->attr.attention.head_dim;
  return rf_cost_amount(graph, op, work);
}

/* The dtype in which an op computes or moves data. The dtype is that of the op's first floating
 * operand. */
static rf_dtype dtype_of(const rf_graph *graph, const rf_op *op) {
  for (int i = 0; i < op->input_count + op->output_count; i++) {
    int t = i < op->input_count ? op->input[i] : op->output[i - op->input_count];
    if (t < 0) continue;
    rf_dtype dtype = graph->tensor[t].dtype;
    if (dtype != RF_I32 && dtype != RF_I64 && dtype != RF_U8) return dtype;
  }
  return RF_F32;
}

/* True if the op has few rows, and therefore reads quantised blocks directly. An op that reads
 * quantised blocks does not follow the curves that were measured with plain matrices. With many
 * rows, kernels first convert the blocks to floats, and these curves apply. */
static bool streams_blocks(const rf_graph *graph, const rf_op *op) {
  int many = op->input[op->def->rows_slot];
  if (many >= 0 && graph->tensor[many].shape[0] > RF_FEW_ROWS) return false;
  for (int i = 0; i < op->input_count; i++) {
    const rf_tensor *t = op->input[i] < 0 ? NULL : &graph->tensor[op->input[i]];
    for (int k = 0; t && t->dtype == RF_PACKED && k < t->panels.parts; k++)
      if (t->panels.part[k].type->values > 1) return true;
  }
  return false;
}

static const rf_tensor *packed_of(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *w = op->def->packed ? &graph->tensor[op->input[1]] : NULL;
  return w && w->dtype == RF_PACKED ? w : NULL;
}

/* The plain matrix of a product of generation or scoring, which may have few rows. NULL for other
 * ops. The matrices of adapters are narrow, and their products have other curves. */
static const rf_tensor *plain_of(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *w = op->def->packed ? &graph->tensor[op->input[1]] : NULL;
  bool other = graph->job == RF_JOB_TRAIN || op->def->timing == RF_TIMING_GROUPED ||
               op->def->product == RF_PRODUCT_DX || rf_op_is_fast(op) || graph->matmul != RF_DTYPES;
  return !w || other || w->dtype == RF_PACKED || w->rank != 2 ||
                 rf_cost_curve_name(graph, op) != op->def->name
             ? NULL
             : w;
}

/* True if the matrix of an op is stored as (N,K). */
static bool is_transposed(const rf_op *op) {
  return op->def->kind == RF_KIND_HEAD ? op->attr.head.transpose : op->attr.matmul.transpose;
}

/* Number of rows of logits that the op `head_...` computes at a time. */
static double chunk_rows(const rf_graph *graph, const rf_op *op) {
  const int64_t *w = graph->tensor[op->input[1]].shape;
  return (double)rf_head_chunk_rows(graph->tensor[op->input[0]].shape[0], w[is_transposed(op) ? 0 : 1]);
}

/* Number of rows that are multiplied with one matrix. For an op of experts: number of rows of an
 * expert that has rows. */
static double rows_of(const rf_graph *graph, const rf_op *op, const rf_tensor *w, rf_work work) {
  if (op->def->in_chunks) return chunk_rows(graph, op);
  double experts = (double)rf_panels_experts(&w->panels), group = op->attr.group > 1 ? op->attr.group : 1,
         used = op->attr.experts.used;
  double rows = rf_cost_flops(work) * experts / (2 * (double)rf_tensor_count(w));
  return experts > 1 ? rows * group / rf_experts_met(experts * group, used, rows * group / used) : rows;
}

const char *const RF_COST_PRODUCT_NAMES[] = {"matmul_exact",  "matmul_fast",        "matmul_bf16",
                                             "matmul_turned", "matmul_turned_bf16", "matmul_turned_head",
                                             "matmul_rows",   "matmul_columns"};

static rf_cost_products products_of(const rf_graph *graph, const rf_op *op, const rf_tensor *w) {
  bool bf16 = graph->tensor[op->input[0]].dtype == RF_BF16;
  for (int k = 0; k < w->panels.parts; k++) bf16 &= w->panels.part[k].type->number == RF_Q_BF16;
  if (op->def->product == RF_PRODUCT_DX) return bf16 ? RF_PRODUCTS_TURNED_BF16 : RF_PRODUCTS_TURNED;
  return rf_op_is_fast(op) ? RF_PRODUCTS_FAST : bf16 ? RF_PRODUCTS_BF16 : RF_PRODUCTS_EXACT;
}

int rf_cost_classes(const rf_graph *graph, const rf_op *op, rf_work work,
                    rf_cost_class class[RF_PANEL_PARTS]) {
  const rf_tensor *w = packed_of(graph, op), *plain = plain_of(graph, op);
  int64_t outputs = 0;
  if (plain)
    class[0] = (rf_cost_class){
        .name = RF_COST_PRODUCT_NAMES[is_transposed(op) ? RF_PRODUCTS_COLUMNS : RF_PRODUCTS_ROWS],
        .type = rf_dtype_name(plain->dtype),
        .share = 1,
        .size = op->def->in_chunks ? chunk_rows(graph, op)
                                   : rf_cost_flops(work) / (2 * (double)rf_tensor_count(plain))};
  if (!w) return plain != NULL;
  for (int k = 0; k < w->panels.parts; k++) outputs += w->panels.part[k].outputs;
  for (int k = 0; k < w->panels.parts; k++)
    class[k] = (rf_cost_class){.name = RF_COST_PRODUCT_NAMES[products_of(graph, op, w)],
                               .type = w->panels.part[k].type->name,
                               .share = (double)w->panels.part[k].outputs / (double)outputs,
                               .size = rows_of(graph, op, w, work)};
  return w->panels.parts;
}

/* ---- curves ---------------------------------------------------------------------------------- */

/* The best curve of this op. The first choice has the same kernel and dtype, the second has the
 * same kernel, and the third has the same dtype. If no such curve exists, any curve of the op is
 * used. A product of bf16 rows with an adapter's f32 matrix runs on the kernel for f32. */
static const rf_curve *curve_of(const rf_machine *machine, const char *op, rf_dtype dtype,
                                const char *kernel) {
  const rf_curve *best = NULL;
  int best_score = -1;
  for (int i = 0; i < machine->curve_count; i++) {
    const rf_curve *c = &machine->curve[i];
    if (c->count < 1 || strcmp(c->op, op)) continue;
    int score = (c->dtype == dtype) + 2 * (kernel && !strcmp(c->kernel, kernel));
    if (score > best_score) {
      best = c;
      best_score = score;
    }
  }
  return best;
}

static const rf_curve *exact_curve(const rf_machine *machine, const char *op, const char *kernel) {
  for (int i = 0; i < machine->curve_count; i++)
    if (!strcmp(machine->curve[i].op, op) && !strcmp(machine->curve[i].kernel, kernel))
      return &machine->curve[i];
  return NULL;
}

static bool is_reference(const rf_kernel *kernel) {
  return kernel && !strncmp(kernel->name, "reference_", 10);
}

/* The curve of this reference kernel, or else the curve of all reference kernels. NULL for other
 * kernels. */
static const rf_curve *reference_curve(const rf_machine *machine, const char *op, const rf_kernel *kernel,
                                       bool multiplies) {
  if (!is_reference(kernel)) return NULL;
  const rf_curve *curve = exact_curve(machine, op, kernel->name);
  return curve ? curve : exact_curve(machine, RF_COST_REFERENCE, multiplies ? RF_COST_FLOPS : RF_COST_BYTES);
}

static const rf_curve *find_curve(const rf_machine *machine, const rf_graph *graph, const rf_op *op,
                                  rf_dtype dtype, const rf_kernel *kernel, bool multiplies) {
  if (!machine->curve_count) return NULL;
  const rf_curve *slow = reference_curve(machine, op->def->name, kernel, multiplies);
  if (slow) return slow;
  const char *name = rf_cost_curve_name(graph, op);
  const rf_curve *curve = curve_of(machine, name, dtype, kernel ? rf_kernel_curve(kernel) : NULL);
  if (!curve && name != op->def->name)
    curve = curve_of(machine, op->def->name, dtype, kernel ? rf_kernel_curve(kernel) : NULL);
  const rf_op_def *const *like = op->def->timed_like;
  for (int i = 0; i < RF_TIMED_LIKE && like[i] && !curve; i++)
    curve = curve_of(machine, like[i]->name, dtype, NULL);
  for (like = RF_OPS_OF_BYTES; !curve && !multiplies && *like; like++)
    curve = curve_of(machine, (*like)->name, dtype, NULL);
  return curve;
}

/* Work per second at `size`. The rate is linear in log(size) between measured points, and constant
 * outside of them. */
static double curve_rate(const rf_curve *c, double size) {
  int last = c->count - 1;
#define AT(i) (c->size[i] > 0 ? c->size[i] : c->work[i])
#define RATE(i) (c->work[i] / c->seconds[i])
  if (size <= AT(0)) return RATE(0);
  if (size >= AT(last)) return RATE(last);
  int i = 0;
  while (size > AT(i + 1)) i++;
  double part = log(size / AT(i)) / log(AT(i + 1) / AT(i));
  return RATE(i) + part * (RATE(i + 1) - RATE(i));
#undef AT
#undef RATE
}

/* Mean number of keys that a row of attention over a cache reads; 0 for other ops. */
static double keys_of(const rf_graph *graph, const rf_op *op, rf_work work) {
  if (!rf_op_is_cached(op)) return 0;
  const rf_cached cached = rf_cached_of(graph, op);
  const double rows = (double)graph->tensor[op->output[0]].shape[0];
  return rows > 0 && cached.flops_key > 0 ? (rf_cost_flops(work) / rows - cached.flops_row) / cached.flops_key
                                          : 0;
}

/* Seconds of an op by the op's curve. Attention has a fixed cost per row. So the time per key falls
 * with the number of keys. Between the contexts of the short and the long curve, the time per key
 * is linear in 1 / keys. */
static double curve_seconds(const rf_machine *machine, const rf_graph *graph, const rf_op *op,
                            const rf_curve *curve, rf_dtype dtype, const char *kernel, rf_work work) {
  /* without a curve for narrow matrices, the curve of the op counts their real FLOPs */
  const bool whole = narrow_side(graph, op) && strcmp(curve->op, op->def->narrow_curve) != 0;
  const double amount = whole ? rf_cost_work(work) : rf_cost_amount(graph, op, work),
               size = whole ? amount : rf_cost_size(graph, op, work), near = amount / curve_rate(curve, size),
               keys = keys_of(graph, op, work);
  const rf_curve *far = op->def->long_curve && keys > RF_SHORT_CONTEXT
                            ? curve_of(machine, op->def->long_curve, dtype, kernel)
                            : NULL;
  if (!far) return near;
  const double first = 1.0 / RF_SHORT_CONTEXT, last = 1.0 / RF_LONG_CONTEXT,
               part = fmin(1, (first - 1 / keys) / (first - last));
  return near + part * (amount / curve_rate(far, size) - near);
}

/* ---- instruction sets ------------------------------------------------------------------------ */

/* Without dot-product instructions, kernels widen narrow operands and multiply in f32. */
void rf_machine_for_isa(rf_machine *machine, rf_isa isa) {
  for (int d = 0; d < RF_DTYPES && isa < RF_ISA_AMX; d++) {
    if (!(machine->flops_vectors[d] > 0)) continue;
    machine->flops[d] = isa >= RF_ISA_AVX512BF16 ? machine->flops_vectors[d] : 0;
    machine->flops_vectors[d] = 0;
  }
}

/* ---- threads --------------------------------------------------------------------------------- */

/* FLOP/s or bandwidth with `threads` threads. The value is interpolated between measured thread
 * counts, and is 0 at 0 threads. */
static double scaled(const rf_machine *m, int threads, bool bandwidth) {
  double before = 0, before_threads = 0;
  for (int i = 0; i < m->scaling_count; i++) {
    double here = bandwidth ? m->scaling[i].read_bps : m->scaling[i].flops;
    if (threads <= m->scaling[i].threads)
      return before + (here - before) * (threads - before_threads) / (m->scaling[i].threads - before_threads);
    before = here;
    before_threads = m->scaling[i].threads;
  }
  return before;
}

void rf_machine_for_threads(rf_machine *machine, int threads) {
  if (machine->kind != RF_MACHINE_CPU || machine->threads < 1 || threads >= machine->threads) return;
  /* Without measurements, FLOP/s are proportional to threads, and the bandwidth stays the same. */
  double compute = (double)threads / machine->threads, memory = 1;
  double all_flops = scaled(machine, machine->threads, false),
         all_bps = scaled(machine, machine->threads, true);
  if (all_flops > 0) compute = scaled(machine, threads, false) / all_flops;
  if (all_bps > 0) memory = scaled(machine, threads, true) / all_bps;
  for (int d = 0; d < RF_DTYPES; d++) {
    machine->flops[d] *= compute;
    machine->flops_vectors[d] *= compute;
  }
  machine->read_bps *= memory;
  machine->copy_bps *= memory;
  for (int i = 0; i < machine->curve_count; i++) {
    rf_curve *c = &machine->curve[i];
    for (int k = 0; k < c->count && strcmp(c->op, RF_COST_REFERENCE); k++)
      c->seconds[k] /= c->multiplies ? compute : memory;
  }
  machine->threads = threads;
}

/* ---- rows ------------------------------------------------------------------------------------ */

double rf_cost_rows_seconds(const rf_machine *machine, const char *op, const char *kernel, int64_t rows,
                            int64_t numbers) {
  const rf_curve *curve = exact_curve(machine, op, kernel);
  int64_t threads = machine->threads > 0 ? machine->threads : 1;
  return curve ? (double)((rows + threads - 1) / threads * threads * numbers) /
                     curve_rate(curve, (double)numbers)
               : 0; /* the last round may have fewer rows than threads, but takes the time of a full round */
}

/* Seconds of the passes over rows of logits after the product that computes the logits. */
static double row_passes_seconds(const rf_machine *machine, const rf_graph *graph, const rf_op *op) {
  /* pass[i] is bit i of RF_PASS_ */
  static const char *const pass[] = {"sums", "softcap", "likeliest", "gradient"};
  enum { PASSES = sizeof pass / sizeof *pass };
  if (!op->def->row_passes) return 0;
  unsigned passes = op->def->row_passes(op);
  int64_t rows = graph->tensor[op->input[op->def->rows_slot]].shape[0],
          vocab = graph->tensor[op->input[1]].shape[op->attr.head.transpose ? 0 : 1];
  double seconds = 0;
  for (int i = 0; i < PASSES; i++)
    if (passes >> i & 1) seconds += rf_cost_rows_seconds(machine, "head_rows", pass[i], rows, vocab);
  return seconds;
}

/* ---- one op ---------------------------------------------------------------------------------- */

static double peak_flops(const rf_machine *machine, rf_dtype dtype) {
  if (machine->flops[dtype] > 0) return machine->flops[dtype];
  if (machine->flops[RF_F32] > 0) return machine->flops[RF_F32]; /* kernels widen narrow operands */
  for (int d = 0; d < RF_DTYPES; d++)
    if (machine->flops[d] > 0) return machine->flops[d];
  return 1e12;
}

/* A data sheet gives the efficiency of large plain products. The factors below are efficiencies of
 * other ops, as fractions of the efficiency of large plain products. Attention: on an A100,
 * FlashAttention-2 reaches 73 % of peak in the forward and 63 % in the backward pass, and products
 * reach about 86 % (Dao 2023, section 4.1). GROUPED is for experts. EIGHT_BITS is for 8-bit
 * products, whose operands are cast and scaled in an extra pass. tests/published_runs fits both to
 * published runs. */
enum { NARROW_HEAD = 128 };
/* Fraction of one thread's peak that a reference kernel reaches. The fraction is used if
 * calibration has not timed the kernel. Measured on a Granite Rapids: 0.43 of 215 GFLOP/s. */
static const double REFERENCE_SHARE = 1.0 / 500;
static const double ATTENTION_FORWARD = 0.85, ATTENTION_BACKWARD = 0.73, GROUPED = 0.63, EIGHT_BITS = 0.78;

/* Fraction of a matrix unit that does useful work when `extent` is padded to whole tiles. */
static double filled(double extent, int tile) {
  return tile > 1 && extent > 0 ? extent / (ceil(extent / tile) * tile) : 1;
}

/* Kernels for grouped products on TPUs compute in tiles of 1024 columns by default (MaxText,
 * configs/base.yml, wi_tile_... and wo_tile_...). Narrow experts leave a part of a tile empty. */
enum { GROUPED_TILE = 1024 };
static double filled_by_expert(const rf_graph *graph, const rf_op *op) {
  int matrix = op->def->product == RF_PRODUCT_DW ? op->output[0] : op->input[1]; /* (E*K, N) */
  const int64_t *shape = graph->tensor[matrix].shape;
  int64_t inner = shape[0] / op->attr.experts.experts;
  bool first = inner == graph->model.width && rf_mlp_gated(graph->model.mlp);
  return filled((double)inner, GROUPED_TILE) * filled((double)shape[1] / (first ? 2 : 1), GROUPED_TILE);
}

static double share_of_peak(const rf_machine *machine, const rf_graph *graph, const rf_op *op,
                            rf_dtype dtype) {
  rf_timing timing = op->def->timing;
  bool backward = timing == RF_TIMING_ATTENTION_BACKWARD;
  int tile = machine->tile[1];
  if (machine->kind == RF_MACHINE_CPU) return 1;
  if (timing == RF_TIMING_ATTENTION || backward) {
    double width = op->attr.attention.head_dim, share = backward ? ATTENTION_BACKWARD : ATTENTION_FORWARD;
    /* The head width is the inner dimension of the scores and the columns of the values. Narrow
     * heads leave part of a systolic array's tile empty. On machines without such tiles, narrow
     * heads mean less arithmetic per element of softmax. */
    return share * (tile ? filled(width, tile) : width < NARROW_HEAD ? 0.75 + 0.25 * width / NARROW_HEAD : 1);
  }
  bool eight_bits = dtype == RF_I8 || dtype == RF_F8_E4M3 || dtype == RF_F8_E5M2;
  double share = !eight_bits                          ? 1
                 : machine->efficiency_eight_bits > 0 ? machine->efficiency_eight_bits
                                                      : EIGHT_BITS;
  if (timing == RF_TIMING_GROUPED)
    return share * (machine->efficiency_experts > 0 ? machine->efficiency_experts : GROUPED) *
           (tile ? filled_by_expert(graph, op) : 1);
  if (tile && timing == RF_TIMING_PRODUCT && op->input[0] >= 0 && op->input[1] >= 0) {
    const rf_tensor *a = &graph->tensor[op->input[0]], *b = &graph->tensor[op->input[1]];
    if (a->rank == 2 && b->rank == 2)
      share *= filled((double)a->shape[1], tile) * filled((double)b->shape[1], tile);
  }
  return share;
}

/* The part of the seconds of a product of `rows` rows that is not for multiplications. `op` says
 * whether `count` is the number of outputs or of steps of k. */
static double edge_seconds(const rf_machine *machine, const char *op, const char *products, double rows,
                           double count) {
  const rf_curve *curve = curve_of(machine, op, RF_F32, products);
  return curve ? count / curve_rate(curve, rows) : 0;
}

/* Seconds of a matrix product whose matrix is plain (not packed), in a job that generates or
 * scores. -1: the machine has no curve for this product. */
static double plain_seconds(const rf_machine *machine, const rf_graph *graph, const rf_op *op,
                            const rf_cost_class *class, double flops) {
  const rf_curve *curve = exact_curve(machine, class->name, class->type);
  rf_cost_products like = graph->tensor[op->input[0]].dtype == RF_BF16 ? RF_PRODUCTS_BF16 : RF_PRODUCTS_EXACT;
  if (!curve) return -1;
  return flops / curve_rate(curve, class->size) + row_passes_seconds(machine, graph, op) +
         edge_seconds(machine, "matmul_start", RF_COST_PRODUCT_NAMES[like], class->size, 1);
}

/* Seconds of the head's products with its transposed packed matrix. -1: the machine has no curves
 * for these products. */
static double turned_seconds(const rf_machine *machine, const rf_graph *graph, const rf_op *op,
                             double flops) {
  const rf_panels *panels = &packed_of(graph, op)->panels;
  const rf_quant_type *type = panels->part[0].type;
  rf_cost_products how = type->number == RF_Q_BF16 ? RF_PRODUCTS_TURNED_HEAD : RF_PRODUCTS_TURNED;
  const rf_curve *curve = exact_curve(machine, RF_COST_PRODUCT_NAMES[how], type->name);
  return !(flops > 0) ? 0 : curve ? flops / curve_rate(curve, chunk_rows(graph, op)) : -1;
}

/* Seconds of a product with a packed matrix, as the sum over the parts of the matrix, or with a
 * plain matrix in a job that generates or scores. Returns -1 without curves. */
static double product_seconds(const rf_machine *machine, const rf_graph *graph, const rf_op *op,
                              rf_work work) {
  rf_cost_class class[RF_PANEL_PARTS];
  int classes = machine->curve_count ? rf_cost_classes(graph, op, work, class) : 0;
  double seconds = 0, flops = rf_cost_flops(work), outputs = 0;
  if (!classes || !(flops > 0)) return -1;
  if (!packed_of(graph, op)) return plain_seconds(machine, graph, op, class, flops);
  double turned = op->def->turned_share ? op->def->turned_share(op) * flops : 0,
         gradient = turned_seconds(machine, graph, op, turned);
  if (gradient < 0) return -1;
  flops -= turned;
  for (int k = 0; k < classes; k++) {
    const rf_curve *curve = curve_of(machine, class[k].name, RF_F32, class[k].type);
    /* calibration measures only types that files have; q8_0 is the type most similar to int8 */
    if (!curve && !strcmp(class[k].type, "int8")) curve = curve_of(machine, class[k].name, RF_F32, "q8_0");
    if (!curve) return -1;
    seconds += class[k].share * flops / curve_rate(curve, class[k].size);
  }
  if (op->def->product == RF_PRODUCT_DX) return seconds;
  const rf_panels *panels = &packed_of(graph, op)->panels;
  for (int k = 0; k < classes; k++) outputs += (double)panels->part[k].outputs;
  /* `times`: number of equal products, which is above 1 if several experts have rows of tokens */
  double inner = (double)panels->inner, rows = class->size, times = flops / (2 * rows * inner * outputs);
  return seconds + gradient + row_passes_seconds(machine, graph, op) +
         times * (edge_seconds(machine, "matmul_start", class->name, rows, 1) +
                  edge_seconds(machine, "matmul_outputs", class->name, rows, outputs) +
                  edge_seconds(machine, "matmul_inner", class->name, rows, inner));
}

/* The dtype in which an op multiplies. On a CPU, --compute fast multiplies 8-bit integers. */
static rf_dtype product_dtype(const rf_machine *machine, const rf_graph *graph, const rf_op *op) {
  if (rf_op_is_fast(op) && machine->flops[RF_I8] > 0 && machine->kind == RF_MACHINE_CPU) return RF_I8;
  bool linear = op->def->product != RF_PRODUCT_NONE;
  return graph->matmul != RF_DTYPES && linear ? graph->matmul : dtype_of(graph, op);
}

double rf_cost_op(const rf_machine *machine, const rf_graph *graph, const rf_op *op, const rf_kernel *kernel,
                  rf_work work, rf_bound *bound) {
  rf_dtype dtype = product_dtype(machine, graph, op);
  double flops = rf_cost_flops(work), bytes = work.bytes_read + work.bytes_written;
  double bandwidth = (work.bytes_written > 0.25 * bytes ? machine->copy_bps : machine->read_bps);
  double efficiency_memory = machine->efficiency_memory > 0 ? machine->efficiency_memory : 1;
  double efficiency_compute = machine->efficiency_compute > 0 ? machine->efficiency_compute : 1;
  double compute = product_seconds(machine, graph, op, work), memory = bandwidth > 0 ? bytes / bandwidth : 0,
         launch = machine->launch_seconds;
  const rf_curve *curve = NULL;
  if (compute < 0 && !rf_op_is_fast(op) && !streams_blocks(graph, op))
    curve = find_curve(machine, graph, op, dtype, kernel, flops > 0);
  if (is_reference(kernel) && !reference_curve(machine, op->def->name, kernel, flops > 0) &&
      machine->kind == RF_MACHINE_CPU && flops > 0) {
    compute = flops / (peak_flops(machine, RF_F32) / fmax(1, machine->threads) * REFERENCE_SHARE);
  } else if (curve) {
    double seconds =
        curve_seconds(machine, graph, op, curve, dtype, kernel ? rf_kernel_curve(kernel) : NULL, work);
    /* With few rows, the time to read the weights may exceed `seconds`. Then `memory` is the
     * time. */
    if (flops > 0) compute = seconds;
    else {
      memory = seconds;
      compute = 0;
    }
  } else if (compute < 0) {
    compute =
        flops / (peak_flops(machine, dtype) * efficiency_compute * share_of_peak(machine, graph, op, dtype));
    memory /= efficiency_memory;
  }
  double most = compute > memory ? compute : memory;
  if (bound)
    *bound = launch > most ? RF_BOUND_LATENCY : compute >= memory ? RF_BOUND_COMPUTE : RF_BOUND_MEMORY;
  return most + launch;
}

/* ---- the limit ------------------------------------------------------------------------------- */

static double best_rate(const rf_curve *c, double from_size) {
  double best = curve_rate(c, from_size);
  for (int i = 0; i < c->count; i++)
    if ((c->size[i] > 0 ? c->size[i] : c->work[i]) >= from_size && c->work[i] / c->seconds[i] > best)
      best = c->work[i] / c->seconds[i];
  return best;
}

/* Highest known bandwidth for a number of bytes. The result is `bandwidth` (of memory), or the
 * bandwidth of the fastest op without products in calibration. Only measurements at this size or a
 * larger size count. Small tensors fit in a cache. */
static double reach_bps(const rf_machine *machine, double bytes, double bandwidth) {
  for (int i = 0; i < machine->curve_count; i++) {
    const rf_curve *c = &machine->curve[i];
    double rate = c->count < 1 || c->multiplies || !strcmp(c->op, "load") ? 0 : best_rate(c, bytes);
    if (rate > bandwidth) bandwidth = rate;
  }
  return bandwidth;
}

/* Highest FLOP/s: the largest of the dtype's peak, the kernel's best rate in calibration and, on a
 * CPU, the f32 peak. (A CPU may widen narrow operands to f32.) */
static double reach_flops(const rf_machine *machine, const rf_curve *curve, rf_dtype dtype) {
  double peak = peak_flops(machine, dtype);
  if (machine->kind == RF_MACHINE_CPU && machine->flops[RF_F32] > peak && dtype != RF_F64)
    peak = machine->flops[RF_F32];
  double best = curve ? best_rate(curve, 0) : 0;
  return best > peak ? best : peak;
}

double rf_cost_limit(const rf_machine *machine, const rf_graph *graph, const rf_op *op,
                     const rf_kernel *kernel, rf_work work, rf_bound *bound) {
  rf_dtype dtype = product_dtype(machine, graph, op);
  double flops = rf_cost_flops(work), bytes = work.bytes_read + work.bytes_written;
  const rf_curve *curve = rf_op_is_fast(op) ? NULL : find_curve(machine, graph, op, dtype, kernel, flops > 0);
  double bandwidth =
      reach_bps(machine, bytes, work.bytes_written > 0.25 * bytes ? machine->copy_bps : machine->read_bps);
  double own = curve && !(flops > 0) ? best_rate(curve, rf_cost_size(graph, op, work)) : 0;
  double compute = flops / reach_flops(machine, flops > 0 ? curve : NULL, dtype),
         own_product = product_seconds(machine, graph, op, work);
  if (own_product >= 0 && own_product < compute) compute = own_product;
  double memory = bandwidth > 0 || own > 0 ? bytes / (own > bandwidth ? own : bandwidth) : 0;
  if (bound) *bound = compute >= memory ? RF_BOUND_COMPUTE : RF_BOUND_MEMORY;
  return compute >= memory ? compute : memory;
}

double rf_plan_limit(const rf_plan *plan, int op, rf_bound *bound) {
  const rf_plan_op *p = &plan->op[op];
  /* the rest of an exchange may run while the core computes other ops */
  if (p->transfer > 0 || plan->graph->op[op].def->exchange == RF_EXCHANGE_WAIT) {
    if (bound) *bound = p->bound;
    return 0;
  }
  if (!p->lanes)
    return rf_cost_limit(&plan->machine, plan->graph, &plan->graph->op[op], p->kernel, p->work, bound);
  if (bound) *bound = RF_BOUND_NETWORK;
  return p->seconds - p->wait;
}

/* ---- loading --------------------------------------------------------------------------------- */

double rf_cost_load_seconds(const rf_machine *machine, const char *what, double bytes) {
  const rf_curve *curve = exact_curve(machine, "load", what);
  return curve ? bytes / curve_rate(curve, bytes) : -1;
}

/* Without a curve, the time is that of copying the bytes `passes` times. */
static double load_seconds(const rf_machine *machine, const char *what, double bytes, double passes) {
  double seconds = rf_cost_load_seconds(machine, what, bytes);
  return seconds >= 0 ? seconds : machine->copy_bps > 0 ? passes * bytes / machine->copy_bps : 0;
}

double rf_plan_load_seconds(const rf_plan *plan) {
  double seconds = load_seconds(&plan->machine, "touch", (double)plan->arena_bytes, 1);
  for (int t = 0; t < plan->graph->tensor_count; t++) {
    const rf_tensor *tensor = &plan->graph->tensor[t];
    if (tensor->dtype != RF_PACKED || plan->tensor[t].offset < 0) continue;
    for (int k = 0; k < tensor->panels.parts; k++) {
      const rf_quant_type *type = tensor->panels.part[k].type;
      double bytes = ((double)tensor->panels.inner / type->values * type->bytes + type->head) *
                     (double)tensor->panels.part[k].outputs * (double)rf_panels_experts(&tensor->panels);
      seconds += load_seconds(&plan->machine, type->name, bytes, 2); /* 2 passes: read and write */
    }
  }
  return seconds;
}

/* ---- the step -------------------------------------------------------------------------------- */

void rf_plan_cost(rf_plan *plan) {
  const rf_graph *graph = plan->graph;
  double chips = (double)rf_mesh_chips(&graph->mesh);
  plan->model_flops = plan->hardware_flops = plan->flops_full_square = plan->bytes = plan->sent_bytes = 0;
  for (int i = 0; i < graph->op_count; i++) {
    rf_plan_op *p = &plan->op[i];
    double calls = p->calls * chips;
    p->seconds = rf_cost_op(&plan->machine, graph, &graph->op[i], p->kernel, p->work, &p->bound);
    plan->hardware_flops += rf_cost_flops(p->work) * calls;
    plan->bytes += (p->work.bytes_read + p->work.bytes_written) * calls;
    plan->sent_bytes += p->work.sent_bytes * p->calls;
    if (graph->op[i].recompute_of != RF_NONE) continue;
    plan->model_flops += p->work.flops * calls;
    plan->flops_full_square += p->work.flops_full * calls;
  }
  rf_plan_price_transfers(plan);
  rf_plan_price_waits(plan);
  plan->time = rf_plan_schedule(plan);
  plan->step_seconds = plan->time.seconds;
}
