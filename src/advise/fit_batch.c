/* fit_batch.c - see fit_batch.h. */
#include "advise/fit_batch.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "advise/set.h"
#include "base/text.h"
#include "graph/mesh/pipeline.h"
#include "plan/loss.h"

enum { MAX_BATCH = 1 << 20, MAX_RAISES = 10 };

/* A batch that was planned. */
typedef struct sample {
  int64_t batch, bytes;
  double seconds; /* time of a step; 0: unknown */
  /* slow: a step takes longer than --latency. host: the host's memory is too small. */
  bool planned, fits, slow, host;
  int64_t by_class[RF_CLASSES];
  char refused[200]; /* reason why the batch cannot be planned */
} sample;

/* A search for the largest batch. `below` is a batch that fits, and `above` is a batch that does
 * not fit. `planned` counts plans. */
typedef struct search {
  const rf_options *from;
  const char *job;
  int64_t step, room, planned;
  double latency; /* --latency; 0: no limit */
  sample first, below, above;
} search;

/* ---- one batch ------------------------------------------------------------------------------- */

static void read_memory(const rafter_plan *p, sample *to) {
  const rf_plan *plan = rf_plan_larger(p->plan, p->prefill);
  const json_t *phases = json_object_get(json_object_get(p->extra, "memory"), "by_class");
  to->bytes = (p->needs > plan->arena_bytes ? p->needs : plan->arena_bytes) + p->settings.plan.draft_bytes;
  for (int c = 0; c < RF_CLASSES; c++)
    to->by_class[c] =
        phases ? json_integer_value(json_object_get(phases, rf_class_name((rf_class)c))) : plan->by_class[c];
}

static rf_status plan_batch(search *s, int64_t batch, rafter_plan *p, rf_error *error) {
  char text[32];
  rf_options *options = rf_options_copy(s->from);
  snprintf(text, sizeof text, "%lld", (long long)batch);
  rf_status status = rf_options_set(options, "batch", text, error);
  if (status == RAFTER_OK) status = rf_plan_job(p, options, s->job, error);
  rf_options_free(options);
  s->planned++;
  return status;
}

