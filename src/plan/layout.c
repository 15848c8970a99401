/* layout.c - chooses one offset per tensor in one arena. Persistent tensors come first, in an order
 * that depends only on the parameter table. The other tensors follow. Two of these tensors may
 * share bytes if their lifetimes do not overlap. Finding the lowest layout is NP-hard. So blocks
 * are placed greedily in several orders, and the lowest result is kept. */
#include "plan/parts.h"

#include "graph/mesh/pipeline.h"

#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- the search for a gap -------------------------------------------------------------------- */

/* Placed blocks by ascending offset. The fields are separate arrays so that a scan of the lifetimes
 * reads little memory. The arrays are padded to a multiple of STRIDE. */
enum { STRIDE = 16 };
typedef struct bucket {
  int count;
  int *first, *last;
  int64_t *start, *end;
} bucket;

/* A search for the smallest gap that holds a block. The gaps are between placed blocks whose
 * lifetimes overlap with the block's lifetime. If no gap fits, `best` is -1, and `top` is the end
 * of the highest of these placed blocks. */
typedef struct gap_search {
  int64_t bytes, top, best; /* top: end of the highest block visited so far */
  uint64_t over;            /* number of bytes that the block would leave free in the best gap */
} gap_search;

static inline void pass_gap(gap_search *f, int64_t start, int64_t end) {
  uint64_t over = (uint64_t)(start - f->top - f->bytes); /* this number is huge if the gap is too small */
  if (over < f->over) {
    f->best = f->top;
    f->over = over;
  }
  if (end > f->top) f->top = end;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

typedef enum rank_by { BY_LIFETIME, BY_AREA, BY_BYTES, BY_RANKS } rank_by;
typedef struct ranked {
  double major;
  int64_t minor;
  int index;
} ranked;

static inline bool comes_before(const ranked *x, const ranked *y) {
  if (x->major != y->major) return x->major > y->major;
  if (x->minor != y->minor) return x->minor > y->minor;
  return x->index < y->index;
}

/* Merge sort that moves items between two arrays. Returns the array that holds the result. qsort is
 * slower because it calls a function for every pair. */
static const ranked *sort_ranked(ranked *from, ranked *to, int count) {
  for (int run = 1; run < count; run *= 2) {
    for (int at = 0; at < count; at += 2 * run) {
      int middle = at + run < count ? at + run : count, end = at + 2 * run < count ? at + 2 * run : count,
          a = at, b = middle, k = at;
      while (a < middle && b < end) to[k++] = comes_before(&from[b], &from[a]) ? from[b++] : from[a++];
      while (a < middle) to[k++] = from[a++];
      while (b < end) to[k++] = from[b++];
    }
    ranked *other = from;
    from = to;
    to = other;
  }
  return from;
}

/* Sorts blocks in descending order of their lifetime, of bytes x lifetime, or of their bytes.
 * `scratch`: 2 x count entries. */
static void rank(const rf_block *block, int count, rank_by by, ranked *scratch, int *order) {
  for (int i = 0; i < count; i++) {
    double life = (double)block[i].last - block[i].first + 1, bytes = (double)block[i].bytes;
    scratch[i].major = by == BY_LIFETIME ? life : by == BY_AREA ? life * bytes : bytes;
    scratch[i].minor = by == BY_LIFETIME ? block[i].bytes : (int64_t)life;
    scratch[i].index = i;
  }
  const ranked *sorted = sort_ranked(scratch, scratch + count, count);
  for (int i = 0; i < count; i++) order[i] = sorted[i].index;
}

/* Bit k is set if the lifetime of block at + k overlaps with the ops `first` to `last`, for k <
 * STRIDE. */
#ifdef __SSE2__
static inline unsigned meeting(const bucket *s, int at, int first, int last) {
  __m128i from = _mm_set1_epi32(first), to = _mm_set1_epi32(last), apart[STRIDE / 4];
  for (int i = 0; i < STRIDE / 4; i++) {
    __m128i begins = _mm_loadu_si128((const __m128i *)(s->first + at + 4 * i)),
            ends = _mm_loadu_si128((const __m128i *)(s->last + at + 4 * i));
    apart[i] = _mm_or_si128(_mm_cmpgt_epi32(begins, to), _mm_cmpgt_epi32(from, ends));
  }
  return ~(unsigned)_mm_movemask_epi8(
             _mm_packs_epi16(_mm_packs_epi32(apart[0], apart[1]), _mm_packs_epi32(apart[2], apart[3]))) &
         0xffffu;
}
#else
static inline unsigned meeting(const bucket *s, int at, int first, int last) {
  unsigned bits = 0;
  for (int i = 0; i < STRIDE; i++)
    bits |= (unsigned)(s->first[at + i] <= last && s->last[at + i] >= first) << i;
  return bits;
}
#endif

/* Updates the search with the blocks of a bucket whose lifetimes overlap with the ops `first` to
 * `last`. */
static void pass_blocks(const bucket *s, int first, int last, gap_search *to) {
  /* A local copy can stay in registers, because *to might alias the arrays. */
  gap_search f = *to;
  for (int j = 0; j < s->count && f.over; j += STRIDE) {
    const int64_t *start = s->start + j, *end = s->end + j;
    unsigned bits = meeting(s, j, first, last);
    if (s->count - j < STRIDE) bits &= (1u << (s->count - j)) - 1;
    for (; bits; bits &= bits - 1) {
      size_t k = (size_t)__builtin_ctz(bits);
      pass_gap(&f, start[k], end[k]);
    }
  }
  *to = f;
}

static inline gap_search begin_search(const rf_block *b) {
  return (gap_search){b->bytes, 0, -1, (uint64_t)INT64_MAX};
}
static inline int64_t found(const gap_search *f) { return f->best >= 0 ? f->best : f->top; }

static void bucket_insert(bucket *s, const rf_block *b) {
  int low = 0, high = s->count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (s->start[middle] < b->offset) low = middle + 1;
    else high = middle;
  }
  size_t tail = (size_t)(s->count - low);
  memmove(s->first + low + 1, s->first + low, tail * sizeof *s->first);
  memmove(s->last + low + 1, s->last + low, tail * sizeof *s->last);
  memmove(s->start + low + 1, s->start + low, tail * sizeof *s->start);
  memmove(s->end + low + 1, s->end + low, tail * sizeof *s->end);
  s->first[low] = b->first;
  s->last[low] = b->last;
  s->start[low] = b->offset;
  s->end[low] = b->offset + b->bytes;
  s->count++;
}

