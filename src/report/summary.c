/* summary.c - see summary.h. Seconds are of one step or walk where nothing else is said. */
#define _GNU_SOURCE
#include "report/summary.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/model.h"
#include "report/report.h"
#include "report/thin.h"

enum { GROUPS = 32, LOSSES = 10, OUTLIER = 10, LAYERS = 4096 };
static const char OTHERS[] = "other programs", STOPPED[] = "stopped", BUBBLE[] = "pipeline bubble";
/* From these on a difference is worth a sentence: of the prediction, and of the step. */
static const double MISSED = 1.1, WORTH = 0.02;
/* Below so much of its roofline an op is not held up by the machine. */
static const double NEAR_LIMIT = 0.6;
/* Steps far longer than the median that took more of the time than this make the means useless. */
static const double STOOD = 0.1;
/* From so many times its prediction on something else than its kernels holds a walk up. */
static const double FAR = 2;
/* The fastest calls of a walk that nobody held up take at most so many times the prediction. */
static const double HELD = 1.5;
/* Others that had the cores for so much of its threads' time hold all threads up: siblings wait
 * for one that has none. */
static const double CROWDED = 0.1, HALF = 0.5;

/* ---- sums ------------------------------------------------------------------------------------ */

typedef struct group {
  const char *name;
  double seconds, least, predicted, limit, flops, bytes, calls;
} group;
typedef struct groups {
  group at[GROUPS];
  int count;
} groups;

static double number(const json_t *object, const char *key) {
  return json_number_value(json_object_get(object, key));
}
static const char *text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static group *group_of(groups *g, const char *name) {
  int i = 0;
  while (i < g->count && strcmp(g->at[i].name, name)) i++;
  if (i == GROUPS) return &g->at[GROUPS - 1];
  if (i == g->count) g->at[g->count++] = (group){.name = name};
  return &g->at[i];
}

static int slower_first(const void *a, const void *b) {
  double x = ((const group *)a)->seconds, y = ((const group *)b)->seconds;
  return (x < y) - (x > y);
}

/* `per`: steps or walks; `measured` NULL: as predicted. */
static void add(group *g, const json_t *planned, const json_t *measured, double per) {
  double calls = measured ? number(measured, "calls") / per : number(planned, "calls");
  double predicted =
      calls * number(measured ? measured : planned, measured ? "predicted_seconds" : "seconds");
  g->calls += calls;
  g->predicted += predicted;
  g->limit += calls * number(measured ? measured : planned, "limit_seconds");
  g->seconds += measured ? calls * number(measured, "seconds") : predicted;
  g->least += measured ? calls * number(measured, "least_seconds") : predicted;
  g->flops += calls * number(planned, "hardware_flops");
  g->bytes += calls * number(planned, "bytes");
}

static json_t *group_json(const group *g, double all) {
  return json_pack("{ss sf sf sf sf sf so so sf sf sf}", "name", g->name, "calls", g->calls, "seconds",
                   g->seconds, "least_seconds", g->least, "predicted_seconds", g->predicted, "limit_seconds",
                   g->limit, "missed", g->predicted > 0 ? json_real(g->seconds / g->predicted) : json_null(),
                   "limit_fraction", g->seconds > 0 ? json_real(g->limit / g->seconds) : json_null(), "share",
                   all > 0 ? g->seconds / all : 0, "flops", g->flops, "bytes", g->bytes);
}

static json_t *groups_json(groups *g, double all) {
  json_t *list = json_array();
  qsort(g->at, (size_t)g->count, sizeof *g->at, slower_first);
  for (int i = 0; i < g->count; i++) json_array_append_new(list, group_json(&g->at[i], all));
  return list;
}

static json_t *kinds_of(const json_t *plan) {
  json_t *sums = json_object();
  const json_t *op;
  size_t i;
  json_array_foreach (json_object_get(plan, "ops"), i, op) {
    const char *kind = text_of(op, "kind");
    json_object_set_new(sums, kind,
                        json_real(number(sums, kind) + number(op, "calls") * number(op, "seconds")));
  }
  return sums;
}

/* ---- one walk -------------------------------------------------------------------------------- */

/* The ops that lose most against their limit. */
typedef struct loss {
  const json_t *planned;
  double seconds, predicted, limit;
} loss;

static int loses_more(const void *a, const void *b) {
  double x = ((const loss *)a)->seconds - ((const loss *)a)->limit,
         y = ((const loss *)b)->seconds - ((const loss *)b)->limit;
  return (x < y) - (x > y);
}

static json_t *losses_json(const json_t *plan, const json_t *walk, double per) {
  const json_t *ops = json_object_get(plan, "ops"), *op;
  json_t *list = json_array();
  size_t i, count = json_array_size(json_object_get(walk, "ops"));
  loss *all = calloc(count + 1, sizeof *all);
  json_array_foreach (json_object_get(walk, "ops"), i, op) {
    double calls = number(op, "calls") / per;
    all[i] = (loss){json_array_get(ops, (size_t)number(op, "id")), calls * number(op, "seconds"),
                    calls * number(op, "predicted_seconds"), calls * number(op, "limit_seconds")};
  }
  qsort(all, count, sizeof *all, loses_more);
  for (i = 0; i < count && i < LOSSES; i++)
    json_array_append_new(list,
                          json_pack("{sO ss sf sf sf}", "id", json_object_get(all[i].planned, "id"), "name",
                                    text_of(all[i].planned, "name"), "seconds", all[i].seconds,
                                    "predicted_seconds", all[i].predicted, "limit_seconds", all[i].limit));
  free(all);
  return list;
}

/* What an op's bound is called when it bounds a step. */
static const char *bound_name(const json_t *op) {
  return strcmp(text_of(op, "bound"), "latency") ? text_of(op, "bound") : "launch";
}

static json_t *rate_json(const json_t *plan, double tokens, double wall, double predicted, double limit) {
  const json_t *planned = json_object_get(plan, "rate");
  double step = number(json_object_get(plan, "time"), "seconds"),
         whole = number(planned, "tokens_per_second") * step;
  json_t *rate = json_pack("{sf sf sf}", "tokens_per_second", tokens / wall, "predicted",
                           predicted > 0 ? tokens / predicted : 0, "limit", limit > 0 ? tokens / limit : 0);
  /* Rows that were full are the work that the plan counts. */
  bool full = fabs(tokens - whole) < 1e-6 * whole;
  json_object_set_new(rate, "full", json_boolean(full));
  if (full && number(planned, "mfu") > 0)
    json_object_set_new(rate, "mfu", json_real(number(planned, "mfu") * step / wall));
  return rate;
}

