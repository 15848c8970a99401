/* fit.c - searches for the fastest settings that fit (--fit). */
#include "base/text.h"
#include "graph/mesh/pipeline.h"
#include "plan/loss.h"
#include "plan/parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the search ------------------------------------------------------------------------------ */

enum {
  MAX_TRIED = 1024, /* results that a search stores */
  MAX_MESHES = 256, /* meshes that a search stores */
  AUTO_OPS = 12000  /* limit of the ops that all searches with remat=auto on several chips plan together */
};
/* A mesh that was tried. `seconds` is the time with the fewest microbatches and without
 * recomputation. The best time on this mesh is close to `seconds`. */
typedef struct mesh_seen {
  rf_mesh mesh;
  double seconds;
  bool keeps; /* true if the persistent region of the plan on this mesh fits */
} mesh_seen;
typedef struct fitter {
  const rf_model *model;
  rf_plan_options from;      /* the user's options, with budget_bytes = room */
  const rf_fit_whole *whole; /* the whole job; NULL: the plan is the whole job */
  int64_t room;
  rf_plan *best,       /* the fastest plan that fits */
      *closest;        /* the plan that is shown if none fits */
  double best_seconds; /* of the whole job */
  int64_t closest_bytes;
  mesh_seen seen[MAX_MESHES];
  int meshes, autos; /* autos: number of searches with remat=auto on several chips */
  rf_fit_row row[MAX_TRIED];
  int rows;
} fitter;

static rf_fit_row row_of(const rf_plan *plan) {
  const rf_build_options *b = &plan->options.build;
  return (rf_fit_row){.dtype = b->dtype,
                      .remat = plan->options.remat,
                      .microbatch = b->microbatch,
                      .accumulate = b->accumulate,
                      .mesh = b->mesh,
                      .peak_bytes = plan->arena_bytes,
                      .seconds = plan->step_seconds,
                      .fits = rf_plan_fits(plan)};
}

/* Compares a plan that does not fit with f->closest, the plan that is shown so far. Returns true if
 * the new plan is shown instead. The new plan is shown if only the new plan has the user's dtype,
 * or if the new plan is smaller. */
static bool shows_more(const fitter *f, const rf_fit_row *row) {
  const rf_dtype usual = f->from.build.dtype, shown = f->closest->options.build.dtype;
  if (row->dtype != shown) return row->dtype == usual;
  return row->peak_bytes < f->closest_bytes;
}

/* Takes ownership of a plan. Keeps the best plan so far, and frees the other plan. */
static void keep(fitter *f, rf_plan *plan, const rf_fit_row *row) {
  if (f->rows < MAX_TRIED) f->row[f->rows++] = *row;
  rf_plan **slot = row->fits ? &f->best : &f->closest;
  bool better = !*slot || (row->fits ? row->seconds < f->best_seconds : shows_more(f, row));
  if (!better) {
    rf_plan_free(plan);
    return;
  }
  rf_plan_free(*slot);
  *slot = plan;
  if (row->fits) f->best_seconds = row->seconds;
  else f->closest_bytes = row->peak_bytes;
}

/* Makes the plan of one setting. */
static rf_status plan_one(fitter *f, const rf_plan_options *options, rf_fit_row *row, rf_fit_cost *cost,
                          int64_t *persistent, rf_error *error) {
  rf_plan *plan = NULL;
  RF_TRY(rf_plan_make(f->model, options, &plan, error));
  *row = row_of(plan);
  *cost = (rf_fit_cost){.bytes = plan->arena_bytes, .seconds = plan->step_seconds};
  *persistent = plan->persistent_bytes;
  rf_status status = f->whole ? f->whole->cost(f->whole->self, plan, cost, error) : RAFTER_OK;
  if (status != RAFTER_OK) {
    rf_plan_free(plan);
    return status;
  }
  row->fits = row->fits && cost->bytes <= f->room;
  row->peak_bytes = cost->bytes;
  row->seconds = cost->seconds;
  *persistent += cost->kept_elsewhere;
  keep(f, plan, row);
  return RAFTER_OK;
}

typedef struct setting {
  rf_dtype dtype;
  int64_t microbatch;
  double seconds;         /* time without recomputation: no plan with recomputation is faster */
  int64_t kept_elsewhere; /* bytes that other phases keep in memory */
  bool worth_auto;        /* true if the setting does not fit, but may fit with recomputation */
} setting;

