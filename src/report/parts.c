/* parts.c - parameters and work of each part of the model. */
#include "report/parts.h"

#include <stdio.h>

rf_plan_totals rf_report_totals(const rf_report_plan *report) {
  return report->whole ? report->whole->totals : rf_plan_totals_of(report->plan);
}

rf_report_unit rf_report_unit_of(const rf_report_plan *report) {
  const rf_machine *m = &report->plan->machine;
  const rf_plan_totals total = rf_report_totals(report);
  if (report->served) return *report->served;
  return (rf_report_unit){.name = report->whole ? report->whole->unit : "step",
                          .seconds = total.time.seconds,
                          .tokens = total.tokens,
                          .model_flops = total.model_flops,
                          .usd_per_hour = m->usd_per_chip_hour * m->chips,
                          .watts = m->watts * m->chips};
}

int64_t rf_report_prompt_tokens(const rf_plan *prefill) {
  const rf_graph *graph = prefill->graph;
  const int64_t chunk = prefill->options.build.chunk,
                rows = graph->rows * rf_mesh_size(&graph->mesh, RF_AXES_OF_PASS);
  return chunk < rows ? chunk : rows;
}

double rf_report_prompt_seconds(const rf_plan *prefill) {
  const int64_t tokens = rf_report_prompt_tokens(prefill);
  return rf_plan_pass_seconds(prefill, &(rf_extent){tokens, tokens}, 1);
}

/* ---- parameters ------------------------------------------------------------------------------ */

void rf_report_put_parameters(json_t *model, const rf_plan *plan) {
  const rf_params *p = &plan->graph->params;
  const int64_t *part = p->part;
  int64_t experts = plan->graph->model.experts;
  const struct {
    const char *key;
    int64_t count;
  } row[] = {
      {"parameters_rest", p->total - p->embedding},
      {"parameters_attention", part[RF_PART_QKV] + part[RF_PART_OUT]},
      {"parameters_qkv", part[RF_PART_QKV]},
      {"parameters_out", part[RF_PART_OUT]},
      {"parameters_mlp", part[RF_PART_MLP]},
      {"parameters_experts", part[RF_PART_EXPERTS]},
      /* parameters of one expert in each layer with experts, summed over these layers */
      {"parameters_one_expert", experts > 0 ? part[RF_PART_EXPERTS] / experts : 0},
      {"parameters_shared", part[RF_PART_SHARED]},
      {"parameters_router", part[RF_PART_ROUTER]},
      {"parameters_router_and_shared", part[RF_PART_ROUTER] + part[RF_PART_SHARED]},
      {"parameters_norms", part[RF_PART_NORMS]},
      {"parameters_head", part[RF_PART_HEAD]},
      {"parameters_vocab", part[RF_PART_EMBEDDING] + part[RF_PART_HEAD]},
      {"parameters_adapter", part[RF_PART_ADAPTER]},
  };
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
    json_object_set_new(model, row[i].key, json_integer((json_int_t)row[i].count));
  const rf_model *m = &plan->graph->model;
  const struct {
    const char *key;
    int64_t count;
  } shape[] = {{"experts", m->experts},
               {"experts_used", m->experts_used},
               {"experts_shared", m->experts_shared},
               {"expert_ff", m->experts ? rf_model_expert_ff(m) : 0},
               {"first_dense", m->first_dense},
               {"q_rank", m->q_rank},
               {"kv_rank", m->kv_rank},
               {"rope_dim", m->rope_dim},
               {"value_dim", m->value_dim},
               {"window", m->window}};
  for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) /* 0: the model has no such size */
    if (shape[i].count > 0)
      json_object_set_new(model, shape[i].key, json_integer((json_int_t)shape[i].count));
}

