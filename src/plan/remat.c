/* remat.c - chooses the activations that remat=auto recomputes. The chosen set makes the plan fit,
 * with the fewest seconds of recomputation. Layers repeat, so there are only a few kinds of
 * activations ("mlp/up/u" of every block is one kind). The search first drops whole kinds (a
 * dropped tensor is recomputed). In each round, the search drops the kind that frees the most bytes
 * per second of recomputation. Then the search tries to drop each kind in fewer blocks, as long as
 * the plan fits. The most expensive kind is tried first. trial.c estimates each set. The passes for
 * stages and offload run after recomputation. So for graphs with stages or offload, each set is
 * planned with a rewritten graph. */
#include "plan/parts.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_KINDS = 64, KNOWN = 1024, MAX_FOUND = RF_REMAT_NAMED + 3, ROUNDS = 6 };

/* ids of the tensors in graph order, those of block 0 first */
typedef struct kind {
  int count, capacity, *tensor;
} kind;

typedef struct trial {
  int64_t bytes;  /* peak of live bytes, or the size of the arena */
  double seconds; /* of recomputation per step */
} trial;

/* A set of tensors that may be the answer. Without a layout, result.bytes are live bytes. */
typedef struct candidate {
  bool *drop; /* one entry for each tensor of the base graph */
  trial result;
  bool laid;
} candidate;

/* A set of tensors that was tried. Later rounds often try the same sets again. */
typedef struct known {
  int dropped[MAX_KINDS];
  bool there;
  trial result;
} known;

typedef struct search {
  const rf_graph *base;
  const rf_plan_options *options;
  rf_pool *pool;
  rf_error *error;
  kind kind[MAX_KINDS];
  int kinds;
  int64_t room;
  candidate found[MAX_FOUND];
  int founds;
  int dropped[MAX_KINDS]; /* number of dropped tensors of each kind, from block 0 on */
  bool *drop;             /* scratch array with one entry for each tensor of the base graph */
  known *known;           /* hash table with KNOWN entries */
  rf_trial *trial;        /* NULL: the search rewrites the graph for each set */
  rf_tensor *tensor;      /* arrays of the rewritten graph, which the next set uses again */
  rf_op *op;
  int tensor_capacity, op_capacity;
} search;

/* ---- candidates ------------------------------------------------------------------------------ */

/* Changes "block.12/mlp/up/u" to "mlp/up/u", which is the same for every block. */
static const char *kind_name(const char *name) {
  if (strncmp(name, "block.", 6)) return name;
  const char *slash = strchr(name, '/');
  return slash ? slash + 1 : name;
}

static void add_candidate(search *s, int t) {
  const char *name = kind_name(s->base->tensor[t].name);
  int k = 0;
  while (k < s->kinds && strcmp(kind_name(s->base->tensor[s->kind[k].tensor[0]].name), name)) k++;
  if (k == MAX_KINDS) return;
  kind *to = &s->kind[k];
  if (k == s->kinds) {
    s->kinds++;
    *to = (kind){0};
  }
  if (to->count == to->capacity) {
    to->capacity = to->capacity ? to->capacity * 2 : 16;
    int *fresh = rf_pool_alloc(s->pool, (size_t)to->capacity * sizeof *fresh);
    if (to->count) memcpy(fresh, to->tensor, (size_t)to->count * sizeof *fresh);
    to->tensor = fresh;
  }
  to->tensor[to->count++] = t;
}

static void find_candidates(search *s) {
  const rf_graph *graph = s->base;
  bool *read = rf_pool_alloc(s->pool, (size_t)graph->tensor_count + 1);
  for (int i = 0; i < graph->op_count; i++)
    for (int k = 0; graph->op[i].backward && k < graph->op[i].input_count; k++)
      if (graph->op[i].input[k] >= 0) read[graph->op[i].input[k]] = true;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    if (op->backward || op->section != RF_SECTION_MICRO || op->def->exchange == RF_EXCHANGE_RECV) continue;
    for (int k = 0; k < op->output_count; k++) {
      int t = op->output[k];
      if (t < 0 || !read[t]) continue;
      const rf_tensor *tensor = &graph->tensor[t];
      if (!tensor->persistent && !tensor->input && !tensor->output && tensor->class == RF_CLASS_ACTIVATION)
        add_candidate(s, t);
    }
  }
}