/* Among the divisors of the batch, only the eight largest are tried as microbatches. */
enum { MAX_DIVISORS = 8 };

/* The axes that shard the sequences of a microbatch. */
static const rf_axes BATCH_AXES = RF_AXIS_BIT(RF_AXIS_SLICE) | RF_AXIS_BIT(RF_AXIS_DATA) |
                                  RF_AXIS_BIT(RF_AXIS_EXPERT) | RF_AXIS_BIT(RF_AXIS_FSDP);

/* True if the number of microbatches is valid for the pipeline stages of a mesh. */
static bool fills(const rf_mesh *mesh, int64_t micros) {
  int64_t stages = rf_pipeline_stages(mesh);
  return micros >= stages && (mesh->schedule != RF_PIPELINE_INTERLEAVED || micros % stages == 0);
}

static int list_settings(const rf_plan_options *options, rf_fit_vary vary, setting list[2 * MAX_DIVISORS]) {
  static const rf_dtype dtypes[] = {RF_F32, RF_BF16};
  bool train = options->build.job == RF_JOB_TRAIN, staged = rf_pipeline_stages(&options->build.mesh) > 1;
  int64_t batch = options->build.microbatch * options->build.accumulate,
          together = rf_loss_sequences(&options->build),
          chips = together * rf_mesh_size(&options->build.mesh, BATCH_AXES);
  int count = 0;
  for (int d = 0; d < (vary.dtype ? 2 : 1); d++) {
    rf_dtype dtype = vary.dtype ? dtypes[d] : options->build.dtype;
    int tried = 0;
    if (!train || !vary.microbatch)
      list[count++] = (setting){.dtype = dtype, .microbatch = options->build.microbatch};
    else
      for (int64_t micro = batch; micro >= 1 && tried < MAX_DIVISORS; micro--)
        if (batch % micro == 0 && ((micro % chips == 0 && fills(&options->build.mesh, batch / micro)) ||
                                   (micro == batch && !staged && micro % together == 0))) {
          list[count++] = (setting){.dtype = dtype, .microbatch = micro};
          tried++;
        }
    /* If no setting is valid, plans this setting, because the error of this plan says why. */
    if (!count) list[count++] = (setting){.dtype = dtype, .microbatch = options->build.microbatch};
  }
  return count;
}

/* Makes the plan of a setting with a remat policy. *made gets the result. The result is all zero if
 * no plan was made. */
static rf_status try_setting(fitter *f, const rf_plan_options *from, setting *s, rf_remat remat,
                             rf_fit_row *made, rf_error *error) {
  rf_plan_options options = *from;
  rf_fit_row row;
  rf_fit_cost cost;
  int64_t batch = options.build.microbatch * options.build.accumulate, persistent = 0;
  if (made) *made = (rf_fit_row){0};
  if (f->room <= s->kept_elsewhere) return RAFTER_OK; /* the other phases leave no memory */
  options.taken_bytes = s->kept_elsewhere;
  options.remat = remat;
  options.build.dtype = s->dtype;
  options.build.microbatch = s->microbatch;
  options.build.accumulate = (int)(batch / s->microbatch);
  RF_TRY(plan_one(f, &options, &row, &cost, &persistent, error));
  if (made) *made = row;
  if (remat != from->remat && remat != RF_REMAT_NONE) return RAFTER_OK;
  s->seconds = row.seconds;
  s->kept_elsewhere = cost.kept_elsewhere;
  s->worth_auto = row.peak_bytes > f->room && persistent < f->room;
  return RAFTER_OK;
}

/* The remat policy that saves the most memory: AUTO for rafter, and BLOCK for a JAX program. */
static rf_remat most_remat(const rf_plan_options *options) {
  return options->program.program == RF_PROGRAM_RAFTER ? RF_REMAT_AUTO : RF_REMAT_BLOCK;
}

/* Tries remat=auto from the smallest microbatch up. Stops at a microbatch that does not fit,
 * because larger microbatches do not fit either. On several chips, also stops when the time grows
 * again. In large graphs, a search takes a second, so it stops after a few searches. */
