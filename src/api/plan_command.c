/* plan_command.c - `rafter plan`: makes a plan, a sweep or a comparison, and prints it. */
#include "api/api.h"

#include "advise/compiled.h"
#include "advise/drafts.h"
#include "advise/gnuplot.h"
#include "advise/rl_shape.h"
#include "advise/vary.h"
#include "plan/loss.h"
#include "rl/losses.h"

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

/* Makes a plan's JSON object and draws --plot. If `sink` is given, also prints the plan's table. */
static rf_status show(const rafter_job *job, const rafter_plan *plan, const rafter_sink *sink, json_t **json,
                      rf_error *error) {
  const bool drawn = rf_options_is_set(job->options, "plot") && !rf_options_is_set(job->options, "sweep") &&
                     !rf_options_is_set(job->options, "compare");
  char *text = NULL;
  rf_status status = RAFTER_OK;
  if (json) RF_GO(rf_plan_object(plan, json, error));
  if (drawn) {
    const char *path = rf_options_text(job->options, "plot");
    bool rates = json_array_size(json_object_get(json_object_get(plan->extra, "serving"), "rates")) > 1;
    RF_GO(plan->found.rows ? rf_plot_frontier(path, plan, error)
          : rates          ? rf_plot_rates(path, plan, error)
                           : rf_plot_plan(path, plan, error));
  }
  if (sink) {
    RF_GO(rafter_plan_text(plan, &text, error));
    rf_say_text(sink, text);
    if (drawn) rf_say(sink, "\n%s\n", rf_options_text(job->options, "plot"));
  }
done:
  return status;
}

/* --report: writes the page of the plan with all tensors and ops. */
static rf_status write_report(const rafter_job *job, rafter_plan *plan, const rafter_sink *sink,
                              rf_error *error) {
  const bool tensors = plan->tensors, ops = plan->ops;
  json_t *json = NULL;
  if (!rf_options_is_set(job->options, "report")) return RAFTER_OK;
  plan->tensors = plan->ops = true;
  rf_status status = rf_plan_object(plan, &json, error);
  plan->tensors = tensors;
  plan->ops = ops;
  RF_TRY(status);
  return rf_report_write_plan(rf_options_text(job->options, "report"), plan->settings.model.name, json, sink,
                              error);
}

/* If the plan does not fit, a second thread searches for a fit while the first thread computes
 * advice. */
typedef struct refusal {
  const rafter_job *job;
  const rafter_plan *plan;
  pthread_t thread;
  /* set when the first thread has printed the plan; the first thread can then help the second */
  rf_idle idle;
  bool begun;
  rf_status status;
  rf_error error;
} refusal;

static void *refuse(void *self) {
  refusal *r = self;
  r->status = rf_plan_refuse(r->job->options, r->plan, &r->idle, &r->error);
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

/* For --compile and --stablehlo: compiles or writes the plan's programs for XLA. */
static rf_status compile(const rafter_job *job, rafter_plan *plan, const rafter_sink *sink, rf_error *error) {
  if (rf_options_is_set(job->options, "stablehlo")) {
    const char *folder = rf_options_text(job->options, "stablehlo");
    RF_TRY(rf_plan_write_programs(plan, folder, error));
    rf_note(sink, "wrote the programs of this plan to %s\n", folder);
  }
  return rf_options_is_set(job->options, "compile")
             ? rf_plan_compile(plan, job->options, sink ? sink->stop : NULL, error)
             : RAFTER_OK;
}

/* Refuses two options that each print something else than a plan, because only one of them would
 * have an effect. */
static rf_status check_forms(const rf_options *o, rf_error *error) {
  static const char *const forms[] = {"after", "sweep", "compare"};
  const char *form = NULL;
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    if (!rf_options_is_set(o, forms[i])) continue;
    if (rf_options_is_set(o, "report"))
      return RF_FAIL(error, RAFTER_INVALID, "`rafter report FILE.json` shows the JSON of sweeps and plans",
                     "--report and --%s cannot be combined: --report shows one plan", forms[i]);
    if (form)
      return RF_FAIL(error, RAFTER_INVALID, "leave one of the two options out",
                     "--%s and --%s cannot be combined: each prints another table or graph", form, forms[i]);
    form = forms[i];
  }
  return RAFTER_OK;
}

static rf_status rf_command_plan(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  rf_note_machine(job->options, sink);
  if (rf_options_is_set(job->options, "plot"))
    RF_TRY(rf_gnuplot_check(rf_options_text(job->options, "plot"), error));
  RF_TRY(check_forms(job->options, error));
  if (rf_options_is_set(job->options, "after"))
    return print_graph(job, rf_options_text(job->options, "after"), sink, error);
  if (rf_options_is_set(job->options, "sweep")) return rf_plan_sweep(job->options, sink, error);
  if (rf_options_is_set(job->options, "compare")) {
    int sides = 0;
    const char *first = rf_options_texts(job->options, "compare", &sides)[0];
    bool list = sides == 1 && !strcmp(first, "published"),
         published = list || (sides == 1 && !strncmp(first, "published:", 10));
    return published ? rf_compare_published(job->options, list ? NULL : first + 10, sink, error)
                     : rf_plan_compare(job->options, sink, error);
  }
  json_t *json = NULL;
  rafter_plan *plan = NULL;
  RF_TRY(rf_plan_begin(job->options, &plan, error));
  rf_status compiled = compile(job, plan, sink, error);
  if (compiled != RAFTER_OK) {
    rafter_plan_free(plan);
    return compiled;
  }
  refusal r = {
      .job = job, .plan = plan, .idle = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false}};
  begin_refusal(&r);
  rf_plan_give_advice(plan);
  rf_status status = show(job, plan, rf_options_flag(job->options, "json") ? NULL : sink, &json, error);
  bool fits = rf_json_fits(json);
  if (status == RAFTER_OK) status = write_report(job, plan, sink, error);
  if (status == RAFTER_OK) rf_put_json(sink, json);
  else json_decref(json);
  if (status == RAFTER_OK && !fits) status = end_refusal(&r, error);
  else if (r.begun) end_refusal(&r, NULL);
  rafter_plan_free(plan);
  return status;
}

