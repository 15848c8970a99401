/* summary.c - writes a diagnosis as JSON: docs/formats.md, "The summary". */
#include "report/summary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "report/diagnose.h"

static json_t *number_or_null(double value, bool known) { return known ? json_real(value) : json_null(); }

static json_t *sum_json(const rf_diagnosed_pass *pass, const rf_sum *sum) {
  char layer[32];
  const double all = pass->seconds;
  const char *beaten = rf_diagnosed_beaten(pass, sum);
  const bool in_layer = !sum->name && sum->layer >= 0;
  if (in_layer) snprintf(layer, sizeof layer, "block.%d", sum->layer);
  else snprintf(layer, sizeof layer, "outside of layers");
  json_t *json =
      json_pack("{ss sf sf sf sf sf so so sf sf sf}", "name", sum->name ? sum->name : layer, "calls",
                sum->calls, "seconds", sum->seconds, "least_seconds", sum->fastest, "predicted_seconds",
                sum->predicted, "limit_seconds", sum->limit, "missed",
                number_or_null(sum->seconds / sum->predicted, sum->predicted > 0), "limit_fraction",
                number_or_null(sum->limit / sum->seconds, sum->seconds > 0), "share",
                all > 0 ? sum->seconds / all : 0, "flops", sum->flops, "bytes", sum->bytes);
  if (in_layer) json_object_set_new(json, "layer", json_integer(sum->layer));
  if (beaten) json_object_set_new(json, "beaten", json_string(beaten));
  return json;
}

static json_t *sums_json(const rf_diagnosed_pass *pass, const rf_sum *sum, int count) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(list, sum_json(pass, &sum[i]));
  return list;
}

static json_t *losses_json(const rf_diagnosed_pass *pass) {
  json_t *list = json_array();
  for (int i = 0; i < pass->losses; i++) {
    const rf_loss *loss = &pass->loss[i];
    json_array_append_new(list, json_pack("{si ss sf sf sf}", "id", loss->id, "name", loss->name, "seconds",
                                          loss->seconds, "predicted_seconds", loss->predicted,
                                          "limit_seconds", loss->limit));
  }
  return list;
}

static json_t *rate_json(const rf_rate *rate) {
  if (!rate->measured) {
    json_t *json = json_pack("{sf}", "predicted", rate->predicted);
    if (rate->limited) json_object_set_new(json, "limit", json_real(rate->limit));
    return json;
  }
  json_t *json = json_pack("{sf sf sf sb}", "tokens_per_second", rate->tokens, "predicted", rate->predicted,
                           "limit", rate->limit, "full", rate->full);
  if (rate->mfu > 0) json_object_set_new(json, "mfu", json_real(rate->mfu));
  return json;
}

static json_t *pass_json(const rf_diagnosed_pass *pass) {
  json_t *json = json_pack("{ss sf sf sf sf sf sf sf sf sf}", "walk", pass->name, "count", pass->count,
                           "seconds", pass->seconds, "inside_seconds", pass->inside, "gap_seconds",
                           pass->gaps, "predicted_seconds", pass->predicted, "limit_seconds", pass->limit,
                           "least_seconds", pass->fastest, "flops", pass->flops, "bytes", pass->bytes);
  json_object_set_new(json, "bounds", sums_json(pass, pass->bounds.at, pass->bounds.count));
  if (pass->bound_kind.name) json_object_set_new(json, "bound_kind", sum_json(pass, &pass->bound_kind));
  json_object_set_new(json, "phases", sums_json(pass, pass->phases.at, pass->phases.count));
  json_object_set_new(json, "kinds", sums_json(pass, pass->kinds.at, pass->kinds.count));
  if (pass->layers) json_object_set_new(json, "layers", sums_json(pass, pass->layer, pass->layers));
  if (pass->count > 0) json_object_set_new(json, "losses", losses_json(pass));
  const rf_sum all = {.seconds = pass->seconds, .limit = pass->limit, .flops = pass->flops};
  const char *beaten = rf_diagnosed_beaten(pass, &all);
  if (beaten) json_object_set_new(json, "beaten", json_string(beaten));
  if (pass->rate.known) json_object_set_new(json, "rate", rate_json(&pass->rate));
  return json;
}

static json_t *shares_json(const rf_shares *shares) {
  json_t *json = json_object();
  for (int i = 0; i < shares->count; i++)
    json_object_set_new(json, shares->at[i].name, json_real(shares->at[i].part));
  return json;
}

