/* metrics.c - see metrics.h. */
#include "serve/metrics.h"

#include <stdio.h>
#include <string.h>

/* Upper bounds of buckets, in ascending order; 0 ends a list. */
static const double FIRST[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                               1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 0};
static const double BETWEEN[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4,
                                 0.5,   0.75,   1,     2.5,  5,     7.5,  10,    20,  40,   80,  0};
static const double WHOLE[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
                               30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680, 0};
static const double TOKENS[] = {1,    2,    5,     10,    20,    50,     100,    200,    500, 1000,
                                2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 0};

static const struct {
  const char *name, *help;
  const double *bound;
} HISTOGRAMS[RF_HISTOGRAMS] = {
    [RF_HISTOGRAM_FIRST] = {"time_to_first_token_seconds", "Seconds from a request to its first token.",
                            FIRST},
    [RF_HISTOGRAM_BETWEEN] = {"inter_token_latency_seconds", "Seconds between two tokens of an answer.",
                              BETWEEN},
    [RF_HISTOGRAM_PER_TOKEN] = {"request_time_per_output_token_seconds",
                                "Seconds per token of an answer after its first token.", BETWEEN},
    [RF_HISTOGRAM_WHOLE] = {"e2e_request_latency_seconds", "Seconds from a request to its last token.",
                            WHOLE},
    [RF_HISTOGRAM_PROMPT] = {"request_prompt_tokens", "Tokens of a prompt.", TOKENS},
    [RF_HISTOGRAM_ANSWER] = {"request_generation_tokens", "Tokens of an answer.", TOKENS},
};

void rf_metrics_observe(rf_metrics *m, rf_histogram_kind kind, double value) {
  struct rf_histogram *h = &m->histogram[kind];
  int i = 0;
  while (HISTOGRAMS[kind].bound[i] > 0 && value > HISTOGRAMS[kind].bound[i]) i++;
  h->count[i]++;
  h->sum += value;
}

/* Parts that all lines have in common: the prefix of names, and the label of the model. */
typedef struct lines {
  rf_body *out;
  const char *prefix;
  rf_body model; /* text model_name="...", with the escapes of JSON strings, which Prometheus also uses */
} lines;

static void head(const lines *l, const char *name, const char *type, const char *help) {
  rf_body_format(l->out, "# HELP %s:%s %s\n# TYPE %s:%s %s\n", l->prefix, name, help, l->prefix, name, type);
}

static void value(const lines *l, const char *name, const char *type, const char *help, double number) {
  head(l, name, type, help);
  rf_body_format(l->out, "%s:%s{%s} %.17g\n", l->prefix, name, l->model.at, number);
}

static void histogram(const lines *l, const rf_metrics *m, int kind) {
  const struct rf_histogram *h = &m->histogram[kind];
  const char *name = HISTOGRAMS[kind].name, *p = l->prefix, *model = l->model.at;
  int64_t sum = 0;
  int i = 0;
  head(l, name, "histogram", HISTOGRAMS[kind].help);
  for (; HISTOGRAMS[kind].bound[i] > 0; i++) {
    sum += h->count[i];
    rf_body_format(l->out, "%s:%s_bucket{%s,le=\"%g\"} %lld\n", p, name, model, HISTOGRAMS[kind].bound[i],
                   (long long)sum);
  }
  sum += h->count[i]; /* those above all bounds */
  rf_body_format(l->out, "%s:%s_bucket{%s,le=\"+Inf\"} %lld\n", p, name, model, (long long)sum);
  rf_body_format(l->out, "%s:%s_sum{%s} %.9g\n", p, name, model, h->sum);
  rf_body_format(l->out, "%s:%s_count{%s} %lld\n", p, name, model, (long long)sum);
}