static void drop_set(search *s) {
  memset(s->drop, 0, (size_t)s->base->tensor_count + 1);
  for (int k = 0; k < s->kinds; k++)
    for (int i = 0; i < s->dropped[k]; i++) s->drop[s->kind[k].tensor[i]] = true;
}

/* ---- trials ---------------------------------------------------------------------------------- */

/* Copies the base graph into the arrays of the search. The copy shares the names. */
static rf_graph *trial_graph(search *s) {
  rf_pool *pool = rf_pool_new();
  rf_graph *graph = rf_pool_alloc(pool, sizeof *graph);
  *graph = *s->base;
  graph->pool = pool;
  graph->tensor_capacity = s->tensor_capacity;
  graph->op_capacity = s->op_capacity; /* the recomputation pass enlarges the arrays if needed */
  graph->tensor = memcpy(s->tensor, s->base->tensor, (size_t)s->base->tensor_count * sizeof *graph->tensor);
  graph->op = memcpy(s->op, s->base->op, (size_t)s->base->op_count * sizeof *graph->op);
  return graph;
}

static rf_status try_graph(search *s, const bool *drop, bool lay, trial *result) {
  rf_graph *graph = trial_graph(s);
  rf_status status = rf_pass_remat(graph, drop, s->error);
  if (status == RAFTER_OK && s->options->build.offload)
    status = rf_pass_offload(graph, s->options->build.offload, s->error);
  rf_plan *plan = status == RAFTER_OK ? rf_plan_of_graph(graph, s->options, RF_PLAN_BYTES) : NULL;
  if (!plan) {
    rf_graph_free(graph);
    return status == RAFTER_OK ? RF_FAIL(s->error, RAFTER_FAILED, NULL, "out of memory while planning")
                               : status;
  }
  *result = (trial){.bytes = plan->live_bytes};
  for (int i = 0; i < graph->op_count; i++)
    if (graph->op[i].recompute_of != RF_NONE)
      result->seconds += plan->op[i].calls * rf_cost_op(s->options->machine, graph, &graph->op[i],
                                                        plan->op[i].kernel, plan->op[i].work, NULL);
  if (lay) {
    rf_plan_layout(plan);
    result->bytes = plan->arena_bytes;
  }
  rf_plan_free(plan);
  return RAFTER_OK;
}

/* Estimates the live bytes of a set. If `lay` is true, estimates the size of the arena. */
static rf_status try_drop(search *s, const bool *drop, bool lay, trial *result) {
  if (!s->trial) return try_graph(s, drop, lay, result);
  rf_trial_weigh(s->trial, drop, &result->bytes, &result->seconds);
  if (lay) result->bytes = rf_trial_layout(s->trial);
  return RAFTER_OK;
}

/* Finds the hash table entry for the set in s->dropped. */
static known *recall(search *s) {
  uint32_t at = 2166136261u;
  for (int k = 0; k < s->kinds; k++) at = (at ^ (uint32_t)s->dropped[k]) * 16777619u;
  known *place = &s->known[(at ^ at >> 15) % KNOWN];
  /* a collision evicts the older set, because it is less likely to be needed again */
  if (place->there && memcmp(place->dropped, s->dropped, sizeof s->dropped)) place->there = false;
  return place;
}

