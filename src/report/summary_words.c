/* summary_words.c - writes the sentences of a diagnosis. */
#define _GNU_SOURCE
#include "report/diagnose.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "report/model.h"
#include "report/report.h"
#include "run/record.h"

enum { NOTES = 4 };
/* If an op reaches less than this fraction of its roofline, the kernel limits the op. */
static const double NEAR_LIMIT = 0.6;

static char *join(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *join(const char *format, ...) {
  char *text = NULL;
  va_list values;
  va_start(values, format);
  int n = vasprintf(&text, format, values);
  va_end(values);
  return n < 0 ? NULL : text;
}

static void append(json_t *list, char *text) {
  if (text) json_array_append_new(list, json_string(text));
  free(text);
}

static const char *or_empty(const char *text) { return text ? text : ""; }
/* a ratio below 10 is printed with two decimals */
static int decimals(double ratio) { return ratio < 10 ? 2 : 0; }
static bool missed(double ratio) { return ratio > RF_MISSED || ratio < 1 / RF_MISSED; }

static const char *subject(const char *pass) {
  static const struct {
    const char *pass, *subject;
  } names[] = {{"train", "This step"},      {"decode", "A decode step"},   {"prefill", "A prefill step"},
               {"score", "A scoring step"}, {"generate", "A decode step"}, {"serve", "A decode step"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(names[i].pass, pass)) return names[i].subject;
  return "This forward pass";
}

/* ---- the bound ------------------------------------------------------------------------------- */

static char *planned_sentence(const rf_diagnosed_pass *pass, const char *of) {
  const rf_sum *bound = &pass->bounds.at[0], *kind = &pass->bound_kind,
               *bubble = rf_sum_named(&pass->bounds, RF_BOUND_BUBBLE);
  const char *bound_name = pass->bounds.count ? bound->name : "";
  char a[32], b[32], c[32], idle[96] = "";
  rf_text_seconds(pass->seconds, a);
  if (bubble && bubble->seconds > 0.1 * pass->seconds)
    snprintf(idle, sizeof idle, " The pipeline stages are idle for %s (%.0f %%).",
             rf_text_seconds(bubble->seconds, c), 100 * bubble->seconds / pass->seconds);
  if (!strcmp(bound_name, "network"))
    return join("%s is predicted to be bound by network: it waits %s of %s for transfers.%s", of,
                rf_text_seconds(bound->seconds, b), a, idle);
  if (!kind->name) return join("%s is predicted to be bound by %s.%s", of, bound_name, idle);
  return join("%s is predicted to be bound by %s: %s takes %s of %s and reaches %.0f %% of its limit.%s", of,
              bound_name, kind->name, rf_text_seconds(kind->seconds, b), a,
              kind->seconds > 0 ? 100 * (kind->limit / kind->seconds) : 0, idle);
}

/* True if kernels limit the pass: the fastest calls are far from the machine's limit, but near the
 * prediction. A guessed limit or a busy machine shows nothing about kernels. */
static bool kernels_bind(const rf_diagnosed_pass *pass, const rf_sum *kind, bool busy) {
  return !busy && !pass->guessed && pass->alike && kind->fastest > 0 &&
         kind->limit / kind->fastest < NEAR_LIMIT && kind->fastest < RF_FAR * kind->predicted;
}

/* Writes the end of a sentence such as "runs at 50 % of its limit", after its verb. */
static char *of_limit(const rf_diagnosed_pass *pass, const rf_sum *kind, double seconds, char text[64]) {
  const rf_sum sum = {.seconds = seconds, .limit = kind->limit, .flops = kind->flops};
  const char *beaten = rf_diagnosed_beaten(pass, &sum);
  double reached = seconds > 0 ? kind->limit / seconds : 0;
  if (beaten)
    snprintf(text, 64, pass->guessed ? "above its guessed limit" : "above the limit of memory, in a cache");
  else if (reached >= 0.01) snprintf(text, 64, "at %.0f %% of its limit", 100 * reached);
  else snprintf(text, 64, "at less than 1 %% of its limit");
  return text;
}

static char *measured_sentence(const rf_diagnosed_pass *pass, const char *of, bool busy) {
  const rf_sum *bound = &pass->bounds.at[0], *kind = &pass->bound_kind;
  const char *bound_name = pass->bounds.count ? bound->name : "";
  double ratio = pass->predicted > 0 ? pass->seconds / pass->predicted : 1;
  char a[32], b[32], times[64] = "", part[64];
  if (missed(ratio))
    snprintf(times, sizeof times,
             ratio > 3 ? " The time is %.*f times the prediction." : " It takes %.*f x the predicted time.",
             decimals(ratio), ratio);
  rf_text_seconds(pass->seconds, a);
  if (pass->compiled)
    return join("%s runs as one compiled program in %s, and the times of its ops are not known.%s", of, a,
                times);
  if (!strcmp(bound_name, "between ops"))
    return join("%s is bound by the time between its ops: %s of %s.%s", of,
                rf_text_seconds(bound->seconds, b), a, times);
  return join("%s is bound by %s: %.0f %% of its %s, mainly in %s (%s), which runs %s%s.%s", of, bound_name,
              pass->seconds > 0 ? 100 * (bound->seconds / pass->seconds) : 0, a, or_empty(kind->name),
              rf_text_seconds(kind->seconds, b), of_limit(pass, kind, kind->seconds, part),
              kernels_bind(pass, kind, busy) ? ": the kernels are the bottleneck, not the machine" : "",
              times);
}

/* Returns the sentence about a run that other programs slowed. The run's fastest calls show its own
 * speed. */
static char *alone_sentence(const rf_diagnosed_pass *pass) {
  const rf_sum *kind = &pass->kinds.at[0];
  char a[32], b[32], c[32], part[64];
  for (int i = 1; i < pass->kinds.count; i++)
    if (pass->kinds.at[i].fastest > kind->fastest) kind = &pass->kinds.at[i];
  return join("Without other programs it would take about %s, judging by its fastest calls (predicted %s): "
              "%s in %s, %s.",
              rf_text_seconds(pass->fastest, a), rf_text_seconds(pass->predicted, b),
              rf_text_seconds(kind->fastest, c), or_empty(kind->name),
              of_limit(pass, kind, kind->fastest, part));
}

static char *held_sentence(const rf_diagnosed_pass *pass) {
  char a[32], b[32];
  if (pass->alone == RF_ALONE_MIXED)
    return join("It takes %s (predicted %s); this does not show how long it would take alone.",
                rf_text_seconds(pass->seconds, a), rf_text_seconds(pass->predicted, b));
  return join("Even its fastest calls were delayed (%s in total, predicted %s), so the times do not show how "
              "long it would take alone.",
              rf_text_seconds(pass->fastest, a), rf_text_seconds(pass->predicted, b));
}

/* Returns the sentence about a run in which a few slow steps took a large part of the time. */
static char *outliers_sentence(const rf_outliers *found, const rf_diagnosed_pass *pass) {
  double ratio = pass->predicted > 0 ? found->median / pass->predicted : 1;
  char a[32], times[64] = "";
  if (missed(ratio)) snprintf(times, sizeof times, ", %.*f x the prediction", decimals(ratio), ratio);
  return join("%.0f of %.0f steps took %.0f %% of the time: the process was stopped or had no core, so the "
              "mean times of ops are not reliable. Please run it again. The median step took %s%s.",
              found->count, found->steps, 100 * found->part, rf_text_seconds(found->median, a), times);
}

/* Returns the part of the time in which a run used fewer threads because other programs used the
 * cores. */
static double reduced_part(const rf_diagnosis *d, double *threads) {
  const json_t *others = json_object_get(json_object_get(d->entry, "measured"), "others");
  double seconds = rf_json_number_at(others, "seconds");
  *threads = rf_json_number_at(others, "threads");
  return seconds > 0 ? rf_json_number_at(others, "reduced_seconds") / seconds : 0;
}

/* A busy machine is reported before all other reasons, because it slows every kernel. Returns NULL
 * if the machine was not busy. */
static char *busy_sentence(const rf_diagnosis *d) {
  double threads, part = d->measured ? reduced_part(d, &threads) : 0;
  if (part <= RF_WORTH) return NULL;
  return join("Other programs used the cores: for %.0f %% of the time fewer than %.0f threads ran. The times "
              "below are of a busy machine. ",
              100 * part, threads);
}

static char *bound_sentence(const rf_diagnosis *d, const rf_diagnosed_pass *pass) {
  const char *of = subject(pass->name);
  bool gap = d->gap_part > 0;
  rf_alone alone = d->by_others ? pass->alone : RF_ALONE_UNKNOWN;
  if (d->measured && d->stood && strcmp(d->bound, RF_BOUND_OTHERS))
    return outliers_sentence(&d->outliers, pass);
  if (gap && !strcmp(d->bound, RF_BOUND_STOPPED))
    return join("The process was stopped for %.0f %% of the recorded time, so the measured times are not "
                "reliable. Please run it again.",
                100 * d->gap_part);
  bool slow = gap && !strcmp(d->bound, rf_gap_name(RF_GAP_SLOW_RANK));
  const char *whom = (gap && !slow) || d->taken ? "it" : of;
  char *inside = alone == RF_ALONE_KNOWN     ? alone_sentence(pass)
                 : alone != RF_ALONE_UNKNOWN ? held_sentence(pass)
                 : d->measured               ? measured_sentence(pass, whom, d->busy)
                                             : planned_sentence(pass, whom),
       *text = NULL;
  const char *rest = alone != RF_ALONE_UNKNOWN ? "" : "In the remaining time, ";
  if (!gap && !d->taken) return inside;
  if (slow) /* the exchanges include this wait, so the words "remaining time" would be wrong here */
    text = join("%s waits for slower ranks for %.0f %% of its threads' recorded time. %s", of,
                100 * d->gap_part, or_empty(inside));
  else if (gap)
    text = join("%s is bound by %s: %.0f %% of its threads' recorded time. %s%s", of, d->bound,
                100 * d->gap_part, rest, or_empty(inside));
  else
    text = join("%s is bound by %s: its threads waited for a core for at least %.0f %% of the time. First "
                "run it alone. %s%s",
                of, d->bound, 100 * d->others, rest, or_empty(inside));
  free(inside);
  return text;
}

/* ---- the rest of a sentence ------------------------------------------------------------------ */

static char *change_sentence(const rf_diagnosis *d) {
  const rf_change *best = d->best;
  const rf_diagnosed_pass *most = d->most < 0 ? NULL : &d->pass[d->most];
  char a[32], b[32], m[32], speed[32], memory[64] = "the same memory";
  if (!d->changes) return NULL;
  if (!best)
    return join("No single change of the %d priced%s gains more than %.0f %% and fits%s.", d->changes,
                d->crowded ? " (more threads excluded)" : "", 100 * RF_WORTH,
                d->measured && !json_object_get(d->entry, "advice") ? "; `rafter report` prices more changes"
                                                                    : "");
  if (fabs(best->more_bytes) >= 1)
    snprintf(memory, sizeof memory, "%s %s memory", rf_text_bytes(fabs(best->more_bytes), m),
             best->more_bytes > 0 ? "more" : "less");
  return join("The best single change is %s: %s instead of %s%s (%s), with %s%s.", best->change,
              rf_text_seconds(best->seconds, a), rf_text_seconds(best->now_seconds, b),
              most && d->passes > 1 && !most->trains ? " in all" : "",
              rf_text_speed(best->now_seconds, best->seconds, speed), memory,
              best->approximate ? "; it changes results" : "");
}

/* Returns the sentence about a run that has metrics of steps but no report.json. */
static char *last_step_sentence(const rf_last_step *last) {
  double ratio = last->predicted > 0 ? last->seconds / last->predicted : 0;
  char a[32], b[32], c[32];
  return join("This run has no report: it is still running, or was killed after step %.0f. The median step "
              "took %s, predicted %s (%.*f x): %s tokens per second. ",
              last->step, rf_text_seconds(last->seconds, a), rf_text_seconds(last->predicted, b),
              decimals(ratio), ratio, rf_text_count(last->tokens_per_second, c));
}

/* Returns the first sentence about a plan that was not run and does not fit. */
static char *misfit_sentence(const rf_diagnosis *d) {
  const json_t *memory = json_object_get(d->plan, "memory");
  double headroom = rf_json_number_at(memory, "headroom_bytes");
  char a[32], b[32];
  if (json_object_get(d->entry, "measured") || !json_is_false(json_object_get(memory, "fits"))) return NULL;
  return join("This plan does not fit on %s: it needs %s more than the available %s. ",
              rf_json_text_at(json_object_get(d->plan, "machine"), "name"), rf_text_bytes(-headroom, a),
              rf_text_bytes(rf_json_number_at(memory, "peak_bytes") + headroom, b));
}

/* Returns the sentence about a plan that lists no ops, with its total time and rate. */
static char *sums_sentence(const rf_diagnosis *d) {
  const char *of = subject(rf_json_text_at(d->plan, "job"));
  double rate = rf_json_number_at(json_object_get(d->plan, "rate"), "tokens_per_second");
  char a[32], b[32];
  return join("%s is predicted to be bound by %s and to take %s%s%s%s.",
              strcmp(of, "This forward pass") ? of : "This plan", d->bound,
              rf_text_seconds(rf_json_number_at(json_object_get(d->plan, "time"), "seconds"), a),
              rate > 0 ? ": " : "", rate > 0 ? rf_text_count(rate, b) : "",
              rate > 0 ? " tokens per second" : "");
}

char *rf_words_sentence(const rf_diagnosis *d) {
  bool last = d->most >= 0 && d->last.seconds > 0;
  char *misfit = misfit_sentence(d), *busy = d->entry ? busy_sentence(d) : NULL,
       *before = last ? last_step_sentence(&d->last) : NULL,
       *bound = d->most >= 0 ? bound_sentence(d, &d->pass[d->most]) : sums_sentence(d),
       *change = last || d->useless ? NULL : change_sentence(d);
  char *text = join("%s%s%s%s%s%s", or_empty(misfit), or_empty(busy), or_empty(before), or_empty(bound),
                    change ? " " : "", or_empty(change));
  free(misfit);
  free(busy);
  free(before);
  free(bound);
  free(change);
  return text;
}

/* ---- threads --------------------------------------------------------------------------------- */

char *rf_words_threads(const rf_diagnosed_threads *threads) {
  char *text = NULL, a[32];
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  if (!out) return NULL;
  fprintf(out, "in the recorded steps, %s %.0f %% of %s time in ops",
          threads->device ? "the device spends" : "threads spend", 100 * threads->work,
          threads->device ? "its" : "their");
  for (int i = 0; i < threads->gaps.count; i++) {
    const rf_share *gap = &threads->gaps.at[i];
    if (gap->part >= 0.01) fprintf(out, ", %s %.0f %%", gap->name, 100 * gap->part);
  }
  if (threads->phases >= 0.01) fprintf(out, ", %.0f %% in phases outside ops", 100 * threads->phases);
  if (threads->between_part >= 0.01) {
    fprintf(out, ". The time between two steps is %s, %.0f %% of all time",
            rf_text_seconds(threads->between_seconds, a), 100 * threads->between_part);
    const char *sign = ":";
    for (int i = 0; i < threads->between_phases.count; i++) {
      const rf_share *phase = &threads->between_phases.at[i];
      if (phase->part < 0.005) continue;
      fprintf(out, "%s %.0f %% %s", sign, 100 * phase->part, phase->name);
      sign = ",";
    }
  }
  fclose(out);
  return text;
}

/* ---- notes ----------------------------------------------------------------------------------- */

static void note_kinds(const rf_diagnosed_pass *pass, json_t *notes) {
  for (int i = 0; i < pass->kinds.count && json_array_size(notes) < NOTES; i++) {
    const rf_sum *kind = &pass->kinds.at[i];
    double ratio = kind->predicted > 0 ? kind->seconds / kind->predicted : 1;
    char a[32], b[32];
    if (fabs(kind->seconds - kind->predicted) < RF_WORTH * pass->seconds) continue;
    if (ratio < RF_MISSED && ratio > 1 / RF_MISSED) continue;
    if (!(kind->seconds > 0)) { /* only in a compiled program */
      append(notes, join("%s is computed in the kernels of other ops (predicted %s)", kind->name,
                         rf_text_seconds(kind->predicted, a)));
      continue;
    }
    append(notes, join("%s takes %s instead of the predicted %s (%.*f x)", kind->name,
                       rf_text_seconds(kind->seconds, a), rf_text_seconds(kind->predicted, b),
                       decimals(ratio), ratio));
  }
}

static void note_time(const rf_diagnosis *d, const rf_diagnosed_pass *pass, json_t *notes) {
  const char *source = rf_json_text_at(json_object_get(d->plan, "machine"), "source");
  bool same_rows = pass->trains || pass->rate.full;
  char a[32];
  if (pass->losses && !strncmp(pass->loss[0].kernel, "reference_", 10))
    append(notes, join("the op that loses most time against its limit runs on a slow, single-threaded "
                       "reference kernel (%s); its prediction assumes a fast kernel",
                       pass->loss[0].kernel));
  if (pass->gaps > RF_WORTH * pass->seconds)
    append(notes, join("%s (%.1f %%) pass between ops", rf_text_seconds(pass->gaps, a),
                       100 * pass->gaps / pass->seconds));
  if (pass->alike && same_rows && pass->inside > RF_MISSED * pass->predicted &&
      pass->fastest < RF_MISSED * pass->predicted)
    append(notes, join("the fastest calls took the predicted time (%s); other programs or cold caches slowed "
                       "the other calls",
                       rf_text_seconds(pass->fastest, a)));
  else if ((pass->inside > RF_MISSED * pass->predicted || pass->inside < pass->predicted / RF_MISSED) &&
           (!strcmp(source, "detected") || !strcmp(source, "data-sheet")))
    append(notes, join("the machine's ceilings come from %s: `rafter calibrate` measures them",
                       !strcmp(source, "detected") ? "a general table" : "a data sheet"));
}

static void note_plan(const rf_diagnosis *d, json_t *notes) {
  char a[32], b[32];
  if (json_is_false(json_object_get(d->entry, "replans")))
    append(notes,
           join("no %schange has a predicted gain: this version of the program, or this machine, gives the "
                "run another plan",
                json_array_size(json_object_get(json_object_get(d->entry, "measured"), "advice")) ? "further "
                                                                                                  : ""));
  if (json_object_get(d->entry, "replanned_seconds"))
    append(notes, join("the machine was calibrated again after this run: the same plan is now predicted to "
                       "take %s, not %s",
                       rf_text_seconds(rf_json_number_at(d->entry, "replanned_seconds"), a),
                       rf_text_seconds(rf_json_number_at(json_object_get(d->plan, "time"), "seconds"), b)));
}

/* Says how a run keeps all its threads, if it used fewer because other programs used the cores. */
static void note_reduced(const rf_diagnosis *d, json_t *notes) {
  double threads, part = reduced_part(d, &threads);
  if (part <= RF_WORTH) return;
  append(notes, join("other programs used the cores, so for %.0f %% of the time fewer than %.0f threads ran; "
                     "--threads %.0f keeps all of them",
                     100 * part, threads, threads));
}

/* Returns the mean of a key in the table of ranks. */
static double mean_of(const json_t *list, const char *key) {
  const json_t *one;
  double sum = 0;
  size_t i;
  json_array_foreach ((json_t *)list, i, one) sum += rf_json_number_at(one, key);
  return json_array_size(list) ? sum / (double)json_array_size(list) : 0;
}

/* Notes the waits for other ranks by cause, as means over the ranks, and the slow rank if there is
 * one. */
static void note_ranks(const rf_diagnosis *d, json_t *notes) {
  const json_t *ranks = json_object_get(json_object_get(d->entry, "measured"), "ranks"),
               *list = json_object_get(ranks, "waits"), *slowest = json_object_get(ranks, "slowest"), *one;
  double seconds = rf_json_number_at(ranks, "seconds"), late = mean_of(list, "slow_rank_seconds"),
         network = mean_of(list, "network_seconds"), stages = mean_of(list, "stage_seconds");
  double own = mean_of(list, "exchange_seconds") - late - network;
  size_t count = json_array_size(list);
  char a[32], b[32], c[32], stage[80] = "";
  if (!count || seconds <= 0) return;
  late += mean_of(list, "between_seconds");
  if (stages > 0)
    snprintf(stage, sizeof stage, "%s (%.1f %%) wait for other stages, ", rf_text_seconds(stages, a),
             100 * stages / seconds);
  append(notes,
         join("ranks, as means of %zu: %s%s (%.1f %%) wait for slower ranks, %s (%.1f %%) wait for the "
              "network, %s (%.1f %%) pack and sum in exchanges",
              count, stage, rf_text_seconds(late, a), 100 * late / seconds, rf_text_seconds(network, b),
              100 * network / seconds, rf_text_seconds(own, c), 100 * own / seconds));
  double number = rf_json_number_at(slowest, "rank"), excess = rf_json_number_at(slowest, "excess_seconds");
  one = number >= 0 && number < (double)count ? json_array_get(list, (size_t)number) : NULL;
  double others = rf_json_number_at(one, "step_work_seconds") - excess;
  if (!slowest || others <= 0) return;
  append(notes,
         join("rank %.0f (%s) is slow: its own work takes %s longer in a step than that of the other "
              "ranks (%.0f %% more)",
              number, rf_json_text_at(one, "host"), rf_text_seconds(excess, a), 100 * excess / others));
}

/* Notes the measured idle time of each pipeline stage, next to the predicted idle time. */
static void note_bubble(const rf_diagnosis *d, json_t *notes) {
  const json_t *ranks =
                   json_object_get(json_object_get(json_object_get(d->entry, "trace"), "header"), "ranks"),
               *stages = json_object_get(json_object_get(d->plan, "pipeline"), "stage"), *stage, *rank;
  size_t s, r;
  char a[32], b[32];
  json_array_foreach ((json_t *)stages, s, stage) {
    double idle = 0, seconds = 0, count = 0, planned = rf_json_number_at(stage, "idle_seconds");
    json_array_foreach ((json_t *)ranks, r, rank) {
      const json_t *bubble = json_object_get(rank, "bubble");
      if (!bubble || rf_json_number_at(rank, "stage") != (double)s) continue;
      idle += rf_json_number_at(bubble, "idle_seconds");
      seconds += rf_json_number_at(bubble, "seconds");
      count++;
    }
    if (seconds <= 0) continue;
    append(notes, join("pipeline stage %zu was idle for %s of a step (%.0f %%); predicted %s", s,
                       rf_text_seconds(idle / count, a), 100 * idle / seconds, rf_text_seconds(planned, b)));
  }
}

void rf_words_notes(const rf_diagnosis *d, json_t *notes) {
  if (d->most < 0) return;
  note_ranks(d, notes);
  note_bubble(d, notes);
  const rf_diagnosed_pass *pass = &d->pass[d->most];
  double stopped = d->stood ? d->outliers.part : 0;
  char a[32];
  for (int i = 0; i < d->threads.gaps.count && !d->stood; i++)
    if (!strcmp(d->threads.gaps.at[i].name, RF_BOUND_STOPPED)) stopped = d->threads.gaps.at[i].part;
  if (d->measured && pass->predicted > 0 && pass->seconds > 0) {
    if (stopped <= RF_WORTH) note_kinds(pass, notes);
    note_time(d, pass, notes);
  }
  if (d->measured) note_plan(d, notes);
  if (!d->stood && d->outliers.part > RF_WORTH)
    append(notes, join("%.0f of %.0f steps took more than %d x the median (%s), in total %.0f %% of the "
                       "time; mean times include them",
                       d->outliers.count, d->outliers.steps, RF_OUTLIER,
                       rf_text_seconds(d->outliers.median, a), 100 * d->outliers.part));
  note_reduced(d, notes);
  if (d->others <= RF_WORTH || d->taken) return;
  char *note =
      join("other programs used the cores: threads waited for a core for at least %.0f %% of the time",
           100 * d->others);
  if (note) json_array_insert_new(notes, 0, json_string(note));
  free(note);
}