static const rf_option PLAN[] = {
    RF_CHOICE(
        "job", "train|generate|prefill|score|rollout|serve|rl", "train", "Job",
        "job to plan\nrollout generates answers to a fixed set of prompts. serve answers requests as they "
        "arrive. rl is a step of reinforcement learning: a rollout, a reference pass and a policy step."),
    RF_NUMBER(
        "batch", INT, "SEQUENCES", 1, 1 << 20, "8", "Job",
        "sequences in a training step, or answers generated at once\nA default is raised to a multiple of "
        "the chips that share it, --microbatch or --accumulate. --job rl without --batch samples all "
        "answers of a step at once, but at most 64, and trains microbatches of 8, like `rafter rl`."),
    RF_CHOICE("loss", RF_LOSS_NAMES "|" RF_RL_LOSS_NAMES, NULL, "Training",
              "loss of --job train (nll, or one of preferences) or of --job rl; unset: nll, or grpo"),
    RF_NUMBER("beta", FLOAT, NULL, 0, 1e6, NULL, "Training",
              "strength of a loss of preferences, or weight of the KL divergence of --job rl; unset: that of "
              "the loss"),
    RF_NUMBER("tokens", COUNT, NULL, 1, 0x1p62, NULL, "Job",
              "print the time and cost of this many tokens, trained or generated"),
    RF_NUMBER("top", INT, "K", 0, 256, "0", "Job",
              "with --job score: number of likeliest tokens listed at each position"),
    RF_NUMBER("budget", DURATION, NULL, 1e-6, 1e10, NULL, "Job",
              "print how many tokens and steps fit into this time, and their cost: 9h or 30d"),
    RF_WORDS(
        "sweep", SWEEP, "OPTION=LIST", NULL, "Search and compare",
        "print one row for each value: batch=1..256 or dtype=f32,bf16\nMODEL:layers=12,24 varies the model's "
        "shape. chips=4,8 varies the chips of --on. If values contain commas, separate the values by ;: "
        "'mesh=fsdp=16;fsdp=8,tensor=2'."),
    {"compare", RF_OPTION_TEXTS, "A [B]", 0, 0, NULL, NULL, "Search and compare",
     "compare two plans; A and B are models, or options such as dtype=bf16,batch=64\nWithout B, MODEL is "
     "compared with A. published:ID compares a published run with its plan; "
     "published lists the runs.",
     false, true},
    RF_WORDS("compile", PATH, "PLUGIN", NULL, "Machine",
             "compile the plan's programs with this PJRT plugin for the chips of --on, without a device, and "
             "print the compiler's bytes and FLOPs: libtpu.so"),
    RF_WORDS("stablehlo", PATH, "DIR", NULL, "Output",
             "write the programs that XLA would compile, as StableHLO, and how to run them"),
    RF_WORDS("report", PATH, "FILE", NULL, "Output",
             "write the plan as an HTML page: memory, roofline, every tensor and op, rate and cost"),
    RF_FLAG("tensors", "Output", "list every tensor"),
    RF_FLAG("ops", "Output", "list every operation"),
    RF_CHOICE("after", "build|adapt|differentiate|optimize|stage|shard|fuse|remat|offload", NULL, "Output",
              "print the graph after this pass and stop; with pipeline stages, print the first stage (after "
              "remat: the largest stage)"),
    RF_WORDS("plot", PATH, "FILE", NULL, "Search and compare",
             "draw FILE.svg or FILE.png with gnuplot, which must be installed\nDraws the rows of --sweep, "
             "the frontier of --fit, the rates of "
             "--job serve, or memory over the ops and a roofline of the ops."),
    {.name = NULL},
};

const rf_command RF_COMMAND_PLAN = {
    RF_COMMAND_HEAD("plan", "MODEL", 1, 1, "Plan",
                    "Predict whether a model fits, how fast it runs and what it costs, without running it."),
    .options = {RF_TABLE(PLAN), RF_TABLE(RF_PREFERENCE_OPTIONS), RF_TABLE(RF_STEP_OPTIONS),
                RF_TABLE(RF_LAYOUT_OPTIONS), RF_TABLE(RF_OFFLOAD_OPTIONS), RF_TABLE(RF_PIPELINE_OPTIONS),
                RF_INFERENCE_TABLES, RF_TABLE(RF_CACHE_OPTIONS), RF_TABLE(RF_SERVING_OPTIONS),
                RF_TABLE(RF_RL_OPTIONS), RF_TABLE(RF_SERVICE_OPTIONS), RF_TABLE(RF_ADAPTER_OPTIONS),
                RF_TABLE(RF_SPECULATION_OPTIONS), RF_TABLE(RF_ACCEPTANCE_OPTIONS),
                RF_TABLE(RF_EVERY_OPTIONS)},
    .common = "job batch seq tokens on mesh remat accumulate dtype weights lora fit sweep compare json",
    .examples = {"plan llama3-8b --on h100-sxm:8 --dtype bf16 # memory, time and cost of a training step",
                 "plan gpt2 --on a5000 --fit # the fastest settings that fit",
                 "plan llama3-8b --job serve --on h100-sxm --dtype bf16 --rate 1..32 # latency under load",
                 "plan gpt2 --sweep batch=1..64 --plot batch.svg # where the cliffs are"},
    .run = rf_command_plan};
