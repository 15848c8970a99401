/* bench.c - `rafter bench`: measures prefill, decoding and training. The same run also measures the
 * machine's highest rates (ceilings). */
#define _GNU_SOURCE
#include "api/bench.h"

#include "advise/gnuplot.h"
#include "journal/traced.h"
#include "journal/executed.h"

#include "generate/pace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct peak {
  const char *key, *name, *unit;
  rf_dtype dtype;
  rf_alu in;
} peak;
static const peak PEAKS[] = {{"f32", "f32 FMA", "GFLOP/s", RF_F32, RF_ALU_VECTOR},
                             {"bf16_vectors", "bf16 in vectors", "GFLOP/s", RF_BF16, RF_ALU_VECTOR},
                             {"bf16_tiles", "bf16 in tiles", "GFLOP/s", RF_BF16, RF_ALU_MATRIX},
                             {"i8_vectors", "int8 in vectors", "GOP/s", RF_I8, RF_ALU_VECTOR},
                             {"i8_tiles", "int8 in tiles", "GOP/s", RF_I8, RF_ALU_MATRIX}};
enum { PEAK_COUNT = RF_BENCH_PEAKS, MAX_BURSTS = RF_BENCH_BURSTS, MAX_TESTS = 32 };
_Static_assert(sizeof PEAKS / sizeof *PEAKS == PEAK_COUNT, "one row for each kind of arithmetic");

static bool has_alu(const rf_ceilings *c, rf_dtype dtype, rf_alu alu) {
  return c->device->type->has_alu(c->device, dtype, alu);
}
static bool has_peak(const rf_ceilings *c, int i) { return has_alu(c, PEAKS[i].dtype, PEAKS[i].in); }

static int part_of(const rf_ceilings *c, int count) {
  return (count * c->parts + RF_BENCH_FULL - 1) / RF_BENCH_FULL;
}

static void sample_peak(rf_ceilings *c, int i, int count) {
  rf_record_pause();
  count = part_of(c, count);
  for (rf_bursts *b = &c->peak[i]; count-- > 0 && b->count < MAX_BURSTS; b->count++)
    b->rate[b->count] = c->device->type->flops(c->device, PEAKS[i].dtype, PEAKS[i].in, 0.025);
}
void rf_bench_sample_flops(rf_ceilings *c, int count) {
  for (int i = 0; i < PEAK_COUNT; i++)
    if (PEAKS[i].dtype == c->product && has_peak(c, i)) sample_peak(c, i, count);
}
void rf_bench_sample_read(rf_ceilings *c, int count) {
  rf_record_pause();
  count = part_of(c, count);
  for (rf_bursts *b = &c->read; count-- > 0 && b->count < MAX_BURSTS; b->count++)
    b->rate[b->count] = rf_bandwidth_median(c->device, c->memory, RF_TRAFFIC_READ, 1);
}
static rf_ceiling ceiling_of(const rf_bursts *b) {
  double copy[MAX_BURSTS];
  memcpy(copy, b->rate, sizeof copy);
  return rf_ceiling_of(copy, b->count);
}

void rf_bench_choose_product(rf_ceilings *c, const rf_plan *plan) {
  bool fast = false;
  for (int i = 0; i < plan->graph->op_count; i++) fast |= rf_op_is_fast(&plan->graph->op[i]);
  /* A sweep may change --cpu or --threads, which invalidates the measured ceilings. */
  if (c->device->level != (int)plan->options.isa || c->device->workers != plan->options.threads) {
    memset(c->peak, 0, sizeof c->peak);
    memset(&c->read, 0, sizeof c->read);
  }
  c->device->level = (int)plan->options.isa;
  c->device->workers = plan->options.threads;
  bool bytes = has_alu(c, RF_I8, RF_ALU_VECTOR) || has_alu(c, RF_I8, RF_ALU_MATRIX);
  bool tiles = plan->options.build.dtype == RF_BF16 && has_alu(c, RF_BF16, RF_ALU_MATRIX);
  c->product = fast && bytes ? RF_I8 : tiles ? RF_BF16 : RF_F32;
}
/* Returns the index in PEAKS of the highest peak rate for the dtype of the matrix products. */
static int product_peak(const rf_ceilings *c) {
  int best = 0;
  for (int i = 0; i < PEAK_COUNT; i++)
    if (PEAKS[i].dtype == c->product && has_peak(c, i)) best = i;
  return best;
}

static json_t *spread_json(rf_ceiling s) {
  return json_pack("{sf sf sf}", "median", s.median, "min", s.least, "max", s.most);
}

