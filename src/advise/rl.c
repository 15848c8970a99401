/* rl.c - plans a step of reinforcement learning: a rollout, the log probabilities of a frozen
 * reference model, and the policy's training step. */
#include "advise/jobs.h"

#include "advise/rl_shape.h"
#include "base/text.h"
#include "rl/plans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct phase {
  const char *name;
  const rf_plan *plan;
  rf_plan_totals totals;
} phase;

static const char RL_NOTE[] = "one arena holds the answers' caches, then the reference's log-probabilities, "
                              "then the policy's step";

/* Computes the bytes of a phase by class of tensor. Untrained weights do not count, because all
 * phases share them. */
static void own_bytes(const rf_plan *plan, bool trains, int64_t own[RF_CLASSES]) {
  for (int c = 0; c < RF_CLASSES; c++) {
    bool base = c == RF_CLASS_WEIGHT || c == RF_CLASS_ADAPTER;
    own[c] = trains || !base ? plan->by_class[c] : 0;
  }
}

/* Computes the bytes by class of tensor that the policy keeps in memory between its steps. */
static void kept_bytes(const rf_plan *policy, int64_t kept[RF_CLASSES]) {
  int64_t sum = 0;
  memset(kept, 0, RF_CLASSES * sizeof *kept);
  for (int t = 0; t < policy->graph->tensor_count; t++) {
    const rf_tensor *tensor = &policy->graph->tensor[t];
    if (tensor->persistent && !tensor->host && policy->tensor[t].offset >= 0) {
      kept[tensor->class] += rf_tensor_bytes(tensor);
      sum += rf_tensor_bytes(tensor);
    }
  }
  kept[RF_CLASS_PADDING] += policy->persistent_bytes - sum;
}

/* Memory of the three phases. In each phase, memory also holds the tensors that the policy keeps
 * between steps. If the policy trains its weights, memory also holds a frozen copy of the
 * weights. */
typedef struct rl_bytes {
  int64_t phase[3], peak, persistent, copy, by_class[RF_CLASSES]; /* by_class: bytes of the largest phase */
  int most;
} rl_bytes;

static rl_bytes count_rl(const rf_plan *const list[3]) {
  const rf_plan *reference = list[1], *policy = list[2];
  const bool copies = reference && policy->graph->model.lora.rank == 0;
  rl_bytes bytes = {.copy = copies ? reference->by_class[RF_CLASS_WEIGHT] : 0};
  int64_t kept[RF_CLASSES], own[RF_CLASSES], all[RF_CLASSES];
  kept_bytes(policy, kept);
  for (int i = 0; i < 3; i++) {
    if (!list[i]) continue;
    own_bytes(list[i], i == 2, own);
    for (int c = 0; c < RF_CLASSES; c++) {
      all[c] = own[c] + (i == 2 ? 0 : kept[c]) + (c == RF_CLASS_WEIGHT ? bytes.copy : 0);
      bytes.phase[i] += all[c];
    }
    if (bytes.phase[i] > bytes.peak) {
      bytes.peak = bytes.phase[i];
      bytes.most = i;
      memcpy(bytes.by_class, all, sizeof all);
    }
  }
  for (int c = 0; c < RF_CLASSES; c++) bytes.persistent += kept[c];
  bytes.persistent += bytes.copy;
  return bytes;
}

/* Computes the same bytes for plans that share one arena, as the run allocates the arena. */
static rl_bytes count_joint(const rf_plan *policy, const rf_rl_plans *plans) {
  const rf_plan *list[3] = {plans->decode, plans->reference, policy};
  const int64_t apart = plans->apart ? plans->reference->arena_bytes : 0,
                both = rf_rl_plans_bytes(policy, plans);
  rl_bytes bytes = {.copy = apart, .peak = both, .persistent = policy->persistent_bytes + apart};
  if (plans->prefill->arena_bytes > plans->decode->arena_bytes) list[0] = plans->prefill;
  for (int i = 0; i < 3; i++) {
    if (!list[i]) continue;
    bytes.phase[i] = i == 1 && apart ? policy->persistent_bytes + apart : list[i]->arena_bytes + apart;
    if (bytes.phase[i] == both) bytes.most = i;
  }
  const rf_plan *most = list[bytes.most];
  memcpy(bytes.by_class, most->by_class, sizeof bytes.by_class);
  bytes.by_class[RF_CLASS_WEIGHT] += apart;
  return bytes;
}

