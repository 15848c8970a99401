/* attention.h - what the attention kernels of every ISA share: the definition of their
 * arithmetic, their shapes and their memory.
 *
 * The bits of every output are fixed by this definition, whatever the ISA, the thread count, the
 * height of a strip of queries, the other segments of the batch, whether keys come from the
 * batch or from a cache, and how large its pages are. f32 throughout; "chain" is one running sum
 * of fused multiply-adds; absent (masked) keys take part as p = 0, which changes nothing as long
 * as values are finite.
 *
 *   a_ij   = chain over d ascending of q_id k_jd, from 0
 *   s_ij   = a_ij, c = scale log2(e); with a softcap s_ij = softcap tanh(scale a_ij / softcap),
 *     c = log2(e);
 *            where the softmax is bf16 s_ij = round_bf16 of that or of scale a_ij, c = log2(e)
 *   Keys are taken in blocks of RF_ATTENTION_BLOCK, counted from position 0 of the segment,
 *     ascending. Per block:
 *   m'     = max(m, max_j s_ij), m = -1e30 before the first block        f = 2^((m - m') c)
 *   p_ij   = 2^fma(s_ij, c, -(m' c))
 *   b      = sixteen partial sums of p_ij, lane = j mod 16, j ascending, then the tree (i +=
 *     i+8, i+4, i+2, i+1)
 *   l      = fma(l, f, b)
 *   o_id   = o_id f, then the chain over j ascending of p_ij v_jd, continuing from it
 *   At the end: ctx_id = round(fma(o_id, 1 / l, 0)), lse_i = m c / log2(e) + log l.
 *
 * Backward, with p_ij = 2^fma(s_ij, c, -(lse_i log2 e)), one chain per sum:
 *   D_i    = sixteen chains over d of dctx_id ctx_id, lane = d mod 16, then the tree
 *   e_ij   = chain over d of dctx_id v_jd          t_ij = p_ij (e_ij - D_i), with a softcap (1 -
 *     (s_ij/softcap)^2) times that
 *   dq_id  = scale * chain over j ascending of t_ij k_jd
 *   dk_jd  = scale * chain over (query head of the group, i) ascending of t_ij q_id
 *   dv_jd  = chain over (query head of the group, i) ascending of p_ij dctx_id
 *
 * With tiles (level amx) the backward of bf16 multiplies as bf16: a_ij, e_ij and the three
 * gradients are sums as gemm.h defines them of products with tiles, their steps of 32 counted
 * from d = 0 and from position 0 of the segment (for dk and dv in every query head anew), and
 * p_ij and t_ij are rounded to bf16 there, subnormals to zeros. All else is as above. */
#ifndef RF_ATTENTION_H
#define RF_ATTENTION_H

#include "backend/kernel.h"
#include "machine/isa.h"

enum {
  RF_ATTENTION_BLOCK = 256, /* keys of a softmax block: part of the definition */
  RF_ATTENTION_PANEL = 32,  /* keys or columns of a packed panel */
  /* query rows that share one walk over the keys, so that a block of keys is read from L2 */
  RF_ATTENTION_QUERIES = 192,
  /* query rows of one walk of a single token: at most as many strips, so STRIP_ROWS holds them */
  RF_ATTENTION_DECODE = 32,
  RF_ATTENTION_SCORES = 64, /* rows of scores a walk holds: DECODE rows in strips of any height */
  /* backward: queries and keys of a block of probabilities; a multiple of every tile height and
   * of the panel */
  RF_ATTENTION_TILE = 96,
  /* backward: such blocks of queries between two barriers where threads share a unit */
  RF_ATTENTION_TEAM = 4,
  /* backward with tiles: blocks of 32 queries that meet a block of keys one after the other */
  RF_ATTENTION_SPAN = 8,
  RF_ATTENTION_MAX_HEIGHT = 12, /* tallest strip of any ISA */
  /* most strips of one walk: every head may leave one strip unfilled (2 x 192 / 4, 4 the lowest
   * strip) */
  RF_ATTENTION_STRIPS = 97,
  RF_ATTENTION_STRIP_ROWS = 400 /* rows in that many strips, on any ISA: 33 strips of 12, 65 of 6, 97 of 4 */
};

/* Shapes of one call. */
typedef struct rf_attention {
  int64_t rows;                           /* n */
  int64_t longest;                        /* T: no segment (context, for the cache) is longer */
  int heads, kv_heads, group, dim, width; /* N, K, N/K, H, and H rounded up to 16 */
  int64_t ld;                             /* (N + 2K) H: elements of a row of qkv */
  float scale;
  int64_t window; /* keys a query sees; INT64_MAX/2 when all */
  rf_dtype dtype; /* of qkv and ctx */
  float softcap;  /* 0: none */
  bool round;     /* scaled scores are rounded to bf16 */
  bool scaled;    /* s_ij is the scaled score: there is a softcap, or it is rounded */
  bool narrow;    /* the cache is i8 */
} rf_attention;
rf_attention rf_attention_of(const rf_graph *graph, const rf_op *op);

/* A strip of query rows on its walk over the keys: up to MAX_HEIGHT rows of the batch, of any
 * heads of a group. */
typedef struct rf_attention_strip {
  /* whole cache lines: what follows the strips in a workspace is read by whole vectors */
  _Alignas(64) int rows;
  int height;                         /* of the tile that computes the rows in use */
  int64_t first, last;                /* keys that some row sees: [first, last) */
  int64_t low[16], high[16], row[16]; /* keys each row sees, and its row of the batch */
  int head[16];
  int64_t line; /* first of its rows where strips have score rows of their own (decode) */
  /* running maximum and sum; decode: what the context is to be multiplied by */
  float m[16], l[16], factor[16];
  float *q, *acc; /* (d, MR) packed queries; (MR, width) running context */
} rf_attention_strip;

/* Segments until the entry that equals n; work of all units (segment, kv head), and whether one
 * unit is so long that threads share it. */
int64_t rf_attention_segments(const int32_t *segment, int64_t rows);
double rf_attention_total(const rf_attention *a, const int32_t *segment, int64_t segments);
bool rf_attention_split(const rf_attention *a, int64_t length, double total, int threads);

/* Floats of one thread's workspace. */
size_t rf_attention_forward_floats(const rf_attention *a);
size_t rf_attention_cached_floats(const rf_attention *a);
size_t rf_attention_backward_floats(const rf_attention *a);
/* of the backward with tiles, where they share the first one's */
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

/* Element `i` of an array of f32 or bf16. */
static inline const void *rf_at(const void *p, rf_dtype dtype, int64_t i) {
  return (const char *)p + i * (dtype == RF_BF16 ? 2 : 4);
}
static inline int64_t rf_round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
static inline int64_t rf_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t rf_max64(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
