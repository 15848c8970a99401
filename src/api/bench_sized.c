/* bench_sized.c - the tests of `rafter bench` whose work is --batch sequences: rollouts and forward
 * passes, with the base model and with an adapter. */
#define _GNU_SOURCE
#include "api/bench.h"

#include "generate/simulate.h"

#include <stdlib.h>
#include <string.h>

/* One measurement of a generator or of a scorer. */
typedef struct sized {
  rf_bench *b;
  rf_bench_point point;
  rf_generator *generator;
  rf_scorer *scorer;
  double scored_seconds; /* seconds of all passes of the scorer */
  rf_bench_limits limits;
} sized;

/* ---- rollouts -------------------------------------------------------------------------------- */

/* Answers all prompts, from the first pass to the last token. */
static rf_status roll_out(const sized *w, const rf_sampler_options *sampler, int64_t prompt, int64_t answer,
                          rf_error *error) {
  rf_generator *g = w->generator;
  const rf_event *event;
  int events;
  rf_status status = RAFTER_OK;
  int32_t *ids = malloc((size_t)prompt * sizeof *ids);
  if (!ids) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int64_t a = 0; a < w->point.batch && status == RAFTER_OK; a++) {
    for (int64_t k = 0; k < prompt; k++) ids[k] = rf_bench_id(a * prompt + k, g->settings.model.vocab);
    rf_request request = {.tokens = ids, .count = prompt, .max_tokens = answer, .sampler = *sampler};
    request.sampler.seed = (uint64_t)a;
    status = rf_generator_submit(g, &request, NULL, error);
  }
  free(ids);
  while (status == RAFTER_OK && rf_generator_busy(g)) {
    status = rf_generator_step(g, &event, &events, error);
    for (int i = 0; i < events && status == RAFTER_OK; i++)
      if (event[i].finish == RF_FINISH_ERROR)
        status = RF_FAIL(error, event[i].error->status, NULL, "%s", event[i].error->message);
    if (status == RAFTER_OK && rf_asked_to_stop(w->b->sink))
      status = RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped in %s", w->b->t->name);
  }
  return status;
}

/* Computes the planned seconds of a rollout. */
static rf_status plan_rollout(sized *w, const rf_infer_settings *settings, const rf_sampler_options *sampler,
                              int64_t prompt, int64_t answer, rf_error *error) {
  rf_serve_stats served;
  rf_infer_settings g = *settings;
  int64_t batch = w->point.batch;
  rf_arrival *list = calloc((size_t)batch, sizeof *list);
  if (!list) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  rf_arrivals_poisson((rf_arrival){.prompt = prompt, .answer = answer, .samples = 1}, 0, 0, list, batch);
  g.choice = sampler;
  rf_status status = rf_simulate(&g, list, batch, NULL, NULL, &served, error);
  free(list);
  RF_TRY(status);
  w->point.predicted_seconds = served.seconds;
  return RAFTER_OK;
}

static rf_status measure_rollout(sized *w, rf_error *error) {
  rf_bench *b = w->b;
  rf_settings *s = &b->settings;
  const rf_options *o = b->job->options;
  const rf_sampler_options sampler = {.temperature = 1};
  int64_t prompt = rf_options_int(o, "prompt-tokens"), answer = rf_options_int(o, "max-tokens"),
          batch = w->point.batch;
  s->plan.build.microbatch = batch;
  s->plan.build.sequences = batch;
  s->plan.build.seq = prompt + answer;
  RF_TRY(rf_bench_check_positions(s, b->t, prompt + answer, error));
  rf_infer_settings settings = {.model = s->model,
                                .plan = s->plan,
                                .weights_folder = s->weights_folder,
                                .no_sharing = true,
                                .progress.stop = b->sink->stop};
  RF_TRY(rf_generator_open(&settings, &w->generator, error));
  rf_generator *g = w->generator;
  const rf_plan *larger = rf_plan_larger(g->decode, g->prefill);
  RF_TRY(plan_rollout(w, &settings, &sampler, prompt, answer, error));
  rf_bench_choose_product(b->c, g->decode);
  for (int i = -1; i < b->reps; i++) {
    rf_generator_reset(g);
    rf_bench_sample_flops(b->c, 4);
    rf_bench_sample_read(b->c, 2);
    double start = rf_now_seconds();
    RF_TRY(roll_out(w, &sampler, prompt, answer, error));
    if (i >= 0) b->seconds[i] = rf_now_seconds() - start;
  }
  const rf_params *params = &g->decode->graph->params;
  double flops = (double)batch *
                 (rf_bench_prompt_flops(params, prompt) + 2 * (double)params->matmul * (double)(answer - 1));
  w->limits = (rf_bench_limits){.flops = flops,
                                .causal = flops,
                                .bytes = rf_bench_weight_bytes(g->decode) * (double)answer,
                                .counted = "2 P per token"};
  w->point.tokens = (double)(batch * answer);
  w->point.planned_bytes = (double)larger->arena_bytes;
  w->point.arena_bytes = (double)rf_generator_arena_bytes(g);
  return RAFTER_OK;
}

/* ---- forward passes -------------------------------------------------------------------------- */

enum { TEXT = 256, TOP = 10 }; /* without --seq and --top */

