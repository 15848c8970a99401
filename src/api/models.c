/* models.c - `rafter models`: lists the presets with their sizes and sources. */
#include "api/api.h"

#include "base/text.h"
#include "graph/graph.h"

#include <stdio.h>
#include <string.h>

/* A model with its sizes. `flops`: FLOPs per token of a forward pass, without attention scores. */
typedef struct listed {
  const rf_model *model;
  const rf_params *params;
  double flops;
} listed;

static rf_status count_flops(listed *l, rf_error *error) {
  rf_graph *graph = NULL;
  const rf_build_options one_token = {
      .job = RF_JOB_TRAIN, .dtype = RF_BF16, .microbatch = 1, .seq = 1, .accumulate = 1};
  RF_TRY(rf_graph_build(l->model, &one_token, "build", &graph, error));
  for (int i = 0; i < graph->op_count; i++)
    if (graph->op[i].def->kind != RF_KIND_ATTENTION)
      l->flops += graph->op[i].def->work(graph, &graph->op[i]).flops;
  rf_graph_free(graph);
  return RAFTER_OK;
}

static json_t *model_json(const listed *l) {
  const rf_model *m = l->model;
  const rf_params *params = l->params;
  const char *hub = rf_model_preset_hub(m->name);
  return json_pack("{ss ss sI sI sI sI sI sI sI sI sI sf so ss sb}", "name", m->name, "family",
                   rf_family_name(m->family), "parameters", (json_int_t)params->total, "parameters_active",
                   (json_int_t)params->active, "layers", (json_int_t)m->layers, "width", (json_int_t)m->width,
                   "heads", (json_int_t)m->heads, "kv_heads", (json_int_t)m->kv_heads, "vocab",
                   (json_int_t)m->vocab, "max_seq", (json_int_t)m->max_seq, "bf16_bytes",
                   (json_int_t)(2 * params->total), "flops_per_token", l->flops, "hub",
                   hub ? json_string(hub) : json_null(), "source", rf_model_preset_source(m->name),
                   "plan_only", m->plan_only != NULL);
}

static void say_model(const rafter_sink *sink, const listed *l) {
  const rf_model *m = l->model;
  const rf_params *params = l->params;
  char a[32], b[32], c[32], d[32], e[32];
  rf_say(sink, "%-15s %9s %9s %10s %8s %12s  %s\n", m->name, rf_text_count((double)params->total, a),
         params->active < params->total ? rf_text_count((double)params->active, b) : "all",
         rf_text_bytes(2.0 * (double)params->total, c), rf_text_whole(m->max_seq, d),
         rf_text_flops(l->flops, e), rf_model_preset_source(m->name));
}

/* Fails with a hint that lists the presets whose names begin with `only`. If no preset matches,
 * fails with the error of rf_model_resolve for this name. */
static rf_status not_a_preset(const char *only, rf_error *error) {
  char folder[4096], hint[480] = "";
  const char *name;
  rf_model model;
  for (int i = 0; (name = rf_model_preset(i)); i++)
    if (*only && !strncmp(name, only, strlen(only)))
      rf_text_append(hint, sizeof hint, "%s%s", *hint ? ", " : "did you mean one of ", name);
  if (!*hint) {
    RF_TRY(rf_model_resolve(only, &model, folder, error));
    rf_text_append(hint, sizeof hint, "`rafter models` lists the names; `rafter inspect` shows files");
  }
  return RF_FAIL(error, RAFTER_INVALID, hint, "no preset has the name '%.200s'", only);
}

static rf_status rf_command_models(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  const char *only = rf_options_argument(job->options, 0), *name;
  json_t *list = json_array();
  rf_status status = RAFTER_OK;
  char folder[4096];
  rf_model model;
  if (only && rf_model_preset_on_hub(only)) only = rf_model_preset_on_hub(only);
  if (only && !rf_model_preset_source(only)) RF_GO(not_a_preset(only, error));
  rf_say(sink, "%-15s %9s %9s %10s %8s %12s  %s\n", "MODEL", "params", "active", "bf16", "context",
         "FLOP/token", "Hugging Face name or paper");
  for (int i = 0; (name = rf_model_preset(i)); i++) {
    if (only && strcmp(only, name)) continue;
    RF_GO(rf_model_resolve(name, &model, folder, error));
    rf_pool *pool = rf_pool_new();
    const rf_params params = rf_model_params(&model, pool);
    listed one = {.model = &model, .params = &params};
    status = count_flops(&one, error);
    if (status == RAFTER_OK) say_model(sink, &one);
    if (status == RAFTER_OK) json_array_append_new(list, model_json(&one));
    rf_pool_free(pool);
    if (status != RAFTER_OK) goto done;
  }
  if (!only)
    rf_say(sink, "\nparams: parameters. active: parameters that one token uses. FLOP/token: forward pass "
                 "without\nattention scores. MODEL may also be a folder, a .gguf file, or a shape such as\n"
                 "llama:layers=16,width=2048. `rafter pull hf:NAME` downloads weights.\n");
  rf_put_json(sink, json_pack("{ss sO}", "command", "models", "models", list));
done:
  json_decref(list);
  return status;
}

const rf_command RF_COMMAND_MODELS = {
    RF_COMMAND_HEAD("models", "[MODEL]", 0, 1, "Look",
                    "List the models that are known by name, with their sizes and sources."),
    .options = {RF_TABLE(RF_EVERY_OPTIONS)}, .examples = {"models", "models gemma3-1b --json"},
    .run = rf_command_models};