static void totals(const lines *l, const rf_metrics *m) {
  static const char *const REASONS[] = {NULL, "stop", "length", "error", "abort"};
  head(l, "request_success_total", "counter", "Answers that ended, by reason.");
  for (int i = 1; i < 5; i++)
    rf_body_format(l->out, "%s:request_success_total{%s,finished_reason=\"%s\"} %lld\n", l->prefix,
                   l->model.at, REASONS[i], (long long)m->finished[i]);
  head(l, "http_requests_total", "counter", "HTTP answers, by status.");
  for (int i = 0; i < RF_METRIC_CODES; i++)
    if (m->code[i])
      rf_body_format(l->out, "%s:http_requests_total{%s,code=\"%d\"} %lld\n", l->prefix, l->model.at, i,
                     (long long)m->code[i]);
  value(l, "prompt_tokens_total", "counter", "Prompt tokens of requests.", (double)m->prompt_tokens);
  value(l, "generation_tokens_total", "counter", "Generated tokens.", (double)m->tokens);
}

void rf_metrics_text(const rf_metrics *m, const rafter_counts *c, int64_t running, int64_t waiting,
                     const char *prefix, const char *model, rf_body *out) {
  lines l = {.out = out, .prefix = prefix};
  double kv = c->kv_bytes > 0 ? (double)c->kv_used_bytes / (double)c->kv_bytes : 0;
  rf_body_text(&l.model, "model_name=");
  rf_body_string(&l.model, model, strlen(model));
  value(&l, "num_requests_running", "gauge", "Answers that have a token.", (double)running);
  value(&l, "num_requests_waiting", "gauge", "Answers that wait for their first token.", (double)waiting);
  value(&l, "kv_cache_usage_perc", "gauge", "Fraction of the KV cache that running answers hold.", kv);
  value(&l, "prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the cache.",
        (double)c->prompt_tokens);
  value(&l, "prefix_cache_hits_total", "counter", "Prompt tokens that were found in the cache.",
        (double)c->reused_tokens);
  value(&l, "num_preemptions_total", "counter", "Answers that lost their memory: always 0.", 0);
  totals(&l, m);
  for (int i = 0; i < RF_HISTOGRAMS; i++) histogram(&l, m, i);
  value(&l, "kv_cache_bytes", "gauge", "Bytes of the KV cache.", (double)c->kv_bytes);
  value(&l, "kv_cache_used_bytes", "gauge", "Bytes of the KV cache that running answers hold.",
        (double)c->kv_used_bytes);
  value(&l, "lora_adapters", "gauge", "Adapters that requests can use.", c->adapters);
  value(&l, "lora_adapter_slots", "gauge", "Adapters that can be loaded at once.", c->adapter_slots);
  value(&l, "kv_cache_tokens", "gauge", "Tokens for which the KV cache has memory.", (double)c->kv_tokens);
  value(&l, "kv_cache_live_tokens", "gauge", "Cached tokens of running answers.", (double)c->kv_live_tokens);
  value(&l, "steps_total", "counter", "Forward passes.", (double)c->passes);
  value(&l, "step_seconds_total", "counter", "Measured seconds of forward passes.", c->seconds);
  value(&l, "step_predicted_seconds_total", "counter", "Seconds of the same passes as planned.",
        c->predicted_seconds);
  value(&l, "step_limit_fraction", "gauge", "Seconds at the machine's peak rates / measured seconds.",
        c->seconds > 0 ? c->limit_seconds / c->seconds : 0);
  value(&l, "constraints_compiled_total", "counter", "Forms of answers that were compiled.",
        (double)c->constraints);
  value(&l, "constraint_cache_hits_total", "counter", "Forms of answers that were found in the cache.",
        (double)c->constraints_found);
  value(&l, "constraint_compile_seconds_total", "counter", "Seconds to compile forms, on HTTP threads.",
        c->constraint_seconds);
  value(&l, "constraint_masks_total", "counter", "Token masks of answers with a form.", (double)c->masks);
  value(&l, "constraint_mask_hits_total", "counter", "Token masks that were found in memory.",
        (double)c->masks_found);
  value(&l, "constraint_mask_seconds_total", "counter", "Seconds for token masks, within the steps.",
        c->mask_seconds);
  value(&l, "engine_busy_seconds_total", "counter", "Seconds of steps, with sampling and bookkeeping.",
        m->busy_seconds);
  rf_body_free(&l.model);
}
