/* fit_mesh.c - see fit_mesh.h. */
#include "advise/fit_mesh.h"

#include <stdlib.h>
#include <string.h>

#include "advise/fit_batch.h"
#include "base/text.h"
#include "generate/generate.h"

enum { MAX_INNER = 64, MAX_MESHES = 512 };
typedef struct candidate {
  char mesh[96];
  int64_t batch;
  double rate; /* sequences or answers per second; 0: the mesh does not fit */
} candidate;

typedef struct mesh_search {
  const rf_options *from;
  const char *job;
  rf_settings *settings; /* of the last candidate */
  candidate at[MAX_MESHES];
  int count;
  int too_large;            /* meshes that need too much memory */
  rf_error refused;         /* of the first mesh that cannot run the job for another reason */
  const candidate *refuses; /* this mesh; NULL: none */
} mesh_search;

typedef struct extent {
  const char *axis;
  int64_t chips;
} extent;

static void add(mesh_search *s, const extent *axes, int count) {
  char text[sizeof s->at->mesh] = "";
  for (int i = 0; i < count; i++)
    if (axes[i].chips > 1)
      rf_text_append(text, sizeof text, "%s%s=%lld", *text ? "," : "", axes[i].axis,
                     (long long)axes[i].chips);
  for (int i = 0; i < s->count; i++)
    if (!strcmp(s->at[i].mesh, text)) return;
  if (*text && s->count < MAX_MESHES) snprintf(s->at[s->count++].mesh, sizeof text, "%s", text);
}

/* For each extent of the tensor axis, the other chips hold copies of the weights (data), share one
 * copy (fsdp), or share the experts. */
static void list_meshes(mesh_search *s, const rf_settings *settings) {
  const rf_mesh *mesh = &settings->plan.build.mesh;
  const int64_t slices = rf_mesh_extent(mesh, RF_AXIS_SLICE), chips = rf_mesh_chips(mesh) / slices;
  for (int64_t tensor = 1; tensor <= MAX_INNER && tensor <= chips && chips % tensor == 0; tensor *= 2) {
    const int64_t rest = chips / tensor, experts = settings->model.experts,
                  shared = experts > 0 ? rf_common_divisor(rest, experts) : 1;
    add(s, (extent[]){{"slice", slices}, {"data", rest}, {"tensor", tensor}}, 3);
    add(s, (extent[]){{"slice", slices}, {"fsdp", rest}, {"tensor", tensor}}, 3);
    if (shared > 1)
      add(s, (extent[]){{"slice", slices}, {"expert", shared}, {"data", rest / shared}, {"tensor", tensor}},
          4);
  }
}

/* Lists meshes with pipelines and with copies of a pipeline. A stage needs a microbatch and a
 * layer. */
static void list_pipelines(mesh_search *s, const rf_settings *settings, int chips) {
  const rf_build_options *build = &settings->plan.build;
  for (int stages = 2; stages <= chips; stages++)
    if (build->job == RF_JOB_TRAIN && build->objective == RF_OBJECTIVE_NLL && chips % stages == 0 &&
        stages <= build->accumulate && stages <= settings->model.layers)
      add(s, (extent[]){{"pipeline", stages}, {"data", chips / stages}}, 2);
}

/* Lists the meshes of `chips` chips in which `inner` of them are along `axis`. The others hold
 * copies, or share one copy. */
static void list_inner(mesh_search *s, int64_t chips, const char *axis, int64_t inner, int64_t tensor) {
  const int64_t rest = chips / tensor / inner;
  add(s, (extent[]){{axis, inner}, {"data", rest}, {"tensor", tensor}}, 3);
  add(s, (extent[]){{axis, inner}, {"fsdp", rest}, {"tensor", tensor}}, 3);
}

/* Lists further meshes of ranks: any number of chips along tensor, several shared copies (data and
 * fsdp), and the axes that shard the tokens of a sequence. In training and scoring, these axes only
 * help if the batch has too few sequences for the chips. */