static json_t *rl_memory(rafter_plan *p, const phase *list, const rl_bytes bytes, json_t *phases) {
  json_t *by_class = json_object();
  for (size_t i = 0; i < json_array_size(phases); i++) {
    json_t *row = json_array_get(phases, i);
    for (int k = 0; k < 3; k++)
      if (list[k].name && !strcmp(list[k].name, json_string_value(json_object_get(row, "name"))))
        json_object_set_new(row, "peak_bytes", json_integer((json_int_t)bytes.phase[k]));
  }
  for (int c = 0; c < RF_CLASSES; c++)
    json_object_set_new(by_class, rf_class_name((rf_class)c), json_integer((json_int_t)bytes.by_class[c]));
  int64_t room = rf_plan_room(&p->settings.plan),
          /* the rollout's caches and the policy's optimizer states may be in host memory */
      host = list[0].plan->host_bytes + list[2].plan->host_bytes;
  p->needs = bytes.peak;
  p->lasts = bytes.persistent;
  return json_pack("{sI sI sb sI ss so sI}", "peak_bytes", (json_int_t)bytes.peak, "persistent_bytes",
                   (json_int_t)bytes.persistent, "fits", bytes.peak <= room, "headroom_bytes",
                   (json_int_t)(room - bytes.peak), "peak_op", list[bytes.most].name, "by_class", by_class,
                   "host_bytes", (json_int_t)host);
}

static void put_rl(rafter_plan *p, int64_t slots, bool reference) {
  fprintf(p->extra_text, "\nRL step   %lld answer%s sampled at once\n          %s\n          %s\n",
          (long long)slots, rf_plural(slots),
          !reference ? "no reference model is needed (beta is 0), so one copy of the weights is enough"
          : p->settings.model.lora.rank
              ? "all phases share one copy of the base weights; only the adapters belong to the policy"
              : "without --lora the policy's weights change, so the reference model has its own copy",
          RL_NOTE);
}

/* Sums the phases, so that the plan has the time, rate and cost of the whole RL step. Only tokens
 * that train the policy count as tokens. */
static void sum_rl(rafter_plan *p, const phase list[4], double sequences, const rl_bytes *bytes) {
  rf_report_whole *whole = &p->whole;
  *whole = (rf_report_whole){.unit = "RL step", .main = "policy"};
  for (int i = 0; i < 4; i++) {
    if (!list[i].name) continue;
    rf_plan_totals_add(&whole->totals, &list[i].totals, 1);
    whole->phase[whole->phases++] = (rf_report_phase){.name = list[i].name,
                                                      .seconds = list[i].totals.time.seconds,
                                                      .peak_bytes = i < 3 ? bytes->phase[i] : 0};
  }
  whole->totals.tokens = sequences * (double)p->plan->options.build.seq;
}

typedef struct rl_step {
  rafter_plan *p, *roll;
  const rf_options *o;
  rf_job_lengths l;
  rf_rl_shape shape;
  /* True if one plan owns the arena of all phases. With several chips or tensors in host memory,
   * each phase is planned alone, and the bytes of the phases are added. */
  bool joint;
  rf_rl_plans plans;
  rf_serve_stats served;
  int64_t prompts;
} rl_step;

static bool has_reference(const rl_step *s) { return s->shape.beta != 0; }

/* Plans the rollout with the dtype that --fit chose for the policy. If --mesh is not set, the
 * rollout also uses the policy's mesh. */
static rf_status plan_rollout(rl_step *s, const rf_plan_options *policy, rf_error *error) {
  rf_plan_options *to = &s->roll->settings.plan;
  const rf_plan_options before = *to;
  if (rf_options_given(s->o, "fit")) {
    to->build.dtype = policy->build.dtype;
    if (s->p->settings.vary.mesh) to->build.mesh = policy->build.mesh;
  }
  if (s->plans.decode && to->build.dtype == before.build.dtype &&
      !memcmp(&to->build.mesh, &before.build.mesh, sizeof before.build.mesh))
    return RAFTER_OK;
  rf_plan_free(s->plans.prefill);
  rf_plan_free(s->plans.decode);
  s->plans.prefill = s->plans.decode = NULL;
  rf_infer_settings g = rf_job_infer_settings(s->roll);
  RF_TRY(rf_generate_plans(&g, &s->plans.prefill, &s->plans.decode, error));
  memset(&s->served, 0, sizeof s->served);
  return RAFTER_OK;
}

