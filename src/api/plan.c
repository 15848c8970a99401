/* plan.c - rafter_plan: a job's plan, its JSON and its table. */
#include "api/plan.h"

#include "generate/generate.h"

#include <stdlib.h>
#include <string.h>

/* Options whose value later versions bring: refused now, by name. */
static rf_status refuse_foreign_program(const rf_options *options, rf_error *error) {
  const char *program = rf_options_has(options, "program") ? rf_options_text(options, "program") : "rafter";
  if (!strcmp(program, "rafter")) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "leave --program out", "this version sizes its own programs only (--program: expected rafter, got %s)",
                 program);
}

static rf_status make(rafter_plan *p, const char *job, rf_error *error) {
  rf_settings *s = &p->settings;
  if (!strcmp(job, "generate")) {
    rf_generate_settings g = {.model = s->model, .plan = s->plan};
    return rf_generate_plans(&g, &p->prefill, &p->plan, error);
  }
  if (s->fit) return rf_plan_fit(&s->model, &s->plan, s->vary, &p->plan, p->frontier, &p->frontier_count, error);
  RF_TRY(rf_plan_make(&s->model, &s->plan, &p->plan, error));
  p->advice_count = rf_plan_advise(p->plan, p->advice);
  return RAFTER_OK;
}

rafter_status rafter_plan_new(const rafter_job *job, rafter_plan **out, rafter_error *error) {
  rf_status status = RAFTER_OK;
  const rf_options *o = job->options;
  const char *kind = rf_options_has(o, "job") ? rf_options_text(o, "job") : !strcmp(rf_options_command(o), "generate") ? "generate" : "train";
  rafter_plan *p = calloc(1, sizeof *p);
  if (!p) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  RF_GO(refuse_foreign_program(o, error));
  RF_GO(rf_settings_resolve(o, kind, &p->settings, error));
  if (!strcmp(rf_options_command(o), "plan")) {
    p->tensors = rf_options_flag(o, "tensors"), p->ops = rf_options_flag(o, "ops");
    p->tokens = rf_options_is_set(o, "tokens") ? (double)rf_options_int(o, "tokens") : 0;
    p->budget_seconds = rf_options_is_set(o, "budget") ? rf_options_float(o, "budget") : 0;
  }
  RF_GO(make(p, kind, error));
done:
  if (status == RAFTER_OK) *out = p;
  else rafter_plan_free(p);
  return status;
}

void rafter_plan_free(rafter_plan *plan) {
  if (!plan) return;
  rf_plan_free(plan->plan), rf_plan_free(plan->prefill);
  free(plan);
}

static rf_report_plan report_of(const rafter_plan *p) {
  return (rf_report_plan){.plan = p->plan,
                          .prefill = p->prefill,
                          .job = p->prefill ? "generate" : "train",
                          .advice = p->advice,
                          .advice_count = p->advice_count,
                          .frontier = p->frontier,
                          .frontier_count = p->frontier_count,
                          .tokens = p->tokens,
                          .budget_seconds = p->budget_seconds,
                          .tensors = p->tensors,
                          .ops = p->ops};
}

rf_status rf_plan_object(const rafter_plan *plan, json_t **json, rf_error *error) {
  rf_report_plan report = report_of(plan);
  *json = rf_report_plan_json(&report);
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
  *text = rf_report_plan_text(&report);
  return *text ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a plan");
}

rafter_status rafter_plan_number(const rafter_plan *plan, const char *pointer, double *value, rafter_error *error) {
  json_t *json = NULL, *at;
  char part[128];
  rf_status status = RAFTER_OK;
  RF_TRY(rf_plan_object(plan, &json, error));
  at = json;
  for (const char *p = pointer; at && *p == '/';) {
    size_t n = strcspn(++p, "/");
    if (n >= sizeof part) n = sizeof part - 1;
    memcpy(part, p, n), part[n] = 0;
    at = json_is_array(at) ? json_array_get(at, strtoul(part, NULL, 10)) : json_object_get(at, part);
    p += n;
  }
  if (json_is_boolean(at)) *value = json_is_true(at);
  else if (json_is_number(at)) *value = json_number_value(at);
  else status = RF_FAIL(error, RAFTER_INVALID, "for example /memory/peak_bytes", "a plan has no number at %s", pointer);
  json_decref(json);
  return status;
}
