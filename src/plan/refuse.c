/* refuse.c - the error of a plan that does not fit: the largest tensors and a setting that fits. */
#include "base/text.h"
#include "plan/parts.h"

#include <stdio.h>
#include <string.h>

static int find_largest(const rf_plan *plan, int largest[5]) {
  int count = 0;
  for (int t = 0; t < plan->tensor_count; t++) {
    const rf_plan_tensor *p = &plan->tensor[t];
    if (p->offset < 0 || rf_plan_content(plan, t)->host ||
        p->first + (p->shares != RF_NONE) > plan->peak_op || p->last < plan->peak_op)
      continue;
    int at = count < 5 ? count++ : 5;
    while (at > 0 && plan->tensor[largest[at - 1]].bytes < p->bytes) {
      if (at < 5) largest[at] = largest[at - 1];
      at--;
    }
    if (at < 5) largest[at] = t;
  }
  return count;
}

/* The search for single tensors is tried only if the excess is less than 1/NEAR of the available
 * memory. */
enum { NEAR = 20 };

typedef struct remedy {
  rf_remat remat;
  int64_t part; /* number by which the microbatch is divided */
  int zero;     /* stage of ZeRO */
} remedy;
typedef struct remedies {
  const rf_plan *plan;
  const rf_graph *base; /* graph before recomputation; NULL: each attempt makes a plan */
  int64_t room;
  int64_t least,  /* bytes of the smallest plan tried */
      persistent; /* bytes of that plan's persistent region */
  bool fits;
  char *text;
  size_t capacity;
} remedies;

/* Writes the options of a setting that fits, as the user would type them. Settings that --fit chose
 * are written too, because the user did not type them. Settings that are already present are not
 * repeated. */
static void say_remedy(remedies *r, const rf_plan_options *to, int64_t bytes) {
  const rf_plan_options *from = &r->plan->options;
  bool searched = from->searched;
  snprintf(r->text, r->capacity, RF_THIS_FITS ", in %.2f GiB:", (double)bytes / 0x1p30);
  if (searched || to->remat != from->remat)
    rf_text_append(r->text, r->capacity, " --remat %s", rf_remat_name(to->remat));
  if (searched || to->build.microbatch != from->build.microbatch)
    rf_text_append(r->text, r->capacity, " --microbatch %lld --accumulate %d",
                   (long long)to->build.microbatch, to->build.accumulate);
  if (searched) {
    const rf_mesh *mesh = &to->build.mesh;
    rf_text_append(r->text, r->capacity, " --dtype %s", rf_dtype_name(to->build.dtype));
    for (int a = 0, said = 0; a < RF_AXES; a++) {
      if (rf_mesh_extent(mesh, (rf_axis)a) == 1) continue;
      rf_text_append(r->text, r->capacity, "%s%s=%d", said++ ? "," : " --mesh ", rf_axis_name((rf_axis)a),
                     (int)mesh->of[a]);
    }
  }
  if (searched ? to->build.mesh.zero != 0 : to->build.mesh.zero != from->build.mesh.zero)
    rf_text_append(r->text, r->capacity, " --zero %d", to->build.mesh.zero);
}

/* Result of one attempt. `bytes` is the size of the arena, or the live bytes if the live bytes
 * alone do not fit. -1: no plan was made. */
typedef struct outcome {
  int64_t bytes, persistent;
  bool fits;
} outcome;

static outcome plan_it(const rf_plan_options *options, const rf_plan *from) {
  rf_plan *other = NULL;
  /* A plan whose live bytes do not fit needs no layout. */
  rf_status status = options->remat == RF_REMAT_AUTO
                         ? rf_plan_make_to(RF_PLAN_PRICES, &from->graph->model, options, NULL, &other, NULL)
                         : rf_plan_make_size(&from->graph->model, options, &other, NULL);
  if (status != RAFTER_OK) return (outcome){.bytes = -1};
  outcome o = {.fits = rf_plan_fits(other)};
  const rf_flow flow = rf_plan_flow(other); /* without a layout, persistent_bytes is not set */
  o.bytes = other->arena_bytes;
  o.persistent = other->persistent_bytes ? other->persistent_bytes : rf_flow_persistent(&flow, false);
  rf_plan_free(other);
  return o;
}

/* Like plan_it, but does not make a plan. Estimates the bytes from the graph before
 * recomputation. */