enum { TOKENS_MAX = 1 << 24 }; /* of a test, as of --seq */
/* Reads a name such as pp512. Returns false for an unknown name. */
static bool read_test(const char *name, rf_bench_test *t) {
  static const struct {
    const char *name;
    char kind;
  } WORDS[] = {{"train", 'T'}, {"rollout", 'R'}, {"forward", 'F'}, {"topk", 'K'}};
  static const struct {
    const char *format;
    char kind;
    int numbers;
  } FORMS[] = {{"pp%lld%n", 'p', 1},
               {"tg%lld@d%lld%n", 't', 2},
               {"tg%lld%n", 't', 1},
               {"batch%lld%n", 'b', 1},
               {"score%lld%n", 's', 1}};
  *t = (rf_bench_test){.kind = 0};
  snprintf(t->name, sizeof t->name, "%s", name);
  for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
    if (!strcmp(name, WORDS[i].name)) t->kind = WORDS[i].kind;
  if (t->kind) return true;
  for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
    long long tokens = 0, depth = 0;
    int used = 0, got = FORMS[i].numbers == 2 ? sscanf(name, FORMS[i].format, &tokens, &depth, &used)
                                              : sscanf(name, FORMS[i].format, &tokens, &used);
    if (got != FORMS[i].numbers || !used || name[used]) continue;
    t->kind = FORMS[i].kind;
    t->tokens = tokens;
    t->depth = depth;
    return tokens >= 1 && depth >= 0 && tokens <= TOKENS_MAX && depth <= TOKENS_MAX &&
           (t->kind != 'b' || tokens <= 4096);
  }
  return false;
}

static rf_status parse_tests(const char *text, rf_bench_test tests[MAX_TESTS], int *count, rf_error *error) {
  char copy[MAX_TESTS * sizeof tests->name], *rest = copy;
  *count = 0;
  if (strlen(text) >= sizeof copy)
    return RF_FAIL(error, RAFTER_INVALID, "split the tests over several calls",
                   "too many tests (--test: expected %d characters at most, got %zu)", (int)sizeof copy - 1,
                   strlen(text));
  strcpy(copy, text);
  for (char *name; (name = strsep(&rest, ",")) != NULL;) {
    if (*count == MAX_TESTS)
      return RF_FAIL(error, RAFTER_INVALID, "split the tests over several calls",
                     "too many tests (--test: expected %d at most; the next is %s)", MAX_TESTS, name);
    if (!read_test(name, &tests[(*count)++]))
      return RF_FAIL(error, RAFTER_INVALID, "for example --test pp512,tg128,tg128@d256,train",
                     "unknown test (--test: expected ppN, tgN, tgN@dN, batchN, scoreN, train, rollout, "
                     "forward or topk, got %s)",
                     name);
  }
  return RAFTER_OK;
}

/* Adds all ceilings to `rates`. Adds to `fractions` the fraction of each ceiling that the test
 * reached. */
static void put_fractions(const rf_ceilings *c, const rf_bench_limits *l, double seconds, json_t *rates,
                          json_t *fractions) {
  for (int i = 0; i < PEAK_COUNT; i++) {
    double rate = c->peak[i].count ? ceiling_of(&c->peak[i]).median : 0;
    if (rate > 0) json_object_set_new(rates, PEAKS[i].key, json_real(rate));
    if (rate > 0 && l->flops > 0)
      json_object_set_new(fractions, PEAKS[i].key, json_real(l->flops / rate / seconds));
  }
  double rate = ceiling_of(&c->read).median;
  if (rate > 0) json_object_set_new(rates, "read", json_real(rate));
  if (rate > 0 && l->bytes > 0) json_object_set_new(fractions, "read", json_real(l->bytes / rate / seconds));
}

/* Adds the figures of a test with --batch sequences. */
static void put_point(const rf_bench_point *p, double seconds, double predicted, json_t *row) {
  json_t *more = json_pack("{sI sb sf sf sf sI sI sI}", "batch", (json_int_t)p->batch, "adapter", p->adapter,
                           "elapsed_seconds", seconds, "seconds_per_token", seconds / p->tokens,
                           "predicted_seconds_per_token", predicted / p->tokens, "arena_bytes",
                           (json_int_t)p->arena_bytes, "planned_bytes", (json_int_t)p->planned_bytes,
                           "resident_bytes", (json_int_t)p->resident_bytes);
  json_object_update(row, more);
  json_decref(more);
}