static rf_status try_auto(fitter *f, const rf_plan_options *from, setting *list, int count, rf_dtype dtype,
                          rf_error *error) {
  const bool several = rf_mesh_chips(&from->build.mesh) > 1;
  double turn = HUGE_VAL;
  for (int i = count; i-- > 0;) {
    rf_fit_row made;
    double before = f->best ? f->best_seconds : HUGE_VAL;
    if (several && f->autos > 0 && f->autos >= AUTO_OPS / (f->best ? f->best->graph->op_count + 1 : 1)) break;
    if (list[i].dtype != dtype || !list[i].worth_auto || (f->best && list[i].seconds >= f->best_seconds))
      continue;
    f->autos += several;
    RF_TRY(try_setting(f, from, &list[i], most_remat(from), &made, error));
    if (!made.fits || (several && f->best_seconds >= before && made.seconds > 1.01 * turn)) break;
    turn = fmin(turn, made.seconds);
  }
  return RAFTER_OK;
}

/* Tries the named policies on the best setting. A named policy may beat remat=auto, which does not
 * know that recomputation may overlap with transfers. */
static rf_status try_policies(fitter *f, const rf_plan_options *from, rf_error *error) {
  const rf_plan *plan = f->best ? f->best : f->closest;
  rf_remat named[RF_REMAT_NAMED];
  int policies = rf_remat_named(named);
  if (!plan || memcmp(&plan->options.build.mesh, &from->build.mesh, sizeof from->build.mesh))
    return RAFTER_OK;
  setting s = {.dtype = plan->options.build.dtype, .microbatch = plan->options.build.microbatch};
  for (int k = 0; k < policies; k++) RF_TRY(try_setting(f, from, &s, named[k], NULL, error));
  return RAFTER_OK;
}

static rf_status try_settings(fitter *f, const rf_plan_options *from, rf_fit_vary vary, rf_error *error) {
  setting list[2 * MAX_DIVISORS];
  const int count = list_settings(from, vary, list);
  for (int i = 0; i < count; i++)
    RF_TRY(try_setting(f, from, &list[i], vary.remat ? RF_REMAT_NONE : from->remat, NULL, error));
  if (!vary.remat) return RAFTER_OK;
  RF_TRY(try_auto(f, from, list, count, RF_BF16, error)); /* bf16 is first, because it is faster */
  RF_TRY(try_auto(f, from, list, count, RF_F32, error));
  return try_policies(f, from, error);
}

static int compare_rows(const void *a, const void *b) {
  const rf_fit_row *x = a, *y = b;
  if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
  return x->peak_bytes < y->peak_bytes ? -1 : x->peak_bytes > y->peak_bytes;
}

/* Sorts the results by time. Keeps each result that needs less memory than every faster result. */
static int frontier(fitter *f, rf_fit_row *out) {
  qsort(f->row, (size_t)f->rows, sizeof *f->row, compare_rows);
  int count = 0;
  int64_t least = INT64_MAX;
  for (int i = 0; i < f->rows && count < RF_MAX_FIT_ROWS; i++)
    if (f->row[i].peak_bytes < least) {
      least = f->row[i].peak_bytes;
      out[count++] = f->row[i];
    }
  return count;
}

/* ---- meshes ---------------------------------------------------------------------------------- */

enum { MAX_TENSOR = 64, NODE = 16, CLIMBS = 4, REFINED = 3 };
typedef struct mesh_list {
  rf_mesh mesh[MAX_MESHES];
  int count;
} mesh_list;

/* Adds the mesh with the extents `of` to the list, unless the list has it. The new mesh keeps the
 * slices and capacity of `from`. */
static void add_mesh(mesh_list *list, const rf_mesh *from, const int64_t of[RF_AXES]) {
  rf_mesh mesh = *from;
  for (int a = 0; a < RF_AXES; a++)
    if (a != RF_AXIS_SLICE) mesh.of[a] = (int32_t)(of[a] > 1 ? of[a] : 1);
  bool cuts = mesh.of[RF_AXIS_FSDP] > 1, copies = mesh.of[RF_AXIS_DATA] > 1;
  /* --zero is 3 by default if the mesh has an fsdp axis */
  mesh.zero = cuts || (copies && from->zero < 3) ? from->zero : 0;
  for (int i = 0; i < list->count; i++)
    if (!memcmp(&list->mesh[i], &mesh, sizeof mesh)) return;
  if (list->count < MAX_MESHES) list->mesh[list->count++] = mesh;
}

