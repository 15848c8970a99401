/* predict.c - see predict.h. */
#include "traffic/predict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/simulate.h"

static rf_status no_memory(rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while predicting");
}

/* Returns the options of `rafter plan` for `model`. */
static rf_status plan_options(const rf_options *from, const char *model, rf_options **out, rf_error *error) {
  rf_options *o = NULL;
  RF_TRY(rf_options_new(rf_options_commands(from), "plan", &o, error));
  rf_status status = rf_options_set(o, "MODEL", model, error);
  for (int i = 0; status == RAFTER_OK && i < rf_options_count(from); i++) {
    const char *name = rf_options_name(from, i);
    if (strcmp(name, "json") && rf_options_given(from, name) && rf_options_knows(o, name))
      status = rf_options_set(o, name, rf_options_text(from, name), error);
  }
  if (status == RAFTER_OK) *out = o;
  else rf_options_free(o);
  return status;
}

static rf_infer_settings infer_of(const rf_traffic_plan *plan, const rf_traffic_shape *shape) {
  rf_infer_settings g = {.model = plan->settings.model,
                         .plan = plan->settings.plan,
                         .step_growth = plan->step_growth,
                         .choice = &plan->choice};
  int64_t longest = 1;
  for (int64_t i = 0; i < shape->count; i++)
    if (shape->list[i].prompt + shape->list[i].answer > longest)
      longest = shape->list[i].prompt + shape->list[i].answer;
  if (!plan->seq_given) g.plan.build.seq = longest;
  return g;
}

rf_status rf_traffic_plan_open(const rf_options *from, const char *model, int64_t longest,
                               rf_traffic_plan **out, rf_error *error) {
  rf_options *o = NULL;
  rf_traffic_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return no_memory(error);
  rf_status status = plan_options(from, model, &o, error);
  if (status == RAFTER_OK) status = rf_settings_resolve(o, "generate", &plan->settings, error);
  if (status == RAFTER_OK) {
    plan->seq_given = rf_options_given(o, "seq");
    plan->step_growth = rf_options_float(o, "step-growth");
  }
  rf_options_free(o);
  rf_arrival one = {.prompt = longest > 1 ? longest - 1 : 1, .answer = 1, .samples = 1};
  const rf_traffic_shape shape = {.list = &one, .count = 1};
  rf_traffic_stats stats;
  if (status == RAFTER_OK)
    status =
        rf_traffic_predict(plan, &shape, &(rf_traffic_percentiles){0}, &(rf_traffic_slo){0}, &stats, error);
  if (status == RAFTER_OK) *out = plan;
  else free(plan);
  return status;
}

void rf_traffic_shape_measured(const rf_traffic_record *record, int64_t count, rf_traffic_shape *shape) {
  shape->count = 0;
  for (int64_t i = 0; i < count; i++) {
    const rf_traffic_record *r = &record[i];
    if (r->sent < 0) continue;
    rf_arrival *a = &shape->list[shape->count++];
    *a = (rf_arrival){
        .at = shape->closed ? 0 : r->from, .prompt = r->asked_input, .answer = r->asked_output, .samples = 1};
    if (r->state != RF_TRAFFIC_COMPLETED) continue;
    a->prompt = rf_traffic_input_tokens(r);
    a->answer = rf_traffic_output_tokens(r);
    if (a->prompt < 1) a->prompt = 1;
    if (a->answer < 1) a->answer = 1;
  }
}

/* Writes predicted times into records of requests, as if they were measured. */
static void fill_records(const rf_traffic_shape *shape, const rf_served_times *times,
                         rf_traffic_record *record) {
  for (int64_t i = 0; i < shape->count; i++) {
    const rf_arrival *a = &shape->list[i];
    record[i] = (rf_traffic_record){.state = RF_TRAFFIC_COMPLETED,
                                    .http = 200,
                                    .from = shape->closed ? times->sent[i] : a->at,
                                    .sent = shape->closed ? times->sent[i] : a->at,
                                    .first = times->first[i],
                                    .end = times->last[i],
                                    .input_tokens = a->prompt,
                                    .output_tokens = a->answer,
                                    .asked_input = a->prompt,
                                    .asked_output = a->answer};
  }
}

rf_status rf_traffic_predict(const rf_traffic_plan *plan, const rf_traffic_shape *shape,
                             const rf_traffic_percentiles *p, const rf_traffic_slo *slo,
                             rf_traffic_stats *stats, rf_error *error) {
  const rf_infer_settings g = infer_of(plan, shape);
  const size_t count = (size_t)shape->count;
  rf_serve_stats served;
  rf_status status = RAFTER_OK;
  double *times = calloc(3 * count + 1, sizeof *times);
  rf_traffic_record *record = calloc(count + 1, sizeof *record);
  if (!times || !record) RF_GO(no_memory(error));
  const rf_served_times t = {times, times + count, times + 2 * count};
  if (shape->closed) {
    RF_GO(rf_simulate_closed(&g, shape->clients, shape->list, shape->count, &t, &served, error));
  } else RF_GO(rf_simulate(&g, shape->list, shape->count, t.first, t.last, &served, error));
  fill_records(shape, &t, record);
  double end = 0;
  for (size_t i = 0; i < count; i++) end = fmax(end, t.last[i]);
  RF_GO(rf_traffic_stats_of(record, shape->count, shape->closed, end, p, slo, stats, error));
done:
  free(times);
  free(record);
  return status;
}

double rf_traffic_between(double low, double high) {
  char text[32];
  snprintf(text, sizeof text, "%.3g", sqrt(low * high));
  return strtod(text, NULL);
}

static rf_status saturates(const rf_traffic_plan *plan, const rf_traffic_shape *shape, uint64_t seed,
                           double rate, bool *saturated, rf_error *error) {
  rf_traffic_stats stats;
  rf_arrival *times = calloc((size_t)shape->count + 1, sizeof *times);
  if (!times) return no_memory(error);
  rf_arrivals_poisson((rf_arrival){0}, rate, seed, times, shape->count);
  for (int64_t i = 0; i < shape->count; i++) shape->list[i].at = times[i].at;
  free(times);
  RF_TRY(rf_traffic_predict(plan, shape, &(rf_traffic_percentiles){0}, &(rf_traffic_slo){0}, &stats, error));
  *saturated = stats.saturated;
  return RAFTER_OK;
}

rf_status rf_traffic_plan_critical(const rf_traffic_plan *plan, const rf_traffic_shape *shape, uint64_t seed,
                                   double low, double high, double *critical, rf_error *error) {
  enum { FACTORS = 20 };
  bool saturated = false;
  for (int i = 0; !(high > 0) && i < FACTORS; i++) {
    const double rate = low > 0 ? 2 * low : 1;
    RF_TRY(saturates(plan, shape, seed, rate, &saturated, error));
    *(saturated ? &high : &low) = rate;
  }
  for (int i = 0; !(low > 0) && i < FACTORS; i++) {
    RF_TRY(saturates(plan, shape, seed, high / 2, &saturated, error));
    *(saturated ? &high : &low) = high / 2;
  }
  while (low > 0 && high > RF_TRAFFIC_NEAR * low) {
    const double rate = rf_traffic_between(low, high);
    RF_TRY(saturates(plan, shape, seed, rate, &saturated, error));
    *(saturated ? &high : &low) = rate;
  }
  *critical = low;
  return RAFTER_OK;
}