void rf_report_print_parameters(FILE *out, const rf_plan *plan) {
  const rf_params *p = &plan->graph->params;
  char a[32];
  const char *before = "  of them";
  for (int i = 0; i < RF_PARTS; i++) {
    if (p->part[i] == 0 || i == RF_PART_ADAPTER) continue;
    fprintf(out, "%s %s %s", before, rf_part_name((rf_part)i), rf_text_count((double)p->part[i], a));
    before = ",";
  }
  if (p->active < p->total) fprintf(out, "; active per token %s", rf_text_count((double)p->active, a));
  if (p->adapter > 0) fprintf(out, "; adapters %s", rf_text_count((double)p->adapter, a));
  fputc('\n', out);
}

/* ---- work ------------------------------------------------------------------------------------ */

/* The groups of model parts in "by_part" of the object "work". */
static const struct group {
  const char *name;
  rf_part part[5];
  int count;
} GROUPS[] = {
    {"qkvo", {RF_PART_QKV, RF_PART_OUT}, 2},
    {"attention", {RF_PART_SCORES}, 1},
    {"mlp", {RF_PART_MLP, RF_PART_SHARED, RF_PART_EXPERTS, RF_PART_ROUTER}, 4},
    {"vocab", {RF_PART_HEAD, RF_PART_EMBEDDING}, 2},
    {"adapter", {RF_PART_ADAPTER}, 1},
};
enum { GROUP_COUNT = sizeof GROUPS / sizeof GROUPS[0] };

static json_t *work_json(const rf_part_work *work, double step) {
  return json_pack("{sf sf sf sf sf}", "forward", work->forward, "step", work->step, "forward_full_square",
                   work->forward_full, "step_full_square", work->step_full, "share",
                   step > 0 ? work->step / step : 0);
}

void rf_report_put_work(json_t *json, const rf_plan *plan) {
  rf_part_work work[RF_PARTS], all = {0};
  rf_plan_work_by_part(plan, work);
  for (int i = 0; i < RF_PARTS; i++) {
    all.forward += work[i].forward;
    all.step += work[i].step;
    all.forward_full += work[i].forward_full;
  }
  json_t *parts = json_object();
  for (int g = 0; g < GROUP_COUNT; g++) {
    rf_part_work sum = {0};
    json_t *of = json_object();
    for (int i = 0; i < GROUPS[g].count; i++) {
      const rf_part_work *one = &work[GROUPS[g].part[i]];
      sum.forward += one->forward;
      sum.step += one->step;
      sum.forward_full += one->forward_full;
      sum.step_full += one->step_full;
      json_object_set_new(of, rf_part_name(GROUPS[g].part[i]), work_json(one, all.step));
    }
    json_t *group = work_json(&sum, all.step);
    if (GROUPS[g].count > 1) json_object_set(group, "of", of);
    json_decref(of);
    json_object_set_new(parts, GROUPS[g].name, group);
  }
  double weights = all.step - work[RF_PART_SCORES].step;
  json_object_set_new(json, "forward_flops", json_real(all.forward));
  json_object_set_new(json, "forward_flops_full_square", json_real(all.forward_full));
  json_object_set_new(json, "weight_flops",
                      json_real(weights)); /* weights only, without the attention products Q K^T and P V */
  json_object_set_new(json, "weight_share", json_real(all.step > 0 ? weights / all.step : 0));
  json_object_set_new(json, "by_part", parts);
}

void rf_report_print_work(FILE *out, const rf_report_plan *report) {
  const rf_plan *plan = report->plan;
  rf_part_work work[RF_PARTS];
  char a[32];
  double all = plan->model_flops;
  const char *before = "\nwork     ";
  rf_plan_work_by_part(plan, work);
  if (!(all > 0)) return;
  for (int g = 0; g < GROUP_COUNT; g++) {
    double step = 0;
    for (int i = 0; i < GROUPS[g].count; i++) step += work[GROUPS[g].part[i]].step;
    if (step == 0) continue;
    fprintf(out, "%s %s %s (%.1f %%)", before, GROUPS[g].name, rf_text_flops(step, a), 100 * step / all);
    before = ",";
  }
  if (report->whole) fprintf(out, " of phase %s", report->whole->main);
  fputc('\n', out);
}