/* An index of placed blocks, in buckets sorted by offset. Each bucket has a summary. So a search
 * can skip the bucket, or treat it as one block. Adjacent blocks often live together. */
enum { BUCKET_SIZE = 64 };
typedef struct summary {
  int least_first, most_first, least_last, most_last;
  /* `end` is the highest end of the blocks in a bucket. If `measured` is true, `gap` is the largest
   * gap between these blocks. */
  int64_t end, gap;
  bool measured;
} summary;
typedef struct block_index {
  int count, *order; /* bucket indices by ascending offset */
  bucket *bucket;
  summary *summary;
} block_index;

static void add_up(summary *m, int first, int last, int64_t end) {
  if (first < m->least_first) m->least_first = first;
  if (first > m->most_first) m->most_first = first;
  if (last < m->least_last) m->least_last = last;
  if (last > m->most_last) m->most_last = last;
  if (end > m->end) m->end = end;
  m->measured = false;
}

static const summary NOTHING = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 0, 0, false};

static summary sum_up(const bucket *s) {
  summary m = NOTHING;
  for (int i = 0; i < s->count; i++) add_up(&m, s->first[i], s->last[i], s->end[i]);
  return m;
}

static int64_t gap_of(const bucket *s, summary *m) {
  int64_t top = s->end[0];
  if (m->measured) return m->gap;
  m->gap = INT64_MIN;
  m->measured = true;
  for (int i = 1; i < s->count; i++) {
    if (s->start[i] - top > m->gap) m->gap = s->start[i] - top;
    if (s->end[i] > top) top = s->end[i];
  }
  return m->gap;
}

