/* optimizer_body.h - the end of a step: the gradients' norm, clipping, AdamW. Included once per ISA (elementwise_*.c). */

enum { RF_NORM_CHUNK = 4096 };

static int64_t norm_sq_chunks(const rf_tensor *grad) { return (rf_tensor_count(grad) + RF_NORM_CHUNK - 1) / RF_NORM_CHUNK; }
static size_t norm_sq_workspace(const rf_graph *graph, const rf_op *op, int threads) {
  (void)threads;
  return (size_t)norm_sq_chunks(&graph->tensor[op->input[0]]) * sizeof(double);
}

/* Sixteen lanes of double through the compilers' vector types: sums of squares (exact in double), folded by the usual tree. */
typedef float rf_f8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef double rf_d8 __attribute__((vector_size(64)));
RF_INLINE double sum_of_squares(const float *x, int64_t count) {
  rf_d8 low = {0}, high = {0};
  int64_t i = 0;
  for (; i + RF_LANES <= count; i += RF_LANES) {
    rf_d8 a = __builtin_convertvector(*(const rf_f8 *)(x + i), rf_d8), b = __builtin_convertvector(*(const rf_f8 *)(x + i + 8), rf_d8);
    low += a * a;
    high += b * b;
  }
  double lane[RF_LANES];
  memcpy(lane, &low, sizeof low);
  memcpy(lane + 8, &high, sizeof high);
  for (int64_t k = 0; i + k < count; k++) lane[k] += (double)x[i + k] * (double)x[i + k];
  for (int width = RF_LANES / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; k++) lane[k] += lane[k + width];
  }
  return lane[0];
}
static void norm_sq_range(const rf_call *call, int64_t begin, int64_t end) {
  int64_t count = rf_tensor_count(rf_in(call, 0));
  double *chunk_sums = call->workspace;
  for (int64_t chunk = begin; chunk < end; chunk++) {
    int64_t first = chunk * RF_NORM_CHUNK, n = count - first < RF_NORM_CHUNK ? count - first : RF_NORM_CHUNK;
    chunk_sums[chunk] = sum_of_squares((const float *)call->in[0] + first, n);
  }
}
static void norm_sq_run(const rf_call *call) {
  int64_t chunks = norm_sq_chunks(rf_in(call, 0));
  rf_split(call, chunks, 8, RF_NORM_CHUNK * 4, norm_sq_range);
  double sum = 0.0;
  for (int64_t chunk = 0; chunk < chunks; chunk++) sum += ((const double *)call->workspace)[chunk];
  ((double *)call->out[0])[call->op->attr.index] = sum;
}

static void clip_run(const rf_call *call) {
  const double *sums = call->in[0];
  float *clip = call->out[0];
  double sum = 0.0, largest = (double)call->op->attr.clip;
  for (int64_t i = 0; i < rf_tensor_count(rf_in(call, 0)); i++) sum += sums[i];
  double norm = sqrt(sum);
  clip[0] = (float)norm;
  clip[1] = largest > 0.0 && norm > largest ? (float)(largest / norm) : 1.0f;
}

/* ---- AdamW ----------------------------------------------------------------------------------------------------------- */

typedef struct adamw_constants { rf_v16 scale, beta1, rest1, beta2, rest2, unbias1, unbias2, eps, lr, decay; } adamw_constants;

/* m' = b1 m + (1-b1) g, v' = b2 v + (1-b2) g^2, w' = w - lr (mhat / (sqrt(vhat) + eps) + wd w). */
RF_INLINE rf_v16 adamw_step(const adamw_constants *k, rf_v16 g, rf_v16 w, rf_v16 *m, rf_v16 *v) {
  g = rf_v16_mul(g, k->scale);
  *m = rf_v16_fma(k->beta1, *m, rf_v16_mul(k->rest1, g));
  *v = rf_v16_fma(k->beta2, *v, rf_v16_mul(k->rest2, rf_v16_mul(g, g)));
  rf_v16 root = rf_v16_add(rf_v16_sqrt(rf_v16_mul(*v, k->unbias2)), k->eps);
  rf_v16 update = rf_v16_fma(k->decay, w, rf_v16_div(rf_v16_mul(*m, k->unbias1), root));
  return rf_v16_fnma(k->lr, update, w);
}

/* One loop over grad, master, m, v, in place. Ordinary stores: the lines are read anyway. Prefetch a page ahead: four streams
 * cross pages together, where the hardware's own prefetch stops. */
static void adamw_range(const rf_call *call, int64_t begin, int64_t end) {
  enum { AHEAD = 1024 }; /* elements: 4 KiB of each stream */
  const rf_attr *attr = &call->op->attr;
  const float *clip = call->in[4];
  double step = (double)call->run->step;
  adamw_constants k = {
      .scale = rf_v16_set1(clip ? clip[1] : 1.0f),
      .beta1 = rf_v16_set1(attr->beta1),
      .rest1 = rf_v16_set1(1.0f - attr->beta1),
      .beta2 = rf_v16_set1(attr->beta2),
      .rest2 = rf_v16_set1(1.0f - attr->beta2),
      .unbias1 = rf_v16_set1((float)(1.0 / (1.0 - pow((double)attr->beta1, step)))),
      .unbias2 = rf_v16_set1((float)(1.0 / (1.0 - pow((double)attr->beta2, step)))),
      .eps = rf_v16_set1(attr->eps),
      .lr = rf_v16_set1(call->run->lr),
      .decay = rf_v16_set1(attr->weight_decay),
  };
  const float *grad = call->in[0];
  float *master = call->out[0], *m = call->out[1], *v = call->out[2];
  rf_bf16 *weight = call->out[3];
  int64_t i = begin;
  for (; i + RF_LANES <= end; i += RF_LANES) {
    __builtin_prefetch(grad + i + AHEAD, 0);
    __builtin_prefetch(master + i + AHEAD, 1);
    __builtin_prefetch(m + i + AHEAD, 1);
    __builtin_prefetch(v + i + AHEAD, 1);
    rf_v16 mi = rf_v16_load(m + i), vi = rf_v16_load(v + i), w = adamw_step(&k, rf_v16_load(grad + i), rf_v16_load(master + i), &mi, &vi);
    rf_v16_store(m + i, mi);
    rf_v16_store(v + i, vi);
    rf_v16_store(master + i, w);
    if (weight) rf_v16_store_bf16(weight + i, w);
  }
  if (i < end) {
    int n = (int)(end - i);
    rf_v16 mi = rf_v16_load_n(m + i, n), vi = rf_v16_load_n(v + i, n), w = adamw_step(&k, rf_v16_load_n(grad + i, n), rf_v16_load_n(master + i, n), &mi, &vi);
    rf_v16_store_n(m + i, mi, n);
    rf_v16_store_n(v + i, vi, n);
    rf_v16_store_n(master + i, w, n);
    if (weight) rf_v16_store_bf16_n(weight + i, w, n);
  }
}
static void adamw_run(const rf_call *call) { rf_split(call, rf_tensor_count(rf_in(call, 0)), RF_ELEMENT_GRAIN, 28, adamw_range); }
