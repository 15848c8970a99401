/* jobs.c - plans each job of `rafter plan --job`. jobs.c also simulates rollouts; serve.c simulates
 * serving. */
#include "advise/jobs.h"

#include "advise/drafts.h"
#include "advise/fit_batch.h"
#include "advise/fit_mesh.h"
#include "advise/rl_shape.h"
#include "generate/score.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- lengths --------------------------------------------------------------------------------- */

rf_status rf_job_lengths_resolve(rafter_plan *p, const rf_options *o, rf_job_lengths *l, rf_error *error) {
  rf_settings *s = &p->settings;
  int64_t half = s->model.max_seq > 1 ? s->model.max_seq / 2 : 1;
  l->prompt = rf_options_int_or(o, "prompt-tokens", half < 512 ? half : 512);
  l->answer = rf_options_int_or(o, "max-tokens", half < 256 ? half : 256);
  l->samples = (int)rf_options_int_or(o, "samples", 1);
  if (!rf_options_given(o, "seq")) s->plan.build.seq = l->prompt + l->answer;
  s->seq_default = false;
  if (s->model.position == RF_POSITION_LEARNED && s->plan.build.seq > s->model.max_seq)
    return RF_FAIL(error, RAFTER_INVALID, "lower --prompt-tokens or --max-tokens",
                   "%s has positions for fewer tokens (expected at most %lld, got %lld + %lld)",
                   s->model.name, (long long)s->model.max_seq, (long long)l->prompt, (long long)l->answer);
  if (l->prompt + l->answer > s->plan.build.seq)
    return RF_FAIL(
        error, RAFTER_INVALID, "raise --seq, or leave it out",
        "prompt and answer are longer than a slot (--seq: expected at least %lld + %lld, got %lld)",
        (long long)l->prompt, (long long)l->answer, (long long)s->plan.build.seq);
  int64_t shared = rf_options_int_or(o, "shared-prefix", 0);
  if (shared > 0 && shared >= l->prompt &&
      !(rf_options_knows(o, "arrivals") && rf_options_is_set(o, "arrivals")))
    return RF_FAIL(error, RAFTER_INVALID, "lower --shared-prefix, or raise --prompt-tokens",
                   "the shared prefix is as long as the prompts (--shared-prefix: expected less than "
                   "--prompt-tokens %lld, got %lld)",
                   (long long)l->prompt, (long long)shared);
  return RAFTER_OK;
}

rf_infer_settings rf_job_infer_settings(const rafter_plan *p) {
  static const rf_sampler_options DRAWN = {.temperature = 1};
  return (rf_infer_settings){.model = p->settings.model,
                             .choice = &DRAWN,
                             .plan = p->settings.plan,
                             .acceptance = p->acceptance,
                             .drafter_plan = p->drafter_plan[1]};
}

void rf_job_add_copies(rf_serve_stats *served, int64_t requests, int64_t each) {
  rf_generate_counts *c = &served->counts;
  int64_t *counts[] = {&c->passes, &c->rows,    &c->parts, &c->prompt_tokens,
                       &c->reused, &c->answers, &c->tokens};
  double times = (double)requests / (double)each;
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    *counts[i] = llround((double)*counts[i] * times);
  c->most_parts = (c->most_parts * requests + each - 1) / each;
  served->tokens_per_second *= times;
  served->slots_used *= times;
}

void rf_job_say_copies(rafter_plan *p, const rf_plan *decode) {
  int64_t copies = rf_generate_copies(decode), chips = rf_mesh_chips(&decode->graph->mesh) / copies;
  bool in_step = rf_mesh_extent(&decode->graph->mesh, RF_AXIS_FSDP) > 1 ||
                 rf_mesh_extent(&decode->graph->mesh, RF_AXIS_EXPERT) > 1;
  char line[240];
  if (copies == 1) return;
  snprintf(line, sizeof line,
           "requests are distributed evenly over %lld groups of %lld chip%s%s; one group is simulated, and "
           "its results are scaled to all",
           (long long)copies, (long long)chips, rf_plural(chips),
           in_step ? " that share weights and run in step" : ", each with a copy of the model");
  json_array_append_new(p->assumptions, json_string(line));
}

