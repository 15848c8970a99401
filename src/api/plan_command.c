/* plan_command.c - `rafter plan`: which of a plan's forms is asked for, and its answer. */
#include "api/plan.h"

#include "api/gnuplot.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static rf_status print_graph(const rafter_job *job, const char *after, const rafter_sink *sink,
                             rf_error *error) {
  rf_settings *s = malloc(sizeof *s);
  rf_graph *graph = NULL;
  rf_status status = RAFTER_OK;
  if (!s) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  const char *kind = rf_options_text(job->options, "job");
  bool learns = !strcmp(kind, "train") || !strcmp(kind, "rl"), scores = !strcmp(kind, "score");
  RF_GO(rf_settings_resolve(job->options, learns ? "train" : scores ? kind : "generate", s, error));
  if (!learns && !scores) s->plan.build.rows = s->plan.build.microbatch;
  if (!strcmp(after, "remat")) s->plan.build.offload = 0;
  if (!strcmp(after, "remat") || !strcmp(after, "offload")) {
    rf_plan *plan = NULL;
    RF_GO(rf_plan_make(&s->model, &s->plan, &plan, error));
    rf_say_text(sink, strdup(rf_graph_print(plan->graph)));
    rf_plan_free(plan);
    goto done;
  }
  RF_GO(rf_graph_build(&s->model, &s->plan.build, after, &graph, error));
  rf_say_text(sink, strdup(rf_graph_print(graph)));
done:
  rf_graph_free(graph);
  free(s);
  return status;
}

/* The object, the picture and the table of a plan. */
static rf_status show(const rafter_job *job, const rafter_plan *plan, const rafter_sink *sink, json_t **json,
                      rf_error *error) {
  char *text = NULL;
  rf_status status = RAFTER_OK;
  if (json) RF_GO(rf_plan_object(plan, json, error));
  if (rf_options_is_set(job->options, "plot") && !rf_options_is_set(job->options, "sweep") &&
      !rf_options_is_set(job->options, "compare")) {
    const char *path = rf_options_text(job->options, "plot");
    bool rates = json_array_size(json_object_get(json_object_get(plan->extra, "serving"), "rates")) > 1;
    RF_GO(plan->found.rows ? rf_plot_frontier(path, plan, error)
          : rates          ? rf_plot_rates(path, plan, error)
                           : rf_plot_plan(path, plan, error));
  }
  if (sink) {
    RF_GO(rafter_plan_text(plan, &text, error));
    rf_say_text(sink, text);
  }
done:
  return status;
}

rf_status rf_plan_once(const rafter_job *job, const rafter_sink *sink, json_t **json, rf_error *error) {
  rafter_plan *plan = NULL;
  RF_TRY(rafter_plan_new(job, &plan, error));
  rf_status status = show(job, plan, sink, json, error);
  rafter_plan_free(plan);
  return status;
}

/* What would fit is looked for while another core weighs what one change would do: neither asks
 * the other. */
typedef struct refusal {
  const rafter_job *job;
  const rafter_plan *plan;
  pthread_t thread;
  rf_idle idle; /* this thread, once it has shown the plan */
  bool begun;
  rf_status status;
  rf_error error;
} refusal;

static void *refuse(void *self) {
  refusal *r = self;
  r->status = rf_plan_refuse(r->job, r->plan, &r->idle, &r->error);
  return NULL;
}

static void begin_refusal(refusal *r) {
  r->begun = !rf_plan_all_fits(r->plan) && !pthread_create(&r->thread, NULL, refuse, r);
}

static rf_status end_refusal(refusal *r, rf_error *error) {
  pthread_mutex_lock(&r->idle.lock);
  r->idle.is = true;
  pthread_cond_broadcast(&r->idle.changed);
  pthread_mutex_unlock(&r->idle.lock);
  if (r->begun) pthread_join(r->thread, NULL);
  else refuse(r);
  if (r->status != RAFTER_OK && error) *error = r->error;
  return r->status;
}

rf_status rf_command_plan(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  if (rf_options_is_set(job->options, "plot"))
    RF_TRY(rf_gnuplot_check(rf_options_text(job->options, "plot"), error));
  if (rf_options_is_set(job->options, "after"))
    return print_graph(job, rf_options_text(job->options, "after"), sink, error);
  if (rf_options_is_set(job->options, "sweep")) return rf_plan_sweep(job, sink, error);
  if (rf_options_is_set(job->options, "compare")) return rf_plan_compare(job, sink, error);
  json_t *json = NULL;
  rafter_plan *plan = NULL;
  RF_TRY(rf_plan_begin(job, &plan, error));
  refusal r = {
      .job = job, .plan = plan, .idle = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false}};
  begin_refusal(&r);
  rf_plan_give_advice(plan);
  rf_status status = show(job, plan, rf_options_flag(job->options, "json") ? NULL : sink, &json, error);
  bool fits = json_is_true(json_object_get(json_object_get(json, "memory"), "fits"));
  if (status == RAFTER_OK) rf_put_json(sink, json);
  else json_decref(json);
  if (status == RAFTER_OK && !fits) status = end_refusal(&r, error);
  else if (r.begun) end_refusal(&r, NULL);
  rafter_plan_free(plan);
  return status;
}