/* For each extent of the tensor axis, lists three meshes. In these meshes, the other chips share
 * one copy of the weights (fsdp), hold a copy each (data), or share a copy in groups of NODE chips.
 * Further meshes shard experts, rows or sequences over these chips, or over the largest possible
 * number of them. */
static void list_meshes(const rf_model *model, const rf_mesh *from, int64_t microbatch, mesh_list *list) {
  int64_t slices = rf_mesh_extent(from, RF_AXIS_SLICE), chips = rf_mesh_chips(from) / slices;
  for (int64_t tensor = 1; tensor <= MAX_TENSOR && tensor <= chips && chips % tensor == 0; tensor *= 2) {
    int64_t rest = chips / tensor,
            rows = rf_common_divisor(rest, microbatch % slices ? 1 : microbatch / slices);
    int64_t experts = model->experts > 0 ? rf_common_divisor(rest, model->experts) : 1;
    add_mesh(list, from, (int64_t[RF_AXES]){[RF_AXIS_FSDP] = rest, [RF_AXIS_TENSOR] = tensor});
    add_mesh(list, from, (int64_t[RF_AXES]){[RF_AXIS_DATA] = rest, [RF_AXIS_TENSOR] = tensor});
    if (rest % NODE == 0)
      add_mesh(
          list, from,
          (int64_t[RF_AXES]){[RF_AXIS_DATA] = rest / NODE, [RF_AXIS_FSDP] = NODE, [RF_AXIS_TENSOR] = tensor});
    add_mesh(list, from,
             (int64_t[RF_AXES]){
                 [RF_AXIS_EXPERT] = experts, [RF_AXIS_FSDP] = rest / experts, [RF_AXIS_TENSOR] = tensor});
    if (rows == rest) continue;
    add_mesh(list, from,
             (int64_t[RF_AXES]){
                 [RF_AXIS_FSDP] = rows, [RF_AXIS_CONTEXT] = rest / rows, [RF_AXIS_TENSOR] = tensor});
    add_mesh(list, from,
             (int64_t[RF_AXES]){
                 [RF_AXIS_FSDP] = rows, [RF_AXIS_SEQUENCE] = rest / rows, [RF_AXIS_TENSOR] = tensor});
  }
}

/* Lists meshes that differ from mesh `from` by one factor of 2 or 4. The factor moves from fsdp,
 * data or tensor to context, sequence, expert or pipeline. */
static void list_neighbours(const rf_model *model, const rf_mesh *from, mesh_list *list) {
  static const rf_axis to[] = {RF_AXIS_CONTEXT, RF_AXIS_SEQUENCE, RF_AXIS_EXPERT, RF_AXIS_PIPELINE},
                       of[] = {RF_AXIS_FSDP, RF_AXIS_DATA, RF_AXIS_TENSOR};
  for (size_t t = 0; t < sizeof to / sizeof *to; t++)
    for (size_t d = 0; d < sizeof of / sizeof *of && (to[t] != RF_AXIS_EXPERT || model->experts > 0); d++)
      for (int64_t chips = 2; chips <= 4; chips *= 2) {
        int64_t extents[RF_AXES];
        for (int a = 0; a < RF_AXES; a++) extents[a] = rf_mesh_extent(from, (rf_axis)a);
        if (extents[of[d]] % chips) continue;
        extents[of[d]] /= chips;
        extents[to[t]] *= chips;
        add_mesh(list, from, extents);
      }
}

/* Number of microbatches for a pipeline. The number is `accumulate` if that is valid, otherwise
 * batch / chips. */
static int fill_stages(const rf_mesh *mesh, int64_t batch, int accumulate) {
  int64_t chips = rf_mesh_size(mesh, BATCH_AXES);
  if (rf_pipeline_stages(mesh) == 1 || fills(mesh, accumulate) || batch % chips) return accumulate;
  return batch / chips <= INT32_MAX ? (int)(batch / chips) : accumulate;
}

