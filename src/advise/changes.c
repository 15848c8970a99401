/* changes.c - see changes.h. */
#include "advise/changes.h"

#include "advise/set.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The value of --job with which `rafter plan` plans the same program as this run. */
static const char *job_of(const json_t *run, const json_t *plan) {
  const char *command = json_string_value(json_object_get(run, "command")),
             *job = json_string_value(json_object_get(plan, "job"));
  return command && !strcmp(command, "train") ? "train" : job;
}

/* The options that plan a run again: options of run.json, and sizes that the run's command
 * chose. */
static rf_status plan_options(const rf_commands *commands, const json_t *entry, rf_options **out,
                              rf_error *error) {
  const json_t *run = json_object_get(entry, "run"), *plan = json_object_get(entry, "plan"),
               *settings = json_object_get(plan, "settings");
  static const char *const found[] = {"batch", "seq", "sequences"};
  const char *id = json_string_value(json_object_get(entry, "id"));
  rf_options *o = NULL;
  rf_status status = RAFTER_OK;
  if (!run)
    return RF_FAIL(error, RAFTER_INVALID, "give the folder of a run first, or use `rafter plan --compare`",
                   "%s is a plan and not a run, so it cannot be planned again", id);
  RF_TRY(rf_options_new(commands, "plan", &o, error));
  RF_GO(rf_options_read_json(o, json_object_get(run, "options"), "run.json", error));
  RF_GO(rf_options_set(o, "job", job_of(run, plan), error));
  for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
    char text[32];
    const json_t *value = json_object_get(settings, found[i]);
    /* `train` and `plan` have different default lengths */
    bool trains = !strcmp(job_of(run, plan), "train") && strcmp(found[i], "seq") != 0;
    snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    if (!trains && json_is_integer(value)) RF_GO(rf_options_set(o, found[i], text, error));
  }
  RF_GO(rf_options_set(o, "tensors", "true", error));
  RF_GO(rf_options_set(o, "ops", "true", error));
done:
  if (status == RAFTER_OK) *out = o;
  else rf_options_free(o);
  return status;
}

rf_status rf_plan_run_again(const rf_commands *commands, const json_t *entry, const char *change,
                            rafter_plan **plan, rf_error *error) {
  rf_options *o = NULL;
  rf_error inner = {0};
  RF_TRY(plan_options(commands, entry, &o, error));
  rf_status status = *change ? rf_options_apply(o, change, &inner) : RAFTER_OK;
  if (status == RAFTER_OK) status = rf_plan_of_options(o, plan, &inner);
  rf_options_free(o);
  return status == RAFTER_OK
             ? status
             : RF_FAIL(error, status, inner.hint, "--against %.100s: %s", change, inner.message);
}

/* The changes to try. Time may run out, so the most useful changes come first. `results`:
 * compared with the run, the change gives other values (CHANGED), the same values with other
 * roundings (ROUNDED), or the same bits (EXACT). */
enum { ROUNDED, CHANGED, EXACT };
static const struct {
  const char *job, *change;
  int results;
} CHANGES[] = {
    {"", "threads = all", EXACT},           {"train", "dtype=bf16", CHANGED},
    {"train", "microbatch x 2", ROUNDED},   {"train", "microbatch / 2", ROUNDED},
    {"generate", "weights=int8", CHANGED},  {"generate", "weights=q4", CHANGED},
    {"generate", "dtype=bf16", CHANGED},    {"generate", "kv-dtype=bf16", CHANGED},
    {"generate", "kv-dtype=int8", CHANGED}, {"generate", "compute=fast", CHANGED},
    {"score", "dtype=bf16", CHANGED},       {"score", "weights=int8", CHANGED},
    {"score", "weights=q4", CHANGED},       {"score", "compute=fast", CHANGED},
    {"train", "remat=none", EXACT},         {"train", "remat=mlp", EXACT},
    {"train", "remat=attn", EXACT},         {"train", "remat=mlp+attn", EXACT},
    {"train", "remat=block", EXACT},
};

