/* attention.h - defines the arithmetic of attention, and the shapes and workspace sizes that the
 * kernels of all ISAs share. The formulas below fix every bit of the outputs. So outputs do not
 * depend on the ISA (except AMX), the number of threads, the strip height, the other segments of
 * the batch, or the page size of the cache. Cached keys give the same outputs as keys of the batch.
 * All arithmetic is f32. A "chain" is one running sum of fused multiply-adds, from 0. A masked key
 * has p = 0, which changes no sum of finite values. i is a query, j a key, d an element of a head.
 *   a_ij   = chain over ascending d of q_id k_jd
 *   f32 softmax:               s_ij = a_ij, and c = scale log2(e)
 *   f32 softmax with softcap:  s_ij = softcap tanh(scale a_ij / softcap), and c = log2(e)
 *   bf16 softmax:              s_ij = round_bf16(scale a_ij), and c = log2(e)
 *   bf16 softmax with softcap: s_ij = round_bf16(softcap tanh(scale a_ij / softcap)), c = log2(e).
 * Keys are read in ascending blocks of RF_ATTENTION_BLOCK keys, counted from position 0 of the
 * segment. Before the first block, m = -1e30, and l and o are 0. For each block:
 *   m'     = max(m, max_j s_ij), which is m of the next block
 *   f      = 2^((m - m') c)
 *   p_ij   = 2^fma(s_ij, c, -(m' c))
 *   b      = sum of p_ij: sixteen partial sums, lane = j mod 16, ascending j; then the tree
 *            lane i += lane i+8, i+4, i+2, i+1
 *   l      = fma(l, f, b)
 *   o_id   = o_id f, continued by the chain over ascending j of p_ij v_jd.
 * After the last block:
 *   ctx_id = round(fma(o_id, 1 / l, 0))
 *   lse_i  = m c / log2(e) + log l.
 * In the backward pass, each sum is one chain. h is one of the query heads that share a key head.
 * "Ascending (h, i)" means that h ascends, and that i ascends for each h:
 *   p_ij   = 2^fma(s_ij, c, -(lse_i log2 e))
 *   D_i    = sixteen chains over d of dctx_id ctx_id, lane = d mod 16, then the same tree
 *   e_ij   = chain over d of dctx_id v_jd
 *   t_ij   = p_ij (e_ij - D_i), times (1 - (s_ij/softcap)^2) if there is a softcap
 *   dq_id  = scale * chain over ascending j of t_ij k_jd
 *   dk_jd  = scale * chain over ascending (h, i) of t_ij q_id
 *   dv_jd  = chain over ascending (h, i) of p_ij dctx_id.
 * On AMX, the backward pass of bf16 computes a_ij, e_ij, dq, dk and dv as tile products (gemm.h),
 * in steps of 32 values of the summed index. Steps over d start at d = 0. Steps over keys or
 * queries start at position 0 of the segment. For dk and dv, each query head starts a new step.
 * p_ij and t_ij are rounded to bf16, and subnormal values become zeros. All other arithmetic
 * follows the formulas above. */
#ifndef RF_ATTENTION_H
#define RF_ATTENTION_H

#include "backend/kernel.h"
#include "machine/isa.h"

enum {
  RF_ATTENTION_BLOCK = 256, /* number of keys of a softmax block; results depend on this number */
  RF_ATTENTION_PANEL = 32,  /* number of keys or columns of a packed panel */
  /* number of query rows of one pass; a pass reads each block of keys from memory once */
  RF_ATTENTION_QUERIES = 192,
  /* number of query rows of one pass for a single token; STRIP_ROWS is enough for one strip per
   * row */
  RF_ATTENTION_DECODE = 32,
  /* rows of scores in the workspace of a pass for a single token, including padding */
  RF_ATTENTION_SCORES = 64,
  /* backward: number of queries, and of keys, of a block; a multiple of PANEL and of all strip
   * heights */
  RF_ATTENTION_TILE = 96,
  /* backward, if all threads share a unit: number of blocks of queries between two barriers */
  RF_ATTENTION_TEAM = 4,
  /* backward on AMX: number of blocks of 32 queries in a span, which is computed as a whole */
  RF_ATTENTION_SPAN = 8,
  RF_ATTENTION_MAX_HEIGHT = 12, /* height of the tallest strip on any ISA */
  /* maximum number of strips of one pass: 2 x 192 / 4 + 1, where 4 is the smallest strip height of
   * all ISAs. The factor 2 is needed because the last strip of a head may not be full. */
  RF_ATTENTION_STRIPS = 97,
  /* maximum sum of the heights of all strips of a pass. By ISA: 33 strips of 12 rows, 65 strips of
   * 6 rows, or 97 strips of 4 rows */
  RF_ATTENTION_STRIP_ROWS = 400
};