static int64_t best_gap_of(const block_index *r, const rf_block *b) {
  gap_search f = begin_search(b);
  for (int i = 0; i < r->count && f.over; i++) {
    const bucket *s = &r->bucket[r->order[i]];
    summary *m = &r->summary[r->order[i]];
    if (m->least_first > b->last || m->most_last < b->first) continue;
    bool all = m->most_first <= b->last && m->least_last >= b->first;
    if (all && gap_of(s, m) < b->bytes) pass_gap(&f, s->start[0], m->end);
    else pass_blocks(s, b->first, b->last, &f);
  }
  return found(&f);
}

/* Moves the upper half of a full bucket to a new bucket with higher offsets. */
static void split(block_index *r, int at) {
  bucket *low = &r->bucket[r->order[at]], *high = &r->bucket[r->count];
  int half = BUCKET_SIZE / 2;
  memmove(r->order + at + 2, r->order + at + 1, (size_t)(r->count - at - 1) * sizeof *r->order);
  r->order[at + 1] = r->count++;
  memcpy(high->first, low->first + half, (size_t)half * sizeof *low->first);
  memcpy(high->last, low->last + half, (size_t)half * sizeof *low->last);
  memcpy(high->start, low->start + half, (size_t)half * sizeof *low->start);
  memcpy(high->end, low->end + half, (size_t)half * sizeof *low->end);
  low->count = high->count = half;
  r->summary[r->order[at]] = sum_up(low);
  r->summary[r->order[at + 1]] = sum_up(high);
}

/* Inserts a block into the highest bucket that starts below the block. If no bucket starts below
 * the block, uses the lowest bucket. */
static void insert(block_index *r, const rf_block *b) {
  int low = 0, high = r->count - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (r->bucket[r->order[middle]].start[0] < b->offset) low = middle;
    else high = middle - 1;
  }
  if (r->bucket[r->order[low]].count == BUCKET_SIZE) {
    split(r, low);
    low += r->bucket[r->order[low + 1]].start[0] < b->offset;
  }
  bucket_insert(&r->bucket[r->order[low]], b);
  add_up(&r->summary[r->order[low]], b->first, b->last, b->offset + b->bytes);
}

static void clear(block_index *r) {
  r->count = 1;
  r->order[0] = 0;
  r->bucket[0].count = 0;
  r->summary[0] = NOTHING;
}

/* It would be slow to compare each block with all others. So with more than MANY blocks, a first
 * phase places the long blocks, which live for at least SHORT ops. A second phase takes one op
 * after another, and places the short blocks between the long ones. */
enum { MANY = 1500, SHORT = 8 };

typedef struct gap {
  int64_t start, end;
} gap;
typedef struct packer {
  rf_pool *pool;
  const rf_block *shape; /* the blocks in the order of the caller */
  int count, ops,        /* ops: number of ops that the lifetimes span */
      base;              /* number of the first of these ops */
  int shortest;          /* minimum lifetime, in ops, of blocks that the first phase places */
  int64_t *offset;
  block_index longs;
  /* For each op: linked lists of the blocks that begin at the op, and of the long blocks that end
   * there. */
  int *begin, *begin_next, *end, *end_next;
  /* Gaps between the long blocks at the current op, by ascending address. The last gap has no
   * end. */
  gap *gap;
  int gaps;
  bucket around;         /* blocks whose lifetimes overlap with the lifetime of the block to place */
  int *near, near_count; /* indices of short blocks that live at the current op */
} packer;

static bucket bucket_new(rf_pool *pool, int count) {
  size_t n = (size_t)count + STRIDE; /* pass_blocks reads STRIDE entries at once */
  return (bucket){0, rf_pool_raw(pool, n * sizeof(int)), rf_pool_raw(pool, n * sizeof(int)),
                  rf_pool_raw(pool, n * sizeof(int64_t)), rf_pool_raw(pool, n * sizeof(int64_t))};
}

/* Each bucket except the first comes from a split, so it is at least half full. */
static block_index index_new(rf_pool *pool, int count) {
  int buckets = count / (BUCKET_SIZE / 2) + 1;
  block_index r = {0, rf_pool_raw(pool, ((size_t)buckets + 1) * sizeof(int)),
                   rf_pool_raw(pool, (size_t)buckets * sizeof(bucket)),
                   rf_pool_raw(pool, (size_t)buckets * sizeof(summary))};
  for (int i = 0; i < buckets; i++) r.bucket[i] = bucket_new(pool, BUCKET_SIZE);
  return r;
}