json_t *rf_bench_report(rf_bench *b, double tokens, double predicted, const rf_bench_limits *l) {
  const rf_ceilings *c = b->c;
  const rf_settings *s = &b->settings;
  const char *name = b->t->name;
  int n = b->reps;
  char shown[3][32], text[160], limit[96];
  json_t *samples = json_array(), *rates = json_object(), *fractions = json_object();
  /* copied before rf_ceiling_of sorts `seconds` */
  for (int i = 0; i < n; i++) json_array_append_new(samples, json_real(b->seconds[i]));
  rf_ceiling spread = rf_ceiling_of(b->seconds, n);
  int best = product_peak(c);
  double rate = tokens / spread.median, arithmetic = l->flops > 0 ? ceiling_of(&c->peak[best]).median : 0,
         read = ceiling_of(&c->read).median;
  bool computes = l->flops > 0 && (!(l->bytes > 0) || l->flops / arithmetic > l->bytes / read);
  double work = computes ? l->flops : l->bytes, least = work / (computes ? arithmetic : read),
         fraction = least / spread.median;
  put_fractions(c, l, spread.median, rates, fractions);
  int used = snprintf(text, sizeof text, "%5.1f %% of %s", 100 * fraction,
                      computes ? PEAKS[best].name : "read bandwidth (weights)");
  for (int i = 0; computes && i < PEAK_COUNT; i++)
    if (i != best && PEAKS[i].dtype == c->product && has_peak(c, i))
      used += snprintf(text + used, sizeof text - (size_t)used, ", %.1f %% of %s",
                       100 * json_number_value(json_object_get(fractions, PEAKS[i].key)), PEAKS[i].name);
  if (computes) snprintf(text + used, sizeof text - (size_t)used, " (%s)", l->counted);
  if (computes) snprintf(limit, sizeof limit, "%s (%s)", PEAKS[best].name, l->counted);
  else snprintf(limit, sizeof limit, "read bandwidth (weights)");
  char head[80];
  snprintf(head, sizeof head, "%s%s", name, b->point && b->point->adapter ? "+adapter" : "");
  rf_say(b->sink, "%-14s %12s tok/s   %10s (planned %s)   %s\n", head, rf_text_count(rate, shown[0]),
         rf_text_seconds(spread.median, shown[1]), rf_text_seconds(predicted, shown[2]), text);
  json_t *row = json_pack(
      "{ss ss* ss* ss ss si sf sf so so sf sf sf sf sf ss so so si}", "test", name, "sweep", c->sweep,
      "value", c->value, "model", s->model.name, "dtype", rf_dtype_name(s->plan.build.dtype), "threads",
      s->plan.threads, "tokens_per_second", rate, "predicted_tokens_per_second",
      predicted > 0 ? tokens / predicted : 0, "seconds", spread_json(spread), "samples", samples,
      "predicted_seconds", predicted, "limit_fraction", fraction, "limit_fraction_causal",
      computes ? l->causal / arithmetic / spread.median : fraction, "limit_work", work, "limit_rate",
      computes ? arithmetic : read, "limit", limit, "rates", rates, "fractions", fractions, "n", n);
  if (b->point) put_point(b->point, spread.median, predicted, row);
  rf_put_json(b->sink, row);
  return json_pack("{ss sf sf sf sf sf}", "test", name, "tokens_per_second", rate, "seconds", spread.median,
                   "predicted_seconds", predicted, "predicted_tokens_per_second",
                   predicted > 0 ? tokens / predicted : 0, "limit_fraction", fraction);
}

/* Adds a test that has no run folder to the history. Takes ownership of `results`. */
static void list(const rf_bench *b, const rf_plan *plan, json_t *results) {
  rf_journal journal = {.as_note = true};
  rf_report_pass pass = {.name = "bench", .plan = plan};
  rf_error error = {0};
  const rf_options *o = b->job->options;
  rf_status status = rf_journal_begin(&journal, b->sink, o, rf_options_json(o), "", &pass, 1, &error);
  if (status == RAFTER_OK) json_object_update(journal.results, results);
  rf_journal_close(&journal, status, &error);
  json_decref(results);
}

/* Measures a training step. The limit is the time of `6 P + 12 L T D` FLOPs per token at the
 * measured peak rate. P: weights of matrix products. L: layers. T: tokens. D: width. `12 L T D`
 * includes masked scores. */
static rf_status bench_train(rf_bench *b, rf_error *error) {
  rf_status status = RAFTER_OK;
  rafter_trainer *trainer = NULL;
  const rf_build_options *build = &b->settings.plan.build;
  rafter_step step = {.size = sizeof step};
  RF_GO(rafter_trainer_open(b->job, &trainer, error));
  const rf_plan *plan = rf_plan_of_trainer(trainer);
  rf_bench_choose_product(b->c, plan);
  RF_GO(rafter_trainer_step(trainer, &step, error)); /* warm-up */
  for (int i = 0; i < b->reps; i++) {
    rf_bench_sample_flops(b->c, 20 / b->reps + 1);
    RF_GO(rafter_trainer_step(trainer, &step, error));
    b->seconds[i] = step.seconds;
  }
  rf_bench_sample_flops(b->c, 5);
  double tokens = (double)build->microbatch * build->accumulate * (double)build->seq;
  const rf_bench_limits l = {
      .flops = plan->flops_full_square, .causal = plan->model_flops, .counted = "6 P + 12 L T D"};
  json_t *results = rf_bench_report(b, tokens, step.predicted_seconds, &l);
  if (b->record) {
    status = rf_trainer_leave_trace(trainer, b->record, b->job->options, b->t->name, results, b->sink, error);
    json_decref(results);
  } else list(b, plan, results);
  RF_GO(status);
  if (rf_options_flag(b->job->options, "verbose")) {
    char *report = NULL;
    RF_GO(rafter_trainer_report(trainer, &report, error));
    rf_say(b->sink, "%s\n", report);
    rafter_text_free(report);
  }
done:
  rafter_trainer_close(trainer);
  return status;
}