double rf_job_usd_per_hour(const rf_machine *m) { return m->usd_per_chip_hour * m->chips; }

json_t *rf_job_usd_per_million(double usd_per_hour, double rate) {
  return usd_per_hour > 0 && rate > 0 ? json_real(usd_per_hour / 3600 / rate * 1e6) : json_null();
}

/* ---- one plan -------------------------------------------------------------------------------- */

rf_status rf_job_train(rafter_plan *p, const rf_options *o, rf_error *error) {
  rf_settings *s = &p->settings;
  (void)o;
  if (s->fit) return rf_plan_fit(&s->model, &s->plan, s->vary, NULL, &p->plan, &p->found, error);
  if (p->advises) p->ahead = rf_plan_advise_ahead(&s->model, &s->plan);
  RF_TRY(rf_plan_make(&s->model, &s->plan, &p->plan, error));
  p->advisable = !p->sized;
  return RAFTER_OK;
}

rf_status rf_job_generate(rafter_plan *p, const rf_options *o, rf_error *error) {
  p->acceptance = rf_plan_acceptance(o);
  RF_TRY(rf_plan_drafter(p, o, error));
  rf_infer_settings g = rf_job_infer_settings(p);
  RF_TRY(rf_generate_plans(&g, &p->prefill, &p->plan, error));
  return p->sized ? RAFTER_OK : rf_plan_drafts(p, o, error);
}

static rf_status make_train(rafter_plan *p, const rf_options *o, rf_error *error) {
  RF_TRY(rf_job_train(p, o, error));
  return rf_job_reference(p, error);
}

/* Plans one forward pass over the whole prompts of all sequences. Each copy of the model computes
 * its own share of the sequences. */
static rf_status make_prefill(rafter_plan *p, const rf_options *o, rf_error *error) {
  rf_infer_settings g = rf_job_infer_settings(p);
  rf_build_options *b = &g.plan.build;
  rf_plan *decode = NULL;
  if (!rf_options_given(o, "prefill-chunk"))
    b->chunk = rf_ceil_div(b->microbatch, rf_mesh_copies(&b->mesh)) * b->seq;
  RF_TRY(rf_generate_plans(&g, &p->plan, &decode, error));
  rf_plan_free(decode);
  return RAFTER_OK;
}

static rf_status make_score(rafter_plan *p, const rf_options *o, rf_error *error) {
  rf_infer_settings score = {.model = p->settings.model, .plan = p->settings.plan};
  (void)o;
  return rf_score_plan(&score, &p->plan, error);
}

/* ---- rollouts -------------------------------------------------------------------------------- */

rf_status rf_job_roll_out(rafter_plan *p, const rf_plan *decode, const rf_options *o, const rf_job_lengths *l,
                          rf_serve_stats *served, int64_t *prompts, rf_error *error) {
  rf_infer_settings g = rf_job_infer_settings(p);
  int64_t slots = p->settings.plan.build.microbatch, copies = rf_generate_copies(decode);
  *prompts = rf_options_int_or(o, "requests", (slots + l->samples - 1) / l->samples);
  int64_t each = (*prompts + copies - 1) / copies;
  rf_arrival *list = calloc((size_t)each, sizeof *list);
  if (!list) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning rollouts");
  rf_arrivals_poisson((rf_arrival){.prompt = l->prompt,
                                   .answer = l->answer,
                                   .shared = rf_options_int_or(o, "shared-prefix", 0),
                                   .samples = l->samples},
                      0, 0, list, each);
  rf_status status = rf_simulate(&g, list, each, NULL, NULL, served, error);
  rf_job_add_copies(served, *prompts, each);
  free(list);
  return status;
}

json_t *rf_job_rollout_json(const rafter_plan *p, const rf_job_lengths *l, const rf_serve_stats *served,
                            int64_t prompts) {
  return json_pack(
      "{sI si sI sI sf sI sf sf sf sI sI so}", "prompts", (json_int_t)prompts, "samples", l->samples,
      "prompt_tokens", (json_int_t)l->prompt, "answer_tokens", (json_int_t)l->answer, "seconds",
      served->seconds, "tokens", (json_int_t)served->counts.tokens, "tokens_per_second",
      served->tokens_per_second, "slots_used", served->slots_used, "seconds_to_first_token",
      served->ttft[RF_P50], "walked_prompt_tokens",
      (json_int_t)(served->counts.prompt_tokens - served->counts.reused), "shared_prompt_tokens",
      (json_int_t)served->counts.reused, "usd_per_million_tokens",
      rf_job_usd_per_million(rf_job_usd_per_hour(&p->settings.machine), served->tokens_per_second));
}