static void note_mesh(fitter *f, const mesh_seen *mesh) {
  int at = 0;
  while (at < f->meshes && memcmp(&f->seen[at].mesh, &mesh->mesh, sizeof mesh->mesh)) at++;
  if (at == MAX_MESHES) return;
  if (at == f->meshes) f->seen[f->meshes++] = *mesh;
  else if (mesh->seconds < f->seen[at].seconds) f->seen[at].seconds = mesh->seconds;
}

/* Tries one mesh, at first without recomputation. Stops at the first policy whose plan fits or is
 * slower than the best plan so far. The result is RAFTER_INVALID if this mesh cannot shard the
 * model. */
static rf_status try_mesh(fitter *f, const rf_mesh *mesh, rf_fit_vary vary, int accumulate, rf_error *error) {
  static const rf_remat policies[] = {RF_REMAT_NONE, RF_REMAT_MLP, RF_REMAT_MLP_ATTN, RF_REMAT_BLOCK};
  int64_t batch = f->from.build.microbatch * f->from.build.accumulate;
  int count = vary.remat ? 4 : 1;
  if (vary.microbatch) accumulate = fill_stages(mesh, batch, accumulate);
  int64_t kept_elsewhere = 0;
  for (int i = 0; i < count && kept_elsewhere < f->room; i++) {
    rf_plan_options options = f->from;
    rf_fit_row row;
    rf_fit_cost cost;
    int64_t persistent = 0;
    options.build.mesh = *mesh;
    options.taken_bytes = kept_elsewhere;
    options.build.microbatch = batch / accumulate;
    options.build.accumulate = accumulate;
    if (vary.dtype) options.build.dtype = RF_BF16;
    if (vary.remat) options.remat = policies[i];
    double before = f->best ? f->best_seconds : HUGE_VAL;
    RF_TRY(plan_one(f, &options, &row, &cost, &persistent, error));
    kept_elsewhere = cost.kept_elsewhere;
    if (i == 0) note_mesh(f, &(mesh_seen){*mesh, row.seconds, persistent < f->room});
    if (row.fits || row.seconds >= before) break;
  }
  return RAFTER_OK;
}

/* Searches dtype, microbatch and remat on one mesh. Skips settings that this mesh cannot shard. */
static void refine_mesh(fitter *f, const rf_mesh *mesh, rf_fit_vary vary) {
  rf_plan_options on = f->from;
  on.build.mesh = *mesh;
  if (vary.dtype) {
    on.build.dtype = RF_BF16;
    vary.dtype = false;
  }
  (void)try_settings(f, &on, vary, NULL);
}

/* Searches all settings on the best mesh. Then searches meshes that may be better. Recomputation
 * makes no mesh faster. So only a mesh that is faster without recomputation may be better. */
static void refine_meshes(fitter *f, rf_fit_vary vary) {
  if (!f->best || (!vary.remat && !vary.microbatch)) return;
  rf_mesh mesh = f->best->options.build.mesh;
  for (int times = 0; times < REFINED; times++) {
    int next = RF_NONE;
    refine_mesh(f, &mesh, vary);
    for (int i = 0; i < f->meshes; i++) {
      mesh_seen *seen = &f->seen[i];
      if (!memcmp(&seen->mesh, &mesh, sizeof mesh)) seen->keeps = false; /* already searched */
      if (seen->keeps && seen->seconds < 0.99 * f->best_seconds &&
          (next == RF_NONE || seen->seconds < f->seen[next].seconds))
        next = i;
    }
    if (next == RF_NONE) return;
    mesh = f->seen[next].mesh;
  }
}

/* The error if no mesh can be planned. If the chips cannot share the batch, the error says so.
 * Otherwise the error is `last`, the error of the last mesh. */
static rf_status no_mesh(const fitter *f, const rf_error *last, rf_error *error) {
  const int64_t batch = f->from.build.microbatch * f->from.build.accumulate,
                chips = rf_mesh_chips(&f->from.build.mesh);
  char hint[160];
  if (batch % chips == 0) {
    if (error) *error = *last;
    return RAFTER_INVALID;
  }
  snprintf(hint, sizeof hint, "give a batch that is a multiple of the chips: --batch %lld",
           (long long)((batch + chips - 1) / chips * chips));
  return RF_FAIL(error, RAFTER_INVALID, hint,
                 "--fit found no mesh of %lld chips for batch %lld x %lld tokens (the last error: %.300s)",
                 (long long)chips, (long long)batch, (long long)f->from.build.seq, last->message);
}