/* Index of the last gap that starts at or below address `at`, or -1. */
static int gap_at(const packer *p, int64_t at) {
  int low = 0, high = p->gaps;
  while (low < high) {
    int middle = (low + high) / 2;
    if (p->gap[middle].start <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

static void gap_insert(packer *p, int at, gap new) {
  memmove(p->gap + at + 1, p->gap + at, (size_t)(p->gaps++ - at) * sizeof *p->gap);
  p->gap[at] = new;
}

static void gap_remove(packer *p, int at) {
  memmove(p->gap + at, p->gap + at + 1, (size_t)(--p->gaps - at) * sizeof *p->gap);
}

/* Removes the range [start, end) from the gap that contains it. The range is a long block that
 * begins to live. */
static void occupy(packer *p, int64_t start, int64_t end) {
  int at = gap_at(p, start);
  int64_t gap_end = p->gap[at].end;
  if (p->gap[at].start == start) gap_remove(p, at);
  else p->gap[at++].end = start;
  if (end < gap_end) gap_insert(p, at, (gap){end, gap_end});
}

static void vacate(packer *p, int64_t start, int64_t end) {
  int at = gap_at(p, start);
  bool left = at >= 0 && p->gap[at].end == start, right = at + 1 < p->gaps && p->gap[at + 1].start == end;
  if (left && right) {
    p->gap[at].end = p->gap[at + 1].end;
    gap_remove(p, at + 1);
  } else if (left) p->gap[at].end = end;
  else if (right) p->gap[at + 1].start = start;
  else gap_insert(p, at + 1, (gap){start, end});
}

/* Fills p->around with the blocks that live at the same time as the short block b. Such blocks are
 * other short blocks, and long blocks that begin after the current op. */
static void gather(packer *p, const rf_block *b) {
  bucket *a = &p->around;
  a->count = 0;
  for (int t = b->first + 1; t <= b->last; t++)
    for (int i = p->begin[t - p->base]; i != RF_NONE; i = p->begin_next[i]) {
      rf_block other = p->shape[i];
      other.offset = p->offset[i];
      if (other.last - other.first >= p->shortest) bucket_insert(a, &other);
    }
  for (int k = 0; k < p->near_count; k++) {
    rf_block other = p->shape[p->near[k]];
    other.offset = p->offset[p->near[k]];
    bucket_insert(a, &other);
  }
}

/* Finds the best gap for a short block. The gap must not overlap with the blocks in p->around, or
 * with the long blocks of the current op. All bytes outside p->gap belong to long blocks. */
static int64_t best_gap_now(const packer *p, const rf_block *b) {
  const bucket *a = &p->around;
  gap_search f = begin_search(b);
  int64_t from = 0;
  int k = 0;
  for (int g = 0; g < p->gaps && f.over; from = p->gap[g++].end) {
    if (p->gap[g].start == from) continue;
    for (; k < a->count && a->start[k] <= from; k++) pass_gap(&f, a->start[k], a->end[k]);
    pass_gap(&f, from, p->gap[g].start);
  }
  for (; k < a->count; k++) pass_gap(&f, a->start[k], a->end[k]);
  return found(&f);
}

static void step_to(packer *p, int instant) {
  int now = instant - p->base;
  for (int i = now ? p->end[now - 1] : RF_NONE; i != RF_NONE; i = p->end_next[i])
    vacate(p, p->offset[i], p->offset[i] + p->shape[i].bytes);
  for (int i = p->begin[now]; i != RF_NONE; i = p->begin_next[i])
    if (p->shape[i].last - p->shape[i].first >= p->shortest && p->shape[i].bytes)
      occupy(p, p->offset[i], p->offset[i] + p->shape[i].bytes);
  int kept = 0;
  for (int k = 0; k < p->near_count; k++)
    if (p->shape[p->near[k]].last >= instant) p->near[kept++] = p->near[k];
  p->near_count = kept;
}

static int64_t place_short(packer *p, const int *order, int64_t height, int64_t enough) {
  for (int t = 0; t < p->ops; t++) p->begin[t] = p->end[t] = RF_NONE;
  /* The loop runs backwards, so that each list gets the right order. */
  for (int k = p->count - 1; k >= 0; k--) {
    int i = order[k], first = p->shape[i].first - p->base, last = p->shape[i].last - p->base;
    p->begin_next[i] = p->begin[first];
    p->begin[first] = i;
    if (p->shape[i].last - p->shape[i].first >= p->shortest && p->shape[i].bytes) {
      p->end_next[i] = p->end[last];
      p->end[last] = i;
    }
  }
  p->gaps = 1;
  p->gap[0] = (gap){0, INT64_MAX};
  p->near_count = 0;
  for (int t = p->base; t < p->base + p->ops; t++) {
    step_to(p, t);
    for (int i = p->begin[t - p->base]; i != RF_NONE; i = p->begin_next[i]) {
      rf_block b = p->shape[i];
      if (b.last - b.first >= p->shortest) continue;
      gather(p, &b);
      p->offset[i] = best_gap_now(p, &b);
      p->near[p->near_count++] = i;
      if (p->offset[i] + b.bytes > height) height = p->offset[i] + b.bytes;
      if (height >= enough) return height;
    }
  }
  return height;
}

/* Places the blocks in the given order. Returns the height. Stops as soon as the height is
 * `enough`. */
static int64_t place(packer *p, const int *order, int64_t enough) {
  int64_t height = 0;
  int waiting = 0;
  clear(&p->longs);
  for (int k = 0; k < p->count; k++) {
    int i = order[k];
    rf_block b = p->shape[i];
    if (b.last - b.first < p->shortest) {
      waiting++;
      continue;
    }
    b.offset = p->offset[i] = best_gap_of(&p->longs, &b);
    insert(&p->longs, &b);
    if (b.offset + b.bytes > height) height = b.offset + b.bytes;
    if (height >= enough) return height;
  }
  return waiting ? place_short(p, order, height, enough) : height;
}

/* The largest sum of blocks that live at the same time. No layout has a smaller height. */
static int64_t lower_bound(packer *p) {
  int64_t *change = rf_pool_alloc(p->pool, ((size_t)p->ops + 2) * sizeof *change), most = 0, sum = 0;
  for (int i = 0; i < p->count; i++) {
    change[p->shape[i].first - p->base] += p->shape[i].bytes;
    change[p->shape[i].last - p->base + 1] -= p->shape[i].bytes;
  }
  for (int t = 0; t < p->ops; t++) {
    sum += change[t];
    if (sum > most) most = sum;
  }
  return most;
}

/* Moves the blocks that end above `limit` to the front of the order, where they find larger gaps.
 * Returns true if the order changed. */
static bool promote(const packer *p, int *order, int *scratch, int64_t limit) {
  int moved = 0, rest = 0;
  bool other = false;
  for (int k = 0; k < p->count; k++) {
    int i = order[k];
    if (p->offset[i] + p->shape[i].bytes > limit) {
      other |= rest > 0;
      order[moved++] = i;
    } else scratch[rest++] = i;
  }
  memcpy(order + moved, scratch, (size_t)rest * sizeof *order);
  return other;
}

enum { PATIENCE = 3 }; /* number of rounds without progress after which an order is dropped */

static void keep(const packer *p, int64_t height, int64_t *kept, int64_t *best) {
  if (height < *best) {
    *best = height;
    memcpy(kept, p->offset, (size_t)p->count * sizeof *kept);
  }
}

int64_t rf_layout_blocks(rf_block *block, int count, int64_t waste) {
  if (count < 1) return 0;
  rf_pool *pool = rf_pool_new();
  packer p = {.pool = pool, .shape = block, .count = count};
  int end = INT32_MIN;
  p.base = INT32_MAX;
  for (int i = 0; i < count; i++) {
    if (block[i].first < p.base) p.base = block[i].first;
    if (block[i].last > end) end = block[i].last;
  }
  p.ops = end - p.base + 1;
  size_t n = (size_t)count + 1, instants = (size_t)p.ops + 1;
  p.shortest = count > MANY ? SHORT : 0;
  p.longs = index_new(pool, count);
  p.around = bucket_new(pool, 2 * count);
  p.begin = rf_pool_raw(pool, instants * sizeof(int));
  p.end = rf_pool_raw(pool, instants * sizeof(int));
  p.begin_next = rf_pool_raw(pool, n * sizeof(int));
  p.end_next = rf_pool_raw(pool, n * sizeof(int));
  p.near = rf_pool_raw(pool, n * sizeof(int));
  p.gap = rf_pool_raw(pool, (n + 1) * sizeof(gap));
  p.offset = rf_pool_raw(pool, n * sizeof(int64_t));
  int *order[BY_RANKS], *scratch = rf_pool_raw(pool, n * sizeof(int));
  ranked *keys = rf_pool_raw(pool, 2 * n * sizeof *keys);
  int64_t least = lower_bound(&p), best = INT64_MAX;
  int64_t *kept = rf_pool_raw(pool, n * sizeof *kept), *of_last = rf_pool_raw(pool, n * sizeof *of_last);
  const int64_t enough = least + waste;
  /* Tries every order once. Then improves the lowest orders. Each order is improved as long as its
   * height falls. */
  const int rounds = count < 1000 ? 12 : count < 3000 ? 4 : 1;
  int64_t reached[BY_RANKS] = {0};
  bool other[BY_RANKS] = {false}; /* true if the last call of promote() changed the order */
  /* The first order that is low enough wins. The code stops a placement as soon as its height is
   * too large to win. The placement of the last order never stops, because later rounds start from
   * its result. */
  for (int by = 0; by < BY_RANKS && best > enough; by++) {
    int64_t most = rounds == 1 ? best : by < BY_RANKS - 1 && enough < INT64_MAX ? enough + 1 : INT64_MAX;
    order[by] = rf_pool_raw(pool, n * sizeof(int));
    rank(block, count, (rank_by)by, keys, order[by]);
    reached[by] = place(&p, order[by], most);
    if (reached[by] < most) keep(&p, reached[by], kept, &best);
  }
  if (rounds > 1 && best > enough) {
    best = INT64_MAX;
    memcpy(of_last, kept, (size_t)count * sizeof *of_last);
    for (int by = 0; by < BY_RANKS && best > enough; by++) {
      if (by < BY_RANKS - 1) reached[by] = place(&p, order[by], INT64_MAX);
      else memcpy(p.offset, of_last, (size_t)count * sizeof *of_last);
      keep(&p, reached[by], kept, &best);
      other[by] = promote(&p, order[by], scratch, least);
    }
  }
  for (int tries = 0; tries < BY_RANKS && best > enough; tries++) {
    int by = 0;
    for (int i = 1; i < BY_RANKS; i++)
      if (reached[i] < reached[by]) by = i;
    int64_t lowest = reached[by];
    reached[by] = INT64_MAX;
    for (int round = 1, idle = 0; other[by] && round < rounds && idle < PATIENCE && best > enough; round++) {
      /* the last round stops when it has the height of the lowest placement so far */
      bool last = idle + 1 == PATIENCE || round + 1 == rounds;
      int64_t height = place(&p, order[by], last ? lowest : INT64_MAX);
      keep(&p, height, kept, &best);
      idle = height < lowest ? 0 : idle + 1;
      if (height < lowest) lowest = height;
      if (!last || !idle) other[by] = promote(&p, order[by], scratch, least);
    }
  }
  for (int i = 0; i < count; i++) block[i].offset = kept[i];
  rf_pool_free(pool);
  return best;
}

/* ---- plans ----------------------------------------------------------------------------------- */

typedef struct resident {
  int class, param, tensor;
} resident;

static int compare_resident(const void *a, const void *b) {
  const resident *x = a, *y = b;
  if (x->class != y->class) return x->class - y->class;
  if (x->param != y->param) return x->param - y->param;
  return x->tensor - y->tensor;
}

/* Places weights first. So weights have the same offsets in a plan without an optimizer. Adapters,
 * masters, moments and KV caches follow. */
static void place_persistent(rf_plan *plan, rf_pool *scratch, bool host) {
  static const int place_of[RF_CLASSES] = {[RF_CLASS_WEIGHT] = 0,
                                           [RF_CLASS_ADAPTER] = 1,
                                           [RF_CLASS_MASTER] = 2,
                                           [RF_CLASS_MOMENT] = 3,
                                           [RF_CLASS_KV] = 4};
  const rf_graph *graph = plan->graph;
  resident *list = rf_pool_alloc(scratch, ((size_t)graph->tensor_count + 1) * sizeof *list);
  int count = 0;
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    if (!tensor->persistent || tensor->host != host || rf_tensor_is_elsewhere(tensor, &graph->mesh)) continue;
    int place = tensor->class == RF_CLASS_WEIGHT ? 0
                : place_of[tensor->class]        ? place_of[tensor->class]
                                                 : RF_CLASSES;
    list[count++] = (resident){place, tensor->param, t};
  }
  qsort(list, (size_t)count, sizeof *list, compare_resident);
  int64_t at = 0;
  for (int i = 0; i < count; i++) {
    plan->tensor[list[i].tensor].offset = at;
    at += plan->tensor[list[i].tensor].bytes;
  }
}

int64_t rf_flow_layout(rf_flow *flow, bool host, int64_t persistent, int64_t waste) {
  rf_pool *scratch = rf_pool_new();
  size_t tensors = (size_t)flow->tensors + 1;
  /* If tensors reuse the bytes of another tensor in place, they are in one block with that
   * tensor. */
  int *block_of = rf_pool_raw(scratch, tensors * sizeof *block_of), count = 0;
  rf_block *block = rf_pool_raw(scratch, tensors * sizeof *block);
  for (int t = 0; t < flow->tensors; t++) {
    const rf_plan_tensor *p = &flow->at[t];
    block_of[t] = RF_NONE;
    if (flow->tensor[t].persistent || flow->tensor[t].host != host || p->last == RF_NONE ||
        p->shares != RF_NONE)
      continue;
    block_of[t] = count;
    block[count++] =
        (rf_block){.bytes = rf_align(p->bytes + flow->guard_bytes), .first = p->first, .last = p->last};
  }
  for (int t = 0; t < flow->tensors; t++) {
    if (flow->at[t].shares == RF_NONE || flow->tensor[t].host != host) continue;
    int root = t;
    while (flow->at[root].shares != RF_NONE) root = flow->at[root].shares;
    block_of[t] = block_of[root];
    if (flow->at[t].last > block[block_of[t]].last) block[block_of[t]].last = flow->at[t].last;
  }
  int64_t height = persistent + rf_layout_blocks(block, count, waste / (count > MANY ? 500 : 2000));
  for (int t = 0; t < flow->tensors; t++)
    if (block_of[t] != RF_NONE) flow->at[t].offset = persistent + block[block_of[t]].offset;
  rf_pool_free(scratch);
  return height;
}

/* Places all tensors in the memory of the chip. If `host` is true, the memory is that of the host.
 * Returns the height in bytes. *persistent gets the end of the persistent region. */
static int64_t lay_out(rf_plan *plan, bool host, int64_t waste, int64_t *persistent) {
  rf_pool *scratch = rf_pool_new();
  place_persistent(plan, scratch, host);
  rf_pool_free(scratch);
  rf_flow flow = rf_plan_flow(plan);
  *persistent = rf_flow_persistent(&flow, host);
  return rf_flow_layout(&flow, host, *persistent, waste);
}

void rf_plan_layout(rf_plan *plan) {
  const rf_flow flow = rf_plan_flow(plan);
  bool host = false;
  plan->arena_bytes = lay_out(plan, false, rf_flow_live_bytes(&flow, NULL), &plan->persistent_bytes);
  for (int t = 0; t < plan->graph->tensor_count; t++) host |= plan->graph->tensor[t].host;
  if (host) plan->host_bytes = lay_out(plan, true, plan->arena_bytes, &plan->host_persistent_bytes);
}