/* Simulates the rollout of a step, unless the current plans were already simulated. */
static rf_status roll_out(rl_step *s, rf_error *error) {
  rf_plan_options *to = &s->roll->settings.plan;
  const int64_t budget = to->budget_bytes;
  if (s->p->sized || s->served.seconds > 0) return RAFTER_OK;
  to->budget_bytes = INT64_MAX; /* the memory of all phases is checked later */
  rf_status status = rf_job_roll_out(s->roll, s->plans.decode, s->o, &s->l, &s->served, &s->prompts, error);
  to->budget_bytes = budget;
  if (status == RAFTER_OK) return status;
  rf_plan_free(s->plans.decode); /* After a failed simulation, the next call must not reuse the plan. */
  s->plans.decode = NULL;
  return status;
}

static rf_status plan_reference(rl_step *s, int64_t microbatch, rf_error *error) {
  rf_infer_settings score = {.model = s->p->settings.model, .plan = s->roll->settings.plan};
  score.model.lora = (rf_lora){0};
  score.plan.build.microbatch = microbatch;
  score.plan.build.offload &= RF_OFFLOAD_WEIGHTS;
  rf_plan_free(s->plans.reference);
  s->plans.reference = NULL;
  return has_reference(s) ? rf_score_plan(&score, &s->plans.reference, error) : RAFTER_OK;
}

/* Makes the same plans as `rafter rl` for this policy. */
static rf_status plan_joint(rl_step *s, const rf_plan *policy, rf_error *error) {
  rf_rl_plans_free(&s->plans);
  const rf_rl_guests guests = rf_rl_guests_of(&s->p->settings.model, &policy->options,
                                              &s->roll->settings.plan.build, has_reference(s));
  return rf_rl_plans_make(&guests, policy, &s->plans, error);
}

static rl_bytes count_step(const rl_step *s, const rf_plan *policy) {
  const rf_plan *const apart[3] = {s->plans.prefill, s->plans.reference, policy};
  return s->joint ? count_joint(policy, &s->plans) : count_rl(apart);
}

static void list_phases(const rl_step *s, const rf_plan *policy, phase list[4]) {
  list[0] = (phase){.name = "rollout", .plan = s->plans.prefill};
  list[1] = (phase){.name = s->plans.reference ? "reference" : NULL, .plan = s->plans.reference};
  list[2] = (phase){.name = "policy", .plan = policy};
  list[3] = (phase){.name = s->shape.reward_seconds > 0 ? "reward" : NULL};
}

static void time_phases(const rl_step *s, const rf_plan *policy, phase list[4]) {
  double sequences = (double)s->prompts * s->l.samples, micro = (double)policy->options.build.microbatch,
         of_plan = micro * policy->options.build.accumulate;
  int64_t copies = rf_generate_copies(s->plans.decode), each = (s->prompts + copies - 1) / copies;
  const rf_plan_totals step = rf_plan_totals_of(policy);
  list_phases(s, policy, list);
  /* Some copies of the model may have fewer prompts than the simulated copy, which changes only
   * their work. */
  rf_plan_totals_add(&list[0].totals, &s->served.total, (double)s->prompts / (double)(each * copies));
  list[0].totals.time = s->served.total.time;
  list[0].totals.time.seconds = s->served.seconds;
  if (s->plans.reference) {
    const rf_plan_totals reference = rf_plan_totals_of(s->plans.reference);
    rf_plan_totals_add(&list[1].totals, &reference, ceil(sequences / micro));
  }
  rf_plan_totals_add(&list[2].totals, &step, s->shape.iterations * ceil(sequences / of_plan));
  list[3].totals.time.seconds = s->shape.reward_seconds;
}

static double seconds_of(const phase list[4]) {
  double seconds = 0;
  for (int i = 0; i < 4; i++) seconds += list[i].totals.time.seconds;
  return seconds;
}

/* A cost function for --fit: gives the cost of the whole RL step for one plan of the policy. */
static rf_status rl_cost(void *self, const rf_plan *plan, rf_fit_cost *cost, rf_error *error) {
  rl_step *s = self;
  phase list[4];
  RF_TRY(plan_rollout(s, &plan->options, error));
  RF_TRY(roll_out(s, error));
  RF_TRY(plan_reference(s, plan->options.build.microbatch, error));
  time_phases(s, plan, list);
  const rl_bytes bytes = count_rl((const rf_plan *const[]){s->plans.prefill, s->plans.reference, plan});
  *cost = (rf_fit_cost){.bytes = bytes.peak, .kept_elsewhere = bytes.copy, .seconds = seconds_of(list)};
  return RAFTER_OK;
}