/* Of "step/micro/block.3/mlp/up/fwd" 3; -1: of no layer. */
static int layer_of(const char *name) {
  for (const char *at = strstr(name, "block."); at; at = strstr(at + 1, "block.")) {
    char *end;
    long layer = at[6] >= '0' && at[6] <= '9' ? strtol(at + 6, &end, 10) : -1;
    if (layer >= 0 && layer < LAYERS && *end == '/' && (at == name || at[-1] == '/')) return (int)layer;
  }
  return -1;
}

/* Each layer with its optimizer, in their order; what is in none of them stands last. NULL:
 * there is no layer. */
static json_t *layers_json(const json_t *plan, const json_t *walk, double per, double wall) {
  const json_t *ops = json_object_get(plan, "ops"), *op;
  group *layer = calloc(LAYERS + 1, sizeof *layer); /* the first: of none */
  json_t *list = json_array();
  size_t i;
  if (!layer) return json_decref(list), NULL;
  json_array_foreach (walk ? json_object_get(walk, "ops") : ops, i, op) {
    const json_t *planned = walk ? json_array_get(ops, (size_t)number(op, "id")) : op;
    add(&layer[1 + layer_of(text_of(planned, "name"))], planned, walk ? op : NULL, per);
  }
  for (int k = 0; k < LAYERS; k++) {
    char name[32];
    snprintf(name, sizeof name, "block.%d", k);
    layer[1 + k].name = name;
    if (layer[1 + k].calls > 0 && layer[1 + k].seconds + layer[1 + k].bytes > 0)
      json_array_append_new(list, group_json(&layer[1 + k], wall));
  }
  layer[0].name = "outside of layers";
  if (layer[0].calls > 0 && json_array_size(list)) json_array_append_new(list, group_json(&layer[0], wall));
  free(layer);
  if (json_array_size(list)) return list;
  return json_decref(list), NULL;
}

/* The kind of op that takes most of what bounds the walk, of its ops alone. */
static json_t *bound_kind(const json_t *plan, const json_t *walk, const char *bound, double per,
                          double wall) {
  const json_t *ops = json_object_get(plan, "ops"), *op;
  groups kinds = {0};
  size_t i;
  json_array_foreach (walk ? json_object_get(walk, "ops") : ops, i, op) {
    const json_t *planned = walk ? json_array_get(ops, (size_t)number(op, "id")) : op;
    if (!strcmp(bound_name(planned), bound))
      add(group_of(&kinds, text_of(planned, "kind")), planned, walk ? op : NULL, per);
  }
  qsort(kinds.at, (size_t)kinds.count, sizeof *kinds.at, slower_first);
  return kinds.count ? group_json(&kinds.at[0], wall) : NULL;
}

/* What a plan says of its own time: of transfers what the core waits for. false: it is an older
 * one, whose ops have to do. */
static bool bounds_of_time(groups *bounds, const json_t *time) {
  static const struct {
    const char *key, *name;
  } parts[] = {{"compute_seconds", "compute"},
               {"memory_seconds", "memory"},
               {"network_seconds", "network"},
               {"latency_seconds", "launch"}};
  double bubble = number(time, "bubble_seconds"), whole = number(time, "seconds"), sum = 0;
  for (int i = 0; i < 4; i++) sum += number(time, parts[i].key);
  if (fabs(sum - whole) > 1e-6 * whole) return false;
  /* what ops of a bound take beside each other */
  for (int i = 0; i < bounds->count; i++) bounds->at[i].seconds = 0;
  for (int i = 0; i < 4; i++) {
    double seconds = number(time, parts[i].key) - (i == 2 ? bubble : 0);
    if (!(seconds > 0)) continue;
    group *g = group_of(bounds, parts[i].name);
    g->seconds = g->predicted = seconds;
  }
  if (bubble > 0) *group_of(bounds, BUBBLE) = (group){.name = BUBBLE, .seconds = bubble, .predicted = bubble};
  return true;
}

static json_t *walk_json(const json_t *plan, const json_t *walk) {
  groups kinds = {0}, phases = {0}, bounds = {0};
  const json_t *ops = json_object_get(plan, "ops"), *op;
  double per = walk ? number(walk, "count") : 1, inside = 0, predicted = 0, limit = 0, flops = 0, bytes = 0,
         least = 0;
  size_t i;
  if (per < 1) per = 1;
  json_array_foreach (walk ? json_object_get(walk, "ops") : ops, i, op) {
    const json_t *planned = walk ? json_array_get(ops, (size_t)number(op, "id")) : op,
                 *measured = walk ? op : NULL;
    add(group_of(&kinds, text_of(planned, "kind")), planned, measured, per);
    add(group_of(&phases, text_of(planned, "phase")), planned, measured, per);
    add(group_of(&bounds, bound_name(planned)), planned, measured, per);
  }
  for (int k = 0; k < kinds.count; k++) {
    inside += kinds.at[k].seconds;
    predicted += kinds.at[k].predicted;
    limit += kinds.at[k].limit;
    least += kinds.at[k].least;
    flops += kinds.at[k].flops;
    bytes += kinds.at[k].bytes;
  }
  /* A plan over several chips hides transfers behind ops, and stages of a pipeline wait for each
   * other: its own time counts then. */
  if (!walk && number(json_object_get(plan, "time"), "seconds") > 0) {
    const json_t *time = json_object_get(plan, "time");
    double bubble = number(time, "bubble_seconds"), rest = number(time, "seconds") - predicted - bubble;
    groups *all[] = {&kinds, &phases, &bounds};
    predicted = number(time, "seconds");
    bool said = bounds_of_time(&bounds, time);
    for (int k = 0; k < (said ? 2 : 3); k++) {
      if (bubble > 0)
        *group_of(all[k], BUBBLE) = (group){.name = BUBBLE, .seconds = bubble, .predicted = bubble};
      if (fabs(rest) > 1e-6 * predicted) {
        const char *what = rest > 0 ? "waiting for transfers" : "hidden behind ops";
        *group_of(all[k], what) = (group){.name = what, .seconds = rest, .predicted = rest};
      }
    }
  }
  double wall = walk && number(walk, "seconds") > 0 ? number(walk, "seconds") / per
                : walk                              ? inside
                                                    : predicted;
  double gaps = walk && wall > inside ? wall - inside : 0;
  if (gaps > 0) group_of(&bounds, "between ops")->seconds += gaps;
  const char *name = walk                     ? text_of(walk, "walk")
                     : *text_of(plan, "name") ? text_of(plan, "name")
                                              : text_of(plan, "job");
  json_t *json =
      json_pack("{ss sf sf sf sf sf sf sf sf sf}", "walk", name, "count", walk ? per : 0, "seconds", wall,
                "inside_seconds", walk ? inside : predicted, "gap_seconds", gaps, "predicted_seconds",
                predicted, "limit_seconds", limit, "least_seconds", least, "flops", flops, "bytes", bytes);
  json_object_set_new(json, "bounds", groups_json(&bounds, wall));
  json_t *kind = bounds.count ? bound_kind(plan, walk, bounds.at[0].name, per, wall) : NULL;
  if (kind) json_object_set_new(json, "bound_kind", kind);
  json_object_set_new(json, "phases", groups_json(&phases, wall));
  json_object_set_new(json, "kinds", groups_json(&kinds, wall));
  json_t *layers = layers_json(plan, walk, per, wall);
  if (layers) json_object_set_new(json, "layers", layers);
  if (walk) json_object_set_new(json, "losses", losses_json(plan, walk, per));
  if (!walk && number(json_object_get(plan, "rate"), "tokens_per_second") > 0) {
    double planned = number(json_object_get(plan, "rate"), "tokens_per_second"),
           tokens = planned * number(json_object_get(plan, "time"), "seconds");
    json_t *rate = json_pack("{sf}", "predicted", planned);
    if (limit > 0 && !json_object_get(plan, "serving"))
      json_object_set_new(rate, "limit", json_real(tokens / limit));
    json_object_set_new(json, "rate", rate);
  }
  if (walk && number(walk, "tokens") > 0)
    json_object_set_new(json, "rate", rate_json(plan, number(walk, "tokens") / per, wall, predicted, limit));
  return json;
}