/* Writes the change into `text` as options. Returns false if the change does not apply here. */
static bool options_of(const json_t *plan, const char *change, char text[96]) {
  const json_t *settings = json_object_get(plan, "settings");
  long long micro = json_integer_value(json_object_get(settings, "microbatch")),
            accumulate = json_integer_value(json_object_get(settings, "accumulate"));
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (!strcmp(change, "microbatch x 2")) {
    if (accumulate % 2) return false;
    snprintf(text, 96, "microbatch=%lld,accumulate=%lld", micro * 2, accumulate / 2);
  } else if (!strcmp(change, "microbatch / 2")) {
    if (micro % 2) return false;
    snprintf(text, 96, "microbatch=%lld,accumulate=%lld", micro / 2, accumulate * 2);
  } else if (!strcmp(change, "threads = all")) {
    const json_t *threads = json_object_get(settings, "threads");
    /* if the run had more threads than the machine has cores, the change lowers the number of
     * threads */
    if (!json_is_integer(threads) || json_integer_value(threads) == cores) return false;
    snprintf(text, 96, "threads=%ld", cores);
  } else snprintf(text, 96, "%s", change);
  return true;
}

static json_t *kinds_of(const rf_plan *plan) {
  json_t *sums = json_object();
  for (int i = 0; i < plan->graph->op_count; i++) {
    const char *kind = rf_op_kind(&plan->graph->op[i]);
    double before = json_number_value(json_object_get(sums, kind));
    json_object_set_new(sums, kind, json_real(before + plan->op[i].calls * plan->op[i].seconds));
  }
  return json_pack("{sf so}", "seconds", plan->step_seconds, "kinds", sums);
}

static json_t *passes_of(const rafter_plan *made) {
  bool generates = made->plan->options.build.job == RF_JOB_GENERATE;
  json_t *plans = json_object();
  json_object_set_new(plans,
                      generates                                       ? "decode"
                      : made->plan->options.build.job == RF_JOB_TRAIN ? "train"
                                                                      : "score",
                      kinds_of(made->plan));
  if (made->prefill) json_object_set_new(plans, "prefill", kinds_of(made->prefill));
  return plans;
}

/* `now`: predicted times of the unchanged run. The times in `now` and in `made` are from the same
 * calibration. */
static json_t *row_of(const rafter_plan *made, const char *change, int results, json_t *now) {
  const rf_plan *plan = made->plan, *largest = rf_plan_larger(plan, made->prefill);
  return json_pack("{ss sf sI sb sb sb so sO}", "change", change, "seconds", plan->step_seconds, "peak_bytes",
                   (json_int_t)largest->arena_bytes, "fits",
                   largest->arena_bytes <= rf_plan_room(&plan->options), "approximate", results == CHANGED,
                   "exact", results == EXACT, "plans", passes_of(made), "now", now);
}

json_t *rf_advise_changes(const rf_commands *commands, json_t *entry, double seconds) {
  const json_t *plan = json_object_get(entry, "plan");
  const char *job = json_string_value(json_object_get(plan, "job")),
             *digest = json_string_value(json_object_get(plan, "digest"));
  json_t *list = json_array();
  double start = rf_now_seconds();
  char text[96];
  rafter_plan *own = NULL;
  json_t *now = NULL;
  if (!job || !digest || rf_plan_run_again(commands, entry, "", &own, NULL) != RAFTER_OK) return list;
  bool same = !strcmp(own->plan->digest, digest);
  if (!same) json_object_set_new(entry, "replans", json_false());
  double planned = json_number_value(json_object_get(json_object_get(plan, "time"), "seconds"));
  if (same) now = passes_of(own);
  if (same && planned > 0 && fabs(own->plan->step_seconds / planned - 1) > 0.005)
    json_object_set_new(entry, "replanned_seconds", json_real(own->plan->step_seconds));
  rafter_plan_free(own);
  for (size_t i = 0; same && i < sizeof CHANGES / sizeof *CHANGES && rf_now_seconds() - start < seconds;
       i++) {
    rafter_plan *made = NULL;
    if ((*CHANGES[i].job && strcmp(CHANGES[i].job, job)) || !options_of(plan, CHANGES[i].change, text))
      continue;
    if (rf_plan_run_again(commands, entry, text, &made, NULL) != RAFTER_OK) continue;
    if (strcmp(made->plan->digest, digest))
      json_array_append_new(list, row_of(made, text, CHANGES[i].results, now));
    rafter_plan_free(made);
  }
  json_decref(now);
  return list;
}
