/* result.c - see result.h: finds the critical rate, and writes the JSON of a test. */
#include "traffic/result.h"

#include "base/json.h"

double rf_traffic_token_rate(const rf_traffic_stats *s) {
  return s->seconds > 0 ? (double)s->output_tokens / s->seconds : 0;
}

double rf_traffic_usd(const rf_traffic_results *r, const rf_traffic_stats *s) {
  const double rate = rf_traffic_token_rate(s);
  return r->usd_per_hour > 0 && rate > 0 ? r->usd_per_hour / 3600 / rate * 1e6 : 0;
}

void rf_traffic_critical(const rf_traffic_results *r, bool planned, double *low, double *high) {
  *low = *high = 0;
  for (int i = 0; i < r->rows; i++) {
    const rf_traffic_row *row = &r->row[i];
    if (planned && !row->has_plan) continue;
    const bool saturated = planned ? row->predicted.saturated : row->measured.saturated;
    if (!saturated && row->rate > *low) *low = row->rate;
  }
  for (int i = 0; i < r->rows; i++) {
    const rf_traffic_row *row = &r->row[i];
    const bool saturated = planned ? row->predicted.saturated : row->measured.saturated;
    if ((planned && !row->has_plan) || !saturated || row->rate <= *low) continue;
    if (!(*high > 0) || row->rate < *high) *high = row->rate;
  }
}

/* Adds the price per token, if the price of the server is known. */
static void put_price(json_t *json, const rf_traffic_results *r, const rf_traffic_stats *s) {
  const double usd = rf_traffic_usd(r, s);
  if (!(r->usd_per_hour > 0)) return;
  json_object_set_new(json, "usd_per_million_tokens", usd > 0 ? json_real(usd) : json_null());
  json_object_set_new(json, "tokens_per_usd", usd > 0 ? json_real(1e6 / usd) : json_null());
}

static json_t *predicted_json(const rf_traffic_results *r, const rf_traffic_row *row) {
  static const char *const MEASURED_ONLY[] = {"max_output_tokens_per_s",
                                              "max_concurrent_requests",
                                              "mean_send_delay_ms",
                                              "max_send_delay_ms",
                                              "requests_without_usage",
                                              "cancelled",
                                              "failed"};
  if (!row->has_plan) return json_null();
  json_t *json = rf_traffic_stats_json(&row->predicted, &r->percentiles, &r->slo);
  for (size_t i = 0; i < sizeof MEASURED_ONLY / sizeof *MEASURED_ONLY; i++)
    json_object_del(json, MEASURED_ONLY[i]);
  put_price(json, r, &row->predicted);
  return json;
}

static json_t *row_json(const rf_traffic_results *r, const rf_traffic_row *row) {
  const rf_traffic_watched *w = &row->watched;
  json_t *json =
      json_pack("{so so sI}", "request_rate", row->rate > 0 ? json_real(row->rate) : json_string("inf"),
                "max_concurrency", row->clients ? json_integer(row->clients) : json_null(), "num_prompts",
                (json_int_t)row->requests);
  json_object_update_new(json, rf_traffic_stats_json(&row->measured, &r->percentiles, &r->slo));
  put_price(json, r, &row->measured);
  json_object_set_new(json, "server_mean_running", w->samples ? json_real(w->running) : json_null());
  json_object_set_new(json, "server_mean_waiting", w->samples ? json_real(w->waiting) : json_null());
  json_object_set(json, "error_kinds", row->faults);
  json_object_set_new(json, "predicted", predicted_json(r, row));
  return json;
}

json_t *rf_traffic_results_json(const rf_traffic_results *r) {
  json_t *json = json_pack("{ss ss ss ss}", "command", "bench-serve", "base_url", r->server, "model_id",
                           r->model, "load", r->load),
         *list = json_array();
  json_object_set_new(json, "plan", r->plan ? json_string(r->plan) : json_null());
  json_object_set_new(json, "usd_per_hour", r->usd_per_hour > 0 ? json_real(r->usd_per_hour) : json_null());
  if (!r->rates) {
    json_decref(list);
    json_object_update_new(json, row_json(r, &r->row[0]));
    return json;
  }
  for (int i = 0; i < r->rows; i++) {
    json_t *row = row_json(r, &r->row[i]);
    json_object_set_new(row, "searched", json_boolean(r->row[i].searched));
    json_array_append_new(list, row);
  }
  json_object_set_new(json, "rates", list);
  json_object_set_new(json, "critical_rate", r->critical > 0 ? json_real(r->critical) : json_null());
  json_object_set_new(json, "critical_rate_bounded", json_boolean(r->bounded));
  json_object_set_new(json, "predicted_critical_rate",
                      r->planned_critical > 0 ? json_real(r->planned_critical) : json_null());
  return json;
}