static json_t *threads_json(const rf_diagnosed_threads *threads, bool sentence) {
  json_t *json = json_pack("{si sf sf so}", "steps", threads->steps, "work", threads->work, "phases",
                           threads->phases, "gaps", shares_json(&threads->gaps));
  if (threads->between_part > 0)
    json_object_set_new(json, "between",
                        json_pack("{sf sf sf so}", "seconds", threads->between_seconds, "part",
                                  threads->between_part, "unexplained", threads->between_unexplained,
                                  "phases", shares_json(&threads->between_phases)));
  char *text = sentence ? rf_words_threads(threads) : NULL;
  if (text) json_object_set_new(json, "sentence", json_string(text));
  free(text);
  return json;
}

static json_t *change_json(const rf_change *change) {
  return json_pack("{ss sf sf sf sf sf sf sb sb sb}", "change", change->change, "seconds", change->seconds,
                   "now_seconds", change->now_seconds, "gain", change->gain, "predicted_seconds",
                   change->predicted, "peak_bytes", change->peak_bytes, "more_bytes", change->more_bytes,
                   "approximate", change->approximate, "exact", change->exact, "fits", change->fits);
}

/* The compiler decides what a compiled program allocates. */
static bool is_compiled(const rf_diagnosis *d) {
  for (int i = 0; i < d->passes; i++)
    if (d->pass[i].compiled) return true;
  return false;
}

static json_t *memory_json(const rf_diagnosis *d) {
  const json_t *entry = d->entry, *plan = json_object_get(json_object_get(entry, "plan"), "memory"),
               *measured = json_object_get(entry, "measured"), *start = json_object_get(entry, "start"),
               *arena = json_object_get(measured ? measured : start, "arena_bytes"),
               *outside = json_object_get(start, "outside_arena_bytes");
  json_t *json = json_pack("{sO sO}", "predicted_bytes", json_object_get(plan, "peak_bytes"),
                           "capacity_bytes", json_object_get(plan, "capacity_bytes"));
  /* the limit of the plan: without the reserve of the machine and the margin of --fit */
  if (json)
    json_object_set_new(json, "limit_bytes",
                        json_integer(json_integer_value(json_object_get(plan, "peak_bytes")) +
                                     json_integer_value(json_object_get(plan, "headroom_bytes"))));
  if (!outside) outside = json_object_get(measured, "outside_arena_bytes");
  const json_t *total = json_object_get(outside, "total");
  if (json && json_is_integer(arena) && !is_compiled(d))
    json_object_set(json, "measured_bytes", (json_t *)arena);
  if (json && json_is_integer(total)) json_object_set(json, "outside_bytes", (json_t *)total);
  return json;
}

static json_t *diagnosis_json(const rf_diagnosis *d) {
  json_t *passes = json_array(), *notes = json_array(), *advice = json_array();
  for (int i = 0; i < d->passes; i++) json_array_append_new(passes, pass_json(&d->pass[i]));
  for (int i = 0; i < d->changes; i++) json_array_append_new(advice, change_json(&d->change[i]));
  json_t *summary =
      json_pack("{sb so so}", "measured", d->measured, "memory", memory_json(d), "walks", passes);
  if (d->threads.traced) json_object_set_new(summary, "threads", threads_json(&d->threads, d->most >= 0));
  json_object_set_new(summary, "advice", advice);
  if (d->best) json_object_set(summary, "best", json_array_get(advice, (size_t)(d->best - d->change)));
  if (d->last.seconds > 0)
    json_object_set_new(summary, "steps",
                        json_pack("{sf sf sf sf}", "last", d->last.step, "seconds", d->last.seconds,
                                  "predicted_seconds", d->last.predicted, "tokens_per_second",
                                  d->last.tokens_per_second));
  if (d->bound) {
    char *sentence = rf_words_sentence(d);
    json_object_set_new(summary, "bound", json_string(d->bound));
    if (d->most >= 0) json_object_set_new(summary, "walk", json_string(d->pass[d->most].name));
    json_object_set_new(summary, "sentence", json_string(sentence ? sentence : ""));
    free(sentence);
  }
  rf_words_notes(d, notes);
  json_object_set_new(summary, "notes", notes);
  return summary;
}

json_t *rf_report_summary(const json_t *entry) {
  rf_diagnosis *d = malloc(sizeof *d);
  json_t *summary = d && rf_diagnose(entry, d) ? diagnosis_json(d) : NULL;
  if (d) rf_diagnosis_free(d);
  free(d);
  return summary;
}