typedef struct rf_attention {
  int64_t rows;                           /* rows of the batch (n) */
  int64_t longest;                        /* T: maximum length of a segment or cached context */
  int heads, kv_heads, group, dim, width; /* N, K, N/K, H, and H rounded up to a multiple of 16 */
  int64_t ld;                             /* (N + 2K) H: elements of a row of qkv */
  /* Row r of qkv is row r * step + rank of the segments. Only attention_part has step > 1; its
   * input `key_input` has the keys and values of all rows. */
  int64_t step, rank;
  int key_input;
  /* key_ld: elements of a row of keys and values. key_at: elements of such a row before the first
   * key head. dq_ld: elements of a row of query gradients */
  int64_t key_ld, key_at, dq_ld;
  float scale;
  int64_t window; /* maximum number of keys that a query sees; INT64_MAX/2 without a window */
  rf_dtype dtype; /* type of qkv and ctx */
  float softcap;  /* 0 without a softcap */
  bool round;     /* true: scaled scores are rounded to bf16 */
  bool scaled;    /* true: s_ij includes the scale, as a softcap and rounding to bf16 require */
  bool narrow;    /* the cache is i8 */
} rf_attention;
rf_attention rf_attention_of(const rf_graph *graph, const rf_op *op); /* with rank 0 */
rf_attention rf_attention_here(const rf_call *call);

/* A strip is up to MAX_HEIGHT query rows that one register tile computes. The rows may belong to
 * different heads of a group. */
typedef struct rf_attention_strip {
  /* _Alignas makes the size a multiple of the cache line. So the vectors after the strips in the
   * workspace are aligned. */
  _Alignas(64) int rows;
  int height;                         /* height of the register tile that computes these rows */
  int64_t first, last;                /* the strip's rows see no keys outside [first, last) */
  int64_t low[16], high[16], row[16]; /* row r sees keys [low[r], high[r]) */
  int head[16];
  int64_t line; /* in decoding: index of the strip's first row of scores */
  /* running maximum and sum of each row; in decoding also the factor of the running context */
  float m[16], l[16], factor[16];
  float *q, *acc; /* (d, MR) packed queries; (MR, width) running context */
} rf_attention_strip;

/* A unit of work of the attention kernels is one KV head of one segment. */
typedef struct rf_attention_unit {
  int64_t origin, length; /* first row and number of rows of the segment */
  int kv_head;
} rf_attention_unit;
typedef void rf_attention_unit_fn(void *job, const rf_attention_unit *unit, bool together);
/* Runs all units. Every thread of a parallel region calls this function with its own job. A long
 * unit runs on all threads (`together`), and a short unit on one thread. */
void rf_attention_units(const rf_attention *a, const int32_t *segment, rf_attention_unit_fn *run, void *job);

size_t rf_attention_forward_floats(const rf_attention *a);
size_t rf_attention_cached_floats(const rf_attention *a);
size_t rf_attention_backward_floats(const rf_attention *a);
/* Number of floats of workspace that each thread needs for backward on AMX. Threads that share a
 * unit use the workspace of the first thread. */
size_t rf_attention_tiles_floats(const rf_attention *a);

void rf_attention_avx512(const rf_call *call);
void rf_attention_avx2(const rf_call *call);
void rf_attention_base(const rf_call *call);
void rf_attention_kv_avx512(const rf_call *call);
void rf_attention_kv_avx2(const rf_call *call);
void rf_attention_kv_base(const rf_call *call);
void rf_attention_bwd_amx(const rf_call *call);
void rf_attention_bwd_avx512(const rf_call *call);
void rf_attention_bwd_avx2(const rf_call *call);
void rf_attention_bwd_base(const rf_call *call);

extern const rf_kernel RF_CPU_ATTENTION[];

static inline const void *rf_at(const void *p, rf_dtype dtype, int64_t i) {
  return (const char *)p + i * (dtype == RF_F32 ? 4 : dtype == RF_BF16 ? 2 : 1);
}
/* The first row of qkv that is row `at` of the segments, or a later row. */
static inline int64_t rf_attention_row(const rf_attention *a, int64_t at) {
  return (at - a->rank + a->step - 1) / a->step;
}
static inline int64_t rf_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t rf_max64(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