rf_status rf_bench_leave(const rf_bench *b, const rf_generator *g, const rf_plan *plan, json_t *results,
                         rf_error *error) {
  rf_executed w;
  if (!b->record) return list(b, plan, results), RAFTER_OK;
  rf_status status = rf_executed_of(g, &w, error);
  if (status == RAFTER_OK) {
    const rf_report_pass in_order[] = {w.pass[1], w.pass[0]};
    const rf_traced_run traced = {b->record, g->run, in_order, 2};
    status = rf_traced_leave(&traced, b->job->options, b->t->name, results, b->sink, error);
    rf_executed_free(&w);
  }
  json_decref(results);
  return status;
}

int32_t rf_bench_id(int64_t i, int64_t vocab) { return (int32_t)(i * 7919 % vocab); }

static rf_status feed_random(rf_generator *g, int64_t count, const float **logits, rf_error *error) {
  int32_t *ids = malloc((size_t)count * sizeof *ids);
  if (!ids) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int64_t i = 0; i < count; i++) ids[i] = rf_bench_id(i, g->settings.model.vocab);
  rf_status status = rf_generator_feed(g, ids, count, logits, error);
  free(ids);
  return status;
}

/* Returns the number of positions that a prefill or decoding test needs. Returns 0 for other tests,
 * because they check their positions themselves. */
static int64_t positions_of(const rf_bench_test *t) {
  return t->kind == 'p' || t->kind == 't' ? t->tokens + t->depth + (t->kind == 't') : 0;
}

rf_status rf_bench_check_positions(const rf_settings *s, const rf_bench_test *t, int64_t needed,
                                   rf_error *error) {
  if (needed <= s->model.max_seq || s->model.position != RF_POSITION_LEARNED) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "shorten the test",
                 "%s has positions for fewer tokens (%s: expected at most %lld, got %lld)", s->model.name,
                 t->name, (long long)s->model.max_seq, (long long)needed);
}

double rf_bench_weight_bytes(const rf_plan *plan) {
  double sum = 0;
  for (int t = 0; t < plan->graph->tensor_count; t++) {
    const rf_tensor *tensor = &plan->graph->tensor[t];
    if (tensor->class == RF_CLASS_WEIGHT && tensor->param >= 0 &&
        plan->graph->params.at[tensor->param].matmul)
      sum += (double)rf_tensor_bytes(tensor);
  }
  return sum;
}

double rf_bench_prompt_flops(const rf_params *params, int64_t tokens) {
  return 2 * ((double)(params->matmul - params->head) * (double)tokens + (double)params->head);
}

rf_status rf_bench_leave_scores(const rf_bench *b, const rf_scorer *scorer, const rf_bench_scores *all,
                                json_t *results, rf_error *error) {
  rf_executed w;
  if (!b->record) return list(b, scorer->plan, results), RAFTER_OK;
  rf_status status = rf_executed_of_scores(scorer, all->passes, all->rows, all->seconds, &w, error);
  if (status == RAFTER_OK) {
    const rf_traced_run traced = {b->record, scorer->run, w.pass, 1};
    status = rf_traced_leave(&traced, b->job->options, b->t->name, results, b->sink, error);
    rf_executed_free(&w);
  }
  json_decref(results);
  return status;
}

/* Returns the predicted seconds to append `count` tokens to each of `sequences` sequences. Each
 * sequence already has `depth` tokens. Each step appends `rows` tokens per sequence. */
static double passes_seconds(const rf_plan *plan, int64_t sequences, int64_t depth, int64_t count,
                             int64_t rows) {
  rf_pass_prices *prices = rf_pass_prices_open(plan);
  rf_extent *part = calloc((size_t)sequences, sizeof *part);
  double sum = 0;
  for (int64_t at = 0; prices && part && at < count; at += rows) {
    int64_t here = count - at < rows ? count - at : rows;
    for (int64_t i = 0; i < sequences; i++) part[i] = (rf_extent){here, depth + at + here};
    sum += rf_pass_price(prices, part, (int)sequences, NULL);
  }
  rf_pass_prices_close(prices);
  free(part);
  return sum;
}