/* ---- the best change ------------------------------------------------------------------------- */

static const json_t *named(const json_t *list, const char *name) {
  const json_t *one;
  size_t i;
  json_array_foreach ((json_t *)list, i, one)
    if (!strcmp(text_of(one, "name"), name)) return one;
  return NULL;
}
static const json_t *kind_of(const json_t *walk, const char *kind) {
  return named(json_object_get(walk, "kinds"), kind);
}

/* Walks of prompts have many sizes: their fastest calls say nothing of the others. */
static bool is_alike(const json_t *walk) { return strcmp(text_of(walk, "walk"), "prefill") != 0; }

/* Walks of training have the rows that were planned; others where all of them were full. */
static bool has_same_rows(const json_t *walk) {
  return !strcmp(text_of(walk, "walk"), "train") ||
         json_is_true(json_object_get(json_object_get(walk, "rate"), "full"));
}

/* What the fastest calls say of a walk whose means are others' doing. Nothing, where its walks
 * had different rows; of calls that were all held up only that. */
typedef enum known { ALONE_UNKNOWN, ALONE_KNOWN, ALONE_HELD, ALONE_MIXED } known;
static known alone_of(const json_t *walk) {
  double least = number(walk, "least_seconds");
  if (!is_alike(walk) || !(number(walk, "count") > 0) || !(least > 0)) return ALONE_UNKNOWN;
  if (!has_same_rows(walk))
    return number(walk, "seconds") > FAR * number(walk, "predicted_seconds") ? ALONE_MIXED : ALONE_UNKNOWN;
  return least > HELD * number(walk, "predicted_seconds") ? ALONE_HELD : ALONE_KNOWN;
}

/* A plan with a change, at this run's own efficiency: each kind of op costs what its fastest
 * calls cost here, times how much more the plan says it would be. What slowed the others, and
 * what lies between ops, stays; `alone`: it is left out. */
static double repriced(const json_t *walk, const json_t *now, const json_t *then, bool alone) {
  bool alike = is_alike(walk) && number(walk, "count") > 0;
  double predicted = number(walk, "predicted_seconds"), seconds = alone ? 0 : number(walk, "gap_seconds");
  double missed = predicted > 0 ? number(walk, alike ? "least_seconds" : "inside_seconds") / predicted : 1;
  const char *kind;
  json_t *value;
  json_object_foreach ((json_t *)then, kind, value) {
    double before = number(now, kind), after = json_number_value(value);
    const json_t *here = kind_of(walk, kind);
    double took = number(here, "seconds"), least = alike ? number(here, "least_seconds") : took;
    seconds += before > 0 ? least * after / before + (alone ? 0 : took - least) : missed * after;
  }
  return seconds;
}

/* How many times its prediction a walk takes alone, by one whose fastest calls are known; 0: of
 * none they are. */
static double pace_alone(const json_t *walks) {
  const json_t *walk;
  size_t i;
  json_array_foreach ((json_t *)walks, i, walk)
    if (alone_of(walk) == ALONE_KNOWN && number(walk, "predicted_seconds") > 0)
      return number(walk, "least_seconds") / number(walk, "predicted_seconds");
  return 0;
}

static double sum_of(const json_t *kinds) {
  const char *kind;
  json_t *value;
  double sum = 0;
  json_object_foreach ((json_t *)kinds, kind, value) sum += json_number_value(value);
  return sum;
}