/* Estimates the set in s->dropped, or finds the estimate in the table. */
static rf_status try_now(search *s, trial *result) {
  known *place = recall(s);
  if (place->there) return *result = place->result, RAFTER_OK;
  drop_set(s);
  RF_TRY(try_drop(s, s->drop, false, result));
  place->there = true;
  place->result = *result;
  memcpy(place->dropped, s->dropped, sizeof s->dropped);
  return RAFTER_OK;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Drops whole kinds until the live bytes are at most `room`, or until no kind helps. Each round
 * drops the kind that saves the most bytes per second. If `thrifty` is true, bytes that are saved
 * below `room` do not count. So the choice may be a small kind with a low cost. Otherwise bytes
 * that are saved below `room` count too, and shrink_kind later drops the kind in fewer blocks. *now
 * receives the bytes and time of the final set. */
static rf_status drop_kinds(search *s, int64_t room, bool thrifty, trial *now) {
  RF_TRY(try_now(s, now));
  while (now->bytes > room) {
    int best = RF_NONE;
    double best_rate = 0;
    trial best_trial = *now;
    for (int k = 0; k < s->kinds; k++) {
      if (s->dropped[k]) continue;
      trial t;
      s->dropped[k] = s->kind[k].count;
      rf_status status = try_now(s, &t);
      s->dropped[k] = 0;
      RF_TRY(status);
      double freed = (double)(now->bytes - t.bytes), seconds = t.seconds - now->seconds;
      if (freed <= 0) continue;
      double enough = (double)(now->bytes - room);
      double rate = (thrifty && freed > enough ? enough : freed) / (seconds > 1e-12 ? seconds : 1e-12);
      if (rate > best_rate) {
        best = k;
        best_rate = rate;
        best_trial = t;
      }
    }
    if (best == RF_NONE) return RAFTER_OK;
    s->dropped[best] = s->kind[best].count;
    *now = best_trial;
  }
  return RAFTER_OK;
}

/* Finds the fewest tensors of kind k to drop so that the plan still fits. Changes no other kind. */
static rf_status shrink_kind(search *s, int k, int64_t room, trial *now) {
  int low = 0, high = s->dropped[k]; /* dropping `high` tensors fits */
  while (low < high) {
    int middle = (low + high) / 2;
    trial t;
    s->dropped[k] = middle;
    rf_status status = try_now(s, &t);
    s->dropped[k] = high;
    RF_TRY(status);
    if (t.bytes <= room) {
      high = middle;
      *now = t;
    } else low = middle + 1;
    s->dropped[k] = high;
  }
  return RAFTER_OK;
}

static rf_status shrink_all(search *s, int64_t room, trial *now) {
  double price[MAX_KINDS];
  for (int k = 0; k < s->kinds; k++) {
    price[k] = -1;
    if (!s->dropped[k]) continue;
    trial without;
    int was = s->dropped[k];
    s->dropped[k] = 0;
    rf_status status = try_now(s, &without);
    s->dropped[k] = was;
    RF_TRY(status);
    price[k] = now->seconds - without.seconds;
  }
  for (;;) {
    int next = RF_NONE;
    for (int k = 0; k < s->kinds; k++)
      if (price[k] >= 0 && (next == RF_NONE || price[k] > price[next])) next = k;
    if (next == RF_NONE) return RAFTER_OK;
    price[next] = -1;
    RF_TRY(shrink_kind(s, next, room, now));
  }
}

static void note_found(search *s, const bool *drop, trial result, bool laid) {
  size_t tensors = (size_t)s->base->tensor_count;
  candidate *c = &s->found[s->founds++];
  *c = (candidate){.drop = rf_pool_raw(s->pool, tensors + 1), .result = result, .laid = laid};
  memcpy(c->drop, drop, tensors);
}

/* Arena size of a set. If several searches find the same set, the layout of this set is computed
 * once. */
static rf_status lay_out(search *s, const bool *drop, trial *result) {
  for (int i = 0; i < s->founds; i++)
    if (s->found[i].laid && !memcmp(s->found[i].drop, drop, (size_t)s->base->tensor_count))
      return *result = s->found[i].result, RAFTER_OK;
  return try_drop(s, drop, true, result);
}

static rf_status greedy(search *s, bool thrifty) {
  /* The search compares live bytes with `target`. If the layout of a set does not fit, the next
   * search has a lower target. */
  int64_t target = s->room;
  for (int round = 0;; round++) {
    trial now;
    memset(s->dropped, 0, sizeof s->dropped);
    RF_TRY(drop_kinds(s, target, thrifty, &now));
    bool reached = now.bytes <= target;
    if (reached) RF_TRY(shrink_all(s, target, &now));
    drop_set(s);
    if (reached) RF_TRY(lay_out(s, s->drop, &now));
    if (now.bytes > s->room && reached && round + 1 < ROUNDS)
      target -= (now.bytes - s->room) * (1 + round) + s->room / 4096;
    else return note_found(s, s->drop, now, reached), RAFTER_OK;
  }
}

/* Finds the best set. The best set is the fastest set that fits, or the smallest set if none fits.
 * Among equal sets, takes the first. Computes a memory layout only for sets that may be the
 * best. */
static rf_status best_found(search *s, candidate **best) {
  for (;;) {
    *best = NULL;
    for (int i = 0; i < s->founds; i++) {
      candidate *c = &s->found[i];
      bool fits = c->result.bytes <= s->room, better = !*best;
      if (*best && fits != ((*best)->result.bytes <= s->room)) better = fits;
      else if (*best)
        better = fits ? c->result.seconds < (*best)->result.seconds : c->result.bytes < (*best)->result.bytes;
      if (better) *best = c;
    }
    if ((*best)->laid) return RAFTER_OK;
    RF_TRY(lay_out(s, (*best)->drop, &(*best)->result));
    (*best)->laid = true;
  }
}

static rf_status run_search(search *s, bool *drop, int64_t *arena) {
  rf_remat policies[RF_REMAT_NAMED];
  int named = rf_remat_named(policies);
  size_t tensors = (size_t)s->base->tensor_count;
  trial t;
  candidate *best;
  memset(drop, 0, tensors);
  RF_TRY(try_now(s, &t));
  bool may_fit = t.bytes <= s->room;
  if (may_fit) RF_TRY(try_drop(s, drop, true, &t));
  *arena = t.bytes;
  if (t.bytes <= s->room) return RAFTER_OK;
  note_found(s, drop, t, may_fit);
  RF_TRY(greedy(s, false));
  RF_TRY(greedy(s, true));
  /* Named policies are candidates too, because they may combine kinds that save nothing alone. */
  for (int i = 0; i < named; i++) {
    rf_remat_policy(s->base, policies[i], s->drop);
    RF_TRY(try_drop(s, s->drop, false, &t));
    note_found(s, s->drop, t, false);
  }
  RF_TRY(best_found(s, &best));
  memcpy(drop, best->drop, tensors);
  *arena = best->result.bytes;
  return RAFTER_OK;
}

rf_status rf_plan_auto_remat(const rf_graph *base, const rf_plan_options *options, int64_t room, bool *drop,
                             int64_t *arena, rf_error *error) {
  /* The search allocates and frees the same few MiB hundreds of times. Until the program has freed
   * a larger block, glibc returns this memory to the kernel each time. This takes the time of a
   * second search. To prevent this, the code frees a larger block, whose pages are never
   * touched. */
  rf_pool *piece = rf_pool_new();
  rf_pool_raw(piece, (size_t)16 << 20);
  rf_pool_free(piece);
  search *s = calloc(1, sizeof *s);
  if (!s) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  s->base = base;
  s->options = options;
  s->error = error;
  s->room = room;
  s->pool = rf_pool_new();
  s->drop = rf_pool_alloc(s->pool, (size_t)base->tensor_count + 1);
  s->known = rf_pool_alloc(s->pool, KNOWN * sizeof *s->known);
  if (rf_trial_can(base, options)) s->trial = rf_trial_open(base, options, s->pool);
  else {
    s->tensor_capacity = base->tensor_count + base->op_count;
    s->op_capacity = base->op_count + base->op_count / 4;
    s->tensor = rf_pool_raw(s->pool, (size_t)s->tensor_capacity * sizeof *s->tensor);
    s->op = rf_pool_raw(s->pool, (size_t)s->op_capacity * sizeof *s->op);
  }
  find_candidates(s);
  rf_status status = run_search(s, drop, arena);
  rf_pool_free(s->pool);
  free(s);
  return status;
}