static void list_ranks(mesh_search *s, const rf_settings *settings, int64_t chips) {
  const rf_build_options *build = &settings->plan.build;
  const int64_t experts = settings->model.experts, heads = settings->model.heads;
  const bool answers = build->job == RF_JOB_GENERATE;
  for (int64_t tensor = 1; tensor <= MAX_INNER && tensor <= chips; tensor++) {
    if (chips % tensor || heads % tensor) continue;
    const int64_t rest = chips / tensor;
    const bool shares = build->microbatch % rest == 0;
    for (int64_t inner = 1; inner <= rest; inner++) {
      if (rest % inner) continue;
      if (answers || shares) {
        add(s, (extent[]){{"data", rest / inner}, {"fsdp", inner}, {"tensor", tensor}}, 3);
        if (experts > 0 && experts % inner == 0) list_inner(s, chips, "expert", inner, tensor);
      }
      if (inner * tensor > MAX_INNER || (!answers && (shares || build->microbatch % (rest / inner))))
        continue;
      list_inner(s, chips, "context", inner, tensor);
      if (heads % (inner * tensor) == 0) list_inner(s, chips, "sequence", inner, tensor);
    }
  }
}

/* Finds the rate with one mesh. A mesh that cannot be planned has no rate. */
static rf_status try_mesh(mesh_search *s, candidate *c, rf_error *error) {
  rf_options *options = rf_options_copy(s->from);
  rf_error refused = {0};
  double seconds = 0;
  rf_status status = rf_options_set(options, "mesh", c->mesh, &refused);
  if (status == RAFTER_OK)
    status = rf_settings_resolve(options, rf_plan_settings_of(s->job), s->settings, &refused);
  if (status == RAFTER_OK)
    status = rf_fit_batch_seconds(options, s->job, rf_fit_batch_step(s->settings),
                                  rf_options_given(options, "batch") ? rf_options_int(options, "batch") : 0,
                                  &c->batch, &seconds, &refused);
  rf_options_free(options);
  c->rate = status == RAFTER_OK && c->batch > 0 && seconds > 0 ? (double)c->batch / seconds : 0;
  if (status == RAFTER_OK || status == RAFTER_INVALID || status == RAFTER_NO_FIT) return RAFTER_OK;
  if (error) *error = refused;
  return status;
}

/* Compares the meshes, and sets --mesh to the best one. *found is false if no mesh fits. */
typedef rf_status (*price_of)(mesh_search *s, candidate *c, rf_error *error);
static rf_status compare(mesh_search *s, rf_options *options, const char *who, price_of price, char line[240],
                         bool *found, rf_error *error) {
  const candidate *best = NULL, *second = NULL;
  int fit = 0;
  for (int i = 0; i < s->count; i++) {
    candidate *c = &s->at[i];
    RF_TRY(price(s, c, error));
    fit += c->rate > 0;
    if (c->rate > 0 && (!best || c->rate > best->rate)) {
      second = best;
      best = c;
    } else if (c->rate > 0 && (!second || c->rate > second->rate)) second = c;
  }
  *found = best != NULL;
  if (!best) return RAFTER_OK;
  snprintf(line, 240, "%s compared %d mesh%s, of which %d fit%s, and took %s", who, s->count,
           s->count == 1 ? "" : "es", fit, fit == 1 ? "s" : "", best->mesh);
  if (second)
    rf_text_append(line, 240, ": a step has %.2f x the rate of the next best, %s", best->rate / second->rate,
                   second->mesh);
  return rf_options_set(options, "mesh", best->mesh, error);
}

/* Finds the rate of the job's steps with exactly the given options, as the run plans them. A job
 * with answers has two plans. */