static json_t *advice_row(const json_t *entry, const json_t *walks, const json_t *row, bool quiet) {
  const json_t *plans = json_object_get(row, "plans"), *walk, *plan = json_object_get(entry, "plan");
  bool trains = !strcmp(text_of(json_array_get(walks, 0), "walk"), "train");
  double now = 0, then = 0, planned = number(json_object_get(plan, "time"), "seconds"),
         peak = number(json_object_get(plan, "memory"), "peak_bytes");
  double pace = quiet ? pace_alone(walks) : 0;
  size_t i;
  json_array_foreach ((json_t *)walks, i, walk) {
    bool alone = quiet && alone_of(walk) == ALONE_KNOWN;
    double count = number(walk, "count") > 0 ? number(walk, "count") : 1;
    bool paced = pace > 0 && !alone; /* its own time is others' doing */
    double before = count * (paced ? pace * number(walk, "predicted_seconds")
                                   : number(walk, alone ? "least_seconds" : "seconds"));
    const json_t *kinds = json_object_get(json_object_get(plans, text_of(walk, "walk")), "kinds");
    json_t *own =
        json_object_get(json_object_get(json_object_get(row, "now"), text_of(walk, "walk")), "kinds");
    own = own ? json_incref(own) : kinds_of(rf_report_plan_of(entry, text_of(walk, "walk")));
    now += before;
    /* of training a step is told of, without its validations */
    if (trains && strcmp(text_of(walk, "walk"), "train")) {
      now -= before;
      json_decref(own);
      continue;
    }
    if (kinds && paced) then += sum_of(own) > 0 ? before * sum_of(kinds) / sum_of(own) : before;
    else if (kinds) then += count * repriced(walk, own, kinds, alone);
    else if (!plans && planned > 0 && i == 0)
      then += before * number(row, "seconds") / planned; /* the plan's own advice: its sum alone is known */
    else then += before;
    json_decref(own);
  }
  if (!json_array_size(walks)) {
    now = planned;
    then = number(row, "seconds");
  }
  double units = number(json_array_get(walks, 0), "count");
  if (units < 1 || (!trains && json_array_size(walks) > 1)) units = 1;
  return json_pack("{ss sf sf sf sf sf sf sb sb sb}", "change", text_of(row, "change"), "seconds",
                   then / units, "now_seconds", now / units, "gain", now > 0 ? 1 - then / now : 0,
                   "predicted_seconds", number(row, "seconds"), "peak_bytes", number(row, "peak_bytes"),
                   "more_bytes", number(row, "peak_bytes") - peak, "approximate",
                   json_is_true(json_object_get(row, "approximate")), "exact",
                   json_is_true(json_object_get(row, "exact")), "fits",
                   !json_is_false(json_object_get(row, "fits")));
}

static int gains_more(const void *a, const void *b) {
  double x = number(*(json_t *const *)a, "gain"), y = number(*(json_t *const *)b, "gain");
  return (x < y) - (x > y);
}

/* `quiet`: as the run would be without what others took of it. */
static json_t *advice_json(const json_t *entry, const json_t *walks, bool quiet) {
  const json_t *rows = json_object_get(entry, "advice"), *row;
  json_t *sorted[64], *list = json_array();
  size_t i, count = 0;
  if (!rows) rows = json_object_get(json_object_get(entry, "measured"), "advice");
  if (!rows) rows = json_object_get(json_object_get(entry, "plan"), "advice");
  json_array_foreach ((json_t *)rows, i, row)
    if (count < 64 && json_is_object(row)) sorted[count++] = advice_row(entry, walks, row, quiet);
  qsort(sorted, count, sizeof *sorted, gains_more);
  for (i = 0; i < count; i++) json_array_append_new(list, sorted[i]);
  return list;
}

/* Threads that wait for each other or for a core gain nothing by more of them. */
static bool is_crowded(const char *bound) {
  return !strcmp(bound, "wait") || !strcmp(bound, "other threads") || !strcmp(bound, OTHERS);
}
static bool is_others(const char *bound) { return !strcmp(bound, OTHERS) || !strcmp(bound, "other threads"); }
static bool is_of_threads(const json_t *row) { return !strncmp(text_of(row, "change"), "threads=", 8); }

static const json_t *best_of(const json_t *advice, bool crowded) {
  const json_t *row;
  size_t i;
  json_array_foreach ((json_t *)advice, i, row)
    if (json_is_true(json_object_get(row, "fits")) && !(crowded && is_of_threads(row)) &&
        number(row, "gain") > WORTH)
      return row;
  return NULL;
}

/* ---- sentences ------------------------------------------------------------------------------- */

