/* serve.c - `rafter plan --job serve`: simulates requests that arrive over time, at several rates,
 * and searches for the highest rate that the plan sustains. */
#include "advise/jobs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The search keeps a rate that the plan sustains, and a higher rate that the plan does not sustain.
 * The search ends when the two rates differ by less than the factor NEAR. FACTORS is the maximum
 * number of doublings or halvings of a rate. */
static const double NEAR = 1.05;
enum { FACTORS = 20 };

/* One simulation. */
typedef struct served_rate {
  double rate; /* requests per second */
  rf_serve_stats served;
} served_rate;

typedef struct service {
  rafter_plan *p;
  const rf_options *o;
  rf_job_lengths l;
  rf_settings *prefill_on; /* machine of --prefill-on; NULL: there is only one machine */
  double link_bps;
  int64_t copies;         /* number of copies of the model, each on its own chips */
  int64_t requests, each; /* each: number of requests of one copy */
  rf_arrival like, *list; /* list: array of `each` requests of one copy */
  served_rate *row;       /* the simulated rates of --rate or of --arrivals */
  int rows;
  served_rate
      best; /* the highest rate at which the queue does not grow; if it grows at all rates, the lowest rate */
} service;

static rf_status simulate(const service *s, const rf_arrival *list, int64_t count, rf_serve_stats *served,
                          rf_error *error) {
  rf_infer_settings g = rf_job_infer_settings(s->p);
  g.step_growth = rf_options_float_or(s->o, "step-growth", 0);
  if (s->prefill_on && s->copies > 1)
    return RF_FAIL(
        error, RAFTER_INVALID, "plan one copy of the model",
        "--prefill-on needs a single copy of the model (--mesh: expected only tensor, got %lld copies)",
        (long long)s->copies);
  if (!s->prefill_on) return rf_simulate(&g, list, count, NULL, NULL, served, error);
  rf_infer_settings first = {.model = s->prefill_on->model, .plan = s->prefill_on->plan, .choice = g.choice};
  first.plan.build.seq = g.plan.build.seq;
  return rf_simulate_apart(&first, &g, s->link_bps, list, count, served, error);
}

/* ---- rates ----------------------------------------------------------------------------------- */

static rf_status simulate_rate(service *s, double rate, served_rate *out, rf_error *error) {
  uint64_t seed = (uint64_t)rf_options_int_or(s->o, "seed", 0);
  out->rate = rate;
  rf_arrivals_poisson(s->like, rate / (double)s->copies, seed, s->list, s->each);
  RF_TRY(simulate(s, s->list, s->each, &out->served, error));
  rf_job_add_copies(&out->served, s->requests, s->each);
  return RAFTER_OK;
}

/* The copies of the model take the requests of a file in turn, so simulating one copy is enough.
 * The reported run does not end before the last arrival. */
static rf_status simulate_arrivals(service *s, rf_error *error) {
  rf_serve_stats *served = &s->row[0].served;
  RF_TRY(rf_arrivals_read(rf_options_text(s->o, "arrivals"), s->like, &s->list, &s->requests, error));
  double last = s->list[s->requests - 1].at, came = last - s->list[0].at;
  s->each = 0;
  for (int64_t i = 0; i < s->requests; i += s->copies) s->list[s->each++] = s->list[i];
  RF_TRY(simulate(s, s->list, s->each, served, error));
  double seconds = served->seconds + last - s->list[s->each - 1].at;
  if (seconds > 0) served->tokens_per_second *= served->seconds / seconds;
  served->seconds = seconds;
  rf_job_add_copies(served, s->requests, s->each);
  served->arrivals_per_second = came > 0 ? (double)(s->requests - 1) / came : 0;
  s->row[0].rate = served->arrivals_per_second;
  s->best = s->row[0];
  return RAFTER_OK;
}

/* Rounds a number to three digits, as a user would type it. */
static double rounded(double rate) {
  char text[32];
  snprintf(text, sizeof text, "%.3g", rate);
  return strtod(text, NULL);
}

/* Finds the highest rate that the plan sustains. With --rate, the search is between the given
 * rates, or below them if all are too high. Without --rate, the search is above 1 request per
 * second. */