static outcome weigh_it(const rf_plan_options *options, const rf_graph *base) {
  rf_pool *pool = rf_pool_new();
  rf_trial *trial = rf_trial_open(base, options, pool);
  const int64_t room = rf_plan_room(options);
  outcome o = {.persistent = rf_trial_persistent(trial)};
  if (options->remat == RF_REMAT_AUTO) {
    bool *drop = rf_pool_alloc(pool, (size_t)base->tensor_count + 1);
    if (rf_plan_auto_remat(base, options, room, drop, &o.bytes, NULL) != RAFTER_OK) o.bytes = -1;
  } else o.bytes = rf_trial_policy(trial, options->remat, room);
  o.fits = o.bytes >= 0 && o.bytes <= room;
  rf_pool_free(pool);
  return o;
}

/* Tries one setting. Returns the bytes of the plan, or -1 if no plan was made. */
static int64_t try_remedy(remedies *r, remedy change) {
  rf_plan_options options = r->plan->options;
  rf_graph *built = NULL;
  outcome o = {.bytes = -1};
  options.remat = change.remat;
  options.budget_bytes = r->room;
  options.taken_bytes = 0;
  options.build.mesh.zero = change.zero;
  options.build.microbatch /= change.part;
  options.build.accumulate *= (int)change.part;
  if (!r->base) o = plan_it(&options, r->plan);
  else if (change.part == 1) o = weigh_it(&options, r->base);
  else if (rf_graph_build(&r->plan->graph->model, &options.build, NULL, &built, NULL) == RAFTER_OK)
    o = weigh_it(&options, built);
  rf_graph_free(built);
  r->fits = o.fits;
  if (r->fits) say_remedy(r, &options, o.bytes);
  if (o.bytes >= 0 && o.bytes < r->least) r->persistent = o.persistent;
  return o.bytes;
}

static void note_least(remedies *r, int64_t bytes) {
  if (bytes >= 0 && bytes < r->least) r->least = bytes;
}

/* Tries a higher stage of ZeRO (--zero) before any recomputation. Returns the last stage of ZeRO
 * that is valid. */
static int try_zero(remedies *r) {
  const rf_plan_options *from = &r->plan->options;
  const rf_mesh *mesh = &from->build.mesh;
  bool splits = rf_mesh_extent(mesh, RF_AXIS_FSDP) > 1 || rf_mesh_extent(mesh, RF_AXIS_DATA) > 1;
  int zero = mesh->zero;
  for (int next = zero + 1; splits && next <= 3 && !r->fits; next++) {
    int64_t bytes = try_remedy(r, (remedy){from->remat, 1, next});
    if (bytes < 0) break;
    note_least(r, bytes);
    zero = next;
  }
  return zero;
}

/* Writes a setting that fits. If none fits, writes the smallest size that was tried. Tries to
 * recompute whole blocks. If the plan with recomputed blocks fits, tries a cheaper policy. If whole
 * blocks do not fit, tries smaller microbatches. The last attempt is the slow search for single
 * tensors. */
static void find_remedy(const rf_plan *plan, const rf_graph *base, int64_t room, char *text,
                        size_t capacity) {
  static const rf_remat cheaper[] = {RF_REMAT_MLP, RF_REMAT_ATTN, RF_REMAT_MLP_ATTN};
  const rf_plan_options *from = &plan->options;
  remedies r = {.plan = plan,
                .base = base,
                .room = room,
                .least = plan->arena_bytes,
                .persistent = plan->persistent_bytes,
                .text = text,
                .capacity = capacity};
  int64_t bytes = -1, part = 1;
  bool train = from->build.job == RF_JOB_TRAIN;
  int zero = train ? try_zero(&r) : 0;
  if (r.fits) return;
  if (train && (plan->persistent_bytes <= room || zero > from->build.mesh.zero)) {
    for (; part <= from->build.microbatch && from->build.microbatch % part == 0; part *= 2) {
      bytes = try_remedy(&r, (remedy){RF_REMAT_BLOCK, part, zero});
      if (r.fits || bytes < 0 || (part > 1 && bytes >= r.least)) break;
      note_least(&r, bytes);
    }
    bool found = r.fits;
    for (int i = 0; found && part == 1 && i < 3; i++) {
      try_remedy(&r, (remedy){cheaper[i], 1, zero});
      if (r.fits) break;
    }
    if (found) return;
    part = part > 1 ? part / 2 : 1;
    bool near = r.least - room < room / NEAR;
    if (from->program.program == RF_PROGRAM_RAFTER && near)
      bytes = try_remedy(&r, (remedy){RF_REMAT_AUTO, part, zero});
    if (r.fits) return;
    note_least(&r, bytes);
  }
  const char *kept = train ? "weights and optimizer states" : "weights and caches",
             *share = rf_mesh_chips(&plan->graph->mesh) > 1
                          ? "share them over more chips (fsdp or tensor in --mesh), or "
                          : "";
  if (r.persistent > room) /* nothing else was tried */
    snprintf(text, capacity, "%s alone take %.2f GiB: %suse a smaller model or a machine with more memory",
             kept, (double)r.persistent / 0x1p30, share);
  else
    snprintf(text, capacity,
             "the smallest setting tried needs %.2f GiB, including %.2f GiB of %s: %suse a smaller model or "
             "a machine with more memory",
             (double)r.least / 0x1p30, (double)r.persistent / 0x1p30, kept, share);
}