static rf_status fill_texts(const sized *w, int64_t length, int64_t top, rf_scored **text, int32_t **ids,
                            float **values, rf_error *error) {
  size_t rows = (size_t)(w->point.batch * length);
  *text = calloc((size_t)w->point.batch, sizeof **text);
  *ids = malloc(rows * (size_t)(1 + top) * sizeof **ids);
  *values = malloc(rows * (size_t)(1 + top) * sizeof **values);
  if (!*text || !*ids || !*values)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory for %zu tokens", rows);
  for (size_t i = 0; i < rows; i++) (*ids)[i] = rf_bench_id((int64_t)i, w->b->settings.model.vocab);
  for (int64_t i = 0; i < w->point.batch; i++)
    (*text)[i] =
        (rf_scored){*ids + i * length, length, *values + i * length, *ids + (int64_t)rows + i * length * top,
                    *values + (int64_t)rows + i * length * top};
  return RAFTER_OK;
}

static rf_status measure_forward(sized *w, rf_error *error) {
  rf_bench *b = w->b;
  rf_settings *s = &b->settings;
  const rf_options *o = b->job->options;
  rf_scored *text = NULL;
  int32_t *ids = NULL;
  float *values = NULL;
  rf_status status = RAFTER_OK;
  int64_t most = s->model.max_seq < TEXT ? s->model.max_seq : TEXT,
          length = rf_options_given(o, "seq") ? rf_options_int(o, "seq") : most;
  if (b->t->kind == 'F') s->plan.build.top = 0;
  else if (!s->plan.build.top) s->plan.build.top = TOP;
  s->plan.build.seq = length;
  s->plan.build.microbatch = w->point.batch;
  rf_infer_settings settings = {.model = s->model,
                                .plan = s->plan,
                                .weights_folder = s->weights_folder,
                                .seed = 1,
                                .progress.stop = b->sink->stop};
  RF_TRY(rf_bench_check_positions(s, b->t, length, error));
  RF_TRY(rf_scorer_open(&settings, &w->scorer, error));
  const rf_plan *plan = w->scorer->plan;
  RF_GO(fill_texts(w, length, s->plan.build.top, &text, &ids, &values, error));
  rf_bench_choose_product(b->c, plan);
  for (int i = -1; i < b->reps; i++) {
    rf_bench_sample_flops(b->c, 4);
    double start = rf_now_seconds();
    RF_GO(rf_scorer_pass(w->scorer, text, (int)w->point.batch, error));
    double seconds = rf_now_seconds() - start;
    w->scored_seconds += seconds;
    if (i >= 0) b->seconds[i] = seconds;
  }
  w->limits = (rf_bench_limits){
      .flops = plan->flops_full_square, .causal = plan->model_flops, .counted = "2 P + 4 L T D"};
  w->point.tokens = (double)(w->point.batch * length);
  w->point.predicted_seconds = plan->step_seconds;
  w->point.planned_bytes = (double)plan->arena_bytes;
  w->point.arena_bytes = (double)rf_run_arena_bytes(w->scorer->run);
done:
  free(text);
  free(ids);
  free(values);
  return status;
}

/* ---- both ------------------------------------------------------------------------------------ */

static rf_status add_point(rf_bench_points *points, const rf_bench_point *point, rf_error *error) {
  rf_bench_point *grown = realloc(points->at, (size_t)(points->count + 1) * sizeof *grown);
  if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  points->at = grown;
  points->at[points->count++] = *point;
  return RAFTER_OK;
}

/* Writes the trace of a test, or adds the test to the history. Takes ownership of `results`. */
static rf_status leave(const sized *w, json_t *results, rf_error *error) {
  const rf_bench *b = w->b;
  const int64_t runs = b->reps + 1;
  if (w->generator) return rf_bench_leave(b, w->generator, w->generator->decode, results, error);
  const rf_bench_scores all = {runs, (int64_t)w->point.tokens * runs, w->scored_seconds};
  return rf_bench_leave_scores(b, w->scorer, &all, results, error);
}

/* Measures one batch, with or without the adapter. */
static rf_status measure(rf_bench *b, bool adapter, rf_error *error) {
  sized w = {.b = b, .point = {.adapter = adapter, .batch = rf_options_int(b->job->options, "batch")}};
  rf_outside before, memory;
  snprintf(w.point.test, sizeof w.point.test, "%.15s", b->t->name);
  RF_TRY(rf_run_outside(NULL, &before, error));
  rf_status status = b->t->kind == 'R' ? measure_rollout(&w, error) : measure_forward(&w, error);
  if (status == RAFTER_OK)
    status = rf_run_outside(w.generator ? w.generator->run : w.scorer->run, &memory, error);
  if (status == RAFTER_OK) {
    w.point.resident_bytes = (double)(memory.resident_bytes - before.resident_bytes);
    b->point = &w.point;
    json_t *results = rf_bench_report(b, w.point.tokens, w.point.predicted_seconds, &w.limits);
    b->point = NULL;
    w.point.seconds = rf_json_number_at(results, "seconds");
    status = leave(&w, results, error);
  }
  if (status == RAFTER_OK) status = add_point(&b->c->points, &w.point, error);
  rf_generator_close(w.generator);
  rf_scorer_close(w.scorer);
  return status;
}

rf_status rf_bench_sized(rf_bench *b, rf_error *error) {
  const rf_settings asked = b->settings;
  for (int adapter = 0; adapter <= (asked.model.lora.rank > 0); adapter++) {
    rf_error why = {0};
    b->settings = asked;
    if (!adapter) b->settings.model.lora = (rf_lora){0};
    rf_status status = measure(b, adapter, &why);
    if (status == RAFTER_NO_FIT && b->c->sweep) {
      rf_note(b->sink, "%s, %s %s: %s\n", b->t->name, b->c->sweep, b->c->value, why.message);
      continue;
    }
    if (status == RAFTER_OK) continue;
    if (error) *error = why;
    return status;
  }
  return RAFTER_OK;
}
