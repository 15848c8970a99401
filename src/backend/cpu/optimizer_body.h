/* optimizer_body.h - gradient norm, clipping and AdamW. Included once per ISA (elementwise_*.c). */

enum { RF_NORM_CHUNK = 4096 };

static int64_t norm_sq_chunks(const rf_tensor *grad) {
  return (rf_tensor_count(grad) + RF_NORM_CHUNK - 1) / RF_NORM_CHUNK;
}
static size_t norm_sq_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  return (size_t)norm_sq_chunks(&graph->tensor[op->input[0]]) * sizeof(double);
}

/* Sums squares in sixteen doubles, then adds the doubles in the order of rf_v16_fold_sum. Squares
 * of floats are exact in double, so fused multiply-adds give the same sums. The code uses
 * intrinsics, because gcc 12 would convert floats to doubles one by one. */
#if defined(__AVX512F__)
RF_INLINE int64_t squares_of_vectors(const float *x, int64_t count, double lane[RF_LANES]) {
  __m512d low = _mm512_setzero_pd(), high = low;
  int64_t i = 0;
  for (; i + RF_LANES <= count; i += RF_LANES) {
    __m512d a = _mm512_cvtps_pd(_mm256_loadu_ps(x + i)), b = _mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8));
    low = _mm512_fmadd_pd(a, a, low);
    high = _mm512_fmadd_pd(b, b, high);
  }
  _mm512_storeu_pd(lane, low);
  _mm512_storeu_pd(lane + 8, high);
  return i;
}
#elif defined(__AVX2__) && defined(__FMA__)
RF_INLINE int64_t squares_of_vectors(const float *x, int64_t count, double lane[RF_LANES]) {
  __m256d sum[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
  int64_t i = 0;
  for (; i + RF_LANES <= count; i += RF_LANES) {
    for (int k = 0; k < 4; k++) {
      __m256d d = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * k));
      sum[k] = _mm256_fmadd_pd(d, d, sum[k]);
    }
  }
  for (int k = 0; k < 4; k++) _mm256_storeu_pd(lane + 4 * k, sum[k]);
  return i;
}
#else
RF_INLINE int64_t squares_of_vectors(const float *x, int64_t count, double lane[RF_LANES]) {
  (void)x;
  (void)count;
  for (int k = 0; k < RF_LANES; k++) lane[k] = 0;
  return 0;
}
#endif
RF_INLINE double sum_of_squares(const float *x, int64_t count) {
  double lane[RF_LANES];
  for (int64_t i = squares_of_vectors(x, count, lane); i < count; i++)
    lane[i % RF_LANES] += (double)x[i] * (double)x[i];
  for (int width = RF_LANES / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; k++) lane[k] += lane[k + width];
  }
  return lane[0];
}
/* `copies` chips have the columns from `own_columns` on. Divides the squares of these columns by
 * `copies`. */
static double sum_of_shared(const rf_call *call, int64_t first, int64_t count) {
  const rf_tensor *grad = rf_in(call, 0);
  const float *x = call->in[0];
  int64_t columns = grad->shape[grad->rank - 1];
  double own = 0, shared = 0;
  for (int64_t i = first; i < first + count; i++)
    *(i % columns < call->op->attr.sums.own_columns ? &own : &shared) += (double)x[i] * (double)x[i];
  return own + shared / call->op->attr.sums.copies;
}
static void norm_sq_range(const rf_call *call, int64_t begin, int64_t end) {
  int64_t count = rf_tensor_count(rf_in(call, 0));
  double *chunk_sums = call->workspace;
  for (int64_t chunk = begin; chunk < end; chunk++) {
    int64_t first = chunk * RF_NORM_CHUNK, n = count - first < RF_NORM_CHUNK ? count - first : RF_NORM_CHUNK;
    chunk_sums[chunk] = call->op->attr.sums.copies > 1
                            ? sum_of_shared(call, first, n)
                            : sum_of_squares((const float *)call->in[0] + first, n);
  }
}
static void norm_sq_run(const rf_call *call) {
  int64_t chunks = norm_sq_chunks(rf_in(call, 0));
  rf_split(call, chunks, 8, RF_NORM_CHUNK * 4, norm_sq_range);
  double sum = 0.0;
  for (int64_t chunk = 0; chunk < chunks; chunk++) sum += ((const double *)call->workspace)[chunk];
  ((double *)call->out[0])[call->op->attr.sums.element] =
      call->op->attr.group > 1 ? sum / call->op->attr.group : sum;
}