/* Plans a batch. A batch that cannot be planned does not fit. */
static rf_status try_batch(search *s, int64_t batch, sample *out, rf_error *error) {
  rf_error refused = {0};
  rafter_plan *p = rf_planned_new();
  if (!p) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  p->sized = true;
  *out = (sample){.batch = batch};
  rf_status status = plan_batch(s, batch, p, &refused);
  if (status == RAFTER_OK) {
    read_memory(p, out);
    s->room = rf_plan_room(&p->settings.plan) + p->settings.plan.draft_bytes;
    out->planned = true;
    /* if the job has several phases, the plan's time is not the time of the job */
    out->seconds = p->needs ? 0 : p->plan->step_seconds;
    out->slow = s->latency > 0 && out->seconds > s->latency;
    out->fits = rf_plan_all_fits(p) && !out->slow;
    out->host = !out->fits && out->bytes <= s->room && !out->slow;
  }
  rafter_plan_free(p);
  if (status == RAFTER_OK || (status == RAFTER_INVALID && batch > s->step)) {
    snprintf(out->refused, sizeof out->refused, "%.199s", refused.message);
    return RAFTER_OK;
  }
  if (error) *error = refused;
  return status;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Returns the batch at which a line through two samples reaches the memory limit. */
static double meet(const search *s, const sample *a, const sample *b) {
  double slope = (double)(b->bytes - a->bytes) / (double)(b->batch - a->batch);
  return slope > 0 ? (double)a->batch + (double)(s->room - a->bytes) / slope : HUGE_VAL;
}

/* The next batch to plan. Memory grows almost linearly, so a line is a good guess. Every second
 * guess halves the interval, which bounds the number of plans. */
static int64_t next_batch(const search *s, int turn) {
  const int64_t low = s->below.batch, high = s->above.batch;
  double guess = 2.0 * (double)low;
  if (!high && low > s->first.batch) guess = fmin(meet(s, &s->first, &s->below), 64.0 * (double)low);
  if (high) guess = (double)low + (double)(high - low) / 2;
  if (high && turn % 2 && s->above.planned && s->above.bytes > s->room) guess = meet(s, &s->below, &s->above);
  int64_t next = (int64_t)fmin(guess, MAX_BATCH) / s->step * s->step;
  if (high && next >= high) next = high - s->step;
  return next <= low ? low + s->step : next;
}

/* Finds the largest batch that fits, from `start` upwards. below.batch is 0 if `start` does not
 * fit. above.batch is 0 if every batch fits. */
static rf_status find(search *s, int64_t start, rf_error *error) {
  const int64_t most = MAX_BATCH / s->step * s->step;
  sample now;
  s->above.batch = s->below.batch = 0;
  RF_TRY(try_batch(s, start, &now, error));
  if (!now.fits) {
    s->above = now;
    return RAFTER_OK;
  }
  s->first = s->below = now;
  for (int turn = 0; s->below.batch < most && s->below.batch + s->step != s->above.batch; turn++) {
    RF_TRY(try_batch(s, next_batch(s, turn), &now, error));
    *(now.fits ? &s->below : &s->above) = now;
  }
  return RAFTER_OK;
}

/* ---- the limit ------------------------------------------------------------------------------- */

/* The class of tensor that grows most with the batch. */
static int growing_class(const sample *small, const sample *large) {
  int most = RF_CLASS_WEIGHT;
  for (int c = 0; c < RF_CLASSES; c++)
    if (c != RF_CLASS_PADDING &&
        large->by_class[c] - small->by_class[c] > large->by_class[most] - small->by_class[most])
      most = c;
  return most;
}

static const char *limit_of(const search *s, int class) {
  const sample *above = &s->above;
  return !above->batch          ? "range"
         : !above->planned      ? "settings"
         : above->slow          ? "latency"
         : above->host          ? "host memory"
         : class == RF_CLASS_KV ? "cache"
                                : "memory";
}

/* The classes that take most of the memory: "kv 13.3 GiB (84 %), weight 1.87 GiB (12 %)". */
static void list_classes(const sample *of, char *text, size_t capacity) {
  enum { SHOWN = 3 };
  int64_t below = INT64_MAX;
  char bytes[32];
  for (int shown = 0; shown < SHOWN; shown++) {
    int most = RF_NONE;
    for (int c = 0; c < RF_CLASSES; c++)
      if (of->by_class[c] < below && (most == RF_NONE || of->by_class[c] > of->by_class[most])) most = c;
    if (most == RF_NONE || of->by_class[most] * 100 < of->bytes) return;
    below = of->by_class[most];
    rf_text_append(text, capacity, "%s%s %s (%.0f %%)", shown ? ", " : "", rf_class_name((rf_class)most),
                   rf_text_bytes((double)below, bytes), 100 * (double)below / (double)of->bytes);
  }
}

static void say_limit(const search *s, const sample *at, char *text, size_t capacity) {
  const sample *above = &s->above;
  char a[32], b[32];
  if (!above->batch)
    rf_text_append(text, capacity, "the batch has no limit; the search ends at batch %d", MAX_BATCH);
  else if (!above->planned)
    rf_text_append(text, capacity, "batch %lld cannot be planned: %s", (long long)above->batch,
                   above->refused);
  else if (above->slow)
    rf_text_append(text, capacity, "with batch %lld, a step takes %s, and --latency allows %s",
                   (long long)above->batch, rf_text_seconds(above->seconds, a),
                   rf_text_seconds(s->latency, b));
  else if (above->host)
    rf_text_append(text, capacity, "with batch %lld, the memory of the host is too small",
                   (long long)above->batch);
  else {
    rf_text_append(text, capacity, "batch %lld needs %s too much; ", (long long)above->batch,
                   rf_text_bytes((double)(above->bytes - s->room), a));
    list_classes(at, text, capacity);
  }
}

/* ---- changes that raise the batch ------------------------------------------------------------ */

typedef struct raise {
  char change[160];
  bool approximate; /* results change by more than rounding */
} raise;

static void add(raise list[MAX_RAISES], int *count, bool approximate, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void add(raise list[MAX_RAISES], int *count, bool approximate, const char *format, ...) {
  va_list values;
  if (*count == MAX_RAISES) return;
  va_start(values, format);
  vsnprintf(list[*count].change, sizeof list->change, format, values);
  va_end(values);
  list[(*count)++].approximate = approximate;
}

static bool is(const rf_options *options, const char *name, const char *text) {
  return !strcmp(rf_options_text_or(options, name, ""), text);
}

/* Twice the chips. A mesh of --mesh keeps its axes, and the further chips go to its data axis or to
 * another axis. Without --mesh, jobs with answers also try two copies of the model. */
static void add_chips(const rf_options *o, const rf_settings *s, raise *list, int *count) {
  const rf_machine *m = &s->machine;
  const char *on = rf_options_text(o, "on");
  const bool learns = s->plan.build.job == RF_JOB_TRAIN;
  char shape[80], mesh[120] = "";
  if (m->topology.form == RF_NETWORK_NONE || m->by_device || m->slices > 1) return;
  rf_machine_shape_for(m, 2 * (int64_t)m->chips, shape, sizeof shape);
  for (int a = 0; (learns || rf_options_given(o, "mesh")) && a < RF_AXES; a++) {
    const rf_mesh *old = &s->plan.build.mesh;
    int64_t chips = rf_mesh_extent(old, (rf_axis)a);
    bool grows = a == (rf_mesh_extent(old, RF_AXIS_FSDP) > 1   ? RF_AXIS_FSDP
                       : rf_mesh_extent(old, RF_AXIS_DATA) > 1 ? RF_AXIS_DATA
                       : learns                                ? RF_AXIS_FSDP
                                                               : RF_AXIS_TENSOR);
    if (chips > 1 || grows)
      rf_text_append(mesh, sizeof mesh, "%s%s=%lld", *mesh ? "," : ",mesh=", rf_axis_name((rf_axis)a),
                     (long long)(grows ? 2 * chips : chips));
  }
  add(list, count, false, "on=%.*s%s%s", (int)strcspn(on, ":*"), on, shape, mesh);
  if (*mesh) return;
  if (m->chips > 1) snprintf(mesh, sizeof mesh, ",tensor=%d", m->chips);
  add(list, count, false, "on=%.*s%s,mesh=data=2%s", (int)strcspn(on, ":*"), on, shape, mesh);
}

/* The mesh of a training step whose chips hold the fewest bytes of weights: all chips on fsdp. It is
 * often slower than the chosen mesh, but has more room for the batch. */
static void add_mesh(const rf_settings *s, raise *list, int *count) {
  const rf_mesh *old = &s->plan.build.mesh;
  const int64_t slices = rf_mesh_extent(old, RF_AXIS_SLICE), chips = rf_mesh_chips(old) / slices;
  char slice[32] = "";
  if (chips < 2 || rf_mesh_extent(old, RF_AXIS_FSDP) == chips) return;
  if (slices > 1) snprintf(slice, sizeof slice, "slice=%lld,", (long long)slices);
  add(list, count, false, "mesh=%sfsdp=%lld", slice, (long long)chips);
}

/* Lists the changes that may raise the batch, each in the notation of --compare. */
static int list_raises(const rf_options *o, const rf_settings *s, const char *job, raise list[MAX_RAISES]) {
  const rf_build_options *b = &s->plan.build;
  const bool learns = b->job == RF_JOB_TRAIN, caches = b->job == RF_JOB_GENERATE || !strcmp(job, "rl"),
             frozen = !learns || s->model.lora.rank > 0,
             answers = !strcmp(job, "rollout") || !strcmp(job, "serve") || !strcmp(job, "rl");
  int count = 0;
  if (learns && s->plan.remat != RF_REMAT_BLOCK) add(list, &count, false, "remat=block");
  if (learns) add_mesh(s, list, &count);
  if (b->dtype == RF_F32) add(list, &count, true, "dtype=bf16");
  if (frozen && (is(o, "weights", "file") || is(o, "weights", "f32") || is(o, "weights", "bf16")))
    add(list, &count, true, "weights=int8");
  if (caches && !b->kv_dtype_set && b->dtype == RF_F32) add(list, &count, true, "kv-dtype=bf16");
  if (caches && (!b->kv_dtype_set || b->kv_dtype == RF_F32 || b->kv_dtype == RF_BF16))
    add(list, &count, true, "kv-dtype=int8");
  if (answers && !rf_options_given(o, "seq") && rf_options_int_or(o, "max-tokens", 256) > 1)
    add(list, &count, false, "max-tokens=%lld", (long long)rf_options_int_or(o, "max-tokens", 256) / 2);
  else if (!answers && b->seq > 1) add(list, &count, false, "seq=%lld", (long long)b->seq / 2);
  add_chips(o, s, list, &count);
  return count;
}

/* Returns the JSON object of a change, with the largest batch that it allows. NULL: the change does
 * not raise the batch, or cannot be planned. */
static json_t *raise_json(const search *before, const raise *by) {
  rf_options *options = rf_options_copy(before->from);
  rf_settings *settings = malloc(sizeof *settings);
  search s = {.from = options, .job = before->job, .latency = before->latency};
  json_t *json = NULL;
  if (settings && rf_options_apply(options, by->change, NULL) == RAFTER_OK &&
      rf_settings_resolve(options, rf_plan_settings_of(s.job), settings, NULL) == RAFTER_OK) {
    s.step = rf_fit_batch_step(settings);
    if (before->step % s.step == 0) s.step = before->step;
    int64_t start = (before->below.batch / s.step + 1) * s.step;
    if (start <= MAX_BATCH && find(&s, start, NULL) == RAFTER_OK && s.below.batch > 0)
      json = json_pack("{ss sI sI so sb}", "change", by->change, "batch", (json_int_t)s.below.batch,
                       "peak_bytes", (json_int_t)s.below.bytes, "seconds",
                       s.below.seconds > 0 ? json_real(s.below.seconds) : json_null(), "approximate",
                       by->approximate);
  }
  free(settings);
  rf_options_free(options);
  return json;
}

static int by_batch(const void *a, const void *b) {
  const json_t *const *x = a, *const *y = b;
  int64_t left = json_integer_value(json_object_get(*x, "batch")),
          right = json_integer_value(json_object_get(*y, "batch"));
  return (left < right) - (left > right);
}

/* The changes that raise the batch, the largest batch first. */
static json_t *raises_json(const search *s) {
  json_t *list = json_array(), *made[MAX_RAISES];
  raise raises[MAX_RAISES];
  rf_settings *settings = malloc(sizeof *settings);
  int count = 0, kept = 0;
  if (settings && s->above.batch &&
      rf_settings_resolve(s->from, rf_plan_settings_of(s->job), settings, NULL) == RAFTER_OK)
    count = list_raises(s->from, settings, s->job, raises);
  for (int i = 0; i < count; i++)
    if ((made[kept] = raise_json(s, &raises[i]))) kept++;
  qsort(made, (size_t)kept, sizeof *made, by_batch);
  for (int i = 0; i < kept; i++) json_array_append_new(list, made[i]);
  free(settings);
  return list;
}

/* ---- the answer ------------------------------------------------------------------------------ */

int64_t rf_fit_batch_step(const rf_settings *s) {
  const rf_build_options *b = &s->plan.build;
  int64_t copies = rf_mesh_copies(&b->mesh);
  if (b->job == RF_JOB_GENERATE) return copies * rf_mesh_size(&b->mesh, RF_AXES_OF_PASS);
  return copies * (b->job == RF_JOB_TRAIN ? rf_loss_sequences(b) * b->accumulate : 1);
}

static json_t *largest_json(const search *s, const sample *half, json_t *raises) {
  const sample *at = s->below.batch ? &s->below : &s->above;
  const int class = growing_class(half, at);
  char why[600] = "";
  const int64_t between = at->batch - half->batch;
  say_limit(s, at, why, sizeof why);
  return json_pack(
      "{sI sI ss so so sI sI so ss so sI}", "batch", (json_int_t)s->below.batch, "step", (json_int_t)s->step,
      "limit", limit_of(s, class), "class",
      s->above.batch && s->above.bytes > s->room ? json_string(rf_class_name((rf_class) class)) : json_null(),
      "bytes_per_sequence",
      between > 0 ? json_integer((json_int_t)((at->bytes - half->bytes) / between)) : json_null(),
      "peak_bytes", (json_int_t)at->bytes, "room_bytes", (json_int_t)s->room, "seconds",
      at->seconds > 0 ? json_real(at->seconds) : json_null(), "why", why, "raises", raises, "tried",
      (json_int_t)s->planned);
}

rf_status rf_fit_batch_hold_room(rf_options *options, const rf_settings *s, rf_error *error) {
  char text[32];
  if (s->machine.kind != RF_MACHINE_CPU || !rf_options_bare(options, "fit")) return RAFTER_OK;
  snprintf(text, sizeof text, "%lld", (long long)(rf_plan_room(&s->plan) + s->plan.margin_bytes));
  return rf_options_set(options, "fit", text, error);
}

rf_status rf_fit_batch(const rf_options *options, const char *job, int64_t step, json_t **largest,
                       rf_error *error) {
  search s = {.from = options, .job = job, .step = step};
  s.latency = rf_options_float_or(options, "latency", 0);
  char a[32], b[32];
  sample half;
  RF_TRY(find(&s, step, error));
  if (!s.below.batch && s.above.slow)
    return RF_FAIL(
        error, RAFTER_NO_FIT, "raise --latency, or plan more chips or narrower weights",
        "even the smallest batch is too slow (--latency: expected at most %s, got %s with batch %lld)",
        rf_text_seconds(s.latency, a), rf_text_seconds(s.above.seconds, b), (long long)s.above.batch);
  half = s.below.batch ? s.below : s.above;
  if (s.below.batch > step) RF_TRY(try_batch(&s, s.below.batch / 2 / step * step, &half, error));
  const bool several = rf_options_given(options, "sweep") || rf_options_given(options, "compare");
  json_t *raises = several ? json_array() : raises_json(&s);
  *largest = largest_json(&s, &half, raises);
  return *largest ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
}

rf_status rf_fit_batch_seconds(const rf_options *options, const char *job, int64_t step, int64_t batch,
                               int64_t *found, double *seconds, rf_error *error) {
  search s = {.from = options, .job = job, .step = step};
  s.latency = rf_options_float_or(options, "latency", 0);
  *found = 0;
  if (batch > 0) {
    RF_TRY(try_batch(&s, batch, &s.below, error));
    if (!s.below.fits) return RAFTER_OK;
  } else RF_TRY(find(&s, step, error));
  *found = s.below.batch;
  *seconds = s.below.seconds;
  return RAFTER_OK;
}

/* Sets the mesh that the search chose, in the notation of --mesh. */
static rf_status set_mesh(rf_options *options, const rf_mesh *mesh, rf_error *error) {
  char text[160] = "";
  for (int a = 0; a < RF_AXES; a++)
    if (rf_mesh_extent(mesh, (rf_axis)a) > 1)
      rf_text_append(text, sizeof text, "%s%s=%d", *text ? "," : "", rf_axis_name((rf_axis)a),
                     (int)mesh->of[a]);
  return *text ? rf_options_set(options, "mesh", text, error) : RAFTER_OK;
}

rf_status rf_fit_batch_chosen(const rf_options *options, const rafter_plan *plan, rf_options **chosen,
                              int64_t *step, rf_error *error) {
  const rf_plan_options *found = &plan->plan->options;
  const rf_build_options *b = &found->build;
  const bool rl = !strcmp(plan->job, "rl"), micro = rf_options_given(options, "microbatch"),
             held = rf_options_given(options, "accumulate") || rf_pipeline_stages(&b->mesh) > 1;
  rf_options *o = *chosen = rf_options_copy(options);
  *step = micro && !rl  ? 0
          : rl && !held ? b->microbatch
                        : rf_mesh_copies(&b->mesh) * rf_loss_sequences(b) * (held ? b->accumulate : 1);
  /* A search for single tensors for every batch takes too long, so remat auto becomes block. */
  RF_TRY(rf_options_set(o, "remat", found->remat == RF_REMAT_AUTO ? "block" : rf_remat_name(found->remat),
                        error));
  RF_TRY(rf_options_set(o, "dtype", rf_dtype_name(b->dtype), error));
  if (!rf_options_given(options, "mesh")) RF_TRY(set_mesh(o, &b->mesh, error));
  if (held && !rf_options_given(options, "accumulate"))
    RF_TRY(rf_options_set_int(o, "accumulate", b->accumulate, error));
  return rl && !held && !micro ? rf_options_set_int(o, "microbatch", b->microbatch, error) : RAFTER_OK;
}
