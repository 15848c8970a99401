/* drafts.c - see drafts.h. */
#include "advise/drafts.h"

#include "generate/generate.h"
#include "generate/speculate.h"

static json_t *drafts_json(const rafter_plan *p, const char *kind, const rf_speculation *of,
                           const rf_speculation_found *found) {
  double answers = of->parts * (double)rf_generate_copies(p->plan);
  return json_pack("{ss sf si si sf sf sf sf sf so}", "drafts", kind, "acceptance", p->acceptance,
                   "most_draft_tokens", of->most, "draft_tokens", found->drafted, "tokens_per_pass",
                   found->tokens, "pass_seconds", found->seconds, "plain_pass_seconds", found->plain_seconds,
                   "tokens_per_second", answers * found->tokens / found->seconds, "gain", found->gain,
                   "wins_from_acceptance", found->wins_from > 1 ? json_null() : json_real(found->wins_from));
}

/* The times of "serving" that drafts change. */
static json_t *serving_json(const rafter_plan *p, const rf_speculation_found *found) {
  double rate = p->whole.totals.tokens / found->seconds, each = found->seconds / found->tokens;
  return json_pack("{sf sf sf s{sf sf sf}}", "decode_step_seconds", found->seconds, "tokens_per_second", rate,
                   "tokens_per_second_per_chip", rate / (double)rf_mesh_chips(&p->plan->graph->mesh),
                   "tpot_seconds", "p50", each, "p95", each, "p99", each);
}

static void put_drafts(FILE *out, const rafter_plan *p, const char *kind, const rf_speculation *of,
                       const rf_speculation_found *found) {
  char a[32], b[32];
  fprintf(out, "\ndrafts    %s, at most %d tokens, acceptance %.3g: ", kind, of->most, p->acceptance);
  if (found->drafted)
    fprintf(out, "%d drafted tokens are best, %.3g times the rate without drafts\n", found->drafted,
            found->gain);
  else fprintf(out, "drafts do not win, and no token is drafted\n");
  fprintf(out, "  %.3g tokens per pass and answer; a pass takes %s, and %s without drafts\n", found->tokens,
          rf_text_seconds(found->seconds, a), rf_text_seconds(found->plain_seconds, b));
  if (found->wins_from > 1) fprintf(out, "  drafts win with no acceptance\n");
  else fprintf(out, "  drafts win from acceptance %.3g on\n", found->wins_from);
}

rf_status rf_plan_drafts(rafter_plan *p, const rf_options *o, rf_error *error) {
  const rf_build_options *b = &p->settings.plan.build;
  const int64_t copies = rf_generate_copies(p->plan);
  const char *kind = rf_options_text_or(o, "speculate", "none");
  rf_speculation_found found;
  if (!b->draft) return RAFTER_OK;
  const rf_speculation of = {.decode = p->plan,
                             .parts = (int)((b->microbatch + copies - 1) / copies),
                             .context = b->seq,
                             .most = b->draft};
  RF_TRY(rf_speculation_find(&of, p->acceptance, &found, error));
  p->whole = (rf_report_whole){
      .unit = found.drafted ? "pass with drafts" : "token", .main = "decode", .totals = found.total};
  p->whole.totals.tokens = of.parts * found.tokens * (double)copies;
  json_object_set_new(p->extra, "speculation", drafts_json(p, kind, &of, &found));
  if (!strcmp(p->job, "generate")) json_object_set_new(p->extra, "serving", serving_json(p, &found));
  put_drafts(p->extra_text, p, kind, &of, &found);
  return RAFTER_OK;
}

const rf_option RF_ACCEPTANCE_OPTIONS[] = {
    RF_NUMBER("acceptance", FLOAT, "A", 0, 1, "0.7", "Speed",
              "probability that a drafted token is right, for plans with --speculate\n`generate` prints "
              "the measured one."),
    {.name = NULL},
};