static char *join(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *join(const char *format, ...) {
  char *text = NULL;
  va_list values;
  va_start(values, format);
  int n = vasprintf(&text, format, values);
  va_end(values);
  return n < 0 ? NULL : text;
}
static void say(json_t *list, char *text) {
  if (text) json_array_append_new(list, json_string(text));
  free(text);
}

/* The walk that is told of: training's is its step, however long its validations took. */
static const json_t *walk_most(const json_t *walks) {
  const json_t *walk, *most = json_array_get(walks, 0);
  size_t i;
  json_array_foreach ((json_t *)walks, i, walk)
    if (!strcmp(text_of(walk, "walk"), "train")) return walk;
  json_array_foreach ((json_t *)walks, i, walk)
    if (number(walk, "count") * number(walk, "seconds") > number(most, "count") * number(most, "seconds"))
      most = walk;
  return most;
}

static const char *subject(const char *walk) {
  static const struct {
    const char *walk, *subject;
  } names[] = {{"train", "This step"},         {"decode", "A decode walk"},   {"prefill", "A prefill walk"},
               {"score", "A walk of scoring"}, {"generate", "A decode walk"}, {"serve", "A decode walk"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(names[i].walk, walk)) return names[i].subject;
  return "This walk";
}

static char *bound_sentence(const json_t *walk, const char *of, bool measured) {
  const json_t *bound = json_array_get(json_object_get(walk, "bounds"), 0),
               *kind = json_object_get(walk, "bound_kind");
  char a[32], b[32], c[32];
  rf_text_seconds(number(walk, "seconds"), a);
  rf_text_seconds(number(kind, "seconds"), b);
  double bubble = number(named(json_object_get(walk, "bounds"), BUBBLE), "seconds");
  char idle[96] = "";
  if (bubble > 0.1 * number(walk, "seconds"))
    snprintf(idle, sizeof idle, " Its stages stand idle for %s of it, %.0f %%: the pipeline's bubble.",
             rf_text_seconds(bubble, c), 100 * bubble / number(walk, "seconds"));
  if (!measured && !strcmp(text_of(bound, "name"), "network"))
    return join("%s is predicted to be bound by network: it waits for transfers for %s of %s.%s", of,
                rf_text_seconds(number(bound, "seconds"), b), a, idle);
  if (!measured && !kind)
    return join("%s is predicted to be bound by %s.%s", of, text_of(bound, "name"), idle);
  if (!measured)
    return join("%s is predicted to be bound by %s: %s takes %s of %s, of which its limit is %.0f %%.%s", of,
                text_of(bound, "name"), text_of(kind, "name"), b, a, 100 * number(kind, "limit_fraction"),
                idle);
  double missed =
      number(walk, "predicted_seconds") > 0 ? number(walk, "seconds") / number(walk, "predicted_seconds") : 1;
  char times[64] = "";
  if (missed > MISSED || missed < 1 / MISSED)
    snprintf(times, sizeof times,
             missed > 3 ? " It takes %.*f times as long as predicted."
                        : " It takes %.*f x the predicted time.",
             missed < 10 ? 2 : 0, missed);
  if (!strcmp(text_of(bound, "name"), "between ops"))
    return join("%s is bound by what lies between its ops: %s of %s.%s", of,
                rf_text_seconds(number(bound, "seconds"), b), a, times);
  double reached = number(kind, "limit_fraction"), least = number(kind, "least_seconds");
  char part[32] = "less than 1";
  if (reached >= 0.01) snprintf(part, sizeof part, "%.0f", 100 * reached);
  /* Its fastest calls are far from the limit too, and not from the prediction: then no
   * interference holds it up. */
  bool kernels = is_alike(walk) && least > 0 && number(kind, "limit_seconds") / least < NEAR_LIMIT &&
                 least < FAR * number(kind, "predicted_seconds");
  return join("%s is bound by %s: %.0f %% of its %s, most in %s (%s), which runs at %s %% of its limit%s.%s",
              of, text_of(bound, "name"), 100 * number(bound, "share"), a, text_of(kind, "name"), b, part,
              kernels ? ": its kernels bind before the machine does" : "", times);
}

/* Of a walk that others held up: what its fastest calls say of it. */
static char *alone_sentence(const json_t *walk) {
  const json_t *kind = json_array_get(json_object_get(walk, "kinds"), 0), *one;
  char a[32], b[32], c[32];
  size_t i;
  json_array_foreach (json_object_get(walk, "kinds"), i, one)
    if (number(one, "least_seconds") > number(kind, "least_seconds")) kind = one;
  double least = number(kind, "least_seconds");
  return join("Alone it would take about %s, as its fastest calls did (predicted %s): %s in %s, at %.0f %% "
              "of its limit.",
              rf_text_seconds(number(walk, "least_seconds"), a),
              rf_text_seconds(number(walk, "predicted_seconds"), b), rf_text_seconds(least, c),
              text_of(kind, "name"), least > 0 ? 100 * number(kind, "limit_seconds") / least : 0);
}

/* Of one whose fastest calls were held up, too. */
static char *held_sentence(const json_t *walk) {
  char a[32], b[32];
  if (alone_of(walk) == ALONE_MIXED)
    return join("It takes %s, predicted %s: these figures tell nothing of what it would take alone.",
                rf_text_seconds(number(walk, "seconds"), a),
                rf_text_seconds(number(walk, "predicted_seconds"), b));
  return join("Even its fastest calls were held up (%s in all, predicted %s): these figures tell nothing of "
              "what it would take alone.",
              rf_text_seconds(number(walk, "least_seconds"), a),
              rf_text_seconds(number(walk, "predicted_seconds"), b));
}

/* `short_of_time`: the run itself priced them and stopped early. */
static char *change_sentence(const json_t *best, size_t tried, bool whole, bool crowded, bool short_of_time) {
  char a[32], b[32], m[32];
  if (!tried) return NULL;
  if (!best)
    return join("No single change of the %zu that were priced%s gains more than %.0f %% and fits%s.", tried,
                crowded ? ", more threads aside," : "", 100 * WORTH,
                short_of_time ? "; `rafter report` takes the time to price all" : "");
  double more = number(best, "more_bytes");
  char *memory = fabs(more) < 1
                     ? join("the same memory")
                     : join("%s %s memory", rf_text_bytes(fabs(more), m), more > 0 ? "more" : "less");
  char *text = join("The best single change is %s: %s instead of %s%s (%.0f %% less), with %s%s.",
                    text_of(best, "change"), rf_text_seconds(number(best, "seconds"), a),
                    rf_text_seconds(number(best, "now_seconds"), b), whole ? " in all" : "",
                    100 * number(best, "gain"), memory ? memory : "?",
                    json_is_true(json_object_get(best, "approximate")) ? "; it changes results" : "");
  free(memory);
  return text;
}

/* Why measured and predicted differ, as far as the numbers say. */
static void explain(json_t *notes, const json_t *entry, const json_t *walk, double stopped) {
  const json_t *kind;
  char a[32], b[32];
  double wall = number(walk, "seconds"), inside = number(walk, "inside_seconds"),
         predicted = number(walk, "predicted_seconds");
  double least = number(walk, "least_seconds"), gaps = number(walk, "gap_seconds");
  size_t i;
  if (predicted <= 0 || wall <= 0) return;
  json_array_foreach (json_object_get(walk, "kinds"), i, kind) {
    double here = number(kind, "seconds"), planned = number(kind, "predicted_seconds"),
           ratio = planned > 0 ? here / planned : 1;
    if (stopped > WORTH || fabs(here - planned) < WORTH * wall || (ratio < MISSED && ratio > 1 / MISSED) ||
        json_array_size(notes) >= 4)
      continue;
    say(notes, join("%s takes %s instead of the predicted %s (%.*f x)", text_of(kind, "name"),
                    rf_text_seconds(here, a), rf_text_seconds(planned, b), ratio < 10 ? 2 : 0, ratio));
  }
  const json_t *most = json_array_get(json_object_get(walk, "losses"), 0),
               *planned = rf_report_plan_of(entry, text_of(walk, "walk"));
  const char *kernel =
      text_of(json_array_get(json_object_get(planned, "ops"), (size_t)number(most, "id")), "kernel");
  if (most && !strncmp(kernel, "reference_", 10))
    say(notes, join("what takes most beyond its limit runs on a reference kernel, slow and on one thread "
                    "(%s), which is priced like a fast one",
                    kernel));
  if (gaps > WORTH * wall)
    say(notes, join("%s (%.1f %%) lie between ops", rf_text_seconds(gaps, a), 100 * gaps / wall));
  if (is_alike(walk) && has_same_rows(walk) && inside > MISSED * predicted && least < MISSED * predicted)
    say(notes, join("the fastest calls take what was predicted (%s): the rest is interference, by others on "
                    "this machine or by cold caches",
                    rf_text_seconds(least, a)));
  else if (inside > MISSED * predicted || inside < predicted / MISSED) {
    const char *source = text_of(json_object_get(json_object_get(entry, "plan"), "machine"), "source");
    if (!strcmp(source, "detected") || !strcmp(source, "data-sheet"))
      say(notes, join("the machine's figures are %s, not measured: `rafter calibrate` measures them",
                      !strcmp(source, "detected") ? "a general sheet's" : "a data sheet's"));
  }
}

/* ---- what threads did ------------------------------------------------------------------------ */

/* Of a traced run the time between its recorded walks: seconds a step, its part of all the time,
 * which phases it went into, and what of all threads' time in walks and between them nothing
 * explains. NULL: it lacks that, or there is none. */
static json_t *between_json(const json_t *entry) {
  const json_t *header = json_object_get(json_object_get(entry, "trace"), "header"),
               *names = json_object_get(header, "gaps"), *step, *list, *value, *name;
  double all = 0, between = 0, unexplained = 0, count = 0;
  json_t *phases = json_object();
  size_t s, side, g;
  const char *phase;
  json_t *seconds;
  json_array_foreach (json_object_get(header, "steps"), s, step) {
    const json_t *after = json_object_get(step, "after"), *went[] = {step, after};
    if (!after) continue;
    all += number(after, "end") - number(step, "begin");
    between += number(after, "end") - number(step, "end");
    count++;
    json_object_foreach (json_object_get(after, "by_phase"), phase, seconds)
      json_object_set_new(phases, phase, json_real(number(phases, phase) + json_number_value(seconds)));
    for (int w = 0; w < 2; w++)
      json_array_foreach (json_object_get(went[w], "gaps"), side, list)
        json_array_foreach ((json_t *)names, g, name) {
          value = json_array_get(list, g);
          if (json_is_string(name) && !strcmp(json_string_value(name), "unexplained"))
            unexplained += json_number_value(value);
        }
  }
  if (!(between > 0)) return json_decref(phases), NULL;
  json_object_foreach (phases, phase, seconds)
    json_real_set(seconds, json_number_value(seconds) / (1e-9 * all));
  return json_pack("{sf sf sf so}", "seconds", 1e-9 * between / count, "part", between / all, "unexplained",
                   unexplained / (1e-9 * all * number(header, "threads")), "phases", phases);
}

/* Of a traced run: parts of all threads' time in the recorded walks, which sum to 1; gaps as
 * docs/formats.md, "A trace", tells them. NULL: not traced. */
static json_t *threads_json(const json_t *entry) {
  const json_t *header = json_object_get(json_object_get(entry, "trace"), "header"),
               *names = json_object_get(header, "gaps"), *step, *list, *value;
  double all = 0, work = 0, phases = 0, gaps[GROUPS] = {0}, threads = number(header, "threads");
  size_t s, side, g, steps = 0;
  json_array_foreach (json_object_get(header, "steps"), s, step) {
    if (!json_is_true(json_object_get(step, "whole"))) continue;
    all += 1e-9 * (number(step, "end") - number(step, "begin")) * threads;
    steps++;
    work += number(step, "work");
    phases += number(step, "phases");
    json_array_foreach (json_object_get(step, "gaps"), side, list)
      json_array_foreach (list, g, value)
        if (g < GROUPS) gaps[g] += json_number_value(value);
  }
  if (all <= 0) return NULL;
  json_t *parts = json_object();
  json_array_foreach ((json_t *)names, g, value)
    if (g < GROUPS && gaps[g] > 0 && json_is_string(value))
      json_object_set_new(parts, json_string_value(value), json_real(gaps[g] / all));
  json_t *between = between_json(entry),
         *json = json_pack("{sI sf sf so}", "steps", (json_int_t)steps, "work", work / all, "phases",
                           phases / all, "gaps", parts);
  if (between) json_object_set_new(json, "between", between);
  return json;
}

static const char *largest_gap(const json_t *threads, double *part) {
  const char *name, *most = NULL;
  json_t *value;
  *part = 0;
  json_object_foreach (json_object_get(threads, "gaps"), name, value)
    if (json_number_value(value) > *part) {
      *part = json_number_value(value);
      most = name;
    }
  return most;
}

static void explain_threads(json_t *threads) {
  char *text = join("of the recorded steps threads spend %.0f %% in ops", 100 * number(threads, "work")),
       *longer;
  const char *name;
  json_t *value;
  json_object_foreach (json_object_get(threads, "gaps"), name, value) {
    if (json_number_value(value) < 0.01) continue;
    longer = join("%s, %s %.0f %%", text ? text : "", name, 100 * json_number_value(value));
    free(text);
    text = longer;
  }
  if (number(threads, "phases") >= 0.01) {
    longer = join("%s, %.0f %% in phases beside ops", text ? text : "", 100 * number(threads, "phases"));
    free(text);
    text = longer;
  }
  const json_t *between = json_object_get(threads, "between");
  if (number(between, "part") >= 0.01) {
    char a[32];
    longer = join("%s. Between steps lie %s each, %.0f %% of all time", text ? text : "",
                  rf_text_seconds(number(between, "seconds"), a), 100 * number(between, "part"));
    free(text);
    text = longer;
    const char *sign = ":";
    json_object_foreach (json_object_get(between, "phases"), name, value) {
      if (json_number_value(value) < 0.005) continue;
      longer = join("%s%s %.0f %% %s", text ? text : "", sign, 100 * json_number_value(value), name);
      free(text);
      text = longer;
      sign = ",";
    }
  }
  if (text) json_object_set_new(threads, "sentence", json_string(text));
  free(text);
}

/* Time in ops counts as far as threads worked in it; the rest was measured for what it is. NULL:
 * an op's own bound holds. */
static const char *bound_by_gap(const json_t *threads, const json_t *walk, double *part) {
  const char *gap = largest_gap(threads, part);
  double bound = number(json_array_get(json_object_get(walk, "bounds"), 0), "share");
  return gap && *part > bound * number(threads, "work") ? gap : NULL;
}

/* ---- others on the machine ------------------------------------------------------------------- */

/* The least part of its threads' time in walks in which the run was ready and had no core: what
 * was lost before, between and after walks is unknown, so all of that time counts as lost first. */
double rf_report_others_part(const json_t *entry) {
  const json_t *others = json_object_get(json_object_get(entry, "measured"), "others"), *walk;
  double walked = 0, threads = number(others, "threads");
  size_t i;
  json_array_foreach (json_object_get(json_object_get(entry, "measured"), "walks"), i, walk)
    walked += number(walk, "seconds");
  double outside = fmax(number(others, "seconds") - walked, 0) * threads, all = walked * threads;
  double part = all > 0 ? (number(others, "delayed_seconds") - outside) / all : 0;
  return part < 0 ? 0 : part > 1 ? 1 : part;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static json_t *memory_json(const json_t *entry) {
  const json_t *plan = json_object_get(json_object_get(entry, "plan"), "memory"),
               *measured = json_object_get(entry, "measured");
  const json_t *outside = json_object_get(json_object_get(entry, "start"), "outside_arena_bytes");
  json_t *json = json_pack("{sO sO}", "predicted_bytes", json_object_get(plan, "peak_bytes"), "limit_bytes",
                           json_object_get(plan, "capacity_bytes"));
  const json_t *arena = json_object_get(measured ? measured : json_object_get(entry, "start"), "arena_bytes");
  if (json && json_is_integer(arena)) json_object_set(json, "measured_bytes", (json_t *)arena);
  if (!outside) outside = json_object_get(measured, "outside_arena_bytes");
  if (json && json_is_integer(json_object_get(outside, "total")))
    json_object_set(json, "outside_bytes", json_object_get(outside, "total"));
  return json;
}

/* What bounds the walk, in a word and a sentence; other programs that only slowed it are a note. */
static char *bound_of(const json_t *entry, const json_t *walk, const json_t *threads, json_t *notes,
                      const char **word) {
  const json_t *first = json_array_get(json_object_get(walk, "bounds"), 0);
  const char *of = subject(text_of(walk, "walk"));
  bool measured = json_object_get(entry, "measured") && number(walk, "count") > 0;
  double part = 0, others = measured ? rf_report_others_part(entry) : 0;
  const char *gap = bound_by_gap(threads, walk, &part);
  bool taken = others > (1 - others) * number(first, "share");
  double threads_here = number(json_object_get(json_object_get(entry, "measured"), "others"), "threads");
  if (others > CROWDED && others * threads_here > HALF &&
      number(walk, "seconds") > FAR * number(walk, "predicted_seconds"))
    taken = true;
  /* A trace has measured what the others took of its steps; but a thread that has no core lets
   * its siblings wait for it. */
  if (threads) taken = gap && is_crowded(gap) && others >= part / 2;
  if (taken) gap = NULL;
  known alone = taken || (gap && is_others(gap)) ? alone_of(walk) : ALONE_UNKNOWN;
  char *inside = alone == ALONE_KNOWN     ? alone_sentence(walk)
                 : alone != ALONE_UNKNOWN ? held_sentence(walk)
                                          : bound_sentence(walk, gap || taken ? "it" : of, measured),
       *text;
  *word = taken ? OTHERS : gap ? gap : text_of(first, "name");
  if (others > WORTH && !taken) {
    char *note =
        join("for at least %.0f %% of its walks threads were ready and had no core: other programs had it",
             100 * others);
    if (note) json_array_insert_new(notes, 0, json_string(note));
    free(note);
  }
  if (!gap && !taken) return inside;
  if (gap && !strcmp(gap, STOPPED)) {
    free(inside);
    return join("The process was stopped for %.0f %% of the recorded time, and what was measured tells "
                "little: run it again.",
                100 * part);
  }
  if (gap)
    text = join("%s is bound by %s: %.0f %% of its threads' time, as recorded. %s%s", of, gap, 100 * part,
                alone != ALONE_UNKNOWN ? "" : "Beside that ", inside ? inside : "");
  else
    text = join("%s is bound by %s: for at least %.0f %% of its walks threads were ready and had no core; "
                "run it alone before anything else. %s%s",
                of, OTHERS, 100 * others, alone != ALONE_UNKNOWN ? "" : "Beside that ", inside ? inside : "");
  free(inside);
  return text;
}

/* A run that left steps and no report: it still runs, or ended without a word. NULL: it is no
 * such run. */
static json_t *steps_json(const json_t *entry) {
  const json_t *rows = json_object_get(entry, "metrics"),
               *last = json_array_get(rows, json_array_size(rows) - 1);
  json_t *spread = json_object_get(entry, "measured") || !last ? NULL : rf_report_step_seconds(entry),
         *json = NULL;
  double step = number(last, "step"), median = number(spread, "median"),
         tokens = step > 0 ? number(last, "tokens") / step : 0;
  if (median > 0 && step > 0)
    json = json_pack("{sf sf sf sf}", "last", step, "seconds", median, "predicted_seconds",
                     number(last, "predicted_seconds"), "tokens_per_second", tokens / median);
  json_decref(spread);
  return json;
}

/* A few steps that took far longer than the others: means tell little then. Of all time the part
 * that they took. */
typedef struct outliers {
  double count, steps, part, median;
} outliers;

static outliers outliers_of(const json_t *entry, const json_t *walk) {
  const json_t *rows = json_object_get(entry, "metrics"), *row;
  outliers found = {0};
  double all = 0, far = 0;
  size_t i;
  if (strcmp(text_of(walk, "walk"), "train")) return found;
  json_t *spread = rf_report_step_seconds(entry);
  found.median = number(spread, "median");
  json_decref(spread);
  json_array_foreach ((json_t *)rows, i, row) {
    all += number(row, "seconds");
    found.steps++;
    if (number(row, "seconds") > OUTLIER * found.median && i) {
      far += number(row, "seconds");
      found.count++;
    }
  }
  if (found.median > 0 && all > 0) found.part = far / all;
  return found;
}

static void explain_outliers(json_t *notes, outliers found) {
  char a[32];
  if (found.part <= WORTH) return;
  say(notes, join("%.0f of %.0f steps took more than %d x the median (%s), %.0f %% of the time of all: means "
                  "are of all, too",
                  found.count, found.steps, OUTLIER, rf_text_seconds(found.median, a), 100 * found.part));
}

/* Steps that took most of the time, and why nothing else is told. */
static char *outliers_sentence(outliers found, const json_t *walk) {
  char a[32], times[64] = "";
  double predicted = number(walk, "predicted_seconds"), missed = predicted > 0 ? found.median / predicted : 1;
  if (missed > MISSED || missed < 1 / MISSED)
    snprintf(times, sizeof times, ", %.*f times what was predicted", missed < 10 ? 2 : 0, missed);
  return join("%.0f of %.0f steps took %.0f %% of the time: the process was stopped then, or had no core, so "
              "that the means of ops tell little: run it "
              "again. Half of the steps took less than %s%s.",
              found.count, found.steps, 100 * found.part, rf_text_seconds(found.median, a), times);
}

static char *steps_sentence(const json_t *steps) {
  char a[32], b[32], c[32];
  double predicted = number(steps, "predicted_seconds"),
         times = predicted > 0 ? number(steps, "seconds") / predicted : 0;
  return join("This run left no report: it still runs, or ended without a word after step %.0f. Half of its "
              "steps took less than %s, predicted were "
              "%s (%.*f x): %s tokens a second. ",
              number(steps, "last"), rf_text_seconds(number(steps, "seconds"), a),
              rf_text_seconds(predicted, b), times < 10 ? 2 : 0, times,
              rf_text_count(number(steps, "tokens_per_second"), c));
}

/* Of a plan that has not run and does not fit: that, before anything else. NULL: it fits, or
 * ran. */
static char *misfit_sentence(const json_t *entry, const json_t *plan) {
  char a[32], b[32];
  const json_t *memory = json_object_get(plan, "memory");
  if (json_object_get(entry, "measured") || !json_is_false(json_object_get(memory, "fits"))) return NULL;
  return join("This does not fit %s: %s more than it has room for, %s. ",
              text_of(json_object_get(plan, "machine"), "name"),
              rf_text_bytes(-number(memory, "headroom_bytes"), a),
              rf_text_bytes(number(memory, "peak_bytes") + number(memory, "headroom_bytes"), b));
}

/* Of a plan that lists no ops: what its own sums say. */
static void plan_alone(json_t *summary, const json_t *plan, const json_t *advice, const char *misfit) {
  char a[32], b[32];
  const char *bound = text_of(json_object_get(plan, "time"), "bound");
  const json_t *best = best_of(advice, false);
  double rate = number(json_object_get(plan, "rate"), "tokens_per_second");
  char *change = change_sentence(best, json_array_size(advice), false, false, false);
  const char *of = subject(text_of(plan, "job"));
  char *sentence = join("%s%s is predicted to be bound by %s and to take %s%s%s%s.%s%s", misfit ? misfit : "",
                        strcmp(of, "This walk") ? of : "This plan", bound,
                        rf_text_seconds(number(json_object_get(plan, "time"), "seconds"), a),
                        rate > 0 ? ": " : "", rate > 0 ? rf_text_count(rate, b) : "",
                        rate > 0 ? " tokens a second" : "", change ? " " : "", change ? change : "");
  if (best) json_object_set(summary, "best", (json_t *)best);
  json_object_set_new(summary, "bound", json_string(bound));
  json_object_set_new(summary, "sentence", json_string(sentence ? sentence : ""));
  free(change);
  free(sentence);
}

json_t *rf_report_summary(const json_t *entry) {
  const json_t *plan = json_object_get(entry, "plan"), *walk;
  json_t *walks = json_array(), *notes = json_array();
  size_t i;
  json_array_foreach (json_object_get(json_object_get(entry, "measured"), "walks"), i, walk) {
    const json_t *planned = rf_report_plan_of(entry, text_of(walk, "walk"));
    if (planned && json_object_get(planned, "ops")) json_array_append_new(walks, walk_json(planned, walk));
  }
  bool measured = json_array_size(walks) > 0;
  if (!measured && json_object_get(plan, "ops")) json_array_append_new(walks, walk_json(plan, NULL));
  const json_t *most = walk_most(walks);
  json_t *advice = NULL, *threads = threads_json(entry);
  json_t *summary =
      json_pack("{sb so so}", "measured", measured, "memory", memory_json(entry), "walks", walks);
  if (threads) json_object_set_new(summary, "threads", threads);
  char *misfit = misfit_sentence(entry, plan);
  if (most) {
    const char *word = NULL;
    char a[32], b[32];
    outliers far = outliers_of(entry, most);
    bool stood = far.part > STOOD;
    if (measured)
      explain(notes, entry, most, stood ? far.part : number(json_object_get(threads, "gaps"), STOPPED));
    if (measured && json_is_false(json_object_get(entry, "replans")))
      say(notes,
          join("no %schange was priced now: this program plans the run otherwise here than it was planned",
               json_array_size(json_object_get(json_object_get(entry, "measured"), "advice")) ? "further "
                                                                                              : ""));
    if (measured && json_object_get(entry, "replanned_seconds"))
      say(notes,
          join("the machine was calibrated anew since this ran: its own plan would take %s now, not %s",
               rf_text_seconds(number(entry, "replanned_seconds"), a),
               rf_text_seconds(number(json_object_get(plan, "time"), "seconds"), b)));
    if (!stood) explain_outliers(notes, far);
    char *bound = bound_of(entry, most, threads, notes, &word);
    if (measured && stood && strcmp(word, OTHERS)) {
      free(bound);
      bound = outliers_sentence(far, most);
      word = STOPPED;
    }
    /* prices of what tells nothing */
    bool useless = !strcmp(word, STOPPED) || (measured && is_others(word) && alone_of(most) >= ALONE_HELD);
    bool crowded = is_crowded(word);
    json_object_set_new(summary, "advice", advice = advice_json(entry, walks, measured && is_others(word)));
    json_t *steps = steps_json(entry);
    /* prices are of a prediction, which such a run may be far from */
    const json_t *best = steps || useless ? NULL : best_of(advice, crowded);
    if (best) json_object_set(summary, "best", (json_t *)best);
    char *change = steps || useless
                       ? NULL
                       : change_sentence(best, json_array_size(advice),
                                         json_array_size(walks) > 1 && strcmp(text_of(most, "walk"), "train"),
                                         crowded, measured && !json_object_get(entry, "advice"));
    char *before = steps ? steps_sentence(steps) : NULL;
    char *sentence = join("%s%s%s%s%s", misfit ? misfit : "", before ? before : "", bound ? bound : "",
                          change ? " " : "", change ? change : "");
    if (steps) json_object_set_new(summary, "steps", steps);
    if (threads) explain_threads(threads);
    json_object_set_new(summary, "bound", json_string(word));
    json_object_set_new(summary, "walk", json_string(text_of(most, "walk")));
    json_object_set_new(summary, "sentence", json_string(sentence ? sentence : ""));
    free(before);
    free(bound);
    free(change);
    free(sentence);
  } else {
    json_object_set_new(summary, "advice", advice = advice_json(entry, walks, false));
    if (number(json_object_get(plan, "time"), "seconds") > 0) plan_alone(summary, plan, advice, misfit);
  }
  free(misfit);
  json_object_set_new(summary, "notes", notes);
  return summary;
}
