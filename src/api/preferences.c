/* preferences.c - see preferences.h. */
#include "api/preferences.h"

#include "base/text.h"
#include "plan/loss.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void rf_say_pairs(const rafter_trainer *t, const rafter_sink *sink, bool validates_late) {
  const rf_preferences *p = t->preferences;
  const rf_pair_set *s = &p->set;
  const char *spec = s->source.spec;
  char a[32], b[32];
  rf_say(sink, "data %s: %s pairs of answers, %s tokens; %lld held out for validation%s\n", spec,
         rf_text_count((double)(s->train + s->held_out), a), rf_text_count((double)s->source.tokens, b),
         (long long)s->held_out, s->held_out && validates_late ? " after the last step (--val-every)" : "");
  rf_say(sink, "loss %s: %lld pair%s in a step%s\n", rf_loss_name(&t->trainer->plan->options.build),
         (long long)p->step_pairs, rf_plural(p->step_pairs),
         !p->references           ? ", no reference model"
         : p->references->anytime ? "; the reference is the model without the adapter"
                                  : "; the reference is the model before step 1");
  if (s->cut)
    rf_say(sink,
           "data %s: truncated the answers of %lld pair%s; %s tokens are left out (a longer --seq includes "
           "them)\n",
           spec, (long long)s->cut, rf_plural(s->cut), rf_text_count((double)s->cut_tokens, a));
  if (s->equal)
    rf_say(sink, "data %s: left out %lld pair%s whose answers are equal\n", spec, (long long)s->equal,
           rf_plural(s->equal));
  if (s->empty)
    rf_say(sink, "data %s: left out %lld pair%s with an empty answer\n", spec, (long long)s->empty,
           rf_plural(s->empty));
  if (s->long_prompts)
    rf_say(sink, "data %s: left out %lld pair%s whose prompt fills --seq %lld\n", spec,
           (long long)s->long_prompts, rf_plural(s->long_prompts), (long long)s->source.seq);
}

static double finite_or_zero(double x) { return isfinite(x) ? x : 0; }

void rf_put_preference(const rf_preference *p, bool validation, char *line, size_t capacity) {
  if (validation)
    rf_text_append(line, capacity, ",\"val_accuracy\":%.6g,\"val_margin\":%.6g", p->accuracy,
                   finite_or_zero(p->margin));
  else
    rf_text_append(line, capacity,
                   ",\"pairs\":%lld,\"margin\":%.6g,\"chosen_reward\":%.6g,\"rejected_reward\":%.6g,"
                   "\"chosen_logprob\":%.6g,\"rejected_logprob\":%.6g,\"reference_seconds\":%.6g",
                   (long long)p->pairs, finite_or_zero(p->margin), finite_or_zero(p->chosen_reward),
                   finite_or_zero(p->rejected_reward), finite_or_zero(p->chosen_logprob),
                   finite_or_zero(p->rejected_logprob), p->reference_seconds);
}

/* State of the reference passes before the first step. */
typedef struct before_steps {
  const rafter_sink *sink;
  double end, last; /* last: time of the latest call of after_pass */
  double longest;   /* seconds of the longest pass */
} before_steps;

static bool after_pass(void *self, int64_t done, int64_t of) {
  before_steps *b = self;
  const double now = rf_now_seconds();
  if (now - b->last > b->longest) b->longest = now - b->last;
  b->last = now;
  rf_put_bar(b->sink, "reference model: %lld/%lld pairs", (long long)done, (long long)of);
  return !(b->end > 0) || now + b->longest < b->end;
}

rf_status rf_begin_preferences(rafter_trainer *t, const rafter_sink *sink, int64_t val_rows, double end,
                               bool *stopped, bool *time_is_up, rf_error *error) {
  before_steps b = {.sink = sink, .end = end, .last = rf_now_seconds()};
  bool all = true;
  rf_status status = rf_preferences_begin(t->preferences, t->trainer->settings.schedule.steps, val_rows,
                                          after_pass, &b, &all, error);
  rf_put_bar(sink, "%s", "");
  *stopped = status == RAFTER_INTERRUPTED;
  *time_is_up = !all;
  return *stopped ? RAFTER_OK : status;
}
