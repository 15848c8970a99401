/* draft.c - see draft.h. */
#include "generate/draft.h"

#include "generate/draft_price.h"

#include <stdlib.h>

/* The totals over all answers begin as if PRIOR_TRIED drafts had been verified, and half of these
 * drafts had been right. The counts of a new answer begin as if PRIOR_TRIED of its drafts had been
 * verified, with the success rate of all earlier answers. Newer drafts count more than older
 * drafts, because each pass multiplies the older counts by FADE. */
static const double PRIOR_TRIED = 2, PRIOR_CHANCE = 0.5, FADE = 0.95, FADE_ALL = 0.99;
enum { TRIES = 16 }; /* maximum number of draft lengths that a step compares */

static double chance_of(const rf_draft_odds *odds, int match, double prior) {
  return (odds->right[match] + PRIOR_TRIED * prior) / (odds->tried[match] + PRIOR_TRIED);
}

double rf_draft_chance(const rf_draft_odds *all, const rf_draft_odds *odds, int match) {
  return chance_of(odds, match, chance_of(all, match, PRIOR_CHANCE));
}

static void fade(rf_draft_odds *odds, int match, double by) {
  odds->tried[match] *= by;
  odds->right[match] *= by;
}

void rf_draft_learn(rf_draft_odds *odds, int drafted, int right, double by) {
  int m = odds->match;
  fade(odds, m, by);
  odds->tried[m] += right + (right < drafted);
  odds->right[m] += right;
  odds->longest = right > odds->longest ? right : (odds->longest + right) / 2;
}

int rf_draft_lookup(const int32_t *tokens, int64_t count, int32_t *draft, int max, int *match) {
  int64_t from = 0;
  *match = 0;
  /* tokens[at] is an earlier occurrence of draft[0]. Among matches of the greatest length, the
   * latest match is taken. */
  for (int64_t at = count - 1; at >= 0 && *match < RF_DRAFT_MAX_MATCH; at--) {
    if (tokens[at] != draft[0]) continue;
    int common = 1;
    int64_t most = at < RF_DRAFT_MAX_MATCH - 1 ? at : RF_DRAFT_MAX_MATCH - 1;
    while (common <= most && tokens[at - common] == tokens[count - common]) common++;
    if (common <= *match || common < RF_DRAFT_MIN_MATCH) continue;
    *match = common;
    from = at + 1;
  }
  if (!*match) return 0;
  /* If the draft reaches the end of the text, the draft continues with its own first tokens. */
  for (int i = 0; i < max; i++) draft[1 + i] = from + i < count ? tokens[from + i] : draft[from + i - count];
  return max;
}

/* Draft of one answer in a step. */
typedef struct part {
  /* `proposed`: number of proposed tokens. `count`: number of tokens that the step verifies. */
  int proposed, count;
  rf_draft_odds *odds;
  double chance, /* rf_draft_chance of the draft */
      gain;      /* probability that the next drafted token and all earlier drafted tokens are right */
  int64_t context;
} part;

struct rf_draft_plan {
  rf_draft_price *price, *drafter; /* drafter: predicted times of passes of the draft model, or NULL */
  rf_draft_odds odds;              /* success of the drafts of all answers */
  bool all;
  int parts;
  int64_t rows;      /* number of rows of the step's pass */
  double plain;      /* seconds of the pass without drafts */
  part *part;        /* (slots) */
  rf_extent *extent; /* (slots) */
  int *order;        /* (slots x draft): index of the answer that gets the first, second, ... drafted token */
};

rf_status rf_draft_plan_open(const rf_plan *decode, int slots, int draft, bool all, rf_draft_plan **out,
                             rf_error *error) {
  size_t n = (size_t)slots;
  rf_draft_plan *p = *out = calloc(1, sizeof *p);
  if (p) {
    p->all = all;
    p->price = rf_draft_price_open(decode, (int64_t)n * (1 + draft));
    p->part = calloc(n, sizeof *p->part);
    p->extent = calloc(n, sizeof *p->extent);
    p->order = calloc(n * (size_t)draft + 1, sizeof *p->order);
  }
  if (!p || !p->price || !p->part || !p->extent || !p->order)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  return RAFTER_OK;
}

void rf_draft_plan_close(rf_draft_plan *p) {
  if (!p) return;
  rf_draft_price_close(p->price);
  rf_draft_price_close(p->drafter);
  free(p->part);
  free(p->extent);
  free(p->order);
  free(p);
}

rf_status rf_draft_plan_model(rf_draft_plan *p, const rf_plan *drafter, int slots, rf_error *error) {
  p->drafter = rf_draft_price_open(drafter, slots);
  return p->drafter ? RAFTER_OK
                    : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
}

rf_draft_price *rf_draft_plan_prices(const rf_draft_plan *p) { return p->drafter; }

void rf_draft_begin(rf_draft_plan *p, int parts) { p->parts = parts; }