void rf_job_set_prompts(rafter_plan *p, const rf_job_lengths *l, int64_t prompts) {
  p->prompts = prompts;
  p->samples = l->samples;
}

static void put_rollout(FILE *out, const rf_job_lengths *l, const rf_serve_stats *served, int64_t prompts,
                        double usd_per_hour) {
  char a[32], b[32], usd[64] = "";
  if (usd_per_hour > 0)
    snprintf(usd, sizeof usd, ", %s USD per million tokens",
             rf_text_figures(usd_per_hour / 3600 / served->tokens_per_second * 1e6, 4, a));
  fprintf(out, "\nrollout   %lld prompt%s of %lld tokens, %d sample%s each of %lld: %s, %s tokens/s%s\n",
          (long long)prompts, rf_plural(prompts), (long long)l->prompt, l->samples, rf_plural(l->samples),
          (long long)l->answer, rf_text_seconds(served->seconds, a),
          rf_text_count(served->tokens_per_second, b), usd);
  fprintf(out, "  %.1f slots in use on average; %lld prompt tokens computed, %lld shared\n",
          served->slots_used, (long long)(served->counts.prompt_tokens - served->counts.reused),
          (long long)served->counts.reused);
}

/* Sets the time and work of a whole rollout, from its first prompt to its last answer. */
static void set_served(rafter_plan *p, const rf_serve_stats *served, int64_t prompts) {
  const rf_machine *m = &p->settings.machine;
  const int64_t copies = rf_generate_copies(p->plan), each = (prompts + copies - 1) / copies;
  p->served =
      (rf_report_unit){.name = "rollout",
                       .note = " of answers, prompts included,",
                       .seconds = served->seconds,
                       .tokens = served->tokens_per_second * served->seconds,
                       .model_flops = served->total.model_flops * (double)prompts / (double)(each * copies),
                       .usd_per_hour = rf_job_usd_per_hour(m),
                       .watts = m->watts * m->chips};
}

static rf_status make_rollout(rafter_plan *p, const rf_options *o, rf_error *error) {
  rf_job_lengths l;
  rf_serve_stats served;
  int64_t prompts;
  p->serves = true;
  RF_TRY(rf_job_lengths_resolve(p, o, &l, error));
  RF_TRY(rf_job_generate(p, o, error));
  if (!rf_plan_fits(p->prefill)) return RAFTER_OK; /* the plan reports it */
  rf_job_say_copies(p, p->plan);
  RF_TRY(rf_job_roll_out(p, p->plan, o, &l, &served, &prompts, error));
  json_object_set_new(p->extra, "rollout", rf_job_rollout_json(p, &l, &served, prompts));
  put_rollout(p->extra_text, &l, &served, prompts, rf_job_usd_per_hour(&p->settings.machine));
  set_served(p, &served, prompts);
  rf_job_set_prompts(p, &l, prompts);
  return RAFTER_OK;
}

/* ---- the table of jobs ----------------------------------------------------------------------- */

/* If only the size of the plan is needed, this function replaces the search of --fit. Chooses
 * recomputation of whole blocks, which is one of the settings that the search tries. */
static void size_fit(rf_settings *s, const rf_options *o) {
  if (s->fit && !rf_options_given(o, "remat")) s->plan.remat = RF_REMAT_BLOCK;
  if (s->fit && s->vary.dtype) s->plan.build.dtype = RF_BF16;
}

static rf_status size_train(rafter_plan *p, const rf_options *o, rf_error *error) {
  rf_settings *s = &p->settings;
  size_fit(s, o);
  RF_TRY(rf_plan_make_size(&s->model, &s->plan, &p->plan, error));
  return rf_plan_fits(p->plan) ? rf_job_reference(p, error) : RAFTER_OK;
}