static rf_status plan_step(const rf_settings *settings, double *rate, rf_error *error) {
  const rf_build_options *build = &settings->plan.build;
  rf_infer_settings infer = {.model = settings->model, .plan = settings->plan};
  rf_plan *plan = NULL, *prefill = NULL;
  const double sequences = (double)build->microbatch * build->accumulate;
  if (build->job == RF_JOB_GENERATE) {
    rf_generate_slots(&infer.plan);
    RF_TRY(rf_generate_plans(&infer, &prefill, &plan, error));
  } else RF_TRY(rf_plan_make(&infer.model, &infer.plan, &plan, error));
  bool fits = rf_plan_fits(plan) && (!prefill || rf_plan_fits(prefill));
  *rate = fits ? sequences / plan->step_seconds : 0;
  rf_plan_free(plan);
  rf_plan_free(prefill);
  return RAFTER_OK;
}

static rf_status try_step(mesh_search *s, candidate *c, rf_error *error) {
  rf_options *options = rf_options_copy(s->from);
  rf_error refused = {0};
  rf_status status = rf_options_set(options, "mesh", c->mesh, &refused);
  if (status == RAFTER_OK)
    status = rf_settings_resolve(options, rf_plan_settings_of(s->job), s->settings, &refused);
  if (status == RAFTER_OK) status = plan_step(s->settings, &c->rate, &refused);
  s->too_large += status == RAFTER_OK && c->rate <= 0;
  rf_options_free(options);
  if (status == RAFTER_INVALID && !s->refuses) {
    s->refuses = c;
    s->refused = refused;
  }
  if (status != RAFTER_FAILED) return RAFTER_OK;
  if (error) *error = refused;
  return status;
}

static rf_status new_search(rf_options *options, const char *job, mesh_search **out, rf_error *error) {
  mesh_search *s = calloc(1, sizeof *s);
  if (!s || !(s->settings = malloc(sizeof *s->settings))) {
    free(s);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  }
  s->from = options;
  s->job = job;
  *out = s;
  return RAFTER_OK;
}

static void drop_search(mesh_search *s) {
  free(s->settings);
  free(s);
}

rf_status rf_fit_mesh(rf_options *options, const char *job, const rf_settings *settings, char line[240],
                      rf_error *error) {
  mesh_search *s;
  bool found;
  line[0] = 0;
  if (rf_options_given(options, "mesh") || rf_mesh_chips(&settings->plan.build.mesh) < 2) return RAFTER_OK;
  RF_TRY(new_search(options, job, &s, error));
  list_meshes(s, settings);
  rf_status status = compare(s, options, "--fit", try_mesh, line, &found, error);
  drop_search(s);
  return status;
}

rf_status rf_mesh_auto(rf_options *options, const char *job, int chips, char line[240], rf_error *error) {
  mesh_search *s;
  bool found = false;
  char text[32];
  line[0] = 0;
  snprintf(text, sizeof text, "data=%d", chips);
  RF_TRY(rf_options_set(options, "mesh", chips > 1 ? text : "", error));
  if (chips == 1) return RAFTER_OK;
  RF_TRY(new_search(options, job, &s, error));
  rf_status status = rf_settings_resolve(options, rf_plan_settings_of(job), s->settings, error);
  if (status == RAFTER_OK) {
    rf_settings first = *s->settings;
    list_meshes(s, &first);
    list_pipelines(s, &first, chips);
    list_ranks(s, &first, chips);
    status = compare(s, options, "--mesh auto", try_step, line, &found, error);
  }
  if (status == RAFTER_OK && !found && !s->too_large && s->refuses)
    status = RF_FAIL(error, RAFTER_INVALID, s->refused.hint,
                     "no mesh of %d chips can run this job (--mesh auto compared %d). With %s: %s", chips,
                     s->count, s->refuses->mesh, s->refused.message);
  else if (status == RAFTER_OK && !found)
    status = RF_FAIL(error, RAFTER_NO_FIT,
                     "to see why a mesh does not fit, give this mesh to `rafter plan` with --mesh",
                     "no mesh of %d chips fits (--mesh auto compared %d)", chips, s->count);
  drop_search(s);
  return status;
}