/* Returns how many tokens the answer may draft. */
static int begin_part(rf_draft_plan *p, int which, int max, rf_draft_odds *odds, int64_t context) {
  p->part[which] = (part){.odds = odds, .context = context};
  if (!odds->begun) odds->longest = p->odds.longest;
  odds->begun = true;
  /* The predicted time of a draft that is much longer than earlier drafts may be wrong. */
  return p->all || max <= 2 * odds->longest + 1 ? max : 2 * odds->longest + 1;
}

void rf_draft_expect(rf_draft_plan *p, int which, int max, rf_draft_odds *odds, int64_t context) {
  p->part[which].proposed = begin_part(p, which, max, odds, context);
  odds->match = RF_DRAFT_MODEL;
  p->part[which].chance = rf_draft_chance(&p->odds, odds, odds->match);
}

void rf_draft_propose(rf_draft_plan *p, int which, const int32_t *tokens, int64_t count, int32_t *draft,
                      int max, rf_draft_odds *odds, int64_t context) {
  part *of = &p->part[which];
  max = begin_part(p, which, max, odds, context);
  of->proposed = rf_draft_lookup(tokens, count, draft, max, &odds->match);
  of->chance = of->proposed ? rf_draft_chance(&p->odds, odds, odds->match) : 0;
}

/* Lists drafted tokens by their gains, the largest gain first. An entry is the index of the token's
 * answer. */
static int list_gains(rf_draft_plan *p) {
  int listed = 0;
  for (int i = 0; i < p->parts; i++) p->part[i].gain = p->part[i].chance;
  for (;; listed++) {
    part *best = NULL;
    for (part *of = p->part; of < p->part + p->parts; of++)
      if (of->count < of->proposed && (!best || of->gain > best->gain)) best = of;
    if (!best) return listed;
    p->order[listed] = (int)(best - p->part);
    best->count++;
    best->gain *= best->chance;
  }
}

/* Takes the first `tokens` entries of the order, and sets the number of drafted tokens of each
 * answer. Returns the expected number of tokens of the step. */
static double give(rf_draft_plan *p, int tokens) {
  double expected = p->parts;
  for (int i = 0; i < p->parts; i++) {
    p->part[i].count = 0;
    p->part[i].gain = 1;
  }
  for (int k = 0; k < tokens; k++) {
    part *of = &p->part[p->order[k]];
    of->count++;
    expected += of->gain *= of->chance;
  }
  return expected;
}

/* Returns the predicted seconds of the draft model's passes. Each pass drafts one token for every
 * answer that needs another token. */
static double drafter_seconds(rf_draft_plan *p) {
  double seconds = 0;
  for (int drafted = 0;; drafted++) {
    int parts = 0;
    for (int i = 0; i < p->parts; i++)
      if (p->part[i].count > drafted) p->extent[parts++] = (rf_extent){1, p->part[i].context};
    if (!parts) return seconds;
    seconds += rf_draft_price_of(p->drafter, p->extent, parts);
  }
}

static double seconds_of(rf_draft_plan *p) {
  double drafter = p->drafter ? drafter_seconds(p) : 0;
  p->rows = 0;
  for (int i = 0; i < p->parts; i++) {
    p->extent[i] = (rf_extent){1 + p->part[i].count, p->part[i].context + p->part[i].count};
    p->rows += p->extent[i].rows;
  }
  return drafter + rf_draft_price_of(p->price, p->extent, p->parts);
}

/* The counts of unverified drafts also fade, so that such drafts are tried again. */
static void forget(rf_draft_plan *p) {
  for (int i = 0; i < p->parts; i++) {
    const part *of = &p->part[i];
    if (!of->proposed || of->count) continue;
    fade(of->odds, of->odds->match, FADE);
    fade(&p->odds, of->odds->match, FADE_ALL);
  }
}

void rf_draft_choose(rf_draft_plan *p) {
  int listed = list_gains(p), best = 0, stride = listed / TRIES + 1;
  if (p->all) return;
  give(p, 0);
  p->plain = seconds_of(p);
  double rate = p->parts / p->plain, credit = p->plain * rf_draft_credit(p->price);
  for (int tokens = stride; tokens <= listed; tokens += stride) {
    double expected = give(p, tokens), seconds = seconds_of(p);
    if (expected <= rate * seconds || seconds - p->plain > credit) continue;
    best = tokens;
    rate = expected / seconds;
  }
  give(p, best);
  seconds_of(p);
  forget(p);
}

void rf_draft_measured(rf_draft_plan *p, double seconds) {
  bool drafts = false;
  if (!p->parts || p->all) return;
  rf_draft_price_measured(p->price, p->rows, seconds);
  for (int i = 0; i < p->parts; i++) drafts |= p->part[i].count > 0;
  if (drafts) rf_draft_saved(p->price, 1 - seconds_of(p) / p->plain);
}

void rf_draft_settle(rf_draft_plan *p, int which, int right) {
  const part *of = &p->part[which];
  rf_draft_odds *odds = of->odds;
  p->odds.match = odds->match;
  rf_draft_learn(odds, of->count, right, FADE);
  rf_draft_learn(&p->odds, of->count, right, FADE_ALL);
  if (!p->all) rf_draft_saved(p->price, (double)right / p->parts);
}

int rf_draft_count(const rf_draft_plan *p, int which) { return p->part[which].count; }
