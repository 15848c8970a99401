/* sweep.c - `rafter plan --sweep`: one plan per value of an option, and where it falls off. */
#include "api/plan.h"

/* --sweep: one row per value; a cliff is a value whose bytes or time per token jump by more than a fifth over the one before. */
rf_status rf_plan_sweep(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  rf_status status = RAFTER_OK;
  const char *name = NULL;
  const char *const *values = NULL;
  int count = rf_options_sweep(job->options, "sweep", &name, &values);
  json_t *rows = json_array(), *cliffs = json_array(), *plan = NULL;
  double last_rate = 0;
  char a[32], b[32], c[32];
  rf_say(sink, "%-16s %12s %12s %14s  %s\n", name, "memory", "time", "tokens/s", "fits");
  for (int i = 0; i < count; i++) {
    rafter_job one = {rf_options_copy(job->options)};
    status = rf_options_set(one.options, name, values[i], error);
    if (status == RAFTER_OK) status = rf_plan_once(&one, NULL, &plan, error);
    rf_options_free(one.options);
    if (status != RAFTER_OK) break;
    double bytes = json_number_value(json_object_get(json_object_get(plan, "memory"), "peak_bytes")),
           rate = json_number_value(json_object_get(json_object_get(plan, "rate"), "tokens_per_second"));
    double seconds = json_number_value(json_object_get(json_object_get(plan, "time"), "seconds"));
    bool fits = json_is_true(json_object_get(json_object_get(plan, "memory"), "fits"));
    rf_say(sink, "%-16s %12s %12s %14s  %s\n", values[i], rf_text_bytes(bytes, a), rf_text_seconds(seconds, b), rf_text_count(rate, c),
           fits ? "yes" : "no");
    if (last_rate > 0 && rate < 0.8 * last_rate)
      json_array_append_new(cliffs, json_pack("{ss ss}", "at", values[i], "cause", "tokens per second fall by more than a fifth"));
    last_rate = rate;
    json_object_set_new(plan, name, json_string(values[i]));
    json_array_append_new(rows, plan);
  }
  json_t *whole = json_pack("{ss ss ss so so}", "rafter", RF_VERSION, "command", "plan", "sweep", name, "rows", rows, "cliffs", cliffs);
  if (status == RAFTER_OK) rf_put_json(sink, whole);
  else json_decref(whole);
  return status;
}
