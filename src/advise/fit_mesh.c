/* fit_mesh.c - see fit_mesh.h. */
#include "advise/fit_mesh.h"

#include <stdlib.h>
#include <string.h>

#include "advise/fit_batch.h"
#include "base/text.h"

enum { MAX_TENSOR = 64, MAX_MESHES = 64 };
typedef struct candidate {
  char mesh[96];
  int64_t batch;
  double rate; /* sequences per second; 0: the smallest batch does not fit */
} candidate;

typedef struct mesh_search {
  const rf_options *from;
  const char *job;
  rf_settings *settings; /* of the last candidate */
  candidate at[MAX_MESHES];
  int count;
} mesh_search;

static void add(mesh_search *s, int64_t slices, const char *axis, int64_t chips, int64_t data,
                int64_t tensor) {
  char text[sizeof s->at->mesh] = "";
  const struct {
    const char *axis;
    int64_t chips;
  } parts[] = {{"slice", slices}, {axis, chips}, {"data", data}, {"tensor", tensor}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (parts[i].chips > 1)
      rf_text_append(text, sizeof text, "%s%s=%lld", *text ? "," : "", parts[i].axis,
                     (long long)parts[i].chips);
  for (int i = 0; i < s->count; i++)
    if (!strcmp(s->at[i].mesh, text)) return;
  if (*text && s->count < MAX_MESHES) snprintf(s->at[s->count++].mesh, sizeof text, "%s", text);
}

/* For each extent of the tensor axis: the other chips hold copies of the weights (data), share one
 * copy (fsdp), or share the experts. */
static void list_meshes(mesh_search *s, const rf_settings *settings) {
  const rf_mesh *mesh = &settings->plan.build.mesh;
  const int64_t slices = rf_mesh_extent(mesh, RF_AXIS_SLICE), chips = rf_mesh_chips(mesh) / slices;
  for (int64_t tensor = 1; tensor <= MAX_TENSOR && tensor <= chips && chips % tensor == 0; tensor *= 2) {
    const int64_t rest = chips / tensor, experts = settings->model.experts,
                  shared = experts > 0 ? rf_common_divisor(rest, experts) : 1;
    add(s, slices, "data", rest, 1, tensor);
    add(s, slices, "fsdp", rest, 1, tensor);
    if (shared > 1) add(s, slices, "expert", shared, rest / shared, tensor);
  }
}

/* Finds the rate with one mesh. A mesh that cannot be planned has none. */
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

static void say(const mesh_search *s, const candidate *best, const candidate *second, char line[240]) {
  int fit = 0;
  for (int i = 0; i < s->count; i++) fit += s->at[i].rate > 0;
  snprintf(line, 240, "--fit compared %d meshes, of which %d fit, and took %s", s->count, fit, best->mesh);
  if (second)
    rf_text_append(line, 240, ": a step has %.2f x the rate of the next best, %s", best->rate / second->rate,
                   second->mesh);
}

rf_status rf_fit_mesh(rf_options *options, const char *job, const rf_settings *settings, char line[240],
                      rf_error *error) {
  rf_status status = RAFTER_OK;
  line[0] = 0;
  if (rf_options_given(options, "mesh") || rf_mesh_chips(&settings->plan.build.mesh) < 2) return RAFTER_OK;
  mesh_search *s = calloc(1, sizeof *s);
  if (!s || !(s->settings = malloc(sizeof *s->settings)))
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning"));
  s->from = options;
  s->job = job;
  list_meshes(s, settings);
  const candidate *best = NULL, *second = NULL;
  for (int i = 0; i < s->count; i++) {
    candidate *c = &s->at[i];
    RF_GO(try_mesh(s, c, error));
    if (c->rate > 0 && (!best || c->rate > best->rate)) {
      second = best;
      best = c;
    } else if (c->rate > 0 && (!second || c->rate > second->rate)) second = c;
  }
  if (best) {
    say(s, best, second, line);
    RF_GO(rf_options_set(options, "mesh", best->mesh, error));
  }
done:
  if (s) free(s->settings);
  free(s);
  return status;
}
