/* planned.c - see planned.h. */
#define _GNU_SOURCE
#include "advise/planned.h"

#include <stdlib.h>
#include <string.h>

#include "report/plans.h"

rafter_plan *rf_planned_new(void) {
  rafter_plan *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  p->extra = json_object();
  p->assumptions = json_array();
  p->extra_text = open_memstream(&p->extra_chars, &p->extra_bytes);
  if (p->extra && p->assumptions && p->extra_text) return p;
  rafter_plan_free(p);
  return NULL;
}

rf_status rf_plan_begin(const rf_options *o, rafter_plan **out, rf_error *error) {
  const char *kind = rf_options_knows(o, "job")                   ? rf_options_text(o, "job")
                     : !strcmp(rf_options_command(o), "generate") ? "generate"
                                                                  : "train";
  rafter_plan *p = rf_planned_new();
  if (!p) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  if (!strcmp(rf_options_command(o), "plan")) {
    p->tensors = rf_options_flag(o, "tensors");
    p->ops = rf_options_flag(o, "ops");
    p->tokens = rf_options_is_set(o, "tokens") ? (double)rf_options_int(o, "tokens") : 0;
    p->budget_seconds = rf_options_is_set(o, "budget") ? rf_options_float(o, "budget") : 0;
  }
  p->advises = true;
  rf_status status = rf_plan_job(p, o, kind, error);
  if (status == RAFTER_OK) *out = p;
  else rafter_plan_free(p);
  return status;
}

void rf_plan_give_advice(rafter_plan *plan) {
  if (plan->advisable) {
    plan->advice_count = rf_plan_advise(plan->plan, plan->ahead, plan->advice);
    plan->ahead = NULL;
  } else if (!plan->sized) {
    plan->advice_count = rf_plan_advise_compute(plan->plan, plan->prefill, plan->advice);
  }
}

rf_status rf_plan_of_options(const rf_options *options, rafter_plan **plan, rf_error *error) {
  RF_TRY(rf_plan_begin(options, plan, error));
  rf_plan_give_advice(*plan);
  return RAFTER_OK;
}

void rafter_plan_free(rafter_plan *plan) {
  if (!plan) return;
  rf_advice_forget(plan->ahead);
  rf_plan_free(plan->plan);
  rf_plan_free(plan->prefill);
  if (plan->sizes) rf_options_free(plan->sizes);
  json_decref(plan->object);
  json_decref(plan->largest);
  json_decref(plan->extra);
  json_decref(plan->assumptions);
  if (plan->extra_text) fclose(plan->extra_text);
  free(plan->extra_chars);
  for (int i = 0; i < 2; i++) rf_plan_free(plan->drafter_plan[i]);
  free(plan->drafter);
  free(plan);
}

static rf_report_plan report_of(const rafter_plan *p) {
  return (rf_report_plan){.plan = p->plan,
                          .prefill = p->prefill,
                          .job = p->job,
                          .whole = p->whole.unit ? &p->whole : NULL,
                          .served = p->serves ? &p->served : NULL,
                          .seq_default = p->settings.seq_default,
                          .batch_for = p->settings.batch_for,
                          .dtype_default = p->settings.dtype_default && !p->settings.fit,
                          .prompts = p->prompts,
                          .samples = p->samples,
                          .advice = p->advice,
                          .advice_count = p->advice_count,
                          .memory = json_object_get(p->extra, "memory"),
                          .found = p->found.tried ? &p->found : NULL,
                          .largest = p->largest,
                          .tokens = p->tokens,
                          .budget_seconds = p->budget_seconds,
                          .tensors = p->tensors,
                          .ops = p->ops};
}

/* Adds the JSON of a simulated job to the plan's JSON. A key that the plan's JSON lacks is added at
 * the top level. If the key already holds an object, the two objects are merged. */
static void add_extra(const rafter_plan *p, json_t *json) {
  const char *key;
  json_t *value;
  json_object_foreach (p->extra, key, value) {
    json_t *there = json_object_get(json, key);
    if (json_is_object(there) && json_is_object(value)) json_object_update(there, value);
    else json_object_set(json, key, value);
  }
  json_array_extend(json_object_get(json, "assumptions"), p->assumptions);
}

rf_status rf_plan_object(const rafter_plan *plan, json_t **json, rf_error *error) {
  rf_report_plan report = report_of(plan);
  *json = rf_report_plan_json(&report);
  if (*json) {
    add_extra(plan, *json);
    /* the report of a serving job also draws the prefill plan */
    if (plan->tensors && plan->ops && plan->prefill) rf_report_name_plans(*json, plan->plan, plan->prefill);
    json_object_set(*json, "fits", json_object_get(json_object_get(*json, "memory"), "fits"));
  }
  return *json ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a plan");
}

rf_status rf_plan_object_of(const rf_options *options, json_t **json, rf_error *error) {
  rafter_plan *plan = NULL;
  RF_TRY(rf_plan_of_options(options, &plan, error));
  rf_status status = rf_plan_object(plan, json, error);
  rafter_plan_free(plan);
  return status;
}

rf_status rf_plan_table(const rafter_plan *plan, char **text, rf_error *error) {
  rf_report_plan report = report_of(plan);
  char *table = rf_report_plan_text(&report);
  fflush(plan->extra_text);
  if (!table || asprintf(text, "%s%s", table, plan->extra_chars) < 0) *text = NULL;
  free(table);
  return *text ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a plan");
}

double rf_json_at(const json_t *json, const char *object, const char *key) {
  return json_number_value(json_object_get(json_object_get(json, object), key));
}

bool rf_json_fits(const json_t *plan) {
  return json_is_true(json_object_get(json_object_get(plan, "memory"), "fits"));
}