static rf_status bench_generate(rf_bench *b, rf_error *error) {
  rf_status status = RAFTER_OK;
  const rf_bench_test *t = b->t;
  rf_settings *s = &b->settings;
  rf_generator *g = NULL;
  const float *logits = NULL;
  s->plan.build.microbatch = 1;
  s->plan.build.seq = positions_of(t);
  RF_TRY(rf_bench_check_positions(s, t, s->plan.build.seq, error));
  rf_infer_settings settings = {.model = s->model,
                                .plan = s->plan,
                                .weights_folder = s->weights_folder,
                                .progress.stop = b->sink->stop};
  RF_TRY(rf_generator_open(&settings, &g, error));
  const rf_plan *plan = t->kind == 'p' ? g->prefill : g->decode;
  rf_bench_choose_product(b->c, plan);
  for (int i = -1; i < b->reps; i++) {
    rf_generator_reset(g);
    if (t->depth || t->kind == 't') RF_GO(feed_random(g, t->depth ? t->depth : 1, &logits, error));
    if (t->kind == 'p') rf_bench_sample_flops(b->c, 4);
    else rf_bench_sample_read(b->c, 2);
    double start = rf_now_seconds();
    if (t->kind == 'p') RF_GO(feed_random(g, t->tokens, &logits, error));
    for (int64_t k = 0; t->kind == 't' && k < t->tokens; k++) {
      int32_t id = (int32_t)(k * 104729 % s->model.vocab);
      RF_GO(rf_generator_feed(g, &id, 1, &logits, error));
    }
    if (i >= 0) b->seconds[i] = rf_now_seconds() - start;
  }
  int64_t depth = t->kind == 'p' || t->depth ? t->depth : 1,
          rows = t->kind == 'p' ? plan->options.build.chunk : 1;
  double flops = t->kind == 'p' ? rf_bench_prompt_flops(&plan->graph->params, t->tokens) : 0;
  const rf_bench_limits l = {.flops = flops,
                             .causal = flops,
                             .bytes = t->kind == 'p' ? 0 : rf_bench_weight_bytes(plan) * (double)t->tokens,
                             .counted = "2 P per token, head once"};
  json_t *results =
      rf_bench_report(b, (double)t->tokens, passes_seconds(plan, 1, depth, t->tokens, rows), &l);
  status = rf_bench_leave(b, g, plan, results, error);
done:
  rf_generator_close(g);
  return status;
}

/* Returns the number of steps until all prompts are read, if a step processes `rows` tokens. After
 * its prompt is read, an answer uses one row of each step. All other rows of the step read
 * prompts. */
static int64_t passes_to_start(int64_t answers, int64_t prompt, int64_t rows) {
  int64_t passes = 0, running = 0;
  for (int64_t read = 0; running < answers; passes++) {
    read += rows - running > 1 ? rows - running : 1;
    running = read / prompt;
  }
  return passes;
}

/* Measures steps that decode one token of every answer. Each answer has its own prompt. Calls
 * rf_generator_step instead of rf_replies_step, which would add the time of collecting replies. */