static rf_status search_rate(service *s, rf_error *error) {
  served_rate now;
  double low = 0, high = 0;
  const bool given = rf_options_is_set(s->o, "rate");
  s->best = s->row[0];
  for (int i = 0; i < s->rows; i++) {
    if (s->row[i].served.saturated || s->row[i].rate < low) continue;
    s->best = s->row[i];
    low = s->best.rate;
  }
  for (int i = 0; i < s->rows; i++) {
    const double rate = s->row[i].rate;
    if (s->row[i].served.saturated && rate > low && !(high > 0 && rate >= high)) high = rate;
    if (!(low > 0) && rate < s->best.rate) s->best = s->row[i];
  }
  for (int i = 0; !given && !(high > 0) && i < FACTORS; i++) {
    RF_TRY(simulate_rate(s, 2 * low, &now, error));
    if (now.served.saturated) high = now.rate;
    else low = (s->best = now).rate;
  }
  for (int i = 0; !(low > 0) && i < FACTORS; i++) {
    RF_TRY(simulate_rate(s, high / 2, &now, error));
    if (now.served.saturated) high = now.rate;
    else low = (s->best = now).rate;
  }
  while (low > 0 && high > NEAR * low) {
    RF_TRY(simulate_rate(s, rounded(sqrt(low * high)), &now, error));
    if (now.served.saturated) high = now.rate;
    else low = (s->best = now).rate;
  }
  return RAFTER_OK;
}

static rf_status simulate_rates(service *s, rf_error *error) {
  const rf_options *o = s->o;
  const double once = 1, *rate = &once;
  s->rows = 1;
  if (rf_options_is_set(o, "rate")) rate = rf_options_floats(o, "rate", &s->rows);
  s->requests = rf_options_int_or(o, "requests", 512);
  s->each = (s->requests + s->copies - 1) / s->copies;
  s->row = calloc((size_t)s->rows, sizeof *s->row);
  if (!s->row) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while simulating");
  if (rf_options_is_set(o, "arrivals")) {
    s->rows = 1;
    return simulate_arrivals(s, error);
  }
  s->list = calloc((size_t)s->each, sizeof *s->list);
  if (!s->list) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while simulating");
  for (int i = 0; i < s->rows; i++) RF_TRY(simulate_rate(s, rate[i], &s->row[i], error));
  return search_rate(s, error);
}

/* ---- the second machine ---------------------------------------------------------------------- */

/* Sets the bytes/s from the prefill machine to the other machine. Without --kv-link, this is the
 * lower data-centre bandwidth of the two machines. */
static rf_status resolve_link(service *s, rf_error *error) {
  const rf_machine *here = &s->p->settings.machine, *there = &s->prefill_on->machine;
  double out = there->chips * rf_machine_dcn_bps(there), in = here->chips * rf_machine_dcn_bps(here);
  s->link_bps = rf_options_is_set(s->o, "kv-link") ? (double)rf_options_int(s->o, "kv-link")
                : out < in                         ? out
                                                   : in;
  if (s->link_bps > 0) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "for example --kv-link 25G",
                 "the bandwidth between the two machines is unknown (%s has no figure for a data-centre "
                 "network; --kv-link is missing)",
                 out > 0 ? here->name : there->name);
}

/* Plans prefill on the machine of --prefill-on, with the same model and settings. */
static rf_status resolve_prefill_on(service *s, rf_error *error) {
  if (!rf_options_is_set(s->o, "prefill-on")) return RAFTER_OK;
  rf_options *other = rf_options_copy(s->o);
  rf_status status = rf_options_set(other, "on", rf_options_text(s->o, "prefill-on"), error);
  s->prefill_on = calloc(1, sizeof *s->prefill_on);
  if (status == RAFTER_OK && !s->prefill_on)
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning");
  if (status == RAFTER_OK) status = rf_settings_resolve(other, "generate", s->prefill_on, error);
  if (status == RAFTER_INVALID && error && rf_options_is_set(s->o, "mesh"))
    status = RF_FAIL(error, RAFTER_INVALID,
                     "leave out --mesh, or give --prefill-on as many chips as --on; each machine has its own "
                     "default mesh",
                     "--mesh also applies to the machine of --prefill-on: %.600s", error->message);
  rf_options_free(other);
  return status == RAFTER_OK ? resolve_link(s, error) : status;
}

/* USD per hour of all machines; 0: the price of one machine is unknown. */
static double usd_of_service(const service *s) {
  double one = rf_job_usd_per_hour(&s->p->settings.machine),
         other = s->prefill_on ? rf_job_usd_per_hour(&s->prefill_on->machine) : 0;
  return !s->prefill_on ? one : one > 0 && other > 0 ? one + other : 0;
}

/* ---- the answer ------------------------------------------------------------------------------ */

static json_t *percentiles_json(const double p[RF_PERCENTILES]) {
  return json_pack("{sf sf sf}", "p50", p[RF_P50], "p95", p[RF_P95], "p99", p[RF_P99]);
}

