/* drafts.c - see drafts.h. */
#include "advise/drafts.h"

#include "generate/generate.h"
#include "generate/speculate.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

rf_status rf_plan_drafter(rafter_plan *p, const rf_options *o, rf_error *error) {
  const rf_settings *s = &p->settings;
  if (!rf_drafter_given(o) || p->drafter) return RAFTER_OK;
  p->drafter = calloc(1, sizeof *p->drafter);
  if (!p->drafter) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  RF_TRY(rf_settings_resolve_drafter(o, s, p->drafter, error));
  const rf_infer_settings own = {.model = p->drafter->model, .plan = p->drafter->plan};
  RF_TRY(rf_generate_plans(&own, &p->drafter_plan[0], &p->drafter_plan[1], error));
  return rf_generate_reserve(&p->settings.plan, &own, error);
}

/* Returns the memory of the draft model, and of the main model and the draft model together. */
static json_t *drafter_json(const rafter_plan *p) {
  const rf_plan *const *plans = (const rf_plan *const *)p->drafter_plan;
  const rf_plan *const own[] = {p->prefill, p->plan};
  int64_t bytes = rf_plan_joint_bytes(plans, 2);
  return json_pack("{ss sI sI sI sI}", "model", p->drafter->model.name, "arena_bytes", (json_int_t)bytes,
                   "weight_bytes", (json_int_t)plans[1]->by_class[RF_CLASS_WEIGHT], "kv_bytes",
                   (json_int_t)plans[1]->by_class[RF_CLASS_KV], "total_bytes",
                   (json_int_t)(bytes + rf_plan_joint_bytes(own, 2)));
}

/* Defaults of --acceptance (docs/planning.md). ngram copies tokens from the text. Tokens of ngram
 * are right less often than tokens of a draft model, and some passes find no tokens to copy. */
static const double OF_NGRAM = 0.4, OF_MODEL = 0.7;

double rf_plan_acceptance(const rf_options *o) {
  if (!rf_options_knows(o, "acceptance")) return 0;
  const bool ngram = !strcmp(rf_options_text_or(o, "speculate", "none"), "ngram");
  return rf_options_float_or(o, "acceptance", ngram ? OF_NGRAM : OF_MODEL);
}

static bool assumed(const rf_options *o) {
  return rf_options_knows(o, "acceptance") && !rf_options_is_set(o, "acceptance");
}

static json_t *drafts_json(const rafter_plan *p, const char *kind, const rf_speculation *of,
                           const rf_speculation_found *found) {
  double answers = of->parts * (double)rf_generate_copies(p->plan);
  return json_pack("{ss sf si si sf sf sf sf sf so}", "drafts", kind, "acceptance", p->acceptance,
                   "most_draft_tokens", of->most, "draft_tokens", found->drafted, "tokens_per_pass",
                   found->tokens, "pass_seconds", found->seconds, "plain_pass_seconds", found->plain_seconds,
                   "tokens_per_second", answers * found->tokens / found->seconds, "gain", found->gain,
                   "wins_from_acceptance", found->wins_from > 1 ? json_null() : json_real(found->wins_from));
}

/* Returns the times of "serving" that change with drafts. */
static json_t *serving_json(const rafter_plan *p, const rf_speculation_found *found) {
  double rate = p->whole.totals.tokens / found->seconds, each = found->seconds / found->tokens;
  return json_pack("{sf sf sf s{sf sf sf}}", "decode_step_seconds", found->seconds, "tokens_per_second", rate,
                   "tokens_per_second_per_chip", rate / (double)rf_mesh_chips(&p->plan->graph->mesh),
                   "tpot_seconds", "p50", each, "p95", each, "p99", each);
}

static void put_drafts(FILE *out, const rafter_plan *p, const rf_options *o, const rf_speculation *of,
                       const rf_speculation_found *found) {
  char a[32], b[32];
  fprintf(out, "\ndrafts    %s, at most %d token%s, acceptance %.3g%s: ", rf_options_text(o, "speculate"),
          of->most, rf_plural(of->most), p->acceptance, assumed(o) ? " (assumed; --acceptance)" : "");
  if (found->drafted)
    fprintf(out, "%d drafted token%s %s best, %.3g times the rate without drafts\n", found->drafted,
            rf_plural(found->drafted), found->drafted == 1 ? "is" : "are", found->gain);
  else fprintf(out, "drafts save no time, so no token is drafted\n");
  fprintf(out, "  %.3g tokens per pass and answer; a pass takes %s, and %s without drafts\n", found->tokens,
          rf_text_seconds(found->seconds, a), rf_text_seconds(found->plain_seconds, b));
  if (found->wins_from > 1) fprintf(out, "  drafts save no time at any acceptance\n");
  else fprintf(out, "  drafts save time if the acceptance is above %.3g\n", found->wins_from);
  if (!p->drafter) return;
  const rf_plan *const *plans = (const rf_plan *const *)p->drafter_plan, *const own[] = {p->prefill, p->plan};
  int64_t bytes = rf_plan_joint_bytes(plans, 2);
  fprintf(out, "  %s needs %s more, in total %s\n", p->drafter->model.name, rf_text_bytes((double)bytes, a),
          rf_text_bytes((double)(bytes + rf_plan_joint_bytes(own, 2)), b));
}

rf_status rf_plan_drafts(rafter_plan *p, const rf_options *o, rf_error *error) {
  const rf_build_options *b = &p->settings.plan.build;
  const int64_t copies = rf_generate_copies(p->plan);
  const char *kind = rf_options_text_or(o, "speculate", "none");
  rf_speculation_found found;
  if (!b->draft) return RAFTER_OK;
  const rf_speculation of = {.decode = p->plan,
                             .drafter = p->drafter_plan[1],
                             .parts = (int)((b->microbatch + copies - 1) / copies),
                             .context = b->seq,
                             .most = b->draft};
  RF_TRY(rf_speculation_find(&of, p->acceptance, &found, error));
  p->whole = (rf_report_whole){
      .unit = found.drafted ? "pass with drafts" : "token", .main = "decode", .totals = found.total};
  p->whole.totals.tokens = of.parts * found.tokens * (double)copies;
  json_t *json = drafts_json(p, kind, &of, &found);
  if (p->drafter) json_object_set_new(json, "draft_model", drafter_json(p));
  json_object_set_new(json, "acceptance_assumed", json_boolean(assumed(o)));
  json_object_set_new(p->extra, "speculation", json);
  if (!strcmp(p->job, "generate")) json_object_set_new(p->extra, "serving", serving_json(p, &found));
  put_drafts(p->extra_text, p, o, &of, &found);
  return RAFTER_OK;
}

const rf_option RF_ACCEPTANCE_OPTIONS[] = {
    RF_NUMBER("acceptance", FLOAT, "A", 0, 1, NULL, "Speed",
              "probability that a drafted token is right, for plans with --speculate; unset: 0.4 for ngram, "
              "0.7 for a draft model\n`generate` prints the measured one."),
    {.name = NULL},
};