static void clip_run(const rf_call *call) {
  const double *sums = call->in[0];
  float *clip = call->out[0];
  double sum = 0.0, largest = (double)call->op->attr.clip.limit;
  for (int64_t i = 0; i < rf_tensor_count(rf_in(call, 0)); i++) sum += sums[i];
  double norm = sqrt(sum);
  clip[0] = (float)norm;
  clip[1] = largest > 0.0 && norm > largest ? (float)(largest / norm) : 1.0f;
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

typedef struct adamw_constants {
  rf_v16 scale, beta1, rest1, beta2, rest2, unbias1, unbias2, eps, lr, decay;
} adamw_constants;

/* m' = b1 m + (1-b1) g, v' = b2 v + (1-b2) g^2, w' = w - lr (mhat / (sqrt(vhat) + eps) + wd w). */
RF_INLINE rf_v16 adamw_step(const adamw_constants *k, rf_v16 g, rf_v16 w, rf_v16 *m, rf_v16 *v) {
  g = rf_v16_mul(g, k->scale);
  *m = rf_v16_fma(k->beta1, *m, rf_v16_mul(k->rest1, g));
  *v = rf_v16_fma(k->beta2, *v, rf_v16_mul(k->rest2, rf_v16_mul(g, g)));
  rf_v16 root = rf_v16_add(rf_v16_sqrt(rf_v16_mul(*v, k->unbias2)), k->eps);
  rf_v16 update = rf_v16_fma(k->decay, w, rf_v16_div(rf_v16_mul(*m, k->unbias1), root));
  return rf_v16_fnma(k->lr, update, w);
}

RF_INLINE rf_v16 adamw_piece(const adamw_constants *k, const float *grad, float *master, float *m, float *v,
                             int64_t i, int n) {
  rf_v16 mi = get(m, RF_F32, i, n), vi = get(v, RF_F32, i, n);
  rf_v16 w = adamw_step(k, get(grad, RF_F32, i, n), get(master, RF_F32, i, n), &mi, &vi);
  put(m, RF_F32, i, mi, n);
  put(v, RF_F32, i, vi, n);
  put(master, RF_F32, i, w, n);
  return w;
}

/* Updates master, m and v in place, and writes the bf16 weights if there are any. The cache lines
 * of master, m and v were just read, so ordinary stores write these arrays. With non-temporal
 * stores of these arrays, the op reaches only 0.82 of the speed. Non-temporal stores write only the
 * weights, which the op does not read. */
enum { AHEAD = 1024 }; /* prefetch distance in elements: 4 KiB of each array */
RF_INLINE void adamw_elements(const adamw_constants *k, const rf_call *call, int64_t begin, int64_t end,
                              bool prefetch, int64_t grad_ahead) {
  const float *grad = call->in[0];
  float *master = call->out[0], *m = call->out[1], *v = call->out[2];
  rf_bf16 *weight = call->out[3];
  int64_t i = begin;
  if (!weight || ((uintptr_t)(weight + begin) & 63u) == 0) {
    for (; i + 2 * RF_LANES <= end; i += 2 * RF_LANES) {
      for (int line = 0; prefetch && line < 2; line++) {
        int64_t at = i + AHEAD + line * RF_LANES;
        __builtin_prefetch(grad + i + grad_ahead + line * RF_LANES, 0);
        __builtin_prefetch(master + at, 1);
        __builtin_prefetch(m + at, 1);
        __builtin_prefetch(v + at, 1);
      }
      rf_v16 a = adamw_piece(k, grad, master, m, v, i, RF_LANES),
             b = adamw_piece(k, grad, master, m, v, i + RF_LANES, RF_LANES);
      if (weight) rf_v16_stream_bf16_pair(weight + i, a, b);
    }
  }
  for (; i < end; i += RF_LANES) {
    int n = piece(end, i);
    rf_v16 w = adamw_piece(k, grad, master, m, v, i, n);
    if (weight) put(weight, RF_BF16, i, w, n);
  }
}
static adamw_constants adamw_constants_of(const rf_call *call) {
  const rf_attr_adamw *attr = &call->op->attr.adamw;
  const float *clip = call->in[4];
  double step = (double)call->run->step;
  return (adamw_constants){
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
}
static bool updates_with_sums(const rf_op *op) { return op->output_count > 4 && op->output[4] != RF_NONE; }
static size_t adamw_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  return updates_with_sums(op) ? norm_sq_workspace(graph, op, by) : 0;
}
/* Updates elements [begin, end). If the op also sums squares, updates chunks [begin, end). The
 * squares of a chunk are summed first, because a non-finite gradient must not change the chunk. */
RF_INLINE void adamw_share(const rf_call *call, int64_t begin, int64_t end, bool prefetch) {
  const adamw_constants k = adamw_constants_of(call);
  const int64_t count = rf_tensor_count(rf_in(call, 0));
  double *sums = updates_with_sums(call->op) ? call->workspace : NULL;
  if (!sums) adamw_elements(&k, call, begin, end, prefetch, AHEAD);
  for (int64_t chunk = begin; sums && chunk < end; chunk++) {
    int64_t first = chunk * RF_NORM_CHUNK, n = count - first < RF_NORM_CHUNK ? count - first : RF_NORM_CHUNK;
    sums[chunk] = sum_of_squares((const float *)call->in[0] + first, n);
    if (isfinite(sums[chunk])) adamw_elements(&k, call, first, first + n, prefetch, RF_NORM_CHUNK);
  }
  rf_stream_fence();
}
static void adamw_all(const rf_call *call, rf_range_fn share) {
  if (!updates_with_sums(call->op)) {
    rf_split(call, rf_tensor_count(rf_in(call, 0)), RF_ELEMENT_GRAIN, 28, share);
    return;
  }
  int64_t chunks = norm_sq_chunks(rf_in(call, 0));
  rf_split(call, chunks, 1, RF_NORM_CHUNK * 28, share);
  double sum = 0.0;
  for (int64_t chunk = 0; chunk < chunks; chunk++) sum += ((const double *)call->workspace)[chunk];
  ((double *)call->out[4])[call->op->attr.sums.element] = sum;
}
static void adamw_range(const rf_call *call, int64_t begin, int64_t end) {
  adamw_share(call, begin, end, false);
}
static void adamw_run(const rf_call *call) { adamw_all(call, adamw_range); }

/* Prefetching a page ahead is 8 % faster on Intel (Emerald Rapids), whose hardware prefetchers stop
 * at page ends. Prefetching is 5 to 30 % slower on AMD (Zen 4), whose prefetchers continue. */
static void adamw_prefetch_range(const rf_call *call, int64_t begin, int64_t end) {
  adamw_share(call, begin, end, true);
}
static void adamw_prefetch_run(const rf_call *call) { adamw_all(call, adamw_prefetch_range); }
static bool wants_prefetch(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}