static rf_status bench_batch(rf_bench *b, rf_error *error) {
  enum { PROMPT = 32, STEPS = 16 };
  rf_status status = RAFTER_OK;
  const rf_bench_test *t = b->t;
  rf_settings *s = &b->settings;
  rf_generator *g = NULL;
  const rf_event *event;
  int events;
  int64_t id[4096];
  int64_t chunk = s->plan.build.chunk > 0 ? s->plan.build.chunk : RF_PREFILL_ROWS,
          rows = chunk > t->tokens ? chunk : t->tokens;
  int64_t length = PROMPT, most = 0,
          room = s->model.position == RF_POSITION_LEARNED ? s->model.max_seq : INT64_MAX;
  /* Answers must last longer than the measurement. If the model has few positions, the prompts are
   * short. */
  do {
    if (most) length /= 2;
    most = passes_to_start(t->tokens, length, rows) + STEPS + 1;
  } while (length > 1 && length + most > room);
  s->plan.build.microbatch = t->tokens;
  s->plan.build.seq = length + most;
  RF_TRY(rf_bench_check_positions(s, t, s->plan.build.seq, error));
  rf_infer_settings settings = {.model = s->model,
                                .plan = s->plan,
                                .weights_folder = s->weights_folder,
                                .no_sharing = true,
                                .progress.stop = b->sink->stop};
  RF_TRY(rf_generator_open(&settings, &g, error));
  rf_bench_choose_product(b->c, g->decode);
  for (int i = -1; i < b->reps; i++) {
    int32_t prompt[PROMPT];
    for (int64_t a = 0; a < t->tokens; a++) {
      for (int k = 0; k < length; k++)
        prompt[k] = (int32_t)(((a * PROMPT + k) * 7919 + i) % s->model.vocab + s->model.vocab) %
                    (int32_t)s->model.vocab;
      rf_request request = {.tokens = prompt, .count = length, .max_tokens = most};
      RF_GO(rf_generator_submit(g, &request, &id[a], error));
    }
    for (events = 0; events < t->tokens;) { /* until all answers decode */
      RF_GO(rf_generator_step(g, &event, &events, error));
      if (rf_asked_to_stop(b->sink) || !rf_generator_busy(g)) {
        status = rf_asked_to_stop(b->sink)
                     ? RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped in %s", t->name)
                     : RF_FAIL(error, RAFTER_FAILED, "choose fewer answers",
                               "%s: the answers never decoded all at once", t->name);
        goto done;
      }
    }
    rf_bench_sample_flops(b->c, 4);
    rf_bench_sample_read(b->c, 2);
    double start = rf_now_seconds();
    for (int k = 0; k < STEPS; k++) RF_GO(rf_generator_step(g, &event, &events, error));
    if (i >= 0) b->seconds[i] = rf_now_seconds() - start;
    for (int64_t a = 0; a < t->tokens; a++) rf_generator_cancel(g, id[a], -1);
    while (rf_generator_busy(g)) RF_GO(rf_generator_step(g, &event, &events, error));
  }
  double flops = 2 * (double)g->decode->graph->params.matmul * (double)t->tokens * STEPS;
  const rf_bench_limits l = {.flops = flops,
                             .causal = flops,
                             .bytes = rf_bench_weight_bytes(g->decode) * STEPS,
                             .counted = "2 P per token"};
  /* Context length of the median answer. Answers have different context lengths, because some
   * answers begin before all prompts are read. */
  int64_t depth = length + (most - STEPS) / 2;
  const rf_sampler_options greedy = {.temperature = 0};
  double predicted = passes_seconds(g->decode, t->tokens, depth, STEPS, 1) +
                     STEPS * rf_pace_seconds(&g->decode->machine, &greedy, s->model.vocab, t->tokens);
  json_t *results = rf_bench_report(b, (double)t->tokens * STEPS, predicted, &l);
  status = rf_bench_leave(b, g, g->decode, results, error);
done:
  rf_generator_close(g);
  return status;
}

/* Scores t->tokens tokens. A text has 1,024 tokens, or fewer if the model has fewer positions. */
static rf_status bench_score(rf_bench *b, rf_error *error) {
  enum { TEXT = 1024 };
  rf_status status = RAFTER_OK;
  const rf_bench_test *t = b->t;
  rf_settings *s = &b->settings;
  rf_scorer *scorer = NULL;
  int32_t ids[TEXT], *top_ids = NULL;
  float logprobs[TEXT], *top_logprobs = NULL;
  double all = 0;
  int64_t length = s->model.max_seq < TEXT ? s->model.max_seq : TEXT, passes = 0;
  if (length > t->tokens) length = t->tokens;
  s->plan.build.seq = length;
  s->plan.build.microbatch = 1;
  size_t top = (size_t)length * (size_t)s->plan.build.top + 1;
  top_ids = malloc(top * sizeof *top_ids);
  top_logprobs = malloc(top * sizeof *top_logprobs);
  if (!top_ids || !top_logprobs) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory"));
  rf_infer_settings settings = {
      .model = s->model, .plan = s->plan, .weights_folder = s->weights_folder, .seed = 1};
  RF_GO(rf_scorer_open(&settings, &scorer, error));
  rf_bench_choose_product(b->c, scorer->plan);
  for (int i = -1; i < b->reps; i++) {
    rf_bench_sample_flops(b->c, 4);
    double start = rf_now_seconds();
    for (int64_t at = 0; at < t->tokens; at += length, passes++) {
      rf_scored text = {ids, t->tokens - at < length ? t->tokens - at : length, logprobs, top_ids,
                        top_logprobs};
      for (int64_t k = 0; k < text.count; k++) ids[k] = rf_bench_id(at + k, s->model.vocab);
      RF_GO(rf_scorer_pass(scorer, &text, 1, error));
    }
    if (i >= 0) b->seconds[i] = rf_now_seconds() - start;
    all += rf_now_seconds() - start;
  }
  double part = (double)t->tokens / (double)length;
  const rf_bench_limits l = {.flops = part * scorer->plan->flops_full_square,
                             .causal = part * scorer->plan->model_flops,
                             .counted = "2 P + 4 L T D"};
  json_t *results = rf_bench_report(b, (double)t->tokens, part * scorer->plan->step_seconds, &l);
  const rf_bench_scores run = {passes, t->tokens * (b->reps + 1), all};
  status = rf_bench_leave_scores(b, scorer, &run, results, error);
done:
  rf_scorer_close(scorer);
  free(top_ids);
  free(top_logprobs);
  return status;
}