/* Lists the largest tensors at the peak by name and size, or the parts of a JAX program. */
static void list_largest(const rf_plan *plan, char *list, size_t capacity) {
  const rf_program_memory *m = &plan->program;
  int largest[5], count = find_largest(plan, largest);
  if (plan->options.program.program != RF_PROGRAM_RAFTER) {
    snprintf(list, capacity,
             "arguments %.2f GiB, kept for the backward pass %.2f GiB, gradients %.2f GiB, copies of "
             "matrices %.2f GiB, working memory %.2f GiB",
             (double)m->argument / 0x1p30, (double)m->kept / 0x1p30, (double)m->gradients / 0x1p30,
             (double)m->copies / 0x1p30, (double)m->working / 0x1p30);
    return;
  }
  list[0] = 0;
  for (int i = 0; i < count; i++)
    rf_text_append(list, capacity, "%s%.60s %.2f GiB", i ? ", " : "", rf_plan_content(plan, largest[i])->name,
                   (double)plan->tensor[largest[i]].bytes / 0x1p30);
  if (plan->options.draft_bytes > 0)
    rf_text_append(list, capacity, "; the draft model takes %.2f GiB",
                   (double)plan->options.draft_bytes / 0x1p30);
}

static const char *bytes_text(int64_t bytes, char text[32]) {
  bool small = bytes < (int64_t)(0.01 * 0x1p30);
  snprintf(text, 32, "%.2f %s", (double)bytes / (small ? 0x1p20 : 0x1p30), small ? "MiB" : "GiB");
  return text;
}

rf_status rf_plan_require_fit(const rf_plan *plan, rf_error *error) {
  int64_t room = rf_plan_room(&plan->options);
  if (rf_plan_fits(plan)) return RAFTER_OK;
  if (plan->arena_bytes <= room)
    return RF_FAIL(error, RAFTER_NO_FIT, "offload less, or use a host with more memory",
                   "%s does not fit in the host memory of %s (share of one chip: expected at most %.2f GiB, "
                   "got %.2f GiB)",
                   plan->graph->model.name, plan->machine.name,
                   (double)rf_plan_host_room(&plan->machine) / 0x1p30, (double)plan->host_bytes / 0x1p30);
  char list[400] = "", hint[300], a[32], b[32], c[32];
  rf_graph *built = NULL;
  const rf_plan_options *o = &plan->options;
  bool weighed = o->build.job == RF_JOB_TRAIN && plan->persistent_bytes <= room &&
                 o->program.program == RF_PROGRAM_RAFTER && rf_mesh_chips(&o->build.mesh) == 1 &&
                 rf_trial_can(plan->graph, o);
  list_largest(plan, list, sizeof list);
  find_remedy(plan, weighed ? rf_plan_graph_before(plan, &built) : NULL, room, hint, sizeof hint);
  rf_graph_free(built);
  return RF_FAIL(error, RAFTER_NO_FIT, hint,
                 "%s does not fit %s (memory: expected at most %s, got %s, %s too much; largest: %s)",
                 plan->graph->model.name, plan->machine.name, bytes_text(room + o->draft_bytes, a),
                 bytes_text(plan->arena_bytes + o->draft_bytes, b), bytes_text(plan->arena_bytes - room, c),
                 list);
}