static json_t *rate_json(const service *s, const served_rate *row) {
  const rf_serve_stats *v = &row->served;
  json_t *json = json_pack(
      "{sf sf so so so sf sI sI sI sb so sf}", "requests_per_second", row->rate, "tokens_per_second",
      v->tokens_per_second, "ttft_seconds", percentiles_json(v->ttft), "tpot_seconds",
      percentiles_json(v->tpot), "latency_seconds", percentiles_json(v->latency), "slots_used", v->slots_used,
      "slots_most", (json_int_t)v->counts.most_parts, "waiting_most", (json_int_t)v->waiting_most,
      "reused_tokens", (json_int_t)v->counts.reused, "saturated", v->saturated, "usd_per_million_tokens",
      rf_job_usd_per_million(usd_of_service(s), v->tokens_per_second), "kv_live", v->kv_live);
  if (s->prefill_on) json_object_set_new(json, "transfer_seconds", json_real(v->transfer_seconds));
  return json;
}

static json_t *serving_json(const service *s) {
  const served_rate *best = &s->best;
  json_t *rates = json_array();
  for (int i = 0; i < s->rows; i++) json_array_append_new(rates, rate_json(s, &s->row[i]));
  json_t *json =
      json_pack("{sI sI si so so so so sI}", "prompt_tokens", (json_int_t)s->l.prompt, "answer_tokens",
                (json_int_t)s->l.answer, "samples", s->l.samples, "ttft_seconds",
                percentiles_json(best->served.ttft), "tpot_seconds", percentiles_json(best->served.tpot),
                "rates", rates, "sustained", rate_json(s, best), "copies", (json_int_t)s->copies);
  if (s->prefill_on)
    json_object_update_new(json,
                           json_pack("{ss sf sf sf}", "prefill_on", s->prefill_on->machine.name,
                                     "transfer_seconds", best->served.transfer_seconds, "transfer_bytes",
                                     best->served.transfer_bytes, "kv_link_bytes_per_second", s->link_bps));
  return json;
}

/* Sets the mean time and work of a request at the highest rate that the plan sustains. */
static void set_served(const service *s) {
  rafter_plan *p = s->p;
  const rf_machine *one = &p->settings.machine, *other = s->prefill_on ? &s->prefill_on->machine : NULL;
  const rf_serve_stats *v = &s->best.served;
  const double requests = (double)s->requests, watts = one->watts * one->chips,
               more = other ? other->watts * other->chips : 0;
  char rate[32];
  p->served = (rf_report_unit){.name = "request",
                               .seconds = v->seconds / requests,
                               .tokens = v->tokens_per_second * v->seconds / requests,
                               .model_flops = v->total.model_flops / (double)(s->each * s->copies),
                               .usd_per_hour = usd_of_service(s),
                               .watts = other && !(more > 0) ? 0 : watts + more};
  snprintf(p->served.note, sizeof p->served.note, " of answers at %s requests/s%s,%s",
           rf_text_figures(s->best.rate, 3, rate), v->saturated ? " (the queue grows)" : "",
           other ? " both machines included," : "");
}

static void put_row(const service *s, const served_rate *row, const char *note) {
  char a[32], b[32], c[32], d[32], e[32];
  const rf_serve_stats *v = &row->served;
  const double usd = usd_of_service(s);
  FILE *out = s->p->extra_text;
  fprintf(out, "  %8.3g %10s %10s %10s %10s %10s %7.1f  ", row->rate, rf_text_count(v->tokens_per_second, a),
          rf_text_seconds(v->ttft[RF_P50], b), rf_text_seconds(v->ttft[RF_P99], c),
          rf_text_seconds(v->tpot[RF_P50], d), rf_text_seconds(v->tpot[RF_P99], e), v->slots_used);
  if (usd > 0) fprintf(out, "%8.3g  ", usd / 3600 / v->tokens_per_second * 1e6);
  else fputs("no price  ", out);
  fprintf(out, "%s%s\n", v->saturated ? "no" : "yes", note);
}

static bool saturates(const service *s) {
  bool saturated = false;
  for (int i = 0; i < s->rows; i++) saturated |= s->row[i].served.saturated;
  return saturated;
}

/* If a rate is not sustained, the times in its row depend on the number of requests, because the
 * queue only grows. */
static void put_notes(const service *s) {
  FILE *out = s->p->extra_text;
  const served_rate *best = &s->best;
  bool listed = false;
  for (int i = 0; i < s->rows; i++) listed |= s->row[i].rate == best->rate;
  if (!listed) put_row(s, best, ": the highest such rate, from a search");
  if (saturates(s))
    fputs("  keeps up no: the queue grows, so the row is not a steady state; waiting times grow with "
          "--requests\n",
          out);
}

/* The mean number of running answers at the rates that are not sustained; 0: all are sustained. */
static double slots_of_queue(const service *s) {
  double used = 0;
  for (int i = 0; i < s->rows; i++)
    if (s->row[i].served.saturated) used = fmax(used, s->row[i].served.slots_used);
  return used;
}