static rf_status size_answers(rafter_plan *p, const rf_options *o, rf_error *error) {
  rf_job_lengths l;
  RF_TRY(rf_job_lengths_resolve(p, o, &l, error));
  return rf_job_generate(p, o, error);
}

static rf_status size_rl(rafter_plan *p, const rf_options *o, rf_error *error) {
  size_fit(&p->settings, o);
  p->settings.fit = false;
  return rf_job_rl(p, o, error);
}

typedef rf_status (*job_function)(rafter_plan *plan, const rf_options *options, rf_error *error);
static const struct {
  const char *name, *settings; /* settings: the job name to pass to rf_settings_resolve */
  job_function make, size;
} JOBS[] = {
    {"train", "train", make_train, size_train},
    {"generate", "generate", rf_job_generate, rf_job_generate},
    {"prefill", "generate", make_prefill, make_prefill},
    {"score", "score", make_score, make_score},
    {"rollout", "generate", make_rollout, size_answers},
    {"serve", "generate", rf_job_serve, size_answers},
    {"rl", "train", rf_job_rl, size_rl},
};

/* Refuses options that have no effect with this job. The option value "none" is accepted for every
 * job. */
static rf_status check_effect(const rf_options *o, const char *job, rf_error *error) {
  static const struct {
    const char *options[8], *jobs, *why; /* options end with NULL */
  } rows[] = {
      {{"rate", "arrivals", "answer-limit"}, "serve", "only --job serve has requests that arrive over time"},
      {{"prefill-on", "kv-link"}, "serve", "only --job serve can compute prompts on another machine"},
      {{"samples", "prompt-tokens", "max-tokens", "shared-prefix", "requests"},
       "rollout serve rl",
       "only --job rollout, serve and rl answer prompts"},
      {{"latency"}, "generate prefill score rollout serve", "--latency does not limit the steps of this job"},
      {{"remat", "head-grad"}, "train rl", "only training steps have a backward pass"},
      {{"kv-dtype"}, "generate prefill rollout serve rl", "only jobs that generate have a KV cache"},
      {{"sequences"},
       "generate serve",
       "--job generate and serve size their cache by sequences; rollout sizes its own by its prompts"},
      {{"speculate", "draft-tokens", "acceptance"},
       "generate rollout",
       "only --job generate and --job rollout plan drafts"},
      {{"prefill-chunk"}, "generate prefill rollout serve rl", "only jobs that generate have prompts"},
      {{"adapter-slots", "adapter-rank"},
       "generate prefill rollout serve",
       "only jobs that generate have slots for adapters"},
      {{"step-growth"}, "serve", "only services read prompts between the tokens of other answers"},
      {{"optimizer"}, "train rl", "only training steps have an optimizer"},
      {{"iterations", "clip-low", "clip-high", "ratio-cap", "temperature", "reward-seconds"},
       "rl",
       "only --job rl trains on answers"},
      {{"pipeline"}, "train rl", "only training steps have pipeline stages"},
      {{"loss", "beta"}, "train rl", "only training steps have a loss"},
      {{"gamma", "label-smoothing"}, "train", "only --job train trains on preferences"},
      {{"accumulate", "microbatch"}, "train rl", "only training steps have microbatches"},
      {{"top"}, "score", "only --job score lists the likeliest tokens"},
  };
  if (strcmp(rf_options_command(o), "plan")) return RAFTER_OK;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    for (const char *const *option = rows[i].options; *option && !strstr(rows[i].jobs, job); option++)
      if (rf_options_knows(o, *option) && rf_options_is_typed(o, *option) &&
          strcmp(rf_options_text(o, *option), "none"))
        return RF_FAIL(error, RAFTER_INVALID, rows[i].why, "--%s has no effect with --job %s", *option, job);
  if (rf_options_is_typed(o, "kv-link") && !rf_options_is_set(o, "prefill-on"))
    return RF_FAIL(error, RAFTER_INVALID, "add --prefill-on MACHINE, or leave --kv-link out",
                   "--kv-link has no effect without --prefill-on: one machine sends no cache");
  return RAFTER_OK;
}

/* Adds to the assumptions the defaults that the plan uses, and a length that the model was not made
 * for. */