/* Plans the policy's step. With remat=auto, reserves memory for the reference model's weights. */
static rf_status plan_policy(rl_step *s, rf_error *error) {
  rf_settings *from = &s->p->settings;
  int64_t copy = 0;
  if (has_reference(s) && from->model.lora.rank == 0) {
    RF_TRY(plan_reference(s, from->plan.build.microbatch, error));
    copy = s->plans.reference->by_class[RF_CLASS_WEIGHT];
  }
  if (rf_plan_room(&from->plan) > copy) from->plan.taken_bytes = copy;
  rf_status status = rf_job_train(s->p, s->o, error);
  from->plan.taken_bytes = 0;
  return status;
}

static rf_status plan_guests(rl_step *s, rf_error *error) {
  if (s->joint) {
    memset(&s->served, 0, sizeof s->served);
    RF_TRY(plan_joint(s, s->p->plan, error));
  } else {
    RF_TRY(plan_rollout(s, &s->p->plan->options, error));
    RF_TRY(plan_reference(s, s->p->plan->options.build.microbatch, error));
  }
  return roll_out(s, error);
}

static rf_status resolve(rl_step *s, rf_error *error) {
  rafter_plan *p = s->p;
  rf_build_options *b = &p->settings.plan.build;
  const int64_t slots = rf_options_int(s->o, "batch");
  RF_TRY(rf_job_lengths_resolve(p, s->o, &s->l, error));
  RF_TRY(rf_rl_shape_of(s->o, slots, &s->shape, error));
  RF_TRY(rf_rl_shape_policy(s->o, &s->shape, &p->settings, error));
  s->prompts = s->shape.prompts;
  s->joint = rf_mesh_chips(&b->mesh) == 1 && !b->offload && !p->settings.vary.mesh &&
             p->settings.plan.program.program == RF_PROGRAM_RAFTER;
  s->roll = calloc(1, sizeof *s->roll);
  if (!s->roll) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  RF_TRY(rf_settings_resolve(s->o, "generate", &s->roll->settings, error));
  s->roll->settings.plan.build.seq = b->seq;
  return RAFTER_OK;
}

static json_t *phases_json(const phase list[4]) {
  json_t *phases = json_array();
  for (int i = 0; i < 4; i++)
    if (list[i].name)
      json_array_append_new(phases,
                            json_pack("{ss sf sf ss?}", "name", list[i].name, "seconds",
                                      list[i].totals.time.seconds, "model_flops", list[i].totals.model_flops,
                                      "digest", list[i].plan ? list[i].plan->digest : NULL));
  return phases;
}

rf_status rf_job_rl(rafter_plan *p, const rf_options *o, rf_error *error) {
  rl_step s = {.p = p, .o = o};
  phase list[4];
  rf_status status = RAFTER_OK;
  RF_GO(resolve(&s, error));
  if (p->settings.fit) {
    const rf_fit_whole whole = {&s, rl_cost};
    RF_GO(rf_plan_fit(&p->settings.model, &p->settings.plan, p->settings.vary, &whole, &p->plan, &p->found,
                      error));
  } else RF_GO(plan_policy(&s, error));
  RF_GO(plan_guests(&s, error));
  list_phases(&s, p->plan, list);
  const rl_bytes bytes = count_step(&s, p->plan);
  if (p->sized) {
    json_object_set_new(p->extra, "memory", rl_memory(p, list, bytes, NULL));
    goto done;
  }
  rf_job_say_copies(p, s.plans.decode);
  time_phases(&s, p->plan, list);
  double sequences = (double)s.prompts * s.l.samples, seconds = seconds_of(list);
  json_t *phases = phases_json(list), *memory = rl_memory(p, list, bytes, phases);
  sum_rl(p, list, sequences, &bytes);
  put_rl(p, s.roll->settings.plan.build.microbatch, has_reference(&s));
  rf_job_set_prompts(p, &s.l, s.prompts);
  json_object_set_new(p->extra, "memory", memory);
  json_object_set_new(p->extra, "rollout", rf_job_rollout_json(p, &s.l, &s.served, s.prompts));
  json_object_set_new(p->extra, "rl",
                      json_pack("{sf sf sf ss sf so}", "seconds", seconds, "sequences", sequences,
                                "answer_tokens_per_second", (double)s.served.counts.tokens / seconds, "loss",
                                s.shape.loss->name, "beta", s.shape.beta, "phases", phases));
done:
  rf_rl_plans_free(&s.plans);
  free(s.roll);
  return status;
}