static rf_status bench_test(rf_bench *b, rf_error *error) {
  static const struct {
    char kind;
    const char *job;
    rf_status (*run)(rf_bench *b, rf_error *error);
  } kinds[] = {{'T', "train", bench_train},       {'b', "generate", bench_batch},
               {'s', "score", bench_score},       {'p', "generate", bench_generate},
               {'t', "generate", bench_generate}, {'R', "generate", rf_bench_sized},
               {'F', "score", rf_bench_sized},    {'K', "score", rf_bench_sized}};
  int k = 0;
  while (kinds[k].kind != b->t->kind) k++;
  RF_TRY(rf_settings_resolve(b->job->options, kinds[k].job, &b->settings, error));
  RF_TRY(rf_traced_open(b->job->options, &b->record, error));
  rf_status status = kinds[k].run(b, error);
  rf_record_close(b->record);
  b->record = NULL;
  return status;
}

static int parts_of(const rf_options *o) {
  int64_t reps = rf_options_int(o, "reps");
  return reps < RF_BENCH_FULL ? (int)reps : RF_BENCH_FULL;
}

static rf_status bench_once(const rafter_job *job, const rafter_sink *sink, rf_ceilings *c, rf_error *error) {
  const rf_options *o = job->options;
  rf_bench_test tests[MAX_TESTS];
  int count = 0;
  rf_status status = RAFTER_OK;
  RF_TRY(parse_tests(rf_options_text(o, "test"), tests, &count, error));
  rf_bench *b = calloc(1, sizeof *b);
  if (!b) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  b->job = job;
  b->sink = sink;
  b->c = c;
  b->reps = (int)rf_options_int(o, "reps");
  c->parts = parts_of(o);
  for (int i = 0; i < count && status == RAFTER_OK; i++) {
    b->t = &tests[i];
    status = rf_asked_to_stop(sink)
                 ? RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped before %s", tests[i].name)
                 : bench_test(b, error);
  }
  free(b);
  return status;
}

/* Measures and prints all ceilings once before the tests. Each test samples the ceilings again. */
static void say_ceilings(const rafter_sink *sink, rf_ceilings *c, const rf_settings *s) {
  char text[200] = "";
  json_t *peaks = json_object();
  for (int i = 0, used = 0; i < PEAK_COUNT; i++) {
    if (!has_peak(c, i)) continue;
    sample_peak(c, i, i ? 5 : 21);
    double rate = ceiling_of(&c->peak[i]).median;
    json_object_set_new(peaks, PEAKS[i].key, json_real(rate));
    if (i)
      used += snprintf(text + used, sizeof text - (size_t)used, "; %s %.0f %s", PEAKS[i].name, rate * 1e-9,
                       PEAKS[i].unit);
  }
  rf_bench_sample_read(c, 5);
  rf_ceiling f = ceiling_of(&c->peak[0]), r = ceiling_of(&c->read);
  f.sustained = c->device->type->flops(c->device, RF_F32, RF_ALU_VECTOR, (double)c->parts / RF_BENCH_FULL);
  const char *isa = rf_isa_name((rf_isa)c->device->level);
  rf_say(sink,
         "ceilings       f32 FMA %.0f GFLOP/s [%.0f..%.0f], sustained %.0f%s; read %.1f GB/s [%.1f..%.1f]; "
         "%d threads, %s\n",
         f.median * 1e-9, f.least * 1e-9, f.most * 1e-9, f.sustained * 1e-9, text, r.median * 1e-9,
         r.least * 1e-9, r.most * 1e-9, c->device->workers, isa);
  rf_put_json(sink, json_pack("{ss ss ss si so sf so so}", "test", "calibration", "model", s->model.name,
                              "isa", isa, "threads", c->device->workers, "flops", spread_json(f),
                              "sustained_flops", f.sustained, "peaks", peaks, "read_bps", spread_json(r)));
}

/* --plot draws only tests whose work depends on --batch. */
static rf_status check_plot(const rf_options *o, const rf_bench_test *tests, int count, rf_error *error) {
  bool sized = false;
  const char *path = rf_options_text(o, "plot");
  if (!path) return RAFTER_OK;
  for (int i = 0; i < count; i++) sized |= strchr("RFK", tests[i].kind) != NULL;
  if (!sized)
    return RF_FAIL(error, RAFTER_INVALID,
                   "for example --test rollout,forward --sweep batch=1..64 --plot b.svg",
                   "--plot needs a test of --batch sequences (--test: expected rollout, forward or topk)");
  return rf_gnuplot_check(path, error);
}