static void say_defaults(rafter_plan *p) {
  const rf_settings *s = &p->settings;
  const rf_build_options *b = &s->plan.build;
  char line[240];
  if (s->seq_default) {
    snprintf(line, sizeof line, "sequences have %lld tokens (default of --seq; the model's maximum is %lld)",
             (long long)b->seq, (long long)s->model.max_seq);
    json_array_append_new(p->assumptions, json_string(line));
  }
  if (s->model.position != RF_POSITION_LEARNED && s->model.max_seq > 0 && b->seq > s->model.max_seq) {
    snprintf(line, sizeof line,
             "sequences have %lld tokens, but %.60s is made for at most %lld: its answers may get worse",
             (long long)b->seq, s->model.name, (long long)s->model.max_seq);
    json_array_append_new(p->assumptions, json_string(line));
  }
  if (s->batch_for) {
    snprintf(line, sizeof line, "the batch is %lld (default of --batch, raised to a multiple of %s)",
             (long long)(b->microbatch * b->accumulate),
             *s->batch_for == '-' ? s->batch_for : "the chips that share it");
    json_array_append_new(p->assumptions, json_string(line));
  }
  if (s->plan.margin_bytes > 0) {
    char a[32];
    snprintf(
        line, sizeof line,
        "--fit leaves %.3g %% of the memory free (%s; --margin): the plan's memory is that of rafter's own "
        "program, and another program on %.60s may need more",
        100 * s->margin, rf_text_bytes((double)s->plan.margin_bytes, a), s->machine.name);
    json_array_append_new(p->assumptions, json_string(line));
  }
  if (s->dtype_default && !s->fit) {
    snprintf(line, sizeof line, "the dtype is %s (default of --dtype on %.60s)", rf_dtype_name(b->dtype),
             s->machine.name);
    json_array_append_new(p->assumptions, json_string(line));
  }
}

const char *rf_plan_settings_of(const char *job) {
  for (size_t i = 0; i < sizeof JOBS / sizeof *JOBS; i++)
    if (!strcmp(JOBS[i].name, job)) return JOBS[i].settings;
  return "train";
}

/* Does --fit of a training step: finds the largest batch with the settings that the search
 * chose. */
static rf_status fit_step(rafter_plan *p, const rf_options *o, rf_error *error) {
  rf_options *chosen = NULL;
  int64_t step = 0;
  rf_status status = rf_fit_batch_chosen(o, p, &chosen, &step, error);
  if (status == RAFTER_OK) status = rf_fit_batch_hold_room(chosen, &p->settings, error);
  if (status == RAFTER_OK && step > 0) status = rf_fit_batch(chosen, p->job, step, &p->largest, error);
  if (p->largest) json_object_set_new(p->largest, "remat", json_string(rf_options_text(chosen, "remat")));
  rf_options_free(chosen);
  return status;
}

/* Does --fit of jobs other than training. If --mesh is not given, chooses the fastest mesh. If
 * --batch is not given, plans the largest batch that fits. */
static rf_status fit_answers(rafter_plan *p, const rf_options *o, job_function make, rf_error *error) {
  rf_settings *s = &p->settings;
  const int64_t room = rf_plan_room(&s->plan);
  int64_t step;
  rf_options *chosen = rf_options_copy(o);
  char text[32], line[240] = "";
  rf_status status = RAFTER_OK;
  RF_GO(rf_fit_batch_hold_room(chosen, s, error));
  if (!p->sized) RF_GO(rf_fit_mesh(chosen, p->job, s, line, error));
  if (*line) {
    RF_GO(rf_settings_resolve(chosen, rf_plan_settings_of(p->job), s, error));
    json_array_append_new(p->assumptions, json_string(line));
    fprintf(p->extra_text, "\nmesh      %s\n", line);
  }
  step = rf_fit_batch_step(s);
  if (!p->sized) RF_GO(rf_fit_batch(chosen, p->job, step, &p->largest, error));
  s->plan.budget_bytes = room;
  if (!rf_options_given(o, "batch")) {
    int64_t batch = json_integer_value(json_object_get(p->largest, "batch"));
    snprintf(text, sizeof text, "%lld", (long long)(batch > 0 ? batch : step));
    RF_GO(rf_options_set(chosen, "batch", text, error));
    RF_GO(rf_settings_resolve(chosen, rf_plan_settings_of(p->job), s, error));
  }
  RF_GO(make(p, chosen, error));
done:
  rf_options_free(chosen);
  return status;
}