/* True if slots are free while requests wait. At the start and at the end of a simulation, some
 * slots are free even if slots limit the rate, which `ALL` and the number of requests allow for. */
static bool prompts_limit(const service *s) {
  static const double ALL = 0.9;
  const rf_build_options *b = &s->p->settings.plan.build;
  const double slots = (double)b->microbatch, used = slots_of_queue(s);
  return used > 0 && !b->sequences && used < slots * (ALL - slots / (double)s->requests);
}

static void hint_at_prompts(const service *s) {
  const bool grows = rf_options_float_or(s->o, "step-growth", 0) > 0;
  fprintf(s->p->extra_text,
          "  hint: prompts limit the rate, since only %.1f of %lld slots have answers; %s\n",
          slots_of_queue(s), (long long)s->p->settings.plan.build.microbatch,
          s->prefill_on ? "--prefill-on needs more chips"
          : grows       ? "raise --step-growth or --prefill-chunk, or add chips"
                        : "raise --prefill-chunk, or add chips");
}

/* Suggests --fit if the default number of slots is too small for the requests, or leaves most of
 * the memory free. */
static void hint_at_fit(const service *s) {
  const rafter_plan *p = s->p;
  const rf_plan *larger = rf_plan_larger(p->plan, p->prefill);
  const int64_t room = rf_plan_room(&p->settings.plan);
  const bool saturated = saturates(s);
  char a[32], b[32];
  if (rf_options_given(s->o, "batch") || p->settings.fit) return;
  if (!saturated && 2 * larger->arena_bytes > room) return;
  fprintf(p->extra_text, "  hint: %lld slots%s need %s of %s; --fit plans as many slots as fit\n",
          (long long)p->settings.plan.build.microbatch, saturated ? " do not keep up, and" : "",
          rf_text_bytes((double)larger->arena_bytes, a), rf_text_bytes((double)room, b));
}

static void put_serving(const service *s) {
  const rafter_plan *p = s->p;
  FILE *out = p->extra_text;
  char bytes[32], seconds[32], rate[32];
  fprintf(out, "\nserving   prompts of %lld tokens, answers of %lld, %lld slots", (long long)s->l.prompt,
          (long long)s->l.answer, (long long)p->settings.plan.build.microbatch);
  if (s->copies > 1) fprintf(out, " of %lld copies", (long long)s->copies);
  fprintf(out, "\n  %8s %10s %10s %10s %10s %10s %7s  %8s  %s\n", "requests", "tokens/s", "first p50",
          "first p99", "token p50", "token p99", "slots", "$/Mtok", "keeps up");
  for (int i = 0; i < s->rows; i++) put_row(s, &s->row[i], "");
  put_notes(s);
  if (p->settings.plan.build.sequences > 0)
    fprintf(out,
            "  tokens of running answers fill %.0f %% of the KV cache, averaged over the time of all steps\n",
            100 * s->best.served.kv_live);
  if (prompts_limit(s)) hint_at_prompts(s);
  else hint_at_fit(s);
  if (s->prefill_on)
    fprintf(out,
            "  prefill on %s: sending the cache of a prompt (%s) takes %s at %s; the time to the "
            "first token includes this transfer\n",
            s->prefill_on->machine.name, rf_text_bytes(s->best.served.transfer_bytes, bytes),
            rf_text_seconds(s->best.served.transfer_seconds, seconds), rf_text_rate(s->link_bps, rate));
}

rf_status rf_job_serve(rafter_plan *p, const rf_options *o, rf_error *error) {
  service s = {.p = p, .o = o};
  rf_status status = RAFTER_OK;
  p->serves = true;
  RF_TRY(rf_job_lengths_resolve(p, o, &s.l, error));
  RF_TRY(rf_job_generate(p, o, error));
  if (!rf_plan_fits(p->prefill)) return RAFTER_OK;
  s.copies = rf_generate_copies(p->plan);
  s.like = (rf_arrival){.prompt = s.l.prompt,
                        .answer = s.l.answer,
                        .shared = rf_options_int_or(o, "shared-prefix", 0),
                        .samples = s.l.samples,
                        .limit = rf_options_int_or(o, "answer-limit", 0)};
  rf_job_say_copies(p, p->plan);
  RF_GO(resolve_prefill_on(&s, error));
  RF_GO(simulate_rates(&s, error));
  put_serving(&s);
  set_served(&s);
  json_object_set_new(p->extra, "serving", serving_json(&s));
done:
  free(s.row);
  free(s.list);
  free(s.prefill_on);
  return status;
}