/* Tries the listed meshes, then the neighbours of the best mesh until no neighbour is faster. */
static rf_status try_meshes(fitter *f, rf_fit_vary vary, rf_error *error) {
  mesh_list *list = calloc(1, sizeof *list);
  rf_error last = {0};
  int cut = 0;
  int64_t batch = f->from.build.microbatch * f->from.build.accumulate,
          together = rf_loss_sequences(&f->from.build);
  if (!list) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  for (int accumulate = vary.microbatch ? 1 : f->from.build.accumulate; accumulate <= batch;
       accumulate *= 4) {
    list->count = 0;
    if (batch % accumulate || batch / accumulate % together) continue;
    list_meshes(f->model, &f->from.build.mesh, batch / accumulate / together, list);
    for (int tried = 0, climbs = 0; tried < list->count && climbs <= CLIMBS; climbs++) {
      const rf_plan *before = f->best;
      for (; tried < list->count; tried++)
        cut += try_mesh(f, &list->mesh[tried], vary, accumulate, &last) == RAFTER_OK;
      if (f->best && f->best != before) list_neighbours(f->model, &f->best->options.build.mesh, list);
    }
    if (f->best || !vary.microbatch) break;
  }
  free(list);
  refine_meshes(f, vary);
  return cut ? RAFTER_OK : no_mesh(f, &last, error);
}

static void explain(rf_fit_row *row, int count) {
  for (int i = 1; i < count; i++) {
    const rf_fit_row *from = &row[i - 1];
    rf_fit_row *to = &row[i];
    char what[200] = "", mesh[160];
    if (memcmp(&to->mesh, &from->mesh, sizeof to->mesh))
      rf_text_append(what, sizeof what, " mesh %.90s", rf_mesh_text(&to->mesh, mesh));
    if (to->dtype != from->dtype) rf_text_append(what, sizeof what, " dtype=%s", rf_dtype_name(to->dtype));
    if (to->remat != from->remat) rf_text_append(what, sizeof what, " remat=%s", rf_remat_name(to->remat));
    if (to->microbatch != from->microbatch)
      rf_text_append(what, sizeof what, " microbatch=%lld accumulate=%d", (long long)to->microbatch,
                     to->accumulate);
    char speed[32];
    double saved = (double)(from->peak_bytes - to->peak_bytes);
    bool large = saved >= 0.1 * 0x1p30;
    snprintf(to->why, sizeof to->why, "%s saves %.*f %s, %s", what[0] ? what + 1 : "this", large ? 2 : 0,
             saved / (large ? 0x1p30 : 0x1p20), large ? "GiB" : "MiB",
             rf_text_speed(from->seconds, to->seconds, speed));
  }
  if (count) snprintf(row[0].why, sizeof row[0].why, "the fastest setting tried");
}

rf_status rf_plan_fit(const rf_model *model, const rf_plan_options *options, rf_fit_vary vary,
                      const rf_fit_whole *whole, rf_plan **out, rf_fit_found *found, rf_error *error) {
  fitter *f = calloc(1, sizeof *f);
  if (!f) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  if (options->build.microbatch < 1 || options->build.accumulate < 1 || !options->machine) {
    free(f);
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "the search needs a machine and a batch (expected at least 1 x 1, got %lld x %d)",
                   (long long)options->build.microbatch, options->build.accumulate);
  }
  f->model = model;
  f->from = *options;
  f->whole = whole;
  f->room = rf_plan_room(options);
  f->from.budget_bytes = f->room;
  f->from.searched = true;
  rf_status status = RAFTER_OK;
  if (!vary.mesh) vary.remat &= options->build.job == RF_JOB_TRAIN;
  if (vary.mesh) RF_GO(try_meshes(f, vary, error));
  else RF_GO(try_settings(f, &f->from, vary, error));
  if (found) {
    found->tried = f->rows;
    found->rows = frontier(f, found->row);
    explain(found->row, found->rows);
    found->fits = f->best != NULL;
  }
  rf_plan **chosen = f->best ? &f->best : &f->closest;
  *out = *chosen;
  *chosen = NULL;
  if (!*out) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "the search made no plan"));
done:
  rf_plan_free(f->best);
  rf_plan_free(f->closest);
  free(f);
  return status;
}