/* A command with several plans lists no changes, because a list takes longer than a plan. */
static bool plans_several(const rf_options *o) {
  return rf_options_given(o, "sweep") || rf_options_given(o, "compare");
}

/* Resolves the settings of --job rl, with the sizes that `rafter rl` would choose. */
static rf_status size_as_run(rafter_plan *p, const rf_options *o, rf_error *error) {
  p->sizes = rf_options_copy(o);
  RF_TRY(rf_rl_sizes_set(p->sizes, rf_mesh_copies(&p->settings.plan.build.mesh), error));
  return rf_settings_resolve(p->sizes, "train", &p->settings, error);
}

rf_status rf_plan_job(rafter_plan *plan, const rf_options *options, const char *job, rf_error *error) {
  for (size_t i = 0; i < sizeof JOBS / sizeof *JOBS; i++) {
    if (strcmp(JOBS[i].name, job)) continue;
    const bool learns = !strcmp(JOBS[i].settings, "train");
    const job_function make = plan->sized ? JOBS[i].size : JOBS[i].make;
    plan->job = JOBS[i].name;
    RF_TRY(check_effect(options, job, error));
    RF_TRY(rf_settings_resolve(options, JOBS[i].settings, &plan->settings, error));
    if (!strcmp(job, "rl")) RF_TRY(size_as_run(plan, options, error));
    if (plan->settings.fit && !learns) RF_TRY(fit_answers(plan, options, make, error));
    else RF_TRY(make(plan, plan->sizes ? plan->sizes : options, error));
    if (plan->settings.fit && learns && !plan->sized && !plans_several(options))
      RF_TRY(fit_step(plan, options, error));
    say_defaults(plan);
    return RAFTER_OK;
  }
  return RF_FAIL(error, RAFTER_INVALID, NULL, "unknown job %s", job);
}

const rf_option RF_SERVING_OPTIONS[] = {
    RF_NUMBER("samples", INT, "N", 1, 1 << 16, "1", "Serving and rollouts",
              "answers to each prompt; each prompt is computed only once"),
    RF_NUMBER("prompt-tokens", TOKENS, NULL, 1, 1 << 24, NULL, "Serving and rollouts",
              "tokens of a prompt; unset: 512, but at most half of the model's longest sequence"),
    RF_NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, NULL, "Serving and rollouts",
              "tokens of an answer; unset: 256, but at most half of the model's longest sequence"),
    RF_NUMBER("shared-prefix", TOKENS, NULL, 0, 1 << 24, "0", "Serving and rollouts",
              "number of tokens at the start of every prompt that all prompts have in common"),
    RF_NUMBER("requests", INT, "N", 1, 1 << 20, NULL, "Serving and rollouts",
              "requests to simulate (serve; unset: 512) or prompts (rollout, rl; unset: as many as fill the "
              "slots, or 8 for rl without --batch)"),
    RF_NUMBER(
        "rate", FLOATS, "PER SECOND", 1e-6, 1e9, NULL, "Serving and rollouts",
        "requests that arrive per second (serve): a rate, or a list such as 1..256 or 0.5,1,2; unset: 1, and "
        "the highest rate that the plan sustains"),
    RF_NUMBER("answer-limit", TOKENS, NULL, 1, 1 << 24, NULL, "Serving and rollouts",
              "max_tokens of the requests (serve): the scheduler reserves memory for answers of this length; "
              "unset: the length of the answers, which is also the minimum"),
    RF_WORDS(
        "arrivals", PATH, "FILE", NULL, "Serving and rollouts",
        "requests to simulate in place of --rate: JSON Lines (at, prompt, answer, shared), or a CSV of the "
        "Azure traces"),
    RF_WORDS("prefill-on", TEXT, "MACHINE", NULL, "Serving and rollouts",
             "machine that computes the prompts (serve) and sends the cache over --kv-link"),
    RF_NUMBER(
        "kv-link", COUNT, "BYTES/S", 1, 1e18, NULL, "Serving and rollouts",
        "total bandwidth between --prefill-on and --on; unset: the lower data-centre bandwidth of the two "
        "machines"),
    {.name = NULL},
};