static rf_status rf_command_bench(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_settings *s = malloc(sizeof *s);
  rf_ceilings *c = calloc(1, sizeof *c);
  if (!s || !c) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  rf_bench_test tests[MAX_TESTS];
  int tests_count;
  /* The tests are checked first, because measuring the ceilings takes seconds. */
  RF_GO(parse_tests(rf_options_text(job->options, "test"), tests, &tests_count, error));
  RF_GO(check_plot(job->options, tests, tests_count, error));
  RF_GO(rf_settings_resolve(job->options, "generate", s, error));
  for (int i = 0; i < tests_count; i++)
    RF_GO(rf_bench_check_positions(s, &tests[i], positions_of(&tests[i]), error));
  RF_GO(rf_device_open(&RF_BACKEND_CPU, (int)s->plan.isa, s->plan.threads, NULL, &c->device, error));
  RF_GO(rf_bandwidth_memory(c->device, (int64_t)rf_bandwidth_buffer_bytes(), &c->memory, error));
  c->parts = parts_of(job->options);
  say_ceilings(sink, c, s);
  const char *name = NULL;
  const char *const *values = NULL;
  int count =
      rf_options_is_set(job->options, "sweep") ? rf_options_sweep(job->options, "sweep", &name, &values) : 0;
  if (!count) status = bench_once(job, sink, c, error);
  for (int i = 0; i < count && status == RAFTER_OK; i++) {
    rafter_job one = {rf_options_copy(job->options)};
    status = rf_options_set(one.options, name, values[i], error);
    rf_say(sink, "%s %s\n", name, values[i]);
    c->sweep = name;
    c->value = values[i];
    if (status == RAFTER_OK) status = bench_once(&one, sink, c, error);
    rf_options_free(one.options);
  }
  const char *plot = rf_options_text(job->options, "plot");
  if (status == RAFTER_OK && plot) status = rf_bench_plot(plot, s->model.name, &c->points, error);
done:
  if (c) free(c->points.at);
  if (c && c->memory) c->device->type->release(c->memory);
  if (c && c->device) c->device->type->close(c->device);
  free(c);
  free(s);
  return status;
}

static const rf_option BENCH[] = {
    RF_WORDS("test", TEXT, "TESTS", "pp512,tg128,train", "Tests",
             "tests to run, separated by commas: pp512 (prefill), tg128 and tg128@d4096 (decoding, at a "
             "depth), batch16 (decoding 16 answers at once), score8192 (log-probabilities), train\n"
             "With --batch sequences: rollout (prompts and all their answers), forward (a forward pass with "
             "log-probabilities), topk (also the likeliest tokens)"),
    RF_NUMBER("reps", INT, NULL, 1, RF_BENCH_REPS, "3", "Tests",
              "repetitions of each test\n"
              "With fewer than 3, less time is also spent on the machine's ceilings"),
    RF_NUMBER("batch", INT, "SEQUENCES", 1, 1 << 20, "4", "Tests",
              "sequences in a training step, a rollout or a forward pass"),
    RF_NUMBER("prompt-tokens", TOKENS, NULL, 1, 1 << 24, "32", "Tests", "tokens of a prompt of rollout"),
    RF_NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, "64", "Tests", "tokens of an answer of rollout"),
    RF_WORDS("plot", PATH, "FILE", NULL, "Output",
             "picture (.png or .svg) of rollout, forward and topk by batch, measured and planned"),
    RF_WORDS("sweep", SWEEP, "OPTION=LIST", NULL, "Tests",
             "measure once for each value: batch=1..64, threads=1,2,4, dtype=f32,bf16"),
    RF_FLAG("ops", "Output", "list every operation with its time"),
    {.name = NULL},
};

const rf_command RF_COMMAND_BENCH = {
    RF_COMMAND_HEAD("bench", "MODEL", 1, 1, "Run",
                    "Measure prefill, decoding and training, and compare them with the machine's ceilings."),
    .options = {RF_TABLE(BENCH), RF_TABLE(RF_TOP_OPTIONS), RF_TABLE(RF_STEP_OPTIONS), RF_INFERENCE_TABLES,
                RF_TABLE(RF_CACHE_OPTIONS), RF_TABLE(RF_RUN_FOLDER_OPTIONS), RF_TABLE(RF_TRACE_OPTIONS),
                RF_TABLE(RF_EVERY_OPTIONS)},
    .common = "test reps sweep plot batch seq adapter dtype weights compute kv-dtype threads ops json",
    .examples = {"bench gpt2 --test pp512,tg128 --dtype bf16",
                 "bench model.gguf --compute fast --test tg128@d4096,batch16 # depth and batch",
                 "bench runs/3 --test rollout,topk --sweep batch=1..64 --plot batch.svg # by batch"},
    .run = rf_command_bench};
