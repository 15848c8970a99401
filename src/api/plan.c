/* plan.c - rafter_plan: a job's plan, its JSON and its table. */
#define _GNU_SOURCE
#include "api/plan.h"
#include "api/journal.h"

#include <stdlib.h>
#include <string.h>

rafter_status rafter_plan_new(const rafter_job *job, rafter_plan **plan, rafter_error *error) {
  RF_TRY(rf_plan_begin(job, plan, error));
  rf_plan_give_advice(*plan);
  return RAFTER_OK;
}

void rf_plan_give_advice(rafter_plan *plan) {
  if (plan->advisable) {
    plan->advice_count = rf_plan_advise(plan->plan, plan->ahead, plan->advice);
    plan->ahead = NULL;
  }
}

rf_status rf_plan_begin(const rafter_job *job, rafter_plan **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  const rf_options *o = job->options;
  const char *kind = rf_options_has(o, "job")                     ? rf_options_text(o, "job")
                     : !strcmp(rf_options_command(o), "generate") ? "generate"
                                                                  : "train";
  rafter_plan *p = calloc(1, sizeof *p);
  if (!p) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  p->extra = json_object();
  p->assumptions = json_array();
  p->extra_text = open_memstream(&p->extra_chars, &p->extra_bytes);
  if (!p->extra || !p->assumptions || !p->extra_text)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning"));
  if (!strcmp(rf_options_command(o), "plan")) {
    p->tensors = rf_options_flag(o, "tensors");
    p->ops = rf_options_flag(o, "ops");
    p->tokens = rf_options_is_set(o, "tokens") ? (double)rf_options_int(o, "tokens") : 0;
    p->budget_seconds = rf_options_is_set(o, "budget") ? rf_options_float(o, "budget") : 0;
  }
  p->advises = true;
  RF_GO(rf_plan_job(p, o, kind, error));
done:
  if (status == RAFTER_OK) *out = p;
  else rafter_plan_free(p);
  return status;
}

void rafter_plan_free(rafter_plan *plan) {
  if (!plan) return;
  rf_advice_forget(plan->ahead);
  rf_plan_free(plan->plan);
  rf_plan_free(plan->prefill);
  json_decref(plan->extra);
  json_decref(plan->assumptions);
  if (plan->extra_text) fclose(plan->extra_text);
  free(plan->extra_chars);
  free(plan);
}

static rf_report_plan report_of(const rafter_plan *p) {
  return (rf_report_plan){.plan = p->plan,
                          .prefill = p->prefill,
                          .job = p->job,
                          .advice = p->advice,
                          .advice_count = p->advice_count,
                          .memory = json_object_get(p->extra, "memory"),
                          .found = p->found.tried ? &p->found : NULL,
                          .tokens = p->tokens,
                          .budget_seconds = p->budget_seconds,
                          .tensors = p->tensors,
                          .ops = p->ops};
}

/* What a job adds: keys of its own, and keys of objects that are there. */
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
    /* the report draws both walks */
    if (plan->tensors && plan->ops && plan->prefill) rf_journal_name_plans(*json, plan->plan, plan->prefill);
    json_object_set(*json, "fits", json_object_get(json_object_get(*json, "memory"), "fits"));
  }
  return *json ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a plan");
}

rafter_status rafter_plan_json(const rafter_plan *plan, char **text, rafter_error *error) {
  json_t *json = NULL;
  RF_TRY(rf_plan_object(plan, &json, error));
  *text = rf_json_text(json, 0);
  json_decref(json);
  return *text ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a plan");
}

rafter_status rafter_plan_text(const rafter_plan *plan, char **text, rafter_error *error) {
  rf_report_plan report = report_of(plan);
  char *table = rf_report_plan_text(&report);
  fflush(plan->extra_text);
  if (!table || asprintf(text, "%s%s", table, plan->extra_chars) < 0) *text = NULL;
  free(table);
  return *text ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a plan");
}

rafter_status rafter_plan_number(const rafter_plan *plan, const char *pointer, double *value,
                                 rafter_error *error) {
  json_t *json = NULL, *at;
  char part[128];
  rf_status status = RAFTER_OK;
  RF_TRY(rf_plan_object(plan, &json, error));
  at = json;
  for (const char *p = pointer; at && *p == '/';) {
    size_t n = strcspn(++p, "/");
    if (n >= sizeof part) n = sizeof part - 1;
    memcpy(part, p, n);
    part[n] = 0;
    at = json_is_array(at) ? json_array_get(at, strtoul(part, NULL, 10)) : json_object_get(at, part);
    p += n;
  }
  if (json_is_boolean(at)) *value = json_is_true(at);
  else if (json_is_number(at)) *value = json_number_value(at);
  else
    status = RF_FAIL(error, RAFTER_INVALID, "for example /memory/peak_bytes", "a plan has no number at %s",
                     pointer);
  json_decref(json);
  return status;
}
